/*
 * Domains: opening, closing, attributes, statistics, and their state in the child of a fork.
 */
#include "reg/domain.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/single_threaded.h>
#include <unistd.h>

#include "base/config.h"
#include "base/lock.h"
#include "base/memlock.h"
#include "base/service.h"
#include "base/sys.h"
#include "reg/admit.h"
#include "reg/answer.h"
#include "reg/counts.h"
#include "reg/domains.h"
#include "reg/evict.h"
#include "reg/gone.h"
#include "reg/helper.h"
#include "reg/key.h"
#include "reg/locks.h"
#include "reg/queue.h"
#include "reg/retire.h"
#include "reg/serve.h"
#include "reg/share.h"
#include "reg/stakes.h"
#include "reg/trace.h"
#include "reg/uffd.h"

enum { HITS_LOOKS = 100 };

/* The number of open domains whose foreign memory is watched, by the kernel or by announcements. Guarded by the lock of
 * opening. */
static unsigned watched;

const struct hugepin_backend *hp_domain_backend(hugepin_domain *d, void **ret_ctx)
{
	*ret_ctx = d->ctx;
	return d->backend;
}

bool hp_domain_mine(const hugepin_domain *d)
{
	return d->pid == hp_pid();
}

void hp_domain_lock(hugepin_domain *d)
{
	hp_lock(&d->lock);
}

void hp_domain_unlock(hugepin_domain *d)
{
	hp_unlock(&d->lock);
}

static bool is_over_half(uint64_t n, uint64_t max)
{
	return n > max / 2;
}

bool hp_domain_is_short(const hugepin_domain *d)
{
	/* relaxed: numbers */
	const uint64_t bytes = atomic_load_explicit(&d->lingering_bytes, memory_order_relaxed),
		       regs = atomic_load_explicit(&d->lingering_regs, memory_order_relaxed);

	return is_over_half(HP_DSTAT_GET(d, pinned_bytes) + bytes, d->bytes_max) ||
	       is_over_half(HP_DSTAT_GET(d, regions) + regs, d->regs_max) || HP_DSTAT_GET(d, refused);
}

uint32_t hp_domain_pins(uint32_t region)
{
	return hp_region_pins(&hp_regions[region]);
}

void hp_domain_has_room(hugepin_domain *d)
{
	hp_lock(&d->lock);
	hp_region_sweep(d);
	hp_unlock(&d->lock);
	if (atomic_exchange_explicit(&d->lingering_wanted, false, memory_order_relaxed)) /* state.h */
		hp_answer_stays(d);
}

/* ------------------------------------------------------------------ fork */

/* Numbers of the domains that are closed. Guarded by the lock of opening and closing. */
static struct hp_pin_sums closed;

/* Called in the child of fork. Registrations, rings and devices belong to the parent, so pins of its domains fail here,
 * but new domains can be opened. Nothing is done before the fork, because it may come from a signal handler that
 * interrupted this code under any lock, and because other threads may hold locks. */
static void disown_domains(void)
{
	watched = 0;
	closed = (struct hp_pin_sums){ .domains = 0 };
	/* Mark the domains first: the calls below zero tables by madvise, and the interposed madvise looks for open
	 * domains to tell. */
	hp_domains_child();
	hp_stakes_child();
	hp_gone_child();
	hp_regions_child();
	hp_uffd_child();
	hp_counts_child();
	hp_locks_child();
	hp_helper_child();
	hp_trace_child();
	hp_serve_child();
}

/* ------------------------------------------------------------------ sums */

static void add_domain(hugepin_domain *d, void *sums)
{
	struct hp_pin_sums *s = sums;

	if (d->pid != hp_pid()) /* it is the parent's */
		return;
	/* Add up counters, but keep the highest bytes and numbers of any one domain, because two domains that were open
	 * one after the other had no memory together. */
#define ADD_c(name) s->stats.name += HP_DSTAT_GET(d, name);
#define ADD_Bc(name) ADD_c(name)
#define ADD_n(name) s->stats.name = HP_MAX(s->stats.name, HP_DSTAT_GET(d, name));
#define ADD_B(name) ADD_n(name)
#define ADD(name, unit, sentence) ADD_##unit(name)
	HUGEPIN_DOMAIN_STATS_LIST(ADD)
#undef ADD
#undef ADD_c
#undef ADD_Bc
#undef ADD_n
#undef ADD_B
	s->domains++;
	s->limited += d->limited;
}

