/* See uffd.h. */
#include "reg/uffd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/kept.h"
#include "base/stats.h"
#include "base/sys.h"
#include "base/thread.h"
#include "reg/domains.h"
#include "reg/mapped.h"
#include "reg/queue.h"
#include "reg/watched.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

enum { EVENTS = 32, YIELDS = 64, PAUSE_NS = 50000, LOOKS_MAX = 8 };

/* Mappings are counted again when there are twice as many parts and PARTS_MORE, or after REFUSALS_MAX refused ones. */
enum { PARTS_MORE = 64, REFUSALS_MAX = 4096 };

/* The kernel walks all pages of a part that is taken back. So a longer part stays while there are not more than
 * PARTS_FEW. */
#define TAKE_BACK_MAX ((size_t)16 << 20)
enum { PARTS_FEW = 64 };

/* How long a pin waits until no memory is changing. Each wait in vain makes the next one shorter. */
#define PATIENCE_MAX_NS UINT64_C(10000000)
#define PATIENCE_MIN_NS UINT64_C(1000000)

/* The watcher. Its thread has a descriptor table of its own, and never ends, because a process that was cloned without
 * fork handlers may also keep the descriptor open. If the thread ended, the kernel would then not release the
 * userfaultfd, and threads that unmap would wait for a reader that no longer exists. */
static struct {
	struct hp_kept uffd;
	struct hp_thread thread;
	/* odd while events are read and queued; a futex; relaxed: in the child no other thread */
	_Atomic uint32_t round;
	_Atomic uint32_t waiters; /* not 0: threads have begun to wait for `round` since the last wake */
	_Atomic uint64_t patience_ns; /* relaxed: a time to wait */
	/* The trial of the kernel's count, between the opening thread and the watcher. */
	_Atomic bool trying, ending; /* relaxed: hp_thread_start() starts the watcher after it */
	/* events_tried: events read one by one in the trial. counted: those before which the kernel said that something
	 * is changing. */
	_Atomic uint32_t events_tried, counted; /* relaxed: read_round() has acquired `trying` */
} watch = {
	.uffd.fd = -1,
	.patience_ns = PATIENCE_MAX_NS,
};

/* What is watched outside the heap. A part keeps the mappings that it touches from being joined, so there may be two
 * mappings more for each part. Locks: the domain's, then this one, across the calls that tell the kernel, because
 * otherwise a part might be taken back that another domain has just begun to use. */
static struct {
	struct hp_lock lock;
	struct hp_watched set;
	size_t parts_max, refused; /* refused: parts since parts_max was last looked up */
} watched = { .lock = HP_LOCK_INIT(HP_LOCK_RANK_WATCHED) };

/* Domains of which a pin may be a hit without looking whether the watcher is reading: it raises BUSY in these. Their
 * number is kept small, so that who unmaps does not wait for long: the bit stays up in the others, and the next pin
 * there has its domain added. The lock is a queue's (queue.h). */
enum { TRUSTING_MAX = 64 };
static struct {
	struct hp_lock lock;
	LIST_HEAD(, hugepin_domain) list;
	bool reading;
} trusting = { .lock = HP_LOCK_INIT(HP_LOCK_RANK_GONE) };

/* A function that queues a range in the domains that have something there. Sealed, since the watcher calls it. */
static HP_SEALED(struct { void (*tell)(const struct hp_range *range); }) gone_hook;

/* ------------------------------------------------------------------ the thread */

static void begin_reading(void)
{
	const uint64_t mask = hp_queue_lock_any(&trusting.lock);
	hugepin_domain *d;

	trusting.reading = true;
	LIST_FOREACH(d, &trusting.list, trusts)
		hp_attention_raise(d, HP_BUSY);
	hp_queue_unlock_any(&trusting.lock, mask);
}

static void end_reading(void)
{
	const uint64_t mask = hp_queue_lock_any(&trusting.lock);
	hugepin_domain *d, *next;
	unsigned n = 0;

	trusting.reading = false;
	for (d = LIST_FIRST(&trusting.list); d; d = next) {
		next = LIST_NEXT(d, trusts);
		if (n++ < TRUSTING_MAX) {
			hp_attention_lower(d, HP_BUSY);
			continue;
		}
		LIST_REMOVE(d, trusts);
		d->is_trusting = false;
	}
	hp_queue_unlock_any(&trusting.lock, mask);
}

