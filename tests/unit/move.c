/*
 * Which forks move the heap out of the pool (move.c), and which do not: each reason not to, one at a time, in a process of its own
 * with one thread. The kernel is reached through functions defined here (kernel.h), which stand in for a pool, and say what a test
 * wants the machine to be; what can be had from the real one is: rings, descriptors, locks, keys.
 */
#include "alloc/move.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/aio_abi.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

#include "alloc/heap.h"
#include "alloc/hold.h"
#include "base/config.h"
#include "base/pagescan.h"
#include "base/stats.h"
#include "base/thread.h"
#include "tests/live/live.h"
#include "tests/unit/elsewhere.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

enum { BUFFERS = 4, SIZE = 6 << 20, SKIPPED = 77 };

/* ------------------------------------------------------------------ the kernel */

static struct {
	bool old, filter, nodes, ring, no_dofork;
	const char *namespace, *device, *memory; /* what links and /proc/meminfo say */
	int looks; /* at the descriptors */
} says;

UNINSTRUMENTED static long map_pool(long len, long prot, long flags)
{
	long got = raw(SYS_mmap, 0, len + (long)HP_PAGE, prot, flags & ~(long)(MAP_HUGETLB | (63u << 26)), -1, 0);
	long aligned = (long)hp_round_up((size_t)got, HP_PAGE);

	if (aligned > got)
		raw(SYS_munmap, got, aligned - got, 0, 0, 0, 0);
	raw(SYS_munmap, aligned + len, got + (long)HP_PAGE - aligned, 0, 0, 0, 0);
	return aligned;
}

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
		r = d & MAP_FIXED ? -EINVAL : map_pool(b, c, d);
	} else if (nr == SYS_ioctl && b == (long)HP_PAGESCAN && says.old) {
		r = -ENOTTY;
	} else if (nr == SYS_prctl && a == PR_GET_SECCOMP && says.filter) {
		r = 2;
	} else if (nr == SYS_get_mempolicy && e == MPOL_F_MEMS_ALLOWED) {
		*(uint64_t *)b = says.nodes ? 5 : 1;
	} else if (nr == SYS_io_uring_enter && says.ring && a == 3) {
		r = 0;
	} else if (nr == SYS_madvise && c == MADV_DOFORK && says.no_dofork) {
		r = -EINVAL;
	} else if (nr == SYS_readlinkat && says.namespace && !strcmp(path, "/proc/self/ns/pid_for_children")) {
		r = *says.namespace ? say(says.namespace, c) : -ENOENT;
	} else if (nr == SYS_readlinkat && says.device && !strcmp(path, "1")) {
		r = say(says.device, c);
	} else if (nr == SYS_openat && says.memory && !strcmp(path, "/proc/meminfo")) {
		r = raw(nr, a, (long)says.memory, c, d, e, f);
	} else if (nr == SYS_mlock && (uintptr_t)a - hp_span.base < hp_span.size) {
		r = 0; /* without a trace, as of the pool's pages */
	} else {
		says.looks += nr == SYS_getdents64;
		r = raw(nr, a, b, c, d, e, f);
	}
	if (r < 0 && r > -4096) {
		errno = (int)-r;
		return -1;
	}
	return r;
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

static void take(void)
{
	for (int i = 0; i < BUFFERS; i++) {
		buffers[i] = hugepin_aligned_alloc(HP_PAGE, SIZE);
		pattern_write(buffers[i], SIZE, (uint64_t)i);
	}
}

static bool intact(void)
{
	bool ok = true;

	for (int i = 0; i < BUFFERS; i++)
		ok &= pattern_check(buffers[i], SIZE, (uint64_t)i) == -1;
	return ok;
}

static size_t page_at(const void *p)
{
	return ((uintptr_t)p - hp_span.base) >> HP_PAGE_SHIFT;
}

static void fork_once(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		bool ok = intact();

		memset(buffers[1], 5, SIZE);
		_exit(!ok);
	}
	EXPECT_EQ(child_wait(pid, 50), 0);
	EXPECT(intact());
	expect_counted();
}

