/*
 * Repair: the kernel may have given base pages where the heap asked for THP, since memory was fragmented. Once there is
 * memory, MADV_COLLAPSE (Linux 6.1) makes hugepages of them; the kernel's own khugepaged takes hours. The thread that
 * ticks looks now and then, and works for a small part of the time.
 *
 * A hugepage is collapsed once all of it is there. What is still being filled is left, and looked at again soon. Memory
 * that a registration stands on is never collapsed, and memory that the program has advised is not, either.
 */
#ifndef HP_ALLOC_REPAIR_H
#define HP_ALLOC_REPAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What one look has found. */
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
	uint32_t wait; /* so much of it is left */
	bool more; /* there should be ticks for the next look */
	uint64_t mapped, filled; /* at the last look */
};

/* The longest pause. After it nothing is asked for until something changes. */
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
