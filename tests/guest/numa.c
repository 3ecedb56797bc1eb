/* link: hugepin */
/* guest: numa */
/*
 * HUGEPIN_NUMA and HUGEPIN_PAGES=1g where there are two nodes and a page of 1 GiB on each: that memory lies where it was asked
 * for, in pages of the size that was asked for, and that nobody dies where there is none. Each case is this program again, with
 * the variables set. Where pages lie is asked of move_pages(2), their size of smaps.
 */
#include "hugepin.h"
#include "live/live.h"

#include <sys/syscall.h>

#define NODE_POOL "/sys/devices/system/node/node%d/hugepages/hugepages-%lukB/%s"
#define GIANTS_FREE "/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages"
enum { NODES = 2, PAGES = 40 };

static long node_number(int node, size_t page_size, const char *file)
{
	char path[120];
	snprintf(path, sizeof path, NODE_POOL, node, page_size / KIB, file);
	return file_number(path);
}

static bool set_pool(int node, long pages)
{
	char path[120], text[24];
	snprintf(path, sizeof path, NODE_POOL, node, PAGE / KIB, "nr_hugepages");
	snprintf(text, sizeof text, "%ld", pages);
	return file_write(path, text) && node_number(node, PAGE, "nr_hugepages") == pages;
}

/* ------------------------------------------------------------------ what the cases look at */

/* How many of the base pages at p, looked at in steps, lie on `node`; -1 if one lies nowhere. */
static int count_on(int node, char *p, size_t size, size_t step)
{
	int n = 0;
	for (size_t at = 0; at < size; at += step) {
		void *page = p + at;
		int where = -1;
		if (syscall(SYS_move_pages, 0, 1UL, &page, NULL, &where, 0) || where < 0)
			return -1;
		n += where == node;
	}
	return n;
}

/* KernelPageSize of the mapping that p lies in, in KiB. */
static long page_kib(const void *p)
{
	static char buf[1 << 18];
	bool inside = false;
	if (file_read("/proc/self/smaps", buf, sizeof buf) <= 0)
		return -1;
	for (char *line = strtok(buf, "\n"); line; line = strtok(NULL, "\n")) {
		unsigned long from, to;
		long kib;
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			inside = (uintptr_t)p >= from && (uintptr_t)p < to;
		else if (inside && sscanf(line, "KernelPageSize: %ld", &kib) == 1)
			return kib;
	}
	return -1;
}

static bool is_giant(const void *p)
{
	return page_kib(p) == (long)(GIB / KIB);
}

static struct hugepin_stats stats(void)
{
	struct hugepin_stats s;
	hugepin_stats(&s, sizeof s);
	return s;
}

static struct hugepin_extent extent_of(const void *p)
{
	struct hugepin_extent e = { .len = 0 };
	hugepin_extent(p, &e, sizeof e);
	return e;
}

/* ------------------------------------------------------------------ the cases */

#define CHECK(x)                                                                                                       \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			t_print("# %s:%d: %s\n", __FILE__, __LINE__, #x);                                              \
			return 1;                                                                                      \
		}                                                                                                      \
	} while (0)

/* Buffers of all sizes lie on the node, at once and after they were given back. */
static int case_on(int node, int kind)
{
	for (int round = 0; round < 2; round++) {
		char *p[8];
		for (int i = 0; i < 8; i++) {
			size_t size = 100000 + (size_t)i * 1000000;
			p[i] = hugepin_calloc(1, size);
			CHECK(p[i]);
			memset(p[i], i + 1, size);
			CHECK(count_on(node, p[i], size, 65536) == (int)((size + 65535) / 65536));
			CHECK(extent_of(p[i]).node == node);
			/* Where THP are made for all, they are for memory, too, for which nobody asked. */
			CHECK(extent_of(p[i]).kind == (uint32_t)kind ||
			      (kind == HUGEPIN_KIND_BASE && extent_of(p[i]).kind == HUGEPIN_KIND_THP));
		}
		for (int i = 0; i < 8; i++)
			hugepin_free(p[i]);
		hugepin_purge();
		CHECK(stats().hugetlb_bytes + stats().thp_bytes + stats().base_bytes == 0);
	}
	return 0;
}

