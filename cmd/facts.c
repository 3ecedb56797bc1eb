/*
 * The facts that `hugepin info` has found, in sections, with advice. A fact is added once, with a line of text for a
 * reader and a JSON value for a script. At the end either the text or the JSON is printed.
 */
#include "cmd/facts.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/text.h"
#include "cmd/usage.h"

static struct {
	json_t *all, *section, *advice;
	const char *section_key, *key; /* of the last fact, or NULL */
	FILE *text;
	char *text_buf;
	size_t text_len; /* only open_memstream() needs it */
} facts;

static void require(bool ok)
{
	if (ok)
		return;
	fprintf(stderr, "hugepin: %s\n", strerror(errno ? errno : ENOMEM));
	exit(HP_EXIT_FAILED);
}

void hp_facts_section(const char *key, const char *heading)
{
	if (!facts.text) {
		facts.text = open_memstream(&facts.text_buf, &facts.text_len);
		facts.all = json_object();
		facts.advice = json_array();
		require(facts.text && facts.all && facts.advice);
	} else {
		putc('\n', facts.text);
	}
	fprintf(facts.text, "%s\n", heading);
	facts.section = json_object();
	facts.section_key = key;
	facts.key = NULL;
	require(!json_object_set_new(facts.all, key, facts.section));
}

void hp_facts_list(const char *key)
{
	require(!json_object_set_new(facts.section, key, json_array()));
}

void hp_facts_value(const char *key, json_t *value)
{
	json_t *const list = json_object_get(facts.section, key);

	facts.key = key;
	require(!(list ? json_array_append_new(list, value) : json_object_set_new(facts.section, key, value)));
}

void hp_facts_text(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(facts.text, format, args);
	va_end(args);
}

void hp_facts_add(const char *key, json_t *value, const char *name, const char *format, ...)
{
	va_list args;

	hp_facts_value(key, value);
	fprintf(facts.text, "  %-21s ", name);
	va_start(args, format);
	vfprintf(facts.text, format, args);
	va_end(args);
	putc('\n', facts.text);
}

/* command: the shell command that follows the advice, or NULL. */
static void add_advice(const char *why, const char *command)
{
	char about[64];

	fprintf(facts.text, "    -> %s%s%s\n", why, command ? ": " : "", command ? command : "");
	snprintf(about, sizeof about, "%s%s%s", facts.section_key, facts.key ? "." : "", facts.key ? facts.key : "");
	require(!json_array_append_new(facts.advice,
				       json_pack("{s:s, s:o, s:o}", "about", about, "why", hp_facts_string(why),
						 "command", hp_facts_string(command))));
}

void hp_facts_advise(const char *why, const char *format, ...)
{
	char *command;
	va_list args;

	va_start(args, format);
	require(vasprintf(&command, format, args) >= 0);
	va_end(args);
	add_advice(why, command);
	free(command);
}

void hp_facts_lack(const char *why)
{
	add_advice(why, NULL);
}

json_t *hp_facts_string(const char *s)
{
	json_t *json = s ? json_string(s) : json_null();

	if (json)
		return json;
	/* Names of files may have any bytes, but JSON must be UTF-8. */
	char *plain = strdup(s);
	require(plain);
	for (char *c = plain; *c; c++)
		*c = *c & 0x80 ? '?' : *c;
	json = json_string(plain);
	free(plain);
	return json;
}

json_t *hp_facts_bytes(uint64_t bytes)
{
	return bytes > INT64_MAX ? json_null() : json_integer((json_int_t)bytes);
}

size_t hp_facts_advice_count(void)
{
	return json_array_size(facts.advice);
}

void hp_facts_print_text(void)
{
	require(!fflush(facts.text));
	fputs(hp_text_tame(facts.text_buf), stdout); /* files and directories may have any name */
}

void hp_facts_print_json(int status)
{
	require(!json_object_set_new(facts.all, "advice", facts.advice));
	require(!json_object_set_new(facts.all, "status", json_integer(status)));
	json_dumpf(facts.all, stdout, JSON_INDENT(2)); /* a failure to write is seen when stdout is flushed */
	putchar('\n');
}
