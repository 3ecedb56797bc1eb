/* See summary.h. */
#include "base/summary.h"

#include "base/config.h"
#include "base/text.h"

/* Below these limits, an observation says nothing about the program. */
#define ALL_MIN ((uint64_t)64 << 20) /* bytes of memory of any kind */
#define ELSEWHERE_MIN ((uint64_t)32 << 20) /* bytes; the program's code and libraries have some */
#define FORK_MIN ((uint64_t)64 << 20) /* bytes that a fork copies: some tens of milliseconds */
enum {
	MISSES_MIN = 100, /* pins that were not found: the first pin of a buffer always is one */
	PART_MIN = 10, /* a part counts from one tenth of the whole on */
};

uint64_t hp_run_large_bytes(const struct hp_run *r)
{
	return r->hugetlb_bytes + r->thp_bytes + r->base_bytes;
}

static uint64_t malloc_bytes(const struct hp_run *r)
{
	return hp_run_large_bytes(r) + (r->small_bytes == HP_UNKNOWN ? 0 : r->small_bytes);
}

/* All memory of the process at its peak. The parts were not all measured at the same moment. */
static uint64_t all_bytes(const struct hp_run *r)
{
	return HP_MAX(r->hugetlb_bytes + r->rss_peak_bytes, malloc_bytes(r));
}

bool hp_run_matters(const struct hp_run *r)
{
	const uint64_t large = hp_run_large_bytes(r);

	if (r->pin.domains)
		return true;
	if (r->child)
		return large >= r->inherited_bytes + HP_LITTLE_BYTES;
	return large >= HP_LITTLE_BYTES || all_bytes(r) >= ALL_MIN;
}

/* ------------------------------------------------------------------ advice */

static bool is_part(uint64_t part, uint64_t whole)
{
	return part && part >= whole / PART_MIN;
}

static const char *say(struct hp_line *l, const char *code, const char *text, const uint64_t *values)
{
	hp_line_say(l, text, values);
	return code;
}
#define ADVISE(code, text, ...) return say(l, code, text, HP_VALUES(__VA_ARGS__))

/* "vm.nr_hugepages=512 would have served 98 %". No pool of more than three quarters of the machine's memory is
 * proposed, because that would leave too little for everything else. Ranks of one machine share its pool. */
static const char *advise_pool(struct hp_line *l, const char *code, const struct hp_run *r)
{
	const uint64_t ranks = HP_MAX(r->ranks, 1u), here = HP_MAX(r->local_ranks, 1u),
		       rest = r->thp_bytes + r->base_bytes, /* buffers take the pool first */
		       missing = (rest / ranks * here + HP_PAGE - 1) >> HP_PAGE_SHIFT,
		       most = r->ram_bytes ? r->ram_bytes / 4 * 3 >> HP_PAGE_SHIFT : UINT64_MAX,
		       more = HP_MIN(missing, most > r->pool_pages ? most - r->pool_pages : 0),
		       served = HP_MIN((more << HP_PAGE_SHIFT) / here * ranks, rest);

	if (!more)
		ADVISE(code, "the machine has no memory for a larger one");
	/* of the default size, which differs where base pages are larger */
	HP_SAY(l, hp_page_is_pmd() ? "vm.nr_hugepages=#" : "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages=#",
	       r->pool_pages + more);
	HP_SAY(l, here > 1 ? " (for # ranks)" : "", here);
	ADVISE(code, " would have served %", r->hugetlb_bytes + served, hp_run_large_bytes(r));
}

