/*
 * What `hugepin top` prints of a look at a process.
 */
#ifndef HP_CMD_SHOW_H
#define HP_CMD_SHOW_H

#include <stdint.h>
#include <stdio.h>

#include "cmd/look.h"
#include "cmd/process.h"

/* As text, with the `regions` largest of each domain. */
void hp_show_text(FILE *to, const struct hp_process *, const struct hp_look *, uint32_t regions);

/* As one line of JSON. 0 or -1. */
int hp_show_json(FILE *to, const struct hp_process *, const struct hp_look *, uint32_t regions);

#endif
