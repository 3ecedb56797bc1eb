/*
 * Memory that is read-only except while it is written. It holds pointers to functions that threads of ours call:
 * somebody who can write to memory somewhere must not decide what runs there. Such an object has its pages for itself.
 */
#ifndef HP_BASE_SEAL_H
#define HP_BASE_SEAL_H

#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/base.h"

#define HP_SEAL_SIZE 4096

/* HP_SEALED(struct { ... }) name = { { ... } }; its members are name.is.MEMBER */
#define HP_SEALED(...)                                                                                                 \
	union {                                                                                                        \
		__VA_ARGS__ is;                                                                                        \
		char page_[HP_SEAL_SIZE];                                                                              \
	} __attribute__((aligned(HP_SEAL_SIZE)))

/* By one thread at a time. size: a multiple of HP_SEAL_SIZE. A system that refuses leaves it as it is. */
static inline void hp_seal(void *p, size_t size)
{
	hp_syscall(SYS_mprotect, (long)p, (long)size, PROT_READ, 0, 0, 0);
}

/* False: this thread may not (thread.h), and must not write there. */
static inline bool hp_unseal(void *p, size_t size)
{
	return hp_syscall(SYS_mprotect, (long)p, (long)size, PROT_READ | PROT_WRITE, 0, 0, 0) == 0;
}

#endif
