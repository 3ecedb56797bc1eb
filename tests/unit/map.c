#include "alloc/map.h"

#include <sys/personality.h>

#include "base/base.h"
#include "t.h"
#include "tests/unit/kernel.h"

enum { POPULATE_WRITE = 23 }; /* which older headers lack */

static struct {
	size_t longest; /* the longest mapping so far */
	bool taken; /* the addresses that are asked for are not free */
	bool no_access; /* only half of the memory is made accessible, and then there is an error */
	struct {
		uintptr_t at;
		size_t len;
	} populated[4];
	unsigned populates, refused_from; /* calls */
} maps;

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	if (nr == SYS_mmap) {
		maps.longest = HP_MAX(maps.longest, (size_t)b);
		if (maps.taken)
			a = 0;
	} else if (nr == SYS_madvise && c == POPULATE_WRITE) {
		if (maps.populates < 4)
			maps.populated[maps.populates].at = (uintptr_t)a, maps.populated[maps.populates].len = (size_t)b;
		if (maps.populates++ >= maps.refused_from)
			return result_of(-ENOMEM);
	} else if (nr == SYS_mprotect && maps.no_access) {
		raw(nr, a, b / 2, c, d, e, f);
		return result_of(-ENOMEM);
	}
	return result_of(raw(nr, a, b, c, d, e, f));
}

static bool allows(const char *global, const char *small, const char *middle, const char *large)
{
	const char *sizes[] = { small, "", middle, large };

	return hp_map_thp_allows(global, sizes, 4);
}

TEST(without_files_for_sizes_the_one_for_all_decides)
{
	EXPECT(allows("always [madvise] never\n", "", "", ""));
	EXPECT(allows("[always] madvise never\n", "", "", ""));
	EXPECT(!allows("always madvise [never]\n", "", "", ""));
}

/* That one is then for hugepages of 32 or 512 MiB. */
TEST(with_larger_base_pages_there_must_be_a_file_for_the_size)
{
	static const char madvise[] = "always inherit [madvise] never\n";

	hp_base_page = 65536;
	EXPECT(!allows("[always] madvise never\n", "", "", ""));
	EXPECT(allows("always madvise [never]\n", "", "", madvise));
	hp_base_page = 4096;
}

TEST(a_size_decides_for_itself_or_inherits)
{
	static const char always[] = "[always] inherit madvise never\n", inherit[] = "always [inherit] madvise never\n",
			  madvise[] = "always inherit [madvise] never\n", never[] = "always inherit madvise [never]\n";

	EXPECT(allows("always madvise [never]\n", never, never, madvise));
	EXPECT(allows("always madvise [never]\n", always, never, never));
	EXPECT(allows("always madvise [never]\n", never, madvise, inherit));
	EXPECT(!allows("always madvise [never]\n", never, never, inherit));
	EXPECT(allows("always [madvise] never\n", never, never, inherit));
	EXPECT(!allows("always [madvise] never\n", never, never, never));
	EXPECT(!allows("[always] madvise never\n", never, "", never));
}

/* Emulators have tables of what is mapped, by pages. */
static void expect_reserved(void)
{
	const size_t size = 8 * HP_PAGE;
	uintptr_t base = 0;

	if (!EXPECT_EQ(hp_map_reserve(size, HP_PAGE, &base), 0))
		return;
	EXPECT_EQ(base % HP_PAGE, 0);
	EXPECT_EQ(mprotect((void *)base, size, PROT_READ | PROT_WRITE), 0);
	munmap((void *)base, size);
}

TEST(addresses_are_reserved_without_taking_more_for_a_moment)
{
	maps.longest = 0;
	for (int i = 0; i < 100; i++)
		expect_reserved();
	EXPECT_EQ(maps.longest, 9 * HP_PAGE);
}

TEST(addresses_are_reserved_at_a_random_place_below_the_one_of_the_kernels_choice)
{
	const size_t size = 8 * HP_PAGE;
	uintptr_t base = 0, before = 0;
	bool differs = false;

	if (personality(0xffffffff) & ADDR_NO_RANDOMIZE)
		SKIP("the program's addresses are to be the same each time");
	for (int i = 0; i < 10; i++, before = base) {
		void *p = mmap(NULL, size + HP_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		munmap(p, size + HP_PAGE);
		if (!EXPECT_EQ(hp_map_reserve(size, HP_PAGE, &base), 0))
			return;
		EXPECT(base + size <= (uintptr_t)p);
		differs |= before && base != before;
		munmap((void *)base, size);
	}
	EXPECT(differs);
}

TEST(addresses_are_reserved_elsewhere_if_the_random_place_is_taken)
{
	maps.taken = true;
	expect_reserved();
	maps.taken = false;
}

/* The permissions and the flags of the mapping at an address, as /proc/self/smaps has them. */
static bool accessible, dumped;

static void look_at(uintptr_t at)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	uintptr_t start, end;
	char line[512], rights[5];
	bool within = false;

	if (!EXPECT(f))
		return;
	while (fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3) {
			within = start <= at && at < end;
			accessible = within ? rights[0] == 'r' && rights[1] == 'w' : accessible;
		} else if (within && !strncmp(line, "VmFlags:", 8)) {
			dumped = !strstr(line, " dd");
		}
	}
	fclose(f);
}

/* Otherwise gdb's gcore would write the whole span. */
TEST(a_dump_has_what_is_accessible_and_nothing_that_is_reserved)
{
	const size_t size = 4 * HP_PAGE;
	uintptr_t base = 0;

	if (!EXPECT_EQ(hp_map_reserve(size, HP_PAGE, &base), 0))
		return;
	look_at(base);
	EXPECT(!accessible && !dumped);
	EXPECT_EQ(hp_map_normal(base, size, false), HUGEPIN_KIND_BASE);
	look_at(base);
	EXPECT(accessible && dumped);
	EXPECT_EQ(hp_map_release(base, size), 0);
	look_at(base);
	EXPECT(!accessible && !dumped);
	maps.no_access = true;
	EXPECT_EQ(hp_map_normal(base, size, false), -ENOMEM);
	maps.no_access = false;
	look_at(base);
	EXPECT(!accessible && !dumped);
	munmap((void *)base, size);
}

/* The kernel clears a hugepage towards the base page that is touched, and upwards in half the time. */
TEST(of_each_whole_hugepage_the_last_base_page_is_populated_first)
{
	const size_t size = 3 * HP_PAGE;
	uintptr_t base = 0;

	if (!EXPECT_EQ(hp_map_reserve(size, HP_PAGE, &base), 0))
		return;
	EXPECT_EQ(mprotect((void *)base, size, PROT_READ | PROT_WRITE), 0);
	maps.populates = 0;
	maps.refused_from = 3;
	EXPECT_EQ(hp_populate(base + 4096, size - 4096, true), 0);
	EXPECT_EQ(maps.populates, 3);
	EXPECT_EQ(maps.populated[0].at, base + 2 * HP_PAGE - 4096);
	EXPECT_EQ(maps.populated[0].len, 4096);
	EXPECT_EQ(maps.populated[1].at, base + 3 * HP_PAGE - 4096);
	EXPECT_EQ(maps.populated[1].len, 4096);
	EXPECT_EQ(maps.populated[2].at, base + 4096);
	EXPECT_EQ(maps.populated[2].len, size - 4096);
	maps.populates = maps.refused_from = 0;
	EXPECT_EQ(hp_populate(base, size, true), -ENOMEM);
	EXPECT_EQ(maps.populates, 1);
	munmap((void *)base, size);
}

T_MAIN
