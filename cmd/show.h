/*
 * Prints a look at a process, for `hugepin top`.
 */
#ifndef HP_CMD_SHOW_H
#define HP_CMD_SHOW_H

#include <stdint.h>
#include <stdio.h>

#include "cmd/look.h"
#include "cmd/process.h"

/* Print the look as text, with the `regions` largest regions of each domain. */
void hp_show_text(FILE *to, const struct hp_process *, const struct hp_look *, uint32_t regions);

/* The word for a policy. */
const char *hp_show_policy(uint32_t policy);

/* Print the look as one line of JSON. 0 or -1. */
int hp_show_json(FILE *to, const struct hp_process *, const struct hp_look *, uint32_t regions);

#endif
