/*
 * The kernel's files about processes (proc(5)): their lines and fields, the list of mappings, the line of
 * /proc/PID/stat. Raw system calls. Nothing is allocated, and errno is kept.
 */
#ifndef HP_BASE_PROC_H
#define HP_BASE_PROC_H

#include "base/base.h"

/* Call each() for every line of a file, in order and without its line feed, until each() returns false. A line that
 * does not fit into the buffer is cut: each() gets its beginning with `cut` set, and the rest is dropped. Text behind
 * the last line feed is dropped, too. by_position: other threads may read from the descriptor at the same time. 0 or
 * -errno. */
int hp_lines_each(int fd, bool by_position, char *buffer, size_t size,
		  bool (*each)(void *arg, const char *line, bool cut), void *arg);

/* Field n of a line, from 0 up, separated by blanks; the end of the line if it has fewer fields. */
const char *hp_field(const char *line, unsigned n);

/* ------------------------------------------------------------------ mappings */

/* A line of /proc/PID/maps. Entries of smaps begin with the same line. */
struct hp_mapping {
	uintptr_t start, end;
	uint64_t offset; /* offset in the mapped file */
	bool readable, writable, executable, shared;
	bool has_inode; /* a file backs it, perhaps one without a name */
	bool cut; /* the line was too long, so the members behind the rights are not reliable */
	const char *name; /* points into the line; may be any text */
};

/* Parse a line of /proc/PID/maps. False: the line is not of a mapping, and *ret_ is not changed. */
bool hp_mapping_parse(const char *line, struct hp_mapping *ret_);

/* Call each() for every mapping of this process, in the order of addresses, until each() returns false. fd: an open
 * descriptor of /proc/self/maps, which is read by_position; -1: open the file. A line that is longer than the buffer is
 * cut. 0 or -errno. */
int hp_mappings_each(int fd, char *buffer, size_t size, bool (*each)(void *arg, const struct hp_mapping *m), void *arg);

/* vm.max_map_count, the number of mappings that a process may have. */
size_t hp_mappings_max(void);

/* ------------------------------------------------------------------ processes */

/* A field of /proc/PID/stat by its number in proc(5), from 3 up, since field 2, the process's name, may contain blanks
 * and parentheses. NULL: the text is not such a line. */
const char *hp_stat_field(const char *stat, unsigned number);

/* The number of threads of this process, from /proc/self/stat. 0: the file cannot be read. */
unsigned hp_thread_count(void);

#endif
