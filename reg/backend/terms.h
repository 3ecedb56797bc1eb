/*
 * The terms of a device that registers on demand (hugepin_odp(7)): their fit to measured times, and the file that keeps
 * them. Does not call libibverbs, so that the command can show the file.
 */
#ifndef HP_REG_BACKEND_TERMS_H
#define HP_REG_BACKEND_TERMS_H

#include "hugepin.h"
#include "reg/backend/results.h"

#define HP_TERMS_KEPT "paging" /* the names of files begin so */
#define HP_TERMS_TEXT_MAX 1024

/* The terms, in the order of struct hugepin_terms. */
#define HP_TERMS_LIST(X) \
	X(reg) X(reg_page) X(dereg) X(dereg_page) X(demand) X(demand_page) X(bring) X(bring_page) \
	X(fault_send) X(fault_receive)

/* The line through the times of an operation on one page and on `pages` pages. Neither part is below zero. */
void hp_terms_line(double one_ns, double all_ns, unsigned pages, float *ret_fixed, float *ret_page);

/* Print the file's text, with a terminating 0. Returns its length, or -EMSGSIZE. */
int hp_terms_print(const struct hugepin_terms *, const struct hp_testbed *, char *text, size_t size);

/* Parse a file's text. 0, or -EILSEQ: not a complete file of this version. */
int hp_terms_parse(const char *text, struct hugepin_terms *ret_, struct hp_testbed *ret_testbed);

/* Read a file. Returns 0, -EILSEQ, or the error of open() or read(). */
int hp_terms_load(const char *path, struct hugepin_terms *ret_, struct hp_testbed *ret_testbed);

/* Read and write the file of a testbed. -ENOENT: there is none, or it is of another testbed. */
int hp_terms_of(const struct hp_testbed *, struct hugepin_terms *ret_);
int hp_terms_keep(const struct hp_testbed *, const struct hugepin_terms *);

#endif
