/*
 * Numbers as people read them. Pure; makes no system call and allocates nothing.
 */
#ifndef HP_BASE_TEXT_H
#define HP_BASE_TEXT_H

#include "base/base.h"

/* Append a size: "298 MiB", "1.2 GiB", "16 KiB", "0 bytes". Rounded down, with one decimal below ten. */
void hp_line_size(struct hp_line *l, uint64_t bytes);

/* Append text in which @ stands for a size, # for a number, and % for the part that a value is of the next one, rounded
 * down: "98 %", or "under 1 %" if the part is not 0. */
void hp_line_say(struct hp_line *l, const char *text, const uint64_t *values);
#define HP_VALUES(...) ((const uint64_t[]){ 0, ##__VA_ARGS__ } + 1)
#define HP_SAY(l, text, ...) hp_line_say(l, text, HP_VALUES(__VA_ARGS__))

/* Replace control characters, except newlines, by question marks: foreign text must not control the terminal. */
char *hp_text_tame(char *text);

#endif
