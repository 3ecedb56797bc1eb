/* Registering with io_uring: hugepin's memory beside pages of 4 KiB and of 2 MiB; cycles of a buffer's whole life; and fork,
 * with and without registered memory, beside the kernel's own copy of pinned memory. */
#include "pin_kernel.h"

#include <errno.h>
#include <liburing.h>
#include <malloc.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"
#include "hugepin_uring.h"

/* ------------------------------------------------------------------ registering with io_uring */

static struct io_uring ring;
static hugepin_domain *domain;

static void open_ring(const char *name)
{
	int r = io_uring_queue_init(8, &ring, 0);

	if (r < 0)
		not_shown("%s: no io_uring: %s", name, strerror(-r));
}

enum kind { BASE, THP, HUGETLB };

/* Anonymous memory of this kind, with pages behind it. NULL: there is none. */
static char *map(size_t size, enum kind kind)
{
	size_t room = kind == BASE ? size : (size + HUGEPAGE - 1) / HUGEPAGE * HUGEPAGE;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;

	if (kind == HUGETLB) {
		char *p = mmap(NULL, room, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB | MAP_POPULATE, -1, 0);
		return p == MAP_FAILED ? NULL : p;
	}
	char *p = mmap(NULL, room + HUGEPAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (p == MAP_FAILED)
		err(1, "mmap");
	p += -(uintptr_t)p % HUGEPAGE;
	madvise(p, room, kind == THP ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	touch(p, room);
	return p;
}

/* As map(), from the hugetlb pool or else as THP, which is then said. */
static char *map_huge(size_t size, const char *name)
{
	char *p = map(size, HUGETLB);

	if (!p) {
		printf("# %s: THP instead of hugetlb: the pool is too short\n", name);
		p = map(size, THP);
	}
	return p;
}

static int fill_slot(char *p, size_t size)
{
	struct iovec iov = { p, size };
	__u64 tag = 0;
	int r = io_uring_register_buffers_update_tag(&ring, 0, &iov, &tag, 1);

	return r == 1 ? 0 : r < 0 ? r : -EIO;
}

/* A limit of the kernel is no failure of the bench; any other error is. */
static void check_pinned(int r, const char *name)
{
	if (r == -ENOMEM || r == -ENOBUFS || r == -EPERM)
		not_shown("%s: the kernel refuses to pin so much (RLIMIT_MEMLOCK)", name);
	check(r, name);
}

static void open_slot(const char *name)
{
	open_ring(name);
	check(io_uring_register_buffers_sparse(&ring, 1), "io_uring_register_buffers_sparse");
}

/* The same memory is registered again and again. Where its pages fit into the caches they stay there, which makes 4 KiB
 * pages look cheap. With 4K-new they are discarded before, so that registering faults them in. */
void registering(const char *size_name, size_t size, const char *subject, bool quick)
{
	static double reg[201], clear[201];
	double budget_ns = quick ? 15e6 : 80e6, total = 0;
	bool ours = !strcmp(subject, "hugepin"), new = !strcmp(subject, "4K-new");
	char name[32], *p;
	size_t n = 0;

	snprintf(name, sizeof name, "register.%s", size_name);
	if (ours) {
		struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_NONE };
		struct hugepin_extent e;
		open_ring(name);
		p = get(size);
		touch(p, size);
		check(hugepin_extent(p, &e, sizeof e), "hugepin_extent");
		if (e.kind != HUGEPIN_KIND_HUGETLB)
			printf("# %s: hugepin's is %s: the pool is too short\n", name,
			       e.kind == HUGEPIN_KIND_THP ? "THP" : "in base pages");
		check(hugepin_uring_open(&ring, 0, 1, &attr, &domain), "hugepin_uring_open");
	} else {
		open_slot(name);
		p = new || !strcmp(subject, "4K") ? map(size, BASE) : map_huge(size, name);
	}
	for (bool warm = false; n < 201 && (n < 5 || total < budget_ns); warm = true) {
		struct hugepin_pin pin;
		if (new)
			madvise(p, size, MADV_DONTNEED);
		double t0 = now_ns();
		int r = ours ? hugepin_pin(domain, p, size, 0, &pin) : fill_slot(p, size);
		double t1 = now_ns();
		check_pinned(r, name);
		double t2 = now_ns();
		check(ours ? hugepin_unpin(domain, &pin) : fill_slot(NULL, 0), "clearing");
		double t3 = now_ns();
		if (!warm)
			continue;
		reg[n] = (t1 - t0) / 1e3;
		clear[n++] = (t3 - t2) / 1e3;
		total += t3 - t0;
	}
	printf("%s %.4g us\n", name, median(reg, n));
	printf("clear.%s %.4g us\n", size_name, median(clear, n));
}

/* A buffer is allocated, registered, used in each base page, deregistered and freed, again and again. The C library's is
 * registered for each use, hugepin's memory stays registered. What is freed stays, or (-once) is given back at once. */
void cycling(const char *size_name, size_t size, const char *subject, bool quick)
{
	static double us[1001];
	const bool ours = !strncmp(subject, "hugepin", 7), once = strstr(subject, "-once");
	const double budget_ns = quick ? 15e6 : 80e6;
	double total = 0;
	char name[32];
	size_t n = 0;

	snprintf(name, sizeof name, "cycle.%s", size_name);
	if (ours) {
		open_ring(name);
		check(hugepin_uring_open(&ring, 0, 64, NULL, &domain), "hugepin_uring_open");
	} else {
		open_slot(name);
	}
	for (int warm = 3; n < 1001 && (n < 5 || total < budget_ns);) {
		struct hugepin_pin pin;
		const double start = now_ns();
		char *const p = ours ? get(size) : malloc(size);

		if (!p)
			err(1, "malloc");
		check_pinned(ours ? hugepin_pin(domain, p, size, 0, &pin) : fill_slot(p, size), name);
		touch(p, size);
		check(ours ? hugepin_unpin(domain, &pin) : fill_slot(NULL, 0), "clearing");
		if (ours)
			hugepin_free(p);
		else
			free(p);
		if (once && ours)
			hugepin_purge();
		else if (once)
			malloc_trim(0);
		if (warm && warm--)
			continue;
		us[n] = (now_ns() - start) / 1e3;
		total += us[n++] * 1e3;
	}
	printf("%s %.4g us\n", name, median(us, n));
}

/* ------------------------------------------------------------------ fork */

#define PIECE (64 * MiB)
#define PIECES (GiB / PIECE)

static char *pieces[PIECES];

/* Fork once; the child looks at all pages. Says how long fork took, until it returned here and in the child. */
static void time_fork(const char *name)
{
	double *child_ns = mmap(NULL, 4 * KiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;

	if (child_ns == MAP_FAILED)
		err(1, "mmap");
	fflush(stdout);
	double t = now_ns();
	pid_t pid = fork();
	double parent_ns = now_ns();
	if (pid < 0)
		err(1, "fork");
	if (!pid) {
		*child_ns = parent_ns;
		for (size_t i = 0; i < PIECES; i++)
			for (size_t k = 0; k < PIECE; k += 4 * KiB)
				if (pieces[i][k] != 1)
					_exit(1);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		errx(1, "the child's memory is not the parent's");
	printf("%s %.4g ms\n%s.child %.4g ms\n", name, (parent_ns - t) / 1e6, name, (*child_ns - t) / 1e6);
	munmap(child_ns, 4 * KiB);
}

static size_t pool_free(void)
{
	FILE *f = fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "r");
	size_t n = 0;

	if (!f || fscanf(f, "%zu", &n) != 1)
		return 0;
	fclose(f);
	return n;
}

/* For the subject `kernel`: pinned memory that is not the heap's. The kernel's own fork copies it. */
static void map_for_kernel(const char *name, bool thp)
{
	char *p = map(GiB, thp ? THP : HUGETLB);

	open_slot(name);
	if (!p || (!thp && pool_free() < GiB / HUGEPAGE))
		not_shown("%s: the kernel's copy needs a pool of 1024 free pages", name);
	touch(p, GiB);
	check_pinned(fill_slot(p, GiB), name);
	for (size_t i = 0; i < PIECES; i++)
		pieces[i] = p + i * PIECE;
}

static void take_heap(const char *name, bool thp, bool registered)
{
	struct hugepin_stats s;

	for (size_t i = 0; i < PIECES; i++)
		touch(pieces[i] = get(PIECE), PIECE);
	check(hugepin_stats(&s, sizeof s), "hugepin_stats");
	if ((thp ? s.thp_bytes : s.hugetlb_bytes) < GiB)
		not_shown("%s: not all of the heap is %s", name, thp ? "THP" : "from the hugetlb pool");
	if (!registered)
		return;
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_ARENA, .fork = HUGEPIN_FORK_COPY };
	struct hugepin_domain_stats d;
	open_ring(name);
	check(hugepin_uring_open(&ring, 0, 256, &attr, &domain), "hugepin_uring_open");
	for (size_t i = 0; i < PIECES; i++) {
		struct hugepin_pin pin;
		check_pinned(hugepin_pin(domain, pieces[i], PIECE, 0, &pin), name);
		check(hugepin_unpin(domain, &pin), "hugepin_unpin");
	}
	check(hugepin_domain_stats(domain, &d, sizeof d), "hugepin_domain_stats");
	if (d.pinned_bytes < GiB) /* a piece that did not fit was evicted */
		check_pinned(-ENOBUFS, name);
}

void forking(const char *which, const char *subject)
{
	bool thp = !strcmp(which, "thp");
	char name[32];

	snprintf(name, sizeof name, "fork.%s", which);
	if (!strcmp(subject, "kernel"))
		map_for_kernel(name, thp);
	else
		take_heap(name, thp, !strcmp(subject, "registered"));
	time_fork(name);
	snprintf(name, sizeof name, "fork.%s.again", which);
	time_fork(name);
}
