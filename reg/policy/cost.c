/*
 * The cost model, a pure function: reg/track.c feeds it with measured times.
 *
 * Least squares with exponential forgetting, with a line for each size class, because one line for all sizes would be
 * wrong by up to two thirds: caches matter, and pages are pinned in batches. Since the sizes within a class are often
 * all the same, which gives no slope, the slope is drawn towards that of the first guess, scaled to the observed times.
 *
 * For a class without observations, the first guess is scaled like its neighbours. If there are none, it is scaled like
 * the first other kind of operation that was observed, unless the guess is of this device.
 */
#include "reg/policy/cost.h"

#include "base/base.h"

enum { CLASS_SHIFT = 12, MEMORY = 32, ERROR_MEMORY = 256 };

/* The first guess for a device that was not measured, and for pages that are not base pages: UCX's default for
 * registering. Bringing in counts the same, because it, too, gets the pages and maps them. The other kinds are 0.4 of
 * it. */
static const double guess_fixed_ns = 16000, guess_byte_ns = 0.06;
static const double guess_part[HP_COST_KINDS] = {
	[HP_COST_REGISTER] = 1, [HP_COST_DEREGISTER] = 0.4, [HP_COST_ON_DEMAND] = 0.4, [HP_COST_BRING_IN] = 1
};

/* An operation that takes more than this many times the prediction is an outlier, because the helper lost its processor
 * or waited for a lock. A single outlier is ignored. If outliers follow each other, the second and later ones count as
 * this limit, so the model needs a few operations to follow a lasting change. */
static const double outlier = 4;

/* The guessed slope weighs as much as sizes that scatter by a twentieth around their mean. */
static const double guess_weight = 0.0025;

/* Each prediction is at least this part of the class's mean, because a fitted line may fall to zero or below. */
static const double least = 0.125;

static const double ns_max = 0x1p62;

static unsigned size_class(uint64_t bytes)
{
	unsigned shift = 63 - (unsigned)__builtin_clzll(bytes | 1);

	return shift < CLASS_SHIFT ? 0 : HP_MIN((shift - CLASS_SHIFT) / 2, (unsigned)HP_COST_CLASSES - 1);
}

static double unit(unsigned class)
{
	return (double)(UINT64_C(1) << (CLASS_SHIFT + 2 * class));
}

static bool was_measured(const struct hp_cost *c, unsigned backing, enum hp_cost_kind kind)
{
	return backing == HP_COST_BASE && c->first[kind].fixed_ns + c->first[kind].byte_ns > 0;
}

static double guess(const struct hp_cost *c, unsigned backing, double bytes, enum hp_cost_kind kind)
{
	if (was_measured(c, backing, kind))
		return c->first[kind].fixed_ns + c->first[kind].byte_ns * bytes;
	return (guess_fixed_ns + guess_byte_ns * bytes) * guess_part[kind];
}

/* The ratio of the class's mean to the guess. */
static double scale_of(const struct hp_cost *c, unsigned backing, unsigned class, enum hp_cost_kind kind)
{
	const struct hp_cost_class *own = &c->classes[backing][kind][class];

	return own->y / HP_MAX(guess(c, backing, own->x * unit(class), kind), 1);
}

/* The slope, in ns for each unit of the class. */
static double slope_of(const struct hp_cost *c, unsigned backing, unsigned class, enum hp_cost_kind kind)
{
	const struct hp_cost_class *own = &c->classes[backing][kind][class];
	double guessed = scale_of(c, backing, class, kind) *
			 (guess(c, backing, unit(class), kind) - guess(c, backing, 0, kind));
	double weight = guess_weight * own->x * own->x;
	double slope = weight > 0 ? (own->xy + weight * guessed) / (own->xx + weight) : guessed;

	return HP_MAX(slope, 0);
}

/* The scale of the guess for a class without observations: interpolated between the nearest observed classes on both
 * sides. False: there are none. */
