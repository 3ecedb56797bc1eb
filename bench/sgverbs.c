/* link: hugepin-verbs hugepin ibverbs */
/*
 * The time of a message of small pieces from post to completion, over two connected queue pairs of this process. Each
 * side is a thread of its own.
 *
 *	sgverbs [-r ROUNDS] [DEVICE]
 *
 * Subjects: each (a work request and a completion for each piece), chain (one post, the last one signalled), gather,
 * pack and inline (one work request), plan (hugepin_sg_plan's choice after hugepin_sg_calibrate on the device). The
 * receiver posts its receives again, and copies the pieces of a message to their places.
 *
 * Prints for each cell medians of ROUNDS (5), taken in turn: microseconds from post to the last completion, CPU
 * microseconds of both sides' threads (the receiver's with its polling), completions of both; then the goals, and what
 * queues take of memory. With soft-RoCE these are times of system calls and packets, not of an adapter.
 *
 * Before that it sends single work requests as Rex et al. 2006 did: of several elements, by their size (figure 3), and of
 * one element at an offset of its page (figure 4). Lines "figure post|poll|both elements.PIECESxBYTES NS ns" and "figure
 * ... offset.1xBYTES.OFFSET NS ns": posting, then polling until the completion, and their sum.
 */
#include <hugepin_verbs.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib.h"
#include "rc.h"

enum { PIECES_MAX = 32, BYTES_MAX = 512, RECVS = 128, GROUPS = 12, ROUNDS_MAX = 64, STRIDE = BYTES_MAX + 168 };
enum { PAGE = 4096, ELEMENT_MAX = 65536, SOURCE_BYTES = PIECES_MAX * (ELEMENT_MAX + PAGE) };
enum subject { EACH, CHAIN, GATHER, PACK, INLINE, PLAN, SUBJECTS };
static const char *const names[] = { "each", "chain", "gather", "pack", "inline", "plan" };
static const struct {
	unsigned n, bytes;
} cells[] = { { 1, 8 },	   { 2, 8 },	{ 4, 8 },   { 8, 8 },	{ 16, 8 },  { 30, 8 },
	      { 1, 64 },   { 4, 64 },	{ 16, 64 }, { 1, 128 }, { 2, 128 }, { 4, 128 }, { 8, 128 }, { 16, 128 },
	      { 30, 128 }, { 32, 128 }, { 4, 512 }, { 16, 512 }, { 30, 512 }, { 1, 32 },  { 1, 256 }, { 1, 512 } };
#define CELLS (sizeof cells / sizeof *cells)

static struct {
	double us[ROUNDS_MAX], send_cpu[ROUNDS_MAX], recv_cpu[ROUNDS_MAX];
	double sent, received; /* completions a group */
	bool known;
} results[CELLS][SUBJECTS];

static struct ibv_pd *pd;
static struct ibv_cq *cq[2];
static struct ibv_qp *qp[2]; /* qp[0] sends to qp[1] */
static struct hugepin_sg_caps caps;
static struct hugepin_sg_model model;
static hugepin_domain *domain;
static char *source, *slot, *in, *scattered;
static struct hugepin_pin slot_pin, in_pin;
static _Atomic bool done;
static _Atomic unsigned unpack_n, unpack_bytes; /* the pieces of a message; 0: it is one piece */
static _Atomic uint64_t received;
static _Atomic uint64_t recv_cpu_ns;
static int rounds = 5;

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ------------------------------------------------------------------ the connection */

static void open_device(const char *name)
{
	pd = rc_open(name);
	struct ibv_device_attr device_attr;
	check(ibv_query_device(pd->context, &device_attr), "device");
	const unsigned elements = device_attr.max_sge < PIECES_MAX ? (unsigned)device_attr.max_sge : PIECES_MAX;
	printf("elements: at most %d in a work request\n", device_attr.max_sge);
	struct ibv_qp_cap granted;
	for (int i = 1; i >= 0; i--) {
		granted = (struct ibv_qp_cap){ .max_send_wr = RECVS, .max_recv_wr = RECVS, .max_send_sge = elements,
					       .max_recv_sge = 1, .max_inline_data = 256 };
		cq[i] = ibv_create_cq(pd->context, 2 * RECVS, NULL, NULL, 0);
		qp[i] = rc_create(pd, cq[i], &granted);
	}
	rc_connect(qp[0], qp[1]);
	check(hugepin_sg_caps(qp[0], &granted, &caps, sizeof caps), "caps");
}