/* Each pin counter has 32 bits, belongs to a thread and region, and is never reset, so one that has wrapped counts too
 * few pins. */
static void add_sums(struct hp_pin_sums *ret_)
{
	const uint32_t used = hp_regions_used();

	*ret_ = closed;
	hp_domains_each(add_domain, ret_);
	for (uint32_t i = 0; i < used && ret_->domains; i++) {
		const struct hp_region *r = &hp_regions[i];
		const uint32_t made = hp_counts_made(i);

		ret_->pins += made;
		if (i && HP_READ(r->state) != HP_REGION_FREE)
			ret_->stats.hits += (uint32_t)(made - HP_READ(r->made));
	}
	if ((int64_t)ret_->stats.hits < 0) /* see hp_add_hits() */
		ret_->stats.hits = 0;
	ret_->pins -= HP_MIN(ret_->pins, atomic_load_explicit(&hp_counts_undone, memory_order_relaxed));
}

static const struct hp_heap_hooks heap_hooks = {
	.grown = hp_serve_grown,
	.let_go = hp_serve_drop_unused_holds,
	.sums = add_sums,
	.postfork_child = disown_domains,
};

/* ------------------------------------------------------------------ opening */

static uint64_t kernel_clock_ns(void *unused)
{
	(void)unused;
	return hp_clock_ns();
}

/* Make the tables, which are kept when the domain is closed, and used again. The kernel empties them in a child of
 * fork, so that no hit there returns a key of the parent, whichever fork handlers ran. */
static int make_tables(hugepin_domain *d)
{
	size_t granules;

	if (!d->lookup) {
		d->lookup = hp_meta_map_own(HP_LOOKUP_BYTES);
		if (!d->lookup)
			return -ENOMEM;
	}
	hp_meta_zero(d->lookup, HP_LOOKUP_BYTES);
	atomic_store_explicit(&d->lookup_mask, HP_LOOKUP_MASK(HP_LOOKUP_BITS_MIN), memory_order_relaxed);
	if (!hp_heap_span(&d->span_base, &d->span_size)) {
		d->span_base = (uintptr_t)1 << 63; /* no pointer lies there */
		d->span_size = 0;
		return hp_gone_open(0, 0);
	}
	granules = d->span_size >> HP_PAGE_SHIFT;
	if (!d->granule) {
		char *table = hp_meta_map_own(granules * sizeof(struct hp_granule));

		if (!table)
			return -ENOMEM;
		d->granule = (uintptr_t)table - (uintptr_t)hp_granule_at(d, d->span_base);
	}
	return hp_gone_open(d->span_base, granules);
}

static int check_attr(const struct hugepin_attr *a)
{
	if (a->policy > HUGEPIN_POLICY_HYBRID || a->fork > HUGEPIN_FORK_DONTFORK ||
	    a->flags & ~(uint32_t)HUGEPIN_EXPIRE_LOCAL ||
	    a->access & ~HP_ACCESS_ALL || a->odp > HUGEPIN_ODP_OPTIMAL || a->watch > HUGEPIN_WATCH_NONE ||
	    a->reach > HUGEPIN_REACH_EXTENT || a->round_max & (a->round_max - 1))
		return -EINVAL;
	return 0;
}

static uint32_t policy_of(const struct hugepin_attr *a)
{
	static const uint32_t by_option[] = {
		[HP_POLICY_ARENA] = HUGEPIN_POLICY_ARENA, [HP_POLICY_LRU] = HUGEPIN_POLICY_LRU,
		[HP_POLICY_CF11] = HUGEPIN_POLICY_CF11,	  [HP_POLICY_PREDICT] = HUGEPIN_POLICY_PREDICT,
		[HP_POLICY_ODP] = HUGEPIN_POLICY_ODP,	  [HP_POLICY_NONE] = HUGEPIN_POLICY_NONE,
		[HP_POLICY_HYBRID] = HUGEPIN_POLICY_HYBRID,
	};

	return a->policy ? a->policy : by_option[hp_config.policy];
}

static uint32_t odp_of(const struct hugepin_attr *a)
{
	static const uint32_t by_option[] = {
		[HP_ODP_NATIVE] = HUGEPIN_ODP_NATIVE,
		[HP_ODP_ENHANCED] = HUGEPIN_ODP_ENHANCED,
		[HP_ODP_OPTIMAL] = HUGEPIN_ODP_OPTIMAL,
	};

	return a->odp ? a->odp : by_option[hp_config.odp];
}