static bool scale_by_neighbours(const struct hp_cost *c, unsigned backing, unsigned class, enum hp_cost_kind kind,
				double *ret)
{
	const struct hp_cost_class *classes = c->classes[backing][kind];
	unsigned below = class, above = class;
	double scale;

	while (below > 0 && !classes[below].count)
		below--;
	while (above < HP_COST_CLASSES - 1 && !classes[above].count)
		above++;
	if (!classes[below].count && !classes[above].count)
		return false;
	if (!classes[below].count)
		below = above;
	if (!classes[above].count)
		above = below;
	scale = scale_of(c, backing, below, kind);
	if (above != below)
		scale += (scale_of(c, backing, above, kind) - scale) * (class - below) / (above - below);
	*ret = scale;
	return true;
}

static double scale_of_unseen(const struct hp_cost *c, unsigned backing, unsigned class, enum hp_cost_kind kind)
{
	double scale;

	if (scale_by_neighbours(c, backing, class, kind, &scale))
		return scale;
	for (unsigned other = 0; other < HP_COST_KINDS && !was_measured(c, backing, kind); other++)
		if (scale_by_neighbours(c, backing, class, (enum hp_cost_kind)other, &scale))
			return scale;
	return 1;
}

static double predict(const struct hp_cost *c, unsigned backing, uint64_t bytes, enum hp_cost_kind kind)
{
	unsigned class = size_class(bytes);
	const struct hp_cost_class *own = &c->classes[backing][kind][class];
	double scale, ns;

	if (own->count) {
		ns = own->y + slope_of(c, backing, class, kind) * ((double)bytes / unit(class) - own->x);
		ns = HP_MAX(ns, own->y * least);
	} else {
		scale = scale_of_unseen(c, backing, class, kind);
		ns = guess(c, backing, (double)bytes, kind) * scale;
	}
	return HP_MAX(1, HP_MIN(ns, ns_max));
}

void hp_cost_begin(struct hp_cost *c, enum hp_cost_kind kind, double fixed_ns, double page_ns)
{
	c->first[kind] = (struct hp_cost_guess){ HP_MAX(fixed_ns, 0), HP_MAX(page_ns, 0) / (double)hp_base_page };
}

void hp_cost_learn(struct hp_cost *c, unsigned backing, uint64_t bytes, enum hp_cost_kind kind, uint64_t ns)
{
	unsigned class = size_class(bytes);
	struct hp_cost_class *own = &c->classes[backing][kind][class];
	double predicted = predict(c, backing, bytes, kind), taken = HP_MAX((double)ns, 1);
	double error = (predicted > taken ? predicted - taken : taken - predicted) / taken;
	double most = outlier * predicted;
	bool doubted = own->doubted;
	double dx = (double)bytes / unit(class) - own->x, dy = HP_MIN(taken, most) - own->y, gain;

	c->count++;
	c->error += (error - c->error) / (double)HP_MIN(c->count, (uint64_t)ERROR_MEMORY);

	own->doubted = taken > most;
	if (own->doubted && !doubted)
		return;

	/* Means, variance and covariance with weights that fall by 1 - gain an operation (West 1979). */
	own->count++;
	gain = 1 / (double)HP_MIN(own->count, (uint64_t)MEMORY);
	own->x += gain * dx;
	own->y += gain * dy;
	own->xx = (1 - gain) * (own->xx + gain * dx * dx);
	own->xy = (1 - gain) * (own->xy + gain * dx * dy);
}

uint64_t hp_cost_ns(const struct hp_cost *c, unsigned backing, uint64_t bytes, enum hp_cost_kind kind)
{
	return (uint64_t)predict(c, backing, bytes, kind);
}

uint64_t hp_cost_error_permille(const struct hp_cost *c)
{
	return (uint64_t)HP_MIN(c->error * 1000, ns_max);
}

bool hp_cost_fit(const struct hp_cost *c, unsigned backing, unsigned class, enum hp_cost_kind kind,
		 struct hp_cost_fit *ret)
{
	const struct hp_cost_class *own = &c->classes[backing][kind][class];
	double slope;

	if (!own->count)
		return false;
	slope = slope_of(c, backing, class, kind);
	*ret = (struct hp_cost_fit){
		.count = own->count,
		.page_ns = slope / unit(class) * (double)(backing == HP_COST_BASE ? hp_base_page : HP_PAGE),
		.fixed_ns = own->y - slope * own->x,
	};
	return true;
}
