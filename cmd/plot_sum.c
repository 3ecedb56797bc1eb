/*
 * The runs of a picture, and the sums of their ranks.
 */
#include "cmd/plot_sum.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/text.h"

/* ------------------------------------------------------------------ runs */

/* Replace the last run of digits in the name that is this number by a star. */
static void star(char *name, uint64_t number)
{
	char digits[24];
	size_t len;

	snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
	len = strlen(digits);
	for (char *at = name + strlen(name); at-- > name;) {
		if (!strncmp(at, digits, len) && !isdigit((unsigned char)at[len]) &&
		    (at == name || !isdigit((unsigned char)at[-1]))) {
			*at = '*';
			memmove(at + 1, at + len, strlen(at + len) + 1);
			return;
		}
	}
}

/* The rank of a file that does not say so inside, by ".r3" in its name, or -1. */
static int rank_by_name(const char *path)
{
	int rank = -1, end;

	for (const char *at = hp_base_name(path); (at = strstr(at, ".r")); at += 2)
		if (isdigit((unsigned char)at[2]) && sscanf(at + 2, "%9d%n", &rank, &end) == 1 &&
		    (!at[2 + end] || at[2 + end] == '.'))
			return rank;
	return -1;
}

/* The name of the file with stars for its rank and process; *ret_rank is -1 if it has no rank. */
static char *common_name(const struct hp_file *f, int *ret_rank)
{
	char *name = strdup(f->name);

	if (!name)
		hp_plot_fail("no memory");
	*ret_rank = f->rank >= 0 ? f->rank : rank_by_name(f->name);
	if (f->pid)
		star(name + (hp_base_name(name) - name), f->pid);
	if (*ret_rank >= 0)
		star(name + (hp_base_name(name) - name), (uint64_t)*ret_rank);
	return name;
}

/* Find the run of each file: files of one common name, with different ranks. A run of one file gets the file's own
 * name. */
static void find_runs(struct hp_picture *p, const struct hp_traces *t, int *run_of)
{
	int *rank = calloc((size_t)t->files, sizeof *rank);

	for (int i = 0; i < t->files; i++) {
		char *name = common_name(&t->file[i], &rank[i]);
		int r = 0;

		for (; r < p->runs; r++) {
			bool ours = rank[i] >= 0 && !strcmp(p->run[r].name, name);

			for (int k = 0; ours && k < i; k++)
				ours = run_of[k] != r || (rank[k] >= 0 && rank[k] != rank[i]);
			if (ours)
				break;
		}
		if (r == p->runs) {
			p->run = hp_plot_grown(p->run, (size_t)p->runs, sizeof *p->run);
			p->run[p->runs++] = (struct hp_plot_run){ .name = name };
		} else {
			free(name);
		}
		run_of[i] = r;
		p->run[r].files++;
		if (rank[i] >= 0)
			p->ranks = p->run[r].files > p->ranks ? p->run[r].files : p->ranks;
	}
	for (int i = 0; i < t->files; i++) {
		struct hp_plot_run *r = &p->run[run_of[i]];

		if (r->files == 1) {
			free(r->name);
			r->name = strdup(t->file[i].name);
		}
	}
	free(rank);
}

/* When the left edge is, by the file's clock: the first event of the file, or of the run's files on that host. */
static uint64_t left_edge(const struct hp_traces *t, const int *run_of, int file)
{
	uint64_t edge = t->file[file].begin_ns;

	if (!t->file[file].end_ns) /* no events */
		return 0;
	for (int i = 0; i < t->files && *t->file[file].host; i++)
		if (run_of[i] == run_of[file] && !strcmp(t->file[i].host, t->file[file].host) &&
		    t->file[i].end_ns && t->file[i].begin_ns < edge)
			edge = t->file[i].begin_ns;
	return edge;
}

