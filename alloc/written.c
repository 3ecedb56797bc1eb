/* See written.h. */
#include "alloc/written.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/prctl.h>

#include "base/kept.h"
#include "base/lock.h"
#include "base/pagescan.h"
#include "base/sys.h"

/* Debian 12's headers are those of Linux 6.1 and lack these. Names as in linux/userfaultfd.h. */
#define FEATURE_WP_ASYNC ((uint64_t)1 << 15)
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

static struct hp_kept uffd = HP_KEPT_NONE, pagemap = HP_KEPT_NONE;

static bool call_written(const struct hp_kept *k, unsigned long request, void *arg)
{
	return hp_sys(SYS_ioctl, hp_kept_fd(k), request, arg) >= 0;
}

void hp_written_end(void)
{
	hp_kept_close(&uffd);
	hp_kept_close(&pagemap);
}

static void ignore(uintptr_t start, uintptr_t end)
{
	(void)start, (void)end;
}

bool hp_written_begin(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = FEATURE_WP_ASYNC };
	const long flags = O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY;
	const char *path = "/proc/self/pagemap";

	if (hp_sandboxed || hp_sys(SYS_prctl, PR_GET_SECCOMP) != 0)
		return false;
	if (hp_kept_set_or_close(&uffd, (int)hp_sys(SYS_userfaultfd, flags)) && call_written(&uffd, UFFDIO_API, &api) &&
	    hp_kept_set_or_close(&pagemap, (int)hp_sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC)))
		return true;
	hp_written_end();
	return false;
}

bool hp_written_watch(uintptr_t start, uintptr_t end)
{
	struct uffdio_register reg = { .range = { start, end - start }, .mode = UFFDIO_REGISTER_MODE_WP };

	/* The first scan makes the kernel begin to note writes. */
	return call_written(&uffd, UFFDIO_REGISTER, &reg) && hp_written_each(start, end, ignore);
}

bool hp_written_each(uintptr_t start, uintptr_t end, void (*each)(uintptr_t start, uintptr_t end))
{
	struct hp_pagescan_region found[64];
	struct hp_pagescan s = { .size = sizeof s,
				 .flags = HP_PAGESCAN_WP_MATCHING | HP_PAGESCAN_CHECK_WPASYNC,
				 .start = start,
				 .end = end,
				 .vec = (uintptr_t)found,
				 .vec_len = sizeof found / sizeof *found,
				 .category_mask = HP_PAGESCAN_WRITTEN,
				 .return_mask = HP_PAGESCAN_WRITTEN };

	while (s.start < end) {
		long n = hp_sys(SYS_ioctl, hp_kept_fd(&pagemap), HP_PAGESCAN, &s);

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
