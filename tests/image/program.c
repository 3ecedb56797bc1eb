/*
 * A program with static memory and text in whole hugepages, for tests/live/image.sh. It checks its memory, and does what
 * its argument says:
 *   kinds     print how much of bss, data, text and of the library's bss lies in hugepages
 *   fork      a child sees what the parent wrote before the fork, and not what it wrote afterwards
 *   threads   threads have their initial values (TLS)
 *   protect   parts of data and bss become read-only and are read
 *   sleep     wait to be looked at
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };
#define NEED(x) do { if (!(x)) { printf("%s:%d: %s\n", __FILE__, __LINE__, #x); exit(1); } } while (0)

static char bss[24 * MIB];
static uint32_t data[2 * MIB] = { 11, 22, [2 * MIB - 1] = 33 };
/* for early.c */
char *program_data = (char *)data + 4 * MIB;

static __thread int local = 7;
static int (*pointer)(const char *, ...) = printf; /* relocated by the loader */
static int chosen(void) { return 42; }
static int (*choose(void))(void) { return chosen; }
static int indirect(void) __attribute__((ifunc("choose")));

enum { LIBRARY_BSS = 16 * MIB };
char *library_bss(void); /* no variable: a copy relocation would move that into this program */
int library_call(int);

/* Six MiB of code that does nothing. */
__asm__(".pushsection .text\n.globl much_text\n.type much_text, @function\nmuch_text:\n.fill 6 << 20, 1, 0x90\nret\n"
	".size much_text, . - much_text\n.popsection");
void much_text(void);
extern const char much_text_bytes[] __asm__("much_text");

/* Bytes in hugepages of the mappings in [p, p + len), by smaps. */
static size_t huge(const void *p, size_t len)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	char line[4096];
	unsigned long start, end, kb;
	size_t sum = 0;
	int inside = 0;

	NEED(f);
	while (fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start < (uintptr_t)p + len && end > (uintptr_t)p;
		else if (inside && (sscanf(line, "AnonHugePages: %lu", &kb) == 1 || sscanf(line, "FilePmdMapped: %lu", &kb) == 1))
			sum += kb << 10;
	}
	fclose(f);
	return sum;
}

static void check(void)
{
	for (size_t i = 0; i < sizeof bss; i += 1000)
		NEED(bss[i] == 0);
	NEED(data[0] == 11 && data[1] == 22 && data[2] == 0 && data[2 * MIB - 1] == 33);
	for (size_t i = 2; i < 2 * MIB - 1; i += 100)
		NEED(data[i] == 0);
	NEED(pointer == printf && indirect() == 42 && local == 7 && library_call(5) == 6);
	much_text();
	memset(bss, 1, sizeof bss);
	memset(library_bss(), 1, LIBRARY_BSS);
	for (size_t i = 2; i < 2 * MIB - 1; i++)
		data[i] = (uint32_t)i;
}

static void *thread(void *arg)
{
	(void)arg;
	NEED(local == 7);
	local = 8;
	return NULL;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	check();
	if (!strcmp(what, "kinds")) {
		printf("bss %zu data %zu text %zu library %zu\n", huge(bss + 4 * MIB, 16 * MIB) / MIB, huge(data + MIB / 2, MIB) / MIB,
		       huge(much_text_bytes + 2 * MIB, 2 * MIB) / MIB, huge(library_bss() + 4 * MIB, 8 * MIB) / MIB);
	} else if (!strcmp(what, "fork")) {
		for (int i = 0; i < 20; i++) {
			data[5] = bss[5 * MIB] = (char)i;
			pid_t child = fork();
			int status;
			if (!child) {
				usleep(500);
				NEED(data[5] == (uint32_t)i && bss[5 * MIB] == i && library_call(5) == 6);
				much_text();
				data[5] = 1000, bss[5 * MIB] = 100;
				exit(0);
			}
			memset(bss, 99, sizeof bss);
			memset(data + 3, 99, 4 * MIB);
			NEED(waitpid(child, &status, 0) == child && status == 0);
			NEED(data[5] == 0x63636363 && bss[5 * MIB] == 99);
		}
	} else if (!strcmp(what, "threads")) {
		for (int i = 0; i < 50; i++) {
			pthread_t t;
			NEED(pthread_create(&t, NULL, thread, NULL) == 0 && pthread_join(t, NULL) == 0);
		}
	} else if (!strcmp(what, "protect")) {
		char *part = (char *)(((uintptr_t)data + 3 * MIB) & ~(uintptr_t)65535);
		NEED(mprotect(part, 65536, PROT_READ) == 0 && *(volatile char *)part == part[0]);
		NEED(mprotect(part, 65536, PROT_READ | PROT_WRITE) == 0);
		part[1] = 3;
		part = (char *)(((uintptr_t)bss + 3 * MIB) & ~(uintptr_t)65535);
		NEED(madvise(part, 65536, MADV_DONTNEED) == 0 && part[5] == 0);
		NEED(mprotect((void *)((uintptr_t)much_text_bytes + 3 * MIB & ~(uintptr_t)65535), 65536, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
		much_text();
	} else if (!strcmp(what, "sleep")) {
		puts("ready");
		fflush(stdout);
		pause();
	}
	puts("fine");
	return 0;
}
