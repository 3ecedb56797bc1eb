/*
 * Reads the tables of another process (look.h).
 */
#include "cmd/look.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define REGIONS_MAX ((uint32_t)1 << 18)
#define PLACES_MAX ((uint32_t)1 << 19)
#define DOMAINS_MAX ((uint32_t)1 << 16)
#define DOMAIN_SIZE_MAX 65536
#define STRIDE_MAX 1024
#define PEERS_MAX 65536 /* peers of a lend that are looked at */
#define STEP 256 /* entries read at a time */
/* At most so many bytes of counters are read: their list may be endless, or may be of thousands of threads. */
#define COUNTS_BYTES_MAX ((uint64_t)256 << 20)
#define PAGES_MAX 65536 /* pages of a region whose backing is read, at most */
#define LOOK_BYTES_MAX ((uint64_t)2 << 30) /* bytes that one look may read, in some seconds */
#define READ_BYTES 512 /* a shorter read counts as so many bytes */
#define LOOKS_MAX 8 /* looks at regions that begin or end meanwhile */

static bool get(const struct hp_source *s, uint64_t addr, void *buf, size_t len)
{
	return addr && s->read(s->arg, addr, buf, len);
}

/* A source with a limit on the bytes that one look may read. So a look ends even if the process's tables are wrong. */
struct limited {
	const struct hp_source *source;
	uint64_t left;
	bool exhausted;
};

static bool read_limited(void *arg, uint64_t addr, void *buf, size_t len)
{
	struct limited *const l = arg;

	l->exhausted |= l->left < len + READ_BYTES;
	if (l->exhausted)
		return false;
	l->left -= len + READ_BYTES;
	return l->source->read(l->source->arg, addr, buf, len);
}

static uint64_t word(const struct hp_source *s, uint64_t addr)
{
	uint64_t w;

	return get(s, addr, &w, sizeof w) ? w : 0;
}

static uint32_t half(const struct hp_source *s, uint64_t addr)
{
	uint32_t w;

	return get(s, addr, &w, sizeof w) ? w : 0;
}

/* Read a member of an entry. It is 0 if the entry is too short. */
static uint64_t word_at(const unsigned char *entry, size_t size, size_t offset)
{
	uint64_t w = 0;

	if (offset <= size && size - offset >= sizeof w)
		memcpy(&w, entry + offset, sizeof w);
	return w;
}

static uint32_t half_at(const unsigned char *entry, size_t size, size_t offset)
{
	uint32_t w = 0;

	if (offset <= size && size - offset >= sizeof w)
		memcpy(&w, entry + offset, sizeof w);
	return w;
}

static size_t least(uint64_t a, uint64_t b)
{
	return (size_t)(a < b ? a : b);
}

/* ------------------------------------------------------------------ domains */

static void read_name(const struct hp_source *s, uint64_t addr, char *ret_, size_t size)
{
	size_t n = 0;

	while (n + 1 < size && get(s, addr + n, &ret_[n], 1) && ret_[n]) {
		if (ret_[n] < ' ' || ret_[n] > '~')
			ret_[n] = '?';
		n++;
	}
	ret_[n] = 0;
}

static int by_number(const void *number, const void *domain)
{
	const uint32_t a = *(const uint32_t *)number, b = ((const struct hp_look_domain *)domain)->number;

	return a < b ? -1 : a > b;
}

/* The domain with this number, or NULL. */
static struct hp_look_domain *numbered(const struct hp_look *look, uint32_t number)
{
	return look->domains ? bsearch(&number, look->domain, look->domains, sizeof *look->domain, by_number) : NULL;
}

static const struct hp_look_domain *same(const struct hp_look *before, const struct hp_look_domain *d)
{
	const struct hp_look_domain *was = before ? numbered(before, d->number) : NULL;

	return was && was->address == d->address && was->ref == d->ref ? was : NULL;
}

/* Compute the growth of each counter since the last look. If a counter went back, it began anew, but the hits of a
 * registration may have been missed, or have wrapped. */
static void differ(struct hp_look_domain *d, const struct hp_look_domain *was)
{
#define DIFFERENCE(name, unit, sentence)                                                                               \
	d->since.name = was && was->stats.name <= d->stats.name ? d->stats.name - was->stats.name : d->stats.name;
	HUGEPIN_DOMAIN_STATS_LIST(DIFFERENCE)
#undef DIFFERENCE
	if (was && was->stats.hits > d->stats.hits)
		d->since.hits = 0;
	/* Failed pins are among the misses, but not among the pins. */
	d->pins = d->since.hits + d->since.misses - least(d->since.nobufs, d->since.misses);
}

