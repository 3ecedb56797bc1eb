/*
 * hugepin_pin_try: a hit is a pin at once; what is not registered is registered by the service thread, which tells the
 * program once.
 */
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/service.h"
#include "reg/request.h"
#include "tests/unit/child.h"
#include "tests/unit/pin_try.h"

static hugepin_domain *open_limited(uint64_t bytes_max)
{
	device_reset(&device);
	return open_as(HUGEPIN_POLICY_LRU, bytes_max, 0);
}

/* ------------------------------------------------------------------ hits and misses */

DOMAIN_TEST(what_is_registered_is_pinned_at_once, open_lru())
{
	char *memory[] = { map(4 * MIB), hugepin_malloc(4 * MIB) };
	struct hugepin_pin pin, other;

	for (int i = 0; i < 2; i++) {
		char *p = memory[i];
		long calls;

		EXPECT_EQ(touch(d, p, 3 * MIB), 0);
		EXPECT_EQ(touch(d, p + 3 * MIB + 5000, 100), 0);
		calls = device.calls;
		for (int k = 0; k < 3; k++) {
			EXPECT_EQ(hugepin_pin_try(d, p + 2 * MIB + 10, 9000, 0, tell, NULL, &pin), 0);
			EXPECT_EQ(hugepin_pin(d, p + 2 * MIB + 10, 9000, 0, &other), 0);
			EXPECT_EQ(memcmp(&pin, &other, sizeof pin), 0);
			EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
			EXPECT_EQ(hugepin_unpin(d, &pin) || hugepin_unpin(d, &other), 0);
			EXPECT_EQ(hugepin_pin_try(d, p + 3 * MIB + 5001, 5, 0, NULL, NULL, &pin), 0);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		}
		EXPECT_EQ(device.calls, calls);
	}
	munmap(memory[0], 4 * MIB);
	hugepin_free(memory[1]);
}

