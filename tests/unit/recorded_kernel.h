/*
 * The kernel of the heap's recorded scenarios. What the machine could answer one way or another is answered here: pools
 * of hugepages, THP, memory and limits, where a mapping lies. All else is asked of the kernel. Each call that concerns
 * memory is noted: addresses as distances in the span, or in the table that they belong to.
 */
#ifndef TESTS_UNIT_RECORDED_KERNEL_H
#define TESTS_UNIT_RECORDED_KERNEL_H

#include <linux/userfaultfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <time.h>

#include "alloc/pages.h"
#include "base/map.h"
#include "base/pagescan.h"
#include "tests/recorded.h"
#include "tests/unit/kernel.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

static struct {
	bool on; /* the scenario has begun */
	unsigned calls;
	long fail_in; /* so many calls more, and one fails; 0: none does */
	int error;
	long pool, reserved, giants; /* pages left; what is given back is not added again */
	long available; /* KiB */
	uint64_t ram, addresses, data; /* bytes that the machine has, and that the process may have; 0: no limit */
	int refused; /* advice that fails */
	bool scans; /* the kernel has PAGEMAP_SCAN */
	bool pins; /* it says so, but has no use for it */
	bool moves; /* it has UFFDIO_MOVE, and userfaultfds at all */
	int written; /* so many scans more find a page that was written to */
	bool no_thp;
	int threads;
	uint64_t thread_ns, populate_ns;
} k = { .available = 4 << 20, .ram = UINT64_C(8) << 30, .threads = 1, .refused = -1, .error = ENOMEM };

/* An address as a letter and a distance: in the span (s), the words of chunks (c), the lengths of holes (h); elsewhere
 * (o); nowhere (-). */
struct place {
	char in;
	size_t at;
};

UNINSTRUMENTED static struct place place_of(uintptr_t at)
{
	const uintptr_t chunk = (uintptr_t)hp_span.chunk, len = (uintptr_t)hp_span.holes.len;
	const size_t chunks = hp_span.small_end << HP_PAGE_CHUNKS_SHIFT;

	if (hp_span.size && at - hp_span.base <= hp_span.reserved)
		return (struct place){ 's', at - hp_span.base };
	if (chunk && at - chunk <= chunks * sizeof(hp_chunk))
		return (struct place){ 'c', at - chunk };
	if (len && at - len <= chunks * sizeof(uint32_t))
		return (struct place){ 'h', at - len };
	return (struct place){ at ? 'o' : '-', 0 };
}

/* errno stays, and nothing is noted before the scenario begins. */
__attribute__((format(printf, 5, 6))) UNINSTRUMENTED static void called(const char *name, long a, long b, long r,
     const char *format,
									  ...)
{
	const struct place p = place_of((uintptr_t)a);
	const int saved_errno = errno;
	char rest[200] = "";
	va_list args;

	if (!k.on)
		return;
	va_start(args, format);
	vsnprintf(rest, sizeof rest, format, args);
	va_end(args);
	k.on = false;
	k.calls++;
	note("%s %c%zx+%lx %s = %ld", name, p.in, p.at, b, rest, r);
	k.on = true;
	errno = saved_errno;
}

UNINSTRUMENTED static bool fails(void)
{
	return k.on && k.fail_in && --k.fail_in == 0;
}

UNINSTRUMENTED static bool has(const char *text, const char *part)
{
	return strstr(text, part) != NULL;
}

UNINSTRUMENTED static long number_file(long n)
{
	char text[40];

	snprintf(text, sizeof text, "%ld\n", n);
	return file_with(text);
}

UNINSTRUMENTED static long open_file(const char *path, long c, long d)
{
	char text[200];

	if (has(path, "hugepages-2048kB/free_hugepages"))
		return number_file(k.pool);
	if (has(path, "hugepages-2048kB/resv_hugepages"))
		return number_file(k.reserved);
	if (has(path, "hugepages-1048576kB/free_hugepages"))
		return number_file(k.giants);
	if (has(path, "hugepages-1048576kB/resv_hugepages"))
		return number_file(0);
	if (has(path, "transparent_hugepage/enabled"))
		return file_with(k.no_thp ? "always madvise [never]\n" : "always [madvise] never\n");
	if (has(path, "transparent_hugepage/hugepages-"))
		return -ENOENT;
	if (has(path, "node/has_memory"))
		return file_with("0-1\n");
	if (has(path, "max_map_count"))
		return number_file(65530);
	if (has(path, "/proc/meminfo")) {
		snprintf(text, sizeof text, "MemTotal: 8388608 kB\nMemAvailable: %ld kB\n", k.available);
		return file_with(text);
	}
	if (has(path, "/proc/self/cgroup"))
		return file_with("0::/\n");
	if (has(path, "/sys/fs/cgroup"))
		return -ENOENT;
	if (has(path, "/proc/self/stat") && !has(path, "status")) {
		snprintf(text, sizeof text, "1 (x) R 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 %d 0 0\n", k.threads);
		return file_with(text);
	}
	return raw(SYS_openat, AT_FDCWD, (long)path, c, d, 0, 0);
}

