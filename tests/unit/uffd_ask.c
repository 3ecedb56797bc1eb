/*
 * Questions to the kernel whether memory is changing: which pins ask, how often, how long a pin waits for the answer,
 * and which answers the watcher does not believe.
 */
#include <sys/single_threaded.h>

#include "reg/domains.h"
#include "tests/unit/uffd.h"

/* ------------------------------------------------------------------ several threads, or one */

TEST_BY(in_child, hits_ask_once_and_only_where_the_program_has_several_threads)
{
	hugepin_domain *d = open_with(0);
	char *p = map(MIB);
	long before;

	__libc_single_threaded = 1; /* whatever the service thread is */
	EXPECT_EQ(made(d, p), 1);
	before = questions;
	for (int i = 0; i < 10; i++)
		EXPECT_EQ(made(d, p), 0);
	EXPECT_EQ(questions, before);
	second_thread(true);
	before = questions;
	for (int i = 0; i < 10; i++)
		EXPECT_EQ(made(d, p), 0);
	EXPECT_EQ(questions, before + 10);
	hp_sees_unmaps = true; /* the drop-in announces */
	before = questions;
	EXPECT_EQ(made(d, p), 0);
	EXPECT_EQ(questions, before);
	hp_sees_unmaps = false;
	second_thread(false);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST_BY(in_child, under_the_drop_in_only_domains_that_want_the_kernel_ask)
{
	hugepin_domain *d, *exact;
	char *p = map(MIB);
	long before;

	hp_sees_unmaps = true;
	d = open_with(0);
	exact = open_with(HUGEPIN_WATCH_KERNEL);
	second_thread(true);
	EXPECT_EQ(made(d, p) + made(exact, p), 2);
	before = questions;
	EXPECT_EQ(made(d, p), 0);
	EXPECT_EQ(questions, before);
	EXPECT_EQ(made(exact, p), 0);
	EXPECT_EQ(questions, before + 1);
	second_thread(false);
}

TEST_BY(in_child, several_pieces_are_one_question)
{
	hugepin_domain *d = open_with(0);
	struct hugepin_pin pins[8];
	struct hugepin_sge sges[8];
	struct iovec v[8];
	char *p = map(MIB);
	long before, calls;

	for (int i = 0; i < 8; i++) {
		v[i] = (struct iovec){ p + (size_t)i * 64 * KIB, 4096 };
		EXPECT_EQ(made(d, v[i].iov_base), 1);
	}
	second_thread(true);
	calls = device.calls;
	before = questions;
	EXPECT_EQ(hugepin_pinv(d, v, 8, 0, pins, 8), 8);
	EXPECT_EQ(questions, before + 1);
	hugepin_unpinv(d, pins, 8);
	before = questions;
	EXPECT_EQ(hugepin_sg_map(v, 8, 0, hugepin_sg_key, d, sges, 8, pins, 8, NULL), 8);
	EXPECT_EQ(questions, before + 1);
	hugepin_unpinv(d, pins, 8);
	/* Something is changing: each for itself, which waits. */
	answers(EAGAIN, 3);
	before = questions;
	EXPECT_EQ(hugepin_pinv(d, v, 8, 0, pins, 8), 8);
	EXPECT(questions > before + 8);
	hugepin_unpinv(d, pins, 8);
	answers(EAGAIN, 3);
	EXPECT_EQ(hugepin_sg_map(v, 8, 0, hugepin_sg_key, d, sges, 8, pins, 8, NULL), 8);
	hugepin_unpinv(d, pins, 8);
	EXPECT_EQ(device.calls, calls);
	second_thread(false);
	munmap(p, MIB);
	close_empty(&device, d);
}

static _Atomic int told;

static void tell(void *arg, int err, const struct hugepin_pin *pin)
{
	struct hugepin_pin mine = *pin;

	EXPECT_EQ(err, 0);
	EXPECT_EQ(hugepin_unpin(arg, &mine), 0);
	told++;
}

/* By the page's address, by the hugepage's, and under the lock. */
TEST_BY(in_child, a_pin_that_must_not_wait_asks_and_leaves_the_waiting_to_the_service_thread)
{
	hugepin_domain *d = open_with(0);
	struct hugepin_pin pin;
	char *p = map(8 * MIB), *one = map(4096), *at[] = { one, p + 4 * MIB, p + 64 * KIB };
	long before;

	EXPECT_EQ(hugepin_pin(d, p, 8 * MIB, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(made(d, one), 1);
	EXPECT_EQ(made(d, one) + made(d, p + 4 * MIB), 0);
	second_thread(true);
	for (int i = 0; i < 3; i++) {
		before = questions;
		EXPECT_EQ(hugepin_pin_try(d, at[i], 4096, 0, tell, d, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(questions, before + 1);
		answers(EAGAIN, 3); /* the service thread asks until nothing is changing */
		told = 0;
		EXPECT_EQ(hugepin_pin_try(d, at[i], 4096, 0, tell, d, &pin), -EAGAIN);
		while (!told)
			usleep(1000);
		answers(0, 0);
	}
	EXPECT_EQ(stats_of(d).uncached, 0);
	answers(EAGAIN, 1000000000);
	told = 0;
	EXPECT_EQ(hugepin_pin_try(d, one, 4096, 0, tell, d, &pin), -EAGAIN);
	while (!told)
		usleep(1000);
	EXPECT_EQ(stats_of(d).uncached, 1); /* for itself */
	second_thread(false);
	munmap(one, 4096);
	munmap(p, 8 * MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ answers */

TEST_BY(in_child, what_changes_for_long_is_registered_for_each_pin)
{
	hugepin_domain *d = open_with(0);
	struct hugepin_pin pin;
	char *p = map(MIB);
	uint64_t begun = hp_clock_ns();

	second_thread(true);
	EXPECT_EQ(made(d, p), 1);
	answers(EAGAIN, 1000000000);
	for (int i = 0; i < 20; i++)
		EXPECT_EQ(made(d, p), 1); /* for itself, each time */
	EXPECT_EQ(hugepin_sg_key(d, p, 1, 0, &pin), -ENOKEY);
	EXPECT(hp_clock_ns() - begun < UINT64_C(10000000000));
	EXPECT_EQ(stats_of(d).uncached, 20);
	EXPECT_EQ(stats_of(d).uncached_changing, 20);
	answers(EAGAIN, 2); /* and then no more */
	EXPECT_EQ(made(d, p), 0);
	EXPECT_EQ(hugepin_sg_key(d, p, 1, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	second_thread(false);
	munmap(p, MIB);
	close_empty(&device, d);
}

static int which;

static void lose_the_descriptor(void)
{
	static const int others[] = { EBADF, ENOTTY, EFAULT };
	hugepin_domain *d = open_with(0);
	char *p = map(MIB);

	second_thread(true);
	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(made(d, p), 0);
	answers(others[which], 1);
	EXPECT_EQ(made(d, p), 1);
	EXPECT(!hp_uffd_works());
	EXPECT_EQ(made(d, p), 1);
	munmap(p, MIB);
	second_thread(false);
	close_empty(&device, d);
}

TEST(a_descriptor_that_answers_otherwise_is_not_believed)
{
	for (which = 0; which < 3; which++)
		in_child(lose_the_descriptor);
}

TEST_BY(in_child, a_kernel_that_does_not_count_changes_is_not_believed)
{
	hugepin_domain *d;
	char *p = map(MIB);

	is_flag = true;
	d = open_with(0);
	EXPECT(opened > 0);
	EXPECT(!hp_uffd_works());
	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(made(d, p), 1);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ how long a pin waits */

static uint64_t fake_clock(void)
{
	return fake_ns;
}

/* How many questions are asked until an answer is yes, or the asker gives up. A question takes 50 us. After the first
 * 64 the asker sleeps before each. */
static long asked_for(uint64_t worth_ns, bool settles)
{
	long before = questions, asked;

	yields = 0;
	EXPECT_EQ(hp_uffd_settle(worth_ns), settles);
	asked = questions - before;
	EXPECT_EQ(yields, HP_MIN(asked - 1, 64));
	return asked;
}

TEST_BY(in_child, who_has_waited_in_vain_waits_half_as_long_and_a_millisecond_at_least)
{
	hugepin_domain *d = open_with(0);

	opener = (int)raw(SYS_gettid, 0, 0, 0, 0, 0, 0);
	fake_ns = 1000000000;
	hp_clock_set(fake_clock);
	EXPECT_EQ(asked_for(0, true), 1);
	for (int i = 0; i < 2; i++) {
		answers(EAGAIN, 1000000);
		EXPECT_EQ(asked_for(0, false), 202);
		EXPECT_EQ(asked_for(0, false), 102);
		EXPECT_EQ(asked_for(0, false), 52);
		EXPECT_EQ(asked_for(20000000, false), 402); /* it is worth more */
		EXPECT_EQ(asked_for(0, false), 22); /* a millisecond at least */
		EXPECT_EQ(asked_for(0, false), 22);
		EXPECT_EQ(asked_for(100, false), 22);
		answers(EAGAIN, 20); /* and then no more: patience is as at first */
		EXPECT_EQ(asked_for(0, true), 21);
	}
	answers(EAGAIN, 1000000);
	errno = 77;
	EXPECT_EQ(hp_uffd_ask(), HP_CHANGING);
	EXPECT_EQ(errno, 77);
	answers(EINVAL, 1);
	EXPECT_EQ(hp_uffd_ask(), HP_QUIET);
	EXPECT_EQ(errno, 77);
	hp_clock_set(NULL);
	opener = 0;
	close_empty(&device, d);
}

/* Hold the watcher back with the next event it reads, until this thread waits for it, or lets it go. */
static void hold_reader(hugepin_domain *d, char *p)
{
	EXPECT_EQ(made(d, p), 1);
	hp_uffd_wait();
	reader_held_by = hp_tid();
}

static void map_anew_unheard(hugepin_domain *d, char *p)
{
	hold_reader(d, p);
	EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
}

static void discard_unheard(hugepin_domain *d, char *p)
{
	hold_reader(d, p);
	EXPECT_EQ(madvise(p, 4096, MADV_DONTNEED), 0);
}

TEST_BY(in_child, of_many_domains_the_watcher_lowers_the_bit_in_few_and_the_next_pin_in_each_other)
{
	enum { MANY = 200, FEW = 64 };
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	static hugepin_domain *d[MANY];
	char *p = map(MIB), *q = map(MIB);
	unsigned up = 0;

	d[0] = open_with(0);
	EXPECT_EQ(made(d[0], p), 1);
	for (int i = 1; i < MANY; i++) {
		EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d[i]), 0);
		EXPECT_EQ(made(d[i], p), 1);
	}
	EXPECT_EQ(made(d[0], q), 1);
	munmap(q, MIB);
	hp_uffd_wait();
	for (int i = 0; i < MANY; i++)
		up += d[i]->attention & HP_BUSY ? 1 : 0;
	EXPECT_EQ(up, MANY - FEW);
	for (int i = 0; i < MANY; i += 2) {
		EXPECT_EQ(made(d[i], p), 0);
		EXPECT(!(d[i]->attention & HP_BUSY));
	}
	munmap(p, MIB); /* heard of in each, whether its bit was up or not */
	hp_uffd_wait();
	p = mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	EXPECT(p != MAP_FAILED);
	for (int i = 0; i < MANY; i++)
		EXPECT_EQ(made(d[i], p), 1);
}

TEST_BY(in_child, while_events_are_read_pins_wait_and_see_what_they_say)
{
	hugepin_domain *d = open_with(0);
	char *p = map(MIB);

	hold_reader(d, p);
	seen_reading = d;
	munmap(p, MIB); /* returns when that was read */
	EXPECT(d->attention & HP_BUSY);
	hp_uffd_wait();
	EXPECT_EQ(reader_held_by, 0);
	EXPECT(!(d->attention & HP_BUSY));
	EXPECT(d->attention & HP_PENDING || stats_of(d).invalidated == 1);
	EXPECT(reads > 0);
	EXPECT_EQ(busy_reads, reads);
	seen_reading = NULL;
	close_empty(&device, d);
}

static void answer_request(void *err_, int err, const struct hugepin_pin *pin)
{
	struct hugepin_pin copy = pin ? *pin : (struct hugepin_pin){ 0 };

	if (pin)
		EXPECT_EQ(hugepin_unpin(seen_reading, &copy), 0);
	atomic_store((_Atomic int *)err_, err);
}

/* Have a request made after the event was read, and before it is queued, while still other memory is changing. */
static int ask_after(void (*change)(hugepin_domain *d, char *p))
{
	hugepin_domain *d = open_with(0);
	char *p = map(MIB);
	_Atomic int err = 1;

	seen_reading = d;
	second_thread(true);
	change(d, p);
	answers(EAGAIN, 1);
	EXPECT_EQ(hugepin_pin_try(d, p, 4096, 0, answer_request, &err, NULL), -EAGAIN);
	EXPECT_EQ(answers_left, 0);
	reader_held_by = 0;
	for (int i = 0; i < 20000 && err == 1; i++)
		usleep(1000);
	second_thread(false);
	close_empty(&device, d);
	return err;
}

TEST_BY(in_child, the_end_of_earlier_memory_at_its_addresses_cancels_no_request)
{
	EXPECT_EQ(ask_after(map_anew_unheard), 0);
}

TEST_BY(in_child, an_earlier_discard_cancels_no_request)
{
	EXPECT_EQ(ask_after(discard_unheard), 0);
}

/* The event of an earlier change is read before the hint, and queued after it. */
TEST_BY(in_child, what_the_thread_did_before_does_not_drop_its_hint)
{
	hugepin_domain *d = open_with(0);
	char *p = map(MIB);

	map_anew_unheard(d, p);
	EXPECT_EQ(hugepin_prefetch(d, p, 4096, 0), 0);
	reader_held_by = 0;
	for (int i = 0; i < 20000 && !stats_of(d).prefetched; i++)
		usleep(1000);
	EXPECT_EQ(made(d, p), 0);
	close_empty(&device, d);
}

TEST_BY(in_child, what_was_discarded_before_it_is_forgotten_is_cached_again_when_it_is_mapped_anew)
{
	hugepin_domain *d = open_with(0);
	char *p = map(MIB);

	discard_unheard(d, p);
	EXPECT_EQ(hugepin_forget(p, MIB), 0);
	reader_held_by = 0;
	EXPECT_EQ(munmap(p, MIB), 0);
	EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(made(d, p), 0);
	close_empty(&device, d);
}

T_MAIN
