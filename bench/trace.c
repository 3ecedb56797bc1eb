/*
 * Reading traces of communication: lines of CSV, perhaps compressed, into uses in the order of their starts; then the
 * regions that the uses are in, and the events in the order of the program.
 */
#include "trace.h"

#include <ctype.h>
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

void *trace_get(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	if (!p)
		err(1, "calloc");
	return p;
}

static const char *const columns[] = { "seq", "t_start", "t_end",   "cpu_app", "op", "dir", "addr",
				       "len", "payload", "peer", "f0",	    "f1", "f2",  "f3" };
enum { START = 1, END, CPU, OP, DIR, ADDR, LEN, F0 = 10, COLUMNS = 14 };

static size_t split(char *line, char **field)
{
	size_t n = 0;

	for (char *next = line; next; n++) {
		char *at = strsep(&next, ",");

		if (n < COLUMNS)
			field[n] = at;
	}
	return n;
}

static void check_header(const char *path, char *line)
{
	char *field[COLUMNS] = { NULL };
	size_t n = split(line, field);

	for (size_t i = 0; i < COLUMNS; i++) {
		size_t len = strlen(columns[i]);

		/* Remarks follow the names in parentheses. */
		if (i >= n || strncmp(field[i], columns[i], len) || (field[i][len] && field[i][len] != '('))
			errx(1, "%s:1: no trace: column %zu should be %s", path, i + 1, columns[i]);
	}
}

static uint64_t number(const char *path, size_t line, const char *column, const char *text, int base)
{
	char *end;
	uint64_t n;

	errno = 0;
	n = strtoull(text, &end, base);
	/* The sign that strtoull would take is refused, too. */
	if (!isxdigit((unsigned char)*text) || *end || errno || n > INT64_MAX)
		errx(1, "%s:%zu: %s is no number from 0 up: '%s'", path, line, column, text);
	return n;
}

static uint64_t hashed(uint64_t hash, const char *text) /* FNV-1a (Fowler, Noll, Vo 1991), its end included */
{
	do
		hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
	while (*text++);
	return hash;
}

static void read_use(const char *path, size_t line, char *text, const struct use *before, uint64_t unit,
		     struct use *ret_)
{
	char *field[COLUMNS];
	struct use u = { 0 };
	uint64_t len;

	if (split(text, field) != COLUMNS)
		errx(1, "%s:%zu: not %d fields", path, line, COLUMNS);
	u.start = number(path, line, columns[START], field[START], 10);
	u.end = number(path, line, columns[END], field[END], 10);
	u.cpu = number(path, line, columns[CPU], field[CPU], 10);
	u.addr = number(path, line, columns[ADDR], field[ADDR], 16);
	len = number(path, line, columns[LEN], field[LEN], 10);
	u.receives = *field[DIR] == 'R';
	u.call = hashed(0, field[OP]);
	for (size_t i = F0; i < COLUMNS; i++)
		u.stack = hashed(u.stack, field[i]);
	u.site = number(path, line, columns[F0], field[F0], 16); /* of the frames, the library sees its caller alone */
	if (u.end < u.start)
		errx(1, "%s:%zu: it ends before it starts", path, line);
	if (before && u.start < before->start)
		errx(1, "%s:%zu: it starts before the line above", path, line);
	if (!len || u.addr + len > INT64_MAX - unit)
		errx(1, "%s:%zu: no range of memory", path, line);
	u.limit = (u.addr + len + unit - 1) / unit * unit;
	u.addr = u.addr / unit * unit;
	*ret_ = u;
}

/* Exit if reading has failed. The rest of a compressed file that was cut short is no line. */
static void check_stream(const char *path, size_t line, gzFile f)
{
	int problem;
	const char *what = gzerror(f, &problem); /* begins with the path */

	if (problem != Z_OK && problem != Z_STREAM_END)
		errx(1, "%s:%zu: %s", path, line, problem == Z_ERRNO ? strerror(errno) : what + strlen(path) + 2);
}

