/*
 * Calibration over a device. Two queue pairs of this process are connected to each other. A queue packs while messages
 * are under way, so what counts is how often a message can be sent: a window of messages is kept under way. The CPU's
 * time of a message is that of filling and posting it. The device's time is that between two completions, where the CPU
 * had to wait for most of them. (LogGP has them as overhead and gap: Alexandrov, Ionescu, Schauser, Scheiman 1995.)
 *
 * Some providers report success but deliver less. So before any measurement, each message of the grid is sent in each
 * mode, by SEND and by RDMA WRITE, and compared. A mode that arrives wrong once is refused.
 *
 * The terms of copying and of lookups, which no device changes, are taken from the measurement without a device.
 *
 * Rounds of all cells alternate, so that a disturbance affects all cells alike.
 */
#include "sge/measure_device.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "sge/cells.h"
#include "sge/error.h"
#include "sge/pair.h"
#include "sge/wqe.h"

#define BIT(term) HP_CELL_BIT(term)
#define POST_TERMS (BIT(wr) | BIT(element) | BIT(byte) | BIT(inline_wr) | BIT(inline_piece) | BIT(inline_byte))

enum {
	DEVICE_ROUNDS = 9,
	WINDOW = HP_PAIR_DEPTH,
	MESSAGES = 3 * WINDOW, /* of a cell, in each round */
};

struct wire {
	struct hp_pair pair;
	char *memory; /* source, slot, destination */
	struct ibv_mr *mr;
	struct hp_sg_cell cell[HP_CELLS_MAX];
	unsigned cells;
};
#define WIRE_BYTES ((size_t)2 * HP_CELL_SLOT_BYTES + HP_CELL_LAYOUT_MAX)

