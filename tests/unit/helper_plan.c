/*
 * What the helper tells a plan, and does of what the plan says: with a plan of the test's own, which writes down what it is told and
 * says what it was told to. So is what other processes say, the device's clock, and what the kernel says of load. (reg/policy/plan.c and
 * reg/share.c are not linked.)
 */
#include "reg/helper.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#include "base/config.h"
#include "reg/policy/cost.h"
#include "reg/counts.h"
#include "reg/cover.h"
#include "reg/domain.h"
#include "reg/policy/plan.h"
#include "reg/region.h"
#include "reg/serve.h"
#include "reg/share.h"
#include "tests/device.h"
#include "tests/t.h"
#include "tests/unit/kernel.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define BEGINS (100 * SECOND) /* of the device's clock */

enum { LEN = 16384, BUFFERS = 64, EVENTS = 1 << 15 };

/* ------------------------------------------------------------------ the plan */

enum what { START, MISS, END, REGISTERED, DEREGISTERED, FAILED, FORGET };

struct event {
	enum what what;
	uint32_t region;
	uint64_t now_ns, bytes, site;
};

struct hp_plan {
	struct hp_plan_config config;
	struct event log[EVENTS];
	unsigned told, seen; /* events; of these, looked at by the test */
	struct hp_plan_step step[8]; /* one after the other, then WAIT */
	unsigned steps, asked, victims_asked;
	uint64_t until_ns, lead_ns, asked_ns;
	uint32_t victim;
};

static struct hp_plan plans[2];
static unsigned plans_used;

struct hp_plan *hp_plan_new(const struct hp_plan_config *config)
{
	struct hp_plan *p = &plans[plans_used++ % 2];

	memset(p, 0, sizeof *p);
	p->config = *config;
	p->until_ns = UINT64_MAX;
	return p;
}

void hp_plan_free(struct hp_plan *p)
{
	p->config.arg = NULL;
}

void hp_plan_set_lead(struct hp_plan *p, uint64_t lead_ns)
{
	p->lead_ns = lead_ns;
}

static void tell(struct hp_plan *p, struct event e)
{
	if (EXPECT(p->told < EVENTS))
		p->log[p->told++] = e;
}

void hp_plan_start(struct hp_plan *p, uint32_t region, uint64_t bytes, uint64_t site, uint64_t now_ns, bool hit)
{
	tell(p, (struct event){ hit ? START : MISS, region, now_ns, bytes, site });
}

void hp_plan_end(struct hp_plan *p, uint32_t region, uint64_t now_ns)
{
	tell(p, (struct event){ END, region, now_ns, 0, 0 });
}

void hp_plan_registered(struct hp_plan *p, uint32_t region, uint64_t now_ns)
{
	tell(p, (struct event){ REGISTERED, region, now_ns, 0, 0 });
}

void hp_plan_deregistered(struct hp_plan *p, uint32_t region, uint64_t now_ns)
{
	tell(p, (struct event){ DEREGISTERED, region, now_ns, 0, 0 });
}

void hp_plan_failed(struct hp_plan *p, uint32_t region, uint64_t now_ns)
{
	tell(p, (struct event){ FAILED, region, now_ns, 0, 0 });
}

void hp_plan_forget(struct hp_plan *p, uint32_t region)
{
	tell(p, (struct event){ FORGET, region, 0, 0, 0 });
}

struct hp_plan_step hp_plan_next(struct hp_plan *p, uint64_t now_ns)
{
	p->asked++;
	p->asked_ns = now_ns;
	if (p->steps) {
		struct hp_plan_step step = p->step[0];

		memmove(p->step, p->step + 1, --p->steps * sizeof *p->step);
		return step;
	}
	return (struct hp_plan_step){ .what = HP_PLAN_WAIT, .until_ns = p->until_ns };
}

uint32_t hp_plan_victim(struct hp_plan *p, uint64_t now_ns)
{
	(void)now_ns;
	p->victims_asked++;
	return p->victim;
}

void hp_plan_stats(const struct hp_plan *p, struct hp_plan_stats *ret_)
{
	(void)p;
	*ret_ = (struct hp_plan_stats){ 0 };
}

/* ------------------------------------------------------------------ other processes */

static struct {
	unsigned posts;
	uint64_t bytes;
	enum hp_share_policy policy;
	struct hp_share_verdict verdict;
	int result;
} others = { .verdict = { true, 1 } };

const char *hp_share_directory = "/nonexistent";

struct hp_share_verdict hp_share_decide(const struct hp_share_entry *processes, size_t n, size_t self, unsigned idle,
					enum hp_share_policy policy)
{
	(void)processes, (void)n, (void)self, (void)idle, (void)policy;
	return others.verdict;
}

uint64_t hp_share_lead_ns(uint32_t sharers)
{
	return sharers * MS;
}

uint64_t hp_share_cost_ns(uint32_t sharers, uint64_t cost_ns)
{
	return cost_ns + 1000 * sharers;
}

int hp_share_post(uint64_t bytes, enum hp_share_policy policy, struct hp_share_verdict *ret)
{
	others.posts++;
	others.bytes = bytes;
	others.policy = policy;
	*ret = others.verdict;
	return others.result;
}

void hp_share_leave(void)
{
}

/* ------------------------------------------------------------------ the kernel */

static struct {
	uint64_t clock_ns, taken_ns; /* of this machine and the thread; 0: the kernel's */
	const char *stat; /* /proc/stat; "": the kernel does not say how idle the machine is */
	const char *source; /* of the kernel's clock; NULL: the kernel's */
	unsigned long mask[64]; /* of sched_setaffinity */
	unsigned masks, mask_bytes;
	bool mask_refused;
	bool no_memory; /* for tables */
	char said[200]; /* the last line to stderr */
} machine = { .stat = "", .source = "hpet\n" };

static uint64_t fake_clock(void)
{
	return machine.clock_ns;
}

UNINSTRUMENTED int clock_gettime(clockid_t clock, struct timespec *ret)
{
	if (clock != CLOCK_THREAD_CPUTIME_ID || !machine.taken_ns)
		return (int)raw(SYS_clock_gettime, clock, (long)ret, 0, 0, 0, 0);
	ret->tv_sec = (time_t)(machine.taken_ns / SECOND);
	ret->tv_nsec = (long)(machine.taken_ns % SECOND);
	return 0;
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (nr == SYS_openat && !strcmp((const char *)b, "/proc/stat"))
		return file_with(machine.stat);
	if (nr == SYS_openat && machine.source && strstr((const char *)b, "current_clocksource"))
		return file_with(machine.source);
	if (nr == SYS_mprotect && machine.no_memory) {
		errno = ENOMEM;
		return -1;
	}
	if (nr == SYS_sched_setaffinity) {
		machine.masks++;
		machine.mask_bytes = (unsigned)b;
		memcpy(machine.mask, (const void *)c, sizeof machine.mask);
		errno = EINVAL;
		return machine.mask_refused ? -1 : 0;
	}
	if (nr == SYS_write && a == 2) {
		memset(machine.said, 0, sizeof machine.said);
		memcpy(machine.said, (const void *)b, HP_MIN((size_t)c, sizeof machine.said - 1));
		return c;
	}
	r = raw(nr, a, b, c, d, e, f);
	return result_of(r);
}

/* ------------------------------------------------------------------ */

static struct device device;
static char *buffer[BUFFERS];

static bool (*run_helper)(void);

static bool not_when_it_wants(void)
{
	return false;
}

__attribute__((constructor)) static void configure(void)
{
	char *p = map((size_t)2 * BUFFERS * LEN);

	run_helper = hp_serve_helper_job.run;
	hp_serve_helper_job.run = not_when_it_wants; /* but in serve() */
	for (int i = 0; i < BUFFERS; i++) /* none beside the other */
		buffer[i] = p + 2 * (size_t)i * LEN;
}

static hugepin_domain *open_on(struct device *v, uint64_t bytes_max)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_PREDICT, .watch = HUGEPIN_WATCH_PROGRAM,
				     .pinned_bytes_max = bytes_max };
	hugepin_domain *d = NULL;

	device_reset(v);
	v->clock_ns = BEGINS;
	EXPECT_EQ(hugepin_domain_open(&device_backend, v, &attr, &d), 0);
	return d;
}

static struct hp_plan *plan_of(unsigned before)
{
	return &plans[(plans_used - 1 - before) % 2];
}

static struct hp_helper_news news;

static uint64_t serve(hugepin_domain *d)
{
	hp_counts_barrier();
	return hp_helper_serve(d, &news);
}

/* Not inlined: one place in the code. */
static __attribute__((noinline)) struct hugepin_pin pinned(hugepin_domain *d, const char *p)
{
	struct hugepin_pin pin = { 0 };

	EXPECT_EQ(hugepin_pin(d, p, LEN, 0, &pin), 0);
	return pin;
}

