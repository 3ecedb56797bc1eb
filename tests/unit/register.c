/*
 * hugepin_register: pins as hugepin_pinv makes them, but registered several at a time; hugepin_deregister: given back,
 * and deregistered at once.
 */
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include "base/lock.h"
#include "reg/state.h"
#include "reg/together.h"
#include "tests/unit/child.h"
#include "tests/unit/empty.h"
#include "tests/unit/pin.h"

enum { PIECES = 24 };

/* ------------------------------------------------------------------ a device that is called on several threads */

static struct {
	pthread_mutex_t lock;
	int in, most; /* calls of reg that run; the most at a time */
	int stays_ms; /* a call waits so long for a second one */
	uint64_t bytes_max;
	pthread_t own; /* the thread that calls hugepin_register */
	int others; /* calls on other threads */
	int (*refuse)(void *addr, size_t len);
} par = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int par_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	int err;

	pthread_mutex_lock(&par.lock);
	par.in++;
	par.most = par.in > par.most ? par.in : par.most;
	par.others += !pthread_equal(par.own, pthread_self());
	for (int i = 0; i < par.stays_ms && par.most < 2; i++) {
		pthread_mutex_unlock(&par.lock);
		usleep(1000);
		pthread_mutex_lock(&par.lock);
	}
	EXPECT(hp_locks_held & 1u << HP_LOCK_RANK_DOMAIN);
	err = par.refuse ? par.refuse(addr, len) : 0;
	err = err ? err : device_reg(ctx, addr, len, access, ret_);
	EXPECT(!par.bytes_max || device.bytes <= par.bytes_max);
	par.in--;
	pthread_mutex_unlock(&par.lock);
	return err;
}

static int par_dereg(void *ctx, struct hugepin_reg *reg)
{
	EXPECT_EQ(par.in, 0); /* no other function is called meanwhile */
	return device_dereg(ctx, reg);
}

static uint64_t par_now(void *unused)
{
	struct timespec t;

	(void)unused;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static hugepin_domain *open_par(uint32_t policy, uint64_t bytes_max, uint32_t flags, size_t len_max)
{
	struct hugepin_backend b = device_backend;
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy, .pinned_bytes_max = bytes_max };
	hugepin_domain *d = NULL;

	b.reg = par_reg;
	b.dereg = par_dereg;
	b.now_ns = par_now;
	device_reset(&device);
	device.limits.flags = flags;
	device.limits.len_max = len_max;
	par.most = par.others = 0;
	par.stays_ms = 0;
	par.refuse = NULL;
	par.bytes_max = bytes_max;
	par.own = pthread_self();
	EXPECT_EQ(hugepin_domain_open(&b, &device, &attr, &d), 0);
	return d;
}

static bool one_processor(void)
{
	return hp_together_threads() < 2;
}

/* Pieces of that length, one after the other with a page between. */
static void cut(struct iovec *v, int n, char *p, size_t len)
{
	for (int i = 0; i < n; i++)
		v[i] = (struct iovec){ p + (size_t)i * (len + 4096), len };
}

static void expect_pins(const struct hugepin_pin *pins, const struct iovec *v, int n, unsigned access)
{
	for (int i = 0; i < n; i++) {
		EXPECT(device_covers(&device, &pins[i], access));
		EXPECT(pins[i].base == (uintptr_t)v[i].iov_base && pins[i].len == v[i].iov_len);
	}
}

/* ------------------------------------------------------------------ several at a time */

