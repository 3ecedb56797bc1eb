/*
 * A pool of slots for the queues of a domain: making and destroying it, and giving slots out by the rule in pool.h.
 */
#include "sge/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sge/error.h"
#include "sge/id.h"
#include "sge/receive.h"

#define LINE ((size_t)64)
#define SLOTS_MAX (1u << 20)
#define SGES_MAX 256u

bool hp_sgpool_attach(struct hugepin_sgpool *p)
{
	pthread_mutex_lock(&p->lock);
	const bool room = p->free_count > p->owed;
	p->owed += room;
	p->queues += room;
	pthread_mutex_unlock(&p->lock);
	return room;
}

void hp_sgpool_detach(struct hugepin_sgpool *p)
{
	pthread_mutex_lock(&p->lock);
	p->owed--;
	p->queues--;
	pthread_mutex_unlock(&p->lock);
}

uint32_t hp_sgpool_most(struct hugepin_sgpool *p)
{
	pthread_mutex_lock(&p->lock);
	const uint32_t queues = p->queues;
	pthread_mutex_unlock(&p->lock);
	return 1 + (p->slots_max - queues + 1) / 2;
}

bool hp_sgpool_take(struct hugepin_sgpool *p, uint32_t mine, uint32_t *ret_slot)
{
	pthread_mutex_lock(&p->lock);
	const bool may = hp_sgpool_may_take(mine, p->free_count - p->owed);
	if (may) {
		*ret_slot = p->free[--p->free_count];
		p->owed -= !mine;
	}
	pthread_mutex_unlock(&p->lock);
	return may;
}

void hp_sgpool_give(struct hugepin_sgpool *p, uint32_t mine, uint32_t slot)
{
	pthread_mutex_lock(&p->lock);
	p->free[p->free_count++] = slot;
	p->owed += mine == 1;
	pthread_mutex_unlock(&p->lock);
}

/* Post the receives that are idle, with the lock held. 0, or the provider's error; the rest is posted with the next
 * completion. */
static int post_idle(struct hugepin_sgpool *p)
{
	int err = 0;

	while (p->idle_count && !err) {
		const uint32_t slot = p->idle[p->idle_count - 1];
		struct ibv_sge sge = { .addr = (uintptr_t)p->recv_slots + slot * p->recv_bytes,
				       .length = p->frame_bytes, .lkey = p->recv_pin.lkey };
		struct ibv_recv_wr *bad, wr = { .wr_id = p->taker.id | HP_SGQ_ID_RECV | slot, .sg_list = &sge, .num_sge = 1 };

		err = hp_verbs_error(ibv_post_srq_recv(p->srq, &wr, &bad));
		if (!err) {
			p->recv_out[slot] = true;
			p->idle_count--;
		}
	}
	return err;
}

static int take_received(struct hp_taker *taker, const struct ibv_wc *wc)
{
	struct hugepin_sgpool *p = (struct hugepin_sgpool *)taker;
	const int saved_errno = errno;
	const uint32_t slot = wc->wr_id & HP_SGQ_ID_LOW;

	if (p->generation != hp_sgq_generation)
		return -ESTALE;
	if (!(wc->wr_id & HP_SGQ_ID_RECV) || slot >= p->recv_max)
		return 0;
	pthread_mutex_lock(&p->lock);
	const bool out = p->recv_out[slot];
	p->recv_out[slot] = false;
	p->receiving += out;
	pthread_mutex_unlock(&p->lock);
	if (!out)
		return 0;
	/* The slot is this thread's now. A receive that failed with its queue pair has no data. */
	if (!wc->status) {
		const struct hp_sg_receiver to = { p->recv, p->recv_arg, 0, p->frame_bytes, false };
		hp_sg_hand_out(&to, wc, p->recv_slots + slot * p->recv_bytes);
	}
	pthread_mutex_lock(&p->lock);
	p->receiving--;
	p->idle[p->idle_count++] = slot;
	post_idle(p);
	pthread_mutex_unlock(&p->lock);
	errno = saved_errno;
	return 1;
}

static int make_receives(struct hugepin_sgpool *p)
{
	const size_t len = p->recv_max * p->recv_bytes;

	p->recv_out = calloc(p->recv_max, sizeof *p->recv_out);
	p->idle = calloc(p->recv_max, sizeof *p->idle);
	p->recv_slots = hugepin_aligned_alloc(HUGEPIN_LARGE_MIN, len);
	if (!p->recv_out || !p->idle || !p->recv_slots)
		return -ENOMEM;
	int err = hugepin_pin(p->domain, p->recv_slots, len, HUGEPIN_READ | HUGEPIN_WRITE, &p->recv_pin);
	if (err || p->recv_pin.len < len)
		return err ? err : -ENOBUFS;
	while (p->idle_count < p->recv_max) {
		p->idle[p->idle_count] = p->recv_max - 1 - p->idle_count;
		p->idle_count++;
	}
	err = post_idle(p);
	return p->idle_count == p->recv_max ? err : 0; /* if some are posted, the others follow */
}

