/* link: hugepin */
/* The functions of hugepin.h beyond malloc's: extents, watchers, purging, statistics; and their errors for wrong
 * arguments. */
#include "live.h"
#include "watched.h"

#include <dlfcn.h>
#include <hugepin.h>

/* ------------------------------------------------------------------ allocation */

TEST(the_library_leaves_the_programs_malloc_alone)
{
	Dl_info info;
	void *ours = dlsym(RTLD_DEFAULT, "hugepin_malloc"), *theirs = dlsym(RTLD_DEFAULT, "malloc");
	EXPECT(ours && dladdr(ours, &info) && strstr(info.dli_fname, "libhugepin.so"));
	EXPECT(theirs && dladdr(theirs, &info) && !strstr(info.dli_fname, "libhugepin"));
	EXPECT_EQ(hugepin_version(), HUGEPIN_VERSION);
}

TEST(small_and_large_buffers_come_from_one_family)
{
	for (size_t n = 1; n < 200 * MIB; n = n * 3 + 1) {
		char *p = hugepin_malloc(n);
		if (!EXPECT(p))
			continue;
		EXPECT(hugepin_usable_size(p) >= n);
		pattern_write(p, n, n);
		char *q = hugepin_realloc(hide(p), n * 2);
		if (EXPECT(q))
			EXPECT_EQ(pattern_check(q, n / 8 * 8, n), -1);
		errno = 88;
		hugepin_free(q);
		EXPECT_EQ(errno, 88);
		q = hugepin_calloc(3, n);
		EXPECT(q && zero_check(q, 3 * n) == -1);
		hugepin_free(q);
	}
	hugepin_free(NULL);
	EXPECT_EQ(hugepin_usable_size(NULL), 0);
	void *p = hugepin_malloc(100000), *z = hugepin_malloc(0);
	EXPECT(z);
	hugepin_free(z);
	EXPECT(!hugepin_realloc(p, 0));
}

TEST(impossible_requests_give_null_and_enomem)
{
	static volatile const size_t n[] = { SIZE_MAX, SIZE_MAX - 4096, (size_t)PTRDIFF_MAX + 1, (size_t)1 << 60 };
	for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
		char *keep = hugepin_malloc(50000);
		pattern_write(keep, 50000, i);
		errno = 0;
		EXPECT(!hugepin_malloc(n[i]) && errno == ENOMEM);
		errno = 0;
		EXPECT(!hugepin_calloc(n[i], 1) && errno == ENOMEM);
		errno = 0;
		EXPECT(!hugepin_calloc(n[i], n[i]) && errno == ENOMEM);
		errno = 0;
		EXPECT(!hugepin_aligned_alloc(64, n[i]) && errno == ENOMEM);
		errno = 0;
		EXPECT(!hugepin_realloc(hide(keep), n[i]) && errno == ENOMEM);
		EXPECT_EQ(pattern_check(hide(keep), 50000, i), -1);
		hugepin_free(hide(keep));
	}
}

TEST(alignments_are_powers_of_two)
{
	static volatile const size_t bad[] = { 0, 3, 24, 4095, 3 * MIB, SIZE_MAX };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		errno = 0;
		EXPECT(!hugepin_aligned_alloc(bad[i], 100) && errno == EINVAL);
		errno = 0;
		EXPECT(!hugepin_aligned_alloc(bad[i], 100000) && errno == EINVAL);
	}
	for (size_t align = 1; align <= GIB; align *= 2)
		for (size_t n = 1; n < 5 * MIB; n = n * 200 + 1) {
			char *p = hugepin_aligned_alloc(align, n);
			if (!EXPECT(p && (uintptr_t)p % align == 0))
				continue;
			memset(p, 1, n);
			struct hugepin_extent e;
			int r = hugepin_extent(p, &e, sizeof e);
			/* from 32 KiB on, of size or of alignment, the heap serves the request */
			EXPECT((r > 0) == (n >= HUGEPIN_LARGE_MIN || align >= HUGEPIN_LARGE_MIN));
			hugepin_free(p);
		}
}

