/*
 * The heap where base pages have 16 and 64 KiB, by a kernel of the test's own: against the naive model, with advice and
 * guards, and in a child of fork. Each test is a process of its own, in which the heap starts anew.
 */
#include "alloc/advised.h"
#include "alloc/copy.h"
#include "tests/any.h"
#include "tests/unit/child.h"
#include "tests/unit/heap_model.h"
#include "tests/unit/kernel.h"
#include "tests/unit/span_maps.h"

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	return result_of(paged(nr, a, b, c, d, e, f));
}

static void (*run_it)(void);
static size_t page_of_run;

static void with_page(void)
{
	hp_base_page = page_of_run;
	model_configure();
	run_it();
}

static void with_pages(void (*run)(void))
{
	run_it = run;
	for (page_of_run = 16384; page_of_run <= 65536; page_of_run *= 4)
		in_child(with_page);
}

static void expect_whole(uintptr_t from, uintptr_t to, int prot)
{
	(void)prot;
	EXPECT_EQ(from & (hp_base_page - 1), 0);
	EXPECT_EQ(to & (hp_base_page - 1), 0);
}

/* The kernel has base pages in the span and the tables alone. */
static void expect_whole_pages(void)
{
	each_mapping_of_span(expect_whole);
}

/* ------------------------------------------------------------------ memory that is given back */

TEST_BY(with_pages, buffers_beside_what_was_given_back_stay)
{
	enum { COUNT = 64 };
	char *p[COUNT];

	hp_config.pages = HP_PAGES_THP;
	for (size_t i = 0; i < COUNT; i++) {
		p[i] = hugepin_malloc(2 * MIB);
		memset(p[i], (int)i + 1, 4096);
	}
	for (size_t i = 0; i < COUNT; i += 2)
		hugepin_free(p[i]);
	hugepin_purge();
	for (size_t i = 1; i < COUNT; i += 2) {
		EXPECT_EQ(hugepin_usable_size(p[i]), 2 * MIB);
		EXPECT_EQ(p[i][4095], (char)(i + 1));
	}
	for (size_t i = 0; i < COUNT; i += 2)
		EXPECT((p[i] = hugepin_malloc(2 * MIB)));
	for (size_t i = 0; i < COUNT; i++)
		hugepin_free(p[i]);
	hugepin_purge();
	EXPECT_EQ(HP_STAT(bad_pointers), 0);
	expect_empty();
}

/* A table's words beside those that are to be zero. */
TEST_BY(with_pages, a_part_of_a_table_is_zeroed_and_no_more)
{
	enum { WORDS = 65536, LOWEST = 100 };
	uint64_t *table = hp_meta_map(WORDS * sizeof *table);

	for (int round = 0; round < 300; round++) {
		size_t from = any(WORDS), to = from + any(WORDS - from + 1);

		for (size_t i = 0; i < WORDS; i++)
			table[i] = LOWEST + i;
		hp_meta_zero(&table[from], (to - from) * sizeof *table);
		for (size_t i = 0; i < WORDS; i++)
			if (table[i] != (i >= from && i < to ? 0 : LOWEST + i)) {
				T_FAIL("word %zu of [%zu, %zu)", i, from, to);
				break;
			}
	}
	hp_meta_unmap(table, WORDS * sizeof *table);
}

/* ------------------------------------------------------------------ the model */

TEST_BY(with_pages, buffers_share_no_base_page_and_keep_their_contents)
{
	play(HP_PAGES_THP, 64 * (int64_t)MIB, 12000);
	play(HP_PAGES_THP, 2 * (int64_t)MIB, 6000);
	play(HP_PAGES_BASE, 16 * (int64_t)MIB, 6000);
	expect_whole_pages();
	EXPECT_EQ(HP_STAT(bad_pointers), 0);
}

TEST_BY(with_pages, the_same_with_pages_of_the_pool)
{
	play(HP_PAGES_AUTO, 64 * (int64_t)MIB, 8000);
}

/* Where the span's parts meet, and at their ends, the holes of both may lie in one base page. */
TEST_BY(with_pages, the_span_is_shortened_to_any_size)
{
	enum { PAGES = 67 };
	size_t first, small;

	hp_config.span = PAGES * (int64_t)HP_PAGE;
	EXPECT_EQ(hp_span_init(true), 0);
	EXPECT_EQ(hp_span.pages, PAGES);
	hp_heap_lock();
	for (size_t pages = 60; pages >= 15; pages -= 5) {
		small = hp_extent_create(HP_PART_SMALL, 0, 2, HP_PAGE, 0);
		first = hp_extent_create(HP_PART_HEAP, 0, 2, HP_PAGE, 0);
		EXPECT(first && small);
		EXPECT_EQ(hp_holes_after(&hp_span.holes, small << HP_PAGE_CHUNKS_SHIFT, 9999), 2 * HP_PAGE_CHUNKS);
		hp_span_shrink(pages * HP_PAGE);
		EXPECT_EQ(hp_span.pages, pages);
		hp_extent_destroy_if_empty(first);
		hp_extent_destroy_if_empty(small);
	}
	hp_heap_unlock();
}

