/* link: none */
/*
 * HUGEPIN_GUARD=1: wrong uses of large buffers are noticed at once or at free(), and correct uses work. Each case is a
 * separate run of this program.
 */
#include "live.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>

static char said[4000];

static char *made(size_t size)
{
	char *p = hide(malloc(size));

	memset(p, 1, size);
	return p;
}

static volatile char sink;

/* ------------------------------------------------------------------ cases; each returns 0 if it comes to its end */

static int use_after_free(size_t size)
{
	char *p = made(size);

	free(p);
	for (int i = 0; i < 100; i++) /* allocate and free other buffers meanwhile */
		free(made(40 * KIB + (size_t)i * 4096));
	sink = ((char *)hide(p))[size / 2];
	return 0;
}

static int write_after_free(size_t size)
{
	char *p = made(size);

	free(p);
	((char *)hide(p))[0] = 1;
	return 0;
}

/* Write one byte behind the end, in the last page of the buffer. */
static int overflow(size_t size)
{
	char *p = made(size);

	p[size] = 1;
	printf("%p ", (void *)p);
	fflush(stdout);
	free(p);
	return 0;
}

static int overflow_a_page(size_t size)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *p = made(size);

	p[(size + page - 1) / page * page] = 1;
	free(p);
	return 0;
}

static int overflow_after_realloc(size_t size)
{
	char *p = hide(realloc(made(size), size + 10));

	p[size + 9] = 1;
	p = hide(realloc(p, size + 20));
	p[size + 19] = 1;
	p[size + 20] = 1;
	free(p);
	return 0;
}

static int overflow_after_less(size_t unused)
{
	char *p = hide(realloc(made(40960), 40000));

	(void)unused;
	if (malloc_usable_size(p) != 40000)
		return 1;
	p[40000] = 1;
	free(p);
	return 0;
}

/* Advice for a buffer's pages applies to its last page as a whole. */
static int told(size_t size)
{
	static const int how[] = { MADV_DONTFORK, MADV_WIPEONFORK, MADV_DONTNEED, MADV_DONTDUMP };

	for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
		char *p = hide(aligned_alloc(4096, size));
		int status;
		pid_t pid;

		memset(p, 1, size);
		if (madvise(p, size, how[i]))
			return 1;
		pid = fork();
		if (pid == 0) {
			free(p);
			_exit(0);
		}
		if (waitpid(pid, &status, 0) != pid || status)
			return 2;
		p = hide(realloc(p, size - 5000));
		if (malloc_usable_size(p) != size - 5000)
			return 3;
		p = hide(realloc(p, size + 50000));
		memset(p, 2, size + 50000);
		free(p);
	}
	return 0;
}

static int overflow_after_advice(size_t size)
{
	char *p = made(size);

	if (mprotect((void *)((uintptr_t)p & ~4095ul), 4096, PROT_READ) ||
	    madvise((void *)((uintptr_t)p & ~4095ul), size, MADV_DONTDUMP))
		return 1;
	p = hide(realloc(p, size - 5000));
	p[size - 5000] = 1;
	free(p);
	return 0;
}

static int free_twice(size_t size)
{
	char *p = made(size);

	free(p);
	free(hide(p));
	return 0;
}

static int old_pointer_after_realloc(size_t size)
{
	char *p = made(size), *q = hide(realloc(p, size + 1));

	sink = ((char *)hide(p))[size - 1];
	free(q);
	return 0;
}

static int in_a_child(size_t size)
{
	char *kept = made(size), *gone = made(size);
	volatile char *reached = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;
	pid_t pid;

	free(gone);
	pid = fork();
	if (pid == 0) {
		for (size_t i = 0; i < size; i++)
			if (kept[i] != 1)
				_exit(2);
		char *mine[3]; /* memory that the parent freed is used again, for one buffer only */

		for (int i = 0; i < 3; i++)
			memset(mine[i] = made(size), 10 + i, size);
		for (size_t bytes = 0; bytes < 200 * MIB; bytes += size)
			free(made(size - 4096)); /* would fit into the place of one of them, without its guard */
		for (int i = 0; i < 3; i++)
			for (size_t at = 0; at < size; at += 100)
				if (mine[i][at] != 10 + i)
					_exit(6);
		free(kept);
		*reached = 1;
		sink = ((char *)hide(kept))[0];
		_exit(3);
	}
	if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV || !*reached)
		return 4;
	for (size_t i = 0; i < size; i++)
		if (kept[i] != 1)
			return 5;
	free(kept);
	return 0;
}

