/*
 * Domains: opening and closing, what the service thread does for them, and what comes from outside: memory that goes away,
 * heap memory that is wanted back, fork.
 *
 * Domains are never freed, but closed and used again: the reader of events walks them without a lock.
 */
#include "reg/domain.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>
#include <unistd.h>

#include "base/config.h"
#include "base/service.h"
#include "base/stats.h"
#include "reg/backend/backend.h"
#include "reg/counts.h"
#include "reg/helper.h"
#include "reg/key.h"
#include "reg/share.h"
#include "reg/trace.h"
#include "reg/uffd.h"
#include "reg/locks.h"
#include "reg/unmapping.h"


/* A pin's ref: the domain's number and how often that was used, then the region. */
#define REF(number, use) ((uint64_t)(number) << 58 | (uint64_t)((use) & 0x3ffffff) << 32)
#define REF_NONE (UINT64_MAX << 32) /* of a closed domain: no pin's */

/* A domain whose lock is not to be had for about 10 ms is in a call of a slow device. The service thread, which is there for all,
 * leaves it alone for as long again. */
enum { SOON_YIELDS = 100, SOON_SLEEPS = 10, SOON_SLEEP_NS = 1000000, AGAIN_NS = 10000000 };

static struct {
	struct hp_lock lock;
	hugepin_domain *_Atomic domain[HUGEPIN_DOMAINS_MAX]; /* NULL until first used */
	_Atomic bool open[HUGEPIN_DOMAINS_MAX];
	_Atomic unsigned count; /* of open ones */
	unsigned watched; /* of these, whose foreign memory the kernel watches, or announcements do */
	uint32_t uses; /* never a multiple of 2^26: no ref is 0 */
} domains = { .lock = HP_LOCK_INIT(HP_RANK_OPEN) };

/* For hugepin top (base/stats.h). */
static void expose(void)
{
	__typeof__(&hp_exposed.view.domain) v = &hp_exposed.view.domain;

	v->domains = (uintptr_t)domains.domain;
	v->open = (uintptr_t)domains.open;
	v->count = HUGEPIN_DOMAINS_MAX;
	v->size = sizeof(hugepin_domain);
	v->ref = offsetof(hugepin_domain, ref);
	v->policy = offsetof(hugepin_domain, policy);
	v->helper = offsetof(hugepin_domain, helper);
	v->backend_name = offsetof(hugepin_domain, backend.name);
	v->stats = offsetof(hugepin_domain, stats);
	v->stats_size = sizeof(struct hugepin_domain_stats);
}

void hp_domains_each(void (*each)(hugepin_domain *d, void *arg), void *arg)
{
	for (int i = 0; i < HUGEPIN_DOMAINS_MAX; i++)
		if (domains.open[i])
			each(domains.domain[i], arg);
}

const struct hugepin_backend *hp_domain_backend(hugepin_domain *d, void **ret_ctx)
{
	*ret_ctx = d->ctx;
	return &d->backend;
}

bool hp_domain_mine(const hugepin_domain *d)
{
	return d->pid == getpid();
}

void hp_domain_lock(hugepin_domain *d)
{
	hp_lock(&d->lock);
}

void hp_domain_unlock(hugepin_domain *d)
{
	hp_unlock(&d->lock);
}

void hp_domains_each_held(void (*each)(hugepin_domain *d, void *arg), void *arg)
{
	for (int i = 0; i < HUGEPIN_DOMAINS_MAX; i++) {
		hugepin_domain *d;
		bool last;

		hp_lock(&domains.lock);
		d = domains.domain[i];
		if (!domains.open[i] || d->closing) {
			hp_unlock(&domains.lock);
			continue;
		}
		d->holders++;
		hp_unlock(&domains.lock);
		each(d, arg);
		hp_lock(&domains.lock);
		last = --d->holders == 0;
		hp_unlock(&domains.lock);
		if (last)
			hp_futex_wake(&d->holders);
	}
}

/* Nobody holds it from here on. False: another thread closes it. */
static bool let_close(hugepin_domain *d)
{
	uint32_t holders;

	hp_lock(&domains.lock);
	if (d->closing || !d->pid) {
		hp_unlock(&domains.lock);
		return false;
	}
	d->closing = true;
	while ((holders = d->holders)) {
		hp_unlock(&domains.lock);
		hp_futex_wait(&d->holders, holders, UINT64_MAX);
		hp_lock(&domains.lock);
	}
	hp_unlock(&domains.lock);
	return true;
}

