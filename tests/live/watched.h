/*
 * Whether the kernel tells of memory that goes away, and kernels that do not.
 */
#ifndef TESTS_LIVE_WATCHED_H
#define TESTS_LIVE_WATCHED_H

#include "live.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

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
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)UFFDIO_API, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };

	EXPECT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	EXPECT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), 0);
}

#endif
