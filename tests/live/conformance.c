/* link: none */
/*
 * The promises of the C standard, POSIX and glibc about malloc's family, tested around the sizes at which a heap of
 * hugepages changes its method: 32 KiB, 2 MiB, 64 MiB. glibc 2.36 passes these tests too, except the last two and
 * aligned_alloc, which rejects odd alignments only since glibc 2.38.
 */
#include "live.h"

#include <malloc.h>
#include <sys/syscall.h>

/* C23; not in glibc 2.36, so weak: under the drop-in they exist. */
__attribute__((weak)) void free_sized(void *, size_t);
__attribute__((weak)) void free_aligned_sized(void *, size_t, size_t);

static const size_t sizes[] = {
	1, 7, 8, 15, 16, 17, 24, 100, 1000, 4095, 4096, 4097, 14336, 16384, 20481,
	32 * KIB - 4096, 32 * KIB - 1, 32 * KIB, 32 * KIB + 1, 36 * KIB, 36 * KIB + 1, 65535, 65536, 100000, 131072,
	262145, MIB - 1, MIB, 2 * MIB - 4096, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 4 * MIB, 5 * MIB + 5,
	16 * MIB, 16 * MIB + 1, 33 * MIB,
};
#define SIZES (sizeof sizes / sizeof *sizes)

/* Sizes around these are tested, too, but not combined with each other, since they are slow to fill. */
static const size_t large_sizes[] = {
	32 * MIB, 64 * MIB - 4096, 64 * MIB - 1, 64 * MIB, 64 * MIB + 1, 66 * MIB, 130 * MIB + 12345,
};
#define LARGE_SIZES (sizeof large_sizes / sizeof *large_sizes)

static volatile size_t too_large[] = {
	(size_t)PTRDIFF_MAX + 1, (size_t)PTRDIFF_MAX + 4096, SIZE_MAX / 2 + 2 * MIB, SIZE_MAX / 3 * 2, SIZE_MAX - 1 * GIB,
	SIZE_MAX - 64 * MIB, SIZE_MAX - 2 * MIB, SIZE_MAX - 2 * MIB + 1, SIZE_MAX - 32 * KIB, SIZE_MAX - 4096,
	SIZE_MAX - 4095, SIZE_MAX - 4094, SIZE_MAX - 63, SIZE_MAX - 16, SIZE_MAX - 15, SIZE_MAX - 1, SIZE_MAX,
	/* a program may ask for these sizes, but no machine has so much memory */
	(size_t)PTRDIFF_MAX, (size_t)PTRDIFF_MAX - 1, (size_t)PTRDIFF_MAX - 4096, (size_t)PTRDIFF_MAX - 2 * MIB,
	(size_t)PTRDIFF_MAX - 64 * MIB, (size_t)1 << 62, (size_t)1 << 57,
};
#define TOO_LARGE (sizeof too_large / sizeof *too_large)

/* The call must return NULL with ENOMEM. Print a call that does not. */
#define EXPECT_NOMEM(call)                                                                                             \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		void *t_p = hide(call);                                                                                \
		int t_errno = errno;                                                                                   \
		if (t_p || t_errno != ENOMEM)                                                                          \
			T_FAIL("%s with n = %#zx gives %p, errno %d", #call, n, t_p, t_errno);                         \
	} while (0)

TEST(impossible_sizes_are_refused_by_every_entry_point)
{
	for (size_t i = 0; i < TOO_LARGE; i++) {
		size_t n = too_large[i];
		EXPECT_NOMEM(malloc(n));
		EXPECT_NOMEM(calloc(n, 1));
		EXPECT_NOMEM(calloc(1, n));
		EXPECT_NOMEM(realloc(NULL, n));
		EXPECT_NOMEM(reallocarray(NULL, n, 1));
		EXPECT_NOMEM(reallocarray(NULL, 1, n));
		EXPECT_NOMEM(aligned_alloc(16, n));
		EXPECT_NOMEM(aligned_alloc(4096, n));
		EXPECT_NOMEM(aligned_alloc(2 * MIB, n));
		EXPECT_NOMEM(memalign(8, n));
		EXPECT_NOMEM(memalign(64 * KIB, n));
		EXPECT_NOMEM(valloc(n));
		EXPECT_NOMEM(pvalloc(n));
		for (size_t align = 8; align <= 64 * MIB; align *= 8) {
			void *p = &p;
			if (!EXPECT_EQ(posix_memalign(&p, align, n), ENOMEM))
				T_FAIL("posix_memalign(%#zx, %#zx)", align, n);
			EXPECT(p == &p);
		}
	}
}