/* Returns its index. */
static uint32_t touch(hugepin_domain *d, const char *p)
{
	struct hugepin_pin pin = pinned(d, p);
	uint32_t index = (uint32_t)pin.ref;

	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	return index;
}

/* Tell the plan all that happened; the test does not look at it. */
static void catch_up(hugepin_domain *d, struct hp_plan *p)
{
	serve(d);
	p->seen = p->told;
}

/* A domain with its plan, which has been told of a use of buffer[0], and of nothing since. Returns the region's index. */
static uint32_t open_used(hugepin_domain **ret_d, struct hp_plan **ret_plan)
{
	uint32_t index;

	*ret_d = open_on(&device, 0);
	*ret_plan = plan_of(0);
	index = touch(*ret_d, buffer[0]);
	catch_up(*ret_d, *ret_plan);
	return index;
}

/* A thread leaves a record, whatever it has done. */
static void leave(uint64_t time, enum hp_record_kind kind, uint32_t index)
{
	hp_record_push(hp_counts_records(hp_counts_self), time, HP_RECORD(kind, index), 77);
}

static bool next_is(struct hp_plan *p, enum what what, uint32_t region, uint64_t now_ns)
{
	const struct event *e = &p->log[p->seen++ % EVENTS];

	if (p->seen > p->told)
		return T_FAIL("event %u has not been told", p->seen - 1);
	return EXPECT_EQ(e->what, what) && EXPECT_EQ(e->region, region) && EXPECT_EQ(e->now_ns, now_ns);
}

static bool nothing_more(struct hp_plan *p)
{
	bool ok = EXPECT_EQ(p->told, p->seen);

	p->seen = p->told;
	return ok;
}

static void next_step(struct hp_plan *p, unsigned what, uint32_t region)
{
	p->step[p->steps++] = (struct hp_plan_step){ .what = what, .region = region };
}

/* The plan has it given back. */
static void give_back(hugepin_domain *d, struct hp_plan *p, uint32_t region)
{
	uint64_t released = stats_of(d).released;

	next_step(p, HP_PLAN_DEREGISTER, region);
	serve(d);
	EXPECT_EQ(stats_of(d).released, released + 1);
	p->seen = p->told;
}

/* ------------------------------------------------------------------ the clock */

static void by_the_counter(void)
{
	static const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_CF11,
						  .watch = HUGEPIN_WATCH_PROGRAM };
	struct hugepin_backend backend = device_backend;
	hugepin_domain *d = NULL;
	struct hp_plan *p;

	backend.now_ns = NULL;
	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&backend, &device, &attr, &d), 0);
	EXPECT(hp_record_by_counter);
	p = plan_of(0);
	for (int i = 0; i < 8; i++) { /* as a helper wakes, now and then */
		uint64_t before, after, began = hp_clock_ns(), slack;

		usleep(i < 4 ? 2000 : 400000);
		hp_helper_begin(0);
		p->told = 0;
		before = hp_clock_ns();
		touch(d, buffer[0]);
		after = hp_clock_ns();
		slack = 200 * 1000 + (after - began) / 50;
		serve(d);
		EXPECT(p->told >= 2);
		for (unsigned e = 0; e < p->told; e++)
			EXPECT(p->log[e].now_ns + slack >= before && p->log[e].now_ns <= after + slack);
	}
	close_empty(&device, d);
	_exit(t_failures != 0);
}

/* The first of all: a process chooses its clock once. */
TEST(times_by_the_processors_counter_are_the_machines_too)
{
#ifndef __x86_64__
	SKIP("there is none that is read");
#endif
	int status = 1;
	pid_t pid = fork();

	if (pid == 0) {
		t_failures = 0;
		machine.source = "tsc\n";
		by_the_counter();
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

/* By the device's own clock no time passes but what it says; without, it is this machine's. */
TEST(without_a_clock_of_the_devices_times_are_the_machines)
{
	T_DOMAIN_BEGINS();
	static const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_CF11,
						  .watch = HUGEPIN_WATCH_PROGRAM };
	struct hugepin_backend backend = device_backend;
	hugepin_domain *d = NULL;
	struct hp_plan *p;
	uint64_t before, after;

	if (hp_record_by_counter)
		SKIP("the counter was chosen before");
	backend.now_ns = NULL;
	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&backend, &device, &attr, &d), 0);
	p = plan_of(0);
	before = hp_clock_ns();
	touch(d, buffer[0]);
	after = hp_clock_ns();
	serve(d);
	EXPECT(p->log[0].what == MISS && p->log[0].now_ns >= before && p->log[0].now_ns <= after);
	EXPECT(p->log[2].what == END && p->log[2].now_ns >= p->log[0].now_ns && p->log[2].now_ns <= after);
	EXPECT(p->asked_ns >= after && p->asked_ns <= hp_clock_ns());
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ what is told */

TEST(a_miss_a_use_and_its_end_are_told_with_their_times)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin = pinned(d, buffer[0]), again;
	uint64_t site;

	EXPECT_EQ(p->told, 0);
	device.clock_ns += MS;
	serve(d);
	site = p->log[0].site;
	EXPECT(site != 0);
	EXPECT_EQ(p->log[0].bytes, LEN);
	next_is(p, MISS, 1, BEGINS);
	next_is(p, REGISTERED, 1, BEGINS);
	nothing_more(p);
	EXPECT_EQ(p->asked_ns, device.clock_ns);

	device.clock_ns += MS;
	again = pinned(d, buffer[0]); /* meanwhile: the same use */
	device.clock_ns += MS;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	serve(d);
	nothing_more(p);
	device.clock_ns += MS;
	EXPECT_EQ(hugepin_unpin(d, &again), 0);
	device.clock_ns += MS;
	serve(d);
	next_is(p, END, 1, device.clock_ns - MS);
	nothing_more(p);

	for (int i = 0; i < 3; i++) { /* from one place in the code */
		device.clock_ns += MS;
		touch(d, buffer[0]);
		device.clock_ns += MS;
		serve(d);
		EXPECT_EQ(p->log[p->seen].site, site);
		next_is(p, START, 1, device.clock_ns - MS);
		next_is(p, END, 1, device.clock_ns - MS);
		nothing_more(p);
	}
	close_empty(&device, d);
}

TEST(an_end_whose_start_was_not_seen_is_a_use_of_its_own)
{
	hugepin_domain *d;
	struct hp_plan *p;
	uint32_t a = open_used(&d, &p);

	leave(BEGINS + 5, HP_RECORD_END, a);
	device.clock_ns += MS;
	serve(d);
	EXPECT_EQ(p->log[p->seen].site, p->log[0].site); /* that of the last use */
	next_is(p, START, 1, BEGINS + 5);
	next_is(p, END, 1, BEGINS + 5);
	nothing_more(p);
	close_empty(&device, d);
}

/* Of what was pinned several times and was seen as several uses, one goes on while anything is pinned. */
TEST(several_uses_end_but_for_one_while_there_is_a_pin)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin = pinned(d, buffer[0]);
	uint32_t a = (uint32_t)pin.ref;

	device.clock_ns += MS;
	leave(BEGINS + 1, HP_RECORD_START, a);
	leave(BEGINS + 2, HP_RECORD_START, a);
	leave(BEGINS + 3, HP_RECORD_END, a);
	serve(d);
	next_is(p, MISS, 1, BEGINS);
	next_is(p, REGISTERED, 1, BEGINS);
	next_is(p, START, 1, BEGINS + 1);
	next_is(p, START, 1, BEGINS + 2);
	next_is(p, END, 1, BEGINS + 3);
	next_is(p, END, 1, BEGINS + 3);
	nothing_more(p);
	EXPECT(hp_region_is_used(d, &hp_regions[a]));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	serve(d);
	next_is(p, END, 1, device.clock_ns);
	nothing_more(p);
	EXPECT(!hp_region_is_used(d, &hp_regions[a]));
	close_empty(&device, d);
}

TEST(what_was_registered_ahead_is_told_before_its_first_use)
{
	hugepin_domain *d;
	struct hp_plan *p;
	struct hp_region *r;

	open_used(&d, &p);
	hp_domain_lock(d);
	EXPECT_EQ(hp_cover_ahead(d, buffer[1], LEN, HUGEPIN_READ | HUGEPIN_WRITE), 0);
	r = hp_region_find(d, (uintptr_t)buffer[1], HUGEPIN_READ);
	hp_domain_unlock(d);
	if (!EXPECT(r))
		return;
	device.clock_ns += MS;
	leave(device.clock_ns, HP_RECORD_START, (uint32_t)(r - hp_regions));
	leave(device.clock_ns - 1, HP_RECORD_START, (uint32_t)(r - hp_regions)); /* is taken first */
	serve(d);
	next_is(p, REGISTERED, 2, device.clock_ns - 1);
	next_is(p, START, 2, device.clock_ns - 1);
	next_is(p, START, 2, device.clock_ns);
	nothing_more(p);
	close_empty(&device, d);
}