/* Half of the pages here, half there. */
static int case_spread(int unused, int kind)
{
	char *p = hugepin_malloc(64 * MIB);
	int n;
	(void)unused;
	memset(p, 1, 64 * MIB);
	CHECK(extent_of(p).kind == (uint32_t)kind && extent_of(p).node == -1);
	n = count_on(0, p, 64 * MIB, PAGE);
	CHECK(n >= 12 && n <= 20);
	CHECK(n + count_on(1, p, 64 * MIB, PAGE) == 32);
	return 0;
}

/* The node's part of the pool is too small: what is there is used, the rest are other pages of the same node, in a child too. */
static int case_short(int node, int there)
{
	char *p = hugepin_malloc(32 * MIB);
	memset(p, 1, 32 * MIB);
	CHECK(count_on(node, p, 32 * MIB, 65536) == 512);
	CHECK(stats().hugetlb_bytes == (uint64_t)there * PAGE);
	CHECK(stats().thp_bytes == 32 * MIB - (uint64_t)there * PAGE);
	CHECK(stats().pool_short > 0 && stats().pool_denied == 0);
	pid_t pid = fork();
	if (pid == 0) {
		bool was = p[0] == 1 && p[32 * MIB - 1] == 1;
		memset(p, 2, 32 * MIB);
		_exit(was && count_on(node, p, 32 * MIB, 65536) == 512 ? 0 : 1);
	}
	CHECK(child_wait(pid) == 0);
	CHECK(p[0] == 1 && p[32 * MIB - 1] == 1);
	return 0;
}

/* Pages that were reserved while they were there, and are taken by another before they are populated: no SIGBUS. */
static int case_taken(int node, int unused)
{
	char *p[20];
	bool taken = false;
	(void)unused;
	for (int i = 0; i < 20; i++) {
		p[i] = hugepin_malloc(3 * MIB);
		CHECK(p[i]);
		memset(p[i], i, 3 * MIB);
		CHECK(count_on(node, p[i], 3 * MIB, 65536) == 48);
		if (stats().reserved_bytes >= 8 * MIB && !taken) { /* what is reserved is of no node: all of this one's go */
			set_pool(node, 0);
			CHECK(node_number(node, PAGE, "free_hugepages") == 0);
			taken = true;
		}
	}
	CHECK(taken && stats().pool_denied > 0);
	for (int i = 0; i < 20; i++)
		CHECK(p[i][0] == i && p[i][3 * MIB - 1] == i);
	return 0;
}

static int case_local(int unused, int unused2)
{
	char *p = hugepin_malloc(4 * MIB);
	(void)unused, (void)unused2;
	memset(p, 1, 4 * MIB);
	CHECK(extent_of(p).node == -1);
	return 0;
}

/* Buffers lie in a page of 1 GiB, which is one mapping, comes as a whole and goes as a whole. node -1: any. */
static int case_giant(int node, int unused)
{
	long before = file_number(GIANTS_FREE);
	char *p = hugepin_malloc(100000), *q = hugepin_malloc(700 * MIB), *r;
	struct hugepin_extent e;
	(void)unused;
	memset(p, 1, 100000);
	q[0] = q[700 * MIB - 1] = 2;
	e = extent_of(p);
	CHECK(is_giant(p) && is_giant(q + 700 * MIB - 1));
	CHECK(e.len == GIB && (uintptr_t)e.addr % GIB == 0 && extent_of(q).addr == e.addr);
	CHECK(e.page_shift == 30 && e.kind == HUGEPIN_KIND_HUGETLB && e.node == node);
	CHECK(node < 0 || count_on(node, q, 700 * MIB, PAGE) == 350);
	CHECK(stats().hugetlb_bytes == GIB && stats().mappings <= 2);
	CHECK(file_number(GIANTS_FREE) == before - 1);
	hugepin_free(q);
	hugepin_purge();
	CHECK(stats().hugetlb_bytes == GIB); /* a part of it is in use */
	CHECK(p[0] == 1 && p[99999] == 1);
	r = hugepin_calloc(1, 10 * MIB);
	CHECK(zero_check(r, 10 * MIB) == -1);
	hugepin_free(r);
	hugepin_free(p);
	hugepin_purge();
	CHECK(stats().hugetlb_bytes == 0 && stats().extents == 0 && stats().mappings == 0);
	CHECK(file_number(GIANTS_FREE) == before);
	return 0;
}

