/*
 * Programs for the heap's recorded scenarios: steps chosen by fixed random numbers, with sizes at and beside every
 * limit, and all that the heap knows after some steps. Each program is a process of its own, in which the heap starts anew.
 */
#ifndef TESTS_UNIT_RECORDED_PROGRAM_H
#define TESTS_UNIT_RECORDED_PROGRAM_H

#include "alloc/back.h"
#include "alloc/cache.h"
#include "alloc/copy.h"
#include "alloc/decay.h"
#include "alloc/fast.h"
#include "alloc/heap.h"
#include "alloc/madvise.h"
#include "alloc/place.h"
#include "alloc/start.h"
#include "base/config.h"
#include "base/stats.h"
#include "tests/rnd.h"
#include "tests/unit/child.h"
#include "tests/unit/recorded_kernel.h"
#include "tests/unit/told.h"

enum { BUFFERS = 48, HELD = 6 };

static struct buffer {
	unsigned char *p;
	size_t size;
	unsigned char tag;
} buffers[BUFFERS];

static struct {
	uintptr_t at;
	size_t len;
	enum hp_hold how;
} held[HELD];

/* What a program is like. */
static size_t most; /* the largest size */
static bool advises, fails_often, holds_often, goes_aside;
static unsigned shards; /* it places in any of so many */
static uint64_t now_ns, step_ns;

static uint64_t fake_now(void)
{
	return now_ns;
}

/* ------------------------------------------------------------------ what is noted */

static size_t chunk_of(const void *p)
{
	return ((uintptr_t)p - hp_span.base) >> HP_CHUNK_SHIFT;
}

static bool in_span(const void *p)
{
	return hp_span.size && (uintptr_t)p - hp_span.base < hp_span.reserved;
}

/* A pointer as page.chunk. */
static void note_pointer(const char *what, size_t size, const void *p)
{
	if (in_span(p))
		note("%s %zu: %zu.%zu", what, size, hp_page_of(chunk_of(p)), chunk_of(p) & (HP_PAGE_CHUNKS - 1));
	else
		note("%s %zu: %s", what, size, p ? "below" : "none");
}

