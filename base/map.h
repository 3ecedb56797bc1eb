/*
 * Mapping calls for our own memory that no other library needs to know of: the memory just comes into use, or was never
 * known outside. The calls are made by number, with syscall(). Under libhugepin-malloc.so that is a function of
 * dropin/rights.c, which hands these numbers on. By the C library's names the calls would reach the functions of
 * libhugepin-malloc.so that tell the pin cache and note advice, and hooks of other libraries. The hooks of UCX before
 * version 1.14 lose the fifth argument of mremap(), the memory's destination. At best the kernel then refuses, and the
 * heap gets no more pages of the pool.
 *
 * Never use these calls to take away memory that the program may know, or that others may have registered: hooks on
 * mmap and munmap must see this (hp_map_release()).
 *
 * They return like the C library's functions: -1 or MAP_FAILED, and errno. Under a sanitizer, which has to see each
 * mapping, they are the C library's functions.
 */
#ifndef HP_BASE_MAP_H
#define HP_BASE_MAP_H

#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define HP_MAP_RAW 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define HP_MAP_RAW 0
#else
#define HP_MAP_RAW 1
#endif
#else
#define HP_MAP_RAW 1
#endif

/* Map anonymous, private memory at an address of the kernel's choice. flags: further flags, such as MAP_HUGETLB. */
static inline void *hp_raw_mmap(size_t len, int prot, int flags)
{
	flags |= MAP_PRIVATE | MAP_ANONYMOUS;
#if HP_MAP_RAW
	return (void *)syscall(SYS_mmap, NULL, len, prot, flags, -1, 0L);
#else
	return mmap(NULL, len, prot, flags, -1, 0);
#endif
}

static inline int hp_raw_munmap(void *p, size_t len)
{
#if HP_MAP_RAW
	return (int)syscall(SYS_munmap, p, len);
#else
	return munmap(p, len);
#endif
}

/* Move a mapping to `to`, replacing any mapping there. */
static inline void *hp_raw_mremap(void *p, size_t len, void *to)
{
#if HP_MAP_RAW
	return (void *)syscall(SYS_mremap, p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
#else
	return mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
#endif
}

static inline int hp_raw_mprotect(void *p, size_t len, int prot)
{
#if HP_MAP_RAW
	return (int)syscall(SYS_mprotect, p, len, prot);
#else
	return mprotect(p, len, prot);
#endif
}

static inline int hp_raw_madvise(void *p, size_t len, int advice)
{
#if HP_MAP_RAW
	return (int)syscall(SYS_madvise, p, len, advice);
#else
	return madvise(p, len, advice);
#endif
}

#endif
