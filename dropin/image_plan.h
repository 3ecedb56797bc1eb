/*
 * Which parts of a program's image can lie in hugepages (Rex, Mietke, Rehm 2006, section 5: arrays of the NAS
 * benchmarks are static). Pure: program headers in, ranges out.
 */
#ifndef HP_DROPIN_IMAGE_PLAN_H
#define HP_DROPIN_IMAGE_PLAN_H

#include <link.h>
#include <stddef.h>
#include <stdint.h>

enum hp_image_kind {
	HP_IMAGE_BSS, /* anonymous memory, zero at the start */
	HP_IMAGE_DATA, /* a private, writable mapping of the file, to be copied */
	HP_IMAGE_TEXT, /* code, to be copied */
};

/* Whole hugepages of one object. */
struct hp_image_range {
	uintptr_t start, end;
	enum hp_image_kind kind;
};

/* Tell each range of one object, which is loaded at `base`. want: HUGEPIN_IMAGE's value, of which each asks for what
 * the one before asks for, and more. A range has at least `least` bytes. What the loader makes read-only after
 * relocation (PT_GNU_RELRO) is left out. */
void hp_image_plan(uintptr_t base, const ElfW(Phdr) *headers, size_t count, size_t page, int want, size_t least,
		   void (*each)(void *arg, const struct hp_image_range *r), void *arg);

#endif
