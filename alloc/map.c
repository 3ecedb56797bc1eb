#include "alloc/map.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/lock.h"
#include "hugepin.h"

#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/"

static int advise(uintptr_t at, size_t len, int advice)
{
	int saved = errno, r;

	HP_ASSERT(!hp_lock_mine(&hp_heap_lock));
	do {
		r = madvise((void *)at, len, advice) ? -errno : 0;
	} while (r == -EINTR || (r == -EAGAIN && advice != MADV_POPULATE_WRITE));
	errno = saved;
	return r;
}

int hp_map_reserve(size_t size, size_t align, uintptr_t *ret_base)
{
	int saved = errno;
	/* Without access nothing is charged, so MAP_NORESERVE is not needed; with it, the access given later would escape the
	 * overcommit policy. */
	void *p = mmap(NULL, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uintptr_t got = (uintptr_t)p, base = hp_round_up(got, align);

	errno = saved;
	if (p == MAP_FAILED)
		return -ENOMEM;
	if (base > got)
		munmap(p, base - got);
	if (got + align > base)
		munmap((void *)(base + size), got + align - base);
	/* Else gdb's gcore writes the whole span. */
	advise(base, size, MADV_DONTDUMP);
	errno = saved;
	*ret_base = base;
	return 0;
}

int hp_map_hugetlb(uintptr_t at, size_t len)
{
	int saved = errno, r = 0;
	void *p;

	HP_ASSERT(!hp_lock_mine(&hp_heap_lock));
	/* Somewhere else first: a MAP_FIXED that the pool refuses has already unmapped what was there, and another thread's
	 * mapping may land in the hole before we can fill it. */
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);
	if (p == MAP_FAILED) {
		r = -errno;
	} else if (mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)at) == MAP_FAILED) {
		r = -errno;
		munmap(p, len);
		hp_map_release(at, len); /* the target may be unmapped by now */
	}
	errno = saved;
	return r;
}

int hp_map_normal(uintptr_t at, size_t len, bool thp)
{
	int saved = errno;

	HP_ASSERT(!hp_lock_mine(&hp_heap_lock));
	/* Access to what is reserved, not a mapping over it: when refused, it leaves no hole either. */
	if (mprotect((void *)at, len, PROT_READ | PROT_WRITE) != 0) {
		int r = -errno;

		errno = saved;
		hp_map_release(at, len); /* a part may have got it: there are several mappings in the range */
		return r;
	}
	advise(at, len, MADV_DODUMP);
	return thp && advise(at, len, MADV_HUGEPAGE) == 0 ? HUGEPIN_KIND_THP : HUGEPIN_KIND_BASE;
}

int hp_map_populate(uintptr_t at, size_t len)
{
	return advise(at, len, MADV_POPULATE_WRITE);
}

int hp_map_release(uintptr_t at, size_t len)
{
	int saved = errno, r = 0;

	HP_ASSERT(!hp_lock_mine(&hp_heap_lock));
	if (mmap((void *)at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		r = -errno;
	else
		advise(at, len, MADV_DONTDUMP);
	errno = saved;
	return r;
}

static uint64_t read_number(const char *path)
{
	char buf[32];

	return hp_read_file(path, buf, sizeof buf) > 0 ? hp_number_after(buf, "", 0) : 0;
}

size_t hp_map_pool_free(void)
{
	uint64_t free = read_number(POOL "free_hugepages"), reserved = read_number(POOL "resv_hugepages");

	return free > reserved ? free - reserved : 0;
}

bool hp_map_thp_enabled(void)
{
	char buf[64];

	return hp_read_file("/sys/kernel/mm/transparent_hugepage/enabled", buf, sizeof buf) > 0 &&
	       !strstr(buf, "[never]");
}

size_t hp_map_count_max(void)
{
	size_t n = read_number("/proc/sys/vm/max_map_count");

	return n ? n : 65530;
}
