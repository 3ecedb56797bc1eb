/*
 * Keeps two sets of ranges: those that the mlock backend has registered, and those that the program has locked. `lock`
 * guards both sets and every change of the kernel's locks on memory. It is taken with a domain's lock held, and in
 * free() with no lock held; the heap's lock is taken under it. A holder of `lock` waits only for the kernel, which at
 * worst reads memory in.
 */
#include "reg/locks.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/hold.h"
#include "base/proc.h"
#include "base/ranges.h"
#include "base/smaps.h"
#include "base/sys.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hp_covered registered = RB_INITIALIZER(&registered); /* what the backend has locked */
static struct hp_ranges programs; /* ranges that the program has locked */
/* Ranges that the kernel has not unlocked yet, because the process could not split a mapping or get a descriptor. */
static struct hp_ranges owed;
static char said[8192]; /* text of a file in /proc */
static bool all; /* the program has called mlockall, so nothing may be unlocked */
/* relaxed: a look that comes too early asks the kernel once more */
static _Atomic bool told; /* libhugepin-malloc.so has called, so it reports the program's mlock calls */

static const struct hp_heap_locks of_buffers;

/* If there is no memory for one more range, the set stays as it is. */
static void set_range(struct hp_ranges *set, uintptr_t start, uintptr_t end, bool on)
{
	if (hp_ranges_reserve(set))
		hp_ranges_set(set, start, end, on);
}

/* Tell the heap of this lock before taking it, so that the heap frees the lock in the child if another thread forks
 * meanwhile. */
static void enter_locks(void)
{
	hp_heap_set_locks(&of_buffers);
	pthread_mutex_lock(&lock);
}

/* Raw system calls, because the C library's functions would do nothing under sanitizers. 0 or -errno. */
static int pages_lock(uintptr_t start, uintptr_t end, unsigned flags)
{
	return (int)(flags ? hp_sys(SYS_mlock2, start, end - start, flags) : hp_sys(SYS_mlock, start, end - start));
}

static int pages_unlock(uintptr_t start, uintptr_t end)
{
	return (int)hp_sys(SYS_munlock, start, end - start);
}

static bool has_holes(uintptr_t start, uintptr_t end)
{
	return hp_sys(SYS_msync, start, end - start, MS_ASYNC) < 0;
}

struct unlocking {
	uintptr_t start, end;
	int err; /* the last error */
};

static bool unlock_mapping(void *unlocking, const struct hp_mapping *m)
{
	struct unlocking *u = unlocking;
	uintptr_t start = HP_MAX(m->start, u->start), end = HP_MIN(m->end, u->end);
	int err = start < end ? pages_unlock(start, end) : 0;

	if (err)
		u->err = err;
	return true;
}

/* munlock stops at the first hole, so look up in the list of mappings what lies behind it. Read the list without stdio,
 * because this may run inside a watcher of the heap (hugepin_watch()), and without a cancellation point, because `lock`
 * is held. -ENOMEM: there was another hole by then. */
static int unlock_mappings(uintptr_t start, uintptr_t end)
{
	struct unlocking u = { .start = start, .end = end };
	char text[4096];
	int err = hp_mappings_each(-1, text, sizeof text, unlock_mapping, &u);

	return err ? err : u.err;
}

/* munlock returns ENOMEM for a hole, and also where the process may have no more mappings. Between two of these calls
 * other threads may unmap parts, or map something into the hole. So ask again until the answers agree. */
static int unlock_range(uintptr_t start, uintptr_t end)
{
	int err = -ENOMEM;

	for (int tries = 0; err == -ENOMEM && tries < 100; tries++) {
		err = pages_unlock(start, end);
		if (err == -ENOMEM && has_holes(start, end))
			err = unlock_mappings(start, end);
	}
	return err;
}

/* VmLck after our last change. If it differs now, the program has locked or unlocked memory. UNKNOWN: the program did
 * so before our last change, and its locks have not been looked at since. */
#define UNKNOWN UINT64_MAX
static uint64_t known_kb;

static uint64_t locked_kb(void)
{
	return hp_read_file("/proc/self/status", said, sizeof said) > 0 ? hp_number_after(said, "VmLck:", 0) : known_kb;
}

static int set_programs(uintptr_t start, uintptr_t end)
{
	set_range(&programs, start, end, true);
	return 0;
}

/* Call each() for the parts of [start, end) that no registration has locked. Returns the first error. */
static int each_unregistered(uintptr_t start, uintptr_t end, int (*each)(uintptr_t start, uintptr_t end))
{
	return hp_covered_each(&registered, start, end, false, each);
}

