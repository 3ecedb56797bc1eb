/*
 * A device whose calls take long: meanwhile other domains pin, open, close and give memory back, and the heap
 * allocates.
 */
#include <semaphore.h>

#include "alloc/decay.h"
#include "base/base.h"
#include "tests/unit/pin.h"

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
DOMAIN_TEST(a_slow_device_holds_up_no_other_domain_and_no_malloc, open_lru())
{
	struct hugepin_backend slow = {
		.size = sizeof slow, .name = "slow", .reg = slow_reg, .dereg = quick_dereg, .limits = device_limits
	};
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU }; /* nothing ahead */
	hugepin_domain *waiting;
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

static const struct hugepin_backend quick_backend = {
	.size = sizeof quick_backend,
	.name = "quick",
	.reg = device_reg,
	.dereg = device_dereg,
	.limits = device_limits,
	.now_ns = device_now,
};

/* On a thread of its own: a thread that has freed memory keeps it for a while. */
static void *decay(void *unused)
{
	for (int i = 0; i < 200 && device.regs; i++)
		hp_heap_tick();
	return unused;
}

/* Open a domain, cache memory that decays, close: as if there were no other device. */
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

/* If one of these waited for the slow device, it would wait for ever: the test's time would run out. The slow call is
 * the service thread's, then a pin's, then one that closes, then one that opens. */
TEST(a_slow_device_holds_up_no_opening_no_closing_and_no_decay)
{
	struct hugepin_backend slow = {
		.size = sizeof slow, .name = "slow", .reg = slow_reg, .dereg = slow_dereg, .limits = device_limits
	};
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

T_MAIN
