/* link: base/base.c base/clock.c base/sys.c base/config.c */
/*
 * Fuzzes the parser of options: total, right about ranges, and in agreement with itself: what it takes, it takes again
 * when written as a plain number. The first byte chooses the option, the rest is the text.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char text[256];
	if (size < 1 || size > sizeof text)
		return 0;
	memcpy(text, data + 1, size - 1);
	text[size - 1] = 0;
	const struct hp_option *o = &hp_options[data[0] % hp_options_count];
	int64_t value = -4711, again = -4711;
	if (hp_option_parse(o, text, &value)) {
		assert(value == -4711);
		return 0;
	}
	if (o->type == HP_WORD) {
		const char *w = o->words;
		for (int64_t i = 0; i < value; i++) {
			w = strchr(w, '|');
			assert(w);
			w++;
		}
		assert(!strncmp(w, text, strlen(text)) && (w[strlen(text)] == '|' || !w[strlen(text)]));
		return 0;
	}
	if (o->type == HP_PATH) {
		assert(value == (intptr_t)text && *text);
		return 0;
	}
	if (o->type == HP_REPORT) {
		if (value > HP_REPORT_LIST)
			assert(value == (intptr_t)text && *hp_report_file(value));
		else
			assert(!hp_report_file(value) && text[0] == '0' + value && !text[1]);
		return 0;
	}
	if (o->words && value < 0) {
		assert(text[0] < '0' || text[0] > '9');
		return 0;
	}
	assert(value == o->def || (value >= o->min && value <= o->max));
	assert(text[0] >= '0' && text[0] <= '9');
	snprintf(text, sizeof text, "%lld", (long long)value);
	assert(!hp_option_parse(o, text, &again) && again == value);
	return 0;
}
