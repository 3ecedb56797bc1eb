/*
 * Held keys: pins by a key are pins, and no key is good after its registration, however that ended.
 */
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "reg/counts.h"
#include "reg/domain.h"
#include "reg/retire.h"
#include "reg/uffd.h"
#include "tests/unit/pin.h"

/* A key of [p, p + len), with no pin out. */
static struct hugepin_key key_of(hugepin_domain *d, const void *p, size_t len)
{
	struct hugepin_key key = { .life = NULL };
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, len, 0, &pin), 0);
	EXPECT_EQ(hugepin_key_take(d, &pin, HUGEPIN_KEY_LAYOUT, &key), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	return key;
}

/* Pin by the key, as programs have it compiled in or by the library's function, and give the pin back. */
static int use(const struct hugepin_key *key)
{
	static int (*volatile pin)(const struct hugepin_key *) = hugepin_key_pin;
	static int (*volatile unpin)(const struct hugepin_key *) = hugepin_key_unpin;
	int e = hugepin_key_pin(key), called = pin(key);

	EXPECT_EQ(called, e);
	if (e)
		return e;
	EXPECT(device_covers(&device, &key->pin, HUGEPIN_READ | HUGEPIN_WRITE));
	EXPECT_EQ(hugepin_key_unpin(key), 0);
	EXPECT_EQ(unpin(key), 0);
	return 0;
}

TEST(a_pin_by_a_key_keeps_its_memory_registered)
{
	hugepin_domain *d = open_lru();
	char *of[] = { hugepin_malloc(MIB), map(MIB) };

	for (int i = 0; i < 2; i++) {
		struct hugepin_key key = key_of(d, of[i] + 100, 5000);
		struct hugepin_pin copy;

		EXPECT(key.pin.base == (uintptr_t)of[i] + 100 && key.pin.len == 5000);
		EXPECT_EQ(use(&key), 0);
		EXPECT_EQ(hugepin_key_pin(&key), 0);
		EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
		EXPECT_EQ(hugepin_key_pin(&key), 0);
		EXPECT_EQ(hugepin_key_unpin(&key), 0);
		EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
		copy = key.pin; /* as a pin, which is given back as any other */
		EXPECT_EQ(hugepin_unpin(d, &copy), 0);
		EXPECT(!copy.ref);
	}
	hugepin_free(of[0]);
	munmap(of[1], MIB);
	close_empty(&device, d);
	hugepin_purge();
}

DOMAIN_TEST(a_key_is_made_of_a_pin_that_is_out, open_lru())
{
	hugepin_domain *other;
	struct hugepin_key key, zeros = { .life = NULL };
	struct hugepin_pin pin, copy, cleared = { .ref = 0 };
	struct device second;
	char *p = map(MIB);

	device_reset(&second);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &second, NULL, &other), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	EXPECT_EQ(hugepin_key_take(NULL, &pin, HUGEPIN_KEY_LAYOUT, &key), -EINVAL);
	EXPECT_EQ(hugepin_key_take(d, NULL, HUGEPIN_KEY_LAYOUT, &key), -EINVAL);
	EXPECT_EQ(hugepin_key_take(d, &pin, HUGEPIN_KEY_LAYOUT, NULL), -EINVAL);
	EXPECT_EQ(hugepin_key_take(d, &pin, 0, &key), -EINVAL);
	EXPECT_EQ(hugepin_key_take(d, &pin, HUGEPIN_KEY_LAYOUT + 1, &key), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_key_take(d, &cleared, HUGEPIN_KEY_LAYOUT, &key), -EINVAL);
	EXPECT_EQ(hugepin_key_take(other, &pin, HUGEPIN_KEY_LAYOUT, &key), -EINVAL);
	copy = pin;
	copy.ref |= HP_REGIONS_MAX; /* no region */
	EXPECT_EQ(hugepin_key_take(d, &copy, HUGEPIN_KEY_LAYOUT, &key), -EINVAL);
	copy = pin;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_forget(p, 4096), 0);
	EXPECT(!registered(d, p + 8192, 4096)); /* another region has the place of the first */
	EXPECT_EQ((uint32_t)copy.ref, HP_TAG_INDEX(hp_regions[(uint32_t)copy.ref].tag));
	EXPECT_EQ(hugepin_key_take(d, &copy, HUGEPIN_KEY_LAYOUT, &key), -EINVAL);
	EXPECT_EQ(touch(d, p, 4096) + touch(d, p + 8192, 4096), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0); /* the same range, by another registration in the same place */
	copy = pin;
	copy.lkey++;
	EXPECT_EQ(hugepin_key_take(d, &copy, HUGEPIN_KEY_LAYOUT, &key), -EINVAL);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_key_pin(&zeros), -ENOKEY);
	EXPECT_EQ(hugepin_key_unpin(&zeros), -EINVAL);
	EXPECT_EQ(use(&zeros), -ENOKEY);
	munmap(p, MIB);
	EXPECT_EQ(hugepin_domain_close(other), 0);
}

