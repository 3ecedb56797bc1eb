/*
 * Pins of several threads: a device that only its opener may call, hits without the domain's lock, unpins that need no
 * lock, and counts that another thread makes late.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "base/lock.h"
#include "base/service.h"
#include "base/thread.h"
#include "reg/counts.h"
#include "reg/cover.h"
#include "reg/domain.h"
#include "reg/pin.h"
#include "reg/retire.h"
#include "tests/unit/child.h"
#include "tests/unit/pin.h"

/* ------------------------------------------------------------------ threads that are cancelled */

static int cancelled_in; /* the number of foreign functions that were cancellation points */

static int cancellable_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	cancelled_in++;
	pthread_testcancel();
	return device_reg(ctx, addr, len, access, ret_);
}

static int cancellable_dereg(void *ctx, struct hugepin_reg *reg)
{
	cancelled_in++;
	pthread_testcancel();
	return device_dereg(ctx, reg);
}

static int cancellable_prefetch(void *ctx, const struct hugepin_reg *reg, void *addr, size_t len)
{
	cancelled_in++;
	pthread_testcancel();
	return device_prefetch(ctx, reg, addr, len);
}

static int cancellable_paging(void *ctx, struct hugepin_paging *ret_)
{
	(void)ctx;
	cancelled_in++;
	pthread_testcancel();
	*ret_ = (struct hugepin_paging){ 0 };
	return 0;
}

static int cancellable_terms(void *ctx, struct hugepin_terms *ret_)
{
	(void)ctx;
	(void)ret_;
	cancelled_in++;
	pthread_testcancel();
	return -EOPNOTSUPP;
}

static void cancellable_close(void *ctx)
{
	cancelled_in++;
	pthread_testcancel();
	device_close(ctx);
}

static void cancellable_expire(void *unused, const struct hugepin_expiry *expiry)
{
	(void)unused;
	(void)expiry;
	cancelled_in++;
	pthread_testcancel();
}

struct cancelled {
	uint32_t policy;
	char *p;
	bool went_on;
};

/* Each foreign function is called while this thread is to be cancelled. */
static void *use_while_cancelled(void *cancelled)
{
	struct hugepin_backend b = device_backend;
	struct cancelled *c = cancelled;
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = c->policy, .odp = HUGEPIN_ODP_ENHANCED,
					   .expire = cancellable_expire };
	struct hugepin_paging paging;
	struct hugepin_pin pin;
	hugepin_domain *d;

	b.reg = cancellable_reg;
	b.dereg = cancellable_dereg;
	b.prefetch = cancellable_prefetch;
	b.paging = cancellable_paging;
	b.terms = cancellable_terms;
	b.close = cancellable_close;
	pthread_cancel(pthread_self());
	EXPECT_EQ(hugepin_domain_open(&b, &device, &attr, &d), 0);
	EXPECT_EQ(hugepin_pin(d, c->p, 4096, HUGEPIN_REMOTE_READ | HUGEPIN_PIN_UNCACHED, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_domain_paging(d, &paging, sizeof paging), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	c->went_on = true;
#ifdef __SANITIZE_ADDRESS__
	__asan_handle_no_return(); /* it does not hear that a cancelled thread leaves its frames */
#endif
	pthread_testcancel();
	return NULL;
}

TEST(no_thread_is_cancelled_in_a_foreign_function)
{
	static const uint32_t policies[] = { HUGEPIN_POLICY_LRU, HUGEPIN_POLICY_ODP, HUGEPIN_POLICY_HYBRID };
	struct cancelled c = { .p = map(MIB) };

	T_DOMAIN_BEGINS();
	for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
		void *ended = NULL;
		pthread_t t;

		device_reset(&device);
		device.limits.flags = HUGEPIN_LIMIT_ODP;
		c.policy = policies[i];
		c.went_on = false;
		cancelled_in = 0;
		pthread_create(&t, NULL, use_while_cancelled, &c);
		pthread_join(t, &ended);
		EXPECT(c.went_on && ended == PTHREAD_CANCELED);
		EXPECT_EQ(cancelled_in, policies[i] == HUGEPIN_POLICY_LRU ? 5 : 6); /* and prefetch(), or terms() */
	}
	munmap(c.p, MIB);
}

/* ------------------------------------------------------------------ a device that only its opener may call */

