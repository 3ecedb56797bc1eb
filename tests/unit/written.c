/*
 * What was written to, as the kernel notes it, against a model: which pages of a mapping the test has written to since it asked.
 */
#include "alloc/written.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/pagescan.h"
#include "tests/any.h"
#include "tests/t.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

enum { PAGES = 512, BASE = 4096 };

static char *memory; /* a hugepage's room, of base pages */
static bool written[PAGES]; /* what we say */
static bool noted[PAGES]; /* what the kernel says */
static uintptr_t last_end;

static uintptr_t at(size_t page)
{
	return (uintptr_t)memory + page * BASE;
}

static void map(void)
{
	char *p = mmap(NULL, 2 * HP_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memory = (char *)hp_round_up((uintptr_t)p, HP_PAGE);
	if (memory > p)
		munmap(p, (size_t)(memory - p));
	if (memory + HP_PAGE < p + 2 * HP_PAGE)
		munmap(memory + HP_PAGE, (size_t)(p + HP_PAGE - memory));
	madvise(memory, HP_PAGE, MADV_NOHUGEPAGE);
	memset(memory, 1, HP_PAGE);
}

static void unmap(void)
{
	munmap(memory, HP_PAGE);
}

static void note(uintptr_t start, uintptr_t end)
{
	EXPECT(start >= last_end && start < end && end <= at(PAGES)); /* in order, and none twice */
	last_end = end;
	for (uintptr_t a = start; a < end; a += BASE)
		noted[(a - (uintptr_t)memory) / BASE] = true;
}

/* What the kernel says of these pages is what was written to since, and is said once. */
static void expect_noted(size_t from, size_t to)
{
	memset(noted, 0, sizeof noted);
	last_end = at(from);
	EXPECT(hp_written_each(at(from), at(to), note));
	for (size_t p = 0; p < PAGES; p++) {
		if (!EXPECT_EQ(noted[p], p >= from && p < to && written[p]))
			T_FAIL("page %zu of [%zu, %zu)", p, from, to);
		if (p >= from && p < to)
			written[p] = false;
	}
}

static void write_to(size_t page)
{
	*(volatile char *)at(page) = 2;
	written[page] = true;
}

static int descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 64; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Watch all; false: not to be had. */
static bool begin(void)
{
	memset(written, 0, sizeof written);
	map();
	if (hp_written_begin() && EXPECT(hp_written_watch(at(0), at(PAGES))))
		return true;
	hp_written_end();
	unmap();
	return false;
}

static void end(void)
{
	hp_written_end();
	unmap();
}

#define NONE "asynchronous write protection is not to be had"

/* The kernel is asked here without that file's help. */
static bool is_there(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = (uint64_t)1 << 15 };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	bool can = fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && prctl(PR_GET_SECCOMP) == 0;

	if (fd >= 0)
		close(fd);
	return can;
}

TEST(it_begins_where_the_kernel_can_and_leaves_no_descriptor)
{
	int before = descriptors();

	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(hp_written_begin(), is_there());
		EXPECT_EQ(descriptors(), before + 2 * is_there());
		hp_written_end();
		EXPECT_EQ(descriptors(), before);
		hp_written_end();
		EXPECT_EQ(descriptors(), before);
	}
}

TEST(what_is_written_to_is_noted_once)
{
	if (!begin())
		SKIP(NONE);
	expect_noted(0, PAGES); /* not what was written before */
	write_to(0);
	write_to(7);
	write_to(8);
	write_to(PAGES - 1);
	expect_noted(0, PAGES);
	expect_noted(0, PAGES);
	(void)*(volatile char *)at(9); /* read */
	expect_noted(0, PAGES);
	write_to(7); /* again */
	expect_noted(0, PAGES);
	end();
}

TEST(more_ranges_than_are_told_at_once_are_all_told)
{
	static const size_t counts[] = { 63, 64, 65, 127, 128, 129, PAGES / 2 };

	if (!begin())
		SKIP(NONE);
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
		for (size_t n = 0; n < counts[i]; n++)
			write_to(2 * n);
		expect_noted(0, PAGES);
		for (size_t n = 0; n < counts[i]; n++)
			write_to(PAGES - 1 - 2 * n);
		expect_noted(0, PAGES);
	}
	for (size_t p = 0; p < PAGES; p++)
		write_to(p);
	expect_noted(0, PAGES);
	end();
}

