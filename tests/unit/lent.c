/*
 * What the pin cache does for lends: news of registrations, and letting go of them.
 */
#include "reg/lent.h"

#include <sys/wait.h>

#include "tests/unit/pin_try.h"

enum { PAGE = 4096, PEER = HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE };

static unsigned wanted, dropped, crowded;
static uint32_t last;
static size_t last_bytes;

static void on_wanted(void *arg, uint32_t region)
{
	EXPECT(arg == &last);
	wanted++;
	last = region;
}

static void on_dropped(void *arg, uint32_t region)
{
	EXPECT(arg == &last);
	dropped++;
	last = region;
}

static void on_crowded(void *arg, size_t bytes)
{
	EXPECT(arg == &last);
	crowded++;
	last_bytes = bytes;
}

static const struct hp_lend_hooks hooks = { on_wanted, on_dropped, on_crowded };

static hugepin_domain *open_lent(uint64_t bytes_max)
{
	hugepin_domain *d;

	device_reset(&device);
	wanted = dropped = crowded = 0;
	d = open_as(HUGEPIN_POLICY_LRU, bytes_max, 0);
	EXPECT_EQ(hp_lent_set(d, &hooks, &last), 0);
	return d;
}

static void close_lent(hugepin_domain *d)
{
	hp_lent_clear(d);
	close_empty(&device, d);
}

/* A region that a pin had, which was given back. */
struct given {
	hugepin_domain *d;
	uint32_t region;
	uint64_t start, end;
};

static struct given lend_once(hugepin_domain *d, char *p)
{
	struct given g = { .d = d };
	struct hugepin_pin pin;

	EXPECT_EQ(hp_lent_pin(d, (uintptr_t)p, PAGE, PEER, &pin, &g.start, &g.end), 0);
	g.region = (uint32_t)pin.ref;
	EXPECT(g.start == (uintptr_t)p && g.end == g.start + PAGE);
	hp_lent_unpin(d, &pin, g.start, g.end, false);
	return g;
}

static void drop(const struct given *g)
{
	hp_lent_drop(g->d, g->region, g->start, g->end);
}

TEST(a_domain_has_one_lend)
{
	hugepin_domain *d = open_lent(0);
	int status = 1;
	pid_t pid;

	EXPECT_EQ(hp_lent_set(d, &hooks, &last), -EBUSY);
	EXPECT_EQ(hp_lent_set(NULL, &hooks, &last), -EINVAL);
	hp_lent_clear(d);
	EXPECT_EQ(hp_lent_set(d, &hooks, &last), 0);
	hp_lent_clear(d);
	pid = fork();
	if (!pid)
		_exit(hp_lent_set(d, &hooks, &last) != -EINVAL);
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	close_empty(&device, d);
}