static size_t pool_of(int i)
{
	size_t n = 0;

	for (size_t p = page_at(buffers[i]); p < page_at(buffers[i] + SIZE); p++)
		n += hp_span.page[p].kind == HUGEPIN_KIND_HUGETLB;
	return n;
}

static size_t pool_left(void)
{
	size_t n = 0;

	for (int i = 0; i < BUFFERS; i++)
		n += pool_of(i);
	return n;
}

/* False: not to be had here. */
typedef bool step(void);

/* In a process of its own: a fork with this reason, which must find it before it has done anything, and one without. */
static void case_of(step *begin, step *end)
{
	size_t all;

	take();
	all = pool_left();
	if (!begin())
		_exit(SKIPPED);
	fork_once();
	EXPECT_EQ(pool_left(), all);
	EXPECT_EQ(HP_STAT(forks_copied), 1);
	if (!end)
		return;
	end();
	fork_once();
	EXPECT_EQ(pool_left(), 0);
}

static void nothing_moves(step *begin, step *end)
{
	pid_t pid;
	int status;

	if (!HP_THREAD_BARE)
		SKIP("nothing moves under sanitizers");
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		alarm(60);
		case_of(begin, end);
		_exit(t_failures != 0);
	}
	status = child_wait(pid, 60);
	if (status == SKIPPED)
		SKIP("not to be had on this machine");
	EXPECT_EQ(status, 0);
}

static void in_a_process(void (*run)(void))
{
	pid_t pid;
	int status;

	if (!HP_THREAD_BARE)
		SKIP("nothing moves under sanitizers");
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		alarm(60);
		run();
		_exit(t_failures != 0);
	}
	status = child_wait(pid, 60);
	if (status == SKIPPED)
		SKIP("not to be had on this machine");
	EXPECT_EQ(status, 0);
}

/* ------------------------------------------------------------------ where all is well */

/* Nobody takes the end of a mapping for its middle. */
static void expect_borders(void)
{
	for (size_t p = 1; p < hp_span.tree.used; p++) {
		size_t len = hp_heap_mapping(hp_page_addr(p));

		for (size_t q = p; q < p + (len >> HP_PAGE_SHIFT); q++)
			EXPECT_EQ(hp_span.page[q].kind, hp_span.page[p].kind);
	}
}

static void move_all(void)
{
	take();
	EXPECT_EQ(pool_left(), BUFFERS * SIZE / HP_PAGE);
	errno = 77;
	fork_once();
	EXPECT_EQ(pool_left(), 0);
	EXPECT_EQ(HP_STAT(fork_copied_bytes), BUFFERS * SIZE);
	expect_borders();
	fork_once();
	fork_once();
	EXPECT_EQ(HP_STAT(fork_copied_bytes), BUFFERS * SIZE);
	EXPECT(!hp_span.no_pool || HP_STAT(hugetlb_bytes));
	for (int i = 0; i < BUFFERS; i++)
		hugepin_free(buffers[i]);
	hugepin_purge();
	expect_empty();
}

TEST(a_fork_of_a_process_with_one_thread_moves_the_heap_and_later_ones_copy_nothing)
{
	in_a_process(move_all);
}

/* ------------------------------------------------------------------ reasons not to */

static bool is_old(void)
{
	return says.old = true;
}

TEST(before_the_kernel_pins_for_all_direct_io_nothing_moves)
{
	nothing_moves(is_old, NULL);
}

static bool filter(void)
{
	return says.filter = true;
}

static bool no_filter(void)
{
	says.filter = false;
	return true;
}

TEST(behind_a_filter_of_system_calls_nothing_moves)
{
	nothing_moves(filter, no_filter);
}

static bool two_nodes(void)
{
	return says.nodes = true;
}

static bool one_node(void)
{
	says.nodes = false;
	return true;
}

TEST(with_several_nodes_nothing_moves)
{
	nothing_moves(two_nodes, one_node);
}

