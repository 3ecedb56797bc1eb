/*
 * What a process may have locked and pinned: a limit, a capability and accounts of the test's own.
 */
#include "base/memlock.h"

#include <linux/capability.h>
#include <sys/resource.h>

#include "tests/t.h"
#include "tests/unit/kernel.h"

enum { PAGE = 4096 };

static struct {
	bool capable; /* CAP_IPC_LOCK, and no other capability; else all the others */
	bool no_capget;
	rlim_t limit;
	int limit_error;
	const char *status; /* NULL: it cannot be opened */
	unsigned looks; /* at it */
} says;

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	if (nr == SYS_capget) {
		struct __user_cap_data_struct *caps = (struct __user_cap_data_struct *)b;

		caps[0].effective = says.capable ? 1u << CAP_IPC_LOCK : ~(1u << CAP_IPC_LOCK);
		caps[1].effective = says.capable ? 0 : ~0u;
		return result_of(says.no_capget ? -EPERM : 0);
	}
	if (nr == SYS_openat && !strcmp((const char *)b, "/proc/self/status")) {
		says.looks++;
		return says.status ? file_with(says.status) : result_of(-ENOENT);
	}
	if (nr == SYS_prlimit64 && b == RLIMIT_MEMLOCK) {
		*(struct rlimit *)d = (struct rlimit){ says.limit, RLIM_INFINITY };
		return result_of(-says.limit_error);
	}
	return result_of(raw(nr, a, b, c, d, e, f));
}

static void reset(void)
{
	memset(&says, 0, sizeof says);
	says.limit = 10 * PAGE + 5;
	says.status = "Name:\tx\nVmPin:\t       8 kB\nVmLck:\t      12 kB\n";
}

/* A region costs what it covers, whoever has pinned the same before. */
TEST(of_what_is_to_be_pinned_the_limit_is_less_what_is_pinned)
{
	reset();
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_PIN), 8 * PAGE);
	says.status = "Name:\tx\nVmPin:\t       36 kB\n";
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_PIN), PAGE);
	says.status = "Name:\tx\nVmPin:\t       37 kB\n"; /* less than a page is left: no more than nothing */
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_PIN), 1);
	says.status = "Name:\tx\nVmPin:\t       400 kB\n";
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_PIN), 1);
	says.status = "VmPin:\t 8 kB\n"; /* the first line is the name */
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_PIN), 10 * PAGE);
	says.status = "";
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_PIN), 10 * PAGE);
	says.status = NULL;
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_PIN), 10 * PAGE);
}

/* What the program has locked may be what will be, which then costs nothing: after mlockall(2) all of it is. */
TEST(of_what_is_to_be_locked_the_limit_is_whole)
{
	reset();
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_LOCK), 10 * PAGE);
	says.limit = PAGE;
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_LOCK), PAGE);
	says.limit = PAGE - 1;
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_LOCK), 1);
	says.limit = 0;
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_LOCK), 1);
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_PIN), 1);
	EXPECT_EQ(says.looks, 1);
}

TEST(who_has_the_capability_or_no_limit_is_not_limited)
{
	reset();
	says.capable = true;
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_LOCK), 0);
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_PIN), 0);
	says.no_capget = true; /* where it cannot be known, nobody has it */
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_LOCK), 10 * PAGE);
	says.limit = RLIM_INFINITY;
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_LOCK), 0);
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_PIN), 0);
	says.limit = 10 * PAGE;
	says.limit_error = EPERM;
	EXPECT_EQ(hp_memlock_max(HP_MEMLOCK_LOCK), 0);
}

T_MAIN
