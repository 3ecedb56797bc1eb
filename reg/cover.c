/*
 * Chooses the range to register for a pin that no existing registration serves:
 * - heap memory: the extent (policy arena), else the hugepages that the range touches, else, on old kernels, the part
 *   in one mapping. The heap's buffers never cross an extent.
 * - other memory: the base pages that the range touches, or blocks of them (rounding).
 * - a pin with remote access that gets an exact region (state.h): the base pages that the range touches, apart from all
 *   other registrations.
 * - if none of these can be registered: only the base pages, and only for this pin.
 *
 * On-demand memory is brought in as HUGEPIN_ODP_* says. Most pages of an extent may be free and given back to the
 * kernel, and bringing in the extent would bring them back. So a domain registers whole extents on demand only if it
 * brings nothing in; the others register the hugepages that a range touches.
 */
#include "reg/cover.h"

#include <errno.h>
#include <sys/mman.h>

#include "reg/admit.h"
#include "reg/domains.h"
#include "reg/evict.h"
#include "reg/gone.h"
#include "reg/hints.h"
#include "reg/lookup.h"
#include "reg/retire.h"
#include "reg/trace.h"
#include "reg/uffd.h"

enum { REFUSED_WAITS_MAX = 1024 };

/* ------------------------------------------------------------------ registering a range */

/* A range to be registered; the new region replaces the regions inside it. */
struct taking {
	uintptr_t start, end;
	unsigned access; /* access of the range and of all regions inside it; as hp_region_register() */
	unsigned wanted, regions, lacking; /* lacking: regions with less access than the pin wants */
	const struct hp_region *by; /* the new region */
};

static bool is_inside(uintptr_t start, uintptr_t end, const struct hp_region *r)
{
	return r->start >= start && r->end <= end;
}

static void add_inside(void *taking, struct hp_region *r)
{
	struct taking *c = taking;

	if (!is_inside(c->start, c->end, r))
		return;
	c->access |= r->access;
	c->lacking += (c->wanted & ~r->access) != 0;
	c->regions++;
}

/* Unpublish the regions inside the new one. A larger region of the same access would have served the pin, but if there
 * is one nevertheless, unpublish it, too. */
static void supersede(void *taking, struct hp_region *r)
{
	struct taking *c = taking;
	bool is_around = is_inside(r->start, r->end, c->by) && r->access == c->by->access;

	if (!is_around && !is_inside(c->start, c->end, r))
		return;
	hp_region_evicted(r, HP_EVICTED_MERGED);
	hp_region_unpublish(r);
	c->regions += is_around;
}

/* Whether no region may be cached in [start, end), because pages there were discarded. Have foreign memory watched all
 * the same, because a mapping that nobody watches is never known to be unmapped. access, gen: as
 * hp_region_register(). */
static bool is_discarded(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, uint64_t gen)
{
	bool discarded = hp_is_pinning(access);

	if (gen)
		return discarded && hp_gone_discarded(start, end);
	discarded = discarded && hp_gone_late(start, end);
	if (discarded && d->watched)
		hp_uffd_watch_unmap(start, end);
	return discarded;
}

/* The kind of registration that a miss makes: HUGEPIN_ON_DEMAND, or 0 for pinned memory. */
static unsigned sort_of(const hugepin_domain *d)
{
	return d->on_demand ? HUGEPIN_ON_DEMAND : 0;
}

/* ------------------------------------------------------------------ what the device refused */

static struct hp_refused *refused_at(hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	const uint64_t number = (start >> HP_PAGE_SHIFT) + ((end - start) << 20);

	return &d->refused[number * UINT64_C(0x9e3779b97f4a7c15) >> (64 - HP_REFUSED_BITS)];
}

static bool is_of(const struct hp_refused *f, uintptr_t start, uintptr_t end, uint64_t gen)
{
	return f->gen && f->gen == gen && f->start == start && f->end == end;
}

