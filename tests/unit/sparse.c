/*
 * alloc/sparse.c: buffers of which little is touched, on a machine with a pool of the test's own (kernel.h). What is
 * read of them and what is not, and what memory the heap takes then. Each test has a process of its own, since the heap
 * remembers what it saw.
 */
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include "alloc/heap.h"
#include "alloc/hold.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "tests/live/live.h"
#include "tests/unit/child.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"

/* ------------------------------------------------------------------ the kernel */

static long pages_free = 1000;
static int reads; /* calls of process_vm_readv */
static bool absent_read; /* one of them was for memory that is not there */
static int refused; /* the error of these calls */
static bool filtered; /* there is a filter of system calls */
static int releases; /* of memory */
static size_t avoided; /* bytes that are to have no THP */

UNINSTRUMENTED static long map_pool(long len, long prot, long flags)
{
	if (len / (long)HP_PAGE > pages_free)
		return -ENOMEM;
	pages_free -= len / (long)HP_PAGE;
	return map_like_pool(len, prot, flags);
}

UNINSTRUMENTED static long look(long a, long b, long c, long d, long e, long f)
{
	const struct iovec *from = (const struct iovec *)d;
	unsigned char there[16] = { 0 };

	reads++;
	raw(SYS_mincore, (long)from->iov_base & -4096L, (long)from->iov_len, (long)there, 0, 0, 0);
	for (size_t i = 0; i < from->iov_len / 4096; i++)
		absent_read |= !(there[i] & 1);
	return refused ? -refused : raw(SYS_process_vm_readv, a, b, c, d, e, f);
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	releases += nr == SYS_mmap && d & MAP_FIXED && c == PROT_NONE;
	avoided += nr == SYS_madvise && c == MADV_NOHUGEPAGE ? (size_t)b : 0;
	if (nr == SYS_mmap && d & MAP_HUGETLB)
		r = (d >> 26 & 63) == HP_PAGE_SHIFT ? map_pool(b, c, d) : -ENOMEM;
	else if (nr == SYS_process_vm_readv)
		r = look(a, b, c, d, e, f);
	else if (nr == SYS_prctl && a == PR_GET_SECCOMP)
		r = filtered ? SECCOMP_MODE_FILTER : SECCOMP_MODE_DISABLED;
	else
		r = raw(nr, a, b, c, d, e, f);
	return result_of(r);
}

/* ------------------------------------------------------------------ */

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)(4 * GIB);
	hp_config.extent_max = (int64_t)(64 * MIB);
	hp_config.decay_ms = 0;
}

static void *last;

/* Allocate so many buffers of 1 MiB, and set `bytes` bytes of each. */
static void allocate(int count, size_t bytes)
{
	for (int i = 0; i < count; i++) {
		last = hugepin_malloc(MIB);
		if (!EXPECT(last))
			return;
		memset(last, 1, bytes);
	}
}

static size_t huge_bytes(void)
{
	return HP_STAT(hugetlb_bytes) + HP_STAT(thp_bytes);
}

static void little_is_touched(void)
{
	allocate(300, 128);
	EXPECT(huge_bytes() <= 32 * MIB);
	EXPECT(HP_STAT(sparse_bytes) >= 200 * MIB);
	EXPECT_EQ(avoided, HP_STAT(sparse_bytes));
	EXPECT_EQ(HP_STAT(reserved_bytes), 0);
	EXPECT_EQ(HP_STAT(pool_denied), 0);
	EXPECT(!absent_read);
	expect_counted();
	expect_span_reserved(false);
}

TEST_CASE(buffers_touched_little_lie_in_base_pages_from_then_on, in_child(little_is_touched))

/* Touch `count` base pages of each of so many buffers of 1 MiB, at places that differ, and not the first page. */
static void touch_elsewhere(int buffers, int count)
{
	static uint64_t rand = 4242;

	for (int i = 0; i < buffers; i++) {
		allocate(1, 0);
		for (int k = 0; last && k < count; k++)
			((char *)last)[rand_size(&rand, 4096, MIB - 1)] = 1;
	}
}