TEST(of_a_part_no_more_is_told_than_was_asked_for)
{
	if (!begin())
		SKIP(NONE);
	for (int round = 0; round < 300 && !t_failures; round++) {
		size_t from = any(PAGES), to = from + 1 + any(PAGES - from);

		for (size_t n = any(100); n; n--)
			write_to(any(PAGES));
		expect_noted(from, to);
	}
	expect_noted(0, PAGES);
	EXPECT(hp_written_each(at(5), at(5), note)); /* nothing of nothing */
	end();
}

TEST(what_is_not_watched_is_not_known)
{
	if (!begin())
		SKIP(NONE);
	hp_written_end();
	if (!EXPECT(hp_written_begin()))
		return;
	EXPECT(!hp_written_each(at(0), at(PAGES), note));
	EXPECT(hp_written_watch(at(0), at(PAGES / 2)));
	write_to(3);
	expect_noted(0, PAGES / 2);
	last_end = 0;
	EXPECT(!hp_written_each(at(PAGES / 2 - 1), at(PAGES / 2 + 1), note));
	end();
}

/* As the pin cache does. */
TEST(what_somebody_else_watches_is_left_alone)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	int fd;

	if (!begin())
		SKIP(NONE);
	hp_written_end();
	fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	reg.range.start = at(8);
	reg.range.len = BASE;
	EXPECT(ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &reg) == 0);
	EXPECT(hp_written_begin());
	EXPECT(!hp_written_watch(at(0), at(16)));
	EXPECT(hp_written_watch(at(16), at(32)));
	write_to(20);
	expect_noted(16, 32);
	close(fd);
	end();
}

/* A program may close all descriptors. A file that it opens afterwards may get a number of ours. */
TEST(a_file_that_took_the_number_of_one_is_not_closed)
{
	for (int n = 0; n < 2; n++) {
		int before = open("/dev/null", O_RDONLY | O_CLOEXEC), null = before;

		if (!begin())
			SKIP(NONE);
		/* The descriptors are the next two. */
		null = before + 1 + n;
		EXPECT(fcntl(null, F_GETFD) >= 0);
		EXPECT_EQ(dup3(before, null, O_CLOEXEC), null);
		end();
		EXPECT(fcntl(null, F_GETFD) >= 0);
		EXPECT(fcntl(before + 2 - n, F_GETFD) < 0);
		close(null);
		close(before);
		/* And those that somebody else has closed are not. */
		EXPECT(begin());
		close(before);
		EXPECT_EQ(open("/dev/zero", O_RDONLY | O_CLOEXEC), before);
		end();
		EXPECT(fcntl(before, F_GETFD) >= 0);
		close(before);
	}
}

TEST(of_a_program_without_standard_input_it_is_noted_as_well)
{
	int in = fcntl(0, F_DUPFD_CLOEXEC, 3);
	bool can;

	close(0);
	can = begin();
	if (can) {
		EXPECT(fcntl(0, F_GETFD) >= 0); /* the first of the two */
		write_to(3);
		expect_noted(0, PAGES);
		end();
	}
	EXPECT(fcntl(0, F_GETFD) < 0);
	EXPECT_EQ(dup2(in, 0), 0);
	close(in);
	if (!can)
		SKIP(NONE);
}

static bool begins_behind(void (*before)(void))
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		int had = descriptors();

		before();
		_exit(hp_written_begin() ? 1 : descriptors() != had ? 2 : 0);
	}
	EXPECT(waitpid(pid, &status, 0) == pid);
	EXPECT(status == 0 || status == 1 << 8);
	return status != 0;
}

static void nothing(void)
{
}

static void sandboxed(void)
{
	hp_sandboxed = true;
}

/* Nothing is refused, but there is a filter. */
static void filter(void)
{
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { 1, &allow };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(3);
}

/* One more descriptor, and no second. */
static void one_descriptor(void)
{
	struct { unsigned long now, max; } limit;
	int next = dup(0);

	close(next);
	limit.now = limit.max = (unsigned long)next + 1;
	syscall(SYS_setrlimit, 7 /* RLIMIT_NOFILE */, &limit);
}

TEST(behind_a_filter_or_in_a_sandbox_or_without_descriptors_it_does_not_begin)
{
	EXPECT_EQ(begins_behind(nothing), is_there());
	EXPECT(!begins_behind(sandboxed));
	EXPECT(!begins_behind(filter));
	EXPECT(!begins_behind(one_descriptor));
}

T_MAIN
