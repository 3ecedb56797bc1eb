/* See environment.h. */
#include "cmd/environment.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t hp_tunable(const char *tunables, const char *name)
{
	const size_t len = strlen(name);
	uint64_t value = 0;

	for (const char *at = tunables; at && *at; at += strcspn(at, ":"), at += *at == ':')
		if (!strncmp(at, name, len) && at[len] == '=')
			value = strtoull(at + len + 1, NULL, 0);
	return value;
}

char *hp_tunables_with(const char *tunables, const char *name, uint64_t value)
{
	const char *const before = tunables ? tunables : "";
	char *all;

	return asprintf(&all, "%s%s%s=%" PRIu64, before, *before ? ":" : "", name, value) < 0 ? NULL : all;
}

char **hp_environment_with(char *const *environment, const char *variable)
{
	const size_t len = variable ? strcspn(variable, "=") + 1 : 0;
	size_t n = 0, kept = 0;

	while (environment[n])
		n++;
	char **const copy = calloc(n + 2, sizeof *copy);
	if (!copy)
		return NULL;
	for (size_t i = 0; i < n; i++)
		if ((!len || strncmp(environment[i], variable, len)) && !(copy[kept++] = strdup(environment[i])))
			return NULL;
	return !len || (copy[kept] = strdup(variable)) ? copy : NULL;
}