char *hp_plot_output(const struct hp_plot_run *r)
{
	char *name = malloc(strlen(r->name) + sizeof ".png"), *base, *to, *dot;

	if (!name)
		hp_plot_fail("no memory");
	strcpy(name, r->name);
	base = name + (hp_base_name(name) - name);
	to = base;
	for (const char *from = base; *from; from++) {
		if (*from != '*' || r->files == 1) {
			*to++ = *from;
			continue;
		}
		if (to > base + 1 && to[-1] == 'r' && to[-2] == '.') /* ".r*", as the library puts it */
			to -= 2;
		else if (to > base && strchr("-._", to[-1]))
			to--;
		else if (to == base && from[1] && strchr("-._", from[1]))
			from++;
	}
	*to = '\0';
	dot = strrchr(base, '.');
	if (dot && dot > base && strcmp(dot, ".png"))
		*dot = '\0';
	if (!*base)
		strcpy(base, "pinned");
	return strcat(name, ".png");
}

/* ------------------------------------------------------------------ lines */

int hp_plot_column(uint64_t t_ns, uint64_t length_ns, int columns)
{
	return (int)((double)t_ns * (double)columns / ((double)length_ns + 1));
}

/* A change of a member's bytes. number: changes of one time stay in the order in which they were read. */
struct change {
	uint64_t t_ns, number, up, down;
};

