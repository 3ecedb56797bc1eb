/*
 * Registrations that are kept after the program has given them back, for the next that is equal: of the same bytes, for
 * the same access, on the same protection domain. Functions here keep errno where they do not return an error.
 */
#ifndef HP_VERBSCACHE_CACHE_H
#define HP_VERBSCACHE_CACHE_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdint.h>

/* What was asked of this library, by the program. */
#define HP_VERBSCACHE_COUNTERS(X)                                                                                      \
	X(asked)      /* registrations asked for */                                                                    \
	X(kept)	      /* answered by one that was there */                                                             \
	X(made)	      /* made by libibverbs when they were asked for */                                                \
	X(given_back) /* deregistrations asked for */

struct hp_verbscache_counters {
#define HP_VERBSCACHE_MEMBER(name) _Atomic uint64_t name; /* relaxed: a number, read at the end */
	HP_VERBSCACHE_COUNTERS(HP_VERBSCACHE_MEMBER)
#undef HP_VERBSCACHE_MEMBER
};
extern struct hp_verbscache_counters hp_verbscache_counters;
#define HP_VERBSCACHE_COUNT(name)                                                                                      \
	((void)atomic_fetch_add_explicit(&hp_verbscache_counters.name, 1, memory_order_relaxed))

/* ibv_reg_mr: by a kept registration, or a new one, which may be kept later. */
struct ibv_mr *hp_cache_reg(struct ibv_pd *pd, void *addr, size_t len, unsigned access);

/* ibv_reg_mr_iova2, by libibverbs, for one that is not kept. If there is no room for it, all kept ones are
 * deregistered, and it is tried again. */
struct ibv_mr *hp_cache_pass(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access);

/* ibv_dereg_mr: keep the registration, or deregister it. */
int hp_cache_dereg(struct ibv_mr *mr);

/* The registration is not to be kept. It may be one that the cache does not know. */
void hp_cache_disown(const struct ibv_mr *mr);

/* The same for all of a protection domain (NULL: of all) of a device (NULL: of all). */
void hp_cache_disown_all(const struct ibv_pd *pd, const struct ibv_context *context);

#endif
