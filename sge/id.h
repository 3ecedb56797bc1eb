/*
 * What tells queues apart, and processes.
 */
#ifndef HP_SGE_ID_H
#define HP_SGE_ID_H

#include <stdint.h>

/* Forks on the way to this process. A queue belongs to the process that opened it. */
extern __attribute__((visibility("hidden"))) unsigned hp_sgq_generation; /* read without the table of addresses */

/* A new value for the part of each wr_id that tells queues apart. */
uint64_t hp_sgq_new_id(void);

/* Have hp_sgq_generation count forks from now on. */
void hp_sgq_watch_forks(void);

#endif
