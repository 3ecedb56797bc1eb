/*
 * See madvise.h.
 *
 * Invariants:
 *  1. For live buffers the record says the same as the kernel's mappings. Elsewhere the record is 0, except for the
 *     room behind a shrunk buffer (hp_madvise_cut()). Record and mappings change together under hp_heap_lock, so a fork
 *     sees them agree.
 *  2. An advised page of the pool lies in one buffer and has one advice: the kernel returns EINVAL for a part of such
 *     a page, and each buffer is advised by a call of its own.
 *  3. A buffer with advice is ROOMY.
 */
#include "alloc/madvise.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/small.h"
#include "base/smaps.h"
#include "base/sys.h"
#include "base/there.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

#define GIB_CHUNKS_SHIFT (30 - HP_CHUNK_SHIFT)

static uint16_t *record; /* indexed by chunk of the span; made accessible by GiB */
static uint64_t *opened; /* a bit for each GiB whose record is accessible */
static bool stuck; /* false: no chunk is HP_ADVICE_STUCK */
static const struct hp_heap_locks *_Atomic locks;

/* ------------------------------------------------------------------ the record */

static struct hp_page *page_of(size_t chunk)
{
	return &hp_span.page[chunk >> HP_PAGE_CHUNKS_SHIFT];
}

static size_t next_page(size_t chunk)
{
	return (chunk | (HP_PAGE_CHUNKS - 1)) + 1;
}

/* Make the record of chunks [from, end) accessible, in steps of 1 GiB of the span. False: no memory. */
static bool open_record(size_t from, size_t end)
{
	size_t gibs = (hp_span.small_end >> (30 - HP_PAGE_SHIFT)) + 1, step = sizeof *record << GIB_CHUNKS_SHIFT;

	if (!opened) {
		opened = hp_meta_map(gibs / 8 + 8);
		if (!opened)
			return false;
	}
	if (!record) {
		record = hp_meta_reserve(gibs * step);
		if (!record)
			return false;
	}
	for (size_t g = from >> GIB_CHUNKS_SHIFT; g <= (end - 1) >> GIB_CHUNKS_SHIFT; g++) {
		if (hp_bit(opened, g))
			continue;
		if (!hp_meta_open((char *)record + g * step, step))
			return false;
		hp_bit_set(opened, g);
	}
	return true;
}

/* If `set` is not 0, the record must be open for these chunks. */
static void note_advice(size_t from, size_t end, unsigned set, unsigned clear)
{
	for (size_t to; from < end; from = to) {
		struct hp_page *g = page_of(from);
		size_t first = from & ~(HP_PAGE_CHUNKS - 1);
		unsigned any = 0;

		to = HP_MIN(end, next_page(from));
		if (!g->advised && !set)
			continue;
		for (size_t c = from; c < to; c++)
			record[c] = (uint16_t)((record[c] & ~clear) | set);
		for (size_t c = first; c < first + HP_PAGE_CHUNKS && !any; c++)
			any = record[c];
		g->advised = any != 0;
	}
}

/* As hp_madvise_run(), but compares only these bits. */
static size_t run_of(unsigned bits, size_t chunk, size_t end, unsigned *ret_advice)
{
	unsigned a = page_of(chunk)->advised ? record[chunk] & bits : 0;

	*ret_advice = a;
	while (chunk < end) {
		if (!page_of(chunk)->advised) {
			if (a)
				break;
			chunk = next_page(chunk);
		} else if ((record[chunk] & bits) != a) {
			break;
		} else {
			chunk++;
		}
	}
	return HP_MIN(chunk, end);
}

size_t hp_madvise_run(size_t chunk, size_t end, unsigned *ret_advice)
{
	return run_of(~0u, chunk, end, ret_advice);
}

bool hp_madvise_any(size_t chunk, size_t n)
{
	unsigned a;
	size_t end = chunk + n;

	return hp_madvise_run(chunk, end, &a) < end || a;
}

