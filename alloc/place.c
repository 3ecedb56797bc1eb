/*
 * Placement in the tree's holes (tree.h). If no hole fits, a new extent is made.
 */
#include "alloc/place.h"

#include "alloc/cache.h"
#include "alloc/madvise.h"
#include "alloc/sparse.h"
#include "base/config.h"
#include "base/stats.h"

static size_t pages_for(size_t chunks)
{
	return (chunks + HP_PAGE_CHUNKS - 1) >> HP_PAGE_CHUNKS_SHIFT;
}

/* The first chunk of a hole for the request in a shard; 0: there is none. Buffers begin with a base page, so the rest
 * of a buffer's last base page is of use to that buffer alone. */
static size_t find_in(unsigned shard, const struct hp_placement *r)
{
	return hp_tree_find(&hp_shard[shard].tree, r->part == HP_PART_SMALL ? hp_span.small : 0, hp_span.end[r->part],
			    r->n + r->room, HP_MAX(r->align, hp_base_page) >> HP_CHUNK_SHIFT,
			    hp_span.base >> HP_CHUNK_SHIFT);
}

/* The same in the request's shard, or in the first of the others, by number, that has one. ready: the hole must have
 * memory. The lock of the hole's shard is held afterwards. */
static size_t find_hole(const struct hp_placement *r, bool ready, unsigned *held)
{
	for (unsigned i = 0; i < hp_shards(); i++) {
		const unsigned shard = i ? i - (i <= r->shard) : r->shard;
		size_t chunk;

		hp_shard_switch(held, shard);
		chunk = find_in(shard, r);
		if (chunk && !(ready && hp_pages_need_commit(hp_page_of(chunk), hp_pages_touched(chunk, r->n))))
			return chunk;
	}
	return 0;
}

static size_t floor_power_of_two(size_t x)
{
	return (size_t)1 << (63 - __builtin_clzll(x));
}

/* Make a new extent for the request, and return its first chunk, or 0. An extent is as large as the whole heap so far,
 * naturally aligned, up to a limit; a request beyond the limit gets an extent of its own size. If pages of 1 GiB are
 * left, the extent consists of these. */
static size_t grow(const struct hp_placement *r)
{
	size_t limit = (size_t)hp_config.extent_max >> HP_PAGE_SHIFT;
	size_t need = pages_for(r->n + r->room), pages = need, first = 0;
	unsigned flags = 0;

	if (r->part == HP_PART_HEAP && hp_pages_giants_left())
		first = hp_extent_create(r->part, r->shard, hp_round_up(need, HP_GIANT_PAGES),
					 HP_MAX((size_t)1 << HP_GIANT_SHIFT, r->align), HP_EXTENT_GIANT);
	if (need <= limit) {
		flags = HP_EXTENT_AHEAD;
		pages = HP_MIN(floor_power_of_two(HP_MAX(hp_span.extent_pages[r->part], (size_t)1)), limit);
		if (pages < need)
			pages = floor_power_of_two(2 * need - 1);
	}
	if (!first)
		first = hp_extent_create(r->part, r->shard, pages, r->align, flags);
	if (!first && pages > need)
		first = hp_extent_create(r->part, r->shard, need, r->align, 0);
	return first << HP_PAGE_CHUNKS_SHIFT;
}

bool hp_lists_clear(unsigned *held)
{
	struct hp_cache *c = hp_cache_self;
	bool any = hp_shared_clear(held) || c->listed || hp_cache_slot(c);

	if (c != &hp_cache_none)
		hp_cache_clear(c, held);
	return any;
}

/* Whether the lists are to be cleared before a long buffer is placed. The caller is inside, or holds hp_heap_lock. */
static bool should_clear(const struct hp_placement *r)
{
	return r->n > HP_LISTED_LARGE &&
	       (HP_STAT_GET(listed_bytes) >> HP_CHUNK_SHIFT) + hp_cache_self->listed > HP_LISTED_LARGE;
}

static void take_chunks(size_t chunk, const struct hp_placement *r)
{
	hp_chunks_set_taken(chunk, r->n + r->room);
	hp_shard_count(hp_shard_of(chunk), (int64_t)(r->n + r->room) << HP_CHUNK_SHIFT, 1, 0);
	if (r->room)
		HP_STAT_ADD(room_bytes, r->room << HP_CHUNK_SHIFT);
}

bool hp_buffer_is_lost(size_t chunk, size_t n)
{
	for (size_t p = hp_page_of(chunk); p <= hp_page_of(chunk + n - 1); p++)
		if (hp_span.page[p].lost)
			return true;
	return false;
}

/* Pages whose free chunks must not return to the tree. On a lost page, live buffers have no memory, and new memory
 * would make them read as zero. On a page that leaves the pool, nothing more is placed. */
static bool has_no_tree(size_t page)
{
	return hp_span.page[page].lost || hp_span.page[page].leaves;
}

void hp_chunks_free(size_t chunk, size_t n)
{
	for (size_t at = chunk, end = chunk + n, to; at < end; at = to) {
		bool no_tree = has_no_tree(hp_page_of(at));

		to = at;
		do {
			struct hp_page *g = &hp_span.page[hp_page_of(to)];
			size_t from = to;

			to = HP_MIN(end, (hp_page_of(to) + 1) << HP_PAGE_CHUNKS_SHIFT);
			if (g->leaves) {
				g->in_use = (g->in_use - (to - from)) & 0x7fff;
				hp_span.left += hp_page_has_left(hp_page_of(from));
			}
		} while (to < end && has_no_tree(hp_page_of(to)) == no_tree);
		if (!no_tree)
			hp_chunks_set_free(at, to - at);
	}
}

