/*
 * Measuring thresholds: messages are sent in each way, and the thresholds are those by which the cheapest way is
 * chosen.
 */
#ifndef HP_SGE_MEASURE_H
#define HP_SGE_MEASURE_H

#include <stdbool.h>

#include "hugepin_verbs.h"

/* The carrier of the messages: a device, or the substitute of a bench or a test. Each function returns false if it
 * failed. */
struct hp_sg_carrier {
	hugepin_domain *domain; /* registers the memory of messages */
	struct hugepin_sg_caps caps;
	/* The present message, and whether its pieces were flushed from the cache, for a carrier that pretends. */
	const struct hugepin_sg_plan *plan;
	bool cold;
	/* one work request; waits for room if there is none */
	bool (*post)(struct hp_sg_carrier *, struct ibv_send_wr *);
	bool (*end)(struct hp_sg_carrier *); /* waits until all posted work requests have completed */
	/* Post a receive for a SEND that follows. NULL: nothing arrives, so no way is refused. */
	bool (*recv)(struct hp_sg_carrier *, struct ibv_sge *);
	int (*reset)(struct hp_sg_carrier *); /* after a failure. 0 or -errno */
};

/* Measure for about a second. A value that the carrier cannot show stays as it is in *model. 0; -EIO: not even one
 * element arrives; or -errno, and *model is unchanged. */
int hp_sg_measure(struct hp_sg_carrier *, struct hugepin_sg_model *model);

#endif
