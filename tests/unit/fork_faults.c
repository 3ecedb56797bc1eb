/*
 * Forks under a kernel that fails: of a fork's calls, in the parent and in the child, each fails once, each two
 * neighbours fail, and all from each one on. Whatever fails, the child has its contents or the fork is refused, and the
 * parent keeps its own.
 */
#include "alloc/heap.h"

#include <pthread.h>

#include "alloc/advised.h"
#include "alloc/cache.h"
#include "alloc/small.h"
#include "base/config.h"
#include "base/stats.h"
#include "tests/live/live.h"
#include "tests/unit/child.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"

/* ------------------------------------------------------------------ the kernel */

enum side { PARENT, CHILD, SIDES };
enum { FOR_GOOD = 1u << 30 };
static struct faults {
	bool on;
	bool torn; /* a call that maps over addresses has unmapped them before it fails, as before Linux 6.12 */
	enum side side; /* whose calls fail */
	unsigned from, to; /* these calls fail, counted from 1 on */
	unsigned calls[SIDES];
	unsigned failed;
	long number; /* the last call that failed */
} *faults; /* shared by parent and child */
static long parent;

/* Not munmap, because the kernel needs no memory to unmap a whole mapping. */
UNINSTRUMENTED static bool may_fail(long nr)
{
	return nr == SYS_mmap || nr == SYS_mremap || nr == SYS_mprotect || nr == SYS_madvise || nr == SYS_ioctl ||
	       nr == SYS_userfaultfd || nr == SYS_openat || nr == SYS_pread64;
}

/* Whether this call is to fail. */
UNINSTRUMENTED static bool fails(long nr)
{
	enum side side;
	unsigned n;

	if (!faults || !faults->on || !may_fail(nr))
		return false;
	side = raw(SYS_getpid, 0, 0, 0, 0, 0, 0) == parent ? PARENT : CHILD;
	n = ++faults->calls[side];
	if (side != faults->side || n < faults->from || n > faults->to)
		return false;
	faults->failed++;
	faults->number = nr;
	return true;
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (fails(nr)) {
		if (faults->torn && nr == SYS_mmap && d & MAP_FIXED)
			raw(SYS_munmap, a, b, 0, 0, 0, 0);
		if (faults->torn && nr == SYS_mremap && d & MREMAP_FIXED)
			raw(SYS_munmap, e, c, 0, 0, 0, 0);
		r = -ENOMEM;
	} else if (nr == SYS_mmap && d & MAP_HUGETLB) {
		r = d & MAP_FIXED ? -EINVAL : map_like_pool(b, c, d);
	} else if (nr == SYS_openat && strstr((const char *)b, "free_hugepages")) {
		r = file_with("1000\n");
	} else if (nr == SYS_openat && strstr((const char *)b, "resv_hugepages")) {
		r = file_with("0\n");
	} else {
		r = raw(nr, a, b, c, d, e, f);
	}
	return result_of(r);
}

/* ------------------------------------------------------------------ extents in two shards */

/* A hole lies behind the first. The last two have advice of the program's. */
enum { BUFFERS = 6, HIDDEN = 4, GUARDED = 5 };
static const size_t sizes[BUFFERS] = { 2 * MIB + 8192, 40960, 2 * MIB + 4096, 300000, 100000, 100000 };
static unsigned char *buffers[BUFFERS], *kept_out;

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = 4 * (int64_t)GIB; /* a hole that a copy leaves costs the span its end */
	hp_config.extent_max = (int64_t)(8 * MIB);
	hp_config.decay_ms = 0;
	hp_config.pages = HP_PAGES_HUGETLB;
	parent = getpid();
}

static unsigned shard_of(const void *p)
{
	return hp_span.page[hp_page_at((uintptr_t)p)].shard;
}

static void take(void)
{
	unsigned char *gap;
	struct hugepin_extent e;

	hugepin_free(hugepin_malloc(40960));
	HP_STAT(threads)++; /* as if there were two */
	hp_shard_add(&hp_span.holes);
	HP_STAT(threads)--;
	buffers[0] = hugepin_malloc(sizes[0]);
	hp_cache_self->shard = 1;
	gap = hugepin_malloc(3 * MIB);
	for (int i = 1; i < BUFFERS; i++)
		buffers[i] = hugepin_malloc(sizes[i]);
	kept_out = hugepin_aligned_alloc(HP_PAGE, HP_PAGE);
	hugepin_free(gap);
	for (int i = 0; i < BUFFERS; i++)
		pattern_write(buffers[i], sizes[i], (uint64_t)i);
	memset(kept_out, 1, HP_PAGE);
	e = extent_of(kept_out);
	EXPECT_EQ(hp_heap_hold((uintptr_t)kept_out, HP_PAGE, e.gen, HP_HOLD_DONTFORK), 0);
	EXPECT_EQ(hugepin_advise_((void *)hp_round_up((uintptr_t)buffers[HIDDEN], 4096), 65536, MADV_DONTDUMP), 0);
	EXPECT_EQ(hugepin_protect_((void *)hp_round_up((uintptr_t)buffers[GUARDED], 4096), 65536, PROT_READ), 0);
	EXPECT(hp_span.extent_pages[HP_PART_HEAP] > 4);
	EXPECT(shard_of(buffers[0]) == 0 && shard_of(buffers[1]) == 1 && shard_of(kept_out) == 0);
}

