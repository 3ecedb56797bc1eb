/* link: hugepin-verbs hugepin ibverbs */
/*
 * loop_verbs PORT: a peer connects by TCP, swaps a struct place with the server, and sends numbers of values over its
 * queue pair, each a record of 8 bytes. Each is answered by a record with the value, whose tag is the number. The loop
 * comes first, as hugepin_loop(7) shows and explains it. What opens the device and connects queue pairs comes behind.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <hugepin_verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PEERS = 1000, AHEAD = 16, DEPTH = 4, RECEIVES = 4096, FRAME = 4096, VALUES = 1000, VALUE = 1024 };

/* Where a queue pair is. */
struct place {
	union ibv_gid gid;
	uint32_t number, lid;
};

static void watch(int fd, void *what); /* by epoll */
static void accept_peer(void);
static int connect_queue_pair(struct ibv_qp *, const struct place *);

/* ------------------------------------------------------------------ the loop */

struct peer {
	int fd, ended;
	struct ibv_qp *qp;
	hugepin_sgq *queue; /* NULL: it is not connected yet */
	uint64_t asked[AHEAD]; /* numbers without an answer: a ring */
	unsigned first, count;
	struct peer *next; /* that has ended */
};

static struct peer *by_number[1 << 16]; /* half of a queue pair's number */
static struct peer *ended; /* whose completions are still to come */
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static hugepin_domain *domain;
static hugepin_sgpool *pool;
static char (*values)[VALUE]; /* pinned */
static int ep, listener, peers;

static void end_peer(struct peer *p)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };

	if (p->ended++)
		return;
	ibv_modify_qp(p->qp, &error, IBV_QP_STATE);
	p->next = ended;
	ended = p;
}

/* Free those of whom nothing is out any more. */
static void free_peers(void)
{
	for (struct peer *p, **at = &ended; (p = *at);) {
		if (p->queue && hugepin_sgq_close(p->queue) == -EBUSY) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		by_number[(uint16_t)p->qp->qp_num] = NULL;
		ibv_destroy_qp(p->qp);
		close(p->fd);
		free(p);
		peers--;
	}
}

static void done(void *peer, uint64_t number, int status);

static void answer(struct peer *p)
{
	for (; p->count && !p->ended; p->first++, p->count--) {
		uint64_t n = p->asked[p->first % AHEAD];
		struct iovec value = { values[n], VALUE };
		int ret = hugepin_sgq_add(p->queue, &value, 1, n, done, p,
		    HUGEPIN_SG_SOLICITED);

		if (ret == -EAGAIN)
			return; /* until a completion calls done() */
		if (ret < 0)
			end_peer(p);
	}
}

static void done(void *peer, uint64_t number, int status)
{
	(void)number;
	if (status < 0)
		end_peer(peer);
	answer(peer);
}

/* The pool calls this for each record. */
static void asked(void *arg, const struct hugepin_sg_record *r)
{
	struct peer *p = by_number[(uint16_t)r->wc->qp_num];
	uint64_t n = VALUES;

	(void)arg;
	if (!p || p->ended)
		return;
	if (r->len == sizeof n && r->parts == 1)
		memcpy(&n, r->data, sizeof n);
	if (n >= VALUES || p->count == AHEAD) {
		end_peer(p);
		return;
	}
	p->asked[(p->first + p->count++) % AHEAD] = n;
	answer(p);
}

/* The peer's socket or the descriptor of its queue is readable. */
static void hear(struct peer *p)
{
	struct hugepin_sgq_attr attr = { .size = sizeof attr, .qp = p->qp,
	    .domain = domain, .pool = pool, .depth = DEPTH,
	    .frame_bytes = FRAME, .flags = HUGEPIN_SGQ_WAIT };
	struct place there;
	ssize_t n = recv(p->fd, &there, sizeof there, MSG_DONTWAIT);

	if (p->queue)
		hugepin_sgq_poll(p->queue, 0);
	if (n < 0 && errno == EAGAIN)
		return;
	if (p->ended || n < (ssize_t)sizeof there || p->queue ||
	    connect_queue_pair(p->qp, &there) ||
	    hugepin_sgq_open(&attr, &p->queue) < 0)
		end_peer(p); /* it has hung up, or cannot be connected */
	else
		watch(hugepin_sgq_fd(p->queue), p);
}

static void take(const struct ibv_wc *wc)
{
	struct peer *p = by_number[(uint16_t)wc->qp_num];

	hugepin_sg_wc(wc); /* 0: not of a queue */
	if (wc->status && p)
		end_peer(p); /* its queue pair has failed */
}

/* Arm, then look: what comes in between wakes the loop. */
static void look(void)
{
	struct ibv_wc wc[16];
	int n;

	if (ibv_req_notify_cq(cq, 1))
		errx(1, "ibv_req_notify_cq");
	while ((n = ibv_poll_cq(cq, 16, wc)) > 0)
		for (int i = 0; i < n; i++)
			take(&wc[i]);
}

