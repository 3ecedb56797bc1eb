/* link: hugepin-verbs hugepin ibverbs */
/*
 * The time of a put into another process's memory, from the wish to the completion, by who knows a key of the memory:
 *
 *	lendverbs [-n PUTS] [DEVICE]
 *
 * Two threads stand for two processes: one puts, the other one answers messages. Subjects:
 *	known       RDMA WRITE by a key that was told once, without the library
 *	lent        hugepin_lend_key finds a borrowed key; RDMA WRITE; hugepin_lend_done
 *	rendezvous  a message asks for the key, which the target knows, and a message brings it; RDMA WRITE
 *	register    the same, and the target registers the memory for this put; a message has it deregistered afterwards
 *	bounce      a copy into registered memory; RDMA WRITE into registered memory; a message has the target copy the bytes
 *	            to their place; its answer ends the put
 *
 * Prints for each length the medians of PUTS (40) puts of each subject, taken in turn, in microseconds, and their
 * ratios to `lent`; then the same of 4 KiB with a target that computes, and looks at its messages once in a
 * millisecond. Beside the ratios stand those of Bonachea and Bell (2003, Myrinet, puts of programs in Titanium): 14 us
 * for a put by a borrowed key, 34 us by rendezvous, 5141 us with unpinning. With soft-RoCE these are times of system
 * calls and packets, not of an adapter.
 */
#include <hugepin_verbs.h>
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

enum { BYTES_MAX = 1 << 20, PUTS_MAX = 1000, MESSAGES = 16, OWN = 4, SLOT = 64 };
enum subject { KNOWN, LENT, RENDEZVOUS, REGISTER, BOUNCE, SUBJECTS };
static const char *const names[SUBJECTS] = { "known", "lent", "rendezvous", "register", "bounce" };
static const size_t sizes[] = { 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20 };
enum { SIZES = sizeof sizes / sizeof *sizes };

static double us[SIZES][SUBJECTS][PUTS_MAX];
static int puts_each = 40;

/* wr_id of work requests that are not the library's; a receive has its slot in the lower bits */
enum { PUT = 1, SENT = 2, RECEIVED = 0x100 };

/* Messages of this program's own: fixed, short, and inline, so that a rendezvous is as fast as it can be. */
enum order { WANT_KEY, WANT_REGISTERED, FINISHED, PLACE };
struct message {
	uint32_t order, rkey;
	uint64_t addr, len;
};

/* Two connections: [0] carries puts and the lend's messages, [1] this program's messages. */
static struct side {
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	struct ibv_qp_cap granted;
	hugepin_domain *domain;
	hugepin_lend *lend;
	hugepin_lendq *lendq;
	char *memory, *bounce, *slots; /* slots: of messages */
	struct hugepin_pin memory_pin, bounce_pin, slots_pin;
	struct message message; /* the latest that came */
	unsigned messages, puts; /* numbers of completions */
	bool answered;
	struct hugepin_far key;
} side[2]; /* the one that puts, and the target */

static struct ibv_pd *pd;
static _Atomic bool stop;
static _Atomic unsigned busy_us; /* the target computes for so long between two looks at its messages */

/* ------------------------------------------------------------------ the connections */

static void open_device(const char *name)
{
	pd = rc_open(name);
	for (int i = 0; i < 2; i++) {
		struct side *s = &side[i];
		s->cq = ibv_create_cq(pd->context, 2 * (2 * MESSAGES + OWN), NULL, NULL, 0);
		for (int k = 0; k < 2; k++) {
			s->granted = (struct ibv_qp_cap){ .max_send_wr = MESSAGES + OWN, .max_recv_wr = MESSAGES,
							  .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 128 };
			s->qp[k] = rc_create(pd, s->cq, &s->granted);
		}
	}
	for (int k = 0; k < 2; k++)
		rc_connect(side[0].qp[k], side[1].qp[k]);
}

static int send_of_lend(void *arg, uint32_t peer, const void *msg, size_t len)
{
	(void)peer;
	return hugepin_lendq_send(((struct side *)arg)->lendq, msg, len);
}

static void ready(void *arg, void *token, int error, const struct hugepin_far *key)
{
	struct side *s = arg;
	(void)token;
	check(error, "borrow");
	s->key = *key;
	s->answered = true;
}

static int offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	const struct side *s = arg;
	(void)peer;
	*ret_buffer = (struct iovec){ s->memory, BYTES_MAX };
	return addr - (uintptr_t)s->memory < BYTES_MAX && len ? 0 : -EACCES;
}

static void post_receive(struct side *s, uint64_t slot)
{
	struct ibv_sge sge = { s->slots_pin.base + slot * SLOT, SLOT, s->slots_pin.lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = RECEIVED | slot, .sg_list = &sge, .num_sge = 1 };
	check(ibv_post_recv(s->qp[1], &wr, &bad), "post a receive");
}

