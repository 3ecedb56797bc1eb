/* link: hugepin-verbs hugepin ibverbs */
/* guest: plain */
/*
 * Borrowed keys over a real provider: a target lends its memory, origins read and write it by RDMA while the target's
 * program does nothing. Messages go by hugepin_lendq. Each side has a domain of its own, on the protection domain that
 * all share. Bytes are compared, what is pinned is counted by the kernel (VmPin), and peers die.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "guest/wire.h"
#include "rnd.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

enum { ORIGINS = 3, DEPTH = 16, RECV = 32, OWN = 2, OWN_ID = 1, CARRY = 4096, QUESTIONS = 60 };
#define TABLE (8 * MIB)
#define BUDGET (96 * MIB) /* of a side's domain */

static struct wire_port port;

/* A connection of two queue pairs has an end at each side. */
struct link {
	struct ibv_qp *qp;
	struct ibv_qp_cap granted;
	hugepin_lendq *queue;
};

static struct side {
	hugepin_domain *domain;
	hugepin_lend *lend;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	int woken; /* readable when wake() was called */
	bool hears_lies; /* peers send what no lend sends */
	struct link link[ORIGINS + 1]; /* an origin has one */
	uint32_t links;
	unsigned polls; /* how often its program looked for completions */
	bool own_done; /* a transfer of its own is done, with */
	enum ibv_wc_status own_status;
	unsigned answers; /* to questions that have keys of their own as tokens */
	bool answered; /* a key was asked for; the answer: */
	int answer;
	struct hugepin_far key;
	char *local; /* memory for transfers, which is pinned */
	struct hugepin_pin local_pin;
} target, origin[ORIGINS];

/* The buffers that the target lends. */
static struct iovec offered[4];

/* ------------------------------------------------------------------ the lend's callbacks */

static int send_message(void *arg, uint32_t peer, const void *msg, size_t len)
{
	struct side *s = arg;
	return hugepin_lendq_send(s->link[peer].queue, msg, len);
}

static void ready(void *arg, void *token, int err, const struct hugepin_far *key)
{
	struct side *s = arg;
	EXPECT_EQ(!err, !!key);
	if (token != s) {
		EXPECT(key);
		*(struct hugepin_far *)token = key ? *key : (struct hugepin_far){ 0 };
		s->answers++;
		return;
	}
	EXPECT(!s->answered);
	s->answered = true;
	s->answer = err;
	if (key)
		s->key = *key;
}

static int offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	(void)peer;
	for (size_t i = 0; arg == &target && i < sizeof offered / sizeof *offered; i++)
		if (addr - (uintptr_t)offered[i].iov_base < offered[i].iov_len && len) {
			*ret_buffer = offered[i];
			return 0;
		}
	return -EACCES;
}

static void wake(void *arg)
{
	EXPECT_EQ(write(((struct side *)arg)->woken, &(uint64_t){ 1 }, 8), 8);
}

/* ------------------------------------------------------------------ sides */

static void side_open(struct side *s, uint32_t links, size_t lent_max, size_t idle_max, uint32_t policy)
{
	struct hugepin_attr domain = { .size = sizeof domain, .pinned_bytes_max = BUDGET };
	struct hugepin_lend_attr lend = { .size = sizeof lend, .peers = links, .policy = policy,
					  .lent_bytes_max = lent_max, .idle_bytes_max = idle_max,
					  .peer_bytes_max = lent_max, /* one peer may have all */
					  .carry_max = CARRY, .send = send_message, .ready = ready, .offer = offer,
					  .wake = wake };
	*s = (struct side){ .links = links, .woken = eventfd(0, EFD_NONBLOCK) };
	s->channel = ibv_create_comp_channel(port.device);
	s->cq = ibv_create_cq(port.device, (int)links * (DEPTH + RECV + OWN), NULL, s->channel, 0);
	EXPECT(s->channel && s->cq);
	EXPECT_EQ(hugepin_verbs_open(port.pd, &domain, &s->domain), 0);
	EXPECT_EQ(hugepin_lend_open(s->domain, &lend, s, &s->lend), 0);
	s->local = mmap(NULL, 64 * KIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT_EQ(hugepin_pin(s->domain, s->local, 64 * KIB, HUGEPIN_READ | HUGEPIN_WRITE, &s->local_pin), 0);
}

static void qp_make(struct side *s, uint32_t i)
{
	struct ibv_qp_init_attr init = {
		.send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH + OWN, .max_recv_wr = RECV, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = 64 },
	};
	s->link[i].qp = ibv_create_qp(port.pd, &init);
	s->link[i].granted = init.cap;
	EXPECT(s->link[i].qp && wire_init(s->link[i].qp));
}

