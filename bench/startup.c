/* link: hugepin-verbs hugepin ibverbs */
/*
 * What it takes to register a pool of buffers when a program starts: one after the other (hugepin_pinv), and several at
 * a time (hugepin_register).
 *
 *	startup [-n BLOCKS] [-s MIB] [-r ROUNDS] [DEVICE]
 *
 * 64 blocks of 2 MiB, a registration each, over a verbs device; without a device they are locked in memory (mlock),
 * which is done one at a time in either case. `new`: the kernel has to provide the pages, too, as it has when a program
 * starts. `there`: the pages are there, so what remains is what registering takes. Prints the medians of ROUNDS (9),
 * taken in turn, in milliseconds, and how many times quicker several at a time are. They are done on as many threads as
 * the process may use processors, at most four. Pages of the hugetlb pool are there in either case.
 */
#include <err.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hugepin.h"
#include "hugepin_verbs.h"
#include "lib.h"

enum { BLOCKS_MAX = 1024, ROUNDS_MAX = 99, WAYS = 2 };

static struct ibv_pd *pd;
static int blocks = 64, rounds = 9;
static size_t size = 2 * MiB;

/* One startup: new blocks, a new domain. Returns what registering and pinning takes. */
static double start(bool several, bool there)
{
	static struct iovec block[BLOCKS_MAX];
	static struct hugepin_pin pins[BLOCKS_MAX];
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_LRU,
				     .pinned_bytes_max = UINT64_MAX,
				     .reach = HUGEPIN_REACH_EXTENT };
	hugepin_domain *domain;
	double took;
	int n, e;

	for (int i = 0; i < blocks; i++) {
		block[i] = (struct iovec){ hugepin_aligned_alloc(size, size), size };
		if (!block[i].iov_base)
			errx(1, "no memory for %d blocks", blocks);
		if (there)
			memset(block[i].iov_base, 1, size);
	}
	e = pd ? hugepin_verbs_open(pd, &attr, &domain) : hugepin_domain_open(hugepin_mlock(), NULL, &attr, &domain);
	if (e)
		errx(1, "opening a domain: %s", strerror(-e));
	took = now_ns() / 1e6;
	n = (several ? hugepin_register : hugepin_pinv)(domain, block, blocks, 0, pins, blocks);
	took = now_ns() / 1e6 - took;
	if (n != blocks)
		errx(1, "registering: %s", n < 0 ? strerror(-n) : "cut");
	if (hugepin_deregister(domain, pins, n) || hugepin_domain_close(domain))
		errx(1, "something is left");
	for (int i = 0; i < blocks; i++)
		hugepin_free(block[i].iov_base);
	hugepin_purge();
	return took;
}

static void measure(bool there)
{
	static double ms[WAYS][ROUNDS_MAX];
	double middle[WAYS], least[WAYS];

	for (int r = -1; r < rounds; r++) /* the first round is not counted */
		for (int k = 0; k < WAYS; k++) {
			int way = r % 2 ? k : !k;
			double took = start(way, there);

			if (r >= 0)
				ms[way][r] = took;
		}
	for (int k = 0; k < WAYS; k++) {
		middle[k] = median(ms[k], (size_t)rounds);
		least[k] = ms[k][0];
	}
	printf("%8s%12.2f%12.2f%8.2f%12.2f%12.2f%8.2f\n", there ? "there" : "new", middle[0], middle[1],
	       middle[0] / middle[1], least[0], least[1], least[0] / least[1]);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int option, n = 0;
	cpu_set_t cpus;

	while ((option = getopt(argc, argv, "n:s:r:")) != -1) {
		if (option == 'n')
			blocks = atoi(optarg);
		else if (option == 's')
			size = strtoul(optarg, NULL, 0) * MiB;
		else if (option == 'r')
			rounds = atoi(optarg);
		else
			return 2;
	}
	if (blocks < 1 || blocks > BLOCKS_MAX || rounds < 1 || rounds > ROUNDS_MAX || !size || size & (size - 1))
		errx(2, "-n takes 1 to %d, -r 1 to %d, -s a power of two", BLOCKS_MAX, ROUNDS_MAX);

	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *device = NULL;
	for (int i = 0; list && i < n && !device; i++)
		if (optind == argc || !strcmp(argv[optind], ibv_get_device_name(list[i])))
			device = ibv_open_device(list[i]);
	pd = device ? ibv_alloc_pd(device) : NULL;
	if (optind < argc && !pd)
		errx(77, "no such device");

	sched_getaffinity(0, sizeof cpus, &cpus);
	printf("%s, %d blocks of %zu MiB, %d processors, ms\n", pd ? ibv_get_device_name(device->device) : "mlock",
	       blocks, size / MiB, CPU_COUNT(&cpus));
	printf("%8s%12s%12s%8s%12s%12s%8s\n", "pages", "one by one", "together", "x", "least", "together", "x");
	measure(false);
	measure(true);
	return 0;
}
