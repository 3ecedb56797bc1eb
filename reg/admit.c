/*
 * Admission: how a range becomes a region. First room is made in the budget, so that no memory is pinned beyond that.
 * Then the memory is held or watched, so that no change is missed, and then the backend registers it. All functions run
 * under the domain's lock (state.h), which is held across the backend's calls.
 */
#include "reg/admit.h"

#include <errno.h>
#include <string.h>

#include "reg/counts.h"
#include "reg/domains.h"
#include "reg/evict.h"
#include "reg/gone.h"
#include "reg/retire.h"
#include "reg/stakes.h"
#include "reg/trace.h"
#include "reg/uffd.h"

/* The kernel may go on charging deregistered memory for this long, because kernel 6.1 unpins io_uring buffers only
 * after about a second. */
#define LATE_NS UINT64_C(1500000000)
#define LATE_STEP_NS UINT64_C(20000000)
#define LATE_STEPS (LATE_NS / LATE_STEP_NS)

/* What lingers for longer than one to two such steps, nobody waits for. */
#define LINGERING_NS UINT64_C(50000000)

/* relaxed: a number that no other registration has */
static _Atomic uint64_t numbers; /* registrations so far, of all domains, and of the parent process */

/* ------------------------------------------------------------------ room */

/* What was deregistered and is not free yet (struct hugepin_backend). */
struct lingering {
	size_t bytes;
	uint32_t regs;
};

/* Note how little lingered at any time since the last but one step. */
static void note_lingering(hugepin_domain *d, uint32_t regs)
{
	const uint64_t now_ns = hp_clock_ns();

	d->lingering_least = HP_MIN(d->lingering_least, regs);
	d->lingering_stale = HP_MIN(d->lingering_stale, regs);
	if (now_ns - d->lingering_since_ns < LINGERING_NS)
		return;
	d->lingering_stale = d->lingering_least;
	d->lingering_least = regs;
	d->lingering_since_ns = now_ns;
}

/* Let go of what this thread can. Returns what lingers then. */
static struct lingering sweep(hugepin_domain *d)
{
	struct lingering now = { .regs = 0 };
	int state;

	if (!d->backend->lingering)
		return now;
	state = hp_foreign_begin();
	d->backend->lingering(d->ctx, &now.bytes, &now.regs);
	hp_foreign_end(state);
	if (now.regs || d->lingering_least)
		note_lingering(d, now.regs);
	atomic_store_explicit(&d->lingering_bytes, now.bytes, memory_order_relaxed); /* state.h */
	atomic_store_explicit(&d->lingering_regs, now.regs, memory_order_relaxed);
	return now;
}

void hp_region_sweep(hugepin_domain *d)
{
	sweep(d);
}

/* Whether to wait for other threads to let go, which makes room. A thread that never does so holds up the others once:
 * then nobody waits, and its part counts as in use like any other. */
static bool may_wait(hugepin_domain *d)
{
	if (d->lingering_stale)
		return false;
	atomic_store_explicit(&d->lingering_wanted, true, memory_order_relaxed); /* hp_domain_has_room() */
	return true;
}

/* Evict one region, and bring *now up to date. at_once: only what makes room at once is of use, so a victim that
 * lingers is the last. False: none is left, or it was that. */
static bool make_room(hugepin_domain *d, enum hp_evicted why, bool at_once, struct lingering *now)
{
	const uint32_t before = now->regs;

	if (!hp_evict_one(d, why))
		return false;
	*now = sweep(d);
	return now->regs <= before || !at_once;
}

static bool fits(const hugepin_domain *d, size_t len, unsigned access, const struct hp_ready *own,
		 struct lingering now)
{
	uint64_t bytes = d->stats.pinned_bytes + now.bytes, regions = d->stats.regions + now.regs;

	for (unsigned i = 0; d->ready && i < d->ready->count; i++) {
		const struct hp_ready *r = &d->ready->list[i];

		if (r != own && hp_is_ready(r)) {
			bytes += hp_is_pinning(r->access) ? r->end - r->start : 0;
			regions++;
		}
	}
	if (regions >= d->regs_max)
		return false;
	return !hp_is_pinning(access) || (bytes <= d->bytes_max && len <= d->bytes_max - bytes);
}

