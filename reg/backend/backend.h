/*
 * The two embedded backends: io_uring and mlock.
 */
#ifndef HP_REG_BACKEND_H
#define HP_REG_BACKEND_H

#include <stdbool.h>
#include <stddef.h>

#include "hugepin.h"

struct io_uring;

/* What hugepin_uring_open() gives to the core: its backend, and a context for it. *ret_made: the ring got a table.
 * 0 or -errno, as hugepin_uring_open. */
extern const struct hugepin_backend hp_uring_backend;
struct hp_uring;
int hp_uring_new(struct io_uring *ring, unsigned slot0, unsigned slots, struct hp_uring **ret_, bool *ret_made);

/* What hugepin_uring_attach() does with the domain's lock held. */
int hp_uring_attach(struct hp_uring *u, struct io_uring *ring);

#endif
