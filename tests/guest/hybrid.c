/* link: hugepin-verbs hugepin ibverbs */
/* guest: odp */
/*
 * Recorded programs with a device that registers on demand, by the schemes of Li et al. 2016 and by policy hybrid. Each
 * use of a buffer is a transfer, and its memory is paged out after it, at once: also before the helper has heard of the
 * end of the use. So the phases of transfers are told, where a scheme knows them. The kernel counts the device's faults.
 * What computes in the recorded program sleeps here, so that the helper has the time that it had there.
 *
 * Times are those of an emulated machine: compare them with each other.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "guest/wire.h"

#include <inttypes.h>
#include <sys/swap.h>
#include <sys/syscall.h>

enum { USES_MAX = 300, CHUNKS = 16, LONGEST = 256 << 10 };
#define CHUNK (64 * MIB) /* buffers of the recorded program that are near each other are so here */
#define TRACING "/sys/kernel/tracing/"
#define SLOWER 10 /* this machine than the recorded one, about */
#define PAUSE_MAX_NS 30000000

static struct {
	struct wire_port port;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	char *peer; /* pinned: where sends go, and what is received */
	struct ibv_mr *peer_mr;
	bool traced, swaps;
} wire;

static bool wire_open(void)
{
	if (!wire_port_open(&wire.port) || !(wire.cq = ibv_create_cq(wire.port.device, 16, NULL, NULL, 0)))
		return false;
	wire.peer = mmap(NULL, LONGEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	wire.peer_mr = ibv_reg_mr(wire.port.pd, wire.peer, LONGEST, (int)IBV_ACCESS_LOCAL_WRITE);
	return wire.peer_mr && wire_join(&wire.port, wire.cq, wire.qp);
}

/* Send from the buffer to the peer, or receive from there. */
static bool transfer(char *p, uint32_t lkey, size_t len, bool receives)
{
	struct ibv_sge own = { (uintptr_t)p, (uint32_t)len, lkey };
	struct ibv_sge other = { (uintptr_t)wire.peer, (uint32_t)len, wire.peer_mr->lkey };
	struct ibv_recv_wr in = { .sg_list = receives ? &own : &other, .num_sge = 1 }, *bad_in;
	struct ibv_send_wr out = { .sg_list = receives ? &other : &own,
				   .num_sge = 1,
				   .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED }, *bad_out;
	uint64_t end = clock_ms() + 1000 * t_seconds();
	struct ibv_wc wc;

	if (ibv_post_recv(wire.qp[1], &in, &bad_in) || ibv_post_send(wire.qp[0], &out, &bad_out))
		return false;
	for (int done = 0, n; done < 2; done += n) {
		n = ibv_poll_cq(wire.cq, 1, &wc);
		if (n < 0 || (n && wc.status != IBV_WC_SUCCESS) || clock_ms() > end)
			return false;
		if (!n)
			sched_yield();
	}
	return true;
}

/* ------------------------------------------------------------------ the kernel's counts */

/* The device faults on threads of the kernel. This process calls the same function when it registers and brings in, so
 * calls are counted by thread. */
static bool trace_open(void)
{
	if (mount("tracefs", TRACING, "tracefs", 0, NULL) && errno != EBUSY)
		return false;
	return file_write(TRACING "kprobe_events", "p:hugepin_hybrid ib_umem_odp_map_dma_and_lock\n") &&
	       file_write(TRACING "events/kprobes/hugepin_hybrid/trigger", "hist:keys=common_pid.execname") &&
	       file_write(TRACING "events/kprobes/hugepin_hybrid/enable", "1");
}

static long faults(void)
{
	static char buf[1 << 16];
	long sum = 0;

	if (!EXPECT(file_read(TRACING "events/kprobes/hugepin_hybrid/hist", buf, sizeof buf) > 0))
		return 0;
	for (char *line = buf; (line = strstr(line, "common_pid: ")); line++) {
		char *hits = strstr(line, "hitcount:");
		if (hits && !strncmp(line + strlen("common_pid: "), "kworker", 7))
			sum += strtol(hits + strlen("hitcount:"), NULL, 10);
	}
	return sum;
}

/* ------------------------------------------------------------------ recorded uses */

struct use {
	char *p;
	size_t len;
	bool receives;
	long pause_ns;
};

static struct use uses[USES_MAX];
static int uses_count;
static size_t bytes_used; /* pages that any use touches, in bytes */
static struct {
	uintptr_t recorded;
	char *here;
	bool touched[2 * CHUNK / 4096];
} chunk[CHUNKS];
static int chunks;

/* Where the buffer that was recorded at an address is in this process. */
static char *here(uintptr_t recorded, size_t len)
{
	uintptr_t start = recorded / CHUNK * CHUNK;
	int i = 0;

	while (i < chunks && chunk[i].recorded != start)
		i++;
	if (i == CHUNKS)
		return NULL;
	if (i == chunks) {
		chunks++;
		chunk[i].recorded = start;
		memset(chunk[i].touched, 0, sizeof chunk[i].touched);
		chunk[i].here = mmap(NULL, 2 * CHUNK, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (chunk[i].here == MAP_FAILED || madvise(chunk[i].here, 2 * CHUNK, MADV_NOHUGEPAGE))
			return NULL;
	}
	for (uintptr_t page = (recorded - start) / 4096; page <= (recorded - start + len - 1) / 4096; page++) {
		bytes_used += chunk[i].touched[page] ? 0 : 4096;
		chunk[i].touched[page] = true;
	}
	return chunk[i].here + (recorded - start);
}

/* The first uses of a trace, in the format of tests/traces/README.md. */
static bool read_uses(const char *trace)
{
	char command[200], line[1000], dir;
	uint64_t cpu, before = 0;
	uintptr_t addr;
	size_t len;
	FILE *f;

	for (; chunks; chunks--)
		munmap(chunk[chunks - 1].here, 2 * CHUNK);
	uses_count = 0;
	bytes_used = 0;
	snprintf(command, sizeof command, "gzip -dc tests/traces/%s.csv.gz", trace);
	f = popen(command, "r");
	while (f && uses_count < USES_MAX && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%*u,%*u,%*u,%" SCNu64 ",%*[^,],%c,%" SCNxPTR ",%zu", &cpu, &dir, &addr, &len) != 4 ||
		    len > LONGEST)
			continue;
		long pause_ns = before && cpu > before ? (long)(cpu - before) * SLOWER : 0;
		uses[uses_count] = (struct use){ here(addr, len), len, dir == 'R',
						 pause_ns < PAUSE_MAX_NS ? pause_ns : PAUSE_MAX_NS };
		before = cpu;
		if (!uses[uses_count++].p)
			break;
	}
	if (f)
		pclose(f);
	return EXPECT_EQ(uses_count, USES_MAX);
}

/* ------------------------------------------------------------------ a run */

/* Pages that another processor has faulted in are on a list of its own for a while, where MADV_PAGEOUT does not find them.
 * A call that moves no page empties these lists. */
static void page_out(char *p, size_t len)
{
	int node = 0, status;
	void *none = NULL;
	EXPECT_EQ(syscall(SYS_move_pages, 0, 0L, &none, &node, &status, 0), 0);
	uintptr_t start = (uintptr_t)p & -4096ul, end = ((uintptr_t)p + len + 4095) & -4096ul;
	madvise((void *)start, end - start, MADV_PAGEOUT);
}

struct result {
	long faulting, faults;
	uint64_t brought;
	size_t pinned_most, peak; /* as the kernel counts at each use, and as the library does at any time */
	uint64_t ns; /* in pins and transfers */
};

static uint64_t clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static struct result run(uint32_t policy, uint32_t odp, size_t budget, bool phases)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy, .odp = odp, .pinned_bytes_max = budget,
				     .watch = HUGEPIN_WATCH_PROGRAM };
	const size_t before = kernel_pinned();
	struct result r = { 0 };
	hugepin_domain *d = NULL;
	struct hugepin_domain_stats s = { 0 };

	for (int i = 0; i < uses_count; i++)
		memset(uses[i].p, i, uses[i].len);
	if (!EXPECT_EQ(hugepin_verbs_open(wire.port.pd, &attr, &d), 0))
		return r;
	for (int i = 0; i < uses_count; i++) {
		const struct use *u = &uses[i];
		const struct timespec pause = { 0, u->pause_ns };
		struct hugepin_pin pin;
		uint64_t start;
		long was;
		size_t is;

		nanosleep(&pause, NULL);
		was = faults();
		start = clock_ns();
		if (!EXPECT_EQ(hugepin_pin(d, u->p, u->len, 0, &pin), 0))
			break;
		if (phases) {
			EXPECT_EQ(hugepin_prefetch(d, u->p, u->len, 0), 0);
			EXPECT_EQ(hugepin_prefetch(d, u->p, u->len, HUGEPIN_PREFETCH_NEXT), 0);
		}
		EXPECT(transfer(u->p, pin.lkey, u->len, u->receives));
		r.ns += clock_ns() - start;
		was = faults() - was;
		r.faults += was;
		r.faulting += was > 0;
		is = kernel_pinned() - before;
		r.pinned_most = is > r.pinned_most ? is : r.pinned_most;
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		page_out(u->p, u->len);
	}
	hugepin_domain_stats(d, &s, sizeof s);
	r.brought = s.brought_bytes;
	r.peak = s.pinned_peak_bytes;
	EXPECT_EQ(hugepin_domain_close(d), 0);
	return r;
}

