/*
 * What benches share: the clock, medians, random numbers, sizes. It needs nothing but the C library, and allocates
 * nothing for up to 128 values.
 */
#ifndef BENCH_LIB_H
#define BENCH_LIB_H

#include <err.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)
#define GiB ((size_t)1 << 30)

/* A line that the scripts read; "-" for a value that this machine cannot give. */
static inline void say(const char *name, const char *part, double value, const char *unit)
{
	if (isnan(value))
		printf("%s%s - %s\n", name, part, unit);
	else
		printf("%s%s %.7g %s\n", name, part, value, unit);
}

static inline double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static inline int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Sorts v. */
static inline double median(double *v, size_t n)
{
	qsort(v, n, sizeof *v, compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static inline uint64_t next_random(uint64_t *state) /* xorshift64* (Vigna 2016) */
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(2685821657736338717);
}

static inline void touch(char *p, size_t len)
{
	for (size_t i = 0; i < len; i += 4 * KiB)
		((volatile char *)p)[i] = 1;
}

/* The time of a fork for the parent, in ms, and of what it does while the child lives. NULL: nothing. */
static inline double fork_ms(void (*meanwhile)(void *), void *arg)
{
	double begun;
	pid_t child;
	int go[2];
	char c = 0;

	if (pipe(go))
		err(1, "pipe");
	begun = now_ns();
	child = fork();
	if (child < 0)
		err(1, "fork");
	if (!child) {
		close(go[1]);
		_exit(read(go[0], &c, 1) != 0); /* until the parent closes its end */
	}
	if (meanwhile)
		meanwhile(arg);
	begun = now_ns() - begun;
	close(go[1]);
	close(go[0]);
	waitpid(child, NULL, 0);
	return begun / 1e6;
}

/* A number, perhaps with K, M or G. */
static inline size_t parse_size(const char *text)
{
	char *end;
	size_t n = strtoul(text, &end, 10);

	return n << (*end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0);
}

/* -q and -s SEED. Returns the arguments behind them; none, if an option is another one. */
static inline char **options(int *argc, char **argv, bool *quick, uint64_t *seed)
{
	for (int c; (c = getopt(*argc, argv, "qs:")) != -1;) {
		*quick |= c == 'q';
		if (c == 's')
			*seed = strtoul(optarg, NULL, 10) + 1;
		if (c == '?')
			optind = *argc;
	}
	*argc -= optind;
	return argv + optind;
}

#endif
