/*
 * What lies behind the layer: the next function of a name, in the program's MPI or in a tool of the profiling interface that is
 * preloaded behind us; which MPI that is; and whether a call that was begun is still under way.
 *
 * An MPI that was loaded with RTLD_LOCAL (by Python's mpi4py, say, or by a plugin) is behind nobody. It is found by name among
 * all objects, so that what calls us by chance gets what it called.
 */
#include "mpi/layer.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

enum { OBJECTS_MAX = 4096 };

struct objects {
	char *name[OBJECTS_MAX];
	int n;
};

/* Where the object that has this address begins; NULL: none has. */
static void *object_of(const void *addr)
{
	Dl_info info;

	return dladdr(addr, &info) ? info.dli_fbase : NULL;
}

static bool ours(const void *addr)
{
	static char here;

	return object_of(addr) == object_of(&here);
}

static int note(struct dl_phdr_info *info, size_t size, void *objects_)
{
	struct objects *objects = objects_;

	(void)size;
	if (info->dlpi_name[0] && objects->n < OBJECTS_MAX && (objects->name[objects->n] = strdup(info->dlpi_name)))
		objects->n++;
	return 0;
}

/* In any object but ours, which then stays loaded. Names first: dl_iterate_phdr holds a lock of the loader's. */
static void *find_anywhere(const char *name)
{
	struct objects *objects = calloc(1, sizeof *objects);
	void *found = NULL;

	if (!objects)
		return NULL;
	dl_iterate_phdr(note, objects);
	for (int i = 0; i < objects->n; i++) {
		void *object = found ? NULL : dlopen(objects->name[i], RTLD_LAZY | RTLD_NOLOAD);

		found = object ? dlsym(object, name) : found;
		if (found && object && ours(found))
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

void *hp_next(void **slot, const char *name)
{
	void *next = __atomic_load_n(slot, __ATOMIC_RELAXED);

	if (next)
		return next;
	next = hp_find(name);
	if (!next) {
		fprintf(stderr, "hugepin: the program's MPI has no %s\n", name);
		abort();
	}
	__atomic_store_n(slot, next, __ATOMIC_RELAXED);
	return next;
}

#ifdef OPEN_MPI
static const char built_for[] = "Open MPI";
static const bool for_open_mpi = true;
#else
static const char built_for[] = "MPICH";
static const bool for_open_mpi = false;
#endif

/* By the launcher's word: MPI's own functions need handles that may be another MPI's. */
static bool first_rank(void)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID" };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *text = secure_getenv(names[i]);

		if (text)
			return !strcmp(text, "0");
	}
	return true;
}

bool hp_mpi_is_ours(void)
{
	if (!!hp_find("ompi_mpi_comm_world") != for_open_mpi) {
		if (first_rank())
			fprintf(stderr, "hugepin: libhugepin-mpi.so is for %s, and the program has another MPI: nothing is registered\n",
				built_for);
		return false;
	}
#ifdef OPEN_MPI
	return &ompi_mpi_comm_world; /* loaded too late, or with RTLD_LOCAL: our reference leads nowhere */
#else
	return true;
#endif
}

/* ------------------------------------------------------------------ calls that were left by longjmp or throw */

struct search {
	uintptr_t cfa, inner_ip; /* what is looked for; where the function in front of this one is */
	bool found, passed;
};

/* Of each function from the innermost: the CFA that the unwinder has at that time is its callee's. */
static _Unwind_Reason_Code look(struct _Unwind_Context *at, void *search)
{
	struct search *s = search;
	const uintptr_t cfa = _Unwind_GetCFA(at);

	/* Where the call was, another function may be by now. */
	s->found = cfa == s->cfa && ours((void *)s->inner_ip);
	s->passed = cfa >= s->cfa;
	s->inner_ip = _Unwind_GetIP(at);
	return s->passed ? _URC_END_OF_STACK : _URC_NO_REASON;
}

bool hp_frame_lives(const void *frame, const void *now)
{
	struct search s = { .cfa = (uintptr_t)frame + 2 * sizeof(void *) };

	if (!hp_stack_end((uintptr_t)frame) || !hp_stack_end((uintptr_t)now)) /* a fiber's: it may go on later */
		return true;
	if ((uintptr_t)frame <= (uintptr_t)now)
		return false;
	_Unwind_Backtrace(look, &s);
	return s.found || !s.passed; /* a stack that cannot be followed so far tells nothing */
}
