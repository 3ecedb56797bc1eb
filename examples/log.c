/* link: hugepin-uring hugepin uring */
/*
 * log FILE [RECORDS]: write records to a log, where they lie, many as one request. A record is a head, which the log
 * makes, and text, which lies in one of the program's buffers. Heads and texts are the pieces of a message. Several
 * messages are under way. A buffer is used again when its message is done. At the end the log is read back and
 * compared.
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <hugepin_sg_uring.h>
#include <hugepin_uring.h>
#include <liburing.h>
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

/* The records of one message. */
struct batch {
	struct hugepin_sg_uring_message message;
	struct iovec iov[2 * TOGETHER];
	size_t bytes; /* that are under way; 0: none */
	struct head heads[TOGETHER];
	char texts[TOGETHER][TEXT];
};

static struct io_uring ring;
static hugepin_domain *domain;
static hugepin_sg_uring *messages;
static struct batch *batches; /* MESSAGES of them */
static int fd = -1, out; /* out: messages under way */
static unsigned long long end; /* of the log */

_Noreturn static void fail(int e, const char *what)
{
	errx(1, "%s: %s", what, strerror(-e));
}

/* Submit what is prepared, and wait for one completion at least. Returns the first error. */
static int turn(void)
{
	struct io_uring_cqe *cqe;
	int e = io_uring_submit_and_wait(&ring, 1);

	if (e > 0 || e == -EINTR)
		e = 0;
	while (!io_uring_peek_cqe(&ring, &cqe)) {
		struct batch *b = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(&ring, cqe);
		if (!b) /* a message that could not be prepared */
			continue;
		hugepin_sg_uring_done(messages, &b->message, res);
		if (!e && (size_t)res != b->bytes) /* short: the disk is full, and the rest would say so */
			e = res < 0 ? res : -ENOSPC;
		b->bytes = 0;
		out--;
	}
	return e;
}

/* At exit, after an error, too. The kernel uses the batches until their messages are done. */
static void give_back(void)
{
	while (out)
		turn();
	if (messages)
		hugepin_sg_uring_close(messages);
	if (fd >= 0)
		close(fd);
	hugepin_free(batches);
	hugepin_domain_close(domain); /* before the ring */
	io_uring_queue_exit(&ring);
}

static void wait_for(const struct batch *b)
{
	int e = 0;

	while (b->bytes && !e)
		e = turn();
	if (e)
		fail(e, "the log");
}

/* What the program has to say: here, numbers. */
static unsigned say(unsigned number, char text[TEXT])
{
	unsigned length = number * 2654435761u % TEXT;

	memset(text, 'a' + (int)(number % 26), length);
	return length;
}

/* Write records from `number` on, with this batch. Returns how many. */
static unsigned write_some(struct batch *b, unsigned number, unsigned count)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring); /* there is one: the ring has more than MESSAGES */
	size_t bytes = 0;
	int e;

	if (!sqe)
		fail(-EBUSY, "io_uring_get_sqe");
	if (count > TOGETHER)
		count = TOGETHER;
	for (unsigned i = 0; i < count; i++) {
		b->heads[i].number = number + i;
		b->heads[i].length = say(number + i, b->texts[i]);
		b->iov[2 * i] = (struct iovec){ &b->heads[i], sizeof b->heads[i] };
		b->iov[2 * i + 1] = (struct iovec){ b->texts[i], b->heads[i].length };
		bytes += sizeof b->heads[i] + b->heads[i].length;
	}
	e = hugepin_sg_uring_write(messages, sqe, fd, b->iov, 2 * (int)count, end, &b->message);
	if (e < 0)
		fail(e, "hugepin_sg_uring_write");
	io_uring_sqe_set_data(sqe, b);
	b->bytes = bytes;
	out++;
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
	unsigned records = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 10000, number = 0, count = 0;
	struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .copies = MESSAGES, .copy_len = 1 << 16 };
	int e;

	if (argc < 2 || argc > 3)
		errx(2, "usage: log FILE [RECORDS]");
	if ((e = io_uring_queue_init(64, &ring, 0)) < 0)
		fail(e, "io_uring");
	atexit(give_back);
	if ((e = hugepin_uring_open(&ring, 0, 64, NULL, &domain)) < 0)
		fail(e, "hugepin_uring_open");
	if ((e = hugepin_sg_uring_open(domain, &attr, &messages)) < 0)
		fail(e, "hugepin_sg_uring_open");
	batches = hugepin_calloc(MESSAGES, sizeof *batches); /* or calloc, under the drop-in */
	if (!batches)
		err(1, "hugepin_calloc");
	fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		err(1, "%s", argv[1]);

	while (number < records) {
		struct batch *b = &batches[count++ % MESSAGES];

		wait_for(b);
		number += write_some(b, number, records - number);
	}
	for (int i = 0; i < MESSAGES; i++)
		wait_for(&batches[i]);
	compare(records);
	printf("%u records, %u messages\n", records, count);
	return 0;
}
