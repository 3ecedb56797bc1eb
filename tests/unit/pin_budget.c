/*
 * Budgets and refusals: the domain gives unused regions back to keep its budget, or when the kernel or the table of
 * regions has no room. A failure of the device changes nothing.
 */
#include "reg/region.h"
#include "reg/uffd.h"
#include "tests/unit/pin.h"

/* First, in a process where nothing was ever registered. */
PIN_TEST(a_first_pin_that_fails_may_be_tried_again, open_first(HUGEPIN_POLICY_LRU, 4096, 0), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, 8192, 0, &pin), -ENOBUFS);
	EXPECT_EQ(hugepin_pin(d, p, 8192, 0, &pin), -ENOBUFS);
	EXPECT_EQ(touch(d, p, 4096), 0);
}

PIN_TEST(the_budget_is_kept_by_giving_back_what_is_not_in_use, open_first(HUGEPIN_POLICY_LRU, 16 * 4096, 0), MIB)
{
	struct hugepin_pin held;

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
}

PIN_TEST(what_was_used_since_is_kept_before_what_was_not, open_first(HUGEPIN_POLICY_LRU, 8 * 4096, 0), MIB)
{
	for (size_t i = 0; i < 8; i++)
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
	EXPECT_EQ(touch(d, p + 20 * 8192, 4096), 0); /* all bits are cleared on the way, the first goes */
	EXPECT_EQ(touch(d, p + 3 * 8192, 4096), 0);
	for (size_t i = 21; i < 26; i++)
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
	EXPECT(registered(d, p + 3 * 8192, 4096));
	EXPECT(!registered(d, p + 1 * 8192, 4096));
}

