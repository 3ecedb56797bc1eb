/*
 * The allocators beside jemalloc that may serve the small requests of libhugepin-malloc.so, by the values of
 * HUGEPIN_SMALL: their files, the newest version first, and Debian's packages.
 */
#ifndef HP_BASE_SMALLS_H
#define HP_BASE_SMALLS_H

#include "base/config.h"

static const struct hp_small_library {
	const char *name;
	const char *files[3]; /* names for dlopen(3); NULL ends them */
	const char *package;
} hp_small_libraries[] = {
	[HP_SMALL_MIMALLOC] = { "mimalloc", { "libmimalloc.so.3", "libmimalloc.so.2" }, "libmimalloc3 or libmimalloc2.0" },
	[HP_SMALL_TCMALLOC] = { "tcmalloc", { "libtcmalloc_minimal.so.4" }, "libtcmalloc-minimal4" },
};

#endif
