/*
 * A library that allocates before the heap's own constructors have run and after its destructors have: preloaded behind
 * it, this one is initialised first and finalised last. For early.c.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *small, *large, *vector;

__attribute__((visibility("default"))) int around_intact(void);

static int intact(const char *p, int value, size_t size)
{
	return p && p[0] == value && !memcmp(p, p + 1, size - 1);
}

__attribute__((constructor)) static void before(void)
{
	small = malloc(100);
	large = malloc(3000000);
	vector = realloc(realloc(calloc(1, 50000), 70000), 5000000);
	if (!small || !large || !vector)
		_exit(81);
	memset(small, 1, 100);
	memset(large, 2, 3000000);
	memset(vector, 3, 5000000);
	free(malloc(40));
	free(malloc(400000));
}

int around_intact(void)
{
	return intact(small, 1, 100) && intact(large, 2, 3000000) && intact(vector, 3, 5000000);
}

__attribute__((destructor)) static void after(void)
{
	if (!around_intact())
		_exit(82);
	free(small);
	free(large);
	vector = realloc(vector, 200000);
	if (!intact(vector, 3, 200000))
		_exit(83);
	free(vector);
	for (size_t n = 1; n < 100000000; n = n * 3 + 1) {
		char *p = calloc(1, n);
		if (!p || p[n - 1])
			_exit(84);
		p[n - 1] = 1;
		free(p);
	}
}
