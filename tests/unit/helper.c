/*
 * The helper on a fake device and its clock: what comes round is given back and registered again in time; what goes wrong is a
 * later miss at most. The helper runs when the test says so.
 */
#include "reg/helper.h"

#include <stdlib.h>
#include <sys/wait.h>

#include "base/config.h"
#include "reg/counts.h"
#include "reg/serve.h"
#include "reg/share.h"
#include "reg/track.h"
#include "tests/device.h"
#include "tests/t.h"

#define MS UINT64_C(1000000)

enum { BUFFERS = 4, LEN = 65536 };

static struct device device;
static char *buffer[BUFFERS];

static _Atomic unsigned wakes;
static _Atomic bool really;
static bool (*run_helper)(void);

static bool seldom(void)
{
	wakes++;
	return really && run_helper();
}

static bool wakes_become(unsigned n)
{
	for (int i = 0; i < 20000 && wakes < n; i++)
		usleep(1000);
	return wakes >= n;
}

static _Atomic bool passed;

static bool pass_by(void)
{
	passed = true;
	return false;
}

/* Wait until the service thread has run all that was asked of it. This job comes behind the helper's: it is asked for
 * later. */
static void pass_once(void)
{
	static struct hp_job last = { .run = pass_by };

	passed = false;
	EXPECT(hp_service_ask(&last));
	while (!passed)
		usleep(1000);
}

/* What was asked of the helper so far, it has been woken for, and it is not going to come by itself. */
static void rest(void)
{
	do
		pass_once();
	while (hp_serve_helper_job.asked || hp_serve_helper_job.again_ns);
}

__attribute__((constructor)) static void configure(void)
{
	run_helper = hp_serve_helper_job.run;
	hp_share_directory = "/nonexistent"; /* this process is alone */
	hp_serve_helper_job.run = seldom; /* not when it wants, but in serve() */
	for (int i = 0; i < BUFFERS; i++)
		buffer[i] = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static hugepin_domain *open_as(uint32_t policy, uint64_t bytes_max)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy, .pinned_bytes_max = bytes_max };
	hugepin_domain *d = NULL;

	device_reset(&device);
	device.clock_ns = 1000 * MS;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	return d;
}

static uint64_t serve(hugepin_domain *d)
{
	struct hp_helper_news news;

	hp_counts_barrier();
	return hp_helper_serve(d, &news);
}

/* Time goes on, and the helper sees to what is due. */
static void pass(hugepin_domain *d, uint64_t ns)
{
	for (uint64_t end = device.clock_ns + ns, due; device.clock_ns < end;) {
		due = serve(d);
		device.clock_ns = HP_MIN(end, HP_MAX(due, device.clock_ns + 1));
	}
}

static int use(hugepin_domain *d, const char *p, size_t len)
{
	struct hugepin_pin pin;
	int e = hugepin_pin(d, p, len, 0, &pin);

	if (e)
		return e;
	EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_WRITE));
	device.reg[pin.lkey].uses++;
	device.clock_ns += MS / 2;
	serve(d); /* does not take it away meanwhile */
	EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_WRITE));
	device.reg[pin.lkey].uses--;
	return hugepin_unpin(d, &pin);
}

/* One after the other, round after round. Returns the mean of the bytes registered. */
static uint64_t go_round(hugepin_domain *d, char **buffers, size_t len, int rounds)
{
	uint64_t sum = 0, n = 0;

	for (int i = 0; i < rounds; i++)
		for (int b = 0; b < BUFFERS; b++) {
			EXPECT_EQ(use(d, buffers[b], len), 0);
			for (int k = 0; k < 10; k++, n++) {
				pass(d, 2 * MS);
				sum += device.bytes;
			}
		}
	return sum / n;
}

