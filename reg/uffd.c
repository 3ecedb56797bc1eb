#include "reg/uffd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/kept.h"
#include "base/proc.h"
#include "base/thread.h"
#include "reg/domains.h"

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
#define MAP_QUERY_SHARED 8

/* What the kernel calls memory of MAP_ANONYMOUS | MAP_HUGETLB, which lies in a file that has no name and no
 * descriptor. */
#define ANONYMOUS_HUGETLB "/anon_hugepage (deleted)"

enum { EVENTS = 32, DESCRIPTORS_MAX = 1024, YIELDS = 64, PAUSE_NS = 50000 };

/* How long a pin waits until nothing is changing. After each wait in vain the next one is shorter. */
#define PATIENCE_MAX_NS UINT64_C(10000000)
#define PATIENCE_MIN_NS UINT64_C(1000000)

/* The thread has a table of descriptors of its own. It never ends. A process that was cloned without fork handlers may
 * have the descriptor, too, and keep it open: then nothing would be released, and whoever unmaps would wait for a
 * reader that is gone. */
static struct {
	struct hp_kept uffd;
	struct hp_kept maps; /* /proc/self/maps, to ask for mappings */
	struct hp_lock maps_lock; /* of opening it, and of its position */
	struct hp_thread thread;
	_Atomic uint32_t round; /* odd while events are read and queued; waited for */
	_Atomic uint32_t waiters; /* threads have waited for it since it was last woken */
	_Atomic uint64_t patience_ns;
	/* The trial of the kernel's count, between who opens and the thread. */
	_Atomic bool trying, ending;
	/* Read one by one; before how many of these something was said to be changing. */
	_Atomic uint32_t events_tried, counted;
} watch = { .uffd.fd = -1, .maps.fd = -1, .maps_lock = HP_LOCK_INIT(HP_RANK_MAPS), .patience_ns = PATIENCE_MAX_NS };

/* Queues a range in a domain. Sealed: the watcher calls it. */
static HP_SEALED(struct { void (*tell)(hugepin_domain *d, void *range); }) gone_hook;

/* ------------------------------------------------------------------ descriptors */

/* Keep fd, under a number that programs do not come by: they close and open the low ones. */
static bool keep_descriptor(struct hp_kept *k, int fd)
{
	struct rlimit limit = { .rlim_cur = 0 };
	int high;

	getrlimit(RLIMIT_NOFILE, &limit);
	high = fcntl(fd, F_DUPFD_CLOEXEC, (int)HP_MIN(limit.rlim_cur, (rlim_t)DESCRIPTORS_MAX) * 15 / 16);
	if (high >= 0) {
		syscall(SYS_close, fd);
		fd = high;
	}
	if (hp_kept_set(k, fd))
		return true;
	syscall(SYS_close, fd);
	return false;
}

/* ------------------------------------------------------------------ the thread */

static void raise_busy(hugepin_domain *d, void *unused)
{
	(void)unused;
	hp_attention_raise(d, HP_BUSY);
}

static void lower_busy(hugepin_domain *d, void *unused)
{
	(void)unused;
	hp_attention_lower(d, HP_BUSY);
}

static void tell_gone(uint64_t start, uint64_t end, bool discarded)
{
	struct hp_range r = { .start = start, .end = end, .discarded = discarded, .late = discarded };

	hp_domains_each(gone_hook.is.tell, &r);
}

static void handle_event(const struct uffd_msg *m)
{
	switch (m->event) {
	case UFFD_EVENT_UNMAP:
	case UFFD_EVENT_REMOVE: /* comes before the pages go */
		tell_gone(m->arg.remove.start, m->arg.remove.end, m->event == UFFD_EVENT_REMOVE);
		break;
	case UFFD_EVENT_REMAP:
		tell_gone(m->arg.remap.from, m->arg.remap.from + m->arg.remap.len, false);
		tell_gone(m->arg.remap.to, m->arg.remap.to + m->arg.remap.len, false);
		break;
	default:
		break;
	}
}