static void side_open(struct side *s)
{
	const unsigned access = HUGEPIN_READ | HUGEPIN_WRITE;
	check(hugepin_verbs_open(pd, NULL, &s->domain), "domain");
	s->memory = hugepin_malloc(BYTES_MAX);
	s->bounce = hugepin_malloc(BYTES_MAX);
	s->slots = aligned_alloc(4096, 4096);
	if (!s->memory || !s->bounce || !s->slots)
		err(1, "memory");
	memset(s->memory, 1, BYTES_MAX);
	memset(s->bounce, 2, BYTES_MAX);
	check(hugepin_pin(s->domain, s->memory, BYTES_MAX, access | HUGEPIN_REMOTE_WRITE, &s->memory_pin), "pin");
	check(hugepin_pin(s->domain, s->bounce, BYTES_MAX, access | HUGEPIN_REMOTE_WRITE, &s->bounce_pin), "pin");
	check(hugepin_pin(s->domain, s->slots, 4096, access, &s->slots_pin), "pin");
	for (uint64_t slot = 0; slot < MESSAGES; slot++)
		post_receive(s, slot);
	struct hugepin_lend_attr lend = { .size = sizeof lend, .peers = 1, .lent_bytes_max = 4 * BYTES_MAX,
					  .idle_bytes_max = BYTES_MAX, .send = send_of_lend, .ready = ready,
					  .offer = offer };
	check(hugepin_lend_open(s->domain, &lend, s, &s->lend), "lend");
	struct hugepin_lendq_attr carry = { .size = sizeof carry, .qp = s->qp[0], .granted = &s->granted,
					    .domain = s->domain, .lend = s->lend, .depth = MESSAGES, .reserved_wr = OWN,
					    .recv_depth = MESSAGES };
	check(hugepin_lendq_open(&carry, &s->lendq), "messages of the lend");
}

/* ------------------------------------------------------------------ work requests and completions */

static void post_message(struct side *s, struct message m)
{
	struct ibv_sge sge = { (uintptr_t)&m, sizeof m, 0 };
	struct ibv_send_wr *bad, wr = { .wr_id = SENT,
					.opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
					.sg_list = &sge,
					.num_sge = 1 };
	check(ibv_post_send(s->qp[1], &wr, &bad), "send");
}

static void look(struct side *s)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(s->cq, 1, &wc);
	if (n < 0 || (n && wc.status))
		errx(1, "completion: %s", n < 0 ? "none" : ibv_wc_status_str(wc.status));
	if (!n) {
		hugepin_lend_progress(s->lend);
		sched_yield();
	} else if (wc.wr_id == PUT) {
		s->puts++;
	} else if ((wc.wr_id & ~(uint64_t)0xff) == RECEIVED) {
		memcpy(&s->message, s->slots + (wc.wr_id & 0xff) * SLOT, sizeof s->message);
		post_receive(s, wc.wr_id & 0xff);
		s->messages++;
	} else if (wc.wr_id != SENT && hugepin_sg_wc(&wc) != 1) {
		errx(1, "a completion of nobody");
	}
}

static void put(struct side *s, const char *from, uint32_t lkey, uint64_t to, uint32_t rkey, size_t len)
{
	struct ibv_sge sge = { (uintptr_t)from, (uint32_t)len, lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = PUT, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
					.sg_list = &sge, .num_sge = 1, .wr.rdma = { .remote_addr = to, .rkey = rkey } };
	const unsigned before = s->puts;
	check(ibv_post_send(s->qp[0], &wr, &bad), "put");
	while (s->puts == before)
		look(s);
}

/* Send a message, and wait for the answer. */
static struct message ask(struct side *s, enum order order, uint64_t addr, size_t len)
{
	const unsigned before = s->messages;
	post_message(s, (struct message){ .order = order, .addr = addr, .len = len });
	while (s->messages == before)
		look(s);
	return s->message;
}

/* ------------------------------------------------------------------ the target, and the subjects */

static void answer(struct side *s, struct ibv_mr **mr)
{
	struct message m = s->message;
	if (m.order == WANT_KEY) {
		m.rkey = s->memory_pin.rkey;
	} else if (m.order == WANT_REGISTERED) {
		*mr = ibv_reg_mr(pd, (void *)(uintptr_t)m.addr, m.len,
				 (int)IBV_ACCESS_LOCAL_WRITE | (int)IBV_ACCESS_REMOTE_WRITE);
		if (!*mr)
			err(1, "register");
		m.rkey = (*mr)->rkey;
	} else if (m.order == FINISHED) {
		check(ibv_dereg_mr(*mr), "deregister");
	} else {
		memcpy((void *)(uintptr_t)m.addr, s->bounce, m.len);
	}
	post_message(s, m);
}

static void *serve(void *arg)
{
	struct side *s = arg;
	struct ibv_mr *mr = NULL;
	for (unsigned seen = 0; !atomic_load_explicit(&stop, memory_order_relaxed);) {
		const double until = now_ns() / 1e3 + atomic_load_explicit(&busy_us, memory_order_relaxed);
		look(s);
		if (s->messages != seen) {
			seen++;
			answer(s, &mr);
		}
		while (now_ns() / 1e3 < until)
			;
	}
	return NULL;
}

