/*
 * Litmus tests of what the library says without a lock between threads: the smallest shape of each protocol, by its own
 * functions, on two threads, many rounds. Each side of a round says what it has missed of the other one. Both must not.
 *
 * Store buffering is the shape of the asymmetric protocols (base/barrier.h): each side stores a word and loads the other's.
 * Message passing is that of the pairs of release and acquire: data and then a flag, the flag and then the data.
 *
 * What these show: the compiler kept the order, and the processor at hand did. A processor shows little. x86 reorders a
 * store with a later load, and nothing else, so it cannot show what message passing needs. An emulator on x86 has the
 * order of memory of x86, whatever it emulates. Only AArch64 itself can fail there. Rounds without the barrier tell
 * whether the machine and this harness can show the forbidden outcome at all. Herd7 or genmc would enumerate all
 * executions. Debian 12 has neither.
 */
/* The hits that are compiled into programs are compiled in here, too, and call us for what is no hit. */
#define HUGEPIN_KEY_INLINE extern __inline__ __attribute__((__gnu_inline__, __always_inline__))
#define hugepin_key_pin_slow litmus_key_pin_slow
#define hugepin_key_unpin_slow litmus_key_unpin_slow

#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "alloc/fast.h"
#include "hugepin.h"
#include "base/barrier.h"
#include "lend/state.h"
#include "reg/counts.h"
#include "reg/domains.h"
#include "reg/state.h"
#include "tests/t.h"

enum {
	ROUNDS = 20000, /* with membarrier(2), which takes a microsecond or two */
	ROUNDS_PASSING = 50000, /* a wrong order of two stores shows once in ten thousand rounds, if that */
	ROUNDS_MOST = 100000, /* without the barrier, until the forbidden outcome is seen once */
	DELAYS = 64, /* steps by which one side begins later */
	LOOKS = 2000,
	SHAPE_SECONDS = 8, /* where the other processor is busy, or emulated, there are fewer rounds */
	REGION = 1,
};

/* A shape. Each side returns whether it missed what the other one did. `fence`: with the barrier of the seldom side. */
struct shape {
	const char *name;
	void (*reset)(uint32_t round);
	bool (*often)(uint32_t round);
	bool (*seldom)(uint32_t round, bool fence);
};

/* ------------------------------------------------------------------ two threads, round by round */

static struct {
	_Alignas(128) _Atomic uint32_t often;
	_Alignas(128) _Atomic uint32_t seldom;
	_Alignas(128) const struct shape *shape;
	bool missed;
} meeting;

/* Each side says that it is there and waits for the other one. A side whose partner has no processor gives its own away. */
static void meet(_Atomic uint32_t *mine, _Atomic uint32_t *other, uint32_t now)
{
	atomic_store_explicit(mine, now, memory_order_release);
	for (unsigned spins = 1; atomic_load_explicit(other, memory_order_acquire) < now; spins++)
		if (spins % 4096 == 0)
			sched_yield();
}

static void delay(uint32_t steps)
{
	for (volatile uint32_t i = 0; i < steps; i++)
		;
}

static cpu_set_t allowed;

/* Have this thread on the nth processor of those that the test may use: both on one would see all stores of each other. */
static void stay_on(int nth)
{
	cpu_set_t set;
	size_t i = 0;

	while (!CPU_ISSET(i, &allowed) || nth--)
		i++;
	CPU_ZERO(&set);
	CPU_SET(i, &set);
	EXPECT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
}

/* The thread that runs the frequent side, until there is no shape. */
static void *run_often(void *unused)
{
	stay_on(1);
	EXPECT(hp_counts_adopt());
	for (uint32_t now = 1;; now += 2) {
		meet(&meeting.often, &meeting.seldom, now);
		const struct shape *shape = meeting.shape;

		if (!shape)
			return unused;
		delay(now / 2 % DELAYS);
		meeting.missed = shape->often(now);
		meet(&meeting.often, &meeting.seldom, now + 1);
	}
}

