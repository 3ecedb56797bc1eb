/*
 * Memory that goes away: the program forgets, unmaps or discards a range, and the next pin registers the range anew.
 * The queue of such ranges. Foreign memory is real, and really watched.
 */
#include <sched.h>
#include <semaphore.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "reg/domain.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/hints.h"
#include "reg/request.h"
#include "reg/uffd.h"
#include "tests/unit/pin.h"

PIN_TEST(what_is_forgotten_is_registered_anew, open_lru(), MIB)
{
	struct hugepin_pin held;

	EXPECT_EQ(touch(d, p, 4 * 4096), 0);
	EXPECT_EQ(touch(d, p + 100000, 4096), 0);
	EXPECT_EQ(hugepin_forget(p + 3 * 4096 + 1, 1), 0);
	EXPECT(registered(d, p + 100000, 4096));
	EXPECT(!registered(d, p, 4 * 4096));
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &held), 0);
	EXPECT_EQ(hugepin_forget(p, 4096), -EBUSY);
	EXPECT(device_covers(&device, &held, HUGEPIN_WRITE)); /* it is still in use */
	EXPECT(!registered(d, p, 4 * 4096));
	EXPECT_EQ(hugepin_unpin(d, &held), 0);
	EXPECT_EQ(stats_of(d).invalidated, 2);
	EXPECT_EQ(stats_of(d).retired, 0);
}

PIN_TEST(a_range_that_is_pinned_for_itself_alone_is_busy, open_lru(), MIB)
{
	struct hugepin_pin held[2];

	for (int i = 0; i < 2; i++)
		EXPECT_EQ(hugepin_pin(d, p + 8192, 4096, HUGEPIN_PIN_UNCACHED, &held[i]), 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(hugepin_forget(p, MIB), -EBUSY);
		EXPECT_EQ(hugepin_forget(p + 12287, 1), -EBUSY);
		EXPECT_EQ(hugepin_forget(p, 8192) || hugepin_forget(p + 12288, 4096), 0);
		EXPECT_EQ(hugepin_unpin(d, &held[i]), 0);
	}
	EXPECT_EQ(hugepin_forget(p, MIB), 0);
}

static _Atomic long barriers; /* membarrier(2): each precedes a sum of the counters of all threads */
static _Atomic bool changing; /* the kernel says that memory is changing */

long hp_sys_call(long n, long a, long b, long c, long d, long e, long f)
{
	barriers += n == SYS_membarrier;
	if (changing && n == SYS_ioctl && (unsigned long)b == UFFDIO_WRITEPROTECT)
		return -EAGAIN;
	return t_call(n, a, b, c, d, e, f);
}

PIN_TEST(what_waits_for_its_last_unpin_is_not_counted_again, open_lru(), MIB)
{
	struct hugepin_pin uncached, retired;

	EXPECT_EQ(hugepin_pin(d, p, 4096, HUGEPIN_PIN_UNCACHED, &uncached), 0);
	EXPECT_EQ(hugepin_pin(d, p + 8192, 4096, 0, &retired), 0);
	EXPECT_EQ(hugepin_forget(p + 8192, 4096), -EBUSY);
	EXPECT_EQ(stats_of(d).retired, 2);
	barriers = 0;
	for (int i = 0; i < 10; i++)
		EXPECT_EQ(hugepin_forget(p + MIB / 2, 4096), 0);
	EXPECT_EQ(barriers, 0);
	EXPECT_EQ(hugepin_unpin(d, &retired) || hugepin_unpin(d, &uncached), 0);
	EXPECT_EQ(stats_of(d).retired, 0);
	EXPECT_EQ(device.regs, 0);
}

static int forget_and_purge(void *addr, size_t len)
{
	static char other[4096];

	(void)addr;
	(void)len;
	EXPECT_EQ(hugepin_forget(other, sizeof other), 0);
	EXPECT_EQ(hugepin_purge(), 0);
	return 0;
}

