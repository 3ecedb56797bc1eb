/* link: hugepin-uring hugepin uring */
/*
 * log FILE [RECORDS]: write records to a log, where they lie, many as one request. A record is a head, which the log
 * makes, and text, which lies in one of the program's buffers. Heads and texts are the pieces of a message, so nothing
 * is copied to put them one behind the other. Several messages are under way. A buffer is used again when its message
 * is free. At the end the log is read back and compared.
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <hugepin_sg_uring.h>
#include <hugepin_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	TOGETHER = 16, /* records of a message */
	MESSAGES = 8, /* under way */
	TEXT = 4096, /* the longest text */
};

struct head {
	unsigned number, length;
};

/* The records of one message. The memory is pinned. */
struct batch {
	struct head heads[TOGETHER];
	char texts[TOGETHER][TEXT];
};

static struct io_uring ring;
static hugepin_domain *domain;
static hugepin_sg_uring *queue;
static struct hugepin_sg_uring_target file;
static struct hugepin_pin pin;
static struct batch *batches; /* MESSAGES of them */
static int is_out[MESSAGES];
static int fd = -1, error; /* error: of a message */
static unsigned long long end; /* of the log */

_Noreturn static void fail(int e, const char *what)
{
	errx(1, "%s: %s", what, strerror(-e));
}

/* At exit, after an error, too. The kernel uses the batches until the queue can be closed. */
static void give_back(void)
{
	struct io_uring_cqe *cqe;

	while (queue && hugepin_sg_uring_close(queue) == -EBUSY) {
		io_uring_submit_and_wait(&ring, 1);
		while (!io_uring_peek_cqe(&ring, &cqe)) {
			hugepin_sg_uring_cqe(queue, cqe);
			io_uring_cqe_seen(&ring, cqe);
		}
	}
	if (fd >= 0)
		close(fd);
	if (domain)
		hugepin_unpin(domain, &pin); /* -EINVAL: no pin */
	hugepin_free(batches);
	hugepin_domain_close(domain); /* before the ring */
	io_uring_queue_exit(&ring);
}

static void done(void *arg, int e, size_t bytes, unsigned what)
{
	(void)bytes;
	if (e && !error)
		error = e;
	if (what & HUGEPIN_SG_URING_FREE)
		*(int *)arg = 0;
}

/* Submit what is prepared, and wait for one completion at least. */
static void turn(void)
{
	struct io_uring_cqe *cqe;
	int e = io_uring_submit_and_wait(&ring, 1);

	if (e < 0 && e != -EINTR)
		fail(e, "io_uring_submit_and_wait");
	while (!io_uring_peek_cqe(&ring, &cqe)) {
		hugepin_sg_uring_cqe(queue, cqe);
		io_uring_cqe_seen(&ring, cqe);
	}
	if (error)
		fail(error, "the log");
}

/* What the program has to say: here, numbers. */
static unsigned say(unsigned number, char text[TEXT])
{
	unsigned length = number * 2654435761u % TEXT;

	memset(text, 'a' + (int)(number % 26), length);
	return length;
}

/* Write records from `number` on, with the batch of this index. Returns how many. */
static unsigned write_some(int at, unsigned number, unsigned count)
{
	struct batch *b = &batches[at];
	struct iovec iov[2 * TOGETHER];
	size_t bytes = 0;
	int e;

	if (count > TOGETHER)
		count = TOGETHER;
	for (unsigned i = 0; i < count; i++) {
		b->heads[i].number = number + i;
		b->heads[i].length = say(number + i, b->texts[i]);
		iov[2 * i] = (struct iovec){ &b->heads[i], sizeof b->heads[i] };
		iov[2 * i + 1] = (struct iovec){ b->texts[i], b->heads[i].length };
		bytes += sizeof b->heads[i] + b->heads[i].length;
	}
	is_out[at] = 1;
	e = hugepin_sg_uring_write(queue, &file, end, iov, 2 * (int)count, 0, done, &is_out[at]);
	while (e == -EAGAIN) {
		turn();
		e = hugepin_sg_uring_write(queue, &file, end, iov, 2 * (int)count, 0, done, &is_out[at]);
	}
	if (e < 0)
		fail(e, "hugepin_sg_uring_write");
	end += bytes;
	return count;
}

static void compare(unsigned records)
{
	static char text[TEXT], expected[TEXT];
	struct head head;
	off_t at = 0;

	for (unsigned i = 0; i < records; i++) {
		unsigned length = say(i, expected);
		if (pread(fd, &head, sizeof head, at) != sizeof head || head.number != i || head.length != length ||
		    pread(fd, text, length, at + (off_t)sizeof head) != (ssize_t)length ||
		    memcmp(text, expected, length))
			errx(1, "record %u is not what was written", i);
		at += (off_t)(sizeof head + length);
	}
}

int main(int argc, char **argv)
{
	unsigned records = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 10000, number = 0;
	struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .messages = MESSAGES };
	struct hugepin_sg_uring_stats stats;
	int e;

	if (argc < 2 || argc > 3)
		errx(2, "usage: log FILE [RECORDS]");
	if ((e = io_uring_queue_init(64, &ring, 0)) < 0)
		fail(e, "io_uring");
	atexit(give_back);
	if ((e = hugepin_uring_open(&ring, 0, 64, NULL, &domain)) < 0)
		fail(e, "hugepin_uring_open");
	if ((e = hugepin_sg_uring_open(&ring, domain, &attr, &queue)) < 0)
		fail(e, "hugepin_sg_uring_open");
	batches = hugepin_malloc(MESSAGES * sizeof *batches); /* or malloc, under the drop-in */
	if (!batches)
		err(1, "hugepin_malloc");
	if ((e = hugepin_pin(domain, batches, MESSAGES * sizeof *batches, 0, &pin)) < 0)
		warnx("hugepin_pin: %s; going on by address", strerror(-e));
	fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		err(1, "%s", argv[1]);
	if ((e = hugepin_sg_uring_target(fd, &file)) < 0)
		fail(e, argv[1]);

	while (number < records)
		for (int i = 0; i < MESSAGES && number < records; i++) {
			while (is_out[i])
				turn();
			number += write_some(i, number, records - number);
		}
	for (int i = 0; i < MESSAGES; i++)
		while (is_out[i])
			turn();
	compare(records);
	hugepin_sg_uring_stats(queue, &stats, sizeof stats);
	printf("%u records, %llu messages, %llu requests\n", records, (unsigned long long)stats.messages,
	       (unsigned long long)stats.requests);
	return 0;
}
