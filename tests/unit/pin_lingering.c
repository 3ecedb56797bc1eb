/*
 * What was deregistered and lingers in other threads counts as in use: pins and requests wait for it, evict no more than
 * makes room then, and do not wait for ever.
 */
#include <unistd.h>

#include "base/base.h"
#include "reg/domain.h"
#include "tests/unit/pin_try.h"

enum { FILLED = 4, STEP_NS = 20000000 };
enum limit { BUDGET, NUMBER, DEVICE_NUMBER, KERNEL, LIMITS };

/* With so many idle base pages registered, and no room for more. */
static hugepin_domain *open_full(enum limit limit, char *p)
{
	hugepin_domain *d;

	device_reset(&device);
	device.limits.regs_max = limit == DEVICE_NUMBER ? FILLED : 0;
	device.kernel_bytes_max = limit == KERNEL ? FILLED * 4096 : 0;
	d = open_as(HUGEPIN_POLICY_LRU, limit == BUDGET ? FILLED * 4096 : 0, limit == NUMBER ? FILLED : 0);
	for (size_t i = 0; i < FILLED; i++)
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
	return d;
}

/* A clock that stands still between the calls, or goes on by a step at each. */
static _Atomic uint64_t clock_ns, step_ns;

static uint64_t fake_clock(void)
{
	const uint64_t step = atomic_load_explicit(&step_ns, memory_order_relaxed);

	return atomic_fetch_add_explicit(&clock_ns, step, memory_order_relaxed) + step;
}

static void set_clock(uint64_t step)
{
	clock_ns = 1;
	step_ns = step;
	hp_clock_set(fake_clock);
}

/* A domain that was full when a pin waited in vain for what lingers. */
static hugepin_domain *open_waited(enum limit limit, char *p)
{
	hugepin_domain *d = open_full(limit, p);

	set_clock(STEP_NS);
	device.lingers = true;
	EXPECT_EQ(touch(d, p + MIB / 2, 4096), -ENOBUFS);
	return d;
}

TEST(a_pin_evicts_no_more_than_makes_room_when_others_let_go)
{
	char *p = map(MIB);

	for (enum limit limit = 0; limit < LIMITS; limit++) {
		hugepin_domain *d = open_waited(limit, p);

		EXPECT_EQ(stats_of(d).evicted, 2); /* one, and one more when it had waited in vain */
		EXPECT_EQ(touch(d, p + MIB / 2, 4096), -ENOBUFS);
		EXPECT_EQ(stats_of(d).evicted, 3);
		EXPECT_EQ(stats_of(d).nobufs, 2);
		EXPECT_EQ(stats_of(d).misses, FILLED + 2);
		device.lingers = false;
		device.lingering_bytes = device.lingering_regs = 0;
		EXPECT_EQ(touch(d, p + MIB / 2, 4096), 0);
		EXPECT_EQ(stats_of(d).evicted, 3);
		EXPECT_EQ(device.regs, FILLED - 2);
		close_empty(&device, d);
	}
	hp_clock_set(NULL);
	munmap(p, MIB);
}

TEST(what_others_keep_for_ever_leaves_the_rest_to_be_used)
{
	char *p = map(MIB);

	for (enum limit limit = 0; limit < LIMITS; limit++) {
		hugepin_domain *d = open_waited(limit, p);

		device.lingers = false;
		EXPECT_EQ(device.lingering_regs, 2);
		atomic_store_explicit(&step_ns, 0, memory_order_relaxed); /* nobody waits again */
		for (size_t i = 0; i < 8; i++)
			EXPECT_EQ(touch(d, p + MIB / 2 + i * 8192, 4096), 0);
		atomic_store_explicit(&step_ns, STEP_NS, memory_order_relaxed);
		EXPECT_EQ(device.regs, FILLED - 2);
		EXPECT_EQ(stats_of(d).nobufs, 1);
		close_empty(&device, d);
	}
	hp_clock_set(NULL);
	munmap(p, MIB);
}

