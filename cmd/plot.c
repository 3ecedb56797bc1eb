/*
 * hugepin plot: draws traces of HUGEPIN_TRACE by gnuplot(1). The picture shows the registered memory of each domain
 * over time, and below it a row of marks for each domain's misses. All traces begin at the left edge, so that runs of a
 * program under several policies can be compared. If the output's name ends in .json, the command writes the traces as
 * Trace Event JSON instead (Duca, Sinclair: Trace Event Format, 2016), with the recorded times. Perfetto and
 * chrome://tracing open such files.
 *
 * A trace may have many more events than the picture has columns. For each column only the first, the lowest, the
 * highest and the last value are kept. This draws the same picture (Jugel et al., M4: A Visualization-Oriented Time
 * Series Data Aggregation, VLDB 2014).
 */
#include "cmd/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/facts.h"
#include "cmd/text.h"
#include "cmd/usage.h"

#define HEADER "t_ns,event,domain,policy,addr,len,pinned_bytes,regions"
#define POLICY_MAX 16

enum { COLUMNS = 2400 }; /* twice the picture's pixels */
/* Sizes of the picture's parts, in pixels. */
enum { WIDTH = 1200, PLOT_HEIGHT = 440, ROW_HEIGHT = 22, MARKS_HEIGHT = 14, EDGE = 24, LEFT = 96, BELOW = 72 };

enum kind { PIN, UNPIN, REGISTER, DEREGISTER, MISS, KINDS };
static const char *const kinds[] = { "pin", "unpin", "register", "deregister", "miss" };

/* A line of a trace. addr and len are those of the registration. */
struct event {
	uint64_t t_ns, domain, addr, len, bytes;
	enum kind kind;
	const char *policy;
};

struct value {
	uint64_t t_ns, bytes;
};

/* One line of the picture. */
struct series {
	int file;
	uint64_t domain;
	char policy[POLICY_MAX];
	struct value *value; /* the points where bytes changes */
	uint64_t *miss_ns;
	size_t values, misses;
	uint64_t peak_bytes;
};

struct picture {
	struct series *series;
	int count;
	char **file;
	int files;
	uint64_t *begin_ns, *end_ns; /* by file */
	uint64_t length_ns, peak_bytes; /* peak_bytes: the most of any series */
	FILE *json; /* output of the JSON; NULL: draw the picture */
};

