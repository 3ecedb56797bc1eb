/*
 * The small tier of libhugepin-malloc.so.
 *
 * jemalloc is linked in under other names (hpje_*). So it needs neither dlsym nor a bootstrap, is reached by one jump,
 * and gets its memory from this file. All its memory comes from a second reserved span, the arena. So a pointer outside
 * both spans belongs to neither allocator. With HUGEPIN_SMALL_PINNED=1 the arena is a part of the heap's span, and its
 * memory comes from extents of the heap.
 *
 * Another allocator may take jemalloc's place once our constructor has run (next.c). Earlier buffers stay with
 * jemalloc. free() finds the owner of each pointer by its address.
 */
#include "dropin/jemalloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <time.h>

#include "base/bits.h"
#include "base/lock.h"
#include "base/map.h"
#include "base/sys.h"
#include "dropin/dropin.h"
#include "hugepin.h"

extern struct hugepin_stats_page hugepin_stats_page;

/* ------------------------------------------------------------------ the arena */

static void small_free(void *p);

struct hp_arena hp_arena = { .base = (uintptr_t)1 << 63,
			     .jemalloc_below = HUGEPIN_LARGE_MIN,
			     .free_outside = small_free };

static void lock_arena(void)
{
	if (!hp_lock_try(&hp_arena.lock))
		hp_lock_wait(&hp_arena.lock);
}

static void unlock_arena(void)
{
	hp_lock_release(&hp_arena.lock);
}

static uintptr_t arena_base(void)
{
	return atomic_load_explicit(&hp_arena.base, memory_order_relaxed);
}

static size_t arena_size(void)
{
	return atomic_load_explicit(&hp_arena.size, memory_order_relaxed);
}

/* Statistics are members of a public struct, which cannot be _Atomic. relaxed: a number. */
static void count_bytes(uint64_t *statistic, uint64_t bytes)
{
	__atomic_fetch_add(statistic, bytes, __ATOMIC_RELAXED);
}

/* Called once, with the lock held: at jemalloc's first mapping. */
static void reserve_arena(void)
{
	struct rlimit as;
	struct sysinfo info;
	size_t size = hugepin_small_span_();
	long p = -ENOMEM, used;

	if (!size) {
		size = (size_t)64 << 30;
		while (hp_sys(SYS_sysinfo, &info) == 0 && size < 4 * (size_t)info.totalram * info.mem_unit)
			size *= 2;
	}
	if (hp_limit(RLIMIT_AS, &as) == 0 && as.rlim_cur != RLIM_INFINITY)
		size = HP_MIN(size, as.rlim_cur / 8);
	for (size &= ~(HP_PAGE - 1); size >= 2 * HP_PAGE; size = size / 2 & ~(HP_PAGE - 1)) {
		/* aligning the base costs one page */
		p = hp_raw_mmap(size + HP_PAGE, PROT_NONE, 0);
		if (!hp_sys_failed(p))
			break;
	}
	if (hp_sys_failed(p))
		return;
	hp_raw_madvise((void *)p, size + HP_PAGE, MADV_DONTDUMP);

	size_t units = size >> HP_PAGE_SHIFT;

	used = hp_raw_mmap(units / 8 + 8, PROT_READ | PROT_WRITE, 0);
	if (hp_sys_failed(used)) {
		hp_raw_munmap((void *)p, size + HP_PAGE);
		return;
	}
	hp_arena.used = (void *)used;
	/* The base first, then the size: each pairs with hp_in_arena(). */
	atomic_store_explicit(&hp_arena.base, hp_round_up((uintptr_t)p, HP_PAGE), memory_order_release);
	atomic_store_explicit(&hp_arena.size, units << HP_PAGE_SHIFT, memory_order_release);
}

