/*
 * The pin cache on a fake device: what is registered and when, budgets and refusals, merging and widening, memory that goes
 * away, bad input. Foreign memory is real, and really watched.
 */
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "alloc/heap.h"
#include "base/config.h"
#include "base/stats.h"
#include "base/ticker.h"
#include "reg/counts.h"
#include "reg/cover.h"
#include "reg/domain.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/pin.h"
#include "reg/region.h"
#include "reg/uffd.h"
#include "tests/device.h"
#include "tests/t.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

static struct device device;

static hugepin_domain *open_as(uint32_t policy, uint64_t bytes_max, uint32_t regions_max)
{
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = policy,
				     .pinned_bytes_max = bytes_max,
				     .pinned_regions_max = regions_max };
	hugepin_domain *d = NULL;

	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	return d;
}

static hugepin_domain *open_lru(void)
{
	device_reset(&device);
	return open_as(HUGEPIN_POLICY_LRU, 0, 0);
}

/* Pin and give back at once. */
static int touch(hugepin_domain *d, const void *p, size_t len)
{
	struct hugepin_pin pin;
	int e = hugepin_pin(d, p, len, 0, &pin);

	if (e)
		return e;
	EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_WRITE));
	EXPECT(pin.base == (uintptr_t)p && pin.len == len);
	return hugepin_unpin(d, &pin);
}

/* The queued ranges of the watcher were carried out, or will be before the next pin is made: nothing to wait for. */
static bool registered(hugepin_domain *d, const void *p, size_t len)
{
	long before = device.calls;

	EXPECT_EQ(touch(d, p, len), 0);
	return device.calls == before;
}

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

TEST(what_was_pinned_is_found_registered)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);

	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(touch(d, p + 100, 5000), 0);
		EXPECT_EQ(touch(d, p, 8192), 0);
		EXPECT_EQ(touch(d, p + 8191, 1), 0);
	}
	EXPECT_EQ(device.calls, 1);
	EXPECT_EQ(stats_of(d).misses, 1);
	EXPECT_EQ(stats_of(d).pinned_bytes, 8192);
	EXPECT_EQ(touch(d, p + 8191, 2), 0);
	EXPECT_EQ(device.calls, 2);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(bad_ranges_and_access_are_refused_and_change_nothing)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin pin, before;
	char *p = map(MIB);

	memset(&pin, 0x5a, sizeof pin);
	before = pin;
	errno = 77;
	EXPECT_EQ(hugepin_pin(d, p, 0, 0, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin(d, p, SIZE_MAX, 0, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin(d, p, (size_t)0 - (uintptr_t)p, 0, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 1024, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_ON_DEMAND, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_REMOTE_ATOMIC, &pin), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_prefetch(d, p, 0, 0), -EINVAL);
	EXPECT_EQ(hugepin_prefetch(d, p, 4096, HUGEPIN_PIN_UNCACHED), -EINVAL);
	EXPECT_EQ(hugepin_forget(p, 0), -EINVAL);
	EXPECT_EQ(hugepin_forget(p, SIZE_MAX), -EINVAL);
	EXPECT(memcmp(&pin, &before, sizeof pin) == 0);
	EXPECT_EQ(errno, 77);
	EXPECT_EQ(device.calls, 0);
	EXPECT_EQ(stats_of(d).misses, 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(a_pin_is_given_back_once_and_to_its_domain)
{
	T_DOMAIN_BEGINS();
	hugepin_domain *d = open_lru(), *other = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	struct hugepin_pin pin;
	char *p = map(MIB);

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(other, &pin), -EINVAL);
	EXPECT(pin.ref != 0);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(pin.ref, 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), -EINVAL);
	EXPECT_EQ(hugepin_domain_close(other), 0);
	device.closed = 0;
	close_empty(&device, d);
	munmap(p, MIB);
}

TEST(a_domain_is_closed_once)
{
	hugepin_domain *d = open_lru();

	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(hugepin_domain_close(d), -EINVAL);
	EXPECT_EQ(device.closed, 1);
}

TEST(a_domain_with_pins_out_is_not_closed_and_works_on)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin pin;
	char *p = map(MIB);

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(device.closed, 0);
	EXPECT(registered(d, p, 4096));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	close_empty(&device, d);
	munmap(p, MIB);
}

TEST(opening_refuses_what_it_cannot_do)
{
	struct hugepin_backend b = device_backend;
	struct hugepin_attr attr = { .size = sizeof attr };
	hugepin_domain *d = (void *)77;

	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(NULL, &device, NULL, &d), -EINVAL);
	EXPECT_EQ(hugepin_domain_open(&b, &device, NULL, NULL), -EINVAL);
	b.reg = NULL;
	EXPECT_EQ(hugepin_domain_open(&b, &device, NULL, &d), -EINVAL);
	b = device_backend;
	b.size = 8;
	EXPECT_EQ(hugepin_domain_open(&b, &device, NULL, &d), -EINVAL);
	b.size = offsetof(struct hugepin_backend, limits);
	EXPECT_EQ(hugepin_domain_open(&b, &device, NULL, &d), -EINVAL);
	attr.size = 4;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	attr = (struct hugepin_attr){ .size = sizeof attr, .policy = 99 };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	attr = (struct hugepin_attr){ .size = sizeof attr, .flags = 1 };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	attr = (struct hugepin_attr){ .size = sizeof attr, .fork = 9 };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	attr = (struct hugepin_attr){ .size = sizeof attr, .access = HUGEPIN_PIN_UNCACHED };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	attr = (struct hugepin_attr){ .size = sizeof attr, .watch = HUGEPIN_WATCH_NONE + 1 };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	EXPECT_EQ(device.closed, 0);
	attr = (struct hugepin_attr){ .size = sizeof attr, .access = HUGEPIN_REMOTE_ATOMIC };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EOPNOTSUPP);
	attr = (struct hugepin_attr){ .size = sizeof attr, .policy = HUGEPIN_POLICY_ODP };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EOPNOTSUPP);
	device.limits.len_max = 4095;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, NULL, &d), -EOPNOTSUPP);
	EXPECT_EQ(device.closed, 3); /* the context is the backend's to free */
	EXPECT(d == (void *)77);
	EXPECT_EQ(hugepin_domain_close(NULL), -EINVAL);
}

TEST(the_oldest_structures_will_do_and_none_that_end_before)
{
	struct hugepin_backend b = device_backend;
	struct hugepin_attr attr = { .size = offsetof(struct hugepin_attr, pad) };
	hugepin_domain *d = NULL;

	device_reset(&device);
	b.size = offsetof(struct hugepin_backend, now_ns);
	EXPECT_EQ(hugepin_domain_open(&b, &device, &attr, &d), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(device.closed, 0); /* it has not got that function */
	b.size--;
	EXPECT_EQ(hugepin_domain_open(&b, &device, &attr, &d), -EINVAL);
	b.size++;
	attr.size--;
	EXPECT_EQ(hugepin_domain_open(&b, &device, &attr, &d), -EINVAL);
}

TEST(as_many_domains_as_there_is_room_for)
{
	T_STAYS(4 * HUGEPIN_DOMAINS_MAX, "each domain's tables are kept for the next one");
	hugepin_domain *d[HUGEPIN_DOMAINS_MAX], *more;

	device_reset(&device);
	for (int i = 0; i < HUGEPIN_DOMAINS_MAX; i++)
		d[i] = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, NULL, &more), -ENOSPC);
	EXPECT_EQ(hugepin_domain_close(d[7]), 0);
	d[7] = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	for (int i = 0; i < HUGEPIN_DOMAINS_MAX; i++)
		EXPECT_EQ(hugepin_domain_close(d[i]), 0);
}