/* As a kernel with base pages of hp_base_page, which is 0 before the library has begun. */
UNINSTRUMENTED static long real(long nr, long a, long b, long c, long d, long e, long f)
{
	return hp_base_page <= HP_CHUNK ? raw(nr, a, b, c, d, e, f) : paged(nr, a, b, c, d, e, f);
}

/* Memory elsewhere, always as far behind the start of a hugepage, and long memory, the span, of 128 MiB. */
UNINSTRUMENTED static long map_elsewhere(long len, long prot, long flags)
{
	const long unit = len < 1L << 25 ? (long)HP_PAGE : 1L << 27, off = 65536;
	const long want = (long)hp_round_up((size_t)len, HP_MAX(hp_base_page, HP_CHUNK));
	const long got = raw(SYS_mmap, 0, want + 2 * unit, prot, flags, -1, 0);
	const long at = (long)hp_round_up((size_t)got, (size_t)unit) + off;

	if (hp_sys_failed(got))
		return got;
	raw(SYS_munmap, got, at - got, 0, 0, 0, 0);
	raw(SYS_munmap, at + want, got + 2 * unit - at, 0, 0, 0, 0);
	return at;
}

UNINSTRUMENTED static long map_giant(long len, long prot, long flags)
{
	const long giant = 1L << 30, n = len / giant;
	long got, at;

	if (k.giants < n)
		return -ENOMEM;
	k.giants -= n;
	got = raw(SYS_mmap, 0, len + giant, prot, (flags & ~(long)(MAP_HUGETLB | (63u << 26))) | MAP_NORESERVE, -1, 0);
	at = (long)hp_round_up((size_t)got, (size_t)giant);
	if (at > got)
		raw(SYS_munmap, got, at - got, 0, 0, 0, 0);
	raw(SYS_munmap, at + len, got + giant - at, 0, 0, 0, 0);
	return at;
}

UNINSTRUMENTED static long map_memory(long a, long b, long c, long d, long e, long f)
{
	if (d & MAP_HUGETLB && (d >> 26 & 63) == HP_PAGE_SHIFT) {
		if (k.pool < b / (long)HP_PAGE)
			return -ENOMEM;
		k.pool -= b / (long)HP_PAGE;
		return map_like_pool(b, c, d);
	}
	if (d & MAP_HUGETLB)
		return map_giant(b, c, d);
	if (a && !(d & MAP_FIXED)) /* a random place for the span */
		return -ENOMEM;
	if (!a && e < 0 && b >= (long)HP_PAGE)
		return map_elsewhere(b, c, d);
	return real(SYS_mmap, a, b, c, d, e, f);
}

UNINSTRUMENTED static long advise_memory(uintptr_t a, size_t len, long how)
{
	if (how == k.refused)
		return -EINVAL;
	switch (how) {
	case MADV_POPULATE_WRITE: case MADV_POPULATE_READ:
		k.thread_ns += k.populate_ns;
		for (uintptr_t at = a; at < a + len; at = (at | (HP_PAGE - 1)) + 1)
			*(volatile char *)at = *(volatile char *)at;
		return 0;
	case MADV_HUGEPAGE: case MADV_NOHUGEPAGE: case HP_MADV_COLLAPSE: return 0;
	case MADV_GUARD_INSTALL: case MADV_GUARD_REMOVE: return 0;
	default: return real(SYS_madvise, (long)a, (long)len, how, 0, 0, 0);
	}
}

/* PAGEMAP_SCAN, by the entries of pagemap. */
UNINSTRUMENTED static long scan(long fd, struct hp_pagescan *s)
{
	struct hp_pagescan_region *r = (struct hp_pagescan_region *)s->vec; /* NOLINT */
	long n = 0;
	bool in = false;

	if (!k.scans)
		return k.pins && !s->size ? -EINVAL : -ENOTTY;
	if (!s->size)
		return -EINVAL;
	s->walk_end = s->end;
	if (s->flags & HP_PAGESCAN_WP_MATCHING) {
		if (k.written-- <= 0)
			return 0;
		*r = (struct hp_pagescan_region){ s->start, s->start + 4096, HP_PAGESCAN_WRITTEN };
		return 1;
	}
	for (uint64_t at = s->start; at < s->end; at += 4096) {
		uint64_t entry = 0;

		raw(SYS_pread64, fd, (long)&entry, 8, (long)(at / 4096 * 8), 0, 0);
		if (!(entry >> 63)) {
			in = false;
		} else if (in) {
			r[n - 1].end = at + 4096;
		} else if (n == (long)s->vec_len) {
			s->walk_end = at;
			return n;
		} else {
			r[n++] = (struct hp_pagescan_region){ at, at + 4096, HP_PAGESCAN_PRESENT };
			in = true;
		}
	}
	return n;
}

