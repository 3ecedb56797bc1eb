/*
 * HUGEPIN_TRACE: the events of all domains in a file, a line of CSV each, which `hugepin plot` draws.
 *
 *	t_ns,event,domain,policy,addr,len,pinned_bytes,regions
 *
 * t_ns is CLOCK_MONOTONIC; addr and len are those of the registration (of a miss: of what is to be registered);
 * pinned_bytes and regions are the domain's statistics after the event.
 */
#ifndef HP_REG_TRACE_H
#define HP_REG_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "hugepin.h"

enum hp_trace_event { HP_TRACE_PIN, HP_TRACE_UNPIN, HP_TRACE_REGISTER, HP_TRACE_DEREGISTER, HP_TRACE_MISS };

/* Changes only before a process has its first domain. */
extern bool hp_trace_on;

/* A domain is going to be opened, and no other is open or ever was; later calls do nothing. Begins the trace, if one is
 * wanted; if its file cannot be written, says so, and there is none. */
void hp_trace_start(void);

/* Something has happened to [start, end). Only if hp_trace_on. From any thread, under any lock but this module's own;
 * allocates nothing; may block in write(2). What cannot be written is counted, and the number told at exit. */
void hp_trace(enum hp_trace_event event, const hugepin_domain *d, uintptr_t start, uintptr_t end);

/* Write what is waiting in the buffer: a domain is being closed. */
void hp_trace_flush(void);

/* In the child of fork: its trace is its own, if the path has a %p; else it has none. */
void hp_trace_child(void);

#endif