static void end_closing(hugepin_domain *d)
{
	hp_lock(&domains.lock);
	d->closing = false;
	hp_unlock(&domains.lock);
}

bool hp_domain_lock_soon(hugepin_domain *d)
{
	static _Atomic uint32_t never;

	for (int i = 0; i < SOON_YIELDS + SOON_SLEEPS; i++) {
		if (hp_trylock(&d->lock))
			return true;
		if (i < SOON_YIELDS)
			sched_yield();
		else
			hp_futex_wait(&never, 0, SOON_SLEEP_NS);
	}
	return false;
}

/* ------------------------------------------------------------------ the service thread */

static void prefault(const struct hp_hint *h)
{
	uintptr_t start = (uintptr_t)h->addr & ~(HP_BASE_PAGE - 1), end = hp_round_up((uintptr_t)h->addr + h->len, HP_BASE_PAGE);

	hp_populate(start, end - start, true);
}

static void serve(hugepin_domain *d, void *busy)
{
	struct hp_hint hints[HP_HINTS_MAX];
	unsigned n;

	if (!hp_domain_lock_soon(d)) {
		*(bool *)busy = true;
		return;
	}
	hp_domain_drain(d);
	hp_region_bury(d);
	/* After the drain: what goes away from here on will be found registered. */
	hp_lock(&d->queue_lock);
	n = d->hints_count;
	memcpy(hints, d->hints, n * sizeof *hints);
	d->hints_count = 0;
	hp_unlock(&d->queue_lock);
	if (hp_domain_may_register(d)) {
		if (d->policy == HUGEPIN_POLICY_ARENA)
			hp_pin_new_extents(d);
		for (unsigned i = 0; i < n; i++)
			HP_DSTAT(d, prefetched, hp_pin_ahead(d, hints[i].addr, hints[i].len, hints[i].access) == 0);
	}
	hp_unlock(&d->lock);
	/* The opener will register; what it has to wait for then is less. */
	if (d->opener_only)
		for (unsigned i = 0; i < n; i++)
			prefault(&hints[i]);
}

static bool serve_all(void);
static struct hp_job service = { .run = serve_all };

static bool serve_all(void)
{
	bool busy = false;

	hp_domains_each_held(serve, &busy);
	service.again_ns = busy ? hp_clock_ns() + AGAIN_NS : 0;
	return false;
}

struct round {
	uint64_t next_ns;
	struct hp_helper_news news;
};

static void help(hugepin_domain *d, void *round)
{
	struct round *now = round;
	uint64_t due_ns;
	struct hp_helper_news news;

	if (!d->helper)
		return;
	due_ns = hp_helper_serve(d, &news);
	now->news.any |= news.any;
	now->news.crowded |= news.crowded;
	if (news.busy)
		now->next_ns = HP_MIN(now->next_ns, hp_clock_ns() + AGAIN_NS);
	else if (!d->own_clock) /* else whoever moves it has to wake us */
		now->next_ns = HP_MIN(now->next_ns, due_ns);
	else if (news.crowded)
		now->next_ns = HP_MIN(now->next_ns, hp_clock_ns() + HP_CROWDED_NS);
}

static bool help_all(void)
{
	static uint64_t planned_ns = UINT64_MAX;
	struct round now = { .next_ns = UINT64_MAX };
	uint64_t begun_ns = hp_clock_ns();

	hp_lock(&domains.lock); /* none may be closed meanwhile */
	hp_helper_begin(begun_ns > planned_ns ? begun_ns - planned_ns : 0);
	hp_unlock(&domains.lock);
	hp_domains_each_held(help, &now);
	/* The barrier interrupts every thread, so not at each run, but at the last before we sleep for long: it pairs with record()
	 * in pin.c, where what is pushed after it asks for another run. */
	if (!now.news.any) {
		hp_counts_barrier();
		now.next_ns = UINT64_MAX;
		hp_domains_each_held(help, &now);
	}
	if (now.news.any)
		now.next_ns = HP_MIN(now.next_ns, hp_clock_ns() + HP_AGAIN_NS);
	planned_ns = now.next_ns;
	hp_helper_job.again_ns = now.next_ns == UINT64_MAX ? 0 : now.next_ns;
	/* Who pins without a pause gains nothing from us. */
	hp_helper_job.delay_ns = hp_helper_delay_ns(now.news.crowded);
	return false;
}