/* One page that cannot be pinned, such as a guard page, keeps its hugepage and its extent from being registered. So a
 * refused range is tried again only after 1, 2, 4... pins. Returns 0 to try, or the error of the last try. */
static int was_refused(hugepin_domain *d, uintptr_t start, uintptr_t end, uint64_t gen)
{
	struct hp_refused *f = refused_at(d, start, end);

	if (!is_of(f, start, end, gen) || !f->left)
		return 0;
	f->left--;
	return f->err;
}

/* A lack of room says nothing of the range. */
static void note_refusal(hugepin_domain *d, uintptr_t start, uintptr_t end, uint64_t gen, int err)
{
	struct hp_refused *f = refused_at(d, start, end);

	if (!gen || err == -ENOBUFS || err == -ENOMEM || err == -EAGAIN)
		return;
	if (!is_of(f, start, end, gen))
		*f = (struct hp_refused){ .start = start, .end = end, .gen = gen, .waits = 1 };
	f->err = err;
	f->left = f->waits;
	f->waits = HP_MIN(2 * f->waits, (uint32_t)REFUSED_WAITS_MAX);
}

/* ------------------------------------------------------------------ the registration of a union */

/* Register [start, end) in place of the regions inside it; on failure nothing has changed. A region that only overlaps
 * stays, so that no bytes are registered but those that misses asked for. told: hits find the region without looking
 * under the lock. */
static int register_union(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, enum hp_region_kind kind,
			  uint64_t gen, bool evict, bool told, struct hp_region **ret_)
{
	struct taking c = { .start = start, .end = end, .access = access | d->access_least,
			    .wanted = access & HP_ACCESS_ALL };
	int err;

	if (end - start > d->len_max)
		return -EMSGSIZE;
	if (is_discarded(d, start, end, access, gen))
		return -EBUSY;
	err = was_refused(d, start, end, gen);
	if (err)
		return err;
	hp_region_each(d, start, end, add_inside, &c);
	err = hp_region_register(d, start, end, c.access, kind, gen, evict, ret_);
	if (err) {
		note_refusal(d, start, end, gen, err);
		return err;
	}
	if (c.regions) {
		HP_DSTAT(d, merged, 1);
		HP_DSTAT(d, widened, c.lacking != 0);
	}
	c.by = *ret_;
	hp_region_each(d, start, end, supersede, &c);
	hp_region_publish(*ret_, told);
	if (c.regions) {
		hp_region_settle(d);
		hp_region_deregister_dead(d);
	}
	return 0;
}

static uintptr_t round_down(uintptr_t x, uintptr_t power_of_two)
{
	return x & ~(power_of_two - 1);
}

/* Whether [from, to) may be registered as an extent. Since one pin holds all of its extent, whole extents take at most
 * half of the budget, and the other half serves pins elsewhere. An extent of which a part is still held is left out. */
static bool may_take_whole(hugepin_domain *d, uintptr_t from, uintptr_t to, unsigned access)
{
	const uint64_t most = d->bytes_max / 2;
	uint64_t extents = d->extent_bytes;

	if (!hp_is_pinning(access))
		return true;
	for (unsigned i = 0; d->ready && i < d->ready->count; i++) {
		const struct hp_ready *r = &d->ready->list[i];

		if (r->kind == HP_REGION_EXTENT && hp_is_ready(r) && r->start != from)
			extents += r->end - r->start;
	}
	return extents <= most && to - from <= most - extents && !hp_region_any_holds_part(d, from, to);
}

/* Whether the hugepages [start, end) may be registered for a pin of [addr, addr_end). They may not if the budget is
 * below two hugepages, because one small pin would then leave no room for a second one. */
static bool may_round_up(const hugepin_domain *d, uintptr_t start, uintptr_t end, uintptr_t addr, uintptr_t addr_end,
			 unsigned access)
{
	return !hp_is_pinning(access) || d->bytes_max >= 2 * HP_PAGE ||
	       (round_down(addr, hp_base_page) == start && hp_round_up(addr_end, hp_base_page) == end);
}

