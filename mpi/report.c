/*
 * The layer's report: counters, the time average of pinned memory, and the line written at the end.
 *
 * Threads: any. `sampling` guards the integral. It is not held while the domain is called.
 */
#include "mpi/report.h"

#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "hugepin.h"
#include "mpi/domain.h"

struct hp_mpi_counters hp_mpi_counters;

static bool is_told;
static uint64_t opened_ns;

static pthread_mutex_t sampling = PTHREAD_MUTEX_INITIALIZER;
static uint64_t sampled_ns, sampled_bytes;
static double byte_ns; /* integral of pinned bytes over time, by the trapezoidal rule */

void hp_report_open(bool told)
{
	is_told = told;
	opened_ns = sampled_ns = hp_clock_ns();
}

void hp_report_sample(void)
{
	struct hugepin_domain_stats s;
	uint64_t now;

	if (!is_told || !hp_mpi_domain || hugepin_domain_stats(hp_mpi_domain, &s, sizeof s) < 0)
		return;
	pthread_mutex_lock(&sampling);
	now = hp_clock_ns();
	byte_ns += ((double)sampled_bytes + (double)s.pinned_bytes) / 2 * (double)(now - sampled_ns);
	sampled_ns = now;
	sampled_bytes = s.pinned_bytes;
	pthread_mutex_unlock(&sampling);
}

/* The processor time of this library's own threads, in ns. */
static uint64_t threads_ns(void)
{
	DIR *tasks = opendir("/proc/self/task");
	uint64_t sum = 0;

	for (struct dirent *d; tasks && (d = readdir(tasks));) {
		char path[64], text[64];

		snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", d->d_name);
		if (hp_read_file(path, text, sizeof text) <= 0 || strncmp(text, "hugepin", 7))
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", d->d_name);
		if (hp_read_file(path, text, sizeof text) > 0)
			sum += strtoull(text, NULL, 10);
	}
	if (tasks)
		closedir(tasks);
	return sum;
}

/* One line of "key=value", in one write(), since all ranks share stderr. */
void hp_report_write(int rank)
{
	const uint64_t ns = hp_clock_ns() - opened_ns;
	struct hugepin_domain_stats s = { 0 };
	char line[4096];
	int n;

	if (!is_told)
		return;
	hugepin_domain_stats(hp_mpi_domain, &s, sizeof s);
	n = snprintf(line, sizeof line, "hugepin: MPI rank %d: ns=%" PRIu64 " average_bytes=%.0f", rank, ns,
		     byte_ns / (double)HP_MAX(ns, UINT64_C(1)));
#define PRINT_COUNTER(name) n += snprintf(line + n, sizeof line - (size_t)n, " " #name "=%" PRIu64, \
						   atomic_load_explicit(&hp_mpi_counters.name, memory_order_relaxed));
	HP_MPI_COUNTERS(PRINT_COUNTER)
#define PRINT_STATISTIC(name, unit, sentence) \
	n += snprintf(line + n, sizeof line - (size_t)n, " " #name "=%" PRIu64, s.name);
	HUGEPIN_DOMAIN_STATS_LIST(PRINT_STATISTIC)
	n += snprintf(line + n, sizeof line - (size_t)n, " threads_ns=%" PRIu64 "\n", threads_ns());
	(void)!write(STDERR_FILENO, line, (size_t)n);
}
