/*
 * Detects pointers that are passed to free() or realloc() but are not the start of a live buffer.
 */
#ifndef HP_ALLOC_MISUSE_H
#define HP_ALLOC_MISUSE_H

#include "alloc/pages.h"
#include "alloc/small.h" /* hugepin_misuse_() */

/* Why the pointer at this offset in the span is invalid. NULL: it is valid. */
static inline const char *hp_misuse_reason(size_t off)
{
	uint64_t w = hp_chunk_get(off >> HP_CHUNK_SHIFT);

	if (off & (HP_CHUNK - 1) || HP_CHUNK_STATE(w) == HP_CHUNK_FREE)
		return "not the start of a live buffer";
	return HP_CHUNK_STATE(w) == HP_CHUNK_LISTED ? "already free" : NULL;
}

#endif
