/*
 * The helper with a plan of the test's own. The plan writes down each event that the helper tells, and asks for the
 * steps that the test sets. Other processes, the device's clock, and the load that the kernel reports are the test's as
 * well. reg/policy/plan.c and reg/share.c are not linked.
 */
#ifndef TESTS_UNIT_HELPER_PLAN_H
#define TESTS_UNIT_HELPER_PLAN_H

#include "reg/helper.h"
#include "reg/processors.h"

#include <time.h>

#include "base/base.h"
#include "base/config.h"
#include "reg/counts.h"
#include "reg/domain.h"
#include "reg/policy/plan.h"
#include "reg/serve.h"
#include "reg/share.h"
#include "reg/track.h"
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

static inline void tell(struct hp_plan *p, struct event e)
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

static inline uint64_t fake_clock(void)
{
	return machine.clock_ns;
}

UNINSTRUMENTED static inline long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (nr == SYS_openat && !strcmp((const char *)b, "/proc/stat"))
		return file_with(machine.stat);
	if (nr == SYS_openat && machine.source && strstr((const char *)b, "current_clocksource"))
		return file_with(machine.source);
	if (nr == SYS_clock_gettime && a == CLOCK_THREAD_CPUTIME_ID && machine.taken_ns) {
		*(struct timespec *)b =
			(struct timespec){ (time_t)(machine.taken_ns / SECOND), (long)(machine.taken_ns % SECOND) };
		return 0;
	}
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

/* ------------------------------------------------------------------ domains, pins and events */

static struct device device;
static char *buffer[BUFFERS];

static bool (*run_helper)(void);

static inline bool not_when_it_wants(void)
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

static inline hugepin_domain *open_on(struct device *v, uint64_t bytes_max)
{
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_PREDICT,
				     .watch = HUGEPIN_WATCH_PROGRAM,
				     .pinned_bytes_max = bytes_max };
	hugepin_domain *d = NULL;

	device_reset(v);
	v->clock_ns = BEGINS;
	EXPECT_EQ(hugepin_domain_open(&device_backend, v, &attr, &d), 0);
	return d;
}

static inline struct hp_plan *plan_of(unsigned before)
{
	return &plans[(plans_used - 1 - before) % 2];
}

static struct hp_helper_news news;

static inline uint64_t serve(hugepin_domain *d)
{
	hp_counts_barrier();
	return hp_helper_serve(d, &news);
}

/* Not inlined: all pins have one call site. */
static __attribute__((noinline)) struct hugepin_pin pinned(hugepin_domain *d, const char *p)
{
	struct hugepin_pin pin = { 0 };

	EXPECT_EQ(hugepin_pin(d, p, LEN, 0, &pin), 0);
	return pin;
}

/* Pin a buffer and give it back. Returns the index of the region. */
static inline uint32_t touch(hugepin_domain *d, const char *p)
{
	struct hugepin_pin pin = pinned(d, p);
	uint32_t index = (uint32_t)pin.ref;

	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	return index;
}

/* Have the helper tell the plan all events so far. The test does not look at these events. */
static inline void catch_up(hugepin_domain *d, struct hp_plan *p)
{
	serve(d);
	p->seen = p->told;
}

/* Open a domain. Its plan has been told of a use of buffer[0], and of nothing since. Returns the region's index. */
static inline uint32_t open_used(hugepin_domain **ret_d, struct hp_plan **ret_plan)
{
	uint32_t index;

	*ret_d = open_on(&device, 0);
	*ret_plan = plan_of(0);
	index = touch(*ret_d, buffer[0]);
	catch_up(*ret_d, *ret_plan);
	return index;
}

/* Leave a record of this thread, whatever the thread has done. */
static inline void leave(uint64_t time, enum hp_record_kind kind, uint32_t index)
{
	hp_record_push(hp_counts_records(hp_counts_self), time, HP_RECORD(kind, index), 77);
}

static inline bool next_is(struct hp_plan *p, enum what what, uint32_t region, uint64_t now_ns)
{
	const struct event *e = &p->log[p->seen++ % EVENTS];

	if (p->seen > p->told)
		return T_FAIL("event %u has not been told", p->seen - 1);
	return EXPECT_EQ(e->what, what) && EXPECT_EQ(e->region, region) && EXPECT_EQ(e->now_ns, now_ns);
}

static inline bool nothing_more(struct hp_plan *p)
{
	bool ok = EXPECT_EQ(p->told, p->seen);

	p->seen = p->told;
	return ok;
}

static inline void next_step(struct hp_plan *p, unsigned what, uint32_t region)
{
	p->step[p->steps++] = (struct hp_plan_step){ .what = what, .region = region };
}

/* The plan has the helper deregister the region. */
static inline void give_back(hugepin_domain *d, struct hp_plan *p, uint32_t region)
{
	uint64_t released = stats_of(d).released;

	next_step(p, HP_PLAN_DEREGISTER, region);
	serve(d);
	EXPECT_EQ(stats_of(d).released, released + 1);
	p->seen = p->told;
}

/* Lose records of the domain, as if a ring were full. */
static inline void lose(hugepin_domain *d, uint32_t records)
{
	hp_counts_records(hp_counts_self)->lost[d->number] += records;
}

/* The cost of an operation on a place, as the plan is told. Other processes make the cost higher. */
static inline uint64_t cost_of(struct hp_plan *p, uint32_t region, uint64_t bytes, bool registering)
{
	return p->config.cost_ns(p->config.arg, region, bytes, registering);
}

/* A clock of the test's own, in place of the machine's. */
static inline void fake_machine(void)
{
	machine.clock_ns = hp_clock_ns() + 100 * SECOND; /* whatever was before is long ago */
	hp_clock_set(fake_clock);
}

/* A machine that does not say how idle it is: the helper takes the time that it needs. */
static inline void idle_machine(void)
{
	fake_machine();
	machine.stat = "";
	hp_helper_begin(0);
	EXPECT_EQ(hp_helper_delay_ns(false), HP_GATHER_NS);
}

/* The helper of the next test takes the time that it needs, whatever the fake machine allowed. */
static inline void real_machine(void)
{
	idle_machine();
	hp_clock_set(NULL);
	machine.taken_ns = 0;
}

/* The helper knows nothing of other processes, and posts anew. */
static inline void begin_anew(void)
{
	hp_processors_child(); /* as in a child of fork */
	others.result = 0;
	others.verdict = (struct hp_share_verdict){ true, 1 };
	hp_helper_begin(0);
	others.posts = 0;
}

#endif
