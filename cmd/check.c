/*
 * hugepin check: runs a program without and with hugepin, and with what costs nothing (cmd/against.c), in turns, and
 * says whether it gains. The first run of each warms the machine's caches up and is not counted; in the first run with
 * hugepin the heap writes its statistics. Then come rounds, of one run each, which begin with another by turns. They
 * end when the rules (cmd/judge.c) are sure, or when the time is over.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/config.h"
#include "base/smalls.h"
#include "base/summary.h"
#include "cmd/against.h"
#include "cmd/environment.h"
#include "cmd/judge.h"
#include "cmd/machine.h"
#include "cmd/run.h"
#include "cmd/stats.h"
#include "cmd/target.h"
#include "cmd/text.h"
#include "cmd/trial.h"
#include "cmd/usage.h"

#define SECOND UINT64_C(1000000000)
#define COMMAND_MAX 200

enum { ROUNDS_MIN = 5, ROUNDS_DEFAULT = 20, THP_ROUNDS = 10 };
enum variant { WITHOUT, WITH, OTHER, COMPARED = OTHER + HP_AGAINST, WITH_STATS = COMPARED, WITH_THP, VARIANTS };

static struct {
	double limit_s;
	unsigned rounds_min, rounds_max;
	bool json, against[HP_AGAINST];
} option = { .limit_s = 60, .rounds_min = ROUNDS_MIN, .rounds_max = ROUNDS_DEFAULT };

static struct {
	const char *temporary; /* where temporary files may lie */
	char directory[PATH_MAX]; /* of the statistics */
	char **environment[VARIANTS];
	struct hp_trial_how how;
	uint64_t start_ns, limit_ns;
	char tail[HP_TAIL_MAX];
	struct hp_trial trial[COMPARED][HP_ROUNDS_MAX], thp[2][HP_ROUNDS_MAX];
	struct hp_other other[HP_AGAINST]; /* the variants from OTHER on */
	unsigned others;
} check;

/* ------------------------------------------------------------------ the command line */

static int take_option(int letter, const char *argument)
{
	char *end;

	if (letter == 'j') {
		option.json = true;
	} else if (letter == 'a') {
		if (!hp_against_parse(argument, option.against)) {
			fprintf(stderr,
				"hugepin check: --against takes tunable, thp and mimalloc, with commas between, not "
				"'%s'\n",
				argument);
			return -1;
		}
	} else if (letter == 't') {
		option.limit_s = strtod(argument, &end);
		if (*end || end == argument || !(option.limit_s >= 1 && option.limit_s <= 86400)) {
			fprintf(stderr, "hugepin check: -t takes seconds, 1 to 86400, not '%s'\n", argument);
			return -1;
		}
	} else {
		const long n = strtol(argument, &end, 10);
		if (*end || end == argument || n < 1 || n > HP_ROUNDS_MAX) {
			fprintf(stderr, "hugepin check: -n takes a number from 1 to %d, not '%s'\n", HP_ROUNDS_MAX,
				argument);
			return -1;
		}
		option.rounds_min = option.rounds_max = (unsigned)n;
	}
	return 0;
}

/* ------------------------------------------------------------------ what the program is given */

/* Find out which of the alternatives that are wanted are here, and make their environments. -1: there is no memory. */
static int look_for_others(void)
{
	char glibc[HP_TEXT_MAX] = "", thp[HP_TEXT_MAX], no_mimalloc[200];
	struct hp_against_facts facts = { .glibc = glibc,
					  .thp = hp_machine_choice(HP_THP_DIR "enabled", thp),
					  .tunables = getenv("GLIBC_TUNABLES"),
					  .preload = getenv("LD_PRELOAD"),
					  .no_mimalloc = no_mimalloc };

	confstr(_CS_GNU_LIBC_VERSION, glibc, sizeof glibc);
	if (option.against[HP_AGAINST_MIMALLOC])
		facts.mimalloc = hp_run_find_allocator(HP_SMALL_MIMALLOC, no_mimalloc, sizeof no_mimalloc);
	for (int i = 0; i < HP_AGAINST; i++) {
		struct hp_other *const o = &check.other[check.others];
		char ***const environment = &check.environment[OTHER + check.others];
		if (!option.against[i])
			continue;
		const struct hp_against a = hp_against_look(i, &facts);
		*o = (struct hp_other){ .name = hp_against_names[i],
					.called = a.called,
					.trial = check.trial[OTHER + check.others] };
		snprintf(o->absent, sizeof o->absent, "%s", a.absent);
		*environment = check.environment[WITHOUT];
		struct hp_line how = { o->how, o->how + sizeof o->how };
		for (int k = 0; k < HP_AGAINST_SET && a.set[k]; k++) {
			hp_line_text(&how, hp_line_quote(&how, a.set[k]) ? " " : "... ");
			if (!(*environment = hp_environment_with(*environment, a.set[k])))
				return -1;
		}
		free(a.set[0]);
		check.others++;
	}
	return 0;
}

