/* link: none */
/* A fork while another thread is doing something that happens only once, or holds a lock that children need. The test
 * stops that thread in an interposed function of the C library. Each subject is a program of its own. */
#include "live.h"

#include <sys/auxv.h>
#include <sys/syscall.h>

enum { STEPS = 400 };

static _Atomic bool stop_start, stop_munmap, inside, forked;

/* The other thread waits here until the fork is over. It waits for a limited time, since the fork may itself wait for
 * this thread. */
static void wait_inside(void)
{
	inside = true;
	for (int i = 0; i < STEPS && !forked; i++)
		syscall(SYS_nanosleep, &(struct timespec){ 0, 1000000 }, NULL);
}

/* The heap asks what kind of process this is when it reserves its addresses. */
unsigned long __getauxval(unsigned long type);

unsigned long getauxval(unsigned long type)
{
	if (type == AT_EXECFN && atomic_exchange(&stop_start, false))
		wait_inside();
	return __getauxval(type);
}

int munmap(void *addr, size_t len)
{
	if (len >= GIB && atomic_exchange(&stop_munmap, false))
		wait_inside();
	return (int)syscall(SYS_munmap, addr, len);
}

static void *first_request(void *unused)
{
	stop_start = true;
	free(hide(malloc(4 * MIB)));
	return unused;
}

static void *limits_addresses(void *unused)
{
	const struct rlimit r = { 8 * GIB, 8 * GIB };
	stop_munmap = true;
	setrlimit(RLIMIT_AS, &r);
	return unused;
}

static int allocates(void)
{
	void *p;
	for (size_t size = 16; size < 64 * MIB; size *= 2)
		for (int i = 0; i < (size < MIB ? 2000 : 2) && size * (size_t)i < 64 * MIB; i++)
			if (!(p = hide(malloc(size))))
				return 1;
	return 0;
}

static int forks_beside(void *(*run)(void *))
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, run, NULL))
		return 1;
	for (int i = 0; i < 50000 && !inside; i++)
		sleep_ms(1);
	if (!inside)
		return 2;
	pid_t child = fork();
	if (child == 0)
		_exit(allocates());
	forked = true;
	int r = child_wait(child);
	pthread_join(thread, NULL);
	return r == 0 ? allocates() : r < 0 ? 3 : r;
}

TEST_BY(anew, a_child_of_a_fork_beside_the_first_large_request_has_its_own)
{
	_exit(forks_beside(first_request));
}

TEST_BY(anew, a_child_of_a_fork_beside_a_limit_on_addresses_allocates)
{
	free(hide(malloc(4 * MIB)));
	_exit(forks_beside(limits_addresses));
}

LIVE_MAIN