PIN_TEST(hits_need_no_lock, open_lru(), 8 * MIB)
{
	const unsigned remote = HUGEPIN_REMOTE_WRITE;
	char *h = hugepin_malloc(MIB);
	const struct {
		char *at;
		unsigned access;
	} hit[] = { { p, 0 }, { p + 4 * MIB, 0 }, { p, remote }, { h, 0 }, { h, remote } };
	struct hugepin_pin pin;

	EXPECT_EQ(touch(d, p, 8 * MIB), 0);
	for (size_t i = 0; i < sizeof hit / sizeof *hit; i++) {
		EXPECT_EQ(hugepin_pin(d, hit[i].at, 4096, hit[i].access, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	hp_lock(&d->lock);
	for (size_t i = 0; i < sizeof hit / sizeof *hit; i++) {
		EXPECT_EQ(hugepin_pin_try(d, hit[i].at, 4096, hit[i].access, NULL, NULL, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	hp_unlock(&d->lock);
	hugepin_free(h);
}

DOMAIN_TEST(a_pin_for_a_peer_is_a_hit_only_of_its_own_pages, open_lru())
{
	const unsigned remote = HUGEPIN_REMOTE_WRITE | HUGEPIN_WRITE;
	char *memory[] = { map(MIB), hugepin_malloc(MIB) };
	struct hugepin_pin pin;
	struct told t;

	for (int i = 0; i < 2; i++) {
		char *p = (char *)(((uintptr_t)memory[i] + 4095) & -(uintptr_t)4096);
		long calls;

		EXPECT_EQ(touch(d, p, MIB / 2), 0);
		EXPECT_EQ(ask(d, p, 8192, remote, &t), 0);
		EXPECT_EQ(device.reg[t.pin.lkey].len, 8192);
		calls = device.calls;
		for (int k = 0; k < 2; k++) {
			EXPECT_EQ(hugepin_pin_try(d, p, 8192, remote, NULL, NULL, &pin), 0);
			EXPECT_EQ(pin.rkey, t.pin.rkey);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		}
		EXPECT_EQ(device.calls, calls);
		EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
		EXPECT_EQ(ask(d, p, 4096, remote, &t), 0);
		EXPECT_EQ(device.reg[t.pin.lkey].len, 4096);
		EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
	}
	munmap(memory[0], MIB);
	hugepin_free(memory[1]);
}

/* The thread may open no file: what it has to ask the kernel about memory outside the heap was opened before. */
TEST_BY(in_child, memory_that_the_service_thread_registers_before_all_others_is_cached)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB), *hinted = map(MIB);
	struct hugepin_pin pin;
	struct told t;

	EXPECT_EQ(ask(d, p, MIB, 0, &t), 0);
	EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
	EXPECT_EQ(hugepin_prefetch(d, hinted, MIB, 0), 0);
	for (int i = 0; i < 20000 && !stats_of(d).prefetched; i++)
		usleep(1000);
	EXPECT_EQ(hugepin_pin_try(d, p, MIB, 0, NULL, NULL, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(registered(d, hinted, MIB));
	EXPECT_EQ(stats_of(d).uncached, 0);
}

DOMAIN_TEST(what_is_not_registered_is_told_once_by_the_service_thread_without_a_lock, open_lru())
{
	char *memory[] = { map(MIB), hugepin_malloc(MIB) };
	struct told t;

	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(ask(d, memory[i] + 100, 9000, 0, &t), 0);
		EXPECT(device_covers(&device, &t.pin, HUGEPIN_READ | HUGEPIN_WRITE));
		EXPECT(t.pin.base == (uintptr_t)memory[i] + 100 && t.pin.len == 9000);
		EXPECT(!pthread_equal(t.thread, pthread_self()) && pthread_equal(t.thread, device.thread));
		EXPECT_EQ(t.locks, 0);
		EXPECT(registered(d, memory[i] + 100, 9000));
		EXPECT_EQ(hugepin_domain_close(d), -EBUSY); /* the pin is the program's */
		EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
		EXPECT_EQ(t.times, 1);
	}
	EXPECT_EQ(stats_of(d).misses, 2);
	munmap(memory[0], MIB);
	hugepin_free(memory[1]);
}

TEST(a_request_without_a_callback_registers_and_pins_nothing)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);
	struct hugepin_pin pin;
	int err = -EAGAIN;

	for (int i = 0; i < 20000 && err == -EAGAIN; i++) {
		err = hugepin_pin_try(d, p, 8192, 0, NULL, NULL, &pin);
		usleep(err ? 1000 : 0);
	}
	EXPECT_EQ(err, 0);
	EXPECT_EQ(device.calls, 1);
	EXPECT(device_covers(&device, &pin, HUGEPIN_WRITE));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	munmap(p, MIB);
	close_empty(&device, d); /* no pin is out */
}

TEST(a_pin_is_shorter_where_the_longest_registration_ends)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);
	struct told t;

	close_empty(&device, d);
	device_reset(&device);
	device.limits.len_max = 8192;
	d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(ask(d, p + 1, 20000, 0, &t), 0);
	EXPECT_EQ(t.pin.len, 8191);
	EXPECT_EQ(stats_of(d).cut, 1);
	EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(memory_that_is_not_cached_is_registered_for_the_request_alone)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);
	struct told t;
	struct hugepin_pin pin;

	EXPECT_EQ(ask(d, p, 4096, HUGEPIN_PIN_UNCACHED, &t), 0);
	EXPECT(device_covers(&device, &t.pin, HUGEPIN_READ | HUGEPIN_WRITE));
	EXPECT_EQ(hugepin_pin_try(d, p, 4096, HUGEPIN_PIN_UNCACHED, NULL, NULL, &pin), -EINVAL);
	EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
	EXPECT_EQ(device.regs, 0);
	close_empty(&device, d);
	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_NONE, 0, 0);
	for (int i = 1; i <= 2; i++) {
		EXPECT_EQ(ask(d, p, 4096, 0, &t), 0);
		EXPECT_EQ(device.calls, i);
		EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
	}
	munmap(p, MIB);
	close_empty(&device, d);
}

/* Whether one of ten pages is a hit though there is no hint for it. A try may fail: it does not wait while a thread of the
 * library has the domain. The request that is left then remembers a hint. So each try has a page of its own, after that
 * thread has served the request and left the domain. */