/* Make the environments of all variants. 0, or -1 with a message. */
static int make_environments(const char *library)
{
	char stats[PATH_MAX + 32];

	unsetenv("HUGEPIN_STATS");
	check.environment[WITHOUT] = hp_environment_with(environ, NULL);
	if (!check.environment[WITHOUT] || look_for_others()) {
		perror("hugepin check");
		return -1;
	}
	/* What this sets for this process, too, only programs read. */
	if (hp_run_preload("hugepin check", library))
		return -1;
	snprintf(stats, sizeof stats, "HUGEPIN_STATS=file:%s/%%p", check.directory);
	check.environment[WITH] = environ;
	check.environment[WITH_STATS] = hp_environment_with(environ, stats);
	check.environment[WITH_THP] = hp_environment_with(environ, "HUGEPIN_PAGES=thp");
	if (!check.environment[WITH_STATS] || !check.environment[WITH_THP]) {
		perror("hugepin check");
		return -1;
	}
	return 0;
}

/* Copy a pipe or a socket into a file without a name, until its end. -1: with a message. A signal may end this process
 * meanwhile, so there is no directory yet. */
static int copy_input(void)
{
	const uint64_t limit_ns = hp_trial_now_ns() + (uint64_t)(option.limit_s * (double)SECOND);
	const int to = open(check.temporary, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	struct pollfd fd = { .fd = STDIN_FILENO, .events = POLLIN };
	static char buf[65536];
	ssize_t n = 1;

	if (to < 0) {
		fprintf(stderr, "hugepin check: no file in %s: %s\n", check.temporary, strerror(errno));
		return -1;
	}
	while (n > 0) {
		const uint64_t now_ns = hp_trial_now_ns();
		if (now_ns >= limit_ns || !poll(&fd, 1, (int)((limit_ns - now_ns) / 1000000) + 1)) {
			fprintf(stderr,
				"hugepin check: the standard input has not ended within the %.0f s of -t, and each run "
				"needs all of it: give a file, or </dev/null\n",
				option.limit_s);
			close(to);
			return -1;
		}
		n = read(STDIN_FILENO, buf, sizeof buf);
		if (n < 0 || write(to, buf, (size_t)n) != n) {
			fprintf(stderr, "hugepin check: the standard input cannot be copied: %s\n", strerror(errno));
			close(to);
			return -1;
		}
	}
	return to;
}

/* Choose the program's standard input, which each run gets from its beginning. */
static int choose_input(void)
{
	struct stat st;

	check.how.input_at = -1;
	if (fstat(STDIN_FILENO, &st))
		st.st_mode = 0;
	if (S_ISREG(st.st_mode)) {
		check.how.input = STDIN_FILENO;
		check.how.input_at = lseek(STDIN_FILENO, 0, SEEK_CUR);
	} else if (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)) {
		check.how.input = copy_input();
		check.how.input_at = 0;
	} else {
		check.how.input = open("/dev/null", O_RDONLY | O_CLOEXEC);
	}
	return check.how.input < 0 ? -1 : 0;
}

static void remove_directory(void)
{
	DIR *const d = opendir(check.directory);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.')
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(check.directory);
}

/* ------------------------------------------------------------------ running */

/* Tell people on a terminal what goes on. NULL: nothing any more. */
static void tell_progress(const char *what, unsigned round)
{
	if (!isatty(STDERR_FILENO))
		return;
	fputs("\r\033[K", stderr);
	if (what && round)
		fprintf(stderr, "hugepin check: %s, round %u", what, round);
	else if (what)
		fprintf(stderr, "hugepin check: %s", what);
}

