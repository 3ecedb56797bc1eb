/*
 * hugepin info: shows what this machine and this shell's limits offer to the heap, and what to change. A line that
 * begins with an arrow is advice, with the command.
 */
#include <getopt.h>
#include <stddef.h> /* hugetlbfs.h needs this */
#include <hugetlbfs.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/base.h"
#include "cmd/cgroup.h"
#include "cmd/devices.h"
#include "cmd/facts.h"
#include "cmd/libraries.h"
#include "cmd/machine.h"
#include "cmd/models.h"
#include "cmd/run.h"
#include "cmd/text.h"
#include "cmd/usage.h"
#include "hugepin.h"

/* for the size that the heap uses; in the directory HP_POOLS_DIR or in that of a node */
#define NR_PAGES "/hugepages/hugepages-2048kB/nr_hugepages"
#define NODE "/sys/devices/system/node/node%d"
#define SIZES_MAX 8
#define NODES_MAX 1024
#define FALLBACKS_MIN 512 /* hugepages that were not found: fewer tell nothing about the machine */
#define FALLBACKS_SHARE 5 /* in percent of those asked for */
#define POOL_SUGGESTED 512 /* pages: 1 GiB, enough to see a difference */

/* ------------------------------------------------------------------ kernel and memory */

static void tell_system(void)
{
	char size[HP_TEXT_MAX];
	struct utsname u;

	hp_facts_section("System");
	uname(&u);
	hp_facts_add("kernel", "%s, %s", u.release, u.machine);
	hp_facts_add("base pages", "%s", hp_text_bytes(hp_base_page, size));
	/* For an empty range the kernel only tells whether it knows the advice. */
	if (madvise((void *)(uintptr_t)HP_PAGE, 0, MADV_POPULATE_WRITE))
		hp_facts_lack("MADV_POPULATE_WRITE is missing, with which hugepages are taken safely: use Linux 5.16 "
			      "or newer");
	const uint64_t mode = hp_read_number("/proc/sys/vm/overcommit_memory", 0);
	hp_facts_add("vm.overcommit_memory", "%" PRIu64, mode);
	if (mode == 2)
		hp_facts_advise("every page that could be written counts, forked ones twice",
				"sysctl vm.overcommit_memory=0");
	const uint64_t maps = hp_read_number("/proc/sys/vm/max_map_count", 65530);
	hp_facts_add("vm.max_map_count", "%" PRIu64, maps);
	if (maps < 65530)
		hp_facts_advise("the heap stops giving memory back at half of it", "sysctl vm.max_map_count=65530");
}

/* ------------------------------------------------------------------ hugetlb pools */

static void advise_pool(const struct hp_pool *p)
{
	if (p->total + p->overcommit == 0)
		hp_facts_advise(hp_machine_thp() ? "the heap will do with THP. To reserve 1 GiB" :
						   "there is no THP in its place either (see below). To reserve 1 GiB",
				"echo %d > " HP_POOLS_DIR NR_PAGES, POOL_SUGGESTED);
	else if (!hp_pool_has(p))
		hp_facts_advise("all of them are taken. For 1 GiB more", "echo %" PRIu64 " > " HP_POOLS_DIR NR_PAGES,
				p->total - p->surplus + POOL_SUGGESTED);
}

/* Add facts about the pools. Returns whether a mapping can get a hugepage of the size that the heap uses. */
static bool tell_pools(const long *sizes, int count)
{
	char name[HP_TEXT_MAX];
	bool known = false, has = false;

	hp_facts_section("Hugetlb pools, in pages          total       free   reserved    surplus overcommit");
	for (int i = 0; i < count; i++) {
		const struct hp_pool p = hp_machine_pool(HP_POOLS_DIR, sizes[i]);
		const bool def = sizes[i] == gethugepagesize();
		hp_facts_text("  %-8s%-17s %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64 "\n",
			      hp_text_bytes((uint64_t)sizes[i], name), def ? "(default)" : "", p.total, p.free,
			      p.reserved, p.surplus, p.overcommit);
		if (sizes[i] == (long)HP_PAGE) {
			known = true;
			has = hp_pool_has(&p);
			advise_pool(&p);
		}
	}
	if (!known)
		hp_facts_lack("this kernel has no hugetlb pages of 2 MiB: one built with CONFIG_HUGETLBFS has");
	return has;
}