/* Note whether the region ends before the range because no longer one was possible. */
static int cut_at(struct hp_region *r, uintptr_t wanted_end)
{
	r->cut = r->end < wanted_end;
	return 0;
}

/* The ranges that may be registered for a pin in the heap: its hugepages, or else the extent. */
struct heap_range {
	uintptr_t start, end; /* the hugepages */
	uintptr_t from, to; /* the extent, or the piece of it that one registration may have */
	uint64_t gen;
};

static int find_in_heap(const hugepin_domain *d, uintptr_t addr, uintptr_t addr_end, struct heap_range *ret_)
{
	uintptr_t start = round_down(addr, HP_PAGE), end = hp_round_up(addr_end, HP_PAGE), from, to;
	struct hugepin_extent x;

	if (!hp_heap_extent((void *)addr, &x))
		return -EFAULT;
	from = (uintptr_t)x.addr;
	to = from + x.len;
	if (addr_end > to)
		return -EFAULT;
	if (x.len > d->len_max) { /* register one of several equal pieces: the one in which the range begins */
		size_t piece = round_down(d->len_max, HP_PAGE);

		if (!piece)
			return -EMSGSIZE;
		from += (addr - from) / piece * piece;
		to = HP_MIN(to, from + piece);
		end = HP_MIN(end, to);
	}
	*ret_ = (struct heap_range){ start, end, from, to, x.gen };
	return 0;
}

static bool takes_extents(const hugepin_domain *d, unsigned access)
{
	return hp_is_pinning(access) ? d->policy == HUGEPIN_POLICY_ARENA : d->odp == HUGEPIN_ODP_NATIVE;
}

/* The access of an extent that is registered for a pin. */
static unsigned extent_access(const hugepin_domain *d, unsigned access)
{
	return access | (d->access & ~d->exact);
}

/* Register for a pin in the heap. A hugepage of which the program discarded a part (MADV_DONTNEED) is not registered
 * along with a pinned buffer, because the discard is announced before its pages go and no event says when they have
 * gone. Until the heap gives such a hugepage back, only the base pages of a pin are registered, and only for that
 * pin. */
static int cover_heap(hugepin_domain *d, uintptr_t addr, uintptr_t addr_end, unsigned access, bool evict,
		      struct hp_region **ret_)
{
	struct heap_range h;
	uintptr_t mapped;
	int err = find_in_heap(d, addr, addr_end, &h);

	if (err)
		return err;
	/* Try the extent as a whole, but evict no other region for it (evict is false). */
	err = -EMSGSIZE;
	if (takes_extents(d, access) && may_take_whole(d, h.from, h.to, access))
		err = register_union(d, h.from, h.to, extent_access(d, access), HP_REGION_EXTENT, h.gen, false, true,
				     ret_);
	if (err && !may_round_up(d, h.start, h.end, addr, addr_end, access))
		return -ENOBUFS;
	if (err)
		err = register_union(d, h.start, h.end, access, HP_REGION_RUN, h.gen, evict, true, ret_);
	/* Before Linux 6.5 io_uring refuses a buffer that lies in two hugetlb mappings. */
	if (err == -EINVAL || err == -EOPNOTSUPP) {
		mapped = h.start + hp_heap_mapping(h.start);
		if (mapped < h.end)
			err = register_union(d, h.start, mapped, access, HP_REGION_RUN, h.gen, evict, true, ret_);
	}
	return err ? err : cut_at(*ret_, addr_end);
}

