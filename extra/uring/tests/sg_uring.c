/* link: hugepin-uring hugepin uring */
/* Messages of many pieces on real rings, to and from files. */
#include <pthread.h>

#include "rig.h"

enum { APART = 4096 };

TEST(one_range_goes_by_its_registration)
{
	struct rig r;
	struct hugepin_pin pin;
	struct iovec iov[3];
	char *p;

	if (!rig_open(&r, NULL, 0))
		return;
	p = hugepin_malloc(MIB);
	fill(p, MIB, 1);
	EXPECT_EQ(hugepin_pin(r.domain, p, MIB, 0, &pin), 0);
	const int bytes = lay(iov, 3, p, 5000, 5000); /* neighbours */
	EXPECT_EQ(goes(&r, false, iov, 3, 0, IORING_OP_WRITE_FIXED, false), bytes);
	EXPECT_EQ(goes(&r, false, iov + 2, 1, 20000, IORING_OP_WRITE_FIXED, false), 5000);
	EXPECT(has(&r, iov, 3, 0) && has(&r, iov + 2, 1, 20000));
	iov[2].iov_len = 0;
	EXPECT_EQ(goes(&r, false, iov, 3, 0, IORING_OP_WRITE_FIXED, false), 10000);
	lay(iov, 3, p + 100000, 5000, 5000);
	EXPECT_EQ(goes(&r, true, iov, 3, 0, IORING_OP_READ_FIXED, false), bytes);
	EXPECT(!memcmp(p, p + 100000, (size_t)bytes));
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	rig_close(&r);
	hugepin_free(p);
}

TEST(a_range_that_is_registered_in_part_goes_by_address)
{
	struct rig r;
	struct hugepin_pin pin;
	struct iovec whole, half;
	char *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (!rig_open(&r, NULL, 0))
		return;
	fill(p, 65536, 2);
	whole = (struct iovec){ p, 65536 };
	half = (struct iovec){ p, 32768 };
	EXPECT_EQ(goes(&r, false, &whole, 1, 0, IORING_OP_WRITE, false), 65536); /* and registers nothing */
	EXPECT_EQ(goes(&r, false, &whole, 1, 0, IORING_OP_WRITE, false), 65536);
	EXPECT_EQ(hugepin_pin(r.domain, p, 32768, 0, &pin), 0);
	EXPECT_EQ(goes(&r, false, &half, 1, 0, IORING_OP_WRITE_FIXED, false), 32768);
	EXPECT_EQ(goes(&r, false, &whole, 1, 0, IORING_OP_WRITE, false), 65536);
	EXPECT(has(&r, &whole, 1, 0));
	EXPECT_EQ(goes(&r, true, &whole, 1, 0, IORING_OP_READ, false), 65536);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	rig_close(&r);
	munmap(p, 65536);
}

TEST(pieces_apart_in_one_registration_are_one_request)
{
	struct rig r;
	struct hugepin_pin pin;
	struct iovec iov[8];
	char *p;

	if (!rig_open(&r, NULL, 0))
		return;
	p = hugepin_malloc(MIB);
	fill(p, MIB, 3);
	EXPECT_EQ(hugepin_pin(r.domain, p, MIB, 0, &pin), 0);
	const int bytes = lay(iov, 8, p, 2 * APART, APART);
	EXPECT_EQ(goes(&r, false, iov, 8, 100, r.vector ? OP_WRITEV_FIXED : IORING_OP_WRITEV, false), bytes);
	EXPECT(has(&r, iov, 8, 100));
	lay(iov, 8, p + 500000, 2 * APART, APART);
	EXPECT_EQ(goes(&r, true, iov, 8, 100, r.vector ? OP_READV_FIXED : IORING_OP_READV, false), bytes);
	EXPECT(has(&r, iov, 8, 100));
	for (int i = 0; i < 4; i++) { /* in any order */
		const struct iovec other = iov[i];
		iov[i] = iov[7 - i];
		iov[7 - i] = other;
	}
	EXPECT_EQ(goes(&r, false, iov, 8, 0, r.vector ? OP_WRITEV_FIXED : IORING_OP_WRITEV, false), bytes);
	EXPECT(has(&r, iov, 8, 0));
	iov[3].iov_len = 0; /* by index, the kernel refuses an empty one */
	EXPECT_EQ(goes(&r, false, iov, 8, 0, IORING_OP_WRITEV, false), bytes - APART);
	EXPECT(has(&r, iov, 8, 0));
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	rig_close(&r);
	hugepin_free(p);
}

