/* A child of fork that waits before it does anything. */
#ifndef TESTS_UNIT_CHILD_H
#define TESTS_UNIT_CHILD_H

#include <fcntl.h>
#include <unistd.h>

#include "tests/t.h"

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
		alarm(T_SECONDS);
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
