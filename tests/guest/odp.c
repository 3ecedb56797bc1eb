/* link: hugepin-verbs hugepin ibverbs */
/* guest: odp */
/*
 * Memory that is registered on demand, by counts of the device's faults: how many a transfer costs in each mode of
 * HUGEPIN_ODP, on fresh memory, after pages went away, and with the phases of the transfer told. The kernel counts its
 * calls of the function that maps pages for the device. Nothing but the transfer runs meanwhile, so each call is a fault.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "guest/wire.h"

#include <sys/swap.h>

#define LEN MIB
#define PAGES 256 /* of a MiB */
#define TRACING "/sys/kernel/tracing/"
#define PROBE "hugepin_odp"
#define REMOTE (HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE)

static struct {
	struct wire_port port;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2]; /* 0 writes into the memory of 1 */
	char *source;
	struct ibv_mr *source_mr;
	bool traced;
} wire;

static bool wire_open(void)
{
	if (!wire_port_open(&wire.port) || !(wire.cq = ibv_create_cq(wire.port.device, 16, NULL, NULL, 0)))
		return false;
	wire.source = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	wire.source_mr = ibv_reg_mr(wire.port.pd, wire.source, LEN, (int)IBV_ACCESS_LOCAL_WRITE);
	return wire.source_mr && wire_join(&wire.port, wire.cq, wire.qp);
}

/* The status of a write of LEN bytes to p. */
static int wire_write(const void *p, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)wire.source, .length = LEN, .lkey = wire.source_mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)p, .rkey = rkey },
	}, *bad;
	uint64_t end = clock_ms() + 1000 * t_seconds();
	struct ibv_wc wc;
	int n;

	if (ibv_post_send(wire.qp[0], &wr, &bad))
		return -1;
	while (!(n = ibv_poll_cq(wire.cq, 1, &wc)) && clock_ms() < end)
		sched_yield();
	return n == 1 ? (int)wc.status : -1;
}

/* ------------------------------------------------------------------ the kernel's counts */

static bool trace_open(void)
{
	if (mount("tracefs", TRACING, "tracefs", 0, NULL) && errno != EBUSY)
		return false;
	return file_write(TRACING "kprobe_events", "p:" PROBE " ib_umem_odp_map_dma_and_lock\n") &&
	       file_write(TRACING "events/kprobes/" PROBE "/enable", "1");
}

/* Calls since trace_open(). */
static long mapped(void)
{
	char buf[4096];
	char *line = file_read(TRACING "kprobe_profile", buf, sizeof buf) > 0 ? strstr(buf, PROBE) : NULL;
	return EXPECT(line) ? strtol(line + strlen(PROBE), NULL, 10) : -1;
}

/* ------------------------------------------------------------------ transfers */

static hugepin_domain *domain(uint32_t mode)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_ODP, .odp = mode };
	hugepin_domain *d = NULL;
	EXPECT_EQ(hugepin_verbs_open(wire.port.pd, &attr, &d), 0);
	return d;
}

static struct hugepin_domain_stats stats(hugepin_domain *d)
{
	struct hugepin_domain_stats s = { 0 };
	EXPECT(hugepin_domain_stats(d, &s, sizeof s) > 0);
	return s;
}

/* Base pages, so that faults can be counted. */
static char *map(void)
{
	char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(p != MAP_FAILED && !madvise(p, LEN, MADV_NOHUGEPAGE));
	return p;
}

/* The device's faults during a transfer, whose bytes must arrive. */
static long faults(char *p, const struct hugepin_pin *pin)
{
	static uint64_t seed;
	pattern_write(wire.source, LEN, ++seed);
	long before = mapped();
	EXPECT_EQ(wire_write(p, pin->rkey), IBV_WC_SUCCESS);
	long during = mapped() - before;
	EXPECT_EQ(pattern_check(p, LEN, seed), -1);
	return during;
}

/* Wait until the service thread has brought in so much. */
static void wait_brought(hugepin_domain *d, uint64_t bytes)
{
	for (int ms = 0; ms < 20000 && stats(d).brought_bytes < bytes; ms += 10)
		sleep_ms(10);
	EXPECT_EQ(stats(d).brought_bytes, bytes);
}

#define NEEDS_ODP                                                                                                      \
	do {                                                                                                           \
		if (!wire.source_mr && !wire_open())                                                                   \
			SKIP("no verbs device: made for the guest");                                                   \
		if (!wire_has_odp(&wire.port))                                                                         \
			SKIP("the device has no on-demand paging");                                                    \
		if (!wire.traced && !(wire.traced = trace_open()))                                                     \
			SKIP("the kernel cannot be traced");                                                           \
	} while (0)

TEST(native_faults_for_each_page)
{
	NEEDS_ODP;
	hugepin_domain *d = domain(HUGEPIN_ODP_NATIVE);
	char *p = map();
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, LEN, REMOTE, &pin), 0);
	EXPECT_EQ(faults(p, &pin), PAGES);
	EXPECT_EQ(faults(p, &pin), 0);
	EXPECT(!madvise(p, LEN, MADV_DONTNEED));
	EXPECT_EQ(faults(p, &pin), PAGES);
	EXPECT_EQ(stats(d).brought_bytes, 0);
	EXPECT_EQ(kernel_pinned(), LEN); /* of the source */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	munmap(p, LEN);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