TEST(a_backend_may_forget_and_purge)
{
	hugepin_domain *d = open_lru(), *other = open_as(HUGEPIN_POLICY_LRU, 0, 0);
	char *h = hugepin_malloc(4 * MIB);

	T_DOMAIN_BEGINS(); /* the second that is open */
	device.refuse = forget_and_purge;
	EXPECT_EQ(touch(d, h, 4 * MIB), 0);
	device.refuse = NULL;
	hugepin_free(h);
	EXPECT_EQ(hugepin_domain_close(other), 0);
	device.closed = 0;
	close_empty(&device, d);
}

TEST(unmapped_memory_is_registered_anew_without_being_told)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);

	if (!hp_uffd_works()) {
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("no userfaultfd");
	}
	for (int i = 0; i < 50; i++) {
		EXPECT_EQ(touch(d, p, 4 * 4096), 0);
		syscall(SYS_munmap, p + 4096, 4096);
		EXPECT_EQ(mmap(p + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
			       0) == p + 4096, 1);
		EXPECT(!registered(d, p, 4 * 4096));
		madvise(p, 4096, MADV_DONTNEED);
		EXPECT(!registered(d, p, 4 * 4096));
	}
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(a_clone_that_keeps_the_descriptor_holds_up_no_unmapping)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);
	pid_t pid;

	EXPECT_EQ(touch(d, p, 4096), 0);
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); /* without handlers */
	if (pid == 0) {
		pause();
		_exit(0);
	}
	close_empty(&device, d);
	munmap(p, MIB); /* or the test's time runs out */
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static int userfaultfd_of_ours(void)
{
	char path[32], what[64];

	for (int fd = 0; fd < 1024; fd++) {
		ssize_t n;

		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		n = readlink(path, what, sizeof what);
		if (n > 0 && memmem(what, (size_t)n, "userfaultfd", 11))
			return fd;
	}
	return -1;
}

TEST(a_program_that_closes_our_descriptor_is_cached_for_no_more)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		hugepin_domain *d = open_lru();
		char *p = map(MIB);

		alarm(t_seconds());
		EXPECT(!registered(d, p, 4096));
		if (!hp_uffd_works())
			_exit(t_failures != 0);
		EXPECT_EQ(close(userfaultfd_of_ours()), 0);
		munmap(p, MIB);
		EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		EXPECT(!registered(d, p, 4096)); /* the watcher's own has told */
		EXPECT(!hp_uffd_works());
		EXPECT(!registered(d, p, 4096)); /* uncached from now on */
		EXPECT_EQ(hugepin_domain_close(d), 0);
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

DOMAIN_TEST(what_cannot_be_watched_is_not_cached_under_the_drop_in_either, open_lru())
{
	char name[] = "/tmp/hugepin-test-XXXXXX", *p;
	int fd = mkstemp(name);

	EXPECT(fd >= 0 && unlink(name) == 0 && ftruncate(fd, (off_t)MIB) == 0);
	p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	hp_sees_unmaps = true;
	EXPECT(!registered(d, p, 4096));
	/* As the C library unmaps a shared object: nobody calls hugepin_unmapping_(). */
	EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == p);
	EXPECT(!hp_uffd_works() || !registered(d, p, 4096));
	hp_sees_unmaps = false;
	munmap(p, MIB);
	close(fd);
}

static _Atomic bool sleeping;

static void *sleep_on(void *unused)
{
	while (sleeping)
		usleep(1000);
	return unused;
}

TEST(memory_that_is_gone_is_deregistered_without_another_pin)
{
	hugepin_domain *d;
	char *p = map(MIB);
	pthread_t t;

	/* In a program of one thread, its next pin does it. */
	sleeping = true;
	pthread_create(&t, NULL, sleep_on, NULL);
	d = open_lru();

	if (!hp_uffd_works()) {
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("no userfaultfd");
	}
	hp_domains_start(); /* as in a program of several threads, from the start */
	EXPECT_EQ(touch(d, p, MIB), 0);
	munmap(p, MIB);
	for (int i = 0; i < 20000 && stats_of(d).regions; i++)
		usleep(1000);
	EXPECT_EQ(stats_of(d).regions, 0);
	sleeping = false;
	pthread_join(t, NULL);
	close_empty(&device, d);
}

static sem_t has_lock, may_unlock;

