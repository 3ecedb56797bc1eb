/*
 * A plug-in of nbdkit that serves a file or block device past the page cache (O_DIRECT), by io_uring with registered
 * buffers. README.md has the command lines.
 *
 * nbdkit calls from many threads, each of which waits for its request. So a call borrows a lane: a ring that nobody
 * else uses meanwhile. Submitting and waiting is one system call then, and no thread wakes another. The rings share a
 * domain where the kernel clones registrations, so that memory is pinned once.
 *
 * nbdkit has a buffer for each thread. The device uses that buffer if its address suits O_DIRECT, and from the second
 * request on it is registered. glibc's malloc begins large buffers 16 bytes behind a page, which most devices refuse.
 * Such a request is copied through a buffer of its lane, in hugepages. Under libhugepin-malloc.so nothing is copied.
 *
 * Requests that are not whole blocks, such as the end of a file of odd size, go through the page cache, where the
 * kernel reads a block, changes it and writes it. A direct write to the same block would be lost meanwhile. So
 * cache_lock keeps all other writes out, until no changed page is left in the cache.
 */
#define _GNU_SOURCE 1 /* O_DIRECT, statx, fallocate */
#include <errno.h>
#include <fcntl.h>
#include <hugepin_uring.h>
#include <liburing.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>
#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

/* Tell the user, and nbdkit by errno, which nbdkit_error() leaves alone. */
#define TELL(err, ...) (errno = (err), nbdkit_error(__VA_ARGS__))

enum {
	LANES = 64, /* requests under way; further ones wait */
	SLOTS = 256, /* registrations of a domain: a buffer for each thread, and the heap */
	COPIED = 1 << 20, /* bytes of a lane's buffer */
	WRITTEN = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER,
};

struct lane {
	struct io_uring ring;
	hugepin_domain *domain;
	hugepin_ring *attached; /* to the domain that lanes share; NULL: the domain is the lane's own */
	char *buffer; /* NULL until a request is copied */
	struct lane *next;
};

/* Of a connection. */
struct export {
	int direct, cached; /* descriptors: past the page cache, and through it */
	unsigned memory_align, file_align; /* what a direct request asks of addresses, and of offsets and lengths */
	bool writes;
};

static char *name; /* of the file */
static struct lane lanes[LANES], *idle;
static int made; /* lanes */
static hugepin_domain *shared; /* with a ring of its own, to which lanes are attached; or NULL */
static pthread_mutex_t lanes_lock = PTHREAD_MUTEX_INITIALIZER; /* for the four above */
static pthread_cond_t lane_is_idle = PTHREAD_COND_INITIALIZER;
/* Held for reading by direct writes. The usual kind would let them keep others waiting for ever. */
static pthread_rwlock_t cache_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

/* Until Linux 6.13 each lane has a domain, later they share one. Returns 0, or -errno. */
static int lane_make(void)
{
	struct lane *l = &lanes[made];
	int err = io_uring_queue_init(1, &l->ring, IORING_SETUP_COOP_TASKRUN);

	if (err < 0)
		return err;
	if (!made && hugepin_uring_open_fd(-1, 0, 0, SLOTS, NULL, &shared) < 0)
		shared = NULL;
	l->domain = shared;
	l->attached = NULL;
	err = shared ? hugepin_uring_attach(shared, &l->ring, &l->attached) : -EOPNOTSUPP;
	if (err == -EOPNOTSUPP && shared && !made) { /* no lane is attached, and none will be */
		hugepin_domain_close(shared);
		shared = NULL;
	}
	if (err == -EOPNOTSUPP)
		err = hugepin_uring_open(&l->ring, 0, SLOTS, NULL, &l->domain);
	if (err < 0) {
		io_uring_queue_exit(&l->ring);
		return err;
	}
	l->next = idle;
	idle = l;
	made++;
	return 0;
}

/* No request is under way. Domains end before their rings. */
static void lanes_end(void)
{
	for (struct lane *l = lanes; l < lanes + made; l++) {
		hugepin_free(l->buffer);
		l->buffer = NULL;
		if (l->attached)
			hugepin_ring_detach(l->attached);
		else
			hugepin_domain_close(l->domain);
	}
	if (shared)
		hugepin_domain_close(shared);
	shared = NULL;
	while (made)
		io_uring_queue_exit(&lanes[--made].ring);
	idle = NULL;
}