TEST(statistics_are_cut_to_what_the_caller_knows)
{
	hugepin_domain *d = open_lru();
	uint64_t few[2] = { 0, 77 };

	EXPECT_EQ(hugepin_domain_stats(d, (void *)few, 8), sizeof(struct hugepin_domain_stats));
	EXPECT_EQ(few[0], HUGEPIN_VERSION);
	EXPECT_EQ(few[1], 77);
	EXPECT_EQ(hugepin_domain_stats(d, NULL, 8), -EINVAL);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ budget */

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

/* What is given back is charged for two more registrations. */
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

/* ------------------------------------------------------------------ merging, widening, cutting */

TEST(a_region_takes_the_place_of_those_inside_it)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin held;
	char *p = map(MIB);

	EXPECT_EQ(touch(d, p, 3 * 4096), 0);
	EXPECT_EQ(touch(d, p + 4 * 4096, 3 * 4096), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &held), 0);
	EXPECT_EQ(touch(d, p, 7 * 4096), 0); /* both, of which one is in use */
	EXPECT_EQ(device.regs, 2);
	EXPECT(device_covers(&device, &held, HUGEPIN_WRITE));
	EXPECT_EQ(stats_of(d).merged, 1);
	EXPECT_EQ(stats_of(d).retired, 1);
	EXPECT(registered(d, p + 4096, 6 * 4096));
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(stats_of(d).retired, 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(regions_that_overlap_are_left_as_they_are)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);

	EXPECT_EQ(touch(d, p, 3 * 4096), 0);
	EXPECT_EQ(touch(d, p + 4 * 4096, 3 * 4096), 0);
	EXPECT_EQ(touch(d, p + 2 * 4096, 3 * 4096), 0);
	EXPECT_EQ(device.regs, 3);
	EXPECT_EQ(device.bytes, 9 * 4096);
	EXPECT_EQ(stats_of(d).merged, 0);
	for (int i = 0; i < 5; i++)
		EXPECT(registered(d, p + i * 4096, i < 4 ? 8192 : 3 * 4096));
	EXPECT_EQ(hugepin_forget(p + 2 * 4096, 1), 0); /* of two */
	EXPECT(registered(d, p + 4 * 4096, 3 * 4096));
	EXPECT(!registered(d, p, 4096)); /* which sees to what is gone */
	EXPECT_EQ(device.regs, 2);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* Pieces of a buffer that does not begin with a page share pages with their neighbours. */
TEST(pieces_that_share_pages_are_registered_once)
{
	enum { PIECE = 64 << 10, COUNT = 256 };
	hugepin_domain *d = open_lru();
	char *p = map((size_t)COUNT * PIECE + 4096);

	for (size_t i = 0; i < COUNT; i++)
		EXPECT_EQ(touch(d, p + 64 + (i * 7 % COUNT) * PIECE, PIECE), 0);
	EXPECT_EQ(stats_of(d).misses, COUNT);
	EXPECT_EQ(stats_of(d).registered_bytes, COUNT * (PIECE + 4096));
	for (size_t i = 0; i < COUNT; i++)
		EXPECT(registered(d, p + 64 + i * PIECE, PIECE));
	munmap(p, (size_t)COUNT * PIECE + 4096);
	close_empty(&device, d);
}

/* The naive model of a domain without a budget: a list of what can be found. */
struct found {
	uintptr_t start, end;
	unsigned access;
};
enum { FOUND_MAX = 4000 };
static struct found list[FOUND_MAX];

static bool in_list(int n, uintptr_t addr, size_t len, unsigned access)
{
	for (int i = 0; i < n; i++)
		if (addr >= list[i].start && addr + len <= list[i].end && !(access & ~list[i].access))
			return true;
	return false;
}

/* What lies in the new range goes, and leaves its access. Returns how many there are. */
static int to_list(int n, struct found new)
{
	int kept = 0;

	for (int i = 0; i < n; i++)
		if (list[i].start >= new.start && list[i].end <= new.end)
			new.access |= list[i].access;
		else
			list[kept++] = list[i];
	list[kept++] = new;
	return kept;
}

static int forgotten_of_list(int n, uintptr_t start, uintptr_t end)
{
	int kept = 0;

	for (int i = 0; i < n; i++)
		if (list[i].start >= end || list[i].end <= start)
			list[kept++] = list[i];
	return kept;
}

/* Ranges of a buffer in any order; page: what the device is given is rounded to. */
static void overlap_at_random(char *p, size_t size, size_t page, bool many_kinds, unsigned seed)
{
	uint64_t asked = 0, rounded = 0, misses = 0;
	hugepin_domain *d = open_lru();
	int n = 0;

	srandom(seed);
	for (int step = 0; step < 3000 && t_failures < 5; step++) {
		size_t at = (size_t)random() % (size - page), len = page + (size_t)random() % HP_MIN(20 * page, size - page - at);
		unsigned access = many_kinds ? (unsigned)random() % 15 + 1 : HUGEPIN_READ;
		uintptr_t addr = (uintptr_t)p + at, start = addr & ~(page - 1), end = (addr + len + page - 1) & ~(page - 1);
		struct hugepin_pin pin;
		bool miss;

		len = HP_MIN(len, size - at);
		end = (addr + len + page - 1) & ~(page - 1);
		if (random() % 100 == 0 && page == 4096) {
			EXPECT_EQ(hugepin_forget((char *)addr, len), 0);
			n = forgotten_of_list(n, start, end);
			continue;
		}
		miss = !in_list(n, addr, len, access);
		if (miss) {
			n = to_list(n, (struct found){ start, end, access });
			misses++;
			asked += len;
			rounded += end - start;
		}
		EXPECT_EQ(hugepin_pin(d, (char *)addr, len, access, &pin), 0);
		EXPECT(device_covers(&device, &pin, access));
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(stats_of(d).misses, misses);
		EXPECT_EQ(stats_of(d).uncached, 0);
		EXPECT_EQ(stats_of(d).registered_bytes, rounded);
		EXPECT(rounded <= 2 * asked);
		EXPECT(!miss || device.regs == (unsigned)n);
	}
	close_empty(&device, d);
}

TEST(what_is_registered_is_at_most_twice_what_misses_asked_for)
{
	char *p = map(4 * MIB), *h = hugepin_aligned_alloc(2 * MIB, 128 * MIB);

	for (unsigned seed = 1; seed <= 4; seed++) {
		overlap_at_random(p, 4 * MIB, 4096, seed & 1, seed);
		overlap_at_random(h, 128 * MIB, 2 * MIB, seed & 1, seed);
	}
	munmap(p, 4 * MIB);
	hugepin_free(h);
	hugepin_purge();
}

TEST(more_access_takes_the_place_of_less)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin pin;
	char *p = map(MIB);

	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_READ, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_REMOTE_WRITE, &pin), 0);
	EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_REMOTE_WRITE));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(stats_of(d).widened, 1);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(device.calls, 2);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(relaxed_ordering_is_the_domains_choice)
{
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_LRU,
				     .access = HUGEPIN_READ | HUGEPIN_RELAXED };
	hugepin_domain *strict, *relaxed;
	struct hugepin_pin pin;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.access |= HUGEPIN_RELAXED;
	strict = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(hugepin_pin(strict, p, 4096, HUGEPIN_READ | HUGEPIN_RELAXED, &pin), 0);
	EXPECT_EQ(device.reg[pin.lkey].access, HUGEPIN_READ);
	EXPECT_EQ(hugepin_unpin(strict, &pin), 0);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &relaxed), 0);
	EXPECT_EQ(hugepin_pin(relaxed, p, 4096, HUGEPIN_READ, &pin), 0);
	EXPECT_EQ(device.reg[pin.lkey].access, HUGEPIN_READ | HUGEPIN_RELAXED);
	EXPECT_EQ(hugepin_unpin(relaxed, &pin), 0);
	EXPECT_EQ(device.calls, 2);
	EXPECT_EQ(hugepin_domain_close(relaxed), 0);
	EXPECT_EQ(hugepin_domain_close(strict), 0);
	munmap(p, MIB);
}

TEST(a_range_longer_than_any_registration_is_pinned_in_pieces)
{
	struct hugepin_pin pin, v[8];
	hugepin_domain *d;
	size_t covered = 0;
	char *p = map(MIB), *h = hugepin_malloc(9 * MIB);
	int n;

	device_reset(&device);
	device.limits.len_max = 4 * MIB + 12288;
	d = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	EXPECT_EQ(hugepin_pin(d, h + 5, 9 * MIB - 5, 0, &pin), 0);
	EXPECT(pin.len < 9 * MIB - 5 && pin.len > 0);
	EXPECT(device_covers(&device, &pin, HUGEPIN_WRITE));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	n = hugepin_pinv(d, &(struct iovec){ h + 5, 9 * MIB - 5 }, 1, 0, v, 8);
	EXPECT(n >= 3);
	for (int i = 0; i < n; i++) {
		EXPECT(device_covers(&device, &v[i], HUGEPIN_WRITE));
		EXPECT_EQ(v[i].base, (uintptr_t)h + 5 + covered);
		covered += v[i].len;
	}
	EXPECT_EQ(covered, 9 * MIB - 5);
	EXPECT_EQ(hugepin_unpinv(d, v, n), 0);
	EXPECT_EQ(hugepin_pinv(d, &(struct iovec){ h + 5, 9 * MIB - 5 }, 1, 0, v, 2), -EMSGSIZE);
	EXPECT(stats_of(d).cut >= 2);
	munmap(p, MIB);
	hugepin_free(h);
	close_empty(&device, d);
}

static int refuse_all(void *addr, size_t len)
{
	EXPECT_EQ(len, 4096);
	EXPECT((uintptr_t)addr >= (uintptr_t)1 << 63);
	return -EFAULT;
}