static void pin(void *p, size_t len, struct hugepin_pin *ret_)
{
	if (!p)
		err(1, "memory");
	check(hugepin_pin(domain, p, len, HUGEPIN_READ | HUGEPIN_WRITE, ret_), "pin");
}

/* ------------------------------------------------------------------ the receiver */

#define RECV_BYTES ((size_t)PIECES_MAX * BYTES_MAX)

static void post_receive(uint64_t slot_number)
{
	struct ibv_sge sge = { (uintptr_t)(in + slot_number * RECV_BYTES), (uint32_t)RECV_BYTES, in_pin.lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = slot_number, .sg_list = &sge, .num_sge = 1 };
	check(ibv_post_recv(qp[1], &wr, &bad), "post a receive");
}

static void *receive(void *arg)
{
	struct ibv_wc wc[16];
	while (!atomic_load_explicit(&done, memory_order_relaxed)) {
		const int n = ibv_poll_cq(cq[1], 16, wc);
		if (n <= 0) {
			atomic_store_explicit(&recv_cpu_ns, clock_ns(CLOCK_THREAD_CPUTIME_ID), memory_order_relaxed);
			sched_yield();
			continue;
		}
		for (int i = 0; i < n; i++) {
			if (wc[i].status)
				errx(1, "receive: %s", ibv_wc_status_str(wc[i].status));
			/* Both were stored before the message was sent. */
			const unsigned pieces = atomic_load_explicit(&unpack_n, memory_order_relaxed);
			const unsigned bytes = atomic_load_explicit(&unpack_bytes, memory_order_relaxed);
			for (unsigned p = 0; p < pieces; p++)
				memcpy(scattered + p * STRIDE, in + wc[i].wr_id * RECV_BYTES + p * bytes, bytes);
			post_receive(wc[i].wr_id);
		}
		/* The receives are posted again; pairs with received_so_far(). */
		atomic_fetch_add_explicit(&received, (uint64_t)n, memory_order_release);
	}
	return arg;
}

static uint64_t received_so_far(void)
{
	return atomic_load_explicit(&received, memory_order_acquire); /* pairs with receive() */
}

/* ------------------------------------------------------------------ the sender */

static unsigned complete(unsigned wanted)
{
	struct ibv_wc wc[16];
	unsigned got = 0;
	while (got < wanted) {
		const int n = ibv_poll_cq(cq[0], 16, wc);
		if (n < 0 || (n && wc[0].status))
			errx(1, "send: %s", n < 0 ? "no completion" : ibv_wc_status_str(wc[0].status));
		got += (unsigned)n;
		if (!n)
			sched_yield();
	}
	return got;
}

static unsigned send_group(enum subject s, const struct iovec *iov, unsigned n, const struct hugepin_sg_plan *plan)
{
	const struct ibv_send_wr tmpl = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr wr[PIECES_MAX], *bad;
	struct ibv_sge sge[PIECES_MAX];
	struct hugepin_pin pins[PIECES_MAX];
	struct hugepin_sg_info info;
	unsigned got;

	if (s == EACH || s == CHAIN) {
		check(hugepin_sg_key(domain, iov[0].iov_base, iov[0].iov_len, HUGEPIN_READ, pins), "key");
		for (unsigned i = 0; i < n; i++) {
			sge[i] = (struct ibv_sge){ (uintptr_t)iov[i].iov_base, (uint32_t)iov[i].iov_len, pins[0].lkey };
			wr[i] = tmpl;
			wr[i].sg_list = &sge[i];
			wr[i].num_sge = 1;
			wr[i].next = s == CHAIN && i + 1 < n ? &wr[i + 1] : NULL;
			wr[i].send_flags = s == EACH || i + 1 == n ? IBV_SEND_SIGNALED : 0;
			if (s == EACH)
				check(ibv_post_send(qp[0], &wr[i], &bad), "post");
		}
		if (s == CHAIN)
			check(ibv_post_send(qp[0], wr, &bad), "post");
		got = complete(s == EACH ? n : 1);
		hugepin_unpin(domain, pins);
		return got;
	}
	const struct hugepin_sg_room room = { sizeof room, wr, sge, pins, slot, RECV_BYTES, 1, PIECES_MAX, PIECES_MAX,
					      slot_pin.lkey, hugepin_sg_key, domain };
	const int filled = hugepin_sg_fill(plan, iov, (int)n, &tmpl, &room, &info);
	check(filled < 0 ? filled : ibv_post_send(qp[0], wr, &bad), "fill, post");
	got = complete(1);
	hugepin_unpinv(domain, pins, (int)info.pins);
	return got;
}

