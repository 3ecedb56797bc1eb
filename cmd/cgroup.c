/*
 * Limits by control groups of both versions (cgroups(7)): the limits of the process's own group, and of every visible
 * group above it. A controller exists in one version only.
 */
#include "cmd/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/facts.h"
#include "cmd/text.h"

#define UNLIMITED (UINT64_C(1) << 60) /* version 1 has no word for "no limit", only numbers near INT64_MAX */

struct hierarchy {
	bool v1;
	char group[PATH_MAX]; /* the directory of the process's group */
	size_t mount_len; /* the length of the mount point in `group` */
};

static bool list_has(const char *list, const char *word)
{
	const size_t len = strlen(word);

	for (; *list; list += strcspn(list, ","), list += *list == ',')
		if (strcspn(list, ",") == len && !memcmp(list, word, len))
			return true;
	return false;
}

/* Find the process's group in /proc/self/cgroup: in a version 1 hierarchy with the controller, or otherwise in version
 * 2. */
static int find_group(const char *controller, bool *ret_v1, char path[PATH_MAX])
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	char *line = NULL;
	size_t room = 0;
	int status = -1;

	while (f && getline(&line, &room, f) > 0 && !(status == 0 && *ret_v1)) {
		char *rest = line;
		line[strcspn(line, "\n")] = '\0';
		strsep(&rest, ":");
		const char *controllers = strsep(&rest, ":");
		if (!rest || (*controllers && !list_has(controllers, controller)))
			continue;
		*ret_v1 = *controllers;
		snprintf(path, PATH_MAX, "%s", rest);
		status = 0;
	}
	free(line);
	if (f)
		fclose(f);
	return status;
}

/* Find the directory where a hierarchy is mounted, and the group that this directory shows (not the root, in some
 * containers). */
static int find_mount(const char *controller, bool v1, char mount[PATH_MAX], char root[PATH_MAX])
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t room = 0;
	int status = -1;

	while (f && status && getline(&line, &room, f) > 0) {
		char *rest = line, *field[6], *type, *options;
		line[strcspn(line, "\n")] = '\0';
		for (size_t i = 0; i < 6; i++)
			field[i] = strsep(&rest, " ");
		/* The optional fields end with a single dash. Then follow type, source and the hierarchy's options. */
		while ((type = strsep(&rest, " ")) && strcmp(type, "-"))
			;
		type = strsep(&rest, " ");
		strsep(&rest, " ");
		options = rest;
		if (!options || strcmp(type, v1 ? "cgroup" : "cgroup2") || (v1 && !list_has(options, controller)))
			continue;
		snprintf(root, PATH_MAX, "%s", field[3]);
		snprintf(mount, PATH_MAX, "%s", field[4]);
		status = 0;
	}
	free(line);
	if (f)
		fclose(f);
	return status;
}

static int find_hierarchy(const char *controller, struct hierarchy *ret_h)
{
	char path[PATH_MAX], mount[PATH_MAX], root[PATH_MAX];
	const char *below = path;

	if (find_group(controller, &ret_h->v1, path) || find_mount(controller, ret_h->v1, mount, root))
		return -1;
	if (strcmp(root, "/") && !strncmp(path, root, strlen(root)))
		below += strlen(root);
	if (!strcmp(below, "/"))
		below = "";
	ret_h->mount_len = strlen(mount);
	if ((size_t)snprintf(ret_h->group, PATH_MAX, "%s%s", mount, below) >= PATH_MAX)
		return -1;
	return 0;
}

/* Add a fact for each group that has this limit, from the process's own group upwards. `limit` is the name of the
 * limit's file. Returns the number of facts. page_size: the size of the hugepages that the limit counts; 0 for other
 * memory. */
static int tell_ceilings(const struct hierarchy *h, const char *limit, const char *usage, uint64_t page_size)
{
	char group[PATH_MAX], path[2 * PATH_MAX], max[HP_TEXT_MAX], now[HP_TEXT_MAX];
	int count = 0;

	snprintf(group, sizeof group, "%s", h->group);
	for (char *end = group + strlen(group); end; end = strrchr(group + h->mount_len, '/')) {
		*end = '\0';
		snprintf(path, sizeof path, "%s/%s", group, usage);
		const uint64_t used = hp_read_number(path, 0);
		snprintf(path, sizeof path, "%s/%s", group, limit);
		/* "max" is not a number, so it reads as UINT64_MAX */
		const uint64_t ceiling = hp_read_number(path, UINT64_MAX);
		if (ceiling >= UNLIMITED)
			continue;
		count++;
		hp_facts_add(limit, "%s, %s of it used, by %s", hp_text_bytes(ceiling, max), hp_text_bytes(used, now),
			     path);
		if (page_size && ceiling < used + page_size) {
			char quoted[2 * PATH_MAX];
			hp_line_quote(&(struct hp_line){ quoted, quoted + sizeof quoted }, path);
			hp_facts_advise("hugepages are refused to this process", "echo %s > %s", h->v1 ? "-1" : "max",
					quoted);
		}
	}
	return count;
}

/* The kernel's name for a page size in the hugetlb controller's files: "2MB", "1GB", "64KB". */
static char *hugetlb_name(long page_size, char buf[HP_TEXT_MAX])
{
	if (page_size >= 1L << 30)
		snprintf(buf, HP_TEXT_MAX, "%ldGB", page_size >> 30);
	else if (page_size >= 1L << 20)
		snprintf(buf, HP_TEXT_MAX, "%ldMB", page_size >> 20);
	else
		snprintf(buf, HP_TEXT_MAX, "%ldKB", page_size >> 10);
	return buf;
}

void hp_cgroup_facts(const long *page_sizes, int count)
{
	static struct hierarchy h;
	char limit[64], usage[64], name[HP_TEXT_MAX];
	int found = 0;

	if (!find_hierarchy("memory", &h)) {
		if (h.v1) {
			found += tell_ceilings(&h, "memory.limit_in_bytes", "memory.usage_in_bytes", 0);
		} else {
			found += tell_ceilings(&h, "memory.max", "memory.current", 0);
			found += tell_ceilings(&h, "memory.high", "memory.current", 0);
		}
	}
	const bool hugetlb = !find_hierarchy("hugetlb", &h);
	for (int i = 0; hugetlb && i < count; i++) {
		/* "" limits populated pages, "rsvd." limits pages that mmap reserves. */
		static const char *const kinds[] = { "", "rsvd." };
		for (size_t k = 0; k < 2; k++) {
			hugetlb_name(page_sizes[i], name);
			snprintf(limit, sizeof limit, "hugetlb.%s.%s%s", name, kinds[k],
				 h.v1 ? "limit_in_bytes" : "max");
			snprintf(usage, sizeof usage, "hugetlb.%s.%s%s", name, kinds[k],
				 h.v1 ? "usage_in_bytes" : "current");
			found += tell_ceilings(&h, limit, usage, (uint64_t)page_sizes[i]);
		}
	}
	if (!found)
		hp_facts_add("memory, hugetlb", "no ceiling");
}