TEST(enhanced_faults_for_none_once_it_has_registered)
{
	NEEDS_ODP;
	hugepin_domain *d = domain(HUGEPIN_ODP_ENHANCED);
	char *p = map();
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, LEN, REMOTE, &pin), 0);
	EXPECT_EQ(stats(d).brought_bytes, LEN);
	EXPECT_EQ(faults(p, &pin), 0);
	EXPECT_EQ(kernel_pinned(), LEN);
	EXPECT(!madvise(p, LEN, MADV_DONTNEED));
	EXPECT_EQ(faults(p, &pin), PAGES);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	munmap(p, LEN);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

/* A swap in memory, as some systems have. */
static bool swap_on(void)
{
	return !system("modprobe zram && echo 64M >/sys/block/zram0/disksize && mkswap /dev/zram0 >/dev/null") &&
	       !swapon("/dev/zram0", 0);
}

static bool discard(char *p)
{
	return !madvise(p, LEN, MADV_DONTNEED);
}

static bool page_out(char *p)
{
	unsigned char present[PAGES];
	int left = 0;
	if (madvise(p, LEN, MADV_PAGEOUT) || mincore(p, LEN, present))
		return false;
	for (int i = 0; i < PAGES; i++)
		left += present[i] & 1;
	t_print("# %d of %d pages were left by MADV_PAGEOUT\n", left, PAGES);
	return left < PAGES / 2;
}

/* Announce a transfer, take its pages away, say that the payload is next: no fault. Without the last: a fault for each page
 * that went. */
static void expect_phases(bool (*take_away)(char *p), long at_least)
{
	static const unsigned phases[] = { HUGEPIN_PREFETCH_NEXT, HUGEPIN_PREFETCH_WAIT };
	hugepin_domain *d = domain(HUGEPIN_ODP_OPTIMAL);
	char *p = map();
	struct hugepin_pin pin;
	uint64_t brought = LEN;

	EXPECT_EQ(hugepin_pin(d, p, LEN, REMOTE, &pin), 0);
	wait_brought(d, brought);
	EXPECT_EQ(faults(p, &pin), 0);
	for (int i = 0; i < 2; i++) {
		EXPECT(take_away(p));
		EXPECT_EQ(hugepin_prefetch(d, p, LEN, REMOTE), 0);
		wait_brought(d, brought += LEN);
		EXPECT(take_away(p));
		EXPECT_EQ(hugepin_prefetch(d, p, LEN, REMOTE | phases[i]), 0);
		EXPECT_EQ(stats(d).brought_bytes, brought += LEN);
		EXPECT_EQ(faults(p, &pin), 0);
		EXPECT_EQ(kernel_pinned(), LEN);
		EXPECT(take_away(p));
		EXPECT(faults(p, &pin) >= at_least);
	}
	EXPECT_EQ(stats(d).prefetched, 4);
	EXPECT_EQ(stats(d).prefetched_otherwise, 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	munmap(p, LEN);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

TEST(optimal_faults_for_none_after_pages_were_discarded)
{
	NEEDS_ODP;
	expect_phases(discard, PAGES);
}

TEST(optimal_faults_for_none_after_pages_were_swapped_out)
{
	NEEDS_ODP;
	if (!swap_on())
		SKIP("no swap");
	expect_phases(page_out, PAGES / 2);
	EXPECT(!swapoff("/dev/zram0"));
}

TEST(a_key_follows_what_is_mapped_there_next)
{
	NEEDS_ODP;
	hugepin_domain *d = domain(HUGEPIN_ODP_OPTIMAL);
	char *p = map();
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, LEN, REMOTE, &pin), 0);
	wait_brought(d, LEN);
	EXPECT(mmap(p, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	EXPECT(!madvise(p, LEN, MADV_NOHUGEPAGE));
	EXPECT_EQ(faults(p, &pin), PAGES); /* and the bytes arrive in the new mapping */
	EXPECT_EQ(hugepin_prefetch(d, p, LEN, REMOTE | HUGEPIN_PREFETCH_NEXT), 0);
	EXPECT_EQ(faults(p, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	munmap(p, LEN);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

/* The heap's memory is present when it is registered, and soft-RoCE takes such pages at registering: no mode faults. */
TEST(the_heaps_hugepages_are_brought_in_as_wholes)
{
	NEEDS_ODP;
	static const uint32_t modes[] = { HUGEPIN_ODP_NATIVE, HUGEPIN_ODP_ENHANCED, HUGEPIN_ODP_OPTIMAL };
	for (int i = 0; i < 3; i++) {
		struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_ODP, .odp = modes[i],
					     .access = REMOTE, .reach = HUGEPIN_REACH_EXTENT };
		hugepin_domain *d;
		char *p = hugepin_aligned_alloc(PAGE, LEN / 2), *q = hugepin_malloc(LEN);
		struct hugepin_pin pin, second;

		if (!EXPECT_EQ(hugepin_verbs_open(wire.port.pd, &attr, &d), 0))
			return;
		EXPECT_EQ(hugepin_pin(d, p, LEN / 2, 0, &pin), 0);
		wait_brought(d, i == 0 ? 0 : PAGE);
		EXPECT_EQ(hugepin_pin(d, q, LEN, 0, &second), 0);
		if ((uintptr_t)q - (uintptr_t)p < PAGE) /* a second buffer in the hugepage */
			EXPECT_EQ(stats(d).misses, 1);
		EXPECT_EQ(faults(q, &second), 0);
		EXPECT_EQ(kernel_pinned(), LEN);
		EXPECT_EQ(hugepin_unpin(d, &second), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		hugepin_free(p);
		hugepin_free(q);
		EXPECT_EQ(hugepin_domain_close(d), 0);
	}
}

T_MAIN