TEST(a_pool_is_registered_on_several_threads_and_pinned)
{
	hugepin_domain *d = open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_PARALLEL, 0);
	struct hugepin_pin pins[PIECES], pin;
	struct iovec v[PIECES];
	char *p = map(PIECES * 2 * MIB);
	long calls;

	T_THREADS_RUN(HP_TOGETHER_MAX);
	if (one_processor()) {
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("one processor");
	}
	cut(v, PIECES, p, MIB);
	par.stays_ms = 100;
	EXPECT_EQ(hugepin_register(d, v, PIECES, 0, pins, PIECES), PIECES);
	EXPECT(par.most >= 2 && par.most <= HP_TOGETHER_MAX && par.others > 0);
	EXPECT(!d->ready);
	expect_pins(pins, v, PIECES, HUGEPIN_READ | HUGEPIN_WRITE);
	EXPECT_EQ(device.calls, PIECES);
	EXPECT_EQ(stats_of(d).registered, PIECES);
	EXPECT_EQ(stats_of(d).misses, PIECES);
	EXPECT_EQ(stats_of(d).pinned_bytes, device.bytes);
	EXPECT(stats_of(d).registered_ns > 0);
	calls = device.calls;
	for (int i = 0; i < PIECES; i++) { /* pins inside hit */
		EXPECT_EQ(hugepin_pin(d, (char *)v[i].iov_base + 70000, 5000, 0, &pin), 0);
		EXPECT_EQ(pin.lkey, pins[i].lkey);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(device.calls, calls);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_deregister(d, pins, PIECES), 0);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(pins[0].ref, 0);
	munmap(p, PIECES * 2 * MIB);
	close_empty(&device, d);
}

TEST(buffers_of_the_heap_are_registered_by_extents_or_hugepages)
{
	static const uint32_t policies[] = { HUGEPIN_POLICY_ARENA, HUGEPIN_POLICY_LRU };
	char *buffer[PIECES];
	struct hugepin_pin pins[PIECES], again[PIECES];
	struct iovec v[PIECES];

	T_THREADS_RUN(HP_TOGETHER_MAX);
	if (one_processor())
		SKIP("one processor");
	for (int i = 0; i < PIECES; i++) {
		buffer[i] = hugepin_malloc(6 * MIB);
		v[i] = (struct iovec){ buffer[i], 5 * MIB };
	}
	for (int k = 0; k < 2; k++) {
		hugepin_domain *d = open_par(policies[k], 0, HUGEPIN_LIMIT_PARALLEL, 0);
		struct hugepin_extent x;
		long calls;

		EXPECT(hugepin_extent(buffer[0], &x, sizeof x) > 0);
		par.stays_ms = 100;
		EXPECT_EQ(hugepin_register(d, v, PIECES, HUGEPIN_WRITE, pins, PIECES), PIECES);
		expect_pins(pins, v, PIECES, HUGEPIN_WRITE);
		EXPECT(par.most >= 2);
		EXPECT_EQ(device.calls, stats_of(d).registered);
		EXPECT_EQ(stats_of(d).extents, k ? 0 : stats_of(d).registered);
		EXPECT(k || device.reg[pins[0].lkey].len == x.len);
		calls = device.calls;
		EXPECT_EQ(hugepin_register(d, v, PIECES, HUGEPIN_WRITE, again, PIECES), PIECES);
		expect_pins(again, v, PIECES, HUGEPIN_WRITE);
		EXPECT_EQ(device.calls, calls); /* all of it is registered */
		EXPECT_EQ(hugepin_deregister(d, pins, PIECES), 0);
		expect_pins(again, v, PIECES, HUGEPIN_WRITE);
		EXPECT_EQ(hugepin_deregister(d, again, PIECES), 0);
		EXPECT_EQ(device.regs, 0);
		close_empty(&device, d);
	}
	for (int i = 0; i < PIECES; i++)
		hugepin_free(buffer[i]);
	hugepin_purge();
	expect_empty(); /* no hold is left */
}

DOMAIN_TEST(a_pool_of_more_ranges_than_lie_ready_at_a_time_is_registered_all_the_same,
	    open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_PARALLEL, 0))
{
	enum { MANY = 3 * HP_READY_MAX + 5 };
	static struct hugepin_pin pins[MANY];
	static struct iovec v[MANY];
	char *p = map(MANY * (MIB + 4096));

	cut(v, MANY, p, MIB);
	EXPECT_EQ(hugepin_register(d, v, MANY, 0, pins, MANY), MANY);
	expect_pins(pins, v, MANY, HUGEPIN_READ);
	EXPECT_EQ(device.calls, MANY);
	EXPECT_EQ(hugepin_deregister(d, pins, MANY), 0);
	EXPECT_EQ(device.regs, 0);
	munmap(p, MANY * (MIB + 4096));
}

