/* A module that allocates, and opens others by its own RUNPATH. For early.c. */
#include <dlfcn.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT void *module_malloc(size_t size);
EXPORT void module_free(void *p);
EXPORT int module_opens(const char *name, int mode);

void *module_malloc(size_t size)
{
	return malloc(size);
}

void module_free(void *p)
{
	free(p);
}

int module_opens(const char *name, int mode)
{
	void *lib = dlopen(name, mode);

	return lib && !dlclose(lib);
}
