/*
 * The two backends inside libhugepin.so: io_uring and mlock.
 */
#ifndef HP_REG_BACKEND_H
#define HP_REG_BACKEND_H

#include <stdbool.h>
#include <stddef.h>

#include "hugepin.h"

/* The backend of hugepin_uring_open_fd(), and the context that hp_uring_new() makes for it. *ret_made: the ring had no
 * table, and got one. Returns as hugepin_uring_open_fd(). */
extern const struct hugepin_backend hp_uring_backend;
struct hp_uring;
int hp_uring_new(int fd, unsigned flags, unsigned slot0, unsigned slots, struct hp_uring **ret_, bool *ret_made);

#endif