/* The reason why pins did not find their memory registered. NULL: they did, or there is no pin cache. */
static const char *advise_pins(struct hp_line *l, const struct hp_run *r)
{
	const struct hugepin_domain_stats *p = &r->pin.stats;
	const uint64_t misses = p->misses, pins = HP_MAX(r->pin.pins, misses),
		       few = p->crowded + (p->bytes_max ? 0 : p->refused);

	if (!p->nobufs && (misses < MISSES_MIN || !is_part(misses, pins)))
		return NULL;
	if (p->nobufs)
		HP_SAY(l, "# pins failed with ENOBUFS: ", p->nobufs);
	else
		HP_SAY(l, "% of the pins had to register: ", misses, pins);
	if (!p->nobufs && p->uncached >= misses / 2)
		ADVISE("pin-uncached",
		       "their memory cannot be cached (shared, a file's, or nobody watches it); hugepin_pin(3)");
	/* The resource, registrations or bytes, for want of which pins failed or registrations were given up for
	 * others. Without a budget a refusal is for want of registrations. */
	if ((p->nobufs || p->evicted >= misses / 2) && few && few >= HP_MAX(p->evicted, p->nobufs) / 2)
		ADVISE("pin-count",
		       "the device takes too few registrations at a time; io_uring takes as many as it has slots; "
		       "pinned_regions_max is a limit, too");
	if (p->nobufs || p->evicted >= misses / 2) {
		HP_SAY(l, "the budget of the pin cache is too small; ");
		ADVISE("pin-budget", r->pin.limited ? "a higher `ulimit -l` raises it" :
						      "the program, or HUGEPIN_PIN_BUDGET, has set it");
	}
	if (p->invalidated >= misses / 2)
		ADVISE("pin-lost", "their memory was unmapped between uses; memory of malloc stays registered");
	ADVISE("pin-once", "most memory is pinned once, so a cache cannot help");
}

/* Little memory is in large buffers, so say where it is instead. */
static const char *advise_elsewhere(struct hp_line *l, const struct hp_run *r)
{
	/* without memory that the proposed option has put in hugepages already */
	const uint64_t all = all_bytes(r), rest = r->small_bytes == HP_UNKNOWN ? 0 : all - malloc_bytes(r),
		       other = rest - HP_MIN(rest, r->heap.image_bytes);

	if (other >= ELSEWHERE_MIN && other >= all / 2)
		ADVISE("not-malloc",
		       "% of the memory (@) is not malloc's; HUGEPIN_IMAGE=bss may help if it is static, "
		       "a setting of the program's own if the program or its runtime maps it",
		       other, all, other);
	if (is_part(r->heap.image_bytes, all))
		ADVISE("image",
		       "HUGEPIN_IMAGE asked for THP for @ of the program's own image; large buffers have @, % of the "
		       "memory",
		       r->heap.image_bytes, hp_run_large_bytes(r), hp_run_large_bytes(r), all);
	ADVISE("mostly-small", "large buffers have @, % of the memory: too little to gain from hugepages",
	       hp_run_large_bytes(r), hp_run_large_bytes(r), all);
}

/* The reason why large buffers lie in base pages. If THP is switched off, say this first, although the kernel refuses
 * the pool before THP, because THP needs no reservation. */
static const char *advise_base(struct hp_line *l, const struct hp_run *r)
{
	const uint64_t large = hp_run_large_bytes(r);
	const bool pool = r->pages == HP_PAGES_AUTO || r->pages == HP_PAGES_HUGETLB || r->pages == HP_PAGES_1G,
		   thp_off = r->thp_off && r->pages != HP_PAGES_HUGETLB;

	if (r->pages == HP_PAGES_BASE)
		ADVISE("base-pages-asked", "% of the large buffers lay in base pages: HUGEPIN_PAGES=base asks for that",
		       r->base_bytes, large);
	if (pool && r->heap.pool_denied)
		ADVISE("pool-denied",
		       "% of the large buffers lay in base pages: a cgroup or a NUMA policy kept pages of the "
		       "hugetlb pool back; see `hugepin info`",
		       r->base_bytes, large);
	if (thp_off)
		HP_SAY(l, "THP is off for this process (transparent_hugepage/enabled, or PR_SET_THP_DISABLE)");
	if (thp_off && !pool)
		return "thp-off";
	if (thp_off || (pool && r->heap.pool_short)) {
		HP_SAY(l, thp_off ? ", and the hugetlb pool served % of the large buffers" :
				    "the hugetlb pool served % of the large buffers", r->hugetlb_bytes, large);
		HP_SAY(l, r->thp_bytes ? ", THP %: " : ": ", r->thp_bytes, large);
		return advise_pool(l, thp_off ? "thp-off" : "pool-short", r);
	}
	ADVISE("thp-short",
	       "% of the large buffers lay in base pages: the kernel had no THP of 2 MiB for them (see `hugepin "
	       "info`), or they were touched in part before",
	       r->base_bytes, large);
}