bool hp_region_fits(const hugepin_domain *d, size_t len, unsigned access, const struct hp_ready *own)
{
	return fits(d, len, access, own, (struct lingering){ .regs = 0 });
}

/* Whether [start, end) may fit if all were evicted that is in no use. */
static bool may_fit(const hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access)
{
	const uint64_t bytes = d->stats.pinned_bytes + (end - start);

	return !hp_is_pinning(access) || bytes <= d->bytes_max || hp_evict_frees(d, bytes - d->bytes_max);
}

/* Have the kernel, or else the interposed calls, tell the cache when this foreign memory goes away. If the kernel's
 * events are read, the interposed calls announce only a part (unmapping.h). Neither reports shared memory or files that
 * another process takes away. Returns 0, -ENXIO, -EXDEV or -EADDRINUSE, as hp_region_register(). */
static int watch_foreign(const hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	if (!d->watched)
		return d->watch == HUGEPIN_WATCH_PROGRAM ? 0 : -ENXIO;
	if (hp_uffd_works())
		return hp_uffd_watch(start, end);
	if (!hp_sees_unmaps)
		return -ENXIO;
	return hp_uffd_is_private(start, end) ? 0 : -EXDEV;
}

/* The heap's pages that a region of [start, end) holds. */
static uintptr_t held_start(uintptr_t start)
{
	return start & ~(HP_PAGE - 1);
}

static uintptr_t held_end(uintptr_t end)
{
	return hp_round_up(end, HP_PAGE);
}

static bool is_held(const struct hp_ready *r)
{
	return r->gen && hp_is_pinning(r->access) && r->kind != HP_REGION_UNCACHED;
}

static void let_go(const hugepin_domain *d, const struct hp_ready *r)
{
	if (hp_is_watched(d, r->kind, !hp_is_pinning(r->access)))
		hp_uffd_unwatch(r->start, r->end);
	if (is_held(r))
		hp_heap_drop(held_start(r->start), held_end(r->end) - held_start(r->start), d->hold);
}

/* Whether the cache is told when a program unmaps or discards parts of heap buffers. The opener of the domain may
 * choose to do without. */
static bool hears_of_heap(const hugepin_domain *d)
{
	return !d->watched || hp_uffd_works() || hp_sees_unmaps;
}

/* Hold or watch memory before it is registered, so that no change is missed. On-demand registrations need neither,
 * since the device follows the program's mappings. The heap drops regions before it unmaps their memory. But if the
 * program unmaps or discards parts of its buffers, only the kernel or the interposed calls tell, so nothing is kept if
 * neither does. Watch the whole extent, because each watched part would become a mapping of its own. */
int hp_region_keep(const hugepin_domain *d, const struct hp_ready *r)
{
	const uintptr_t from = held_start(r->start);
	struct hugepin_extent extent;
	int err;

	if (is_held(r)) {
		if (!hears_of_heap(d))
			return -ENXIO;
		err = hp_heap_hold(from, held_end(r->end) - from, r->gen, d->hold);
		if (err)
			return err;
		if (hp_heap_extent((void *)r->start, &extent))
			hp_uffd_watch_heap((uintptr_t)extent.addr, (uintptr_t)extent.addr + extent.len);
	}
	return r->kind == HP_REGION_FOREIGN && hp_is_pinning(r->access) ? watch_foreign(d, r->start, r->end) : 0;
}

/* ------------------------------------------------------------------ registering */

/* Whether a limit is reached, so that an eviction may make room. EPERM is none: the limit is 0, or a filter of system
 * calls or the ring's owner refuses the call. */
static bool is_full(int err)
{
	return err == -ENOMEM || err == -EAGAIN;
}

static int call_reg(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, struct hugepin_reg *ret_)
{
	int err, state = hp_foreign_begin();

	hp_registering = true;
	if (d->dmabuf)
		err = d->backend->reg_dmabuf(d->ctx, d->dmabuf->fd, d->dmabuf->offset, end - start, start, access,
					     ret_);
	else
		err = d->backend->reg(d->ctx, (void *)start, end - start, access, ret_);
	hp_registering = false;
	hp_foreign_end(state);
	return hp_backend_error(err);
}

