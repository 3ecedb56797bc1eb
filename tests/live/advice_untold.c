/* link: hugepin */
/*
 * Programs that use only libhugepin.so, so that their mprotect and madvise calls are not seen. At a fork, the kernel's
 * state of a buffer counts for that fork only. Each test is a process of its own. A domain holds its memory, so a fork
 * copies the memory.
 */
#include "live.h"

#include "filter.h"

#include <hugepin.h>

enum { SIZE = 4 << 20, UNKNOWN = 77 };

static hugepin_domain *domain;

static char *held_buffer(void)
{
	struct hugepin_pin pin;
	char *p = hugepin_malloc(SIZE);

	if (!p || hugepin_domain_open(hugepin_mlock(), NULL, NULL, &domain) || hugepin_pin(domain, p, SIZE, 0, &pin))
		_exit(UNKNOWN);
	hugepin_unpin(domain, &pin); /* the memory stays registered */
	pattern_write(p, SIZE, 5);
	return p;
}

static uint64_t forks_copied(void)
{
	struct hugepin_stats s;

	hugepin_stats(&s, sizeof s);
	return s.forks_copied;
}

static void expect_child(int (*run)(char *), char *p)
{
	const uint64_t before = forks_copied();
	const pid_t pid = fork();

	if (pid == 0)
		_exit(run(p));
	EXPECT_EQ(child_wait(pid), 0);
	EXPECT_EQ(forks_copied(), before + 1);
}

static int do_nothing(char *unused)
{
	(void)unused;
	return 0;
}

static int read_it(char *p)
{
	return mprotect(p, SIZE, PROT_READ | PROT_WRITE) || pattern_check(p, SIZE, 5) != -1;
}

/* In a child of a fork at which the buffer was protected, too: make it writable and move it. */
static int move_it(char *p)
{
	EXPECT_EQ(mprotect(p, SIZE, PROT_READ | PROT_WRITE), 0);
	p = hugepin_realloc(p, 16 * SIZE);
	memset(p, 1, 16 * SIZE);
	hugepin_free(p);
	return t_failures != 0;
}

static void alone(void (*run)(void))
{
	int status;
	const pid_t pid = fork();

	if (pid == 0) {
		t_failures = 0;
		run();
		_exit(t_failures != 0);
	}
	status = child_wait(pid);
	if (status == UNKNOWN)
		SKIP("memory cannot be locked, or filters be had");
	EXPECT_EQ(status, 0);
}

TEST_BY(alone, what_was_protected_at_a_fork_is_writable_where_it_moves_later)
{
	char *p = held_buffer();

	EXPECT_EQ(mprotect(p, SIZE, PROT_READ), 0);
	expect_child(do_nothing, p);
	expect_child(move_it, p);
	move_it(p);
}

/* The fork must copy memory that cannot be read, without making it readable for a moment: another thread may call
 * mprotect on it, too. So the filter refuses mprotect(PROT_READ). */
TEST_BY(alone, a_fork_makes_nothing_readable_for_its_copy)
{
	struct filter f = { .len = 0 };
	char *p = held_buffer();

	EXPECT_EQ(mprotect(p, SIZE, PROT_NONE), 0);
	filter_argument(&f, SYS_mprotect, 2, BPF_JEQ, PROT_READ, FILTER_REFUSES(EPERM));
	if (!filter_install(&f, SECCOMP_RET_ALLOW))
		_exit(UNKNOWN);
	expect_child(read_it, p);
}

LIVE_MAIN
