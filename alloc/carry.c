/*
 * See carry.h. The pages go by UFFDIO_MOVE of a userfaultfd that exists meanwhile, since this leaves the mappings as
 * they are. mremap would leave two more, and take the old ones away.
 */
#include "alloc/carry.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdbool.h>
#include <sys/ioctl.h>

#include "base/base.h"
#include "base/sys.h"

/* Of Linux 6.8, later than the headers may be. */
enum { FEATURE_MOVE = 1 << 16, USER_MODE_ONLY = 1, ALLOW_HOLES = 2 };
struct move {
	uint64_t dst, src, len, mode;
	int64_t moved; /* bytes, or -errno */
};
#define MOVE _IOWR(UFFDIO, 0x05, struct move)

/* The kernel moves memory into watched memory only. What another userfaultfd watches is refused, because its owner may
 * still give what is missing there. */
static bool watch(int fd, uintptr_t at, size_t len)
{
	struct uffdio_register r = { .range = { at, len }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	return hp_sys(SYS_ioctl, fd, UFFDIO_REGISTER, &r) == 0;
}

/* Closing the descriptor is not enough, because a child of a fork meanwhile has it, too. */
static void watch_no_more(int fd, uintptr_t at, size_t len)
{
	struct uffdio_range range = { at, len };

	hp_sys(SYS_ioctl, fd, UFFDIO_UNREGISTER, &range);
}

/* The kernel refuses where pages are shared with a child, are pinned by a device, or belong to the pool, and where
 * something lies already. It moves what comes before. */
static size_t move(int fd, uintptr_t to, uintptr_t from, size_t len)
{
	size_t done = 0;
	long r = -EAGAIN;

	while (r == -EAGAIN && done < len) {
		struct move m = { .dst = to + done, .src = from + done, .len = len - done, .mode = ALLOW_HOLES };

		r = hp_sys(SYS_ioctl, fd, MOVE, &m);
		if (m.moved <= 0)
			break;
		done += (size_t)m.moved;
	}
	return done;
}

size_t hp_carry(uintptr_t to, uintptr_t from, size_t len)
{
	struct uffdio_api api = { .api = UFFD_API, .features = FEATURE_MOVE };
	const long fd = hp_sys(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY);
	size_t done = 0;

	if (fd < 0)
		return 0;
	if (hp_sys(SYS_ioctl, fd, UFFDIO_API, &api) == 0 && watch((int)fd, from, len)) {
		if (watch((int)fd, to, len)) {
			done = move((int)fd, to, from, len);
			watch_no_more((int)fd, to, len);
		}
		watch_no_more((int)fd, from, len);
	}
	hp_sys(SYS_close, fd);
	return done;
}
