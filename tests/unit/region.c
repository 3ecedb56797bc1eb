/*
 * Registrations, one by one: which one is given back for another, against a naive clock; what is counted of each; how often and for
 * how long a refusal is answered; and that tables are exposed for who looks at them from outside.
 */
#include "reg/region.h"

#include <stdlib.h>
#include <sys/wait.h>

#include "reg/counts.h"
#include "tests/device.h"
#include "tests/t.h"
#include "tests/unit/kernel.h"

enum { RANGES = 24, ROOM = 8, LEN = 8192 };
#define MS UINT64_C(1000000)

static struct device device;
static _Atomic long barriers; /* on all threads */

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r = raw(nr, a, b, c, d, e, f);

	barriers += nr == SYS_membarrier;
	return result_of(r);
}

/* Nobody watches, and no helper plans. */
static hugepin_domain *open_with(struct hugepin_limits limits, uint64_t bytes_max)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM,
				     .pinned_bytes_max = bytes_max };
	hugepin_domain *d = NULL;

	device_reset(&device);
	device.limits = limits;
	device.limits.access = DEVICE_ACCESS;
	device.clock_ns = 1000 * MS;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	return d;
}

static struct hugepin_pin pinned(hugepin_domain *d, const char *p, size_t len)
{
	struct hugepin_pin pin = { 0 };

	EXPECT_EQ(hugepin_pin(d, p, len, 0, &pin), 0);
	return pin;
}