static void *churn(void *seed_)
{
	uintptr_t seed = (uintptr_t)seed_;
	struct {
		unsigned char *p;
		size_t size;
	} b[16] = { { NULL, 0 } };

	for (int i = 0; i < 4000; i++) {
		seed = seed * 6364136223846793005 + 1442695040888963407;

		const unsigned k = seed >> 33 & 15, how = seed >> 40 & 3;
		const size_t size = 32 * KIB + (seed >> 45) % (200 * KIB);

		for (size_t at = 0; at < b[k].size; at += 1000)
			if (b[k].p[at] != (unsigned char)(k ^ 0x55))
				abort();
		if (how == 0) {
			free(b[k].p);
			b[k].p = hide(calloc(1, size));
			for (size_t at = 0; at < size; at += 100)
				if (b[k].p[at])
					abort();
		} else if (how == 1) {
			free(b[k].p);
			b[k].p = hide(aligned_alloc(64 * KIB, size));
			if ((uintptr_t)b[k].p % (64 * KIB))
				abort();
		} else {
			b[k].p = hide(realloc(b[k].p, size));
		}
		if (!b[k].p || malloc_usable_size(b[k].p) != size)
			abort();
		b[k].size = size;
		memset(b[k].p, (int)k ^ 0x55, size);
	}
	for (int k = 0; k < 16; k++)
		free(b[k].p);
	return NULL;
}

static int threads(size_t unused)
{
	pthread_t t[4];

	(void)unused;
	for (uintptr_t i = 0; i < 4; i++)
		if (pthread_create(&t[i], NULL, churn, (void *)(i + 1)))
			return 1;
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	return 0;
}

/* Make more buffers than the process may have mappings. */
static int many(size_t size)
{
	enum { MANY = 40000 };
	static char *p[MANY];

	for (int i = 0; i < MANY; i++) {
		p[i] = hide(malloc(size));
		if (!p[i])
			return 1;
		p[i][0] = 1;
	}
	for (int i = 0; i < MANY; i++)
		free(p[i]);
	for (int i = 0; i < 1000; i++)
		free(made(size));
	return 0;
}

/* Make more buffers than mappings, then free every other one. */
static int many_holes(size_t size)
{
	enum { MANY = 50000 };
	static char *p[MANY];

	for (int i = 0; i < MANY; i++) {
		p[i] = hide(malloc(size));
		if (!p[i])
			return 1;
	}
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < MANY; i += 2)
			free(p[i]);
		for (int i = 0; i < 1000; i++)
			if (mmap(NULL, 4096, i & 1 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
				return 2;
		for (int i = 0; i < MANY; i += 2) {
			p[i] = hide(malloc(size));
			if (!p[i])
				return 3;
		}
	}
	return 0;
}

static int small_aligned(size_t unused)
{
	char *p = hide(aligned_alloc(MIB, 100)), *q = hide(aligned_alloc(64 * KIB, 5000));

	(void)unused;
	memset(p, 1, 100);
	memset(q, 1, 5000);
	if ((uintptr_t)p % MIB || malloc_usable_size(p) != 100 || malloc_usable_size(q) != 5000)
		return 1;
	q[5000] = 1;
	free(p);
	free(q);
	return 0;
}

static const struct {
	const char *name;
	int (*run)(size_t);
} cases[] = {
#define CASE(f) { #f, f }
	CASE(use_after_free), CASE(write_after_free), CASE(overflow), CASE(overflow_a_page), CASE(overflow_after_realloc),
	CASE(free_twice), CASE(old_pointer_after_realloc), CASE(in_a_child), CASE(threads), CASE(many), CASE(small_aligned), CASE(overflow_after_less),
	CASE(told), CASE(overflow_after_advice), CASE(many_holes),
};

/* Run a case. Returns its wait status, and puts its output into `said`. */
static int run(const char *name, size_t bytes, const char *more)
{
	char size[30], load[4200], *args[] = { (char *)"guard", (char *)name, size, NULL };
	char *env[] = { (char *)"HUGEPIN_GUARD=1", (char *)"HUGEPIN_STATS=2", load, (char *)more, NULL };
	posix_spawn_file_actions_t fa;
	int out[2], status = -1;
	size_t got = 0;
	ssize_t n;
	pid_t pid;

	snprintf(size, sizeof size, "%zu", bytes);
	snprintf(load, sizeof load, "LD_PRELOAD=%s", getenv("LD_PRELOAD"));
	said[0] = 0;
	if (!EXPECT(!pipe2(out, O_CLOEXEC)))
		return -1;
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, out[1], STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&fa, out[1], STDERR_FILENO);
	EXPECT(!posix_spawn(&pid, "/proc/self/exe", &fa, NULL, args, env));
	posix_spawn_file_actions_destroy(&fa);
	close(out[1]);
	while ((n = read(out[0], said + got, sizeof said - 1 - got)) > 0)
		got += (size_t)n;
	said[got] = 0;
	close(out[0]);
	EXPECT(waitpid(pid, &status, 0) == pid);
	return status;
}

static bool ends_by(int status, int sig)
{
	if (WIFSIGNALED(status) && WTERMSIG(status) == sig)
		return true;
	t_print("# status %x, said: %.300s\n", status, said);
	return false;
}

