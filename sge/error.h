/*
 * Conversion of libibverbs' errors to -errno.
 */
#ifndef HP_SGE_ERROR_H
#define HP_SGE_ERROR_H

#include <errno.h>

/* For functions that return errno. Some providers return -errno. */
static inline int hp_verbs_error(int err)
{
	return err > 0 ? -err : err;
}

/* For functions that return errno, or return -1 and set errno. */
static inline int hp_verbs_errno(int ret)
{
	return ret < -1 ? ret : ret > 0 ? -ret : ret == 0 ? 0 : errno ? -errno : -EIO;
}

#endif
