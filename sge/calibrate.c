/*
 * The cost model of a device, or of this CPU. It is measured once (measure_cpu.c, measure_device.c), and then
 * remembered. The process remembers the CPU's model; a file keeps a device's model (model.h). Another one keeps what the
 * device takes for registering on demand (reg/backend/terms.h).
 *
 * Threads: any. A thread holds `lock` while it measures. Other threads wait for it, and then find the result.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "reg/backend/terms.h"
#include "reg/backend/verbs.h"
#include "sge/measure_cpu.h"
#include "sge/measure_device.h"
#include "sge/measure_paging.h"
#include "sge/model.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `cpu`, and is held while a thread measures */
static struct hugepin_sg_model cpu; /* source DEFAULT: not measured yet */

/* In the child of a fork: if another thread was measuring, that thread does not exist here. Forget its half-done
 * work. */
static void forget_measuring(void)
{
	if (pthread_mutex_trylock(&lock)) {
		pthread_mutex_init(&lock, NULL);
		cpu.source = HUGEPIN_SG_MODEL_DEFAULT;
	} else {
		pthread_mutex_unlock(&lock);
	}
}

static void watch_forks_measuring(void)
{
	pthread_atfork(NULL, NULL, forget_measuring);
}

static int known_cpu(bool anew, struct hugepin_sg_model *ret_)
{
	int err = 0;

	if (anew || cpu.source == HUGEPIN_SG_MODEL_DEFAULT)
		err = hp_measure_cpu(&cpu);
	if (!err)
		*ret_ = cpu;
	return err;
}

/* What a device that registers on demand takes for that is measured along, and kept. It is no part of the model, so a
 * failure leaves nothing but the lack of it. */
static void measure_terms(struct ibv_pd *pd, const struct hp_place *place)
{
	struct hugepin_terms t;

	if (hp_verbs_odp(pd->context) && !hp_measure_paging(pd, &t))
		hp_terms_keep(place, &t);
}

static int known_device(struct ibv_pd *pd, bool anew, struct hugepin_sg_model *ret_)
{
	char path[HP_KEPT_PATH_MAX] = "";
	struct hp_place place, found;
	int err = hp_verbs_place(pd->context, &place);

	if (err)
		return err;
	if (!hp_sg_model_path(&place, path) && !anew && !hp_sg_model_load(path, ret_, &found) &&
	    hp_place_is(&found, &place))
		return 0;
	err = known_cpu(anew, ret_);
	if (!err)
		err = hp_measure_device(pd, ret_);
	if (!err && *path && ret_->source == HUGEPIN_SG_MODEL_DEVICE)
		hp_sg_model_store(path, ret_, &place);
	if (!err)
		measure_terms(pd, &place);
	return err;
}

int hugepin_sg_calibrate(struct ibv_pd *pd, unsigned flags, struct hugepin_sg_model *ret_, size_t size)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const int saved_errno = errno;
	struct hugepin_sg_model m;
	int err;

	if (!ret_ || size < sizeof m.size || flags & ~(unsigned)HUGEPIN_SG_ANEW)
		return -EINVAL;
	pthread_once(&once, watch_forks_measuring);
	pthread_mutex_lock(&lock);
	err = pd ? known_device(pd, flags, &m) : known_cpu(flags, &m);
	pthread_mutex_unlock(&lock);
	errno = saved_errno;
	if (err)
		return err;
	m.size = size < sizeof m ? size : sizeof m;
	memset(ret_, 0, size);
	memcpy(ret_, &m, m.size);
	return 0;
}
