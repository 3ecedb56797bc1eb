/*
 * Memory that is registered on demand, on a device that counts its faults: which of it each mode brings in, and when; what
 * the phases of a transfer do; devices that refuse.
 */
#include "reg/domain.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/hints.h"
#include "reg/region.h"
#include "tests/unit/pin.h"

enum { PAGE = 4096, PAGES = 256 }; /* PAGES: of a MiB */
enum { NATIVE = HUGEPIN_ODP_NATIVE, ENHANCED = HUGEPIN_ODP_ENHANCED, OPTIMAL = HUGEPIN_ODP_OPTIMAL };
#define NEXT HUGEPIN_PREFETCH_NEXT
#define WAIT HUGEPIN_PREFETCH_WAIT
static const unsigned phases[] = { 0, NEXT, WAIT, NEXT | WAIT };

static hugepin_domain *open_odp(uint32_t mode)
{
	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	return open_with((struct hugepin_attr){ .policy = HUGEPIN_POLICY_ODP, .odp = mode });
}

/* Pin, transfer, give back. Returns the device's faults. */
static size_t transfer(hugepin_domain *d, const char *p, size_t len)
{
	struct hugepin_pin pin;
	size_t faults;

	if (!EXPECT_EQ(hugepin_pin(d, p, len, 0, &pin), 0))
		return SIZE_MAX;
	faults = device_transfer(&device, pin.lkey, p, len);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	return faults;
}

/* Wait until the service thread has done all that was asked of it. */
static void settle(hugepin_domain *d)
{
	unsigned left = 1;

	for (int i = 0; i < 20000 && left; i++) {
		usleep(500);
		hp_domain_lock(d);
		hp_lock(&d->queue_lock);
		left = d->prefetches_count;
		hp_unlock(&d->queue_lock);
		hp_domain_unlock(d);
	}
	EXPECT_EQ(left, 0);
}

/* Have the service thread pass the domain over; and no longer. */
static void keep_out_service(hugepin_domain *d)
{
	EXPECT(hp_domains_start_closing(d));
}

static void let_in_service(hugepin_domain *d)
{
	hp_lock(&d->queue_lock);
	d->prefetches_count = 0;
	hp_unlock(&d->queue_lock);
	hp_domains_end_closing(d);
}

PIN_TEST(native_brings_nothing_in, open_odp(NATIVE), MIB)
{
	for (int i = 0; i < 4; i++) {
		EXPECT_EQ(hugepin_prefetch(d, p, MIB, phases[i]), 0);
		settle(d);
	}
	EXPECT_EQ(stats_of(d).prefetched, 1);
	EXPECT(registered(d, p, MIB));
	EXPECT_EQ(transfer(d, p, MIB), PAGES);
	EXPECT_EQ(transfer(d, p, MIB), 0);
	device_invalidate(&device, p, MIB);
	EXPECT_EQ(transfer(d, p, MIB), PAGES);
	EXPECT_EQ(device.prefetches, 0);
	EXPECT_EQ(stats_of(d).brought_bytes, 0);
}

PIN_TEST(enhanced_brings_in_what_it_registers_once, open_odp(ENHANCED), 2 * MIB)
{
	EXPECT_EQ(transfer(d, p, MIB), 0);
	EXPECT_EQ(transfer(d, p, MIB), 0);
	EXPECT_EQ(device.prefetches, 1);
	EXPECT_EQ(stats_of(d).brought_bytes, MIB);
	EXPECT_EQ(hugepin_prefetch(d, p + MIB, MIB, 0), 0);
	settle(d);
	EXPECT_EQ(stats_of(d).prefetched, 1);
	EXPECT_EQ(device.prefetches, 2);
	EXPECT_EQ(transfer(d, p + MIB, MIB), 0);
	device_invalidate(&device, p, MIB);
	for (int i = 0; i < 4; i++) {
		EXPECT_EQ(hugepin_prefetch(d, p, MIB, phases[i]), 0);
		settle(d);
	}
	EXPECT_EQ(device.prefetches, 2);
	EXPECT_EQ(transfer(d, p, MIB), PAGES);
}

