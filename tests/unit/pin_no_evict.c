/*
 * HUGEPIN_PIN_NO_EVICT: a pin that finds its range registered as any other, registers it if there is room, and
 * otherwise fails and leaves all as it was.
 */
#include <semaphore.h>
#include <unistd.h>

#include "reg/domain.h"
#include "reg/key.h"
#include "reg/state.h"
#include "tests/unit/pin.h"

enum { FILLED = 4, RW = HUGEPIN_READ | HUGEPIN_WRITE };

/* Register so many idle base pages, and say that they are there. */
static void fill(hugepin_domain *d, const char *p)
{
	for (size_t i = 0; i < FILLED; i++)
		EXPECT_EQ(touch(d, p + i * 8192, 4096), 0);
}

static void still_there(hugepin_domain *d, const char *p)
{
	EXPECT_EQ(stats_of(d).evicted, 0);
	EXPECT_EQ(device.regs, FILLED);
	EXPECT_EQ(device.deregs, 0);
	for (size_t i = 0; i < FILLED; i++)
		EXPECT(registered(d, p + i * 8192, 4096));
}

enum limit { BUDGET, NUMBER, DEVICE_NUMBER, KERNEL, LIMITS };

static hugepin_domain *open_limited(enum limit limit, uint32_t policy)
{
	device_reset(&device);
	device.limits.flags = policy == HUGEPIN_POLICY_HYBRID ? HUGEPIN_LIMIT_ODP : 0;
	device.limits.regs_max = limit == DEVICE_NUMBER ? FILLED : 0;
	device.kernel_bytes_max = limit == KERNEL ? FILLED * 4096 : 0;
	return open_as(policy, limit == BUDGET ? FILLED * 4096 : 0, limit == NUMBER ? FILLED : 0);
}

TEST(it_fails_where_room_would_have_to_be_made_and_all_is_as_it_was)
{
	static const unsigned bits[] = { 0, RW, HUGEPIN_PIN_UNCACHED, HUGEPIN_REMOTE_READ };
	char *p = map(MIB);

	for (enum limit limit = 0; limit < LIMITS; limit++)
		for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
			hugepin_domain *d = open_limited(limit, HUGEPIN_POLICY_LRU);
			struct hugepin_pin pin = { .ref = 77 };
			struct iovec v = { p + MIB / 2, 4096 };

			fill(d, p);
			EXPECT_EQ(hugepin_pin(d, p + MIB / 2, 4096, bits[i] | HUGEPIN_PIN_NO_EVICT, &pin), -ENOBUFS);
			EXPECT_EQ(pin.ref, 77);
			EXPECT_EQ(hugepin_pin_at(d, p + MIB / 2, 4096, bits[i] | HUGEPIN_PIN_NO_EVICT, &pin, 1),
				  -ENOBUFS);
			EXPECT_EQ(hugepin_pinv(d, &v, 1, bits[i] | HUGEPIN_PIN_NO_EVICT, &pin, 1), -ENOBUFS);
			EXPECT_EQ(hugepin_register(d, &v, 1, bits[i] | HUGEPIN_PIN_NO_EVICT, &pin, 1), -ENOBUFS);
			EXPECT_EQ(stats_of(d).nobufs, 4);
			still_there(d, p);
			EXPECT_EQ(touch(d, p + MIB / 2, 4096), 0);
			EXPECT_EQ(stats_of(d).evicted, 1);
			close_empty(&device, d);
		}
	munmap(p, MIB);
}

DOMAIN_TEST(it_finds_what_is_registered_and_registers_what_has_room, open_lru())
{
	char *memory[] = { map(MIB), hugepin_malloc(MIB) };
	const unsigned accesses[] = { 0, HUGEPIN_READ, HUGEPIN_REMOTE_READ };

	for (size_t m = 0; m < 2; m++)
		for (size_t i = 0; i < 3; i++) {
			const unsigned access = accesses[i] | HUGEPIN_PIN_NO_EVICT;
			char *p = memory[m] + i * 16384;
			struct hugepin_pin pin[3], held;
			struct iovec v[3] = { { p, 4096 }, { p, 4096 }, { p, 4096 } };
			long calls;

			EXPECT_EQ(hugepin_pin(d, p, 4096, access, &held), 0);
			EXPECT(device_covers(&device, &held, accesses[i] ? accesses[i] : RW));
			calls = device.calls;
			/* A hit takes no lock: a miss would wait here for ever. */
			alarm(t_seconds());
			hp_domain_lock(d);
			for (int again = 0; again < 2; again++) {
				EXPECT_EQ(hugepin_pin(d, p, 4096, access, &pin[0]), 0);
				EXPECT_EQ(hugepin_pin_at(d, p, 4096, access, &pin[1], 1), 0);
				EXPECT_EQ(hugepin_pin_try(d, p, 4096, access, NULL, NULL, &pin[2]), 0);
				EXPECT_EQ(hugepin_unpinv(d, pin, 3), 0);
				EXPECT_EQ(hugepin_pinv(d, v, 3, access, pin, 3), 3);
				EXPECT_EQ(hugepin_unpinv(d, pin, 3), 0);
				EXPECT_EQ(hugepin_register(d, v, 3, access, pin, 3), 3);
				EXPECT(pin[2].lkey == held.lkey && pin[2].base == (uintptr_t)p && pin[2].len == 4096);
				EXPECT_EQ(hugepin_unpinv(d, pin, 3), 0);
			}
			hp_domain_unlock(d);
			EXPECT_EQ(device.calls, calls);
			EXPECT_EQ(hugepin_unpin(d, &held), 0);
		}
	alarm(0);
	munmap(memory[0], MIB);
	hugepin_free(memory[1]);
}

