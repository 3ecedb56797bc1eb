/*
 * Frames: what is written is read, every byte of what is not data is checked, and the layout is the documented one.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "hugepin.h"
#include "tests/any.h"
#include "tests/t.h"

enum { RECORDS = 12, SIZE = 4096 };

static unsigned char source[SIZE], memory[SIZE + 8], target[SIZE];
static struct iovec record[RECORDS];
static uint64_t tag[RECORDS];

/* Some records, which may overlap. */
static int random_records(void)
{
	int n = (int)any(RECORDS + 1);

	for (size_t i = 0; i < SIZE; i++)
		source[i] = (unsigned char)any(256);
	for (int i = 0; i < n; i++) {
		size_t len = any(3) ? any(20) : any(5) ? any(200) : 0;

		record[i] = (struct iovec){ len ? source + any(SIZE - len) : NULL, len };
		tag[i] = (uint64_t)any(1u << 31) << 33 ^ any(1u << 31);
	}
	return n;
}

static size_t bytes_of(int n)
{
	size_t bytes = 0;

	for (int i = 0; i < n; i++)
		bytes += record[i].iov_len;
	return bytes;
}

/* The frame reads as the n records. */
static bool reads(const void *frame, size_t len, int n, bool tagged)
{
	struct hugepin_sg_rx rx;
	struct iovec got;
	uint64_t t = 1;
	const unsigned char *at = (const unsigned char *)frame + len - bytes_of(n);

	if (!EXPECT_EQ(hugepin_sg_iter(&rx, frame, len), n))
		return false;
	EXPECT(rx.count == (uint32_t)n && rx.part == 0 && rx.parts == 1);
	for (int i = 0; i < n; i++) {
		EXPECT_EQ(hugepin_sg_next(&rx, &got, i % 2 ? &t : NULL), 1);
		EXPECT(got.iov_base == at && got.iov_len == record[i].iov_len);
		EXPECT(!got.iov_len || !memcmp(got.iov_base, record[i].iov_base, got.iov_len));
		EXPECT(i % 2 == 0 || t == (tagged ? tag[i] : 0));
		at += got.iov_len;
	}
	EXPECT_EQ(hugepin_sg_next(&rx, &got, &t), 0);
	EXPECT_EQ(hugepin_sg_next(&rx, &got, &t), 0);
	return true;
}

TEST(records_arrive_as_they_were_written_at_any_address)
{
	for (int round = 0; round < 5000; round++) {
		int n = random_records();
		bool tagged = any(2);
		unsigned char *frame = memory + any(8);
		size_t total = HUGEPIN_SG_TABLE(n) + bytes_of(n);
		size_t len[RECORDS];

		memset(memory, 0x5a, sizeof memory);
		EXPECT_EQ(hugepin_sg_frame(frame, total, record, tagged ? tag : NULL, n), total);
		EXPECT(frame[total] == 0x5a);
		if (!reads(frame, total, n, tagged))
			return;
		/* The table alone is the same, and records may follow it. */
		memcpy(target, frame, total);
		memset(frame, 0x5a, HUGEPIN_SG_TABLE(n));
		for (int i = 0; i < n; i++)
			len[i] = record[i].iov_len;
		EXPECT_EQ(hugepin_sg_table(frame, HUGEPIN_SG_TABLE(n), len, tagged ? tag : NULL, n, 0, 1), HUGEPIN_SG_TABLE(n));
		EXPECT(!memcmp(target, frame, total));
		/* A byte less of room is too little. */
		memset(memory, 0x5a, sizeof memory);
		EXPECT_EQ(hugepin_sg_frame(frame, total - 1, record, tag, n), -EMSGSIZE);
		EXPECT_EQ(hugepin_sg_table(frame, HUGEPIN_SG_TABLE(n) - 1, len, tag, n, 0, 1), -EMSGSIZE);
		for (size_t i = 0; i < sizeof memory; i++)
			if (!EXPECT_EQ(memory[i], 0x5a))
				return;
	}
}

