/*
 * The processor's and the kernel's counters by way of PAPI. Linked with access.c this makes access-counters, which prints
 * dTLB misses and page faults of the random accesses instead of their times; "-" for what the machine does not count.
 */
#include "counters.h"

#include <papi.h>
#include <stdbool.h>
#include <stdio.h>

static struct {
	const char *name, *event;
	int set; /* PAPI_NULL: not available */
} wanted[] = {
	{ "dTLB-misses", "PAPI_TLB_DM", PAPI_NULL },
	{ "page-faults", "perf::PAGE-FAULTS", PAPI_NULL },
};
#define WANTED (sizeof wanted / sizeof *wanted)

void counters_start(void)
{
	static bool opened;

	/* A set for each event: one that cannot be counted does not take the other with it. */
	if (!opened && PAPI_library_init(PAPI_VER_CURRENT) == PAPI_VER_CURRENT)
		for (size_t i = 0; i < WANTED; i++)
			if (PAPI_create_eventset(&wanted[i].set) != PAPI_OK ||
			    PAPI_add_named_event(wanted[i].set, wanted[i].event) != PAPI_OK)
				wanted[i].set = PAPI_NULL;
	opened = true;
	for (size_t i = 0; i < WANTED; i++)
		if (wanted[i].set != PAPI_NULL && PAPI_start(wanted[i].set) != PAPI_OK)
			wanted[i].set = PAPI_NULL;
}

void counters_stop(const char *name, double operations)
{
	for (size_t i = 0; i < WANTED; i++) {
		long long n;
		if (wanted[i].set != PAPI_NULL && PAPI_stop(wanted[i].set, &n) == PAPI_OK)
			printf("counters.%s.%s %.4g an op\n", name, wanted[i].name, (double)n / operations);
		else
			printf("counters.%s.%s - an op\n", name, wanted[i].name);
	}
}
