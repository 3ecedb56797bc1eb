/*
 * A queue of messages on a ring: it takes keys, carries out plans, knows its completions, and calls back.
 *
 *  1. A completion is the queue's if its user_data points into the queue's parts (a request of a message) or messages
 *     (a cancellation). The program's own pointers cannot.
 *  2. The pins of a message are out until the last of its requests has completed. The kernel looks an index up when it
 *     begins a request, and it begins a linked one late. So does a short transfer's rest.
 *  3. A send without a copy completes twice: with its result, and with a notice (IORING_CQE_F_NOTIF) once the network
 *     has let go of the pieces. The kernel itself holds the registration's pages until then, so the pins are back
 *     before. The pieces and the slot are not free before.
 *  4. A message is in one state: free; its requests are on the ring (waiting > 0); its rest finds no room on the ring
 *     (stalled); done, and notices or a cancellation are to come. The queue's `stalled` counts those messages, and those
 *     whose cancellation finds no room.
 *  5. A chain is prepared whole or not at all, so that no submission cuts its links.
 *
 * Threads: one at a time, as for the ring.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "sge/iov.h"
#include "uring/requests.h"

enum { MESSAGES = 32, MESSAGES_MAX = 4096, PIECES = 64, PIECES_MAX = 1024, SLOT = 16384, SLOT_ALIGN = 4096, PARTS_MAX = 64, LATEST = 16 };

struct message {
	struct hp_message m;
	struct msghdr *headers; /* one for each part */
	struct hugepin_pin *pins;
	struct hugepin_sg_uring_target *target;
	uint64_t offset;
	hugepin_sg_uring_fn call;
	void *arg;
	uint32_t pins_count;
	uint32_t waiting; /* requests that have not completed */
	uint32_t notices; /* to come */
	uint32_t cancels; /* cancellations that have not completed */
	uint32_t asked; /* the part that was last asked to end */
	bool unasked; /* a cancellation of its requests finds no room on the ring */
	bool stalled, done, ordered, cancelled, out;
	struct message *next; /* while it is free */
};

struct hugepin_sg_uring {
	struct io_uring *ring;
	hugepin_domain *domain;
	hugepin_key_fn key;
	void *key_arg;
	struct hugepin_sg_uring_caps caps;
	struct hugepin_sg_uring_model model;
	uint32_t without, pieces, messages, stalled;
	struct message *message, *free;
	char *slots;
	struct hugepin_pin slots_pin;
	struct hugepin_sg_uring_stats stats;
	/* one allocation each for all messages */
	struct iovec *all_pieces, *all_elements;
	uint32_t *all_indexes, *all_by;
	struct hp_uring_part *all_parts;
	struct msghdr *all_headers;
	struct hugepin_pin *all_pins;
};

/* ------------------------------------------------------------------ opening and closing */

static void destroy(hugepin_sg_uring *q)
{
	if (q->slots_pin.ref)
		hugepin_unpin(q->domain, &q->slots_pin);
	hugepin_free(q->slots);
	free(q->message);
	free(q->all_pieces);
	free(q->all_elements);
	free(q->all_indexes);
	free(q->all_by);
	free(q->all_parts);
	free(q->all_headers);
	free(q->all_pins);
	free(q);
}

static bool allocate(hugepin_sg_uring *q)
{
	const size_t n = q->messages, pieces = n * q->pieces, parts = n * q->caps.max_requests;

	q->message = calloc(n, sizeof *q->message);
	q->all_pieces = calloc(pieces, sizeof *q->all_pieces);
	q->all_elements = calloc(pieces, sizeof *q->all_elements);
	q->all_indexes = calloc(pieces, sizeof *q->all_indexes);
	q->all_by = calloc(pieces, sizeof *q->all_by);
	q->all_parts = calloc(parts, sizeof *q->all_parts);
	q->all_headers = calloc(parts, sizeof *q->all_headers);
	q->all_pins = calloc(pieces, sizeof *q->all_pins);
	if (!q->message || !q->all_pieces || !q->all_elements || !q->all_indexes || !q->all_by || !q->all_parts ||
	    !q->all_headers || !q->all_pins)
		return false;
	if (q->caps.slot_len) {
		q->slots = hugepin_aligned_alloc(SLOT_ALIGN, n * q->caps.slot_len);
		if (!q->slots)
			return false;
	}
	for (size_t i = n; i--;) {
		struct message *g = &q->message[i];

		g->m.caps = &q->caps;
		g->m.pieces = q->all_pieces + i * q->pieces;
		g->m.elements = q->all_elements + i * q->pieces;
		g->m.indexes = q->all_indexes + i * q->pieces;
		g->m.by = q->all_by + i * q->pieces;
		g->m.parts = q->all_parts + i * q->caps.max_requests;
		g->m.slot = q->slots ? q->slots + i * q->caps.slot_len : NULL;
		g->headers = q->all_headers + i * q->caps.max_requests;
		g->pins = q->all_pins + i * q->pieces;
		g->next = q->free;
		q->free = g;
	}
	return true;
}

