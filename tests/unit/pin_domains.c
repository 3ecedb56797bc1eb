/*
 * Domains: opening and closing, the structures of older programs, how many domains there may be, and that each domain
 * has registrations and access of its own.
 */
#include <semaphore.h>
#include <sys/wait.h>

#include "base/stats.h"
#include "reg/domain.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/hints.h"
#include "reg/serve.h"
#include "reg/stakes.h"
#include "reg/uffd.h"
#include "reg/unmapping.h"
#include "reg/work.h"
#include "tests/any.h"
#include "tests/unit/pin.h"

TEST(a_domain_is_closed_once)
{
	hugepin_domain *d = open_lru();

	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(hugepin_domain_close(d), -EINVAL);
	EXPECT_EQ(device.closed, 1);
}

PIN_TEST(a_domain_with_pins_out_is_not_closed_and_works_on, open_lru(), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(device.closed, 0);
	EXPECT(registered(d, p, 4096));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

TEST(opening_refuses_what_it_cannot_do)
{
	struct hugepin_backend b = device_backend;
	struct hugepin_attr attr = { .size = sizeof attr };
	hugepin_domain *d = (void *)77;

	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(NULL, &device, NULL, &d), -EINVAL);
	EXPECT_EQ(hugepin_domain_open(&b, &device, NULL, NULL), -EINVAL);
	b.reg = NULL;
	EXPECT_EQ(hugepin_domain_open(&b, &device, NULL, &d), -EINVAL);
	b = device_backend;
	b.size = 8;
	EXPECT_EQ(hugepin_domain_open(&b, &device, NULL, &d), -EINVAL);
	b.size = offsetof(struct hugepin_backend, limits);
	EXPECT_EQ(hugepin_domain_open(&b, &device, NULL, &d), -EINVAL);
	attr.size = 4;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	attr = (struct hugepin_attr){ .size = sizeof attr, .policy = 99 };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	attr = (struct hugepin_attr){ .size = sizeof attr, .flags = 2 };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	attr = (struct hugepin_attr){ .size = sizeof attr, .fork = 9 };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	attr = (struct hugepin_attr){ .size = sizeof attr, .access = HUGEPIN_PIN_UNCACHED };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	attr = (struct hugepin_attr){ .size = sizeof attr, .watch = HUGEPIN_WATCH_NONE + 1 };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EINVAL);
	EXPECT_EQ(device.closed, 0);
	attr = (struct hugepin_attr){ .size = sizeof attr, .access = HUGEPIN_REMOTE_ATOMIC };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EOPNOTSUPP);
	attr = (struct hugepin_attr){ .size = sizeof attr, .policy = HUGEPIN_POLICY_ODP };
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), -EOPNOTSUPP);
	device.limits.len_max = 4095;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, NULL, &d), -EOPNOTSUPP);
	EXPECT_EQ(device.closed, 3); /* the context is the backend's to free */
	EXPECT(d == (void *)77);
	EXPECT_EQ(hugepin_domain_close(NULL), -EINVAL);
}