_Noreturn static void loop(void)
{
	struct epoll_event event;
	void *context;

	ep = epoll_create1(0);
	watch(listener, &listener);
	watch(channel->fd, channel);
	for (;;) {
		look();
		free_peers();
		/* One at a time: the next may be of a freed peer. */
		if (epoll_wait(ep, &event, 1, -1) < 1)
			continue;
		if (event.data.ptr == &listener) {
			accept_peer(); /* or events of rdma_cm */
		} else if (event.data.ptr == channel) {
			if (!ibv_get_cq_event(channel, &cq, &context))
				ibv_ack_cq_events(cq, 1);
		} else {
			look(); /* before the queue is polled */
			hear(event.data.ptr);
		}
	}
}

/* ------------------------------------------------------------------ the device and connections */

static struct ibv_context *device;
static struct ibv_pd *pd;
static struct ibv_srq *srq;
static struct ibv_port_attr port;
static union ibv_gid gid;
static int gid_index;

/* Functions of hugepin return -errno, those of libibverbs errno. */
static void check(int error, const char *what)
{
	if (error)
		errx(1, "%s: %s", what, strerror(abs(error)));
}

static void watch(int fd, void *what)
{
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = what };

	if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) < 0)
		err(1, "epoll_ctl");
}

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = RECEIVES, .max_sge = 1 } };

	device = list && *list ? ibv_open_device(*list) : NULL;
	if (!device)
		errx(1, "no verbs device");
	ibv_free_device_list(list);
	check(ibv_query_port(device, 1, &port), "port 1");
	/* Soft-RoCE and RoCE v2 want the IPv4 address of their interface, InfiniBand its first GID. */
	gid_index = port.gid_tbl_len - 1;
	while (gid_index > 0 && (ibv_query_gid(device, 1, gid_index, &gid) || !IN6_IS_ADDR_V4MAPPED(gid.raw)))
		gid_index--;
	check(ibv_query_gid(device, 1, gid_index, &gid), "GID");
	pd = ibv_alloc_pd(device);
	channel = ibv_create_comp_channel(device);
	/* After an error each work request has a completion, signalled or not. */
	cq = channel ? ibv_create_cq(device, PEERS * DEPTH + RECEIVES, NULL, channel, 0) : NULL;
	srq = pd ? ibv_create_srq(pd, &shared) : NULL;
	if (!cq || !srq)
		err(1, "completion queue, shared receive queue");
	check(hugepin_verbs_open(pd, NULL, &domain), "open a domain");
	struct hugepin_sgpool_attr slots = { .size = sizeof slots, .domain = domain, .slots = 2 * PEERS,
		.frame_bytes = FRAME, .max_sge = DEPTH, .recv_slots = RECEIVES, .srq = srq, .recv = asked };
	check(hugepin_sgpool_open(&slots, &pool), "open a pool");
}

/* Make a queue pair, and tell the peer where it is. The socket is readable when the peer has told it, too. */
static struct ibv_qp *new_queue_pair(int fd)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_send_sge = DEPTH } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct place here = { gid, qp ? qp->qp_num : 0, port.lid };

	setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &(int){ sizeof here }, sizeof(int));
	if (qp && send(fd, &here, sizeof here, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof here)
		return qp;
	if (qp)
		ibv_destroy_qp(qp);
	return NULL;
}

static void accept_peer(void)
{
	int fd = accept(listener, NULL, NULL);
	struct ibv_qp *qp = fd < 0 || peers == PEERS ? NULL : new_queue_pair(fd);
	struct peer *p = qp ? calloc(1, sizeof *p) : NULL;

	if (p && !by_number[(uint16_t)qp->qp_num]) {
		*p = (struct peer){ .fd = fd, .qp = qp };
		by_number[(uint16_t)qp->qp_num] = p;
		peers++;
		watch(fd, p);
		return;
	}
	if (qp)
		ibv_destroy_qp(qp);
	close(fd);
	free(p);
}

/* A peer that has died is noticed after 7 s. Soft-RoCE takes retry_cnt = 7 for without end. */
static int connect_queue_pair(struct ibv_qp *qp, const struct place *there)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = port.active_mtu,
		.dest_qp_num = there->number, .min_rnr_timer = 12, .timeout = 18, .retry_cnt = 6, .rnr_retry = 7,
		.ah_attr = { .port_num = 1, .dlid = (uint16_t)there->lid,
			.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET,
			.grh = { .dgid = there->gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64 } } };
	int ret = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	a.qp_state = IBV_QPS_RTR; /* ready to receive */
	if (!ret)
		ret = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	a.qp_state = IBV_QPS_RTS; /* and to send */
	return ret ? ret : ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	struct hugepin_pin pin;
	struct rlimit files;

	if (argc != 2)
		errx(2, "usage: loop_verbs PORT");
	/* Two descriptors a peer. */
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	open_device();
	values = hugepin_malloc(VALUES * VALUE);
	if (!values)
		err(1, "values");
	for (unsigned i = 0; i < VALUES; i++)
		memset(values[i], (int)i, VALUE);
	check(hugepin_pin(domain, values, VALUES * VALUE, HUGEPIN_READ, &pin), "pin the values");
	to.sin_port = htons((uint16_t)atoi(argv[1]));
	listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
	if (bind(listener, (struct sockaddr *)&to, sizeof to) < 0 || listen(listener, SOMAXCONN) < 0)
		err(1, "port %s", argv[1]);
	loop();
}