/* The lane that was used last comes first, so that few clients have few lanes. */
static struct lane *lane_take(void)
{
	struct lane *l;

	pthread_mutex_lock(&lanes_lock);
	while (!idle)
		if (made == LANES || lane_make() < 0) /* for want of descriptors, say: those that there are suffice */
			pthread_cond_wait(&lane_is_idle, &lanes_lock);
	l = idle;
	idle = l->next;
	pthread_mutex_unlock(&lanes_lock);
	return l;
}

static void lane_return(struct lane *l)
{
	pthread_mutex_lock(&lanes_lock);
	l->next = idle;
	idle = l;
	pthread_cond_signal(&lane_is_idle);
	pthread_mutex_unlock(&lanes_lock);
}

/* One request, to its end: the bytes that were moved, or -errno. */
static int request(struct lane *l, int fd, bool out, char *data, size_t len, uint64_t at, bool fua)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&l->ring); /* never NULL: one request at a time */
	struct io_uring_cqe *cqe;
	struct hugepin_pin pin = { 0 };
	/* Without a pin of all (no room under `ulimit -l`, say) a request by address does the same. */
	bool fixed = hugepin_pin(l->domain, data, len, 0, &pin) == 0 && pin.len == len &&
		     (!l->attached || hugepin_ring_use(l->attached, &pin) == 0);
	int ret;

	if (out && fixed)
		io_uring_prep_write_fixed(sqe, fd, data, (unsigned)len, at, (int)pin.lkey);
	else if (out)
		io_uring_prep_write(sqe, fd, data, (unsigned)len, at);
	else if (fixed)
		io_uring_prep_read_fixed(sqe, fd, data, (unsigned)len, at, (int)pin.lkey);
	else
		io_uring_prep_read(sqe, fd, data, (unsigned)len, at);
	sqe->rw_flags = fua ? RWF_DSYNC : 0;
	do
		ret = io_uring_submit_and_wait(&l->ring, 1);
	while (ret == -EINTR || ret == -EAGAIN || ret == -EBUSY);
	while (ret >= 0 && (ret = io_uring_wait_cqe(&l->ring, &cqe)) == -EINTR)
		ret = 0;
	if (ret < 0)
		TELL(-ret, "%s: io_uring: %m. The kernel may still use the buffer: the server ends", name), abort();
	ret = cqe->res;
	io_uring_cqe_seen(&l->ring, cqe);
	hugepin_unpin(l->domain, &pin); /* -EINVAL: none */
	return ret;
}

/* Whole blocks go past the page cache: the bytes that were moved, or -errno. */
static ssize_t move_direct(const struct export *e, bool out, char *data, size_t len, uint64_t at, bool fua)
{
	bool copied = (uintptr_t)data % e->memory_align;
	ssize_t done = 0, moved = 1;
	struct lane *l;

	if (((at | len) & (e->file_align - 1)) != 0)
		return 0;
	l = lane_take();
	if (copied && !l->buffer && !(l->buffer = hugepin_malloc(COPIED)))
		moved = -ENOMEM;
	/* A short request may end within a block. */
	while (moved > 0 && (size_t)done < len && done % e->file_align == 0) {
		size_t n = copied && len - (size_t)done > COPIED ? COPIED : len - (size_t)done;
		char *p = copied ? l->buffer : data + done;

		if (copied && out)
			memcpy(p, data + done, n);
		do
			moved = request(l, e->direct, out, p, n, at + (uint64_t)done, fua);
		while (moved == -EINTR || moved == -EAGAIN);
		if (moved > 0 && copied && !out)
			memcpy(data + done, p, (size_t)moved);
		done += moved > 0 ? moved : 0;
	}
	lane_return(l);
	return moved < 0 ? moved : done;
}

