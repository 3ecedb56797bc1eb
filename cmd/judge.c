/*
 * The rules of `hugepin check`. The test is the rank sum test of Mann and Whitney (Annals of Mathematical Statistics
 * 18, 1947), with the exact distribution of U; the limits of the ratio are the matching order statistics of all
 * ratios of a run of A to a run of B (Hodges and Lehmann 1963).
 */
#include "cmd/judge.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/base.h"
#include "base/summary.h"
#include "cmd/text.h"

/* The chance of an error on one side, above which an answer is not "sure", or not "likely". */
#define SURE_ERROR 0.01
#define LIKELY_ERROR 0.05

#define BUSY 0.1 /* the share of the machine that others may take before it is told */
#define TAIL_LINES 3

/* A program that takes less than this may be slower only by what loading the library takes. */
#define FORK_S 0.05 /* a server that is stopped for so long is late with its answers */
#define SHORT_S 0.2
#define START_S 0.01

/* ------------------------------------------------------------------ numbers */

static int ascending(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *value, unsigned n)
{
	if (!n)
		return 0;
	qsort(value, n, sizeof *value, ascending);
	return (value[(n - 1) / 2] + value[n / 2]) / 2;
}

static double wall_of(const struct hp_trial *t)
{
	return t->wall_s;
}

static double cpu_of(const struct hp_trial *t)
{
	return t->user_s + t->system_s;
}

struct hp_medians hp_medians(const struct hp_trial *trial, unsigned count)
{
	double wall[HP_ROUNDS_MAX], cpu[HP_ROUNDS_MAX], faults[HP_ROUNDS_MAX], rss[HP_ROUNDS_MAX], tlb[HP_ROUNDS_MAX];
	bool counted = true;

	for (unsigned i = 0; i < count; i++) {
		wall[i] = trial[i].wall_s;
		cpu[i] = cpu_of(&trial[i]);
		faults[i] = (double)(trial[i].minor_faults + trial[i].major_faults);
		rss[i] = (double)trial[i].rss_bytes;
		tlb[i] = (double)trial[i].tlb_misses;
		counted = counted && trial[i].tlb_misses != HP_NOT_COUNTED;
	}
	return (struct hp_medians){ median(wall, count), median(cpu, count), (uint64_t)median(faults, count),
				    (uint64_t)median(rss, count),
				    counted ? (uint64_t)median(tlb, count) : HP_NOT_COUNTED };
}

/* Of the n * n pairs of a run of A and a run of B: the largest number k so that, if A and B were the same, fewer than k
 * pairs would have the longer run in A with a probability of at most `error`. 0: even no such pair is too probable.
 *
 * count[u]: the ways to order i runs of A and j of B in which u pairs have the longer run in A. The last run in order
 * is either of A, and is longer than j others, or of B. */
static unsigned quantile(unsigned n, double error)
{
	const unsigned pairs = n * n;
	double *const chance = calloc((size_t)(n + 1) * (pairs + 1), sizeof *chance);
	double sum = 0;
	unsigned k = 0;

	if (!chance)
		return 0;
	/* chance[j * (pairs + 1) + u], of i runs of A and j of B, for i = 0 first: no pair at all */
	for (unsigned j = 0; j <= n; j++)
		chance[j * (pairs + 1)] = 1;
	for (unsigned i = 1; i <= n; i++)
		for (unsigned j = 1; j <= n; j++)
			for (unsigned u = pairs + 1; u-- > 0;) {
				double *const at = &chance[j * (pairs + 1) + u];
				const double from_a = u >= j ? at[-(int)j] : 0, from_b = at[-(int)(pairs + 1)];
				*at = (i * from_a + j * from_b) / (i + j);
			}
	while (k <= pairs && (sum += chance[n * (pairs + 1) + k]) <= error + 1e-9)
		k++;
	free(chance);
	return k;
}

static double spread(double *value, unsigned n)
{
	const double middle = median(value, n); /* sorts */

	return middle > 0 ? (value[n - 1] - value[0]) / middle : 0;
}

