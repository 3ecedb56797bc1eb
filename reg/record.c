/*
 * See record.h.
 *
 * The first part is the time of records: the processor's time stamp counter, if the kernel's clock uses it, and its
 * rate against that clock. The second part is the queue that sorts the records of all threads by time: a heap (Williams
 * 1964) with the oldest first.
 */
#include "reg/record.h"

#include <string.h>

enum {
	CALIBRATION_NS = 200000,
	SETTLED_NS = 1000000000, /* time between calibrations, after the first second */
};

bool hp_record_by_counter;

/* ------------------------------------------------------------------ time */

/* Guarded by the lock of opening. */
static struct hp_record_clock counter;
static bool settled;

/* Read both clocks at one moment. Of three tries the quickest counts, because the thread may lose its processor between
 * the two reads. */
static void look_at_clocks(uint64_t *ret_ticks, uint64_t *ret_ns)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 3; i++) {
		uint64_t ticks = hp_record_time(), ns = hp_clock_ns(), took = hp_record_time() - ticks;

		if (took >= least)
			continue;
		least = took;
		*ret_ticks = ticks;
		*ret_ns = ns;
	}
}

/* Measure the counter's rate since the last calibration, not since the start, because during a suspension of the
 * machine one clock stands still while the other goes on or begins anew. */
static void correct(uint64_t least_ns)
{
	uint64_t ticks = 0, ns = 0, passed;

	look_at_clocks(&ticks, &ns);
	passed = ns - counter.ns;
	if (passed < least_ns)
		return;
	if (ticks > counter.ticks)
		counter.ns_per_tick = (uint64_t)(((unsigned __int128)passed << 32) / (ticks - counter.ticks));
	if (passed < SETTLED_NS && ticks > counter.ticks)
		return;
	counter.ticks = ticks;
	counter.ns = ns;
	settled = true;
}

void hp_record_open_clock(void)
{
	char source[32];

	if (counter.ns_per_tick)
		return;
	hp_record_by_counter = hp_read_file("/sys/devices/system/clocksource/clocksource0/current_clocksource", source,
					    sizeof source) > 0 &&
			       strncmp(source, "tsc", 3) == 0;
	look_at_clocks(&counter.ticks, &counter.ns);
	counter.ns_per_tick = UINT64_C(1) << 32;
	if (!hp_record_by_counter)
		return;
	while (hp_clock_ns() - counter.ns < CALIBRATION_NS)
		;
	correct(0);
}

void hp_record_calibrate(void)
{
	correct(settled ? SETTLED_NS : 5 * CALIBRATION_NS);
}

void hp_record_get_clock(struct hp_record_clock *ret_)
{
	*ret_ = counter;
}

uint64_t hp_record_ns(const struct hp_record_clock *clock, uint64_t time)
{
	int64_t ticks = (int64_t)(time - clock->ticks);

	if (!hp_record_by_counter)
		return time;
	return clock->ns + (uint64_t)(int64_t)(((__int128)ticks * (int64_t)clock->ns_per_tick) >> 32);
}

/* ------------------------------------------------------------------ the queue */

/* Whether a is older than b. Records of the same time keep the order in which they came. So do records further apart
 * than HP_RECORD_STALE, because the clock was restarted between them. */
static bool comes_before(const struct hp_record_queued *a, const struct hp_record_queued *b)
{
	uint64_t later = b->record.time - a->record.time;

	if (later && later + HP_RECORD_STALE < 2 * HP_RECORD_STALE)
		return later < HP_RECORD_STALE;
	return (int32_t)(b->number - a->number) > 0;
}

void hp_record_enqueue(struct hp_record_queue *q, const struct hp_record *record)
{
	struct hp_record_queued last = { *record, q->number++ };
	unsigned i = q->count++;

	for (; i && comes_before(&last, &q->record[(i - 1) / 2]); i = (i - 1) / 2)
		q->record[i] = q->record[(i - 1) / 2];
	q->record[i] = last;
}

struct hp_record hp_record_dequeue(struct hp_record_queue *q)
{
	struct hp_record oldest = q->record[0].record;
	struct hp_record_queued last = q->record[--q->count];
	unsigned n = q->count, i = 0;

	for (unsigned child = 1; child < n; i = child, child = 2 * i + 1) {
		child += child + 1 < n && comes_before(&q->record[child + 1], &q->record[child]);
		if (comes_before(&last, &q->record[child]))
			break;
		q->record[i] = q->record[child];
	}
	q->record[i] = last;
	return oldest;
}

unsigned hp_record_drop_all_but_misses(struct hp_record_queue *q)
{
	unsigned count = q->count;

	q->count = 0;
	for (unsigned i = 0; i < count; i++)
		if (HP_RECORD_KIND(q->record[i].record.subject) == HP_RECORD_MISS)
			hp_record_enqueue(q, &q->record[i].record);
	return count - q->count;
}
