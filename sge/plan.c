/*
 * Planning: whether the pieces of a message are inlined, copied or gathered, or some copied and others gathered. A
 * cost model decides, within the limits of the queue pair. Rex, Mietke, Rehm 2006, section 4, found that four elements
 * cost little more than one; the model knows up to where this holds.
 *
 * A plan names the copied pieces by two things: a length, below which pieces are copied, and a window of pieces that
 * are copied anyway. So carrying it out takes one comparison per piece. Neighbouring copied pieces follow each other
 * in the slot and are one element. So copying pays if short pieces are neighbours. The window is a run of neighbours.
 * It reduces the elements of a message to the number that is allowed, at least cost.
 *
 * Pure, except hugepin_sg_caps(). Costs are computed for the whole message, so the work per piece is only counting.
 */
#include "sge/plan.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "sge/error.h"
#include "sge/iov.h"

#define MODES (HUGEPIN_SG_INLINE | HUGEPIN_SG_COPY | HUGEPIN_SG_GATHER)

/* Costs of an x86 server with the pieces in the cache. Only `element` is not measured, since it depends on how long a
 * device takes to fetch an element. Its value makes 256 bytes the longest piece that is copied beside a copied
 * neighbour. */
const struct hugepin_sg_model hp_sg_model_default = {
	.size = sizeof(struct hugepin_sg_model),
	.source = HUGEPIN_SG_MODEL_DEFAULT,
	.wr = 8.5f, .element = 6.34f, .lookup = 0, .line = 0, .byte = 0.08f,
	.piece = 2, .copy_byte = 0.017f, .cold = 60, .cold_piece = 5, .cold_byte = 0.06f,
	.inline_wr = 8.5f, .inline_byte = 0,
};

const struct hugepin_sg_model *hp_sg_model_whole(const struct hugepin_sg_model *model, struct hugepin_sg_model *room)
{
	if (model->size >= sizeof *model)
		return model;
	if (model->size < offsetof(struct hugepin_sg_model, device_wr))
		return NULL;
	memset(room, 0, sizeof *room);
	memcpy(room, model, model->size);
	room->size = sizeof *room;
	return room;
}

/* ------------------------------------------------------------------ what a queue pair can do */

int hugepin_sg_caps(struct ibv_qp *qp, const struct ibv_qp_cap *granted, struct hugepin_sg_caps *ret_, size_t size)
{
	if (!qp || !ret_ || !size)
		return -EINVAL;
	int saved_errno = errno;
	struct ibv_qp_attr attr = { 0 };
	struct ibv_qp_init_attr init = { 0 };
	struct ibv_port_attr port = { 0 };
	struct ibv_device_attr device = { 0 };
	int err = ibv_query_qp(qp, &attr, IBV_QP_CAP | IBV_QP_PORT, &init);
	if (!err) /* a queue pair has no port before it is initialised */
		err = ibv_query_port(qp->context, attr.port_num ? attr.port_num : 1, &port);
	if (!err)
		err = ibv_query_device(qp->context, &device);
	errno = saved_errno;
	if (err)
		return hp_verbs_error(err);

	const struct ibv_qp_cap *cap = granted ? granted : &init.cap;
	uint32_t max_sge_rd = device.max_sge_rd > 0 ? (uint32_t)device.max_sge_rd : cap->max_send_sge;
	struct hugepin_sg_caps caps = {
		.max_sge = cap->max_send_sge,
		.max_recv_sge = cap->max_recv_sge,
		.max_inline = cap->max_inline_data,
		.max_sge_rd = max_sge_rd < cap->max_send_sge ? max_sge_rd : cap->max_send_sge,
		.max_wr = cap->max_send_wr,
		.max_recv_wr = cap->max_recv_wr,
		/* mtu_ud does not include the 40 bytes of the routing header, which exist in the receiver's memory
		 * only. */
		.mtu_ud = qp->qp_type == IBV_QPT_UD ? 128u << port.active_mtu : 0,
		.max_msg = port.max_msg_sz,
	};
	memcpy(ret_, &caps, size < sizeof caps ? size : sizeof caps);
	return 0;
}

/* ------------------------------------------------------------------ counting */

