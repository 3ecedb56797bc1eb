/* See repair.h. */
#include "alloc/repair.h"

#include <unistd.h>

#include "alloc/describe.h"
#include "alloc/pages.h"
#include "base/stats.h"
#include "base/sys.h"
#include "base/there.h"

enum {
	PIECES = HP_PAGE_CHUNKS, /* base pages of a hugepage */
	STRETCH = 512, /* hugepages that the kernel is asked about at a time */
	REFUSALS = 4, /* the kernel works hard before it refuses, so leave it alone after this many refusals */
};

/* The time that a tick may take: 1 % of the 2.5 s between ticks. One hugepage takes a millisecond or two. */
#define TICK_NS UINT64_C(25000000)

/* ------------------------------------------------------------------ when */

bool hp_repair_is_due(struct hp_repair_pause *p, uint64_t mapped)
{
	if (!p->pause || mapped != p->mapped || p->wait <= 1)
		return true;
	p->wait--;
	return false;
}

void hp_repair_note(struct hp_repair_pause *p, const struct hp_repair_look *l)
{
	bool changed = !p->pause || l->mapped != p->mapped || l->filled != p->filled;

	/* memory that is not there yet may be filled with base pages */
	p->more = l->refused || l->partial || l->cut || l->filled < l->mapped;
	if (l->collapsed || changed)
		p->pause = 1;
	else if (p->pause < HP_REPAIR_PAUSE_MAX)
		p->pause *= 2;
	else
		p->more = false; /* a tick for another reason looks again */
	p->wait = p->pause;
	p->mapped = l->mapped;
	p->filled = l->filled;
}

/* ------------------------------------------------------------------ looking */

static struct {
	struct hp_repair_pause pause;
	size_t next; /* the page at which the next look begins */
	enum { UNKNOWN, CAN, CANNOT } kernel; /* whether it has MADV_COLLAPSE */
} repair;

/* Ask without touching anything: an advice that the kernel does not know is an error even for a range of no bytes. */
static bool kernel_can(void)
{
	if (!hp_page_is_pmd())
		return false;
	if (repair.kernel == UNKNOWN)
		repair.kernel = hp_sys(SYS_madvise, hp_span.base, 0, HP_MADV_COLLAPSE) == 0 ? CAN : CANNOT;
	return repair.kernel == CAN;
}

/* The number of base pages that are there of a hugepage; 0 if it is known to be one already. */
static unsigned pieces_of(size_t page)
{
	struct hp_there there = { 0, 0 };
	unsigned char here[PIECES];
	unsigned n = 0;

	if (hp_there_is_quick())
		return hp_there(hp_page_addr(page), hp_page_addr(page + 1), &there) ?
			       (unsigned)(there.other / HP_CHUNK) :
			       0;
	if (hp_span.page[page].whole || hp_sys(SYS_mincore, hp_page_addr(page), HP_PAGE, here) != 0)
		return 0;
	for (unsigned i = 0; i < PIECES; i++)
		n += here[i] & 1;
	return n;
}

/* Whether all pages [page, end) are hugepages already. Older kernels tell this of whole mappings only. */
static bool is_whole(size_t page, size_t end)
{
	struct hp_there there = { 0, 0 };

	return hp_there_is_quick() && hp_there(hp_page_addr(page), hp_page_addr(end), &there) && !there.other;
}

/* Look at one page. The caller holds hp_heap_lock, which is released meanwhile. */
static void look_at(size_t page, struct hp_repair_look *l)
{
	unsigned n;

	if (!hp_page_may_collapse(page))
		return;
	hp_heap_unlock();
	n = pieces_of(page);
	hp_heap_lock();
	if (n < PIECES) {
		l->partial += n > 0;
	} else if (hp_page_collapse(page)) {
		l->collapsed++;
		HP_STAT_ADD(repaired_bytes, HP_PAGE);
	} else {
		l->refused++;
	}
}

/* Look at the pages from repair.next on, and then at those before. */
static void look(struct hp_repair_look *l)
{
	uint64_t end_ns = hp_clock_ns() + TICK_NS;
	size_t left;

	hp_heap_lock();
	left = hp_span.end[HP_PART_HEAP];
	while (left && !l->cut) {
		size_t used = hp_span.end[HP_PART_HEAP], page = repair.next < used ? repair.next : 0, end = page;
		bool whole;

		end = HP_MIN(HP_MIN(page + STRETCH, used), page + left);
		if (end == page)
			break;
		hp_heap_unlock();
		whole = is_whole(page, end);
		hp_heap_lock();
		repair.next = end;
		left -= end - page;
		for (size_t p = page; p < end && !whole && !l->cut; p++) {
			look_at(p, l);
			repair.next = p + 1;
			l->cut = hp_clock_ns() >= end_ns || hp_pages_quiet() || l->refused == REFUSALS;
		}
		l->cut |= hp_clock_ns() >= end_ns;
	}
	hp_heap_unlock();
}

bool hp_repair_tick(void)
{
	struct hp_there there = { 0, 0 };
	struct hp_repair_look l = { .mapped = HP_STAT_GET(thp_bytes) };

	if (!hp_span.thp || hp_sandboxed || !l.mapped || !kernel_can())
		return false;
	if (hp_repair_is_due(&repair.pause, l.mapped) && hp_heap_there(&there)) {
		l.filled = there.huge + there.other;
		if (there.other)
			look(&l);
		hp_repair_note(&repair.pause, &l);
	}
	return repair.pause.more;
}

void hp_repair_forget(void)
{
	repair.pause = (struct hp_repair_pause){ .pause = 0 };
	repair.next = 0;
}