/* ------------------------------------------------------------------ extents */

TEST(an_extent_holds_the_whole_buffer)
{
	static const size_t sizes[] = { HUGEPIN_LARGE_MIN, 100000, MIB, 2 * MIB + 1, 40 * MIB, 65 * MIB, 300 * MIB };
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		char *p = hugepin_malloc(sizes[i]);
		struct hugepin_extent e, f;
		if (!EXPECT(p))
			continue;
		memset(p, 1, sizes[i]);
		memset(&e, 0xff, sizeof e);
		EXPECT_EQ(hugepin_extent(p, &e, sizeof e), sizeof e);
		EXPECT((char *)e.addr <= p && p + sizes[i] <= (char *)e.addr + e.len);
		EXPECT((uintptr_t)e.addr % PAGE == 0 && e.len % PAGE == 0);
		EXPECT(e.kind <= HUGEPIN_KIND_HUGETLB);
		EXPECT_EQ(e.page_shift, e.kind == HUGEPIN_KIND_HUGETLB ? 21 : __builtin_ctzl((unsigned long)sysconf(_SC_PAGESIZE)));
		EXPECT_EQ(e.node, -1);
		EXPECT_EQ(hugepin_extent(p + sizes[i] - 1, &f, sizeof f), sizeof f);
		EXPECT(f.addr == e.addr && f.len == e.len && f.gen == e.gen && f.kind == e.kind);
		struct kinds k = smaps_kinds(0, (uintptr_t)p, (uintptr_t)p + sizes[i]);
		if (e.kind == HUGEPIN_KIND_HUGETLB)
			EXPECT(k.hugetlb && !k.thp && !k.base);
		hugepin_free(p);
	}
}

TEST(pointers_outside_the_heap_have_no_extent)
{
	struct hugepin_extent e, was;
	static char global[100];
	char *small = hugepin_malloc(100), *large = hugepin_malloc(MIB);
	memset(&e, 0x5a, sizeof e);
	was = e;
	EXPECT_EQ(hugepin_extent(small, &e, sizeof e), -ENOENT);
	EXPECT_EQ(hugepin_extent(global, &e, sizeof e), -ENOENT);
	EXPECT_EQ(hugepin_extent(&e, &e, sizeof e), -ENOENT);
	EXPECT_EQ(hugepin_extent(NULL, &e, sizeof e), -ENOENT);
	EXPECT_EQ(hugepin_extent((void *)UINTPTR_MAX, &e, sizeof e), -ENOENT);
	EXPECT_EQ(hugepin_extent(large + 100 * GIB / 10, &e, sizeof e), -ENOENT);
	EXPECT_EQ(hugepin_extent(large, NULL, sizeof e), -EINVAL);
	EXPECT_EQ(hugepin_extent(large, &e, 0), -EINVAL);
	EXPECT(!memcmp(&e, &was, sizeof e));
	hugepin_free(small);
	hugepin_free(large);
}

TEST(an_extent_is_written_as_far_as_the_caller_knows_it)
{
	unsigned char room[sizeof(struct hugepin_extent) + 32];
	char *p = hugepin_malloc(MIB);
	for (size_t n = 1; n <= sizeof room; n++) {
		memset(room, 0xee, sizeof room);
		EXPECT_EQ(hugepin_extent(p, (struct hugepin_extent *)(void *)room, n), sizeof(struct hugepin_extent));
		for (size_t i = n; i < sizeof room; i++)
			if (!EXPECT_EQ(room[i], 0xee))
				return;
		if (n == sizeof(struct hugepin_extent))
			EXPECT(*(void **)(void *)room <= (void *)p);
	}
	hugepin_free(p);
}

/* ------------------------------------------------------------------ watchers */

struct seen {
	_Atomic int calls;
	_Atomic size_t bytes;
	struct hugepin_extent last;
	bool nested; /* try the calls that a watcher may make, and those it must not */
	int id;
};

