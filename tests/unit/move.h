/*
 * A heap in the pool that forks move (alloc/move.c), under a kernel of the tests' own (kernel.h). That kernel stands in
 * for the pool, and says of the machine what a test wants. The real kernel gives rings, descriptors, locks and keys.
 * Each test runs in a process of its own.
 */
#ifndef TESTS_UNIT_MOVE_H
#define TESTS_UNIT_MOVE_H

#include "alloc/move.h"

#include <linux/mempolicy.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "alloc/heap.h"
#include "base/config.h"
#include "base/pagescan.h"
#include "base/stats.h"
#include "base/thread.h"
#include "tests/live/live.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"

enum { BUFFERS = 4, SIZE = 6 << 20, SKIPPED = 77 };

/* ------------------------------------------------------------------ the kernel */

static struct {
	bool old, filter, no_dofork;
	int no_copy, copied; /* from which populating on memory runs out; how often it has been populated */
	uint64_t nodes[16]; /* all zero: the first node */
	/* an errno; ring: the place of a ring without a descriptor, from 1 on */
	int nodes_error, ring, ring_error, list_error;
	const char *namespace, *device, *device_at, *memory; /* the texts of links and of /proc/meminfo */
	const char *absent; /* a file or directory that does not exist */
	uintptr_t put_max; /* mremap fails there and above, and for more than a page */
	bool no_trial; /* no child can be had for the trial */
	bool puts_first; /* mremap of more than a page moves the first, and fails */
	uintptr_t map_max; /* mmap fails there and above */
	int looks; /* how often the list of descriptors was read */
	int small; /* pages with MADV_NOHUGEPAGE */
	/* what populating a hugepage of memory takes, by base pages and at once; clock_ns: the processor's time */
	uint64_t base_ns, huge_ns, clock_ns;
	bool fills; /* look at what is populated: last is the hugepage before, empty counts those without contents */
	long last;
	int empty;
	long small_at; /* the last that had MADV_NOHUGEPAGE */
	void (*meanwhile)(void); /* runs once, while a fork makes its copy */
} says;

/* Files of devices that do not write by themselves. With many_open they are descriptors FIRST and above. */
enum { FIRST = 100, HARMLESS = 14 };
static const char *const harmless[HARMLESS] = { "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
						"/dev/tty", "/dev/pts/0",
						"/dev/ptmx", "/dev/console", "/dev/shm/x", "/dev/mqueue/x",
						"/dev/hugepages/x",
						"/home/dev/infiniband", "socket:[7]" };
static bool many_open;

UNINSTRUMENTED static long say(const char *what, long to)
{
	strcpy((char *)to, what);
	return (long)strlen(what);
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	const char *path = (const char *)b;
	long r = 0;

	if (nr == SYS_mmap && d & MAP_HUGETLB) {
		r = d & MAP_FIXED ? -EINVAL : map_like_pool(b, c, d);
	} else if (nr == SYS_ioctl && b == (long)HP_PAGESCAN && says.old) {
		r = -ENOTTY;
	} else if (nr == SYS_prctl && a == PR_GET_SECCOMP && says.filter) {
		r = 2;
	} else if (nr == SYS_get_mempolicy && e == MPOL_F_MEMS_ALLOWED) {
		static const uint64_t none[16];

		memcpy((void *)b, says.nodes, HP_MIN((size_t)c / 8, sizeof says.nodes));
		*(uint64_t *)b |= !memcmp(says.nodes, none, sizeof none);
		r = -says.nodes_error;
	} else if (nr == SYS_io_uring_enter && (says.ring_error || a + 1 == says.ring)) {
		r = a + 1 == says.ring ? 0 : -says.ring_error;
	} else if (nr == SYS_getdents64 && says.list_error) {
		r = -says.list_error;
	} else if (nr == SYS_openat && says.absent && !strcmp(path, says.absent)) {
		r = -ENOENT;
	} else if (nr == SYS_clone && says.no_trial) {
		r = -EAGAIN;
	} else if (nr == SYS_mremap && says.puts_first && b > (long)HP_PAGE) {
		r = raw(nr, a, (long)HP_PAGE, (long)HP_PAGE, d, e, f);
		r = r < 0 && r > -4096 ? r : -EFAULT;
	} else if (nr == SYS_mremap && says.put_max && (b > (long)HP_PAGE || (uintptr_t)e >= says.put_max)) {
		r = -ENOMEM;
	} else if (nr == SYS_mmap && d & MAP_FIXED && c != PROT_NONE && says.map_max && (uintptr_t)a >= says.map_max) {
		r = -ENOMEM;
	} else if (nr == SYS_madvise && c == 23 /* MADV_POPULATE_WRITE */ && says.no_copy &&
		   ++says.copied >= says.no_copy) {
		r = -ENOMEM;
	} else if (nr == SYS_madvise && c == MADV_DOFORK && says.no_dofork) {
		r = -EINVAL;
	} else if (nr == SYS_readlinkat && says.namespace && !strcmp(path, "/proc/self/ns/pid_for_children")) {
		r = *says.namespace ? say(says.namespace, c) : -ENOENT;
	} else if (nr == SYS_readlinkat && says.device && !strcmp(path, says.device_at ? says.device_at : "1")) {
		r = say(says.device, c);
	} else if (nr == SYS_readlinkat && many_open && strtol(path, NULL, 10) >= FIRST &&
		   strtol(path, NULL, 10) < FIRST + HARMLESS) {
		r = say(harmless[strtol(path, NULL, 10) - FIRST], c);
	} else if (nr == SYS_openat && says.memory && !strcmp(path, "/proc/meminfo")) {
		r = raw(nr, a, (long)says.memory, c, d, e, f);
	} else if (nr == SYS_clock_gettime && a == CLOCK_THREAD_CPUTIME_ID) {
		*(struct timespec *)b = (struct timespec){ .tv_sec = (time_t)(says.clock_ns / 1000000000),
							   .tv_nsec = (long)(says.clock_ns % 1000000000) };
	} else if (nr == SYS_mlock && (uintptr_t)a - hp_span.base < hp_span.size) {
		r = 0; /* the kernel counts no locked page of the pool either */
	} else {
		void (*meanwhile)(void) = nr == SYS_madvise && c == 23 ? says.meanwhile : NULL;

		if (meanwhile) {
			says.meanwhile = NULL;
			meanwhile();
		}
		says.looks += nr == SYS_getdents64;
		says.small_at = nr == SYS_madvise && c == MADV_NOHUGEPAGE ? a : says.small_at;
		if (nr == SYS_madvise && c == 23 && b == (long)HP_PAGE) {
			says.clock_ns += a == says.small_at ? says.base_ns : says.huge_ns;
			says.empty += says.last && !((const uint64_t *)says.last)[1];
			says.last = says.fills ? a : 0;
		}
		says.small += nr == SYS_madvise && c == MADV_NOHUGEPAGE ? (int)((size_t)b / HP_PAGE) : 0;
		r = raw(nr, a, b, c, d, e, f);
	}
	return result_of(r);
}