PIN_TEST(optimal_brings_in_again_before_the_payload, open_odp(OPTIMAL), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &pin), 0);
	settle(d); /* what the miss has queued */
	EXPECT_EQ(device_transfer(&device, pin.lkey, p, MIB), 0);
	for (int i = 0; i < 4; i++) {
		EXPECT_EQ(device_transfer(&device, pin.lkey, p, MIB), 0);
		device_invalidate(&device, p, MIB);
		EXPECT_EQ(hugepin_prefetch(d, p, MIB, phases[i]), 0);
		if (!phases[i])
			settle(d);
		EXPECT_EQ(device_transfer(&device, pin.lkey, p, MIB), 0);
	}
	EXPECT_EQ(stats_of(d).prefetched, 4);
	EXPECT_EQ(stats_of(d).brought_bytes, 5 * MIB);
	/* A phase brings in its own range alone. */
	device_invalidate(&device, p, MIB);
	EXPECT_EQ(hugepin_prefetch(d, p + PAGE, 2 * PAGE, NEXT), 0);
	EXPECT_EQ(device_transfer(&device, pin.lkey, p, MIB), PAGES - 2);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

TEST(a_phase_of_what_is_not_registered_registers_it)
{
	for (int i = 1; i < 4; i++) {
		hugepin_domain *d = open_odp(OPTIMAL);
		char *p = map(MIB);

		EXPECT_EQ(hugepin_prefetch(d, p, MIB, phases[i]), 0);
		EXPECT_EQ(device.prefetches, 1);
		EXPECT(registered(d, p, MIB));
		EXPECT_EQ(transfer(d, p, MIB), 0);
		EXPECT_EQ(stats_of(d).misses, 0);
		munmap(p, MIB);
		close_empty(&device, d);
	}
}

PIN_TEST(where_memory_is_pinned_the_later_phases_do_nothing, open_lru(), MIB)
{
	for (int i = 1; i < 4; i++)
		EXPECT_EQ(hugepin_prefetch(d, p, MIB, phases[i]), 0);
	EXPECT_EQ(device.calls, 0);
	EXPECT_EQ(device.prefetches, 0);
	EXPECT_EQ(stats_of(d).prefetched, 0);
}

PIN_TEST(a_payload_overtakes_its_announcement, open_odp(OPTIMAL), 2 * MIB)
{
	const struct hp_prefetch hint = { .addr = p, .len = MIB, .access = HUGEPIN_READ | HUGEPIN_WRITE },
				 other = { .addr = p, .len = 2 * MIB, .access = HUGEPIN_READ | HUGEPIN_WRITE };

	keep_out_service(d);
	EXPECT_EQ(hp_hints_push(d, hint), 0);
	EXPECT_EQ(hp_hints_push(d, other), 0);
	EXPECT_EQ(hugepin_prefetch(d, p, MIB, NEXT), 0);
	EXPECT_EQ(hugepin_prefetch(d, p, MIB, NEXT), 0);
	EXPECT_EQ(stats_of(d).prefetched_late, 1);
	EXPECT_EQ(stats_of(d).prefetched, 2);
	EXPECT_EQ(d->prefetches_count, 1);
	EXPECT_EQ(d->prefetches[0].len, 2 * MIB);
	let_in_service(d);
}

struct told {
	hugepin_domain *d;
	char *p;
};

static void *tell_next(void *told)
{
	struct told *t = told;

	EXPECT_EQ(hugepin_prefetch(t->d, t->p, MIB, NEXT), 0);
	return NULL;
}