TEST(the_oldest_structures_will_do_and_none_that_end_before)
{
	struct hugepin_backend b = device_backend;
	struct hugepin_attr attr = { .size = offsetof(struct hugepin_attr, odp) };
	hugepin_domain *d = NULL;

	device_reset(&device);
	b.size = offsetof(struct hugepin_backend, now_ns);
	EXPECT_EQ(hugepin_domain_open(&b, &device, &attr, &d), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(device.closed, 0); /* it has not got that function */
	b.size = offsetof(struct hugepin_backend, paging);
	EXPECT_EQ(hugepin_domain_open(&b, &device, &(struct hugepin_attr){ .size = sizeof attr, .policy = HUGEPIN_POLICY_ODP },
				      &d),
		  -EOPNOTSUPP);
	EXPECT_EQ(device.closed, 1); /* but not that one */
	b.size = offsetof(struct hugepin_backend, now_ns);
	b.size--;
	EXPECT_EQ(hugepin_domain_open(&b, &device, &attr, &d), -EINVAL);
	b.size++;
	attr.size--;
	EXPECT_EQ(hugepin_domain_open(&b, &device, &attr, &d), -EINVAL);
}

static int paging_error;

static int device_paging(void *ctx, struct hugepin_paging *ret_)
{
	EXPECT(ctx == &device);
	*ret_ = (struct hugepin_paging){ 1, 2, HUGEPIN_NOT_COUNTED };
	return paging_error;
}

TEST(what_a_device_counted_is_asked_of_its_backend)
{
	struct hugepin_backend b = device_backend;
	struct hugepin_paging p = { 7, 8, 9 };
	hugepin_domain *d = NULL;
	int status;

	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&b, &device, NULL, &d), 0);
	EXPECT_EQ(hugepin_domain_paging(d, &p, sizeof p), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	b.paging = device_paging;
	EXPECT_EQ(hugepin_domain_open(&b, &device, NULL, &d), 0);
	EXPECT_EQ(hugepin_domain_paging(d, NULL, sizeof p), -EINVAL);
	EXPECT_EQ(hugepin_domain_paging(NULL, &p, sizeof p), -EINVAL);
	paging_error = -EIO;
	EXPECT_EQ(hugepin_domain_paging(d, &p, sizeof p), -EIO);
	EXPECT_EQ(p.faults, 7);
	paging_error = 0;
	EXPECT_EQ(hugepin_domain_paging(d, &p, 8), 0);
	EXPECT_EQ(p.faults, 1);
	EXPECT_EQ(p.prefetches, 8); /* cut to what the caller knows */
	EXPECT_EQ(hugepin_domain_paging(d, &p, sizeof p), 0);
	EXPECT_EQ(p.prefetches, 2);
	EXPECT_EQ(p.invalidations, HUGEPIN_NOT_COUNTED);
	if (fork() == 0)
		_exit(hugepin_domain_paging(d, &p, sizeof p) != -ESTALE);
	EXPECT(wait(&status) > 0 && status == 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

TEST(a_trim_gives_back_what_is_not_pinned_down_to_the_bytes_named)
{
	hugepin_domain *d = open_lru();
	struct hugepin_domain_stats s;
	struct hugepin_pin pin;
	char *p = hugepin_malloc(16 * MIB);
	int status;

	EXPECT_EQ(hugepin_domain_trim(NULL, 0), -EINVAL);
	for (int i = 0; i < 8; i++)
		EXPECT_EQ(touch(d, p + (size_t)i * 2 * MIB, 1), 0);
	EXPECT_EQ(hugepin_domain_trim(d, 5 * HP_PAGE), 0);
	EXPECT_EQ(hugepin_domain_stats(d, &s, sizeof s), (int)sizeof s);
	EXPECT_EQ(s.pinned_bytes, 5 * HP_PAGE);
	EXPECT_EQ(s.evicted, 3);
	EXPECT(registered(d, p + 14 * MIB, 1)); /* used last */
	EXPECT(!registered(d, p, 1));
	EXPECT_EQ(hugepin_pin(d, p, 1, 0, &pin), 0);
	EXPECT_EQ(hugepin_domain_trim(d, 0), -EBUSY);
	EXPECT_EQ(device.regs, 1);
	EXPECT_EQ(hugepin_domain_trim(d, HP_PAGE), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	hp_domain_lock(d); /* as if a signal handler interrupts its holder */
	EXPECT_EQ(hugepin_domain_trim(d, 0), -EDEADLK);
	hp_domain_unlock(d);
	if (fork() == 0)
		_exit(hugepin_domain_trim(d, 0) != -ESTALE);
	EXPECT(wait(&status) > 0 && status == 0);
	EXPECT_EQ(hugepin_domain_trim(d, 0), 0);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	hugepin_free(p);
}

TEST(a_trim_to_bytes_ends_nothing_that_is_registered_on_demand)
{
	struct hugepin_domain_stats s;
	hugepin_domain *d;
	char *p = hugepin_malloc(16 * MIB);

	hp_config.helper = HP_HELPER_OFF;
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	d = open_with((struct hugepin_attr){ .policy = HUGEPIN_POLICY_HYBRID, .pinned_bytes_max = 4 * HP_PAGE });
	for (int i = 7; i >= 0; i--)
		EXPECT_EQ(touch(d, p + (size_t)i * 2 * MIB, 1), 0);
	hugepin_domain_stats(d, &s, sizeof s);
	EXPECT(s.pinned_bytes == 4 * HP_PAGE && s.regions == 8); /* the others on demand */
	EXPECT_EQ(hugepin_domain_trim(d, 3 * HP_PAGE), 0);
	for (int i = 6; i >= 4; i--)
		EXPECT_EQ(touch(d, p + (size_t)i * 2 * MIB, 1), 0); /* the others were not used for longer */
	EXPECT_EQ(hugepin_domain_trim(d, 2 * HP_PAGE), 0);
	hugepin_domain_stats(d, &s, sizeof s);
	EXPECT(s.pinned_bytes == 2 * HP_PAGE && s.regions == 6);
	EXPECT_EQ(hugepin_domain_trim(d, 0), 0);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	hp_config.helper = HP_HELPER_AGGRESSIVE;
	device.limits.flags = 0;
	hugepin_free(p);
}

/* ------------------------------------------------------------------ a thousand */

enum { MANY = 1000 };

static hugepin_domain *open_nth(int i)
{
	static const uint32_t policies[] = { HUGEPIN_POLICY_LRU, HUGEPIN_POLICY_ARENA, HUGEPIN_POLICY_NONE };

	return open_as(policies[i % 3], 0, 0);
}

/* Close all, in random order. */
static void close_many(hugepin_domain **d)
{
	for (int n = MANY; n; n--) {
		const int i = (int)any((size_t)n);

		EXPECT_EQ(hugepin_domain_close(d[i]), 0);
		d[i] = d[n - 1];
	}
}

TEST(a_thousand_domains_pin_the_same_memory_and_each_its_own)
{
	T_STAYS(4 * MANY, "each domain's tables are kept for the next one");
	static hugepin_domain *d[MANY];
	static struct hugepin_pin shared[MANY], own[MANY];
	char *common = hugepin_malloc(MIB), *p = hugepin_malloc((size_t)MANY * 32768), *foreign = map((size_t)MANY * 4096);

	device_reset(&device);
	for (int i = 0; i < MANY; i++)
		d[i] = open_nth(i);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < MANY; i++) {
			char *mine = i & 1 ? p + (size_t)i * 32768 : foreign + (size_t)i * 4096;

			EXPECT_EQ(hugepin_pin(d[i], common, 100, 0, &shared[i]), 0);
			EXPECT_EQ(hugepin_pin(d[i], mine, 4096, 0, &own[i]), 0);
			EXPECT(device_covers(&device, &shared[i], HUGEPIN_READ | HUGEPIN_WRITE));
			EXPECT(device_covers(&device, &own[i], HUGEPIN_READ | HUGEPIN_WRITE));
			EXPECT(i == 0 || (shared[i].ref ^ shared[i - 1].ref) >> 32);
		}
		for (int i = 0; i < MANY; i++) { /* no pin is another domain's */
			struct hugepin_pin pin = own[i];

			EXPECT_EQ(hugepin_unpin(d[(i + 1) % MANY], &pin), -EINVAL);
			EXPECT_EQ(hugepin_unpin(d[i], &own[i]), 0);
			EXPECT_EQ(hugepin_unpin(d[i], &shared[i]), 0);
		}
		for (int n = 0; n < MANY / 2; n++) { /* some make room for others */
			const int i = (int)any(MANY);

			EXPECT_EQ(hugepin_domain_close(d[i]), 0);
			d[i] = open_nth((int)any(3));
			EXPECT(d[i]->number < MANY); /* in the place of a closed one */
		}
	}
	close_many(d);
	EXPECT_EQ(device.regs, 0);
	hugepin_free(common);
	hugepin_free(p);
	munmap(foreign, (size_t)MANY * 4096);
}

/* The table as if it were full: those that were never used are taken, too. */
TEST(where_all_places_are_taken_no_domain_is_opened_until_one_is_closed)
{
	T_STAYS(4 * MANY, "each domain's tables are kept for the next one");
	static hugepin_domain *d[4 * MANY];
	hugepin_domain *more = NULL;
	uint32_t *used, was;
	int n = 0, err = 0;

	d[n++] = open_lru();
	used = (uint32_t *)(uintptr_t)hp_exposed.view.domain.used;
	was = *used;
	*used = HP_DOMAINS_MAX;
	while (n < 4 * MANY && (err = hugepin_domain_open(&device_backend, &device, NULL, &d[n])) == 0)
		n++;
	EXPECT_EQ(err, -ENOSPC);
	EXPECT_EQ((uint32_t)n, was);
	EXPECT_EQ(hugepin_domain_close(d[0]), 0);
	d[0] = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, NULL, &more), -ENOSPC);
	*used = was;
	while (n--)
		EXPECT_EQ(hugepin_domain_close(d[n]), 0);
}