__attribute__((format(printf, 1, 2))) static _Noreturn void fail(const char *format, ...)
{
	va_list args;

	fputs("hugepin plot: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	putc('\n', stderr);
	exit(HP_EXIT_FAILED);
}

/* Make room for one more element behind `count`. The room is always the next power of two. */
static void *grown(void *array, size_t count, size_t size)
{
	if (count & (count - 1))
		return array;
	array = reallocarray(array, count ? 2 * count : 1, size);
	if (!array)
		fail("%s", strerror(errno));
	return array;
}

/* ------------------------------------------------------------------ Trace Event JSON */

static void write_json(FILE *to, json_t *object)
{
	static bool more;

	if (!object)
		fail("%s", strerror(ENOMEM));
	fputs(more ? ",\n" : "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n", to);
	more = true;
	json_dumpf(object, to, JSON_COMPACT | JSON_REAL_PRECISION(15));
	json_decref(object);
}

/* In this JSON each file is a process. */
static void write_name(FILE *to, int file, const char *name)
{
	write_json(to, json_pack("{s:s, s:i, s:s, s:{s:o}}", "ph", "M", "pid", file + 1, "name", "process_name", "args",
				 "name", hp_facts_string(name)));
}

/* Write an event: registered bytes as a curve, registrations and pins as spans, misses as instants. */
static void write_event(FILE *to, int file, const struct event *e)
{
	static const char *const phases[] = { "b", "e", "b", "e", "i" };
	const bool pin = e->kind == PIN || e->kind == UNPIN;
	const char *const category = e->kind == MISS ? "miss" : pin ? "pin" : "registration";
	const double t_us = (double)e->t_ns / 1000;
	char name[64], id[64], addr[32];

	snprintf(name, sizeof name, "%s, domain %" PRIu64, category, e->domain);
	snprintf(id, sizeof id, "%" PRIu64 ":0x%" PRIx64, e->domain, e->addr);
	snprintf(addr, sizeof addr, "0x%" PRIx64, e->addr);
	write_json(to, json_pack("{s:s, s:i, s:I, s:f, s:s, s:s, s:s, s:{s:s}, s:{s:s, s:o, s:s}}", "ph",
				 phases[e->kind], "pid", file + 1, "tid", (json_int_t)e->domain, "ts", t_us, "cat",
				 category, "name", name, "s", "t", "id2", "local", id, "args", "addr", addr, "len",
				 hp_facts_bytes(e->len), "policy", e->policy));
	if (e->kind != REGISTER && e->kind != DEREGISTER)
		return;
	snprintf(name, sizeof name, "registered bytes, domain %" PRIu64, e->domain);
	write_json(to, json_pack("{s:s, s:i, s:f, s:s, s:{s:o}}", "ph", "C", "pid", file + 1, "ts", t_us, "name", name,
				 "args", "bytes", hp_facts_bytes(e->bytes)));
}

/* ------------------------------------------------------------------ reading */

/* Read a number and the character that ends it. */
static bool take_number(char **at, int base, char end, uint64_t *ret_)
{
	char *after;

	if (**at < '0' || **at > '9')
		return false;
	errno = 0;
	*ret_ = strtoull(*at, &after, base);
	if (errno || *after != end)
		return false;
	*at = after + (end != '\0');
	return true;
}

static struct series *find_series(struct picture *p, int file, uint64_t domain, const char *policy)
{
	for (int i = p->count - 1; i >= 0 && p->series[i].file == file; i--)
		if (p->series[i].domain == domain && !strcmp(p->series[i].policy, policy))
			return &p->series[i];
	p->series = grown(p->series, (size_t)p->count, sizeof *p->series);

	struct series *s = &p->series[p->count++];

	*s = (struct series){ .file = file, .domain = domain };
	snprintf(s->policy, sizeof s->policy, "%s", policy);
	return s;
}

static void add_value(struct series *s, uint64_t t_ns, uint64_t bytes)
{
	if (s->values && s->value[s->values - 1].bytes == bytes)
		return;
	s->value = grown(s->value, s->values, sizeof *s->value);
	s->value[s->values++] = (struct value){ t_ns, bytes };
	s->peak_bytes = bytes > s->peak_bytes ? bytes : s->peak_bytes;
}

static void add_event(struct picture *p, int file, const struct event *e)
{
	struct series *s = find_series(p, file, e->domain, e->policy);

	add_value(s, e->t_ns, e->bytes);
	if (e->kind == MISS) {
		s->miss_ns = grown(s->miss_ns, s->misses, sizeof *s->miss_ns);
		s->miss_ns[s->misses++] = e->t_ns;
	}
}

/* Parse a line without its newline. *ret_ points into the line. Returns NULL, or the error in the line. */
static const char *parse_event(char *line, struct event *ret_)
{
	uint64_t unused;
	int kind = 0;

	if (!take_number(&line, 10, ',', &ret_->t_ns))
		return "the time is no number";

	const char *event = strsep(&line, ",");
	while (kind < KINDS && strcmp(event, kinds[kind]))
		kind++;
	if (kind == KINDS)
		return "no such event";
	ret_->kind = (enum kind)kind;
	if (!line || !take_number(&line, 10, ',', &ret_->domain))
		return "the domain is no number";

	const char *policy = strsep(&line, ",");
	if (!*policy || strlen(policy) >= POLICY_MAX || policy[strspn(policy, "abcdefghijklmnopqrstuvwxyz0123456789")])
		return "no such policy";
	ret_->policy = policy;
	if (!line || !take_number(&line, 16, ',', &ret_->addr) || !take_number(&line, 10, ',', &ret_->len) ||
	    !take_number(&line, 10, ',', &ret_->bytes) || !take_number(&line, 10, '\0', &unused))
		return "the last four fields are not numbers";
	return NULL;
}

static const char *read_event(struct picture *p, int file, char *line)
{
	struct event e;
	const char *wrong = parse_event(line, &e);

	if (wrong)
		return wrong;
	if (e.t_ns < p->end_ns[file])
		return "the time is before that of the line above";
	p->end_ns[file] = e.t_ns;
	if (p->json)
		write_event(p->json, file, &e);
	add_event(p, file, &e);
	return NULL;
}

static void read_trace(struct picture *p, int file)
{
	const char *name = p->file[file], *wrong;
	FILE *f = fopen(name, "re");
	char *line = NULL;
	size_t room = 0, number = 0;
	ssize_t len;

	if (!f)
		fail("%s: %s", name, strerror(errno));
	if (p->json)
		write_name(p->json, file, name);
	while ((len = getline(&line, &room, f)) > 0) {
		if (line[len - 1] == '\n')
			line[--len] = '\0';
		if (++number == 1)
			wrong = strcmp(line, HEADER) ? "not a trace, whose first line is " HEADER : NULL;
		else
			wrong = strlen(line) == (size_t)len ? read_event(p, file, line) : "a zero byte";
		if (wrong)
			fail("%s:%zu: %s", name, number, wrong);
		if (number == 2)
			p->begin_ns[file] = p->end_ns[file];
	}
	if (ferror(f))
		fail("%s: %s", name, strerror(errno));
	if (!number)
		fail("%s:1: not a trace: the file is empty", name);
	free(line);
	fclose(f);
	const uint64_t length_ns = p->end_ns[file] - p->begin_ns[file];
	p->length_ns = length_ns > p->length_ns ? length_ns : p->length_ns;
}

/* ------------------------------------------------------------------ drawing */

/* The unit of an axis, and its name. */
struct scale {
	double unit;
	const char *name;
};

static struct scale bytes_scale(uint64_t most)
{
	return most < UINT64_C(1) << 20	  ? (struct scale){ 0x1p10, "KiB" }
	       : most < UINT64_C(1) << 30 ? (struct scale){ 0x1p20, "MiB" }
					  : (struct scale){ 0x1p30, "GiB" };
}

static struct scale time_scale(uint64_t most_ns)
{
	return most_ns < 2000000      ? (struct scale){ 1e3, "µs" }
	       : most_ns < 2000000000 ? (struct scale){ 1e6, "ms" }
				      : (struct scale){ 1e9, "s" };
}

/* Write text in gnuplot's single quotes, where only the quote is special. Makes it valid UTF-8, as an SVG must be. */
static void quote(FILE *to, const char *text)
{
	json_t *const valid = hp_facts_string(text);

	putc('\'', to);
	for (text = json_string_value(valid); *text; text++) {
		if (*text == '\'')
			putc('\'', to);
		putc((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text, to);
	}
	putc('\'', to);
	json_decref(valid);
}

static int column(const struct picture *p, int file, uint64_t t_ns)
{
	return (int)((double)(t_ns - p->begin_ns[file]) * (double)COLUMNS / (double)(p->length_ns + 1));
}

static void write_value(FILE *to, const struct picture *p, int file, struct value v)
{
	fprintf(to, "%.9g %.9g\n", (double)(v.t_ns - p->begin_ns[file]) / time_scale(p->length_ns).unit,
		(double)v.bytes / bytes_scale(p->peak_bytes).unit);
}

static void write_values(FILE *to, const struct picture *p, const struct series *s)
{
	for (size_t first = 0, next; first < s->values; first = next) {
		size_t low = first, high = first;

		for (next = first + 1; next < s->values; next++) {
			if (column(p, s->file, s->value[next].t_ns) != column(p, s->file, s->value[first].t_ns))
				break;
			low = s->value[next].bytes < s->value[low].bytes ? next : low;
			high = s->value[next].bytes > s->value[high].bytes ? next : high;
		}
		/* Keep these four values in the order of time, each once. */
		const size_t keep[] = { first, low < high ? low : high, low < high ? high : low, next - 1 };
		for (int i = 0; i < 4; i++)
			if (!i || keep[i] > keep[i - 1])
				write_value(to, p, s->file, s->value[keep[i]]);
	}
	write_value(to, p, s->file, (struct value){ p->end_ns[s->file], s->value[s->values - 1].bytes });
}

static void write_misses(FILE *to, const struct picture *p, const struct series *s, int row)
{
	int last = -1;

	for (size_t i = 0; i < s->misses; i++) {
		const int c = column(p, s->file, s->miss_ns[i]);

		if (c != last)
			fprintf(to, "%.9g %d.15\n",
				(double)(s->miss_ns[i] - p->begin_ns[s->file]) / time_scale(p->length_ns).unit, row);
		last = c;
	}
}

/* The average of a series over time, from its first event to the end of its trace. */
static uint64_t mean_bytes(const struct picture *p, const struct series *s)
{
	const uint64_t end_ns = p->end_ns[s->file];
	double sum = 0;

	if (end_ns == s->value[0].t_ns)
		return s->value[0].bytes;
	for (size_t i = 0; i < s->values; i++)
		sum += (double)s->value[i].bytes *
		       (double)((i + 1 < s->values ? s->value[i + 1].t_ns : end_ns) - s->value[i].t_ns);
	return (uint64_t)(sum / (double)(end_ns - s->value[0].t_ns));
}

/* The label of a series: its policy, domain and file, as far as other series make them necessary, and its average. */
static void write_label(FILE *to, const struct picture *p, const struct series *s)
{
	char label[PATH_MAX + 200], mean[HP_TEXT_MAX], peak[HP_TEXT_MAX];
	const char *name = hp_base_name(p->file[s->file]);
	bool domains = false;
	int n;

	for (int i = 0; i < p->files; i++)
		if (i != s->file && !strcmp(name, hp_base_name(p->file[i])))
			name = p->file[s->file];
	for (int i = 0; i < p->count; i++)
		domains |= p->series[i].file == s->file && p->series[i].domain != s->domain;
	n = snprintf(label, sizeof label, "%s", s->policy);
	if (domains)
		n += snprintf(label + n, sizeof label - (size_t)n, ", domain %" PRIu64, s->domain);
	snprintf(label + n, sizeof label - (size_t)n, ", %s: mean %s, peak %s, %zu %s", name,
		 hp_text_bytes(mean_bytes(p, s), mean), hp_text_bytes(s->peak_bytes, peak), s->misses,
		 s->misses == 1 ? "miss" : "misses");
	quote(to, label);
}

/* The colours of Okabe and Ito, which most colour-blind people can tell apart. Further series repeat them with other
 * dashes. */
static void write_style(FILE *to, int i)
{
	static const char *const colours[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7",
					       "#e69f00", "#56b4e9", "#000000" };
	const int n = sizeof colours / sizeof colours[0];

	fprintf(to, "linecolor rgb '%s' dashtype %d", colours[i % n], i / n % 5 + 1);
}

/* Write gnuplot's margins: `bottom` is the height above the bottom of the picture. */
static void write_margins(FILE *to, int height, int bottom, int top)
{
	fprintf(to,
		"set lmargin at screen %f; set rmargin at screen %f; set bmargin at screen %f; set tmargin at screen "
		"%f\n",
		(double)LEFT / (double)WIDTH, 1 - (double)EDGE / (double)WIDTH, (double)bottom / height,
		(double)top / height);
}

static void write_script(FILE *to, const struct picture *p, const char *title, bool svg)
{
	const struct scale x = time_scale(p->length_ns), y = bytes_scale(p->peak_bytes);
	const int head = EDGE + (title ? ROW_HEIGHT + 8 : 0) + p->count * ROW_HEIGHT;
	size_t misses = 0;
	int marks = 0; /* the height of all rows */

	for (int i = 0; i < p->count; i++)
		misses += p->series[i].misses;
	if (misses)
		marks = p->count * MARKS_HEIGHT + 8;

	const int height = head + PLOT_HEIGHT + marks + BELOW;

	for (int i = 0; i < p->count; i++) {
		fprintf(to, "$values%d << END\n", i);
		write_values(to, p, &p->series[i]);
		fprintf(to, "END\n$misses%d << END\n", i);
		write_misses(to, p, &p->series[i], i);
		fputs("END\n", to);
	}
	if (svg)
		fprintf(to, "set terminal svg noenhanced size %d,%d font 'sans-serif,14' background rgb 'white'\n",
			WIDTH, height);
	else
		fprintf(to, "set terminal pngcairo noenhanced size %d,%d font 'sans,12' background rgb 'white'\n",
			WIDTH, height);
	fputs("set encoding utf8\nset multiplot\nset border 3 linecolor rgb '#606060'\nset tics out nomirror\n"
	      "set grid linecolor rgb '#d8d8d8' linetype 1 linewidth 0.5\n",
	      to);
	fprintf(to, "set xrange [0:%.9g]\nset yrange [0:%.9g]\n", p->length_ns ? (double)p->length_ns / x.unit : 1.0,
		p->peak_bytes ? (double)p->peak_bytes * 1.05 / y.unit : 1.0);
	if (title) {
		fprintf(to, "set label 1 at screen 0.5, screen %f center font ',16' ", 1 - (double)(EDGE + 2) / height);
		quote(to, title);
		putc('\n', to);
	}
	fprintf(to, "set key at screen %f, screen %f left top Left reverse samplen 2 maxcols 1\n",
		(double)LEFT / (double)WIDTH, 1 - (head - p->count * ROW_HEIGHT - 10.0) / height);
	fprintf(to, "set ylabel 'registered memory (%s)' offset 1\n", y.name);
	write_margins(to, height, BELOW + marks, BELOW + marks + PLOT_HEIGHT);
	if (marks)
		fputs("set format x ''\nset xtics scale 0\n", to);
	else
		fprintf(to, "set xlabel 'time (%s)'\n", x.name);
	for (int i = 0; i < p->count; i++) {
		fprintf(to, "%s $values%d using 1:2 with steps linewidth 2 ", i ? "," : "plot", i);
		write_style(to, i);
		fputs(" title ", to);
		write_label(to, p, &p->series[i]);
	}
	putc('\n', to);
	if (marks) {
		fprintf(to,
			"unset label\nunset key\nunset grid\nset format x\nset xtics scale 1\nset border 1\nset xlabel "
			"'time (%s)'\n",
			x.name);
		fprintf(to, "unset ytics\nset ylabel 'misses' rotate by 0 offset -1.5\nset yrange [%d:0]\n", p->count);
		write_margins(to, height, BELOW, BELOW + marks - 8);
		for (int i = 0; i < p->count; i++) {
			fprintf(to, "%s $misses%d using 1:2:(0):(0.7) with vectors nohead linewidth 1.5 ",
				i ? "," : "plot", i);
			write_style(to, i);
		}
		putc('\n', to);
	}
	fputs("unset multiplot\n", to);
}

/* Have gnuplot draw into memory, then write the picture to a file: gnuplot itself reports no error if a disk is
 * full. */
static void draw_picture(const struct picture *p, const char *title, bool svg, FILE *output)
{
	char *const args[] = { (char *)"gnuplot", (char *)"-d", (char *)"-", NULL };
	const int drawn = memfd_create("picture", MFD_CLOEXEC);
	posix_spawn_file_actions_t actions;
	int script[2], status, e;
	char part[4096];
	ssize_t n;
	pid_t pid;

	if (drawn < 0 || pipe2(script, O_CLOEXEC))
		fail("%s", strerror(errno));
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, script[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, drawn, STDOUT_FILENO);
	setenv("LC_ALL", "C.UTF-8", 1); /* the script's encoding; in plain C gnuplot warns of other characters */
	signal(SIGCHLD, SIG_DFL); /* if SIGCHLD is ignored, there is no status to wait for */
	e = posix_spawnp(&pid, args[0], &actions, NULL, args, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (e == ENOENT)
		fail("gnuplot is not in PATH; on Debian: apt-get install gnuplot-nox");
	if (e)
		fail("gnuplot: %s", strerror(e));
	close(script[0]);
	signal(SIGPIPE, SIG_IGN); /* if gnuplot ends early, its status tells */

	FILE *to = fdopen(script[1], "w");
	if (!to)
		fail("%s", strerror(errno));
	write_script(to, p, title, svg);
	fclose(to);
	if (waitpid(pid, &status, 0) != pid || status)
		fail("gnuplot failed");
	for (off_t at = 0; (n = pread(drawn, part, sizeof part, at)) > 0; at += n)
		fwrite(part, 1, (size_t)n, output);
	close(drawn);
}

/* ------------------------------------------------------------------ the command */

static char *volatile unfinished; /* name of a file that is removed at exit */

static void remove_unfinished(void)
{
	if (unfinished)
		unlink(unfinished);
}

static void end_by_signal(int s)
{
	remove_unfinished();
	signal(s, SIG_DFL);
	raise(s);
}

/* Create the file that becomes the output. It has a new name, so that no file of another user is written to. */
static FILE *create(const char *output)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP };
	const struct sigaction remove = { .sa_handler = end_by_signal };
	const mode_t mask = umask(077);
	struct sigaction now;
	sigset_t all, old;
	char *name;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &old);
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
		if (!sigaction(ends[i], NULL, &now) && now.sa_handler != SIG_IGN)
			sigaction(ends[i], &remove, NULL);
	if (asprintf(&name, "%s.XXXXXX.part", output) < 0)
		fail("%s", strerror(errno));

	const int fd = mkostemps(name, 5, O_CLOEXEC);
	FILE *const to = fd < 0 ? NULL : fdopen(fd, "w");

	if (!to)
		fail("%s: %s", output, strerror(errno));
	unfinished = name; /* only now is the file ours, to be removed by a signal */
	fchmod(fd, 0666 & ~mask);
	umask(mask);
	sigprocmask(SIG_SETMASK, &old, NULL);
	return to;
}

