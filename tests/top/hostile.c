/*
 * A process that does not want to be looked at: it says of itself what `hugepin top` reads, and has no library. Says its number,
 * and waits until its input ends.
 * "stride": its tables have entries of no bytes, and its list of threads goes round. "round": the same with entries of one byte.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/stats.h"

struct hp_exposed exposed = { .page = { .magic = HUGEPIN_STATS_MAGIC } }; /* in the data of the program; for all to see */
static uint64_t domain[64], regions, first;
static uint8_t open_[64];
static uint32_t domains = 64, used = UINT32_MAX;

int main(int argc, char **argv)
{
	struct hp_view v = { .magic = HP_VIEW_MAGIC, .version = HP_VIEW_VERSION, .size = sizeof v };
	uint64_t *table = mmap(NULL, (size_t)1 << 28, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char c;

	if (table == MAP_FAILED)
		return 1;
	table[0] = regions = first = (uintptr_t)table;
	v.domain.domains = (uintptr_t)domain;
	v.domain.open = (uintptr_t)open_;
	v.domain.used = (uintptr_t)&domains;
	v.region.regions = (uintptr_t)&regions;
	v.region.used = (uintptr_t)&used;
	v.counts.first = (uintptr_t)&first;
	v.region.stride = v.counts.stride = argc < 2 || strcmp(argv[1], "stride") != 0;
	exposed.view = v;
	printf("pid %d\n", (int)getpid());
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	return 0;
}
