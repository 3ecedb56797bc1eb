/*
 * Draws a look at a process on a terminal, for `hugepin top`.
 */
#ifndef HP_CMD_SCREEN_H
#define HP_CMD_SCREEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cmd/look.h"
#include "cmd/process.h"

struct hp_screen {
	int rows, columns;
	bool utf8, colour;
};

/* Draw the look in place of what is there: shares as bars, then hp_show_details() with the `regions` largest regions of
 * each domain, or as many as fit. The last row and the last column stay empty. */
void hp_screen_draw(FILE *to, const struct hp_screen *, const struct hp_process *, const struct hp_look *,
		    uint32_t regions);

#endif