static void read_file(const char *path, uint64_t unit, struct trace *t)
{
	gzFile f = gzopen(path, "r"); /* plain files, too */
	static char text[4096];
	size_t line = 0, room = 0;

	if (!f)
		errx(1, "%s: %s", path, strerror(errno ? errno : ENOMEM));
	while (gzgets(f, text, sizeof text)) {
		line++;
		if (!strchr(text, '\n')) {
			check_stream(path, line, f);
			if (!gzeof(f))
				errx(1, "%s:%zu: too long a line", path, line);
		}
		text[strcspn(text, "\r\n")] = 0;
		if (line == 1) {
			check_header(path, text);
			continue;
		}
		if (*text == '#' || !*text)
			continue;
		if (t->uses == room) {
			room = room ? 2 * room : 4096;
			t->use = reallocarray(t->use, room, sizeof *t->use);
			if (!t->use)
				err(1, "reallocarray");
		}
		read_use(path, line, text, t->uses ? &t->use[t->uses - 1] : NULL, unit,
			 &t->use[t->uses]);
		t->uses++;
	}
	check_stream(path, line + 1, f);
	gzclose(f);
	if (!t->uses)
		errx(1, "%s:%zu: a trace without calls", path, line + 1);
	if (t->uses > UINT32_MAX / 2)
		errx(1, "%s: too long", path);
}

static const struct use *sorted_uses; /* qsort's compare functions have no argument of their own */

static int by_addr(const void *a, const void *b)
{
	const struct use *x = &sorted_uses[*(const uint32_t *)a], *y = &sorted_uses[*(const uint32_t *)b];

	return (x->addr > y->addr) - (x->addr < y->addr);
}

static int by_end(const void *a, const void *b)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	const struct use *x = &sorted_uses[i], *y = &sorted_uses[j];

	return x->end != y->end ? (x->end > y->end) - (x->end < y->end) : (i > j) - (i < j);
}

static uint32_t *sorted(const struct trace *t, int (*compare)(const void *, const void *))
{
	uint32_t *order = trace_get(t->uses, sizeof *order);

	for (uint32_t i = 0; i < t->uses; i++)
		order[i] = i;
	sorted_uses = t->use;
	qsort(order, t->uses, sizeof *order, compare);
	return order;
}

/* Ranges that overlap in the course of the trace are one region. */
static void find_regions(const char *path, struct trace *t)
{
	uint32_t *order = sorted(t, by_addr);
	uint64_t start = 0, limit = 0;

	t->bytes = trace_get(t->uses + 1, sizeof *t->bytes);
	for (size_t i = 0; i < t->uses; i++) {
		struct use *u = &t->use[order[i]];

		if (!i || u->addr >= limit) {
			t->regions++;
			start = u->addr;
			limit = u->limit;
		}
		if (u->limit > limit)
			limit = u->limit;
		u->region = t->regions;
		t->bytes[t->regions] = limit - start;
	}
	free(order);
	if (t->regions >= 1 << 20)
		errx(1, "%s: too many regions", path);
}

static void find_events(const struct trace_options *options, struct trace *t)
{
	uint32_t *ends = sorted(t, by_end), *active = trace_get(t->regions + 1, sizeof *active);
	size_t next = 0, ended = 0;
	uint64_t last = t->use[0].start, cpu = t->use[0].cpu, inuse = 0;

	t->event = trace_get(2 * t->uses, sizeof *t->event);
	while (ended < t->uses) {
		struct event *e = &t->event[next + ended];
		struct use *u = &t->use[ends[ended]];

		/* Of events at the same time, ends come first, but after their own starts. */
		e->end = next == t->uses || (ends[ended] < next && u->end <= t->use[next].start);
		if (e->end) {
			e->use = ends[ended++];
			last = u->end;
			if (!--active[u->region])
				inuse -= t->bytes[u->region];
			continue;
		}
		e->use = (uint32_t)next;
		u = &t->use[next++];
		u->compute_ns = (int64_t)(options->wall ? u->start - last : u->cpu > cpu ? u->cpu - cpu : 0);
		u->length_ns = (int64_t)(u->end - u->start);
		if (options->cap_ns > 0 && u->length_ns > (int64_t)options->cap_ns)
			u->length_ns = (int64_t)options->cap_ns;
		last = u->start;
		cpu = u->cpu;
		if (!active[u->region]++)
			inuse += t->bytes[u->region];
		if (inuse > t->inuse_peak)
			t->inuse_peak = inuse;
	}
	free(active);
	free(ends);
}

void trace_read(const char *path, const struct trace_options *options, struct trace *ret_)
{
	const char *base = strrchr(path, '/'), *end;

	memset(ret_, 0, sizeof *ret_);
	base = base ? base + 1 : path;
	end = strstr(base, ".csv");
	snprintf(ret_->name, sizeof ret_->name, "%.*s", end ? (int)(end - base) : (int)strlen(base), base);
	read_file(path, options->unit, ret_);
	find_regions(path, ret_);
	find_events(options, ret_);
}

void trace_free(struct trace *t)
{
	free(t->use);
	free(t->event);
	free(t->bytes);
}
