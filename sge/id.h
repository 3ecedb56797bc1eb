/*
 * The numbers that distinguish queues, and processes.
 */
#ifndef HP_SGE_ID_H
#define HP_SGE_ID_H

#include <stdint.h>

/* The number of forks that led to this process. A queue belongs to the process that opened it. */
extern __attribute__((visibility("hidden"))) unsigned hp_sgq_generation; /* read without the table of addresses */

/* A new value for the part of each wr_id that distinguishes queues. */
uint64_t hp_sgq_new_id(void);

/* Have hp_sgq_generation count forks from now on. */
void hp_sgq_watch_forks(void);

#endif