/* A counter that is 0 is not printed. */
static uint64_t statistic(const char *name)
{
	const char *at = strstr(said, name);

	if (!at)
		return strstr(said, ": placed ") ? 0 : UINT64_MAX;
	return strtoull(at + strlen(name), NULL, 10);
}

static const size_t sizes[] = { 32 * KIB, 40000, 256 * KIB, 4 * MIB, 100 * MIB };
enum { SIZES = sizeof sizes / sizeof *sizes };

TEST(what_was_freed_cannot_be_read)
{
	for (int i = 0; i < SIZES; i++)
		EXPECT(ends_by(run("use_after_free", sizes[i], NULL), SIGSEGV));
}

TEST(nor_written)
{
	for (int i = 0; i < SIZES; i++)
		EXPECT(ends_by(run("write_after_free", sizes[i], NULL), SIGSEGV));
}

TEST(nor_what_was_reallocated)
{
	for (int i = 0; i < SIZES; i++)
		EXPECT(ends_by(run("old_pointer_after_realloc", sizes[i], NULL), SIGSEGV));
}

TEST(a_byte_behind_the_end_is_noticed_at_free_which_says_where)
{
	char expected[200];
	void *p;

	for (int i = 0; i < SIZES; i++) {
		const size_t size = sizes[i] + 1 + (size_t)i * 700;

		EXPECT(ends_by(run("overflow", size, NULL), SIGABRT));
		EXPECT(sscanf(said, "%p", &p) == 1);
		snprintf(expected, sizeof expected, "free(%p): written to behind its %zu bytes\n", p, size);
		if (!EXPECT(strstr(said, expected)))
			t_print("# said: %.300s\n", said);
	}
	EXPECT(ends_by(run("overflow_after_realloc", 40000, NULL), SIGABRT));
	EXPECT(strstr(said, "written to behind its 40020 bytes\n"));
	EXPECT(ends_by(run("small_aligned", 0, NULL), SIGABRT));
	EXPECT(strstr(said, "written to behind its 5000 bytes\n"));
}

TEST(also_where_realloc_ended_the_buffer)
{
	EXPECT(ends_by(run("overflow_after_less", 0, NULL), SIGABRT));
	EXPECT(strstr(said, "written to behind its 40000 bytes\n"));
	EXPECT(ends_by(run("overflow_after_advice", 60000, NULL), SIGABRT));
	EXPECT(strstr(said, "written to behind its 55000 bytes\n"));
}

TEST(what_the_kernel_does_to_the_last_page_is_none_of_the_programs_writes)
{
	EXPECT_EQ(run("told", 60000, NULL), 0);
	EXPECT_EQ(run("told", 61440, NULL), 0);
}

TEST(or_said_where_the_program_is_to_go_on)
{
	EXPECT_EQ(run("overflow", 40000, "HUGEPIN_ABORT=0"), 0);
	EXPECT(strstr(said, "written to behind its 40000 bytes\n"));
}

TEST(a_page_behind_the_end_is_noticed_at_once)
{
	for (int i = 0; i < SIZES; i++) {
		EXPECT(ends_by(run("overflow_a_page", sizes[i], NULL), SIGSEGV));
		EXPECT(ends_by(run("overflow_a_page", sizes[i] + 4096, NULL), SIGSEGV));
		EXPECT(ends_by(run("overflow_a_page", sizes[i] + 1, NULL), SIGSEGV));
	}
}

TEST(a_second_free_is_named)
{
	EXPECT(ends_by(run("free_twice", MIB, NULL), SIGABRT));
	EXPECT(strstr(said, ": already free\n"));
}

TEST(a_child_of_fork_has_guards_too)
{
	EXPECT_EQ(run("in_a_child", MIB, NULL), 0);
	EXPECT_EQ(run("in_a_child", 40000, NULL), 0);
}

TEST(threads_find_their_bytes)
{
	EXPECT_EQ(run("threads", 0, NULL), 0);
	/* The cost is three calls for each buffer. No buffer is live. The kept memory is close to its limit. */
	EXPECT(statistic("guard_calls ") > 40000);
	EXPECT_EQ(statistic("guard_missing "), 0);
	EXPECT_EQ(statistic("guard_bytes "), 0);
	EXPECT(statistic("guard_kept_bytes ") <= 64 * MIB && statistic("guard_kept_bytes ") > 63 * MIB);
}

TEST(where_there_would_be_too_many_mappings_buffers_go_without)
{
	EXPECT_EQ(run("many", 32 * KIB, NULL), 0);
	EXPECT(statistic("guard_missing ") > 10000 && statistic("guard_missing ") < 40000);
	EXPECT_EQ(statistic(" nomem "), 0);
	EXPECT_EQ(run("many_holes", 40000, NULL), 0);
}

int main(int argc, char **argv)
{
	for (size_t i = 0; argc == 3 && i < sizeof cases / sizeof *cases; i++)
		if (!strcmp(argv[1], cases[i].name))
			return cases[i].run(strtoul(argv[2], NULL, 10));
	return t_run(argc, argv);
}
