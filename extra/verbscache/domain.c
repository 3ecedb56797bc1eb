/*
 * See domain.h.
 *
 * A domain registers whole base pages for an access, and the program's bytes are a part of these. The thread that pins
 * says which, before it pins (`wanted`). For the helper, which registers ahead of the program's request, it is what the
 * program registered there last (shape.h).
 *
 * Ranges are pinned for peers, since such a pin is registered by itself: no other range ends it or takes its place
 * (HUGEPIN_REACH_EXACT). Memory that cannot be watched is registered for each pin. So it is never kept.
 *
 * Locks, in this order: `closing`; `opening`, which is held while a domain is opened; a domain's own, which is held in
 * its backend; `lock`, never across a call.
 */
#include "domain.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "real.h"
#include "site.h"

/* A protection domain. */
struct hp_place {
	struct ibv_pd *pd;
	const struct ibv_context *context;
	uint64_t number; /* that no other one ever has, since another may be at the same address later */
	hugepin_domain *domain; /* NULL: it could not be opened */
	LIST_ENTRY(hp_place) member, same; /* of all; of those whose protection domains have the same hash */
};
LIST_HEAD(hp_places, hp_place);
enum { HASHES = 1024 };

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static struct hp_places places, by_pd[HASHES];
/* Held for reading while domains are used that this thread has no pin of, so that none is closed meanwhile. */
static pthread_rwlock_t closing = PTHREAD_RWLOCK_INITIALIZER;
static LIST_HEAD(, hp_slot) slots;
/* Nothing is registered ahead while this is not 0. relaxed: whoever raises it takes the lock of each domain afterwards,
 * to deregister all, and it is read with that lock. */
static _Atomic unsigned pauses;

static _Thread_local const struct hp_shape *wanted; /* by this thread, which is pinning it */
/* This thread is in a call of the program, or has a lock: a signal handler that forks here must not wait for it. */
static _Thread_local unsigned inside;

static void take(pthread_mutex_t *l)
{
	inside++;
	pthread_mutex_lock(l);
}

static void leave(pthread_mutex_t *l)
{
	pthread_mutex_unlock(l);
	inside--;
}

/* ------------------------------------------------------------------ the backend */

int hp_slot_make(struct hp_slot *s, const struct hp_shape *shape)
{
	unsigned access = shape->access | (s->on_demand ? (unsigned)IBV_ACCESS_ON_DEMAND : 0);
	int saved_errno = errno, err;
	struct ibv_mr *mr;

	errno = 0;
	mr = hp_real()->reg(s->place->pd, (void *)shape->addr, shape->len, shape->addr, access);
	err = mr ? 0 : errno ? errno : EIO;
	errno = saved_errno;
	if (err)
		return err;
	take(&lock);
	s->mr = mr;
	s->made = *mr;
	s->shape = *shape;
	leave(&lock);
	/* Hybrid registers the same a second time before the first registration ends. */
	hp_shape_remember(s->place->number, shape);
	return 0;
}

struct ibv_mr *hp_slot_take(struct hp_slot *s)
{
	struct ibv_mr *mr;

	take(&lock);
	mr = s->mr;
	s->mr = NULL;
	leave(&lock);
	return mr;
}

/* Both keys together are the address of the slot. */
static struct hp_slot *slot_of(uint32_t lkey, uint32_t rkey)
{
	return (struct hp_slot *)((uintptr_t)rkey << 32 | lkey);
}

static bool is_wanted(uintptr_t start, size_t bytes, unsigned pins)
{
	return wanted && hp_shape_start(wanted) == start && hp_shape_bytes(wanted) == bytes && hp_shape_pins(wanted) == pins;
}

