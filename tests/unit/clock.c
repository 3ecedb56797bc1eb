/*
 * base/clock.c: the clock is the kernel's, by the function that the kernel maps, without a system call.
 */
#include <time.h>

#include "base/base.h"
#include "tests/t.h"
#include "tests/unit/kernel.h"

static unsigned asked; /* system calls for the clock */
static bool refused;

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	asked += nr == SYS_clock_gettime;
	return result_of(nr == SYS_clock_gettime && refused ? -EPERM : raw(nr, a, b, c, d, e, f));
}

static uint64_t kernels_ns(void)
{
	struct timespec t;

	raw(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&t, 0, 0, 0, 0);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

TEST(the_clock_is_the_kernels_in_nanoseconds)
{
	for (int i = 0; i < 1000; i++) {
		const uint64_t before = kernels_ns(), now = hp_clock_ns(), after = kernels_ns();
		if (!EXPECT(before <= now && now <= after))
			break;
	}
}

TEST(the_clock_takes_no_system_call_where_the_kernel_maps_its_function)
{
	if (!getauxval(AT_SYSINFO_EHDR))
		SKIP("the kernel maps no function");
	asked = 0;
	hp_clock_ns();
	EXPECT_EQ(asked, 0);
}

TEST(the_clock_of_a_thread_is_asked_of_the_kernel_and_zero_if_that_refuses)
{
	const uint64_t before = hp_thread_ns();

	asked = 0;
	EXPECT(hp_thread_ns() >= before);
	EXPECT_EQ(asked, 1);
	refused = true;
	EXPECT_EQ(hp_thread_ns(), 0);
	refused = false;
}

T_MAIN
