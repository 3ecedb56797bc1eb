/*
 * Records and misses for which the helper has no room: some wait, the rest are lost and counted, and after a loss the
 * plan learns the state of all regions again.
 */
#include "reg/cover.h"
#include "reg/region.h"
#include "tests/unit/helper_plan.h"

/* Of the other domain's records, which are taken in with ours. */
TEST(as_many_records_wait_for_a_domain_as_there_is_room_for_and_one_more_is_lost)
{
	enum { ROOM = 2 * HP_RECORDS_MAX };
	static struct device second;
	for (unsigned more = 0; more < 2; more++) {
		hugepin_domain *d = open_on(&device, 0), *other = open_on(&second, 0);
		struct hp_plan *p = plan_of(1);
		uint32_t a = touch(d, buffer[0]);

		catch_up(d, p);
		device.clock_ns += MS;
		for (unsigned i = 0; i < ROOM + more; i++) {
			leave(device.clock_ns + i, HP_RECORD_START, a);
			if (i % 256 == 255)
				serve(other);
		}
		device.clock_ns += MS;
		serve(d);
		EXPECT(news.any);
		EXPECT_EQ(news.crowded, more);
		EXPECT_EQ(stats_of(d).records_lost, more ? ROOM + more : 0);
		for (unsigned i = 0; !more && i < ROOM; i++)
			next_is(p, START, 1, device.clock_ns - MS + i);
		nothing_more(p);
		serve(d);
		serve(d);
		EXPECT(!news.any && !news.crowded);
		EXPECT_EQ(stats_of(d).records_lost, more ? ROOM + more : 0);
		close_empty(&second, other);
		close_empty(&device, d);
	}
}

TEST(what_has_no_room_in_the_queue_waits_for_the_next_time)
{
	enum { ROOM = 2 * HP_RECORDS_MAX };
	static struct device second;
	hugepin_domain *d = open_on(&device, 0), *other = open_on(&second, 0);
	struct hp_plan *p = plan_of(1);
	uint32_t a = touch(d, buffer[0]);
	struct hugepin_pin pin[3];
	uint64_t begins;

	catch_up(d, p);
	begins = device.clock_ns += MS;
	for (unsigned i = 0; i < ROOM; i++) {
		leave(begins + 10 + i, HP_RECORD_START, a);
		if (i % 256 == 255)
			serve(other);
	}
	for (int i = 1; i < 4; i++) /* are in the queue at once */
		pin[i - 1] = pinned(d, buffer[i]);
	EXPECT_EQ(d->helper->queue.count, 3);
	device.clock_ns += 10 * MS;
	for (unsigned round = 0, n = 0; round < 2; round++) {
		serve(d);
		EXPECT(news.any && !news.crowded);
		for (uint32_t i = 2; !round && i < 5; i++) {
			next_is(p, MISS, i, begins + (i - 2) * 1000);
			next_is(p, REGISTERED, i, begins + (i - 2) * 1000);
			for (; n + 10 < (i - 1) * 1000 && n < ROOM - 3; n++)
				next_is(p, START, 1, begins + 10 + n);
		}
		for (; round && n < ROOM; n++)
			next_is(p, START, 1, begins + 10 + n);
		nothing_more(p);
	}
	serve(d);
	EXPECT(!news.any);
	EXPECT_EQ(stats_of(d).records_lost, 0);
	nothing_more(p);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(hugepin_unpin(d, &pin[i]), 0);
	close_empty(&second, other);
	close_empty(&device, d);
}