size_t hp_madvise_parts(size_t chunk, size_t n)
{
	size_t parts = 0, end = chunk + n;
	unsigned a, any = 0;

	for (; chunk < end; parts++, any |= a)
		chunk = hp_madvise_run(chunk, end, &a);
	return any ? parts : 0;
}

/* ------------------------------------------------------------------ the kernel */

static int call_kernel(uintptr_t start, uintptr_t end, long nr, int how)
{
	return (int)hp_sys(nr, start, end - start, how);
}

static int prot_of(unsigned a)
{
	return (a & HP_ADVICE_NOREAD ? 0 : PROT_READ) | (a & HP_ADVICE_NOWRITE ? 0 : PROT_WRITE) |
	       (a & HP_ADVICE_EXEC ? PROT_EXEC : 0);
}

/* The advice that change_advice() undoes or copies, by calls on whole pages of the pool. Locks are left out, because
 * mlock takes parts of such a page. The other two are the heap's own notes. */
#define CALLED (~(unsigned)(HP_ADVICE_LOCKED | HP_ADVICE_STUCK | HP_ADVICE_STACK))

/* The part of CALLED that madvise sets. */
static const struct {
	unsigned bit;
	int set, clear;
} calls[] = {
	{ HP_ADVICE_DONTFORK, MADV_DONTFORK, MADV_DOFORK },
	{ HP_ADVICE_WIPEONFORK, MADV_WIPEONFORK, MADV_KEEPONFORK },
	{ HP_ADVICE_DONTDUMP, MADV_DONTDUMP, MADV_DODUMP },
	{ HP_ADVICE_GUARD, MADV_GUARD_INSTALL, MADV_GUARD_REMOVE },
};

/* Change the advice of chunks [from, end) from `was` to `to`. Locks are not changed. Returns 0 or -errno. */
static int change_advice(size_t from, size_t end, unsigned was, unsigned to)
{
	uintptr_t start = hp_chunk_addr(from), stop = hp_chunk_addr(end);
	unsigned differs = was ^ to;
	int err = 0;

	if (differs & (HP_ADVICE_PROT | HP_ADVICE_MISSING))
		err = call_kernel(start, stop, SYS_mprotect, prot_of(to));
	for (size_t i = 0; i < sizeof calls / sizeof *calls && err == 0; i++)
		if (differs & calls[i].bit)
			err = call_kernel(start, stop, SYS_madvise, to & calls[i].bit ? calls[i].set : calls[i].clear);
	/* from now on reserved memory, like that of an extent without pages */
	if (err == 0 && was & ~to & HP_ADVICE_MISSING) {
		err = call_kernel(start, stop, SYS_madvise, MADV_DODUMP);
		if (page_of(from)->kind == HUGEPIN_KIND_THP) /* a refusal is harmless: base pages serve as well */
			call_kernel(start, stop, SYS_madvise, MADV_HUGEPAGE);
	}
	return err;
}

/* Advice is of whole base pages, so the part of its last base page that a buffer leaves free is advised with it. */
static size_t last_of(size_t end)
{
	return hp_round_up(end, hp_base_chunks());
}

bool hp_madvise_undo(size_t chunk, size_t n)
{
	unsigned a;

	for (size_t c = chunk, end = last_of(chunk + n), to; c < end; c = to) {
		to = run_of(CALLED, c, end, &a);
		if (a && change_advice(c, to, a, 0) != 0)
			return false;
		note_advice(c, to, 0, ~0u);
	}
	return true;
}

void hp_madvise_stick(size_t chunk)
{
	if (!open_record(chunk, chunk + 1)) /* without memory for the record, this buffer is never tried again */
		return;
	note_advice(chunk, chunk + 1, HP_ADVICE_STUCK, 0);
	stuck = true;
}