TEST(pieces_of_which_one_is_not_registered_go_by_address)
{
	struct rig r;
	struct hugepin_pin pin;
	struct iovec iov[3];
	char *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (!rig_open(&r, NULL, 0))
		return;
	fill(p, 65536, 8);
	EXPECT_EQ(hugepin_pin(r.domain, p + 4096, 4 * 4096, 0, &pin), 0);
	for (int way = 0; way < 4; way++) { /* the last one, or the first one; in rising order, or in falling order */
		const int bytes = lay(iov, 3, p + (way % 2 ? 0 : 4096), 2 * 4096, 4096);

		if (way >= 2) {
			const struct iovec other = iov[0];
			iov[0] = iov[2];
			iov[2] = other;
		}
		EXPECT_EQ(goes(&r, false, iov, 3, 0, IORING_OP_WRITEV, false), bytes);
		EXPECT_EQ(goes(&r, true, iov, 3, 0, IORING_OP_READV, false), bytes);
		EXPECT(has(&r, iov, 3, 0));
	}
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	rig_close(&r);
	munmap(p, 65536);
}

TEST(short_pieces_are_copied)
{
	struct rig r;
	struct iovec iov[8], one;
	char p[8 * APART], q[8 * APART];

	if (!rig_open(&r, NULL, 0))
		return;
	fill(p, sizeof p, 4);
	int bytes = lay(iov, 8, p, APART, 2047);
	EXPECT_EQ(goes(&r, false, iov, 8, 0, IORING_OP_WRITE_FIXED, true), bytes);
	EXPECT(has(&r, iov, 8, 0));
	memset(q, 1, sizeof q);
	lay(iov, 8, q, APART, 2047);
	EXPECT_EQ(goes(&r, true, iov, 8, 0, IORING_OP_READ_FIXED, true), bytes);
	EXPECT(has(&r, iov, 8, 0));
	EXPECT_EQ(q[2047], 1);
	bytes = lay(iov, 8, p, APART, 2048); /* not shorter */
	EXPECT_EQ(goes(&r, false, iov, 8, 0, IORING_OP_WRITEV, false), bytes);
	one = (struct iovec){ p, 64 }; /* several pieces, only */
	EXPECT_EQ(goes(&r, false, &one, 1, 0, IORING_OP_WRITE, false), 64);
	rig_close(&r);
}

TEST(a_message_that_is_too_long_for_a_copy_is_not_copied)
{
	struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .copy_len = 1, .copy_below = 100 };
	struct rig r;
	static char p[200 * 100];
	struct iovec iov[100];

	if (!rig_open(&r, &attr, 0))
		return;
	lay(iov, 100, p, 200, 41);
	EXPECT_EQ(goes(&r, false, iov, 99, 0, IORING_OP_WRITE_FIXED, true), 99 * 41); /* 4059 of 4096 */
	EXPECT_EQ(goes(&r, false, iov, 100, 0, IORING_OP_WRITEV, false), 100 * 41);
	lay(iov, 10, p, 200, 100);
	EXPECT_EQ(goes(&r, false, iov, 10, 0, IORING_OP_WRITEV, false), 1000);
	rig_close(&r);
}