/* UFFDIO_WRITEPROTECT looks at the count before it looks at its argument, a range that is empty and refused. (An
 * address where nothing can be read would be refused, too, but by a page fault in the kernel: five times as long.) */
static enum hp_change ask(int fd)
{
	static const struct uffdio_writeprotect nothing;

	if (syscall(SYS_ioctl, fd, UFFDIO_WRITEPROTECT, &nothing) != -1)
		return HP_UNTOLD;
	return errno == EINVAL ? HP_QUIET : errno == EAGAIN ? HP_CHANGING : HP_UNTOLD;
}

/* seq_cst: the second time before `waiters` is read; pairs with hp_uffd_wait(). */
static void turn_round(void)
{
	atomic_fetch_add_explicit(&watch.round, 1, memory_order_seq_cst);
}

/* One read a round: whoever waits for the end of a round would else wait as long as others go on unmapping. False:
 * there are no more rounds. */
static bool read_round(int fd)
{
	struct uffd_msg m[EVENTS];
	/* Before the event that comes after it is read. acquire: pairs with counts() and start_watcher(). */
	bool trying = atomic_load_explicit(&watch.trying, memory_order_acquire);
	bool ending = atomic_load_explicit(&watch.ending, memory_order_acquire);
	long n;
	bool lost;

	if (trying) {
		/* release: before the event is read; pairs with has_counted_all(). */
		atomic_fetch_add_explicit(&watch.events_tried, 1, memory_order_release);
		atomic_fetch_add_explicit(&watch.counted, ask(fd) == HP_CHANGING, memory_order_release);
	}
	turn_round();
	/* Before the event is read: the thread that unmaps waits for that read, and finds BUSY raised. */
	hp_domains_each(raise_busy, NULL);
	n = syscall(SYS_read, fd, m, trying ? sizeof *m : sizeof m);
	lost = n < 0 && errno != EAGAIN && errno != EINTR; /* where a sanitizer has us share the program's table */
	if (lost) {
		hp_kept_forget(&watch.uffd);
		tell_gone(0, UINTPTR_MAX, false);
	}
	for (long i = 0; i < n / (long)sizeof *m; i++)
		handle_event(&m[i]);
	hp_domains_each(lower_busy, NULL);
	turn_round();
	/* seq_cst: who has set it has seen an older round, or waits; pairs with hp_uffd_wait(). */
	if (atomic_exchange_explicit(&watch.waiters, 0, memory_order_seq_cst))
		hp_futex_wake(&watch.round);
	hp_domains_wake();
	return !lost && !ending;
}

static void run_watcher(void *fd)
{
	struct pollfd p = { .fd = (int)(intptr_t)fd, .events = POLLIN };

	do
		syscall(SYS_poll, &p, 1, -1);
	while (read_round(p.fd));
}

static const struct hp_thread_kind kind = {
	.name = "hugepin watch",
	.run = run_watcher,
	.calls = { SYS_poll, SYS_read, SYS_ioctl, SYS_futex },
	.calls_count = 4,
};

/* ------------------------------------------------------------------ waiting */

/* The program has closed the descriptor, or put another in its place. The thread goes on: memory is still watched, and
 * whoever unmaps it waits for the thread. */
static void lose_descriptor(void)
{
	hp_kept_forget(&watch.uffd);
	tell_gone(0, UINTPTR_MAX, false);
}

enum hp_change hp_uffd_ask(void)
{
	int saved_errno = errno, fd = hp_kept_fd(&watch.uffd);
	enum hp_change change = fd < 0 ? HP_UNTOLD : ask(fd);

	if (HP_UNLIKELY(change == HP_UNTOLD && fd >= 0))
		lose_descriptor();
	errno = saved_errno;
	return change;
}

/* seq_cst: after `waiters` is written; pairs with turn_round(). */
static uint32_t get_round(void)
{
	return atomic_load_explicit(&watch.round, memory_order_seq_cst);
}