/* Round the foreign range [start, end) out to aligned blocks, so that a window that moves by a little is found
 * registered. A block is cut at the bounds of the mapping that the range begins or ends in, because what lies beyond may
 * have other rights, or be a file's. Only memory that the kernel watches is rounded: another thread may just have
 * announced that it unmaps what no pin asked for, and nobody else tells when that has gone. Blocks take at most a
 * quarter of the budget beyond what pins asked for. hugepin_register() is left alone, since what lies ready has the
 * lengths that the program named. */
static bool round_foreign(const hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access,
			  struct hp_stretch *ret_)
{
	const uint64_t most = d->bytes_max / 4;
	struct hp_stretch first, last;
	uint64_t more;

	if (!d->round_mask || !d->watched || !hp_uffd_works() || d->ready || !hp_is_pinning(access) ||
	    !((start | end) & d->round_mask) || !hp_uffd_mapping(start, &first))
		return false;
	last = first;
	if (end > first.end && !hp_uffd_mapping(end - 1, &last))
		return false;
	*ret_ = (struct hp_stretch){ HP_MAX(start & ~d->round_mask, first.start),
				     HP_MIN((end - 1) | d->round_mask, last.end - 1) + 1 };
	more = (ret_->end - ret_->start) - (end - start);
	return more && d->rounded_bytes <= most && more <= most - d->rounded_bytes;
}

/* A rounded range evicts others only if the exact one would, too. If it cannot be registered, perhaps for a page that
 * cannot be pinned, the exact one is. */
static int cover_foreign(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, bool evict,
			 struct hp_region **ret_)
{
	uintptr_t to = start + HP_MIN(end - start, d->len_max);
	struct hp_stretch s;
	int err;

	if (round_foreign(d, start, end, access, &s) &&
	    register_union(d, s.start, s.end, access, HP_REGION_FOREIGN, 0,
			   evict && !hp_region_fits(d, end - start, access, NULL), true, ret_) == 0) {
		hp_region_notes_of(*ret_)->rounded = (s.end - s.start) - (end - start);
		d->rounded_bytes += hp_region_notes_of(*ret_)->rounded;
		return cut_at(*ret_, end);
	}
	err = register_union(d, start, to, access, HP_REGION_FOREIGN, 0, evict, true, ret_);
	return err ? err : cut_at(*ret_, end);
}

/* Register for a pin with remote access separately, so that no memory around the range is opened to the peer and no
 * other region is replaced. */
static int cover_exact(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, bool evict,
		       struct hp_region **ret_)
{
	uintptr_t to = start + HP_MIN(end - start, d->len_max);
	struct hugepin_extent x = { .gen = 0 };
	int err;

	if (hp_in_span(d, start)) {
		if (!hp_heap_extent((void *)start, &x) || end > (uintptr_t)x.addr + x.len)
			return -EFAULT;
	}
	if (is_discarded(d, start, to, access, x.gen))
		return -EBUSY;
	err = hp_region_register(d, start, to, access | d->access_least, x.gen ? HP_REGION_RUN : HP_REGION_FOREIGN,
				 x.gen, evict, ret_);
	if (err)
		return err;
	hp_region_publish(*ret_, true);
	return cut_at(*ret_, end);
}

/* Whether pinning failed for a reason that on-demand memory does not have: the budget, or that nobody would tell when
 * the memory goes away. */
static bool is_for_demand(int err)
{
	return err == -ENOBUFS || err == -EAGAIN || err == -ENOMEM || err == -EPERM || err == -ENXIO || err == -EXDEV ||
	       err == -EADDRINUSE || err == -EBUSY;
}

