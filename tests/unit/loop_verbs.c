/*
 * examples/loop_verbs.c, the server of hugepin_loop(7), over the strict device of tests/mock_verbs.h, with a thousand
 * peers at a time: each answer has its value. Peers hang up at any point, ask for what there is not, send more than there
 * is room for, or never receive.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define MOCK_QPS 2100
#include "hugepin_verbs.h"
#include "mock_verbs.h"

/* ------------------------------------------------------------------ the server, on a thread, and its device */

static sem_t waits; /* posted each time that the server is going to sleep */
static _Atomic bool stop; /* relaxed: the eventfd that wakes the server orders */

static int wait_or_stop(int fd, struct epoll_event *events, int max, int timeout)
{
	sem_post(&waits);
	int n = epoll_wait(fd, events, max, timeout);
	if (atomic_load_explicit(&stop, memory_order_relaxed))
		pthread_exit(NULL);
	return n;
}

static int open_mock(struct ibv_pd *pd, const struct hugepin_attr *attr, hugepin_domain **ret_)
{
	return pd ? hugepin_domain_open(&mock_backend, NULL, attr, ret_) : -EINVAL;
}

#undef ibv_query_gid
#define ibv_query_gid(device, port, index, gid) ((index) != 0)
#define epoll_wait wait_or_stop
#define hugepin_verbs_open open_mock
#define main serve
#include "../../examples/loop_verbs.c"
#undef main
#undef epoll_wait

static struct ibv_device the_device = { .name = "mock0" }, *devices[2] = { &the_device };
static struct ibv_comp_channel wakes;
static struct ibv_pd protection;

struct ibv_device **ibv_get_device_list(int *n)
{
	EXPECT(!n);
	return devices;
}

void ibv_free_device_list(struct ibv_device **list)
{
	EXPECT(list == devices);
}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	mock.context.device = d;
	return &mock.context;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	protection.context = context;
	return &protection;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	wakes = (struct ibv_comp_channel){ .context = context, .fd = eventfd(0, EFD_SEMAPHORE) };
	return &wakes;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *cq_context, struct ibv_comp_channel *c,
			     int vector)
{
	(void)context, (void)cq_context, (void)vector;
	struct ibv_cq *q = mock_cq((unsigned)size);
	((struct mock_cq *)q)->channel = c->fd;
	return q;
}

int ibv_get_cq_event(struct ibv_comp_channel *c, struct ibv_cq **ret_cq, void **ret_context)
{
	uint64_t one;
	EXPECT_EQ(read(c->fd, &one, sizeof one), sizeof one);
	(void)ret_cq, (void)ret_context; /* there is one completion queue */
	return 0;
}

static unsigned acked;

void ibv_ack_cq_events(struct ibv_cq *q, unsigned n)
{
	(void)q;
	acked += n;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd_, struct ibv_srq_init_attr *init)
{
	const struct ibv_qp_cap cap = { .max_recv_wr = init->attr.max_wr, .max_recv_sge = init->attr.max_sge };
	(void)pd_;
	return &mock_qp(IBV_QPT_RC, NULL, &cap, NULL)->srq;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd_, struct ibv_qp_init_attr *init)
{
	struct mock_qp *q = mock_qp(init->qp_type, init->send_cq, &init->cap, NULL);
	(void)pd_;
	q->shared = init->srq ? init->srq->srq_context : NULL;
	q->state = IBV_QPS_RESET;
	return &q->qp;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	mock_qp_free((struct mock_qp *)qp);
	return 0;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)mask;
	if (attr->qp_state == IBV_QPS_RTR) {
		pthread_mutex_lock(&mock.lock);
		struct mock_qp *to = mock_find(attr->dest_qp_num);
		if (to)
			mock_connect((struct mock_qp *)qp, to);
		pthread_mutex_unlock(&mock.lock);
		if (!to)
			return EINVAL;
	}
	mock_modify((struct mock_qp *)qp, attr->qp_state);
	return 0;
}

static void *run_server(void *unused)
{
	(void)unused;
	serve(2, (char *[]){ "loop_verbs", "0", NULL });
	return NULL;
}

/* ------------------------------------------------------------------ the clients, on the test's thread */

enum { CLIENTS = 1000, ROUNDS = 40, KINDS = 10 };
/* A client of ten is of each kind; the other three ask for all. */
enum { LEAVES_AT_ONCE, LEAVES_IN_A_PLACE, ASKS_WRONGLY, ASKS_TOO_MUCH, LEAVES_BETWEEN, NEVER_RECEIVES, SENDS_TOO_MUCH };