/* ------------------------------------------------------------------ advice */

enum { ADVISED = 40, PAGES_MAX = 24 };

static struct advised {
	unsigned char *p;
	size_t size;
	unsigned char prot[64 * PAGES_MAX]; /* of its base pages, or of 4 KiB each */
} advised[ADVISED];

static unsigned char *told; /* what the kernel lets the program do with each base page of the span */

static void note_rights(uintptr_t from, uintptr_t to, int prot)
{
	for (uintptr_t a = HP_MAX(from, hp_span.base); a < HP_MIN(to, hp_span.base + hp_span.size); a += hp_base_page)
		told[(a - hp_span.base) / hp_base_page] = (unsigned char)prot;
}

static size_t pages_of(size_t size)
{
	return (size + hp_base_page - 1) / hp_base_page;
}

static void compare_with_kernel(void)
{
	each_mapping_of_span(note_rights);
	for (struct advised *a = advised; a < advised + ADVISED; a++)
		for (size_t i = 0; a->p && i < pages_of(a->size); i++)
			if (!EXPECT_EQ(told[((uintptr_t)a->p - hp_span.base) / hp_base_page + i], a->prot[i]))
				break;
}

static void protect_some(struct advised *a)
{
	static const int prots[] = { PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE };
	size_t pages = pages_of(a->size), from = any(pages), n = 1 + any(pages - from);
	int prot = prots[any(3)];
	size_t len = HP_MIN(n * hp_base_page, a->size - from * hp_base_page); /* the program need not round it */

	EXPECT_EQ(hugepin_protect_(a->p + from * hp_base_page, len, prot), 0);
	memset(&a->prot[from], prot, n);
	if (hp_base_page > HP_CHUNK) /* refused, and not by us alone */
		EXPECT_EQ(hugepin_protect_(a->p + from * hp_base_page + HP_CHUNK, HP_CHUNK, PROT_NONE), 1);
	EXPECT_EQ(hugepin_advise_(a->p + from * hp_base_page, len, any(2) ? MADV_DONTDUMP : MADV_DODUMP), 0);
}

static void size_advised(struct advised *a)
{
	size_t size = HUGEPIN_LARGE_MIN + any(PAGES_MAX * hp_base_page - HUGEPIN_LARGE_MIN);
	size_t had = a->p ? pages_of(a->size) : 0;
	unsigned char *p = a->p ? hugepin_realloc(a->p, size) : hugepin_malloc(size);

	if (!EXPECT(p))
		return;
	a->p = p;
	a->size = size;
	if (pages_of(size) > had)
		memset(&a->prot[had], PROT_READ | PROT_WRITE, pages_of(size) - had);
}

TEST_BY(with_pages, what_a_program_protects_is_protected_and_nothing_beside_it)
{
	hp_config.pages = HP_PAGES_THP;
	hp_config.extent_max = 16 * (int64_t)MIB;
	told = calloc(SPAN / 4096, 1);
	for (int i = 0; i < 6000 / SLOWER; i++) {
		struct advised *a = &advised[any(ADVISED)];

		if (!a->p || any(4) == 0) {
			size_advised(a);
		} else if (any(4) == 0) {
			hugepin_free(a->p);
			a->p = NULL;
		} else {
			protect_some(a);
		}
		if (i % 100 == 0)
			compare_with_kernel();
		if (i % 500 == 0)
			hugepin_purge();
	}
	compare_with_kernel();
	expect_whole_pages();
	for (struct advised *a = advised; a < advised + ADVISED; a++)
		if (a->p)
			hugepin_free(a->p);
	for (int i = 0; i < 200; i++) { /* what is free has no advice left */
		size_t size = HUGEPIN_LARGE_MIN + any(300000);
		unsigned char *p = hugepin_malloc(size);

		memset(p, 1, size);
		if (i % 2)
			hugepin_free(p);
	}
	EXPECT_EQ(HP_STAT(bad_pointers), 0);
}

/* ------------------------------------------------------------------ fork */

TEST_BY(with_pages, a_child_of_fork_has_what_its_parent_had)
{
	int status;
	pid_t pid;

	hp_config.extent_max = 16 * (int64_t)MIB;
	hp_config.pages = HP_PAGES_AUTO;
	for (struct buffer *b = buffers; b < buffers + BUFFERS / 4; b++)
		obtain(b);
	for (struct buffer *b = buffers; b < buffers + BUFFERS / 4; b += 3)
		discard(b);
	for (int i = 0; i < 3; i++) {
		pid = fork();
		if (pid == 0) {
			t_failures = 0;
			for (struct buffer *b = buffers; b < buffers + BUFFERS / 4; b++)
				if (b->p)
					discard(b);
			hugepin_purge();
			_exit(t_failures != 0);
		}
		EXPECT_EQ(waitpid(pid, &status, 0), pid);
		EXPECT_EQ(status, 0);
	}
	for (struct buffer *b = buffers; b < buffers + BUFFERS / 4; b++)
		if (b->p)
			discard(b);
}

T_MAIN
