/* link: hugepin-verbs hugepin ibverbs */
/*
 * Random updates of a table in another process's memory:
 *
 *	gups [-d DEVICE] [-t TABLE_BYTES] [-m LENT_BYTES] [-n UPDATES] [-p PORT] [HOST | local]
 *
 * The process without HOST has the table, and the one with HOST updates it: it gets a number by RDMA READ, changes it,
 * and puts it back by RDMA WRITE. "local" has both in this process. For each update the device needs a key of the
 * number's memory. There are three ways to have one:
 *
 *	ask     ask the owner for a key before each update, and tell it after the update (rendezvous)
 *	borrow  borrow a key by hugepin_lend(3), and keep it until the owner wants it back
 *	pinned  the owner pins the whole table, and tells its key once
 *
 * The owner lends no more than LENT_BYTES at a time, and keeps a quarter of that registered besides. (The other ways
 * have no such limit.) Each update is done twice, so that the table is as it was.
 *
 * An error ends the process, and the kernel takes back what is open. hugepin_verbs(3) has a program that gives
 * everything back itself after each error.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <hugepin_verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ASK, BORROW, PINNED, WAYS };
static const char *const way_name[WAYS] = { "ask", "borrow", "pinned" };

enum { MESSAGES = 16, OWN = 2, OWN_ID = 1 }; /* OWN: work requests that are no messages; OWN_ID: their wr_id */
#define REMOTE (HUGEPIN_WRITE | HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE)

static const char *device_name, *port = "18517";
static size_t table_bytes = 16 << 20, lent_bytes = 16 << 20;
static unsigned updates = 1000;

struct side {
	bool owner; /* of the table */
	int to; /* a socket to the peer */
	FILE *from;
	struct ibv_context *device;
	struct ibv_pd *pd;
	hugepin_domain *domain;
	uint64_t *table; /* the owner's memory */
	uint64_t peer_table; /* its address */
	uint64_t *number; /* the number that is being changed */
	struct hugepin_pin number_pin;

	/* for one way of updating */
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_qp_cap granted;
	hugepin_sgq *queue; /* ASK */
	hugepin_lend *lend; /* BORROW */
	hugepin_lendq *lendq;
	struct hugepin_pin table_pin; /* PINNED; ASK: of one number */
	uint32_t peer_rkey;
	bool answered; /* a key was asked for, and is here */
	uint64_t handshakes;
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
	if (!s->pd)
		err(1, "protection domain");
	check(hugepin_verbs_open(s->pd, NULL, &s->domain), "open a domain");
}

static void open_queue_pair(struct side *s)
{
	s->cq = ibv_create_cq(s->device, 2 * MESSAGES + OWN, NULL, NULL, 0);
	struct ibv_qp_init_attr qp = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = MESSAGES + OWN, .max_recv_wr = MESSAGES, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	if (!s->cq || !(s->qp = ibv_create_qp(s->pd, &qp)))
		err(1, "completion queue, queue pair");
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
	dprintf(s->to, "%s %x %x %x %" PRIx64 "\n", text, p.lid, s->qp->qp_num, s->table_pin.rkey,
		(uint64_t)(uintptr_t)s->table);
	if (fscanf(s->from, "%45s %x %x %x %" SCNx64, text, &lid, &qpn, &s->peer_rkey, &s->peer_table) != 5 ||
	    inet_pton(AF_INET6, text, &gid) != 1)
		errx(1, "the peer does not say where it is");

	struct ibv_qp_attr a = { .port_num = 1, .path_mtu = p.active_mtu, .dest_qp_num = qpn, .min_rnr_timer = 12,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
		.max_dest_rd_atomic = 1, .max_rd_atomic = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
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

/* Take a completion, if there is one. True: our own get or put is done. */
static bool progress(struct side *s)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(s->cq, 1, &wc);
	if (n < 0 || (n && wc.status))
		errx(1, "completion: %s", n < 0 ? "none" : ibv_wc_status_str(wc.status));
	if (s->lend)
		check(hugepin_lend_progress(s->lend), "lend");
	if (!n || wc.wr_id == OWN_ID)
		return n;
	int taken = hugepin_sg_wc(&wc);
	check(taken == 1 ? 0 : taken, "a completion of nobody");
	return false;
}

static void transfer(struct side *s, enum ibv_wr_opcode opcode, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = s->number_pin.base, .length = sizeof *s->number, .lkey = s->number_pin.lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = OWN_ID, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.sg_list = &sge, .num_sge = 1, .wr.rdma = { .remote_addr = addr, .rkey = rkey } };
	check(ibv_post_send(s->qp, &wr, &bad), "post a transfer");
	while (!progress(s))
		;
}

/* ------------------------------------------------------------------ ask */

enum { PLEASE, HERE, DONE }; /* tags of messages, which are 8 bytes: an address, or a key */

