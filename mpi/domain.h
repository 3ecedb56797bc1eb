/*
 * The domain that the layer pins in.
 */
#ifndef HP_MPI_DOMAIN_H
#define HP_MPI_DOMAIN_H

#include "hugepin.h"

/* NULL: it is not open, or could not be opened. */
extern hugepin_domain *hp_mpi_domain;

/* Open it for the backend of the options. 0 or -errno. */
int hp_mpi_domain_open(void);

void hp_mpi_domain_close(void);

#endif
