/*
 * Facts that the command has found out, in sections, and advice on them; printed as text or as JSON.
 */
#ifndef HP_CMD_FACTS_H
#define HP_CMD_FACTS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Begin a section, which has a key in the JSON and a heading in the text. */
void hp_facts_section(const char *key, const char *heading);

/* The facts of this section with this key are elements of a list, of which there may be none. */
void hp_facts_list(const char *key);

/* Add a fact: for scripts the value, which is taken, under the key; for readers a line, under the name. */
__attribute__((format(printf, 4, 5))) void hp_facts_add(const char *key, json_t *value, const char *name,
							const char *format, ...);

/* The two halves of a fact, for a text that is a table. */
void hp_facts_value(const char *key, json_t *value);
__attribute__((format(printf, 1, 2))) void hp_facts_text(const char *format, ...);

/* Advice on the last fact: what could be better, and the command that makes it so, or none. */
__attribute__((format(printf, 2, 3))) void hp_facts_advise(const char *why, const char *format, ...);
void hp_facts_lack(const char *why);
size_t hp_facts_advice_count(void);

/* Values: any text, or NULL; a number of bytes, null for those that stand for no limit. */
json_t *hp_facts_string(const char *s);
json_t *hp_facts_bytes(uint64_t bytes);

/* Print the text or the JSON, after the last fact. */
void hp_facts_print_text(void);
void hp_facts_print_json(int status);

#endif
