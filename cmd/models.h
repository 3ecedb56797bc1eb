/*
 * What sending costs on this user's devices.
 */
#ifndef HP_CMD_MODELS_H
#define HP_CMD_MODELS_H

#include <stddef.h>

/* What sending has been found to cost on this user's devices: a section. */
void hp_models_facts(void);

/* Whether a verbs device registers memory on demand: 1, 0, or -1 and in why the reason that it cannot be told. */
int hp_models_odp(const char *device, char *why, size_t size);

/* The sub-command `calibrate`. Returns the exit status. */
int hp_calibrate_main(int argc, char **argv);

#endif
