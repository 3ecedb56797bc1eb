/*
 * A process seen from outside: its memory, its mappings, and whether it still exists.
 */
#ifndef HP_CMD_PROCESS_H
#define HP_CMD_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/proc.h"

struct hp_process {
	pid_t pid;
	int mem, ended; /* descriptors: mem: of its memory; ended: readable when the process has ended */
	char command[64]; /* the process's name in printable ASCII */
	struct hp_mapping *mapping; /* in order of addresses; names are printable ASCII, "" if there is none */
	size_t mappings;
	char *text; /* memory of the names */
};

/* Open a process. *ret_ stays bound to this process, even if its number is used again. 0; or the exit status, with the
 * reason in `why`. */
int hp_process_open(struct hp_process *ret_, pid_t pid, char *why, size_t size);
void hp_process_close(struct hp_process *);

/* Open the process's memory again, after it has executed another program. Returns as hp_process_open(). */
int hp_process_reopen(struct hp_process *, char *why, size_t size);

/* The function of struct hp_source, for a struct hp_process. */
bool hp_process_read(void *process, uint64_t addr, void *buf, size_t len);

bool hp_process_has_ended(const struct hp_process *);

/* Read the mappings again. False: they cannot be read, and the list is empty. */
bool hp_process_map(struct hp_process *);

/* The mapping of addr, or NULL. */
const struct hp_mapping *hp_process_mapping(const struct hp_process *, uint64_t addr);

/* Find code of the program or of a library. Returns the file, and the address in the file for addr2line(1). False: no
 * file has code there. */
bool hp_process_code(const struct hp_process *, uint64_t at, const char **ret_file, uint64_t *ret_address);

/* The bytes in transparent hugepages, in the mappings that touch [start, end). False: the kernel does not tell. */
bool hp_process_thp(const struct hp_process *, uint64_t start, uint64_t end, uint64_t *ret_bytes);

/* The address of the library's statistics page in the process; 0: there is none. If there are several, the first that
 * is in use. */
uint64_t hp_process_find_page(const struct hp_process *);

#endif
