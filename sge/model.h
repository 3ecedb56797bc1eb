/*
 * The file that keeps the thresholds of a device. Does not call libibverbs, so that the command can show the file.
 */
#ifndef HP_SGE_MODEL_H
#define HP_SGE_MODEL_H

#include "hugepin_verbs.h"
#include "reg/backend/results.h"

#define HP_SG_KEPT "sg" /* the names of files begin so */
#define HP_SG_TEXT_MAX 512

/* The thresholds, in the order of struct hugepin_sg_model. */
#define HP_SG_THRESHOLDS(X) X(copy_below) X(apart_below) X(inline_pieces)

/* Print the file's text, with a terminating 0. Returns its length, or -EMSGSIZE. */
int hp_sg_model_print(const struct hugepin_sg_model *m, const struct hp_testbed *testbed, char *text, size_t size);

/* Parse a file's text. 0; -ESTALE: a file of another version; -EILSEQ: not a complete file. */
int hp_sg_model_parse(const char *text, struct hugepin_sg_model *ret_, struct hp_testbed *ret_testbed);

/* Read a file. Returns 0, -ESTALE, -EILSEQ, or the error of open() or read(). */
int hp_sg_model_load(const char *path, struct hugepin_sg_model *ret_, struct hp_testbed *ret_testbed);

/* Read and write the file of a testbed. -ENOENT: there is none, or it is of another testbed. */
int hp_sg_model_of(const struct hp_testbed *, struct hugepin_sg_model *ret_);
int hp_sg_model_keep(const struct hp_testbed *, const struct hugepin_sg_model *);

#endif