TEST(news_are_of_registrations_for_peers)
{
	hugepin_domain *d = open_lent(0);
	struct hugepin_pin pin, ours;
	uint64_t start, end;
	uint32_t region;
	char *p = map(MIB);

	EXPECT_EQ(hugepin_pin(d, p, PAGE, HUGEPIN_READ, &ours), 0);
	EXPECT_EQ(hp_lent_pin(d, (uintptr_t)p, PAGE, PEER, &pin, &start, &end), 0);
	region = (uint32_t)pin.ref;
	EXPECT_EQ(hugepin_forget(p, PAGE), -EBUSY);
	EXPECT_EQ(touch(d, p + 8 * PAGE, PAGE), 0);
	EXPECT(wanted == 1 && last == region);
	EXPECT_EQ(hugepin_unpin(d, &ours), 0);
	EXPECT_EQ(dropped, 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(dropped == 1 && last == region);
	close_lent(d);
	EXPECT_EQ(dropped, 1); /* after clear() nothing is told */
	munmap(p, MIB);
}

TEST(the_end_of_a_bucket_is_no_news_but_what_another_bucket_has_is)
{
	hugepin_domain *d = open_lent(0);
	struct hugepin_pin pin, other;
	struct given g, same;
	char *p = map(MIB);

	g = lend_once(d, p);
	drop(&g);
	EXPECT(device.regs == 0 && dropped == 0);
	EXPECT_EQ(hp_lent_pin(d, (uintptr_t)p, PAGE, PEER, &pin, &g.start, &g.end), 0);
	hp_lent_unpin(d, &pin, g.start, g.end, true);
	EXPECT(device.regs == 0 && dropped == 0);
	EXPECT_EQ(hugepin_pin(d, p, PAGE, PEER, &other), 0); /* no bucket has this one */
	EXPECT_EQ(hugepin_forget(p, PAGE), -EBUSY);
	EXPECT_EQ(hugepin_unpin(d, &other), 0);
	EXPECT(device.regs == 0 && dropped == 0);
	g = lend_once(d, p);
	same = lend_once(d, p);
	EXPECT(g.region == same.region);
	drop(&g);
	EXPECT(device.regs == 0 && dropped == 1 && last == g.region);
	munmap(p, MIB);
	close_lent(d);
}

TEST(keys_of_all_lends_together_leave_half_of_the_table_to_pins)
{
	static uint32_t index[HP_REGIONS_MAX];
	uint32_t count = 0;
	hugepin_domain *d = open_lent(0);
	struct hugepin_pin pin;
	char *p = map(MIB);

	while (count < HP_REGIONS_MAX && (index[count] = hp_lent_index_new()) != 0)
		count++;
	EXPECT_EQ(count, HP_REGIONS_MAX / 2);
	EXPECT_EQ(hugepin_pin(d, p, PAGE, PEER, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	while (count)
		hp_lent_index_free(index[--count]);
	index[0] = hp_lent_index_new();
	EXPECT(index[0]);
	hp_lent_index_free(index[0]);
	close_lent(d);
	munmap(p, MIB);
}

TEST(a_request_that_finds_no_room_is_told)
{
	hugepin_domain *d = open_lent(MIB);
	struct hugepin_pin held;
	char *p = map(2 * MIB);
	struct told told;

	EXPECT_EQ(hugepin_pin(d, p, MIB, PEER, &held), 0);
	EXPECT_EQ(ask(d, p + MIB, PAGE, PEER, &told), -ENOBUFS);
	EXPECT(crowded == 1 && last_bytes == PAGE);
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	munmap(p, 2 * MIB);
	close_lent(d);
}

TEST(a_pin_of_the_lends_that_finds_no_room_is_not_told)
{
	hugepin_domain *d = open_lent(MIB);
	struct hugepin_pin held, pin;
	uint64_t start, end;
	char *p = map(2 * MIB);

	EXPECT_EQ(hugepin_pin(d, p, MIB, PEER, &held), 0);
	EXPECT_EQ(hp_lent_pin(d, (uintptr_t)p + MIB, PAGE, PEER, &pin, &start, &end), -ENOBUFS);
	EXPECT_EQ(crowded, 0);
	EXPECT_EQ(hugepin_pin(d, p + MIB, PAGE, PEER, &pin), -ENOBUFS);
	EXPECT(crowded == 1 && last_bytes == PAGE);
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	munmap(p, 2 * MIB);
	close_lent(d);
}

TEST(what_is_idle_is_dropped_once_nobody_else_used_it)
{
	hugepin_domain *d = open_lent(0);
	struct hugepin_pin pin;
	struct given g;
	char *p = map(MIB);

	g = lend_once(d, p);
	drop(&g);
	EXPECT_EQ(device.regs, 0);
	g = lend_once(d, p);
	EXPECT_EQ(hugepin_pin(d, p, PAGE, PEER, &pin), 0);
	drop(&g);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	drop(&g);
	EXPECT_EQ(device.regs, 1);
	g = lend_once(d, p);
	g.end += PAGE; /* another region has the index by now */
	drop(&g);
	EXPECT_EQ(device.regs, 1);
	munmap(p, MIB);
	close_lent(d);
}

TEST(what_was_used_since_is_kept_though_the_clock_has_passed_over_it)
{
	hugepin_domain *d = open_lent(3 * PAGE);
	struct hugepin_pin pin, held;
	struct given g;
	long deregs;
	char *p = map(MIB);

	lend_once(d, p + 2 * PAGE);
	g = lend_once(d, p);
	EXPECT_EQ(hugepin_pin(d, p + 4 * PAGE, PAGE, PEER, &held), 0);
	EXPECT_EQ(hugepin_pin(d, p, PAGE, PEER, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	lend_once(d, p + 6 * PAGE);
	deregs = device.deregs;
	EXPECT_EQ(deregs, 1);
	drop(&g);
	EXPECT_EQ(device.deregs, deregs);
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	munmap(p, MIB);
	close_lent(d);
}

TEST(where_only_the_opener_registers_there_is_no_lend)
{
	hugepin_domain *d;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(hp_lent_set(d, &hooks, &last), -EOPNOTSUPP);
	close_empty(&device, d);
}

TEST(a_pin_that_finds_no_room_is_told_once)
{
	hugepin_domain *d = open_lent(4 * MIB);
	struct hugepin_pin held, pin;
	char *p = map(MIB), *h = hugepin_malloc(4 * MIB);

	EXPECT_EQ(hugepin_pin(d, p, MIB, PEER, &held), 0);
	EXPECT_EQ(hugepin_pin(d, h, 4 * MIB, HUGEPIN_READ, &pin), -ENOBUFS);
	EXPECT(crowded == 1 && last_bytes == 4 * MIB);
	EXPECT_EQ(hugepin_pin(d, h, 2 * MIB + PAGE, HUGEPIN_READ, &pin), 0); /* whole hugepages do not fit, its pages do */
	EXPECT_EQ(crowded, 1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	device.kernel_bytes_max = MIB;
	EXPECT_EQ(hugepin_pin(d, h, PAGE, HUGEPIN_READ, &pin), -ENOBUFS);
	EXPECT_EQ(crowded, 2);
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	munmap(p, MIB);
	hugepin_free(h);
	close_lent(d);
	hugepin_purge();
}

TEST(an_index_is_no_regions)
{
	hugepin_domain *d = open_lent(0);
	uint32_t index = hp_lent_index_new();
	struct hugepin_pin pin;
	char *p = map(MIB);

	EXPECT(index);
	EXPECT_EQ(hugepin_pin(d, p, PAGE, PEER, &pin), 0);
	EXPECT((uint32_t)pin.ref != index);
	EXPECT(hp_lent_index_new() != (uint32_t)pin.ref);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	hp_lent_index_free(index);
	EXPECT_EQ(hp_lent_index_new(), index);
	munmap(p, MIB);
	close_lent(d);
}

T_MAIN
