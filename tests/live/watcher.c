/* link: hugepin */
/*
 * The watcher, which reads the kernel's events about memory. Threads that unmap wait for it. It must not depend on the
 * program's use of descriptors, nor on the processors and priorities of the program's threads. Each test is a process
 * of its own.
 */
#include "live.h"

#include "../device.h"
#include "filter.h"

#include <dirent.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

static struct device device;
static hugepin_domain *domain;

static void in_process(void (*run)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		t_failures = 0;
		alarm(t_seconds());
		device_reset(&device);
		if (EXPECT_EQ(hugepin_domain_open(&device_backend, &device, NULL, &domain), 0))
			run();
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

/* Open a domain in a process where `call` is refused (0: where no thread can be started), and unmap memory that was
 * pinned. */
static void open_without(uint16_t call)
{
	char *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct filter f = { .len = 0 };
	struct rlimit none = { 0, 0 };
	struct hugepin_pin pin;
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		t_failures = 0;
		alarm(t_seconds());
		device_reset(&device);
		if (!call)
			EXPECT(!setgid(65534) && !setuid(65534) && !setrlimit(RLIMIT_NPROC, &none));
		filter_calls(&f, &call, call != 0, FILTER_REFUSES(EPERM));
		if (call)
			EXPECT(filter_install(&f, SECCOMP_RET_ALLOW));
		if (EXPECT_EQ(hugepin_domain_open(&device_backend, &device, NULL, &domain), 0)) {
			EXPECT_EQ(hugepin_pin(domain, p, 4096, 0, &pin) || hugepin_unpin(domain, &pin), 0);
			munmap(p, 65536);
		}
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	if (!EXPECT_EQ(status, 0))
		t_print("# without call %d\n", call);
	munmap(p, 65536);
}

TEST(a_domain_opens_where_there_can_be_no_watcher)
{
	static const uint16_t calls[] = { SYS_clone, 436 /* close_range */, SYS_capset, SYS_prctl, SYS_ppoll, SYS_read };

	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		open_without(calls[i]);
	if (geteuid() == 0)
		open_without(0);
}

/* The number of a descriptor of the library; -1: there is none. */
static int number_of(const char *what)
{
	char path[32], name[64];

	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(path, name, sizeof name - 1);
		if (n > 0 && memmem(name, (size_t)n, what, strlen(what)))
			return fd;
	}
	return -1;
}

static long made(char *p)
{
	struct hugepin_pin pin;
	long before = device.calls;

	EXPECT_EQ(hugepin_pin(domain, p, 4096, 0, &pin) || hugepin_unpin(domain, &pin), 0);
	return device.calls - before;
}

static void replace(char *p)
{
	EXPECT_EQ(munmap(p, MIB), 0);
	EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == p);
}

#define NEEDS_USERFAULTFD()                                                                                            \
	do {                                                                                                           \
		if (number_of("userfaultfd") < 0)                                                                      \
			return; /* none to be had, and nothing is cached */                                            \
	} while (0)

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define NEEDS_ITS_OWN() SKIP("the sanitizer's watcher is a thread like any other")
#else
#define NEEDS_ITS_OWN() (void)0
#endif

/* ------------------------------------------------------------------ descriptors */

/* Close all descriptors from 3 on, and put ends of pipes in their places. */
static void close_from_three(bool with_bytes)
{
	char *p = map(MIB), text[100] = "";
	int highest, ends[2];

	NEEDS_USERFAULTFD();
	EXPECT_EQ(made(p), 1);
	highest = number_of("userfaultfd");
	EXPECT_EQ(syscall(SYS_close_range, 3, ~0U, 0), 0);
	EXPECT_EQ(pipe(ends), 0);
	for (int fd = ends[1] + 1; fd <= highest + 2; fd++)
		dup2(ends[0], fd);
	if (with_bytes)
		EXPECT_EQ(write(ends[1], "these bytes are the program's", 29), 29);
	for (int i = 0; i < 20; i++) {
		replace(p); /* this must not hang */
		EXPECT_EQ(made(p), 1);
	}
	if (with_bytes)
		EXPECT(read(ends[0], text, sizeof text) == 29 && memcmp(text, "these bytes are the program's", 29) == 0);
	for (int fd = 3; fd <= highest + 2; fd++)
		EXPECT(fcntl(fd, F_GETFD) >= 0); /* the program's descriptors were not closed */
	EXPECT_EQ(hugepin_domain_close(domain), 0);
}

