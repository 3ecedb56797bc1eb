/*
 * Mapping calls for our own memory that no other library needs to know of, because it just comes into use, or was never
 * known outside. They go straight to the kernel (sys.h). By the C library's names they would reach the functions of
 * libhugepin-malloc.so that tell the pin cache and note advice, and hooks of other libraries. The hooks of UCX before
 * version 1.14 lose the fifth argument of mremap(), the memory's destination. At best the kernel then refuses, and the
 * heap gets no more pages of the pool.
 *
 * Never use these calls to take away memory that the program may know, or that others may have registered, because
 * hooks on mmap and munmap must see this (hp_map_release()).
 *
 * They return 0 or an address, or -errno. Under a sanitizer, which has to see each mapping, they are the C library's
 * functions.
 */
#ifndef HP_BASE_MAP_H
#define HP_BASE_MAP_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/sys.h"

#if !HP_SANITIZED
#define HP_MAP_CALL(name, ...) return hp_sys(SYS_##name, __VA_ARGS__)
#else
#define HP_MAP_CALL(name, ...)                                                                                         \
	int saved_errno = errno;                                                                                       \
	long result = (long)name(__VA_ARGS__);                                                                         \
                                                                                                                       \
	if (result == -1)                                                                                              \
		result = -errno;                                                                                       \
	errno = saved_errno;                                                                                           \
	return result
#endif

/* Map anonymous, private memory at an address of the kernel's choice. flags: further flags, such as MAP_HUGETLB. */
static inline long hp_raw_mmap(size_t len, int prot, int flags)
{
	HP_MAP_CALL(mmap, NULL, len, prot, flags | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Map it at `at` if these addresses are free, otherwise elsewhere. */
static inline long hp_raw_mmap_near(uintptr_t at, size_t len, int prot)
{
	HP_MAP_CALL(mmap, (void *)at, len, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static inline long hp_raw_munmap(void *p, size_t len)
{
	HP_MAP_CALL(munmap, p, len);
}

/* Move a mapping to `to`, replacing any mapping there. */
static inline long hp_raw_mremap(void *p, size_t len, void *to)
{
	HP_MAP_CALL(mremap, p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
}

static inline long hp_raw_mprotect(void *p, size_t len, int prot)
{
	HP_MAP_CALL(mprotect, p, len, prot);
}

static inline long hp_raw_madvise(void *p, size_t len, int advice)
{
	HP_MAP_CALL(madvise, p, len, advice);
}

#endif
