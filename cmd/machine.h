/*
 * The kernel's settings and pools of hugepages, as sysfs has them.
 */
#ifndef HP_CMD_MACHINE_H
#define HP_CMD_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "cmd/text.h"

#define HP_THP_DIR "/sys/kernel/mm/transparent_hugepage/"
#define HP_POOLS_DIR "/sys/kernel/mm"

/* A hugetlb pool, in pages. */
struct hp_pool {
	uint64_t total, free, reserved, surplus, overcommit;
};

/* The pool with pages of this size. dir: HP_POOLS_DIR, or the directory of a NUMA node. A file that is missing counts
 * as 0. */
struct hp_pool hp_machine_pool(const char *dir, long page_size);

/* Whether a mapping can get a page of the pool. */
bool hp_pool_has(const struct hp_pool *p);

/* The present choice in a file such as "always [madvise] never". "": the file does not exist. */
char *hp_machine_choice(const char *path, char word[HP_TEXT_MAX]);

/* Whether this process can have transparent hugepages of 2 MiB by madvise(2). */
bool hp_machine_thp(void);

/* Processor time since boot, of all processors together, in ticks. */
struct hp_ticks {
	uint64_t busy, all; /* busy: of programs and of the kernel, and what a hypervisor gave to others */
};

/* Read the first line of /proc/stat. all: 0 if it is no such line. Pure. */
struct hp_ticks hp_machine_ticks(const char *line);

#endif
