/*
 * Messages of many pieces on rings of io_uring: the program's entry is filled, and its completion undoes what that
 * took.
 *
 *  1. One request a message, so that appended records, datagrams and packets stay whole. By index where one
 *     registration has all the pieces: the kernel then looks no page up. Several pieces need Linux 6.15 for this, and
 *     go by address, vectored, on older kernels.
 *  2. Short pieces are copied, since the kernel takes longer for an element than a copy of it does.
 *  3. The pin of a message is out until its completion. The kernel looks an index up when it begins a request, and it
 *     begins a linked one late.
 *  4. Messages belong to the process that opened them. In a child of fork the ring is still the parent's, and an index
 *     names the parent's memory.
 *
 * Threads: one at a time.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <hugepin_sg_uring.h>

enum {
	COPIES = 32, COPIES_MAX = 4096, COPY_LEN = 32768, COPY_LEN_MAX = 1 << 20, COPY_ALIGN = 4096, COPY_BELOW = 2048,
	PIECES_MAX = 1024
};
#define BYTES_MAX UINT64_C(0x7ffff000) /* of one request: the kernel's MAX_RW_COUNT */
/* From the kernel's include/uapi/linux/io_uring.h. liburing 2.3 lacks them. */
enum { OP_READV_FIXED = 60, OP_WRITEV_FIXED = 61 };

struct hugepin_sg_uring {
	hugepin_domain *domain;
	struct hugepin_sg_uring_attr attr;
	bool vector; /* requests of many pieces take an index */
	char *copies; /* attr.copies, each of attr.copy_len bytes */
	struct hugepin_pin pin; /* of them; ref 0: they go by address */
	unsigned generation; /* of the process that opened it */
	uint32_t out, spare_count;
	uint32_t spare[]; /* copies that are not out */
};

static unsigned generation; /* the number of forks that led to this process, since it first opened messages */

static void count_fork(void)
{
	generation++;
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, count_fork);
}

/* The pieces of a message. */
struct pieces {
	uint64_t bytes;
	uint32_t count; /* of those that are not empty */
	char *first, *end; /* all of them are in [first, end) */
	bool together, aligned; /* they lie one after the other; each is a multiple of attr.align */
};

static int look(const struct iovec *iov, int n, uint32_t align, struct pieces *ret_)
{
	struct pieces p = { .together = true, .aligned = true };

	if (!iov || n < 0 || n > PIECES_MAX)
		return -EINVAL;
	for (int i = 0; i < n; i++) {
		const uintptr_t at = (uintptr_t)iov[i].iov_base;
		const size_t len = iov[i].iov_len;

		if (!len)
			continue;
		if (!at || len > UINTPTR_MAX - at)
			return -EINVAL;
		if (len > BYTES_MAX || p.bytes + len > BYTES_MAX)
			return -EOVERFLOW;
		p.together = p.together && (!p.count || at == (uintptr_t)p.end);
		if (!p.count++ || at < (uintptr_t)p.first)
			p.first = iov[i].iov_base;
		if (at + len > (uintptr_t)p.end)
			p.end = (char *)iov[i].iov_base + len;
		p.aligned = p.aligned && !((at | len) & (align - 1));
		p.bytes += len;
	}
	*ret_ = p;
	return p.bytes ? 0 : -EINVAL;
}

/* Copy the first `left` bytes of a message between its pieces and its copy. */
static void copy(const struct iovec *iov, uint32_t n, char *at, uint64_t left, bool out)
{
	for (uint32_t i = 0; i < n && left; i++) {
		const size_t len = iov[i].iov_len < left ? iov[i].iov_len : (size_t)left;

		if (len)
			memcpy(out ? at : iov[i].iov_base, out ? iov[i].iov_base : at, len);
		at += len;
		left -= len;
	}
}

/* Fill the entry for one range of memory, by its index or, without a pin, by address. */
static void fill(struct io_uring_sqe *sqe, int fd, char *at, uint64_t bytes, uint64_t offset, bool read,
		 const struct hugepin_pin *pin)
{
	if (pin->ref && read)
		io_uring_prep_read_fixed(sqe, fd, at, (unsigned)bytes, offset, (int)pin->lkey);
	else if (pin->ref)
		io_uring_prep_write_fixed(sqe, fd, at, (unsigned)bytes, offset, (int)pin->lkey);
	else if (read)
		io_uring_prep_read(sqe, fd, at, (unsigned)bytes, offset);
	else
		io_uring_prep_write(sqe, fd, at, (unsigned)bytes, offset);
}