static void send_message(struct side *s, uint64_t tag, uint64_t word)
{
	struct iovec piece = { &word, sizeof word };
	int ret;
	while ((ret = hugepin_sgq_add(s->queue, &piece, 1, tag, NULL, NULL, HUGEPIN_SG_COPY_OK)) == -EAGAIN)
		progress(s);
	check(ret < 0 ? ret : 0, "send");
}

static void hear(void *arg, const struct hugepin_sg_record *r)
{
	struct side *s = arg;
	uint64_t word;
	if (r->part || r->parts != 1 || r->len != sizeof word)
		errx(1, "no message of this program");
	memcpy(&word, r->data, sizeof word);
	if (r->tag == HERE) {
		s->peer_rkey = (uint32_t)word;
		s->answered = true;
	} else if (r->tag == DONE) {
		check(hugepin_unpin(s->domain, &s->table_pin), "unpin");
	} else if (word - (uintptr_t)s->table < table_bytes) {
		void *number = (void *)(uintptr_t)word;
		check(hugepin_pin(s->domain, number, sizeof *s->table, REMOTE, &s->table_pin), "pin");
		send_message(s, HERE, s->table_pin.rkey);
	}
}

static void open_queue(struct side *s)
{
	struct hugepin_sgq_attr attr = { .size = sizeof attr, .qp = s->qp, .granted = &s->granted, .domain = s->domain,
		.depth = MESSAGES, .reserved_wr = OWN, .frame_bytes = 256, .recv_depth = MESSAGES, .recv = hear,
		.recv_arg = s };
	check(hugepin_sgq_open(&attr, &s->queue), "open a queue");
}

/* ------------------------------------------------------------------ borrow */

static int send_of_lend(void *arg, uint32_t peer, const void *msg, size_t len)
{
	(void)peer; /* there is one */
	return hugepin_lendq_send(((struct side *)arg)->lendq, msg, len);
}

/* The owner lends the table, and nothing else. */
static int offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	struct side *s = arg;
	(void)peer;
	if (!s->owner || addr < (uintptr_t)s->table || addr - (uintptr_t)s->table + len > table_bytes)
		return -EACCES;
	*ret_buffer = (struct iovec){ s->table, table_bytes };
	return 0;
}

static void ready(void *arg, void *token, int error, const struct hugepin_far *key)
{
	struct side *s = arg;
	check(error, "borrow");
	*(struct hugepin_far *)token = *key;
	s->answered = true;
}

static void open_lend(struct side *s)
{
	struct hugepin_lend_attr lend = { .size = sizeof lend, .peers = 1, .lent_bytes_max = lent_bytes,
		.idle_bytes_max = lent_bytes / 4, .send = send_of_lend, .ready = ready, .offer = offer };
	check(hugepin_lend_open(s->domain, &lend, s, &s->lend), "open a lend");
	struct hugepin_lendq_attr attr = { .size = sizeof attr, .qp = s->qp, .granted = &s->granted,
		.domain = s->domain, .lend = s->lend, .depth = MESSAGES, .reserved_wr = OWN, .recv_depth = MESSAGES };
	check(hugepin_lendq_open(&attr, &s->lendq), "carry its messages");
}

/* ------------------------------------------------------------------ the updates */

static uint32_t key_of(struct side *s, int way, uint64_t addr, struct hugepin_far *ret_far)
{
	s->answered = way == PINNED;
	if (way == ASK) {
		send_message(s, PLEASE, addr);
		s->handshakes++;
	} else if (way == BORROW) {
		int ret = hugepin_lend_key(s->lend, 0, addr, sizeof *s->number, ret_far, ret_far);
		check(ret < 0 ? ret : 0, "ask for a key");
		s->answered = ret;
	}
	while (!s->answered)
		progress(s);
	return way == BORROW ? ret_far->rkey : s->peer_rkey;
}

static void update(struct side *s, int way, uint64_t random)
{
	uint64_t addr = s->peer_table + random % (table_bytes / sizeof *s->number) * sizeof *s->number;
	struct hugepin_far far;
	uint32_t rkey = key_of(s, way, addr, &far);
	transfer(s, IBV_WR_RDMA_READ, addr, rkey);
	*s->number ^= random;
	transfer(s, IBV_WR_RDMA_WRITE, addr, rkey);
	if (way == ASK)
		send_message(s, DONE, addr);
	if (way == BORROW)
		check(hugepin_lend_done(s->lend, &far), "done");
}