static void *keep_lock(void *d)
{
	hp_lock(&((hugepin_domain *)d)->lock);
	sem_post(&has_lock);
	sem_wait(&may_unlock);
	hp_unlock(&((hugepin_domain *)d)->lock);
	return NULL;
}

PIN_TEST(what_is_forgotten_while_the_lock_is_kept_is_left_to_the_service_thread, open_lru(), MIB)
{
	pthread_t t;

	hp_domains_start();
	EXPECT_EQ(touch(d, p, 4096), 0);
	sem_init(&has_lock, 0, 0);
	sem_init(&may_unlock, 0, 0);
	EXPECT_EQ(pthread_create(&t, NULL, keep_lock, d), 0);
	sem_wait(&has_lock);
	EXPECT_EQ(hugepin_forget(p, 4096), 0);
	sem_post(&may_unlock);
	pthread_join(t, NULL);
	for (int i = 0; i < 20000 && stats_of(d).regions; i++)
		usleep(1000);
	EXPECT_EQ(stats_of(d).regions, 0);
}

static void take_pin(void *arg, int err, const struct hugepin_pin *pin)
{
	struct hugepin_pin mine;

	if (EXPECT_EQ(err, 0)) {
		mine = *pin;
		EXPECT_EQ(hugepin_unpin(arg, &mine), 0);
	}
}

TEST(a_try_that_fails_leaves_the_pin_alone)
{
	struct hugepin_pin pin = { .base = 7, .ref = 77 }, before = pin;
	hugepin_domain *d;
	char *p = map(MIB);
	pthread_t t;

	sleeping = true; /* with a second thread, hits ask the kernel */
	pthread_create(&t, NULL, sleep_on, NULL);
	d = open_lru();
	EXPECT_EQ(touch(d, p, MIB), 0);
	changing = hp_uffd_works();
	if (changing) {
		EXPECT_EQ(hugepin_pin_try(d, p, 4096, 0, take_pin, d, &pin), -EAGAIN);
		EXPECT_EQ(memcmp(&pin, &before, sizeof pin), 0);
	}
	changing = false;
	while (hp_request_count(d))
		usleep(1000);
	sleeping = false;
	pthread_join(t, NULL);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ the lock of the queues */

static void push_hint(hugepin_domain *d)
{
	EXPECT_EQ(hp_hints_push(d, (struct hp_prefetch){ .addr = d, .len = 1, .missed = true }), 0);
}

static void overtake_hint(hugepin_domain *d)
{
	hp_hints_overtake(d, d, 1, 0);
}

static void take_hint(hugepin_domain *d)
{
	struct hp_prefetch hint;

	hp_hints_take(d, &hint);
}

static void add_request(hugepin_domain *d)
{
	EXPECT_EQ(hp_request_add(d, &(struct hp_pin_request){ .addr = d, .len = 1 }), 0);
}

static void count_requests(hugepin_domain *d)
{
	hp_request_count(d);
}

static void begin_request(hugepin_domain *d)
{
	struct hp_pin_request q;

	EXPECT(hp_request_begin(d, &q));
}

static void end_request(hugepin_domain *d)
{
	hp_request_end(d);
}

static void tell_unmap(hugepin_domain *d)
{
	hp_gone_tell(d, &(struct hp_range){ .start = 4096, .end = 8192 });
}

static void drain(hugepin_domain *d)
{
	hp_domain_lock(d);
	hp_gone_drain(d);
	hp_domain_unlock(d);
}

/* A thread that waits for the queue's lock, and one that watches it. */
struct waiting {
	hugepin_domain *d;
	pid_t thread;
	_Atomic bool held;
	uint64_t blocked; /* the signals that the waiting thread has blocked */
};

/* Have the lock until the thread sleeps for it. */
static void *look_at_waiter(void *waiting)
{
	struct waiting *w = waiting;
	char path[64], text[4096], *state = NULL;

	snprintf(path, sizeof path, "/proc/self/task/%d/status", w->thread);
	hp_lock(&w->d->queue_lock);
	w->held = true;
	while (w->d->queue_lock.word != 2 || !state || strncmp(state, "State:\tS", 8) != 0) {
		FILE *f = fopen(path, "r");
		size_t n = fread(text, 1, sizeof text - 1, f);

		fclose(f);
		text[n] = '\0';
		state = strstr(text, "State:");
	}
	w->blocked = strtoull(strstr(text, "SigBlk:") + 7, NULL, 16);
	hp_unlock(&w->d->queue_lock);
	return NULL;
}

DOMAIN_TEST(no_handler_interrupts_a_thread_that_has_the_lock_of_queues, open_lru())
{
	static void (*const calls[])(hugepin_domain *) = { push_hint,	  overtake_hint, take_hint,
							   add_request,	  count_requests, begin_request,
							   end_request,	  tell_unmap,	 drain };

	T_THREADS_RUN(1);
	EXPECT(hp_domains_start_closing(d)); /* the service thread passes the domain over */
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		struct waiting w = { .d = d, .thread = gettid() };
		pthread_t t;

		pthread_create(&t, NULL, look_at_waiter, &w);
		while (!w.held)
			sched_yield();
		calls[i](d);
		pthread_join(t, NULL);
		if (!EXPECT(w.blocked & 1u << (SIGUSR1 - 1)))
			t_print("# call %zu\n", i);
	}
	hp_domains_end_closing(d);
}

