/*
 * Facts that `hugepin info` has found, in sections, with advice on them. They are kept as text until all are known,
 * since a summary comes first.
 */
#ifndef HP_CMD_FACTS_H
#define HP_CMD_FACTS_H

#include <stddef.h>

/* Begin a section. */
void hp_facts_section(const char *heading);

/* Add a fact: a line with its name. */
__attribute__((format(printf, 2, 3))) void hp_facts_add(const char *name, const char *format, ...);

/* Add text, for sections that are a table. */
__attribute__((format(printf, 1, 2))) void hp_facts_text(const char *format, ...);

/* Add advice on the last fact: what could be better, and the command that improves it. lack: no command does. */
__attribute__((format(printf, 2, 3))) void hp_facts_advise(const char *why, const char *format, ...);
void hp_facts_lack(const char *why);
size_t hp_facts_advice_count(void);

/* Print the text, after the last fact. */
void hp_facts_print(void);

#endif
