/*
 * Ranked locks. A thread takes locks in rising rank; debug builds check it, and check hp_lock_none_held() in the mapping
 * tier: other people's hooks on mmap, munmap and madvise may call malloc.
 *
 * pthread mutexes of the normal type: they allocate nothing, and a child of fork may release what its parent's thread
 * took in the prepare handler.
 */
#ifndef HP_BASE_LOCK_H
#define HP_BASE_LOCK_H

#include <pthread.h>

#include "base/base.h"

enum hp_rank {
	HP_RANK_WATCH = 1, /* the watchers' table: held while callbacks run, which may allocate */
	HP_RANK_HEAP = 2, /* tree, pages, shared lists, thread registry */
	HP_RANK_SMALL = 3, /* jemalloc's address space; taken under locks of jemalloc */
};

struct hp_lock {
	pthread_mutex_t mutex;
	enum hp_rank rank;
};

#define HP_LOCK_INIT(r) { PTHREAD_MUTEX_INITIALIZER, (r) }

#ifdef HP_DEBUG
extern HP_TLS unsigned hp_locks_held; /* bit r: a lock of rank r */
#define HP_LOCK_NOTE(l, taken) \
	do { \
		if (taken) { \
			HP_ASSERT(hp_locks_held < 1u << (l)->rank); \
			hp_locks_held |= 1u << (l)->rank; \
		} else { \
			HP_ASSERT(hp_locks_held & 1u << (l)->rank); \
			hp_locks_held &= ~(1u << (l)->rank); \
		} \
	} while (0)
#define hp_lock_none_held() (!(hp_locks_held & 1u << HP_RANK_HEAP))
#else
#define HP_LOCK_NOTE(l, taken) ((void)(l))
#define hp_lock_none_held() true
#endif

static inline void hp_lock(struct hp_lock *l)
{
	HP_LOCK_NOTE(l, 1);
	pthread_mutex_lock(&l->mutex);
}

static inline void hp_unlock(struct hp_lock *l)
{
	pthread_mutex_unlock(&l->mutex);
	HP_LOCK_NOTE(l, 0);
}

#endif
