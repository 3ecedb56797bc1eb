#ifndef HP_CMD_STATS_H
#define HP_CMD_STATS_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

/* The statistics in a file of HUGEPIN_STATS=file:FILE as an object, to which the caller gets a reference: "GROUP.NAME
 * VALUE" is the member NAME of the object GROUP. NULL: it is no such file. */
json_t *hp_stats_read(FILE *f);

/* Make JSON values: of any text, or NULL; of a number of bytes, which becomes null if it means "no limit". */
json_t *hp_json_string(const char *s);
json_t *hp_json_bytes(uint64_t bytes);

#endif
