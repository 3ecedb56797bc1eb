/*
 * Part of libhugepin-malloc.so: interposes the calls that take memory away, and the calls that advise, protect or lock
 * memory.
 *
 * Calls of the first kind are announced to the pin cache. The kernel may not tell of an unmapping, or may tell too
 * late: by then another thread may have got the addresses already (reg/uffd.c). Calls of the second kind are noted:
 * advice for a buffer ends with the buffer's free(), and holds in children (alloc/madvise.h, reg/locks.h). Only calls
 * by the program are seen. Calls inside the C library and raw system calls are not.
 *
 * Each function then calls the next function of its name, which other libraries may have replaced or patched for the
 * same purpose. In four cases it makes the system call instead: before our constructor has run, for a name without
 * another function, for advice and protection of the heap's memory (under the heap's lock), and for all locks.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include <unistd.h>

#include "alloc/advised.h"
#include "alloc/small.h"
#include "base/base.h"
#include "base/seal.h"
#include "base/sys.h"
#include "dropin/dropin.h"
#include "dropin/jemalloc.h"
#include "hugepin.h"
#include "reg/locks.h"
#include "reg/unmapping.h"

static HP_SEALED(struct {
	int (*munmap)(void *, size_t);
	void *(*mmap)(void *, size_t, int, int, int, off_t);
	void *(*mremap)(void *, size_t, size_t, int, ...);
	int (*madvise)(void *, size_t, int);
	int (*mprotect)(void *, size_t, int);
	ssize_t (*process_madvise)(int, const struct iovec *, size_t, int, unsigned);
	int (*shmdt)(const void *);
	void *(*shmat)(int, const void *, int);
	int (*remap_file_pages)(void *, size_t, int, size_t, int);
	int (*brk)(void *);
	void *(*sbrk)(intptr_t);
	int (*pthread_attr_setstack)(pthread_attr_t *, void *, size_t);
	int (*pthread_attr_setstackaddr)(pthread_attr_t *, void *);
}) next_maps;

/* The public names may be those of a library that was preloaded before us. So the functions themselves have other
 * names: clang takes a private alias of a public name for that name. */
static int own_munmap(void *addr, size_t len);
static int own_madvise(void *addr, size_t len, int advice);
static void *own_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset);
#define PUBLIC(name) EXPORT __typeof__(name) name __attribute__((alias("own_" #name), nothrow))
PUBLIC(munmap);
PUBLIC(madvise);
PUBLIC(mmap);

/* Called in our constructor, or earlier in the constructor of another library that moves the break. Never called within
 * malloc, since dlsym may allocate. */
static void find_next_calls(void)
{
	const void *own[] = { (void *)own_munmap, (void *)own_madvise, (void *)own_mmap };

	if (next_maps.is.munmap)
		return;
#define FIND(name) (*(void **)&next_maps.is.name = dlsym(RTLD_NEXT, #name))
	FIND(munmap), FIND(mmap), FIND(mremap), FIND(madvise), FIND(mprotect), FIND(process_madvise);
	FIND(shmdt), FIND(shmat), FIND(remap_file_pages), FIND(brk), FIND(sbrk);
	FIND(pthread_attr_setstack), FIND(pthread_attr_setstackaddr);
#undef FIND
	hp_seal(&next_maps, sizeof next_maps);
	hugepin_calls_below_(own, (const void *[]){ next_maps.is.munmap, next_maps.is.madvise, next_maps.is.mmap });
}

static __attribute__((constructor)) void start_unmapping(void)
{
	find_next_calls();
	hugepin_unmapping_(NULL, 0, HP_UNMAPPED);
}

