/*
 * The plan of a message: whether its pieces are inlined, copied or gathered, or some copied and others gathered.
 * Thresholds decide, within the limits of the queue pair. Rex, Mietke, Rehm 2006, section 4, found that four elements
 * cost little more than one.
 *
 * A plan names the copied pieces by a length, below which pieces are copied, and by a window, a run of neighbours that
 * are copied anyway. So carrying it out takes one comparison per piece. Neighbouring copied pieces follow each other in
 * the slot and are one element. The window reduces the elements of a message to the number that is allowed.
 *
 * The queue (queue.c) makes no plan: it copies pieces shorter than copy_below, which it doubles until the elements fit.
 *
 * Pure, except hugepin_sg_caps().
 */
#include "sge/plan.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "sge/error.h"
#include "sge/iov.h"

#define MODES (HUGEPIN_SG_INLINE | HUGEPIN_SG_COPY | HUGEPIN_SG_GATHER)

/* An adapter fetches each element by a transaction of its own, in whose time a CPU copies some hundred bytes of its
 * cache. */
const struct hugepin_sg_model hp_sg_model_default = {
	.size = sizeof(struct hugepin_sg_model),
	.source = HUGEPIN_SG_MODEL_DEFAULT,
	.copy_below = { 256, 24 },
	.apart_below = { 256, 24 },
	.inline_pieces = { UINT32_MAX, UINT32_MAX },
};

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
		/* mtu_ud excludes the 40 bytes of the routing header, which exist only in the receiver's memory. */
		.mtu_ud = qp->qp_type == IBV_QPT_UD ? 128u << port.active_mtu : 0,
		.max_msg = port.max_msg_sz,
	};
	memcpy(ret_, &caps, size < sizeof caps ? size : sizeof caps);
	return 0;
}

/* ------------------------------------------------------------------ counting */

struct message {
	uint64_t bytes;
	uint32_t pieces, registrations;
	size_t longest;
	bool bad; /* a piece is at NULL, or wraps */
};

/* Registrations are a guess: pieces in the same hugepage or in the next one count as in one. A hash of 64 bits
 * remembers the hugepages seen, so it distinguishes up to 64 of them. */
static struct message look_at(const struct iovec *iov, int n)
{
	struct message m = { 0 };
	uint64_t last = UINT64_MAX / 2, seen = 0;

	for (int i = 0; i < n; i++) {
		const size_t len = iov[i].iov_len;
		const uint64_t page = (uintptr_t)iov[i].iov_base >> 21;

		if (!len)
			continue;
		m.pieces++;
		m.bytes = m.bytes + len < m.bytes ? UINT64_MAX : m.bytes + len;
		m.bad |= !hp_iov_valid((uintptr_t)iov[i].iov_base, len);
		m.longest = HP_MAX(len, m.longest);
		if (page - last + 1 > 2) {
			const uint64_t bit = UINT64_C(1) << (page * UINT64_C(0x9e3779b97f4a7c15) >> 58);

			m.registrations += !(seen & bit);
			seen |= bit;
		}
		last = page;
	}
	return m;
}

/* Whether most pieces are likely to lie in a registration each. */
static bool lie_apart(const struct message *m)
{
	return m->registrations > HP_MIN(m->pieces, 64u) / 2;
}

/* The elements of a message whose pieces shorter than `below` are copied, and those of [from, to). Returns the bytes
 * copied. */
static inline uint64_t count_copied(const struct iovec *iov, uint32_t n, uint64_t below, uint32_t from, uint32_t to,
				    uint32_t *ret_elements)
{
	uint64_t bytes = 0;
	uint32_t elements = 0;
	bool joins = false; /* the previous piece is copied */

	for (uint32_t i = 0; i < n; i++) {
		const size_t len = iov[i].iov_len;
		const bool copied = len < below || i - from < to - from;

		if (!len)
			continue;
		bytes += copied ? len : 0;
		elements += !(copied && joins);
		joins = copied;
	}
	*ret_elements = elements;
	return bytes;
}

/* ------------------------------------------------------------------ choosing */

/* Find the run of pieces, copied as one element, that saves `excess` elements and copies the fewest bytes, where pieces
 * shorter than `below` (at least 1) are copied anyway. For each end of the run, pieces are dropped from its start as
 * long as it saves enough. */
