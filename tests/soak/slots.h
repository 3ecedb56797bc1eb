/*
 * Memory of the soak's slots: buffers of the heap and foreign memory. A pattern fills each slot, and is compared before
 * the memory goes, in children, and behind the device. The holder of a slot's lock may do anything with the slot.
 */
#ifndef TESTS_SOAK_SLOTS_H
#define TESTS_SOAK_SLOTS_H

#if __has_include(<sanitizer/asan_interface.h>) /* of the compiler's runtime, which a build without sanitizers need not have */
#include <sanitizer/asan_interface.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(p, size) ((void)(p), (void)(size))
#endif

#include "state.h"

/* Returns -1 if a child does not see the hidden part, otherwise the place of that part. */
static ptrdiff_t hidden_check(const struct slot *s)
{
	int pipe[2];
	bool readable;

	if (s->wiped)
		return zero_check(s->p + s->hidden_at, s->hidden_len) < 0 ? -1 : (ptrdiff_t)s->hidden_at;
	if (pipe2(pipe, O_CLOEXEC))
		return -1;
	readable = write(pipe[1], s->p + s->hidden_at, 1) == 1;
	close(pipe[0]);
	close(pipe[1]);
	return readable ? (ptrdiff_t)s->hidden_at : -1;
}

static bool slot_check(struct slot *s, const char *when)
{
	const size_t end = s->hidden_at + s->hidden_len;
	ptrdiff_t at;

	if (in_child && s->hidden_len) {
		at = pattern_check(s->p, s->hidden_at, s->seed);
		if (at < 0 && end < s->size)
			at = pattern_check(s->p + end, s->size - end, s->seed + end / 8);
		if (at < 0)
			at = hidden_check(s);
	} else {
		at = pattern_check(s->p, s->size, s->seed);
	}
	return at < 0 || T_FAIL("%s memory at %p, %zu bytes: byte %td is wrong %s", s->foreign ? "foreign" : "heap",
				s->p, s->size,
				at, when);
}

static void slot_write(struct slot *s)
{
	s->seed = atomic_fetch_add(&seeds, 1) << 24;
	pattern_write(s->p, s->size, s->seed);
}

static void slot_unpin(struct slot *s)
{
	for (int i = 0; i < KEPT; i++)
		if (s->kept[i].pin.ref)
			EXPECT_EQ(hugepin_unpin(places[s->kept[i].place].domain, &s->kept[i].pin), 0);
}

static void slot_take(struct slot *s, char *p, size_t size, bool foreign)
{
	if (!p) {
		count_nomem++;
		return;
	}
	s->size = size;
	s->p = p;
	s->hidden_len = 0;
	s->foreign = foreign;
	slot_write(s);
}

static void slot_drop(struct slot *s)
{
	char *p = s->p;

	if (!p)
		return;
	slot_unpin(s);
	slot_check(s, "when it is given back");
	s->p = NULL;
	if (s->foreign) {
		EXPECT_EQ(munmap(p, s->size), 0);
		if (s->held.life) {
			const int e = hugepin_key_pin(&s->held);
			EXPECT(e == -ENOKEY || e == -ESTALE); /* ESTALE: in a child */
		}
	} else if (s->by_malloc) {
		free(p);
	} else {
		hugepin_free(p);
	}
	s->held = (struct hugepin_key){ 0 }; /* heap memory may stay registered, for its next owner */
}

static char *foreign_map(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	/* In a child, the C library unmaps the stacks of the parent's other threads. The sanitizer still guards them. */
	ASAN_UNPOISON_MEMORY_REGION(p, size);
	return p;
}

static void slot_fill(struct slot *s, uint64_t *rand)
{
	const uint64_t r = rand_next(rand);
	const size_t size = rand_size(rand, 1, r % 64 ? 4 * MIB : 48 * MIB);
	const size_t align = (size_t)64 << (r >> 8) % 17;
	char *p;

	s->by_malloc = preloaded && r >> 32 & 1;
	switch (r % 16) {
	case 0:
	case 1:
		p = s->by_malloc ? calloc(1, size) : hugepin_calloc(1, size);
		if (p && zero_check(p, size) >= 0)
			T_FAIL("calloc of %zu bytes is not zero at %td", size, zero_check(p, size));
		break;
	case 2:
		p = s->by_malloc ? aligned_alloc(align, size) : hugepin_aligned_alloc(align, size);
		EXPECT((uintptr_t)p % align == 0);
		break;
	case 3:
	case 4:
	case 5:
		slot_take(s, foreign_map(size), size, true);
		return;
	default:
		p = s->by_malloc ? malloc(size) : hugepin_malloc(size);
	}
	slot_take(s, p, size, false);
}

static void slot_show(struct slot *s)
{
	EXPECT_EQ(madvise(s->p + s->hidden_at, s->hidden_len, s->wiped ? MADV_KEEPONFORK : MADV_DOFORK), 0);
	s->hidden_len = 0;
}