/* A free page of 1 GiB is given back after the decay time, and none of it is kept. */
static int case_decays(int unused, int unused2)
{
	char *p = hugepin_malloc(100 * MIB);
	(void)unused, (void)unused2;
	memset(p, 1, 100 * MIB);
	CHECK(extent_of(p).page_shift == 30);
	hugepin_free(p);
	for (int i = 0; i < 1000 && stats().hugetlb_bytes; i++)
		sleep_ms(50);
	CHECK(stats().hugetlb_bytes == 0);
	CHECK(stats().decayed_bytes == GIB);
	return 0;
}

/* More than there are: the rest is of other pages. */
static int case_more(int giants, int unused)
{
	char *p[4];
	int got = 0;
	(void)unused;
	for (int i = 0; i < 4; i++) {
		p[i] = hugepin_malloc(i < 2 ? 900 * MIB : 200 * MIB); /* the first two need an extent each */
		CHECK(p[i]);
		for (size_t at = 0; at < 100 * MIB; at += 4096)
			p[i][at] = (char)(i + 1);
		CHECK(is_giant(p[i]) == (extent_of(p[i]).page_shift == 30));
		got += is_giant(p[i]);
	}
	CHECK(got == giants);
	CHECK(stats().hugetlb_bytes >= (uint64_t)giants * GIB);
	CHECK(stats().pool_short > 0);
	for (int i = 0; i < 4; i++)
		CHECK(p[i][0] == i + 1 && p[i][50 * MIB] == i + 1);
	return 0;
}

/* One buffer over all the pages of 1 GiB there are, and further. */
static int case_over(int giants, int unused)
{
	const size_t size = 2 * GIB + 300 * MIB, step = 100 * MIB;
	char *p = hugepin_malloc(size);
	(void)unused;
	CHECK(p);
	for (size_t at = 0; at < size; at += step)
		p[at] = (char)(at / step + 1);
	for (int i = 0; i < 3; i++)
		CHECK(is_giant(p + (size_t)i * GIB) == (i < giants));
	CHECK(extent_of(p).page_shift < 30 && extent_of(p).len == 3 * GIB);
	for (size_t at = 0; at < size; at += step)
		CHECK(p[at] == (char)(at / step + 1));
	hugepin_free(p);
	hugepin_purge();
	CHECK(stats().hugetlb_bytes + stats().thp_bytes == 0);
	return 0;
}

static int in_child(char **p, int n, size_t size)
{
	CHECK(stats().hugetlb_bytes == 0);
	for (int i = 0; i < n; i++) {
		CHECK(pattern_check(p[i], size, (uint64_t)i) == -1);
		pattern_write(p[i], size, 100);
		CHECK(page_kib(p[i]) == 4);
	}
	char *more = hugepin_malloc(30 * MIB);
	memset(more, 3, 30 * MIB);
	for (int i = 0; i < n; i++) {
		CHECK(pattern_check(p[i], size, 100) == -1);
		hugepin_free(p[i]);
	}
	hugepin_free(more);
	hugepin_purge();
	CHECK(stats().thp_bytes + stats().base_bytes + stats().taken_bytes == 0);
	return 0;
}