/* Also sizes for which the heap has no addresses. */
TEST(what_the_kernel_refuses_is_refused_by_every_entry_point)
{
	for (int shift = 33; shift < 57; shift++) {
		size_t n = (size_t)1 << shift;
		void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *q = &p;
		char *small = hide(malloc(100)), *large = hide(malloc(100 * KIB));

		if (p != MAP_FAILED) { /* vm.overcommit_memory, or much memory */
			munmap(p, n);
		} else if (EXPECT(small) && EXPECT(large)) {
			EXPECT_NOMEM(malloc(n));
			EXPECT_NOMEM(calloc(1, n));
			EXPECT_NOMEM(calloc(n / 8, 8));
			EXPECT_NOMEM(realloc(NULL, n));
			EXPECT_NOMEM(realloc(hide(small), n));
			EXPECT_NOMEM(realloc(hide(large), n));
			EXPECT_NOMEM(reallocarray(hide(large), n / 8, 8));
			EXPECT_NOMEM(aligned_alloc(64, n));
			EXPECT_NOMEM(aligned_alloc(2 * MIB, n));
			EXPECT_NOMEM(memalign(64 * KIB, n));
			EXPECT_NOMEM(valloc(n));
			EXPECT_NOMEM(pvalloc(n));
			EXPECT_EQ(posix_memalign(&q, 64, n), ENOMEM);
			EXPECT_EQ(posix_memalign(&q, 2 * MIB, n), ENOMEM);
			EXPECT(q == &p);
		}
		free(hide(small));
		free(hide(large));
	}
}

TEST(a_refused_realloc_leaves_the_buffer_alone)
{
	static const size_t have[] = { 1, 1000, 20000, 32 * KIB, 100000, 2 * MIB, 5 * MIB, 65 * MIB };
	for (size_t j = 0; j < sizeof have / sizeof *have; j++) {
		char *p = hide(malloc(have[j]));
		if (!EXPECT(p))
			continue;
		pattern_write(p, have[j], j);
		for (size_t i = 0; i < TOO_LARGE; i++) {
			size_t n = too_large[i];
			EXPECT_NOMEM(realloc(hide(p), n));
			EXPECT_NOMEM(reallocarray(hide(p), n, 1));
			EXPECT_NOMEM(reallocarray(hide(p), 2, n / 2 + 1));
			EXPECT_NOMEM(reallocarray(hide(p), n, n));
		}
		EXPECT_EQ(pattern_check(p, have[j], j), -1);
		free(p);
	}
}

TEST(products_that_overflow_are_refused)
{
	static volatile const size_t factors[][2] = {
		{ SIZE_MAX, 2 }, { SIZE_MAX / 2 + 1, 2 }, { SIZE_MAX / 4 + 1, 4 }, { SIZE_MAX / 16 + 2, 16 },
		{ (size_t)1 << 32, (size_t)1 << 32 }, { ((size_t)1 << 32) + 1, ((size_t)1 << 32) + 1 },
		{ SIZE_MAX, SIZE_MAX }, { SIZE_MAX / 4096 + 1, 4096 }, { SIZE_MAX / (32 * KIB) + 2, 32 * KIB },
		{ SIZE_MAX / (2 * MIB) + 2, 2 * MIB }, { SIZE_MAX / 3 + 1, 3 }, { SIZE_MAX - 1, SIZE_MAX - 1 },
		{ (size_t)PTRDIFF_MAX, 2 }, { (size_t)PTRDIFF_MAX / 2 + 1, 2 },
	};
	for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
		size_t n = factors[i][0], m = factors[i][1];
		EXPECT_NOMEM(calloc(n, m));
		EXPECT_NOMEM(calloc(m, n));
		EXPECT_NOMEM(reallocarray(NULL, n, m));
		EXPECT_NOMEM(reallocarray(NULL, m, n));
	}
}

