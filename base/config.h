/*
 * Configuration: one table of environment variables, HP_OPTIONS, which the parser, `hugepin run`, `hugepin info` and
 * the check of hugepin(7) (tools/check-man) use.
 *
 * X(NAME, member, type, default, minimum, maximum, words, sentence)
 *  NAME      the variable is HUGEPIN_NAME; the option of `hugepin run` is --name, with - for _
 *  type      FLAG (0 or 1), NUM, SIZE (bytes, suffix K M G T), TIME (milliseconds, suffix ms or s), WORD, or PATH:
 *            the value is a const char *, or 0. REPORT: 0, 1 or 2, or a const char * to "file:FILE"
 *  words     for WORD: "first|second|..."; the value is the word's index. For NUM and SIZE: words accepted beside
 *            numbers; their values are -1, -2, ... Otherwise NULL
 * Numbers outside minimum..maximum are refused. For a PATH these are lengths in bytes, for a REPORT those of FILE.
 */
#ifndef HP_BASE_CONFIG_H
#define HP_BASE_CONFIG_H

#include <stddef.h>
#include <stdint.h>

enum { HP_PAGES_AUTO, HP_PAGES_HUGETLB, HP_PAGES_THP, HP_PAGES_BASE, HP_PAGES_1G };
enum { HP_NUMA_LOCAL = -1, HP_NUMA_INTERLEAVE = -2 }; /* or the number of a node */
enum { HP_POPULATE_AUTO, HP_POPULATE_ALL };
enum { HP_FORK_COPY, HP_FORK_COW };
enum { HP_SMALL_JEMALLOC, HP_SMALL_NEXT, HP_SMALL_MIMALLOC, HP_SMALL_TCMALLOC };
enum { HP_DEEPBIND_IGNORE, HP_DEEPBIND_KEEP };
enum { HP_IMAGE_OFF, HP_IMAGE_WANT_BSS, HP_IMAGE_WANT_DATA, HP_IMAGE_WANT_ALL };
enum { HP_HELPER_OFF, HP_HELPER_CONSERVATIVE, HP_HELPER_AGGRESSIVE };
enum { HP_PREDICT_AUTO, HP_PREDICT_SAVE, HP_PREDICT_BUDGET };
enum { HP_CPU_ANY = -1, HP_CPU_INHERIT = -2 }; /* or the number of a processor */
enum { HP_PIN_BUDGET_NONE = -1 };
enum { HP_ODP_NATIVE, HP_ODP_ENHANCED, HP_ODP_OPTIMAL };
enum { HP_POLICY_ARENA, HP_POLICY_LRU, HP_POLICY_CF11, HP_POLICY_PREDICT, HP_POLICY_ODP, HP_POLICY_NONE,
       HP_POLICY_HYBRID };