/* A borrowed key of [to, to + len) of the target. */
static struct hugepin_far borrow(struct side *s, uint64_t to, size_t len)
{
	struct hugepin_far key;
	s->answered = false;
	const int ret = hugepin_lend_key(s->lend, 0, to, len, NULL, &key);
	check(ret < 0 ? ret : 0, "ask for a key");
	while (!ret && !s->answered)
		look(s);
	return ret ? key : s->key;
}

static void put_lent(struct side *s, uint64_t to, size_t len)
{
	for (size_t at = 0; at < len;) {
		struct hugepin_far key = borrow(s, to + at, len - at);
		put(s, s->memory + at, s->memory_pin.lkey, to + at, key.rkey, key.len);
		at += key.len;
		check(hugepin_lend_done(s->lend, &key), "done");
	}
}

static double measure(enum subject subject, size_t len)
{
	struct side *s = &side[0];
	const uint64_t to = (uintptr_t)side[1].memory;
	const double start = now_ns() / 1e3;
	if (subject == KNOWN) {
		put(s, s->memory, s->memory_pin.lkey, to, side[1].memory_pin.rkey, len);
	} else if (subject == LENT) {
		put_lent(s, to, len);
	} else if (subject == RENDEZVOUS) {
		const struct message m = ask(s, WANT_KEY, to, len);
		put(s, s->memory, s->memory_pin.lkey, to, m.rkey, len);
	} else if (subject == REGISTER) {
		const struct message m = ask(s, WANT_REGISTERED, to, len);
		put(s, s->memory, s->memory_pin.lkey, to, m.rkey, len);
		ask(s, FINISHED, to, len);
	} else {
		memcpy(s->bounce, s->memory, len);
		put(s, s->bounce, s->bounce_pin.lkey, side[1].bounce_pin.base, side[1].bounce_pin.rkey, len);
		ask(s, PLACE, to, len);
	}
	return now_ns() / 1e3 - start;
}

/* ------------------------------------------------------------------ results */

static void print_table(void)
{
	printf("%8s", "KiB");
	for (int k = 0; k < SUBJECTS; k++)
		printf(" %12s", names[k]);
	printf("   us, medians of %d; ratios to lent\n", puts_each);
	for (int i = 0; i < SIZES; i++) {
		double m[SUBJECTS];
		printf("%8zu", sizes[i] / 1024);
		for (int k = 0; k < SUBJECTS; k++)
			printf(" %12.0f", m[k] = median(us[i][k], (size_t)puts_each));
		printf("   rendezvous %.1f (Bonachea and Bell: 34 / 14 = 2.4), register %.1f (5141 / 14 = 367), bounce "
		       "%.1f, "
		       "known %.2f\n",
		       m[RENDEZVOUS] / m[LENT], m[REGISTER] / m[LENT], m[BOUNCE] / m[LENT], m[KNOWN] / m[LENT]);
	}
}

int main(int argc, char **argv)
{
	int option;
	while ((option = getopt(argc, argv, "n:")) != -1) {
		if (option != 'n')
			return 2;
		puts_each = atoi(optarg);
		puts_each = puts_each < 1 ? 1 : puts_each > PUTS_MAX ? PUTS_MAX : puts_each;
	}
	open_device(argv[optind]);
	for (int i = 0; i < 2; i++)
		side_open(&side[i]);
	pthread_t target;
	check(pthread_create(&target, NULL, serve, &side[1]), "thread");
	put_lent(&side[0], (uintptr_t)side[1].memory, BYTES_MAX);
	for (int n = -3; n < puts_each; n++) /* the first ones warm up */
		for (int i = 0; i < SIZES; i++)
			for (int k = 0; k < SUBJECTS; k++) {
				const int subject = (k + n + 3) % SUBJECTS;
				us[i][subject][n < 0 ? 0 : n] = measure((enum subject)subject, sizes[i]);
			}
	static double busy[SUBJECTS][PUTS_MAX];
	atomic_store_explicit(&busy_us, 1000, memory_order_relaxed);
	for (int n = 0; n < puts_each; n++)
		for (int k = KNOWN; k <= RENDEZVOUS; k++)
			busy[k][n] = measure((enum subject)k, 4096);
	struct hugepin_lend_stats stats;
	hugepin_lend_stats(side[0].lend, 0, &stats, sizeof stats);
	atomic_store_explicit(&stop, true, memory_order_relaxed);
	pthread_join(target, NULL);
	print_table();
	const double lent = median(busy[LENT], (size_t)puts_each), rendezvous = median(busy[RENDEZVOUS], (size_t)puts_each);
	printf("4 KiB, the target busy: known %.0f us, lent %.0f, rendezvous %.0f, which is %.1f of lent\n",
	       median(busy[KNOWN], (size_t)puts_each), lent, rendezvous, rendezvous / lent);
	printf("questions of the lend in all: %llu\n", (unsigned long long)stats.asks);
	return 0;
}