/* ------------------------------------------------------------------ a heap in the pool */

static unsigned char *buffers[BUFFERS];

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)GIB;
	hp_config.extent_max = (int64_t)(16 * MIB);
	hp_config.decay_ms = 0;
	hp_config.pages = HP_PAGES_HUGETLB;
}

static inline void take(void)
{
	for (int i = 0; i < BUFFERS; i++) {
		buffers[i] = hugepin_aligned_alloc(HP_PAGE, SIZE);
		pattern_write(buffers[i], SIZE, (uint64_t)i);
	}
}

static inline bool intact(void)
{
	bool ok = true;

	for (int i = 0; i < BUFFERS; i++)
		ok &= pattern_check(buffers[i], SIZE, (uint64_t)i) == -1;
	return ok;
}

static inline size_t page_at(const void *p)
{
	return ((uintptr_t)p - hp_span.base) >> HP_PAGE_SHIFT;
}

static inline void fork_once(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		bool ok = intact();

		memset(buffers[1], 5, SIZE);
		_exit(!ok);
	}
	EXPECT_EQ(child_wait(pid), 0);
	EXPECT(intact());
	expect_counted();
}

static inline size_t pool_of(int i)
{
	size_t n = 0;

	for (size_t p = page_at(buffers[i]); p < page_at(buffers[i] + SIZE); p++)
		n += hp_span.page[p].kind == HUGEPIN_KIND_HUGETLB;
	return n;
}

static inline size_t pool_left(void)
{
	size_t n = 0;

	for (int i = 0; i < BUFFERS; i++)
		n += pool_of(i);
	return n;
}

static inline void in_a_process(void (*run)(void))
{
	pid_t pid;
	int status;

	if (!HP_THREAD_BARE)
		SKIP("nothing moves under sanitizers");
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		alarm(t_seconds());
		run();
		_exit(t_failures != 0);
	}
	status = child_wait(pid);
	if (status == SKIPPED)
		SKIP("not to be had on this machine");
	EXPECT_EQ(status, 0);
}

/* Within each mapping all pages are of one kind. */
static inline void expect_borders(void)
{
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++) {
		size_t len = hp_heap_mapping(hp_page_addr(p));

		for (size_t q = p; q < p + (len >> HP_PAGE_SHIFT); q++)
			EXPECT_EQ(hp_span.page[q].kind, hp_span.page[p].kind);
	}
}

/* ------------------------------------------------------------------ a move without a fork */

static inline size_t move_now(void)
{
	size_t moved;

	hp_heap_lock();
	errno = 77;
	moved = hp_move();
	EXPECT_EQ(errno, 77);
	hp_heap_unlock();
	EXPECT(intact());
	expect_counted();
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++)
		EXPECT_EQ(hp_span.page[p].fork, HP_PAGE_SHARED);
	return moved;
}

/* The runs of neighbouring pages of the pool that buffers use. */
static inline size_t pool_runs(void)
{
	size_t runs = 0;
	bool before = false;

	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++) {
		bool now = hp_span.page[p].state == HP_PAGE_READY && hp_span.page[p].kind == HUGEPIN_KIND_HUGETLB &&
			   !hp_holes_page(&hp_span.holes, p);

		runs += now && !before;
		before = now;
	}
	return runs;
}

/* No reason is left: all pages move. */
static inline void expect_moves(void)
{
	EXPECT_EQ(move_now(), BUFFERS * SIZE / HP_PAGE);
	EXPECT_EQ(pool_left(), 0);
	EXPECT_EQ(move_now(), 0);
}

#endif
