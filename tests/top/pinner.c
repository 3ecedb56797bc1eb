/*
 * A process for `hugepin top` to look at: a heap, and domains of several policies and backends. Says on stdout what is to be
 * seen, then pins and unpins until its input ends. "fork": waits in a child. "alone": pins nothing, and keeps others out.
 * "many": 20000 registrations more. "lend": lends memory to peers that ask by themselves.
 */
#include <hugepin.h>
#include <hugepin_uring.h>

#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
enum { HELD = 3, MANY = 20000 };

static void need(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "pinner: %s\n", what);
	exit(1);
}

static hugepin_domain *open_with(const struct hugepin_backend *backend, uint32_t policy, uint64_t budget)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy, .pinned_bytes_max = budget };
	hugepin_domain *d;

	need(hugepin_domain_open(backend, NULL, &attr, &d) == 0, "no domain");
	return d;
}

static char *map(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	need(p != MAP_FAILED, "no memory");
	return p;
}

/* io_uring where the kernel lets us, and its name in *ret_. */
static hugepin_domain *open_ring(const char **ret_)
{
	static struct io_uring ring;
	/* Shared memory is cached where the program watches. */
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM };
	hugepin_domain *d;

	*ret_ = "io_uring";
	if (io_uring_queue_init(4, &ring, 0) == 0 && hugepin_uring_open(&ring, 0, 64, &attr, &d) == 0)
		return d;
	*ret_ = "mlock";
	need(hugepin_domain_open(hugepin_mlock(), NULL, &attr, &d) == 0, "no domain");
	return d;
}

static char *map_named(const char *name, size_t len)
{
	const int fd = memfd_create(name, 0);
	char *p = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, (off_t)len) == 0)
		p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	need(p != MAP_FAILED, "no named memory");
	return p;
}

__attribute__((noinline)) static void use(hugepin_domain *d, char *p, size_t len)
{
	struct hugepin_pin pin;

	need(hugepin_pin(d, p, len, 0, &pin) == 0, "no pin");
	need(hugepin_unpin(d, &pin) == 0, "no unpin");
}

static int input_ended(void)
{
	struct pollfd fd = { .fd = 0, .events = POLLIN };
	char c;

	return poll(&fd, 1, 1) == 1 && read(0, &c, 1) <= 0;
}

/* ------------------------------------------------------------------ lending */

static int reg_nothing(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)len, (void)access;
	*ret_ = (struct hugepin_reg){ 1, 1, 0 };
	return 0;
}

static int dereg_nothing(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx, (void)reg;
	return 0;
}

static int limits_of_all(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE };
	return 0;
}

static struct {
	uint32_t peer;
	size_t len;
	char bytes[HUGEPIN_LEND_MESSAGE_MAX];
} wire[64];
static unsigned wired;
static char *lent;
enum { LENT = 4 << 20, PEERS = 3 };

static int send_message(void *arg, uint32_t peer, const void *msg, size_t len)
{
	(void)arg;
	wire[wired].peer = peer;
	wire[wired].len = len;
	memcpy(wire[wired++].bytes, msg, len);
	return 0;
}

static void ready(void *arg, void *token, int err, const struct hugepin_far *key)
{
	(void)arg, (void)token, (void)err, (void)key;
}

static int offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	(void)arg, (void)peer, (void)addr, (void)len;
	*ret_buffer = (struct iovec){ lent, LENT };
	return 0;
}

/* The process is its own peer 2: it has a key of its memory. */
static void lend_to_itself(void)
{
	static const struct hugepin_backend backend = {
		.size = sizeof backend, .name = "nothing", .reg = reg_nothing, .dereg = dereg_nothing, .limits = limits_of_all
	};
	struct hugepin_lend_attr attr = { .size = sizeof attr,
					  .peers = PEERS,
					  .send = send_message,
					  .ready = ready,
					  .offer = offer };
	hugepin_domain *const d = open_with(&backend, HUGEPIN_POLICY_LRU, 512 * MIB);
	hugepin_lend *l;
	struct hugepin_far key;

	lent = (char *)(((size_t)map(2 * LENT) + LENT - 1) & ~(size_t)(LENT - 1));
	need(hugepin_lend_open(d, &attr, NULL, &l) == 0, "no lend");
	need(hugepin_lend_key(l, 2, (size_t)lent, 1, NULL, &key) == 0, "no question");
	for (unsigned i = 0; i < wired; i++)
		need(hugepin_lend_message(l, wire[i].peer, wire[i].bytes, wire[i].len) == 0, "no answer");
}

int main(int argc, char **argv)
{
	const char *const how = argc > 1 ? argv[1] : "";
	char *const buffer = hugepin_malloc(8 * MIB), *const freed = hugepin_malloc(MIB);
	char *const foreign = map(256 * KIB), *const again = map(128 * KIB);
	hugepin_domain *const arena = open_with(hugepin_mlock(), HUGEPIN_POLICY_ARENA, 0);
	hugepin_domain *const lru = open_with(hugepin_mlock(), HUGEPIN_POLICY_LRU, 512 * MIB);
	hugepin_domain *const predict = open_with(hugepin_mlock(), HUGEPIN_POLICY_PREDICT, 0);
	const char *ring;
	hugepin_domain *const rings = open_ring(&ring);
	struct hugepin_pin held[HELD];

	need(buffer && freed, "no heap");
	memset(buffer, 1, 8 * MIB);
	hugepin_free(freed);
	if (!strcmp(how, "alone")) { /* of a user who may lock little */
		prctl(PR_SET_DUMPABLE, 0);
		printf("pid %d\n", (int)getpid());
		fflush(stdout);
		while (!input_ended())
			;
		return 0;
	}
	if (!strcmp(how, "lend"))
		lend_to_itself();
	use(arena, buffer, 8 * MIB);
	use(rings, map_named("mapped", MIB), MIB);
	for (int i = 0; i < HELD; i++)
		need(hugepin_pin(lru, foreign, 256 * KIB, 0, &held[i]) == 0, "no pin");
	if (!strcmp(how, "many")) {
		char *const lots = map((size_t)MANY * 8 * KIB);
		for (size_t i = 0; i < MANY; i++) /* with gaps, so that they are not merged */
			use(lru, lots + i * 8 * KIB, 4 * KIB);
	}
	if (!strcmp(how, "fork")) {
		const pid_t child = fork();
		if (child) {
			need(child > 0 && waitpid(child, NULL, 0) == child, "no child");
			return 0;
		}
	}
	printf("pid %d foreign %#lx buffer %#lx again %#lx ring %s\n", (int)getpid(), (unsigned long)foreign, (unsigned long)buffer,
	       (unsigned long)again, ring);
	fflush(stdout);
	while (!input_ended())
		for (int i = 0; strcmp(how, "fork") && i < 100; i++) {
			use(arena, buffer, 64 * KIB);
			use(predict, again, 128 * KIB);
		}
	return 0;
}
