/*
 * hugepin info: shows what this machine and this shell's limits offer to the heap, and what to change. A line that
 * begins with an arrow is advice, with the command.
 */
#include "cmd/info.h"

#include <getopt.h>
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
#include "cmd/models.h"
#include "cmd/run.h"
#include "cmd/text.h"
#include "cmd/usage.h"
#include "hugepin.h"

#define THP "/sys/kernel/mm/transparent_hugepage/"
#define POOLS "/sys/kernel/mm"
/* for the size that the heap uses; in the directory POOLS or in that of a node */
#define NR_PAGES "/hugepages/hugepages-2048kB/nr_hugepages"
#define NODE "/sys/devices/system/node/node%d"
#define SIZES_MAX 8
#define NODES_MAX 1024
#define POOL_SUGGESTED 512 /* pages: 1 GiB, enough to see a difference */

/* The present choice in a file such as "always [madvise] never". "": the file does not exist. */
static char *read_choice(const char *path, char word[HP_TEXT_MAX])
{
	char text[256];

	word[0] = '\0';
	if (hp_read_file(path, text, sizeof text) > 0 && strchr(text, '['))
		sscanf(strchr(text, '['), "[%31[^]]", word);
	return word;
}

/* ------------------------------------------------------------------ kernel and memory */

static void tell_system(void)
{
	char text[8192] = "", total[HP_TEXT_MAX], available[HP_TEXT_MAX];
	struct utsname u;

	hp_facts_section("system", "System");
	uname(&u);
	hp_facts_add("kernel", json_pack("{s:s, s:s}", "release", u.release, "machine", u.machine), "kernel", "%s, %s",
		     u.release, u.machine);
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

struct pool {
	uint64_t total, free, reserved, surplus, overcommit;
};

static uint64_t pool_file(const char *dir, long page_size, const char *file)
{
	char path[256];

	snprintf(path, sizeof path, "%s/hugepages/hugepages-%ldkB/%s", dir, page_size >> 10, file);
	return hp_read_number(path, 0);
}

static struct pool read_pool(const char *dir, long page_size)
{
	return (struct pool){
		.total = pool_file(dir, page_size, "nr_hugepages"),
		.free = pool_file(dir, page_size, "free_hugepages"),
		.reserved = pool_file(dir, page_size, "resv_hugepages"),
		.surplus = pool_file(dir, page_size, "surplus_hugepages"),
		.overcommit = pool_file(dir, page_size, "nr_overcommit_hugepages"),
	};
}

/* Whether a mapping can get a page of the pool. */
static bool pool_has(const struct pool *p)
{
	return p->free > p->reserved || p->surplus < p->overcommit;
}

static void advise_pool(const struct pool *p)
{
	if (p->total + p->overcommit == 0)
		hp_facts_advise("the heap will do with THP. To reserve 1 GiB", "echo %d > " POOLS NR_PAGES,
				POOL_SUGGESTED);
	else if (!pool_has(p))
		hp_facts_advise("all of them are taken. For 1 GiB more", "echo %" PRIu64 " > " POOLS NR_PAGES,
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
		const struct pool p = read_pool(POOLS, sizes[i]);
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
			has = pool_has(&p);
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
	const struct pool all = read_pool(POOLS, (long)HP_PAGE);
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
			const struct pool p = read_pool(dir, sizes[i]);
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

/* Add facts about transparent hugepages. Returns whether the heap can get them. */
static bool tell_transparent(void)
{
	char all[HP_TEXT_MAX], own[HP_TEXT_MAX], defrag[HP_TEXT_MAX], size[HP_TEXT_MAX];

	hp_facts_section("thp", "Transparent hugepages (THP)");
	if (!*read_choice(THP "enabled", all)) {
		hp_facts_value("enabled", json_null());
		hp_facts_lack("this kernel has none: one built with CONFIG_TRANSPARENT_HUGEPAGE has");
		return false;
	}
	/* Since Linux 6.8 each size may have a setting of its own. */
	read_choice(THP "hugepages-2048kB/enabled", own);
	hp_facts_value("enabled_2m", hp_facts_string(*own ? own : NULL));
	hp_facts_add("enabled", hp_facts_string(all), "enabled", "%s%s%s", all, *own ? ", for 2 MiB: " : "", own);
	const bool inherits = !*own || !strcmp(own, "inherit"), own_never = !strcmp(own, "never");
	const bool all_never = !strcmp(all, "never");
	if (own_never)
		hp_facts_advise("off for the size that the heap uses",
				"echo inherit > " THP "hugepages-2048kB/enabled");
	if (all_never && (inherits || own_never))
		hp_facts_advise("off", "echo madvise > " THP "enabled");
	read_choice(THP "defrag", defrag);
	hp_facts_add("defrag", hp_facts_string(defrag), "defrag", "%s", defrag);
	if (!strcmp(defrag, "never") || !strcmp(defrag, "defer"))
		hp_facts_advise("where memory is fragmented, buffers get base pages", "echo madvise > " THP "defrag");
	const uint64_t page_bytes = hp_read_number(THP "hpage_pmd_size", 0);
	hp_facts_add("page_bytes", hp_facts_bytes(page_bytes), "size", "%s", hp_text_bytes(page_bytes, size));
	const bool compacts = hp_read_number(THP "khugepaged/defrag", 0);
	const uint64_t pages = hp_read_number(THP "khugepaged/pages_to_scan", 0);
	const uint64_t pause_ms = hp_read_number(THP "khugepaged/scan_sleep_millisecs", 0);
	hp_facts_add("khugepaged",
		     json_pack("{s:b, s:I, s:I}", "compacts", compacts, "pages_to_scan", (json_int_t)pages, "pause_ms",
			       (json_int_t)pause_ms),
		     "khugepaged", "%s, %" PRIu64 " pages every %" PRIu64 " ms",
		     compacts ? "compacts" : "does not compact", pages, pause_ms);
	const bool disabled = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1;
	hp_facts_value("disabled_for_process", json_boolean(disabled));
	if (disabled)
		hp_facts_lack("switched off for this process and its children, by whoever started it: "
			      "prctl(PR_SET_THP_DISABLE, 0)");
	return !disabled && !own_never && !(all_never && inherits);
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
			   "the pin cache may register no more, and that is less than one extent",
		   'l', "memlock");
	hp_facts_add("ipc_lock", json_boolean(unlimited), "CAP_IPC_LOCK", "%s", says[lock]);
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

static void tell_hugepin(void)
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
	tell_system();
	const bool pool = tell_pools(sizes, count);
	tell_mounts();
	tell_nodes(sizes, count);
	const bool thp = tell_transparent();
	tell_limits(sizes, count);
	hp_devices_facts();
	hp_models_facts();
	tell_hugepin();

	const size_t advice = hp_facts_advice_count();
	const int status = !pool && !thp ? HP_EXIT_NONE : advice ? HP_EXIT_ADVICE : 0;
	if (json) {
		hp_facts_print_json(status);
		return status;
	}
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
