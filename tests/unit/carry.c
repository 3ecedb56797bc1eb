/* Moving memory without a copy: what goes, what stays where the kernel refuses, and that realloc does it. */
#include "alloc/carry.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "base/base.h"
#include "base/config.h"
#include "hugepin.h"
#include "tests/live/live.h"

enum { LEN = 16 << 20, SLOT = 4096 };

/* Two areas of hugepages that nothing has touched. */
static char *area[2];

static bool areas_new(void)
{
	static char *all;

	if (all)
		munmap(all, 2 * LEN + PAGE);
	all = mmap(NULL, 2 * LEN + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!EXPECT(all != MAP_FAILED))
		return false;
	area[0] = (char *)(((uintptr_t)all + PAGE - 1) & -(uintptr_t)PAGE);
	area[1] = area[0] + LEN;
	madvise(area[0], 2 * LEN, MADV_HUGEPAGE);
	return true;
}

static size_t carry(void)
{
	return hp_carry((uintptr_t)area[1], (uintptr_t)area[0], LEN);
}

static bool kernel_can(void)
{
	return areas_new() && (area[0][0] = 1, carry() == LEN);
}
#define NEEDS_MOVE                                                                                                     \
	if (!kernel_can())                                                                                             \
	SKIP("the kernel has no UFFDIO_MOVE (Linux 6.8), or no userfaultfd")

static long faults(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_minflt;
}

/* Pages cannot move where the buffer does not begin with a hugepage. What was never touched is not read either. */
TEST(realloc_reads_no_part_of_a_long_buffer_that_has_no_memory)
{
	const size_t size = 40 * MIB, at = 20 * MIB;
	char *large, *first, *p, *behind, *q;
	long before;

	hp_config.pages = HP_PAGES_BASE;
	large = hugepin_malloc(62 * MIB); /* the next extent will be as long, and the buffer grows in it */
	first = hugepin_malloc(3 * MIB + 9 * SLOT);
	p = hugepin_realloc(hugepin_malloc(3 * MIB), size);
	behind = hugepin_malloc(MIB);
	if (!EXPECT(large && first && p && behind && (uintptr_t)p % PAGE))
		return;
	memset(p + at, 7, 3 * SLOT + 5);
	before = faults();
	q = hugepin_realloc(p, 2 * size);
	EXPECT(faults() - before < 100);
	if (!EXPECT(q && q != p))
		return;
	EXPECT_EQ(zero_check(q, at), -1);
	for (size_t i = 0; i < 3 * SLOT + 5; i++)
		if (q[at + i] != 7)
			T_FAIL("byte %zu: %d", i, q[at + i]);
	EXPECT_EQ(zero_check(q + at + 3 * SLOT + 5, size - at - 3 * SLOT - 5), -1);
	hugepin_free(q);
	hugepin_free(behind);
	hugepin_free(first);
	hugepin_free(large);
}

TEST(what_was_touched_goes_with_the_holes_and_leaves_zeros)
{
	uint64_t rand = 5;

	NEEDS_MOVE;
	for (int round = 0; round < 20; round++) {
		bool touched[LEN / SLOT] = { false };

		if (!areas_new())
			return;
		for (int i = 0; i < 1 << round % 12; i++) {
			const size_t at = rand_next(&rand) % (LEN / SLOT);

			touched[at] = true;
			memset(area[0] + at * SLOT, (int)(at % 255 + 1), SLOT);
		}
		EXPECT_EQ(carry(), LEN);
		for (size_t at = 0; at < LEN / SLOT; at++)
			for (size_t i = 0; i < SLOT; i += SLOT - 1)
				if (area[0][at * SLOT + i] || area[1][at * SLOT + i] != (char)(touched[at] ? at % 255 + 1 : 0))
					T_FAIL("page %zu, byte %zu: %d %d", at, i, area[0][at * SLOT + i], area[1][at * SLOT + i]);
	}
}

/* A child shares the memory from the third hugepage on, or something lies there already. What was moved is a part from
 * the start, and nothing is lost. */
