/*
 * Small files, and values as text.
 */
#include "cmd/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

uint64_t hp_read_number(const char *path, uint64_t def)
{
	char text[64];

	return hp_read_file(path, text, sizeof text) > 0 ? hp_number_after(text, "", def) : def;
}

char *hp_read_line(const char *path, char *line, size_t size)
{
	if (hp_read_file(path, line, size) <= 0)
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	return line;
}

char *hp_text_bytes(uint64_t bytes, char buf[HP_TEXT_MAX])
{
	struct hp_line l = { buf, buf + HP_TEXT_MAX };

	hp_line_size(&l, bytes);
	return buf;
}

const char *hp_text_option(const struct hp_option *o, int64_t value, char buf[HP_TEXT_MAX])
{
	static const char *const sizes[] = { "", "K", "M", "G", "T" };
	const char *suffix = "";

	if (o->type == HP_PATH)
		return value ? (const char *)(intptr_t)value : "none";
	if (o->type == HP_REPORT && value > HP_REPORT_LIST)
		return (const char *)(intptr_t)value;
	if (o->type == HP_WORD || (o->words && value < 0)) {
		const char *word = o->words;
		for (value = o->type == HP_WORD ? value : -1 - value; value > 0; value--)
			word += strcspn(word, "|") + 1;
		snprintf(buf, HP_TEXT_MAX, "%.*s", (int)strcspn(word, "|"), word);
		return buf;
	}
	if (o->type == HP_SIZE) {
		size_t unit = 0;
		for (; value && value % 1024 == 0 && unit < 4; unit++)
			value /= 1024;
		suffix = sizes[unit];
	} else if (o->type == HP_TIME && value) {
		suffix = value % 1000 ? "ms" : "s";
		value = value % 1000 ? value : value / 1000;
	}
	snprintf(buf, HP_TEXT_MAX, "%" PRId64 "%s", value, suffix);
	return buf;
}
