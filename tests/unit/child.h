/* Children of fork: one that runs a function at once, and one that waits first. */
#ifndef TESTS_UNIT_CHILD_H
#define TESTS_UNIT_CHILD_H

#include <fcntl.h>
#include <sys/wait.h>

#include "tests/t.h"

/* Call run() in a process of its own, because run() changes the process for good. Fail if an expectation fails
 * there. */
static inline void in_child(void (*run)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		alarm(t_seconds());
		run();
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

/* Fork a child that waits for a byte to be written to *ret_go, which is the caller's to close, then runs in() and exits
 * with whether that failed. -1: there is none. */
static inline pid_t child_that_waits(void (*in)(void), int *ret_go)
{
	int go[2];
	char c;
	pid_t pid;

	if (!EXPECT(!pipe2(go, O_CLOEXEC)))
		return -1;
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		alarm(t_seconds());
		close(go[1]);
		if (read(go[0], &c, 1) != 1)
			_exit(99);
		in();
		_exit(t_failures != 0);
	}
	close(go[0]);
	*ret_go = go[1];
	return pid;
}

/* Let it go on. */
static inline void child_goes(int go)
{
	EXPECT(write(go, "g", 1) == 1);
}

#endif
