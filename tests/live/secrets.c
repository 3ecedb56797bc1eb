/* link: hugepin preload */
/*
 * Advice and protection that a program gives to parts of its buffers must act as on a mapping of its own: from the call
 * to the free, and in every child. The test measures the expected effect: it makes the same calls, by number, on plain
 * mappings of the same kind.
 *
 * HUGEPIN_PAGES is read only once, so each kind of memory has its own process: this program with --kind.
 */
#include <sys/syscall.h>

#include "hugepin.h"
#include "live.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

extern char **environ;

enum { SIZE = 6 << 20, HUGE = 2 << 20, PART = 1 << 16, SECRET = 0x5a };
enum call { MADVISE, MPROTECT };
static const char *kind;
static bool alone; /* without the drop-in, which sees the calls */

static const struct step {
	enum call call;
	int how;
} dontfork = { MADVISE, MADV_DONTFORK }, dofork = { MADVISE, MADV_DOFORK }, wipe = { MADVISE, MADV_WIPEONFORK },
  keep = { MADVISE, MADV_KEEPONFORK }, dontdump = { MADVISE, MADV_DONTDUMP }, dodump = { MADVISE, MADV_DODUMP },
  none = { MPROTECT, PROT_NONE }, read_only = { MPROTECT, PROT_READ }, writable = { MPROTECT, PROT_READ | PROT_WRITE },
  guard = { MADVISE, MADV_GUARD_INSTALL }, unguard = { MADVISE, MADV_GUARD_REMOVE };

static const struct {
	const char *name;
	const struct step *steps[3];
} cases[] = {
	{ "DONTFORK", { &dontfork } },
	{ "DONTFORK, DOFORK", { &dontfork, &dofork } },
	{ "WIPEONFORK", { &wipe } },
	{ "WIPEONFORK, KEEPONFORK", { &wipe, &keep } },
	{ "DONTDUMP", { &dontdump } },
	{ "DONTDUMP, DODUMP", { &dontdump, &dodump } },
	{ "DONTDUMP, WIPEONFORK", { &dontdump, &wipe } },
	{ "PROT_NONE", { &none } },
	{ "PROT_NONE, PROT_READ", { &none, &read_only } },
	{ "PROT_READ, PROT_READ | PROT_WRITE", { &read_only, &writable } },
	{ "PROT_NONE, DONTFORK", { &none, &dontfork } },
	{ "GUARD_INSTALL", { &guard } },
	{ "GUARD_INSTALL, GUARD_REMOVE", { &guard, &unguard } },
};

static const struct {
	const char *name;
	size_t from, len;
} ranges[] = {
	{ "all", 0, SIZE },
	{ "a part", HUGE + PART, PART },
	{ "a hugepage", HUGE, HUGE },
	{ "from a part to a part", PART, SIZE - 2 * PART },
	{ "a page", SIZE - 4096, 4096 },
};

/* The checked places: inside and outside of each part. */
static const size_t spots[] = { 0, PART, HUGE - 4096, HUGE, HUGE + PART, HUGE + 2 * PART - 1, HUGE + 2 * PART, 2 * HUGE, SIZE - PART,
				SIZE - 4096, SIZE - 1 };
enum { SPOTS = sizeof spots / sizeof *spots };

/* ------------------------------------------------------------------ what is seen */

enum { HIDDEN = 0x100, NO_WRITE = 0x200 };
struct view {
	int byte[SPOTS]; /* a byte's value or HIDDEN; NO_WRITE may be added */
	char flags[SPOTS][16]; /* flags from VmFlags, if there is a mapping */
};

static struct seen {
	int results[3];
	struct view parent, child, grandchild, second; /* second: a second child of the parent */
} *shared; /* shared with the children */

/* Read the flags dc, wf, dd and lo of each spot. */
static void look_at_flags(const unsigned char *p, struct view *v)
{
	static char text[1 << 16];
	uintptr_t start = 0, end = 0;
	size_t have = 0;
	ssize_t got;
	int fd = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC);

	while (fd >= 0 && (got = read(fd, text + have, sizeof text - 1 - have)) > 0) {
		char *line = text, *stop;

		have += (size_t)got;
		text[have] = 0;
		for (; (stop = strchr(line, '\n')); line = stop + 1) {
			uintptr_t a, b;

			*stop = 0;
			if (sscanf(line, "%lx-%lx ", &a, &b) == 2) {
				start = a;
				end = b;
			}
			if (strncmp(line, "VmFlags:", 8))
				continue;
			for (int i = 0; i < SPOTS; i++) {
				uintptr_t at = (uintptr_t)p + spots[i];

				if (at < start || at >= end)
					continue;
				for (const char *f = " dc\0 wf\0 dd\0 lo\0"; *f; f += 4)
					if (strstr(line, f))
						strcat(v->flags[i], f);
			}
		}
		have = (size_t)(text + have - line);
		memmove(text, line, have);
	}
	close(fd);
}