static void leaving(void *arg, const struct hugepin_extent *e)
{
	struct seen *s = arg;
	s->calls++;
	s->bytes += e->len;
	s->last = *e;
	*(volatile char *)e->addr = 1; /* the memory still exists during the callback */
	if (s->nested) {
		int id;
		struct hugepin_extent f;
		s->nested = false;
		EXPECT_EQ(hugepin_watch(leaving, arg, &id), -EDEADLK);
		EXPECT_EQ(hugepin_unwatch(s->id), -EDEADLK);
		EXPECT_EQ(hugepin_purge(), 0);
		EXPECT_EQ(hugepin_extent(e->addr, &f, sizeof f), sizeof f);
		EXPECT_EQ(f.gen, e->gen);
		char *p = hugepin_malloc(3 * MIB), *q = hugepin_malloc(90 * MIB);
		if (EXPECT(p && q))
			p[0] = q[0] = 1;
		hugepin_free(p);
		hugepin_free(q);
	}
}

/* Make free hugepages, and give them back. */
static void churn(size_t size)
{
	char *p = hugepin_malloc(size);
	if (EXPECT(p))
		memset(p, 1, size);
	hugepin_free(p);
	EXPECT_EQ(hugepin_purge(), 0);
}

TEST(a_watcher_hears_of_all_memory_before_it_leaves)
{
	struct seen s = { 0 };
	hugepin_purge();
	if (!EXPECT_EQ(hugepin_watch(leaving, &s, &s.id), 0))
		return;
	churn(20 * MIB);
	EXPECT(s.calls > 0);
	EXPECT(s.bytes >= 20 * MIB);
	EXPECT((uintptr_t)s.last.addr % PAGE == 0 && s.last.len % PAGE == 0 && s.last.len > 0);
	int calls = s.calls;
	EXPECT_EQ(hugepin_purge(), 0);
	EXPECT_EQ(s.calls, calls); /* no watcher is left */
	EXPECT_EQ(hugepin_unwatch(s.id), 0);
	churn(20 * MIB);
	EXPECT_EQ(s.calls, calls);
}

TEST(a_watcher_may_allocate_but_not_watch)
{
	struct seen s = { .nested = true };
	if (!EXPECT_EQ(hugepin_watch(leaving, &s, &s.id), 0))
		return;
	churn(20 * MIB);
	EXPECT(s.calls > 0 && !s.nested);
	EXPECT_EQ(hugepin_unwatch(s.id), 0);
}

TEST(a_pinned_extent_has_the_generation_that_leaves)
{
	struct seen s = { 0 };
	struct hugepin_extent e, f;
	if (!EXPECT_EQ(hugepin_watch(leaving, &s, &s.id), 0))
		return;
	char *p = hugepin_malloc(100 * MIB); /* the buffer gets an extent of its own */
	EXPECT_EQ(hugepin_extent(p, &e, sizeof e), sizeof e);
	memset(p, 1, 100 * MIB);
	hugepin_free(p);
	hugepin_purge();
	EXPECT_EQ(s.last.gen, e.gen);
	EXPECT(s.bytes >= 100 * MIB);
	p = hugepin_malloc(100 * MIB);
	EXPECT_EQ(hugepin_extent(p, &f, sizeof f), sizeof f);
	EXPECT(f.gen != e.gen);
	hugepin_free(p);
	EXPECT_EQ(hugepin_unwatch(s.id), 0);
}

