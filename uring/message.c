/*
 * A message as linked requests, and their results.
 *
 *  1. The requests of a message are linked. The kernel begins one when the one before has transferred all of its bytes.
 *     After a short transfer or an error it ends the others with -ECANCELED. So what went through is always a head of
 *     the message, and the first request that is not whole says why.
 *     A send without a copy is not linked to one before it. If the kernel ends it with -ECANCELED, it sends a notice
 *     (IORING_CQE_F_NOTIF) that it has not announced, at least up to Linux 6.18: nobody could tell whether to wait.
 *  2. A short transfer is continued with the rest. A read that yields nothing is at the end of its file. A write that
 *     yields nothing has failed.
 *  3. An index may be refused: by a socket that cannot send without a copy, by a file, by a limit of locked memory, since
 *     the ring's table was taken away, or since a datagram has more pieces than Linux sends without a copy
 *     (CONFIG_MAX_SKB_FRAGS, 17). Then the rest goes by address, once.
 */
#include "uring/message.h"

#include <errno.h>
#include <string.h>

#include "base/base.h"

static void make_parts(struct hp_message *m)
{
	struct hp_uring_part *p = NULL;

	m->parts_count = 0;
	for (uint32_t i = 0; i < m->elements_count; i++) {
		if (!p || p->index != m->by[i] || p->count == hp_uring_room(m->caps, p->index)) {
			p = &m->parts[m->parts_count++];
			*p = (struct hp_uring_part){ .first = i, .index = m->by[i] };
		}
		p->count++;
		p->bytes += m->elements[i].iov_len;
	}
	m->linked = m->parts_count ? 1 : 0;
	while (m->linked < m->parts_count &&
	       (m->verb != HUGEPIN_SG_URING_SEND || m->parts[m->linked].index == HUGEPIN_SG_URING_NONE))
		m->linked++;
}

void hp_message_begin(struct hp_message *m)
{
	const bool out = m->verb != HUGEPIN_SG_URING_READ;
	char *at = m->slot;
	bool joins = false;

	m->elements_count = 0;
	m->done = 0;
	m->err = m->refused_by = 0;
	for (uint32_t i = 0; i < m->pieces_count; i++) {
		const struct iovec piece = m->pieces[i];
		const bool copied = hp_uring_copies(&m->plan, piece.iov_len, m->indexes[i]);

		if (!piece.iov_len)
			continue;
		if (copied && out)
			memcpy(at, piece.iov_base, piece.iov_len);
		if (copied && joins) {
			m->elements[m->elements_count - 1].iov_len += piece.iov_len;
		} else {
			m->elements[m->elements_count] = (struct iovec){ copied ? at : piece.iov_base, piece.iov_len };
			m->by[m->elements_count++] = hp_uring_index(&m->plan, m->caps, copied, m->indexes[i]);
		}
		if (copied)
			at += piece.iov_len;
		joins = copied;
	}
	make_parts(m);
}

/* Drop the first bytes of the elements. */
static void drop(struct hp_message *m, uint64_t bytes)
{
	uint32_t whole = 0;

	while (whole < m->elements_count && bytes >= m->elements[whole].iov_len)
		bytes -= m->elements[whole++].iov_len;
	m->elements_count -= whole;
	memmove(m->elements, m->elements + whole, m->elements_count * sizeof *m->elements);
	memmove(m->by, m->by + whole, m->elements_count * sizeof *m->by);
	if (m->elements_count) {
		m->elements[0].iov_base = (char *)m->elements[0].iov_base + bytes;
		m->elements[0].iov_len -= bytes;
	}
}

static bool is_refusal(int err)
{
	return err == -EOPNOTSUPP || err == -EINVAL || err == -EFAULT || err == -ENOBUFS || err == -ENOMEM ||
	       err == -EMSGSIZE;
}

enum hp_uring_verdict hp_message_results(struct hp_message *m, bool cancelled)
{
	uint64_t bytes = 0;
	uint32_t i = 0;
	int res;

	while (i < m->linked && m->parts[i].res >= 0 && (uint32_t)m->parts[i].res == m->parts[i].bytes)
		bytes += m->parts[i++].bytes;
	m->err = 0;
	if (i == m->parts_count) {
		m->done += bytes;
		return HP_FINISHED;
	}
	const bool whole = i == m->linked;
	res = whole ? 0 : m->parts[i].res;
	bytes += res > 0 ? (uint32_t)res : 0;
	m->done += bytes;
	drop(m, bytes);
	if (cancelled) {
		m->err = -ECANCELED;
		return HP_FINISHED;
	}
	if (whole) {
		make_parts(m);
		return HP_NEXT;
	}
	if (is_refusal(res) && m->parts[i].index != HUGEPIN_SG_URING_NONE) {
		m->refused_by = res;
		for (uint32_t k = 0; k < m->elements_count; k++)
			m->by[k] = HUGEPIN_SG_URING_NONE;
		make_parts(m);
		return HP_REFUSED;
	}
	if (res == 0) {
		m->err = m->verb == HUGEPIN_SG_URING_READ ? 0 : -EIO;
		return HP_FINISHED;
	}
	if (res < 0 && res != -EINTR) {
		m->err = res;
		return HP_FINISHED;
	}
	make_parts(m);
	return HP_CONTINUES;
}

void hp_message_end(struct hp_message *m)
{
	const char *at = m->slot;
	uint64_t left = m->done;

	if (m->verb != HUGEPIN_SG_URING_READ || !(m->plan.mode & HUGEPIN_SG_URING_COPY))
		return;
	for (uint32_t i = 0; i < m->pieces_count && left; i++) {
		const struct iovec piece = m->pieces[i];
		const size_t arrived = HP_MIN(left, piece.iov_len);

		if (hp_uring_copies(&m->plan, piece.iov_len, m->indexes[i])) {
			memcpy(piece.iov_base, at, arrived);
			at += piece.iov_len;
		}
		left -= arrived;
	}
}