size_t hp_madvise_next_stuck(size_t chunk)
{
	size_t end = hp_span.end[HP_PART_HEAP] << HP_PAGE_CHUNKS_SHIFT, to;
	unsigned a;

	for (; stuck && chunk < end; chunk = to) {
		to = hp_madvise_run(chunk, end, &a);
		if (a & HP_ADVICE_STUCK)
			return chunk;
	}
	return 0;
}

size_t hp_madvise_cut(size_t chunk, size_t end)
{
	const struct hp_page *g = page_of(chunk);
	size_t unit = g->giant ? HP_GIANT_PAGES * HP_PAGE_CHUNKS : HP_PAGE_CHUNKS;

	if (!g->advised)
		return chunk;
	return HP_MIN(hp_round_up(chunk, g->kind == HUGEPIN_KIND_HUGETLB ? unit : hp_base_chunks()), end);
}

/* Read memory that the program has made unreadable, through /proc/self/mem. This is for programs without the drop-in,
 * in which another thread may change the protection unseen, so that we must not change it. With the drop-in: returns
 * false, and the caller makes the memory readable during the copy. */
static bool read_unreadable(char *out, uintptr_t at, size_t len)
{
	int fd = &hugepin_small_ ? -1 : (int)hp_sys(SYS_openat, AT_FDCWD, "/proc/self/mem", O_RDONLY | O_CLOEXEC);
	long n = 0;

	if (fd < 0)
		return false;
	for (size_t done = 0; done < len; done += (size_t)n) {
		n = hp_sys(SYS_pread64, fd, out + done, len - done, at + done);
		if (n <= 0)
			break;
	}
	hp_sys(SYS_close, fd);
	return n > 0;
}

bool hp_madvise_read(void *to_, size_t chunk, size_t n)
{
	char *out = to_;
	unsigned a;
	bool ok = true;

	for (size_t c = chunk, end = chunk + n, to; c < end; c = to) {
		uintptr_t at = hp_chunk_addr(c), stop;

		to = run_of(CALLED, c, end, &a);
		stop = hp_chunk_addr(to);
		if (!(a & HP_ADVICE_KEPT) && !(a & HP_ADVICE_NOREAD && read_unreadable(out, at, stop - at))) {
			if (a & HP_ADVICE_NOREAD && call_kernel(at, stop, SYS_mprotect, PROT_READ) != 0)
				ok = false;
			else
				hp_there_copy(out, (void *)at, stop - at);
			if (a & HP_ADVICE_NOREAD)
				call_kernel(at, stop, SYS_mprotect, prot_of(a));
		}
		out += stop - at;
	}
	return ok;
}

/* Make the buffer's free() take the lock and look for advice. The caller owns the buffer, or its owner does not free it
 * meanwhile. The exchange pairs with hp_fast_free(), which changes the same word. */
static void slow_down(size_t chunk)
{
	uint64_t w = hp_chunk_get(chunk);

	while (HP_CHUNK_STATE(w) == HP_CHUNK_LIVE &&
	       !atomic_compare_exchange_weak_explicit(hp_chunk_at(&hp_span, chunk), &w,
						      w ^ HP_CHUNK_LIVE ^ HP_CHUNK_ROOMY, memory_order_seq_cst,
						      memory_order_seq_cst))
		;
}

/* Advise the new place of [from, end) before its contents are copied, because otherwise the copy would be in memory
 * without that advice. */
static int advise_first(size_t from, size_t to, size_t n)
{
	const unsigned first = HP_ADVICE_DONTFORK | HP_ADVICE_WIPEONFORK | HP_ADVICE_DONTDUMP;
	int err = 0;
	unsigned a;

	if (!open_record(to, last_of(to + n)))
		return -ENOMEM;
	slow_down(to);
	for (size_t c = 0, end; c < n && err == 0; c = end) {
		end = run_of(first, from + c, from + n, &a) - from;
		err = a ? change_advice(to + c, last_of(to + end), 0, a) : 0;
		/* note it even after an error: the call may have worked for a part */
		note_advice(to + c, last_of(to + end), a, 0);
	}
	return err;
}