static void count_once(hugepin_domain *d, enum hp_once why)
{
	switch (why) {
	case HP_ONCE_POLICY: HP_DSTAT(d, uncached_policy, 1); break;
	case HP_ONCE_ASKED: HP_DSTAT(d, uncached_asked, 1); break;
	case HP_ONCE_CHANGING: HP_DSTAT(d, uncached_changing, 1); break;
	case HP_ONCE_SHARED: HP_DSTAT(d, uncached_shared, 1); break;
	case HP_ONCE_UNWATCHED:
	case HP_ONCE_UNWATCHABLE: HP_DSTAT(d, uncached_unwatched, 1); break;
	case HP_ONCE_DISCARDED: HP_DSTAT(d, uncached_discarded, 1); break;
	case HP_ONCE_BUDGET: HP_DSTAT(d, uncached_budget, 1); break;
	case HP_ONCE_LENGTH:
	case HP_ONCE_LOST:
	case HP_ONCE_DEVICE: HP_DSTAT(d, uncached_other, 1); break;
	}
}

static int cover_once(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, enum hp_once why,
		      bool evict, struct hp_region **ret_)
{
	const bool hybrid = d->policy == HUGEPIN_POLICY_HYBRID;
	uintptr_t to = start + HP_MIN(end - start, d->len_max);
	int err = hp_region_register(d, start, to, access | sort_of(d), HP_REGION_UNCACHED, 0, evict && !hybrid,
				     ret_);

	if (hybrid && is_for_demand(err))
		err = hp_region_register(d, start, to, access | HUGEPIN_ON_DEMAND, HP_REGION_UNCACHED, 0, evict, ret_);
	if (err)
		return err;
	count_once(d, why);
	hp_probe_uncached(d->number, start, to - start, why);
	return cut_at(*ret_, end);
}

/* The reason to register for one pin only, from the error of the attempt to register for longer. */
static enum hp_once reason_of(int err)
{
	switch (err) {
	case -ENXIO: return HP_ONCE_UNWATCHED;
	case -EXDEV: return HP_ONCE_SHARED;
	case -EADDRINUSE: return HP_ONCE_UNWATCHABLE;
	case -EBUSY: return HP_ONCE_DISCARDED;
	case -ENOBUFS:
	case -EAGAIN:
	case -ENOMEM: return HP_ONCE_BUDGET;
	case -EMSGSIZE: return HP_ONCE_LENGTH;
	case -EFAULT:
	case -ENOENT: return HP_ONCE_LOST;
	default: return HP_ONCE_DEVICE;
	}
}

/* Register for pins of [addr, addr + len), as the head of this file says. Under hybrid nothing is evicted for a pin:
 * memory that has no room, or cannot stay registered while pinned, is registered on demand. */
static int cover(hugepin_domain *d, uintptr_t addr, size_t len, unsigned access, bool evict, struct hp_region **ret_)
{
	uintptr_t start = round_down(addr, hp_base_page), end = hp_round_up(addr + len, hp_base_page);
	const bool either = d->policy == HUGEPIN_POLICY_HYBRID && hp_is_pinning(access), evicts = evict && !either;
	int err;

	access |= sort_of(d);
	/* hybrid never evicts in order to pin, but the table has to serve all domains */
	if (evict && hp_is_exact(d, access))
		hp_evict_exact(d);
	if (hp_is_exact(d, access))
		err = cover_exact(d, start, end, access, evicts, ret_);
	else if (hp_in_span(d, addr))
		err = cover_heap(d, addr, addr + len, access, evicts, ret_);
	else
		err = cover_foreign(d, start, end, access, evicts, ret_);
	return either && is_for_demand(err) ? cover(d, addr, len, access | HUGEPIN_ON_DEMAND, evict, ret_) : err;
}

/* ------------------------------------------------------------------ bringing in */

/* Have the device bring in [start, end) of r. As the backend's prefetch(). */
static int bring_in_all(hugepin_domain *d, const struct hp_region *r, uintptr_t start, uintptr_t end)
{
	int state = hp_foreign_begin(), result = d->backend->prefetch(d->ctx, &r->reg, (void *)start, end - start);

	hp_foreign_end(state);
	HP_DSTAT(d, brought_bytes, result == 0 ? end - start : 0);
	return result;
}

