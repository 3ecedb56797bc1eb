/*
 * The costs of sending: terms, fit, and file (model.h).
 *
 * The fit is ordinary linear least squares by the normal equations. Each sample is divided by its time, since the
 * relative error of a prediction counts. If a term comes out negative, it is set to zero and the others are fitted
 * again.
 *
 * The file has one line "name value" for each number, in nanoseconds with six decimals in any locale. The parser
 * accepts only a complete file: each line once, in order, "end" last.
 */
#include "sge/model.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const struct term {
	const char *name;
	size_t offset;
} terms[HP_SG_TERMS] = {
#define TERM(name) { #name, offsetof(struct hugepin_sg_model, name) },
	HP_SG_TERMS_LIST(TERM)
};

static float *value(struct hugepin_sg_model *m, int term)
{
	return (float *)((char *)m + terms[term].offset);
}

static float value_of(const struct hugepin_sg_model *m, int term)
{
	return *(const float *)((const char *)m + terms[term].offset);
}

/* ------------------------------------------------------------------ costs */

struct hp_sg_count hp_sg_count(unsigned mode, unsigned pieces, uint64_t bytes, unsigned registrations, unsigned lines)
{
	const bool cold = mode & HUGEPIN_SG_COLD;
	struct hp_sg_count c = { { 0 } };

	if (mode & (HUGEPIN_SG_COPY | HUGEPIN_SG_INLINE)) {
		c.term[cold ? HP_SG_cold_piece : HP_SG_piece] = pieces;
		c.term[cold ? HP_SG_cold_byte : HP_SG_copy_byte] = (double)bytes;
		c.term[HP_SG_cold] = cold;
	}
	if (mode & HUGEPIN_SG_INLINE) {
		c.term[HP_SG_inline_wr] = c.term[HP_SG_device_inline_wr] = 1;
		c.term[HP_SG_inline_piece] = pieces;
		c.term[HP_SG_inline_byte] = c.term[HP_SG_device_inline_byte] = (double)bytes;
		return c;
	}
	c.term[HP_SG_wr] = c.term[HP_SG_device_wr] = 1;
	c.term[HP_SG_element] = 1;
	c.term[HP_SG_byte] = c.term[HP_SG_device_byte] = (double)bytes;
	if (mode & HUGEPIN_SG_GATHER) {
		c.term[HP_SG_element] = pieces;
		c.term[HP_SG_lookup] = registrations;
		c.term[HP_SG_line] = c.term[HP_SG_device_line] = lines;
	}
	c.term[HP_SG_device_element] = c.term[HP_SG_element];
	return c;
}

static double ns_of(const struct hugepin_sg_model *m, const struct hp_sg_count *count, bool device)
{
	double ns = 0;

	for (int i = device ? HP_SG_device_wr : 0; i < (device ? HP_SG_TERMS : HP_SG_device_wr); i++)
		ns += (double)value_of(m, i) * count->term[i];
	return ns;
}

double hp_sg_model_ns(const struct hugepin_sg_model *m, const struct hp_sg_count *count)
{
	const double cpu = ns_of(m, count, false), device = ns_of(m, count, true);

	return device > cpu ? device : cpu;
}

/* Solve a x = b for k symmetric, positive definite equations, in place (Cholesky without roots). An unknown is set to
 * zero if the others determine it, or if it is in no equation. */
static void solve(double a[HP_SG_TERMS][HP_SG_TERMS], double b[HP_SG_TERMS], int k)
{
	bool dead[HP_SG_TERMS] = { false };
	double whole[HP_SG_TERMS];

	for (int i = 0; i < k; i++)
		whole[i] = a[i][i];
	for (int i = 0; i < k; i++) {
		dead[i] = !(a[i][i] > whole[i] * 1e-12);
		if (dead[i])
			continue;
		for (int j = i + 1; j < k; j++) {
			const double f = a[j][i] / a[i][i];
			for (int c = i; c < k; c++)
				a[j][c] -= f * a[i][c];
			b[j] -= f * b[i];
		}
	}
	for (int i = k - 1; i >= 0; i--) {
		for (int j = i + 1; j < k; j++)
			b[i] -= a[i][j] * b[j];
		b[i] = dead[i] ? 0 : b[i] / a[i][i];
	}
}

/* The best values of the k terms in `term`, the CPU's or the device's. They may be negative. */
static void least_squares(const struct hugepin_sg_model *m, bool device, const int *term, int k,
			  const struct hp_sg_sample *samples, size_t count, double ret_[HP_SG_TERMS])
{
	double a[HP_SG_TERMS][HP_SG_TERMS] = { { 0 } };

	memset(ret_, 0, HP_SG_TERMS * sizeof *ret_);
	for (const struct hp_sg_sample *s = samples; s < samples + count; s++) {
		const double w = 1 / (s->ns * s->ns);
		double rest = s->ns - ns_of(m, &s->count, device);

		for (int i = 0; i < k; i++)
			rest += (double)value_of(m, term[i]) * s->count.term[term[i]];
		for (int i = 0; i < k; i++) {
			for (int j = 0; j < k; j++)
				a[i][j] += w * s->count.term[term[i]] * s->count.term[term[j]];
			ret_[i] += w * s->count.term[term[i]] * rest;
		}
	}
	solve(a, ret_, k);
}