/* Whether the kernel counts as much for r as the budget has. It counts all of a hugepage, however little is registered. */
static bool takes_all(const hugepin_domain *d, const struct hp_region *r, unsigned access)
{
	struct hugepin_extent x;

	return hp_is_pinning(access) && !d->dmabuf && hp_heap_extent((void *)r->start, &x) &&
	       x.kind != HUGEPIN_KIND_BASE && held_end(r->end) - held_start(r->start) >= d->bytes_max;
}

/* Register r with the backend. After each refusal evict a region and try again, while there is one to evict, and while
 * the backend can deregister, because no room is made otherwise. */
static int call_backend(hugepin_domain *d, struct hp_region *r, unsigned access, bool evict)
{
	uint64_t start_ns = d->backend->now_ns(d->ctx), now_ns, failed = d->stats.failed;
	unsigned waits = d->late && d->deregistered_at_ns ? LATE_STEPS : 0;
	struct lingering now;
	bool enough_lingers;
	int err;

	for (;;) {
		err = call_reg(d, r->start, r->end, access, &r->reg);
		now_ns = d->backend->now_ns(d->ctx);
		if (!is_full(err))
			break;
		HP_DSTAT(d, refused, 1);
		if (!evict || d->stats.failed != failed)
			break;
		now = sweep(d);
		enough_lingers = now.bytes >= r->end - r->start;
		if (enough_lingers && may_wait(d))
			return -EAGAIN;
		if (!takes_all(d, r, access) && make_room(d, HP_EVICTED_REFUSED, enough_lingers, &now))
			continue;
		/* Although no region is left to evict, the kernel may still charge memory that was deregistered. */
		if (!waits-- || now_ns - d->deregistered_at_ns > LATE_NS)
			break;
		hp_futex_sleep(LATE_STEP_NS);
	}
	if (err == 0)
		HP_DSTAT(d, registered_ns, now_ns - start_ns);
	hp_probe_registration(d->number, r->start, r->end - r->start, r->kind, now_ns - start_ns, (uint64_t)-err);
	return !is_full(err) ? err : d->bytes_max == UINT64_MAX ? -ENOMEM : -ENOBUFS;
}

static uint64_t keys_of(const struct hugepin_reg *reg)
{
	struct hugepin_pin pin = { .lkey = reg->lkey, .rkey = reg->rkey };
	uint64_t keys;

	memcpy(&keys, &pin.lkey, sizeof keys);
	return keys;
}

/* r takes over a registration that was made ahead. */
static void take_ready(hugepin_domain *d, struct hp_ready *ready, struct hp_region *r)
{
	ready->taken = true;
	r->reg = ready->reg;
	HP_DSTAT(d, registered_ns, ready->ns);
	hp_probe_registration(d->number, r->start, r->end - r->start, r->kind, ready->ns, 0);
}

static struct hp_ready *find_ready(hugepin_domain *d, const struct hp_ready *want)
{
	for (unsigned i = 0; d->ready && i < d->ready->count; i++) {
		struct hp_ready *r = &d->ready->list[i];

		if (r->start == want->start && r->end == want->end && r->access == want->access &&
		    r->kind == want->kind && hp_is_ready(r))
			return r;
	}
	return NULL;
}