/* Run in a child of fork whose RLIMIT_DATA is used up, so that no more memory can be made writable. */
static void without_data(void (*run)(void))
{
	const pid_t pid = fork();

	if (pid == 0) {
		t_failures = 0;
		run();
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
}

static void limit_data(bool on)
{
	static struct rlimit before;

	if (on)
		EXPECT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
	EXPECT_EQ(setrlimit(RLIMIT_DATA, on ? &(struct rlimit){ 4096, before.rlim_max } : &before), 0);
}

TEST_BY(without_data, under_a_limit_on_data_a_watch_is_refused_and_ends)
{
	struct seen s = { 0 }, other = { 0 };

	EXPECT_EQ(hugepin_watch(leaving, &s, &s.id), 0);
	limit_data(true);
	EXPECT_EQ(hugepin_watch(leaving, &other, &other.id), -ENOMEM);
	EXPECT_EQ(hugepin_unwatch(s.id), 0);
	EXPECT_EQ(hugepin_unwatch(s.id), -ENOENT);
	limit_data(false);
	churn(4 * MIB);
	EXPECT_EQ(s.calls, 0);
	EXPECT_EQ(hugepin_watch(leaving, &other, &other.id), 0);
	churn(4 * MIB);
	EXPECT(other.calls > 0 && s.calls == 0);
	EXPECT_EQ(hugepin_unwatch(other.id), 0);
}

TEST_BY(without_data, under_a_limit_on_data_a_domain_is_refused)
{
	hugepin_domain *d;

	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, NULL, &d), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	limit_data(true);
	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, NULL, &d), -ENOMEM);
	limit_data(false);
	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, NULL, &d), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

TEST(wrong_watches_are_refused)
{
	struct seen s = { 0 };
	int id[20], got = 0, other = 4711;
	EXPECT_EQ(hugepin_watch(NULL, &s, &other), -EINVAL);
	EXPECT_EQ(hugepin_watch(leaving, &s, NULL), -EINVAL);
	while (got < 20 && hugepin_watch(leaving, &s, &id[got]) == 0)
		got++;
	EXPECT_EQ(got, 16);
	EXPECT_EQ(hugepin_watch(leaving, &s, &other), -ENOSPC);
	EXPECT_EQ(other, 4711);
	for (int i = 0; i < got; i++)
		for (int j = 0; j < i; j++)
			EXPECT(id[i] != id[j]);
	churn(4 * MIB);
	EXPECT(s.calls % 16 == 0 && s.calls > 0); /* each watcher heard every event */
	for (int i = 0; i < got; i++)
		EXPECT_EQ(hugepin_unwatch(id[i]), 0);
	for (int i = 0; i < got; i++)
		EXPECT_EQ(hugepin_unwatch(id[i]), -ENOENT);
	EXPECT_EQ(hugepin_unwatch(-1), -ENOENT);
	EXPECT_EQ(hugepin_unwatch(1000000), -ENOENT);
	int calls = s.calls;
	churn(4 * MIB);
	EXPECT_EQ(s.calls, calls);
}

static _Atomic bool stop, inside;

static void linger(void *arg, const struct hugepin_extent *e)
{
	(void)arg, (void)e;
	inside = true;
	sleep_ms(50);
	inside = false;
}

static void *churn_on(void *arg)
{
	while (!stop)
		churn(4 * MIB);
	return arg;
}

TEST(unwatch_waits_for_a_callback_that_runs)
{
	pthread_t t;
	int id;
	stop = inside = false;
	if (!EXPECT_EQ(hugepin_watch(linger, NULL, &id), 0))
		return;
	EXPECT(!pthread_create(&t, NULL, churn_on, NULL));
	while (!inside)
		sleep_ms(1);
	EXPECT_EQ(hugepin_unwatch(id), 0);
	EXPECT(!inside);
	sleep_ms(100);
	EXPECT(!inside);
	stop = true;
	pthread_join(t, NULL);
}

/* ------------------------------------------------------------------ pins that do not wait */

static struct {
	_Atomic int told;
	int err;
	struct hugepin_pin pin;
} asked;

static void is_pinned(void *arg, int err, const struct hugepin_pin *pin)
{
	EXPECT(arg == &asked);
	asked.err = err;
	if (pin)
		asked.pin = *pin;
	asked.told++;
}

/* Heap memory stays registered, also where the kernel does not watch it. */
static const struct hugepin_attr unwatched = { .size = sizeof unwatched, .watch = HUGEPIN_WATCH_PROGRAM };

