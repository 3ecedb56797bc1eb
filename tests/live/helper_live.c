/* link: hugepin uring */
/* The helper under real conditions: its own thread, the real clock, memory that is really locked. */
#include <hugepin_uring.h>

#include "live.h"

#include <liburing.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "tests/ring.h"

/* Whether a child of a process with threads can be tested. The thread sanitizer allows no threads in it. The address
 * sanitizer leaves its own allocator's locks taken in it, so that new threads wait for ever. */
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define CHILD_MAY_HAVE_THREADS false
#else
#define CHILD_MAY_HAVE_THREADS true
#endif
/* The number of buffers that are mapped and unmapped. Each unmap waits for the watcher. */
#ifdef __SANITIZE_THREAD__
enum { COME_AND_GO = 3000 };
#else
enum { COME_AND_GO = 30000 };
#endif

enum { BUFFERS = 4 };
#define LEN ((size_t)64 * KIB)

static char *map(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return EXPECT(p != MAP_FAILED) ? p : NULL;
}

static hugepin_domain *open_with(uint32_t policy, uint64_t bytes_max)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy, .pinned_bytes_max = bytes_max };
	hugepin_domain *d = NULL;

	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, &attr, &d), 0);
	return d;
}

/* A domain's statistics, after a check that no number has fallen below zero. */
static struct hugepin_domain_stats stats_of(hugepin_domain *d)
{
	struct hugepin_domain_stats s;

	EXPECT_EQ(hugepin_domain_stats(d, &s, sizeof s), sizeof s);
#define CHECK(name, unit, sentence) EXPECT(s.name <= UINT64_MAX / 2);
	HUGEPIN_DOMAIN_STATS_LIST(CHECK)
#undef CHECK
	return s;
}

static uint64_t wakeups(void)
{
	struct hugepin_stats s;

	hugepin_stats(&s, sizeof s);
	return s.service_wakeups;
}

