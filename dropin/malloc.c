/*
 * libhugepin-malloc.so: the C library's malloc family, each call sent to the heap or to the small tier. No policy here.
 *
 * The small tier is jemalloc, linked in under other names (hpje_*), so that it needs neither dlsym nor a bootstrap, is
 * reached by one jump, and asks us for its memory: all of it comes from a second reserved span, so that a pointer outside
 * both spans is known to be nobody's; or, with HUGEPIN_SMALL_PINNED=1, from extents of the heap in a part of its own of the
 * heap's span. HUGEPIN_SMALL=next sends small requests on to the next malloc of the process once our
 * constructor has run; what came before stays jemalloc's, and every pointer goes back by its address.
 *
 * Everything static here is valid when zero: malloc is called before any constructor and after all destructors.
 */
#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "alloc/fast.h"
#include "alloc/small.h"
#include "base/base.h"
#include "base/bits.h"
#include "base/key.h"
#include "base/seal.h"
#include "hugepin.h"

#define EXPORT __attribute__((visibility("default")))

void *hpje_malloc(size_t), *hpje_calloc(size_t, size_t), *hpje_realloc(void *, size_t);
void *hpje_aligned_alloc(size_t, size_t), *hpje_mallocx(size_t, int), *hpje_rallocx(void *, size_t, int);
void hpje_free(void *), hpje_dallocx(void *, int), hpje_sdallocx(void *, size_t, int);
size_t hpje_malloc_usable_size(const void *), hpje_sallocx(const void *, int), hpje_nallocx(size_t, int);
size_t hpje_xallocx(void *, size_t, size_t, int);
int mallctl(const char *, void *, size_t *, void *, size_t);

extern struct hugepin_stats_page hugepin_stats_page;

/* ------------------------------------------------------------------ jemalloc's memory */

/* Address space in units of a hugepage; what jemalloc unmaps in smaller parts stays reserved. */
static struct {
	/* What malloc and free read, off the start of a page, as chunk words are (pages.h). */
	_Alignas(4096) char unused[1024];
	uintptr_t base;
	size_t size;
	size_t jemalloc_below; /* requests below this go to jemalloc: HUGEPIN_LARGE_MIN, or 0 with HUGEPIN_SMALL=next */
	uint64_t *used; /* a bit for each unit */
	bool outside; /* the span was full or could not be had: jemalloc owns memory elsewhere too */
	bool tried;
	bool settled; /* whether it is the heap's part is known */
	bool pinned; /* it is: hugepin_small_map_() */
	pthread_mutex_t lock; /* taken under locks of jemalloc's, and none is taken under it */
} arena = { .base = (uintptr_t)1 << 63, .jemalloc_below = HUGEPIN_LARGE_MIN, .lock = PTHREAD_MUTEX_INITIALIZER };

static bool in_arena(const void *p)
{
	return (uintptr_t)p - __atomic_load_n(&arena.base, __ATOMIC_RELAXED) <
	       __atomic_load_n(&arena.size, __ATOMIC_RELAXED);
}

/* Called once, with the lock held: jemalloc's first mapping. */
static void reserve_arena(void)
{
	struct rlimit as;
	struct sysinfo info;
	size_t size = hugepin_small_span_();
	char *p = MAP_FAILED;

	if (!size) {
		size = (size_t)64 << 30;
		while (sysinfo(&info) == 0 && size < 4 * (size_t)info.totalram * info.mem_unit)
			size *= 2;
	}
	if (getrlimit(RLIMIT_AS, &as) == 0 && as.rlim_cur != RLIM_INFINITY)
		size = HP_MIN(size, as.rlim_cur / 8);
	for (size &= ~(HP_PAGE - 1); size >= 2 * HP_PAGE; size = size / 2 & ~(HP_PAGE - 1)) {
		p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p != MAP_FAILED)
			break;
	}
	if (p == MAP_FAILED)
		return;
	madvise(p, size, MADV_DONTDUMP);

	size_t units = (size >> HP_PAGE_SHIFT) - 1; /* one lost to alignment */

	arena.used = mmap(NULL, units / 8 + 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena.used == MAP_FAILED) {
		munmap(p, size);
		return;
	}
	__atomic_store_n(&arena.base, hp_round_up((uintptr_t)p, HP_PAGE), __ATOMIC_RELEASE);
	__atomic_store_n(&arena.size, units << HP_PAGE_SHIFT, __ATOMIC_RELEASE);
}

