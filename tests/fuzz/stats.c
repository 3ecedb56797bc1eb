/* link: cmd/usage.c -ljansson */
/*
 * Fuzzes what hugepin stats and hugepin check make of a file of HUGEPIN_STATS=file:FILE: an object of numbers, texts, nulls and
 * objects of these, or nothing.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "cmd/stats.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_members(json_t *object, int depth)
{
	const char *name;
	json_t *value;

	json_object_foreach(object, name, value) {
		assert(json_is_string(value) || json_is_integer(value) || json_is_null(value) || (json_is_object(value) && !depth));
		if (json_is_object(value))
			check_members(value, depth + 1);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FILE *const f = size ? fmemopen((void *)data, size, "r") : NULL;
	json_t *const all = f ? hp_stats_read(f) : NULL;

	if (all)
		check_members(all, 0);
	json_decref(all);
	if (f)
		fclose(f);
	return 0;
}
