#include "base/advice.h"

#include <string.h>

#include "base/base.h"

/* Below these, an observation says nothing about the program. */
#define ELSEWHERE_MIN ((uint64_t)64 << 20) /* bytes beside malloc's: the program's code and libraries have some */
#define FORK_MIN ((uint64_t)64 << 20) /* bytes that a fork copies: some tens of milliseconds */
enum {
	MISSES_MIN = 100, /* pins that were not found: the first pin of a buffer always is one */
	PART_MIN = 10, /* a part counts from one tenth of the whole on */
};

uint64_t hp_run_large_bytes(const struct hp_run *r)
{
	return r->hugetlb_bytes + r->thp_bytes + r->base_bytes;
}

/* The parts were not all measured at the same moment. */
uint64_t hp_run_all_bytes(const struct hp_run *r)
{
	const uint64_t rss = r->rss_peak_bytes - HP_MIN(r->rss_peak_bytes, r->rss_copy_bytes);

	return HP_MAX(r->hugetlb_bytes + rss, hp_run_large_bytes(r) + r->small_bytes);
}

/* Memory that is neither in large nor in small buffers. If nobody knows the small ones, they may be all of it: 0. */
static uint64_t static_bytes(const struct hp_run *r)
{
	return r->static_thp_bytes + r->static_base_bytes;
}

static uint64_t elsewhere_bytes(const struct hp_run *r)
{
	return r->small_unknown ? 0 : hp_run_all_bytes(r) - hp_run_large_bytes(r) - r->small_bytes;
}

static bool is_part(uint64_t part, uint64_t whole)
{
	return part && part >= whole / PART_MIN;
}

static bool wants_pool(const struct hp_run *r)
{
	return r->pages == HP_PAGES_AUTO || r->pages == HP_PAGES_HUGETLB || r->pages == HP_PAGES_1G;
}

static bool wants_thp(const struct hp_run *r)
{
	return r->pages != HP_PAGES_HUGETLB && r->pages != HP_PAGES_BASE;
}

/* What pins lacked that failed, or whose registrations were given back for others: bytes, or registrations. */
static enum hp_verdict judge_room(const struct hp_run *r)
{
	return r->crowded && r->crowded >= HP_MAX(r->evicted, r->nobufs) / 2 ? HP_VERDICT_PIN_COUNT : HP_VERDICT_PIN_BUDGET;
}

/* Why pins did not find memory registered. HP_VERDICT_HUGE: they did, or there is no pin cache. */
static enum hp_verdict judge_pins(const struct hp_run *r)
{
	if (r->nobufs)
		return judge_room(r);
	if (r->misses < MISSES_MIN || !is_part(r->misses, r->pins))
		return HP_VERDICT_HUGE;
	if (r->uncached >= r->misses / 2)
		return HP_VERDICT_PIN_UNCACHED;
	if (r->evicted >= r->misses / 2)
		return judge_room(r);
	return r->invalidated >= r->misses / 2 ? HP_VERDICT_PIN_LOST : HP_VERDICT_PIN_ONCE;
}

/* Why large buffers lie in base pages. The kernel refuses the pool before THP, but THP needs no reservation: if it is
 * switched off, that comes first. */
static enum hp_verdict judge_base(const struct hp_run *r)
{
	if (r->guard || r->pages == HP_PAGES_BASE)
		return HP_VERDICT_ASKED_BASE;
	if (wants_pool(r) && r->pool_denied)
		return HP_VERDICT_POOL_DENIED;
	if (wants_thp(r) && r->thp == HP_THP_PROCESS)
		return HP_VERDICT_THP_PROCESS;
	if (wants_thp(r) && r->thp == HP_THP_NEVER)
		return HP_VERDICT_THP_NEVER;
	if (wants_thp(r) && r->thp == HP_THP_SIZE)
		return HP_VERDICT_THP_SIZE;
	if (wants_pool(r) && r->pool_short)
		return r->hugetlb_bytes ? HP_VERDICT_POOL_SHORT : HP_VERDICT_POOL_EMPTY;
	return HP_VERDICT_THP_SHORT;
}

enum hp_verdict hp_verdict(const struct hp_run *r)
{
	const uint64_t large = hp_run_large_bytes(r), all = hp_run_all_bytes(r);
	const enum hp_verdict pins = judge_pins(r);

