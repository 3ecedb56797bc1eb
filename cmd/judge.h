/*
 * The rules of `hugepin check`: which of two variants of a program is better, and how sure that is. Pure: measurements
 * in, a judgement and sentences out.
 */
#ifndef HP_CMD_JUDGE_H
#define HP_CMD_JUDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HP_ROUNDS_MAX 100
#define HP_NOT_COUNTED UINT64_MAX

/* One run of the program, with all processes that it started. */
struct hp_trial {
	double wall_s, user_s, system_s;
	uint64_t minor_faults, major_faults, tlb_misses; /* HP_NOT_COUNTED: of the last the machine told nothing */
	uint64_t rss_bytes; /* of its largest process, at that process's peak; without the hugetlb pool's pages */
	int status; /* as of waitpid(2) */
	bool ended; /* false: the time limit ended it */
	unsigned left; /* processes that were still running when the program itself had ended */
};

/* The medians of several runs. */
struct hp_medians {
	double wall_s, cpu_s;
	uint64_t faults, rss_bytes, tlb_misses; /* of the last HP_NOT_COUNTED if a run's were not counted */
};
struct hp_medians hp_medians(const struct hp_trial *trial, unsigned count);

/* ------------------------------------------------------------------ comparing */

enum hp_sure { HP_UNSURE, HP_LIKELY, HP_SURE };

/* The comparison of n runs of A with n runs of B. */
struct hp_comparison {
	double ratio; /* median of A / median of B: above 1, B takes less */
	double low, high; /* 98 % confidence: the ratio is between these; 0 and HUGE_VAL if there are too few runs */
	double spread; /* the larger of the two: (longest - shortest) / median */
	int better; /* 1: B, -1: A, 0: neither, or it is not known */
	enum hp_sure sure; /* that `better` is right. HP_UNSURE: the runs do not tell */
	bool separate; /* each run of the better one took less than each run of the other */
};

/* A difference up to this share of the time counts as none. One of the two is better if all of the interval lies beyond
 * it, and neither if the interval holds nothing beyond twice of it. So more rounds always lead to one of these. */
#define HP_MARGIN 0.02

/* Compare n times of A with n of B by the rank sum test of Mann and Whitney. It needs no assumption on how times are
 * distributed, and an outlier counts no more than any other long run. n: up to HP_ROUNDS_MAX. */
struct hp_comparison hp_compare(const double *a, const double *b, unsigned n);

/* ------------------------------------------------------------------ judging */

/* What a user can have for nothing instead of hugepin. */
struct hp_other {
	const char *name, *called; /* for scripts and for people: "tunable", "glibc's tunable" */
	char how[300]; /* what stands before the program: "GLIBC_TUNABLES=... " */
	char absent[300]; /* why it was not measured; "": it was */
	const struct hp_trial *trial; /* `rounds` of them */
};
#define HP_OTHERS_MAX 3

/* The facts of the runs with and without hugepin. */
struct hp_measured {
	const struct hp_trial *without, *with; /* `rounds` of each */
	const struct hp_trial *first; /* a run with hugepin whose time does not count; NULL: none */
	unsigned rounds;
	const struct hp_other *other;
	unsigned others;
	/* Memory at the peak, by the kernel, of one process in one run. known: the heap told, and no process that is
	 * much larger did not. */
	bool known;
	uint64_t large_bytes, hugetlb_bytes, thp_bytes, other_bytes; /* other: memory that is in no large buffer */
	uint64_t image_bytes; /* of these, what HUGEPIN_IMAGE asked THP for */
	uint64_t rss_bytes; /* without the pool's pages */
	char why[256]; /* the heap's sentence for the largest process (base/summary.h); "" */
	bool sparse; /* it says that the process touches little of its large buffers */
	const char *small; /* the allocator that came with hugepin for small requests; NULL: none did */
	double fork_s; /* the longest that a fork stopped a process with memory of the pool; 0: none did */
	/* Rounds of HUGEPIN_PAGES=thp, and as many of the present choice, to compare them with. 0: not tried */
	const struct hp_trial *thp, *chosen;
	unsigned thp_rounds;
	double limit_s; /* the time limit */
	double busy; /* the share of the machine's processor time that others took meanwhile */
	const char *against, *options, *program; /* for the advice: "--against=tunable ", "--fork=cow ", "sort" */
	const char *note; /* what stands in the way of the program (cmd/target.h); "" */
	const char *tail; /* the last lines that the program printed before it failed; "" */
};

