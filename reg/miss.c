/*
 * Pins that are not hits: they take the domain's lock, do the queued work, look again, and register (cover.c).
 */
#include "reg/miss.h"

#include <errno.h>
#include <unistd.h>

#include "base/sys.h"
#include "reg/counts.h"
#include "reg/cover.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/hybrid.h"
#include "reg/lookup.h"
#include "reg/request.h"
#include "reg/retire.h"
#include "reg/serve.h"
#include "reg/trace.h"
#include "reg/track.h"
#include "reg/uffd.h"

#define LINGERING_STEP_NS UINT64_C(1000000)

int hp_pin_check(const hugepin_domain *d, const void *addr, size_t len, unsigned access)
{
	uintptr_t end;

	if (!len || __builtin_add_overflow((uintptr_t)addr, len, &end) || end > UINTPTR_MAX - hp_base_page ||
	    access & ~(HP_ACCESS_ALL | HP_PIN_BITS))
		return -EINVAL;
	if (access & ~(d->access_mask | HP_PIN_BITS))
		return -EOPNOTSUPP;
	return d->pid == hp_pid() ? 0 : -ESTALE;
}

/* Wait about as long as registering takes, at 4 GiB a second. A thread that may not register waits up to a second. */
bool hp_pin_settled(const hugepin_domain *d, const void *addr, size_t len)
{
	const uint64_t longest_ns = 1000000000;

	return !d->watched || hp_in_span(d, (uintptr_t)addr) || __libc_single_threaded ||
	       hp_uffd_settle(hp_domain_may_register(d) ? HP_MIN(len / 4, longest_ns) : longest_ns);
}

void hp_pin_enter(hugepin_domain *d)
{
	hp_uffd_heed(d);
	atomic_fetch_add_explicit(&d->waiting, 1, memory_order_relaxed);
	hp_lock(&d->lock);
	atomic_fetch_sub_explicit(&d->waiting, 1, memory_order_relaxed);
	hp_gone_drain(d);
	hp_region_deregister_dead(d);
}

void hp_pin_leave(hugepin_domain *d)
{
	bool helped = d->helper, starts = d->hinted;

	d->hinted = false;
	hp_unlock(&d->lock);
	/* Opening starts no service thread in a program of one thread. By now it may have more. */
	if (starts || (!__libc_single_threaded && !hp_service_running() && !hp_locks_held))
		hp_domains_start();
	/* relaxed: the run takes the domain's lock, too */
	if (helped && !atomic_load_explicit(&hp_serve_helper_job.asked, memory_order_relaxed))
		hp_serve_wake_helper();
}

HP_COLD void hp_pin_bring_in(hugepin_domain *d, struct hp_region *r)
{
	hp_pin_enter(d);
	hp_hybrid_first_use(d, r, false);
	hp_pin_leave(d);
}

/* Count a pin of [addr, end) of r. end 0: a pin of all of r. r was found or registered under the lock. */
static void take_pin(hugepin_domain *d, struct hp_region *r, uintptr_t addr, uintptr_t end, uint64_t time,
		     uint64_t site, bool registered)
{
	if (r->kind == HP_REGION_EXTENT)
		hp_region_note(r, end ? addr : r->start, end ? end : r->end);
	hp_count(&hp_counts_self[hp_region_index(r)].pins);
	hp_region_notes_of(r)->pinned = hp_region_notes_of(r)->pinned_since = true;
	HP_WRITE(r->used, 1);
	if (d->helper) {
		hp_track_missed(d, r, time, site, registered);
		hp_hybrid_first_use(d, r, registered);
	}
	if (hp_trace_on)
		hp_trace(HP_TRACE_PIN, d, r->start, r->end);
	if (r->kind == HP_REGION_FOREIGN || hp_region_is_exact(r))
		hp_lookup_remember(d, addr, r);
	else if (hp_region_is_heap(r))
		hp_region_name(r, addr);
}

/* Count a pin of [addr, addr + len), or of as much of it as r covers, and fill it in. */
static void pin_region(hugepin_domain *d, struct hp_region *r, uintptr_t addr, size_t len, uint64_t time, uint64_t site,
		       bool registered, struct hugepin_pin *ret_)
{
	size_t covered = r->end - addr;

	take_pin(d, r, addr, addr + HP_MIN(len, covered), time, site, registered);
	HP_DSTAT(d, cut, covered < len);
	hp_pin_fill(ret_, addr, HP_MIN(len, covered), r->keys, d->ref | hp_region_index(r));
}

