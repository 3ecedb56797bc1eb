/*
 * The mappings of this process, with the facts in /proc/self/smaps. Makes raw system calls. Reading takes microseconds
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
	HP_SMAPS_IO = 512, /* memory of an io_uring, or of asynchronous I/O */
	HP_SMAPS_SEALED = 1024, /* no other mapping may replace it (mseal) */
};

struct hp_smaps {
	uintptr_t start, end;
	unsigned flags;
	size_t resident, huge; /* bytes in memory, without the pool's; huge: those in transparent hugepages */
};

/* Parse one line into *m. True: *m is complete. Names of files may be any text. */
bool hp_smaps_line(const char *line, struct hp_smaps *m);

/* Call each() for every mapping, in the order of addresses. Unreadable facts are left out. If a mapping's first line is
 * longer than the buffer, its start and end are 0. Only one caller at a time may use the buffer. */
void hp_smaps_each(char *buffer, size_t size, void (*each)(void *arg, const struct hp_smaps *m), void *arg);

#endif
