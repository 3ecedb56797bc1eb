/*
 * A domain is opened where memory for tables is short: the Nth call that maps or opens some fails, for N = 1, 2, 3 ... until there is
 * no Nth, each time in a process of its own, where nothing was mapped before. The open fails for that, or the domain is whole.
 */
#include "reg/domain.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/config.h"
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
	if (r < 0 && r > -4096) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

/* ------------------------------------------------------------------ */

static struct device device;
static char *memory;

static void expect_whole(hugepin_domain *d, uint32_t policy)
{
	struct hugepin_pin pin;

	EXPECT_EQ(d->helper != NULL, policy == HUGEPIN_POLICY_PREDICT || policy == HUGEPIN_POLICY_CF11);
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
		status = child_wait(pid, 20);
		if (status == 1 || status > 2)
			T_FAIL("call %ld: status %d", nth, status);
	}
	EXPECT(nth > 6);
	EXPECT_EQ(status, 2);
	nth = 0;
}

TEST(a_domain_is_whole_or_there_is_no_memory_for_it)
{
	opens_or_does_not(HUGEPIN_POLICY_LRU);
}

TEST(one_that_predicts_has_its_helper_or_there_is_no_memory_for_it)
{
	opens_or_does_not(HUGEPIN_POLICY_PREDICT);
}

TEST(so_has_one_that_plans_by_cf11)
{
	opens_or_does_not(HUGEPIN_POLICY_CF11);
}

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

LIVE_MAIN
