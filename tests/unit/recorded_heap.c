/*
 * The heap's recorded behaviour (tests/recorded.h) in heaps of several kinds.
 */
#include "alloc/sparse.h"
#include "base/thread.h"
#include "tests/unit/recorded_program.h"

static void auto_pages(void)
{
	play("auto", 1200);
}

static void thp(void)
{
	hp_config.pages = HP_PAGES_THP;
	hp_config.extent_max = 2 << 20;
	seed = 2;
	play("thp", 600);
}

static void base_pages(void)
{
	hp_config.pages = HP_PAGES_BASE;
	hp_config.extent_max = 64 << 20;
	seed = 3;
	play("base", 600);
}

static void hugetlb(void)
{
	hp_config.pages = HP_PAGES_HUGETLB;
	hp_config.reserve = 3;
	hp_config.numa = 1;
	seed = 4;
	play("hugetlb", 600);
}

static void interleaved(void)
{
	hp_config.numa = HP_NUMA_INTERLEAVE;
	hp_config.populate = HP_POPULATE_ALL;
	seed = 5;
	play("interleaved", 400);
}

static void short_span(void)
{
	hp_config.span = 96 << 20;
	seed = 6;
	play("short", 800);
}

static void advised(void)
{
	advises = true;
	seed = 7;
	play("advised", 800);
}

static void scanned(void)
{
	k.scans = k.moves = true;
	hp_config.pages = HP_PAGES_THP;
	seed = 8;
	play("scanned", 600);
}

/* All fails now and then, and memory is short. */
static void failing(void)
{
	fails_often = true;
	seed = 9;
	play("failing", 1000);
}

/* What the kernel is asked for by slow paths, since no thread may be started. */
static void ticking_by_calls(void)
{
	hp_config.decay_ms = 4000;
	hp_config.pages = HP_PAGES_THP;
	EXPECT(hp_heap_start());
	hp_sandboxed = true;
	step_ns = 700000000;
	seed = 10;
	play("ticking", 800);
}

/* Of which there are one, two or three pages. */
static void little(void)
{
	hp_config.decay_ms = 4000;
	hp_config.extent_max = 2 << 20;
	hp_config.pages = HP_PAGES_THP;
	EXPECT(hp_heap_start());
	hp_sandboxed = true;
	step_ns = 300000000;
	most = 160 * KIB;
	seed = 15;
	play("little", 600);
}

static void with_shards(void)
{
	hugepin_free(hugepin_malloc(MIB));
	while (hp_shards() < 4) {
		HP_STAT(threads) += 4; /* as if there were so many */
		hp_shard_add(&hp_span.holes);
		HP_STAT(threads) -= 4;
	}
	shards = 4;
	hp_config.pages = HP_PAGES_THP;
	seed = 11;
	play("shards", 800);
}

/* At times all requests are the small tier's. */
static void aside(void)
{
	goes_aside = true;
	seed = 16;
	play("aside", 400);
}

/* ------------------------------------------------------------------ how long the span is */

static void start(void)
{
	hp_config.span = 0;
	EXPECT(hp_heap_start());
	note("ram %zu, may have %zu, %zu", (size_t)k.ram, (size_t)k.addresses, (size_t)k.data);
	note("span %zu, pages %zu, small %zu, reserved %zu, heads %zu", hp_span.size, hp_span.pages,
	     hp_span.small_end - hp_span.small,
	     hp_span.reserved, hp_span.heads_max);
	note("thp %d, node %d", hp_span.thp, hp_span.nodes.node);
	if (hp_config.pages == HP_PAGES_1G)
		note("aligned %d", !(hp_span.base & (GIB - 1)));
	note_pointer("malloc", 3 * MIB, hugepin_malloc(3 * MIB));
	noted("start");
}

TEST(a_span_is_as_long_as_memory_and_limits_say)
{
	static const size_t rams[] = { 16 * GIB - 1, 16 * GIB, 32 * GIB, 33 * GIB };
	static const size_t limits[] = { 3 * MIB, 16 * MIB, 31 * GIB, 64 * GIB };

	if (sysconf(_SC_PAGESIZE) != HP_CHUNK)
		SKIP("the kernel's base pages are larger");
	for (int i = 0; i < 4; i++) {
		k.ram = rams[i];
		process(start);
	}
	for (int i = 0; i < 4; i++) {
		k.addresses = i < 2 ? 0 : limits[i];
		k.data = i < 3 ? limits[i] : 0;
		k.no_thp = i == 1;
		hp_config.small_pinned = i & 1;
		hp_config.pages = i == 2 ? HP_PAGES_1G : HP_PAGES_AUTO;
		process(start);
	}
	k.addresses = k.data = 0;
	k.no_thp = false;
	k.ram = 8 * GIB;
	hp_config.small_pinned = 0;
	hp_config.pages = HP_PAGES_AUTO;
	EXPECT(as_recorded("heap_span"));
}