TEST(addresses_of_the_kernel_are_not_there)
{
	static const uintptr_t at[] = { (uintptr_t)1 << 63, 0xffff800000000000, 0xffffffffff600000, 0xffffffffffffe000 };
	hugepin_domain *d = open_lru();
	struct hugepin_pin pin;

	device.refuse = refuse_all;
	for (size_t i = 0; i < sizeof at / sizeof *at; i++)
		EXPECT_EQ(hugepin_pin(d, (void *)at[i], 4095, 0, &pin), -EFAULT);
	close_empty(&device, d);
}

TEST(a_vector_is_pinned_as_a_whole_or_not_at_all)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);
	struct hugepin_pin v[3];
	struct iovec pieces[3] = { { p, 100 }, { p + 50000, 5000 }, { p + 90000, 0 } };

	EXPECT_EQ(hugepin_pinv(d, pieces, 3, 0, v, 3), -EINVAL);
	EXPECT_EQ(hugepin_pinv(d, pieces, -1, 0, v, 3), -EINVAL);
	EXPECT_EQ(hugepin_pinv(d, NULL, 1, 0, v, 3), -EINVAL);
	EXPECT_EQ(hugepin_pinv(d, pieces, 2, 0, v, 1), -EMSGSIZE);
	EXPECT_EQ(hugepin_pinv(d, pieces, 0, 0, v, 0), 0);
	EXPECT_EQ(hugepin_pinv(d, pieces, 2, 0, v, 3), 2);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_unpinv(d, v, 2), 0);
	EXPECT_EQ(hugepin_unpinv(d, v, 2), 0); /* cleared ones are skipped */
	v[1].ref = 12345;
	EXPECT_EQ(hugepin_unpinv(d, v, 2), -EINVAL);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ used once */

TEST(an_uncached_pin_is_registered_for_itself)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin pin, again;
	char *p = map(MIB);

	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_PIN_UNCACHED, &pin), 0);
	EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_WRITE));
	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_READ | HUGEPIN_PIN_UNCACHED, &again), 0);
	EXPECT_EQ(device.regs, 2);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(hugepin_unpin(d, &again), 0);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(stats_of(d).uncached, 2);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(the_policy_none_registers_for_each_pin)
{
	struct hugepin_pin pin;
	char *p = map(MIB), *h = hugepin_malloc(MIB);
	hugepin_domain *d;

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_NONE, 0, 0);
	for (int i = 1; i <= 3; i++) {
		EXPECT_EQ(touch(d, p, 4096), 0);
		EXPECT_EQ(touch(d, h, 5000), 0);
		EXPECT_EQ(device.calls, 2 * i);
		EXPECT_EQ(device.regs, 0);
	}
	EXPECT_EQ(hugepin_pin(d, h, 5000, 0, &pin), 0);
	EXPECT_EQ(device.bytes, 8192); /* not the hugepage, as where it may be found again */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	munmap(p, MIB);
	hugepin_free(h);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ memory that goes away */

TEST(what_is_forgotten_is_registered_anew)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin held;
	char *p = map(MIB);

	EXPECT_EQ(touch(d, p, 4 * 4096), 0);
	EXPECT_EQ(touch(d, p + 100000, 4096), 0);
	EXPECT_EQ(hugepin_forget(p + 3 * 4096 + 1, 1), 0);
	EXPECT(registered(d, p + 100000, 4096));
	EXPECT(!registered(d, p, 4 * 4096));
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &held), 0);
	EXPECT_EQ(hugepin_forget(p, 4096), -EBUSY);
	EXPECT(device_covers(&device, &held, HUGEPIN_WRITE)); /* it is still in use */
	EXPECT(!registered(d, p, 4 * 4096));
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	EXPECT_EQ(stats_of(d).invalidated, 2);
	EXPECT_EQ(stats_of(d).retired, 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

static int forget_and_purge(void *addr, size_t len)
{
	static char other[4096];

	(void)addr;
	(void)len;
	EXPECT_EQ(hugepin_forget(other, sizeof other), 0);
	EXPECT_EQ(hugepin_purge(), 0);
	return 0;
}

TEST(a_backend_may_forget_and_purge)
{
	hugepin_domain *d = open_lru(), *other = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	char *h = hugepin_malloc(4 * MIB);

	device.refuse = forget_and_purge;
	EXPECT_EQ(touch(d, h, 4 * MIB), 0);
	device.refuse = NULL;
	hugepin_free(h);
	EXPECT_EQ(hugepin_domain_close(other), 0);
	device.closed = 0;
	close_empty(&device, d);
}

TEST(unmapped_memory_is_registered_anew_without_being_told)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);

	if (!hp_uffd_works()) {
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("no userfaultfd");
	}
	for (int i = 0; i < 50; i++) {
		EXPECT_EQ(touch(d, p, 4 * 4096), 0);
		syscall(SYS_munmap, p + 4096, 4096);
		EXPECT_EQ(mmap(p + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
				  p + 4096, 1);
		EXPECT(!registered(d, p, 4 * 4096));
		madvise(p, 4096, MADV_DONTNEED);
		EXPECT(!registered(d, p, 4 * 4096));
	}
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(a_clone_that_keeps_the_descriptor_holds_up_no_unmapping)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);
	pid_t pid;

	EXPECT_EQ(touch(d, p, 4096), 0);
	pid = (pid_t)syscall(SYS_fork); /* without handlers */
	if (pid == 0) {
		pause();
		_exit(0);
	}
	close_empty(&device, d);
	munmap(p, MIB); /* or the test's time runs out */
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static int userfaultfd_of_ours(void)
{
	char path[32], what[64];

	for (int fd = 0; fd < 1024; fd++) {
		ssize_t n;

		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		n = readlink(path, what, sizeof what);
		if (n > 0 && memmem(what, (size_t)n, "userfaultfd", 11))
			return fd;
	}
	return -1;
}

TEST(a_program_that_closes_our_descriptor_is_cached_for_no_more)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		hugepin_domain *d = open_lru();
		char *p = map(MIB);

		alarm(60);
		EXPECT(!registered(d, p, 4096));
		if (!hp_uffd_works())
			_exit(t_failures != 0);
		EXPECT_EQ(close(userfaultfd_of_ours()), 0);
		munmap(p, MIB);
		EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		EXPECT(!registered(d, p, 4096)); /* the watcher's own has told */
		EXPECT(!hp_uffd_works());
		EXPECT(!registered(d, p, 4096)); /* uncached from now on */
		EXPECT_EQ(hugepin_domain_close(d), 0);
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

TEST(what_cannot_be_watched_is_not_cached_under_the_drop_in_either)
{
	hugepin_domain *d = open_lru();
	char name[] = "/tmp/hugepin-test-XXXXXX", *p;
	int fd = mkstemp(name);

	EXPECT(fd >= 0 && unlink(name) == 0 && ftruncate(fd, (off_t)MIB) == 0);
	p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	hp_sees_unmaps = true;
	EXPECT(!registered(d, p, 4096));
	/* As the C library unmaps a shared object: nobody calls hugepin_unmapping_(). */
	EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == p);
	EXPECT(!hp_uffd_works() || !registered(d, p, 4096));
	hp_sees_unmaps = false;
	munmap(p, MIB);
	close(fd);
	close_empty(&device, d);
}

static _Atomic bool sleeping;

static void *sleep_on(void *unused)
{
	while (sleeping)
		usleep(1000);
	return unused;
}

TEST(memory_that_is_gone_is_deregistered_without_another_pin)
{
	hugepin_domain *d;
	char *p = map(MIB);
	pthread_t t;

	/* In a program of one thread, its next pin does it. */
	sleeping = true;
	pthread_create(&t, NULL, sleep_on, NULL);
	d = open_lru();

	if (!hp_uffd_works()) {
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("no userfaultfd");
	}
	hp_domains_start(); /* as in a program of several threads, from the start */
	EXPECT_EQ(touch(d, p, MIB), 0);
	munmap(p, MIB);
	for (int i = 0; i < 20000 && stats_of(d).regions; i++)
		usleep(1000);
	EXPECT_EQ(stats_of(d).regions, 0);
	sleeping = false;
	pthread_join(t, NULL);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ one thread only; hints; fork */

static void *other_thread(void *d)
{
	static char unregistered[8192];
	struct hugepin_pin pin;
	char *p = device.reg[1].live ? (char *)device.reg[1].addr : NULL;

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0); /* a hit is for everybody */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_pin(d, unregistered, 4096, 0, &pin), -EPERM);
	EXPECT_EQ(hugepin_domain_close(d), -EPERM);
	EXPECT_EQ(hugepin_forget(p, 4096), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), -EPERM);
	return NULL;
}

