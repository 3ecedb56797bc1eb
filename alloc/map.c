/* See map.h. */
#include "alloc/map.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "alloc/shard.h"
#include "alloc/hold.h"
#include "alloc/small.h"
#include "base/bits.h"
#include "base/config.h"
#include "base/map.h"
#include "base/sys.h"
#include "hugepin.h"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

/* The span lies at a random place among so many more addresses, 2^19 hugepages. The kernel's own randomness may be less
 * than that, by architecture, and the kernel places later mappings at a known distance from earlier ones. */
#define SPARE ((size_t)1 << 40)
enum { PLACES_TRIED = 16 };

/* The drop-in's munmap, madvise and mmap, and the functions that these call in turn. */
static struct {
	const void *own, *next;
} below[3];

void hugepin_calls_below_(const void *const *own, const void *const *next)
{
	for (int i = 0; i < 3; i++) {
		below[i].own = own[i];
		below[i].next = next[i];
	}
}

/* Whether a function begins with these bytes, as the C library's does. For a function of the drop-in: whether the
 * function that it calls begins with them. */
static bool is_plain(const void *function, const unsigned char *begin, size_t len)
{
	static const unsigned char endbr64[] = { 0xf3, 0x0f, 0x1e, 0xfa };
	const unsigned char *code = function;

	for (int i = 0; i < 3; i++)
		if (below[i].own == function && below[i].next)
			code = below[i].next;
	if (!memcmp(code, endbr64, sizeof endbr64))
		code += sizeof endbr64;
	return !memcmp(code, begin, len);
}

bool hp_map_hooked(void)
{
	/* The C library's wrapper is: mov $NUMBER, %eax; syscall. That of mmap first tests the offset: test $0xfff,
	 * %r9d. */
	static const unsigned char plain_munmap[] = { 0xb8, SYS_munmap, 0, 0, 0, 0x0f, 0x05 },
				   plain_madvise[] = { 0xb8, SYS_madvise, 0, 0, 0, 0x0f, 0x05 },
				   plain_mmap[] = { 0x41, 0xf7, 0xc1, 0xff, 0x0f, 0, 0 },
				   plain_mmap_saves[] = { 0x41, 0x89, 0xca };
	const bool saves = is_plain((const void *)(uintptr_t)mmap, plain_mmap_saves, sizeof plain_mmap_saves);

	return !is_plain((const void *)(uintptr_t)munmap, plain_munmap, sizeof plain_munmap) ||
	       !is_plain((const void *)(uintptr_t)madvise, plain_madvise, sizeof plain_madvise) ||
	       !(saves || is_plain((const void *)(uintptr_t)mmap, plain_mmap, sizeof plain_mmap));
}

static int advise_mapping(uintptr_t at, size_t len, int advice)
{
	int err;

	HP_ASSERT(!hp_heap_mine());
	do {
		err = (int)hp_raw_madvise((void *)at, len, advice);
	} while (err == -EINTR || err == -EAGAIN);
	return err;
}

/* Whether the kernel gives this process the same addresses at each run (personality(2), as under gdb;
 * kernel.randomize_va_space). The topmost string on the stack then ends exactly where user addresses end. A system call
 * could ask the kernel, but a filter might not allow it. */
static bool is_reproducible(void)
{
	return hp_is_power_of_two((getauxval(AT_EXECFN) | 0x3fff) + 1);
}