TEST(zero_sizes_are_as_in_glibc)
{
	void *a = hide(malloc(0)), *b = hide(malloc(0)), *c = hide(calloc(0, 100)), *d = hide(calloc(100, 0));
	EXPECT(a && b && c && d && a != b && c != d);
	void *e = hide(realloc(NULL, 0)), *f = hide(aligned_alloc(4096, 0)), *g = hide(memalign(64, 0)),
	     *h = hide(valloc(0)), *i = hide(pvalloc(0)), *j = hide(memalign(2 * MIB, 0)), *k = NULL;
	EXPECT(e && f && g && h && i && j);
	EXPECT_EQ(posix_memalign(&k, 64 * KIB, 0), 0);
	EXPECT(k != NULL);
	EXPECT_EQ((uintptr_t)f % 4096 + (uintptr_t)g % 64 + (uintptr_t)h % 4096 + (uintptr_t)i % 4096, 0);
	EXPECT_EQ((uintptr_t)j % (2 * MIB) + (uintptr_t)k % (64 * KIB), 0);
	void *all[] = { a, b, c, d, e, f, g, h, i, j, k };
	for (size_t x = 0; x < sizeof all / sizeof *all; x++)
		for (size_t y = x + 1; y < sizeof all / sizeof *all; y++)
			EXPECT(all[x] != all[y]);
	for (size_t x = 0; x < sizeof all / sizeof *all; x++)
		free(all[x]);
	free(hide(NULL));
	EXPECT_EQ(malloc_usable_size(hide(NULL)), 0);
}

TEST(realloc_to_zero_frees_and_returns_null)
{
	for (size_t i = 0; i < SIZES; i++)
		for (int way = 0; way < 3; way++) {
			void *p = hide(malloc(sizes[i]));
			errno = 77;
			volatile size_t zero = 0, many = 1000;
			void *q = way == 0 ? realloc(p, zero) : way == 1 ? reallocarray(p, zero, many)
									   : reallocarray(p, many, zero);
			EXPECT(p && !hide(q));
			EXPECT_EQ(errno, 77);
		}
	/* the buffers must really be freed: otherwise this would need 64 GiB */
	for (int i = 0; i < 1000; i++) {
		char *p = hide(malloc(64 * MIB));
		if (!EXPECT(p))
			break;
		p[0] = 1;
		volatile size_t zero = 0;
		EXPECT(!hide(realloc(p, zero)));
	}
	EXPECT(resident() < 3 * GIB);
}

TEST(free_keeps_errno)
{
	static const size_t n[] = { 1, 1000, 32 * KIB - 1, 32 * KIB, MIB, 5 * MIB, 64 * MIB, 65 * MIB, 300 * MIB };
	for (size_t i = 0; i < sizeof n / sizeof *n; i++)
		for (int round = 0; round < 3; round++) {
			void *p[8];
			for (int j = 0; j < 8; j++) {
				p[j] = hide(malloc(n[i]));
				if (p[j])
					memset(p[j], 1, n[i] < 4096 ? n[i] : 4096);
			}
			for (int j = 0; j < 8; j++) {
				errno = 1000 + j;
				free(p[j]);
				EXPECT_EQ(errno, 1000 + j);
			}
		}
	errno = 5;
	free(hide(NULL));
	EXPECT_EQ(errno, 5);
}

TEST(a_successful_allocation_keeps_errno)
{
	for (size_t i = 0; i < SIZES; i++) {
		errno = 1234;
		void *p = hide(malloc(sizes[i])), *q = hide(calloc(1, sizes[i])), *r = hide(aligned_alloc(64, sizes[i]));
		p = hide(realloc(p, sizes[i] * 3 / 2 + 1));
		EXPECT_EQ(errno, 1234);
		free(p);
		free(q);
		free(r);
	}
}