PIN_TEST(when_all_is_in_use_a_pin_fails_and_nothing_changes, open_first(HUGEPIN_POLICY_LRU, 4 * 4096, 0), MIB)
{
	struct hugepin_pin held[4], pin;

	for (size_t i = 0; i < 4; i++)
		EXPECT_EQ(hugepin_pin(d, p + i * 8192, 4096, 0, &held[i]), 0);
	EXPECT_EQ(hugepin_pin(d, p + 100000, 1, 0, &pin), -ENOBUFS);
	EXPECT_EQ(hugepin_pin(d, p + 100000, 5 * 4096, 0, &pin), -ENOBUFS);
	EXPECT_EQ(stats_of(d).nobufs, 2);
	EXPECT_EQ(stats_of(d).crowded, 0);
	EXPECT_EQ(device.regs, 4);
	for (size_t i = 0; i < 4; i++) {
		EXPECT(device_covers(&device, &held[i], HUGEPIN_WRITE));
		EXPECT_EQ(hugepin_unpin(d, &held[i]), 0);
	}
	EXPECT_EQ(touch(d, p + 100000, 4096), 0);
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
	EXPECT_EQ(stats_of(d).crowded, 15);
	EXPECT_EQ(stats_of(d).evicted, 15);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ nothing is given back in vain */

enum { IDLE = 3 };

/* Have pages at p, p + 8192... registered and in no use. */
static void make_idle(hugepin_domain *d, char *p)
{
	for (size_t i = 0; i < IDLE; i++)
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
}

static bool is_idle_still(hugepin_domain *d, char *p)
{
	long calls = device.calls;

	make_idle(d, p);
	return device.calls == calls;
}

PIN_TEST(a_pin_without_room_even_if_all_that_is_idle_were_gone_gives_nothing_back,
	 open_first(HUGEPIN_POLICY_LRU, (IDLE + 5) * 4096, IDLE + 3), MIB)
{
	struct hugepin_pin held[2], pin;

	make_idle(d, p);
	for (size_t i = 0; i < 2; i++)
		EXPECT_EQ(hugepin_pin(d, p + MIB / 4 + i * 8192, 1, i ? HUGEPIN_PIN_UNCACHED : 0, &held[i]), 0);
	EXPECT_EQ(hugepin_pin(d, p + MIB / 2, (IDLE + 4) * 4096, 0, &pin), -ENOBUFS);
	EXPECT_EQ(touch(d, p + MIB / 8, 1), 0); /* there are as many as may be */
	EXPECT_EQ(hugepin_pin(d, p + MIB / 2, (IDLE + 4) * 4096, 0, &pin), -ENOBUFS);
	EXPECT_EQ(stats_of(d).evicted, 0);
	EXPECT(is_idle_still(d, p));
	EXPECT_EQ(touch(d, p + MIB / 2, (IDLE + 3) * 4096), 0);
	EXPECT_EQ(device.regs, 3);
	for (size_t i = 0; i < 2; i++)
		EXPECT_EQ(hugepin_unpin(d, &held[i]), 0);
}

PIN_TEST(for_a_hugepage_that_has_no_room_nothing_goes_and_the_base_pages_are_pinned,
	 open_first(HUGEPIN_POLICY_LRU, 2 * HP_PAGE, 0), 2 * HP_PAGE)
{
	char *h = hugepin_malloc(MIB);
	struct hugepin_pin held;

	EXPECT_EQ(hugepin_pin(d, p + MIB, HP_PAGE, 0, &held), 0);
	make_idle(d, p);
	EXPECT_EQ(touch(d, h, 4096), 0); /* there is room for one beside those in use */
	EXPECT_EQ(stats_of(d).uncached, 0);
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	EXPECT_EQ(hugepin_pin(d, p + MIB, HP_PAGE + 4096, 0, &held), 0);
	make_idle(d, p);
	EXPECT_EQ(hugepin_domain_trim(d, HP_PAGE + 16 * 4096), 0);
	make_idle(d, p);
	device.deregs = 0;
	EXPECT_EQ(touch(d, h, 4096), 0);
	EXPECT_EQ(device.deregs, 1); /* itself */
	EXPECT_EQ(stats_of(d).uncached_budget, 1);
	EXPECT(is_idle_still(d, p));
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	hugepin_free(h);
}

/* The kernel charges all of a hugepage of which a part is registered, and lets nobody have so much. */
static int charge_hugepages(void *addr, size_t len)
{
	struct hugepin_extent x;

	(void)len;
	return hugepin_extent(addr, &x, sizeof x) > 0 ? -ENOMEM : 0;
}

PIN_TEST(for_a_hugepage_that_counts_as_much_as_the_budget_nothing_goes, open_first(HUGEPIN_POLICY_LRU, MIB, 0), MIB)
{
	const int64_t pages = hp_config.pages;
	struct hugepin_extent x;
	char *h;

	hp_config.pages = HP_PAGES_THP;
	h = hugepin_malloc(16 * MIB); /* in an extent of its own */
	hp_config.pages = pages;
	EXPECT(hugepin_extent(h, &x, sizeof x) > 0);
	if (x.kind == HUGEPIN_KIND_BASE)
		SKIP("the heap has no hugepages");
	device.refuse = charge_hugepages;
	make_idle(d, p);
	EXPECT_EQ(touch(d, h, 8192), -ENOBUFS);
	EXPECT(is_idle_still(d, p));
	EXPECT_EQ(stats_of(d).evicted, 0);
	device.refuse = NULL;
	hugepin_free(h);
}

/* ------------------------------------------------------------------ the budget and the heap's extents */

enum { HEAP_BUFFERS = 48 };
static char *heap_buffer[HEAP_BUFFERS];

static void heap_fill(void)
{
	for (size_t i = 0; i < HEAP_BUFFERS; i++)
		heap_buffer[i] = hugepin_malloc(MIB);
}

static void heap_free(void)
{
	for (size_t i = 0; i < HEAP_BUFFERS; i++)
		hugepin_free(heap_buffer[i]);
}

/* The hugepages, or for a small budget the base pages, that pins take up at most. */
static uint64_t size_of(uint64_t budget, const char *p, size_t len)
{
	const uintptr_t unit = budget < 2 * HP_PAGE ? hp_base_page : HP_PAGE;

	return (((uintptr_t)p + len + unit - 1) & ~(unit - 1)) - ((uintptr_t)p & ~(unit - 1));
}

/* Pin at random, in any order, at most half of the budget at a time. */
static void pin_half(uint32_t policy, uint64_t budget, unsigned *seed)
{
	struct { struct hugepin_pin pin; uint64_t size; } out[64];
	uint64_t sum = 0, size;
	hugepin_domain *d;
	unsigned n = 0;

	device_reset(&device);
	d = open_as(policy, budget, 0);
	for (int i = 0; i < 200; i++) {
		char *p = heap_buffer[(unsigned)rand_r(seed) % HEAP_BUFFERS];
		size_t len = rand_r(seed) % 3 ? 4096 : MIB;

		size = size_of(budget, p, len);
		while (n && (n == 64 || sum + size > budget / 2)) {
			unsigned which = (unsigned)rand_r(seed) % n;

			EXPECT_EQ(hugepin_unpin(d, &out[which].pin), 0);
			sum -= out[which].size;
			out[which] = out[--n];
		}
		if (sum + size > budget / 2)
			continue;
		if (EXPECT_EQ(hugepin_pin(d, p, len, 0, &out[n].pin), 0)) {
			out[n++].size = size;
			sum += size;
		} else {
			t_print("# policy %u, budget %llu KiB\n", policy, (unsigned long long)(budget >> 10));
			break;
		}
	}
	EXPECT_EQ(stats_of(d).nobufs, 0);
	EXPECT(device.bytes <= budget);
	while (n)
		EXPECT_EQ(hugepin_unpin(d, &out[--n].pin), 0);
	close_empty(&device, d);
}

TEST(pins_of_half_the_budget_fit_whatever_the_budget)
{
	static const uint32_t policies[] = { HUGEPIN_POLICY_ARENA, HUGEPIN_POLICY_LRU };
	unsigned seed = 1;

	heap_fill();
	for (size_t i = 0; i < 2; i++) {
		for (uint64_t budget = 4096; budget < 4 * MIB && !t_failures;
		     budget += budget < 64 * KIB ? 4096 : 60 * KIB)
			pin_half(policies[i], budget, &seed);
		for (uint64_t budget = 4 * MIB; budget <= 2 * HEAP_BUFFERS * MIB && !t_failures; budget += MIB)
			pin_half(policies[i], budget, &seed);
	}
	heap_free();
}

TEST(extents_are_registered_whole_in_half_of_the_budget)
{
	struct hugepin_extent x;
	hugepin_domain *d;
	size_t i = 0;

	heap_fill();
	while (hugepin_extent(heap_buffer[i], &x, sizeof x) > 0 && x.len == HP_PAGE && i + 1 < HEAP_BUFFERS)
		i++;
	for (uint64_t less = 0; less < 2; less++) {
		device_reset(&device);
		d = open_as(HUGEPIN_POLICY_ARENA, 2 * x.len - less, 0);
		EXPECT_EQ(touch(d, heap_buffer[i], 4096), 0);
		EXPECT_EQ(stats_of(d).extents, !less);
		EXPECT_EQ(device.bytes, less ? HP_PAGE : x.len);
		close_empty(&device, d);
	}
	heap_free();
}

/* ------------------------------------------------------------------ the kernel refuses, the device fails */

PIN_TEST(what_the_kernel_refuses_is_answered_by_giving_back, open_lru(), MIB)
{
	struct hugepin_pin held[2], pin;

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
			EXPECT_EQ(e, errors[i] == -ENOMEM || errors[i] == -EAGAIN ? -ENOBUFS : errors[i]);
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

enum { PINNED = 200 };

static size_t count_aside(const hugepin_domain *d, const struct hp_region *from)
{
	size_t n = 0;

	for (const struct hp_region *r = from ? from : TAILQ_FIRST(&d->aside); r; r = TAILQ_NEXT(r, order))
		n++;
	return n;
}

PIN_TEST(a_miss_looks_at_a_few_only_of_those_that_are_pinned,
	 open_first(HUGEPIN_POLICY_LRU, (PINNED + 1) * 4096, 0), 4 * MIB)
{
	struct hugepin_pin held[PINNED];
	const struct hp_region *first;

	for (size_t i = 0; i < PINNED; i++)
		EXPECT_EQ(hugepin_pin(d, p + i * 8192, 4096, 0, &held[i]), 0);
	for (size_t i = PINNED; i < PINNED + 2; i++)
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
	EXPECT_EQ(count_aside(d, NULL), PINNED); /* passed over once */
	for (int i = 0; i < 3; i++) {
		first = TAILQ_FIRST(&d->aside);
		EXPECT_EQ(touch(d, p + (PINNED + 2 + (size_t)i) * 8192, 4096), 0);
		EXPECT(count_aside(d, NULL) == PINNED && PINNED - count_aside(d, first) >= PINNED - 16);
	}
	EXPECT_EQ(stats_of(d).evicted, 4);
	/* What is given back makes room again, all of it if need be. */
	for (size_t i = 0; i < PINNED; i++)
		EXPECT_EQ(hugepin_unpin(d, &held[i]), 0);
	EXPECT_EQ(touch(d, p + 2 * MIB, PINNED * 4096), 0);
	EXPECT_EQ(count_aside(d, NULL), 0);
	EXPECT_EQ(stats_of(d).regions, 2);
}

/* The number of regions that a refused pin deregisters, of four that are idle. */
static long thrown_away(hugepin_domain *d, char *p, int error)
{
	struct hugepin_pin pin;

	for (size_t i = 0; i < 4; i++)
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
	device.nth = 1;
	device.for_good = true;
	device.with = error;
	device.deregs = 0;
	EXPECT(hugepin_pin(d, p + MIB / 2, 4096, 0, &pin) < 0);
	device.nth = 0;
	return device.deregs;
}

PIN_TEST(a_refusal_that_is_no_limit_throws_nothing_away, open_lru(), MIB)
{
	static const int errors[] = { -EPERM, -EACCES, -EIO, -EFAULT, -EBADF };

	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		EXPECT_EQ(thrown_away(d, p, errors[i]), 0);
	EXPECT_EQ(thrown_away(d, p, -ENOMEM), 4);
}

PIN_TEST(where_deregistering_fails_a_refusal_throws_no_more_away, open_lru(), MIB)
{
	device.dereg_error = -EPERM;
	EXPECT_EQ(thrown_away(d, p, -ENOMEM), 2); /* one for the pin that would stay cached, and one for itself alone */
	device.dereg_error = 0;
}

PIN_TEST(a_failed_deregistration_is_counted_and_forgotten, open_lru(), MIB)
{
	EXPECT_EQ(touch(d, p, 4096), 0);
	device.dereg_error = -EIO;
	EXPECT_EQ(touch(d, p, 8192), 0);
	EXPECT_EQ(stats_of(d).failed, 1);
	EXPECT_EQ(stats_of(d).regions, 1);
	device.dereg_error = 0;
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

TEST(a_domain_that_fills_the_table_of_regions_makes_room_for_itself_and_leaves_some_to_others)
{
	struct hugepin_backend b = device_backend;
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	size_t pages = HP_REGIONS_MAX + 1000;
	char *p = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct hugepin_pin pin;
	hugepin_domain *d, *other;
	uint64_t kept;

	T_DOMAIN_BEGINS(); /* the second that is open */
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
	kept = stats_of(d).regions;
	EXPECT_EQ(hugepin_domain_open(&b, &device, &attr, &other), 0);
	for (size_t i = 0; i < 2 * HP_REGIONS_SURE && t_failures < 5; i++) {
		if (EXPECT_EQ(hugepin_pin(other, p + i * 4096, 4096, 0, &pin), 0))
			EXPECT_EQ(hugepin_unpin(other, &pin), 0);
	}
	if (hp_uffd_works())
		EXPECT_EQ(stats_of(other).regions, HP_REGIONS_SURE);
	EXPECT_EQ(stats_of(d).regions, kept);
	EXPECT_EQ(hugepin_domain_close(other), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, pages * 4096);
}

T_MAIN
