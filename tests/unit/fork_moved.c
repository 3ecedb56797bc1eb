/*
 * Forks of a process with one thread: the parent moves into the copy of its pool pages, except for pages that a ring of
 * io_uring has, and gives idle memory back afterwards.
 */
#include <sys/ioctl.h>

#include "base/pagescan.h"
#include "base/thread.h"
#include "tests/unit/elsewhere.h"
#include "tests/unit/fork.h"

enum { OWN = 3 };

static bool kernel_moves(void)
{
	struct hp_pagescan none = { .size = 0 };
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	bool known = ioctl(fd, HP_PAGESCAN, &none) == 0 || errno != ENOTTY;

	close(fd);
	return known;
}

static uint64_t pool_bytes(const unsigned char *p, size_t size)
{
	return smaps_kinds(0, (uintptr_t)p, (uintptr_t)p + size).hugetlb;
}

static void in_a_process(void (*run)(void))
{
	pid_t pid;
	int status;
	long pages;

	NEEDS_POOL(30);
	if (!HP_THREAD_BARE)
		SKIP("nothing moves under sanitizers");
	if (!kernel_moves())
		SKIP("a kernel before 6.7");
	pages = pool_free();
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		run();
		_exit(t_failures != 0);
	}
	status = child_wait(pid);
	/* A ring lets its pages go some time after its end. */
	for (int i = 0; i < 50000 && pool_free() < pages; i++)
		sleep_ms(1);
	if (status == 77)
		SKIP("no io_uring that registers");
	EXPECT_EQ(status, 0);
}

/* In a process of its own, with one thread. A ring has the second of three buffers. The library does not know that. */
TEST_BY(in_a_process, in_a_process_with_one_thread_the_copy_takes_the_originals_place_but_for_what_somebody_has_pinned)
{
	unsigned char *p[OWN];
	int fds[2];
	pid_t other;

	hp_span.no_pool = false;
	hp_config.pages = HP_PAGES_HUGETLB;
	for (int i = 0; i < OWN; i++) {
		p[i] = hugepin_aligned_alloc(HP_PAGE, 4 * MIB);
		pattern_write(p[i], 4 * MIB, (uint64_t)i);
		EXPECT(pool_bytes(p[i], 4 * MIB) >= 4 * MIB);
	}
	if (pipe(fds) || (other = ring_elsewhere(p[1] + 2 * MIB, 64 * KIB, fds[0])) < 0)
		_exit(77);
	for (int i = 0; i < 3; i++) {
		uint64_t copied = HP_STAT(fork_copied_bytes);
		pid_t pid = fork();

		if (pid == 0) {
			for (int j = 0; j < OWN; j++)
				if (pattern_check(p[j], 4 * MIB, (uint64_t)j) != -1)
					_exit(1);
			_exit(0);
		}
		EXPECT_EQ(child_wait(pid), 0);
		/* The others are no longer the pool's, and later forks copy what is: the page that the ring has. */
		EXPECT_EQ(pool_bytes(p[0], 4 * MIB) + pool_bytes(p[2], 4 * MIB), 0);
		EXPECT_EQ(pool_bytes(p[1], 4 * MIB), 2 * MIB);
		EXPECT_EQ(HP_STAT(fork_copied_bytes) - copied, i ? 2 * MIB : 12 * MIB);
		expect_counted();
		EXPECT_EQ(hp_heap_mapping((uintptr_t)p[1]), 2 * MIB);
	}
	for (int i = 0; i < OWN; i++)
		EXPECT_EQ(pattern_check(p[i], 4 * MIB, (uint64_t)i), -1);
	EXPECT(write(fds[1], "fixed", 5) == 5);
	for (int i = 0; i < 50000 && memcmp(p[1] + 2 * MIB, "fixed", 5) != 0; i++)
		sleep_ms(1);
	EXPECT(memcmp(p[1] + 2 * MIB, "fixed", 5) == 0);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
}

/* The fork has ended the thread that gives memory back. */
TEST_BY(in_a_process, a_process_that_does_nothing_after_a_fork_gives_idle_memory_back)
{
	enum { COUNT = 8 };
	unsigned char *p[COUNT];
	size_t left;

	hp_span.no_pool = false;
	hp_config.pages = HP_PAGES_HUGETLB;
	hp_config.decay_ms = 100;
	for (int i = 0; i < COUNT; i++) {
		p[i] = hugepin_aligned_alloc(HP_PAGE, 4 * MIB);
		pattern_write(p[i], 4 * MIB, (uint64_t)i);
	}
	for (int i = 1; i < COUNT; i++)
		hugepin_free(p[i]);
	left = HP_STAT(hugetlb_bytes);
	EXPECT(left >= COUNT * 4 * MIB);

	pid_t pid = fork();

	if (pid == 0)
		_exit(pattern_check(p[0], 4 * MIB, 0) != -1);
	EXPECT_EQ(child_wait(pid), 0);
	EXPECT_EQ(pool_bytes(p[0], 4 * MIB), 0);
	for (int i = 0; i < 50000 && HP_STAT(hugetlb_bytes) > 4 * MIB; i++)
		sleep_ms(1);
	EXPECT(HP_STAT(hugetlb_bytes) <= 4 * MIB);
}

LIVE_MAIN