static void close_from_three_empty(void)
{
	close_from_three(false);
}

static void close_from_three_full(void)
{
	close_from_three(true);
}

TEST(a_program_that_closes_all_descriptors_unmaps_and_pins_on)
{
	NEEDS_ITS_OWN();
	in_process(close_from_three_empty);
	in_process(close_from_three_full);
}

static void *unmap_and_map(void *p)
{
	replace(p);
	return NULL;
}

static void put_another_userfaultfd(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	char *p = map(MIB);
	int other, ours = number_of("userfaultfd");
	pthread_t t;

	NEEDS_USERFAULTFD();
	EXPECT_EQ(made(p), 1);
	other = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	EXPECT(other >= 0 && ioctl(other, UFFDIO_API, &api) == 0);
	EXPECT(dup2(other, ours) == ours);
	pthread_create(&t, NULL, unmap_and_map, p);
	pthread_join(t, NULL);
	EXPECT_EQ(made(p), 1);
	EXPECT_EQ(made(p), 1); /* memory is no longer watched */
}

TEST(another_userfaultfd_in_the_place_of_ours_is_not_taken_for_it)
{
	NEEDS_ITS_OWN();
	in_process(put_another_userfaultfd);
}

TEST_BY(in_process, a_file_in_the_place_of_the_list_of_mappings_is_left_alone)
{
	char *p = map(MIB), *q = map(MIB);
	int file = memfd_create("file", 0), ours;
	struct stat before, after;

	NEEDS_USERFAULTFD();
	EXPECT_EQ(made(p), 1);
	ours = number_of("/maps");
	EXPECT(ours > 3 && dup2(file, ours) == ours);
	EXPECT_EQ(fstat(ours, &before), 0);
	EXPECT_EQ(made(q + 8192), 1);
	EXPECT_EQ(made(q + 8192), 0);
	EXPECT(fstat(ours, &after) == 0 && after.st_ino == before.st_ino);
	EXPECT(number_of("/maps") >= 0 && number_of("/maps") != ours);
}