TEST(a_thread_that_may_not_register_leaves_the_announcement)
{
	const struct hugepin_attr attr = { .policy = HUGEPIN_POLICY_ODP, .odp = OPTIMAL };
	struct told told = { .p = map(MIB) };
	const struct hp_prefetch hint = { .addr = told.p, .len = MIB, .access = HUGEPIN_READ | HUGEPIN_WRITE };
	pthread_t thread;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP | HUGEPIN_LIMIT_OPENER;
	told.d = open_with(attr);
	keep_out_service(told.d);
	EXPECT_EQ(hp_hints_push(told.d, hint), 0);
	EXPECT_EQ(pthread_create(&thread, NULL, tell_next, &told), 0);
	pthread_join(thread, NULL);
	EXPECT_EQ(told.d->prefetches_count, 1);
	EXPECT_EQ(stats_of(told.d).prefetched_late, 0);
	EXPECT_EQ(device.calls, 0);
	let_in_service(told.d);
	munmap(told.p, MIB);
	close_empty(&device, told.d);
}

/* ------------------------------------------------------------------ a full queue */

static void fill_queue(hugepin_domain *d, char *p, bool missed)
{
	const struct hp_prefetch hint = { .addr = p, .len = PAGE, .access = HUGEPIN_READ | HUGEPIN_WRITE, .missed = missed };

	for (int i = 0; i < HP_PREFETCHES_MAX; i++)
		hp_hints_push(d, hint);
}

PIN_TEST(a_miss_that_finds_the_queue_full_is_brought_in_at_once, open_odp(OPTIMAL), 2 * MIB)
{
	keep_out_service(d);
	fill_queue(d, p + MIB, false);
	EXPECT_EQ(transfer(d, p, MIB), 0);
	EXPECT_EQ(d->prefetches_count, HP_PREFETCHES_MAX);
	let_in_service(d);
}

PIN_TEST(misses_leave_room_for_announcements, open_odp(OPTIMAL), 2 * MIB)
{
	keep_out_service(d);
	fill_queue(d, p + MIB, true);
	for (int i = 0; i < HP_PREFETCHES_MAX / 2; i++)
		EXPECT_EQ(hugepin_prefetch(d, p, MIB, 0), 0);
	EXPECT_EQ(hugepin_prefetch(d, p, MIB, 0), -EBUSY);
	let_in_service(d);
}

static hugepin_domain *hinted;

/* The first hint takes the device until the pin waits, and each a while. */
static int take_long(void *addr, size_t len)
{
	(void)addr, (void)len;
	while (device.calls == 1 && !hp_domain_pins_wait(hinted))
		usleep(100);
	usleep(2000);
	return 0;
}

PIN_TEST(a_pin_waits_for_one_hint_and_not_for_all, open_odp(OPTIMAL), MIB)
{
	enum { HINTS = 32 };

	hinted = d;
	device.refuse = take_long;
	keep_out_service(d);
	for (int i = 0; i < HINTS; i++)
		EXPECT_EQ(hugepin_prefetch(d, p + (size_t)i * 2 * PAGE, PAGE, 0), 0);
	hp_domains_end_closing(d);
	hp_domains_start();
	while (!device.calls)
		usleep(100);
	EXPECT_EQ(touch(d, p + PAGE, PAGE), 0);
	EXPECT(device.calls < HINTS);
	settle(d);
	EXPECT_EQ(device.calls, HINTS + 1);
}

/* ------------------------------------------------------------------ the heap's memory */

TEST(a_second_buffer_in_the_hugepage_needs_no_fault)
{
	for (uint32_t mode = ENHANCED; mode <= OPTIMAL; mode++) {
		hugepin_domain *d = open_odp(mode);
		char *p[2] = { hugepin_malloc(512 * KIB), NULL };

		EXPECT_EQ(mode == ENHANCED ? transfer(d, p[0], 512 * KIB) : (size_t)touch(d, p[0], 512 * KIB), 0);
		settle(d);
		p[1] = hugepin_malloc(512 * KIB);
		if (((uintptr_t)p[0] ^ (uintptr_t)p[1]) < HP_PAGE) {
			EXPECT(registered(d, p[1], 512 * KIB));
			EXPECT_EQ(transfer(d, p[1], 512 * KIB), 0);
		}
		EXPECT_EQ(stats_of(d).extents, 0);
		hugepin_free(p[0]);
		hugepin_free(p[1]);
		close_empty(&device, d);
	}
}

