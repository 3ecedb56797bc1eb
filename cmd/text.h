/*
 * Small files, and values as text.
 */
#ifndef HP_CMD_TEXT_H
#define HP_CMD_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/config.h"
#include "base/text.h"

/* The name behind the last slash. */
static inline const char *hp_base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* The number at the beginning of a small file, or `def`. */
uint64_t hp_read_number(const char *path, uint64_t def);

/* The first line of a small file, without its end; empty if there is none. */
char *hp_read_line(const char *path, char *line, size_t size);

#define HP_TEXT_MAX 32

/* A number of bytes as text: hp_line_size() by itself. */
char *hp_text_bytes(uint64_t bytes, char buf[HP_TEXT_MAX]);

/* Append a word of a command so that a POSIX shell reads the same word: NAME='some value'. False, with nothing appended:
 * there is no room, or the word has control characters, which have no place in a line. */
bool hp_line_quote(struct hp_line *l, const char *word);

/* Append words with blanks between them. Words from the first one on that cannot be shown are "..." together. */
void hp_line_command(struct hp_line *l, char *const *words);

/* An option's value as the user would write it in HUGEPIN_... The text is in buf, except a path. */
const char *hp_text_option(const struct hp_option *o, int64_t value, char buf[HP_TEXT_MAX]);

#endif
