/*
 * libibverbs in little, for verbscache.sh, which gives it that name. It counts what it registers. As in rdma-core, the three
 * functions that register end in ibv_reg_mr_iova2 through the dynamic linker.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

unsigned fake_made, fake_gone;

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	struct ibv_mr *mr = calloc(1, sizeof *mr);

	(void)iova, (void)access;
	if (!mr)
		return NULL;
	__atomic_add_fetch(&fake_made, 1, __ATOMIC_RELAXED);
	mr->pd = pd;
	mr->context = pd->context;
	mr->addr = addr;
	mr->length = len;
	mr->lkey = mr->rkey = fake_made;
	return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	return ibv_reg_mr_iova2(pd, addr, len, (uintptr_t)addr, (unsigned)access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, len, iova, (unsigned)access);
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t len, int access)
{
	(void)mr, (void)flags, (void)pd, (void)addr, (void)len, (void)access;
	return 0;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	__atomic_add_fetch(&fake_gone, 1, __ATOMIC_RELAXED);
	free(mr);
	return 0;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	(void)pd;
	return 0;
}

int ibv_close_device(struct ibv_context *context)
{
	(void)context;
	return 0;
}
