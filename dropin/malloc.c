/*
 * libhugepin-malloc.so: the C library's malloc family. Each call is passed on to the heap or to the small tier. There
 * is no policy here.
 *
 * Everything static here is valid when zero: malloc is called before any constructor and after all destructors.
 */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "alloc/fast.h"
#include "alloc/small.h"
#include "base/base.h"
#include "dropin/dropin.h"
#include "dropin/jemalloc.h"
#include "hugepin.h"
#include "dropin/image.h"

/* ------------------------------------------------------------------ entry points */

/* malloc() and free() are aligned so that their time does not depend on the code before them, by a tenth. */
EXPORT __attribute__((aligned(64))) void *malloc(size_t size)
{
	if (HP_LIKELY(size < hp_arena.jemalloc_below))
		return hpje_malloc(size);
	if (HP_LIKELY(size >= HUGEPIN_LARGE_MIN))
		return hp_fast_malloc(&hugepin_cache_self_, size);
	return hp_next.small.malloc(size);
}

/* noinline: otherwise gcc would inline the first branch into the callers below, and move the heap's branch out of
 * line. */
EXPORT __attribute__((noinline, aligned(64))) void free(void *p)
{
	size_t off;

	if (HP_LIKELY(hp_in_arena(p))) {
		hpje_free(p);
		return;
	}
	off = hp_span_offset(&hugepin_span_, p);
	if (HP_LIKELY(off < hp_span_opened(&hugepin_span_)))
		hp_fast_free(&hugepin_span_, &hugepin_cache_self_, p, off);
	else
		hp_arena.free_outside(p);
}

EXPORT void *calloc(size_t count, size_t size)
{
	size_t bytes;

	if (HP_LIKELY(!__builtin_mul_overflow(count, size, &bytes))) {
		if (HP_LIKELY(bytes < hp_arena.jemalloc_below))
			return hpje_calloc(count, size);
		if (bytes < HUGEPIN_LARGE_MIN)
			return hp_next.small.calloc(count, size);
	}
	return hugepin_calloc(count, size);
}

/* Whether p belongs to the allocator in jemalloc's place. */
static bool is_nexts(const void *p)
{
	return !hp_arena.jemalloc_below && !hp_in_arena(p) && !hp_span_has(&hugepin_span_, p);
}

EXPORT void *realloc(void *p, size_t size)
{
	if (!p)
		return malloc(size);
	if (HP_LIKELY(hp_in_arena(p) && size < hp_arena.jemalloc_below && size))
		return hpje_realloc(p, size);
	if (size < HUGEPIN_LARGE_MIN && size && is_nexts(p))
		return hp_next.small.realloc(p, size);
	return hugepin_realloc(p, size);
}

EXPORT size_t malloc_usable_size(void *p)
{
	if (p && is_nexts(p))
		return hp_next.small.usable_size(p);
	return hp_in_arena(p) ? hpje_malloc_usable_size(p) : hugepin_usable_size(p);
}

EXPORT void *aligned_alloc(size_t align, size_t size)
{
	/* EINVAL if align is not a power of two, as in C17 with DR 460 and in C23. */
	return hugepin_aligned_alloc(align, size);
}

/* On failure *memptr is not changed. errno is also set to ENOMEM, as in glibc, since programs rely on that. */
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

/* As in glibc, an alignment that is not a power of two is rounded up to one. */
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
	return hugepin_aligned_alloc(getauxval(AT_PAGESZ), size);
}

EXPORT void *pvalloc(size_t size)
{
	size_t page = getauxval(AT_PAGESZ), rounded = hp_round_up(size, page);

	if (rounded < size) {
		errno = ENOMEM;
		return NULL;
	}
	return hugepin_aligned_alloc(page, HP_MAX(rounded, page));
}

/* The C library's internal names of these functions, and the old name cfree(). Libraries that interpose malloc call the
 * next malloc by these names, and also call free(). With HUGEPIN_SMALL=next such libraries get our small requests, and
 * call these functions from there. So these functions send small requests to jemalloc, and with HUGEPIN_SMALL=next
 * large ones, too: those that the heap could not serve. */
static bool is_jemallocs(size_t size)
{
	return size < HUGEPIN_LARGE_MIN || !hp_arena.jemalloc_below;
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
	if (hp_in_arena(p) && size && is_jemallocs(size))
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
	return __libc_memalign(getauxval(AT_PAGESZ), size);
}

EXPORT void *__libc_pvalloc(size_t size)
{
	size_t page = getauxval(AT_PAGESZ), rounded = hp_round_up(size, page);

	return rounded >= size && is_jemallocs(size) ? __libc_memalign(page, HP_MAX(rounded, page)) : pvalloc(size);
}

EXPORT int malloc_trim(size_t pad)
{
	int saved_errno = errno;

	(void)pad;
	hugepin_small_.trim();
	hugepin_purge();
	errno = saved_errno;
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
	int saved_errno = errno;

	mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
	hugepin_stats(&s, sizeof s);
	m = (struct mallinfo2){
		.arena = s.small_bytes,
		.hblks = s.extents,
		.hblkhd = s.hugetlb_bytes + s.thp_bytes + s.base_bytes - (hp_arena_in_heap() ? s.small_bytes : 0),
		.uordblks = jemalloc_says("stats.allocated") + s.taken_bytes - s.listed_bytes,
	};
	m.fordblks = m.arena + m.hblkhd > m.uordblks ? m.arena + m.hblkhd - m.uordblks : 0;
	m.keepcost = s.listed_bytes;
	errno = saved_errno;
	return m;
}

EXPORT struct mallinfo mallinfo(void)
{
	struct mallinfo2 m = mallinfo2();

	return (struct mallinfo){
		.arena = (int)m.arena,
		.hblks = (int)m.hblks,
		.hblkhd = (int)m.hblkhd,
		.uordblks = (int)m.uordblks,
		.fordblks = (int)m.fordblks,
		.keepcost = (int)m.keepcost,
	};
}

/* ------------------------------------------------------------------ jemalloc's own interface */

/* A program that calls jemalloc's own functions also calls malloc() and free(). So these functions accept buffers of
 * the heap, too. */
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
	return hp_in_arena(p) ? hpje_sallocx(p, flags) : hugepin_usable_size(p);
}

EXPORT void dallocx(void *p, int flags)
{
	if (hp_in_arena(p))
		hpje_dallocx(p, flags);
	else
		free(p);
}

EXPORT void sdallocx(void *p, size_t size, int flags)
{
	if (hp_in_arena(p))
		hpje_sdallocx(p, size, flags);
	else
		free(p);
}

EXPORT size_t xallocx(void *p, size_t size, size_t extra, int flags)
{
	return hp_in_arena(p) ? hpje_xallocx(p, size, extra, flags) : hugepin_usable_size(p);
}

EXPORT void *rallocx(void *p, size_t size, int flags)
{
	void *q;
	size_t had;

	if (hp_in_arena(p))
		return hpje_rallocx(p, size, flags);
	had = hugepin_usable_size(p);
	q = hpje_mallocx(size, flags);
	if (q) {
		memcpy(q, p, HP_MIN(had, size));
		free(p);
	}
	return q;
}

static __attribute__((constructor)) void start_dropin(void)
{
	hp_rights_find();
	if (hp_next_find())
		hp_jemalloc_replace();
	hp_limits_look();
	hugepin_image_();
}

/* Before the destructor of libhugepin.so, which writes the statistics. */
static __attribute__((destructor)) void end_dropin(void)
{
	hugepin_image_end_();
}
