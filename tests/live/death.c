/* link: none */
/*
 * Invalid pointers for free() and realloc(). The program stops with one line that names the pointer and the reason.
 * With HUGEPIN_ABORT=0 it goes on as if the call had not been made.
 */
#include "live.h"

#define START "not the start of a live buffer"
#define AGAIN "already free"
#define FOREIGN "not from this heap"

static char *made(size_t size)
{
	char *p = hide(malloc(size));
	memset(p, 1, size);
	return p;
}

static char *freed(size_t size)
{
	char *p = made(size);
	free(hide(p));
	return p;
}

static char *freed_and_buried(size_t size, int others)
{
	char *p[300], *first = freed(size);
	for (int i = 0; i < others; i++)
		p[i] = made(40 * KIB + 4 * KIB * (size_t)(i % 50));
	for (int i = 0; i < others; i++)
		free(p[i]);
	return first;
}

static char *mapped(void)
{
	return mmap(NULL, 64 * KIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static char global[64 * KIB];

enum { CASES = 15 };
/* The expected reasons. NULL: any reason, since the heap cannot tell a buffer that was coalesced from memory that was
 * never in use. */
static const char *const reasons[CASES] = {
	AGAIN, AGAIN, AGAIN, NULL, NULL, START, START, START, START, START, NULL, FOREIGN, FOREIGN, FOREIGN, FOREIGN,
};

/* The pointer that case n gives to free() or realloc(). */
static char *wrong_pointer(int n)
{
	switch (n) {
	case 0: return freed(32 * KIB);
	case 1: return freed(MIB);
	case 2: return freed(20 * MIB);
	case 3: return freed_and_buried(100000, 20);
	case 4: return freed_and_buried(36 * KIB, 200);
	case 5: return made(MIB) + 4096;
	case 6: return made(MIB) + 16;
	case 7: return made(MIB) + 1;
	case 8: return made(MIB) + MIB - 1;
	case 9: return made(65 * MIB) + 64 * MIB;
	case 10: return (char *)((uintptr_t)made(MIB) + 2 * GIB); /* in the heap's span, but never allocated */
	case 11: return mapped();
	case 12: return global + 16;
	case 13: return (char *)__builtin_frame_address(0) - 16;
	default: return (char *)0x10000;
	}
}

static void misuse(int n, bool by_realloc)
{
	char *p = wrong_pointer(n);
	dprintf(STDERR_FILENO, "%p\n", (void *)p);
	if (by_realloc)
		p = realloc(hide(p), 50000);
	else
		free(hide(p));
	hide(p);
}

/* Run case n in a program of its own, and put its output into text. */
static int run_case(const char *how, int n, char *text, size_t size)
{
	pid_t pid;
	int out[2];
	char number[12];
	size_t have = 0;
	ssize_t got;
	snprintf(number, sizeof number, "%d", n);
	char *args[] = { (char *)"death", (char *)how, number, NULL };
	posix_spawn_file_actions_t fa;
	if (pipe2(out, O_CLOEXEC))
		return -1;
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, out[1], STDERR_FILENO);
	if (posix_spawn(&pid, "/proc/self/exe", &fa, NULL, args, environ))
		return -1;
	posix_spawn_file_actions_destroy(&fa);
	close(out[1]);
	while (have < size - 1 && (got = read(out[0], text + have, size - 1 - have)) > 0)
		have += (size_t)got;
	text[have] = 0;
	close(out[0]);
	return child_wait(pid);
}

static void expect_death(const char *how, int n)
{
	char text[2000];
	int status = run_case(how, n, text, sizeof text);
	char *line = strchr(text, '\n'), *end = line ? strchr(line + 1, '\n') : NULL;
	if (!EXPECT_EQ(status, 128 + SIGABRT) || !EXPECT(end && !end[1])) {
		T_FAIL("%s, case %d printed: %s", how, n, text);
		return;
	}
	*line++ = *end = 0;
	bool known = reasons[n] ? strstr(line, reasons[n]) != NULL
				: strstr(line, AGAIN) || strstr(line, START) || strstr(line, FOREIGN);
	if (strncmp(line, "hugepin: ", 9) || !strstr(line, text) || !known)
		T_FAIL("%s, case %d: %s is %s, but it said: %s", how, n, text, reasons[n] ? reasons[n] : "wrong", line);
}

TEST(a_wrong_free_stops_the_program_with_one_line)
{
	for (int n = 0; n < CASES; n++)
		expect_death("--free", n);
}

TEST(a_wrong_realloc_stops_the_program_with_one_line)
{
	for (int n = 0; n < CASES; n++)
		expect_death("--realloc", n);
}

TEST(with_abort_0_misuse_is_reported_and_ignored)
{
	char text[4000];
	setenv("HUGEPIN_ABORT", "0", 1);
	int status = run_case("--ignore", 0, text, sizeof text), lines = 0;
	unsetenv("HUGEPIN_ABORT");
	if (!EXPECT_EQ(status, 0))
		T_FAIL("it printed: %s", text);
	for (const char *s = text; (s = strstr(s, "hugepin: ")); s++)
		lines++;
	EXPECT_EQ(lines, CASES);
}

static int ignore_main(void)
{
	char *keep[20];
	int n, bad = 0;
	for (n = 0; n < 20; n++)
		pattern_write(keep[n] = hide(malloc(50000 * (size_t)(n + 1))), 50000 * (size_t)(n + 1), (uint64_t)n);
	for (n = 0; n < CASES; n++)
		free(hide(wrong_pointer(n)));
	for (n = 0; n < 20; n++) {
		bad += pattern_check(keep[n], 50000 * (size_t)(n + 1), (uint64_t)n) != -1;
		free(keep[n]);
	}
	return bad;
}

int main(int argc, char **argv)
{
	struct rlimit none = { 0, 0 };
	setrlimit(RLIMIT_CORE, &none);
	if (argc == 3 && !strcmp(argv[1], "--ignore"))
		return ignore_main();
	if (argc == 3 && (!strcmp(argv[1], "--free") || !strcmp(argv[1], "--realloc"))) {
		misuse((int)strtol(argv[2], NULL, 10), argv[1][2] == 'r');
		return 0;
	}
	return t_run(argc, argv);
}
