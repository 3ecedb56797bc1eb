/* link: hugepin preload */
/*
 * What libibverbs says about forks at each registration is left out under the drop-in where libibverbs says that
 * nothing is needed, and comes to the kernel elsewhere. A library that calls as libibverbs does stands in for it.
 */
#include "live.h"

#include <dlfcn.h>

static char library[256];

struct answers {
	int dont_fork, do_fork;
	unsigned advised;
};

/* Each case is a process: the drop-in asks once. Two libraries of the name may be there, each with functions of its own. */
static struct answers ask(const char *unneeded, const char *forced)
{
	struct answers a = { -1, -1, 77 };
	int out[2];
	pid_t pid;

	EXPECT_EQ(pipe(out), 0);
	pid = fork();
	if (pid == 0) {
		int (*call)(void *, size_t);
		void *lib;

		if (unneeded)
			setenv("SAYS_UNNEEDED", unneeded, 1);
		if (forced)
			setenv("RDMAV_USE_MADVISE", forced, 1);
		lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
		if (!lib)
			_exit(1);
		*(void **)&call = dlsym(lib, "verbs_register");
		a.dont_fork = call(&a, sizeof a);
		*(void **)&call = dlsym(lib, "verbs_deregister");
		a.do_fork = call(&a, sizeof a);
		a.advised = *(unsigned *)dlsym(lib, "advised");
		_exit(write(out[1], &a, sizeof a) != sizeof a);
	}
	EXPECT_EQ(child_wait(pid), 0);
	EXPECT_EQ(read(out[0], &a, sizeof a), sizeof a);
	close(out[0]);
	close(out[1]);
	return a;
}

TEST(advice_that_is_unneeded_is_left_out)
{
	struct answers a = ask("1", NULL);

	EXPECT(a.dont_fork == 0 && a.do_fork == 0 && a.advised == 0);
}

TEST(advice_that_is_needed_is_given_by_the_library_that_calls)
{
	struct answers a = ask(NULL, NULL);

	EXPECT(a.dont_fork == 7 && a.do_fork == 8 && a.advised >= 2);
}

TEST(advice_that_the_user_asks_for_is_given)
{
	struct answers a = ask("1", "1");

	EXPECT(a.dont_fork == 7 && a.do_fork == 8 && a.advised >= 2);
}

int main(int argc, char **argv)
{
	snprintf(library, sizeof library, "%s", argv[0]);
	snprintf(strrchr(library, '/') + 1, 16, "verbs.so");
	return t_run(argc, argv);
}