int hp_cover_bring_in(hugepin_domain *d, const struct hp_region *r, uintptr_t start, uintptr_t end)
{
	int result = 0;

	if (!d->backend->prefetch)
		return -EOPNOTSUPP;
	if (!hp_region_is_heap(r))
		return bring_in_all(d, r, start, end);
	for (uintptr_t at = start, next, from = start; at < end && result >= 0; at = next) {
		bool free = hp_heap_is_free(round_down(at, HP_PAGE), HP_PAGE, 0);
		int part = 0;

		next = HP_MIN(round_down(at, HP_PAGE) + HP_PAGE, end);
		if (free && from < at)
			part = bring_in_all(d, r, from, at);
		else if (!free && next == end)
			part = bring_in_all(d, r, from, end);
		result = part < 0 ? part : result | part;
		from = free ? next : from;
	}
	return result;
}

/* Bring in memory that was just registered for a pin or a hint. The service thread does this if the work may wait, the
 * region can be found later, and it has not too much to do already. Under a helper, the helper brings memory in
 * itself. */
static void bring_in_new(hugepin_domain *d, const struct hp_region *r, bool may_wait)
{
	struct hp_prefetch hint = {
		.addr = (void *)r->start, .len = r->end - r->start, .access = r->access, .missed = true
	};

	if (!r->on_demand || d->odp == HUGEPIN_ODP_NATIVE || (d->helper && r->kind != HP_REGION_UNCACHED))
		return;
	if (d->odp == HUGEPIN_ODP_ENHANCED || r->kind == HP_REGION_UNCACHED)
		hp_cover_bring_in(d, r, r->start, r->end);
	else if (may_wait && hp_hints_push(d, hint) == 0)
		d->hinted = true;
	else if (may_wait)
		hp_cover_bring_in(d, r, r->start, r->end);
}

/* ------------------------------------------------------------------ for a pin */

struct hp_region *hp_cover_find(hugepin_domain *d, uintptr_t addr, size_t len, unsigned access)
{
	struct hp_region *r;

	if (hp_is_exact(d, access)) {
		uintptr_t start = round_down(addr, hp_base_page), end = hp_round_up(addr + len, hp_base_page);

		return hp_region_find_exact(d, start, start + HP_MIN(end - start, d->len_max),
					    access | d->access_least);
	}
	r = hp_region_find(d, addr, access);
	return r && (len <= r->end - addr || r->cut) ? r : NULL;
}

int hp_cover_pin(hugepin_domain *d, const void *addr_, size_t len, unsigned access, int once, bool evict, bool waits,
		 struct hp_region **ret_)
{
	uintptr_t addr = (uintptr_t)addr_, start = round_down(addr, hp_base_page),
		  end = hp_round_up(addr + len, hp_base_page);
	int err;

	if (once == HP_CACHED && (*ret_ = hp_cover_find(d, addr, len, access)))
		return 0;
	HP_DSTAT(d, misses, 1);
	hp_probe_miss(d->number, addr, len, access);
	if (hp_trace_on)
		hp_trace(HP_TRACE_MISS, d, start, end);
	if (!hp_domain_may_register(d))
		return -EPERM;
	if (once == HP_CACHED) {
		err = cover(d, addr, len, access, evict, ret_);
		if (!err) {
			bring_in_new(d, *ret_, true);
			return 0;
		}
		if (err == -EAGAIN && waits)
			goto out_later;
		once = (int)reason_of(err);
	}
	HP_DSTAT(d, uncached, 1);
	/* If others hold the room for good, as much was evicted for this pin as may be. */
	err = cover_once(d, start, end, access, (enum hp_once)once,
			 evict && !(once == (int)HP_ONCE_BUDGET && d->lingering_stale), ret_);
	if (err)
		HP_DSTAT(d, uncached, -1);
	else
		bring_in_new(d, *ret_, true);
	if (err != -EAGAIN)
		return err;
	if (!waits)
		return -ENOBUFS;
out_later:
	HP_DSTAT(d, misses, -1); /* it counts when it is tried again */
	return -EAGAIN;
}