int hp_pin_locked(hugepin_domain *d, const void *addr, size_t len, unsigned access, int once, bool waits,
		  uint64_t time, uint64_t site, struct hugepin_pin *ret_)
{
	uint64_t registered = d->stats.registered, misses = d->stats.misses;
	struct hp_region *r;
	int err = hp_cover_pin(d, addr, len, access & d->access_mask, once, !(access & HUGEPIN_PIN_NO_EVICT),
			       waits, &r);

	if (err) {
		HP_DSTAT(d, nobufs, err == -ENOBUFS);
		return err;
	}
	pin_region(d, r, (uintptr_t)addr, len, time, site, d->stats.registered != registered, ret_);
	if (d->stats.misses != misses)
		hp_add_hits(d, (uint64_t)-1);
	return 0;
}

void hp_pin_tell_crowded(const hugepin_domain *d, const void *addr, size_t len, unsigned access, int err)
{
	if ((err == -ENOBUFS || err == -ENOMEM) && d->lend_hooks && !(access & HUGEPIN_PIN_NO_EVICT))
		d->lend_hooks->crowded(d->lend, hp_round_up((uintptr_t)addr + len, hp_base_page) -
							  ((uintptr_t)addr & -hp_base_page));
}

/* HP_CACHED, or the reason to register for this pin only, as hp_cover_pin(). */
static int once_of(const hugepin_domain *d, unsigned access)
{
	return d->policy == HUGEPIN_POLICY_NONE ? (int)HP_ONCE_POLICY
	       : access & HUGEPIN_PIN_UNCACHED	? (int)HP_ONCE_ASKED
						: HP_CACHED;
}

unsigned hp_pin_access(const hugepin_domain *d, unsigned access)
{
	return access & ~HP_PIN_BITS ? access : access | d->access;
}

/* tells: the domain's lend is told if there is no room. */
static int pin_slowly(hugepin_domain *d, const void *addr, size_t len, unsigned access, uint64_t site, bool tells,
		      struct hugepin_pin *ret_)
{
	uint64_t time = d->helper ? hp_track_time(d) : 0;
	int once = once_of(d, access), err;

	access = hp_pin_access(d, access);
	err = hp_pin_check(d, addr, len, access);
	if (!err && !hp_counts_self && !hp_counts_adopt())
		err = -ENOMEM;
	if (err)
		return err;
	if (once == HP_CACHED && !hp_pin_settled(d, addr, len))
		once = HP_ONCE_CHANGING;
	for (;;) {
		hp_pin_enter(d);
		err = hp_pin_locked(d, addr, len, access, once, true, time, site, ret_);
		if (tells)
			hp_pin_tell_crowded(d, addr, len, access, err);
		hp_pin_leave(d);
		if (err != -EAGAIN)
			return err;
		hp_futex_sleep(LINGERING_STEP_NS);
	}
}

HP_COLD int hp_pin_missed(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_,
			  uint64_t site)
{
	return pin_slowly(d, addr, len, access, site, true, ret_);
}

HP_COLD int hp_pin_for_lend(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	return pin_slowly(d, addr, len, access, 0, false, ret_);
}

int hugepin_pin_dmabuf(hugepin_domain *d, int fd, uint64_t offset, size_t len, uint64_t iova, unsigned access,
		       struct hugepin_pin *ret_)
{
	const struct hp_dmabuf dmabuf = { fd, offset };
	struct hp_region *r;
	uint64_t end;
	int err;

	if (fd < 0 || __builtin_add_overflow(offset, len, &end))
		return -EINVAL;
	access = hp_pin_access(d, access & ~HP_RELAXED);
	err = hp_pin_check(d, (const void *)iova, len, access);
	if (!err && !d->backend->reg_dmabuf)
		err = -EOPNOTSUPP;
	if (!err && !hp_counts_self && !hp_counts_adopt())
		err = -ENOMEM;
	if (err)
		return err;
	hp_pin_enter(d);
	err = hp_cover_dmabuf(d, &dmabuf, iova, len, access & d->access_mask, !(access & HUGEPIN_PIN_NO_EVICT), &r);
	HP_DSTAT(d, nobufs, err == -ENOBUFS);
	if (!err) {
		pin_region(d, r, iova, len, 0, 0, true, ret_);
		hp_add_hits(d, (uint64_t)-1);
	}
	hp_pin_tell_crowded(d, (const void *)iova, len, access, err);
	hp_pin_leave(d);
	return err;
}