TEST(the_bytes_are_those_of_the_page)
{
	static const unsigned char expected[] = {
		'H', 'p', 1, 0, 3, 0, 0, 0, 69, 0, 0, 0, 0, 0, 0, 0, /* magic, version, count, total */
		0, 0, 1, 0, 0, 0, 0, 0, /* part, parts */
		2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, /* lengths, and 0 to a multiple of 8 */
		8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, /* tags */
		'a', 'b', 'c', 'd', 'e', /* data */
	};
	struct iovec iov[] = { { (void *)"ab", 2 }, { NULL, 0 }, { (void *)"cde", 3 } };
	const uint64_t tags[] = { 0x0102030405060708, 0, UINT64_MAX };

	EXPECT_EQ(hugepin_sg_frame(memory, SIZE, iov, tags, 3), sizeof expected);
	EXPECT(!memcmp(memory, expected, sizeof expected));
}

TEST(no_byte_of_header_lengths_or_padding_may_differ)
{
	struct hugepin_sg_rx rx, before;

	memset(&rx, 0x5a, sizeof rx);
	before = rx;
	for (int round = 0; round < 60; round++) {
		int n = random_records();
		size_t lengths_end = HUGEPIN_SG_HEADER + (size_t)(n + 1) / 2 * 8;
		ssize_t total = hugepin_sg_frame(memory, SIZE, record, tag, n);

		for (size_t i = 0; i < lengths_end; i++)
			for (int bits = 1; bits < 256; bits++) {
				memory[i] ^= (unsigned char)bits;
				/* Part 0 of several is right for one record. */
				if (n == 1 && (i == 18 || i == 19))
					EXPECT_EQ(hugepin_sg_iter(&rx, memory, (size_t)total), i == 18 && bits == 1 ? -EILSEQ : 1);
				else if (!EXPECT_EQ(hugepin_sg_iter(&rx, memory, (size_t)total), -EILSEQ))
					printf("# byte %zu of %d records\n", i, n);
				EXPECT(n == 1 || !memcmp(&rx, &before, sizeof rx));
				memory[i] ^= (unsigned char)bits;
				if (n == 1)
					rx = before;
			}
		for (size_t len = 0; len < (size_t)total + 8; len++)
			if (len != (size_t)total)
				EXPECT_EQ(hugepin_sg_iter(&rx, memory, len), -EILSEQ);
		EXPECT_EQ(hugepin_sg_iter(&rx, memory, (size_t)total), n);
		rx = before;
	}
}

/* The four bytes at `at`. */
static void set32(size_t at, uint32_t x)
{
	for (int i = 0; i < 4; i++)
		memory[at + (size_t)i] = (unsigned char)(x >> 8 * i);
}

TEST(lengths_that_wrap_are_no_frame)
{
	struct iovec iov[] = { { source, 40 }, { source, 0 }, { source, 40 }, { source, 0 } };
	struct hugepin_sg_rx rx;
	ssize_t total = hugepin_sg_frame(memory, SIZE, iov, NULL, 4);

	EXPECT_EQ(hugepin_sg_iter(&rx, memory, (size_t)total), 4);
	/* Their sum is 80 modulo 2^32. */
	set32(24, UINT32_MAX);
	set32(28, 41);
	EXPECT_EQ(hugepin_sg_iter(&rx, memory, (size_t)total), -EILSEQ);
	/* A table of 2^30 records has more bytes than its length modulo 2^32. */
	for (uint32_t count = 1u << 28; count; count <<= 1) {
		set32(4, count);
		EXPECT_EQ(hugepin_sg_iter(&rx, memory, (size_t)total), -EILSEQ);
		set32(4, count + 2);
		EXPECT_EQ(hugepin_sg_iter(&rx, memory, (size_t)total), -EILSEQ);
	}
	set32(4, UINT32_MAX);
	EXPECT_EQ(hugepin_sg_iter(&rx, memory, (size_t)total), -EILSEQ);
}