/* The values keep their order: those of one round belong together. */
static double median_of(const double *values, int n)
{
	double v[ROUNDS_MAX];
	memcpy(v, values, (size_t)n * sizeof *v);
	return median(v, (size_t)n);
}

static void measure(size_t cell, enum subject s, int round)
{
	static const unsigned modes[SUBJECTS] = { [GATHER] = HUGEPIN_SG_GATHER, [PACK] = HUGEPIN_SG_COPY,
						  [INLINE] = HUGEPIN_SG_INLINE };
	const unsigned n = cells[cell].n, bytes = cells[cell].bytes;
	struct hugepin_sg_plan plan;
	struct iovec iov[PIECES_MAX];

	for (unsigned i = 0; i < n; i++)
		iov[i] = (struct iovec){ source + i * STRIDE, bytes };
	if (s != EACH && s != CHAIN && hugepin_sg_plan(&model, &caps, iov, (int)n, modes[s], &plan))
		return; /* the message is too long for inline, or of too many pieces to be gathered */
	const uint64_t wanted = s == EACH || s == CHAIN ? n : 1, received_before = received_so_far();
	const uint64_t recv_cpu = atomic_load_explicit(&recv_cpu_ns, memory_order_relaxed);
	atomic_store_explicit(&unpack_n, s == EACH || s == CHAIN ? 1 : n, memory_order_relaxed);
	atomic_store_explicit(&unpack_bytes, bytes, memory_order_relaxed);
	uint64_t sent = 0;
	double us[GROUPS], send_cpu[GROUPS];
	for (unsigned i = 0; i < GROUPS; i++) {
		const uint64_t cpu_start = clock_ns(CLOCK_THREAD_CPUTIME_ID), start = clock_ns(CLOCK_MONOTONIC);
		sent += send_group(s, iov, n, &plan);
		us[i] = (double)(clock_ns(CLOCK_MONOTONIC) - start) / 1e3;
		send_cpu[i] = (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start) / 1e3;
		/* Wait, or the next message might find no receive posted. */
		while (received_so_far() - received_before < wanted * (i + 1))
			sched_yield();
	}
	results[cell][s].us[round] = median_of(us, GROUPS);
	results[cell][s].send_cpu[round] = median_of(send_cpu, GROUPS);
	const uint64_t recv_cpu_end = atomic_load_explicit(&recv_cpu_ns, memory_order_relaxed);
	results[cell][s].recv_cpu[round] = (double)(recv_cpu_end - recv_cpu) / 1e3 / GROUPS;
	results[cell][s].sent = (double)sent / GROUPS;
	results[cell][s].received = (double)(received_so_far() - received_before) / GROUPS;
	results[cell][s].known = true;
}

/* ------------------------------------------------------------------ single work requests (Rex et al. 2006) */

enum part { POST, POLL, BOTH, PARTS };
static struct request {
	char name[32];
	unsigned n, bytes, offset; /* elements, of so many bytes, each so far into a page of its own */
	double ns[PARTS][ROUNDS_MAX];
} requests[128];
static size_t request_count;

static void add_request(const char *name, unsigned n, unsigned bytes, unsigned offset)
{
	struct request *const r = &requests[request_count++];

	*r = (struct request){ .n = n, .bytes = bytes, .offset = offset };
	snprintf(r->name, sizeof r->name, "%s", name);
}

static void add_requests(void)
{
	static const unsigned elements[] = { 1, 2, 4, 8, 16, 30 }, sizes[] = { 1, 8, 64, 128, 512, PAGE, ELEMENT_MAX };
	static const unsigned offsets[] = { 0, 8, 16, 32, 48, 64, 80, 96, 128 };
	char name[32];

	for (size_t i = 0; i < sizeof elements / sizeof *elements && elements[i] <= caps.max_sge; i++)
		for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
			snprintf(name, sizeof name, "elements.%ux%u", elements[i], sizes[j]);
			add_request(name, elements[i], sizes[j], 0);
		}
	for (unsigned bytes = 8; bytes <= 64; bytes *= 2)
		for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
			snprintf(name, sizeof name, "offset.1x%u.%u", bytes, offsets[i]);
			add_request(name, 1, bytes, offsets[i]);
		}
}

