/* link: cmd/plot_json.c cmd/facts.c cmd/text.c base/base.c base/clock.c base/sys.c base/config.c -ljansson */
/*
 * Fuzzes what hugepin plot reads: a trace is refused, or its picture is written, of lines that gnuplot understands: nothing
 * that came from a file stands there but numbers and what is quoted. The first byte says whether the header is put right,
 * whether the events are written as JSON, too, and whether the trace is that of one process or of several ranks.
 */
#include <assert.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "cmd/plot_json.h"
#include "cmd/usage.h"

static jmp_buf refused;
static const uint8_t *trace;
static size_t trace_len;

static FILE *nobody; /* hears what is refused */

static FILE *fopen_(const char *path, const char *mode)
{
	return fopen(path, mode);
}

static FILE *opened; /* hp_plot_fail() does not return to who would close it */

static FILE *trace_open(void)
{
	opened = tmpfile();
	assert(opened && fwrite(trace, 1, trace_len, opened) == trace_len);
	rewind(opened);
	return opened;
}

#define fopen(path, mode) trace_open()
#define fclose(f) (opened = NULL, fclose(f))
#undef stderr
#define stderr nobody
#define exit(status) longjmp(refused, status)
#include "cmd/plot_read.c"
#undef fopen
#undef fclose
#include "cmd/plot_sum.c"
#include "cmd/plot_draw.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct hp_traces t; /* nor to who would free it */
static struct hp_picture p;

static void forget(void)
{
	if (opened)
		fclose(opened);
	opened = NULL;
	for (int i = 0; i < t.count; i++) {
		free(t.series[i].value);
		free(t.series[i].miss_ns);
	}
	free(t.series);
	for (int i = 0; i < p.curves; i++) {
		free(p.curve[i].value);
		free(p.curve[i].miss_ns);
		free(p.curve[i].low);
		free(p.curve[i].high);
	}
	free(p.curve);
	for (int i = 0; i < p.runs; i++)
		free(p.run[i].name);
	free(p.run);
}

/* A line of several members is between the least and the most of them, times their number. */
static void check_curve(const struct hp_curve *c)
{
	assert(c->values && c->mean_bytes <= c->peak_bytes + c->peak_bytes / 1000 + 1);
	for (size_t i = 1; i < c->values; i++)
		assert(c->value[i].t_ns >= c->value[i - 1].t_ns);
	assert(c->value[c->values - 1].t_ns <= c->end_ns && c->end_ns <= p.length_ns);
	for (size_t i = 1; i < c->misses; i++)
		assert(c->miss_ns[i] >= c->miss_ns[i - 1]);
	for (int i = 0; c->members > 1 && i < HP_BAND; i++)
		assert(c->low[i] <= c->high[i] && c->high[i] <= c->member_peak_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char head[] = HEADER "\n";
	static const char *const no_numbers[] = { " nan", " -nan", " inf", " -inf", "\nnan", "\n-nan", "\ninf", "\n-inf" };
	static const char *const names[] = { "a.r0.csv", "b/a.r1.csv", "b/a.r2.csv", "b/a.r3.csv", "b/a.r4.csv", "b/a.r5.csv" };
	static struct hp_file files[6];
	static uint8_t text[4096];
	char *script = NULL;
	size_t script_len, values = 0;

	if (size < 1 || size > sizeof text - sizeof head)
		return 0;
	trace_len = data[0] & 1 ? sizeof head - 1 : 0;
	memcpy(text, head, trace_len);
	memcpy(text + trace_len, data + 1, size - 1);
	trace = text;
	trace_len += size - 1;
	if (!nobody)
		nobody = fopen_("/dev/null", "w");
	t = (struct hp_traces){ .file = files, .files = data[0] & 8 ? 6 : 1 };
	p = (struct hp_picture){ 0 };
	memset(files, 0, sizeof files);
	for (int i = 0; i < t.files; i++)
		files[i].name = names[i];
	if (data[0] & 4) {
		t.each = hp_json_event;
		t.arg = nobody;
	}
	if (setjmp(refused)) {
		forget();
		return 0;
	}
	for (int i = 0; i < t.files; i++)
		hp_plot_read(&t, i);
	for (int i = 0; i < t.count; i++) {
		const struct hp_series *s = &t.series[i];
		const struct hp_file *f = &files[s->file];

		assert(s->values && s->value[0].t_ns >= f->begin_ns && s->value[s->values - 1].t_ns <= f->end_ns);
		for (size_t k = 1; k < s->values; k++)
			assert(s->value[k].t_ns >= s->value[k - 1].t_ns && s->value[k].bytes != s->value[k - 1].bytes);
		values += s->values;
	}
	assert(values <= trace_len * (size_t)t.files);
	if (t.count) {
		hp_plot_sum(&p, &t);
		for (int i = 0; i < p.curves; i++)
			check_curve(&p.curve[i]);
		free(hp_plot_output(&p.run[0]));
	}
	if (t.count && p.panels <= HP_PANELS_MAX) {
		FILE *to = open_memstream(&script, &script_len);

		hp_plot_script(to, &p, "it's", data[0] & 2);
		fclose(to);
		for (size_t i = 0; i < sizeof no_numbers / sizeof *no_numbers; i++)
			assert(!strstr(script, no_numbers[i]));
		free(script);
	}
	forget();
	return 0;
}
