/* See site.h. */
#include "site.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Of libhugepin-mpi.so, wherever that stands in LD_PRELOAD. */
#pragma weak hugepin_mpi_site
uintptr_t hugepin_mpi_site(void);

enum { DEPTH = 32 };

static bool asked;

/* Where the file is mapped that has this return address. Unlike dladdr(), this takes no lock of the loader's, which
 * another thread may have that waits for this one. */
static const void *file_of(const void *at)
{
	struct dl_find_object found;

	return _dl_find_object((char *)(uintptr_t)at - 1, &found) ? NULL : found.dlfo_map_start;
}

/* The first backtrace() loads the unwinder, with the loader's lock. */
__attribute__((constructor)) static void prepare(void)
{
	static const char *const words[] = { "cf11", "predict", "hybrid" };
	const char *text = secure_getenv("HUGEPIN_POLICY");
	void *frame;

	for (unsigned i = 0; text && i < sizeof words / sizeof *words; i++)
		asked |= !strcmp(text, words[i]);
	if (asked)
		backtrace(&frame, 1);
}

/* The stack's innermost frames are this library's, then those of the library that called it. */
static uintptr_t first_outside(void)
{
	void *frames[DEPTH];
	const int n = backtrace(frames, DEPTH);
	const void *self = NULL, *caller = NULL;

	for (int i = 0; i < n; i++) {
		const void *file = file_of(frames[i]);

		self = self ? self : file;
		caller = caller || file == self ? caller : file;
		if (file != self && file != caller)
			return (uintptr_t)frames[i];
	}
	return 0;
}

uintptr_t hp_site(void)
{
	uintptr_t site;

	if (!asked)
		return 0;
	site = hugepin_mpi_site ? hugepin_mpi_site() : 0;
	return site ? site : first_outside();
}