/* Have an arena. What came from one of our own before the configuration could be read is outside from then on. */
static void settle_arena(void)
{
	uintptr_t base;
	size_t size;
	int r;

	if (__atomic_load_n(&arena.settled, __ATOMIC_ACQUIRE))
		return;
	r = hugepin_small_part_(&base, &size); /* without the lock: hooks on mmap may allocate */
	pthread_mutex_lock(&arena.lock);
	if (r == 0 && !arena.pinned) {
		struct hugepin_stats *s = &hugepin_stats_page.stats;

		arena.outside = arena.tried;
		__atomic_fetch_add(&s->small_outside_bytes, s->small_bytes, __ATOMIC_RELAXED);
		__atomic_store_n(&s->small_bytes, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&arena.size, 0, __ATOMIC_RELEASE); /* in_arena() must not see the old base with the new size */
		__atomic_store_n(&arena.base, base, __ATOMIC_RELEASE);
		__atomic_store_n(&arena.size, size, __ATOMIC_RELEASE);
		__atomic_store_n(&arena.pinned, true, __ATOMIC_RELEASE);
	} else if (r != 0 && !arena.tried) {
		arena.tried = true;
		reserve_arena();
	}
	__atomic_store_n(&arena.settled, r != -EAGAIN, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&arena.lock);
}

static bool is_pinned(void)
{
	return __atomic_load_n(&arena.pinned, __ATOMIC_ACQUIRE);
}

/* The first free run of units, or of those at `hint` if they are free. SIZE_MAX: none. */
static size_t take_units(size_t units, const void *hint)
{
	size_t all = arena.size >> HP_PAGE_SHIFT, at = 0, taken;

	if (in_arena(hint) && !((uintptr_t)hint & (HP_PAGE - 1)))
		at = ((uintptr_t)hint - arena.base) >> HP_PAGE_SHIFT;
	while (units <= all && at <= all - units) {
		taken = hp_bits_find(arena.used, at, at + units, true);
		if (taken == at + units) {
			hp_bits_fill(arena.used, at, units, true);
			return at;
		}
		at = hp_bits_find(arena.used, taken, all, false);
	}
	return SIZE_MAX;
}

static void *map_outside(void *hint, size_t len, int prot, int flags, int fd, off_t offset)
{
	void *p = mmap(hint, len, prot, flags, fd, offset);

	if (p != MAP_FAILED) {
		arena.outside = true;
		__atomic_fetch_add(&hugepin_stats_page.stats.small_outside_bytes, len, __ATOMIC_RELAXED);
	}
	return p;
}

/* From units of our own arena. NULL: it is full. */
static void *map_units(void *hint, size_t len, int prot)
{
	size_t units = (len + HP_PAGE - 1) >> HP_PAGE_SHIFT, at;
	void *p;

	pthread_mutex_lock(&arena.lock);
	at = take_units(units, hint);
	pthread_mutex_unlock(&arena.lock);
	if (at == SIZE_MAX)
		return NULL;
	/* Access to what is reserved: a refused MAP_FIXED may leave a hole (map.c). */
	p = (void *)(arena.base + (at << HP_PAGE_SHIFT));
	if (mprotect(p, len, prot) != 0 && (!hugepin_purge_for_small_() || mprotect(p, len, prot) != 0)) {
		pthread_mutex_lock(&arena.lock);
		hp_bits_fill(arena.used, at, units, false);
		pthread_mutex_unlock(&arena.lock);
		return MAP_FAILED;
	}
	madvise(p, len, MADV_DODUMP);
	return p;
}

/* From the heap's part. NULL: there is none left. */
static void *map_pinned(void *hint, size_t len)
{
	void *p;

	if (hint && !in_arena(hint))
		return NULL;
	p = hugepin_small_map_(hint, len);
	if (!p && hint) /* it wants to go on just there, or not at all */
		p = MAP_FAILED;
	else if (!p && hugepin_purge_for_small_())
		p = hugepin_small_map_(NULL, len);
	return p;
}

void *hpje_mmap(void *hint, size_t len, int prot, int flags, int fd, off_t offset)
{
	void *p;

	settle_arena();
	if (flags & MAP_FIXED) { /* under vm.overcommit_memory=2 it commits and decommits parts of what it has */
		if (!is_pinned() || !in_arena(hint))
			return mmap(hint, len, prot, flags, fd, offset);
		return prot == PROT_NONE ? MAP_FAILED : hint; /* there all is committed, and stays */
	}
	p = is_pinned() ? map_pinned(hint, len) : map_units(hint, len, prot);
	if (!p)
		return map_outside(hint, len, prot, flags, fd, offset);
	if (p != MAP_FAILED)
		__atomic_fetch_add(&hugepin_stats_page.stats.small_bytes, len, __ATOMIC_RELAXED);
	return p;
}