TEST(what_the_kernel_refuses_stays)
{
	NEEDS_MOVE;
	for (int why = 0; why < 2; why++) {
		const size_t border = 2 * PAGE;
		pid_t pid = 0;
		size_t done;
		int end[2];

		if (!areas_new() || !EXPECT_EQ(pipe(end), 0))
			return;
		memset(area[0], 7, LEN);
		if (why) {
			area[1][border + 5] = 9;
		} else {
			pid = fork();
			if (pid == 0) {
				char c;

				close(end[1]);
				_exit(read(end[0], &c, 1) != 0 || area[0][0] != 7 || area[0][LEN - 1] != 7);
			}
			for (size_t at = 0; at < border; at += SLOT) /* these pages are this process's own again */
				area[0][at] = 7;
		}
		done = carry();
		EXPECT_EQ(done, border);
		for (size_t at = 0; at < LEN; at += 512) {
			EXPECT_EQ(area[0][at], at < done ? 0 : 7);
			EXPECT_EQ(area[1][at], at < done ? 7 : 0);
		}
		EXPECT_EQ(area[1][border + 5], why ? 9 : 0);
		close(end[1]);
		close(end[0]);
		if (pid > 0)
			EXPECT_EQ(child_wait(pid), 0);
	}
}

/* The program watches the memory itself, and may give it what is missing. */
TEST(memory_that_the_program_watches_stays)
{
	struct uffdio_api api = { .api = UFFD_API };
	const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | 1);
	struct uffdio_register r = { .mode = UFFDIO_REGISTER_MODE_MISSING };

	NEEDS_MOVE;
	if (!areas_new())
		return;
	area[0][0] = 3;
	r.range = (struct uffdio_range){ (uintptr_t)area[0], LEN };
	EXPECT(fd >= 0 && !ioctl(fd, UFFDIO_API, &api) && !ioctl(fd, UFFDIO_REGISTER, &r));
	EXPECT_EQ(carry(), 0);
	EXPECT_EQ(area[0][0], 3);
	close(fd);
}

static _Atomic int found = -1;
static _Atomic bool stop;

/* Have another descriptor of each userfaultfd that comes by, as a child of another thread's fork has. */
static void *keep_descriptors(void *unused)
{
	char path[64], target[64];

	(void)unused;
	while (found < 0 && !stop)
		for (int fd = 3; fd < 16 && found < 0; fd++) {
			snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
			const ssize_t n = readlink(path, target, sizeof target - 1);

			target[n > 0 ? n : 0] = 0;
			if (strstr(target, "userfaultfd"))
				found = dup(fd);
		}
	return NULL;
}

/* Otherwise whoever touches the memory would wait until that descriptor is closed. A read of the kernel fails instead. */
TEST(a_descriptor_that_a_child_has_too_watches_nothing)
{
	pthread_t t;
	int end[2];

	NEEDS_MOVE;
	EXPECT(!pipe(end) && !pthread_create(&t, NULL, keep_descriptors, NULL));
	for (int i = 0; i < 100000 && found < 0 && areas_new(); i++) {
		area[0][0] = 3;
		EXPECT_EQ(carry(), LEN);
	}
	EXPECT(found >= 0);
	stop = true;
	pthread_join(t, NULL);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(write(end[1], "x", 1), 1);
		EXPECT_EQ(read(end[0], area[i] + LEN - 1, 1), 1);
	}
	close(end[0]);
	close(end[1]);
	close(found);
}

/* The buffer is neither copied nor there twice. */
TEST(realloc_of_hugepages_that_moves_takes_no_memory)
{
	const size_t size = 64 * MIB;
	char *p, *behind, *q;
	size_t before;

	NEEDS_MOVE;
	munmap(area[0], 2 * LEN);
	hp_config.pages = HP_PAGES_THP;
	p = hugepin_aligned_alloc(PAGE, size);
	behind = hugepin_malloc(MIB); /* it cannot grow where it is */
	if (!EXPECT(p && behind))
		return;
	pattern_write(p, size, 11);
	before = resident();
	q = hugepin_realloc(p, 2 * size);
	EXPECT(q && q != p);
	EXPECT(resident() < before + size / 4);
	EXPECT_EQ(pattern_check(q, size, 11), -1);
	EXPECT_EQ(zero_check(q + size, size), -1);
	hugepin_free(q);
	hugepin_free(behind);
}

T_MAIN