TEST(records_are_told_in_the_order_of_time_and_as_they_came_if_that_is_the_same)
{
	enum { REGIONS = 24, RECORDS = 300 };
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	uint32_t index[REGIONS];
	uint64_t time[RECORDS];
	unsigned seed = 7;

	for (int i = 0; i < REGIONS; i++)
		index[i] = touch(d, buffer[i]);
	serve(d);
	for (int round = 0; round < 50; round++) {
		unsigned n = 1 + (unsigned)rand_r(&seed) % RECORDS, kinds = 1 + (unsigned)rand_r(&seed) % 1000;

		device.clock_ns += MS;
		p->seen = p->told;
		for (unsigned i = 0; i < n; i++) {
			time[i] = device.clock_ns - (unsigned)rand_r(&seed) % kinds;
			leave(time[i], HP_RECORD_START, index[i % REGIONS]);
		}
		serve(d);
		EXPECT_EQ(p->told - p->seen, n);
		for (uint64_t at = device.clock_ns - kinds + 1; at <= device.clock_ns; at++)
			for (unsigned i = 0; i < n; i++)
				if (time[i] == at && !next_is(p, START, i % REGIONS + 1, at))
					goto out;
	}
out:
	close_empty(&device, d);
}

/* So far apart are no two of one clock. */
TEST(records_of_a_clock_that_began_anew_are_told_as_they_came)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	uint32_t a = touch(d, buffer[0]), b = touch(d, buffer[1]);

	catch_up(d, p);
	device.clock_ns += 10 * SECOND;
	leave(device.clock_ns, HP_RECORD_START, a);
	leave(device.clock_ns - (UINT64_C(1) << 32) - 1, HP_RECORD_START, b);
	serve(d);
	next_is(p, START, 1, device.clock_ns);
	next_is(p, START, 2, device.clock_ns - (UINT64_C(1) << 32) - 1);
	leave(device.clock_ns, HP_RECORD_START, a);
	leave(device.clock_ns - (UINT64_C(1) << 32) + 1, HP_RECORD_START, b);
	serve(d);
	next_is(p, START, 2, device.clock_ns - (UINT64_C(1) << 32) + 1);
	next_is(p, START, 1, device.clock_ns);
	nothing_more(p);
	close_empty(&device, d);
}

TEST(a_record_is_not_told_as_of_later_than_now)
{
	hugepin_domain *d;
	struct hp_plan *p;
	uint32_t a = open_used(&d, &p);

	device.clock_ns += MS;
	leave(device.clock_ns + MS, HP_RECORD_START, a);
	leave(device.clock_ns - 1, HP_RECORD_START, a);
	serve(d);
	next_is(p, START, 1, device.clock_ns - 1);
	next_is(p, START, 1, device.clock_ns);
	nothing_more(p);
	close_empty(&device, d);
}

/* The index is of a registration made since; but for a clock that went back further. */
TEST(records_shortly_before_the_registration_are_of_another)
{
	hugepin_domain *d;
	struct hp_plan *p;
	uint32_t a = open_used(&d, &p);
	const uint64_t stale = UINT64_C(1) << 32;

	for (int i = 0; i < 4; i++) {
		static const bool is_told[] = { true, false, false, true };
		const uint64_t at[] = { BEGINS, BEGINS - 1, BEGINS - stale, BEGINS - stale - 1 };

		leave(at[i], HP_RECORD_START, a);
		serve(d);
		if (is_told[i])
			next_is(p, START, 1, at[i]);
		nothing_more(p);
	}
	close_empty(&device, d);
}

TEST(of_pins_that_are_not_cached_and_of_registrations_that_are_gone_nothing_is_told)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin;
	uint32_t a;

	EXPECT_EQ(hugepin_pin(d, buffer[0], LEN, HUGEPIN_PIN_UNCACHED, &pin), 0);
	serve(d);
	leave(device.clock_ns, HP_RECORD_START, (uint32_t)pin.ref);
	serve(d);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	serve(d);
	nothing_more(p);
	EXPECT_EQ(hp_helper_waiting(d), 0);

	a = touch(d, buffer[1]);
	EXPECT_EQ(hugepin_forget(buffer[1], LEN), 0); /* before the plan has heard of it */
	leave(device.clock_ns, HP_RECORD_START, a);
	serve(d);
	nothing_more(p);

	pin = pinned(d, buffer[2]); /* by a place whose number is free again */
	serve(d);
	next_is(p, MISS, 1, device.clock_ns - 1000);
	next_is(p, REGISTERED, 1, device.clock_ns - 1000);
	EXPECT_EQ(hugepin_forget(buffer[2], LEN), -EBUSY); /* its end is to come */
	device.clock_ns += MS;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	serve(d);
	next_is(p, FORGET, 1, 0);
	nothing_more(p);
	close_empty(&device, d);
}

static void *touch_there(void *d)
{
	touch(d, buffer[3]);
	return NULL;
}

TEST(threads_records_are_taken_though_the_thread_has_ended)
{
	T_THREADS_RUN(1);
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	pthread_t other;

	touch(d, buffer[3]);
	catch_up(d, p);
	device.clock_ns += MS;
	pthread_create(&other, NULL, touch_there, d);
	pthread_join(other, NULL);
	device.clock_ns += MS;
	touch(d, buffer[3]);
	serve(d);
	next_is(p, START, 1, device.clock_ns - MS);
	next_is(p, END, 1, device.clock_ns - MS);
	next_is(p, START, 1, device.clock_ns); /* which left no record of its own: the use had not been seen to end */
	next_is(p, END, 1, device.clock_ns);
	nothing_more(p);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ what is lost */

/* Of the other domain's records, which are taken in with ours. */
TEST(as_many_records_wait_for_a_domain_as_there_is_room_for_and_one_more_is_lost)
{
	enum { ROOM = 2 * HP_RECORDS_MAX };
	static struct device second;
	for (unsigned more = 0; more < 2; more++) {
		hugepin_domain *d = open_on(&device, 0), *other = open_on(&second, 0);
		struct hp_plan *p = plan_of(1);
		uint32_t a = touch(d, buffer[0]);

		catch_up(d, p);
		device.clock_ns += MS;
		for (unsigned i = 0; i < ROOM + more; i++) {
			leave(device.clock_ns + i, HP_RECORD_START, a);
			if (i % 256 == 255)
				serve(other);
		}
		device.clock_ns += MS;
		serve(d);
		EXPECT(news.any);
		EXPECT_EQ(news.crowded, more);
		EXPECT_EQ(stats_of(d).records_lost, more ? ROOM + more : 0);
		for (unsigned i = 0; !more && i < ROOM; i++)
			next_is(p, START, 1, device.clock_ns - MS + i);
		nothing_more(p);
		serve(d);
		serve(d);
		EXPECT(!news.any && !news.crowded);
		EXPECT_EQ(stats_of(d).records_lost, more ? ROOM + more : 0);
		close_empty(&second, other);
		close_empty(&device, d);
	}
}

TEST(what_has_no_room_in_the_queue_waits_for_the_next_time)
{
	enum { ROOM = 2 * HP_RECORDS_MAX };
	static struct device second;
	hugepin_domain *d = open_on(&device, 0), *other = open_on(&second, 0);
	struct hp_plan *p = plan_of(1);
	uint32_t a = touch(d, buffer[0]);
	struct hugepin_pin pin[3];
	uint64_t begins;

	catch_up(d, p);
	begins = device.clock_ns += MS;
	for (unsigned i = 0; i < ROOM; i++) {
		leave(begins + 10 + i, HP_RECORD_START, a);
		if (i % 256 == 255)
			serve(other);
	}
	for (int i = 1; i < 4; i++) /* are in the queue at once */
		pin[i - 1] = pinned(d, buffer[i]);
	EXPECT_EQ(hp_helper_waiting(d), 3);
	device.clock_ns += 10 * MS;
	for (unsigned round = 0, n = 0; round < 2; round++) {
		serve(d);
		EXPECT(news.any && !news.crowded);
		for (uint32_t i = 2; !round && i < 5; i++) {
			next_is(p, MISS, i, begins + (i - 2) * 1000);
			next_is(p, REGISTERED, i, begins + (i - 2) * 1000);
			for (; n + 10 < (i - 1) * 1000 && n < ROOM - 3; n++)
				next_is(p, START, 1, begins + 10 + n);
		}
		for (; round && n < ROOM; n++)
			next_is(p, START, 1, begins + 10 + n);
		nothing_more(p);
	}
	serve(d);
	EXPECT(!news.any);
	EXPECT_EQ(stats_of(d).records_lost, 0);
	nothing_more(p);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(hugepin_unpin(d, &pin[i]), 0);
	close_empty(&second, other);
	close_empty(&device, d);
}

/* A ring was full. */
static void lose(hugepin_domain *d, uint32_t records)
{
	hp_counts_records(hp_counts_self)->lost[d->number] += records;
}

TEST(after_a_loss_misses_are_told_and_the_rest_dropped)
{
	hugepin_domain *d;
	struct hp_plan *p;
	uint32_t a = open_used(&d, &p);
	uint64_t due;

	device.clock_ns += MS;
	leave(device.clock_ns, HP_RECORD_START, a);
	touch(d, buffer[1]); /* a miss, and an end */
	leave(device.clock_ns, HP_RECORD_END, a);
	lose(d, 5);
	due = serve(d);
	EXPECT_EQ(due, device.clock_ns + HP_CROWDED_NS);
	EXPECT(news.any && news.crowded);
	EXPECT_EQ(stats_of(d).records_lost, 5 + 3);
	next_is(p, MISS, 2, device.clock_ns - 1000);
	next_is(p, REGISTERED, 2, device.clock_ns - 1000);
	nothing_more(p);
	EXPECT_EQ(p->asked, 1); /* not now: what was lost may be uses of what it would give back */

	device.clock_ns += MS;
	lose(d, 1); /* still */
	EXPECT_EQ(serve(d), device.clock_ns + HP_CROWDED_NS);
	EXPECT_EQ(stats_of(d).records_lost, 9);
	nothing_more(p);

	EXPECT_EQ(serve(d), UINT64_MAX);
	EXPECT(!news.crowded);
	next_is(p, END, 2, device.clock_ns); /* there is no pin: it was among what was lost */
	nothing_more(p);
	EXPECT_EQ(p->asked, 2);
	EXPECT_EQ(stats_of(d).records_lost, 9);
	close_empty(&device, d);
	d = open_on(&device, 0); /* by the same number */
	serve(d);
	EXPECT_EQ(stats_of(d).records_lost, 0);
	close_empty(&device, d);
}

TEST(after_a_loss_uses_go_on_that_are_pinned_and_all_that_is_registered_is_told)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin = pinned(d, buffer[0]), other = pinned(d, buffer[1]);
	struct hp_region *r;

	catch_up(d, p);
	EXPECT_EQ(hugepin_unpin(d, &other), 0);
	hp_domain_lock(d);
	EXPECT_EQ(hp_cover_ahead(d, buffer[2], LEN, HUGEPIN_READ | HUGEPIN_WRITE), 0);
	r = hp_region_find(d, (uintptr_t)buffer[2], HUGEPIN_READ);
	hp_domain_unlock(d);
	lose(d, 1);
	serve(d);
	nothing_more(p);
	device.clock_ns += MS;
	serve(d);
	next_is(p, END, 2, device.clock_ns); /* and not 1 */
	nothing_more(p);
	EXPECT(!hp_region_is_used(d, r));
	touch(d, buffer[2]);
	device.clock_ns += MS;
	serve(d);
	next_is(p, REGISTERED, 3, device.clock_ns - MS);
	next_is(p, START, 3, device.clock_ns - MS);
	next_is(p, END, 3, device.clock_ns - MS);
	nothing_more(p);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	close_empty(&device, d);
}

