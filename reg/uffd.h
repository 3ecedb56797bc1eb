/*
 * What the kernel tells of memory that is unmapped, moved or discarded: a userfaultfd in write-protect mode with
 * nothing protected, so that no page fault ever comes to us, and a thread, `watch`, that reads its events. It needs no
 * privilege. It sees raw system calls and the C library's own; it does not see truncation of files and holes punched
 * into them, so only private memory that no file backs is watched.
 *
 * The thread that unmaps waits until its event is read: the reader must never wait for anything that is held across an
 * unmap. It raises HP_BUSY in the domains, reads, queues ranges, lowers it.
 *
 * The event comes when the addresses are free again. But the kernel counts the changes that are under way, from before
 * it lets go of them until the event has been read and its thread goes on; and it looks at that count first of all
 * where a userfaultfd is asked to do something. So a question that asks for nothing is answered at the price of a
 * system call: hp_uffd_ask().
 */
#ifndef HP_REG_UFFD_H
#define HP_REG_UFFD_H

#include "base/base.h"
#include "hugepin.h"

/* Start watching, if it was not started before: when no other domain that wants it is open, so that nothing is cached
 * that is not watched. The caller holds the lock of opening domains. Takes a fraction of a millisecond. Where it cannot
 * be had, or the kernel's count is not what it should be, hp_uffd_watch() returns false. gone: called for every open
 * domain, with a struct hp_range, before whoever unmapped goes on. It must not block. */
void hp_uffd_open(void (*gone)(hugepin_domain *d, void *range));

enum hp_change {
	HP_QUIET, /* whatever another thread had unmapped, moved or discarded before the call was read by the watcher */
	HP_CHANGING,
	/* The descriptor is no longer ours: nothing is watched any more, and all that was is queued as gone. */
	HP_UNTOLD,
};

/* Whether something watched is changing. One system call, of the quickest; errno is kept. */
enum hp_change hp_uffd_ask(void);

/* Wait until nothing is changing that did when the call began, and what did is queued; at most for some milliseconds,
 * or for worth_ns if that is more. False: it is still changing. */
bool hp_uffd_settle(uint64_t worth_ns);

/* Wait until the events that are being read, if any, are queued: some microseconds. */
void hp_uffd_wait(void);

/* Have the heap's [start, end) watched from now on, as far as that is possible. Any number of times. */
void hp_uffd_watch_heap(uintptr_t start, uintptr_t end);

/* Have [start, end) watched from now on, until it is unmapped. False: that memory cannot be watched (files, shared
 * memory, other people's userfaultfds, no mapping). Any number of times. */
bool hp_uffd_watch(uintptr_t start, uintptr_t end);

/* Whether [start, end) is private memory that no file backs: nobody but this process can take it away. */
bool hp_uffd_is_private(uintptr_t start, uintptr_t end);

bool hp_uffd_works(void);

/* In the child of fork: it belongs to the parent. */
void hp_uffd_child(void);

#endif