	if (pins != HP_VERDICT_HUGE)
		return pins;
	/* A program may ask once for more than there is. If most large requests fail, the heap has no room. */
	if (r->nomem > r->placed)
		return HP_VERDICT_NO_ROOM;
	if (!large && r->small_unknown)
		return HP_VERDICT_NO_HEAP;
	if (r->fork_pool_bytes >= FORK_MIN)
		return HP_VERDICT_FORK;
	if (large < HP_LITTLE_BYTES || !is_part(large, all)) {
		if (static_bytes(r) >= ELSEWHERE_MIN && static_bytes(r) >= all / 2)
			return HP_VERDICT_STATIC;
		if (elsewhere_bytes(r) >= ELSEWHERE_MIN && elsewhere_bytes(r) >= all / 2)
			return HP_VERDICT_ELSEWHERE;
		return HP_MAX(large + r->small_bytes, r->small_unknown ? all : 0) < HP_LITTLE_BYTES ?
			       HP_VERDICT_LITTLE : HP_VERDICT_SMALL;
	}
	if (r->kinds_unknown)
		return HP_VERDICT_UNKNOWN;
	if (is_part(r->sparse_bytes, large))
		return HP_VERDICT_SPARSE;
	return is_part(r->base_bytes, large) ? judge_base(r) : HP_VERDICT_HUGE;
}

const char *hp_verdict_name(enum hp_verdict v)
{
	static const char *const names[] = {
#define NAME(CODE, name) name,
		HP_VERDICTS(NAME)
#undef NAME
	};

	return names[v];
}

/* ------------------------------------------------------------------ sentences */

void hp_line_size(struct hp_line *l, uint64_t bytes)
{
	static const char *const units[] = { " bytes", " KiB", " MiB", " GiB", " TiB" };
	unsigned unit = 0;
	uint64_t tenths;

	if (!bytes) {
		hp_line_text(l, "0");
		return;
	}
	while (unit < 4 && bytes >> 10 * (unit + 1))
		unit++;
	/* One decimal below ten, rounded down. */
	tenths = (bytes >> 10 * unit) * 10 + ((bytes & ((UINT64_C(1) << 10 * unit) - 1)) * 10 >> 10 * unit);
	hp_line_number(l, tenths / 10, 10);
	if (unit && tenths < 100 && tenths % 10) {
		hp_line_text(l, ".");
		hp_line_number(l, tenths % 10, 10);
	}
	hp_line_text(l, units[unit]);
}

void hp_line_percent(struct hp_line *l, uint64_t part, uint64_t whole)
{
	const uint64_t percent = whole ? (uint64_t)((double)part * 100 / (double)whole) : 0;

	if (part && !percent) {
		hp_line_text(l, "under 1 %");
		return;
	}
	hp_line_number(l, percent, 10);
	hp_line_text(l, " %");
}

/* "vm.nr_hugepages=512 would have served 98 %". A pool of more than three quarters of the machine's memory would leave
 * too little for everything else, so no larger one is proposed. Ranks of one machine share its pool. */
static void line_pool(struct hp_line *l, const struct hp_run *r)
{
	const uint64_t ranks = HP_MAX(r->ranks, 1u), here = HP_MAX(r->local_ranks, 1u),
		       missing = (r->base_bytes / ranks * here + HP_PAGE - 1) >> HP_PAGE_SHIFT,
		       most = r->ram_bytes ? r->ram_bytes / 4 * 3 >> HP_PAGE_SHIFT : UINT64_MAX,
		       more = HP_MIN(missing, most > r->pool_pages ? most - r->pool_pages : 0);

	if (!more) {
		hp_line_text(l, "the machine has no memory for a larger one");
		return;
	}
	/* of the default size, which is another one where base pages are larger */
	hp_line_text(l, hp_page_is_pmd() ? "vm.nr_hugepages=" : "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages=");
	hp_line_number(l, r->pool_pages + more, 10);
	if (here > 1) {
		hp_line_text(l, " (for ");
		hp_line_number(l, here, 10);
		hp_line_text(l, " ranks)");
	}
	hp_line_text(l, " would have served ");
	hp_line_percent(l, r->hugetlb_bytes + r->thp_bytes + HP_MIN((more << HP_PAGE_SHIFT) / here * ranks, r->base_bytes),
			hp_run_large_bytes(r));
}