static int wire_open(struct wire *w)
{
	int err = hp_pair_find_port(&w->pair);

	if (err)
		return err;
	w->memory = mmap(NULL, WIRE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (w->memory == MAP_FAILED)
		return -ENOMEM;
	madvise(w->memory, WIRE_BYTES, MADV_DONTFORK);
	for (size_t i = 0; i < WIRE_BYTES; i++)
		w->memory[i] = (char)(i * 31 + (i >> 8) * 7);
	errno = 0;
	w->mr = ibv_reg_mr(w->pair.pd, w->memory, WIRE_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	return w->mr ? hp_pair_connect(&w->pair) : hp_verbs_errno(-1);
}

static void wire_close(struct wire *w)
{
	hp_pair_disconnect(&w->pair);
	if (w->mr)
		ibv_dereg_mr(w->mr);
	if (w->memory && w->memory != MAP_FAILED)
		munmap(w->memory, WIRE_BYTES);
}

static int wire_key(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	const struct wire *w = arg;

	(void)len, (void)access;
	if (addr)
		*ret_ = (struct hugepin_pin){ (uintptr_t)w->memory, WIRE_BYTES, w->mr->lkey, w->mr->rkey, 0 };
	return 0;
}

/* Post a message of the cell. *ret_ns: the time of filling and posting. */
static bool post_cell(struct wire *w, const struct hp_sg_cell *c, enum ibv_wr_opcode opcode, uint64_t *ret_ns)
{
	char *const slot = w->memory + HP_CELL_LAYOUT_MAX, *const to = slot + HP_CELL_SLOT_BYTES;
	struct iovec iov[HP_CELL_PIECES_MAX];
	struct ibv_sge sge[HP_CELL_PIECES_MAX], in = { (uintptr_t)to, (uint32_t)HP_CELL_SLOT_BYTES, w->mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr wr, *bad, tmpl = { .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
					      .wr.rdma = { (uintptr_t)to, w->mr->rkey } };
	const struct hugepin_sg_room room = {
		.size = sizeof room, .wr = &wr, .wrs = 1, .sge = sge, .sges = HP_CELL_PIECES_MAX,
		.slot = slot, .slot_len = HP_CELL_SLOT_BYTES, .slot_lkey = w->mr->lkey,
		.key = wire_key, .arg = w,
	};

	hp_cell_lay(iov, c->n, c->bytes, w->memory, c->bytes + HP_CELL_STRIDE_MORE);
	if (opcode == IBV_WR_SEND && ibv_post_recv(w->pair.qp[1], &recv, &bad_recv))
		return false;
	const uint64_t start = hp_clock_ns();
	const bool ok = hugepin_sg_fill(&c->plan, iov, (int)c->n, &tmpl, &room, NULL) == 1 &&
			!ibv_post_send(w->pair.qp[0], &wr, &bad);
	*ret_ns = hp_clock_ns() - start;
	return ok;
}

/* Send messages of the cell, a window of them at a time. All share a slot, since nobody looks at the bytes. Of a
 * message there are two completions. */
static bool send_window(struct wire *w, struct hp_sg_cell *c, unsigned round)
{
	uint64_t cpu = 0, ns = 0, first = 0;

	w->pair.idle = 0;
	for (int i = 0; i < MESSAGES; i++) {
		if (i >= WINDOW && !hp_pair_wait(&w->pair, 2))
			return false;
		if (i == WINDOW)
			first = hp_clock_ns();
		if (!post_cell(w, c, IBV_WR_SEND, &ns))
			return false;
		cpu += ns;
	}
	if (!hp_pair_wait(&w->pair, 2 * WINDOW))
		return false;
	ns = hp_clock_ns() - first;
	c->ns[round] = (float)cpu / (float)MESSAGES;
	c->device_ns[round] = w->pair.idle < MESSAGES / 2 ? 0 : (float)ns / (MESSAGES - 1);
	return true;
}

/* Whether a cell's message arrives complete, and nothing behind it is overwritten. */
static bool cell_arrives(struct wire *w, const struct hp_sg_cell *c, enum ibv_wr_opcode opcode)
{
	char *const to = w->memory + HP_CELL_LAYOUT_MAX + HP_CELL_SLOT_BYTES;
	const size_t stride = c->bytes + HP_CELL_STRIDE_MORE, len = (size_t)c->n * c->bytes;
	struct iovec iov[HP_CELL_PIECES_MAX];
	struct hp_sg_cell planned = *c;
	uint64_t ns;

	hp_cell_lay(iov, c->n, c->bytes, w->memory, stride);
	if (hugepin_sg_plan(NULL, &w->pair.caps, iov, (int)c->n, c->mode | (opcode == IBV_WR_SEND ? 0 : HUGEPIN_SG_WRITE),
			    &planned.plan))
		return false;
	for (size_t i = 0; i < c->n; i++)
		for (size_t j = 0; j < c->bytes; j++)
			to[i * c->bytes + j] = (char)~w->memory[i * stride + j];
	const char behind = len < HP_CELL_SLOT_BYTES ? to[len] : 0;
	if (!post_cell(w, &planned, opcode, &ns) || !hp_pair_wait(&w->pair, 1 + (opcode == IBV_WR_SEND)))
		return false;
	for (size_t i = 0; i < c->n; i++)
		if (memcmp(to + i * c->bytes, w->memory + i * stride, c->bytes))
			return false;
	return len == HP_CELL_SLOT_BYTES || to[len] == behind;
}

/* Remove the cells of modes that arrive wrong. */
static int refuse_wrong(struct wire *w, uint32_t *refused)
{
	unsigned kept = 0;
	int err = 0;

	for (unsigned i = 0; i < w->cells && !err; i++) {
		const struct hp_sg_cell *c = &w->cell[i];
		if (!(*refused & c->mode) &&
		    !(cell_arrives(w, c, IBV_WR_SEND) && cell_arrives(w, c, IBV_WR_RDMA_WRITE))) {
			*refused |= c->mode;
			hp_pair_disconnect(&w->pair);
			err = hp_pair_connect(&w->pair);
		}
	}
	for (unsigned i = 0; i < w->cells; i++)
		if (!(*refused & w->cell[i].mode))
			w->cell[kept++] = w->cell[i];
	w->cells = kept;
	return err ? err : *refused & HUGEPIN_SG_COPY ? -EIO : 0;
}

static int wire_run(struct wire *w, struct hugepin_sg_model *m)
{
	int err = wire_open(w);

	for (unsigned mode = HUGEPIN_SG_INLINE; !err && mode <= HUGEPIN_SG_GATHER; mode *= 2)
		err = hp_cells_add(w->cell, &w->cells, &w->pair.caps, w->memory, mode, false);
	m->refused = 0;
	if (!err)
		err = refuse_wrong(w, &m->refused);
	for (unsigned round = 0; round < DEVICE_ROUNDS; round++)
		for (unsigned i = 0; !err && i < w->cells; i++)
			if (!send_window(w, &w->cell[i], round))
				err = -EIO;
	if (!err && hp_cells_fit(m, POST_TERMS, w->cell, w->cells, DEVICE_ROUNDS) >= 0) {
		m->source = HUGEPIN_SG_MODEL_DEVICE;
		hp_cells_fit(m, HP_SG_DEVICE_TERMS, w->cell, w->cells, DEVICE_ROUNDS);
	}
	return err;
}

int hp_measure_device(struct ibv_pd *pd, struct hugepin_sg_model *m)
{
	struct wire *w = calloc(1, sizeof *w);
	int err;

	if (!w)
		return -ENOMEM;
	w->pair.pd = pd;
	err = wire_run(w, m);
	wire_close(w);
	free(w);
	return err;
}
