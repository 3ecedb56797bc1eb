/*
 * The mapping calls for memory of ours that nobody has to hear of: it comes into use, or nobody else has known it. They
 * go straight to the kernel. By the C library's names they would come by libhugepin-malloc.so's own functions, which
 * tell the pin cache and note advice, and by other libraries' hooks. Those of UCX before version 1.14 lose the fifth
 * argument of mremap(), which is where the memory is to go: at best the kernel refuses, and the heap has no pages of
 * the pool from then on.
 *
 * What the program may have known, and what others may have registered, is not taken away by these: whoever hears of
 * mmap and munmap has to hear of that (hp_map_release()).
 *
 * As the C library's functions: -1 or MAP_FAILED, and errno. A sanitizer has to see what is mapped, and gets the C
 * library's.
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

/* Anonymous, private memory where the kernel likes; flags: MAP_HUGETLB and the like, to be added. */
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

/* To another place, over what lies there. */
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
