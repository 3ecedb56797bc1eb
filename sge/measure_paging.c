/*
 * Calibration of memory that is registered on demand, for the policies of the pin cache (hugepin_odp(7)).
 *
 * Each operation is done on one page and on many, several times. The least times give its line, because disturbances
 * only make times longer. Memory has base pages. Memory to be pinned was written before. Memory to be brought in, or to
 * fault, was never touched, so that the kernel has to find a page for each, as it has to for pages that it has taken
 * back.
 *
 * Only a message shows a fault: RDMA WRITE of a few bytes from a page, or to it. The same message meets no fault the
 * second time, so the difference is the time of the fault.
 */
#include "sge/measure_paging.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "base/base.h"
#include "reg/backend/terms.h"
#include "reg/backend/verbs.h"
#include "sge/error.h"
#include "sge/pair.h"

enum { ROUNDS = 16, PAGES = 64, MESSAGE_BYTES = 8 };
#define BYTES (PAGES * hp_base_page)
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

enum { REG, DEREG, DEMAND, BRING, OPERATIONS };

struct paging {
	struct hp_pair pair;
	char *far; /* the pinned side of messages */
	struct ibv_mr *far_mr;
	/* The least times so far. 0: none yet. */
	uint64_t ns[OPERATIONS][2]; /* of an operation on one page, and on PAGES */
	uint64_t faulting_ns[2]; /* of a message that faults at the sender, and of one that faults at the receiver */
	uint64_t later_ns[2]; /* of the same message sent again, which meets no fault */
};

/* Shared memory, because the first read of a private page would find the page of zeros, so that the kernel need not
 * find a page. */
static char *map(void)
{
	char *m = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED)
		return NULL;
	madvise(m, BYTES, MADV_NOHUGEPAGE);
	madvise(m, BYTES, MADV_DONTFORK);
	return m;
}

static void keep_least(uint64_t *least_ns, uint64_t start_ns)
{
	const uint64_t ns = HP_MAX(hp_clock_ns() - start_ns, UINT64_C(1));

	if (!*least_ns || ns < *least_ns)
		*least_ns = ns;
}

static struct ibv_mr *reg(struct paging *p, char *addr, size_t len, unsigned access, uint64_t *least_ns)
{
	const uint64_t start = hp_clock_ns();
	struct ibv_mr *mr;

	errno = 0;
	mr = ibv_reg_mr(p->pair.pd, addr, len, access);
	keep_least(least_ns, start);
	return mr;
}

static int dereg(struct ibv_mr *mr, uint64_t *least_ns)
{
	const uint64_t start = hp_clock_ns();
	const int err = hp_verbs_errno(ibv_dereg_mr(mr));

	keep_least(least_ns, start);
	return err;
}

/* Register and deregister pinned memory. all: PAGES pages, else one. */
static int measure_pinned(struct paging *p, bool all, char *m)
{
	const size_t len = all ? BYTES : hp_base_page;
	struct ibv_mr *mr;

	for (size_t i = 0; i < len; i += hp_base_page)
		((volatile char *)m)[i] = 1;
	mr = reg(p, m, len, ACCESS, &p->ns[REG][all]);
	return mr ? dereg(mr, &p->ns[DEREG][all]) : hp_verbs_errno(-1);
}

/* Register memory on demand and bring it in. all: as above. */
static int measure_demand(struct paging *p, bool all, char *m)
{
	const size_t len = all ? BYTES : hp_base_page;
	struct ibv_mr *mr = reg(p, m, len, ACCESS | IBV_ACCESS_ON_DEMAND, &p->ns[DEMAND][all]);
	uint64_t unused = 0;
	int err;

	if (!mr)
		return hp_verbs_errno(-1);
	const uint64_t start = hp_clock_ns();
	err = hp_verbs_error(hp_verbs_bring(p->pair.pd, mr->lkey, true, m, len));
	keep_least(&p->ns[BRING][all], start);
	const int dereg_err = dereg(mr, &unused);
	return err ? err : dereg_err;
}

static int send(struct paging *p, struct ibv_mr *from, struct ibv_mr *to, size_t at, uint64_t *least_ns)
{
	struct ibv_sge sge = { (uintptr_t)from->addr + at, MESSAGE_BYTES, from->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED,
					.wr.rdma = { (uintptr_t)to->addr + at, to->rkey } };
	const uint64_t start = hp_clock_ns();
	const bool ok = !ibv_post_send(p->pair.qp[0], &wr, &bad) && hp_pair_wait(&p->pair, 1);

	keep_least(least_ns, start);
	return ok ? 0 : -EIO;
}

static int measure_faults(struct paging *p, bool receives, char *m)
{
	uint64_t unused = 0;
	struct ibv_mr *mr = reg(p, m, BYTES, ACCESS | IBV_ACCESS_ON_DEMAND, &unused);
	struct ibv_mr *const from = receives ? p->far_mr : mr, *const to = receives ? mr : p->far_mr;
	int err = 0;

	if (!mr)
		return hp_verbs_errno(-1);
	for (size_t at = 0; at < BYTES && !err; at += hp_base_page) {
		err = send(p, from, to, at, &p->faulting_ns[receives]);
		err = err ? err : send(p, from, to, at, &p->later_ns[receives]);
	}
	const int dereg_err = dereg(mr, &unused);
	return err ? err : dereg_err;
}

/* With fresh memory. */
static int measure(struct paging *p, int (*what)(struct paging *, bool, char *), bool which)
{
	char *const m = map();
	const int err = m ? what(p, which, m) : -ENOMEM;

	if (m)
		munmap(m, BYTES);
	return err;
}

static int open_paging(struct paging *p)
{
	uint64_t unused = 0;
	int err = hp_pair_find_port(&p->pair);

	if (err)
		return err;
	p->far = map();
	if (!p->far)
		return -ENOMEM;
	p->far_mr = reg(p, p->far, BYTES, ACCESS, &unused);
	return p->far_mr ? hp_pair_connect(&p->pair) : hp_verbs_errno(-1);
}

static void close_paging(struct paging *p)
{
	hp_pair_disconnect(&p->pair);
	if (p->far_mr)
		ibv_dereg_mr(p->far_mr);
	if (p->far)
		munmap(p->far, BYTES);
}

static float fault_of(const struct paging *p, bool receives)
{
	const double ns = (double)p->faulting_ns[receives] - (double)p->later_ns[receives];

	return ns > 0 ? (float)ns : 0;
}

static void line_of(const struct paging *p, int operation, float *ret_fixed, float *ret_page)
{
	hp_terms_line((double)p->ns[operation][0], (double)p->ns[operation][1], PAGES, ret_fixed, ret_page);
}

int hp_measure_paging(struct ibv_pd *pd, struct hugepin_terms *ret_)
{
	struct paging p = { .pair.pd = pd };
	int err = open_paging(&p);

	for (unsigned round = 0; round < ROUNDS; round++)
		for (int which = 0; which < 2 && !err; which++) {
			err = measure(&p, measure_pinned, which);
			err = err ? err : measure(&p, measure_demand, which);
			err = err ? err : measure(&p, measure_faults, which);
		}
	close_paging(&p);
	if (err)
		return err;
	line_of(&p, REG, &ret_->reg, &ret_->reg_page);
	line_of(&p, DEREG, &ret_->dereg, &ret_->dereg_page);
	line_of(&p, DEMAND, &ret_->demand, &ret_->demand_page);
	line_of(&p, BRING, &ret_->bring, &ret_->bring_page);
	ret_->fault_send = fault_of(&p, false);
	ret_->fault_receive = fault_of(&p, true);
	return 0;
}