/* ------------------------------------------------------------------ the ends of a registration */

PIN_TEST(no_key_is_good_after_its_memory_went_away, open_lru(), MIB)
{
	struct hugepin_key key;
	char *h;

	key = key_of(d, p, 4096);
	EXPECT_EQ(hugepin_forget(p, 4096), 0);
	EXPECT_EQ(use(&key), -ENOKEY);
	EXPECT_EQ(use(&key), -ENOKEY);
	if (hp_uffd_works()) {
		key = key_of(d, p, 4096);
		madvise(p, 4096, MADV_DONTNEED);
		EXPECT_EQ(use(&key), -ENOKEY);
		key = key_of(d, p + 8192, 4096);
		syscall(SYS_munmap, p, MIB);
		EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		EXPECT_EQ(use(&key), -ENOKEY);
	}
	h = hugepin_aligned_alloc(2 * MIB, 8 * MIB);
	key = key_of(d, h, 8 * MIB);
	EXPECT_EQ(use(&key), 0);
	hugepin_free(h);
	hugepin_purge();
	EXPECT_EQ(use(&key), -ENOKEY);
}

PIN_TEST(no_key_is_good_after_its_registration_was_given_up, open_first(HUGEPIN_POLICY_LRU, 3 * 4096, 2), MIB)
{
	struct hugepin_key key, wide;
	struct hugepin_pin pin, held;

	key = key_of(d, p, 4096); /* evicted */
	EXPECT_EQ(touch(d, p + 8192, 4096) + touch(d, p + 16384, 4096) + touch(d, p + 24576, 4096), 0);
	EXPECT_EQ(use(&key), -ENOKEY);
	key = key_of(d, p, 4096); /* inside another one */
	wide = key_of(d, p, 2 * 4096);
	EXPECT_EQ(use(&key), -ENOKEY);
	EXPECT_EQ(use(&wide), 0);
	EXPECT_EQ(hugepin_pin(d, p, 2 * 4096, 0, &pin), 0); /* deregistered */
	EXPECT_EQ(hugepin_deregister(d, &pin, 1), 0);
	EXPECT_EQ(use(&wide), -ENOKEY);
	/* For one pin: the key is good for nothing else, and what it names stays as long as that pin is out. */
	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_PIN_UNCACHED, &held), 0);
	EXPECT_EQ(hugepin_key_take(d, &held, HUGEPIN_KEY_LAYOUT, &key), 0);
	EXPECT_EQ(use(&key), -ENOKEY);
	EXPECT(device_covers(&device, &held, HUGEPIN_READ));
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	EXPECT_EQ(use(&key), -ENOKEY);
}

