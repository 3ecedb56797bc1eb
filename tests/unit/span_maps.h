/* The mappings of the heap's span, as the kernel tells of them. */
#ifndef TESTS_UNIT_SPAN_MAPS_H
#define TESTS_UNIT_SPAN_MAPS_H

#include <stdio.h>
#include <sys/mman.h>

#include "alloc/pages.h"

/* Call each() for every mapping that has a part of the span. prot: PROT_READ and PROT_WRITE. */
static inline void each_mapping_of_span(void (*each)(uintptr_t from, uintptr_t to, int prot))
{
	char line[300], rights[5];
	FILE *f = fopen("/proc/self/maps", "r");
	uintptr_t from, to;

	while (fgets(line, sizeof line, f))
		if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && to > hp_span.base && from < hp_span.base + hp_span.size)
			each(from, to, (rights[0] == 'r' ? PROT_READ : 0) | (rights[1] == 'w' ? PROT_WRITE : 0));
	fclose(f);
}

#endif