int hpje_munmap(void *p, size_t len)
{
	uintptr_t from = hp_round_up((uintptr_t)p, HP_PAGE), to = ((uintptr_t)p + len) & ~(HP_PAGE - 1);

	if (!in_arena(p)) {
		if (munmap(p, len) != 0)
			return -1;
		__atomic_fetch_sub(&hugepin_stats_page.stats.small_outside_bytes, len, __ATOMIC_RELAXED);
		return 0;
	}
	if (is_pinned()) {
		hugepin_small_unmap_(p, len);
		__atomic_fetch_sub(&hugepin_stats_page.stats.small_bytes, len, __ATOMIC_RELAXED);
		return 0;
	}
	if (mmap(p, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		return -1;
	madvise(p, len, MADV_DONTDUMP);
	__atomic_fetch_sub(&hugepin_stats_page.stats.small_bytes, len, __ATOMIC_RELAXED);
	if (from < to) {
		pthread_mutex_lock(&arena.lock);
		hp_bits_fill(arena.used, (from - arena.base) >> HP_PAGE_SHIFT, (to - from) >> HP_PAGE_SHIFT, false);
		pthread_mutex_unlock(&arena.lock);
	}
	return 0;
}

/* jemalloc's second source, when the first fails: memory that would be nobody's by its address. It asks as it starts, and does not
 * look at errno, which main() is to find as if nothing had been asked. */
void *hpje_sbrk(intptr_t increment)
{
	(void)increment;
	return (void *)-1;
}

int hpje_madvise(void *p, size_t len, int advice)
{
	/* What may be registered is not purged. To say that it was would be a lie that jemalloc notices: it looks for zeros. */
	if ((advice == MADV_DONTNEED || advice == MADV_FREE) && is_pinned() && in_arena(p)) {
		errno = EINVAL;
		return -1;
	}
	return madvise(p, len, advice);
}

int hpje_pthread_key_create(pthread_key_t *key, void (*at_exit)(void *))
{
	return hp_key_create(key, at_exit);
}

/* jemalloc asks for MALLOC_CONF when it starts. In the heap's part it is to keep nothing that it does not use (retain), so that
 * its arenas share hugepages and what is wholly free can be given back. What the user says comes later, and holds. */
char *hpje_secure_getenv(const char *name)
{
	static const char ours[] = "retain:false,";
	static char conf[4096];
	const char *users = secure_getenv(name);
	size_t len = users ? strlen(users) : 0;

	settle_arena();
	if (!is_pinned() || sizeof ours + len > sizeof conf)
		return (char *)users;
	memcpy(conf, ours, sizeof ours - 1);
	if (users)
		memcpy(conf + sizeof ours - 1, users, len);
	conf[sizeof ours - 1 + len - !len] = 0; /* without the comma, if it ends there */
	return conf;
}

/* jemalloc 5.3.0 gives each thread a cache, and does not notice that there was no memory for it: the thread's first request reads
 * through NULL. This stands in for its function (Makefile), and leaves the thread without a cache then. */
extern bool je_opt_tcache;
bool je_tsd_tcache_data_init(void *tsd);
void je_tsd_slow_update(void *tsd);
bool __wrap_je_tsd_tcache_enabled_data_init(void *tsd);
bool __wrap_je_tsd_tcache_enabled_data_init(void *tsd)
{
	bool *enabled = tsd; /* the first member of what jemalloc keeps for a thread */

	*enabled = je_opt_tcache;
	je_tsd_slow_update(tsd);
	if (je_opt_tcache && je_tsd_tcache_data_init(tsd)) {
		*enabled = false;
		je_tsd_slow_update(tsd);
	}
	return false;
}

/* ------------------------------------------------------------------ the next malloc, with HUGEPIN_SMALL=next */

static struct hp_small next; /* all set or none */

static int (*next_posix_memalign)(void **, size_t, size_t);

static void *next_aligned_alloc(size_t align, size_t size)
{
	void *p;
	int r = next_posix_memalign(&p, HP_MAX(align, sizeof(void *)), size);

	if (r == 0)
		return p;
	errno = r;
	return NULL;
}

static bool find_next(void)
{
	*(void **)&next.malloc = dlsym(RTLD_NEXT, "malloc");
	*(void **)&next.calloc = dlsym(RTLD_NEXT, "calloc");
	*(void **)&next.realloc = dlsym(RTLD_NEXT, "realloc");
	*(void **)&next.free = dlsym(RTLD_NEXT, "free");
	*(void **)&next.usable_size = dlsym(RTLD_NEXT, "malloc_usable_size");
	*(void **)&next_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
	next.aligned_alloc = next_aligned_alloc;
	return next.malloc && next.calloc && next.realloc && next.free && next.usable_size && next_posix_memalign;
}

/* ------------------------------------------------------------------ the small tier, as the heap sees it */

enum owner { JEMALLOC, NEXT, NOBODY };

/* Of a pointer that is not in the heap's span. */
static enum owner owner_of(const void *p)
{
	if (in_arena(p))
		return JEMALLOC;
	/* With both mallocs mapping where they like we cannot tell; jemalloc's own memory is outside only when the arena is
	 * full. */
	if (!arena.jemalloc_below)
		return NEXT;
	return arena.outside ? JEMALLOC : NOBODY;
}

static void *small_malloc(size_t size)
{
	return arena.jemalloc_below ? hpje_malloc(size) : next.malloc(size);
}

static void *small_calloc(size_t count, size_t size)
{
	return arena.jemalloc_below ? hpje_calloc(count, size) : next.calloc(count, size);
}

static void *small_aligned_alloc(size_t align, size_t size)
{
	if (!arena.jemalloc_below)
		return next.aligned_alloc(align, size);
	/* jemalloc's classes from here on are multiples of a cache line anyway, and its malloc has a cache for them. */
	if (align <= 64 && size > 14336 && size < HUGEPIN_LARGE_MIN)
		return hpje_malloc(size);
	return hpje_aligned_alloc(align, size);
}

static void small_free(void *p)
{
	enum owner o = owner_of(p);

	if (!p)
		return;
	if (o == JEMALLOC)
		hpje_free(p);
	else if (o == NEXT)
		next.free(p);
	else
		hugepin_misuse_("free", p, "not from this heap");
}

static size_t small_usable_size(const void *p)
{
	enum owner o = owner_of(p);

	if (o == JEMALLOC)
		return hpje_malloc_usable_size(p);
	if (o == NEXT)
		return next.usable_size(p);
	hugepin_misuse_("usable_size", p, "not from this heap");
	return 0;
}

static void *small_realloc(void *p, size_t size)
{
	enum owner o = owner_of(p);

	if (!size) {
		small_free(p);
		return NULL;
	}
	if (o == JEMALLOC)
		return hpje_realloc(p, size);
	if (o == NEXT)
		return next.realloc(p, size);
	hugepin_misuse_("realloc", p, "not from this heap");
	errno = EINVAL;
	return NULL;
}

/* jemalloc hands us its handlers at its own start; ours run them in the one order that cannot deadlock: its prefork before
 * the heap's lock is taken, since other threads may be in the heap with a lock of jemalloc's. */
static void (*je_prefork)(void), (*je_parent)(void), (*je_child)(void);

int hpje_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
	je_prefork = prepare;
	je_parent = parent;
	je_child = child;
	return 0;
}

static void prefork(void)
{
	if (je_prefork)
		je_prefork();
	pthread_mutex_lock(&arena.lock); /* who limits the addresses has it without any of jemalloc's */
}

static void postfork_parent(void)
{
	pthread_mutex_unlock(&arena.lock);
	if (je_prefork)
		je_parent();
}

static void postfork_child(void)
{
	pthread_mutex_unlock(&arena.lock);
	if (je_prefork)
		je_child();
}

EXPORT const struct hp_small hugepin_small_ = {
	.malloc = small_malloc,
	.calloc = small_calloc,
	.realloc = small_realloc,
	.aligned_alloc = small_aligned_alloc,
	.free = small_free,
	.usable_size = small_usable_size,
	.prefork = prefork,
	.postfork_parent = postfork_parent,
	.postfork_child = postfork_child,
};

/* ------------------------------------------------------------------ entry points */

EXPORT void *malloc(size_t size)
{
	if (HP_LIKELY(size < arena.jemalloc_below))
		return hpje_malloc(size);
	if (HP_LIKELY(size >= HUGEPIN_LARGE_MIN))
		return hp_fast_malloc(&hugepin_cache_self_, size);
	return next.malloc(size);
}

/* noinline: gcc would move the heap's half out of line, to inline the other into the callers below. */
EXPORT __attribute__((noinline)) void free(void *p)
{
	if (HP_LIKELY(in_arena(p)))
		hpje_free(p);
	else if (HP_LIKELY(hp_span_offset(&hugepin_span_, p) < hp_span_opened(&hugepin_span_)))
		hp_fast_free(&hugepin_span_, &hugepin_cache_self_, p);
	else
		small_free(p);
}

EXPORT void free_sized(void *p, size_t size)
{
	(void)size;
	free(p);
}

EXPORT void free_aligned_sized(void *p, size_t align, size_t size)
{
	(void)align;
	(void)size;
	free(p);
}

EXPORT void *calloc(size_t count, size_t size)
{
	size_t bytes;

	if (HP_LIKELY(!__builtin_mul_overflow(count, size, &bytes) && bytes < arena.jemalloc_below))
		return hpje_calloc(count, size);
	return hugepin_calloc(count, size);
}

EXPORT void *realloc(void *p, size_t size)
{
	if (!p)
		return malloc(size);
	if (HP_LIKELY(in_arena(p) && size < arena.jemalloc_below && size))
		return hpje_realloc(p, size);
	return hugepin_realloc(p, size);
}

EXPORT void *reallocarray(void *p, size_t count, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(count, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	return realloc(p, bytes);
}

EXPORT size_t malloc_usable_size(void *p)
{
	return in_arena(p) ? hpje_malloc_usable_size(p) : hugepin_usable_size(p);
}

EXPORT void *aligned_alloc(size_t align, size_t size)
{
	return hugepin_aligned_alloc(align, size); /* EINVAL unless a power of two, as C17 with DR 460 and C23 have it */
}

/* memptr is left alone on failure; errno is set to ENOMEM beside the return value, as glibc does and programs rely on. */
EXPORT int posix_memalign(void **memptr, size_t align, size_t size)
{
	void *p;

	if (!hp_is_power_of_two(align) || align % sizeof(void *))
		return EINVAL;
	p = hugepin_aligned_alloc(align, size);
	if (!p)
		return ENOMEM;
	*memptr = p;
	return 0;
}

/* As glibc: an alignment that is not a power of two is rounded up to one. */
EXPORT void *memalign(size_t align, size_t size)
{
	size_t a = 16;

	if (align > SIZE_MAX / 2 + 1) {
		errno = EINVAL;
		return NULL;
	}
	while (a < align)
		a <<= 1;
	return hugepin_aligned_alloc(a, size);
}

EXPORT void *valloc(size_t size)
{
	return hugepin_aligned_alloc((size_t)sysconf(_SC_PAGESIZE), size);
}

EXPORT void *pvalloc(size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), rounded = hp_round_up(size, page);

	if (rounded < size) {
		errno = ENOMEM;
		return NULL;
	}
	return hugepin_aligned_alloc(page, HP_MAX(rounded, page));
}

/* The C library's own names for the same, and an old one: libraries that stand before malloc call by them what lies behind them, and
 * free() by the other. With HUGEPIN_SMALL=next that is where they are called from, so requests are jemalloc's here: of large ones
 * those that the heap could not serve. */
static bool is_jemallocs(size_t size)
{
	return size < HUGEPIN_LARGE_MIN || !arena.jemalloc_below;
}

EXPORT void *__libc_malloc(size_t size)
{
	return is_jemallocs(size) ? hpje_malloc(size) : malloc(size);
}

EXPORT void *__libc_calloc(size_t count, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(count, size, &bytes))
		bytes = SIZE_MAX;
	return is_jemallocs(bytes) ? hpje_calloc(count, size) : hugepin_calloc(count, size);
}

