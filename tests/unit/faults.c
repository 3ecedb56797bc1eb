/*
 * Every system call of the mapping tier fails once, and then all that come after it: the Nth one for N = 1, 2, 3 ...
 * until a scenario ends before its Nth call. Each run is a process of its own, in which the heap starts anew.
 *
 * The kernel is reached through functions defined here, which the linker prefers to the C library's. They also stand in
 * for a hugetlb pool, so that the machine needs none.
 */
#include <pthread.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "alloc/copy.h"
#include "alloc/heap.h"
#include "alloc/hold.h"
#include "alloc/madvise.h"
#include "alloc/small.h"
#include "base/config.h"
#include "tests/t.h"
#include "tests/unit/empty.h"
#include "tests/unit/kernel.h"
#include "tests/unit/told.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* ------------------------------------------------------------------ the kernel */

static bool armed; /* calls count */
static bool for_good; /* not only the Nth fails */
static long nth, calls;
static int with; /* errno of a failure */
static size_t pool; /* hugepages in the pool; what is given back is not added again */

static struct {
	long failed; /* number of the system call that failed last, -1: none */
	bool homeless; /* what fills a hole in the span failed */
	bool unadvised; /* or what advises it */
} *seen; /* shared with children */

UNINSTRUMENTED static bool counts(long nr)
{
	switch (nr) {
	case SYS_mmap: case SYS_munmap: case SYS_madvise: case SYS_mprotect: case SYS_mremap:
	case SYS_openat: case SYS_read: case SYS_pread64: case SYS_membarrier: return true;
	default: return false;
	}
}

/* What undoes another call fails once, but not for good: nothing could be given back. */
UNINSTRUMENTED static bool undoes(long nr, long c, long d)
{
	return nr == SYS_munmap || (nr == SYS_mmap && d & MAP_FIXED && c == PROT_NONE) ||
	       (nr == SYS_madvise && c == MADV_DOFORK);
}

UNINSTRUMENTED static bool fails(long nr, long c, long d)
{
	if (!armed || !counts(nr))
		return false;
	calls++;
	if (calls != nth && !(for_good && calls > nth && !undoes(nr, c, d)))
		return false;
	seen->failed = nr;
	seen->unadvised |= nr == SYS_madvise || nr == SYS_mprotect;
	seen->homeless |= nr == SYS_mmap && d & MAP_FIXED;
	return true;
}

UNINSTRUMENTED static long map_pool(long len, long prot, long flags)
{
	if ((size_t)len > pool * HP_PAGE)
		return -ENOMEM;
	pool -= (size_t)len / HP_PAGE;
	return map_like_pool(len, prot, flags);
}

/* What the kernel may have done by the time it finds that a call cannot succeed. */
UNINSTRUMENTED static void spoil(long nr, long a, long b, long c, long d, long e)
{
	if (nr == SYS_mmap && d & MAP_FIXED && c & PROT_WRITE)
		raw(SYS_munmap, a, b, 0, 0, 0, 0);
	if (nr == SYS_mremap && d & MREMAP_FIXED)
		raw(SYS_munmap, e, c, 0, 0, 0, 0);
	if (nr == SYS_mprotect && (size_t)b > HP_PAGE)
		raw(SYS_mprotect, a, HP_PAGE, c, 0, 0, 0);
	/* What could not be populated kills who touches it. */
	if (nr == SYS_madvise && c == MADV_POPULATE_WRITE)
		raw(SYS_mprotect, a, b, PROT_NONE, 0, 0, 0);
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (fails(nr, c, d)) {
		spoil(nr, a, b, c, d, e);
		r = -with;
	} else if (nr == SYS_mmap && d & MAP_HUGETLB) {
		r = d & MAP_FIXED ? -EINVAL : map_pool(b, c, d);
	} else {
		r = raw(nr, a, b, c, d, e, f);
	}
	return result_of(r);
}

/* ------------------------------------------------------------------ buffers */