DOMAIN_TEST(extents_are_registered_where_nothing_is_brought_in, open_odp(NATIVE))
{
	char *p = hugepin_malloc(512 * KIB);

	EXPECT_EQ(transfer(d, p, 512 * KIB), PAGES / 2);
	EXPECT_EQ(stats_of(d).extents, 1);
	hugepin_free(p);
}

DOMAIN_TEST(memory_that_the_heap_gave_back_is_not_brought_in, open_odp(OPTIMAL))
{
	enum { HUGEPAGES = 8 };
	char *p = hugepin_aligned_alloc(HP_PAGE, HUGEPAGES * HP_PAGE), *q;
	size_t used = 0;

	EXPECT_EQ(touch(d, p, HUGEPAGES * HP_PAGE), 0);
	settle(d);
	EXPECT_EQ(device.brought, HUGEPAGES * HP_PAGE);
	hugepin_free(p);
	q = hugepin_aligned_alloc(HP_PAGE, 2 * HP_PAGE);
	hugepin_purge();
	for (int i = 0; i < HUGEPAGES; i++)
		used += !hp_heap_is_free((uintptr_t)p + (size_t)i * HP_PAGE, HP_PAGE, 0);
	EXPECT(q >= p && q < p + HUGEPAGES * HP_PAGE && used >= 2 && used < HUGEPAGES);
	device.brought = device.prefetches = 0;
	EXPECT_EQ(hugepin_prefetch(d, p + 1, HUGEPAGES * HP_PAGE - 1, NEXT), 0);
	EXPECT_EQ(device.brought, used * HP_PAGE - (q == p));
	EXPECT_EQ(transfer(d, q, 2 * HP_PAGE), 0);
	hugepin_free(q);
}

/* ------------------------------------------------------------------ memory that changes */

