/*
 * For `hugepin check`: its clock is the length of the file that TICKS names, in tenths of a second. A program that it runs takes as
 * long as the program writes there. The program itself does not get this library.
 */
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__attribute__((constructor)) static void forget(void)
{
	unsetenv("LD_PRELOAD");
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	const char *path = getenv("TICKS");
	struct stat s;

	if (clock != CLOCK_MONOTONIC || !path || stat(path, &s))
		return (int)syscall(SYS_clock_gettime, clock, t);
	t->tv_sec = 1000 + s.st_size / 10;
	t->tv_nsec = s.st_size % 10 * 100000000;
	return 0;
}
