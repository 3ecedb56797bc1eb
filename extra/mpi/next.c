/*
 * Finding the next function of a name behind the layer: in the program's MPI, or in a profiling tool that is preloaded
 * behind us. Also finding out which MPI it is.
 *
 * An MPI that was loaded with RTLD_LOCAL (by Python's mpi4py or a plugin, say) is not in the search order behind us.
 * Its functions are searched by name in all loaded objects. So a caller that reaches our function by accident still
 * gets the function that it called.
 */
#include "next.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

enum { OBJECTS_MAX = 4096 };

struct objects {
	char *name[OBJECTS_MAX];
	int n;
};

/* The start of the loaded object that contains this address; NULL: none does. */
static void *object_of(const void *addr)
{
	Dl_info info;

	return dladdr(addr, &info) ? info.dli_fbase : NULL;
}

bool hp_is_ours(const void *addr)
{
	static char here;

	return object_of(addr) == object_of(&here);
}

static int note_object(struct dl_phdr_info *info, size_t size, void *objects_)
{
	struct objects *objects = objects_;

	(void)size;
	if (info->dlpi_name[0] && objects->n < OBJECTS_MAX && (objects->name[objects->n] = strdup(info->dlpi_name)))
		objects->n++;
	return 0;
}

/* Find a function by name in any loaded object except ours. The object stays loaded. The objects' names are collected
 * first, since dl_iterate_phdr() holds a lock of the loader's. */
static void *find_anywhere(const char *name)
{
	struct objects *objects = calloc(1, sizeof *objects);
	void *found = NULL;

	if (!objects)
		return NULL;
	dl_iterate_phdr(note_object, objects);
	for (int i = 0; i < objects->n; i++) {
		void *object = found ? NULL : dlopen(objects->name[i], RTLD_LAZY | RTLD_NOLOAD);

		found = object ? dlsym(object, name) : found;
		if (found && object && hp_is_ours(found))
			found = NULL;
		if (object && !found)
			dlclose(object);
		free(objects->name[i]);
	}
	free(objects);
	return found;
}

void *hp_find(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	return found ? found : find_anywhere(name);
}

/* relaxed: each thread finds the same function. */
void *hp_next(_Atomic(void *) *slot, const char *name)
{
	void *next = atomic_load_explicit(slot, memory_order_relaxed);

	if (next)
		return next;
	next = hp_find(name);
	if (!next) {
		fprintf(stderr, "hugepin: the program's MPI has no %s\n", name);
		abort();
	}
	atomic_store_explicit(slot, next, memory_order_relaxed);
	return next;
}

#ifdef OPEN_MPI
static const char built_for[] = "Open MPI";
static const bool for_open_mpi = true;
#else
static const char built_for[] = "MPICH";
static const bool for_open_mpi = false;
#endif

/* Whether this process speaks for the job. By the environment, since MPI's functions need handles, which may be another
 * MPI's. */
static bool is_first_rank(void)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
					     "FLUX_TASK_RANK", "SLURM_PROCID" };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *text = secure_getenv(names[i]);

		if (text && *text)
			return !strcmp(text, "0");
	}
	return true;
}

bool hp_mpi_is_ours(void)
{
	if (!!hp_find("ompi_mpi_comm_world") != for_open_mpi) {
		if (is_first_rank())
			fprintf(stderr,
				"hugepin: libhugepin-mpi.so is for %s, and the program has another MPI: nothing is "
				"registered\n",
				built_for);
		return false;
	}
#ifdef OPEN_MPI
	return &ompi_mpi_comm_world; /* NULL if MPI was loaded too late, or with RTLD_LOCAL */
#else
	return true;
#endif
}

#pragma GCC visibility push(hidden)
extern struct hp_entry __start_hp_entries[], __stop_hp_entries[]; /* entries of calls.c, collected by the linker */
#pragma GCC visibility pop

void hp_pass_through(void)
{
#ifdef __x86_64__
	for (struct hp_entry *e = __start_hp_entries; e < __stop_hp_entries; e++) {
		void *next = hp_find(e->name);

		if (next)
			atomic_store_explicit(e->to, next, memory_order_relaxed);
	}
#endif
}
