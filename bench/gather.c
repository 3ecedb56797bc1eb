/*
 * A program for `make demo` that reads a large array at random places, as numpy does for table[index]: gather MIB ROUNDS.
 * In each round five million indices are computed from the values that the round before read, and the table is read there, into
 * a new vector; the old vector is freed. The reads of one round do not depend on each other. All memory is malloc's; nothing
 * here asks for hugepages. Prints a digest, which is the same whatever the malloc.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define INDICES 5000000u

static uint64_t *vector(size_t n)
{
	uint64_t *v = malloc(n * sizeof *v);

	if (!v) {
		fprintf(stderr, "gather: no memory for %zu bytes\n", n * sizeof *v);
		exit(1);
	}
	return v;
}

int main(int argc, char **argv)
{
	const unsigned long mib = argc == 3 ? strtoul(argv[1], NULL, 10) : 0;
	const unsigned long rounds = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;

	if (mib == 0 || mib > 1ul << 20 || rounds == 0) {
		fprintf(stderr, "usage: gather MIB ROUNDS\n");
		return 2;
	}
	const size_t n = mib << 17;
	uint64_t *table = vector(n), *values = vector(INDICES);
	uint64_t digest = 0;

	for (size_t i = 0; i < n; i++)
		table[i] = i * 0x9e3779b97f4a7c15;
	for (size_t i = 0; i < INDICES; i++)
		values[i] = i;
	for (unsigned long round = 0; round < rounds; round++) {
		uint64_t *next = vector(INDICES);

		for (size_t i = 0; i < INDICES; i++) {
			const uint64_t x = values[i] * 6364136223846793005 + 1442695040888963407 + round;

			next[i] = table[(x >> 20) % n];
		}
		free(values);
		values = next;
	}
	for (size_t i = 0; i < INDICES; i++)
		digest = digest * 31 + values[i];
	printf("%016llx\n", (unsigned long long)digest);
	free(values);
	free(table);
	return 0;
}