/* ------------------------------------------------------------------ lends */

static uint64_t bytes_of(const struct hp_look_peer *p)
{
	const uint64_t sum = p->stats.lent_bytes + p->stats.borrowed_bytes;

	return sum < p->stats.lent_bytes ? UINT64_MAX : sum;
}

/* Keep the peers with most bytes, in this order. */
static void add_peer(struct hp_look_domain *d, const struct hp_look_peer *p)
{
	uint32_t at = d->peers_shown;

	if (!p->stats.lent && !p->stats.borrowed)
		return;
	d->peers++;
	while (at && bytes_of(&d->peer[at - 1]) < bytes_of(p)) {
		if (at < HP_LOOK_PEERS)
			d->peer[at] = d->peer[at - 1];
		at--;
	}
	if (at < HP_LOOK_PEERS)
		d->peer[at] = *p;
	d->peers_shown += d->peers_shown < HP_LOOK_PEERS;
}

static void read_lend(const struct hp_source *s, struct hp_look *look, struct hp_look_domain *d, uint64_t lend)
{
	__typeof__(look->view.lend) *v = &look->view.lend;
	const uint64_t table = word(s, lend + v->table);
	uint32_t peers = half(s, lend + v->peers);
	unsigned char raw[STRIDE_MAX];

	d->lends = true;
	d->lent = word(s, lend + v->lent);
	d->idle = word(s, lend + v->idle);
	if (peers > PEERS_MAX) {
		peers = PEERS_MAX;
		look->partial = true;
	}
	for (uint32_t i = 0; i < peers; i++) {
		struct hp_look_peer p = { .number = i };

		if (!table || !get(s, table + (uint64_t)i * v->stride, raw, v->stride)) {
			look->partial = true;
			return;
		}
		memcpy(&p.stats, raw + v->stats, least(least(v->stats_size, sizeof p.stats), v->stride - v->stats));
		add_peer(d, &p);
	}
}

/* Room for one more domain. The struct is large, so memory is taken as domains are found. */
static struct hp_look_domain *new_domain(struct hp_look *look)
{
	struct hp_look_domain *more;

	if (!(look->domains & (look->domains - 1))) { /* a power of two is full, and so is nothing */
		const size_t room = look->domains ? 2 * (size_t)look->domains : 1;

		more = realloc(look->domain, room * sizeof *more);
		if (!more)
			return NULL;
		look->domain = more;
	}
	return &look->domain[look->domains];
}

/* Returns whether registrations have begun or ended since these statistics were read before. */
static bool read_stats(const struct hp_source *s, const struct hp_look *look, struct hp_look_domain *d)
{
	const __typeof__(look->view.domain) *v = &look->view.domain;
	const struct hugepin_domain_stats before = d->stats;
	const size_t len = v->stats > v->size ? 0 : least(least(v->stats_size, sizeof d->stats), v->size - v->stats);

	if (!get(s, d->address + v->stats, &d->stats, len))
		d->stats = before;
	return d->stats.registered != before.registered || d->stats.deregistered != before.deregistered;
}

static bool read_all_stats(const struct hp_source *s, struct hp_look *look)
{
	bool changed = false;

	for (unsigned i = 0; i < look->domains; i++)
		changed |= read_stats(s, look, &look->domain[i]);
	return changed;
}

static int read_domain(const struct hp_source *s, struct hp_look *look, uint32_t number)
{
	__typeof__(look->view.domain) *v = &look->view.domain;
	struct hp_look_domain *d = new_domain(look);
	unsigned char raw[DOMAIN_SIZE_MAX];

	if (!d)
		return -ENOMEM;
	*d = (struct hp_look_domain){ .number = number };
	d->address = word(s, v->domains + number * sizeof(uint64_t));
	if (!get(s, d->address, raw, v->size))
		return 0;
	d->ref = word_at(raw, v->size, v->ref);
	d->policy = half_at(raw, v->size, v->policy);
	d->helper = word_at(raw, v->size, v->helper);
	read_name(s, word_at(raw, v->size, v->backend_name), d->backend, sizeof d->backend);
	read_stats(s, look, d);
	if (look->view.lend.stride && word_at(raw, v->size, look->view.lend.hooks))
		read_lend(s, look, d, word_at(raw, v->size, look->view.lend.lend));
	look->domains++;
	return 0;
}