/* Which is better, where the ratio is between low and high. */
static bool decided(double low, double high, int *ret_better)
{
	*ret_better = (low > 1 + HP_MARGIN) - (high < 1 / (1 + HP_MARGIN));
	return *ret_better || (low > 1 / (1 + 2 * HP_MARGIN) && high < 1 + 2 * HP_MARGIN);
}

struct hp_comparison hp_compare(const double *a, const double *b, unsigned n)
{
	struct hp_comparison c = { .high = HUGE_VAL };
	double x[HP_ROUNDS_MAX], y[HP_ROUNDS_MAX], *ratio;
	const unsigned pairs = n * n, sure = quantile(n, SURE_ERROR), likely = quantile(n, LIKELY_ERROR);

	if (!n)
		return c;
	memcpy(x, a, n * sizeof *x);
	memcpy(y, b, n * sizeof *y);
	c.spread = fmax(spread(x, n), spread(y, n)); /* x and y are sorted now */
	const double middle = median(y, n);
	c.ratio = middle > 0 ? median(x, n) / middle : 1;
	ratio = calloc(pairs, sizeof *ratio);
	if (!ratio)
		return c;
	for (unsigned i = 0; i < pairs; i++)
		ratio[i] = y[i % n] > 0 ? x[i / n] / y[i % n] : 1;
	qsort(ratio, pairs, sizeof *ratio, ascending);
	if (sure) {
		c.low = ratio[sure - 1];
		c.high = ratio[pairs - sure];
	}
	if (sure && decided(c.low, c.high, &c.better))
		c.sure = HP_SURE;
	else if (likely && decided(ratio[likely - 1], ratio[pairs - likely], &c.better))
		c.sure = HP_LIKELY;
	c.separate = (c.better > 0 && ratio[0] > 1) || (c.better < 0 && ratio[pairs - 1] < 1);
	free(ratio);
	return c;
}

static struct hp_comparison compare(const struct hp_trial *a, const struct hp_trial *b, unsigned n,
				    double (*time_of)(const struct hp_trial *))
{
	double x[HP_ROUNDS_MAX] = { 0 }, y[HP_ROUNDS_MAX] = { 0 };

	for (unsigned i = 0; i < n; i++) {
		x[i] = time_of(&a[i]);
		y[i] = time_of(&b[i]);
	}
	return hp_compare(x, y, n);
}

/* ------------------------------------------------------------------ the answer */

/* Look at how the runs ended. A program that fails is not compared: nobody knows how much of its work it did. */
static void judge_statuses(const struct hp_measured *m, struct hp_judgement *j)
{
	const int expected = m->without[0].status;

	j->fails = expected ? HP_FAILS_BOTH : HP_FAILS_NEVER;
	j->status = expected;
	for (unsigned i = m->rounds + (m->first != NULL); i-- > 0;) {
		const int status = i < m->rounds ? m->with[i].status : m->first->status;
		if (status != expected) {
			j->fails = expected ? HP_FAILS_WITHOUT : HP_FAILS_WITH;
			j->status = expected ? expected : status;
			j->other = expected ? status : 0;
		}
	}
	for (unsigned i = m->rounds; i-- > 0;)
		if (m->without[i].status != expected) {
			j->fails = HP_FAILS_VARIES;
			j->status = expected ? expected : m->without[i].status;
			j->other = expected ? m->without[i].status : 0;
		}
	for (unsigned i = m->rounds; i-- > 0;)
		for (unsigned k = 0; k < m->others; k++)
			if (!m->other[k].absent[0] && m->other[k].trial[i].status != expected)
				j->ends[k] = m->other[k].trial[i].status;
}

/* Whether large buffers are a part of the program's memory that counts. */
static bool large_count(const struct hp_measured *m)
{
	return m->large_bytes >= HP_LITTLE_BYTES && m->large_bytes >= m->other_bytes / 9;
}

static uint64_t huge_bytes(const struct hp_measured *m)
{
	return m->hugetlb_bytes + m->thp_bytes;
}

/* Whether the program has so little in large buffers, or in hugepages, that these cannot matter. A hugepage saves up to
 * 511 page faults, so faults that stay tell the same where the heap told nothing: the program may have ended by
 * _exit(2). */
static bool has_little(const struct hp_measured *m, uint64_t faults_without, uint64_t faults_with)
{
	if (faults_with < faults_without / 5 * 4)
		return false;
	return !m->known || !large_count(m) || huge_bytes(m) < m->large_bytes / 10;
}