/* Make memory readable that the program made unreadable, or undo that. */
static int set_readable(size_t from, size_t end, unsigned a, bool on)
{
	unsigned readable = a & ~(unsigned)HP_ADVICE_NOREAD;
	int err;

	if (a == readable)
		return 0;
	err = change_advice(from, end, on ? a : readable, on ? readable : a);
	if (err == 0)
		note_advice(from, end, on ? 0 : HP_ADVICE_NOREAD, HP_ADVICE_NOREAD);
	return err;
}

/* The bytes are copied without the lock, because a userfaultfd of the program's may watch them, and the thread that
 * gives missing memory may allocate. Record and mappings agree whenever the lock is free. This copy is for the same
 * process, so unlike a child it gets DONTFORK memory, too. */
bool hp_madvise_copy(size_t from, size_t to, size_t n)
{
	const unsigned later = HP_ADVICE_PROT | HP_ADVICE_GUARD;
	int err;

	hp_heap_lock();
	err = advise_first(from, to, n);
	for (size_t c = 0, end; c < n && err == 0; c = end) {
		unsigned a;

		end = run_of(CALLED, from + c, from + n, &a) - from;
		if (!(a & (HP_ADVICE_GUARD | HP_ADVICE_MISSING))) {
			err = set_readable(from + c, from + end, a, true);
			if (err != 0)
				break;
			hp_heap_unlock();
			memcpy((void *)hp_chunk_addr(to + c), (void *)hp_chunk_addr(from + c),
			       (end - c) << HP_CHUNK_SHIFT);
			hp_heap_lock();
			err = set_readable(from + c, from + end, a, false);
		}
		if (err == 0 && a & later)
			err = change_advice(to + c, last_of(to + end), 0, a & later);
		note_advice(to + c, last_of(to + end), a & later, 0);
	}
	hp_heap_unlock();
	return err == 0;
}

/* ------------------------------------------------------------------ the program's calls */

/* The first chunk of the buffer, live or listed, that contains `chunk` or has it as room; 0: none is found. A buffer
 * may be long, so look for its word in this page only. If none is there, the page has noted where the buffer begins. */
static size_t buffer_at(size_t chunk)
{
	size_t c = chunk;

	while (c & (HP_PAGE_CHUNKS - 1) && HP_CHUNK_STATE(hp_chunk_get(c)) == HP_CHUNK_FREE)
		c--;
	if (HP_CHUNK_STATE(hp_chunk_get(c)) == HP_CHUNK_FREE)
		/* relaxed: its word is the judge */
		c = atomic_load_explicit(&page_of(c)->buffer, memory_order_relaxed);
	return HP_CHUNK_STATE(hp_chunk_get(c)) != HP_CHUNK_FREE && chunk < c + hp_chunk_extent(c) ? c : 0;
}

/* The end of that buffer, if it is live and contains `chunk`; else 0. */
static size_t live_end(size_t buffer, size_t chunk)
{
	uint64_t w = hp_chunk_get(buffer);
	size_t end = buffer + HP_CHUNK_COUNT(w);

	return buffer && HP_CHUNK_STATE(w) != HP_CHUNK_LISTED && chunk < end ? end : 0;
}

/* Where to go on from `chunk`, which no live buffer contains. buffer: as buffer_at() says. */
static size_t behind(size_t chunk, size_t buffer, size_t end)
{
	size_t gap;

	if (buffer)
		return last_of(buffer + hp_chunk_extent(buffer));
	gap = hp_holes_after(&hp_span.holes, chunk, end - chunk);
	if (gap)
		return chunk + gap;
	/* an allocation has taken it, and still waits for its pages, or it is the rest of a long room */
	do
		chunk++;
	while (chunk & (HP_PAGE_CHUNKS - 1) && HP_CHUNK_STATE(hp_chunk_get(chunk)) == HP_CHUNK_FREE);
	return chunk;
}

