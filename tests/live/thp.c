/* link: hugepin */
/* Statistics of transparent hugepages show what the kernel gave, not what it was asked for. Each subject is a program
 * of its own. */
#include "live.h"

#include <sys/prctl.h>

#include "hugepin.h"

enum { SKIPPED = 77, SIZE = 64 << 20 };

static char *buffer;

/* The bytes in transparent hugepages of the only buffer, as the kernel tells them. */
static size_t there(void)
{
	return smaps_kinds(0, (uintptr_t)buffer, (uintptr_t)buffer + SIZE).thp;
}

static int kind(void)
{
	struct hugepin_extent e;
	return hugepin_extent(buffer, &e, sizeof e) > 0 ? (int)e.kind : -1;
}

static void expect_what_is_there(void)
{
	struct hugepin_stats s;
	EXPECT(hugepin_stats(&s, sizeof s) > 0);
	EXPECT_EQ(s.thp_bytes, there());
	EXPECT_EQ(s.thp_bytes + s.base_bytes, SIZE);
}

static bool allocate(void)
{
	buffer = hide(hugepin_malloc(SIZE));
	return EXPECT(buffer);
}

static int is_huge(void)
{
	if (!allocate())
		return 1;
	expect_what_is_there();
	memset(buffer, 1, SIZE);
	if (there() < SIZE)
		return SKIPPED;
	expect_what_is_there();
	EXPECT_EQ(kind(), HUGEPIN_KIND_THP);
	/* Split one hugepage, so that it has base pages. */
	char *at = (char *)(((uintptr_t)buffer + SIZE / 2) & ~(PAGE - 1)) + 4096;
	if (madvise(at, 4096, MADV_DONTNEED) || there() > SIZE - PAGE)
		return SKIPPED;
	*at = 1;
	expect_what_is_there();
	EXPECT_EQ(kind(), HUGEPIN_KIND_BASE);
	return 0;
}

static int is_disabled(void)
{
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		return SKIPPED;
	if (!allocate())
		return 1;
	EXPECT_EQ(kind(), HUGEPIN_KIND_BASE);
	memset(buffer, 1, SIZE);
	EXPECT_EQ(there(), 0);
	expect_what_is_there();
	EXPECT_EQ(kind(), HUGEPIN_KIND_BASE);
	return 0;
}

static int is_disabled_later(void)
{
	if (!allocate() || prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		return SKIPPED;
	memset(buffer, 1, SIZE);
	EXPECT_EQ(there(), 0);
	expect_what_is_there();
	EXPECT_EQ(kind(), HUGEPIN_KIND_BASE);
	return 0;
}

static int (*const subjects[])(void) = { is_huge, is_disabled, is_disabled_later };

static int again(int subject)
{
	pid_t pid;
	char number[12];
	snprintf(number, sizeof number, "%d", subject);
	char *args[] = { (char *)"thp", (char *)"--subject", number, NULL };
	setenv("HUGEPIN_PAGES", "thp", 1);
	EXPECT(!posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ));
	return child_wait(pid);
}

TEST(where_all_is_huge_or_a_page_is_not_that_is_said)
{
	int r = again(0);
	if (r == SKIPPED)
		SKIP("no transparent hugepages");
	EXPECT_EQ(r, 0);
}

TEST(where_a_process_is_to_have_none_that_is_said)
{
	int r = again(1);
	if (r == SKIPPED)
		SKIP("prctl(PR_SET_THP_DISABLE)");
	EXPECT_EQ(r, 0);
}

TEST(where_a_process_gets_none_from_now_on_that_is_said)
{
	if (sysconf(_SC_PAGESIZE) != 4096)
		SKIP("with larger base pages the kernel does not tell of THP of 2 MiB");
	int r = again(2);
	if (r == SKIPPED)
		SKIP("prctl(PR_SET_THP_DISABLE)");
	EXPECT_EQ(r, 0);
}

int main(int argc, char **argv)
{
	char c;
	if (argc == 3 && !strcmp(argv[1], "--subject")) {
		int r = subjects[strtol(argv[2], NULL, 10)]();
		return r ? r : t_failures != 0;
	}
	if (argc == 2 && !strcmp(argv[1], "--wait")) { /* for top.sh */
		is_disabled_later();
		t_print("process %d waits\n", (int)getpid());
		return read(0, &c, 1) < 0;
	}
	return t_run(argc, argv);
}
