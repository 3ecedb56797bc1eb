/*
 * Mappings that are watched: which kinds of memory, as a whole or in parts, and which pages an event is about.
 */
#include <semaphore.h>

#include "alloc/hold.h"
#include "base/stats.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/hints.h"
#include "reg/mapped.h"
#include "tests/unit/uffd.h"

/* ------------------------------------------------------------------ private or not */

/* The kernel tells of one mapping, if it can; then all mappings are read. */
static void either_way(void (*body)(void))
{
	in_child(body);
	no_query = true;
	in_child(body);
	no_query = false;
}

TEST_BY(either_way, shared_memory_and_files_are_registered_for_each_pin)
{
	hugepin_domain *d = open_with(0);
	char *shared = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char *of_file, *p = map(MIB);
	int fd = memfd_create("file", MFD_CLOEXEC);

	EXPECT_EQ(ftruncate(fd, (off_t)MIB), 0);
	of_file = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	EXPECT_EQ(made(d, shared), 1);
	EXPECT_EQ(made(d, shared), 1);
	EXPECT_EQ(made(d, of_file), 1);
	EXPECT_EQ(made(d, of_file), 1);
	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(made(d, p), 0);
	EXPECT(hp_uffd_is_private((uintptr_t)p, (uintptr_t)p + MIB));
	EXPECT(!hp_uffd_is_private((uintptr_t)shared, (uintptr_t)shared + 1));
	EXPECT(!hp_uffd_is_private((uintptr_t)of_file, (uintptr_t)of_file + 1));
	EXPECT(!hp_uffd_is_private(4096, 8192));
	EXPECT(hp_uffd_is_private((uintptr_t)&fd, (uintptr_t)&fd + 1));
	munmap(p, MIB);
	EXPECT_EQ(stats_of(d).uncached, 4);
}