TEST(posix_memalign_rejects_what_is_no_alignment)
{
	static volatile const size_t bad[] = { 0, 1, 2, 3, 4, 6, 7, 9, 12, 24, 40, 48, 100, 4095, 4097, 32 * KIB + 8,
					       2 * MIB - 8, 3 * MIB, SIZE_MAX, SIZE_MAX - 7, SIZE_MAX / 2 };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		for (size_t n = 0; n <= 64 * KIB; n = n * 16 + 1) {
			void *p = &p;
			errno = 99;
			if (!EXPECT_EQ(posix_memalign(&p, bad[i], n), EINVAL))
				T_FAIL("alignment %zu", bad[i]);
			EXPECT(p == &p);
			EXPECT_EQ(errno, 99);
		}
}

TEST(aligned_alloc_rejects_what_is_no_power_of_two)
{
	static volatile const size_t bad[] = { 0, 3, 5, 6, 7, 9, 12, 24, 48, 100, 4095, 4097, 32 * KIB + 1, 3 * MIB,
					       SIZE_MAX, SIZE_MAX / 2 };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		for (size_t n = 0; n <= 64 * KIB; n = n * 16 + 1) {
			errno = 0;
			void *p = hide(aligned_alloc(bad[i], n));
			if (!EXPECT(!p) || !EXPECT_EQ(errno, EINVAL))
				T_FAIL("alignment %zu, size %zu", bad[i], n);
			free(p);
		}
}

TEST(memalign_rounds_odd_alignments_up_as_glibc_does)
{
	static volatile const struct { size_t asked, given; } odd[] = {
		{ 0, 1 }, { 1, 1 }, { 3, 4 }, { 17, 32 }, { 24, 32 }, { 33, 64 }, { 100, 128 }, { 4095, 4096 },
		{ 4097, 8192 }, { 20000, 32 * KIB }, { 40000, 64 * KIB }, { 3 * MIB, 4 * MIB },
	};
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
		for (size_t n = 1; n < 3 * MIB; n = n * 7 + 3) {
			char *p = hide(memalign(odd[i].asked, n));
			if (!EXPECT(p))
				continue;
			EXPECT_EQ((uintptr_t)p % odd[i].given, 0);
			memset(p, 1, n);
			free(p);
		}
	volatile size_t most = SIZE_MAX;
	errno = 0;
	EXPECT(!hide(memalign(most, 4096)));
	EXPECT_EQ(errno, EINVAL);
	errno = 0;
	EXPECT(!hide(memalign(most / 2 + 2, 4096)));
	EXPECT_EQ(errno, EINVAL);
}

TEST(alignments_that_fit_no_memory_are_refused)
{
	for (int shift = 57; shift < 64; shift++)
		for (size_t n = 1; n < 64 * MIB; n = n * 256 + 1) {
			size_t align = (size_t)1 << shift;
			void *p = &p;
			EXPECT_EQ(posix_memalign(&p, align, n), ENOMEM);
			EXPECT(p == &p);
			errno = 0;
			EXPECT(!hide(aligned_alloc(align, n)));
			EXPECT_EQ(errno, ENOMEM);
			errno = 0;
			EXPECT(!hide(memalign(align, n)));
			EXPECT_EQ(errno, ENOMEM);
		}
}

TEST(every_alignment_is_kept_at_every_size)
{
	static const size_t n[] = { 1, 8, 100, 256, 512, 1024, 4096, 10000, 32 * KIB - 1, 32 * KIB, 50000, 2 * MIB - 1,
				    2 * MIB, 5 * MIB };
	for (size_t align = 8; align <= GIB; align *= 2)
		for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
			void *p[3] = { NULL, hide(aligned_alloc(align, n[i])), hide(memalign(align, n[i])) };
			EXPECT_EQ(posix_memalign(&p[0], align, n[i]), 0);
			for (int j = 0; j < 3; j++) {
				if (!EXPECT(p[j]))
					continue;
				if (!EXPECT_EQ((uintptr_t)p[j] % align, 0) ||
				    !EXPECT(malloc_usable_size(p[j]) >= n[i]))
					T_FAIL("alignment %zu, size %zu", align, n[i]);
				pattern_write(p[j], n[i], align + (size_t)j);
			}
			/* an aligned buffer may be resized; it keeps its bytes, not its alignment */
			p[1] = hide(realloc(p[1], n[i] * 2));
			if (EXPECT(p[1]))
				EXPECT_EQ(pattern_check(p[1], n[i] / 8 * 8, align + 1), -1);
			for (int j = 0; j < 3; j++)
				if (p[j] && j != 1)
					EXPECT_EQ(pattern_check(p[j], n[i], align + (size_t)j), -1);
			for (int j = 0; j < 3; j++)
				free(p[j]);
		}
}

