/*
 * Counters of pins: their sum is what is out, whoever counted, however many threads there are.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "reg/counts.h"
#include "reg/state.h"
#include "tests/t.h"

enum { REGIONS = 64, THREADS = 8, STEPS = 20000, MANY = 5000 };

static _Atomic uint32_t out[REGIONS];

/* A pin is made on one thread and given back on whichever comes by. */
static void *pin_and_unpin(void *seed_)
{
	unsigned seed = *(unsigned *)seed_;

	EXPECT(hp_counts_adopt());
	for (int i = 0; i < STEPS; i++) {
		uint32_t region = (uint32_t)rand_r(&seed) % REGIONS, pinned = out[region];

		if (rand_r(&seed) % 2) {
			hp_count(&hp_counts_self[region].pins);
			out[region]++;
		} else if (pinned && atomic_compare_exchange_strong(&out[region], &pinned, pinned - 1)) {
			hp_count(&hp_counts_self[region].unpins);
		}
	}
	return NULL;
}

static bool sums_agree(void)
{
	hp_counts_barrier();
	for (uint32_t i = 0; i < REGIONS; i++)
		if (hp_counts_sum(i) != out[i])
			return false;
	return true;
}

TEST(the_sum_is_what_is_out_whoever_counted_it)
{
	EXPECT_EQ(hp_counts_init(), 0);
	for (unsigned round = 0; round < 3; round++) { /* the later ones go on with the counters of the first */
		pthread_t t[THREADS];
		unsigned seed[THREADS];

		for (unsigned i = 0; i < THREADS; i++) {
			seed[i] = round * THREADS + i + 1;
			EXPECT_EQ(pthread_create(&t[i], NULL, pin_and_unpin, &seed[i]), 0);
		}
		for (unsigned i = 0; i < THREADS; i++)
			pthread_join(t[i], NULL);
		EXPECT(sums_agree());
	}
}

static void count_owner(void *n, struct hp_records *q)
{
	(void)q;
	++*(unsigned *)n;
}

static unsigned owners(void)
{
	unsigned n = 0;

	hp_counts_each(count_owner, &n);
	return n;
}

/* Whoever adds up the pins of a region reads a line of each thread's: if all of them lay in one set of a cache, each would be read
 * from memory. */
TEST(threads_count_the_pins_of_a_region_in_different_sets_of_a_cache)
{
	enum { SETS = 64, LINE = 64 };
	unsigned in_set[SETS] = { 0 }, most = 0;

	EXPECT_EQ(hp_counts_init(), 0);
	for (int i = 0; i < 512; i++) {
		EXPECT(hp_counts_adopt());
		in_set[(uintptr_t)&hp_counts_self[7] / LINE % SETS]++;
	}
	for (int i = 0; i < SETS; i++)
		most = HP_MAX(most, in_set[i]);
	EXPECT(most <= 2 * 512 / SETS);
}

TEST(so_it_is_with_very_many_threads_and_of_none_in_a_child)
{
	int status;

	EXPECT_EQ(hp_counts_init(), 0);
	for (unsigned i = owners(); i < MANY; i++) {
		EXPECT(hp_counts_adopt());
		hp_count(&hp_counts_self[i % REGIONS].pins);
		out[i % REGIONS]++;
		if (i % 1000 == 0)
			EXPECT(sums_agree());
	}
	EXPECT(owners() >= MANY);
	EXPECT(sums_agree());
	pid_t pid = fork();
	if (!pid) {
		bool right = true;

		hp_counts_child();
		for (uint32_t i = 0; i < REGIONS; i++)
			right &= hp_counts_sum(i) == 0;
		right &= hp_counts_adopt();
		hp_count(&hp_counts_self[3].pins);
		_exit(!right || hp_counts_sum(3) != 1 || hp_counts_sum(4) != 0);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
}
T_MAIN
