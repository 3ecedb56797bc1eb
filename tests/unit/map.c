#include "alloc/map.h"
#include "base/smaps.h"
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

TEST(what_is_there_of_a_mapping_is_read)
{
	static const char *const lines[] = { "7f00-7f80 rw-p 00000000 00:00 0 ", "Size:               2048 kB", "Rss:                1024 kB",
					     "Shared_Hugetlb:        8 kB", "AnonHugePages:       512 kB", "VmFlags: rd wr mr mw me ac lo" };
	struct hp_smaps m = { .start = 1, .huge = 7, .resident = 7 };

	for (int i = 0; i < 5; i++)
		EXPECT(!hp_smaps_line(lines[i], &m));
	EXPECT(hp_smaps_line(lines[5], &m));
	EXPECT_EQ(m.start, 0x7f00);
	EXPECT_EQ(m.resident, 1024 << 10);
	EXPECT_EQ(m.huge, 512 << 10);
	EXPECT_EQ(m.flags, HP_SMAPS_READ | HP_SMAPS_WRITE | HP_SMAPS_LOCKED);
	EXPECT(!hp_smaps_line(lines[0], &m));
	EXPECT_EQ(m.resident + m.huge, 0);
}

T_MAIN