TEST(one_buffer_that_takes_several_registrations_is_registered_at_once)
{
	hugepin_domain *d = open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_PARALLEL, 2 * MIB);
	struct hugepin_pin pins[PIECES];
	char *p = map(17 * MIB);
	struct iovec v = { p + 100, 16 * MIB };
	size_t sum = 0;
	int n;

	if (one_processor()) {
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("one processor");
	}
	par.stays_ms = 100;
	n = hugepin_register(d, &v, 1, 0, pins, PIECES);
	EXPECT_EQ(n, 9);
	EXPECT(par.most >= 2);
	for (int i = 0; i < n; i++) {
		EXPECT_EQ(pins[i].base, (uintptr_t)p + 100 + sum);
		EXPECT(device_covers(&device, &pins[i], HUGEPIN_READ));
		sum += pins[i].len;
	}
	EXPECT_EQ(sum, 16 * MIB);
	EXPECT_EQ(device.calls, 9);
	EXPECT_EQ(hugepin_deregister(d, pins, n), 0);
	EXPECT_EQ(hugepin_register(d, &v, 1, 0, pins, 8), -EMSGSIZE);
	munmap(p, 17 * MIB);
	close_empty(&device, d);
}

static void one_at_a_time(uint32_t policy, uint32_t flags, size_t len, unsigned access)
{
	hugepin_domain *d = open_par(policy, 0, flags, 0);
	struct hugepin_pin pins[PIECES];
	struct iovec v[PIECES];
	char *p = map(PIECES * 2 * MIB);

	cut(v, PIECES, p, len);
	par.stays_ms = 3;
	EXPECT_EQ(hugepin_register(d, v, PIECES, access, pins, PIECES), PIECES);
	expect_pins(pins, v, PIECES, HUGEPIN_READ | HUGEPIN_WRITE);
	EXPECT_EQ(par.most, 1);
	EXPECT_EQ(par.others, 0);
	EXPECT_EQ(device.calls, PIECES);
	EXPECT_EQ(hugepin_deregister(d, pins, PIECES), 0);
	EXPECT_EQ(device.regs, 0);
	munmap(p, PIECES * 2 * MIB);
	close_empty(&device, d);
}

TEST(where_nothing_is_gained_ranges_are_registered_one_at_a_time)
{
	one_at_a_time(HUGEPIN_POLICY_LRU, 0, MIB, 0);
	one_at_a_time(HUGEPIN_POLICY_LRU, HUGEPIN_LIMIT_PARALLEL, 65536, 0); /* not worth a thread */
	one_at_a_time(HUGEPIN_POLICY_LRU, HUGEPIN_LIMIT_PARALLEL, MIB, HUGEPIN_PIN_UNCACHED);
	one_at_a_time(HUGEPIN_POLICY_NONE, HUGEPIN_LIMIT_PARALLEL, MIB, 0);
	one_at_a_time(HUGEPIN_POLICY_PREDICT, HUGEPIN_LIMIT_PARALLEL, MIB, 0);
	one_at_a_time(HUGEPIN_POLICY_LRU, HUGEPIN_LIMIT_PARALLEL | HUGEPIN_LIMIT_OPENER, MIB, 0);
}

DOMAIN_TEST(the_policy_none_keeps_nothing_of_a_pool, open_par(HUGEPIN_POLICY_NONE, 0, HUGEPIN_LIMIT_PARALLEL, 0))
{
	struct hugepin_pin pins[4];
	struct iovec v[4];
	char *h = hugepin_aligned_alloc(4096, 16 * MIB);

	cut(v, 4, h, MIB);
	EXPECT_EQ(hugepin_register(d, v, 4, 0, pins, 4), 4);
	EXPECT_EQ(device.bytes, 4 * MIB); /* base pages, each for its pin */
	EXPECT_EQ(hugepin_unpinv(d, pins, 4), 0);
	EXPECT_EQ(device.regs, 0);
	hugepin_free(h);
}

TEST_BY(in_child, a_process_of_one_processor_starts_no_thread)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET((size_t)sched_getcpu(), &one);
	EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
	one_at_a_time(HUGEPIN_POLICY_LRU, HUGEPIN_LIMIT_PARALLEL, MIB, 0);
}

/* ------------------------------------------------------------------ as hugepin_pinv */