TEST(aligned_alloc_takes_sizes_that_are_no_multiple)
{
	for (size_t i = 0; i < SIZES; i++) {
		void *p = hide(aligned_alloc(256 * KIB, sizes[i]));
		EXPECT(p && (uintptr_t)p % (256 * KIB) == 0);
		free(p);
	}
}

TEST(valloc_and_pvalloc_give_whole_pages)
{
	for (size_t i = 0; i < SIZES; i++) {
		char *v = hide(valloc(sizes[i])), *p = hide(pvalloc(sizes[i]));
		if (!EXPECT(v && p))
			continue;
		size_t whole = (sizes[i] + 4095) / 4096 * 4096;
		EXPECT_EQ((uintptr_t)v % 4096, 0);
		EXPECT_EQ((uintptr_t)p % 4096, 0);
		EXPECT(malloc_usable_size(v) >= sizes[i]);
		EXPECT(malloc_usable_size(p) >= whole);
		memset(v, 1, sizes[i]);
		memset(p, 2, whole);
		EXPECT(v[sizes[i] - 1] == 1);
		free(v);
		free(p);
	}
	volatile size_t page_below = SIZE_MAX - 4094;
	errno = 0;
	EXPECT(!hide(pvalloc(page_below))); /* the size wraps to 0 when it is rounded up */
	EXPECT_EQ(errno, ENOMEM);
}

TEST(all_usable_bytes_may_be_written)
{
	void *p[SIZES];
	size_t usable[SIZES];
	for (size_t i = 0; i < SIZES; i++) {
		p[i] = hide(malloc(sizes[i]));
		if (!EXPECT(p[i]))
			return;
		usable[i] = malloc_usable_size(p[i]);
		EXPECT(usable[i] >= sizes[i]);
		EXPECT_EQ((uintptr_t)p[i] % (sizes[i] < 16 ? 8 : 16), 0);
		pattern_write(p[i], usable[i], i << 32);
	}
	for (size_t i = 0; i < SIZES; i++)
		if (!EXPECT_EQ(pattern_check(p[i], usable[i], i << 32), -1))
			T_FAIL("size %zu, usable %zu", sizes[i], usable[i]);
	for (size_t i = 0; i < SIZES; i++)
		free(p[i]);
}

/* Resize from a to b. The bytes that both sizes have must stay. In buffers over 1 MiB only each 4093rd byte is checked,
 * and the last. */
static void resize(size_t a, size_t b)
{
	unsigned char *p = hide(malloc(a));
	if (!EXPECT(p))
		return;
	size_t both = a < b ? a : b, tail = both > 64 ? both - 64 : 0, step = a > MIB || b > MIB ? 4093 : 1, bad = 0;
	for (size_t i = 0; i < both; i += step)
		p[i] = (unsigned char)(i * 7 + 1);
	for (size_t i = tail; i < both; i++)
		p[i] = (unsigned char)(i * 7 + 1);
	unsigned char *q = hide(realloc(p, b));
	if (!EXPECT(q))
		return;
	for (size_t i = 0; i < both; i += step)
		bad += q[i] != (unsigned char)(i * 7 + 1);
	for (size_t i = tail; i < both; i++)
		bad += q[i] != (unsigned char)(i * 7 + 1);
	if (bad || malloc_usable_size(q) < b)
		T_FAIL("realloc from %zu to %zu: %zu bytes differ, usable %zu", a, b, bad, malloc_usable_size(q));
	q[b - 1] = 1;
	free(q);
}