static enum hp_why why_of(const struct hp_measured *m, enum hp_answer answer)
{
	const bool gains = answer <= HP_ANSWER_ENOUGH,
		   helped = large_count(m) && huge_bytes(m) >= m->large_bytes / 10 * 9;

	if (!m->known)
		return hp_medians(m->with, m->rounds).rss_bytes < HP_LITTLE_BYTES ? HP_WHY_TINY : HP_WHY_NOT_TOLD;
	if (m->sparse) /* what helps it is not hugepages */
		return HP_WHY_HEAP;
	if (!gains && helped && hp_medians(m->without, m->rounds).rss_bytes < huge_bytes(m) / 2)
		return HP_WHY_ZEROS;
	if (helped && answer == HP_ANSWER_SAME)
		return HP_WHY_CHEAP;
	if (!gains && !helped && m->why[0])
		return HP_WHY_HEAP;
	if (gains && !large_count(m) && m->image_bytes >= HP_LITTLE_BYTES)
		return HP_WHY_IMAGE;
	return gains && !large_count(m) && m->small ? HP_WHY_SMALL : HP_WHY_LARGE;
}

/* The time decides. If it is the same, or tells less surely, the processor time does: other programs get what is
 * saved, and it is less noisy on a busy machine. A difference counts against the time, of which a program that waits
 * needs next to none on a processor. */
static struct hp_times times_of(const struct hp_trial *a, const struct hp_trial *b, unsigned n)
{
	struct hp_times t = { compare(a, b, n, wall_of), compare(a, b, n, cpu_of), false };
	const struct hp_medians x = hp_medians(a, n), y = hp_medians(b, n);
	const bool much = fabs(x.cpu_s - y.cpu_s) >= x.wall_s / 100;

	if (t.wall.sure < t.cpu.sure)
		t.by_cpu = !t.cpu.better || much;
	else
		t.by_cpu = !t.wall.better && t.cpu.sure && t.cpu.better && much;
	return t;
}

static const struct hp_comparison *decisive(const struct hp_times *t)
{
	return t->by_cpu ? &t->cpu : &t->wall;
}

/* The answer on what gains, beside one alternative. The burden of proof is hugepin's. */
static enum hp_answer beside(const struct hp_measured *m, const struct hp_times *times, unsigned i, enum hp_sure *ret_sure)
{
	const struct hp_comparison *const c = decisive(times);

	*ret_sure = c->sure;
	if (!c->sure)
		return HP_ANSWER_UNSURE;
	if (c->better)
		return c->better > 0 ? HP_ANSWER_YES : HP_ANSWER_ENOUGH;
	const struct hp_times own = times_of(m->without, m->other[i].trial, m->rounds);
	const struct hp_comparison *const gain = decisive(&own);
	*ret_sure = HP_MIN(c->sure, gain->sure);
	if (!gain->sure)
		return HP_ANSWER_UNSURE;
	return gain->better > 0 ? HP_ANSWER_ENOUGH : HP_ANSWER_SAME;
}

/* Compare what gains with each alternative. Of several that are enough the fastest is named, and one that is enough
 * decides whatever the rounds tell of others. */
static void judge_others(const struct hp_measured *m, struct hp_judgement *j)
{
	static const int weight[] = {
		[HP_ANSWER_YES] = 0, [HP_ANSWER_SAME] = 1, [HP_ANSWER_UNSURE] = 2, [HP_ANSWER_ENOUGH] = 3
	};
	const bool gains = j->answer == HP_ANSWER_YES;
	const enum hp_sure gain = j->sure;
	double least_s = HUGE_VAL;

	for (unsigned i = 0; i < m->others; i++) {
		enum hp_sure sure;
		if (m->other[i].absent[0] || j->ends[i])
			continue;
		j->beside[i] = times_of(m->other[i].trial, m->with, m->rounds);
		if (!gains)
			continue;
		const enum hp_answer answer = beside(m, &j->beside[i], i, &sure);
		const double wall_s = hp_medians(m->other[i].trial, m->rounds).wall_s;
		if (weight[answer] > weight[j->answer] || (answer == HP_ANSWER_ENOUGH && wall_s < least_s)) {
			j->answer = answer;
			j->sure = HP_MIN(gain, sure);
			j->decides = (int)i;
			least_s = answer == HP_ANSWER_ENOUGH ? wall_s : least_s;
		} else if (j->answer == HP_ANSWER_YES) {
			j->sure = HP_MIN(j->sure, sure);
		}
	}
}