static void fork_after_closing(void)
{
	char *p = map(MIB);
	int status, highest;
	pid_t pid;

	NEEDS_USERFAULTFD();
	EXPECT_EQ(made(p), 1);
	highest = number_of("userfaultfd");
	EXPECT_EQ(syscall(SYS_close_range, 3, ~0U, 0), 0);
	for (int fd = 3; fd <= highest + 2; fd++)
		EXPECT(dup2(0, fd) == fd);
	pid = fork();
	if (pid == 0) {
		for (int fd = 3; fd <= highest + 2; fd++)
			EXPECT(fcntl(fd, F_GETFD) >= 0);
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

TEST(a_child_keeps_the_descriptors_that_the_program_has_put_in_our_place)
{
	NEEDS_ITS_OWN();
	in_process(fork_after_closing);
}

/* ------------------------------------------------------------------ where and how it runs */

static pid_t watcher(void)
{
	char path[64], name[32];
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	pid_t found = 0;

	while ((e = readdir(d))) {
		snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", e->d_name);
		if (file_read(path, name, sizeof name) > 0 && strcmp(name, "hugepin watch\n") == 0)
			found = (pid_t)atoi(e->d_name);
	}
	closedir(d);
	return found;
}

static void open_bound(void)
{
	cpu_set_t before, one, its;
	hugepin_domain *d;
	struct sched_param p = { .sched_priority = 1 };
	bool fifo, placed;
	pid_t tid;

	EXPECT_EQ(hugepin_domain_close(domain), 0);
	EXPECT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
	CPU_ZERO(&one);
	for (size_t i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
		if (CPU_ISSET(i, &before))
			CPU_SET(i, &one);
	if (fork()) { /* continue in a process that has no watcher yet */
		int status;

		wait(&status);
		EXPECT_EQ(status, 0);
		return;
	}
	EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
	EXPECT(setpriority(PRIO_PROCESS, 0, 19) == 0);
	fifo = sched_setscheduler(0, SCHED_FIFO, &p) == 0; /* works as root only */
	placed = fifo || prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0; /* else in a container */
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, NULL, &d), 0);
	NEEDS_USERFAULTFD();
	tid = watcher();
	EXPECT(tid > 0);
	EXPECT_EQ(sched_getaffinity(tid, sizeof its, &its), 0);
	EXPECT(!placed || CPU_EQUAL(&its, &before));
	EXPECT_EQ(sched_getscheduler(tid), SCHED_OTHER);
	EXPECT(!placed || geteuid() != 0 || getpriority(PRIO_PROCESS, (id_t)tid) <= 0);
	_exit(t_failures != 0);
}

TEST(the_watcher_is_not_bound_as_its_opener_is)
{
	NEEDS_ITS_OWN();
	in_process(open_bound);
}

static _Atomic bool stop;

static long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	long long x = *(const long long *)a, y = *(const long long *)b;

	return (x > y) - (x < y);
}

enum { ROUNDS = 20 };

static void *unmap_often(void *unused)
{
	static long long ns[ROUNDS];

	(void)unused;
	for (int i = 0; i < ROUNDS; i++) {
		char *p = map(65536);

		made(p);
		ns[i] = now_ns();
		munmap(p, 65536);
		ns[i] = now_ns() - ns[i];
	}
	stop = true;
	qsort(ns, ROUNDS, sizeof *ns, ascending);
	t_print("# munmap beside an opener that polls: median %lld us, longest %lld us\n", ns[ROUNDS / 2] / 1000,
		ns[ROUNDS - 1] / 1000);
	return NULL;
}

/* Open a domain in a new process, bound to a processor and with real-time priority, then poll. Another thread unmaps on
 * any processor. It would wait for ever if the watcher ran as its opener does. */
static void poll_in_real_time(void)
{
	const struct sched_param p = { .sched_priority = 1 }, none = { 0 };
	cpu_set_t before, one;
	pthread_t t;
	int status;
	pid_t pid;

	EXPECT_EQ(hugepin_domain_close(domain), 0);
	pid = fork();
	if (pid) {
		waitpid(pid, &status, 0);
		EXPECT_EQ(status, 0);
		return;
	}
	alarm(t_seconds());
	EXPECT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
	CPU_ZERO(&one);
	for (size_t i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
		if (CPU_ISSET(i, &before))
			CPU_SET(i, &one);
	sched_setaffinity(0, sizeof one, &one);
	if (sched_setscheduler(0, SCHED_FIFO, &p))
		_exit(0);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, NULL, &domain), 0);
	sched_setscheduler(0, SCHED_OTHER, &none);
	sched_setaffinity(0, sizeof before, &before);
	pthread_create(&t, NULL, unmap_often, NULL);
	sched_setaffinity(0, sizeof one, &one);
	sched_setscheduler(0, SCHED_FIFO, &p);
	while (!stop)
		;
	sched_setscheduler(0, SCHED_OTHER, &none);
	pthread_join(t, NULL);
	_exit(t_failures != 0);
}

TEST(unmapping_does_not_wait_for_an_opener_that_polls_in_real_time)
{
	cpu_set_t all;

	NEEDS_ITS_OWN();
	sched_getaffinity(0, sizeof all, &all);
	if (CPU_COUNT(&all) < 2)
		SKIP("one processor");
	in_process(poll_in_real_time);
}

T_MAIN