/* The same for pieces. */
static void fill_many(struct io_uring_sqe *sqe, int fd, const struct iovec *iov, unsigned n, uint64_t offset, bool read,
		      const struct hugepin_pin *pin)
{
	if (read)
		io_uring_prep_readv(sqe, fd, iov, n, offset);
	else
		io_uring_prep_writev(sqe, fd, iov, n, offset);
	if (pin->ref) {
		sqe->opcode = read ? OP_READV_FIXED : OP_WRITEV_FIXED;
		sqe->buf_index = (uint16_t)pin->lkey;
	}
}

/* Give the pin back unless it has all of [at, at + bytes), and its index is valid in the ring of the requests. */
static void keep_if_usable(const hugepin_sg_uring *s, const char *at, uint64_t bytes, struct hugepin_pin *pin)
{
	if (pin->ref && ((uintptr_t)at + bytes > pin->base + pin->len ||
			 (s->attr.ring && hugepin_ring_use(s->attr.ring, pin))))
		hugepin_unpin(s->domain, pin);
}

/* The pin of a range, if one registration has all of it; otherwise ref is 0. */
static int find(const hugepin_sg_uring *s, const char *at, uint64_t bytes, bool read, struct hugepin_pin *ret_)
{
	struct hugepin_pin pin = { 0 };
	const int err = s->domain ? hugepin_sg_key(s->domain, at, bytes, read ? HUGEPIN_WRITE : HUGEPIN_READ, &pin) :
				    -ENOKEY;

	if (err && err != -ENOKEY)
		return err;
	keep_if_usable(s, at, bytes, &pin);
	*ret_ = pin;
	return 0;
}

static int prepare(hugepin_sg_uring *s, struct io_uring_sqe *sqe, int fd, const struct iovec *iov, int n,
		   uint64_t offset, bool read, struct hugepin_sg_uring_message *ret_)
{
	struct hugepin_sg_uring_message m = { .n = (uint32_t)n, .out = 1 };
	struct pieces p;
	int err;

	if (!s || !ret_)
		return -EINVAL;
	if (s->generation != generation)
		return -ESTALE;
	err = look(iov, n, s->attr.align, &p);
	if (err)
		return err;
	const bool fits = p.bytes <= s->attr.copy_len, cheap = p.count > 1 && p.bytes / p.count < s->attr.copy_below;
	if (!p.aligned && (!fits || !s->spare_count))
		return fits ? -EAGAIN : -EMSGSIZE;
	if (!p.aligned || (cheap && fits && s->spare_count)) {
		m.copy = s->copies + (size_t)s->spare[--s->spare_count] * s->attr.copy_len;
		m.iov = read ? iov : NULL;
		if (!read)
			copy(iov, m.n, m.copy, p.bytes, true);
		fill(sqe, fd, m.copy, p.bytes, offset, read, &s->pin);
	} else {
		if (p.together || (s->vector && p.count == m.n)) /* by index, the kernel refuses empty pieces */
			err = find(s, p.first, (uint64_t)(p.end - p.first), read, &m.pin);
		if (err)
			return err;
		if (p.together)
			fill(sqe, fd, p.first, p.bytes, offset, read, &m.pin);
		else
			fill_many(sqe, fd, iov, m.n, offset, read, &m.pin);
	}
	s->out++;
	*ret_ = m;
	return 0;
}

static int prepare_or_nop(hugepin_sg_uring *s, struct io_uring_sqe *sqe, int fd, const struct iovec *iov, int n,
			  uint64_t offset, bool read, struct hugepin_sg_uring_message *ret_)
{
	const int err = sqe ? prepare(s, sqe, fd, iov, n, offset, read, ret_) : -EINVAL;

	if (err && sqe) { /* the entry is on the ring already, and is going to be submitted */
		io_uring_prep_nop(sqe);
		sqe->user_data = 0;
	}
	return err;
}

