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

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define NS_MAX 1000000000u /* a second */

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
		c.term[HP_SG_inline_wr] = 1;
		c.term[HP_SG_inline_piece] = pieces;
		c.term[HP_SG_inline_byte] = (double)bytes;
		return c;
	}
	c.term[HP_SG_wr] = 1;
	c.term[HP_SG_element] = 1;
	c.term[HP_SG_byte] = (double)bytes;
	if (mode & HUGEPIN_SG_GATHER) {
		c.term[HP_SG_element] = pieces;
		c.term[HP_SG_lookup] = registrations;
		c.term[HP_SG_line] = lines;
	}
	return c;
}

double hp_sg_model_ns(const struct hugepin_sg_model *m, const struct hp_sg_count *count)
{
	double ns = 0;

	for (int i = 0; i < HP_SG_TERMS; i++)
		ns += (double)value_of(m, i) * count->term[i];
	return ns;
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

/* The best values of the k terms in `term`. They may be negative. */
static void least_squares(const struct hugepin_sg_model *m, const int *term, int k, const struct hp_sg_sample *samples,
			  size_t count, double ret_[HP_SG_TERMS])
{
	double a[HP_SG_TERMS][HP_SG_TERMS] = { { 0 } };

	memset(ret_, 0, HP_SG_TERMS * sizeof *ret_);
	for (const struct hp_sg_sample *s = samples; s < samples + count; s++) {
		const double w = 1 / (s->ns * s->ns);
		double rest = s->ns - hp_sg_model_ns(m, &s->count);

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
	double x[HP_SG_TERMS], sum = 0;
	int term[HP_SG_TERMS], k = 0, worst;
	unsigned had = 0;

	for (size_t i = 0; i < count; i++) {
		if (!(samples[i].ns > 0) || samples[i].ns > NS_MAX)
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
		least_squares(m, term, k, samples, count, x);
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
		const double e = hp_sg_model_ns(m, &samples[i].count) / samples[i].ns - 1;
		sum += e * e;
	}
	return sum / (double)count;
}

/* ------------------------------------------------------------------ text */

#define HEAD "hugepin-sg-model 1\n"
#define MILLIONTH 1000000u

int hp_sg_model_print(const struct hugepin_sg_model *m, const struct hp_sg_place *place, char *text, size_t size)
{
	int n = snprintf(text, size, HEAD "device %s\nfirmware %s\ncpu %s\nrefused %u\n", place->device,
			 place->firmware, place->cpu, m->refused);

	for (int i = 0; i < HP_SG_TERMS && n >= 0 && (size_t)n < size; i++) {
		const double v = (double)value_of(m, i);
		const uint64_t u = v > 0 ? (uint64_t)((v < NS_MAX ? v : NS_MAX) * MILLIONTH + 0.5) : 0;
		n += snprintf(text + n, size - (size_t)n, "%s %u.%06u\n", terms[i].name, (unsigned)(u / MILLIONTH),
			      (unsigned)(u % MILLIONTH));
	}
	if (n >= 0 && (size_t)n < size)
		n += snprintf(text + n, size - (size_t)n, "end\n");
	return n >= 0 && (size_t)n < size ? n : -EMSGSIZE;
}

/* Step over the line "name VALUE". Returns VALUE, which extends to the end of the line. NULL: this is another line. */
static const char *line(const char **at, const char *name, size_t *ret_len)
{
	const size_t n = strlen(name);
	const char *end = strchr(*at, '\n'), *from = *at + n + 1;

	if (strncmp(*at, name, n) || (*at)[n] != ' ' || !end || end < from)
		return NULL;
	*at = end + 1;
	*ret_len = (size_t)(end - from);
	return from;
}

static bool line_text(const char **at, const char *name, char *ret_, size_t size)
{
	size_t len;
	const char *from = line(at, name, &len);

	if (!from || len >= size)
		return false;
	memcpy(ret_, from, len);
	ret_[len] = '\0';
	return true;
}

/* Read digits up to the value `max`, and step over them. False: no digits, or a larger value. */
static bool digits(const char **at, uint64_t max, uint64_t *ret_)
{
	uint64_t n = 0;
	const char *from = *at;

	for (; isdigit((unsigned char)**at) && n <= max; (*at)++)
		n = n * 10 + (uint64_t)(**at - '0');
	*ret_ = n;
	return *at > from && n <= max;
}

static bool line_number(const char **at, const char *name, float *ret_)
{
	size_t len;
	uint64_t whole, part;
	const char *v = line(at, name, &len), *dot;

	if (!v || !digits(&v, NS_MAX, &whole) || *v != '.')
		return false;
	dot = v++;
	if (!digits(&v, MILLIONTH - 1, &part) || v != dot + 7 || *v != '\n')
		return false;
	*ret_ = (float)((double)whole + (double)part / MILLIONTH);
	return true;
}

static bool line_refused(const char **at, uint32_t *ret_)
{
	size_t len;
	uint64_t n;
	const char *v = line(at, "refused", &len);

	if (!v || !digits(&v, HUGEPIN_SG_INLINE | HUGEPIN_SG_GATHER, &n) || *v != '\n' || n & HUGEPIN_SG_COPY)
		return false;
	*ret_ = (uint32_t)n;
	return true;
}

int hp_sg_model_parse(const char *text, struct hugepin_sg_model *ret_, struct hp_sg_place *ret_place)
{
	struct hugepin_sg_model m = { .size = sizeof m, .source = HUGEPIN_SG_MODEL_DEVICE };
	struct hp_sg_place place;
	const char *at = text;

	if (strncmp(at, HEAD, strlen(HEAD)))
		return -EILSEQ;
	at += strlen(HEAD);
	if (!line_text(&at, "device", place.device, sizeof place.device) ||
	    !line_text(&at, "firmware", place.firmware, sizeof place.firmware) ||
	    !line_text(&at, "cpu", place.cpu, sizeof place.cpu) || !line_refused(&at, &m.refused))
		return -EILSEQ;
	for (int i = 0; i < HP_SG_TERMS; i++)
		if (!line_number(&at, terms[i].name, value(&m, i)))
			return -EILSEQ;
	if (strcmp(at, "end\n"))
		return -EILSEQ;
	*ret_ = m;
	*ret_place = place;
	return 0;
}

/* ------------------------------------------------------------------ files */

int hp_sg_model_dir(char path[HP_SG_PATH_MAX])
{
	const char *cache = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
	int n;

	if (cache && *cache == '/') /* the XDG Base Directory Specification says to ignore a relative path */
		n = snprintf(path, HP_SG_PATH_MAX, "%s/hugepin", cache);
	else if (home && *home == '/')
		n = snprintf(path, HP_SG_PATH_MAX, "%s/.cache/hugepin", home);
	else
		return -ENOENT;
	return n > 0 && n < HP_SG_PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* Append a part of the file's name. Characters with a meaning in paths or for a shell are replaced. */
static char *append_name(char *at, const char *name)
{
	*at++ = '-';
	for (; *name; name++)
		*at++ = isalnum((unsigned char)*name) && (unsigned char)*name < 128 ? *name : *name == '.' ? '.' : '_';
	*at = '\0';
	return at;
}

int hp_sg_model_path(const struct hp_sg_place *place, char path[HP_SG_PATH_MAX])
{
	const int err = hp_sg_model_dir(path);
	const size_t len = err ? 0 : strlen(path);
	char *at = path + len;

	if (err)
		return err;
	if (len + sizeof *place + 16 > HP_SG_PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(at, "/sg", 4);
	at = append_name(at + 3, place->device);
	at = append_name(at, place->firmware);
	append_name(at, place->cpu);
	return 0;
}

/* Read up to size - 1 bytes of a file, and terminate the text. */
static ssize_t read_text(const char *path, char *text, size_t size)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	size_t len = 0;
	ssize_t n = 1;

	if (fd < 0)
		return -errno;
	while (len < size - 1 && n > 0 && (n = read(fd, text + len, size - 1 - len)) > 0)
		len += (size_t)n;
	if (n < 0)
		n = -errno;
	close(fd);
	text[len] = '\0';
	return n < 0 ? n : (ssize_t)len;
}

int hp_sg_model_load(const char *path, struct hugepin_sg_model *ret_, struct hp_sg_place *ret_place)
{
	char text[HP_SG_TEXT_MAX];
	const ssize_t n = read_text(path, text, sizeof text);

	if (n < 0)
		return (int)n;
	return strlen(text) == (size_t)n ? hp_sg_model_parse(text, ret_, ret_place) : -EILSEQ;
}

/* Make missing directories of `path`. */
static void make_dirs(char *path)
{
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		(void)!mkdir(path, 0700);
		*slash = '/';
	}
}

int hp_sg_model_store(const char *path, const struct hugepin_sg_model *m, const struct hp_sg_place *place)
{
	char text[HP_SG_TEXT_MAX], temporary[HP_SG_PATH_MAX + 8];
	const int len = hp_sg_model_print(m, place, text, sizeof text);
	int err = 0;

	if (len < 0)
		return len;
	snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
	make_dirs(temporary);
	const int fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	const ssize_t n = write(fd, text, (size_t)len);
	if (n != len)
		err = n < 0 ? -errno : -ENOSPC;
	if (close(fd) && !err)
		err = -errno;
	if (!err && rename(temporary, path))
		err = -errno;
	if (err)
		unlink(temporary);
	return err;
}

void hp_sg_cpu_name(char *name, size_t size)
{
	char text[4096];
	struct utsname u;
	const char *at = read_text("/proc/cpuinfo", text, sizeof text) > 0 ? strstr(text, "model name") : NULL;

	at = at ? strchr(at, ':') : NULL;
	if (at) {
		at += 1 + strspn(at + 1, " \t");
		snprintf(name, size, "%.*s", (int)strcspn(at, "\n"), at);
	} else {
		snprintf(name, size, "%s", uname(&u) ? "unknown" : u.machine);
	}
}