EXPORT void *__libc_realloc(void *p, size_t size)
{
	if (!p)
		return __libc_malloc(size);
	if (in_arena(p) && size && is_jemallocs(size))
		return hpje_realloc(p, size);
	return hugepin_realloc(p, size);
}

EXPORT void __libc_free(void *p)
{
	free(p);
}

EXPORT void cfree(void *p)
{
	free(p);
}

EXPORT void *__libc_memalign(size_t align, size_t size)
{
	size_t a = 16;

	while (a < align && a << 1)
		a <<= 1;
	return is_jemallocs(HP_MAX(a, size)) ? hpje_aligned_alloc(a, size) : memalign(align, size);
}

EXPORT void *__libc_valloc(size_t size)
{
	return __libc_memalign((size_t)sysconf(_SC_PAGESIZE), size);
}

EXPORT void *__libc_pvalloc(size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return is_jemallocs(size) ? __libc_memalign(page, HP_MAX(hp_round_up(size, page), page)) : pvalloc(size);
}

EXPORT int malloc_trim(size_t pad)
{
	int saved = errno;

	(void)pad;
	mallctl("arena.4096.purge", NULL, NULL, NULL, 0); /* 4096: MALLCTL_ARENAS_ALL */
	hugepin_purge();
	errno = saved;
	return 1;
}