/* The first part of [*from, end) that lies in one live buffer, or in memory that the small tier has taken. Moves *from
 * to the start of that part and returns its end, both at base pages if *from and end are. 0: there is none. */
static size_t next_live(size_t *from, size_t end)
{
	while (*from < end) {
		size_t c = *from, p = hp_page_of(c), buffer, stop;

		if (page_of(c)->state == HP_PAGE_NONE) {
			*from = hp_bits_find(hp_span.used, p + 1, hp_page_of(end - 1) + 1, true)
				<< HP_PAGE_CHUNKS_SHIFT;
			continue;
		}
		/* the small tier keeps no chunk words: ask the tree */
		if (p >= hp_span.small) {
			size_t gap;

			gap = hp_holes_after(&hp_span.holes, c, HP_PAGE_CHUNKS);
			if (gap) {
				*from = c + gap;
				continue;
			}
			for (stop = c + 1; stop < HP_MIN(end, next_page(c)); stop++)
				if (hp_holes_after(&hp_span.holes, stop, 1))
					break;
			return HP_MIN(last_of(stop), end);
		}
		buffer = buffer_at(c);
		stop = live_end(buffer, c);
		if (stop) {
			slow_down(buffer);
			return HP_MIN(last_of(stop), end);
		}
		*from = behind(c, buffer, end);
	}
	return 0;
}

static int call_noted(size_t from, size_t end, long nr, int how, unsigned set, unsigned clear)
{
	int err = call_kernel(hp_chunk_addr(from), hp_chunk_addr(end), nr, how);

	if (err == 0) {
		note_advice(from, end, set, clear);
		return 0;
	}
	/* The kernel may have done a part, the mappings before the one that refused. To learn which, repeat the call by
	 * hugepages, and a failed hugepage by chunks. */
	for (size_t to; from < end; from = to) {
		to = HP_MIN(end, next_page(from));
		err = call_kernel(hp_chunk_addr(from), hp_chunk_addr(to), nr, how);
		if (err != 0) {
			to = from + hp_base_chunks(); /* the call works for all of a base page or none */
			err = call_kernel(hp_chunk_addr(from), hp_chunk_addr(to), nr, how);
		}
		if (err != 0)
			return err;
		note_advice(from, to, set, clear);
	}
	return 0;
}

static int apply(uintptr_t start, size_t len, long nr, int how, unsigned set, unsigned clear)
{
	size_t reserved = hp_span_load(&hp_span.reserved);
	uintptr_t base = hp_span_load(&hp_span.base), end = start + hp_round_up(len, hp_base_page), from, to;
	int err = 0;

	if (start & (hp_base_page - 1) || end <= start || base >> 63 || end <= base || start >= base + reserved ||
	    hp_heap_mine() || hp_pages_inside()) /* a signal handler, or a call by the heap itself */
		return 1;
	from = HP_MAX(start, base);
	to = HP_MIN(end, base + reserved);
	if (start < from)
		err = call_kernel(start, from, nr, how);
	hp_heap_lock();
	if (err == 0 && set && !open_record((from - base) >> HP_CHUNK_SHIFT, (to - base) >> HP_CHUNK_SHIFT))
		err = -ENOMEM;
	for (size_t c = (from - base) >> HP_CHUNK_SHIFT, stop; err == 0; c = stop) {
		stop = next_live(&c, (to - base) >> HP_CHUNK_SHIFT);
		if (!stop)
			break;
		err = call_noted(c, stop, nr, how, set, clear);
	}
	hp_heap_unlock();
	if (err == 0 && to < end)
		err = call_kernel(to, end, nr, how);
	return err;
}

int hugepin_advise_(void *addr, size_t len, int advice)
{
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		if (advice == calls[i].set || advice == calls[i].clear)
			return apply((uintptr_t)addr, len, SYS_madvise, advice,
				     advice == calls[i].set ? calls[i].bit : 0,
				     advice == calls[i].clear ? calls[i].bit : 0);
	return 1;
}