static void queue_open(struct side *s, uint32_t i)
{
	struct hugepin_lendq_attr a = { .size = sizeof a,
					.qp = s->link[i].qp,
					.granted = &s->link[i].granted,
					.domain = s->domain,
					.lend = s->lend,
					.peer = i,
					.carry_max = CARRY,
					.depth = DEPTH,
					.reserved_wr = OWN,
					.recv_depth = RECV,
					.flags = HUGEPIN_SGQ_WAIT };
	EXPECT_EQ(hugepin_lendq_open(&a, &s->link[i].queue), 0);
}

static void join(uint32_t i)
{
	qp_make(&target, i);
	qp_make(&origin[i], 0);
	EXPECT(wire_connect(&port, target.link[i].qp, origin[i].link[0].qp->qp_num, 3));
	EXPECT(wire_connect(&port, origin[i].link[0].qp, target.link[i].qp->qp_num, 3));
	queue_open(&target, i);
	queue_open(&origin[i], 0);
}

/* Take what has completed at a side, which is what its program has to do for others. */
static void look(struct side *s)
{
	struct ibv_wc wc;
	s->polls++;
	while (ibv_poll_cq(s->cq, 1, &wc) == 1) {
		int taken = hugepin_sg_wc(&wc);
		EXPECT(taken >= 0 || (taken == -EILSEQ && s->hears_lies));
		if (!taken && wc.wr_id == OWN_ID) {
			s->own_done = true;
			s->own_status = wc.status;
		}
	}
	EXPECT_EQ(hugepin_lend_progress(s->lend), 0);
}

static void look_all(int times)
{
	while (times--) {
		look(&target);
		for (int i = 0; i < ORIGINS; i++)
			if (origin[i].lend)
				look(&origin[i]);
		sched_yield();
	}
}

/* Until that is so, as a loop of what to do meanwhile; for ever is a failure. */
#define UNTIL(so) for (time_t limit = time(NULL) + t_seconds(); !(so) && EXPECT(time(NULL) < limit);)

/* A key for an origin; *ret_key is its. 0, or what the target answered. */
static int borrow(struct side *s, const void *addr, size_t len, struct hugepin_far *ret_key)
{
	s->answered = false;
	int ret = hugepin_lend_key(s->lend, 0, (uintptr_t)addr, len, s, ret_key);
	if (ret == 1)
		return 0;
	if (!EXPECT_EQ(ret, 0))
		return ret;
	UNTIL(s->answered)
		look_all(1);
	*ret_key = s->key;
	return s->answered ? s->answer : -ETIME;
}

/* A transfer between s->local and the target's memory: nobody but the origin looks. */
static enum ibv_wc_status transfer(struct side *s, enum ibv_wr_opcode opcode, const void *addr, size_t len,
				   uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)s->local, .length = (uint32_t)len, .lkey = s->local_pin.lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = OWN_ID, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
					.sg_list = &sge, .num_sge = 1,
					.wr.rdma = { .remote_addr = (uintptr_t)addr, .rkey = rkey } };
	s->own_done = false;
	if (!EXPECT_EQ(ibv_post_send(s->link[0].qp, &wr, &bad), 0))
		return IBV_WC_FATAL_ERR;
	UNTIL(s->own_done) {
		look(s);
		sched_yield();
	}
	return s->own_done ? s->own_status : IBV_WC_FATAL_ERR;
}

/* A put of bytes that follow from n, or a get, of memory that is to have the shadow's bytes. */
static void put_or_get(struct side *s, const struct hugepin_far *key, char *shadow, uint64_t n)
{
	const bool put = rnd(2);
	pattern_write(s->local, key->len, n);
	if (put)
		memcpy(shadow, s->local, key->len);
	EXPECT_EQ(transfer(s, put ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, (void *)key->base, key->len, key->rkey), 0);
	EXPECT(!memcmp(s->local, shadow, key->len));
}

static struct hugepin_lend_stats lent_to(uint32_t peer)
{
	struct hugepin_lend_stats stats = { 0 };
	EXPECT(hugepin_lend_stats(target.lend, peer, &stats, sizeof stats) > 0);
	return stats;
}

static struct hugepin_lend_stats lent(void)
{
	return lent_to(HUGEPIN_LEND_ALL);
}

