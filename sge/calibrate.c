/*
 * The thresholds of a device, which are measured once (measure_device.c) and then kept in a file (model.h). Another
 * file keeps the device's times for registering on demand (reg/backend/terms.h).
 */
#include <errno.h>
#include <string.h>

#include "reg/backend/terms.h"
#include "reg/backend/verbs.h"
#include "sge/measure_device.h"
#include "sge/measure_paging.h"
#include "sge/model.h"

static int calibrate(struct ibv_pd *pd, bool anew, struct hugepin_sg_model *ret_)
{
	struct hugepin_terms t;
	struct hp_testbed testbed;
	int err = hp_verbs_testbed(pd->context, &testbed);

	if (err || (!anew && !hp_sg_model_of(&testbed, ret_)))
		return err;
	err = hp_measure_device(pd, ret_);
	if (err)
		return err;
	hp_sg_model_keep(&testbed, ret_);
	/* Registering on demand is no part of the thresholds, so after a failure only its terms are missing. */
	if (hp_verbs_odp(pd->context) && !hp_measure_paging(pd, &t))
		hp_terms_keep(&testbed, &t);
	return 0;
}

int hugepin_sg_calibrate(struct ibv_pd *pd, unsigned flags, struct hugepin_sg_model *ret_, size_t size)
{
	const int saved_errno = errno;
	struct hugepin_sg_model m;
	int err;

	if (!pd || !ret_ || size < sizeof m.size || flags & ~(unsigned)HUGEPIN_SG_ANEW)
		return -EINVAL;
	err = calibrate(pd, flags, &m);
	errno = saved_errno;
	if (err)
		return err;
	m.size = size < sizeof m ? size : sizeof m;
	memset(ret_, 0, size);
	memcpy(ret_, &m, m.size);
	return 0;
}
