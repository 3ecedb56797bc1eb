/*
 * The domain in which the layer pins.
 */
#ifndef HP_MPI_DOMAIN_H
#define HP_MPI_DOMAIN_H

#include "hugepin.h"

/* NULL: not open, or it could not be opened. */
extern hugepin_domain *hp_mpi_domain;

/* Open the domain for the backend of hp_mpi_options. 0 or -errno. */
int hp_mpi_domain_open(void);

void hp_mpi_domain_close(void);

#endif
