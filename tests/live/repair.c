/* link: hugepin */
/* Where the kernel had no hugepages for THP, the heap has them made later. Each test is a program of its own, to
 * which the kernel gives none at first (prctl). */
#include "live.h"

#include <sys/prctl.h>

#include "hugepin.h"

enum { SIZE = 64 << 20 };

static size_t there(const void *p)
{
	return smaps_kinds(0, (uintptr_t)p, (uintptr_t)p + SIZE).thp;
}

static void thp_may_be_had(bool may)
{
	EXPECT(!prctl(PR_SET_THP_DISABLE, !may, 0, 0, 0));
}

/* A buffer in base pages. The heap must have started by then. */
static char *allocate(int value)
{
	char *p = hide(hugepin_aligned_alloc(PAGE, SIZE));
	thp_may_be_had(false);
	memset(p, value, SIZE);
	thp_may_be_had(true);
	return p;
}

static bool becomes_huge(const void *p)
{
	for (int i = 0; i < 600 && there(p) < SIZE; i++)
		sleep_ms(100);
	return EXPECT_EQ(there(p), SIZE);
}

static bool has_only(const char *p, int value)
{
	for (size_t i = 0; i < SIZE; i++)
		if (p[i] != value)
			return T_FAIL("byte %zu is %d", i, p[i]);
	return true;
}

/* With a sanitizer's mmap the service thread ticks, which repairs nothing. */
static bool can(void)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
	return false;
#endif
	char *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *at = (char *)(((uintptr_t)p + PAGE - 1) & ~(PAGE - 1));
	memset(at, 1, PAGE);
	bool can_collapse = !madvise(at, PAGE, 25 /* MADV_COLLAPSE */);
	munmap(p, 2 * PAGE);
	return can_collapse;
}

static void repaired(void (*body)(void))
{
	if (!can())
		SKIP("MADV_COLLAPSE, or a thread that repairs");
	setenv("HUGEPIN_PAGES", "thp", 1);
	setenv("HUGEPIN_DECAY", "400ms", 1);
	anew(body);
}

TEST_BY(repaired, base_pages_become_hugepages_while_the_program_runs)
{
	hugepin_free(hide(hugepin_malloc(MIB)));
	char *p = allocate(7);
	becomes_huge(p);
	struct hugepin_stats s;
	hugepin_stats(&s, sizeof s);
	EXPECT(s.repaired_bytes > 0);
	EXPECT(s.repaired_bytes <= s.thp_bytes);
	has_only(p, 7);
}

static _Atomic bool done;

/* Each byte of its half is as often counted up as it is written to. */
static void *count_up(void *half)
{
	unsigned char *p = half;
	while (!done)
		for (size_t i = 0; i < SIZE / 2; i += 512)
			p[i]++;
	return NULL;
}

TEST_BY(repaired, what_threads_write_meanwhile_is_there_and_forks_pass)
{
	pthread_t t[2];
	hugepin_free(hide(hugepin_malloc(MIB)));
	char *p = allocate(0);
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, count_up, p + i * (SIZE / 2));
	for (int i = 0; i < 1000 && there(p) < SIZE; i++) {
		pid_t pid = fork();
		if (!pid)
			_exit(0);
		EXPECT_EQ(child_wait(pid), 0);
		sleep_ms(100);
	}
	done = true;
	for (int i = 0; i < 2; i++) {
		pthread_join(t[i], NULL);
		unsigned char *at = (unsigned char *)p + i * (SIZE / 2);
		for (size_t b = 0; b < SIZE / 2; b += 512)
			EXPECT_EQ(at[b], at[0]);
	}
	EXPECT_EQ(there(p), SIZE);
}

TEST_BY(repaired, registered_memory_stays_where_it_is)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	hugepin_domain *d;
	struct hugepin_pin pin;
	if (hugepin_domain_open(hugepin_mlock(), NULL, &attr, &d))
		SKIP("RLIMIT_MEMLOCK");
	hugepin_free(hide(hugepin_malloc(MIB)));
	char *held = allocate(1);
	if (hugepin_pin(d, held, PAGE, HUGEPIN_READ, &pin))
		SKIP("RLIMIT_MEMLOCK");
	char *other = allocate(2);
	becomes_huge(other);
	sleep_ms(1000);
	EXPECT_EQ(smaps_kinds(0, (uintptr_t)held, (uintptr_t)held + PAGE).thp % PAGE, 0);
	EXPECT(there(held) < SIZE);
	hugepin_unpin(d, &pin);
	has_only(held, 1);
}

LIVE_MAIN
