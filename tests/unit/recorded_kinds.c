/*
 * The heap's recorded behaviour (tests/recorded.h) with pages of 1 GiB, with larger base pages, for the small tier,
 * with two threads, and of buffers that grow.
 */
#include <pthread.h>
#include <semaphore.h>

#include "base/thread.h"
#include "tests/unit/recorded_program.h"

/* ------------------------------------------------------------------ pages of 1 GiB */

/* One step of each kind with long buffers, of which no more than the ends are touched. */
static void long_step(void)
{
	static const size_t sizes[] = { MIB, 100 * MIB, 512 * MIB, GIB - HP_CHUNK, GIB, GIB + HP_CHUNK, 2 * GIB };
	struct buffer *b = &buffers[rnd(6)];
	unsigned char *p;

	switch (rnd(12)) {
	case 0: note("purge %d", hugepin_purge()); break;
	case 1: note("tick %d", hp_heap_tick()); break;
	case 2: k.giants = (long)rnd(4); break;
	case 3: hold(0); break;
	case 4: k.refused = rnd(3) ? -1 : MADV_POPULATE_WRITE; break;
	case 5:
		if (b->p)
			ask(b);
		break;
	case 6:
		if (b->p && (p = hugepin_realloc(b->p, b->size / 2 + HUGEPIN_LARGE_MIN))) {
			b->size = b->size / 2 + HUGEPIN_LARGE_MIN;
			note_pointer("realloc", b->size, p);
			b->p = p;
		}
		break;
	default:
		if (b->p) {
			note_pointer("free", b->size, b->p);
			hugepin_free(b->p);
			b->p = NULL;
			break;
		}
		b->size = sizes[rnd(7)];
		b->p = rnd(4) ? hugepin_malloc(b->size) : hugepin_aligned_alloc((size_t)1 << (20 + rnd(11)), b->size);
		note_pointer("malloc", b->size, b->p);
	}
}

static void giants(void)
{
	hp_config.pages = HP_PAGES_1G;
	hp_config.span = (int64_t)(9 * GIB);
	hp_config.extent_max = (int64_t)(512 * MIB);
	EXPECT(hp_heap_start());
	seed = 31;
	k.giants = 3;
	k.on = true;
	for (int i = 1; i <= 200; i++) {
		long_step();
		note_stats();
		if (i % 20 == 0) {
			k.on = false;
			note_state();
			k.on = true;
			noted("giants %d", i);
		}
	}
	k.on = false;
}

/* ------------------------------------------------------------------ the small tier's part */

enum { RUNS = 24 };

static void small_step(void)
{
	static struct {
		char *p;
		size_t len;
	} runs[RUNS];
	static const size_t lens[] = { HP_CHUNK, 2 * HP_CHUNK, 64 * KIB, 2 * MIB - HP_CHUNK, 2 * MIB,
	     2 * MIB + HP_CHUNK, 5 * MIB };
	const unsigned i = (unsigned)rnd(RUNS), j = (unsigned)rnd(RUNS);
	void *at = NULL;

	if (runs[i].p && rnd(3) == 0 && runs[i].len > HP_CHUNK) { /* a part */
		runs[i].len = hp_round_up(runs[i].len / 2, HP_CHUNK);
		note("unmap the rest of %zx from %zx on", (uintptr_t)runs[i].p - hp_span.base, runs[i].len);
		hugepin_small_unmap_(runs[i].p + runs[i].len, HP_CHUNK);
		return;
	}
	if (runs[i].p) {
		if (rnd(4) == 0)
			note("advise %d", hugepin_advise_(runs[i].p, HP_CHUNK, MADV_DONTFORK));
		note("unmap %zx+%zx", (uintptr_t)runs[i].p - hp_span.base, runs[i].len);
		hugepin_small_unmap_(runs[i].p, runs[i].len);
		runs[i].p = NULL;
		return;
	}
	runs[i].len = lens[rnd(7)];
	if (rnd(3) == 0 && runs[j].p)
		at = runs[j].p + runs[j].len;
	runs[i].p = hugepin_small_map_(at, runs[i].len);
	note_pointer(at ? "map at" : "map", runs[i].len, runs[i].p);
	if (runs[i].p) {
		note("zero %d", !runs[i].p[0] && !runs[i].p[runs[i].len - 1]);
		runs[i].p[0] = runs[i].p[runs[i].len - 1] = 1;
	}
}

