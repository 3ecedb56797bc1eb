/* link: hugepin */
/* HUGEPIN_POPULATE=lazy: pages of the pool come as they are touched, and a child of fork has what its parent had. Each
 * subject is a program of its own. */
#include "live.h"

#include "hugepin.h"

enum { PAGES = 100, SKIPPED = 77 };

static char *buffer;

static size_t in_pool(void)
{
	return smaps_kinds(0, (uintptr_t)buffer, (uintptr_t)buffer + PAGES * PAGE).hugetlb;
}

static size_t in_memory(void)
{
	struct kinds k = smaps_kinds(0, (uintptr_t)buffer, (uintptr_t)buffer + PAGES * PAGE);
	return k.hugetlb + k.thp + k.base;
}

/* In the initial namespace of control groups only. */
static bool allocate(void)
{
	buffer = hide(hugepin_malloc(PAGES * PAGE));
	return EXPECT(buffer) && in_pool() <= 4 * PAGE;
}

static void touch(size_t page)
{
	buffer[page * PAGE + 5] = (char)page;
}

static int comes_by_touch(void)
{
	if (!allocate())
		return SKIPPED;
	EXPECT_EQ(in_pool(), 4 * PAGE);
	for (size_t p = 10; p < 30; p++)
		touch(p);
	EXPECT_EQ(in_pool(), 24 * PAGE);
	return t_failures != 0;
}

static void *wait_for_ever(void *unused)
{
	pause();
	return unused;
}

static int forks(void)
{
	if (!allocate())
		return SKIPPED;
	for (size_t round = 0; round < 5; round++) {
		for (size_t p = round; p < PAGES; p += 20)
			touch(p);
		size_t had = in_pool();
		pid_t pid = fork();
		if (!pid) {
			for (size_t p = 0; p < PAGES; p++) {
				EXPECT_EQ(buffer[p * PAGE + 5], p % 20 <= round ? (char)p : 0);
				memset(buffer + p * PAGE, 7, PAGE);
			}
			EXPECT_EQ(in_pool(), 0);
			_exit(t_failures != 0);
		}
		EXPECT_EQ(child_wait(pid), 0);
		EXPECT(in_pool() <= had);
		/* What was not touched was not moved to other memory. */
		EXPECT(in_memory() <= (4 + 5 * (round + 1)) * PAGE);
		for (size_t p = round; p < PAGES; p += 20)
			EXPECT_EQ(buffer[p * PAGE + 5], (char)p);
	}
	return t_failures != 0;
}

static int forks_with_threads(void)
{
	pthread_t t;
	pthread_create(&t, NULL, wait_for_ever, NULL);
	return forks();
}

static int (*const subjects[])(void) = { comes_by_touch, forks, forks_with_threads };

static void expect_holds(int subject)
{
	pid_t pid;
	char number[12];
	snprintf(number, sizeof number, "%d", subject);
	char *args[] = { (char *)"lazy", (char *)"--subject", number, NULL };
	setenv("HUGEPIN_POPULATE", "lazy", 1);
	EXPECT(!posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ));
	int r = child_wait(pid);
	if (r == SKIPPED)
		snprintf(t_skip_reason, sizeof t_skip_reason, "not in the initial namespace of control groups");
	else
		EXPECT_EQ(r, 0);
}

TEST(pages_of_the_pool_come_as_they_are_touched)
{
	NEEDS_POOL(PAGES + 20);
	expect_holds(0);
}

TEST(a_child_has_what_its_parent_had)
{
	NEEDS_POOL(PAGES + 20);
	expect_holds(1);
}

TEST(so_it_has_where_there_are_threads)
{
	NEEDS_POOL(PAGES + 20);
	expect_holds(2);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--subject")) {
		int r = subjects[strtol(argv[2], NULL, 10)]();
		return r ? r : t_failures != 0;
	}
	return t_run(argc, argv);
}
