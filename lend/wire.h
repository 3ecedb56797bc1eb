/*
 * The messages between lends, as bytes: little-endian, of a fixed layout. Messages between two peers arrive once and in
 * order. The protocol is that of Firehose (Bonachea and Bell 2003, "Firehose: implementation details") with numbers by
 * which a message that arrives twice is recognised, and with WANT and RECALL, by which the owner of the memory asks for
 * keys back. Pure: no state, any thread.
 *
 *	byte 0      version, 1
 *	byte 1      type
 *	byte 2      n, the number of refs
 *	byte 3      flags
 *	bytes 4-7   number: of the ASK, in its answer too; of the WANT, in its answer too; else 0
 *
 *	ASK         addr u64, len u64, carried u32, 0 u32, n refs u64 (given back), then the carried bytes
 *	LEND        ref u64, base u64, len u64, share u64, rkey u32, 0 u32
 *	NO          error u32, 0 u32, share u64
 *	RECALL      n refs: give these keys back, each when it has no uses
 *	WANT        bytes u64: give back keys of so many bytes, those that were not used for longest and have no uses.
 *	            0: only answer, after the RECALLs before
 *	RETURN      n refs that are given back. With a number it is a part of the answer to that WANT: the last part has
 *	            no flag MORE, and it alone may have no refs. Without a number it has refs and no flag
 */
#ifndef HP_LEND_WIRE_H
#define HP_LEND_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hp_wire_type { HP_WIRE_ASK = 1, HP_WIRE_LEND, HP_WIRE_NO, HP_WIRE_RECALL, HP_WIRE_WANT, HP_WIRE_RETURN };
enum {
	HP_WIRE_VERSION = 1,
	HP_WIRE_REFS_MAX = 16,
	HP_WIRE_MORE = 1, /* flag of RETURN */
	HP_WIRE_CARRIED = 1, /* flag of LEND: the bytes that the ASK carried are written */
	HP_WIRE_ERRNO_MAX = 4095,
	HP_WIRE_HEADER = 8,
	HP_WIRE_ASK_FIXED = HP_WIRE_HEADER + 24,
};
#define HP_WIRE_CARRY_MAX ((size_t)1 << 20)

/* A message. Members that its type does not have are 0. */
struct hp_wire {
	uint8_t type, n, flags;
	uint32_t number, rkey, error, carried;
	uint64_t addr, len; /* of LEND: base and len */
	uint64_t ref, share, bytes;
	const void *carry; /* points into the message that was read; to write: the bytes that follow */
	uint64_t refs[HP_WIRE_REFS_MAX];
};

/* Read a message of foreign origin. 0 and *ret_; -EILSEQ: no message. Checked here: refs differ from each other and are
 * not 0, ranges are not empty and do not wrap, required numbers are not 0. The caller checks the message against the
 * keys and questions that are out. */
int hp_wire_read(struct hp_wire *ret_, const void *msg, size_t len);

/* Write a message to buf, which has room for HUGEPIN_LEND_MESSAGE_MAX and the carried bytes. Returns its length. */
size_t hp_wire_write(void *buf, const struct hp_wire *w);

#endif
