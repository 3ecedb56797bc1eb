/* link: hugepin-verbs hugepin ibverbs */
/*
 * A key-value store whose clients read values themselves, by RDMA READ, while the server sleeps:
 *
 *	kv [-d DEVICE] [-c CLIENTS] [-k KEYS] [-s VALUE_BYTES] [-n ROUNDS] [-p PORT] [HOST | local]
 *
 * Without HOST it is the server, which waits for CLIENTS clients. With HOST it is a client. "local" has all of them in
 * this process.
 *
 * The server has an index, and each value in a buffer of its own. To read a value, a client reads its place in the
 * index, then the value. It borrows the device's keys for both by hugepin_lend(3). It keeps them, so the server wakes
 * up for the first read of a piece of memory only. Each client reads all values ROUNDS times. The first client then has
 * the server replace each value: the server frees the old buffers, and gives their memory back to the kernel. The
 * library asks the clients for the keys of that memory. Then all clients read all values again.
 *
 * A client may read a value while the server writes another one to the same memory. So each value begins with its name,
 * version and checksum. If one of them is wrong, the client looks into the index again.
 *
 * An error ends the process, and the kernel takes back what is open. hugepin_verbs(3) has a program that gives
 * everything back itself after each error.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <hugepin_verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGES = 32, OWN = 1, CLIENTS_MAX = 16, KEYS_MAX = 4096 };
enum { OWN_ID = 1, MESSAGE }; /* completions: OWN_ID is the wr_id of a client's reads */

static const char *device_name, *port = "18518";
static unsigned clients = 2, keys = 64, rounds = 10;
static size_t value_bytes = 65536;

/* Where a value is. */
struct place {
	_Atomic uint64_t addr;
	_Atomic uint64_t version;
};

struct value {
	uint64_t name, version, sum;
	unsigned char bytes[];
};

static uint64_t checksum(const struct value *v)
{
	uint64_t sum = v->name + v->version;
	for (size_t i = 0; i < value_bytes - sizeof *v; i++)
		sum = sum * 31 + v->bytes[i];
	return sum;
}

/* A connection: of a client its only one, of the server one of each client. */
struct link {
	unsigned number;
	int to; /* a socket to the peer */
	FILE *from;
	struct ibv_qp *qp;
	struct ibv_qp_cap granted;
	hugepin_lendq *lendq;
	uint64_t peer_index; /* the address of the server's index */
	enum ibv_wc_status failed; /* the first work request that failed; 0: none has */
	bool ended; /* the client has gone */
};

struct side {
	bool server;
	unsigned links;
	struct link link[CLIENTS_MAX];
	struct ibv_context *device;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel; /* the server sleeps on it, */
	int wake; /* and on this: the library has work */
	struct ibv_cq *cq;
	hugepin_domain *domain;
	hugepin_lend *lend;
	struct place *index; /* the server's */
	char *buffer; /* what a client reads into */
	struct hugepin_pin buffer_pin;
	bool answered;
	unsigned wakeups, again; /* again: values that were read once more */
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
	s->channel = ibv_create_comp_channel(s->device);
	s->wake = eventfd(0, EFD_NONBLOCK);
	if (!s->pd || !s->channel || s->wake < 0)
		err(1, "protection domain, completion channel, eventfd");
	s->cq = ibv_create_cq(s->device, (int)s->links * (2 * MESSAGES + OWN), NULL, s->channel, 0);
	if (!s->cq)
		err(1, "completion queue");
	check(fcntl(s->channel->fd, F_SETFL, O_NONBLOCK), "completion channel");
	check(hugepin_verbs_open(s->pd, NULL, &s->domain), "open a domain");
}