static bool hits_without_hint(hugepin_domain *d, const char *pages)
{
	struct hugepin_pin pin;

	for (int i = 0; i < 10; i++) {
		if (!hugepin_pin_try(d, pages + (size_t)i * 4096, 4096, 0, NULL, NULL, &pin))
			return !hugepin_unpin(d, &pin);
		for (int ms = 0; ms < 20000 && hp_request_count(d); ms++)
			usleep(1000);
		hp_lock(&d->lock);
		hp_unlock(&d->lock);
	}
	return false;
}

PIN_TEST(what_only_a_look_under_the_lock_finds_is_a_hit, open_lru(), MIB)
{
	EXPECT_EQ(touch(d, p, 40 * 4096), 0);
	EXPECT(hits_without_hint(d, p + 5 * 4096));
	EXPECT_EQ(hugepin_forget(p + MIB / 2, 4096), 0);
	EXPECT(hits_without_hint(d, p + 20 * 4096));
	EXPECT_EQ(device.calls, 1);
}

/* ------------------------------------------------------------------ failures */

PIN_TEST(wrong_arguments_start_nothing, open_lru(), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin_try(d, p, 0, 0, tell, NULL, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin_try(d, p, SIZE_MAX, 0, tell, NULL, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin_try(d, p, 4096, 1u << 20, tell, NULL, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin_try(d, p, 4096, HUGEPIN_REMOTE_ATOMIC, tell, NULL, &pin), -EOPNOTSUPP);
	EXPECT_EQ(d->requests_count, 0);
	EXPECT_EQ(device.calls, 0);
}

PIN_TEST(a_request_makes_room_as_a_pin_does, open_limited(4 * 4096), MIB)
{
	struct told t;
	struct hugepin_pin held[3];

	for (size_t i = 0; i < 8; i++) {
		EXPECT_EQ(ask(d, p + i * 8192, 4096, 0, &t), 0);
		EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
	}
	EXPECT_EQ(stats_of(d).evicted, 4);
	for (size_t i = 0; i < 3; i++)
		EXPECT_EQ(hugepin_pin(d, p + i * 8192, 4096, 0, &held[i]), 0);
	EXPECT_EQ(ask(d, p + 100000, 8192, 0, &t), -ENOBUFS);
	EXPECT_EQ(stats_of(d).nobufs, 1);
	for (size_t i = 0; i < 3; i++) {
		EXPECT(device_covers(&device, &held[i], HUGEPIN_WRITE));
		EXPECT_EQ(hugepin_unpin(d, &held[i]), 0);
	}
}

TEST(each_failure_of_the_backend_is_told_as_a_pin_would_tell_it)
{
	static const int errors[] = { -EFAULT, -EINVAL, -EOPNOTSUPP, -EIO, -ENOMEM, -EAGAIN, -EPERM };
	char *p = map(MIB), *h = hugepin_malloc(MIB);

	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		for (int heap = 0; heap < 2; heap++)
			for (long nth = 1; nth <= 3; nth++) {
				hugepin_domain *d = open_lru();
				struct hugepin_pin pin = { 0 };
				struct told t;
				int as_pin = 0, told = 0;

				for (int k = 0; k < 2; k++) {
					int *err = k ? &told : &as_pin;

					device.nth = nth;
					device.for_good = nth > 1 ? false : true;
					device.with = errors[i];
					*err = k ? ask(d, heap ? h : p, 8192, 0, &t) :
						   hugepin_pin(d, heap ? h : p, 8192, 0, &pin);
					device.nth = 0;
					if (!*err)
						EXPECT_EQ(hugepin_unpin(d, k ? &t.pin : &pin), 0);
					EXPECT_EQ(hugepin_domain_close(d), 0);
					EXPECT_EQ(device.regs, 0);
					d = open_lru();
				}
				EXPECT_EQ(told, as_pin);
				EXPECT(nth > 1 || told < 0);
				close_empty(&device, d);
			}
	munmap(p, MIB);
	hugepin_free(h);
}

static void *try_as_another(void *d)
{
	static char other[4096];
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin_try(d, other, 100, 0, tell, NULL, &pin), -EPERM);
	return NULL;
}

TEST(where_only_the_opener_may_register_nothing_is_asked_of_the_service_thread)
{
	char *p = map(MIB);
	struct hugepin_pin pin;
	hugepin_domain *d;
	pthread_t t;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(touch(d, p, 4096), 0);
	EXPECT_EQ(hugepin_pin_try(d, p, 100, 0, NULL, NULL, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_pin_try(d, p + 8192, 100, 0, tell, NULL, &pin), -EPERM);
	pthread_create(&t, NULL, try_as_another, d);
	pthread_join(t, NULL);
	EXPECT_EQ(device.calls, 1);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ callbacks */

struct chain {
	hugepin_domain *d;
	char *p;
	int left, hits;
	sem_t done;
};

/* Give the pin back, pin it again, and ask for the next page. */
static void go_on(void *chain, int err, const struct hugepin_pin *pin)
{
	struct chain *c = chain;
	struct hugepin_pin mine = *pin;

	EXPECT_EQ(err, 0);
	EXPECT_EQ(hugepin_unpin(c->d, &mine), 0);
	c->hits += hugepin_pin_try(c->d, c->p, 4096, 0, go_on, c, &mine) == 0;
	EXPECT_EQ(hugepin_unpin(c->d, &mine), 0);
	c->p += 8192;
	if (c->left--)
		EXPECT_EQ(hugepin_pin_try(c->d, c->p, 4096, 0, go_on, c, &mine), -EAGAIN);
	else
		sem_post(&c->done);
}

TEST(a_callback_may_unpin_pin_and_ask_again)
{
	hugepin_domain *d = open_lru();
	char *p = map(4 * MIB);
	struct chain c = { .d = d, .p = p, .left = 100 };
	struct hugepin_pin pin;

	sem_init(&c.done, 0, 0);
	EXPECT_EQ(hugepin_pin_try(d, p, 4096, 0, go_on, &c, &pin), -EAGAIN);
	sem_wait(&c.done);
	EXPECT_EQ(c.hits, 101);
	munmap(p, 4 * MIB);
	close_empty(&device, d);
}

static struct {
	hugepin_domain *d;
	char *p;
	_Atomic long asked, told, cancelled;
} many;

enum { PAGES = 64, THREADS = 4, ENOUGH = 500 };

static void count(void *arg, int err, const struct hugepin_pin *pin)
{
	(void)arg;
	if (pin) {
		struct hugepin_pin mine = *pin;

		EXPECT(device_covers(&device, &mine, HUGEPIN_READ | HUGEPIN_WRITE));
		EXPECT_EQ(hugepin_unpin(many.d, &mine), 0);
	} else {
		EXPECT_EQ(err, -ECANCELED);
		many.cancelled++;
	}
	many.told++;
}

static void *ask_at_random(void *seed)
{
	unsigned state = (unsigned)(uintptr_t)seed;

	while (many.told < ENOUGH) {
		char *p = many.p + (size_t)rand_r(&state) % PAGES * 8192;
		struct hugepin_pin pin;
		int err = hugepin_pin_try(many.d, p, 4096, 0, count, NULL, &pin);

		if (!err)
			EXPECT_EQ(hugepin_unpin(many.d, &pin), 0);
		else if (err == -EAGAIN)
			many.asked++;
		else
			EXPECT_EQ(err, -EBUSY);
		if (err == -EBUSY)
			sched_yield();
		if (rand_r(&state) % 4 == 0)
			hugepin_forget(p, 4096);
	}
	return NULL;
}

TEST(each_of_many_requests_is_told_once)
{
	pthread_t t[THREADS];

	T_THREADS_RUN(THREADS);
	many.d = open_limited(16 * 4096);
	many.p = map(PAGES * 8192);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, ask_at_random, (void *)(i + 1));
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < 20000 && many.told != many.asked; i++)
		usleep(1000);
	EXPECT_EQ(many.told, many.asked);
	t_print("# %ld told, %ld cancelled\n", many.told, many.cancelled);
	munmap(many.p, PAGES * 8192);
	close_empty(&device, many.d);
}

T_MAIN