/* The rest goes through the cache, while nothing else is written. 0, or -errno. */
static int move_cached(const struct export *e, bool out, char *data, size_t len, uint64_t at, bool fua)
{
	size_t done = 0;
	int err = 0;

	pthread_rwlock_wrlock(&cache_lock);
	while (err == 0 && done < len) {
		ssize_t n = out ? pwrite(e->cached, data + done, len - done, (off_t)(at + done)) :
				  pread(e->cached, data + done, len - done, (off_t)(at + done));

		if (n > 0)
			done += (size_t)n;
		else if (n == 0 || errno != EINTR)
			err = n ? -errno : -EIO; /* EIO: the file became shorter, or takes no more */
	}
	if (out && !err && (fua ? fdatasync(e->cached) : sync_file_range(e->cached, (off_t)at, (off_t)len, WRITTEN)))
		err = -errno;
	pthread_rwlock_unlock(&cache_lock);
	return err;
}

static int flush(void *handle, uint32_t flags)
{
	(void)flags;
	return fdatasync(((struct export *)handle)->direct) < 0 ? TELL(errno, "%s: flushing: %m", name), -1 : 0;
}

static int move(const struct export *e, bool out, char *data, uint32_t len, uint64_t at, uint32_t flags)
{
	bool fua = flags & NBDKIT_FLAG_FUA;
	ssize_t done;

	if (out)
		pthread_rwlock_rdlock(&cache_lock);
	done = move_direct(e, out, data, len, at, fua);
	if (out)
		pthread_rwlock_unlock(&cache_lock);
	if (done >= 0 && done < len)
		done = move_cached(e, out, data + done, len - (size_t)done, at + (uint64_t)done, fua);
	return done < 0 ? TELL((int)-done, "%s: %s %u bytes at %llu: %m", name, out ? "writing" : "reading", len,
			       (unsigned long long)at), -1 : 0;
}

static int serve_read(void *handle, void *data, uint32_t len, uint64_t at, uint32_t flags)
{
	return move(handle, false, data, len, at, flags);
}

static int serve_write(void *handle, const void *data, uint32_t len, uint64_t at, uint32_t flags)
{
	return move(handle, true, (char *)data, len, at, flags);
}

static int zero(void *handle, uint32_t len, uint64_t at, uint32_t flags)
{
	struct export *e = handle;
	int mode = flags & NBDKIT_FLAG_MAY_TRIM ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE : FALLOC_FL_ZERO_RANGE;
	int err;

	pthread_rwlock_wrlock(&cache_lock); /* the kernel clears parts of blocks in the cache */
	err = fallocate(e->direct, mode, (off_t)at, len) < 0 ? errno : 0;
	pthread_rwlock_unlock(&cache_lock);
	/* The file system cannot, or a device shall clear a part of a block: nbdkit writes zeros then. */
	if (err == EOPNOTSUPP || err == EINVAL || err == ENODEV)
		return errno = EOPNOTSUPP, -1;
	if (err)
		return TELL(err, "%s: clearing %u bytes at %llu: %m", name, len, (unsigned long long)at), -1;
	return flags & NBDKIT_FLAG_FUA ? flush(e, 0) : 0;
}

/* Trimming is advice, which a file need not follow. */
static int trim(void *handle, uint32_t len, uint64_t at, uint32_t flags)
{
	return zero(handle, len, at, flags | NBDKIT_FLAG_MAY_TRIM) < 0 && errno != EOPNOTSUPP ? -1 : 0;
}

static int extents(void *handle, uint32_t len, uint64_t at, uint32_t flags, struct nbdkit_extents *list)
{
	int fd = ((struct export *)handle)->direct;
	off_t here = (off_t)at, end = here + len, next;

	(void)flags;
	for (; here < end; here = next) {
		off_t data = lseek(fd, here, SEEK_DATA);

		if (data < 0 && errno == ENXIO)
			data = end; /* there is none from here on */
		next = data == here ? lseek(fd, here, SEEK_HOLE) : data;
		if (next < 0)
			return TELL(errno, "%s: looking for holes: %m", name), -1;
		if (nbdkit_add_extent(list, (uint64_t)here, (uint64_t)(next - here),
				      data == here ? 0 : NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO) < 0)
			return -1;
	}
	return 0;
}

static void file_close(void *handle)
{
	struct export *e = handle;

	close(e->cached);
	close(e->direct);
	free(e);
}