static size_t jemalloc_says(const char *name)
{
	size_t n = 0, size = sizeof n;

	return mallctl(name, &n, &size, NULL, 0) == 0 ? n : 0;
}

EXPORT struct mallinfo2 mallinfo2(void)
{
	uint64_t epoch = 1;
	struct hugepin_stats s;
	struct mallinfo2 m;
	int saved = errno;

	mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
	hugepin_stats(&s, sizeof s);
	m = (struct mallinfo2){
		.arena = s.small_bytes,
		.hblks = s.extents,
		.hblkhd = s.hugetlb_bytes + s.thp_bytes + s.base_bytes - (is_pinned() ? s.small_bytes : 0),
		.uordblks = jemalloc_says("stats.allocated") + s.taken_bytes - s.listed_bytes,
	};
	m.fordblks = m.arena + m.hblkhd > m.uordblks ? m.arena + m.hblkhd - m.uordblks : 0;
	m.keepcost = s.listed_bytes;
	errno = saved;
	return m;
}

EXPORT struct mallinfo mallinfo(void)
{
	struct mallinfo2 m = mallinfo2();

	return (struct mallinfo){ .arena = (int)m.arena,       .hblks = (int)m.hblks,	    .hblkhd = (int)m.hblkhd,
				  .uordblks = (int)m.uordblks, .fordblks = (int)m.fordblks, .keepcost = (int)m.keepcost };
}

