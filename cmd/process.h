/*
 * A process that is looked at from outside: its memory, its mappings, and whether it is still there.
 */
#ifndef HP_CMD_PROCESS_H
#define HP_CMD_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/proc.h"

struct hp_process {
	pid_t pid;
	int mem, ended; /* descriptors: of its memory, and one that is readable when it has ended */
	char command[64]; /* how it was started; printable ASCII */
	struct hp_mapping *mapping; /* in order of addresses; names are printable ASCII, "" if there is none */
	size_t mappings;
	char *text; /* the names' */
};

/* Open a process. It stays this one, even if its number is used again. 0; or the exit status, with the reason in
 * `why`. */
int hp_process_open(struct hp_process *ret_, pid_t pid, char *why, size_t size);
void hp_process_close(struct hp_process *);

/* Open its memory, anew after it has executed another program. As hp_process_open. */
int hp_process_reopen(struct hp_process *, char *why, size_t size);

/* The function of struct hp_source, for a struct hp_process. */
bool hp_process_read(void *process, uint64_t addr, void *buf, size_t len);

bool hp_process_has_ended(const struct hp_process *);

/* Read its mappings anew. False: they cannot be read, and there are none then. */
bool hp_process_map(struct hp_process *);

/* The mapping of addr, or NULL. */
const struct hp_mapping *hp_process_mapping(const struct hp_process *, uint64_t addr);

/* Find code of the program or of a library, by the lower half of its address: the file, and the address in the file as
 * addr2line(1) takes it. False: there is none, or in several places. */
bool hp_process_code(const struct hp_process *, uint32_t low, const char **ret_file, uint64_t *ret_address);

/* Bytes in transparent hugepages in the mappings that touch [start, end). False: the kernel does not say. */
bool hp_process_thp(const struct hp_process *, uint64_t start, uint64_t end, uint64_t *ret_bytes);

/* The statistics page of the library in the process; 0: there is none. With several, the first that is in use. */
uint64_t hp_process_find_page(const struct hp_process *);

#endif