static void *other_thread(void *d)
{
	static char unregistered[8192];
	struct hugepin_pin pin;
	char *p = device.reg[1].live ? (char *)device.reg[1].addr : NULL;

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0); /* a hit is for everybody */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_pin(d, unregistered, 4096, 0, &pin), -EPERM);
	EXPECT_EQ(hugepin_domain_close(d), -EPERM);
	EXPECT_EQ(hugepin_domain_trim(d, 0), -EPERM);
	EXPECT_EQ(hugepin_forget(p, 4096), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), -EPERM);
	return NULL;
}

static void *forget(void *p)
{
	EXPECT_EQ(hugepin_forget(p, 4096), 0);
	return NULL;
}

TEST(the_openers_trim_does_the_owed_work_and_leaves_the_rest)
{
	hugepin_domain *d;
	pthread_t t;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(touch(d, p, 4096), 0);
	EXPECT_EQ(touch(d, p + MIB / 2, 4096), 0);
	pthread_create(&t, NULL, forget, p);
	pthread_join(t, NULL);
	EXPECT_EQ(device.regs, 2);
	EXPECT_EQ(hugepin_domain_trim(d, UINT64_MAX), 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT(registered(d, p + MIB / 2, 4096));
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(an_opener_only_device_is_called_by_the_opener_alone)
{
	hugepin_domain *d;
	pthread_t t;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(touch(d, p, 4096), 0);
	EXPECT_EQ(touch(d, p + 100000, 4096), 0);
	pthread_create(&t, NULL, other_thread, d);
	pthread_join(t, NULL);
	EXPECT_EQ(device.regs, 2);
	EXPECT(registered(d, p + 100000, 4096)); /* and what was left to it is done */
	EXPECT_EQ(device.regs, 1);
	EXPECT(pthread_equal(device.thread, pthread_self()));
	munmap(p, MIB);
	close_empty(&device, d);
}

struct opened {
	hugepin_domain *d;
	struct hugepin_pin pin; /* made and not given back */
	char *p;
};

static void *open_and_end(void *opened)
{
	struct opened *o = opened;

	o->d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(touch(o->d, o->p, 4096), 0);
	EXPECT_EQ(hugepin_pin(o->d, o->p + 8192, 4096, 0, &o->pin), 0);
	return NULL;
}

static void *take_for_opener(void *opened)
{
	struct opened *o = opened;
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(o->d, o->p + 65536, 4096, 0, &pin), -EPERM);
	EXPECT_EQ(hugepin_prefetch(o->d, o->p, 4096, 0), 0);
	return NULL;
}

static void *close_for_opener(void *d)
{
	EXPECT_EQ(hugepin_domain_close(d), -EPERM);
	return NULL;
}

TEST(a_domain_whose_opener_has_ended_is_closed_by_another_thread_and_the_next_in_its_place_is_not)
{
	struct opened o = { .p = map(MIB) };
	bool same = false;
	hugepin_domain *next;
	pthread_t opener, t;
	long calls;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	pthread_create(&opener, NULL, open_and_end, &o);
	pthread_join(opener, NULL);
	/* A new thread may have its pthread_t, and is another nevertheless. */
	calls = device.calls;
	for (int i = 0; i < 20 && !same; i++) {
		pthread_create(&t, NULL, take_for_opener, &o);
		same = pthread_equal(t, opener);
		pthread_join(t, NULL);
	}
	EXPECT(same);
	EXPECT_EQ(device.calls, calls);
	EXPECT_EQ(hugepin_domain_close(o.d), -EBUSY);
	EXPECT_EQ(touch(o.d, o.p + 65536, 4096), -EPERM); /* for all that */
	EXPECT_EQ(hugepin_unpin(o.d, &o.pin), 0);
	device.dereg_error = -EEXIST; /* as a ring says whose owner is gone */
	EXPECT_EQ(hugepin_domain_close(o.d), 2); /* both registrations remain */
	EXPECT_EQ(device.deregs, 2);
	EXPECT_EQ(device.closed, 1);
	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	next = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT(next == o.d);
	pthread_create(&t, NULL, close_for_opener, next);
	pthread_join(t, NULL);
	close_empty(&device, next);
	munmap(o.p, MIB);
}

/* Hits of a thread that is not the opener, while the test holds the domain's lock. */
struct hits {
	hugepin_domain *d;
	char *heap, *foreign;
	_Atomic long done; /* the first, by which a thread gets its counters, takes the lock */
	_Atomic bool go;
};
enum { HITS = 1000 };

static void *hit_without_the_lock(void *arg)
{
	struct hits *h = arg;

	for (int i = 0; i < HITS; i++) {
		struct iovec v[] = { { h->heap, 100 }, { h->foreign, 100 } };
		struct hugepin_pin pins[2];

		for (int k = 0; k < 2; k++) {
			EXPECT_EQ(hugepin_pin(h->d, v[k].iov_base, 100, 0, &pins[0]), 0);
			EXPECT_EQ(hugepin_unpin(h->d, &pins[0]), 0);
			EXPECT_EQ(hugepin_sg_key(h->d, v[k].iov_base, 100, 0, &pins[0]), 0);
			EXPECT_EQ(hugepin_unpin(h->d, &pins[0]), 0);
		}
		EXPECT_EQ(hugepin_pinv(h->d, v, 2, 0, pins, 2), 2);
		EXPECT_EQ(hugepin_unpinv(h->d, pins, 2), 0);
		h->done++;
		while (!h->go)
			usleep(1000);
	}
	return NULL;
}

/* Whether the opener's next hit deregisters regions that other threads have left to the opener. */
static bool opener_looks(hugepin_domain *d, const char *p)
{
	long deregs = device.deregs;

	EXPECT_EQ(touch(d, p, 4096), 0);
	return device.deregs != deregs;
}

TEST(what_is_left_to_the_opener_keeps_other_threads_hits_from_nothing)
{
	struct hits h = { .heap = hugepin_malloc(MIB), .foreign = map(MIB) };
	pthread_t t;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	h.d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(touch(h.d, h.heap, 4096), 0);
	EXPECT_EQ(touch(h.d, h.foreign, 4096), 0);
	EXPECT_EQ(touch(h.d, h.foreign + 100000, 4096), 0);
	EXPECT(!(h.d->attention & HP_TODO));
	pthread_create(&t, NULL, hit_without_the_lock, &h);
	while (!h.done)
		usleep(1000);
	/* Retired, and known to be in no use, by a thread that may not deregister. */
	hp_lock(&h.d->lock);
	hp_region_unpublish(hp_region_find(h.d, (uintptr_t)h.foreign + 100000, 0));
	hp_region_settle(h.d);
	h.d->attention |= HP_TODO;
	h.go = true;
	for (int i = 0; i < 50000 && h.done < HITS; i++)
		usleep(1000);
	EXPECT_EQ(h.done, HITS);
	hp_unlock(&h.d->lock);
	pthread_join(t, NULL);
	EXPECT(h.d->attention & HP_TODO);
	EXPECT(opener_looks(h.d, h.foreign));
	EXPECT(!(h.d->attention & HP_TODO) && !opener_looks(h.d, h.foreign));
	munmap(h.foreign, MIB);
	hugepin_free(h.heap);
	close_empty(&device, h.d);
}

/* ------------------------------------------------------------------ without the lock */

static struct {
	hugepin_domain *d;
	char *p, *other;
	sem_t ready, go, done;
} quick;

/* A thread's first pin takes the lock. */
static void *pin_quickly(void *unused)
{
	struct hugepin_pin pin;

	(void)unused;
	EXPECT_EQ(touch(quick.d, quick.other, 100), 0);
	sem_post(&quick.ready);
	sem_wait(&quick.go);
	EXPECT_EQ(hugepin_pin(quick.d, quick.p, 5000, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(quick.d, &pin), 0);
	sem_post(&quick.done);
	return NULL;
}

/* Whether p is pinned and given back while the domain is locked. */
static bool needs_no_lock(hugepin_domain *d, char *p, char *other)
{
	struct timespec end;
	pthread_t t;
	bool quickly;

	quick.d = d;
	quick.p = p;
	quick.other = other;
	sem_init(&quick.ready, 0, 0);
	sem_init(&quick.go, 0, 0);
	sem_init(&quick.done, 0, 0);
	pthread_create(&t, NULL, pin_quickly, NULL);
	sem_wait(&quick.ready);
	hp_lock(&d->lock);
	sem_post(&quick.go);
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 50;
	quickly = sem_timedwait(&quick.done, &end) == 0;
	hp_unlock(&d->lock);
	pthread_join(t, NULL);
	return quickly;
}

/* A domain that no kernel watches: hits need not ask the kernel. */
static hugepin_domain *open_unwatched(void)
{
	return device_open(&device, (struct hugepin_limits){ 0 },
			   (struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM });
}

PIN_TEST(what_was_pinned_ahead_is_found_without_the_lock, open_unwatched(), MIB)
{
	struct hp_region *r;

	EXPECT_EQ(touch(d, p + 500000, 4096), 0);
	hp_lock(&d->lock);
	EXPECT_EQ(hp_cover_ahead(d, p + 10, 9000, HUGEPIN_READ | HUGEPIN_WRITE, &r), 0);
	hp_unlock(&d->lock);
	EXPECT_EQ(device.regs, 2);
	EXPECT(needs_no_lock(d, p + 10, p + 500000));
	EXPECT_EQ(device.regs, 2);
}

PIN_TEST(what_was_pinned_is_found_without_the_lock, open_unwatched(), 8 * MIB)
{
	EXPECT_EQ(touch(d, p + 500000, 4096), 0);
	EXPECT_EQ(touch(d, p + 10, 9000), 0);
	EXPECT(needs_no_lock(d, p + 10, p + 500000));
	EXPECT_EQ(touch(d, p + MIB, 7 * MIB), 0);
	EXPECT(needs_no_lock(d, p + MIB, p + 500000));
	EXPECT_EQ(touch(d, p + 5 * MIB, 4096), 0);
	EXPECT(needs_no_lock(d, p + 5 * MIB + 100000, p + 500000)); /* by the hugepage, all of which is registered */
	EXPECT_EQ(device.calls, 3);
}

PIN_TEST(what_went_away_unpinned_makes_no_unpin_slow, open_lru(), MIB)
{
	EXPECT_EQ(touch(d, p, 4096), 0);
	EXPECT_EQ(hugepin_forget(p, 4096), 0);
	EXPECT(!(d->attention & HP_RETIRED)); /* though it may not be deregistered yet */
}

PIN_TEST(after_the_last_unpin_of_what_went_away_unpins_are_quick_again, open_unwatched(), MIB)
{
	struct hugepin_pin one, two, other;

	EXPECT_EQ(touch(d, p + 500000, 4096), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &one), 0);
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &two), 0);
	EXPECT_EQ(hugepin_forget(p, 4096), -EBUSY); /* pins are out */
	EXPECT_EQ(hugepin_pin(d, p + 500000, 4096, 0, &other), 0);
	EXPECT_EQ(stats_of(d).retired, 1);
	EXPECT(d->attention & HP_RETIRED);
	EXPECT_EQ(hugepin_unpin(d, &one), 0);
	EXPECT(d->attention & HP_RETIRED);
	EXPECT_EQ(hugepin_unpin(d, &two), 0);
	EXPECT_EQ(d->attention, 0);
	EXPECT_EQ(stats_of(d).retired, 0);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(hugepin_unpin(d, &other), 0);
}

