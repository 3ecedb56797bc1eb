/* Random reads and writes of static memory: 256 MiB of bss, and 64 MiB of initialised data. */
#include <stdint.h>
#include <stdio.h>

enum { WORDS = 1 << 25, DATA = 1 << 23 };
static uint64_t bss[WORDS];
static uint64_t data[DATA] = { 1 };

int main(void)
{
	uint64_t at = 1, sum = 0;

	for (int i = 0; i < 20000000; i++) {
		at = at * 6364136223846793005u + 1442695040888963407u;
		bss[at >> 39] += (uint64_t)i;
		/* data is written to: else it would be no data, but constants */
		sum += data[at >> 41]++ + bss[(at ^ sum) >> 20 & (WORDS - 1)];
	}
	printf("%lx\n", (unsigned long)sum);
	return 0;
}
