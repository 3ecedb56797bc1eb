/*
 * What hugepin makes of glibc's tunables.
 */
#include <stdlib.h>
#include <string.h>

#include "cmd/environment.h"
#include "tests/t.h"

#define EXPECT_STR(at, text) EXPECT(!strcmp((at), (text)) || (t_print("# %s\n", (at)), false))

TEST(a_tunable_has_its_last_number)
{
	EXPECT_EQ(hp_tunable(NULL, "glibc.a.b"), 0);
	EXPECT_EQ(hp_tunable("", "glibc.a.b"), 0);
	EXPECT_EQ(hp_tunable("glibc.a.b=3", "glibc.a.b"), 3);
	EXPECT_EQ(hp_tunable("glibc.a.bc=3:x.glibc.a.b=4", "glibc.a.b"), 0);
	EXPECT_EQ(hp_tunable("glibc.a.b=1:glibc.c=7:glibc.a.b=0x1000", "glibc.a.b"), 4096);
	EXPECT_EQ(hp_tunable("::glibc.a.b=x:", "glibc.a.b"), 0);
}

TEST(a_tunable_comes_behind_the_others)
{
	static const char *const before[] = { NULL, "", "glibc.c=7" };
	static const char *const after[] = { "glibc.a.b=4096", "glibc.a.b=4096", "glibc.c=7:glibc.a.b=4096" };

	for (int i = 0; i < 3; i++) {
		char *const all = hp_tunables_with(before[i], "glibc.a.b", 4096);
		EXPECT_STR(all, after[i]);
		free(all);
	}
}

T_MAIN
