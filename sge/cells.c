/*
 * The cells of calibration. Messages have from one piece to as many pieces as there are elements, of 8 to 1024 bytes
 * each. The lower quartile of a cell's times counts, since disturbances only make times longer.
 */
#include "sge/cells.h"

#include <stdlib.h>

static const unsigned piece_bytes[] = { 8, 64, 256, HP_CELL_PIECE_MAX };
enum { PIECE_SIZES = sizeof piece_bytes / sizeof *piece_bytes };

static int compare_ns(const void *a, const void *b)
{
	const float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

void hp_cell_lay(struct iovec *iov, unsigned pieces, unsigned bytes, char *at, size_t stride)
{
	for (unsigned i = 0; i < pieces; i++)
		iov[i] = (struct iovec){ at + i * stride, bytes };
}

int hp_cells_add(struct hp_sg_cell *cells, unsigned *count, const struct hugepin_sg_caps *caps, char *source,
		 unsigned mode, bool scattered)
{
	const unsigned most = caps->max_sge < HP_CELL_PIECES_MAX ? caps->max_sge : HP_CELL_PIECES_MAX;
	const unsigned pieces[] = { 1, 2, 4, 8, most };
	struct iovec iov[HP_CELL_PIECES_MAX];

	for (unsigned i = 0; i < sizeof pieces / sizeof *pieces; i++)
		for (unsigned j = 0; j < PIECE_SIZES; j++) {
			struct hp_sg_cell c = {
				.mode = mode, .n = pieces[i], .bytes = piece_bytes[j], .scattered = scattered
			};
			const uint64_t bytes = (uint64_t)c.n * c.bytes;

			if (c.n > most || (i == 4 && most <= 8) ||
			    (mode & HUGEPIN_SG_INLINE && bytes > caps->max_inline))
				continue;
			hp_cell_lay(iov, c.n, c.bytes, source, c.bytes + HP_CELL_STRIDE_MORE);
			const int err =
				hugepin_sg_plan(NULL, caps, iov, (int)c.n, mode & ~(unsigned)HUGEPIN_SG_COLD, &c.plan);
			if (err)
				return err;
			c.count = hp_sg_count(mode, c.n, bytes, scattered ? c.n : 1, hugepin_sg_lines(iov, (int)c.n));
			cells[(*count)++] = c;
		}
	return 0;
}

double hp_cells_fit(struct hugepin_sg_model *m, unsigned terms, const struct hp_sg_cell *cells, unsigned count,
		    unsigned rounds)
{
	struct hp_sg_sample samples[HP_CELLS_MAX];
	unsigned kept = 0;

	for (const struct hp_sg_cell *c = cells; c < cells + count; c++) {
		const float *all = terms & HP_SG_DEVICE_TERMS ? c->device_ns : c->ns;
		float ns[HP_CELL_ROUNDS_MAX];
		unsigned known = 0;

		for (unsigned i = 0; i < rounds; i++)
			if (all[i] > 0)
				ns[known++] = all[i];
		if (!known || known < rounds / 2)
			continue;
		qsort(ns, known, sizeof *ns, compare_ns);
		samples[kept++] = (struct hp_sg_sample){ c->count, (double)ns[known / 4] };
	}
	return hp_sg_model_fit(m, terms, samples, kept);
}
