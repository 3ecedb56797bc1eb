/*
 * Prints a look at a process, as text or as JSON.
 */
#include "cmd/show.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "cmd/text.h"

#define NS UINT64_C(1000000000)
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const policies[] = {
	[HUGEPIN_POLICY_ARENA] = "arena", [HUGEPIN_POLICY_LRU] = "lru", [HUGEPIN_POLICY_CF11] = "cf11",
	[HUGEPIN_POLICY_PREDICT] = "predict", [HUGEPIN_POLICY_ODP] = "odp", [HUGEPIN_POLICY_NONE] = "none",
	[HUGEPIN_POLICY_HYBRID] = "hybrid",
};
static const char *const backings[] = {
	[HUGEPIN_KIND_BASE] = "base pages", [HUGEPIN_KIND_THP] = "THP", [HUGEPIN_KIND_HUGETLB] = "hugetlb",
};
static const char *const states[] = {
	[HP_LOOK_LIVE] = "live", [HP_LOOK_RETIRED] = "retired", [HP_LOOK_DEAD] = "dead",
};
static const char *const kinds[] = {
	[HP_LOOK_EXTENT] = "extent",
	[HP_LOOK_RUN] = "run",
	[HP_LOOK_FOREIGN] = "foreign",
	[HP_LOOK_UNCACHED] = "uncached",
};

static const char *word_of_number(const char *const *names, size_t count, uint64_t number)
{
	return number < count && names[number] ? names[number] : "?";
}
#define NAME(names, number) word_of_number(names, COUNT(names), (number))

const char *hp_show_policy(uint32_t policy)
{
	return NAME(policies, policy);
}

static double seconds(uint64_t ns)
{
	return (double)ns / 1e9;
}

/* The rate per second of a count since the last look. */
static double per_second(const struct hp_look *look, uint64_t count)
{
	return look->passed_ns ? (double)count / seconds(look->passed_ns) : 0;
}

/* The share of the time since the last look that was spent in work of `ns`. */
static double load(const struct hp_look *look, uint64_t ns)
{
	return look->passed_ns ? (double)ns / (double)look->passed_ns : 0;
}

/* The site as text, such as "solver+0x1234"; "" if it is not known. */
static const char *site_text(const struct hp_process *p, const struct hp_look_region *r, char *buf, size_t size)
{
	const char *file;
	uint64_t address;

	buf[0] = '\0';
	/* The byte in front of the return address belongs to the call. */
	if (r->site && hp_process_code(p, r->site - 1, &file, &address)) {
		const char *const slash = strrchr(file, '/');
		snprintf(buf, size, "%s+0x%" PRIx64, slash ? slash + 1 : file, address);
	}
	return buf;
}

/* The kernel's name for the memory. */
static const char *mapping_name(const struct hp_process *p, const struct hp_look_region *r)
{
	const struct hp_mapping *const m = hp_process_mapping(p, r->start);

	return !m ? "unmapped" : m->name[0] ? m->name : "anonymous";
}

/* ------------------------------------------------------------------ text */

static void print_bytes(FILE *to, const char *before, uint64_t bytes)
{
	char buf[HP_TEXT_MAX];

	fprintf(to, "%s%s", before, hp_text_bytes(bytes, buf));
}

