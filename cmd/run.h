/*
 * `hugepin run`, and the places of its libraries.
 */
#ifndef HP_CMD_RUN_H
#define HP_CMD_RUN_H

#include <limits.h>
#include <stdbool.h>

/* The sub-command. Returns the exit status. */
int hp_run_main(int argc, char **argv);

/* Print the options of `run`, from the table. */
void hp_run_print_options(void);

/* Find libhugepin-malloc.so. 0 and its path; or -1, and in `path` a sentence with the places that were searched. */
int hp_run_find_library(char path[PATH_MAX]);

/* Make the path of a file with this name in the library's directory. Returns whether the file can be read. */
bool hp_run_beside(const char *library, const char *name, char ret_path[PATH_MAX]);

#endif
