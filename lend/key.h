/*
 * The words that hits compute of a borrowed key: the hash of peer and address, and the name (`ref` in struct
 * hugepin_far), which contains the lend, the key's place in its table, and the index at which its uses are counted.
 */
#ifndef HP_LEND_KEY_H
#define HP_LEND_KEY_H

#include <string.h>

#include "hugepin.h"
#include "reg/lookup.h"

#define HP_KEY_SLOT_BITS 18
#define HP_KEY_HEAD_SHIFT (2 * HP_KEY_SLOT_BITS)
#define HP_KEY_MASK ((1u << HP_KEY_SLOT_BITS) - 1)

/* As hp_lookup_page() and hp_lookup_hugepage(). The peer is in the upper bits, which addresses of programs leave free.
 * One bit distinguishes a page from a hugepage. */
static inline uint64_t hp_key_page(uint32_t peer, uint64_t addr)
{
	return hp_lookup_hash((addr >> HP_LOOKUP_GRAIN_SHIFT ^ (uint64_t)peer << 40) | UINT64_C(1) << 63);
}

static inline uint64_t hp_key_hugepage(uint32_t peer, uint64_t addr)
{
	return hp_lookup_hash(addr >> HP_PAGE_SHIFT ^ (uint64_t)peer << 40);
}

static inline uint64_t hp_key_name(uint64_t head, uint32_t slot, uint32_t index)
{
	return head | (uint64_t)slot << HP_KEY_SLOT_BITS | index;
}

static inline uint32_t hp_key_slot(uint64_t ref)
{
	return ref >> HP_KEY_SLOT_BITS & HP_KEY_MASK;
}

/* Fill in a key: rkey and peer in one store. */
static inline void hp_key_fill(struct hugepin_far *ret_, uint64_t base, uint64_t len, uint64_t keys, uint64_t name)
{
	_Static_assert(
		sizeof *ret_ == 32 && offsetof(struct hugepin_far, peer) == offsetof(struct hugepin_far, rkey) + 4, "");
	ret_->base = base;
	ret_->len = len;
	memcpy(&ret_->rkey, &keys, sizeof keys);
	ret_->ref = name;
}

#endif
