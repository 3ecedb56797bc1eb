#include "alloc/map.h"
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
