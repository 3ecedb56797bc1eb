/*
 * What is said of parts of buffers against a naive model: a byte for each chunk of each buffer. The kernel's own
 * account, in /proc/self/smaps, must agree with it after every change; memory that is in no live buffer has nothing
 * said of it.
 */
#include "alloc/madvise.h"

#include "alloc/hold.h"
#include "base/config.h"
#include "base/stats.h"
#include "reg/locks.h"
#include "tests/any.h"
#include "tests/live/live.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"
#include "tests/unit/told.h"

enum { BUFFERS = 14, CHUNKS_MAX = 3000 };
static struct buffer {
	unsigned char *p;
	size_t chunks;
	uint8_t said[CHUNKS_MAX];
	unsigned char tag;
} buffers[BUFFERS];

static bool few_maps; /* no more tables are to be had than so many mappings */
static int maps_left;
static int refused; /* advice that the kernel does not take, with this error, or -1 */
static int refused_error;

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (few_maps && (nr == SYS_mmap || nr == SYS_mprotect) && maps_left-- <= 0)
		r = -ENOMEM;
	else if (nr == SYS_madvise && c == refused)
		r = -refused_error;
	else
		r = raw(nr, a, b, c, d, e, f);
	return result_of(r);
}

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)(1 * GIB);
	hp_config.extent_max = (int64_t)(16 * MIB);
	hp_config.decay_ms = 0;
	refused = -1;
}

static const struct {
	int advice;
	unsigned set, clear;
} calls[] = {
	{ MADV_DONTFORK, HP_ADVICE_DONTFORK, 0 },  { MADV_DOFORK, 0, HP_ADVICE_DONTFORK },
	{ MADV_WIPEONFORK, HP_ADVICE_WIPEONFORK, 0 }, { MADV_KEEPONFORK, 0, HP_ADVICE_WIPEONFORK },
	{ MADV_DONTDUMP, HP_ADVICE_DONTDUMP, 0 },  { MADV_DODUMP, 0, HP_ADVICE_DONTDUMP },
};

static const struct {
	int prot;
	unsigned set;
} prots[] = {
	{ PROT_READ | PROT_WRITE, 0 },
	{ PROT_READ, HP_ADVICE_NOWRITE },
	{ PROT_NONE, HP_ADVICE_NOWRITE | HP_ADVICE_NOREAD },
};

/* ------------------------------------------------------------------ what the kernel says */

static uint16_t told[GIB / HP_CHUNK]; /* of all committed chunks of the span */

static void ask_kernel(void)
{
	static char text[1 << 16];
	uintptr_t start = 0, end = 0;
	size_t have = 0;
	ssize_t got;
	unsigned prot = 0;
	int fd = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC);

	while ((got = read(fd, text + have, sizeof text - 1 - have)) > 0) {
		char *line = text, *stop, rights[8];

		have += (size_t)got;
		text[have] = 0;
		for (; (stop = strchr(line, '\n')); line = stop + 1) {
			uintptr_t a, b;

			*stop = 0;
			if (sscanf(line, "%lx-%lx %7s", &a, &b, rights) == 3) {
				start = a;
				end = b;
				prot = (rights[0] == '-' ? HP_ADVICE_NOREAD : 0) | (rights[1] == '-' ? HP_ADVICE_NOWRITE : 0);
			} else if (!strncmp(line, "VmFlags:", 8) && end > hp_span.base && start < hp_span.base + GIB) {
				unsigned a16 = prot | (strstr(line, " dc") ? HP_ADVICE_DONTFORK : 0) |
					       (strstr(line, " wf") ? HP_ADVICE_WIPEONFORK : 0) |
					       (strstr(line, " dd") ? HP_ADVICE_DONTDUMP : 0);

				for (uintptr_t at = HP_MAX(start, hp_span.base); at < HP_MIN(end, hp_span.base + GIB); at += HP_CHUNK)
					told[(at - hp_span.base) >> HP_CHUNK_SHIFT] = (uint16_t)a16;
			}
		}
		have = (size_t)(text + have - line);
		memmove(text, line, have);
	}
	close(fd);
}

