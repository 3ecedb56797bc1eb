/*
 * Threads: any. `busy` lets one thread look at a time; others go on without. Allocates nothing and takes no lock.
 */
#include "alloc/peak.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/describe.h"
#include "alloc/hold.h"
#include "alloc/small.h"
#include "alloc/start.h"
#include "base/config.h"
#include "base/rank.h"
#include "base/stats.h"
#include "base/summary.h"
#include "base/sys.h"
#include "base/there.h"
#include "base/thread.h"

#define THP "/sys/kernel/mm/transparent_hugepage/"

bool hp_peak_on;

static struct {
	_Atomic bool busy;
	bool told; /* the MPI layer has told what is to be told */
	/* relaxed, these three: become_busy() lets one thread in, by acquire */
	_Atomic uint64_t grown; /* the slow path looks when more than this is mapped */
	_Atomic uint64_t most; /* bytes at the peak */
	_Atomic uint64_t due_ns; /* when a look is allowed again */
	/* the thread that is busy writes these */
	uint64_t hugetlb_bytes, thp_bytes, base_bytes; /* of the heap, at the peak */
	uint64_t small_bytes; /* the most that small buffers had when somebody looked */
	bool known, small_known; /* the kernel has told at least once */
	/* What forks copied. moved_bytes changes from 0 while the process has one thread.
	 * relaxed: hp_heap_lock protects the writing by raise_to(); at exit, numbers. */
	_Atomic uint64_t fork_peak_bytes, fork_pool_bytes; /* the most of one fork, moved memory included */
	_Atomic uint64_t copy_bytes; /* the largest copy beside the originals */
	_Atomic uint64_t moved_bytes; /* moved out of the pool since the peak */
} peak;

/* The beginning of what is told. */
static struct {
	struct rusage usage;
	uint64_t ns, inherited_bytes;
	int rank /* -1: none */, local_ranks; /* 0: unknown */
	pid_t pid;
	int filters; /* PR_GET_SECCOMP: a container has a filter from the beginning */
	bool child;
	char name[32];
	char directory[4096]; /* for a relative path of JSON; "": there is none */
} start;

static uint64_t mapped_bytes(void)
{
	return HP_STAT_GET(hugetlb_bytes) + HP_STAT_GET(thp_bytes) + HP_STAT_GET(base_bytes);
}

static int filters(void)
{
	return (int)hp_sys(SYS_prctl, PR_GET_SECCOMP);
}

/* Whether the kernel may be asked: a filter of system calls may end the process for a file that is opened. The filter
 * under which the process started let the loader open files. A bare thread has our own filter, which allows a look
 * (decay.c). */
static bool may_ask(void)
{
	if (hp_thread_is_bare)
		return !hp_sandboxed;
	return !hp_sandboxed && filters() == start.filters;
}

/* What the kernel has for small buffers. The kernel is told of memory that jemalloc has freed only after a while. */
static void look_at_small(void)
{
	struct hp_there there = { 0, 0 };
	uintptr_t base;
	size_t size;

	if (!&hugepin_small_ || !hugepin_small_.range || !hugepin_small_.range(&base, &size) ||
	    !hp_there(base, base + size, &there))
		return;
	peak.small_bytes = HP_MAX(peak.small_bytes, there.huge + there.other);
	peak.small_known = true;
}

/* Ask the kernel what the heap has, and keep it if it is the most. Called by the thread that is busy. False: the kernel
 * does not tell. */
