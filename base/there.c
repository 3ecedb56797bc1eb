/* See there.h. */
#include "base/there.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/pagescan.h"
#include "base/smaps.h"
#include "base/sys.h"

enum { REGIONS = 32 }; /* regions that one call reports */

typedef void each_region(void *arg, const struct hp_pagescan_region *r);

/* Call each() for the parts of [start, end) that have one of these categories, without pages that are the kernel's page
 * of zeros. */
static bool scan(uintptr_t start, uintptr_t end, uint64_t categories, each_region *each, void *arg)
{
	struct hp_pagescan_region region[REGIONS];
	struct hp_pagescan s = { .size = sizeof s,
				 .start = start,
				 .end = end,
				 .vec = (uintptr_t)region,
				 .vec_len = REGIONS,
				 .category_inverted = HP_PAGESCAN_ZERO,
				 .category_mask = HP_PAGESCAN_ZERO,
				 .category_anyof_mask = categories,
				 .return_mask = HP_PAGESCAN_HUGE };
	long fd = hp_sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC), n = -1;

	while (fd >= 0 && s.start < end && (n = hp_sys(SYS_ioctl, fd, HP_PAGESCAN, &s)) >= 0) {
		for (long i = 0; i < n; i++)
			each(arg, &region[i]);
		if (s.walk_end <= s.start) {
			n = -1;
			break;
		}
		s.start = s.walk_end;
	}
	if (fd >= 0)
		hp_sys(SYS_close, fd);
	return n >= 0;
}

static void add_region(void *there, const struct hp_pagescan_region *r)
{
	struct hp_there *t = there;

	*(r->categories & HP_PAGESCAN_HUGE ? &t->huge : &t->other) += r->end - r->start;
}

static bool by_pagemap(uintptr_t start, uintptr_t end, struct hp_there *there)
{
	struct hp_there sum = { 0, 0 };

	if (!scan(start, end, HP_PAGESCAN_PRESENT, add_region, &sum))
		return false;
	there->huge += sum.huge;
	there->other += sum.other;
	return true;
}

struct parts {
	void (*each)(void *arg, uintptr_t from, uintptr_t to);
	void *arg;
	uintptr_t start, end;
};

/* Call each() for what of a part lies in the range. */
static void give(const struct parts *p, uintptr_t from, uintptr_t to)
{
	from = HP_MAX(from, p->start);
	to = HP_MIN(to, p->end);
	if (from < to)
		p->each(p->arg, from, to);
}

static void tell_part(void *parts, const struct hp_pagescan_region *r)
{
	give(parts, r->start, r->end);
}

/* Whether the page has memory, by its entry of pagemap, or by mincore(2). */
static bool has_memory(uint64_t entry, unsigned char resident)
{
	return entry & (HP_PAGEMAP_PRESENT | HP_PAGEMAP_SWAPPED) || resident & 1;
}

/* As scan(), before Linux 6.7: by an entry for each base page. The kernel's page of zeros counts as memory. The entry
 * of a page of the pool that the kernel is moving says that there is none, but mincore(2) counts that page. */
static bool by_entries(uintptr_t start, uintptr_t end, const struct parts *p)
{
	enum { ENTRIES = 128, LARGER = 16 }; /* LARGER: a test's base page may be larger than the kernel's */
	uint64_t entry[ENTRIES];
	unsigned char resident[ENTRIES * LARGER];
	long fd = hp_sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uintptr_t at = start;

	for (size_t n; fd >= 0 && at < end; at += n * hp_base_page) {
		n = HP_MIN((end - at) / hp_base_page, (size_t)ENTRIES);
		if (hp_sys(SYS_pread64, fd, entry, n * sizeof *entry, at / hp_base_page * sizeof *entry) !=
		    (long)(n * sizeof *entry) ||
		    hp_sys(SYS_mincore, at, n * hp_base_page, resident) != 0)
			break;
		for (size_t i = 0, k; i < n; i = k + 1) {
			for (k = i; k < n && has_memory(entry[k], resident[k]); k++)
				;
			if (k > i)
				give(p, at + i * hp_base_page, at + k * hp_base_page);
		}
	}
	if (fd >= 0)
		hp_sys(SYS_close, fd);
	return at == end;
}

bool hp_there_each(uintptr_t start, uintptr_t end, void (*each)(void *arg, uintptr_t from, uintptr_t to), void *arg)
{
	struct parts p = { each, arg, start, end };

	start &= -hp_base_page;
	end = hp_round_up(end, hp_base_page);
	return !hp_is_filtered() && (scan(start, end, HP_PAGESCAN_PRESENT | HP_PAGESCAN_SWAPPED, tell_part, &p) ||
				     by_entries(start, end, &p));
}

struct copying {
	char *to;
	uintptr_t from, at; /* at: copied up to here */
};

static void copy_part(void *copying, uintptr_t from, uintptr_t to)
{
	struct copying *c = copying;

	from = HP_MAX(from, c->at);
	if (from >= to)
		return;
	memset(c->to + (c->at - c->from), 0, from - c->at);
	memcpy(c->to + (from - c->from), (void *)from, to - from);
	c->at = to;
}

void hp_there_copy(void *to, const void *from, size_t len)
{
	const uintptr_t start = (uintptr_t)from, end = start + len;
	struct copying c = { to, start, start };

	if (hp_there_each(start, end, copy_part, &c))
		memset(c.to + (c.at - start), 0, end - c.at);
	else
		memcpy(c.to + (c.at - start), (void *)c.at, end - c.at);
}

struct within {
	uintptr_t start, end;
	struct hp_there *there;
	bool any; /* the file could be read */
};

static void add_mapping(void *within, const struct hp_smaps *m)
{
	struct within *w = within;

	w->any = true;
	if (m->end <= w->start || m->start >= w->end)
		return;
	w->there->huge += m->huge;
	w->there->other += m->resident > m->huge ? m->resident - m->huge : 0;
}

bool hp_there_is_quick(void)
{
	struct hp_there none = { 0, 0 };
	static _Atomic int quick; /* 1: yes; -1: no; 0: not known yet; relaxed: each thread finds the same answer */

	if (!atomic_load_explicit(&quick, memory_order_relaxed))
		atomic_store_explicit(&quick, by_pagemap(HP_PAGE, 2 * HP_PAGE, &none) ? 1 : -1, memory_order_relaxed);
	return atomic_load_explicit(&quick, memory_order_relaxed) > 0;
}

bool hp_there(uintptr_t start, uintptr_t end, struct hp_there *there)
{
	struct within w = { start, end, there, false };
	char line[4096];

	if (hp_sandboxed)
		return false;
	w.any = by_pagemap(start, end, there);
	if (!w.any)
		hp_smaps_each(line, sizeof line, add_mapping, &w);
	return w.any;
}
