/*
 * The layer's report: counters, the time average of pinned memory, and what is written at the end.
 *
 * Threads: any. `sampling` guards the integral. It is not held while the domain is called.
 */
#include "report.h"

#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "call.h"
#include "domain.h"
#include "hugepin.h"
#include "next.h"
#include "util.h"

/* So long a rank waits for the others at the end, from its own MPI_Finalize on. */
#define TOGETHER_NS (UINT64_C(20) * 1000000000)

struct hp_mpi_counters hp_mpi_counters;

static bool is_told; /* HUGEPIN_STATS=2 */
static bool is_summed; /* HUGEPIN_STATS=1 */
static uint64_t opened_ns;

static pthread_mutex_t sampling = PTHREAD_MUTEX_INITIALIZER;
static uint64_t sampled_ns, sampled_bytes;
static double byte_ns; /* integral of pinned bytes over time, by the trapezoidal rule */

void hp_report_open(const char *stats)
{
	is_told = stats && !strcmp(stats, "2");
	is_summed = stats && !strcmp(stats, "1");
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

/* The first line of a file, or "". */
static void read_line(const char *path, char *line, int size)
{
	FILE *f = fopen(path, "re");

	if (!f || !fgets(line, size, f))
		*line = '\0';
	if (f)
		fclose(f);
}

/* The processor time of this library's own threads, in ns. */
static uint64_t threads_ns(void)
{
	DIR *tasks = opendir("/proc/self/task");
	uint64_t sum = 0;

	for (struct dirent *d; tasks && (d = readdir(tasks));) {
		char path[64], text[64];

		snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", d->d_name);
		read_line(path, text, sizeof text);
		if (strncmp(text, "hugepin", 7))
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", d->d_name);
		read_line(path, text, sizeof text);
		sum += strtoull(text, NULL, 10);
	}
	if (tasks)
		closedir(tasks);
	return sum;
}

/* What the device counted of memory that is registered on demand. Before the domain is closed: then the counts are
 * gone. */
static int print_paging(char *at, size_t room)
{
	struct hugepin_paging p = { .faults = 0 };
	const bool available = hugepin_domain_paging(hp_mpi_domain, &p, sizeof p) == 0;
	const struct {
		const char *name;
		uint64_t count;
	} counts[] = { { "device_faults", p.faults },
		       { "device_prefetches", p.prefetches },
		       { "device_invalidations", p.invalidations } };
	int n = 0;

	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
		if (available && counts[i].count != HUGEPIN_NOT_COUNTED)
			n += snprintf(at + n, room - (size_t)n, " %s=%" PRIu64, counts[i].name, counts[i].count);
		else
			n += snprintf(at + n, room - (size_t)n, " %s=not-available", counts[i].name);
	return n;
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
	n += print_paging(line + n, sizeof line - (size_t)n);
	n += snprintf(line + n, sizeof line - (size_t)n, " threads_ns=%" PRIu64 "\n", threads_ns());
	(void)!write(STDERR_FILENO, line, (size_t)n);
	hugepin_summary_told();
}

/* Whether mpirun started several programs (OMPI_NUM_APP_CTX is Open MPI's). */
static bool are_several_programs(void)
{
	const char *count = secure_getenv("OMPI_NUM_APP_CTX");

	return count && strcmp(count, "1") != 0;
}

static size_t run_size; /* of a summary */

/* The operation of MPI_Reduce: in holds lower ranks. */
static void add_ranks(void *in, void *inout, int *n, MPI_Datatype *type)
{
	uint64_t sum[(run_size + 7) / 8]; /* aligned as a summary has to be */

	(void)type;
	for (int i = 0; i < *n; i++) {
		char *high = (char *)inout + (size_t)i * run_size;

		memcpy(sum, (char *)in + (size_t)i * run_size, run_size);
		hugepin_summary_add(sum, high);
		memcpy(high, sum, run_size);
	}
}

/* Add up the summaries of all ranks. Every rank gets the sum, so all ranks know whether it was reached. A rank may lack
 * the layer, or have another HUGEPIN_STATS, and then takes no part: after TOGETHER_NS the others go on without a sum.
 * MPI may still write to the memory then, so that it is never freed. NULL: there is no sum. */
static const void *reduce(void)
{
	const uint64_t begin = hp_clock_ns();
	MPI_Request request;
	MPI_Datatype type;
	MPI_Op op;
	char *in, *out;
	int done = 0;

	run_size = hugepin_summary(NULL, 0);
	in = calloc(2, run_size);
	if (!in)
		return NULL;
	out = in + run_size;
	/* A rank that has nothing to tell takes part nevertheless, since the others wait for it. */
	hugepin_summary(in, run_size);
	if (REAL(Type_contiguous)((int)run_size, MPI_BYTE, &type) != MPI_SUCCESS ||
	    REAL(Type_commit)(&type) != MPI_SUCCESS || REAL(Op_create)(add_ranks, 0, &op) != MPI_SUCCESS ||
	    REAL(Iallreduce)(in, out, 1, type, op, MPI_COMM_WORLD, &request) != MPI_SUCCESS)
		return NULL;
	while (REAL(Test)(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
		if (hp_clock_ns() - begin > TOGETHER_NS)
			return NULL;
		usleep(100);
	}
	if (!done)
		return NULL;
	REAL(Op_free)(&op);
	REAL(Type_free)(&type);
	return out;
}

void hp_report_sum(int rank)
{
	const void *sum;
	char text[2048];
	int size;

	if (!is_summed || are_several_programs() || REAL(Comm_size)(MPI_COMM_WORLD, &size) != MPI_SUCCESS || size < 2)
		return;
	sum = reduce();
	if (!sum)
		return;
	hugepin_summary_told();
	if (!rank)
		(void)!write(STDERR_FILENO, text, hugepin_summary_text(sum, text, sizeof text));
}