enum { BUFFERS = 24, STEP = 12288 };
static struct buffer {
	unsigned char *p;
	size_t size;
	unsigned char tag;
} buffers[BUFFERS];

static void fill(struct buffer *b)
{
	static unsigned char tag;

	b->tag = (unsigned char)(++tag % 250 + 1);
	for (size_t i = 0; i < b->size; i += STEP)
		b->p[i] = b->tag;
	b->p[b->size - 1] = b->tag;
}

/* Whether the first `size` bytes at p are those of the buffer. */
static bool intact(const unsigned char *p, const struct buffer *b, size_t size)
{
	for (size_t i = 0; i < HP_MIN(b->size, size); i += STEP)
		if (p[i] != b->tag)
			return false;
	return size < b->size || p[b->size - 1] == b->tag;
}

static void expect_intact(void)
{
	for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
		EXPECT(!b->p || intact(b->p, b, b->size));
}

/* NULL means ENOMEM, and may only come while calls fail. */
static void keep(struct buffer *b, void *p, size_t size)
{
	b->p = p;
	b->size = size;
	if (p) {
		EXPECT(hugepin_usable_size(p) >= size);
		fill(b);
		return;
	}
	EXPECT_EQ(errno, ENOMEM);
	EXPECT(armed && seen->failed >= 0);
}

static void obtain_zeroed(struct buffer *b, size_t size)
{
	unsigned char *p = hugepin_calloc(1, size);

	EXPECT(!p || (p[0] == 0 && memcmp(p, p + 1, size - 1) == 0));
	keep(b, p, size);
}

static void resize(struct buffer *b, size_t size)
{
	unsigned char *p = b->p ? hugepin_realloc(b->p, size) : NULL;

	if (!b->p)
		return;
	EXPECT(intact(p ? p : b->p, b, p ? size : b->size));
	if (p)
		keep(b, p, size);
	else
		EXPECT_EQ(errno, ENOMEM);
}

static void discard(struct buffer *b)
{
	errno = 77;
	hugepin_free(b->p);
	EXPECT_EQ(errno, 77);
	b->p = NULL;
}

/* No failures any more: all must come back. */
static void end(void)
{
	armed = false;
	expect_intact();
	expect_span_reserved(false);
	for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
		discard(b);
	hugepin_purge();
	expect_empty();
	/* And the heap works on. */
	keep(&buffers[0], hugepin_malloc(3 * MIB), 3 * MIB);
	expect_intact();
	discard(&buffers[0]);
	hugepin_purge();
	expect_empty();
}

/* ------------------------------------------------------------------ scenarios */

static void fork_once(void)
{
	int status;
	pid_t pid;

	seen->homeless = false;
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		expect_intact();
		for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
			if (b->p)
				fill(b);
		obtain_zeroed(&buffers[BUFFERS - 1], 3 * MIB);
		end();
		_exit(t_failures != 0);
	}
	EXPECT(pid > 0);
	waitpid(pid, &status, 0);
	/* A child into which the copy cannot be moved, or whose span would have holes, tries again, and must end if that
	 * is in vain. */
	EXPECT(WIFEXITED(status) || (for_good && seen->homeless && WTERMSIG(status) == SIGABRT));
	EXPECT(!WIFEXITED(status) || WEXITSTATUS(status) == 0);
}

static void fork_with(int held)
{
	struct hugepin_extent e;

	for (int i = 0; i < 6; i++)
		keep(&buffers[i], hugepin_malloc(3 * MIB / 2), 3 * MIB / 2);
	keep(&buffers[6], hugepin_malloc(5 * MIB), 5 * MIB);
	keep(&buffers[7], hugepin_malloc(5 * MIB), 5 * MIB);
	if (held >= 0) {
		EXPECT(hugepin_extent(buffers[3].p, &e, sizeof e) > 0);
		EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, (enum hp_hold)held), 0);
	}
	discard(&buffers[1]);
	discard(&buffers[4]);
	discard(&buffers[7]); /* whole hugepages that the child does not need */
	armed = true;
	fork_once();
	expect_intact();
	fork_once();
	keep(&buffers[1], hugepin_malloc(4 * MIB), 4 * MIB);
	if (held >= 0)
		hp_heap_drop((uintptr_t)e.addr, e.len, (enum hp_hold)held);
	end();
}

