/*
 * Single pins and vectors of pins: a repeated range is found registered; bad requests are refused and change nothing; a
 * pin is given back once.
 */
#include <sys/resource.h>

#include "base/stats.h"
#include "tests/unit/child.h"
#include "tests/unit/pin.h"

PIN_TEST(what_was_pinned_is_found_registered, open_lru(), MIB)
{
	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(touch(d, p + 100, 5000), 0);
		EXPECT_EQ(touch(d, p, 8192), 0);
		EXPECT_EQ(touch(d, p + 8191, 1), 0);
	}
	EXPECT_EQ(device.calls, 1);
	EXPECT_EQ(stats_of(d).misses, 1);
	EXPECT_EQ(stats_of(d).pinned_bytes, 8192);
	EXPECT_EQ(touch(d, p + 8191, 2), 0);
	EXPECT_EQ(device.calls, 2);
}

PIN_TEST(bad_ranges_and_access_are_refused_and_change_nothing, open_lru(), MIB)
{
	struct hugepin_pin pin, before;

	memset(&pin, 0x5a, sizeof pin);
	before = pin;
	errno = 77;
	EXPECT_EQ(hugepin_pin(d, p, 0, 0, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin(d, p, SIZE_MAX, 0, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin(d, p, (size_t)0 - (uintptr_t)p, 0, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 2048, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_ON_DEMAND, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_REMOTE_ATOMIC, &pin), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_prefetch(d, p, 0, 0), -EINVAL);
	EXPECT_EQ(hugepin_prefetch(d, p, 4096, HUGEPIN_PIN_UNCACHED), -EINVAL);
	EXPECT_EQ(hugepin_forget(p, 0), -EINVAL);
	EXPECT_EQ(hugepin_forget(p, SIZE_MAX), -EINVAL);
	EXPECT(memcmp(&pin, &before, sizeof pin) == 0);
	EXPECT_EQ(errno, 77);
	EXPECT_EQ(device.calls, 0);
	EXPECT_EQ(stats_of(d).misses, 0);
}

TEST(a_pin_is_given_back_once_and_to_its_domain)
{
	T_DOMAIN_BEGINS();
	hugepin_domain *d = open_lru(), *other = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	struct hugepin_pin pin;
	char *p = map(MIB);

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(other, &pin), -EINVAL);
	EXPECT(pin.ref != 0);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(pin.ref, 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), -EINVAL);
	EXPECT_EQ(hugepin_domain_close(other), 0);
	device.closed = 0;
	close_empty(&device, d);
	munmap(p, MIB);
}

static int refuse_all(void *addr, size_t len)
{
	EXPECT_EQ(len, 4096);
	EXPECT((uintptr_t)addr >= (uintptr_t)1 << 63);
	return -EFAULT;
}

DOMAIN_TEST(addresses_of_the_kernel_are_not_there, open_lru())
{
	static const uintptr_t at[] = { (uintptr_t)1 << 63, 0xffff800000000000, 0xffffffffff600000,
					0xffffffffffffe000 };
	struct hugepin_pin pin;

	device.refuse = refuse_all;
	for (size_t i = 0; i < sizeof at / sizeof *at; i++)
		EXPECT_EQ(hugepin_pin(d, (void *)at[i], 4095, 0, &pin), -EFAULT);
}

PIN_TEST(a_vector_is_pinned_as_a_whole_or_not_at_all, open_lru(), MIB)
{
	struct hugepin_pin v[3];
	struct iovec pieces[3] = { { p, 100 }, { p + 50000, 5000 }, { p + 90000, 0 } };

	EXPECT_EQ(hugepin_pinv(d, pieces, 3, 0, v, 3), -EINVAL);
	EXPECT_EQ(hugepin_pinv(d, pieces, -1, 0, v, 3), -EINVAL);
	EXPECT_EQ(hugepin_pinv(d, NULL, 1, 0, v, 3), -EINVAL);
	EXPECT_EQ(hugepin_pinv(d, pieces, 2, 0, v, 1), -EMSGSIZE);
	EXPECT_EQ(hugepin_pinv(d, pieces, 0, 0, v, 0), 0);
	EXPECT_EQ(hugepin_pinv(d, pieces, 2, 0, v, 3), 2);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_unpinv(d, v, 2), 0);
	EXPECT_EQ(hugepin_unpinv(d, v, 2), 0); /* cleared ones are skipped */
	v[1].ref = 12345;
	EXPECT_EQ(hugepin_unpinv(d, v, 2), -EINVAL);
}