static bool intact(void)
{
	bool ok = true;

	for (int i = 0; i < BUFFERS; i++)
		ok &= pattern_check(buffers[i], sizes[i], (uint64_t)i) == -1;
	return ok;
}

/* In the child: its memory is its own, and all its heap works. */
static void live_on(void)
{
	unsigned char *p;
	static const struct rlimit no_limit = { RLIM_INFINITY, RLIM_INFINITY };

	faults->on = false;
	setrlimit(RLIMIT_AS, &no_limit);
	EXPECT(intact());
	expect_counted();
	expect_span_reserved(false);
	memset(buffers[2], 7, sizes[2]);
	for (unsigned i = 0; i < 2; i++) {
		hp_cache_self->shard = i;
		p = hugepin_malloc((3 + i) * MIB);
	memset(p, 1, 3 * MIB);
	EXPECT_EQ(pattern_check(buffers[0], sizes[0], 0), -1);
	hugepin_free(p);
	}
	hugepin_free(buffers[1]);
	_exit(t_failures != 0);
}

/* ------------------------------------------------------------------ each fault */

static bool few_addresses; /* the process may have hardly more than it has */

static long addresses(void)
{
	return file_number("/proc/self/statm");
}

/* Calls [from, to] fail. Returns whether there are so many. */
static bool fork_with_faults(enum side side, bool torn, unsigned from, unsigned to)
{
	uint64_t copied = HP_STAT(forks_copied), cow = HP_STAT(forks_cow), refused = HP_STAT(forks_refused);
	const char *name = side == PARENT ? "parent" : "child";
	pid_t pid;

	memset(faults, 0, sizeof *faults);
	faults->side = side;
	faults->torn = torn;
	faults->from = from;
	faults->to = to;
	faults->on = true;
	pid = hugepin_fork_refused_() ? -1 : fork();
	if (pid == 0) {
		t_failures = 0;
		alarm(t_seconds());
		live_on();
	}
	if (pid > 0) {
		int status = child_wait(pid);

		/* a child that can map nothing at all ends, and says so */
		if (status && !(side == CHILD && to == FOR_GOOD && status == 128 + SIGABRT))
			T_FAIL("%s, calls %u to %u fail (last: system call %ld)%s: status %d", name, from, to,
			       faults->number, torn ? " and leave a hole" : "", status);
	}
	faults->on = false;
	if (!intact())
		T_FAIL("%s, calls %u to %u fail: the parent's contents", name, from, to);
	EXPECT_EQ(HP_STAT(forks_copied) - copied + HP_STAT(forks_cow) - cow + HP_STAT(forks_refused) - refused, 1);
	return faults->failed;
}

static void *idle(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static void each_fault(void)
{
	struct rlimit few = { .rlim_max = RLIM_INFINITY };
	unsigned n[SIDES] = { 0 };
	long before;

	faults = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	parent = getpid();
	take();
	few.rlim_cur = (rlim_t)addresses() * hp_base_page + MIB;
	EXPECT(!few_addresses || !setrlimit(RLIMIT_AS, &few));
	for (int i = 0; i < 3; i++)
		fork_with_faults(PARENT, false, 0, 0);
	before = addresses();
	for (enum side side = PARENT; side < SIDES; side++)
		for (int torn = 0; torn <= 1; torn++)
			for (n[side] = 1; fork_with_faults(side, torn, n[side], n[side]); n[side]++) {
				fork_with_faults(side, torn, n[side], n[side] + 1);
				if (side == PARENT || n[side] == 1)
					fork_with_faults(side, torn, n[side], FOR_GOOD);
			}
	fork_with_faults(PARENT, false, 0, 0);
	t_print("# %u calls of the parent, %u of the child\n", n[PARENT] - 1, n[CHILD] - 1);
	EXPECT(n[PARENT] > 10 && n[CHILD] > 3);
	EXPECT(addresses() <= before); /* fewer if the span has given up some */
	expect_counted();
	expect_span_reserved(false);
}

TEST(whatever_call_fails_a_child_has_its_memory_or_the_fork_is_refused)
{
	in_child(each_fault);
}

static void each_fault_beside_a_thread(void)
{
	pthread_t t;

	EXPECT_EQ(pthread_create(&t, NULL, idle, NULL), 0);
	each_fault();
}

TEST(whatever_call_fails_beside_other_threads_a_child_has_its_memory_or_the_fork_is_refused)
{
	in_child(each_fault_beside_a_thread);
}

/* The copy lies in the unused part of the span. */
static void each_fault_without_addresses(void)
{
	few_addresses = true;
	each_fault();
}

TEST(whatever_call_fails_where_addresses_are_short_a_child_has_its_memory_or_the_fork_is_refused)
{
	if (HP_SANITIZED)
		SKIP("a sanitizer needs addresses without limit");
	in_child(each_fault_without_addresses);
}

T_MAIN
