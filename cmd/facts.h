/*
 * Facts that the command has found, in sections, with advice on them. They are printed as text or as JSON.
 */
#ifndef HP_CMD_FACTS_H
#define HP_CMD_FACTS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Begin a section, which has a key in the JSON and a heading in the text. */
void hp_facts_section(const char *key, const char *heading);

/* Make this key of the section a list: each fact with the key is an element. The list may stay empty. */
void hp_facts_list(const char *key);

/* Add a fact. Scripts get the value under the key; readers get a line with the name. Takes over the reference to the
 * value. */
__attribute__((format(printf, 4, 5))) void hp_facts_add(const char *key, json_t *value, const char *name,
							const char *format, ...);

/* Add only the value, or only the text, of a fact. For sections whose text is a table. */
void hp_facts_value(const char *key, json_t *value);
__attribute__((format(printf, 1, 2))) void hp_facts_text(const char *format, ...);

/* Add advice on the last fact: what could be better, and the command that improves it, or NULL. */
__attribute__((format(printf, 2, 3))) void hp_facts_advise(const char *why, const char *format, ...);
void hp_facts_lack(const char *why);
size_t hp_facts_advice_count(void);

/* Make JSON values: of any text, or NULL; of a number of bytes, which becomes null if it means "no limit". */
json_t *hp_facts_string(const char *s);
json_t *hp_facts_bytes(uint64_t bytes);

/* Print the text or the JSON, after the last fact. */
void hp_facts_print_text(void);
void hp_facts_print_json(int status);

#endif
