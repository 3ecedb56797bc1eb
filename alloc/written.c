#include "alloc/written.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/lock.h"

/* Debian 12's headers are of Linux 6.1. Names as in linux/userfaultfd.h and linux/fs.h. */
#define FEATURE_WP_ASYNC ((uint64_t)1 << 15)
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
enum { SCAN_WP_MATCHING = 1, SCAN_CHECK_WPASYNC = 2, PAGE_WRITTEN = 2 };
struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct region {
	uint64_t start, end, categories;
};
#define CALL_SCAN _IOWR('f', 16, struct scan)

static int uffd = -1, pagemap = -1;

static bool call(int fd, unsigned long request, void *arg)
{
	return hp_syscall(SYS_ioctl, fd, (long)request, (long)arg, 0, 0, 0) >= 0;
}

void hp_written_end(void)
{
	if (uffd >= 0)
		hp_syscall(SYS_close, uffd, 0, 0, 0, 0, 0);
	if (pagemap >= 0)
		hp_syscall(SYS_close, pagemap, 0, 0, 0, 0, 0);
	uffd = pagemap = -1;
}

static void ignore(uintptr_t start, uintptr_t end)
{
	(void)start, (void)end;
}

bool hp_written_begin(uintptr_t start, uintptr_t end)
{
	struct uffdio_api api = { .api = UFFD_API, .features = FEATURE_WP_ASYNC };
	struct uffdio_register reg = { .range = { start, end - start }, .mode = UFFDIO_REGISTER_MODE_WP };

	if (hp_sandboxed || hp_syscall(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0, 0) != 0)
		return false;
	uffd = (int)hp_syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY, 0, 0, 0, 0, 0);
	pagemap = uffd < 0 ? -1 : (int)hp_syscall(SYS_open, (long)"/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0, 0, 0, 0);
	/* Who asks for the first time makes the kernel begin. */
	if (pagemap >= 0 && call(uffd, UFFDIO_API, &api) && call(uffd, UFFDIO_REGISTER, &reg) && hp_written_each(start, end, ignore))
		return true;
	hp_written_end();
	return false;
}

bool hp_written_each(uintptr_t start, uintptr_t end, void (*each)(uintptr_t start, uintptr_t end))
{
	struct region found[64];
	struct scan s = { .size = sizeof s,
			  .flags = SCAN_WP_MATCHING | SCAN_CHECK_WPASYNC,
			  .start = start,
			  .end = end,
			  .vec = (uintptr_t)found,
			  .vec_len = sizeof found / sizeof *found,
			  .category_mask = PAGE_WRITTEN,
			  .return_mask = PAGE_WRITTEN };

	while (s.start < end) {
		long n = hp_syscall(SYS_ioctl, pagemap, (long)CALL_SCAN, (long)&s, 0, 0, 0);

		if (n == -EINTR)
			continue;
		if (n < 0 || s.walk_end <= s.start)
			return false;
		for (long i = 0; i < n; i++)
			each(found[i].start, found[i].end);
		s.start = s.walk_end;
	}
	return true;
}
