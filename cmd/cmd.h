/*
 * The command `hugepin`: its sub-commands and what they share. It is an ordinary program: stdio and the process's own
 * malloc are fine here.
 */
#ifndef HP_CMD_CMD_H
#define HP_CMD_CMD_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"

/* Exit statuses. Those of `run` are what env(1), nohup(1) and shells use. */
enum {
	HP_EXIT_FAILED = 1,
	HP_EXIT_USAGE = 2,
	HP_EXIT_ADVICE = 3, /* of `info`: something could be better */
	HP_EXIT_NONE = 4, /* of `info`: there are no hugepages at all */
	HP_EXIT_REFUSED = 125,
	HP_EXIT_CANNOT_EXEC = 126,
	HP_EXIT_NOT_FOUND = 127
};

/* Sub-commands. They return the exit status. */
int hp_run_main(int argc, char **argv);
int hp_info_main(int argc, char **argv);
int hp_top_main(int argc, char **argv);
int hp_plot_main(int argc, char **argv);
int hp_calibrate_main(int argc, char **argv);

/* Print the line of usage of the sub-command with this argv[0]: wanted, on stdout; or else on stderr, because its command line is
 * wrong. Returns the exit status. */
int hp_usage(const char *title, bool wanted);

/* Print the options of `run`, from the table. */
void hp_run_print_options(void);

/* Find libhugepin-malloc.so. 0 and its path, or -1 and where it was looked for, as a sentence. */
int hp_run_find_library(char path[PATH_MAX]);

/* The file of this name in the directory of that one. Whether it can be read. */
bool hp_run_beside(const char *library, const char *name, char ret_path[PATH_MAX]);

/* Look at what execvp(name) would start, without starting it. 0 if a library can be preloaded into it, `why` then being empty or
 * what keeps that from helping; else the exit status, with the reason in `why`. What cannot be read is left for exec to judge. */
int hp_target_check(const char *name, char *why, size_t size);

/* ------------------------------------------------------------------ what `info` finds out */

/* Begin a section, which has a key in the JSON and a heading in the text. */
void hp_facts_section(const char *key, const char *heading);

/* The facts of this section with this key are elements of a list, of which there may be none. */
void hp_facts_list(const char *key);

/* A fact: for scripts the value, which is taken, under the key; for readers a line, under the name. */
__attribute__((format(printf, 4, 5))) void hp_facts_add(const char *key, json_t *value, const char *name, const char *format, ...);

/* The halves of a fact, where the text is a table. */
void hp_facts_value(const char *key, json_t *value);
__attribute__((format(printf, 1, 2))) void hp_facts_text(const char *format, ...);

/* What could be better about the last fact, and the command that makes it so; or there is none. */
__attribute__((format(printf, 2, 3))) void hp_facts_advise(const char *why, const char *format, ...);
void hp_facts_lack(const char *why);
size_t hp_facts_advice_count(void);

/* Values: any text, or NULL; a number of bytes, null for those that stand for no limit. */
json_t *hp_facts_string(const char *s);
json_t *hp_facts_bytes(uint64_t bytes);

/* Print one or the other, after the last fact. */
void hp_facts_print_text(void);
void hp_facts_print_json(int status);

/* The ceilings that cgroups put on the memory and the hugepages of this process: facts of the section that has begun. */
void hp_cgroup_facts(const long *page_sizes, int count);

/* What userfaultfd, io_uring and RDMA devices can do for the pin cache: sections. */
void hp_devices_facts(void);

/* What sending has been found to cost on this user's devices: a section. */
void hp_models_facts(void);

/* Whether a verbs device registers memory on demand: 1, 0, or -1 and in why the reason that it cannot be told. */
int hp_models_odp(const char *device, char *why, size_t size);

/* The number that a small file begins with, or def. */
uint64_t hp_read_number(const char *path, uint64_t def);

/* The first line of a small file, without its end; empty if there is none. */
char *hp_read_line(const char *path, char *line, size_t size);

#define HP_TEXT_MAX 32

/* "512 KiB", "2 MiB", "1.5 GiB". */
char *hp_text_bytes(uint64_t bytes, char buf[HP_TEXT_MAX]);

/* Text that others had a hand in may not steer the terminal: control characters but newlines become question marks. */
char *hp_text_tame(char *text);

/* A value as the user would write it in HUGEPIN_...; in buf, but for a path. */
const char *hp_text_option(const struct hp_option *o, int64_t value, char buf[HP_TEXT_MAX]);

#endif
