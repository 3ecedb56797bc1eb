/*
 * realloc: in place if possible, otherwise by a move. If the program has advised a buffer, its new place gets the same
 * advice.
 */
#include <errno.h>
#include <string.h>

#include "alloc/carry.h"
#include "alloc/fast.h"
#include "alloc/heap.h"
#include "alloc/madvise.h"
#include "alloc/misuse.h"
#include "alloc/below.h"
#include "base/stats.h"
#include "base/there.h"
#include "hugepin.h"

/* A buffer of at least ROOM_MIN chunks that has to move gets room of its own length behind it. From ROOM_LARGE chunks
 * on it gets three times its length, because copies then cost most, and room is only addresses. */
#define ROOM_MIN HP_PAGE_CHUNKS
#define ROOM_LARGE (16 * HP_PAGE_CHUNKS)

/* Grow the live buffer at `chunk` from n0 to n chunks where it stands. */
static bool grow_in_place(size_t chunk, size_t n0, size_t n)
{
	size_t room, room_left, behind, more, got;
	bool ok = false;

	hp_heap_lock();
	if (hp_buffer_is_lost(chunk, n0))
		goto out;
	room = hp_chunk_extent(chunk) - n0;
	room_left = room > n - n0 ? room - (n - n0) : 0;
	behind = chunk + n0 + room;
	more = n - n0 + room_left - room;
	for (int tries = 0; more && tries < 2; tries++) {
		bool border = !(behind & (HP_PAGE_CHUNKS - 1)) && hp_bit(hp_span.holes.starts, hp_page_of(behind));

		got = 0;
		if (hp_page_of(behind) < hp_span.pages && !border)
			got = hp_holes_after(&hp_span.holes, behind, more);
		if (got == more) {
			hp_chunks_set_taken(behind, more);
			hp_shard_count(hp_shard_of(behind), (int64_t)more << HP_CHUNK_SHIFT, 0, 0);
			break;
		}
		if (tries || border || n0 < ROOM_MIN / 8 || !hp_lists_clear(HP_SHARD_HELD_ALL))
			goto out;
	}
	ok = hp_pages_commit(hp_page_of(chunk), hp_pages_touched(chunk, n));
	if (ok) { /* a fork during the commit has not moved a buffer whose chunks partly had no memory */
		HP_STAT_ADD(room_bytes, (room_left - room) << HP_CHUNK_SHIFT);
		hp_buffer_set_live_again(chunk, n, room_left);
		hp_chunks_hand_out(chunk + n0, n - n0);
		HP_STAT_ADD(grown_in_place, 1);
	} else if (more) {
		hp_chunks_give(behind, more);
	}
out:
	hp_heap_unlock();
	return ok;
}

/* Shorten a live buffer to n chunks, of which the program uses the first `used`, and give its tail and its room back.
 * Unused chunks lose their advice, since a later realloc may hand them out again. */
static void shrink_in_place(size_t chunk, size_t n, size_t used)
{
	/* from: the chunks from here to `end` are given back */
	size_t all = hp_chunk_extent(chunk), end = chunk + all, from;

	/* the kernel unlocks whole base pages, and a part of the first one stays */
	from = hp_round_up(chunk + used, hp_base_chunks());
	if (from < end)
		hp_madvise_unlock(from, end - from);
	hp_heap_lock();
	if (hp_buffer_is_lost(chunk, all)) {
		hp_heap_unlock();
		return;
	}
	/* Keep two kinds of parts as room: a part that can only be advised together with a part that stays, and a part
	 * whose advice the kernel does not undo. */
	from = hp_madvise_cut(chunk + used, end);
	from = hp_madvise_undo(from, end - from) ? HP_MAX(from, chunk + n) : end;
	HP_STAT_ADD(room_bytes, (from - chunk - n - (all - HP_CHUNK_COUNT(hp_chunk_get(chunk)))) << HP_CHUNK_SHIFT);
	hp_buffer_set_live_again(chunk, n, from - chunk - n);
	if (from < end)
		hp_chunks_give(from, end - from);
	hp_unlock_and_tick(true, true);
}

static bool is_advised(size_t chunk)
{
	bool advised;

	if (!hp_madvise_made() || HP_CHUNK_STATE(hp_chunk_get(chunk)) != HP_CHUNK_ROOMY)
		return false;
	hp_heap_lock();
	advised = hp_madvise_any(chunk, hp_chunk_extent(chunk));
	hp_heap_unlock();
	return advised;
}

/* Move an advised buffer. The new place gets the same advice before it gets the contents. NULL: the buffer stays,
 * because there is no memory for which the kernel accepts the advice. */
static void *move_advised(size_t chunk, size_t n0, size_t size)
{
	size_t n = hp_madvise_cut(chunk + n0, chunk + hp_chunk_extent(chunk)) - chunk, to;
	bool ok = false;
	void *q;

	/* hugepages that are advised as wholes are copied as wholes */
	size = HP_MAX(size, HP_MAX(n << HP_CHUNK_SHIFT, (size_t)HUGEPIN_LARGE_MIN));
	q = hugepin_aligned_alloc(chunk & (HP_PAGE_CHUNKS - 1) ? HP_CHUNK : HP_PAGE, size);

	if (q && hp_span_has(&hp_span, q)) {
		to = ((uintptr_t)q - hp_span.base) >> HP_CHUNK_SHIFT;
		ok = hp_madvise_copy(chunk, to, n) && hp_madvise_lock_alike(chunk, to, n) == 0;
	}
	if (!ok) {
		hugepin_free(q);
		errno = ENOMEM;
		return NULL;
	}
	HP_STAT_COUNT(moved, 1);
	hugepin_free((void *)hp_chunk_addr(chunk));
	return q;
}

