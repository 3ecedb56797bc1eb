/* Changes of threads: threads that come and go, other stacks, affinity, and signals. */
#ifndef TESTS_SOAK_CHANGE_THREADS_H
#define TESTS_SOAK_CHANGE_THREADS_H

#include <ucontext.h>

#include "pins.h"

static void fork_once(struct worker *w); /* forks.h */

/* ------------------------------------------------------------------ threads and stacks */

/* The thread ends in one of three ways. */
static void *live_shortly(void *rand)
{
	allocate_some((uintptr_t)rand | 1);
	if ((uintptr_t)rand % 3 == 0)
		pthread_exit(NULL);
	/* The thread is cancelled here. A cancellation within a call that blocks makes the thread sanitizer blind to
	 * its locks. */
	while ((uintptr_t)rand % 3 == 1) {
		pthread_testcancel();
		sched_yield();
	}
	return NULL;
}

static bool thread_comes_and_goes(struct worker *w)
{
	const uint64_t rand = rand_next(&w->rand);
	pthread_t t;

	if (pthread_create(&t, NULL, live_shortly, (void *)(uintptr_t)rand))
		return false;
	if ((uintptr_t)rand % 3 == 1)
		EXPECT_EQ(pthread_cancel(t), 0);
	return EXPECT_EQ(pthread_join(t, NULL), 0);
}

/* Threads on stacks from the heap. They live while others fork. A pattern lies below each stack. */
enum { LODGERS = 4, LODGER_STACK = 256 * 1024, BELOW = 64 * 1024 };
static struct lodger {
	char *stack;
	bool by_malloc;
	uint64_t seed;
	pthread_t thread;
	_Atomic bool leave;
} lodgers[LODGERS];

static void *lodge(void *l_)
{
	struct lodger *l = l_;

	for (uint64_t rand = l->seed; !l->leave; sleep_ms(1 + (long)(rand_next(&rand) % 20)))
		allocate_some(rand);
	return NULL;
}

static void lodger_leaves(struct lodger *l)
{
	if (!l->stack)
		return;
	l->leave = true;
	EXPECT_EQ(pthread_join(l->thread, NULL), 0);
	EXPECT_EQ(pattern_check(l->stack, BELOW, l->seed), -1);
	if (l->by_malloc)
		free(l->stack);
	else
		hugepin_free(l->stack);
	l->stack = NULL;
}

static bool stack_from_the_heap(struct worker *w)
{
	struct lodger *l = &lodgers[rand_next(&w->rand) % LODGERS];
	pthread_attr_t a;

	lodger_leaves(l);
	l->by_malloc = preloaded && rand_next(&w->rand) % 2;
	l->seed = rand_next(&w->rand) | 1;
	l->leave = false;
	l->stack = l->by_malloc ? hide(malloc(LODGER_STACK)) : hugepin_malloc(LODGER_STACK);
	if (!l->stack)
		return false;
	pattern_write(l->stack, BELOW, l->seed);
	pthread_attr_init(&a);
	EXPECT_EQ(pthread_attr_setstack(&a, l->stack + BELOW, LODGER_STACK - BELOW), 0);
	if (pthread_create(&l->thread, &a, lodge, l) == 0)
		return true;
	if (l->by_malloc)
		free(l->stack);
	else
		hugepin_free(l->stack);
	l->stack = NULL;
	return false;
}

static struct worker *on_other_stack; /* the worker that runs there */

static void pin_here(int unused)
{
	struct worker *w = on_other_stack;
	char here[4096];

	(void)unused;
	allocate_some(rand_next(&w->rand));
	device_fills(w, here, sizeof here);
}

static void fork_here(void)
{
	pin_here(0);
	fork_once(on_other_stack);
}

/* A coroutine pins its own stack and forks. */
static bool fiber(struct worker *w)
{
	ucontext_t here, there;
	char *stack = hugepin_malloc(MIB);

	if (!stack)
		return false;
	on_other_stack = w;
	getcontext(&there);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = MIB;
	there.uc_link = &here;
	makecontext(&there, fork_here, 0);
	EXPECT_EQ(swapcontext(&here, &there), 0);
	hugepin_free(stack);
	return true;
}

static bool signal_stack(struct worker *w)
{
	struct sigaction action = { .sa_handler = pin_here, .sa_flags = SA_ONSTACK | SA_RESTART };
	stack_t stack = { .ss_sp = hugepin_malloc(MIB), .ss_size = MIB }, before;

	if (!stack.ss_sp)
		return false;
	on_other_stack = w;
	EXPECT_EQ(sigaction(SIGUSR2, &action, NULL), 0);
	EXPECT_EQ(sigaltstack(&stack, &before), 0);
	EXPECT_EQ(raise(SIGUSR2), 0);
	EXPECT_EQ(sigaltstack(&before, NULL), 0);
	hugepin_free(stack.ss_sp);
	return true;
}

static bool move_about(struct worker *unused)
{
	const struct sched_param none = { 0 };
	cpu_set_t before, one;
	bool ok;

	(void)unused;
	if (sched_getaffinity(0, sizeof before, &before))
		return false;
	CPU_ZERO(&one);
	CPU_SET((unsigned)sched_getcpu(), &one);
	ok = !sched_setaffinity(0, sizeof one, &one) && !sched_setscheduler(0, SCHED_BATCH, &none);
	if (ok)
		EXPECT_EQ(sched_setscheduler(0, SCHED_OTHER, &none), 0);
	sched_setaffinity(0, sizeof before, &before);
	return ok;
}

/* ------------------------------------------------------------------ signals */

static bool all_blocked(struct worker *w)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	allocate_some(rand_next(&w->rand));
	return EXPECT_EQ(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
}

static void fork_in_handler(int unused)
{
	const int saved = errno;
	const pid_t pid = _Fork();

	(void)unused;
	if (pid == 0)
		_exit(0);
	if (pid > 0)
		EXPECT_EQ(waitpid(pid, NULL, 0), pid);
	errno = saved;
}

/* Signal a thread in the middle of any operation. */
static bool signal_that_forks(struct worker *w)
{
	struct sigaction action = { .sa_handler = fork_in_handler, .sa_flags = SA_RESTART };

	EXPECT_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	return EXPECT_EQ(pthread_kill(workers[rand_next(&w->rand) % THREADS].thread, SIGUSR1), 0);
}

/* Another process stops this one for a moment. */
static bool be_stopped(struct worker *unused)
{
	static const char *const script = "kill -STOP $0; sleep 0.05; kill -CONT $0";
	char number[16];
	char *args[] = { (char *)"sh", (char *)"-c", (char *)script, number, NULL };
	pid_t pid;

	(void)unused;
	snprintf(number, sizeof number, "%d", (int)getpid());
	return !posix_spawn(&pid, "/bin/sh", NULL, NULL, args, environ) && EXPECT_EQ(child_wait(pid), 0);
}

#endif