static void link_close(struct side *s, uint32_t i)
{
	int err = -EBUSY;
	struct link *l = &s->link[i];
	if (!l->queue)
		return;
	EXPECT_EQ(ibv_modify_qp(l->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE), 0);
	time_t limit = time(NULL) + t_seconds();
	while ((err = hugepin_lendq_close(l->queue)) == -EBUSY && time(NULL) < limit)
		look(s);
	EXPECT_EQ(err, 0);
	l->queue = NULL;
	EXPECT_EQ(ibv_destroy_qp(l->qp), 0);
}

static void side_close(struct side *s)
{
	if (!s->lend)
		return;
	for (uint32_t i = 0; i < s->links; i++)
		link_close(s, i);
	EXPECT_EQ(hugepin_lend_close(s->lend), 0);
	EXPECT_EQ(hugepin_unpin(s->domain, &s->local_pin), 0);
	EXPECT_EQ(hugepin_domain_close(s->domain), 0); /* -EBUSY: pins are out */
	EXPECT_EQ(ibv_destroy_cq(s->cq), 0);
	EXPECT_EQ(ibv_destroy_comp_channel(s->channel), 0);
	munmap(s->local, 64 * KIB);
	close(s->woken);
	s->lend = NULL;
}

/* A target that lends TABLE bytes of its own, and some origins. */
static bool begin(uint32_t origins, size_t lent_max, size_t idle_max, uint32_t policy)
{
	if (!port.device && !wire_port_open(&port))
		return false;
	memset(offered, 0, sizeof offered);
	memset(origin, 0, sizeof origin);
	side_open(&target, ORIGINS + 1, lent_max, idle_max, policy); /* the last is the target's own number */
	for (uint32_t i = 0; i < origins; i++) {
		side_open(&origin[i], 1, MIB, 0, HUGEPIN_LEND_POOL);
		join(i);
	}
	return true;
}

static void end(void)
{
	for (int i = 0; i < ORIGINS; i++)
		side_close(&origin[i]);
	side_close(&target);
}

/* A table of ones from the heap, which is lent. */
static char *lend_table(void)
{
	char *table = hugepin_malloc(TABLE);
	memset(table, 1, TABLE);
	offered[0] = (struct iovec){ table, TABLE };
	return table;
}

static char *lend_mapping(size_t len)
{
	char *table = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	offered[0] = (struct iovec){ table, len };
	return table;
}

#define NEEDS_WIRE(...)                                                                                                \
	do {                                                                                                           \
		if (!begin(__VA_ARGS__))                                                                               \
			SKIP("no verbs device: made for the guest");                                                   \
	} while (0)

/* ------------------------------------------------------------------ the target sleeps */

TEST(puts_and_gets_by_borrowed_keys_need_nothing_of_the_targets_program)
{
	NEEDS_WIRE(2, 2 * TABLE, MIB, HUGEPIN_LEND_POOL);
	char *table = lend_table(), *shadow = malloc(TABLE);
	memset(shadow, 1, TABLE);
	struct hugepin_far key;
	for (int i = 0; i < 2; i++)
		for (size_t at = 0; at < TABLE; at += 128 * KIB) {
			EXPECT_EQ(borrow(&origin[i], table + at, 8, &key), 0);
			EXPECT_EQ(hugepin_lend_done(origin[i].lend, &key), 0);
		}
	look_all(50);
	struct hugepin_lend_stats before = lent();
	target.polls = 0;
	for (int n = 0; n < 400; n++) {
		struct side *s = &origin[rnd(2)];
		size_t len = 1 + rnd(rnd(3) ? 300 : 20000), at = rnd(TABLE - len);
		for (size_t got = 0; got < len; got += key.len) {
			int ret = hugepin_lend_key(s->lend, 0, (uintptr_t)table + at + got, len - got, s, &key);
			if (!EXPECT_EQ(ret, 1))
				return;
			EXPECT_EQ(key.base, (uintptr_t)table + at + got);
			put_or_get(s, &key, shadow + at + got, (uint64_t)n + 1);
			uint64_t used = key.len;
			EXPECT_EQ(hugepin_lend_done(s->lend, &key), 0);
			key.len = used;
		}
	}
	EXPECT_EQ(target.polls, 0);
	EXPECT(!memcmp(table, shadow, TABLE));
	struct hugepin_lend_stats after = lent();
	EXPECT_EQ(after.asked, before.asked);
	EXPECT_EQ(after.received, before.received);
	t_print("# %llu keys of %llu bytes, %llu questions\n", (unsigned long long)after.lent,
		(unsigned long long)after.lent_bytes, (unsigned long long)after.asked);
	end();
	hugepin_free(table);
	free(shadow);
}