static void find_window(const struct iovec *iov, int n, uint64_t below, uint32_t excess, uint32_t *ret_from,
			uint32_t *ret_to)
{
	uint32_t from = 0, inside = 0; /* elements in the run */
	/* the first piece in it that is not short, and whether short ones are in front */
	uint32_t first = 0, leads = 0;
	uint64_t bytes = 0, least = UINT64_MAX;
	bool joins = false;

	for (uint32_t to = 0; to < (uint32_t)n; to++) {
		const size_t len = iov[to].iov_len;
		const bool copied = len < below;
		if (!len)
			continue;
		inside += !(copied && joins);
		joins = copied;
		bytes += copied ? 0 : len;
		for (;; first = from, leads = 0) {
			for (; first <= to && iov[first].iov_len < below; first++)
				leads |= iov[first].iov_len > 0;
			if (first > to || inside < excess + 2 + leads)
				break;
			inside -= 1 + leads;
			bytes -= iov[first].iov_len;
			from = first + 1;
		}
		if (inside > excess && bytes < least) {
			least = bytes;
			*ret_from = from;
			*ret_to = to + 1;
		}
	}
}

/* Copy the pieces shorter than `below`. If that leaves too many elements, also copy longer pieces, or those of a
 * window, whichever copies fewer bytes. */
static void plan_mixture(struct hugepin_sg_plan *p, const struct iovec *iov, uint64_t below, uint64_t elements_max,
			 size_t longest)
{
	uint64_t least = UINT64_MAX;
	bool fits;

	do {
		uint32_t from = 0, to = 0, elements;
		uint64_t copied = count_copied(iov, p->n, below, 0, 0, &elements);

		fits = elements <= elements_max;
		if (!fits) {
			find_window(iov, (int)p->n, below, elements - (uint32_t)elements_max, &from, &to);
			copied = count_copied(iov, p->n, below, from, to, &elements);
		}
		if (copied < least) {
			least = copied;
			p->mode = copied < p->bytes ? HUGEPIN_SG_GATHER | HUGEPIN_SG_COPY : HUGEPIN_SG_COPY;
			p->copy_below = (uint32_t)HP_MIN(below, (uint64_t)UINT32_MAX);
			p->copy_from = from;
			p->copy_to = to;
			p->slot = (uint32_t)copied;
			p->sges = elements;
		}
		below *= 2;
	} while (!fits && below / 2 <= longest);
}

int hugepin_sg_plan(const struct hugepin_sg_model *model, const struct hugepin_sg_caps *caps, const struct iovec *iov,
		    int n, unsigned mode, struct hugepin_sg_plan *ret_)
{
	const unsigned purposes = HUGEPIN_SG_WRITE | HUGEPIN_SG_READ | HUGEPIN_SG_RECV;
	const unsigned known = MODES | HUGEPIN_SG_COLD | purposes, purpose = mode & purposes;
	bool read = purpose == HUGEPIN_SG_READ, recv = purpose == HUGEPIN_SG_RECV, cold = mode & HUGEPIN_SG_COLD;
	bool splits = read || purpose == HUGEPIN_SG_WRITE; /* one-sided: into several work requests if necessary */
	model = model ? model : &hp_sg_model_default;
	if (model->size < sizeof *model || !caps || !ret_ || n < 0 || (n && !iov) || mode & ~known ||
	    (purpose & (purpose - 1)))
		return -EINVAL;
	const struct message t = look_at(iov, n);
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

	struct hugepin_sg_plan p = { .bytes = t.bytes, .n = (uint32_t)n,
				     .max_sge = recv ? caps->max_recv_sge : read ? caps->max_sge_rd : caps->max_sge };
	const uint64_t elements_max = p.max_sge * (uint64_t)(splits && caps->max_wr ? caps->max_wr : 1);
	const bool fits = t.pieces <= elements_max;
	const unsigned both = HUGEPIN_SG_GATHER | HUGEPIN_SG_COPY;
	if (allowed & HUGEPIN_SG_INLINE && fits && t.bytes <= caps->max_inline &&
	    (!(allowed & both) || t.pieces <= model->inline_pieces[cold])) {
		p.mode = HUGEPIN_SG_INLINE;
		p.sges = t.pieces;
	} else if ((allowed & both) == both && elements_max) {
		const uint32_t *below = lie_apart(&t) ? model->apart_below : model->copy_below;
		plan_mixture(&p, iov, HP_MAX(below[cold], 1u), elements_max, t.longest);
	} else if (allowed & HUGEPIN_SG_COPY && (elements_max || !t.pieces)) {
		p.mode = HUGEPIN_SG_COPY;
		p.slot = (uint32_t)t.bytes;
		p.sges = t.pieces > 0;
	} else if (allowed & HUGEPIN_SG_GATHER && fits) {
		p.mode = HUGEPIN_SG_GATHER;
		p.sges = t.pieces;
	} else {
		return -EMSGSIZE;
	}
	if (p.mode == HUGEPIN_SG_COPY)
		p.copy_below = p.copy_from = p.copy_to = 0;
	p.wrs = p.sges <= p.max_sge ? 1 : (p.sges - 1) / p.max_sge + 1;
	p.mode |= purpose;
	*ret_ = p;
	return 0;
}
