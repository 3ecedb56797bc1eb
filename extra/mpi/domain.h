/*
 * The domain in which the layer pins.
 */
#ifndef HP_MPI_DOMAIN_H
#define HP_MPI_DOMAIN_H

#include <stdbool.h>

#include "hugepin.h"

/* NULL: not open, or it could not be opened. */
extern hugepin_domain *hp_mpi_domain;

/* Whether the domain brings memory in as it is told of the phases of transfers (hugepin_prefetch). */
extern bool hp_mpi_phases;

/* Open the domain for the backend of hp_mpi_options. 0 or -errno. */
int hp_mpi_domain_open(void);

void hp_mpi_domain_close(void);

#endif
