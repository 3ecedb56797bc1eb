/*
 * hugepin plot: traces as Trace Event JSON (Duca, Sinclair: Trace Event Format, 2016), with the recorded times.
 * Perfetto and chrome://tracing open such files.
 */
#ifndef HP_CMD_PLOT_JSON_H
#define HP_CMD_PLOT_JSON_H

#include <stdio.h>

#include "cmd/plot_read.h"

/* Each file is a process, which has the file's name. Give the names first, then the events, then end. */
void hp_json_name(FILE *to, int file, const char *name);
void hp_json_event(void *to, int file, const struct hp_event *);
void hp_json_end(FILE *to);

#endif