/* ------------------------------------------------------------------ jemalloc's own interface */

/* A program that calls it also calls free(), and the other way round: buffers of the heap are served too. */
EXPORT void *mallocx(size_t size, int flags)
{
	return hpje_mallocx(size, flags);
}

EXPORT size_t nallocx(size_t size, int flags)
{
	return hpje_nallocx(size, flags);
}

EXPORT size_t sallocx(const void *p, int flags)
{
	return in_arena(p) ? hpje_sallocx(p, flags) : hugepin_usable_size(p);
}

EXPORT void dallocx(void *p, int flags)
{
	if (in_arena(p))
		hpje_dallocx(p, flags);
	else
		free(p);
}

EXPORT void sdallocx(void *p, size_t size, int flags)
{
	if (in_arena(p))
		hpje_sdallocx(p, size, flags);
	else
		free(p);
}

EXPORT size_t xallocx(void *p, size_t size, size_t extra, int flags)
{
	return in_arena(p) ? hpje_xallocx(p, size, extra, flags) : hugepin_usable_size(p);
}

EXPORT void *rallocx(void *p, size_t size, int flags)
{
	void *q;
	size_t had;

	if (in_arena(p))
		return hpje_rallocx(p, size, flags);
	had = hugepin_usable_size(p);
	q = hpje_mallocx(size, flags);
	if (q) {
		memcpy(q, p, HP_MIN(had, size));
		free(p);
	}
	return q;
}

/* ------------------------------------------------------------------ address space limits */

/* jemalloc 5.3 reads through NULL when a thread's first request finds no memory for a new arena. Where a limit makes that
 * likely, have all arenas made beforehand (2 MiB of addresses each): choosing one for a thread makes it. */
static void make_arenas(void)
{
	unsigned mine, all, i;
	size_t size = sizeof all;

	if (mallctl("opt.narenas", &all, &size, NULL, 0) || mallctl("thread.arena", &mine, &size, NULL, 0))
		return;
	for (i = 0; i < all; i++)
		mallctl("thread.arena", NULL, NULL, &i, sizeof i);
	mallctl("thread.arena", NULL, NULL, &mine, sizeof mine);
}

static bool limits_memory(int resource, const struct rlimit *r)
{
	return r && r->rlim_cur != RLIM_INFINITY && (resource == RLIMIT_AS || resource == RLIMIT_DATA);
}

/* A program that limits its own address space means what it uses, and we have reserved many times that: let go of what is
 * not in use, down to a quarter of the limit in all. */
