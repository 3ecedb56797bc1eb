/*
 * The news that the pin cache tells a lend (news.c).
 */
#ifndef HP_LEND_NEWS_H
#define HP_LEND_NEWS_H

#include "lend/state.h"

/* Begin and end to receive news. begin(): 0, -EBUSY, -EINVAL or -ENOMEM. end() waits until wake() is not running. */
int hp_news_begin(hugepin_lend *l);
void hp_news_end(hugepin_lend *l);

/* Have wake() called, if there is one. */
void hp_news_wake(hugepin_lend *l);

/* Have wake() called when the peer is late that a question waits for. If that is arranged already, costs one atomic
 * operation. Call without the lend's lock. */
void hp_news_late(hugepin_lend *l);

/* Take the news in and carry them out. */
void hp_news_take(hugepin_lend *l);

#endif