void hp_uffd_wait(void)
{
	uint32_t seen = get_round();

	while (seen & 1 && get_round() == seen) {
		/* Before the word is slept on; pairs with read_round(). */
		atomic_store_explicit(&watch.waiters, 1, memory_order_seq_cst);
		hp_futex_wait(&watch.round, seen, 1000000);
	}
}

static uint64_t get_patience(void)
{
	return atomic_load_explicit(&watch.patience_ns, memory_order_relaxed);
}

static void set_patience(uint64_t ns)
{
	atomic_store_explicit(&watch.patience_ns, ns, memory_order_relaxed);
}

bool hp_uffd_settle(uint64_t worth_ns)
{
	static _Atomic uint32_t never;
	uint64_t usual_ns = get_patience(), patience_ns = HP_MAX(usual_ns, worth_ns), begun_ns = 0;
	unsigned tries = 0;

	if (hp_kept_fd(&watch.uffd) >= 0 && !hp_kept_is_there(&watch.uffd)) /* another userfaultfd would answer */
		lose_descriptor();
	while (hp_uffd_ask() == HP_CHANGING) {
		uint64_t now_ns = hp_clock_ns();

		begun_ns = begun_ns ? begun_ns : now_ns;
		if (now_ns - begun_ns > patience_ns) {
			usual_ns = get_patience() / 2;
			set_patience(HP_MAX(usual_ns, PATIENCE_MIN_NS));
			return false;
		}
		/* Ask often at first: where others unmap all the time, the moments in which none does are short. */
		if (tries++ < YIELDS)
			sched_yield();
		else
			hp_futex_wait(&never, 0, PAUSE_NS);
	}
	if (get_patience() < PATIENCE_MAX_NS)
		set_patience(PATIENCE_MAX_NS);
	hp_uffd_wait(); /* what was read is being queued */
	return true;
}

/* ------------------------------------------------------------------ opening */

static int open_fd(void)
{
	/* What a kernel does not know makes it refuse, and the descriptor is spoilt. The heap's pages of the pool need
	 * the second. */
	static const uint64_t features[] = {
		UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
		UFFD_FEATURE_PAGEFAULT_FLAG_WP,
	};

	for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
		struct uffdio_api api = { .api = UFFD_API,
					  .features = features[i] | UFFD_FEATURE_EVENT_UNMAP |
						     UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP };
		int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

		if (fd < 0)
			return -1;
		if (syscall(SYS_ioctl, fd, UFFDIO_API, &api) == 0)
			return fd;
		syscall(SYS_close, fd);
	}
	return -1;
}

static bool watch_range(int fd, uintptr_t start, uintptr_t end)
{
	struct uffdio_register r = { .range = { start, end - start }, .mode = UFFDIO_REGISTER_MODE_WP };

	return syscall(SYS_ioctl, fd, UFFDIO_REGISTER, &r) == 0;
}

/* After events were read, as calls that made them have waited for that. acquire: pairs with read_round(). */
static bool has_counted_all(uint32_t at_least)
{
	uint32_t events = atomic_load_explicit(&watch.events_tried, memory_order_acquire);

	return events >= at_least && atomic_load_explicit(&watch.counted, memory_order_acquire) == events;
}

/* Until Linux 5.15 the count was a flag, lowered while a second change was under way. So one call makes two: a watched
 * page moved onto another is first what lay there unmapped, then the move; both are counted before the first is told.
 * The thread reads them one by one, and each time something must be said to be changing. */
static bool counts(int fd, char *three_pages)
{
	char *to = three_pages + 2 * HP_BASE_PAGE;
	bool moved, quiet = ask(fd) == HP_QUIET;

	atomic_store_explicit(&watch.events_tried, 0, memory_order_relaxed);
	atomic_store_explicit(&watch.counted, 0, memory_order_relaxed);
	atomic_store_explicit(&watch.trying, true, memory_order_release); /* pairs with read_round() */
	moved = (char *)syscall(SYS_mremap, three_pages, HP_BASE_PAGE, HP_BASE_PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
				to) == to;
	atomic_store_explicit(&watch.trying, false, memory_order_release); /* pairs with read_round() */
	return moved && quiet && has_counted_all(2) && ask(fd) == HP_QUIET;
}