static void small_part(void)
{
	uintptr_t base = 0;
	size_t size = 0;

	hp_config.small_pinned = 1;
	hp_config.span = 64 << 20;
	hp_config.pages = HP_PAGES_AUTO;
	note("part %d", hugepin_small_part_(&base, &size));
	note("at %zx+%zx", base - hp_span.base, size);
	seed = 32;
	k.on = true;
	most = 4 * MIB;
	for (int i = 1; i <= 600; i++) {
		small_step();
		if (rnd(4) == 0)
			step();
		if (rnd(40) == 0)
			note("for small %d", hugepin_purge_for_small_());
		note_stats();
		if (i % 40 == 0) {
			k.on = false;
			note_state();
			k.on = true;
			noted("small %d", i);
		}
		if (i == 400) {
			hugepin_span_limit_(40 * MIB);
			noted("less addresses");
		}
	}
	hugepin_span_limit_(MIB);
	note_state();
	noted("fewest addresses");
	k.on = false;
}

/* ------------------------------------------------------------------ base pages of 16 KiB */

static void base_pages_of_16k(void)
{
	hp_base_page = 16384;
	advises = true;
	seed = 33;
	play("base pages of 16 KiB", 600);
}

static void base_pages_of_64k(void)
{
	hp_base_page = 65536;
	hp_config.pages = HP_PAGES_BASE;
	seed = 34;
	play("base pages of 64 KiB", 300);
}

/* ------------------------------------------------------------------ buffers that grow in turn */

static void grow(const char *name, size_t from, size_t to, size_t num, size_t den)
{
	unsigned char *p[2] = { hugepin_malloc(from), hugepin_malloc(from) };

	p[0][0] = 1;
	p[1][0] = 2;
	for (size_t size = from; size < to; size += HP_MAX(size / den * num, HP_CHUNK))
		for (int i = 0; i < 2; i++) {
			p[i] = hugepin_realloc(p[i], size);
			note_pointer("grow", size, p[i]);
			note("intact %d", p[i][0] == i + 1);
			note_stats();
		}
	k.on = false;
	note_state();
	k.on = true;
	for (int i = 0; i < 2; i++) {
		p[i] = hugepin_realloc(p[i], from + 1);
		note_pointer("shrink", from + 1, p[i]);
		hugepin_free(p[i]);
	}
	note("purge %d", hugepin_purge());
	note_stats();
	noted("%s", name);
}

static void growing_buffers(void)
{
	hp_config.pages = HP_PAGES_THP;
	EXPECT(hp_heap_start());
	k.on = true;
	for (int i = 0; i < 2; i++) {
		k.moves = i;
		k.scans = i;
		grow("by half", 40000, 40 * MIB, 1, 2);
		grow("by a chunk", 512 * KIB, 512 * KIB + 30 * HP_CHUNK, 1, 4096);
		grow("by a sixteenth", 2 * MIB, 5 * MIB, 1, 16);
		grow("by two", 100000, 70 * MIB, 1, 1);
		grow("of a page less a chunk", 2 * MIB - HP_CHUNK, 9 * MIB, 1, 3);
	}
	k.on = false;
}

/* ------------------------------------------------------------------ two threads, one of which runs at a time */

static sem_t yours, mine;
static bool over;

static void *other(void *unused)
{
	(void)unused;
	for (;;) {
		sem_wait(&yours);
		if (over)
			return NULL;
		for (int i = 0; i < 10; i++)
			step();
		sem_post(&mine);
	}
}

/* One after another, so that caches are taken over. */
static void two_threads(void)
{
	pthread_t t;

	hp_config.pages = HP_PAGES_THP;
	most = 4 * MIB;
	EXPECT(hp_heap_start());
	sem_init(&yours, 0, 0);
	sem_init(&mine, 0, 0);
	seed = 35;
	for (int thread = 1; thread <= 3; thread++) {
		over = false;
		EXPECT_EQ(pthread_create(&t, NULL, other, NULL), 0);
		k.on = true;
		for (int i = 1; i <= 20; i++) {
			for (int j = 0; j < 10; j++)
				step();
			if (i % 3) {
				sem_post(&yours);
				sem_wait(&mine);
			}
			note_stats();
			if (i % 4)
				continue;
			k.on = false;
			note_state();
			k.on = true;
			noted("thread %d: %d", thread, i * 10);
		}
		over = true;
		sem_post(&yours);
		pthread_join(t, NULL);
		note_stats();
		k.on = false;
		note_state();
		noted("thread %d has ended", thread);
	}
}

TEST(heaps_of_other_kinds_place_grow_and_give_back_as_recorded)
{
	static void (*const all[])(void) = { giants, small_part, base_pages_of_16k, base_pages_of_64k,
	     growing_buffers, two_threads };

	if (!HP_THREAD_BARE)
		SKIP("in this build no heap moves, and threads begin otherwise");
	if (sysconf(_SC_PAGESIZE) != HP_CHUNK)
		SKIP("the kernel's base pages are larger");
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		process(all[i]);
	EXPECT(as_recorded("heap_kinds"));
}

T_MAIN
