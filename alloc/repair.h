/*
 * Repair: where memory was fragmented, the kernel may have given base pages although the heap asked for THP. Once there
 * is memory, MADV_COLLAPSE (Linux 6.1) makes hugepages of them, for which the kernel's own khugepaged takes hours. The
 * thread that ticks looks from time to time, and works for a small part of the time.
 *
 * A hugepage is collapsed once all of it is there; one that is still being filled is looked at again soon. Memory under
 * a registration is never collapsed, nor is memory that the program has advised.
 */
#ifndef HP_ALLOC_REPAIR_H
#define HP_ALLOC_REPAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The result of one look. */
struct hp_repair_look {
	uint32_t collapsed; /* hugepages that were made */
	uint32_t refused; /* hugepages that the kernel did not make */
	uint32_t partial; /* hugepages of which a part is there */
	uint64_t mapped, filled; /* bytes of the heap's THP, and bytes that are there */
	bool cut; /* the look has ended early; the next one goes on there */
};

/* When to look. Times are ticks. */
struct hp_repair_pause {
	uint32_t pause; /* the pause before the next look; 0: there was no look yet */
	uint32_t wait; /* ticks of the pause that are left */
	bool more; /* there should be ticks for the next look */
	uint64_t mapped, filled; /* at the last look */
};

/* The longest pause, after which nothing is asked for until something changes. */
#define HP_REPAIR_PAUSE_MAX 16

/* Whether to look at this tick. mapped: as above, now. Pure. */
bool hp_repair_is_due(struct hp_repair_pause *p, uint64_t mapped);

/* Note a look. Pure. */
void hp_repair_note(struct hp_repair_pause *p, const struct hp_repair_look *l);

/* One tick. Called on the thread that ticks, which is a bare one, without a lock. Returns whether there should be
 * another tick. */
bool hp_repair_tick(void);

/* In the child of fork: begin anew. */
void hp_repair_forget(void);

#endif
