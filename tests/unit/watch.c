/*
 * What the kernel is asked of memory that changes, and when: a kernel whose answers are the test's, and which counts the
 * questions.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/single_threaded.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/config.h"
#include "base/thread.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/uffd.h"
#include "tests/device.h"
#include "tests/t.h"
#include "tests/unit/kernel.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static struct device device;
static _Atomic long questions, opened, lists; /* lists: reads of the list of mappings */
static _Atomic int answer; /* errno of the next questions; 0: the kernel's */
static _Atomic long answers_left; /* of those; then the kernel's */
static bool is_flag; /* before Linux 5.15 the count falls to 0 with the first event that is read */
static bool no_query; /* before 6.11 the kernel does not tell of one mapping */
static _Atomic bool lowered;
static int opener; /* the thread whose calls are counted; 0: none are */
static long calls, refused; /* those; which one the kernel refuses, but what ends something; 0: none */
static uint64_t fake_ns; /* a clock that goes on with each question */
static long yields; /* of that thread */
static hugepin_domain *seen_reading; /* whose attention is looked at when events are read */
static _Atomic int reads, busy_reads;
static _Atomic bool hold_reader; /* after it has read */

static struct uffdio_range added[64]; /* to what is watched */
static unsigned adds;
static uint64_t add_max = UINT64_MAX; /* the kernel refuses to watch more bytes at once */

/* Of the thread that opens. Whether the kernel refuses that. */
UNINSTRUMENTED static bool is_refused(long nr)
{
	if (!opener || nr == SYS_close || nr == SYS_munmap || nr == SYS_futex || nr == SYS_exit || nr == SYS_gettid ||
	    raw(SYS_gettid, 0, 0, 0, 0, 0, 0) != opener)
		return false;
	return ++calls == refused;
}

UNINSTRUMENTED int sched_yield(void)
{
	yields += raw(SYS_gettid, 0, 0, 0, 0, 0, 0) == opener;
	return (int)raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
}

/* Of other threads of ours too, which have no errno of the C library's: kept as is. */
UNINSTRUMENTED __attribute__((no_sanitize("thread"))) static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (nr == SYS_ioctl && (unsigned long)b == UFFDIO_WRITEPROTECT) {
		questions++;
		fake_ns += 50000;
		if (answer && answers_left-- > 0) {
			errno = answer;
			return -1;
		}
		if (is_flag && lowered) {
			errno = EINVAL;
			return -1;
		}
	}
	if (nr == SYS_ioctl && no_query && _IOC_TYPE(b) == 'f') {
		errno = ENOTTY;
		return -1;
	}
	lists += nr == SYS_pread64;
	if (nr == SYS_ioctl && (unsigned long)b == UFFDIO_REGISTER) {
		struct uffdio_range range = ((struct uffdio_register *)c)->range;

		if (range.len > add_max) {
			errno = EBUSY;
			return -1;
		}
		added[adds++ % 64] = range;
	}
	if (nr == SYS_userfaultfd)
		opened++;
	if (is_refused(nr)) {
		errno = EPERM;
		return -1;
	}
	if (nr == SYS_read && seen_reading && (size_t)c >= sizeof(struct uffd_msg)) {
		reads++;
		busy_reads += seen_reading->attention & HP_BUSY ? 1 : 0;
	}
	r = raw(nr, a, b, c, d, e, f);
	if (is_flag && nr == SYS_read && r > 0)
		lowered = true;
	while (nr == SYS_read && hold_reader)
		raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	return result_of(r);
}

static hugepin_domain *open_with(uint32_t watch)
{
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = watch };
	hugepin_domain *d = NULL;

	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	return d;
}

/* Registrations that a pin of one page makes. */
static long made(hugepin_domain *d, char *p)
{
	struct hugepin_pin pin;
	long before = device.calls;

	if (EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0)) {
		EXPECT(device_covers(&device, &pin, HUGEPIN_READ));
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	return device.calls - before;
}

