/*
 * A descriptor of ours in the program's table. The program may close it at any time, and another file may then get its
 * number, so the descriptor is recognised by its file, too. Makes raw system calls and keeps errno.
 */
#ifndef HP_BASE_KEPT_H
#define HP_BASE_KEPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct hp_kept {
	_Atomic int fd; /* -1: none */
	uint64_t dev, ino; /* device and inode of its file */
};

#define HP_KEPT_NONE { .fd = -1 }

/* The descriptor; -1: none. acquire: a reader that sees the descriptor sees dev and ino; pairs with hp_kept_set(). */
static inline int hp_kept_fd(const struct hp_kept *k)
{
	return atomic_load_explicit(&k->fd, memory_order_acquire);
}

/* Keep fd. False: fd is not an open descriptor, nothing is kept, and the caller closes fd. */
bool hp_kept_set(struct hp_kept *k, int fd);

/* Keep fd, or close it. fd: a descriptor of ours, or -errno. */
bool hp_kept_set_or_close(struct hp_kept *k, int fd);

/* The same under a high number, since programs close and open low ones. */
bool hp_kept_set_high(struct hp_kept *k, int fd);

/* Whether fd, which may by now be any file, is the kept file. */
bool hp_kept_is(const struct hp_kept *k, int fd);

/* Whether the kept file is still open under its number. */
bool hp_kept_is_there(const struct hp_kept *k);

/* Close the descriptor, if it is still ours. Afterwards none is kept. */
void hp_kept_close(struct hp_kept *k);

/* Forget the descriptor without closing it. */
void hp_kept_forget(struct hp_kept *k);

#endif