/* A swap in memory. Another test may have left the device as it had it. */
static bool swap_on(void)
{
	return !system("modprobe zram && echo 1 >/sys/block/zram0/reset && echo 256M >/sys/block/zram0/disksize && "
		       "mkswap /dev/zram0 >/dev/null") &&
	       !swapon("/dev/zram0", 0);
}

static void show(const char *trace, const char *scheme, const struct result *r)
{
	t_print("# %-14s %-9s %5ld of %d uses fault, %6ld faults, %7llu KiB brought in, %5zu KiB pinned, %5llu us a use\n",
		trace, scheme, r->faulting, uses_count, r->faults, (unsigned long long)r->brought / 1024,
		r->pinned_most / KIB, (unsigned long long)r->ns / 1000 / USES_MAX);
}

static void try_trace(const char *trace)
{
	struct result pin, native, enhanced, optimal, hybrid, within;
	size_t budget;

	if (!read_uses(trace))
		return;
	pin = run(HUGEPIN_POLICY_LRU, 0, 0, false);
	show(trace, "pin", &pin);
	native = run(HUGEPIN_POLICY_ODP, HUGEPIN_ODP_NATIVE, 0, false);
	show(trace, "native", &native);
	enhanced = run(HUGEPIN_POLICY_ODP, HUGEPIN_ODP_ENHANCED, 0, false);
	show(trace, "enhanced", &enhanced);
	optimal = run(HUGEPIN_POLICY_ODP, HUGEPIN_ODP_OPTIMAL, 0, true);
	show(trace, "optimal", &optimal);
	hybrid = run(HUGEPIN_POLICY_HYBRID, 0, 0, true);
	show(trace, "hybrid", &hybrid);
	budget = bytes_used / 2;
	within = run(HUGEPIN_POLICY_HYBRID, 0, budget, true);
	show(trace, "in half", &within);

	EXPECT_EQ(pin.faulting, 0);
	EXPECT(native.faulting > USES_MAX / 2); /* the trace pages out what it uses */
	EXPECT_EQ(native.pinned_most, 0);
	EXPECT(hybrid.faulting <= USES_MAX / 100);
	EXPECT(within.faulting <= USES_MAX / 100);
	EXPECT(within.pinned_most <= budget && within.peak <= budget);
	EXPECT(within.pinned_most > 0);
	EXPECT(hybrid.pinned_most <= pin.pinned_most);
}

#define NEEDS_ODP                                                                                                      \
	do {                                                                                                           \
		if (!wire.peer_mr && !wire_open())                                                                     \
			SKIP("no verbs device: made for the guest");                                                   \
		if (!wire_has_odp(&wire.port))                                                                         \
			SKIP("the device has no on-demand paging");                                                    \
		if (!wire.traced && !(wire.traced = trace_open()))                                                     \
			SKIP("the kernel cannot be traced");                                                           \
		if (!wire.swaps && !(wire.swaps = swap_on()))                                                          \
			SKIP("no swap");                                                                               \
	} while (0)

TEST(hybrid_faults_at_most_once_in_a_hundred_uses_of_cg)
{
	NEEDS_ODP;
	try_trace("cg.A.2.r0");
}

TEST(and_of_lammps)
{
	NEEDS_ODP;
	try_trace("lammps-lj.2.r0");
}

TEST(and_of_hpcg)
{
	NEEDS_ODP;
	try_trace("hpcg48.2.r0");
}

TEST(the_swap_is_as_it_was)
{
	NEEDS_ODP;
	EXPECT(!swapoff("/dev/zram0"));
	EXPECT(file_write("/sys/block/zram0/reset", "1"));
}

T_MAIN
