/* What lib/heard.c counts. */
#ifndef TESTS_LIVE_LIB_HEARD_H
#define TESTS_LIVE_LIB_HEARD_H

struct heard {
	_Atomic unsigned mmap, munmap, mremap, mprotect, madvise;
	_Atomic unsigned given_back; /* mmap over memory, without access */
};

#endif
