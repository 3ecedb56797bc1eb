/*
 * Touch the whole free pool and 3 GiB of ordinary memory once: in a virtual machine the first touch of a page that the
 * host has taken back costs several times the guest's own fault, whoever makes it. Prints what was touched, as alloc.
 */
#include <err.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib.h"

int main(void)
{
	const int access = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	size_t ordinary = 3 * GiB, half = (size_t)sysconf(_SC_AVPHYS_PAGES) / 2 * 4096, pages = 0;
	char *p;

	for (; pages < 4 * KiB && (p = mmap(NULL, 2 * MiB, access, flags | MAP_HUGETLB, -1, 0)) != MAP_FAILED; pages++)
		*(volatile char *)p = 1;
	printf("warm.pool-pages %zu n\n", pages);
	if (ordinary > half)
		ordinary = half;
	p = mmap(NULL, ordinary, access, flags, -1, 0);
	if (p == MAP_FAILED)
		err(1, "mmap");
	touch(p, ordinary);
	printf("warm.ordinary %zu MiB\n", ordinary / MiB);
	return fflush(stdout) ? 1 : 0;
}
