/*
 * For `hugepin top`: a process whose memory cannot be read in finite time, as that of a file system that does not answer. The file
 * that STUCK names says that the read has begun.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

ssize_t pread(int fd, void *buf, size_t len, off_t at);

ssize_t pread(int fd, void *buf, size_t len, off_t at)
{
	(void)fd, (void)buf, (void)len, (void)at;
	creat(getenv("STUCK"), 0600);
	for (;;)
		pause();
}