/* Without a registration the slots go by address. */
static int register_slots(hugepin_sg_uring *q)
{
	const size_t len = (size_t)q->messages * q->caps.slot_len;
	int err;

	if (!q->domain || !q->slots || q->without & HUGEPIN_SG_URING_FIXED)
		return 0;
	err = hugepin_pin(q->domain, q->slots, len, HUGEPIN_READ | HUGEPIN_WRITE, &q->slots_pin);
	if (err == -ENOBUFS || err == -ENOMEM || err == -EPERM)
		return 0;
	if (!err && q->slots_pin.len == len)
		q->caps.slot_index = q->slots_pin.lkey;
	return err;
}

static uint32_t or_default(uint32_t value, uint32_t instead)
{
	return value ? value : instead;
}

int hugepin_sg_uring_open(struct io_uring *ring, hugepin_domain *domain, const struct hugepin_sg_uring_attr *attr,
			  hugepin_sg_uring **ret_)
{
	static const struct hugepin_sg_uring_attr none = { .size = sizeof none };
	const struct hugepin_sg_uring_attr *a = attr ? attr : &none;
	const uint32_t slot = or_default(a->slot_len, SLOT);
	hugepin_sg_uring *q;
	int err;

	if (!ring || !ret_ || a->size != sizeof *a || a->messages > MESSAGES_MAX || a->pieces > PIECES_MAX ||
	    slot > HP_URING_BYTES_MAX || a->without & ~(HUGEPIN_SG_URING_FIXED | HUGEPIN_SG_URING_COPY) ||
	    (a->model && a->model->size < sizeof *a->model) ||
	    ring->flags & (IORING_SETUP_SQE128 | IORING_SETUP_CQE32))
		return -EINVAL;
	q = calloc(1, sizeof *q);
	if (!q)
		return -ENOMEM;
	err = hugepin_sg_uring_caps(ring, &q->caps, sizeof q->caps);
	if (err) {
		free(q);
		return err;
	}
	q->ring = ring;
	q->domain = domain;
	q->key = a->key ? a->key : domain ? hugepin_sg_key : NULL;
	q->key_arg = a->key ? a->key_arg : domain;
	q->without = a->without;
	q->messages = or_default(a->messages, MESSAGES);
	q->pieces = or_default(a->pieces, PIECES);
	q->model = a->model ? *a->model : hp_uring_model_default;
	q->caps.vector &= !a->single;
	q->caps.zero_copy &= !(a->without & HUGEPIN_SG_URING_FIXED);
	q->caps.max_requests = HP_MIN(HP_MIN(q->caps.max_requests, q->pieces), (uint32_t)PARTS_MAX);
	q->caps.slot_len = a->without & HUGEPIN_SG_URING_COPY ? 0 : (uint32_t)hp_round_up(slot, SLOT_ALIGN);
	err = allocate(q) ? register_slots(q) : -ENOMEM;
	if (err) {
		destroy(q);
		return err;
	}
	*ret_ = q;
	return 0;
}

int hugepin_sg_uring_close(hugepin_sg_uring *q)
{
	if (!q)
		return -EINVAL;
	if (q->stats.out)
		return -EBUSY;
	destroy(q);
	return 0;
}

int hugepin_sg_uring_stats(const hugepin_sg_uring *q, struct hugepin_sg_uring_stats *ret_, size_t size)
{
	if (!q || !ret_ || !size)
		return -EINVAL;
	memset(ret_, 0, size);
	memcpy(ret_, &q->stats, HP_MIN(size, sizeof q->stats));
	return 0;
}

/* ------------------------------------------------------------------ keys */

static void give_back(hugepin_sg_uring *q, struct message *g)
{
	for (uint32_t i = 0; i < g->pins_count; i++)
		q->key(q->key_arg, NULL, 0, 0, &g->pins[i]);
	g->pins_count = 0;
}