/* What the reader of a frame that others change is handed: count records in the frame, each behind the one before. */
static void expect_inside(struct hugepin_sg_rx *rx, size_t len, uint32_t count)
{
	const unsigned char *at = rx->frame + HUGEPIN_SG_TABLE(count), *end = rx->frame + len;
	struct iovec got;
	uint64_t t;

	for (uint32_t i = 0; i < count; i++) {
		EXPECT_EQ(hugepin_sg_next(rx, &got, &t), 1);
		if (!EXPECT(got.iov_base == at && got.iov_len <= (size_t)(end - at)))
			return;
		at += got.iov_len;
	}
	EXPECT_EQ(hugepin_sg_next(rx, &got, &t), 0);
}

TEST(a_frame_that_changes_behind_the_check_hands_out_nothing_outside)
{
	static const uint32_t changed[] = { 0, 1, INT32_MAX, UINT32_MAX };
	struct iovec iov[] = { { source, 40 }, { source, 0 }, { source, 40 } };
	size_t total = (size_t)hugepin_sg_frame(memory, SIZE, iov, NULL, 3);
	struct hugepin_sg_rx rx;

	for (size_t bits = 0; bits < 256; bits++)
		for (size_t early = 0; early < 3; early++) {
			struct iovec got;

			for (size_t i = 0; i < 3; i++)
				set32(HUGEPIN_SG_HEADER + 4 * i, (uint32_t)iov[i].iov_len);
			set32(4, 3);
			EXPECT_EQ(hugepin_sg_iter(&rx, memory, total), 3);
			for (size_t i = 0; i < early; i++)
				EXPECT_EQ(hugepin_sg_next(&rx, &got, NULL), 1);
			for (size_t i = 0; i < 3; i++)
				set32(HUGEPIN_SG_HEADER + 4 * i, changed[bits >> 2 * i & 3]);
			set32(4, changed[bits >> 6]);
			for (size_t i = early; i < 3; i++) {
				EXPECT_EQ(hugepin_sg_next(&rx, &got, NULL), 1);
				EXPECT((unsigned char *)got.iov_base >= memory + HUGEPIN_SG_TABLE(3));
				EXPECT(got.iov_len <= total - (size_t)((unsigned char *)got.iov_base - memory));
			}
			EXPECT_EQ(hugepin_sg_next(&rx, &got, NULL), 0);
		}
}

static _Atomic bool rewriting;

/* A peer that writes: header, lengths, and back. */
static void *rewrite(void *total)
{
	unsigned char was[HUGEPIN_SG_TABLE(RECORDS)];
	volatile unsigned char *frame = memory;

	memcpy(was, memory, sizeof was);
	for (unsigned round = 0; rewriting; round++) {
		const size_t at = HUGEPIN_SG_HEADER + 4 * (round % RECORDS);

		/* The third byte of a length: it is then more than the frame. */
		frame[at + 2] = (unsigned char)(1 + round);
		frame[4] = (unsigned char)round;
		frame[4] = RECORDS;
		frame[at + 2] = was[at + 2];
	}
	return total;
}

TEST(a_frame_that_a_thread_changes_all_the_time_hands_out_nothing_outside)
{
	unsigned char copy[SIZE];
	size_t len[RECORDS], total;
	struct hugepin_sg_rx rx;
	pthread_t peer;
	long read = 0, torn = 0;

#ifdef __SANITIZE_THREAD__
	SKIP("the race is the test");
#endif
	for (int i = 0; i < RECORDS; i++)
		len[i] = 100 + (size_t)i;
	total = HUGEPIN_SG_TABLE(RECORDS);
	hugepin_sg_table(memory, SIZE, len, NULL, RECORDS, 0, 1);
	for (int i = 0; i < RECORDS; i++)
		total += len[i];
	rewriting = true;
	EXPECT_EQ(pthread_create(&peer, NULL, rewrite, NULL), 0);
	for (long i = 0; i < 300000 || !read; i++) {
		struct iovec out = { copy, sizeof copy };
		int n = hugepin_sg_iter(&rx, memory, total);

		if (n < 0) {
			torn++;
			if (i >= 300000) /* the peer waits for a processor in the middle of it */
				sched_yield();
			continue;
		}
		read++;
		EXPECT(n == RECORDS && rx.count == RECORDS);
		expect_inside(&rx, total, RECORDS);
		EXPECT(hugepin_sg_scatter(memory, total, &out, 1) <= (ssize_t)(total - HUGEPIN_SG_TABLE(0)));
	}
	rewriting = false;
	pthread_join(peer, NULL);
	t_print("# %ld frames were read, %ld were seen while they were none\n", read, torn);
}