TEST(a_read_that_ends_early_fills_the_first_pieces)
{
	struct rig r;
	struct iovec iov[4];
	char p[4 * 200];

	if (!rig_open(&r, NULL, 0))
		return;
	memset(p, 1, sizeof p);
	EXPECT_EQ(pwrite(r.fd, "0123456789", 10, 0), 10);
	lay(iov, 4, p, 200, 4);
	EXPECT_EQ(goes(&r, true, iov, 4, 0, IORING_OP_READ_FIXED, true), 10);
	EXPECT(!memcmp(p, "0123", 4) && !memcmp(p + 200, "4567", 4) && !memcmp(p + 400, "89\1\1", 4) && p[600] == 1);
	EXPECT_EQ(goes(&r, true, iov, 4, 10, IORING_OP_READ_FIXED, true), 0);
	const int fd = r.fd;
	r.fd = -1;
	memset(p, 2, sizeof p);
	EXPECT_EQ(goes(&r, true, iov, 4, 0, IORING_OP_READ_FIXED, true), -EBADF);
	EXPECT(p[0] == 2 && p[200] == 2);
	r.fd = fd;
	rig_close(&r);
}

TEST(unaligned_pieces_reach_a_file_past_the_page_cache)
{
	struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .copies = 1, .copy_len = 8192, .align = 512 };
	struct hugepin_sg_uring_message m, second;
	struct rig r;
	struct iovec iov[2];
	char *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (!rig_open(&r, &attr, 0))
		return;
	close(r.fd);
	r.fd = open("/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
	if (r.fd >= 0) {
		fill(p, 65536, 5);
		iov[0] = (struct iovec){ p + 1, 4000 };
		iov[1] = (struct iovec){ p + 10001, 96 };
		EXPECT_EQ(goes(&r, false, iov, 2, 0, IORING_OP_WRITE_FIXED, true), 4096);
		iov[0].iov_base = p + 20001;
		iov[1].iov_base = p + 30001;
		EXPECT_EQ(goes(&r, true, iov, 2, 0, IORING_OP_READ_FIXED, true), 4096);
		EXPECT(!memcmp(p + 1, p + 20001, 4000) && !memcmp(p + 10001, p + 30001, 96));
		iov[0] = (struct iovec){ p + 1, 512 };
		EXPECT_EQ(goes(&r, false, iov, 1, 0, IORING_OP_WRITE_FIXED, true), 512);
		iov[0] = (struct iovec){ p + 512, 4096 }; /* aligned */
		EXPECT_EQ(goes(&r, false, iov, 1, 0, IORING_OP_WRITE, false), 4096);
		iov[0] = (struct iovec){ p, 4095 }; /* by its length only, which tmpfs takes */
		const ssize_t taken = pwrite(r.fd, p, 4095, 0) < 0 ? -errno : 4095;
		iov[1] = (struct iovec){ p + 4096, 8193 - 4095 };
		EXPECT_EQ(prepare(&r, io_uring_get_sqe(&r.ring), false, iov, 2, 0, &m), -EMSGSIZE);
		EXPECT_EQ(result(&r, 0), 0);
		EXPECT_EQ(prepare(&r, io_uring_get_sqe(&r.ring), false, iov, 1, 0, &m), 0);
		EXPECT_EQ(result(&r, 0), taken);
		EXPECT_EQ(prepare(&r, io_uring_get_sqe(&r.ring), false, iov, 1, 0, &second), -EAGAIN);
		EXPECT_EQ(result(&r, 0), 0);
		EXPECT_EQ(hugepin_sg_uring_done(r.s, &m, (int)taken), 0);
	} else {
		snprintf(t_skip_reason, sizeof t_skip_reason, "no O_DIRECT in /var/tmp");
	}
	rig_close(&r);
	munmap(p, 65536);
}

TEST(without_a_copy_left_short_pieces_are_vectored)
{
	struct hugepin_sg_uring_attr attr = { .size = sizeof attr, .copies = 2 };
	struct hugepin_sg_uring_message m[3];
	struct rig r;
	struct iovec iov[2];
	char p[400];

	if (!rig_open(&r, &attr, 0))
		return;
	lay(iov, 2, p, 200, 10);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(prepare(&r, io_uring_get_sqe(&r.ring), false, iov, 2, 0, &m[i]), 0);
	EXPECT(m[0].copy && m[1].copy && m[0].copy != m[1].copy && !m[2].copy);
	EXPECT_EQ(hugepin_sg_uring_close(r.s), -EBUSY);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(hugepin_sg_uring_done(r.s, &m[i], result(&r, 0)), 0);
	for (int i = 0; i < 5; i++)
		EXPECT_EQ(goes(&r, false, iov, 2, 0, IORING_OP_WRITE_FIXED, true), 20);
	rig_close(&r);
}