TEST(what_this_thread_holds_makes_room_before_anything_is_evicted)
{
	char *p = map(MIB);

	for (enum limit limit = 0; limit < LIMITS; limit++) {
		hugepin_domain *d = open_full(limit, p);
		struct hugepin_pin pin;

		device.lingers = true;
		EXPECT_EQ(hugepin_forget(p, 4096), 0);
		EXPECT_EQ(hugepin_domain_trim(d, UINT64_MAX), 0);
		EXPECT_EQ(device.regs, FILLED - 1);
		EXPECT_EQ(hugepin_pin(d, p + MIB / 2, 4096, HUGEPIN_PIN_NO_EVICT, &pin), -ENOBUFS);
		device.lets_go = true;
		EXPECT_EQ(hugepin_pin(d, p + MIB / 2, 4096, HUGEPIN_PIN_NO_EVICT, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(touch(d, p + MIB / 4, 4096), 0);
		EXPECT_EQ(stats_of(d).evicted, 1);
		EXPECT_EQ(device.regs, FILLED);
		close_empty(&device, d);
	}
	munmap(p, MIB);
}

static bool waits(hugepin_domain *d)
{
	return d->lingering_wanted && d->requests_count;
}

TEST(a_request_waits_until_others_let_go)
{
	struct told told;
	char *p = map(MIB);

	for (enum limit limit = 0; limit < LIMITS; limit++) {
		hugepin_domain *d = open_full(limit, p);

		device.lingers = true;
		set_clock(0);
		memset(&told, 0, sizeof told);
		sem_init(&told.done, 0, 0);
		EXPECT_EQ(hugepin_pin_try(d, p + MIB / 2, 4096, 0, tell, &told, &told.pin), -EAGAIN);
		while (!waits(d))
			usleep(1000);
		hp_domain_lock(d);
		EXPECT_EQ(d->requests_count, 1);
		device.lingering_bytes = device.lingering_regs = 0;
		hp_domain_unlock(d);
		hp_domain_has_room(d);
		sem_wait(&told.done);
		EXPECT_EQ(told.err, 0);
		EXPECT_EQ(hugepin_unpin(d, &told.pin), 0);
		EXPECT_EQ(stats_of(d).evicted, 1);
		device.lingers = false;
		close_empty(&device, d);
		hp_clock_set(NULL);
	}
	munmap(p, MIB);
}

TEST(a_thread_that_lets_go_of_nothing_holds_requests_up_once)
{
	char *p = map(MIB);
	hugepin_domain *d = open_full(BUDGET, p);
	struct told told;

	device.lingers = true;
	set_clock(STEP_NS);
	EXPECT_EQ(ask(d, p + MIB / 2, 4096, 0, &told), -ENOBUFS);
	set_clock(0);
	EXPECT_EQ(ask(d, p + MIB / 2, 4096, 0, &told), -ENOBUFS); /* though the clock stands still */
	device.lingers = false;
	device.lingering_bytes = device.lingering_regs = 0;
	EXPECT_EQ(touch(d, p, 4096), 0);
	EXPECT_EQ(d->lingering_stale, 0);
	hp_clock_set(NULL);
	close_empty(&device, d);
	munmap(p, MIB);
}

TEST(half_of_the_budget_or_of_the_slots_is_short)
{
	char *p = map(MIB);

	for (enum limit limit = 0; limit < LIMITS; limit++) {
		hugepin_domain *d = open_full(limit, p);

		EXPECT_EQ(hp_domain_is_short(d), limit != KERNEL);
		device.lingers = true;
		set_clock(STEP_NS);
		EXPECT_EQ(touch(d, p + MIB / 2, 4096), -ENOBUFS);
		hp_clock_set(NULL);
		EXPECT_EQ(hugepin_domain_trim(d, 2 * 4096), 0);
		EXPECT(hp_domain_is_short(d)); /* one lingers, or the kernel has refused */
		device.lingers = false;
		device.lingering_bytes = device.lingering_regs = 0;
		EXPECT_EQ(touch(d, p, 4096), 0);
		EXPECT_EQ(hugepin_domain_trim(d, 2 * 4096), 0);
		EXPECT_EQ(hp_domain_is_short(d), limit == KERNEL);
		close_empty(&device, d);
	}
	munmap(p, MIB);
}

T_MAIN
