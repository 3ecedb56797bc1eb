/*
 * Reasons for which a fork moves nothing (alloc/move.c), one at a time: first with a fork for each, then each kind of
 * reason in all its values, without forks.
 */
#include "tests/unit/move.h"

#include <liburing.h>
#include <linux/aio_abi.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "alloc/hold.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

/* Returns false if this machine does not have the thing. */
typedef bool step(void);

/* Runs in a process of its own. The first fork has a reason not to move, and finds the reason before it changes
 * anything. The second fork has none. */
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

static step *begin_case, *end_case;

static void run_case(void)
{
	case_of(begin_case, end_case);
}

static void nothing_moves(step *begin, step *end)
{
	begin_case = begin;
	end_case = end;
	in_a_process(run_case);
}

/* A step after which the kernel says something else. */
#define SAYS(step, assignment)                                                                                         \
	static bool step(void)                                                                                         \
	{                                                                                                              \
		assignment;                                                                                            \
		return true;                                                                                           \
	}

SAYS(is_old, says.old = true)

TEST_CASE(before_the_kernel_pins_for_all_direct_io_nothing_moves, nothing_moves(is_old, NULL))

SAYS(filter, says.filter = true)
SAYS(no_filter, says.filter = false)

TEST_CASE(behind_a_filter_of_system_calls_nothing_moves, nothing_moves(filter, no_filter))

SAYS(two_nodes, says.nodes[0] = 5)
SAYS(one_node, says.nodes[0] = 1)

TEST_CASE(with_several_nodes_nothing_moves, nothing_moves(two_nodes, one_node))

SAYS(other_namespace, says.namespace = "pid:[4026539999]")
SAYS(empty_namespace, says.namespace = "")
SAYS(own_namespace, says.namespace = NULL)

TEST_CASE(before_a_child_that_is_the_first_of_its_namespace_nothing_moves,
	  nothing_moves(empty_namespace, own_namespace))
TEST_CASE(before_a_child_in_another_namespace_nothing_moves, nothing_moves(other_namespace, own_namespace))

static bool unshared(void)
{
	return unshare(CLONE_NEWPID) == 0;
}

TEST_CASE(the_first_child_of_a_new_namespace_is_the_programs, nothing_moves(unshared, NULL))

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

TEST_CASE(with_a_ring_of_an_io_uring_nothing_moves, nothing_moves(open_ring, close_ring))

/* Some kernels refuse MADV_DOFORK for pages of the pool. Pages that a copying fork kept out of its child stay out for
 * good. */
TEST_BY(in_a_process, where_the_kernel_does_not_let_pages_into_children_again_others_move)
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

SAYS(registered_ring, says.ring = 4)
SAYS(unregistered_ring, says.ring = 0)

TEST_CASE(with_a_ring_that_has_no_descriptor_nothing_moves, nothing_moves(registered_ring, unregistered_ring))

static aio_context_t aio;

static bool open_aio(void)
{
	return raw(SYS_io_setup, 4, (long)&aio, 0, 0, 0, 0) == 0;
}

static bool close_aio(void)
{
	return raw(SYS_io_destroy, (long)aio, 0, 0, 0, 0, 0) == 0;
}

TEST_CASE(with_a_context_of_asynchronous_io_nothing_moves, nothing_moves(open_aio, close_aio))

SAYS(device, says.device = "/dev/infiniband/uverbs0")
SAYS(terminal, says.device = "/dev/pts/3")

TEST_CASE(with_a_device_open_that_may_write_by_itself_nothing_moves, nothing_moves(device, terminal))

static bool hide_one(void)
{
	return raw(SYS_madvise, (long)buffers[2], HP_PAGE, MADV_DONTDUMP, 0, 0, 0) == 0;
}

TEST_CASE(what_is_not_to_be_dumped_does_not_move, nothing_moves(hide_one, NULL))

static bool make_executable(void)
{
	return raw(SYS_mprotect, (long)buffers[2], HP_PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, 0, 0, 0) == 0;
}

TEST_CASE(what_is_protected_does_not_move, nothing_moves(make_executable, NULL))

static long key;

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

/* The kernel maps nothing in the place of a sealed page. */
static bool seal(void)
{
	return raw(SYS_mseal, (long)buffers[2], HP_PAGE, 0, 0, 0, 0) == 0;
}

TEST_CASE(what_is_sealed_does_not_move, nothing_moves(seal, NULL))

static bool lock_by_key(void)
{
	key = raw(SYS_pkey_alloc, 0, 0, 0, 0, 0, 0);
	return key > 0 && raw(SYS_pkey_mprotect, (long)buffers[2], HP_PAGE, PROT_READ | PROT_WRITE, key, 0, 0) == 0;
}

