/*
 * `hugepin run`, and the places of its libraries.
 */
#ifndef HP_CMD_RUN_H
#define HP_CMD_RUN_H

#include <limits.h>
#include <stdbool.h>

#include "base/config.h"

struct option;

/* The sub-command. Returns the exit status. */

/* Print the options of `run`, from the table. */
void hp_run_print_options(void);

/* The name of an option of `run`: HUGEPIN_SOME_NAME -> some-name. Returns buf. */
#define HP_OPTION_NAME_MAX 64
char *hp_run_option_name(const struct hp_option *o, char buf[HP_OPTION_NAME_MAX]);

/* Further options of a sub-command that starts a program. */
struct hp_run_more {
	const char *letters;	    /* of getopt(3), with "+" in front */
	const struct option *longs; /* their `val` is below 256 */
	int count;
	int (*take)(int letter, const char *argument); /* not 0: refused, with a message on stderr */
	void (*given)(const struct hp_option *); /* an option of the table is on the command line; NULL: never mind */
};

/* Turn the options of the table into environment variables, and hand the others on. more: NULL if there are none.
 * Returns the index of PROGRAM in argv; 0 for --help; -1 if the command line is wrong, with a message on stderr. */
int hp_run_take_options(int argc, char **argv, const struct hp_run_more *more);

/* Put the library first into LD_PRELOAD, so that its malloc is found before that of another preloaded library. Behind
 * it put libhugepin.so, which it needs: the loader may not search the directory where we are installed. 0; or -1 with a
 * message on stderr, which begins with `title`: also if the allocator that HUGEPIN_SMALL names is not installed. */
int hp_run_preload(const char *title, const char *library);

/* Find the library of HP_SMALL_MIMALLOC or another one of base/smalls.h. The name that the loader knows; or NULL, and
 * in `why` a sentence. */
const char *hp_run_find_allocator(int small, char *why, size_t size);

/* Find libhugepin-malloc.so. 0 and its path; or -1, and in `path` a sentence with the places that were searched. */
int hp_run_find_library(char path[PATH_MAX]);

/* Make the path of a file with this name in the library's directory. Returns whether the file can be read. */
bool hp_run_beside(const char *library, const char *name, char ret_path[PATH_MAX]);

#endif
