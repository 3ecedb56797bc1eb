/* link: hugepin-verbs hugepin ibverbs */
/* guest: plain odp */
/*
 * The pin cache with a verbs device: what a pin's keys are good for is tried with real RDMA operations, between two
 * connected queue pairs of this process. Where the device writes must be where the program reads.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "live/watched.h"
#include "guest/wire.h"
#include "tests/call.h"

#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#define LEN (64 * KIB)
#define LIMIT (8 * MIB) /* RLIMIT_MEMLOCK, where it is tried */

/* ------------------------------------------------------------------ two connected queue pairs */

/* qp[0] works, qp[1] is the peer: remote keys are those of the peer's side, which is the same protection domain. */
static struct {
	struct wire_port port;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	char *source; /* LEN bytes that the tests send from and read into, registered without the library */
	struct ibv_mr *source_mr;
} wire;

static bool wire_open(void)
{
	if (!wire_port_open(&wire.port))
		return false;
	wire.cq = ibv_create_cq(wire.port.device, 16, NULL, NULL, 0);
	if (!wire.cq)
		return false;
	wire.source = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	wire.source_mr = ibv_reg_mr(wire.port.pd, wire.source, LEN, (int)IBV_ACCESS_LOCAL_WRITE);
	return wire.source_mr && wire_join(&wire.port, wire.cq, wire.qp);
}

static void wire_disconnect(void)
{
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(ibv_destroy_qp(wire.qp[i]), 0);
	while (ibv_poll_cq(wire.cq, 1, &(struct ibv_wc){ 0 }) > 0)
		;
}

static void wire_close(void)
{
	EXPECT_EQ(ibv_dereg_mr(wire.source_mr), 0);
	munmap(wire.source, LEN);
	wire_disconnect();
	EXPECT_EQ(ibv_destroy_cq(wire.cq), 0);
	EXPECT_EQ(ibv_dealloc_pd(wire.port.pd), 0); /* EBUSY if a domain left an MR behind */
	EXPECT_EQ(ibv_close_device(wire.port.device), 0);
	memset(&wire, 0, sizeof wire);
}

/* One operation of qp[0], and its completion's status; -1: none. After an error the connection is made anew, of new
 * queue pairs: the peer's may learn of the error later than we do. */
static int wire_do(enum ibv_wr_opcode opcode, void *local, uint32_t lkey, const void *remote, uint32_t rkey,
		   size_t len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)local, .length = (uint32_t)len, .lkey = lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED
	}, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)remote;
		wr.wr.rdma.rkey = rkey;
	}
	if (ibv_post_send(wire.qp[0], &wr, &bad))
		return -1;
	struct ibv_wc wc;
	time_t end = time(NULL) + t_seconds();
	int n;
	while (!(n = ibv_poll_cq(wire.cq, 1, &wc)) && time(NULL) < end)
		sched_yield();
	if (n != 1 || wc.status != IBV_WC_SUCCESS) {
		wire_disconnect();
		EXPECT(wire_join(&wire.port, wire.cq, wire.qp));
	}
	return n == 1 ? (int)wc.status : -1;
}

/* The device writes a new pattern through a pin of p, and the program finds it there. */
static bool lands(void *p, const struct hugepin_pin *pin, size_t len)
{
	static uint64_t seed;
	pattern_write(wire.source, len, ++seed);
	return EXPECT_EQ(wire_do(IBV_WR_RDMA_WRITE, wire.source, wire.source_mr->lkey, p, pin->rkey, len),
			 IBV_WC_SUCCESS) &&
	       EXPECT_EQ(pattern_check(p, len, seed), -1);
}

/* ------------------------------------------------------------------ domains and memory */

static hugepin_domain *reaching(uint32_t policy, uint32_t reach)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy, .reach = reach };
	hugepin_domain *d = NULL;
	if (reach == HUGEPIN_REACH_EXTENT)
		attr.watch = WATCH_ANYHOW;
	EXPECT_EQ(hugepin_verbs_open(wire.port.pd, &attr, &d), 0);
	return d;
}

