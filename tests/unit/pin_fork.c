/*
 * Forks of a process with a domain: the child has no part in the parent's domains and opens its own, also where a
 * signal handler forks in the middle of a pin.
 */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/unit/pin.h"

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

/* ------------------------------------------------------------------ in a signal handler */

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

		alarm(t_seconds());
		device_reset(&device);
		hugepin_domain *d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
		_exit(hugepin_pin(d, p, 4096, 0, &pin) || hugepin_unpin(d, &pin) || hugepin_domain_close(d) ||
		      t_failures);
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

T_MAIN