int hp_cover_dmabuf(hugepin_domain *d, const struct hp_dmabuf *dmabuf, uintptr_t start, size_t len, unsigned access,
		    bool evict, struct hp_region **ret_)
{
	const uintptr_t end = start + HP_MIN(len, d->len_max);
	int err;

	HP_DSTAT(d, misses, 1);
	hp_probe_miss(d->number, start, len, access);
	if (!hp_domain_may_register(d))
		return -EPERM;
	d->dmabuf = dmabuf;
	err = hp_region_register(d, start, end, access, HP_REGION_UNCACHED, 0, evict, ret_);
	d->dmabuf = NULL;
	if (err)
		return err == -EAGAIN ? -ENOBUFS : err;
	HP_DSTAT(d, uncached, 1);
	count_once(d, HP_ONCE_ASKED);
	hp_probe_uncached(d->number, start, end - start, HP_ONCE_ASKED);
	return 0;
}

/* ------------------------------------------------------------------ registering in the other way */

int hp_cover_turn(hugepin_domain *d, struct hp_region *r, bool on_demand, bool evict, struct hp_region **ret_)
{
	unsigned access = r->access | (on_demand ? HUGEPIN_ON_DEMAND : 0);
	struct hugepin_extent x = { .gen = 0 };
	int err;

	HP_ASSERT(r->state == HP_REGION_LIVE && r->on_demand != on_demand);
	if (!hp_domain_may_register(d))
		return -EPERM;
	if (hp_region_is_heap(r) && !hp_heap_extent((void *)r->start, &x))
		return -ENOENT;
	if (is_discarded(d, r->start, r->end, access, x.gen))
		return -EBUSY;
	d->turning = r;
	err = hp_region_register(d, r->start, r->end, access, (enum hp_region_kind)r->kind, x.gen, evict, ret_);
	d->turning = NULL;
	if (err)
		return err;
	(*ret_)->cut = r->cut;
	hp_region_evicted(r, HP_EVICTED_TURNED);
	hp_region_unpublish(r);
	hp_region_publish(*ret_, true);
	hp_region_settle(d);
	hp_region_deregister_dead(d);
	return 0;
}

/* ------------------------------------------------------------------ ahead of pins */

int hp_cover_ahead(hugepin_domain *d, const void *addr_, size_t len, unsigned access, struct hp_region **ret_)
{
	uintptr_t addr = (uintptr_t)addr_;
	struct hp_region *r = hp_cover_find(d, addr, len, access);
	int err;

	if (!r) {
		err = d->policy == HUGEPIN_POLICY_NONE ? -EOPNOTSUPP : cover(d, addr, len, access, false, &r);
		if (err)
			return err;
		bring_in_new(d, r, false);
	}
	if (r->kind == HP_REGION_FOREIGN || hp_region_is_exact(r))
		hp_lookup_remember(d, addr, r);
	*ret_ = r;
	return 0;
}

void hp_cover_hint(hugepin_domain *d, const struct hp_prefetch *hint)
{
	uintptr_t addr = (uintptr_t)hint->addr;
	struct hp_region *r = NULL;
	int result = 0;

	if (hint->missed)
		r = hp_cover_find(d, addr, hint->len, hint->access);
	else
		result = hp_cover_ahead(d, hint->addr, hint->len, hint->access, &r);
	if (r && r->on_demand && d->odp == HUGEPIN_ODP_OPTIMAL)
		result = hp_cover_bring_in(d, r, addr, addr + HP_MIN(hint->len, r->end - addr));
	if (hint->missed)
		return;
	HP_DSTAT(d, prefetched, result >= 0);
	HP_DSTAT(d, prefetched_otherwise, result > 0);
}