/* Add facts about the pools of each node. Other sizes are shown only if a node has pages of them. */
static void tell_nodes(const long *sizes, int count)
{
	const struct hp_pool all = hp_machine_pool(HP_POOLS_DIR, (long)HP_PAGE);
	char dir[64], name[64], size[HP_TEXT_MAX];
	uint64_t nodes = 0;

	for (int n = 0; n < NODES_MAX; n++) {
		snprintf(dir, sizeof dir, NODE, n);
		nodes += !access(dir, F_OK);
	}
	for (int n = 0; n < NODES_MAX; n++) {
		snprintf(dir, sizeof dir, NODE, n);
		for (int i = 0; i < count && !access(dir, F_OK); i++) {
			const struct hp_pool p = hp_machine_pool(dir, sizes[i]);
			if (!p.total && sizes[i] != (long)HP_PAGE)
				continue;
			snprintf(name, sizeof name, "node %d, %s", n, hp_text_bytes((uint64_t)sizes[i], size));
			hp_facts_add(name, "%" PRIu64 " pages, %" PRIu64 " free", p.total, p.free);
			if (all.total && !p.total)
				hp_facts_advise("none on this node", "echo %" PRIu64 " > %s" NR_PAGES,
						HP_MAX(all.total / nodes, 1), dir);
		}
	}
}

/* ------------------------------------------------------------------ transparent hugepages */

/* Add what the kernel found of hugepages since it started. */
static void tell_faults(void)
{
	char text[32768] = "";

	hp_read_file("/proc/vmstat", text, sizeof text);
	const uint64_t given = hp_number_after(text, "\nthp_fault_alloc ", 0);
	const uint64_t refused = hp_number_after(text, "\nthp_fault_fallback ", 0);
	const double share = given + refused ? 100 * (double)refused / (double)(given + refused) : 0;
	hp_facts_add("since boot", "%" PRIu64 " hugepages given, %" PRIu64 " not found (%.0f %%)", given, refused,
		     share);
	if (refused >= FALLBACKS_MIN && share >= FALLBACKS_SHARE)
		hp_facts_advise("memory is fragmented", "echo 1 > /proc/sys/vm/compact_memory");
}

/* The kernel takes the largest size that fits, so with larger base pages a touch of a large buffer brings much more. */
static void advise_larger(uint64_t page_bytes, const char *all)
{
	char path[128], state[HP_TEXT_MAX], size[HP_TEXT_MAX], why[128];

	snprintf(path, sizeof path, HP_THP_DIR "hugepages-%" PRIu64 "kB/enabled", page_bytes >> 10);
	hp_machine_choice(path, state);
	if (page_bytes <= HP_PAGE || !*state || !strcmp(state, "never") ||
	    (!strcmp(state, "inherit") && !strcmp(all, "never")))
		return;
	snprintf(why, sizeof why, "one touch may bring %s", hp_text_bytes(page_bytes, size));
	hp_facts_advise(why, "echo never > %s", path);
}

/* Add facts about transparent hugepages. Returns whether the heap can get them. */
static bool tell_transparent(void)
{
	char all[HP_TEXT_MAX], own[HP_TEXT_MAX], defrag[HP_TEXT_MAX], size[HP_TEXT_MAX];

	hp_facts_section("Transparent hugepages (THP)");
	if (!*hp_machine_choice(HP_THP_DIR "enabled", all)) {
		hp_facts_lack("this kernel has none: one built with CONFIG_TRANSPARENT_HUGEPAGE has");
		return false;
	}
	/* Since Linux 6.8 each size may have a setting of its own. */
	hp_machine_choice(HP_THP_DIR "hugepages-2048kB/enabled", own);
	hp_facts_add("enabled", "%s%s%s", all, *own ? ", for 2 MiB: " : "", own);
	const bool inherits = !*own || !strcmp(own, "inherit"), own_never = !strcmp(own, "never");
	const bool all_never = !strcmp(all, "never"), missing = !*own && !hp_page_is_pmd();
	if (missing)
		hp_facts_lack("THP of 2 MiB are missing, since base pages are not of 4 KiB: Linux 6.8 or newer has them");
	if (own_never)
		hp_facts_advise("off for the size that the heap uses", "echo %s > " HP_THP_DIR "hugepages-2048kB/enabled",
				hp_page_is_pmd() ? "inherit" : "madvise");
	if (all_never && !missing && (inherits || (own_never && hp_page_is_pmd())))
		hp_facts_advise("off", "echo madvise > " HP_THP_DIR "enabled");
	hp_machine_choice(HP_THP_DIR "defrag", defrag);
	hp_facts_add("defrag", "%s", defrag);
	if (!strcmp(defrag, "never") || !strcmp(defrag, "defer"))
		hp_facts_advise("where memory is fragmented, buffers get base pages",
				"echo madvise > " HP_THP_DIR "defrag");
	const uint64_t page_bytes = hp_read_number(HP_THP_DIR "hpage_pmd_size", 0);
	hp_facts_add("size", "%s", hp_text_bytes(page_bytes, size));
	advise_larger(page_bytes, all);
	tell_faults();
	const bool disabled = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1;
	if (disabled)
		hp_facts_lack("switched off for this process and its children, by whoever started it: "
			      "prctl(PR_SET_THP_DISABLE, 0)");
	return !disabled && !missing && !own_never && !(all_never && inherits);
}

