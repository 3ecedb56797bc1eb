/* link: hugepin-verbs hugepin ibverbs */
/*
 * A halo exchange, packed by a queue:
 *
 *	halo [-d DEVICE] [-e EDGE] [-f FIELDS] [-n STEPS] [-p PORT] [HOST | local]
 *
 * Two processes have half of a periodic box each: FIELDS arrays of EDGE^3 numbers, with a layer of ghost cells around.
 * In each step each process sends the two faces that the halves have in common, of every field: EDGE strided rows for
 * each. A face is a sub-message, and its tag says which. The queue makes a message of as many faces as fit, gathers
 * long rows from their places, and copies short ones. Faces that arrive go to the ghost cells, and are checked.
 *
 * Without HOST it waits for a peer, with HOST it calls one. "local" has both sides in this process.
 *
 * An error ends the process, and the kernel takes back what is open. hugepin_verbs(3) has a program that gives everything
 * back itself after each error.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <hugepin_verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* There are receives for more frames than a step sends: a frame that finds none is sent again after a while. */
enum { FRAMES = 16, RECEIVES = 64, FRAME_BYTES = 16384, EDGE_MAX = 256, FIELDS_MAX = 64 };

static const char *device_name, *port = "18516";
static unsigned edge = 32, fields = 5, steps = 100;

struct side {
	unsigned number; /* 0 or 1 */
	int to; /* a socket to the peer */
	FILE *from;
	struct ibv_context *device;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_qp_cap granted;
	hugepin_domain *domain;
	hugepin_sgq *queue;
	double *field[FIELDS_MAX];
	struct hugepin_pin pin[FIELDS_MAX];
	size_t at[2 * FIELDS_MAX]; /* bytes of each face that have arrived */
	unsigned arrived; /* whole faces */
	unsigned idle; /* polls that found nothing */
	unsigned out; /* faces whose rows are still read by the adapter */
};

/* Functions of hugepin return -errno, those of libibverbs errno. */
static void check(int error, const char *what)
{
	if (error)
		errx(1, "%s: %s", what, strerror(abs(error)));
}

/* ------------------------------------------------------------------ the connection */

static void open_device(struct side *s)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	for (int i = 0; i < n && !s->device; i++)
		if (!device_name || !strcmp(device_name, ibv_get_device_name(list[i])))
			s->device = ibv_open_device(list[i]);
	if (!s->device)
		errx(1, "%s: no such verbs device", device_name ? device_name : "any");
	ibv_free_device_list(list);

	s->pd = ibv_alloc_pd(s->device);
	s->cq = ibv_create_cq(s->device, FRAMES + RECEIVES, NULL, NULL, 0);
	struct ibv_qp_init_attr qp = { .send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = FRAMES, .max_recv_wr = RECEIVES, .max_send_sge = 16, .max_recv_sge = 1 } };
	if (!s->pd || !s->cq || !(s->qp = ibv_create_qp(s->pd, &qp)))
		err(1, "protection domain, completion queue, queue pair");
	s->granted = qp.cap;
}

/* Both sides get here before either goes on. */
static void meet(struct side *s)
{
	dprintf(s->to, ".");
	if (fscanf(s->from, " .") == EOF)
		errx(1, "the peer has gone");
}