/* The kernel, the record and the model agree. */
static bool agree(void)
{
	static uint8_t want[GIB / HP_CHUNK];

	memset(want, 0, sizeof want);
	for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
		if (b->p)
			memcpy(&want[((uintptr_t)b->p - hp_span.base) >> HP_CHUNK_SHIFT], b->said, b->chunks);
	ask_kernel();
	for (size_t c = HP_PAGE_CHUNKS, any_noted = 0; c < hp_span.end[HP_PART_HEAP] << HP_PAGE_CHUNKS_SHIFT; c++) {
		const struct hp_page *g = &hp_span.page[c >> HP_PAGE_CHUNKS_SHIFT];
		unsigned noted;

		if (g->state != HP_PAGE_READY)
			continue;
		any_noted = (c & (HP_PAGE_CHUNKS - 1) ? any_noted : 0) | want[c];
		if ((c + 1) % HP_PAGE_CHUNKS == 0 && !EXPECT_EQ(g->advised, any_noted != 0)) /* else each look at it is slow */
			return T_FAIL("page %zu", c >> HP_PAGE_CHUNKS_SHIFT);
		hp_madvise_run(c, c + 1, &noted);
		if (!EXPECT_EQ(told[c], want[c]) || !EXPECT_EQ(noted, want[c]))
			return T_FAIL("chunk %zu", c);
	}
	return true;
}

static unsigned char *chunk_of(const struct buffer *b, size_t i)
{
	return b->p + (i << HP_CHUNK_SHIFT);
}

static void fill(struct buffer *b)
{
	static unsigned char tag;

	b->tag = ++tag;
	for (size_t i = 0; i < b->chunks; i++)
		if (!(b->said[i] & HP_ADVICE_NOWRITE))
			*chunk_of(b, i) = b->tag;
}

/* What the model says can be read is as it was written. */
static bool intact(const struct buffer *b, size_t chunks)
{
	for (size_t i = 0; i < chunks; i++)
		if (!(b->said[i] & (HP_ADVICE_NOREAD | HP_ADVICE_NOWRITE)) && *chunk_of(b, i) != b->tag)
			return T_FAIL("chunk %zu of %zu", i, b->chunks);
	return true;
}

/* ------------------------------------------------------------------ changes */

static void obtain(struct buffer *b)
{
	b->chunks = 8 + any(any(3) ? 200 : 1500);
	b->p = any(4) ? hugepin_malloc(b->chunks << HP_CHUNK_SHIFT)
		      : hugepin_aligned_alloc(HP_PAGE, b->chunks << HP_CHUNK_SHIFT);
	memset(b->said, 0, sizeof b->said);
	fill(b);
}

static void say(struct buffer *b)
{
	size_t from = any(3) ? any(b->chunks) : 0, n = any(3) ? 1 + any(b->chunks - from) : b->chunks - from;
	unsigned set, clear;

	errno = 77;
	if (any(4)) {
		size_t i = any(sizeof calls / sizeof *calls);

		set = calls[i].set;
		clear = calls[i].clear;
		EXPECT_EQ(hugepin_advise_(chunk_of(b, from), (n << HP_CHUNK_SHIFT) - any(HP_CHUNK), calls[i].advice), 0);
	} else {
		size_t i = any(sizeof prots / sizeof *prots);

		set = prots[i].set;
		clear = HP_ADVICE_PROT & ~set;
		EXPECT_EQ(hugepin_protect_(chunk_of(b, from), n << HP_CHUNK_SHIFT, prots[i].prot), 0);
	}
	EXPECT_EQ(errno, 77);
	for (size_t i = from; i < from + n; i++) {
		bool lost = b->said[i] & HP_ADVICE_NOWRITE && clear & HP_ADVICE_NOWRITE; /* the model's tag was not written there */

		b->said[i] = (uint8_t)((b->said[i] & ~clear) | set);
		if (lost)
			*chunk_of(b, i) = b->tag;
	}
}

