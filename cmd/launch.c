/*
 * Where this process was started. docs/DEPLOY.md has more about each place.
 */
#include "cmd/launch.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

enum hp_launch hp_launch_judge(const struct hp_launch_facts *f)
{
	/* With a control group namespace of its own a container sees only "/". */
	if (f->kubernetes || strstr(f->cgroup, "/kubepods"))
		return HP_LAUNCH_KUBERNETES;
	if (f->containerenv || strstr(f->cgroup, "/libpod"))
		return HP_LAUNCH_PODMAN;
	if (f->dockerenv || strstr(f->cgroup, "/docker"))
		return HP_LAUNCH_DOCKER;
	if (f->slurm)
		return HP_LAUNCH_SLURM;
	/* A login's shell is in a scope, and the user's own services are below user@UID.service. */
	if (strstr(f->cgroup, "/user.slice"))
		return HP_LAUNCH_LOGIN;
	return strstr(f->cgroup, ".service") ? HP_LAUNCH_SYSTEMD : HP_LAUNCH_OTHER;
}

enum hp_launch hp_launch(void)
{
	static char cgroup[8192];
	const struct hp_launch_facts f = { .cgroup = cgroup,
					  .slurm = getenv("SLURM_JOB_ID") != NULL,
					  .kubernetes = getenv("KUBERNETES_SERVICE_HOST") != NULL,
					  .dockerenv = !access("/.dockerenv", F_OK),
					  .containerenv = !access("/run/.containerenv", F_OK) };

	if (hp_read_file("/proc/self/cgroup", cgroup, sizeof cgroup) < 0)
		cgroup[0] = '\0';
	return hp_launch_judge(&f);
}

static const struct {
	const char *name, *memlock;
} places[] = {
	[HP_LAUNCH_OTHER] = { NULL, NULL },
	[HP_LAUNCH_SYSTEMD] = { "systemd", "for good: LimitMEMLOCK=infinity below [Service] of its unit" },
	[HP_LAUNCH_LOGIN] = { "a login", "for good, from the next login on: a line \"* - memlock unlimited\" in "
					"/etc/security/limits.d/memlock.conf" },
	[HP_LAUNCH_SLURM] = { "Slurm", "for good: PropagateResourceLimitsExcept=MEMLOCK in slurm.conf, and "
				      "LimitMEMLOCK=infinity in the unit of slurmd" },
	[HP_LAUNCH_DOCKER] = { "Docker", "for good: docker run --ulimit memlock=-1:-1, or --cap-add IPC_LOCK" },
	[HP_LAUNCH_PODMAN] = { "Podman",
			      "for good: podman run --ulimit memlock=-1:-1; as root --cap-add IPC_LOCK does, too" },
	[HP_LAUNCH_KUBERNETES] = { "Kubernetes",
				  "for good: the capability IPC_LOCK in the container's securityContext, or "
				  "LimitMEMLOCK=infinity in the unit of the container runtime" },
};

const char *hp_launch_name(enum hp_launch p)
{
	return places[p].name;
}

const char *hp_launch_memlock(enum hp_launch p)
{
	return places[p].memlock;
}
