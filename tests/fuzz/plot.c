/* link: cmd/facts.c cmd/text.c base/base.c base/config.c -ljansson */
/*
 * Fuzzes what hugepin plot reads: a trace is refused, or its picture is written, of lines that gnuplot understands: nothing
 * that came from a file stands there but numbers and what is quoted. The first byte says whether the header is put right,
 * and whether the events are written as JSON, too.
 */
#include <assert.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "cmd/usage.h"

static jmp_buf refused;
static const uint8_t *trace;
static size_t trace_len;

static FILE *nobody; /* hears what is refused */

static FILE *fopen_(const char *path, const char *mode)
{
	return fopen(path, mode);
}

static FILE *opened; /* fail() does not return to who would close it */

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
#include "cmd/plot.c"

/* For hp_plot_main(), which is not called here. */
int hp_usage(const char *title, bool wanted)
{
	(void)title;
	return wanted;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct picture p; /* nor to who would free it */

static void forget(void)
{
	FILE *f = opened;

	if (f)
		fclose(f);
	for (int i = 0; i < p.count; i++) {
		free(p.series[i].value);
		free(p.series[i].miss_ns);
	}
	free(p.series);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char head[] = HEADER "\n";
	static const char *const no_numbers[] = { " nan", " -nan", " inf", " -inf", "\nnan", "\n-nan", "\ninf", "\n-inf" };
	static char *file = (char *)"trace.csv";
	static uint64_t begin_ns, end_ns;
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
	begin_ns = end_ns = 0;
	if (!nobody)
		nobody = fopen_("/dev/null", "w");
	p = (struct picture){ .file = &file, .files = 1, .begin_ns = &begin_ns, .end_ns = &end_ns };
	p.json = data[0] & 4 ? nobody : NULL;
	if (setjmp(refused)) {
		forget();
		return 0;
	}
	read_trace(&p, 0);
	for (int i = 0; i < p.count; i++) {
		const struct series *s = &p.series[i];

		assert(s->values && s->value[0].t_ns >= begin_ns && s->value[s->values - 1].t_ns <= end_ns);
		for (size_t k = 1; k < s->values; k++)
			assert(s->value[k].t_ns >= s->value[k - 1].t_ns && s->value[k].bytes != s->value[k - 1].bytes);
		p.peak_bytes = s->peak_bytes > p.peak_bytes ? s->peak_bytes : p.peak_bytes;
		values += s->values;
	}
	assert(values <= trace_len);
	if (p.count) {
		FILE *to = open_memstream(&script, &script_len);

		write_script(to, &p, "it's", data[0] & 2);
		fclose(to);
		for (size_t i = 0; i < sizeof no_numbers / sizeof *no_numbers; i++)
			assert(!strstr(script, no_numbers[i]));
		free(script);
	}
	forget();
	return 0;
}
