/*
 * Records by which threads tell the helper (track.c) of their pins. Each thread fills a bounded ring of records, which
 * the helper empties (Li et al. 2011, section 4.1: the deregistration queue). Pushing takes no lock, shares no write,
 * and makes no system call while the helper is awake. A full ring drops and counts new records, since a program that
 * pins this often leaves the helper no time to give memory back in between.
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
	HP_RECORD_END, /* the end of a pin; value: the region's index */
	HP_RECORD_START, /* the first pin since the helper looked; value: the region's index */
	HP_RECORD_MISS, /* a pin that found no region; value: the index of the region that it registered */
};

struct hp_record {
	uint64_t time; /* hp_record_time() */
	uint64_t subject; /* kind in the top byte, then the value */
	uint64_t site; /* of the program's call; 0: not known, or an END */
};
#define HP_RECORD(kind, value) ((uint64_t)(kind) << 56 | (uint64_t)(value))
#define HP_RECORD_KIND(subject) ((enum hp_record_kind)((subject) >> 56))
#define HP_RECORD_VALUE(subject) ((subject) & (UINT64_MAX >> 8))

enum {
	HP_RECORDS_MAX = 512,
	HP_RECORDS_LOSSES = 64, /* counters of dropped records; a domain has that of its number, modulo this */
	HP_RECORDS_SKIP = 64, /* records dropped after a ring was found full, before its tail is read again */
};

struct hp_records {
	/* Written by the owner. relaxed: the owner alone stores; collect_from() reads what hp_record_push() released */
	_Alignas(64) _Atomic uint32_t head; /* records ever pushed */
	uint32_t tail_seen;
	uint32_t skip;
	/* relaxed: the owner alone stores; seen late, the next run counts it */
	_Atomic uint32_t lost[HP_RECORDS_LOSSES]; /* records ever dropped */
	/* Written by the helper, except the records. relaxed: one run at a time has the lock of records;
	 * hp_record_room() reads what was released */
	_Alignas(64) _Atomic uint32_t tail; /* records ever taken */
	struct hp_record record[HP_RECORDS_MAX];
};

/* ------------------------------------------------------------------ time */

/* Whether records are timed by the processor's time stamp counter, because the kernel's clock uses it. Otherwise they
 * are timed by the kernel's clock. */
extern bool hp_record_by_counter;

static inline uint64_t hp_record_time(void)
{
#if defined __x86_64__
	if (HP_LIKELY(hp_record_by_counter))
		return __rdtsc();
#endif
	return hp_clock_ns();
}

/* The processor's counter against the kernel's clock. */
struct hp_record_clock {
	uint64_t ticks, ns; /* both read at one moment */
	uint64_t ns_per_tick; /* fixed point, with 32 bits behind the point */
};

/* open_clock() finds out whether the counter can be used, and its rate; the first call takes a fraction of a
 * millisecond, later calls do nothing. calibrate(), called from time to time, corrects the rate. Call both with the
 * lock of opening. */
void hp_record_open_clock(void);
void hp_record_calibrate(void);

void hp_record_get_clock(struct hp_record_clock *ret_);

/* A record's time in ns of hp_clock_ns(). */
uint64_t hp_record_ns(const struct hp_record_clock *clock, uint64_t time);

/* ------------------------------------------------------------------ rings */

/* For the owner: whether the ring has room for one more record. If not, the record is counted as lost by the domain of
 * this number, and by those that share its counter. They then take their own records for incomplete, which costs time
 * but teaches nothing wrong. The tail, which the helper writes, is read as seldom as possible. */
static inline bool hp_record_room(struct hp_records *q, uint32_t domain)
{
	uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
	_Atomic uint32_t *lost;

	if (HP_LIKELY(head - q->tail_seen < HP_RECORDS_MAX))
		return true;
	if (!q->skip) {
		/* pairs with track.c:collect_from() */
		q->tail_seen = atomic_load_explicit(&q->tail, memory_order_acquire);
		if (head - q->tail_seen < HP_RECORDS_MAX)
			return true;
		q->skip = HP_RECORDS_SKIP;
	}
	q->skip--;
	lost = &q->lost[domain % HP_RECORDS_LOSSES];
	atomic_store_explicit(lost, atomic_load_explicit(lost, memory_order_relaxed) + 1, memory_order_relaxed);
	return false;
}

/* For the owner, if there is room. release: a thread that sees the head sees the record; pairs with
 * track.c:collect_from(). */
static inline void hp_record_push(struct hp_records *q, uint64_t time, uint64_t subject, uint64_t site)
{
	uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);

	q->record[head % HP_RECORDS_MAX] = (struct hp_record){ time, subject, site };
	atomic_store_explicit(&q->head, head + 1, memory_order_release);
}

/* ------------------------------------------------------------------ the queue */

enum { HP_RECORD_QUEUE_MAX = 2 * HP_RECORDS_MAX };
/* In units of record time. A larger step back is a restarted clock, because no record waits that long for the
 * helper. */
#define HP_RECORD_STALE (UINT64_C(1) << 32)

/* Sorts records by time. They enter thread by thread, and those of one thread are already in the order of time. */
struct hp_record_queue {
	struct hp_record_queued {
		struct hp_record record;
		/* counts the records in the order in which they came: decides between records of the same time */
		uint32_t number;
	} record[HP_RECORD_QUEUE_MAX];
	unsigned count;
	uint32_t number; /* number of the next record; wraps */
};

/* Add a record. The queue has fewer than HP_RECORD_QUEUE_MAX. */
void hp_record_enqueue(struct hp_record_queue *q, const struct hp_record *record);

/* Remove and return the oldest record. The queue is not empty. */
struct hp_record hp_record_dequeue(struct hp_record_queue *q);

/* Called after records were lost. Keeps records of misses, which are right without the lost ones, and drops the others.
 * Returns the number dropped. */
unsigned hp_record_drop_all_but_misses(struct hp_record_queue *q);

#endif
