/*
 * The rank of a launcher's environment, and the names of files for it.
 */
#include "base/rank.h"

#include <stdlib.h>

#include "tests/t.h"

static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK",
				     "PMIX_RANK",	     "FLUX_TASK_RANK",	    "SLURM_PROCID",
				     "SLURM_STEP_NUM_TASKS" };

static void forget(void)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		unsetenv(names[i]);
}

TEST(without_a_launcher_there_is_no_rank)
{
	forget();
	EXPECT_EQ(hp_rank(), -1);
}

TEST(each_launcher_tells_the_rank_by_its_variable_and_the_innermost_counts)
{
	forget();
	for (int i = 4; i >= 0; i--) {
		char text[8];

		snprintf(text, sizeof text, "%d", 10 + i);
		setenv(names[i], text, 1);
		EXPECT_EQ(hp_rank(), 10 + i);
	}
}

TEST(a_step_of_slurm_has_ranks_if_it_has_several_processes)
{
	forget();
	setenv("SLURM_PROCID", "0", 1);
	EXPECT_EQ(hp_rank(), -1); /* a batch script */
	setenv("SLURM_STEP_NUM_TASKS", "1", 1);
	EXPECT_EQ(hp_rank(), -1);
	setenv("SLURM_STEP_NUM_TASKS", "2", 1);
	EXPECT_EQ(hp_rank(), 0);
	setenv("SLURM_PROCID", "x", 1);
	EXPECT_EQ(hp_rank(), -1);
	setenv("PMIX_RANK", "7", 1);
	EXPECT_EQ(hp_rank(), 7);
}

TEST(a_rank_is_a_number_and_nothing_else)
{
	static const char *const bad[] = { "", "-1", "+1", " 1", "1 ", "x", "0x1", "2147483648", "99999999999999999999" };

	forget();
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		setenv("PMI_RANK", bad[i], 1);
		if (!EXPECT_EQ(hp_rank(), -1))
			t_print("# '%s'\n", bad[i]);
	}
	setenv("PMI_RANK", "2147483647", 1);
	EXPECT_EQ(hp_rank(), 2147483647);
	setenv("OMPI_COMM_WORLD_RANK", "", 1); /* the next one counts */
	EXPECT_EQ(hp_rank(), 2147483647);
}

static void expect_path(const char *path, int rank, const char *becomes, bool has_pid)
{
	char buf[200];
	struct hp_line l = { buf, buf + sizeof buf };

	hp_rank_path(&l, path, 77, rank);
	if (!EXPECT(!strcmp(buf, becomes)))
		t_print("# %s of rank %d: %s\n", path, rank, buf);
	EXPECT_EQ(hp_rank_path_has_pid(path, rank), has_pid);
}

TEST(the_rank_goes_before_the_ending_unless_the_path_says_where)
{
	expect_path("run.csv", 3, "run.r3.csv", false);
	expect_path("run", 0, "run.r0", false);
	expect_path("/a.b/run", 12, "/a.b/run.r12", false);
	expect_path("/a.b/.run", 12, "/a.b/.run.r12", false);
	expect_path("./.run.x.csv", 1, "./.run.x.r1.csv", false);
	expect_path("run.", 1, "run.r1.", false);
	expect_path("dir/", 1, "dir/.r1", false);
	expect_path("%r/run-%r.csv", 3, "3/run-3.csv", false);
	expect_path("run.%p.csv", 3, "run.77.csv", true);
	expect_path("run.%r.%p", 3, "run.3.77", true);
	expect_path("%q%%.csv%", 3, "%q%%.r3.csv%", false);
}

TEST(without_a_rank_the_process_stands_for_it)
{
	expect_path("run.csv", -1, "run.csv", false);
	expect_path("run.%r.csv", -1, "run.77.csv", true);
	expect_path("run.%p.csv", -1, "run.77.csv", true);
	expect_path("%q%%.csv%", -1, "%q%%.csv%", false);
}

T_MAIN