/* What was said stays with the bytes that it was said of, and ends with them: what a later realloc hands out is new. */
static void resize(struct buffer *b)
{
	size_t had = b->chunks, n = any(8) ? 8 + any(any(2) ? 2900 : had) : 1 + any(7);
	unsigned char *q;
	bool said = false;

	for (size_t i = 0; i < had; i++)
		said |= b->said[i];
	if (!said)
		return;
	q = hugepin_realloc(b->p, n << HP_CHUNK_SHIFT);
	if (!EXPECT(q))
		return;
	if (n < 8) /* it stays in the heap, for what is said of it */
		EXPECT((uintptr_t)q - hp_span.base < hp_span.size);
	b->p = q;
	b->chunks = HP_MIN(hugepin_usable_size(q) >> HP_CHUNK_SHIFT, (size_t)CHUNKS_MAX);
	EXPECT(b->chunks >= n && b->chunks <= HP_MAX(n + n / 16, (size_t)8));
	for (size_t c = ((uintptr_t)q - hp_span.base) >> HP_CHUNK_SHIFT, i = hp_round_up(c + n, hp_base_chunks()) - c; i < had; i++)
		b->said[i] = 0;
	if (b->chunks > had)
		memset(b->said + had, 0, b->chunks - had);
	else
		memset(b->said + b->chunks, 0, had - b->chunks);
	intact(b, HP_MIN(had, b->chunks));
	for (size_t i = had; i < b->chunks; i++)
		*chunk_of(b, i) = b->tag;
}

static void discard(struct buffer *b)
{
	intact(b, b->chunks);
	errno = 77;
	hugepin_free(b->p);
	EXPECT_EQ(errno, 77);
	b->p = NULL;
}

static void at_random(int64_t pages, int rounds)
{
	hp_config.pages = pages;
	for (int round = 0; round < rounds && !t_failures; round++) {
		struct buffer *b = &buffers[any(BUFFERS)];
		size_t what = any(16);

		if (!b->p)
			obtain(b);
		else if (what < 9)
			say(b);
		else if (what < 13)
			resize(b);
		else
			discard(b);
		if (any(40) == 0)
			hugepin_purge();
		if (round % 4 == 0 && !agree())
			T_FAIL("in round %d", round);
	}
	for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
		if (b->p)
			discard(b);
	EXPECT(agree());
	hugepin_purge();
	expect_empty();
}

static void agreed(void (*body)(void))
{
	body();
	EXPECT(agree());
	hugepin_purge();
	expect_empty();
}

/* First: later there is one. */
TEST_BY(agreed, without_memory_for_the_record_nothing_is_said)
{
	unsigned char *p;

	hp_config.pages = HP_PAGES_THP;
	p = hugepin_malloc(64 << HP_CHUNK_SHIFT);
	EXPECT(!hp_madvise_made());
	few_maps = true;
	for (int had = 0; had < 3; had++) { /* the bits, the addresses, the access */
		maps_left = 0;
		errno = 77;
		EXPECT_EQ(hugepin_advise_(p, 8 << HP_CHUNK_SHIFT, MADV_DONTFORK), -ENOMEM);
		EXPECT_EQ(hugepin_protect_(p, 8 << HP_CHUNK_SHIFT, PROT_READ), -ENOMEM);
		EXPECT_EQ(errno, 77);
		p[0] = 1;
		maps_left = 1;
		EXPECT_EQ(hugepin_advise_(p, 8 << HP_CHUNK_SHIFT, MADV_DONTDUMP), had < 2 ? -ENOMEM : 0);
	}
	few_maps = false;
	EXPECT(hp_madvise_made());
	buffers[0].p = p;
	buffers[0].chunks = 64;
	memset(buffers[0].said, 0, sizeof buffers[0].said);
	memset(buffers[0].said, HP_ADVICE_DONTDUMP, 8);
	EXPECT(agree());
	buffers[0].p = NULL;
	hugepin_free(p);
}

TEST_CASE(on_thp_the_kernel_says_what_the_program_said_and_nothing_of_free_memory, at_random(HP_PAGES_THP, 4000))
TEST_CASE(on_base_pages_too, at_random(HP_PAGES_BASE, 2000))

