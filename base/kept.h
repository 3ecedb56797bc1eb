/*
 * A descriptor of ours in the program's table. The program may close it at any time, and another file may then have its
 * number: so it is known by its file as well. Raw system calls; errno is kept.
 */
#ifndef HP_BASE_KEPT_H
#define HP_BASE_KEPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct hp_kept {
	_Atomic int fd; /* -1: none */
	uint64_t dev, ino; /* of its file */
};

#define HP_KEPT_NONE { .fd = -1 }

/* The descriptor; -1: none. acquire: who sees it sees which file it is; pairs with hp_kept_set(). */
static inline int hp_kept_fd(const struct hp_kept *k)
{
	return atomic_load_explicit(&k->fd, memory_order_acquire);
}

/* Keep fd. False: it is no descriptor, nothing is kept, and fd is the caller's to close. */
bool hp_kept_set(struct hp_kept *k, int fd);

/* Whether fd, which may be the number of any file by now, is the file that is kept. */
bool hp_kept_is(const struct hp_kept *k, int fd);

/* Whether it is still there under its number. */
bool hp_kept_is_there(const struct hp_kept *k);

/* Close it, if it is still ours. None is kept any more. */
void hp_kept_close(struct hp_kept *k);

/* None is kept any more; it stays open, if it is. */
void hp_kept_forget(struct hp_kept *k);

#endif