/* Hide a part of a slot from children, or show it again. A buffer of the heap may be freed while a part is hidden. */
static void slot_hide(struct slot *s, uint64_t *rand)
{
	const size_t first = (4096 - ((uintptr_t)s->p & 4095)) & 4095;
	const uint64_t r = rand_next(rand);
	struct hugepin_extent e;
	size_t at, len;

	if (!preloaded || s->foreign || s->size < 128 * KIB || hugepin_extent(s->p, &e, sizeof e) < 0)
		return;
	if (s->hidden_len) {
		slot_show(s);
		return;
	}
	at = first + ((r >> 8) % ((s->size - first) / 4096) << 12);
	len = 1 + (r >> 32) % (s->size - at);
	if (r % 4 == 0) { /* whole hugepages: pages of the pool can be hidden too */
		at = PAGE - ((uintptr_t)s->p & (PAGE - 1));
		len = at < s->size ? (s->size - at) / PAGE * PAGE : 0;
	}
	if (at + len < s->size)
		len = len / 4096 * 4096; /* up to the end of a page */
	s->wiped = r >> 4 & 1;
	if (len && madvise(s->p + at, len, s->wiped ? MADV_WIPEONFORK : MADV_DONTFORK) == 0) {
		s->hidden_at = at;
		s->hidden_len = len;
		count_hidden++;
	}
}

static char *foreign_resize(char *before, size_t old, size_t size)
{
#ifdef __SANITIZE_THREAD__ /* TSan does not know mremap, and takes earlier memory there for the same memory */
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	memcpy(p, before, old < size ? old : size);
	munmap(before, old);
	return p;
#else
	char *p = mremap(before, old, size, MREMAP_MAYMOVE);

	return p == MAP_FAILED ? NULL : p;
#endif
}

static void slot_resize(struct slot *s, uint64_t *rand)
{
	const size_t old = s->size, size = rand_next(rand) % 2 ? old + old / 2 + 1 : rand_size(rand, 1, 4 * MIB);
	char *before = s->p, *p;
	struct hugepin_extent e;

	slot_unpin(s);
	s->held = (struct hugepin_key){ 0 };
	/* Whole pages of the pool are hidden. The rest of the last page may belong to another buffer. */
	if (s->hidden_len && hugepin_extent(before, &e, sizeof e) > 0 && e.kind == HUGEPIN_KIND_HUGETLB)
		slot_show(s);
	s->p = NULL;
	if (s->foreign) {
		p = foreign_resize(before, old, size);
	} else {
		p = s->by_malloc ? realloc(before, size) : hugepin_realloc(before, size);
	}
	s->size = p ? size : old;
	s->p = p ? p : before;
	const ptrdiff_t at = pattern_check(s->p, (size < old ? size : old) / 8 * 8, s->seed);
	if (at >= 0)
		T_FAIL("%zu bytes resized to %zu: byte %td is wrong", old, size, at);
	if (s->hidden_len) { /* advice stays with a page, and ends with the page */
		const size_t end = (s->hidden_at + s->hidden_len + 4095) / 4096 * 4096;

		s->hidden_len = s->hidden_at < s->size ? (end < s->size ? end : s->size) - s->hidden_at : 0;
	}
	slot_write(s);
}

/* The pages go and the addresses stay. From now on a device has to reach the new pages. */
static void foreign_discard(struct slot *s, uint64_t *rand)
{
	char *p = s->p;

	slot_unpin(s);
	slot_check(s, "when it is discarded");
	if (rand_next(rand) % 2) { /* a part, up to the middle of a page: the kernel rounds the length up */
		const size_t len = 1 + rand_next(rand) % s->size;

		if (madvise(p, len, MADV_DONTNEED)) /* the kernel refuses locked memory */
			EXPECT(madvise(p, len, MADV_DONTNEED_LOCKED) == 0);
	} else {
		if (mmap(p, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != p)
			return; /* no addresses are left */
	}
	EXPECT_EQ(p[0], 0);
	slot_write(s);
}

/* Memory that leaves the heap belongs to no slot. If two reads of a slot's address agree, the size between them belongs
 * to it. */
static void leaving(void *unused, const struct hugepin_extent *x)
{
	const uintptr_t from = (uintptr_t)x->addr, to = from + x->len;

	(void)unused;
	count_left++;
	for (struct slot *s = slots; s < slots + SLOTS; s++) {
		char *p = s->p;
		const size_t size = s->size;

		if (p && p == s->p && (uintptr_t)p < to && (uintptr_t)p + size > from)
			T_FAIL("%p, %zu bytes, leaves the heap, and a buffer at %p is there", x->addr, x->len, p);
	}
}

/* Buffers that belong to no slot, and live for a moment. */
static void allocate_some(uint64_t rand)
{
	rand |= 1; /* no state of 0 */
	for (int i = 0; i < 4; i++) {
		const size_t size = rand_size(&rand, 1, 4 * MIB);
		char *p = preloaded && i % 2 ? hide(malloc(size)) : hugepin_malloc(size);

		if (!p)
			continue;
		pattern_write(p, size, rand);
		EXPECT_EQ(pattern_check(p, size, rand), -1);
		if (preloaded && i % 2)
			free(p);
		else
			hugepin_free(p);
	}
}

#endif
