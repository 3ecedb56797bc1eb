/*
 * Checks the program that `hugepin run` is going to start.
 */
#ifndef HP_CMD_TARGET_H
#define HP_CMD_TARGET_H

#include <stddef.h>

/* Check the file that execvp(name) would start, without starting it. 0: a library can be preloaded into it. `why` is
 * then empty, or has a reason why preloading will not help. Otherwise the exit status, with the reason in `why`. A file
 * that cannot be read passes, and exec decides. */
int hp_target_check(const char *name, char *why, size_t size);

#endif
