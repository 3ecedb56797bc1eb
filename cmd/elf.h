/*
 * What the file of a program says of its loader and of its memory. Pure: the bytes of a file in, findings out.
 */
#ifndef HP_CMD_ELF_H
#define HP_CMD_ELF_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum hp_allocator {
	HP_ALLOCATOR_NONE, /* as far as the file tells: without a table of symbols it may have one */
	HP_ALLOCATOR_INSIDE, /* its own calls go there, those of its libraries do not */
	HP_ALLOCATOR_EXPORTED, /* its malloc is found before that of any library */
};

struct hp_elf {
	bool elf; /* false: nothing else is known */
	bool wide, big_endian; /* 64 bits; the order of bytes */
	unsigned machine;
	/* What follows is known of files of this machine's kind alone. */
	char loader[PATH_MAX]; /* empty: statically linked */
	enum hp_allocator allocator;
	const char *allocates; /* the name of its function; NULL: there is none */
	bool go;
};

/* Read a file, all of which lies in memory. What lies beyond its end counts as missing. */
void hp_elf_read(const void *file, size_t len, struct hp_elf *ret_);

#endif