PIN_TEST(it_takes_the_place_of_what_lies_inside, open_first(HUGEPIN_POLICY_LRU, 16 * 4096, 0), MIB)
{
	struct hugepin_pin pin;

	fill(d, p);
	EXPECT_EQ(hugepin_pin(d, p, FILLED * 8192, HUGEPIN_PIN_NO_EVICT, &pin), 0);
	EXPECT_EQ(stats_of(d).merged, 1);
	EXPECT_EQ(stats_of(d).evicted, 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

PIN_TEST(uncached_it_is_registered_for_itself_alone, open_first(HUGEPIN_POLICY_LRU, 5 * 4096, 0), MIB)
{
	struct hugepin_pin pin;

	fill(d, p);
	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_PIN_NO_EVICT | HUGEPIN_PIN_UNCACHED, &pin), 0);
	EXPECT_EQ(device.regs, FILLED + 1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(device.regs, FILLED);
}

static void count_crowded(void *crowded, size_t bytes)
{
	(void)bytes;
	++*(int *)crowded;
}

PIN_TEST(no_peer_is_asked_for_keys_to_make_room, open_first(HUGEPIN_POLICY_LRU, FILLED * 4096, 0), MIB)
{
	const struct hp_lend_hooks hooks = { .crowded = count_crowded };
	struct hugepin_pin held[FILLED], pin;
	int crowded = 0;

	for (size_t i = 0; i < FILLED; i++)
		EXPECT_EQ(hugepin_pin(d, p + i * 8192, 4096, 0, &held[i]), 0);
	d->lend = &crowded;
	d->lend_hooks = &hooks;
	EXPECT_EQ(hugepin_pin(d, p + MIB / 2, 4096, HUGEPIN_PIN_NO_EVICT, &pin), -ENOBUFS);
	EXPECT_EQ(crowded, 0);
	EXPECT_EQ(hugepin_pin(d, p + MIB / 2, 4096, 0, &pin), -ENOBUFS);
	EXPECT_EQ(crowded, 1);
	d->lend_hooks = NULL;
	EXPECT_EQ(hugepin_unpinv(d, held, FILLED), 0);
}

struct answer {
	sem_t told;
	int err;
};

static void note_answer(void *answer, int err, const struct hugepin_pin *pin)
{
	struct answer *a = answer;

	EXPECT(!pin);
	a->err = err;
	sem_post(&a->told);
}

PIN_TEST(its_request_is_told_that_there_is_no_room, open_first(HUGEPIN_POLICY_LRU, FILLED * 4096, 0), MIB)
{
	struct hugepin_pin pin;
	struct answer a = { .err = 0 };

	sem_init(&a.told, 0, 0);
	fill(d, p);
	EXPECT_EQ(hugepin_pin_try(d, p + MIB / 2, 4096, HUGEPIN_PIN_NO_EVICT, note_answer, &a, &pin), -EAGAIN);
	sem_wait(&a.told);
	EXPECT_EQ(a.err, -ENOBUFS);
	still_there(d, p);
}

PIN_TEST(what_registers_nothing_or_never_evicts_refuses_the_bit, open_lru(), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(touch(d, p, 4096), 0);
	EXPECT_EQ(hugepin_prefetch(d, p, 4096, HUGEPIN_READ | HUGEPIN_PIN_NO_EVICT), -EINVAL);
	EXPECT_EQ(hugepin_sg_key(d, p, 4096, HUGEPIN_READ | HUGEPIN_PIN_NO_EVICT, &pin), -EINVAL);
}

static hugepin_domain *open_parallel(void)
{
	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_PARALLEL;
	return open_as(HUGEPIN_POLICY_LRU, 8 * MIB, 0);
}

PIN_TEST(a_pool_that_does_not_fit_is_not_registered, open_parallel(), 16 * MIB)
{
	struct iovec v[4];
	struct hugepin_pin pin[4];

	fill(d, p);
	for (size_t i = 0; i < 4; i++)
		v[i] = (struct iovec){ p + (i + 1) * 3 * MIB, 2 * MIB };
	EXPECT_EQ(hugepin_register(d, v, 4, HUGEPIN_PIN_NO_EVICT, pin, 4), -ENOBUFS);
	EXPECT_EQ(stats_of(d).evicted, 0);
	for (size_t i = 0; i < FILLED; i++)
		EXPECT(registered(d, p + i * 8192, 4096));
	EXPECT_EQ(hugepin_register(d, v, 3, HUGEPIN_PIN_NO_EVICT, pin, 4), 3);
	EXPECT(device_covers(&device, &pin[2], RW));
	EXPECT_EQ(hugepin_unpinv(d, pin, 3), 0);
}

T_MAIN