/* Run the program once. 0; -EINTR: a signal came; another -errno: it could not be started. */
static int run_once(enum variant v, struct hp_trial *ret_)
{
	char tail[HP_TAIL_MAX];

	check.how.environment = check.environment[v];
	const int err = hp_trial_run(&check.how, ret_, tail);
	if (!err && ret_->status)
		memcpy(check.tail, tail, sizeof tail);
	return err;
}

/* Whether runs that take so many seconds end before the time is over. */
static bool has_time(double seconds)
{
	return (double)(check.limit_ns - hp_trial_now_ns()) > seconds * 1.1 * (double)SECOND &&
	       hp_trial_now_ns() < check.limit_ns;
}

/* Variants that are compared. */
struct compared {
	enum variant variant[COMPARED];
	struct hp_trial *trial[COMPARED]; /* of each, a run for each round */
	unsigned count;
};

/* Run a round, which begins with another variant than the one before. 0 or -errno; -ETIME: the time was over before its
 * end. */
static int run_round(const struct compared *c, unsigned round, double *ret_s)
{
	*ret_s = 0;
	for (unsigned k = 0; k < c->count; k++) {
		const unsigned i = (round + k) % c->count;
		const int err = run_once(c->variant[i], &c->trial[i][round]);
		if (err)
			return err;
		if (!c->trial[i][round].ended)
			return -ETIME;
		*ret_s += c->trial[i][round].wall_s;
	}
	return 0;
}

/* Run rounds until the rules are sure. is_sure() says so. seconds: what a round takes. */
static int run_rounds(const char *what, const struct compared *c, unsigned max, double seconds, struct hp_measured *m,
		      unsigned *count, bool (*is_sure)(const struct hp_measured *m))
{
	double took_s;
	int err = 0;

	while (*count < max && (*count < option.rounds_min || !is_sure(m)) && has_time(seconds)) {
		tell_progress(what, *count + 1);
		err = run_round(c, *count, &took_s);
		if (err)
			break;
		seconds = HP_MAX(seconds, took_s);
		++*count;
		const enum hp_answer answer = hp_judge(m).answer;
		if (*count >= 2 && (answer == HP_ANSWER_BREAKS || answer == HP_ANSWER_FAILS))
			break;
	}
	return err == -ETIME ? 0 : err;
}

static bool is_sure(const struct hp_measured *m)
{
	return hp_judge(m).sure == HP_SURE;
}

static bool is_sure_of_thp(const struct hp_measured *m)
{
	return hp_judge(m).thp.sure == HP_SURE;
}

/* ------------------------------------------------------------------ the heap's statistics */

static uint64_t number_of(const json_t *object, const char *key)
{
	const json_int_t n = json_integer_value(json_object_get(object, key));

	return n > 0 ? (uint64_t)n : 0;
}

/* Read the files that the processes of a run have written, and keep the facts of the one with most memory of malloc's.
 * rss_bytes: of the run's largest process. */
