/*
 * The time that an operation of the helper takes: t = a * pages + b, with values for each backing, size class and kind
 * of operation, learnt from the operations.
 *
 * Pure. A struct of zeros has learnt nothing. Only one thread at a time may use it.
 */
#ifndef HP_REG_COST_H
#define HP_REG_COST_H

#include <stdbool.h>
#include <stdint.h>

enum hp_cost_backing { HP_COST_BASE, HP_COST_THP, HP_COST_HUGETLB, HP_COST_BACKINGS };

/* ON_DEMAND: registering on demand. BRING_IN: having the device bring in so many bytes that are registered on demand
 * and out of memory. */
enum hp_cost_kind { HP_COST_DEREGISTER, HP_COST_REGISTER, HP_COST_ON_DEMAND, HP_COST_BRING_IN, HP_COST_KINDS };

/* Class i has sizes from 4 KiB * 4^i to four times that. The first class also has all smaller sizes, the last all
 * larger ones. */
enum { HP_COST_CLASSES = 16 };

struct hp_cost {
	struct hp_cost_guess {
		double fixed_ns, byte_ns;
	} first[HP_COST_KINDS]; /* the first guess for base pages; zeros: the one for all pages */
	struct hp_cost_class {
		uint64_t count;
		double x, y; /* means: size in units of the class, ns */
		double xx, xy; /* variance, covariance */
		bool doubted; /* the last operation was an outlier */
	} classes[HP_COST_BACKINGS][HP_COST_KINDS][HP_COST_CLASSES];
	uint64_t count;
	double error; /* mean relative error */
};

/* Before anything is learnt, guess that such operations on base pages take the times measured on the device. A guess of
 * zeros, or less, is none. */
void hp_cost_begin(struct hp_cost *, enum hp_cost_kind kind, double fixed_ns, double page_ns);

/* Learn that an operation on so many bytes took `ns`. */
void hp_cost_learn(struct hp_cost *, unsigned backing, uint64_t bytes, enum hp_cost_kind kind, uint64_t ns);

/* The expected time in ns, from 1 to 2^62. */
uint64_t hp_cost_ns(const struct hp_cost *, unsigned backing, uint64_t bytes, enum hp_cost_kind kind);

/* The mean of |predicted - taken| / taken in thousandths, where each prediction was made before the operation was
 * learnt. Mostly of the last 256 operations. */
uint64_t hp_cost_error_permille(const struct hp_cost *);

/* For the statistics: the line of one class, if any operation was seen there. */
struct hp_cost_fit {
	uint64_t count; /* operations seen */
	double page_ns, fixed_ns; /* a and b; a page is a base page in HP_COST_BASE, otherwise 2 MiB */
};
bool hp_cost_fit(const struct hp_cost *, unsigned backing, unsigned class, enum hp_cost_kind kind,
		 struct hp_cost_fit *ret);

#endif