/* What the pool could do where THP is off: "; vm.nr_hugepages=512 would have served 98 %". */
static void line_pool_instead(struct hp_line *l, const struct hp_run *r)
{
	if (!wants_pool(r))
		return;
	hp_line_text(l, r->hugetlb_bytes ? ", and the hugetlb pool was too small: " : ", and the hugetlb pool was empty: ");
	line_pool(l, r);
}

/* "91 % of the large buffers lay in base pages: " */
static void line_base(struct hp_line *l, const struct hp_run *r)
{
	hp_line_percent(l, r->base_bytes, hp_run_large_bytes(r));
	hp_line_text(l, " of the large buffers lay in base pages: ");
}

/* A base page costs a fault each, and so does a hugepage. */
static void line_huge(struct hp_line *l, const struct hp_run *r)
{
	const uint64_t huge = r->hugetlb_bytes + r->thp_bytes;

	hp_line_percent(l, huge, hp_run_large_bytes(r));
	hp_line_text(l, " of the large buffers lay in hugepages: up to ");
	hp_line_number(l, huge / hp_base_page - (huge >> HP_PAGE_SHIFT), 10);
	hp_line_text(l, " page faults fewer than in base pages");
}

static void line_misses(struct hp_line *l, const struct hp_run *r)
{
	hp_line_percent(l, r->misses, r->pins);
	hp_line_text(l, " of the pins had to register: ");
}

/* "3 pins failed with ENOBUFS: ", or "40 % of the pins had to register: " */
static void line_room(struct hp_line *l, const struct hp_run *r)
{
	if (r->nobufs) {
		hp_line_number(l, r->nobufs, 10);
		hp_line_text(l, " pins failed with ENOBUFS: ");
	} else {
		line_misses(l, r);
	}
}

static void line_budget(struct hp_line *l, const struct hp_run *r)
{
	line_room(l, r);
	hp_line_text(l, "the budget of the pin cache");
	if (r->budget_bytes) {
		hp_line_text(l, ", ");
		hp_line_size(l, r->budget_bytes);
		hp_line_text(l, ",");
	}
	hp_line_text(l, " is too small; a higher `ulimit -l` raises it");
}

