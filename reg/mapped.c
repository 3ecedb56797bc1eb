/* See mapped.h. */
#include "reg/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/kept.h"
#include "base/lock.h"
#include "base/proc.h"
#include "base/sys.h"

/* The argument of PROCMAP_QUERY (Linux 6.11), which finds the mapping that covers an address. */
struct map_query {
	uint64_t size, flags, addr, start, end, vma_flags, page_size, offset, inode;
	uint32_t dev_major, dev_minor, name_size, build_id_size;
	uint64_t name, build_id;
};
#define MAP_QUERY _IOWR('f', 17, struct map_query)
#define MAP_QUERY_SHARED 8

/* The kernel's name for memory of MAP_ANONYMOUS | MAP_HUGETLB, which is in a file without a name and without a
 * descriptor. */
#define ANONYMOUS_HUGETLB "/anon_hugepage (deleted)"

/* /proc/self/maps */
static struct hp_kept maps = HP_KEPT_NONE;
static _Atomic size_t max; /* mappings that a process may have; relaxed: a number */
static struct hp_lock lock = HP_LOCK_INIT(HP_LOCK_RANK_MAPS); /* guards the opening of `maps` */

static bool open_maps(void)
{
	bool ok;

	hp_lock(&lock);
	ok = hp_kept_is_there(&maps) ||
	     hp_kept_set_high(&maps, (int)hp_sys(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC));
	hp_unlock(&lock);
	return ok;
}

void hp_mapped_open(void)
{
	open_maps();
	atomic_store_explicit(&max, hp_mappings_max(), memory_order_relaxed);
}

struct sought {
	uintptr_t addr;
	struct hp_mapped *ret_;
	bool found;
};

static bool look_at_mapping(void *sought, const struct hp_mapping *m)
{
	struct sought *s = sought;
	bool is_private = !m->shared && (!m->has_inode || (!m->cut && strcmp(m->name, ANONYMOUS_HUGETLB) == 0));

	if (s->addr >= m->start && s->addr < m->end) {
		*s->ret_ = (struct hp_mapped){ m->start, m->end, is_private };
		s->found = true;
	}
	return s->addr >= m->end;
}

/* Find the mapping of addr by reading the list from the first line on, for Linux before 6.11, which has no
 * PROCMAP_QUERY. */
static bool read_mapping(uintptr_t addr, struct hp_mapped *ret_)
{
	struct sought s = { .addr = addr, .ret_ = ret_ };
	char text[8192];

	hp_mappings_each(hp_kept_fd(&maps), text, sizeof text, look_at_mapping, &s);
	return s.found;
}

int hp_mapped_query(uintptr_t addr, struct hp_mapped *ret_)
{
	char name[sizeof ANONYMOUS_HUGETLB + 8] = "";
	struct map_query q = { .size = sizeof q, .addr = addr, .name = (uintptr_t)name, .name_size = sizeof name };
	long r;

	if (!open_maps())
		return -ENOSYS;
	r = hp_sys(SYS_ioctl, hp_kept_fd(&maps), MAP_QUERY, &q);
	if (r == -ENAMETOOLONG) {
		q.name_size = 0;
		q.name = 0;
		r = hp_sys(SYS_ioctl, hp_kept_fd(&maps), MAP_QUERY, &q);
	}
	if (r != 0)
		return r == -ENOENT ? -ENOENT : -ENOSYS;
	*ret_ = (struct hp_mapped){ q.start, q.end,
				    !(q.vma_flags & MAP_QUERY_SHARED) &&
					    (!q.inode || strcmp(name, ANONYMOUS_HUGETLB) == 0) };
	return 0;
}

bool hp_mapped_at(uintptr_t addr, struct hp_mapped *ret_)
{
	int err = hp_mapped_query(addr, ret_);

	return !err || (err == -ENOSYS && hp_kept_fd(&maps) >= 0 && read_mapping(addr, ret_));
}

static bool count_mapping(void *count, const struct hp_mapping *m)
{
	(void)m;
	++*(size_t *)count;
	return true;
}

size_t hp_mapped_left(void)
{
	const size_t most = atomic_load_explicit(&max, memory_order_relaxed);
	size_t count = 0;
	char text[8192];

	if (!open_maps() || hp_mappings_each(hp_kept_fd(&maps), text, sizeof text, count_mapping, &count) != 0)
		return 0;
	return most - HP_MIN(most, count);
}

void hp_mapped_child(void)
{
	hp_kept_close(&maps);
	hp_lock_reset(&lock);
}
