/*
 * The functions behind the layer: the next function of a name, which MPI is loaded, and which code is the layer's.
 */
#ifndef HP_MPI_NEXT_H
#define HP_MPI_NEXT_H

#include <mpi.h>
#include <stdbool.h>

/* The next function of that name behind ours. *slot keeps it for later calls. Aborts if there is none. */
void *hp_next(_Atomic(void *) *slot, const char *name);

/* As hp_next(), but keeps nothing, and returns NULL if there is none. */
void *hp_find(const char *name);

/* MPI's own function of that name, for calls by the layer. */
#define REAL(name) \
	({ \
		static _Atomic(void *) found_; \
		(__typeof__(&PMPI_##name))hp_next(&found_, "PMPI_" #name); \
	})

/* Whether the program's MPI is the one that this library was built for, and its handles are visible. If it is another
 * MPI, a message on stderr says so. */
bool hp_mpi_is_ours(void);

/* Whether the address lies in this library. */
bool hp_is_ours(const void *addr);

/* A function of MPI's that the layer exports. The function is a jump to *to, which is the layer's function or MPI's
 * own. */
struct hp_entry {
	_Atomic(void *) *to; /* relaxed: each thread finds the same function */
	const char *name;
};

/* Make all exported functions jump to MPI's own from now on. */
void hp_pass_through(void);

#endif