static bool look(void)
{
	uint64_t hugetlb = HP_STAT_GET(hugetlb_bytes) - HP_STAT_GET(reserved_bytes);
	struct hp_there there = { 0, 0 };

	if (hugetlb > mapped_bytes()) /* read between two changes */
		hugetlb = 0;
	if (!may_ask() || !hp_heap_there(&there))
		return false;
	peak.known = true;
	look_at_small();
	if (hugetlb + there.huge + there.other <= atomic_load_explicit(&peak.most, memory_order_relaxed))
		return true;
	peak.hugetlb_bytes = hugetlb;
	peak.thp_bytes = there.huge;
	peak.base_bytes = there.other;
	atomic_store_explicit(&peak.most, hugetlb + there.huge + there.other, memory_order_relaxed);
	atomic_store_explicit(&peak.moved_bytes, 0, memory_order_relaxed);
	return true;
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

static void look_soon(void)
{
	const uint64_t begin = hp_clock_ns(), mapped = mapped_bytes();
	uint64_t begin_thread, spent;
	bool may;

	if (begin < atomic_load_explicit(&peak.due_ns, memory_order_relaxed) || !become_busy())
		return;
	may = may_ask(); /* a filter of system calls may end the process for asking the thread's time, too */
	begin_thread = may ? hp_thread_ns() : 0;
	if (look())
		atomic_store_explicit(&peak.grown, mapped / 8 * 9, memory_order_relaxed);
	spent = may ? hp_thread_ns() - begin_thread : hp_clock_ns() - begin;
	/* relaxed: the thread that is busy alone writes it */
	atomic_store_explicit(&peak.due_ns,
			      hp_peak_due(atomic_load_explicit(&peak.due_ns, memory_order_relaxed), begin, spent),
			      memory_order_relaxed);
	be_free();
}

void hp_peak_grown(void)
{
	if (mapped_bytes() > atomic_load_explicit(&peak.grown, memory_order_relaxed))
		look_soon();
}

void hp_peak_leaving(void)
{
	if (mapped_bytes() > atomic_load_explicit(&peak.most, memory_order_relaxed))
		look_soon();
}

static void raise_to(_Atomic uint64_t *most, uint64_t bytes)
{
	if (bytes > atomic_load_explicit(most, memory_order_relaxed))
		atomic_store_explicit(most, bytes, memory_order_relaxed);
}

/* The kernel counts copies and moved memory in the most that the process had (VmHWM). */
void hp_peak_copied(uint64_t bytes, uint64_t pool_bytes, uint64_t moved_bytes)
{
	raise_to(&peak.fork_peak_bytes, bytes + moved_bytes);
	raise_to(&peak.fork_pool_bytes, pool_bytes + moved_bytes);
	raise_to(&peak.copy_bytes, bytes);
	if (moved_bytes) /* the process has one thread */
		atomic_store_explicit(&peak.moved_bytes,
				      atomic_load_explicit(&peak.moved_bytes, memory_order_relaxed) + moved_bytes,
				      memory_order_relaxed);
}

/* ------------------------------------------------------------------ the beginning */

void hp_peak_begin(void)
{
	const char *file = hp_report_file(hp_config.stats);

	if (!hp_config.stats)
		return;
	hp_stats_keep();
	start.ns = hp_clock_ns();
	start.pid = (pid_t)hp_sys(SYS_getpid);
	start.filters = filters();
	start.rank = hp_rank();
	start.local_ranks = hp_ranks_here();
	hp_sys(SYS_getrusage, RUSAGE_SELF, &start.usage);
	hp_summary_name(start.name, program_invocation_short_name);
	if (file && *file != '/' && hp_sys(SYS_getcwd, start.directory, sizeof start.directory) < 0)
		start.directory[0] = 0;
	hp_peak_on = true;
}

void hp_peak_child(void)
{
	if (!hp_peak_on)
		return;
	memset(&peak, 0, sizeof peak);
	memset(&start.usage, 0, sizeof start.usage);
	start.ns = hp_clock_ns();
	start.pid = (pid_t)hp_sys(SYS_getpid);
	start.inherited_bytes = mapped_bytes();
	start.child = true;
}

/* ------------------------------------------------------------------ the end */

static enum hp_thp ask_thp(void)
{
	char all[128], size[128];
	const bool has_all = hp_read_file(THP "enabled", all, sizeof all) > 0,
		   has_size = hp_read_file(THP "hugepages-2048kB/enabled", size, sizeof size) > 0;

	return hp_thp_judge(has_all ? all : NULL, has_size ? size : NULL, hp_sys(SYS_prctl, PR_GET_THP_DISABLE) == 1);
}

static void ask_kernel(struct hp_run *r)
{
	char text[4096];

	r->thp = ask_thp();
	if (hp_read_file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", text, sizeof text) > 0)
		r->pool_pages = hp_number_after(text, "", 0);
	if (hp_read_file("/proc/meminfo", text, sizeof text) > 0)
		r->ram_bytes = hp_number_after(text, "MemTotal:", 0) << 10;
	if (hp_read_file("/proc/self/status", text, sizeof text) > 0)
		r->rss_peak_bytes = hp_number_after(text, "VmHWM:", 0) << 10;
}

static uint64_t microseconds(const struct timeval *end, const struct timeval *begin)
{
	return (uint64_t)((end->tv_sec - begin->tv_sec) * 1000000 + end->tv_usec - begin->tv_usec);
}

static void add_times(struct hp_summary *s)
{
	struct rusage u;

	s->ns = hp_clock_ns() - start.ns;
	s->times_unknown = !may_ask() || hp_sys(SYS_getrusage, RUSAGE_SELF, &u) != 0;
	if (s->times_unknown)
		return;
	s->user_us = microseconds(&u.ru_utime, &start.usage.ru_utime);
	s->system_us = microseconds(&u.ru_stime, &start.usage.ru_stime);
	s->minor_faults = (uint64_t)(u.ru_minflt - start.usage.ru_minflt);
	s->major_faults = (uint64_t)(u.ru_majflt - start.usage.ru_majflt);
}

static void add_pins(struct hp_summary *s, const struct hp_pin_sums *pin)
{
	struct hp_run *r = &s->run;

	s->domains = pin->domains;
	/* Failed pins are among the misses, but not among the pins. */
	r->misses = pin->stats.misses - HP_MIN(pin->stats.nobufs, pin->stats.misses);
	r->pins = HP_MAX(pin->pins, r->misses);
	r->uncached = pin->stats.uncached;
	r->evicted = pin->stats.evicted;
	r->invalidated = pin->stats.invalidated;
	r->nobufs = pin->stats.nobufs;
	r->crowded = pin->stats.crowded;
	r->pinned_peak_bytes = pin->stats.pinned_peak_bytes;
	r->budget_bytes = pin->stats.bytes_max;
}

/* The last look. If another thread looks just now, wait for it a while. A signal handler that calls exit() may have
 * interrupted this thread in a look, which then does not end. */
static void add_peak(struct hp_run *r, const struct hugepin_stats *heap)
{
	bool busy = become_busy();

	for (int i = 0; i < 1000 && !busy; i++) {
		hp_sys(SYS_sched_yield);
		busy = become_busy();
	}
	if (busy)
		look();
	r->fork_peak_bytes = atomic_load_explicit(&peak.fork_peak_bytes, memory_order_relaxed);
	r->fork_pool_bytes = atomic_load_explicit(&peak.fork_pool_bytes, memory_order_relaxed);
	r->rss_copy_bytes = atomic_load_explicit(&peak.copy_bytes, memory_order_relaxed) +
			    atomic_load_explicit(&peak.moved_bytes, memory_order_relaxed);
	r->hugetlb_bytes = peak.hugetlb_bytes;
	r->thp_bytes = peak.thp_bytes;
	r->base_bytes = peak.base_bytes;
	r->kinds_unknown = !peak.known && mapped_bytes();
	if (busy)
		be_free();
	if (r->kinds_unknown) {
		r->hugetlb_bytes = heap->hugetlb_bytes - heap->reserved_bytes;
		r->thp_bytes = heap->thp_bytes;
		r->base_bytes = heap->base_bytes;
	}
}

/* Small buffers. If the kernel does not tell, it is the address space that jemalloc has taken. */
static void add_small(struct hp_summary *s, const struct hugepin_stats *heap)
{
	struct hp_run *r = &s->run;

	r->small_unknown = !&hugepin_small_ || hp_config.small == HP_SMALL_NEXT;
	s->small_inside = !r->small_unknown && hp_config.small_pinned;
	if (r->small_unknown)
		return;
	r->small_bytes = heap->small_outside_bytes;
	if (!s->small_inside)
		r->small_bytes += peak.small_known ? peak.small_bytes : heap->small_bytes;
}

static struct { uintptr_t start, end; } statics[4];

void hp_peak_static(uintptr_t begin, uintptr_t end)
{
	for (size_t i = 0; i < sizeof statics / sizeof statics[0]; i++)
		if (!statics[i].end) {
			statics[i].start = begin;
			statics[i].end = end;
			return;
		}
}

static void add_statics(struct hp_run *r)
{
	struct hp_there there = { 0, 0 };

	for (size_t i = 0; i < sizeof statics / sizeof statics[0]; i++)
		if (statics[i].end && !hp_there(statics[i].start, statics[i].end, &there))
			return;
	r->static_thp_bytes = there.huge;
	r->static_base_bytes = there.other;
}

/* What this process has to tell so far. */
static void collect(struct hp_summary *s, struct hugepin_stats *heap, struct hp_pin_sums *pin)
{
	void (*sums)(struct hp_pin_sums *) = hp_heap_hooks()->sums;
	struct hp_run *r = &s->run;

	*s = (struct hp_summary){ .pid = start.pid,
				  .rank = start.rank,
				  .child = start.child,
				  .inherited_bytes = start.inherited_bytes };
	memcpy(s->name, start.name, sizeof s->name);
	*pin = (struct hp_pin_sums){ .domains = 0 };
	if (sums)
		sums(pin);
	if (may_ask())
		hugepin_stats(heap, sizeof *heap);
	else
		hp_stats_copy(heap);
	r->pages = hp_config.pages;
	r->guard = hp_config.guard;
	r->local_ranks = (uint32_t)start.local_ranks;
	s->image_bytes = heap->image_bytes;
	s->image_left_bytes = heap->image_left_bytes;
	r->pool_short = heap->pool_short;
	r->placed = heap->placed;
	r->nomem = heap->nomem;
	r->pool_denied = heap->pool_denied;
	r->sparse_bytes = heap->sparse_bytes;
	if (may_ask()) {
		ask_kernel(r);
		add_statics(r);
	}
	add_times(s);
	add_pins(s, pin);
	add_peak(r, heap);
	add_small(s, heap);
}

bool hugepin_summary_(struct hp_summary *ret_, size_t size)
{
	struct hugepin_stats heap;
	struct hp_pin_sums pin;

	if (!hp_peak_on || size != sizeof *ret_ || (pid_t)hp_sys(SYS_getpid) != start.pid)
		return false;
	collect(ret_, &heap, &pin);
	return true;
}

void hugepin_summary_told_(void)
{
	peak.told = true;
}

/* Writing more than RLIMIT_FSIZE allows would end the process by SIGXFSZ. */
static bool may_write(size_t len)
{
	struct rlimit limit;

	return hp_sys(SYS_getrlimit, RLIMIT_FSIZE, &limit) != 0 || len <= limit.rlim_cur;
}

static void write_file(const char *text, size_t len, const struct hp_summary *s)
{
	static char path[4096 + 64]; /* 64: numbers for %p and %r */
	const char *file = hp_report_file(hp_config.stats);
	struct hp_line l = { path, path + sizeof path };
	int fd;

	if (*file != '/') {
		hp_line_text(&l, start.directory);
		hp_line_text(&l, "/");
	}
	hp_rank_path(&l, file, (int)s->pid, (int)s->rank);
	fd = l.at + 1 < l.end ? hp_open_own(path, O_CREAT) : -ENAMETOOLONG;
	if (fd == -EPERM) {
		hp_say("HUGEPIN_STATS: nothing is written: it takes a regular file of this user's, by its only name", NULL,
		       SIZE_MAX);
		return;
	}
	if (fd < 0) {
		hp_say_unwritten("HUGEPIN_STATS", path, -fd);
		return;
	}
	if (hp_sys(SYS_ftruncate, fd) != 0 || !may_write(len) || hp_sys(SYS_write, fd, text, len) != (long)len)
		hp_say("HUGEPIN_STATS: the file could not be written whole", NULL, SIZE_MAX);
	hp_sys(SYS_close, fd);
}

void hp_peak_end(void)
{
	static char text[16384];
	struct hp_line l = {text, text + sizeof text};
	struct hugepin_stats heap;
	struct hp_pin_sums pin;
	struct hp_summary s;

	/* A child that no fork handler knows of shares its parent's memory, or its numbers. */
	if (!hp_peak_on || (pid_t)hp_sys(SYS_getpid) != start.pid)
		return;
	collect(&s, &heap, &pin);
	/* Print nothing if the program did not use the heap: the library may be loaded for another reason. */
	if (peak.told)
		pin.domains = 0;
	if (!&hugepin_small_ && !heap.placed && !pin.domains)
		return;
	if (hp_report_file(hp_config.stats)) {
		hp_summary_json(&l, &s, &heap, pin.domains ? &pin : NULL);
		if (may_ask())
			write_file(text, (size_t)(l.at - text), &s);
	} else if (hp_config.stats == HP_REPORT_LIST) {
		hp_summary_list(&l, &s, &heap, pin.domains ? &pin : NULL);
		hp_stats_write_kept(text, (size_t)(l.at - text));
	} else if (!peak.told && hp_summary_matters(&s)) {
		hp_summary_text(&l, &s);
		hp_stats_write_kept(text, (size_t)(l.at - text));
	}
}
