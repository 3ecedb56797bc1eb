/* hugepin: many small pieces as one message, without a device. The guides are hugepin_sg(7), hugepin_sg_map(3) and
 * hugepin_sg_frame(3). The rules for all functions stand in hugepin.h, which programs include. */
#ifndef HUGEPIN_SG_H
#define HUGEPIN_SG_H

#include "hugepin_pin.h"

#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Many small pieces as one message. Functions here do not allocate, block (unless a key function does) or keep state:
 * any thread may call them, and several at once. Pieces of length 0 are legal everywhere. Their addresses are not
 * looked at, and adapters never see them.
 * Common errors: -EINVAL (a NULL, n < 0, a piece at NULL, or one that wraps round the end of the address space),
 * -EMSGSIZE (does not fit the room given), -EOVERFLOW (over UINT32_MAX bytes: the most that one work request can say).
 * On failure output arrays may have been written to. */

/* One scatter/gather element, laid out as struct ibv_sge. */
struct hugepin_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

/* The outcome of mapping or filling. */
struct hugepin_sg_info {
	uint64_t bytes; /* bytes of the message */
	uint32_t sges, pins; /* numbers of elements, and of pins to give back */
	uint32_t copied; /* bytes that were copied; no element points into their pieces */
	uint32_t lines; /* cache lines of 64 bytes that the elements touch: the device reads these */
};

/* A key function finds the key of [addr, addr + len) for `access` (HUGEPIN_READ to send). *ret_ is a pin whose [base,
 * base + len) contains addr. The range may begin before addr, and end before or after addr + len. Another call asks for
 * the rest of the piece. A piece that begins in a range already returned with a ref, or in the latest range, is not
 * asked for. ref is 0 where there is nothing to give back. 0, -ENOKEY (not registered), or another error: the caller of
 * the key function then returns that error. A range that does not contain addr makes the caller return -EINVAL.
 * addr NULL: give back the pin *ret_, which an earlier call returned with a ref. The result is ignored. Pins taken
 * before an error are given back this way. */
