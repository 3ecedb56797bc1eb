/*
 * hugepin info: what this machine and this shell's limits offer to the heap, and what to change. A line that begins
 * with an arrow is advice, and holds the command.
 */
#include "cmd/cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <hugetlbfs.h>
#include <inttypes.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <mntent.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/base.h"

#define THP "/sys/kernel/mm/transparent_hugepage/"
#define SIZES_MAX 8
#define NODES_MAX 1024
#define POOL_SUGGESTED 512 /* pages: 1 GiB, enough to see a difference */

static int advice_count;

void hp_info_fact(const char *name, const char *format, ...)
{
	va_list args;

	printf("  %-21s ", name);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

void hp_info_advise(const char *format, ...)
{
	va_list args;

	advice_count++;
	fputs("    -> ", stdout);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

uint64_t hp_info_number(const char *path, uint64_t def)
{
	char text[64];

	return hp_read_file(path, text, sizeof text) > 0 ? hp_number_after(text, "", def) : def;
}

/* The word that is in force in a file of choices: "always [madvise] never". "" if there is no such file. */
static char *read_choice(const char *path, char word[HP_TEXT_MAX])
{
	char text[256];

	word[0] = '\0';
	if (hp_read_file(path, text, sizeof text) > 0 && strchr(text, '['))
		sscanf(strchr(text, '['), "[%31[^]]", word);
	return word;
}

/* ------------------------------------------------------------------ kernel and memory */

static void print_kernel(void)
{
	char text[8192], total[HP_TEXT_MAX], available[HP_TEXT_MAX];
	struct utsname u;

	puts("System");
	uname(&u);
	hp_info_fact("kernel", "%s, %s", u.release, u.machine);
	/* No bytes of nothing: the kernel only says whether it knows the advice. */
	if (madvise((void *)(uintptr_t)HP_PAGE, 0, MADV_POPULATE_WRITE))
		hp_info_advise("MADV_POPULATE_WRITE is missing, with which hugepages are taken safely: use Linux 5.16 "
			       "or newer");
	if (hp_read_file("/proc/meminfo", text, sizeof text) > 0)
		hp_info_fact("memory", "%s, %s available",
			     hp_text_bytes(hp_number_after(text, "MemTotal:", 0) << 10, total),
			     hp_text_bytes(hp_number_after(text, "MemAvailable:", 0) << 10, available));
	const uint64_t mode = hp_info_number("/proc/sys/vm/overcommit_memory", 0);
	hp_info_fact("vm.overcommit_memory", "%" PRIu64, mode);
	if (mode == 2)
		hp_info_advise(
			"every page that could be written counts, forked ones twice: sysctl vm.overcommit_memory=0");
	const uint64_t maps = hp_info_number("/proc/sys/vm/max_map_count", 65530);
	hp_info_fact("vm.max_map_count", "%" PRIu64, maps);
	if (maps < 65530)
		hp_info_advise("the heap stops giving memory back at half of it: sysctl vm.max_map_count=65530");
}

/* ------------------------------------------------------------------ hugetlb pools */

struct pool {
	uint64_t total, free, reserved, surplus, overcommit;
};

static uint64_t pool_number(const char *dir, long page_size, const char *file)
{
	char path[256];

	snprintf(path, sizeof path, "%s/hugepages/hugepages-%ldkB/%s", dir, page_size >> 10, file);
	return hp_info_number(path, 0);
}

static struct pool read_pool(const char *dir, long page_size)
{
	return (struct pool){
		.total = pool_number(dir, page_size, "nr_hugepages"),
		.free = pool_number(dir, page_size, "free_hugepages"),
		.reserved = pool_number(dir, page_size, "resv_hugepages"),
		.surplus = pool_number(dir, page_size, "surplus_hugepages"),
		.overcommit = pool_number(dir, page_size, "nr_overcommit_hugepages"),
	};
}

static void advise_pool(const struct pool *p)
{
	const char *const file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

	if (p->total + p->overcommit == 0)
		hp_info_advise("the heap will do with THP. To reserve 1 GiB: echo %d > %s", POOL_SUGGESTED, file);
	else if (p->free <= p->reserved && p->surplus >= p->overcommit)
		hp_info_advise("all of them are taken. For 1 GiB more: echo %" PRIu64 " > %s",
			       p->total - p->surplus + POOL_SUGGESTED, file);
}

static void print_pools(const long *sizes, int count)
{
	char name[HP_TEXT_MAX];
	bool ours = false;

	puts("\nHugetlb pools, in pages     total       free   reserved    surplus overcommit");
	for (int i = 0; i < count; i++) {
		const struct pool p = read_pool("/sys/kernel/mm", sizes[i]);
		printf("  %-8s%-12s %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64 "\n",
		       hp_text_bytes((uint64_t)sizes[i], name), sizes[i] == gethugepagesize() ? "(default)" : "",
		       p.total, p.free, p.reserved, p.surplus, p.overcommit);
		if (sizes[i] == (long)HP_PAGE) {
			ours = true;
			advise_pool(&p);
		}
	}
	if (!ours)
		hp_info_advise("this kernel has no hugetlb pages of 2 MiB: one built with CONFIG_HUGETLBFS has");
}

static void print_mounts(void)
{
	FILE *f = setmntent("/proc/mounts", "re");
	const struct mntent *m;
	int count = 0;

	while (f && (m = getmntent(f)))
		if (!strcmp(m->mnt_type, "hugetlbfs")) {
			hp_info_fact("hugetlbfs", "%s (%s)", m->mnt_dir, m->mnt_opts);
			count++;
		}
	if (f)
		endmntent(f);
	if (!count)
		hp_info_fact("hugetlbfs", "not mounted; the heap does not need it");
}

static void print_nodes(void)
{
	char dir[64], file[128];
	int nodes = 0;

	for (int n = 0; n < NODES_MAX; n++) {
		snprintf(dir, sizeof dir, "/sys/devices/system/node/node%d", n);
		nodes += !access(dir, F_OK);
	}
	for (int n = 0; n < NODES_MAX && nodes > 1; n++) {
		snprintf(dir, sizeof dir, "/sys/devices/system/node/node%d", n);
		if (access(dir, F_OK))
			continue;
		const struct pool p = read_pool(dir, (long)HP_PAGE), all = read_pool("/sys/kernel/mm", (long)HP_PAGE);
		snprintf(file, sizeof file, "node %d, 2 MiB", n);
		hp_info_fact(file, "%" PRIu64 " pages, %" PRIu64 " free", p.total, p.free);
		if (all.total && !p.total)
			hp_info_advise("none on this node: echo %" PRIu64
				       " > %s/hugepages/hugepages-2048kB/nr_hugepages",
				       all.total / (uint64_t)nodes, dir);
	}
}

/* ------------------------------------------------------------------ transparent hugepages */

static void print_thp(void)
{
	char all[HP_TEXT_MAX], own[HP_TEXT_MAX], defrag[HP_TEXT_MAX], size[HP_TEXT_MAX];

	puts("\nTransparent hugepages (THP)");
	if (!*read_choice(THP "enabled", all)) {
		hp_info_advise("this kernel has none: one built with CONFIG_TRANSPARENT_HUGEPAGE has");
		return;
	}
	/* Since Linux 6.8 each size may have its own mind. */
	read_choice(THP "hugepages-2048kB/enabled", own);
	hp_info_fact("enabled", "%s%s%s", all, *own ? ", for 2 MiB: " : "", own);
	if (!strcmp(own, "never"))
		hp_info_advise("echo inherit > " THP "hugepages-2048kB/enabled");
	if (!strcmp(all, "never") && (!*own || !strcmp(own, "inherit") || !strcmp(own, "never")))
		hp_info_advise("echo madvise > " THP "enabled");
	read_choice(THP "defrag", defrag);
	hp_info_fact("defrag", "%s", defrag);
	if (!strcmp(defrag, "never") || !strcmp(defrag, "defer"))
		hp_info_advise("where memory is fragmented, buffers get base pages: echo madvise > " THP "defrag");
	hp_info_fact("size", "%s", hp_text_bytes(hp_info_number(THP "hpage_pmd_size", 0), size));
	hp_info_fact("khugepaged", "%s, %" PRIu64 " pages every %" PRIu64 " ms",
		     hp_info_number(THP "khugepaged/defrag", 0) ? "compacts" : "does not compact",
		     hp_info_number(THP "khugepaged/pages_to_scan", 0),
		     hp_info_number(THP "khugepaged/scan_sleep_millisecs", 0));
	if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1)
		hp_info_advise("switched off for this process and its children, by whoever started it: "
			       "prctl(PR_SET_THP_DISABLE, 0)");
}

/* ------------------------------------------------------------------ limits */

static bool has_ipc_lock(void)
{
	char text[8192];
	const char *caps;

	if (hp_read_file("/proc/self/status", text, sizeof text) <= 0 || !(caps = strstr(text, "CapEff:")))
		return false;
	return strtoull(caps + strlen("CapEff:"), NULL, 16) >> 14 & 1; /* CAP_IPC_LOCK */
}

/* why: what to say of a limit that is not unlimited, or NULL; letter and word: how ulimit and prlimit(1) call it. */
static void print_limit(const char *name, int resource, const char *why, char letter, const char *word)
{
	char soft[HP_TEXT_MAX], hard[HP_TEXT_MAX];
	struct rlimit r;

	getrlimit((__rlimit_resource_t)resource, &r);
	if (r.rlim_cur == RLIM_INFINITY) {
		hp_info_fact(name, "unlimited");
		return;
	}
	const bool hard_too = r.rlim_max != RLIM_INFINITY;
	hp_info_fact(name, "%s, at most %s", hp_text_bytes(r.rlim_cur, soft),
		     hard_too ? hp_text_bytes(r.rlim_max, hard) : "unlimited");
	if (why && hard_too)
		hp_info_advise("%s: as root, prlimit --pid %d --%s=unlimited", why, (int)getppid(), word);
	else if (why)
		hp_info_advise("%s: ulimit -%c unlimited", why, letter);
}

static void print_limits(const long *sizes, int count)
{
	puts("\nLimits of this process and what it starts");
	print_limit("address space", RLIMIT_AS, "the heap's addresses may fill a quarter of it at most", 'v', "as");
	print_limit("data", RLIMIT_DATA, "what the heap maps counts", 'd', "data");
	const bool unlimited = has_ipc_lock();
	struct rlimit r;
	getrlimit(RLIMIT_MEMLOCK, &r);
	print_limit("locked memory", RLIMIT_MEMLOCK,
		    unlimited || r.rlim_cur >= (rlim_t)hp_config.extent_max ?
			    NULL :
			    "the pin cache may register no more, and that is less than one extent",
		    'l', "memlock");
	hp_info_fact("CAP_IPC_LOCK", "%s",
		     unlimited ? "yes: that limit does not hold" : "no; about mlockall see hugepin(7)");
	hp_cgroup_print(sizes, count);
}

/* ------------------------------------------------------------------ pin cache */

/* Asks for what reg/uffd.c cannot do without. */
static void print_userfaultfd(void)
{
	struct uffdio_api api = { .api = UFFD_API,
				  .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_UNMAP |
					      UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP };
	const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	if (fd >= 0 && !ioctl(fd, UFFDIO_API, &api)) {
		hp_info_fact("userfaultfd", "usable: the kernel tells when memory that is not the heap's goes away");
	} else {
		hp_info_fact("userfaultfd", "not usable (%s)", strerror(errno));
		hp_info_advise("what is not the heap's is registered anew for each pin, except under "
			       "libhugepin-malloc.so, which sees the calls that unmap memory: use Linux 5.11 or newer, "
			       "and let seccomp pass userfaultfd");
	}
	if (fd >= 0)
		close(fd);
}

static void print_io_uring(void)
{
	const char *const file = "/proc/sys/kernel/io_uring_disabled"; /* since Linux 6.6 */
	struct io_uring_params params = { 0 };
	struct io_uring_rsrc_register table = { .nr = 1, .flags = IORING_RSRC_REGISTER_SPARSE };
	const int fd = (int)syscall(SYS_io_uring_setup, 1, &params);

	if (fd < 0) {
		hp_info_fact("io_uring", "not usable (%s)", strerror(errno));
		if (hp_info_number(file, 0))
			hp_info_advise("switched off: echo 0 > %s", file);
		return;
	}
	if (!syscall(SYS_io_uring_register, fd, IORING_REGISTER_BUFFERS2, &table, sizeof table))
		hp_info_fact("io_uring", "usable");
	else
		hp_info_fact("io_uring", "usable, but not for pins (%s): they need Linux 5.19", strerror(errno));
	close(fd);
}

static void print_pin_cache(void)
{
	puts("\nPin cache");
	print_userfaultfd();
	print_io_uring();
}

/* ------------------------------------------------------------------ hugepin itself */

static void print_options(void)
{
	char path[PATH_MAX], value[HP_TEXT_MAX], def[HP_TEXT_MAX];

	puts("\nHugepin");
	const bool missing = hp_run_find_library(path);
	hp_info_fact("library", "%s", missing ? "not found" : path);
	if (missing)
		hp_info_advise("%s", path);
	for (int i = 0; i < hp_options_count; i++) {
		const struct hp_option *o = &hp_options[i];
		const int64_t now = *(const int64_t *)((const char *)&hp_config + o->offset);
		const char *text = hp_text_option(o, now, value);
		if (now == o->def)
			hp_info_fact(o->name, "%-10s (default)", text);
		else
			hp_info_fact(o->name, "%-10s (default %s)", text, hp_text_option(o, o->def, def));
	}
}

int hp_info_main(int argc, char **argv)
{
	long sizes[SIZES_MAX];

	if (argc > 1) {
		const bool help = !strcmp(argv[1], "--help");
		fputs("usage: hugepin info\n", help ? stdout : stderr);
		return help ? 0 : HP_EXIT_USAGE;
	}
	const int found = gethugepagesizes(sizes, SIZES_MAX), count = found < 0 ? 0 : found;
	hp_config_load(); /* says on stderr what it does not understand */
	print_kernel();
	print_pools(sizes, count);
	print_mounts();
	print_nodes();
	print_thp();
	print_limits(sizes, count);
	print_pin_cache();
	hp_models_print();
	print_options();
	if (advice_count)
		printf("\n%d of these could be better: see the lines with an arrow.\n", advice_count);
	else
		puts("\nAll of this is as it should be.");
	return 0;
}
