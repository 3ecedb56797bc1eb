/*
 * The frame (hugepin_sg_frame(5)): a message that begins with a table of its contents. Numbers are little-endian on any
 * machine. The frame may begin at any address.
 *
 * A frame may come from anyone, so hugepin_sg_iter() checks all of it once against the length that arrived, and refuses
 * the frame if any bit is wrong. A peer that may write to the memory can change the frame during that check, or later,
 * so each number is loaded once, and each length is cut to the rest of the frame.
 */
#include <endian.h>
#include <string.h>

#include "hugepin.h"
#include "sge/iov.h"

/* Offsets in the header. The lengths follow the header, and the tags follow the lengths. */
enum { MAGIC = 0, VERSION = 2, ZERO = 3, COUNT = 4, TOTAL = 8, PART = 16, PARTS = 18, ZEROS = 20 };
#define MAGIC_WORD 0x7048 /* "Hp" */
#define VERSION_BYTE 1

/* Keeps the compiler from loading x from the frame again, because the frame may have changed. */
#define LOADED(x) __asm__("" : "+r"(x))

static void put16(unsigned char *at, uint16_t x)
{
	x = htole16(x);
	memcpy(at, &x, sizeof x);
}

static void put32(unsigned char *at, uint32_t x)
{
	x = htole32(x);
	memcpy(at, &x, sizeof x);
}

static void put64(unsigned char *at, uint64_t x)
{
	x = htole64(x);
	memcpy(at, &x, sizeof x);
}

static uint16_t get16(const unsigned char *at)
{
	uint16_t x;

	memcpy(&x, at, sizeof x);
	LOADED(x);
	return le16toh(x);
}

static uint32_t get32(const unsigned char *at)
{
	uint32_t x;

	memcpy(&x, at, sizeof x);
	LOADED(x);
	return le32toh(x);
}

static uint64_t get64(const unsigned char *at)
{
	uint64_t x;

	memcpy(&x, at, sizeof x);
	LOADED(x);
	return le64toh(x);
}

static size_t length_at(size_t i)
{
	return HUGEPIN_SG_HEADER + i * 4;
}

/* The offset of tag i in a frame of n. */
static size_t tag_at(size_t n, size_t i)
{
	return HUGEPIN_SG_TABLE(n) - (n - i) * 8;
}

/* ------------------------------------------------------------------ writing */

static void put_header(unsigned char *frame, size_t n, uint64_t total, unsigned part, unsigned parts)
{
	put16(frame + MAGIC, MAGIC_WORD);
	frame[VERSION] = VERSION_BYTE;
	frame[ZERO] = 0;
	put32(frame + COUNT, (uint32_t)n);
	put64(frame + TOTAL, total);
	put16(frame + PART, (uint16_t)part);
	put16(frame + PARTS, (uint16_t)parts);
	put32(frame + ZEROS, 0);
	if (n % 2)
		put32(frame + length_at(n), 0);
}

static void put_record(unsigned char *frame, size_t n, size_t i, size_t len, const uint64_t *tag)
{
	put32(frame + length_at(i), (uint32_t)len);
	put64(frame + tag_at(n, i), tag ? tag[i] : 0);
}

ssize_t hugepin_sg_frame(void *slot, size_t size, const struct iovec *iov, const uint64_t *tag, int n)
{
	unsigned char *frame = slot, *data;
	uint64_t total;
	int err = hp_iov_bytes(iov, n, &total);

	if (err || !slot)
		return -EINVAL;
	total += HUGEPIN_SG_TABLE(n);
	if (total > UINT32_MAX)
		return -EOVERFLOW;
	if (total > size)
		return -EMSGSIZE;
	put_header(frame, (size_t)n, total, 0, 1);
	data = frame + HUGEPIN_SG_TABLE(n);
	for (int i = 0; i < n; i++) {
		put_record(frame, (size_t)n, (size_t)i, iov[i].iov_len, tag);
		if (iov[i].iov_len)
			memcpy(data, iov[i].iov_base, iov[i].iov_len);
		data += iov[i].iov_len;
	}
	return (ssize_t)total;
}

