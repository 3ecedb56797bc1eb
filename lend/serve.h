/*
 * The lending side: messages of peers that borrow, and memory that the pin cache wants back (serve.c).
 */
#ifndef HP_LEND_SERVE_H
#define HP_LEND_SERVE_H

#include "lend/state.h"

int hp_serve_asked(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);
int hp_serve_returned(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);

/* The peer is gone: end some of its loans. Whether there are more: release the lock, then go on. */
bool hp_serve_gone(hugepin_lend *l, uint32_t peer);

/* The peer that a question waits for may be late, so another one is asked. */
void hp_serve_late(hugepin_lend *l);

/* Carry out news: drop, ask for room, or retire, after which hp_serve_recalls() is to be called. all_regions() only
 * notes that any region may be wanted; regions_left() drops and retires some buckets. Whether there are more: release
 * the lock, then go on. Until then nothing is lent. */
void hp_serve_region(hugepin_lend *l, uint32_t region, bool dropped);
void hp_serve_all_regions(hugepin_lend *l);
bool hp_serve_regions_left(hugepin_lend *l);
void hp_serve_crowded(hugepin_lend *l, uint64_t bytes);

/* Ask some of the keys back whose buckets are retired. HP_ATTEND_RECALLS is up while there are more: release the lock,
 * then go on. */
void hp_serve_recalls(hugepin_lend *l);

/* Answer all waiting questions with no. */
void hp_serve_refuse_all(hugepin_lend *l);

/* Drop some of the `most` oldest idle buckets, or all (UINT32_MAX). Returns how many of them are left: release the
 * lock, then go on. */
uint32_t hp_serve_drop_idle(hugepin_lend *l, uint32_t most);

#endif
