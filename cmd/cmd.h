/*
 * The command `hugepin`: its sub-commands and what they share. It is an ordinary program: stdio and the process's own
 * malloc are fine here.
 */
#ifndef HP_CMD_CMD_H
#define HP_CMD_CMD_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"

/* Exit statuses. Those of `run` are what env(1), nohup(1) and shells use. */
enum {
	HP_EXIT_FAILED = 1,
	HP_EXIT_USAGE = 2,
	HP_EXIT_REFUSED = 125,
	HP_EXIT_CANNOT_EXEC = 126,
	HP_EXIT_NOT_FOUND = 127
};

/* Sub-commands: argv[0] is to be the name in getopt's messages. They return the exit status. */
int hp_run_main(int argc, char **argv);
int hp_info_main(int argc, char **argv);
int hp_plot_main(int argc, char **argv);
int hp_calibrate_main(int argc, char **argv);

/* Print the options of `run`, from the table. */
void hp_run_print_options(void);

/* Find libhugepin-malloc.so. 0 and its path, or -1 and where it was looked for, as a sentence. */
int hp_run_find_library(char path[PATH_MAX]);

/* Look at what execvp(name) would start, without starting it. 0 if a library can be preloaded into it, else the exit
 * status, with the reason in `why`. What cannot be read is left for exec to judge. */
int hp_target_check(const char *name, char *why, size_t size);

/* Print the ceilings that cgroups put on the memory and the hugepages of this process. */
void hp_cgroup_print(const long *page_sizes, int count);

/* Print what sending has been found to cost on this user's devices. */
void hp_models_print(void);

/* One line of `info`: a fact, or below it what to change. */
__attribute__((format(printf, 2, 3))) void hp_info_fact(const char *name, const char *format, ...);
__attribute__((format(printf, 1, 2))) void hp_info_advise(const char *format, ...);

/* The number that a small file begins with, or def. */
uint64_t hp_info_number(const char *path, uint64_t def);

#define HP_TEXT_MAX 32

/* "512 KiB", "2 MiB", "1.5 GiB". */
char *hp_text_bytes(uint64_t bytes, char buf[HP_TEXT_MAX]);

/* A value as the user would write it in HUGEPIN_...; in buf, but for a path. */
const char *hp_text_option(const struct hp_option *o, int64_t value, char buf[HP_TEXT_MAX]);

#endif