/* Call the next function of that name, or the kernel. */
#define NEXT(name, ...)                                                                                                \
	(next_maps.is.name ? next_maps.is.name(__VA_ARGS__)                                                            \
			   : (__typeof__(next_maps.is.name(__VA_ARGS__)))hp_sys_errno(hp_sys(SYS_##name, __VA_ARGS__)))

static int own_munmap(void *addr, size_t len)
{
	hugepin_unmapping_(addr, len, HP_UNMAPPED);
	return NEXT(munmap, addr, len);
}

static void *own_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
	void *p;

	if (flags & MAP_FIXED && (flags & MAP_FIXED_NOREPLACE) != MAP_FIXED_NOREPLACE)
		hugepin_unmapping_(addr, len, HP_UNMAPPED);
	p = NEXT(mmap, addr, len, prot, flags, fd, offset);
	/* Code that does not call us may have unmapped the previous memory at p a moment ago. The kernel tells of that
	 * only after the addresses are free. So announce p's range once more. */
	if (p != MAP_FAILED)
		hugepin_unmapping_(p, len, HP_UNMAPPED);
	if (p != MAP_FAILED && flags & MAP_LOCKED)
		/* MAP_LOCKED has locked the memory; this call also notes the lock */
		hugepin_lock_((uintptr_t)p, len, 0);
	return p;
}

EXPORT void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off64_t offset)
{
	return own_mmap(addr, len, prot, flags, fd, offset);
}

EXPORT void *mremap(void *addr, size_t old_len, size_t len, int flags, ...)
{
	void *to = NULL, *p;

	if (flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) {
		va_list args;

		va_start(args, flags);
		to = va_arg(args, void *);
		va_end(args);
	}
	/* Announce the old range whether or not the memory moves: a registration of the old place is worth little. */
	hugepin_unmapping_(addr, HP_MAX(old_len, (size_t)1), HP_UNMAPPED);
	if (flags & MREMAP_FIXED)
		hugepin_unmapping_(to, len, HP_UNMAPPED);
	p = NEXT(mremap, addr, old_len, len, flags, to);
	if (p != MAP_FAILED) /* as in own_mmap() */
		hugepin_unmapping_(p, len, HP_UNMAPPED);
	return p;
}

static void announce_advice(const void *addr, size_t len, int advice)
{
	switch (advice) {
	case MADV_DONTNEED:
	case MADV_FREE:
	case MADV_REMOVE:
	case 24: /* MADV_DONTNEED_LOCKED */
		hugepin_unmapping_(addr, len, HP_DISCARDED);
		break;
	case 102: /* MADV_GUARD_INSTALL */
		hugepin_unmapping_(addr, len, HP_DISCARDED_UNTOLD);
		break;
	default:
		break;
	}
}

static int own_madvise(void *addr, size_t len, int advice)
{
	struct hugepin_extent extent;
	int r;

	announce_advice(addr, len, advice);
	/* After ibv_fork_init() on a kernel before 5.12, libibverbs makes this call for memory that a domain of ours
	 * registers. Ignore the call. The domain has its own setting for what children get of that memory, and the heap
	 * carries it out. The kernel would refuse this advice for parts of the pool's pages. And a hole among small
	 * buffers would kill children. */
	if ((advice == MADV_DONTFORK || advice == MADV_DOFORK) && hugepin_registering() &&
	    hugepin_extent(addr, &extent, offsetof(struct hugepin_extent, kind)) > 0)
		return 0;
	r = hugepin_advise_(addr, len, advice);
	return r <= 0 ? (int)hp_sys_errno(r) : NEXT(madvise, addr, len, advice);
}

EXPORT int mprotect(void *addr, size_t len, int prot)
{
	int r = hugepin_protect_(addr, len, prot);

	return r <= 0 ? (int)hp_sys_errno(r) : NEXT(mprotect, addr, len, prot);
}

/* reg/locks.c notes the program's locks: a buffer's locks end with the buffer, and must not be confused with those of
 * the mlock backend. */
EXPORT int mlock(const void *addr, size_t len)
{
	return (int)hp_sys_errno(hugepin_lock_((uintptr_t)addr, len, 0));
}

EXPORT int mlock2(const void *addr, size_t len, unsigned flags)
{
	return (int)hp_sys_errno(hugepin_lock_((uintptr_t)addr, len, flags));
}

EXPORT int munlock(const void *addr, size_t len)
{
	return (int)hp_sys_errno(hugepin_unlock_((uintptr_t)addr, len));
}

EXPORT int mlockall(int flags)
{
	hp_small_start(); /* what it maps at its start would be locked otherwise, and count in the limit */
	return (int)hp_sys_errno(flags ? hugepin_lock_all_(flags) : -EINVAL);
}

EXPORT int munlockall(void)
{
	return (int)hp_sys_errno(hugepin_lock_all_(0));
}

/* The call may be for another process, whose addresses mean nothing here. Then some memory is registered again without
 * need. */
EXPORT ssize_t process_madvise(int pidfd, const struct iovec *v, size_t n, int advice, unsigned flags)
{
	for (size_t i = 0; i < n; i++)
		announce_advice(v[i].iov_base, v[i].iov_len, advice);
	return NEXT(process_madvise, pidfd, v, n, advice, flags);
}

/* The segment's length is not known here, so everything above its start is announced. Such memory is registered again
 * when it is next pinned. */
EXPORT int shmdt(const void *addr)
{
	hugepin_unmapping_(addr, ((uintptr_t)1 << 47) - (uintptr_t)addr, HP_UNMAPPED);
	return NEXT(shmdt, addr);
}

/* With SHM_REMAP the segment replaces the memory at addr. A userfaultfd gets no event of this, so it is announced
 * here. */
EXPORT void *shmat(int id, const void *addr, int flags)
{
	struct shmid_ds s;
	size_t len = 0;
	int saved_errno = errno;

	if (flags & SHM_REMAP && addr) {
		len = hp_sys(SYS_shmctl, id, IPC_STAT, &s) == 0 ? s.shm_segsz : ((uintptr_t)1 << 47) - (uintptr_t)addr;
		errno = saved_errno;
		hugepin_unmapping_(addr, len, HP_UNMAPPED);
	}
	return NEXT(shmat, id, addr, flags);
}

EXPORT int remap_file_pages(void *addr, size_t len, int prot, size_t offset, int flags)
{
	hugepin_unmapping_(addr, len, HP_UNMAPPED);
	return NEXT(remap_file_pages, addr, len, prot, offset, flags);
}

static char *current_break(void)
{
	find_next_calls();
	return next_maps.is.sbrk ? next_maps.is.sbrk(0) : NULL;
}

/* What comes into use is announced, too, as in own_mmap(). */
EXPORT int brk(void *to)
{
	char *now = current_break();
	int r = -1;

	if (now > (char *)to)
		hugepin_unmapping_(to, (size_t)(now - (char *)to), HP_UNMAPPED);
	if (next_maps.is.brk)
		r = next_maps.is.brk(to);
	else
		errno = ENOMEM;
	if (r == 0 && now && now < (char *)to)
		hugepin_unmapping_(now, (size_t)((char *)to - now), HP_UNMAPPED);
	return r;
}

EXPORT void *sbrk(intptr_t by)
{
	char *now = current_break();
	void *p = (void *)-1;

	if (by < 0 && now)
		hugepin_unmapping_(now + by, (size_t)-by, HP_UNMAPPED);
	if (next_maps.is.sbrk)
		p = next_maps.is.sbrk(by);
	else
		errno = ENOMEM;
	if (by > 0 && p != (void *)-1)
		hugepin_unmapping_(p, (size_t)by, HP_UNMAPPED);
	return p;
}

/* Tell the heap of a thread's stack in its memory. The C library keeps the thread's descriptor there, and in each child
 * of fork reads it before any handler runs. */
EXPORT int pthread_attr_setstack(pthread_attr_t *attr, void *addr, size_t size)
{
	int (*set)(pthread_attr_t *, void *, size_t) = next_maps.is.pthread_attr_setstack;

	if (!set)
		*(void **)&set = dlsym(RTLD_NEXT, "pthread_attr_setstack");
	hugepin_stack_(addr, size);
	return set(attr, addr, size);
}

/* Only the top of the stack is known, which grows downwards: tell the heap of the least possible size. */
EXPORT int pthread_attr_setstackaddr(pthread_attr_t *attr, void *top)
{
	const size_t least = 16384; /* the old PTHREAD_STACK_MIN */
	int (*set)(pthread_attr_t *, void *) = next_maps.is.pthread_attr_setstackaddr;

	if (!set)
		*(void **)&set = dlsym(RTLD_NEXT, "pthread_attr_setstackaddr");
	hugepin_stack_((char *)top - least, least);
	return set(attr, top);
}
