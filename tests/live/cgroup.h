/* A control group (version 1 or 2) for a test: below the process's own group, or, if that fails, below an ancestor of
 * it. */
#ifndef TESTS_LIVE_CGROUP_H
#define TESTS_LIVE_CGROUP_H

#include "live.h"

#include <sys/stat.h>

struct cgroup {
	char path[512]; /* path of the group; after a failure, the reason */
};

/* Make a group below mount + path with file = value. Tries the ancestors of path, too. */
static inline bool cgroup_make_at(struct cgroup *g, const char *mount, char *path, const char *file, const char *value)
{
	char limit[600];
	for (;;) {
		snprintf(g->path, sizeof g->path, "%.100s%.300s/hugepin-test-%d", mount, path, (int)getpid());
		if (!mkdir(g->path, 0755)) {
			snprintf(limit, sizeof limit, "%s/%s", g->path, file);
			if (file_write(limit, value))
				return true;
			rmdir(g->path);
		}
		char *slash = strrchr(path, '/');
		if (!slash)
			return false;
		*slash = 0;
	}
}

/* Make a group of `controller` in which v1_file (version 1) or v2_file (version 2) has this value. */
static inline bool cgroup_make(struct cgroup *g, const char *controller, const char *v1_file, const char *v2_file,
			       const char *value)
{
	static char text[4096];
	char mount[100];
	if (file_read("/proc/self/cgroup", text, sizeof text) <= 0)
		text[0] = 0;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = 0;
		names++;
		if (!strcmp(path, "/"))
			path = strchr(path, 0);
		if (!*names) {
			char other[400];
			snprintf(other, sizeof other, "%.399s", path);
			if (cgroup_make_at(g, "/sys/fs/cgroup", path, v2_file, value) ||
			    cgroup_make_at(g, "/sys/fs/cgroup/unified", other, v2_file, value))
				return true;
		} else if (strstr(names, controller)) {
			snprintf(mount, sizeof mount, "/sys/fs/cgroup/%.50s", names);
			if (cgroup_make_at(g, mount, path, v1_file, value))
				return true;
		}
	}
	snprintf(g->path, sizeof g->path, "no %s group here takes %s", controller, value);
	return false;
}

static inline void cgroup_remove(struct cgroup *g)
{
	for (int i = 0; i < 100 && rmdir(g->path) && errno == EBUSY; i++)
		sleep_ms(20);
}

#endif
