/* link: hugepin uring */
/*
 * Debian's jemalloc purges memory that io_uring had registered. Its extent hooks call hugepin_forget before: then the
 * memory is cached again when it is used again, and no key is stale.
 */
#include "stale.h"

#include <dlfcn.h>

/* jemalloc 5, as jemalloc(3) has them. */
typedef struct extent_hooks extent_hooks;
typedef bool purge_fn(extent_hooks *, void *addr, size_t size, size_t offset, size_t len, unsigned arena);
struct extent_hooks {
	void (*alloc)(void), (*dalloc)(void), (*destroy)(void), (*commit)(void), (*decommit)(void);
	purge_fn *purge_lazy, *purge_forced;
	void (*split)(void), (*merge)(void);
};

static int (*mallctl_fn)(const char *, void *, size_t *, void *, size_t);
static void *(*mallocx_fn)(size_t, int);
static void (*dallocx_fn)(void *, int);
static extent_hooks *defaults, hooks;
static int purges;

static void forget(void *addr, size_t offset, size_t len)
{
	purges++;
	EXPECT_EQ(hugepin_forget((char *)addr + offset, len), 0);
}

static bool purge_lazily(extent_hooks *h, void *addr, size_t size, size_t offset, size_t len, unsigned arena)
{
	forget(addr, offset, len);
	return defaults->purge_lazy(h, addr, size, offset, len, arena);
}

static bool purge_now(extent_hooks *h, void *addr, size_t size, size_t offset, size_t len, unsigned arena)
{
	forget(addr, offset, len);
	return defaults->purge_forced(h, addr, size, offset, len, arena);
}

/* jemalloc has to be there from the start, because of its thread-local variables. */
__attribute__((constructor)) static void preload(void)
{
	*(void **)&mallctl_fn = dlsym(RTLD_DEFAULT, "mallctl");
	*(void **)&mallocx_fn = dlsym(RTLD_DEFAULT, "mallocx");
	*(void **)&dallocx_fn = dlsym(RTLD_DEFAULT, "dallocx");
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* which have a malloc of their own */
	if (!mallctl_fn && !getenv("LD_PRELOAD")) {
		setenv("LD_PRELOAD", "libjemalloc.so.2", 1);
		execl("/proc/self/exe", "purged", (char *)NULL);
	}
#endif
}

/* The flags for an arena with those hooks, without the thread's cache, for whole pages. */
static int make_arena(unsigned *ret_)
{
	extent_hooks *own = &hooks;
	size_t len = sizeof defaults, arena_len = sizeof *ret_;

	EXPECT_EQ(mallctl_fn("arena.0.extent_hooks", &defaults, &len, NULL, 0), 0);
	hooks = *defaults;
	hooks.purge_lazy = purge_lazily;
	hooks.purge_forced = purge_now;
	EXPECT_EQ(mallctl_fn("arenas.create", ret_, &arena_len, &own, sizeof own), 0);
	return (int)((*ret_ + 1) << 20 | 1u << 8 | 12);
}

static uint64_t registrations(bool uncached)
{
	struct hugepin_domain_stats s;

	hugepin_domain_stats(domain, &s, sizeof s);
	return uncached ? s.uncached : s.registered;
}

static void purge_and_use_again(size_t len)
{
	char purge[64], *p, *before = NULL;
	unsigned arena;
	int flags = make_arena(&arena);

	snprintf(purge, sizeof purge, "arena.%u.purge", arena);
	for (int i = 0; i < 5; i++) {
		const uint64_t registered = registrations(false), uncached = registrations(true);

		p = mallocx_fn(len, flags);
		EXPECT(p && (!before || p == before)); /* used again */
		before = p;
		for (int j = 0; j < 3; j++)
			EXPECT(device_reaches(p, len, 0));
		EXPECT_EQ(registrations(false) - registered, 1);
		EXPECT_EQ(registrations(true), uncached);
		purges = 0;
		dallocx_fn(p, flags); /* which may purge what is long */
		EXPECT_EQ(mallctl_fn(purge, NULL, NULL, NULL, 0), 0);
		EXPECT(purges > 0);
	}
}

TEST(memory_that_jemalloc_has_purged_is_cached_again)
{
	if (!watched())
		SKIP("no userfaultfd");
	if (!mallctl_fn || !mallocx_fn || !dallocx_fn)
		SKIP("no libjemalloc.so.2");
	open_all(HUGEPIN_POLICY_LRU);
	/* Both: the watch of a long mapping does not end with its registrations. */
	purge_and_use_again(1 << 20);
	purge_and_use_again(24 << 20);
	EXPECT_EQ(hugepin_domain_close(domain), 0);
	io_uring_queue_exit(&ring);
	close(file);
}

T_MAIN
