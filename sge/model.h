/*
 * What sending costs: the model's terms, their least-squares fit to measurements, and the file that keeps them for a
 * device. Pure but for load and store. libibverbs is not called, so that the command can show the file.
 */
#ifndef HP_SGE_MODEL_H
#define HP_SGE_MODEL_H

#include "hugepin_verbs.h"

/* The terms, in the order of struct hugepin_sg_model. */
#define HP_SG_TERMS_LIST(X) \
	X(wr) X(element) X(lookup) X(line) X(byte) \
	X(piece) X(copy_byte) X(cold) X(cold_piece) X(cold_byte) X(inline_wr) X(inline_piece) X(inline_byte)
enum {
#define HP_SG_TERM(name) HP_SG_##name,
	HP_SG_TERMS_LIST(HP_SG_TERM)
#undef HP_SG_TERM
	HP_SG_TERMS
};

/* The place that a model's numbers are for. Long names are cut. */
struct hp_sg_place {
	char device[64], firmware[64], cpu[64];
};

#define HP_SG_PATH_MAX 4096
#define HP_SG_TEXT_MAX 1024

/* ------------------------------------------------------------------ costs */

/* How often each term is in the cost of a message: the formulas of hugepin_verbs.h. mode: one of HUGEPIN_SG_INLINE,
 * COPY and GATHER, with HUGEPIN_SG_COLD. */
struct hp_sg_count {
	double term[HP_SG_TERMS];
};
struct hp_sg_count hp_sg_count(unsigned mode, unsigned pieces, uint64_t bytes, unsigned registrations, unsigned lines);

/* The cost in nanoseconds. */
double hp_sg_model_ns(const struct hugepin_sg_model *m, const struct hp_sg_count *count);

/* A measurement. */
struct hp_sg_sample {
	struct hp_sg_count count;
	double ns;
};

/* Fit those terms of *m that `terms` has bits for (1 << HP_SG_wr ...), the others staying as they are: least squares of
 * the relative errors, no term below zero. A term that no sample has stays as it is, too. Returns the mean square of
 * the relative errors that are left; -1: there are no samples, or one that is no time (*m is then as it was). */
double hp_sg_model_fit(struct hugepin_sg_model *m, unsigned terms, const struct hp_sg_sample *samples, size_t count);

/* ------------------------------------------------------------------ the file */

/* Print the file, terminated. Its length, or -EMSGSIZE. */
int hp_sg_model_print(const struct hugepin_sg_model *m, const struct hp_sg_place *place, char *text, size_t size);

/* Parse the text of a file. 0, or -EILSEQ: not a whole file of this version. */
int hp_sg_model_parse(const char *text, struct hugepin_sg_model *ret_, struct hp_sg_place *ret_place);

/* The directory of models, by the environment: $XDG_CACHE_HOME/hugepin or ~/.cache/hugepin. 0, -ENOENT (the environment
 * does not say), -ENAMETOOLONG. */
int hp_sg_model_dir(char path[HP_SG_PATH_MAX]);

/* The file of a place in that directory. As hp_sg_model_dir. */
int hp_sg_model_path(const struct hp_sg_place *place, char path[HP_SG_PATH_MAX]);

/* Read a file. 0, -EILSEQ, or the error of open() or read(). */
int hp_sg_model_load(const char *path, struct hugepin_sg_model *ret_, struct hp_sg_place *ret_place);

/* Write the file, and the directories that are missing. Others read the file whole or not at all. 0 or -errno. */
int hp_sg_model_store(const char *path, const struct hugepin_sg_model *m, const struct hp_sg_place *place);

/* The CPU's name, or the architecture's. */
void hp_sg_cpu_name(char *name, size_t size);

#endif