static int read_domains(const struct hp_source *s, struct hp_look *look)
{
	const uint32_t used = half(s, look->view.domain.used), all = used < DOMAINS_MAX ? used : DOMAINS_MAX;
	uint8_t open[STEP];
	int err = 0;

	for (uint32_t at = 0, n; at < all && !err; at += n) {
		n = all - at < STEP ? all - at : STEP;
		if (!get(s, look->view.domain.open + at, open, n)) {
			look->partial = true;
			break;
		}
		for (uint32_t i = 0; i < n && !err; i++)
			if (open[i] && look->domains == HP_LOOK_DOMAINS)
				look->domains_more++;
			else if (open[i])
				err = read_domain(s, look, at + i);
	}
	return err;
}

static int more_pinned_first(const void *a_, const void *b_)
{
	const struct hp_look_domain *a = *(struct hp_look_domain *const *)a_, *b = *(struct hp_look_domain *const *)b_;

	if (a->stats.pinned_bytes != b->stats.pinned_bytes)
		return a->stats.pinned_bytes > b->stats.pinned_bytes ? -1 : 1;
	return a->number < b->number ? -1 : a->number > b->number;
}

static int choose_shown(struct hp_look *look)
{
	struct hp_look_domain **const d = calloc((size_t)look->domains + 1, sizeof *d);

	if (!d)
		return -ENOMEM;
	for (unsigned i = 0; i < look->domains; i++)
		d[i] = &look->domain[i];
	qsort(d, look->domains, sizeof *d, more_pinned_first);
	for (unsigned i = 0; i < look->domains && i < HP_LOOK_SHOWN; i++)
		d[i]->shown = true;
	free(d);
	return 0;
}

/* ------------------------------------------------------------------ regions */

struct owner {
	uint64_t address;
	uint32_t number;
};

static int by_address(const void *a_, const void *b_)
{
	const uint64_t a = ((const struct owner *)a_)->address, b = ((const struct owner *)b_)->address;

	return a < b ? -1 : a > b;
}

static void add_region(struct hp_look *look, const struct owner *owners, const unsigned char *raw, uint32_t index,
		       uint32_t *count)
{
	__typeof__(look->view.region) *v = &look->view.region;
	const size_t size = v->stride;
	const struct owner key = { word_at(raw, size, v->domain), 0 }, *owner;
	struct hp_look_region *r = &look->region[*count];
	const uint32_t state = half_at(raw, size, v->state);

	if (state == HP_LOOK_FREE || state > HP_LOOK_DEAD)
		return;
	*r = (struct hp_look_region){
		.start = word_at(raw, size, v->start),
		.end = word_at(raw, size, v->end),
		.index = index,
		.before = half_at(raw, size, v->made),
		.state = (uint8_t)state,
		.kind = (uint8_t)half_at(raw, size, v->kind),
		.backing = -1,
	};
	owner = look->domains ? bsearch(&key, owners, look->domains, sizeof *owners, by_address) : NULL;
	if (!owner || r->start >= r->end)
		return;
	r->domain = owner->number;
	r->in_heap = r->start - look->view.heap.base < look->view.heap.size;
	++*count;
}

static uint32_t read_regions(const struct hp_source *s, struct hp_look *look, struct owner *owners)
{
	__typeof__(look->view.region) *v = &look->view.region;
	const uint64_t table = word(s, v->regions);
	unsigned char raw[STEP * STRIDE_MAX];
	uint32_t count = 0;

	for (unsigned i = 0; i < look->domains; i++)
		owners[i] = (struct owner){ look->domain[i].address, look->domain[i].number };
	qsort(owners, look->domains, sizeof *owners, by_address);
	for (uint32_t at = 1, n; at < look->used; at += n) {
		n = look->used - at < STEP ? look->used - at : STEP;
		if (!table || !get(s, table + (uint64_t)at * v->stride, raw, (size_t)n * v->stride)) {
			look->partial = true;
			look->used = at;
			break;
		}
		for (uint32_t i = 0; i < n; i++)
			add_region(look, owners, raw + (size_t)i * v->stride, at + i, &count);
	}
	return count;
}

/* ------------------------------------------------------------------ pins */

/* Add the counts of one thread. Read unpins before pins: a pin made and undone in between then counts too much, never
 * below zero. */
