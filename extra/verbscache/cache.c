/*
 * See cache.h.
 *
 * Each protection domain has a domain of the pin cache (domain.h), which decides what stays registered, and knows
 * whether memory is still the same. A registration that was made while its range was pinned is of the same memory for
 * as long as the range is found:
 *
 *	reg	pin the range. Hand out its registration if nobody has it, made anew if it is of other bytes.
 *	dereg	unpin.
 *
 * A registration has one owner at a time. A second request for an equal one meanwhile gets one of its own, which is not
 * kept.
 */
#include "cache.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "domain.h"
#include "real.h"

enum { BUCKETS = 4096 };

LIST_HEAD(owned, hp_slot);

/* Nothing is called with the lock held. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct owned owned[BUCKETS]; /* by the address of the ibv_mr */

struct hp_verbscache_counters hp_verbscache_counters;

/* ------------------------------------------------------------------ owners */

static struct owned *bucket_of(const struct ibv_mr *mr)
{
	return &owned[((uintptr_t)mr >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 52];
}

/* Call with the lock. */
static struct hp_slot *find_owned(const struct ibv_mr *mr)
{
	struct hp_slot *s;

	LIST_FOREACH(s, bucket_of(mr), member)
		if (s->mr == mr)
			return s;
	return NULL;
}

/* Take the slot of a registration from the program. */
static struct hp_slot *take_owned(const struct ibv_mr *mr)
{
	struct hp_slot *s;

	pthread_mutex_lock(&lock);
	s = find_owned(mr);
	if (s)
		LIST_REMOVE(s, member);
	pthread_mutex_unlock(&lock);
	return s;
}

/* Be the owner of a pinned slot, unless it has one. */
static bool claim(struct hp_slot *s, hugepin_domain *domain, const struct hugepin_pin *pin)
{
	bool mine;

	pthread_mutex_lock(&lock);
	mine = !s->owned;
	if (mine) {
		s->owned = true;
		s->domain = domain;
		s->pin = *pin;
	}
	pthread_mutex_unlock(&lock);
	return mine;
}

/* Give a slot that is owned, but not in the table, back to its domain. Another thread may have it before this
 * returns. */
static void give_back(struct hp_slot *s)
{
	hugepin_domain *domain = s->domain;
	struct hugepin_pin pin = s->pin;

	pthread_mutex_lock(&lock);
	s->owned = false;
	pthread_mutex_unlock(&lock);
	hugepin_unpin(domain, &pin);
}

/* The registration in a slot is the program's own from now on. */
static void forget(struct hp_slot *s)
{
	hp_slot_take(s);
	give_back(s);
}

static void hand_out(struct hp_slot *s)
{
	struct hp_slot *old;

	pthread_mutex_lock(&lock);
	old = find_owned(s->mr);
	if (old)
		LIST_REMOVE(old, member);
	LIST_INSERT_HEAD(bucket_of(s->mr), s, member);
	pthread_mutex_unlock(&lock);
	/* One that was at this address has gone by a call that did not come through this library. */
	if (old)
		forget(old);
}

void hp_cache_disown(const struct ibv_mr *mr)
{
	struct hp_slot *s = take_owned(mr);

	if (s)
		forget(s);
}

static struct hp_slot *take_owned_of(const struct ibv_pd *pd, const struct ibv_context *context, unsigned *at)
{
	struct hp_slot *s = NULL;

	pthread_mutex_lock(&lock);
	for (; *at < BUCKETS; ++*at) {
		LIST_FOREACH(s, &owned[*at], member)
			if ((!pd || s->made.pd == pd) && (!context || s->made.context == context))
				break;
		if (s) {
			LIST_REMOVE(s, member);
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	return s;
}

void hp_cache_disown_all(const struct ibv_pd *pd, const struct ibv_context *context)
{
	struct hp_slot *s;
	unsigned at = 0;

	while ((s = take_owned_of(pd, context, &at)))
		forget(s);
}

/* ------------------------------------------------------------------ what the program asks for */

static bool is_full(int err)
{
	return err == ENOMEM || err == EAGAIN || err == ENOSPC;
}

struct ibv_mr *hp_cache_pass(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	struct ibv_mr *mr = hp_real()->reg(pd, addr, len, iova, access);

	if (!mr && is_full(errno) && hp_pds_trim())
		mr = hp_real()->reg(pd, addr, len, iova, access);
	if (mr) {
		HP_VERBSCACHE_COUNT(made);
		hp_cache_disown(mr); /* as in hand_out() */
	}
	return mr;
}

static bool is_equal(const struct hp_slot *s, const struct hp_shape *shape)
{
	return s->mr && s->shape.addr == shape->addr && s->shape.len == shape->len && s->shape.access == shape->access;
}

/* Register other bytes of the same pages in the place of a slot's registration, which nobody has. 0 or errno. */
static int make_anew(struct hp_slot *s, const struct hp_shape *shape)
{
	struct ibv_mr *old = hp_slot_take(s);
	int err;

	if (old)
		hp_real()->dereg(old);
	err = hp_slot_make(s, shape);
	if (is_full(err) && hp_pds_trim())
		err = hp_slot_make(s, shape);
	return err;
}

struct ibv_mr *hp_cache_reg(struct ibv_pd *pd, void *addr, size_t len, unsigned access)
{
	const struct hp_shape shape = { (uintptr_t)addr, len, access };
	hugepin_domain *domain = hp_pd_domain(pd);
	struct hugepin_pin pin;
	struct hp_slot *s = domain ? hp_slot_pin(domain, &shape, &pin) : NULL;
	bool made;
	int err;

	if (!s)
		return hp_cache_pass(pd, addr, len, (uintptr_t)addr, access);
	if (!claim(s, domain, &pin)) {
		hugepin_unpin(domain, &pin);
		return hp_cache_pass(pd, addr, len, (uintptr_t)addr, access);
	}
	made = s->fresh;
	s->fresh = false;
	if (!is_equal(s, &shape)) {
		err = make_anew(s, &shape);
		if (err) {
			give_back(s);
			errno = err;
			return NULL;
		}
		made = true;
	}
	if (made)
		HP_VERBSCACHE_COUNT(made);
	else
		HP_VERBSCACHE_COUNT(kept);
	hand_out(s);
	return s->mr;
}

/* Without the padding behind the last member, rkey. */
static bool is_as_made(const struct hp_slot *s)
{
	return !memcmp(s->mr, &s->made, offsetof(struct ibv_mr, rkey) + sizeof s->mr->rkey);
}

int hp_cache_dereg(struct ibv_mr *mr)
{
	struct hp_slot *s = take_owned(mr);

	/* A registration that is not as it was made is another one at the same address, or was written to. */
	if (s && !is_as_made(s)) {
		forget(s);
		s = NULL;
	}
	if (!s)
		return hp_real()->dereg(mr);
	give_back(s);
	return 0;
}
