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
	PIECES = 8, /* chunks of one buffer that are looked at */
	LITTLE = 1, /* a buffer is touched little if at most so many pieces beside the first are touched */
	/* chunks of memory handed out after a buffer until the program has had time to use it */
	LATER = 8 << (20 - HP_CHUNK_SHIFT),
	/* chunks of memory handed out for one look at a buffer; DENSE: in a program that fills its buffers */
	EVERY = 1 << (20 - HP_CHUNK_SHIFT),
	EVERY_DENSE = 8 * EVERY,
	NOTED = 64,
};

static struct {
	struct {
		size_t chunk, n, at; /* at: `handed` when the buffer was noted */
	} noted[NOTED];
	size_t first, end; /* of what is noted, counted since the start */
	size_t handed; /* chunks of new memory that were handed out */
	struct hp_touched touched;
} sparse;

void hp_sparse_note(size_t chunk, size_t n)
{
	size_t every = hp_touched_is_dense(&sparse.touched) ? EVERY_DENSE : EVERY;
	size_t last = sparse.end ? sparse.noted[(sparse.end - 1) % NOTED].at : 0;

	sparse.handed += n;
	if (n < SIZE_MIN * hp_base_chunks() || sparse.handed - last < every)
		return;
	sparse.noted[sparse.end % NOTED].chunk = chunk;
	sparse.noted[sparse.end % NOTED].n = n;
	sparse.noted[sparse.end % NOTED].at = sparse.handed;
	sparse.end++;
	if (sparse.end - sparse.first > NOTED)
		sparse.first++;
}

enum piece { ZERO, TOUCHED, UNKNOWN };

/* Whether [at, at + len) is zero. */
static enum piece read_piece(uintptr_t at, size_t len)
{
	static char copy[HP_CHUNK]; /* guarded by hp_heap_lock; a stack may be small */
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

static enum piece look_at_piece(size_t chunk)
{
	const struct hp_page *g = &hp_span.page[hp_page_of(chunk)];
	uintptr_t at = hp_chunk_addr(chunk);
	unsigned char there;
	enum piece head;

	/* the program may have given back a part of a page with advice */
	if (g->state != HP_PAGE_READY || g->lost || g->advised)
		return UNKNOWN;
	if (hp_sys(SYS_mincore, at & -hp_base_page, hp_base_page, &there) != 0)
		return UNKNOWN;
	/* a page of the pool was there, so the program has given it back by a call that was not seen */
	if (!(there & 1))
		return g->kind != HUGEPIN_KIND_HUGETLB ? ZERO : UNKNOWN;
	if (g->kind == HUGEPIN_KIND_BASE)
		return TOUCHED;
	/* most pieces that were touched show it at their head */
	head = read_piece(at, 64);
	return head == ZERO ? read_piece(at, HP_CHUNK) : head;
}

/* Look at a buffer that was handed out, and perhaps freed since. One whose first piece is untouched does not count,
 * because the program has not begun to use it. */
static void look_at(size_t chunk, size_t n)
{
	unsigned touched = 0;

	if (look_at_piece(chunk) != TOUCHED)
		return;
	for (size_t i = 1; i < PIECES && touched <= LITTLE; i++) {
		enum piece p = look_at_piece(chunk + (n - 1) * i / (PIECES - 1));

		if (p == UNKNOWN)
			return;
		touched += p == TOUCHED;
	}
	hp_touched_add(&sparse.touched, touched <= LITTLE);
}

/* Do not look once there may be registrations, which bring in all memory under them, so that nothing could be saved. */
static bool may_look(void)
{
	return hp_config.pages == HP_PAGES_AUTO && !hp_heap_has_hooks();
}

void hp_sparse_look(void)
{
	if (may_look() && sparse.first < sparse.end && !hp_is_filtered())
		for (; sparse.first < sparse.end && sparse.handed - sparse.noted[sparse.first % NOTED].at >= LATER;
		     sparse.first++)
			look_at(sparse.noted[sparse.first % NOTED].chunk, sparse.noted[sparse.first % NOTED].n);
	hp_span.sparse = may_look() && sparse.touched.sparse;
}

void hp_sparse_forget(void)
{
	sparse.first = sparse.end;
}