/* The target looks only when an event of a solicited completion, the descriptor of a lendq, or wake() would wake it. */
static void target_looks_if_woken(void)
{
	struct pollfd fds[ORIGINS + 2] = { { .fd = target.channel->fd, .events = POLLIN },
					   { .fd = target.woken, .events = POLLIN } };
	struct ibv_cq *cq;
	void *context;
	for (int i = 0; i < ORIGINS; i++)
		fds[2 + i] = (struct pollfd){
			.fd = target.link[i].queue ? hugepin_lendq_fd(target.link[i].queue) : -1, .events = POLLIN
		};
	if (poll(fds, ORIGINS + 2, 0) <= 0)
		return;
	if (fds[0].revents && EXPECT_EQ(ibv_get_cq_event(target.channel, &cq, &context), 0))
		ibv_ack_cq_events(cq, 1);
	if (fds[1].revents)
		EXPECT_EQ(read(target.woken, &(uint64_t){ 0 }, 8), 8);
	EXPECT_EQ(ibv_req_notify_cq(target.cq, 1), 0);
	look(&target);
	for (int i = 0; i < ORIGINS; i++)
		EXPECT(!target.link[i].queue || hugepin_lendq_poll(target.link[i].queue, 0) >= 0);
}

/* More questions than the target has receives, and more than the origin sends at once. */
static void ask_much(bool wakes)
{
	NEEDS_WIRE(1, 64 * MIB, MIB, HUGEPIN_LEND_POOL);
	static struct hugepin_far key[QUESTIONS];
	char *table = lend_mapping(QUESTIONS * MIB);
	struct side *s = &origin[0];
	EXPECT_EQ(ibv_req_notify_cq(target.cq, 1), 0);
	look(&target);
	target.polls = 0;
	for (int i = 0; i < QUESTIONS; i++) {
		EXPECT_EQ(hugepin_lend_key(s->lend, 0, (uintptr_t)table + (size_t)i * MIB, 64, &key[i], &key[i]), 0);
		look(s);
	}
	if (!wakes) {
		sleep_ms(100);
		look(s);
		EXPECT_EQ(s->answers, 0);
		EXPECT_EQ(target.polls, 0);
	}
	UNTIL(s->answers >= QUESTIONS) {
		look(s);
		wakes ? target_looks_if_woken() : look(&target);
		sched_yield();
	}
	t_print("# the target looked %u times\n", target.polls);
	for (int i = 0; i < QUESTIONS; i++) {
		EXPECT_EQ(key[i].base, (uintptr_t)table + (size_t)i * MIB);
		EXPECT_EQ(hugepin_lend_done(s->lend, &key[i]), 0);
	}
	struct hugepin_lend_stats stats;
	hugepin_lend_stats(s->lend, 0, &stats, sizeof stats);
	EXPECT_EQ(stats.asks, QUESTIONS);
	end();
	munmap(table, QUESTIONS * MIB);
}

TEST_CASE(questions_to_a_target_that_sleeps_are_all_answered_when_it_wakes, ask_much(false))
TEST_CASE(a_target_that_solicited_completions_and_its_descriptor_wake_answers_everything, ask_much(true))

TEST(a_target_that_sleeps_is_woken_when_a_peer_is_silent_and_asks_another)
{
	NEEDS_WIRE(3, MIB, 4 * KIB, HUGEPIN_LEND_POOL);
	char *table = lend_mapping(2 * MIB);
	struct hugepin_far key;
	/* Origin 0 has most, and origin 2 the rest. */
	for (size_t at = 0; at < 2 * MIB - 4 * KIB && lent().lent_bytes < MIB; at += 4 * KIB) {
		struct side *s = &origin[lent_to(0).lent_bytes < 5 * MIB / 8 ? 0 : 2];
		if (EXPECT_EQ(borrow(s, table + at, 8, &key), 0))
			EXPECT_EQ(hugepin_lend_done(s->lend, &key), 0);
	}
	EXPECT_EQ(lent().lent_bytes, MIB);
	EXPECT_EQ(ibv_req_notify_cq(target.cq, 1), 0);
	look(&target);
	struct side *s = &origin[1];
	target.polls = 0;
	s->answer = -ENOBUFS; /* so it is again if the guest stood still, and origin 2 was late, too */
	UNTIL(s->answer != -ENOBUFS) {
		s->answered = false;
		EXPECT_EQ(hugepin_lend_key(s->lend, 0, (uintptr_t)table + 2 * MIB - 8, 8, s, &key), 0);
		UNTIL(s->answered) {
			look(s);
			look(&origin[2]);
			target_looks_if_woken();
			sched_yield();
		}
	}
	t_print("# the target was woken %u times\n", target.polls);
	EXPECT_EQ(s->answer, 0);
	EXPECT_EQ(lent_to(0).owes, 1);
	EXPECT_EQ(lent_to(0).late, 1);
	EXPECT_EQ(hugepin_lend_done(s->lend, &s->key), 0);
	UNTIL(!lent_to(0).owes)
		look_all(1);
	end();
	munmap(table, 2 * MIB);
}

