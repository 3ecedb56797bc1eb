/*
 * Environments of programs, and what stands in GLIBC_TUNABLES. Pure, but for memory.
 */
#ifndef HP_CMD_ENVIRONMENT_H
#define HP_CMD_ENVIRONMENT_H

#include <stdint.h>

/* The number that glibc reads for a tunable: the last one counts. tunables: as in GLIBC_TUNABLES; NULL: none. 0 if the
 * tunable is not there, or has no number. */
uint64_t hp_tunable(const char *tunables, const char *name);

/* The tunables, and behind them one more. NULL: there is no memory. */
char *hp_tunables_with(const char *tunables, const char *name, uint64_t value);

/* A copy of an environment in which a variable is set as "NAME=VALUE" says; NULL: none. NULL: there is no memory. */
char **hp_environment_with(char *const *environment, const char *variable);

#endif
