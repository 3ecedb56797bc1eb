/*
 * Memory of the heap that the program watches by a userfaultfd of its own, and that is missing. The thread that gives
 * such memory may allocate, so the heap must not touch the memory while it holds its lock.
 */
#include "alloc/heap.h"

#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "alloc/madvise.h"
#include "base/lock.h"
#include "tests/unit/fork.h"
#include "tests/unit/told.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

enum { SIZE = 6 * MIB, FIRST = 2 * MIB, END = 4 * MIB }; /* [FIRST, END) is missing */
static int uffd = -1;
static _Atomic int events, locked; /* locked: events that came while the heap's lock was held */

static void *give(void *unused)
{
	struct uffd_msg m;
	struct pollfd p = { .fd = uffd, .events = POLLIN };

	(void)unused;
	while (poll(&p, 1, -1) == 1 && read(uffd, &m, sizeof m) == sizeof m) {
		struct uffdio_zeropage z = { .range = { m.arg.pagefault.address & -hp_base_page, hp_base_page } };

		locked += atomic_load_explicit(&hp_shard[0].lock.word, memory_order_relaxed) != 0;
		events++;
		ioctl(uffd, UFFDIO_ZEROPAGE, &z);
	}
	return NULL;
}

static char *buffer;

/* With a buffer of ones, of which a part is missing. body() returns the buffer, or where it is by then. */
static void with_missing(int64_t pages, char *(*body)(void))
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register r = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	pthread_t t;

	uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) != 0) {
		SKIP("userfaultfd: %s", strerror(errno));
		return;
	}
	hp_config.pages = pages;
	buffer = hugepin_aligned_alloc(HP_PAGE, SIZE);
	memset(buffer, 1, SIZE);
	r.range.start = (uintptr_t)buffer;
	r.range.len = SIZE;
	EXPECT_EQ(ioctl(uffd, UFFDIO_REGISTER, &r), 0);
	EXPECT_EQ(madvise(buffer + FIRST, END - FIRST, MADV_DONTNEED), 0);
	events = locked = 0;
	EXPECT_EQ(pthread_create(&t, NULL, give, NULL), 0);
	buffer = body();
	EXPECT_EQ(ioctl(uffd, UFFDIO_UNREGISTER, &r.range), 0);
	pthread_cancel(t);
	pthread_join(t, NULL);
	close(uffd);
	hugepin_free(buffer);
	hugepin_purge();
	expect_empty();
}

static void expect_contents(const char *p)
{
	for (size_t i = 0; i < SIZE; i += 4096)
		if (!EXPECT_EQ(p[i], i < FIRST || i >= END))
			break;
}

static void look_in_child(void)
{
	expect_contents(buffer);
}

static char *fork_twice(void)
{
	struct hugepin_extent e = extent_of(buffer);

	EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, HP_HOLD_COPY), 0);
	for (int i = 0; i < 2; i++) { /* the second copy may lie in the memory of the first */
		uint64_t copies = HP_STAT(forks_copied);

		EXPECT_EQ(fork_with(look_in_child), 0);
		EXPECT_EQ(HP_STAT(forks_copied), copies + 1);
		EXPECT_EQ(events, 0);
	}
	hp_heap_drop((uintptr_t)e.addr, e.len, HP_HOLD_COPY);
	return buffer;
}

static char *fork_with_advice(void)
{
	EXPECT_EQ(hugepin_protect_(buffer + FIRST - HP_CHUNK, 3 * HP_CHUNK, PROT_READ), 0);
	return fork_twice();
}

TEST_CASE(a_fork_that_copies_touches_no_missing_memory, with_missing(HP_PAGES_THP, fork_twice))
TEST_CASE(a_fork_that_copies_base_pages_touches_no_missing_memory, with_missing(HP_PAGES_BASE, fork_twice))
TEST_CASE(a_fork_that_copies_advised_memory_touches_no_missing_memory, with_missing(HP_PAGES_BASE, fork_with_advice))

/* The bytes of an advised buffer move without the heap's lock, and those that are missing are the program's to give. */
static char *move(void)
{
	char *wall = hugepin_malloc(MIB), *q;

	EXPECT_EQ(hugepin_protect_(buffer + FIRST - HP_CHUNK, HP_CHUNK, PROT_NONE), 0);
	EXPECT_EQ(hugepin_advise_(buffer + END, HP_CHUNK, MADV_DONTDUMP), 0);
	q = hugepin_realloc(buffer, 4 * SIZE);
	EXPECT(q && q != buffer);
	EXPECT(events > 0);
	EXPECT_EQ(locked, 0);
	EXPECT_EQ(hugepin_protect_(q, SIZE, PROT_READ | PROT_WRITE), 0);
	expect_contents(q);
	hugepin_free(wall);
	return q;
}

TEST_CASE(an_advised_buffer_moves_while_the_heap_can_be_used, with_missing(HP_PAGES_BASE, move))

LIVE_MAIN
