/*
 * Planning: whether the pieces of a message go by the indexes of their registrations, by their addresses, or through a
 * slot. A request names one index, so pieces of several registrations are several linked requests, unless some are
 * copied. A cost model decides, within what the ring can do.
 *
 * A plan is three things: by index or by address, a length below which pieces are copied, and whether pieces without
 * an index are copied. So carrying it out takes one comparison a piece. Two lengths can pay: where the copy of a piece
 * costs less than its element, and where it costs less than a request of its own.
 *
 * Pure.
 */
#include "uring/plan.h"

#include <errno.h>

#include "base/base.h"
#include "sge/iov.h"

#define WAYS (HUGEPIN_SG_URING_PLAIN | HUGEPIN_SG_URING_FIXED | HUGEPIN_SG_URING_COPY)

/* Measured on a virtual x86 server with Linux 6.18, over loopback and a file of ext4. */
const struct hugepin_sg_uring_model hp_uring_model_default = {
	.size = sizeof(struct hugepin_sg_uring_model),
	.piece = 2, .copy_byte = 0.017f,
	.plain = { { 4450, 57, 0.12f }, { 18000, 380, 0.02f }, { 18000, 380, 0.02f } },
	.fixed = { { 4850, 370, 0.17f }, { 18000, 200, 0.02f }, { 18000, 200, 0.02f } },
};

/* ------------------------------------------------------------------ counting */

struct load {
	uint32_t requests, elements;
	uint64_t bytes;
};

struct tally {
	struct load plain, fixed;
	uint32_t copied; /* pieces */
	bool gathers_plain, gathers_fixed; /* some pieces that are not copied go by address, by index */
	uint64_t copied_bytes;
};

/* Count what a plan of this kind makes of the pieces. */
static void count(const struct hugepin_sg_uring_plan *p, const struct hugepin_sg_uring_caps *caps,
		  const struct iovec *iov, const uint32_t *index, int n, struct tally *ret_)
{
	struct tally t = { 0 };
	uint32_t last = HUGEPIN_SG_URING_NONE, room = 0; /* of the latest request: its index, free elements */
	bool joins = false; /* the previous piece is copied */

	for (int i = 0; i < n; i++) {
		const uint32_t own = index ? index[i] : HUGEPIN_SG_URING_NONE;
		const size_t len = iov[i].iov_len;
		const bool copied = hp_uring_copies(p, len, own);
		const uint32_t by = hp_uring_index(p, caps, copied, own);
		struct load *l = by == HUGEPIN_SG_URING_NONE ? &t.plain : &t.fixed;

		if (!len)
			continue;
		l->bytes += len;
		if (copied) {
			t.copied++;
			t.copied_bytes += len;
		} else {
			t.gathers_plain |= by == HUGEPIN_SG_URING_NONE;
			t.gathers_fixed |= by != HUGEPIN_SG_URING_NONE;
		}
		if (copied && joins)
			continue;
		joins = copied;
		if (!room || by != last) {
			l->requests++;
			room = hp_uring_room(caps, by);
			last = by;
		}
		l->elements++;
		room--;
	}
	*ret_ = t;
}

/* ------------------------------------------------------------------ choosing */

struct choice {
	const struct hugepin_sg_uring_model *model;
	const struct hugepin_sg_uring_caps *caps;
	const struct iovec *iov;
	const uint32_t *index;
	int n;
	unsigned verb, ways;
	struct hugepin_sg_uring_plan best;
	bool any;
};

static float cost_of(const struct hugepin_sg_uring_cost *c, const struct load *l)
{
	return c->request * (float)l->requests + c->element * (float)l->elements + c->byte * (float)l->bytes;
}

static void offer(struct choice *c, uint32_t carrier, uint32_t below, bool foreign)
{
	struct hugepin_sg_uring_plan p = { .mode = carrier, .copy_below = below, .copy_foreign = foreign };
	struct tally t;

	count(&p, c->caps, c->iov, c->index, c->n, &t);
	/* The slot may go either way, whatever is allowed for pieces. */
	if ((t.copied && !(c->ways & HUGEPIN_SG_URING_COPY)) ||
	    (t.gathers_plain && !(c->ways & HUGEPIN_SG_URING_PLAIN)) ||
	    (t.gathers_fixed && !(c->ways & HUGEPIN_SG_URING_FIXED)) || t.copied_bytes > c->caps->slot_len)
		return;
	p.requests = t.plain.requests + t.fixed.requests;
	if (p.requests > c->caps->max_requests)
		return;
	p.mode = (t.plain.requests ? HUGEPIN_SG_URING_PLAIN : 0) | (t.fixed.requests ? HUGEPIN_SG_URING_FIXED : 0) |
		 (t.copied ? HUGEPIN_SG_URING_COPY : 0);
	p.elements = t.plain.elements + t.fixed.elements;
	p.bytes = t.plain.bytes + t.fixed.bytes;
	p.copied = t.copied_bytes;
	p.cost_ns = cost_of(&c->model->plain[c->verb], &t.plain) + cost_of(&c->model->fixed[c->verb], &t.fixed) +
		    c->model->piece * (float)t.copied + c->model->copy_byte * (float)t.copied_bytes;
	if (c->any && !(p.cost_ns < c->best.cost_ns))
		return;
	c->best = p;
	c->any = true;
}