int hugepin_protect_(void *addr, size_t len, int prot)
{
	unsigned set;

	if (prot & ~(PROT_READ | PROT_WRITE | PROT_EXEC))
		return 1;
	set = (prot & PROT_READ ? 0 : HP_ADVICE_NOREAD) | (prot & PROT_WRITE ? 0 : HP_ADVICE_NOWRITE) |
	      (prot & PROT_EXEC ? HP_ADVICE_EXEC : 0);
	return apply((uintptr_t)addr, len, SYS_mprotect, prot, set, HP_ADVICE_PROT);
}

/* Bytes at the top of a stack that may hold the C library's descriptor of the thread, with the alignment that
 * thread-local variables may need. */
#define DESCRIPTOR 8192

void hugepin_stack_(void *addr, size_t size)
{
	uintptr_t base = hp_span_load(&hp_span.base), top = (uintptr_t)addr + size, from;

	if (base >> 63 || size < DESCRIPTOR || top < size || hp_heap_mine() || hp_pages_inside())
		return;
	from = (top - DESCRIPTOR) & ~(HP_CHUNK - 1);
	hp_heap_lock();
	if (from >= base && top <= base + (hp_span.end[HP_PART_HEAP] << HP_PAGE_SHIFT)) {
		size_t c = (from - base) >> HP_CHUNK_SHIFT, to = (top - base + HP_CHUNK - 1) >> HP_CHUNK_SHIFT, stop;

		if (open_record(c, to)) /* without a record there is no memory for a thread either */
			for (; (stop = next_live(&c, to)) != 0; c = stop)
				note_advice(c, stop, HP_ADVICE_STACK, 0);
	}
	hp_heap_unlock();
}

/* ------------------------------------------------------------------ what the kernel knows */

#define LEARNT (HP_ADVICE_DONTFORK | HP_ADVICE_WIPEONFORK | HP_ADVICE_DONTDUMP | HP_ADVICE_PROT)

/* Note of live buffers in the mapping what the kernel says. Memory that a fork has kept from this child keeps its note,
 * because the heap itself has made that mapping inaccessible. */
static void learn_mapping(void *unused, const struct hp_smaps *m)
{
	uintptr_t start = HP_MAX(m->start, hp_span.base);
	uintptr_t end = HP_MIN(m->end, hp_chunk_addr(hp_span.end[HP_PART_HEAP] << HP_PAGE_CHUNKS_SHIFT));
	unsigned f = m->flags;
	unsigned set = (f & HP_SMAPS_DONTFORK ? HP_ADVICE_DONTFORK : 0) |
		       (f & HP_SMAPS_WIPEONFORK ? HP_ADVICE_WIPEONFORK : 0) |
		       (f & HP_SMAPS_DONTDUMP ? HP_ADVICE_DONTDUMP : 0) |
		       (f & HP_SMAPS_READ ? 0 : HP_ADVICE_NOREAD) |
		       (f & HP_SMAPS_WRITE ? 0 : HP_ADVICE_NOWRITE) |
		       (f & HP_SMAPS_EXEC ? HP_ADVICE_EXEC : 0);
	size_t from, to;

	(void)unused;
	if (start >= end)
		return;
	from = (start - hp_span.base) >> HP_CHUNK_SHIFT;
	to = (end - hp_span.base) >> HP_CHUNK_SHIFT;
	if (!set) {
		note_advice(from, to, 0, LEARNT);
		return;
	}
	if (!open_record(from, to))
		return;
	for (size_t stop; (stop = next_live(&from, to)) != 0; from = stop)
		for (size_t c = from, run; c < stop; c = run) {
			unsigned a;

			run = HP_MIN(hp_madvise_run(c, stop, &a), next_page(c));
			if (!(a & HP_ADVICE_MISSING) && !page_of(c)->lost)
				note_advice(c, run, set, LEARNT & ~set);
		}
}