int hp_plot_main(int argc, char **argv)
{
	static const struct option longs[] = { { "help", no_argument, NULL, 'h' }, { 0 } };
	const char *output = "pinned.png", *title = NULL;
	struct picture p = { 0 };

	for (int c; (c = getopt_long(argc, argv, "o:t:", longs, NULL)) != -1;) {
		switch (c) {
		case 'o':
			output = optarg;
			break;
		case 't':
			title = optarg;
			break;
		default:
			return hp_usage(argv[0], c == 'h');
		}
	}

	const char *dot = strrchr(hp_base_name(output), '.');
	const bool svg = dot && !strcasecmp(dot, ".svg"), json = dot && !strcasecmp(dot, ".json");

	if (optind == argc || (!svg && !json && (!dot || strcasecmp(dot, ".png")))) {
		if (optind < argc)
			fprintf(stderr, "hugepin plot: %s: the name of the picture ends in .png, .svg or .json\n",
				output);
		return hp_usage(argv[0], false);
	}
	p.file = argv + optind;
	p.files = argc - optind;
	p.begin_ns = calloc((size_t)p.files, sizeof *p.begin_ns);
	p.end_ns = calloc((size_t)p.files, sizeof *p.end_ns);
	if (!p.begin_ns || !p.end_ns)
		fail("%s", strerror(errno));

	/* An old picture stays until there is a new one. */
	atexit(remove_unfinished);

	FILE *to = create(output);
	p.json = json ? to : NULL;
	for (int i = 0; i < p.files; i++)
		read_trace(&p, i);
	if (!p.count)
		fail("there are no events in %s%s", p.file[0], p.files > 1 ? " and the others" : "");
	for (int i = 0; i < p.count; i++)
		p.peak_bytes = p.series[i].peak_bytes > p.peak_bytes ? p.series[i].peak_bytes : p.peak_bytes;
	if (json)
		fputs("\n]}\n", to);
	else
		draw_picture(&p, title, svg, to);

	const bool written = !ferror(to);
	if (fclose(to) || !written || rename(unfinished, output))
		fail("%s: %s", output, strerror(errno));
	unfinished = NULL;
	return 0;
}