struct hp_job hp_helper_job = { .run = help_all, .delay_ns = HP_GATHER_NS };

void hp_helper_wake(void)
{
	if (hp_service_running())
		hp_service_ask(&hp_helper_job);
}

void hp_domains_start(void)
{
	hp_service_ask(&service);
}

void hp_domains_wake(void)
{
	if (domains.count && hp_service_running())
		hp_service_ask(&service);
}

/* ------------------------------------------------------------------ memory that goes away */

void hp_domain_push(hugepin_domain *d, void *range_)
{
	const struct hp_range *range = range_;
	unsigned n = 0;

	if (hp_lock_mine(&d->queue_lock)) { /* this one, or another domain's */
		d->all_gone |= HP_ALL_GONE | (range->discarded ? (uint32_t)HP_ALL_DISCARDED : 0u);
		d->attention |= HP_PENDING;
		return;
	}
	hp_lock(&d->queue_lock);
	hp_gone_push(&d->gone, *range);
	d->attention |= HP_PENDING;
	/* A hint is older than the event: the memory that was meant is going. */
	for (unsigned i = 0; i < d->hints_count; i++)
		if ((uintptr_t)d->hints[i].addr >= range->end || (uintptr_t)d->hints[i].addr + d->hints[i].len <= range->start)
			d->hints[n++] = d->hints[i];
	d->hints_count = n;
	hp_unlock(&d->queue_lock);
}

struct forgotten {
	struct hp_range range;
	bool waits; /* for the domain's lock, to say what is in use */
	bool in_use;
	bool left; /* something for the service thread */
};

/* By keys that no pin finds any more. The service thread may have been quicker to hear of the range than who said it. */
static bool is_pinned_still(const hugepin_domain *d, const struct hp_range *range)
{
	const struct hp_region *r;

	TAILQ_FOREACH(r, &d->retired, order)
		if (r->kind != HP_REGION_UNCACHED && r->start < range->end && r->end > range->start && hp_region_pins(r))
			return true;
	return false;
}

static void forget(hugepin_domain *d, void *forgotten)
{
	struct forgotten *f = forgotten;
	unsigned held = hp_locks_held; /* in a backend of another domain, whose lock has the same rank */

	hp_domain_push(d, &f->range);
	if (hp_lock_mine(&d->queue_lock)) { /* a signal handler: whoever was interrupted sees to it */
		f->left = true;
		return;
	}
	/* Whoever has the lock, or comes next, will see to it. We cannot wait for a backend's call, be it one that calls us: then we do
	 * not say what is in use. */
	if (hp_lock_mine(&d->lock) || !(f->waits ? hp_domain_lock_soon(d) : hp_trylock(&d->lock))) {
		f->left = true;
		return;
	}
	hp_domain_drain(d);
	f->in_use |= f->waits && is_pinned_still(d, &f->range);
	f->left |= !TAILQ_EMPTY(&d->dead);
	hp_unlock(&d->lock);
	hp_locks_held = held;
}

static int forget_in_all(const void *addr, size_t len, bool discarded, bool late, bool waits)
{
	struct forgotten f = { .waits = waits };
	uintptr_t end;

	if (!len || __builtin_add_overflow((uintptr_t)addr, len, &end))
		return -EINVAL;
	if (!domains.count)
		return 0;
	f.range.start = (uintptr_t)addr & ~(HP_BASE_PAGE - 1);
	f.range.end = HP_MAX(end, (end + HP_BASE_PAGE - 1) & ~(HP_BASE_PAGE - 1));
	f.range.discarded = discarded;
	f.range.late = late;
	hp_domains_each(forget, &f);
	if (f.left)
		hp_domains_wake();
	return f.in_use ? -EBUSY : 0;
}

int hugepin_forget(const void *addr, size_t len)
{
	return forget_in_all(addr, len, true, false, true);
}

