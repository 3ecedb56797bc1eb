/*
 * The mlock backend against a naive count of each page's registrations; the kernel says how much is locked.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "alloc/advised.h"
#include "base/base.h"
#include "hugepin.h"
#include "reg/backend/backend.h"
#include "reg/locks.h"
#include "tests/t.h"
#include "tests/unit/kernel.h"

enum { PAGE = 4096 };

static char *pages(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static int reg(void *p, size_t len, struct hugepin_reg *ret_)
{
	return hugepin_mlock()->reg(NULL, p, len, HUGEPIN_READ | HUGEPIN_WRITE, ret_);
}

static int dereg(struct hugepin_reg *r)
{
	return hugepin_mlock()->dereg(NULL, r);
}

/* Where set, another thread maps memory there just before the kernel is asked for holes. */
static char *fill;
/* Where not 0, the limit on locked memory is raised to it then. */
static rlim_t raise_to;

/* Of the kernel's files: what is locked where, and how much. */
static long looked_where, looked_how_much;
static long unlocked, looked_for_holes; /* calls */

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	looked_where += nr == SYS_openat && !strcmp((const char *)b, "/proc/self/smaps");
	looked_how_much += nr == SYS_openat && !strcmp((const char *)b, "/proc/self/status");
	unlocked += nr == SYS_munlock;
	looked_for_holes += nr == SYS_msync;
	if (nr == SYS_msync && raise_to)
		setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ raise_to, raise_to });
	if (nr == SYS_msync && fill && raw(SYS_mmap, (long)fill, PAGE, PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (long)fill)
		fill = NULL;
	return result_of(raw(nr, a, b, c, d, e, f));
}

static uint64_t locked(void)
{
	char text[4096];

	hp_read_file("/proc/self/status", text, sizeof text);
	return hp_number_after(text, "VmLck:", UINT64_MAX) * 1024;
}

/* Run in a child, which exits with the number of failures, or 77. */
static int in_child(void (*run)(void))
{
	int status = -1;
	pid_t pid = fork();

	if (!pid)
		run();
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	return status;
}

static void *lock_much(void *p)
{
	EXPECT_EQ(hugepin_lock_((uintptr_t)p, 256 * MIB, 0), 0);
	return p;
}

