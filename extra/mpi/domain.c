/*
 * The domain of a rank: fixed buffers of an io_uring, or memory regions of the first RDMA device. All ranks of a
 * machine share one user's limit on locked memory. A rank's budget is its part of that limit, unless HUGEPIN_PIN_BUDGET
 * names one.
 */
#include "domain.h"

#include <dlfcn.h>
#include <errno.h>
#include <hugepin_uring.h>
#include <hugepin_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "util.h"

#define QUOTED(x) QUOTED_(x)
#define QUOTED_(x) #x

enum { SLOTS = 16384 }; /* fixed buffers of the ring: the kernel's maximum */

/* Of libhugepin-verbscache.so, wherever that stands in LD_PRELOAD. */
#pragma weak hugepin_verbscache_phase
void hugepin_verbscache_phase(const void *addr, size_t len, unsigned phase);

hugepin_domain *hp_mpi_domain;
bool hp_mpi_phases;

/* The number of this job's ranks on this machine. */
static unsigned ranks_here(void)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS" };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *text = secure_getenv(names[i]);
		long n = text ? strtol(text, NULL, 10) : 0;

		if (n > 0)
			return (unsigned)n;
	}
	return 1;
}

static bool names_budget(void)
{
	const char *text = secure_getenv("HUGEPIN_PIN_BUDGET");

	return text && strcmp(text, "0");
}

static int open_uring(struct hugepin_attr *attr)
{
	struct hugepin_domain_stats s;
	const unsigned ranks = ranks_here();
	int err = hugepin_uring_open_fd(-1, 0, 0, SLOTS, attr, &hp_mpi_domain);

	if (err < 0)
		return err;
	/* All ranks are charged against one limit: give this rank its part. */
	if (!names_budget() && ranks > 1 && hugepin_domain_stats(hp_mpi_domain, &s, sizeof s) > 0 &&
	    s.bytes_max && hugepin_domain_close(hp_mpi_domain) >= 0) {
		attr->pinned_bytes_max = HP_MAX(s.bytes_max / ranks, (uint64_t)1);
		hp_mpi_domain = NULL;
		err = hugepin_uring_open_fd(-1, 0, 0, SLOTS, attr, &hp_mpi_domain);
	}
	return err;
}

/* Open the domain on the first device. The device stays open until the process ends. */
static int open_verbs(struct hugepin_attr *attr)
{
#define FROM(name) __typeof__(&name) name##_ = (__typeof__(&name))dlsym(library, #name)
	void *library = dlopen("libhugepin-verbs.so." QUOTED(HUGEPIN_VERSION_MAJOR), RTLD_NOW);

	if (!library) {
		fprintf(stderr, "hugepin: %s\n", dlerror());
		return -ENOENT;
	}
	FROM(hugepin_verbs_open);
	FROM(ibv_get_device_list);
	FROM(ibv_open_device);
	FROM(ibv_alloc_pd);
	if (!hugepin_verbs_open_ || !ibv_get_device_list_ || !ibv_open_device_ || !ibv_alloc_pd_)
		return -ENOENT;
	struct ibv_device **devices = ibv_get_device_list_(NULL);
	if (!devices || !devices[0])
		return -ENODEV;
	struct ibv_context *context = ibv_open_device_(devices[0]);
	struct ibv_pd *pd = context ? ibv_alloc_pd_(context) : NULL;
	return pd ? hugepin_verbs_open_(pd, attr, &hp_mpi_domain) : -ENODEV;
}

int hp_mpi_domain_open(void)
{
	struct hugepin_attr attr = { .size = sizeof attr };
	int err;

	if (hp_mpi_options.backend == HP_MPI_AUTO && hugepin_verbscache_phase) {
		hp_mpi_phases = true;
		return 0;
	}
	err = hp_mpi_options.backend == HP_MPI_VERBS ? open_verbs(&attr) : open_uring(&attr);
	if (err < 0)
		hp_mpi_domain = NULL;
	/* Where phases mean nothing, the call returns before it looks at the range, which is empty. */
	hp_mpi_phases = hp_mpi_domain && hugepin_prefetch(hp_mpi_domain, NULL, 0, HUGEPIN_PREFETCH_NEXT) == -EINVAL;
	return err;
}

void hp_mpi_cache_phase(uintptr_t start, size_t len, unsigned phase)
{
	hugepin_verbscache_phase((const void *)start, len, phase);
}

void hp_mpi_domain_close(void)
{
	hugepin_domain_close(hp_mpi_domain);
	hp_mpi_domain = NULL;
}