PIN_TEST(arguments_are_refused_as_by_pinv, open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_PARALLEL, 0), 4 * MIB)
{
	struct hugepin_pin pins[2];
	struct iovec v[2] = { { p, MIB }, { p + 2 * MIB, 0 } };

	EXPECT_EQ(hugepin_register(d, v, 0, 0, pins, 2), 0);
	EXPECT_EQ(hugepin_register(d, NULL, 0, 0, NULL, 0), 0);
	EXPECT_EQ(hugepin_register(d, v, -1, 0, pins, 2), -EINVAL);
	EXPECT_EQ(hugepin_register(d, NULL, 1, 0, pins, 2), -EINVAL);
	EXPECT_EQ(hugepin_register(d, v, 1, 0, NULL, 2), -EINVAL);
	EXPECT_EQ(hugepin_register(d, v, 2, 0, pins, 2), -EINVAL); /* an empty piece */
	EXPECT_EQ(hugepin_register(d, v, 1, 1u << 20, pins, 2), -EINVAL);
	EXPECT_EQ(hugepin_register(d, v, 1, HUGEPIN_REMOTE_ATOMIC, pins, 2), -EOPNOTSUPP);
	v[1] = (struct iovec){ p, SIZE_MAX };
	EXPECT_EQ(hugepin_register(d, v, 2, 0, pins, 2), -EINVAL);
	v[1] = (struct iovec){ p + 2 * MIB, MIB };
	EXPECT_EQ(hugepin_register(d, v, 2, 0, pins, 1), -EMSGSIZE);
	EXPECT_EQ(hugepin_deregister(d, pins, -1), -EINVAL);
	EXPECT_EQ(hugepin_deregister(d, NULL, 1), -EINVAL);
	EXPECT_EQ(hugepin_deregister(d, NULL, 0), 0);
}

/* Whether each registration of a is one of b, too. */
static bool all_in(const struct device *a, const struct device *b)
{
	for (unsigned i = 1, seen = 0; seen < a->regs; i++) {
		bool found = false;

		if (!a->reg[i].live)
			continue;
		seen++;
		for (unsigned k = 1, looked = 0; looked < b->regs && !found; k++) {
			looked += b->reg[k].live;
			found = b->reg[k].live && b->reg[k].addr == a->reg[i].addr && b->reg[k].len == a->reg[i].len &&
				b->reg[k].access == a->reg[i].access;
		}
		if (!found)
			return false;
	}
	return true;
}

/* The naive model: one after the other. */
static int pin_each(hugepin_domain *d, const struct iovec *v, int n, unsigned access, struct hugepin_pin *ret_, int max)
{
	int pins = 0;

	for (int i = 0; i < n; i++)
		for (size_t done = 0; done < v[i].iov_len && pins < max; done += ret_[pins++].len)
			EXPECT_EQ(hugepin_pin(d, (char *)v[i].iov_base + done, v[i].iov_len - done, access,
					      &ret_[pins]), 0);
	return pins;
}

