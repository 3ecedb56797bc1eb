/*
 * One message: its elements, the requests that carry them, and what their results mean. Pure: no ring, no pins, no
 * clock. message.c has the rules.
 */
#ifndef HP_URING_MESSAGE_H
#define HP_URING_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "uring/plan.h"

/* One request: neighbouring elements that go by the same index, or by address. */
struct hp_uring_part {
	uint32_t first, count; /* elements */
	uint32_t index;
	uint64_t bytes;
	int32_t res; /* valid once the request has completed */
};

enum hp_uring_verdict {
	HP_FINISHED, /* err and done say how */
	HP_NEXT, /* all went through that was linked; the parts are those of the rest */
	HP_CONTINUES, /* a transfer was short; the same */
	HP_REFUSED /* as HP_CONTINUES, but now all goes by address */
};

struct hp_message {
	const struct hugepin_sg_uring_caps *caps;
	unsigned verb;
	struct hugepin_sg_uring_plan plan;
	struct iovec *pieces; /* as the caller gave them, for copies out of the slot */
	uint32_t *indexes; /* of the pieces */
	uint32_t pieces_count;
	struct iovec *elements; /* what is left to transfer */
	uint32_t *by; /* the indexes of the elements */
	uint32_t elements_count;
	struct hp_uring_part *parts;
	uint32_t parts_count;
	uint32_t linked; /* the first parts, which go together */
	char *slot;
	uint64_t done; /* bytes */
	int err, refused_by; /* refused_by: the error because of which the rest goes by address */
};

/* Make elements and parts of the pieces, as the plan says, and copy to the slot what is written. */
void hp_message_begin(struct hp_message *m);

/* All linked parts have completed. Decide what now. cancelled: the caller wants no more. */
enum hp_uring_verdict hp_message_results(struct hp_message *m, bool cancelled);

/* A finished read: copy what arrived in the slot to its pieces. */
void hp_message_end(struct hp_message *m);

#endif