TEST_BY(in_child, it_does_not_matter_where_buffers_are_touched)
{
	pages_free = 0;
	touch_elsewhere(400, 2);
	EXPECT(!hp_span.thp || HP_STAT(sparse_bytes) >= 200 * MIB);
	EXPECT(!absent_read);
	expect_counted();
}

TEST_BY(in_child, nor_in_pages_of_the_pool)
{
	touch_elsewhere(300, 8);
	EXPECT(HP_STAT(sparse_bytes) >= 100 * MIB);
}

TEST_BY(in_child, buffers_filled_with_zeros_stay_in_hugepages)
{
	pages_free = 0;
	for (int i = 0; i < 300; i++) {
		allocate(1, 0);
		memset(last, 0, MIB);
	}
	EXPECT_EQ(HP_STAT(sparse_bytes), 0);
	EXPECT(reads < 600); /* such a program is looked at less, too */
}

/* Each of these buffers is looked at, whatever was found before. Of the untouched ones, each hugepage is had. */
static void allocate_large(int untouched, int little)
{
	for (int i = 0; i < untouched + little; i++) {
		char *p = hugepin_malloc(18 * MIB);

		for (size_t at = 0; p && !pages_free && at < 18 * MIB; at += HP_PAGE)
			((volatile char *)p)[at] = 0;
		if (EXPECT(p) && i >= untouched)
			p[0] = 1;
	}
}

TEST_BY(in_child, one_buffer_touched_little_among_buffers_of_zeros_decides_nothing)
{
	pages_free = 0;
	allocate_large(16, 1);
	allocate_large(6, 0);
	EXPECT(!hp_span.sparse);
}

TEST_BY(in_child, buffers_of_the_pool_that_are_not_used_yet_do_not_count_with_others)
{
	for (int i = 0; i < 2; i++)
		allocate_large(8, 1);
	allocate(10, 0);
	EXPECT(pages_free > 0);
	EXPECT(!hp_span.sparse);
}

TEST_BY(in_child, pages_that_are_reserved_in_the_pool_go_back_to_it_at_once)
{
	int before = 0;

	for (int i = 0; i < 100 && !HP_STAT(sparse_bytes); i++) {
		before = releases;
		allocate(1, 128);
	}
	EXPECT(huge_bytes() < 32 * MIB);
	EXPECT(HP_STAT(sparse_bytes) > HP_PAGE);
	EXPECT_EQ(releases, before + 1);
	EXPECT_EQ(HP_STAT(reserved_bytes), 0);
	expect_counted();
}

TEST_BY(in_child, without_a_pool_thp_are_left_alone_and_a_look_brings_nothing_in)
{
	pages_free = 0;
	little_is_touched();
}

TEST_BY(in_child, filled_buffers_stay_in_hugepages)
{
	allocate(300, MIB);
	EXPECT(reads > 0);
	EXPECT(reads < 200); /* a program that fills its buffers is looked at less */
	EXPECT_EQ(HP_STAT(sparse_bytes), 0);
	EXPECT_EQ(HP_STAT(base_bytes), 0);
}

TEST_BY(in_child, a_third_of_a_buffer_is_not_little)
{
	allocate(300, MIB / 3);
	EXPECT_EQ(HP_STAT(sparse_bytes), 0);
}

TEST_BY(in_child, nor_is_the_last_third)
{
	for (int i = 0; i < 300; i++) {
		allocate(1, 0);
		memset((char *)last + MIB / 3 * 2, 1, MIB / 3);
	}
	EXPECT_EQ(HP_STAT(sparse_bytes), 0);
}

TEST_BY(in_child, buffers_that_are_not_used_yet_say_nothing)
{
	allocate(300, 0);
	EXPECT_EQ(HP_STAT(sparse_bytes), 0);
}