TEST(a_message_is_pinned_until_it_is_done)
{
	struct hugepin_sg_uring_message m;
	struct hugepin_pin pin;
	struct rig r;
	struct iovec iov;
	char *p;

	if (!rig_open(&r, NULL, 0))
		return;
	p = hugepin_malloc(MIB);
	memset(p, 1, MIB);
	iov = (struct iovec){ p, 65536 };
	EXPECT_EQ(hugepin_pin(r.domain, p, MIB, 0, &pin), 0);
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r.ring);
	EXPECT_EQ(prepare(&r, sqe, false, &iov, 1, 0, &m), 0);
	EXPECT_EQ(sqe->buf_index, pin.lkey);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	struct hugepin_sg_uring_message moved = m; /* the caller may */
	m = (struct hugepin_sg_uring_message){ 0 };
	EXPECT_EQ(moved.pin.lkey, sqe->buf_index);
	EXPECT_EQ(result(&r, 0), 65536);
	EXPECT(moved.pin.ref != 0);
	EXPECT_EQ(hugepin_sg_uring_done(r.s, &moved, 65536), 0);
	EXPECT(moved.pin.ref == 0);
	rig_close(&r);
	hugepin_free(p);
}

TEST(flags_links_and_files_are_the_callers)
{
	struct hugepin_sg_uring_message m[2];
	struct rig r;
	struct iovec iov[2];
	char p[400], q[400] = "";

	if (!rig_open(&r, NULL, 0))
		return;
	EXPECT_EQ(io_uring_register_files(&r.ring, &r.fd, 1), 0);
	fill(p, sizeof p, 6);
	for (int i = 0; i < 2; i++) { /* what is read has been written: the second follows the first */
		struct io_uring_sqe *sqe = io_uring_get_sqe(&r.ring);

		lay(iov, 2, i ? q : p, 200, 100);
		EXPECT_EQ(i ? hugepin_sg_uring_read(r.s, sqe, 0, iov, 2, 0, &m[1]) : hugepin_sg_uring_write(r.s, sqe, 0, iov, 2, 0, &m[0]), 0);
		sqe->flags |= IOSQE_FIXED_FILE | (i ? 0 : IOSQE_IO_LINK);
		sqe->user_data = (unsigned)i;
	}
	EXPECT_EQ(hugepin_sg_uring_done(r.s, &m[0], result(&r, 0)), 0);
	EXPECT_EQ(hugepin_sg_uring_done(r.s, &m[1], result(&r, 1)), 0);
	EXPECT(!memcmp(p, q, 100) && !memcmp(p + 200, q + 200, 100));
	rig_close(&r);
}

TEST(without_a_domain_all_goes_by_address)
{
	struct rig r;
	struct iovec iov[2];
	char p[400];

	if (!rig_open(&r, NULL, 0))
		return;
	hugepin_sg_uring *s = r.s;
	EXPECT_EQ(hugepin_sg_uring_open(NULL, NULL, &r.s), 0);
	lay(iov, 2, p, 200, 100);
	EXPECT_EQ(goes(&r, false, iov, 2, 0, IORING_OP_WRITE, true), 200);
	EXPECT_EQ(goes(&r, true, iov, 1, 0, IORING_OP_READ, false), 100);
	EXPECT_EQ(hugepin_sg_uring_close(r.s), 0);
	r.s = s;
	rig_close(&r);
}

TEST(copies_that_cannot_be_pinned_go_by_address)
{
	struct rig r;
	struct iovec iov[2];
	char p[400], q[400] = "";

	if (!rig_open(&r, NULL, 4096)) /* the budget, in bytes */
		return;
	fill(p, sizeof p, 7);
	lay(iov, 2, p, 200, 100);
	EXPECT_EQ(goes(&r, false, iov, 2, 0, IORING_OP_WRITE, true), 200);
	lay(iov, 2, q, 200, 100);
	EXPECT_EQ(goes(&r, true, iov, 2, 0, IORING_OP_READ, true), 200);
	EXPECT(!memcmp(p, q, 100) && !memcmp(p + 200, q + 200, 100));
	rig_close(&r);
}

