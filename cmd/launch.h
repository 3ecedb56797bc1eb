/*
 * Where this process was started: by a shell, as a service, in a job, in a container. That decides where a limit is
 * raised for good.
 */
#ifndef HP_CMD_LAUNCH_H
#define HP_CMD_LAUNCH_H

enum hp_launch {
	HP_LAUNCH_OTHER,
	HP_LAUNCH_SYSTEMD,
	HP_LAUNCH_LOGIN,
	HP_LAUNCH_SLURM,
	HP_LAUNCH_DOCKER,
	HP_LAUNCH_PODMAN,
	HP_LAUNCH_KUBERNETES
};

/* What this process sees of its place. */
struct hp_launch_facts {
	const char *cgroup; /* the text of /proc/self/cgroup */
	int slurm, kubernetes; /* SLURM_JOB_ID, KUBERNETES_SERVICE_HOST are set */
	int dockerenv, containerenv; /* /.dockerenv, /run/.containerenv exist */
};

/* Judge these facts. Pure. The innermost place counts: a container that a job starts is a container. */
enum hp_launch hp_launch_judge(const struct hp_launch_facts *f);

/* The place of this process. */
enum hp_launch hp_launch(void);

/* The place's name; NULL: it is not known. */
const char *hp_launch_name(enum hp_launch p);

/* How the limit of locked memory is raised for good there; NULL: it is not known. */
const char *hp_launch_memlock(enum hp_launch p);

#endif