void hugepin_unmapping_(const void *addr, size_t len, enum hp_unmapping how)
{
	__atomic_store_n(&hp_sees_unmaps, true, __ATOMIC_RELAXED);
	if (how == HP_UNMAPPED)
		hp_locks_unmapping(addr, len);
	/* The heap may be giving memory to what a domain is registering: that would be found gone by the next pin. */
	if (hp_heap_placing && (uintptr_t)addr == hp_heap_placing)
		return;
	/* Of discarded pages the kernel tells in time. */
	if (domains.count && !(how == HP_DISCARDED && hp_uffd_works()))
		forget_in_all(addr, len, how != HP_UNMAPPED, how != HP_UNMAPPED, false);
}

bool hugepin_registering_(void)
{
	return hp_registering;
}

/* ------------------------------------------------------------------ what the heap says */

/* As the memory decays, it is tried again at the next tick. Who purges waits. */
static void let_go_of(hugepin_domain *d, void *ticks)
{
	struct hp_region *r, *next;

	if (!*(uint32_t *)ticks)
		hp_lock(&d->lock);
	else if (!hp_domain_lock_soon(d))
		return;
	hp_domain_drain(d);
	for (r = TAILQ_FIRST(&d->live); r; r = next) {
		next = TAILQ_NEXT(r, order);
		if (!hp_region_is_heap(r))
			continue;
		if (hp_region_pins(r)) {
			HP_DSTAT(d, decayed, hp_region_hold_less(d, r, *(uint32_t *)ticks));
		} else if (hp_heap_is_free(r->start, r->end - r->start, *(uint32_t *)ticks)) {
			hp_region_unpublish(r);
			HP_DSTAT(d, decayed, 1);
		}
	}
	hp_region_settle(d);
	hp_region_bury(d);
	hp_unlock(&d->lock);
}

static void let_go(uint32_t ticks)
{
	if (domains.count)
		hp_domains_each_held(let_go_of, &ticks);
}

/* Not when it is opened: the reader of events may still be in a domain that was closed. */
static void make_locks(hugepin_domain *d)
{
	hp_lock_reset(&d->lock);
	d->lock.rank = HP_RANK_DOMAIN;
	hp_lock_reset(&d->queue_lock);
	d->queue_lock.rank = HP_RANK_QUEUE;
}

/* Registrations, rings and devices are the parent's: pins of its domains fail here, and new ones can be opened. Nothing is done
 * before the fork: a signal handler may fork that interrupted us with any lock taken, and others may hold them. */
static void postfork_child(void)
{
	domains.watched = 0;
	domains.count = 0; /* first: tables are zeroed below by madvise, whose interposed form looks for domains to tell of it */
	hp_regions_child();
	hp_uffd_child();
	hp_counts_child();
	hp_locks_child();
	hp_helper_child();
	hp_trace_child();
	hp_lock_reset(&domains.lock);
	service.asked = hp_helper_job.asked = 0;
	for (int i = 0; i < HUGEPIN_DOMAINS_MAX; i++) {
		hugepin_domain *d = domains.domain[i];

		domains.open[i] = false;
		if (!d)
			continue;
		make_locks(d);
		d->holders = 0;
		d->closing = false;
		d->ref = REF_NONE; /* a pin of the parent's cannot be counted back here */
		if (d->pid)
			d->pid = HP_PARENT;
	}
}

static const struct hp_heap_hooks hooks = {
	.grown = hp_domains_wake,
	.let_go = let_go,
	.postfork_child = postfork_child,
};

/* ------------------------------------------------------------------ opening */

static uint64_t monotonic_ns(void *unused)
{
	(void)unused;
	return hp_clock_ns();
}

/* A free place, and memory for it. */
static int place(hugepin_domain **ret_)
{
	for (uint32_t i = 0; i < HUGEPIN_DOMAINS_MAX; i++) {
		hugepin_domain *d = domains.domain[i];

		if (d && (d->pid || d->closing)) /* open, or the parent process's and still to be closed */
			continue;
		if (!d) {
			d = hp_meta_map(sizeof *d);
			if (!d)
				return -ENOMEM;
			d->number = i;
			d->ref = REF_NONE;
			make_locks(d);
			domains.domain[i] = d;
		}
		*ret_ = d;
		return 0;
	}
	return -ENOSPC;
}

