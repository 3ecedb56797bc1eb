#include "alloc/map.h"
#include "base/base.h"
#include "t.h"

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

T_MAIN