/* Make the arena a part of the heap's span. Memory from an earlier arena counts as outside. Called with the lock. */
static void move_arena(uintptr_t base, size_t size)
{
	struct hugepin_stats *s = &hugepin_stats_page.stats;

	hp_arena.outside = hp_arena.tried;
	count_bytes(&s->small_outside_bytes, s->small_bytes);
	__atomic_store_n(&s->small_bytes, 0, __ATOMIC_RELAXED); /* relaxed: a number */
	/* A thread in hp_in_arena() that has loaded the old base may load the new size. That one is no longer:
	 * reserve_arena() takes as much as the whole span, or an eighth of RLIMIT_AS, and the heap's part is half of
	 * the span, or at most that eighth. No thread has the new base with the old size.
	 * Each of these pairs with its loads. */
	atomic_store_explicit(&hp_arena.size, 0, memory_order_release);
	atomic_store_explicit(&hp_arena.base, base, memory_order_release);
	atomic_store_explicit(&hp_arena.size, size, memory_order_release);
	/* pairs with hp_arena_in_heap() */
	atomic_store_explicit(&hp_arena.in_heap, true, memory_order_release);
}

/* Decide which span the arena is, and reserve one if needed. */
static void settle_arena(void)
{
	uintptr_t base;
	size_t size;
	int err;

	if (atomic_load_explicit(&hp_arena.settled, memory_order_acquire)) /* pairs with the store below */
		return;
	err = hugepin_small_part_(&base, &size); /* called without the lock, since hooks on mmap may allocate */
	lock_arena();
	if (err == 0 && !hp_arena_in_heap()) {
		move_arena(base, size);
	} else if (err != 0 && !hp_arena.tried) {
		hp_arena.tried = true;
		reserve_arena();
	}
	/* pairs with the load above */
	atomic_store_explicit(&hp_arena.settled, err != -EAGAIN, memory_order_release);
	unlock_arena();
}

void hp_arena_limit(size_t limit)
{
	uintptr_t base;
	size_t size, last;

	if (hp_arena_in_heap()) {
		/* hugepin_span_limit_() has shortened the heap's part. The store pairs with hp_in_arena(). */
		if (hugepin_small_part_(&base, &size) == 0)
			atomic_store_explicit(&hp_arena.size, size, memory_order_release);
		return;
	}
	lock_arena();
	size = arena_size();
	for (last = size >> HP_PAGE_SHIFT; last && !hp_bit(hp_arena.used, last - 1); last--)
		;
	limit = HP_MAX(limit, last << HP_PAGE_SHIFT);
	if (limit < size && munmap((void *)(arena_base() + limit), size - limit) == 0)
		atomic_store_explicit(&hp_arena.size, limit, memory_order_release); /* pairs with hp_in_arena() */
	unlock_arena();
}

/* ------------------------------------------------------------------ what jemalloc asks of kernel and C library */

/* Take a free run of units: at `hint` if it is free there, otherwise the first one. SIZE_MAX: there is none. */
static size_t take_units(size_t units, const void *hint)
{
	size_t all = arena_size() >> HP_PAGE_SHIFT, at = 0, taken;

	if (hp_in_arena(hint) && !((uintptr_t)hint & (HP_PAGE - 1)))
		at = ((uintptr_t)hint - arena_base()) >> HP_PAGE_SHIFT;
	while (units <= all && at <= all - units) {
		taken = hp_bits_find(hp_arena.used, at, at + units, true);
		if (taken == at + units) {
			hp_bits_fill(hp_arena.used, at, units, true);
			return at;
		}
		at = hp_bits_find(hp_arena.used, taken, all, false);
	}
	return SIZE_MAX;
}

/* Without jemalloc's MAP_NORESERVE, because the kernel has to refuse here what it refuses the C library's malloc: more
 * than there can ever be. */
static void *map_outside(void *hint, size_t len, int prot, int flags, int fd, off_t offset)
{
	void *p = mmap(hint, len, prot, flags & ~MAP_NORESERVE, fd, offset);

	if (p != MAP_FAILED) {
		hp_arena.outside = true;
		count_bytes(&hugepin_stats_page.stats.small_outside_bytes, len);
	}
	return p;
}

