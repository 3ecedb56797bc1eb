/* link: hugepin */
/* A program that touches little of its buffers needs little memory; one that fills them has hugepages. Each test is
 * a program of its own. */
#include "live.h"

#include "hugepin.h"

enum { COUNT = 1024 };

static char *buffer[COUNT];

static struct hugepin_stats stats(void)
{
	struct hugepin_stats s;
	hugepin_stats(&s, sizeof s);
	return s;
}

static void use(size_t bytes)
{
	for (int i = 0; i < COUNT; i++) {
		buffer[i] = hide(hugepin_malloc(MIB));
		memset(buffer[i], 7, bytes);
	}
}

/* What a program of 16 MiB may need in all, for the first 32 MiB, too. */
TEST_BY(anew, a_gib_touched_little_needs_little_memory)
{
	use(128);
	struct hugepin_stats s = stats();
	EXPECT(s.hugetlb_bytes + s.thp_bytes <= 80 * MIB);
	EXPECT(s.sparse_bytes >= COUNT / 2 * MIB);
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	EXPECT((size_t)u.ru_maxrss * KIB <= 128 * MIB);
	for (int i = 0; i < COUNT; i++) {
		EXPECT_EQ(buffer[i][127], 7);
		EXPECT_EQ(buffer[i][128] | buffer[i][MIB - 1], 0);
		hugepin_free(buffer[i]);
	}
}

/* In three base pages of each, that are not the first. */
TEST_BY(anew, so_does_a_gib_touched_little_anywhere)
{
	for (size_t i = 0; i < COUNT; i++) {
		buffer[i] = hide(hugepin_malloc(MIB));
		for (size_t k = 0; k < 3; k++)
			buffer[i][4096 + (i * 7919 + k * 99991) % (MIB - 4096)] = 7;
	}
	struct hugepin_stats s = stats();
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	EXPECT(s.hugetlb_bytes || (size_t)u.ru_maxrss * KIB <= 160 * MIB);
	EXPECT(s.sparse_bytes >= COUNT / 4 * MIB);
}

TEST_BY(anew, buffers_that_are_filled_have_no_base_pages)
{
	for (int i = 0; i < COUNT / 4; i++)
		memset(hide(hugepin_malloc(MIB)), 7, MIB);
	EXPECT_EQ(stats().sparse_bytes, 0);
}

static _Atomic bool done;

static void *fork_again(void *unused)
{
	(void)unused;
	while (!done) {
		pid_t pid = fork();
		if (!pid) {
			for (int i = 0; i < 64; i++)
				memset(hide(hugepin_malloc(MIB)), 1, 128);
			_exit(0);
		}
		EXPECT_EQ(child_wait(pid), 0);
	}
	return NULL;
}

/* Threads that allocate, free and fork while the heap looks at what others write. */
static void *churn(void *from)
{
	char **mine = from;
	for (int i = 0; i < 4 * COUNT; i++) {
		char **p = &mine[i % (COUNT / 8)];
		hugepin_free(*p);
		*p = hide(hugepin_malloc(64 * KIB * (size_t)(1 + i % 20)));
		memset(*p, 1, i % 3 ? 128 : 64 * KIB);
	}
	return NULL;
}

TEST_BY(anew, threads_write_and_fork_while_the_heap_looks)
{
	pthread_t t[4], f;
#ifdef __SANITIZE_THREAD__ /* fork copies what other threads write, and their order is theirs to keep */
	done = true;
#endif
	pthread_create(&f, NULL, fork_again, NULL);
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, churn, buffer + i * (COUNT / 8));
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	done = true;
	pthread_join(f, NULL);
}

LIVE_MAIN