ssize_t hugepin_sg_table(void *slot, size_t size, const size_t *len, const uint64_t *tag, int n, unsigned part,
			 unsigned parts)
{
	uint64_t total;

	if (!slot || n < 0 || (n && !len) || part >= parts || parts > UINT16_MAX || (parts > 1 && n != 1))
		return -EINVAL;
	total = HUGEPIN_SG_TABLE(n);
	for (int i = 0; i < n; i++)
		total += HP_MIN(len[i], UINT64_C(1) << 32);
	if (total > UINT32_MAX)
		return -EOVERFLOW;
	if (HUGEPIN_SG_TABLE(n) > size)
		return -EMSGSIZE;
	put_header(slot, (size_t)n, total, part, parts);
	for (int i = 0; i < n; i++)
		put_record(slot, (size_t)n, (size_t)i, len[i], tag);
	return (ssize_t)HUGEPIN_SG_TABLE(n);
}

/* ------------------------------------------------------------------ reading */

int hugepin_sg_iter(struct hugepin_sg_rx *ret_, const void *frame_, size_t len)
{
	const unsigned char *frame = frame_;
	uint64_t bytes = 0;
	uint32_t count;
	uint16_t part, parts;

	if (!ret_ || !frame)
		return -EINVAL;
	if (len < HUGEPIN_SG_HEADER || len > UINT32_MAX)
		return -EILSEQ;
	count = get32(frame + COUNT);
	part = get16(frame + PART);
	parts = get16(frame + PARTS);
	if (get16(frame + MAGIC) != MAGIC_WORD || frame[VERSION] != VERSION_BYTE || frame[ZERO] ||
	    get32(frame + ZEROS) || get64(frame + TOTAL) != len || part >= parts || (parts > 1 && count != 1))
		return -EILSEQ;
	/* These sums of 64 bits cannot wrap. */
	if (HUGEPIN_SG_TABLE(count) > len || (count % 2 && get32(frame + length_at(count))))
		return -EILSEQ;
	for (uint32_t i = 0; i < count; i++)
		bytes += get32(frame + length_at(i));
	if (bytes != len - HUGEPIN_SG_TABLE(count))
		return -EILSEQ;
	*ret_ = (struct hugepin_sg_rx){ .frame = frame, .data = HUGEPIN_SG_TABLE(count), .count = count, .part = part,
					.parts = parts, .len = (uint32_t)len };
	return (int)count;
}

int hugepin_sg_next(struct hugepin_sg_rx *rx, struct iovec *ret_, uint64_t *ret_tag)
{
	uint32_t len;

	if (rx->next == rx->count)
		return 0;
	len = get32(rx->frame + length_at(rx->next));
	ret_->iov_base = (void *)(rx->frame + rx->data);
	ret_->iov_len = HP_MIN(len, rx->len - rx->data); /* the frame may have changed since len was checked */
	if (ret_tag)
		*ret_tag = get64(rx->frame + tag_at(rx->count, rx->next));
	rx->data += ret_->iov_len;
	rx->next++;
	return 1;
}

ssize_t hugepin_sg_scatter(const void *frame, size_t len, const struct iovec *iov, int n)
{
	struct hugepin_sg_rx rx;
	uint64_t room, left;
	const unsigned char *data;
	int err = hp_iov_bytes(iov, n, &room);

	if (!err)
		err = hugepin_sg_iter(&rx, frame, len);
	if (err < 0)
		return err;
	data = rx.frame + rx.data;
	left = len - rx.data;
	if (left > room)
		return -EMSGSIZE;
	for (int i = 0; left; i++) {
		size_t piece = HP_MIN(iov[i].iov_len, left);

		if (piece)
			memcpy(iov[i].iov_base, data, piece);
		data += piece;
		left -= piece;
	}
	return (ssize_t)(len - rx.data);
}