static void answers(int e, long n)
{
	answers_left = n;
	answer = e;
}

/* ------------------------------------------------------------------ several threads, or one */

static _Atomic int sleeping;

static void *sleep_until_told(void *unused)
{
	while (sleeping == 1)
		usleep(1000);
	return unused;
}

static pthread_t second;

static void second_thread(bool there)
{
	if (there) {
		sleeping = 1;
		EXPECT_EQ(pthread_create(&second, NULL, sleep_until_told, NULL), 0);
	} else {
		sleeping = 0;
		pthread_join(second, NULL);
	}
}

static void in_child(void (*run)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		alarm(60);
		run();
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

static void ask_in_threads_only(void)
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

TEST(hits_ask_once_and_only_where_the_program_has_several_threads)
{
	in_child(ask_in_threads_only);
}

static void ask_under_the_drop_in(void)
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

TEST(under_the_drop_in_only_domains_that_want_the_kernel_ask)
{
	in_child(ask_under_the_drop_in);
}

static void ask_once_for_all(void)
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

TEST(several_pieces_are_one_question)
{
	in_child(ask_once_for_all);
}

/* ------------------------------------------------------------------ answers */

static void change_for_long(void)
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
	answers(EAGAIN, 2); /* and then no more */
	EXPECT_EQ(made(d, p), 0);
	EXPECT_EQ(hugepin_sg_key(d, p, 1, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	second_thread(false);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(what_changes_for_long_is_registered_for_each_pin)
{
	in_child(change_for_long);
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

static void be_an_old_kernel(void)
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

TEST(a_kernel_that_does_not_count_changes_is_not_believed)
{
	in_child(be_an_old_kernel);
}

static void end_by_pthread_exit(void)
{
	hp_uffd_open(hp_gone_tell);
	EXPECT(hp_uffd_works());
	EXPECT(__libc_single_threaded);
	if (!t_failures)
		pthread_exit(NULL);
}

TEST(the_watcher_keeps_no_process_from_its_end)
{
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
	SKIP("the sanitizer's watcher is a thread like any other");
#endif
	in_child(end_by_pthread_exit);
}

/* ------------------------------------------------------------------ who watches */

static void watch_by_the_program(void)
{
	hugepin_domain *d = open_with(HUGEPIN_WATCH_PROGRAM), *none;
	char *p = map(MIB);
	char *shared = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	long before;

	second_thread(true);
	EXPECT_EQ(made(d, p) + made(d, shared), 2);
	before = questions;
	EXPECT_EQ(made(d, p) + made(d, shared), 0);
	EXPECT_EQ(questions, before);
	EXPECT_EQ(hugepin_forget(p, 4096), 0);
	EXPECT_EQ(made(d, p), 1);
	none = open_with(HUGEPIN_WATCH_NONE);
	EXPECT_EQ(made(none, p), 1);
	EXPECT_EQ(made(none, p), 1);
	EXPECT_EQ(opened, 0);
	EXPECT(!hp_uffd_works());
	second_thread(false);
}

/* A program that was compiled before the attribute has other things behind its structure. */
static void be_an_old_program(void)
{
	struct hugepin_attr attr = { .size = offsetof(struct hugepin_attr, watch), .policy = HUGEPIN_POLICY_LRU, .watch = 99 };
	hugepin_domain *d = NULL;

	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	EXPECT_EQ(d->watch, HUGEPIN_WATCH_DEFAULT);
	close_empty(&device, d);
}

TEST(a_structure_that_ends_before_the_attribute_is_watched_by_default)
{
	in_child(be_an_old_program);
}

TEST(where_the_program_or_nobody_watches_there_is_no_userfaultfd)
{
	in_child(watch_by_the_program);
}

/* By a userfaultfd of the program's own, elsewhere in a mapping of 4 MiB at p, of which a page is pinned. 0 or errno. */
static int program_watches(char *p)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register r = { { (uintptr_t)p + 2 * MIB, MIB }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), e;

	EXPECT_EQ(ioctl(fd, UFFDIO_API, &api), 0);
	e = ioctl(fd, UFFDIO_REGISTER, &r) == 0 ? 0 : errno;
	close(fd);
	return e;
}

/* What is told of the price of being watched, and of the ways to do without. */
static void watch_costs(void)
{
	static const uint32_t unwatched[] = { HUGEPIN_WATCH_PROGRAM, HUGEPIN_WATCH_NONE };

	for (int i = 0; i < 2; i++) {
		hugepin_domain *d = open_with(unwatched[i]);
		char *p = (char *)mmap(NULL, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) + 16 * MIB;
		const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;

		EXPECT(mmap(p, 4 * MIB, PROT_READ | PROT_WRITE, flags, -1, 0) == p);
		EXPECT_EQ(made(d, p), 1);
		EXPECT_EQ(program_watches(p), 0);
		EXPECT(mmap(p + 4 * MIB, 4 * MIB, PROT_READ | PROT_WRITE, flags, -1, 0) == p + 4 * MIB);
		EXPECT_EQ(hugepin_forget(p, 8 * MIB), 0);
		EXPECT(mremap(p, 8 * MIB, 16 * MIB, MREMAP_MAYMOVE) != MAP_FAILED); /* the two are one mapping */
		close_empty(&device, d);
	}
	hugepin_domain *d = open_with(HUGEPIN_WATCH_DEFAULT);
	char *p = map(4 * MIB);

	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(program_watches(p), EBUSY);
	close_empty(&device, d);
}

TEST(where_the_program_or_nobody_watches_its_mappings_are_as_without_us)
{
	in_child(watch_costs);
}

static void kinds(void)
{
	hugepin_domain *d = open_with(0);
	char *shared = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), *of_file, *p = map(MIB);
	int fd = memfd_create("file", MFD_CLOEXEC);

	EXPECT_EQ(ftruncate(fd, (off_t)MIB), 0);
	of_file = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	EXPECT_EQ(made(d, shared), 1);
	EXPECT_EQ(made(d, shared), 1);
	EXPECT_EQ(made(d, of_file), 1);
	EXPECT_EQ(made(d, of_file), 1);
	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(made(d, p), 0);
	EXPECT(hp_uffd_is_private((uintptr_t)p, (uintptr_t)p + MIB));
	EXPECT(!hp_uffd_is_private((uintptr_t)shared, (uintptr_t)shared + 1));
	EXPECT(!hp_uffd_is_private((uintptr_t)of_file, (uintptr_t)of_file + 1));
	EXPECT(!hp_uffd_is_private(4096, 8192));
	EXPECT(hp_uffd_is_private((uintptr_t)&fd, (uintptr_t)&fd + 1));
	munmap(p, MIB);
	EXPECT_EQ(stats_of(d).uncached, 4);
}

TEST(shared_memory_and_files_are_registered_for_each_pin)
{
	in_child(kinds);
	no_query = true; /* and read of all mappings */
	in_child(kinds);
	no_query = false;
}

static void many_mappings(void)
{
	hugepin_domain *d = open_with(0);
	char *p = mmap(NULL, 4000 * 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (int i = 0; i < 4000; i++)
		EXPECT_EQ(mprotect(p + i * 8192, 4096, PROT_READ | PROT_WRITE), 0);
	for (int i = 0; i < 4000; i += 397) {
		EXPECT_EQ(made(d, p + i * 8192), 1);
		EXPECT_EQ(made(d, p + i * 8192), 0);
	}
	lists = 0;
	EXPECT(!hp_uffd_is_private(4096, 8192)); /* below the first: no more is read */
	EXPECT_EQ(lists, 1);
	lists = 0;
	EXPECT(!hp_uffd_is_private((uintptr_t)-8192, (uintptr_t)-4096)); /* above the last */
	EXPECT(lists > 50);
	lists = 0;
	EXPECT(hp_uffd_is_private((uintptr_t)p, (uintptr_t)p + 1));
	EXPECT(lists > 0);
}

TEST(one_of_many_mappings_is_found)
{
	no_query = true;
	in_child(many_mappings);
	no_query = false;
}

/* ------------------------------------------------------------------ what is kept open */

/* The descriptors of that kind; the number of the last in *ret_. */
static int descriptors(const char *kind, int *ret_)
{
	char path[40], what[80];
	int n = 0;

	for (int fd = 0; fd < 1100; fd++) {
		long len;

		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		len = raw(SYS_readlink, (long)path, (long)what, sizeof what - 1, 0, 0, 0);
		if (len <= 0)
			continue;
		what[len] = '\0';
		if (!strstr(what, kind))
			continue;
		n++;
		*ret_ = fd;
	}
	return n;
}

static void look_at_descriptors(void)
{
	static const rlim_t limits[] = { 1024, 100, 64 };
	struct rlimit limit;
	int fd = -1, status = -1;
	char *p = map(MIB);
	pid_t pid;

	EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limits[which];
	EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	EXPECT_EQ(made(open_with(0), p), 1);
	EXPECT_EQ(descriptors("userfaultfd", &fd), 1);
	EXPECT(fd >= (int)limits[which] * 15 / 16);
	EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	EXPECT(hp_uffd_is_private((uintptr_t)p, (uintptr_t)p + 1));
	EXPECT_EQ(descriptors("/maps", &fd), 1);
	EXPECT(fd >= (int)limits[which] * 15 / 16);
	EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	pid = fork();
	if (pid == 0) {
		EXPECT_EQ(descriptors("userfaultfd", &fd), 0);
		EXPECT_EQ(descriptors("/maps", &fd), 0);
		EXPECT(!hp_uffd_works());
		EXPECT_EQ(made(open_with(0), p), 1); /* with its own */
		EXPECT(hp_uffd_works());
		EXPECT_EQ(descriptors("userfaultfd", &fd), 1);
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

TEST(its_descriptors_are_higher_than_programs_come_by_and_no_childs)
{
	for (which = 0; which < 3; which++)
		in_child(look_at_descriptors);
}

/* Exit status 2: there was no such call. */
static void refuse_one(void)
{
	int fd, before = t_mappings();
	hugepin_domain *d;
	char *p;

	opener = (int)raw(SYS_gettid, 0, 0, 0, 0, 0, 0);
	calls = 0;
	errno = 77;
	hp_uffd_open(hp_gone_tell);
	EXPECT_EQ(errno, 77);
	opener = 0;
	if (!hp_uffd_works()) {
		EXPECT_EQ(descriptors("userfaultfd", &fd), 0);
		/* A thread's stack and its guard stay for the next; what is sealed is split from its neighbours. */
		EXPECT(t_mappings() <= before + 4);
	} else {
		EXPECT_EQ(descriptors("userfaultfd", &fd), 1);
	}
	d = open_with(0); /* and is tried again */
	EXPECT(hp_uffd_works());
	EXPECT_EQ(descriptors("userfaultfd", &fd), 1);
	p = map(MIB);
	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(made(d, p), 0);
	munmap(p, MIB);
	close_empty(&device, d);
	if (calls < refused && !t_failures)
		_exit(2);
}

TEST(whatever_call_the_kernel_refuses_nothing_is_left_and_it_may_be_tried_again)
{
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
	SKIP("the sanitizer maps memory as it goes");
#endif
	int status = 0;

	for (refused = 1; status == 0 && refused < 100; refused++) {
		pid_t pid = fork();

		if (pid == 0) {
			alarm(60);
			t_failures = 0;
			refuse_one();
			_exit(t_failures != 0);
		}
		waitpid(pid, &status, 0);
		if (status != 0 && WEXITSTATUS(status) != 2)
			T_FAIL("call %ld: status %d", refused, status);
	}
	EXPECT(refused > 10);
	refused = 0;
}

static int watcher_tid;

static void find_watcher(struct t_left *unused, int tid)
{
	char path[60], name[32] = "";
	int fd;

	(void)unused;
	snprintf(path, sizeof path, "/proc/self/task/%d/comm", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, name, sizeof name - 1) > 0 && !strcmp(name, "hugepin watch\n"))
		watcher_tid = tid;
	close(fd);
}

static void be_first(void)
{
	hp_uffd_open(hp_gone_tell);
	t_numbers("/proc/self/task", find_watcher, NULL);
	EXPECT(watcher_tid != 0);
	EXPECT_EQ(getpriority(PRIO_PROCESS, (id_t)watcher_tid), -10);
}

TEST(who_unmaps_waits_for_a_thread_that_runs_before_others)
{
	int was = getpriority(PRIO_PROCESS, 0), e = setpriority(PRIO_PROCESS, 0, was - 1);

	if (!HP_THREAD_BARE)
		SKIP("under a sanitizer the thread is as its opener is");
	if (e)
		SKIP("no privilege to run before others");
	setpriority(PRIO_PROCESS, 0, was);
	in_child(be_first);
}

/* ------------------------------------------------------------------ how long is waited */

static uint64_t fake_clock(void)
{
	return fake_ns;
}

/* Questions until it gives up, of which each takes 50 us; after the first 64 it sleeps before the next. */
static long asked_for(uint64_t worth_ns, bool settles)
{
	long before = questions, asked;

	yields = 0;
	EXPECT_EQ(hp_uffd_settle(worth_ns), settles);
	asked = questions - before;
	EXPECT_EQ(yields, HP_MIN(asked - 1, 64));
	return asked;
}

static void be_patient(void)
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

TEST(who_has_waited_in_vain_waits_half_as_long_and_a_millisecond_at_least)
{
	in_child(be_patient);
}

static void *let_reader_go(void *unused)
{
	usleep(30000);
	hold_reader = false;
	return unused;
}

static void wait_for_the_reader(void)
{
	hugepin_domain *d = open_with(0);
	char *p = map(MIB);
	pthread_t other;

	EXPECT_EQ(made(d, p), 1);
	hp_uffd_wait();
	seen_reading = d;
	hold_reader = true;
	munmap(p, MIB); /* returns when that was read */
	EXPECT(d->attention & HP_BUSY);
	EXPECT_EQ(pthread_create(&other, NULL, let_reader_go, NULL), 0);
	hp_uffd_wait();
	EXPECT(!hold_reader);
	EXPECT(!(d->attention & HP_BUSY));
	EXPECT(d->attention & HP_PENDING || stats_of(d).invalidated == 1);
	pthread_join(other, NULL);
	EXPECT(reads > 0);
	EXPECT_EQ(busy_reads, reads);
	seen_reading = NULL;
	close_empty(&device, d);
}

TEST(while_events_are_read_pins_wait_and_see_what_they_say)
{
	in_child(wait_for_the_reader);
}

/* ------------------------------------------------------------------ which memory an event is about */

/* Those pages of p that a pin finds registered no more. */
static uint64_t missed(hugepin_domain *d, char *p, unsigned pages)
{
	uint64_t which_ = 0;

	for (unsigned i = 0; i < pages; i += 2)
		which_ |= (uint64_t)(made(d, p + (size_t)i * 4096) != 0) << i;
	return which_;
}

static void move_and_unmap(void)
{
	enum { PAGES = 40 };
	hugepin_domain *d = open_with(0);
	char *p = map(PAGES * 4096);
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	const uint64_t one = 1;

	EXPECT_EQ(missed(d, p, PAGES), UINT64_C(0x5555555555));
	EXPECT_EQ(missed(d, p, PAGES), 0);
	EXPECT(mremap(p + 3 * 4096, 3 * 4096, 3 * 4096, MREMAP_MAYMOVE | MREMAP_FIXED, p + 19 * 4096) == p + 19 * 4096);
	EXPECT(mmap(p + 3 * 4096, 3 * 4096, PROT_READ | PROT_WRITE, flags, -1, 0) == p + 3 * 4096);
	EXPECT_EQ(missed(d, p, PAGES), one << 4 | one << 20);
	EXPECT_EQ(missed(d, p, PAGES), 0);
	munmap(p + 9 * 4096, 2 * 4096);
	EXPECT(mmap(p + 9 * 4096, 2 * 4096, PROT_READ | PROT_WRITE, flags, -1, 0) == p + 9 * 4096);
	EXPECT_EQ(missed(d, p, PAGES), one << 10);
	EXPECT_EQ(missed(d, p, PAGES), 0);
	EXPECT_EQ(madvise(p + 29 * 4096, 4 * 4096, MADV_DONTNEED), 0);
	EXPECT_EQ(missed(d, p, PAGES), one << 30 | one << 32);
	EXPECT_EQ(missed(d, p, PAGES), one << 30 | one << 32); /* the event came before the pages went */
	munmap(p, PAGES * 4096);
	close_empty(&device, d);
}

TEST(an_event_is_about_the_pages_that_move_go_or_are_discarded)
{
	in_child(move_and_unmap);
}

/* ------------------------------------------------------------------ mappings */

static bool was_added(unsigned nth, const char *start, size_t pages)
{
	return EXPECT_EQ(added[nth].start, (uintptr_t)start) && EXPECT_EQ(added[nth].len, pages * 4096);
}

/* Three mappings of four pages; none beside them. */
static char *three(void)
{
	char *p = (char *)mmap(NULL, 14 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;

	EXPECT_EQ(mprotect(p, 4 * 4096, PROT_READ | PROT_WRITE), 0);
	EXPECT_EQ(mprotect(p + 4 * 4096, 4 * 4096, PROT_READ), 0);
	EXPECT_EQ(mprotect(p + 8 * 4096, 4 * 4096, PROT_READ | PROT_WRITE), 0);
	adds = 0;
	return p;
}

static void watch_mappings(void)
{
	char *p;
	bool tells;

	hp_uffd_open(hp_gone_tell);
	EXPECT(hp_uffd_works());
	p = three();
	errno = 77;
	lists = 0;
	EXPECT(hp_uffd_watch((uintptr_t)p + 2 * 4096, (uintptr_t)p + 9 * 4096));
	tells = !lists; /* the kernel, of one mapping */
	EXPECT_EQ(adds, 3); /* as wholes */
	EXPECT(was_added(0, p, 4) && was_added(1, p + 4 * 4096, 4) && was_added(2, p + 8 * 4096, 4));
	p = three();
	add_max = 3 * 4096; /* what is more is in part another's: the parts */
	EXPECT(hp_uffd_watch((uintptr_t)p + 2 * 4096, (uintptr_t)p + 3 * 4096));
	EXPECT_EQ(adds, 1);
	was_added(0, p + 2 * 4096, 1);
	p = three();
	EXPECT(!hp_uffd_watch((uintptr_t)p + 2 * 4096, (uintptr_t)p + 10 * 4096)); /* not all of it */
	EXPECT_EQ(adds, 1);
	was_added(0, p + 2 * 4096, 2);
	add_max = UINT64_MAX;
	p = three();
	munmap(p + 5 * 4096, 4096);
	EXPECT(!hp_uffd_watch((uintptr_t)p + 4 * 4096, (uintptr_t)p + 10 * 4096)); /* a hole */
	EXPECT_EQ(adds, 1);

	p = three();
	hp_uffd_watch_heap((uintptr_t)p, (uintptr_t)p + 12 * 4096);
	EXPECT_EQ(adds, tells ? 3 : 1);
	was_added(0, p, tells ? 4 : 12);
	p = three();
	munmap(p + 4 * 4096, 4096);
	hp_uffd_watch_heap((uintptr_t)p, (uintptr_t)p + 12 * 4096); /* as far as there is any; all of it where nobody tells */
	EXPECT_EQ(adds, 1);
	was_added(0, p, tells ? 4 : 12);
	p = three();
	add_max = 4096;
	hp_uffd_watch_heap((uintptr_t)p, (uintptr_t)p + 12 * 4096);
	EXPECT_EQ(adds, 0);
	add_max = UINT64_MAX;
	EXPECT_EQ(errno, 77);
}

TEST(mappings_are_watched_as_wholes_and_a_part_where_more_cannot_be)
{
	in_child(watch_mappings);
	no_query = true;
	in_child(watch_mappings);
	no_query = false;
}

static void watch_the_heaps(void)
{
	hugepin_domain *d = open_with(0);
	char *p = hugepin_malloc(MIB);
	struct hugepin_extent x;
	uint64_t end;

	EXPECT(hp_heap_extent(p, &x));
	adds = 0;
	EXPECT_EQ(made(d, p), 1);
	EXPECT(adds >= 1 && adds < 64);
	EXPECT(added[0].start <= (uintptr_t)x.addr);
	end = added[0].start;
	for (unsigned i = 0; i < adds; end = added[i].start + added[i].len, i++)
		EXPECT_EQ(added[i].start, end);
	EXPECT(end >= (uintptr_t)x.addr + x.len);
	close_empty(&device, d);
	hugepin_free(p);
}

TEST(of_the_heap_all_of_the_extent_is_watched)
{
	in_child(watch_the_heaps);
}

static void neighbours(void)
{
	char *p = mmap(NULL, 12 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const uintptr_t at = (uintptr_t)p;

	munmap(p + 4096, 4096); /* a hole */
	EXPECT(mmap(p + 4 * 4096, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + 4 * 4096);
	EXPECT_EQ(mprotect(p + 7 * 4096, 4096, PROT_READ | PROT_WRITE), 0); /* a mapping of its own, private as those beside it */
	for (unsigned from = 0; from < 12; from++)
		for (unsigned to = from + 1; to <= 12; to++) {
			bool is = !(from <= 1 && to > 1) && !(from <= 4 && to > 4);

			EXPECT_EQ(hp_uffd_is_private(at + from * 4096, at + to * 4096), is);
			if (to - from > 1)
				EXPECT_EQ(hp_uffd_is_private(at + from * 4096 + 4095, at + to * 4096 - 4095), is);
		}
	EXPECT(hp_uffd_is_private(at + 4096, at + 4096)); /* nothing */
	errno = 77;
	EXPECT(!hp_uffd_is_private(at + 4096, at + 4097));
	EXPECT_EQ(errno, 77);
}

static void long_names(void)
{
	char name[240], *p = map(4096), *file;
	bool told;
	int fd;

	memset(name, 'n', sizeof name);
	name[sizeof name - 1] = '\0';
	fd = memfd_create(name, MFD_CLOEXEC);
	EXPECT_EQ(ftruncate(fd, 4096), 0);
	file = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	EXPECT(hp_uffd_is_private((uintptr_t)p, (uintptr_t)p + 1));
	told = !lists; /* of one mapping, by the kernel: then of this as well */
	EXPECT(!hp_uffd_is_private((uintptr_t)file, (uintptr_t)file + 1));
	EXPECT_EQ(lists > 0, !told);
	EXPECT(!told || !no_query);
}

/* Longer than what is asked for. */
TEST(a_file_with_a_long_name_is_a_file)
{
	in_child(long_names);
	no_query = true;
	in_child(long_names);
	no_query = false;
}

TEST(a_range_is_private_if_each_of_its_mappings_is)
{
	in_child(neighbours);
	no_query = true;
	in_child(neighbours);
	no_query = false;
}

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)4 << 30;
	hp_config.pages = HP_PAGES_BASE;
	hp_config.decay_ms = 0;
}

T_MAIN
