/* link: hugepin preload */
/*
 * Libraries that interpose the C library's mapping calls, one in front of the drop-in and one behind it. The one behind
 * it also gets all calls of the drop-in's own functions. Both must see memory that the heap gives back, and must not
 * see memory that comes into use.
 */
#include "live.h"

#include <dlfcn.h>
#include <limits.h>
#include <malloc.h>

#include "hugepin.h"
#include "lib/heard.h"

enum { COUNT = 16, SIZE = 4 << 20 };

static char *buffers[COUNT];

static void fill(void)
{
	for (int i = 0; i < COUNT; i++) {
		buffers[i] = hide(malloc(SIZE));
		if (EXPECT(buffers[i]))
			memset(buffers[i], i, SIZE);
	}
}

static void drop(void)
{
	for (int i = 0; i < COUNT; i++)
		free(buffers[i]);
}

static int what_is_heard(void)
{
	struct heard *now = dlsym(RTLD_DEFAULT, "heard"), before;

	if (!EXPECT(now))
		return 1;
	fill(); /* reserve the span, and do all other work of a first call */
	drop();
	malloc_trim(0);
	before = *now;
	fill();
	EXPECT_EQ(now->mmap, before.mmap);
	EXPECT_EQ(now->munmap, before.munmap);
	EXPECT_EQ(now->mremap, before.mremap);
	EXPECT_EQ(now->mprotect, before.mprotect);
	EXPECT_EQ(now->madvise, before.madvise);
	EXPECT_EQ(now->given_back, before.given_back);
	drop();
	malloc_trim(0);
	EXPECT(now->given_back > before.given_back);
	return t_failures != 0;
}

/* One of the library's threads gives the memory back. */
static int what_is_heard_later(void)
{
	struct heard *now = dlsym(RTLD_DEFAULT, "heard"), before;

	if (!EXPECT(now))
		return 1;
	fill();
	before = *now;
	drop();
	for (int i = 0; i < 300 && now->given_back == before.given_back; i++)
		sleep_ms(100);
	EXPECT(now->given_back > before.given_back);
	return t_failures != 0;
}

static void hear_of(const char *pages, bool front, const char *decay_time, const char *what)
{
	char preload[2 * PATH_MAX], *dropin = strdup(getenv("LD_PRELOAD"));
	const char *build = getenv("BUILD") ? getenv("BUILD") : "build";
	pid_t pid;

	snprintf(preload, sizeof preload, front ? "%2$s/tests/live/heard.so %1$s" : "%1$s %2$s/tests/live/heard.so", dropin,
		 build);
	pid = fork();
	if (pid == 0) {
		setenv("LD_PRELOAD", preload, 1);
		setenv("HUGEPIN_PAGES", pages, 1);
		setenv("HUGEPIN_DECAY", decay_time, 1);
		execl("/proc/self/exe", "heard", what, NULL);
		_exit(127);
	}
	EXPECT_EQ(child_wait(pid), 0);
	free(dropin);
}

/* What the program's own calls make comes first. No thread gives anything back meanwhile, however long they take. */
static void hear(const char *pages, bool front)
{
	hear_of(pages, front, "0", "--heard");
	hear_of(pages, front, "300ms", "--heard-later");
}

TEST(behind_the_drop_in_giving_back_is_heard_and_coming_into_use_is_not)
{
	hear("thp", false);
	hear("base", false);
}

TEST(before_the_drop_in_it_is_the_same)
{
	hear("thp", true);
	hear("base", true);
}

TEST(it_is_the_same_for_pages_of_the_pool)
{
	NEEDS_POOL(80);
	hear("hugetlb", false);
	hear("hugetlb", true);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--heard"))
		return what_is_heard();
	if (argc == 2 && !strcmp(argv[1], "--heard-later"))
		return what_is_heard_later();
	return t_run(argc, argv);
}