static void wait_until_told(int times)
{
	for (int i = 0; i < 20000 && asked.told < times; i++)
		usleep(1000);
	EXPECT_EQ(asked.told, times);
	EXPECT_EQ(asked.err, 0);
}

TEST(what_is_not_registered_is_pinned_meanwhile)
{
	char *p = hugepin_malloc(MIB);
	struct hugepin_pin pin;
	hugepin_domain *d = NULL;

	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, &unwatched, &d), 0);
	EXPECT_EQ(hugepin_pin_try(d, p, 0, 0, is_pinned, &asked, &pin), -EINVAL);
	EXPECT_EQ(hugepin_pin_try(d, p, MIB, 0, is_pinned, &asked, &pin), -EAGAIN);
	wait_until_told(1);
	EXPECT(asked.pin.base == (uintptr_t)p && asked.pin.len == MIB);
	EXPECT_EQ(hugepin_pin_try(d, p, MIB, 0, is_pinned, &asked, &pin), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_unpin(d, &asked.pin), 0);
	EXPECT_EQ(asked.told, 1);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	hugepin_free(p);
}

/* ------------------------------------------------------------------ backends */

static int called_in_reg, called_in_dereg;

static int asking_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)len, (void)access;
	called_in_reg = hugepin_registering();
	*ret_ = (struct hugepin_reg){ .lkey = 1 };
	return 0;
}

static int asking_dereg(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx, (void)reg;
	called_in_dereg = hugepin_registering();
	return 0;
}

static int asking_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE, .bytes_max = hugepin_memlock() };
	return 0;
}

TEST(a_backend_learns_that_it_is_called_and_how_much_it_may_pin)
{
	static const struct hugepin_backend backend = { .size = sizeof backend, .name = "asking", .reg = asking_reg,
							.dereg = asking_dereg, .limits = asking_limits };
	const size_t may_pin = hugepin_memlock();
	struct hugepin_domain_stats s = { 0 };
	struct hugepin_reg reg = { 0 };
	struct hugepin_pin pin;
	struct rlimit limit;
	hugepin_domain *d = NULL;
	char *p = hugepin_malloc(MIB);

	EXPECT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	EXPECT(may_pin <= limit.rlim_cur);
	EXPECT_EQ(hugepin_registering(), 0);
	EXPECT_EQ(hugepin_domain_open(&backend, NULL, NULL, &d), 0);
	EXPECT(hugepin_domain_stats(d, &s, sizeof s) > 0 && (!may_pin || s.bytes_max == may_pin));
	EXPECT_EQ(hugepin_pin_dmabuf(d, 0, 0, 4096, 0, 0, &pin), -EOPNOTSUPP);
	if (!may_pin || may_pin >= 8 * MIB) {
		EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &pin), 0);
		EXPECT_EQ(called_in_reg, 1);
		EXPECT_EQ(hugepin_pin_reg(d, &backend, &pin, &reg), 0);
		EXPECT_EQ(reg.lkey, 1);
		EXPECT_EQ(hugepin_pin_reg(d, hugepin_mlock(), &pin, &reg), -EINVAL);
		EXPECT_EQ(hugepin_registering(), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(called_in_dereg, called_in_reg);
	hugepin_free(p);
}

/* ------------------------------------------------------------------ held keys */

TEST(a_held_key_pins_again_until_its_registration_ends)
{
	char *p = hugepin_malloc(MIB);
	struct hugepin_key key = { .life = NULL };
	struct hugepin_pin pin;
	hugepin_domain *d = NULL;

	EXPECT_EQ(hugepin_key_pin(&key), -ENOKEY);
	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, &unwatched, &d), 0);
	EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &pin), 0);
	EXPECT_EQ(hugepin_key_take(d, &pin, HUGEPIN_KEY_LAYOUT, &key), 0);
	EXPECT(!memcmp(&key.pin, &pin, sizeof pin));
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_key_pin(&key), 0);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_key_unpin(&key), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(hugepin_key_pin(&key), -EINVAL);
	hugepin_free(p);
}

