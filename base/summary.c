#include "base/summary.h"

#include <string.h>

/* A process with less memory than this, and no large buffers, has nothing to gain from the heap. */
#define MUCH_BYTES ((uint64_t)64 << 20)

bool hp_summary_matters(const struct hp_summary *s)
{
	const uint64_t large = hp_run_large_bytes(&s->run);

	if (s->domains)
		return true;
	if (s->child)
		return large >= s->inherited_bytes + HP_LITTLE_BYTES;
	return large >= HP_LITTLE_BYTES || hp_run_all_bytes(&s->run) >= MUCH_BYTES || s->image_bytes;
}

/* ------------------------------------------------------------------ the summary */

/* "hugepin[4711] sort: ", "hugepin[4711] solver rank 3: ", or "hugepin[16 ranks] solver: ". */
static void begin_line(struct hp_line *l, const struct hp_summary *s)
{
	hp_line_text(l, "hugepin[");
	hp_line_number(l, s->run.ranks ? s->run.ranks : (uint64_t)s->pid, 10);
	hp_line_text(l, s->run.ranks ? " ranks] " : "] ");
	hp_line_text(l, s->name);
	if (s->rank >= 0 && !s->run.ranks) {
		hp_line_text(l, " rank ");
		hp_line_number(l, (uint64_t)s->rank, 10);
	}
	hp_line_text(l, ": ");
}

/* ": 298 MiB in THP", ", 3 MiB in base pages", or ", all in THP" */
static void add_kind(struct hp_line *l, uint64_t bytes, uint64_t all, const char *kind, bool *first)
{
	if (!bytes)
		return;
	hp_line_text(l, *first && bytes < all ? ": " : ", ");
	if (bytes < all)
		hp_line_size(l, bytes);
	else
		hp_line_text(l, "all");
	hp_line_text(l, kind);
	*first = false;
}

static void large_line(struct hp_line *l, const struct hp_summary *s)
{
	const struct hp_run *r = &s->run;
	bool first = true;

	if (!hp_run_large_bytes(r) && r->small_unknown)
		return;
	begin_line(l, s);
	hp_line_text(l, s->small_inside ? "buffers: " : "large buffers: ");
	hp_line_size(l, hp_run_large_bytes(r));
	if (hp_run_large_bytes(r)) {
		hp_line_text(l, r->kinds_unknown ? " asked for" : " at the peak");
		add_kind(l, r->hugetlb_bytes, hp_run_large_bytes(r), " in the hugetlb pool", &first);
		add_kind(l, r->thp_bytes, hp_run_large_bytes(r), " in THP", &first);
		add_kind(l, r->base_bytes, hp_run_large_bytes(r), " in base pages", &first);
	}
	if (r->ranks > 1) {
		hp_line_text(l, "; ");
		hp_line_size(l, s->large_min);
		hp_line_text(l, " to ");
		hp_line_size(l, s->large_max);
		hp_line_text(l, " a rank");
	}
	if (r->fork_peak_bytes) {
		hp_line_text(l, "; a fork copied ");
		hp_line_size(l, r->fork_peak_bytes);
	}
	hp_line_text(l, "\n");
}

static void small_line(struct hp_line *l, const struct hp_summary *s)
{
	const struct hp_run *r = &s->run;
	const uint64_t mallocs = hp_run_large_bytes(r) + r->small_bytes;

	if (r->small_unknown)
		return;
	begin_line(l, s);
	if (!s->small_inside) {
		hp_line_text(l, "small buffers: ");
		hp_line_size(l, r->small_bytes);
		hp_line_text(l, "; ");
	}
	hp_line_text(l, "memory that is not malloc's: ");
	hp_line_size(l, hp_run_all_bytes(r) - mallocs);
	hp_line_text(l, "\n");
}

/* "1.73 s" */
static void line_seconds(struct hp_line *l, uint64_t us)
{
	const uint64_t hundredths = us / 10000;

	hp_line_number(l, hundredths / 100, 10);
	hp_line_text(l, hundredths % 100 < 10 ? ".0" : ".");
	hp_line_number(l, hundredths % 100, 10);
	hp_line_text(l, " s");
}