TEST(any_pieces_are_registered_as_single_pins_register_them)
{
	enum { MOST = 12, SPACE = 24 };
	static struct device serial;
	char *memory[] = { map(SPACE * MIB), hugepin_malloc(SPACE * MIB) };
	const unsigned accesses[] = { 0, HUGEPIN_READ, HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE };
	unsigned seed = 5;

	T_THREADS_RUN(HP_TOGETHER_MAX);
	for (int round = 0; round < 150; round++) {
		struct { struct hugepin_pin pins[MOST * 16]; int n; } got[2], before[2];
		struct iovec v[MOST], first;
		uint32_t policy = rand_r(&seed) % 2 ? HUGEPIN_POLICY_LRU : HUGEPIN_POLICY_ARENA;
		unsigned access = accesses[rand_r(&seed) % 3], other = accesses[rand_r(&seed) % 3];
		size_t len_max = rand_r(&seed) % 3 ? 0 : 5 * MIB + 4096;
		int n = 1 + rand_r(&seed) % MOST;

		for (int i = 0; i <= n; i++) {
			size_t at = (size_t)rand_r(&seed) % (SPACE * MIB - 1),
			       len = 1 + (size_t)rand_r(&seed) % (6 * MIB);

			if (rand_r(&seed) % 4 == 0 && i)
				at = (size_t)((char *)v[i - 1].iov_base - memory[0]) % (SPACE * MIB);
			len = len < SPACE * MIB - at ? len : SPACE * MIB - at;
			*(i < n ? &v[i] : &first) = (struct iovec){ memory[rand_r(&seed) % 2] + at, len };
		}
		for (int k = 0; k < 2; k++) {
			hugepin_domain *d = open_par(policy, 0, k ? HUGEPIN_LIMIT_PARALLEL : 0, len_max);

			/* Some of it is registered before. */
			before[k].n = hugepin_pinv(d, &first, 1, other, before[k].pins, MOST * 16);
			EXPECT(before[k].n > 0);
			got[k].n = (k ? hugepin_register : pin_each)(d, v, n, access, got[k].pins, MOST * 16);
			EXPECT(got[k].n >= n);
			for (int i = 0; i < got[k].n; i++)
				EXPECT(device_covers(&device, &got[k].pins[i], access ? access : 3u));
			if (!k)
				serial = device;
			/* On one processor it is hugepin_pinv, which pins all again if one registration has taken the
			 * place of another meanwhile: the other is gone then. */
			EXPECT(!k || one_processor() || all_in(&serial, &device));
			EXPECT(!k || all_in(&device, &serial));
			EXPECT_EQ(hugepin_unpinv(d, got[k].pins, got[k].n), 0);
			EXPECT_EQ(hugepin_unpinv(d, before[k].pins, before[k].n), 0);
			close_empty(&device, d);
		}
		EXPECT_EQ(got[0].n, got[1].n);
		for (int i = 0; i < got[0].n && i < got[1].n; i++)
			EXPECT(got[0].pins[i].base == got[1].pins[i].base && got[0].pins[i].len == got[1].pins[i].len);
		EXPECT_EQ(serial.calls, device.calls);
		if (t_failures) {
			t_print("# policy %u, access %u, before %u, at most %zu\n# before: %p %#zx\n", policy, access,
				other, len_max, first.iov_base, first.iov_len);
			for (int i = 0; i < n; i++)
				t_print("# %p %#zx\n", v[i].iov_base, v[i].iov_len);
			break;
		}
	}
	munmap(memory[0], SPACE * MIB);
	hugepin_free(memory[1]);
}

/* A registration has the access of those inside it. Where two would take the place of a third, the first one does. */
TEST(the_access_of_what_is_replaced_is_foreseen)
{
	const unsigned both = HUGEPIN_READ | HUGEPIN_WRITE;
	char *p = map(16 * MIB);
	const struct {
		struct iovec v[2];
		unsigned access[2];
	} of[] = {
		/* it lies inside the first, which lies inside the second */
		{ { { p + MIB, 4 * MIB }, { p, 8 * MIB } }, { both, both } },
		/* it lies inside each, and neither inside the other */
		{ { { p + MIB, 4 * MIB }, { p + 2 * MIB, 4 * MIB } }, { both, HUGEPIN_READ } },
	};

	for (int i = 0; i < 2; i++) {
		hugepin_domain *d = open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_PARALLEL, 0);
		struct hugepin_pin inside, pins[2];

		EXPECT_EQ(hugepin_pin(d, p + 3 * MIB, MIB, both, &inside), 0);
		EXPECT_EQ(hugepin_register(d, of[i].v, 2, HUGEPIN_READ, pins, 2), 2);
		EXPECT_EQ(device.calls, 3); /* nothing was made in vain */
		for (int k = 0; k < 2; k++)
			EXPECT_EQ(device.reg[pins[k].lkey].access, of[i].access[k]);
		EXPECT_EQ(hugepin_unpin(d, &inside), 0);
		EXPECT_EQ(hugepin_deregister(d, pins, 2), 0);
		EXPECT_EQ(device.regs, 0);
		close_empty(&device, d);
	}
	munmap(p, 16 * MIB);
}

/* ------------------------------------------------------------------ room */