static hugepin_domain *domain(uint32_t policy)
{
	return reaching(policy, HUGEPIN_REACH_EXACT);
}

static struct hugepin_domain_stats stats(hugepin_domain *d)
{
	struct hugepin_domain_stats s = { 0 };
	EXPECT(hugepin_domain_stats(d, &s, sizeof s) > 0);
	return s;
}

static char *map(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return EXPECT(p != MAP_FAILED) ? p : NULL;
}

#define NEEDS_WIRE                                                                                                     \
	do {                                                                                                           \
		if (!wire.source_mr && !wire_open())                                                                   \
			SKIP("no verbs device: made for the guest");                                                   \
	} while (0)

TEST(two_queue_pairs_of_this_process_are_connected)
{
	NEEDS_WIRE;
	char *p = map(LEN);
	struct ibv_mr *mr = ibv_reg_mr(wire.port.pd, p, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!EXPECT(mr))
		return;
	struct hugepin_pin pin = { .rkey = mr->rkey };
	EXPECT(lands(p, &pin, LEN));
	EXPECT_EQ(ibv_dereg_mr(mr), 0);
	munmap(p, LEN);
}

/* ------------------------------------------------------------------ keys and access */

TEST(the_device_reads_and_writes_the_programs_memory_through_pins)
{
	NEEDS_WIRE;
	hugepin_domain *d = domain(HUGEPIN_POLICY_DEFAULT);
	char *heap = hugepin_malloc(4 * LEN), *other = map(4 * LEN);
	if (!d || !EXPECT(heap))
		return;
	struct hugepin_pin from, to;
	/* from the heap to other memory and back, in the middle of both */
	char *ends[2] = { heap + LEN + 4712, other + LEN + 40 };
	for (int i = 0; i < 2; i++) {
		char *a = ends[i], *b = ends[!i];
		pattern_write(a, LEN, 77 + (uint64_t)i);
		EXPECT_EQ(hugepin_pin(d, a, LEN, HUGEPIN_READ, &from), 0);
		EXPECT_EQ(hugepin_pin(d, b, LEN, HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE | HUGEPIN_REMOTE_READ, &to), 0);
		EXPECT_EQ(wire_do(IBV_WR_RDMA_WRITE, a, from.lkey, b, to.rkey, LEN), IBV_WC_SUCCESS);
		EXPECT_EQ(pattern_check(b, LEN, 77 + (uint64_t)i), -1);
		EXPECT_EQ(wire_do(IBV_WR_RDMA_READ, wire.source, wire.source_mr->lkey, b, to.rkey, LEN),
			  IBV_WC_SUCCESS);
		EXPECT_EQ(pattern_check(wire.source, LEN, 77 + (uint64_t)i), -1);
		EXPECT_EQ(hugepin_unpin(d, &from), 0);
		EXPECT_EQ(hugepin_unpin(d, &to), 0);
	}
	EXPECT_EQ(hugepin_domain_close(d), 0);
	hugepin_free(heap);
	munmap(other, 4 * LEN);
}

