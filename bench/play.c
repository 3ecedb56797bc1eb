/*
 * A communication trace played by pairs of MPI's ranks: every call of it moves a buffer of its length from one to the
 * other, after as much time as the trace computes. Each place of the trace is a call site of its own here.
 *
 *	mpirun -n RANKS play SUBJECT NAME SHRINK SLOW TRACE
 *
 * Lengths are divided by SHRINK, times of computing multiplied by SLOW. Ranks sleep in place of computing, so that the
 * processors are idle in the meantime (Li et al. 2011, section 5). What arrives is checked, once a page.
 *
 * A thread of each rank reads every TICK_MS what the process has pinned (VmPin) or locked (VmLck), beyond what MPI had
 * after a first exchange of short messages. Rank 0 prints, behind "figure" or "series", over all ranks: pinned.NAME over
 * time in parts of the run, average.NAME and peak.NAME (of a part) in KiB, base.NAME, which MPI had, and time.NAME, the
 * wall time between two barriers. Then "ok", or how many pages were wrong. Exit 1 if any was.
 */
#include <err.h>
#include <inttypes.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { SITES = 32, BUFFERS = 512, CALLS = 100000, PARTS = 60, TICK_MS = 20, PAGE = 4096 };

struct call {
	int64_t compute_ns;
	size_t len;
	int buffer, site;
	bool sends; /* the even rank of a pair */
};
static struct call calls[CALLS];
static size_t call_count;
static char *buffer[BUFFERS];
static size_t buffer_len[BUFFERS];
static uint64_t buffer_addr[BUFFERS];
static int buffers;

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void sleep_ns(int64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	if (ns > 0)
		clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

static int buffer_at(uint64_t addr, size_t len)
{
	int i = 0;

	while (i < buffers && buffer_addr[i] != addr)
		i++;
	if (i == BUFFERS)
		errx(1, "more than %d buffers", BUFFERS);
	if (i == buffers)
		buffer_addr[buffers++] = addr;
	if (buffer_len[i] < len)
		buffer_len[i] = len;
	return i;
}

static void read_trace(const char *path, double shrink, double slow)
{
	FILE *f = fopen(path, "r");
	char line[512], direction;
	uint64_t cpu, before = 0, addr, len, site;

	if (!f || !fgets(line, sizeof line, f))
		errx(1, "no trace: %s", path);
	while (fgets(line, sizeof line, f)) {
		struct call *c = &calls[call_count++];

		if (call_count == CALLS)
			errx(1, "%s: more than %d calls", path, CALLS);
		if (sscanf(line, "%*u,%*u,%*u,%" SCNu64 ",%*[^,],%c,%" SCNx64 ",%" SCNu64 ",%*u,%*u,%" SCNx64, &cpu, &direction,
			   &addr, &len, &site) != 5)
			errx(1, "%s: line %zu is no call", path, call_count + 1);
		c->compute_ns = (int64_t)((double)(cpu - before) * slow);
		before = cpu;
		c->len = (size_t)((double)len / shrink);
		c->buffer = buffer_at(addr, c->len);
		c->site = (int)(site / 16 % SITES);
		c->sends = direction == 'S';
	}
	fclose(f);
	for (int i = 0; i < buffers; i++) {
		buffer[i] = mmap(NULL, buffer_len[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (buffer[i] == MAP_FAILED)
			err(1, "a buffer of %zu bytes", buffer_len[i]);
		memset(buffer[i], 1, buffer_len[i]);
	}
}

/* A call from SITES places: what foresees uses tells calls by where they were made. */
#define PLACES(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) \
	X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define PLACE(n) case n: \
	if (sends) \
		MPI_Send(p, len, MPI_BYTE, rank ^ 1, n, MPI_COMM_WORLD); \
	else \
		MPI_Recv(p, len, MPI_BYTE, rank ^ 1, n, MPI_COMM_WORLD, MPI_STATUS_IGNORE); \
	break;
static void transfer(int site, bool sends, int rank, char *p, int len)
{
	switch (site) { PLACES(PLACE) }
}

/* ------------------------------------------------------------------ what is pinned */

struct sampled {
	int64_t at;
	int64_t kib;
};
static struct sampled *samples;
static size_t sample_count, sample_room;
static int64_t base_kib;
static atomic_bool ended;

static int64_t held_kib(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	int64_t kib, sum = 0;

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "VmPin: %" SCNd64, &kib) == 1 || sscanf(line, "VmLck: %" SCNd64, &kib) == 1)
			sum += kib;
	if (f)
		fclose(f);
	return sum;
}

static void *sample(void *unused)
{
	(void)unused;
	while (!atomic_load(&ended) && sample_count < sample_room) {
		samples[sample_count].kib = held_kib() - base_kib;
		samples[sample_count++].at = now_ns();
		sleep_ns(TICK_MS * INT64_C(1000000));
	}
	return NULL;
}

/* MPI makes its own buffers for short messages at the first of them. */
static void exchange_short(int rank)
{
	static char mine[4096], other[4096];

	for (int len = 8; len <= (int)sizeof mine; len *= 8)
		MPI_Sendrecv(mine, len, MPI_BYTE, rank ^ 1, 0, other, len, MPI_BYTE, rank ^ 1, 0, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
}

/* Averages of this rank in equal parts of the time from start to end. A part without a sample has that before it. */
static void in_parts(int64_t start, int64_t end, double *part_)
{
	size_t k = 0;
	double before = 0;

	for (int i = 0; i < PARTS; i++) {
		int64_t limit = start + (end - start) * (i + 1) / PARTS;
		double sum = 0;
		size_t n = 0;

		for (; k < sample_count && samples[k].at < limit; k++)
			if (samples[k].at >= start) {
				sum += (double)samples[k].kib;
				n++;
			}
		part_[i] = before = n ? sum / (double)n : before;
	}
}

int main(int argc, char **argv)
{
	int rank, ranks, wrong = 0, all_wrong;
	double part[PARTS + 1], all[PARTS + 1], average = 0, peak = 0;
	int64_t start, end;
	pthread_t sampler;

	if (argc != 6)
		errx(1, "usage: play SUBJECT NAME SHRINK SLOW TRACE");
	MPI_Init(NULL, NULL);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks % 2)
		errx(1, "pairs of ranks are asked for, and there are %d", ranks);
	read_trace(argv[5], atof(argv[3]), atof(argv[4]));
	sample_room = 1 << 20;
	samples = malloc(sample_room * sizeof *samples);
	exchange_short(rank);
	MPI_Barrier(MPI_COMM_WORLD);
	base_kib = held_kib();
	if (!samples || pthread_create(&sampler, NULL, sample, NULL))
		errx(1, "no thread");
	start = now_ns();
	for (size_t i = 0; i < call_count; i++) {
		const struct call *c = &calls[i];
		char *p = buffer[c->buffer];
		bool sends = c->sends == !(rank % 2);

		sleep_ns(c->compute_ns);
		for (size_t at = 0; sends && at < c->len; at += PAGE)
			p[at] = (char)(i + at / PAGE);
		transfer(c->site, sends, rank, p, (int)c->len);
		for (size_t at = 0; !sends && at < c->len; at += PAGE)
			wrong += p[at] != (char)(i + at / PAGE);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	end = now_ns();
	atomic_store(&ended, true);
	pthread_join(sampler, NULL);
	in_parts(start, end, part);
	part[PARTS] = (double)base_kib;
	MPI_Reduce(part, all, PARTS + 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	MPI_Reduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	if (!rank) {
		printf("series %s pinned.%s KiB %.0f ", argv[1], argv[2], (double)(end - start) / 1e6);
		for (int i = 0; i < PARTS; i++) {
			printf("%s%.0f", i ? "," : "", all[i]);
			average += all[i] / PARTS;
			peak = all[i] > peak ? all[i] : peak;
		}
		printf("\nfigure %s average.%s %.0f KiB\n", argv[1], argv[2], average);
		printf("figure %s peak.%s %.0f KiB\n", argv[1], argv[2], peak);
		printf("figure %s base.%s %.0f KiB\n", argv[1], argv[2], all[PARTS]);
		printf("figure %s time.%s %.3f s\n", argv[1], argv[2], (double)(end - start) / 1e9);
		printf("%s %d\n", all_wrong ? "wrong" : "ok", all_wrong);
	}
	MPI_Finalize();
	return wrong != 0;
}
