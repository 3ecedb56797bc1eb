/*
 * The knowledge of a domain's helper (track.c): tracked ranges, and what the plan has been told of them. Call with the
 * domain's lock, except where a comment says otherwise.
 *
 * A tracked range is or was registered. The plan knows it by its number, and calls it a region. It keeps its number
 * while it is not registered, so a new registration of the same range is the same tracked range.
 */
#ifndef HP_REG_TRACK_H
#define HP_REG_TRACK_H

#include <bsd/sys/tree.h>
#include <sys/queue.h>

#include "reg/policy/cost.h"
#include "reg/policy/paging.h"
#include "reg/policy/plan.h"
#include "reg/record.h"
#include "reg/region.h"

struct hp_tracked {
	uintptr_t start, end;
	uint64_t site; /* the site of the last use */
	/* Start of this registration, in the time of records. Records from shortly before it belong to the region that
	 * had this index before. */
	uint64_t since;
	uint32_t access, backing;
	/* the access of an exact region, because exact regions of other access may have the same range; 0: not exact */
	uint32_t exact;
	uint32_t region; /* the region's index; 0: not registered */
	uint32_t uses; /* uses whose start the plan was told, but not yet their end */
	/* known: the plan was told of the range; told: also that the range is registered, or under hybrid, that a
	 * transfer need not wait for its memory */
	bool known, told;
	bool used; /* has `site` */
	uint32_t next; /* the next free one */
	/* Under hybrid: */
	bool refused; /* it cannot be pinned, for a reason that lasts */
	struct hp_paging_habits habits;
	uint64_t ended_ns; /* the end of its last use, or 0 */
	uint64_t begun_ns; /* when the helper began to make it ready for the next use; 0: it has not */
	struct hp_stake stake; /* while in `released` */
	TAILQ_ENTRY(hp_tracked) order; /* in `released` */
	RB_ENTRY(hp_tracked) node; /* in `by_start` */
};
RB_HEAD(hp_tracked_tree, hp_tracked);

struct hp_helper {
	struct hp_plan *plan;
	bool saves; /* the plan's mode is HP_PLAN_SAVE */
	bool pages; /* the policy is hybrid */
	double fault_ns[2]; /* as in struct hp_paging_terms */
	uint32_t last; /* under hybrid, the range on demand whose use has ended last; or 0 */
	struct hp_record_clock clock;
	struct hp_cost cost;
	uint32_t sharers; /* helpers on this core, this one included; 0: this helper may not run, or has not run yet */
	struct hp_record pending[HP_RECORD_QUEUE_MAX]; /* under records_lock */
	unsigned pending_count;
	struct hp_record_queue queue; /* records that wait until the plan is told of them */
	/* relaxed: written under the domain's lock; else a number */
	uint64_t bytes; /* of all tracked ranges */
	uint32_t lost_pending; /* records for which there was no room in `pending` */
	uint32_t lost_queued; /* records of misses for which there was no room in `queue` */
	uint32_t lost_seen; /* records lost by the rings, that are already counted */
	bool any; /* there were records since the helper's last run */
	bool crowded; /* records were lost, so the plan's knowledge is not reliable */
	TAILQ_HEAD(, hp_tracked) released; /* not registered, oldest first */
	uint32_t released_count, tracked_used, tracked_free, tracked_opened; /* opened: numbers below have memory */
	struct hp_tracked_tree by_start; /* the tracked ranges in `released` */
	size_t len_max; /* the longest range that was ever in `released` */
	uint32_t *tracked_of; /* number of the tracked range, by region */
	struct hp_tracked *tracked; /* table of tracked ranges, from number 1 up */
};

/* Make room for tracked ranges, in a new helper. free() also frees the helper; own: it is not the parent process's. 0 or
 * -ENOMEM. The plan is the caller's. */
int hp_track_new(struct hp_helper *h);
void hp_track_free(struct hp_helper *h, bool own);

/* The bytes of the tracked ranges of all helpers of this process. */
uint64_t hp_track_bytes(void);

/* From now on the domain's records are h's; NULL: nobody's. Called with the lock of opening. */
void hp_track_attach(hugepin_domain *d, struct hp_helper *h);

/* Called in the child of fork. */
void hp_track_child(void);

/* The time now: in the unit of records, and in ns of the domain's clock. */
uint64_t hp_track_time(const hugepin_domain *d);
uint64_t hp_track_now(const hugepin_domain *d);

/* Whether pinned memory has a budget, within which a region stays pinned until another one needs the room. */
static inline bool hp_has_budget(const hugepin_domain *d)
{
	return d->bytes_max < UINT64_MAX - 1;
}

static inline uint32_t hp_tracked_id(const struct hp_helper *h, const struct hp_tracked *p)
{
	return (uint32_t)(p - h->tracked);
}

static inline bool hp_tracked_on_demand(const struct hp_tracked *p)
{
	return p->region && hp_regions[p->region].on_demand;
}

/* The tracked range of a region. *ret_new: the region had none before. NULL: there are too many. */
struct hp_tracked *hp_tracked_of(struct hp_helper *h, struct hp_region *r, bool *ret_new);

/* Forget a range that is not registered. */
void hp_tracked_forget(struct hp_helper *h, struct hp_tracked *p);

/* The expected time of an operation on so many bytes of p beside the other helpers on this core; and learn the time
 * that it took. */
uint64_t hp_tracked_work_ns(const struct hp_helper *h, const struct hp_tracked *p, uint64_t bytes,
			    enum hp_cost_kind kind);
void hp_tracked_learn(hugepin_domain *d, const struct hp_tracked *p, uint64_t bytes, enum hp_cost_kind kind,
		      uint64_t ns);

/* Move the domain's records into its queue, as far as there is room. False: records were lost. The others are then
 * dropped, except those of misses, because a sequence with gaps teaches nothing right, and must not slow down a program
 * that pins this often. */
bool hp_track_collect(hugepin_domain *d);

/* Take the oldest record out of the queue, which is not empty, and tell the plan of it. */
void hp_track_tell(hugepin_domain *d);

/* Tell the plan that p is registered (under hybrid: ready), that it no longer is, or that one of its uses has ended. */
void hp_track_registered(struct hp_helper *h, struct hp_tracked *p, uint64_t now_ns);
void hp_track_deregistered(struct hp_helper *h, struct hp_tracked *p, uint64_t now_ns);
void hp_track_end_use(struct hp_helper *h, struct hp_tracked *p, uint64_t now_ns);

/* Note a pin that took the slow path at `time`. registered: the pin missed, and r was registered for it; otherwise the
 * pin found r by looking again. The caller wakes the helper after releasing the lock. */
void hp_track_missed(hugepin_domain *d, struct hp_region *r, uint64_t time, uint64_t site, bool registered);

/* r was deregistered. gone: its memory went away, or is part of another region. */
void hp_track_left(hugepin_domain *d, struct hp_region *r, bool gone);

/* The memory goes away, now or soon, so ranges there that are not registered must not be registered before they are
 * pinned again. */
void hp_track_gone(hugepin_domain *d, uintptr_t start, uintptr_t end);

#endif