/* UFFDIO_MOVE of Linux 6.8: dst, src, len, mode, moved. */
UNINSTRUMENTED static long move_pages(uint64_t *m)
{
	for (uint64_t at = 0; at < m[2]; at += 4096) {
		unsigned char there = 0;

		raw(SYS_mincore, (long)(m[1] + at), 4096, (long)&there, 0, 0, 0);
		if (!(there & 1))
			continue;
		for (size_t i = 0; i < 512; i++)
			((volatile uint64_t *)(m[0] + at))[i] = ((volatile uint64_t *)(m[1] + at))[i];
	}
	raw(SYS_madvise, (long)m[1], (long)m[2], MADV_DONTNEED, 0, 0, 0);
	m[4] = m[2];
	return 0;
}

UNINSTRUMENTED static long watch(long what, uint64_t *arg)
{
	if ((what & 0xff) == 5) {
		called("move", (long)arg[0], (long)arg[2], 0, "from %zx", place_of(arg[1]).at);
		return move_pages(arg);
	}
	called("watch", (unsigned long)what == UFFDIO_API ? 0 : (long)arg[0], (long)arg[1], 0, "%lx", what & 0xff);
	return 0;
}

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	bool may_fail;
	long r;

	switch (nr) {
	case SYS_mmap:
		r = fails() ? -k.error : map_memory(a, b, c, d, e, f);
		called("mmap", a, b, hp_sys_failed(r) ? r : 0, "%lx %lx", c, d);
		break;
	case SYS_munmap:
		r = real(nr, a, b, 0, 0, 0, 0);
		called("munmap", a, b, r, " ");
		break;
	case SYS_madvise:
		may_fail = c != MADV_DONTDUMP && c != MADV_DOFORK;
		r = may_fail && fails() ? -k.error : advise_memory((uintptr_t)a, (size_t)b, c);
		called("madvise", a, b, r, "%ld", c);
		break;
	case SYS_mprotect:
		r = fails() ? -k.error : real(nr, a, b, c, 0, 0, 0);
		called("mprotect", a, b, r, "%ld", c);
		break;
	case SYS_mremap:
		r = fails() ? -k.error : real(nr, a, b, c, d, e, 0);
		called("mremap", e, b, hp_sys_failed(r) ? r : 0, "%lx %ld", c, d);
		break;
	case SYS_mbind:
		r = 0;
		called("mbind", a, b, r, "%ld %lx %ld", c, *(long *)d, e);
		break;
	case SYS_openat:
		r = fails() ? -k.error : open_file((char *)b, c, d);
		called("open", 0, 0, r < 0, "%s", (char *)b);
		break;
	case SYS_mincore:
		r = real(nr, a, b, c, 0, 0, 0);
		called("mincore", a, b, r, "%d", *(unsigned char *)c & 1);
		break;
	case SYS_process_vm_readv:
		r = fails() ? -EPERM : raw(nr, a, b, c, d, e, f);
		called("read", *(long *)d, ((long *)d)[1], r, " ");
		break;
	case SYS_ioctl:
		r = _IOC_TYPE((unsigned long)b) == UFFDIO     ? watch(b, (uint64_t *)c)
		    : (unsigned long)b == HP_PAGESCAN ? scan(a, (struct hp_pagescan *)c)
						      : -ENOTTY;
		called("ioctl", 0, 0, r, "%lx", (unsigned long)b);
		break;
	case SYS_userfaultfd:
		r = k.moves ? raw(SYS_openat, AT_FDCWD, (long)"/dev/null", O_RDONLY | O_CLOEXEC, 0, 0, 0) : -EPERM;
		called("userfaultfd", 0, a, r < 0, " ");
		break;
	case SYS_msync:
		r = raw(nr, a, b, c, 0, 0, 0);
		called("msync", a, b, r, "%ld", c);
		break;
	case SYS_membarrier: r = 0; break;
	case SYS_prctl: r = a == PR_GET_SECCOMP ? 0 : raw(nr, a, b, c, d, e, f); break;
	case SYS_getdents64: r = 0; break;
	case SYS_io_uring_enter: r = -ENOSYS; break;
	case SYS_get_mempolicy: r = (*(long *)b = 1, 0); break;
	case SYS_sysinfo:
		r = raw(nr, a, 0, 0, 0, 0, 0);
		((struct sysinfo *)a)->totalram = k.ram;
		((struct sysinfo *)a)->mem_unit = 1;
		break;
	case SYS_prlimit64:
		r = raw(nr, a, b, c, d, 0, 0);
		if (d)
			((struct rlimit *)d)->rlim_cur = b == RLIMIT_AS && k.addresses ? k.addresses
						       : b == RLIMIT_DATA && k.data  ? k.data
										     : RLIM_INFINITY;
		break;
	case SYS_clock_gettime:
		r = raw(nr, a, b, 0, 0, 0, 0);
		if (a == CLOCK_THREAD_CPUTIME_ID)
			*(struct timespec *)b = (struct timespec){ (time_t)(k.thread_ns / 1000000000),
			     (long)(k.thread_ns % 1000000000) };
		break;
	default: r = real(nr, a, b, c, d, e, f);
	}
	return result_of(r);
}

#endif
