/* A library with much thread-local memory, which the dynamic loader gets by malloc. For early.c. */
#include <stddef.h>

#define SIZE ((size_t)200 * 1024)

static _Thread_local char block[SIZE];
static _Thread_local char aligned_block[SIZE] __attribute__((aligned(4096)));

/* Whether this thread's blocks were zero; they are filled with `value` then. */
__attribute__((visibility("default"))) int bigtls_first_use(int value);
/* Whether they still have it. */
__attribute__((visibility("default"))) int bigtls_later_use(int value);

int bigtls_first_use(int value)
{
	int ok = (size_t)aligned_block % 4096 == 0;
	for (size_t i = 0; i < SIZE; i++) {
		ok = ok && !block[i] && !aligned_block[i];
		block[i] = aligned_block[i] = (char)value;
	}
	return ok;
}

int bigtls_later_use(int value)
{
	for (size_t i = 0; i < SIZE; i++)
		if (block[i] != (char)value || aligned_block[i] != (char)value)
			return 0;
	return 1;
}
