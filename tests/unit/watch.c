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
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "base/config.h"
#include "reg/domain.h"
#include "reg/uffd.h"
#include "tests/device.h"
#include "tests/t.h"
#include "tests/unit/kernel.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static struct device device;
static _Atomic long questions, opened;
static _Atomic int answer; /* errno of the next questions; 0: the kernel's */
static _Atomic long answers_left; /* of those; then the kernel's */
static bool is_flag; /* before Linux 5.15 the count falls to 0 with the first event that is read */
static bool no_query; /* before 6.11 the kernel does not tell of one mapping */
static _Atomic bool lowered;

/* Of other threads of ours too, which have no errno of the C library's: kept as is. */
UNINSTRUMENTED __attribute__((no_sanitize("thread"))) static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (nr == SYS_ioctl && (unsigned long)b == UFFDIO_WRITEPROTECT) {
		questions++;
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
	if (nr == SYS_userfaultfd)
		opened++;
	r = raw(nr, a, b, c, d, e, f);
	if (is_flag && nr == SYS_read && r > 0)
		lowered = true;
	if (r < 0 && r > -4096) {
		errno = (int)-r;
		return -1;
	}
	return r;
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
	hp_uffd_open();
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
}

TEST(one_of_many_mappings_is_found)
{
	no_query = true;
	in_child(many_mappings);
	no_query = false;
}

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)4 << 30;
	hp_config.pages = HP_PAGES_BASE;
	hp_config.decay_ms = 0;
}

T_MAIN
