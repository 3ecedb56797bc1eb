/*
 * hugepin info: shows what this machine and this shell's limits offer to the heap, and what to change. A line that
 * begins with an arrow is advice, with the command.
 */
#include "cmd/info.h"

#include <getopt.h>
#include <glob.h>
#include <stddef.h> /* hugetlbfs.h needs this */
#include <hugetlbfs.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <mntent.h>
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
#include "cmd/launch.h"
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
#define RING_BYTES 65536 /* memory of a ring with some hundred entries, which counts as locked, too */
#define MEDIUM_KIB (64 | 128 | 256 | 512) /* sizes of mTHP that save faults, and are easily found */
#define FALLBACKS_MIN 512 /* hugepages that were not found: fewer tell nothing about the machine */
#define FALLBACKS_SHARE 5 /* in percent of those asked for */
#define POOL_SUGGESTED 512 /* pages: 1 GiB, enough to see a difference */

/* ------------------------------------------------------------------ kernel and memory */

static void tell_system(void)
{
	char text[8192] = "", total[HP_TEXT_MAX], available[HP_TEXT_MAX];
	struct utsname u;

	hp_facts_section("system", "System");
	uname(&u);
	hp_facts_add("kernel", json_pack("{s:s, s:s}", "release", u.release, "machine", u.machine), "kernel", "%s, %s",
		     u.release, u.machine);
	hp_facts_add("base_page", hp_facts_bytes(hp_base_page), "base pages", "%s", hp_text_bytes(hp_base_page, total));
	/* For an empty range the kernel only tells whether it knows the advice. */
	if (madvise((void *)(uintptr_t)HP_PAGE, 0, MADV_POPULATE_WRITE))
		hp_facts_lack("MADV_POPULATE_WRITE is missing, with which hugepages are taken safely: use Linux 5.16 "
			      "or newer");
	hp_read_file("/proc/meminfo", text, sizeof text);
	const uint64_t total_bytes = hp_number_after(text, "MemTotal:", 0) << 10;
	const uint64_t available_bytes = hp_number_after(text, "MemAvailable:", 0) << 10;
	hp_facts_add("memory",
		     json_pack("{s:o, s:o}", "total_bytes", hp_facts_bytes(total_bytes), "available_bytes",
			       hp_facts_bytes(available_bytes)),
		     "memory", "%s, %s available", hp_text_bytes(total_bytes, total),
		     hp_text_bytes(available_bytes, available));
	const bool data = hp_machine_counts(false), code = hp_machine_counts(true);
	hp_facts_add("tlb_counters", json_pack("{s:b, s:b}", "data", data, "code", code), "TLB misses", "%s%s%s%s",
		     data || code ? "counters for " : "no counters for user programs here", data ? "data" : "",
		     data && code ? " and " : "", code ? "code" : "");
	const uint64_t mode = hp_read_number("/proc/sys/vm/overcommit_memory", 0);
	hp_facts_add("overcommit_memory", json_integer((json_int_t)mode), "vm.overcommit_memory", "%" PRIu64, mode);
	if (mode == 2)
		hp_facts_advise("every page that could be written counts, forked ones twice",
				"sysctl vm.overcommit_memory=0");
	const uint64_t maps = hp_read_number("/proc/sys/vm/max_map_count", 65530);
	hp_facts_add("max_map_count", json_integer((json_int_t)maps), "vm.max_map_count", "%" PRIu64, maps);
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

	hp_facts_section("pools", "Hugetlb pools, in pages     total       free   reserved    surplus overcommit");
	hp_facts_list("sizes");
	for (int i = 0; i < count; i++) {
		const struct hp_pool p = hp_machine_pool(HP_POOLS_DIR, sizes[i]);
		const bool def = sizes[i] == gethugepagesize();
		hp_facts_value("sizes",
			       json_pack("{s:I, s:b, s:I, s:I, s:I, s:I, s:I}", "page_bytes", (json_int_t)sizes[i],
					 "default", def, "total", (json_int_t)p.total, "free", (json_int_t)p.free,
					 "reserved", (json_int_t)p.reserved, "surplus", (json_int_t)p.surplus,
					 "overcommit", (json_int_t)p.overcommit));
		hp_facts_text("  %-8s%-12s %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64 "\n",
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

static void tell_mounts(void)
{
	FILE *f = setmntent("/proc/mounts", "re");
	const struct mntent *m;
	int count = 0;

	hp_facts_list("mounts");
	while (f && (m = getmntent(f)))
		if (!strcmp(m->mnt_type, "hugetlbfs")) {
			hp_facts_add("mounts",
				     json_pack("{s:o, s:o}", "directory", hp_facts_string(m->mnt_dir), "options",
					       hp_facts_string(m->mnt_opts)),
				     "hugetlbfs", "%s (%s)", m->mnt_dir, m->mnt_opts);
			count++;
		}
	if (f)
		endmntent(f);
	if (!count)
		hp_facts_text("  %-21s %s\n", "hugetlbfs", "not mounted; the heap does not need it");
}

/* Add facts about the pools of each node. Other sizes are shown only if a node has pages of them. */
static void tell_nodes(const long *sizes, int count)
{
	const struct hp_pool all = hp_machine_pool(HP_POOLS_DIR, (long)HP_PAGE);
	char dir[64], name[64], size[HP_TEXT_MAX];
	uint64_t nodes = 0;

	hp_facts_list("nodes");
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
			hp_facts_add("nodes",
				     json_pack("{s:i, s:I, s:I, s:I}", "node", n, "page_bytes", (json_int_t)sizes[i],
					       "total", (json_int_t)p.total, "free", (json_int_t)p.free),
				     name, "%" PRIu64 " pages, %" PRIu64 " free", p.total, p.free);
			if (all.total && !p.total)
				hp_facts_advise("none on this node", "echo %" PRIu64 " > %s" NR_PAGES,
						HP_MAX(all.total / nodes, 1), dir);
		}
	}
}

/* ------------------------------------------------------------------ transparent hugepages */

static int ascending(const void *a, const void *b)
{
	const unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;

	return (x > y) - (x < y);
}

/* Add facts about the sizes of THP between base pages and hugepages (mTHP, Linux 6.8). They are used where memory is
 * too fragmented for a hugepage. So there is advice only where the kernel has failed to find some. */
static void tell_smaller(const char *all)
{
	char medium[HP_TEXT_MAX] = "";
	unsigned long kib[SIZES_MAX * 2];
	uint64_t on = 0, off = 0;
	size_t count = 0;
	char path[128], state[HP_TEXT_MAX], text[32768] = "";
	glob_t found;

	if (!glob(HP_THP_DIR "hugepages-*kB", GLOB_NOSORT, NULL, &found)) {
		for (size_t i = 0; i < found.gl_pathc && count < sizeof kib / sizeof *kib; i++)
			count += sscanf(found.gl_pathv[i], HP_THP_DIR "hugepages-%lukB", &kib[count]) == 1 &&
				 kib[count] << 10 < HP_PAGE;
		globfree(&found);
	}
	qsort(kib, count, sizeof *kib, ascending);
	hp_facts_list("smaller_sizes");
	for (size_t i = 0; i < count; i++) {
		snprintf(path, sizeof path, HP_THP_DIR "hugepages-%lukB/enabled", kib[i]);
		if (!*hp_machine_choice(path, state)) /* of shared memory alone */
			continue;
		hp_facts_value("smaller_sizes",
			       json_pack("{s:I, s:s}", "page_bytes", (json_int_t)kib[i] << 10, "enabled", state));
		if (!strcmp(state, "never") || (!strcmp(state, "inherit") && !strcmp(all, "never")))
			off |= kib[i];
		else
			on |= kib[i];
		if (kib[i] & MEDIUM_KIB) /* which there are depends on the size of base pages */
			snprintf(medium + strlen(medium), sizeof medium - strlen(medium), "%s%lu", *medium ? " " : "", kib[i]);
	}
	if (on | off) {
		hp_facts_text("  %-21s ", "smaller sizes");
		if (!on)
			hp_facts_text("off");
		for (size_t i = 0, n = 0; i < count; i++)
			if (on & kib[i])
				hp_facts_text("%s%lu", n++ ? ", " : "", kib[i]);
		hp_facts_text("%s\n", on ? " KiB" : "");
	}

	hp_read_file("/proc/vmstat", text, sizeof text);
	const uint64_t given = hp_number_after(text, "\nthp_fault_alloc ", 0);
	const uint64_t refused = hp_number_after(text, "\nthp_fault_fallback ", 0);
	const double share = given + refused ? 100 * (double)refused / (double)(given + refused) : 0;
	hp_facts_add("faults", json_pack("{s:I, s:I}", "given", (json_int_t)given, "refused", (json_int_t)refused),
		     "since boot", "%" PRIu64 " hugepages given, %" PRIu64 " not found (%.0f %%)", given, refused,
		     share);
	if (refused < FALLBACKS_MIN || share < FALLBACKS_SHARE)
		return;
	if (off & MEDIUM_KIB)
		hp_facts_advise("memory is fragmented, and smaller sizes save most of the page faults then",
				"for s in %s; do echo madvise > " HP_THP_DIR "hugepages-${s}kB/enabled; done", medium);
	else
		hp_facts_advise("memory is fragmented", "echo 1 > /proc/sys/vm/compact_memory");
}

/* The kernel takes the largest size that fits, so with larger base pages a touch of a large buffer brings much more. */
static void advise_larger(uint64_t page_bytes, const char *all)
{
	char path[128], state[HP_TEXT_MAX], size[HP_TEXT_MAX], why[128];

	snprintf(path, sizeof path, HP_THP_DIR "hugepages-%" PRIu64 "kB/enabled", page_bytes >> 10);
	hp_machine_choice(path, state);
	if (page_bytes <= HP_PAGE || !*state || !strcmp(state, "never") || (!strcmp(state, "inherit") && !strcmp(all, "never")))
		return;
	snprintf(why, sizeof why, "one touch may bring %s", hp_text_bytes(page_bytes, size));
	hp_facts_advise(why, "echo never > %s", path);
}

/* Add facts about transparent hugepages. Returns whether the heap can get them. */
static bool tell_transparent(void)
{
	char all[HP_TEXT_MAX], own[HP_TEXT_MAX], defrag[HP_TEXT_MAX], size[HP_TEXT_MAX];

	hp_facts_section("thp", "Transparent hugepages (THP)");
	if (!*hp_machine_choice(HP_THP_DIR "enabled", all)) {
		hp_facts_value("enabled", json_null());
		hp_facts_lack("this kernel has none: one built with CONFIG_TRANSPARENT_HUGEPAGE has");
		return false;
	}
	/* Since Linux 6.8 each size may have a setting of its own. */
	hp_machine_choice(HP_THP_DIR "hugepages-2048kB/enabled", own);
	hp_facts_value("enabled_2m", hp_facts_string(*own ? own : NULL));
	hp_facts_add("enabled", hp_facts_string(all), "enabled", "%s%s%s", all, *own ? ", for 2 MiB: " : "", own);
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
	hp_facts_add("defrag", hp_facts_string(defrag), "defrag", "%s", defrag);
	if (!strcmp(defrag, "never") || !strcmp(defrag, "defer"))
		hp_facts_advise("where memory is fragmented, buffers get base pages",
				"echo madvise > " HP_THP_DIR "defrag");
	const uint64_t page_bytes = hp_read_number(HP_THP_DIR "hpage_pmd_size", 0);
	hp_facts_add("page_bytes", hp_facts_bytes(page_bytes), "size", "%s", hp_text_bytes(page_bytes, size));
	advise_larger(page_bytes, all);
	const bool compacts = hp_read_number(HP_THP_DIR "khugepaged/defrag", 0);
	const uint64_t pages = hp_read_number(HP_THP_DIR "khugepaged/pages_to_scan", 0);
	const uint64_t pause_ms = hp_read_number(HP_THP_DIR "khugepaged/scan_sleep_millisecs", 0);
	hp_facts_add("khugepaged",
		     json_pack("{s:b, s:I, s:I}", "compacts", compacts, "pages_to_scan", (json_int_t)pages, "pause_ms",
			       (json_int_t)pause_ms),
		     "khugepaged", "%s, %" PRIu64 " pages every %" PRIu64 " ms",
		     compacts ? "compacts" : "does not compact", pages, pause_ms);
	const int files = hp_machine_thp_files();
	hp_facts_add("files", files < 0 ? json_null() : json_boolean(files), "text of programs", "%s",
		     files < 0 ? "not known: no file could be tried" :
		     files     ? "THP, by HUGEPIN_IMAGE=all" :
				 "THP for a copy only, by HUGEPIN_IMAGE=all");
	tell_smaller(all);
	const bool disabled = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1;
	hp_facts_value("disabled_for_process", json_boolean(disabled));
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
static void tell_limit(const char *key, const char *name, int resource, const char *why, char letter, const char *word)
{
	char soft[HP_TEXT_MAX], hard[HP_TEXT_MAX];
	struct rlimit r;

	getrlimit((__rlimit_resource_t)resource, &r);
	json_t *const value = json_pack("{s:o, s:o}", "soft_bytes", hp_facts_bytes(r.rlim_cur), "hard_bytes",
					hp_facts_bytes(r.rlim_max));
	if (r.rlim_cur == RLIM_INFINITY) {
		hp_facts_add(key, value, name, "unlimited");
		return;
	}
	const bool hard_too = r.rlim_max != RLIM_INFINITY;
	hp_facts_add(key, value, name, "%s, at most %s", hp_text_bytes(r.rlim_cur, soft),
		     hard_too ? hp_text_bytes(r.rlim_max, hard) : "unlimited");
	if (why && hard_too)
		hp_facts_advise(why, "as root, prlimit --pid %d --%s=unlimited", (int)getppid(), word);
	else if (why)
		hp_facts_advise(why, "ulimit -%c unlimited", letter);
}

/* Add the number of hugepages that may be pinned. Each hugepage that a pin touches counts as a whole. */
static void tell_room(rlim_t limit)
{
	const uint64_t pages = limit / HP_PAGE, beside = limit > RING_BYTES ? (limit - RING_BYTES) / HP_PAGE : 0;

	if (limit == RLIM_INFINITY)
		hp_facts_add("pinned_hugepages", json_null(), "room for pins", "as much as there is memory");
	else if (beside == pages)
		hp_facts_add("pinned_hugepages", json_integer((json_int_t)pages), "room for pins",
			     "%" PRIu64 " hugepages", pages);
	else
		hp_facts_add("pinned_hugepages", json_integer((json_int_t)pages), "room for pins",
			     "%" PRIu64 " hugepages, %" PRIu64 " beside the memory of an io_uring", pages, beside);
}

static void tell_limits(const long *sizes, int count)
{
	hp_facts_section("limits", "Limits of this process and what it starts");
	tell_limit("address_space", "address space", RLIMIT_AS, "the heap's addresses may fill a quarter of it at most",
		   'v', "as");
	tell_limit("data", "data", RLIMIT_DATA, "what the heap maps counts", 'd', "data");
	static const char *const says[] = { "no; about mlockall see hugepin(7)",
					    "in this user namespace only, where it does not count: that limit holds",
					    "yes: that limit does not hold" };
	const enum ipc_lock lock = ipc_lock();
	const bool unlimited = lock == LOCK_YES;
	struct rlimit r;
	getrlimit(RLIMIT_MEMLOCK, &r);
	tell_limit("locked_memory", "locked memory", RLIMIT_MEMLOCK,
		   unlimited || r.rlim_cur >= (rlim_t)hp_config.extent_max ?
			   NULL :
			   "the pin cache may register no more, and that is less than one extent (large buffers need none of it)",
		   'l', "memlock");
	const enum hp_launch place = hp_launch();
	if (!unlimited && r.rlim_cur < (rlim_t)hp_config.extent_max && hp_launch_memlock(place))
		hp_facts_lack(hp_launch_memlock(place));
	tell_room(unlimited ? RLIM_INFINITY : r.rlim_cur);
	hp_facts_add("ipc_lock", json_boolean(unlimited), "CAP_IPC_LOCK", "%s", says[lock]);
	hp_facts_value("started_by", hp_facts_string(hp_launch_name(place)));
	if (hp_launch_name(place))
		hp_facts_text("  %-21s %s\n", "started by", hp_launch_name(place));
	hp_cgroup_facts(sizes, count);
}

/* ------------------------------------------------------------------ hugepin itself */

/* The value of an option for scripts: bytes, milliseconds and numbers as numbers, words as text. */
static json_t *option_json(const struct hp_option *o, int64_t value)
{
	char text[HP_TEXT_MAX];

	if (o->type == HP_PATH)
		return hp_facts_string((const char *)(intptr_t)value);
	if (o->type == HP_WORD || (o->words && value < 0) || (o->type == HP_REPORT && value > HP_REPORT_LIST))
		return hp_facts_string(hp_text_option(o, value, text));
	return json_integer(value);
}

/* What HUGEPIN_POPULATE comes to here: what a buffer gets that is larger than HUGEPIN_EXTENT. */
static void tell_populate(bool thp)
{
	const struct hp_pool p = hp_machine_pool(HP_POOLS_DIR, (long)HP_PAGE);
	const uint64_t free = p.free > p.reserved ? p.free - p.reserved : 0;
	const bool pool = hp_config.pages != HP_PAGES_THP && hp_config.pages != HP_PAGES_BASE;
	char most[HP_TEXT_MAX];

	if (!pool)
		hp_facts_add("populate", hp_facts_string(NULL), "largest buffers", "not from the pool");
	else if (hp_config.populate == HP_POPULATE_AUTO && hp_config.pages == HP_PAGES_AUTO && thp)
		hp_facts_add("populate", json_string("auto"), "largest buffers",
			     "THP for what is larger than a quarter of the free pool (%s)",
			     hp_text_bytes(free * HP_PAGE / 4, most));
	else
		hp_facts_add("populate", json_string("all"), "largest buffers", "from the pool, all at once");
}

/* Whether it is looked for programs that touch little of their buffers (alloc/sparse.h). */
static void tell_sparse(void)
{
	const bool looks = hp_config.pages == HP_PAGES_AUTO;

	hp_facts_add("sparse", json_boolean(looks), "touched little", "%s",
		     looks ? "noticed without a pin cache: such buffers get base pages then" :
			     "not noticed: HUGEPIN_PAGES is not auto");
}

/* What HUGEPIN_IMAGE can have here. Whether a program gains by them, hugepin check tells. */
static void tell_static(bool thp)
{
	hp_facts_add("image", json_boolean(thp), "static memory", "%s",
		     thp ? "HUGEPIN_IMAGE can have THP" : "can have no THP");
}

static void tell_hugepin(bool thp)
{
	char path[PATH_MAX], version[HP_TEXT_MAX], value[HP_TEXT_MAX], def[HP_TEXT_MAX];

	hp_facts_section("hugepin", "Hugepin");
	snprintf(version, sizeof version, "%d.%d", HUGEPIN_VERSION_MAJOR, HUGEPIN_VERSION_MINOR);
	hp_facts_add("version", hp_facts_string(version), "version", "%s", version);
	const bool missing = hp_run_find_library(path);
	hp_facts_add("library", hp_facts_string(missing ? NULL : path), "library", "%s", missing ? "not found" : path);
	if (missing)
		hp_facts_lack(path);
	hp_facts_list("options");
	for (int i = 0; i < hp_options_count; i++) {
		const struct hp_option *o = &hp_options[i];
		const int64_t now = *(const int64_t *)((const char *)&hp_config + o->offset);
		const char *text = hp_text_option(o, now, value);
		const char *def_text = hp_text_option(o, o->def, def);
		hp_facts_add("options",
			     json_pack("{s:s, s:o, s:o}", "name", o->name, "value", option_json(o, now), "default",
				       option_json(o, o->def)),
			     o->name, "%-10s (default%s%s)", text, now == o->def ? "" : " ",
			     now == o->def ? "" : def_text);
	}
	tell_populate(thp);
	tell_sparse();
	tell_static(thp);
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
	hp_facts_value("pages", json_string(from_pool ? "hugetlb" : from_thp ? "thp" : "base"));
}

int hp_info_main(int argc, char **argv)
{
	static const struct option longs[] = { { "help", no_argument, NULL, 'h' },
					       { "json", no_argument, NULL, 'j' },
					       { 0 } };
	long sizes[SIZES_MAX];
	bool json = false;

	for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		if (c != 'j')
			return hp_usage(argv[0], c == 'h');
		json = true;
	}
	if (optind < argc)
		return hp_usage(argv[0], false);

	const int found = gethugepagesizes(sizes, SIZES_MAX), count = found < 0 ? 0 : found;
	hp_config_load(); /* prints a line on stderr for each value that it does not understand */
	const bool pool = tell_pools(sizes, count);
	tell_mounts();
	tell_nodes(sizes, count);
	const bool thp = tell_transparent();
	tell_limits(sizes, count);
	hp_devices_facts();
	hp_models_facts();
	tell_system();
	tell_hugepin(thp);
	char summary[256];
	tell_summary(pool, thp, summary, sizeof summary);

	const size_t advice = hp_facts_advice_count();
	const int status = !pool && !thp ? HP_EXIT_NONE : advice ? HP_EXIT_ADVICE : 0;
	if (json) {
		hp_facts_print_json(status);
		return status;
	}
	printf("%s\n\n", summary);
	hp_facts_print_text();
	if (status == HP_EXIT_NONE)
		puts("\nThere are no hugepages here.");
	if (advice)
		printf("%s%zu of these could be better: see the lines with an arrow.\n",
		       status == HP_EXIT_NONE ? "" : "\n", advice);
	else
		puts("\nAll of this is as it should be.");
	return status;
}