/* A child gets a copy of what is live, and needs no page of 1 GiB. */
static int case_fork(int unused, int unused2)
{
	enum { N = 10 };
	const size_t size = 5 * MIB + 12345;
	char *p[N], *q[N];
	(void)unused, (void)unused2;
	for (int i = 0; i < N; i++) {
		p[i] = hugepin_malloc(size);
		q[i] = hugepin_malloc(9 * MIB);
		q[i][0] = 1;
		pattern_write(p[i], size, (uint64_t)i);
	}
	for (int i = 0; i < N; i++)
		hugepin_free(q[i]);
	for (int k = 0; k < 2; k++) {
		pid_t pid = fork();
		if (pid == 0) {
			sleep_ms(200); /* the parent writes first */
			_exit(in_child(p, N, size));
		}
		for (int i = 0; i < N; i++) {
			CHECK(pattern_check(p[i], size, (uint64_t)i) == -1);
			memset(p[i], 0x55, size);
		}
		CHECK(child_wait(pid) == 0);
		for (int i = 0; i < N; i++) {
			CHECK(p[i][0] == 0x55 && p[i][size - 1] == 0x55);
			CHECK(is_giant(p[i]));
			pattern_write(p[i], size, (uint64_t)i);
		}
	}
	CHECK(stats().forks_copied == 2 && stats().hugetlb_bytes == GIB);
	CHECK(stats().fork_copied_bytes < 2 * 100 * MIB);
	return 0;
}

/* ------------------------------------------------------------------ running them */

static const struct {
	const char *name;
	int (*run)(int arg, int arg2);
} cases[] = {
	{ "on", case_on },     { "spread", case_spread }, { "short", case_short }, { "taken", case_taken },
	{ "local", case_local }, { "giant", case_giant },   { "decays", case_decays }, { "more", case_more },
	{ "over", case_over }, { "fork", case_fork },
};

static int case_main(char **argv)
{
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (!strcmp(argv[0], cases[i].name))
			return cases[i].run(atoi(argv[1]), atoi(argv[2]));
	return 2;
}

static char said[1000]; /* on stderr by the last run */

/* This program again, with these variables. Its status. */
static int run(const char *pages, const char *numa, const char *name, int arg, int arg2)
{
	char p[40], n[40], a[20], b[20];
	int err[2];
	pid_t pid;
	ssize_t got = 0, m;
	snprintf(p, sizeof p, "HUGEPIN_PAGES=%s", pages);
	snprintf(n, sizeof n, "HUGEPIN_NUMA=%s", numa);
	snprintf(a, sizeof a, "%d", arg);
	snprintf(b, sizeof b, "%d", arg2);
	char *args[] = { (char *)"numa", (char *)"--case", (char *)name, a, b, NULL };
	char *env[] = { p, n, (char *)"HUGEPIN_DECAY=400ms", NULL };
	posix_spawn_file_actions_t fa;
	if (!EXPECT(!pipe2(err, O_CLOEXEC)))
		return -1;
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, err[1], 2);
	int r = posix_spawn(&pid, "/proc/self/exe", &fa, NULL, args, env);
	posix_spawn_file_actions_destroy(&fa);
	close(err[1]);
	while ((m = read(err[0], said + got, sizeof said - 1 - (size_t)got)) > 0)
		got += m;
	said[got] = 0;
	close(err[0]);
	return r ? -1 : child_wait(pid);
}

#define NEEDS_NODES                                                                                                    \
	do {                                                                                                           \
		if (node_number(1, PAGE, "nr_hugepages") < 0)                                                          \
			SKIP("two NUMA nodes are needed: a guest has them");                                           \
		if (!set_pool(0, PAGES) || !set_pool(1, PAGES))                                                        \
			SKIP("hugetlb pool: no %d pages on each node", PAGES);                                         \
	} while (0)

