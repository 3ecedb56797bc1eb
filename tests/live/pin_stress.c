/* link: hugepin */
/*
 * Many threads pin, look up keys, pin by held keys and unpin at random, on the heap and elsewhere. Meanwhile memory under unused
 * registrations is freed, forgotten, discarded and unmapped, and the budget is too small for all. The device detects a
 * deregistration while a registration is in use, and a pin that its keys do not cover.
 */
#include "live.h"

#include "../device.h"

enum { THREADS = 4, FOREIGN_PAGES = 512, FOREIGN = FOREIGN_PAGES * 4096, ROUNDS = 40000 };

static struct device device;
static hugepin_domain *domain;
static char *foreign;
static uint32_t reach;
static _Atomic bool stop;
static _Atomic long pins, refused, found, by_held, ended;

#ifdef __SANITIZE_THREAD__
enum { SLOWER = 10 };
#else
enum { SLOWER = 1 };
#endif

/* Places for pins that another thread gives back. The thread that takes a pin out of its place owns it. */
enum { EMPTY, MOVING, FULL };
static struct {
	_Atomic int state;
	struct hugepin_pin pin;
} handed[16];

static void give_back(struct hugepin_pin *pin)
{
	device.reg[pin->lkey].uses--;
	EXPECT_EQ(hugepin_unpin(domain, pin), 0);
}

/* The base pages that a range touches, in bytes. */
static size_t rounded(uintptr_t addr, size_t len)
{
	return ((addr + len + 4095) & -(uintptr_t)4096) - (addr & -(uintptr_t)4096);
}

/* Pin by hugepin_pin(), or by a lookup of the region at p, whose key must be valid for its whole range. */
static void pin_once(const char *p, size_t len, uint64_t *seed)
{
	struct hugepin_pin pin;
	unsigned access = 1u << rand_next(seed) % 4;
	bool by_key = rand_next(seed) % 4 == 0;
	int e = by_key ? hugepin_sg_key(domain, p, len, access, &pin) : hugepin_pin(domain, p, len, access, &pin);
	int h = (int)(rand_next(seed) % 16);

	if (e) {
		EXPECT_EQ(e, by_key ? -ENOKEY : -ENOBUFS);
		refused += !by_key;
		return;
	}
	if (by_key) {
		EXPECT((uintptr_t)p - pin.base < pin.len);
		found++;
	}
	pins++;
	device.reg[pin.lkey].uses++;
	EXPECT(device_covers(&device, &pin, access));
	if (reach == HUGEPIN_REACH_EXACT && access > HUGEPIN_WRITE && EXPECT(!by_key))
		EXPECT_EQ(device.reg[pin.lkey].len, rounded((uintptr_t)p, len));
	if (rand_next(seed) % 4 == 0 && atomic_compare_exchange_strong(&handed[h].state, &(int){ EMPTY }, MOVING)) {
		handed[h].pin = pin;
		handed[h].state = FULL;
		return; /* the pin stays out until another thread takes it */
	}
	EXPECT(device_covers(&device, &pin, access));
	give_back(&pin);
}

/* Keys that threads hold and share. A thread that wants to replace one waits for those that pin by it. */
static struct {
	pthread_rwlock_t lock;
	struct hugepin_key key;
} held[8];

/* Pin by a held key, or, if that is not good, pin and make another key of that pin. */
static void pin_by_held(const char *p, size_t len, uint64_t *seed)
{
	__typeof__(held[0]) *h = &held[rand_next(seed) % 8];
	unsigned access = 1u << rand_next(seed) % 4;
	struct hugepin_pin pin;
	int e;

	pthread_rwlock_rdlock(&h->lock);
	e = hugepin_key_pin(&h->key);
	if (e == 0) {
		device.reg[h->key.pin.lkey].uses++;
		EXPECT(device_covers(&device, &h->key.pin, 0));
		device.reg[h->key.pin.lkey].uses--;
		by_held++;
		EXPECT_EQ(hugepin_key_unpin(&h->key), 0);
	}
	pthread_rwlock_unlock(&h->lock);
	if (e == 0)
		return;
	EXPECT_EQ(e, -ENOKEY);
	ended++;
	if (hugepin_pin(domain, p, len, access, &pin) != 0)
		return;
	pthread_rwlock_wrlock(&h->lock);
	EXPECT_EQ(hugepin_key_take(domain, &pin, HUGEPIN_KEY_LAYOUT, &h->key), 0);
	pthread_rwlock_unlock(&h->lock);
	EXPECT_EQ(hugepin_unpin(domain, &pin), 0);
}

static void take_handed(int h)
{
	struct hugepin_pin pin;

	if (!atomic_compare_exchange_strong(&handed[h].state, &(int){ FULL }, MOVING))
		return;
	pin = handed[h].pin;
	handed[h].state = EMPTY;
	EXPECT(device_covers(&device, &pin, 0));
	give_back(&pin);
}

static void *pinner(void *seed_)
{
	uint64_t seed = (uintptr_t)seed_;
	char *buffer = NULL;
	size_t size = 0;

	for (int i = 0; i < ROUNDS / SLOWER; i++) {
		size_t at = rand_next(&seed) % FOREIGN;

		switch (rand_next(&seed) % 8) {
		case 0:
			hugepin_free(buffer);
			size = rand_size(&seed, 32 * KIB, 3 * MIB);
			buffer = hugepin_malloc(size);
			break;
		case 1:
			take_handed((int)(rand_next(&seed) % 16));
			break;
		case 2:
		case 3:
			pin_once(foreign + at, 1 + rand_next(&seed) % (FOREIGN - at) % 20000, &seed);
			break;
		case 4:
			if (buffer && rand_next(&seed) % 4)
				pin_by_held(buffer, 1 + rand_next(&seed) % size, &seed);
			else
				pin_by_held(foreign + at, 1 + rand_next(&seed) % (FOREIGN - at) % 20000, &seed);
			break;
		default:
			if (buffer)
				pin_once(buffer, 1 + rand_next(&seed) % size, &seed);
		}
	}
	hugepin_free(buffer);
	return NULL;
}

