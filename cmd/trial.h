/*
 * Runs a program once, with all processes that it starts, and measures it, for `hugepin check`.
 */
#ifndef HP_CMD_TRIAL_H
#define HP_CMD_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cmd/judge.h"

#define HP_TAIL_MAX 4096

/* How a program is run. */
struct hp_trial_how {
	char **argv, **environment;
	int input; /* descriptor of its standard input; each run begins at the offset `input_at` */
	int64_t input_at; /* -1: the input has no offset */
	uint64_t limit_ns; /* the run is ended at this time of hp_trial_now_ns() */
};

/* To be called once, before the first run: this process becomes the parent of all processes that a program leaves
 * behind, and signals that would end it end the program first. 0 or -errno. */
int hp_trial_prepare(void);

/* Run the program. What it prints goes through a pipe and is lost, but for the last lines: `tail`, text of less than
 * HP_TAIL_MAX bytes. Processes that it leaves behind are ended: SIGTERM, then SIGKILL. 0; -errno: it could not be
 * started; -EINTR: a signal came, which hp_trial_signal() returns, and no process of the program is left. */
int hp_trial_run(const struct hp_trial_how *how, struct hp_trial *ret_, char tail[HP_TAIL_MAX]);

/* The clock of runs, CLOCK_MONOTONIC. It is asked by the C library's name, so that a test can stand in for it. */
uint64_t hp_trial_now_ns(void);

/* The signal that ended the last run; 0: none. */
int hp_trial_signal(void);

#endif