PIN_TEST(memory_that_goes_while_it_is_pinned_by_a_key_is_deregistered_at_the_last_unpin, open_lru(), MIB)
{
	struct hugepin_key key = key_of(d, p, 4096);
	struct hugepin_pin copy;

	EXPECT_EQ(hugepin_key_pin(&key), 0);
	EXPECT_EQ(hugepin_key_pin(&key), 0);
	EXPECT_EQ(hugepin_forget(p, 4096), -EBUSY);
	EXPECT_EQ(hugepin_key_pin(&key), -ENOKEY);
	EXPECT(device_covers(&device, &key.pin, HUGEPIN_WRITE));
	EXPECT_EQ(hugepin_key_unpin(&key), 0);
	EXPECT(device_covers(&device, &key.pin, HUGEPIN_WRITE));
	copy = key.pin;
	key = key_of(d, p, 4096); /* a new one, while a pin by the old one is out */
	EXPECT(key.pin.lkey != copy.lkey);
	EXPECT_EQ(hugepin_unpin(d, &copy), 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(use(&key), 0);
}

TEST(no_key_is_good_in_a_domain_that_was_closed_even_if_it_is_opened_again)
{
	hugepin_domain *d = open_lru(), *again;
	char *p = map(MIB);
	struct hugepin_key key = key_of(d, p, 4096), later;

	close_empty(&device, d);
	EXPECT_EQ(use(&key), -EINVAL);
	EXPECT_EQ(hugepin_key_unpin(&key), -EINVAL);
	for (int i = 0; i < 3; i++) {
		again = open_lru();
		EXPECT(again == d); /* the same place */
		later = key_of(again, p, 4096);
		EXPECT_EQ((uint32_t)later.pin.ref, (uint32_t)key.pin.ref);
		EXPECT_EQ(use(&key), -EINVAL);
		EXPECT_EQ(hugepin_key_unpin(&key), -EINVAL);
		EXPECT_EQ(use(&later), 0);
		close_empty(&device, again);
		key = later;
	}
	munmap(p, MIB);
}

/* Pins by the child of the parent's key, and of its own domain, which has the same places. */
static void in_child_of_fork(hugepin_domain *d, const struct hugepin_key *key, char *p)
{
	struct hugepin_key mine;
	hugepin_domain *own;

	EXPECT_EQ(use(key), -ESTALE);
	EXPECT_EQ(hugepin_key_unpin(key), -EINVAL);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(use(key), -EINVAL);
	device_reset(&device);
	own = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	mine = key_of(own, p, 4096);
	/* The parent's key may have another index than the first one, if its pin was made while memory changed. */
	for (char *at = p + 4096; (uint32_t)mine.pin.ref != (uint32_t)key->pin.ref && at < p + MIB; at += 4096)
		mine = key_of(own, at, 4096);
	EXPECT_EQ((uint32_t)mine.pin.ref, (uint32_t)key->pin.ref);
	EXPECT_EQ(use(key), -EINVAL);
	EXPECT_EQ(hugepin_key_pin(&mine), 0);
	EXPECT_EQ(hugepin_key_unpin(key), -EINVAL); /* and is not counted as the child's */
	EXPECT_EQ(hugepin_domain_close(own), -EBUSY);
	EXPECT_EQ(hugepin_key_unpin(&mine), 0);
	close_empty(&device, own);
}

TEST(a_child_has_no_part_in_the_parents_keys)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);
	struct hugepin_key key = key_of(d, p, 4096);
	int status = 1;
	pid_t pid;

	EXPECT_EQ(hugepin_key_pin(&key), 0);
	pid = fork();
	if (pid == 0) {
		in_child_of_fork(d, &key, p);
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	/* No handler of fork runs in this one. */
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0L);
	if (pid == 0)
		_exit(hugepin_key_pin(&key) != -ESTALE);
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(hugepin_key_unpin(&key), 0);
	EXPECT_EQ(use(&key), 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

PIN_TEST(no_registration_has_the_number_of_an_earlier_one, open_first(HUGEPIN_POLICY_LRU, 0, 0), MIB)
{
	struct hugepin_key key;
	uint64_t tag;
	uint32_t gen;

	key = key_of(d, p, 4096);
	tag = hp_regions[(uint32_t)key.pin.ref].tag;
	gen = hp_regions[(uint32_t)key.pin.ref].gen;
	for (int i = 0; i < 300; i++) {
		EXPECT_EQ(hugepin_forget(p, 4096), 0);
		hp_regions[(uint32_t)key.pin.ref].gen = gen - 1; /* the next tag is the first one again */
		EXPECT(!registered(d, p, 4096));
		EXPECT_EQ(hp_regions[(uint32_t)key.pin.ref].tag, tag);
		EXPECT_EQ(use(&key), -ENOKEY);
	}
}

/* ------------------------------------------------------------------ what a hit owes the cache */

PIN_TEST(a_pin_by_a_key_is_a_use_of_its_registration, open_lru(), MIB)
{
	struct hugepin_key key = key_of(d, p, 4096);
	struct hp_region *r = &hp_regions[(uint32_t)key.pin.ref];

	for (int i = 0; i < 3; i++) {
		EXPECT(hp_region_is_used(d, r));
		EXPECT(hp_region_clear_used(d, r));
		EXPECT(!hp_region_is_used(d, r) && !hp_region_clear_used(d, r));
		EXPECT_EQ(use(&key), 0);
	}
	EXPECT(hp_region_clear_used(d, r));
	EXPECT_EQ(hugepin_forget(p, 4096), 0);
	EXPECT_EQ(use(&key), -ENOKEY);
	EXPECT_EQ(hp_lives[(uint32_t)key.pin.ref], 0); /* the flag has not brought it back */
}

PIN_TEST(the_helper_is_told_of_pins_by_a_key, open_first(HUGEPIN_POLICY_PREDICT, 0, 0), MIB)
{
	struct hugepin_key key;
	struct hp_records *q;
	uint32_t before;

	key = key_of(d, p, 4096);
	hp_domain_lock(d);
	hp_region_clear_used(d, &hp_regions[(uint32_t)key.pin.ref]);
	hp_domain_unlock(d);
	q = hp_counts_records(hp_counts_self);
	before = atomic_load(&q->head);
	EXPECT_EQ(hugepin_key_pin(&key), 0);
	EXPECT_EQ(hugepin_key_unpin(&key), 0);
	EXPECT_EQ(atomic_load(&q->head), before + 2);
	EXPECT_EQ(HP_RECORD_KIND(q->record[before % HP_RECORDS_MAX].subject), HP_RECORD_START);
	EXPECT(q->record[before % HP_RECORDS_MAX].site != 0);
	EXPECT_EQ(HP_RECORD_KIND(q->record[(before + 1) % HP_RECORDS_MAX].subject), HP_RECORD_END);
}

PIN_TEST(counts_of_pins_by_a_key_may_wrap, open_lru(), MIB)
{
	struct hugepin_key key = key_of(d, p, 4096);
	struct hp_counts *c = &hp_counts_self[(uint32_t)key.pin.ref];

	atomic_fetch_add(&c->pins, UINT32_MAX - 5);
	atomic_fetch_add(&c->unpins, UINT32_MAX - 5);
	for (int i = 0; i < 20; i++) {
		EXPECT_EQ(hugepin_key_pin(&key), 0);
		EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
		EXPECT_EQ(hugepin_key_unpin(&key), 0);
	}
}

/* ------------------------------------------------------------------ threads */

static void *pin_in_thread(void *key)
{
	EXPECT(!hp_counts_self);
	EXPECT_EQ(hugepin_key_pin(key), 0);
	return NULL;
}

static void *unpin_in_thread(void *key)
{
	EXPECT(!hp_counts_self);
	EXPECT_EQ(hugepin_key_unpin(key), 0);
	return NULL;
}

TEST(threads_share_a_key_and_give_back_each_others_pins)
{
	hugepin_domain *d = open_lru();
	char *of[] = { hugepin_malloc(MIB), map(MIB) };
	pthread_t t;

	for (int i = 0; i < 2; i++) {
		struct hugepin_key key = key_of(d, of[i], 4096);

		pthread_create(&t, NULL, pin_in_thread, &key);
		pthread_join(t, NULL);
		EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
		EXPECT_EQ(use(&key), 0);
		pthread_create(&t, NULL, unpin_in_thread, &key);
		pthread_join(t, NULL);
	}
	hugepin_free(of[0]);
	munmap(of[1], MIB);
	close_empty(&device, d);
	hugepin_purge();
}

struct shared {
	hugepin_domain *d;
	struct hugepin_key key;
	_Atomic bool stop;
	_Atomic long hits, ends;
};

static void *use_shared(void *shared)
{
	struct shared *s = shared;

	while (!s->stop) {
		int e = hugepin_key_pin(&s->key);

		EXPECT(e == 0 || e == -ENOKEY);
		if (e) {
			s->ends++;
			sched_yield();
			continue;
		}
		device.reg[s->key.pin.lkey].uses++;
		EXPECT(device_covers(&device, &s->key.pin, HUGEPIN_WRITE));
		device.reg[s->key.pin.lkey].uses--;
		EXPECT_EQ(hugepin_key_unpin(&s->key), 0);
		s->hits++;
	}
	return NULL;
}

/* The device notices a registration that is given back while it is in use. */
TEST(a_registration_ends_while_threads_pin_by_its_key)
{
	struct shared s = { .d = open_lru() };
	char *p = hugepin_aligned_alloc(2 * MIB, 2 * MIB);
	pthread_t t[3];

	for (int round = 0; round < 30; round++) {
		s.stop = false;
		s.hits = s.ends = 0;
		s.key = key_of(s.d, p, 4096);
		for (int i = 0; i < 3; i++)
			pthread_create(&t[i], NULL, use_shared, &s);
		while (s.hits < 1000)
			sched_yield();
		while (!s.ends) { /* a pin is mostly out */
			hp_domain_lock(s.d);
			hp_region_release(s.d, &hp_regions[(uint32_t)s.key.pin.ref], HP_EVICTED_BUDGET);
			hp_domain_unlock(s.d);
		}
		s.stop = true;
		for (int i = 0; i < 3; i++)
			pthread_join(t[i], NULL);
		EXPECT_EQ(hugepin_key_pin(&s.key), -ENOKEY);
		EXPECT_EQ(device.regs, 0);
	}
	hugepin_free(p);
	close_empty(&device, s.d);
	hugepin_purge();
}

/* ------------------------------------------------------------------ a naive model */

enum { PLACES = 12, KEYS = 30, OUT = 8, STEPS = 40000 };

/* Keys at random, of memory that goes at random. The model: a key is good while the device has the registration of its
 * number live, and its place was not replaced. */
static void random_steps(uint32_t policy, unsigned seed)
{
	struct {
		struct hugepin_key key;
		int place;
		long made; /* the device's number of calls when its registration was made */
		int out;
	} keys[KEYS] = { 0 };
	long made_of[DEVICE_REGS] = { 0 };
	char *place[PLACES];
	hugepin_domain *d;
	long hits = 0, ends = 0;

	device_reset(&device);
	d = open_as(policy, 5 * 2 * MIB, 5);
	srandom(seed);
	for (int i = 0; i < PLACES; i++)
		place[i] = i % 2 ? map(MIB) : hugepin_aligned_alloc(2 * MIB, 2 * MIB);
	for (int step = 0; step < STEPS && t_failures < 5; step++) {
		int k = (int)(random() % KEYS), w = (int)(random() % PLACES), what = (int)(random() % 100), e;
		struct hugepin_key *key = &keys[k].key;
		uint32_t lkey = key->pin.lkey;
		bool live;

		hp_domain_lock(d);
		live = key->life && device.reg[lkey].live && made_of[lkey] == keys[k].made;
		hp_domain_unlock(d);
		if (what < 70 && keys[k].out && what % 2) {
			keys[k].out--;
			device.reg[lkey].uses--;
			EXPECT(live);
			EXPECT_EQ(hugepin_key_unpin(key), 0);
		} else if (what < 70 && keys[k].out < OUT) {
			e = hugepin_key_pin(key);
			EXPECT(e == 0 || e == -ENOKEY);
			if (e) {
				ends++;
				continue;
			}
			EXPECT(live && !device.reg[lkey].stale && device_covers(&device, &key->pin, HUGEPIN_WRITE));
			device.reg[lkey].uses++;
			keys[k].out++;
			hits++;
		} else if (what < 90 && !keys[k].out) {
			struct hugepin_pin pin;
			size_t at = (size_t)random() % (MIB / 2);
			long calls = device.calls;

			e = hugepin_pin(d, place[w] + at, 1 + (size_t)random() % 10000, 0, &pin);
			EXPECT(e == 0 || e == -ENOBUFS);
			if (e)
				continue;
			if (device.calls != calls)
				made_of[pin.lkey] = device.calls;
			EXPECT_EQ(hugepin_key_take(d, &pin, HUGEPIN_KEY_LAYOUT, key), 0);
			keys[k].made = made_of[pin.lkey];
			keys[k].place = w;
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		} else if (what < 97) {
			if (w % 2 == 0)
				continue;
			hp_domain_lock(d);
			for (int i = 1; i < DEVICE_REGS; i++)
				if (device.reg[i].live && device.reg[i].addr < (uintptr_t)place[w] + MIB &&
				    device.reg[i].addr >= (uintptr_t)place[w])
					device.reg[i].stale = true;
			hp_domain_unlock(d);
			EXPECT(hugepin_forget(place[w], MIB) <= 0);
		} else if (w % 2 == 0) {
			bool in_use = false;

			for (int i = 0; i < KEYS; i++)
				in_use |= keys[i].out && keys[i].place == w;
			if (in_use)
				continue;
			hugepin_free(place[w]);
			if (what == 98)
				hugepin_purge();
			place[w] = hugepin_aligned_alloc(2 * MIB, 2 * MIB);
		}
	}
	for (int k = 0; k < KEYS; k++)
		for (; keys[k].out; keys[k].out--) {
			device.reg[keys[k].key.pin.lkey].uses--;
			EXPECT_EQ(hugepin_key_unpin(&keys[k].key), 0);
		}
	EXPECT(hits > STEPS / 20 && ends > 100);
	for (int i = 0; i < PLACES; i++)
		if (i % 2)
			munmap(place[i], MIB);
		else
			hugepin_free(place[i]);
	close_empty(&device, d);
	hugepin_purge();
}

TEST(random_pins_by_keys_agree_with_the_device)
{
	for (unsigned seed = 1; seed <= 3; seed++)
		random_steps(HUGEPIN_POLICY_LRU, seed);
	random_steps(HUGEPIN_POLICY_ARENA, 4);
}

T_MAIN