/* The rounds in which both sides have missed the other one; up to `enough` of them. */
static uint32_t run(const struct shape *shape, bool fence, uint32_t rounds, uint32_t enough)
{
	const uint64_t end_ns = hp_clock_ns() + SHAPE_SECONDS * UINT64_C(1000000000);
	uint32_t forbidden = 0, now = 1;
	pthread_t thread;

	if (!EXPECT_EQ(pthread_create(&thread, NULL, run_often, NULL), 0))
		return 0;
	stay_on(0);
	for (; rounds && forbidden < enough && hp_clock_ns() < end_ns; rounds--, now += 2) {
		shape->reset(now);
		meeting.shape = shape;
		meet(&meeting.seldom, &meeting.often, now);
		delay(now / 2 / DELAYS % DELAYS);
		bool missed = shape->seldom(now, fence);

		meet(&meeting.seldom, &meeting.often, now + 1);
		forbidden += missed && meeting.missed;
	}
	if (rounds && forbidden < enough)
		t_print("# %s: %u rounds\n", shape->name, now / 2);
	meeting.shape = NULL;
	meet(&meeting.seldom, &meeting.often, now);
	pthread_join(thread, NULL);
	sched_setaffinity(0, sizeof allowed, &allowed);
	atomic_store_explicit(&meeting.often, 0, memory_order_relaxed);
	atomic_store_explicit(&meeting.seldom, 0, memory_order_relaxed);
	return forbidden;
}

static void fence_counts(bool fence)
{
	if (fence)
		hp_counts_barrier();
}

/* ------------------------------------------------------------------ a thread's cache, and who empties it */

static struct hp_cache cache;
static _Alignas(128) hp_chunk chunk;

static void cache_reset(uint32_t round)
{
	(void)round;
	cache.limit = HP_SLOT_MAX;
	cache.slot.word = 0;
}

static bool cache_owner(uint32_t round)
{
	(void)round;
	hp_cache_limit(&cache); /* has the line here, as after a malloc just before: then the store waits, and the load does not */
	hp_cache_enter(&cache);
	return hp_cache_limit(&cache);
}

static bool cache_thief(uint32_t round, bool fence)
{
	(void)round;
	hp_cache_shut(&cache);
	if (fence)
		EXPECT(hp_barrier_all_threads());
	return hp_cache_is_left(&cache);
}

/* Look at the flag until it is up, so that the data are read as early as can be. Not for ever: no order of the threads is
 * promised. */
#define AWAIT(flag)                                                                                                    \
	for (int looks = 0; !(flag); looks++)                                                                          \
		if (looks == LOOKS)                                                                                    \
			return false

/* What the owner did before it left is seen: by a store to busy, or to the whole word. */
static void left_reset(uint32_t round)
{
	cache_reset(round);
	cache.slot.busy = 1;
	cache.listed = 0;
}

static bool leaves(uint32_t round)
{
	cache.listed = round;
	hp_cache_leave(&cache);
	return true;
}

static bool sees_left(uint32_t round, bool fence)
{
	(void)fence;
	AWAIT(hp_cache_is_left(&cache));
	return cache.listed != round;
}

static void popped_reset(uint32_t round)
{
	left_reset(round);
	cache.slot.n = 1;
	cache.slot_ptr = &chunk;
	cache.slot_chunk = &chunk;
	cache.slot_word = HP_CHUNK_WORD(1, HP_CHUNK_LIVE);
	chunk = HP_CHUNK_WORD(1, HP_CHUNK_LISTED);
}

static bool pops(uint32_t round)
{
	(void)round;
	return hp_cache_pop_slot(&cache, 1, HP_CHUNK);
}

static bool sees_popped(uint32_t round, bool fence)
{
	(void)round, (void)fence;
	AWAIT(hp_cache_is_left(&cache));
	return atomic_load_explicit(&chunk, memory_order_relaxed) != HP_CHUNK_WORD(1, HP_CHUNK_LIVE);
}

/* A buffer goes from thread to thread by a shared list: what the first one did to it is seen. */
static struct {
	hp_stack stack;
	_Alignas(128) size_t chunk; /* of a buffer of 8 chunks */
	_Alignas(128) uint32_t data;
} passed;

static void stack_reset(uint32_t round)
{
	(void)round;
	if (!passed.chunk)
		passed.chunk = ((uintptr_t)hugepin_malloc(8 * HP_CHUNK) - hp_span.base) >> HP_CHUNK_SHIFT;
	hp_stack_take(&passed.stack);
}

static bool pushes_buffer(uint32_t round)
{
	passed.data = round;
	hp_stack_push(&passed.stack, passed.chunk, hp_chunk_at(&hp_span, passed.chunk), 8);
	return true;
}

