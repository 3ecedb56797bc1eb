/*
 * Environments that hugepin makes for programs, and what they are asked: glibc's tunables, the alternatives of hugepin
 * check, the load of the machine.
 */
#include <stdlib.h>
#include <string.h>

#include "cmd/against.h"
#include "cmd/environment.h"
#include "cmd/machine.h"
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

static void drop(char **list)
{
	for (char **at = list; *at; at++)
		free(*at);
	free(list);
}

TEST(an_environment_gets_a_variable_once)
{
	char *before[] = { "A=1", "AB=2", "A=3", NULL };
	char **after = hp_environment_with(before, "A=4=5");

	EXPECT_STR(after[0], "AB=2");
	EXPECT_STR(after[1], "A=4=5");
	EXPECT(!after[2]);
	drop(after);
	after = hp_environment_with(before, NULL);
	EXPECT(!strcmp(after[0], "A=1") && !strcmp(after[2], "A=3") && !after[3]);
	drop(after);
}

/* ------------------------------------------------------------------ what costs nothing */

static struct hp_against_facts facts(void)
{
	return (struct hp_against_facts){ .glibc = "glibc 2.36", .thp = "madvise", .mimalloc = "libmimalloc.so.2",
					  .no_mimalloc = "no mimalloc" };
}

TEST(alternatives_are_named_in_a_list)
{
	bool wanted[HP_AGAINST] = { false };

	EXPECT(hp_against_parse("mimalloc,tunable", wanted));
	EXPECT(wanted[HP_AGAINST_TUNABLE] && !wanted[HP_AGAINST_THP] && wanted[HP_AGAINST_MIMALLOC]);
	EXPECT(hp_against_parse("thp", wanted));
	EXPECT(wanted[HP_AGAINST_THP]);
	static const char *const wrong[] = { "", ",", "thp,", ",thp", "thp,,tunable", "th", "thpx", "thp tunable" };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		EXPECT(!hp_against_parse(wrong[i], wanted));
}

TEST(the_tunable_is_there_where_it_does_something)
{
	struct hp_against_facts f = facts();
	struct hp_against a = hp_against_look(HP_AGAINST_TUNABLE, &f);

	EXPECT_STR(a.called, "glibc's tunable");
	EXPECT_STR(a.absent, "");
	EXPECT_STR(a.set[0], "GLIBC_TUNABLES=glibc.malloc.hugetlb=1");
	EXPECT(!a.set[1]);
	free(a.set[0]);
	f.tunables = "glibc.malloc.check=0:glibc.malloc.hugetlb=0";
	a = hp_against_look(HP_AGAINST_TUNABLE, &f);
	EXPECT_STR(a.set[0], "GLIBC_TUNABLES=glibc.malloc.check=0:glibc.malloc.hugetlb=0:glibc.malloc.hugetlb=1");
	free(a.set[0]);
	f.tunables = "glibc.malloc.hugetlb=2";
	EXPECT_STR(hp_against_look(HP_AGAINST_TUNABLE, &f).absent,
		   "the runs without hugepin have it, since GLIBC_TUNABLES does");
	f = facts();
	f.glibc = "glibc 2.34";
	EXPECT_STR(hp_against_look(HP_AGAINST_TUNABLE, &f).absent, "it came with glibc 2.35, and this is glibc 2.34");
	f.glibc = "";
	EXPECT(*hp_against_look(HP_AGAINST_TUNABLE, &f).absent);
	f.glibc = "glibc 3.0";
	f.thp = "never";
	EXPECT_STR(hp_against_look(HP_AGAINST_TUNABLE, &f).absent,
		   "it does nothing where transparent_hugepage/enabled is never");
	f.thp = "";
	EXPECT_STR(hp_against_look(HP_AGAINST_TUNABLE, &f).absent,
		   "it does nothing where transparent_hugepage/enabled is missing");
	f.thp = "always";
	EXPECT_STR(hp_against_look(HP_AGAINST_TUNABLE, &f).absent, "it does nothing where the machine gives THP to all");
}

TEST(thp_for_all_memory_are_the_machines_to_give)
{
	struct hp_against_facts f = facts();

	EXPECT(strstr(hp_against_look(HP_AGAINST_THP, &f).absent, "as root, echo always >/sys/kernel/mm/"));
	f.thp = "always";
	EXPECT(strstr(hp_against_look(HP_AGAINST_THP, &f).absent, "the runs without hugepin have them, "));
}

TEST(mimalloc_comes_before_what_is_preloaded_already)
{
	struct hp_against_facts f = facts();
	struct hp_against a = hp_against_look(HP_AGAINST_MIMALLOC, &f);

	EXPECT_STR(a.absent, "");
	EXPECT_STR(a.set[0], "LD_PRELOAD=libmimalloc.so.2");
	EXPECT_STR(a.set[1], "MIMALLOC_ALLOW_LARGE_OS_PAGES=1");
	free(a.set[0]);
	f.preload = "libother.so";
	a = hp_against_look(HP_AGAINST_MIMALLOC, &f);
	EXPECT_STR(a.set[0], "LD_PRELOAD=libmimalloc.so.2:libother.so");
	free(a.set[0]);
	f.mimalloc = NULL;
	a = hp_against_look(HP_AGAINST_MIMALLOC, &f);
	EXPECT_STR(a.absent, "no mimalloc");
	EXPECT(!a.set[0]);
}

/* ------------------------------------------------------------------ the machine */

TEST(the_machine_tells_the_time_that_it_worked)
{
	const struct hp_ticks t = hp_machine_ticks("cpu  1 20 300 4000 50000 600000 7000000 80000000 900 1000");

	EXPECT_EQ(t.busy, 1 + 20 + 300 + 600000 + 7000000 + 80000000);
	EXPECT_EQ(t.all - t.busy, 4000 + 50000);
	static const char *const wrong[] = { "", "cpu", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 7", "cpu a b c d e f g h" };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		EXPECT_EQ(hp_machine_ticks(wrong[i]).all, 0);
}

T_MAIN