static sem_t over;

static void *wait_until_over(void *arg)
{
	while (sem_wait(&over))
		;
	return arg;
}

/* With a thread, so that the copy's memory is kept for the next fork. */
static void fork_soon_again(void)
{
	struct hugepin_extent e;
	pthread_t t;

	hp_config.decay_ms = 3600000;
	sem_init(&over, 0, 0);
	EXPECT_EQ(pthread_create(&t, NULL, wait_until_over, NULL), 0);
	for (int i = 0; i < 4; i++)
		keep(&buffers[i], hugepin_malloc(3 * MIB / 2), 3 * MIB / 2);
	EXPECT(hugepin_extent(buffers[3].p, &e, sizeof e) > 0);
	EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, HP_HOLD_COPY), 0);
	armed = true;
	fork_once();
	discard(&buffers[1]);
	discard(&buffers[2]); /* less is copied, and lies elsewhere in what is kept */
	fork_once();
	for (int i = 0; i < HP_TICKS + 1; i++)
		hp_heap_tick();
	hp_heap_drop((uintptr_t)e.addr, e.len, HP_HOLD_COPY);
	end();
	EXPECT_EQ(hp_copy_kept(), 0);
	sem_post(&over);
	pthread_join(t, NULL);
}

/* ------------------------------------------------------------------ advice */

enum { ADVISED = 4 };
static bool advised[ADVISED]; /* the first 64 KiB of a buffer of that number */

static bool readable(const void *p)
{
	int pipes[2];
	bool ok = pipe(pipes) == 0 && write(pipes[1], p, 1) == 1;

	close(pipes[0]);
	close(pipes[1]);
	return ok;
}

static void advise(int i)
{
	static const int how[ADVISED] = { MADV_DONTFORK, MADV_WIPEONFORK, MADV_DONTDUMP, PROT_READ };
	int r = i == 3 ? hugepin_protect_(buffers[i].p, 65536, how[i]) : hugepin_advise_(buffers[i].p, 65536, how[i]);

	EXPECT(r == 0 || (r == -with && seen->failed >= 0));
	advised[i] = r == 0;
	EXPECT(intact(buffers[i].p, &buffers[i], buffers[i].size));
}

/* Nobody gets what the kernel still thinks advised. */
static void expect_plain(const struct buffer *b)
{
	size_t chunk = ((uintptr_t)b->p - hp_span.base) >> HP_CHUNK_SHIFT;

	EXPECT(chunk >= hp_span.pages << HP_PAGE_CHUNKS_SHIFT || !hp_madvise_any(chunk, hp_chunk_extent(chunk)));
}

static void advised_child(void)
{
	int status;
	pid_t pid;

	seen->homeless = seen->unadvised = false;
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		for (int i = 0; i < ADVISED; i++) {
			const struct buffer *b = &buffers[i];

			if (!b->p)
				continue;
			if (advised[i] && i < 2)
				EXPECT(!(readable(b->p) && b->p[STEP]));
			else
				EXPECT(intact(b->p, b, 65536));
			EXPECT_EQ(b->p[b->size - 1], b->tag);
		}
		_exit(t_failures != 0);
	}
	EXPECT(pid > 0);
	waitpid(pid, &status, 0);
	/* Nor may a child run whose copy the kernel does not let be advised. */
	if (WIFEXITED(status))
		EXPECT_EQ(WEXITSTATUS(status), 0);
	else if (EXPECT_EQ(WTERMSIG(status), SIGABRT))
		EXPECT(seen->homeless || seen->unadvised);
}

