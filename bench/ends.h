/*
 * Two ends of a connection in one process and one thread, for benches of messages over a verbs device. Each has a
 * buffer that is pinned, and one that is registered on demand.
 */
#ifndef BENCH_ENDS_H
#define BENCH_ENDS_H

#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>

#include "lib.h"
#include "rc.h"

enum { ENDS_QUEUE = 16 }; /* messages under way, at most */
enum way { PIN, DEMAND, WAYS };
static const char *const way_names[] = { "pin", "demand" };

struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	char *buffer[WAYS];
	struct ibv_mr *mr[WAYS];
	unsigned sent, received; /* completions so far */
};

static inline bool ends_on_demand(struct ibv_pd *pd)
{
	const unsigned needed = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV;
	struct ibv_device_attr_ex a = { 0 };

	return !ibv_query_device_ex(pd->context, NULL, &a) && a.odp_caps.general_caps & IBV_ODP_SUPPORT &&
	       (a.odp_caps.per_transport_caps.rc_odp_caps & needed) == needed;
}

/* Memory in base pages. The device knows those pages that are there when it is registered. */
static inline char *ends_map(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || madvise(p, len, MADV_NOHUGEPAGE))
		err(1, "memory");
	return p;
}

static inline void ends_register(struct ibv_pd *pd, struct end *e, enum way w, size_t len)
{
	e->buffer[w] = ends_map(len);
	touch(e->buffer[w], len);
	e->mr[w] = ibv_reg_mr(pd, e->buffer[w], len,
			      (int)IBV_ACCESS_LOCAL_WRITE | (w == DEMAND ? (int)IBV_ACCESS_ON_DEMAND : 0));
	if (!e->mr[w])
		err(1, "ibv_reg_mr, %s", way_names[w]);
}

static inline void ends_connect(struct ibv_pd *pd, struct end e[2])
{
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_cap cap = { .max_send_wr = ENDS_QUEUE, .max_recv_wr = ENDS_QUEUE, .max_send_sge = 1,
					  .max_recv_sge = 1 };

		e[i].cq = ibv_create_cq(pd->context, 4 * ENDS_QUEUE, NULL, NULL, 0);
		e[i].qp = rc_create(pd, e[i].cq, &cap);
	}
	rc_connect(e[0].qp, e[1].qp);
}

/* ------------------------------------------------------------------ messages */

static inline struct ibv_sge ends_piece(const struct end *e, enum way w, size_t at, size_t len)
{
	return (struct ibv_sge){ (uintptr_t)e->buffer[w] + at, (uint32_t)len, e->mr[w]->lkey };
}

static inline void ends_receive(struct end *e, enum way w, size_t at, size_t len)
{
	struct ibv_sge sge = ends_piece(e, w, at, len);
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	check(ibv_post_recv(e->qp, &wr, &bad), "post a receive");
}

static inline void ends_send(struct end *e, enum way w, size_t at, size_t len)
{
	struct ibv_sge sge = ends_piece(e, w, at, len);
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED };

	check(ibv_post_send(e->qp, &wr, &bad), "post a send");
}

/* Wait until so many sends and receives of this end have completed, all in all. */
static inline void ends_await(struct end *e, unsigned sent, unsigned received)
{
	struct ibv_wc wc[ENDS_QUEUE];

	while ((int)(sent - e->sent) > 0 || (int)(received - e->received) > 0) {
		const int n = ibv_poll_cq(e->cq, ENDS_QUEUE, wc);

		for (int i = 0; i < n; i++) {
			if (wc[i].status)
				errx(1, "completion: %s", ibv_wc_status_str(wc[i].status));
			if (wc[i].opcode & IBV_WC_RECV)
				e->received++;
			else
				e->sent++;
		}
		if (n < 0)
			errx(1, "ibv_poll_cq");
		if (!n)
			sched_yield();
	}
}

/* ------------------------------------------------------------------ memory that the device loses and gets back */

/* The device has to be told of these pages again, and the kernel has them. */
static inline void ends_lose(struct end *e, size_t len)
{
	if (madvise(e->buffer[DEMAND], len, MADV_DONTNEED))
		err(1, "madvise");
	touch(e->buffer[DEMAND], len);
}

/* As ibv_advise_mr(). Where the provider does not pass advice on, the kernel may take it nevertheless: find_advise() in
 * reg/backend/verbs.c says why. wait: for the pages to be there. */
static inline int ends_bring(struct ibv_pd *pd, struct end *e, size_t len, bool wait)
{
	typedef int advise_fn(struct ibv_pd *, enum ibv_advise_mr_advice, uint32_t, struct ibv_sge *, uint32_t);
	static advise_fn *by_kernel;
	struct ibv_sge sge = ends_piece(e, DEMAND, 0, len);
	const uint32_t flags = wait ? (uint32_t)IBV_ADVISE_MR_FLAG_FLUSH : 0;
	int error, tries = 0;

	do {
		error = by_kernel ? by_kernel(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, flags, &sge, 1) :
				    ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, flags, &sge, 1);
		if (error == EOPNOTSUPP && !by_kernel &&
		    (by_kernel = (advise_fn *)dlvsym(RTLD_DEFAULT, "ibv_cmd_advise_mr", "IBVERBS_PRIVATE_34")))
			error = EAGAIN;
	} while (error == EAGAIN && ++tries < 8); /* the mapping changed meanwhile */
	return error;
}

#endif
