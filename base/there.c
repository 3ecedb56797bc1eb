/* See there.h. */
#include "base/there.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/pagescan.h"
#include "base/smaps.h"
#include "base/sys.h"

enum { REGIONS = 32 }; /* regions that one call reports */

static bool by_pagemap(uintptr_t start, uintptr_t end, struct hp_there *there)
{
	struct hp_pagescan_region region[REGIONS];
	struct hp_pagescan s = { .size = sizeof s,
				 .start = start,
				 .end = end,
				 .vec = (uintptr_t)region,
				 .vec_len = REGIONS,
				 .category_inverted = HP_PAGESCAN_ZERO,
				 .category_mask = HP_PAGESCAN_PRESENT | HP_PAGESCAN_ZERO,
				 .return_mask = HP_PAGESCAN_HUGE };
	long fd = hp_sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC), n = -1;
	struct hp_there sum = { 0, 0 };

	while (fd >= 0 && s.start < end && (n = hp_sys(SYS_ioctl, fd, HP_PAGESCAN, &s)) >= 0) {
		for (long i = 0; i < n; i++)
			*(region[i].categories & HP_PAGESCAN_HUGE ? &sum.huge : &sum.other) +=
				region[i].end - region[i].start;
		if (s.walk_end <= s.start)
			break;
		s.start = s.walk_end;
	}
	if (fd >= 0)
		hp_sys(SYS_close, fd);
	if (n < 0)
		return false;
	there->huge += sum.huge;
	there->other += sum.other;
	return true;
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
