/*
 * Small files, and values as text.
 */
#include "cmd/text.h"

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
	struct hp_line l = { buf, buf + HP_TEXT_MAX };

	if (o->type == HP_PATH || (o->type == HP_REPORT && value > HP_REPORT_LIST)) /* may be longer than the buffer */
		return value ? (const char *)(intptr_t)value : "none";
	hp_line_option(&l, o, value);
	return buf;
}