static enum hp_hold hold_of(const struct hugepin_attr *a)
{
	if (a->fork == HUGEPIN_FORK_DEFAULT)
		return hp_config.fork_mode == HP_FORK_COW ? HP_HOLD_COW : HP_HOLD_COPY;
	return a->fork == HUGEPIN_FORK_COPY  ? HP_HOLD_COPY
	       : a->fork == HUGEPIN_FORK_COW ? HP_HOLD_COW
					     : HP_HOLD_DONTFORK;
}

/* The lower of two limits, where 0 means no limit. */
static uint64_t lower_limit(uint64_t a, uint64_t b, uint64_t none)
{
	a = a ? a : none;
	b = b ? b : none;
	return HP_MIN(a, b);
}

/* At most, and by default, the backend's limit, which is mostly hp_memlock_max(). */
static void set_budget(hugepin_domain *d, const struct hugepin_attr *a, const struct hugepin_limits *limits)
{
	const uint64_t budget = a->pinned_bytes_max ? a->pinned_bytes_max : (uint64_t)hp_config.pin_budget;

	_Static_assert((uint64_t)HP_PIN_BUDGET_NONE == UINT64_MAX, "");
	d->bytes_max = budget == UINT64_MAX ? UINT64_MAX : lower_limit(budget, limits->bytes_max, UINT64_MAX - 1);
	d->limited = d->bytes_max == limits->bytes_max && d->bytes_max != budget;
}

static int set_up_domain(hugepin_domain *d, const struct hugepin_backend *backend, void *ctx,
			 const struct hugepin_attr *a, struct hugepin_limits limits)
{
	int err = make_tables(d);
	bool hybrid;

	if (err)
		return err;
	if (!hp_unseal(d->backend, hp_base_page))
		return -ENOMEM;
	memset(d->backend, 0, sizeof *d->backend);
	memcpy(d->backend, backend, HP_MIN(backend->size, sizeof *d->backend));
	d->own_clock = d->backend->now_ns;
	if (!d->own_clock)
		d->backend->now_ns = kernel_clock_ns;
	hp_seal(d->backend, hp_base_page);
	d->backend_name = d->backend->name;
	d->ctx = ctx;
	if (limits.len_max && limits.len_max < hp_base_page)
		return -EOPNOTSUPP;
	d->access_mask = limits.access & HP_ACCESS_ALL & ~HP_RELAXED;
	d->access = a->access & ~HP_RELAXED ? a->access & ~HP_RELAXED : HUGEPIN_READ | HUGEPIN_WRITE;
	d->relaxed = a->access & limits.access & HP_RELAXED;
	d->access_least = limits.flags & HUGEPIN_LIMIT_BOTH ? (HUGEPIN_READ | HUGEPIN_WRITE) & d->access_mask : 0;
	HP_WRITE(d->policy, policy_of(a)); /* show_extents() */
	d->on_demand = d->policy == HUGEPIN_POLICY_ODP;
	hybrid = d->policy == HUGEPIN_POLICY_HYBRID;
	d->odp = hybrid ? HUGEPIN_ODP_OPTIMAL : d->on_demand ? odp_of(a) : HUGEPIN_ODP_DEFAULT;
	if (d->access & ~d->access_mask || ((d->on_demand || hybrid) && !(limits.flags & HUGEPIN_LIMIT_ODP)))
		return -EOPNOTSUPP;
	if (d->policy == HUGEPIN_POLICY_NONE)
		d->span_size = 0;
	d->watch = a->watch;
	d->watched = d->policy != HUGEPIN_POLICY_ODP && d->policy != HUGEPIN_POLICY_NONE &&
		     a->watch < HUGEPIN_WATCH_PROGRAM;
	d->round_mask = a->round_max > hp_base_page ? a->round_max - 1 : 0;
	d->hold = hold_of(a);
	d->exact = a->reach == HUGEPIN_REACH_EXACT ? HP_ACCESS_REMOTE : 0;
	d->expire = a->expire;
	d->expire_local = a->expire && a->flags & HUGEPIN_EXPIRE_LOCAL;
	d->expire_arg = a->expire_arg;
	d->opener_only = limits.flags & HUGEPIN_LIMIT_OPENER;
	d->late = limits.flags & HUGEPIN_LIMIT_LATE;
	d->parallel = limits.flags & HUGEPIN_LIMIT_PARALLEL && !d->opener_only;
	d->opener = hp_thread_number();
	atomic_store_explicit(&d->opener_ended, false, memory_order_relaxed);
	if (d->opener_only && !hp_counts_self && !hp_counts_adopt())
		return -ENOMEM;
	atomic_store_explicit(&d->opener_counts, d->opener_only ? hp_counts_self : NULL, memory_order_relaxed);
	d->len_max = limits.len_max ? limits.len_max & ~(hp_base_page - 1) : SIZE_MAX / 4 & ~(hp_base_page - 1);
	set_budget(d, a, &limits);
	d->regs_max = (uint32_t)lower_limit(a->pinned_regions_max, limits.regs_max, UINT32_MAX);
	return 0;
}