TEST(what_cannot_be_done_leaves_an_entry_that_does_nothing)
{
	struct hugepin_sg_uring_message m;
	struct rig r;
	char p[100];
	struct iovec two[2] = { { p, 0 }, { p, 0 } }, null[2] = { { p, 1 }, { NULL, 1 } }, longest = { p, (size_t)1 << 31 }, good = { p, 10 },
		     wraps[2] = { { p, 1 }, { (void *)(UINTPTR_MAX - 10), 20 } };
	static struct iovec many[1025];
	struct { const struct iovec *iov; int n, err; } const bad[] = {
		{ NULL, 1, -EINVAL }, { two, 2, -EINVAL }, { two, 0, -EINVAL }, { two, -1, -EINVAL }, { many, 1025, -EINVAL },
		{ null, 2, -EINVAL }, { wraps, 2, -EINVAL }, { &longest, 1, -EOVERFLOW },
	};

	if (!rig_open(&r, NULL, 0))
		return;
	many[0] = good;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&r.ring);
		io_uring_prep_write(sqe, -1, p, 1, 0); /* what was there before */
		sqe->user_data = 9;
		EXPECT_EQ(prepare(&r, sqe, i % 2, bad[i].iov, bad[i].n, 0, &m), bad[i].err);
		EXPECT_EQ(sqe->opcode, IORING_OP_NOP);
		EXPECT_EQ(result(&r, 0), 0);
	}
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r.ring);
	EXPECT_EQ(hugepin_sg_uring_write(NULL, sqe, r.fd, &good, 1, 0, &m), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_write(r.s, sqe, r.fd, &good, 1, 0, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_write(r.s, NULL, r.fd, &good, 1, 0, &m), -EINVAL);
	EXPECT_EQ(result(&r, 0), 0);
	EXPECT_EQ(goes(&r, false, many, 1024, 0, IORING_OP_WRITE, false), 10); /* empty pieces do not count */
	EXPECT_EQ(hugepin_sg_uring_done(NULL, &m, 0), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_done(r.s, NULL, 0), -EINVAL);
	rig_close(&r);
}

