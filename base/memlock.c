/* See memlock.h. */
#include "base/memlock.h"

#include <linux/capability.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/base.h"
#include "base/sys.h"

static bool may_lock_all(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = { { 0 } };

	return !hp_sys(SYS_capget, &header, caps) &&
	       caps[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK);
}

/* The pinned bytes of this process, or 0 if the kernel does not tell. The key begins with a line feed, because the
 * file's first line has the program's name, which may be any text. */
static size_t pinned_bytes(void)
{
	char text[4096];

	if (hp_read_file("/proc/self/status", text, sizeof text) <= 0)
		return 0;
	return hp_number_after(text, "\nVmPin:", 0) << 10;
}

size_t hp_memlock_max(enum hp_memlock_use use)
{
	struct rlimit limit;
	size_t used, left;

	if (may_lock_all() || hp_limit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
		return 0;
	used = use == HP_MEMLOCK_PIN ? pinned_bytes() : 0;
	left = limit.rlim_cur > used ? limit.rlim_cur - used : 0;
	return HP_MAX(left & -hp_base_page, (size_t)1);
}
