/* link: hugepin */
/* Statistics of transparent hugepages show what the kernel gave, not what it was asked for. Each test is a program
 * of its own. */
#include "live.h"

#include <sys/prctl.h>

#include "hugepin.h"

enum { SIZE = 64 << 20 };

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

static void with_thp(void (*body)(void))
{
	setenv("HUGEPIN_PAGES", "thp", 1);
	anew(body);
}

TEST_BY(with_thp, where_all_is_huge_or_a_page_is_not_that_is_said)
{
	if (!allocate())
		return;
	expect_what_is_there();
	memset(buffer, 1, SIZE);
	if (there() < SIZE)
		SKIP("no transparent hugepages");
	expect_what_is_there();
	EXPECT_EQ(kind(), HUGEPIN_KIND_THP);
	/* Split one hugepage, so that it has base pages. */
	char *at = (char *)(((uintptr_t)buffer + SIZE / 2) & ~(PAGE - 1)) + 4096;
	if (madvise(at, 4096, MADV_DONTNEED) || there() > SIZE - PAGE)
		SKIP("no transparent hugepages");
	*at = 1;
	expect_what_is_there();
	EXPECT_EQ(kind(), HUGEPIN_KIND_BASE);
}

static void expect_base_pages(void)
{
	memset(buffer, 1, SIZE);
	EXPECT_EQ(there(), 0);
	expect_what_is_there();
	EXPECT_EQ(kind(), HUGEPIN_KIND_BASE);
}

TEST_BY(with_thp, where_a_process_is_to_have_none_that_is_said)
{
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		SKIP("prctl(PR_SET_THP_DISABLE)");
	if (!allocate())
		return;
	EXPECT_EQ(kind(), HUGEPIN_KIND_BASE);
	expect_base_pages();
}

static void disable_later(void)
{
	if (!allocate() || prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		SKIP("prctl(PR_SET_THP_DISABLE)");
	expect_base_pages();
}

TEST(where_a_process_gets_none_from_now_on_that_is_said)
{
	if (sysconf(_SC_PAGESIZE) != 4096)
		SKIP("with larger base pages the kernel does not tell of THP of 2 MiB");
	with_thp(disable_later);
}

int main(int argc, char **argv)
{
	char c;
	if (argc == 4 && !strcmp(argv[1], "--anew"))
		return anew_main(argv + 2);
	if (argc == 2 && !strcmp(argv[1], "--wait")) { /* for top.sh */
		disable_later();
		t_print("process %d waits\n", (int)getpid());
		return read(0, &c, 1) < 0;
	}
	return t_run(argc, argv);
}