/* The counts of a message, some of whose pieces are copied. */
struct tally {
	uint64_t bytes, copied_bytes;
	uint64_t lines; /* touched by the gathered pieces */
	uint32_t pieces, copied, elements, regs;
	size_t shortest, longest;
	bool bad; /* a piece is at NULL, or wraps */
};

/* A guess of the number of registrations that contain the pieces. Pieces in the same hugepage or in the next one count
 * as one registration. A hash remembers the pages seen. It has 64 bits, so larger numbers are too low, but then the
 * number no longer matters. */
struct guess {
	uint64_t page, seen;
	uint32_t regs;
};

static inline void guess_add(struct guess *g, uint64_t addr)
{
	uint64_t page = addr >> 21;
	if (page - g->page + 1 > 2) {
		uint64_t bit = UINT64_C(1) << (page * UINT64_C(0x9e3779b97f4a7c15) >> 58);
		g->regs += !(g->seen & bit);
		g->seen |= bit;
	}
	g->page = page;
}

/* Always inlined, so that the compiler drops the comparisons where nothing is copied. */
static inline __attribute__((always_inline)) void count_pieces(const struct iovec *iov, int n, uint32_t copy_below,
							uint32_t from, uint32_t to, struct tally *ret_)
{
	struct tally t = { .shortest = SIZE_MAX };
	struct guess g = { .page = UINT64_MAX / 2 };
	bool joins = false; /* the previous piece is copied */
	for (uint32_t i = 0; i < (uint32_t)n; i++) {
		uint64_t addr = (uintptr_t)iov[i].iov_base;
		size_t len = iov[i].iov_len;
		if (!len)
			continue;
		t.pieces++;
		t.bytes = t.bytes + len < t.bytes ? UINT64_MAX : t.bytes + len;
		t.bad |= !hp_iov_valid(addr, len);
		t.shortest = len < t.shortest ? len : t.shortest;
		t.longest = len > t.longest ? len : t.longest;
		bool copied = len < copy_below || i - from < to - from;
		if (copied) {
			t.copied++;
			t.copied_bytes += len;
		} else {
			t.lines += hp_iov_lines(addr, len);
			guess_add(&g, addr);
		}
		t.elements += !(copied && joins);
		joins = copied;
	}
	t.regs = g.regs;
	*ret_ = t;
}

/* ------------------------------------------------------------------ choosing */

/* The best plan so far. */
struct choice {
	const struct hugepin_sg_model *model;
	float piece, copy_byte, cold; /* costs for pieces in the cache, or for cold ones */
	uint64_t elements_max; /* for the whole message */
	struct hugepin_sg_plan plan;
	float cost;
	bool any;
};

/* Times for each work request, and once. */
struct times {
	float wr, rest;
};

/* Offer a plan that takes so long of the CPU and of the device. Returns whether it is now the best. */
static bool offer(struct choice *c, struct times cpu, struct times device, uint32_t mode, const struct tally *t)
{
	if (t->elements > c->elements_max)
		return false;
	uint32_t wrs = t->elements <= c->plan.max_sge ? 1 : (t->elements - 1) / c->plan.max_sge + 1;
	float cost = cpu.wr * (float)wrs + cpu.rest, busy = device.wr * (float)wrs + device.rest;
	cost = busy > cost ? busy : cost;
	if (c->any && !(cost < c->cost))
		return false;
	c->any = true;
	c->cost = cost;
	c->plan.mode = mode;
	c->plan.copy_below = c->plan.copy_from = c->plan.copy_to = 0;
	c->plan.slot = (uint32_t)t->copied_bytes;
	c->plan.wrs = wrs;
	c->plan.sges = t->elements;
	return true;
}

static void offer_inline(struct choice *c, const struct tally *t)
{
	const struct hugepin_sg_model *m = c->model;
	struct times cpu = { m->inline_wr, (t->bytes ? c->cold : 0) + (c->piece + m->inline_piece) * (float)t->pieces +
						   (c->copy_byte + m->inline_byte) * (float)t->bytes };
	struct times device = { m->device_inline_wr, m->device_inline_byte * (float)t->bytes };
	offer(c, cpu, device, HUGEPIN_SG_INLINE, t);
}

