/* link: none */
/* Memory that is used up: threads get NULL. Each subject is a program of its own, since it cannot undo its limit. */
#include "live.h"

#include <semaphore.h>

enum { THREADS = 40, SKIPPED = 77 };

static int errno_at_start;
static sem_t go, done;
static _Atomic int refused;

static _Noreturn void *first_request(void *unused)
{
	(void)unused;
	while (sem_wait(&go))
		;
	void *p = hide(malloc(144));
	refused += !p && errno == ENOMEM;
	free(p);
	sem_post(&done);
	for (;;) /* keep all memory while other threads ask */
		pause();
}

/* Use up all memory that the limit leaves, by large requests, small requests and mappings. */
static void use_up(void)
{
	for (size_t size = 64 * MIB; size >= 16; size /= 2)
		while (hide(malloc(size)))
			;
	for (size_t size = 64 * MIB; size >= 4096; size /= 2)
		while (mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
			;
}

static int limit(size_t bytes)
{
	const struct rlimit r = { bytes, bytes };
	return setrlimit(RLIMIT_AS, &r);
}

/* Threads make their first request when memory has run out. */
static int asks_first(size_t mebibytes)
{
	pthread_t thread[THREADS];
	pthread_attr_t attr;
	char line[80];
	bool before = mebibytes & 1; /* the limit comes before the threads */

	sem_init(&go, 0, 0);
	sem_init(&done, 0, 0);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 65536);
	if (before && limit(mebibytes * MIB))
		return SKIPPED;
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], &attr, first_request, NULL))
			return SKIPPED;
	if (!before && limit(mebibytes * MIB))
		return SKIPPED;
	use_up();
	for (int i = 0; i < THREADS; i++)
		sem_post(&go);
	for (int i = 0; i < THREADS; i++)
		sem_wait(&done);
	int n = snprintf(line, sizeof line, "# %zu MiB: %d of %d threads got none\n", mebibytes, refused, THREADS);
	if (write(1, line, (size_t)n) < 0)
		return 1;
	/* Some threads may find a hole that fitted no other request. */
	_exit(refused >= THREADS / 2 ? 0 : 2);
}

TEST_CASE(main_begins_without_an_error, EXPECT_EQ(errno_at_start, 0))

TEST(threads_whose_first_request_finds_no_memory_get_null)
{
	static const size_t mebibytes[] = { 100, 101, 200, 201, 400, 401 };
	for (size_t i = 0; i < sizeof mebibytes / sizeof *mebibytes; i++) {
		char text[24];
		snprintf(text, sizeof text, "%zu", mebibytes[i]);
		int r = run_again(environ, "--first", text, NULL);
		if (r == SKIPPED) /* the limit is below the memory that the program has already */
			continue;
		EXPECT(r == 0 || T_FAIL("%zu MiB: %d", mebibytes[i], r));
	}
}

int main(int argc, char **argv)
{
	errno_at_start = errno;
	if (argc == 3 && !strcmp(argv[1], "--first"))
		return asks_first(strtoul(argv[2], NULL, 10));
	return t_run(argc, argv);
}