static void many_mappings(void)
{
	hugepin_domain *d = open_with(0);
	char *p = mmap(NULL, 4000 * 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (int i = 0; i < 4000; i++)
		EXPECT_EQ(mprotect(p + i * 8192, 4096, PROT_READ | PROT_WRITE), 0);
	for (int i = 0; i < 4000; i += 397) {
		EXPECT_EQ(made(d, p + i * 8192), 1);
		EXPECT_EQ(made(d, p + i * 8192), 0);
	}
	lists = 0;
	EXPECT(!hp_uffd_is_private(4096, 8192)); /* below the first: no more is read */
	EXPECT_EQ(lists, 1);
	lists = 0;
	EXPECT(!hp_uffd_is_private((uintptr_t)-8192, (uintptr_t)-4096)); /* above the last */
	EXPECT(lists > 50);
	lists = 0;
	EXPECT(hp_uffd_is_private((uintptr_t)p, (uintptr_t)p + 1));
	EXPECT(lists > 0);
}

TEST(one_of_many_mappings_is_found)
{
	no_query = true;
	in_child(many_mappings);
	no_query = false;
}

/* The name is longer than the buffer for it. */
TEST_BY(either_way, a_file_with_a_long_name_is_a_file)
{
	char name[240], *p = map(4096), *file;
	bool told;
	int fd;

	memset(name, 'n', sizeof name);
	name[sizeof name - 1] = '\0';
	fd = memfd_create(name, MFD_CLOEXEC);
	EXPECT_EQ(ftruncate(fd, 4096), 0);
	file = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	EXPECT(hp_uffd_is_private((uintptr_t)p, (uintptr_t)p + 1));
	told = !lists; /* of one mapping, by the kernel: then of this as well */
	EXPECT(!hp_uffd_is_private((uintptr_t)file, (uintptr_t)file + 1));
	EXPECT_EQ(lists > 0, !told);
	EXPECT(!told || !no_query);
}

TEST_BY(either_way, a_range_is_private_if_each_of_its_mappings_is)
{
	char *p = mmap(NULL, 12 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const uintptr_t at = (uintptr_t)p;

	munmap(p + 4096, 4096); /* a hole */
	EXPECT(mmap(p + 4 * 4096, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + 4 * 4096);
	/* a mapping of its own, private as those beside it */
	EXPECT_EQ(mprotect(p + 7 * 4096, 4096, PROT_READ | PROT_WRITE), 0);
	for (unsigned from = 0; from < 12; from++)
		for (unsigned to = from + 1; to <= 12; to++) {
			bool is = !(from <= 1 && to > 1) && !(from <= 4 && to > 4);

			EXPECT_EQ(hp_uffd_is_private(at + from * 4096, at + to * 4096), is);
			if (to - from > 1)
				EXPECT_EQ(hp_uffd_is_private(at + from * 4096 + 4095, at + to * 4096 - 4095), is);
		}
	EXPECT(hp_uffd_is_private(at + 4096, at + 4096)); /* nothing */
	errno = 77;
	EXPECT(!hp_uffd_is_private(at + 4096, at + 4097));
	EXPECT_EQ(errno, 77);
}

/* ------------------------------------------------------------------ as wholes or in parts */

static bool was_added(unsigned nth, const char *start, size_t pages)
{
	return EXPECT_EQ(added[nth].start, (uintptr_t)start) && EXPECT_EQ(added[nth].len, pages * 4096);
}

/* Three mappings of four pages each. No mapping lies beside them. */
static char *three(void)
{
	char *p = (char *)mmap(NULL, 14 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;

	EXPECT_EQ(mprotect(p, 4 * 4096, PROT_READ | PROT_WRITE), 0);
	EXPECT_EQ(mprotect(p + 4 * 4096, 4 * 4096, PROT_READ), 0);
	EXPECT_EQ(mprotect(p + 8 * 4096, 4 * 4096, PROT_READ | PROT_WRITE), 0);
	adds = 0;
	return p;
}

TEST_BY(either_way, mappings_are_watched_as_wholes_and_a_part_where_more_cannot_be)
{
	char *p;
	bool tells;

	hp_uffd_open(hp_gone_tell_all);
	EXPECT(hp_uffd_works());
	p = three();
	EXPECT_EQ(hp_uffd_watch((uintptr_t)p, (uintptr_t)p + 4096), 0); /* counts mappings */
	p = three();
	errno = 77;
	lists = 0;
	EXPECT_EQ(hp_uffd_watch((uintptr_t)p + 2 * 4096, (uintptr_t)p + 9 * 4096), 0);
	tells = !lists; /* the kernel, of one mapping */
	EXPECT_EQ(adds, 3); /* as wholes */
	EXPECT(was_added(0, p, 4) && was_added(1, p + 4 * 4096, 4) && was_added(2, p + 8 * 4096, 4));
	p = three();
	add_max = 3 * 4096; /* what is more is in part another's: the parts */
	EXPECT_EQ(hp_uffd_watch((uintptr_t)p + 2 * 4096, (uintptr_t)p + 3 * 4096), 0);
	EXPECT_EQ(adds, 1);
	was_added(0, p + 2 * 4096, 1);
	p = three();
	EXPECT_EQ(hp_uffd_watch((uintptr_t)p + 2 * 4096, (uintptr_t)p + 10 * 4096), -EADDRINUSE); /* not all of it */
	EXPECT_EQ(adds, 1);
	was_added(0, p + 2 * 4096, 2);
	add_max = UINT64_MAX;
	p = three();
	munmap(p + 5 * 4096, 4096);
	EXPECT_EQ(hp_uffd_watch((uintptr_t)p + 4 * 4096, (uintptr_t)p + 10 * 4096), -EXDEV); /* a hole */
	EXPECT_EQ(adds, 1);

	p = three();
	hp_uffd_watch_heap((uintptr_t)p, (uintptr_t)p + 12 * 4096);
	EXPECT_EQ(adds, tells ? 3 : 1);
	was_added(0, p, tells ? 4 : 12);
	p = three();
	munmap(p + 4 * 4096, 4096);
	/* as far as there is any; all of it where nobody tells */
	hp_uffd_watch_heap((uintptr_t)p, (uintptr_t)p + 12 * 4096);
	EXPECT_EQ(adds, 1);
	was_added(0, p, tells ? 4 : 12);
	p = three();
	add_max = 4096;
	hp_uffd_watch_heap((uintptr_t)p, (uintptr_t)p + 12 * 4096);
	EXPECT_EQ(adds, 0);
	add_max = UINT64_MAX;
	EXPECT_EQ(errno, 77);
}

TEST_BY(in_child, of_the_heap_all_of_the_extent_is_watched)
{
	hugepin_domain *d = open_with(0);
	char *p = hugepin_malloc(MIB);
	struct hugepin_extent x;
	uint64_t end;

	EXPECT(hp_heap_extent(p, &x));
	adds = 0;
	EXPECT_EQ(made(d, p), 1);
	EXPECT(adds >= 1 && adds < 64);
	EXPECT(added[0].start <= (uintptr_t)x.addr);
	end = added[0].start;
	for (unsigned i = 0; i < adds; end = added[i].start + added[i].len, i++)
		EXPECT_EQ(added[i].start, end);
	EXPECT(end >= (uintptr_t)x.addr + x.len);
	close_empty(&device, d);
	hugepin_free(p);
}

/* ------------------------------------------------------------------ for how long */

/* The kernel's flags of the mapping at p: "uw" means that it is watched. */
static bool is_watched(const char *p)
{
	char line[512];
	bool inside = false, is = false;
	unsigned long start, end;
	FILE *f = fopen("/proc/self/smaps", "r");

	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = (uintptr_t)p >= start && (uintptr_t)p < end;
		else if (inside && strncmp(line, "VmFlags:", 8) == 0)
			is = strstr(line, " uw") != NULL;
	}
	if (f)
		fclose(f);
	return is;
}

static size_t mappings_now(void)
{
	size_t n = 0;
	int c;
	FILE *f = fopen("/proc/self/maps", "r");

	while (f && (c = getc(f)) != EOF)
		n += c == '\n';
	if (f)
		fclose(f);
	return n;
}

/* So many buffers of a page, each a mapping of its own only if it is watched. */
static char *neighbours(size_t n)
{
	return mmap(NULL, n * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void remap(char *p)
{
	munmap(p, 4096);
	EXPECT(mmap(p, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
}

TEST_BY(in_child, memory_is_watched_until_its_last_registration_ends)
{
	static struct device other;
	hugepin_domain *d = open_with(0), *e = device_open(&other, (struct hugepin_limits){ 0 },
							   (struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU });
	char *p = map(MIB);
	struct hugepin_pin of_d, of_e, inside;

	EXPECT(!is_watched(p));
	EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &of_d), 0);
	EXPECT_EQ(hugepin_pin(e, p + 4096, 4096, 0, &inside), 0);
	EXPECT_EQ(hugepin_pin(e, p + 8192, 8192, 0, &of_e), 0);
	EXPECT(is_watched(p));
	EXPECT_EQ(HP_STAT_GET(watched_ranges), 1);
	EXPECT_EQ(hugepin_deregister(d, &of_d, 1), 0);
	EXPECT(is_watched(p));
	EXPECT_EQ(hugepin_deregister(e, &inside, 1), 0);
	EXPECT(is_watched(p));
	EXPECT_EQ(hugepin_unpin(e, &of_e), 0);
	EXPECT(is_watched(p));
	close_empty(&other, e);
	EXPECT(!is_watched(p));
	EXPECT_EQ(made(d, p), 1);
	EXPECT(is_watched(p));
	close_empty(&device, d);
	EXPECT(!is_watched(p));
	EXPECT_EQ(HP_STAT_GET(watched_ranges), 0);
}

/* The kernel would walk all of its pages each time. */
TEST_BY(in_child, a_long_mapping_is_watched_until_the_last_domain_closes)
{
	hugepin_domain *d = open_with(0);
	char *p = map(32 * MIB);
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	EXPECT_EQ(hugepin_deregister(d, &pin, 1), 0);
	EXPECT(is_watched(p));
	close_empty(&device, d);
	EXPECT(!is_watched(p));
}

TEST_BY(in_child, memory_that_was_discarded_is_watched_until_it_is_unmapped_and_keeps_nothing)
{
	hugepin_domain *d = open_with(0);
	char *p = map(MIB), *shared = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(madvise(p, 4096, MADV_DONTNEED), 0);
	for (int i = 0; i < 100; i++)
		EXPECT_EQ(made(d, p), 1);
	EXPECT(is_watched(p));
	munmap(p, MIB);
	EXPECT_EQ(made(d, shared), 1); /* hears of it */
	EXPECT_EQ(HP_STAT_GET(watched_ranges), 0);
	close_empty(&device, d);
}

/* Register with a userfaultfd of the program's own. 0 or errno. */
static int register_own(int fd, char *p, size_t len)
{
	struct uffdio_register r = { .range = { (uintptr_t)p, len }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	return ioctl(fd, UFFDIO_REGISTER, &r) ? errno : 0;
}

static int open_own(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	EXPECT(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0);
	return fd;
}

TEST_BY(in_child, what_is_forgotten_is_watched_no_more_and_may_be_anothers)
{
	hugepin_domain *d = open_with(0);
	char *p = map(32 * MIB);
	struct hugepin_pin pin, high;
	int own = open_own();
	struct uffdio_range all = { (uintptr_t)p, 32 * MIB };

	EXPECT_EQ(hugepin_pin(d, p, 8192, 0, &pin), 0);
	EXPECT_EQ(hugepin_pin(d, p + 16 * MIB, 4096, 0, &high), 0);
	EXPECT_EQ(register_own(own, p, 32 * MIB), EBUSY);
	/* A part, which may be pinned: the rest is registered, and stays watched. */
	EXPECT_EQ(hugepin_forget(p + 4096, MIB), -EBUSY);
	EXPECT(is_watched(p) && !is_watched(p + 4096));
	EXPECT(!is_watched(p + MIB) && is_watched(p + MIB + 4096));
	EXPECT_EQ(register_own(own, p + 4096, MIB), 0);
	EXPECT_EQ(register_own(own, p, 32 * MIB), EBUSY);
	EXPECT_EQ(made(d, p + 4096), 1); /* not cached */
	EXPECT_EQ(made(d, p + 4096), 1);
	EXPECT_EQ(made(d, p + 16 * MIB), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin) || hugepin_unpin(d, &high), 0);
	/* All of it. */
	EXPECT_EQ(hugepin_forget(p, 32 * MIB), 0);
	EXPECT_EQ(HP_STAT_GET(watched_ranges), 0);
	EXPECT_EQ(register_own(own, p, 32 * MIB), 0);
	EXPECT_EQ(ioctl(own, UFFDIO_UNREGISTER, &all), 0);
	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(made(d, p), 0);
	EXPECT(is_watched(p));
	close(own);
	close_empty(&device, d);
}

TEST_BY(in_child, what_is_forgotten_before_it_is_discarded_is_cached_again)
{
	hugepin_domain *d = open_with(0);
	char *p = map(32 * MIB);

	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(made(d, p), 1);
		EXPECT_EQ(made(d, p), 0);
		EXPECT_EQ(hugepin_forget(p, MIB), 0);
		EXPECT_EQ(madvise(p, MIB, i ? MADV_FREE : MADV_DONTNEED), 0);
	}
	EXPECT_EQ(hugepin_forget(p, MIB), 0);
	EXPECT_EQ(made(d, p), 1); /* between the two: the kernel tells of the discard */
	EXPECT_EQ(madvise(p, MIB, MADV_DONTNEED), 0);
	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(made(d, p), 1);
	close_empty(&device, d);
}

TEST_BY(in_child, what_was_discarded_is_cached_again_once_it_is_forgotten_and_mapped_anew)
{
	hugepin_domain *d = open_with(0);
	char *p = map(MIB);

	for (int pinned = 0; pinned < 2; pinned++) {
		EXPECT_EQ(made(d, p), 1);
		EXPECT_EQ(made(d, p), 0);
		EXPECT_EQ(madvise(p, 4096, MADV_DONTNEED), 0);
		for (int i = 0; i < 2 * pinned; i++)
			EXPECT_EQ(made(d, p), 1);
		EXPECT_EQ(hugepin_forget(p, MIB), 0);
		EXPECT(!is_watched(p + 4096));
		EXPECT_EQ(munmap(p, MIB), 0);
		EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	}
	close_empty(&device, d);
}

static char *neighbour;

static void map_neighbour(void)
{
	EXPECT(mmap(neighbour, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
	       neighbour);
}

static void unmap_neighbour(void)
{
	EXPECT_EQ(munmap(neighbour, 4096), 0);
}

static void map_file_there(void)
{
	const int fd = memfd_create("file", MFD_CLOEXEC);

	EXPECT_EQ(ftruncate(fd, 4096), 0);
	EXPECT(mmap(neighbour, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == neighbour);
	close(fd);
}

static hugepin_domain *open_blocks(void)
{
	return device_open(&device, (struct hugepin_limits){ 0 },
			   (struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU, .round_max = MIB });
}

/* The kernel watches it all the same, if it can, and never tells that another process has truncated the file. */
TEST_BY(either_way, what_another_thread_replaces_by_a_file_before_it_is_watched_is_not_kept_in_a_block)
{
	hugepin_domain *d = open_blocks();
	char *p = map(MIB);

	neighbour = p + 8 * 4096;
	before_adding = map_file_there;
	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(made(d, p), 0);
	EXPECT_EQ(made(d, neighbour), 1);
	EXPECT_EQ(made(d, neighbour), 1);
	munmap(p, MIB);
	close_empty(&device, d);
}

/* The kernel watches what it finds, and so never tells of what comes into a hole. */
TEST_BY(either_way, what_another_thread_maps_anew_while_it_is_being_watched_is_not_kept_in_a_block)
{
	hugepin_domain *d = open_blocks();
	char *p = map(MIB);

	for (int round = 0; round < 2; round++) {
		neighbour = p + 8 * 4096;
		before_adding = unmap_neighbour;
		after_adding = map_neighbour;
		EXPECT_EQ(made(d, p), 1);
		EXPECT_EQ(made(d, p), 0);
		unmap_neighbour();
		map_neighbour();
		EXPECT_EQ(made(d, neighbour), 1);
		EXPECT_EQ(made(d, neighbour), 0);
		EXPECT_EQ(hugepin_forget(p, MIB), 0);
	}
	munmap(p, MIB);
	close_empty(&device, d);
}

/* The service thread carries hints out while the owner may do anything with his memory, of which the mapping has more. */
static void carry_out_a_hint(size_t hinted)
{
	hugepin_domain *d = open_with(0);
	char *p = map(MIB);
	const struct hp_prefetch hint = { .addr = p + 8 * 4096, .len = hinted, .access = HUGEPIN_READ | HUGEPIN_WRITE };

	neighbour = p + 8 * 4096;
	before_adding = unmap_neighbour;
	after_adding = map_neighbour;
	EXPECT_EQ(hp_hints_push(d, hint), 0);
	hp_domains_job.run();
	unmap_neighbour();
	map_neighbour();
	EXPECT_EQ(made(d, neighbour), 1);
	EXPECT_EQ(made(d, neighbour), 0);
	EXPECT_EQ(hp_hints_push(d, hint), 0);
	hp_domains_job.run();
	EXPECT_EQ(made(d, p + 8 * 4096 + hinted - 4096), 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST_BY(either_way, what_its_owner_maps_anew_while_a_hint_is_carried_out_is_not_kept)
{
	carry_out_a_hint(4096);
	carry_out_a_hint(MIB / 2);
}

/* An unmapping that another thread has announced goes on after the block was registered, and what then comes there need
 * not be announced. */
TEST_BY(in_child, memory_whose_end_is_only_announced_is_not_registered_by_blocks)
{
	hugepin_domain *d;
	char *p = map(MIB);

	no_userfaultfd = hp_sees_unmaps = true;
	d = open_blocks();
	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(made(d, p), 0);
	EXPECT_EQ(made(d, p + 4096), 1);
	close_empty(&device, d);
}

static int forget_it(void *addr, size_t len)
{
	device.refuse = NULL;
	EXPECT_EQ(hugepin_forget(addr, len), 0);
	EXPECT(!is_watched(addr));
	return 0;
}

TEST_BY(in_child, what_is_forgotten_while_it_is_registered_is_registered_anew)
{
	hugepin_domain *d = open_with(0);
	char *p = map(32 * MIB);

	device.refuse = forget_it;
	EXPECT_EQ(made(d, p), 1);
	EXPECT_EQ(made(d, p), 1);
	EXPECT(is_watched(p));
	EXPECT_EQ(made(d, p), 0);
	close_empty(&device, d);
}

static size_t going_len;
static sem_t announced, may_go;

static void *forget_and_discard(void *p)
{
	EXPECT_EQ(hugepin_forget(p, going_len), 0);
	sem_post(&announced);
	sem_wait(&may_go);
	EXPECT_EQ(madvise(p, going_len, MADV_DONTNEED), 0);
	return NULL;
}

/* Pin the pages below and above [going, going + len) between the two calls by which another thread discards it. */
static void pin_beside(hugepin_domain *d, char *going, size_t len)
{
	pthread_t other;

	going_len = len;
	sem_init(&announced, 0, 0);
	sem_init(&may_go, 0, 0);
	EXPECT_EQ(pthread_create(&other, NULL, forget_and_discard, going), 0);
	sem_wait(&announced);
	EXPECT_EQ(made(d, going - 4096), 1);
	EXPECT_EQ(made(d, going + len), 1);
	EXPECT(is_watched(going - 4096) && is_watched(going + len));
	EXPECT(!is_watched(going) && !is_watched(going + len - 4096));
	sem_post(&may_go);
	pthread_join(other, NULL);
	EXPECT_EQ(made(d, going - 4096) + made(d, going + len), 0);
}

TEST_BY(in_child, a_pin_beside_memory_that_is_forgotten_and_not_yet_discarded_leaves_it_unwatched)
{
	for (int i = 0; i < 4; i++) {
		hugepin_domain *d = i & 1 ? open_blocks() : open_with(0);
		char *p = map(MIB), *going = p + MIB / 2;

		if (i & 2)
			EXPECT_EQ(made(d, going), 1);
		pin_beside(d, going, 4096);
		EXPECT_EQ(made(d, going), 1);
		EXPECT_EQ(made(d, going), 0);
		EXPECT(is_watched(going));
		munmap(p, MIB);
		close_empty(&device, d);
	}
}

TEST_BY(in_child, so_it_leaves_both_sides_of_what_was_discarded_unannounced)
{
	hugepin_domain *d = open_with(0);
	char *going = map(MIB) + MIB / 2;

	add_max = 4096; /* of the mapping only this page is watched */
	EXPECT_EQ(made(d, going + 4096), 1);
	add_max = UINT64_MAX;
	EXPECT_EQ(madvise(going + 4096, 4096, MADV_DONTNEED), 0);
	pin_beside(d, going, 3 * 4096);
	for (int round = 1; round >= 0; round--)
		EXPECT(made(d, going) == round && made(d, going + 4096) == 1 && made(d, going + 8192) == round);
	close_empty(&device, d);
}

/* Each is a hole in one mapping that is registered. */
TEST_BY(in_child, many_forgotten_ranges_take_no_more_mappings_than_there_may_be)
{
	enum { N = 1000 };
	hugepin_domain *d;
	char *p = map(2 * N * 4096);
	struct hugepin_pin pin;

	mappings_max = "700";
	d = open_with(0);
	EXPECT_EQ(hugepin_pin(d, p, 2 * N * 4096, 0, &pin), 0);
	for (size_t i = 0; i < N; i++)
		EXPECT_EQ(hugepin_forget(p + (2 * i + 1) * 4096, 4096), -EBUSY);
	EXPECT(HP_STAT_GET(watched_ranges) > 10 && HP_STAT_GET(watched_ranges) <= 700 / 4 / 2 + 1);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	close_empty(&device, d);
	EXPECT(!is_watched(p));
}

TEST_BY(in_child, what_a_program_of_one_thread_has_unmapped_stays_registered_until_it_pins_or_trims)
{
	hugepin_domain *d = open_with(0);
	char *p = map(MIB), *other = map(MIB);

	hp_service_end(); /* it would do the work */
	for (int trims = 0; trims < 2; trims++) {
		EXPECT_EQ(made(d, p), 1);
		EXPECT_EQ(made(d, other), !trims);
		munmap(p, MIB);
		EXPECT_EQ(device.regs, 2);
		EXPECT_EQ(trims ? hugepin_domain_trim(d, UINT64_MAX) : made(d, other), 0);
		EXPECT_EQ(device.regs, 1);
		EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	}
	hp_service_allow();
	close_empty(&device, d);
}

TEST_BY(in_child, what_cannot_be_registered_is_not_watched)
{
	hugepin_domain *d = open_with(0);
	char *p = map(MIB);
	struct hugepin_pin pin;

	device.nth = 1;
	device.with = -EFAULT;
	device.for_good = true;
	EXPECT(hugepin_pin(d, p, MIB, 0, &pin) != 0);
	EXPECT(!is_watched(p));
	close_empty(&device, d);
}

TEST_BY(in_child, of_a_mapping_with_holes_the_parts_that_are_registered_stay_watched)
{
	hugepin_domain *d = open_with(0);
	char *p = map(12 * 4096);
	struct hugepin_pin low, high;

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &low), 0);
	EXPECT_EQ(hugepin_pin(d, p + 8 * 4096, 4096, 0, &high), 0);
	remap(p + 4 * 4096);
	EXPECT_EQ(made(d, p), 0); /* hears of it */
	EXPECT(is_watched(p + 3 * 4096) && !is_watched(p + 4 * 4096) && is_watched(p + 5 * 4096));
	EXPECT_EQ(hugepin_deregister(d, &high, 1), 0);
	EXPECT(is_watched(p + 3 * 4096) && !is_watched(p + 5 * 4096));
	remap(p + 2 * 4096);
	EXPECT_EQ(hugepin_domain_trim(d, UINT64_MAX), 0); /* hears of it, where the domain has nothing */
	EXPECT(is_watched(p + 4096) && !is_watched(p + 3 * 4096)); /* no registration is behind the hole */
	EXPECT_EQ(hugepin_deregister(d, &low, 1), 0);
	EXPECT(!is_watched(p));
	close_empty(&device, d);
}

/* The budget keeps 16 of them registered. */
TEST_BY(in_child, buffers_that_are_registered_no_more_cost_no_mappings)
{
	enum { N = 3000, KEPT = 16 };
	hugepin_domain *d = device_open(&device, (struct hugepin_limits){ .bytes_max = KEPT * 4096 },
					(struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU });
	const size_t before = mappings_now();
	char *p = neighbours(N);

	for (int i = 0; i < N; i++)
		remap(p + i * 4096);
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < N; i += 3) {
			EXPECT_EQ(made(d, p + i * 4096), 1);
			remap(p + i * 4096);
			EXPECT_EQ(made(d, p + i * 4096), 1);
		}
	EXPECT(mappings_now() <= before + 2 * KEPT + 8);
	close_empty(&device, d);
	EXPECT(mappings_now() <= before + 8);
}

/* Make every second page of p a mapping of its own, by other rights for the pages between, or one with its neighbours. */
static void set_apart(char *p, int n, bool apart)
{
	for (int i = 0; i < n; i++)
		EXPECT_EQ(mprotect(p + (2 * i + 1) * 4096, 4096, apart ? PROT_READ : PROT_READ | PROT_WRITE), 0);
}

TEST_BY(in_child, watching_takes_a_quarter_of_the_mappings_that_are_left)
{
	enum { N = 3000 };
	hugepin_domain *d = open_with(0);
	char *p = neighbours(2 * N), max[32];
	const size_t before = mappings_now();

	set_apart(p, N, true);
	snprintf(max, sizeof max, "%zu\n", mappings_now() + 4000);
	mappings_max = max;
	hp_mapped_open(); /* looks at it */
	for (int i = 0; i < N; i++)
		EXPECT_EQ(made(d, p + 2 * i * 4096), 1);
	set_apart(p, N, false);
	EXPECT(mappings_now() <= before + 1000 + 8);
	EXPECT(mappings_now() >= before + 800);
	EXPECT_EQ(stats_of(d).uncached + stats_of(d).regions, N);
	close_empty(&device, d);
	EXPECT(mappings_now() <= before + 8);
}

static sem_t answered;

static void take_answer(void *d, int err, const struct hugepin_pin *pin)
{
	struct hugepin_pin copy = pin ? *pin : (struct hugepin_pin){ 0 };

	EXPECT(!err && hugepin_unpin(d, &copy) == 0);
	sem_post(&answered);
}

/* That thread may open no file. */
TEST_BY(either_way, the_service_thread_leaves_the_program_its_mappings_too)
{
	enum { N = 200, LEFT = 160 };
	char *p = neighbours(2 * N), max[32];
	hugepin_domain *d;

	set_apart(p, N, true);
	snprintf(max, sizeof max, "%zu\n", mappings_now() + LEFT);
	mappings_max = max;
	d = open_with(0);
	mappings_max = NULL;
	sem_init(&answered, 0, 0);
	for (int i = 0; i < N; i++) {
		EXPECT_EQ(hugepin_pin_try(d, p + 2 * i * 4096, 4096, 0, take_answer, d, NULL), -EAGAIN);
		sem_wait(&answered);
	}
	EXPECT(HP_STAT_GET(watched_ranges) > 0 && HP_STAT_GET(watched_ranges) <= LEFT / 4 / 2);
	EXPECT_EQ(stats_of(d).uncached + stats_of(d).regions, N);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ events */

/* A bit for each page of p that a pin finds registered no more. Every second page is looked at. */
static uint64_t missed(hugepin_domain *d, char *p, unsigned pages)
{
	uint64_t which_ = 0;

	for (unsigned i = 0; i < pages; i += 2)
		which_ |= (uint64_t)(made(d, p + (size_t)i * 4096) != 0) << i;
	return which_;
}

TEST_BY(in_child, an_event_is_about_the_pages_that_move_go_or_are_discarded)
{
	enum { PAGES = 40 };
	hugepin_domain *d = open_with(0);
	char *p = map(PAGES * 4096);
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	const uint64_t one = 1;

	EXPECT_EQ(missed(d, p, PAGES), UINT64_C(0x5555555555));
	EXPECT_EQ(missed(d, p, PAGES), 0);
	EXPECT(mremap(p + 3 * 4096, 3 * 4096, 3 * 4096, MREMAP_MAYMOVE | MREMAP_FIXED, p + 19 * 4096) == p + 19 * 4096);
	EXPECT(mmap(p + 3 * 4096, 3 * 4096, PROT_READ | PROT_WRITE, flags, -1, 0) == p + 3 * 4096);
	EXPECT_EQ(missed(d, p, PAGES), one << 4 | one << 20);
	EXPECT_EQ(missed(d, p, PAGES), 0);
	munmap(p + 9 * 4096, 2 * 4096);
	EXPECT(mmap(p + 9 * 4096, 2 * 4096, PROT_READ | PROT_WRITE, flags, -1, 0) == p + 9 * 4096);
	EXPECT_EQ(missed(d, p, PAGES), one << 10);
	EXPECT_EQ(missed(d, p, PAGES), 0);
	EXPECT_EQ(madvise(p + 29 * 4096, 4 * 4096, MADV_DONTNEED), 0);
	EXPECT_EQ(missed(d, p, PAGES), one << 30 | one << 32);
	EXPECT_EQ(missed(d, p, PAGES), one << 30 | one << 32); /* the event came before the pages went */
	munmap(p, PAGES * 4096);
	close_empty(&device, d);
}

T_MAIN