/* ------------------------------------------------------------------ by hand */

TEST_BY(agreed, what_lies_outside_of_live_buffers_is_not_advised)
{
	hp_config.pages = HP_PAGES_THP;
	for (int i = 0; i < 3; i++) {
		memset(buffers[i].said, 0, sizeof buffers[i].said);
		buffers[i].chunks = 100;
		buffers[i].p = hugepin_malloc(100 << HP_CHUNK_SHIFT);
	}
	EXPECT(buffers[1].p == buffers[0].p + (100 << HP_CHUNK_SHIFT));
	EXPECT(buffers[2].p == buffers[1].p + (100 << HP_CHUNK_SHIFT));
	hugepin_free(buffers[1].p); /* listed */
	buffers[1].p = NULL;
	EXPECT_EQ(hugepin_advise_(chunk_of(&buffers[0], 50), 200 << HP_CHUNK_SHIFT, MADV_DONTFORK), 0);
	memset(buffers[0].said + 50, HP_ADVICE_DONTFORK, 50);
	memset(buffers[2].said, HP_ADVICE_DONTFORK, 50);
	EXPECT(agree());
	EXPECT_EQ(hugepin_protect_(buffers[0].p - HP_PAGE, 64 * HP_PAGE, PROT_READ), 0);
	for (int i = 0; i < 100; i++) {
		buffers[0].said[i] |= HP_ADVICE_NOWRITE;
		buffers[2].said[i] |= HP_ADVICE_NOWRITE;
	}
	EXPECT(agree());
	for (int i = 0; i < 3; i += 2) {
		hugepin_free(buffers[i].p);
		buffers[i].p = NULL;
	}
}