/* ------------------------------------------------------------------ pools */

TEST(a_pool_is_registered_and_pinned_until_it_is_deregistered)
{
	enum { BLOCKS = 8 };
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .pinned_bytes_max = UINT64_MAX,
				     .watch = WATCH_ANYHOW };
	struct hugepin_domain_stats s;
	struct hugepin_pin pins[BLOCKS], other;
	struct iovec v[BLOCKS];
	hugepin_domain *d = NULL;

	for (int i = 0; i < BLOCKS; i++)
		v[i] = (struct iovec){ hugepin_aligned_alloc(2 * MIB, 2 * MIB), 2 * MIB };
	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, &attr, &d), 0);
	EXPECT_EQ(hugepin_register(d, v, BLOCKS, HUGEPIN_REMOTE_READ, pins, BLOCKS), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_register(d, v, BLOCKS, 0, pins, BLOCKS), BLOCKS);
	EXPECT_EQ(hugepin_pin(d, (char *)v[2].iov_base + 5000, 100000, 0, &other), 0);
	EXPECT(hugepin_domain_stats(d, &s, sizeof s) > 0);
	EXPECT_EQ(s.registered, BLOCKS);
	EXPECT_EQ(hugepin_deregister(d, pins, BLOCKS), 0);
	EXPECT(hugepin_domain_stats(d, &s, sizeof s) > 0);
	EXPECT_EQ(s.pinned_bytes, 2 * MIB); /* what has another pin */
	EXPECT_EQ(hugepin_deregister(d, &other, 1), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	for (int i = 0; i < BLOCKS; i++)
		hugepin_free(v[i].iov_base);
}

/* ------------------------------------------------------------------ lending */

static struct {
	unsigned char bytes[8][HUGEPIN_LEND_MESSAGE_MAX];
	size_t len[8];
	unsigned first, count;
} post;
static struct hugepin_far borrowed;

static int post_message(void *arg, uint32_t peer, const void *msg, size_t len)
{
	(void)arg, (void)peer;
	if (!EXPECT(post.count < 8 && len <= HUGEPIN_LEND_MESSAGE_MAX))
		return -EAGAIN;
	memcpy(post.bytes[post.count], msg, len);
	post.len[post.count++] = len;
	return 0;
}

static void is_borrowed(void *arg, void *token, int err, const struct hugepin_far *key)
{
	(void)arg, (void)token;
	EXPECT_EQ(err, 0);
	if (key)
		borrowed = *key;
}

static int offer_buffer(void *buffer, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	(void)peer, (void)addr, (void)len;
	*ret_buffer = *(struct iovec *)buffer;
	return 0;
}

static int limits_of_remote_access(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ };
	return 0;
}

static struct hugepin_lend_stats hand_in_all(hugepin_lend *l)
{
	struct hugepin_lend_stats s = { 0 };

	for (; post.first < post.count; post.first++)
		EXPECT_EQ(hugepin_lend_message(l, 0, post.bytes[post.first], post.len[post.first]), 0);
	EXPECT_EQ(hugepin_lend_stats(l, 0, &s, sizeof s), sizeof s);
	return s;
}

