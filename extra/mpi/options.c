/*
 * Reading the layer's variables. Malformed values and unknown variables are reported on stderr.
 */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util.h"

#define PREFIX "HUGEPIN_X_MPI_"

#define DEFAULT(NAME, member, def, ...) .member = def,
struct hp_mpi_options hp_mpi_options = { HP_MPI_OPTIONS(DEFAULT) };

static const struct option {
	const char *name;
	int64_t max;
	const char *words, *accepts;
	int64_t *value;
} options[] = {
#define OPTION(NAME, member, def, text, max, words, accepts, sentence) \
	{ PREFIX #NAME, max, words, accepts, &hp_mpi_options.member },
	HP_MPI_OPTIONS(OPTION)
};
static const struct option *const options_end = options + sizeof options / sizeof *options;

/* The index of a text among words, or -1. */
static int64_t word_index(const char *words, const char *text)
{
	const size_t len = strlen(text);
	int64_t index = 0;

	for (; words; words = strchr(words, '|') ? strchr(words, '|') + 1 : NULL, index++)
		if (strcspn(words, "|") == len && !strncmp(words, text, len))
			return index;
	return -1;
}

bool hp_mpi_option_parse(const char *text, int64_t max, const char *words, int64_t *ret_value)
{
	static const char suffixes[] = "kmgt";
	const int64_t index = word_index(words, text);
	const char *s = text, *suffix;
	int64_t value = 0;

	if (index >= 0) {
		*ret_value = max ? -1 - index : index;
		return true;
	}
	for (; *s >= '0' && *s <= '9'; s++)
		if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *s - '0', &value))
			return false;
	if (!max || s == text)
		return false;
	if (*s) {
		suffix = strchr(suffixes, *s | 0x20); /* lower case */
		if (!suffix || s[1] || __builtin_mul_overflow(value, INT64_C(1024) << 10 * (suffix - suffixes), &value))
			return false;
	}
	if (value > max)
		return false;
	*ret_value = value;
	return true;
}

void hp_mpi_options_load(void)
{
	for (const struct option *o = options; o < options_end; o++) {
		const char *text = secure_getenv(o->name);

		if (text && !hp_mpi_option_parse(text, o->max, o->words, o->value))
			fprintf(stderr, "hugepin: %s=%.48s is not understood: it takes %s\n", o->name, text,
				o->accepts);
	}
	for (char **e = environ; *e; e++) {
		const size_t len = strcspn(*e, "=");
		bool known = strncmp(*e, PREFIX, strlen(PREFIX)) ||
			     !strncmp(*e, PREFIX "TRACE=", strlen(PREFIX "TRACE="));

		for (const struct option *o = options; !known && o < options_end; o++)
			known = strlen(o->name) == len && !memcmp(o->name, *e, len);
		if (!known)
			fprintf(stderr, "hugepin: %.*s is not known; see hugepin_mpi(7)\n",
				(int)HP_MIN(len, (size_t)48), *e);
	}
}