void hp_madvise_learn(void)
{
	static char text[8192]; /* protected by hp_heap_lock */

	hp_smaps_each(text, sizeof text, learn_mapping, NULL);
}

void hp_madvise_forget(void)
{
	if (record)
		note_advice(HP_PAGE_CHUNKS, hp_span.end[HP_PART_HEAP] << HP_PAGE_CHUNKS_SHIFT, 0, LEARNT);
}

/* ------------------------------------------------------------------ locks */

void hp_heap_set_locks(const struct hp_heap_locks *l)
{
	/* release: get_locks() sees the struct's functions; pairs with get_locks() */
	atomic_store_explicit(&locks, l, memory_order_release);
}

void hp_heap_locked(uintptr_t start, uintptr_t end, bool on)
{
	uintptr_t base = hp_span_load(&hp_span.base);

	if (base >> 63 || hp_heap_mine())
		return;
	start = HP_MAX(start, base) & -hp_base_page;
	hp_heap_lock();
	end = HP_MIN(end, base + (hp_span.end[HP_PART_HEAP] << HP_PAGE_SHIFT));
	if (start < end) {
		size_t c = (start - base) >> HP_CHUNK_SHIFT, to = (end - base + HP_CHUNK - 1) >> HP_CHUNK_SHIFT, stop;

		if (!on)
			note_advice(c, to, 0, HP_ADVICE_LOCKED);
		else if (open_record(c, to)) /* refused: freed memory stays locked, as documented for raw calls */
			for (; (stop = next_live(&c, to)) != 0; c = stop)
				note_advice(c, stop, HP_ADVICE_LOCKED, 0);
	}
	hp_heap_unlock();
}

static const struct hp_heap_locks *get_locks(void)
{
	return atomic_load_explicit(&locks, memory_order_acquire); /* pairs with hp_heap_set_locks() */
}

void hp_madvise_unlock(size_t chunk, size_t n)
{
	unsigned a;

	for (size_t c = chunk, end = chunk + n, to; get_locks() && c < end; c = to) {
		hp_heap_lock();
		to = hp_madvise_run(c, end, &a);
		if (a & HP_ADVICE_LOCKED)
			note_advice(c, to, 0, HP_ADVICE_LOCKED);
		hp_heap_unlock();
		if (a & HP_ADVICE_LOCKED)
			get_locks()->unlock(hp_chunk_addr(c), hp_chunk_addr(to));
	}
}

int hp_madvise_lock_alike(size_t from, size_t to, size_t n)
{
	unsigned a;
	int err = 0;

	for (size_t c = 0, end; get_locks() && c < n && err == 0; c = end) {
		bool pool = page_of(to + c)->kind == HUGEPIN_KIND_HUGETLB;

		hp_heap_lock();
		end = run_of(HP_ADVICE_LOCKED, from + c, HP_MIN(from + n, from + next_page(to + c) - to), &a) - from;
		/* pages of the pool are never swapped, so noting suffices; mlock fails on unreadable ones */
		if (a && pool)
			note_advice(to + c, to + end, HP_ADVICE_LOCKED, 0);
		hp_heap_unlock();
		if (a && !pool)
			err = get_locks()->lock(hp_chunk_addr(to + c), hp_chunk_addr(to + end));
	}
	return err;
}

/* ------------------------------------------------------------------ fork */

bool hp_madvise_withheld(size_t page)
{
	size_t c = page << HP_PAGE_CHUNKS_SHIFT, end = c + HP_PAGE_CHUNKS;
	unsigned a;

	return run_of(HP_ADVICE_DONTFORK, c, end, &a) == end && a;
}

bool hp_madvise_is_stack(size_t page)
{
	size_t c = page << HP_PAGE_CHUNKS_SHIFT, end = c + HP_PAGE_CHUNKS;
	unsigned a;

	return run_of(HP_ADVICE_STACK, c, end, &a) < end || a;
}