void hp_chunks_give(size_t chunk, size_t n)
{
	hp_chunks_free(chunk, n);
	hp_shard_count(hp_shard_of(chunk), -((int64_t)n << HP_CHUNK_SHIFT), 0, 0);
}

void hp_buffer_give(size_t chunk)
{
	size_t n = hp_chunk_extent(chunk), count = HP_CHUNK_COUNT(hp_chunk_get(chunk));

	HP_STAT_ADD(room_bytes, -((n - count) << HP_CHUNK_SHIFT));
	if (n > 1)
		hp_chunk_set(chunk + 1, 0);
	hp_chunk_set(chunk, 0);
	hp_chunks_give(chunk, n);
}

size_t hp_chunks_hand_out(size_t chunk, size_t n)
{
	size_t dirty = 0;

	for (size_t at = chunk, end = chunk + n; at < end;) {
		struct hp_page *g = &hp_span.page[hp_page_of(at)];
		size_t page_start = at & ~(HP_PAGE_CHUNKS - 1);
		size_t to = HP_MIN(end, page_start + HP_PAGE_CHUNKS);

		if (page_start + g->fresh > at)
			dirty = HP_MIN(to, page_start + g->fresh) - chunk;
		g->fresh = (uint16_t)HP_MAX(g->fresh, to - page_start);
		at = to;
	}
	return dirty;
}

bool hp_buffer_leaves(size_t chunk, size_t n)
{
	for (size_t p = hp_page_of(chunk); hp_span.no_pool && p <= hp_page_of(chunk + n - 1); p++)
		if (hp_span.page[p].leaves)
			return true;
	return false;
}

void hp_buffer_set_live(size_t chunk, size_t n, size_t room)
{
	if (room)
		hp_chunk_set(chunk + 1, HP_CHUNK_WORD(room, HP_CHUNK_FREE));
	else if (n > 1)
		hp_chunk_set(chunk + 1, 0);
	hp_chunk_set(chunk, HP_CHUNK_WORD(n, room || hp_buffer_leaves(chunk, n) ? HP_CHUNK_ROOMY : HP_CHUNK_LIVE));
	hp_pages_note_buffer(chunk, n);
}

void hp_buffer_set_live_again(size_t chunk, size_t n, size_t room)
{
	hp_buffer_set_live(chunk, n, room);
	if (!room && hp_madvise_any(chunk, n))
		hp_chunk_set(chunk, HP_CHUNK_WORD(n, HP_CHUNK_ROOMY));
}

size_t hp_place_ready(struct hp_placement *r, unsigned *ret_held)
{
	struct hp_cache *c = hp_cache_self;
	size_t chunk;

	*ret_held = HP_SHARD_NONE;
	if (r->room || !hp_cache_limit(c))
		return 0;
	hp_cache_enter(c);
	if (hp_cache_limit(c) && should_clear(r))
		hp_lists_clear(ret_held);
	hp_cache_leave(c);
	hp_shard_switch(ret_held, HP_SHARD_NONE);
	if (!hp_shard_lock(c->shard)) {
		r->crowded = true;
		return 0;
	}
	*ret_held = r->shard = c->shard;
	chunk = find_hole(r, true, ret_held);
	if (chunk)
		take_chunks(chunk, r);
	else
		hp_shard_switch(ret_held, HP_SHARD_NONE);
	return chunk;
}

size_t hp_place(struct hp_placement *r)
{
	unsigned all = HP_SHARD_ALL;
	size_t chunk;

	r->shard = hp_cache_self->shard;
	if (should_clear(r))
		hp_lists_clear(&all);
	chunk = find_hole(r, true, &all);
	if (!chunk && hp_lists_clear(&all)) /* prefer memory that is in use already */
		chunk = find_hole(r, true, &all);
	if (!chunk) {
		hp_cache_ask_others();
		chunk = find_hole(r, false, &all);
	}
	if (!chunk) {
		chunk = grow(r);
		if (!chunk)
			return 0;
		r->grew = true;
	}
	take_chunks(chunk, r);
	if (hp_pages_need_commit(hp_page_of(chunk), hp_pages_touched(chunk, r->n)))
		hp_sparse_look();
	if (hp_pages_commit(hp_page_of(chunk), hp_pages_touched(chunk, r->n)))
		return chunk;
	r->memory_short = true;
	HP_STAT_ADD(room_bytes, -(r->room << HP_CHUNK_SHIFT));
	hp_chunks_give(chunk, r->n + r->room);
	hp_shard_count(hp_shard_of(chunk), 0, -1, 0);
	hp_extent_destroy_if_empty(hp_span.page[hp_page_of(chunk)].extent);
	return 0;
}

/* The chunk at this address, if it and the n - 1 chunks behind it are free in the small tier's part; else 0. */
static size_t place_small_at(const void *at, const struct hp_placement *r)
{
	size_t chunk = ((uintptr_t)at - hp_span.base) >> HP_CHUNK_SHIFT;

	return hp_page_of(chunk) >= hp_span.small && hp_page_of(chunk) < hp_span.small_end &&
			       hp_holes_after(&hp_span.holes, chunk, r->n) == r->n
		       ? chunk
		       : 0;
}

size_t hp_place_small(struct hp_placement *r, const void *at)
{
	size_t chunk = at ? place_small_at(at, r) : find_in(0, r);

	if (!chunk && !at) {
		chunk = grow(r);
		r->grew = chunk;
	}
	return chunk;
}
