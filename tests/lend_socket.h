/*
 * The messages of a lend over a socket pair (AF_UNIX, SOCK_SEQPACKET), for tests without a device: ordered, reliable,
 * with boundaries, also between processes.
 */
#ifndef TESTS_LEND_SOCKET_H
#define TESTS_LEND_SOCKET_H

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hugepin.h"

/* One end. The lend is set when it is open. */
struct lend_socket {
	int fd; /* -1: closed */
	hugepin_lend *lend;
	uint32_t peer; /* whose messages come here */
	size_t longest;
	char *message;
	bool broken; /* the peer has sent what no lend sends */
};

/* Two ends, for messages with at most carry_max bytes of the program's own. */
static inline bool lend_socket_pair(struct lend_socket end[2], size_t carry_max)
{
	int fd[2], room = 4 << 20;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd))
		return false;
	for (int i = 0; i < 2; i++) {
		/* root may exceed the machine's limit */
		if (setsockopt(fd[i], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room))
			setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
		end[i] = (struct lend_socket){ .fd = fd[i], .longest = HUGEPIN_LEND_MESSAGE_MAX + carry_max };
		end[i].message = malloc(end[i].longest);
	}
	return end[0].message && end[1].message;
}

static inline void lend_socket_close(struct lend_socket *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
	free(s->message);
	s->message = NULL;
}

/* As send() of struct hugepin_lend_attr. */
static inline int lend_socket_send(struct lend_socket *s, const void *msg, size_t len)
{
	if (s->fd < 0 || len > s->longest)
		return s->fd < 0 ? -ENOTCONN : -EMSGSIZE;
	return send(s->fd, msg, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len ? 0 : -errno;
}

/* Hand in at most `max` messages that have come. Returns their number; -ECONNRESET: the peer has closed its end, and
 * everything that it sent was handed in. */
static inline int lend_socket_poll(struct lend_socket *s, int max)
{
	int n = 0;
	for (; n < max; n++) {
		ssize_t len = recv(s->fd, s->message, s->longest, MSG_DONTWAIT);
		if (len == 0 || (len < 0 && errno == ECONNRESET))
			return n ? n : -ECONNRESET;
		if (len < 0)
			break;
		s->broken |= hugepin_lend_message(s->lend, s->peer, s->message, (size_t)len) == -EILSEQ;
	}
	hugepin_lend_progress(s->lend);
	return n;
}

#endif