/* Memory that is locked, but not for a registration, was locked by the program. Memory that is not locked was unlocked
 * by the program, even if it is registered. */
static void learn_locked(void *unused, const struct hp_smaps *m)
{
	(void)unused;
	if (m->flags & HP_SMAPS_LOCKED)
		each_unregistered(m->start, m->end, set_programs);
	else
		set_range(&programs, m->start, m->end, false);
}

/* If the program's calls are not reported, ask the kernel before locking a range, so that memory which the program has
 * locked by then stays locked. Asking takes long if there are many mappings, so it is done only after a change that was
 * not ours. The kernel neither counts nor locks pages of the pool. */
static void learn_locks(void)
{
	uint64_t kb;

	if (atomic_load_explicit(&told, memory_order_relaxed))
		return;
	kb = locked_kb();
	if (!kb)
		programs.count = 0;
	else if (kb != known_kb)
		hp_smaps_each(said, sizeof said, learn_locked, NULL);
}

static void know_locks(void)
{
	if (!atomic_load_explicit(&told, memory_order_relaxed))
		known_kb = locked_kb();
}

/* Unlock the parts that the program has not locked. */
static int unlock_of_nobody(uintptr_t start, uintptr_t end)
{
	const struct hp_stretch *p;
	int one, err = 0; /* the result of one part; the first error */

	for (; start < end; start = p ? p->end : end) {
		p = hp_ranges_next(&programs, start);
		if (p && p->start <= start)
			continue;
		one = unlock_range(start, p ? HP_MIN(p->start, end) : end);
		err = err ? err : one;
	}
	return err;
}

/* Unlock the parts that neither a registration nor the program has locked. */
static int unlock_uncovered(uintptr_t start, uintptr_t end)
{
	return each_unregistered(start, end, unlock_of_nobody);
}

/* Unlock the ranges in `owed`, except parts that the program has locked or unmapped meanwhile. */
static void pay_owed(void)
{
	while (owed.count && hp_ranges_reserve(&owed)) {
		struct hp_stretch r = owed.at[0];

		if (!all && unlock_uncovered(r.start, r.end) < 0)
			break;
		hp_ranges_set(&owed, r.start, r.end, false);
	}
}

/* Unlock the parts that neither a registration nor the program has locked. If that fails, keep the range in `owed`. */
static int unlock_or_owe(uintptr_t start, uintptr_t end)
{
	int err = all ? 0 : unlock_uncovered(start, end);

	if (err && hp_ranges_reserve(&owed)) {
		hp_ranges_set(&owed, start, end, true);
		err = 0;
	}
	return err;
}

/* ------------------------------------------------------------------ the backend's */

/* mlock returns ENOMEM in three cases: a hole, the limit, and pages that cannot be read in because of their protection
 * or their file's end. MLOCK_ONFAULT tells the cases apart, because in a range without holes only the limit makes it
 * fail. The last call tries again, since the limit may have been raised meanwhile, though it may fail by the limit
 * again. */
static int lock_or_why_not(uintptr_t start, uintptr_t end)
{
	int err = pages_lock(start, end, 0);

	if (err != -ENOMEM)
		return err;
	if (has_holes(start, end))
		return -EFAULT;
	if (pages_lock(start, end, MLOCK_ONFAULT) < 0)
		return -ENOMEM;
	return pages_lock(start, end, 0) < 0 ? -EFAULT : 0;
}

int hp_locks_take(struct hp_covering *r)
{
	int err;

	enter_locks();
	learn_locks();
	err = lock_or_why_not(r->start, r->end);
	if (err == 0)
		hp_covered_add(&registered, r);
	else
		unlock_or_owe(r->start, r->end); /* mlock may have locked a part */
	pay_owed();
	know_locks();
	pthread_mutex_unlock(&lock);
	return err;
}

int hp_locks_drop(struct hp_covering *r)
{
	bool known;
	int err;

	enter_locks();
	known = atomic_load_explicit(&told, memory_order_relaxed) || locked_kb() == known_kb;
	hp_covered_drop(&registered, r);
	pay_owed();
	err = unlock_or_owe(r->start, r->end);
	if (known)
		know_locks();
	else
		known_kb = UNKNOWN;
	pthread_mutex_unlock(&lock);
	return err;
}

/* ------------------------------------------------------------------ the program's */

static void free_locks(uintptr_t start, uintptr_t end)
{
	enter_locks();
	set_range(&programs, start, end, false);
	set_range(&owed, start, end, true);
	pay_owed();
	pthread_mutex_unlock(&lock);
}

