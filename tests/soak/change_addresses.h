/*
 * Changes of memory: foreign memory that is mapped over, moved or watched, and advice, locks, protection and guards of
 * slots.
 */
#ifndef TESTS_SOAK_CHANGE_ADDRESSES_H
#define TESTS_SOAK_CHANGE_ADDRESSES_H

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include "pins.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103 };

/* ------------------------------------------------------------------ foreign memory */

enum { AREA = 1 << 20 };

static bool mapped_over(struct worker *w)
{
	char *p = foreign_map(AREA);
	const size_t at = rand_next(&w->rand) % (AREA / 4096) * 4096;

	if (!p)
		return false;
	device_fills(w, p + at, 4096);
	if (mmap(p + at, AREA - at, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + at)
		device_fills(w, p + at, 4096);
	return EXPECT_EQ(munmap(p, AREA), 0);
}

/* Move memory onto other memory that is pinned. */
static bool moved_over(struct worker *w)
{
	char *p = foreign_map(AREA), *q = foreign_map(AREA);
	const uint64_t seed = rand_next(&w->rand);
	bool moved = false;

	if (p && q) {
		device_fills(w, q, IO_MAX);
		device_fills(w, p, IO_MAX);
		pattern_write(p, AREA, seed);
		/* mremap fails if the mapping has merged with others of which some are watched. */
		moved = mremap(p, AREA, AREA, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q;
		if (moved) {
			EXPECT_EQ(pattern_check(q, AREA, seed), -1);
			device_fills(w, q, IO_MAX);
		}
	}
	if (p && !moved)
		munmap(p, AREA);
	if (q)
		EXPECT_EQ(munmap(q, AREA), 0);
	return moved;
}

static bool break_moved(struct worker *w)
{
	char *p = sbrk(AREA + 4096);

	if (p == (void *)-1)
		return false;
	char *page = p + (-(uintptr_t)p & 4095);

	device_fills(w, page, IO_MAX);
	if (EXPECT(sbrk(-AREA) != (void *)-1)) {
		if (sbrk(AREA) != (void *)-1) {
			device_fills(w, page, IO_MAX);
			sbrk(-AREA);
		}
	}
	return EXPECT(sbrk(-4096) != (void *)-1);
}

static bool shared_segment(struct worker *w)
{
	int id = shmget(IPC_PRIVATE, AREA, 0600);
	char *p = id < 0 ? (void *)-1 : shmat(id, NULL, 0);

	if (p != (void *)-1) {
		device_fills(w, p, IO_MAX);
		if (shmat(id, p, SHM_REMAP) == p)
			device_fills(w, p, IO_MAX);
		EXPECT_EQ(shmdt(p), 0);
	}
	if (id >= 0)
		shmctl(id, IPC_RMID, NULL);
	return p != (void *)-1;
}

/* w->with: 0, map other pages of the file; 1, truncate the file and extend it again; 2, punch a hole. */
static bool file_changed(struct worker *w)
{
	const int fd = memfd_create("changed", MFD_CLOEXEC);
	char *p = fd >= 0 && !ftruncate(fd, AREA) ? mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
							 0) : MAP_FAILED;
	bool ok = p != MAP_FAILED;

	if (ok) {
		device_fills(w, p, IO_MAX);
		ok = w->with == 0 ? syscall(SYS_remap_file_pages, p, IO_MAX, 0, 8, 0) == 0 :
		     w->with == 1 ? ftruncate(fd, 0) == 0 && ftruncate(fd, AREA) == 0 :
				   fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, AREA) == 0;
		device_fills(w, p, IO_MAX);
		EXPECT_EQ(munmap(p, AREA), 0);
	}
	if (fd >= 0)
		close(fd);
	return ok;
}

/* The program watches its memory itself. */
static bool own_userfaultfd(struct worker *w)
{
	const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	struct uffdio_api api = { .api = UFFD_API };
	char *p = foreign_map(AREA);
	struct uffdio_register r = { .range = { (uintptr_t)p, AREA }, .mode = UFFDIO_REGISTER_MODE_WP };
	const bool ok = fd >= 0 && p && !ioctl(fd, UFFDIO_API, &api) && !ioctl(fd, UFFDIO_REGISTER, &r);

	if (ok) {
		device_fills(w, p, IO_MAX);
		if (madvise(p, AREA, MADV_DONTNEED) == 0)
			device_fills(w, p, IO_MAX);
		EXPECT_EQ(ioctl(fd, UFFDIO_UNREGISTER, &r.range), 0);
		device_fills(w, p, IO_MAX);
	}
	if (p)
		EXPECT_EQ(munmap(p, AREA), 0);
	if (fd >= 0)
		close(fd);
	return ok;
}

