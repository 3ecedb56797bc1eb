/* link: hugepin uring */
/* loop_uring FILE SOCKET: a peer connects to SOCKET, sends the number of a
 * block of FILE (8 bytes), gets its 64 KiB, and so on: hugepin_loop(7). */
#define _GNU_SOURCE 1 /* O_DIRECT */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <hugepin_uring.h>
#include <liburing.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BLOCK = 64 << 10, SLOTS = 256, PEERS = 1020 }; /* ulimit -n: 1024 */

static struct peer {
	enum { RECEIVES, READS, SENDS } step; /* of its only request */
	__u64 number; /* of the block */
	char *data;
	struct hugepin_pin pin; /* len is 0 if there is none */
} peers[PEERS]; /* by descriptor */

static struct io_uring ring;
static hugepin_domain *domain;
static hugepin_ring *attached; /* NULL: the domain is the ring's own */
static int file;
static unsigned blocks; /* of the file */

static void unpin(struct peer *p)
{
	if (p->pin.len)
		hugepin_unpin(domain, &p->pin);
	p->pin.len = 0;
}

static void pin(struct peer *p)
{
	int ret = hugepin_pin_try(domain, p->data, BLOCK, 0, 0, 0, &p->pin);

	if (ret == -EPERM) /* only this thread may register */
		ret = hugepin_pin(domain, p->data, BLOCK, 0, &p->pin);
	/* -EAGAIN: without; a later request finds it registered. */
	if (ret == 0 && (p->pin.len < BLOCK ||
	    (attached && hugepin_ring_use(attached, &p->pin) < 0)))
		unpin(p);
}

/* The ring has an entry for each peer. */
static void request(struct peer *p)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	int fd = (int)(p - peers);

	if (p->step == RECEIVES)
		io_uring_prep_recv(sqe, fd, &p->number, 8, MSG_WAITALL);
	else if (p->step == SENDS)
		io_uring_prep_send(sqe, fd, p->data, BLOCK,
		    MSG_WAITALL | MSG_NOSIGNAL);
	else if (p->pin.len)
		io_uring_prep_read_fixed(sqe, file, p->data, BLOCK,
		    p->number * BLOCK, (int)p->pin.lkey);
	else
		io_uring_prep_read(sqe, file, p->data, BLOCK,
		    p->number * BLOCK);
	io_uring_sqe_set_data(sqe, p);
}

/* The peer's request is done: make the next one, or end the peer. */
static void completed(struct peer *p, int result)
{
	if (p->step == RECEIVES && result == sizeof p->number &&
	    p->number < blocks && (p->data = hugepin_malloc(BLOCK))) {
		pin(p);
		p->step = READS;
	} else if (p->step == READS && result == BLOCK) {
		unpin(p); /* a peer that stalls keeps no pin */
		p->step = SENDS;
	} else if (p->step == SENDS && result == BLOCK) {
		hugepin_free(p->data);
		p->data = NULL;
		p->step = RECEIVES;
	} else { /* it has gone, or wants what there is not */
		unpin(p);
		hugepin_free(p->data);
		close((int)(p - peers));
		*p = (struct peer){ 0 };
		return;
	}
	request(p);
}

static int open_ring(void)
{
	int ret = io_uring_queue_init(PEERS, &ring,
	    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);

	if (ret < 0 ||
	    (!hugepin_uring_open_fd(-1, 0, 0, SLOTS, NULL, &domain) &&
	    !hugepin_uring_attach(domain, &ring, &attached)))
		return ret;
	/* Before Linux 6.13 rings share nothing. */
	hugepin_domain_close(domain);
	return hugepin_uring_open(&ring, 0, SLOTS, NULL, &domain);
}

int main(int argc, char **argv)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	struct io_uring_cqe *cqe;
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	int fd, ret, ep = epoll_create1(0), wake = eventfd(0, 0);

	if (argc != 3 || strlen(argv[2]) >= sizeof to.sun_path)
		errx(2, "usage: loop_uring FILE SOCKET");
	strcpy(to.sun_path, argv[2]);
	file = open(argv[1], O_RDONLY | O_DIRECT);
	blocks = (unsigned)(lseek(file, 0, SEEK_END) / BLOCK);
	if (file < 0 || bind(listener, (void *)&to, sizeof to) < 0 ||
	    listen(listener, SOMAXCONN) < 0)
		err(1, "%s, %s", argv[1], argv[2]);
	if ((ret = open_ring()) < 0)
		errx(1, "io_uring: %s", strerror(-ret));
	io_uring_register_eventfd(&ring, wake);
	epoll_ctl(ep, EPOLL_CTL_ADD, wake, &event);
	if (attached) /* others want what the ring holds */
		epoll_ctl(ep, EPOLL_CTL_ADD, hugepin_ring_fd(attached), &event);
	event.data.fd = listener; /* 0: the other two */
	epoll_ctl(ep, EPOLL_CTL_ADD, listener, &event);
	for (;;) {
		do { /* all that is done, before the loop sleeps */
			io_uring_submit_and_get_events(&ring);
			while (io_uring_peek_cqe(&ring, &cqe) == 0) {
				completed(io_uring_cqe_get_data(cqe),
				    cqe->res);
				io_uring_cqe_seen(&ring, cqe);
			}
		} while (io_uring_sq_ready(&ring));
		if (attached) /* let go of what others want */
			hugepin_ring_use(attached, NULL);
		if (epoll_wait(ep, &event, 1, -1) < 1 || !event.data.fd)
			continue;
		while ((fd = accept(listener, NULL, NULL)) >= 0)
			if (fd < PEERS)
				request(&peers[fd]);
			else
				close(fd);
	}
}
