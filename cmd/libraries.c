/*
 * See libraries.h. hugepin(1) repeats the options, and tools/check-man compares.
 */
#include "cmd/libraries.h"

#include <stddef.h>

#include "base/base.h"

const struct hp_library hp_libraries[HP_LIBRARIES] = {
	[HP_LIBRARY_HEAP] = { HP_SONAME("libhugepin"), "heap and pin cache, for programs that call them", NULL, NULL, NULL },
	[HP_LIBRARY_DROPIN] = { HP_SONAME("libhugepin-malloc"), "malloc in hugepages, for programs as they are", NULL, NULL,
				NULL },
	[HP_LIBRARY_VERBS] = { HP_SONAME("libhugepin-verbs"), "pin cache and packing for RDMA devices", NULL, NULL, NULL },
	[HP_LIBRARY_URING] = { HP_SONAME("libhugepin-uring"), "messages of many pieces on io_uring", NULL, NULL, NULL },
	[HP_LIBRARY_MPI] = { HP_SONAME("libhugepin-mpi"),
			     "measures what a policy keeps registered for an MPI program", "mpi", NULL, NULL },
	[HP_LIBRARY_HOOKS] = { HP_SONAME("libhugepin-hooks"),
			       "tells the caches of UCX and libfabric what leaves the heap", "hooks", NULL, NULL },
	[HP_LIBRARY_VERBSCACHE] = { HP_SONAME("libhugepin-verbscache"),
				    "has registrations of libibverbs kept, given back and made again by a policy",
				    "verbs-cache", "off|local|remote", "HUGEPIN_X_VERBS_CACHE" },
};