static bool use(hugepin_domain *d, char *p, size_t len, long ms)
{
	struct hugepin_pin pin;

	if (!EXPECT_EQ(hugepin_pin(d, p, len, 0, &pin), 0))
		return false;
	__atomic_fetch_add(p, 1, __ATOMIC_RELAXED); /* atomic, since other threads may write there, too */
	sleep_ms(ms);
	return EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

/* Pin and unpin the buffers one after the other, for a number of rounds. */
static void go_round(hugepin_domain *d, char **buffer, int rounds, long ms)
{
	for (int i = 0; i < rounds; i++)
		for (int b = 0; b < BUFFERS; b++) {
			use(d, buffer[b], LEN, 0);
			sleep_ms(ms);
		}
}

static void map_all(char **buffer)
{
	for (int b = 0; b < BUFFERS; b++)
		buffer[b] = map(LEN);
}

static void unmap_all(char **buffer)
{
	for (int b = 0; b < BUFFERS; b++)
		munmap(buffer[b], LEN);
}

/* Whether the helper serves this domain. The scheduler decides how many records it takes before the ring is full, but
 * it must take some. */
static bool is_served(hugepin_domain *d, char **buffer)
{
	uint64_t before = stats_of(d).helper_ns;

	for (unsigned tries = 0; tries < 50 * t_seconds() && stats_of(d).helper_ns == before; tries++) {
		use(d, buffer[tries % BUFFERS], LEN, 0);
		sleep_ms(10);
	}
	return stats_of(d).helper_ns > before;
}

/* Whether the helper gives buffers back and registers them again in time, in a new domain. */
static bool has_again(uint32_t policy, long ms)
{
	hugepin_domain *d = open_with(policy, UINT64_MAX);
	struct hugepin_domain_stats s = { 0 };
	char *buffer[BUFFERS];

	map_all(buffer);
	for (int i = 0; i < 12 && !s.repinned; i++) {
		go_round(d, buffer, 2, ms);
		s = stats_of(d);
	}
	t_print("# policy %u, %ld ms: released %lu, repinned %lu, late %lu, lost %lu, helper %lu us\n", policy, ms,
		(unsigned long)s.released, (unsigned long)s.repinned, (unsigned long)s.late,
		(unsigned long)s.records_lost, (unsigned long)s.helper_ns / 1000);
	EXPECT(s.sharers > 0);
	EXPECT(s.released >= s.repinned);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	unmap_all(buffer);
	return s.repinned > 0;
}

/* If many threads want the processor, the helper is late and the uses come irregularly. Then it gives back only regions
 * whose next use is far away. So the pauses get longer until it works, each in a new domain, which has learnt nothing. */
TEST(what_comes_round_is_given_back_and_had_again)
{
	for (uint32_t policy = HUGEPIN_POLICY_CF11; policy <= HUGEPIN_POLICY_PREDICT; policy++) {
		bool has = false;

		for (long ms = 5; ms < 1300 && !has; ms *= 3)
			has = has_again(policy, ms);
		EXPECT(has);
	}
}

/* Whether at some time no thread wakes for `while_ms`. Before that the helper does the work that is due, and after a
 * long time gives back regions for good. */
static bool comes_to_rest(int while_ms)
{
	for (unsigned waited_ms = 0; waited_ms < 500 * t_seconds(); waited_ms += (unsigned)while_ms) {
		uint64_t before = wakeups();

		sleep_ms(while_ms);
		if (wakeups() == before)
			return true;
	}
	return false;
}

TEST(at_rest_the_helper_does_not_wake)
{
	hugepin_domain *d[2];
	char *buffer[BUFFERS];

	map_all(buffer);
	for (int i = 0; i < 2; i++)
		d[i] = open_with(i ? HUGEPIN_POLICY_PREDICT : HUGEPIN_POLICY_CF11, UINT64_MAX);
	for (int i = 0; i < 2; i++)
		go_round(d[i], buffer, 30, 3);
	for (int i = 0; i < 30000; i++) /* so many pins that some records are lost */
		use(d[i & 1], buffer[i % BUFFERS], LEN, 0);
	EXPECT(comes_to_rest(2000));
	for (int i = 0; i < 2; i++) {
		stats_of(d[i]);
		EXPECT_EQ(hugepin_domain_close(d[i]), 0);
	}
	EXPECT(comes_to_rest(300));
	unmap_all(buffer);
}

/* ------------------------------------------------------------------ threads, forks, domains that come and go */

static _Atomic bool stop;

struct worker {
	pthread_t thread;
	hugepin_domain *d;
	char **buffer;
	_Atomic uint64_t pins;
};

static void *work(void *worker)
{
	struct worker *w = worker;
	unsigned long x = (unsigned long)(uintptr_t)w;

	while (!stop) {
		struct hugepin_pin pin;
		char *p = w->buffer[(x = x * 6364136223846793005 + 1442695040888963407) >> 33 & (BUFFERS - 1)];

		if (!EXPECT_EQ(hugepin_pin(w->d, p, LEN, 0, &pin), 0))
			break;
		if (!(x >> 40 & 63))
			sleep_ms(1);
		EXPECT_EQ(hugepin_unpin(w->d, &pin), 0);
		w->pins++;
	}
	return NULL;
}

static int child_works(hugepin_domain *parents, char **buffer)
{
	struct hugepin_pin pin;
	hugepin_domain *d;

	if (hugepin_pin(parents, buffer[0], LEN, 0, &pin) != -ESTALE || hugepin_domain_close(parents) != 0)
		return 2;
	t_failures = 0;
	d = open_with(HUGEPIN_POLICY_PREDICT, UINT64_MAX);
	if (!d)
		return 3;
	if (!is_served(d, buffer))
		return 4;
	return hugepin_domain_close(d) || t_failures ? 5 : 0;
}

TEST(parent_and_child_go_on_after_a_fork_at_any_moment)
{
	struct worker w[3];
	char *buffer[BUFFERS];
	hugepin_domain *d = open_with(HUGEPIN_POLICY_PREDICT, UINT64_MAX);

	map_all(buffer);
	stop = false;
	for (int i = 0; i < 3; i++) {
		w[i] = (struct worker){ .d = d, .buffer = buffer };
		pthread_create(&w[i].thread, NULL, work, &w[i]);
	}
	for (int i = 0; i < 40; i++) {
		int status = -1;
		pid_t pid;

		use(d, buffer[i % BUFFERS], LEN, 0);
		pid = fork();
		if (pid == 0) {
			alarm(t_seconds());
			_exit(i % 16 || !CHILD_MAY_HAVE_THREADS ? 0 : child_works(d, buffer));
		}
		waitpid(pid, &status, 0);
		EXPECT_EQ(status, 0);
	}
	for (int i = 0; i < 3; i++) /* a thread may not have run yet */
		while (!w[i].pins && !t_failures)
			sleep_ms(1);
	stop = true;
	for (int i = 0; i < 3; i++)
		pthread_join(w[i].thread, NULL);
	/* If no core is idle, the helper has used up its time on the threads' records, and gives nothing back for
	 * long. */
	EXPECT(is_served(d, buffer));
	EXPECT_EQ(hugepin_domain_close(d), 0);
	unmap_all(buffer);
}

static _Atomic int handled;

static void fork_here(int signal)
{
	int saved = errno, status = 0;
	pid_t pid = (pid_t)syscall(SYS_getpid);

	(void)signal;
	pid = fork();
	if (pid == 0)
		_exit(0);
	if (pid > 0)
		waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	handled++;
	errno = saved;
}

TEST(so_does_the_parent_of_a_fork_in_a_signal_handler)
{
	struct itimerval every = { { 0, 7000 }, { 0, 7000 } }, never = { 0 };
	struct sigaction act = { .sa_handler = fork_here, .sa_flags = SA_RESTART }, old;
	hugepin_domain *d = open_with(HUGEPIN_POLICY_PREDICT, 2 * LEN);
	char *buffer[BUFFERS];

	map_all(buffer);
	handled = 0;
	sigaction(SIGPROF, &act, &old);
	setitimer(ITIMER_PROF, &every, NULL);
	for (int i = 0; handled < 40; i++)
		use(d, buffer[i % BUFFERS], LEN, 0);
	setitimer(ITIMER_PROF, &never, NULL);
	sigaction(SIGPROF, &old, NULL);
	go_round(d, buffer, 4, 1);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	unmap_all(buffer);
}

static void *open_and_close(void *buffer)
{
	while (!stop) {
		hugepin_domain *d = open_with(HUGEPIN_POLICY_CF11 + (uint32_t)rand() % 2, 0);

		for (int i = 0; i < 20; i++)
			use(d, ((char **)buffer)[i % BUFFERS], LEN, 0);
		EXPECT_EQ(hugepin_domain_close(d), 0);
	}
	return NULL;
}

TEST(domains_come_and_go_while_others_are_used)
{
	static const uint32_t policies[] = { HUGEPIN_POLICY_PREDICT, HUGEPIN_POLICY_CF11, HUGEPIN_POLICY_LRU };
	struct worker w[3];
	char *buffer[BUFFERS];
	pthread_t opener[2];

	map_all(buffer);
	stop = false;
	for (int i = 0; i < 3; i++) {
		w[i] = (struct worker){ .d = open_with(policies[i], i == 0 ? 3 * LEN : 0), .buffer = buffer };
		pthread_create(&w[i].thread, NULL, work, &w[i]);
	}
	for (int i = 0; i < 2; i++)
		pthread_create(&opener[i], NULL, open_and_close, buffer);
	sleep_ms(1500);
	stop = true;
	for (int i = 0; i < 2; i++)
		pthread_join(opener[i], NULL);
	for (int i = 0; i < 3; i++) {
		pthread_join(w[i].thread, NULL);
		stats_of(w[i].d);
		EXPECT_EQ(hugepin_domain_close(w[i].d), 0);
	}
	unmap_all(buffer);
}

/* More than records have counters of losses. */
TEST(many_domains_may_have_one)
{
	enum { MANY = 80 };
	hugepin_domain *d[MANY];
	char *buffer[BUFFERS];
	int n = 0;

	map_all(buffer);
	for (; n < MANY; n++)
		d[n] = open_with(n & 1 ? HUGEPIN_POLICY_PREDICT : HUGEPIN_POLICY_CF11, UINT64_MAX);
	for (int round = 0; round < 40; round++) {
		for (int i = 0; i < n; i++)
			use(d[i], buffer[i % BUFFERS], LEN, 0);
		sleep_ms(10);
	}
	for (int i = 0; i < n; i++) {
		EXPECT(is_served(d[i], buffer));
		EXPECT_EQ(hugepin_domain_close(d[i]), 0);
	}
	unmap_all(buffer);
}

static long rss_kib(void)
{
	return status_number("VmRSS:");
}

TEST(memory_that_comes_and_goes_leaves_nothing_behind)
{
	hugepin_domain *d = open_with(HUGEPIN_POLICY_PREDICT, UINT64_MAX);
	long before = 0;

	for (int i = 0; i < COME_AND_GO; i++) {
		char *p = map(4096 * (1 + (size_t)i % 7));

		if (i == COME_AND_GO / 3)
			before = rss_kib();
		if (!p || !use(d, p, 4096, 0))
			break;
		munmap(p, 4096 * (1 + (size_t)i % 7));
	}
	t_print("# resident: %ld KiB, then %ld KiB\n", before, rss_kib());
	EXPECT(rss_kib() - before < 8192);
	for (int tries = 0; tries < 2000 && stats_of(d).pinned_bytes >= MIB; tries++)
		sleep_ms(10); /* give the watcher time to handle the kernel's events */
	EXPECT(stats_of(d).pinned_bytes < MIB);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

/* ------------------------------------------------------------------ io_uring */

TEST(the_kernel_finds_each_key_good_that_is_pinned)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_PREDICT, .pinned_bytes_max = 3 * LEN };
	struct io_uring ring;
	hugepin_domain *d;
	char *buffer[BUFFERS];
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	if (io_uring_queue_init(8, &ring, 0) < 0)
		SKIP("no io_uring");
	map_all(buffer);
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 8, &attr, &d), 0);
	for (int i = 0; i < 600; i++) {
		struct hugepin_pin pin;
		char *p = buffer[i % BUFFERS];

		if (!EXPECT_EQ(hugepin_pin(d, p, LEN, 0, &pin), 0))
			break;
		sleep_ms(i % 50 == 0);
		memset(p, 0, 16);
		io_uring_prep_read_fixed(io_uring_get_sqe(&ring), fd, p, (unsigned)LEN, 0, (int)pin.lkey);
		EXPECT_EQ(io_uring_submit(&ring), 1);
		EXPECT_EQ(ring_result(&ring), LEN);
		EXPECT_EQ(memcmp(p, "\177ELF", 4), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		sleep_ms(2);
	}
	EXPECT(stats_of(d).pinned_peak_bytes <= 3 * LEN);
	t_print("# repinned %lu, late %lu, evicted %lu\n", (unsigned long)stats_of(d).repinned,
		(unsigned long)stats_of(d).late, (unsigned long)stats_of(d).evicted);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	io_uring_queue_exit(&ring);
	close(fd);
	unmap_all(buffer);
}

