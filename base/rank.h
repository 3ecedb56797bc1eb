/*
 * The job that this process belongs to, if a launcher of MPI has started it: the process's rank, and names of files
 * that contain the rank.
 */
#ifndef HP_BASE_RANK_H
#define HP_BASE_RANK_H

#include <stdbool.h>

#include "base/base.h"

/* The rank by the launcher's environment, or -1. Asks the environment anew at each call. */
int hp_rank(void);

/* Append `path` to the line, for the process `pid` of this rank, -1 for none: %p becomes the number of the process, and
 * %r the rank, or the number of a process without a rank. If the path has neither, and there is a rank, ".r" and the
 * rank go before the ending of the name: run.csv becomes run.r3.csv. Pure. */
void hp_rank_path(struct hp_line *l, const char *path, int pid, int rank);

/* Whether hp_rank_path() gives each process of a rank another name for this path. Pure. */
bool hp_rank_path_has_pid(const char *path, int rank);

/* The number of ranks on this machine, or 0: the launcher does not tell. */
int hp_ranks_here(void);

#endif