static int refuse_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx, (void)ret_;
	return ENODEV;
}

static int refuse_paging(void *ctx, struct hugepin_paging *ret_)
{
	(void)ctx, (void)ret_;
	return EBUSY;
}

TEST(what_a_backend_returns_above_0_is_an_error)
{
	struct hugepin_backend backend = device_backend;
	struct iovec piece = { map(4096), 4096 };
	struct hugepin_paging paging;
	struct hugepin_pin pin;
	hugepin_domain *d;

	device_reset(&device);
	backend.limits = refuse_limits;
	EXPECT_EQ(hugepin_domain_open(&backend, &device, NULL, &d), -EIO);
	backend.limits = device_backend.limits;
	backend.paging = refuse_paging;
	if (!EXPECT_EQ(hugepin_domain_open(&backend, &device, NULL, &d), 0))
		return;
	device.nth = 1;
	device.for_good = true;
	device.with = ENOMEM;
	EXPECT_EQ(hugepin_pin(d, piece.iov_base, 4096, 0, &pin), -EIO);
	EXPECT_EQ(hugepin_pinv(d, &piece, 1, 0, &pin, 1), -EIO);
	EXPECT_EQ(hugepin_pin(d, piece.iov_base, 4096, HUGEPIN_PIN_UNCACHED, &pin), -EIO);
	EXPECT_EQ(hugepin_domain_paging(d, &paging, sizeof paging), -EIO);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(piece.iov_base, 4096);
}

/* ------------------------------------------------------------------ registered for one pin */

PIN_TEST(a_backend_gets_what_it_has_registered_for_a_pin, open_lru(), MIB)
{
	struct hugepin_pin pin, other;
	struct hugepin_reg reg = { 0 };

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &other), 0);
	EXPECT_EQ(hugepin_pin(d, p + 8192, 100, 0, &pin), 0);
	EXPECT_EQ(hugepin_pin_reg(d, &device_backend, &pin, &reg), 0);
	EXPECT(reg.lkey == pin.lkey && reg.rkey == pin.rkey && reg.cookie == (uint64_t)pin.lkey << 32);
	EXPECT_EQ(hugepin_pin_reg(d, hugepin_mlock(), &pin, &reg), -EINVAL);
	EXPECT_EQ(hugepin_pin_reg(d, NULL, &pin, &reg), -EINVAL);
	EXPECT_EQ(hugepin_pin_reg(d, &device_backend, &pin, NULL), -EINVAL);
	EXPECT_EQ(hugepin_unpin(d, &pin) || hugepin_unpin(d, &other), 0);
	EXPECT_EQ(hugepin_pin_reg(d, &device_backend, &pin, &reg), -EINVAL);
}

PIN_TEST(an_uncached_pin_is_registered_for_itself, open_lru(), MIB)
{
	struct hugepin_pin pin, again;

	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_PIN_UNCACHED, &pin), 0);
	EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_WRITE));
	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_READ | HUGEPIN_PIN_UNCACHED, &again), 0);
	EXPECT_EQ(device.regs, 2);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(hugepin_unpin(d, &again), 0);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(stats_of(d).uncached, 2);
}

PIN_TEST(the_policy_none_registers_for_each_pin, open_first(HUGEPIN_POLICY_NONE, 0, 0), MIB)
{
	struct hugepin_pin pin;
	char *h = hugepin_malloc(MIB);

	for (int i = 1; i <= 3; i++) {
		EXPECT_EQ(touch(d, p, 4096), 0);
		EXPECT_EQ(touch(d, h, 5000), 0);
		EXPECT_EQ(device.calls, 2 * i);
		EXPECT_EQ(device.regs, 0);
	}
	EXPECT_EQ(hugepin_pin(d, h, 5000, 0, &pin), 0);
	EXPECT_EQ(device.bytes, 8192); /* not the hugepage, as where it may be found again */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	hugepin_free(h);
}

