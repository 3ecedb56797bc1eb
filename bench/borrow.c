/*
 * For callgrind (bench/instructions): so many uses of registered memory, each with its end. usage: borrow WHAT COUNT
 *	heap      hugepin_pin of a buffer of the heap, and hugepin_unpin
 *	foreign   the same of memory outside the heap
 *	held      hugepin_key_pin by a held key of a buffer of the heap, and hugepin_key_unpin
 *	pinv      hugepin_pinv of 16 buffers of the heap, and hugepin_unpinv: for each
 *	key       hugepin_lend_key of a key that covers whole hugepages, and hugepin_lend_done
 *	page      the same of a key of a few pages
 * Of the last two it also prints the time of each, and on stderr what the tables of lends take.
 */
#include <stdbool.h>
#include <sys/mman.h>

#include "common.h"

static struct {
	uint32_t peer;
	size_t len;
	char bytes[HUGEPIN_LEND_MESSAGE_MAX];
} wire[16];
static unsigned wired;
static struct iovec lent;
static struct hugepin_far first;

static int send_message(void *arg, uint32_t peer, const void *msg, size_t len)
{
	(void)arg;
	wire[wired].peer = peer;
	wire[wired].len = len;
	memcpy(wire[wired++].bytes, msg, len);
	return 0;
}

static void ready(void *arg, void *token, int error, const struct hugepin_far *key)
{
	(void)arg, (void)token;
	if (error)
		errx(1, "no key: %s", strerror(-error));
	first = *key;
}

static int offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	(void)arg, (void)peer, (void)addr, (void)len;
	*ret_buffer = lent;
	return 0;
}

static uint64_t table_bytes(hugepin_lend *l)
{
	struct hugepin_lend_stats s;

	hugepin_lend_stats(l, HUGEPIN_LEND_ALL, &s, sizeof s);
	return s.table_bytes;
}

static hugepin_lend *open_lend(hugepin_domain *d, uint32_t peers)
{
	struct hugepin_lend_attr attr = { .size = sizeof attr, .peers = peers, .send = send_message, .ready = ready, .offer = offer };
	hugepin_lend *l;

	if (hugepin_lend_open(d, &attr, NULL, &l) != 0)
		errx(1, "no lend");
	return l;
}

/* The process borrows from itself. */
static void borrow(hugepin_lend *l, const char *p, size_t len, const char *what, long count)
{
	struct hugepin_far key;
	double begun;

	lent = (struct iovec){ (void *)p, len };
	if (hugepin_lend_key(l, 0, (uintptr_t)p, 64, NULL, &key) != 0)
		errx(1, "no question");
	for (unsigned i = 0; i < wired; i++)
		if (hugepin_lend_message(l, wire[i].peer, wire[i].bytes, wire[i].len) != 0)
			errx(1, "no answer");
	hugepin_lend_done(l, &first);
	begun = now_ns();
	for (long i = 0; i < count; i++) {
		if (hugepin_lend_key(l, 0, (uintptr_t)p, 64, NULL, &key) != 1)
			errx(1, "no hit");
		hugepin_lend_done(l, &key);
	}
	printf("figure %s use %.2f ns\n", what, (now_ns() - begun) / (double)count);
}

static void hold(hugepin_domain *d, const char *p, long count)
{
	struct hugepin_key key;
	struct hugepin_pin pin;

	if (hugepin_pin(d, p, 64, 0, &pin) != 0 || hugepin_key_take(d, &pin, HUGEPIN_KEY_LAYOUT, &key) != 0)
		errx(1, "no key");
	for (long i = 0; i < count; i++) {
		if (hugepin_key_pin(&key) != 0)
			errx(1, "no pin");
		hugepin_key_unpin(&key);
	}
}

static void pin_several(hugepin_domain *d, char *p, long count)
{
	struct hugepin_pin pins[16];
	struct iovec v[16];

	for (int i = 0; i < 16; i++)
		v[i] = (struct iovec){ p + i * 65536, 64 };
	for (long i = 0; i < count; i += 16) {
		if (hugepin_pinv(d, v, 16, 0, pins, 16) != 16)
			errx(1, "no pins");
		hugepin_unpinv(d, pins, 16);
	}
}

int main(int argc, char **argv)
{
	const size_t size = (size_t)128 << 20, align = (size_t)64 << 20;
	struct hugepin_attr attr = { .size = sizeof attr, .watch = HUGEPIN_WATCH_PROGRAM, .pinned_bytes_max = (uint64_t)1 << 30 };
	struct hugepin_pin pin;
	hugepin_domain *d;
	hugepin_lend *l;
	bool heap;
	char *p;

	if (argc != 3)
		errx(2, "usage: borrow heap|foreign|held|pinv|key|page COUNT");
	if (hugepin_domain_open(&unregistered, NULL, &attr, &d) != 0)
		errx(1, "no domain");
	heap = !strcmp(argv[1], "heap") || !strcmp(argv[1], "held") || !strcmp(argv[1], "pinv");
	p = heap ? hugepin_malloc(size) :
		   mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!p || p == MAP_FAILED)
		errx(1, "no memory");
	p = (char *)(((uintptr_t)p + align - 1) & ~(uintptr_t)(align - 1));
	if (!strcmp(argv[1], "key") || !strcmp(argv[1], "page")) {
		uint64_t one, thousand, with;

		l = open_lend(d, 1);
		one = table_bytes(l);
		hugepin_lend_close(l);
		l = open_lend(d, 1001);
		thousand = table_bytes(l);
		borrow(l, p, argv[1][0] == 'k' ? align : 8192, argv[1], atol(argv[2]));
		with = table_bytes(l);
		fprintf(stderr, "a lend %llu bytes, a peer %llu, a bucket with a loan %llu\n", (unsigned long long)one,
			(unsigned long long)(thousand - one) / 1000, (unsigned long long)(with - thousand));
		return 0;
	}
	if (!strcmp(argv[1], "held")) {
		hold(d, p, atol(argv[2]));
		return 0;
	}
	if (!strcmp(argv[1], "pinv")) {
		pin_several(d, p, atol(argv[2]));
		return 0;
	}
	for (long i = 0, count = atol(argv[2]); i < count; i++) {
		if (hugepin_pin(d, p, 64, 0, &pin) != 0)
			errx(1, "no pin");
		hugepin_unpin(d, &pin);
	}
	return 0;
}