/* Map units of an arena that is not part of the heap's span. NULL: the arena is full. */
static void *map_units(void *hint, size_t len, int prot)
{
	size_t units = (len + HP_PAGE - 1) >> HP_PAGE_SHIFT, at;
	void *p;

	lock_arena();
	at = take_units(units, hint);
	unlock_arena();
	if (at == SIZE_MAX)
		return NULL;
	/* Give access by mprotect, not by mmap: a refused MAP_FIXED may leave a hole (alloc/map.c). */
	p = (void *)(arena_base() + (at << HP_PAGE_SHIFT));
	if (hp_raw_mprotect(p, len, prot) != 0 && (!hugepin_purge_for_small_() || hp_raw_mprotect(p, len, prot) != 0)) {
		lock_arena();
		hp_bits_fill(hp_arena.used, at, units, false);
		unlock_arena();
		return MAP_FAILED;
	}
	hp_raw_madvise(p, len, MADV_DODUMP);
	return p;
}

/* Map memory in the arena that is part of the heap's span. NULL: it is full. */
static void *map_in_heap(void *hint, size_t len)
{
	void *p;

	if (hint && !hp_in_arena(hint))
		return NULL;
	p = hugepin_small_map_(hint, len);
	if (!p && hint) /* jemalloc wants memory exactly at the hint, or none */
		p = MAP_FAILED;
	else if (!p && hugepin_purge_for_small_())
		p = hugepin_small_map_(NULL, len);
	return p;
}

void *hpje_mmap(void *hint, size_t len, int prot, int flags, int fd, off_t offset)
{
	void *p;

	settle_arena();
	if (flags & MAP_FIXED) { /* under vm.overcommit_memory=2 jemalloc commits and decommits parts of its memory */
		if (!hp_arena_in_heap() || !hp_in_arena(hint))
			return mmap(hint, len, prot, flags, fd, offset);
		/* all memory in the heap is committed, and stays committed */
		return prot == PROT_NONE ? MAP_FAILED : hint;
	}
	p = hp_arena_in_heap() ? map_in_heap(hint, len) : map_units(hint, len, prot);
	if (!p)
		return map_outside(hint, len, prot, flags, fd, offset);
	if (p != MAP_FAILED)
		count_bytes(&hugepin_stats_page.stats.small_bytes, len);
	return p;
}

