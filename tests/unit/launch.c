/*
 * Where hugepin info believes to have been started, by what a process sees there.
 */
#include <string.h>

#include "cmd/launch.h"
#include "tests/t.h"

#define PLACE(text, ...) hp_launch_judge(&(struct hp_launch_facts){ .cgroup = text, ##__VA_ARGS__ })

TEST(places_are_told_by_their_control_groups)
{
	EXPECT_EQ(PLACE("0::/system.slice/nginx.service\n"), HP_LAUNCH_SYSTEMD);
	EXPECT_EQ(PLACE("12:pids:/system.slice/nginx.service\n0::/\n"), HP_LAUNCH_SYSTEMD);
	EXPECT_EQ(PLACE("0::/user.slice/user-1000.slice/session-3.scope\n"), HP_LAUNCH_LOGIN);
	EXPECT_EQ(PLACE("0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n"), HP_LAUNCH_LOGIN);
	EXPECT_EQ(PLACE("0::/system.slice/docker-0123456789ab.scope\n"), HP_LAUNCH_DOCKER);
	EXPECT_EQ(PLACE("4:memory:/docker/0123456789ab\n0::/\n"), HP_LAUNCH_DOCKER);
	EXPECT_EQ(PLACE("0::/machine.slice/libpod-0123456789ab.scope/container\n"), HP_LAUNCH_PODMAN);
	EXPECT_EQ(PLACE("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-0123.scope\n"), HP_LAUNCH_KUBERNETES);
	EXPECT_EQ(PLACE("0::/kubepods/besteffort/pod1/0123\n"), HP_LAUNCH_KUBERNETES);
	EXPECT_EQ(PLACE("0::/\n"), HP_LAUNCH_OTHER);
	EXPECT_EQ(PLACE(""), HP_LAUNCH_OTHER);
}

TEST(the_innermost_place_counts)
{
	EXPECT_EQ(PLACE("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", .slurm = 1), HP_LAUNCH_SLURM);
	EXPECT_EQ(PLACE("0::/\n", .slurm = 1), HP_LAUNCH_SLURM);
	EXPECT_EQ(PLACE("0::/\n", .slurm = 1, .containerenv = 1), HP_LAUNCH_PODMAN);
	EXPECT_EQ(PLACE("0::/\n", .slurm = 1, .dockerenv = 1), HP_LAUNCH_DOCKER);
	EXPECT_EQ(PLACE("0::/\n", .dockerenv = 1, .kubernetes = 1), HP_LAUNCH_KUBERNETES);
}

TEST(each_place_that_has_a_name_says_how_to_raise_the_limit)
{
	EXPECT(!hp_launch_name(HP_LAUNCH_OTHER) && !hp_launch_memlock(HP_LAUNCH_OTHER));
	for (int p = HP_LAUNCH_OTHER + 1; p <= HP_LAUNCH_KUBERNETES; p++) {
		EXPECT(hp_launch_name((enum hp_launch)p) != NULL);
		EXPECT(strstr(hp_launch_memlock((enum hp_launch)p), "for good") != NULL);
	}
}

T_MAIN
