/*
 * The two backends inside libhugepin.so: io_uring and mlock.
 */
#ifndef HP_REG_BACKEND_H
#define HP_REG_BACKEND_H

#include <stdbool.h>
#include <stddef.h>

#include "hugepin.h"

struct io_uring;

/* The backend of hugepin_uring_open(), and the context that hp_uring_new() makes for it. *ret_made: the ring had no
 * table, and got one. Returns as hugepin_uring_open(). */
extern const struct hugepin_backend hp_uring_backend;
struct hp_uring;
int hp_uring_new(struct io_uring *ring, unsigned slot0, unsigned slots, struct hp_uring **ret_, bool *ret_made);

/* The part of hugepin_uring_attach() that runs with the domain's lock held. */
int hp_uring_attach(struct hp_uring *u, struct io_uring *ring);

#endif