/* ------------------------------------------------------------------ limits */

enum ipc_lock { LOCK_NO, LOCK_CONFINED, LOCK_YES };

/* Whether this process has CAP_IPC_LOCK. The kernel asks for it in the first user namespace, so the capability in a
 * container's namespace does not count. */
static enum ipc_lock ipc_lock(void)
{
	char text[8192], ns[64] = "";
	const char *caps;

	if (hp_read_file("/proc/self/status", text, sizeof text) <= 0 || !(caps = strstr(text, "CapEff:")) ||
	    !(strtoull(caps + strlen("CapEff:"), NULL, 16) >> CAP_IPC_LOCK & 1))
		return LOCK_NO;
	/* The first user namespace always has this number (the kernel's PROC_USER_INIT_INO). */
	if (readlink("/proc/self/ns/user", ns, sizeof ns - 1) > 0 && strcmp(ns, "user:[4026531837]"))
		return LOCK_CONFINED;
	return LOCK_YES;
}

/* Add a fact about a limit. why: the reason to raise the limit, or NULL. letter, word: the limit's names in ulimit and
 * prlimit(1). */
static void tell_limit(const char *name, int resource, const char *why, char letter, const char *word)
{
	char soft[HP_TEXT_MAX], hard[HP_TEXT_MAX];
	struct rlimit r;

	getrlimit((__rlimit_resource_t)resource, &r);
	if (r.rlim_cur == RLIM_INFINITY) {
		hp_facts_add(name, "unlimited");
		return;
	}
	const bool hard_too = r.rlim_max != RLIM_INFINITY;
	hp_facts_add(name, "%s, at most %s", hp_text_bytes(r.rlim_cur, soft),
		     hard_too ? hp_text_bytes(r.rlim_max, hard) : "unlimited");
	if (why && hard_too)
		hp_facts_advise(why, "as root, prlimit --pid %d --%s=unlimited", (int)getppid(), word);
	else if (why)
		hp_facts_advise(why, "ulimit -%c unlimited", letter);
}

static void tell_limits(const long *sizes, int count)
{
	hp_facts_section("Limits of this process and what it starts");
	tell_limit("address space", RLIMIT_AS, "the heap's addresses may fill a quarter of it at most", 'v', "as");
	tell_limit("data", RLIMIT_DATA, "what the heap maps counts", 'd', "data");
	static const char *const says[] = { "no; about mlockall see hugepin(7)",
					    "in this user namespace only, where it does not count: that limit holds",
					    "yes: that limit does not hold" };
	const enum ipc_lock lock = ipc_lock();
	const bool unlimited = lock == LOCK_YES;
	struct rlimit r;
	getrlimit(RLIMIT_MEMLOCK, &r);
	tell_limit("locked memory", RLIMIT_MEMLOCK,
		   unlimited || r.rlim_cur >= (rlim_t)hp_config.extent_max ?
			   NULL :
			   "the pin cache may register no more, less than one extent (large buffers need none; for good: "
			   "hugepin_verbs(3))",
		   'l', "memlock");
	hp_facts_add("CAP_IPC_LOCK", "%s", says[lock]);
	hp_cgroup_facts(sizes, count);
}

/* ------------------------------------------------------------------ hugepin itself */

