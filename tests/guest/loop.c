/* link: hugepin-verbs hugepin ibverbs */
/* guest: plain */
/*
 * examples/loop_verbs.c, the server of hugepin_loop(7), over a real provider: its peers are other queue pairs of the
 * same device, and the server is a process of its own. tests/unit/loop_verbs.c has a thousand peers and all that they
 * may do.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "guest/wire.h"

#include <sys/prctl.h>

#define main serve
#include "../../examples/loop_verbs.c"
#undef main

enum { CLIENTS = 60, ROUNDS = 100 };

/* A client of six is of each kind but the first. */
enum { READS, READS_TOO, ASKS_WRONGLY, LEAVES_AT_ONCE, LEAVES_BETWEEN, NEVER_RECEIVES, KINDS };

static struct wire_port wire;
static struct ibv_cq *client_cq;
static hugepin_domain *client_domain;

static struct client {
	int fd;
	unsigned kind, asked, heard;
	struct ibv_qp *qp;
	hugepin_sgq *queue;
} clients[CLIENTS];

static uint64_t number_of(const struct client *c, unsigned round)
{
	return ((uint64_t)(c - clients) * 13 + round * 7) % VALUES;
}

static void heard(void *arg, const struct hugepin_sg_record *r)
{
	struct client *c = arg;
	char value[VALUE];

	memset(value, (int)r->tag, sizeof value);
	EXPECT(!r->part && r->parts == 1 && r->len == VALUE && !memcmp(r->data, value, sizeof value));
	EXPECT_EQ(r->tag, number_of(c, c->heard));
	c->heard++;
}

static int take_completions(void)
{
	struct ibv_wc wc[16];
	const int n = ibv_poll_cq(client_cq, 16, wc);

	for (int i = 0; i < n; i++)
		hugepin_sg_wc(&wc[i]);
	return n;
}

/* What is out has no use any more. */
static void leave(struct client *c)
{
	int ret;

	close(c->fd);
	c->fd = -1;
	ibv_modify_qp(c->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE);
	while ((ret = hugepin_sgq_close(c->queue)) == -EBUSY)
		take_completions();
	EXPECT_EQ(ret, 0);
	EXPECT_EQ(ibv_destroy_qp(c->qp), 0);
}

static bool join(struct client *c, unsigned kind, const struct sockaddr_in *to, pid_t server)
{
	struct ibv_qp_init_attr init = { .send_cq = client_cq, .recv_cq = client_cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 2, .max_recv_wr = 16, .max_recv_sge = 1 } };
	struct place there, mine = { .gid = wire.gid, .lid = wire.attr.lid };

	*c = (struct client){ .kind = kind, .fd = socket(AF_INET, SOCK_STREAM, 0) };
	c->qp = ibv_create_qp(wire.pd, &init);
	while (connect(c->fd, (const struct sockaddr *)to, sizeof *to) < 0) { /* it does not listen yet */
		if (!EXPECT_EQ(waitpid(server, NULL, WNOHANG), 0))
			return false;
		sleep_ms(10);
	}
	if (!EXPECT_EQ(recv(c->fd, &there, sizeof there, MSG_WAITALL), sizeof there) || !EXPECT(c->qp))
		return false;
	mine.number = c->qp->qp_num;
	EXPECT(wire_init(c->qp) && wire_connect(&wire, c->qp, there.number, 7));
	EXPECT_EQ(write(c->fd, &mine, sizeof mine), sizeof mine);
	struct hugepin_sgq_attr attr = { .size = sizeof attr, .qp = c->qp, .domain = client_domain, .depth = 4,
		.frame_bytes = FRAME, .recv_depth = kind == NEVER_RECEIVES ? 0 : 16, .recv = heard, .recv_arg = c };
	return EXPECT_EQ(hugepin_sgq_open(&attr, &c->queue), 0);
}

static bool ask(struct client *c, uint64_t number)
{
	const struct iovec record = { &number, sizeof number };
	const int ret = hugepin_sgq_add(c->queue, &record, 1, 0, NULL, NULL, HUGEPIN_SG_SOLICITED);

	EXPECT(ret >= 0 || ret == -EAGAIN);
	c->asked += ret >= 0;
	return ret >= 0;
}

/* False: the client has nothing more to do. */
static bool go_on(struct client *c)
{
	const unsigned rounds = c->kind == NEVER_RECEIVES ? AHEAD : ROUNDS;
	char nothing;

	if (c->fd < 0)
		return false;
	switch (c->kind) {
	case LEAVES_AT_ONCE: leave(c); return false;
	case ASKS_WRONGLY:
		if (!c->asked)
			ask(c, VALUES);
		if (recv(c->fd, &nothing, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN)
			return true; /* not hung up on yet */
		leave(c);
		return false;
	}
	while (c->asked < rounds && c->asked - c->heard < AHEAD && ask(c, number_of(c, c->asked)))
		;
	if (c->kind == NEVER_RECEIVES)
		return c->asked < rounds;
	if (c->heard < (c->kind == LEAVES_BETWEEN ? ROUNDS / 2 : ROUNDS))
		return true;
	leave(c);
	return false;
}

TEST(a_loop_of_epoll_and_verbs_serves_peers_over_a_provider_though_one_never_receives_and_some_leave)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(18519) };
	int n = 0, status;
	struct ibv_device **list = ibv_get_device_list(&n);

	if (list)
		ibv_free_device_list(list);
	if (!n)
		SKIP("no verbs device: made for the guest");
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	const pid_t server = fork();
	if (!server) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		exit(serve(2, (char *[]){ "loop_verbs", "18519", NULL }));
	}
	if (!EXPECT(wire_port_open(&wire)) || !EXPECT_EQ(hugepin_verbs_open(wire.pd, NULL, &client_domain), 0))
		return;
	client_cq = ibv_create_cq(wire.device, CLIENTS * 24, NULL, NULL, 0);
	if (!EXPECT(client_cq) || !join(&clients[0], READS, &to, server))
		return;
	/* All but this connection, which has a socket and its queue's. */
	while (!t_failures && go_on(&clients[0]) && clients[0].heard < 1)
		take_completions();
	const int own = descriptors_of(server) - 2;
	for (unsigned i = 1; i < CLIENTS && !t_failures; i++)
		join(&clients[i], i % KINDS, &to, server);
	for (unsigned left = 1; left && !t_failures;) {
		if (!take_completions())
			sched_yield();
		left = 0;
		for (struct client *c = clients; c < clients + CLIENTS; c++)
			left += go_on(c);
	}
	unsigned answers = 0;
	for (struct client *c = clients; c < clients + CLIENTS && !t_failures; c++) {
		answers += c->heard;
		EXPECT(c->kind == LEAVES_BETWEEN || c->heard == (c->kind > READS_TOO ? 0 : ROUNDS));
		if (c->fd >= 0)
			leave(c);
	}
	while (!t_failures && descriptors_of(server) != own)
		sleep_ms(10);
	t_print("# %u answers\n", answers);
	kill(server, SIGTERM);
	EXPECT_EQ(waitpid(server, &status, 0), server);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	EXPECT_EQ(hugepin_domain_close(client_domain), 0);
	EXPECT_EQ(ibv_destroy_cq(client_cq), 0);
	EXPECT_EQ(ibv_dealloc_pd(wire.pd), 0);
	EXPECT_EQ(ibv_close_device(wire.device), 0);
}

T_MAIN