static bool offer_elements(struct choice *c, uint32_t mode, const struct tally *t)
{
	const struct hugepin_sg_model *m = c->model;
	struct times cpu = { m->wr, m->element * (float)t->elements + m->lookup * (float)t->regs +
					    m->line * (float)t->lines + c->piece * (float)t->copied +
					    c->copy_byte * (float)t->copied_bytes + m->byte * (float)t->bytes +
					    (t->copied ? c->cold : 0) };
	struct times device = { m->device_wr, m->device_element * (float)t->elements + m->device_line * (float)t->lines +
						      m->device_byte * (float)t->bytes };
	return offer(c, cpu, device, mode, t);
}

static void offer_copy(struct choice *c, const struct tally *t)
{
	struct tally all = { .bytes = t->bytes, .copied_bytes = t->bytes, .copied = t->pieces,
			     .elements = t->pieces > 0 };
	offer_elements(c, HUGEPIN_SG_COPY, &all);
}

/* Offer a plan that copies some pieces and gathers others. Returns the number of its elements. */
static uint32_t offer_mixture(struct choice *c, const struct iovec *iov, int n, uint32_t below, uint32_t from,
			      uint32_t to)
{
	struct tally t;
	count_pieces(iov, n, below, from, to, &t);
	if (offer_elements(c, HUGEPIN_SG_GATHER | HUGEPIN_SG_COPY, &t)) {
		c->plan.copy_below = below;
		c->plan.copy_from = from;
		c->plan.copy_to = to;
	}
	return t.elements;
}

/* Find the cheapest window that saves `excess` elements, where pieces shorter than `below` are copied anyway. A window
 * begins with a gathered piece. It contains `gathered` pieces that would otherwise be elements of their own, and
 * `runs` runs of copied pieces between and behind them. The window becomes one element, together with a run of copied
 * pieces in front of it. Without its first piece a window saves one element less, with or without such a run. So one
 * pass suffices: for each end, pieces are dropped from the start while the window still saves enough. */
static bool find_window(const struct choice *c, const struct iovec *iov, int n, uint32_t below, uint32_t excess,
		   uint32_t *ret_from, uint32_t *ret_to)
{
	uint32_t first = 0, gathered = 0, runs = 0;
	uint64_t bytes = 0;
	bool joins = false, in_front = false; /* in_front: the piece in front of the window is copied */
	bool found = false;
	float best = 0;
	for (uint32_t i = 0; i < (uint32_t)n; i++) {
		size_t len = iov[i].iov_len;
		if (!len)
			continue;
		bool copied = len < below;
		if (!copied) {
			if (!gathered++) {
				first = i;
				in_front = joins;
			}
			bytes += len;
		} else if (gathered && !joins) {
			runs++;
		}
		joins = copied;
		while (gathered > 1 && gathered + runs - 2 >= excess) {
			gathered--;
			bytes -= iov[first].iov_len;
			in_front = false;
			while (!iov[++first].iov_len || iov[first].iov_len < below)
				in_front |= iov[first].iov_len > 0;
			runs -= in_front;
		}
		float cost = c->piece * (float)gathered + c->copy_byte * (float)bytes;
		if (gathered && gathered + runs + in_front > excess && (!found || cost < best)) {
			found = true;
			best = cost;
			*ret_from = first;
			*ret_to = i + 1;
		}
	}
	return found;
}

static void offer_window(struct choice *c, const struct iovec *iov, int n, uint32_t below, uint32_t elements,
			 uint64_t elements_max)
{
	uint32_t from = 0, to = 0;
	if (elements > elements_max && find_window(c, iov, n, below, elements - (uint32_t)elements_max, &from, &to))
		offer_mixture(c, iov, n, below, from, to);
}

/* Offer to copy the pieces shorter than `below`. If that leaves too many elements for one work request, or for the
 * whole message, also offer to copy a window of the others. */
static void offer_mixtures_below(struct choice *c, const struct iovec *iov, int n, uint32_t below)
{
	uint32_t elements = offer_mixture(c, iov, n, below, 0, 0);
	offer_window(c, iov, n, below, elements, c->plan.max_sge);
	if (c->elements_max > c->plan.max_sge)
		offer_window(c, iov, n, below, elements, c->elements_max);
}