/* ------------------------------------------------------------------ watchers and hooks */

static void leaving(void *arg, const struct hugepin_extent *e)
{
	note("leaving %d: %zx+%zx %llu %u", *(int *)arg, (uintptr_t)e->addr - hp_span.base, e->len,
	     (unsigned long long)e->gen, e->kind);
}

static void watched(void)
{
	enum { WATCHERS = 17 };
	static int ids[WATCHERS];

	for (int i = 0; i < WATCHERS; i++)
		note("watch %d: %d", i, hugepin_watch(leaving, &ids[i], &ids[i]));
	for (int i = 2; i < WATCHERS; i++)
		note("unwatch %d: %d", ids[i], hugepin_unwatch(ids[i]));
	note("again %d", hugepin_unwatch(ids[2]));
	note("watch: %d", hugepin_watch(leaving, &ids[2], &ids[2]));
	note("unwatch: %d", hugepin_unwatch(ids[2]));
	note("nobody: %d %d", hugepin_watch(NULL, NULL, ids), hugepin_watch(leaving, ids, NULL));
	seed = 12;
	play("watched", 400);
	for (int i = 0; i < 2; i++)
		note("unwatch: %d", hugepin_unwatch(ids[i]));
	noted("unwatched");
}

static void grown(void)
{
	note("grown");
}

static void let_go(uint32_t ticks)
{
	note("let go %u", ticks);
	for (int i = 0; i < HELD; i++)
		if (held[i].len && hp_heap_is_free(held[i].at, held[i].len, ticks)) {
			hp_heap_drop(held[i].at, held[i].len, held[i].how);
			held[i].len = 0;
			note("dropped %d", i);
		}
}

static void hooked(void)
{
	static const struct hp_heap_hooks hooks = { .grown = grown, .let_go = let_go };

	hp_heap_set_hooks(&hooks);
	holds_often = true;
	seed = 13;
	play("hooked", 800);
}

/* ------------------------------------------------------------------ what programs touch */

static void touch_pieces(struct buffer *b, unsigned pieces)
{
	static const size_t within[] = { 0, 63, 64, 4095 };
	const size_t n = (b->size + HP_CHUNK - 1) / HP_CHUNK;

	for (size_t i = 0; i < 8; i++)
		if (i <= pieces)
			b->p[((n - 1) * i / 7) * HP_CHUNK + (i ? within[rnd(4)] : 0)] = 1;
}

/* Of each buffer so many pieces beside the first. */
static void touch(const char *name, unsigned pieces, unsigned count)
{
	static const size_t sizes[] = { 60 * KIB, 64 * KIB, 68 * KIB, MIB - 4 * KIB, MIB, MIB + 4 * KIB, 2 * MIB,
	     7 * MIB, 8 * MIB };

	for (unsigned i = 1; i <= count; i++) {
		struct buffer *b = &buffers[i % BUFFERS];

		if (b->p)
			hugepin_free(b->p);
		b->size = sizes[rnd(9)];
		b->p = hugepin_malloc(b->size);
		note_pointer("malloc", b->size, b->p);
		note("sparse %d", hp_span.sparse);
		if (b->p && rnd(16))
			touch_pieces(b, pieces);
		if (i % 16 == 0)
			hugepin_purge();
		note_stats();
		if (i % 32 == 0) {
			note_state();
			noted("%s %u", name, i);
		}
	}
}

static void touches(void)
{
	EXPECT(hp_heap_start());
	k.on = true;
	seed = 14;
	k.pool = 10;
	touch("little", 1, 128);
	k.pool = 100;
	touch("little and a pool", 1, 96);
	touch("two pieces", 2, 96);
	touch("all", 7, 96);
	touch("the first", 0, 128);
	hp_sparse_forget();
	touch("half", 3, 96);
	k.on = false;
}

TEST(a_heap_looks_at_what_programs_touch_as_recorded)
{
	if (sysconf(_SC_PAGESIZE) != HP_CHUNK)
		SKIP("the kernel's base pages are larger");
	process(touches);
	EXPECT(as_recorded("heap_touched"));
}

TEST(a_heap_places_grows_and_gives_back_as_recorded)
{
	static void (*const all[])(void) = { auto_pages, thp, base_pages, hugetlb, interleaved, short_span, advised,
	     scanned,
					 failing, ticking_by_calls, little, with_shards, aside, watched, hooked };

	if (!HP_THREAD_BARE)
		SKIP("in this build no heap moves, and threads begin otherwise");
	if (sysconf(_SC_PAGESIZE) != HP_CHUNK)
		SKIP("the kernel's base pages are larger");
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		process(all[i]);
	EXPECT(as_recorded("heap"));
}

T_MAIN
