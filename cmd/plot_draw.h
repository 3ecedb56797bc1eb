/*
 * hugepin plot: the script for gnuplot(1).
 */
#ifndef HP_CMD_PLOT_DRAW_H
#define HP_CMD_PLOT_DRAW_H

#include <stdbool.h>
#include <stdio.h>

#include "cmd/plot_sum.h"

struct hp_plot_size {
	int width, height;
};

/* The size of the picture, in pixels. */
struct hp_plot_size hp_plot_size(const struct hp_picture *, const char *title);

/* Write the script. title may be NULL. */
void hp_plot_script(FILE *to, const struct hp_picture *, const char *title, bool svg);

#endif
