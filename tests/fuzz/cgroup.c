/* link: cmd/facts.c cmd/text.c base/base.c base/clock.c base/sys.c base/config.c base/text.c */
/*
 * Fuzzes what hugepin info makes of /proc/self/cgroup and mountinfo: a group's directory begins with the mount that it names, and
 * is a string that ends. Both files come from the input, with a zero byte between them.
 */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "cmd/text.h"

static const char *files[2];
static size_t lens[2];

static FILE *proc_open(const char *path)
{
	const int i = !strcmp(path, "/proc/self/mountinfo");
	FILE *f = tmpfile();

	assert(f && fwrite(files[i], 1, lens[i], f) == lens[i]);
	rewind(f);
	return f;
}

/* Of a file that the input names. */
static uint64_t number_of(const char *path, uint64_t def)
{
	return strlen(path) % 2 ? def : strlen(path);
}

#define fopen(path, mode) proc_open(path)
#define hp_read_number(path, def) number_of(path, def)
#include "cmd/cgroup.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const controllers[] = { "memory", "hugetlb" };
	static struct hierarchy h;
	const long page = 2 << 20;
	const uint8_t *end = size ? memchr(data, 0, size) : NULL;

	lens[0] = end ? (size_t)(end - data) : size;
	lens[1] = size - lens[0] - (end != NULL);
	files[0] = (const char *)data;
	files[1] = (const char *)data + size - lens[1];
	for (int i = 0; i < 2; i++)
		if (!find_hierarchy(controllers[i], &h)) {
			assert(strlen(h.group) < sizeof h.group && h.mount_len <= strlen(h.group));
			assert(!strchr(h.group, '\n'));
		}
	hp_facts_section("limits");
	hp_cgroup_facts(&page, 1);
	return 0;
}
