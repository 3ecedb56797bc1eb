/*
 * The domain in which the layer pins.
 */
#ifndef HP_MPI_DOMAIN_H
#define HP_MPI_DOMAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hugepin.h"

/* NULL: not open, or it could not be opened. */
extern hugepin_domain *hp_mpi_domain;

/* Whether the domain brings memory in as it is told of the phases of transfers (hugepin_prefetch), or the cache of
 * libhugepin-verbscache.so is told of them, which has what MPI registers. */
extern bool hp_mpi_phases;

/* Open the domain for the backend of hp_mpi_options. 0 or -errno. */
int hp_mpi_domain_open(void);

void hp_mpi_domain_close(void);

/* In place of a domain, where libhugepin-verbscache.so is loaded: a phase of a transfer of these bytes. */
void hp_mpi_cache_phase(uintptr_t start, size_t len, unsigned phase);

#endif
