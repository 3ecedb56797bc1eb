/* Moving the memory of one buffer to another without a copy, for realloc. Needs Linux 6.8. */
#ifndef HP_ALLOC_CARRY_H
#define HP_ALLOC_CARRY_H

#include <stddef.h>
#include <stdint.h>

#define HP_CARRY_MIN ((size_t)4 << 20) /* the kernel takes as long for its calls as for copying a part of this */

/* Move the pages of [from, from + len) to [to, to + len), hugepages that the caller alone uses. Returns the bytes from
 * the start that were moved, whole base pages: there `from` reads as zeros. The caller copies the others. */
size_t hp_carry(uintptr_t to, uintptr_t from, size_t len);

#endif
