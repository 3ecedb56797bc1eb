/* For bench/alloc.c: where first fit would have put the buffers that are alive. */
#ifndef BENCH_TEXTBOOK_H
#define BENCH_TEXTBOOK_H

#include <stddef.h>
#include <string.h>

#define LIVE 1000 /* buffers alive at a time in the workloads with random sizes */

/* Textbook first fit with immediate coalescing, simulated: live buffers by address, each in the lowest gap that fits. */
static struct {
	struct {
		size_t start, end, of; /* of: the number of the live buffer */
	} at[LIVE];
	size_t count, end_most;
} textbook;

static void textbook_replace(size_t of, size_t size)
{
	size_t i = 0, start = 0;

	size = (size + 15) & ~(size_t)15;
	for (; i < textbook.count && textbook.at[i].of != of; i++)
		;
	if (i < textbook.count)
		memmove(&textbook.at[i], &textbook.at[i + 1], (--textbook.count - i) * sizeof textbook.at[0]);
	for (i = 0; i < textbook.count && textbook.at[i].start - start < size; i++)
		start = textbook.at[i].end;
	memmove(&textbook.at[i + 1], &textbook.at[i], (textbook.count++ - i) * sizeof textbook.at[0]);
	textbook.at[i].start = start;
	textbook.at[i].end = start + size;
	textbook.at[i].of = of;
	if (start + size > textbook.end_most)
		textbook.end_most = start + size;
}

#endif