enum { TRIES = 20, DISTURBED = 77, FREE_LEAST = 8 };
/* Other processes took what is needed here of the 40 pages that were free. Shared with the children. */
static bool *pool_was_short;

/* Called where something fails as it does with an empty pool. The heap counts the pages that the kernel refused. */
static void note_pool(void)
{
	struct hugepin_stats s = { 0 };

	hugepin_stats(&s, sizeof s);
	if (!strcmp(kind, "hugetlb") && (pool_free() < FREE_LEAST || s.pool_short || s.pool_denied))
		*pool_was_short = true;
}

/* Read and write each spot by system calls, so that a failure does not kill the process. */
static void look(unsigned char *p, struct view *v)
{
	int pipes[2];

	memset(v, 0, sizeof *v);
	if (pipe2(pipes, O_CLOEXEC))
		_exit(90);
	look_at_flags(p, v);
	for (int i = 0; i < SPOTS; i++) {
		unsigned char c = 0;

		if (write(pipes[1], p + spots[i], 1) != 1) {
			v->byte[i] = HIDDEN;
			v->flags[i][0] = 0;
			note_pool();
			continue;
		}
		if (read(pipes[0], &c, 1) != 1)
			_exit(91);
		v->byte[i] = c;
		if (write(pipes[1], &c, 1) != 1)
			_exit(92);
		if (read(pipes[0], p + spots[i], 1) != 1) {
			v->byte[i] |= NO_WRITE;
			note_pool();
			if (read(pipes[0], &c, 1) != 1)
				_exit(93);
		}
	}
	close(pipes[0]);
	close(pipes[1]);
}

static int do_step(const struct step *s, void *p, size_t len, bool raw)
{
	int r;

	if (raw)
		r = (int)syscall(s->call == MADVISE ? SYS_madvise : SYS_mprotect, p, len, s->how);
	else
		r = s->call == MADVISE ? madvise(p, len, s->how) : mprotect(p, len, s->how);
	return r ? errno : 0;
}