/* What hugepin_forget() and an unmapping look at, with so many domains open, of which one has the memory. */
static uint64_t looks_of(int others)
{
	static hugepin_domain *d[MANY];
	char *foreign = map((size_t)MANY * 8192), *heap = hugepin_malloc(MIB);
	uint64_t looks, deregs;

	for (int i = 0; i <= others; i++) {
		d[i] = open_as(HUGEPIN_POLICY_LRU, 0, 0);
		EXPECT_EQ(touch(d[i], foreign + (size_t)i * 8192, 4096), 0);
	}
	EXPECT_EQ(touch(d[0], heap, 4096), 0);
	deregs = (uint64_t)device.deregs;
	hp_stakes_looks = 0;
	EXPECT_EQ(hugepin_forget(heap, 4096), 0);
	EXPECT_EQ(hugepin_forget(foreign, 4096), 0);
	hugepin_unmapping_(foreign, 4096, HP_UNMAPPED);
	looks = hp_stakes_looks;
	for (int i = 0; i <= others; i++) {
		EXPECT(registered(d[i], foreign + (size_t)i * 8192, 4096) == (i != 0) || !hp_uffd_works());
		EXPECT_EQ(hugepin_domain_close(d[i]), 0);
	}
	EXPECT((uint64_t)device.deregs > deregs);
	munmap(foreign, (size_t)MANY * 8192);
	hugepin_free(heap);
	return looks;
}

