/*
 * Budgets and refusals: the domain gives unused regions back to keep its budget, or when the kernel or the table of
 * regions has no room. A failure of the device changes nothing.
 */
#include "reg/region.h"
#include "reg/uffd.h"
#include "tests/unit/pin.h"

/* First, in a process where nothing was ever registered. */
TEST(a_first_pin_that_fails_may_be_tried_again)
{
	hugepin_domain *d;
	struct hugepin_pin pin;
	char *p = map(MIB);

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_LRU, 4096, 0);
	EXPECT_EQ(hugepin_pin(d, p, 8192, 0, &pin), -ENOBUFS);
	EXPECT_EQ(hugepin_pin(d, p, 8192, 0, &pin), -ENOBUFS);
	EXPECT_EQ(touch(d, p, 4096), 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(the_budget_is_kept_by_giving_back_what_is_not_in_use)
{
	struct hugepin_pin held;
	hugepin_domain *d;
	char *p = map(MIB);

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_LRU, 16 * 4096, 0);
	EXPECT_EQ(stats_of(d).bytes_max, 16 * 4096);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &held), 0);
	for (size_t at = 0; at < MIB; at += 8192) {
		EXPECT_EQ(touch(d, p + at, 4096), 0);
		EXPECT(device.bytes <= 16 * 4096);
	}
	EXPECT(device_covers(&device, &held, HUGEPIN_READ | HUGEPIN_WRITE));
	EXPECT(stats_of(d).evicted >= 100);
	EXPECT_EQ(stats_of(d).pinned_peak_bytes, 16 * 4096);
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(what_was_used_since_is_kept_before_what_was_not)
{
	hugepin_domain *d;
	char *p = map(MIB);

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_LRU, 8 * 4096, 0);
	for (size_t i = 0; i < 8; i++)
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
	EXPECT_EQ(touch(d, p + 20 * 8192, 4096), 0); /* all bits are cleared on the way, the first goes */
	EXPECT_EQ(touch(d, p + 3 * 8192, 4096), 0);
	for (size_t i = 21; i < 26; i++)
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
	EXPECT(registered(d, p + 3 * 8192, 4096));
	EXPECT(!registered(d, p + 1 * 8192, 4096));
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(when_all_is_in_use_a_pin_fails_and_nothing_changes)
{
	struct hugepin_pin held[4], pin;
	hugepin_domain *d;
	char *p = map(MIB);

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_LRU, 4 * 4096, 0);
	for (size_t i = 0; i < 4; i++)
		EXPECT_EQ(hugepin_pin(d, p + i * 8192, 4096, 0, &held[i]), 0);
	EXPECT_EQ(hugepin_pin(d, p + 100000, 1, 0, &pin), -ENOBUFS);
	EXPECT_EQ(hugepin_pin(d, p + 100000, 5 * 4096, 0, &pin), -ENOBUFS);
	EXPECT_EQ(stats_of(d).nobufs, 2);
	EXPECT_EQ(device.regs, 4);
	for (size_t i = 0; i < 4; i++) {
		EXPECT(device_covers(&device, &held[i], HUGEPIN_WRITE));
		EXPECT_EQ(hugepin_unpin(d, &held[i]), 0);
	}
	EXPECT_EQ(touch(d, p + 100000, 4096), 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(no_more_regions_than_the_device_has)
{
	hugepin_domain *d;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.regs_max = 5;
	d = open_as(HUGEPIN_POLICY_LRU, 0, 9);
	for (size_t i = 0; i < 20; i++) {
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
		EXPECT(device.regs <= 5);
	}
	munmap(p, MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ the kernel refuses, the device fails */

TEST(what_the_kernel_refuses_is_answered_by_giving_back)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin held[2], pin;
	char *p = map(MIB);

	device.kernel_bytes_max = 8 * 4096;
	for (size_t i = 0; i < 50; i++)
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
	EXPECT(stats_of(d).refused >= 42 && stats_of(d).evicted >= 42);
	EXPECT_EQ(hugepin_pin(d, p, 4 * 4096, 0, &held[0]), 0);
	EXPECT_EQ(hugepin_pin(d, p + 100000, 3 * 4096, 0, &held[1]), 0);
	EXPECT_EQ(hugepin_pin(d, p + 200000, 2 * 4096, 0, &pin), -ENOBUFS);
	EXPECT_EQ(hugepin_unpin(d, &held[0]), 0);
	EXPECT_EQ(touch(d, p + 200000, 2 * 4096), 0);
	EXPECT_EQ(hugepin_unpin(d, &held[1]), 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(without_a_budget_nothing_is_evicted_and_the_kernel_has_the_word)
{
	hugepin_domain *d;
	struct hugepin_pin pin;
	char *p = map(MIB);

	device_reset(&device);
	device.kernel_bytes_max = 4 * 4096;
	d = open_as(HUGEPIN_POLICY_LRU, UINT64_MAX, 0);
	for (size_t i = 0; i < 4; i++)
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
	EXPECT_EQ(hugepin_pin(d, p + 100000, 4096, 0, &pin), -ENOMEM);
	EXPECT_EQ(stats_of(d).evicted, 0);
	EXPECT_EQ(device.regs, 4);
	EXPECT_EQ(stats_of(d).bytes_max, 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* The kernel charges memory that was given back for a few registrations more. */
static int late_left;
static int late(void *addr, size_t len)
{
	(void)addr;
	(void)len;
	if (device.bytes + len <= 4 * 4096 && late_left-- > 0)
		return -ENOMEM;
	return 0;
}

TEST(what_the_kernel_gives_back_late_is_waited_for)
{
	hugepin_domain *d;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_LATE;
	device.kernel_bytes_max = 4 * 4096;
	d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(touch(d, p, 4 * 4096), 0);
	device.refuse = late;
	late_left = 3;
	EXPECT_EQ(touch(d, p + 100000, 3 * 4096), 0);
	EXPECT(late_left <= 0);
	late_left = 1000000; /* and not for ever */
	EXPECT_EQ(touch(d, p + 200000, 3 * 4096), -ENOBUFS);
	late_left = 0;
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(every_failure_of_the_backend_leaves_the_cache_as_it_was)
{
	static const int errors[] = { -EFAULT, -EINVAL, -EOPNOTSUPP, -EIO, -ENOMEM, -EAGAIN, -EPERM };
	char *p = map(MIB), *h = hugepin_malloc(MIB);

	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		for (int on_heap = 0; on_heap < 2; on_heap++) {
			hugepin_domain *d;
			struct hugepin_pin held, pin;
			int e;

			device_reset(&device);
			d = open_as(on_heap ? HUGEPIN_POLICY_ARENA : HUGEPIN_POLICY_LRU, 0, 0);
			EXPECT_EQ(hugepin_pin(d, p, 2 * 4096, 0, &held), 0);
			device.nth = 1;
			device.for_good = true;
			device.with = errors[i];
			e = hugepin_pin(d, on_heap ? h : p + 4096, 2 * 4096, 0, &pin);
			EXPECT_EQ(e, i < 4 ? errors[i] : -ENOBUFS);
			EXPECT_EQ(device.regs, 1);
			EXPECT(device_covers(&device, &held, HUGEPIN_READ | HUGEPIN_WRITE));
			EXPECT(registered(d, p, 2 * 4096));
			device.nth = 0;
			EXPECT_EQ(touch(d, on_heap ? h : p + 4096, 2 * 4096), 0);
			EXPECT_EQ(hugepin_unpin(d, &held), 0);
			close_empty(&device, d);
		}
	}
	munmap(p, MIB);
	hugepin_free(h);
}

TEST(a_failed_deregistration_is_counted_and_forgotten)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);

	EXPECT_EQ(touch(d, p, 4096), 0);
	device.dereg_error = -EIO;
	EXPECT_EQ(touch(d, p, 8192), 0);
	EXPECT_EQ(stats_of(d).failed, 1);
	EXPECT_EQ(stats_of(d).regions, 1);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ last, since the test makes the process large */

static int accept(void *device_, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)device_;
	(void)addr;
	(void)len;
	(void)access;
	*ret_ = (struct hugepin_reg){ .lkey = 1 };
	return 0;
}

static int accept_dereg(void *device_, struct hugepin_reg *reg)
{
	(void)device_;
	(void)reg;
	return 0;
}

TEST(when_the_table_of_regions_is_full_one_of_them_makes_room)
{
	struct hugepin_backend b = device_backend;
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	size_t pages = HP_REGIONS_MAX + 1000;
	char *p = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct hugepin_pin pin;
	hugepin_domain *d;

	device_reset(&device);
	b.reg = accept;
	b.dereg = accept_dereg;
	EXPECT_EQ(hugepin_domain_open(&b, &device, &attr, &d), 0);
	for (size_t i = 0; i < pages && t_failures < 5; i++) {
		if (EXPECT_EQ(hugepin_pin(d, p + i * 4096, 4096, 0, &pin), 0))
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	if (hp_uffd_works()) /* else nothing is cached */
		EXPECT(stats_of(d).evicted >= 1000 && stats_of(d).regions < HP_REGIONS_MAX);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, pages * 4096);
}

T_MAIN