TEST(misses_that_have_no_room_are_lost_and_counted)
{
	enum { ROOM = 2 * HP_RECORDS_MAX };
	hugepin_domain *d;
	struct hp_plan *p;
	char *pages = map((size_t)2 * 4096 * (ROOM + 2));
	struct hugepin_pin pin;

	open_used(&d, &p);
	for (size_t i = 0; i < ROOM + 2; i++) {
		EXPECT_EQ(hugepin_pin(d, pages + 2 * i * 4096, 4096, 0, &pin), 0);
		EXPECT_EQ(hp_helper_waiting(d), HP_MIN(i + 1, (size_t)ROOM));
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		hp_counts_records(hp_counts_self)->tail = hp_counts_records(hp_counts_self)->head; /* its end, of no concern here */
	}
	serve(d);
	EXPECT_EQ(stats_of(d).records_lost, 2);
	EXPECT_EQ(p->told - p->seen, 2 * ROOM);
	p->seen = p->told;
	serve(d); /* of the two that were lost the plan hears now, and of the ends of the others */
	EXPECT_EQ(p->told - p->seen, 2 + ROOM);
	close_empty(&device, d);
	munmap(pages, (size_t)2 * 4096 * (ROOM + 2));
}

/* ------------------------------------------------------------------ places */

TEST(a_range_that_is_registered_again_has_its_number_and_is_late)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);

	touch(d, buffer[0]);
	touch(d, buffer[1]);
	serve(d);
	EXPECT_EQ(stats_of(d).late, 0);
	give_back(d, p, 1);
	EXPECT_EQ(p->log[p->told - 1].what, DEREGISTERED);
	EXPECT_EQ(p->log[p->told - 1].region, 1);
	EXPECT_EQ(p->log[p->told - 1].now_ns, device.clock_ns);
	touch(d, buffer[2]);
	serve(d);
	next_is(p, MISS, 3, device.clock_ns - 1000);
	EXPECT_EQ(stats_of(d).late, 0);
	p->seen = p->told;
	touch(d, buffer[0]);
	EXPECT_EQ(stats_of(d).late, 1);
	serve(d);
	next_is(p, MISS, 1, device.clock_ns - 1000);
	next_is(p, REGISTERED, 1, device.clock_ns - 1000);
	next_is(p, END, 1, device.clock_ns);
	nothing_more(p);
	close_empty(&device, d);
}

/* Large and small ones, given back; what goes away overlaps some. */
TEST(of_places_that_are_not_registered_those_are_forgotten_that_the_range_touches)
{
	enum { PAGES = 64, PLACES = 12 };
	static const unsigned first[PLACES] = { 0, 0, 0, 5, 6, 6, 8, 20, 30, 30, 31, 60 };
	static const unsigned count[PLACES] = { 1, 2, 40, 1, 1, 9, 1, 3, 1, 30, 1, 4 };
	char *pages = map((size_t)PAGES * 4096);
	unsigned seed = 3;

	for (int round = 0; round < 60; round++) {
		hugepin_domain *d = open_on(&device, 0);
		struct hp_plan *p = plan_of(0);
		unsigned from = (unsigned)rand_r(&seed) % PAGES, n = 1 + (unsigned)rand_r(&seed) % 8, left = 0;
		struct hugepin_pin pin;

		for (unsigned i = 0; i < PLACES; i++) { /* the plan's numbers are i + 1 */
			EXPECT_EQ(hugepin_pin(d, pages + (size_t)first[i] * 4096, (size_t)count[i] * 4096, 0, &pin), 0);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			serve(d);
			give_back(d, p, i + 1);
		}
		EXPECT_EQ(hugepin_forget(pages + (size_t)from * 4096, (size_t)n * 4096), 0);
		for (unsigned i = 0; i < PLACES; i++)
			left += first[i] < from + n && first[i] + count[i] > from;
		EXPECT_EQ(p->told - p->seen, left);
		for (; p->seen < p->told; p->seen++) {
			unsigned i = p->log[p->seen].region - 1;

			EXPECT_EQ(p->log[p->seen].what, FORGET);
			EXPECT(i < PLACES && first[i] < from + n && first[i] + count[i] > from);
		}
		close_empty(&device, d);
	}
	munmap(pages, (size_t)PAGES * 4096);
}