static struct client {
	int fd;
	unsigned kind, asked, heard;
	struct mock_qp *qp;
	hugepin_sgq *queue;
	bool gone;
} clients[CLIENTS], *client_of[MOCK_QPS + 1];
static struct ibv_cq *client_cq;
static hugepin_domain *client_domain;
static hugepin_sgpool *client_pool;
static struct mock_qp *client_srq, *no_receives;

static uint64_t number_of(const struct client *c, unsigned round)
{
	return ((uint64_t)(c - clients) * 13 + round * 7) % VALUES;
}

static void ask(struct client *c, uint64_t number)
{
	const struct iovec record = { &number, sizeof number };
	int ret;

	while ((ret = hugepin_sgq_add(c->queue, &record, 1, 0, NULL, NULL, HUGEPIN_SG_SOLICITED)) == -EAGAIN) {
		struct ibv_wc wc;
		while (ibv_poll_cq(client_cq, 1, &wc) == 1)
			hugepin_sg_wc(&wc);
	}
	EXPECT(ret >= 0 || (ret == -ESHUTDOWN && c->kind == ASKS_TOO_MUCH)); /* hung up on already */
	c->asked++;
}

/* By this the server's queue pair fails, while nothing of the server's is out to it. */
static void send_too_much(struct client *c)
{
	static char memory[FRAME + 64];
	static uint32_t lkey;
	struct ibv_sge sge = { (uintptr_t)memory, sizeof memory, lkey ? lkey : mock_reg(memory, sizeof memory, HUGEPIN_READ) };
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 };

	lkey = sge.lkey;
	EXPECT_EQ(ibv_post_send(&c->qp->qp, &wr, &bad), 0);
	c->asked++;
}

static void heard(void *arg, const struct hugepin_sg_record *r)
{
	struct client *c = client_of[r->wc->qp_num];

	EXPECT(!arg && c && !r->part && r->parts == 1 && r->len == VALUE);
	if (!c || c->gone)
		return;
	EXPECT_EQ(r->tag, number_of(c, c->heard));
	EXPECT(!memcmp(r->data, values[r->tag], r->len));
	c->heard++;
}

static void leave(struct client *c)
{
	if (c->queue) {
		mock_modify(c->qp, IBV_QPS_RESET);
		EXPECT_EQ(hugepin_sgq_abort(c->queue), 0);
		c->queue = NULL;
	}
	close(c->fd);
	c->gone = true;
}

static bool join(struct client *c, unsigned kind)
{
	const struct ibv_qp_cap cap = { .max_send_wr = 4, .max_send_sge = 2 };
	struct sockaddr_in to;
	socklen_t len = sizeof to;
	struct place there, mine = { .number = 0 };

	*c = (struct client){ .kind = kind, .fd = socket(AF_INET, SOCK_STREAM, 0) };
	getsockname(listener, (struct sockaddr *)&to, &len);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (!EXPECT_EQ(connect(c->fd, (struct sockaddr *)&to, sizeof to), 0) ||
	    !EXPECT_EQ(recv(c->fd, &there, sizeof there, MSG_WAITALL), sizeof there))
		return false;
	c->qp = mock_qp(IBV_QPT_RC, client_cq, &cap, NULL);
	c->qp->shared = kind == NEVER_RECEIVES || kind == ASKS_TOO_MUCH ? no_receives : client_srq;
	client_of[c->qp->qp.qp_num] = c;
	mine.number = c->qp->qp.qp_num;
	if (kind == LEAVES_AT_ONCE || kind == LEAVES_IN_A_PLACE) {
		EXPECT(kind == LEAVES_AT_ONCE || write(c->fd, &mine, 5) == 5);
		leave(c);
		return true;
	}
	EXPECT_EQ(write(c->fd, &mine, sizeof mine), sizeof mine);
	struct hugepin_sgq_attr attr = { .size = sizeof attr, .qp = &c->qp->qp, .domain = client_domain,
					 .pool = client_pool, .depth = 4, .frame_bytes = FRAME };
	return EXPECT_EQ(hugepin_sgq_open(&attr, &c->queue), 0);
}