static bool sees_buffer(uint32_t round, bool fence)
{
	(void)fence;
	AWAIT(hp_stack_pop(&passed.stack, 8, HP_CHUNK));
	return passed.data != round || HP_CHUNK_COUNT(hp_chunk_get(passed.chunk)) != 8;
}

/* ------------------------------------------------------------------ pins and unpins, and who retires the region */

static _Alignas(128) struct hp_granule granule;
static struct hugepin_domain domain;
static _Alignas(128) struct hugepin_lend lent;
static _Alignas(128) uint64_t life;
static struct hugepin_key key;
static _Alignas(128) uint32_t sum_before, bytes; /* sum_before: while the other thread stands still */

static void pin_reset(uint32_t round)
{
	granule.tag = HP_TAG(round, REGION);
	sum_before = hp_counts_sum(REGION);
}

/* As reg/pin.c:find_by_granule(), find_by_lookup() and lend/lend.c:hit(). */
static bool pins(uint32_t round)
{
	uint64_t tag = HP_READ(granule.tag);

	(void)round;
	if (!tag)
		return false;
	hp_count(&hp_counts_self[REGION].pins);
	hp_barrier_often();
	return HP_READ(granule.tag) == tag;
}

static bool retires(uint32_t round, bool fence)
{
	(void)round;
	HP_WRITE(granule.tag, 0);
	fence_counts(fence);
	return hp_counts_sum(REGION) == sum_before;
}

int litmus_key_pin_slow(const struct hugepin_key *k, int counted)
{
	(void)k, (void)counted;
	return -ENOKEY;
}

int litmus_key_unpin_slow(const struct hugepin_key *k, int counted)
{
	(void)k, (void)counted;
	return 1;
}

static void key_reset(uint32_t round)
{
	life = (uint64_t)round << 1;
	key = (struct hugepin_key){ .pin.ref = REGION, .domain = (void *)&domain, .life = (void *)&life, .good = life,
				    .unpin_slow = HP_RETIRED };
	domain.attention = 0;
	sum_before = hp_counts_sum(REGION);
}

static bool key_pins(uint32_t round)
{
	(void)round;
	return hugepin_key_pin(&key) == 0;
}

static bool ends_life(uint32_t round, bool fence)
{
	(void)round;
	HP_WRITE(life, 0);
	fence_counts(fence);
	return hp_counts_sum(REGION) == sum_before;
}

/* The last unpin deregisters what waits for it. */
static bool key_unpins(uint32_t round)
{
	(void)round;
	return hugepin_key_unpin(&key) == 0;
}

static bool waits_for_unpin(uint32_t round, bool fence)
{
	(void)round;
	hp_attention_raise(&domain, HP_RETIRED);
	fence_counts(fence);
	return hp_counts_sum(REGION) == sum_before;
}

static void lend_reset(uint32_t round)
{
	(void)round;
	lent.attention = 0;
	sum_before = hp_counts_sum(REGION);
}

/* As lend/lend.c:hugepin_lend_done(). */
static bool lend_done(uint32_t round)
{
	(void)round;
	hp_count(&hp_counts_self[REGION].unpins);
	hp_barrier_often();
	return !hp_lend_attends(&lent, HP_ATTEND_USES);
}

static bool waits_for_done(uint32_t round, bool fence)
{
	(void)round;
	atomic_fetch_or_explicit(&lent.attention, HP_ATTEND_USES, memory_order_seq_cst);
	fence_counts(fence);
	return hp_counts_sum(REGION) == sum_before;
}

/* Whoever sees the unpin sees what was done to the memory before. */
static void unpin_reset(uint32_t round)
{
	(void)round;
	bytes = 0;
	sum_before = hp_counts_sum(REGION);
}

static bool unpins(uint32_t round)
{
	bytes = round;
	hp_count(&hp_counts_self[REGION].unpins);
	return true;
}

static bool sees_unpin(uint32_t round, bool fence)
{
	(void)fence;
	AWAIT(hp_counts_sum(REGION) != sum_before);
	return bytes != round;
}

/* Whoever sees the tag sees the keys. */
static void publish_reset(uint32_t round)
{
	(void)round;
	granule.tag = granule.keys = 0;
}

static bool publishes(uint32_t round)
{
	HP_WRITE(granule.keys, round);
	HP_WRITE(granule.tag, HP_TAG(round, REGION));
	return true;
}

