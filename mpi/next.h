/*
 * What is behind the layer: the next function of a name, which MPI that is, and which code is the layer's own.
 */
#ifndef HP_MPI_NEXT_H
#define HP_MPI_NEXT_H

#include <mpi.h>
#include <stdbool.h>

/* The next function of that name behind ours, which *slot keeps. Aborts if there is none. */
void *hp_next(_Atomic(void *) *slot, const char *name);

/* The same, but not kept; NULL: there is none. */
void *hp_find(const char *name);

/* MPI's own function of that name, for the layer's own calls. */
#define REAL(name) \
	({ \
		static _Atomic(void *) found_; \
		(__typeof__(&PMPI_##name))hp_next(&found_, "PMPI_" #name); \
	})

/* The program's MPI is the one that this library was built for, and its handles can be seen. If it is another, stderr
 * is told so. */
bool hp_mpi_is_ours(void);

/* The address is in this library. */
bool hp_is_ours(const void *addr);

/* A function of MPI's that the layer exports. It is a jump to *to: to the layer's function of this name, or to MPI's
 * own. */
struct hp_entry {
	_Atomic(void *) *to;
	const char *name;
};

/* From now on the exported functions are MPI's own. */
void hp_pass_through(void);

#endif
