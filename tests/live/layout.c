/* link: hugepin preload */
/*
 * The addresses of large buffers: they cannot be predicted, neither before nor from the addresses of the tables or of
 * the small tier. Each mode is a few hundred short runs of this program. The addresses must look like 19 random bits.
 * Bits are checked one by one, since collisions in so few runs would not tell 17 bits from 19.
 */
#include "live.h"

#include <dlfcn.h>
#include <limits.h>
#include <sys/personality.h>

#include "base/stats.h"
#include "hugepin.h"

enum { RUNS = 300, MANY = 2000, LOW_BIT = 21, BITS = 19 };

struct layout {
	uintptr_t large, tables, small;
};

static char dropin[PATH_MAX + 40];
static struct layout got[MANY];

static int child(const char *size)
{
	const struct hp_view *v = (const struct hp_view *)((const char *)dlsym(RTLD_DEFAULT, "hugepin_stats_page") + HP_VIEW_OFFSET);
	struct layout l = { .small = (uintptr_t)hide(malloc(100)) };
	char *p = hide(getenv("LD_PRELOAD") ? malloc(strtoul(size, NULL, 0)) : hugepin_malloc(strtoul(size, NULL, 0)));

	if (!p || (uintptr_t)p - v->heap.base >= v->heap.size)
		return 1;
	*p = 1;
	l.large = (uintptr_t)p;
	l.tables = v->heap.pages;
	return write(STDOUT_FILENO, &l, sizeof l) != sizeof l;
}

/* Run this program n times. setting: an environment variable, or NULL. */
static bool runs(struct layout *ret_, int n, bool preload, const char *setting, size_t bytes)
{
	char load[PATH_MAX + 60], size[30];
	char *env[] = { preload ? load : NULL, NULL, NULL }, *args[] = { (char *)"layout", (char *)"child", size, NULL };
	posix_spawn_file_actions_t fa;
	int out[2], status = -1;
	bool ok = true;
	pid_t pid;

	snprintf(load, sizeof load, "LD_PRELOAD=%s", dropin);
	snprintf(size, sizeof size, "%zu", bytes);
	env[preload] = (char *)setting;
	if (!EXPECT(!pipe2(out, O_CLOEXEC)))
		return false;
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, out[1], STDOUT_FILENO);
	for (int i = 0; i < n && ok; i++)
		ok = EXPECT(!posix_spawn(&pid, "/proc/self/exe", &fa, NULL, args, env)) &&
		     EXPECT(waitpid(pid, &status, 0) == pid && !status) && EXPECT(read(out[0], &ret_[i], sizeof *ret_) == sizeof *ret_);
	posix_spawn_file_actions_destroy(&fa);
	close(out[0]);
	close(out[1]);
	return ok;
}

static int compare(const void *a_, const void *b_)
{
	const uintptr_t a = *(const uintptr_t *)a_, b = *(const uintptr_t *)b_;

	return a < b ? -1 : a > b;
}

/* Expect that the numbers have BITS random bits, from LOW_BIT on. */
static void expect_random(const char *what, uintptr_t *x, int n)
{
	int equal = 0;

	for (int bit = LOW_BIT; bit < LOW_BIT + BITS; bit++) {
		int ones = 0;

		for (int i = 0; i < n; i++)
			ones += (int)(x[i] >> bit & 1);
		/* Five standard deviations. */
		if (!EXPECT((2 * ones - n) * (2 * ones - n) <= 25 * n))
			t_print("# %s: bit %d is set in %d of %d\n", what, bit, ones, n);
	}
	qsort(x, (size_t)n, sizeof *x, compare);
	for (int i = 1; i < n; i++)
		equal += x[i] == x[i - 1];
	/* The mean is half of n * n / 2^19. */
	if (!EXPECT(equal <= 3 + 3 * (n * n / (2 << BITS))))
		t_print("# %s: %d of %d are there already\n", what, equal, n);
}

static void expect_layout(int n, bool preload, const char *setting, size_t bytes)
{
	static uintptr_t x[MANY];

	if (!runs(got, n, preload, setting, bytes))
		return;
	for (int i = 0; i < n; i++)
		x[i] = got[i].large;
	expect_random("large buffer", x, n);
	for (int i = 0; i < n; i++)
		x[i] = got[i].tables - got[i].large;
	expect_random("tables - large buffer", x, n);
	for (int i = 0; i < n; i++)
		x[i] = got[i].small - got[i].large;
	expect_random("small - large buffer", x, n);
}

TEST_CASE(with_the_pool_the_first_large_buffer_may_lie_anywhere,
	  expect_layout(MANY, true, "HUGEPIN_PAGES=auto", 1 * MIB))
TEST_CASE(so_with_thp, expect_layout(RUNS, true, "HUGEPIN_PAGES=thp", 1 * MIB))
TEST_CASE(so_without_the_pool, expect_layout(RUNS, true, "HUGEPIN_PAGES=base", 40000))
TEST_CASE(so_without_the_drop_in, expect_layout(RUNS, false, "HUGEPIN_PAGES=auto", 1 * MIB))

TEST(so_of_any_size)
{
	expect_layout(RUNS, false, "HUGEPIN_PAGES=thp", 64 * MIB);
	expect_layout(RUNS, false, "HUGEPIN_PAGES=thp", 200 * MIB);
}

TEST_CASE(so_in_a_small_span, expect_layout(RUNS, false, "HUGEPIN_SPAN=64M", 4 * MIB))

/* There the small tier's addresses lie in the way of one place in eight. */
TEST(so_where_mappings_go_upwards)
{
	const int was = personality(0xffffffff);

	EXPECT(personality((unsigned long)was | ADDR_COMPAT_LAYOUT) != -1);
	expect_layout(MANY, true, NULL, 1 * MIB);
	personality((unsigned long)was);
}

TEST(so_where_there_is_no_room_for_it_as_far_as_the_kernel_goes)
{
	struct rlimit was, limit = { 16 * GIB, RLIM_INFINITY };
	static uintptr_t x[RUNS];

	getrlimit(RLIMIT_AS, &was);
	limit.rlim_max = was.rlim_max;
	EXPECT(!setrlimit(RLIMIT_AS, &limit));
	if (runs(got, RUNS, true, NULL, 1 * MIB)) {
		for (int i = 0; i < RUNS; i++)
			x[i] = got[i].large;
		expect_random("large buffer", x, RUNS);
	}
	setrlimit(RLIMIT_AS, &was);
}

TEST(for_a_debugger_it_lies_in_the_same_place_each_time)
{
	const int was = personality(0xffffffff);

	EXPECT(personality((unsigned long)was | ADDR_NO_RANDOMIZE) != -1);
	if (runs(got, 8, true, NULL, 1 * MIB))
		for (int i = 1; i < 8; i++)
			EXPECT(!memcmp(&got[i], &got[0], sizeof got[0]));
	personality((unsigned long)was);
}

int main(int argc, char **argv)
{
	char self[PATH_MAX];
	const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	if (argc == 3 && !strcmp(argv[1], "child"))
		return child(argv[2]);
	if (n <= 0)
		return 2;
	self[n] = 0;
	for (int i = 0; i < 3; i++)
		*strrchr(self, '/') = 0;
	snprintf(dropin, sizeof dropin, "%s/libhugepin-malloc.so", self);
	return t_run(argc, argv);
}