/* Tell the peer where we are, hear where it is, and connect the queue pairs. */
static void connect_peer(struct side *s)
{
	struct ibv_port_attr p;
	check(ibv_query_port(s->device, 1, &p), "port 1");
	/* Soft-RoCE and RoCE v2 want the IPv4 address of their interface, InfiniBand its first GID. */
	union ibv_gid gid;
	int index = p.gid_tbl_len - 1;
	while (index > 0 && (ibv_query_gid(s->device, 1, index, &gid) || !IN6_IS_ADDR_V4MAPPED(gid.raw)))
		index--;
	check(ibv_query_gid(s->device, 1, index, &gid), "GID");
	char text[INET6_ADDRSTRLEN];
	unsigned lid, qpn;
	inet_ntop(AF_INET6, &gid, text, sizeof text);
	dprintf(s->to, "%s %x %x\n", text, p.lid, s->qp->qp_num);
	if (fscanf(s->from, "%45s %x %x", text, &lid, &qpn) != 3 || inet_pton(AF_INET6, text, &gid) != 1)
		errx(1, "the peer does not say where it is");

	/* A peer that has died is noticed after 7 s. Soft-RoCE takes retry_cnt = 7 for without end. */
	struct ibv_qp_attr a = { .port_num = 1, .path_mtu = p.active_mtu, .dest_qp_num = qpn, .min_rnr_timer = 12,
		.timeout = 18, .retry_cnt = 6, .rnr_retry = 7,
		.ah_attr = { .port_num = 1, .dlid = (uint16_t)lid, .is_global = p.link_layer == IBV_LINK_LAYER_ETHERNET,
			.grh = { .dgid = gid, .sgid_index = (uint8_t)index, .hop_limit = 64 } } };
	a.qp_state = IBV_QPS_INIT;
	check(ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	a.qp_state = IBV_QPS_RTR; /* ready to receive */
	check(ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	a.qp_state = IBV_QPS_RTS; /* and to send */
	check(ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* ------------------------------------------------------------------ the box: [z][y][x], with ghost cells at the
 * ends */

static size_t cell(unsigned z, unsigned y, unsigned x)
{
	return ((size_t)z * (edge + 2) + y) * (edge + 2) + x;
}

/* A side computes this in a step: here, a number that says where it belongs. */
static double value(unsigned side, unsigned step, unsigned field, size_t cell)
{
	return (double)cell + 0.5 * side + 1e8 * field + 1e10 * (step % 1000);
}

static void compute(struct side *s, unsigned step)
{
	for (unsigned f = 0; f < fields; f++)
		for (unsigned z = 1; z <= edge; z++)
			for (unsigned y = 1; y <= edge; y++)
				for (unsigned x = 1; x <= edge; x++)
					s->field[f][cell(z, y, x)] = value(s->number, step, f, cell(z, y, x));
}

/* The halves have in common their first and last planes of y: face 0 is y = 1, which the peer has as y = edge + 1. */
static void verify(const struct side *s, unsigned step)
{
	for (unsigned f = 0; f < fields; f++)
		for (unsigned z = 1; z <= edge; z++)
			for (unsigned x = 1; x <= edge; x++)
				if (s->field[f][cell(z, edge + 1, x)] != value(!s->number, step, f, cell(z, 1, x)) ||
				    s->field[f][cell(z, 0, x)] != value(!s->number, step, f, cell(z, edge, x)))
					errx(1, "step %u: field %u has wrong ghost cells at z = %u, x = %u",
					     step, f, z, x);
}

/* ------------------------------------------------------------------ the exchange */

static void face_sent(void *arg, uint64_t tag, int status)
{
	struct side *s = arg;
	if (status)
		errx(1, "face %" PRIu64 ": %s (%s)", tag, strerror(-status),
		     ibv_wc_status_str(hugepin_sgq_wc_status(s->queue, NULL)));
	s->out--;
}

/* Put a face, or a part of one, into the ghost cells. */
static void face_arrived(void *arg, const struct hugepin_sg_record *r)
{
	struct side *s = arg;
	size_t row = edge * sizeof(double), *at = r->parts && r->tag < 2 * fields ? &s->at[r->tag] : NULL;
	size_t len = r->len;
	if (!at || len > edge * row - *at)
		errx(1, "the peer sends something else");
	for (const char *from = r->data; len;) {
		size_t in_row = *at % row, n = len < row - in_row ? len : row - in_row;
		double *to = &s->field[r->tag / 2][cell(1 + (unsigned)(*at / row), r->tag % 2 ? 0 : edge + 1, 1)];
		memcpy((char *)to + in_row, from, n);
		from += n;
		len -= n;
		*at += n;
	}
	if (r->part + 1 == r->parts) {
		*at = 0;
		s->arrived++;
	}
}

/* Who polls is not told that the peer has ended, or died, so look whether the socket is still open. */
static void check_peer(const struct side *s)
{
	char byte;
	ssize_t n = recv(s->to, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
	if (!n || (n < 0 && errno != EAGAIN))
		errx(1, "the peer has gone%s%s", n ? ": " : "", n ? strerror(errno) : "");
}

static void poll_queue(struct side *s)
{
	int n = hugepin_sgq_poll(s->queue, 1); /* one at a time: the next one may be of the next step */
	if (n < 0)
		check(n, "poll");
	if (!n && ++s->idle % 65536 == 0)
		check_peer(s);
}

static void exchange(struct side *s)
{
	struct iovec row[EDGE_MAX];
	s->arrived = 0;
	for (unsigned i = 0; i < 2 * fields; i++) {
		const double *first = &s->field[i / 2][cell(1, i % 2 ? edge : 1, 1)];
		int n = hugepin_sg_strided(first, edge * sizeof *first, (ptrdiff_t)(cell(1, 0, 0) * sizeof *first),
					   edge, row, EDGE_MAX);
		int got;
		s->out++;
		while ((got = hugepin_sgq_add(s->queue, row, n, i, face_sent, s, HUGEPIN_SG_MULTI)) == -EAGAIN)
			poll_queue(s);
		if (got < 0)
			check(got, "add a face");
	}
	check(hugepin_sgq_flush(s->queue), "flush");
	while (s->out || s->arrived < 2 * fields)
		poll_queue(s);
}

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void *run(void *arg)
{
	struct side *s = arg;
	s->from = fdopen(s->to, "r");
	open_device(s);
	check(hugepin_verbs_open(s->pd, NULL, &s->domain), "open a domain");
	for (unsigned f = 0; f < fields; f++) {
		size_t bytes = cell(edge + 2, 0, 0) * sizeof(double);
		s->field[f] = hugepin_calloc(1, bytes);
		if (!s->field[f])
			err(1, "%zu bytes", bytes);
		/* The queue registers nothing, so memory that it gathers from is registered beforehand. */
		check(hugepin_pin(s->domain, s->field[f], bytes, HUGEPIN_READ, &s->pin[f]), "pin");
		if (s->pin[f].len < bytes)
			errx(1, "%zu bytes are more than the device registers at once", bytes);
	}
	connect_peer(s);
	struct hugepin_sgq_attr attr = {
		.size = sizeof attr, .qp = s->qp, .granted = &s->granted, .domain = s->domain,
		.frame_bytes = FRAME_BYTES, .hold_if_outstanding = 1,
		.recv_depth = RECEIVES, .recv = face_arrived, .recv_arg = s,
	};
	check(hugepin_sgq_open(&attr, &s->queue), "open a queue");
	meet(s);

	double us = 0;
	for (unsigned step = 0; step < steps; step++) {
		compute(s, step);
		meet(s); /* else the time would include the peer's computing */
		us -= now_us();
		exchange(s);
		us += now_us();
		verify(s, step);
	}

	meet(s);
	if (!s->number)
		printf("%u steps of %u faces in %u rows of %zu bytes each way: an exchange takes %.1f us\n",
		       steps, 2 * fields, 2 * fields * edge, edge * sizeof(double), us / steps);
	/* Its receives are out until the queue pair is in the error state. */
	check(ibv_modify_qp(s->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE), "ERR");
	while (hugepin_sgq_close(s->queue) == -EBUSY)
		hugepin_sgq_poll(s->queue, RECEIVES);
	check(hugepin_unpinv(s->domain, s->pin, (int)fields), "unpin");
	check(hugepin_domain_close(s->domain), "close the domain");
	for (unsigned f = 0; f < fields; f++)
		hugepin_free(s->field[f]);
	check(ibv_destroy_qp(s->qp), "destroy the queue pair");
	check(ibv_destroy_cq(s->cq), "destroy the completion queue");
	check(ibv_dealloc_pd(s->pd), "free the protection domain"); /* after the domain: it must hold no regions */
	check(ibv_close_device(s->device), "close the device");
	fclose(s->from);
	return NULL;
}

/* A peer whose machine has died says nothing. The kernel asks after 5 s, and the connection fails after 20. */
static void notice_death(int fd)
{
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){ 1 }, sizeof(int));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){ 5 }, sizeof(int));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &(int){ 5 }, sizeof(int));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &(unsigned){ 20000 }, sizeof(unsigned)); /* ms */
}

