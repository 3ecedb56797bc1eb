/* See text.h. */
#include "base/text.h"

void hp_line_size(struct hp_line *l, uint64_t bytes)
{
	static const char *const units[] = { " bytes", " KiB", " MiB", " GiB", " TiB" };
	unsigned unit = 0;
	uint64_t tenths;

	while (unit < 4 && bytes >> 10 * (unit + 1))
		unit++;
	tenths = (bytes >> 10 * unit) * 10 + ((bytes & ((UINT64_C(1) << 10 * unit) - 1)) * 10 >> 10 * unit);
	hp_line_number(l, tenths / 10, 10);
	if (tenths < 100 && tenths % 10) {
		hp_line_text(l, ".");
		hp_line_number(l, tenths % 10, 10);
	}
	hp_line_text(l, units[unit]);
}

static void line_percent(struct hp_line *l, uint64_t part, uint64_t whole)
{
	const uint64_t percent = whole ? (uint64_t)((double)part * 100 / (double)whole) : 0;

	hp_line_text(l, part && !percent ? "under " : "");
	hp_line_number(l, part && !percent ? 1 : percent, 10);
	hp_line_text(l, " %");
}

void hp_line_say(struct hp_line *l, const char *text, const uint64_t *values)
{
	for (; *text; text++) {
		if (*text == '@') {
			hp_line_size(l, *values++);
		} else if (*text == '#') {
			hp_line_number(l, *values++, 10);
		} else if (*text == '%') {
			line_percent(l, values[0], values[1]);
			values += 2;
		} else {
			hp_line_text(l, (const char[]){ *text, 0 });
		}
	}
}

char *hp_text_tame(char *text)
{
	for (unsigned char *c = (unsigned char *)text; *c; c++) {
		if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) /* U+0080 to U+009F, in UTF-8 */
			c[0] = c[1] = '?';
		else if ((*c < ' ' && *c != '\n') || *c == 0x7f)
			*c = '?';
	}
	return text;
}