static void empty_domain(hugepin_domain *d)
{
	uint64_t mask;

	TAILQ_INIT(&d->live);
	TAILQ_INIT(&d->aside);
	TAILQ_INIT(&d->unsettled);
	TAILQ_INIT(&d->retired);
	TAILQ_INIT(&d->uncached);
	TAILQ_INIT(&d->dead);
	for (unsigned set = 0; set < HP_ACCESS_SETS; set++)
		RB_INIT(&d->tree[set]);
	for (unsigned class = 0; class < HP_LENGTH_CLASSES; class++) {
		RB_INIT(&d->exact_tree[class]);
		RB_INIT(&d->waiting_tree[class]);
	}
	hp_stakes_forget(d);
	d->gone_seen = hp_stakes_latest();
	mask = hp_queue_lock(d);
	d->gone.count = d->prefetches_count = d->requests_count = 0;
	hp_queue_unlock(d, mask);
	d->deregistered_at_ns = 0;
	atomic_store_explicit(&d->lingering_bytes, 0, memory_order_relaxed);
	atomic_store_explicit(&d->lingering_regs, 0, memory_order_relaxed);
	atomic_store_explicit(&d->lingering_wanted, false, memory_order_relaxed);
	d->lingering_least = d->lingering_stale = 0;
	d->extent_bytes = d->rounded_bytes = 0;
	d->places = 0;
	d->exact_count = 0;
	memset(d->refused, 0, sizeof d->refused);
	d->lend_hooks = NULL;
	d->ready = NULL;
	d->dmabuf = NULL;
	TAILQ_INIT(&d->wanted);
	d->hinted = false;
	d->is_trusting = false; /* in a child of fork it may say so of the parent's list */
	hp_attention_lower(d, UINT32_MAX);
	memset(&d->stats, 0, sizeof d->stats);
	d->stats.version = HUGEPIN_VERSION;
	d->stats.bytes_max = d->bytes_max >= UINT64_MAX - 1 ? 0 : d->bytes_max;
}