TEST(realloc_keeps_the_bytes_across_every_boundary)
{
	for (size_t i = 0; i < SIZES; i++)
		for (size_t j = 0; j < SIZES; j++)
			resize(sizes[i], sizes[j]);
	for (size_t i = 0; i < LARGE_SIZES; i++) {
		for (size_t j = 0; j < LARGE_SIZES; j++)
			resize(large_sizes[i], large_sizes[j]);
		resize(large_sizes[i], 100);
		resize(large_sizes[i], 40000);
		resize(100, large_sizes[i]);
		resize(3 * MIB, large_sizes[i]);
	}
}

TEST(a_vector_grows_and_shrinks_step_by_step_without_losing_a_byte)
{
	uint64_t state = 42;
	unsigned char *p = NULL;
	size_t n = 0;
	for (size_t step = 0; step < 3000; step++) {
		size_t m = rand_next(&state) % 3 ? n + rand_size(&state, 1, 256 * KIB) : n - n / (2 + step % 9);
		if (m > 40 * MIB)
			m = 1000;
		unsigned char *q = hide(realloc(p, m + 1));
		if (!EXPECT(q))
			break;
		p = q;
		for (size_t i = 0; i < n && i < m; i += 1021)
			if (p[i] != (unsigned char)(i * 13 >> 3)) {
				T_FAIL("byte %zu of %zu lost at step %zu", i, m, step);
				step = 3000;
				break;
			}
		for (size_t i = n / 1021 * 1021; i < m; i += 1021)
			p[i] = (unsigned char)(i * 13 >> 3);
		n = m;
	}
	free(p);
}

TEST(calloc_gives_zeros_on_dirty_memory)
{
	for (int round = 0; round < 4; round++)
		for (size_t i = 0; i < SIZES; i++) {
			void *dirty[3];
			for (int j = 0; j < 3; j++) {
				dirty[j] = hide(malloc(sizes[i] + (size_t)j * 4096));
				if (dirty[j])
					memset(dirty[j], 0xa5, malloc_usable_size(dirty[j]));
			}
			for (int j = 0; j < 3; j++)
				free(dirty[j]);
			unsigned char *p = hide(calloc(1, sizes[i])), *q = hide(calloc(sizes[i], 1));
			if (EXPECT(p && q) && (zero_check(p, sizes[i]) != -1 || zero_check(q, sizes[i]) != -1))
				T_FAIL("calloc of %zu is not zero at %td or %td", sizes[i], zero_check(p, sizes[i]),
				       zero_check(q, sizes[i]));
			free(p);
			free(q);
			if (round == 2)
				malloc_trim(0);
		}
}

TEST(live_buffers_do_not_overlap)
{
	enum { LIVE = 600 };
	static struct {
		char *p;
		size_t n;
	} live[LIVE];
	uint64_t state = 7;
	for (int step = 0; step < 12000; step++) {
		size_t i = rand_next(&state) % LIVE;
		if (live[i].p && live[i].n) {
			if (memcmp(live[i].p, &i, sizeof i) || memcmp(live[i].p + live[i].n - sizeof i, &i, sizeof i)) {
				T_FAIL("buffer %zu of %zu bytes was overwritten at step %d", i, live[i].n, step);
				return;
			}
			free(live[i].p);
		}
		size_t n = live[i].n = rand_size(&state, 16, MIB);
		live[i].p = hide(step % 5 ? malloc(n) : aligned_alloc((size_t)16 << step % 12, n));
		if (!EXPECT(live[i].p))
			return;
		memcpy(live[i].p, &i, sizeof i);
		memcpy(live[i].p + n - sizeof i, &i, sizeof i);
	}
	for (size_t i = 0; i < LIVE; i++)
		free(live[i].p);
}

