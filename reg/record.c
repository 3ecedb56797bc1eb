/*
 * The time of records: the processor's counter, where the kernel's clock goes by it, and how it goes by that clock.
 */
#include "reg/record.h"

#include <string.h>

enum {
	CALIBRATION_NS = 200000,
	SETTLED_NS = 1000000000, /* once settled so long between calibrations */
};

bool hp_record_by_counter;

/* Under the lock of opening. */
static struct hp_record_clock counter;
static bool settled;

/* Both clocks at one moment: the thread may lose its processor in between, but hardly each time. */
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

/* Of late, not since the start: in a suspend the one clock stands still, and the other goes on or begins anew. */
static void correct(uint64_t least_ns)
{
	uint64_t ticks, ns, passed;

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