static int slot_reg(void *place_, void *addr, size_t bytes, unsigned access, struct hugepin_reg *ret_)
{
	const struct hp_place *place = place_;
	const unsigned pins = access & ~(unsigned)HUGEPIN_ON_DEMAND;
	const bool fresh = is_wanted((uintptr_t)addr, bytes, pins);
	struct hp_shape shape;
	struct hp_slot *s;
	int err;

	if (fresh)
		shape = *wanted;
	else if (atomic_load_explicit(&pauses, memory_order_relaxed) ||
		 !hp_shape_recall(place->number, (uintptr_t)addr, bytes, pins, &shape))
		return -EBUSY; /* it may be known later */
	s = malloc(sizeof *s);
	if (!s)
		return -ENOMEM;
	*s = (struct hp_slot){ .place = place, .on_demand = access & HUGEPIN_ON_DEMAND, .fresh = fresh };
	err = hp_slot_make(s, &shape);
	if (err) {
		free(s);
		return err == ENOSPC ? -ENOMEM : -err;
	}
	take(&lock);
	LIST_INSERT_HEAD(&slots, s, all);
	leave(&lock);
	*ret_ = (struct hugepin_reg){ (uint32_t)(uintptr_t)s, (uint32_t)((uintptr_t)s >> 32), 0 };
	return 0;
}

static int slot_dereg(void *place, struct hugepin_reg *reg)
{
	struct hp_slot *s = slot_of(reg->lkey, reg->rkey);
	int saved_errno = errno, err = 0;

	if (s->mr) {
		hp_shape_remember(((struct hp_place *)place)->number, &s->shape); /* others may have its place there */
		err = hp_real()->dereg(s->mr);
	}
	errno = saved_errno;
	take(&lock);
	LIST_REMOVE(s, all);
	leave(&lock);
	free(s);
	return err > 0 ? -err : err;
}

/* The part of [addr, addr + len) that a slot's registration has. False: there is none. */
static bool part_of(const struct hp_slot *s, uintptr_t addr, size_t len, struct ibv_sge *ret_)
{
	const uintptr_t start = addr > s->shape.addr ? addr : s->shape.addr;
	const uintptr_t to = s->shape.addr + s->shape.len, end = addr + len < to ? addr + len : to;

	*ret_ = (struct ibv_sge){ .addr = start, .length = (uint32_t)(end - start), .lkey = s->made.lkey };
	return s->mr && start < end && end - start <= UINT32_MAX;
}

/* Some devices accept no advice. Then at least bring the pages into memory, so that the device's own faults are short.
 * The program may register other bytes in the slot meanwhile (hp_slot_make), and the advice then finds no key. */
static int slot_prefetch(void *place, const struct hugepin_reg *reg, void *addr, size_t len)
{
	const struct hp_slot *s = slot_of(reg->lkey, reg->rkey);
	struct ibv_pd *pd = ((struct hp_place *)place)->pd;
	struct verbs_context *v = verbs_get_ctx_op(pd->context, advise_mr);
	int saved_errno = errno, err = 0;
	struct ibv_sge sge;
	bool writes, any;

	take(&lock);
	writes = s->shape.access & IBV_ACCESS_LOCAL_WRITE;
	any = part_of(s, (uintptr_t)addr, len, &sge);
	leave(&lock);
	if (!v || !any ||
	    v->advise_mr(pd, writes ? IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE : IBV_ADVISE_MR_ADVICE_PREFETCH,
			 IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1))
		err = madvise(addr, len, writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) ? -errno : 1;
	errno = saved_errno;
	return err;
}

static bool registers_on_demand(struct ibv_context *context)
{
	const uint32_t needed = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
	struct verbs_context *v = verbs_get_ctx_op(context, query_device_ex);
	struct ibv_device_attr_ex a = { 0 };

	return v && !v->query_device_ex(context, NULL, &a, sizeof a) && a.odp_caps.general_caps & IBV_ODP_SUPPORT &&
	       (a.odp_caps.per_transport_caps.rc_odp_caps & needed) == needed;
}