/* A child of fork finds it empty, whatever handlers ran: no hit there gives a key of the parent's. */
static void *map_table(size_t size)
{
	int saved = errno;
	void *p = hp_meta_map(size);

	if (p && madvise(p, size, MADV_WIPEONFORK) != 0) {
		munmap(p, size);
		p = NULL;
	}
	errno = saved;
	return p;
}

/* Tables, kept from one use of the domain to the next. */
static int make_tables(hugepin_domain *d)
{
	size_t granules, table_bytes;

	if (!d->hint) {
		d->hint = map_table(HP_HINT_BYTES);
		if (!d->hint)
			return -ENOMEM;
	}
	hp_meta_zero(d->hint, HP_HINT_BYTES);
	d->hint_shift = 64 - HP_HINT_BITS_MIN;
	if (!hp_heap_span(&d->span_base, &d->span_size)) {
		d->span_base = (uintptr_t)1 << 63; /* no pointer lies there */
		d->span_size = 0;
		return 0;
	}
	granules = d->span_size >> HP_PAGE_SHIFT;
	table_bytes = granules * sizeof(struct hp_granule);
	if (!d->discarded) {
		char *table = map_table(table_bytes + granules / 8 + sizeof *d->discarded);

		if (!table)
			return -ENOMEM;
		d->granule = 0;
		d->granule = (uintptr_t)table - (uintptr_t)hp_granule_at(d, d->span_base);
		d->discarded = (uint64_t *)(table + table_bytes);
	}
	memset(d->discarded, 0, (granules + 63) / 64 * sizeof *d->discarded);
	return 0;
}

static int check_attr(const struct hugepin_attr *a)
{
	if (a->policy > HUGEPIN_POLICY_NONE || a->fork > HUGEPIN_FORK_DONTFORK || a->flags || a->access & ~HP_ACCESS_ALL ||
	    a->watch > HUGEPIN_WATCH_NONE)
		return -EINVAL;
	return 0;
}

static uint32_t policy_of(const struct hugepin_attr *a)
{
	static const uint32_t by_name[] = { HUGEPIN_POLICY_ARENA,   HUGEPIN_POLICY_LRU, HUGEPIN_POLICY_CF11,
					    HUGEPIN_POLICY_PREDICT, HUGEPIN_POLICY_ODP, HUGEPIN_POLICY_NONE };

	return a->policy ? a->policy : by_name[hp_config.policy];
}

static enum hp_hold hold_of(const struct hugepin_attr *a)
{
	if (a->fork == HUGEPIN_FORK_DEFAULT)
		return hp_config.fork_mode == HP_FORK_COW ? HP_HOLD_COW : HP_HOLD_COPY;
	return a->fork == HUGEPIN_FORK_COPY ? HP_HOLD_COPY : a->fork == HUGEPIN_FORK_COW ? HP_HOLD_COW : HP_HOLD_DONTFORK;
}

/* The lower of two limits of which 0 means none. */
static uint64_t lower(uint64_t a, uint64_t b, uint64_t none)
{
	a = a ? a : none;
	b = b ? b : none;
	return HP_MIN(a, b);
}

static int set_up(hugepin_domain *d, const struct hugepin_backend *backend, void *ctx, const struct hugepin_attr *a,
		  struct hugepin_limits limits)
{
	int e = make_tables(d);

