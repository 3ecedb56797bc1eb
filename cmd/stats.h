#ifndef HP_CMD_STATS_H
#define HP_CMD_STATS_H

#include <jansson.h>
#include <stdio.h>

/* The statistics in a file of HUGEPIN_STATS=file:FILE as an object, to which the caller gets a reference: "GROUP.NAME
 * VALUE" is the member NAME of the object GROUP. NULL: it is no such file. */
json_t *hp_stats_read(FILE *f);

int hp_stats_main(int argc, char **argv);

#endif