static bool unlock_by_key(void)
{
	return raw(SYS_pkey_mprotect, (long)buffers[2], HP_PAGE, PROT_READ | PROT_WRITE, 0, 0, 0) == 0;
}

TEST_CASE(what_has_a_protection_key_does_not_move, nothing_moves(lock_by_key, unlock_by_key))

static int uffd;

static bool watch(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .range = { (uintptr_t)buffers[2], HP_PAGE },
				       .mode = UFFDIO_REGISTER_MODE_MISSING };

	uffd = (int)raw(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY, 0, 0, 0, 0, 0);
	return uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api) && !ioctl(uffd, UFFDIO_REGISTER, &reg);
}

/* Watch other memory. A watcher may be told of children, and would be told of the trial child too. */
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

TEST_CASE(what_the_program_watches_does_not_move, nothing_moves(watch, unwatch))

static char locked[8192];

static bool lock(void)
{
	return mlock(locked, sizeof locked) == 0;
}

static bool unlock(void)
{
	return munlock(locked, sizeof locked) == 0;
}

TEST_CASE(who_watches_any_memory_is_not_told_of_a_trial, nothing_moves(watch_other, unwatch))
TEST_CASE(of_a_process_that_locks_memory_nothing_moves, nothing_moves(lock, unlock))

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

TEST_CASE(while_a_page_is_held_nothing_moves, nothing_moves(hold, drop))

static hugepin_domain *domain;

/* A domain without a cache holds no pages of the heap, and has this buffer locked. */
static bool pin_by_itself(void)
{
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_NONE };
	struct hugepin_pin pin;

	return hugepin_domain_open(hugepin_mlock(), NULL, &attr, &domain) == 0 &&
	       hugepin_pin(domain, buffers[2], SIZE, 0, &pin) == 0;
}

TEST_CASE(what_a_domain_has_registered_by_itself_does_not_move, nothing_moves(pin_by_itself, NULL))

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

TEST_CASE(what_would_take_too_many_mappings_does_not_move, nothing_moves(few_mappings, many_mappings))

static char path[] = "/tmp/hugepin-move-XXXXXX";

/* Memory for one copy, but not for two. */
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

TEST_CASE(what_parent_and_child_would_not_find_memory_for_does_not_move, nothing_moves(little_memory, much_memory))

static pid_t other;
static char other_stack[16384];

static int stand_by(void *arg)
{
	(void)arg;
	for (;;)
		raw(SYS_ppoll, 0, 0, 0, 0, 0, 0);
	return 0;
}

/* A process that shares the memory. The C library does not know of it. */
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

TEST_CASE(while_another_process_has_the_memory_nothing_moves, nothing_moves(share_memory, end_sharing))

/* ------------------------------------------------------------------ each value of a reason, without a fork */

TEST_BY(in_a_process, each_device_that_may_write_by_itself_keeps_all_and_no_other_does)
{
	static const char *const harmful[] = { "/dev/infiniband/uverbs0", "/dev/nvidia0", "/dev/vfio/1",
					       "/dev/dri/renderD128", "/dev/",
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

/* The list of descriptors is longer than one read. */
TEST_BY(in_a_process, of_many_descriptors_the_last_one_counts)
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

TEST_BY(in_a_process, what_cannot_be_read_keeps_all)
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

TEST_BY(in_a_process, a_program_without_standard_input_is_as_any_other)
{
	take();
	close(0);
	expect_moves();
	EXPECT(fcntl(0, F_GETFD) < 0);
}

/* One page has another advice or protection: each page in turn. */
TEST_BY(in_a_process, each_page_by_itself_keeps_all_when_the_kernel_knows_of_it)
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
	/* no buffer uses this page */
	EXPECT_EQ(raw(SYS_madvise, (long)hp_span.base, HP_PAGE, MADV_DONTDUMP, 0, 0, 0), 0);
	expect_moves();
}

TEST_BY(in_a_process, several_nodes_or_not_to_know_of_them_keeps_all)
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

TEST_BY(in_a_process, one_node_may_be_any)
{
	take();
	says.nodes[15] = (uint64_t)1 << 63;
	expect_moves();
}

static void stay_for_rings(void)
{
	take();
	for (int i = 1; i <= 16; i++) {
		says.ring = i;
		EXPECT_EQ(move_now(), 0);
	}
	says.ring = 17; /* the table has no such place */
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

/* The reason is memory: the copy, as much again, and a margin, to the last KiB. The other reason is mappings: two more
 * for each run of pages. */
TEST_BY(in_a_process, exactly_as_much_memory_and_mappings_as_are_needed_do)
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

T_MAIN