static void come_round(uint32_t policy, char **buffers, size_t len, uint64_t late_max)
{
	hugepin_domain *d = open_as(policy, 0);
	struct hugepin_domain_stats learnt, s;
	uint64_t mean = 0;

	for (int i = 0; i < 6; i++) { /* from one place in the code */
		learnt = stats_of(d);
		mean = go_round(d, buffers, len, 10);
	}
	s = stats_of(d);
	EXPECT(mean < BUFFERS * len * 3 / 4);
	EXPECT(s.released - learnt.released > 20 && s.repinned - learnt.repinned > 20);
	EXPECT(s.late - learnt.late <= late_max);
	EXPECT_EQ(s.records_lost, 0);
	EXPECT_EQ(s.sharers, 1);
	close_empty(&device, d);
}

TEST_CASE(what_comes_round_is_registered_in_time_under_predict, come_round(HUGEPIN_POLICY_PREDICT, buffer, LEN, 0))
TEST_CASE(what_comes_round_is_registered_in_time_under_cf11, come_round(HUGEPIN_POLICY_CF11, buffer, LEN, 6))

/* Otherwise the helper takes one for the other, and registers without end. */
DOMAIN_TEST(a_range_that_a_peer_has_too_comes_round_twice, open_as(HUGEPIN_POLICY_PREDICT, 0))
{
	struct hugepin_domain_stats s;
	struct hugepin_pin pin;

	for (int i = 0; i < 60 && device.calls < 10000; i++)
		for (int b = 0; b < BUFFERS; b++) {
			EXPECT_EQ(use(d, buffer[b], LEN), 0);
			EXPECT_EQ(hugepin_pin(d, buffer[b], LEN, HUGEPIN_REMOTE_WRITE, &pin), 0);
			EXPECT_EQ(device.reg[pin.lkey].access, HUGEPIN_REMOTE_WRITE);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			for (int k = 0; k < 10 && device.calls < 10000; k++)
				pass(d, 2 * MS);
		}
	s = stats_of(d);
	EXPECT(s.repinned > 40);
	EXPECT_EQ(device.calls, s.misses + s.repinned);
	EXPECT(device.calls < 1000);
}

TEST(so_is_the_heaps_memory)
{
	char *heap[BUFFERS];

	for (int i = 0; i < BUFFERS; i++)
		heap[i] = hugepin_aligned_alloc(HP_PAGE, HP_PAGE);
	come_round(HUGEPIN_POLICY_PREDICT, heap, HP_PAGE, 0);
	for (int i = 0; i < BUFFERS; i++)
		hugepin_free(heap[i]);
}