TEST(a_record_may_come_in_parts)
{
	struct hugepin_sg_rx rx;
	struct iovec got;
	size_t len[] = { 100, 100 };
	uint64_t t;

	for (unsigned part = 0; part < 3; part++) {
		EXPECT_EQ(hugepin_sg_table(memory, SIZE, len, tag, 1, part, 3), HUGEPIN_SG_TABLE(1));
		EXPECT_EQ(hugepin_sg_iter(&rx, memory, HUGEPIN_SG_TABLE(1) + 100), 1);
		EXPECT(rx.part == part && rx.parts == 3);
		EXPECT(hugepin_sg_next(&rx, &got, &t) == 1 && t == tag[0] && got.iov_len == 100);
	}
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, len, tag, 1, UINT16_MAX - 1, UINT16_MAX), HUGEPIN_SG_TABLE(1));
	EXPECT_EQ(hugepin_sg_iter(&rx, memory, HUGEPIN_SG_TABLE(1) + 100), 1);
	EXPECT(rx.part == UINT16_MAX - 1 && rx.parts == UINT16_MAX);
	/* Bytes 16 to 19: no part, a part behind the last, several records in parts. */
	memory[18] = memory[19] = 0;
	EXPECT_EQ(hugepin_sg_iter(&rx, memory, HUGEPIN_SG_TABLE(1) + 100), -EILSEQ);
	memory[16] = memory[18] = 7;
	memory[17] = 0;
	EXPECT_EQ(hugepin_sg_iter(&rx, memory, HUGEPIN_SG_TABLE(1) + 100), -EILSEQ);
	memory[18] = 8;
	EXPECT_EQ(hugepin_sg_iter(&rx, memory, HUGEPIN_SG_TABLE(1) + 100), 1);
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, len, tag, 2, 0, 1), HUGEPIN_SG_TABLE(2));
	memory[18] = 2;
	EXPECT_EQ(hugepin_sg_iter(&rx, memory, HUGEPIN_SG_TABLE(2) + 200), -EILSEQ);
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, len, tag, 0, 0, 1), HUGEPIN_SG_TABLE(0));
	memory[18] = 2;
	EXPECT_EQ(hugepin_sg_iter(&rx, memory, HUGEPIN_SG_TABLE(0)), -EILSEQ);
	memory[18] = 1;
	EXPECT_EQ(hugepin_sg_iter(&rx, memory, HUGEPIN_SG_TABLE(0)), 0);
}