TEST(of_65536_places_and_more_the_first_to_be_given_back_is_forgotten)
{
	enum { KNOWN = 1 << 16, MORE = 3 };
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	char *pages = map((size_t)2 * (KNOWN + MORE) * 4096);
	struct hugepin_pin pin;
	uint32_t forgotten = 1;

	for (uint32_t i = 0; i < KNOWN + MORE; i++) {
		EXPECT_EQ(hugepin_pin(d, pages + 2 * (size_t)i * 4096, 4096, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		hp_helper_serve(d, &news);
		next_step(p, HP_PLAN_DEREGISTER, i <= KNOWN ? i + 1 : i - KNOWN);
		hp_helper_serve(d, &news);
		for (p->seen = 0; p->seen < p->told; p->seen++)
			if (p->log[p->seen].what == FORGET)
				EXPECT_EQ(p->log[p->seen].region, forgotten++);
		EXPECT_EQ(forgotten, i < KNOWN ? 1 : i - KNOWN + 2);
		p->told = p->seen = 0;
	}
	EXPECT_EQ(stats_of(d).released, KNOWN + MORE);
	close_empty(&device, d);
	munmap(pages, (size_t)2 * (KNOWN + MORE) * 4096);
}

/* ------------------------------------------------------------------ what it does */

/* What the plan is told that an operation takes, of a place of base pages; with what other processes take. */
static uint64_t cost_of(struct hp_plan *p, uint32_t region, uint64_t bytes, bool registering)
{
	return p->config.cost_ns(p->config.arg, region, bytes, registering);
}

TEST(what_is_given_back_and_registered_again_is_told_counted_and_its_cost_learnt)
{
	hugepin_domain *d;
	struct hp_plan *p;
	struct hp_cost cost = { 0 };
	struct hp_cost_fit fit;
	struct hugepin_domain_stats s;

	open_used(&d, &p);
	EXPECT_EQ(cost_of(p, 1, LEN, true), hp_cost_ns(&cost, HP_COST_BASE, LEN, true) + 1000);
	EXPECT_EQ(cost_of(p, 1, LEN, false), hp_cost_ns(&cost, HP_COST_BASE, LEN, false) + 1000);
	for (int i = 0; i < 5; i++) {
		next_step(p, HP_PLAN_DEREGISTER, 1);
		serve(d);
		next_is(p, DEREGISTERED, 1, device.clock_ns);
		nothing_more(p);
		hp_cost_learn(&cost, HP_COST_BASE, LEN, false, 1000);
		EXPECT_EQ(device.regs, 0);
		EXPECT_EQ(cost_of(p, 1, LEN, false), hp_cost_ns(&cost, HP_COST_BASE, LEN, false) + 1000);

		next_step(p, HP_PLAN_REGISTER, 1);
		serve(d);
		next_is(p, REGISTERED, 1, device.clock_ns);
		nothing_more(p);
		hp_cost_learn(&cost, HP_COST_BASE, LEN, true, 1000);
		EXPECT_EQ(device.regs, 1);
		EXPECT_EQ(cost_of(p, 1, LEN, true), hp_cost_ns(&cost, HP_COST_BASE, LEN, true) + 1000);
		s = stats_of(d);
		EXPECT(hp_cost_fit(&cost, HP_COST_BASE, 1, true, &fit));
		EXPECT_EQ(s.cost_fixed_ns, HP_MAX((int64_t)fit.fixed_ns, 0));
		EXPECT_EQ(s.cost_page_ns, HP_MAX((int64_t)fit.page_ns, 0));
		EXPECT_EQ(s.cost_error, hp_cost_error_permille(&cost));
		EXPECT_EQ(s.released, i + 1);
		EXPECT_EQ(s.repinned, i + 1);
		EXPECT_EQ(s.late, 0);
	}
	device.clock_ns += MS;
	touch(d, buffer[0]); /* a hit, the first since */
	EXPECT_EQ(stats_of(d).misses, 1);
	serve(d);
	next_is(p, START, 1, device.clock_ns);
	next_is(p, END, 1, device.clock_ns);
	nothing_more(p);
	close_empty(&device, d);
}

TEST(costs_shown_are_of_the_class_that_was_registered_most_often)
{
	static const size_t len[] = { 4096, HP_PAGE };
	static const unsigned class[] = { 0, 4 };
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	struct hp_cost cost = { 0 };
	struct hp_cost_fit fit;
	char *large = map(2 * HP_PAGE);
	struct hugepin_pin pin;

	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(hugepin_pin(d, large + (i ? HP_PAGE : 0), len[i], 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	serve(d);
	for (unsigned i = 0; i < 20; i++) {
		unsigned most = i < 8 ? 1 : 0, which = i % 4 == 1 ? !most : most;

		next_step(p, HP_PLAN_DEREGISTER, which + 1);
		next_step(p, HP_PLAN_REGISTER, which + 1);
		serve(d);
		hp_cost_learn(&cost, HP_COST_BASE, len[which], true, 1000);
		if (i != 7 && i != 19)
			continue;
		EXPECT(hp_cost_fit(&cost, HP_COST_BASE, class[most], true, &fit));
		EXPECT_EQ(stats_of(d).cost_fixed_ns, HP_MAX((int64_t)fit.fixed_ns, 0));
		EXPECT_EQ(stats_of(d).cost_page_ns, HP_MAX((int64_t)fit.page_ns, 0));
	}
	close_empty(&device, d);
	munmap(large, 2 * HP_PAGE);
}

TEST(costs_are_of_the_pages_behind_a_place)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	struct hp_cost cost = { 0 };
	char *heap = hugepin_aligned_alloc(HP_PAGE, HP_PAGE);
	struct hugepin_extent x;
	unsigned backing;
	struct hugepin_pin pin;

	EXPECT(hp_heap_extent(heap, &x));
	backing = x.kind == HUGEPIN_KIND_HUGETLB ? HP_COST_HUGETLB : x.kind == HUGEPIN_KIND_THP ? HP_COST_THP : HP_COST_BASE;
	EXPECT_EQ(hugepin_pin(d, heap, HP_PAGE, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	touch(d, buffer[0]);
	serve(d);
	for (int i = 0; i < 20; i++) {
		next_step(p, HP_PLAN_DEREGISTER, 1);
		next_step(p, HP_PLAN_REGISTER, 1);
		serve(d);
		hp_cost_learn(&cost, backing, HP_PAGE, false, 1000);
		hp_cost_learn(&cost, backing, HP_PAGE, true, 1000);
	}
	for (int registering = 0; registering < 2; registering++) {
		EXPECT_EQ(cost_of(p, 1, HP_PAGE, registering), hp_cost_ns(&cost, backing, HP_PAGE, registering) + 1000);
		EXPECT_EQ(cost_of(p, 2, HP_PAGE, registering), hp_cost_ns(&cost, HP_COST_BASE, HP_PAGE, registering) + 1000);
	}
	close_empty(&device, d);
	hugepin_free(heap);
}

TEST(of_places_for_which_there_is_no_memory_nothing_is_known_until_there_is)
{
	enum { PAGES = 6000, KNOWN = 64 };
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	char *pages = map((size_t)2 * PAGES * 4096);
	struct hugepin_pin pin;
	unsigned told;

	for (size_t i = 0; i < PAGES; i++) { /* regions have their memory */
		EXPECT_EQ(hugepin_pin(d, pages + 2 * i * 4096, 4096, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(hugepin_forget(pages, (size_t)2 * PAGES * 4096), 0);
	close_empty(&device, d);
	d = open_on(&device, 0);
	p = plan_of(0);
	serve(d);
	machine.no_memory = true;
	for (size_t i = 0; i < PAGES; i++) {
		if (i == 3000)
			machine.no_memory = false;
		EXPECT_EQ(hugepin_pin(d, pages + 2 * i * 4096, 4096, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		if (i % KNOWN == KNOWN - 1)
			hp_helper_serve(d, &news);
		if (i == 2999)
			EXPECT_EQ(p->told, 3 * 1023);
	}
	hp_helper_serve(d, &news);
	told = p->told;
	/* Of those with memory, and of what was on its way when there was some again. */
	EXPECT_EQ(told, 3 * (1023 + 3000 % KNOWN + PAGES - 3000));
	for (unsigned i = 0; i < told; i++)
		EXPECT(p->log[i].region > 0 && p->log[i].region <= PAGES);
	EXPECT_EQ(stats_of(d).misses, PAGES);
	close_empty(&device, d);
	munmap(pages, (size_t)2 * PAGES * 4096);
}

TEST(what_cannot_be_done_is_told_to_have_failed)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin = pinned(d, buffer[0]);

	catch_up(d, p);
	next_step(p, HP_PLAN_DEREGISTER, 1); /* in use */
	EXPECT_EQ(serve(d), UINT64_MAX);
	next_is(p, FAILED, 1, device.clock_ns);
	EXPECT_EQ(stats_of(d).released, 0);
	EXPECT_EQ(p->asked, 3); /* and goes on */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	serve(d);
	give_back(d, p, 1);
	next_step(p, HP_PLAN_DEREGISTER, 1); /* has been */
	serve(d);
	next_is(p, FAILED, 1, device.clock_ns);
	device.nth = 1;
	device.with = -EIO;
	next_step(p, HP_PLAN_REGISTER, 1);
	serve(d);
	next_is(p, FAILED, 1, device.clock_ns);
	nothing_more(p);
	EXPECT_EQ(device.regs, 0);
	EXPECT_EQ(stats_of(d).repinned, 0);
	EXPECT_EQ(stats_of(d).released, 1);
	close_empty(&device, d);
}

TEST(what_somebody_has_registered_is_told_and_what_is_part_of_more_is_forgotten)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	char *pages = map(4 * LEN);
	struct hugepin_pin pin;
	long calls;

	touch(d, buffer[0]);
	touch(d, pages);
	touch(d, pages + LEN);
	serve(d);
	give_back(d, p, 1);
	give_back(d, p, 2);
	give_back(d, p, 3);
	touch(d, buffer[0]); /* of which the plan has not heard: it is asked before */
	calls = device.calls;
	p->seen = p->told;
	next_step(p, HP_PLAN_REGISTER, 1);
	serve(d);
	next_is(p, MISS, 1, device.clock_ns - 1000);
	next_is(p, REGISTERED, 1, device.clock_ns - 1000);
	next_is(p, END, 1, device.clock_ns);
	next_is(p, REGISTERED, 1, device.clock_ns);
	nothing_more(p);
	EXPECT_EQ(device.calls, calls);
	EXPECT_EQ(stats_of(d).repinned, 0);

	EXPECT_EQ(hugepin_pin(d, pages, 4 * LEN, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	catch_up(d, p);
	next_step(p, HP_PLAN_REGISTER, 2);
	next_step(p, HP_PLAN_REGISTER, 3);
	serve(d);
	next_is(p, FORGET, 2, 0);
	next_is(p, FORGET, 3, 0);
	nothing_more(p);
	EXPECT_EQ(device.calls, calls + 1);
	touch(d, buffer[1]);
	touch(d, buffer[2]); /* by the numbers that are free again, the last first */
	touch(d, buffer[3]);
	serve(d);
	next_is(p, MISS, 3, device.clock_ns - 3000);
	next_is(p, REGISTERED, 3, device.clock_ns - 3000);
	p->seen += 1;
	EXPECT_EQ(p->log[p->seen].region, 2);
	p->seen += 3;
	EXPECT_EQ(p->log[p->seen].region, 5);
	EXPECT_EQ(stats_of(d).late, 1); /* buffer[0]: these are not what the numbers were before */
	p->seen = p->told;
	close_empty(&device, d);
	munmap(pages, 4 * LEN);
}

static void *serve_there(void *d)
{
	serve(d);
	return NULL;
}

TEST(for_the_opener_memory_is_made_present_and_nothing_given_back)
{
	T_THREADS_RUN(1);
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_PREDICT, .watch = HUGEPIN_WATCH_PROGRAM };
	hugepin_domain *d = NULL;
	char *pages = map(2 * LEN);
	unsigned char there[2 * LEN / 4096];
	struct hp_plan *p;
	pthread_t other;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	p = plan_of(0);
	touch(d, pages);
	touch(d, buffer[0]);
	serve(d);
	give_back(d, p, 1);
	EXPECT_EQ(madvise(pages, 2 * LEN, MADV_DONTNEED), 0);
	next_step(p, HP_PLAN_DEREGISTER, 2);
	next_step(p, HP_PLAN_REGISTER, 1);
	errno = 77;
	pthread_create(&other, NULL, serve_there, d);
	pthread_join(other, NULL);
	EXPECT_EQ(mincore(pages, 2 * LEN, there), 0);
	for (size_t i = 0; i < sizeof there; i++)
		EXPECT_EQ(there[i] & 1, i < LEN / 4096);
	next_is(p, FAILED, 2, device.clock_ns);
	next_is(p, FAILED, 1, device.clock_ns);
	nothing_more(p);
	EXPECT_EQ(stats_of(d).released, 1);
	EXPECT_EQ(stats_of(d).repinned, 0);
	close_empty(&device, d);
	munmap(pages, 2 * LEN);
}

TEST(a_victim_is_asked_for_after_eight_records_and_sixteen_times_at_most)
{
	hugepin_domain *d = open_on(&device, 2 * LEN);
	struct hp_plan *p = plan_of(0);
	uint32_t a = touch(d, buffer[0]);

	touch(d, buffer[1]);
	catch_up(d, p);
	p->victim = 1;
	for (int i = 0; i < 20; i++)
		leave(device.clock_ns, HP_RECORD_START, a);
	touch(d, buffer[2]); /* makes room: 1 goes */
	EXPECT_EQ(p->victims_asked, 1);
	EXPECT_EQ(stats_of(d).evicted, 1);
	for (int i = 0; i < 8; i++)
		next_is(p, START, 1, device.clock_ns - 2000);
	for (int i = 0; i < 8; i++)
		EXPECT_EQ(p->log[p->seen++].what, END);
	EXPECT_EQ(p->log[p->seen++].what, DEREGISTERED);
	nothing_more(p);
	serve(d); /* the others are of a region that is no more, or of another with its index */
	p->seen = p->told;

	p->victim = 0;
	p->seen = p->told;
	touch(d, buffer[0]);
	EXPECT_EQ(p->victims_asked, 2); /* it knows of none: the clock does */
	EXPECT_EQ(stats_of(d).evicted, 2);
	close_empty(&device, d);
}

TEST(who_is_used_since_is_no_victim_however_often_it_is_named)
{
	hugepin_domain *d = open_on(&device, 2 * LEN);
	struct hp_plan *p = plan_of(0);
	struct hugepin_pin pin;

	touch(d, buffer[0]);
	touch(d, buffer[1]);
	serve(d);
	pin = pinned(d, buffer[0]);
	hp_counts_records(hp_counts_self)->tail = hp_counts_records(hp_counts_self)->head; /* the plan does not hear of it */
	p->seen = p->told;
	p->victim = 1;
	touch(d, buffer[2]);
	EXPECT_EQ(p->victims_asked, 16);
	for (int i = 0; i < 16; i++)
		next_is(p, FAILED, 1, device.clock_ns - 2000);
	EXPECT_EQ(p->log[p->seen].what, DEREGISTERED); /* by the clock */
	EXPECT_EQ(p->log[p->seen].region, 2);
	p->seen = p->told;
	EXPECT_EQ(stats_of(d).evicted, 1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	close_empty(&device, d);
}

TEST(the_plan_says_when_to_come_again)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);

	serve(d); /* records of the last domain may be there */
	EXPECT_EQ(serve(d), UINT64_MAX);
	EXPECT(!news.any && !news.busy && !news.crowded);
	p->until_ns = 12345;
	EXPECT_EQ(serve(d), 12345);
	touch(d, buffer[0]);
	EXPECT_EQ(serve(d), 12345);
	EXPECT(news.any && !news.busy && !news.crowded);
	EXPECT_EQ(serve(d), 12345);
	EXPECT(!news.any);
	EXPECT(stats_of(d).helper_ns > 0);
	EXPECT(stats_of(d).helper_ns < 60 * SECOND);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ load */

static char stat_text[80];

/* So many hundredths of a second all processors together have been idle. */
static void idle_for(unsigned ticks)
{
	snprintf(stat_text, sizeof stat_text, "cpu  101 202 303 %u 505 606\ncpu0 1 2 3 4 5\n", ticks);
	machine.stat = stat_text;
}

/* A period later: it was idle, and the helper has taken so much, in all. */
static void period(uint64_t ns, unsigned idle_ticks, uint64_t taken_ns)
{
	machine.clock_ns += ns;
	idle_for(idle_ticks);
	machine.taken_ns = taken_ns;
	hp_helper_begin(0);
}

static void fake_machine(void)
{
	machine.clock_ns = hp_clock_ns() + 100 * SECOND; /* whatever was before is long ago */
	hp_clock_set(fake_clock);
}

/* That does not say how idle it is: the helper takes what it needs. */
static void idle_machine(void)
{
	fake_machine();
	machine.stat = "";
	hp_helper_begin(0);
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
}

/* The next test takes what it needs, whatever the fake machine allowed. */
static void real_machine(void)
{
	idle_machine();
	hp_clock_set(NULL);
	machine.taken_ns = 0;
}

TEST(where_no_core_is_idle_it_takes_a_two_hundredth_of_one)
{
	const uint64_t allowed = MS;

	fake_machine();
	period(10 * SECOND, 1000, 500 * MS);
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	period(200 * MS, 1010, 500 * MS); /* half a core */
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	period(200 * MS, 1019, 500 * MS); /* less */
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	EXPECT_EQ(hp_helper_delay_ns(true), HP_CROWDED_NS);
	machine.taken_ns += allowed - 1;
	EXPECT_EQ(hp_helper_delay_ns(true), HP_CROWDED_NS);
	machine.taken_ns += 1;
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	EXPECT_EQ(hp_helper_delay_ns(true), 200 * MS);
	machine.clock_ns += 200 * MS - 1;
	EXPECT_EQ(hp_helper_delay_ns(false), 1);
	machine.clock_ns += 1;
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS); /* a new period is about to begin */
	machine.clock_ns -= 1;
	period(0, 1019, machine.taken_ns); /* not yet */
	EXPECT_EQ(hp_helper_delay_ns(false), 1);
	period(1, 1019, machine.taken_ns);
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	machine.taken_ns += 3 * allowed; /* more than may be: it is taken off the next */
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	period(200 * MS, 1019, machine.taken_ns);
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	period(200 * MS, 1019, machine.taken_ns);
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	period(200 * MS, 1019, machine.taken_ns);
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	machine.taken_ns += 10 * allowed;
	period(200 * MS, 1029, machine.taken_ns); /* idle: what was taken does not count */
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	period(200 * MS, 1029, machine.taken_ns);
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	machine.taken_ns += allowed;
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	period(10 * SECOND, 3000, 500 * MS);
	period(200 * MS + 2, 3010, 500 * MS); /* less than half by a nanosecond */
	machine.taken_ns += allowed;
	EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
	real_machine();
}

TEST(where_the_kernel_does_not_say_it_takes_what_it_needs)
{
	static const char *const text[] = { "", "cpu", "cpu  1 2 3", "intr 1 2 3 4 5\n", "cpu  1 2 3 x 5\n" };

	fake_machine();
	for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
		period(10 * SECOND, 1000, 500 * MS);
		period(200 * MS, 1000, 500 * MS);
		machine.taken_ns += SECOND;
		EXPECT_EQ(hp_helper_delay_ns(false), 200 * MS);
		machine.clock_ns += SECOND;
		machine.stat = text[i];
		hp_helper_begin(0);
		machine.taken_ns += SECOND;
		EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
	}
	real_machine();
}

TEST(to_save_memory_it_takes_no_more_than_it_may_and_within_a_budget_what_it_needs)
{
	for (int budget = 0; budget < 2; budget++) {
		hugepin_domain *d = open_on(&device, budget ? 64 * LEN : 0);
		struct hp_plan *p = plan_of(0);

		EXPECT_EQ(p->config.mode, budget ? HP_PLAN_BUDGET : HP_PLAN_SAVE);
		touch(d, buffer[0]);
		serve(d);
		give_back(d, p, 1);
		touch(d, buffer[1]);
		catch_up(d, p);
		fake_machine();
		period(10 * SECOND, 1000, 500 * MS);
		period(200 * MS, 1000, 500 * MS);
		machine.taken_ns += MS;
		next_step(p, HP_PLAN_DEREGISTER, 2);
		next_step(p, HP_PLAN_REGISTER, 1);
		serve(d);
		next_is(p, budget ? DEREGISTERED : FAILED, 2, device.clock_ns - 1000);
		next_is(p, REGISTERED, 1, device.clock_ns);
		nothing_more(p);
		EXPECT_EQ(stats_of(d).released, 1 + budget);
		real_machine();
		close_empty(&device, d);
	}
}

/* ------------------------------------------------------------------ other processes, and how late it comes */

static void begin_anew(void)
{
	hp_helper_child(); /* as in a child of fork */
	others.result = 0;
	others.verdict = (struct hp_share_verdict){ true, 1 };
	hp_helper_begin(0);
	others.posts = 0;
}

TEST(other_processes_are_told_once_in_128_uses_of_the_bytes_of_all_places)
{
	hugepin_domain *d = open_on(&device, 0), *lru = NULL;
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM };
	static struct device second;
	uint32_t a = touch(d, buffer[0]);

	device_reset(&second);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &second, &attr, &lru), 0);
	touch(lru, buffer[9]);
	touch(d, buffer[1]);
	touch(d, buffer[2]);
	serve(d);
	give_back(d, plan_of(0), 1); /* counts as well */
	a = touch(d, buffer[1]);
	serve(d);
	begin_anew();
	EXPECT_EQ(others.bytes, 3 * LEN);
	EXPECT_EQ(others.policy, hp_config.helper == HP_HELPER_AGGRESSIVE ? HP_SHARE_AGGRESSIVE : HP_SHARE_CONSERVATIVE);
	for (int i = 0; i < HP_SHARE_PERIOD - 1; i++)
		leave(device.clock_ns, HP_RECORD_START, a);
	serve(d);
	hp_helper_begin(0);
	EXPECT_EQ(others.posts, 0);
	EXPECT_EQ(hugepin_forget(buffer[2], LEN), 0);
	others.result = -EAGAIN;
	leave(device.clock_ns, HP_RECORD_START, a);
	serve(d);
	hp_helper_begin(0);
	EXPECT_EQ(others.posts, 1);
	EXPECT_EQ(others.bytes, 2 * LEN);
	hp_helper_begin(0); /* another process was at it */
	EXPECT_EQ(others.posts, 2);
	others.result = 0;
	hp_helper_begin(0);
	hp_helper_begin(0);
	EXPECT_EQ(others.posts, 3);
	EXPECT_EQ(hugepin_forget(buffer[0], 2 * LEN * 3), 0);
	serve(d);
	begin_anew();
	EXPECT_EQ(others.bytes, 0);
	close_empty(&second, lru);
	close_empty(&device, d);
}

TEST(each_policy_is_told_by_its_name)
{
	static const struct {
		int option;
		enum hp_share_policy policy;
	} is[] = { { HP_HELPER_CONSERVATIVE, HP_SHARE_CONSERVATIVE }, { HP_HELPER_AGGRESSIVE, HP_SHARE_AGGRESSIVE },
		   { HP_HELPER_OFF, HP_SHARE_OFF } };
	__typeof__(hp_config.helper) was = hp_config.helper;

	for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
		hp_config.helper = is[i].option;
		begin_anew();
		EXPECT_EQ(others.policy, is[i].policy);
	}
	hp_config.helper = was;
}

TEST(who_may_not_help_asks_for_no_plan_and_who_shares_a_core_begins_earlier)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	uint64_t cost;
	unsigned asked;

	begin_anew();
	touch(d, buffer[0]);
	serve(d);
	EXPECT_EQ(stats_of(d).sharers, 1);
	cost = cost_of(p, 1, LEN, true);
	hp_helper_child();
	others.verdict = (struct hp_share_verdict){ false, 3 };
	hp_helper_begin(0);
	asked = p->asked;
	p->until_ns = 5;
	device.clock_ns += MS;
	touch(d, buffer[0]);
	EXPECT_EQ(serve(d), UINT64_MAX);
	EXPECT_EQ(p->asked, asked);
	EXPECT_EQ(p->log[p->told - 1].now_ns, device.clock_ns); /* but it listens */
	EXPECT_EQ(stats_of(d).sharers, 0);

	begin_anew(); /* alone again: from how late it comes, it knows nothing new */
	hp_helper_child();
	others.verdict = (struct hp_share_verdict){ true, 19 };
	hp_helper_begin(0);
	EXPECT_EQ(serve(d), 5);
	EXPECT_EQ(stats_of(d).sharers, 19);
	EXPECT_EQ(stats_of(d).helper_delay_ns, 19 * MS);
	EXPECT_EQ(p->lead_ns, 19 * MS);
	EXPECT_EQ(cost_of(p, 1, LEN, true), cost + 18 * 1000);
	hp_helper_child();
	others.verdict.sharers = 18; /* fewer: what was measured stays */
	hp_helper_begin(0);
	hp_helper_child();
	hp_helper_begin(0);
	serve(d);
	EXPECT_EQ(p->lead_ns, 19 * MS);
	begin_anew();
	close_empty(&device, d);
}

static uint64_t lead(hugepin_domain *d, uint64_t late_ns)
{
	hp_helper_begin(late_ns);
	serve(d);
	EXPECT_EQ(stats_of(d).helper_delay_ns, plan_of(0)->lead_ns);
	return plan_of(0)->lead_ns;
}

TEST(how_late_it_comes_is_learnt_at_once_and_forgotten_slowly)
{
	hugepin_domain *d = open_on(&device, 0);
	uint64_t ns;

	begin_anew();
	EXPECT_EQ(lead(d, 50 * MS), 20 * MS); /* no later than that is reckoned with */
	ns = lead(d, 0); /* woken for a record */
	EXPECT_EQ(ns, 20 * MS);
	for (int i = 0; i < 700; i++) {
		uint64_t expected = ns - (ns - MS) / 32;

		ns = lead(d, MS);
		EXPECT_EQ(ns, expected);
	}
	EXPECT(ns < MS + 100);
	EXPECT_EQ(lead(d, 3 * MS), 3 * MS);
	EXPECT_EQ(lead(d, 3 * MS), 3 * MS);
	EXPECT_EQ(lead(d, 3 * MS + 1), 3 * MS + 1);
	close_empty(&device, d);
}

TEST(the_processors_are_those_of_the_option)
{
	__typeof__(hp_config.helper_cpu) was = hp_config.helper_cpu;
	int saved;

	for (unsigned cpu = 0; cpu < 4096; cpu += cpu < 130 ? 1 : 317) {
		hp_config.helper_cpu = (__typeof__(was))cpu;
		machine.masks = 0;
		begin_anew();
		EXPECT_EQ(machine.masks, 1);
		EXPECT_EQ(machine.mask_bytes, 512);
		for (unsigned i = 0; i < 64; i++)
			EXPECT_EQ(machine.mask[i], i == cpu / 64 ? 1ul << cpu % 64 : 0);
	}
	hp_helper_begin(0); /* once */
	EXPECT_EQ(machine.masks, 1);

	machine.mask_refused = true;
	machine.said[0] = '\0';
	hp_config.helper_cpu = HP_CPU_ANY;
	errno = saved = 77;
	begin_anew();
	EXPECT_EQ(errno, saved);
	EXPECT_EQ(machine.masks, 2);
	for (unsigned i = 0; i < 64; i++)
		EXPECT_EQ(machine.mask[i], ~0ul);
	EXPECT(!machine.said[0]);
	hp_config.helper_cpu = 0;
	begin_anew();
	EXPECT(!strcmp(machine.said, "hugepin: HUGEPIN_HELPER_CPU: the helper may not run on 0\n"));
	machine.said[0] = '\0';
	machine.mask_refused = false;
	begin_anew();
	EXPECT(!machine.said[0]);
	machine.masks = 0;
	hp_config.helper_cpu = HP_CPU_INHERIT;
	begin_anew();
	EXPECT_EQ(machine.masks, 0);
	hp_config.helper_cpu = was;
}

/* ------------------------------------------------------------------ when it comes again */

/* The helper's job: when it is to run again, and how long after the next record. */
static void comes(uint64_t again_ns, uint64_t delay_ns)
{
	EXPECT(!run_helper());
	EXPECT_EQ(hp_serve_helper_job.again_ns, again_ns);
	EXPECT_EQ(hp_serve_helper_job.delay_ns, delay_ns);
}

TEST(it_comes_again_soon_after_records_sooner_after_losses_and_else_when_the_plan_says)
{
	static const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_CF11,
						  .watch = HUGEPIN_WATCH_PROGRAM };
	struct hugepin_backend backend = device_backend;
	hugepin_domain *d = NULL;
	struct hp_plan *p;

	backend.now_ns = NULL;
	idle_machine();
	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&backend, &device, &attr, &d), 0);
	p = plan_of(0);
	begin_anew();
	run_helper();
	run_helper();
	comes(0, HP_GATHER_NS); /* not before the next record */
	p->until_ns = machine.clock_ns + SECOND;
	comes(machine.clock_ns + SECOND, HP_GATHER_NS);
	touch(d, buffer[0]);
	comes(machine.clock_ns + HP_AGAIN_NS, HP_GATHER_NS);
	p->until_ns = machine.clock_ns + MS;
	touch(d, buffer[0]);
	comes(machine.clock_ns + MS, HP_GATHER_NS); /* the sooner of the two */
	lose(d, 1);
	p->until_ns = UINT64_MAX;
	comes(machine.clock_ns + HP_CROWDED_NS, HP_CROWDED_NS);
	comes(0, HP_GATHER_NS);

	/* How late it comes: it was to wake at that time, and woke then. */
	p->until_ns = machine.clock_ns + SECOND;
	comes(machine.clock_ns + SECOND, HP_GATHER_NS);
	machine.clock_ns += SECOND + 19 * MS;
	p->until_ns = UINT64_MAX;
	comes(0, HP_GATHER_NS);
	EXPECT(p->lead_ns >= 19 * MS);
	machine.clock_ns += SECOND; /* it was not to wake before a record */
	for (int i = 0; i < 100; i++)
		comes(0, HP_GATHER_NS);
	EXPECT(p->lead_ns >= 19 * MS);
	p->until_ns = machine.clock_ns + SECOND;
	comes(machine.clock_ns + SECOND, HP_GATHER_NS);
	machine.clock_ns += MS; /* by a record, before it was to */
	for (int i = 0; i < 10; i++)
		comes(p->until_ns, HP_GATHER_NS);
	EXPECT(p->lead_ns >= 19 * MS);
	close_empty(&device, d);
	real_machine();
}