TEST(an_opener_only_device_is_called_by_the_opener_alone)
{
	hugepin_domain *d;
	pthread_t t;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(touch(d, p, 4096), 0);
	EXPECT_EQ(touch(d, p + 100000, 4096), 0);
	pthread_create(&t, NULL, other_thread, d);
	pthread_join(t, NULL);
	EXPECT_EQ(device.regs, 2);
	EXPECT(registered(d, p + 100000, 4096)); /* and what was left to it is done */
	EXPECT_EQ(device.regs, 1);
	EXPECT(pthread_equal(device.thread, pthread_self()));
	munmap(p, MIB);
	close_empty(&device, d);
}

struct opened {
	hugepin_domain *d;
	struct hugepin_pin pin; /* made and not given back */
	char *p;
};

static void *open_and_end(void *opened)
{
	struct opened *o = opened;

	o->d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(touch(o->d, o->p, 4096), 0);
	EXPECT_EQ(hugepin_pin(o->d, o->p + 8192, 4096, 0, &o->pin), 0);
	return NULL;
}

static void *take_for_opener(void *opened)
{
	struct opened *o = opened;
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(o->d, o->p + 65536, 4096, 0, &pin), -EPERM);
	EXPECT_EQ(hugepin_prefetch(o->d, o->p, 4096, 0), 0);
	return NULL;
}

TEST(a_domain_whose_opener_has_ended_is_closed_by_another_thread)
{
	struct opened o = { .p = map(MIB) };
	bool same = false;
	pthread_t opener, t;
	long calls;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	pthread_create(&opener, NULL, open_and_end, &o);
	pthread_join(opener, NULL);
	/* A new thread may have its pthread_t, and is another nevertheless. */
	calls = device.calls;
	for (int i = 0; i < 20 && !same; i++) {
		pthread_create(&t, NULL, take_for_opener, &o);
		same = pthread_equal(t, opener);
		pthread_join(t, NULL);
	}
	EXPECT(same);
	EXPECT_EQ(device.calls, calls);
	EXPECT_EQ(hugepin_domain_close(o.d), -EBUSY);
	EXPECT_EQ(touch(o.d, o.p + 65536, 4096), -EPERM); /* for all that */
	EXPECT_EQ(hugepin_unpin(o.d, &o.pin), 0);
	device.dereg_error = -EEXIST; /* as a ring says whose owner is gone */
	EXPECT_EQ(hugepin_domain_close(o.d), 0);
	EXPECT_EQ(device.deregs, 2);
	EXPECT_EQ(device.closed, 1);
	munmap(o.p, MIB);
}

/* Hits of a thread that is not the opener, while nobody can have the domain's lock. */
struct hits {
	hugepin_domain *d;
	char *heap, *foreign;
	_Atomic long done; /* the first, by which a thread gets its counters, takes the lock */
	_Atomic bool go;
};
enum { HITS = 1000 };

static void *hit_without_the_lock(void *arg)
{
	struct hits *h = arg;

	for (int i = 0; i < HITS; i++) {
		struct iovec v[] = { { h->heap, 100 }, { h->foreign, 100 } };
		struct hugepin_pin pins[2];

		for (int k = 0; k < 2; k++) {
			EXPECT_EQ(hugepin_pin(h->d, v[k].iov_base, 100, 0, &pins[0]), 0);
			EXPECT_EQ(hugepin_unpin(h->d, &pins[0]), 0);
			EXPECT_EQ(hugepin_sg_key(h->d, v[k].iov_base, 100, 0, &pins[0]), 0);
			EXPECT_EQ(hugepin_unpin(h->d, &pins[0]), 0);
		}
		EXPECT_EQ(hugepin_pinv(h->d, v, 2, 0, pins, 2), 2);
		EXPECT_EQ(hugepin_unpinv(h->d, pins, 2), 0);
		h->done++;
		while (!h->go)
			usleep(1000);
	}
	return NULL;
}

/* Whether the opener's next hit sees to what is left to it. */
static bool opener_looks(hugepin_domain *d, const char *p)
{
	long deregs = device.deregs;

	EXPECT_EQ(touch(d, p, 4096), 0);
	return device.deregs != deregs;
}

TEST(what_is_left_to_the_opener_keeps_other_threads_hits_from_nothing)
{
	struct hits h = { .heap = hugepin_malloc(MIB), .foreign = map(MIB) };
	pthread_t t;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	h.d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(touch(h.d, h.heap, 4096), 0);
	EXPECT_EQ(touch(h.d, h.foreign, 4096), 0);
	EXPECT_EQ(touch(h.d, h.foreign + 100000, 4096), 0);
	EXPECT(!(h.d->attention & HP_TODO));
	pthread_create(&t, NULL, hit_without_the_lock, &h);
	while (!h.done)
		usleep(1000);
	/* Retired, and known to be in no use, by a thread that may not deregister. */
	hp_lock(&h.d->lock);
	hp_region_unpublish(hp_region_find(h.d, (uintptr_t)h.foreign + 100000, 0));
	hp_region_settle(h.d);
	h.d->attention |= HP_TODO;
	h.go = true;
	for (int i = 0; i < 50000 && h.done < HITS; i++)
		usleep(1000);
	EXPECT_EQ(h.done, HITS);
	hp_unlock(&h.d->lock);
	pthread_join(t, NULL);
	EXPECT(h.d->attention & HP_TODO);
	EXPECT(opener_looks(h.d, h.foreign));
	EXPECT(!(h.d->attention & HP_TODO) && !opener_looks(h.d, h.foreign));
	munmap(h.foreign, MIB);
	hugepin_free(h.heap);
	close_empty(&device, h.d);
}

TEST(a_hint_is_carried_out_before_the_pin)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);

	EXPECT_EQ(hugepin_prefetch(d, p + 10, 9000, 0), 0);
	for (int i = 0; i < 20000 && !stats_of(d).prefetched; i++)
		usleep(1000);
	EXPECT_EQ(stats_of(d).prefetched, 1);
	EXPECT(registered(d, p, 8192));
	munmap(p, MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ what is there for speed alone */

static struct {
	hugepin_domain *d;
	char *p, *other;
	sem_t ready, go, done;
} quick;

/* A thread's first pin takes the lock. */
static void *pin_quickly(void *unused)
{
	struct hugepin_pin pin;

	(void)unused;
	EXPECT_EQ(touch(quick.d, quick.other, 100), 0);
	sem_post(&quick.ready);
	sem_wait(&quick.go);
	EXPECT_EQ(hugepin_pin(quick.d, quick.p, 5000, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(quick.d, &pin), 0);
	sem_post(&quick.done);
	return NULL;
}

/* Whether p is pinned and given back while the domain is locked. */
static bool needs_no_lock(hugepin_domain *d, char *p, char *other)
{
	struct timespec end;
	pthread_t t;
	bool quickly;

	quick.d = d;
	quick.p = p;
	quick.other = other;
	sem_init(&quick.ready, 0, 0);
	sem_init(&quick.go, 0, 0);
	sem_init(&quick.done, 0, 0);
	pthread_create(&t, NULL, pin_quickly, NULL);
	sem_wait(&quick.ready);
	hp_lock(&d->lock);
	sem_post(&quick.go);
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 50;
	quickly = sem_timedwait(&quick.done, &end) == 0;
	hp_unlock(&d->lock);
	pthread_join(t, NULL);
	return quickly;
}

/* Nobody watches, or hits would have to ask the kernel. */
static hugepin_domain *open_unwatched(void)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM };
	hugepin_domain *d = NULL;

	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	return d;
}