static bool other_namespace(void)
{
	says.namespace = "pid:[4026539999]";
	return true;
}

static bool empty_namespace(void)
{
	says.namespace = "";
	return true;
}

static bool own_namespace(void)
{
	says.namespace = NULL;
	return true;
}

TEST(before_a_child_that_is_the_first_of_its_namespace_nothing_moves)
{
	nothing_moves(empty_namespace, own_namespace);
}

TEST(before_a_child_in_another_namespace_nothing_moves)
{
	nothing_moves(other_namespace, own_namespace);
}

static bool unshared(void)
{
	return unshare(CLONE_NEWPID) == 0;
}

TEST(the_first_child_of_a_new_namespace_is_the_programs)
{
	nothing_moves(unshared, NULL);
}

static struct io_uring ring;

static bool open_ring(void)
{
	return io_uring_queue_init(4, &ring, 0) == 0;
}

static bool close_ring(void)
{
	io_uring_queue_exit(&ring);
	return true;
}

TEST(with_a_ring_of_an_io_uring_nothing_moves)
{
	nothing_moves(open_ring, close_ring);
}

static bool registered_ring(void)
{
	return says.ring = true;
}

static bool unregistered_ring(void)
{
	says.ring = false;
	return true;
}

TEST(with_a_ring_that_has_no_descriptor_nothing_moves)
{
	nothing_moves(registered_ring, unregistered_ring);
}

static aio_context_t aio;

static bool open_aio(void)
{
	return raw(SYS_io_setup, 4, (long)&aio, 0, 0, 0, 0) == 0;
}

static bool close_aio(void)
{
	return raw(SYS_io_destroy, (long)aio, 0, 0, 0, 0, 0) == 0;
}

TEST(with_a_context_of_asynchronous_io_nothing_moves)
{
	nothing_moves(open_aio, close_aio);
}

static bool device(void)
{
	says.device = "/dev/infiniband/uverbs0";
	return true;
}

static bool terminal(void)
{
	says.device = "/dev/pts/3";
	return true;
}

TEST(with_a_device_open_that_may_write_by_itself_nothing_moves)
{
	nothing_moves(device, terminal);
}

static bool hide_one(void)
{
	return raw(SYS_madvise, (long)buffers[2], HP_PAGE, MADV_DONTDUMP, 0, 0, 0) == 0;
}

TEST(what_is_not_to_be_dumped_does_not_move)
{
	nothing_moves(hide_one, NULL);
}

static bool make_executable(void)
{
	return raw(SYS_mprotect, (long)buffers[2], HP_PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, 0, 0, 0) == 0;
}

TEST(what_is_protected_does_not_move)
{
	nothing_moves(make_executable, NULL);
}

static long key;

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

/* Nothing can be put in its place. */
static bool seal(void)
{
	return raw(SYS_mseal, (long)buffers[2], HP_PAGE, 0, 0, 0, 0) == 0;
}

TEST(what_is_sealed_does_not_move)
{
	nothing_moves(seal, NULL);
}

static bool lock_by_key(void)
{
	key = raw(SYS_pkey_alloc, 0, 0, 0, 0, 0, 0);
	return key > 0 && raw(SYS_pkey_mprotect, (long)buffers[2], HP_PAGE, PROT_READ | PROT_WRITE, key, 0, 0) == 0;
}

static bool unlock_by_key(void)
{
	return raw(SYS_pkey_mprotect, (long)buffers[2], HP_PAGE, PROT_READ | PROT_WRITE, 0, 0, 0) == 0;
}

TEST(what_has_a_protection_key_does_not_move)
{
	nothing_moves(lock_by_key, unlock_by_key);
}

static int uffd;

static bool watch(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .range = { (uintptr_t)buffers[2], HP_PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	uffd = (int)raw(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY, 0, 0, 0, 0, 0);
	return uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api) && !ioctl(uffd, UFFDIO_REGISTER, &reg);
}