static void offer_mixtures(struct choice *c, const struct iovec *iov, int n, const struct tally *t, bool cold)
{
	const struct hugepin_sg_model *m = c->model;
	float lookups = (float)t->regs / (float)t->pieces;
	/* The length up to which copying pays: behind a copied neighbour (joined), and without one (lone). */
	uint32_t joined = hp_sg_copy_below(m, cold, true, lookups), lone = hp_sg_copy_below(m, cold, false, lookups);
	if (joined > t->shortest && joined <= t->longest)
		offer_mixtures_below(c, iov, n, joined);
	if (lone > t->shortest && lone <= t->longest && lone != joined)
		offer_mixtures_below(c, iov, n, lone);
	/* Where the CPU copies as long as the device fetches, the best lies between the two: copy one half. */
	if (m->device_element + m->device_line > 0)
		offer_window(c, iov, n, 0, t->pieces, t->pieces / 2);
	if (t->pieces <= c->plan.max_sge)
		return;
	offer_mixtures_below(c, iov, n, 0);
	for (uint64_t below = t->shortest * 4; below <= t->longest; below *= 4)
		offer_mixtures_below(c, iov, n, (uint32_t)below);
}

int hugepin_sg_plan(const struct hugepin_sg_model *model, const struct hugepin_sg_caps *caps, const struct iovec *iov,
		    int n, unsigned mode, struct hugepin_sg_plan *ret_)
{
	const unsigned purposes = HUGEPIN_SG_WRITE | HUGEPIN_SG_READ | HUGEPIN_SG_RECV;
	const unsigned known = MODES | HUGEPIN_SG_COLD | purposes, purpose = mode & purposes;
	bool read = purpose == HUGEPIN_SG_READ, recv = purpose == HUGEPIN_SG_RECV, cold = mode & HUGEPIN_SG_COLD;
	bool splits = read || purpose == HUGEPIN_SG_WRITE; /* one-sided: into several work requests if necessary */
	struct hugepin_sg_model room;
	model = model ? hp_sg_model_whole(model, &room) : &hp_sg_model_default;
	if (!model || !caps || !ret_ || n < 0 || (n && !iov) || mode & ~known || (purpose & (purpose - 1)))
		return -EINVAL;
	struct tally t;
	count_pieces(iov, n, 0, 0, 0, &t);
	if (t.bad)
		return -EINVAL;
	if (t.bytes > UINT32_MAX)
		return -EOVERFLOW;
	unsigned allowed = (mode & MODES ? mode & MODES : MODES) & ~model->refused;
	if (recv || read)
		allowed &= HUGEPIN_SG_GATHER;
	if (!caps->max_inline)
		allowed &= ~(unsigned)HUGEPIN_SG_INLINE;
	if (!allowed || (splits && caps->mtu_ud))
		return -EOPNOTSUPP;
	if (t.bytes > caps->max_msg || (!recv && caps->mtu_ud && t.bytes > caps->mtu_ud))
		return -EMSGSIZE;

	struct choice c = {
		.model = model,
		.piece = cold ? model->cold_piece : model->piece,
		.copy_byte = cold ? model->cold_byte : model->copy_byte,
		.cold = cold ? model->cold : 0,
		.plan = { .bytes = t.bytes, .n = (uint32_t)n,
			  .max_sge = recv ? caps->max_recv_sge : read ? caps->max_sge_rd : caps->max_sge },
	};
	c.elements_max = c.plan.max_sge * (uint64_t)(splits && caps->max_wr ? caps->max_wr : 1);
	const unsigned both = HUGEPIN_SG_GATHER | HUGEPIN_SG_COPY;
	if (allowed & HUGEPIN_SG_INLINE && t.bytes <= caps->max_inline)
		offer_inline(&c, &t);
	if (allowed & HUGEPIN_SG_COPY)
		offer_copy(&c, &t);
	if (allowed & HUGEPIN_SG_GATHER)
		offer_elements(&c, allowed & both, &t);
	if ((allowed & both) == both && t.pieces > 1 &&
	    (t.shortest < t.longest || t.pieces > c.plan.max_sge || model->device_element + model->device_line > 0))
		offer_mixtures(&c, iov, n, &t, cold);
	if (!c.any)
		return -EMSGSIZE;
	c.plan.mode |= purpose;
	c.plan.cost_ns = c.cost < 4e9f ? c.cost > 0 ? (uint32_t)(c.cost + 0.5f) : 0 : UINT32_MAX;
	*ret_ = c.plan;
	return 0;
}