static void read_statistics(struct hp_measured *m, uint64_t rss_bytes)
{
	DIR *const d = opendir(check.directory);
	uint64_t most = 0, told = 0;
	struct dirent *e;

	while (d && (e = readdir(d))) {
		char path[PATH_MAX + 300];
		snprintf(path, sizeof path, "%s/%s", check.directory, e->d_name);
		FILE *const f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
		json_t *const all = f ? hp_stats_read(f) : NULL;
		const json_t *const peak = json_object_get(all, "peak"), *const advice = json_object_get(all, "advice");
		const char *const why = json_string_value(json_object_get(advice, "text"));
		const char *const verdict = json_string_value(json_object_get(advice, "code"));
		const uint64_t hugetlb = number_of(peak, "hugetlb_bytes"), thp = number_of(peak, "thp_bytes"),
			       large = hugetlb + thp + number_of(peak, "base_bytes"),
			       malloced = large + number_of(all, "small_bytes");
		const json_t *const heap = json_object_get(all, "heap");
		const uint64_t peak_bytes = number_of(all, "rss_peak_bytes"), rss = peak_bytes ? peak_bytes : rss_bytes;

		told = HP_MAX(told, rss + hugetlb + number_of(all, "fork_peak_bytes"));
		if (peak && (!m->known || malloced > most)) {
			most = malloced;
			m->known = true;
			m->large_bytes = large;
			m->hugetlb_bytes = hugetlb;
			m->thp_bytes = thp;
			m->image_bytes = number_of(heap, "image_bytes");
			m->rss_bytes = rss;
			const uint64_t whole = HP_MAX(m->rss_bytes + hugetlb, malloced);
			m->other_bytes = whole - HP_MIN(whole, large);
			snprintf(m->why, sizeof m->why, "%s", why ? why : "");
			hp_text_tame(m->why);
			m->sparse = verdict && !strcmp(verdict, "touched-little");
		}
		if (number_of(heap, "forks_copied") && hugetlb)
			m->fork_s = HP_MAX(m->fork_s, (double)number_of(heap, "fork_longest_us") / 1e6);
		json_decref(all);
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	/* What others tell of themselves is no reason for what the largest does. */
	m->known = m->known && (rss_bytes < HP_LITTLE_BYTES || rss_bytes / 2 <= told);
}

/* ------------------------------------------------------------------ the whole */

/* Make the first runs, whose times do not count, and say what is compared. A program that does not end, or that fails
 * without hugepin, is run no more: its first runs are the only round. 0 or -errno. */
static int run_first(struct hp_measured *m, struct compared *ret_, struct hp_trial first[VARIANTS], double *ret_s)
{
	static const char *const names[] = { "a first run without", "a first run with hugepin" };
	static const enum variant variants[] = { WITHOUT, WITH_STATS };

	for (unsigned i = 0; i < 2; i++) {
		tell_progress(names[i], 0);
		check.how.limit_ns = i ? check.limit_ns : check.start_ns + (check.limit_ns - check.start_ns) / 2;
		const int err = run_once(variants[i], &first[i]);
		if (err)
			return err;
		check.trial[i][0] = first[i];
		if (!first[i].ended) {
			check.trial[WITH][0] = first[i];
			m->rounds = 1;
			return 0;
		}
		ret_->variant[i] = i ? WITH : WITHOUT;
		ret_->trial[i] = check.trial[i];
		*ret_s += first[i].wall_s;
	}
	ret_->count = 2;
	read_statistics(m, first[WITH].rss_bytes);
	if (first[WITHOUT].status) {
		m->rounds = 1;
		return 0;
	}
	for (unsigned i = 0; i < check.others; i++) {
		const enum variant v = OTHER + i;
		if (check.other[i].absent[0])
			continue;
		tell_progress(check.other[i].called, 0);
		const int err = run_once(v, &first[v]);
		if (err)
			return err;
		if (!first[v].ended) {
			snprintf(check.other[i].absent, sizeof check.other[i].absent,
				 "there was no time for a run (-t)");
			continue;
		}
		ret_->variant[ret_->count] = v;
		ret_->trial[ret_->count++] = check.trial[v];
		*ret_s += first[v].wall_s;
	}
	return 0;
}

/* Measure everything. 0 or -errno. */
static int measure(struct hp_measured *m, bool may_try_thp)
{
	static struct hp_trial first[VARIANTS];
	const struct compared pages = { { WITH, WITH_THP }, { check.thp[0], check.thp[1] }, 2 };
	struct compared c = { .count = 0 };
	double seconds = 0;
	int err = run_first(m, &c, first, &seconds);

	if (err || m->rounds)
		return err;
	m->first = &first[WITH];
	err = run_rounds("comparing", &c, option.rounds_max, seconds, m, &m->rounds, is_sure);
	if (err)
		return err;
	if (!m->rounds) { /* no time: the first runs have to do */
		for (unsigned i = 0; i < c.count; i++)
			c.trial[i][0] = first[c.variant[i]];
		m->rounds = 1;
	}
	if (may_try_thp && m->hugetlb_bytes && hp_judge(m).answer == HP_ANSWER_YES) {
		m->chosen = check.thp[0];
		m->thp = check.thp[1];
		err = run_rounds("the pool and THP", &pages, HP_MIN(option.rounds_max, (unsigned)THP_ROUNDS),
				 2 * first[WITH].wall_s, m, &m->thp_rounds, is_sure_of_thp);
	}
	return err;
}

/* Processor time of this process and of all processes of the program, in seconds. */
static double own_seconds(void)
{
	double seconds = 0;
	struct rusage u;

	for (int who = RUSAGE_CHILDREN; who <= RUSAGE_SELF; who++)
		if (!getrusage(who, &u))
			seconds += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
				   (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
	return seconds;
}

/* Measure everything, and what others did on the machine meanwhile. 0 or -errno. */
static int measure_all(struct hp_measured *m, bool may_try_thp)
{
	char line[256];
	const struct hp_ticks before = hp_machine_ticks(hp_read_line("/proc/stat", line, sizeof line));
	const double own_s = own_seconds();
	const int err = measure(m, may_try_thp);
	const struct hp_ticks after = hp_machine_ticks(hp_read_line("/proc/stat", line, sizeof line));
	const double own = (own_seconds() - own_s) * (double)sysconf(_SC_CLK_TCK),
		     others = (double)after.busy - (double)before.busy - own;

	m->busy = after.all > before.all && others > 0 ? others / (double)(after.all - before.all) : 0;
	return err;
}

static int status_of(enum hp_answer answer)
{
	static const int statuses[] = {
		[HP_ANSWER_YES] = 0,
		[HP_ANSWER_ENOUGH] = HP_EXIT_NO,
		[HP_ANSWER_SAME] = HP_EXIT_NO,
		[HP_ANSWER_SLOWER] = HP_EXIT_NO,
		[HP_ANSWER_UNSURE] = HP_EXIT_UNSURE,
		[HP_ANSWER_LONG] = HP_EXIT_UNSURE,
		[HP_ANSWER_BREAKS] = HP_EXIT_BREAKS,
		[HP_ANSWER_FAILS] = HP_EXIT_UNSURE,
	};

	return statuses[answer];
}

/* ------------------------------------------------------------------ JSON */

static void add_status(json_t *o, int status)
{
	json_object_set_new(o, "exit_status", WIFEXITED(status) ? json_integer(WEXITSTATUS(status)) : json_null());
	json_object_set_new(o, "signal", WIFSIGNALED(status) ? json_integer(WTERMSIG(status)) : json_null());
}

static json_t *trials_json(const struct hp_trial *trial, unsigned count)
{
	json_t *const list = json_array();

	for (unsigned i = 0; i < count; i++) {
		const struct hp_trial *const t = &trial[i];
		json_t *const o = json_pack("{s:f, s:f, s:f, s:I, s:I, s:o, s:o, s:b}", "seconds", t->wall_s,
					    "user_seconds", t->user_s, "system_seconds", t->system_s, "minor_faults",
					    (json_int_t)t->minor_faults, "major_faults", (json_int_t)t->major_faults,
					    "tlb_misses", t->tlb_misses == HP_NOT_COUNTED ? json_null() :
						json_integer((json_int_t)t->tlb_misses),
					    "rss_bytes", hp_json_bytes(t->rss_bytes), "ended", t->ended);
		add_status(o, t->status);
		json_array_append_new(list, o);
	}
	return list;
}

static json_t *failure_json(const struct hp_judgement *j)
{
	json_t *const o = j->fails ? json_pack("{s:s}", "when", hp_fails_name(j->fails)) : json_null();

	if (j->fails)
		add_status(o, j->status);
	return o;
}

static json_t *comparison_json(const struct hp_comparison *c)
{
	static const char *const sure[] = { "unsure", "likely", "sure" };
	static const char *const better[] = { "without", "neither", "with" };

	if (!(c->ratio > 0))
		return json_null();
	return json_pack("{s:f, s:o, s:o, s:f, s:s, s:s}", "ratio", c->ratio, "low",
			 c->low > 0 ? json_real(c->low) : json_null(), "high",
			 c->low > 0 ? json_real(c->high) : json_null(), "spread", c->spread, "better",
			 better[c->better + 1], "sure", sure[c->sure]);
}

static json_t *others_json(const struct hp_measured *m, const struct hp_judgement *j)
{
	json_t *const all = json_object();

	for (unsigned i = 0; i < m->others; i++) {
		const struct hp_other *const o = &m->other[i];
		const bool ran = j->beside[i].wall.ratio > 0 || j->ends[i];
		json_object_set_new(all, o->name,
				    o->absent[0] ? json_pack("{s:o}", "absent", hp_json_string(o->absent)) :
						   json_pack("{s:o, s:o, s:o}", "time_to_with",
							     comparison_json(&j->beside[i].wall), "processor_time_to_with",
							     comparison_json(&j->beside[i].cpu), "runs",
							     trials_json(o->trial, ran ? m->rounds : 0)));
	}
	return all;
}

static void print_json(const struct hp_measured *m, const struct hp_judgement *j, char line[][HP_SAY_SIZE],
		       unsigned lines, int status)
{
	json_t *const all = json_object(), *const text = json_array();

	json_object_set_new(all, "program", hp_json_string(m->program));
	json_object_set_new(all, "options", hp_json_string(m->options));
	json_object_set_new(all, "verdict", json_string(hp_answer_name(j->answer)));
	json_object_set_new(all, "failure", failure_json(j));
	json_object_set_new(all, "time", comparison_json(&j->times.wall));
	json_object_set_new(all, "processor_time", comparison_json(&j->times.cpu));
	json_object_set_new(all, "pool_to_thp", comparison_json(&j->thp));
	json_object_set_new(all, "memory",
			    !m->known ? json_null()
				      : json_pack("{s:o, s:o, s:o, s:o}", "large_bytes", hp_json_bytes(m->large_bytes),
						  "hugetlb_bytes", hp_json_bytes(m->hugetlb_bytes), "thp_bytes",
						  hp_json_bytes(m->thp_bytes), "other_bytes",
						  hp_json_bytes(m->other_bytes)));
	json_object_set_new(all, "against", others_json(m, j));
	json_object_set_new(all, "busy", json_real(m->busy));
	json_object_set_new(all, "longest_fork", json_real(m->fork_s));
	json_object_set_new(all, "without", trials_json(m->without, m->rounds));
	json_object_set_new(all, "with", trials_json(m->with, m->rounds));
	for (unsigned i = 0; i < lines; i++)
		json_array_append_new(text, hp_json_string(line[i]));
	json_object_set_new(all, "text", text);
	json_object_set_new(all, "status", json_integer(status));
	json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(all);
}

/* ------------------------------------------------------------------ main */

/* Say that a program cannot be helped, as the rules of `run` have it. */
static int refuse(const char *program, char *why, int status)
{
	hp_text_tame(why);
	if (status != HP_EXIT_REFUSED)
		fprintf(stderr, "hugepin check: %s\n", why);
	else if (option.json)
		json_dumpf(json_pack("{s:o, s:s, s:[o], s:i}", "program", hp_json_string(program), "verdict",
				     "refused", "text", hp_json_string(why), "status", status),
			   stdout, JSON_INDENT(2));
	else
		printf("use hugepin: no, %s", why);
	if (status == HP_EXIT_REFUSED)
		putchar('\n');
	return status;
}

/* Write the options that differ from the environment's values: "--pages=thp --fork=cow ". */
static void options_text(char *const *before, char *text, size_t size)
{
	struct hp_line l = { text, text + size };

	*text = '\0';
	for (int i = 0; i < hp_options_count; i++) {
		const char *const now = getenv(hp_options[i].name);
		char name[HP_OPTION_NAME_MAX], *option;
		if (!now || (before[i] && !strcmp(now, before[i])) ||
		    asprintf(&option, "--%s=%s", hp_run_option_name(&hp_options[i], name), now) < 0)
			continue;
		hp_line_text(&l, hp_line_quote(&l, option) ? " " : "... ");
		free(option);
	}
}

static int check_program(char **argv, const char *options, const char *note)
{
	char program[COMMAND_MAX] = "", line[HP_SAY_MAX][HP_SAY_SIZE], against[64] = "";
	struct hp_line command = { program, program + sizeof program };
	struct hp_measured m = { .without = check.trial[0],
				 .with = check.trial[1],
				 .other = check.other,
				 .others = check.others,
				 .limit_s = option.limit_s,
				 .against = against,
				 .note = note,
				 .options = options,
				 .program = program,
				 .tail = check.tail };
	const char *const pages = getenv("HUGEPIN_PAGES"), *const small = getenv("HUGEPIN_SMALL");
	int err = -hp_trial_prepare();

	for (unsigned i = 0; i < check.others; i++) {
		const size_t len = strlen(against);
		snprintf(against + len, sizeof against - len, "%s%s%s", i ? "," : "--against=", check.other[i].name,
			 i + 1 == check.others ? " " : "");
	}
	hp_line_command(&command, argv);
	m.small = !small ? "jemalloc" : strcmp(small, "next") ? small : NULL;
	check.how.argv = argv;
	check.start_ns = hp_trial_now_ns();
	check.limit_ns = check.start_ns + (uint64_t)(option.limit_s * (double)SECOND);
	if (!err)
		err = -measure_all(&m, (!pages || !strcmp(pages, "auto")) && hp_machine_thp());
	tell_progress(NULL, 0);
	remove_directory(); /* before anything is printed: SIGPIPE may end this process then */
	if (err == EINTR && hp_trial_signal()) {
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, hp_trial_signal());
		raise(hp_trial_signal());
		sigprocmask(SIG_UNBLOCK, &set, NULL);
	}
	if (err) {
		fprintf(stderr, "hugepin check: %s: %s\n", argv[0], strerror(err));
		return err == ENOENT ? HP_EXIT_NOT_FOUND : HP_EXIT_CANNOT_EXEC;
	}
	const struct hp_judgement j = hp_judge(&m);
	const unsigned lines = hp_judge_say(&m, &j, line);
	const int status = status_of(j.answer);

	for (unsigned i = 0; i < lines; i++)
		hp_text_tame(line[i]);
	if (option.json)
		print_json(&m, &j, line, lines, status);
	for (unsigned i = 0; i < lines && !option.json; i++)
		puts(line[i]);
	return status;
}

int hp_check_main(int argc, char **argv)
{
	static const struct option longs[] = { { "json", no_argument, NULL, 'j' },
					       { "against", required_argument, NULL, 'a' } };
	static const struct hp_run_more more = { "+t:n:", longs, 2, take_option, NULL };
	char **const before = calloc((size_t)hp_options_count, sizeof *before);
	const char *const preload = getenv("LD_PRELOAD");
	char library[PATH_MAX], options[512];

	for (int i = 0; before && i < hp_options_count; i++)
		before[i] = getenv(hp_options[i].name) ? strdup(getenv(hp_options[i].name)) : NULL;
	const int program = hp_run_take_options(argc, argv, &more);
	if (program <= 0 || !before) {
		const int usage = hp_usage(argv[0], program == 0);
		if (program == 0) {
			printf("\n  -t SECONDS\n      Time for all runs together.\n"
			       "      Takes 1 to 86400; the default is %.0f.\n"
			       "  -n ROUNDS\n      How many rounds to measure.\n"
			       "      Takes 1 to %d; the default is %d to %d, until the verdict is sure.\n"
			       "  --against=LIST\n      Compare with what costs nothing, too.\n"
			       "      Takes tunable, thp, mimalloc; several with commas between.\n"
			       "  --json\n      Print one object with the figures of each run.\n",
			       option.limit_s, HP_ROUNDS_MAX, ROUNDS_MIN, ROUNDS_DEFAULT);
			hp_run_print_options();
		}
		return usage;
	}
	options_text(before, options, sizeof options);
	if (hp_run_find_library(library)) {
		fprintf(stderr, "hugepin check: %s\n", library);
		return HP_EXIT_REFUSED;
	}
	if (preload && strstr(preload, "libhugepin")) {
		fputs("hugepin check: LD_PRELOAD has hugepin already, so there is no run without it: unset "
		      "LD_PRELOAD\n",
		      stderr);
		return HP_EXIT_USAGE;
	}
	static struct hp_target target;
	target = hp_target_check(argv[program]);
	if (target.status || target.in_vain)
		return refuse(argv[program], target.why, target.status ? target.status : HP_EXIT_REFUSED);
	check.temporary = getenv("TMPDIR");
	if (!check.temporary || !*check.temporary)
		check.temporary = "/tmp";
	if (choose_input())
		return HP_EXIT_FAILED;
	snprintf(check.directory, sizeof check.directory, "%s/hugepin-check-XXXXXX", check.temporary);
	if (!mkdtemp(check.directory)) {
		fprintf(stderr, "hugepin check: %s: %s\n", check.directory, strerror(errno));
		return HP_EXIT_FAILED;
	}
	if (make_environments(library)) {
		remove_directory();
		return HP_EXIT_FAILED;
	}
	return check_program(argv + program, options, target.why);
}
