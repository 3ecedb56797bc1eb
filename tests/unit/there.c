/*
 * What memory is there, by both ways: the one of new kernels, which is hidden here from who asks for the other (kernel.h).
 */
#include "base/there.h"

#include "base/pagescan.h"
#include "tests/t.h"
#include "tests/unit/kernel.h"

enum { PAGE = 4096, PAGES = HP_PAGE / PAGE };

static struct {
	bool old, absent; /* the kernel has no PAGEMAP_SCAN; there is no /proc */
	int scans;
	bool stays; /* a scan gets nowhere */
} says;

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	says.scans += nr == SYS_ioctl;
	if (nr == SYS_ioctl && says.old) {
		r = -ENOTTY;
	} else if (nr == SYS_ioctl && says.stays) {
		((struct hp_pagescan *)c)->walk_end = ((struct hp_pagescan *)c)->start;
		r = 0;
	} else if (nr == SYS_openat && says.absent) {
		r = -ENOENT;
	} else {
		r = raw(nr, a, b, c, d, e, f);
	}
	return result_of(r);
}

static char *map(size_t hugepages)
{
	size_t len = hugepages * HP_PAGE;
	char *p = mmap(NULL, len + HP_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *at = (char *)hp_round_up((uintptr_t)p, HP_PAGE);

	if (at > p)
		munmap(p, (size_t)(at - p));
	munmap(at + len, (size_t)(p + HP_PAGE - at));
	return at;
}

static bool is_there(const char *p, size_t len, size_t huge, size_t other)
{
	struct hp_there t = { 5, 7 };

	errno = 77;
	return EXPECT(hp_there((uintptr_t)p, (uintptr_t)p + len, &t)) && EXPECT_EQ(t.huge, 5 + huge) && EXPECT_EQ(t.other, 7 + other) &&
	       EXPECT_EQ(errno, 77);
}

static bool can_scan(void)
{
	struct hp_pagescan none = { .size = 0 };
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	bool can = raw(SYS_ioctl, fd, (long)HP_PAGESCAN, (long)&none, 0, 0, 0) != -ENOTTY;

	close(fd);
	return can;
}

TEST(whether_it_is_quick_is_asked_once)
{
	errno = 77;
	EXPECT_EQ(hp_there_is_quick(), can_scan());
	EXPECT_EQ(hp_there_is_quick(), can_scan());
	EXPECT_EQ(says.scans, 1);
	EXPECT_EQ(errno, 77);
}

/* The last time, each second page: many more stretches than are told of at once. */
static void touch_and_ask(void)
{
	static const size_t strides[] = { PAGES, 100, 16, 15, 8, 7, 2 };
	char *p = map(3);

	madvise(p, 3 * HP_PAGE, MADV_NOHUGEPAGE);
	is_there(p, 3 * HP_PAGE, 0, 0);
	(void)*(volatile char *)(p + PAGE); /* reads as zero, and was never written */
	is_there(p, 3 * HP_PAGE, 0, 0);
	for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) {
		size_t n = 0;

		for (size_t page = 0; page < PAGES; page += strides[i], n++)
			p[HP_PAGE + page * PAGE] = 1;
		if (!is_there(p, 3 * HP_PAGE, 0, n * PAGE))
			T_FAIL("each page of %zu", strides[i]);
		madvise(p, 3 * HP_PAGE, MADV_DONTNEED);
	}
	memset(p, 1, 3 * HP_PAGE);
	is_there(p, 3 * HP_PAGE, 0, 3 * HP_PAGE);
	munmap(p, 3 * HP_PAGE);
}

TEST(what_was_written_to_is_there)
{
	touch_and_ask();
	says.old = true;
	touch_and_ask();
	says.old = false;
}

TEST(where_the_quick_way_gets_nowhere_the_other_tells)
{
	char *p = map(1);

	madvise(p, HP_PAGE, MADV_NOHUGEPAGE);
	memset(p, 1, HP_PAGE);
	says.stays = true;
	is_there(p, HP_PAGE, 0, HP_PAGE);
	says.stays = false;
	munmap(p, HP_PAGE);
}

TEST(of_a_part_the_quick_way_tells_that_part)
{
	char *p = map(3);

	if (!can_scan())
		SKIP("Linux before 6.7");
	madvise(p, 3 * HP_PAGE, MADV_NOHUGEPAGE);
	memset(p, 1, 3 * HP_PAGE);
	is_there(p + HP_PAGE, HP_PAGE, 0, HP_PAGE);
	munmap(p, 3 * HP_PAGE);
}