static bool covers(const struct hugepin_pin *pin, const void *addr)
{
	return (uintptr_t)addr - pin->base < pin->len;
}

/* Find the registration at addr. *ret_len: how much of len it covers; of memory without one, all. */
static int find_key(hugepin_sg_uring *q, struct message *g, const char *addr, size_t len, unsigned access,
		    uint32_t *ret_index, size_t *ret_len)
{
	const struct hugepin_pin *known = NULL;
	struct hugepin_pin pin = { 0 };
	int err;

	/* Of many pins only the latest are searched. The others' registrations are pinned again. */
	for (uint32_t i = g->pins_count; !known && i && i + LATEST > g->pins_count; i--)
		if (covers(&g->pins[i - 1], addr))
			known = &g->pins[i - 1];

	if (!known) {
		err = q->key(q->key_arg, addr, len, access, &pin);
		if (err == -ENOKEY) {
			*ret_index = HUGEPIN_SG_URING_NONE;
			*ret_len = len;
			return 0;
		}
		if (err)
			return err < 0 ? err : -EINVAL;
		known = &pin;
		if (pin.ref) {
			g->pins[g->pins_count] = pin;
			known = &g->pins[g->pins_count++];
		}
		if (!covers(&pin, addr))
			return -EINVAL;
	}
	*ret_index = known->lkey;
	*ret_len = HP_MIN(len, known->len - ((uintptr_t)addr - known->base));
	return 0;
}

/* Take the caller's pieces over, split where registrations end, each with its index. */
static int take_pieces(hugepin_sg_uring *q, struct message *g, const struct iovec *iov, int n, bool keys)
{
	const unsigned access = g->m.verb == HUGEPIN_SG_URING_READ ? HUGEPIN_WRITE : HUGEPIN_READ;
	uint32_t count = 0;

	for (int i = 0; i < n; i++) {
		char *addr = iov[i].iov_base;
		size_t left = iov[i].iov_len, len;

		for (; left; addr += len, left -= len) {
			int err = 0;

			if (count == q->pieces)
				return -EMSGSIZE;
			len = left;
			g->m.indexes[count] = HUGEPIN_SG_URING_NONE;
			if (keys)
				err = find_key(q, g, addr, left, access, &g->m.indexes[count], &len);
			if (err)
				return err;
			g->m.pieces[count++] = (struct iovec){ addr, len };
		}
	}
	g->m.pieces_count = count;
	return 0;
}

/* ------------------------------------------------------------------ requests */

static bool prepare(hugepin_sg_uring *q, struct message *g)
{
	struct hp_message *m = &g->m;
	uint64_t at = g->offset == UINT64_MAX ? UINT64_MAX : g->offset + m->done;

	if (io_uring_sq_space_left(q->ring) < m->linked)
		return false;
	for (uint32_t i = 0; i < m->linked; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(q->ring);

		if (HP_UNLIKELY(!sqe)) /* there was room */
			return false;
		hp_uring_fill(sqe, m->verb, g->target->fd, at, &m->parts[i], m->elements, &g->headers[i]);
		sqe->flags = i + 1 < m->linked ? IOSQE_IO_LINK : 0;
		sqe->user_data = (uintptr_t)&m->parts[i];
		m->parts[i].res = -EINPROGRESS;
		if (at != UINT64_MAX)
			at += m->parts[i].bytes;
	}
	g->waiting = m->linked;
	q->stats.requests += m->linked;
	return true;
}

static void prepare_or_stall(hugepin_sg_uring *q, struct message *g)
{
	const bool stalled = !prepare(q, g);

	q->stalled += stalled;
	q->stalled -= g->stalled;
	g->stalled = stalled;
}

static void set_unasked(hugepin_sg_uring *q, struct message *g, bool unasked)
{
	q->stalled += unasked;
	q->stalled -= g->unasked;
	g->unasked = unasked;
}

/* Ask the kernel to end the request that it is at. The others of the chain end with it. */
static void ask_for_end(hugepin_sg_uring *q, struct message *g)
{
	struct io_uring_sqe *sqe = NULL;
	uint32_t i = 0;

	while (i < g->m.linked && g->m.parts[i].res != -EINPROGRESS)
		i++;
	if (i < g->m.linked)
		sqe = io_uring_get_sqe(q->ring);
	set_unasked(q, g, i < g->m.linked && !sqe);
	if (!sqe)
		return;
	memset(sqe, 0, sizeof *sqe);
	sqe->opcode = IORING_OP_ASYNC_CANCEL;
	sqe->fd = -1;
	sqe->addr = (uintptr_t)&g->m.parts[i];
	sqe->user_data = (uintptr_t)g;
	g->cancels++;
	g->asked = i;
}