static bool connected(struct client *c)
{
	pthread_mutex_lock(&mock.lock);
	bool is = c->qp->peer && c->qp->peer->state == IBV_QPS_RTS;
	pthread_mutex_unlock(&mock.lock);
	return is;
}

/* Ask for what may be asked for. False: the client has nothing more to do. */
static bool go_on(struct client *c)
{
	if (c->gone)
		return false;
	if (!c->asked && !connected(c))
		return true;
	if (c->kind == SENDS_TOO_MUCH && !c->asked)
		send_too_much(c);
	if (c->kind == ASKS_WRONGLY || c->kind == ASKS_TOO_MUCH || c->kind == NEVER_RECEIVES ||
	    c->kind == SENDS_TOO_MUCH) {
		const unsigned most = c->kind == ASKS_TOO_MUCH ? 10 * AHEAD : c->kind == NEVER_RECEIVES ? AHEAD : 1;
		char nothing;
		while (c->asked < most)
			ask(c, c->kind == ASKS_WRONGLY ? VALUES : number_of(c, c->asked));
		if (c->kind == NEVER_RECEIVES)
			return false;
		if (recv(c->fd, &nothing, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN)
			return true; /* not hung up on yet */
		leave(c);
		return false;
	}
	const unsigned rounds = c->kind == LEAVES_BETWEEN ? ROUNDS / 2 : ROUNDS;
	while (c->asked < rounds && c->asked - c->heard < AHEAD)
		ask(c, number_of(c, c->asked));
	if (c->heard < (c->kind == LEAVES_BETWEEN ? ROUNDS / 4 : rounds))
		return true;
	leave(c);
	return false;
}

TEST(a_loop_of_epoll_and_verbs_serves_a_thousand_peers_though_some_never_receive_and_some_leave)
{
	const struct ibv_qp_cap receives = { .max_recv_wr = 4096, .max_recv_sge = 1 }, none = { .max_recv_wr = 1 };
	pthread_t thread;

	T_STAYS(20, "the server never ends: its domain, its pool and their threads stay");
	sem_init(&waits, 0, 0);
	mock.context.device = &the_device;
	client_cq = mock_cq(1 << 16);
	client_srq = mock_qp(IBV_QPT_RC, client_cq, &receives, NULL);
	no_receives = mock_qp(IBV_QPT_RC, client_cq, &none, NULL);
	EXPECT_EQ(hugepin_domain_open(&mock_backend, NULL, NULL, &client_domain), 0);
	struct hugepin_sgpool_attr slots = { .size = sizeof slots, .domain = client_domain, .slots = 2 * CLIENTS,
					     .frame_bytes = FRAME, .recv_slots = 4096, .srq = &client_srq->srq,
					     .recv = heard };
	if (!EXPECT_EQ(hugepin_sgpool_open(&slots, &client_pool), 0) ||
	    !EXPECT_EQ(pthread_create(&thread, NULL, run_server, NULL), 0))
		return;
	sem_wait(&waits);
	for (unsigned i = 0; i < CLIENTS && !t_failures; i++)
		join(&clients[i], i % KINDS);
	for (unsigned left = 1; left && !t_failures;) {
		struct ibv_wc wc[32];
		int n = ibv_poll_cq(client_cq, 32, wc);
		for (int i = 0; i < n; i++)
			hugepin_sg_wc(&wc[i]);
		left = 0;
		for (struct client *c = clients; c < clients + CLIENTS; c++)
			left += go_on(c);
		if (!n)
			sched_yield();
	}
	unsigned answers = 0, stalled = 0;
	for (struct client *c = clients; c < clients + CLIENTS && !t_failures; c++) {
		answers += c->heard;
		EXPECT(c->heard == 0 || c->kind == LEAVES_BETWEEN || c->heard == ROUNDS);
		stalled += c->kind == NEVER_RECEIVES && !c->gone;
		if (!c->gone)
			leave(c);
	}
	/* Nothing remains of those who have left. */
	while (!t_failures && *(volatile int *)&peers)
		sched_yield();
	t_print("# %u answers; %u peers that never received; %u events\n", answers, stalled, acked);
	EXPECT_EQ(stalled, CLIENTS / KINDS);
	atomic_store_explicit(&stop, true, memory_order_relaxed);
	EXPECT_EQ(write(wakes.fd, &(uint64_t){ 1 }, 8), 8);
	pthread_join(thread, NULL);
	EXPECT(acked > 0);
	close(ep);
	close(listener);
	close(wakes.fd);
}

T_MAIN