/* Neighbours of the mapping are not counted, be they ever so near. */
TEST(the_other_way_tells_of_the_mappings_that_lie_there)
{
	char *p = map(3);

	says.old = true;
	madvise(p, 3 * HP_PAGE, MADV_NOHUGEPAGE);
	memset(p, 1, 3 * HP_PAGE);
	mprotect(p + HP_PAGE, HP_PAGE, PROT_READ);
	is_there(p + HP_PAGE, HP_PAGE, 0, HP_PAGE);
	is_there(p, HP_PAGE, 0, HP_PAGE);
	is_there(p, 2 * HP_PAGE, 0, 2 * HP_PAGE);
	is_there(p + HP_PAGE, 2 * HP_PAGE, 0, 2 * HP_PAGE);
	munmap(p, 3 * HP_PAGE);
	is_there(p, 3 * HP_PAGE, 0, 0);
	says.old = false;
}

struct seen {
	uintptr_t at;
	size_t parts, bytes;
};

/* In order, without an overlap, and each is as the program wrote it. */
static void see(void *seen, uintptr_t from, uintptr_t to)
{
	struct seen *s = seen;

	EXPECT(from >= s->at && to > from);
	for (uintptr_t page = from; page < to; page += PAGE)
		EXPECT_EQ(*(char *)page, 1);
	s->at = to;
	s->parts++;
	s->bytes += to - from;
}

/* Many more parts than the kernel tells of at once. */
static void look_at_parts(void)
{
	char *p = map(3);
	struct seen s = { .at = (uintptr_t)p };
	size_t written = 0, last = 0;

	madvise(p, 3 * HP_PAGE, MADV_NOHUGEPAGE);
	EXPECT(hp_there_each((uintptr_t)p, (uintptr_t)p + 3 * HP_PAGE, see, &s));
	EXPECT_EQ(s.parts, 0);
	for (size_t page = 3; page < 3 * PAGES - 1; page += page % 5 == 4 ? 5 : 1) {
		p[page * PAGE] = 1;
		last = page;
		written++;
	}
	p[0] = p[3 * HP_PAGE - 1] = 1; /* outside of what is asked for */
	errno = 77;
	EXPECT(hp_there_each((uintptr_t)p + PAGE, (uintptr_t)p + 3 * HP_PAGE - PAGE, see, &s));
	EXPECT_EQ(errno, 77);
	EXPECT_EQ(s.bytes, written * PAGE);
	EXPECT_EQ(s.at, (uintptr_t)p + last * PAGE + PAGE);
	munmap(p, 3 * HP_PAGE);
}

TEST(the_parts_that_were_written_to_are_told_in_order)
{
	look_at_parts();
	says.old = true;
	look_at_parts();
	says.old = false;
}

TEST(without_proc_no_part_is_told)
{
	char *p = map(1);
	struct seen s = { .at = (uintptr_t)p };

	p[0] = 1;
	says.absent = true;
	EXPECT(!hp_there_each((uintptr_t)p, (uintptr_t)p + HP_PAGE, see, &s));
	EXPECT_EQ(s.parts, 0);
	says.absent = false;
	munmap(p, HP_PAGE);
}

static size_t huge_of(char *p)
{
	struct hp_there t = { 0, 0 };

	EXPECT(hp_there((uintptr_t)p, (uintptr_t)p + 2 * HP_PAGE, &t));
	EXPECT_EQ(t.huge + t.other, 2 * HP_PAGE);
	return t.huge;
}

TEST(hugepages_are_told_apart)
{
	size_t quick, slow;
	char *p = map(2);

	madvise(p, HP_PAGE, MADV_HUGEPAGE);
	madvise(p + HP_PAGE, HP_PAGE, MADV_NOHUGEPAGE);
	memset(p, 1, 2 * HP_PAGE);
	quick = huge_of(p);
	says.old = true;
	slow = huge_of(p);
	says.old = false;
	EXPECT_EQ(quick, slow);
	EXPECT(quick == 0 || quick == HP_PAGE);
	munmap(p, 2 * HP_PAGE);
	if (!quick)
		SKIP("no hugepage was to be had");
}

TEST(where_nothing_is_said_or_may_be_asked_nothing_is_added)
{
	struct hp_there t = { 5, 7 };
	char *p = map(1);

	*p = 1;
	errno = 77;
	says.absent = true;
	EXPECT(!hp_there((uintptr_t)p, (uintptr_t)p + HP_PAGE, &t));
	says.absent = false;
	hp_sandboxed = true;
	EXPECT(!hp_there((uintptr_t)p, (uintptr_t)p + HP_PAGE, &t));
	hp_sandboxed = false;
	EXPECT(t.huge == 5 && t.other == 7 && errno == 77);
	munmap(p, HP_PAGE);
}

TEST(of_a_program_without_standard_input_it_is_told_as_well)
{
	int in = fcntl(0, F_DUPFD_CLOEXEC, 3);
	char *p = map(1);

	madvise(p, HP_PAGE, MADV_NOHUGEPAGE);
	*p = 1;
	close(0);
	is_there(p, HP_PAGE, 0, PAGE);
	EXPECT(fcntl(0, F_GETFD) < 0);
	EXPECT_EQ(dup2(in, 0), 0);
	close(in);
	munmap(p, HP_PAGE);
}

T_MAIN
