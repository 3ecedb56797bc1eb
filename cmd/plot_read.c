/*
 * Reading traces: their format, and what is refused.
 */
#include "cmd/plot_read.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/usage.h"

#define HEADER "t_ns,event,domain,policy,addr,len,pinned_bytes,regions"
/* how the first line of HUGEPIN_MPI_TRACE begins */
#define CALLS_HEADER "seq(call number),"

static const char *const kinds[] = { "pin", "unpin", "register", "deregister", "miss" };

_Noreturn void hp_plot_fail(const char *format, ...)
{
	va_list args;

	fputs("hugepin plot: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	putc('\n', stderr);
	exit(HP_EXIT_FAILED);
}

void *hp_plot_grown(void *array, size_t count, size_t size)
{
	if (count & (count - 1))
		return array;
	array = reallocarray(array, count ? 2 * count : 1, size);
	if (!array)
		hp_plot_fail("%s", strerror(errno));
	return array;
}

/* ------------------------------------------------------------------ what was read */

static struct hp_series *find_series(struct hp_traces *t, int file, uint64_t domain, const char *policy)
{
	for (int i = t->count - 1; i >= 0 && t->series[i].file == file; i--)
		if (t->series[i].domain == domain && !strcmp(t->series[i].policy, policy))
			return &t->series[i];
	t->series = hp_plot_grown(t->series, (size_t)t->count, sizeof *t->series);

	struct hp_series *s = &t->series[t->count++];

	*s = (struct hp_series){ .file = file, .domain = domain };
	snprintf(s->policy, sizeof s->policy, "%s", policy);
	return s;
}

static void add_value(struct hp_series *s, uint64_t t_ns, uint64_t bytes)
{
	if (s->values && s->value[s->values - 1].bytes == bytes)
		return;
	s->value = hp_plot_grown(s->value, s->values, sizeof *s->value);
	s->value[s->values++] = (struct hp_value){ t_ns, bytes };
	s->peak_bytes = bytes > s->peak_bytes ? bytes : s->peak_bytes;
}

static void add_event(struct hp_traces *t, int file, const struct hp_event *e)
{
	struct hp_series *s = find_series(t, file, e->domain, e->policy);

	add_value(s, e->t_ns, e->bytes);
	if (e->kind == HP_MISS) {
		s->miss_ns = hp_plot_grown(s->miss_ns, s->misses, sizeof *s->miss_ns);
		s->miss_ns[s->misses++] = e->t_ns;
	}
}

/* ------------------------------------------------------------------ lines */

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

/* Parse a line without its newline. *ret_ points into the line. Returns NULL, or the error in the line. */
static const char *parse_event(char *line, struct hp_event *ret_)
{
	uint64_t unused;
	int kind = 0;

	if (!take_number(&line, 10, ',', &ret_->t_ns))
		return "the time is no number of nanoseconds";

	const char *event = strsep(&line, ",");
	while (kind < HP_EVENT_KINDS && strcmp(event, kinds[kind]))
		kind++;
	if (kind == HP_EVENT_KINDS)
		return "no such event; events are pin, unpin, register, deregister and miss";
	ret_->kind = (enum hp_event_kind)kind;
	if (!line || !take_number(&line, 10, ',', &ret_->domain))
		return "the domain is no number";

	const char *policy = strsep(&line, ",");
	if (!*policy || strlen(policy) >= HP_POLICY_MAX ||
	    policy[strspn(policy, "abcdefghijklmnopqrstuvwxyz0123456789")])
		return "no such policy; a policy is a word, as arena, lru or cf11";
	ret_->policy = policy;
	if (!line || !take_number(&line, 16, ',', &ret_->addr) || !take_number(&line, 10, ',', &ret_->len) ||
	    !take_number(&line, 10, ',', &ret_->bytes) || !take_number(&line, 10, '\0', &unused))
		return "the last four fields are not numbers: addr in hexadecimal, len, pinned_bytes, regions";
	return NULL;
}

static const char *read_event(struct hp_traces *t, int file, char *line, bool first)
{
	struct hp_file *f = &t->file[file];
	struct hp_event e;
	const char *wrong = parse_event(line, &e);

	if (wrong)
		return wrong;
	if (e.t_ns < f->end_ns)
		return "the time is before that of the line above; if several processes wrote this file, "
		       "HUGEPIN_TRACE needs a %p in the path";
	f->end_ns = e.t_ns;
	if (first)
		f->begin_ns = e.t_ns;
	if (t->each)
		t->each(t->arg, file, &e);
	add_event(t, file, &e);
	return NULL;
}

/* Read a line that begins with #: of a rank it is "# rank=3 pid=1234 host=node7". Others are for people. */
static void read_comment(struct hp_file *f, const char *line)
{
	int rank, len = 0;
	uint64_t pid;

	if (sscanf(line, "# rank=%9d pid=%9" SCNu64 " host=%n", &rank, &pid, &len) != 2 || rank < 0 || !len)
		return;
	f->rank = rank;
	f->pid = pid;
	snprintf(f->host, sizeof f->host, "%s", line + len);
}

/* What is wrong with the first line, or NULL. */
static const char *check_header(const char *line)
{
	if (!strncmp(line, CALLS_HEADER, sizeof CALLS_HEADER - 1))
		return "this file has the calls of an MPI program, of HUGEPIN_MPI_TRACE; plot draws the registered "
		       "memory, which HUGEPIN_TRACE=run.csv records";
	return strcmp(line, HEADER) ? "not a trace of HUGEPIN_TRACE, whose first line is " HEADER : NULL;
}

void hp_plot_read(struct hp_traces *t, int file)
{
	struct hp_file *f = &t->file[file];
	FILE *from = fopen(f->name, "re");
	size_t room = 0, number = 0;
	char *line = NULL;
	bool first = true;
	ssize_t len;

	f->rank = -1;
	if (!from)
		hp_plot_fail("%s: %s", f->name, strerror(errno));
	while ((len = getline(&line, &room, from)) > 0) {
		const char *wrong = NULL;

		if (line[len - 1] == '\n')
			line[--len] = '\0';
		if (strlen(line) != (size_t)len) {
			wrong = number++ ? "a zero byte" : "not a trace of HUGEPIN_TRACE: it has a zero byte";
		} else if (++number == 1) {
			wrong = check_header(line);
		} else if (line[0] == '#') {
			read_comment(f, line);
		} else {
			wrong = read_event(t, file, line, first);
			first = false;
		}
		if (wrong)
			hp_plot_fail("%s:%zu: %s", f->name, number, wrong);
	}
	if (ferror(from))
		hp_plot_fail("%s: %s", f->name, strerror(errno));
	if (!number)
		hp_plot_fail("%s:1: not a trace of HUGEPIN_TRACE: the file is empty", f->name);
	free(line);
	fclose(from);
}