TEST(what_was_pinned_ahead_is_found_without_the_lock)
{
	hugepin_domain *d = open_unwatched();
	char *p = map(MIB);

	EXPECT_EQ(touch(d, p + 500000, 4096), 0);
	hp_lock(&d->lock);
	EXPECT_EQ(hp_cover_ahead(d, p + 10, 9000, HUGEPIN_READ | HUGEPIN_WRITE), 0);
	hp_unlock(&d->lock);
	EXPECT_EQ(device.regs, 2);
	EXPECT(needs_no_lock(d, p + 10, p + 500000));
	EXPECT_EQ(device.regs, 2);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(what_was_pinned_is_found_without_the_lock)
{
	hugepin_domain *d = open_unwatched();
	char *p = map(8 * MIB);

	EXPECT_EQ(touch(d, p + 500000, 4096), 0);
	EXPECT_EQ(touch(d, p + 10, 9000), 0);
	EXPECT(needs_no_lock(d, p + 10, p + 500000));
	EXPECT_EQ(touch(d, p + MIB, 7 * MIB), 0);
	EXPECT(needs_no_lock(d, p + MIB, p + 500000));
	EXPECT_EQ(touch(d, p + 5 * MIB, 4096), 0);
	EXPECT(needs_no_lock(d, p + 5 * MIB + 100000, p + 500000)); /* by the hugepage, all of which is registered */
	EXPECT_EQ(device.calls, 3);
	munmap(p, 8 * MIB);
	close_empty(&device, d);
}

TEST(what_went_away_unpinned_makes_no_unpin_slow)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);

	EXPECT_EQ(touch(d, p, 4096), 0);
	EXPECT_EQ(hugepin_forget(p, 4096), 0);
	EXPECT(!(d->attention & HP_RETIRED)); /* though it may not be deregistered yet */
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(after_the_last_unpin_of_what_went_away_unpins_are_quick_again)
{
	hugepin_domain *d = open_unwatched();
	struct hugepin_pin one, two, other;
	char *p = map(MIB);

	EXPECT_EQ(touch(d, p + 500000, 4096), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &one), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &two), 0);
	EXPECT_EQ(hugepin_forget(p, 4096), -EBUSY); /* pins are out */
	EXPECT_EQ(hugepin_pin(d, p + 500000, 4096, 0, &other), 0);
	EXPECT_EQ(stats_of(d).retired, 1);
	EXPECT(d->attention & HP_RETIRED);
	EXPECT_EQ(hugepin_unpin(d, &one), 0);
	EXPECT(d->attention & HP_RETIRED);
	EXPECT_EQ(hugepin_unpin(d, &two), 0);
	EXPECT_EQ(d->attention, 0);
	EXPECT_EQ(stats_of(d).retired, 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(hugepin_unpin(d, &other), 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ */

TEST(on_demand_memory_is_not_charged_and_is_prefetched_by_the_device)
{
	hugepin_domain *d;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	d = open_as(HUGEPIN_POLICY_ODP, 4096, 0);
	EXPECT_EQ(touch(d, p, MIB), 0);
	EXPECT_EQ(device.reg[1].access & HUGEPIN_ON_DEMAND, HUGEPIN_ON_DEMAND);
	EXPECT_EQ(stats_of(d).pinned_bytes, 0);
	EXPECT_EQ(hugepin_prefetch(d, p, 8192, 0), 0);
	for (int i = 0; i < 20000 && !stats_of(d).prefetched; i++)
		usleep(1000);
	EXPECT_EQ(device.prefetches, 1);
	EXPECT_EQ(stats_of(d).prefetched_otherwise, 1);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(a_child_has_no_part_in_the_parents_domains)
{
	hugepin_domain *d = open_lru(), *own;
	struct hugepin_pin pin;
	char *p = map(MIB), *h = hugepin_malloc(MIB);
	int status;
	pid_t pid;

	EXPECT_EQ(touch(d, h, 4096), 0);
	EXPECT_EQ(touch(d, p, 4096), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	pid = fork();
	if (pid == 0) {
		struct hugepin_pin mine;
		long calls = device.calls;

		EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &mine), -ESTALE);
		EXPECT_EQ(hugepin_pin(d, h, 4096, 0, &mine), -ESTALE);
		EXPECT_EQ(hugepin_prefetch(d, p, 4096, 0), -ESTALE);
		EXPECT_EQ(hugepin_unpin(d, &pin), -EINVAL);
		EXPECT_EQ(device.calls, calls);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		device_reset(&device);
		own = open_as(HUGEPIN_POLICY_LRU, 0, 0);
		EXPECT_EQ(touch(own, p, 4096), 0);
		EXPECT_EQ(touch(own, h, 4096), 0);
		EXPECT_EQ(hugepin_forget(p, 4096), 0);
		EXPECT(!registered(own, p, 4096));
		close_empty(&device, own);
		_exit(t_failures != 0);
	}
	EXPECT(pid > 0);
	waitpid(pid, &status, 0);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EXPECT(registered(d, p, 4096));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	munmap(p, MIB);
	hugepin_free(h);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ the heap's memory */

static struct hugepin_extent extent_of(const void *p)
{
	struct hugepin_extent x = { .len = 0 };

	EXPECT(hugepin_extent(p, &x, sizeof x) > 0);
	return x;
}

TEST(arena_registers_the_extent_as_a_whole)
{
	hugepin_domain *d;
	char *p = hugepin_malloc(3 * MIB), *q = hugepin_malloc(100 * KIB);
	struct hugepin_extent x = extent_of(p);
	struct hugepin_pin pin;

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	EXPECT_EQ(hugepin_pin(d, p + 7, 100, 0, &pin), 0);
	EXPECT(device.reg[pin.lkey].addr == (uintptr_t)x.addr && device.reg[pin.lkey].len == x.len);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(registered(d, p, 3 * MIB));
	if (extent_of(q).addr == x.addr)
		EXPECT(registered(d, q, 100 * KIB));
	EXPECT_EQ(stats_of(d).extents, 1);
	EXPECT_EQ(touch(d, x.addr, x.len + 1), 0); /* no buffer goes beyond its extent: that is nothing to keep */
	EXPECT_EQ(stats_of(d).uncached, 1);
	close_empty(&device, d);
	hugepin_free(p);
	hugepin_free(q);
	hugepin_purge();
}

TEST(an_extent_over_the_budget_is_registered_by_hugepages)
{
	hugepin_domain *d;
	char *p = hugepin_aligned_alloc(2 * MIB, 16 * MIB);

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_ARENA, 6 * MIB, 0);
	for (size_t at = 0; at < 16 * MIB; at += MIB / 2) {
		EXPECT_EQ(touch(d, p + at, 5000), 0);
		EXPECT(device.bytes <= 6 * MIB);
	}
	EXPECT_EQ(stats_of(d).extents, 0);
	EXPECT_EQ(device.calls, 8); /* one for each hugepage */
	/* What lies over more than fits is pinned page by page, as far as that fits. */
	EXPECT_EQ(touch(d, p + 2 * MIB - 4096, 5 * MIB), 0);
	EXPECT_EQ(stats_of(d).uncached, 1);
	close_empty(&device, d);
	hugepin_free(p);
	hugepin_purge();
}

TEST(under_lru_buffers_share_the_hugepages_that_they_share)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin held;
	char *p = hugepin_aligned_alloc(2 * MIB, 8 * MIB);

	EXPECT_EQ(hugepin_pin(d, p + 100, 1000, 0, &held), 0);
	EXPECT_EQ(device.bytes, 2 * MIB);
	EXPECT(registered(d, p + MIB, MIB));
	EXPECT(!registered(d, p + MIB, 2 * MIB)); /* two of them: the first lies inside, and is still in use */
	EXPECT_EQ(device.regs, 2);
	EXPECT(device_covers(&device, &held, HUGEPIN_WRITE));
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	EXPECT_EQ(device.bytes, 4 * MIB);
	EXPECT(registered(d, p, 4 * MIB));
	EXPECT(!registered(d, p + 3 * MIB, 2 * MIB)); /* a hugepage of it, and another: what was asked for and no more */
	EXPECT_EQ(device.bytes, 8 * MIB);
	for (int i = 0; i < 2; i++) /* from a hugepage that both cover */
		EXPECT(registered(d, p + 3 * MIB, 2 * MIB) && registered(d, p + MIB, 2 * MIB) && registered(d, p + 3 * MIB, 9));
	close_empty(&device, d);
	hugepin_free(p);
	hugepin_purge();
}

TEST(the_heap_gives_nothing_back_that_is_pinned)
{
	struct hugepin_pin pin;
	hugepin_domain *d;
	uint64_t before;
	char *p;

	hugepin_purge();
	before = HP_STAT_GET(base_bytes);
	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	p = hugepin_malloc(8 * MIB);
	EXPECT_EQ(hugepin_pin(d, p, 8 * MIB, 0, &pin), 0);
	hugepin_free(p);
	hugepin_purge();
	EXPECT(HP_STAT_GET(base_bytes) >= before + 8 * MIB);
	EXPECT(device_covers(&device, &pin, HUGEPIN_WRITE));
	memset(p, 1, 8 * MIB); /* still there */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	hugepin_purge();
	EXPECT_EQ(HP_STAT_GET(base_bytes), before);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(stats_of(d).decayed, 1);
	close_empty(&device, d);
}

/* The service thread has seen to the extent of p, and will not register it later on. */
static void wait_for_service(hugepin_domain *d, const void *p)
{
	uint64_t gen = extent_of(p).gen;

	hp_domains_start();
	for (int i = 0; i < 50000 && __atomic_load_n(&d->extent_gen, __ATOMIC_RELAXED) < gen; i++)
		usleep(1000);
}

/* Whether the pin is the first into an extent that the service thread has registered, or registers it. */
static void pin_little_and_free(bool ahead, bool hit)
{
	struct hugepin_pin pin, found;
	hugepin_domain *d;
	uint64_t before;
	char *p;

	hugepin_purge();
	before = HP_STAT_GET(base_bytes);
	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	p = hugepin_aligned_alloc(2 * MIB, 100 * MIB); /* an extent of its own */
	if (ahead)
		wait_for_service(d, p);
	EXPECT_EQ(hugepin_pin(d, p + 50 * MIB + 5, 4096, 0, &pin), 0);
	wait_for_service(d, p);
	EXPECT_EQ(device.calls, 1);
	if (hit) { /* of which nobody knows where it was */
		EXPECT_EQ(hugepin_pin(d, p + 70 * MIB, 4096, 0, &found), 0);
		EXPECT_EQ(hugepin_unpin(d, &found), 0);
	}
	p[50 * MIB + 5] = 1;
	hugepin_free(p);
	hugepin_purge();
	EXPECT_EQ(HP_STAT_GET(base_bytes), before + (hit ? 100 : 2) * MIB);
	EXPECT(device_covers(&device, &pin, HUGEPIN_WRITE));
	EXPECT_EQ(p[50 * MIB + 5], 1); /* still there */
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	hugepin_purge();
	EXPECT_EQ(HP_STAT_GET(base_bytes), before);
	EXPECT_EQ(device.regs, 0);
	close_empty(&device, d);
}

TEST(a_small_pin_keeps_of_a_freed_extent_the_hugepages_that_it_covers)
{
	pin_little_and_free(false, false);
	pin_little_and_free(true, false);
	pin_little_and_free(false, true);
}

TEST(new_extents_are_registered_ahead_of_the_first_pin)
{
	hugepin_domain *d;
	char *p, *q = hugepin_malloc(MIB);

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	p = hugepin_malloc(100 * MIB); /* an extent of its own */
	for (int i = 0; i < 20000 && !stats_of(d).ahead; i++)
		usleep(1000);
	EXPECT(stats_of(d).ahead >= 1);
	EXPECT(registered(d, p, 100 * MIB));
	EXPECT(!registered(d, q, MIB)); /* what was there before waits for its first pin */
	hugepin_free(p);
	hugepin_free(q);
	close_empty(&device, d);
	hugepin_purge();
}

TEST(domains_register_the_same_memory_each_for_itself)
{
	hugepin_domain *a, *b;
	char *p = hugepin_malloc(4 * MIB);
	struct hugepin_pin pin;

	device_reset(&device);
	a = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	b = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(touch(a, p, 4 * MIB), 0);
	EXPECT_EQ(hugepin_pin(b, p, 4 * MIB, 0, &pin), 0);
	EXPECT_EQ(device.regs, 2);
	hugepin_free(p);
	hugepin_purge(); /* a lets go of it, b cannot */
	EXPECT_EQ(device.regs, 1);
	memset(p, 1, 4 * MIB);
	EXPECT_EQ(hugepin_unpin(b, &pin), 0);
	hugepin_purge();
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(hugepin_domain_close(a), 0);
	EXPECT_EQ(hugepin_domain_close(b), 0);
}

/* ------------------------------------------------------------------ a slow device holds up nobody else */

static sem_t entered, leave;

static int slow_reg(void *unused, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)unused, (void)addr, (void)len, (void)access;
	sem_post(&entered);
	sem_wait(&leave);
	*ret_ = (struct hugepin_reg){ 1, 1, 0 };
	return 0;
}