/* ------------------------------------------------------------------ hints, and devices that register on demand */

PIN_TEST(a_hint_is_carried_out_before_the_pin, open_lru(), MIB)
{
	EXPECT_EQ(hugepin_prefetch(d, p + 10, 9000, 0), 0);
	for (int i = 0; i < 20000 && !stats_of(d).prefetched; i++)
		usleep(1000);
	EXPECT_EQ(stats_of(d).prefetched, 1);
	EXPECT(registered(d, p, 8192));
}

TEST(on_demand_memory_is_not_charged_and_is_prefetched_by_the_device)
{
	hugepin_domain *d;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	device.prefetch_error = 1;
	d = open_as(HUGEPIN_POLICY_ODP, 4096, 0);
	EXPECT_EQ(touch(d, p, MIB), 0);
	EXPECT_EQ(device.reg[1].access & HUGEPIN_ON_DEMAND, HUGEPIN_ON_DEMAND);
	EXPECT_EQ(stats_of(d).pinned_bytes, 0);
	EXPECT_EQ(hugepin_prefetch(d, p, 8192, 0), 0);
	for (int i = 0; i < 20000 && !stats_of(d).prefetched; i++)
		usleep(1000);
	EXPECT_EQ(device.prefetches, 2); /* for the pin, and for the hint */
	EXPECT_EQ(stats_of(d).prefetched_otherwise, 1);
	EXPECT_EQ(stats_of(d).brought_bytes, 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ giving back, in a process of its own */

static void *unpin_it(void *pin)
{
	hugepin_domain *d = ((void **)pin)[0];

	return (void *)(intptr_t)hugepin_unpin(d, ((void **)pin)[1]);
}

static void *nothing(void *unused)
{
	return unused;
}

static void unpin_without_memory(void)
{
	hugepin_domain *d = open_lru();
	const struct rlimit none = { 4096, RLIM_INFINITY };
	char *p = map(MIB);
	struct hugepin_pin pin[3];
	void *args[2] = { d, &pin[0] }, *e = NULL;
	pthread_t t;

	for (int i = 0; i < 3; i++)
		EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin[i]), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin[2]), 0);
	pthread_create(&t, NULL, nothing, NULL); /* leaves its stack to the next */
	pthread_join(t, NULL);
	EXPECT_EQ(setrlimit(RLIMIT_DATA, &none), 0);
	EXPECT_EQ(pthread_create(&t, NULL, unpin_it, args), 0);
	pthread_join(t, &e);
	EXPECT_EQ((intptr_t)e, 0);
	EXPECT_EQ(pin[0].ref, 0);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_unpin(d, &pin[1]), 0);
	close_empty(&device, d);
}

TEST(a_pin_can_be_given_back_where_there_is_no_memory)
{
#ifdef __SANITIZE_ADDRESS__
	SKIP("the sanitizer needs memory for each thread");
#endif
	in_child(unpin_without_memory);
}

/* With io_uring the kernel pins for both, whatever is asked for. */
TEST(a_backend_that_registers_for_both_need_not_widen)
{
	char *p[2] = { map(MIB), hugepin_malloc(MIB) };

	for (size_t i = 0; i < 2; i++) {
		struct hugepin_pin pin;
		hugepin_domain *d;

		device_reset(&device);
		device.limits.flags = HUGEPIN_LIMIT_BOTH;
		d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
		EXPECT_EQ(hugepin_pin(d, p[i], 4096, HUGEPIN_WRITE, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(hugepin_pin(d, p[i], 4096, HUGEPIN_READ, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(stats_of(d).registered, 1);
		EXPECT_EQ(stats_of(d).widened, 0);
		close_empty(&device, d);
	}
	munmap(p[0], MIB);
	hugepin_free(p[1]);
}

T_MAIN
