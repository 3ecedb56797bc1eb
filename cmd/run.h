/*
 * `hugepin run`, and where its libraries are.
 */
#ifndef HP_CMD_RUN_H
#define HP_CMD_RUN_H

#include <limits.h>
#include <stdbool.h>

/* The sub-command. Returns the exit status. */
int hp_run_main(int argc, char **argv);

/* Print the options of `run`, from the table. */
void hp_run_print_options(void);

/* Find libhugepin-malloc.so. 0 and its path; or -1, and as a sentence the places where it was looked for. */
int hp_run_find_library(char path[PATH_MAX]);

/* The path of the file of this name in the directory of the library. Returns whether the file can be read. */
bool hp_run_beside(const char *library, const char *name, char ret_path[PATH_MAX]);

#endif
