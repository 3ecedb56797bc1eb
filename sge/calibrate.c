/*
 * The cost model of a device, or of this CPU. It is measured once (measure_cpu.c, measure_device.c), and then
 * remembered. The process remembers the CPU's model; a file keeps a device's model (model.h).
 *
 * Threads: any. A thread holds `lock` while it measures. Other threads wait for it, and then find the result.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "sge/error.h"
#include "sge/measure_cpu.h"
#include "sge/measure_device.h"
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

/* Each name is a line of the file, so line breaks are replaced. */
static void put_name(char *to, size_t size, const char *format, const char *text, unsigned a, unsigned b)
{
	snprintf(to, size, format, text, a, b);
	for (; *to; to++)
		if ((unsigned char)*to < ' ')
			*to = '_';
}

static int find_place(struct ibv_pd *pd, struct hp_sg_place *ret_)
{
	struct ibv_device_attr a;
	const int err = hp_verbs_errno(ibv_query_device(pd->context, &a));

	if (err)
		return err;
	put_name(ret_->device, sizeof ret_->device, "%.32s %x:%x", ibv_get_device_name(pd->context->device),
		 a.vendor_id, a.vendor_part_id);
	put_name(ret_->firmware, sizeof ret_->firmware, "%s", a.fw_ver, 0, 0);
	hp_sg_cpu_name(ret_->cpu, sizeof ret_->cpu);
	return 0;
}

static int known_device(struct ibv_pd *pd, bool anew, struct hugepin_sg_model *ret_)
{
	char path[HP_SG_PATH_MAX] = "";
	struct hp_sg_place place, found;
	int err = find_place(pd, &place);

	if (err)
		return err;
	if (!hp_sg_model_path(&place, path) && !anew && !hp_sg_model_load(path, ret_, &found) &&
	    !strcmp(found.device, place.device) && !strcmp(found.firmware, place.firmware) &&
	    !strcmp(found.cpu, place.cpu))
		return 0;
	err = known_cpu(anew, ret_);
	if (!err)
		err = hp_measure_device(pd, ret_);
	if (!err && *path && ret_->source == HUGEPIN_SG_MODEL_DEVICE)
		hp_sg_model_store(path, ret_, &place);
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
