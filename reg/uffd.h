/*
 * The kernel's events of memory that is unmapped, moved or discarded, from a userfaultfd in write-protect mode. No page
 * is protected, so the userfaultfd gets no page fault, and needs no privilege. A thread, the watcher, reads the events.
 * Raw system calls cause events, too, but truncating a file or punching holes into it does not, so only private memory
 * that no file backs is watched.
 *
 * A thread that unmaps waits until its event is read. So the watcher must never wait for a lock that is held across an
 * unmap. It raises HP_BUSY in the domains where it is not up, reads, queues the ranges, and lowers HP_BUSY.
 *
 * The event comes only when the addresses are already free. But the kernel counts the changes under way, from before
 * the addresses are free until the event has been read and the unmapping thread goes on. Since a request to a
 * userfaultfd looks at this count first, a request that asks for nothing tells whether something is changing, at the
 * price of a system call: hp_uffd_ask().
 */
#ifndef HP_REG_UFFD_H
#define HP_REG_UFFD_H

#include "base/base.h"
#include "base/ranges.h"
#include "hugepin.h"

/* Start watching, unless it was started before. Call with the lock of opening domains, while no other domain that wants
 * watching is open, so that no unwatched memory is cached. Takes a fraction of a millisecond. If watching is not
 * possible, or the kernel's count is wrong, hp_uffd_watch() returns -ENXIO. gone: called before the unmapping thread goes
 * on; it must not block. */
struct hp_range;
void hp_uffd_open(void (*gone)(const struct hp_range *range));

enum hp_change {
	HP_QUIET, /* the watcher has read the events of all changes that other threads made before the call */
	HP_CHANGING,
	/* The descriptor is no longer ours. No further memory is watched, and all memory was queued as gone. */
	HP_UNTOLD,
};

/* Whether watched memory is changing. Makes one very quick system call. Keeps errno. */
enum hp_change hp_uffd_ask(void);

/* Wait until no watched memory is changing, and the ranges that changed are queued. Waits at most some milliseconds, or
 * worth_ns if that is more. False: memory is still changing. */
bool hp_uffd_settle(uint64_t worth_ns);

/* Wait until the events that are being read, if any, are queued: some microseconds. */
void hp_uffd_wait(void);

/* The same, if d has BUSY up; from now on pins may rely on the bit. */
void hp_uffd_heed(hugepin_domain *d);

/* trust(): before each read the watcher raises BUSY in d, and lowers it afterwards, unless there are many such domains;
 * then it stays up, and hp_uffd_heed() has d added again. When d is opened. distrust(): when it is closed. */
void hp_uffd_trust(hugepin_domain *d);
void hp_uffd_distrust(hugepin_domain *d);

/* Watch [start, end) of the heap from now on, as far as possible. May be called any number of times. */
void hp_uffd_watch_heap(uintptr_t start, uintptr_t end);

/* Watch [start, end), until hp_uffd_unwatch() is called once for each success. 0, or why this memory cannot be watched:
 * -EXDEV: it is a file's, shared, or not mapped; -EADDRINUSE: the kernel refuses, as where another userfaultfd watches,
 * or so much is watched in parts that the process would run out of mappings; -ENXIO: no memory can be watched.
 * unwatch() may be called for memory that hp_uffd_watch() has refused with -ENXIO. */
int hp_uffd_watch(uintptr_t start, uintptr_t end);
void hp_uffd_unwatch(uintptr_t start, uintptr_t end);

/* Watch [start, end), as far as possible, until it is unmapped. */
void hp_uffd_watch_unmap(uintptr_t start, uintptr_t end);

/* Memory outside the heap was discarded. Of it, what is watched stays so until it is unmapped. */
void hp_uffd_discarded(uintptr_t start, uintptr_t end);

/* Watch memory outside the heap no more, because the program forgets it. tell() queues the range in the domains. `all`
 * is what this thread forgets by this call, and is not watched along with its neighbours (hp_watched_announce()). This
 * runs under the lock under which registrations have their memory watched, so each registration in the range either is
 * told of the range, or has its memory watched anew. Waits some milliseconds at most for this lock; without it the
 * range stays watched. Calls tell() in any case. */
void hp_uffd_forget(const struct hp_range *range, const struct hp_range *all,
		    void (*tell)(const struct hp_range *range));

/* The last domain that wants watching ends: watch nothing outside the heap any more. */
void hp_uffd_end(void);

/* Memory outside the heap was unmapped, or is going to be. */
void hp_uffd_unmapped(uintptr_t start, uintptr_t end);

/* The bounds of the mapping that covers addr, if it is private and no file backs it; else false. Neighbours that another
 * thread is about to discard are left out. */
bool hp_uffd_mapping(uintptr_t addr, struct hp_stretch *ret_);

/* Whether [start, end) is private memory that no file backs, which only this process can take away. */
static inline bool hp_uffd_is_private(uintptr_t start, uintptr_t end)
{
	struct hp_stretch m = { .end = start };

	while (m.end < end && hp_uffd_mapping(m.end, &m))
		;
	return m.end >= end;
}

bool hp_uffd_works(void);

/* Called in the child of fork: the userfaultfd belongs to the parent. */
void hp_uffd_child(void);

#endif
