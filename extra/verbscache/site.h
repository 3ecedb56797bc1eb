/*
 * The place in the program that asks for a registration, by which a policy tells uses of a buffer apart.
 */
#ifndef HP_VERBSCACHE_SITE_H
#define HP_VERBSCACHE_SITE_H

#include <stdint.h>

/* The return address of the call of MPI that is under way, if libhugepin-mpi.so is loaded. Else the first on the stack
 * that lies outside the library that registers. 0: none is known, or no policy asks for it (HUGEPIN_POLICY). */
uintptr_t hp_site(void);

#endif