static void *file_open(int readonly)
{
	int flags = O_CLOEXEC | O_NOCTTY | (readonly ? O_RDONLY : O_RDWR), err;
	struct export *e;
	struct statx s;

	if (statx(AT_FDCWD, name, 0, STATX_TYPE | STATX_DIOALIGN, &s) < 0)
		return TELL(errno, "%s: %m", name), NULL;
	if (!S_ISREG(s.stx_mode) && !S_ISBLK(s.stx_mode))
		return TELL(EINVAL, "%s is neither a regular file nor a block device", name), NULL;
	e = calloc(1, sizeof *e);
	if (!e)
		return TELL(errno, "%m"), NULL;
	e->cached = open(name, flags);
	if (e->cached < 0 && !readonly) {
		nbdkit_debug("%s: %m: for reading alone", name);
		flags &= ~O_RDWR;
		e->cached = open(name, flags);
	}
	e->writes = flags & O_RDWR;
	e->direct = e->cached < 0 ? -1 : open(name, flags | O_DIRECT);
	err = e->direct < 0 ? errno : 0;
	e->memory_align = e->file_align = 4096; /* a kernel before 6.1, or a file system that does not say */
	if (s.stx_mask & STATX_DIOALIGN) {
		e->memory_align = s.stx_dio_mem_align;
		e->file_align = s.stx_dio_offset_align; /* 0: no direct requests for this file */
		err = err || e->file_align ? err : EINVAL;
	}
	if (err) {
		file_close(e);
		return TELL(err, err != EINVAL ? "%s: %m" : "%s: its file system has no direct requests (O_DIRECT). "
			    "nbdkit's file plug-in serves it", name), NULL;
	}
	posix_fadvise(e->cached, 0, 0, POSIX_FADV_RANDOM); /* no pages that nobody asked for */
	return e;
}

static int config(const char *key, const char *value)
{
	if (strcmp(key, "file") != 0)
		return TELL(EINVAL, "%s: no such parameter, there is file=PATH alone", key), -1;
	free(name);
	name = nbdkit_absolute_path(value);
	return name ? 0 : -1;
}

/* The first lane, which all requests can wait for. */
static int after_fork(void)
{
	int err = lane_make();

	return err ? TELL(-err, "io_uring: %m. It needs Linux 5.19, and permission (sysctl kernel.io_uring_disabled, a "
			  "container's filter). nbdkit's file plug-in needs neither"), -1 : 0;
}

/* What would go wrong later is said at the start. */
static int get_ready(void)
{
	struct export *e;

	if (!name)
		return TELL(EINVAL, "file=PATH is missing: a regular file or a block device"), -1;
	e = file_open(true);
	if (!e || after_fork() < 0)
		return -1;
	file_close(e);
	lanes_end();
	return 0;
}

static void unload(void)
{
	lanes_end();
	free(name);
}

/* Any request is served, since a file may end within a block. Whole blocks are served better. */
static int block_size(void *handle, uint32_t *minimum, uint32_t *preferred, uint32_t *maximum)
{
	unsigned align = ((struct export *)handle)->file_align;

	*minimum = 1;
	*preferred = align < 4096 ? 4096 : align;
	*maximum = UINT32_MAX;
	return 0;
}

static int64_t get_size(void *handle) { return lseek(((struct export *)handle)->cached, 0, SEEK_END); }
static int can_write(void *handle) { return ((struct export *)handle)->writes; }
static int can_extents(void *handle) { return lseek(((struct export *)handle)->direct, 0, SEEK_HOLE) >= 0; }
static int can_fua(void *handle) { return (void)handle, NBDKIT_FUA_NATIVE; }
static int can_multi_conn(void *handle) { return (void)handle, 1; }

static struct nbdkit_plugin plugin = {
	.name = "hugepin", .longname = "O_DIRECT by io_uring, with hugepin's registered buffers",
	.magic_config_key = "file", .config_help = "file=PATH  (required) A regular file or a block device.",
	.config = config, .get_ready = get_ready, .after_fork = after_fork, .unload = unload,
	.open = file_open, .close = file_close, .get_size = get_size, .block_size = block_size,
	.can_write = can_write, .can_fua = can_fua, .can_multi_conn = can_multi_conn, .can_extents = can_extents,
	.pread = serve_read, .pwrite = serve_write, .flush = flush, .trim = trim, .zero = zero, .extents = extents,
	.errno_is_preserved = 1,
};

NBDKIT_REGISTER_PLUGIN(plugin)
