/*
 * hugepin plot: which traces belong together, and their sum. Pure.
 *
 * The files of the ranks of an MPI program are one run. Up to four lines have a panel each, or one panel if there are two
 * of different policies. Of more lines, those of one run and policy are drawn as their sum, and as the range from the
 * least to the most of them. Then each run has a panel for each of its policies.
 */
#ifndef HP_CMD_PLOT_SUM_H
#define HP_CMD_PLOT_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cmd/plot_read.h"

/* One process, or all ranks of an MPI program. */
struct hp_plot_run {
	char *name; /* of its file; for several ranks with * in place of the rank */
	int files;
	int domains; /* the most that a file has */
	uint64_t length_ns;
};

/* One line of the picture. A line of several members has their sum. Times are from the left edge of the picture. */
struct hp_curve {
	int run, members;
	const char *name; /* of the file, or of the run */
	const struct hp_series *first; /* its policy is that of all members */
	struct hp_value *value; /* the sum, where it changes */
	size_t values;
	uint64_t *miss_ns; /* in the order of time */
	size_t misses;
	uint64_t end_ns, mean_bytes, peak_bytes, member_peak_bytes;
	uint64_t *low, *high; /* the range of the members in each of HP_BAND columns; NULL: one member */
};

struct hp_picture {
	struct hp_plot_run *run;
	struct hp_curve *curve;
	int runs, curves;
	int panels; /* one for each curve, or one for all */
	uint64_t length_ns;
	int ranks; /* the most of any run; 0: no file is a rank's */
	int policies;
};

enum { HP_COLUMNS = 2400 /* twice the picture's pixels */, HP_BAND = 600, HP_LINES_MAX = 4, HP_PANELS_MAX = 96 };

/* Find the runs, the lines and their panels. */
void hp_plot_sum(struct hp_picture *, const struct hp_traces *);

/* The column of a time, of `columns` in a picture so long. */
int hp_plot_column(uint64_t t_ns, uint64_t length_ns, int columns);

/* A name for the picture of this one run: its file's name without rank and ending, then .png. To be freed. */
char *hp_plot_output(const struct hp_plot_run *);

#endif