/* ------------------------------------------------------------------ counts */

/* A thread is held up between its look at a region and its count. By then the region is another domain's. */
PIN_TEST(what_was_counted_in_vain_lets_go_of_whose_region_it_is, open_lru(), MIB)
{
	struct hugepin_pin pin;
	uint32_t index;

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	index = (uint32_t)pin.ref;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	hp_count(&hp_counts_self[index].pins);
	EXPECT_EQ(hugepin_forget(p, 4096), -EBUSY);
	EXPECT_EQ(device.regs, 1);
	hp_count_back(hp_counts_self, index);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(stats_of(d).retired, 0);
}

static void forbid_membarrier(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };

	/* As the drop-in does. */
	hp_service_end();
	hp_thread_forbid(&hp_ticker);
	EXPECT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	/* Of this thread: those of the library have filters of their own, and take no other. */
	EXPECT_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), 0);
}

TEST_BY(in_child, without_membarrier_nothing_is_deregistered)
{
	hugepin_domain *d = open_lru(), *other;
	char *p = map(MIB);

	EXPECT_EQ(touch(d, p, 4096), 0);
	forbid_membarrier();
	EXPECT_EQ(touch(d, p, 8192), 0);
	EXPECT_EQ(device.deregs, 0); /* nobody can say that it is not in use */
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, NULL, &other), -ENOSYS);
}

/* Otherwise the unpin may miss that the other thread has counted back, and that thread that the region is there. */
TEST_BY(in_child, the_unpin_of_an_uncached_region_that_another_thread_counts_takes_a_barrier)
{
	hugepin_domain *d = open_lru();
	struct hugepin_pin pin;
	char *p = map(MIB);

	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_PIN_UNCACHED, &pin), 0);
	hp_count(&hp_counts_self[(uint32_t)pin.ref].pins); /* in vain */
	forbid_membarrier();
	EXPECT_EQ(hp_counts_sum(HP_REGIONS_MAX - 1), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hp_counts_sum(HP_REGIONS_MAX - 1), UINT32_MAX); /* it has asked for the barrier */
}

T_MAIN
