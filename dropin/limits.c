/*
 * Part of libhugepin-malloc.so: limits on addresses and data, which the program sets or was started with.
 */
#include <sys/resource.h>
#include <unistd.h>

#include "alloc/small.h"
#include "base/base.h"
#include "base/sys.h"
#include "dropin/dropin.h"
#include "dropin/jemalloc.h"

/* Make all of jemalloc's arenas now, by choosing each for this thread (2 MiB of addresses each). jemalloc 5.3 reads
 * through NULL if a thread's first request finds no memory for a new arena. A limit makes that likely. With another
 * allocator in its place, jemalloc mostly does not even start, and that allocator needs the memory. */
static void make_arenas(void)
{
	unsigned mine, all, i;
	size_t size = sizeof all;

	if (!hp_arena.jemalloc_below && !hp_jemalloc_started())
		return;
	if (mallctl("opt.narenas", &all, &size, NULL, 0) || mallctl("thread.arena", &mine, &size, NULL, 0))
		return;
	for (i = 0; i < all; i++)
		mallctl("thread.arena", NULL, NULL, &i, sizeof i);
	mallctl("thread.arena", NULL, NULL, &mine, sizeof mine);
}

static bool limits_memory(int resource, const struct rlimit *r)
{
	return r && r->rlim_cur != RLIM_INFINITY && (resource == RLIMIT_AS || resource == RLIMIT_DATA);
}

/* A program that limits its address space thinks of the memory that it uses, but we have reserved many times that. So
 * give up unused addresses, until the heap and the small tier together keep a quarter of the limit. */
static void limit_address_space(int resource, const struct rlimit *r)
{
	size_t each;

	/* A child of vfork uses our memory, but has its own limits. */
	if (!limits_memory(resource, r) || !hugepin_own_process_())
		return;
	make_arenas();
	if (resource != RLIMIT_AS)
		return;
	each = r->rlim_cur / 8 & ~(HP_PAGE - 1);
	hugepin_span_limit_(each);
	hp_arena_limit(each);
}

void hp_limits_look(void)
{
	struct rlimit r;

	if ((hp_limit(RLIMIT_AS, &r) == 0 && limits_memory(RLIMIT_AS, &r)) ||
	    (hp_limit(RLIMIT_DATA, &r) == 0 && limits_memory(RLIMIT_DATA, &r)))
		make_arenas();
}

EXPORT int setrlimit(__rlimit_resource_t resource, const struct rlimit *r)
{
	limit_address_space((int)resource, r);
	return (int)hp_sys_errno(hp_sys(SYS_prlimit64, 0, resource, r));
}

EXPORT int setrlimit64(__rlimit_resource_t resource, const struct rlimit64 *r)
{
	return setrlimit(resource, (const struct rlimit *)r); /* the struct is the same on every 64-bit Linux */
}

EXPORT int prlimit(pid_t pid, __rlimit_resource_t resource, const struct rlimit *r, struct rlimit *old)
{
	if (pid == 0 || pid == hp_pid())
		limit_address_space((int)resource, r);
	return (int)hp_sys_errno(hp_sys(SYS_prlimit64, pid, resource, r, old));
}

EXPORT int prlimit64(pid_t pid, __rlimit_resource_t resource, const struct rlimit64 *r, struct rlimit64 *old)
{
	return prlimit(pid, resource, (const struct rlimit *)r, (struct rlimit *)old);
}