TEST_BY(emptied, what_is_not_the_heaps_or_not_known_goes_on)
{
	char *p = mmap(NULL, HP_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *q = hugepin_malloc(HP_PAGE);

	EXPECT_EQ(hugepin_advise_(p, HP_PAGE, MADV_DONTFORK), 1);
	EXPECT_EQ(hugepin_protect_(p, HP_PAGE, PROT_READ), 1);
	EXPECT_EQ(hugepin_advise_(q, HP_PAGE, MADV_WILLNEED), 1);
	EXPECT_EQ(hugepin_advise_(q + 1, HP_PAGE, MADV_DONTFORK), 1); /* the kernel says EINVAL */
	EXPECT_EQ(hugepin_advise_(q, 0, MADV_DONTFORK), 1);
	EXPECT_EQ(hugepin_advise_(q, SIZE_MAX - 100, MADV_DONTFORK), 1);
	EXPECT_EQ(hugepin_protect_(q, HP_PAGE, PROT_READ | PROT_GROWSDOWN), 1);
	hugepin_free(q);
	munmap(p, HP_PAGE);
}

/* The kernel has done the mappings before the one that refuses: here, two pages of three, since no mapping can be divided. */
TEST_BY(agreed, what_a_call_did_that_failed_is_known)
{
	enum { MANY = 70000 };
	struct buffer *b = &buffers[0];
	char *area;
	int r;

	hp_config.pages = HP_PAGES_THP;
	memset(b->said, 0, sizeof b->said);
	b->chunks = 32;
	b->p = hugepin_malloc(32 << HP_CHUNK_SHIFT);
	EXPECT_EQ(hugepin_advise_(b->p, 2 << HP_CHUNK_SHIFT, MADV_DONTDUMP), 0);
	memset(b->said, HP_ADVICE_DONTDUMP, 2);
	area = mmap(NULL, MANY * 2 * HP_CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	EXPECT(area != MAP_FAILED);
	for (size_t i = 0; i < MANY && mprotect(area + (2 * i + 1) * HP_CHUNK, HP_CHUNK, PROT_READ) == 0; i++)
		;
	r = hugepin_advise_(b->p, 3 << HP_CHUNK_SHIFT, MADV_DONTFORK);
	munmap(area, MANY * 2 * HP_CHUNK);
	if (r == 0)
		memset(b->said + 2, HP_ADVICE_DONTFORK, 1); /* there may be more mappings than that */
	for (int i = 0; i < 2; i++)
		b->said[i] |= HP_ADVICE_DONTFORK;
	EXPECT(agree());
	hugepin_free(b->p);
	b->p = NULL;
}

/* Of a page of the pool the kernel takes advice as a whole. What of it is no more the buffer's after realloc stays with it. */
TEST(pages_of_the_pool_are_advised_as_wholes)
{
	struct buffer *b = &buffers[0];
	void *blocker; /* of growth where it stands */

	NEEDS_POOL(20);
	hp_config.pages = HP_PAGES_HUGETLB;
	b->chunks = 3 * HP_PAGE_CHUNKS;
	b->p = hugepin_aligned_alloc(HP_PAGE, 3 * HP_PAGE);
	memset(b->said, 0, sizeof b->said);
	EXPECT_EQ(hugepin_advise_(b->p, HP_PAGE - HP_CHUNK, MADV_DONTFORK), -EINVAL);
	EXPECT_EQ(hugepin_advise_(b->p + HP_PAGE, HP_CHUNK, MADV_DONTDUMP), -EINVAL);
	EXPECT_EQ(hugepin_advise_(b->p, 3 * HP_PAGE, MADV_WIPEONFORK), -EINVAL);
	EXPECT_EQ(hugepin_protect_(b->p + HP_PAGE, HP_PAGE / 2, PROT_READ), -EINVAL);
	EXPECT(agree());
	EXPECT_EQ(hugepin_advise_(b->p, 3 * HP_PAGE, MADV_DONTFORK), 0);
	memset(b->said, HP_ADVICE_DONTFORK, b->chunks);
	EXPECT(agree());
	b->tag = 1;
	memset(b->p, 1, 3 * HP_PAGE);
	b->p = hugepin_realloc(b->p, 2 * HP_PAGE + HP_PAGE / 2);
	EXPECT_EQ(hugepin_usable_size(b->p), 2 * HP_PAGE + HP_PAGE / 2);
	EXPECT(agree()); /* all of the third page */
	b->p = hugepin_realloc(b->p, HP_PAGE + HP_PAGE / 4);
	b->chunks = 2 * HP_PAGE_CHUNKS;
	EXPECT(agree());
	blocker = hugepin_malloc(HP_PAGE);
	b->p = hugepin_realloc(b->p, 5 * HP_PAGE);
	EXPECT(*chunk_of(b, 100) == 1 && *chunk_of(b, HP_PAGE_CHUNKS + 127) == 1);
	b->chunks = 2 * HP_PAGE_CHUNKS;
	EXPECT(agree());
	hugepin_free(b->p);
	hugepin_free(blocker);
	b->p = NULL;
	EXPECT(agree());
	hugepin_purge();
	expect_empty();
}

TEST(a_lock_of_a_part_of_such_a_page_does_not_divide_its_advice)
{
	unsigned char *p;
	void *blocker;

	NEEDS_POOL(20);
	hp_config.pages = HP_PAGES_HUGETLB;
	p = hugepin_aligned_alloc(HP_PAGE, 2 * HP_PAGE);
	blocker = hugepin_malloc(HP_PAGE);
	memset(p, 3, 2 * HP_PAGE);
	EXPECT_EQ(hugepin_advise_(p, 2 * HP_PAGE, MADV_DONTFORK), 0);
	EXPECT_EQ(hugepin_protect_(p, HP_PAGE, PROT_NONE), 0);
	EXPECT_EQ(hugepin_lock_((uintptr_t)(p + HP_PAGE), HP_CHUNK, 0), 0);
	hp_heap_locked((uintptr_t)p, (uintptr_t)p + HP_CHUNK, true);
	p = hugepin_realloc(p, 8 * HP_PAGE);
	if (EXPECT(p)) {
		EXPECT(p[HP_PAGE] == 3 && p[2 * HP_PAGE - 1] == 3);
		ask_kernel();
		for (size_t i = 0, c = ((uintptr_t)p - hp_span.base) >> HP_CHUNK_SHIFT; i < 2 * HP_PAGE_CHUNKS; i++)
			EXPECT_EQ(told[c + i], HP_ADVICE_DONTFORK |
				  (i < HP_PAGE_CHUNKS ? HP_ADVICE_NOREAD | HP_ADVICE_NOWRITE : 0));
		hugepin_free(p);
	}
	hugepin_free(blocker);
	EXPECT(agree());
	hugepin_purge();
	expect_empty();
}

/* ------------------------------------------------------------------ parts of long buffers */

static unsigned noted(const unsigned char *p)
{
	size_t c = ((uintptr_t)p - hp_span.base) >> HP_CHUNK_SHIFT;
	unsigned a;

	EXPECT(hp_madvise_run(c, c + 1, &a) == c + 1);
	return a;
}

static void set_words(size_t first, size_t end, int prot)
{
	uintptr_t from = hp_round_up((uintptr_t)&hp_span.chunk[first << HP_PAGE_CHUNKS_SHIFT], (size_t)getauxval(AT_PAGESZ));
	uintptr_t to = (uintptr_t)&hp_span.chunk[end << HP_PAGE_CHUNKS_SHIFT] & -getauxval(AT_PAGESZ);

	EXPECT_EQ(raw(SYS_mprotect, (long)from, (long)(to - from), prot, 0, 0, 0), 0);
}

/* A look at the words of the pages between would be fatal. */
TEST_BY(emptied, advice_of_a_part_looks_at_no_word_of_the_long_buffer_before_it)
{
	enum { PAGES = 300 };
	unsigned char *p, *behind;
	size_t first;

	hp_config.pages = HP_PAGES_THP;
	p = hugepin_aligned_alloc(HP_PAGE, PAGES * HP_PAGE - 7 * HP_CHUNK);
	behind = hugepin_malloc(HP_PAGE);
	first = hp_page_at((uintptr_t)p);
	for (size_t at = PAGES; at-- > PAGES - 3;) {
		set_words(first + 1, first + at, PROT_NONE);
		EXPECT_EQ(hugepin_advise_(p + at * HP_PAGE + 3 * HP_CHUNK, HP_CHUNK, MADV_DONTDUMP), 0);
		EXPECT_EQ(hugepin_protect_(p + at * HP_PAGE, HP_CHUNK, PROT_READ), 0);
		EXPECT_EQ(hugepin_protect_(p + at * HP_PAGE, HP_CHUNK, PROT_READ | PROT_WRITE), 0);
		hp_heap_locked((uintptr_t)p + at * HP_PAGE, (uintptr_t)p + at * HP_PAGE + 1, true);
		set_words(first + 1, first + at, PROT_READ | PROT_WRITE);
		EXPECT_EQ(noted(p + at * HP_PAGE + 3 * HP_CHUNK), HP_ADVICE_DONTDUMP);
		EXPECT_EQ(noted(p + at * HP_PAGE), HP_ADVICE_LOCKED);
	}
	EXPECT_EQ(noted(p), 0);
	hugepin_free(p);
	hugepin_free(behind);
}

/* ------------------------------------------------------------------ what the kernel refuses */

TEST(what_was_not_taken_back_is_handed_out_when_it_was)
{
	enum { STUCK = 3, SIZE = 100 << HP_CHUNK_SHIFT, OTHERS = 20 };
	unsigned char *p[2 * STUCK], *q[OTHERS];

	hp_config.pages = HP_PAGES_THP;
	for (int i = 0; i < 2 * STUCK; i++)
		p[i] = hugepin_malloc(SIZE);
	for (int i = 0; i < 2 * STUCK; i += 2)
		EXPECT_EQ(hugepin_advise_(p[i] + HP_CHUNK, SIZE / 2, MADV_DONTFORK), 0);
	refused = MADV_DOFORK;
	refused_error = ENOMEM;
	for (int i = 0; i < 2 * STUCK; i++) {
		errno = 77;
		hugepin_free(p[i]);
		EXPECT_EQ(errno, 77);
	}
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 2 * STUCK; i += 2) {
			EXPECT_EQ(noted(p[i]), HP_ADVICE_STUCK);
			EXPECT_EQ(noted(p[i] + HP_CHUNK), HP_ADVICE_DONTFORK);
			EXPECT_EQ(noted(p[i] + SIZE - HP_CHUNK), 0);
			EXPECT_EQ(noted(p[i + 1]), 0);
		}
		for (int i = 0; i < OTHERS; i++) {
			q[i] = hugepin_malloc(SIZE);
			for (int k = 0; k < 2 * STUCK; k += 2)
				EXPECT(q[i] + SIZE <= p[k] || q[i] >= p[k] + SIZE);
		}
		for (int i = 0; i < OTHERS; i++)
			hugepin_free(q[i]);
		errno = 77;
		hugepin_purge();
		EXPECT_EQ(errno, 77);
		EXPECT_EQ(HP_STAT(taken_bytes), STUCK * SIZE);
	}
	refused = -1;
	hugepin_purge();
	EXPECT(agree());
	expect_empty();
}