TEST(a_remote_key_allows_what_was_asked_for_and_no_more)
{
	NEEDS_WIRE;
	hugepin_domain *d = domain(HUGEPIN_POLICY_LRU);
	static const struct {
		unsigned access;
		enum ibv_wr_opcode opcode;
		int status;
	} tries[] = {
		{ HUGEPIN_READ | HUGEPIN_WRITE, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR },
		{ HUGEPIN_READ | HUGEPIN_WRITE, IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR },
		{ HUGEPIN_REMOTE_READ, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR },
		{ HUGEPIN_REMOTE_READ, IBV_WR_RDMA_READ, IBV_WC_SUCCESS },
		{ HUGEPIN_REMOTE_WRITE, IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR },
		{ HUGEPIN_REMOTE_WRITE, IBV_WR_RDMA_WRITE, IBV_WC_SUCCESS },
		{ HUGEPIN_REMOTE_WRITE | HUGEPIN_RELAXED, IBV_WR_RDMA_WRITE, IBV_WC_SUCCESS },
		{ HUGEPIN_REMOTE_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_REM_ACCESS_ERR },
		{ HUGEPIN_REMOTE_ATOMIC, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_SUCCESS },
	};
	const size_t n = sizeof tries / sizeof *tries;
	char *memory = map(2 * n * LEN); /* with gaps: what touches is merged */
	for (size_t i = 0; d && i < n; i++) {
		char *p = memory + 2 * i * LEN;
		struct hugepin_pin pin;
		pattern_write(p, LEN, 1);
		pattern_write(wire.source, LEN, 2);
		if (!EXPECT_EQ(hugepin_pin(d, p, LEN, tries[i].access, &pin), 0))
			continue;
		size_t len = tries[i].opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : LEN;
		int status = wire_do(tries[i].opcode, wire.source, wire.source_mr->lkey, p, pin.rkey, len);
		if (!EXPECT_EQ(status, tries[i].status))
			t_print("# try %zu\n", i);
		if (status)
			EXPECT_EQ(pattern_check(p, LEN, 1), -1);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(memory, 2 * n * LEN);
}

TEST(a_peer_adds_to_a_number_of_ours)
{
	NEEDS_WIRE;
	hugepin_domain *d = domain(HUGEPIN_POLICY_DEFAULT);
	uint64_t *n = hugepin_calloc(1, LEN), *old = (uint64_t *)wire.source;
	struct hugepin_pin pin;
	*n = 41;
	if (EXPECT_EQ(hugepin_pin(d, n, sizeof *n, HUGEPIN_REMOTE_ATOMIC, &pin), 0)) {
		EXPECT_EQ(wire_do(IBV_WR_ATOMIC_FETCH_AND_ADD, old, wire.source_mr->lkey, n, pin.rkey, 8),
			  IBV_WC_SUCCESS);
		EXPECT_EQ(*old, 41);
		EXPECT_EQ(*n, 42);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(hugepin_domain_close(d), 0);
	hugepin_free(n);
}

TEST(a_key_ends_with_its_registration)
{
	NEEDS_WIRE;
	hugepin_domain *d = domain(HUGEPIN_POLICY_NONE);
	char *p = map(2 * LEN);
	struct hugepin_pin pin;
	EXPECT_EQ(hugepin_pin(d, p, LEN, HUGEPIN_REMOTE_WRITE, &pin), 0);
	struct hugepin_pin copy = pin;
	EXPECT(lands(p, &copy, LEN));
	EXPECT_EQ(wire_do(IBV_WR_RDMA_WRITE, wire.source, wire.source_mr->lkey, p + LEN, pin.rkey, 1),
		  IBV_WC_REM_ACCESS_ERR); /* beyond its end */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(wire_do(IBV_WR_RDMA_WRITE, wire.source, wire.source_mr->lkey, p, copy.rkey, 1),
		  IBV_WC_REM_ACCESS_ERR);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, 2 * LEN);
}

TEST(a_peer_reaches_the_pages_of_the_pin_and_no_other_buffer)
{
	NEEDS_WIRE;
	/* Whether a write beside the pinned page must fail, and where it would land otherwise. */
	for (uint32_t reach = HUGEPIN_REACH_EXACT; reach <= HUGEPIN_REACH_EXTENT; reach++) {
		hugepin_domain *d = reaching(HUGEPIN_POLICY_DEFAULT, reach);
		char *open = hugepin_malloc(LEN), *other = hugepin_malloc(LEN);
		struct hugepin_pin pin, copy;
		if (!d || !EXPECT(open && other))
			return;
		int expected = reach == HUGEPIN_REACH_EXACT ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS;
		pattern_write(other, LEN, 3);
		EXPECT_EQ(hugepin_pin(d, other, LEN, HUGEPIN_WRITE, &pin), 0); /* ours, not the peer's */
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(hugepin_pin(d, open, LEN, HUGEPIN_REMOTE_WRITE, &pin), 0);
		copy = pin;
		EXPECT(lands(open, &pin, LEN));
		for (int after_unpin = 0; after_unpin < 2; after_unpin++) {
			char *near = other > open && other < open + 2 * MIB ? other : open + LEN;
			EXPECT_EQ(wire_do(IBV_WR_RDMA_WRITE, wire.source, wire.source_mr->lkey, near, copy.rkey, 8), expected);
			if (!after_unpin)
				EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		}
		if (expected)
			EXPECT_EQ(pattern_check(other, LEN, 3), -1);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		hugepin_free(open);
		hugepin_free(other);
	}
}

TEST(a_pin_for_more_access_widens_and_the_earlier_pin_stays_good)
{
	NEEDS_WIRE;
	NEEDS_KERNEL_THAT_WATCHES;
	hugepin_domain *d = reaching(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXTENT);
	char *p = map(LEN);
	struct hugepin_pin reading, writing, again;
	pattern_write(p, LEN, 9);
	EXPECT_EQ(hugepin_pin(d, p, LEN, HUGEPIN_REMOTE_READ, &reading), 0);
	EXPECT_EQ(hugepin_pin(d, p, LEN, HUGEPIN_REMOTE_WRITE, &writing), 0);
	EXPECT_EQ(stats(d).widened, 1);
	EXPECT_EQ(wire_do(IBV_WR_RDMA_READ, wire.source, wire.source_mr->lkey, p, reading.rkey, LEN), IBV_WC_SUCCESS);
	EXPECT_EQ(pattern_check(wire.source, LEN, 9), -1);
	EXPECT(lands(p, &writing, LEN));
	EXPECT_EQ(hugepin_unpin(d, &reading), 0);
	EXPECT(lands(p, &writing, LEN));
	EXPECT_EQ(hugepin_pin(d, p, LEN, HUGEPIN_REMOTE_READ, &again), 0); /* what was widened has both */
	EXPECT_EQ(stats(d).registered, 2);
	EXPECT_EQ(hugepin_unpin(d, &writing), 0);
	EXPECT_EQ(hugepin_unpin(d, &again), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, LEN);
}

TEST(memory_that_is_not_there_or_not_to_be_written_is_EFAULT)
{
	NEEDS_WIRE;
	size_t before = kernel_pinned();
	hugepin_domain *d = domain(HUGEPIN_POLICY_DEFAULT);
	char *p = map(2 * LEN);
	struct hugepin_pin pin = { .ref = 4711 };
	munmap(p + LEN, LEN);
	errno = 0;
	EXPECT_EQ(hugepin_pin(d, p + LEN, LEN, HUGEPIN_WRITE, &pin), -EFAULT);
	EXPECT_EQ(hugepin_pin(d, p, 2 * LEN, HUGEPIN_WRITE, &pin), -EFAULT); /* a part of it */
	EXPECT_EQ(hugepin_pin(d, p + LEN, LEN, HUGEPIN_READ, &pin), -EFAULT);
	EXPECT_EQ(kernel_pinned(), before);

	mprotect(p, LEN, PROT_READ);
	EXPECT_EQ(hugepin_pin(d, p, LEN, HUGEPIN_WRITE, &pin), -EFAULT);
	EXPECT_EQ(hugepin_pin(d, p, LEN, HUGEPIN_REMOTE_ATOMIC, &pin), -EFAULT);
	EXPECT_EQ(pin.ref, 4711);
	EXPECT_EQ(errno, 0);
	EXPECT_EQ(kernel_pinned(), before);
	EXPECT_EQ(stats(d).regions, 0);

	mprotect(p, LEN, PROT_READ | PROT_WRITE);
	pattern_write(p, LEN, 5);
	mprotect(p, LEN, PROT_READ);
	if (EXPECT_EQ(hugepin_pin(d, p, LEN, HUGEPIN_REMOTE_READ, &pin), 0)) {
		EXPECT_EQ(wire_do(IBV_WR_RDMA_READ, wire.source, wire.source_mr->lkey, p, pin.rkey, LEN),
			  IBV_WC_SUCCESS);
		EXPECT_EQ(pattern_check(wire.source, LEN, 5), -1);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, LEN);
}

TEST(open_says_what_it_was_not_given_and_what_the_device_lacks)
{
	NEEDS_WIRE;
	hugepin_domain *d = (void *)4711;
	struct hugepin_attr attr = { .size = sizeof attr, .policy = 99 };
	errno = 0;
	EXPECT_EQ(hugepin_verbs_open(NULL, NULL, &d), -EINVAL);
	EXPECT_EQ(hugepin_verbs_open(wire.port.pd, NULL, NULL), -EINVAL);
	EXPECT_EQ(hugepin_verbs_open(wire.port.pd, &attr, &d), -EINVAL);
	EXPECT_EQ((uintptr_t)d, 4711);
	EXPECT_EQ(errno, 0);
	if (EXPECT_EQ(hugepin_verbs_open(wire.port.pd, NULL, &d), 0))
		EXPECT_EQ(hugepin_domain_close(d), 0);
}

/* ------------------------------------------------------------------ memory that changes under its registration */

/* Pin memory that make() returns, and give the pin back; let event() put other memory in its place; pin again. What the
 * first pin registered is stale then: through its key the device writes pages that the program no longer has. */
static void stale(char *(*make)(void), bool (*event)(char *p))
{
	NEEDS_WIRE;
	hugepin_domain *d = domain(HUGEPIN_POLICY_DEFAULT);
	char *p = make();
	struct hugepin_pin pin;
	if (!d || !p || !EXPECT_EQ(hugepin_pin(d, p, LEN, HUGEPIN_REMOTE_WRITE, &pin), 0))
		return;
	EXPECT(lands(p, &pin, LEN));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	uint64_t misses = stats(d).misses;

	errno = 0;
	if (!event(p)) {
		EXPECT(errno == EINVAL || errno == ENOSYS);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("this kernel does not have it");
	}
	memset(p, 'b', LEN);
	if (EXPECT_EQ(hugepin_pin(d, p, LEN, HUGEPIN_REMOTE_WRITE, &pin), 0)) {
		EXPECT(lands(p, &pin, LEN));
		EXPECT_EQ(stats(d).misses, misses + 1);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(kernel_pinned(), LEN); /* the source */
}

static char *anonymous(void)
{
	return map(LEN);
}

/* New memory exactly where p was, by a system call that no library sees. */
static bool map_at(char *p)
{
	return syscall(SYS_mmap, p, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
		       0) == (long)p;
}

static bool unmap(char *p)
{
	return !munmap(p, LEN) && mmap(p, LEN, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == p;
}

TEST_CASE(after_munmap_and_mmap_at_the_same_place_a_pin_is_new, stale(anonymous, unmap))

static bool unmap_raw(char *p)
{
	return !syscall(SYS_munmap, p, LEN) && map_at(p);
}

TEST_CASE(after_a_munmap_by_syscall_a_pin_is_new, stale(anonymous, unmap_raw))

static bool unmap_inline(char *p)
{
	return !t_call(SYS_munmap, (long)p, LEN, 0, 0, 0, 0) && map_at(p);
}

TEST_CASE(after_a_munmap_by_an_instruction_of_the_program_a_pin_is_new, stale(anonymous, unmap_inline))

static bool map_over(char *p)
{
	return mmap(p, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p;
}

TEST_CASE(after_a_mmap_over_it_a_pin_is_new, stale(anonymous, map_over))

static bool move_away(char *p)
{
	char *to = map(LEN);
	return mremap(p, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to && map_at(p);
}

TEST_CASE(after_a_mremap_to_elsewhere_a_pin_is_new, stale(anonymous, move_away))

static bool move_over(char *p)
{
	return mremap(map(LEN), LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p;
}

TEST_CASE(after_a_mremap_over_it_a_pin_is_new, stale(anonymous, move_over))

static bool dont_need(char *p)
{
	return !madvise(p, LEN, MADV_DONTNEED);
}

TEST_CASE(after_MADV_DONTNEED_a_pin_is_new, stale(anonymous, dont_need))

/* The pages are there until memory is short, and pinned ones even then. But that is the kernel's affair. */
static bool free_lazily(char *p)
{
	return !madvise(p, LEN, MADV_FREE);
}

TEST_CASE(after_MADV_FREE_a_pin_is_new, stale(anonymous, free_lazily))

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24 /* Linux 5.18 */
#endif
static bool dont_need_locked(char *p)
{
	return !madvise(p, LEN, MADV_DONTNEED_LOCKED);
}

TEST_CASE(after_MADV_DONTNEED_LOCKED_a_pin_is_new, stale(anonymous, dont_need_locked))

static bool dont_need_process(char *p)
{
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	struct iovec v = { p, LEN };
	long n = syscall(SYS_process_madvise, self, &v, 1, MADV_DONTNEED, 0); /* of oneself since Linux 6.13 */
	int err = errno;
	close(self);
	errno = err;
	return n == (long)LEN;
}

TEST_CASE(after_process_madvise_a_pin_is_new, stale(anonymous, dont_need_process))

static char *shared_segment(void)
{
	int id = shmget(IPC_PRIVATE, LEN, IPC_CREAT | 0600);
	void *p = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL);
	return EXPECT(p != (void *)-1) ? p : NULL;
}

static bool detach(char *p)
{
	int id = shmget(IPC_PRIVATE, LEN, IPC_CREAT | 0600);
	bool same = !shmdt(p) && shmat(id, p, 0) == p;
	shmctl(id, IPC_RMID, NULL);
	return same;
}

TEST_CASE(after_shmdt_and_shmat_of_another_segment_a_pin_is_new, stale(shared_segment, detach))

/* Memory that the C library maps and unmaps by calls within itself, at the same place if it is left to. */
static char *allocate(void)
{
	mallopt(M_MMAP_THRESHOLD, LEN); /* and stay there */
	return malloc(16 * LEN);
}

static bool allocate_again(char *p)
{
	free(p);
	return hide(malloc(16 * LEN)) == p;
}

TEST_CASE(after_free_and_malloc_of_the_C_library_a_pin_is_new, stale(allocate, allocate_again))

TEST(after_the_heap_gave_memory_back_a_pin_is_new)
{
	NEEDS_WIRE;
	hugepin_domain *d = domain(HUGEPIN_POLICY_DEFAULT);
	for (int i = 0; d && i < 4; i++) {
		char *p = hugepin_malloc(4 * MIB);
		struct hugepin_pin pin;
		if (!EXPECT(p) || !EXPECT_EQ(hugepin_pin(d, p, 4 * MIB, HUGEPIN_REMOTE_WRITE, &pin), 0))
			break;
		EXPECT(lands(p, &pin, LEN));
		EXPECT(lands(p + 4 * MIB - LEN, &pin, LEN));
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		hugepin_free(p);
		hugepin_purge();
	}
	EXPECT(stats(d).registered >= 4); /* it did leave each time */
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(kernel_pinned(), LEN);
}

/* ------------------------------------------------------------------ limits */

/* Runs what() in a child without privilege and with RLIMIT_MEMLOCK, with a connection of its own. */
static void limited(void (*what)(void))
{
	NEEDS_WIRE;
	pid_t pid = fork();
	if (pid == 0) {
		struct rlimit limit = { LIMIT, LIMIT };
		t_failures = 0;
		memset(&wire, 0, sizeof wire);
		/* leaving user 0 takes all capabilities along */
		EXPECT(!setrlimit(RLIMIT_MEMLOCK, &limit) && !setresgid(65534, 65534, 65534) &&
		       !setresuid(65534, 65534, 65534));
		prctl(PR_SET_DUMPABLE, 1); /* or /proc/self/ is root's */
		if (EXPECT(wire_open())) {
			what();
			wire_close();
		}
		EXPECT_EQ(kernel_pinned(), 0);
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
}

static void within_the_limit(void)
{
	enum { COUNT = 24 };
	hugepin_domain *d = domain(HUGEPIN_POLICY_LRU);
	char *p = map(COUNT * 2 * MIB); /* with gaps, so that nothing is merged */
	struct hugepin_pin pin;
	size_t before = kernel_pinned();
	EXPECT_EQ(stats(d).bytes_max, LIMIT - before);
	for (int i = 0; i < 2 * COUNT; i++) {
		char *piece = p + (size_t)(i % COUNT) * 2 * MIB;
		if (!EXPECT_EQ(hugepin_pin(d, piece, MIB, HUGEPIN_REMOTE_WRITE, &pin), 0))
			break;
		EXPECT(lands(piece + (size_t)i * KIB, &pin, 4 * KIB));
		EXPECT(kernel_pinned() <= LIMIT);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT(stats(d).evicted >= COUNT);
	EXPECT(kernel_pinned() > before + LIMIT / 2); /* and it does use what there is */
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(kernel_pinned(), before);
}

TEST(a_domain_keeps_within_the_memlock_limit)
{
	NEEDS_KERNEL_THAT_WATCHES;
	limited(within_the_limit);
}

TEST_BY(limited, when_all_that_the_limit_allows_is_pinned_it_says_so)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	char *p = map(2 * LIMIT);
	for (int budget = 1; budget >= 0; budget--) {
		hugepin_domain *d;
		struct hugepin_pin pin[16];
		int n = 0, err = 0;
		attr.pinned_bytes_max = budget ? 0 : UINT64_MAX;
		if (!EXPECT_EQ(hugepin_verbs_open(wire.port.pd, &attr, &d), 0))
			return;
		while (n < 8 && !(err = hugepin_pin(d, p + (size_t)n * 2 * MIB, MIB, HUGEPIN_WRITE, &pin[n])))
			n++;
		EXPECT_EQ(n, 7); /* the source takes a part of the eighth */
		EXPECT_EQ(err, budget ? -ENOBUFS : -ENOMEM);
		while (n--)
			EXPECT_EQ(hugepin_unpin(d, &pin[n]), 0);
		EXPECT_EQ(hugepin_domain_close(d), 0);
	}
}

/* ------------------------------------------------------------------ on-demand paging */

TEST(policy_odp_is_refused_where_the_device_has_none)
{
	NEEDS_WIRE;
	if (wire_has_odp(&wire.port))
		SKIP("it has");
	hugepin_domain *d;
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_ODP };
	EXPECT_EQ(hugepin_verbs_open(wire.port.pd, &attr, &d), -EOPNOTSUPP);
}

/* What `rdma` of iproute2 shows of the device's memory regions, which are this process's alone; -1: no faults are counted. */
static long faults_shown(void)
{
	FILE *f = popen("rdma statistic show mr", "r");
	char line[512], *at;
	long sum = -1;

	EXPECT(f);
	while (f && fgets(line, sizeof line, f))
		if ((at = strstr(line, " page_faults ")))
			sum = (sum < 0 ? 0 : sum) + strtol(at + strlen(" page_faults "), NULL, 10);
	EXPECT(!f || pclose(f) == 0);
	return sum;
}

TEST(page_faults_are_counted_where_the_device_counts_them_and_else_not_available)
{
	hugepin_domain *d = domain(wire_has_odp(&wire.port) ? HUGEPIN_POLICY_ODP : HUGEPIN_POLICY_LRU);
	struct hugepin_paging p = { 7, 8, 9 };
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, wire.source, LEN, HUGEPIN_WRITE, &pin), 0);
	const long shown = faults_shown();
	EXPECT_EQ(hugepin_domain_paging(d, &p, sizeof p), shown < 0 ? -EOPNOTSUPP : 0);
	EXPECT_EQ(p.faults, shown < 0 ? 7 : (uint64_t)shown);
	printf("# page faults counted: %ld\n", shown);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

#define NEEDS_ODP                                                                                                      \
	NEEDS_WIRE;                                                                                                    \
	if (!wire_has_odp(&wire.port))                                                                                 \
	SKIP("the device has no on-demand paging")

TEST(on_demand_memory_is_not_pinned_and_the_device_follows_its_pages)
{
	NEEDS_ODP;
	size_t before = kernel_pinned();
	hugepin_domain *d = domain(HUGEPIN_POLICY_ODP);
	char *memory[2] = { map(16 * MIB), hugepin_malloc(16 * MIB) };
	for (int i = 0; i < 2; i++) {
		char *p = memory[i];
		struct hugepin_pin pin;
		if (!EXPECT_EQ(hugepin_pin(d, p, 16 * MIB, HUGEPIN_REMOTE_WRITE | HUGEPIN_REMOTE_READ, &pin), 0))
			continue;
		EXPECT_EQ(kernel_pinned(), before);
		EXPECT(lands(p + 8 * MIB, &pin, LEN));
		if (i == 0) { /* the heap's pages stay where they are */
			EXPECT(!madvise(p, 16 * MIB, MADV_DONTNEED));
			EXPECT(lands(p + 8 * MIB, &pin, LEN));
			EXPECT(unmap_raw(p + 8 * MIB));
		}
		EXPECT(lands(p + 8 * MIB, &pin, LEN));
		EXPECT_EQ(kernel_pinned(), before);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(memory[0], 16 * MIB);
	hugepin_free(memory[1]);
}

static size_t pages_present(char *p, size_t len)
{
	static unsigned char present[16 * MIB / 4096];
	size_t n = 0;
	EXPECT(!mincore(p, len, present));
	for (size_t i = 0; i < len / 4096; i++)
		n += present[i] & 1;
	return n;
}

TEST(a_hint_brings_on_demand_memory_in)
{
	NEEDS_ODP;
	static const unsigned access[] = { HUGEPIN_REMOTE_WRITE, HUGEPIN_READ };
	for (int i = 0; i < 2; i++) {
		hugepin_domain *d = domain(HUGEPIN_POLICY_ODP);
		char *p = map(16 * MIB);
		struct hugepin_pin pin;
		EXPECT_EQ(pages_present(p, 16 * MIB), 0);
		EXPECT_EQ(hugepin_prefetch(d, p + 4 * MIB, 4 * MIB, access[i]), 0);
		for (int ms = 0; ms < 20000 && !stats(d).prefetched; ms += 10)
			sleep_ms(10);
		EXPECT_EQ(stats(d).prefetched, 1);
		EXPECT_EQ(pages_present(p + 4 * MIB, 4 * MIB), 1024);
		EXPECT_EQ(pages_present(p, 4 * MIB), 0);
		if (!EXPECT_EQ(hugepin_pin(d, p + 4 * MIB, 4 * MIB, access[i], &pin), 0))
			return;
		EXPECT_EQ(stats(d).misses, 0);
		if (i == 0) { /* soft-RoCE takes advice for memory that the device may write */
			EXPECT_EQ(stats(d).prefetched_otherwise, 0);
			EXPECT(lands(p + 4 * MIB, &pin, LEN));
		}
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		munmap(p, 16 * MIB);
	}
}

TEST(nothing_is_left_with_the_device)
{
	NEEDS_WIRE;
	wire_close();
	EXPECT_EQ(kernel_pinned(), 0);
}

T_MAIN