#define NEEDS_GIANTS                                                                                                   \
	do {                                                                                                           \
		if (node_number(0, GIB, "free_hugepages") != 1 || node_number(1, GIB, "free_hugepages") != 1)          \
			SKIP("a page of 1 GiB on each of two NUMA nodes is needed: a guest has them");                 \
	} while (0)

TEST(pool_pages_lie_on_the_node_asked_for)
{
	NEEDS_NODES;
	EXPECT_EQ(run("hugetlb", "0", "on", 0, HUGEPIN_KIND_HUGETLB), 0);
	EXPECT_EQ(run("hugetlb", "1", "on", 1, HUGEPIN_KIND_HUGETLB), 0);
}

TEST(thp_lies_on_the_node_asked_for)
{
	NEEDS_NODES;
	EXPECT_EQ(run("thp", "0", "on", 0, HUGEPIN_KIND_THP), 0);
	EXPECT_EQ(run("thp", "1", "on", 1, HUGEPIN_KIND_THP), 0);
}

TEST(base_pages_lie_on_the_node_asked_for)
{
	NEEDS_NODES;
	EXPECT_EQ(run("base", "0", "on", 0, HUGEPIN_KIND_BASE), 0);
	EXPECT_EQ(run("base", "1", "on", 1, HUGEPIN_KIND_BASE), 0);
}

TEST(interleaved_pages_lie_on_both_nodes)
{
	NEEDS_NODES;
	EXPECT_EQ(run("hugetlb", "interleave", "spread", 0, HUGEPIN_KIND_HUGETLB), 0);
	EXPECT_EQ(run("thp", "interleave", "spread", 0, HUGEPIN_KIND_THP), 0);
}

TEST(where_the_pool_of_a_node_is_empty_or_small_other_pages_of_that_node_are_used)
{
	NEEDS_NODES;
	EXPECT(set_pool(1, 0));
	EXPECT_EQ(run("auto", "1", "short", 1, 0), 0);
	EXPECT(set_pool(1, 5));
	EXPECT_EQ(run("auto", "1", "short", 1, 5), 0);
	EXPECT_EQ(node_number(0, PAGE, "free_hugepages"), PAGES);
	EXPECT_EQ(node_number(1, PAGE, "free_hugepages"), 5);
}

TEST(reserved_pages_that_are_gone_from_a_node_kill_nobody)
{
	NEEDS_NODES;
	EXPECT_EQ(run("auto", "1", "taken", 1, 0), 0);
}

TEST(a_node_without_memory_is_said_in_one_line)
{
	EXPECT_EQ(run("auto", "999", "local", 0, 0), 0);
	EXPECT(strstr(said, "HUGEPIN_NUMA") && strstr(said, "999") && strstr(said, "local"));
	EXPECT_EQ(strchr(said, '\n') - said, strlen(said) - 1);
	EXPECT_EQ(run("auto", "local", "local", 0, 0), 0);
	EXPECT(!said[0]);
}

TEST(buffers_lie_in_pages_of_1_gib_that_come_and_go_as_wholes)
{
	NEEDS_GIANTS;
	EXPECT_EQ(run("1g", "local", "giant", -1, 0), 0);
	EXPECT_EQ(run("1g", "1", "giant", 1, 0), 0);
	EXPECT_EQ(run("1g", "local", "decays", 0, 0), 0);
}

TEST(where_there_are_no_more_pages_of_1_gib_others_are_used)
{
	NEEDS_GIANTS;
	EXPECT_EQ(run("1g", "local", "over", 2, 0), 0);
	EXPECT_EQ(run("1g", "0", "more", 1, 0), 0);
	EXPECT_EQ(node_number(0, GIB, "free_hugepages") + node_number(1, GIB, "free_hugepages"), 2);
}

TEST(a_child_gets_a_copy_of_what_lies_in_a_page_of_1_gib)
{
	NEEDS_GIANTS;
	EXPECT_EQ(run("1g", "local", "fork", 0, 0), 0);
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "--case"))
		return case_main(argv + 2);
	return t_run(argc, argv);
}
