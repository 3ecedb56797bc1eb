/* link: hugepin preload */
/*
 * One thread unmaps registered memory. Another thread gets the addresses at once and pins them: its registration must
 * be newer than the unmap. The kernel may tell of the unmap only after the pin, but the interposed calls announce it
 * before.
 */
#include "live.h"

#include "../device.h"

enum { ROUNDS = 3000, LEN = 1 << 20 };

static struct device device;
static hugepin_domain *domain;
static char *at;
static _Atomic int turn; /* 0: the first thread's turn; 1: it is unmapping; 2: the end */

static void pin_once(void)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(domain, at, 4096, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(domain, &pin), 0);
}

static void *other(void *stale)
{
	for (; turn != 2; sched_yield()) {
		char *p = MAP_FAILED;

		if (turn != 1)
			continue;
		long before = device.calls; /* the first thread pins no more in this round */
		while (p == MAP_FAILED)
			p = mmap(at, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		pin_once();
		*(long *)stale += device.calls == before;
		turn = 0;
	}
	return NULL;
}

TEST(addresses_that_another_thread_gets_at_once_are_registered_anew)
{
	uint64_t end_ms = clock_ms() + 10000; /* if other programs use the processors, fewer rounds suffice */
	pthread_t t;
	long stale = 0;

	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, NULL, &domain), 0);
	at = map_far_away(LEN);
	pthread_create(&t, NULL, other, &stale);
	for (int i = 0; i < ROUNDS && (i < 100 || clock_ms() < end_ms); i++) {
		pin_once();
		turn = 1;
		munmap(at, LEN);
		while (turn == 1)
			sched_yield();
	}
	turn = 2;
	pthread_join(t, NULL);
	EXPECT_EQ(stale, 0);
	EXPECT_EQ(hugepin_domain_close(domain), 0);
	munmap(at, LEN);
}

T_MAIN