PIN_TEST(a_discard_leaves_the_key_and_an_unmap_does_not, open_odp(OPTIMAL), MIB)
{
	struct hugepin_pin pin;
	struct hp_range range = { .start = (uintptr_t)p, .end = (uintptr_t)p + MIB, .discarded = true, .late = true };

	EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &pin), 0);
	settle(d);
	device_invalidate(&device, p, MIB);
	hp_gone_tell_all(&range);
	EXPECT_EQ(hugepin_prefetch(d, p, MIB, NEXT), 0);
	EXPECT_EQ(device_transfer(&device, pin.lkey, p, MIB), 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(stats_of(d).invalidated, 0);
	range.discarded = range.late = false;
	hp_gone_tell_all(&range);
	EXPECT(!registered(d, p, MIB));
	EXPECT_EQ(stats_of(d).invalidated, 1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

/* What is queued for one range hides nothing of the other that it is joined with. */
PIN_TEST(a_discard_hides_no_unmap, open_odp(OPTIMAL), MIB)
{
	struct hp_range unmap = { .start = (uintptr_t)p, .end = (uintptr_t)p + MIB },
			discard = { .start = unmap.start, .end = unmap.end, .discarded = true, .late = true },
			forget = { .start = unmap.start, .end = unmap.end, .discarded = true };

	EXPECT_EQ(touch(d, p, MIB), 0);
	settle(d);
	hp_gone_tell_all(&forget);
	hp_gone_tell_all(&discard);
	EXPECT(!registered(d, p, MIB));

	settle(d);
	for (uintptr_t i = 0; i < HP_GONE_MAX - 1; i++) {
		struct hp_range far = { .start = (2 * i + 1) * PAGE, .end = (2 * i + 2) * PAGE };

		hp_gone_tell(d, &far);
	}
	hp_gone_tell(d, &unmap);
	hp_gone_tell(d, &discard);
	EXPECT(!registered(d, p, MIB));
	settle(d);
}

PIN_TEST(no_hint_outlives_the_word_that_all_may_be_gone, open_odp(OPTIMAL), MIB)
{
	keep_out_service(d);
	EXPECT_EQ(hugepin_prefetch(d, p, MIB, 0), 0);
	hp_gone_tell_all(&(struct hp_range){ .end = UINTPTR_MAX });
	EXPECT_EQ(d->prefetches_count, 0);
	let_in_service(d);
}

PIN_TEST(what_a_miss_has_queued_is_not_registered_again, open_odp(OPTIMAL), MIB)
{
	const struct hp_prefetch hint = {
		.addr = p, .len = MIB, .access = HUGEPIN_READ | HUGEPIN_WRITE, .missed = true
	};

	EXPECT_EQ(hp_hints_push(d, hint), 0);
	hp_domains_start();
	settle(d);
	EXPECT_EQ(device.calls, 0);
	EXPECT_EQ(device.prefetches, 0);
	EXPECT_EQ(stats_of(d).prefetched, 0);
}

/* ------------------------------------------------------------------ failures */

TEST(a_pin_for_itself_alone_is_brought_in_at_once)
{
	for (uint32_t mode = NATIVE; mode <= OPTIMAL; mode++) {
		hugepin_domain *d = open_odp(mode);
		char *p = map(MIB);
		struct hugepin_pin pin;

		EXPECT_EQ(hugepin_pin(d, p, MIB, HUGEPIN_PIN_UNCACHED, &pin), 0);
		EXPECT_EQ(device_transfer(&device, pin.lkey, p, MIB), mode == NATIVE ? PAGES : 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		munmap(p, MIB);
		close_empty(&device, d);
	}
}

TEST(a_device_that_refuses_advice_still_transfers)
{
	static const int errors[] = { -EIO, -ENOMEM, 1 };
	struct hugepin_backend without = device_backend;

	without.prefetch = NULL;
	for (uint32_t mode = NATIVE; mode <= OPTIMAL; mode++)
		for (int i = 0; i <= 3; i++) {
			struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_ODP, .odp = mode };
			char *p = map(MIB);
			hugepin_domain *d;
			uint64_t done;

			device_reset(&device);
			device.limits.flags = HUGEPIN_LIMIT_ODP;
			device.prefetch_error = i < 3 ? errors[i] : 0;
			EXPECT_EQ(hugepin_domain_open(i < 3 ? &device_backend : &without, &device, &attr, &d), 0);
			for (int k = 0; k < 4; k++) {
				EXPECT_EQ(hugepin_prefetch(d, p, MIB, phases[k]), 0);
				settle(d);
			}
			/* Hints are carried out if memory is registered, and what is to be brought in is. */
			done = mode != OPTIMAL ? 1 : errors[i % 3] > 0 && i < 3 ? 4 : 0;
			EXPECT_EQ(stats_of(d).prefetched, done);
			EXPECT_EQ(stats_of(d).prefetched_otherwise, mode == OPTIMAL ? done : 0);
			EXPECT_EQ(transfer(d, p, MIB), PAGES);
			EXPECT_EQ(stats_of(d).brought_bytes, 0);
			munmap(p, MIB);
			close_empty(&device, d);
		}
}

TEST(what_cannot_be_registered_is_not_brought_in)
{
	for (uint32_t mode = NATIVE; mode <= OPTIMAL; mode++)
		for (int k = 0; k < 4; k++) {
			hugepin_domain *d = open_odp(mode);
			char *p = map(MIB);
			struct hugepin_pin pin;

			device.nth = 1;
			device.with = -EFAULT;
			device.for_good = true;
			EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &pin), -EFAULT);
			EXPECT_EQ(hugepin_prefetch(d, p, MIB, phases[k]), 0);
			settle(d);
			EXPECT_EQ(device.prefetches, 0);
			EXPECT_EQ(stats_of(d).prefetched, 0);
			device.nth = 0;
			device.for_good = false;
			EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &pin), 0);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			munmap(p, MIB);
			close_empty(&device, d);
		}
}