int hugepin_domain_open(const struct hugepin_backend *backend, void *ctx, const struct hugepin_attr *attr,
			hugepin_domain **ret_)
{
	struct hugepin_attr a = { .size = sizeof a };
	struct hugepin_limits limits = { .access = HP_ACCESS_ALL };
	hugepin_domain *d = NULL;
	int err;

	if (!backend || !ret_ || backend->size < offsetof(struct hugepin_backend, now_ns) || !backend->reg ||
	    !backend->dereg || !backend->limits || (attr && attr->size < offsetof(struct hugepin_attr, odp)))
		return -EINVAL;
	if (attr)
		memcpy(&a, attr, HP_MIN(attr->size, sizeof a));
	err = check_attr(&a);
	if (err == -EINVAL)
		return err;
	hp_config_load();
	hp_base_page_init();
	if (!err) {
		err = hp_backend_error(backend->limits(ctx, &limits));
		err = err == -EINVAL ? -EIO : err; /* -EINVAL would tell the caller that he still owns ctx */
	}
	hp_domains_lock();
	err = err ? err : hp_counts_init();
	err = err ? err : hp_regions_init();
	err = err ? err : hp_domains_place(&d);
	if (!err)
		hp_trace_start();
	err = err ? err : set_up_domain(d, backend, ctx, &a, limits);
	if (!err) {
		/* Who has found the place in stakes.h may still be draining the domain that was closed there. */
		hp_lock(&d->lock);
		empty_domain(d);
		err = hp_helper_open(d);
		hp_unlock(&d->lock);
	}
	if (!err) {
		/* The first domain that wants watching starts the watcher, before anything is cached. */
		if (d->watched && watched++ == 0)
			hp_uffd_open(hp_gone_tell_all);
		hp_attention_lower(d, UINT32_MAX);
		hp_attention_raise(d, (d->helper ? HP_HELPED : 0u) | (hp_trace_on ? HP_TRACED : 0u));
		if (d->watched && hp_uffd_works() && (!hp_sees_unmaps || d->watch == HUGEPIN_WATCH_KERNEL)) {
			hp_attention_raise(d, HP_ASK);
			HP_SET_FLAG(hp_keys_asked);
		}
		d->extent_gen = hp_heap_latest_extent(); /* pins register older ones */
		if (d->helper)
			hp_work_set(d, HP_WORK_HELP);
		d->pid = hp_pid();
		hp_serve_open();
		hp_answer_open();
		hp_uffd_trust(d);
		hp_domains_add(d);
		hp_uffd_wait(); /* events that are read from now on reach this domain */
		hp_heap_set_hooks(&heap_hooks);
		*ret_ = d;
	}
	if (err && d)
		hp_domains_leave_place(d);
	hp_domains_unlock();
	if (err) {
		if (backend->size >= offsetof(struct hugepin_backend, paging) && backend->close)
			backend->close(ctx);
	} else {
		if (d->helper || hp_trace_on)
			hp_service_opens_files();
		if (d->helper)
			hp_service_ask(&hp_serve_helper_job);
		/* Start the service thread here, where threads may be started, because later hits only wake it. A
		 * program of one thread keeps one, and its next pin does the queued work. If it has more by then, its
		 * next miss starts the service thread (hp_pin_leave()). */
		if (!__libc_single_threaded)
			hp_domains_start();
	}
	return err;
}

int hugepin_pin_reg(hugepin_domain *d, const struct hugepin_backend *backend, const struct hugepin_pin *pin,
		    struct hugepin_reg *ret_)
{
	const struct hp_region *r;

	if (!d || !backend || !pin || !ret_ || d->backend->reg != backend->reg || !(r = hp_region_of(d, pin)))
		return -EINVAL;
	*ret_ = r->reg;
	return 0;
}

/* ------------------------------------------------------------------ giving back, closing */

int hugepin_domain_trim(hugepin_domain *d, uint64_t bytes)
{
	/* As for the budget, what is on demand gives no bytes. */
	const enum hp_evicted why = bytes ? HP_EVICTED_BUDGET : HP_EVICTED_TRIMMED;
	uint64_t rest;

	if (!d)
		return -EINVAL;
	if (!hp_domain_mine(d))
		return -ESTALE;
	if (!hp_domain_may_register(d))
		return -EPERM;
	if (hp_locks_held) /* by what a signal handler has interrupted, or the caller of a callback */
		return -EDEADLK;
	if (hp_attention_is(d, HP_BUSY))
		hp_uffd_wait();
	hp_lock(&d->lock);
	hp_gone_drain(d);
	hp_region_deregister_dead(d);
	while ((d->stats.pinned_bytes > bytes || (!bytes && d->stats.regions)) && hp_evict_one(d, why))
		;
	rest = d->stats.pinned_bytes;
	hp_unlock(&d->lock);
	return rest > bytes ? -EBUSY : 0;
}

static void drop_child_copy(hugepin_domain *d)
{
	if (d->backend->close)
		d->backend->close(d->ctx);
	hp_helper_close(d);
	d->pid = 0;
	hp_domains_end_closing(d);
}

