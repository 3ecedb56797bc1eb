/*
 * Errors of libibverbs, as -errno.
 */
#ifndef HP_SGE_ERROR_H
#define HP_SGE_ERROR_H

#include <errno.h>

/* Of functions that return errno: a provider may return its negative. */
static inline int hp_verbs_error(int err)
{
	return err > 0 ? -err : err;
}

/* Of functions that may also return -1, and set errno. */
static inline int hp_verbs_errno(int ret)
{
	return ret < -1 ? ret : ret > 0 ? -ret : ret == 0 ? 0 : errno ? -errno : -EIO;
}

#endif
