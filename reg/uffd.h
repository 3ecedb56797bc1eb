/*
 * What the kernel tells of memory that is unmapped, moved or discarded: a userfaultfd in write-protect mode with nothing
 * protected, so that no page fault ever comes to us, and a thread, `watch`, that reads its events. It needs no privilege. It
 * sees raw system calls and the C library's own; it does not see truncation of files and holes punched into them.
 *
 * The thread that unmaps waits until its event is read: the reader must never wait for anything that is held across an unmap.
 * It raises HP_BUSY in the domains, reads, queues ranges, lowers it.
 */
#ifndef HP_REG_UFFD_H
#define HP_REG_UFFD_H

#include "base/base.h"

/* Start watching, if it was not started before: when no other domain is open, so that nothing is cached that is not watched. The
 * caller holds the lock of opening domains. Where it cannot be had, hp_uffd_watch() returns false. */
void hp_uffd_open(void);

/* Wait until the events that are being read, if any, are queued: some microseconds. */
void hp_uffd_wait(void);

/* Have [start, end) watched from now on, until it is unmapped. False: that memory cannot be watched (regular files, other
 * people's userfaultfds, no mapping). Any number of times. */
bool hp_uffd_watch(uintptr_t start, uintptr_t end);

bool hp_uffd_works(void);

/* In the child of fork: it belongs to the parent. */
void hp_uffd_child(void);

#endif
