/*
 * The pin cache's functions for lend/: indexes for borrowed keys, news of registrations that are lent, and letting go
 * of them.
 *
 * A lent piece of memory has a pin, so its registration, pages and key stay until the pin is given back. The pin cache
 * asks for pins back by news.
 */
#ifndef HP_REG_LENT_H
#define HP_REG_LENT_H

#include "reg/state.h"

/* Do the work for memory that went away, which otherwise waits: the watcher has only queued the ranges, and in a
 * program of one thread only pins look at the queue. listen() takes nanoseconds if the queue is empty, else the
 * domain's lock. settle() takes the lock and also asks the kernel, as a hit on foreign memory does, because an event
 * may not have been read yet. It waits some milliseconds at most. False: memory goes on changing, so no registration
 * may be trusted now. */
void hp_lent_listen(hugepin_domain *d);
bool hp_lent_settle(hugepin_domain *d);

/* Set the domain's lend. 0; -EBUSY: the domain has one; -EOPNOTSUPP: only one thread may register; -EINVAL: NULL,
 * closed, or the parent process's. After clear() returns no function is called any more. */
int hp_lent_set(hugepin_domain *d, const struct hp_lend_hooks *hooks, void *lend);
void hp_lent_clear(hugepin_domain *d);

/* The budget in bytes; UINT64_MAX - 1 or more: none. */
uint64_t hp_lent_budget(const hugepin_domain *d);

/* Whether the domain's remote pins open their exact pages; whether its device has this access. */
bool hp_lent_exact(const hugepin_domain *d);
bool hp_lent_access(const hugepin_domain *d, unsigned access);

/* A bucket is a pin of the lend's and, after its unpin, the registration that may remain of it. pin() returns as
 * hugepin_pin(), with the registered range; if there is no room, crowded() is not called. unpin() notes that pins from
 * now on are others'; ends: this also ends the bucket. drop() ends a bucket that was unpinned, and forget() one whose
 * registration is left alone. When a bucket ends otherwise, the registration goes if no pin is out, none was made since
 * the lend's, and this thread may deregister. The lend gets no news of that end unless another bucket has the
 * registration. All take the domain's lock, and block for the backend. */
int hp_lent_pin(hugepin_domain *d, uint64_t addr, size_t len, unsigned access, struct hugepin_pin *ret_,
		uint64_t *ret_start, uint64_t *ret_end);
void hp_lent_unpin(hugepin_domain *d, struct hugepin_pin *pin, uint64_t start, uint64_t end, bool ends);
void hp_lent_drop(hugepin_domain *d, uint32_t region, uint64_t start, uint64_t end);
void hp_lent_forget(hugepin_domain *d, uint32_t region, uint64_t start, uint64_t end);

/* Reserve an index in the table of regions, at which uses of a borrowed key are counted (counts.h). 0: none is left, or
 * all lends together have half of the table. Give it back when no use is out, but never in a child of fork, whose table
 * is empty. */
uint32_t hp_lent_index_new(void);
void hp_lent_index_free(uint32_t index);

#endif