static void note_range(uintptr_t start, uintptr_t end, bool on)
{
	set_range(&programs, start, end, on);
	hp_heap_locked(start, end, on);
}

static int note_programs(uintptr_t start, uintptr_t end)
{
	note_range(start, end, true);
	return 0;
}

/* Note the parts that are locked, but not by a registration. */
static void note_locked(void *within_, const struct hp_smaps *m)
{
	const struct hp_stretch *within = within_;

	if (m->flags & HP_SMAPS_LOCKED)
		each_unregistered(HP_MAX(m->start, within->start), HP_MIN(m->end, within->end), note_programs);
}

/* Ask the kernel what is locked after a failed call, which may have done a part: mlock of unreadable memory fails, but
 * locks all of it. */
static void note_what_is(uintptr_t start, uintptr_t end)
{
	struct hp_stretch within = { start, end };

	hp_smaps_each(said, sizeof said, note_locked, &within);
}

/* For the heap: lock a range like its source. All readable pages are in memory already; for the others only
 * MLOCK_ONFAULT gives no error. */
static int lock_alike(uintptr_t start, uintptr_t end)
{
	return hugepin_lock_(start, end - start, MLOCK_ONFAULT);
}

static const struct hp_heap_locks of_buffers = { .lock = lock_alike, .unlock = free_locks, .child = hp_locks_child };

/* The range, rounded as the kernel rounds it. False: the kernel refuses this range. */
static bool range_of(uintptr_t addr, size_t len, uintptr_t *ret_start, uintptr_t *ret_end)
{
	hp_base_page_init();

	uintptr_t start = addr & -hp_base_page, end = hp_round_up(addr + len, hp_base_page);

	*ret_start = start;
	*ret_end = end;
	return len && end > start && end - start >= len;
}

int hugepin_lock_(uintptr_t addr, size_t len, unsigned flags)
{
	uintptr_t start, end;
	int err;

	if (!range_of(addr, len, &start, &end)) {
		err = pages_lock(addr, addr + len, flags);
	} else {
		enter_locks();
		err = -ENOMEM;
		if (hp_ranges_reserve(&programs) && hp_ranges_reserve(&owed))
			err = pages_lock(start, end, flags);
		if (err == 0)
			note_range(start, end, true);
		else if (err == -ENOMEM || err == -EAGAIN)
			note_what_is(start, end);
		pthread_mutex_unlock(&lock);
	}
	return err;
}

int hugepin_unlock_(uintptr_t addr, size_t len)
{
	uintptr_t start, end;
	int err;

	if (!range_of(addr, len, &start, &end)) {
		err = pages_unlock(addr, addr + len);
	} else {
		enter_locks();
		err = hp_ranges_reserve(&programs) ? 0 : -ENOMEM;
		if (err == 0) {
			note_range(start, end, false);
			/* If a part is registered, unlock only the rest. */
			err = hp_covered_first(&registered, start, end) ? unlock_uncovered(start, end) :
									  pages_unlock(start, end);
			if (err != 0)
				note_what_is(start, end);
			pay_owed();
		}
		pthread_mutex_unlock(&lock);
	}
	return err;
}

static int lock_again(uintptr_t start, uintptr_t end)
{
	return pages_lock(start, end, 0);
}

int hugepin_lock_all_(int flags)
{
	int err;

	enter_locks();
	err = (int)(flags ? hp_sys(SYS_mlockall, flags) : hp_sys(SYS_munlockall));
	if (err == 0) {
		all = flags != 0;
		if (!flags) {
			programs.count = owed.count = 0;
			hp_heap_locked(0, UINTPTR_MAX, false);
			hp_covered_each(&registered, 0, UINTPTR_MAX, true, lock_again);
		}
	}
	pthread_mutex_unlock(&lock);
	return err;
}

void hp_locks_unmapping(const void *addr, size_t len)
{
	uintptr_t start, end;

	atomic_store_explicit(&told, true, memory_order_relaxed);
	/* This reads without the lock, so the read is atomic; the member is not _Atomic because all other accesses hold
	 * the lock. relaxed: no lock is missed that this thread has made. */
	if (!__atomic_load_n(&programs.count, __ATOMIC_RELAXED) || !range_of((uintptr_t)addr, len, &start, &end) ||
	    pthread_mutex_trylock(&lock) != 0)
		return;
	set_range(&programs, start, end, false);
	pthread_mutex_unlock(&lock);
}

void hp_locks_child(void)
{
	pthread_mutex_init(&lock, NULL);
	RB_INIT(&registered);
	programs.count = owed.count = 0;
	known_kb = 0;
	all = false;
}
