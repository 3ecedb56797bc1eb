/*
 * The functions of libibverbs that the library stands before. They have no version, so they satisfy references with
 * any.
 *
 * What is unusual goes to libibverbs: another address for the peers than the program's, on-demand paging, memory
 * windows, addresses that begin at zero, access that is not known here, very long ranges. libibverbs itself has
 * ibv_reg_dmabuf_mr, which does not come here.
 *
 * A backend of hugepin's pin cache may call from inside a domain, whose lock it has. Its registrations are that cache's
 * to keep, so they go to libibverbs, too.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#include "cache.h"
#include "domain.h"
#include "hugepin.h"
#include "options.h"
#include "real.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define EXPORT __attribute__((visibility("default")))

#define LEN_MAX ((size_t)1 << 40)
#define LOCAL ((unsigned)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING))
#define REMOTE ((unsigned)(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC))

/* This thread is freeing a protection domain or a device. Providers deregister memory of their own there, which must
 * not be kept: mlx5's goes with each protection domain. A provider may free protection domains as it frees a device. */
static _Thread_local bool freeing;

/* Begin a call, which ends by hp_cache_leave(). False: it goes to libibverbs alone. */
static bool enter(void)
{
	return hp_verbscache_mode() != HP_VERBSCACHE_OFF && !hugepin_registering() && hp_cache_enter();
}

static bool may_be_kept(const void *addr, size_t len, uint64_t iova, unsigned access)
{
	unsigned may = hp_verbscache_mode() == HP_VERBSCACHE_REMOTE ? LOCAL | REMOTE : LOCAL;

	return len && len <= LEN_MAX && iova == (uintptr_t)addr && !(access & ~may);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	const struct hp_real *real = hp_real();
	int saved_errno = errno;
	struct ibv_mr *mr;

	if (!real) {
		errno = ENOSYS;
		return NULL;
	}
	if (!enter())
		return real->reg(pd, addr, len, iova, access);
	HP_VERBSCACHE_COUNT(asked);
	mr = may_be_kept(addr, len, iova, access) ? hp_cache_reg(pd, addr, len, access)
						  : hp_cache_pass(pd, addr, len, iova, access);
	hp_cache_leave();
	if (mr)
		errno = saved_errno;
	return mr;
}

EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, len, iova, (unsigned)access);
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	return ibv_reg_mr_iova2(pd, addr, len, (uintptr_t)addr, (unsigned)access);
}

EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t len, int access)
{
	const struct hp_real *real = hp_real();
	int err;

	if (!real) {
		errno = ENOSYS;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (!enter())
		return real->rereg(mr, flags, pd, addr, len, access);
	hp_cache_disown(mr);
	/* Without room for the new range the registration would be lost: make room before. */
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION)
		hp_pds_trim();
	err = real->rereg(mr, flags, pd, addr, len, access);
	hp_cache_leave();
	return err;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	const struct hp_real *real = hp_real();
	int err;

	if (!real)
		return ENOSYS;
	if (!enter())
		return real->dereg(mr);
	HP_VERBSCACHE_COUNT(given_back);
	if (freeing)
		hp_cache_disown(mr);
	err = freeing ? real->dereg(mr) : hp_cache_dereg(mr);
	hp_cache_leave();
	return err;
}

/* What the program has left of a protection domain (NULL: of all) of a device (NULL: of all). The call that frees it is
 * not within these, since a provider comes back here (freeing). */
static void end(const struct ibv_pd *pd, const struct ibv_context *context, bool disowned)
{
	if (!enter())
		return;
	if (disowned)
		hp_cache_disown_all(pd, context);
	hp_pds_close(pd, context);
	hp_cache_leave();
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	const struct hp_real *real = hp_real();
	bool before = freeing;
	int err;

	if (!real)
		return ENOSYS;
	hp_pds_pause();
	end(pd, NULL, false);
	freeing = true;
	err = real->dealloc_pd(pd);
	freeing = before;
	if (!err)
		end(pd, NULL, true); /* they have gone by calls that did not come here */
	hp_pds_resume();
	return err;
}

/* A program may close a device and leave protection domains and registrations to the kernel. */
EXPORT int ibv_close_device(struct ibv_context *context)
{
	const struct hp_real *real = hp_real();
	bool before = freeing;
	int err;

	if (!real)
		return ENOSYS;
	hp_pds_pause();
	end(NULL, context, true);
	freeing = true;
	err = real->close_device(context);
	freeing = before;
	hp_pds_resume();
	return err;
}

/* Called by libhugepin-mpi.so, which finds it by its name: a transfer of these bytes is announced, or comes to a phase
 * (hugepin_prefetch). Any thread. */
EXPORT void hugepin_verbscache_phase(const void *addr, size_t len, unsigned phase);
void hugepin_verbscache_phase(const void *addr, size_t len, unsigned phase)
{
	if (!len || !enter())
		return;
	hp_pds_phase(addr, len, phase);
	hp_cache_leave();
}
