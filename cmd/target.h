/*
 * Checks the program that `hugepin run` and `hugepin check` are going to start.
 */
#ifndef HP_CMD_TARGET_H
#define HP_CMD_TARGET_H

#include <limits.h>
#include <stdbool.h>

#include "cmd/elf.h"

struct hp_target {
	int status; /* 0: the library can be preloaded; else the exit status */
	bool in_vain; /* it can be, but nothing of the program's memory would come to it */
	char why[2 * PATH_MAX]; /* what stands in the way, and what to do about it; "": nothing */
};

/* Check the file that execvp(name) would start, without starting it; of a script, the interpreter. A file that cannot
 * be read passes, and exec decides. */
struct hp_target hp_target_check(const char *name);

/* The rules. self: the file of this command, which is built for the same machine as the library; gains: how starting
 * the program raises privileges, or NULL. Pure. */
struct hp_target hp_target_judge(const char *path, const struct hp_elf *program, const struct hp_elf *self,
				 const char *gains);

#endif