static void advise_with(int held)
{
	struct hugepin_extent e;

	for (int i = 0; i < ADVISED + 1; i++)
		keep(&buffers[i], hugepin_malloc(MIB / 2), MIB / 2);
	if (held) {
		EXPECT(hugepin_extent(buffers[0].p, &e, sizeof e) > 0);
		EXPECT_EQ(hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, HP_HOLD_COPY), 0);
	}
	armed = true;
	for (int i = 0; i < ADVISED; i++)
		advise(i);
	advised_child();
	expect_intact();
	resize(&buffers[0], MIB / 4);
	resize(&buffers[2], MIB / 4);
	resize(&buffers[0], MIB);
	resize(&buffers[2], MIB);
	advised_child();
	for (int i = 0; i < ADVISED; i++)
		discard(&buffers[i]);
	for (int i = 6; i < 16; i++) {
		keep(&buffers[i], hugepin_malloc(MIB / 4), MIB / 4);
		expect_plain(&buffers[i]);
	}
	obtain_zeroed(&buffers[5], MIB);
	expect_plain(&buffers[5]);
	fork_once();
	if (held)
		hp_heap_drop((uintptr_t)e.addr, e.len, HP_HOLD_COPY);
	end();
}

static void advise_buffers(void)
{
	advise_with(false);
}

static void advise_held_buffers(void)
{
	advise_with(true);
}

/* ------------------------------------------------------------------ runs */

/* Returns whether the Nth call was reached. */
static bool run_once(void (*scenario)(void), size_t pool_pages, long n, bool rest_too, int error)
{
	int status;
	pid_t pid;

	seen->failed = -1;
	seen->homeless = false;
	pid = fork();
	if (pid == 0) {
		alarm(t_seconds());
		prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* for speed: the kernel need not zero what no one touches */
		t_failures = 0;
		if (!freopen("/dev/null", "w", stderr)) /* messages of children that end */
			_exit(2);
		pool = pool_pages;
		nth = n;
		for_good = rest_too;
		with = error;
		calls = 0;
		scenario();
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	/* Nobody survives that what moves is refused a place, and then what would lie there. */
	if (status && !(rest_too && seen->homeless && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT))
		T_FAIL("status %#x: pool %zu, call %ld%s fails (%ld)", status, pool_pages, n, rest_too ? " and all after it" : "",
		       seen->failed);
	return seen->failed >= 0;
}

static void run_with(const size_t *pools, size_t count, void (*scenario)(void))
{
	seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < count; i++) {
		long n = 1;

		while (run_once(scenario, pools[i], n, false, ENOMEM) && t_failures < 20)
			n++;
		EXPECT(pools[i] == 0 || n > 10); /* else this test sees nothing */
		for (long m = 1; m <= n && pools[i] == 3 && t_failures < 20; m++)
			run_once(scenario, pools[i], m, true, ENOMEM);
	}
	munmap(seen, 4096);
}

static void run_all(void (*scenario)(void))
{
	run_with((const size_t[]){ 0, 3, 1000 }, 3, scenario);
}

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)1 << 30;
	hp_config.extent_max = (int64_t)(4 * MIB);
	hp_config.decay_ms = 0;
}

TEST_BY(run_all, growing_survives_every_failure)
{
	static const size_t sizes[] = { 40000, 1 * MIB, 3 * MIB, 5 * MIB, 5 * MIB / 2, 100000 };
	struct buffer *b = buffers;

	armed = true;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++, b++)
		keep(b, hugepin_malloc(sizes[i]), sizes[i]);
	obtain_zeroed(b++, 5 * MIB / 2);
	keep(b++, hugepin_aligned_alloc(4 * MIB, 40000), 40000);
	expect_intact();
	discard(&buffers[2]);
	discard(&buffers[4]);
	obtain_zeroed(&buffers[2], 3 * MIB);
	obtain_zeroed(&buffers[4], 9 * MIB / 2);
	for (size_t size = 50000; size < 12 * MIB; size *= 4)
		resize(&buffers[0], size);
	for (size_t size = 6 * MIB; size < 12 * MIB; size += 5 * MIB / 2) /* moves, then grows into its room */
		resize(&buffers[3], size);
	resize(&buffers[6], 40000);
	resize(&buffers[6], MIB);
	expect_intact();
	end();
}