static bool add_counts(const struct hp_source *s, struct hp_look *look, uint64_t counts, uint32_t *out)
{
	__typeof__(look->view.counts) *v = &look->view.counts;
	unsigned char raw[STEP * STRIDE_MAX];

	for (uint32_t at = 1, n; at < look->used; at += n) {
		n = look->used - at < STEP ? look->used - at : STEP;
		if (!get(s, counts + (uint64_t)at * v->stride, raw, (size_t)n * v->stride))
			return false;
		for (uint32_t i = 0; i < n; i++) {
			const uint32_t pins = half_at(raw + (size_t)i * v->stride, v->stride, v->pins);
			out[at + i] += pins - half_at(raw + (size_t)i * v->stride, v->stride, v->unpins);
			look->made[at + i] += pins;
		}
	}
	return true;
}

static void read_counts(const struct hp_source *s, struct hp_look *look, uint32_t *out)
{
	__typeof__(look->view.counts) *v = &look->view.counts;
	const uint64_t cost = 4096 + (uint64_t)look->used * v->stride;
	uint64_t owner = word(s, v->first), left = COUNTS_BYTES_MAX;

	for (; owner && left >= cost; left -= cost, owner = word(s, owner + v->next))
		if (!add_counts(s, look, owner + v->counts, out))
			break;
	look->partial |= owner != 0;
}

static int larger_first(const void *a_, const void *b_)
{
	const struct hp_look_region *a = a_, *b = b_;
	const uint64_t a_len = a->end - a->start, b_len = b->end - b->start;

	if (a->domain != b->domain)
		return a->domain < b->domain ? -1 : 1;
	if (a_len != b_len)
		return a_len > b_len ? -1 : 1;
	if (a->out != b->out)
		return a->out > b->out ? -1 : 1;
	return a->start < b->start ? -1 : a->start > b->start;
}

/* ------------------------------------------------------------------ one region, closely */

static void read_backing(const struct hp_source *s, const struct hp_look *look, struct hp_look_region *r)
{
	__typeof__(look->view.heap) *v = &look->view.heap;
	const uint64_t first = (r->start - v->base) >> v->page_shift, last = (r->end - 1 - v->base) >> v->page_shift;
	const uint64_t count = last < first ? 0 : least(last - first, PAGES_MAX - 1) + 1;
	unsigned char raw[STEP * STRIDE_MAX];

	for (uint64_t at = 0, n; at < count; at += n) {
		n = least(count - at, STEP);
		if (!get(s, v->pages + (first + at) * v->stride, raw, n * v->stride))
			return;
		for (const unsigned char *entry = raw; entry < raw + n * v->stride; entry += v->stride)
			if (entry[v->state] >= v->state_min && entry[v->kind] <= HUGEPIN_KIND_HUGETLB &&
			    (r->backing < 0 || entry[v->kind] < r->backing))
				r->backing = (int8_t)entry[v->kind];
	}
}

static void look_closely(const struct hp_source *s, const struct hp_look *look, const struct hp_look_domain *d,
			 struct hp_look_region *r)
{
	__typeof__(look->view.helper) *v = &look->view.helper;

	if (r->in_heap)
		read_backing(s, look, r);
	if (d->helper && v->stride) {
		const uint64_t ids = word(s, d->helper + v->place_of), places = word(s, d->helper + v->places);
		const uint32_t id = ids ? half(s, ids + r->index * sizeof id) : 0;
		if (id && id < PLACES_MAX && places)
			r->site = word(s, places + (uint64_t)id * v->stride + v->site);
	}
}

/* ------------------------------------------------------------------ all of it */

static bool is_sane(const struct hp_view *v)
{
	if (v->version != HP_VIEW_VERSION || v->size != sizeof *v)
		return false;
	if (v->heap.size && (v->heap.stride > STRIDE_MAX || v->heap.state >= v->heap.stride ||
			     v->heap.kind >= v->heap.stride || v->heap.page_shift > 63))
		return false;
	if (v->lend.stride > STRIDE_MAX || (v->lend.stride && v->lend.stats > v->lend.stride))
		return false;
	return !v->domain.domains || (v->domain.size <= DOMAIN_SIZE_MAX && v->region.stride <= STRIDE_MAX &&
				      v->counts.stride <= STRIDE_MAX);
}

static int read_page(const struct hp_source *s, uint64_t page, struct hp_look *look)
{
	unsigned char raw[HP_STATS_PAGE];
	struct hugepin_stats_page stats;

	if (!get(s, page, raw, sizeof raw))
		return -ESRCH;
	memcpy(&stats, raw, sizeof stats);
	memcpy(&look->view, raw + HP_VIEW_OFFSET, sizeof look->view);
	look->heap_used = stats.magic == HUGEPIN_STATS_MAGIC;
	if (look->view.magic != HP_VIEW_MAGIC)
		return look->heap_used ? -EPROTO : -ESRCH;
	if (!look->view.heap.stride) /* the process is still filling in its view */
		look->view.heap.size = 0;
	if (!is_sane(&look->view))
		return -EPROTO;
	memcpy(&look->heap, &stats.stats, least(stats.size, sizeof stats.stats));
	return 0;
}

