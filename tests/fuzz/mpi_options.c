/* link: extra/mpi/options.c */
/*
 * Fuzzes the parser of the MPI layer's options: total, right about ranges, and in agreement with itself: a number that it
 * takes, it takes again when written without a suffix. The first byte chooses the option, the rest is the text.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "extra/mpi/options.h"

static const struct {
	int64_t max;
	const char *words;
} options[] = {
#define OPTION(NAME, member, def, text, max, words, ...) { max, words },
	HP_MPI_OPTIONS(OPTION)
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char text[256];
	if (size < 1 || size > sizeof text)
		return 0;
	memcpy(text, data + 1, size - 1);
	text[size - 1] = 0;
	const size_t n = data[0] % (sizeof options / sizeof *options);
	int64_t value = -4711, again = -4711;
	if (!hp_mpi_option_parse(text, options[n].max, options[n].words, &value)) {
		assert(value == -4711);
		return 0;
	}
	if (!options[n].max || value < 0) {
		const char *w = options[n].words;
		for (int64_t i = options[n].max ? -1 - value : value; i > 0; i--)
			w = strchr(w, '|') + 1;
		assert(!strncmp(w, text, strlen(text)) && (w[strlen(text)] == '|' || !w[strlen(text)]));
		return 0;
	}
	assert(value <= options[n].max && text[0] >= '0' && text[0] <= '9');
	snprintf(text, sizeof text, "%lld", (long long)value);
	assert(hp_mpi_option_parse(text, options[n].max, options[n].words, &again) && again == value);
	return 0;
}