/* The length up to which copying a piece costs less than `saved`. */
static uint32_t pays_below(const struct hugepin_sg_uring_model *m, float saved)
{
	const float rest = saved - m->piece;

	if (!(rest > 0))
		return 0;
	return m->copy_byte > 0 && rest / m->copy_byte < (float)HP_URING_BYTES_MAX ? (uint32_t)(rest / m->copy_byte) :
										     (uint32_t)HP_URING_BYTES_MAX;
}

struct lengths {
	size_t shortest, longest;
	bool aligned, foreign; /* all are aligned; some have no index */
};

static void offer_by(struct choice *c, uint32_t carrier, const struct lengths *len)
{
	const struct hugepin_sg_uring_cost *cost =
		carrier == HUGEPIN_SG_URING_FIXED ? &c->model->fixed[c->verb] : &c->model->plain[c->verb];
	const uint32_t below[] = { 0, pays_below(c->model, cost->element),
				   pays_below(c->model, cost->element + cost->request) };

	offer(c, carrier, UINT32_MAX, false);
	for (size_t i = 0; len->aligned && i < 3; i++) {
		/* Others are all pieces, or none. */
		if (i && (below[i] <= len->shortest || below[i] > len->longest))
			continue;
		offer(c, carrier, below[i], false);
		if (carrier == HUGEPIN_SG_URING_FIXED && len->foreign)
			offer(c, carrier, below[i], true);
	}
}

/* Check the pieces, and find what decides which plans are offered. */
static int look(const struct iovec *iov, const uint32_t *index, int n, unsigned align, struct lengths *ret_)
{
	struct lengths len = { .shortest = SIZE_MAX, .aligned = true };
	uint64_t bytes;
	int err = hp_iov_bytes(iov, n, &bytes);

	if (err)
		return err;
	if (bytes > HP_URING_BYTES_MAX)
		return -EOVERFLOW;
	align = align ? align : 1;
	if (!hp_is_power_of_two(align) || bytes % align)
		return -EINVAL;
	for (int i = 0; i < n; i++) {
		if (!iov[i].iov_len)
			continue;
		len.shortest = HP_MIN(len.shortest, iov[i].iov_len);
		len.longest = HP_MAX(len.longest, iov[i].iov_len);
		len.foreign |= !index || index[i] == HUGEPIN_SG_URING_NONE;
		len.aligned &= !(((uintptr_t)iov[i].iov_base | iov[i].iov_len) % align);
	}
	*ret_ = len;
	return 0;
}

int hugepin_sg_uring_plan(const struct hugepin_sg_uring_model *model, const struct hugepin_sg_uring_caps *caps,
			  unsigned verb, const struct iovec *iov, const uint32_t *index, int n, unsigned mode,
			  unsigned align, struct hugepin_sg_uring_plan *ret_)
{
	struct lengths len;
	int err;

	if (!caps || !ret_ || caps->size < sizeof *caps || !caps->max_iov || !caps->max_requests ||
	    verb >= HUGEPIN_SG_URING_VERBS || mode & ~WAYS || (model && model->size < sizeof *model))
		return -EINVAL;
	err = look(iov, index, n, align, &len);
	if (err)
		return err;

	struct choice c = {
		.model = model ? model : &hp_uring_model_default,
		.caps = caps, .iov = iov, .index = index, .n = n, .verb = verb, .ways = mode ? mode : WAYS,
	};
	const bool can_fix = verb != HUGEPIN_SG_URING_SEND || caps->zero_copy;

	if (!can_fix && !(c.ways & ~HUGEPIN_SG_URING_FIXED))
		return -EOPNOTSUPP;
	if (can_fix)
		offer_by(&c, HUGEPIN_SG_URING_FIXED, &len);
	offer_by(&c, HUGEPIN_SG_URING_PLAIN, &len);
	if (!c.any)
		return -EMSGSIZE;
	*ret_ = c.best;
	return 0;
}
