/*
 * Pins of dma-bufs: what the device is asked for, the budget, failures, and that nothing at the same addresses is about
 * them.
 */
#include <stdlib.h>

#include "base/base.h"
#include "reg/domain.h"
#include "tests/unit/child.h"
#include "tests/unit/pin.h"

enum { PAGE = 4096, FD = 77 };

static struct {
	int fd;
	uint64_t offset;
	long calls;
} dmabuf;

/* As device_reg(), which takes whole pages alone. */
static int reg_dmabuf(void *ctx, int fd, uint64_t offset, size_t len, uint64_t iova, unsigned access,
		      struct hugepin_reg *ret_)
{
	dmabuf.fd = fd;
	dmabuf.offset = offset;
	dmabuf.calls++;
	EXPECT_EQ(hugepin_registering(), 1);
	return device_reg(ctx, (void *)(uintptr_t)iova, len, access, ret_);
}

static hugepin_domain *open_dmabufs(struct hugepin_attr attr, struct hugepin_limits limits)
{
	struct hugepin_backend backend = device_backend;
	hugepin_domain *d = NULL;

	backend.reg_dmabuf = reg_dmabuf;
	device_reset(&device);
	memset(&dmabuf, 0, sizeof dmabuf);
	limits.access = DEVICE_ACCESS;
	device.limits = limits;
	attr.size = sizeof attr;
	attr.policy = attr.policy ? attr.policy : HUGEPIN_POLICY_LRU;
	EXPECT_EQ(hugepin_domain_open(&backend, &device, &attr, &d), 0);
	return d;
}

static hugepin_domain *open_budget(uint64_t bytes)
{
	return open_dmabufs((struct hugepin_attr){ .pinned_bytes_max = bytes }, (struct hugepin_limits){ 0 });
}

static int pin_at(hugepin_domain *d, const void *iova, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	return hugepin_pin_dmabuf(d, FD, 3 * PAGE, len, (uintptr_t)iova, access, ret_);
}

DOMAIN_TEST(a_part_of_a_dmabuf_is_registered_for_its_pin_alone, open_budget(0))
{
	char *iova = (char *)((uintptr_t)1 << 40);
	struct hugepin_pin pin;
	struct hugepin_reg reg;
	struct hugepin_domain_stats s;

	T_DOMAIN_BEGINS();
	for (int i = 1; i <= 2; i++) {
		EXPECT_EQ(pin_at(d, iova, 2 * PAGE, 0, &pin), 0);
		EXPECT_EQ(dmabuf.calls, i);
		EXPECT(dmabuf.fd == FD && dmabuf.offset == 3 * PAGE);
		EXPECT(pin.base == (uintptr_t)iova && pin.len == 2 * PAGE);
		EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_WRITE));
		EXPECT_EQ(hugepin_pin_reg(d, &device_backend, &pin, &reg), 0);
		EXPECT_EQ(reg.cookie, (uint64_t)pin.lkey << 32);
		s = stats_of(d);
		EXPECT(s.pinned_bytes == 2 * PAGE && s.regions == 1 && s.hits == 0 && s.misses == (uint64_t)i);
		EXPECT(s.uncached == (uint64_t)i && s.uncached_asked == (uint64_t)i);
		EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(device.regs, 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), -EINVAL);
	}
	EXPECT_EQ(pin_at(d, iova, PAGE, HUGEPIN_REMOTE_READ, &pin), 0);
	EXPECT_EQ(device.reg[pin.lkey].access, HUGEPIN_REMOTE_READ);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(stats_of(d).pinned_bytes, 0);
}