static void times_line(struct hp_line *l, const struct hp_summary *s)
{
	if (s->times_unknown)
		return;
	begin_line(l, s);
	hp_line_number(l, s->minor_faults + s->major_faults, 10);
	hp_line_text(l, " page faults");
	if (s->major_faults) {
		hp_line_text(l, " (");
		hp_line_number(l, s->major_faults, 10);
		hp_line_text(l, " of them waited for a disk)");
	}
	hp_line_text(l, "; ");
	line_seconds(l, s->user_us);
	hp_line_text(l, " user, ");
	line_seconds(l, s->system_us);
	hp_line_text(l, " system, ");
	line_seconds(l, s->ns / 1000);
	hp_line_text(l, s->child ? " since the fork\n" : " in all\n");
}

static void pin_line(struct hp_line *l, const struct hp_summary *s)
{
	const struct hp_run *r = &s->run;

	if (!s->domains)
		return;
	begin_line(l, s);
	hp_line_text(l, "pin cache: ");
	if (r->pins) {
		hp_line_percent(l, r->pins - r->misses, r->pins);
		hp_line_text(l, " of ");
	}
	hp_line_number(l, r->pins, 10);
	hp_line_text(l, r->pins ? " pins found their memory registered; " : " pins; ");
	if (r->nobufs) {
		hp_line_number(l, r->nobufs, 10);
		hp_line_text(l, " failed; ");
	}
	hp_line_size(l, r->pinned_peak_bytes);
	hp_line_text(l, " registered at the peak\n");
}

static void image_line(struct hp_line *l, const struct hp_summary *s)
{
	if (!s->image_bytes && !s->image_left_bytes)
		return;
	begin_line(l, s);
	hp_line_text(l, "static memory and text: ");
	hp_line_size(l, s->image_bytes);
	hp_line_text(l, " advised or moved into THP");
	if (s->image_left_bytes) {
		hp_line_text(l, ", ");
		hp_line_size(l, s->image_left_bytes);
		hp_line_text(l, " left alone");
	}
	hp_line_text(l, "\n");
}

void hp_summary_text(struct hp_line *l, const struct hp_summary *s)
{
	char advice[240];

	large_line(l, s);
	small_line(l, s);
	image_line(l, s);
	times_line(l, s);
	pin_line(l, s);
	begin_line(l, s);
	hp_line_text(l, hp_verdict_text(&s->run, advice, sizeof advice));
	hp_line_text(l, "\n");
}

/* ------------------------------------------------------------------ the list */

static void list_line(struct hp_line *l, const struct hp_summary *s, const char *part, const char *name, uint64_t value)
{
	if (!value)
		return;
	begin_line(l, s);
	hp_line_text(l, part);
	hp_line_text(l, name);
	hp_line_text(l, " ");
	hp_line_number(l, value, 10);
	hp_line_text(l, "\n");
}

void hp_summary_list(struct hp_line *l, const struct hp_summary *s, const struct hugepin_stats *heap,
		     const struct hp_pin_sums *pin)
{
#define LIST(name, unit, sentence) list_line(l, s, "", #name, heap->name);
	HUGEPIN_STATS_LIST(LIST)
#undef LIST
	if (!pin)
		return;
	list_line(l, s, "pin.", "pins", pin->pins);
#define LIST(name, unit, sentence) list_line(l, s, "pin.", #name, pin->stats.name);
	HUGEPIN_DOMAIN_STATS_LIST(LIST)
#undef LIST
}

/* ------------------------------------------------------------------ JSON */

/* A string. Bytes beyond ASCII pass as they are; hp_summary_name() has made UTF-8 without control characters of the
 * name. */
static void json_text(struct hp_line *l, const char *text)
{
	hp_line_text(l, "\"");
	for (; *text; text++) {
		hp_line_text(l, *text == '"' || *text == '\\' ? "\\" : "");
		hp_line_text(l, (const char[]){ *text, 0 });
	}
	hp_line_text(l, "\"");
}

