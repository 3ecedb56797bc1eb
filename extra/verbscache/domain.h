/*
 * The domains of the pin cache under the cache of registrations: each protection domain of the program has one, by
 * whose backend a range is registered with libibverbs for the program's bytes and access.
 */
#ifndef HP_VERBSCACHE_DOMAIN_H
#define HP_VERBSCACHE_DOMAIN_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "hugepin.h"
#include "shape.h"

struct hp_place;

/* A registration with libibverbs, as long as the pin cache has it. */
struct hp_slot {
	struct ibv_mr *mr; /* NULL: it is the program's own now, or could not be made */
	struct ibv_mr made; /* as libibverbs made it */
	struct hp_shape shape;
	const struct hp_place *place; /* its protection domain */
	bool on_demand;
	bool fresh; /* made for the program's request, which has not got it yet */
	/* Of the cache (cache.c), under its lock: */
	bool owned; /* by the program, by this pin */
	hugepin_domain *domain;
	struct hugepin_pin pin;
	LIST_ENTRY(hp_slot) member; /* of those that are owned */
	/* of all, where detectors of leaks find it: they do not look into the pin cache's tables */
	LIST_ENTRY(hp_slot) all;
};

/* Whether this process has the cache. The first that asks has it. A child of fork has its parent's registrations, and
 * no part in the cache: there only this function may be called. */
bool hp_cache_is_ours(void);

/* Begin a call of the program. False: this process has no cache, or this thread is in such a call already: a function
 * of the program runs within it, as a hook on mmap, or a signal handler. Then nothing here may be called. */
bool hp_cache_enter(void);
void hp_cache_leave(void);

/* The domain of a protection domain, opened if need be. NULL: it cannot be opened, or there are too many. */
hugepin_domain *hp_pd_domain(struct ibv_pd *);

/* Pin a shape, and return its slot, which stays as long as the pin does. NULL: it cannot be pinned. */
struct hp_slot *hp_slot_pin(hugepin_domain *, const struct hp_shape *, struct hugepin_pin *ret_);

/* Register a shape with libibverbs in a slot that has no registration. 0 or errno. */
int hp_slot_make(struct hp_slot *, const struct hp_shape *);

/* Take the registration out of a slot. Who takes it deregisters it, once the slot has none: its memory may be brought
 * in meanwhile. NULL: there was none. */
struct ibv_mr *hp_slot_take(struct hp_slot *);

/* Deregister all that is in no use. Returns whether there was any. */
bool hp_pds_trim(void);

/* Close the domain of a protection domain (NULL: of all) of a device (NULL: of all). A domain with registrations that
 * the program has stays, without all others. */
void hp_pds_close(const struct ibv_pd *, const struct ibv_context *);

/* Register nothing ahead in between: what was deregistered stays so. */
void hp_pds_pause(void);
void hp_pds_resume(void);

/* A transfer of these bytes is announced, or comes to a phase (hugepin_prefetch): for what was registered of them. */
void hp_pds_phase(const void *addr, size_t len, unsigned phase);

#endif