/* Count r, which the backend has registered, and set the members that a new registration starts with. */
static void begin(hugepin_domain *d, struct hp_region *r, const struct hp_ready *want)
{
	struct hp_region_notes *n = hp_region_notes_of(r);
	size_t len = r->end - r->start;

	HP_WRITE(r->domain, d);
	HP_WRITE(r->keys, keys_of(&r->reg));
	HP_WRITE(r->access, want->access & ~(unsigned)HUGEPIN_ON_DEMAND);
	HP_WRITE(r->used, 1);
	r->number = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed) + 1;
	*n = (struct hp_region_notes){ .held_start = held_start(r->start), .held_end = held_end(r->end) };
	/* For the statistics the number at the end of the last registration will do, with the pins undone since then. */
	if (r->kind == HP_REGION_EXTENT || want->access & HP_ACCESS_REMOTE || d->expire_local)
		HP_WRITE(r->made, hp_counts_made(hp_region_index(r)));
	n->before = HP_READ(r->made);
	r->cut = false;
	r->is_dmabuf = d->dmabuf;
	r->on_demand = !hp_is_pinning(want->access);
	if (hp_region_is_heap(r))
		hp_work_set(d, HP_WORK_HELD);
	HP_DSTAT(d, registered, 1);
	HP_DSTAT(d, registered_bytes, len);
	hp_move_hits(d);
	HP_DSTAT(d, regions, 1);
	hp_move_hits(d);
	if (r->kind == HP_REGION_EXTENT) {
		HP_DSTAT(d, extents, 1);
		d->extent_bytes += r->on_demand ? 0 : len;
	}
	d->exact_count += hp_region_is_exact(r);
	if (!r->on_demand)
		HP_DSTAT(d, pinned_bytes, len);
	if (hp_trace_on)
		hp_trace(HP_TRACE_REGISTER, d, r->start, r->end);
	if (d->stats.pinned_bytes > d->stats.pinned_peak_bytes)
		HP_DSTAT(d, pinned_peak_bytes, d->stats.pinned_bytes - d->stats.pinned_peak_bytes);
	if (r->kind == HP_REGION_UNCACHED) {
		HP_WRITE(r->state, HP_REGION_RETIRED);
		TAILQ_INSERT_TAIL(&d->uncached, r, order);
		if (!r->is_dmabuf)
			hp_region_waits(r);
		HP_DSTAT(d, retired, 1);
		hp_attention_raise(d, HP_RETIRED);
	}
}

int hp_region_register(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, enum hp_region_kind kind,
		       uint64_t gen, bool evict, struct hp_region **ret_)
{
	const struct hp_ready want = { .start = start, .end = end, .access = access, .kind = kind, .gen = gen };
	struct hp_ready *ready = find_ready(d, &want);
	size_t len = end - start;
	struct lingering now;
	struct hp_region *r;
	int err;

	evict &= d->bytes_max != UINT64_MAX;
	if (hp_is_pinning(access) && len > d->bytes_max)
		return -ENOBUFS;
	evict = evict && may_fit(d, start, end, access);
	now = sweep(d);
	while (!fits(d, len, access, ready, now)) {
		bool crowded = evict && d->stats.regions >= d->regs_max;
		bool enough_lingers = hp_region_fits(d, len, access, ready);

		if (evict && enough_lingers && may_wait(d))
			return -EAGAIN;
		HP_DSTAT(d, crowded, crowded);
		if (!evict || !make_room(d, crowded ? HP_EVICTED_COUNT : HP_EVICTED_BUDGET, enough_lingers, &now))
			return d->bytes_max == UINT64_MAX ? -ENOMEM : -ENOBUFS;
	}
	while (!(r = hp_region_new(d)))
		if (!evict || !hp_evict_one(d, HP_EVICTED_TABLE))
			return -ENOMEM;
	if (!d->dmabuf && hp_stakes_add(&hp_region_stakes[hp_region_index(r)], d, start, end))
		hp_gone_missed(d, start, end);
	if (!ready && (err = hp_region_keep(d, &want)) != 0)
		goto out_region;
	HP_WRITE(r->start, start);
	HP_WRITE(r->end, end);
	HP_WRITE(r->kind, kind);
	if (ready) {
		take_ready(d, ready, r);
	} else {
		err = call_backend(d, r, access | d->relaxed, evict);
		if (err) {
			let_go(d, &want);
			goto out_region;
		}
	}
	begin(d, r, &want);
	*ret_ = r;
	return 0;
out_region:
	hp_region_free(d, r);
	return err;
}

/* ------------------------------------------------------------------ registering ahead of pins */

void hp_region_make_ready(hugepin_domain *d, struct hp_ready *r)
{
	uint64_t start_ns;

	if (r->err)
		return;
	start_ns = d->backend->now_ns(d->ctx);
	r->err = call_reg(d, r->start, r->end, r->access | d->relaxed, &r->reg);
	r->ns = d->backend->now_ns(d->ctx) - start_ns;
	if (r->err)
		let_go(d, r);
}

void hp_region_end_ready(hugepin_domain *d, struct hp_ready *r)
{
	if (is_full(r->err))
		HP_DSTAT(d, refused, 1);
	if (!hp_is_ready(r))
		return;
	hp_region_call_dereg(d, &r->reg);
	let_go(d, r);
}