/* First of all, before anything has told the heap of locks. A fork that comes late passes. */
TEST(a_child_of_a_fork_while_another_thread_locks_can_lock)
{
	T_THREADS_RUN(3);
	char *p = pages(256 * MIB), *q = hugepin_malloc(MIB);
	pthread_t t;
	int status = -1;
	pid_t pid;

	EXPECT_EQ(pthread_create(&t, NULL, lock_much, p), 0);
	usleep(10000);
	pid = fork();
	if (!pid) {
		alarm(t_seconds());
		_exit(hugepin_lock_((uintptr_t)q, 1, 0) != 0);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	pthread_join(t, NULL);
	EXPECT_EQ(hugepin_unlock_((uintptr_t)p, 256 * MIB), 0);
	munmap(p, 256 * MIB);
	hugepin_free(q);
}

TEST(memory_is_locked_while_it_is_registered)
{
	struct hugepin_reg r;
	char *p = pages(MIB);
	unsigned char resident[MIB / PAGE];

	EXPECT_EQ(locked(), 0);
	EXPECT_EQ(reg(p, MIB, &r), 0);
	EXPECT_EQ(locked(), MIB);
	EXPECT_EQ(mincore(p, MIB, resident), 0);
	EXPECT(memchr(resident, 0, sizeof resident) == NULL);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(locked(), 0);
	munmap(p, MIB);
}

TEST(one_registration_is_unlocked_by_one_call_and_two_that_overlap_by_two)
{
	struct hugepin_reg r, s;
	char *p = pages(8 * PAGE);

	for (int i = 0; i < 3; i++) {
		unlocked = looked_for_holes = 0;
		EXPECT_EQ(reg(p, 4 * PAGE, &r), 0);
		EXPECT_EQ(unlocked, 0);
		EXPECT_EQ(dereg(&r), 0);
		EXPECT_EQ(unlocked, 1);
		EXPECT_EQ(reg(p, 4 * PAGE, &r), 0);
		EXPECT_EQ(reg(p + 2 * PAGE, 4 * PAGE, &s), 0);
		EXPECT_EQ(unlocked, 1);
		EXPECT_EQ(dereg(i % 2 ? &r : &s), 0);
		EXPECT_EQ(unlocked, 2);
		EXPECT_EQ(locked(), 4 * PAGE);
		EXPECT_EQ(dereg(i % 2 ? &s : &r), 0);
		EXPECT_EQ(unlocked, 3);
		EXPECT_EQ(looked_for_holes, 0);
	}
	EXPECT_EQ(reg(p, 4 * PAGE, &r), 0); /* inside another: nothing to unlock */
	EXPECT_EQ(reg(p + PAGE, PAGE, &s), 0);
	unlocked = 0;
	EXPECT_EQ(dereg(&s), 0);
	EXPECT_EQ(unlocked, 0);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(unlocked, 1);
	munmap(p, 8 * PAGE);
}

TEST(a_page_stays_locked_until_its_last_registration_goes)
{
	enum { PAGES = 48, LIVE = 12, ROUNDS = 600 };
	static struct {
		struct hugepin_reg reg;
		unsigned first, count;
	} live[LIVE];
	unsigned covers[PAGES] = { 0 };
	char *p = pages(PAGES * PAGE);

	srand(42);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned i = (unsigned)rand() % LIVE, pages_locked = 0;

		if (live[i].count) {
			EXPECT_EQ(dereg(&live[i].reg), 0);
			for (unsigned k = 0; k < live[i].count; k++)
				covers[live[i].first + k]--;
			live[i].count = 0;
		} else {
			live[i].first = (unsigned)rand() % PAGES;
			live[i].count = 1 + (unsigned)rand() % (PAGES - live[i].first);
			EXPECT_EQ(reg(p + live[i].first * PAGE, live[i].count * PAGE, &live[i].reg), 0);
			for (unsigned k = 0; k < live[i].count; k++)
				covers[live[i].first + k]++;
		}
		for (unsigned k = 0; k < PAGES; k++)
			pages_locked += covers[k] > 0;
		if (!EXPECT_EQ(locked(), pages_locked * PAGE))
			break;
	}
	for (unsigned i = 0; i < LIVE; i++) {
		if (live[i].count)
			EXPECT_EQ(dereg(&live[i].reg), 0);
	}
	EXPECT_EQ(locked(), 0);
	munmap(p, PAGES * PAGE);
}

TEST(without_the_drop_in_the_kernel_is_asked_what_the_program_has_locked)
{
	struct hugepin_reg r, s;
	char *p = pages(MIB);

	/* By number: under sanitizers the functions do nothing. */
	EXPECT_EQ(syscall(SYS_mlock, p + 4 * PAGE, 4 * PAGE), 0);
	EXPECT_EQ(syscall(SYS_mlock, p + 10 * PAGE, PAGE), 0);
	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(reg(p, MIB / 2, &r), 0);
		EXPECT_EQ(reg(p + 6 * PAGE, MIB / 2, &s), 0);
		EXPECT_EQ(locked(), MIB / 2 + 6 * PAGE);
		EXPECT_EQ(dereg(i == 1 ? &s : &r), 0);
		EXPECT_EQ(dereg(i == 1 ? &r : &s), 0);
		EXPECT_EQ(locked(), 5 * PAGE);
	}
	EXPECT_EQ(syscall(SYS_munlock, p, MIB), 0);
	EXPECT_EQ(reg(p, MIB, &r), 0);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(locked(), 0);
	munmap(p, MIB);
}