TEST(of_a_thousand_domains_those_are_asked_that_have_what_goes_away)
{
	T_STAYS(4 * MANY, "each domain's tables are kept for the next one");
	uint64_t alone;

	device_reset(&device);
	hp_service_end(); /* it might deregister between two looks */
	alone = looks_of(0);
	EXPECT(alone > 0);
	EXPECT_EQ(looks_of(MANY - 1), alone);
	hp_service_allow();
}

/* ------------------------------------------------------------------ work for all of many domains */

/* The domains that a run looks at. */
static uint64_t holds_of(struct hp_job *j)
{
	const uint64_t before = hp_domains_holds;

	j->run();
	return hp_domains_holds - before;
}

static uint64_t holds_of_tick(uint32_t ticks)
{
	const uint64_t before = hp_domains_holds;

	hp_serve_drop_unused_holds(ticks);
	return hp_domains_holds - before;
}

/* So many domains are open, of which a few have something to do. */
static void expect_few_looks(int others)
{
	static hugepin_domain *d[MANY];
	char *foreign = map((size_t)MANY * 8192), *heap = hugepin_malloc(MIB), *more;

	hp_domains_job.run(); /* it sees the extent */
	for (int i = 0; i <= others; i++) {
		d[i] = open_as(i == 1 ? HUGEPIN_POLICY_ARENA : HUGEPIN_POLICY_LRU, 0, 0);
		EXPECT_EQ(touch(d[i], foreign + (size_t)i * 8192, 4096), 0);
	}
	EXPECT_EQ(touch(d[0], heap, 4096), 0);
	EXPECT_EQ(holds_of(&hp_domains_job), 0); /* opened, and nothing happened */
	EXPECT_EQ(hugepin_forget(foreign, 4096), 0);
	EXPECT_EQ(holds_of(&hp_domains_job), 1); /* what ended is deregistered */
	EXPECT_EQ(device.regs, (unsigned)others + 1);
	more = hugepin_malloc(256 * MIB); /* an extent of its own */
	EXPECT_EQ(holds_of(&hp_domains_job), 1); /* it is registered under arena */
	EXPECT_EQ(device.regs, (unsigned)others + 2);
	EXPECT_EQ(hp_hints_push(d[2], (struct hp_prefetch){ foreign, 4096, HUGEPIN_READ, false }), 0);
	EXPECT_EQ(holds_of(&hp_domains_job), 1);
	EXPECT_EQ(device.regs, (unsigned)others + 3);
	EXPECT_EQ(holds_of(&hp_domains_job), 0);
	EXPECT_EQ(holds_of_tick(9), 2); /* the two with memory of the heap */
	hugepin_free(more);
	hugepin_free(heap);
	hugepin_purge();
	EXPECT_EQ(device.regs, (unsigned)others + 1);
	EXPECT_EQ(holds_of_tick(9), 0);
	for (int i = 0; i <= others; i++)
		EXPECT_EQ(hugepin_domain_close(d[i]), 0);
	munmap(foreign, (size_t)MANY * 8192);
}