/* The process lends to itself. */
TEST(a_borrowed_key_that_is_returned_goes_back_with_its_last_use)
{
	struct iovec buffer = { hugepin_malloc(MIB), MIB };
	struct hugepin_lend_attr attr = { .size = sizeof attr,
					  .peers = 1,
					  .access = HUGEPIN_REMOTE_READ,
					  .send = post_message,
					  .ready = is_borrowed,
					  .offer = offer_buffer };
	struct hugepin_backend backend = *hugepin_mlock();
	struct hugepin_far key, cleared = { 0 };
	struct hugepin_lend_stats s;
	hugepin_domain *d = NULL;
	hugepin_lend *l = NULL;

	backend.limits = limits_of_remote_access;
	EXPECT_EQ(hugepin_domain_open(&backend, NULL, NULL, &d), 0);
	if (!EXPECT_EQ(hugepin_lend_open(d, &attr, &buffer, &l), 0))
		return;
	EXPECT_EQ(hugepin_lend_key(l, 0, (uintptr_t)buffer.iov_base, 1, NULL, &key), 0);
	s = hand_in_all(l);
	EXPECT(borrowed.ref && s.lent == 1 && s.borrowed == 1);
	EXPECT_EQ(hugepin_lend_key(l, 0, (uintptr_t)buffer.iov_base + 5, 1, NULL, &key), 1);
	EXPECT_EQ(hugepin_lend_return(l, NULL), -EINVAL);
	EXPECT_EQ(hugepin_lend_return(NULL, &key), -EINVAL);
	EXPECT_EQ(hugepin_lend_return(l, &cleared), -EINVAL);
	EXPECT_EQ(hugepin_lend_return(l, &borrowed), 0);
	EXPECT(!borrowed.ref);
	s = hand_in_all(l);
	EXPECT(s.lent == 1 && s.borrowed == 1); /* while the other use is out */
	EXPECT_EQ(hugepin_lend_done(l, &key), 0);
	s = hand_in_all(l);
	EXPECT(!s.lent && !s.borrowed && !s.recalled);
	EXPECT_EQ(hugepin_lend_close(l), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	hugepin_free(buffer.iov_base);
}

/* ------------------------------------------------------------------ statistics */

TEST(pieces_of_the_heap_become_elements_under_one_key)
{
	char *p = hugepin_malloc(MIB), frame[256];
	struct iovec piece[] = { { p, 100 }, { p + 5000, 0 }, { p + 9000, 3 }, { p + 9003, 7 }, { p + MIB - 8, 8 } }, record;
	hugepin_domain *d = NULL;
	struct hugepin_pin whole, pins[5];
	struct hugepin_sge sge[5];
	struct hugepin_sg_info info;
	struct hugepin_sg_rx rx;
	uint64_t tag[5] = { 1, 2, 3, 4, 5 }, seen = 0, sum = 0;
	struct hugepin_attr attr = { .size = sizeof attr, .watch = WATCH_ANYHOW };

	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, &attr, &d), 0);
	EXPECT_EQ(hugepin_pin(d, p, MIB, HUGEPIN_READ, &whole), 0);
	EXPECT_EQ(hugepin_sg_map(piece, 5, HUGEPIN_READ, hugepin_sg_key, d, sge, 5, pins, 5, &info), 3);
	EXPECT_EQ(info.bytes, 118);
	EXPECT_EQ(info.pins, 1);
	EXPECT(sge[1].addr == (uintptr_t)p + 9000 && sge[1].length == 10 && sge[1].lkey == whole.lkey);
	EXPECT_EQ(hugepin_unpinv(d, pins, (int)info.pins), 0);
	EXPECT_EQ(hugepin_unpin(d, &whole), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);

	memset(p, 'x', MIB);
	EXPECT_EQ(hugepin_sg_frame(frame, sizeof frame, piece, tag, 5), HUGEPIN_SG_TABLE(5) + 118);
	EXPECT_EQ(hugepin_sg_iter(&rx, frame, HUGEPIN_SG_TABLE(5) + 118), 5);
	for (uint64_t t; hugepin_sg_next(&rx, &record, &t); seen++) {
		EXPECT_EQ(record.iov_len, piece[seen].iov_len);
		sum += t;
	}
	EXPECT(seen == 5 && sum == 15);
	hugepin_free(p);
}

