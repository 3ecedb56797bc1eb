/*
 * The program that `hugepin run` is to start.
 */
#ifndef HP_CMD_TARGET_H
#define HP_CMD_TARGET_H

#include <stddef.h>

/* Look at the file that execvp(name) would start, without starting it. 0 if a library can be preloaded into it; `why`
 * is then empty, or has what keeps that from helping. Else the exit status, with the reason in `why`. A file that
 * cannot be read is left for exec to judge. */
int hp_target_check(const char *name, char *why, size_t size);

#endif
