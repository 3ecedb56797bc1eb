/*
 * For examples, by `cc -include failing.h`: each call that may fail does fail once, and at the end nothing may be left.
 *
 *	FAIL_AT=N      the Nth such call fails, without being made
 *	FAIL_ERRNO=E   with this error (5, EIO)
 *
 * At exit the program says on stderr "N calls", or which call was made to fail. It ends with status 99 if a domain, ring, object of
 * verbs, buffer or descriptor is left. A pin that is left keeps its domain from being closed. Calls that give something
 * back do not fail.
 */
#include <errno.h>
#include <fcntl.h>
#include <hugepin_hooks.h>
#include <hugepin_sg_uring.h>
#include <hugepin_uring.h>
#include <hugepin_verbs.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
	int at, error, calls; /* calls so far */
	const char *failed; /* the call that was made to fail */
	int left; /* things taken and not given back */
} failing;

__attribute__((constructor)) static void failing_start(void)
{
	failing.at = getenv("FAIL_AT") ? atoi(getenv("FAIL_AT")) : 0;
	failing.error = getenv("FAIL_ERRNO") ? atoi(getenv("FAIL_ERRNO")) : EIO;
}

__attribute__((destructor)) static void failing_end(void)
{
	if (failing.failed)
		fprintf(stderr, "made to fail: %s\n", failing.failed);
	else
		fprintf(stderr, "%d calls\n", failing.calls);
	if (failing.left) {
		fprintf(stderr, "left: %d\n", failing.left);
		_exit(99);
	}
}

static inline int failing_fails(const char *name)
{
	if (++failing.calls != failing.at)
		return 0;
	failing.failed = name;
	errno = failing.error;
	return 1;
}
static inline int failing_took(int ret)
{
	failing.left += ret >= 0;
	return ret;
}
static inline void *failing_took_pointer(void *p)
{
	failing.left += p != NULL;
	return p;
}
static inline int failing_gave(int ret)
{
	failing.left -= ret == 0;
	return ret;
}

#define FAILING_INT(call, ...) (failing_fails(#call) ? -failing.error : call(__VA_ARGS__))
#define FAILING_ERRNO(call, ...) (failing_fails(#call) ? failing.error : call(__VA_ARGS__))
#define FAILING_SYSCALL(call, ...) (failing_fails(#call) ? -1 : call(__VA_ARGS__))
#define FAILING_POINTER(call, ...) (failing_fails(#call) ? NULL : call(__VA_ARGS__))
#define FAILING_TAKE(call, ...) (failing_fails(#call) ? -failing.error : failing_took(call(__VA_ARGS__)))
#define FAILING_TAKE_POINTER(call, ...) (failing_fails(#call) ? NULL : failing_took_pointer(call(__VA_ARGS__)))

#define hugepin_malloc(...) FAILING_TAKE_POINTER(hugepin_malloc, __VA_ARGS__)
#define hugepin_calloc(...) FAILING_TAKE_POINTER(hugepin_calloc, __VA_ARGS__)
#define hugepin_aligned_alloc(...) FAILING_TAKE_POINTER(hugepin_aligned_alloc, __VA_ARGS__)
#define hugepin_realloc(p, size) \
	(failing_fails("hugepin_realloc") ? NULL \
	 : (p)			  ? hugepin_realloc(p, size) \
				  : failing_took_pointer(hugepin_realloc(p, size)))