TEST_BY(run_all, giving_back_survives_every_failure)
{
	armed = true;
	for (int i = 0; i < 8; i++)
		keep(&buffers[i], hugepin_malloc(5 * MIB / 2), 5 * MIB / 2);
	for (int i = 0; i < 8; i += 2)
		discard(&buffers[i]);
	hugepin_purge();
	expect_intact();
	for (int i = 0; i < 8; i += 2)
		obtain_zeroed(&buffers[i], 9 * MIB / 2);
	for (int i = 0; i < 8; i++)
		if (i != 3)
			discard(&buffers[i]);
	hugepin_free(hugepin_malloc(65 * MIB)); /* empties the lists */
	for (int i = 0; i <= HP_TICKS; i++)
		hp_heap_tick();
	expect_intact();
	obtain_zeroed(&buffers[0], 7 * MIB);
	hugepin_span_limit_(16 * MIB);
	expect_intact();
	end();
}

TEST_BY(run_all, holding_survives_every_failure)
{
	struct hugepin_extent e;
	struct {
		uintptr_t at;
		size_t len;
	} held[8];
	int n = 0;

	for (int i = 0; i < 4; i++)
		keep(&buffers[i], hugepin_malloc(3 * MIB / 2), 3 * MIB / 2);
	keep(&buffers[4], hugepin_malloc(9 * MIB), 9 * MIB);
	keep(&buffers[5], hugepin_malloc(19 * MIB), 19 * MIB);
	armed = true;
	resize(&buffers[4], MIB);
	resize(&buffers[5], MIB);
	hugepin_purge(); /* their extents are without memory but for the first page */
	keep(&buffers[6], hugepin_malloc(5 * MIB / 2), 5 * MIB / 2);
	for (uintptr_t from = 0; n < 8 && hp_heap_next_extent(from, &e); from = (uintptr_t)e.addr + 1) {
		size_t first = ((uintptr_t)e.addr - hp_span.base) >> HP_PAGE_SHIFT;
		int r = hp_heap_hold((uintptr_t)e.addr, e.len, e.gen, HP_HOLD_COPY);

		EXPECT(r == 0 || (r == -ENOMEM && seen->failed >= 0));
		for (size_t p = first; p < first + (e.len >> HP_PAGE_SHIFT); p++) {
			EXPECT_EQ(hp_page_held(&hp_span.page[p]), r == 0);
			if (r == 0 && EXPECT_EQ(hp_span.page[p].state, HP_PAGE_READY))
				EXPECT_EQ(*(volatile char *)(hp_page_addr(p) + HP_PAGE - 1), 0);
		}
		if (r == 0) {
			held[n].at = (uintptr_t)e.addr;
			held[n++].len = e.len;
		}
	}
	expect_intact();
	hugepin_purge();
	resize(&buffers[4], 4 * MIB);
	expect_intact();
	while (n--)
		hp_heap_drop(held[n].at, held[n].len, HP_HOLD_COPY);
	end();
}

TEST_BY(run_all, fork_survives_every_failure)
{
	fork_with(-1);
}

TEST_BY(run_all, fork_with_held_memory_survives_every_failure)
{
	fork_with(HP_HOLD_COPY);
}

TEST_CASE(forks_soon_after_forks_survive_every_failure, run_with((const size_t[]){ 3 }, 1, fork_soon_again))
TEST_CASE(advice_survives_every_failure, run_with((const size_t[]){ 3 }, 1, advise_buffers))
TEST_CASE(advice_about_held_memory_survives_every_failure, run_with((const size_t[]){ 4 }, 1, advise_held_buffers))

T_MAIN