/* ------------------------------------------------------------------ small stacks */

static void *use_some(void *d)
{
	char *buffer[BUFFERS];

	map_all(buffer);
	for (int b = 0; b < BUFFERS; b++) /* each pin is a miss, which finds records to tell */
		for (int i = 0; i < 200; i++)
			use(d, buffer[b], LEN, 0);
	unmap_all(buffer);
	return NULL;
}

TEST(a_thread_with_a_small_stack_may_pin)
{
	size_t size = 24 * KIB, below = 64 * KIB;
	hugepin_domain *d = open_with(HUGEPIN_POLICY_PREDICT, UINT64_MAX);
	char *stack = map(below + size);
	pthread_attr_t attr;
	pthread_t thread;

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
	SKIP("sanitizers need larger ones");
#endif
	mprotect(stack, below, PROT_NONE);
	pthread_attr_init(&attr);
	pthread_attr_setstack(&attr, stack + below, size);
	if (!EXPECT_EQ(pthread_create(&thread, &attr, use_some, d), 0))
		return;
	pthread_join(thread, NULL);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(stack, below + size);
}

/* Run with a helper for every process, and apart from other helpers on the machine. */
int main(int argc, char **argv)
{
	if (!getenv("HUGEPIN_HELPER")) {
		setenv("HUGEPIN_HELPER", "aggressive", 1);
		shm_unshare();
		execv("/proc/self/exe", argv);
	}
	return t_run(argc, argv);
}
