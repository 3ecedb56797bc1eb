/* hugepin with io_uring: the pieces of one message as one request, by their registered ("fixed") buffers. Linked with
 * libhugepin-uring. The guide is hugepin_sg_uring(3). */
#ifndef HUGEPIN_SG_URING_H
#define HUGEPIN_SG_URING_H

#include "hugepin.h"

#include <liburing.h>

#ifdef __cplusplus
extern "C" {
/* A struct and a function of one name: to C++, the function hides a constructor that nobody calls. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* ------------------------------------------------------------------ the plan: pure */

/* What is done with the pieces. */
enum {
	HUGEPIN_SG_URING_SEND, /* to a socket */
	HUGEPIN_SG_URING_WRITE, /* to a file */
	HUGEPIN_SG_URING_READ, /* from a file */
	HUGEPIN_SG_URING_VERBS
};

/* How pieces go: bits of `mode`. */
#define HUGEPIN_SG_URING_PLAIN 1u /* by address: the kernel copies them, or looks up their pages */
#define HUGEPIN_SG_URING_FIXED 2u /* by the index of their registration; what is sent, without a copy */
#define HUGEPIN_SG_URING_COPY 4u /* through a slot of the queue, which goes by index or by address; neighbours are one element */

/* The index of a piece that is not registered. */
#define HUGEPIN_SG_URING_NONE UINT32_MAX

/* What a ring can do, from the kernel's own list of requests, and what a queue has room for. */
struct hugepin_sg_uring_caps {
	uint32_t size;
	uint32_t vector; /* 1: one request of many pieces takes an index (Linux 6.15); 0: of one piece */
	uint32_t zero_copy; /* 1: a send takes an index (Linux 6.0); 0: what is sent goes by address */
	uint32_t max_iov; /* pieces of one request */
	uint32_t max_requests; /* linked requests of one message; 1: none are linked */
	uint32_t slot_len, slot_index; /* the copies of one message; slot_index HUGEPIN_SG_URING_NONE: not registered */
};
typedef struct hugepin_sg_uring_caps hugepin_sg_uring_caps_t;

/* The costs of one kind of request, in nanoseconds of CPU time of both sides. */
struct hugepin_sg_uring_cost {
	float request, element, byte;
};

/* The cost of a message: for each request, by address or by index, request + element * (its elements) + byte * (its
 * bytes); and piece * (copied pieces) + copy_byte * (copied bytes). */
struct hugepin_sg_uring_model {
	uint32_t size;
	uint32_t measured; /* bits: 1 << verb was measured; others have default values */
	float piece, copy_byte;
	struct hugepin_sg_uring_cost plain[HUGEPIN_SG_URING_VERBS], fixed[HUGEPIN_SG_URING_VERBS];
};
typedef struct hugepin_sg_uring_model hugepin_sg_uring_model_t;

/* A decision. Pieces shorter than copy_below are copied; with copy_foreign, those without an index, too. */
struct hugepin_sg_uring_plan {
	uint32_t mode; /* the ways that occur */
	uint32_t copy_below, copy_foreign;
	uint32_t requests, elements;
	uint64_t bytes, copied; /* of the message; of these in the slot */
	float cost_ns;
};
typedef struct hugepin_sg_uring_plan hugepin_sg_uring_plan_t;

/* Choose the cheapest way for n pieces. index[i] is the registration of piece i, or HUGEPIN_SG_URING_NONE; index NULL:
 * none is registered. mode: the ways that are allowed; 0: all. align: what addresses and lengths must be multiples of
 * (O_DIRECT), a power of two; 0 or 1: anything. Pieces that are not aligned are only copied, all of them. model NULL: a
 * default. Empty pieces are skipped.
 * 0. -EINVAL: a NULL, n < 0, bad verb, mode, align or sizes, a piece at NULL or one that wraps, bytes that are no
 * multiple of align. -EOVERFLOW: over 1 GiB. -EMSGSIZE: no way that is allowed has the room. -EOPNOTSUPP: the ring has
 * none of the ways that are allowed. *ret_ is untouched on failure. */
int hugepin_sg_uring_plan(const struct hugepin_sg_uring_model *model, const struct hugepin_sg_uring_caps *caps,
			  unsigned verb, const struct iovec *iov, const uint32_t *index, int n, unsigned mode,
			  unsigned align, struct hugepin_sg_uring_plan *ret_);

/* Ask what the ring's kernel can do. Fills vector, zero_copy, max_iov and max_requests (the ring's length). 0, -EINVAL,
 * -ENOMEM, or the error of the kernel. */
int hugepin_sg_uring_caps(struct io_uring *ring, struct hugepin_sg_uring_caps *ret_, size_t size);

/* Measure the model, in about a second: sends over loopback TCP, writes and reads past the page cache of a file without
 * a name in `directory` (NULL: sends alone). On loopback the kernel copies what a network adapter would read where it
 * lies: for an adapter, set fixed[HUGEPIN_SG_URING_SEND].byte to 0. What cannot be measured here keeps its default. 0,
 * -EINVAL, -ENOMEM, or the error of io_uring. */
int hugepin_sg_uring_calibrate(const char *directory, struct hugepin_sg_uring_model *ret_, size_t size);

/* ------------------------------------------------------------------ the queue */

/* Where messages go. The caller's memory, for as long as messages to it are out; used by the library. */
struct hugepin_sg_uring_target {
	int32_t fd;
	uint32_t align; /* O_DIRECT: what it wants of addresses, offsets and lengths; else 1 */
	uint32_t whole; /* 1: datagrams, so a message is one request; else 0 */
	uint32_t refused; /* modes that the target has refused */
	uint32_t out; /* messages that are sent in order (sends, and offset -1) and not yet done: 0 or 1 */
};
typedef struct hugepin_sg_uring_target hugepin_sg_uring_target_t;

/* Look at a descriptor: whether it is O_DIRECT, and what that wants; whether it takes datagrams. 0, -EINVAL, -EBADF. */
int hugepin_sg_uring_target(int fd, struct hugepin_sg_uring_target *ret_);

/* What happened to a message: bits of `what`. Each comes once, in this order or together. */
#define HUGEPIN_SG_URING_DONE 1u /* the result is known */
#define HUGEPIN_SG_URING_FREE 2u /* nobody reads the pieces any more: they may be changed, freed, unmapped */

/* err 0: bytes is the whole length, or, for a read, up to the end of the file. Otherwise the first error; the first
 * `bytes` bytes went through, and nothing behind them was begun after the error. -ECANCELED: hugepin_sg_uring_cancel.
 * Called by hugepin_sg_uring_cqe and hugepin_sg_uring_again. May call functions of the queue, but not close it. */
typedef void (*hugepin_sg_uring_fn)(void *arg, int err, size_t bytes, unsigned what);

typedef struct hugepin_sg_uring hugepin_sg_uring;

struct hugepin_sg_uring_attr {
	size_t size; /* sizeof(struct hugepin_sg_uring_attr); all else 0: defaults */
	uint32_t messages; /* that may be out; default 32, at most 4096 */
	uint32_t pieces; /* of a message; default 64, at most 1024 */
	uint32_t slot_len; /* bytes of a message that may be copied; default 16384, rounded up to 4096; at most 1 GiB */
	uint32_t without; /* modes that are not used: HUGEPIN_SG_URING_FIXED, HUGEPIN_SG_URING_COPY */
	uint32_t single; /* 1: as on a kernel before 6.15, requests with an index have one piece */
	const struct hugepin_sg_uring_model *model; /* copied; NULL: a default */
	/* Finds the registration of a piece, as for hugepin_sg_map. NULL: hugepin_sg_key of the domain, which finds
	 * what is registered. -ENOKEY: the piece is not registered, and goes by address or is copied. */
	hugepin_key_fn key;
	void *key_arg;
};
typedef struct hugepin_sg_uring_attr hugepin_sg_uring_attr_t;

/* Make a queue on a ring, with the registrations of a domain of this ring (hugepin_uring_open), which must outlive it.
 * The ring must not have IORING_SETUP_SQE128 or IORING_SETUP_CQE32. domain NULL: nothing is registered. The slots are
 * registered, if there is room. A queue belongs to one thread at a time, as the ring does. 0, -EINVAL, -ENOMEM,
 * -ESTALE, or the error of the kernel. */
int hugepin_sg_uring_open(struct io_uring *ring, hugepin_domain *domain, const struct hugepin_sg_uring_attr *attr,
			  hugepin_sg_uring **ret_);

/* -EBUSY: messages are out. -EINVAL: NULL. */
int hugepin_sg_uring_close(hugepin_sg_uring *);

/* Prepare requests for n pieces on the ring, which the caller submits (io_uring_submit). `done` may be NULL. The array
 * iov need not stay. The pieces must stay until HUGEPIN_SG_URING_FREE. Short transfers are continued. mode: the ways
 * that are allowed; 0: all. Nothing is registered.
 * 0. -EAGAIN: no room: submit, hand in completions, call again. -EBUSY: a message to the target is out that needs order
 * (a send, or one at offset -1). -EINVAL, -EMSGSIZE, -EOVERFLOW as hugepin_sg_uring_plan, and more pieces than
 * attr.pieces, split where registrations end. -EOPNOTSUPP. Or an error of the key function other than -ENOKEY. On failure `done` is
 * not called. */
int hugepin_sg_uring_send(hugepin_sg_uring *, struct hugepin_sg_uring_target *, const struct iovec *iov, int n,
			  unsigned mode, hugepin_sg_uring_fn done, void *arg);
/* The same at an offset of a file. UINT64_MAX: at the descriptor's position, one at a time. */
int hugepin_sg_uring_write(hugepin_sg_uring *, struct hugepin_sg_uring_target *, uint64_t offset,
			   const struct iovec *iov, int n, unsigned mode, hugepin_sg_uring_fn done, void *arg);
int hugepin_sg_uring_read(hugepin_sg_uring *, struct hugepin_sg_uring_target *, uint64_t offset,
			  const struct iovec *iov, int n, unsigned mode, hugepin_sg_uring_fn done, void *arg);

/* Hand in a completion. 1: it was the queue's, and is dealt with; the caller goes on to io_uring_cqe_seen. 0: it is the
 * program's. May prepare requests (the rest of a short transfer): submit before waiting. */
int hugepin_sg_uring_cqe(hugepin_sg_uring *, const struct io_uring_cqe *);

/* Prepare what found no room on the ring. Returns how many messages still wait for room: submit and call again. */
int hugepin_sg_uring_again(hugepin_sg_uring *);

/* Ask for the end of all messages with this `arg`, by requests that the caller submits. `done` says whether a message
 * was cut short (-ECANCELED) or had gone through; of a message that waits for room on the ring, at the next
 * hugepin_sg_uring_again, which also asks again where there was no room to ask. Returns the number of messages. */
int hugepin_sg_uring_cancel(hugepin_sg_uring *, const void *arg);

struct hugepin_sg_uring_stats {
	uint64_t messages, requests; /* messages taken; requests prepared for them */
	uint64_t fixed_bytes, copied_bytes; /* bytes of messages that went by an index; that were copied by the queue */
	uint64_t continued; /* short transfers that were continued */
	uint64_t refused; /* messages that went on by address, since an index was refused */
	uint64_t out; /* messages that are not yet free */
};
typedef struct hugepin_sg_uring_stats hugepin_sg_uring_stats_t;
int hugepin_sg_uring_stats(const hugepin_sg_uring *, struct hugepin_sg_uring_stats *ret_, size_t size);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif
#endif
