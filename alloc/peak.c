/*
 * See peak.h.
 *
 * Threads: any. `busy` lets one thread look at a time, and others go on without. Allocates nothing and takes no lock.
 */
#include "alloc/peak.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "alloc/describe.h"
#include "alloc/hold.h"
#include "alloc/map.h"
#include "alloc/small.h"
#include "alloc/start.h"
#include "base/config.h"
#include "base/rank.h"
#include "base/stats.h"
#include "base/summary.h"
#include "base/sys.h"
#include "base/text.h"
#include "base/there.h"
#include "base/thread.h"

bool hp_peak_on;

static struct {
	_Atomic bool busy;
	bool told; /* hugepin_summary_told */
	/* relaxed, these two: become_busy() lets one thread in, by acquire */
	_Atomic uint64_t most; /* bytes at the peak */
	_Atomic uint64_t due_ns; /* when a look is allowed again */
	/* the thread that is busy writes these */
	uint64_t hugetlb_bytes, thp_bytes, base_bytes; /* of the heap, at the peak */
	bool known; /* the kernel has told at least once */
	/* the most bytes of one fork. relaxed: hp_heap_lock protects the writing; at exit, numbers */
	_Atomic uint64_t fork_peak_bytes, fork_pool_bytes;
} peak;

/* What is known when the statistics begin. */
static struct {
	int filters; /* PR_GET_SECCOMP: a container has a filter from the beginning */
	struct hp_run run; /* what is known from the beginning: name, pid, rank */
} start;

static uint64_t mapped_bytes(void)
{
	return HP_STAT_GET(hugetlb_bytes) + HP_STAT_GET(thp_bytes) + HP_STAT_GET(base_bytes);
}

static int filters(void)
{
	return (int)hp_sys(SYS_prctl, PR_GET_SECCOMP);
}

/* Whether the kernel may be asked, because a filter of system calls may end the process for a file that is opened. The
 * filter under which the process started let the loader open files. A bare thread has our own filter, which allows a
 * look (decay.c). */
static bool may_ask(void)
{
	return !hp_sandboxed && (hp_thread_is_bare || filters() == start.filters);
}

/* Ask the kernel for the heap's memory, and keep the numbers if they are the highest. Called by the thread that is
 * busy. */
static void look(void)
{
	uint64_t hugetlb = HP_STAT_GET(hugetlb_bytes) - HP_STAT_GET(reserved_bytes);
	struct hp_there there = { 0, 0 };

	if (hugetlb > mapped_bytes()) /* read between two changes */
		hugetlb = 0;
	if (!may_ask() || !hp_heap_there(&there))
		return;
	peak.known = true;
	if (hugetlb + there.huge + there.other <= atomic_load_explicit(&peak.most, memory_order_relaxed))
		return;
	peak.hugetlb_bytes = hugetlb;
	peak.thp_bytes = there.huge;
	peak.base_bytes = there.other;
	atomic_store_explicit(&peak.most, hugetlb + there.huge + there.other, memory_order_relaxed);
}

/* acquire: this thread sees the peak; pairs with be_free() */
static bool become_busy(void)
{
	return !atomic_exchange_explicit(&peak.busy, true, memory_order_acquire);
}

static void be_free(void)
{
	/* release: pairs with become_busy() */
	atomic_store_explicit(&peak.busy, false, memory_order_release);
}

void hp_peak_leaving(void)
{
	const uint64_t begin = hp_clock_ns(), due = atomic_load_explicit(&peak.due_ns, memory_order_relaxed);
	uint64_t begin_thread, spent;
	bool may;

	if (mapped_bytes() <= atomic_load_explicit(&peak.most, memory_order_relaxed) || begin < due || !become_busy())
		return;
	may = may_ask(); /* a filter of system calls may end the process even for asking the thread's time */
	begin_thread = may ? hp_thread_ns() : 0;
	look();
	spent = may ? hp_thread_ns() - begin_thread : hp_clock_ns() - begin;
	/* relaxed: the thread that is busy alone writes it */
	atomic_store_explicit(&peak.due_ns, hp_peak_due(due, begin, spent), memory_order_relaxed);
	be_free();
}

void hp_peak_copied(uint64_t bytes, uint64_t pool_bytes)
{
	if (bytes > atomic_load_explicit(&peak.fork_peak_bytes, memory_order_relaxed))
		atomic_store_explicit(&peak.fork_peak_bytes, bytes, memory_order_relaxed);
	if (pool_bytes > atomic_load_explicit(&peak.fork_pool_bytes, memory_order_relaxed))
		atomic_store_explicit(&peak.fork_pool_bytes, pool_bytes, memory_order_relaxed);
}

/* ------------------------------------------------------------------ the beginning */

void hp_peak_begin(void)
{
	if (!hp_config.stats)
		return;
	hp_stats_keep();
	start.filters = filters();
	start.run.pid = hp_pid();
	start.run.rank = hp_rank();
	start.run.local_ranks = (uint64_t)hp_ranks_here();
	hp_line_text(&(struct hp_line){ start.run.name, start.run.name + sizeof start.run.name },
		     program_invocation_short_name);
	for (char *c = hp_text_tame(start.run.name); *c; c++)
		*c = *c == '\n' ? '?' : *c;
	hp_peak_on = true;
}

void hp_peak_child(void)
{
	if (!hp_peak_on)
		return;
	memset(&peak, 0, sizeof peak);
	start.run.pid = hp_pid();
	start.run.inherited_bytes = mapped_bytes();
	start.run.child = true;
}

/* ------------------------------------------------------------------ the end */

