/*
 * The table of domains: which domains are open, and which threads may use them.
 *
 * Domains are never freed, because the reader of events walks the table without a lock. A closed domain's memory is
 * used again.
 */
#ifndef HP_REG_DOMAINS_H
#define HP_REG_DOMAINS_H

#include <errno.h>

#include "base/service.h"
#include "reg/state.h"
#include "reg/work.h"

/* ------------------------------------------------------------------ opening and closing */

/* The lock of opening and closing. */
void hp_domains_lock(void);
void hp_domains_unlock(void);

/* Find a place and memory for a domain that is going to be opened. 0 and *ret_, -ENOMEM, or -ENOSPC. leave() gives the
 * place back if it could not be opened. Call with the lock. */
int hp_domains_place(hugepin_domain **ret_);
void hp_domains_leave_place(hugepin_domain *d);

/* add() marks d as open and gives its pins new refs. remove() marks d as closed. Call with the lock. */
void hp_domains_add(hugepin_domain *d);
void hp_domains_remove(hugepin_domain *d);

/* start_closing() waits until no thread holds d open, and until end_closing() no thread can. False: another thread
 * closes d. end_closing() gives the place of a closed domain back. */
bool hp_domains_start_closing(hugepin_domain *d);
void hp_domains_end_closing(hugepin_domain *d);

/* Whether any domain is open. */
bool hp_domains_any(void);

/* In the child of fork: mark all open domains as the parent's. */
void hp_domains_child(void);

/* ------------------------------------------------------------------ all that are open */

/* Call each() for every open domain, without a lock. each() must not block. */
void hp_domains_each(void (*each)(hugepin_domain *d, void *arg), void *arg);

/* Call each() for every open domain with that work which is not being closed. The domain stays open during the call. No
 * lock is held, and each() may block. A domain that is being closed keeps its bit. */
void hp_domains_each_held(enum hp_work kind, void (*each)(hugepin_domain *d, void *arg), void *arg);

/* The domains that hp_domains_each_held() has looked at so far: for tests. */
extern uint64_t hp_domains_holds;

/* The service thread's job for domains: queued ranges, dead regions, prefetches, new extents. serve.c has its
 * function. */
extern struct hp_job hp_domains_job;

/* Ask for that job. wake() never starts the service thread, so it may be called anywhere. start() may start the thread,
 * so no lock may be held. */
void hp_domains_wake(void);
void hp_domains_start(void);

/* ------------------------------------------------------------------ threads */

/* A number for this thread that no other thread has or had. Never 0. */
uint64_t hp_thread_number(void);

/* This thread ends: other threads may now close the domains that only this thread could use. */
void hp_domains_thread_ends(void);

/* Whether this thread may call the backend. */
bool hp_domain_may_register(const hugepin_domain *d);

/* Take a lock for whose holder this thread must not wait: about 10 ms at most. False: it is still taken. */
bool hp_lock_soon(struct hp_lock *l);

/* For the service thread: take the domain's lock. False: the lock's holder is in a call of a slow device, so the
 * service thread serves other domains and comes back after HP_BUSY_AGAIN_NS. */
static inline bool hp_domain_lock_soon(hugepin_domain *d)
{
	return hp_lock_soon(&d->lock);
}
#define HP_BUSY_AGAIN_NS UINT64_C(10000000)

/* Whether pins wait for the domain's lock, or are about to. */
bool hp_domain_pins_wait(const hugepin_domain *d);

/* For the service thread: let a waiting pin have the lock, since the lock is not fair, and take it again. False: this
 * thread did not get the lock back, as hp_domain_lock_soon(). */
bool hp_domain_let_pass(hugepin_domain *d);

/* begin() and end() surround a call of a backend's function or of the program's callback with a lock held, because a
 * thread that is cancelled in such a call would leave the lock taken. */
int hp_foreign_begin(void);
void hp_foreign_end(int state);

/* What a backend's function has returned, of which a number above 0 is no error to any caller. */
static inline int hp_backend_error(int err)
{
	return err > 0 ? -EIO : err;
}

/* Whether the interposed calls of libhugepin-malloc.so announce unmappings (unmapping.h).
 * relaxed: the thread that sets it unmaps next; a hit that does not see it asks the kernel. */
extern bool hp_sees_unmaps __attribute__((visibility("hidden")));

#endif