static void tell_hugepin(void)
{
	char path[PATH_MAX], beside[PATH_MAX], version[HP_TEXT_MAX], value[HP_TEXT_MAX], def[HP_TEXT_MAX];

	hp_facts_section("Hugepin");
	snprintf(version, sizeof version, "%d.%d", HUGEPIN_VERSION_MAJOR, HUGEPIN_VERSION_MINOR);
	hp_facts_add("version", "%s", version);
	const bool missing = hp_run_find_library(path);
	hp_facts_add("library", "%s", missing ? "not found" : path);
	if (missing)
		hp_facts_lack(path);
	for (const struct hp_library *l = hp_libraries; !missing && l < hp_libraries + HP_LIBRARIES; l++)
		hp_facts_add(l->file, "%s", hp_run_beside(path, l->file, beside) ? l->what : "not installed");
	for (int i = 0; i < hp_options_count; i++) {
		const struct hp_option *o = &hp_options[i];
		const int64_t now = *(const int64_t *)((const char *)&hp_config + o->offset);
		const char *text = hp_text_option(o, now, value);
		const char *def_text = hp_text_option(o, o->def, def);
		hp_facts_add(o->name, "%-10s (default%s%s)", text, now == o->def ? "" : " ",
			     now == o->def ? "" : def_text);
	}
}

/* Say in one line which pages large buffers get here, with the variables in force. */
static void tell_summary(bool pool, bool thp, char *text, size_t size)
{
	const struct hp_pool p = hp_machine_pool(HP_POOLS_DIR, (long)HP_PAGE);
	const int64_t pages = hp_config.pages;
	const bool from_pool = pool && pages != HP_PAGES_THP && pages != HP_PAGES_BASE;
	const bool from_thp = thp && pages != HP_PAGES_HUGETLB && pages != HP_PAGES_BASE;
	char room[HP_TEXT_MAX];

	if (from_pool)
		snprintf(text, size, "Large buffers get pages of the hugetlb pool (%s free), then %s.",
			 hp_text_bytes((p.free > p.reserved ? p.free - p.reserved : 0) * HP_PAGE, room),
			 from_thp ? "transparent hugepages" : "base pages");
	else if (from_thp)
		snprintf(text, size, "Large buffers get transparent hugepages, as far as the kernel finds some.");
	else
		snprintf(text, size, "Large buffers get base pages: %s.",
			 pages == HP_PAGES_BASE	     ? "HUGEPIN_PAGES=base asks for them" :
			 pages == HP_PAGES_HUGETLB   ? "the pool has no free page, and HUGEPIN_PAGES=hugetlb forbids THP" :
			 pages == HP_PAGES_THP && pool ? "THP is off, and HUGEPIN_PAGES=thp forbids the pool" :
						       "the pool has no free page, and THP is off");
}

int hp_info_main(int argc, char **argv)
{
	static const struct option longs[] = { { "help", no_argument, NULL, 'h' }, { 0 } };
	const int c = getopt_long(argc, argv, "", longs, NULL);
	long sizes[SIZES_MAX];

	if (c != -1)
		return hp_usage(argv[0], c == 'h');
	if (optind < argc)
		return hp_usage_wrong(argv[0], "no arguments");
	const int found = gethugepagesizes(sizes, SIZES_MAX), count = found < 0 ? 0 : found;
	hp_config_load(); /* prints a line on stderr for each value that it does not understand */
	const bool pool = tell_pools(sizes, count);
	tell_nodes(sizes, count);
	const bool thp = tell_transparent();
	tell_limits(sizes, count);
	hp_devices_facts();
	hp_models_facts();
	tell_system();
	tell_hugepin();
	char summary[256];
	tell_summary(pool, thp, summary, sizeof summary);

	const size_t advice = hp_facts_advice_count();
	const int status = !pool && !thp ? HP_EXIT_NONE : advice ? HP_EXIT_ADVICE : 0;
	printf("%s\n\n", summary);
	hp_facts_print();
	if (status == HP_EXIT_NONE)
		puts("\nThere are no hugepages here.");
	if (advice)
		printf("%s%zu of these could be better: see the lines with an arrow.\n",
		       status == HP_EXIT_NONE ? "" : "\n", advice);
	else
		puts("\nAll of this is as it should be.");
	return status;
}