struct hp_judgement hp_judge(const struct hp_measured *m)
{
	static const enum hp_answer answers[] = { HP_ANSWER_SLOWER, HP_ANSWER_SAME, HP_ANSWER_YES };
	struct hp_judgement j = { .answer = HP_ANSWER_LONG, .decides = -1 };

	if (!m->rounds)
		return j;
	for (unsigned i = 0; i < m->rounds; i++)
		if (!m->without[i].ended || !m->with[i].ended)
			return j;
	judge_statuses(m, &j);
	if (j.fails) {
		j.answer = j.fails == HP_FAILS_WITH ? HP_ANSWER_BREAKS : HP_ANSWER_FAILS;
		j.sure = j.fails == HP_FAILS_WITH && m->rounds > 1 ? HP_SURE : HP_LIKELY;
		return j;
	}
	j.times = times_of(m->without, m->with, m->rounds);
	if (m->thp_rounds) {
		const struct hp_comparison cpu = compare(m->chosen, m->thp, m->thp_rounds, cpu_of);
		j.thp = compare(m->chosen, m->thp, m->thp_rounds, wall_of);
		j.thp_by_cpu = cpu.sure > j.thp.sure;
		if (j.thp_by_cpu)
			j.thp = cpu;
	}
	const struct hp_comparison *const by = decisive(&j.times);
	j.answer = by->sure ? answers[by->better + 1] : HP_ANSWER_UNSURE;
	j.sure = by->sure;
	if (j.answer == HP_ANSWER_UNSURE &&
	    has_little(m, hp_medians(m->without, m->rounds).faults, hp_medians(m->with, m->rounds).faults)) {
		j.by_facts = true;
		j.answer = HP_ANSWER_SAME;
		j.sure = HP_LIKELY;
	}
	judge_others(m, &j);
	j.why = why_of(m, j.answer);
	return j;
}

const char *hp_answer_name(enum hp_answer a)
{
	static const char *const names[] = {
		[HP_ANSWER_YES] = "yes",       [HP_ANSWER_ENOUGH] = "enough",
		[HP_ANSWER_SAME] = "same",     [HP_ANSWER_SLOWER] = "slower",
		[HP_ANSWER_UNSURE] = "unsure", [HP_ANSWER_LONG] = "long", [HP_ANSWER_BREAKS] = "breaks",
		[HP_ANSWER_FAILS] = "fails",
	};

	return names[a];
}

const char *hp_fails_name(enum hp_fails f)
{
	static const char *const names[] = {
		[HP_FAILS_NEVER] = "never", [HP_FAILS_WITH] = "with", [HP_FAILS_WITHOUT] = "without",
		[HP_FAILS_BOTH] = "both",   [HP_FAILS_VARIES] = "varies",
	};

	return names[f];
}

/* ------------------------------------------------------------------ sentences */

struct sentence {
	char *text;
	size_t len;
};

__attribute__((format(printf, 2, 3))) static void add(struct sentence *s, const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(s->text + s->len, HP_SAY_SIZE - s->len, format, args);
	va_end(args);
	s->len = HP_MIN(s->len + (size_t)HP_MAX(n, 0), HP_SAY_SIZE - 1);
}

static void add_seconds(struct sentence *s, double seconds)
{
	if (seconds < 0.1)
		add(s, "%.1f ms", seconds * 1e3);
	else
		add(s, "%.*f s", seconds < 10 ? 3 : 1, seconds);
}

static void add_bytes(struct sentence *s, uint64_t bytes)
{
	char buf[HP_TEXT_MAX];

	add(s, "%s", hp_text_bytes(bytes, buf));
}

/* 131842 -> "131,842" */
static void add_count(struct sentence *s, uint64_t count)
{
	if (count >= 1000) {
		add_count(s, count / 1000);
		add(s, ",%03" PRIu64, count % 1000);
	} else {
		add(s, "%" PRIu64, count);
	}
}

