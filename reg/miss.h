/*
 * Pins that are no hit (miss.c), and what hits and misses share.
 */
#ifndef HP_REG_MISS_H
#define HP_REG_MISS_H

#include <string.h>
#include <sys/single_threaded.h>

#include "reg/domains.h"
#include "reg/state.h"

/* Whether another thread may be changing memory without an announcement. Then hits must ask the kernel. */
static inline bool hp_must_ask(const hugepin_domain *d)
{
	return !__libc_single_threaded && (!hp_sees_unmaps || d->watch == HUGEPIN_WATCH_KERNEL);
}

/* Fill in a pin, both keys in one store. */
static inline void hp_pin_fill(struct hugepin_pin *pin, uintptr_t base, size_t len, uint64_t keys, uint64_t ref)
{
	_Static_assert(
		sizeof *pin == 32 && offsetof(struct hugepin_pin, rkey) == offsetof(struct hugepin_pin, lkey) + 4, "");
	pin->base = base;
	pin->len = len;
	memcpy(&pin->lkey, &keys, sizeof keys);
	pin->ref = ref;
}

/* The parts of a pin that is no hit. The calling thread must have counters (counts.h). */

/* The access of a pin. A pin that names none beside HP_PIN_BITS gets the domain's. */
unsigned hp_pin_access(const hugepin_domain *d, unsigned access);

/* 0, or why the arguments are refused. */
int hp_pin_check(const hugepin_domain *d, const void *addr, size_t len, unsigned access);

/* Whether a region of foreign memory may be trusted to be the memory that is there now. It may not while memory changes
 * all the time. Waits at most a second. */
bool hp_pin_settled(const hugepin_domain *d, const void *addr, size_t len);

/* enter(): lock the domain, unpublish the regions in queued ranges, and deregister dead regions. leave(): unlock the
 * domain, wake the helper to take the record of the miss, and see to it that a program of several threads has a service
 * thread, which deregisters what goes away. */
void hp_pin_enter(hugepin_domain *d);
void hp_pin_leave(hugepin_domain *d);

/* Pin by a region that is there or is registered now. once, waits: as hp_cover_pin(); time, site: for the helper. */
int hp_pin_locked(hugepin_domain *d, const void *addr, size_t len, unsigned access, int once, bool waits,
		  uint64_t time, uint64_t site, struct hugepin_pin *ret_);

/* Tell the lend if `err` says that there was no room, unless the pin may take none from others. Call before leave(). */
void hp_pin_tell_crowded(const hugepin_domain *d, const void *addr, size_t len, unsigned access, int err);

/* The rest of a pin that found nothing, one function for each way to pin: hugepin_pin(), hugepin_sg_key(),
 * hugepin_key_pin() (-ENOKEY: the key is no longer good) and hugepin_pin_try(). site: the place of the program's call,
 * or 0. */
int hp_pin_missed(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_,
		  uint64_t site);
int hp_key_missed(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);
int hp_held_missed(hugepin_domain *d, const struct hugepin_key *key, uint64_t site);
int hp_try_missed(hugepin_domain *d, const void *addr, size_t len, unsigned access, hugepin_pinned_fn done, void *arg,
		  struct hugepin_pin *ret_, uint64_t site);

/* A pin of the domain's lend (lent.h), which makes room itself and so is not told that there is none. */
int hp_pin_for_lend(hugepin_domain *d, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* The region of a first hit: under hybrid it may be registered on demand and not be in memory. */
void hp_pin_bring_in(hugepin_domain *d, struct hp_region *r);

/* For the service thread: pin for a request, as hugepin_pin(). False: the domain's lock stays taken, or other threads
 * have to let go of what the backend holds. *ret_err: 0 and *ret_, or -errno. */
bool hp_pin_for(hugepin_domain *d, const struct hp_pin_request *q, struct hugepin_pin *ret_, int *ret_err);

#endif