/* Bytes and advice, or nothing: the old buffer is as it was. */
TEST_BY(emptied, what_cannot_be_said_of_the_new_place_keeps_a_buffer_where_it_is)
{
	static const int advice[] = { MADV_DONTFORK, MADV_WIPEONFORK, MADV_DONTDUMP };
	enum { SIZE = 64 << HP_CHUNK_SHIFT };

	hp_config.pages = HP_PAGES_THP;
	for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
		unsigned char *p = hugepin_malloc(SIZE), *wall = hugepin_malloc(SIZE), *q;
		unsigned was;

		memset(p, 7, SIZE);
		EXPECT_EQ(hugepin_advise_(p + HP_CHUNK, HP_CHUNK, advice[i]), 0);
		was = noted(p + HP_CHUNK);
		refused = advice[i];
		refused_error = EINVAL;
		errno = 77;
		q = hugepin_realloc(p, 40 * SIZE);
		EXPECT(!q && errno == ENOMEM);
		refused = -1;
		EXPECT_EQ(noted(p + HP_CHUNK), was);
		EXPECT(p[0] == 7 && p[SIZE - 1] == 7);
		q = hugepin_realloc(p, 40 * SIZE);
		EXPECT(q && q[0] == 7 && q[SIZE - 1] == 7);
		EXPECT_EQ(noted(q + HP_CHUNK), was);
		EXPECT_EQ(noted(q) | noted(q + 2 * HP_CHUNK), 0);
		hugepin_free(q);
		hugepin_free(wall);
		EXPECT(agree());
	}
}