char *hp_verdict_text(const struct hp_run *r, char *buf, size_t size)
{
	struct hp_line line = { buf, buf + size }, *l = &line;

	switch (hp_verdict(r)) {
	case HP_VERDICT_LITTLE:
		hp_line_text(l, "malloc gave ");
		hp_line_size(l, hp_run_large_bytes(r) + r->small_bytes);
		hp_line_text(l, ": too little memory to gain from hugepages");
		break;
	case HP_VERDICT_SMALL:
		hp_line_percent(l, hp_run_large_bytes(r), hp_run_all_bytes(r));
		hp_line_text(l, r->small_unknown ? " of the memory is in buffers of hugepin: little to gain here" :
						   " of the memory is in buffers of 32 KiB and more: little to gain here");
		break;
	case HP_VERDICT_NO_ROOM:
		hp_line_number(l, r->nomem, 10);
		hp_line_text(l, " large requests found no room in the heap, and ");
		hp_line_number(l, r->placed, 10);
		hp_line_text(l, " found some: a limit of addresses or data (`ulimit -v`, `ulimit -d`) may be too low");
		break;
	case HP_VERDICT_NO_HEAP:
		hp_line_text(l, "no buffer lay in hugepages; with LD_PRELOAD=libhugepin-malloc.so.0 the large ones of malloc do");
		break;
	case HP_VERDICT_FORK:
		hp_line_text(l, "a fork had to wait until ");
		hp_line_size(l, r->fork_pool_bytes);
		hp_line_text(l, " of the pool were copied for the child: HUGEPIN_PAGES=thp avoids the copy");
		break;
	case HP_VERDICT_ELSEWHERE:
		hp_line_percent(l, elsewhere_bytes(r), hp_run_all_bytes(r));
		hp_line_text(l, " of the memory (");
		hp_line_size(l, elsewhere_bytes(r));
		hp_line_text(l, ") is not malloc's: the program or its runtime maps it; HUGEPIN_MMAP=thp may help there");
		break;
	case HP_VERDICT_STATIC:
		hp_line_percent(l, static_bytes(r), hp_run_all_bytes(r));
		hp_line_text(l, " of the memory (");
		hp_line_size(l, static_bytes(r));
		hp_line_text(l, ") is static, ");
		hp_line_percent(l, r->static_thp_bytes, static_bytes(r));
		hp_line_text(l, " of that in THP");
		if (is_part(r->static_base_bytes, static_bytes(r)))
			hp_line_text(l, "; HUGEPIN_IMAGE=bss or =data puts it there");
		break;
	case HP_VERDICT_UNKNOWN:
		hp_line_text(l, "the kernel does not tell which pages the large buffers got (no /proc)");
		break;
	case HP_VERDICT_ASKED_BASE:
		line_base(l, r);
		hp_line_text(l, r->guard ? "HUGEPIN_GUARD=1 asks for that" : "HUGEPIN_PAGES=base asks for that");
		break;
	case HP_VERDICT_SPARSE:
		hp_line_text(l, "the program touches little of its large buffers: ");
		hp_line_size(l, r->sparse_bytes);
		hp_line_text(l, " were mapped in base pages, since hugepages would have been filled with zeros for nothing");
		break;
	case HP_VERDICT_POOL_EMPTY:
		hp_line_text(l, "the hugetlb pool was empty: ");
		line_pool(l, r);
		break;
	case HP_VERDICT_POOL_SHORT:
		hp_line_text(l, "the hugetlb pool served ");
		hp_line_percent(l, r->hugetlb_bytes, hp_run_large_bytes(r));
		hp_line_text(l, " of the large buffers: ");
		line_pool(l, r);
		break;
	case HP_VERDICT_POOL_DENIED:
		line_base(l, r);
		hp_line_text(l, "a cgroup or a NUMA policy kept pages of the hugetlb pool back; see `hugepin info`");
		break;
	case HP_VERDICT_THP_NEVER:
		hp_line_text(l, "THP is disabled (\"never\" in transparent_hugepage/enabled)");
		line_pool_instead(l, r);
		break;
	case HP_VERDICT_THP_SIZE:
		hp_line_text(l, "THP is disabled for 2 MiB (transparent_hugepage/hugepages-2048kB/enabled)");
		line_pool_instead(l, r);
		break;
	case HP_VERDICT_THP_PROCESS:
		hp_line_text(l, "THP is disabled for this process (PR_SET_THP_DISABLE)");
		line_pool_instead(l, r);
		break;
	case HP_VERDICT_THP_SHORT:
		line_base(l, r);
		hp_line_text(l, "the kernel had no free hugepages for THP, or they were touched in part before THP was had");
		break;
	case HP_VERDICT_HUGE:
		line_huge(l, r);
		break;
	case HP_VERDICT_PIN_BUDGET:
		line_budget(l, r);
		break;
	case HP_VERDICT_PIN_COUNT:
		line_room(l, r);
		hp_line_text(l, "the device takes too few registrations at a time; io_uring takes as many as it has slots; "
				"pinned_regions_max is a limit, too");
		break;
	case HP_VERDICT_PIN_UNCACHED:
		line_misses(l, r);
		hp_line_text(l, "their memory cannot be cached (shared, a file's, or nobody watches it); hugepin_pin(3)");
		break;
	case HP_VERDICT_PIN_LOST:
		line_misses(l, r);
		hp_line_text(l, "their memory was unmapped between uses; memory of malloc stays registered");
		break;
	case HP_VERDICT_PIN_ONCE:
		line_misses(l, r);
		hp_line_text(l, "most memory is pinned once, so a cache cannot help");
		break;
	}
	return buf;
}

/* ------------------------------------------------------------------ THP */

static bool chosen(const char *text, const char *choice)
{
	return text && strstr(text, choice);
}

enum hp_thp hp_thp_judge(const char *all, const char *size, bool disabled)
{
	if (disabled)
		return HP_THP_PROCESS;
	if (!all)
		return HP_THP_UNKNOWN;
	if (chosen(size, "[always]") || chosen(size, "[madvise]"))
		return HP_THP_ALLOWED;
	if (chosen(all, "[never]"))
		return HP_THP_NEVER;
	if (!size) /* the one size that there is, of the processor's */
		return hp_page_is_pmd() ? HP_THP_ALLOWED : HP_THP_SIZE;
	return chosen(size, "[never]") ? HP_THP_SIZE : HP_THP_ALLOWED;
}