/* Add the pins of the regions to their domains, and count those since the last look. Each region knows how many its
 * index had before, perhaps in another domain. */
static void count_pins(struct hp_look *look, const struct hp_look *before, const uint32_t *out, uint32_t regions)
{
	for (uint32_t i = 0; i < regions; i++) {
		struct hp_look_region *const r = &look->region[i];
		struct hp_look_domain *const d = numbered(look, r->domain);
		const uint32_t made = look->made[r->index] - r->before,
			       since = before && r->index < before->used ? look->made[r->index] - before->made[r->index] : made;

		r->out = out[r->index];
		r->pins = before ? (uint32_t)least(made, since) : 0;
		d->out += r->out;
		d->stats.hits += made;
	}
	/* The process has only the hits of registrations that have ended, less those that were none. */
	for (unsigned i = 0; i < look->domains; i++) {
		struct hp_look_domain *const d = &look->domain[i];

		d->stats.hits = (int64_t)d->stats.hits < 0 ? 0 : d->stats.hits;
		if (before)
			differ(d, same(before, d));
	}
}

static int read_tables(const struct hp_source *s, uint32_t details, const struct hp_look *before, struct hp_look *look)
{
	const size_t n = look->used;
	uint32_t *const out = calloc(n, sizeof *out);
	struct owner *const owners = calloc((size_t)look->domains + 1, sizeof *owners);
	uint32_t regions, looks = 0;

	look->made = calloc(n, sizeof *look->made);
	look->region = calloc(n, sizeof *look->region);
	if (!out || !owners || !look->made || !look->region) {
		free(owners);
		free(out);
		return -ENOMEM;
	}
	do { /* hits move from a region that ends to its domain */
		memset(out, 0, n * sizeof *out);
		memset(look->made, 0, n * sizeof *look->made);
		regions = read_regions(s, look, owners);
		read_counts(s, look, out);
	} while (read_all_stats(s, look) && ++looks < LOOKS_MAX);
	free(owners);
	count_pins(look, before, out, regions);
	free(out);
	qsort(look->region, regions, sizeof *look->region, larger_first);
	for (unsigned i = 0, at = 0; i < look->domains; i++) { /* domains are in the order of their numbers */
		struct hp_look_domain *const d = &look->domain[i];
		d->region = &look->region[at];
		for (; at < regions && look->region[at].domain == d->number; at++)
			if (d->regions++ < details)
				look_closely(s, look, d, &look->region[at]);
	}
	return 0;
}

int hp_look(const struct hp_source *source, uint64_t page, uint64_t now_ns, uint32_t details,
	    const struct hp_look *before, struct hp_look *ret_)
{
	struct limited limited = { source, LOOK_BYTES_MAX, false };
	const struct hp_source *const s = &(struct hp_source){ read_limited, &limited };
	struct hp_look *const look = calloc(1, sizeof *look);
	int err = look ? read_page(s, page, look) : -ENOMEM;

	if (!err) {
		look->at_ns = now_ns;
		look->passed_ns = before && now_ns > before->at_ns ? now_ns - before->at_ns : 0;
		if (look->view.domain.domains) {
			err = read_domains(s, look);
			err = err ? err : choose_shown(look);
			/* stride 0: the process is still filling in its view. Reading entries of 0 bytes would never
			 * end. */
			if (look->view.region.stride && look->view.counts.stride)
				look->used = half(s, look->view.region.used);
			if (look->used > REGIONS_MAX)
				look->used = REGIONS_MAX;
			look->used += !look->used;
			err = err ? err : read_tables(s, details, before, look);
			look->partial |= limited.exhausted;
		}
	}
	if (err) {
		if (look)
			hp_look_free(look);
	} else {
		*ret_ = *look;
	}
	free(look);
	return err;
}

void hp_look_free(struct hp_look *look)
{
	free(look->domain);
	free(look->made);
	free(look->region);
	*look = (struct hp_look){ 0 };
}

double hp_look_hit_rate(const struct hp_look_domain *d)
{
	return d->pins ? (double)d->since.hits / (double)d->pins : -1;
}
