/*
 * Measuring thresholds: messages are sent in each way, and the thresholds are those by which the cheapest way is
 * chosen.
 */
#ifndef HP_SGE_MEASURE_H
#define HP_SGE_MEASURE_H

#include <stdbool.h>

#include "hugepin_verbs.h"

/* What carries the messages: a device, or what a bench or a test has in its place. Each function returns false if it
 * failed. */
struct hp_sg_carrier {
	hugepin_domain *domain; /* registers what messages are made of */
	struct hugepin_sg_caps caps;
	/* What is being sent, and whether its pieces were flushed from the cache: for a carrier that pretends. */
	const struct hugepin_sg_plan *plan;
	bool cold;
	/* one work request; waits for room if there is none */
	bool (*post)(struct hp_sg_carrier *, struct ibv_send_wr *);
	bool (*end)(struct hp_sg_carrier *); /* waits until all that was posted is through */
	/* Post a receive for a SEND that follows. NULL: nothing arrives, and so no way is refused. */
	bool (*recv)(struct hp_sg_carrier *, struct ibv_sge *);
	int (*reset)(struct hp_sg_carrier *); /* after a failure. 0 or -errno */
};

/* Measure for about a second. What the carrier cannot show keeps its value in *model. 0; -EIO: not even one element
 * arrives; or
 * -errno, and *model is left alone. */
int hp_sg_measure(struct hp_sg_carrier *, struct hugepin_sg_model *model);

#endif
