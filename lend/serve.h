/*
 * The lending side: messages of peers that borrow, and memory that the pin cache wants back (serve.c).
 */
#ifndef HP_LEND_SERVE_H
#define HP_LEND_SERVE_H

#include "lend/state.h"

int hp_serve_asked(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);
int hp_serve_returned(hugepin_lend *l, uint32_t peer, const struct hp_wire *w);
void hp_serve_gone(hugepin_lend *l, uint32_t peer);

/* Carry out news: drop, recall, ask for room. */
void hp_serve_region(hugepin_lend *l, uint32_t region, bool dropped);
void hp_serve_all_regions(hugepin_lend *l);
void hp_serve_crowded(hugepin_lend *l, uint64_t bytes);

/* Answer all waiting questions with no. */
void hp_serve_refuse_all(hugepin_lend *l);

/* Drop all idle buckets. */
void hp_serve_drop_idle(hugepin_lend *l);

#endif
