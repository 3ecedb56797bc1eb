/* link: none */
/* Memory that stays free is given back after the decay time, whichever thread freed it. Then the process sleeps. */
#include "live.h"

#include <dirent.h>

enum { COUNT = 100 };
static char *buffers[COUNT];

static void *fill(void *arg)
{
	uint64_t state = 3;
	(void)arg;
	for (int i = 0; i < COUNT; i++) {
		size_t n = rand_size(&state, 32 * KIB, 8 * MIB);
		if (EXPECT(buffers[i] = hide(malloc(n))))
			memset(buffers[i], 1, n);
	}
	return NULL;
}

static void drop(void)
{
	for (int i = 0; i < COUNT; i++)
		free(buffers[i]);
}

static _Atomic bool dropped;

/* A thread that frees, then lives on without calling the heap again. */
static void *drop_and_wait(void *wake)
{
	char c;
	drop();
	dropped = true;
	return read(*(int *)wake, &c, 1) == 0 ? NULL : wake;
}

/* Wait until the buffers' memory was given back. before, full: resident bytes without the buffers and with them. */
static void expect_given_back(size_t before, size_t full)
{
	size_t now = resident();
	EXPECT(full > before + 5 * MIB);
	for (int i = 0; i < 250 && (now = resident()) > before + 5 * MIB; i++)
		sleep_ms(100);
	if (!EXPECT(now <= before + 5 * MIB))
		T_FAIL("resident: %zu KiB before, %zu freed, %zu after", before / KIB, full / KIB, now / KIB);
}

/* Context switches of all threads but this one. */
static long switches(int *ret_threads)
{
	long sum = 0;
	char path[300], text[4000];
	DIR *d = opendir("/proc/self/task");
	*ret_threads = 0;
	for (struct dirent *e; d && (e = readdir(d));) {
		if (e->d_name[0] == '.' || strtol(e->d_name, NULL, 10) == gettid())
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
		const char *s = file_read(path, text, sizeof text) > 0 ? strstr(text, "\nvoluntary_ctxt_switches:") : NULL;
		sum += s ? strtol(s + 26, NULL, 10) : 0;
		(*ret_threads)++;
	}
	if (d)
		closedir(d);
	return sum;
}

static void with_decay(const char *time, void (*body)(void))
{
	setenv("HUGEPIN_DECAY", time, 1);
	anew(body);
	unsetenv("HUGEPIN_DECAY");
}

static void decaying(void (*body)(void))
{
	with_decay("500ms", body);
}

TEST_BY(decaying, free_memory_goes_back_after_the_decay_time)
{
	size_t before = resident(), full;
	fill(NULL);
	full = resident();
	drop();
	expect_given_back(before, full);
}

TEST_BY(decaying, memory_that_silent_threads_freed_goes_back_too)
{
	int pipes[2];
	pthread_t t[4];
	size_t before = resident(), full = 0;
	if (!EXPECT(!pipe2(pipes, O_CLOEXEC)))
		return;
	for (int i = 0; i < 4; i++) {
		if (!EXPECT(!pthread_create(&t[i], NULL, fill, NULL)))
			return;
		pthread_join(t[i], NULL);
		full = resident();
		dropped = false;
		EXPECT(!pthread_create(&t[i], NULL, drop_and_wait, &pipes[0]));
		while (!dropped)
			sleep_ms(1);
	}
	expect_given_back(before, full);
	close(pipes[1]);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

TEST_BY(decaying, nothing_wakes_up_when_nothing_is_left_to_give_back)
{
	int threads;
	char *keep[10];
	size_t before = resident(), full;
	long woken = 0;
	fill(NULL);
	full = resident();
	for (int i = 0; i < 10; i++)
		keep[i] = hide(malloc(100 * KIB));
	drop();
	expect_given_back(before + 10 * PAGE, full); /* some pages still contain live buffers */
	/* The check itself uses the heap (opendir takes 32 KiB): the thread wakes for that, and sleeps again. A timer
	 * would wake it 20 times. The thread may take any time before it comes to rest. */
	for (int i = 0; i < 10; i++) {
		long from = switches(&threads);
		sleep_ms(2500);
		woken = switches(&threads) - from;
		if (woken <= 4)
			break;
	}
	if (!EXPECT(woken <= 4))
		T_FAIL("%d threads woke %ld times in five decay times", threads, woken);
	for (int i = 0; i < 10; i++)
		free(keep[i]);
}

TEST_BY(decaying, a_child_gives_back_as_its_parent_did)
{
	size_t before = resident(), full;
	fill(NULL);
	full = resident();
	pid_t pid = fork();
	if (pid == 0) {
		/* pages shared with the parent are not resident twice, so rewrite them */
		for (int i = 0; i < COUNT; i++)
			buffers[i][0] = 2;
		drop();
		expect_given_back(before, full);
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
	drop();
}

static void no_decay(void)
{
	size_t before = resident();
	fill(NULL);
	drop();
	sleep_ms(1500);
	EXPECT(resident() > before + 50 * MIB);
}

TEST_CASE(decay_0_keeps_everything, with_decay("0", no_decay))

LIVE_MAIN