static bool sees_tag(uint32_t round, bool fence)
{
	(void)fence;
	AWAIT(HP_READ(granule.tag));
	return HP_READ(granule.keys) != round;
}

/* ------------------------------------------------------------------ records, and the helper's run */

static struct hp_records records;
static struct hp_job job;

static void record_reset(uint32_t round)
{
	(void)round;
	records.tail_seen = records.head;
	records.record[records.head % HP_RECORDS_MAX].time = 0;
	job.asked = true;
}

/* As reg/pin.c:record_use(). */
static bool pushes(uint32_t round)
{
	hp_record_push(&records, round, HP_RECORD(HP_RECORD_START, REGION), 1);
	hp_barrier_often();
	return atomic_load_explicit(&job.asked, memory_order_relaxed);
}

/* As base/service.c:run_due(), reg/serve.c:help_all() and reg/track.c:collect_from(). */
static bool collects(uint32_t round, bool fence)
{
	uint32_t before = records.tail_seen;

	(void)round;
	atomic_exchange_explicit(&job.asked, false, memory_order_seq_cst);
	if (fence)
		EXPECT(hp_barrier_all_threads());
	return atomic_load_explicit(&records.head, memory_order_acquire) == before;
}

static bool sees_head(uint32_t round, bool fence)
{
	uint32_t before = records.tail_seen;

	(void)fence;
	AWAIT(atomic_load_explicit(&records.head, memory_order_acquire) != before);
	return records.record[before % HP_RECORDS_MAX].time != round;
}

/* ------------------------------------------------------------------ the tests */

static const struct shape asymmetric[] = {
	{ "a thread's cache", cache_reset, cache_owner, cache_thief },
	{ "a pin", pin_reset, pins, retires },
	{ "a pin by a key", key_reset, key_pins, ends_life },
	{ "an unpin by a key", key_reset, key_unpins, waits_for_unpin },
	{ "a lent key's last use", lend_reset, lend_done, waits_for_done },
	{ "a record", record_reset, pushes, collects },
};

static const struct shape passing[] = {
	{ "a cache that its owner has left", left_reset, leaves, sees_left },
	{ "a slot emptied by one store", popped_reset, pops, sees_popped },
	{ "a buffer in a shared list", stack_reset, pushes_buffer, sees_buffer },
	{ "an unpin, and the memory", unpin_reset, unpins, sees_unpin },
	{ "a tag, and the keys", publish_reset, publishes, sees_tag },
	{ "a record, and its head", record_reset, pushes, sees_head },
};

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

#define SKIP_WITHOUT_PAIR()                                                                                            \
	do {                                                                                                           \
		T_STAYS(8, "counters of threads, for the next ones");                                                  \
		if (sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) < 2)                         \
			SKIP("one processor: each thread sees all stores of the other");                               \
		if (hp_counts_init())                                                                                  \
			SKIP("no membarrier(2)");                                                                      \
	} while (0)

TEST(the_harness_sees_the_forbidden_outcome_where_the_barrier_is_left_out)
{
	unsigned seen = 0;

	SKIP_WITHOUT_PAIR();
	for (unsigned i = 0; i < COUNT(asymmetric); i++) {
		bool shown = run(&asymmetric[i], false, ROUNDS_MOST, 1);

		seen += shown;
		if (!shown)
			t_print("# %s: not seen\n", asymmetric[i].name);
	}
	if (!seen)
		SKIP("this machine did not show it");
}

static void expect_none(const struct shape *shapes, size_t count, bool fence, uint32_t rounds)
{
	for (const struct shape *s = shapes; s < shapes + count; s++) {
		uint32_t forbidden = run(s, fence, rounds, rounds);

		if (forbidden)
			T_FAIL("%s: %u of %u rounds", s->name, forbidden, rounds);
	}
}

TEST(of_a_side_with_membarrier_and_one_without_a_fence_one_sees_the_other)
{
	SKIP_WITHOUT_PAIR();
	expect_none(asymmetric, COUNT(asymmetric), true, ROUNDS);
}

TEST(who_sees_the_flag_sees_the_data)
{
	SKIP_WITHOUT_PAIR();
	expect_none(passing, COUNT(passing), false, ROUNDS_PASSING);
}

T_MAIN