TEST(without_a_helper_everything_stays)
{
	hugepin_domain *d;

	hp_config.helper = HP_HELPER_OFF;
	d = open_as(HUGEPIN_POLICY_PREDICT, 0);
	EXPECT(!d->helper && !(d->attention & HP_HELPED));
	for (int i = 0; i < 100; i++) {
		struct hugepin_pin pin;

		EXPECT_EQ(hugepin_pin(d, buffer[i % BUFFERS], LEN, 0, &pin), 0);
		device.clock_ns += 10 * MS;
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(device.calls, BUFFERS);
	hp_config.helper = HP_HELPER_CONSERVATIVE;
	close_empty(&device, d);
}

DOMAIN_TEST(a_helper_that_does_not_come_costs_no_miss_and_loses_only_records, open_as(HUGEPIN_POLICY_PREDICT, 0))
{
	struct hugepin_domain_stats s;

	for (int i = 0; i < 1000; i++) {
		struct hugepin_pin pin;

		EXPECT_EQ(hugepin_pin(d, buffer[i % BUFFERS], LEN, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	serve(d);
	s = stats_of(d);
	EXPECT_EQ(s.misses, BUFFERS);
	EXPECT(s.records_lost > 1000 - BUFFERS - HP_RECORDS_MAX - 8);
	go_round(d, buffer, LEN, 20); /* of which the first are dropped, unlooked at, and known to be */
	EXPECT(stats_of(d).records_lost > s.records_lost);
	s = stats_of(d);
	go_round(d, buffer, LEN, 20);
	EXPECT(stats_of(d).released > 0);
	EXPECT_EQ(stats_of(d).records_lost, s.records_lost);
}

TEST(what_is_lost_for_the_records_of_one_domain_is_not_lost_on_another)
{
	T_THREADS_RUN(2);
	static struct device other;
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_CF11 };
	hugepin_domain *busy = open_as(HUGEPIN_POLICY_PREDICT, 0), *d = NULL;
	struct hugepin_pin last, pin;
	unsigned before;

	device_reset(&other);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &other, &attr, &d), 0);
	EXPECT_EQ(hugepin_pin(d, buffer[0], LEN, 0, &last), 0);
	for (int i = 0; i < 2 * HP_RECORDS_MAX; i++) {
		EXPECT_EQ(hugepin_pin(busy, buffer[i % BUFFERS], LEN, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(busy, &pin), 0);
	}
	rest();
	before = wakes;
	EXPECT_EQ(hugepin_unpin(d, &last), 0); /* nobody pins after this */
	EXPECT(wakes_become(before + 1));
	for (int i = 0; i < 3; i++) {
		serve(busy);
		serve(d);
	}
	EXPECT_EQ(stats_of(d).records_lost, 1);
	EXPECT_EQ(stats_of(d).released, 1); /* cf11 gives back at first sight */
	EXPECT_EQ(hugepin_domain_close(d), 0);
	close_empty(&device, busy);
}

/* Real time passes where the device's clock does not. */
DOMAIN_TEST(the_helper_comes_again_for_what_was_lost_by_whatever_clock, open_as(HUGEPIN_POLICY_PREDICT, 0))
{
	struct hugepin_pin pin;
	unsigned before;

	for (int i = 0; i < 2 * HP_RECORDS_MAX; i++) {
		EXPECT_EQ(hugepin_pin(d, buffer[0], LEN, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	rest();
	before = wakes;
	really = true;
	hp_service_ask(&hp_serve_helper_job);
	EXPECT(wakes_become(before + 2));
	rest();
	EXPECT_EQ(wakes, before + 2);
	really = false;
}

/* A miss tells a few records only, so that the plan has not heard of the last unpin. */
DOMAIN_TEST(what_is_evicted_before_its_end_is_heard_of_is_in_use_no_more, open_as(HUGEPIN_POLICY_CF11, LEN))
{
	struct hugepin_pin pin;
	uint64_t released;

	EXPECT_EQ(hugepin_pin(d, buffer[0], LEN, 0, &pin), 0);
	for (int i = 0; i < 20; i++)
		EXPECT_EQ(use(d, buffer[0], LEN), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(use(d, buffer[1], LEN), 0);
	EXPECT_EQ(stats_of(d).evicted, 1);
	pass(d, 100 * MS);
	EXPECT_EQ(stats_of(d).regions, 0);
	released = stats_of(d).released;
	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(use(d, buffer[0], LEN), 0);
		pass(d, 100 * MS);
	}
	EXPECT(stats_of(d).released > released);
}

/* What hits have left for the helper, who does not come. */
enum { TOLD = 240 };

static void leave_records(hugepin_domain *d, const char *p)
{
	for (int i = 0; i < TOLD; i++) {
		struct hugepin_pin pin;

		EXPECT_EQ(hugepin_pin(d, p, LEN, 0, &pin), 0);
		device.clock_ns += 1000;
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		device.clock_ns += 1000;
	}
}

static int touch(hugepin_domain *d, const char *p)
{
	struct hugepin_pin pin;
	int e = hugepin_pin(d, p, LEN, 0, &pin);

	device.clock_ns += 1000;
	return e ? e : hugepin_unpin(d, &pin);
}

TEST(a_miss_tells_the_plan_of_a_few_records_at_most)
{
	hugepin_domain *d = open_as(HUGEPIN_POLICY_PREDICT, 0);
	struct hp_records *q;
	uint32_t tail;

	EXPECT_EQ(touch(d, buffer[0]), 0);
	serve(d);
	q = hp_counts_records(hp_counts_self);
	tail = q->tail;
	leave_records(d, buffer[0]);
	EXPECT_EQ(touch(d, buffer[1]), 0); /* nothing has to go for it: none is looked at */
	EXPECT_EQ(q->tail, tail);
	EXPECT_EQ(d->helper->queue.count, 1); /* its own */
	serve(d);
	EXPECT_EQ(d->helper->queue.count, 0);
	EXPECT_EQ(q->tail, q->head);
	close_empty(&device, d);

	d = open_as(HUGEPIN_POLICY_PREDICT, 2 * LEN);
	EXPECT_EQ(touch(d, buffer[0]), 0);
	EXPECT_EQ(touch(d, buffer[1]), 0);
	serve(d);
	leave_records(d, buffer[0]);
	EXPECT_EQ(touch(d, buffer[2]), 0);
	EXPECT_EQ(stats_of(d).evicted, 1);
	EXPECT(d->helper->queue.count >= TOLD - 16);
	serve(d);
	EXPECT_EQ(stats_of(d).records_lost, 0);
	close_empty(&device, d);
}

/* By the plan's knowledge buffer 0 would go, which has not been used for longest. */
DOMAIN_TEST(what_was_used_since_the_plan_heard_of_it_is_not_evicted, open_as(HUGEPIN_POLICY_PREDICT, 3 * LEN))
{
	long calls;

	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(touch(d, buffer[i]), 0);
		device.clock_ns += MS;
	}
	serve(d);
	leave_records(d, buffer[2]);
	EXPECT_EQ(touch(d, buffer[0]), 0);
	EXPECT_EQ(touch(d, buffer[3]), 0);
	EXPECT_EQ(stats_of(d).evicted, 1);
	calls = device.calls;
	EXPECT_EQ(touch(d, buffer[0]), 0);
	EXPECT_EQ(touch(d, buffer[2]), 0);
	EXPECT_EQ(device.calls, calls);
	EXPECT_EQ(touch(d, buffer[1]), 0);
	EXPECT_EQ(device.calls, calls + 1);
}

static struct {
	hugepin_domain *d;
	pthread_t thread;
	unsigned untold; /* when the thread that waited registered */
	bool begun;
} waiter;

static void *pin_another(void *unused)
{
	(void)unused;
	EXPECT_EQ(touch(waiter.d, buffer[1]), 0);
	return NULL;
}

static int note_untold(void *addr, size_t len)
{
	(void)addr, (void)len;
	waiter.untold = waiter.d->helper->queue.count;
	return 0;
}

/* Called by the helper at its first record: another thread wants to pin, and gets as far as the lock. */
static uint64_t wait_meanwhile(void *v)
{
	if (waiter.d && !waiter.begun && hp_lock_mine(&waiter.d->lock) && waiter.d->helper->queue.count) {
		waiter.begun = true;
		pthread_create(&waiter.thread, NULL, pin_another, NULL);
		while (waiter.d->lock.word != 2)
			usleep(1000);
	}
	return device_now(v);
}

TEST(who_pins_something_new_waits_for_no_more_than_a_record_that_the_plan_is_told_of)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_PREDICT };
	struct hugepin_backend backend = device_backend;
	hugepin_domain *d = NULL;

	device_reset(&device);
	device.clock_ns = 1000 * MS;
	backend.now_ns = wait_meanwhile;
	EXPECT_EQ(hugepin_domain_open(&backend, &device, &attr, &d), 0);
	EXPECT_EQ(touch(d, buffer[0]), 0);
	serve(d);
	leave_records(d, buffer[0]);
	device.refuse = note_untold;
	waiter.d = d;
	serve(d);
	pthread_join(waiter.thread, NULL);
	EXPECT(waiter.begun);
	EXPECT(waiter.untold > 0);
	waiter.d = NULL;
	close_empty(&device, d);
}

static int faults_of(uint32_t policy, long nth, bool for_good)
{
	hugepin_domain *d = open_as(policy, 0);
	long calls;

	go_round(d, buffer, LEN, 12); /* what fails from here on was registered once */
	device.nth = nth;
	device.for_good = for_good;
	device.with = for_good ? -EIO : -ENOMEM;
	calls = device.calls;
	for (int i = 0; i < 8; i++)
		for (int b = 0; b < BUFFERS; b++) {
			struct hugepin_pin pin;
			int e = hugepin_pin(d, buffer[b], LEN, 0, &pin);

			/* Only a pin that had to register, and whom the device refused, may hear of it. */
			EXPECT(e == 0 || device.nth == 0 || for_good);
			if (!e)
				EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			pass(d, 20 * MS);
		}
	calls = device.calls - calls;
	device.nth = 0;
	device.for_good = false;
	for (int b = 0; b < BUFFERS; b++)
		EXPECT_EQ(use(d, buffer[b], LEN), 0);
	close_empty(&device, d);
	return calls >= nth;
}

TEST(a_registration_ahead_of_use_that_fails_is_a_later_miss)
{
	for (int policy = HUGEPIN_POLICY_CF11; policy <= HUGEPIN_POLICY_PREDICT; policy++)
		for (int good = 0; good < 2; good++) {
			long n = 1;

			while (n < 40 && faults_of((uint32_t)policy, n, good))
				n++;
			EXPECT(n > 3); /* else nothing was registered ahead */
		}
}

DOMAIN_TEST(deregistrations_that_fail_do_no_harm, open_as(HUGEPIN_POLICY_PREDICT, 0))
{
	device.dereg_error = -EIO;
	go_round(d, buffer, LEN, 30);
	EXPECT(stats_of(d).failed > 0);
	device.dereg_error = 0;
}

DOMAIN_TEST(a_clock_that_goes_back_does_no_harm, open_as(HUGEPIN_POLICY_PREDICT, 0))
{
	go_round(d, buffer, LEN, 20);
	device.clock_ns -= 500 * MS;
	go_round(d, buffer, LEN, 20);
	device.clock_ns = 0;
	go_round(d, buffer, LEN, 20);
}

DOMAIN_TEST(a_record_from_the_future_does_no_harm, open_as(HUGEPIN_POLICY_PREDICT, 0))
{
	struct hugepin_pin pin;
	uint64_t now_ns;

	EXPECT_EQ(hugepin_pin(d, buffer[0], LEN, 0, &pin), 0);
	now_ns = device.clock_ns;
	device.clock_ns += 1000000 * MS;
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	device.clock_ns = now_ns;
	serve(d);
	go_round(d, buffer, LEN, 20);
	EXPECT(go_round(d, buffer, LEN, 20) < BUFFERS * LEN * 3 / 4);
}

/* What is registered when a clock begins anew is given back as before. */
DOMAIN_TEST(a_clock_that_begins_anew_does_no_harm, open_as(HUGEPIN_POLICY_CF11, 0))
{
	struct hugepin_pin pin[BUFFERS];

	device.clock_ns = 1000000 * MS;
	for (int b = 0; b < BUFFERS; b++)
		EXPECT_EQ(hugepin_pin(d, buffer[b], LEN, 0, &pin[b]), 0);
	device.clock_ns = 0;
	for (int b = 0; b < BUFFERS; b++)
		EXPECT_EQ(hugepin_unpin(d, &pin[b]), 0);
	serve(d);
	EXPECT_EQ(stats_of(d).released, BUFFERS);
}

DOMAIN_TEST(memory_that_goes_away_while_it_is_not_registered_may_come_again, open_as(HUGEPIN_POLICY_PREDICT, 0))
{
	char *moving[BUFFERS];

	for (int b = 0; b < BUFFERS; b++)
		moving[b] = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 12; i++) {
		go_round(d, moving, LEN, 8);
		for (int b = 0; b < BUFFERS; b++) {
			munmap(moving[b], LEN);
			if (i % 3 == 0) /* time in which it would be registered */
				pass(d, 100 * MS);
			EXPECT(mmap(moving[b], LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
			       moving[b]);
		}
	}
	for (int b = 0; b < BUFFERS; b++)
		munmap(moving[b], LEN);
}

/* It is announced before it happens: who registered it now would have the pages that go. */
DOMAIN_TEST(memory_that_is_about_to_go_is_not_registered_before_its_next_pin, open_as(HUGEPIN_POLICY_PREDICT, 0))
{
	struct hugepin_domain_stats s;

	go_round(d, buffer, LEN, 30);
	s = stats_of(d);
	EXPECT(s.repinned > 0 && s.regions < BUFFERS);
	EXPECT_EQ(hugepin_forget(buffer[0] + 4096, 1), 0);
	for (int b = 1; b < BUFFERS; b++)
		EXPECT_EQ(hugepin_forget(buffer[b], LEN), 0);
	pass(d, 500 * MS);
	EXPECT_EQ(stats_of(d).repinned, s.repinned);
	go_round(d, buffer, LEN, 30);
	EXPECT(stats_of(d).repinned > s.repinned);
}

DOMAIN_TEST(within_a_budget_what_is_used_last_makes_room, open_as(HUGEPIN_POLICY_PREDICT, 2 * LEN))
{
	struct hugepin_domain_stats learnt, s;

	go_round(d, buffer, LEN, 30);
	learnt = stats_of(d);
	go_round(d, buffer, LEN, 30);
	s = stats_of(d);
	EXPECT(s.pinned_peak_bytes <= 2 * LEN);
	EXPECT(s.misses - learnt.misses <= 2); /* LRU misses all of them */
}

static void *serve_there(void *d)
{
	serve(d);
	return NULL;
}

/* What only its opener may register is not given back by others, and made present for him. */
TEST(what_only_the_opener_may_do_the_helper_leaves_alone)
{
	hugepin_domain *d = device_open(&device, (struct hugepin_limits){ .flags = HUGEPIN_LIMIT_OPENER },
					(struct hugepin_attr){ .policy = HUGEPIN_POLICY_PREDICT });
	pthread_t other;

	for (int i = 0; i < 40; i++)
		for (int b = 0; b < BUFFERS; b++) {
			struct hugepin_pin pin;

			EXPECT_EQ(hugepin_pin(d, buffer[b], LEN, 0, &pin), 0);
			EXPECT_EQ(hugepin_unpin(d, &pin), 0);
			device.clock_ns += 20 * MS;
			pthread_create(&other, NULL, serve_there, d);
			pthread_join(other, NULL);
			EXPECT(pthread_equal(device.thread, pthread_self()));
		}
	EXPECT_EQ(stats_of(d).released, 0);
	close_empty(&device, d);
}

TEST(a_child_is_forked_with_records_on_their_way)
{
#ifdef __SANITIZE_THREAD__
	SKIP("the sanitizer lets no child of a process with threads have one");
#endif
	hugepin_domain *d = open_as(HUGEPIN_POLICY_PREDICT, 0);

	for (int i = 0; i < 30; i++) {
		int status = 1;
		pid_t pid;

		EXPECT_EQ(use(d, buffer[i % BUFFERS], LEN), 0);
		pid = fork();
		if (pid == 0) {
			struct device own;
			struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_PREDICT };
			hugepin_domain *mine = NULL;
			struct hugepin_pin pin;

			device_reset(&own);
			_exit(hugepin_pin(d, buffer[0], LEN, 0, &pin) != -ESTALE || hugepin_domain_close(d) != 0 ||
			      hugepin_domain_open(&device_backend, &own, &attr, &mine) != 0 ||
			      hugepin_pin(mine, buffer[0], LEN, 0, &pin) != 0 || hugepin_unpin(mine, &pin) != 0 ||
			      serve(mine) == 0 || hugepin_domain_close(mine) != 0);
		}
		waitpid(pid, &status, 0);
		EXPECT_EQ(status, 0);
		pass(d, 20 * MS);
	}
	close_empty(&device, d);
}

/* More places than are remembered, each used once. */
TEST(very_many_places_are_forgotten_in_their_order)
{
	enum { PAGES = 100000 };
	hugepin_domain *d = open_as(HUGEPIN_POLICY_CF11, 0);
	char *p = mmap(NULL, (size_t)PAGES * 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	for (size_t i = 0; i < PAGES; i++) {
		struct hugepin_pin pin;

		EXPECT_EQ(hugepin_pin(d, p + i * 8192, 4096, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		device.clock_ns += MS;
		serve(d);
	}
	EXPECT(stats_of(d).released > PAGES * 9 / 10);
	close_empty(&device, d);
	munmap(p, (size_t)PAGES * 8192);
}

T_MAIN