TEST(a_peer_that_lies_gets_nothing_and_another_its_key_from_a_target_that_sleeps)
{
	NEEDS_WIRE(2, MIB, 4 * KIB, HUGEPIN_LEND_POOL);
	char *table = lend_mapping(MIB);
	/* lend/wire.h has the layout: a key given back that it does not have, and a question out of its turn */
	static const unsigned char lie[][32] = { "of no version",
						 { 1, 6, 1, 0, 0, 0, 0, 0, 77 },
						 { 1, 1, 0, 0, 7, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 8 } };
	static const size_t len[] = { 32, 16, 32 };
	EXPECT_EQ(ibv_req_notify_cq(target.cq, 1), 0);
	look(&target);
	target.hears_lies = true;
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(hugepin_lendq_send(origin[0].link[0].queue, lie[i], len[i]), 0);
	struct side *s = &origin[1];
	struct hugepin_far key;
	s->answered = false;
	EXPECT_EQ(hugepin_lend_key(s->lend, 0, (uintptr_t)table, 8, s, &key), 0);
	UNTIL(s->answered && lent_to(0).broken >= 3) {
		look(&origin[0]);
		look(s);
		target_looks_if_woken();
		sched_yield();
	}
	EXPECT_EQ(s->answer, 0);
	EXPECT_EQ(hugepin_lend_done(s->lend, &s->key), 0);
	EXPECT_EQ(lent_to(0).broken, 3);
	EXPECT_EQ(lent_to(0).received, 0);
	EXPECT_EQ(lent_to(0).lent, 0);
	end();
	munmap(table, MIB);
}

TEST(a_put_that_misses_rides_in_its_question)
{
	NEEDS_WIRE(1, 2 * TABLE, MIB, HUGEPIN_LEND_POOL);
	char *table = lend_table();
	struct side *s = &origin[0];
	struct hugepin_far key;
	static char bytes[CARRY];
	pattern_write(bytes, sizeof bytes, 99);
	s->answered = false;
	EXPECT_EQ(hugepin_lend_put(s->lend, 0, (uintptr_t)table + 8192, bytes, CARRY + 1, s, &key), -EMSGSIZE);
	EXPECT_EQ(hugepin_lend_put(s->lend, 0, (uintptr_t)table + 8192, bytes, CARRY, s, &key), 0);
	memset(bytes, 0, sizeof bytes);
	UNTIL(s->answered)
		look_all(1);
	EXPECT_EQ(s->answer, 0);
	EXPECT_EQ(pattern_check(table + 8192, CARRY, 99), -1);
	EXPECT_EQ(table[8191], 1);
	EXPECT_EQ(table[8192 + CARRY], 1);
	/* and the next one goes by the key */
	EXPECT_EQ(hugepin_lend_put(s->lend, 0, (uintptr_t)table + 8192, bytes, CARRY, s, &key), 1);
	EXPECT_EQ(transfer(s, IBV_WR_RDMA_READ, table + 8192, CARRY, key.rkey), 0);
	EXPECT_EQ(pattern_check(s->local, CARRY, 99), -1);
	EXPECT_EQ(hugepin_lend_done(s->lend, &key), 0);
	EXPECT_EQ(hugepin_lend_done(s->lend, &s->key), 0);
	end();
	hugepin_free(table);
}

/* ------------------------------------------------------------------ memory that goes away */

/* A put that the target has not heard of is under way while the target's memory goes. `gone` takes the memory away, and
 * returns bytes that the put must not change, which lie where the memory was or beside it. */
