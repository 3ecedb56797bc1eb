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
	bool old, filter, no_dofork, no_copy;
	uint64_t nodes[16]; /* none: the first one */
	int nodes_error, ring, ring_error, list_error; /* an errno, and the place of a ring that has no descriptor, from 1 on */
	const char *namespace, *device, *device_at, *memory; /* what links and /proc/meminfo say */
	const char *absent; /* a file or directory */
	uintptr_t put_max; /* nothing is moved there or above, and below no more than a page at a time */
	uintptr_t map_max; /* and nothing is mapped there or above */
	int looks; /* at the descriptors */
	int small; /* pages that were to be no hugepages */
	void (*meanwhile)(void); /* once, while a fork makes its copy */
} says;

/* Files of devices that do not write by themselves, as descriptors FIRST and above. */
enum { FIRST = 100, HARMLESS = 14 };
static const char *const harmless[HARMLESS] = { "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/0",
						"/dev/ptmx", "/dev/console", "/dev/shm/x", "/dev/mqueue/x", "/dev/hugepages/x",
						"/home/dev/infiniband", "socket:[7]" };
static bool many_open;

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
	} else if (nr == SYS_mremap && says.put_max && (b > (long)HP_PAGE || (uintptr_t)e >= says.put_max)) {
		r = -ENOMEM;
	} else if (nr == SYS_mmap && d & MAP_FIXED && c != PROT_NONE && says.map_max && (uintptr_t)a >= says.map_max) {
		r = -ENOMEM;
	} else if (nr == SYS_madvise && c == 23 /* MADV_POPULATE_WRITE */ && says.no_copy) {
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
	} else if (nr == SYS_mlock && (uintptr_t)a - hp_span.base < hp_span.size) {
		r = 0; /* without a trace, as of the pool's pages */
	} else {
		void (*meanwhile)(void) = nr == SYS_madvise && c == 23 ? says.meanwhile : NULL;

		if (meanwhile) {
			says.meanwhile = NULL;
			meanwhile();
		}
		says.looks += nr == SYS_getdents64;
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
	says.nodes[0] = 5;
	return true;
}

static bool one_node(void)
{
	says.nodes[0] = 1;
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
	says.ring = 4;
	return true;
}

