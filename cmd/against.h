/*
 * What a user can have instead of hugepin for nothing, for `hugepin check --against`.
 */
#ifndef HP_CMD_AGAINST_H
#define HP_CMD_AGAINST_H

#include <stdbool.h>

enum { HP_AGAINST_TUNABLE, HP_AGAINST_THP, HP_AGAINST_MIMALLOC, HP_AGAINST };

/* What decides whether an alternative is there. */
struct hp_against_facts {
	const char *glibc; /* its version: "glibc 2.36" */
	const char *thp; /* transparent_hugepage/enabled: "madvise"; "": the kernel has no THP */
	const char *tunables, *preload; /* GLIBC_TUNABLES and LD_PRELOAD; NULL: not set */
	const char *mimalloc; /* the name of its library; NULL: none, as the next says */
	const char *no_mimalloc;
};

#define HP_AGAINST_SET 3
struct hp_against {
	const char *called; /* in a sentence: "glibc's tunable" */
	char *set[HP_AGAINST_SET]; /* variables, as NAME=VALUE; NULL ends them, and the first is the caller's to free */
	char absent[200]; /* why it cannot be measured; "": it can */
};

/* Whether this alternative is there, and what it sets. Pure, but for memory. */
struct hp_against hp_against_look(int which, const struct hp_against_facts *f);

/* The alternatives in a list such as "tunable,thp". False: something in it is none, or it is empty. Pure. */
bool hp_against_parse(const char *list, bool ret_wanted[HP_AGAINST]);

extern const char *const hp_against_names[HP_AGAINST];

#endif
