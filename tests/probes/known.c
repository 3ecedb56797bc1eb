/*
 * Does what is known to pass each probe so many times, and prints the numbers: "NAME COUNT" or "NAME WORD COUNT". The
 * counts are those of this text; those of the heap's memory are the heap's own statistics, from a point of time to the
 * end. What a probe must not see, hits and pairs of malloc and free, is done in thousands. The device only gives keys.
 * Its clock goes on by one microsecond at each look. With an argument, ends when its input does. Exits with 77 if the
 * kernel does not tell of memory that goes away.
 */
#include <errno.h>
#include <hugepin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
enum { BUFFERS = 8, FIT = 4, ROUNDS = 3, HITS = 2000 }; /* FIT: so many buffers are within the budget */

static int refusals; /* the device refuses so many registrations from now on */
static int refusal = -ENOMEM;
static size_t longest; /* the device takes no longer registration; 0: any */

static void need(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

/* ------------------------------------------------------------------ the device */

static int add(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	static uint32_t key;

	(void)ctx, (void)addr, (void)len, (void)access;
	if (refusals && refusals--)
		return refusal;
	ret_->lkey = ret_->rkey = ++key;
	return 0;
}

static int take_away(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx, (void)reg;
	return 0;
}

static int say_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .len_max = longest, .access = HUGEPIN_READ | HUGEPIN_WRITE };
	return 0;
}

static uint64_t look_at_clock(void *ctx)
{
	static uint64_t now;

	(void)ctx;
	return now += 1000;
}

static hugepin_domain *open_watched(uint32_t policy, size_t budget, uint32_t regs, uint32_t watch)
{
	static const struct hugepin_backend device = {
		.size = sizeof device, .name = "known", .reg = add, .dereg = take_away, .limits = say_limits,
		.now_ns = look_at_clock,
	};
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy, .pinned_bytes_max = budget,
				     .pinned_regions_max = regs, .watch = watch };
	hugepin_domain *d;

	need(hugepin_domain_open(&device, NULL, &attr, &d) == 0, "hugepin_domain_open");
	return d;
}

static hugepin_domain *open_domain(uint32_t policy, size_t budget, uint32_t regs)
{
	return open_watched(policy, budget, regs, HUGEPIN_WATCH_DEFAULT);
}

static void close_domain(hugepin_domain *d)
{
	need(hugepin_domain_close(d) == 0, "hugepin_domain_close");
}

/* ------------------------------------------------------------------ what is done */

/* The call site of all pins. */
__attribute__((noinline)) void use_buffer(hugepin_domain *d, void *p, size_t len, unsigned access);
void use_buffer(hugepin_domain *d, void *p, size_t len, unsigned access)
{
	struct hugepin_pin pin;

	need(hugepin_pin(d, p, len, access, &pin) == 0, "hugepin_pin");
	need(hugepin_unpin(d, &pin) == 0, "hugepin_unpin");
}

/* 1 MiB that is no neighbour of another mapping, with which the kernel would make it one. */
static char *map(int flags)
{
	char *p = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);

	need(p != MAP_FAILED && mprotect(p + MIB, MIB, PROT_NONE) == 0, "mmap");
	memset(p, 1, MIB);
	return p;
}

/* The kernel may not let us watch. */
static void need_watching(void)
{
	hugepin_domain *d = open_domain(HUGEPIN_POLICY_LRU, 0, 0);
	struct hugepin_domain_stats s;
	char *p = map(MAP_PRIVATE);

	use_buffer(d, p, MIB, 0);
	hugepin_domain_stats(d, &s, sizeof s);
	if (s.uncached)
		exit(77);
	close_domain(d);
}

static void outside_the_heap(void)
{
	hugepin_domain *d = open_domain(HUGEPIN_POLICY_LRU, FIT * MIB, 0), *other;
	char *buffer[BUFFERS], *shared;

	/* In turn, more buffers than fit: under LRU each pin misses, and each but the first four evicts. */
	for (int i = 0; i < BUFFERS; i++)
		buffer[i] = map(MAP_PRIVATE);
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < BUFFERS; i++)
			use_buffer(d, buffer[i], MIB, 0);
	for (int i = 0; i < HITS; i++)
		use_buffer(d, buffer[BUFFERS - 1 - i % FIT], MIB, 0);

	/* Of the four that are registered three go, each in its own way. A pin of the fourth is a hit. */
	need(munmap(buffer[BUFFERS - 1], MIB) == 0, "munmap");
	use_buffer(d, buffer[BUFFERS - 4], MIB, 0);
	need(madvise(buffer[BUFFERS - 2], 4 * KIB, MADV_DONTNEED) == 0, "madvise");
	use_buffer(d, buffer[BUFFERS - 4], MIB, 0);
	need(hugepin_forget(buffer[BUFFERS - 3], 8 * KIB) == 0, "hugepin_forget");
	use_buffer(d, buffer[BUFFERS - 4], MIB, 0);

	/* Not cached: shared three times, asked for twice, discarded before once, once by the policy. Nothing is evicted for
	 * them: there is room for three more. */
	shared = map(MAP_SHARED);
	for (int i = 0; i < 3; i++)
		use_buffer(d, shared, MIB, 0);
	for (int i = 0; i < 2; i++)
		use_buffer(d, buffer[0], MIB, HUGEPIN_PIN_UNCACHED);
	use_buffer(d, buffer[BUFFERS - 2], MIB, 0);
	other = open_domain(HUGEPIN_POLICY_NONE, 0, 0);
	use_buffer(other, buffer[0], MIB, 0);
	close_domain(other);

	/* A part of a buffer, then a larger part: the smaller registration is merged. */
	use_buffer(d, buffer[1], 256 * KIB, 0);
	use_buffer(d, buffer[1], 512 * KIB, 0);

	/* The device refuses once: of the two that are registered one is evicted, the one that was used first. */
	refusals = 1;
	use_buffer(d, buffer[2], MIB, 0);
	close_domain(d); /* with two registrations */

	/* A domain of one registration at most. */
	other = open_domain(HUGEPIN_POLICY_LRU, 0, 1);
	for (int i = 0; i < 3; i++)
		use_buffer(other, buffer[i], MIB, 0);
	close_domain(other);
}