TEST(of_a_thousand_domains_a_run_and_a_tick_look_at_those_that_have_something_to_do)
{
	T_STAYS(4 * MANY, "each domain's tables are kept for the next one");

	device_reset(&device);
	hp_service_end(); /* this thread does its work */
	expect_few_looks(2);
	expect_few_looks(MANY - 1);
	hp_service_allow();
}

struct answer {
	sem_t done;
	struct hugepin_pin pin;
};

static void answered(void *arg, int err, const struct hugepin_pin *pin)
{
	struct answer *a = arg;

	EXPECT(!err && pin);
	if (pin)
		a->pin = *pin;
	sem_post(&a->done);
}

TEST(a_request_is_answered_with_a_look_at_its_domain_alone)
{
	enum { OPEN = 100 };
	T_STAYS(4 * OPEN, "each domain's tables are kept for the next one");
	T_THREADS_RUN(1);
	static hugepin_domain *d[OPEN];
	static struct answer a;
	char *p = map(MIB);
	struct hugepin_pin pin;
	uint64_t before;

	device_reset(&device);
	sem_init(&a.done, 0, 0);
	for (int i = 0; i < OPEN; i++)
		d[i] = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	before = hp_domains_holds;
	EXPECT_EQ(hugepin_pin_try(d[77], p, 4096, 0, answered, &a, &pin), -EAGAIN);
	sem_wait(&a.done);
	EXPECT_EQ(hp_domains_holds - before, 1);
	EXPECT_EQ(hugepin_unpin(d[77], &a.pin), 0);
	for (int i = 0; i < OPEN; i++)
		EXPECT_EQ(hugepin_domain_close(d[i]), 0);
	munmap(p, MIB);
}

/* Announce ranges in which nobody has anything. */
static void announce_many(char *at)
{
	for (size_t i = 0; i < 40; i++) {
		const uintptr_t start = (uintptr_t)at + i * 8192;

		hp_gone_tell_all(&(struct hp_range){ .start = start, .end = start + 4096 });
	}
}

DOMAIN_TEST(that_ranges_wait_which_nobody_has_noted_is_told_to_all_domains_once_until_they_are_noted, open_lru())
{
	char *p = map(MIB);

	hp_service_end();
	EXPECT_EQ(touch(d, p, 4096), 0);
	for (int i = 0; i < 2; i++) {
		announce_many(p + 8192);
		EXPECT(hp_attention_is(d, HP_PENDING));
		hp_attention_lower(d, HP_PENDING);
		announce_many(p + 8192);
		EXPECT(!hp_attention_is(d, HP_PENDING));
		EXPECT_EQ(touch(d, p + 512 * KIB, (size_t)4096 << i), 0); /* a miss, which notes them */
	}
	hp_service_allow();
	munmap(p, MIB);
}

static void *pin_once(void *d)
{
	char *p = hugepin_malloc(MIB);

	EXPECT_EQ(touch(d, p, 4096), 0);
	hugepin_free(p);
	return NULL;
}

DOMAIN_TEST(a_thread_that_opened_no_domain_ends_without_the_lock_of_opening, open_lru())
{
	pthread_t t;

	T_THREADS_RUN(1);
	pin_once(d);
	hp_domains_lock(); /* as if another thread was opening a domain */
	EXPECT_EQ(pthread_create(&t, NULL, pin_once, d), 0);
	pthread_join(t, NULL);
	hp_domains_unlock();
}

static void *open_and_end(void *ret_)
{
	for (int i = 0; i < 2; i++)
		((hugepin_domain **)ret_)[i] = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	return NULL;
}

TEST(a_thread_that_ends_leaves_its_domains_for_others_to_close_and_no_others)
{
	T_STAYS(4 * 5, "each domain's tables are kept for the next one");
	hugepin_domain *d[5];
	pthread_t t;

	T_THREADS_RUN(2);
	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	d[0] = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(pthread_create(&t, NULL, open_and_end, &d[1 + 2 * i]), 0);
		pthread_join(t, NULL);
	}
	EXPECT(!atomic_load(&d[0]->opener_ended));
	for (int i = 0; i < 5; i++)
		EXPECT_EQ(hugepin_domain_close(d[i]), 0);
	device.limits.flags = 0;
}

