/* link: reg/backend/terms.c reg/backend/results.c */
/*
 * Fuzzes the file of a device's terms: it is refused whole, or what it says is finite, not below zero, and printed again
 * says the same.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "reg/backend/terms.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct hugepin_terms t, again;
	struct hp_testbed testbed, testbed_again;
	char *text = malloc(size + 1), printed[HP_TERMS_TEXT_MAX], twice[HP_TERMS_TEXT_MAX];
	int err, len;

	assert(text);
	memcpy(text, data, size);
	text[size] = 0;
	memset(&t, 0x5a, sizeof t);
	again = t;
	err = hp_terms_parse(text, &t, &testbed);
	if (err) {
		assert(err == -EILSEQ && !memcmp(&t, &again, sizeof t));
	} else {
#define EACH(name) assert(t.name >= 0 && t.name <= 1e9f + 1);
		HP_TERMS_LIST(EACH)
		len = hp_terms_print(&t, &testbed, printed, sizeof printed);
		assert(len > 0 && len == (int)strlen(printed));
		assert(!hp_terms_parse(printed, &again, &testbed_again) && hp_testbed_is(&testbed, &testbed_again));
		/* Floats are printed with six decimals: once more changes nothing. */
		assert(hp_terms_print(&again, &testbed_again, twice, sizeof twice) == len && !strcmp(printed, twice));
	}
	free(text);
	return 0;
}
