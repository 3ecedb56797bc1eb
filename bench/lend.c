/*
 * Lent keys in virtual time: nodes that put into each other's memory, by patterns made by rule and by recorded traces,
 * through the library's own lend/. One line of key=value pairs for each run; the same options give the same lines.
 *
 *	lend [-q] [-s SEED] [PATTERN...]
 *
 * Table `usual` has patterns of random updates, a store of blocks, and stencils. Each is run with the policy of
 * Bonachea and Bell 2003 (static) for each size of bucket, and with static and pool as the library chooses the size.
 * Figures a put are of the second half of a run. hits_pct is of all puts: those that found all keys that they needed.
 * The target has M = 512 MiB to lend, and M / 4 to leave idle. lendpaper.c has the paper's own experiments, beside puts
 * by rendezvous. -q leaves out what takes longer.
 *
 * A node has a domain, a lend, and a device that only counts. Memory is address space that nothing touches, so
 * gigabytes cost nothing. Times are those of struct site. Usually a message takes 1 to 3 us, a put 2 us and 0.1 ns a
 * byte, and registering no time, and a node has 8 puts under way at most. Messages between two nodes keep their order,
 * others overtake each other. A put needs a key for each piece of its range. At its begin and at its end, each piece is
 * checked against the target's device: the program ends if a key does not open what it should.
 *
 * Only nodes that put or are put to exist. The others, up to `nodes` in all, are what the target has tables and shares
 * for.
 */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hugepin.h"
#include "lend.h"

static const struct pattern usual[] = {
	{ "gups-256M-4of63", lend_gups, 60000, 4, 256 * MIB, .nodes = 64 },
	{ "gups-256M-3of3", lend_gups, 60000, 3, 256 * MIB, .nodes = 4 },
	{ "gups-4G-3of3", lend_gups, 40000, 3, 4 * GIB, .nodes = 4 },
	{ "blocks-256K-4of63", lend_blocks, 30000, 4, GIB, .nodes = 64 },
	{ "halo-256-4of63", lend_halo, 30, 4, 256, .nodes = 64 },
	{ "vectors-300K-4of63", lend_vectors, 600, 4, 0, .nodes = 64 },
	{ "gups-16M-48of63", lend_gups_own, 400000, 48, 16 * MIB, .nodes = 64 },
	{ "sweep-1G-2of63", lend_sweep, 8, 2, GIB, .nodes = 64 },
	{ "gups-256M-all4", lend_gups_all, 80000, 4, 256 * MIB, .nodes = 4 },
	{ "trace-cg", lend_traced, .nodes = 64, .trace = "cg.B.4" },
	{ "trace-lammps", lend_traced, .nodes = 64, .trace = "lammps-lj.4" },
	{ "trace-hpcg", lend_traced, .nodes = 64, .trace = "hpcg48.2" },
	{ "tables-4", lend_gups, 60000, 4, 256 * MIB, .nodes = 5, .slow = true },
	{ "tables-64", lend_gups, 60000, 4, 256 * MIB, .nodes = 64, .slow = true },
	{ "tables-1024", lend_gups, 60000, 4, 256 * MIB, .nodes = 1024, .slow = true },
	{ "tables-4096", lend_gups, 60000, 4, 256 * MIB, .nodes = 4096, .slow = true },
};

enum { USUAL = sizeof usual / sizeof *usual };

static bool quick;
static uint64_t seed = 1;
static const char *wanted[64];
static int wanted_count;

static struct pattern pattern_at(size_t i)
{
	return i < USUAL ? usual[i] : lend_paper(i - USUAL);
}

static bool is_wanted(const struct pattern *p)
{
	for (int i = 0; i < wanted_count; i++)
		if (!strcmp(wanted[i], p->name))
			return true;
	return !wanted_count && !(quick && p->slow);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	switch (key) {
	case 'q': quick = true; return 0;
	case 's': seed = strtoull(arg, NULL, 0); return 0;
	case ARGP_KEY_ARG:
		for (size_t i = 0; i < USUAL + lend_paper_count(); i++)
			if (!strcmp(arg, pattern_at(i).name) && wanted_count < 64) {
				wanted[wanted_count++] = arg;
				return 0;
			}
		argp_error(state, "not known: %s", arg);
		return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

int main(int argc, char **argv)
{
	static const struct argp_option options[] = { { "quick", 'q', NULL, 0, "Leave out what takes longer", 0 },
						      { "seed", 's', "SEED", 0, "Other random numbers (1)", 0 },
						      { 0 } };
	static const struct argp argp = {
		options, parse, "[PATTERN...]", "Lent keys in virtual time.", NULL, NULL, NULL
	};
	static const struct setting usual_settings[] = {
		{ HUGEPIN_LEND_STATIC, LEND_128K }, { HUGEPIN_LEND_STATIC, LEND_2M }, { HUGEPIN_LEND_STATIC, LEND_64M },
		{ HUGEPIN_LEND_STATIC, LEND_OWN },  { HUGEPIN_LEND_POOL, LEND_OWN },
	};
	static const struct setting paper_settings[] = {
		{ LEND_RENDEZVOUS_UNPIN, LEND_OWN },
		{ LEND_RENDEZVOUS, LEND_OWN },
		{ HUGEPIN_LEND_STATIC, LEND_PAGE },
		{ HUGEPIN_LEND_POOL, LEND_OWN },
	};

	argp_err_exit_status = 1;
	if (argp_parse(&argp, argc, argv, 0, NULL, NULL))
		return 1;
	for (size_t i = 0; i < USUAL + lend_paper_count(); i++) {
		const struct pattern p = pattern_at(i);
		const struct setting *s = i < USUAL ? usual_settings : paper_settings;
		size_t settings = i < USUAL ? 5 : 4;
		struct work w = { 0 };

		if (!is_wanted(&p))
			continue;
		lend_seed = seed;
		p.make(&w, &p);
		for (size_t k = i < USUAL && p.slow ? 4 : 0; k < settings; k++)
			lend_run(&p, &w, s[k], seed + 4);
		free(w.put);
	}
	return fflush(stdout) || ferror(stdout) ? 1 : 0;
}