/* Wait for a child without polling, since there are thousands. An alarm ends a child that hangs. */
static bool ended_well(pid_t pid)
{
	int status;

	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static void in_child(unsigned char *p, struct view *child, struct view *grandchild)
{
	pid_t pid = fork();

	if (pid == 0) {
		pid_t next;

		look(p, child);
		if (!grandchild)
			_exit(0);
		next = fork();
		if (next == 0) {
			look(p, grandchild);
			_exit(0);
		}
		_exit(!ended_well(next));
	}
	EXPECT(ended_well(pid));
}

/* Advise, fork, look; fork again. */
static struct seen observe(unsigned char *p, size_t c, size_t r, bool raw)
{
	memset(shared, 0, sizeof *shared);
	for (int i = 0; i < 3 && cases[c].steps[i]; i++)
		shared->results[i] = do_step(cases[c].steps[i], p + ranges[r].from, ranges[r].len, raw);
	in_child(p, &shared->child, &shared->grandchild);
	look(p, &shared->parent);
	in_child(p, &shared->second, NULL);
	return *shared;
}

static bool same_view(const char *who, const struct view *ours, const struct view *plain)
{
	for (int i = 0; i < SPOTS; i++) {
		if (ours->byte[i] != plain->byte[i])
			return T_FAIL("  %s, at %zu: sees %#x, of a plain mapping %#x", who, spots[i], ours->byte[i], plain->byte[i]);
		if (strcmp(ours->flags[i], plain->flags[i]))
			return T_FAIL("  %s, at %zu: VmFlags %s; of a plain mapping %s", who, spots[i], ours->flags[i],
				      plain->flags[i]);
	}
	return true;
}

static void same(const char *how, size_t c, size_t r, const struct seen *ours, const struct seen *plain)
{
	bool ok = true;

	for (int i = 0; i < 3; i++)
		if (ours->results[i] != plain->results[i])
			ok = T_FAIL("  call %d: errno %d; of a plain mapping %d", i, ours->results[i], plain->results[i]);
	ok &= same_view("the parent", &ours->parent, &plain->parent);
	ok &= same_view("its child", &ours->child, &plain->child);
	ok &= same_view("a grandchild", &ours->grandchild, &plain->grandchild);
	ok &= same_view("a second child", &ours->second, &plain->second);
	if (!ok)
		t_print("# ^ %s, %s, %s of a buffer, %s\n", kind, cases[c].name, ranges[r].name, how);
}

/* ------------------------------------------------------------------ memory */

static unsigned char *plain_new(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	unsigned char *p;

	if (!strcmp(kind, "hugetlb")) {
		p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags | MAP_POOL, -1, 0);
		if (p == MAP_FAILED)
			note_pool();
		return p == MAP_FAILED ? NULL : memset(p, SECRET, SIZE);
	}
	p = mmap(NULL, SIZE + HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	/* A gap on either side keeps the kernel from merging the mapping with its neighbours. */
	unsigned char *at = (unsigned char *)(((uintptr_t)p + HUGE - 1) & ~(uintptr_t)(HUGE - 1));

	munmap(p, (size_t)(at - p));
	munmap(at + SIZE, (size_t)(p + HUGE - at));
	madvise(at, SIZE, strcmp(kind, "thp") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
	return memset(at, SECRET, SIZE);
}

static unsigned char *ours_new(void)
{
	unsigned char *p = hugepin_aligned_alloc(HUGE, SIZE);
	struct hugepin_extent e;

	if (!p || hugepin_extent(p, &e, sizeof e) < 0)
		return NULL;
	/* Advice for a part splits hugepages, except those of the pool. */
	if (!EXPECT_EQ(e.kind == HUGEPIN_KIND_HUGETLB, !strcmp(kind, "hugetlb")))
		note_pool();
	return memset(p, SECRET, SIZE);
}

/* ------------------------------------------------------------------ pinned */

/* Calls madvise as libibverbs does after ibv_fork_init() on kernels before 5.12. The domain decides what children get
 * of registered memory, so these calls must have no effect. */
static int reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx;
	(void)access;
	*ret_ = (struct hugepin_reg){ .cookie = (uintptr_t)addr, .lkey = (uint32_t)(len >> 12), .rkey = 1 };
	return madvise(addr, len, MADV_DONTFORK) || madvise((char *)addr + 4096, 4096, MADV_DONTFORK) ? -EIO : 0;
}

static int dereg(void *ctx, struct hugepin_reg *r)
{
	(void)ctx;
	return madvise((void *)(uintptr_t)r->cookie, (size_t)r->lkey << 12, MADV_DOFORK) ? -EIO : 0;
}

static int limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	(void)ret_;
	return 0;
}

static hugepin_domain *domain;

static void open_domain(uint32_t how)
{
	static const struct hugepin_backend backend = { .size = sizeof backend, .name = "none", .reg = reg, .dereg = dereg,
							.limits = limits };
	const struct hugepin_attr attr = { .size = sizeof attr, .fork = how };

	EXPECT_EQ(hugepin_domain_open(&backend, NULL, &attr, &domain), 0);
}

/* ------------------------------------------------------------------ cases */

static void one_case(size_t c, size_t r, const char *how)
{
	static struct seen ours, plain, fresh;
	struct hugepin_pin pin = { .ref = 0 };
	unsigned char *p = plain_new(), *q;

	if (!EXPECT(p))
		return;
	plain = observe(p, c, r, true);
	munmap(p, SIZE);
	p = ours_new();
	if (!EXPECT(p))
		return;
	if (domain)
		EXPECT_EQ(hugepin_pin(domain, p, SIZE, 0, &pin), 0);
	ours = observe(p, c, r, false);
	same(how, c, r, &ours, &plain);
	if (domain)
		hugepin_unpin(domain, &pin);

	/* The next owner of the memory must not inherit the state. If the calls were not seen (alone), the program has
	 * to undo them itself. */
	for (int i = 0; alone && i < 3 && cases[c].steps[i]; i++) {
		const struct step *undo = cases[c].steps[i] == &dontfork    ? &dofork
					  : cases[c].steps[i] == &wipe	    ? &keep
					  : cases[c].steps[i] == &dontdump ? &dodump
									    : &writable;

		do_step(undo, p + ranges[r].from, ranges[r].len, true);
	}
	hugepin_free(p);
	q = ours_new();
	EXPECT(q == p); /* otherwise the test shows nothing */
	memset(&fresh, 0, sizeof fresh);
	for (int i = 0; i < SPOTS; i++)
		fresh.parent.byte[i] = SECRET;
	fresh.child = fresh.parent;
	memset(shared, 0, sizeof *shared);
	in_child(q, &shared->child, NULL);
	look(q, &shared->parent);
	ours = *shared;
	if (t_failures == 0)
		same("freed, and had by malloc again", c, r, &ours, &fresh);
	hugepin_free(q);
}

