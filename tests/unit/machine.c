/*
 * What the machine says of itself, fed to who reads it: its memory, what limits the process, room in its memory cgroups, the
 * pool, THP, nodes. Files are those of a directory of the test's, system calls those of a kernel of its own (kernel.h).
 */
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include "alloc/copy.h"
#include "alloc/heap.h"
#include "alloc/map.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "base/proc.h"
#include "base/stats.h"
#include "tests/live/live.h"
#include "tests/unit/kernel.h"

/* ------------------------------------------------------------------ the machine */

static char root[] = "/tmp/hugepin-machine-XXXXXX"; /* what is below it is the machine's /proc and /sys */
static bool fed; /* files are looked for there */
static int with_hugepage; /* what madvise(MADV_HUGEPAGE) returns: 0 or -errno */
static uint64_t bound; /* nodes that mbind was given */
static int bind_error;
static size_t reserve_max; /* so much may be reserved at once; 0: all */
static uint64_t ram;
static int sysinfo_error;

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	char path[200];
	long r;

	if (nr == SYS_openat && fed && (!strncmp((char *)b, "/proc/", 6) || !strncmp((char *)b, "/sys/", 5))) {
		snprintf(path, sizeof path, "%s%s", root, (char *)b);
		r = raw(nr, a, (long)path, c, d, e, f);
	} else if (nr == SYS_madvise && c == MADV_HUGEPAGE && with_hugepage) {
		r = with_hugepage;
	} else if (nr == SYS_mbind) {
		bound = *(uint64_t *)d;
		r = -bind_error;
	} else if (nr == SYS_sysinfo) {
		*(struct sysinfo *)a = (struct sysinfo){ .totalram = ram / 4096, .mem_unit = 4096 };
		r = -sysinfo_error;
	} else if (nr == SYS_mmap && reserve_max && (size_t)b > reserve_max && c == PROT_NONE) {
		r = -ENOMEM;
	} else {
		r = raw(nr, a, b, c, d, e, f);
	}
	return result_of(r);
}