TEST(extents_take_half_of_the_budget)
{
	struct hugepin_pin pins[4];
	struct hugepin_extent x;
	struct iovec v[4];
	hugepin_domain *d;

	for (int i = 0; i < 4; i++) { /* larger than others: each in an extent of its own */
		v[i] = (struct iovec){ hugepin_malloc(100 * MIB), 100 * MIB };
		EXPECT(hugepin_extent(v[i].iov_base, &x, sizeof x) > 0);
	}
	d = open_par(HUGEPIN_POLICY_ARENA, 5 * x.len, HUGEPIN_LIMIT_PARALLEL, 0);
	EXPECT_EQ(hugepin_register(d, v, 4, 0, pins, 4), 4);
	EXPECT_EQ(stats_of(d).extents, 2);
	EXPECT_EQ(device.calls, 4); /* nothing was made in vain */
	EXPECT_EQ(hugepin_deregister(d, pins, 4), 0);
	close_empty(&device, d);
	for (int i = 0; i < 4; i++)
		hugepin_free(v[i].iov_base);
	hugepin_purge();
	expect_empty();
}

DOMAIN_TEST(the_budget_is_kept_by_giving_back_what_is_not_in_use,
	    open_par(HUGEPIN_POLICY_LRU, 8 * MIB, HUGEPIN_LIMIT_PARALLEL, 0))
{
	struct hugepin_pin pins[PIECES];
	struct iovec v[PIECES];
	char *p = map(PIECES * 2 * MIB), *old = map(8 * MIB);

	for (size_t i = 0; i < 4; i++)
		EXPECT_EQ(touch(d, old + i * 2 * MIB, MIB), 0);
	cut(v, PIECES, p, MIB);
	EXPECT_EQ(hugepin_register(d, v, 8, 0, pins, 8), 8); /* the device looks at the budget */
	expect_pins(pins, v, 8, HUGEPIN_READ);
	EXPECT_EQ(stats_of(d).evicted, 4);
	EXPECT_EQ(stats_of(d).pinned_peak_bytes, 8 * MIB);
	EXPECT_EQ(hugepin_register(d, v + 7, 3, 0, pins + 8, 3), -ENOBUFS);
	expect_pins(pins, v, 8, HUGEPIN_READ);
	EXPECT_EQ(hugepin_deregister(d, pins, 8), 0);
	EXPECT_EQ(hugepin_register(d, v, PIECES, 0, pins, PIECES), -ENOBUFS);
	EXPECT_EQ(hugepin_register(d, v + 8, 8, 0, pins, PIECES), 8); /* nothing was left pinned */
	EXPECT_EQ(hugepin_deregister(d, pins, 8), 0);
	munmap(p, PIECES * 2 * MIB);
	munmap(old, 8 * MIB);
}

DOMAIN_TEST(what_the_kernel_refuses_is_tried_again_one_at_a_time,
	    open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_PARALLEL, 0))
{
	struct hugepin_pin pins[PIECES];
	struct iovec v[PIECES];
	char *p = map(PIECES * 2 * MIB), *old = map(8 * MIB);

	device.kernel_bytes_max = 8 * MIB;
	for (size_t i = 0; i < 4; i++)
		EXPECT_EQ(touch(d, old + i * 2 * MIB, MIB), 0);
	cut(v, PIECES, p, MIB);
	EXPECT_EQ(hugepin_register(d, v, 8, 0, pins, 8), 8);
	expect_pins(pins, v, 8, HUGEPIN_READ);
	EXPECT_EQ(stats_of(d).evicted, 4);
	EXPECT_EQ(stats_of(d).refused, one_processor() ? 4 : 8); /* together, and once more */
	EXPECT_EQ(hugepin_register(d, v + 8, 2, 0, pins + 8, 2), -ENOBUFS);
	EXPECT_EQ(hugepin_deregister(d, pins, 8), 0);
	munmap(p, PIECES * 2 * MIB);
	munmap(old, 8 * MIB);
}

/* ------------------------------------------------------------------ failures */

