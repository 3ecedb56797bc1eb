/*
 * The service thread and its jobs: when they run, how often, and that nothing is lost between asking and running.
 */
#include "base/service.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

#include "base/base.h"
#include "base/process.h"
#include "base/stats.h"
#include "base/thread.h"
#include "tests/t.h"

#define MS UINT64_C(1000000)

static void sleep_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* Wait a while for *word to become n. */
static bool becomes(_Atomic unsigned *word, unsigned n)
{
	for (int i = 0; i < 20000 && *word != n; i++)
		sleep_ms(1);
	return *word == n;
}

static _Atomic unsigned runs, again, late_runs;
static _Atomic bool hold;

static bool count(void)
{
	runs++;
	while (hold)
		sleep_ms(1);
	return again && again--;
}

static bool count_late(void)
{
	late_runs++;
	return false;
}

static struct hp_job at_once = { .run = count }, late = { .run = count_late, .delay_ns = 100 * MS };

TEST(a_job_runs_once_for_being_asked_for)
{
	runs = 0;
	EXPECT(hp_service_ask(&at_once));
	EXPECT(hp_service_running());
	EXPECT(becomes(&runs, 1));
	sleep_ms(20);
	EXPECT_EQ(runs, 1);
}

TEST(a_job_runs_again_as_long_as_it_says_so)
{
	runs = 0;
	again = 5;
	EXPECT(hp_service_ask(&at_once));
	EXPECT(becomes(&runs, 6));
	sleep_ms(20);
	EXPECT_EQ(runs, 6);
}

TEST(what_is_asked_for_while_it_runs_runs_again)
{
	runs = 0;
	hold = true;
	EXPECT(hp_service_ask(&at_once));
	EXPECT(becomes(&runs, 1));
	EXPECT(hp_service_ask(&at_once));
	hold = false;
	EXPECT(becomes(&runs, 2));
	sleep_ms(20);
	EXPECT_EQ(runs, 2);
}

TEST(a_job_waits_for_its_delay_and_keeps_no_other_waiting)
{
	uint64_t start = hp_clock_ns();

	runs = late_runs = 0;
	EXPECT(hp_service_ask(&late));
	for (unsigned i = 1; i <= 20; i++) {
		EXPECT(hp_service_ask(&at_once));
		EXPECT(becomes(&runs, i));
		unsigned before = late_runs; /* read before the clock is */
		if (hp_clock_ns() - start < 100 * MS)
			EXPECT_EQ(before, 0);
	}
	EXPECT(becomes(&late_runs, 1));
	EXPECT(hp_clock_ns() - start >= 100 * MS);
	sleep_ms(150);
	EXPECT_EQ(late_runs, 1);
}

TEST(asking_for_what_waits_wakes_nobody_and_starts_no_delay_anew)
{
	uint64_t start = hp_clock_ns(), woken;

	late_runs = 0;
	EXPECT(hp_service_ask(&late));
	woken = HP_STAT_GET(service_wakeups);
	/* If its delay began anew each time, it would never run. */
	while (!late_runs && hp_clock_ns() - start < 20000 * MS)
		EXPECT(hp_service_ask(&late));
	EXPECT(late_runs > 0);
	EXPECT(HP_STAT_GET(service_wakeups) <= woken + 4); /* for the first, at its time, for what was asked after that */
	while (late.asked) /* the next test begins with nothing asked for */
		sleep_ms(1);
}

TEST(who_starts_the_thread_keeps_its_signal_mask)
{
	sigset_t one, before, after;

	sigemptyset(&one);
	sigaddset(&one, SIGUSR2);
	sigprocmask(SIG_BLOCK, &one, &before);
	hp_service_end();
	hp_service_allow();
	EXPECT(!hp_service_running());
	runs = 0;
	EXPECT(hp_service_ask(&at_once));
	EXPECT(hp_service_running());
	sigprocmask(SIG_SETMASK, &before, &after);
	for (int n = 1; n < NSIG; n++)
		EXPECT_EQ(sigismember(&after, n), n == SIGUSR2 ? 1 : sigismember(&before, n));
	EXPECT(becomes(&runs, 1));
}

static bool asked_alone;

static void ask_alone(void *unused)
{
	(void)unused;
	asked_alone = hp_service_ask(&at_once);
}

TEST(a_bare_thread_leaves_its_job_for_who_may_start_the_thread)
{
	static const struct hp_thread_kind kind = { .name = "test asks", .run = ask_alone };
	static struct hp_thread asker;

	if (!HP_THREAD_BARE)
		SKIP("threads are the C library's in this build");
	hp_service_end();
	hp_service_allow();
	hp_service_resume(); /* the thread that has ended here */
	hp_service_end();
	hp_service_allow();
	runs = 0;
	hp_process_begin();
	EXPECT(hp_thread_start(&asker, &kind, NULL, -1));
	hp_thread_join(&asker);
	EXPECT(!asked_alone && !hp_service_running());
	hp_service_resume();
	EXPECT(hp_service_running());
	EXPECT(becomes(&runs, 1));
}

/* What is written before asking is seen by a run that comes after. */
enum { ASKERS = 4, ITEMS = 20000 };
static unsigned written[ASKERS]; /* plain words, each with one writer */
static _Atomic unsigned handled;

static bool handle(void)
{
	unsigned sum = 0;

	for (int i = 0; i < ASKERS; i++)
		sum += __atomic_load_n(&written[i], __ATOMIC_RELAXED);
	handled = sum;
	return false;
}

static struct hp_job handler = { .run = handle };

static void *ask_often(void *mine)
{
	for (int i = 0; i < ITEMS; i++) {
		__atomic_fetch_add((unsigned *)mine, 1, __ATOMIC_RELAXED);
		EXPECT(hp_service_ask(&handler));
	}
	return NULL;
}

TEST(nothing_is_lost_when_many_ask)
{
	T_THREADS_RUN(ASKERS);
	pthread_t t[ASKERS];

	for (int i = 0; i < ASKERS; i++)
		pthread_create(&t[i], NULL, ask_often, &written[i]);
	for (int i = 0; i < ASKERS; i++)
		pthread_join(t[i], NULL);
	EXPECT(becomes(&handled, ASKERS * ITEMS));
}

static uint64_t stopped_ns;

static uint64_t stopped_clock(void)
{
	return stopped_ns;
}

TEST(a_child_of_fork_starts_with_nothing_asked_for)
{
	int status;
	pid_t pid;

	runs = late_runs = 0;
	stopped_ns = hp_clock_ns();
	hp_clock_set(stopped_clock); /* the job is still waiting when the child is made, however late that is */
	EXPECT(hp_service_ask(&late));
	pid = fork();
	hp_clock_set(NULL);
	if (pid == 0) {
		hp_service_child();
		t_failures = 0;
		EXPECT(!hp_service_running());
		EXPECT(hp_service_ask(&at_once));
		EXPECT(becomes(&runs, 1));
		sleep_ms(150);
		EXPECT_EQ(late_runs, 0);
		EXPECT(hp_service_ask(&late));
		EXPECT(becomes(&late_runs, 1));
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	EXPECT(becomes(&late_runs, 1));
}

T_MAIN