/* Whoever moves the device's clock has to wake the helper. */
TEST(by_a_clock_of_the_devices_it_comes_again_for_records_and_losses_alone)
{
	hugepin_domain *d = open_on(&device, 0), *lru = NULL;
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM };
	static struct device second;
	struct hp_plan *p = plan_of(0);

	device_reset(&second);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &second, &attr, &lru), 0); /* has no helper */
	idle_machine();
	run_helper();
	run_helper();
	p->until_ns = device.clock_ns + 5;
	comes(0, HP_GATHER_NS);
	touch(d, buffer[0]);
	comes(machine.clock_ns + HP_AGAIN_NS, HP_GATHER_NS);
	lose(d, 1);
	comes(machine.clock_ns + HP_CROWDED_NS, HP_CROWDED_NS);
	comes(0, HP_GATHER_NS);
	real_machine();
	close_empty(&second, lru);
	close_empty(&device, d);
}

static hugepin_domain *slow;
static _Atomic int holding; /* 1: the lock is held; 2: it is to be let go */

static void *hold_lock(void *unused)
{
	hp_domain_lock(slow);
	holding = 1;
	while (holding == 1)
		usleep(1000);
	hp_domain_unlock(slow);
	return unused;
}

TEST(a_domain_in_a_slow_call_is_served_after_the_others_and_soon_again)
{
	T_THREADS_RUN(1);
	static struct device second;
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p;
	pthread_t other;

	slow = open_on(&second, 0);
	p = plan_of(1);
	idle_machine();
	run_helper();
	run_helper();
	touch(d, buffer[0]);
	touch(slow, buffer[1]);
	holding = 0;
	pthread_create(&other, NULL, hold_lock, NULL);
	while (!holding)
		usleep(1000);
	p->told = 0;
	comes(machine.clock_ns + 10 * MS, HP_GATHER_NS);
	EXPECT_EQ(p->told, 3);
	EXPECT_EQ(hp_helper_waiting(slow), 1);
	holding = 2;
	pthread_join(other, NULL);
	comes(machine.clock_ns + HP_AGAIN_NS, HP_GATHER_NS);
	EXPECT_EQ(hp_helper_waiting(slow), 0);
	real_machine();
	close_empty(&second, slow);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ opening */

TEST(a_plan_is_made_as_the_options_and_the_domain_say)
{
	static const struct {
		uint32_t policy;
		uint64_t max;
		int option;
		enum hp_plan_policy is;
		enum hp_plan_mode mode;
		uint64_t budget;
	} cases[] = {
		{ HUGEPIN_POLICY_PREDICT, 0, HP_PREDICT_AUTO, HP_PLAN_PREDICT, HP_PLAN_SAVE, UINT64_MAX },
		{ HUGEPIN_POLICY_CF11, 0, HP_PREDICT_AUTO, HP_PLAN_CF11, HP_PLAN_SAVE, UINT64_MAX },
		{ HUGEPIN_POLICY_CF11, UINT64_MAX, HP_PREDICT_AUTO, HP_PLAN_CF11, HP_PLAN_SAVE, UINT64_MAX },
		{ HUGEPIN_POLICY_PREDICT, UINT64_MAX - 2, HP_PREDICT_AUTO, HP_PLAN_PREDICT, HP_PLAN_BUDGET, UINT64_MAX - 2 },
		{ HUGEPIN_POLICY_PREDICT, 1 << 20, HP_PREDICT_AUTO, HP_PLAN_PREDICT, HP_PLAN_BUDGET, 1 << 20 },
		{ HUGEPIN_POLICY_PREDICT, 1 << 20, HP_PREDICT_SAVE, HP_PLAN_PREDICT, HP_PLAN_SAVE, 1 << 20 },
		{ HUGEPIN_POLICY_PREDICT, 1 << 20, HP_PREDICT_BUDGET, HP_PLAN_PREDICT, HP_PLAN_BUDGET, 1 << 20 },
		{ HUGEPIN_POLICY_CF11, 0, HP_PREDICT_BUDGET, HP_PLAN_CF11, HP_PLAN_BUDGET, UINT64_MAX },
		{ HUGEPIN_POLICY_CF11, 0, HP_PREDICT_SAVE, HP_PLAN_CF11, HP_PLAN_SAVE, UINT64_MAX },
	};
	__typeof__(hp_config.predict_mode) was = hp_config.predict_mode;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct hugepin_attr attr = { .size = sizeof attr, .policy = cases[i].policy, .watch = HUGEPIN_WATCH_PROGRAM,
					     .pinned_bytes_max = cases[i].max };
		const struct hp_plan_config *c;
		hugepin_domain *d = NULL;

		hp_config.predict_mode = (__typeof__(was))cases[i].option;
		device_reset(&device);
		EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
		c = &plan_of(0)->config;
		EXPECT_EQ(c->policy, cases[i].is);
		EXPECT_EQ(c->mode, cases[i].mode);
		EXPECT(c->budget == cases[i].budget);
		EXPECT_EQ(c->memory, hp_config.predict_memory);
		EXPECT(c->arg == d->helper);
		EXPECT(d->attention & HP_HELPED);
		close_empty(&device, d);
		EXPECT(!c->arg); /* it was freed */
		EXPECT(!d->helper);
	}
	hp_config.predict_mode = was;
}

TEST(a_child_gives_back_its_copy_of_a_helper)
{
	hugepin_domain *d = open_on(&device, 0);
	struct hp_plan *p = plan_of(0);
	int status = 1;
	pid_t pid;

	touch(d, buffer[0]);
	pid = fork();
	if (pid == 0) {
		struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM };
		static struct device own;
		hugepin_domain *mine = NULL;

		t_failures = 0;
		EXPECT_EQ(hugepin_domain_close(d), 0);
		EXPECT(!d->helper);
		EXPECT(!p->config.arg); /* it was freed */
		EXPECT_EQ(device.closed, 1);
		EXPECT_EQ(hugepin_domain_close(d), -EINVAL);
		device_reset(&own);
		EXPECT_EQ(hugepin_domain_open(&device_backend, &own, &attr, &mine), 0);
		EXPECT(mine == d && !mine->helper && !(mine->attention & HP_HELPED));
		touch(mine, buffer[0]);
		close_empty(&own, mine);
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	EXPECT(d->helper && p->config.arg);
	close_empty(&device, d);
}

T_MAIN