/* "is 1.80 times as fast", "takes 5 % less time". cpu: always the latter, of processor time. */
static void add_ratio(struct sentence *s, double ratio, bool cpu)
{
	const bool gains = ratio >= 1;
	const double times = gains ? ratio : 1 / ratio;

	if (cpu || times < 1.2)
		add(s, "takes %.0f %% %s %stime", (gains ? 1 - 1 / times : times - 1) * 100, gains ? "less" : "more",
		    cpu ? "processor " : "");
	else
		add(s, "is %.*f times as %s", times < 9.95 ? 2 : 0, times, gains ? "fast" : "slow");
}

static void add_status(struct sentence *s, int status)
{
	if (WIFSIGNALED(status))
		add(s, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		add(s, "exit status %d", WEXITSTATUS(status));
}

static void add_percent(struct sentence *s, uint64_t part, uint64_t whole)
{
	const double percent = whole ? (double)part * 100 / (double)whole : 0;

	add(s, "%.0f %%", part < whole ? fmin(percent, 99) : percent);
}

static void add_median(struct sentence *s, const struct hp_trial *t, unsigned rounds, bool cpu)
{
	const struct hp_medians m = hp_medians(t, rounds);

	add_seconds(s, cpu ? m.cpu_s : m.wall_s);
}

/* "2.310 s without, 1.300 s with mimalloc, 1.280 s with hugepin (medians of 5 rounds each)". other: NULL: none */
static void add_times(struct sentence *s, const struct hp_measured *m, const struct hp_other *other, bool cpu)
{
	add_median(s, m->without, m->rounds, cpu);
	add(s, " without, ");
	if (other) {
		add_median(s, other->trial, m->rounds, cpu);
		add(s, " with %s, ", other->called);
	}
	add_median(s, m->with, m->rounds, cpu);
	add(s, other ? " with hugepin" : " with");
	if (m->rounds > 1)
		add(s, " (medians of %u rounds each)", m->rounds);
	else
		add(s, " (one round)");
}

static void say_sure(struct sentence *s, const struct hp_measured *m, const struct hp_judgement *j)
{
	const bool beside = j->decides >= 0;
	const struct hp_times *const t = beside ? &j->beside[j->decides] : &j->times;
	const struct hp_comparison *const c = decisive(t);

	if (j->by_facts) {
		add(s, "how sure: likely, by its memory and faults; ");
		if (m->rounds > 1)
			add(s, "its times do not tell: equal rounds differ by %.0f %%", t->wall.spread * 100);
		else
			add(s, "there was time for one round");
		return;
	}
	add(s, "how sure: %s", j->sure == HP_SURE ? "sure" : "likely, more rounds (-n) may tell");
	if (c->separate && !beside)
		add(s, "; each round %s took less than each round %s", c->better > 0 ? "with it" : "without it",
		    c->better > 0 ? "without it" : "with it");
	if (c->low > 0)
		add(s, "; between %.2f and %.2f times as fast%s%s, with 98 %% confidence", c->low, c->high,
		    beside ? " as by " : "", beside ? m->other[j->decides].called : "");
	if (t->by_cpu && t->wall.better == 0 && t->wall.sure)
		add(s, "; the time from start to end is the same");
	else if (t->by_cpu)
		add(s, "; the time from start to end tells less, its rounds differ by %.0f %%", t->wall.spread * 100);
}

/* Hugepin beside what costs nothing. */
static void say_beside(struct sentence *s, const struct hp_measured *m, const struct hp_judgement *j, unsigned i)
{
	static const char *const sure[] = { "unsure", "likely", "sure" };
	const struct hp_other *const o = &m->other[i];
	const struct hp_times *const t = &j->beside[i];
	const struct hp_comparison *const c = decisive(t);

	add(s, "beside %s: ", o->called);
	if (o->absent[0]) {
		add(s, "not measured, %s", o->absent);
	} else if (j->ends[i]) {
		add(s, "the program fails with it: ");
		add_status(s, j->ends[i]);
	} else {
		add_median(s, o->trial, m->rounds, t->by_cpu);
		add(s, "%s, ", t->by_cpu ? " of processor time" : "");
		add_bytes(s, hp_medians(o->trial, m->rounds).rss_bytes);
		add(s, "; with hugepin it ");
		add_ratio(s, c->ratio, t->by_cpu);
		if (c->low > 0)
			add(s, ", %s: %.2f to %.2f times as fast", sure[c->sure], c->low, c->high);
		else
			add(s, ", %s", sure[c->sure]);
	}
}

static bool forks_stop(const struct hp_measured *m)
{
	return m->fork_s >= FORK_S;
}

static void say_why(struct sentence *s, const struct hp_measured *m, const struct hp_judgement *j)
{
	const struct hp_medians a = hp_medians(m->without, m->rounds), b = hp_medians(m->with, m->rounds);

	add(s, "why: ");
	if (j->answer == HP_ANSWER_SLOWER && !j->times.by_cpu && a.wall_s < SHORT_S && b.wall_s - a.wall_s < START_S) {
		add(s, "it is short, and to load hugepin takes ");
		add_seconds(s, b.wall_s - a.wall_s);
		add(s, " of each start; ");
	} else if (j->answer == HP_ANSWER_SLOWER && b.faults > a.faults && has_little(m, a.faults, b.faults)) {
		add(s, "to load hugepin takes time of each start of a process; ");
	}
	switch (j->why) {
	case HP_WHY_NOT_TOLD:
		add(s, "its largest process has not told where its memory lay: it does not load hugepin (static, "
		       "set-user-ID), or ends by _exit; ");
		break;
	case HP_WHY_TINY:
		add(s, "its largest process has ");
		add_bytes(s, b.rss_bytes);
		add(s, ", too little to gain from hugepages; ");
		break;
	case HP_WHY_HEAP:
		add(s, "%s; ", m->why);
		break;
	case HP_WHY_ZEROS:
		add(s, "it touches little of its large buffers: ");
		add_bytes(s, huge_bytes(m));
		add(s, " of hugepages were filled with zeros, and all of its memory without hugepin is ");
		add_bytes(s, a.rss_bytes);
		add(s, "; ");
		break;
	case HP_WHY_CHEAP:
		add(s, "its large buffers lay in hugepages, but page faults and TLB misses cost it little time; ");
		break;
	case HP_WHY_LARGE:
		add_percent(s, m->large_bytes, m->large_bytes + m->other_bytes);
		add(s, " of its memory is in large buffers");
		if (m->large_bytes) {
			add(s, ", of that ");
			add_percent(s, huge_bytes(m), m->large_bytes);
			add(s, " lay in hugepages");
		}
		add(s, "; ");
		break;
	case HP_WHY_IMAGE:
		add(s, "HUGEPIN_IMAGE asked for THP for ");
		add_bytes(s, m->image_bytes);
		add(s, " of its own image; ");
		break;
	case HP_WHY_SMALL:
		add(s, "few of its buffers are large, so it gains by %s, which serves the small ones; ", m->small);
		break;
	}
	add(s, "page faults ");
	add_count(s, a.faults);
	add(s, " -> ");
	add_count(s, b.faults);
	if (a.tlb_misses != HP_NOT_COUNTED && b.tlb_misses != HP_NOT_COUNTED) {
		add(s, ", TLB misses ");
		add_count(s, a.tlb_misses);
		add(s, " -> ");
		add_count(s, b.tlb_misses);
	}
	if (forks_stop(m)) {
		add(s, "; a fork stopped it for ");
		add_seconds(s, m->fork_s);
		add(s, ", since memory of the pool is copied for the child");
	}
}

/* What processes do that outlive the program is not measured. */
static void add_left(struct sentence *s, const struct hp_measured *m)
{
	if (m->with[0].left)
		add(s, "; it left %u %s running, which %s not measured but ended", m->with[0].left,
		    m->with[0].left == 1 ? "process" : "processes", m->with[0].left == 1 ? "was" : "were");
}

static void say_cost(struct sentence *s, const struct hp_measured *m, const struct hp_judgement *j)
{
	const struct hp_medians a = hp_medians(m->without, m->rounds), b = hp_medians(m->with, m->rounds);

	/* What lies in the pool is no part of the former, so both are of one process and one run. */
	add(s, "cost: memory of its largest process ");
	add_bytes(s, a.rss_bytes);
	add(s, " -> ");
	add_bytes(s, m->known ? m->rss_bytes : b.rss_bytes);
	if (m->hugetlb_bytes) {
		add(s, ", and ");
		add_bytes(s, m->hugetlb_bytes);
		add(s, " of the pool");
	}
	if (j->times.by_cpu) {
		add(s, "; time from start to end ");
		add_times(s, m, NULL, false);
	} else {
		add(s, "; processor time ");
		add_seconds(s, a.cpu_s);
		add(s, " -> ");
		add_seconds(s, b.cpu_s);
	}
	add_left(s, m);
}

static void say_how(struct sentence *s, const struct hp_measured *m, const struct hp_judgement *j)
{
	const struct hp_comparison *const t = &j->thp;
	const bool thp = t->sure && t->better > 0, stop = forks_stop(m) && !strstr(m->options, "--pages=");

	add(s, "how: hugepin run %s%s-- %s", m->options, thp || stop ? "--pages=thp " : "", m->program);
	if (stop)
		add(s, "; forks do not copy THP");
	if (thp) {
		add(s, "; it ");
		add_ratio(s, t->ratio, j->thp_by_cpu);
		add(s, " with THP instead of the pool");
	} else if (m->thp_rounds && t->sure && !t->better) {
		add(s, "; --pages=thp is as fast, and needs no pool");
	} else if (m->thp_rounds && t->sure) {
		add(s, "; the pool gains: with --pages=thp it ");
		add_ratio(s, t->ratio, j->thp_by_cpu);
	}
	if (j->why == HP_WHY_SMALL && !m->others)
		add(s, "; another allocator may do: hugepin check --against=tunable,mimalloc compares");
}

static void say_failure(struct sentence *s, const struct hp_measured *m, const struct hp_judgement *j)
{
	static const char *const how[] = {
		[HP_FAILS_WITH] = "fails with it: ",
		[HP_FAILS_WITHOUT] = "fails without it: ",
		[HP_FAILS_BOTH] = "fails, also without it: ",
		[HP_FAILS_VARIES] = "does not always end in the same way without it: ",
	};
	static const char *const other[] = {
		[HP_FAILS_WITH] = ", without it ",
		[HP_FAILS_WITHOUT] = ", with it ",
		[HP_FAILS_VARIES] = ", and ",
	};

	add(s, "use hugepin: %s, %s %s", j->answer == HP_ANSWER_BREAKS ? "no" : "cannot tell", m->program, how[j->fails]);
	add_status(s, j->status);
	if (j->fails != HP_FAILS_BOTH) {
		add(s, "%s", other[j->fails]);
		add_status(s, j->other);
	}
}

/* The program's last lines, one each. */
static unsigned say_tail(const char *tail, char line[][HP_SAY_SIZE], unsigned room)
{
	unsigned lines = 0, skip = 0;

	for (const char *c = tail; *c; c += strcspn(c, "\n"), c += *c == '\n')
		lines++;
	for (skip = lines > room ? lines - room : 0; skip; skip--)
		tail += strcspn(tail, "\n") + 1;
	for (lines = 0; *tail && lines < room; lines++) {
		const int len = (int)strcspn(tail, "\n");
		snprintf(line[lines], HP_SAY_SIZE, "its output ended: %.*s", HP_MIN(len, 400), tail);
		tail += len + (tail[len] == '\n');
	}
	return lines;
}

/* How a program that takes too long can be checked. */
static unsigned say_long(struct sentence *s, const struct hp_measured *m)
{
	add(&s[0], "use hugepin: cannot tell, a run of %s takes longer than half of the %.*f s that -t allows",
	    m->program, m->limit_s < 10 ? 1 : 0, m->limit_s);
	add(&s[1], "how: if it ends by itself, hugepin check -t %.0f %s%s-- %s", ceil(m->limit_s * 10), m->against,
	    m->options, m->program);
	add(&s[2],
	    "how: if it is a server, check a script that starts it, sends it work and stops it; or look at it by "
	    "hugepin top, started by HUGEPIN_STATS=1 hugepin run %s-- %s",
	    m->options, m->program);
	return 3;
}

static void say_answer(struct sentence *s, const struct hp_measured *m, const struct hp_judgement *j)
{
	const struct hp_times *const t = &j->times;
	const struct hp_other *const other = j->decides >= 0 ? &m->other[j->decides] : NULL;
	const bool by_cpu = other ? j->beside[j->decides].by_cpu : t->by_cpu && j->answer != HP_ANSWER_UNSURE;

	add(s, "use hugepin: ");
	if (j->answer == HP_ANSWER_ENOUGH) {
		const bool faster = decisive(&j->beside[j->decides])->better < 0;
		add(s, "no, %s is %s: ", other->called, faster ? "faster" : "enough");
	} else if (j->answer == HP_ANSWER_UNSURE && m->rounds == 1) {
		add(s, "cannot tell, there was time for one round: ");
	} else if (j->answer == HP_ANSWER_UNSURE && other) {
		add(s, "cannot tell, it ");
		add_ratio(s, decisive(t)->ratio, t->by_cpu);
		add(s, ", but rounds do not tell whether %s is enough: ", other->called);
	} else if (j->answer == HP_ANSWER_UNSURE) {
		add(s, "cannot tell, rounds of the same program differ by %.0f %%, the medians by %.1f %%: ",
		    t->wall.spread * 100, fabs(1 - 1 / t->wall.ratio) * 100);
	} else if (j->answer == HP_ANSWER_SAME && other) {
		add(s, "no, nothing helps: ");
	} else if (j->answer == HP_ANSWER_SAME) {
		add(s, "no, nothing to gain%s: ", t->by_cpu ? ", by processor time" : "");
	} else {
		add(s, "%s, it ", j->answer == HP_ANSWER_YES ? "yes" : "no");
		add_ratio(s, decisive(t)->ratio, t->by_cpu);
		add(s, ": ");
	}
	if (j->by_facts && m->rounds == 1) /* the times of one round tell nothing, and may look like a loss */
		add(s, "by its memory and faults");
	else
		add_times(s, m, other, by_cpu);
}

unsigned hp_judge_say(const struct hp_measured *m, const struct hp_judgement *j, char line[HP_SAY_MAX][HP_SAY_SIZE])
{
	struct sentence s[HP_SAY_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < HP_SAY_MAX; i++) {
		line[i][0] = '\0';
		s[i] = (struct sentence){ line[i], 0 };
	}
	if (j->answer == HP_ANSWER_LONG)
		return say_long(s, m);
	if (j->answer == HP_ANSWER_BREAKS || j->answer == HP_ANSWER_FAILS) {
		say_failure(&s[0], m, j);
		n = 1 + say_tail(m->tail, line + 1, TAIL_LINES);
		/* grep(1) and diff(1), for example, exit with 1 where nothing is wrong. */
		if (j->fails == HP_FAILS_BOTH && WIFEXITED(j->status))
			add(&s[n++], "how: if that is no failure, check a script that runs %s and exits with 0",
			    m->program);
		return n;
	}
	say_answer(&s[n++], m, j);
	if (j->answer != HP_ANSWER_UNSURE)
		say_sure(&s[n++], m, j);
	say_why(&s[n++], m, j);
	say_cost(&s[n++], m, j);
	for (unsigned i = 0; i < m->others; i++)
		say_beside(&s[n++], m, j, i);
	if (*m->note)
		add(&s[n++], "note: %s", m->note);
	if (m->busy >= BUSY)
		add(&s[n++], "note: other programs took %.0f %% of the machine's processor time meanwhile",
		    m->busy * 100);
	if (j->answer == HP_ANSWER_YES)
		say_how(&s[n++], m, j);
	else if (j->answer == HP_ANSWER_ENOUGH)
		add(&s[n++], "how: %s%s", m->other[j->decides].how, m->program);
	else if (j->answer == HP_ANSWER_UNSURE)
		add(&s[n++], "how: hugepin check -n %u -t %.0f %s%s-- %s, when the machine does nothing else",
		    HP_MIN(4 * m->rounds + 5, HP_ROUNDS_MAX), ceil(m->limit_s * 5), m->against, m->options, m->program);
	return n;
}