static bool is_zero(const char *chunk)
{
	return !*chunk && !memcmp(chunk, chunk + 1, HP_CHUNK - 1);
}

/* Copy a buffer's chunks to new memory, of which all but the first `dirty` bytes read as zeros. There, leave out chunks
 * of zeros, since a chunk that the program never touched has to get no memory. */
static void copy_chunks(char *to, const char *from, size_t len, size_t dirty)
{
	size_t at = HP_MIN(dirty, len), end;

	memcpy(to, from, at);
	for (; at < len; at = end) {
		bool zero = is_zero(from + at);

		for (end = at + HP_CHUNK; end < len && is_zero(from + end) == zero;)
			end += HP_CHUNK;
		if (!zero)
			memcpy(to + at, from + at, end - at);
	}
}

struct copying {
	char *to; /* new memory that reads as zeros */
	uintptr_t from;
};

static void copy_part(void *copying, uintptr_t from, uintptr_t to)
{
	const struct copying *c = copying;

	copy_chunks(c->to + (from - c->from), (void *)from, to - from, 0);
}

/* Copy a buffer's chunks to new memory that reads as zeros. Of a long buffer only parts that have memory are read. */
static void copy_to_zeros(char *to, const char *from, size_t len)
{
	struct copying c = { to, (uintptr_t)from };

	if (len < HP_BY_PARTS || HP_STAT_GET(hugetlb_bytes) ||
	    !hp_there_each(c.from, c.from + len, copy_part, &c))
		copy_chunks(to, from, len, 0);
}

/* The contents of a buffer go to a new one: whole hugepages without a copy where the new buffer has none yet. The
 * kernel refuses pages that are registered meanwhile. */
static void move_contents(struct hp_handed h, char *from, size_t len)
{
	const uintptr_t aligned = (uintptr_t)h.p | (uintptr_t)from;
	size_t at = HP_MIN(hp_round_up(HP_MIN(h.dirty, len), HP_PAGE), len);

	copy_chunks(h.p, from, at, h.dirty);
	if (len - at >= HP_CARRY_MIN && !(aligned & (HP_PAGE - 1)) && hp_span_has(&hp_span, h.p) && !hp_is_filtered())
		at += hp_carry((uintptr_t)h.p + at, (uintptr_t)from + at, (len - at) & ~(HP_PAGE - 1));
	copy_to_zeros((char *)h.p + at, from + at, len - at);
}

void *hugepin_realloc(void *p, size_t size)
{
	size_t off = hp_span_offset(&hp_span, p), chunk = off >> HP_CHUNK_SHIFT, n, n0, used;
	const char *why;
	bool advised;
	void *q;

	if (!p)
		return hugepin_malloc(size);
	if (!hp_span_has(&hp_span, p)) {
		if (size < HUGEPIN_LARGE_MIN)
			return hp_small()->realloc(p, size);

		size_t had = hp_small()->usable_size(p);

		q = had ? hugepin_malloc(size) : NULL; /* 0: not a buffer, which usable_size() has reported */
		if (q) {
			memcpy(q, p, HP_MIN(had, size));
			hp_small()->free(p);
		}
		return q;
	}
	why = hp_misuse_reason(off);
	if (why) {
		hugepin_misuse_("realloc", p, why);
		errno = EINVAL;
		return NULL;
	}
	if (!size) {
		hugepin_free(p);
		return NULL;
	}
	n0 = HP_CHUNK_COUNT(hp_chunk_get(chunk));
	n = used = hp_chunks_for(size);
	advised = is_advised(chunk);
	/* An advised buffer stays in the heap, since the small tier has no advice. It keeps at least two chunks,
	 * because the word for room is in the second. */
	if (advised && size < HUGEPIN_LARGE_MIN)
		n = HP_MAX(n, HP_MIN(n0, (size_t)2));
	if (size < HUGEPIN_LARGE_MIN && !advised) {
		q = hp_small()->malloc(size);
		if (!q)
			return n <= n0 ? p : NULL;
		/* An aligned buffer may be shorter than `size`. */
		memcpy(q, p, HP_MIN(size, n0 << HP_CHUNK_SHIFT));
		hugepin_free(p);
		return q;
	}
	if (n == used && (n == n0 || (!advised && hp_is_close(n0, n))))
		return p;
	if (n < n0 || used < n) {
		shrink_in_place(chunk, n, used);
		return p;
	}
	if (n <= hp_span.size >> HP_CHUNK_SHIFT && grow_in_place(chunk, n0, n))
		return p;
	if (advised)
		return move_advised(chunk, n0, size);
	/* The buffer grows, so give it room, which the next growth uses without a copy. Room is marked as taken, but
	 * not populated. Free memory behind the buffer would not do, because two vectors that grow in turn would each
	 * take the other's. */
	struct hp_placement r = { .n = n, .align = n0 << HP_CHUNK_SHIFT < HP_CARRY_MIN ? HP_CHUNK : HP_PAGE };

	struct hp_handed h = { NULL, 0 };

	r.room = n0 < ROOM_MIN || n > hp_span.size >> (HP_CHUNK_SHIFT + 6) ? 0 : n < ROOM_LARGE ? n : 3 * n;
	if (r.room)
		h = hp_alloc_locked(r);
	if (!h.p)
		h = (struct hp_handed){ hugepin_malloc(size), SIZE_MAX };
	if (!h.p)
		return NULL;
	move_contents(h, p, n0 << HP_CHUNK_SHIFT);
	HP_STAT_COUNT(moved, 1);
	hugepin_free(p);
	return h.p;
}