static void destroy_pool(struct hugepin_sgpool *p)
{
	hp_taker_close(&p->taker);
	/* in a child of fork these return -ESTALE: there is nothing to unpin */
	if (p->slots_pin.ref)
		hugepin_unpin(p->domain, &p->slots_pin);
	hugepin_free(p->slots);
	free(p->frame);
	free(p->sge);
	free(p->pin);
	free(p->wr);
	free(p->free);
	if (p->recv_pin.ref)
		hugepin_unpin(p->domain, &p->recv_pin);
	hugepin_free(p->recv_slots);
	free(p->recv_out);
	free(p->idle);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static int make_pool(struct hugepin_sgpool *p)
{
	const size_t n = p->slots_max, len = n * p->slot_bytes;

	p->frame = calloc(n, sizeof *p->frame);
	p->sge = calloc(n * (p->max_sge + 1), sizeof *p->sge);
	p->pin = calloc(n * p->max_sge, sizeof *p->pin);
	p->wr = calloc(n, sizeof *p->wr);
	p->free = calloc(n, sizeof *p->free);
	p->slots = hugepin_aligned_alloc(HUGEPIN_LARGE_MIN, len);
	if (!p->frame || !p->sge || !p->pin || !p->wr || !p->free || !p->slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		p->free[p->free_count++] = (uint32_t)n - 1 - i;
	const int err = hugepin_pin(p->domain, p->slots, len, HUGEPIN_READ, &p->slots_pin);
	if (err || p->slots_pin.len < len)
		return err ? err : -ENOBUFS;
	return p->recv_max ? make_receives(p) : 0;
}

int hugepin_sgpool_open(const struct hugepin_sgpool_attr *attr, hugepin_sgpool **ret_)
{
	struct hugepin_sgpool_attr a = { 0 };
	const int saved_errno = errno;

	if (!attr || !ret_ || attr->size < sizeof a)
		return -EINVAL;
	memcpy(&a, attr, sizeof a);
	a.frame_bytes = a.frame_bytes ? a.frame_bytes : 8192;
	a.max_sge = a.max_sge ? a.max_sge : 16;
	if (!a.domain || !a.slots || a.slots > SLOTS_MAX || a.max_sge > SGES_MAX ||
	    a.recv_slots > SLOTS_MAX || (a.recv_slots && (!a.srq || !a.recv)) ||
	    a.frame_bytes < HUGEPIN_SG_TABLE(1) + 1 || a.frame_bytes > UINT32_MAX / 2)
		return -EINVAL;
	struct hugepin_sgpool *p = calloc(1, sizeof *p);
	if (!p) {
		errno = saved_errno;
		return -ENOMEM;
	}
	hp_sgq_watch_forks();
	p->domain = a.domain;
	p->generation = hp_sgq_generation;
	p->slots_max = a.slots;
	p->frame_bytes = a.frame_bytes;
	p->max_sge = a.max_sge;
	p->subs_max = HP_MIN(HP_MAX(a.frame_bytes / 64, 16u), (a.frame_bytes - (uint32_t)HUGEPIN_SG_HEADER) / 12);
	p->table_room = hp_round_up(HUGEPIN_SG_TABLE(p->subs_max), LINE);
	/* Avoid slots at a distance of a multiple of 4 KiB, which would use the same sets of a cache, and alias. */
	p->slot_bytes = hp_round_up(p->table_room + a.frame_bytes, LINE);
	p->slot_bytes += p->slot_bytes % 4096 ? 0 : LINE;
	p->taker.take = take_received;
	p->srq = a.srq;
	p->recv = a.recv;
	p->recv_arg = a.recv_arg;
	p->recv_max = a.recv_slots;
	p->recv_bytes = hp_round_up(a.frame_bytes, LINE);
	p->recv_bytes += p->recv_bytes % 4096 ? 0 : LINE;
	int err = hp_taker_open(&p->taker);
	if (err) {
		free(p);
		errno = saved_errno;
		return err;
	}
	hp_taker_begin(&p->taker);
	pthread_mutex_init(&p->lock, NULL);
	err = make_pool(p);
	if (err)
		destroy_pool(p);
	else
		*ret_ = p;
	errno = saved_errno;
	return err;
}

int hugepin_sgpool_flush(hugepin_sgpool *p)
{
	const int saved_errno = errno;

	if (!p)
		return -EINVAL;
	if (p->generation != hp_sgq_generation)
		return -ESTALE;
	pthread_mutex_lock(&p->lock);
	const int err = post_idle(p);
	pthread_mutex_unlock(&p->lock);
	errno = saved_errno;
	return err;
}

int hugepin_sgpool_close(hugepin_sgpool *p)
{
	if (!p)
		return -EINVAL;
	if (p->generation == hp_sgq_generation) {
		pthread_mutex_lock(&p->lock);
		const bool used = p->queues || p->receiving;
		pthread_mutex_unlock(&p->lock);
		if (used)
			return -EBUSY;
	}
	destroy_pool(p);
	return 0;
}
