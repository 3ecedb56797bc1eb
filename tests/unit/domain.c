/*
 * A domain is opened where memory for tables is short: the Nth call that maps or opens some fails, for N = 1, 2, 3 ... until there is
 * no Nth, each time in a process of its own, where nothing was mapped before. The open fails for that, or the domain is whole.
 */
#include "reg/domain.h"

#include <stdlib.h>

#include "alloc/start.h"
#include "base/config.h"
#include "reg/stakes.h"
#include "reg/unmapping.h"
#include "tests/device.h"
#include "tests/live/live.h"
#include "tests/unit/kernel.h"

/* ------------------------------------------------------------------ the kernel */

static long nth; /* the call that fails; 0: none */
static long calls; /* of a kind that may fail */
static long opened; /* tables that got memory */

/* Advice that a table is not to be dumped goes unheard without harm. */
UNINSTRUMENTED static bool may_fail(long nr, long c)
{
	return nr == SYS_mmap || nr == SYS_mprotect || (nr == SYS_madvise && c == MADV_WIPEONFORK);
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r = -ENOMEM;

	opened += nr == SYS_mprotect;
	if (!nth || !may_fail(nr, c) || ++calls != nth)
		r = raw(nr, a, b, c, d, e, f);
	return result_of(r);
}

/* ------------------------------------------------------------------ */

static struct device device;
static char *memory;

static void expect_whole(hugepin_domain *d, uint32_t policy)
{
	struct hugepin_pin pin;

	EXPECT_EQ(d->helper != NULL, policy == HUGEPIN_POLICY_PREDICT || policy == HUGEPIN_POLICY_CF11 ||
					 policy == HUGEPIN_POLICY_HYBRID);
	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(hugepin_pin(d, memory + i * 8192, 4096, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT(device.calls >= 3); /* a helper may have given some back */
	close_empty(&device, d);
}

/* Exit status 2: there was no Nth call. */
static _Noreturn void open_short(uint32_t policy)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy, .watch = HUGEPIN_WATCH_PROGRAM };
	hugepin_domain *d = NULL;
	int e;

	t_failures = 0;
	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	calls = 0;
	e = hugepin_domain_open(&device_backend, &device, &attr, &d);
	if (calls < nth)
		_exit(t_failures || e ? 1 : 2);
	nth = 0;
	if (e == 0) {
		expect_whole(d, policy);
		_exit(t_failures != 0);
	}
	EXPECT_EQ(e, -ENOMEM);
	EXPECT(d == NULL);
	EXPECT_EQ(device.closed, 1);
	device.closed = 0;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0); /* by what the first has left */
	expect_whole(d, policy);
	_exit(t_failures != 0);
}

static void opens_or_does_not(uint32_t policy)
{
	int status = 0;

	nth = 0;
	memory = memory ? memory : map(1 << 20);
	hp_config.helper = HP_HELPER_AGGRESSIVE;
	for (nth = 1; status == 0 && nth < 200; nth++) {
		pid_t pid = fork();

		if (pid == 0)
			open_short(policy);
		status = child_wait(pid);
		if (status == 1 || status > 2)
			T_FAIL("call %ld: status %d", nth, status);
	}
	EXPECT(nth > 6);
	EXPECT_EQ(status, 2);
	nth = 0;
}

TEST_CASE(a_domain_is_whole_or_there_is_no_memory_for_it, opens_or_does_not(HUGEPIN_POLICY_LRU))
TEST_CASE(one_that_predicts_has_its_helper_or_there_is_no_memory_for_it, opens_or_does_not(HUGEPIN_POLICY_PREDICT))
TEST_CASE(so_has_one_that_plans_by_cf11, opens_or_does_not(HUGEPIN_POLICY_CF11))
TEST_CASE(so_has_one_that_pins_and_pages, opens_or_does_not(HUGEPIN_POLICY_HYBRID))