int hugepin_domain_close(hugepin_domain *d)
{
	struct hp_region *r;
	uint64_t kept;
	int state;

	if (!d || !d->pid) /* closed before */
		return -EINVAL;
	if (d->pid != hp_pid()) {
		drop_child_copy(d);
		return 0;
	}
	/* acquire: the opener's last calls have finished; pairs with note_opener_ended(). */
	if (!hp_domain_may_register(d) && !atomic_load_explicit(&d->opener_ended, memory_order_acquire))
		return -EPERM;
	if (!hp_domains_start_closing(d))
		return -EINVAL;
	hp_lock(&d->lock);
	hp_gone_drain(d);
	if (hp_regions_pinned(d)) {
		hp_unlock(&d->lock);
		hp_domains_end_closing(d);
		hp_domains_wake(); /* the service thread has skipped this domain while it was closing */
		if (d->helper)
			hp_serve_wake_helper();
		hp_answer_stays(d);
		return -EBUSY;
	}
	/* The opener has ended, or is this thread. If the device refuses to deregister for another thread, the memory
	 * stays pinned until the program ends the device's object. */
	d->opener_only = false;
	kept = d->stats.failed;
	while ((r = TAILQ_FIRST(&d->live)) || (r = TAILQ_FIRST(&d->aside))) {
		hp_region_evicted(r, HP_EVICTED_CLOSED);
		hp_region_unpublish(r);
	}
	hp_region_settle(d);
	hp_region_deregister_dead(d);
	kept = d->stats.failed - kept;
	hp_unlock(&d->lock);
	hp_domains_lock();
	hp_lock(&d->lock);
	add_domain(d, &closed);
	hp_domains_remove(d);
	hp_uffd_distrust(d);
	if (d->watched && --watched == 0)
		hp_uffd_end();
	hp_helper_close(d);
	hp_trace_flush();
	hp_unlock(&d->lock);
	d->pid = 0;
	if (!hp_domains_any())
		hp_share_leave();
	hp_domains_unlock();
	state = hp_foreign_begin(); /* nobody else ends the closing */
	if (d->backend->close)
		d->backend->close(d->ctx);
	hp_answer_closed(d);
	hp_stakes_forget(d); /* hints are left */
	hp_domains_end_closing(d); /* the domain's memory may be used again */
	hp_foreign_end(state);
	return (int)HP_MIN(kept, (uint64_t)INT_MAX);
}

/* Add the pins of registrations that are there to those that stats.hits has. Look again if a registration has begun or
 * ended meanwhile; after many looks, the result is a little wrong. acquire: each read comes before the next, and the
 * number of moves is read last; pairs with hp_move_hits(), hp_add_hits() and HP_WRITE() of r->made. */
static uint64_t hits_of(const hugepin_domain *d)
{
	uint64_t hits;
	uint32_t moved;
	unsigned looks = HITS_LOOKS;

	do {
		moved = atomic_load_explicit(&d->hits_moved, memory_order_seq_cst);
		if (moved & 1)
			hp_sys(SYS_sched_yield);
		uint64_t left = HP_READ(d->stats.regions);

		hits = HP_READ(d->stats.hits);
		for (uint32_t i = 1, used = hp_regions_used(); i < used && left; i++) {
			const struct hp_region *r = &hp_regions[i];

			if (HP_READ(r->state) == HP_REGION_FREE || HP_READ(r->domain) != d)
				continue;
			hits += (uint32_t)(hp_counts_made(i) - HP_READ(r->made));
			left--;
		}
	} while ((moved & 1 || atomic_load_explicit(&d->hits_moved, memory_order_seq_cst) != moved) && --looks);
	return (int64_t)hits < 0 ? 0 : hits;
}

int hugepin_domain_stats(hugepin_domain *d, struct hugepin_domain_stats *ret_, size_t size)
{
	struct hugepin_domain_stats s = { .version = HUGEPIN_VERSION };

	if (!d || !ret_)
		return -EINVAL;
#define COPY(name, unit, sentence) s.name = HP_DSTAT_GET(d, name);
	HUGEPIN_DOMAIN_STATS_LIST(COPY)
#undef COPY
	s.hits = hits_of(d);
	memcpy(ret_, &s, HP_MIN(size, sizeof s));
	return (int)sizeof s;
}

size_t hugepin_memlock(void)
{
	return hp_memlock_max(HP_MEMLOCK_PIN);
}

int hugepin_domain_paging(hugepin_domain *d, struct hugepin_paging *ret_, size_t size)
{
	struct hugepin_paging p;
	int err, state;

	if (!d || !ret_)
		return -EINVAL;
	if (!hp_domain_mine(d))
		return -ESTALE;
	if (!d->backend->paging)
		return -EOPNOTSUPP;
	hp_lock(&d->lock);
	state = hp_foreign_begin();
	err = hp_backend_error(d->backend->paging(d->ctx, &p));
	hp_foreign_end(state);
	hp_unlock(&d->lock);
	if (!err)
		memcpy(ret_, &p, HP_MIN(size, sizeof p));
	return err;
}
