/*
 * Sealed memory is read-only except while we write it. It contains pointers to functions that our threads call, so that
 * an attacker who can write to other memory cannot choose the code that runs there. A sealed object has its pages for
 * itself.
 */
#ifndef HP_BASE_SEAL_H
#define HP_BASE_SEAL_H

#include <sys/mman.h>

#include "base/base.h"
#include "base/sys.h"

/* The largest base page. */
#if defined __x86_64__
#define HP_SEAL_SIZE 4096
#else
#define HP_SEAL_SIZE 65536
#endif

/* HP_SEALED(struct { ... }) name = { { ... } }; its members are name.is.MEMBER */
#define HP_SEALED(...)                                                                                                 \
	union {                                                                                                        \
		__VA_ARGS__ is;                                                                                        \
		char page_[HP_SEAL_SIZE];                                                                              \
	} __attribute__((aligned(HP_SEAL_SIZE)))

/* Make the memory read-only. One thread at a time; size is a multiple of the base page. If the kernel refuses, the
 * memory stays writable. */
static inline void hp_seal(void *p, size_t size)
{
	hp_sys(SYS_mprotect, p, size, PROT_READ);
}

/* Make the memory writable. False: this thread is not allowed to (thread.h), and must not write there. */
static inline bool hp_unseal(void *p, size_t size)
{
	return hp_sys(SYS_mprotect, p, size, PROT_READ | PROT_WRITE) == 0;
}

#endif
