/*
 * Declarations that the files of libhugepin-malloc.so share, except those of the small tier (jemalloc.h): the mark of
 * exported functions, and the functions that the library's constructor calls.
 */
#ifndef HP_DROPIN_DROPIN_H
#define HP_DROPIN_DROPIN_H

#define EXPORT __attribute__((visibility("default")))

#pragma GCC visibility push(hidden)

/* rights.c: find the next functions of the names that rights.c interposes. */
void hp_rights_find(void);

/* limits.c: prepare for limits that the process was started with. */
void hp_limits_look(void);

#pragma GCC visibility pop

#endif
