/* See sparse.h. */
#include "alloc/sparse.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "alloc/start.h"
#include "alloc/touched.h"
#include "base/config.h"
#include "base/sys.h"

enum {
	SIZE_MIN = 16, /* base pages; smaller buffers have too little to save */
	PIECES = 7, /* chunks of one buffer that are looked at, beside its first one */
	LITTLE = 2, /* a buffer is touched little if at most so many pieces are touched */
	WINDOW = 16, /* chunks that are read at once to find any that is touched; aligned, so they lie in one hugepage */
	/* chunks of memory handed out after a buffer until the program has had time to use it */
	LATER = 8 << (20 - HP_CHUNK_SHIFT),
	/* Chunks of memory handed out for one look at a buffer. DENSE: in a program that fills its buffers. VAIN: so many
	 * more for each of the last looks that found nothing touched, up to VAIN_MAX. */
	EVERY = 1 << (20 - HP_CHUNK_SHIFT),
	EVERY_DENSE = 12 * EVERY,
	EVERY_VAIN = 4 * EVERY,
	VAIN_MAX = 4,
	/* At most so many buffers of zeros count with one that is touched little, so that one alone decides nothing. */
	ZERO_MAX = HP_TOUCHED_MIN / 2 - 1,
	NOTED = 64,
};

static struct {
	struct {
		size_t chunk, n, at; /* at: `handed` when the buffer was noted */
	} noted[NOTED];
	size_t first, end; /* of what is noted, counted since the start */
	size_t handed; /* chunks of new memory that were handed out */
	size_t looked; /* `handed` when the last buffer that was looked at was noted */
	unsigned vain; /* looks one after the other that found nothing touched, up to VAIN_MAX */
	unsigned zero; /* of these, looks at buffers that have hugepages of zeros, up to ZERO_MAX */
	uint64_t vary; /* moves the pieces from look to look */
	struct hp_touched touched;
} sparse;

void hp_sparse_note(size_t chunk, size_t n)
{
	size_t last = sparse.end ? sparse.noted[(sparse.end - 1) % NOTED].at : 0;

	sparse.handed += n;
	if (n < SIZE_MIN * hp_base_chunks() || sparse.handed - last < EVERY)
		return;
	sparse.noted[sparse.end % NOTED].chunk = chunk;
	sparse.noted[sparse.end % NOTED].n = n;
	sparse.noted[sparse.end % NOTED].at = sparse.handed;
	sparse.end++;
	if (sparse.end - sparse.first > NOTED)
		sparse.first++;
}

enum piece { ABSENT, ZERO, TOUCHED, UNKNOWN };

/* Whether [at, at + len) is zero. */
static enum piece read_piece(uintptr_t at, size_t len)
{
	static char copy[WINDOW * HP_CHUNK]; /* guarded by hp_heap_lock; a stack may be small */
	const struct iovec from = { (void *)at, len }, to = { copy, len };
	bool zero;

	if (hp_sys(SYS_process_vm_readv, hp_pid(), &to, 1, &from, 1) != (long)len)
		return UNKNOWN;
	zero = !copy[0] && !memcmp(copy, copy + 1, len - 1);
	if (!zero) { /* the program's data may be secret, so leave none of it here */
		memset(copy, 0, len);
		__asm__ volatile("" : : "r"(copy) : "memory");
	}
	return zero ? ZERO : TOUCHED;
}

/* Look at the chunks [chunk, end), at most WINDOW, of one hugepage. */
static enum piece look_at_piece(size_t chunk, size_t end)
{
	const struct hp_page *g = &hp_span.page[hp_page_of(chunk)];
	const uintptr_t at = hp_chunk_addr(chunk), from = at & -hp_base_page;
	const size_t len = hp_round_up(hp_chunk_addr(end) - from, hp_base_page), pages = len / hp_base_page;
	unsigned char there[WINDOW] = { 0 };
	size_t count = 0;

