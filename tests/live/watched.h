/*
 * Whether the kernel tells of memory that goes away, and kernels that do not.
 */
#ifndef TESTS_LIVE_WATCHED_H
#define TESTS_LIVE_WATCHED_H

#include "live.h"

#include "filter.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

/* Whether the kernel tells of memory that goes away: foreign memory is then cached, and the heap's without a promise.
 * AArch64's does not before Linux 6.10. */
static inline bool kernel_watches(void)
{
	struct uffdio_api api = { .api = UFFD_API,
				  .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_UNMAP |
					      UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	bool told = fd >= 0 && !ioctl(fd, UFFDIO_API, &api);

	if (fd >= 0)
		close(fd);
	return told;
}
/* For a domain that is to keep keys on any kernel, in a test whose memory stays. */
#define WATCH_ANYHOW (kernel_watches() ? HUGEPIN_WATCH_DEFAULT : HUGEPIN_WATCH_PROGRAM)
#define NEEDS_KERNEL_THAT_WATCHES                                                                                      \
	do {                                                                                                           \
		if (!kernel_watches())                                                                                 \
			SKIP("this kernel does not tell of memory that goes away");                                    \
	} while (0)

/* A kernel that has userfaultfd(2), and not the features that tell of unmapping: AArch64's before Linux 6.10. */
static inline void refuse_features(void)
{
	struct filter f = { .len = 0 };

	filter_argument(&f, SYS_ioctl, 1, BPF_JEQ, (uint32_t)UFFDIO_API, FILTER_REFUSES(EINVAL));
	EXPECT(filter_install(&f, SECCOMP_RET_ALLOW));
}

#endif