static void json_key(struct hp_line *l, const char *before, const char *name)
{
	hp_line_text(l, before);
	hp_line_text(l, "\"");
	hp_line_text(l, name);
	hp_line_text(l, "\": ");
}

static void json_number(struct hp_line *l, const char *before, const char *name, uint64_t value)
{
	json_key(l, before, name);
	hp_line_number(l, value, 10);
}

/* A number, or null if it is not known. */
static void json_known(struct hp_line *l, const char *name, bool known, uint64_t value)
{
	if (known) {
		json_number(l, ",\n  ", name, value);
		return;
	}
	json_key(l, ",\n  ", name);
	hp_line_text(l, "null");
}

void hp_summary_json(struct hp_line *l, const struct hp_summary *s, const struct hugepin_stats *heap,
		     const struct hp_pin_sums *pin)
{
	const struct hp_run *r = &s->run;
	const uint64_t ms = s->ns / 1000000;
	const char *before = "\n    ";
	char advice[240];

	json_key(l, "{\n  ", "program");
	json_text(l, s->name);
	json_number(l, ",\n  ", "pid", (uint64_t)s->pid);
	json_known(l, "rank", s->rank >= 0, (uint64_t)s->rank);
	json_key(l, ",\n  ", "seconds");
	hp_line_number(l, ms / 1000, 10);
	hp_line_text(l, ms % 1000 < 10 ? ".00" : ms % 1000 < 100 ? ".0" : ".");
	hp_line_number(l, ms % 1000, 10);
	json_known(l, "user_ms", !s->times_unknown, s->user_us / 1000);
	json_known(l, "system_ms", !s->times_unknown, s->system_us / 1000);
	json_known(l, "minor_faults", !s->times_unknown, s->minor_faults);
	json_known(l, "major_faults", !s->times_unknown, s->major_faults);
	json_key(l, ",\n  ", "peak");
	json_number(l, "{ ", "large_bytes", hp_run_large_bytes(r));
	json_number(l, ", ", "hugetlb_bytes", r->hugetlb_bytes);
	json_number(l, ", ", "thp_bytes", r->thp_bytes);
	json_number(l, ", ", "base_bytes", r->base_bytes);
	hp_line_text(l, " }");
	json_key(l, ",\n  ", "kinds_known");
	hp_line_text(l, r->kinds_unknown ? "false" : "true");
	json_known(l, "small_bytes", !r->small_unknown, r->small_bytes);
	json_number(l, ",\n  ", "static_thp_bytes", r->static_thp_bytes);
	json_number(l, ",\n  ", "static_base_bytes", r->static_base_bytes);
	json_known(l, "rss_peak_bytes", r->rss_peak_bytes, r->rss_peak_bytes);
	json_number(l, ",\n  ", "rss_copy_bytes", r->rss_copy_bytes);
	json_number(l, ",\n  ", "fork_peak_bytes", r->fork_peak_bytes);
	json_key(l, ",\n  ", "heap");
	hp_line_text(l, "{");
#define NUMBER(name, unit, sentence) json_number(l, before, #name, heap->name), before = ",\n    ";
	HUGEPIN_STATS_LIST(NUMBER)
#undef NUMBER
	hp_line_text(l, "\n  }");
	json_key(l, ",\n  ", "pin");
	if (pin) {
		json_number(l, "{\n    ", "pins", pin->pins);
#define NUMBER(name, unit, sentence) json_number(l, ",\n    ", #name, pin->stats.name);
		HUGEPIN_DOMAIN_STATS_LIST(NUMBER)
#undef NUMBER
		hp_line_text(l, "\n  }");
	} else {
		hp_line_text(l, "null");
	}
	json_key(l, ",\n  ", "advice");
	json_key(l, "{ ", "code");
	json_text(l, hp_verdict_name(hp_verdict(r)));
	json_key(l, ", ", "text");
	json_text(l, hp_verdict_text(r, advice, sizeof advice));
	hp_line_text(l, " }\n}\n");
}