typedef int (*hugepin_key_fn)(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* The pin cache as a key function. Its argument is a hugepin_domain. It finds registered memory and takes one reference
 * on it, as hugepin_pin does, but registers nothing (-ENOKEY). It returns the whole registration's range. It finds no
 * registration of a peer's own (HUGEPIN_REACH_EXACT). A caller who wants registration passes his own function, which
 * calls hugepin_pin, and hugepin_unpin for addr NULL. -EINVAL, -EOPNOTSUPP, -ESTALE and -ENOMEM as hugepin_pin. Threads
 * as hugepin_pin: a range that is not found at once is looked up under the domain's lock. */
int hugepin_sg_key(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* Make elements for n pieces, in their order. Empty pieces are dropped. A piece is split where its registration ends.
 * Neighbours that lie one after the other under one key are merged. Writes at most `sges` elements and `pins` pins: one
 * pin for each call of the key function that gave a ref, and at most one for each registration that contains its pieces
 * whole. The caller gives ret_pins back (hugepin_unpinv) when the device is done.
 * Returns the number of elements; 0 where all pieces are empty. -EINVAL and -EOVERFLOW come before the key function is
 * called. -EMSGSIZE: more elements or pins are needed; ret_info, if not NULL, then says how many elements, and how many
 * pins at most. -ENOKEY, or the error of the key function. On failure no pin is out. */
int hugepin_sg_map(const struct iovec *iov, int n, unsigned access, hugepin_key_fn key, void *arg,
		   struct hugepin_sge *ret_sges, int sges, struct hugepin_pin *ret_pins, int pins,
		   struct hugepin_sg_info *ret_info);

/* Pieces of a strided layout (MPI_Type_vector): `count` blocks of `block` bytes. Each block starts `stride` bytes after
 * the start of the one before; stride may be negative. Blocks that touch, in this order, become one piece. Returns the
 * number of pieces. -EINVAL, -EMSGSIZE. The total length has no limit. */
int hugepin_sg_strided(const void *base, size_t block, ptrdiff_t stride, size_t count, struct iovec *ret_, int max);

/* Pieces of an indexed layout (MPI_Type_create_hindexed): len[i] bytes at base + off[i], in order. An off[i] below 0,
 * cast to size_t, is in front of base. Empty pieces are dropped. Pieces that touch, in this order, become one. Returns
 * the number of pieces. -EINVAL, -EMSGSIZE. The total length has no limit. */
int hugepin_sg_indexed(const void *base, const size_t *off, const size_t *len, size_t n, struct iovec *ret_, int max);

/* Placement: the number of cache lines of 64 bytes that n pieces touch, each by itself. A device must read these lines.
 * UINT_MAX where there are more. */
unsigned hugepin_sg_lines(const struct iovec *iov, int n);

/* Placement: the offset within a page, a multiple of 64, at which a slot of `len` bytes should begin. Copying n pieces
 * (those that fit) one after the other to this offset meets the fewest loads that wait for a store with the same low
 * twelve bits (4 KiB aliasing). Of equal offsets the result crosses no more pages than it must, and is the lowest. 0
 * for bad arguments. */
size_t hugepin_sg_offset(const struct iovec *iov, int n, size_t len);

/* The frame is a message that describes itself: a header, a length and a tag for each record, then the records' bytes
 * one after the other (hugepin_sg_frame(5); little-endian). A record may be empty. */

#define HUGEPIN_SG_HEADER 24 /* bytes of the header, in front of the lengths */
/* Bytes in front of the records, in a frame of n records. */
#define HUGEPIN_SG_TABLE(n) (HUGEPIN_SG_HEADER + ((size_t)(n) * 4 + 7) / 8 * 8 + (size_t)(n) * 8)

/* Write the frame of n records into slot. Record i has iov[i].iov_len bytes and tag[i] (tag NULL: zeros). The pieces
 * must not lie in the slot. Returns the frame's length; -EINVAL, -EMSGSIZE, -EOVERFLOW. */
ssize_t hugepin_sg_frame(void *slot, size_t size, const struct iovec *iov, const uint64_t *tag, int n);

/* Write only the header and table of such a frame, HUGEPIN_SG_TABLE(n) bytes, for records that follow as elements.
 * part, parts: 0, 1. Or else this is part `part` of `parts` of one record that did not fit a frame, and n is 1. */
ssize_t hugepin_sg_table(void *slot, size_t size, const size_t *len, const uint64_t *tag, int n, unsigned part,
			 unsigned parts);

/* The state of a reader: the caller's memory, which points into the frame. The library owns all members except count,
 * part and parts. */
struct hugepin_sg_rx {
	const unsigned char *frame;
	uint64_t data; /* offset of the next record */
	uint32_t count, next; /* number of records, and index of the next */
	uint16_t part, parts; /* 0, 1: whole records */
	uint32_t len; /* length of the frame */
};

/* Begin to read a frame of `len` bytes, as received. The whole frame is checked first, so later calls cannot fail. The
 * frame need not be aligned or trusted. If others change it meanwhile, lengths and tags may be anything, but records
 * lie in the frame. Returns the number of records. -EILSEQ: not a frame, or not one of that length. */
int hugepin_sg_iter(struct hugepin_sg_rx *ret_, const void *frame, size_t len);

/* Return the next record, which lies in the frame, and its tag (ret_tag may be NULL). 1, or 0: there are no more. */
int hugepin_sg_next(struct hugepin_sg_rx *rx, struct iovec *ret_, uint64_t *ret_tag);

/* Copy the records' bytes over n pieces, one after the other as if they were one. Pieces must not overlap. Returns the
 * number of bytes. -EMSGSIZE: the pieces have less room than the records have bytes, and nothing is written. -EILSEQ,
 * -EINVAL. */
ssize_t hugepin_sg_scatter(const void *frame, size_t len, const struct iovec *iov, int n);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