	if (e)
		return e;
	if (!hp_unseal(d->backend_page, sizeof d->backend_page))
		return -ENOMEM;
	memset(&d->backend, 0, sizeof d->backend);
	memcpy(&d->backend, backend, HP_MIN(backend->size, sizeof d->backend));
	d->own_clock = d->backend.now_ns;
	if (!d->own_clock)
		d->backend.now_ns = monotonic_ns;
	hp_seal(d->backend_page, sizeof d->backend_page);
	d->ctx = ctx;
	if (limits.len_max && limits.len_max < HP_BASE_PAGE)
		return -EOPNOTSUPP;
	d->access_mask = limits.access & HP_ACCESS_ALL & ~HP_RELAXED;
	d->access = a->access & ~HP_RELAXED ? a->access & ~HP_RELAXED : HUGEPIN_READ | HUGEPIN_WRITE;
	d->relaxed = a->access & limits.access & HP_RELAXED;
	d->policy = policy_of(a);
	d->on_demand = d->policy == HUGEPIN_POLICY_ODP;
	if (d->access & ~d->access_mask || (d->on_demand && !(limits.flags & HUGEPIN_LIMIT_ODP)))
		return -EOPNOTSUPP;
	if (d->policy == HUGEPIN_POLICY_NONE)
		d->span_size = 0;
	d->watch = a->watch;
	d->watched = !d->on_demand && d->policy != HUGEPIN_POLICY_NONE && a->watch < HUGEPIN_WATCH_PROGRAM;
	d->hold = hold_of(a);
	d->opener_only = limits.flags & HUGEPIN_LIMIT_OPENER;
	d->late = limits.flags & HUGEPIN_LIMIT_LATE;
	d->opener = hp_thread_number();
	d->opener_ended = false;
	if (d->opener_only && !hp_counts_self && !hp_counts_adopt())
		return -ENOMEM;
	d->opener_counts = d->opener_only ? hp_counts_self : NULL;
	d->len_max = limits.len_max ? limits.len_max & ~(HP_BASE_PAGE - 1) : SIZE_MAX / 4 & ~(HP_BASE_PAGE - 1);
	d->bytes_max = a->pinned_bytes_max == UINT64_MAX
			       ? UINT64_MAX
			       : lower(a->pinned_bytes_max, limits.bytes_max, UINT64_MAX - 1);
	d->regs_max = (uint32_t)lower(a->pinned_regions_max, limits.regs_max, UINT32_MAX);
	return 0;
}

static void empty(hugepin_domain *d)
{
	TAILQ_INIT(&d->live);
	TAILQ_INIT(&d->retired);
	TAILQ_INIT(&d->dead);
	for (unsigned set = 0; set < HP_ACCESS_SETS; set++)
		RB_INIT(&d->tree[set]);
	d->gone.count = d->late_gone.count = d->hints_count = 0;
	d->deregistered_at_ns = 0;
	d->attention = 0;
	d->all_gone = 0;
	memset(&d->stats, 0, sizeof d->stats);
	d->stats.version = HUGEPIN_VERSION;
	d->stats.bytes_max = d->bytes_max >= UINT64_MAX - 1 ? 0 : d->bytes_max;
}

static void skip_old_extents(hugepin_domain *d)
{
	struct hugepin_extent x;

	d->extent_gen = 0;
	for (uintptr_t at = d->span_base; d->span_size && hp_heap_next_extent(at, &x); at = (uintptr_t)x.addr + x.len)
		d->extent_gen = HP_MAX(d->extent_gen, x.gen);
}

int hugepin_domain_open(const struct hugepin_backend *backend, void *ctx, const struct hugepin_attr *attr,
			hugepin_domain **ret_)
{
	struct hugepin_attr a = { .size = sizeof a };
	struct hugepin_limits limits = { .access = HP_ACCESS_ALL };
	hugepin_domain *d = NULL;
	int e;

	if (!backend || !ret_ || backend->size < offsetof(struct hugepin_backend, now_ns) || !backend->reg || !backend->dereg ||
	    !backend->limits || (attr && attr->size < offsetof(struct hugepin_attr, pad)))
		return -EINVAL;
	if (attr)
		memcpy(&a, attr, HP_MIN(attr->size, sizeof a));
	e = check_attr(&a);
	if (e == -EINVAL)
		return e;
	hp_config_load();
	if (!e) {
		e = backend->limits(ctx, &limits);
		e = e == -EINVAL ? -EIO : e; /* that would say that ctx is still the caller's */
	}
	hp_lock(&domains.lock);
	e = e || hp_base_page_fits() ? e : -EOPNOTSUPP;
	e = e ? e : hp_counts_init();
	e = e ? e : hp_regions_init();
	e = e ? e : place(&d);
	expose();
	if (!e)
		hp_trace_start();
	e = e ? e : set_up(d, backend, ctx, &a, limits);
	if (!e) {
		empty(d);
		e = hp_helper_open(d);
	}
	if (!e) {
		/* When nothing is cached that is not watched. */
		if (d->watched && domains.watched++ == 0)
			hp_uffd_open();
		d->attention = (d->helper ? HP_RECORD : 0u) | (hp_trace_on ? HP_TRACED : 0u) |
			       (hp_config.guard ? HP_CHECKED : 0u);
		if (d->watched && hp_uffd_works() && (!hp_sees_unmaps || d->watch == HUGEPIN_WATCH_KERNEL)) {
			d->attention |= HP_ASK;
			__atomic_store_n(&hp_keys_asked, true, __ATOMIC_RELAXED);
		}
		skip_old_extents(d);
		d->pid = getpid();
		domains.uses += ((domains.uses + 1) & 0x3ffffff) ? 1 : 2;
		d->ref = REF(d->number, domains.uses);
		domains.open[d->number] = true;
		domains.count++;
		hp_uffd_wait(); /* the next events are read when this domain is known */
		hp_heap_set_hooks(&hooks);
		*ret_ = d;
	}
	hp_unlock(&domains.lock);
	if (e) {
		if (backend->size >= sizeof *backend && backend->close)
			backend->close(ctx);
	} else {
		if (d->helper || hp_trace_on)
			hp_service_opens_files();
		if (d->helper)
			hp_service_ask(&hp_helper_job);
		/* Now, where a thread may be started: later it may only be woken. A program of one thread stays one, and its
		 * next pin does what there is to do. */
		if (!__libc_single_threaded)
			hp_service_ask(&service);
	}
	return e;
}