TEST(statistics_follow_what_happens)
{
	struct hugepin_stats a, b, c;
	hugepin_purge();
	EXPECT_EQ(hugepin_stats(&a, sizeof a), sizeof a);
	EXPECT_EQ(a.version, HUGEPIN_VERSION);
	char *p = hugepin_malloc(30 * MIB);
	memset(p, 1, 30 * MIB);
	EXPECT_EQ(hugepin_stats(&b, sizeof b), sizeof b);
	EXPECT(b.taken_bytes >= a.taken_bytes + 30 * MIB);
	EXPECT(b.taken_peak_bytes >= b.taken_bytes);
	EXPECT(b.hugetlb_bytes + b.thp_bytes + b.base_bytes >= 30 * MIB);
	EXPECT(b.placed > a.placed);
	EXPECT(b.extents > 0 && b.threads > 0 && b.mappings > 0);
	hugepin_free(p);
	hugepin_purge();
	EXPECT_EQ(hugepin_stats(&c, sizeof c), sizeof c);
	EXPECT(c.taken_bytes <= a.taken_bytes);
	EXPECT(c.hugetlb_bytes + c.thp_bytes + c.base_bytes + 30 * MIB <= b.hugetlb_bytes + b.thp_bytes + b.base_bytes);
	EXPECT(c.purged_bytes >= b.purged_bytes + 30 * MIB);
	EXPECT(c.cleared > a.cleared);
	EXPECT(c.taken_peak_bytes >= b.taken_bytes);
	size_t size = 100 * KIB;
	p = hugepin_malloc(size);
	for (int i = 0; i < 200; i++)
		p = hugepin_realloc(p, size += 100 * KIB);
	EXPECT_EQ(hugepin_stats(&b, sizeof b), sizeof b);
	EXPECT(b.grown_in_place > c.grown_in_place);
	hugepin_free(p);
	errno = 0;
	EXPECT(!hugepin_malloc((size_t)1 << 50));
	EXPECT_EQ(hugepin_stats(&c, sizeof c), sizeof c);
	EXPECT(c.nomem > b.nomem);
}

TEST(statistics_are_written_as_far_as_the_caller_knows_them)
{
	unsigned char room[sizeof(struct hugepin_stats) + 32];
	EXPECT_EQ(hugepin_stats(NULL, sizeof room), -EINVAL);
	for (size_t n = 0; n <= sizeof room; n++) {
		memset(room, 0xee, sizeof room);
		EXPECT_EQ(hugepin_stats((struct hugepin_stats *)(void *)room, n), sizeof(struct hugepin_stats));
		for (size_t i = n < sizeof(struct hugepin_stats) ? n : sizeof(struct hugepin_stats); i < sizeof room; i++)
			if (!EXPECT_EQ(room[i], 0xee))
				return;
	}
}

TEST(another_process_can_read_the_statistics_page)
{
	int ready[2];
	char c = 0;
	char *p = hugepin_malloc(7 * MIB);
	if (!EXPECT(p && !pipe2(ready, O_CLOEXEC)))
		return;
	pid_t pid = fork();
	if (pid == 0) {
		char path[40];
		struct hugepin_stats_page page;
		void *there = dlsym(RTLD_DEFAULT, "hugepin_stats_page");
		if (read(ready[0], &c, 1) != 1)
			_exit(1);
		snprintf(path, sizeof path, "/proc/%d/mem", (int)getppid());
		int fd = open(path, O_RDONLY);
		if (fd < 0)
			_exit(errno == EACCES || errno == EPERM ? 77 : 2);
		if (pread(fd, &page, sizeof page, (off_t)(uintptr_t)there) != sizeof page)
			_exit(3);
		if (page.magic != HUGEPIN_STATS_MAGIC || page.size != sizeof page.stats)
			_exit(4);
		if (page.stats.version != HUGEPIN_VERSION)
			_exit(5);
		_exit(page.stats.taken_bytes >= 70 * MIB ? 0 : 6); /* this is the parent's page, not the child's */
	}
	char *q = hugepin_malloc(70 * MIB);
	EXPECT(write(ready[1], &c, 1) == 1);
	int status = child_wait(pid);
	hugepin_free(p);
	hugepin_free(q);
	close(ready[0]);
	close(ready[1]);
	if (status == 77)
		SKIP("no process may read another's memory here");
	EXPECT_EQ(status, 0);
}

LIVE_MAIN