static int quick_dereg(void *unused, struct hugepin_reg *reg)
{
	(void)unused, (void)reg;
	return 0;
}

static void *pin_slowly(void *d)
{
	static char memory[3 * 4096];
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, memory, 4096, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	return NULL;
}

/* If one of these waited for the slow device, it would wait for ever: the test's time would run out. */
TEST(a_slow_device_holds_up_no_other_domain_and_no_malloc)
{
	struct hugepin_backend slow = { sizeof slow, "slow", slow_reg, quick_dereg, NULL, device_limits, NULL, NULL };
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU }; /* nothing ahead */
	hugepin_domain *d = open_lru(), *waiting;
	char *p = map(MIB), *h;
	pthread_t t;

	sem_init(&entered, 0, 0);
	sem_init(&leave, 0, 0);
	EXPECT_EQ(hugepin_domain_open(&slow, &device, &attr, &waiting), 0);
	EXPECT_EQ(touch(d, p, 4096), 0);
	pthread_create(&t, NULL, pin_slowly, waiting);
	sem_wait(&entered);
	EXPECT(registered(d, p, 4096));
	EXPECT_EQ(touch(d, p + 8192, 4096), 0);
	h = hugepin_malloc(3 * MIB);
	EXPECT_EQ(touch(d, h, 3 * MIB), 0);
	h = hugepin_realloc(h, 20 * MIB);
	hugepin_free(h);
	munmap(p, MIB);
	EXPECT_EQ(hugepin_forget(&device, 4096), 0);
	EXPECT_EQ(hugepin_prefetch(waiting, &t, sizeof t, 0), 0);
	for (int i = 0; i < 100; i++) /* and for the hint, and for extents ahead of use */
		sem_post(&leave);
	pthread_join(t, NULL);
	EXPECT_EQ(hugepin_domain_close(waiting), 0);
	close_empty(&device, d);
}

static int slow_dereg(void *unused, struct hugepin_reg *reg)
{
	(void)unused, (void)reg;
	sem_post(&entered);
	sem_wait(&leave);
	return 0;
}

static int slow_limits(void *unused, struct hugepin_limits *ret_)
{
	(void)unused;
	*ret_ = (struct hugepin_limits){ .access = DEVICE_ACCESS };
	sem_post(&entered);
	sem_wait(&leave);
	return 0;
}

static const struct hugepin_backend quick_backend = { sizeof quick_backend, "quick",	   device_reg, device_dereg, NULL,
						      device_limits,	    device_now, NULL };

/* Not on a thread that has freed something itself, and which keeps it for a while. */
static void *decay(void *unused)
{
	for (int i = 0; i < 200 && device.regs; i++)
		hp_heap_tick();
	return unused;
}

/* Opens, caches what decays, closes: as if there were no other device. */
static void live_beside_a_slow_device(void)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	hugepin_domain *d = NULL;
	pthread_t t;
	char *h = hugepin_aligned_alloc(HP_PAGE, 2 * HP_PAGE);

	EXPECT_EQ(hugepin_domain_open(&quick_backend, &device, &attr, &d), 0);
	EXPECT_EQ(touch(d, h, 2 * HP_PAGE), 0);
	EXPECT(device.regs > 0);
	hugepin_free(h);
	pthread_create(&t, NULL, decay, NULL);
	pthread_join(t, NULL);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

static void *open_slowly(void *backend)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	hugepin_domain *d = NULL;

	EXPECT_EQ(hugepin_domain_open(backend, NULL, &attr, &d), 0);
	return d;
}

static void *close_slowly(void *d)
{
	EXPECT_EQ(hugepin_domain_close(d), 0);
	return NULL;
}

/* If one of these waited for the slow device, it would wait for ever: the test's time would run out. The slow call is the service
 * thread's, then a pin's, then one that closes, then one that opens. */
TEST(a_slow_device_holds_up_no_opening_no_closing_and_no_decay)
{
	struct hugepin_backend slow = { sizeof slow, "slow", slow_reg, slow_dereg, NULL, device_limits, NULL, NULL };
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU }; /* nothing ahead */
	hugepin_domain *waiting = NULL;
	char *p = map(MIB);
	void *opened;
	pthread_t t;

	device_reset(&device);
	sem_init(&entered, 0, 0);
	sem_init(&leave, 0, 0);
	EXPECT_EQ(hugepin_domain_open(&slow, &device, &attr, &waiting), 0);
	EXPECT_EQ(hugepin_prefetch(waiting, p, 4096, 0), 0);
	sem_wait(&entered);
	live_beside_a_slow_device();
	sem_post(&leave);
	for (int i = 0; i < 50000 && !stats_of(waiting).prefetched; i++)
		usleep(1000);
	EXPECT_EQ(stats_of(waiting).prefetched, 1);
	pthread_create(&t, NULL, pin_slowly, waiting);
	sem_wait(&entered);
	live_beside_a_slow_device();
	sem_post(&leave);
	pthread_join(t, NULL);
	pthread_create(&t, NULL, close_slowly, waiting);
	sem_wait(&entered);
	live_beside_a_slow_device();
	sem_post(&leave);
	sem_post(&leave);
	pthread_join(t, NULL);
	sem_wait(&entered); /* for the second region */
	slow.limits = slow_limits;
	pthread_create(&t, NULL, open_slowly, &slow);
	sem_wait(&entered);
	live_beside_a_slow_device();
	sem_post(&leave);
	pthread_join(t, &opened);
	EXPECT_EQ(hugepin_domain_close(opened), 0);
	munmap(p, MIB);
}

static _Atomic long forks;
static timer_t next_fork;
static const struct itimerspec soon = { .it_value = { 0, 770000 } };