/* What the program unlocks while it is registered, it has unlocked, whoever asks next. */
TEST(without_the_drop_in_what_the_program_has_unlocked_is_not_kept_locked)
{
	struct hugepin_reg r, s;
	char *p = pages(8 * PAGE), *other = pages(PAGE);

	EXPECT_EQ(syscall(SYS_mlock, other, PAGE), 0);
	EXPECT_EQ(syscall(SYS_mlock, p + 3 * PAGE, PAGE), 0);
	EXPECT_EQ(reg(p, 8 * PAGE, &r), 0);
	EXPECT_EQ(syscall(SYS_munlock, p + 3 * PAGE, PAGE), 0);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(reg(p, 8 * PAGE, &r), 0);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(locked(), PAGE);
	syscall(SYS_munlock, p, 8 * PAGE);

	EXPECT_EQ(syscall(SYS_mlock, p + 3 * PAGE, PAGE), 0);
	EXPECT_EQ(reg(p, 8 * PAGE, &r), 0);
	EXPECT_EQ(syscall(SYS_munlock, p + 3 * PAGE, PAGE), 0);
	EXPECT_EQ(reg(p, 8 * PAGE, &s), 0);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(dereg(&s), 0);
	EXPECT_EQ(locked(), PAGE);
	munmap(p, 8 * PAGE);
	munmap(other, PAGE);
	EXPECT_EQ(locked(), 0);
}

static void register_on_the_service_thread(void)
{
	struct hugepin_domain_stats s = { 0 };
	hugepin_domain *d = NULL;
	char *p = pages(8 * PAGE);

	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, NULL, &d), 0);
	EXPECT_EQ(syscall(SYS_mlock, p + 3 * PAGE, PAGE), 0);
	EXPECT_EQ(hugepin_prefetch(d, p, 8 * PAGE, 0), 0);
	for (int i = 0; i < 20000 && !s.prefetched; i++) {
		usleep(1000);
		hugepin_domain_stats(d, &s, sizeof s);
	}
	EXPECT_EQ(locked(), 8 * PAGE);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(locked(), PAGE);
	_exit(t_failures);
}

TEST_CASE(what_the_program_has_locked_stays_so_when_the_service_thread_registers_it,
	  EXPECT_EQ(in_child(register_on_the_service_thread), 0))

/* Times that all mappings were looked at since the last call. */
static long looks(void)
{
	long n = looked_where;

	looked_where = 0;
	return n;
}

TEST(without_the_drop_in_mappings_are_looked_at_only_after_a_change_of_the_programs)
{
	struct hugepin_reg r[6];
	char *p = pages(8 * PAGE), *other = pages(2 * PAGE);

	looks();
	EXPECT_EQ(reg(p, PAGE, &r[0]), 0);
	EXPECT_EQ(reg(p + PAGE, PAGE, &r[1]), 0);
	EXPECT_EQ(dereg(&r[0]), 0);
	EXPECT_EQ(reg(p, 2 * PAGE, &r[0]), 0);
	EXPECT_EQ(looks(), 0);
	EXPECT_EQ(syscall(SYS_mlock, other, 2 * PAGE), 0);
	EXPECT_EQ(reg(p + 2 * PAGE, PAGE, &r[2]), 0);
	EXPECT_EQ(looks(), 1);
	EXPECT_EQ(reg(p + 3 * PAGE, PAGE, &r[3]), 0);
	EXPECT_EQ(dereg(&r[3]), 0);
	EXPECT_EQ(reg(p + 3 * PAGE, PAGE, &r[3]), 0);
	EXPECT_EQ(looks(), 0);
	EXPECT_EQ(syscall(SYS_munlock, other, PAGE), 0);
	EXPECT_EQ(dereg(&r[3]), 0); /* does not look, and does not forget that somebody has to */
	EXPECT_EQ(looks(), 0);
	EXPECT_EQ(reg(p + 3 * PAGE, PAGE, &r[3]), 0);
	EXPECT_EQ(looks(), 1);
	EXPECT_EQ(syscall(SYS_munlock, other, 2 * PAGE), 0);
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(dereg(&r[i]), 0);
	EXPECT_EQ(looks(), 0);
	EXPECT_EQ(locked(), 0);
	EXPECT_EQ(reg(p, PAGE, &r[0]), 0); /* nothing is locked */
	EXPECT_EQ(looks(), 0);
	EXPECT_EQ(dereg(&r[0]), 0);
	munmap(p, 8 * PAGE);
	munmap(other, 2 * PAGE);
}