/* Send it once. The key is held, and the receive is posted, which has room for any: nothing but the request is timed. */
static void send_request(const struct request *r, uint32_t lkey, double ns[PARTS])
{
	struct ibv_sge sge[PIECES_MAX], room = { (uintptr_t)in, (uint32_t)(RECVS * RECV_BYTES), in_pin.lkey };
	struct ibv_recv_wr recv = { .sg_list = &room, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = sge,
				  .num_sge = (int)r->n }, *bad;
	const size_t stride = ((size_t)r->bytes + PAGE - 1) / PAGE * PAGE + PAGE;
	struct ibv_wc wc;
	int got;

	for (unsigned i = 0; i < r->n; i++)
		sge[i] = (struct ibv_sge){ (uintptr_t)source + i * stride + r->offset, r->bytes, lkey };
	check(ibv_post_recv(qp[1], &recv, &bad_recv), "post a receive");
	const double start = now_ns();
	check(ibv_post_send(qp[0], &wr, &bad), "post");
	const double posted = now_ns();
	complete(1);
	const double end = now_ns();
	while (!(got = ibv_poll_cq(cq[1], 1, &wc)))
		sched_yield();
	if (got < 0 || wc.status)
		errx(1, "receive: %s", got < 0 ? "no completion" : ibv_wc_status_str(wc.status));
	ns[POST] = posted - start;
	ns[POLL] = end - posted;
	ns[BOTH] = end - start;
}

/* Before there is a thread that receives. */
static void measure_requests(uint32_t lkey)
{
	static const char *const part_names[] = { "post", "poll", "both" };
	double ns[PARTS], all[PARTS][GROUPS];

	add_requests();
	for (int round = -1; round < rounds; round++) /* the first round warms up */
		for (size_t i = 0; i < request_count; i++) {
			for (size_t k = 0; k < GROUPS; k++) {
				send_request(&requests[i], lkey, ns);
				for (int part = 0; part < PARTS; part++)
					all[part][k] = ns[part];
			}
			for (int part = 0; part < PARTS; part++)
				requests[i].ns[part][round < 0 ? 0 : round] = median(all[part], GROUPS);
		}
	for (size_t i = 0; i < request_count; i++)
		for (int part = 0; part < PARTS; part++)
			printf("figure %s %s %.0f ns\n", part_names[part], requests[i].name,
			       median_of(requests[i].ns[part], rounds));
}

/* ------------------------------------------------------------------ results */

static size_t cell_of(unsigned n, unsigned bytes)
{
	size_t i = 0;
	while (cells[i].n != n || cells[i].bytes != bytes)
		i++;
	return i;
}

/* The median of the rounds' ratios. */
static double ratio(size_t cell_a, enum subject a, size_t cell_b, enum subject b)
{
	double v[ROUNDS_MAX];
	for (int r = 0; r < rounds; r++)
		v[r] = results[cell_a][a].us[r] / results[cell_b][b].us[r];
	return median_of(v, rounds);
}

static void print_cells(void)
{
	puts("us from post to completion (CPU us of sender + receiver; completions of both)");
	for (size_t c = 0; c < CELLS; c++) {
		printf("%3u x %-4u", cells[c].n, cells[c].bytes);
		for (int s = 0; s < SUBJECTS; s++)
			if (results[c][s].known)
				printf(" %s %.0f (%.0f+%.0f; %g+%g)", names[s], median_of(results[c][s].us, rounds),
				       median_of(results[c][s].send_cpu, rounds), median_of(results[c][s].recv_cpu, rounds),
				       results[c][s].sent, results[c][s].received);
		putchar('\n');
	}
}

static void judge(const char *what, double is, double least, double most)
{
	printf("target: %s: %.2f, %s %.2f %s\n", what, is, least > 0 ? "at least" : "at most", least > 0 ? least : most,
	       (least > 0 ? is >= least : is <= most) ? "ok" : "MISS");
}

static void print_targets(void)
{
	const struct {
		unsigned n, bytes;
		double least;
	} fast[] = { { 2, 8, 1.7 }, { 30, 8, 15 }, { 30, 512, 3.5 } };
	char what[64];

	for (int i = 0; i < 3; i++) {
		const size_t c = cell_of(fast[i].n, fast[i].bytes);
		snprintf(what, sizeof what, "each / plan %u x %u", fast[i].n, fast[i].bytes);
		judge(what, ratio(c, EACH, c, PLAN), fast[i].least, 0);
	}
	for (unsigned bytes = 8; bytes <= 128; bytes *= bytes == 8 ? 8 : 2) {
		snprintf(what, sizeof what, "gather 4 x %u / 1 x %u (Rex et al.: 1.14)", bytes, bytes);
		judge(what, ratio(cell_of(4, bytes), GATHER, cell_of(1, bytes), GATHER), 0, 1.25);
		printf("  and of the same bytes in one piece: %.2f\n",
		       ratio(cell_of(4, bytes), GATHER, cell_of(1, 4 * bytes), GATHER));
	}
}