TEST(bad_words_are_refused)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_ODP, .odp = OPTIMAL + 1 };
	hugepin_domain *d = NULL;
	struct hugepin_pin pin;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	EXPECT_EQ(device.closed, 0);
	d = open_odp(OPTIMAL);
	for (int i = 1; i < 4; i++) {
		EXPECT_EQ(hugepin_pin(d, p, MIB, phases[i], &pin), -EINVAL);
		EXPECT_EQ(hugepin_prefetch(d, p, 0, phases[i]), -EINVAL);
		EXPECT_EQ(hugepin_prefetch(d, p, MIB, phases[i] | HUGEPIN_PIN_UNCACHED), -EINVAL);
		EXPECT_EQ(hugepin_prefetch(d, p, MIB, phases[i] | 2048), -EINVAL);
	}
	EXPECT_EQ(device.calls, 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(the_option_is_the_mode_of_domains_that_choose_none)
{
	static const uint32_t modes[] = {
		[HP_ODP_NATIVE] = NATIVE, [HP_ODP_ENHANCED] = ENHANCED, [HP_ODP_OPTIMAL] = OPTIMAL
	};

	for (int i = 0; i < 3; i++) {
		hugepin_domain *d;

		hp_config.odp = i;
		d = open_odp(HUGEPIN_ODP_DEFAULT);
		EXPECT_EQ(d->odp, modes[i]);
		close_empty(&device, d);
		d = open_odp(NATIVE);
		EXPECT_EQ(d->odp, NATIVE);
		close_empty(&device, d);
		d = open_lru(); /* which registers nothing on demand */
		EXPECT_EQ(d->odp, HUGEPIN_ODP_DEFAULT);
		close_empty(&device, d);
	}
	hp_config.odp = HP_ODP_OPTIMAL;
}

/* ------------------------------------------------------------------ threads */

struct work {
	hugepin_domain *d;
	char *p;
	unsigned seed;
};

static void *transfer_at_random(void *work)
{
	struct work *w = work;

	for (int i = 0; i < 400; i++) {
		char *p = w->p + (size_t)(rand_r(&w->seed) % 8) * 16 * PAGE;
		size_t len = (size_t)(1 + rand_r(&w->seed) % 16) * PAGE;
		int did = rand_r(&w->seed) % 4;
		struct hugepin_pin pin;

		if (did == 3)
			device_invalidate(&device, p, len);
		else
			EXPECT(hugepin_prefetch(w->d, p, len, phases[did]) != -EINVAL);
		EXPECT_EQ(hugepin_pin(w->d, p, len, 0, &pin), 0);
		EXPECT(device_transfer(&device, pin.lkey, p, len) <= len / PAGE);
		EXPECT_EQ(hugepin_unpin(w->d, &pin), 0);
	}
	return NULL;
}

TEST(threads_transfer_what_others_bring_in_and_take_away)
{
	T_STAYS(16, "counters of threads");
	enum { THREADS = 4 };

	for (uint32_t mode = NATIVE; mode <= OPTIMAL; mode++) {
		hugepin_domain *d = open_odp(mode);
		char *p = map(MIB);
		pthread_t thread[THREADS];
		struct work work[THREADS];

		for (int i = 0; i < THREADS; i++) {
			work[i] = (struct work){ d, p, mode * 100 + (unsigned)i };
			EXPECT_EQ(pthread_create(&thread[i], NULL, transfer_at_random, &work[i]), 0);
		}
		for (int i = 0; i < THREADS; i++)
			pthread_join(thread[i], NULL);
		settle(d);
		EXPECT_EQ(stats_of(d).pinned_bytes, 0);
		EXPECT_EQ(stats_of(d).brought_bytes != 0, mode != NATIVE);
		munmap(p, MIB);
		close_empty(&device, d);
	}
}

T_MAIN