/* By what libhugepin-malloc.so's mlock and munlock call. */
TEST(what_the_program_locks_and_what_is_registered_do_not_undo_each_other)
{
	enum { PAGES = 48, LIVE = 6, ROUNDS = 1500 };
	static struct {
		struct hugepin_reg reg;
		unsigned first, count;
	} live[LIVE];
	bool programs[PAGES] = { false };
	unsigned covers[PAGES] = { 0 };
	char *p = pages(PAGES * PAGE);

	srand(43);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned i = (unsigned)rand() % LIVE, first = (unsigned)rand() % PAGES, pages_locked = 0;
		unsigned count = 1 + (unsigned)rand() % (PAGES - first), what = (unsigned)rand() % 50;

		if (what < 12 || (what < 25 && count < 5)) {
			bool on = what % 2;

			errno = 77;
			EXPECT_EQ(on ? hugepin_lock_((uintptr_t)(p + first * PAGE + 5), count * PAGE - 7, 0)
				     : hugepin_unlock_((uintptr_t)(p + first * PAGE), count * PAGE), 0);
			EXPECT_EQ(errno, 77);
			memset(programs + first, on, count * sizeof *programs);
		} else if (what == 49) {
			EXPECT_EQ(hugepin_lock_all_(0), 0);
			memset(programs, 0, sizeof programs);
		} else if (live[i].count) {
			EXPECT_EQ(dereg(&live[i].reg), 0);
			for (unsigned k = 0; k < live[i].count; k++)
				covers[live[i].first + k]--;
			live[i].count = 0;
		} else {
			EXPECT_EQ(reg(p + first * PAGE, count * PAGE, &live[i].reg), 0);
			live[i].first = first;
			live[i].count = count;
			for (unsigned k = 0; k < count; k++)
				covers[first + k]++;
		}
		for (unsigned k = 0; k < PAGES; k++)
			pages_locked += covers[k] || programs[k];
		if (!EXPECT_EQ(locked(), pages_locked * PAGE))
			break;
	}
	for (unsigned i = 0; i < LIVE; i++)
		if (live[i].count)
			EXPECT_EQ(dereg(&live[i].reg), 0);
	EXPECT_EQ(hugepin_lock_all_(0), 0);
	EXPECT_EQ(locked(), 0);
	munmap(p, PAGES * PAGE);
}

