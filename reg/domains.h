/*
 * The table of domains: which are open, and which thread may use one.
 *
 * Domains are never freed, but closed and used again: the reader of events walks them without a lock.
 */
#ifndef HP_REG_DOMAINS_H
#define HP_REG_DOMAINS_H

#include "base/service.h"
#include "reg/state.h"

/* ------------------------------------------------------------------ opening and closing */

/* The lock of opening and closing. */
void hp_domains_lock(void);
void hp_domains_unlock(void);

/* A place for a domain that is to be opened, and memory for it. 0 and *ret_, -ENOMEM, or -ENOSPC. With the lock. */
int hp_domains_place(hugepin_domain **ret_);

/* d is open from now on, and its pins have refs of their own; or it is not any more. With the lock. */
void hp_domains_add(hugepin_domain *d);
void hp_domains_remove(hugepin_domain *d);

/* Wait until nobody holds d open; nobody does from here on, until closing ends. False: another thread closes it. */
bool hp_domains_start_closing(hugepin_domain *d);
void hp_domains_end_closing(hugepin_domain *d);

/* Whether one is open. */
bool hp_domains_any(void);

/* In the child of fork: all that are open are the parent's. */
void hp_domains_child(void);

/* ------------------------------------------------------------------ all that are open */

/* Call each() for every open domain, without a lock; it must not block. */
void hp_domains_each(void (*each)(hugepin_domain *d, void *arg), void *arg);

/* The same, for each that is not being closed, which stays open meanwhile: it may block. No lock is held. */
void hp_domains_each_held(void (*each)(hugepin_domain *d, void *arg), void *arg);

/* What the service thread does for domains: queued ranges, the dead, prefetches, new extents. serve.c has the
 * function. */
extern struct hp_job hp_domains_job;

/* Ask for it. wake() never starts the thread, so may be called anywhere; start() does: no lock is held. */
void hp_domains_wake(void);
void hp_domains_start(void);

/* ------------------------------------------------------------------ threads */

/* Of this thread: no other has it, or had. Not 0. */
uint64_t hp_thread_number(void);

/* This thread ends: the domains that only it may use may be closed by others. */
void hp_domains_thread_ends(void);

/* This thread may call the backend. */
bool hp_domain_may_register(const hugepin_domain *d);

/* For the service thread: take the domain's lock. False: it is in a call of a slow device. */
bool hp_domain_lock_soon(hugepin_domain *d);

/* Unmappings are announced by the interposed calls of libhugepin-malloc.so (unmapping.h). */
extern bool hp_sees_unmaps __attribute__((visibility("hidden")));

#endif
