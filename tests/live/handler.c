/* link: hugepin preload */
/* Signal handlers that map and unmap memory, whatever code they interrupt. */
#include "live.h"

#include <sys/syscall.h>
#include <sys/time.h>

#include "hugepin.h"

enum { HANDLED = 20000, SIZE = 65536 };

static _Atomic unsigned handled, refused;

static void handle(int number)
{
	int saved = errno;
	void *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	(void)number;
	handled++;
	refused += p == MAP_FAILED || munmap(p, SIZE) != 0;
	errno = saved;
}

static int reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)len, (void)access;
	ret_->lkey = 1;
	return 0;
}

static int dereg(void *ctx, struct hugepin_reg *r)
{
	(void)ctx, (void)r;
	return 0;
}

static int limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx, (void)ret_;
	return 0;
}

TEST(a_handler_may_unmap_whatever_it_interrupts)
{
	const struct hugepin_backend backend = { .size = sizeof backend, .reg = reg, .dereg = dereg, .limits = limits };
	const struct itimerval never = { { 0, 0 }, { 0, 0 } };
	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };
	hugepin_domain *d;
	struct hugepin_pin pin;
	if (!EXPECT_EQ(hugepin_domain_open(&backend, NULL, NULL, &d), 0))
		return;
	sigaction(SIGALRM, &action, NULL);
	uint64_t random = 1;
	for (int i = 0; handled < HANDLED; i++) {
		/* Set the timer for one signal at a time: a handler may take longer than the time to the next signal. */
		struct itimerval soon = { { 0, 0 }, { 0, 1 + (long)(rand_next(&random) % 60) } };
		setitimer(ITIMER_REAL, &soon, NULL);
		void *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (!EXPECT(p != MAP_FAILED))
			break;
		if (i % 4 == 0 && EXPECT_EQ(hugepin_pin(d, p, SIZE, HUGEPIN_WRITE, &pin), 0))
			hugepin_unpin(d, &pin);
		munmap(p, SIZE);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	EXPECT_EQ(refused, 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

static struct {
	void *piece[2];
	_Atomic bool mapped;
} victims;

/* Unmap watched memory twice: the second time waits until the watcher has told all domains of the first. */
static void unmap_victims(int number)
{
	(void)number;
	if (!victims.mapped)
		return;
	for (int i = 0; i < 2; i++)
		refused += syscall(SYS_munmap, victims.piece[i], SIZE) != 0;
	victims.mapped = false;
}

static _Atomic int rounds; /* of victims; -1: no more */

/* Interrupt the main thread once for each pair of victims, at changing distances. */
static void *kick(void *main_thread)
{
	uint64_t random = 1;
	for (int seen = 0, now; (now = rounds) >= 0; seen = now) {
		if (now == seen) {
			sched_yield();
			continue;
		}
		for (volatile uint64_t left = rand_next(&random) % 20000; left; left--)
			;
		pthread_kill(*(pthread_t *)main_thread, SIGUSR1);
	}
	return NULL;
}

TEST(a_handler_may_unmap_what_was_pinned_whatever_it_interrupts)
{
	const struct hugepin_backend backend = { .size = sizeof backend, .reg = reg, .dereg = dereg, .limits = limits };
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	struct sigaction action = { .sa_handler = unmap_victims, .sa_flags = SA_RESTART };
	pthread_t self = pthread_self(), kicker;
	hugepin_domain *d;
	struct hugepin_pin pin;
	if (!EXPECT_EQ(hugepin_domain_open(&backend, NULL, &attr, &d), 0))
		return;
	char *hint = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigaction(SIGUSR1, &action, NULL);
	pthread_create(&kicker, NULL, kick, &self);
	for (int round = 1; round < 500; round++) {
		for (int i = 0; i < 2; i++) {
			victims.piece[i] = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (EXPECT_EQ(hugepin_pin(d, victims.piece[i], SIZE, HUGEPIN_WRITE, &pin), 0))
				hugepin_unpin(d, &pin);
		}
		victims.mapped = true;
		rounds = round;
		while (victims.mapped)
			hugepin_prefetch(d, hint, SIZE, 0);
	}
	rounds = -1;
	pthread_join(kicker, NULL);
	EXPECT_EQ(refused, 0);
	munmap(hint, SIZE);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

T_MAIN