static void in_the_heap(hugepin_domain *d)
{
	char *p = hugepin_malloc(8 * MIB), *q;
	int status;
	pid_t pid;

	need(p != NULL, "hugepin_malloc");
	memset(p, 1, 8 * MIB);
	for (int i = 0; i < HITS; i++)
		use_buffer(d, p, 4 * MIB, 0); /* the first is a miss */
	for (int i = 0; i < HITS; i++) {
		q = hugepin_malloc(MIB);
		need(q != NULL, "hugepin_malloc");
		*(volatile char *)q = 1;
		hugepin_free(q);
	}
	pid = fork();
	if (pid == 0)
		_exit(p[MIB] != 1);
	need(waitpid(pid, &status, 0) == pid && !status, "the child");
	hugepin_free(p);
	hugepin_purge();
}

/* Not cached: the budget is less than a hugepage, the device takes no hugepage, nobody watches, the device refuses. */
static void in_pieces(void)
{
	char *p = hugepin_malloc(MIB), *outside = map(MAP_PRIVATE);
	hugepin_domain *d = open_domain(HUGEPIN_POLICY_ARENA, MIB, 0);

	need(p != NULL, "hugepin_malloc");
	memset(p, 1, MIB);
	use_buffer(d, p, 64 * KIB, 0);
	close_domain(d);
	longest = MIB;
	d = open_domain(HUGEPIN_POLICY_LRU, 0, 0);
	use_buffer(d, p, 64 * KIB, 0);
	close_domain(d);
	longest = 0;
	d = open_watched(HUGEPIN_POLICY_LRU, 0, 0, HUGEPIN_WATCH_NONE);
	use_buffer(d, outside, MIB, 0);
	close_domain(d);
	d = open_domain(HUGEPIN_POLICY_LRU, 0, 0);
	refusals = 1;
	refusal = -EOPNOTSUPP;
	use_buffer(d, outside, MIB, 0);
	close_domain(d);
	hugepin_free(p);
}

static long long memory_of(const struct hugepin_stats *s)
{
	return (long long)(s->hugetlb_bytes + s->thp_bytes + s->base_bytes);
}

int main(int argc, char **argv)
{
	struct hugepin_stats before, after;
	hugepin_domain *d;

	(void)argv;
	need_watching();
	outside_the_heap();
	hugepin_stats(&before, sizeof before);
	in_pieces();
	d = open_domain(HUGEPIN_POLICY_ARENA, 0, 0);
	in_the_heap(d);
	close_domain(d);
	hugepin_stats(&after, sizeof after);

	printf("miss %d\n", 1 + ROUNDS * BUFFERS + 3 + 2 + 1 + 1 + 2 + 1 + 3 + 4 + 1);
	printf("registration extent 1\nregistration foreign %d\nregistration uncached %d\n",
	       1 + ROUNDS * BUFFERS + 2 + 1 + 3, 3 + 2 + 1 + 1 + 4);
	printf("deregistration extent 1\nderegistration foreign %d\nderegistration uncached %d\n",
	       1 + ROUNDS * BUFFERS + 2 + 1 + 3, 3 + 2 + 1 + 1 + 4);
	printf("eviction budget %d\neviction merged 1\neviction refused 1\neviction count 2\neviction purged 1\n"
	       "eviction closed %d\n",
	       ROUNDS * BUFFERS - FIT, 1 + 2 + 1);
	printf("invalidation unmapped 1\ninvalidation discarded 1\ninvalidation forgotten 1\n");
	printf("uncached shared 3\nuncached asked 2\nuncached discarded 1\nuncached policy 1\n"
	       "uncached budget 1\nuncached length 1\nuncached unwatched 1\nuncached device 1\n");
	printf("memory %lld\nextents %lld\n", memory_of(&after) - memory_of(&before),
	       (long long)(after.extents - before.extents));
	/* The domain holds the extent, so the parent copies it, whatever its pages are. */
	printf("fork copied 1\ncopied %lld\n", (long long)(after.fork_copied_bytes - before.fork_copied_bytes));
	/* Of the rounds; one that is asked for, of which only a part is pinned, and for which another goes. */
	printf("again budget %d\nagain discarded 1\n", (ROUNDS - 1) * BUFFERS + 3);
	/* Shared twice more, asked for once more, and where a domain has the number of one that was closed: of both buffers in
	 * pieces, and before. */
	printf("again uncached %d\nagain closed 2\n", 2 + 1 + 1 + 2);
	fflush(stdout);
	while (argc > 1 && getchar() != EOF)
		;
	return 0;
}