void hp_uffd_trust(hugepin_domain *d)
{
	const uint64_t mask = hp_queue_lock_any(&trusting.lock);

	if (!d->is_trusting) {
		d->is_trusting = true;
		LIST_INSERT_HEAD(&trusting.list, d, trusts);
		if (trusting.reading)
			hp_attention_raise(d, HP_BUSY);
		else
			hp_attention_lower(d, HP_BUSY);
	}
	hp_queue_unlock_any(&trusting.lock, mask);
}

void hp_uffd_distrust(hugepin_domain *d)
{
	const uint64_t mask = hp_queue_lock_any(&trusting.lock);

	if (d->is_trusting)
		LIST_REMOVE(d, trusts);
	d->is_trusting = false;
	hp_queue_unlock_any(&trusting.lock, mask);
}

static void tell_gone(uint64_t start, uint64_t end, bool discarded)
{
	struct hp_range r = {
		.start = start, .end = end, .discarded = discarded, .late = discarded, .past = !discarded
	};

	gone_hook.is.tell(&r);
}

static void handle_event(const struct uffd_msg *m)
{
	switch (m->event) {
	case UFFD_EVENT_UNMAP:
	case UFFD_EVENT_REMOVE: /* this event comes before the pages go */
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

/* Ask the kernel whether something is changing. UFFDIO_WRITEPROTECT reads the count of changes before it checks its
 * argument, here an empty range, which is refused. (An unreadable address would be refused, too, but by a page fault in
 * the kernel, which takes five times as long.) */
static enum hp_change ask(int fd)
{
	static const struct uffdio_writeprotect nothing;
	const long r = hp_sys(SYS_ioctl, fd, UFFDIO_WRITEPROTECT, &nothing);

	return r == -EINVAL ? HP_QUIET : r == -EAGAIN ? HP_CHANGING : HP_UNTOLD;
}

/* seq_cst: the second turn of a round comes before `waiters` is read; pairs with hp_uffd_wait(). */
static void turn_round(void)
{
	atomic_fetch_add_explicit(&watch.round, 1, memory_order_seq_cst);
}

/* Read and queue events once. A round has only one read, because with more a thread that waits for the end of the round
 * would wait while others go on unmapping. False: there are no more rounds. */
static bool read_round(int fd)
{
	struct uffd_msg m[EVENTS];
	/* acquire: read before the event that comes after the flag was set; pairs with counts() and start_watcher(). */
	bool trying = atomic_load_explicit(&watch.trying, memory_order_acquire);
	bool ending = atomic_load_explicit(&watch.ending, memory_order_acquire);
	long n;
	bool lost;

	if (trying) {
		/* release: counted before the event is read; pairs with has_counted_all(). */
		atomic_fetch_add_explicit(&watch.events_tried, 1, memory_order_release);
		atomic_fetch_add_explicit(&watch.counted, ask(fd) == HP_CHANGING, memory_order_release);
	}
	turn_round();
	/* Raise BUSY before the event is read: the thread that unmaps waits for the read, and so finds BUSY raised. */
	begin_reading();
	n = hp_sys(SYS_read, fd, m, trying ? sizeof *m : sizeof m);
	/* possible under a sanitizer, where the thread shares the program's table */
	lost = n < 0 && n != -EAGAIN && n != -EINTR;
	if (lost) {
		hp_kept_forget(&watch.uffd);
		tell_gone(0, UINTPTR_MAX, false);
	}
	for (long i = 0; i < n / (long)sizeof *m; i++)
		handle_event(&m[i]);
	end_reading();
	turn_round();
	/* seq_cst: a thread that set `waiters` has seen an older round, or waits; pairs with hp_uffd_wait(). */
	if (atomic_exchange_explicit(&watch.waiters, 0, memory_order_seq_cst))
		hp_futex_wake(&watch.round);
	hp_domains_wake();
	return !lost && !ending;
}

static void run_watcher(void *fd)
{
	struct pollfd p = { .fd = (int)(intptr_t)fd, .events = POLLIN };

	do
		hp_sys(SYS_ppoll, &p, 1);
	while (read_round(p.fd));
}

static const struct hp_thread_kind kind = {
	.name = "hugepin watch",
	.run = run_watcher,
	.calls = { SYS_ppoll, SYS_read, SYS_ioctl, SYS_futex },
	.calls_count = 4,
};

/* ------------------------------------------------------------------ waiting */

/* Called when the program has closed the descriptor, or put another in its place. The watcher goes on, because memory
 * is still watched, and threads that unmap wait for the watcher. */
static void lose_descriptor(void)
{
	hp_kept_forget(&watch.uffd);
	tell_gone(0, UINTPTR_MAX, false);
}

enum hp_change hp_uffd_ask(void)
{
	int fd = hp_kept_fd(&watch.uffd);
	enum hp_change change;

	if (HP_UNLIKELY(fd < 0))
		return HP_UNTOLD;
	change = ask(fd);
	if (HP_UNLIKELY(change == HP_UNTOLD))
		lose_descriptor();
	return change;
}

/* seq_cst: read after `waiters` is written; pairs with turn_round(). */
static uint32_t get_round(void)
{
	return atomic_load_explicit(&watch.round, memory_order_seq_cst);
}

void hp_uffd_wait(void)
{
	uint32_t seen = get_round();

	while (seen & 1 && get_round() == seen) {
		/* seq_cst: written before this thread sleeps; pairs with read_round(). */
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

void hp_uffd_heed(hugepin_domain *d)
{
	if (!hp_attention_is(d, HP_BUSY))
		return;
	hp_uffd_wait();
	hp_uffd_trust(d);
}

bool hp_uffd_settle(uint64_t worth_ns)
{
	uint64_t usual_ns = get_patience(), patience_ns = HP_MAX(usual_ns, worth_ns), begun_ns = 0;
	unsigned tries = 0;

	/* otherwise a userfaultfd of the program might answer */
	if (hp_kept_fd(&watch.uffd) >= 0 && !hp_kept_is_there(&watch.uffd))
		lose_descriptor();
	while (hp_uffd_ask() == HP_CHANGING) {
		uint64_t now_ns = hp_clock_ns();

		begun_ns = begun_ns ? begun_ns : now_ns;
		if (now_ns - begun_ns > patience_ns) {
			usual_ns = get_patience() / 2;
			set_patience(HP_MAX(usual_ns, PATIENCE_MIN_NS));
			return false;
		}
		/* Ask often at first, because quiet moments are short if other threads unmap all the time. */
		if (tries++ < YIELDS)
			hp_sys(SYS_sched_yield);
		else
			hp_futex_sleep(PAUSE_NS);
	}
	if (get_patience() < PATIENCE_MAX_NS)
		set_patience(PATIENCE_MAX_NS);
	hp_uffd_wait(); /* events that were read may still be on their way into the queues */
	return true;
}

/* ------------------------------------------------------------------ opening */

static int open_fd(void)
{
	/* A kernel refuses features that it does not know, and the descriptor is then useless. WP_HUGETLBFS_SHMEM is
	 * needed for the heap's pages of the pool. */
	static const uint64_t features[] = {
		UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
		UFFD_FEATURE_PAGEFAULT_FLAG_WP,
	};

	for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
		struct uffdio_api api = { .api = UFFD_API,
					  .features = features[i] | UFFD_FEATURE_EVENT_UNMAP |
						     UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP };
		int fd = (int)hp_sys(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

		if (fd < 0)
			return -1;
		if (hp_sys(SYS_ioctl, fd, UFFDIO_API, &api) == 0)
			return fd;
		hp_sys(SYS_close, fd);
	}
	return -1;
}

static bool watch_range(int fd, uintptr_t start, uintptr_t end)
{
	struct uffdio_register r = { .range = { start, end - start }, .mode = UFFDIO_REGISTER_MODE_WP };

	return hp_sys(SYS_ioctl, fd, UFFDIO_REGISTER, &r) == 0;
}

/* Whether the kernel's count was right for every event of the trial. The calls that made the events have waited until
 * the events were read. acquire: pairs with read_round(). */
static bool has_counted_all(uint32_t at_least)
{
	uint32_t events = atomic_load_explicit(&watch.events_tried, memory_order_acquire);

	return events >= at_least && atomic_load_explicit(&watch.counted, memory_order_acquire) == events;
}

/* Try whether the kernel really counts changes. Until Linux 5.15 the count was a flag, which was lowered while a second
 * change was under way. So make two changes by one call: mremap moves a watched page onto another page, which is first
 * unmapped. Both changes are counted before the first event is delivered. The watcher reads the events one by one, and
 * before each the kernel must say that something is changing. */
static bool counts(int fd, char *three_pages)
{
	char *to = three_pages + 2 * hp_base_page;
	bool moved, quiet = ask(fd) == HP_QUIET;

	atomic_store_explicit(&watch.events_tried, 0, memory_order_relaxed);
	atomic_store_explicit(&watch.counted, 0, memory_order_relaxed);
	atomic_store_explicit(&watch.trying, true, memory_order_release); /* pairs with read_round() */
	moved = (char *)hp_sys(SYS_mremap, three_pages, hp_base_page, hp_base_page, MREMAP_MAYMOVE | MREMAP_FIXED,
			       to) == to;
	atomic_store_explicit(&watch.trying, false, memory_order_release); /* pairs with read_round() */
	return moved && quiet && has_counted_all(2) && ask(fd) == HP_QUIET;
}

static bool may_read(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	const struct timespec at_once = { 0 };
	struct uffd_msg m;

	return hp_sys(SYS_ppoll, &p, 1, &at_once) == 0 && hp_sys(SYS_read, fd, &m, sizeof m) == -EAGAIN;
}

static bool start_watcher(int fd)
{
	size_t len = 3 * hp_base_page;
	char *p = (char *)hp_sys(SYS_mmap, NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	bool ok = false;

	if (hp_sys_failed((long)p))
		return false;
	/* The watcher inherits this thread's seccomp filters. If they refuse poll or read, that must be known before
	 * any thread waits for the watcher. */
	if (!may_read(fd)) {
		hp_sys(SYS_munmap, p, len);
		return false;
	}
	atomic_store_explicit(&watch.ending, false, memory_order_relaxed);
	if (watch_range(fd, (uintptr_t)p, (uintptr_t)p + len) &&
	    hp_thread_start(&watch.thread, &kind, (void *)(intptr_t)fd, fd)) {
		/* Threads that unmap wait for the watcher, so give it a higher priority. Without privilege the kernel
		 * refuses, and a filter may kill for this call. */
		if (!hp_is_filtered())
			hp_sys(SYS_setpriority, PRIO_PROCESS, hp_thread_tid(&watch.thread), -10);
		ok = counts(fd, p);
		atomic_store_explicit(&watch.ending, !ok, memory_order_release); /* pairs with read_round() */
		hp_sys(SYS_munmap, p, len); /* the watcher gets this event, and ends after it if `ending` is set */
		if (!ok)
			hp_thread_join(&watch.thread);
	} else {
		struct uffdio_range r = { (uintptr_t)p, len };

		hp_sys(SYS_ioctl, fd, UFFDIO_UNREGISTER, &r); /* munmap would wait for an event that no thread reads */
		hp_sys(SYS_munmap, p, len);
	}
	return ok;
}

void hp_uffd_open(void (*gone)(const struct hp_range *range))
{
	int saved_errno = errno, fd;

	if (!gone_hook.is.tell) {
		gone_hook.is.tell = gone;
		hp_seal(&gone_hook, sizeof gone_hook);
	}
	/* After a descriptor was lost the watcher still reads, so do not start a second one. */
	if (hp_kept_fd(&watch.uffd) < 0 && !hp_thread_tid(&watch.thread) && (fd = open_fd()) >= 0 &&
	    hp_kept_set_high(&watch.uffd, fd) && !start_watcher(hp_kept_fd(&watch.uffd)))
		hp_kept_close(&watch.uffd);
	if (hp_kept_fd(&watch.uffd) >= 0)
		hp_mapped_open();
	errno = saved_errno;
}

/* ------------------------------------------------------------------ mappings */

/* As hp_uffd_mapping(), with the lock. addr is not about to be discarded. */
static bool mapping_around(uintptr_t addr, struct hp_stretch *ret_)
{
	struct hp_mapped m;

	if (!hp_mapped_at(addr, &m) || !m.is_private)
		return false;
	*ret_ = hp_watched_around(&watched.set, addr, (struct hp_stretch){ m.start, m.end });
	return true;
}

bool hp_uffd_mapping(uintptr_t addr, struct hp_stretch *ret_)
{
	bool ok;

	hp_lock(&watched.lock);
	hp_watched_want(&watched.set, addr, addr + 1, hp_tid());
	ok = mapping_around(addr, ret_);
	hp_unlock(&watched.lock);
	return ok;
}

static bool can_add(void)
{
	if (hp_kept_fd(&watch.uffd) >= 0 && !hp_kept_is_there(&watch.uffd))
		lose_descriptor();
	return hp_kept_fd(&watch.uffd) >= 0;
}

/* Whether there may be one more part. Parts add to the mappings of the process at most a quarter of what the kernel's
 * limit leaves. Counting mappings takes long, so they are counted when the parts have doubled, and, once the limit is
 * near, only now and then. */
static bool may_add_part(void)
{
	const size_t parts = watched.set.count;

	if (parts < watched.parts_max)
		return true;
	if (watched.refused++ % REFUSALS_MAX)
		return false;
	watched.parts_max = hp_mapped_left() / 4 / 2;
	watched.parts_max = HP_MIN(HP_MIN(watched.parts_max, 2 * parts + PARTS_MORE), HP_WATCHED_PARTS_MAX);
	if (parts >= watched.parts_max)
		return false;
	watched.refused = 0;
	return true;
}

static bool is_watched(uintptr_t start, uintptr_t end)
{
	struct hp_stretch unused;

	return hp_watched_first(&watched.set, start, end, &unused);
}

static bool add_part(uintptr_t start, uintptr_t end, bool lasts)
{
	return (is_watched(start, end) || may_add_part()) &&
	       watch_range(hp_kept_fd(&watch.uffd), start, end) && hp_watched_add(&watched.set, start, end, lasts);
}

/* Take a part back from the kernel. The kernel refuses if a mapping in it has gone, or has become one of another kind;
 * then take back the mappings that are left, one by one. */
static void take_back(struct hp_stretch part)
{
	struct uffdio_range range = { part.start, part.end - part.start };
	struct hp_mapped m;

	if (hp_kept_fd(&watch.uffd) < 0 || hp_sys(SYS_ioctl, hp_kept_fd(&watch.uffd), UFFDIO_UNREGISTER, &range) == 0)
		return;
	for (uintptr_t at = part.start; at < part.end && hp_mapped_at(at, &m); at = m.end) {
		range = (struct uffdio_range){ at, HP_MIN(m.end, part.end) - at };
		hp_sys(SYS_ioctl, hp_kept_fd(&watch.uffd), UFFDIO_UNREGISTER, &range);
	}
}

static void take_back_idle(uintptr_t start, uintptr_t end)
{
	const size_t len_max = watched.set.count > PARTS_FEW ? SIZE_MAX : TAKE_BACK_MAX;
	struct hp_stretch part;

	while (hp_watched_take_idle(&watched.set, start, end, len_max, &part))
		take_back(part);
}

static void end_use(uintptr_t start, uintptr_t end)
{
	hp_watched_end_use(&watched.set, start, end);
	take_back_idle(start, end);
}

static void show_parts(void)
{
	HP_STAT_ADD(watched_ranges, watched.set.count - HP_STAT(watched_ranges));
}

/* Watch whole mappings, because a watched range becomes a mapping of its own, a process may have only 65530 of them,
 * and mremap(2) does not move several at once. But leave out what other threads are about to discard, because their
 * discards are not to be told. Watch the range alone only if that fails, because a part of the mapping has become another
 * one meanwhile. Then look again: what another thread maps into a hole meanwhile is not watched, and so is a mapping of
 * its own. */
static int watch_mappings(uintptr_t start, uintptr_t end, bool lasts)
{
	unsigned looks = LOOKS_MAX;
	struct hp_stretch part, now;

	hp_watched_want(&watched.set, start, end, hp_tid());
	while (start < end) {
		if (!looks-- || !mapping_around(start, &part))
			return -EXDEV;
		if (!add_part(part.start, part.end, lasts)) {
			part = (struct hp_stretch){ start, HP_MIN(end, part.end) };
			if (!add_part(part.start, part.end, lasts))
				return -EADDRINUSE;
		}
		if (mapping_around(start, &now) && now.start <= part.start && now.end >= part.end) {
			start = part.end;
			looks = LOOKS_MAX;
		}
	}
	return 0;
}

int hp_uffd_watch(uintptr_t start, uintptr_t end)
{
	int err = -EADDRINUSE;

	if (!can_add())
		return -ENXIO;
	hp_lock(&watched.lock);
	if (hp_watched_use(&watched.set, start, end)) {
		err = watch_mappings(start, end, false);
		if (err)
			end_use(start, end);
	}
	show_parts();
	hp_unlock(&watched.lock);
	return err;
}

void hp_uffd_watch_unmap(uintptr_t start, uintptr_t end)
{
	if (!can_add())
		return;
	hp_lock(&watched.lock);
	watch_mappings(start, end, true);
	show_parts();
	hp_unlock(&watched.lock);
}

void hp_uffd_end(void)
{
	struct hp_stretch part;

	hp_lock(&watched.lock);
	while (hp_watched_take_any(&watched.set, &part))
		take_back(part);
	hp_watched_want(&watched.set, 0, UINTPTR_MAX, 0);
	show_parts();
	hp_unlock(&watched.lock);
}

void hp_uffd_unwatch(uintptr_t start, uintptr_t end)
{
	hp_lock(&watched.lock);
	end_use(start, end);
	show_parts();
	hp_unlock(&watched.lock);
}

void hp_uffd_discarded(uintptr_t start, uintptr_t end)
{
	hp_lock(&watched.lock);
	hp_watched_last(&watched.set, start, end);
	hp_unlock(&watched.lock);
}

/* A domain may tell of this later than another, which has the memory watched again meanwhile. Then a part is forgotten,
 * and stays watched until it is unmapped. */
void hp_uffd_unmapped(uintptr_t start, uintptr_t end)
{
	struct hp_stretch touched;

	hp_lock(&watched.lock);
	touched = hp_watched_cut(&watched.set, start, end);
	take_back_idle(touched.start, touched.end);
	show_parts();
	hp_unlock(&watched.lock);
}

/* Whether taking back [start, end) leaves no more parts than there may be. */
static bool may_cut(uintptr_t start, uintptr_t end)
{
	return !is_watched(start - 1, start) || !is_watched(end, end + 1) || may_add_part();
}

void hp_uffd_forget(const struct hp_range *range, const struct hp_range *all,
		    void (*tell)(const struct hp_range *range))
{
	const uintptr_t start = range->start, end = range->end;
	const bool locked = !hp_lock_mine(&watched.lock) && hp_lock_soon(&watched.lock);
	struct hp_stretch s = { .end = start };

	tell(range);
	if (!locked)
		return;
	hp_watched_announce(&watched.set, all->start, all->end, hp_tid());
	if (is_watched(start, end) && may_cut(start, end)) {
		while (s.end < end && hp_watched_first(&watched.set, s.end, end, &s))
			take_back(s);
		s = hp_watched_cut(&watched.set, start, end);
		take_back_idle(s.start, s.end);
		show_parts();
	}
	hp_unlock(&watched.lock);
}

void hp_uffd_watch_heap(uintptr_t start, uintptr_t end)
{
	int err;
	struct hp_mapped m;

	for (bool ok = can_add(); start < end && ok; start = m.end) {
		err = hp_mapped_query(start, &m);
		if (err == -ENOSYS)
			m.end = end;
		ok = err != -ENOENT && watch_range(hp_kept_fd(&watch.uffd), err ? start : m.start, m.end);
	}
}

bool hp_uffd_works(void)
{
	return hp_kept_fd(&watch.uffd) >= 0;
}

void hp_uffd_child(void)
{
	hp_kept_close(&watch.uffd);
	hp_mapped_child();
	hp_lock_reset(&watched.lock);
	hp_lock_reset(&trusting.lock);
	LIST_INIT(&trusting.list);
	trusting.reading = false;
	hp_watched_clear(&watched.set);
	hp_thread_child(&watch.thread);
	atomic_store_explicit(&watch.round, 0, memory_order_relaxed);
	set_patience(PATIENCE_MAX_NS);
}