/* ------------------------------------------------------------------ ranks and names */

/* A summary of one process, as a sum over one rank. */
static struct hp_summary as_sum(const struct hp_summary *s)
{
	struct hp_summary sum = *s;

	if (s->pid && !s->run.ranks) {
		sum.run.ranks = 1;
		sum.large_min = sum.large_max = hp_run_large_bytes(&s->run);
	}
	return sum;
}

void hp_summary_add(struct hp_summary *sum, const struct hp_summary *other)
{
	const struct hp_summary more = as_sum(other), *s = &more;
	const struct hp_run *r = &s->run;
	struct hp_run *all = &sum->run;

	*sum = as_sum(sum);
	if (!s->pid)
		return;
	if (!sum->pid) {
		*sum = *s;
		return;
	}
	all->ranks += r->ranks;
	sum->large_min = HP_MIN(sum->large_min, s->large_min);
	sum->large_max = HP_MAX(sum->large_max, s->large_max);
	sum->ns = HP_MAX(sum->ns, s->ns);
	sum->user_us += s->user_us;
	sum->system_us += s->system_us;
	sum->minor_faults += s->minor_faults;
	sum->major_faults += s->major_faults;
	sum->times_unknown |= s->times_unknown;
	sum->domains += s->domains;
	sum->image_bytes += s->image_bytes;
	sum->image_left_bytes += s->image_left_bytes;
	all->hugetlb_bytes += r->hugetlb_bytes;
	all->thp_bytes += r->thp_bytes;
	all->base_bytes += r->base_bytes;
	all->kinds_unknown |= r->kinds_unknown;
	all->small_bytes += r->small_bytes;
	all->small_unknown |= r->small_unknown;
	all->rss_peak_bytes += r->rss_peak_bytes;
	all->rss_copy_bytes += r->rss_copy_bytes;
	all->fork_peak_bytes = HP_MAX(all->fork_peak_bytes, r->fork_peak_bytes);
	all->fork_pool_bytes = HP_MAX(all->fork_pool_bytes, r->fork_pool_bytes);
	all->static_thp_bytes += r->static_thp_bytes;
	all->static_base_bytes += r->static_base_bytes;
	all->pool_short += r->pool_short;
	all->pool_denied += r->pool_denied;
	all->sparse_bytes += r->sparse_bytes;
	all->placed += r->placed;
	all->nomem += r->nomem;
	all->pins += r->pins;
	all->misses += r->misses;
	all->uncached += r->uncached;
	all->evicted += r->evicted;
	all->invalidated += r->invalidated;
	all->nobufs += r->nobufs;
	all->crowded += r->crowded;
	all->pinned_peak_bytes += r->pinned_peak_bytes;
}

/* The length of the character that a name goes on with; 0: what stands there may not be printed. */
static size_t character(const unsigned char *c)
{
	const size_t len = c[0] < 0x80 ? 1 : c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : c[0] < 0xf5 ? 4 : 0;

	for (size_t i = 1; i < len; i++)
		if ((c[i] & 0xc0) != 0x80)
			return 0;
	switch (c[0]) {
	case 0xc2: /* U+0080 to U+009F control a terminal */
	case 0xe0:
		return c[1] < 0xa0 ? 0 : len;
	case 0xed:
		return c[1] < 0xa0 ? len : 0;
	case 0xf0:
		return c[1] < 0x90 ? 0 : len;
	case 0xf4:
		return c[1] < 0x90 ? len : 0;
	default:
		return c[0] < ' ' || c[0] == 0x7f ? 0 : len;
	}
}

void hp_summary_name(char ret_name[32], const char *name)
{
	size_t i = 0;

	while (*name) {
		const size_t len = character((const unsigned char *)name), step = HP_MAX(len, (size_t)1);

		if (i + step > 31)
			break;
		memcpy(ret_name + i, len ? name : "?", step);
		i += step;
		name += step;
	}
	ret_name[i] = 0;
}