/* ------------------------------------------------------------------ a message's end */

/* Call back with what has become known, and take the message back when nothing of it is to come. */
static void tell(hugepin_sg_uring *q, struct message *g, unsigned what)
{
	const hugepin_sg_uring_fn call = g->call;
	void *const arg = g->arg;
	const int err = g->m.err;
	const size_t bytes = g->m.done;

	if (!g->notices)
		what |= g->out ? HUGEPIN_SG_URING_FREE : 0;
	if (what & HUGEPIN_SG_URING_FREE)
		g->out = false;
	if (!g->notices && !g->cancels) {
		g->next = q->free;
		q->free = g;
		q->stats.out--;
	}
	if (what && call)
		call(arg, err, bytes, what);
}

static void finish(hugepin_sg_uring *q, struct message *g)
{
	hp_message_end(&g->m);
	give_back(q, g);
	set_unasked(q, g, false);
	g->done = true;
	if (g->ordered)
		g->target->out--;
	/* What goes by address went through, so the index was the reason. */
	if ((g->m.refused_by == -EOPNOTSUPP || g->m.refused_by == -EINVAL) && !g->m.err)
		g->target->refused |= HUGEPIN_SG_URING_FIXED;
	tell(q, g, HUGEPIN_SG_URING_DONE);
}

static void go_on(hugepin_sg_uring *q, struct message *g)
{
	switch (hp_message_results(&g->m, g->cancelled)) {
	case HP_FINISHED:
		finish(q, g);
		return;
	case HP_NEXT:
		break;
	case HP_REFUSED:
		q->stats.refused++;
		break;
	case HP_CONTINUES:
		q->stats.continued++;
		break;
	}
	prepare_or_stall(q, g);
}

/* ------------------------------------------------------------------ the public functions */

static int begin(hugepin_sg_uring *q, unsigned verb, struct hugepin_sg_uring_target *t, uint64_t offset,
		 const struct iovec *iov, int n, unsigned mode, hugepin_sg_uring_fn done, void *arg)
{
	const unsigned all = HUGEPIN_SG_URING_PLAIN | HUGEPIN_SG_URING_FIXED | HUGEPIN_SG_URING_COPY;
	struct hugepin_sg_uring_caps caps;
	uint64_t bytes;
	struct message *g;
	unsigned ways;
	int err;

	if (!q || !t || mode & ~all || hp_iov_bytes(iov, n, &bytes) || !bytes)
		return -EINVAL;
	if (bytes > HP_URING_BYTES_MAX)
		return -EOVERFLOW;
	ways = (mode ? mode : all) & ~q->without & ~t->refused;
	if (!ways)
		return -EOPNOTSUPP;
	const bool ordered = verb == HUGEPIN_SG_URING_SEND || offset == UINT64_MAX;
	if (ordered && t->out)
		return -EBUSY;
	g = q->free;
	if (!g)
		return -EAGAIN;
	caps = q->caps;
	if (t->whole)
		caps.max_requests = 1;
	if (t->refused & HUGEPIN_SG_URING_FIXED)
		caps.zero_copy = 0;
	g->m.verb = verb;
	g->pins_count = 0;
	err = take_pieces(q, g, iov, n, q->key && ways & HUGEPIN_SG_URING_FIXED);
	if (!err)
		err = hugepin_sg_uring_plan(&q->model, &caps, verb, g->m.pieces, g->m.indexes, (int)g->m.pieces_count,
					    ways, verb == HUGEPIN_SG_URING_SEND ? 1 : t->align, &g->m.plan);
	if (!err && io_uring_sq_space_left(q->ring) < g->m.plan.requests)
		err = -EAGAIN;
	if (err) {
		give_back(q, g);
		return err;
	}
	q->free = g->next;
	g->target = t;
	g->offset = offset;
	g->call = done;
	g->arg = arg;
	g->notices = g->cancels = 0;
	g->stalled = g->unasked = g->done = g->cancelled = false;
	g->out = true;
	g->ordered = ordered;
	t->out += ordered;
	hp_message_begin(&g->m);
	for (uint32_t i = 0; i < g->m.parts_count; i++)
		if (g->m.parts[i].index != HUGEPIN_SG_URING_NONE)
			q->stats.fixed_bytes += g->m.parts[i].bytes;
	q->stats.copied_bytes += g->m.plan.copied;
	q->stats.messages++;
	q->stats.out++;
	prepare(q, g);
	return 0;
}

