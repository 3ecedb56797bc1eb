/*
 * libibverbs' own functions, past those of this library that stand before them.
 */
#ifndef HP_VERBSCACHE_REAL_H
#define HP_VERBSCACHE_REAL_H

#include <infiniband/verbs.h>

struct hp_real {
	/* ibv_reg_mr_iova2. The other two functions that register end in a call of it through the dynamic linker, which
	 * leads to this library again. */
	struct ibv_mr *(*reg)(struct ibv_pd *, void *addr, size_t len, uint64_t iova, unsigned access);
	int (*rereg)(struct ibv_mr *, int flags, struct ibv_pd *, void *addr, size_t len, int access);
	int (*dereg)(struct ibv_mr *);
	int (*dealloc_pd)(struct ibv_pd *);
	int (*close_device)(struct ibv_context *);
};

/* NULL: libibverbs is not loaded, or is older than rdma-core 28. */
const struct hp_real *hp_real(void);

#endif
