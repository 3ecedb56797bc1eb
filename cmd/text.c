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

static bool is_full(const struct hp_line *l)
{
	return l->at + 1 >= l->end;
}

bool hp_line_quote(struct hp_line *l, const char *word)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
	char *const start = l->at;
	const size_t bare = strspn(word, plain);
	bool shown = true;

	if (bare && !word[bare]) {
		hp_line_text(l, word);
	} else {
		/* Quoted up to its sign, NAME=VALUE would be the name of a command. */
		for (const char *sign = memchr(word, '=', bare); sign && word <= sign; word++)
			hp_line_text(l, (const char[]){ *word, 0 });
		hp_line_text(l, "'");
		for (; *word; word++) {
			const char letter[] = { *word, 0 };

			shown = shown && (unsigned char)*word >= ' ' && *word != 0x7f;
			hp_line_text(l, *word == '\'' ? "'\\''" : letter);
		}
		hp_line_text(l, "'");
	}
	shown = shown && !is_full(l);
	if (!shown) {
		l->at = start;
		*start = '\0';
	}
	return shown;
}

void hp_line_command(struct hp_line *l, char *const *words)
{
	const size_t rest = sizeof " ...";
	struct hp_line most = { l->at, l->end - rest };

	for (char *const *word = words; *word; word++) {
		char *const before = most.at;

		hp_line_text(&most, word == words ? "" : " ");
		if (is_full(&most) || !hp_line_quote(&most, *word)) {
			most.at = before;
			l->at = before;
			hp_line_text(l, word == words ? "..." : " ...");
			return;
		}
	}
	l->at = most.at;
}

const char *hp_text_option(const struct hp_option *o, int64_t value, char buf[HP_TEXT_MAX])
{
	struct hp_line l = { buf, buf + HP_TEXT_MAX };

	if (o->type == HP_PATH || (o->type == HP_REPORT && value > HP_REPORT_LIST)) /* may be longer than the buffer */
		return value ? (const char *)(intptr_t)value : "none";
	hp_line_option(&l, o, value);
	return buf;
}
