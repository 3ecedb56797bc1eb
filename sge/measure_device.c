/*
 * Calibration over a device: the carrier of measure.h is two connected queue pairs of this process. They are kept full
 * of messages, so that either the CPU or the device is busy all the time.
 */
#include "sge/measure_device.h"

#include <stdint.h>

#include "sge/measure.h"
#include "sge/pair.h"
#include "sge/plan.h"

struct device {
	struct hp_sg_carrier carrier;
	struct hp_pair pair;
	int out; /* completions that are still to come */
};

static bool end(struct hp_sg_carrier *c)
{
	struct device *const d = (struct device *)c;
	const int out = d->out;

	d->out = 0;
	return hp_pair_wait(&d->pair, out);
}

static bool post(struct hp_sg_carrier *c, struct ibv_send_wr *wr)
{
	struct device *const d = (struct device *)c;
	struct ibv_send_wr *bad;

	if (d->out >= HP_PAIR_DEPTH) {
		d->out--;
		if (!hp_pair_wait(&d->pair, 1))
			return false;
	}
	d->out++;
	return !ibv_post_send(d->pair.qp[0], wr, &bad);
}

static bool recv(struct hp_sg_carrier *c, struct ibv_sge *in)
{
	struct device *const d = (struct device *)c;
	struct ibv_recv_wr *bad, wr = { .sg_list = in, .num_sge = 1 };

	d->out++;
	return !ibv_post_recv(d->pair.qp[1], &wr, &bad);
}

static int reset(struct hp_sg_carrier *c)
{
	struct device *const d = (struct device *)c;

	d->out = 0;
	hp_pair_disconnect(&d->pair);
	return hp_pair_connect(&d->pair);
}

int hp_measure_device(struct ibv_pd *pd, struct hugepin_sg_model *ret_)
{
	/* A hit need not ask the kernel, because nobody unmaps the measured memory. */
	const struct hugepin_attr attr = { .size = sizeof attr,
					   .policy = HUGEPIN_POLICY_LRU,
					   .watch = HUGEPIN_WATCH_PROGRAM };
	struct device d = { .carrier = { .post = post, .end = end, .recv = recv, .reset = reset }, .pair.pd = pd };
	int err = hp_pair_find_port(&d.pair);

	err = err ? err : hp_pair_connect(&d.pair);
	d.carrier.caps = d.pair.caps;
	err = err ? err : hugepin_verbs_open(pd, &attr, &d.carrier.domain);
	if (!err) {
		*ret_ = hp_sg_model_default;
		err = hp_sg_measure(&d.carrier, ret_);
		hugepin_domain_close(d.carrier.domain);
	}
	hp_pair_disconnect(&d.pair);
	return err;
}
