/*
 * What reads at random places of a GiB take: access [-q]. As alloc, it knows nothing of the allocator, and prints lines
 * of the same form.
 */
#include <err.h>
#include <string.h>
#include <sys/mman.h>

#include "counters.h"
#include "lib.h"

static bool quick;

#define WORDS_SHIFT 27 /* of 8 bytes: 1 GiB */

static long operations(bool dependent)
{
	return (dependent ? 400000 : 4000000) / (quick ? 4 : 1);
}

/* All words are 0, which the compiler cannot know: the next address needs the value just loaded, or does not. Each walk
 * goes on where the last one ended, so that no two are alike. */
static double time_walk(const uint64_t *m, bool dependent)
{
	static uint64_t end;
	uint64_t x = end, sum = 0;
	long n = operations(dependent);

	if (!m)
		return NAN;
	double t = now_ns();
	if (dependent)
		for (long i = 0; i < n; i++)
			x = x * UINT64_C(6364136223846793005) + 1442695040888963407 + m[x >> (64 - WORDS_SHIFT)];
	else
		for (long i = 0; i < n; i++) {
			sum += m[x >> (64 - WORDS_SHIFT)];
			x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
		}
	*(volatile uint64_t *)&end = x + sum;
	return (now_ns() - t) / (double)n;
}

/* An op of `fill` is 4 KiB. */
static void count(uint64_t *m)
{
	counters_start();
	memset(m, 0, GiB);
	counters_stop("access.fill", (double)(GiB >> 12));
	for (int dependent = 1; dependent >= 0; dependent--) {
		counters_start();
		time_walk(m, dependent);
		counters_stop(dependent ? "access.dependent" : "access.independent", (double)operations(dependent));
	}
}

/* The same GiB in the heap and in a hugetlb mapping made by hand, in turn. */
int main(int argc, char **argv)
{
	static double heap[5], plain[5], ratio[5];
	uint64_t *h, *p, seed;

	options(&argc, argv, &quick, &seed);
	h = malloc(GiB);
	if (!h)
		err(1, "malloc");
	if (counters_start) {
		count(h);
		return fflush(stdout) ? 1 : 0;
	}
	memset(h, 0, GiB);
	p = mmap(NULL, GiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0);
	if (p == MAP_FAILED)
		p = NULL;
	for (int dependent = 1; dependent >= 0; dependent--) {
		const char *name = dependent ? "access.dependent" : "access.independent";
		for (int i = 0; i < 5; i++) {
			heap[i] = time_walk(h, dependent);
			plain[i] = time_walk(p, dependent);
			ratio[i] = heap[i] / plain[i];
		}
		say(name, "", median(heap, 5), "ns");
		say(name, ".plain", median(plain, 5), "ns");
		say(name, ".over-plain", median(ratio, 5), "x");
	}
	return fflush(stdout) ? 1 : 0;
}
