/*
 * The kernel's files about processes (proc(5)): their lines and fields, the list of mappings, the line of
 * /proc/PID/stat. Raw system calls. Nothing is allocated, and errno is kept.
 */
#ifndef HP_BASE_PROC_H
#define HP_BASE_PROC_H

#include "base/base.h"

/* Call each() for every line of a file, in order and without its line feed, until each() returns false. A line that
 * does not fit into the buffer comes as far as it fits, with cut set; its rest is left out. An end of the file without
 * a line feed is no line. by_position: of a descriptor that others may read from at the same time. 0 or -errno. */
int hp_lines_each(int fd, bool by_position, char *buffer, size_t size,
		  bool (*each)(void *arg, const char *line, bool cut), void *arg);

/* Field n of a line, 0 the first; between fields are blanks. A line that has fewer fields: its end. */
const char *hp_field(const char *line, unsigned n);

/* ------------------------------------------------------------------ mappings */

/* A line of /proc/PID/maps, with which an entry of smaps begins, too. */
struct hp_mapping {
	uintptr_t start, end;
	uint64_t offset; /* in its file */
	bool readable, writable, executable, shared;
	bool has_inode; /* a file backs it, if only one without a name */
	bool cut; /* nothing is known of what follows the rights: the line was too long */
	const char *name; /* in the line; may be anything */
};

/* *ret_ is left alone where the line is none of a mapping. */
bool hp_mapping_parse(const char *line, struct hp_mapping *ret_);

/* Call each() for every mapping of this process, in the order of addresses, until it returns false. fd:
 * /proc/self/maps, kept open (and read by_position); -1: it is opened. A line that is longer than the buffer is cut. 0
 * or -errno. */
int hp_mappings_each(int fd, char *buffer, size_t size, bool (*each)(void *arg, const struct hp_mapping *m), void *arg);

/* ------------------------------------------------------------------ processes */

/* A field of /proc/PID/stat by its number in proc(5), from 3 up; the process's name, field 2, may have anything in it.
 * NULL: the text is no such line. */
const char *hp_stat_field(const char *stat, unsigned number);

/* Threads of this process, by /proc/self/stat; 0 if that cannot be read. */
unsigned hp_thread_count(void);

#endif
