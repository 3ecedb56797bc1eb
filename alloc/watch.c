/* See watch.h. */
#include "alloc/watch.h"

#include <errno.h>

#include "base/lock.h"
#include "base/seal.h"
#include "base/thread.h"

enum { WATCHERS_MAX = 16 };

static HP_SEALED(struct {
	struct {
		void (*leaving)(void *arg, const struct hugepin_extent *);
		void *arg;
		int id;
	} list[WATCHERS_MAX];
}) watchers;
/* Bit i: list[i] is in use. Kept outside the sealed list, so that a watch can end even if the list cannot be made
 * writable (RLIMIT_DATA). */
static uint32_t live;
static int last_id;
/* relaxed: changed under the lock. A thread frees memory that a watcher knows only after the program has handed it the
 * memory, which orders the free after the watch. */
static _Atomic uint32_t count; /* a hint that lets hp_watch_leaving() skip the lock */
static struct hp_lock lock = HP_LOCK_INIT(HP_LOCK_RANK_WATCH);
static HP_TLS bool inside;

int hugepin_watch(void (*leaving)(void *arg, const struct hugepin_extent *), void *arg, int *ret_id)
{
	int err = -ENOSPC;

	if (!leaving || !ret_id)
		return -EINVAL;
	if (inside)
		return -EDEADLK;
	hp_lock(&lock);
	for (int i = 0; i < WATCHERS_MAX && err; i++) {
		if (live >> i & 1)
			continue;
		if (!hp_unseal(&watchers, sizeof watchers)) {
			err = -ENOMEM;
			break;
		}
		if (!hp_watch_any()) /* a watcher may call anything, and needs a thread that the C library knows */
			hp_thread_forbid(&hp_ticker);
		watchers.is.list[i].arg = arg;
		watchers.is.list[i].id = *ret_id = ++last_id;
		watchers.is.list[i].leaving = leaving;
		hp_seal(&watchers, sizeof watchers);
		live |= 1u << i;
		atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
		err = 0;
	}
	hp_unlock(&lock);
	return err;
}

int hugepin_unwatch(int id)
{
	int err = -ENOENT;

	if (inside)
		return -EDEADLK;
	hp_lock(&lock); /* The lock is held while callbacks run, so this waits for them. */
	for (int i = 0; i < WATCHERS_MAX && err; i++) {
		if (!(live >> i & 1) || watchers.is.list[i].id != id)
			continue;
		live &= ~(1u << i);
		if (hp_unseal(&watchers, sizeof watchers)) {
			watchers.is.list[i].leaving = NULL;
			hp_seal(&watchers, sizeof watchers);
		}
		if (atomic_fetch_sub_explicit(&count, 1, memory_order_relaxed) == 1)
			hp_thread_allow(&hp_ticker);
		err = 0;
	}
	hp_unlock(&lock);
	return err;
}

void hp_watch_leaving(const struct hugepin_extent *e)
{
	if (!hp_watch_any())
		return;
	hp_lock(&lock);
	inside = true;
	for (int i = 0; i < WATCHERS_MAX; i++)
		if (live >> i & 1)
			watchers.is.list[i].leaving(watchers.is.list[i].arg, e);
	inside = false;
	hp_unlock(&lock);
}

_Bool hp_watch_any(void)
{
	return atomic_load_explicit(&count, memory_order_relaxed);
}

_Bool hp_watch_inside(void)
{
	return inside;
}

void hp_watch_child(void)
{
	if (!inside) /* otherwise this thread holds the lock, and will release it */
		hp_lock_reset(&lock);
}
