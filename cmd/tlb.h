/*
 * Misses of the data TLB, counted by PAPI, whose presets name the right counter of each processor.
 */
#ifndef HP_CMD_TLB_H
#define HP_CMD_TLB_H

#include <stdint.h>

/* Begin to count, for this thread and all processes that it starts from now on. Where PAPI is not installed, or the
 * machine has no such counter, nothing is counted. */
void hp_tlb_begin(void);

/* The misses since hp_tlb_begin(), also those of processes that have ended and were waited for, or HP_NOT_COUNTED. */
uint64_t hp_tlb_end(void);

#endif