DOMAIN_TEST(bad_arguments_are_refused_and_nothing_is_registered, open_budget(0))
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin_dmabuf(d, -1, 0, PAGE, PAGE, 0, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin_dmabuf(d, FD, 0, 0, PAGE, 0, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin_dmabuf(d, FD, UINT64_MAX, 1, PAGE, 0, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin_dmabuf(d, FD, 0, PAGE, UINT64_MAX - PAGE + 1, 0, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin_dmabuf(d, FD, 0, PAGE, PAGE, 1u << 30, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin_dmabuf(d, FD, 0, PAGE, PAGE, HUGEPIN_REMOTE_ATOMIC, &pin), -EOPNOTSUPP);
	EXPECT_EQ(dmabuf.calls, 0);
	EXPECT_EQ(hugepin_pin_dmabuf(d, FD, 0, PAGE, 0, 0, &pin), 0); /* addresses may begin with 0 */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

TEST(a_backend_that_takes_no_dmabufs_says_so)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin pin;

	EXPECT_EQ(pin_at(d, NULL, PAGE, 0, &pin), -EOPNOTSUPP);
	EXPECT_EQ(stats_of(d).misses, 0);
	close_empty(&device, d);
	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, NULL, &d), 0);
	EXPECT_EQ(pin_at(d, NULL, PAGE, 0, &pin), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

/* ------------------------------------------------------------------ the budget */

PIN_TEST(dmabufs_count_against_the_budget, open_budget(8 * PAGE), MIB)
{
	struct hugepin_pin pin, held;

	for (size_t i = 0; i < 8; i++)
		EXPECT_EQ(touch(d, p + i * 2 * PAGE, PAGE), 0);
	EXPECT_EQ(pin_at(d, NULL, PAGE, HUGEPIN_PIN_NO_EVICT, &pin), -ENOBUFS);
	EXPECT_EQ(stats_of(d).evicted, 0);
	EXPECT_EQ(pin_at(d, NULL, 6 * PAGE, 0, &pin), 0);
	EXPECT_EQ(stats_of(d).evicted, 6);
	EXPECT_EQ(device.bytes, 8 * PAGE);
	EXPECT_EQ(hugepin_pin(d, p, 3 * PAGE, 0, &held), -ENOBUFS);
	EXPECT_EQ(pin_at(d, NULL, 9 * PAGE, 0, &held), -ENOBUFS);
	EXPECT_EQ(pin_at(d, NULL, 3 * PAGE, 0, &held), -ENOBUFS);
	EXPECT_EQ(stats_of(d).nobufs, 4);
	EXPECT_EQ(hugepin_domain_trim(d, 0), -EBUSY);
	EXPECT_EQ(device.bytes, 6 * PAGE);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(touch(d, p, 8 * PAGE), 0);
}

TEST(no_more_is_registered_than_the_device_takes_at_a_time)
{
	hugepin_domain *d = open_dmabufs((struct hugepin_attr){ 0 }, (struct hugepin_limits){ .len_max = 2 * PAGE });
	struct hugepin_pin pin;

	EXPECT_EQ(pin_at(d, NULL, 5 * PAGE, 0, &pin), 0);
	EXPECT_EQ(pin.len, 2 * PAGE);
	EXPECT_EQ(stats_of(d).cut, 1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ failures */

PIN_TEST(a_refusal_leaves_nothing_behind, open_budget(0), MIB)
{
	static const int errors[] = { -EIO, -EINVAL, -EOPNOTSUPP, -EFAULT, -EPERM, -EBADF };
	struct hugepin_pin pin = { .ref = 7 };

	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		device.nth = 1;
		device.with = errors[i];
		EXPECT_EQ(pin_at(d, p, PAGE, 0, &pin), errors[i]);
		EXPECT_EQ(pin.ref, 7);
		EXPECT(device.regs == 0 && stats_of(d).regions == 0 && stats_of(d).pinned_bytes == 0);
		EXPECT_EQ(stats_of(d).uncached, 0);
	}
	dmabuf.calls = 0;
	EXPECT_EQ(touch(d, p, PAGE), 0); /* the next is memory again */
	EXPECT_EQ(dmabuf.calls, 0);
	/* The device is full: what is idle goes. */
	device.nth = 1;
	device.with = -ENOMEM;
	EXPECT_EQ(pin_at(d, p, PAGE, 0, &pin), 0);
	EXPECT_EQ(dmabuf.calls, 2);
	EXPECT_EQ(stats_of(d).evicted, 1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	device.nth = 1;
	EXPECT_EQ(pin_at(d, p, PAGE, 0, &pin), -ENOBUFS);
	device.nth = 0;
	device.dereg_error = -EIO; /* which is counted, as of memory */
	EXPECT_EQ(pin_at(d, p, PAGE, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(stats_of(d).failed, 1);
	device.dereg_error = 0;
}

static struct shared {
	hugepin_domain *d;
	struct hugepin_pin pin;
} shared;

static void *pin_elsewhere(void *unused)
{
	EXPECT_EQ(pin_at(shared.d, NULL, PAGE, 0, &shared.pin), -EPERM);
	return unused;
}

static void *unpin_elsewhere(void *unused)
{
	EXPECT_EQ(hugepin_unpin(shared.d, &shared.pin), 0);
	return unused;
}

static void elsewhere(void *(*run)(void *))
{
	pthread_t thread;

	EXPECT_EQ(pthread_create(&thread, NULL, run, NULL), 0);
	pthread_join(thread, NULL);
}

TEST(threads_keep_the_rules_of_the_backend)
{
	T_THREADS_RUN(2);
	shared.d = open_dmabufs((struct hugepin_attr){ 0 }, (struct hugepin_limits){ .flags = HUGEPIN_LIMIT_OPENER });
	elsewhere(pin_elsewhere);
	EXPECT_EQ(dmabuf.calls, 0);
	close_empty(&device, shared.d);
	shared.d = open_budget(0);
	EXPECT_EQ(pin_at(shared.d, NULL, PAGE, 0, &shared.pin), 0);
	elsewhere(unpin_elsewhere);
	close_empty(&device, shared.d);
}

TEST_BY(in_child, a_child_has_no_part_in_it)
{
	hugepin_domain *d = open_budget(0);
	struct hugepin_pin pin;
	int status = 1;
	pid_t pid;

	EXPECT_EQ(pin_at(d, NULL, PAGE, 0, &pin), 0);
	pid = fork();
	if (pid == 0)
		_exit(pin_at(d, NULL, PAGE, 0, &pin) != -ESTALE);
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ the same addresses */

static int told;

static void note_expiry(void *arg, const struct hugepin_expiry *e)
{
	(void)arg;
	EXPECT_EQ(e->pinned, 0);
	told++;
}

TEST(memory_at_the_same_addresses_is_something_else)
{
	hugepin_domain *d = open_dmabufs((struct hugepin_attr){ .expire = note_expiry }, (struct hugepin_limits){ 0 });
	char *p = map(MIB);
	struct hugepin_pin pin, other;

	EXPECT_EQ(pin_at(d, p, 4 * PAGE, HUGEPIN_READ | HUGEPIN_REMOTE_READ, &pin), 0);
	EXPECT_EQ(pin_at(d, p, 4 * PAGE, 0, &other), 0); /* another part may have the same addresses */
	EXPECT(other.lkey != pin.lkey);
	EXPECT_EQ(hugepin_unpin(d, &other), 0);
	EXPECT_EQ(touch(d, p, PAGE), 0);
	EXPECT_EQ(device.regs, 2);
	EXPECT_EQ(hugepin_sg_key(d, p + 2 * PAGE, 1, 0, &other), -ENOKEY);
	EXPECT_EQ(hugepin_forget(p, MIB), 0); /* nothing there is pinned */
	munmap(p, MIB);
	p = map(MIB);
	EXPECT_EQ(touch(d, p, PAGE), 0);
	EXPECT_EQ(told, 0);
	EXPECT(device_covers(&device, &pin, HUGEPIN_REMOTE_READ));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(told, 1); /* a peer may have had the key */
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(every_policy_pins_dmabufs)
{
	static const uint32_t policies[] = { HUGEPIN_POLICY_ARENA,   HUGEPIN_POLICY_LRU, HUGEPIN_POLICY_CF11,
					     HUGEPIN_POLICY_PREDICT, HUGEPIN_POLICY_ODP, HUGEPIN_POLICY_NONE,
					     HUGEPIN_POLICY_HYBRID };

	for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
		hugepin_domain *d = open_dmabufs((struct hugepin_attr){ .policy = policies[i] },
						 (struct hugepin_limits){ .flags = HUGEPIN_LIMIT_ODP });
		struct hugepin_pin pin;

		for (int n = 0; n < 20; n++) {
			EXPECT_EQ(pin_at(d, NULL, PAGE, 0, &pin), 0);
			EXPECT_EQ(device.reg[pin.lkey].access, HUGEPIN_READ | HUGEPIN_WRITE);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		}
		EXPECT_EQ(device.regs, 0);
		EXPECT_EQ(device.prefetches, 0);
		close_empty(&device, d);
	}
}

T_MAIN
