/* Changes that the loader makes: libraries that come and go. */
#ifndef TESTS_SOAK_CHANGE_LOADER_H
#define TESTS_SOAK_CHANGE_LOADER_H

#include <dlfcn.h>

#include "slots.h"

static bool open_and_close_library(struct worker *unused)
{
	void *lib = dlopen("libresolv.so.2", RTLD_NOW | RTLD_LOCAL);

	(void)unused;
	return lib && EXPECT_EQ(dlclose(lib), 0);
}

/* A second C library has a malloc of its own. It is opened a few times only: memory that its malloc keeps, a MiB at
 * least, stays mapped after it is closed. */
enum { SECOND_C_LIBRARIES = 16 };

static bool second_c_library(struct worker *w)
{
	static int opened; /* only the thread that changes the process gets here */
	void *lib = opened < SECOND_C_LIBRARIES ? dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW | RTLD_LOCAL) : NULL;
	void *(*its_malloc)(size_t) = lib ? (void *(*)(size_t))dlsym(lib, "malloc") : NULL;
	void (*its_free)(void *) = lib ? (void (*)(void *))dlsym(lib, "free") : NULL;

	if (!lib)
		return false;
	opened++;
	if (EXPECT(its_malloc && its_free)) {
		const size_t size = 1 + rand_next(&w->rand) % MIB;
		char *p = its_malloc(size);

		if (p) {
			pattern_write(p, size, w->rand);
			allocate_some(w->rand);
			EXPECT_EQ(pattern_check(p, size, w->rand), -1);
		}
		its_free(p);
	}
	return EXPECT_EQ(dlclose(lib), 0);
}

#endif