TEST(mallinfo_counts_small_memory_and_large)
{
	if (getenv("HUGEPIN_SMALL"))
		SKIP("mallinfo tells of the built-in small allocator");
	enum { N = 4000, SIZE = 1600 };
	static void *p[N];
	malloc_trim(0);
	struct mallinfo2 a = mallinfo2();
	for (size_t i = 0; i < N; i++)
		p[i] = hide(malloc(SIZE));
	struct mallinfo2 b = mallinfo2();
	/* uordblks already counted buffers in caches, so it grows less */
	if (!EXPECT(b.uordblks >= a.uordblks + N * SIZE / 2))
		T_FAIL("%zu bytes in use, %zu after %d bytes more", a.uordblks, b.uordblks, N * SIZE);
	/* The kernel refuses a mapping that is larger than memory and swap together (vm.overcommit_memory). */
	const size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * 4096, size = memory / 2 < 3 * GIB ? memory / 2 & ~(PAGE - 1) : 3 * GIB;
	void *large = hide(malloc(size));
	struct mallinfo2 c = mallinfo2();
	if (EXPECT(large)) {
		EXPECT(c.hblks > b.hblks);
		EXPECT(c.hblkhd >= b.hblkhd + size);
	}
	free(large);
	for (size_t i = 0; i < N; i++)
		free(p[i]);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	struct mallinfo d = mallinfo();
#pragma GCC diagnostic pop
	EXPECT(d.uordblks > 0);
}

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
void *__libc_valloc(size_t), *__libc_pvalloc(size_t);
void __libc_free(void *);

/* Libraries that interpose malloc call the next malloc by these names. */
TEST(the_c_librarys_own_names_for_malloc_and_free_are_of_one_family_with_the_others)
{
	static const size_t sizes[] = { 0, 1, 100, 5000, 20000, 32767, 32768, 100000, 5 * MIB };
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		const size_t n = sizes[i];
		void *p[] = { hide(__libc_malloc(n)),	 hide(__libc_calloc(3, n)), hide(__libc_realloc(NULL, n)),
			      hide(__libc_valloc(n)),	 hide(__libc_pvalloc(n)),   hide(__libc_memalign(256, n)),
			      hide(__libc_memalign(2 * MIB, n)) };
		EXPECT(zero_check(p[1], 3 * n) < 0);
		for (size_t j = 0; j < sizeof p / sizeof *p; j++) {
			if (!EXPECT(p[j] && malloc_usable_size(p[j]) >= n))
				continue;
			EXPECT_EQ((uintptr_t)p[j] % (j < 3 ? n < 16 ? 8 : 16 : j < 5 ? 4096 : j < 6 ? 256 : 2 * MIB), 0);
			pattern_write(p[j], n, j);
		}
		for (size_t j = 0; j < sizeof p / sizeof *p; j++)
			EXPECT(pattern_check(p[j], n, j) < 0);
		for (size_t j = 0; j < sizeof p / sizeof *p; j++) {
			if (j == 2) {
				p[j] = hide(__libc_realloc(p[j], 2 * n + 1));
				EXPECT(p[j] && malloc_usable_size(p[j]) >= 2 * n + 1);
			}
			(j % 2 ? free : __libc_free)(p[j]);
		}
		__libc_free(hide(malloc(n)));
	}
	EXPECT(!hide(__libc_pvalloc(SIZE_MAX - 100))); /* as above: it cannot be rounded up */
	void *p = __libc_malloc(100);
	for (size_t n = 100; n < 10 * MIB; n = n * 7 / 4) {
		pattern_write(p, n, n);
		p = hide(__libc_realloc(p, n * 7 / 4));
		EXPECT(p && pattern_check(p, n / 8 * 8, n) < 0);
	}
	__libc_free(p);
}

/* Run print() and catch the text that it writes to `fd`. */
static size_t printed(int fd, void (*print)(void), char *text, size_t size)
{
	int file = (int)syscall(SYS_memfd_create, "printed", 0), saved = dup(fd);
	fflush(NULL);
	EXPECT(dup2(file, fd) == fd);
	print();
	fflush(NULL);
	EXPECT(dup2(saved, fd) == fd);
	ssize_t n = pread(file, text, size - 1, 0);
	text[n > 0 ? n : 0] = 0;
	close(file);
	close(saved);
	return n > 0 ? (size_t)n : 0;
}

static void print_info(void)
{
	EXPECT_EQ(malloc_info(0, stderr), 0);
}

static size_t number_after(const char *text, const char *key)
{
	const char *at = strstr(text, key);
	return EXPECT(at) ? strtoul(at + strlen(key), NULL, 10) : 0;
}