/* Whether a foreseen registration, from number `from` on, is going to replace [start, end). */
static bool is_replaced(const hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned from)
{
	for (unsigned i = from; i < d->ready->count; i++) {
		const struct hp_ready *r = &d->ready->list[i];

		if (r->start <= start && r->end >= end)
			return true;
	}
	return false;
}

/* As add_inside(), for a range that is registered after all registrations that are foreseen so far. */
static void add_foreseen(void *taking, struct hp_region *r)
{
	if (!is_replaced(r->domain, r->start, r->end, 0))
		add_inside(taking, r);
}

/* Note that a pin will register [start, end), unless it may not. The new region will also have the access of the
 * regions inside it, except if it is exact. */
static bool foresee(hugepin_domain *d, uintptr_t start, uintptr_t end, unsigned access, enum hp_region_kind kind,
		    uint64_t gen, struct hp_ready *ret_)
{
	struct taking c = { .start = start, .end = end, .access = access | d->access_least };

	if (end - start > d->len_max || is_discarded(d, start, end, access, gen) ||
	    !hp_region_fits(d, end - start, access, NULL))
		return false;
	if (!hp_is_exact(d, access)) {
		hp_region_each(d, start, end, add_foreseen, &c);
		for (unsigned i = 0; i < d->ready->count; i++) {
			const struct hp_ready *r = &d->ready->list[i];

			if (start <= r->start && end >= r->end && !is_replaced(d, r->start, r->end, i + 1))
				c.access |= r->access;
		}
	}
	*ret_ = (struct hp_ready){ .start = start, .end = end, .access = c.access, .kind = kind, .gen = gen };
	return true;
}

bool hp_cover_foresee(hugepin_domain *d, const void *addr_, size_t len, unsigned access, struct hp_ready *ret_)
{
	uintptr_t addr = (uintptr_t)addr_, start = round_down(addr, hp_base_page),
		  end = hp_round_up(addr + len, hp_base_page), to = start + HP_MIN(end - start, d->len_max);
	struct heap_range h = { .gen = 0 };

	if (hp_in_span(d, addr) && find_in_heap(d, addr, addr + len, &h) != 0)
		return false;
	access |= sort_of(d);
	if (hp_is_exact(d, access))
		return foresee(d, start, to, access, h.gen ? HP_REGION_RUN : HP_REGION_FOREIGN, h.gen, ret_);
	if (!h.gen)
		return foresee(d, start, to, access, HP_REGION_FOREIGN, 0, ret_);
	if (takes_extents(d, access) && may_take_whole(d, h.from, h.to, access) &&
	    foresee(d, h.from, h.to, extent_access(d, access), HP_REGION_EXTENT, h.gen, ret_))
		return true;
	return may_round_up(d, h.start, h.end, addr, addr + len, access) &&
	       foresee(d, h.start, h.end, access, HP_REGION_RUN, h.gen, ret_);
}

/* No granule names these regions yet, so the first pin of an extent takes the slow path, which notes the region
 * there. */
void hp_cover_new_extents(hugepin_domain *d)
{
	struct hugepin_extent x;
	const uint64_t latest = hp_heap_latest_extent();
	unsigned access = d->access & ~d->exact;
	struct hp_region *r;

	/* Without an access, every pin without one of its own gets an exact region. */
	if (!access || d->extent_gen == latest)
		return;
	for (uintptr_t at = d->span_base; hp_heap_next_extent(at, &x); at = (uintptr_t)x.addr + x.len) {
		uintptr_t start = (uintptr_t)x.addr;

		if (x.gen <= d->extent_gen)
			continue;
		if (x.len <= d->len_max && may_take_whole(d, start, start + x.len, access) &&
		    !hp_region_find(d, start, 0) &&
		    register_union(d, start, start + x.len, access, HP_REGION_EXTENT, x.gen, false, false, &r) == 0)
			HP_DSTAT(d, ahead, 1);
	}
	d->extent_gen = latest; /* a younger one asks for another run */
}
