/* Changes of limits, rights and room: resource limits, the user, a memory cgroup, locked memory, descriptors. */
#ifndef TESTS_SOAK_CHANGE_LIMITS_H
#define TESTS_SOAK_CHANGE_LIMITS_H

#include <sys/prctl.h>
#include <sys/syscall.h>

#include "../live/cgroup.h"
#include "change_threads.h"

static struct cgroup group; /* with a limit that is never met */
static char *group_home;

/* Lower a limit for a moment. Threads start meanwhile. told: by the C library's function, which libhugepin-malloc.so
 * sees. */
static bool limit_lowered(struct worker *w, int which, rlim_t to, bool told)
{
	struct rlimit before, limit;

	if (getrlimit((unsigned)which, &before))
		return false;
	limit = (struct rlimit){ before.rlim_max < to ? before.rlim_max : to, before.rlim_max };
	if ((told ? setrlimit((unsigned)which, &limit) : (int)syscall(SYS_prlimit64, 0, which, &limit, NULL)) != 0)
		return false;
	for (int i = 0; i < 4; i++)
		thread_comes_and_goes(w);
	sleep_ms((long)(rand_next(&w->rand) % 5));
	return EXPECT_EQ(syscall(SYS_prlimit64, 0, which, &before, NULL), 0);
}

/* Lower the limit to the present size, or somewhat more. If the library is told, it gives reserved addresses back for
 * good. */
static bool less_addresses(struct worker *w)
{
	return limit_lowered(w, RLIMIT_AS,
			     (rlim_t)(status_number("VmSize:") + (long)(rand_next(&w->rand) % 65536)) * KIB, w->with);
}

static bool less_data(struct worker *w)
{
	return limit_lowered(w, RLIMIT_DATA,
			     (rlim_t)(status_number("VmData:") + (long)(rand_next(&w->rand) % 65536)) * KIB, true);
}

static bool limit_is_little(struct worker *w)
{
	return limit_lowered(w, w->with, rand_next(&w->rand) % 64, true);
}

static bool be_another_user(struct worker *w)
{
	if (seteuid(65534))
		return false;
	allocate_some(rand_next(&w->rand));
	return EXPECT_EQ(seteuid(0), 0) && EXPECT_EQ(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
}

static bool group_enter(const char *path)
{
	char procs[600], number[16];

	snprintf(procs, sizeof procs, "%s/cgroup.procs", path);
	snprintf(number, sizeof number, "%d", (int)getpid());
	return file_write(procs, number);
}

static bool be_in_group(struct worker *w)
{
	if (!group_home || !group_enter(group.path))
		return false;
	allocate_some(rand_next(&w->rand));
	return EXPECT(group_enter(group_home));
}

static bool thp_off_or_on(struct worker *w)
{
	return prctl(PR_SET_THP_DISABLE, rand_next(&w->rand) % 4 == 0, 0, 0, 0) == 0;
}

static bool lock_everything(struct worker *w)
{
	if (mlockall(w->with))
		return false;
	allocate_some(rand_next(&w->rand));
	return EXPECT_EQ(munlockall(), 0);
}

/* ------------------------------------------------------------------ descriptors */

/* The library's descriptors have high numbers, the soak's low ones. */
enum { HIGH = 512 };

static bool close_high_descriptors(struct worker *w)
{
	bool any = false;

	for (int fd = HIGH; fd < 1024; fd++) {
		if (fcntl(fd, F_GETFD) < 0)
			continue;
		any = true;
		if (w->with)
			EXPECT_EQ(dup2(0, fd), fd);
	}
	return any && (w->with || syscall(SYS_close_range, HIGH, ~0u, 0) == 0);
}

#endif