int hugepin_sg_uring_send(hugepin_sg_uring *q, struct hugepin_sg_uring_target *t, const struct iovec *iov, int n,
			  unsigned mode, hugepin_sg_uring_fn done, void *arg)
{
	return begin(q, HUGEPIN_SG_URING_SEND, t, 0, iov, n, mode, done, arg);
}

int hugepin_sg_uring_write(hugepin_sg_uring *q, struct hugepin_sg_uring_target *t, uint64_t offset,
			   const struct iovec *iov, int n, unsigned mode, hugepin_sg_uring_fn done, void *arg)
{
	return begin(q, HUGEPIN_SG_URING_WRITE, t, offset, iov, n, mode, done, arg);
}

int hugepin_sg_uring_read(hugepin_sg_uring *q, struct hugepin_sg_uring_target *t, uint64_t offset,
			  const struct iovec *iov, int n, unsigned mode, hugepin_sg_uring_fn done, void *arg)
{
	return begin(q, HUGEPIN_SG_URING_READ, t, offset, iov, n, mode, done, arg);
}

int hugepin_sg_uring_again(hugepin_sg_uring *q)
{
	if (!q)
		return -EINVAL;
	for (uint32_t i = 0; q->stalled && i < q->messages; i++) {
		struct message *g = &q->message[i];

		if (g->unasked)
			ask_for_end(q, g);
		if (!g->stalled)
			continue;
		if (g->cancelled) {
			q->stalled--;
			g->stalled = false;
			g->m.err = -ECANCELED;
			finish(q, g);
		} else {
			prepare_or_stall(q, g);
		}
	}
	return (int)q->stalled;
}

static void completed(hugepin_sg_uring *q, struct message *g, struct hp_uring_part *p, const struct io_uring_cqe *cqe)
{
	if (cqe->flags & IORING_CQE_F_NOTIF) {
		g->notices--;
		if (g->done)
			tell(q, g, 0);
		return;
	}
	p->res = cqe->res;
	g->notices += !!(cqe->flags & IORING_CQE_F_MORE);
	if (!--g->waiting)
		go_on(q, g);
	else if (g->cancelled && !g->cancels && cqe->res >= 0 && (uint32_t)cqe->res == p->bytes)
		ask_for_end(q, g); /* the request could not be stopped (-EALREADY): the chain has gone on */
}

int hugepin_sg_uring_cqe(hugepin_sg_uring *q, const struct io_uring_cqe *cqe)
{
	if (!q || !cqe)
		return -EINVAL;
	const uint64_t part = cqe->user_data - (uintptr_t)q->all_parts, g = cqe->user_data - (uintptr_t)q->message;

	if (part < (uint64_t)q->messages * q->caps.max_requests * sizeof *q->all_parts) {
		const size_t i = part / sizeof *q->all_parts;

		completed(q, &q->message[i / q->caps.max_requests], &q->all_parts[i], cqe);
	} else if (g < q->messages * sizeof *q->message) {
		struct message *cancelled = &q->message[g / sizeof *q->message];

		cancelled->cancels--;
		/* The kernel may have gone on to the next request of the chain: before it was asked, or since. */
		if (cancelled->waiting && !cancelled->done &&
		    (cqe->res == -ENOENT ||
		     (cqe->res == -EALREADY && cancelled->m.parts[cancelled->asked].res != -EINPROGRESS)))
			ask_for_end(q, cancelled);
		if (cancelled->done)
			tell(q, cancelled, 0);
	} else {
		return 0;
	}
	if (q->stalled)
		hugepin_sg_uring_again(q);
	return 1;
}

int hugepin_sg_uring_cancel(hugepin_sg_uring *q, const void *arg)
{
	int count = 0;

	if (!q)
		return -EINVAL;
	for (uint32_t i = 0; i < q->messages; i++) {
		struct message *g = &q->message[i];

		if (!g->out || g->done || g->arg != arg)
			continue;
		g->cancelled = true;
		if (g->waiting && !g->cancels)
			ask_for_end(q, g);
		count++;
	}
	return count;
}