/* ------------------------------------------------------------------ descriptors of threads */

TEST_BY(agreed, the_top_of_a_stack_is_known_as_long_as_the_buffer_lives)
{
	enum { SIZE = 4 << 20, TOP = 8192 };
	unsigned char *p, *wall;
	size_t first, last;

	hp_config.pages = HP_PAGES_THP;
	p = hugepin_aligned_alloc(HP_PAGE, SIZE);
	wall = hugepin_malloc(HP_PAGE);
	first = ((uintptr_t)p - hp_span.base) >> HP_PAGE_SHIFT;
	last = first + SIZE / HP_PAGE - 1;
	errno = 77;
	hugepin_stack_(p, TOP - 1); /* no room for one */
	hugepin_stack_(p, 0);
	hugepin_stack_(p - 64 * GIB, SIZE); /* not ours */
	EXPECT(!hp_madvise_is_stack(first) && !hp_madvise_is_stack(last));
	hugepin_stack_(p, SIZE - 100);
	EXPECT_EQ(errno, 77);
	EXPECT(!hp_madvise_is_stack(first) && hp_madvise_is_stack(last));
	EXPECT_EQ(noted(p + SIZE - HP_CHUNK), HP_ADVICE_STACK);
	EXPECT_EQ(noted(p + SIZE - 3 * HP_CHUNK), HP_ADVICE_STACK);
	EXPECT_EQ(noted(p + SIZE - 4 * HP_CHUNK), 0);
	EXPECT_EQ(noted(wall), 0);
	EXPECT(!hp_madvise_is_stack(last + 1));
	hugepin_stack_(p, HP_PAGE + TOP); /* in two pages, and the first chunk of the second */
	EXPECT(!hp_madvise_is_stack(first));
	hugepin_stack_(p, HP_PAGE + TOP / 2);
	EXPECT(hp_madvise_is_stack(first));
	hugepin_free(p);
	EXPECT(!hp_madvise_is_stack(first) && !hp_madvise_is_stack(last));
	hugepin_free(wall);
}