/* Tell the peer where we are, hear where it is, and connect the queue pairs. */
static void connect_peer(struct side *s, struct link *l)
{
	struct ibv_qp_init_attr qp = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = MESSAGES + OWN, .max_recv_wr = MESSAGES, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	if (!(l->qp = ibv_create_qp(s->pd, &qp)))
		err(1, "queue pair");
	l->granted = qp.cap;
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
	dprintf(l->to, "%s %x %x %" PRIx64 "\n", text, p.lid, l->qp->qp_num, (uint64_t)(uintptr_t)s->index);
	if (fscanf(l->from, "%45s %x %x %" SCNx64, text, &lid, &qpn, &l->peer_index) != 4 ||
	    inet_pton(AF_INET6, text, &gid) != 1)
		errx(1, "the peer does not say where it is");

	/* A peer that has died is noticed after 7 s. Soft-RoCE takes retry_cnt = 7 for without end. */
	struct ibv_qp_attr a = { .port_num = 1, .path_mtu = p.active_mtu, .dest_qp_num = qpn, .min_rnr_timer = 12,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .timeout = 18,
		.retry_cnt = 6, .rnr_retry = 7,
		.ah_attr = { .port_num = 1, .dlid = (uint16_t)lid, .is_global = p.link_layer == IBV_LINK_LAYER_ETHERNET,
			.grh = { .dgid = gid, .sgid_index = (uint8_t)index, .hop_limit = 64 } } };
	a.qp_state = IBV_QPS_INIT;
	check(ibv_modify_qp(l->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	a.qp_state = IBV_QPS_RTR; /* ready to receive */
	check(ibv_modify_qp(l->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	a.qp_state = IBV_QPS_RTS; /* and to send */
	check(ibv_modify_qp(l->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");

	struct hugepin_lendq_attr carry = { .size = sizeof carry, .qp = l->qp, .granted = &l->granted,
		.domain = s->domain, .lend = s->lend, .peer = l->number, .depth = MESSAGES, .reserved_wr = OWN,
		.recv_depth = MESSAGES };
	check(hugepin_lendq_open(&carry, &l->lendq), "carry messages");
}

/* The queue pair goes to the error state, so that its receives come back. */
static void disconnect(struct side *s, struct link *l)
{
	struct ibv_wc wc;
	check(ibv_modify_qp(l->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE), "ERR");
	while (hugepin_lendq_close(l->lendq) == -EBUSY)
		while (ibv_poll_cq(s->cq, 1, &wc) == 1)
			hugepin_sg_wc(&wc);
	check(ibv_destroy_qp(l->qp), "destroy a queue pair");
	l->ended = true;
}

/* A queue pair has failed. The lend knows, but the client may wait for an answer: hang up, so that both sides notice. */
static void hang_up(struct side *s, const struct ibv_wc *wc)
{
	for (struct link *l = s->link; l < s->link + s->links; l++)
		if (!l->ended && !l->failed && l->qp->qp_num == wc->qp_num) {
			l->failed = wc->status;
			shutdown(l->to, SHUT_RDWR);
		}
}

/* Take a completion, if there is one. 0: there was none. OWN_ID: a client's read is done. */
static int progress(struct side *s)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(s->cq, 1, &wc);
	check(hugepin_lend_progress(s->lend), "lend");
	if (n < 0)
		errx(1, "completion: none");
	if (n && wc.wr_id == OWN_ID && wc.status)
		errx(1, "read: %s", ibv_wc_status_str(wc.status));
	if (!n || wc.wr_id == OWN_ID)
		return n ? OWN_ID : 0;
	hugepin_sg_wc(&wc);
	if (wc.status)
		hang_up(s, &wc);
	return MESSAGE;
}

/* ------------------------------------------------------------------ the lend's callbacks */

static int send_of_lend(void *arg, uint32_t peer, const void *msg, size_t len)
{
	return hugepin_lendq_send(((struct side *)arg)->link[peer].lendq, msg, len);
}

/* The index is lent, and values as they are now. A client lends nothing. */
static int offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	struct side *s = arg;
	(void)peer;
	*ret_buffer = (struct iovec){ s->index, keys * sizeof *s->index };
	if (s->index && addr - (uintptr_t)s->index < ret_buffer->iov_len)
		return 0;
	for (unsigned k = 0; s->index && k < keys; k++) {
		uint64_t at = s->index[k].addr;
		if (addr >= at && addr - at + len <= value_bytes) {
			*ret_buffer = (struct iovec){ (void *)(uintptr_t)at, value_bytes };
			return 0;
		}
	}
	return -EACCES;
}

/* -EACCES: the place was read, and then the value replaced. */
static void ready(void *arg, void *token, int error, const struct hugepin_far *key)
{
	struct side *s = arg;
	check(error == -EACCES ? 0 : error, "borrow");
	*(struct hugepin_far *)token = key ? *key : (struct hugepin_far){ 0 };
	s->answered = true;
}

static void wake(void *arg)
{
	(void)!write(((struct side *)arg)->wake, &(uint64_t){ 1 }, 8);
}

static void open_lend(struct side *s)
{
	struct hugepin_lend_attr attr = { .size = sizeof attr, .peers = s->links, .access = HUGEPIN_REMOTE_READ,
		.lent_bytes_max = 2 * keys * (value_bytes + 4096), .idle_bytes_max = value_bytes, .send = send_of_lend,
		.ready = ready, .offer = offer, .wake = wake };
	check(hugepin_lend_open(s->domain, &attr, s, &s->lend), "open a lend");
}

/* ------------------------------------------------------------------ the server */

/* Returns the value that was there. */
static void *put_value(struct side *s, unsigned k)
{
	struct value *v = hugepin_malloc(value_bytes);
	if (!v)
		err(1, "%zu bytes", value_bytes);
	*v = (struct value){ .name = k, .version = s->index[k].version + 1 };
	memset(v->bytes, (int)(k + v->version), value_bytes - sizeof *v);
	v->sum = checksum(v);
	void *old = (void *)(uintptr_t)s->index[k].addr;
	s->index[k].addr = (uintptr_t)v;
	s->index[k].version = v->version;
	return old;
}

static void replace_values(struct side *s)
{
	void *old[KEYS_MAX];
	for (unsigned k = 0; k < keys; k++)
		old[k] = put_value(s, k);
	for (unsigned k = 0; k < keys; k++)
		hugepin_free(old[k]);
	hugepin_purge();
}

/* Sleep until a client has sent something, or the library has work. */
static void sleep_until_woken(struct side *s)
{
	struct pollfd fds[CLIENTS_MAX + 2];
	unsigned n = 0;
	fds[n++] = (struct pollfd){ .fd = s->channel->fd, .events = POLLIN };
	fds[n++] = (struct pollfd){ .fd = s->wake, .events = POLLIN };
	for (unsigned i = 0; i < s->links; i++)
		fds[n++] = (struct pollfd){ .fd = s->link[i].ended ? -1 : s->link[i].to, .events = POLLIN };
	/* Arm the channel, then look once more: a completion may have come before. */
	check(ibv_req_notify_cq(s->cq, 0), "wait for completions");
	while (progress(s))
		;
	if (poll(fds, n, -1) < 0)
		err(1, "poll");
	s->wakeups++;
	struct ibv_cq *cq;
	void *context;
	if (!ibv_get_cq_event(s->channel, &cq, &context))
		ibv_ack_cq_events(cq, 1);
	(void)!read(s->wake, &(uint64_t){ 0 }, 8);
	while (progress(s))
		;
	for (unsigned i = 0; i < s->links; i++) {
		char order;
		if (!(fds[2 + i].revents & (POLLIN | POLLHUP)))
			continue;
		if (fscanf(s->link[i].from, "%c", &order) != 1) {
			if (ferror(s->link[i].from))
				warn("client %u has gone", i);
			else if (s->link[i].failed)
				warnx("client %u has gone: %s", i, ibv_wc_status_str(s->link[i].failed));
			disconnect(s, &s->link[i]);
		} else if (order == 'r') {
			replace_values(s);
			dprintf(s->link[i].to, "r");
		}
	}
}

static void serve(struct side *s)
{
	s->index = hugepin_calloc(keys, sizeof *s->index);
	if (!s->index)
		err(1, "index");
	open_lend(s);
	for (unsigned i = 0; i < s->links; i++)
		connect_peer(s, &s->link[i]);
	/* Values come behind the queues' memory: a pin keeps the hugepages around it, those of freed values, too. */
	for (unsigned k = 0; k < keys; k++)
		put_value(s, k);
	for (unsigned i = 0; i < s->links; i++)
		dprintf(s->link[i].to, "%u\n", i);
	for (unsigned left = s->links; left;) {
		sleep_until_woken(s);
		left = 0;
		for (unsigned i = 0; i < s->links; i++)
			left += !s->link[i].ended;
	}
	struct hugepin_lend_stats stats;
	hugepin_lend_stats(s->lend, HUGEPIN_LEND_ALL, &stats, sizeof stats);
	printf("server: woke up %u times, was asked for %" PRIu64 " keys, asked back %" PRIu64 "\n", s->wakeups,
	       stats.asked, stats.recalls);
	check(hugepin_lend_close(s->lend), "close the lend");
	for (unsigned k = 0; k < keys; k++)
		hugepin_free((void *)(uintptr_t)s->index[k].addr);
	hugepin_free(s->index);
}

/* ------------------------------------------------------------------ a client */

/* Who polls is not told that the server has ended, or died, so look whether the socket is still open. */
static void check_server(const struct side *s)
{
	char byte;
	ssize_t n = recv(s->link[0].to, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
	if (!n || (n < 0 && errno != EAGAIN))
		errx(1, "the server has gone%s%s", n ? ": " : "", n ? strerror(errno) : "");
}

/* Read [addr, addr + len) of the server into the buffer. False: the server does not lend it any more. */
static bool read_server(struct side *s, uint64_t addr, size_t len)
{
	for (size_t at = 0; at < len;) {
		struct hugepin_far far;
		int ret = hugepin_lend_key(s->lend, 0, addr + at, len - at, &far, &far);
		check(ret < 0 ? ret : 0, "ask for a key");
		s->answered = ret;
		while (!s->answered)
			if (!progress(s))
				check_server(s);
		if (!far.ref)
			return false;
		struct ibv_sge sge = { .addr = s->buffer_pin.base + at,
				       .length = (uint32_t)far.len,
				       .lkey = s->buffer_pin.lkey };
		struct ibv_send_wr *bad, wr = { .wr_id = OWN_ID,
						.opcode = IBV_WR_RDMA_READ,
						.send_flags = IBV_SEND_SIGNALED,
						.sg_list = &sge,
						.num_sge = 1,
						.wr.rdma = { .remote_addr = far.base, .rkey = far.rkey } };
		check(ibv_post_send(s->link[0].qp, &wr, &bad), "post a read");
		while (progress(s) != OWN_ID)
			;
		at += far.len;
		check(hugepin_lend_done(s->lend, &far), "done");
	}
	return true;
}

static void get(struct side *s, unsigned k)
{
	struct value *v = (struct value *)s->buffer;
	for (int tries = 0; tries < 1000; tries++) {
		struct place place;
		if (!read_server(s, s->link[0].peer_index + k * sizeof place, sizeof place))
			errx(1, "the index is not lent");
		memcpy(&place, s->buffer, sizeof place);
		uint64_t addr = place.addr, version = place.version;
		bool here = read_server(s, addr, value_bytes);
		if (here && v->name == k && v->version == version && v->sum == checksum(v))
			return;
		s->again++;
	}
	errx(1, "value %u: wrong bytes", k);
}

static void read_all(struct side *s, unsigned times, const char *what)
{
	struct hugepin_lend_stats before, after;
	struct timespec start, end;
	hugepin_lend_stats(s->lend, 0, &before, sizeof before);
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (unsigned i = 0; i < times * keys; i++)
		get(s, i * 7919 % keys);
	clock_gettime(CLOCK_MONOTONIC, &end);
	hugepin_lend_stats(s->lend, 0, &after, sizeof after);
	double seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
	printf("client: %s: %u values, %.0f/s, asked for %" PRIu64 " keys, gave back %" PRIu64 "\n", what, times * keys,
	       times * keys / seconds, after.asks - before.asks, after.recalled - before.recalled);
}

static void read_values(struct side *s)
{
	unsigned number; /* the server says which client this is */
	s->buffer = hugepin_malloc(value_bytes);
	if (!s->buffer)
		err(1, "%zu bytes", value_bytes);
	check(hugepin_pin(s->domain, s->buffer, value_bytes, HUGEPIN_WRITE, &s->buffer_pin), "pin");
	open_lend(s);
	connect_peer(s, &s->link[0]);
	if (fscanf(s->link[0].from, "%u%*c", &number) != 1)
		errx(1, "the server has gone");
	read_all(s, 1, "the first time");
	read_all(s, rounds, "then");
	if (!number) {
		dprintf(s->link[0].to, "r");
		if (fscanf(s->link[0].from, " r") == EOF)
			errx(1, "the server has gone");
	}
	read_all(s, rounds, number ? "and again" : "replaced");
	if (s->again)
		printf("client: %u values were read again, for they had been replaced\n", s->again);
	disconnect(s, &s->link[0]);
	check(hugepin_lend_close(s->lend), "close the lend");
	check(hugepin_unpin(s->domain, &s->buffer_pin), "unpin");
	hugepin_free(s->buffer);
}

/* ------------------------------------------------------------------ processes, or threads */

static void *run(void *arg)
{
	struct side *s = arg;
	for (unsigned i = 0; i < s->links; i++) {
		s->link[i].number = i;
		s->link[i].from = fdopen(s->link[i].to, "r");
		setvbuf(s->link[i].from, NULL, _IONBF, 0); /* poll(2) must see what has not been read */
	}
	open_device(s);
	if (s->server)
		serve(s);
	else
		read_values(s);
	check(hugepin_domain_close(s->domain), "close the domain");
	check(ibv_destroy_cq(s->cq), "destroy the completion queue");
	check(ibv_destroy_comp_channel(s->channel), "destroy the completion channel");
	check(ibv_dealloc_pd(s->pd), "free the protection domain"); /* after the domain: it must hold no regions */
	check(ibv_close_device(s->device), "close the device");
	close(s->wake);
	for (unsigned i = 0; i < s->links; i++)
		fclose(s->link[i].from);
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

/* A socket to the server, or one that waits for clients. */
static int open_socket(const char *host)
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
		if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, CLIENTS_MAX))
			err(1, "port %s", port);
	}
	freeaddrinfo(a);
	return fd;
}

static void run_here(void)
{
	static struct side server, client[CLIENTS_MAX];
	pthread_t thread[CLIENTS_MAX];
	server = (struct side){ .server = true, .links = clients };
	for (unsigned i = 0; i < clients; i++) {
		int ends[2];
		check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
		server.link[i].to = ends[0];
		client[i] = (struct side){ .links = 1, .link[0].to = ends[1] };
		check(pthread_create(&thread[i], NULL, run, &client[i]), "thread");
	}
	run(&server);
	for (unsigned i = 0; i < clients; i++)
		pthread_join(thread[i], NULL);
}

int main(int argc, char **argv)
{
	int option;
	while ((option = getopt(argc, argv, "d:c:k:s:n:p:")) != -1) {
		switch (option) {
		case 'd': device_name = optarg; break;
		case 'c': clients = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'k': keys = (unsigned)strtoul(optarg, NULL, 0); break;
		case 's': value_bytes = strtoul(optarg, NULL, 0); break;
		case 'n': rounds = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'p': port = optarg; break;
		default: return 2;
		}
	}
	if (!clients || clients > CLIENTS_MAX || !keys || keys > KEYS_MAX || value_bytes < 64 ||
	    value_bytes > 1 << 20 || !rounds)
		errx(2, "-c takes 1 to %d, -k 1 to %d, -s 64 bytes to 1 MiB, -n at least 1", CLIENTS_MAX,
		     KEYS_MAX);

	const char *host = argv[optind];
	if (host && !strcmp(host, "local")) {
		run_here();
		return 0;
	}
	static struct side side;
	int fd = open_socket(host);
	side = (struct side){ .server = !host, .links = host ? 1 : clients, .link[0].to = fd };
	for (unsigned i = 0; !host && i < clients; i++)
		if ((side.link[i].to = accept(fd, NULL, NULL)) < 0)
			err(1, "accept");
	run(&side);
	return 0;
}