/* Of other memory: whoever watches may be told of children, and would be told of the trial. */
static bool watch_other(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	void *p = mmap(NULL, HP_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register reg = { .range = { (uintptr_t)p, HP_PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	uffd = (int)raw(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY, 0, 0, 0, 0, 0);
	return uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api) && !ioctl(uffd, UFFDIO_REGISTER, &reg);
}

static bool unwatch(void)
{
	return close(uffd) == 0;
}

TEST(what_the_program_watches_does_not_move)
{
	nothing_moves(watch, unwatch);
}

static char locked[8192];

static bool lock(void)
{
	return mlock(locked, sizeof locked) == 0;
}

static bool unlock(void)
{
	return munlock(locked, sizeof locked) == 0;
}

TEST(who_watches_any_memory_is_not_told_of_a_trial)
{
	nothing_moves(watch_other, unwatch);
}

TEST(of_a_process_that_locks_memory_nothing_moves)
{
	nothing_moves(lock, unlock);
}

static struct hugepin_extent held;

static bool hold(void)
{
	return hugepin_extent(buffers[2], &held, sizeof held) > 0 &&
	       hp_heap_hold((uintptr_t)held.addr, held.len, held.gen, HP_HOLD_COPY) == 0;
}

static bool drop(void)
{
	hp_heap_drop((uintptr_t)held.addr, held.len, HP_HOLD_COPY);
	return true;
}

TEST(while_a_page_is_held_nothing_moves)
{
	nothing_moves(hold, drop);
}

static hugepin_domain *domain;

/* A domain that keeps nothing registered holds no pages, and still has this buffer locked. */
static bool pin_by_itself(void)
{
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_NONE };
	struct hugepin_pin pin;

	return hugepin_domain_open(hugepin_mlock(), NULL, &attr, &domain) == 0 &&
	       hugepin_pin(domain, buffers[2], SIZE, 0, &pin) == 0;
}

TEST(what_a_domain_has_registered_by_itself_does_not_move)
{
	nothing_moves(pin_by_itself, NULL);
}

static size_t heads_max;

static bool few_mappings(void)
{
	heads_max = hp_span.heads_max;
	hp_span.heads_max = hp_span.heads + 1;
	return true;
}

static bool many_mappings(void)
{
	hp_span.heads_max = heads_max;
	return true;
}

TEST(what_would_take_too_many_mappings_does_not_move)
{
	nothing_moves(few_mappings, many_mappings);
}

static char path[] = "/tmp/hugepin-move-XXXXXX";

/* Room for a copy, and not for two. */
static bool little_memory(void)
{
	char text[64];
	int fd = mkstemp(path);

	snprintf(text, sizeof text, "MemAvailable: %zu kB\n", ((size_t)BUFFERS * SIZE * 3 / 2 + 64 * MIB) / KIB);
	says.memory = path;
	return fd >= 0 && write(fd, text, strlen(text)) > 0 && close(fd) == 0;
}

static bool much_memory(void)
{
	unlink(path);
	says.memory = NULL;
	return true;
}

TEST(what_parent_and_child_would_not_find_memory_for_does_not_move)
{
	nothing_moves(little_memory, much_memory);
}

static pid_t other;
static char other_stack[16384];

static int stand_by(void *arg)
{
	(void)arg;
	for (;;)
		raw(SYS_pause, 0, 0, 0, 0, 0, 0);
	return 0;
}

/* No thread that the C library could know of. */
static bool share_memory(void)
{
	other = clone(stand_by, other_stack + sizeof other_stack, CLONE_VM | SIGCHLD, NULL);
	return other > 0;
}

static bool end_sharing(void)
{
	int status;

	return kill(other, SIGKILL) == 0 && waitpid(other, &status, 0) == other;
}

TEST(while_another_process_has_the_memory_nothing_moves)
{
	nothing_moves(share_memory, end_sharing);
}

static _Atomic int told;

static void *wait_told(void *arg)
{
	while (!told)
		sleep_ms(1);
	return arg;
}

/* A fork that copies for a process with threads is the last whose buffers come from the pool. */
static void fork_with_a_thread(void)
{
	pthread_t t;
	size_t all;
	void *p;

	take();
	all = pool_left();
	EXPECT(!pthread_create(&t, NULL, wait_told, NULL));
	fork_once();
	EXPECT_EQ(pool_left(), all);
	EXPECT_EQ(HP_STAT(forks_copied), 1);
	EXPECT(hp_span.no_pool);
	p = hugepin_malloc(40 * MIB);
	EXPECT(hp_span.page[page_at(p)].kind != HUGEPIN_KIND_HUGETLB);
	told = 1;
	pthread_join(t, NULL);
}

TEST(with_threads_nothing_moves_and_no_more_comes_from_the_pool)
{
	in_a_process(fork_with_a_thread);
}

/* Nothing is placed on pages of the pool from then on, and each goes when it is empty. */
static void replace_with_a_thread(void)
{
	enum { PART = 64 << 10, PARTS = 4 };
	unsigned char *parts[PARTS], *p;
	pthread_t t;
	size_t all;

	for (int i = 0; i < PARTS; i++)
		parts[i] = hugepin_malloc(PART);
	take();
	hugepin_purge();
	all = HP_STAT(hugetlb_bytes);
	EXPECT(!pthread_create(&t, NULL, wait_told, NULL));
	hugepin_free(parts[1]);
	fork_once();
	hugepin_free(parts[0]);
	for (int i = 0; i < 2; i++) {
		parts[i] = hugepin_malloc(PART);
		EXPECT(hp_span.page[page_at(parts[i])].kind != HUGEPIN_KIND_HUGETLB);
	}
	for (int i = 0; i < BUFFERS; i++) {
		hugepin_free(buffers[i]);
		p = hugepin_aligned_alloc(HP_PAGE, SIZE);
		buffers[i] = p;
		EXPECT_EQ(pool_of(i), 0);
		pattern_write(p, SIZE, (uint64_t)i);
		fork_once();
		hugepin_purge();
		EXPECT_EQ(HP_STAT(hugetlb_bytes), all - (size_t)(i + 1) * SIZE);
	}
	for (int i = 2; i < PARTS; i++) {
		EXPECT(hp_span.page[page_at(parts[i])].kind == HUGEPIN_KIND_HUGETLB);
		hugepin_free(parts[i]);
	}
	hugepin_purge();
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	told = 1;
	pthread_join(t, NULL);
}

TEST(with_threads_the_heap_leaves_the_pool_as_buffers_come_and_go)
{
	in_a_process(replace_with_a_thread);
}

/* Sizes at random, and a fork now and then. */
static void replace_at_random(void)
{
	enum { COUNT = 40, CHANGES = 1500 };
	static struct { unsigned char *p; size_t size; uint64_t seed; } some[COUNT];
	uint64_t rand = 20261123;
	pthread_t t;

	EXPECT(!pthread_create(&t, NULL, wait_told, NULL));
	for (int i = 0; i < CHANGES; i++) {
		const uint64_t r = rand_next(&rand);
		const int k = (int)(r % COUNT);
		const size_t size = rand_size(&rand, 1, 3 * MIB);

		if (some[k].p)
			EXPECT_EQ(pattern_check(some[k].p, some[k].size, some[k].seed), -1);
		if (some[k].p && r >> 8 & 1) {
			some[k].p = hugepin_realloc(some[k].p, size);
		} else {
			hugepin_free(some[k].p);
			some[k].p = r >> 9 & 1 ? hugepin_malloc(size) : hugepin_calloc(1, size);
			if (!(r >> 9 & 1))
				EXPECT_EQ(zero_check(some[k].p, size), -1);
		}
		some[k].size = size;
		some[k].seed = r;
		pattern_write(some[k].p, size, r);
		if (i % 100 == 99) {
			pid_t pid = fork();

			if (pid == 0) {
				for (int j = 0; j < COUNT; j++)
					if (some[j].p && pattern_check(some[j].p, some[j].size, some[j].seed) != -1)
						_exit(1);
				for (int j = 0; j < COUNT; j += 2) {
					hugepin_free(some[j].p);
					some[j].p = hugepin_calloc(1, some[j].size + 1);
					if (zero_check(some[j].p, some[j].size + 1) != -1)
						_exit(2);
				}
				_exit(0);
			}
			EXPECT_EQ(child_wait(pid, 50), 0);
		}
		if (i % 370 == 369)
			hugepin_purge();
	}
	for (int k = 0; k < COUNT; k++)
		hugepin_free(some[k].p);
	hugepin_purge();
	EXPECT_EQ(HP_STAT(taken_bytes), 0);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	EXPECT_EQ(hp_span.left, 0);
	told = 1;
	pthread_join(t, NULL);
}

TEST(with_threads_and_forks_contents_are_kept_while_the_heap_leaves_the_pool)
{
	in_a_process(replace_at_random);
}

/* ------------------------------------------------------------------ what stays */

/* The trial child has not got it, and cannot tell. */
static void keep_out_of_children(void)
{
	int looks;

	take();
	EXPECT_EQ(raw(SYS_madvise, (long)buffers[2], SIZE, MADV_DONTFORK, 0, 0, 0), 0);
	memset(buffers[2], 0, SIZE);
	for (int i = 0; i < 3; i++) {
		pid_t pid;

		looks = says.looks;
		pid = fork();
		if (pid == 0)
			_exit(pattern_check(buffers[0], SIZE, 0) != -1 || pattern_check(buffers[3], SIZE, 3) != -1);
		EXPECT_EQ(child_wait(pid, 50), 0);
		EXPECT_EQ(pool_of(0) + pool_of(1) + pool_of(3), 0);
		EXPECT_EQ(pool_of(2), SIZE / HP_PAGE);
		EXPECT_EQ(zero_check(buffers[2], SIZE), -1);
		expect_borders();
		expect_counted();
		EXPECT_EQ(says.looks > looks, i == 0); /* and later forks do not ask again */
	}
}

TEST(what_is_kept_out_of_children_stays_and_is_not_tried_again)
{
	in_a_process(keep_out_of_children);
}

static void pin_from_elsewhere(void)
{
	int fds[2];

	take();
	if (pipe(fds) || (other = ring_elsewhere(buffers[2], SIZE, fds[0])) < 0)
		_exit(SKIPPED);
	for (int i = 0; i < 3; i++) {
		fork_once();
		EXPECT_EQ(pool_of(0) + pool_of(1) + pool_of(3), 0);
		EXPECT_EQ(pool_of(2), SIZE / HP_PAGE);
		expect_borders();
	}
	EXPECT(write(fds[1], "fixed", 5) == 5);
	for (int i = 0; i < 50000 && memcmp(buffers[2], "fixed", 5) != 0; i++)
		sleep_ms(1);
	EXPECT(memcmp(buffers[2], "fixed", 5) == 0);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
}

TEST(what_somebody_has_pinned_stays_and_is_written_to_afterwards)
{
	in_a_process(pin_from_elsewhere);
}

/* As some kernels do of the pool's pages: what a fork that copied has kept out of its child is kept out for good. */
static void refuse_dofork(void)
{
	unsigned char *p;

	says.no_dofork = true;
	take();
	if (!open_ring())
		return;
	fork_once();
	EXPECT_EQ(pool_left(), BUFFERS * SIZE / HP_PAGE);
	close_ring();
	p = hugepin_aligned_alloc(HP_PAGE, SIZE);
	pattern_write(p, SIZE, 9);
	EXPECT_EQ(hp_span.page[page_at(p)].kind, HUGEPIN_KIND_HUGETLB);
	for (int i = 0; i < 3; i++) {
		fork_once();
		EXPECT(hp_span.page[page_at(p)].kind != HUGEPIN_KIND_HUGETLB);
		EXPECT_EQ(pattern_check(p, SIZE, 9), -1);
	}
}

TEST(where_the_kernel_does_not_let_pages_into_children_again_others_move)
{
	in_a_process(refuse_dofork);
}

T_MAIN
