/*
 * A process that is looked at from outside: its memory, its mappings, and whether it is still there.
 */
#ifndef HP_CMD_PROCESS_H
#define HP_CMD_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct hp_mapping {
	uint64_t start, end, offset;
	bool writable, executable, shared;
	const char *name; /* "" if it has none; printable ASCII */
};

struct hp_process {
	pid_t pid;
	int mem, ended; /* files: its memory, and one that can be read when it has ended */
	char command[64]; /* how it was started; printable ASCII */
	struct hp_mapping *mapping; /* in order of addresses */
	size_t mappings;
	char *text; /* the names' */
};

/* Take hold of a process: of this one, whatever the number comes to mean. 0; or the exit status, with the reason in `why`. */
int hp_process_open(struct hp_process *ret_, pid_t pid, char *why, size_t size);
void hp_process_close(struct hp_process *);

/* Take hold of its memory, again after it has executed another program. As hp_process_open. */
int hp_process_reopen(struct hp_process *, char *why, size_t size);

/* As struct hp_source has it, with a struct hp_process. */
bool hp_process_read(void *process, uint64_t addr, void *buf, size_t len);

bool hp_process_has_ended(const struct hp_process *);

/* Learn its mappings anew. False: they cannot be read; then there are none. */
bool hp_process_map(struct hp_process *);

/* The mapping of addr, or NULL. */
const struct hp_mapping *hp_process_mapping(const struct hp_process *, uint64_t addr);

/* Where the program's or a library's code lies, of which only the lower half of an address is known: the file, and the address in
 * it as addr2line(1) takes it. False: nowhere, or in several places. */
bool hp_process_code(const struct hp_process *, uint32_t low, const char **ret_file, uint64_t *ret_address);

/* Bytes in transparent hugepages in the mappings that touch [start, end). False: the kernel does not say. */
bool hp_process_thp(const struct hp_process *, uint64_t start, uint64_t end, uint64_t *ret_bytes);

/* The statistics page of the library in the process; 0: there is none. With several, the first that is in use. */
uint64_t hp_process_find_page(const struct hp_process *);

#endif
