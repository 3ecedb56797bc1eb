/*
 * Files of measured results of a device, in the cache directory of the user: their place, reading, writing, and the
 * lines of their text. Does not call libibverbs, so that the command can show them.
 */
#ifndef HP_REG_BACKEND_RESULTS_H
#define HP_REG_BACKEND_RESULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HP_RESULTS_PATH_MAX 4096
#define HP_RESULTS_NS_MAX 1000000000u /* a second */

/* The place of a measurement. Long names are cut. */
struct hp_testbed {
	char device[64], firmware[64], cpu[64];
};
bool hp_testbed_is(const struct hp_testbed *a, const struct hp_testbed *b);

/* The CPU's name, or the architecture's. */
void hp_results_cpu(char *name, size_t size);

/* ------------------------------------------------------------------ text */

/* Print the line of a time, limited to the range of a file, 0 to HP_RESULTS_NS_MAX. Returns as snprintf(). */
int hp_results_print(char *text, size_t size, const char *name, double ns);

/* Step over the line "name VALUE". Returns VALUE, which extends to the end of the line. NULL: this is another line. */
const char *hp_results_line(const char **at, const char *name, size_t *ret_len);

/* Read digits up to the value `max`, and step over them. False: no digits, or a larger value. */
bool hp_results_digits(const char **at, uint64_t max, uint64_t *ret_);

/* Step over the line of a time, and over the three lines of a testbed. False: these are other lines. */
bool hp_results_number(const char **at, const char *name, float *ret_);
bool hp_results_testbed(const char **at, struct hp_testbed *ret_);

/* ------------------------------------------------------------------ files */

/* The directory: $XDG_CACHE_HOME/hugepin or ~/.cache/hugepin. 0; -ENOENT: neither variable is set; -ENAMETOOLONG. */
int hp_results_dir(char path[HP_RESULTS_PATH_MAX]);

/* The path of a testbed's file in that directory. Its name begins with `kind`. Returns as hp_results_dir(). */
int hp_results_path(const char *kind, const struct hp_testbed *testbed, char path[HP_RESULTS_PATH_MAX]);

/* Read a file, as much of it as fits. 0; -EILSEQ: it has a byte 0; or the error of open() or read(). */
int hp_results_load(const char *path, char *text, size_t size);

/* Write the file, and make missing directories. Readers see the whole file or none. 0 or -errno. */
int hp_results_store(const char *path, const char *text);

#endif
