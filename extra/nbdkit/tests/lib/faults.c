/*
 * Stands before liburing and hugepin in nbdkit, for nbdkit.sh. FAULTS has words that say what goes wrong: see below. The
 * file FAULTS_SAID gets what was done, at the end.
 */
#include <dlfcn.h>
#include <errno.h>
#include <hugepin_uring.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned by_index, by_address, buffers, rings, forced, flushed;
/* No direct write may be under way beside what goes through the page cache, or before that is written: how often it was. */
static int writes, cached, dirty, met;

static int fault(const char *word)
{
	const char *faults = getenv("FAULTS");

	return faults && strstr(faults, word);
}

/* nbdkit opens its plug-ins so that their libraries are no next ones. */
static void *next(const char *library, const char *name)
{
	void *l = dlopen(library, RTLD_NOW | RTLD_NOLOAD), *f = l ? dlsym(l, name) : NULL;

	if (!f)
		abort();
	return f;
}

__attribute__((destructor)) static void say(void)
{
	const char *name = getenv("FAULTS_SAID");
	FILE *f = name && by_index + by_address ? fopen(name, "w") : NULL;

	if (f) {
		fprintf(f, "by index %u, by address %u, buffers %u, rings %u, met %d, forced %u, flushed %u\n", by_index,
			by_address, buffers, rings, met, forced, flushed);
		fclose(f);
	}
}

int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
	int (*real)(unsigned, struct io_uring *, unsigned) = next("liburing.so.2", __func__);

	if (fault("no-ring"))
		return -EPERM;
	/* Two for the lane that is made before the fork, and the first one after it. */
	if (__atomic_add_fetch(&rings, 1, __ATOMIC_RELAXED) > 2 && fault("one-ring"))
		return -EMFILE;
	return real(entries, ring, flags);
}

static void begin(int *mine, int *other)
{
	__atomic_add_fetch(mine, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(other, __ATOMIC_SEQ_CST) || (mine == &writes && __atomic_load_n(&dirty, __ATOMIC_SEQ_CST)))
		__atomic_add_fetch(&met, 1, __ATOMIC_SEQ_CST);
}

static void end(int *mine)
{
	if (fault("meet"))
		usleep(500);
	__atomic_sub_fetch(mine, 1, __ATOMIC_SEQ_CST);
}

ssize_t pread(int fd, void *data, size_t len, off_t at)
{
	ssize_t ret;

	begin(&cached, &writes);
	ret = syscall(SYS_pread64, fd, data, len, at);
	end(&cached);
	return ret;
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t at)
{
	ssize_t ret;

	begin(&cached, &writes);
	ret = syscall(SYS_pwrite64, fd, data, len, at);
	__atomic_store_n(&dirty, 1, __ATOMIC_SEQ_CST);
	end(&cached);
	return ret;
}

int sync_file_range(int fd, off_t at, off_t len, unsigned flags)
{
	int ret = (int)syscall(SYS_sync_file_range, fd, at, len, flags);

	__atomic_store_n(&dirty, 0, __ATOMIC_SEQ_CST);
	return ret;
}

int fdatasync(int fd)
{
	int ret = (int)syscall(SYS_fdatasync, fd);

	__atomic_add_fetch(&flushed, 1, __ATOMIC_RELAXED);
	/* One that only flushes leaves `dirty` to the write that is under way. */
	if (!__atomic_load_n(&cached, __ATOMIC_SEQ_CST))
		__atomic_store_n(&dirty, 0, __ATOMIC_SEQ_CST);
	return ret;
}

int fallocate(int fd, int mode, off_t at, off_t len)
{
	int ret;

	begin(&cached, &writes);
	ret = (int)syscall(SYS_fallocate, fd, mode, at, len);
	end(&cached);
	return ret;
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait)
{
	static unsigned requests, waiting;
	int (*real)(struct io_uring *, unsigned) = next("liburing.so.2", __func__), ret;
	struct io_uring_sqe *sqe = &ring->sq.sqes[0]; /* a lane's ring has one */
	struct io_uring_cqe *cqe;
	unsigned number = __atomic_add_fetch(&requests, 1, __ATOMIC_RELAXED);
	int failed = fault("broken") || (number % 5 == 0 && fault("again"));
	int writing = sqe->opcode == IORING_OP_WRITE_FIXED || sqe->opcode == IORING_OP_WRITE;

	if (sqe->opcode == IORING_OP_READ_FIXED || sqe->opcode == IORING_OP_WRITE_FIXED)
		__atomic_add_fetch(&by_index, 1, __ATOMIC_RELAXED);
	else
		__atomic_add_fetch(&by_address, 1, __ATOMIC_RELAXED);
	if (sqe->rw_flags & RWF_DSYNC)
		__atomic_add_fetch(&forced, 1, __ATOMIC_RELAXED);
	if (failed)
		io_uring_prep_nop(sqe);
	if (number % 3 == 0 && fault("short") && sqe->len > 4096)
		sqe->len = sqe->len / 2 & ~4095U; /* whole sectors */
	__atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
	while (fault("crowd") && __atomic_load_n(&waiting, __ATOMIC_SEQ_CST) < 20)
		usleep(1000);
	if (writing)
		begin(&writes, &cached);
	ret = real(ring, wait);
	if (writing)
		end(&writes);
	if (ret >= 0 && io_uring_wait_cqe(ring, &cqe) == 0) {
		if (failed)
			cqe->res = fault("broken") ? -EIO : -EAGAIN;
		/* Of a request that was served in full, the end is asked for again. */
		if (number % 3 == 1 && fault("odd") && cqe->res > 100)
			cqe->res -= 100;
	}
	return ret;
}

int hugepin_pin(hugepin_domain *domain, const void *data, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	int (*real)(hugepin_domain *, const void *, size_t, unsigned, struct hugepin_pin *) = next("libhugepin.so.0", __func__);

	return fault("no-pins") ? -ENOBUFS : real(domain, data, len, access, ret_);
}

int hugepin_uring_attach(hugepin_domain *domain, struct io_uring *ring, hugepin_ring **ret_)
{
	int (*real)(hugepin_domain *, struct io_uring *, hugepin_ring **) = next("libhugepin.so.0", __func__);

	return fault("no-clones") ? -EOPNOTSUPP : real(domain, ring, ret_);
}

void *hugepin_malloc(size_t size)
{
	void *(*real)(size_t) = next("libhugepin.so.0", __func__);

	__atomic_add_fetch(&buffers, 1, __ATOMIC_RELAXED);
	return fault("no-memory") ? NULL : real(size);
}
