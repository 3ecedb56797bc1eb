/* link: ibverbs */
/*
 * The cost of registering memory with a verbs device, by the kind of its pages (Gerofi et al. 2016, figure 3a).
 *
 *	verbs [-r ROUNDS] [-m MIB] [DEVICE]
 *
 * Plain ibv_reg_mr and ibv_dereg_mr of memory that is there already, from 16 KiB to MIB (256): 4 KiB pages, transparent
 * hugepages, the hugetlb pool. Prints the median of ROUNDS (7) for each, in microseconds, taken in turn, and how many
 * times cheaper than 4 KiB pages the others are. With soft-RoCE only the kernel's part shows: pinning, and a table of 4
 * KiB pages for every kind. An adapter is also told of each page.
 */
#include <err.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "lib.h"

#define ROUNDS_MAX 99

enum { BASE, THP, HUGETLB, KINDS };
static const char *const kinds[KINDS] = { "4 KiB", "THP", "hugetlb" };

/* The bytes of [p, p + len) that transparent hugepages back. */
static size_t thp_bytes(char *p, size_t len)
{
	char line[256];
	uintptr_t from, to;
	size_t kib, sum = 0;
	bool inside = false;
	FILE *f = fopen("/proc/self/smaps", "r");

	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			inside = from < (uintptr_t)p + len && to > (uintptr_t)p;
		else if (inside && sscanf(line, "AnonHugePages: %zu kB", &kib) == 1)
			sum += kib * KiB;
	}
	if (f)
		fclose(f);
	return sum;
}

/* Memory of a kind, all there; NULL with a sentence if this machine has none. */
static char *memory(int kind, size_t len)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (kind == HUGETLB ? MAP_HUGETLB : 0);
	char *p = mmap(NULL, len + (kind == HUGETLB ? 0 : 2 * MiB), PROT_READ | PROT_WRITE, flags, -1, 0);

	if (p == MAP_FAILED) {
		printf("%s: %zu MiB: %s\n", kinds[kind], len / MiB, kind == HUGETLB ? "not in the pool" : "no memory");
		return NULL;
	}
	p = (char *)(((uintptr_t)p + 2 * MiB - 1) & -(2 * MiB)); /* an address where a hugepage can begin */
	if (kind != HUGETLB)
		madvise(p, len, kind == THP ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	memset(p, 1, len);
	if (kind == THP && thp_bytes(p, len) < len)
		printf("%s: only %zu of %zu MiB are\n", kinds[kind], thp_bytes(p, len) / MiB, len / MiB);
	return p;
}

static void measure(struct ibv_pd *pd, char *const *p, size_t len, int rounds)
{
	static double reg[KINDS][ROUNDS_MAX], dereg[KINDS][ROUNDS_MAX];
	double base[2] = { 0 };

	for (int r = -1; r < rounds; r++) { /* the first round is not counted */
		for (int k = 0; k < KINDS; k++) {
			if (!p[k])
				continue;
			double t0 = now_ns() / 1e3;
			struct ibv_mr *mr = ibv_reg_mr(pd, p[k], len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
			double t1 = now_ns() / 1e3;

			if (!mr)
				err(1, "ibv_reg_mr: %zu KiB of %s", len / KiB, kinds[k]);
			if (ibv_dereg_mr(mr))
				errx(1, "ibv_dereg_mr");
			if (r >= 0) {
				reg[k][r] = t1 - t0;
				dereg[k][r] = now_ns() / 1e3 - t1;
			}
		}
	}
	printf("%8zu", len / KiB);
	for (int k = 0; k < KINDS; k++) {
		double us[2] = { median(reg[k], (size_t)rounds), median(dereg[k], (size_t)rounds) };

		if (!p[k]) {
			printf("%12s%12s%16s", "-", "-", "-");
			continue;
		}
		printf("%12.1f%12.1f", us[0], us[1]);
		if (k == BASE)
			memcpy(base, us, sizeof base);
		else
			printf("%8.1f%8.1f", base[0] / us[0], base[1] / us[1]);
	}
	printf("\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int option, n = 0, rounds = 7;
	size_t max = 256 * MiB;

	while ((option = getopt(argc, argv, "r:m:")) != -1) {
		if (option == 'r')
			rounds = atoi(optarg);
		else if (option == 'm')
			max = strtoul(optarg, NULL, 0) * MiB;
		else
			return 2;
	}
	if (rounds < 1 || rounds > ROUNDS_MAX || !max)
		errx(2, "-r takes 1 to %d, -m at least 1", ROUNDS_MAX);

	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *device = NULL;
	for (int i = 0; i < n && !device; i++)
		if (optind == argc || !strcmp(argv[optind], ibv_get_device_name(list[i])))
			device = ibv_open_device(list[i]);
	struct ibv_pd *pd = device ? ibv_alloc_pd(device) : NULL;
	if (!pd)
		errx(77, "no verbs device");

	char *p[KINDS];
	for (int k = 0; k < KINDS; k++)
		p[k] = memory(k, (max + 2 * MiB - 1) & -(2 * MiB));
	if (!p[BASE])
		return 1;
	printf("%s, us; x: times cheaper than %s pages\n", ibv_get_device_name(device->device), kinds[BASE]);
	printf("%8s%12s%12s", "KiB", "4K reg", "dereg");
	for (int k = THP; k < KINDS; k++)
		printf("%12s%12s%8s%8s", k == THP ? "THP reg" : "hugetlb reg", "dereg", "x reg", "x dereg");
	printf("\n");
	for (size_t len = 16 * KiB; len <= max; len *= 4)
		measure(pd, p, len, rounds);
	return 0;
}
