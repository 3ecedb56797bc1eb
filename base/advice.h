/*
 * Advice: one sentence about a run of a program: whether hugepages helped, and if not, why not. The statistics at exit
 * and the command use these rules. Pure: numbers in, a code and a sentence out.
 */
#ifndef HP_BASE_ADVICE_H
#define HP_BASE_ADVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"

/* Whether this process can have transparent hugepages of 2 MiB by madvise(2). */
enum hp_thp {
	HP_THP_UNKNOWN, /* there is no sysfs */
	HP_THP_ALLOWED,
	HP_THP_NEVER, /* transparent_hugepage/enabled, and no size overrides it */
	HP_THP_SIZE, /* hugepages-2048kB/enabled is "never" */
	HP_THP_PROCESS, /* prctl(PR_SET_THP_DISABLE), in the process or before it was started */
};

/* The facts of one run. 0 means none, or not known, if the comment says nothing else. */
struct hp_run {
	/* Memory of large buffers at their peak, by the kind of page in which the kernel has it. Memory that was never
	 * touched is in none. */
	uint64_t hugetlb_bytes, thp_bytes, base_bytes;
	bool kinds_unknown; /* the kernel did not tell the kinds, and the three above are what it was asked for */
	uint64_t small_bytes; /* memory of small buffers, at their peak */
	bool small_unknown; /* their malloc does not tell */
	/* Memory of the program's own bss and data at the end that was touched, where they are whole hugepages: in THP
	 * and in base pages. */
	uint64_t static_thp_bytes, static_base_bytes;
	/* The most memory that the process had, without hugetlb pages: VmHWM of /proc/PID/status, or ru_maxrss. */
	uint64_t rss_peak_bytes;
	/* Of rss_peak_bytes: copies for children of fork, and large buffers that a fork moved out of the pool after their
	 * peak, so that hugetlb_bytes has them, too. */
	uint64_t rss_copy_bytes;
	uint64_t fork_peak_bytes; /* the most that one fork copied */
	uint64_t fork_pool_bytes; /* the most that one fork copied only since it lay in the pool */
	uint64_t ram_bytes; /* MemTotal */
	int64_t pages; /* HUGEPIN_PAGES: HP_PAGES_AUTO ... */
	bool guard; /* HUGEPIN_GUARD=1 */
	enum hp_thp thp;
	uint64_t pool_pages; /* hugepages of 2 MiB in the pool, free or not */
	uint64_t pool_short, pool_denied, placed, nomem, sparse_bytes; /* counters of struct hugepin_stats */
	/* sums over all domains of the pin cache; pins: 0 without a domain */
	uint64_t pins, misses, uncached, evicted, invalidated, nobufs; /* pins and misses: without those of nobufs */
	uint64_t crowded;
	uint64_t pinned_peak_bytes, budget_bytes;
	/* Under MPI: the numbers are sums over so many ranks, and so many ranks run on this machine. */
	uint32_t ranks, local_ranks;
};

/* X(CODE, name). The name is for programs, in the JSON of HUGEPIN_STATS. */
#define HP_VERDICTS(X) \
	X(LITTLE, "little-memory") /* so few bytes that no kind of page matters */ \
	X(SMALL, "mostly-small") \
	X(NO_ROOM, "no-room") /* the heap could serve few of the large requests: a limit leaves no addresses */ \
	X(NO_HEAP, "no-heap") /* only the pin cache was used: nobody preloaded or called the heap */ \
	X(FORK, "fork-copied") /* a fork copied much memory of the pool */ \
	X(ELSEWHERE, "not-malloc") /* most memory is not malloc's: the program, or its runtime, maps it */ \
	X(STATIC, "static-memory") /* most memory is the program's bss and data */ \
	X(UNKNOWN, "unknown") /* the kernel does not tell the kinds of page */ \
	X(ASKED_BASE, "base-pages-asked") /* HUGEPIN_PAGES=base or HUGEPIN_GUARD=1 */ \
	X(SPARSE, "touched-little") /* the program touches little of its large buffers */ \
	X(POOL_EMPTY, "pool-empty") \
	X(POOL_SHORT, "pool-short") /* it served a part */ \
	X(POOL_DENIED, "pool-denied") /* a cgroup or a memory policy kept its pages back */ \
	X(THP_NEVER, "thp-never") \
	X(THP_SIZE, "thp-size") \
	X(THP_PROCESS, "thp-process") \
	X(THP_SHORT, "thp-short") /* THP is allowed, and the kernel did not give it */ \
	X(HUGE, "huge") /* large buffers lay in hugepages */ \
	X(PIN_BUDGET, "pin-budget") /* pins failed, or missed, for lack of room */ \
	X(PIN_COUNT, "pin-count") /* the same, for lack of registrations: slots of io_uring, say */ \
	X(PIN_UNCACHED, "pin-uncached") \
	X(PIN_LOST, "pin-lost") /* memory went away between its pins */ \
	X(PIN_ONCE, "pin-once") /* most memory was pinned once */

enum hp_verdict {
#define HP_VERDICT_CODE(CODE, name) HP_VERDICT_##CODE,
	HP_VERDICTS(HP_VERDICT_CODE)
#undef HP_VERDICT_CODE
};

/* Below this, all memory together is too little to gain from, and the statistics at exit say nothing of a process that
 * has no pin cache. */
#define HP_LITTLE_BYTES ((uint64_t)8 << 20)

/* Bytes of large buffers, and of all memory of the process, at its peak. */
uint64_t hp_run_large_bytes(const struct hp_run *r);
uint64_t hp_run_all_bytes(const struct hp_run *r);

/* Judge a run. */
enum hp_verdict hp_verdict(const struct hp_run *r);

/* The code's name. */
const char *hp_verdict_name(enum hp_verdict v);

/* Write the sentence for hp_verdict(r), without a line feed or a full stop. It fits 240 bytes; a shorter buffer gets
 * the beginning. Returns buf. */
char *hp_verdict_text(const struct hp_run *r, char *buf, size_t size);

/* The kind of THP that the process can have. all, size: the text of transparent_hugepage/enabled and of
 * transparent_hugepage/hugepages-2048kB/enabled, such as "always [madvise] never"; NULL: no such file. disabled: by
 * prctl. */
enum hp_thp hp_thp_judge(const char *all, const char *size, bool disabled);

/* Append a size as people write it: "298 MiB", "1.2 GiB", "16 KiB", "0". */
struct hp_line;
void hp_line_size(struct hp_line *l, uint64_t bytes);

/* Append how much part is of whole, rounded down: "98 %". A part below 1 % that is not 0 is "under 1 %". */
void hp_line_percent(struct hp_line *l, uint64_t part, uint64_t whole);

#endif
