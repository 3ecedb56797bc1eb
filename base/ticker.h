/*
 * The ticker: the bare thread (thread.h) that gives the heap's idle memory back. The thread exists while such memory
 * waits, and ends when none is left. A slow path of the heap starts it again, under any lock of lower rank, jemalloc's
 * included.
 */
#ifndef HP_BASE_TICKER_H
#define HP_BASE_TICKER_H

#include "base/thread.h"

/* Start the thread. If an old one is about to end, wait for its end first. False: starting is forbidden, or fails. */
bool hp_ticker_start(const struct hp_thread_kind *kind);

/* Called on the ticker: sleep for `ns`. False: the thread must end. */
bool hp_ticker_sleep(uint64_t ns);

/* forbid() ends the thread, if there is one, and forbids a new one until allow() was called as often as forbid(). When
 * forbid() returns, the thread has finished its work. Call with no lock of the heap's rank or a higher one held. */
void hp_ticker_forbid(void);
void hp_ticker_allow(void);

bool hp_ticker_forbidden(void);

/* The thread's number for the kernel; 0: there is no thread. */
uint32_t hp_ticker_tid(void);

/* Called in the child of fork, where the thread does not exist. forbidden: starting it is forbidden once. */
void hp_ticker_child(bool forbidden);

#endif
