/* link: ibverbs */
/*
 * Communication and then computation in more memory than there is (Li et al. 2016, section VII-E).
 *
 *	outgrow MIB PERCENT pin|demand [DEVICE]
 *
 * Half of MIB is registered, and sent from one end of a connection to the other and back. Then a computation goes over
 * memory of its own, round and round, as many pages whatever its size: with what is registered it is PERCENT of MIB. A
 * memory control group of MIB should have this process. Prints a line of a figure: the seconds of all of it.
 *
 * Exit status 2: the device does not register on demand.
 */
#include "ends.h"

enum {
	ROUNDS = 8, /* over as many pages as are registered */
	WORK = 16, /* how often each page is gone over before the next */
};
#define PAGE (4 * KiB)
#define WORDS (PAGE / sizeof(uint64_t))

/* What no compression makes small. */
static void fill(char *p, size_t len)
{
	uint64_t random = 1;

	for (size_t i = 0; i < len; i += sizeof random) {
		next_random(&random);
		memcpy(p + i, &random, sizeof random);
	}
}

static void exchange(struct end e[2], enum way w, size_t len)
{
	for (int from = 0; from < 2; from++)
		for (size_t at = 0, n; at < len; at += n) {
			n = len - at < MiB ? len - at : MiB;
			ends_receive(&e[!from], w, at, n);
			ends_send(&e[from], w, at, n);
			ends_await(&e[!from], e[!from].sent, e[!from].received + 1);
			ends_await(&e[from], e[from].sent + 1, e[from].received);
		}
}

static void compute(uint64_t *page)
{
	for (int pass = 0; pass < WORK; pass++)
		for (size_t i = 0; i < WORDS; i++)
			page[i] = page[i] * UINT64_C(6364136223846793005) + i;
}

int main(int argc, char **argv)
{
	static struct end ends[2];
	const size_t memory = argc > 2 ? parse_size(argv[1]) * MiB : 0, percent = argc > 2 ? parse_size(argv[2]) : 0;
	const enum way w = argc > 3 && !strcmp(argv[3], way_names[DEMAND]) ? DEMAND : PIN;

	if (argc < 4 || argc > 5 || strcmp(argv[3], way_names[w]) || memory < 4 * MiB || percent <= 50)
		errx(1, "outgrow MIB PERCENT pin|demand [DEVICE]");
	const size_t each = memory / 4, len = (memory * percent / 100 - 2 * each) & -PAGE;
	struct ibv_pd *pd = rc_open(argv[4]);

	if (w == DEMAND && !ends_on_demand(pd)) {
		printf("%s does not register on demand\n", ibv_get_device_name(pd->context->device));
		return 2;
	}
	ends_connect(pd, ends);
	const double start = now_ns();

	for (int i = 0; i < 2; i++) {
		ends_register(pd, &ends[i], w, each);
		fill(ends[i].buffer[w], each);
	}
	exchange(ends, w, each);
	char *own = ends_map(len);

	fill(own, len);
	for (size_t visit = 0; visit < ROUNDS * (2 * each / PAGE); visit++)
		compute((uint64_t *)(own + visit * PAGE % len));
	printf("figure %s outgrow.%zu %.3f s\n", way_names[w], percent, (now_ns() - start) / 1e9);
	return 0;
}