/* ------------------------------------------------------------------ the queue of ranges */

static void queue(char *p, size_t len, bool discarded)
{
	hp_gone_tell_all(&(struct hp_range){ .start = (uintptr_t)p, .end = (uintptr_t)p + len, .discarded = discarded });
}

static bool drained_as_discarded(hugepin_domain *d, char *p)
{
	hp_domain_lock(d);
	hp_gone_drain(d);
	bool is = hp_gone_discarded((uintptr_t)p, (uintptr_t)p + 2 * MIB);
	hp_domain_unlock(d);
	return is;
}

DOMAIN_TEST(a_hugepage_is_discarded_until_all_of_it_was_unmapped_since, open_lru())
{
	char *p = hugepin_aligned_alloc(2 * MIB, 512 * MIB);

	/* Queued all at a time: the service thread does not have the lock in between. */
	hp_domain_lock(d);
	queue(p, 2 * MIB, true);
	queue(p, 2 * MIB, false);
	queue(p, 2 * MIB, true); /* part of the first */
	hp_domain_unlock(d);
	EXPECT(drained_as_discarded(d, p));
	queue(p + MIB, 4096, false);
	EXPECT(drained_as_discarded(d, p));
	/* So many that one is widened over p. */
	hp_domain_lock(d);
	for (size_t i = 100; i < 100 + HP_GONE_MAX; i++)
		queue(p + 2 * i * MIB, 2 * MIB, false);
	queue(p - 2 * MIB, 2 * MIB, false);
	hp_domain_unlock(d);
	EXPECT(drained_as_discarded(d, p));
	queue(p - 2 * MIB, 6 * MIB, false);
	EXPECT(!drained_as_discarded(d, p));
	hugepin_free(p);
}

/* The kernel tells of a discarded range before the pages go, and not when the pages have gone. */
TEST(foreign_memory_that_was_discarded_is_registered_for_each_pin_until_it_is_unmapped)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);
	long calls;

	if (!hp_uffd_works()) {
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("no userfaultfd");
	}
	EXPECT_EQ(touch(d, p, 8192), 0);
	EXPECT_EQ(touch(d, p + MIB / 2, 4096), 0);
	madvise(p, 4096, MADV_DONTNEED);
	calls = device.calls;
	EXPECT_EQ(touch(d, p, 4096) || touch(d, p, 8192) || touch(d, p, 4096), 0);
	EXPECT_EQ(device.calls - calls, 3);
	EXPECT_EQ(touch(d, p + 4096, 4096) || touch(d, p + MIB / 2, 4096), 0); /* registered anew, and as it was */
	calls = device.calls;
	EXPECT_EQ(touch(d, p + 4096, 4096) || touch(d, p + MIB / 2, 4096), 0);
	EXPECT_EQ(device.calls, calls);
	EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	EXPECT_EQ(touch(d, p, 8192), 0);
	calls = device.calls;
	EXPECT_EQ(touch(d, p, 8192), 0);
	EXPECT_EQ(device.calls, calls);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* Registers for each of three pins, or once. */