/* Memory that is withheld from children costs no copy, and no page of the pool. */
static void what_is_withheld_is_not_copied(void)
{
	struct hugepin_stats before, after;
	unsigned char *p = ours_new();
	struct view v;

	EXPECT_EQ(madvise(p, SIZE, MADV_DONTFORK), 0);
	hugepin_stats(&before, sizeof before);
	in_child(p, &shared->child, &shared->grandchild);
	hugepin_stats(&after, sizeof after);
	EXPECT(after.fork_copied_bytes - before.fork_copied_bytes < SIZE);
	v = shared->child;
	for (int i = 0; i < SPOTS; i++)
		EXPECT_EQ(v.byte[i], HIDDEN);
	hugepin_free(p);
}

/* ------------------------------------------------------------------ locks */

static size_t locked_kb(void)
{
	char text[4096] = "";
	int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	ssize_t got = read(fd, text, sizeof text - 1);
	const char *at = strstr(text, "VmLck:");

	close(fd);
	return got > 0 && at ? strtoul(at + 6, NULL, 10) : SIZE_MAX;
}

/* The kernel does not count pages of the pool as locked, since they are never swapped. */
static void locks_end_with_the_buffer(void)
{
	size_t unit = strcmp(kind, "hugetlb") ? 1 : 0;
	unsigned char *p = ours_new(), *q = ours_new();

	EXPECT_EQ(locked_kb(), 0);
	EXPECT_EQ(mlock(p + PART, PART), 0);
	EXPECT_EQ(mlock2(q, SIZE / 2, MLOCK_ONFAULT), 0);
	EXPECT_EQ(locked_kb(), unit * (PART + SIZE / 2) / 1024);
	hugepin_free(p);
	EXPECT_EQ(locked_kb(), unit * SIZE / 2 / 1024);
	EXPECT_EQ(munlock(q, HUGE), 0);
	EXPECT_EQ(locked_kb(), unit * (SIZE / 2 - HUGE) / 1024);
	q = hugepin_realloc(q, SIZE - HUGE / 2);
	EXPECT_EQ(locked_kb(), unit * (SIZE / 2 - HUGE) / 1024);
	for (int i = 2; i < 6; i++) {
		q = hugepin_realloc(q, (size_t)i * SIZE);
		EXPECT_EQ(locked_kb(), unit * (SIZE / 2 - HUGE) / 1024);
	}
	q = hugepin_realloc(q, HUGE + PART);
	EXPECT_EQ(locked_kb(), unit * PART / 1024);
	q = hugepin_realloc(q, 100);
	EXPECT_EQ(locked_kb(), 0);
	hugepin_free(q);
}

/* With a domain of the mlock backend, whose registrations are wider than the pinned range, and last longer. */
static void locks_of_the_program_and_of_pins_do_not_undo_each_other(void)
{
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_NONE };
	size_t unit = strcmp(kind, "hugetlb") ? 1 : 0;
	unsigned char *p = ours_new(), *other = plain_new();
	struct hugepin_pin pin;
	hugepin_domain *d;

	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, &attr, &d), 0);
	EXPECT_EQ(mlock(p + PART, PART), 0);
	EXPECT_EQ(mlock(other, SIZE / 2), 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(hugepin_pin(d, p, SIZE, 0, &pin), 0);
		EXPECT_EQ(locked_kb(), unit * (SIZE + SIZE / 2) / 1024);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(locked_kb(), unit * (PART + SIZE / 2) / 1024);
		EXPECT_EQ(hugepin_pin(d, other, SIZE, 0, &pin), 0);
		EXPECT_EQ(locked_kb(), unit * (PART + SIZE) / 1024);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(locked_kb(), unit * (PART + SIZE / 2) / 1024);
	}
	EXPECT_EQ(hugepin_pin(d, p, SIZE, 0, &pin), 0);
	hugepin_free(p); /* registered memory stays locked */
	EXPECT_EQ(locked_kb(), unit * (SIZE + SIZE / 2) / 1024);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(locked_kb(), unit * (SIZE / 2) / 1024);
	EXPECT_EQ(munlock(other, SIZE), 0);
	EXPECT_EQ(locked_kb(), 0);
	munmap(other, SIZE);
	hugepin_domain_close(d);
}