TEST(what_makes_no_frame_is_refused_and_nothing_is_written)
{
	struct iovec iov[] = { { source, 10 }, { source, UINT32_MAX }, { (void *)UINTPTR_MAX, 2 }, { NULL, 1 } };
	size_t len[] = { UINT32_MAX - HUGEPIN_SG_TABLE(2), 1, SIZE_MAX, SIZE_MAX };

	memset(memory, 0x5a, sizeof memory);
	errno = 77;
	EXPECT_EQ(hugepin_sg_frame(memory, SIZE, iov, tag, -1), -EINVAL);
	EXPECT_EQ(hugepin_sg_frame(NULL, SIZE, iov, tag, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_frame(memory, SIZE, NULL, tag, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_frame(memory, SIZE, iov + 2, tag, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_frame(memory, SIZE, iov + 3, tag, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_frame(memory, SIZE_MAX, iov, tag, 2), -EOVERFLOW);
	iov[1].iov_len = UINT32_MAX - HUGEPIN_SG_TABLE(2) - 9;
	EXPECT_EQ(hugepin_sg_frame(memory, SIZE_MAX, iov, tag, 2), -EOVERFLOW);
	EXPECT_EQ(hugepin_sg_frame(memory, SIZE, iov, tag, 2), -EOVERFLOW);
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, len, tag, 2, 0, 1), -EOVERFLOW);
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, len + 2, tag, 2, 0, 1), -EOVERFLOW);
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, len, tag, -1, 0, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_table(NULL, SIZE, len, tag, 1, 0, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, NULL, tag, 1, 0, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, len, tag, 1, 0, 0), -EINVAL);
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, len, tag, 1, 1, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, len, tag, 1, 0, UINT16_MAX + 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, len, tag, 2, 0, 2), -EINVAL);
	EXPECT_EQ(errno, 77);
	for (size_t i = 0; i < sizeof memory; i++)
		if (!EXPECT_EQ(memory[i], 0x5a))
			return;
	len[1] = 0;
	EXPECT_EQ(hugepin_sg_table(memory, SIZE, len, tag, 2, 0, 1), HUGEPIN_SG_TABLE(2));
	EXPECT_EQ(hugepin_sg_iter(NULL, memory, SIZE), -EINVAL);
	EXPECT_EQ(hugepin_sg_iter(&(struct hugepin_sg_rx){ 0 }, NULL, SIZE), -EINVAL);
}

TEST(records_are_scattered_as_one_run_of_bytes)
{
	struct iovec piece[RECORDS];
	unsigned char flat[SIZE], got[SIZE];

	for (int round = 0; round < 5000; round++) {
		int n = random_records();
		size_t bytes = bytes_of(n), at = SIZE, k = 0, room = 0, more = any(2) ? any(10) : 0;
		size_t total = (size_t)hugepin_sg_frame(memory, SIZE, record, tag, n);

		for (int i = 0; i < n; k += record[i++].iov_len)
			if (record[i].iov_len)
				memcpy(flat + k, record[i].iov_base, record[i].iov_len);
		/* Disjoint pieces from the end of memory downwards, some empty; the last takes the rest, and has perhaps more. */
		for (int i = 0; i < RECORDS; i++) {
			size_t len = i == RECORDS - 1 ? bytes - room + more : any(2) ? any(bytes - room + 1) : 0;

			at -= len;
			room += len;
			piece[i] = (struct iovec){ len ? target + at : NULL, len };
		}
		memset(target, 0x5a, sizeof target);
		EXPECT_EQ(hugepin_sg_scatter(memory, total - 1, piece, RECORDS), -EILSEQ);
		if (bytes)
			EXPECT_EQ(hugepin_sg_scatter(memory, total, piece, RECORDS - 1),
				  room - piece[RECORDS - 1].iov_len < bytes ? -EMSGSIZE : (ssize_t)bytes);
		for (size_t i = 0; i < SIZE && room - piece[RECORDS - 1].iov_len < bytes; i++)
			if (!EXPECT_EQ(target[i], 0x5a))
				return;
		EXPECT_EQ(hugepin_sg_scatter(memory, total, piece, RECORDS), bytes);
		k = 0;
		for (int i = 0; i < RECORDS; i++)
			for (size_t b = 0; b < piece[i].iov_len; b++)
				got[k++] = ((unsigned char *)piece[i].iov_base)[b];
		if (!EXPECT(k >= bytes && !memcmp(got, flat, bytes)))
			return;
		for (; k > bytes; k--)
			EXPECT_EQ(got[k - 1], 0x5a);
	}
	piece[0] = (struct iovec){ (void *)UINTPTR_MAX, SIZE };
	EXPECT_EQ(hugepin_sg_scatter(memory, 0, piece, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_scatter(memory, 0, NULL, 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_scatter(memory, 0, NULL, 0), -EILSEQ);
	EXPECT_EQ(hugepin_sg_scatter(memory, 0, piece, -1), -EINVAL);
}

T_MAIN