static void fork_once(void)
{
	struct hugepin_pin pin;
	int status = 1;
	pid_t pid = fork();

	if (pid == 0) {
		hugepin_free(hugepin_malloc(MIB));
		_exit(hugepin_pin(domain, foreign, 4096, 0, &pin) != -ESTALE ||
		      hugepin_sg_key(domain, foreign, 4096, 0, &pin) != -ESTALE || hugepin_domain_close(domain) != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

/* Takes memory away while other threads pin it. They may get the old or the new memory, but no registration in use may
 * be deregistered. */
static void *troubler(void *unused)
{
	uint64_t seed = 99;

	(void)unused;
	for (int round = 1; !stop; round++) {
		size_t page = rand_next(&seed) % (FOREIGN_PAGES - 8);
		char *p = foreign + page * 4096;

		if (SLOWER == 1 && round % 64 == 0) /* under TSan a child of a process with threads can do little */
			fork_once();
		switch (rand_next(&seed) % 5) {
		case 0:
			hugepin_forget(p, 8 * 4096);
			break;
		case 1:
			madvise(p, 8 * 4096, MADV_DONTNEED);
			break;
		case 2:
			mmap(p, 8 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
			break;
		case 3:
			hugepin_purge();
			break;
		default:
			hugepin_prefetch(domain, p, 4096, 0);
			usleep(100);
		}
	}
	return NULL;
}

/* The device's own has no room for so many pages. */
static int brings_in(void *v, const struct hugepin_reg *reg, void *addr, size_t len)
{
	(void)v, (void)reg, (void)addr, (void)len;
	return 0;
}

static void stress(uint32_t policy, uint32_t reach_)
{
	struct hugepin_attr attr = {
		.size = sizeof attr, .policy = policy, .reach = reach_, .pinned_bytes_max = 10 * MIB,
		.pinned_regions_max = 4000
	};
	struct hugepin_backend backend = device_backend;
	struct hugepin_domain_stats s;
	pthread_t t[THREADS], trouble;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	stop = false;
	reach = reach_;
	pins = found = by_held = ended = 0;
	memset(handed, 0, sizeof handed);
	memset(held, 0, sizeof held);
	for (int i = 0; i < 8; i++)
		pthread_rwlock_init(&held[i].lock, NULL);
	foreign = mmap(NULL, FOREIGN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	backend.prefetch = brings_in;
	backend.now_ns = NULL; /* use the real clock, so that the helper works */
	EXPECT_EQ(hugepin_domain_open(&backend, &device, &attr, &domain), 0);
	pthread_create(&trouble, NULL, troubler, NULL);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, pinner, (void *)(i + 1));
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	stop = true;
	pthread_join(trouble, NULL);
	EXPECT(pins > ROUNDS / SLOWER);
	EXPECT(found > ROUNDS / SLOWER / 20);
	EXPECT(by_held > ROUNDS / SLOWER / 20 && ended > 8);
	for (int h = 0; h < 16; h++)
		take_handed(h);
	hugepin_domain_stats(domain, &s, sizeof s);
	t_print("# policy %u: %ld pins, %ld of them found, %ld refused; %ld by held keys, %ld keys ended; %lu registered, %lu evicted, %lu invalidated, %lu merged, %lu uncached\n",
		policy, (long)pins, (long)found, (long)refused, (long)by_held, (long)ended, s.registered, s.evicted, s.invalidated, s.merged, s.uncached);
	EXPECT(s.registered > 100 && (s.evicted > 0 || policy == HUGEPIN_POLICY_HYBRID));
	EXPECT(s.pinned_peak_bytes <= 10 * MIB);
	EXPECT_EQ(s.retired, 0);
	EXPECT_EQ(hugepin_domain_close(domain), 0);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(device.bytes, 0);
	munmap(foreign, FOREIGN);
}

TEST_CASE(under_arena_nothing_in_use_is_given_back, stress(HUGEPIN_POLICY_ARENA, HUGEPIN_REACH_EXACT))
TEST_CASE(under_lru_nothing_in_use_is_given_back, stress(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXTENT))
TEST_CASE(under_cf11_nothing_in_use_is_given_back, stress(HUGEPIN_POLICY_CF11, HUGEPIN_REACH_EXACT))
TEST_CASE(under_predict_nothing_in_use_is_given_back, stress(HUGEPIN_POLICY_PREDICT, HUGEPIN_REACH_EXTENT))
TEST_CASE(under_hybrid_nothing_in_use_is_given_back, stress(HUGEPIN_POLICY_HYBRID, HUGEPIN_REACH_EXTENT))
TEST_CASE(nor_with_keys_that_open_no_more_than_their_pins, stress(HUGEPIN_POLICY_HYBRID, HUGEPIN_REACH_EXACT))
TEST_CASE(where_peers_share_extents_nothing_in_use_is_given_back, stress(HUGEPIN_POLICY_ARENA, HUGEPIN_REACH_EXTENT))

T_MAIN
