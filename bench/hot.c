/*
 * The cost of the helper for the threads that it works for: pins and unpins of registered memory under a policy that
 * predicts, against lru, interleaved. Prints the median of the rounds, in ns a call, and the ratio.
 *
 * Without a pause between calls the helper cannot keep up, and most records are dropped at the ring. With a pause after
 * each 64 calls it takes all of them (records_lost tells). The unpin before the timed ones wakes it.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "common.h"
#include "hugepin.h"

enum { ROUNDS = 15, BATCH = 64, BATCHES = 20000, PACED_BATCHES = 300, PAUSE_NS = 300000 };

static hugepin_domain *open_as(uint32_t policy)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy, .pinned_bytes_max = UINT64_MAX };
	hugepin_domain *d;

	if (hugepin_domain_open(&unregistered, NULL, &attr, &d) != 0)
		exit(1);
	return d;
}

static void run(hugepin_domain *d, char *p, unsigned regions, bool paced, double *ret_pin, double *ret_unpin)
{
	static struct hugepin_pin pin[BATCH], first;
	int batches = paced ? PACED_BATCHES : BATCHES;
	double pins = 0, unpins = 0, t0, t1;
	unsigned r = 0;

	for (int b = 0; b < batches; b++) {
		if (paced) {
			for (t0 = now_ns(); now_ns() - t0 < (double)PAUSE_NS;)
				;
			hugepin_pin(d, p, 65536, 0, &first);
			hugepin_unpin(d, &first);
		}
		t0 = now_ns();
		for (int i = 0; i < BATCH; i++) {
			hugepin_pin(d, p + (size_t)r * 65536, 65536, 0, &pin[i]);
			r = r + 1 == regions ? 0 : r + 1;
		}
		t1 = now_ns();
		pins += t1 - t0;
		for (int i = 0; i < BATCH; i++)
			hugepin_unpin(d, &pin[i]);
		unpins += now_ns() - t1;
	}
	*ret_pin = pins / batches / (double)BATCH;
	*ret_unpin = unpins / batches / (double)BATCH;
}

int main(void)
{
	static const uint32_t policies[] = { HUGEPIN_POLICY_LRU, HUGEPIN_POLICY_PREDICT, HUGEPIN_POLICY_CF11 };
	static const char *const names[] = { "lru", "predict", "cf11" };
	static const unsigned regions[] = { 1, 10, 1000 };
	double pin[3][ROUNDS], unpin[3][ROUNDS];

	for (unsigned n = 0; n < sizeof regions / sizeof *regions; n++)
		for (int kind = 0; kind < 4; kind++) {
			bool heap = kind & 1, paced = kind & 2;
			size_t size = (size_t)regions[n] * 65536;
			char *p = heap ? hugepin_aligned_alloc(1 << 21, size)
				       : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			hugepin_domain *d[3];

			for (int i = 0; i < 3; i++)
				d[i] = open_as(policies[i]);
			for (int round = 0; round < ROUNDS; round++)
				for (int i = 0; i < 3; i++)
					run(d[i], p, regions[n], paced, &pin[i][round], &unpin[i][round]);
			for (int i = 0; i < 3; i++) {
				struct hugepin_domain_stats s;
				double lru_pin = median(pin[0], ROUNDS), lru_unpin = median(unpin[0], ROUNDS);

				hugepin_domain_stats(d[i], &s, sizeof s);
				printf("memory=%s regions=%u pause=%d policy=%s pin_ns=%.2f pin_ratio=%.3f "
				       "unpin_ns=%.2f push_ns=%.2f "
				       "records_lost=%lu misses=%lu\n",
				       heap ? "heap" : "foreign", regions[n], paced, names[i], median(pin[i], ROUNDS),
				       median(pin[i], ROUNDS) / lru_pin, median(unpin[i], ROUNDS),
				       median(unpin[i], ROUNDS) - lru_unpin, s.records_lost, s.misses);
				hugepin_domain_close(d[i]);
			}
			if (heap)
				hugepin_free(p);
			else
				munmap(p, size);
		}
}