TEST(what_is_unmapped_is_locked_no_more_and_what_is_wrong_the_kernel_says)
{
	struct hugepin_reg r;
	char *p = pages(8 * PAGE);

	EXPECT_EQ(hugepin_lock_((uintptr_t)p, 8 * PAGE, MLOCK_ONFAULT), 0);
	hp_locks_unmapping(p, 4 * PAGE); /* from here on as with the drop-in */
	munmap(p, 4 * PAGE);
	EXPECT_EQ(hugepin_lock_((uintptr_t)p, PAGE, 0), -ENOMEM);
	EXPECT_EQ(hugepin_lock_((uintptr_t)p, PAGE, 12345), -EINVAL);
	EXPECT_EQ(hugepin_unlock_((uintptr_t)p, PAGE), -ENOMEM);
	EXPECT_EQ(hugepin_lock_((uintptr_t)-PAGE, 2 * PAGE, 0), -EINVAL);
	EXPECT_EQ(hugepin_lock_((uintptr_t)p, 0, 0), 0);
	EXPECT(mmap(p, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	looked_how_much = looked_where = 0;
	EXPECT_EQ(reg(p, 8 * PAGE, &r), 0);
	EXPECT_EQ(looked_how_much + looked_where, 0);
	EXPECT_EQ(locked(), 8 * PAGE);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(locked(), 4 * PAGE);
	EXPECT_EQ(looked_how_much, 2); /* by this test */
	EXPECT_EQ(hugepin_unlock_((uintptr_t)p, 8 * PAGE), 0);
	EXPECT_EQ(locked(), 0);
	munmap(p, 8 * PAGE);
}

TEST(what_is_wrong_the_kernel_says_whatever_is_registered_below_and_above)
{
	struct hugepin_reg low, high;
	char *p = pages(8 * PAGE);

	EXPECT_EQ(reg(p, PAGE, &low), 0);
	EXPECT_EQ(reg(p + 7 * PAGE, PAGE, &high), 0);
	munmap(p + 3 * PAGE, PAGE);
	EXPECT_EQ(hugepin_lock_((uintptr_t)p + PAGE, 2 * PAGE, 0), 0);
	EXPECT_EQ(hugepin_unlock_((uintptr_t)p + PAGE, 6 * PAGE), -ENOMEM);
	EXPECT_EQ(hugepin_unlock_((uintptr_t)p + 3 * PAGE, PAGE), -ENOMEM);
	EXPECT_EQ(hugepin_unlock_((uintptr_t)p, 8 * PAGE), 0); /* of what is registered the rest, wherever there is some */
	EXPECT_EQ(locked(), 2 * PAGE);
	EXPECT_EQ(dereg(&low), 0);
	EXPECT_EQ(dereg(&high), 0);
	EXPECT_EQ(locked(), 0);
	munmap(p, 8 * PAGE);
}

static void *buffer(void)
{
	return memset(hugepin_aligned_alloc(PAGE, MIB / 4), 1, MIB / 4);
}

static void unreadable(void)
{
	char *p = buffer(), *blocker = buffer(), *q;

	EXPECT_EQ(mprotect(p + 2 * PAGE, PAGE, PROT_NONE), 0);
	EXPECT_EQ(hugepin_lock_((uintptr_t)p, MIB / 4, 0), -ENOMEM);
	EXPECT_EQ(locked(), MIB / 4); /* says the kernel */
	EXPECT_EQ(mprotect(p + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE), 0);
	hugepin_free(p);
	EXPECT_EQ(locked(), 0);
	p = buffer();
	EXPECT_EQ(hugepin_lock_((uintptr_t)p, MIB / 4, 0), 0);
	EXPECT_EQ(hugepin_protect_(p + 2 * PAGE, PAGE, PROT_NONE), 0);
	q = hugepin_realloc(p, 8 * MIB);
	EXPECT(q);
	EXPECT(locked() >= MIB / 4);
	hugepin_free(q ? q : p);
	EXPECT_EQ(locked(), 0);
	hugepin_free(blocker);
	_exit(t_failures);
}

TEST_CASE(what_is_locked_but_for_a_page_that_cannot_be_read_is_unlocked_when_it_is_free,
	  EXPECT_EQ(in_child(unreadable), 0))

static void all_unlocked(void)
{
	char *p = buffer(), *blocker = buffer(), *q;

	EXPECT_EQ(hugepin_lock_((uintptr_t)p, MIB / 4, 0), 0);
	EXPECT_EQ(hugepin_lock_((uintptr_t)blocker, MIB / 4, 0), 0);
	EXPECT_EQ(hugepin_lock_all_(0), 0);
	unlocked = 0;
	q = hugepin_realloc(p, 8 * MIB);
	EXPECT(q);
	EXPECT_EQ(locked(), 0);
	hugepin_free(blocker);
	hugepin_free(q ? q : p);
	EXPECT_EQ(unlocked, 0);
	_exit(t_failures);
}

TEST_CASE(after_munlockall_no_buffer_is_taken_for_locked, EXPECT_EQ(in_child(all_unlocked), 0))

static void no_mapping_left(void)
{
	enum { MANY = 70000 };
	char *p[4], *area;

	for (int i = 0; i < 4; i++) {
		p[i] = buffer();
		EXPECT_EQ(hugepin_lock_((uintptr_t)p[i], MIB / 4, 0), 0);
	}
	area = mmap(NULL, 2 * MANY * (size_t)PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (area == MAP_FAILED)
		_exit(77);
	for (size_t i = 0; i < MANY && mprotect(area + (2 * i + 1) * PAGE, PAGE, PROT_READ) == 0; i++)
		;
	while (mmap(NULL, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
		;
	if (hugepin_unlock_((uintptr_t)p[2] + PAGE, PAGE) != -ENOMEM)
		_exit(77); /* there may be more */
	hugepin_free(p[1]);
	EXPECT_EQ(locked(), MIB);
	munmap(area, 2 * MANY * (size_t)PAGE);
	for (int i = 0; i < 4; i++)
		if (i != 1)
			hugepin_free(p[i]);
	EXPECT_EQ(locked(), 0);
	_exit(t_failures);
}

TEST(what_the_kernel_cannot_unlock_for_want_of_mappings_is_unlocked_later)
{
	int status = in_child(no_mapping_left);

	if (status == 77 << 8)
		SKIP("there may be more mappings than that");
	EXPECT_EQ(status, 0);
}

static void all_locked(void)
{
	struct hugepin_reg r;
	char *p = pages(MIB);
	unsigned char there = 0;
	uint64_t before;

	EXPECT_EQ(hugepin_lock_all_(MCL_CURRENT), 0);
	before = locked();
	EXPECT(before >= MIB);
	EXPECT_EQ(reg(p, MIB, &r), 0);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(locked(), before);
	EXPECT_EQ(reg(p, MIB, &r), 0);
	EXPECT(mmap(p + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + PAGE);
	EXPECT_EQ(hugepin_lock_all_(0), 0);
	EXPECT_EQ(locked(), MIB);
	EXPECT_EQ(mincore(p + PAGE, PAGE, &there), 0);
	EXPECT(there & 1);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(locked(), 0);
	_exit(t_failures);
}

TEST(where_all_is_locked_nothing_is_unlocked)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
	SKIP("all is more than there is memory: a sanitizer's own table is");
#endif
	EXPECT_EQ(in_child(all_locked), 0);
}

TEST(memory_that_is_not_there_is_refused_for_that_and_leaves_nothing_locked)
{
	struct hugepin_reg r = { .cookie = 77 }, other;
	char *p = pages(8 * PAGE);

	munmap(p + 4 * PAGE, PAGE);
	EXPECT_EQ(mprotect(p + 6 * PAGE, PAGE, PROT_NONE), 0);
	EXPECT_EQ(reg(p, PAGE, &other), 0);
	errno = 0;
	EXPECT_EQ(reg(p, 8 * PAGE, &r), -EFAULT); /* a hole */
	EXPECT_EQ(reg(p + 4 * PAGE, PAGE, &r), -EFAULT);
	EXPECT_EQ(reg(p + 5 * PAGE, 3 * PAGE, &r), -EFAULT); /* no access */
	EXPECT_EQ(errno, 0);
	EXPECT_EQ(r.cookie, 77);
	EXPECT_EQ(locked(), PAGE);
	EXPECT_EQ(dereg(&other), 0);
	EXPECT_EQ(locked(), 0);
	munmap(p, 8 * PAGE);
}

TEST(what_is_left_of_memory_that_went_away_is_unlocked)
{
	struct hugepin_reg r;
	char *p = pages(8 * PAGE);

	EXPECT_EQ(reg(p, 8 * PAGE, &r), 0);
	munmap(p, PAGE);
	munmap(p + 3 * PAGE, 2 * PAGE);
	EXPECT_EQ(locked(), 5 * PAGE);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(locked(), 0);
	EXPECT_EQ(reg(p + 5 * PAGE, 3 * PAGE, &r), 0);
	munmap(p, 8 * PAGE);
	EXPECT_EQ(dereg(&r), 0);
}

TEST(so_it_is_in_the_first_of_all_mappings)
{
	struct hugepin_reg r;
	char *p = mmap((void *)0x10000, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (p != (void *)0x10000)
		SKIP("no memory may lie as low");
	EXPECT_EQ(reg(p, 8 * PAGE, &r), 0);
	munmap(p, PAGE); /* behind a hole */
	munmap(p + 3 * PAGE, PAGE);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(locked(), 0);
	munmap(p, 8 * PAGE);
}

static void *lock_and_unlock_in_parts(void *p_)
{
	struct hugepin_reg r;
	char *p = p_;

	pthread_cancel(pthread_self());
	EXPECT_EQ(reg(p, 8 * PAGE, &r), -EFAULT);
	EXPECT_EQ(reg(p + 2 * PAGE, 6 * PAGE, &r), 0);
	munmap(p + 4 * PAGE, PAGE);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL), 0);
	return p;
}

TEST(locking_and_unlocking_is_no_cancellation_point_where_there_are_holes_either)
{
	struct hugepin_reg r;
	pthread_t thread;
	void *ended = NULL;
	char *p = pages(8 * PAGE);

	munmap(p + PAGE, PAGE);
	EXPECT_EQ(pthread_create(&thread, NULL, lock_and_unlock_in_parts, p), 0);
	EXPECT_EQ(pthread_join(thread, &ended), 0);
	if (!EXPECT(ended == p)) /* and nobody can lock any more */
		return;
	EXPECT_EQ(locked(), 0);
	EXPECT_EQ(reg(p, PAGE, &r), 0);
	EXPECT_EQ(dereg(&r), 0);
	munmap(p, 8 * PAGE);
}

/* To find what lies behind a hole takes a file of the kernel's. */
TEST(what_is_left_is_unlocked_once_a_file_can_be_opened_again)
{
	struct rlimit before;
	struct hugepin_reg r, s;
	char *p = pages(8 * PAGE), *q = pages(PAGE);

	EXPECT_EQ(reg(p, 8 * PAGE, &r), 0);
	EXPECT_EQ(reg(q, PAGE, &s), 0);
	munmap(p + 3 * PAGE, PAGE);
	EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
	EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 0, before.rlim_max }), 0);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
	EXPECT_EQ(dereg(&s), 0);
	EXPECT_EQ(locked(), 0);
	munmap(p, 8 * PAGE);
	munmap(q, PAGE);
}

TEST(what_is_left_is_unlocked_though_the_hole_is_mapped_again_meanwhile)
{
	struct hugepin_reg r;
	char *p = pages(8 * PAGE);

	EXPECT_EQ(reg(p, 8 * PAGE, &r), 0);
	munmap(p + 3 * PAGE, PAGE);
	fill = p + 3 * PAGE;
	EXPECT_EQ(dereg(&r), 0);
	EXPECT(!fill);
	EXPECT_EQ(locked(), 0);
	munlock(p, 8 * PAGE);
	munmap(p, 8 * PAGE);
}

static void limited_child(void)
{
	const struct rlimit limit = { MIB, MIB };
	struct hugepin_limits l;
	struct hugepin_reg r, s;
	char *p = pages(2 * MIB);

	if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 || (!geteuid() && setresuid(65534, 65534, 65534) < 0))
		_exit(77);
	EXPECT_EQ(hugepin_mlock()->limits(NULL, &l), 0);
	EXPECT_EQ(l.bytes_max, MIB);
	EXPECT_EQ(reg(p, 2 * MIB, &r), -ENOMEM);
	EXPECT_EQ(reg(p, MIB / 2, &r), 0);
	EXPECT_EQ(reg(p + MIB / 2, MIB * 3 / 4, &s), -ENOMEM);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(reg(p + MIB / 2, MIB * 3 / 4, &s), 0);
	munmap(p, PAGE);
	EXPECT_EQ(reg(p, PAGE, &r), -EFAULT); /* not for the limit */
	_exit(t_failures);
}

