/*
 * The userfaultfd and its watcher: for which domains there is one, what is kept open, the watcher's thread, and a start
 * that the kernel refuses.
 */
#include <sys/resource.h>
#include <sys/single_threaded.h>

#include "base/thread.h"
#include "reg/gone.h"
#include "tests/unit/uffd.h"

/* ------------------------------------------------------------------ who watches */

/* A program that was compiled before the attribute has other data behind its structure. */
TEST_BY(in_child, a_structure_that_ends_before_the_attribute_is_watched_by_default)
{
	struct hugepin_attr attr = { .size = offsetof(struct hugepin_attr, watch),
				     .policy = HUGEPIN_POLICY_LRU,
				     .watch = 99 };
	hugepin_domain *d = NULL;

	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	EXPECT_EQ(d->watch, HUGEPIN_WATCH_DEFAULT);
	close_empty(&device, d);
}

TEST_BY(in_child, where_the_program_or_nobody_watches_there_is_no_userfaultfd)
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

/* The program registers a part of a mapping of 4 MiB at p with a userfaultfd of its own. The library has pinned a page
 * in another part. Returns 0 or errno. */
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

/* The man page names the price of being watched, and the ways to do without. */
TEST_BY(in_child, where_the_program_or_nobody_watches_its_mappings_are_as_without_us)
{
	static const uint32_t unwatched[] = { HUGEPIN_WATCH_PROGRAM, HUGEPIN_WATCH_NONE };

	for (int i = 0; i < 2; i++) {
		hugepin_domain *d = open_with(unwatched[i]);
		char *room = mmap(NULL, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		char *p = room + 16 * MIB;
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

/* ------------------------------------------------------------------ descriptors */

static int which;

/* How many descriptors of that kind are open. The number of the last goes to *ret_. */
static int descriptors(const char *kind, int *ret_)
{
	char path[40], what[80];
	int n = 0;

	for (int fd = 0; fd < 1100; fd++) {
		long len;

		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		len = raw(SYS_readlinkat, AT_FDCWD, (long)path, (long)what, sizeof what - 1, 0, 0);
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

/* The process exits with 2 if the start makes fewer calls than `refused`. */
static void refuse_one(void)
{
	int fd, before = t_mappings();
	hugepin_domain *d;
	char *p;

	opener = (int)raw(SYS_gettid, 0, 0, 0, 0, 0, 0);
	calls = 0;
	errno = 77;
	hp_uffd_open(hp_gone_tell_all);
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
			alarm(t_seconds());
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

/* ------------------------------------------------------------------ the thread */

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
	hp_uffd_open(hp_gone_tell_all);
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

static void end_by_pthread_exit(void)
{
	hp_uffd_open(hp_gone_tell_all);
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

T_MAIN
