/*
 * The grid of messages that calibration measures: its cells, laid out, planned, and fitted to the model. measure_cpu.c
 * fills in their times without a device, measure_device.c with one.
 */
#ifndef HP_SGE_CELLS_H
#define HP_SGE_CELLS_H

#include <stdbool.h>

#include "sge/model.h"
#include "sge/wqe.h"

enum {
	HP_CELL_PIECES_MAX = HP_WQE_SGE_MAX,
	HP_CELL_PIECE_MAX = 1024, /* bytes */
	/* Between pieces, so that their offsets within a line differ, and the prefetcher is of no help. */
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
	bool scattered; /* each piece is in a registration of its own; else all are in one */
	struct hugepin_sg_plan plan;
	struct hp_sg_count count;
	float ns[HP_CELL_ROUNDS_MAX];
};

/* Write the iovecs of `pieces` pieces that begin `stride` bytes after each other. */
void hp_cell_lay(struct iovec *iov, unsigned pieces, unsigned bytes, char *at, size_t stride);

/* Add the cells of a mode to the *count that are there, for all numbers of pieces that `caps` allow. Their pieces will
 * be at `source`. 0, or the error of hugepin_sg_plan(). */
int hp_cells_add(struct hp_sg_cell *cells, unsigned *count, const struct hugepin_sg_caps *caps, char *source,
		 unsigned mode, bool scattered);

/* Fit the terms of *m to the lower quartile of each cell's rounds. Returns the error that is left (hp_sg_model_fit). */
double hp_cells_fit(struct hugepin_sg_model *m, unsigned terms, struct hp_sg_cell *cells, unsigned count,
		    unsigned rounds);

#endif