TEST_BY(in_child, buffers_of_less_than_64_kib_are_not_looked_at)
{
	for (int i = 0; i < 4000; i++)
		memset(hugepin_malloc(60 * KIB), 1, 1);
	EXPECT_EQ(reads, 0);
	EXPECT_EQ(HP_STAT(sparse_bytes), 0);
}

TEST_BY(in_child, what_cannot_be_read_says_nothing)
{
	refused = EPERM;
	errno = 77;
	allocate(100, 128);
	EXPECT_EQ(errno, 77);
	EXPECT(reads > 0);
	EXPECT_EQ(HP_STAT(sparse_bytes), 0);
}

TEST_BY(in_child, with_a_filter_of_system_calls_nothing_is_read)
{
	filtered = true;
	allocate(100, 128);
	EXPECT_EQ(reads, 0);
	EXPECT_EQ(HP_STAT(sparse_bytes), 0);
}

TEST_BY(in_child, pages_of_a_kind_that_is_asked_for_are_not_replaced)
{
	hp_config.pages = HP_PAGES_THP;
	allocate(100, 128);
	EXPECT_EQ(reads, 0);
	EXPECT_EQ(HP_STAT(base_bytes), 0);
}

/* By calls that the heap does not see. */
TEST_BY(in_child, what_the_program_has_protected_is_not_touched)
{
	unsigned char *p[100];

	pages_free = 0;
	for (int i = 0; i < 100; i++) {
		p[i] = hugepin_aligned_alloc(HP_PAGE, MIB);
		memset(p[i], 1, 128);
		raw(SYS_mprotect, (long)p[i] + 4096, MIB - 4096, PROT_NONE, 0, 0, 0);
	}
	EXPECT(reads > 0);
	EXPECT_EQ(HP_STAT(sparse_bytes), 0);
	for (int i = 0; i < 100; i++) {
		raw(SYS_mprotect, (long)p[i], MIB, PROT_READ | PROT_WRITE, 0, 0, 0);
		EXPECT(p[i][127] == 1 && !p[i][4096] && !p[i][MIB - 1]);
	}
}

/* By calls that the heap does not see. If the program's own userfaultfd watched it, a read would wait for the program. */
TEST_BY(in_child, what_the_program_has_given_back_is_not_read_in_the_pool_either)
{
	for (int i = 0; i < 100; i++) {
		char *p = hugepin_aligned_alloc(HP_PAGE, MIB);

		memset(p, 1, 128);
		raw(SYS_madvise, (long)p + 4096, MIB - 4096, MADV_DONTNEED, 0, 0, 0);
	}
	EXPECT(!absent_read);
}

TEST_BY(in_child, when_buffers_are_filled_again_hugepages_are_had_again)
{
	allocate(100, 128);
	EXPECT(hp_span.sparse);
	allocate(300, MIB);
	EXPECT(!hp_span.sparse);
	EXPECT(huge_bytes() >= 128 * MIB);
}

TEST_BY(in_child, where_each_second_buffer_is_filled_all_have_hugepages)
{
	for (int i = 0; i < 100; i++) {
		allocate(1, MIB);
		allocate(1, 128);
	}
	EXPECT_EQ(HP_STAT(sparse_bytes), 0);
}

TEST_BY(in_child, a_child_of_fork_looks_at_its_own_buffers)
{
	pid_t pid;

	allocate(30, 128);
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		reads = 0;
		allocate(5, 128);
		EXPECT_EQ(reads, 0);
		allocate(100, 128);
		EXPECT(HP_STAT(sparse_bytes) > 0);
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
}

static const struct hp_heap_hooks hooks;

TEST_BY(in_child, a_process_with_a_pin_cache_is_not_looked_at)
{
	hp_heap_set_hooks(&hooks);
	allocate(100, 128);
	EXPECT_EQ(reads, 0);
	EXPECT_EQ(HP_STAT(sparse_bytes), 0);
}

T_MAIN