static void limit_address_space(int resource, const struct rlimit *r)
{
	size_t each, last;

	/* A child of vfork has our memory, but limits of its own. */
	if (!limits_memory(resource, r) || !hugepin_own_process_())
		return;
	make_arenas();
	if (resource != RLIMIT_AS)
		return;
	each = r->rlim_cur / 8 & ~(HP_PAGE - 1);
	hugepin_span_limit_(each);
	if (is_pinned()) {
		uintptr_t base;
		size_t size;

		if (hugepin_small_part_(&base, &size) == 0)
			__atomic_store_n(&arena.size, size, __ATOMIC_RELEASE);
		return;
	}
	pthread_mutex_lock(&arena.lock);
	for (last = arena.size >> HP_PAGE_SHIFT; last && !hp_bit(arena.used, last - 1); last--)
		;
	each = HP_MAX(each, last << HP_PAGE_SHIFT);
	if (each < arena.size && munmap((void *)(arena.base + each), arena.size - each) == 0)
		__atomic_store_n(&arena.size, each, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&arena.lock);
}

EXPORT int setrlimit(__rlimit_resource_t resource, const struct rlimit *r)
{
	limit_address_space((int)resource, r);
	return (int)syscall(SYS_prlimit64, 0, resource, r, NULL);
}

EXPORT int setrlimit64(__rlimit_resource_t resource, const struct rlimit64 *r)
{
	return setrlimit(resource, (const struct rlimit *)r); /* the same on every 64-bit Linux */
}

EXPORT int prlimit(pid_t pid, __rlimit_resource_t resource, const struct rlimit *r, struct rlimit *old)
{
	if (pid == 0 || pid == getpid())
		limit_address_space((int)resource, r);
	return (int)syscall(SYS_prlimit64, pid, resource, r, old);
}

EXPORT int prlimit64(pid_t pid, __rlimit_resource_t resource, const struct rlimit64 *r, struct rlimit64 *old)
{
	return prlimit(pid, resource, (const struct rlimit *)r, (struct rlimit *)old);
}

/* ------------------------------------------------------------------ rights and namespaces */

/* What the kernel does for all threads of a process, or refuses to processes of several, finds none of ours; and what it does for
 * the calling thread alone, as a raw setresuid, leaves none of ours with more. Calls made without the C library are not seen. */

static HP_SEALED(struct {
	bool found;
	int (*unshare)(int), (*setns)(int, int), (*prctl)(int, ...);
	long (*syscall)(long, ...);
	int (*setuid)(uid_t), (*seteuid)(uid_t), (*setgid)(gid_t), (*setegid)(gid_t);
	int (*setreuid)(uid_t, uid_t), (*setregid)(gid_t, gid_t);
	int (*setresuid)(uid_t, uid_t, uid_t), (*setresgid)(gid_t, gid_t, gid_t);
	int (*setgroups)(size_t, const gid_t *), (*initgroups)(const char *, gid_t);
}) below;

static void find_below(void)
{
	static const void *own[3], *following[3];

	if (below.is.found)
		return;
#define FIND(name) (*(void **)&below.is.name = dlsym(RTLD_NEXT, #name))
	FIND(unshare), FIND(setns), FIND(prctl), FIND(syscall);
	FIND(setuid), FIND(seteuid), FIND(setgid), FIND(setegid), FIND(setreuid), FIND(setregid), FIND(setresuid), FIND(setresgid);
	FIND(setgroups), FIND(initgroups);
#undef FIND
	below.is.found = true;
	hp_seal(&below, sizeof below);
	own[0] = (const void *)(uintptr_t)munmap;
	own[1] = (const void *)(uintptr_t)madvise;
	own[2] = (const void *)(uintptr_t)mmap;
	following[0] = dlsym(RTLD_NEXT, "munmap");
	following[1] = dlsym(RTLD_NEXT, "madvise");
	following[2] = dlsym(RTLD_NEXT, "mmap");
	hugepin_calls_below_(own, following);
}

#define INTERPOSE(name, parameters, ...)                                                                               \
	EXPORT int name parameters                                                                                     \
	{                                                                                                              \
		int r;                                                                                                 \
                                                                                                                       \
		if (!below.is.found) /* in the constructor of another library */                                       \
			find_below();                                                                                  \
		hugepin_threads_end_();                                                                                \
		r = below.is.name(__VA_ARGS__);                                                                        \
		hugepin_threads_allow_();                                                                              \
		return r;                                                                                              \
	}