TEST(a_child_of_fork_closes_a_thousand_of_the_parents_domains_and_opens_as_many)
{
	T_STAYS(4 * MANY, "each domain's tables are kept for the next one");
	static hugepin_domain *d[MANY], *child[MANY];
	char *p = hugepin_malloc(MIB);
	struct hugepin_pin pin;
	int status;

	device_reset(&device);
	for (int i = 0; i < MANY; i++) {
		d[i] = open_nth(i);
		EXPECT_EQ(touch(d[i], p, 4096), 0);
	}
	if (fork() == 0) {
		for (int i = 0; i < MANY; i++)
			EXPECT_EQ(hugepin_pin(d[i], p, 4096, 0, &pin), -ESTALE);
		for (int i = 0; i < MANY; i += 2)
			EXPECT_EQ(hugepin_domain_close(d[i]), 0);
		for (int i = 0; i < MANY; i++) {
			child[i] = open_nth(i);
			EXPECT(child[i] != d[i | 1]); /* the parent's is not closed here */
			EXPECT(child[i]->number < MANY + MANY / 2);
			EXPECT_EQ(touch(child[i], p, 4096), 0);
		}
		close_many(child);
		_exit(t_failures != 0);
	}
	EXPECT(wait(&status) > 0 && status == 0);
	for (int i = 0; i < MANY; i++)
		EXPECT_EQ(touch(d[i], p, 4096), 0);
	close_many(d);
	hugepin_free(p);
}

DOMAIN_TEST(statistics_are_cut_to_what_the_caller_knows, open_lru())
{
	uint64_t few[2] = { 0, 77 };

	EXPECT_EQ(hugepin_domain_stats(d, (void *)few, 8), sizeof(struct hugepin_domain_stats));
	EXPECT_EQ(few[0], HUGEPIN_VERSION);
	EXPECT_EQ(few[1], 77);
	EXPECT_EQ(hugepin_domain_stats(d, NULL, 8), -EINVAL);
}

TEST(relaxed_ordering_is_the_domains_choice)
{
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_LRU,
				     .access = HUGEPIN_READ | HUGEPIN_RELAXED };
	hugepin_domain *strict, *relaxed;
	struct hugepin_pin pin;
	char *p = map(MIB);

	device_reset(&device);
	device.limits.access |= HUGEPIN_RELAXED;
	strict = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(hugepin_pin(strict, p, 4096, HUGEPIN_READ | HUGEPIN_RELAXED, &pin), 0);
	EXPECT_EQ(device.reg[pin.lkey].access, HUGEPIN_READ);
	EXPECT_EQ(hugepin_unpin(strict, &pin), 0);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &relaxed), 0);
	EXPECT_EQ(hugepin_pin(relaxed, p, 4096, HUGEPIN_READ, &pin), 0);
	EXPECT_EQ(device.reg[pin.lkey].access, HUGEPIN_READ | HUGEPIN_RELAXED);
	EXPECT_EQ(hugepin_unpin(relaxed, &pin), 0);
	EXPECT_EQ(device.calls, 2);
	EXPECT_EQ(hugepin_domain_close(relaxed), 0);
	EXPECT_EQ(hugepin_domain_close(strict), 0);
	munmap(p, MIB);
}

TEST(a_closed_domain_has_no_work)
{
	hugepin_domain *d;
	uint32_t n;

	device_reset(&device);
	d = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	n = d->number;
	for (enum hp_work kind = 0; kind < HP_WORK_KINDS; kind++)
		hp_work_set(d, kind);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	for (enum hp_work kind = 0; kind < HP_WORK_KINDS; kind++)
		EXPECT(!(hp_work_of(kind, n / HP_WORK_WORD * HP_WORK_WORD) >> n % HP_WORK_WORD & 1));
}

TEST(domains_register_the_same_memory_each_for_itself)
{
	hugepin_domain *a, *b;
	char *p = hugepin_malloc(4 * MIB);
	struct hugepin_pin pin;

	device_reset(&device);
	a = open_as(HUGEPIN_POLICY_ARENA, 0, 0);
	b = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	EXPECT_EQ(touch(a, p, 4 * MIB), 0);
	EXPECT_EQ(hugepin_pin(b, p, 4 * MIB, 0, &pin), 0);
	EXPECT_EQ(device.regs, 2);
	hugepin_free(p);
	hugepin_purge(); /* a lets go of it, b cannot */
	EXPECT_EQ(device.regs, 1);
	memset(p, 1, 4 * MIB);
	EXPECT_EQ(hugepin_unpin(b, &pin), 0);
	hugepin_purge();
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(hugepin_domain_close(a), 0);
	EXPECT_EQ(hugepin_domain_close(b), 0);
}

T_MAIN