int hpje_munmap(void *p, size_t len)
{
	uintptr_t from = hp_round_up((uintptr_t)p, HP_PAGE), to = ((uintptr_t)p + len) & ~(HP_PAGE - 1);
	size_t first = (from - arena_base()) >> HP_PAGE_SHIFT;

	if (!hp_in_arena(p)) {
		if (munmap(p, len) != 0)
			return -1;
		count_bytes(&hugepin_stats_page.stats.small_outside_bytes, -len);
		return 0;
	}
	if (hp_arena_in_heap()) {
		hugepin_small_unmap_(p, len);
		count_bytes(&hugepin_stats_page.stats.small_bytes, -len);
		return 0;
	}
	if (mmap(p, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		return -1;
	hp_raw_madvise(p, len, MADV_DONTDUMP);
	count_bytes(&hugepin_stats_page.stats.small_bytes, -len);
	if (from < to) {
		lock_arena();
		hp_bits_fill(hp_arena.used, first, (to - from) >> HP_PAGE_SHIFT, false);
		unlock_arena();
	}
	return 0;
}

/* jemalloc's second source of memory, the break, is refused: its memory would be in neither span. jemalloc tries this
 * once at its start and does not look at errno. errno is left as it is, so that main() finds it unchanged. */
void *hpje_sbrk(intptr_t increment)
{
	(void)increment;
	return (void *)-1;
}

int hpje_madvise(void *p, size_t len, int advice)
{
	/* Memory that may be registered is not purged. Refuse, since jemalloc would notice a false success: it expects
	 * zeros. */
	if ((advice == MADV_DONTNEED || advice == MADV_FREE) && hp_arena_in_heap() && hp_in_arena(p)) {
		errno = EINVAL;
		return -1;
	}
	return madvise(p, len, advice);
}

#ifdef HP_JEMALLOC_5_3
/* jemalloc's settings without others: an arena for each processor, not four, and thread caches that are looked through
 * every 256 KiB of requests, not every 64 KiB. docs/PERFORMANCE.md has the figures. /etc/malloc.conf and MALLOC_CONF
 * come later and win. A program with a malloc_conf of its own has that in place of ours. */
EXPORT const char *malloc_conf = "narenas_ratio:1,tcache_gc_incr_bytes:262144";
#endif

/* jemalloc reads MALLOC_CONF by this function when it starts. If the arena is part of the heap's span, prepend
 * retain:false, so that jemalloc does not keep unused memory. Then jemalloc's own arenas share hugepages, and
 * completely free hugepages can be given back. The user's text comes later and wins. */
char *hpje_secure_getenv(const char *name)
{
	static const char ours[] = "retain:false,";
	static char conf[4096];
	const char *users = hp_env(name);
	size_t len = users ? strlen(users) : 0;

	settle_arena();
	if (!hp_arena_in_heap() || sizeof ours + len > sizeof conf)
		return (char *)users;
	memcpy(conf, ours, sizeof ours - 1);
	if (users)
		memcpy(conf + sizeof ours - 1, users, len);
	conf[sizeof ours - 1 + len - !len] = 0; /* if the user's text is empty, drop the comma */
	return conf;
}

#ifdef HP_JEMALLOC_5_3_0
/* Stands in for jemalloc's function (Makefile). jemalloc 5.3.0 gives each thread a cache, but does not notice if there
 * was no memory for it: the thread's first request then reads through NULL. This function leaves such a thread without
 * a cache. */
extern bool je_opt_tcache;
bool je_tsd_tcache_data_init(void *tsd);
void je_tsd_slow_update(void *tsd);
bool __wrap_je_tsd_tcache_enabled_data_init(void *tsd);
bool __wrap_je_tsd_tcache_enabled_data_init(void *tsd)
{
	bool *enabled = tsd; /* the first member of jemalloc's struct for a thread */

	*enabled = je_opt_tcache;
	je_tsd_slow_update(tsd);
	if (je_opt_tcache && je_tsd_tcache_data_init(tsd)) {
		*enabled = false;
		je_tsd_slow_update(tsd);
	}
	return false;
}
#endif

/* ------------------------------------------------------------------ the small tier, as the heap sees it */

enum owner { JEMALLOC, NEXT, NOBODY };

/* The owner of a pointer that is not in the heap's span. */
static enum owner small_owner(const void *p)
{
	if (hp_in_arena(p))
		return JEMALLOC;
	/* If both mallocs have memory outside, the address does not tell the owner. Assume the next malloc: jemalloc
	 * has memory outside only if the arena is full. */
	if (!hp_arena.jemalloc_below)
		return NEXT;
	return hp_arena.outside ? JEMALLOC : NOBODY;
}

static void *small_malloc(size_t size)
{
	return hp_arena.jemalloc_below ? hpje_malloc(size) : hp_next.small.malloc(size);
}

static void *small_calloc(size_t count, size_t size)
{
	return hp_arena.jemalloc_below ? hpje_calloc(count, size) : hp_next.small.calloc(count, size);
}

static void *small_aligned_alloc(size_t align, size_t size)
{
	if (!hp_arena.jemalloc_below)
		return hp_next.small.aligned_alloc(align, size);
	/* In this range jemalloc's size classes are multiples of a cache line anyway, and its malloc has a cache for
	 * them. */
	if (align <= 64 && size > 14336 && size < HUGEPIN_LARGE_MIN)
		return hpje_malloc(size);
	return hpje_aligned_alloc(align, size);
}

static void small_free(void *p)
{
	enum owner o = small_owner(p);

	if (!p)
		return;
	if (o == JEMALLOC)
		hpje_free(p);
	else if (o == NEXT)
		hp_next.small.free(p);
	else
		hugepin_misuse_("free", p, "not from this heap");
}

static size_t small_usable_size(const void *p)
{
	enum owner o = small_owner(p);

	if (o == JEMALLOC)
		return hpje_malloc_usable_size(p);
	if (o == NEXT)
		return hp_next.small.usable_size(p);
	hugepin_misuse_("usable_size", p, "not from this heap");
	return 0;
}

static void *small_realloc(void *p, size_t size)
{
	enum owner o = small_owner(p);

	if (!size) {
		small_free(p);
		return NULL;
	}
	if (o == JEMALLOC)
		return hpje_realloc(p, size);
	if (o == NEXT)
		return hp_next.small.realloc(p, size);
	hugepin_misuse_("realloc", p, "not from this heap");
	errno = EINVAL;
	return NULL;
}

void hp_jemalloc_replace(void)
{
	hp_arena.free_outside = hp_next.small.free;
	hp_arena.jemalloc_below = 0;
}

/* jemalloc registers its fork handlers here at its start, which is its first request. Our handlers run them in the only
 * order that cannot deadlock: small_prefork() runs before the heap's lock is taken, since other threads may be in the
 * heap while they hold a lock of jemalloc. */
static void (*je_prefork)(void), (*je_parent)(void), (*je_child)(void);

int hpje_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
	je_prefork = prepare;
	je_parent = parent;
	je_child = child;
	return 0;
}

bool hp_jemalloc_started(void)
{
	return je_prefork;
}

/* jemalloc registers its handlers in the middle of its start, so these do not show that the start is over. Who asks
 * meanwhile waits for the thread that starts jemalloc. */
static void jemalloc_start(void)
{
	static _Atomic bool over; /* relaxed: jemalloc's own lock orders what its start has written */

	if (atomic_load_explicit(&over, memory_order_relaxed))
		return;
	hpje_free(hpje_malloc(1));
	atomic_store_explicit(&over, true, memory_order_relaxed);
}

void hp_small_start(void)
{
	jemalloc_start();
	small_free(small_malloc(1));
}

static void small_prefork(void)
{
	/* Another thread may be starting jemalloc, by __libc_malloc() with HUGEPIN_SMALL=next. Wait for that thread:
	 * the child would find jemalloc half started. Without that option the C library allocates before it makes the
	 * second thread, and a request from here may interrupt another in a signal handler. */
	if (!hp_arena.jemalloc_below || !hp_jemalloc_started())
		jemalloc_start();
	if (hp_next.small.prefork)
		hp_next.small.prefork();
	if (je_prefork)
		je_prefork();
	/* Take this lock, too: hp_arena_limit() takes it without a lock of jemalloc. */
	lock_arena();
}

static void small_postfork_parent(void)
{
	unlock_arena();
	if (je_prefork)
		je_parent();
	if (hp_next.small.prefork)
		hp_next.small.postfork_parent();
}

static void small_postfork_child(void)
{
	unlock_arena();
	if (je_prefork)
		je_child();
	if (hp_next.small.prefork)
		hp_next.small.postfork_child();
}

/* Parts of the memory that is given back so serve requests of other sizes. 4096: MALLCTL_ARENAS_ALL. */
static void small_trim(void)
{
	mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
	mallctl("arena.4096.purge", NULL, NULL, NULL, 0);
	if (hp_next.trim)
		hp_next.trim(1);
}

static bool small_range(uintptr_t *ret_base, size_t *ret_size)
{
	/* acquire, each: size is that of base; pairs with reserve_arena() and move_arena() */
	*ret_size = atomic_load_explicit(&hp_arena.size, memory_order_acquire);
	*ret_base = atomic_load_explicit(&hp_arena.base, memory_order_acquire);
	return *ret_size && !hp_arena_in_heap();
}

EXPORT const struct hp_small hugepin_small_ = {
	.malloc = small_malloc,
	.calloc = small_calloc,
	.realloc = small_realloc,
	.aligned_alloc = small_aligned_alloc,
	.free = small_free,
	.usable_size = small_usable_size,
	.trim = small_trim,
	.prefork = small_prefork,
	.postfork_parent = small_postfork_parent,
	.postfork_child = small_postfork_child,
	.range = small_range,
};
