/*
 * What threads tell the helper (helper.c): a bounded ring of records for each thread, which its owner fills and the
 * helper empties (Li et al. 2011, section 4.1: the deregistration queue). No lock, no shared write, no system call
 * while the helper is awake. A full ring drops what is new, and counts it: who pins that often gives nothing back in
 * between.
 */
#ifndef HP_REG_RECORD_H
#define HP_REG_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if defined __x86_64__
#include <x86intrin.h>
#endif

#include "base/base.h"

enum hp_record_kind {
	HP_RECORD_END, /* of a pin; value: the region's index */
	HP_RECORD_START, /* of the first pin since the helper looked; value: the region's index */
	HP_RECORD_MISS, /* of a pin that found nothing registered; value: the index of what it registered */
};

struct hp_record {
	uint64_t time; /* hp_record_time() */
	uint64_t subject; /* kind in the top byte, then the value */
	uint64_t site; /* of the call, not 0, but for END */
};
#define HP_RECORD(kind, value) ((uint64_t)(kind) << 56 | (uint64_t)(value))
#define HP_RECORD_KIND(subject) ((enum hp_record_kind)((subject) >> 56))
#define HP_RECORD_VALUE(subject) ((subject) & (UINT64_MAX >> 8))

enum {
	HP_RECORDS_MAX = 512,
	HP_RECORDS_DOMAINS = 64,
	HP_RECORDS_SKIP = 64, /* that are dropped after a ring was found full, before it is looked at again */
};

struct hp_records {
	/* The owner's. */
	_Alignas(64) _Atomic uint32_t head; /* records ever pushed */
	uint32_t tail_seen;
	uint32_t skip;
	_Atomic uint32_t lost[HP_RECORDS_DOMAINS]; /* records of each domain ever dropped */
	/* The helper's. */
	_Alignas(64) _Atomic uint32_t tail; /* records ever taken */
	struct hp_record record[HP_RECORDS_MAX];
};

/* ------------------------------------------------------------------ time */

/* Where the processor's time stamp counter is what the kernel's clock goes by, it is read; else the clock. */
extern bool hp_record_by_counter;

static inline uint64_t hp_record_time(void)
{
#if defined __x86_64__
	if (HP_LIKELY(hp_record_by_counter))
		return __rdtsc();
#endif
	return hp_clock_ns();
}

/* How the processor's counter goes by the clock. */
struct hp_record_clock {
	uint64_t ticks, ns; /* at one moment */
	uint64_t ns_per_tick; /* 32 bits behind the point */
};

/* Find out whether the counter can be read, and how it goes; later calls do nothing. Takes a fraction of a millisecond,
 * and then hp_record_calibrate() now and again corrects it. Both with the lock of opening. */
void hp_record_open_clock(void);
void hp_record_calibrate(void);

void hp_record_get_clock(struct hp_record_clock *ret_);

/* A record's time in ns of hp_clock_ns(). */
uint64_t hp_record_ns(const struct hp_record_clock *clock, uint64_t time);

/* ------------------------------------------------------------------ rings */

/* Whether there is room for one more record of the owner's; else it is counted as lost by the domain. What the helper
 * writes is looked at as seldom as can be. */
static inline bool hp_record_room(struct hp_records *q, uint32_t domain)
{
	uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);

	if (HP_LIKELY(head - q->tail_seen < HP_RECORDS_MAX))
		return true;
	if (!q->skip) {
		/* pairs with helper.c:collect_from() */
		q->tail_seen = atomic_load_explicit(&q->tail, memory_order_acquire);
		if (head - q->tail_seen < HP_RECORDS_MAX)
			return true;
		q->skip = HP_RECORDS_SKIP;
	}
	q->skip--;
	atomic_store_explicit(&q->lost[domain], atomic_load_explicit(&q->lost[domain], memory_order_relaxed) + 1,
			      memory_order_relaxed);
	return false;
}

/* By the owner, if there is room. release: who sees the head sees the record; pairs with helper.c:collect_from(). */
static inline void hp_record_push(struct hp_records *q, uint64_t time, uint64_t subject, uint64_t site)
{
	uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);

	q->record[head % HP_RECORDS_MAX] = (struct hp_record){ time, subject, site };
	atomic_store_explicit(&q->head, head + 1, memory_order_release);
}

/* ------------------------------------------------------------------ the queue */

enum { HP_RECORD_QUEUE_MAX = 2 * HP_RECORDS_MAX };
#define HP_RECORD_STALE (UINT64_C(1) << 32) /* no record waits longer; a clock that went back further began anew */

/* Records come thread by thread, those of each thread in the order of time. They leave in the order of time. */
struct hp_record_queue {
	struct hp_record_queued {
		struct hp_record record;
		uint32_t number; /* in the order in which they came: decides between records of one time */
	} record[HP_RECORD_QUEUE_MAX];
	unsigned count;
	uint32_t number; /* of the next; wraps */
};

/* Fewer than HP_RECORD_QUEUE_MAX are in it. */
void hp_record_enqueue(struct hp_record_queue *q, const struct hp_record *record);

/* The oldest; it is not empty. */
struct hp_record hp_record_dequeue(struct hp_record_queue *q);

/* After records were lost: a record of a miss is right by itself, the others are not. Returns how many were dropped. */
unsigned hp_record_drop_all_but_misses(struct hp_record_queue *q);

#endif
