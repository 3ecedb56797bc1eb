/*
 * hugepin with verbs (RDMA adapters): memory regions of a protection domain. Link with -lhugepin-verbs -lhugepin
 * -libverbs. The guide is hugepin_verbs(3).
 */
#ifndef HUGEPIN_VERBS_H
#define HUGEPIN_VERBS_H

#include "hugepin.h"

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Open a domain that registers memory regions with pd, by ibv_reg_mr. A pin's lkey goes into struct ibv_sge, its rkey
 * to the peer; addresses are the program's. attr may be NULL; a budget of 0 in it is what RLIMIT_MEMLOCK leaves now.
 * The protection domain must outlive the domain.
 * -EINVAL (a NULL), -EOPNOTSUPP (policy odp where the device has no on-demand paging, atomic access where it has none),
 * or as hugepin_domain_open. May block and allocate. */
int hugepin_verbs_open(struct ibv_pd *pd, const struct hugepin_attr *attr, hugepin_domain **ret_);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