	/* the program may have given back a part of a page with advice */
	if (g->state != HP_PAGE_READY || g->lost || g->advised)
		return UNKNOWN;
	if (hp_sys(SYS_mincore, from, len, there) != 0)
		return UNKNOWN;
	for (size_t i = 0; i < pages; i++)
		count += there[i] & 1;
	/* a page of the pool was there, so the program has given it back by a call that was not seen */
	if (count < pages && g->kind == HUGEPIN_KIND_HUGETLB)
		return UNKNOWN;
	if (count < pages || g->kind == HUGEPIN_KIND_BASE)
		return count ? TOUCHED : ABSENT;
	return read_piece(at, (end - chunk) << HP_CHUNK_SHIFT);
}

/* Note whether a buffer that the program uses was touched little. Buffers of which THP were found, but only zeros, may
 * have been filled with them. So these count only with one that was touched little. */
static void add_look(bool little)
{
	for (; little && sparse.zero; sparse.zero--)
		hp_touched_add(&sparse.touched, true);
	hp_touched_add(&sparse.touched, little);
	sparse.vain = 0;
}

/* The chunk to look at in the i-th of PIECES parts of some chunks. It lies elsewhere at each look, because a program may
 * touch all its buffers at the same places. */
static size_t place(size_t from, size_t len, size_t i)
{
	return from + (i * len + sparse.vary % len) / PIECES;
}

/* Look for anything that is touched in a buffer, at first where most programs begin. ZERO: a part of the buffer lies in
 * THP, but only zeros were found. ABSENT: the program may not have begun to use it. */
static enum piece find_touched(size_t chunk, size_t n)
{
	enum piece p = look_at_piece(chunk, chunk + 1), found = ABSENT;
	size_t at = chunk, from = chunk, len = n;

	for (size_t i = 0; p != TOUCHED && p != UNKNOWN; i++) {
		/* A page of the pool is there even if nobody has touched it. Where a THP is there, go on in this one,
		 * because others may not be there. */
		if (p == ZERO && hp_span.page[hp_page_of(at)].kind == HUGEPIN_KIND_THP) {
			found = ZERO;
			at &= -HP_PAGE_CHUNKS;
			from = HP_MAX(chunk, at);
			len = HP_MIN(chunk + n, at + HP_PAGE_CHUNKS) - from;
		}
		if (i == PIECES)
			return found;
		at = place(from, len, i) & -(size_t)WINDOW;
		p = look_at_piece(HP_MAX(at, chunk), HP_MIN(at + WINDOW, chunk + n));
		at = HP_MAX(at, chunk);
	}
	return p;
}

/* Look at a buffer that was handed out, and perhaps freed since. */
static void look_at(size_t chunk, size_t n)
{
	enum piece p = find_touched(chunk, n);
	unsigned touched = 0;

	if (p == ABSENT || p == ZERO) {
		sparse.vain += sparse.vain < VAIN_MAX;
		sparse.zero += p == ZERO && sparse.zero < ZERO_MAX;
	}
	if (p != TOUCHED)
		return;
	for (size_t i = 0; i < PIECES && touched <= LITTLE; i++) {
		size_t at = place(chunk + 1, n - 1, i);

		p = look_at_piece(at, at + 1);
		if (p == UNKNOWN)
			return;
		touched += p == TOUCHED;
	}
	add_look(touched <= LITTLE);
}

/* Do not look once there may be registrations, which bring in all memory under them, so that nothing could be saved. */
static bool may_look(void)
{
	return hp_config.pages == HP_PAGES_AUTO && !hp_heap_has_hooks();
}

/* Look at the oldest buffer that was noted, unless it came too soon behind the last one that was looked at. */
static void look_at_first(void)
{
	const size_t i = sparse.first++ % NOTED, every = EVERY + sparse.vain * EVERY_VAIN;

	if (sparse.noted[i].at - sparse.looked < (hp_touched_is_dense(&sparse.touched) ? EVERY_DENSE : every))
		return;
	sparse.looked = sparse.noted[i].at;
	sparse.vary += UINT64_C(0x9e3779b97f4a7c15); /* by the golden ratio, which spreads the places evenly */
	look_at(sparse.noted[i].chunk, sparse.noted[i].n);
}

void hp_sparse_look(void)
{
	while (may_look() && sparse.first < sparse.end && !hp_is_filtered() &&
	       sparse.handed - sparse.noted[sparse.first % NOTED].at >= LATER)
		look_at_first();
	hp_span.sparse = may_look() && sparse.touched.sparse;
}

void hp_sparse_forget(void)
{
	sparse.first = sparse.end;
}