static bool unregistered_ring(void)
{
	says.ring = 0;
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

static _Atomic int freeing;

static void *free_a_buffer(void *arg)
{
	hugepin_free(hugepin_malloc(64 << 10)); /* so that free() takes the heap's lock once, and not twice */
	freeing = 1;
	while (freeing != 2)
		sleep_ms(1);
	hugepin_free(arg);
	freeing = 3;
	while (!told)
		sleep_ms(1);
	return arg;
}

static void wait_at_the_lock(void)
{
	freeing = 2;
	while (hp_heap_lock.word != 2) /* somebody sleeps there */
		sleep_ms(1);
}

static void free_meanwhile(void)
{
	unsigned char *p = hugepin_malloc(64 << 10);
	pthread_t t;

	take();
	EXPECT(hp_span.page[page_at(p)].kind == HUGEPIN_KIND_HUGETLB);
	EXPECT(!pthread_create(&t, NULL, free_a_buffer, p));
	while (freeing != 1)
		sleep_ms(1);
	says.meanwhile = wait_at_the_lock;
	fork_once();
	EXPECT(!says.meanwhile && hp_span.no_pool);
	while (freeing != 3)
		sleep_ms(1);
	for (int i = 0; i < BUFFERS; i++)
		hugepin_free(buffers[i]);
	hugepin_purge();
	EXPECT_EQ(HP_STAT(taken_bytes), 0);
	EXPECT_EQ(HP_STAT(hugetlb_bytes), 0);
	told = 1;
	pthread_join(t, NULL);
}

TEST(a_buffer_that_waits_to_be_freed_while_its_page_begins_to_leave_the_pool_leaves_nothing_behind)
{
	in_a_process(free_meanwhile);
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

/* ------------------------------------------------------------------ one reason after the other, without a fork */

static size_t move_now(void)
{
	size_t moved;

	hp_lock(&hp_heap_lock);
	errno = 77;
	moved = hp_move();
	EXPECT_EQ(errno, 77);
	hp_unlock(&hp_heap_lock);
	EXPECT(intact());
	expect_counted();
	for (size_t p = 1; p < hp_span.tree.used; p++)
		EXPECT_EQ(hp_span.page[p].fork, HP_PAGE_SHARED);
	return moved;
}

/* Neighbouring pages of the pool that are in buffers. */
static size_t pool_runs(void)
{
	size_t runs = 0;
	bool before = false;

	for (size_t p = 1; p < hp_span.tree.used; p++) {
		bool now = hp_span.page[p].state == HP_PAGE_READY && hp_span.page[p].kind == HUGEPIN_KIND_HUGETLB &&
			   !hp_tree_page_free(&hp_span.tree, p);

		runs += now && !before;
		before = now;
	}
	return runs;
}

/* After reasons not to there are none. */
static void expect_moves(void)
{
	EXPECT_EQ(move_now(), BUFFERS * SIZE / HP_PAGE);
	EXPECT_EQ(pool_left(), 0);
	EXPECT_EQ(move_now(), 0);
}

static void stay_for_devices(void)
{
	static const char *const harmful[] = { "/dev/infiniband/uverbs0", "/dev/nvidia0", "/dev/vfio/1", "/dev/dri/renderD128", "/dev/",
					       "/dev/nul", "/dev/sda", "anon_inode:[io_uring]", "/dev/shm" };

	take();
	for (size_t i = 0; i < sizeof harmful / sizeof *harmful; i++) {
		says.device = harmful[i];
		if (!EXPECT_EQ(move_now(), 0))
			T_FAIL("%s", harmful[i]);
	}
	says.device = NULL;
	many_open = true;
	for (int i = 0; i < HARMLESS; i++)
		EXPECT_EQ(fcntl(1, F_DUPFD_CLOEXEC, FIRST + i), FIRST + i);
	expect_moves();
}

TEST(each_device_that_may_write_by_itself_keeps_all_and_no_other_does)
{
	in_a_process(stay_for_devices);
}

/* The list comes in parts. */
static void stay_for_the_last_descriptor(void)
{
	int last = 0;
	char name[12];

	take();
	for (int i = 0; i < 700; i++)
		last = fcntl(1, F_DUPFD_CLOEXEC, 4);
	EXPECT(last > 700);
	snprintf(name, sizeof name, "%d", last);
	says.device_at = name;
	says.device = "/dev/vfio/vfio";
	EXPECT_EQ(move_now(), 0);
	EXPECT(says.looks > 2);
	says.device = "/dev/null";
	expect_moves();
}

TEST(of_many_descriptors_the_last_one_counts)
{
	in_a_process(stay_for_the_last_descriptor);
}

static void stay_for_what_is_not_known(void)
{
	take();
	says.absent = "/proc/self/pagemap";
	EXPECT_EQ(move_now(), 0);
	says.absent = NULL;
	says.list_error = EIO;
	EXPECT_EQ(move_now(), 0);
	says.list_error = 0;
	says.absent = "/proc/self/fd";
	EXPECT_EQ(move_now(), 0);
	says.absent = "/proc/self/smaps";
	EXPECT_EQ(move_now(), 0);
	says.absent = NULL;
	expect_moves();
}

TEST(what_cannot_be_read_keeps_all)
{
	in_a_process(stay_for_what_is_not_known);
}

static void move_without_standard_input(void)
{
	take();
	close(0);
	expect_moves();
	EXPECT(fcntl(0, F_GETFD) < 0);
}

TEST(a_program_without_standard_input_is_as_any_other)
{
	in_a_process(move_without_standard_input);
}

/* Of one page, the first, the last and all between. */
static void stay_for_each_page(void)
{
	static const int advice[][2] = { { MADV_DONTDUMP, MADV_DODUMP }, { PROT_READ, PROT_READ | PROT_WRITE },
					 { PROT_READ | PROT_WRITE | PROT_EXEC, PROT_READ | PROT_WRITE } };

	take();
	for (int i = 0; i < BUFFERS; i++)
		for (size_t at = 0; at < SIZE; at += HP_PAGE) {
			int k = (int)((size_t)i + at / HP_PAGE) % 3;
			long nr = k ? SYS_mprotect : SYS_madvise;

			EXPECT_EQ(raw(nr, (long)buffers[i] + (long)at, HP_PAGE, advice[k][0], 0, 0, 0), 0);
			if (!EXPECT_EQ(move_now(), 0))
				T_FAIL("page %zu of buffer %d", at / HP_PAGE, i);
			EXPECT_EQ(raw(nr, (long)buffers[i] + (long)at, HP_PAGE, advice[k][1], 0, 0, 0), 0);
		}
	EXPECT_EQ(raw(SYS_madvise, (long)hp_span.base, HP_PAGE, MADV_DONTDUMP, 0, 0, 0), 0); /* which is no buffer's */
	expect_moves();
}

TEST(each_page_by_itself_keeps_all_when_the_kernel_knows_of_it)
{
	in_a_process(stay_for_each_page);
}

static void stay_for_nodes(void)
{
	take();
	for (int i = 1; i < 16; i += 7) {
		says.nodes[0] = 1;
		says.nodes[i] = (uint64_t)1 << 63;
		EXPECT_EQ(move_now(), 0);
		says.nodes[i] = 0;
	}
	says.nodes[0] = 3;
	EXPECT_EQ(move_now(), 0);
	says.nodes_error = EPERM;
	EXPECT_EQ(move_now(), 0);
	says.nodes[0] = 1;
	EXPECT_EQ(move_now(), 0);
	says.nodes_error = ENOSYS; /* a kernel without nodes */
	expect_moves();
}

TEST(several_nodes_or_not_to_know_of_them_keeps_all)
{
	in_a_process(stay_for_nodes);
}

static void move_on_another_node(void)
{
	take();
	says.nodes[15] = (uint64_t)1 << 63;
	expect_moves();
}

TEST(one_node_may_be_any)
{
	in_a_process(move_on_another_node);
}

static void stay_for_rings(void)
{
	take();
	for (int i = 1; i <= 16; i++) {
		says.ring = i;
		EXPECT_EQ(move_now(), 0);
	}
	says.ring = 17; /* there is no such place */
	says.ring_error = EPERM;
	EXPECT_EQ(move_now(), 0);
	says.ring_error = EOPNOTSUPP;
	EXPECT_EQ(move_now(), 0);
	says.ring_error = ENOSYS;
	expect_moves();
}

static void move_without_rings(void)
{
	take();
	says.ring = 17;
	says.ring_error = EINVAL;
	expect_moves();
}

static void move_without_a_table_of_rings(void)
{
	take();
	says.ring = 17;
	says.ring_error = EBADF;
	expect_moves();
}

TEST(a_ring_in_any_place_keeps_all_and_no_other_answer_than_that_there_is_none)
{
	in_a_process(stay_for_rings);
	in_a_process(move_without_rings);
	in_a_process(move_without_a_table_of_rings);
}

/* The copy, as much again, and the margin, to the last KiB; and room for two more borders of mappings than there are for each run. */
static void stay_for_the_last_bit(void)
{
	char text[64];
	size_t kib = ((size_t)BUFFERS * SIZE * 2 + 64 * MIB) / KIB;
	int fd = mkstemp(path);

	take();
	says.memory = path;
	for (int i = 0; i < 2; i++) {
		snprintf(text, sizeof text, "MemAvailable: %zu kB\n", kib - 1 + (size_t)i);
		EXPECT(pwrite(fd, text, strlen(text), 0) > 0);
		if (i == 0)
			EXPECT_EQ(move_now(), 0);
	}
	heads_max = hp_span.heads_max;
	hp_span.heads_max = hp_span.heads + 2 * pool_runs() - 1;
	EXPECT_EQ(move_now(), 0);
	hp_span.heads_max++;
	expect_moves();
	EXPECT(hp_span.heads <= hp_span.heads_max);
	hp_span.heads_max = heads_max;
	close(fd);
	unlink(path);
}

TEST(exactly_as_much_memory_and_mappings_as_are_needed_do)
{
	in_a_process(stay_for_the_last_bit);
}

/* With holes: each run of pages is asked for, and borders are counted for each. */
static void move_runs(void)
{
	take();
	hugepin_free(buffers[1]);
	hugepin_purge();
	buffers[1] = buffers[0];
	EXPECT(pool_runs() >= 2);
	heads_max = hp_span.heads_max;
	hp_span.heads_max = hp_span.heads + 2 * pool_runs() - 1;
	hp_lock(&hp_heap_lock);
	EXPECT_EQ(hp_move(), 0);
	hp_span.heads_max++;
	EXPECT_EQ(hp_move(), (BUFFERS - 1) * SIZE / HP_PAGE);
	hp_unlock(&hp_heap_lock);
	EXPECT_EQ(pool_of(0) + pool_of(2) + pool_of(3), 0);
	EXPECT(pattern_check(buffers[0], SIZE, 0) == -1 && pattern_check(buffers[2], SIZE, 2) == -1 &&
	       pattern_check(buffers[3], SIZE, 3) == -1);
	expect_counted();
	expect_borders();
	hp_span.heads_max = heads_max;
}

TEST(what_is_used_moves_in_several_runs_and_holes_stay)
{
	in_a_process(move_runs);
}

/* ------------------------------------------------------------------ what goes wrong on the way */

static long addresses(void)
{
	return file_number("/proc/self/statm");
}

static void again(void)
{
	for (int i = 0; i < BUFFERS; i++)
		hugepin_free(buffers[i]);
	hugepin_purge();
	hp_span.no_pool = false;
	take();
	EXPECT_EQ(pool_left(), BUFFERS * SIZE / HP_PAGE);
}

/* mremap moves one mapping at most before Linux 6.17, or none when memory is counted strictly. */
static void move_by_pages(void)
{
	long before;

	take();
	expect_moves();
	again();
	expect_moves();
	before = addresses();
	again();
	says.put_max = UINTPTR_MAX; /* no run */
	expect_moves();
	EXPECT_EQ(addresses(), before);
	expect_borders();
	again();
	says.put_max = (uintptr_t)buffers[1]; /* no page from here on */
	expect_moves();
	EXPECT_EQ(addresses(), before);
	expect_borders();
	says.put_max = 0;
	again();
	expect_moves();
	EXPECT_EQ(addresses(), before);
}

TEST(where_a_run_cannot_be_moved_its_pages_are)
{
	in_a_process(move_by_pages);
}

/* Pages of buffers below the second page of buffers[1]. */
static size_t pool_first(void)
{
	size_t n = 0;

	for (int i = 0; i < BUFFERS; i++)
		n += buffers[i] < buffers[1] ? SIZE / HP_PAGE : 0;
	return n + 1;
}

/* The rest is where it was. */
static void stop_half_way(void)
{
	take();
	says.put_max = says.map_max = (uintptr_t)buffers[1] + HP_PAGE;
	EXPECT_EQ(move_now(), pool_first());
	EXPECT_EQ(pool_of(0), 0);
	EXPECT_EQ(pool_left(), BUFFERS * SIZE / HP_PAGE - pool_first());
	EXPECT_EQ(hp_span.page[page_at(buffers[1])].kind, HUGEPIN_KIND_THP);
	EXPECT_EQ(hp_span.page[page_at(buffers[1]) + 1].kind, HUGEPIN_KIND_HUGETLB);
	expect_borders();
	says.put_max = says.map_max = 0;
	EXPECT_EQ(move_now(), BUFFERS * SIZE / HP_PAGE - pool_first());
	EXPECT_EQ(pool_left(), 0);
	expect_borders();
}

TEST(where_pages_cannot_be_put_those_and_later_ones_stay)
{
	in_a_process(stop_half_way);
}

static void stay_without_a_copy(void)
{
	long before;

	take();
	expect_moves();
	again();
	before = addresses();
	says.no_copy = true;
	EXPECT_EQ(move_now(), 0);
	EXPECT_EQ(addresses(), before);
	EXPECT_EQ(pool_left(), BUFFERS * SIZE / HP_PAGE);
	says.no_copy = false;
	expect_moves();
}

TEST(without_memory_for_the_copy_all_stays_and_moves_the_next_time)
{
	in_a_process(stay_without_a_copy);
}

/* ------------------------------------------------------------------ hugepages that take long */

/* What base pages take, and then each hugepage that is populated by itself; each is asked before and after. */
static uint64_t base_ns, huge_ns, clock_now;
static int asked;

static uint64_t slow_clock(void)
{
	if (asked++ % 2)
		clock_now += asked <= 2 ? base_ns : huge_ns;
	return clock_now;
}

static int small_of(uint64_t huge)
{
	again();
	base_ns = 100;
	huge_ns = huge;
	asked = 0;
	says.small = 0;
	hp_clock_set(slow_clock);
	expect_moves();
	hp_clock_set(NULL);
	EXPECT(says.small >= 1);
	return says.small - 1; /* what was tried first was one */
}

static void fill_slowly(void)
{
	const int all = BUFFERS * SIZE / HP_PAGE;

	take();
	EXPECT_EQ(small_of(300), 0);
	EXPECT_EQ(small_of(301), all - 2);
	EXPECT_EQ(small_of(1), 0);
	EXPECT_EQ(small_of(100000), all - 2);
}

TEST(once_two_hugepages_take_longer_than_three_times_their_base_pages_the_rest_are_base_pages)
{
	in_a_process(fill_slowly);
}

T_MAIN