double hp_sg_model_fit(struct hugepin_sg_model *m, unsigned fitted, const struct hp_sg_sample *samples, size_t count)
{
	const bool device = fitted & HP_SG_DEVICE_TERMS;
	double x[HP_SG_TERMS], sum = 0;
	int term[HP_SG_TERMS], k = 0, worst;
	unsigned had = 0;

	for (size_t i = 0; i < count; i++) {
		if (!(samples[i].ns > 0) || samples[i].ns > HP_KEPT_NS_MAX)
			return -1;
		for (int t = 0; t < HP_SG_TERMS; t++)
			had |= (unsigned)(samples[i].count.term[t] != 0) << t;
	}
	if (!count)
		return -1;
	for (int t = 0; t < HP_SG_TERMS; t++)
		if (fitted & had & 1u << t)
			term[k++] = t;
	do {
		least_squares(m, device, term, k, samples, count, x);
		worst = -1;
		for (int i = 0; i < k; i++)
			if (x[i] < 0 && (worst < 0 || x[i] < x[worst]))
				worst = i;
		if (worst >= 0) {
			*value(m, term[worst]) = 0;
			memmove(term + worst, term + worst + 1, (size_t)(--k - worst) * sizeof *term);
		}
	} while (worst >= 0);
	for (int i = 0; i < k; i++)
		*value(m, term[i]) = (float)x[i];
	for (size_t i = 0; i < count; i++) {
		const double e = ns_of(m, &samples[i].count, device) / samples[i].ns - 1;
		sum += e * e;
	}
	return sum / (double)count;
}

/* ------------------------------------------------------------------ text */

#define HEAD "hugepin-sg-model 2\n"

int hp_sg_model_print(const struct hugepin_sg_model *m, const struct hp_place *place, char *text, size_t size)
{
	int n = snprintf(text, size, HEAD "device %s\nfirmware %s\ncpu %s\nrefused %u\n", place->device,
			 place->firmware, place->cpu, m->refused);

	for (int i = 0; i < HP_SG_TERMS && n >= 0 && (size_t)n < size; i++)
		n += hp_kept_print(text + n, size - (size_t)n, terms[i].name, (double)value_of(m, i));
	if (n >= 0 && (size_t)n < size)
		n += snprintf(text + n, size - (size_t)n, "end\n");
	return n >= 0 && (size_t)n < size ? n : -EMSGSIZE;
}

static bool line_refused(const char **at, uint32_t *ret_)
{
	size_t len;
	uint64_t n;
	const char *v = hp_kept_line(at, "refused", &len);

	if (!v || !hp_kept_digits(&v, HUGEPIN_SG_INLINE | HUGEPIN_SG_GATHER, &n) || *v != '\n' || n & HUGEPIN_SG_COPY)
		return false;
	*ret_ = (uint32_t)n;
	return true;
}

int hp_sg_model_parse(const char *text, struct hugepin_sg_model *ret_, struct hp_place *ret_place)
{
	struct hugepin_sg_model m = { .size = sizeof m, .source = HUGEPIN_SG_MODEL_DEVICE };
	struct hp_place place;
	const char *at = text;

	if (strncmp(at, HEAD, strlen(HEAD)))
		return -EILSEQ;
	at += strlen(HEAD);
	if (!hp_kept_place(&at, &place) || !line_refused(&at, &m.refused))
		return -EILSEQ;
	for (int i = 0; i < HP_SG_TERMS; i++)
		if (!hp_kept_number(&at, terms[i].name, value(&m, i)))
			return -EILSEQ;
	if (strcmp(at, "end\n"))
		return -EILSEQ;
	*ret_ = m;
	*ret_place = place;
	return 0;
}

/* ------------------------------------------------------------------ files */

int hp_sg_model_path(const struct hp_place *place, char path[HP_KEPT_PATH_MAX])
{
	return hp_kept_path(HP_SG_KEPT, place, path);
}

int hp_sg_model_load(const char *path, struct hugepin_sg_model *ret_, struct hp_place *ret_place)
{
	char text[HP_SG_TEXT_MAX];
	const int err = hp_kept_load(path, text, sizeof text);

	return err ? err : hp_sg_model_parse(text, ret_, ret_place);
}

int hp_sg_model_store(const char *path, const struct hugepin_sg_model *m, const struct hp_place *place)
{
	char text[HP_SG_TEXT_MAX];
	const int len = hp_sg_model_print(m, place, text, sizeof text);

	return len < 0 ? len : hp_kept_store(path, text);
}
