/*
 * Two queue pairs of this process that are connected to each other, for calibration.
 */
#ifndef HP_SGE_PAIR_H
#define HP_SGE_PAIR_H

#include <stdbool.h>

#include "hugepin_verbs.h"

struct hp_pair {
	struct ibv_pd *pd; /* the caller's */
	struct ibv_port_attr attr;
	uint8_t port;
	int gid_index;
	union ibv_gid gid;
	struct ibv_cq *cq; /* of both */
	struct ibv_qp *qp[2]; /* qp[0] sends to qp[1] */
	struct hugepin_sg_caps caps;
};

/* Messages that may be under way at a time, at least. */
enum { HP_PAIR_DEPTH = 8 };

/* Find an active port of the device. 0, or -errno; -EOPNOTSUPP: none is active. */
int hp_pair_find_port(struct hp_pair *);

/* Make the queue pairs on that port. Destroy them even after an error. 0, or -errno. */
int hp_pair_connect(struct hp_pair *);
void hp_pair_disconnect(struct hp_pair *);

/* Wait for so many completions. False: one failed, or did not come in time. */
bool hp_pair_wait(struct hp_pair *, int wanted);

#endif
