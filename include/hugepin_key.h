/* hugepin: held keys, whose hits are compiled into programs. The guide is hugepin_key(3). The rules for all functions
 * stand in hugepin.h, which programs include. */
#ifndef HUGEPIN_KEY_H
#define HUGEPIN_KEY_H

#include "hugepin_pin.h"

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* A held key, for a buffer that is pinned again and again: made once of a pin of the buffer, it pins the same range at
 * the price of a few loads and a store, as long as the registration of that pin is kept. It is no reference: it keeps
 * nothing registered, and needs no end. 64 bytes for ever. Pins by a key only read it, so threads may share it, and it
 * may be copied. All zeros is a key that is not good. Only `pin` is the program's, to read. */
struct hugepin_key_domain; /* the library's */
struct hugepin_key {
	/* what each pin by the key is: base, len, lkey and rkey are those of the pin that the key was made of */
	struct hugepin_pin pin;
	const struct hugepin_key_domain *domain;
	const uint64_t *life; /* NULL: never good */
	uint64_t good;
	uint32_t pin_slow, unpin_slow;
};
#define HUGEPIN_KEY_LAYOUT 1 /* of this struct, which programs have compiled in */

/* Make a key of a pin that is out. The pin stays the caller's. `layout` is HUGEPIN_KEY_LAYOUT: a later library serves
 * keys of this layout, too, perhaps more slowly. -EINVAL: a NULL, layout 0, or not a pin of this domain that is out.
 * -EOPNOTSUPP: the library is older than the layout. Any thread. Never blocks. */
int hugepin_key_take(hugepin_domain *, const struct hugepin_pin *pin, unsigned layout, struct hugepin_key *ret_);

/* Pin by a key: as hugepin_pin of the key's range. 0: *key says what is pinned. hugepin_key_unpin gives the pin back;
 * so does hugepin_unpin, with a copy of key->pin, where *key may be overwritten meanwhile.
 * -ENOKEY: the registration has ended (it was evicted, or its memory went away), or the key is all zeros: pin by
 * hugepin_pin, and make another key of that pin. -EINVAL: the domain was closed. -ESTALE: the domain is the parent
 * process's. -ENOMEM: no memory for this thread's counters. A key does not ask whether heap memory is in use: memory
 * that was freed may still be registered.
 * Any thread, and several by one key. Takes some nanoseconds and no lock, except where a pin of the range would. Not in
 * signal handlers. */
int hugepin_key_pin(const struct hugepin_key *key);

/* Give a pin by the key back, on any thread. Each pin must be given back once: unlike hugepin_unpin, this cannot tell a
 * second time. -EINVAL: the key is all zeros, or of a domain that is closed or the parent process's. Blocks as
 * hugepin_unpin. */
int hugepin_key_unpin(const struct hugepin_key *key);

/* The two functions above are compiled into programs, and call these for everything but a hit. Programs do not call
 * them. counted: whether this thread has counted already. */
int hugepin_key_pin_slow(const struct hugepin_key *key, int counted);
int hugepin_key_unpin_slow(const struct hugepin_key *key, int counted);

#ifdef __GNUC__
/* Layout 1. A library that keeps its pins in another way has `life` point to a word that is not `good`, every bit of
 * `attention` set, and hugepin_key_counts NULL: then all goes to the two functions. */
struct hugepin_key_domain {
	uint32_t attention, pad;
	uint64_t ref;
};
struct hugepin_key_count {
	uint32_t pins, unpins;
};
/* The pins that this thread has counted, by the lower half of ref. NULL: it has none yet. */
extern __thread struct hugepin_key_count *hugepin_key_counts __attribute__((__tls_model__("initial-exec")));

/* The library has these as functions, too, for callers that cannot compile them. Inlined always, so that what is no hit
 * is called from the place of the pin. */
#ifndef HUGEPIN_KEY_INLINE
#define HUGEPIN_KEY_INLINE extern __inline__ __attribute__((__gnu_inline__, __always_inline__))
#endif

/* Count; then look at the word of attention; then at the life of the registration. The fence stops only the compiler.
 * It pairs with membarrier(2) of a thread that ends the registration: either that thread sees the count, or this one
 * sees the life ended. release, acquire: pair with the library's, as in a hit of hugepin_pin. */
HUGEPIN_KEY_INLINE int hugepin_key_pin(const struct hugepin_key *key)
{
	struct hugepin_key_count *count = hugepin_key_counts;

	if (__builtin_expect(!count || !key->life, 0))
		return hugepin_key_pin_slow(key, 0);
	count += key->pin.ref & UINT32_MAX;
	__atomic_store_n(&count->pins, __atomic_load_n(&count->pins, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (__builtin_expect(__atomic_load_n(&key->domain->attention, __ATOMIC_ACQUIRE) & key->pin_slow ||
				     __atomic_load_n(key->life, __ATOMIC_ACQUIRE) != key->good,
			     0))
		return hugepin_key_pin_slow(key, 1);
	return 0;
}

/* Look whether it is still the domain of the pin; count; then look at the word of attention. The fence pairs with
 * membarrier(2) of a thread that ends the registration: either that thread sees the count, or this one sees that it is
 * wanted. release: pairs with the sum of that thread. */
HUGEPIN_KEY_INLINE int hugepin_key_unpin(const struct hugepin_key *key)
{
	struct hugepin_key_count *count = hugepin_key_counts;

	if (__builtin_expect(!count || !key->life ||
				     (__atomic_load_n(&key->domain->ref, __ATOMIC_RELAXED) ^ key->pin.ref) >> 32,
			     0))
		return hugepin_key_unpin_slow(key, 0);
	count += key->pin.ref & UINT32_MAX;
	__atomic_store_n(&count->unpins, __atomic_load_n(&count->unpins, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (__builtin_expect(__atomic_load_n(&key->domain->attention, __ATOMIC_RELAXED) & key->unpin_slow, 0))
		return hugepin_key_unpin_slow(key, 1);
	return 0;
}
#endif

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