/* Called where the kernel may be asked. */
static void ask_kernel(struct hp_run *r)
{
	char text[4096];

	r->thp_off = !hp_map_thp_enabled();
	if (hp_read_file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", text, sizeof text) > 0)
		r->pool_pages = hp_number_after(text, "", 0);
	if (hp_read_file("/proc/meminfo", text, sizeof text) > 0)
		r->ram_bytes = hp_number_after(text, "MemTotal:", 0) << 10;
	if (hp_read_file("/proc/self/status", text, sizeof text) > 0)
		r->rss_peak_bytes = hp_number_after(text, "VmHWM:", 0) << 10;
}

/* The last look. If another thread looks just now, wait for it a while, but not for ever: a signal handler that calls
 * exit() may have interrupted this thread in a look, which then does not end. */
static void add_peak(struct hp_run *r)
{
	bool busy = false;

	for (int i = 0; i < 1000 && !(busy = become_busy()); i++)
		hp_sys(SYS_sched_yield);
	if (busy)
		look();
	r->fork_peak_bytes = atomic_load_explicit(&peak.fork_peak_bytes, memory_order_relaxed);
	r->fork_pool_bytes = atomic_load_explicit(&peak.fork_pool_bytes, memory_order_relaxed);
	/* The kernel's peak of the process includes copies and moved memory, so subtract them. */
	r->rss_peak_bytes -= HP_MIN(r->rss_peak_bytes, r->fork_peak_bytes);
	r->kinds_unknown = !peak.known && mapped_bytes();
	r->hugetlb_bytes = r->kinds_unknown ? r->heap.hugetlb_bytes - r->heap.reserved_bytes : peak.hugetlb_bytes;
	r->thp_bytes = r->kinds_unknown ? r->heap.thp_bytes : peak.thp_bytes;
	r->base_bytes = r->kinds_unknown ? r->heap.base_bytes : peak.base_bytes;
	r->large_min = r->large_max = hp_run_large_bytes(r);
	if (busy)
		be_free();
}

/* Collect the statistics of this process so far. False: nothing was asked for. */
static bool take_run(struct hp_run *r)
{
	void (*sums)(struct hp_pin_sums *) = hp_heap_hooks()->sums;

	/* A child that no fork handler knows of shares its parent's memory, or its numbers. */
	if (!hp_peak_on || hp_pid() != start.run.pid)
		return false;
	*r = start.run;
	r->ranks = 1;
	r->pages = (uint64_t)hp_config.pages;
	if (sums)
		sums(&r->pin);
	if (may_ask()) {
		hugepin_stats(&r->heap, sizeof r->heap);
		ask_kernel(r);
	} else {
		hp_stats_copy(&r->heap);
	}
	add_peak(r);
	r->small_bytes = !&hugepin_small_ || hp_config.small == HP_SMALL_NEXT ? HP_UNKNOWN :
			 r->heap.small_outside_bytes + (hp_config.small_pinned ? 0 : r->heap.small_bytes);
	return true;
}

size_t hugepin_summary(void *ret_run, size_t size)
{
	if (size >= sizeof(struct hp_run) && !take_run(ret_run))
		memset(ret_run, 0, sizeof(struct hp_run));
	return sizeof(struct hp_run);
}

void hugepin_summary_add(void *sum, const void *run)
{
	hp_run_add(sum, run);
}

size_t hugepin_summary_text(const void *run, char *text, size_t size)
{
	struct hp_line l = { text, text + size };

	if (!size)
		return 0;
	*text = '\0';
	if (((const struct hp_run *)run)->pid)
		hp_run_summary(&l, run);
	return (size_t)(l.at - text);
}

void hugepin_summary_told(void)
{
	peak.told = true;
}

static void write_file(const char *text, size_t len, const struct hp_run *r)
{
	static char path[4096 + 64]; /* 64: numbers for %p and %r */
	struct hp_line l = { path, path + sizeof path };
	struct rlimit limit;
	long fd;

	hp_rank_path(&l, hp_report_file(hp_config.stats), (int)r->pid, (int)r->rank);
	fd = l.at + 1 < l.end ? hp_open_own(path, O_CREAT) : -ENAMETOOLONG;
	if (fd < 0) {
		hp_say_unwritten("HUGEPIN_STATS", path, (int)-fd);
		return;
	}
	/* Writing more than RLIMIT_FSIZE allows would end the process by SIGXFSZ. */
	if (hp_sys(SYS_ftruncate, fd) || hp_sys(SYS_getrlimit, RLIMIT_FSIZE, &limit) ||
	    len > limit.rlim_cur || hp_sys(SYS_write, fd, text, len) != (long)len)
		hp_say("HUGEPIN_STATS: the file could not be written whole", NULL, SIZE_MAX);
	hp_sys(SYS_close, fd);
}

void hp_peak_end(void)
{
	static char text[16384];
	struct hp_line l = { text, text + sizeof text };
	struct hp_run r;

	if (!take_run(&r))
		return;
	/* Print nothing if the program did not use the heap: the library may be loaded for another reason. */
	if (peak.told)
		r.pin.domains = 0;
	if (!&hugepin_small_ && !r.heap.placed && !r.pin.domains)
		return;
	if (hp_report_file(hp_config.stats)) {
		hp_run_file(&l, &r);
		if (may_ask())
			write_file(text, (size_t)(l.at - text), &r);
	} else {
		if (hp_config.stats == HP_REPORT_LIST)
			hp_run_list(&l, &r);
		else if (!peak.told && hp_run_matters(&r))
			hp_run_summary(&l, &r);
		if (l.at > text)
			hp_stats_write_kept(text, (size_t)(l.at - text));
	}
}