#define HP_OPTIONS(X) \
	X(PAGES, pages, WORD, HP_PAGES_AUTO, 0, 0, "auto|hugetlb|thp|base|1g", \
	  "kinds of memory to use: auto takes the hugetlb pool, then THP; base pages are always the last resort") \
	X(POPULATE, populate, WORD, HP_POPULATE_AUTO, 0, 0, "auto|all", \
	  "large buffers in the pool: pages of the pool are filled with zeros when a buffer is allocated, so auto " \
	  "takes THP for a buffer that would need more than a quarter of the free pages; all takes the pool") \
	X(NUMA, numa, NUM, HP_NUMA_LOCAL, 0, 1023, "local|interleave", \
	  "the NUMA node of the heap's memory; local: the node of the processor that first uses the memory") \
	X(FORK, fork_mode, WORD, HP_FORK_COPY, 0, 0, "copy|cow", \
	  "what a forked child gets of the pool's memory: a copy, or the kernel's copy-on-write") \
	X(SMALL, small, WORD, HP_SMALL_JEMALLOC, 0, 0, "jemalloc|next|mimalloc|tcmalloc", \
	  "the allocator for requests below 32 KiB in libhugepin-malloc.so: the built-in jemalloc, the next malloc, " \
	  "or a library that is loaded for this") \
	X(SMALL_PINNED, small_pinned, FLAG, 0, 0, 1, NULL, \
	  "1: the built-in jemalloc takes its memory from the heap, so that small buffers need no registration of " \
	  "their own") \
	X(DEEPBIND, deepbind, WORD, HP_DEEPBIND_IGNORE, 0, 0, "ignore|keep", \
	  "RTLD_DEEPBIND, with which a program opens modules: keep gives these modules the C library's malloc") \
	X(IMAGE, image, WORD, HP_IMAGE_OFF, 0, 0, "off|bss|data|all", \
	  "the parts of the program's image that libhugepin-malloc.so puts in THP at the start: bss; bss and data; or " \
	  "text, too") \
	X(SPAN, span, SIZE, 0, 4194304, INT64_C(1) << 42, NULL, \
	  "address space reserved for the heap; 0 means four times the memory, at least 64G") \
	X(EXTENT, extent_max, SIZE, 67108864, 2097152, INT64_C(1) << 30, NULL, \
	  "largest mapping made ahead of need, a power of two") \
	X(RESERVE, reserve, NUM, 0, 0, INT64_C(1) << 30, NULL, \
	  "hugepages to leave free in the pool, for the copies of forked children in the cow mode") \
	X(DECAY, decay_ms, TIME, 10000, 0, INT64_C(1) << 40, NULL, \
	  "the time that memory stays wholly free before the heap gives it back; 0 means never") \
	X(POLICY, policy, WORD, HP_POLICY_ARENA, 0, 0, "arena|lru|cf11|predict|odp|none|hybrid", \
	  "the policy of those domains of the pin cache that choose none: when memory is registered") \
	X(PIN_BUDGET, pin_budget, SIZE, 0, 0, INT64_C(1) << 50, "max", \
	  "memory that each domain of the pin cache may have registered whose program names no budget; 0: what may be " \
	  "locked, and what the device takes; max: no limit") \
	X(ODP, odp, WORD, HP_ODP_OPTIMAL, 0, 0, "native|enhanced|optimal", \
	  "when memory that is registered on demand is brought in: by the device's faults (native), once it is " \
	  "registered (enhanced), or by the phases of transfers (optimal)") \
	X(HELPER, helper, WORD, HP_HELPER_AGGRESSIVE, 0, 0, "off|conservative|aggressive", \
	  "the processes that have a helper thread; off: none; aggressive: all; conservative: while few cores are " \
	  "idle, only the user's processes that pin most") \
	X(HELPER_CPU, helper_cpu, NUM, HP_CPU_ANY, 0, 4095, "any|inherit", \
	  "the processors of the helper: any, those of the thread that opened the first domain (inherit), or one") \
	X(PREDICT_MODE, predict_mode, WORD, HP_PREDICT_AUTO, 0, 0, "auto|save|budget", \
	  "the aim of the policy predict: fewest bytes (save) or fewest misses (budget); auto: fewest misses if " \
	  "there is a budget, otherwise fewest bytes") \
	X(PREDICT_MEMORY, predict_memory, SIZE, 4194304, 65536, INT64_C(1) << 30, NULL, \
	  "memory that the policies cf11 and predict may use for each domain") \
	X(ABORT, abort_on_misuse, FLAG, 1, 0, 1, NULL, \
	  "1: a wrong or doubly freed pointer of a large buffer stops the program; 0: it is reported and ignored") \
	X(TRACE, trace, PATH, 0, 1, 4095, NULL, \
	  "file for the events of the pin cache, which hugepin plot reads; %p in the path stands for the number of " \
	  "the process, %r for its rank under MPI") \
	X(STATS, stats, REPORT, 0, 1, 4090, NULL, \
	  "1: print a summary on stderr at exit; 2: print all counters that are not 0; file:FILE: write all " \
	  "that is known to FILE, for hugepin stats; in its name %p is the process number and %r the MPI rank")

enum hp_option_type { HP_FLAG, HP_NUM, HP_SIZE, HP_TIME, HP_WORD, HP_PATH, HP_REPORT };

/* The values of a REPORT. Any other value is a pointer to its text. */
enum { HP_REPORT_OFF, HP_REPORT_SUMMARY, HP_REPORT_LIST };

struct hp_option {
	const char *name; /* HUGEPIN_... */
	enum hp_option_type type;
	int64_t def, min, max;
	const char *words, *sentence;
	size_t offset; /* offset of the option's int64_t in struct hp_config */
};

struct hp_config {
#define HP_OPTION_MEMBER(NAME, member, ...) int64_t member;
	HP_OPTIONS(HP_OPTION_MEMBER)
#undef HP_OPTION_MEMBER
};

extern const struct hp_option hp_options[];
extern const int hp_options_count;

/* The configuration in force: the defaults until hp_config_load() has run, and read-only afterwards. */
extern struct hp_config hp_config;

/* Read the HUGEPIN_* variables as secure_getenv() does, at the first call only. Prints one line on stderr for each
 * malformed value or unknown name. Allocates nothing. Returns 0, or -1 if it is too early: the C library has not set
 * `environ` yet, or another thread is reading. */
int hp_config_load(void);

/* In the child of fork, where a thread that was reading no longer exists. */
void hp_config_child(void);

/* Parse one value. Returns 0 and *ret_value, or -1. Pure. The value of a PATH, and of a REPORT to a file,
 * is `text` itself. */
int hp_option_parse(const struct hp_option *o, const char *text, int64_t *ret_value);

/* The FILE of a REPORT. NULL: the value is not a pointer. */
const char *hp_report_file(int64_t value);

/* Append a value of option o as a user would write it: a size with the largest suffix that leaves a whole number.
 * Pure. */
struct hp_line;
void hp_line_option(struct hp_line *l, const struct hp_option *o, int64_t value);

/* Write to buf which values option o accepts ("0 or 1", "one of auto, hugetlb", "a size from 4M to 4T"). Returns buf.
 * Pure. */
char *hp_option_accepts(const struct hp_option *o, char *buf, size_t size);

#endif
