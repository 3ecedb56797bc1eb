/* A host that is not linked with MPI: it loads a plugin (plugin.c) with RTLD_LOCAL, which is. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*work)(void) = plugin ? (int (*)(void))dlsym(plugin, "work") : NULL;

	if (!work)
		printf("%s\n", dlerror());
	return work ? work() : 1;
}