static bool is_cached(hugepin_domain *d, const char *p, size_t len)
{
	long calls;

	EXPECT_EQ(touch(d, p, len), 0);
	calls = device.calls;
	EXPECT_EQ(touch(d, p, len) || touch(d, p, len), 0);
	return device.calls == calls;
}

static void discard(const char *p, size_t len)
{
	hp_gone_tell_all(&(struct hp_range){
		.start = (uintptr_t)p, .end = (uintptr_t)p + len, .discarded = true, .late = true });
}

PIN_TEST(memory_that_is_unmapped_after_its_discard_is_cached_again, open_lru(), MIB)
{
	/* Each as one batch. */
	for (int order = 0; order < 2; order++) {
		hp_domain_lock(d);
		if (order)
			queue(p, MIB, false);
		discard(p, MIB);
		if (!order)
			queue(p, MIB, false);
		hp_domain_unlock(d);
		EXPECT_EQ(is_cached(d, p, MIB), !order);
	}
	/* The middle of a discarded range, in a batch and later. */
	queue(p + 4096, 4096, false);
	EXPECT(is_cached(d, p + 4096, 4096));
	EXPECT(!is_cached(d, p, 4096) && !is_cached(d, p + 8192, 4096));
	hp_domain_lock(d);
	discard(p, MIB);
	queue(p + 4096, 4096, false);
	hp_domain_unlock(d);
	EXPECT(is_cached(d, p + 4096, 4096));
	EXPECT(!is_cached(d, p, 4096) && !is_cached(d, p + 8192, 4096));
}

PIN_TEST(of_many_discarded_ranges_none_reaches_into_another, open_lru(), 4 * MIB)
{
	enum { RANGES = 4 * HP_GONE_MAX };

	for (size_t i = 0; i < RANGES; i++) {
		discard(p + i * 16384, 4096);
		drain(d);
	}
	for (size_t i = 0; i < RANGES; i += 7)
		EXPECT(!is_cached(d, p + i * 16384, 4096) && is_cached(d, p + i * 16384 + 8192, 4096));
}

/* On a busy machine a pin may be registered for itself alone, since its memory could not be watched in time. */
static bool is_cached_in_the_end(hugepin_domain *d, const char *p, size_t len)
{
	for (int i = 0; i < 1000; i++)
		if (is_cached(d, p, len))
			return true;
	return false;
}

/* The unmap of a batch of many is widened, so nobody knows that the memory is another's now. */
TEST(memory_that_is_taken_for_discarded_is_watched_until_it_is_unmapped)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	hugepin_domain *d = open_lru();
	bool cached = true;
	char *p = map(MIB);

	if (!hp_uffd_works()) {
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("no userfaultfd");
	}
	/* Until the service thread notes no part of the batch. */
	for (int i = 0; i < 1000 && cached; i++) {
		EXPECT(is_cached_in_the_end(d, p, MIB));
		madvise(p, MIB, MADV_DONTNEED);
		EXPECT(!is_cached(d, p, MIB));
		hp_domain_lock(d);
		for (uintptr_t page = 1; page <= HP_GONE_MAX; page++)
			queue((char *)(page * 8192), 4096, false);
		EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, flags, -1, 0) == p);
		hp_domain_unlock(d);
		cached = is_cached(d, p, MIB);
	}
	EXPECT(!cached); /* the memory might be what was discarded */
	EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, flags, -1, 0) == p);
	EXPECT(is_cached_in_the_end(d, p, MIB));
	munmap(p, MIB);
	close_empty(&device, d);
}

