#include "reg/uffd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "reg/domain.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

/* PROCMAP_QUERY, of Linux 6.11: the mapping that covers an address. */
struct map_query {
	uint64_t size, flags, addr, start, end, vma_flags, page_size, offset, inode;
	uint32_t dev_major, dev_minor, name_size, build_id_size;
	uint64_t name, build_id;
};
#define MAP_QUERY _IOWR('f', 17, struct map_query)

enum { STACK_SIZE = 65536, EVENTS = 32 };

/* The descriptor is never closed, and the thread never ends: a process that was cloned without our fork handlers may have the
 * descriptor too, and keep it, so that nothing would be released, and who unmaps would wait for a reader that is gone. */
static struct {
	_Atomic int fd; /* -1: none */
	_Atomic uint32_t round; /* odd while events are read and queued; waited for */
	_Atomic uint32_t waiters; /* threads have waited for it since it was last woken */
	int maps; /* /proc/self/maps, to ask for mappings; -1 */
} watch = { .fd = -1, .maps = -1 };

static void raise_busy(hugepin_domain *d, void *unused)
{
	(void)unused;
	d->attention |= HP_BUSY;
}

static void lower_busy(hugepin_domain *d, void *unused)
{
	(void)unused;
	d->attention &= ~(uint32_t)HP_BUSY;
}

void hp_uffd_wait(void)
{
	uint32_t seen = watch.round;

	while (seen & 1 && watch.round == seen) {
		watch.waiters = 1;
		hp_futex_wait(&watch.round, seen, 1000000);
	}
}

static void push(uint64_t start, uint64_t end, bool discarded)
{
	struct hp_range r = { .start = start, .end = end, .discarded = discarded };

	hp_domains_each(hp_domain_push, &r);
}

static void handle(const struct uffd_msg *m)
{
	switch (m->event) {
	case UFFD_EVENT_UNMAP:
	case UFFD_EVENT_REMOVE: /* comes before the pages go */
		push(m->arg.remove.start, m->arg.remove.end, m->event == UFFD_EVENT_REMOVE);
		break;
	case UFFD_EVENT_REMAP:
		push(m->arg.remap.from, m->arg.remap.from + m->arg.remap.len, false);
		push(m->arg.remap.to, m->arg.remap.to + m->arg.remap.len, false);
		break;
	default:
		break;
	}
}

/* One read a round, so that who waits for its end does not wait as long as others go on unmapping. False: the program has closed
 * the descriptor. */
static bool read_round(int fd)
{
	struct uffd_msg m[EVENTS];
	ssize_t n;
	bool lost;

	watch.round++;
	/* Before the event is read: then the thread that waits for that finds it raised. */
	hp_domains_each(raise_busy, NULL);
	n = read(fd, m, sizeof m);
	lost = n < 0 && errno != EAGAIN && errno != EINTR;
	if (lost) {
		watch.fd = -1;
		push(0, UINTPTR_MAX, false);
	}
	for (ssize_t i = 0; i < n / (ssize_t)sizeof *m; i++)
		handle(&m[i]);
	hp_domains_each(lower_busy, NULL);
	watch.round++;
	if (atomic_exchange(&watch.waiters, 0))
		hp_futex_wake(&watch.round);
	hp_domains_wake();
	return !lost;
}

static void *run(void *fd)
{
	struct pollfd p = { .fd = (int)(intptr_t)fd, .events = POLLIN };

	prctl(PR_SET_NAME, "hugepin watch", 0, 0, 0);
	do
		poll(&p, 1, -1);
	while (read_round(p.fd));
	return NULL;
}

static int open_fd(void)
{
	/* What a kernel does not know makes it refuse, and the descriptor is spoilt. */
	static const uint64_t features[] = {
		UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
		UFFD_FEATURE_PAGEFAULT_FLAG_WP,
	};

	for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
		struct uffdio_api api = { .api = UFFD_API,
					  .features = features[i] | UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE |
						      UFFD_FEATURE_EVENT_REMAP };
		int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

		if (fd < 0)
			return -1;
		if (ioctl(fd, UFFDIO_API, &api) == 0)
			return fd;
		close(fd);
	}
	return -1;
}

static bool start(int fd)
{
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t thread;
	bool ok = false;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_attr_init(&attr) == 0) {
		pthread_attr_setstacksize(&attr, STACK_SIZE);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		ok = pthread_create(&thread, &attr, run, (void *)(intptr_t)fd) == 0;
		pthread_attr_destroy(&attr);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return ok;
}

void hp_uffd_open(void)
{
	int saved = errno, fd;

	if (watch.fd < 0 && (fd = open_fd()) >= 0) {
		if (watch.maps < 0) /* else an earlier start failed */
			watch.maps = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
		watch.fd = fd;
		if (!start(fd)) {
			watch.fd = -1;
			close(fd);
		}
	}
	errno = saved;
}

static bool add(int fd, uintptr_t start, uintptr_t end)
{
	struct uffdio_register r = { .range = { start, end - start }, .mode = UFFDIO_REGISTER_MODE_WP };

	return ioctl(fd, UFFDIO_REGISTER, &r) == 0;
}

/* What is watched becomes a mapping of its own, of the 65530 that a process may have, and mremap(2) does not take several. So
 * mappings are watched as wholes where the kernel tells their bounds. *ret_unknown: it does not. */
static bool add_mappings(int fd, uintptr_t start, uintptr_t end, bool *ret_unknown)
{
	while (start < end) {
		struct map_query q = { .size = sizeof q, .addr = start };

		if (ioctl(watch.maps, MAP_QUERY, &q) != 0) {
			*ret_unknown = errno != ENOENT;
			return false;
		}
		if (!add(fd, q.start, q.end))
			return false;
		start = q.end;
	}
	return true;
}

bool hp_uffd_watch(uintptr_t start, uintptr_t end)
{
	int saved = errno, fd = watch.fd;
	bool unknown = false, ok = fd >= 0 && add_mappings(fd, start, end, &unknown);

	/* Rounded out, neighbours share it; but something may lie around it that cannot be watched. */
	if (!ok && unknown)
		ok = add(fd, start & ~(HP_PAGE - 1), hp_round_up(end, HP_PAGE)) || add(fd, start, end);
	errno = saved;
	return ok;
}

bool hp_uffd_works(void)
{
	return watch.fd >= 0;
}

void hp_uffd_child(void)
{
	int saved = errno;

	if (watch.fd >= 0)
		close(watch.fd);
	if (watch.maps >= 0)
		close(watch.maps);
	watch.fd = watch.maps = -1;
	watch.round = 0;
	errno = saved;
}