/* ------------------------------------------------------------------ memory of slots */

/* Find and lock a slot with whole pages. NULL: none was free. [*ret_at, + *ret_len): whole pages in the slot. */
static struct slot *slot_of_pages(struct worker *w, size_t *ret_at, size_t *ret_len)
{
	for (int tries = 0; tries < SLOTS; tries++) {
		struct slot *s = &slots[rand_next(&w->rand) % SLOTS];
		size_t first, pages;

		if (pthread_mutex_trylock(&s->lock))
			continue;
		first = -(uintptr_t)s->p & 4095;
		pages = s->p && s->size > first ? (s->size - first) / 4096 : 0;
		if (pages && !s->hidden_len) {
			const size_t skip = rand_next(&w->rand) % pages;

			*ret_at = first + skip * 4096;
			*ret_len = (1 + rand_next(&w->rand) % (pages - skip)) * 4096;
			return s;
		}
		pthread_mutex_unlock(&s->lock);
	}
	return NULL;
}

static bool slot_done(struct slot *s, const char *when, bool ok)
{
	slot_check(s, when);
	pthread_mutex_unlock(&s->lock);
	return ok;
}

/* Each kind of advice that keeps the contents. Advice that lasts is taken back. */
static bool advised(struct worker *w)
{
	enum { OF_FORK = 3 }; /* the first ones; without the drop-in they would undo a fork that is under way */
	static const int kinds[] = {
		MADV_DONTFORK,  MADV_WIPEONFORK, MADV_DONTDUMP, MADV_NORMAL,    MADV_RANDOM,        MADV_SEQUENTIAL,
		MADV_WILLNEED,
		MADV_HUGEPAGE,  MADV_NOHUGEPAGE, MADV_MERGEABLE, MADV_COLD,     MADV_PAGEOUT,       MADV_POPULATE_READ,
		MADV_POPULATE_WRITE,
		25 /* MADV_COLLAPSE */,
	};
	static const int back[] = { MADV_DOFORK, MADV_KEEPONFORK, MADV_DODUMP, MADV_NORMAL, MADV_UNMERGEABLE };
	const size_t first = preloaded ? 0 : OF_FORK;
	const int kind = kinds[first + rand_next(&w->rand) % (sizeof kinds / sizeof *kinds - first)];
	size_t at, len;
	struct slot *s = slot_of_pages(w, &at, &len);
	bool ok;

	if (!s)
		return false;
	ok = madvise(s->p + at, len, kind) == 0;
	slot_check(s, "after advice");
	if (kind == MADV_NOHUGEPAGE)
		madvise(s->p + at, len, MADV_HUGEPAGE);
	for (size_t i = first; i < sizeof back / sizeof *back; i++)
		madvise(s->p + at, len, back[i]);
	return slot_done(s, "after advice that was taken back", ok);
}

static bool locked(struct worker *w)
{
	size_t at, len;
	struct slot *s = slot_of_pages(w, &at, &len);
	bool ok;

	if (!s)
		return false;
	ok = mlock2(s->p + at, len, rand_next(&w->rand) % 2 ? MLOCK_ONFAULT : 0) == 0;
	/* Under the drop-in a lock ends with the buffer. */
	if (!preloaded || rand_next(&w->rand) % 2)
		munlock(s->p + at, len);
	return slot_done(s, "after it was locked", ok);
}

static bool protected(struct worker *w)
{
	size_t at, len;
	struct slot *s = slot_of_pages(w, &at, &len);
	bool ok;

	if (!s)
		return false;
	ok = mprotect(s->p + at, len, w->with) == 0;
	if (ok)
		sleep_ms((long)(rand_next(&w->rand) % 5));
	/* A part may be protected even so. */
	if (mprotect(s->p + at, len, PROT_READ | PROT_WRITE) && ok)
		T_FAIL("memory that was protected is so for ever: %s", strerror(errno));
	return slot_done(s, "after it was protected", ok);
}

static bool guarded(struct worker *w)
{
	size_t at, len;
	struct slot *s = slot_of_pages(w, &at, &len);
	bool ok;

	if (!s)
		return false;
	slot_unpin(s);
	ok = madvise(s->p + at, len, GUARD_INSTALL) == 0;
	if (ok)
		sleep_ms((long)(rand_next(&w->rand) % 5));
	/* If a part is locked, the kernel guards the part before it. It guards no pages of the pool. */
	if (madvise(s->p + at, len, GUARD_REMOVE) == 0 && ok)
		EXPECT_EQ(zero_check(s->p + at, len), -1);
	slot_write(s);
	return slot_done(s, "after it was guarded", ok);
}

#endif