static uint64_t difference(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static void print_heap(FILE *to, const struct hp_look *look)
{
	const struct hugepin_stats *const s = &look->heap;
	const uint64_t mapped = s->hugetlb_bytes + s->thp_bytes + s->base_bytes;

	if (!look->heap_used) {
		fputs("heap      not in use: no buffer of 32 KiB or more so far\n", to);
		return;
	}
	print_bytes(to, "heap      hugetlb ", s->hugetlb_bytes);
	print_bytes(to, "  THP ", s->thp_bytes);
	print_bytes(to, "  base pages or untouched ", s->base_bytes);
	fprintf(to, "  in %" PRIu64 " extents\n", s->extents);
	print_bytes(to, "          live ", difference(s->taken_bytes, s->listed_bytes + s->room_bytes));
	print_bytes(to, "  listed ", s->listed_bytes);
	print_bytes(to, "  room ", s->room_bytes);
	print_bytes(to, "  free ", difference(mapped, s->taken_bytes));
	print_bytes(to, "  peak ", s->taken_peak_bytes);
	fputc('\n', to);
	if (s->pool_short || s->pool_denied || s->thp_failed || s->nomem)
		fprintf(to,
			"          refused by the pool %" PRIu64 ", not populated %" PRIu64 ", not advised as THP %" PRIu64
			", no memory %" PRIu64 "\n",
			s->pool_short, s->pool_denied, s->thp_failed, s->nomem);
	if (s->repaired_bytes) {
		print_bytes(to, "          made hugepages later ", s->repaired_bytes);
		fputc('\n', to);
	}
	if (s->sparse_bytes) {
		print_bytes(to, "          in base pages since little of the buffers is touched ", s->sparse_bytes);
		fputc('\n', to);
	}
	if (s->fork_longest_us >= 1000)
		fprintf(to, "          stopped for %" PRIu64 " ms by a fork: HUGEPIN_PAGES=thp avoids the copy\n",
			s->fork_longest_us / 1000);
}

static void print_rates(FILE *to, const struct hp_look *look, const struct hp_look_domain *d)
{
	const double hits = hp_look_hit_rate(d);

	fprintf(to, "  pins    %.0f/s", per_second(look, d->pins));
	if (hits >= 0)
		fprintf(to, ", hits %.2f %%", hits * 100);
	fprintf(to, ", misses %.0f/s", per_second(look, difference(d->since.misses, d->since.nobufs)));
	if (d->since.nobufs)
		fprintf(to, ", no room %.0f/s", per_second(look, d->since.nobufs));
	fputc('\n', to);
	fprintf(to, "  calls   registering %.0f/s, %.2f %% of the time; deregistering %.0f/s, %.2f %%\n",
		per_second(look, d->since.registered), 100 * load(look, d->since.registered_ns),
		per_second(look, d->since.deregistered), 100 * load(look, d->since.deregistered_ns));
}

static void print_helper(FILE *to, const struct hp_look *look, const struct hp_look_domain *d)
{
	const struct hugepin_domain_stats *const s = &d->stats;

	fprintf(to, "  helper  %.2f %% of a core", 100 * load(look, d->since.helper_ns));
	if (s->sharers)
		fprintf(to, ", sharers %" PRIu64 ", at most %.3f ms late\n", s->sharers,
			(double)s->helper_delay_ns / 1e6);
	else
		fputs(", which others have, or not begun\n", to);
	fprintf(to,
		"          released %" PRIu64 " (%.0f/s), repinned %" PRIu64 " (%.0f/s), late %" PRIu64
		" (%.0f/s), records lost %" PRIu64 "\n",
		s->released, per_second(look, d->since.released), s->repinned, per_second(look, d->since.repinned),
		s->late, per_second(look, d->since.late), s->records_lost);
}

static void print_region(FILE *to, const struct hp_process *p, const struct hp_look *look,
			 const struct hp_look_region *r)
{
	char buf[128];

	fprintf(to, "  %14" PRIx64 " %10s", r->start, hp_text_bytes(r->end - r->start, buf));
	fprintf(to, " %6" PRIu32 " %9.0f  ", r->out, per_second(look, r->pins));
	if (r->in_heap)
		fprintf(to, "heap %s, %s", NAME(kinds, r->kind),
			r->backing < 0 ? "no pages" : NAME(backings, (uint64_t)r->backing));
	else
		fprintf(to, "%s%s", mapping_name(p, r), r->kind == HP_LOOK_UNCACHED ? ", uncached" : "");
	if (r->state != HP_LOOK_LIVE)
		fprintf(to, ", %s", NAME(states, r->state));
	if (site_text(p, r, buf, sizeof buf)[0])
		fprintf(to, ", by %s", buf);
	fputc('\n', to);
}

static void print_lend(FILE *to, const struct hp_look_domain *d)
{
	print_bytes(to, "  lend    lent ", d->lent);
	print_bytes(to, ", idle ", d->idle);
	fprintf(to, "; peers %" PRIu32 "\n", d->peers);
	for (uint32_t i = 0; i < d->peers_shown; i++) {
		const struct hugepin_lend_stats *const s = &d->peer[i].stats;

		fprintf(to, "          %" PRIu32 ":", d->peer[i].number);
		print_bytes(to, " lent ", s->lent_bytes);
		print_bytes(to, ", borrowed ", s->borrowed_bytes);
		fprintf(to,
			"; asked %" PRIu64 ", waited %" PRIu64 ", refused %" PRIu64 ", recalls %" PRIu64
			", recalled %" PRIu64 "\n",
			s->asked, s->waited, s->refused, s->recalls, s->recalled);
	}
}

static void print_domain(FILE *to, const struct hp_process *p, const struct hp_look *look,
			 const struct hp_look_domain *d, uint32_t regions)
{
	const struct hugepin_domain_stats *const s = &d->stats;

	fprintf(to, "\ndomain %" PRIu32 "  %s, %s\n", d->number, d->backend[0] ? d->backend : "?",
		hp_show_policy(d->policy));
	print_bytes(to, "  pinned  ", s->pinned_bytes);
	if (s->bytes_max)
		print_bytes(to, " of ", s->bytes_max);
	else
		fputs(", no budget", to);
	print_bytes(to, ", peak ", s->pinned_peak_bytes);
	fprintf(to, "; out %" PRIu64 "; regions %" PRIu64 ", extents %" PRIu64 ", retired %" PRIu64 "\n", d->out,
		s->regions, s->extents, s->retired);
	print_rates(to, look, d);
	if (d->helper)
		print_helper(to, look, d);
	if (d->lends)
		print_lend(to, d);
	if (d->regions && regions)
		fprintf(to, "  %14s %10s %6s %9s  %s\n", "ADDRESS", "LENGTH", "OUT", "PINS/S", "MEMORY");
	for (uint32_t i = 0; i < d->regions && i < regions; i++)
		print_region(to, p, look, &d->region[i]);
	if (d->regions > regions)
		fprintf(to, "  and %" PRIu32 " more\n", d->regions - regions);
}

void hp_show_text(FILE *to, const struct hp_process *p, const struct hp_look *look, uint32_t regions)
{
	struct timespec now;
	unsigned more = look->domains_more;
	time_t then;
	char clock[16];
	struct tm tm;

	/* The time of the look, which may be drawn again much later. */
	clock_gettime(CLOCK_REALTIME, &now);
	then = (time_t)(((uint64_t)now.tv_sec * NS + (uint64_t)now.tv_nsec - (hp_clock_ns() - look->at_ns)) / NS);
	strftime(clock, sizeof clock, "%H:%M:%S", localtime_r(&then, &tm));
	fprintf(to, "hugepin top: %d (%s), %s, over %.1f s\n", (int)p->pid, p->command, clock,
		seconds(look->passed_ns));
	print_heap(to, look);
	if (!look->domains)
		fputs("pin cache no domain is open\n", to);
	for (unsigned i = 0; i < look->domains; i++)
		if (look->domain[i].shown)
			print_domain(to, p, look, &look->domain[i], regions);
		else
			more++;
	if (more)
		fprintf(to, "\nand %u more domains, with fewer bytes pinned\n", more);
	if (look->partial)
		fputs("\nthe tables could not be read to their end; pins and regions are too few\n", to);
}

/* ------------------------------------------------------------------ JSON */

static void put_number(json_t *object, const char *key, uint64_t value)
{
	json_object_set_new(object, key, json_integer((json_int_t)value));
}

static json_t *region_object(const struct hp_process *p, const struct hp_look_region *r)
{
	json_t *const o = json_object();
	char text[128];

	snprintf(text, sizeof text, "0x%" PRIx64, r->start);
	json_object_set_new(o, "address", json_string(text));
	put_number(o, "length", r->end - r->start);
	put_number(o, "pins_out", r->out);
	put_number(o, "pins", r->pins);
	json_object_set_new(o, "kind", json_string(NAME(kinds, r->kind)));
	json_object_set_new(o, "state", json_string(NAME(states, r->state)));
	json_object_set_new(o, "heap", json_boolean(r->in_heap));
	json_object_set_new(o, "pages",
			    r->backing < 0 ? json_null() : json_string(NAME(backings, (uint64_t)r->backing)));
	json_object_set_new(o, "mapping", json_string(mapping_name(p, r)));
	json_object_set_new(o, "site", site_text(p, r, text, sizeof text)[0] ? json_string(text) : json_null());
	return o;
}

/* The members that are of all peers only are left out. */
static json_t *lend_object(const struct hp_look_domain *d)
{
	json_t *const o = json_object(), *const list = json_array();

	put_number(o, "lent_bytes", d->lent);
	put_number(o, "idle_bytes", d->idle);
	put_number(o, "peers", d->peers);
	for (uint32_t i = 0; i < d->peers_shown; i++) {
		const struct hugepin_lend_stats *const s = &d->peer[i].stats;
		json_t *const p = json_object();

		put_number(p, "peer", d->peer[i].number);
		put_number(p, "lent_bytes", s->lent_bytes);
		put_number(p, "lent", s->lent);
		put_number(p, "borrowed_bytes", s->borrowed_bytes);
		put_number(p, "borrowed", s->borrowed);
		put_number(p, "asked", s->asked);
		put_number(p, "waited", s->waited);
		put_number(p, "refused", s->refused);
		put_number(p, "asks", s->asks);
		put_number(p, "denied", s->denied);
		put_number(p, "recalls", s->recalls);
		put_number(p, "recalled", s->recalled);
		json_array_append_new(list, p);
	}
	json_object_set_new(o, "most", list);
	return o;
}

static json_t *domain_object(const struct hp_process *p, const struct hp_look *look, const struct hp_look_domain *d,
			     uint32_t regions)
{
	json_t *const o = json_object(), *const since = json_object(), *const list = json_array();
	const double hits = hp_look_hit_rate(d);

	put_number(o, "number", d->number);
	json_object_set_new(o, "backend", json_string(d->backend));
	json_object_set_new(o, "policy", json_string(hp_show_policy(d->policy)));
	json_object_set_new(o, "helper", json_boolean(d->helper != 0));
	put_number(o, "pins_out", d->out);
#define PUT(name, unit, sentence) put_number(o, #name, d->stats.name);
	HUGEPIN_DOMAIN_STATS_LIST(PUT)
#undef PUT
	put_number(since, "pins", d->pins);
	put_number(since, "misses", d->since.misses);
	put_number(since, "nobufs", d->since.nobufs);
	json_object_set_new(since, "hit_rate", hits < 0 ? json_null() : json_real(hits));
	put_number(since, "registered", d->since.registered);
	put_number(since, "deregistered", d->since.deregistered);
	json_object_set_new(since, "helper_load", json_real(load(look, d->since.helper_ns)));
	put_number(since, "released", d->since.released);
	put_number(since, "repinned", d->since.repinned);
	put_number(since, "late", d->since.late);
	put_number(since, "records_lost", d->since.records_lost);
	json_object_set_new(o, "interval", since);
	json_object_set_new(o, "lend", d->lends ? lend_object(d) : json_null());
	for (uint32_t i = 0; i < d->regions && i < regions; i++)
		json_array_append_new(list, region_object(p, &d->region[i]));
	json_object_set_new(o, "registrations", list);
	put_number(o, "registrations_more", d->regions > regions ? d->regions - regions : 0);
	return o;
}

int hp_show_json(FILE *to, const struct hp_process *p, const struct hp_look *look, uint32_t regions)
{
	json_t *const o = json_object(), *const heap = json_object(), *const list = json_array();
	struct timespec now;
	int err;

	clock_gettime(CLOCK_REALTIME, &now);
	put_number(o, "pid", (uint64_t)p->pid);
	json_object_set_new(o, "command", json_string(p->command));
	json_object_set_new(o, "time", json_real((double)now.tv_sec + (double)now.tv_nsec / 1e9));
	json_object_set_new(o, "interval", json_real(seconds(look->passed_ns)));
	json_object_set_new(heap, "used", json_boolean(look->heap_used));
#define PUT(name, unit, sentence) put_number(heap, #name, look->heap.name);
	HUGEPIN_STATS_LIST(PUT)
#undef PUT
	json_object_set_new(o, "heap", heap);
	for (unsigned i = 0; i < look->domains; i++)
		json_array_append_new(list, domain_object(p, look, &look->domain[i], regions));
	json_object_set_new(o, "domains", list);
	put_number(o, "domains_more", look->domains_more);
	json_object_set_new(o, "complete", json_boolean(!look->partial));
	err = json_dumpf(o, to, JSON_COMPACT);
	json_decref(o);
	fputc('\n', to);
	return err || fflush(to) ? -1 : 0;
}
