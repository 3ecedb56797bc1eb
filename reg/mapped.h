/*
 * The mappings of this process, as the kernel lists them. Raw system calls; any thread may call, and errno is kept.
 */
#ifndef HP_REG_MAPPED_H
#define HP_REG_MAPPED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Open what the functions below read. Call on a thread of the program, since the service thread may open no file. */
void hp_mapped_open(void);

struct hp_mapped {
	uintptr_t start, end;
	bool is_private; /* private, and no file backs it */
};

/* The mapping that covers addr. False: there is none, or the kernel does not tell. */
bool hp_mapped_at(uintptr_t addr, struct hp_mapped *ret_);

/* The same in one system call, whatever the number of mappings. 0; -ENOENT: there is none; -ENOSYS: the kernel has no
 * PROCMAP_QUERY, or it failed. */
int hp_mapped_query(uintptr_t addr, struct hp_mapped *ret_);

/* How many mappings this process may still have. 0: none, or the kernel does not tell. Takes long if there are many. */
size_t hp_mapped_left(void);

/* Called in the child of fork, where the list would be the parent's. */
void hp_mapped_child(void);

#endif