TEST(what_cannot_be_opened_is_refused)
{
	const struct hugepin_sg_uring_attr good = { .size = sizeof good };
	struct hugepin_sg_uring_attr bad[] = { good, good, good, good, good };
	hugepin_sg_uring *s;

	bad[0].size--;
	bad[1].copies = 4097;
	bad[2].copy_len = (1 << 20) + 1;
	bad[3].align = 48;
	bad[4].align = 8192;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		EXPECT_EQ(hugepin_sg_uring_open(NULL, &bad[i], &s), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_open(NULL, NULL, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_close(NULL), -EINVAL);
}

/* Pieces at random: what one message writes another reads. */
TEST(random_messages_arrive)
{
	struct rig r;
	struct hugepin_pin pin;
	struct iovec iov[40];
	unsigned seed = 1;
	char *p, *before = malloc(MIB);

	if (!rig_open(&r, NULL, 0))
		return;
	p = hugepin_malloc(MIB);
	EXPECT_EQ(hugepin_pin(r.domain, p, MIB, 0, &pin), 0);
	for (int round = 0; round < 2000; round++) {
		struct hugepin_sg_uring_message m;
		const int n = 1 + rand_r(&seed) % 40, most = 1 << rand_r(&seed) % 13;
		const bool read = rand_r(&seed) % 2, joined = rand_r(&seed) % 4 == 0;
		size_t at = 0;
		int bytes = 0;

		for (int i = 0; i < n; i++) {
			iov[i] = (struct iovec){ p + at, (size_t)(rand_r(&seed) % most) };
			at += iov[i].iov_len + (joined ? 0 : (size_t)(rand_r(&seed) % 3 * 100));
			bytes += (int)iov[i].iov_len;
		}
		if (!bytes)
			continue;
		fill(p, at, (unsigned)round);
		memcpy(before, p, at);
		for (int way = read; way >= 0; way--) { /* a read has something to read */
			struct io_uring_sqe *sqe = io_uring_get_sqe(&r.ring);
			const int res = prepare(&r, sqe, read && !way, iov, n, 0, &m) ? -EIO : result(&r, 0);

			EXPECT_EQ(res, bytes);
			EXPECT_EQ(hugepin_sg_uring_done(r.s, &m, res), 0);
			if (way)
				memset(p, 0, at);
		}
		if (!EXPECT(has(&r, iov, n, 0)))
			break;
		for (int i = 0; i < n; i++)
			EXPECT(!memcmp(iov[i].iov_base, before + ((char *)iov[i].iov_base - p), iov[i].iov_len));
	}
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	rig_close(&r);
	hugepin_free(p);
	free(before);
}

/* A thread that may not change the ring: what has no copy there yet goes by address. */
static void *write_elsewhere(void *arg)
{
	struct rig *r = arg;
	struct iovec iov = { malloc(65536), 65536 };
	struct hugepin_pin pin;
	struct hugepin_sg_uring_message m;
	struct io_uring_sqe sqe;

	fill(iov.iov_base, 65536, 9);
	EXPECT_EQ(hugepin_pin(r->domain, iov.iov_base, 65536, 0, &pin), 0);
	EXPECT_EQ(hugepin_sg_uring_write(r->s, &sqe, r->fd, &iov, 1, 0, &m), 0);
	EXPECT_EQ(sqe.opcode, IORING_OP_WRITE);
	EXPECT_EQ(hugepin_sg_uring_done(r->s, &m, -ECANCELED), 0);
	EXPECT_EQ(hugepin_unpin(r->domain, &pin), 0);
	free(iov.iov_base);
	return NULL;
}

TEST(messages_of_an_attached_ring_use_its_copies)
{
	struct hugepin_sg_uring_attr attr = { .size = sizeof attr };
	struct rig r = { .fd = memfd_create("messages", MFD_CLOEXEC) };
	struct hugepin_pin pin;
	struct iovec whole, iov[4];
	pthread_t other;
	char *p;
	int err = io_uring_queue_init(16, &r.ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);

	if (err == -ENOSYS || err == -EPERM || err == -EINVAL)
		SKIP("no io_uring with SINGLE_ISSUER and DEFER_TASKRUN: %s", strerror(-err));
	EXPECT_EQ(hugepin_uring_open_fd(-1, 0, 0, TABLE, NULL, &r.domain), 0);
	err = hugepin_uring_attach(r.domain, &r.ring, &attr.ring);
	if (err == -EOPNOTSUPP)
		SKIP("the kernel does not clone single slots");
	EXPECT_EQ(err, 0);
	EXPECT_EQ(hugepin_sg_uring_open(NULL, &attr, &r.s), -EINVAL);
	EXPECT_EQ(hugepin_sg_uring_open(r.domain, &attr, &r.s), 0);
	p = hugepin_malloc(MIB);
	fill(p, MIB, 4);
	whole = (struct iovec){ p, MIB };
	EXPECT_EQ(hugepin_pin(r.domain, p, MIB, 0, &pin), 0);
	EXPECT_EQ(goes(&r, false, &whole, 1, 0, IORING_OP_WRITE_FIXED, false), MIB);
	EXPECT(has(&r, &whole, 1, 0));
	const int bytes = lay(iov, 4, p, 2000, 300);
	EXPECT_EQ(goes(&r, false, iov, 4, 100, IORING_OP_WRITE_FIXED, true), bytes); /* the copies' slot, too */
	EXPECT(has(&r, iov, 4, 100));
	EXPECT_EQ(pthread_create(&other, NULL, write_elsewhere, &r), 0);
	pthread_join(other, NULL);
	EXPECT_EQ(hugepin_unpin(r.domain, &pin), 0);
	EXPECT_EQ(hugepin_sg_uring_close(r.s), 0);
	EXPECT_EQ(hugepin_ring_detach(attr.ring), 0);
	EXPECT_EQ(hugepin_domain_close(r.domain), 0);
	io_uring_queue_exit(&r.ring);
	close(r.fd);
	hugepin_free(p);
}

T_MAIN