TEST(after_a_loss_misses_are_told_and_the_rest_dropped)
{
	hugepin_domain *d;
	struct hp_plan *p;
	uint32_t a = open_used(&d, &p);
	uint64_t due;

	device.clock_ns += MS;
	leave(device.clock_ns, HP_RECORD_START, a);
	touch(d, buffer[1]); /* a miss, and an end */
	leave(device.clock_ns, HP_RECORD_END, a);
	lose(d, 5);
	due = serve(d);
	EXPECT_EQ(due, device.clock_ns + HP_CROWDED_NS);
	EXPECT(news.any && news.crowded);
	EXPECT_EQ(stats_of(d).records_lost, 5 + 3);
	next_is(p, MISS, 2, device.clock_ns - 1000);
	next_is(p, REGISTERED, 2, device.clock_ns - 1000);
	nothing_more(p);
	EXPECT_EQ(p->asked, 1); /* not now: what was lost may be uses of what it would give back */

	device.clock_ns += MS;
	lose(d, 1); /* still */
	EXPECT_EQ(serve(d), device.clock_ns + HP_CROWDED_NS);
	EXPECT_EQ(stats_of(d).records_lost, 9);
	nothing_more(p);

	EXPECT_EQ(serve(d), UINT64_MAX);
	EXPECT(!news.crowded);
	next_is(p, END, 2, device.clock_ns); /* there is no pin: it was among what was lost */
	nothing_more(p);
	EXPECT_EQ(p->asked, 2);
	EXPECT_EQ(stats_of(d).records_lost, 9);
	close_empty(&device, d);
	d = open_on(&device, 0); /* by the same number */
	serve(d);
	EXPECT_EQ(stats_of(d).records_lost, 0);
	close_empty(&device, d);
}

DOMAIN_TEST(after_a_loss_uses_go_on_that_are_pinned_and_all_that_is_registered_is_told, open_on(&device, 0))
{
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin = pinned(d, buffer[0]), other = pinned(d, buffer[1]);
	struct hp_region *r;

	catch_up(d, p);
	EXPECT_EQ(hugepin_unpin(d, &other), 0);
	hp_domain_lock(d);
	EXPECT_EQ(hp_cover_ahead(d, buffer[2], LEN, HUGEPIN_READ | HUGEPIN_WRITE, &r), 0);
	r = hp_region_find(d, (uintptr_t)buffer[2], HUGEPIN_READ);
	hp_domain_unlock(d);
	lose(d, 1);
	serve(d);
	nothing_more(p);
	device.clock_ns += MS;
	serve(d);
	next_is(p, END, 2, device.clock_ns); /* and not 1 */
	nothing_more(p);
	EXPECT(!hp_region_is_used(d, r));
	touch(d, buffer[2]);
	device.clock_ns += MS;
	serve(d);
	next_is(p, REGISTERED, 3, device.clock_ns - MS);
	next_is(p, START, 3, device.clock_ns - MS);
	next_is(p, END, 3, device.clock_ns - MS);
	nothing_more(p);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

TEST(misses_that_have_no_room_are_lost_and_counted)
{
	enum { ROOM = 2 * HP_RECORDS_MAX };
	hugepin_domain *d;
	struct hp_plan *p;
	char *pages = map((size_t)2 * 4096 * (ROOM + 2));
	struct hugepin_pin pin;

	open_used(&d, &p);
	for (size_t i = 0; i < ROOM + 2; i++) {
		EXPECT_EQ(hugepin_pin(d, pages + 2 * i * 4096, 4096, 0, &pin), 0);
		EXPECT_EQ(d->helper->queue.count, HP_MIN(i + 1, (size_t)ROOM));
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		/* its end, of no concern here */
		hp_counts_records(hp_counts_self)->tail = hp_counts_records(hp_counts_self)->head;
	}
	serve(d);
	EXPECT_EQ(stats_of(d).records_lost, 2);
	EXPECT_EQ(p->told - p->seen, 2 * ROOM);
	p->seen = p->told;
	serve(d); /* of the two that were lost the plan hears now, and of the ends of the others */
	EXPECT_EQ(p->told - p->seen, 2 + ROOM);
	close_empty(&device, d);
	munmap(pages, (size_t)2 * 4096 * (ROOM + 2));
}

T_MAIN