/* ------------------------------------------------------------------ children of forks that copy */

static int file; /* write() tells without a signal what can be read */

static bool can_read(const unsigned char *p, unsigned char *ret_)
{
	return pwrite(file, p, 1, 0) == 1 && pread(file, ret_, 1, 0) == 1;
}

/* What the child has of a chunk, and what its kernel says. */
static bool is_right(const struct buffer *b, size_t i)
{
	unsigned said = b->said[i], a = noted(chunk_of(b, i));
	unsigned kernels = told[((uintptr_t)chunk_of(b, i) - hp_span.base) >> HP_CHUNK_SHIFT];
	unsigned char c = 0;
	bool readable = can_read(chunk_of(b, i), &c);

	if (said & HP_ADVICE_DONTFORK) /* nothing, and touching it is fatal */
		return EXPECT(!readable) && EXPECT(a & HP_ADVICE_MISSING);
	if (!EXPECT_EQ(a, said) || !EXPECT_EQ(kernels, said) || !EXPECT_EQ(readable, !(said & HP_ADVICE_NOREAD)))
		return false;
	if (said & HP_ADVICE_NOREAD)
		return true;
	return said & HP_ADVICE_WIPEONFORK ? EXPECT_EQ(c, 0) : said & HP_ADVICE_NOWRITE || EXPECT_EQ(c, b->tag);
}

static void look_at_child(void)
{
	ask_kernel();
	for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
		for (size_t i = 0; b->p && i < b->chunks; i++)
			if (!is_right(b, i)) {
				T_FAIL("chunk %zu of %zu", i, b->chunks);
				return;
			}
	for (struct buffer *b = buffers; b < buffers + BUFFERS; b++) {
		hugepin_free(b->p);
		b->p = NULL;
	}
	EXPECT(agree());
	hugepin_purge();
	expect_empty();
}

/* Held, so that forks copy it, whatever it is made of. */
static void copy_at_random(int64_t pages)
{
	struct hugepin_extent e;
	uint64_t copies = HP_STAT(forks_copied);

	hp_config.pages = pages;
	file = memfd_create("a byte", MFD_CLOEXEC);
	for (int round = 0; round < 6; round++) {
		pid_t pid;

		for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
			if (!b->p)
				obtain(b);
		for (int i = 0; i < 40; i++)
			say(&buffers[any(BUFFERS)]);
		EXPECT(agree());
		for (uintptr_t from = 0; hp_heap_next_extent(from, &e); from = (uintptr_t)e.addr + 1)
			EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, HP_HOLD_COPY), 0);
		pid = fork();
		if (pid == 0) {
			t_failures = 0;
			look_at_child();
			_exit(t_failures != 0);
		}
		EXPECT_EQ(child_wait(pid), 0);
		for (uintptr_t from = 0; hp_heap_next_extent(from, &e); from = (uintptr_t)e.addr + 1)
			hp_heap_drop((uintptr_t)e.addr, e.len, HP_HOLD_COPY);
		EXPECT(agree());
		for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
			if (any(2))
				discard(b);
	}
	EXPECT_EQ(HP_STAT(forks_copied), copies + 6);
	for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
		if (b->p)
			discard(b);
	close(file);
	hugepin_purge();
	expect_empty();
}

TEST(a_child_with_a_copy_has_what_it_may_have_and_its_kernel_knows_the_rest)
{
	copy_at_random(HP_PAGES_THP);
	copy_at_random(HP_PAGES_BASE);
}

LIVE_MAIN