const char *hp_run_advice(struct hp_line *l, const struct hp_run *r)
{
	const uint64_t large = hp_run_large_bytes(r), huge = r->hugetlb_bytes + r->thp_bytes;
	const char *pins = advise_pins(l, r);

	if (pins)
		return pins;
	/* A program may once ask for more than there is. But if most large requests fail, the heap has no room. */
	if (r->heap.nomem > r->heap.placed)
		ADVISE("no-room",
		       "large requests that found no room in the heap: #, that found some: #: a limit of addresses or data "
		       "(`ulimit -v`, `ulimit -d`) may be too low",
		       r->heap.nomem, r->heap.placed);
	if (!large && r->small_bytes == HP_UNKNOWN)
		ADVISE("no-heap",
		       "no buffer lay in hugepages; with LD_PRELOAD=libhugepin-malloc.so.0 the large ones of malloc "
		       "do");
	if (r->fork_pool_bytes >= FORK_MIN)
		ADVISE("fork-copied",
		       "a fork had to wait # ms until @ of the pool were copied for the child: HUGEPIN_PAGES=thp avoids "
		       "the copy",
		       r->heap.fork_longest_us / 1000, r->fork_pool_bytes);
	if (large < HP_LITTLE_BYTES || !is_part(large, all_bytes(r)))
		return advise_elsewhere(l, r);
	if (r->kinds_unknown)
		ADVISE("unknown", "the kernel does not tell which pages the large buffers got (no /proc)");
	if (is_part(r->heap.sparse_bytes, large))
		ADVISE("touched-little",
		       "the program touches little of its large buffers: @ were mapped in base pages, since "
		       "hugepages would have been filled with zeros for nothing",
		       r->heap.sparse_bytes);
	if (is_part(r->base_bytes, large))
		return advise_base(l, r);
	/* A base page costs a fault each, and so does a hugepage. */
	ADVISE("huge", "% of the large buffers lay in hugepages: up to # page faults fewer than in base pages", huge,
	       large, huge / hp_base_page - (huge >> HP_PAGE_SHIFT));
}

/* ------------------------------------------------------------------ the summary */

/* "hugepin[4711] sort: ", "hugepin[4711] solver rank 3: ", or "hugepin[16 ranks] solver: ". */
static void begin_line(struct hp_line *l, const struct hp_run *r)
{
	HP_SAY(l, r->ranks > 1 ? "hugepin[# ranks] " : "hugepin[#] ", r->ranks > 1 ? r->ranks : (uint64_t)r->pid);
	hp_line_text(l, r->name);
	HP_SAY(l, r->rank >= 0 && r->ranks <= 1 ? " rank #: " : ": ", (uint64_t)r->rank);
}

static void large_line(struct hp_line *l, const struct hp_run *r)
{
	static const char *const kinds[] = { "@ in the hugetlb pool", "@ in THP", "@ in base pages" };
	const uint64_t bytes[] = { r->hugetlb_bytes, r->thp_bytes, r->base_bytes };
	const char *before = ": ";

	begin_line(l, r);
	HP_SAY(l, r->kinds_unknown ? "large buffers: @ asked for" : "large buffers: @ at the peak",
	       hp_run_large_bytes(r));
	for (int i = 0; i < 3; i++)
		if (bytes[i]) {
			hp_line_text(l, before);
			hp_line_say(l, kinds[i], &bytes[i]);
			before = ", ";
		}
	HP_SAY(l, r->ranks > 1 ? "; @ to @ a rank" : "", r->large_min, r->large_max);
	HP_SAY(l, r->fork_peak_bytes ? "; a fork copied @\n" : "\n", r->fork_peak_bytes);
}

