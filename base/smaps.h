/*
 * The mappings of this process with what /proc/self/smaps tells of each. Raw system calls. A reading takes microseconds
 * for each mapping.
 */
#ifndef HP_BASE_SMAPS_H
#define HP_BASE_SMAPS_H

#include "base/base.h"

enum {
	HP_SMAPS_READ = 1,
	HP_SMAPS_WRITE = 2,
	HP_SMAPS_EXEC = 4,
	HP_SMAPS_DONTFORK = 8,
	HP_SMAPS_WIPEONFORK = 16,
	HP_SMAPS_DONTDUMP = 32,
	HP_SMAPS_LOCKED = 64,
	HP_SMAPS_UFFD = 128, /* a userfaultfd is registered for it */
	HP_SMAPS_KEY = 256, /* it has a protection key */
	HP_SMAPS_IO = 512, /* of an io_uring, or of asynchronous I/O */
	HP_SMAPS_SEALED = 1024, /* nothing may be mapped over it (mseal) */
};

struct hp_smaps {
	uintptr_t start, end;
	unsigned flags;
	size_t resident, huge; /* bytes that are there, but for the pool's; of these, in transparent hugepages */
};

/* One line; true: *m is complete. Names of files may be anything. */
bool hp_smaps_line(const char *line, struct hp_smaps *m);

/* Call each() for every mapping, in the order of addresses. What cannot be read is left out: of a mapping whose first
 * line is longer than the buffer start and end are 0. One caller at a time has the buffer. */
void hp_smaps_each(char *buffer, size_t size, void (*each)(void *arg, const struct hp_smaps *m), void *arg);

#endif
