/*
 * Flow control of a queue with HUGEPIN_SGQ_CREDITS.
 *
 * Each side counts the frames that it has sent and those that have arrived, and each frame tells the peer up to which
 * number it may send: the `limit`, which is the number of frames that have arrived, and of the receives that are posted
 * now. The invariant, of both directions:
 *
 *	sent <= limit that the sender knows <= limit that the receiver has told <= arrived + receives posted
 *
 * So each frame that is sent finds a receive. Limits are absolute numbers, modulo 2^32: one that comes twice or late
 * does no harm. Before the first frame of the peer, the limit is HP_CREDIT_FIRST.
 *
 * The last credit is used only by a frame that goes alone, and tells the peer of at least half of its receives. If
 * nothing else is to be sent, this is an empty frame. Two sides can never wait for each other. Let both have taken all
 * that was sent. Then a side that waits to send has at most one credit left, so the other one owes it all of its
 * receives but one, which is more than half. If the other one has a credit, it tells so. If it has none, its last frame
 * used its last credit, and so told more than any before. Were the first side without a credit, too, that would be true
 * of its last frame as well, and each of these two could have been sent only after the other one had come. So the first
 * side has one, owes all of its receives, and tells so.
 *
 * Empty frames do not answer each other for ever: each takes one receive and pays for at least two, since half of
 * HP_CREDIT_FIRST is two.
 */
#include "sge/credit.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

/* In the header of a frame (hugepin_sg_frame(5)). */
enum { FLAGS = 3, LIMIT = 20, WITH_LIMIT = 1 };
#define RECEIVES_MAX (1u << 15) /* of any queue pair's that a queue uses */

/* The number of the first frame that the peer may not send. */
static uint32_t limit_of_peer(const struct hugepin_sgq *q)
{
	uint32_t limit = q->taken + q->recv_depth - q->idle_count - q->arrived_count;

	/* A message that is no frame of the peer's queue uses up a receive, too, until that is posted again. */
	return (int32_t)(limit - q->announced) > 0 ? limit : q->announced;
}

static bool owes_half(const struct hugepin_sgq *q)
{
	return limit_of_peer(q) - q->announced >= q->recv_depth / 2;
}

void hp_credit_arrived(struct hugepin_sgq *q, char *data, size_t len)
{
	static const char magic[] = { 'H', 'p', 1 };
	uint32_t limit;

	if (len < HUGEPIN_SG_HEADER || memcmp(data, magic, sizeof magic))
		return;
	const bool told = data[FLAGS] == WITH_LIMIT, expected = q->flags & HUGEPIN_SGQ_CREDITS;
	if (told && expected) {
		memcpy(&limit, data + LIMIT, sizeof limit);
		limit = le32toh(limit);
		data[FLAGS] = 0;
		memset(data + LIMIT, 0, sizeof limit);
		q->taken++;
		if ((int32_t)(limit - q->limit) > 0)
			q->limit = limit;
	}
	if (!q->failed && (told != expected || (expected && q->limit - q->sent > RECEIVES_MAX))) {
		q->failed = true;
		q->over = -EPROTO;
		q->answer = true; /* by a frame of ours the peer's queue notices, too */
	}
}

uint64_t hp_credit_allow(struct hugepin_sgq *q)
{
	const uint32_t left = q->limit - q->sent, may = left > 1 ? left - 1 : left && owes_half(q);
	const uint64_t end = q->posted + HP_MIN(q->next - q->posted, may);
	const uint32_t limit = htole32(limit_of_peer(q));

	for (uint64_t n = q->posted; n < end; n++) {
		char *frame = (char *)(uintptr_t)q->wr[n & q->slot_mask].sg_list[0].addr;
		frame[FLAGS] = WITH_LIMIT;
		memcpy(frame + LIMIT, &limit, sizeof limit);
	}
	return end;
}

void hp_credit_posted(struct hugepin_sgq *q, uint64_t frames)
{
	if (frames) {
		q->sent += (uint32_t)frames;
		q->announced = limit_of_peer(q);
	}
	/* While a frame waits for credits, the next one collects until it is full. */
	q->hold = q->posted < q->next ? 0 : q->hold_set;
}

bool hp_credit_due(const struct hugepin_sgq *q)
{
	/* Not before the peer's queue has sent something, because it may not be open yet. */
	return q->flags & HUGEPIN_SGQ_CREDITS && q->taken && q->posted == q->next && q->limit != q->sent && owes_half(q);
}
