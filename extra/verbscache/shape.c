/*
 * See shape.h. A table of sets: a hash of protection domain and pages names the set, in which the oldest makes room.
 */
#include "shape.h"

#include <pthread.h>
#include <unistd.h>

#include "hugepin.h"

enum { SETS = 4096, WAYS = 4 };

static struct set {
	struct known {
		uint64_t pd; /* 0: there is none */
		struct hp_shape shape;
	} known[WAYS];
	unsigned next; /* to be overwritten */
} sets[SETS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uintptr_t page(void)
{
	return (uintptr_t)sysconf(_SC_PAGESIZE);
}

uintptr_t hp_shape_start(const struct hp_shape *s)
{
	return s->addr & -page();
}

size_t hp_shape_bytes(const struct hp_shape *s)
{
	return ((s->addr + s->len + page() - 1) & -page()) - hp_shape_start(s);
}

unsigned hp_shape_pins(const struct hp_shape *s)
{
	return HUGEPIN_READ | HUGEPIN_REMOTE_READ | (s->access & IBV_ACCESS_LOCAL_WRITE ? HUGEPIN_WRITE : 0u) |
	       (s->access & IBV_ACCESS_REMOTE_WRITE ? HUGEPIN_REMOTE_WRITE : 0u) |
	       (s->access & IBV_ACCESS_REMOTE_ATOMIC ? HUGEPIN_REMOTE_ATOMIC : 0u);
}

static struct set *set_of(uint64_t pd, uintptr_t start, size_t bytes)
{
	const uint64_t number = pd + start / 4096 + ((uint64_t)bytes << 20);

	return &sets[number * UINT64_C(0x9e3779b97f4a7c15) >> 52];
}

static bool is_at(const struct known *k, uint64_t pd, uintptr_t start, size_t bytes)
{
	return k->pd == pd && hp_shape_start(&k->shape) == start && hp_shape_bytes(&k->shape) == bytes;
}

/* pins 0: of any access. Call with the lock. */
static struct known *find(uint64_t pd, uintptr_t start, size_t bytes, unsigned pins)
{
	struct set *s = set_of(pd, start, bytes);

	for (struct known *k = s->known; k < s->known + WAYS; k++)
		if (is_at(k, pd, start, bytes) && (!pins || hp_shape_pins(&k->shape) == pins))
			return k;
	return NULL;
}

void hp_shape_remember(uint64_t pd, const struct hp_shape *shape)
{
	const uintptr_t start = hp_shape_start(shape);
	const size_t bytes = hp_shape_bytes(shape);
	struct set *s = set_of(pd, start, bytes);
	struct known *k;

	pthread_mutex_lock(&lock);
	k = find(pd, start, bytes, hp_shape_pins(shape));
	if (!k)
		k = &s->known[s->next++ % WAYS];
	*k = (struct known){ pd, *shape };
	pthread_mutex_unlock(&lock);
}

bool hp_shape_recall(uint64_t pd, uintptr_t start, size_t bytes, unsigned pins, struct hp_shape *ret_)
{
	struct known *k;

	pthread_mutex_lock(&lock);
	k = find(pd, start, bytes, pins);
	if (k)
		*ret_ = k->shape;
	pthread_mutex_unlock(&lock);
	return k;
}