TEST(each_failure_of_the_backend_leaves_nothing_pinned)
{
	static const int errors[] = { -EFAULT, -EINVAL, -EOPNOTSUPP, -EIO, -ENOMEM, -EAGAIN, -EPERM };
	enum { SOME = 5 };
	char *p = map(SOME * 2 * MIB), *h = hugepin_malloc(SOME * 3 * MIB);

	T_THREADS_RUN(HP_TOGETHER_MAX);
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		for (int heap = 0; heap < 2; heap++)
			for (long nth = 1; nth <= 3 * SOME; nth++)
				for (int for_good = 0; for_good < 2; for_good++) {
					hugepin_domain *d = open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_PARALLEL, 0);
					struct hugepin_pin pins[SOME];
					struct iovec v[SOME];
					int n;

					cut(v, SOME, heap ? h : p, MIB);
					device.nth = nth;
					device.with = errors[i];
					device.for_good = for_good;
					n = hugepin_register(d, v, SOME, 0, pins, SOME);
					if (n == SOME) {
						expect_pins(pins, v, SOME, HUGEPIN_READ);
						EXPECT_EQ(hugepin_deregister(d, pins, SOME), 0);
						EXPECT_EQ(device.regs, 0);
					} else {
						EXPECT_EQ(n, errors[i] == -ENOMEM || errors[i] == -EAGAIN ? -ENOBUFS : errors[i]);
					}
					EXPECT(for_good || n == SOME); /* one refusal is answered */
					device.nth = 0;
					EXPECT(device.regs == stats_of(d).regions);
					close_empty(&device, d);
				}
	munmap(p, SOME * 2 * MIB);
	hugepin_free(h);
	hugepin_purge();
	expect_empty(); /* no hold is left */
}

static int last_refused(void *addr, size_t len)
{
	(void)len;
	return (uintptr_t)addr % (64 * MIB) >= 20 * MIB ? -EFAULT : 0;
}

TEST(what_lay_ready_when_a_pin_failed_is_deregistered)
{
	hugepin_domain *d = open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_PARALLEL, 0);
	char *h = hugepin_aligned_alloc(64 * MIB, 64 * MIB);
	struct hugepin_pin pins[3];
	/* The second fails; then the third lies ready, and nobody asks for it. */
	struct iovec v[] = { { h, 2 * MIB }, { h + 30 * MIB, 2 * MIB }, { h + 4 * MIB, 2 * MIB } };

	par.refuse = last_refused;
	EXPECT_EQ(hugepin_register(d, v, 3, 0, pins, 3), -EFAULT);
	par.refuse = NULL;
	EXPECT_EQ(device.regs, 1); /* in the cache, pinned no more */
	EXPECT_EQ(stats_of(d).regions, 1);
	close_empty(&device, d);
	hugepin_free(h);
	hugepin_purge();
	expect_empty();
}

/* ------------------------------------------------------------------ memory that goes away */

static char *going;

static int forget_one(void *addr, size_t len)
{
	(void)len;
	if (addr == going)
		EXPECT_EQ(hugepin_forget(addr, 4096), 0);
	return 0;
}

PIN_TEST(memory_that_goes_away_meanwhile_is_registered_anew,
	 open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_PARALLEL, 0), PIECES * 2 * MIB)
{
	struct hugepin_pin pins[PIECES];
	struct iovec v[PIECES];

	cut(v, PIECES, p, MIB);
	going = v[5].iov_base;
	par.refuse = forget_one;
	EXPECT_EQ(hugepin_register(d, v, PIECES, 0, pins, PIECES), PIECES);
	par.refuse = NULL;
	expect_pins(pins, v, PIECES, HUGEPIN_READ);
	for (int i = 0; i < PIECES; i++)
		EXPECT_EQ(registered(d, v[i].iov_base, 4096), i != 5);
	EXPECT_EQ(stats_of(d).retired, 1); /* its pin is still out */
	EXPECT_EQ(hugepin_deregister(d, pins, PIECES), 0);
	EXPECT_EQ(stats_of(d).retired, 0);
	EXPECT_EQ(device.regs, 1);
}