int hugepin_sg_uring_read(hugepin_sg_uring *s, struct io_uring_sqe *sqe, int fd, const struct iovec *iov, int n,
			  uint64_t offset, struct hugepin_sg_uring_message *ret_)
{
	return prepare_or_nop(s, sqe, fd, iov, n, offset, true, ret_);
}

int hugepin_sg_uring_write(hugepin_sg_uring *s, struct io_uring_sqe *sqe, int fd, const struct iovec *iov, int n,
			   uint64_t offset, struct hugepin_sg_uring_message *ret_)
{
	return prepare_or_nop(s, sqe, fd, iov, n, offset, false, ret_);
}

int hugepin_sg_uring_done(hugepin_sg_uring *s, struct hugepin_sg_uring_message *m, int res)
{
	if (!s || !m || !m->out)
		return -EINVAL;
	if (s->generation != generation)
		return -ESTALE;
	if (m->iov && res > 0)
		copy(m->iov, m->n, m->copy, (uint32_t)res, false);
	if (m->copy)
		s->spare[s->spare_count++] = (uint32_t)((size_t)(m->copy - s->copies) / s->attr.copy_len);
	if (m->pin.ref)
		hugepin_unpin(s->domain, &m->pin);
	*m = (struct hugepin_sg_uring_message){ 0 };
	s->out--;
	return 0;
}

/* Whether the kernel has requests of many pieces with one index (Linux 6.15). */
static bool has_vector(void)
{
	struct io_uring_probe *probe = io_uring_get_probe();
	const bool has = probe && io_uring_opcode_supported(probe, OP_READV_FIXED) &&
			 io_uring_opcode_supported(probe, OP_WRITEV_FIXED);

	io_uring_free_probe(probe);
	return has;
}

int hugepin_sg_uring_open(hugepin_domain *domain, const struct hugepin_sg_uring_attr *attr, hugepin_sg_uring **ret_)
{
	struct hugepin_sg_uring_attr a = attr ? *attr : (struct hugepin_sg_uring_attr){ .size = sizeof a };
	hugepin_sg_uring *s;
	int err = 0;

	if (!ret_ || a.size != sizeof a || (a.ring && !domain) || a.copies > COPIES_MAX || a.copy_len > COPY_LEN_MAX ||
	    a.align > COPY_ALIGN || a.align & (a.align - 1))
		return -EINVAL;
	a.copies = a.copies ? a.copies : COPIES;
	a.copy_len = a.copy_len ? (a.copy_len + COPY_ALIGN - 1) / COPY_ALIGN * COPY_ALIGN : COPY_LEN;
	a.copy_below = a.copy_below ? a.copy_below : COPY_BELOW;
	a.align = a.align ? a.align : 1;
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const size_t bytes = (size_t)a.copies * a.copy_len;
	pthread_once(&once, watch_forks);
	s = calloc(1, sizeof *s + a.copies * sizeof *s->spare);
	if (!s)
		return -ENOMEM;
	s->copies = hugepin_aligned_alloc(COPY_ALIGN, bytes);
	if (!s->copies)
		err = -ENOMEM;
	else if (domain)
		err = hugepin_pin(domain, s->copies, bytes, HUGEPIN_READ | HUGEPIN_WRITE, &s->pin);
	if (s->copies && (err == -ENOBUFS || err == -ENOMEM || err == -EPERM))
		err = 0;
	if (err) {
		hugepin_free(s->copies);
		free(s);
		return err;
	}
	s->generation = generation;
	s->domain = domain;
	s->vector = domain && has_vector();
	s->attr = a;
	keep_if_usable(s, s->copies, bytes, &s->pin);
	for (; s->spare_count < a.copies; s->spare_count++)
		s->spare[s->spare_count] = s->spare_count;
	*ret_ = s;
	return 0;
}

int hugepin_sg_uring_close(hugepin_sg_uring *s)
{
	if (!s)
		return -EINVAL;
	if (s->generation == generation) {
		if (s->out)
			return -EBUSY;
		if (s->pin.ref)
			hugepin_unpin(s->domain, &s->pin);
	}
	hugepin_free(s->copies);
	free(s);
	return 0;
}