static void fork_and_pin(int signal)
{
	struct hugepin_pin pin;
	int saved = errno, status = 0;
	pid_t pid = fork();

	(void)signal;
	if (pid == 0 && forks % 16) /* most, to be many */
		_exit(0);
	if (pid == 0) {
		char *p = map(MIB);

		alarm(60);
		device_reset(&device);
		hugepin_domain *d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
		_exit(hugepin_pin(d, p, 4096, 0, &pin) || hugepin_unpin(d, &pin) || hugepin_domain_close(d) || t_failures);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	forks++;
	timer_settime(next_fork, 0, &soon, NULL); /* from here on, so that what is interrupted goes on */
	errno = saved;
}

TEST(a_signal_handler_may_fork_wherever_it_interrupts_a_pin)
{
	const struct sigaction forks_on = { .sa_handler = fork_and_pin };
	struct sigevent by_signal = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct sigaction before;
	time_t end = time(NULL) + 5;
	hugepin_domain *d;
	char *p = map(4 * MIB);

#ifdef HP_DEBUG
	SKIP("the order of locks is checked, and a handler does not know of those below it");
#endif
	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_LRU, 40 * 4096, 0);
	sigaction(SIGUSR1, &forks_on, &before);
	EXPECT_EQ(timer_create(CLOCK_MONOTONIC, &by_signal, &next_fork), 0);
	EXPECT_EQ(timer_settime(next_fork, 0, &soon, NULL), 0);
	for (size_t i = 0; forks < 2000 && t_failures < 5 && time(NULL) < end; i++)
		EXPECT_EQ(touch(d, p + i * 37 % 1000 * 4096, 4096), 0);
	timer_delete(next_fork);
	sigaction(SIGUSR1, &before, NULL);
	munmap(p, 4 * MIB);
	close_empty(&device, d);
}

/* Runs fails() in a process of its own: what it does cannot be undone. */
static void in_child(void (*fails)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		alarm(60);
		fails();
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

static void *unpin_it(void *pin)
{
	hugepin_domain *d = ((void **)pin)[0];

	return (void *)(intptr_t)hugepin_unpin(d, ((void **)pin)[1]);
}

static void *nothing(void *unused)
{
	return unused;
}

static void unpin_without_memory(void)
{
	hugepin_domain *d = open_lru();
	const struct rlimit none = { 4096, RLIM_INFINITY };
	char *p = map(MIB);
	struct hugepin_pin pin[3];
	void *args[2] = { d, &pin[0] }, *e = NULL;
	pthread_t t;

	for (int i = 0; i < 3; i++)
		EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin[i]), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin[2]), 0);
	pthread_create(&t, NULL, nothing, NULL); /* leaves its stack to the next */
	pthread_join(t, NULL);
	EXPECT_EQ(setrlimit(RLIMIT_DATA, &none), 0);
	EXPECT_EQ(pthread_create(&t, NULL, unpin_it, args), 0);
	pthread_join(t, &e);
	EXPECT_EQ((intptr_t)e, 0);
	EXPECT_EQ(pin[0].ref, 0);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_unpin(d, &pin[1]), 0);
	close_empty(&device, d);
}

/* Twice and as a copy, with another pin out and without. */
static void unpin_copies(uint32_t policy, int told_at_once)
{
	hugepin_domain *d = open_as(policy, 0, 0);
	struct hugepin_pin pin, copy, other;
	uint64_t before = HP_STAT_GET(bad_pointers);
	char *p = map(MIB);

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &other), 0);
	copy = pin;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(HP_STAT_GET(bad_pointers), before);
	EXPECT_EQ(hugepin_unpin(d, &copy), 0);
	EXPECT_EQ(HP_STAT_GET(bad_pointers), before + (uint64_t)told_at_once);
	EXPECT_EQ(hugepin_unpin(d, &other), 0);
	EXPECT_EQ(HP_STAT_GET(bad_pointers), before + 1);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(touch(d, p, 4096), 0);
	EXPECT_EQ(HP_STAT_GET(bad_pointers), before + 1);
	EXPECT_EQ(hugepin_domain_close(d), 0); /* the sum is right */
	munmap(p, MIB);
}

static void unpin_too_often(void)
{
	int fd = memfd_create("stderr", 0), status;
	char said[1000] = "";
	pid_t pid;

	dup2(fd, STDERR_FILENO);
	hp_config.guard = 1; /* of this, the domains' part */
	hp_config.abort_on_misuse = 0;
	device_reset(&device);
	unpin_copies(HUGEPIN_POLICY_LRU, 0);
	unpin_copies(HUGEPIN_POLICY_NONE, 1);
	EXPECT(pread(fd, said, sizeof said - 1, 0) > 0 && strstr(said, "hugepin: hugepin_unpin(0x") &&
	       strstr(said, "): a copy of a pin that was given back before\n"));
	hp_config.abort_on_misuse = 1;
	pid = fork();
	if (pid == 0) {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		unpin_copies(HUGEPIN_POLICY_NONE, 1);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(a_copy_of_a_pin_that_is_given_back_is_told_of_under_guard)
{
	in_child(unpin_too_often);
}

TEST(a_pin_can_be_given_back_where_there_is_no_memory)
{
#ifdef __SANITIZE_ADDRESS__
	SKIP("the sanitizer needs memory for each thread");
#endif
	in_child(unpin_without_memory);
}

static void forbid_membarrier(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };

	/* As the drop-in does. */
	hp_service_end();
	hp_ticker_forbid();
	EXPECT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	/* Of this thread: those of the library have filters of their own, and take no other. */
	EXPECT_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), 0);
}

static void lose_membarrier(void)
{
	hugepin_domain *d = open_lru(), *other;
	char *p = map(MIB);

	EXPECT_EQ(touch(d, p, 4096), 0);
	forbid_membarrier();
	EXPECT_EQ(touch(d, p, 8192), 0);
	EXPECT_EQ(device.deregs, 0); /* nobody can say that it is not in use */
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, NULL, &other), -ENOSYS);
}

TEST(without_membarrier_nothing_is_deregistered)
{
	in_child(lose_membarrier);
}