bool hp_madvise_dofork(size_t first, size_t end_page)
{
	size_t end = end_page << HP_PAGE_CHUNKS_SHIFT;
	unsigned a;

	for (size_t c = first << HP_PAGE_CHUNKS_SHIFT, to; c < end; c = to) {
		to = run_of(HP_ADVICE_DONTFORK, c, end, &a);
		if (!a && call_kernel(hp_chunk_addr(c), hp_chunk_addr(to), SYS_madvise, MADV_DOFORK) != 0)
			return false;
	}
	return true;
}

/* Keep chunks inaccessible for which the child has no memory, or only an empty copy. Reserve the addresses, so that no
 * other mapping comes to lie there and an access is fatal. */
static bool keep_out_advised(size_t from, size_t end)
{
	if (hp_sys_failed(hp_sys(SYS_mmap, hp_chunk_addr(from), (end - from) << HP_CHUNK_SHIFT, PROT_NONE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1)))
		return false;
	call_kernel(hp_chunk_addr(from), hp_chunk_addr(end), SYS_madvise, MADV_DONTDUMP);
	note_advice(from, end, HP_ADVICE_MISSING, ~(unsigned)HP_ADVICE_STUCK);
	for (size_t p = from >> HP_PAGE_CHUNKS_SHIFT; p <= (end - 1) >> HP_PAGE_CHUNKS_SHIFT; p++)
		if (hp_span.page[p].kind == HUGEPIN_KIND_HUGETLB) /* the page is no longer the pool's */
			hp_span.page[p].fork = HP_PAGE_COPIED;
	return true;
}

/* Set the advice of pages [from, end) in the child. copied: all of these pages are our copy; otherwise the kernel gave
 * them to the child, with their advice. MISSING chunks of the parent stay MISSING. */
static bool in_child(size_t from, size_t end, bool copied)
{
	const unsigned gone = HP_ADVICE_DONTFORK | (copied ? HP_ADVICE_MISSING : 0);
	unsigned a, more;

	note_advice(from, end, 0, HP_ADVICE_LOCKED);
	for (size_t c = from, to, next; c < end; c = to) {
		to = run_of(gone, c, end, &a);
		/* join neighbours, so that one mapping of the parent's becomes one, and the child does not run out of
		 * mappings */
		if (a) {
			while (to < end && (next = run_of(gone, to, end, &more), more))
				to = next;
			if (!keep_out_advised(c, to))
				return false;
		} else if (copied) {
			to = run_of(CALLED, c, to, &a);
			if (a && change_advice(c, to, 0, a) != 0)
				return false;
		}
	}
	return true;
}

/* Advise the child's pages [first_page, end_page), as hp_madvise_child() says. Pages that the child does not get lose
 * their notes. Neighbours of one kind go by one call of in_child(). */
static bool child_part(size_t first_page, size_t end_page)
{
	for (size_t p = first_page; p < end_page; p++) {
		const struct hp_page *g = &hp_span.page[p];
		size_t c = p << HP_PAGE_CHUNKS_SHIFT;

		if (!g->advised)
			continue;
		if (g->fork == HP_PAGE_LEFT || g->fork == HP_PAGE_LOST) {
			note_advice(c, next_page(c), 0, ~0u);
			continue;
		}
		while (p + 1 < end_page && g[1].advised && g[1].fork == g->fork) {
			p++;
			g++;
		}
		if (!in_child(c, (p + 1) << HP_PAGE_CHUNKS_SHIFT, g->fork == HP_PAGE_COPIED))
			return false;
	}
	return true;
}

bool hp_madvise_made(void)
{
	return record;
}

bool hp_madvise_child(void)
{
	if (get_locks())
		get_locks()->child();
	return !record ||
	       (child_part(1, hp_span.end[HP_PART_HEAP]) && child_part(hp_span.small, hp_span.end[HP_PART_SMALL]));
}