static void note_stats(void)
{
	static struct hugepin_stats was;
	struct hugepin_stats is;

	hp_stats_copy(&is);
#define NOTE(name, unit, sentence) \
	if (is.name != was.name) \
		note(#name " %lld", (long long)(is.name - was.name));
	HUGEPIN_STATS_LIST(NOTE)
#undef NOTE
	was = is;
}

static void note_page(size_t p)
{
	const struct hp_page *g = &hp_span.page[p];
	const struct hp_extent *e = &hp_span.extent[p];

	note("page %zu: %d %d %d.%d.%d.%d.%d.%d fresh %d held %d %d %d of %u leaves %d %d whole %d shard %d free %d "
	     "since %u", p, g->state,
	     g->kind, g->head, g->lost, g->fork, g->giant, g->stays, g->advised, g->fresh, g->held[0], g->held[1],
	     g->held[2], g->extent,
	     g->leaves, g->in_use, g->whole, g->shard, hp_span.holes.free[p],
	     hp_span.holes.now - hp_span.holes.stamps[p]);
	if (g->extent == p)
		note("extent %llu of %u: %u %u %u %u ahead %d giant %d", (unsigned long long)e->gen, e->pages,
		     e->present, e->by_kind[0],
		     e->by_kind[1], e->by_kind[2], e->ahead, e->giant);
}

static void note_words(size_t p)
{
	for (size_t c = p << HP_PAGE_CHUNKS_SHIFT; c < (p + 1) << HP_PAGE_CHUNKS_SHIFT; c++)
		if (hp_chunk_get(c))
			note("word %zu %llx", c, (unsigned long long)hp_chunk_get(c));
}

/* All that the heap knows. */
static void note_state(void)
{
	for (int part = 0; part < HP_PARTS; part++)
		for (size_t p = part ? hp_span.small : 1; p < hp_span.end[part]; p++) {
			if (hp_span.page[p].state == HP_PAGE_NONE)
				continue;
			note_page(p);
			if (part == HP_PART_HEAP)
				note_words(p);
		}
	note("span %zu %zu %zu, extents %zu %zu, end %zu %zu, heads %zu, skip %u, no pool %d, sparse %d, left %zu, "
	     "opened %zu, taken %zu",
	     hp_span.size, hp_span.small_end, hp_span.reserved, hp_span.extent_pages[0], hp_span.extent_pages[1],
	     hp_span.end[0],
	     hp_span.end[1], hp_span.heads, hp_span.pool_skip, hp_span.no_pool, hp_span.sparse, hp_span.left,
	     hp_span.opened,
	     hp_span.small_taken);
	note("tick wanted %d", hp_tick_is_wanted());
	note("ticks by %d at %llu", hp_ticking.by, (unsigned long long)hp_ticking.next_ns);
	note("cache %u %u %u %x", atomic_load(&hp_cache_self->limit), hp_cache_slot(hp_cache_self),
	     hp_cache_self->listed,
	     hp_cache_self->groups);
}

/* ------------------------------------------------------------------ steps */

/* Whether nothing is said of it that would make a part unwritable. */
static bool is_plain(const struct buffer *b)
{
	return !in_span(b->p) || !hp_madvise_any(chunk_of(b->p), hp_chunk_extent(chunk_of(b->p)));
}

static void fill(struct buffer *b)
{
	b->tag = (unsigned char)(rnd(255) + 1);
	b->p[0] = b->tag; /* this part is never advised */
	if (!is_plain(b))
		return;
	b->p[b->size - 1] = b->tag;
	if (rnd(4) == 0)
		for (size_t at = 0; at < b->size; at += HP_MAX(HP_CHUNK, b->size / 32))
			b->p[at] = b->tag;
}

static bool intact(const struct buffer *b, const unsigned char *p, size_t size)
{
	return p[0] == b->tag && (size < b->size || !is_plain(b) || p[b->size - 1] == b->tag);
}

static void keep(struct buffer *b, void *p, size_t size)
{
	b->p = p;
	b->size = size;
	if (p) {
		note("usable %zu", in_span(p) ? hugepin_usable_size(p) : 0);
		fill(b);
	}
}

/* Sizes at which something changes, and beside these. */
static size_t border(void)
{
	static const size_t borders[] = { HUGEPIN_LARGE_MIN, 36 * KIB, 64 * KIB, 68 * KIB, 256 * KIB, 512 * KIB, MIB,
	     16 * 17 * 4 * KIB,
					  2 * MIB, 2 * MIB, 4 * MIB, 6 * MIB, 8 * MIB, 16 * MIB, 20 * MIB, 32 * MIB,
					     64 * MIB, 66 * MIB };
	size_t size;

	do {
		size = borders[rnd(sizeof borders / sizeof *borders)];
		switch (rnd(8)) {
		case 0: size -= 1; break;
		case 1: size += 1; break;
		case 2: size -= HP_CHUNK; break;
		case 3: size += HP_CHUNK; break;
		case 4: size += rnd(size / 16 + 1); break;
		case 5: size = rnd(2 * size) + 1; break;
		default: break;
		}
	} while (size > most || (size > 8 * MIB && rnd(4)));
	return size;
}

static void take(struct buffer *b)
{
	size_t size = border(), align = HP_CHUNK, limit;
	unsigned char *p;

	switch (rnd(8)) {
	case 0:
		limit = rnd(6) ? 512 * KIB : 8 * MIB; /* of a long one, each page is touched here */
		size = HP_MIN(size, limit);
		p = hugepin_calloc(1, size);
		note_pointer("calloc", size, p);
		note("zero %d", p && !p[0] && !memcmp(p, p + 1, size - 1));
		break;
	case 1:
		align = (size_t)1 << (12 + rnd(12));
		p = hugepin_aligned_alloc(align, size);
		note_pointer("aligned", size ^ align, p);
		note("aligned %d", !((uintptr_t)p & (align - 1)));
		break;
	default:
		p = hugepin_malloc(size);
		note_pointer("malloc", size, p);
	}
	keep(b, p, size);
}

static void discard(struct buffer *b)
{
	note_pointer("free", b->size, b->p);
	note("intact %d", intact(b, b->p, b->size));
	hugepin_free(b->p);
	b->p = NULL;
}

static void resize(struct buffer *b)
{
	size_t size;
	unsigned char *p;

	switch (rnd(6)) {
	case 0: size = border(); break;
	case 1: size = b->size > 4 * MIB && rnd(4) ? 4 * MIB : b->size + 1; break;
	case 2: size = b->size + HP_CHUNK; break;
	case 3: size = b->size - b->size / (2 + rnd(20)); break;
	default:
		size = b->size / (1 + rnd(20));
		size = b->size + (b->size > 4 * MIB ? size / (1 + rnd(100)) : size);
		break;
	}
	size = HP_MIN(size, most);
	p = hugepin_realloc(b->p, size);
	note_pointer("realloc", size, p);
	if (!p)
		return;
	note("intact %d", p[0] == b->tag);
	keep(b, p, size);
}

static void hold(unsigned i)
{
	struct hugepin_extent e;
	const struct buffer *b = &buffers[rnd(BUFFERS)];
	int r;

	if (held[i].len) {
		note("drop %zx", held[i].at - hp_span.base);
		hp_heap_drop(held[i].at, held[i].len, held[i].how);
		held[i].len = 0;
		return;
	}
	if (!b->p || !in_span(b->p) || hugepin_extent(b->p, &e, sizeof e) <= 0)
		return;
	held[i].how = (enum hp_hold)rnd(3);
	held[i].at = (uintptr_t)e.addr;
	held[i].len = e.len;
	if (rnd(2)) { /* a part */
		held[i].at += rnd(e.len >> HP_PAGE_SHIFT) << HP_PAGE_SHIFT;
		held[i].len = HP_PAGE;
	}
	r = hp_heap_hold(held[i].at, held[i].len, e.gen + (rnd(16) == 0), held[i].how);
	note("hold %zx+%zx %d: %d", held[i].at - hp_span.base, held[i].len, held[i].how, r);
	if (r)
		held[i].len = 0;
}

static void ask(const struct buffer *b)
{
	struct hugepin_extent e = { .len = 0 };
	int r = hugepin_extent(b->p, &e, sizeof e);

	if (r > 0)
		note("extent of %zx: %zx+%zx %llu %u %u", (uintptr_t)b->p - hp_span.base,
		     (uintptr_t)e.addr - hp_span.base, e.len,
		     (unsigned long long)e.gen, e.page_shift, e.kind);
	if (!in_span(b->p))
		return;
	note("mapping %zx, free %d", hp_heap_mapping((uintptr_t)b->p),
	     hp_heap_is_free((uintptr_t)e.addr, e.len, (uint32_t)rnd(HP_TICKS + 2)));
	if (hp_heap_next_extent((uintptr_t)b->p + rnd(3) - 1, &e))
		note("next %zx+%zx", (uintptr_t)e.addr - hp_span.base, e.len);
}

/* What hooks and programs do wrong is reported, and does nothing. */
static void misuse(struct buffer *b)
{
	static const size_t sizes[] = { (size_t)PTRDIFF_MAX - HP_CHUNK, (size_t)PTRDIFF_MAX, (size_t)PTRDIFF_MAX + 2,
	     SIZE_MAX - HP_CHUNK, SIZE_MAX };
	unsigned char *p = in_span(b->p) ? b->p : NULL;
	const size_t size = sizes[rnd(5)];

	errno = 0;
	switch (rnd(6)) {
	case 0: note("malloc %d", hugepin_malloc(size) != NULL); break;
	case 1: note("calloc %d", hugepin_calloc(1, size) != NULL); break;
	case 2: note("calloc %d", hugepin_calloc(size / 2, 3) != NULL); break;
	case 3: note("aligned %d", hugepin_aligned_alloc(2 * HP_CHUNK, size) != NULL); break;
	case 4: note("aligned %d", hugepin_aligned_alloc(rnd(2) ? 0 : 3 * HP_CHUNK, 100000) != NULL); break;
	default: note("realloc %d", p && hugepin_realloc(p, size) != NULL); break;
	}
	note("errno %d", errno);
	if (!p)
		return;
	hugepin_free(p + 1);
	hugepin_free(p + HP_CHUNK);
	note("usable %zu", hugepin_usable_size(p + HP_CHUNK));
	note("realloc %d", hugepin_realloc(p + HP_CHUNK, 100000) != NULL);
}


/* What lies around a buffer, too: others, room, free memory. */
static void advise_around(const struct buffer *b)
{
	static const int how[] = { MADV_DONTFORK, MADV_DOFORK, MADV_DONTDUMP, MADV_DODUMP };
	unsigned char *from;
	size_t len;

	if (!b->p || !in_span(b->p) || hp_page_of(chunk_of(b->p)) >= hp_span.pages)
		return;
	from = b->p - rnd(64) * hp_base_page;
	len = (1 + rnd(1200)) * HP_CHUNK;
	note("around %d", hugepin_advise_(from, len, how[rnd(4)]));
}

static void advise(const struct buffer *b)
{
	static const int how[] = { MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_DODUMP,
	     MADV_DONTDUMP };
	size_t pages, from, n;

	if (!b->p || !in_span(b->p) || b->size < 8 * HP_CHUNK)
		return;
	pages = b->size / HP_CHUNK;
	from = 1 + rnd(pages - 2);
	n = 1 + rnd(HP_MIN(pages - 1 - from, (size_t)600) + 1) / 2;
	if (rnd(3) == 0)
		note("protect %d", hugepin_protect_(b->p + from * HP_CHUNK, n * HP_CHUNK,
		     rnd(2) ? PROT_READ : PROT_READ | PROT_WRITE));
	else
		note("advise %d", hugepin_advise_(b->p + from * HP_CHUNK, n * HP_CHUNK, how[rnd(6)]));
	note("any %d parts %zu", hp_madvise_any(chunk_of(b->p), pages), hp_madvise_parts(chunk_of(b->p), pages));
}

/* A stack for a thread, and memory that the program locks. */
static void use_otherwise(const struct buffer *b)
{
	const size_t from = rnd(b->size), len = rnd(b->size - from) + 1;

	if (!in_span(b->p))
		return;
	if (rnd(4) == 0)
		hugepin_stack_(b->p + from, len);
	else
		hp_heap_locked((uintptr_t)b->p + from, (uintptr_t)b->p + from + len, rnd(3));
}

static void step(void)
{
	struct buffer *b = &buffers[rnd(BUFFERS)];

	now_ns += rnd(step_ns + 1);
	if (shards)
		hp_cache_self->shard = (unsigned)rnd(shards);
	if (fails_often && rnd(3) == 0)
		k.fail_in = (long)rnd(5);
	if (goes_aside && rnd(20) == 0)
		hugepin_small_only_(!hp_cache_aside);
	if (advises && rnd(4) == 0)
		advise(b);
	if (advises && rnd(8) == 0)
		advise_around(b);
	if (holds_often && rnd(4) == 0)
		hold((unsigned)rnd(HELD));
	switch (rnd(40)) {
	case 0:
		for (uint64_t i = rnd(HP_TICKS + 3); i; i--)
			note("tick %d", hp_heap_tick());
		break;
	case 1: note("purge %d", hugepin_purge()); break;
	case 2: hold((unsigned)rnd(HELD)); break;
	case 3: ask(b); break;
	case 4:
		k.fail_in = (long)rnd(6);
		note("fails in %ld", k.fail_in);
		break;
	case 5:
		k.pool = (long)rnd(40);
		note("pool %ld", k.pool);
		break;
	case 6: misuse(b); break;
	case 7:
		if (advises && b->p && rnd(4))
			advise(b);
		else if (advises && b->p)
			use_otherwise(b);
		break;
	case 8:
		k.refused = rnd(2) ? -1 : rnd(2) ? MADV_HUGEPAGE : MADV_POPULATE_WRITE;
		break;
	default:
		if (!b->p)
			take(b);
		else if (rnd(3) == 0)
			resize(b);
		else
			discard(b);
	}
}

static inline void play(const char *name, unsigned steps)
{
	enum { GROUP = 40 };

	EXPECT(hp_heap_start());
	k.on = true;
	for (unsigned i = 1; i <= steps; i++) {
		step();
		note_stats();
		if (i % GROUP == 0) {
			k.on = false;
			note_state();
			k.on = true;
			noted("%s %u", name, i);
		}
	}
	k.fail_in = 0;
	k.refused = -1;
	hugepin_small_only_(false);
	for (int i = 0; i < HELD; i++)
		if (held[i].len)
			hp_heap_drop(held[i].at, held[i].len, held[i].how);
	for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
		if (b->p)
			discard(b);
	note_state();
	note("purge %d", hugepin_purge());
	note_state();
	note_stats();
	k.on = false;
	noted("%s, emptied", name);
}

/* ------------------------------------------------------------------ processes */

static struct {
	size_t len;
	char lines[sizeof record.lines];
} *passed; /* lines of a child */

static void (*scenario)(void);

static void run_and_pass(void)
{
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	hp_config.span = (int64_t)(2 * GIB);
	hp_config.decay_ms = 0;
	hp_config.abort_on_misuse = 0;
	hp_config.extent_max = 16 << 20;
	most = 66 * MIB;
	hp_clock_set(fake_now);
	k.pool = 20;
	if (!freopen("/dev/null", "w", stderr)) /* misuses are reported */
		_exit(2);
	scenario();
	memcpy(passed->lines, record.lines, record.len);
	passed->len = record.len;
}

/* Its lines go to this process's. */
static inline void process(void (*run)(void))
{
	scenario = run;
	passed = (void *)raw(SYS_mmap, 0, sizeof *passed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memcpy(passed->lines, record.lines, record.len);
	passed->len = record.len;
	in_child(run_and_pass);
	memcpy(record.lines, passed->lines, passed->len);
	record.len = passed->len;
	raw(SYS_munmap, (long)passed, sizeof *passed, 0, 0, 0, 0);
}

#endif