TEST(malloc_stats_and_malloc_info_tell_of_these_buffers)
{
	static char text[16384];
	void *p = hide(malloc(48 * MIB));
	EXPECT(p);
	printed(STDERR_FILENO, malloc_stats, text, sizeof text);
	EXPECT(number_after(text, "hugepin: taken_bytes ") >= 48 * MIB);
	EXPECT(number_after(text, "\nsystem bytes     = ") >= 48 * MIB);
	EXPECT(number_after(text, "\nin use bytes     = ") >= 48 * MIB);
	EXPECT(number_after(text, "\nmax mmap bytes   = ") >= 48 * MIB);
	printed(STDERR_FILENO, print_info, text, sizeof text);
	EXPECT(number_after(text, "<system type=\"current\" size=\"") >= 48 * MIB);
	EXPECT(number_after(text, "<total type=\"mmap\" count=\"") >= 1);
	EXPECT(strncmp(text, "<malloc version=\"1\">\n", 21) == 0 && strstr(text, "</malloc>\n"));
	EXPECT_EQ(malloc_info(1, stderr), EINVAL);
	free(p);
}

static void *print_stats_cancelled(void *returned)
{
	int state;
	pthread_cancel(pthread_self());
	malloc_stats();
	*(bool *)returned = true;
	EXPECT_EQ(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state), 0);
	EXPECT_EQ(state, PTHREAD_CANCEL_ENABLE);
	pthread_testcancel();
	return NULL;
}

static void print_stats_in_a_cancelled_thread(void)
{
	pthread_t thread;
	bool returned = false;
	void *result = NULL;
	if (!EXPECT_EQ(pthread_create(&thread, NULL, print_stats_cancelled, &returned), 0))
		return;
	EXPECT_EQ(pthread_join(thread, &result), 0);
	EXPECT(returned && result == PTHREAD_CANCELED);
}

TEST(malloc_stats_is_no_cancellation_point)
{
	static char text[16384];
	printed(STDERR_FILENO, print_stats_in_a_cancelled_thread, text, sizeof text);
	EXPECT(strstr(text, "\nmax mmap bytes   = "));
}

TEST(trim_gives_free_memory_back_at_once)
{
	malloc_trim(0);
	size_t before = resident();
	void *p[32];
	for (int i = 0; i < 32; i++)
		if ((p[i] = hide(malloc(8 * MIB))))
			memset(p[i], 1, 8 * MIB);
	size_t full = resident();
	EXPECT(full >= before + 250 * MIB);
	for (int i = 0; i < 32; i++)
		free(p[i]);
	errno = 55;
	malloc_trim(0);
	EXPECT_EQ(errno, 55);
	size_t after = resident();
	if (!EXPECT(after < before + 5 * MIB))
		T_FAIL("resident %zu KiB before, %zu in use, %zu after", before / KIB, full / KIB, after / KIB);
	volatile int nothing_to_do = malloc_trim(0);
	EXPECT(nothing_to_do == 0 || nothing_to_do == 1);
}

TEST(large_buffers_start_on_a_page)
{
	for (size_t i = 0; i < SIZES; i++)
		if (sizes[i] >= 32 * KIB) {
			void *p = hide(malloc(sizes[i])), *q = hide(calloc(1, sizes[i]));
			p = hide(realloc(p, sizes[i] + sizes[i] / 2));
			EXPECT_EQ((uintptr_t)p % 4096, 0);
			EXPECT_EQ((uintptr_t)q % 4096, 0);
			free(p);
			free(q);
		}
}

TEST(sized_frees_of_c23_free)
{
	if (!EXPECT(free_sized && free_aligned_sized))
		return;
	malloc_trim(0);
	for (int round = 0; round < 200; round++)
		for (size_t i = 0; i < SIZES; i++) {
			void *p = hide(malloc(sizes[i])), *q = hide(aligned_alloc(8192, sizes[i]));
			errno = 66;
			free_sized(p, sizes[i]);
			free_aligned_sized(q, 8192, sizes[i]);
			EXPECT_EQ(errno, 66);
		}
	free_sized(NULL, 0);
	free_aligned_sized(NULL, 8, 0);
	EXPECT(resident() < GIB);
}

LIVE_MAIN
