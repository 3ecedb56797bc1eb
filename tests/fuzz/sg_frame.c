/* link: sge/frame.c */
/*
 * Fuzzes the reader of frames: it reads nothing outside, of a frame that changes meanwhile either, and says what a decoder says
 * that goes byte by byte. The first byte
 * says what is put right beforehand, so that some get far, and how a frame is cut into pieces; the rest is the frame.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hugepin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t number(const uint8_t *at, int bytes)
{
	return bytes ? number(at + 1, bytes - 1) << 8 | *at : 0;
}

/* Records of a frame, or -1. */
static int64_t decode(const uint8_t *f, size_t len)
{
	unsigned __int128 sum;
	uint64_t n, table;

	if (len < 24 || f[0] != 'H' || f[1] != 'p' || f[2] != 1 || f[3] || number(f + 8, 8) != len || number(f + 20, 4))
		return -1;
	n = number(f + 4, 4);
	table = 24 + (n + n % 2) * 4 + n * 8;
	if (number(f + 16, 2) >= number(f + 18, 2) || (number(f + 18, 2) > 1 && n != 1) || table > len)
		return -1;
	sum = table;
	for (uint64_t i = 0; i < n; i++)
		sum += number(f + 24 + i * 4, 4);
	return sum == len && (n % 2 == 0 || !number(f + 24 + n * 4, 4)) ? (int64_t)n : -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct hugepin_sg_rx rx;
	struct iovec record, piece[4];
	uint8_t *frame, *copy;
	uint64_t tag;
	int64_t n;
	size_t len, at, bytes, cut;
	unsigned how;

	if (size < 1)
		return 0;
	how = data[0];
	len = size - 1;
	frame = malloc(len + how % 2); /* at odd addresses, too */
	assert(frame);
	frame += how % 2;
	memcpy(frame, data + 1, len);
	if (how & 2 && len >= 24) {
		memcpy(frame, "Hp\1", 4);
		for (int i = 0; i < 8; i++)
			frame[8 + i] = (uint8_t)(len >> 8 * i);
		memset(frame + 20, 0, 4);
	}
	n = decode(frame, len);
	assert(hugepin_sg_iter(&rx, frame, len) == (n < 0 ? -EILSEQ : n));
	if (n >= 0) {
		assert(rx.count == n && rx.part == number(frame + 16, 2) && rx.parts == number(frame + 18, 2));
		at = len;
		for (int64_t i = 0; i < n; i++)
			at -= number(frame + 24 + i * 4, 4);
		bytes = len - at;
		copy = malloc(bytes ? bytes : 1);
		assert(copy);
		cut = bytes * (how >> 2) / 64;
		piece[0] = (struct iovec){ copy, cut / 2 };
		piece[1] = (struct iovec){ NULL, 0 };
		piece[2] = (struct iovec){ copy + cut / 2, cut - cut / 2 };
		piece[3] = (struct iovec){ copy + cut, bytes - cut };
		if (bytes - cut)
			assert(hugepin_sg_scatter(frame, len, piece, 3) == -EMSGSIZE);
		assert(hugepin_sg_scatter(frame, len, piece, 4) == (ssize_t)bytes && !memcmp(copy, frame + at, bytes));
		free(copy);
		for (int64_t i = 0; i < n; i++) {
			assert(hugepin_sg_next(&rx, &record, &tag) == 1);
			assert(record.iov_base == frame + at && record.iov_len == number(frame + 24 + i * 4, 4));
			assert(tag == number(frame + 24 + (n + n % 2) * 4 + i * 8, 8));
			at += record.iov_len;
		}
		assert(hugepin_sg_next(&rx, &record, &tag) == 0 && at == len);
		/* A peer writes over the header and the table, before each record another byte. */
		at = len - bytes;
		assert(hugepin_sg_iter(&rx, frame, len) == n);
		for (int64_t i = 0; i < n; i++) {
			for (size_t k = 0; k < HUGEPIN_SG_TABLE(n); k++)
				frame[k] = (uint8_t)(data[1 + (k + (size_t)i * 7) % len] + how);
			assert(hugepin_sg_next(&rx, &record, &tag) == 1);
			assert(record.iov_base == frame + at && record.iov_len <= len - at);
			at += record.iov_len;
		}
		assert(hugepin_sg_next(&rx, &record, &tag) == 0 && at <= len);
	} else {
		assert(hugepin_sg_scatter(frame, len, NULL, 0) == -EILSEQ);
	}
	free(frame - how % 2);
	return 0;
}
