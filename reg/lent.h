/*
 * What the pin cache does for lend/: indexes for borrowed keys, news of registrations that are lent, and letting go of
 * them.
 *
 * A lent piece of memory has a pin. So its registration, its pages and its key stay until the pin is given back. The
 * pin cache asks for pins back by news.
 */
#ifndef HP_REG_LENT_H
#define HP_REG_LENT_H

#include "reg/state.h"

/* Hear of memory that went away: the watcher has queued it, and in a program of one thread only pins look. listen()
 * takes nanoseconds if there is none, else the domain's lock. settle() also asks the kernel, as a hit on foreign memory
 * does: memory may be gone whose event was not read yet. Takes the domain's lock. Waits some milliseconds at most.
 * False: memory goes on changing, so nothing that is registered may be trusted now. */
void hp_lent_listen(hugepin_domain *d);
bool hp_lent_settle(hugepin_domain *d);

/* Set the domain's lend. 0; -EBUSY: the domain has one; -EOPNOTSUPP: only one thread may register; -EINVAL: NULL,
 * closed, or the parent process's. clear: from the return on no function is called. */
int hp_lent_set(hugepin_domain *d, const struct hp_lend_hooks *hooks, void *lend);
void hp_lent_clear(hugepin_domain *d);

/* The budget in bytes; UINT64_MAX - 1 or more: none. */
uint64_t hp_lent_budget(const hugepin_domain *d);

/* Whether the domain's remote pins open their exact pages; whether its device has this access. */
bool hp_lent_exact(const hugepin_domain *d);
bool hp_lent_access(const hugepin_domain *d, unsigned access);

/* A bucket is a pin of the lend's and, from its unpin on, what may stay registered of that. pin() returns as
 * hugepin_pin(), with the registered range. If there is no room, the lend is not told by crowded(). unpin() notes that
 * pins from now on are others'; ends: of the bucket. drop() ends a bucket that was unpinned. At its end the registration
 * goes if no pin is out and none was made since the lend's, and this thread may deregister. The registration's end is no
 * news then, unless another bucket has it. All take the domain's lock, and block for the backend. */
int hp_lent_pin(hugepin_domain *d, uint64_t addr, size_t len, unsigned access, struct hugepin_pin *ret_,
		uint64_t *ret_start, uint64_t *ret_end);
void hp_lent_unpin(hugepin_domain *d, struct hugepin_pin *pin, uint64_t start, uint64_t end, bool ends);
void hp_lent_drop(hugepin_domain *d, uint32_t region, uint64_t start, uint64_t end);

/* An index of the table of regions that no region has: uses of a borrowed key are counted at it, by counts.h. 0: none
 * is left. Give it back when no use is out, and never in a child of fork, whose table is empty. */
uint32_t hp_lent_index_new(void);
void hp_lent_index_free(uint32_t index);

#endif
