#include "alloc/watch.h"

#include <errno.h>

#include "base/lock.h"

enum { WATCHERS_MAX = 16 };

static struct {
	void (*leaving)(void *arg, const struct hugepin_extent *);
	void *arg;
	int id;
} watchers[WATCHERS_MAX];
static int last_id;
static _Atomic uint32_t count; /* lets hp_watch_leaving skip the lock; only a hint */
static struct hp_lock lock = HP_LOCK_INIT(HP_RANK_WATCH);
static HP_TLS bool inside;

int hugepin_watch(void (*leaving)(void *arg, const struct hugepin_extent *), void *arg, int *ret_id)
{
	int r = -ENOSPC;

	if (!leaving || !ret_id)
		return -EINVAL;
	if (inside)
		return -EDEADLK;
	hp_lock(&lock);
	for (int i = 0; i < WATCHERS_MAX && r; i++) {
		if (watchers[i].leaving)
			continue;
		watchers[i].arg = arg;
		watchers[i].id = *ret_id = ++last_id;
		watchers[i].leaving = leaving;
		count++;
		r = 0;
	}
	hp_unlock(&lock);
	return r;
}

int hugepin_unwatch(int id)
{
	int r = -ENOENT;

	if (inside)
		return -EDEADLK;
	hp_lock(&lock); /* held while callbacks run: this waits for them */
	for (int i = 0; i < WATCHERS_MAX && r; i++) {
		if (!watchers[i].leaving || watchers[i].id != id)
			continue;
		watchers[i].leaving = NULL;
		count--;
		r = 0;
	}
	hp_unlock(&lock);
	return r;
}

void hp_watch_leaving(const struct hugepin_extent *e)
{
	if (!count)
		return;
	hp_lock(&lock);
	inside = true;
	for (int i = 0; i < WATCHERS_MAX; i++)
		if (watchers[i].leaving)
			watchers[i].leaving(watchers[i].arg, e);
	inside = false;
	hp_unlock(&lock);
}

_Bool hp_watch_any(void)
{
	return count;
}

_Bool hp_watch_inside(void)
{
	return inside;
}

void hp_watch_child(void)
{
	if (!inside) /* else this thread holds it, and will release it */
		hp_lock_reset(&lock);
}