static int connect_socket(const char *host)
{
	struct addrinfo *a, hint = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
	if (getaddrinfo(host, port, &hint, &a))
		errx(1, "%s port %s: no such address", host ? host : "my", port);
	int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
	notice_death(fd);
	if (host && connect(fd, a->ai_addr, a->ai_addrlen))
		err(1, "%s", host);
	if (!host) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
		if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, 1) || (fd = accept(fd, NULL, NULL)) < 0)
			err(1, "port %s", port);
	}
	freeaddrinfo(a);
	return fd;
}

int main(int argc, char **argv)
{
	int option;
	while ((option = getopt(argc, argv, "d:e:f:n:p:")) != -1) {
		switch (option) {
		case 'd': device_name = optarg; break;
		case 'e': edge = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'f': fields = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'n': steps = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'p': port = optarg; break;
		default: return 2;
		}
	}
	if (!edge || edge > EDGE_MAX || !fields || fields > FIELDS_MAX || !steps)
		errx(2, "-e takes 1 to %d, -f 1 to %d, -n at least 1", EDGE_MAX, FIELDS_MAX);

	const char *host = argv[optind];
	if (!host || strcmp(host, "local")) {
		run(&(struct side){ .number = host != NULL, .to = connect_socket(host) });
		return 0;
	}
	int ends[2];
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
	pthread_t other;
	check(pthread_create(&other, NULL, run, &(struct side){ .number = 1, .to = ends[1] }), "thread");
	run(&(struct side){ .number = 0, .to = ends[0] });
	pthread_join(other, NULL);
	return 0;
}
