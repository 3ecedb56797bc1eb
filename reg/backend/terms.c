/*
 * The terms of a device (terms.h). The file is accepted only if it is complete: each line once, in order, "end" last.
 */
#include "reg/backend/terms.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define HEAD "hugepin-paging-terms 1\n"

static const struct {
	const char *name;
	size_t offset;
} terms[] = {
#define TERM(name) { #name, offsetof(struct hugepin_terms, name) },
	HP_TERMS_LIST(TERM)
#undef TERM
};
enum { TERMS = sizeof terms / sizeof *terms };

/* ------------------------------------------------------------------ fit */

void hp_terms_line(double one_ns, double all_ns, unsigned pages, float *ret_fixed, float *ret_page)
{
	double page = all_ns > one_ns ? (all_ns - one_ns) / (pages - 1) : 0;

	if (page > one_ns) /* many pages are dearer each than one alone, so the line begins at zero */
		page = all_ns / pages;
	*ret_page = (float)page;
	*ret_fixed = page < one_ns ? (float)(one_ns - page) : 0;
}

/* ------------------------------------------------------------------ the file */

int hp_terms_print(const struct hugepin_terms *t, const struct hp_testbed *testbed, char *text, size_t size)
{
	int n = snprintf(text, size, HEAD "device %s\nfirmware %s\ncpu %s\n", testbed->device, testbed->firmware,
			 testbed->cpu);

	for (int i = 0; i < TERMS && n >= 0 && (size_t)n < size; i++)
		n += hp_results_print(text + n, size - (size_t)n, terms[i].name,
				   (double)*(const float *)((const char *)t + terms[i].offset));
	if (n >= 0 && (size_t)n < size)
		n += snprintf(text + n, size - (size_t)n, "end\n");
	return n >= 0 && (size_t)n < size ? n : -EMSGSIZE;
}

int hp_terms_parse(const char *text, struct hugepin_terms *ret_, struct hp_testbed *ret_testbed)
{
	struct hugepin_terms t = { 0 };
	struct hp_testbed testbed;
	const char *at = text;

	if (strncmp(at, HEAD, strlen(HEAD)))
		return -EILSEQ;
	at += strlen(HEAD);
	if (!hp_results_testbed(&at, &testbed))
		return -EILSEQ;
	for (int i = 0; i < TERMS; i++)
		if (!hp_results_number(&at, terms[i].name, (float *)((char *)&t + terms[i].offset)))
			return -EILSEQ;
	if (strcmp(at, "end\n"))
		return -EILSEQ;
	*ret_ = t;
	*ret_testbed = testbed;
	return 0;
}

int hp_terms_load(const char *path, struct hugepin_terms *ret_, struct hp_testbed *ret_testbed)
{
	char text[HP_TERMS_TEXT_MAX];
	const int err = hp_results_load(path, text, sizeof text);

	return err ? err : hp_terms_parse(text, ret_, ret_testbed);
}

int hp_terms_of(const struct hp_testbed *testbed, struct hugepin_terms *ret_)
{
	char path[HP_RESULTS_PATH_MAX];
	struct hugepin_terms t;
	struct hp_testbed found;
	int err = hp_results_path(HP_TERMS_KEPT, testbed, path);

	err = err ? err : hp_terms_load(path, &t, &found);
	err = err || hp_testbed_is(&found, testbed) ? err : -ENOENT;
	if (!err)
		*ret_ = t;
	return err;
}

int hp_terms_keep(const struct hp_testbed *testbed, const struct hugepin_terms *t)
{
	char path[HP_RESULTS_PATH_MAX], text[HP_TERMS_TEXT_MAX];
	int err = hp_results_path(HP_TERMS_KEPT, testbed, path);

	if (!err && hp_terms_print(t, testbed, text, sizeof text) < 0)
		err = -EMSGSIZE;
	return err ? err : hp_results_store(path, text);
}
