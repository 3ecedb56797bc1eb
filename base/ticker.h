/*
 * The ticker: the bare thread (thread.h) that gives the heap's idle memory back. The thread exists while such memory
 * waits, and ends when none is left. A slow path of the heap starts it again, under any lock of lower rank, jemalloc's
 * included.
 */
#ifndef HP_BASE_TICKER_H
#define HP_BASE_TICKER_H

#include "base/thread.h"

/* Start the thread, after the end of one that is about to end. False: it is forbidden or cannot be had. */
bool hp_ticker_start(const struct hp_thread_kind *kind);

/* On the thread: sleep so long. False: it is to end. */
bool hp_ticker_sleep(uint64_t ns);

/* End the thread, if there is one, and let none be started until as many calls of allow. When forbid returns, what the
 * thread was at is done. No lock of the heap's or of higher rank is held. */
void hp_ticker_forbid(void);
void hp_ticker_allow(void);

bool hp_ticker_forbidden(void);

/* Its number, for the kernel; 0: there is none. */
uint32_t hp_ticker_tid(void);

/* In the child of fork: it is gone, and is forbidden once, or not. */
void hp_ticker_child(bool forbidden);

#endif