/* A thread is held up between its look at a region and its count; by then the region is another domain's. */
TEST(what_was_counted_in_vain_lets_go_of_whose_region_it_is)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin pin;
	uint32_t index;
	char *p = map(MIB);

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	index = (uint32_t)pin.ref;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	hp_count(&hp_counts_self[index].pins);
	EXPECT_EQ(hugepin_forget(p, 4096), -EBUSY);
	EXPECT_EQ(device.regs, 1);
	hp_count_back(hp_counts_self, index);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(stats_of(d).retired, 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ against a list */

/* The naive model: what is pinned, which buffers of the heap are live, and for how much of the memory a key is good. */
enum { PAGES = 64, PINS = 40, BUFFERS = 6, STEPS = 30000 };

static void note_gone(uintptr_t start, uintptr_t end)
{
	for (int k = 1; k < DEVICE_REGS; k++)
		if (device.reg[k].live && device.reg[k].addr < end && device.reg[k].addr + device.reg[k].len > start)
			device.reg[k].stale = true;
}

/* Some way in which the page goes away and comes back as another. */
static void replace_page(void *page)
{
	void *elsewhere;

	switch (random() % 4) {
	case 0:
		madvise(page, 4096, MADV_DONTNEED);
		break;
	case 1:
		syscall(SYS_munmap, page, 4096);
		EXPECT(mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
		break;
	case 2:
		EXPECT(mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
		break;
	default:
		elsewhere = map(4096);
		EXPECT(mremap(page, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere);
		EXPECT(mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
		munmap(elsewhere, 4096);
	}
}

/* The child has none of it, and what it does changes nothing here. */
static void fork_and_look(hugepin_domain *d, void *p)
{
	struct hugepin_pin pin;
	int status = 1;
	pid_t pid = fork();

	if (pid == 0) {
		madvise(p, 4096, MADV_DONTNEED);
		_exit(hugepin_pin(d, p, 4096, 0, &pin) != -ESTALE);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

static void random_steps(uint32_t policy, unsigned seed)
{
	struct {
		struct hugepin_pin pin;
		unsigned access;
		int buffer; /* of the heap; -1: foreign */
	} out[PINS] = { 0 };
	struct {
		char *p;
		size_t size;
		int pins;
	} buffers[BUFFERS] = { 0 };
	hugepin_domain *d;
	char *p = map(PAGES * 4096);

	device_reset(&device);
	d = open_as(policy, 6 * MIB, 20);
	srandom(seed);
	for (int step = 0; step < STEPS && t_failures < 5; step++) {
		size_t at = (size_t)random() % (PAGES * 4096), len = 1 + (size_t)random() % HP_MIN(8 * 4096, PAGES * 4096 - at);
		unsigned access = 1u << random() % 4;
		int i = (int)(random() % PINS), b = (int)(random() % BUFFERS), what = (int)(random() % 1000), e;

		if (out[i].pin.ref) {
			EXPECT(device_covers(&device, &out[i].pin, out[i].access));
			device.reg[out[i].pin.lkey].uses--;
			EXPECT_EQ(hugepin_unpin(d, &out[i].pin), 0);
			if (out[i].buffer >= 0)
				buffers[out[i].buffer].pins--;
		} else if (what < 850) {
			const char *from = p + at;

			out[i].buffer = -1;
			if (what < 300 && buffers[b].p) {
				out[i].buffer = b;
				at = (size_t)random() % buffers[b].size;
				len = 1 + (size_t)random() % (buffers[b].size - at);
				from = buffers[b].p + at;
			}
			e = hugepin_pin(d, from, len, access, &out[i].pin);
			EXPECT(e == 0 || e == -ENOBUFS);
			if (e)
				continue;
			out[i].access = access;
			EXPECT(device_covers(&device, &out[i].pin, access));
			EXPECT_EQ(out[i].pin.len, len);
			EXPECT(!device.reg[out[i].pin.lkey].stale);
			device.reg[out[i].pin.lkey].uses++;
			if (out[i].buffer >= 0)
				buffers[b].pins++;
		} else if (what < 900) {
			/* The helper may register it again as soon as it is forgotten. */
			hp_domain_lock(d);
			note_gone((uintptr_t)p + at, (uintptr_t)p + at + len);
			hp_domain_unlock(d);
			EXPECT(hugepin_forget(p + at, len) <= 0);
		} else if (what < 950) {
			if (!hp_uffd_works())
				continue;
			at &= ~(size_t)4095;
			hp_domain_lock(d);
			replace_page(p + at);
			note_gone((uintptr_t)p + at, (uintptr_t)p + at + 4096);
			hp_domain_unlock(d);
		} else if (what < 990) {
			if (buffers[b].p && buffers[b].pins == 0) {
				hugepin_free(buffers[b].p);
				buffers[b].p = NULL;
			} else if (!buffers[b].p) {
				buffers[b].size = 32 * KIB + (size_t)random() % (2 * MIB);
				buffers[b].p = hugepin_malloc(buffers[b].size);
			}
		} else if (what < 998) {
			hugepin_purge();
		} else {
			fork_and_look(d, p);
		}
		hp_domain_lock(d); /* the service thread may be deregistering what was forgotten */
		EXPECT(device.bytes <= 6 * MIB && device.regs <= 20);
		EXPECT_EQ(stats_of(d).pinned_bytes, device.bytes);
		hp_domain_unlock(d);
	}
	for (int i = 0; i < PINS; i++)
		if (out[i].pin.ref) {
			device.reg[out[i].pin.lkey].uses--;
			EXPECT_EQ(hugepin_unpin(d, &out[i].pin), 0);
		}
	for (int b = 0; b < BUFFERS; b++)
		hugepin_free(buffers[b].p);
	munmap(p, PAGES * 4096);
	close_empty(&device, d);
	hugepin_purge();
}

TEST(random_use_agrees_with_a_list)
{
	for (unsigned seed = 1; seed <= 3; seed++)
		random_steps(HUGEPIN_POLICY_LRU, seed);
	random_steps(HUGEPIN_POLICY_NONE, 4);
	random_steps(HUGEPIN_POLICY_ARENA, 5);
	random_steps(HUGEPIN_POLICY_CF11, 6);
	random_steps(HUGEPIN_POLICY_PREDICT, 7);
}

/* ------------------------------------------------------------------ the queue of ranges */

static void queue(hugepin_domain *d, char *p, size_t len, bool discarded)
{
	hp_gone_tell(d, &(struct hp_range){ .start = (uintptr_t)p, .end = (uintptr_t)p + len, .discarded = discarded });
}

static bool drained_as_discarded(hugepin_domain *d, char *p)
{
	hp_domain_lock(d);
	hp_gone_drain(d);
	bool is = hp_gone_discarded(d, (uintptr_t)p, (uintptr_t)p + 2 * MIB);
	hp_domain_unlock(d);
	return is;
}

TEST(a_hugepage_is_discarded_until_all_of_it_was_unmapped_since)
{
	hugepin_domain *d = open_lru();
	char *p = hugepin_aligned_alloc(2 * MIB, 512 * MIB);

	/* Queued all at a time: the service thread does not have the lock in between. */
	hp_domain_lock(d);
	queue(d, p, 2 * MIB, true);
	queue(d, p, 2 * MIB, false);
	queue(d, p, 2 * MIB, true); /* part of the first */
	hp_domain_unlock(d);
	EXPECT(drained_as_discarded(d, p));
	queue(d, p + MIB, 4096, false);
	EXPECT(drained_as_discarded(d, p));
	/* So many that one is widened over p. */
	hp_domain_lock(d);
	for (size_t i = 100; i < 100 + HP_GONE_MAX; i++)
		queue(d, p + 2 * i * MIB, 2 * MIB, false);
	queue(d, p - 2 * MIB, 2 * MIB, false);
	hp_domain_unlock(d);
	EXPECT(drained_as_discarded(d, p));
	queue(d, p - 2 * MIB, 6 * MIB, false);
	EXPECT(!drained_as_discarded(d, p));
	hugepin_free(p);
	close_empty(&device, d);
}

/* The kernel tells of it before the pages go, and not when they have gone. */
TEST(foreign_memory_that_was_discarded_is_registered_for_each_pin_until_it_is_unmapped)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);
	long calls;

	if (!hp_uffd_works()) {
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("no userfaultfd");
	}
	EXPECT_EQ(touch(d, p, 8192), 0);
	EXPECT_EQ(touch(d, p + MIB / 2, 4096), 0);
	madvise(p, 4096, MADV_DONTNEED);
	calls = device.calls;
	EXPECT_EQ(touch(d, p, 4096) || touch(d, p, 8192) || touch(d, p, 4096), 0);
	EXPECT_EQ(device.calls - calls, 3);
	EXPECT_EQ(touch(d, p + 4096, 4096) || touch(d, p + MIB / 2, 4096), 0); /* registered anew, and as it was */
	calls = device.calls;
	EXPECT_EQ(touch(d, p + 4096, 4096) || touch(d, p + MIB / 2, 4096), 0);
	EXPECT_EQ(device.calls, calls);
	EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	EXPECT_EQ(touch(d, p, 8192), 0);
	calls = device.calls;
	EXPECT_EQ(touch(d, p, 8192), 0);
	EXPECT_EQ(device.calls, calls);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(what_is_cut_out_of_a_set_of_ranges_is_the_ends_and_wholes)
{
	struct hp_gone g = { .count = 0 };

	hp_gone_push(&g, (struct hp_range){ 1000, 2000, .late = true });
	hp_gone_push(&g, (struct hp_range){ 3000, 4000, .late = true });
	hp_gone_cut(&g, 1200, 1300); /* in the middle: it stays */
	EXPECT(hp_gone_overlaps(&g, 1250, 1251));
	hp_gone_cut(&g, 500, 1100);
	hp_gone_cut(&g, 1900, 3000);
	EXPECT(!hp_gone_overlaps(&g, 0, 1100) && hp_gone_overlaps(&g, 1099, 1101) && !hp_gone_overlaps(&g, 1900, 3000));
	EXPECT(hp_gone_overlaps(&g, 3000, 3001));
	hp_gone_cut(&g, 1100, 1900);
	hp_gone_cut(&g, 3000, 4000);
	EXPECT_EQ(g.count, 0);
}

TEST(a_full_queue_of_ranges_forgets_none)
{
	struct hp_gone g = { .count = 0 };

	for (uintptr_t i = 0; i < 4 * HP_GONE_MAX; i++)
		hp_gone_push(&g, (struct hp_range){ .start = 0x10000 * (2 * i + 1),
						       .end = 0x10000 * (2 * i + 2),
						       .discarded = i % 3 == 0 });
	EXPECT_EQ(g.count, HP_GONE_MAX);
	for (uintptr_t i = 0; i < 4 * HP_GONE_MAX; i++) {
		bool covered = false;

		for (unsigned j = 0; j < g.count; j++)
			covered |= g.range[j].start <= 0x10000 * (2 * i + 1) && g.range[j].end >= 0x10000 * (2 * i + 2) &&
				   g.range[j].discarded >= (i % 3 == 0);
		EXPECT(covered);
	}
	for (unsigned j = 0; j < g.count; j++)
		EXPECT(g.range[j].start > 0x8000); /* nothing below the first */
}

/* ------------------------------------------------------------------ last, since it makes the process large */

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

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)4 << 30;
	hp_config.pages = HP_PAGES_BASE;
	hp_config.decay_ms = 0;
}

T_MAIN
