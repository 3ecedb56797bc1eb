/* See facts.h. */
#include "cmd/facts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/text.h"
#include "cmd/usage.h"

static struct {
	FILE *text;
	char *text_buf;
	size_t text_len; /* only open_memstream() needs it */
	size_t advice;
} facts;

void hp_facts_section(const char *heading)
{
	if (facts.text) {
		putc('\n', facts.text);
	} else if (!(facts.text = open_memstream(&facts.text_buf, &facts.text_len))) {
		perror("hugepin");
		exit(HP_EXIT_FAILED);
	}
	fprintf(facts.text, "%s\n", heading);
}

void hp_facts_text(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(facts.text, format, args);
	va_end(args);
}

void hp_facts_add(const char *name, const char *format, ...)
{
	va_list args;

	fprintf(facts.text, "  %-26s ", name);
	va_start(args, format);
	vfprintf(facts.text, format, args);
	va_end(args);
	putc('\n', facts.text);
}

void hp_facts_advise(const char *why, const char *format, ...)
{
	va_list args;

	fprintf(facts.text, "    -> %s: ", why);
	va_start(args, format);
	vfprintf(facts.text, format, args);
	va_end(args);
	putc('\n', facts.text);
	facts.advice++;
}

void hp_facts_lack(const char *why)
{
	fprintf(facts.text, "    -> %s\n", why);
	facts.advice++;
}

size_t hp_facts_advice_count(void)
{
	return facts.advice;
}

void hp_facts_print(void)
{
	if (fflush(facts.text)) {
		perror("hugepin");
		exit(HP_EXIT_FAILED);
	}
	fputs(hp_text_tame(facts.text_buf), stdout); /* files and directories may have any name */
}