static double update_all(struct side *s, int way)
{
	struct timespec start, end;
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int twice = 0; twice < 2; twice++) {
		uint64_t random = 1;
		for (unsigned i = 0; i < updates; i++) {
			random ^= random << 13; /* Marsaglia's xorshift */
			random ^= random >> 7;
			random ^= random << 17;
			update(s, way, random);
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	return (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
}

/* Answer messages until the peer has updated all. */
static void serve(struct side *s)
{
	do
		progress(s);
	while (poll(&(struct pollfd){ .fd = s->to, .events = POLLIN }, 1, 0) == 0);
}

/* Close what carries messages. Its receives come back when the queue pair is in the error state. */
static void close_carrier(struct side *s)
{
	check(ibv_modify_qp(s->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE), "ERR");
	while (s->queue && hugepin_sgq_close(s->queue) == -EBUSY)
		hugepin_sgq_poll(s->queue, MESSAGES);
	while (s->lendq && hugepin_lendq_close(s->lendq) == -EBUSY)
		hugepin_lendq_poll(s->lendq, MESSAGES);
	s->queue = NULL;
	s->lendq = NULL;
}

static void run_way(struct side *s, int way)
{
	open_queue_pair(s);
	if (way == PINNED && s->owner)
		check(hugepin_pin(s->domain, s->table, table_bytes, REMOTE | HUGEPIN_PIN_UNCACHED, &s->table_pin),
		      "pin");
	connect_peer(s);
	if (way == ASK)
		open_queue(s);
	else if (way == BORROW)
		open_lend(s);
	meet(s);
	s->handshakes = 0;
	double seconds = s->owner ? 0 : update_all(s, way);
	if (s->owner)
		serve(s);
	meet(s); /* or the peer might still want an answer from a queue pair that is gone */

	struct hugepin_lend_stats lent = { 0 };
	if (s->lend)
		hugepin_lend_stats(s->lend, HUGEPIN_LEND_ALL, &lent, sizeof lent);
	if (!s->owner)
		printf("%-7s %9.0f updates/s, %u updates, %" PRIu64 " handshakes\n", way_name[way],
		       2 * updates / seconds, 2 * updates, way == BORROW ? lent.asks : s->handshakes);
	else if (lent.bytes_peak > lent_bytes + lent_bytes / 4)
		errx(1, "%" PRIu64 " bytes were lent", lent.bytes_peak);
	close_carrier(s);
	if (s->lend)
		check(hugepin_lend_close(s->lend), "close the lend");
	s->lend = NULL;
	if (s->table_pin.ref)
		check(hugepin_unpin(s->domain, &s->table_pin), "unpin");
	for (size_t i = 0; s->owner && i < table_bytes / sizeof *s->table; i++)
		if (s->table[i] != i)
			errx(1, "%s: number %zu has become %" PRIu64, way_name[way], i, s->table[i]);
	check(ibv_destroy_qp(s->qp), "destroy the queue pair");
	check(ibv_destroy_cq(s->cq), "destroy the completion queue");
}

static void *run(void *arg)
{
	struct side *s = arg;
	s->from = fdopen(s->to, "r");
	setvbuf(s->from, NULL, _IONBF, 0); /* serve() must see what has not been read */
	open_device(s);
	s->number = aligned_alloc(4096, 4096);
	s->table = s->owner ? hugepin_malloc(table_bytes) : NULL;
	if (!s->number || (s->owner && !s->table))
		err(1, "%zu bytes", table_bytes);
	for (size_t i = 0; s->owner && i < table_bytes / sizeof *s->table; i++)
		s->table[i] = i;
	check(hugepin_pin(s->domain, s->number, sizeof *s->number, HUGEPIN_READ | HUGEPIN_WRITE, &s->number_pin),
	      "pin");
	for (int way = 0; way < WAYS; way++)
		run_way(s, way);
	check(hugepin_unpin(s->domain, &s->number_pin), "unpin");
	check(hugepin_domain_close(s->domain), "close the domain");
	hugepin_free(s->table);
	free(s->number);
	check(ibv_dealloc_pd(s->pd), "free the protection domain"); /* after the domain: it must hold no regions */
	check(ibv_close_device(s->device), "close the device");
	fclose(s->from);
	return NULL;
}

static int connect_socket(const char *host)
{
	struct addrinfo *a, hint = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
	if (getaddrinfo(host, port, &hint, &a))
		errx(1, "%s port %s: no such address", host ? host : "my", port);
	int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
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
	while ((option = getopt(argc, argv, "d:t:m:n:p:")) != -1) {
		switch (option) {
		case 'd': device_name = optarg; break;
		case 't': table_bytes = strtoul(optarg, NULL, 0); break;
		case 'm': lent_bytes = strtoul(optarg, NULL, 0); break;
		case 'n': updates = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'p': port = optarg; break;
		default: return 2;
		}
	}
	if (table_bytes < 4096 || table_bytes > 1U << 30 || !updates || updates > 1U << 30)
		errx(2, "-t takes 4096 bytes to 1 GiB, -n at least 1");

	const char *host = argv[optind];
	if (!host || strcmp(host, "local")) {
		run(&(struct side){ .owner = !host, .to = connect_socket(host) });
		return 0;
	}
	int ends[2];
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
	pthread_t other;
	check(pthread_create(&other, NULL, run, &(struct side){ .owner = true, .to = ends[1] }), "thread");
	run(&(struct side){ .to = ends[0] });
	pthread_join(other, NULL);
	return 0;
}