HP_COLD int hp_key_missed(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	uint64_t time = d->helper ? hp_track_time(d) : 0;
	struct hp_region *r;
	int err = access & HP_PIN_BITS ? -EINVAL : hp_pin_check(d, addr, len, access);

	if (!err && !hp_counts_self && !hp_counts_adopt())
		err = -ENOMEM;
	if (err)
		return err;
	err = hp_pin_settled(d, addr, len) ? 0 : -ENOKEY;
	hp_pin_enter(d);
	/* Exact regions serve pins of their own range alone. */
	r = err || hp_is_exact(d, access) ? NULL : hp_cover_find(d, (uintptr_t)addr, 1, access);
	if (r) {
		take_pin(d, r, (uintptr_t)addr, 0, time, 0, false);
		hp_pin_fill(ret_, r->start, r->end - r->start, r->keys, d->ref | hp_region_index(r));
	}
	hp_pin_leave(d);
	return r ? 0 : -ENOKEY;
}

HP_COLD int hp_held_missed(hugepin_domain *d, const struct hugepin_key *key, uint64_t site)
{
	uint64_t time = d->helper ? hp_track_time(d) : 0;
	struct hp_region *r = &hp_regions[(uint32_t)key->pin.ref];
	uintptr_t addr = key->pin.base;
	bool good = hp_pin_settled(d, (const void *)addr, key->pin.len);

	hp_pin_enter(d);
	good = good && (HP_READ(*key->life) | 1) == key->good;
	if (good)
		take_pin(d, r, addr, addr + key->pin.len, time, site, false);
	hp_pin_leave(d);
	return good ? 0 : -ENOKEY;
}

/* ------------------------------------------------------------------ requests */

/* Look under the lock for a region that serves a pin, but wait neither for the lock nor for the kernel. */
static bool find_now(hugepin_domain *d, const void *addr, size_t len, unsigned access, uint64_t time, uint64_t site,
		     struct hugepin_pin *ret_)
{
	struct hp_region *r;
	bool dead;

	if (d->watched && !hp_in_span(d, (uintptr_t)addr) && hp_must_ask(d) && hp_uffd_ask() != HP_QUIET)
		return false;
	hp_uffd_heed(d);
	if (!hp_trylock(&d->lock))
		return false;
	hp_gone_drain(d);
	if (d->opener_only)
		hp_region_deregister_dead(d);
	dead = !TAILQ_EMPTY(&d->dead);
	if (dead)
		hp_work_set(d, HP_WORK_SERVE);
	r = hp_cover_find(d, (uintptr_t)addr, len, access & d->access_mask);
	if (r)
		pin_region(d, r, (uintptr_t)addr, len, time, site, false, ret_);
	hp_pin_leave(d);
	if (dead && !d->opener_only)
		hp_domains_wake();
	return r;
}

HP_COLD int hp_try_missed(hugepin_domain *d, const void *addr, size_t len, unsigned access, hugepin_pinned_fn done,
			  void *arg, struct hugepin_pin *ret_, uint64_t site)
{
	bool cached = once_of(d, access) == HP_CACHED;
	struct hp_pin_request q = { .addr = addr, .len = len, .access = hp_pin_access(d, access), .done = done,
				    .arg = arg, .site = site, .time = d->helper ? hp_track_time(d) : 0 };
	int err = !done && access & HUGEPIN_PIN_UNCACHED ? -EINVAL : hp_pin_check(d, addr, len, q.access);

	if (!err && !hp_counts_self && !hp_counts_adopt())
		err = -ENOMEM;
	if (err)
		return err;
	if (cached && find_now(d, addr, len, q.access, q.time, q.site, ret_))
		return 0;
	if (d->opener_only)
		return -EPERM;
	/* The event of what this thread did before may be read and not yet queued. Then it would cancel the request. */
	hp_uffd_heed(d);
	err = hp_request_add(d, &q);
	return err ? err : -EAGAIN;
}

bool hp_pin_for(hugepin_domain *d, const struct hp_pin_request *q, struct hugepin_pin *ret_, int *ret_err)
{
	int once = once_of(d, q->access);

	if (!hp_counts_self && !hp_counts_adopt()) {
		*ret_err = -ENOMEM;
		return true;
	}
	if (once == HP_CACHED && !hp_pin_settled(d, q->addr, q->len))
		once = HP_ONCE_CHANGING;
	hp_uffd_heed(d);
	if (!hp_domain_lock_soon(d))
		return false;
	hp_gone_drain(d);
	hp_region_deregister_dead(d);
	*ret_err = hp_pin_locked(d, q->addr, q->len, q->access, once, true, q->time, q->site, ret_);
	hp_pin_tell_crowded(d, q->addr, q->len, q->access, *ret_err);
	hp_pin_leave(d);
	return *ret_err != -EAGAIN;
}
