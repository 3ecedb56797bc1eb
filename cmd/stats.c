/*
 * hugepin stats: files of HUGEPIN_STATS=file:FILE as JSON.
 */
#include "cmd/stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/usage.h"

json_t *hp_json_string(const char *s)
{
	json_t *json = s ? json_string(s) : json_null();

	if (json)
		return json;
	/* Names of files may have any bytes, but JSON must be UTF-8. */
	char *plain = strdup(s);
	for (char *c = plain; c && *c; c++)
		*c = *c & 0x80 ? '?' : *c;
	json = plain ? json_string(plain) : NULL;
	free(plain);
	return json;
}

json_t *hp_json_bytes(uint64_t bytes)
{
	return bytes > INT64_MAX ? json_null() : json_integer((json_int_t)bytes);
}

/* Take a line apart. Numbers are those values that are one, except of names that stand for text. */
static void add_line(json_t *all, char *line)
{
	char *const value = line + strcspn(line, " "), *const dot = memchr(line, '.', (size_t)(value - line));
	const bool is_text = !strncmp(line, "program ", 8) || !strncmp(line, "advice.", 7);
	json_t *object = all;
	char *end;

	if (!*value)
		return;
	*value = '\0';
	if (dot) {
		*dot = '\0';
		object = json_object_get(all, line);
		if (!json_is_object(object) && !json_object_set_new(all, line, json_object()))
			object = json_object_get(all, line);
	}
	const unsigned long long number = strtoull(value + 1, &end, 10);
	json_object_set_new(object, dot ? dot + 1 : line,
			    is_text || *end || end == value + 1 ? hp_json_string(value + 1) : hp_json_bytes(number));
}

json_t *hp_stats_read(FILE *f)
{
	/* what is not known, or not there, has no line */
	json_t *const all = json_pack("{s:n, s:n, s:n}", "rank", "small_bytes", "pin");
	size_t size = 0;
	char *line = NULL;

	while (getline(&line, &size, f) > 0) {
		line[strcspn(line, "\n")] = '\0';
		add_line(all, line);
	}
	free(line);
	if (json_is_string(json_object_get(all, "program")) && json_is_object(json_object_get(all, "advice")))
		return all;
	json_decref(all);
	return NULL;
}

int hp_stats_main(int argc, char **argv)
{
	int status = 0;

	if (argc == 2 && !strcmp(argv[1], "--help"))
		return hp_usage(argv[0], true);
	if (argc < 2 || argv[1][0] == '-')
		return hp_usage_wrong(argv[0], "names of files, and no options");
	for (int i = 1; i < argc; i++) {
		FILE *const f = fopen(argv[i], "re");
		json_t *const all = f ? hp_stats_read(f) : NULL;

		if (all && !json_dumpf(all, stdout, JSON_INDENT(2)))
			putchar('\n');
		else
			fprintf(stderr, "%s: %s: %s\n", argv[0], argv[i],
				f ? "not a file of HUGEPIN_STATS" : strerror(errno));
		status = all ? status : HP_EXIT_FAILED;
		json_decref(all);
		if (f)
			fclose(f);
	}
	return status;
}
