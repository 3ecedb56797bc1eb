/*
 * HUGEPIN_TRACE: writes the events of all domains to a CSV file, one line each. `hugepin plot` draws the file.
 *
 *	t_ns,event,domain,policy,addr,len,pinned_bytes,regions
 *
 * t_ns is CLOCK_MONOTONIC. addr and len are those of the registration; for a miss, those of the range that is going to
 * be registered. pinned_bytes and regions are the domain's statistics after the event. In a process with a rank of MPI
 * (base/rank.h) the second line is "# rank=3 pid=1234 host=node7".
 */
#ifndef HP_REG_TRACE_H
#define HP_REG_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "hugepin.h"

enum hp_trace_event { HP_TRACE_PIN, HP_TRACE_UNPIN, HP_TRACE_REGISTER, HP_TRACE_DEREGISTER, HP_TRACE_MISS };

/* Changes only before a process has its first domain. */
extern bool hp_trace_on;

/* Begin the trace, if one is wanted. Called when a process opens its first domain; later calls do nothing. If the file
 * cannot be written, this says so on stderr, and there is no trace. */
void hp_trace_start(void);

/* Write down an event of [start, end). Call only if hp_trace_on; any thread may, under any lock except this module's.
 * Allocates nothing, but may block in write(2). Events that cannot be written are counted, and the number is reported
 * at exit. */
void hp_trace(enum hp_trace_event event, const hugepin_domain *d, uintptr_t start, uintptr_t end);

/* Write the lines that wait in the buffer, since a domain is being closed. */
void hp_trace_flush(void);

/* Called in the child of fork. The child has a trace of its own only if the file's name contains the process number. */
void hp_trace_child(void);

#endif
