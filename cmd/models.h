/*
 * The cost of sending on this user's devices.
 */
#ifndef HP_CMD_MODELS_H
#define HP_CMD_MODELS_H

#include <stddef.h>

/* Add a section with the stored models of this user's devices. */
void hp_models_facts(void);

/* Whether a verbs device registers memory on demand: 1 or 0. -1: this cannot be told, and `why` has the reason. */
int hp_models_odp(const char *device, char *why, size_t size);

/* The sub-command `calibrate`. Returns the exit status. */

#endif