/* Whether any expectation failed since the last call. */
static bool has_failed(void)
{
	bool failed = t_failures;

	if (failed)
		note_pool();
	t_failures = 0;
	return failed;
}

static int run_cases(const char *how)
{
	size_t all = sizeof ranges / sizeof *ranges, ranges_count = !strcmp(how, "not pinned") ? all : 2;
	unsigned char *last;
	int failed = 0;

	open_domain(!strcmp(how, "copied") ? HUGEPIN_FORK_COPY : HUGEPIN_FORK_COW);
	if (!strcmp(how, "not pinned")) {
		hugepin_domain_close(domain);
		domain = NULL;
	}
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pool_was_short = mmap(NULL, sizeof *pool_was_short, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	t_failures = 0;
	if (!alone)
		what_is_withheld_is_not_copied();
	last = ours_new(); /* the heap keeps its size, and, as some of it is advised, fork moves none of it to other memory */
	EXPECT_EQ(madvise(last, HUGE, MADV_DONTDUMP), 0);
	hugepin_free(ours_new());
	if (!domain && !alone) {
		locks_end_with_the_buffer();
		locks_of_the_program_and_of_pins_do_not_undo_each_other();
	}
	failed += has_failed();
	/* smaps says nothing of guards. */
	for (size_t c = 0; c < sizeof cases / sizeof *cases && !(alone && cases[c].steps[0] == &guard); c++)
		for (size_t r = 0; r < ranges_count; r++) {
			one_case(c, r, how);
			failed += has_failed();
		}
	hugepin_free(last);
	return !failed ? 0 : *pool_was_short ? DISTURBED : 1;
}

static void spawn_with(const char *what, const char *how, bool without)
{
	char *args[] = { (char *)"secrets", (char *)"--kind", (char *)what, (char *)how, NULL };
	char *preload = getenv("LD_PRELOAD");
	int status = DISTURBED;
	pid_t pid;

	for (int i = 0; i < TRIES && status == DISTURBED && (!i || pool_has(40)); i++) {
		setenv("HUGEPIN_PAGES", what, 1);
		/* The heap keeps what is free, however long the cases take: after two forks new memory is not the pool's. */
		setenv("HUGEPIN_DECAY", "0", 1);
		if (without)
			unsetenv("LD_PRELOAD");
		EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ), 0);
		unsetenv("HUGEPIN_PAGES");
		unsetenv("HUGEPIN_DECAY");
		if (preload)
			setenv("LD_PRELOAD", preload, 1);
		status = child_wait(pid);
	}
	if (status == DISTURBED)
		SKIP("each time others took the pages of the pool");
	EXPECT_EQ(status, 0);
}

static void spawn(const char *what, const char *how)
{
	spawn_with(what, how, false);
}

TEST(advice_holds_on_pages_of_the_pool)
{
	NEEDS_POOL(40);
	spawn("hugetlb", "not pinned");
}

TEST(advice_holds_on_pinned_pages_of_the_pool)
{
	NEEDS_POOL(40);
	spawn("hugetlb", "copied");
	spawn("hugetlb", "left to the kernel");
}

TEST_CASE(advice_holds_on_thp, spawn("thp", "not pinned"))

TEST(advice_holds_on_pinned_thp)
{
	spawn("thp", "copied");
	spawn("thp", "left to the kernel");
}

TEST_CASE(advice_holds_on_base_pages, spawn("base", "not pinned"))

TEST(advice_holds_on_pinned_base_pages)
{
	spawn("base", "copied");
	spawn("base", "left to the kernel");
}

TEST(without_the_drop_in_it_holds_in_children_that_get_a_copy)
{
	spawn_with("thp", "copied", true);
	spawn_with("base", "copied", true);
	if (pool_free() >= 40)
		spawn_with("hugetlb", "not pinned", true);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "--kind")) {
		kind = argv[2];
		alone = !getenv("LD_PRELOAD");
		alarm(t_seconds());
		return run_cases(argv[3]);
	}
	return t_run(argc, argv);
}