static bool may_read(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct uffd_msg m;

	return syscall(SYS_poll, &p, 1, 0) == 0 && syscall(SYS_read, fd, &m, sizeof m) < 0 && errno == EAGAIN;
}

static bool start_watcher(int fd)
{
	size_t len = 3 * HP_BASE_PAGE;
	char *p = (char *)syscall(SYS_mmap, NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool ok = false;

	if (p == MAP_FAILED)
		return false;
	/* The thread gets the seccomp filters of this one: what they refuse must be known before anybody waits for
	 * it. */
	if (!may_read(fd)) {
		syscall(SYS_munmap, p, len);
		return false;
	}
	atomic_store_explicit(&watch.ending, false, memory_order_relaxed);
	if (watch_range(fd, (uintptr_t)p, (uintptr_t)p + len) &&
	    hp_thread_start(&watch.thread, &kind, (void *)(intptr_t)fd, fd)) {
		/* Whoever unmaps waits for the thread: a higher priority, which is refused without privilege. */
		syscall(SYS_setpriority, PRIO_PROCESS, hp_thread_tid(&watch.thread), -10);
		ok = counts(fd, p);
		atomic_store_explicit(&watch.ending, !ok, memory_order_release); /* pairs with read_round() */
		syscall(SYS_munmap, p, len); /* which it is told, and so comes to its end, if it is to */
		if (!ok)
			hp_thread_join(&watch.thread);
	} else {
		struct uffdio_range r = { (uintptr_t)p, len };

		syscall(SYS_ioctl, fd, UFFDIO_UNREGISTER, &r); /* nobody would read what munmap waits for */
		syscall(SYS_munmap, p, len);
	}
	return ok;
}

void hp_uffd_open(void (*gone)(hugepin_domain *d, void *range))
{
	int saved_errno = errno, fd;

	if (!gone_hook.is.tell) {
		gone_hook.is.tell = gone;
		hp_seal(&gone_hook, sizeof gone_hook);
	}
	/* After a descriptor was lost there is a thread that still reads: no second one. */
	if (hp_kept_fd(&watch.uffd) < 0 && !hp_thread_tid(&watch.thread) && (fd = open_fd()) >= 0 &&
	    keep_descriptor(&watch.uffd, fd) && !start_watcher(hp_kept_fd(&watch.uffd)))
		hp_kept_close(&watch.uffd);
	errno = saved_errno;
}

/* ------------------------------------------------------------------ mappings */

struct mapping {
	uintptr_t start, end;
	bool is_private; /* and no file backs it */
};

struct sought {
	uintptr_t addr;
	struct mapping *ret_;
	bool found;
};

static bool look_at_mapping(void *sought, const struct hp_mapping *m)
{
	struct sought *s = sought;
	bool is_private = !m->shared && (!m->has_inode || (!m->cut && strcmp(m->name, ANONYMOUS_HUGETLB) == 0));

	if (s->addr >= m->start && s->addr < m->end) {
		*s->ret_ = (struct mapping){ m->start, m->end, is_private };
		s->found = true;
	}
	return s->addr >= m->end;
}

/* Find the mapping of addr in /proc/self/maps, from the first line on: Linux before 6.11 has no PROCMAP_QUERY. */
static bool read_mapping(uintptr_t addr, struct mapping *ret_)
{
	struct sought s = { .addr = addr, .ret_ = ret_ };
	char text[8192];

	hp_lock(&watch.maps_lock);
	hp_mappings_each(hp_kept_fd(&watch.maps), text, sizeof text, look_at_mapping, &s);
	hp_unlock(&watch.maps_lock);
	return s.found;
}

static bool open_maps(void)
{
	bool ok;
	int fd;

	hp_lock(&watch.maps_lock);
	ok = hp_kept_is_there(&watch.maps);
	if (!ok) {
		fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
		ok = fd >= 0 && keep_descriptor(&watch.maps, fd);
	}
	hp_unlock(&watch.maps_lock);
	return ok;
}

/* The mapping that covers addr. 0 and *ret_; -ENOENT: none; -ENOSYS: the kernel does not tell in this way. */
static int query_mapping(uintptr_t addr, struct mapping *ret_)
{
	char name[sizeof ANONYMOUS_HUGETLB + 8] = "";
	struct map_query q = { .size = sizeof q, .addr = addr, .name = (uintptr_t)name, .name_size = sizeof name };
	long r;

	if (!open_maps())
		return -ENOSYS;
	r = syscall(SYS_ioctl, hp_kept_fd(&watch.maps), MAP_QUERY, &q);
	if (r != 0 && errno == ENAMETOOLONG) {
		q.name_size = 0;
		q.name = 0;
		r = syscall(SYS_ioctl, hp_kept_fd(&watch.maps), MAP_QUERY, &q);
	}
	if (r != 0)
		return errno == ENOENT ? -ENOENT : -ENOSYS;
	*ret_ = (struct mapping){ q.start, q.end,
				 !(q.vma_flags & MAP_QUERY_SHARED) &&
					 (!q.inode || strcmp(name, ANONYMOUS_HUGETLB) == 0) };
	return 0;
}

static bool mapping_at(uintptr_t addr, struct mapping *ret_)
{
	int err = query_mapping(addr, ret_);

	return !err || (err == -ENOSYS && hp_kept_fd(&watch.maps) >= 0 && read_mapping(addr, ret_));
}

bool hp_uffd_is_private(uintptr_t start, uintptr_t end)
{
	int saved_errno = errno;
	struct mapping m;
	bool ok = true;

	for (; start < end && ok; start = m.end)
		ok = mapping_at(start, &m) && m.is_private;
	errno = saved_errno;
	return ok;
}

static bool can_add(void)
{
	if (hp_kept_fd(&watch.uffd) >= 0 && !hp_kept_is_there(&watch.uffd))
		lose_descriptor();
	return hp_kept_fd(&watch.uffd) >= 0;
}

/* A watched range becomes a mapping of its own, of the 65530 that a process may have, and mremap(2) does not take
 * several mappings. So a mapping is watched as a whole, unless a part of it has become another mapping meanwhile. */
bool hp_uffd_watch(uintptr_t start, uintptr_t end)
{
	int saved_errno = errno;
	bool ok = can_add();
	struct mapping m;

	for (; start < end && ok; start = m.end)
		ok = mapping_at(start, &m) && m.is_private &&
		     (watch_range(hp_kept_fd(&watch.uffd), m.start, m.end) ||
		      watch_range(hp_kept_fd(&watch.uffd), start, HP_MIN(end, m.end)));
	errno = saved_errno;
	return ok;
}

void hp_uffd_watch_heap(uintptr_t start, uintptr_t end)
{
	int saved_errno = errno, err;
	struct mapping m;

	for (bool ok = can_add(); start < end && ok; start = m.end) {
		err = query_mapping(start, &m);
		if (err == -ENOSYS)
			m.end = end;
		ok = err != -ENOENT && watch_range(hp_kept_fd(&watch.uffd), err ? start : m.start, m.end);
	}
	errno = saved_errno;
}

bool hp_uffd_works(void)
{
	return hp_kept_fd(&watch.uffd) >= 0;
}

void hp_uffd_child(void)
{
	int saved_errno = errno;

	hp_kept_close(&watch.uffd);
	hp_kept_close(&watch.maps);
	hp_lock_reset(&watch.maps_lock);
	hp_thread_child(&watch.thread);
	atomic_store_explicit(&watch.round, 0, memory_order_relaxed);
	set_patience(PATIENCE_MAX_NS);
	errno = saved_errno;
}