static void put_late(const char *what, void *memory, size_t len,
		     void (*take_away)(void *memory, size_t len, struct iovec *ret_others))
{
	struct hugepin_far key, again;
	struct iovec others[2] = { { 0 } };
	char *sum[2];
	memset(memory, 1, len);
	offered[0] = (struct iovec){ memory, len };
	EXPECT_EQ(borrow(&origin[0], memory, 4 * KIB, &key), 0);
	look_all(20);
	size_t before = kernel_pinned();
	take_away(memory, len, others);
	for (int i = 0; i < 2; i++) {
		sum[i] = malloc(others[i].iov_len + 1);
		memcpy(sum[i], others[i].iov_base ? others[i].iov_base : "", others[i].iov_len);
	}
	target.polls = 0;
	memset(origin[0].local, 0x5a, 4 * KIB);
	EXPECT_EQ(transfer(&origin[0], IBV_WR_RDMA_WRITE, memory, 4 * KIB, key.rkey), 0);
	memset(origin[0].local, 0, 4 * KIB);
	EXPECT_EQ(transfer(&origin[0], IBV_WR_RDMA_READ, memory, 4 * KIB, key.rkey), 0);
	EXPECT_EQ(origin[0].local[0], 0x5a); /* the pages still stand */
	EXPECT_EQ(origin[0].local[4 * KIB - 1], 0x5a);
	EXPECT_EQ(target.polls, 0);
	for (int i = 0; i < 2; i++)
		EXPECT(!memcmp(sum[i], others[i].iov_base ? others[i].iov_base : "", others[i].iov_len));
	EXPECT(kernel_pinned() >= before);
	/* The target asks for the key, which is in use. Then it comes back, and the pages go. The pin cache asks the
	 * kernel what has gone when the program pins. */
	struct hugepin_pin pin;
	EXPECT_EQ(hugepin_pin(target.domain, target.local, 8, HUGEPIN_READ, &pin), 0);
	EXPECT_EQ(hugepin_unpin(target.domain, &pin), 0);
	look_all(50);
	struct hugepin_lend_stats stats = lent();
	EXPECT(stats.recalls >= 1);
	EXPECT(stats.lent_bytes > 0);
	EXPECT_EQ(hugepin_lend_done(origin[0].lend, &key), 0);
	for (int i = 0; i < 4000 && lent().lent_bytes; i++) {
		look_all(10);
		sleep_ms(5);
	}
	EXPECT_EQ(lent().lent_bytes, 0);
	hugepin_purge();
	for (int i = 0; i < 1000 && kernel_pinned() >= before; i++) {
		look_all(5);
		sleep_ms(20);
	}
	EXPECT(kernel_pinned() < before);
	offered[0] = (struct iovec){ 0 };
	EXPECT_EQ(borrow(&origin[0], memory, 8, &again), -EACCES);
	t_print("# %s: %zu KiB pinned with the key out, %zu when it was back\n", what, before / KIB, kernel_pinned() / KIB);
	for (int i = 0; i < 2; i++)
		free(sum[i]);
}