enum hp_answer {
	HP_ANSWER_YES,
	HP_ANSWER_ENOUGH, /* it gains, and not more than by what costs nothing */
	HP_ANSWER_SAME, /* nothing gained */
	HP_ANSWER_SLOWER,
	HP_ANSWER_UNSURE, /* the rounds do not tell */
	HP_ANSWER_LONG, /* too long for the time limit, or without end */
	HP_ANSWER_BREAKS, /* it fails with hugepin only */
	HP_ANSWER_FAILS, /* it fails without hugepin, too, or not always in the same way */
};

/* When the program fails: it is killed by a signal, or exits with another status than 0. */
enum hp_fails {
	HP_FAILS_NEVER,
	HP_FAILS_WITH, /* with hugepin only */
	HP_FAILS_WITHOUT, /* without hugepin, and ends in another way with it */
	HP_FAILS_BOTH, /* with hugepin and without, in the same way */
	HP_FAILS_VARIES, /* it ends in several ways without hugepin */
};

/* How long A and B take. */
struct hp_times {
	struct hp_comparison wall, cpu;
	bool by_cpu; /* the processor time decides, since the time itself does not differ or does not tell */
};

/* What the difference comes from, or why there is none. */
enum hp_why {
	HP_WHY_NOT_TOLD, /* the heap told nothing of the largest process */
	HP_WHY_TINY, /* and that process needed next to nothing */
	HP_WHY_HEAP, /* the heap's sentence */
	HP_WHY_ZEROS, /* large buffers lay in hugepages, and are mostly untouched */
	HP_WHY_CHEAP, /* large buffers lay in hugepages, to no avail */
	HP_WHY_LARGE, /* large buffers, or what there is of them */
	HP_WHY_IMAGE, /* HUGEPIN_IMAGE */
	HP_WHY_SMALL, /* the allocator for small requests */
};

struct hp_judgement {
	enum hp_answer answer;
	enum hp_sure sure;
	enum hp_fails fails;
	int status; /* of the run that fails, as of waitpid(2) */
	int other; /* of a run that ends in another way; HP_FAILS_BOTH: 0 */
	enum hp_why why;
	bool by_facts; /* no time decided, but the program has next to nothing that hugepages could serve */
	struct hp_times times; /* of the runs without and with hugepin */
	struct hp_times beside[HP_OTHERS_MAX]; /* of each alternative and hugepin */
	int ends[HP_OTHERS_MAX]; /* how the program ends with it, if otherwise than without; else 0 */
	int decides; /* the alternative that is enough, that may be (HP_ANSWER_UNSURE), or that gains as little as
		      * hugepin (HP_ANSWER_SAME); -1: none */
	struct hp_comparison thp; /* of `chosen` with `thp`; all 0 if that was not tried */
	bool thp_by_cpu;
};

struct hp_judgement hp_judge(const struct hp_measured *m);

/* The names for scripts: "yes", "same" ...; "with", "without" ... */
const char *hp_answer_name(enum hp_answer a);
const char *hp_fails_name(enum hp_fails f);

#define HP_SAY_MAX (7 + HP_OTHERS_MAX)
#define HP_SAY_SIZE 1024
/* Write lines for people. Returns their number. */
unsigned hp_judge_say(const struct hp_measured *m, const struct hp_judgement *j, char line[HP_SAY_MAX][HP_SAY_SIZE]);

#endif