TEST(a_child_of_fork_registers_nothing)
{
	hugepin_domain *d = open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_PARALLEL, 0);
	struct hugepin_pin pins[PIECES];
	struct iovec v[PIECES];
	char *p = map(PIECES * 2 * MIB);
	int status;
	pid_t pid;

	cut(v, PIECES, p, MIB);
	EXPECT_EQ(hugepin_register(d, v, PIECES, 0, pins, PIECES), PIECES);
	pid = fork();
	if (pid == 0) {
		struct hugepin_pin mine[PIECES];

		EXPECT_EQ(hugepin_register(d, v, PIECES, 0, mine, PIECES), -ESTALE);
		EXPECT_EQ(hugepin_deregister(d, pins, PIECES), -EINVAL);
		EXPECT_EQ(device.deregs, 0);
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(hugepin_deregister(d, pins, PIECES), 0);
	munmap(p, PIECES * 2 * MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ giving back */

PIN_TEST(what_another_has_pinned_stays_registered,
	 open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_PARALLEL, 0), PIECES * 2 * MIB)
{
	struct hugepin_pin pins[PIECES], other, kept;
	struct iovec v[PIECES];

	cut(v, PIECES, p, MIB);
	EXPECT_EQ(hugepin_register(d, v, PIECES, 0, pins, PIECES), PIECES);
	EXPECT_EQ(hugepin_pin(d, (char *)v[3].iov_base + 4096, 100, 0, &other), 0);
	kept = pins[7];
	pins[7].ref = 0; /* skipped */
	EXPECT_EQ(hugepin_deregister(d, pins, PIECES), 0);
	EXPECT_EQ(device.regs, 2);
	EXPECT(registered(d, v[3].iov_base, MIB));
	EXPECT(device_covers(&device, &other, HUGEPIN_READ));
	EXPECT_EQ(hugepin_deregister(d, &other, 1), 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(hugepin_deregister(d, &other, 1), 0); /* cleared */
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_deregister(d, &kept, 1), 0);
	EXPECT_EQ(device.regs, 0);
}

TEST(a_pin_of_another_domain_is_refused_and_the_others_are_given_back)
{
	hugepin_domain *d = open_par(HUGEPIN_POLICY_LRU, 0, 0, 0), *other = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	struct hugepin_pin pins[3];
	char *p = map(MIB);

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pins[0]), 0);
	EXPECT_EQ(hugepin_pin(other, p + 65536, 4096, 0, &pins[1]), 0);
	EXPECT_EQ(hugepin_pin(d, p + 100000, 4096, 0, &pins[2]), 0);
	EXPECT_EQ(hugepin_deregister(d, pins, 3), -EINVAL);
	EXPECT_EQ(device.regs, 1);
	EXPECT(!pins[0].ref && pins[1].ref && !pins[2].ref);
	EXPECT_EQ(hugepin_deregister(other, pins, 3), 0);
	EXPECT_EQ(hugepin_domain_close(other), 0);
	device.closed = 0;
	munmap(p, MIB);
	close_empty(&device, d);
}

static void *deregister_one(void *args)
{
	void **a = args;

	EXPECT_EQ(hugepin_deregister(a[0], a[1], 1), 0);
	return NULL;
}

PIN_TEST(where_only_the_opener_may_deregister_the_rest_is_left_to_its_next_pin,
	 open_par(HUGEPIN_POLICY_LRU, 0, HUGEPIN_LIMIT_OPENER, 0), MIB)
{
	struct hugepin_pin pin;
	void *args[] = { d, &pin };
	pthread_t t;

	EXPECT_EQ(touch(d, p + 65536, 4096), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	pthread_create(&t, NULL, deregister_one, args);
	pthread_join(t, NULL);
	EXPECT_EQ(device.regs, 2);
	EXPECT_EQ(touch(d, p + 65536, 4096), 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT(!registered(d, p, 4096));
}

/* ------------------------------------------------------------------ the threads */

static struct {
	_Atomic int times[100];
	_Atomic unsigned locks;
} items;

static void do_item(void *arg, unsigned i)
{
	sigset_t now;

	EXPECT(arg == &items);
	items.times[i]++;
	items.locks |= hp_locks_held;
	EXPECT(i % 10 || pthread_sigmask(SIG_BLOCK, NULL, &now) == 0);
}

TEST(each_item_is_done_once_however_many_threads)
{
	T_THREADS_RUN(HP_TOGETHER_MAX);
	for (unsigned threads = 1; threads <= HP_TOGETHER_MAX; threads++) {
		memset(&items, 0, sizeof items);
		hp_together(do_item, &items, 100, threads);
		for (int i = 0; i < 100; i++)
			EXPECT_EQ(items.times[i], 1);
		EXPECT_EQ(items.locks, 0);
	}
	EXPECT(hp_together_threads() >= 1 && hp_together_threads() <= HP_TOGETHER_MAX);
}

T_MAIN
