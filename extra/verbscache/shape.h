/*
 * What a program registers: bytes of memory, and the access of libibverbs. The pin cache knows whole base pages and its
 * own access, so this remembers which bytes a program registered there last, for a registration that is made again
 * ahead of the program's request. What is forgotten costs a late registration.
 */
#ifndef HP_VERBSCACHE_SHAPE_H
#define HP_VERBSCACHE_SHAPE_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hp_shape {
	uintptr_t addr;
	size_t len;
	unsigned access; /* IBV_ACCESS_... */
};

/* The base pages that the shape touches. */
uintptr_t hp_shape_start(const struct hp_shape *);
size_t hp_shape_bytes(const struct hp_shape *);

/* The access of a pin of the shape (HUGEPIN_...): shapes of other access lie apart, but for reading by peers, which
 * each has, so that the pin cache registers its pages alone. */
unsigned hp_shape_pins(const struct hp_shape *);

/* Remember a shape of a protection domain, in the place of what was known of the same pages and pins. pd: a number that
 * no other one ever has, and not 0. */
void hp_shape_remember(uint64_t pd, const struct hp_shape *);

/* The last shape of these pages, for pins of this access. 0: for pins of any, and it need not be the last one. */
bool hp_shape_recall(uint64_t pd, uintptr_t start, size_t bytes, unsigned pins, struct hp_shape *ret_);

#endif
