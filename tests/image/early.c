/* For tests/live/image.sh, preloaded behind the drop-in: its constructor runs first. It starts a thread (EARLY=thread),
 * makes a part of the program's data read-only (EARLY=protect), locks it (EARLY=lock) or keeps it from children
 * (EARLY=dontfork), or touches its own bss. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern char *program_data __attribute__((weak));
char early_bss[16 << 20];

static void *wait_here(void *arg)
{
	pause();
	return arg;
}

__attribute__((constructor)) static void early(void)
{
	const char *what = getenv("EARLY");
	pthread_t t;

	early_bss[9 << 20] = 1;
	if (what && !strcmp(what, "thread"))
		pthread_create(&t, NULL, wait_here, NULL);
	if (what && !strcmp(what, "protect") && &program_data)
		mprotect((void *)((uintptr_t)program_data & ~(uintptr_t)65535), 65536, PROT_READ | PROT_WRITE | PROT_EXEC);
	if (what && !strcmp(what, "lock") && &program_data)
		mlock(program_data, 65536);
	if (what && !strcmp(what, "dontfork") && &program_data)
		madvise((void *)((uintptr_t)program_data & ~(uintptr_t)65535), 65536, MADV_DONTFORK);
}