/* Have a file below root; text NULL: none. */
static void feed(const char *file, const char *text)
{
	char path[200];
	int fd;

	fed = true;
	snprintf(path, sizeof path, "%s%s", root, file);
	if (!text) {
		unlink(path);
		return;
	}
	for (char *s = path + strlen(root) + 1; (s = strchr(s, '/')); s++) {
		*s = '\0';
		mkdir(path, 0700);
		*s = '/';
	}
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	EXPECT(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

static pid_t owner;

static void __attribute__((destructor)) remove_root(void)
{
	char command[60];

	snprintf(command, sizeof command, "rm -rf %s", root);
	if (getpid() == owner && system(command) != 0)
		t_print("# %s is left\n", root);
}

__attribute__((constructor)) static void configure(void)
{
	owner = getpid();
	EXPECT(mkdtemp(root) != NULL);
	hp_config.decay_ms = 0;
}

/* ------------------------------------------------------------------ memory, and limits */

/* Pages of the span of a process on a machine with so much memory, that begins there with these limits; 0: none. */
static size_t span_pages(uint64_t bytes, rlim_t address_space, rlim_t data)
{
	int result[2];
	size_t pages = 0;
	pid_t pid;

	if (!EXPECT(!pipe2(result, O_CLOEXEC)))
		return 0;
	pid = fork();
	if (pid == 0) {
		struct rlimit r = { address_space, address_space };

		ram = bytes;
		if (address_space)
			setrlimit(RLIMIT_AS, &r);
		r.rlim_cur = r.rlim_max = data;
		if (data)
			setrlimit(RLIMIT_DATA, &r);
		hugepin_free(hugepin_malloc(MIB));
		pages = hp_span.pages;
		EXPECT_EQ(hp_span.ram, sysinfo_error ? 16 * GIB : bytes);
		_exit(write(result[1], &pages, sizeof pages) != sizeof pages || t_failures);
	}
	close(result[1]);
	EXPECT_EQ(child_wait(pid), 0);
	EXPECT(read(result[0], &pages, sizeof pages) == sizeof pages);
	close(result[0]);
	return pages;
}

TEST(the_span_is_four_times_the_memory_and_64_gib_to_4_tib)
{
	hp_config.span = 0;
	EXPECT_EQ(span_pages(8 * GIB, 0, 0), 64 * GIB / HP_PAGE);
	EXPECT_EQ(span_pages(16 * GIB, 0, 0), 64 * GIB / HP_PAGE);
	EXPECT_EQ(span_pages(24 * GIB, 0, 0), 128 * GIB / HP_PAGE);
	EXPECT_EQ(span_pages(300 * GIB, 0, 0), 2048 * GIB / HP_PAGE);
	EXPECT_EQ(span_pages(2048 * GIB, 0, 0), 4096 * GIB / HP_PAGE);
}

TEST(of_a_machine_that_does_not_say_16_gib_are_taken)
{
	hp_config.span = 0;
	sysinfo_error = ENOSYS;
	EXPECT_EQ(span_pages(300 * GIB, 0, 0), 64 * GIB / HP_PAGE);
	sysinfo_error = 0;
}

TEST(the_span_is_a_quarter_of_the_addresses_and_four_times_the_data_that_there_may_be)
{
	hp_config.span = 0;
#ifdef __SANITIZE_ADDRESS__
	SKIP("the sanitizer needs more addresses than the limit leaves");
#endif
	EXPECT_EQ(span_pages(8 * GIB, 8 * GIB, 0), 2 * GIB / HP_PAGE);
	EXPECT_EQ(span_pages(8 * GIB, 0, GIB), 4 * GIB / HP_PAGE);
	EXPECT_EQ(span_pages(8 * GIB, 8 * GIB, 128 * MIB), 512 * MIB / HP_PAGE);
}

/* ------------------------------------------------------------------ room for a fork's copy */

#define GROUP "/sys/fs/cgroup"

static void no_groups(void)
{
	feed("/proc/meminfo", "MemTotal:  16777216 kB\nMemFree:  1048576 kB\nMemAvailable:   8388608 kB\n");
	feed("/proc/self/cgroup", "0::/a/b\n");
	for (int i = 0; i < 3; i++) {
		static const char *const groups[] = { GROUP, GROUP "/a", GROUP "/a/b" };
		char path[100];

		snprintf(path, sizeof path, "%s/memory.max", groups[i]);
		feed(path, NULL);
		snprintf(path, sizeof path, "%s/memory.current", groups[i]);
		feed(path, NULL);
		snprintf(path, sizeof path, "%s/memory.stat", groups[i]);
		feed(path, NULL);
	}
}

TEST(without_a_limit_there_is_room_for_what_is_available)
{
	no_groups();
	EXPECT_EQ(hp_copy_room(0), 8 * GIB);
	feed(GROUP "/a/b/memory.max", "max\n");
	feed(GROUP "/a/b/memory.current", "1073741824\n");
	EXPECT_EQ(hp_copy_room(0), 8 * GIB);
	feed("/proc/self/cgroup", NULL);
	EXPECT_EQ(hp_copy_room(0), 8 * GIB);
	feed("/proc/meminfo", NULL);
	EXPECT_EQ(hp_copy_room(0), UINT64_MAX);
}

TEST(a_group_has_room_for_its_limit_less_what_it_uses_and_cannot_drop)
{
	no_groups();
	feed(GROUP "/a/b/memory.max", "4294967296\n");
	feed(GROUP "/a/b/memory.current", "1073741824\n");
	EXPECT_EQ(hp_copy_room(0), 3 * GIB);
	feed(GROUP "/a/b/memory.stat", "anon 1\nfile 2\ninactive_file 268435456\nactive_file 134217728\nunevictable 7\n");
	EXPECT_EQ(hp_copy_room(0), 3 * GIB + 384 * MIB);
	/* More than there is: it was read later. */
	feed(GROUP "/a/b/memory.stat", "inactive_file 1073741824\nactive_file 1\n");
	EXPECT_EQ(hp_copy_room(0), 3 * GIB);
	feed(GROUP "/a/b/memory.current", "4294967296\n");
	feed(GROUP "/a/b/memory.stat", "inactive_file 4096\nactive_file 0\n");
	EXPECT_EQ(hp_copy_room(0), 4096);
	feed(GROUP "/a/b/memory.stat", "inactive_file 0\nactive_file 0\n");
	EXPECT_EQ(hp_copy_room(0), 0);
	feed(GROUP "/a/b/memory.current", "5294967296\n");
	EXPECT_EQ(hp_copy_room(0), 0);
}

TEST(the_least_room_of_all_groups_above_counts)
{
	no_groups();
	feed(GROUP "/a/b/memory.max", "4294967296\n");
	feed(GROUP "/a/b/memory.current", "1073741824\n");
	feed(GROUP "/a/memory.max", "2147483648\n");
	feed(GROUP "/a/memory.current", "1073741824\n");
	EXPECT_EQ(hp_copy_room(0), GIB);
	feed(GROUP "/memory.max", "2147483648\n");
	feed(GROUP "/memory.current", "2147479552\n");
	EXPECT_EQ(hp_copy_room(0), 4096);
	feed("/proc/self/cgroup", "0::/\n");
	EXPECT_EQ(hp_copy_room(0), 4096);
	feed("/proc/meminfo", "MemAvailable: 3 kB\n");
	EXPECT_EQ(hp_copy_room(0), 3072);
}

TEST(groups_of_version_1_are_found_by_their_controller)
{
	no_groups();
	feed(GROUP "/memory/x/memory.limit_in_bytes", "3221225472\n");
	feed(GROUP "/memory/x/memory.usage_in_bytes", "1073741824\n");
	feed(GROUP "/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
	feed(GROUP "/memory/memory.usage_in_bytes", "1073741824\n");
	feed("/proc/self/cgroup", "9:pids:/y\n4:cpu,memory:/x\n1:name=systemd:/z\n0::/nothing\n");
	EXPECT_EQ(hp_copy_room(0), 2 * GIB);
	feed("/proc/self/cgroup", "9:pids:/x\n");
	EXPECT_EQ(hp_copy_room(0), 8 * GIB);
}

/* ------------------------------------------------------------------ pages */

TEST(what_is_free_in_the_pool_is_what_nobody_reserved_on_the_node)
{
	feed("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "10\n");
	feed("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "3\n");
	feed("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "5\n");
	EXPECT_EQ(hp_map_pool_free(HP_PAGE_SHIFT, -1), 7);
	EXPECT_EQ(hp_map_pool_free(HP_PAGE_SHIFT, 1), 5);
	EXPECT_EQ(hp_map_pool_free(HP_PAGE_SHIFT, 2), 0);
	EXPECT_EQ(hp_map_pool_free(HP_GIANT_SHIFT, -1), 0);
	feed("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "8\n");
	EXPECT_EQ(hp_map_pool_free(HP_PAGE_SHIFT, 1), 2);
	feed("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "11\n");
	EXPECT_EQ(hp_map_pool_free(HP_PAGE_SHIFT, -1), 0);
}

TEST(thp_is_what_the_kernel_gives_and_takes_advice_for)
{
	char *p = mmap(NULL, 4 * HP_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uintptr_t at = hp_round_up((uintptr_t)p, HP_PAGE);

	feed("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
	EXPECT(hp_map_thp_enabled());
	feed("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
	EXPECT(hp_map_thp_enabled());
	feed("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
	EXPECT(!hp_map_thp_enabled());
	feed("/sys/kernel/mm/transparent_hugepage/enabled", NULL);
	EXPECT(!hp_map_thp_enabled());
	with_hugepage = -EINVAL;
	EXPECT_EQ(hp_map_normal(at, HP_PAGE, true), HUGEPIN_KIND_BASE);
	with_hugepage = 0;
	if (raw(SYS_madvise, (long)at, HP_PAGE, MADV_HUGEPAGE, 0, 0, 0) == 0) /* a kernel that has it */
		EXPECT_EQ(hp_map_normal(at, HP_PAGE, true), HUGEPIN_KIND_THP);
	EXPECT_EQ(hp_map_normal(at, HP_PAGE, false), HUGEPIN_KIND_BASE);
	munmap(p, 4 * HP_PAGE);
}

TEST(nodes_are_those_that_have_memory)
{
	struct hp_nodes n;

	feed("/sys/devices/system/node/has_memory", "0-1,4,6-7\n");
	EXPECT_EQ(hp_map_choose_nodes(HP_NUMA_INTERLEAVE, 0, &n), 0);
	EXPECT_EQ(n.policy, HP_NODES_INTERLEAVE);
	EXPECT_EQ(n.node, -1);
	EXPECT_EQ(bound, 0xd3);
	EXPECT_EQ(hp_map_choose_nodes(3, 0, &n), 0);
	EXPECT_EQ(n.policy, HP_NODES_ONE);
	EXPECT_EQ(n.node, 3);
	EXPECT_EQ(bound, 8);
}

TEST(as_many_mappings_as_the_kernel_says)
{
	feed("/proc/sys/vm/max_map_count", "1048576\n");
	EXPECT_EQ(hp_mappings_max(), 1048576);
	feed("/proc/sys/vm/max_map_count", NULL);
	EXPECT_EQ(hp_mappings_max(), 65530);
}

/* ------------------------------------------------------------------ the span, in a process that has none yet */

static void in_a_process(void (*run)(void))
{
	pid_t pid = fork();

	if (pid == 0) {
		t_failures = 0;
		hp_config.span = (int64_t)GIB;
		hp_config.extent_max = (int64_t)(16 * MIB);
		run();
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
}

static bool is_mapped(uintptr_t at)
{
	return raw(SYS_msync, (long)at, 4096, MS_ASYNC, 0, 0, 0) == 0;
}

/* Of the kernel, of free() and of who looks from outside. */
static void expect_pages(size_t pages)
{
	EXPECT_EQ(hp_span.pages, pages);
	EXPECT_EQ(hp_span.size, pages << HP_PAGE_SHIFT);
	EXPECT_EQ(hp_span.reserved, pages << HP_PAGE_SHIFT);
	EXPECT_EQ(hp_exposed.view.heap.base, hp_span.base);
	EXPECT_EQ(hp_exposed.view.heap.size, hp_span.reserved);
	EXPECT(hp_span.opened <= hp_span.size);
	EXPECT(is_mapped(hp_span.base) && is_mapped(hp_span.base + hp_span.size - 4096));
}

static void halve(void)
{
	reserve_max = 300 * MIB;
	hugepin_free(hugepin_malloc(MIB));
	expect_pages(256 * MIB / HP_PAGE);
	reserve_max = 0;
}

static void find_the_least(void)
{
	hp_config.span = (int64_t)(2 * HP_PAGE);
	EXPECT(hp_span_init(false) == 0);
	expect_pages(2);
}

static void find_none(void)
{
	unsigned char *p;

	reserve_max = 3 * HP_PAGE - 1;
	errno = 77;
	EXPECT_EQ(hp_span_init(false), -ENOMEM);
	EXPECT_EQ(errno, 77);
	EXPECT_EQ(hp_span.size, 0);
	p = hugepin_malloc(MIB); /* the C library's, or none */
	hugepin_free(p);
	reserve_max = 0;
}

TEST(a_span_is_halved_until_there_are_addresses_for_it)
{
	in_a_process(halve);
	in_a_process(find_the_least);
	in_a_process(find_none);
}

TEST_BY(in_a_process, a_span_shrinks_to_its_limit_but_not_below_what_is_used)
{
	unsigned char *p = hugepin_malloc(3 * MIB), *q[40];
	uintptr_t end;
	size_t last;

	memset(p, 1, 3 * MIB);
	expect_pages(GIB / HP_PAGE);
	hp_span_shrink(2 * GIB); /* which it is below anyway */
	expect_pages(GIB / HP_PAGE);
	hp_span_shrink(256 * MIB + 4096);
	expect_pages(256 * MIB / HP_PAGE);
	for (int i = 0; i < 40; i++) {
		q[i] = hugepin_malloc(3 * MIB);
		memset(q[i], i, 3 * MIB);
	}
	last = hp_span.pages;
	while (!hp_bit(hp_span.used, last - 1))
		last--;
	EXPECT(last >= 60 && last < 128);
	end = hp_span.base + hp_span.size;
	hp_span_shrink(4096); /* what is used stays */
	expect_pages(last);
	EXPECT(!is_mapped(hp_span.base + hp_span.size) || hp_span.base + hp_span.size == end);
	for (int i = 0; i < 40; i++) {
		EXPECT(q[i][0] == i && q[i][3 * MIB - 1] == i);
		hugepin_free(q[i]);
	}
	EXPECT_EQ(p[3 * MIB - 1], 1);
	hugepin_free(p);
	hugepin_purge();
	expect_pages(last);
}

static void ask_for_a_node(void)
{
	bind_error = EINVAL;
	hp_config.numa = 3;
	hugepin_free(hugepin_malloc(MIB));
	EXPECT_EQ(bound, 8);
	EXPECT_EQ(hp_span.nodes.policy, HP_NODES_LOCAL);
	EXPECT_EQ(hp_span.nodes.node, -1);
}

static void get_a_node(void)
{
	hp_config.numa = 3;
	hugepin_free(hugepin_malloc(MIB));
	EXPECT_EQ(hp_span.nodes.policy, HP_NODES_ONE);
	EXPECT_EQ(hp_span.nodes.node, 3);
}

TEST(of_a_node_that_gives_no_memory_the_local_one_takes_the_place)
{
	in_a_process(ask_for_a_node);
	in_a_process(get_a_node);
}

static void know_thp(void)
{
	feed("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
	feed("/proc/sys/vm/max_map_count", "40000\n");
	hugepin_free(hugepin_malloc(MIB));
	EXPECT(hp_span.thp);
	EXPECT_EQ(hp_span.heads_max, 10000);
}

static void know_no_thp(void)
{
	feed("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
	hugepin_free(hugepin_malloc(MIB));
	EXPECT(!hp_span.thp);
}

TEST(a_span_knows_what_the_machine_said_when_it_began)
{
	in_a_process(know_thp);
	in_a_process(know_no_thp);
}

LIVE_MAIN
