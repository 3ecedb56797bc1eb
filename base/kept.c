/* See kept.h. */
#include "base/kept.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/sys.h"

static bool identify(int fd, struct stat *ret_)
{
	return fd >= 0 && hp_sys(SYS_fstat, fd, ret_) == 0;
}

void hp_kept_forget(struct hp_kept *k)
{
	/* seq_cst: before the watcher looks for open domains; pairs with hp_domains_add(). Whoever still sees the
	 * number asks for its file. */
	atomic_store_explicit(&k->fd, -1, memory_order_seq_cst);
}

bool hp_kept_set(struct hp_kept *k, int fd)
{
	struct stat s;

	if (!identify(fd, &s)) {
		hp_kept_forget(k);
		return false;
	}
	k->dev = s.st_dev;
	k->ino = s.st_ino;
	atomic_store_explicit(&k->fd, fd, memory_order_release); /* pairs with hp_kept_fd() */
	return true;
}

bool hp_kept_set_or_close(struct hp_kept *k, int fd)
{
	if (hp_kept_set(k, fd))
		return true;
	if (fd >= 0)
		hp_sys(SYS_close, fd);
	return false;
}

bool hp_kept_set_high(struct hp_kept *k, int fd)
{
	enum { DESCRIPTORS_MAX = 1024 };
	struct rlimit limit = { .rlim_cur = 0 };
	int high;

	hp_limit(RLIMIT_NOFILE, &limit);
	high = (int)hp_sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HP_MIN(limit.rlim_cur, (rlim_t)DESCRIPTORS_MAX) * 15 / 16);
	if (high >= 0) {
		hp_sys(SYS_close, fd);
		fd = high;
	}
	return hp_kept_set_or_close(k, fd);
}

bool hp_kept_is(const struct hp_kept *k, int fd)
{
	struct stat s;

	return identify(fd, &s) && s.st_dev == k->dev && s.st_ino == k->ino;
}

bool hp_kept_is_there(const struct hp_kept *k)
{
	return hp_kept_is(k, hp_kept_fd(k));
}

void hp_kept_close(struct hp_kept *k)
{
	if (hp_kept_is_there(k))
		hp_sys(SYS_close, hp_kept_fd(k));
	hp_kept_forget(k);
}