/* The part of a thread: unmaps every other page of `going` each time that it is told to. */
enum { GOING_PAGES = 32 };
static char *_Atomic going;
static _Atomic int rounds, unmapped;

static void *unmap(void *unused)
{
	for (int round = 1;; round++) {
		while (rounds < round)
			if (rounds < 0)
				return unused;
		for (int i = GOING_PAGES - 1; i > 2; i -= 2)
			munmap(going + i * PAGE, PAGE);
		unmapped = round;
	}
}

TEST(what_goes_away_while_it_is_unlocked_leaves_nothing_locked)
{
	struct hugepin_reg r;
	pthread_t t;
	int failed = 0, left = 0;

	EXPECT_EQ(pthread_create(&t, NULL, unmap, NULL), 0);
	for (int round = 1; round <= 1000; round++) {
		char *p = pages(2 * GOING_PAGES * PAGE);

		going = p;
		EXPECT_EQ(reg(p, 2 * GOING_PAGES * PAGE, &r), 0);
		munmap(p + PAGE, PAGE);
		rounds = round;
		for (volatile int i = 0; i < round % 64 * 100; i++)
			;
		failed += dereg(&r) != 0;
		while (unmapped < round)
			sched_yield();
		left += locked() != 0;
		munlock(p, PAGE);
		munmap(p, 2 * GOING_PAGES * PAGE);
	}
	rounds = -1;
	pthread_join(t, NULL);
	EXPECT_EQ(failed, 0);
	EXPECT_EQ(left, 0);
}