/* The registration ends before a pin finds the memory discarded. */
TEST(memory_whose_discard_was_heard_is_watched_until_it_is_unmapped)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);

	if (!hp_uffd_works()) {
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("no userfaultfd");
	}
	EXPECT(is_cached_in_the_end(d, p, MIB));
	madvise(p, MIB, MADV_DONTNEED);
	for (int i = 0; i < 20000 && stats_of(d).regions; i++) {
		hugepin_purge();
		usleep(1000);
	}
	EXPECT_EQ(stats_of(d).regions, 0);
	EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	EXPECT(is_cached_in_the_end(d, p, MIB));
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(a_full_set_of_late_discards_forgets_none_and_shrinks)
{
	enum { RANGES = HP_LATE_MAX + 100 };
	struct hp_ranges late = { .count = 0 };

	EXPECT(hp_ranges_reserve(&late));
	for (uintptr_t i = RANGES; i; i--)
		hp_gone_late_on(&late, i * 16, i * 16 + 4);
	EXPECT_EQ(late.count, HP_LATE_MAX);
	for (uintptr_t i = 1; i <= RANGES; i++) {
		const struct hp_stretch *r = hp_ranges_next(&late, i * 16);

		EXPECT(r && r->start <= i * 16 && r->end >= i * 16 + 4);
	}
	EXPECT(late.at[0].start == 16 && late.at[late.count - 1].end == RANGES * 16 + 4);
	/* No room for two parts in the place of one. */
	hp_gone_late_off(&late, (uintptr_t)RANGES * 16 + 1, (uintptr_t)RANGES * 16 + 2);
	EXPECT_EQ(late.count, HP_LATE_MAX);
	EXPECT(hp_ranges_next(&late, (uintptr_t)RANGES * 16)->end == RANGES * 16 + 4);
	/* A part at either end needs none. */
	hp_gone_late_off(&late, 16, 17);
	EXPECT_EQ(late.at[0].start, 17);
	const uintptr_t end = late.at[0].end;
	hp_gone_late_off(&late, end - 1, end);
	EXPECT_EQ(late.at[0].end, end - 1);
	hp_gone_late_off(&late, 0, (uintptr_t)RANGES * 16);
	EXPECT_EQ(late.count, 1);
	hp_gone_late_off(&late, (uintptr_t)RANGES * 16 + 1, (uintptr_t)RANGES * 16 + 2);
	EXPECT_EQ(late.count, 2);
	hp_gone_late_off(&late, 0, UINTPTR_MAX);
	EXPECT_EQ(late.count, 0);
	hp_meta_unmap(late.at, late.max * sizeof *late.at);
}

TEST(a_full_queue_of_ranges_forgets_none)
{
	struct hp_gone g = { .count = 0 };

	for (uintptr_t i = 0; i < 4 * HP_GONE_MAX; i++)
		hp_gone_push(&g, (struct hp_range){ .start = 0x10000 * (2 * i + 1),
						       .end = 0x10000 * (2 * i + 2),
						       .discarded = i % 3 == 0 });
	EXPECT_EQ(g.count, HP_GONE_MAX);
	for (uintptr_t i = 0; i < 4 * HP_GONE_MAX; i++) {
		bool covered = false;

		for (unsigned j = 0; j < g.count; j++)
			covered |= g.range[j].start <= 0x10000 * (2 * i + 1) &&
				   g.range[j].end >= 0x10000 * (2 * i + 2) &&
				   g.range[j].discarded >= (i % 3 == 0);
		EXPECT(covered);
	}
	for (unsigned j = 0; j < g.count; j++)
		EXPECT(g.range[j].start > 0x8000); /* nothing below the first */
}

TEST(what_was_discarded_is_forgotten_when_no_domain_is_open)
{
	const struct hugepin_attr attr = { .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM };
	hugepin_domain *d, *next;
	char *p = map(4096);

	device_reset(&device);
	d = device_open(&device, (struct hugepin_limits){ 0 }, attr);
	discard(p, 4096);
	hp_gone_heed();
	EXPECT(hp_gone_late((uintptr_t)p, (uintptr_t)p + 4096));
	close_empty(&device, d);
	next = device_open(&device, (struct hugepin_limits){ 0 }, attr);
	EXPECT(next == d);
	EXPECT(!hp_gone_late((uintptr_t)p, (uintptr_t)p + 4096));
	close_empty(&device, next);
	munmap(p, 4096);
}

T_MAIN