/* Of 65536 ranges that are not registered any more the helper knows its predictions; a new one takes the place of the oldest. */
TEST(a_helpers_table_grows_no_more_once_it_forgets)
{
	enum { KNOWN = 1 << 16, MORE = 6000 };
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_PREDICT, .watch = HUGEPIN_WATCH_PROGRAM,
				     .pinned_regions_max = 16 };
	char *ranges = map((size_t)(KNOWN + MORE) * 4096);
	hugepin_domain *d = NULL;
	struct hugepin_pin pin;
	long before = 0;

	T_DOMAIN_BEGINS();
	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	for (size_t i = 0; i < KNOWN + MORE; i++) {
		if (i == KNOWN + 1024)
			before = opened;
		EXPECT_EQ(hugepin_pin(d, ranges + i * 4096, 4096, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT(before >= KNOWN / 1024);
	EXPECT(opened <= before + 1);
	munmap(ranges, (size_t)(KNOWN + MORE) * 4096);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ memory that goes away */

static hugepin_domain *open_lru(uint32_t watch)
{
	return device_open(&device, (struct hugepin_limits){ 0 },
			   (struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU, .watch = watch });
}

/* One range is queued, and as it should be. */
static void queued(hugepin_domain *d, uintptr_t start, uintptr_t end, bool discarded, bool late)
{
	if (!EXPECT_EQ(d->gone.count, 1))
		return;
	EXPECT_EQ(d->gone.range[0].start, start);
	EXPECT_EQ(d->gone.range[0].end, end);
	EXPECT_EQ(d->gone.range[0].discarded, discarded);
	EXPECT_EQ(d->gone.range[0].late, late);
	EXPECT(d->attention & HP_PENDING);
	d->gone.count = 0;
}

/* Whoever holds the lock sees to it later. */
PIN_TEST(ranges_are_queued_by_whole_pages_and_as_what_they_were_said_to_be, open_lru(HUGEPIN_WATCH_PROGRAM), 16 * 4096)
{
	T_DOMAIN_BEGINS();
	const uintptr_t at = (uintptr_t)p;

	hp_domain_lock(d);
	hp_stakes_listen(d, 1); /* as with a request: it is told of all memory */
	for (unsigned from = 4096; from <= 8192; from += from == 4097 ? 4094 : 1)
		for (unsigned to = 12287; to <= 12289; to++) {
			EXPECT_EQ(hugepin_forget(p + from, to - from), 0);
			queued(d, at + (from & ~4095u), at + (to <= 12288 ? 12288 : 16384), true, false);
		}
	EXPECT_EQ(hugepin_forget(p + 5, 1), 0);
	queued(d, at, at + 4096, true, false);
	EXPECT_EQ(hugepin_forget(p, 0), -EINVAL);
	EXPECT_EQ(hugepin_forget(p, SIZE_MAX), -EINVAL);
	EXPECT_EQ(hugepin_forget((void *)UINTPTR_MAX, 1), -EINVAL);
	EXPECT_EQ(d->gone.count, 0);
	EXPECT_EQ(hugepin_forget((void *)(UINTPTR_MAX - 1), 1), 0); /* rounds to no address */
	queued(d, UINTPTR_MAX - 4095, UINTPTR_MAX, true, false);
	hugepin_unmapping_(p, 1, HP_UNMAPPED);
	queued(d, at, at + 4096, false, false);
	hugepin_unmapping_(p, 4097, HP_DISCARDED); /* the kernel does not tell here */
	queued(d, at, at + 8192, true, true);
	hugepin_unmapping_(p, 4097, HP_DISCARDED_UNTOLD);
	queued(d, at, at + 8192, true, true);
	hp_stakes_listen(d, -1);
	hp_domain_unlock(d);
}

DOMAIN_TEST(a_hint_about_memory_that_goes_is_dropped_and_no_other, open_lru(HUGEPIN_WATCH_PROGRAM))
{
	enum { HINTS = 20 };
	char *p = map((HINTS + 2) * 4096);

	hp_domain_lock(d);
	for (unsigned from = 0; from < HINTS; from++)
		for (unsigned to = from + 1; to <= HINTS; to += 3) {
			unsigned n = 0;

			d->prefetches_count = 0;
			for (unsigned i = 0; i < HINTS; i++)
				EXPECT_EQ(hugepin_prefetch(d, p + (size_t)i * 4096 + i % 3, 4096 - i % 3 - i % 2, 0), 0);
			EXPECT_EQ(hugepin_forget(p + (size_t)from * 4096, (size_t)(to - from) * 4096), 0);
			if (!EXPECT_EQ(d->prefetches_count, HINTS - (to - from)))
				continue;
			for (unsigned i = 0; i < HINTS; i++)
				if (i < from || i >= to)
					EXPECT(d->prefetches[n++].addr == p + (size_t)i * 4096 + i % 3);
		}
	d->prefetches_count = 0;
	for (unsigned i = 0; i < HP_PREFETCHES_MAX; i++)
		EXPECT_EQ(hugepin_prefetch(d, p, 4096, 0), 0);
	EXPECT_EQ(hugepin_prefetch(d, p, 4096, 0), -EBUSY);
	EXPECT_EQ(d->prefetches_count, HP_PREFETCHES_MAX);
	d->prefetches_count = 0;
	hp_domain_unlock(d);
	munmap(p, (HINTS + 2) * 4096);
}

static bool there(char *p)
{
	unsigned char is = 0;

	EXPECT_EQ(mincore(p, 4096, &is), 0);
	return is & 1;
}

static hugepin_domain *open_limited(struct hugepin_limits limits, uint64_t bytes_max, uint32_t regions_max)
{
	return device_open(&device, limits,
			   (struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM,
						  .pinned_bytes_max = bytes_max, .pinned_regions_max = regions_max });
}

/* The service thread may not register, but make it present. */
TEST(for_an_opener_what_is_hinted_at_is_made_present_page_by_page)
{
	hugepin_domain *d = open_limited((struct hugepin_limits){ .flags = HUGEPIN_LIMIT_OPENER }, 0, 0);
	char *p = map(16 * 4096);
	unsigned n = 0;

	EXPECT_EQ(madvise(p, 16 * 4096, MADV_NOHUGEPAGE), 0);
	EXPECT_EQ(hugepin_prefetch(d, p + 2 * 4096 + 4095, 4098, 0), 0); /* of three pages */
	EXPECT_EQ(hugepin_prefetch(d, p + 8 * 4096, 8192, 0), 0);
	for (int i = 0; i < 50000 && !there(p + 9 * 4096); i++)
		usleep(1000);
	for (int i = 0; i < 16; i++)
		n |= (unsigned)there(p + i * 4096) << i;
	EXPECT_EQ(n, 7u << 2 | 3u << 8);
	EXPECT_EQ(device.calls, 0);
	EXPECT_EQ(stats_of(d).prefetched, 0);
	munmap(p, 16 * 4096);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ what a domain is opened with */

TEST(of_the_programs_limits_and_the_devices_the_lower_hold)
{
	static const uint64_t none = UINT64_MAX - 1;
	static const struct {
		uint64_t programs, devices, is, told;
	} bytes[] = { { 0, 0, none, 0 },	     { 5000, 0, 5000, 5000 },		  { 0, 6000, 6000, 6000 },
		      { 5000, 6000, 5000, 5000 },    { 7000, 6000, 6000, 6000 },	  { UINT64_MAX, 6000, UINT64_MAX, 0 },
		      { UINT64_MAX - 1, 0, none, 0 }, { UINT64_MAX - 2, 0, none - 1, none - 1 } };
	hugepin_domain *d;

	for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
		d = open_limited((struct hugepin_limits){ .bytes_max = bytes[i].devices }, bytes[i].programs, 0);
		EXPECT(d->bytes_max == bytes[i].is);
		EXPECT_EQ(stats_of(d).bytes_max, bytes[i].told);
		EXPECT_EQ(stats_of(d).version, HUGEPIN_VERSION);
		EXPECT_EQ(d->regs_max, UINT32_MAX);
		EXPECT_EQ(d->len_max % 4096, 0);
		EXPECT(d->len_max >= (size_t)1 << 60);
		close_empty(&device, d);
	}
	d = open_limited((struct hugepin_limits){ .regs_max = 7, .len_max = 4096 }, 0, 9);
	EXPECT_EQ(d->regs_max, 7);
	EXPECT_EQ(d->len_max, 4096);
	close_empty(&device, d);
	d = open_limited((struct hugepin_limits){ .regs_max = 7, .len_max = 3 * 4096 + 4095 }, 0, 5);
	EXPECT_EQ(d->regs_max, 5);
	EXPECT_EQ(d->len_max, 3 * 4096);
	close_empty(&device, d);
}

/* Open a domain and close it. Returns the number of those so far that a higher limit would have helped. */
static uint32_t counts_as_limited(uint64_t programs, uint64_t devices)
{
	hugepin_domain *d = open_limited((struct hugepin_limits){ .bytes_max = devices }, programs, 0);
	struct hp_pin_sums open, closed;

	hp_heap_hooks()->sums(&open);
	close_empty(&device, d);
	hp_heap_hooks()->sums(&closed);
	EXPECT_EQ(open.limited, closed.limited);
	return closed.limited;
}

TEST(a_budget_is_the_devices_where_a_higher_limit_of_it_would_raise_that)
{
	uint32_t n = counts_as_limited(0, 0);

	EXPECT_EQ(counts_as_limited(0, 6000), n + 1);
	EXPECT_EQ(counts_as_limited(7000, 6000), n + 2);
	EXPECT_EQ(counts_as_limited(6000, 6000), n + 2);
	EXPECT_EQ(counts_as_limited(5000, 6000), n + 2);
	EXPECT_EQ(counts_as_limited(5000, 0), n + 2);
	EXPECT_EQ(counts_as_limited(UINT64_MAX, 6000), n + 2);
	hp_config.pin_budget = 6000;
	EXPECT_EQ(counts_as_limited(0, 6000), n + 2);
	EXPECT_EQ(counts_as_limited(0, 5000), n + 3);
	hp_config.pin_budget = 0;
}

/* A pin of a domain that was closed is none of the next in its place. */
TEST(each_use_of_a_domain_has_references_of_its_own)
{
	uint64_t seen[300];
	hugepin_domain *d, *first = NULL;

	for (int i = 0; i < 300; i++) {
		d = open_lru(HUGEPIN_WATCH_PROGRAM);
		first = first ? first : d;
		EXPECT(d == first);
		seen[i] = d->ref;
		EXPECT(d->ref != 0 && (uint32_t)d->ref == 0);
		for (int k = 0; k < i; k++)
			EXPECT(seen[k] != d->ref);
		close_empty(&device, d);
		for (int k = 0; k <= i; k++)
			EXPECT(seen[k] != d->ref); /* nor of a closed one */
	}
}

LIVE_MAIN
