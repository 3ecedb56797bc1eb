/*
 * What a fork costs the parent. Prints lines as bench/alloc does, in ms.
 *
 *	fork [t2]	with 64 MiB in use: the first fork, later ones, and mapping, touching and copying as much by hand; t2:
 *			beside a thread
 *
 * fork-parts has the library inside, with a function of its own in place of the one that makes the library's system
 * calls. It also says which parts the first fork has.
 */
#include <err.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "lib.h"

#ifdef PARTS
#include "hugepin.h"
#define malloc hugepin_malloc
#endif

#define LIVE (64 * MiB)
#define HUGEPAGE (2 * MiB)
enum { POPULATE = 23, BUFFERS = LIVE / MiB, LATER = 5 };

static char *buffer[BUFFERS];

static void *wait_for_ever(void *unused)
{
	for (;;)
		pause();
	return unused;
}

/* How much of the process's memory lies in the pool, which others use, too. */
static double pool_mib(void)
{
	FILE *status = fopen("/proc/self/status", "re");
	char line[256];
	unsigned long kib = 0;

	while (status && fgets(line, sizeof line, status))
		if (sscanf(line, "HugetlbPages: %lu kB", &kib) == 1)
			break;
	if (status)
		fclose(status);
	return (double)kib / 1024;
}

static void by_hand(bool print)
{
	double begun = now_ns(), mapped, touched, copied;
	char *map = mmap(NULL, LIVE + HUGEPAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *to = (char *)(((uintptr_t)map + HUGEPAGE - 1) & -HUGEPAGE);

	if (map == MAP_FAILED)
		err(1, "mmap");
	madvise(to, LIVE, MADV_HUGEPAGE);
	mapped = now_ns();
	touch(to, LIVE);
	touched = now_ns();
	for (size_t i = 0; i < BUFFERS; i++)
		memcpy(to + i * MiB, buffer[i], MiB);
	copied = now_ns();
	munmap(map, LIVE + HUGEPAGE);
	if (!print)
		return;
	say("hand", "", (copied - begun) / 1e6, "ms");
	say("hand", ".map", (mapped - begun) / 1e6, "ms");
	say("hand", ".touch", (touched - mapped) / 1e6, "ms");
	say("hand", ".copy", (copied - touched) / 1e6, "ms");
}

#ifdef PARTS
/* In place of base/sys.c's. */
long hp_sys_call(long n, long a, long b, long c, long d, long e, long f);

enum { ASK, MAP, TOUCH, COPY, TRIAL, MOVE, THREAD, PARTS_COUNT };
static const char *const part_names[] = { "ask", "map", "touch", "copy", "trial", "move", "thread" };
static double parts[PARTS_COUNT], left; /* left: the last call ended */
static int last;
static bool counting;

static int part_of(long n, long advice)
{
	return n == SYS_madvise && advice == POPULATE			 ? TOUCH :
	       n == SYS_mmap || n == SYS_munmap || n == SYS_madvise	 ? MAP :
	       n == SYS_clone || n == SYS_wait4				 ? TRIAL :
	       n == SYS_mremap						 ? MOVE :
	       n == SYS_futex || n == SYS_tgkill || n == SYS_sched_yield ? THREAD :
									   ASK;
}

long hp_sys_call(long n, long a, long b, long c, long d, long e, long f)
{
	double begun = counting ? now_ns() : 0;
	int saved_errno = errno;
	long r;

	if (counting && last == TOUCH)
		parts[COPY] += begun - left;
	r = syscall(n, a, b, c, d, e, f);
	r = r == -1 ? -errno : r;
	errno = saved_errno;
	if (counting && n != SYS_exit) {
		left = now_ns();
		last = n == SYS_clock_gettime ? last : part_of(n, c); /* what is populated is filled next */
		parts[part_of(n, c)] += left - begun;
	}
	return r;
}

static void count_parts(bool on)
{
	counting = on;
}
#else
enum { PARTS_COUNT };
static const char *const part_names[1];
static double parts[1];

static void count_parts(bool on)
{
	(void)on;
}
#endif

static void live(void)
{
	double v[LATER], first;

	for (size_t i = 0; i < BUFFERS; i++) {
		buffer[i] = malloc(MiB);
		if (!buffer[i])
			err(1, "malloc");
		memset(buffer[i], (int)i + 1, MiB);
	}
	say("pool", "", pool_mib(), "MiB");
	by_hand(false); /* until now, a virtual machine's host may have had this memory */
	by_hand(true);
	count_parts(true);
	first = fork_ms(NULL, NULL);
	count_parts(false);
	say("first", "", first, "ms");
	for (int i = 0; i < PARTS_COUNT; first -= parts[i++] / 1e6)
		say("first.", part_names[i], parts[i] / 1e6, "ms");
	if (PARTS_COUNT)
		say("first", ".rest", first, "ms");
	for (int i = 0; i < LATER; i++)
		v[i] = fork_ms(NULL, NULL);
	say("later", "", median(v, LATER), "ms");
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc > 2 || (argc == 2 && strcmp(argv[1], "t2")))
		errx(2, "usage: fork [t2]");
	if (argc == 2 && pthread_create(&thread, NULL, wait_for_ever, NULL))
		errx(1, "no thread");
	live();
	return fflush(stdout) ? 1 : 0;
}