static int slot_limits(void *place, struct hugepin_limits *ret_)
{
	const size_t locked = hugepin_memlock();

	*ret_ = (struct hugepin_limits){
		.access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE | HUGEPIN_REMOTE_ATOMIC,
		/* The other half is for what the program registers otherwise, and for its queues. */
		.bytes_max = locked ? (locked + 1) / 2 : 0,
		.flags = registers_on_demand(((struct hp_place *)place)->pd->context) ? HUGEPIN_LIMIT_ODP : 0,
	};
	return 0;
}

/* ------------------------------------------------------------------ pins */

struct hp_slot *hp_slot_pin(hugepin_domain *domain, const struct hp_shape *shape, struct hugepin_pin *ret_)
{
	const uintptr_t site = hp_site();
	int err;

	wanted = shape;
	err = hugepin_pin_at(domain, (void *)shape->addr, shape->len, hp_shape_pins(shape), ret_, site);
	wanted = NULL;
	return err ? NULL : slot_of(ret_->lkey, ret_->rkey);
}

/* ------------------------------------------------------------------ domains */

static _Thread_local unsigned pausing; /* so often has this thread paused */

void hp_pds_pause(void)
{
	pausing++;
	atomic_fetch_add_explicit(&pauses, 1, memory_order_relaxed);
}

void hp_pds_resume(void)
{
	atomic_fetch_sub_explicit(&pauses, 1, memory_order_relaxed);
	pausing--;
}

static struct hp_places *hashed(const struct ibv_pd *pd)
{
	return &by_pd[(uintptr_t)pd / 64 % HASHES];
}

static struct hp_place *known(const struct ibv_pd *pd)
{
	struct hp_place *p;

	take(&lock);
	LIST_FOREACH(p, hashed(pd), same)
		if (p->pd == pd)
			break;
	leave(&lock);
	return p;
}

static void add_place(struct hp_place *p)
{
	take(&lock);
	LIST_INSERT_HEAD(&places, p, member);
	LIST_INSERT_HEAD(hashed(p->pd), p, same);
	leave(&lock);
}

/* A domain that cannot be opened is not asked for again: to ask costs calls of the kernel at each registration. */
static struct hp_place *open_place(struct ibv_pd *pd)
{
	static const struct hugepin_backend backend = {
		.size = sizeof backend,
		.name = "verbscache",
		.reg = slot_reg,
		.dereg = slot_dereg,
		.prefetch = slot_prefetch,
		.limits = slot_limits,
	};
	const struct hugepin_attr attr = {
		.size = sizeof attr,
		/* This is for peers alone, so no extent is registered as a whole. */
		.access = HUGEPIN_REMOTE_READ,
		.watch = HUGEPIN_WATCH_KERNEL, /* programs unmap by ways of which libhugepin-malloc.so does not hear */
	};
	static uint64_t numbers; /* `opening` guards it */
	struct hp_place *p = malloc(sizeof *p);

	if (!p)
		return NULL;
	*p = (struct hp_place){ .pd = pd, .context = pd->context, .number = ++numbers };
	if (hugepin_domain_open(&backend, p, &attr, &p->domain))
		p->domain = NULL;
	add_place(p);
	return p;
}

hugepin_domain *hp_pd_domain(struct ibv_pd *pd)
{
	struct hp_place *p = known(pd);
	int saved_errno = errno;

	if (!p) {
		take(&opening);
		p = known(pd);
		p = p ? p : open_place(pd);
		leave(&opening);
	}
	errno = saved_errno;
	return p ? p->domain : NULL;
}

static uint64_t deregistered(hugepin_domain *d)
{
	struct hugepin_domain_stats s = { 0 };

	hugepin_domain_stats(d, &s, sizeof s);
	return s.deregistered;
}

/* The first of the places that are there now, all of which stay until they are let go: others are added before it. */
static const struct hp_place *hold_places(void)
{
	const struct hp_place *first;

	inside++;
	pthread_rwlock_rdlock(&closing);
	take(&lock);
	first = LIST_FIRST(&places);
	leave(&lock);
	return first;
}

static void let_places_go(void)
{
	pthread_rwlock_unlock(&closing);
	inside--;
}

