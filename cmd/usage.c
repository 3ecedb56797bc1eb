/*
 * Prints the usage of the sub-commands.
 */
#include "cmd/usage.h"

#include <stdio.h>
#include <string.h>

int hp_usage(const char *title, bool wanted)
{
	static const struct {
		const char *title, *arguments;
	} usages[] = {
#define USAGE(name, arguments, does) { "hugepin " #name, arguments },
		HP_COMMANDS(USAGE)
	};

	for (size_t i = 0; i < sizeof usages / sizeof usages[0]; i++)
		if (!strcmp(title, usages[i].title))
			fprintf(wanted ? stdout : stderr, "usage: %s %s\n", title, usages[i].arguments);
	return wanted ? 0 : HP_EXIT_USAGE;
}

int hp_usage_wrong(const char *title, const char *takes)
{
	fprintf(stderr, "%s: it takes %s\n", title, takes);
	return hp_usage(title, false);
}
