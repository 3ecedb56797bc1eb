/*
 * The costs of sending: the model's terms, their least-squares fit to measurements, and the file that keeps a device's
 * model. Pure, except load and store. Does not call libibverbs, so that the command can show the file.
 */
#ifndef HP_SGE_MODEL_H
#define HP_SGE_MODEL_H

#include "hugepin_verbs.h"
#include "reg/backend/kept.h"

/* The terms, in the order of struct hugepin_sg_model: those of the CPU, and then those of the device. */
#define HP_SG_TERMS_LIST(X) \
	X(wr) X(element) X(lookup) X(line) X(byte) \
	X(piece) X(copy_byte) X(cold) X(cold_piece) X(cold_byte) X(inline_wr) X(inline_piece) X(inline_byte) \
	X(device_wr) X(device_element) X(device_line) X(device_byte) X(device_inline_wr) X(device_inline_byte)
enum {
#define HP_SG_TERM(name) HP_SG_##name,
	HP_SG_TERMS_LIST(HP_SG_TERM)
#undef HP_SG_TERM
	HP_SG_TERMS
};
/* Their bits. */
#define HP_SG_CPU_TERMS ((1u << HP_SG_device_wr) - 1)
#define HP_SG_DEVICE_TERMS ((1u << HP_SG_TERMS) - (1u << HP_SG_device_wr))

#define HP_SG_KEPT "sg" /* the names of files begin so */
#define HP_SG_TEXT_MAX 1024

/* ------------------------------------------------------------------ costs */

/* How often each term occurs in a message's cost, by the formulas of hugepin_verbs.h. mode: one of HUGEPIN_SG_INLINE,
 * COPY and GATHER, possibly with HUGEPIN_SG_COLD. */
struct hp_sg_count {
	double term[HP_SG_TERMS];
};
struct hp_sg_count hp_sg_count(unsigned mode, unsigned pieces, uint64_t bytes, unsigned registrations, unsigned lines);

/* The cost in nanoseconds: the larger of the CPU's and the device's, which work at the same time. */
double hp_sg_model_ns(const struct hugepin_sg_model *m, const struct hp_sg_count *count);

/* A measured message. */
struct hp_sg_sample {
	struct hp_sg_count count;
	double ns;
};

/* Fit the terms of *m whose bits are set in `terms` (1 << HP_SG_wr ...), by least squares of the relative errors. They
 * are of the CPU or of the device, and the samples are what that one took. No term becomes negative. Other terms, and
 * terms that occur in no sample, keep their values. Returns the mean square of the remaining relative errors. Returns
 * -1, and leaves *m alone, if there are no samples, or a sample's time is not valid. */
double hp_sg_model_fit(struct hugepin_sg_model *m, unsigned terms, const struct hp_sg_sample *samples, size_t count);

/* ------------------------------------------------------------------ the file */

/* Print the file's text, with a terminating 0. Returns its length, or -EMSGSIZE. */
int hp_sg_model_print(const struct hugepin_sg_model *m, const struct hp_place *place, char *text, size_t size);

/* Parse a file's text. 0, or -EILSEQ: not a complete file of this version. */
int hp_sg_model_parse(const char *text, struct hugepin_sg_model *ret_, struct hp_place *ret_place);

/* The path of a place's file. Returns as hp_kept_path(). */
int hp_sg_model_path(const struct hp_place *place, char path[HP_KEPT_PATH_MAX]);

/* Read a file. Returns 0, -EILSEQ, or the error of open() or read(). */
int hp_sg_model_load(const char *path, struct hugepin_sg_model *ret_, struct hp_place *ret_place);

/* Write the file, and make missing directories. Readers see the whole file or none. 0 or -errno. */
int hp_sg_model_store(const char *path, const struct hugepin_sg_model *m, const struct hp_place *place);

#endif
