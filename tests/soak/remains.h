/* What the process has before and after a round: nothing may be left. */
#ifndef TESTS_SOAK_REMAINS_H
#define TESTS_SOAK_REMAINS_H

#include <dirent.h>
#include <malloc.h>

#include "state.h"

static long lines(const char *path)
{
	char text[4096];
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;
	long count = 0;

	while ((n = read(fd, text, sizeof text)) > 0)
		for (ssize_t i = 0; i < n; i++)
			count += text[i] == '\n';
	close(fd);
	return count;
}

static long entries(const char *path)
{
	DIR *dir = opendir(path);
	long count = 0;

	while (dir && readdir(dir))
		count++;
	if (dir)
		closedir(dir);
	return count;
}

/* X(name, value now, how much more is allowed). glibc's arenas for small memory differ from round to round. Where an
 * arena grows behind pages that have been pinned, each part is a mapping: watched and unwatched memory do not merge. */
#define LEFT_LIST(X)                                                                                                   \
	X(pinned_kib, status_number("VmPin:"), 0)                                                                      \
	X(locked_kib, status_number("VmLck:"), 0)                                                                      \
	X(hugetlb_kib, status_number("HugetlbPages:"), 0)                                                              \
	X(heap_taken, (long)heap.taken_bytes, 0)                                                                       \
	X(heap_extents, (long)heap.extents, 0)                                                                         \
	X(descriptors, entries("/proc/self/fd"), 0)                                                                    \
	X(threads, entries("/proc/self/task"), 0)                                                                      \
	X(mappings, lines("/proc/self/maps"), SANITIZED ? 4096 : 256)                                                  \
	X(resident_kib, status_number("VmRSS:"), 256 * 1024) /* malloc keeps several of the largest buffers */

struct left {
#define LEFT_MEMBER(name, now, slack) long name;
	LEFT_LIST(LEFT_MEMBER)
};

static struct left left_now(void)
{
	struct hugepin_stats heap;

	/* Make all mapped memory resident, as a change may have done before, also what malloc keeps free. If mmap
	 * failed for a moment, malloc may keep as much as the largest buffer. */
	if (!SANITIZED && !mlockall(MCL_CURRENT))
		munlockall();
	malloc_trim(0);
	hugepin_stats(&heap, sizeof heap);
	return (struct left){
#define LEFT_NOW(name, now, slack) now,
		LEFT_LIST(LEFT_NOW)
	};
}

/* Memory of threads and rings goes a moment after them: workers of the kernel free it later. */
static struct left left_check(const struct left *before)
{
	struct left now = { 0 };

	for (int i = 0; i < 300; i++) {
		hugepin_purge();
		now = left_now();
#define LEFT_HOLDS(name, unused, slack) now.name <= before->name + (slack) &&
		if (LEFT_LIST(LEFT_HOLDS) true)
			break;
		sleep_ms(100);
	}
	t_print("#");
#define LEFT_SHOW(name, unused, slack) t_print(" " #name " %ld", now.name);
	LEFT_LIST(LEFT_SHOW)
	t_print("\n");
#define LEFT_PRINT(name, unused, slack)                                                                                \
	if (now.name > before->name + (slack))                                                                         \
		T_FAIL("left at the end: " #name " %ld, at the start %ld", now.name, before->name);
	LEFT_LIST(LEFT_PRINT)
	return now;
}

#endif