bool hp_pds_trim(void)
{
	int saved_errno = errno;
	bool any = false;

	for (const struct hp_place *p = hold_places(); p; p = LIST_NEXT(p, member)) {
		uint64_t before;

		if (!p->domain)
			continue;
		before = deregistered(p->domain);
		hugepin_domain_trim(p->domain, 0);
		any |= deregistered(p->domain) != before;
	}
	let_places_go();
	errno = saved_errno;
	return any;
}

/* Take a place out of the list. NULL: there is none such. */
static struct hp_place *take_place(const struct ibv_pd *pd, const struct ibv_context *context)
{
	struct hp_place *p = NULL;

	take(&lock);
	if (pd)
		LIST_FOREACH(p, hashed(pd), same)
			if (p->pd == pd && (!context || p->context == context))
				break;
	if (!pd)
		LIST_FOREACH(p, &places, member)
			if (!context || p->context == context)
				break;
	if (p) {
		LIST_REMOVE(p, member);
		LIST_REMOVE(p, same);
	}
	leave(&lock);
	return p;
}

/* Returns whether it is closed. */
static bool close_place(struct hp_place *p)
{
	if (!p->domain || hugepin_domain_close(p->domain) != -EBUSY)
		return true;
	hugepin_domain_trim(p->domain, 0);
	return false;
}

void hp_pds_close(const struct ibv_pd *pd, const struct ibv_context *context)
{
	LIST_HEAD(, hp_place) busy = LIST_HEAD_INITIALIZER(busy);
	int saved_errno = errno;
	struct hp_place *p;

	inside++;
	pthread_rwlock_wrlock(&closing);
	while ((p = take_place(pd, context)))
		if (close_place(p))
			free(p);
		else
			LIST_INSERT_HEAD(&busy, p, member);
	while ((p = LIST_FIRST(&busy))) {
		LIST_REMOVE(p, member);
		add_place(p);
	}
	pthread_rwlock_unlock(&closing);
	inside--;
	errno = saved_errno;
}

void hp_pds_phase(const void *addr, size_t len, unsigned phase)
{
	const struct hp_shape bytes = { .addr = (uintptr_t)addr, .len = len };
	struct hp_shape s;

	for (const struct hp_place *p = hold_places(); p; p = LIST_NEXT(p, member))
		if (p->domain && hp_shape_recall(p->number, hp_shape_start(&bytes), hp_shape_bytes(&bytes), 0, &s))
			hugepin_prefetch(p->domain, (void *)s.addr, s.len, hp_shape_pins(&s) | phase);
	let_places_go();
}

/* ------------------------------------------------------------------ fork */

static bool *ours; /* NULL, or in a page that the kernel empties in a child of fork */
/* Whether they have paused, of this thread's forks under way, a bit each: a signal handler may fork within another. */
static _Thread_local unsigned paused;

/* libibverbs may have told the kernel to leave registered memory out of children. A child is to have what the program
 * has given back. A signal handler may fork wherever it interrupts this thread: in a call of libibverbs what is kept
 * stays. */
static void before_fork(void)
{
	const bool may = !inside && !pausing && hp_cache_is_ours();

	paused = paused << 1 | may;
	if (!may)
		return;
	hp_pds_pause();
	hp_pds_trim();
}

static void after_fork(void)
{
	if (paused & 1)
		hp_pds_resume();
	paused >>= 1;
}

static void become_ours(void)
{
	int saved_errno = errno;
	bool *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page != MAP_FAILED && !madvise(page, sizeof *page, MADV_WIPEONFORK) &&
	    !pthread_atfork(before_fork, after_fork, NULL)) {
		*page = true;
		ours = page;
	}
	errno = saved_errno;
}

bool hp_cache_is_ours(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, become_ours);
	return ours && *ours;
}

bool hp_cache_enter(void)
{
	if (inside++ == 0 && hp_cache_is_ours())
		return true;
	inside--;
	return false;
}

void hp_cache_leave(void)
{
	inside--;
}
