/* A library in whose processes base pages are of 16 KiB, for who asks getauxval(3). For basepage.sh. */
#include <dlfcn.h>
#include <sys/auxv.h>

__attribute__((visibility("default"))) unsigned long getauxval(unsigned long type)
{
	unsigned long (*real)(unsigned long);

	if (type == AT_PAGESZ)
		return 16384;
	*(void **)&real = dlsym(RTLD_NEXT, "getauxval");
	return real(type);
}
