/*
 * For `hugepin top`: a process whose memory cannot be read in finite time, as that of a file system that does not answer. A caught
 * signal does not end such a read.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

ssize_t pread(int fd, void *buf, size_t len, off_t at);

ssize_t pread(int fd, void *buf, size_t len, off_t at)
{
	sigset_t all;

	(void)fd, (void)buf, (void)len, (void)at;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (;;)
		pause();
}
