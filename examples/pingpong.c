/* link: hugepin-verbs hugepin ibverbs */
/*
 * A ping-pong of RDMA WRITEs between buffers of malloc:
 *
 *	pingpong [-d DEVICE] [-s BYTES] [-n ROUNDS] [-p PORT] [HOST | local]
 *
 * Without HOST it waits for a peer, with HOST it calls one; "local" has both sides in this process. Each message comes
 * from a buffer that malloc has just returned, that is pinned for the send and freed after it. Run it as it is, or with
 * large buffers in hugepages, which are registered once and for all:
 *
 *	LD_PRELOAD=libhugepin-malloc.so.0 pingpong local
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

static const char *device_name, *port = "18515";
static size_t size = 65536;
static unsigned rounds = 1000;

struct side {
	bool first; /* to send */
	int to; /* a socket to the peer, on which it is told where to write */
	FILE *from;
	struct ibv_context *device;
	struct ibv_pd *pd;
	struct ibv_cq *sent, *received;
	struct ibv_qp *qp;
	hugepin_domain *domain;
	char *in; /* where the peer writes */
	struct hugepin_pin in_pin;
	uint64_t peer_addr; /* where we write */
	unsigned peer_rkey;
};

/* Functions of hugepin return -errno, those of libibverbs errno. */
static void check(int error, const char *what)
{
	if (error)
		errx(1, "%s: %s", what, strerror(abs(error)));
}

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
	s->sent = ibv_create_cq(s->device, 1, NULL, NULL, 0);
	s->received = ibv_create_cq(s->device, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr qp = { .send_cq = s->sent, .recv_cq = s->received, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	if (!s->pd || !s->sent || !s->received || !(s->qp = ibv_create_qp(s->pd, &qp)))
		err(1, "protection domain, completion queues, queue pair");
}

static void post_receive(struct side *s)
{
	struct ibv_recv_wr *bad, wr = { 0 };
	check(ibv_post_recv(s->qp, &wr, &bad), "post a receive");
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
	dprintf(s->to, "%s %x %x %x %" PRIx64 "\n", text, p.lid, s->qp->qp_num, s->in_pin.rkey, s->in_pin.base);
	if (fscanf(s->from, "%45s %x %x %x %" SCNx64, text, &lid, &qpn, &s->peer_rkey, &s->peer_addr) != 5 ||
	    inet_pton(AF_INET6, text, &gid) != 1)
		errx(1, "the peer does not say where it is");

	/* A peer that has died is noticed after 7 s. Soft-RoCE takes retry_cnt = 7 for without end. */
	struct ibv_qp_attr a = { .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .path_mtu = p.active_mtu,
		.dest_qp_num = qpn, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 12, .timeout = 18,
		.retry_cnt = 6, .rnr_retry = 7,
		.ah_attr = { .port_num = 1, .dlid = (uint16_t)lid, .is_global = p.link_layer == IBV_LINK_LAYER_ETHERNET,
			.grh = { .dgid = gid, .sgid_index = (uint8_t)index, .hop_limit = 64 } } };
	a.qp_state = IBV_QPS_INIT;
	check(ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	post_receive(s);
	a.qp_state = IBV_QPS_RTR; /* ready to receive */
	check(ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	a.qp_state = IBV_QPS_RTS; /* and to send */
	check(ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* Both sides get here before either goes on. */
static void meet(struct side *s)
{
	dprintf(s->to, ".");
	if (fscanf(s->from, " .") == EOF)
		errx(1, "the peer has gone");
}

/* Who polls is not told that the peer has ended, or died, so look whether the socket is still open. */
static void check_peer(const struct side *s)
{
	char byte;
	ssize_t n = recv(s->to, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
	if (!n || (n < 0 && errno != EAGAIN))
		errx(1, "the peer has gone%s%s", n ? ": " : "", n ? strerror(errno) : "");
}

static struct ibv_wc completion(const struct side *s, struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n = 0;
	for (unsigned polls = 1; !n; polls++) {
		n = ibv_poll_cq(cq, 1, &wc);
		if (!n && polls % 65536 == 0)
			check_peer(s);
	}
	if (n < 0 || wc.status)
		errx(1, "completion: %s", n < 0 ? "none" : ibv_wc_status_str(wc.status));
	return wc;
}

static void ping(struct side *s, unsigned round)
{
	char *out = malloc(size);
	if (!out)
		err(1, "%zu bytes", size);
	memset(out, (char)round, size);

	struct hugepin_pin pin;
	check(hugepin_pin(s->domain, out, size, HUGEPIN_READ, &pin), "pin");
	struct ibv_sge sge = { .addr = pin.base, .length = (uint32_t)pin.len, .lkey = pin.lkey };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htonl(round),
		.send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
		.wr.rdma = { .remote_addr = s->peer_addr, .rkey = s->peer_rkey } };
	check(ibv_post_send(s->qp, &wr, &bad), "post a write");
	completion(s, s->sent); /* only now is the buffer ours again */
	check(hugepin_unpin(s->domain, &pin), "unpin");
	free(out);
}

static void pong(struct side *s, unsigned round)
{
	struct ibv_wc wc = completion(s, s->received);
	if (ntohl(wc.imm_data) != round || s->in[0] != (char)round || memcmp(s->in, s->in + 1, size - 1))
		errx(1, "message %u: wrong data", round);
	post_receive(s);
}

static void *run(void *arg)
{
	struct side *s = arg;
	s->from = fdopen(s->to, "r");
	open_device(s);
	check(hugepin_verbs_open(s->pd, NULL, &s->domain), "open a domain");
	s->in = calloc(1, size);
	if (!s->in)
		err(1, "%zu bytes", size);
	/* The peer gets this key, so it is of these pages alone: see hugepin_verbs(3). */
	check(hugepin_pin(s->domain, s->in, size, HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE | HUGEPIN_PIN_UNCACHED, &s->in_pin),
	      "pin");
	if (s->in_pin.len < size)
		errx(1, "%zu bytes are more than the device registers at once", size);
	connect_peer(s);
	meet(s);

	struct timespec start, end;
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (unsigned i = 1; i <= rounds; i++) {
		if (s->first)
			ping(s, i);
		pong(s, i);
		if (!s->first)
			ping(s, i);
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	double us = (double)(end.tv_sec - start.tv_sec) * 1e6 + (double)(end.tv_nsec - start.tv_nsec) / 1e3;

	meet(s); /* or the peer might still want an answer from a queue pair that is gone */
	struct hugepin_domain_stats stats;
	hugepin_domain_stats(s->domain, &stats, sizeof stats);
	if (s->first)
		printf("%u round trips of %zu bytes: %.2f us one way, filling and checking included; %u pins, %" PRIu64
		       " registrations\n", rounds, size, us / rounds / 2, rounds + 1, stats.registered);
	check(hugepin_unpin(s->domain, &s->in_pin), "unpin");
	check(hugepin_domain_close(s->domain), "close the domain");
	free(s->in);
	check(ibv_destroy_qp(s->qp), "destroy the queue pair");
	check(ibv_destroy_cq(s->sent) | ibv_destroy_cq(s->received), "destroy the completion queues");
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
	while ((option = getopt(argc, argv, "d:s:n:p:")) != -1) {
		switch (option) {
		case 'd': device_name = optarg; break;
		case 's': size = strtoul(optarg, NULL, 0); break;
		case 'n': rounds = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'p': port = optarg; break;
		default: return 2;
		}
	}
	if (!size || size > 1U << 30 || !rounds)
		errx(2, "-s takes 1 byte to 1 GiB, -n at least 1");

	const char *host = argv[optind];
	if (!host || strcmp(host, "local")) {
		run(&(struct side){ .first = host, .to = connect_socket(host) });
		return 0;
	}
	int ends[2];
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
	pthread_t other;
	check(pthread_create(&other, NULL, run, &(struct side){ .first = false, .to = ends[1] }), "thread");
	run(&(struct side){ .first = true, .to = ends[0] });
	pthread_join(other, NULL);
	return 0;
}
