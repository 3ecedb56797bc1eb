/*
 * The grid of messages that calibration measures. This file lays out its cells, plans them, and fits the model to
 * their times. measure_cpu.c measures the times without a device, measure_device.c with one.
 */
#ifndef HP_SGE_CELLS_H
#define HP_SGE_CELLS_H

#include <stdbool.h>

#include "sge/model.h"
#include "sge/wqe.h"

enum {
	HP_CELL_PIECES_MAX = HP_WQE_SGE_MAX,
	HP_CELL_PIECE_MAX = 1024, /* bytes */
	/* Bytes between pieces. The pieces' offsets within a cache line then differ, and the prefetcher does not
	 * help. */
	HP_CELL_STRIDE_MORE = 168,
	/* Bytes that the pieces of a message span. */
	HP_CELL_LAYOUT_MAX = HP_CELL_PIECES_MAX * (HP_CELL_PIECE_MAX + HP_CELL_STRIDE_MORE),
	HP_CELLS_MAX = 128,
	HP_CELL_ROUNDS_MAX = 32,
};
#define HP_CELL_SLOT_BYTES ((size_t)HP_CELL_PIECES_MAX * HP_CELL_PIECE_MAX)

/* The bit of a term, for hp_cells_fit(). */
#define HP_CELL_BIT(term) (1u << HP_SG_##term)

/* One kind of message. */
struct hp_sg_cell {
	unsigned mode, n, bytes; /* n pieces of `bytes` bytes each */
	bool scattered; /* each piece is in a registration of its own; otherwise one registration has all */
	struct hugepin_sg_plan plan;
	struct hp_sg_count count;
	float ns[HP_CELL_ROUNDS_MAX]; /* of the CPU */
	float device_ns[HP_CELL_ROUNDS_MAX]; /* of the device; 0: unknown, because the CPU took longer */
};

/* Write the iovecs of `pieces` pieces that begin `stride` bytes after each other. */
void hp_cell_lay(struct iovec *iov, unsigned pieces, unsigned bytes, char *at, size_t stride);

/* Append the cells of a mode to the *count cells that are in the array, for all numbers of pieces that `caps` allow.
 * Their pieces begin at `source`. Returns 0, or the error of hugepin_sg_plan(). */
int hp_cells_add(struct hp_sg_cell *cells, unsigned *count, const struct hugepin_sg_caps *caps, char *source,
		 unsigned mode, bool scattered);

/* Fit the terms of *m, the CPU's or the device's, to the lower quartile of each cell's times of it. A cell counts if at
 * least half of them are known. Returns the remaining error (hp_sg_model_fit()). */
double hp_cells_fit(struct hugepin_sg_model *m, unsigned terms, const struct hp_sg_cell *cells, unsigned count,
		    unsigned rounds);

#endif