static int by_value(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int by_time(const void *a, const void *b)
{
	const struct change *x = a, *y = b;

	return x->t_ns != y->t_ns ? by_value(&x->t_ns, &y->t_ns) : by_value(&x->number, &y->number);
}

static void add_sum(struct hp_curve *c, uint64_t t_ns, uint64_t bytes)
{
	if (c->values && c->value[c->values - 1].t_ns == t_ns)
		c->value[c->values - 1].bytes = bytes; /* of changes at one time the last counts */
	else if (!c->values || c->value[c->values - 1].bytes != bytes) {
		c->value = hp_plot_grown(c->value, c->values, sizeof *c->value);
		c->value[c->values++] = (struct hp_value){ t_ns, bytes };
	}
}

/* Put the members' values and misses into the curve. `edge` is by file. */
static void sum_members(struct hp_curve *c, const struct hp_traces *t, const uint64_t *edge, const int *curve_of, int me)
{
	struct change *change = NULL;
	size_t changes = 0;
	uint64_t sum = 0;

	for (int i = 0; i < t->count; i++) {
		const struct hp_series *s = &t->series[i];

		if (curve_of[i] != me)
			continue;
		for (size_t k = 0; k < s->values; k++) {
			change = hp_plot_grown(change, changes, sizeof *change);
			change[changes] = (struct change){ s->value[k].t_ns - edge[s->file], changes, s->value[k].bytes,
							   k ? s->value[k - 1].bytes : 0 };
			changes++;
		}
		for (size_t k = 0; k < s->misses; k++) {
			c->miss_ns = hp_plot_grown(c->miss_ns, c->misses, sizeof *c->miss_ns);
			c->miss_ns[c->misses++] = s->miss_ns[k] - edge[s->file];
		}
		c->member_peak_bytes = s->peak_bytes > c->member_peak_bytes ? s->peak_bytes : c->member_peak_bytes;
	}
	if (c->members > 1) {
		qsort(change, changes, sizeof *change, by_time);
		if (c->misses)
			qsort(c->miss_ns, c->misses, sizeof *c->miss_ns, by_value);
	}
	for (size_t i = 0; i < changes; i++) {
		sum += change[i].up - change[i].down;
		if (c->members > 1) {
			add_sum(c, change[i].t_ns, sum);
		} else { /* as it was read: several changes at one time are a spike */
			c->value = hp_plot_grown(c->value, c->values, sizeof *c->value);
			c->value[c->values++] = (struct hp_value){ change[i].t_ns, sum };
		}
		c->peak_bytes = sum > c->peak_bytes ? sum : c->peak_bytes;
	}
	free(change);
}

/* The average over time, from the first event to the end. */
static uint64_t mean_bytes(const struct hp_curve *c)
{
	double sum = 0;

	if (c->end_ns <= c->value[0].t_ns)
		return c->value[c->values - 1].bytes;
	for (size_t i = 0; i < c->values; i++)
		sum += (double)c->value[i].bytes *
		       (double)((i + 1 < c->values ? c->value[i + 1].t_ns : c->end_ns) - c->value[i].t_ns);
	return (uint64_t)(sum / (double)(c->end_ns - c->value[0].t_ns));
}

/* Widen the range of the columns [from, to] to hold these bytes. */
static void widen(struct hp_curve *c, int from, int to, uint64_t bytes)
{
	for (int i = from; i <= to && i < HP_BAND; i++) {
		c->low[i] = bytes < c->low[i] ? bytes : c->low[i];
		c->high[i] = bytes > c->high[i] ? bytes : c->high[i];
	}
}

/* Find the range of the members in each column. Before its first event a member has nothing registered; after its last
 * one it keeps what it has. */
static void find_band(struct hp_curve *c, const struct hp_traces *t, const uint64_t *edge, const int *curve_of, int me,
		      uint64_t length_ns)
{
	c->low = malloc(HP_BAND * sizeof *c->low);
	c->high = calloc(HP_BAND, sizeof *c->high);
	if (!c->low || !c->high)
		hp_plot_fail("no memory");
	memset(c->low, 0xff, HP_BAND * sizeof *c->low);
	for (int i = 0; i < t->count; i++) {
		const struct hp_series *s = &t->series[i];
		uint64_t before = 0;
		int from = 0;

		if (curve_of[i] != me)
			continue;
		for (size_t k = 0; k < s->values; k++) {
			const int column = hp_plot_column(s->value[k].t_ns - edge[s->file], length_ns, HP_BAND);

			widen(c, from, column, before);
			from = column;
			before = s->value[k].bytes;
		}
		widen(c, from, HP_BAND - 1, before);
	}
}

void hp_plot_sum(struct hp_picture *p, const struct hp_traces *t)
{
	int *run_of = calloc((size_t)t->files, sizeof *run_of), *curve_of = calloc((size_t)t->count, sizeof *curve_of);
	uint64_t *edge = calloc((size_t)t->files, sizeof *edge);

	if (!run_of || !curve_of || !edge)
		hp_plot_fail("no memory");
	*p = (struct hp_picture){ 0 };
	find_runs(p, t, run_of);
	for (int i = 0; i < t->files; i++) {
		struct hp_plot_run *r = &p->run[run_of[i]];

		edge[i] = left_edge(t, run_of, i);
		if (t->file[i].end_ns - edge[i] > r->length_ns)
			r->length_ns = t->file[i].end_ns - edge[i];
		p->length_ns = r->length_ns > p->length_ns ? r->length_ns : p->length_ns;
	}

	for (int i = 0; i < t->count; i++) {
		const struct hp_series *s = &t->series[i];
		const int run = run_of[s->file];
		int c = t->count <= HP_LINES_MAX ? p->curves : 0, domains = 0;
		bool known = false;

		for (int k = 0; k < t->count; k++) /* opened again under another policy, a domain is the same */
			domains += t->series[k].file == s->file &&
				   (t->series[k].domain != s->domain || &t->series[k] == s);
		p->run[run].domains = domains > p->run[run].domains ? domains : p->run[run].domains;
		for (int k = 0; k < i; k++)
			known |= !strcmp(t->series[k].policy, s->policy);
		p->policies += !known;
		while (c < p->curves && (p->curve[c].run != run || strcmp(p->curve[c].first->policy, s->policy)))
			c++;
		if (c == p->curves) {
			p->curve = hp_plot_grown(p->curve, (size_t)p->curves, sizeof *p->curve);
			p->curve[p->curves++] =
				(struct hp_curve){ .run = run, .first = s, .name = t->file[s->file].name,
						   .end_ns = t->file[s->file].end_ns - edge[s->file] };
		}
		p->curve[c].members++;
		curve_of[i] = c;
	}
	p->panels = p->curves == 2 && t->count == 2 && p->policies == 2 ? 1 : p->curves;
	for (int i = 0; i < p->curves; i++) {
		struct hp_curve *c = &p->curve[i];

		sum_members(c, t, edge, curve_of, i);
		if (c->members > 1) {
			c->name = p->run[c->run].name;
			c->end_ns = p->run[c->run].length_ns;
			find_band(c, t, edge, curve_of, i, p->length_ns);
		}
		c->mean_bytes = mean_bytes(c);
	}
	free(run_of);
	free(curve_of);
	free(edge);
}