/* ------------------------------------------------------------------ memory */

static uint64_t bytes_in_use(void)
{
	const struct mallinfo2 m = mallinfo2();
	struct hugepin_stats s;

	hugepin_stats(&s, sizeof s);
	return m.uordblks + m.hblkhd + s.taken_bytes;
}

/* Open queues, all for one queue pair, since memory alone counts here. Returns the bytes that they and `pool` take. */
static uint64_t bytes_of_queues(int count, const struct hugepin_sgpool_attr *pool_attr)
{
	hugepin_sgq **queue = malloc((size_t)count * sizeof(hugepin_sgq *));
	const uint64_t before = bytes_in_use();
	struct hugepin_sgq_attr a = { .size = sizeof a, .qp = qp[0], .domain = domain, .model = &model };

	if (pool_attr)
		check(hugepin_sgpool_open(pool_attr, &a.pool), "hugepin_sgpool_open");
	for (int i = 0; i < count; i++)
		check(hugepin_sgq_open(&a, &queue[i]), "hugepin_sgq_open");
	const uint64_t bytes = bytes_in_use() - before;
	for (int i = 0; i < count; i++)
		check(hugepin_sgq_close(queue[i]), "hugepin_sgq_close");
	if (a.pool)
		check(hugepin_sgpool_close(a.pool), "hugepin_sgpool_close");
	free(queue);
	return bytes;
}

static void print_memory(void)
{
	enum { QUEUES = 1000, FEW = 20 };
	const struct hugepin_sgpool_attr pool = { .size = sizeof pool, .domain = domain, .slots = 2 * QUEUES };
	const double pooled = (double)bytes_of_queues(QUEUES, &pool) / 1048576;
	const double own = (double)bytes_of_queues(FEW, NULL) / 1048576 / FEW * QUEUES;

	printf("memory: 1000 queues with a pool of %u slots %.1f MiB, without a pool %.0f MiB (as %d of them), each for "
	       "%u work requests\n",
	       pool.slots, pooled, own, FEW, caps.max_wr);
	judge("MiB of 1000 queues with a pool", pooled, 0, 64);
}

int main(int argc, char **argv)
{
	int option;
	while ((option = getopt(argc, argv, "r:")) != -1) {
		if (option != 'r')
			return 2;
		rounds = atoi(optarg);
		rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
	}
	open_device(argv[optind]);
	check(hugepin_verbs_open(pd, NULL, &domain), "domain");
	source = hugepin_malloc(SOURCE_BYTES);
	slot = hugepin_malloc(RECV_BYTES);
	in = hugepin_malloc(RECVS * RECV_BYTES);
	scattered = hugepin_malloc(PIECES_MAX * STRIDE);
	struct hugepin_pin source_pin;
	pin(source, SOURCE_BYTES, &source_pin);
	pin(slot, RECV_BYTES, &slot_pin);
	pin(in, RECVS * RECV_BYTES, &in_pin);
	memset(source, 1, SOURCE_BYTES);
	measure_requests(source_pin.lkey);
	for (uint64_t i = 0; i < RECVS; i++)
		post_receive(i);
	check(hugepin_sg_calibrate(pd, 0, &model, sizeof model), "calibrate");
	printf("model: copy_below %u %u apart_below %u %u inline_pieces %u %u refused %u\n", model.copy_below[0],
	       model.copy_below[1], model.apart_below[0], model.apart_below[1], model.inline_pieces[0],
	       model.inline_pieces[1], model.refused);
	pthread_t receiver;
	check(pthread_create(&receiver, NULL, receive, NULL), "thread");
	for (int round = -1; round < rounds; round++) /* the first round warms up */
		for (size_t c = 0; c < CELLS; c++)
			for (int s = 0; s < SUBJECTS; s++)
				measure(c, (enum subject)((s + round + 1) % SUBJECTS), round < 0 ? 0 : round);
	atomic_store_explicit(&done, true, memory_order_relaxed);
	pthread_join(receiver, NULL);
	print_cells();
	print_targets();
	print_memory();
	return 0;
}
