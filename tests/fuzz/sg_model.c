/* link: sge/model.c reg/backend/results.c */
/*
 * Fuzzes the file of a device's thresholds: it is refused whole, or what it says, printed again, says the same.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sge/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct hugepin_sg_model m, again;
	struct hp_testbed testbed, testbed_again;
	char *text = malloc(size + 1), printed[HP_SG_TEXT_MAX];
	int err, len;

	assert(text);
	memcpy(text, data, size);
	text[size] = 0;
	memset(&m, 0x5a, sizeof m);
	again = m;
	err = hp_sg_model_parse(text, &m, &testbed);
	if (err) {
		assert((err == -EILSEQ || err == -ESTALE) && !memcmp(&m, &again, sizeof m));
	} else {
		assert(strlen(text) == size || memchr(data, 0, size));
		assert(strlen(testbed.device) < sizeof testbed.device && !strchr(testbed.device, '\n'));
		len = hp_sg_model_print(&m, &testbed, printed, sizeof printed);
		assert(len > 0 && len == (int)strlen(printed));
		assert(!hp_sg_model_parse(printed, &again, &testbed_again));
		assert(!strcmp(testbed.cpu, testbed_again.cpu) && !memcmp(&m, &again, sizeof m));
	}
	free(text);
	return 0;
}