/* Other memory comes to the same place. */
static void unmap(void *memory, size_t len, struct iovec *ret_others)
{
	EXPECT_EQ(munmap(memory, len), 0);
	void *other =
		mmap(memory, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	EXPECT(other == memory);
	memset(other, 3, len);
	ret_others[0] = (struct iovec){ other, len };
}

TEST(a_put_after_munmap_lands_on_the_old_pages_and_never_in_what_is_mapped_there_now)
{
	NEEDS_WIRE(1, 4 * TABLE, 4 * KIB, HUGEPIN_LEND_POOL);
	char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	put_late("munmap", memory, MIB, unmap);
	end();
	munmap(memory, MIB);
}

static char *neighbour[2];

static void free_and_purge(void *memory, size_t len, struct iovec *ret_others)
{
	hugepin_free(memory);
	hugepin_purge();
	for (int i = 0; i < 2; i++)
		ret_others[i] = (struct iovec){ neighbour[i], len };
}

TEST(a_put_after_free_and_purge_lands_on_pages_that_still_stand_and_changes_no_other_buffer)
{
	NEEDS_WIRE(1, 4 * TABLE, 4 * KIB, HUGEPIN_LEND_POOL);
	neighbour[0] = hugepin_malloc(4 * MIB);
	char *memory = hugepin_malloc(4 * MIB);
	neighbour[1] = hugepin_malloc(4 * MIB);
	for (int i = 0; i < 2; i++)
		memset(neighbour[i], 7, 4 * MIB);
	put_late("free and purge", memory, 4 * MIB, free_and_purge);
	end();
	for (int i = 0; i < 2; i++)
		hugepin_free(neighbour[i]);
}

/* ------------------------------------------------------------------ the limit */

/* Random puts and gets of three origins on eight times what may be lent. */
static void traffic(uint32_t policy, const char *name)
{
	size_t lent_max = MIB, idle_max = MIB / 4;
	NEEDS_WIRE(ORIGINS, lent_max, idle_max, policy);
	char *table = lend_table(), *shadow = malloc(TABLE);
	memset(shadow, 1, TABLE);
	size_t before = kernel_pinned(), most = 0;
	unsigned refused = 0, done = 0;
	for (int n = 0; n < 600 && !t_failures; n++) {
		struct side *s = &origin[rnd(ORIGINS)];
		size_t len = 8 * (1 + rnd(64)), at = 8 * rnd((TABLE - len) / 8);
		if (rnd(2)) /* a part that is asked for often */
			at %= lent_max / 4;
		struct hugepin_far key;
		int err = borrow(s, table + at, len, &key);
		refused += err == -ENOBUFS;
		if (err) {
			EXPECT_EQ(err, -ENOBUFS);
			continue;
		}
		EXPECT(key.base == (uintptr_t)table + at && key.len && key.len <= len);
		put_or_get(s, &key, shadow + at, (uint64_t)n + 1);
		EXPECT_EQ(hugepin_lend_done(s->lend, &key), 0);
		done++;
		size_t now = kernel_pinned() - before;
		most = now > most ? now : most;
		struct hugepin_lend_stats stats = lent();
		EXPECT(stats.lent_bytes <= lent_max);
		EXPECT(stats.lent_bytes + stats.idle_bytes <= lent_max + idle_max);
		EXPECT(now <= lent_max + idle_max);
	}
	EXPECT(!memcmp(table, shadow, TABLE));
	struct hugepin_lend_stats stats = lent();
	EXPECT(stats.bytes_peak <= lent_max + idle_max);
	EXPECT(done > 500);
	t_print("# %s: %u transfers, %u refused, %llu questions, %llu keys asked back, %zu KiB pinned at most\n", name,
		done, refused, (unsigned long long)stats.asked, (unsigned long long)stats.recalls, most / KIB);
	end();
	hugepin_free(table);
	free(shadow);
}

TEST_CASE(what_is_lent_and_idle_stays_within_the_limit_and_every_byte_arrives_pool, traffic(HUGEPIN_LEND_POOL, "pool"))
TEST_CASE(what_is_lent_and_idle_stays_within_the_limit_and_every_byte_arrives_static,
	  traffic(HUGEPIN_LEND_STATIC, "static"))

/* ------------------------------------------------------------------ peers that die */

TEST(a_peer_whose_queue_pair_is_destroyed_holds_nothing_any_more)
{
	NEEDS_WIRE(2, TABLE, 4 * KIB, HUGEPIN_LEND_POOL);
	char *table = lend_table();
	struct hugepin_far key, other;
	EXPECT_EQ(borrow(&origin[0], table, TABLE, &key), 0);
	EXPECT(lent().lent_bytes > 0);
	/* the origin dies with a use of the key */
	EXPECT_EQ(hugepin_lend_gone(origin[0].lend, 0), 0);
	EXPECT_EQ(ibv_destroy_qp(origin[0].link[0].qp), 0);
	EXPECT_EQ(hugepin_lendq_abort(origin[0].link[0].queue), 0);
	origin[0].link[0].queue = NULL;
	EXPECT_EQ(hugepin_lend_done(origin[0].lend, &key), 0);
	/* the target's program hears of it in its own way */
	link_close(&target, 0);
	EXPECT_EQ(lent().lent_bytes, 0);
	EXPECT_EQ(borrow(&origin[1], table, 8, &other), 0);
	EXPECT_EQ(hugepin_lend_done(origin[1].lend, &other), 0);
	EXPECT_EQ(hugepin_lend_key(origin[0].lend, 0, (uintptr_t)table, 8, &origin[0], &key), -ENOTCONN);
	/* the same number connects anew */
	EXPECT_EQ(hugepin_lend_again(target.lend, 0), 0);
	EXPECT_EQ(hugepin_lend_again(origin[0].lend, 0), 0);
	join(0);
	EXPECT_EQ(borrow(&origin[0], table, 8, &key), 0);
	EXPECT_EQ(transfer(&origin[0], IBV_WR_RDMA_READ, table, 8, key.rkey), 0);
	EXPECT_EQ(hugepin_lend_done(origin[0].lend, &key), 0);
	end();
	hugepin_free(table);
}

/* In a process of its own: borrow all that is lent, say so, and wait to be killed. */
static void hold_all(int to, uintptr_t table, size_t bytes)
{
	static char answer[8];
	uint32_t qpn;
	memset(&port, 0, sizeof port);
	memset(&target, 0, sizeof target);
	if (!wire_port_open(&port))
		_exit(2);
	side_open(&origin[0], 1, MIB, 0, HUGEPIN_LEND_POOL);
	qp_make(&origin[0], 0);
	if (write(to, &origin[0].link[0].qp->qp_num, 4) != 4 || read(to, &qpn, 4) != 4 ||
	    !wire_connect(&port, origin[0].link[0].qp, qpn, 3))
		_exit(3);
	queue_open(&origin[0], 0);
	if (write(to, "c", 1) != 1 || read(to, answer, 1) != 1)
		_exit(4);
	struct side *s = &origin[0];
	struct hugepin_far key;
	for (size_t at = 0; at < bytes; at += key.len) {
		s->answered = false;
		int ret = hugepin_lend_key(s->lend, 0, table + at, bytes - at, s, &key);
		while (!ret && !s->answered)
			look(s);
		if (!ret)
			key = s->key;
		if (ret < 0 || (!ret && s->answer && s->answer != -ENOBUFS))
			_exit(5);
		if (!ret && s->answer)
			break;
	}
	if (write(to, "h", 1) != 1)
		_exit(6);
	for (;;)
		pause();
}

TEST(a_killed_process_that_holds_all_keeps_nobody_waiting_for_ever)
{
	NEEDS_WIRE(0, MIB, 4 * KIB, HUGEPIN_LEND_POOL);
	char *table = lend_mapping(2 * MIB);
	memset(table, 1, 2 * MIB);
	int ends[2];
	char said = 0;
	uint32_t qpn = 0;
	EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	pid_t child = fork();
	if (!child) {
		close(ends[0]);
		hold_all(ends[1], (uintptr_t)table, MIB);
	}
	close(ends[1]);
	qp_make(&target, 0);
	EXPECT_EQ(read(ends[0], &qpn, 4), 4);
	EXPECT(wire_connect(&port, target.link[0].qp, qpn, 3));
	queue_open(&target, 0);
	EXPECT_EQ(write(ends[0], &target.link[0].qp->qp_num, 4), 4);
	EXPECT_EQ(read(ends[0], &said, 1), 1);
	EXPECT_EQ(write(ends[0], "g", 1), 1);
	struct pollfd fd = { .fd = ends[0], .events = POLLIN };
	time_t limit = time(NULL) + t_seconds();
	while (!poll(&fd, 1, 0) && EXPECT(time(NULL) < limit))
		look(&target);
	EXPECT_EQ(read(ends[0], &said, 1), 1);
	EXPECT_EQ(said, 'h');
	EXPECT(lent().lent_bytes > MIB - 128 * KIB && lent().lent_bytes <= MIB);
	EXPECT_EQ(kill(child, SIGKILL), 0);
	EXPECT_EQ(waitpid(child, NULL, 0), child);

	/* Another peer asks. The target asks the dead one for memory, refuses when that is late, and lends when it hears
	 * that it is gone. */
	side_open(&origin[1], 1, MIB, 0, HUGEPIN_LEND_POOL);
	join(1);
	struct hugepin_far key;
	uint64_t start = clock_ms();
	int err;
	while ((err = borrow(&origin[1], table + MIB, 64 * KIB, &key)) == -ENOBUFS && time(NULL) < limit)
		;
	EXPECT_EQ(err, 0);
	t_print("# the other got its key after %llu ms\n", (unsigned long long)(clock_ms() - start));
	EXPECT_EQ(transfer(&origin[1], IBV_WR_RDMA_READ, table + MIB, 64, key.rkey), 0);
	EXPECT_EQ(origin[1].local[5], 1);
	EXPECT_EQ(hugepin_lend_done(origin[1].lend, &key), 0);
	EXPECT(lent().lent_bytes <= MIB);
	close(ends[0]);
	end();
	munmap(table, 2 * MIB);
}

TEST(nothing_is_pinned_afterwards)
{
	if (!port.device)
		SKIP("no verbs device: made for the guest");
	EXPECT_EQ(ibv_dealloc_pd(port.pd), 0);
	EXPECT_EQ(ibv_close_device(port.device), 0);
	EXPECT_EQ(kernel_pinned(), 0);
}

T_MAIN