INTERPOSE(unshare, (int flags), flags)
INTERPOSE(setns, (int fd, int type), fd, type)
INTERPOSE(setuid, (uid_t id), id)
INTERPOSE(seteuid, (uid_t id), id)
INTERPOSE(setgid, (gid_t id), id)
INTERPOSE(setegid, (gid_t id), id)
INTERPOSE(setreuid, (uid_t real, uid_t effective), real, effective)
INTERPOSE(setregid, (gid_t real, gid_t effective), real, effective)
INTERPOSE(setresuid, (uid_t real, uid_t effective, uid_t saved), real, effective, saved)
INTERPOSE(setresgid, (gid_t real, gid_t effective, gid_t saved), real, effective, saved)
INTERPOSE(setgroups, (size_t count, const gid_t *groups), count, groups)
INTERPOSE(initgroups, (const char *user, gid_t group), user, group)

EXPORT int prctl(int option, ...)
{
	unsigned long a[4];
	va_list args;
	bool was;
	int r;

	va_start(args, option);
	for (int i = 0; i < 4; i++)
		a[i] = va_arg(args, unsigned long);
	va_end(args);
	if (!below.is.found)
		find_below();
	if (option != PR_SET_SECCOMP)
		return below.is.prctl(option, a[0], a[1], a[2], a[3]);
	was = hugepin_confining_(false);
	r = below.is.prctl(option, a[0], a[1], a[2], a[3]);
	hugepin_confined_(false, was || r == 0);
	return r;
}

/* Before our constructor the kernel itself: malloc calls this, and looking for the next would allocate. */
static long go_on(long n, const long *a)
{
	long r;

	if (below.is.found)
		return below.is.syscall(n, a[0], a[1], a[2], a[3], a[4], a[5]);
	r = hp_syscall(n, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (r >= 0 || r < -4095)
		return r;
	errno = (int)-r;
	return -1;
}

EXPORT long syscall(long n, ...)
{
	long a[6], r;
	va_list args;
	bool all, was;

	va_start(args, n);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	switch (n) {
	case SYS_unshare:
	case SYS_setns:
	case SYS_setuid:
	case SYS_setgid:
	case SYS_setreuid:
	case SYS_setregid:
	case SYS_setresuid:
	case SYS_setresgid:
	case SYS_setgroups:
		hugepin_threads_end_();
		r = go_on(n, a);
		hugepin_threads_allow_();
		return r;
	case SYS_prctl:
		if (a[0] != PR_SET_SECCOMP)
			return go_on(n, a);
		break;
	case SYS_seccomp:
		if (a[0] != SECCOMP_SET_MODE_STRICT && a[0] != SECCOMP_SET_MODE_FILTER)
			return go_on(n, a);
		break;
	default:
		return go_on(n, a);
	}
	/* A thread with a filter of its own, as ours have, keeps the program from giving all threads one. */
	all = n == SYS_seccomp && a[0] == SECCOMP_SET_MODE_FILTER && (unsigned)a[1] & SECCOMP_FILTER_FLAG_TSYNC;
	was = hugepin_confining_(all);
	r = go_on(n, a);
	hugepin_confined_(all, was || r == 0); /* TSYNC: a thread that is in the way */
	return r;
}

/* ------------------------------------------------------------------ fork */

/* The handlers cannot fail a fork; this can. The callers inside the C library (forkpty, daemon) get the kernel's
 * copy-on-write instead. */
EXPORT pid_t fork(void)
{
	static pid_t (*next_fork)(void);

	if (!next_fork)
		*(void **)&next_fork = dlsym(RTLD_NEXT, "fork");
	if (hugepin_fork_refused_()) {
		errno = ENOMEM;
		return -1;
	}
	return next_fork();
}

/* glibc reads its table of fork handlers in the child before the first of them, ours, has put the pool's memory in place: a
 * large table must not lie there. */
EXPORT int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso)
{
	static int (*next_register)(void (*)(void), void (*)(void), void (*)(void), void *);
	int r;

	hugepin_atfork_(); /* ours first: its child handler must run before this one */
	if (!next_register)
		*(void **)&next_register = dlsym(RTLD_NEXT, "__register_atfork");
	hugepin_small_only_(true);
	r = next_register(prepare, parent, child, dso);
	hugepin_small_only_(false);
	return r;
}

static __attribute__((constructor)) void construct(void)
{
	struct rlimit r;

	find_below();
	if ((getrlimit(RLIMIT_AS, &r) == 0 && limits_memory(RLIMIT_AS, &r)) ||
	    (getrlimit(RLIMIT_DATA, &r) == 0 && limits_memory(RLIMIT_DATA, &r)))
		make_arenas();
	if (hugepin_small_is_next_() && find_next())
		arena.jemalloc_below = 0;
}
