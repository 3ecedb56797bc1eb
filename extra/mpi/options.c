/*
 * Reading the layer's variables. Malformed values and unknown variables are reported on stderr.
 */
#include "options.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

#define DEFAULT(NAME, member, type, def, ...) .member = def,
struct hp_mpi_options hp_mpi_options = { HP_MPI_OPTIONS(DEFAULT) };

void hp_mpi_options_load(void)
{
#define OPTION(NAME, member, type, def, min, max, words, sentence) \
	{ "HUGEPIN_" #NAME, HP_##type, def, min, max, words, sentence, 0 },
	static const struct hp_option table[] = { HP_MPI_OPTIONS(OPTION) };
#define TARGET(NAME, member, ...) &hp_mpi_options.member,
	static int64_t *const targets[] = { HP_MPI_OPTIONS(TARGET) };
	char accepts[256];

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		const char *text = secure_getenv(table[i].name);

		if (text && hp_option_parse(&table[i], text, targets[i]) < 0)
			fprintf(stderr, "hugepin: %s=%.48s is not understood: it takes %s\n", table[i].name, text,
				hp_option_accepts(&table[i], accepts, sizeof accepts));
	}
	for (char **e = environ; *e; e++) {
		const size_t len = strcspn(*e, "=");
		bool known = strncmp(*e, "HUGEPIN_MPI_", 12) || !strncmp(*e, "HUGEPIN_MPI_TRACE=", 18);

		for (size_t i = 0; !known && i < sizeof table / sizeof *table; i++)
			known = strlen(table[i].name) == len && !memcmp(table[i].name, *e, len);
		if (!known)
			fprintf(stderr, "hugepin: %.*s is not known; see hugepin_mpi(7)\n",
				(int)HP_MIN(len, (size_t)48), *e);
	}
}
