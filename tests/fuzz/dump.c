/* link: reg/backend/dump.c -lmnl */
/*
 * Fuzzes the messages of the kernel's RDMA netlink. The first byte says which dump it is; the rest is a datagram that
 * came.
 */
#include "reg/backend/dump.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct hp_dump_device device = { .name = "mlx5_0" };
	struct hp_dump_regions regions = { .thread = 1, .len = 4093 };
	struct hp_dump_counts counts = { .regions = &regions };
	char *bytes = size ? malloc(size) : NULL; /* aligned, and nothing lies behind it */
	int ret = 0;

	if (!bytes)
		return 0;
	size--;
	memcpy(bytes, data + 1, size);
	switch (*data % 3) {
	case 0:
		ret = hp_dump_read(bytes, size, 0, hp_dump_device, &device);
		break;
	case 1:
		ret = hp_dump_read(bytes, size, 0, hp_dump_regions, &regions);
		assert(regions.probes <= regions.count);
		hp_dump_keep_pd(&regions);
		break;
	case 2: /* one table serves as the list of regions, too */
		hp_dump_read(bytes, size, 0, hp_dump_regions, &regions);
		hp_dump_keep_pd(&regions);
		ret = hp_dump_read(bytes, size, 0, hp_dump_counts, &counts);
		assert(counts.counted < 8);
		break;
	}
	assert(ret <= 1);
	free(regions.of);
	free(bytes);
	return 0;
}
