/*
 * What the files of libhugepin-malloc.so have in common, beside the small tier (jemalloc.h): how a name is exported,
 * and what the library's constructor calls.
 */
#ifndef HP_DROPIN_DROPIN_H
#define HP_DROPIN_DROPIN_H

#define EXPORT __attribute__((visibility("default")))

#pragma GCC visibility push(hidden)

/* rights.c: find the functions that its interposed ones go on to. */
void hp_rights_find(void);

/* limits.c: be prepared for limits that the process was started with. */
void hp_limits_look(void);

#pragma GCC visibility pop

#endif
