/*
 * Whose malloc serves this process: the file that has it, then the allocator's name and version, where it tells them.
 * An allocator under test comes by LD_PRELOAD (bench/allocators.sh).
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
	int (*mimalloc)(void), (*jemalloc)(const char *, void *, size_t *, void *, size_t), major, minor, n;
	const char *(*tcmalloc)(int *, int *, const char **), *text;
	size_t size = sizeof text;
	Dl_info of;

	if (!dladdr(dlsym(RTLD_DEFAULT, "malloc"), &of))
		return 1;
	puts(of.dli_fname);
	*(void **)&mimalloc = dlsym(RTLD_DEFAULT, "mi_version");
	*(void **)&jemalloc = dlsym(RTLD_DEFAULT, "mallctl");
	*(void **)&tcmalloc = dlsym(RTLD_DEFAULT, "tc_version");
	if (mimalloc) { /* 209 is 2.0.9, 30403 is 3.4.3 */
		n = mimalloc();
		major = n < 10000 ? 10 : 100;
		printf("mimalloc %d.%d.%d\n", n / major / major, n / major % major, n % major);
	} else if (jemalloc && !jemalloc("version", &text, &size, NULL, 0)) {
		printf("jemalloc %.20s\n", text); /* a commit's name in full is longer */
	} else if (tcmalloc) {
		tcmalloc(&major, &minor, &text);
		printf("tcmalloc %d.%d%s\n", major, minor, text);
	} else if (strstr(of.dli_fname, "/libc.so.")) {
		char glibc[64];

		confstr(_CS_GNU_LIBC_VERSION, glibc, sizeof glibc);
		puts(glibc);
	} else {
		text = strrchr(of.dli_fname, '/');
		puts(text ? text + 1 : of.dli_fname);
	}
	return 0;
}