/* ------------------------------------------------------------------ closing */

static void note_end(hugepin_domain *d, void *thread)
{
	if (d->opener != *(uint64_t *)thread)
		return;
	d->opener_ended = true;
	__atomic_store_n(&d->opener_counts, NULL, __ATOMIC_RELAXED); /* another thread will have them */
}

void hp_domains_thread_ends(void)
{
	uint64_t thread = hp_thread_number();

	hp_domains_each(note_end, &thread);
}

static void drop_child_copy(hugepin_domain *d)
{
	if (d->backend.close)
		d->backend.close(d->ctx);
	hp_helper_close(d);
	d->pid = 0;
}

int hugepin_domain_close(hugepin_domain *d)
{
	struct hp_region *r;

	if (!d || !d->pid) /* closed before */
		return -EINVAL;
	if (d->pid != getpid()) {
		drop_child_copy(d);
		return 0;
	}
	if (!hp_domain_may_register(d) && !d->opener_ended)
		return -EPERM;
	if (!let_close(d))
		return -EINVAL;
	hp_lock(&d->lock);
	hp_domain_drain(d);
	if (hp_domain_pinned(d)) {
		hp_unlock(&d->lock);
		end_closing(d);
		hp_domains_wake(); /* the service thread has passed it over meanwhile */
		if (d->helper)
			hp_helper_wake();
		return -EBUSY;
	}
	d->opener_only = false; /* it is gone, or it is this thread: what the device refuses to take back from others ends with it */
	while ((r = TAILQ_FIRST(&d->live)))
		hp_region_unpublish(r);
	hp_region_settle(d);
	hp_region_bury(d);
	hp_unlock(&d->lock);
	hp_lock(&domains.lock);
	hp_lock(&d->lock);
	domains.open[d->number] = false;
	domains.count--;
	domains.watched -= d->watched;
	d->ref = REF_NONE;
	hp_helper_close(d);
	hp_trace_flush();
	hp_unlock(&d->lock);
	d->pid = 0;
	if (!domains.count)
		hp_share_leave();
	hp_unlock(&domains.lock);
	if (d->backend.close)
		d->backend.close(d->ctx);
	end_closing(d); /* it may be opened again */
	return 0;
}

int hugepin_domain_stats(hugepin_domain *d, struct hugepin_domain_stats *ret_, size_t size)
{
	struct hugepin_domain_stats s = { .version = HUGEPIN_VERSION };

	if (!d || !ret_)
		return -EINVAL;
#define COPY(name, unit, sentence) s.name = __atomic_load_n(&d->stats.name, __ATOMIC_RELAXED);
	HUGEPIN_DOMAIN_STATS_LIST(COPY)
#undef COPY
	memcpy(ret_, &s, HP_MIN(size, sizeof s));
	return (int)sizeof s;
}