static void touch(hugepin_domain *d, const char *p, size_t len)
{
	struct hugepin_pin pin = pinned(d, p, len);

	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

static bool is_registered(const char *p)
{
	for (unsigned k = 1; k <= 2 * RANGES; k++) /* the lowest are used */
		if (device.reg[k].live && device.reg[k].addr == (uintptr_t)p)
			return true;
	return false;
}

/* ------------------------------------------------------------------ the clock */

/* Ranges that are registered. */
struct order {
	unsigned at[ROOM], count;
};

static struct {
	struct order live, aside; /* the next to be looked at first; aside: those that the clock found pinned */
	bool used[RANGES];
	unsigned pins[RANGES];
	unsigned evicted;
	bool by_bytes; /* the limit */
} model;

static unsigned take_first(struct order *o)
{
	unsigned first = o->at[0];

	memmove(o->at, o->at + 1, --o->count * sizeof *o->at);
	return first;
}

static void put_last(struct order *o, unsigned r)
{
	o->at[o->count++] = r;
}

static bool model_takes_back(unsigned looks)
{
	bool any = false;

	for (; looks && model.aside.count; looks--) {
		unsigned r = take_first(&model.aside);

		put_last(model.pins[r] ? &model.aside : &model.live, r);
		any |= !model.pins[r];
	}
	return any;
}

static bool model_runs(void)
{
	for (unsigned looks = 2 * ROOM; looks && model.live.count; looks--) {
		unsigned r = take_first(&model.live);

		if (!model.pins[r] && !model.used[r]) {
			model.evicted++;
			return true;
		}
		model.used[r] &= model.pins[r] != 0;
		put_last(model.pins[r] ? &model.aside : &model.live, r);
	}
	return false;
}

static bool model_has(unsigned r)
{
	bool found = false;

	for (unsigned i = 0; i < model.live.count; i++)
		found |= model.live.at[i] == r;
	for (unsigned i = 0; i < model.aside.count; i++)
		found |= model.aside.at[i] == r;
	return found;
}

/* False: all are pinned. For want of bytes the clock runs only if it is going to find enough. */
static bool model_evicts(void)
{
	bool any = !model.by_bytes;

	for (unsigned r = 0; r < RANGES && !any; r++)
		any = model_has(r) && !model.pins[r];
	if (!any)
		return false;
	model_takes_back(16);
	return model_runs() || (model_takes_back(ROOM) && model_runs());
}

/* Whether it can be pinned. */
static bool model_pins(unsigned r)
{
	if (!model_has(r)) {
		if (model.live.count + model.aside.count == ROOM && !model_evicts())
			return false;
		put_last(&model.live, r);
	}
	model.used[r] = true;
	model.pins[r]++;
	return true;
}

static bool agrees(char *p)
{
	unsigned n = 0;

	for (unsigned r = 0; r < RANGES; r++) {
		bool is = model_has(r);

		n += is;
		if (is_registered(p + (size_t)r * 2 * LEN) != is)
			return T_FAIL("range %u is %sregistered", r, is ? "not " : "");
	}
	return EXPECT_EQ(device.regs, n);
}

static void run_clock(hugepin_domain *d, unsigned seed, unsigned held_max)
{
	char *p = map((size_t)RANGES * 2 * LEN);
	struct hugepin_pin pin[RANGES][2];
	unsigned held = 0, refused = 0;

	memset(&model, 0, sizeof model);
	model.by_bytes = d->regs_max > ROOM;
	for (int step = 0; step < 4000; step++) {
		unsigned r = (unsigned)rand_r(&seed) % RANGES;

		if (model.pins[r] && (model.pins[r] == 2 || rand_r(&seed) % 2)) {
			EXPECT_EQ(hugepin_unpin(d, &pin[r][--model.pins[r]]), 0);
			held--;
		} else if (!model_pins(r)) {
			struct hugepin_pin none;

			refused++;
			EXPECT_EQ(hugepin_pin(d, p + (size_t)r * 2 * LEN, LEN, 0, &none), -ENOBUFS);
		} else {
			pin[r][model.pins[r] - 1] = pinned(d, p + (size_t)r * 2 * LEN, LEN);
			if (held < held_max && rand_r(&seed) % 3 == 0)
				held++;
			else
				EXPECT_EQ(hugepin_unpin(d, &pin[r][--model.pins[r]]), 0);
		}
		if (!agrees(p) || !EXPECT_EQ(stats_of(d).evicted, model.evicted))
			break;
	}
	EXPECT_EQ(refused > 0, held_max >= ROOM);
	EXPECT_EQ(stats_of(d).nobufs, refused);
	for (unsigned r = 0; r < RANGES; r++)
		while (model.pins[r])
			EXPECT_EQ(hugepin_unpin(d, &pin[r][--model.pins[r]]), 0);
	close_empty(&device, d);
	munmap(p, (size_t)RANGES * 2 * LEN);
}

TEST(what_makes_room_is_what_a_clock_says)
{
	T_DOMAIN_BEGINS();
	for (unsigned seed = 1; seed < 5; seed++) {
		run_clock(open_with((struct hugepin_limits){ .regs_max = ROOM }, 0), seed, 0);
		run_clock(open_with((struct hugepin_limits){ .regs_max = ROOM }, 0), seed, 3);
		run_clock(open_with((struct hugepin_limits){ .regs_max = ROOM }, 0), seed, 20);
		run_clock(open_with((struct hugepin_limits){ 0 }, ROOM * LEN), seed, 5);
		run_clock(open_with((struct hugepin_limits){ 0 }, ROOM * LEN + LEN - 1), seed, 20);
	}
}

/* ------------------------------------------------------------------ statistics */

/* Every call of the device takes 1000 ns by its clock. */
static void expect_counted(hugepin_domain *d, uint64_t made, uint64_t made_bytes, uint64_t undone, uint64_t bytes, uint64_t peak)
{
	struct hugepin_domain_stats s = stats_of(d);

	EXPECT_EQ(s.registered, made);
	EXPECT_EQ(s.registered_bytes, made_bytes);
	EXPECT_EQ(s.registered_ns, 1000 * made);
	EXPECT_EQ(s.deregistered, undone);
	EXPECT_EQ(s.deregistered_ns, 1000 * undone);
	EXPECT_EQ(s.regions, made - undone);
	EXPECT_EQ(s.pinned_bytes, bytes);
	EXPECT_EQ(s.pinned_peak_bytes, peak);
}

TEST(what_is_counted_is_what_was_done)
{
	hugepin_domain *d = open_with((struct hugepin_limits){ 0 }, 8 * LEN);
	char *p = map(64 * LEN);
	struct hugepin_pin pin;

	expect_counted(d, 0, 0, 0, 0, 0);
	touch(d, p, LEN);
	expect_counted(d, 1, LEN, 0, LEN, LEN);
	pin = pinned(d, p + 4 * LEN, 2 * LEN);
	expect_counted(d, 2, 3 * LEN, 0, 3 * LEN, 3 * LEN);
	EXPECT_EQ(stats_of(d).retired, 0);

	EXPECT_EQ(hugepin_forget(p, 64 * LEN), -EBUSY);
	touch(d, p + 32 * LEN, LEN); /* buries what is in no use */
	expect_counted(d, 3, 4 * LEN, 1, 3 * LEN, 3 * LEN);
	EXPECT_EQ(stats_of(d).invalidated, 2);
	EXPECT_EQ(stats_of(d).retired, 1);
	EXPECT(d->attention & HP_RETIRED);
	EXPECT_EQ(hugepin_forget(p + 4 * LEN, 1), -EBUSY); /* and counts once */
	EXPECT_EQ(stats_of(d).invalidated, 2);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	expect_counted(d, 3, 4 * LEN, 2, LEN, 3 * LEN);
	EXPECT_EQ(stats_of(d).retired, 0);
	EXPECT(!(d->attention & HP_RETIRED));

	EXPECT_EQ(hugepin_pin(d, p, LEN, HUGEPIN_PIN_UNCACHED, &pin), 0);
	expect_counted(d, 4, 5 * LEN, 2, 2 * LEN, 3 * LEN);
	EXPECT_EQ(stats_of(d).retired, 1);
	EXPECT(d->attention & HP_RETIRED);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	expect_counted(d, 4, 5 * LEN, 3, LEN, 3 * LEN);
	EXPECT_EQ(stats_of(d).retired, 0);
	EXPECT(!(d->attention & HP_RETIRED));

	touch(d, p + 48 * LEN, 8 * LEN); /* all that may be: the other goes */
	expect_counted(d, 5, 13 * LEN, 4, 8 * LEN, 8 * LEN);
	EXPECT_EQ(stats_of(d).evicted, 1);
	EXPECT_EQ(hugepin_pin(d, p, 8 * LEN + 1, 0, &pin), -ENOBUFS);
	expect_counted(d, 5, 13 * LEN, 4, 8 * LEN, 8 * LEN); /* for what has no room nothing goes */
	device.dereg_error = -EIO;
	touch(d, p, LEN);
	EXPECT_EQ(stats_of(d).failed, 1);
	device.dereg_error = 0;
	touch(d, p + 4 * LEN, LEN);
	EXPECT_EQ(stats_of(d).failed, 1);
	EXPECT_EQ(stats_of(d).refused, 0);
	munmap(p, 64 * LEN);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ barriers */

static long barriers_since;

static void expect_barriers(long n)
{
	EXPECT_EQ(barriers - barriers_since, n);
	barriers_since = barriers;
}

/* One for all that are taken out together, before anybody looks whether they are pinned; none where nobody can be pinning. */
TEST(a_registration_is_given_back_after_a_barrier_and_nothing_else_takes_one)
{
	hugepin_domain *d = open_with((struct hugepin_limits){ .regs_max = 4 }, 0);
	char *p = map(64 * LEN);
	struct hugepin_pin pin, other;

	touch(d, p, LEN);
	barriers_since = barriers;
	for (int i = 0; i < 10; i++)
		touch(d, p, LEN);
	expect_barriers(0);
	EXPECT_EQ(hugepin_forget(p + 32 * LEN, LEN), 0); /* of which nothing is registered */
	expect_barriers(0);
	EXPECT_EQ(hugepin_forget(p, LEN), 0);
	expect_barriers(1);
	touch(d, p, LEN);
	touch(d, p + 2 * LEN, LEN);
	EXPECT_EQ(hugepin_forget(p, 4 * LEN), 0);
	expect_barriers(1);

	pin = pinned(d, p, LEN);
	other = pinned(d, p, LEN);
	EXPECT_EQ(hugepin_forget(p, LEN), -EBUSY);
	expect_barriers(1);
	EXPECT_EQ(hugepin_unpin(d, &other), 0); /* may be the last */
	expect_barriers(1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	expect_barriers(1);
	EXPECT_EQ(hugepin_pin(d, p, LEN, HUGEPIN_PIN_UNCACHED, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	expect_barriers(0);

	for (size_t i = 0; i < 4; i++)
		touch(d, p + i * 2 * LEN, LEN);
	expect_barriers(0);
	touch(d, p + 16 * LEN, LEN); /* one goes */
	expect_barriers(1);
	pin = pinned(d, p + 16 * LEN, LEN);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	expect_barriers(1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	expect_barriers(0);
	munmap(p, 64 * LEN);
	close_empty(&device, d);
	expect_barriers(2); /* whether anything is pinned, and before all goes */
}

/* ------------------------------------------------------------------ refusals */

static uint64_t refusal_takes_ns;
static unsigned refusals;

static int refuse(void *addr, size_t len)
{
	(void)addr, (void)len;
	device.clock_ns += refusal_takes_ns;
	return refusals && refusals-- ? -ENOMEM : 0;
}

/* Calls of the device, but for the last of those in vain: what cannot be cached is tried for this pin alone. */
static long calls_for(hugepin_domain *d, const char *p, int e)
{
	struct hugepin_pin pin;
	long before = device.calls;

	EXPECT_EQ(hugepin_pin(d, p, LEN, 0, &pin), e);
	if (!e)
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	return device.calls - before - (e != 0);
}

TEST(a_refusal_is_answered_as_long_as_there_is_something_to_give_back_and_late_memory_waited_for)
{
	for (unsigned flags = 0; flags <= HUGEPIN_LIMIT_LATE; flags += HUGEPIN_LIMIT_LATE) {
		hugepin_domain *d = open_with((struct hugepin_limits){ .flags = flags }, 0);
		char *p = map(32 * LEN);

		device.refuse = refuse;
		refusals = 5;
		EXPECT_EQ(calls_for(d, p, -ENOBUFS), 1); /* nothing was ever given back */
		refusals = 0;
		for (size_t i = 0; i < 4; i++)
			EXPECT_EQ(calls_for(d, p + i * 2 * LEN, 0), 1);
		refusals = 2;
		EXPECT_EQ(calls_for(d, p + 8 * LEN, 0), 3);
		EXPECT_EQ(stats_of(d).evicted, 2);
		EXPECT_EQ(stats_of(d).refused, 4);
		refusals = 100000;
		refusal_takes_ns = 500 * MS;
		/* Three more go. Late: at 0.5 s and 1 s since the last, and at 1.5 s no more. */
		EXPECT_EQ(calls_for(d, p + 10 * LEN, -ENOBUFS), flags ? 6 : 4);
		EXPECT_EQ(stats_of(d).regions, 0);
		EXPECT_EQ(stats_of(d).evicted, 5);
		refusals = 2;
		refusal_takes_ns = 0;
		device.clock_ns += 10 * MS;
		EXPECT_EQ(calls_for(d, p + 10 * LEN, -ENOBUFS), 1); /* long ago by now */
		refusals = 0;
		EXPECT_EQ(calls_for(d, p + 10 * LEN, 0), 1);
		munmap(p, 32 * LEN);
		close_empty(&device, d);
	}
}

TEST(memory_that_is_given_back_late_is_waited_for_in_75_steps)
{
	hugepin_domain *d = open_with((struct hugepin_limits){ .flags = HUGEPIN_LIMIT_LATE }, 0);
	char *p = map(32 * LEN);

	device.refuse = refuse;
	refusal_takes_ns = 0; /* by its clock no time passes */
	touch(d, p, LEN);
	refusals = 100000;
	EXPECT_EQ(calls_for(d, p + 2 * LEN, -ENOBUFS), 2 + 75);
	refusals = 0;
	munmap(p, 32 * LEN);
	close_empty(&device, d);
}

TEST(without_a_budget_a_refusal_is_the_kernels_word)
{
	hugepin_domain *d = open_with((struct hugepin_limits){ .flags = HUGEPIN_LIMIT_LATE }, UINT64_MAX);
	char *p = map(32 * LEN);

	device.refuse = refuse;
	touch(d, p, LEN);
	refusals = 3;
	EXPECT_EQ(calls_for(d, p + 2 * LEN, -ENOMEM), 1);
	EXPECT_EQ(stats_of(d).regions, 1);
	refusals = 0;
	munmap(p, 32 * LEN);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ fork */

TEST(a_child_has_no_registrations_and_its_table_is_empty)
{
	hugepin_domain *d = open_with((struct hugepin_limits){ 0 }, 0);
	char *p = map(32 * LEN);
	uint32_t used;
	int status = -1;
	pid_t pid;

	for (int i = 0; i < 9; i++)
		touch(d, p + 2 * (size_t)i * LEN, LEN);
	used = hp_regions_used();
	EXPECT(used >= 10);
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		EXPECT_EQ(hp_regions_used(), 1);
		for (uint32_t i = 0; i < used; i++)
			EXPECT(!hp_regions[i].tag && !hp_regions[i].domain && !hp_regions[i].state && !hp_regions[i].start);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		d = open_with((struct hugepin_limits){ 0 }, 0);
		for (int i = 0; i < 9; i++)
			touch(d, p + 2 * (size_t)i * LEN, LEN);
		EXPECT_EQ(hp_regions_used(), 10);
		close_empty(&device, d);
		_exit(t_failures != 0);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	munmap(p, 32 * LEN);
	close_empty(&device, d);
}

T_MAIN