#define hugepin_free(p) (failing.left -= (p) != NULL, hugepin_free(p))
#define hugepin_stats(...) FAILING_INT(hugepin_stats, __VA_ARGS__)
#define hugepin_fabric_attach(...) FAILING_INT(hugepin_fabric_attach, __VA_ARGS__)
#define hugepin_ucx_attach(...) FAILING_INT(hugepin_ucx_attach, __VA_ARGS__)
#define hugepin_extent(...) FAILING_INT(hugepin_extent, __VA_ARGS__)
#define hugepin_watch(...) FAILING_TAKE(hugepin_watch, __VA_ARGS__)
#define hugepin_unwatch(...) failing_gave(hugepin_unwatch(__VA_ARGS__))
#define hugepin_domain_open(...) FAILING_TAKE(hugepin_domain_open, __VA_ARGS__)
#define hugepin_uring_open(...) FAILING_TAKE(hugepin_uring_open, __VA_ARGS__)
#define hugepin_verbs_open(...) FAILING_TAKE(hugepin_verbs_open, __VA_ARGS__)
#define hugepin_domain_close(...) failing_gave(hugepin_domain_close(__VA_ARGS__))
#define hugepin_pin(...) FAILING_INT(hugepin_pin, __VA_ARGS__)
#define hugepin_pin_try(...) FAILING_INT(hugepin_pin_try, __VA_ARGS__)
#define hugepin_key_take(...) FAILING_INT(hugepin_key_take, __VA_ARGS__)
#define hugepin_key_pin(...) FAILING_INT(hugepin_key_pin, __VA_ARGS__)
#define hugepin_pinv(...) FAILING_INT(hugepin_pinv, __VA_ARGS__)
#define hugepin_register(...) FAILING_INT(hugepin_register, __VA_ARGS__)
#define hugepin_lend_open(...) FAILING_TAKE(hugepin_lend_open, __VA_ARGS__)
#define hugepin_lend_close(...) failing_gave(hugepin_lend_close(__VA_ARGS__))
#define hugepin_lend_key(...) FAILING_INT(hugepin_lend_key, __VA_ARGS__)
#define hugepin_lend_message(...) FAILING_INT(hugepin_lend_message, __VA_ARGS__)
#define hugepin_sg_strided(...) FAILING_INT(hugepin_sg_strided, __VA_ARGS__)
#define hugepin_sg_map(...) FAILING_INT(hugepin_sg_map, __VA_ARGS__)
#define hugepin_sg_frame(...) FAILING_INT(hugepin_sg_frame, __VA_ARGS__)
#define hugepin_sg_iter(...) FAILING_INT(hugepin_sg_iter, __VA_ARGS__)
#define hugepin_sg_plan(...) FAILING_INT(hugepin_sg_plan, __VA_ARGS__)
#define hugepin_sg_fill(...) FAILING_INT(hugepin_sg_fill, __VA_ARGS__)
#define hugepin_sg_uring_open(...) FAILING_TAKE(hugepin_sg_uring_open, __VA_ARGS__)
#define hugepin_sg_uring_close(...) failing_gave(hugepin_sg_uring_close(__VA_ARGS__))
/* The entry is on the ring already, and does nothing then. */
#define FAILING_ENTRY(call, s, sqe, ...) \
	(failing_fails(#call) ? (io_uring_prep_nop(sqe), (sqe)->user_data = 0, -failing.error) : call(s, sqe, __VA_ARGS__))
#define hugepin_sg_uring_write(...) FAILING_ENTRY(hugepin_sg_uring_write, __VA_ARGS__)
#define hugepin_sg_uring_read(...) FAILING_ENTRY(hugepin_sg_uring_read, __VA_ARGS__)

#define open(...) (failing_fails("open") ? -1 : failing_took(open(__VA_ARGS__)))
#define dup(...) (failing_fails("dup") ? -1 : failing_took(dup(__VA_ARGS__)))
#define close(...) failing_gave(close(__VA_ARGS__))
#define fstat(...) FAILING_SYSCALL(fstat, __VA_ARGS__)
#define fdatasync(...) FAILING_SYSCALL(fdatasync, __VA_ARGS__)
#define pread(...) FAILING_SYSCALL(pread, __VA_ARGS__)
#define pwrite(...) FAILING_SYSCALL(pwrite, __VA_ARGS__)

#define io_uring_queue_init(...) FAILING_TAKE(io_uring_queue_init, __VA_ARGS__)
#define io_uring_queue_exit(ring) (failing.left--, io_uring_queue_exit(ring))
#define io_uring_get_sqe(...) FAILING_POINTER(io_uring_get_sqe, __VA_ARGS__)
#define io_uring_submit(...) FAILING_INT(io_uring_submit, __VA_ARGS__)
#define io_uring_submit_and_wait(...) FAILING_INT(io_uring_submit_and_wait, __VA_ARGS__)
#define io_uring_wait_cqe(...) FAILING_INT(io_uring_wait_cqe, __VA_ARGS__)

#define ibv_get_device_list(...) FAILING_TAKE_POINTER(ibv_get_device_list, __VA_ARGS__)
#define ibv_free_device_list(list) (failing.left--, ibv_free_device_list(list))
#define ibv_open_device(...) FAILING_TAKE_POINTER(ibv_open_device, __VA_ARGS__)
#define ibv_close_device(...) failing_gave(ibv_close_device(__VA_ARGS__))
#define ibv_alloc_pd(...) FAILING_TAKE_POINTER(ibv_alloc_pd, __VA_ARGS__)
#define ibv_dealloc_pd(...) failing_gave(ibv_dealloc_pd(__VA_ARGS__))
#define ibv_create_cq(...) FAILING_TAKE_POINTER(ibv_create_cq, __VA_ARGS__)
#define ibv_destroy_cq(...) failing_gave(ibv_destroy_cq(__VA_ARGS__))
#define ibv_create_qp(...) FAILING_TAKE_POINTER(ibv_create_qp, __VA_ARGS__)
#define ibv_destroy_qp(...) failing_gave(ibv_destroy_qp(__VA_ARGS__))
#undef ibv_query_port
#define ibv_query_port(...) FAILING_ERRNO(___ibv_query_port, __VA_ARGS__)
#define ibv_modify_qp(...) FAILING_ERRNO(ibv_modify_qp, __VA_ARGS__)
#define ibv_post_send(...) FAILING_ERRNO(ibv_post_send, __VA_ARGS__)

/* A poll that finds nothing does not count: there may be any number of them. Nor does an entry of the table of GIDs that is empty:
 * there are a thousand. */
static inline int failing_polled(int n)
{
	return n > 0 && failing_fails("ibv_poll_cq") ? -1 : n;
}
#define ibv_poll_cq(...) failing_polled(ibv_poll_cq(__VA_ARGS__))
static inline int failing_queried(int ret, const union ibv_gid *gid)
{
	return !ret && (gid->global.subnet_prefix || gid->global.interface_id) && failing_fails("ibv_query_gid") ? -1 : ret;
}
#undef ibv_query_gid
#define ibv_query_gid(device, port, index, gid) failing_queried(ibv_query_gid(device, port, index, gid), gid)