static uint64_t random_number(void)
{
	uint64_t r;

	if (hp_sys(SYS_getrandom, &r, sizeof r, GRND_NONBLOCK) == sizeof r)
		return r;
	/* Early at boot, or behind a filter: use the stack's address and the time. */
	return ((uintptr_t)&r ^ hp_clock_ns() << 20) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Reserve len bytes at a random place below `top`, where the kernel would put them. Other reservations may be there, so
 * a few places are tried, each by SPARE below the one before, so that all low bits remain equally likely. Where the
 * kernel maps upwards, the small tier's reservation and libraries lie just below `top`. Returns the address, or
 * -errno. */
static long reserve_below(uintptr_t top, size_t len, size_t align)
{
	size_t below = 0;

	for (int tries = 0; tries < PLACES_TRIED; tries++) {
		long p = -ENOMEM;

		below = below && below + SPARE < top ?
				below + SPARE :
				len + ((random_number() >> 32) * (SPARE / align) >> 32 << __builtin_ctzll(align));
		if (below < top)
			p = hp_raw_mmap_near(top - below, len, PROT_NONE);
		if (p == (long)(top - below))
			return p;
		if (!hp_sys_failed(p))
			hp_raw_munmap((void *)p, len);
	}
	return hp_raw_mmap(len, PROT_NONE, 0);
}

int hp_map_reserve(size_t size, size_t align, uintptr_t *ret_base)
{
	const size_t len = size + align;
	uintptr_t base;
	long p;

	/* MAP_NORESERVE is not needed, because memory without access is charged to nobody. It would also let access
	 * that is given later escape the overcommit policy. */
	p = hp_raw_mmap(len, PROT_NONE, 0);
	if (!hp_sys_failed(p) && !is_reproducible()) {
		/* Only the place that the kernel has chosen tells where there is room. That place is given up first,
		 * since RLIMIT_AS may not allow both. */
		hp_raw_munmap((void *)p, len);
		p = reserve_below((uintptr_t)p, len, align);
	}
	if (hp_sys_failed(p))
		return -ENOMEM;
	base = hp_round_up((uintptr_t)p, align);
	if (base > (uintptr_t)p)
		hp_raw_munmap((void *)p, base - (uintptr_t)p);
	if ((uintptr_t)p + len > base + size)
		hp_raw_munmap((void *)(base + size), (uintptr_t)p + len - (base + size));
	/* Otherwise gdb's gcore would write the whole span. */
	advise_mapping(base, size, MADV_DONTDUMP);
	*ret_base = base;
	return 0;
}

int hp_map_hugetlb(uintptr_t at, size_t len, unsigned shift)
{
	long p, moved;

	HP_ASSERT(!hp_heap_mine());
	/* Map elsewhere first, because if the pool refuses a MAP_FIXED, the kernel has already unmapped the old
	 * mapping, and another thread's mapping may land in the hole before we can fill it. */
	p = hp_raw_mmap(len, PROT_READ | PROT_WRITE, MAP_HUGETLB | (int)(shift << MAP_HUGE_SHIFT));
	if (hp_sys_failed(p))
		return (int)p;
	moved = hp_raw_mremap((void *)p, len, (void *)at);
	if (hp_sys_failed(moved)) {
		hp_raw_munmap((void *)p, len);
		hp_map_release(at, len); /* the target may be unmapped by now */
		return (int)moved;
	}
	return 0;
}

int hp_map_normal(uintptr_t at, size_t len, bool thp)
{
	int err;

	HP_ASSERT(!hp_heap_mine());
	/* Give access to the reserved mapping instead of mapping over it, so that a refusal leaves no hole. */
	err = (int)hp_raw_mprotect((void *)at, len, PROT_READ | PROT_WRITE);
	if (err) {
		/* The range has several mappings, and some may have got access, so reserve all of it again. A raw call
		 * will do, since nobody has seen this memory. It is also needed: for the small tier the caller holds
		 * locks of jemalloc's, and a hook on mmap that allocates would take them. */
		hp_sys(SYS_mmap, at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
		advise_mapping(at, len, MADV_DONTDUMP);
		return err;
	}
	advise_mapping(at, len, MADV_DODUMP);
	return thp && advise_mapping(at, len, MADV_HUGEPAGE) == 0 ? HUGEPIN_KIND_THP : HUGEPIN_KIND_BASE;
}

void hp_map_avoid_thp(uintptr_t at, size_t len)
{
	advise_mapping(at, len, MADV_NOHUGEPAGE); /* refused by a kernel that has no THP */
}

int hp_map_collapse(uintptr_t at, size_t len)
{
	HP_ASSERT(!hp_heap_mine());
	return (int)hp_raw_madvise((void *)at, len, HP_MADV_COLLAPSE);
}

int hp_map_populate(uintptr_t at, size_t len)
{
	HP_ASSERT(!hp_heap_mine());
	return hp_populate(at, len, true);
}

int hp_map_release(uintptr_t at, size_t len)
{
	int saved_errno = errno, err = 0;

	HP_ASSERT(!hp_heap_mine());
	/* Call the C library's mmap, so that hooks see the call. libhugepin-malloc.so tells the pin cache, which treats
	 * memory there as new from then on, and hooks of other libraries drop what they have registered. */
	if (mmap((void *)at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		err = -errno;
	else
		advise_mapping(at, len, MADV_DONTDUMP);
	errno = saved_errno;
	return err;
}

static uint64_t read_number(const char *path)
{
	char buf[32];

	return hp_read_file(path, buf, sizeof buf) > 0 ? hp_number_after(buf, "", 0) : 0;
}

/* Read a number from a file of the pool of one page size. */
static uint64_t pool_figure(unsigned shift, int node, const char *file)
{
	char path[128];
	struct hp_line l = { path, path + sizeof path };

	if (node < 0) {
		hp_line_text(&l, "/sys/kernel/mm");
	} else {
		hp_line_text(&l, "/sys/devices/system/node/node");
		hp_line_number(&l, (uint64_t)node, 10);
	}
	hp_line_text(&l, "/hugepages/hugepages-");
	hp_line_number(&l, UINT64_C(1) << (shift - 10), 10);
	hp_line_text(&l, "kB/");
	hp_line_text(&l, file);
	return read_number(path);
}

size_t hp_map_pool_free(unsigned shift, int node)
{
	uint64_t free = pool_figure(shift, -1, "free_hugepages"), reserved = pool_figure(shift, -1, "resv_hugepages");

	free = free > reserved ? free - reserved : 0;
	/* Reserved pages are not counted by node. */
	return node < 0 ? free : HP_MIN(free, pool_figure(shift, node, "free_hugepages"));
}

/* Set the bits of a list like "0-1,4". */
static void parse_list(const char *s, uint64_t *mask, size_t bits)
{
	while (*s >= '0' && *s <= '9') {
		uint64_t from = hp_number_after(s, "", 0), to;

		s += strspn(s, "0123456789");
		to = *s == '-' ? hp_number_after(s, "-", from) : from;
		s += *s == '-';
		s += strspn(s, "0123456789");
		s += *s == ',';
		if (from <= to && to < bits)
			hp_bits_fill(mask, from, to - from + 1, true);
	}
}

int hp_map_choose_nodes(int64_t numa, uintptr_t at, struct hp_nodes *ret_)
{
	struct hp_nodes n = { .policy = HP_NODES_LOCAL, .node = -1 };
	char list[1024];
	int err;

	if (numa == HP_NUMA_INTERLEAVE) {
		n.policy = HP_NODES_INTERLEAVE;
		if (hp_read_file("/sys/devices/system/node/has_memory", list, sizeof list) > 0)
			parse_list(list, n.mask, sizeof n.mask * 8);
	} else if (numa >= 0) {
		n.policy = HP_NODES_ONE;
		n.node = (int)numa;
		hp_bit_set(n.mask, (size_t)numa);
	}
	err = hp_map_bind(at, HP_PAGE, &n, true);
	if (err == 0)
		*ret_ = n;
	return err;
}

int hp_map_bind(uintptr_t at, size_t len, const struct hp_nodes *nodes, bool strict)
{
	int mode;

	if (nodes->policy == HP_NODES_LOCAL)
		return 0;
	mode = nodes->policy == HP_NODES_INTERLEAVE ? MPOL_INTERLEAVE : strict ? MPOL_BIND : MPOL_PREFERRED;
	return (int)hp_sys(SYS_mbind, at, len, mode, nodes->mask, sizeof nodes->mask * 8 + 1);
}

#define THP "/sys/kernel/mm/transparent_hugepage/"

bool hp_map_thp_allows(const char *global, const char *const *sizes, size_t count)
{
	bool allowed = !strstr(global, "[never]"), known = false;

	for (size_t i = 0; i < count; i++) {
		if (!*sizes[i])
			continue;
		known = true;
		if (strstr(sizes[i], "[always]") || strstr(sizes[i], "[madvise]") ||
		    (allowed && strstr(sizes[i], "[inherit]")))
			return true;
	}
	return allowed && !known && hp_page_is_pmd();
}

/* Since Linux 6.8 each size of THP has a file of its own. */
bool hp_map_thp_enabled(void)
{
	enum { SHIFT_MIN = 14, SIZES = HP_PAGE_SHIFT - SHIFT_MIN + 1 };
	char global[64], text[SIZES][64];
	const char *sizes[SIZES];

	if (hp_read_file(THP "enabled", global, sizeof global) <= 0)
		return false;
	for (int i = 0; i < SIZES; i++) {
		char path[96];
		struct hp_line l = { path, path + sizeof path };

		hp_line_text(&l, THP "hugepages-");
		hp_line_number(&l, UINT64_C(1) << (SHIFT_MIN + i - 10), 10);
		hp_line_text(&l, "kB/enabled");
		if (hp_read_file(path, text[i], sizeof text[i]) <= 0)
			text[i][0] = 0;
		sizes[i] = text[i];
	}
	/* 1: THP is disabled for all memory of this process. 3: for all memory but advised memory. */
	return hp_sys(SYS_prctl, PR_GET_THP_DISABLE) != 1 && hp_map_thp_allows(global, sizes, SIZES);
}