void hp_run_summary(struct hp_line *l, const struct hp_run *r)
{
	if (hp_run_large_bytes(r) || r->small_bytes != HP_UNKNOWN)
		large_line(l, r);
	if (r->small_bytes != HP_UNKNOWN) {
		begin_line(l, r);
		HP_SAY(l, "small buffers: @; memory that is not malloc's: @\n", r->small_bytes,
		       all_bytes(r) - malloc_bytes(r));
	}
	if (r->pin.domains) {
		const uint64_t pins = HP_MAX(r->pin.pins, r->pin.stats.misses); /* its own counters may have wrapped */
		begin_line(l, r);
		HP_SAY(l, "pin cache: % of # pins found their memory registered; @ registered at the peak\n",
		       pins - r->pin.stats.misses, pins, pins, r->pin.stats.pinned_peak_bytes);
	}
	begin_line(l, r);
	hp_run_advice(l, r);
	hp_line_text(l, "\n");
}

/* ------------------------------------------------------------------ name and value */

/* list: the run whose name begins the line, and zeros are left out; NULL: for a file */
static void add_number(struct hp_line *l, const struct hp_run *list, const char *group, const char *name,
		       uint64_t value)
{
	if (!group || (list ? !value : value == HP_UNKNOWN))
		return;
	if (list)
		begin_line(l, list);
	hp_line_text(l, group);
	hp_line_text(l, name);
	HP_SAY(l, " #\n", value);
}

static void add_counters(struct hp_line *l, const struct hp_run *r, const struct hp_run *list, const char *heap)
{
#define COUNTER(name, unit, sentence) add_number(l, list, heap, #name, r->heap.name);
	HUGEPIN_STATS_LIST(COUNTER)
#undef COUNTER
	if (!r->pin.domains)
		return;
	add_number(l, list, "pin.", "pins", r->pin.pins);
#define COUNTER(name, unit, sentence) add_number(l, list, "pin.", #name, r->pin.stats.name);
	HUGEPIN_DOMAIN_STATS_LIST(COUNTER)
#undef COUNTER
}

void hp_run_list(struct hp_line *l, const struct hp_run *r)
{
	add_counters(l, r, r, "");
}

void hp_run_file(struct hp_line *l, const struct hp_run *r)
{
	char sentence[240];
	struct hp_line s = { sentence, sentence + sizeof sentence };

	hp_line_text(l, "program ");
	hp_line_text(l, r->name);
	HP_SAY(l, "\npid #\n", (uint64_t)r->pid);
	HP_SAY(l, r->rank >= 0 ? "rank #\n" : "", (uint64_t)r->rank);
#define NUMBER(name, how, group) add_number(l, NULL, group, #name, r->name);
	HP_RUN_NUMBERS(NUMBER)
#undef NUMBER
	add_number(l, NULL, "peak.", "large_bytes", hp_run_large_bytes(r));
	add_counters(l, r, NULL, "heap.");
	hp_line_text(l, "advice.code ");
	hp_line_text(l, hp_run_advice(&s, r));
	hp_line_text(l, "\nadvice.text ");
	hp_line_text(l, sentence);
	hp_line_text(l, "\n");
}

/* ------------------------------------------------------------------ ranks */

#define ADD(a, b) ((a) == HP_UNKNOWN || (b) == HP_UNKNOWN ? HP_UNKNOWN : (a) + (b))
#define MOST(a, b) HP_MAX(a, b)
#define LEAST(a, b) HP_MIN(a, b)
#define OWN(a, b) (a)

void hp_run_add(struct hp_run *sum, const struct hp_run *other)
{
	if (!other->pid)
		return;
	if (!sum->pid) {
		*sum = *other;
		return;
	}
#define NUMBER(name, how, group) sum->name = how(sum->name, other->name);
	HP_RUN_NUMBERS(NUMBER)
#undef NUMBER
	const uint64_t longest_us = HP_MAX(sum->heap.fork_longest_us, other->heap.fork_longest_us);

#define COUNTER(name, unit, sentence) sum->heap.name += other->heap.name;
	HUGEPIN_STATS_LIST(COUNTER)
#undef COUNTER
	sum->heap.fork_longest_us = longest_us;
#define COUNTER(name, unit, sentence) sum->pin.stats.name += other->pin.stats.name;
	HUGEPIN_DOMAIN_STATS_LIST(COUNTER)
#undef COUNTER
	sum->pin.pins += other->pin.pins;
	sum->pin.domains += other->pin.domains;
	sum->pin.limited += other->pin.limited;
}