static void raised_child(void)
{
	struct hugepin_reg r;
	char *p = pages(2 * MIB);

	if (setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ MIB, 4 * MIB }) < 0 || (!geteuid() && setresuid(65534, 65534, 65534) < 0))
		_exit(77);
	raise_to = 4 * MIB;
	EXPECT_EQ(reg(p, 2 * MIB, &r), 0);
	EXPECT_EQ(locked(), 2 * MIB);
	_exit(t_failures);
}

/* As it is by a process that is another user for a moment. */
TEST(a_limit_that_is_raised_meanwhile_is_not_taken_for_memory_that_is_not_there)
{
	int status = in_child(raised_child);

	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		SKIP("cannot change the limit");
	EXPECT_EQ(status, 0);
}

TEST(the_limit_on_locked_memory_is_said_and_met)
{
	int status = in_child(limited_child);

	if (status == 77 << 8)
		SKIP("the user cannot be changed here");
	EXPECT_EQ(status, 0);
}

static void privileged_child(void)
{
	const struct rlimit limit = { PAGE, PAGE };
	struct hugepin_limits l;
	struct hugepin_reg r;
	char ids[256];

	if (hp_read_file("/proc/self/uid_map", ids, sizeof ids) < 0 || !strstr(ids, "4294967295"))
		_exit(77);
	EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	EXPECT_EQ(hugepin_mlock()->limits(NULL, &l), 0);
	EXPECT_EQ(reg(pages(MIB), MIB, &r), l.bytes_max ? -ENOMEM : 0);
	_exit(t_failures);
}

TEST(who_has_the_capability_has_no_limit)
{
	int status = in_child(privileged_child);

	if (status == 77 << 8)
		SKIP("in a user namespace, capabilities say little");
	EXPECT_EQ(status, 0);
}

static char *shared_by_fork;

static void locking_child(void)
{
	struct hugepin_reg r;

	hp_locks_child(); /* as the core's handler does, where there are domains */
	EXPECT_EQ(locked(), 0);
	EXPECT_EQ(reg(shared_by_fork, 2 * PAGE, &r), 0);
	EXPECT_EQ(locked(), 2 * PAGE);
	EXPECT_EQ(dereg(&r), 0);
	EXPECT_EQ(locked(), 0);
	_exit(t_failures);
}

TEST(a_forked_child_starts_with_nothing_locked)
{
	struct hugepin_reg r;

	shared_by_fork = pages(4 * PAGE);
	EXPECT_EQ(reg(shared_by_fork, 4 * PAGE, &r), 0);
	EXPECT_EQ(in_child(locking_child), 0);
	EXPECT_EQ(locked(), 4 * PAGE);
	EXPECT_EQ(dereg(&r), 0);
	munmap(shared_by_fork, 4 * PAGE);
}

T_MAIN
