/* link: hugepin uring */
/*
 * Random programs for as long as one likes: threads allocate, resize and free, map, discard and unmap foreign memory, pin all of
 * it in domains of every policy, have the kernel read and write it as fixed buffers, fork, purge and watch, while the pool of
 * hugepages is resized under them. Every byte says whose it is, and is looked at before its memory goes, in children, and behind
 * the device. At the end of each round everything is given back, and nothing may be left: no heap, no pin, no mapping, thread or
 * descriptor, and of the pool what there was.
 *
 *	soak [-s SEED] [-t SECONDS] [-r ROUNDS] [-p LOW,HIGH]
 *
 * A seed gives each thread the same numbers; who meets whom differs from run to run. -p: let the pool have between LOW and HIGH
 * pages; as root, on a pool that nobody else uses. With libhugepin-malloc.so preloaded half of the heap's buffers come from
 * malloc, and nobody is told of memory that is unmapped. Without io_uring every domain locks memory only.
 *
 * Nobody is told of memory that is unmapped: hugepin_forget is not called. Some of it passes through: it is mapped, pinned at once,
 * read into and unmapped, in a domain that all threads share.
 *
 * A thread of its own changes the process meanwhile, and each child of fork changes itself (changes.h).
 *
 * A slot is anybody's who holds its lock. Pins that a slot keeps are given back before its memory is; a read that has been given
 * to the kernel and not been done keeps its slot locked.
 */
#include <hugepin_uring.h>

#include "../live/live.h"

#include <dirent.h>
#include <getopt.h>
#include <limits.h>
#include <malloc.h>

enum { THREADS = 8, CHANGER = THREADS, SLOTS = 160, KEPT = 2, FLIGHT_BYTES = 4096, IO_MAX = 65536, STUCK_SECONDS = 100 };

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { SANITIZED = true };
#else
enum { SANITIZED = false };
#endif
#ifdef __SANITIZE_THREAD__
enum { FORKS = false }; /* TSan does not go on after a fork of many threads */
#else
enum { FORKS = true };
#endif

/* One for each thread, and its ring; but anybody pins there. The last is everybody's: what a thread finds registered in a domain
 * that it alone uses, it has unmapped itself. */
static struct place {
	hugepin_domain *domain;
	struct io_uring ring;
	bool has_ring;
	pthread_mutex_t lock; /* of the ring that is everybody's */
} places[THREADS + 1];
#define COMMON (&places[THREADS])

static struct slot {
	pthread_mutex_t lock;
	char *_Atomic p; /* for watchers, who hold no lock: set after size, cleared before the memory is given back */
	_Atomic size_t size;
	uint64_t seed; /* of its pattern */
	bool foreign, by_malloc;
	size_t hidden_at, hidden_len; /* what a child does not get of it, by MADV_DONTFORK, */
	bool wiped; /* or gets as zeros */
	struct {
		int place;
		struct hugepin_pin pin;
	} kept[KEPT];
} slots[SLOTS];

/* A read of a pipe into a slot's memory, which the kernel does once something is written there. */
struct flight {
	struct slot *slot; /* locked; NULL: none */
	size_t at;
	struct hugepin_pin pin;
	int hops; /* operations of its thread until it lands */
};

struct worker {
	uint64_t rand;
	struct place *place;
	int file, pipe[2]; /* the file is as long as IO_MAX */
	char *buffer; /* of IO_MAX, nobody else's */
	struct flight flight;
	_Atomic(const char *) doing;
	_Atomic unsigned long done;
	pthread_t thread;
	int with; /* of the change that it makes */
};
/* The last changes the process. */
static struct worker workers[THREADS + 1];

static struct {
	uint64_t seed;
	double seconds;
	int rounds;
	long low, high; /* of the pool; 0: as it is */
} option = { .seconds = 1200, .rounds = 4 };

static bool preloaded;
static _Atomic bool stop;
static _Atomic uint64_t seeds;
static _Atomic unsigned long count_pins, count_refused, count_io, count_passed, count_forks, count_forks_refused, count_left, count_nomem,
	count_hidden;

/* ------------------------------------------------------------------ memory */

static bool in_child;

/* Of what a child is not to see: 0 if it is so. */
static ptrdiff_t hidden_check(const struct slot *s)
{
	int pipe[2];
	bool readable;

	if (s->wiped)
		return zero_check(s->p + s->hidden_at, s->hidden_len) < 0 ? -1 : (ptrdiff_t)s->hidden_at;
	if (pipe2(pipe, O_CLOEXEC))
		return -1;
	readable = write(pipe[1], s->p + s->hidden_at, 1) == 1;
	close(pipe[0]);
	close(pipe[1]);
	return readable ? (ptrdiff_t)s->hidden_at : -1;
}

static bool slot_check(struct slot *s, const char *when)
{
	const size_t end = s->hidden_at + s->hidden_len;
	ptrdiff_t at;

	if (in_child && s->hidden_len) {
		at = pattern_check(s->p, s->hidden_at, s->seed);
		if (at < 0 && end < s->size)
			at = pattern_check(s->p + end, s->size - end, s->seed + end / 8);
		if (at < 0)
			at = hidden_check(s);
	} else {
		at = pattern_check(s->p, s->size, s->seed);
	}
	return at < 0 || T_FAIL("%s memory at %p, %zu bytes: byte %td is wrong %s", s->foreign ? "foreign" : "heap", s->p, s->size,
				at, when);
}

static void slot_write(struct slot *s)
{
	s->seed = atomic_fetch_add(&seeds, 1) << 24;
	pattern_write(s->p, s->size, s->seed);
}

static void slot_unpin(struct slot *s)
{
	for (int i = 0; i < KEPT; i++)
		if (s->kept[i].pin.ref)
			EXPECT_EQ(hugepin_unpin(places[s->kept[i].place].domain, &s->kept[i].pin), 0);
}

static void slot_take(struct slot *s, char *p, size_t size, bool foreign)
{
	if (!p) {
		count_nomem++;
		return;
	}
	s->size = size;
	s->p = p;
	s->hidden_len = 0;
	s->foreign = foreign;
	slot_write(s);
}

static void slot_drop(struct slot *s)
{
	char *p = s->p;

	if (!p)
		return;
	slot_unpin(s);
	slot_check(s, "when it is given back");
	s->p = NULL;
	if (s->foreign)
		EXPECT_EQ(munmap(p, s->size), 0);
	else if (s->by_malloc)
		free(p);
	else
		hugepin_free(p);
}

static char *foreign_map(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static void slot_fill(struct slot *s, uint64_t *rand)
{
	const uint64_t r = rand_next(rand);
	const size_t size = rand_size(rand, 1, r % 64 ? 4 * MIB : 48 * MIB);
	const size_t align = (size_t)64 << (r >> 8) % 17;
	char *p;

	s->by_malloc = preloaded && r >> 32 & 1;
	switch (r % 16) {
	case 0:
	case 1:
		p = s->by_malloc ? calloc(1, size) : hugepin_calloc(1, size);
		if (p && zero_check(p, size) >= 0)
			T_FAIL("calloc of %zu bytes is not zero at %td", size, zero_check(p, size));
		break;
	case 2:
		p = s->by_malloc ? aligned_alloc(align, size) : hugepin_aligned_alloc(align, size);
		EXPECT((uintptr_t)p % align == 0);
		break;
	case 3:
	case 4:
	case 5:
		slot_take(s, foreign_map(size), size, true);
		return;
	default:
		p = s->by_malloc ? malloc(size) : hugepin_malloc(size);
	}
	slot_take(s, p, size, false);
}

static void slot_show(struct slot *s)
{
	EXPECT_EQ(madvise(s->p + s->hidden_at, s->hidden_len, s->wiped ? MADV_KEEPONFORK : MADV_DOFORK), 0);
	s->hidden_len = 0;
}

/* Have children see nothing of a part, or see it again. A heap buffer goes without that being taken back. */
static void slot_hide(struct slot *s, uint64_t *rand)
{
	const size_t first = (4096 - ((uintptr_t)s->p & 4095)) & 4095;
	const uint64_t r = rand_next(rand);
	struct hugepin_extent e;
	size_t at, len;

	if (!preloaded || s->foreign || s->size < 128 * KIB || hugepin_extent(s->p, &e, sizeof e) < 0)
		return;
	if (s->hidden_len) {
		slot_show(s);
		return;
	}
	at = first + ((r >> 8) % ((s->size - first) / 4096) << 12);
	len = 1 + (r >> 32) % (s->size - at);
	if (r % 4 == 0) { /* whole hugepages, which those of the pool let be hidden */
		at = PAGE - ((uintptr_t)s->p & (PAGE - 1));
		len = at < s->size ? (s->size - at) / PAGE * PAGE : 0;
	}
	if (at + len < s->size)
		len = len / 4096 * 4096; /* to the end of a page */
	s->wiped = r >> 4 & 1;
	if (len && madvise(s->p + at, len, s->wiped ? MADV_WIPEONFORK : MADV_DONTFORK) == 0) {
		s->hidden_at = at;
		s->hidden_len = len;
		count_hidden++;
	}
}

static char *foreign_resize(char *before, size_t old, size_t size)
{
#ifdef __SANITIZE_THREAD__ /* it knows nothing of mremap, and takes what lay there before for the same memory */
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	memcpy(p, before, old < size ? old : size);
	munmap(before, old);
	return p;
#else
	char *p = mremap(before, old, size, MREMAP_MAYMOVE);

	return p == MAP_FAILED ? NULL : p;
#endif
}

static void slot_resize(struct slot *s, uint64_t *rand)
{
	const size_t old = s->size, size = rand_next(rand) % 2 ? old + old / 2 + 1 : rand_size(rand, 1, 4 * MIB);
	char *before = s->p, *p;
	struct hugepin_extent e;

	slot_unpin(s);
	/* Pages of the pool are hidden as wholes, and the rest of the last is not ours then. */
	if (s->hidden_len && hugepin_extent(before, &e, sizeof e) > 0 && e.kind == HUGEPIN_KIND_HUGETLB)
		slot_show(s);
	s->p = NULL;
	if (s->foreign) {
		p = foreign_resize(before, old, size);
	} else {
		p = s->by_malloc ? realloc(before, size) : hugepin_realloc(before, size);
	}
	s->size = p ? size : old;
	s->p = p ? p : before;
	const ptrdiff_t at = pattern_check(s->p, (size < old ? size : old) / 8 * 8, s->seed);
	if (at >= 0)
		T_FAIL("%zu bytes resized to %zu: byte %td is wrong", old, size, at);
	if (s->hidden_len) { /* what is said of a page stays with it, and ends with it */
		const size_t end = (s->hidden_at + s->hidden_len + 4095) / 4096 * 4096;

		s->hidden_len = s->hidden_at < s->size ? (end < s->size ? end : s->size) - s->hidden_at : 0;
	}
	slot_write(s);
}

/* The pages go, the addresses stay; what a device gets from now on are the new ones. */
static void foreign_discard(struct slot *s, uint64_t *rand)
{
	char *p = s->p;

	slot_unpin(s);
	slot_check(s, "when it is discarded");
	if (rand_next(rand) % 2) { /* a part, and not of whole pages: the kernel rounds it up */
		const size_t len = 1 + rand_next(rand) % s->size;

		if (madvise(p, len, MADV_DONTNEED)) /* refused where a domain has locked it */
			EXPECT(madvise(p, len, MADV_DONTNEED_LOCKED) == 0);
	} else {
		if (mmap(p, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != p)
			return; /* for want of addresses */
	}
	EXPECT_EQ(p[0], 0);
	slot_write(s);
}

/* What leaves the heap is nobody's. A slot whose address is read twice had this size meanwhile. */
static void leaving(void *unused, const struct hugepin_extent *x)
{
	const uintptr_t from = (uintptr_t)x->addr, to = from + x->len;

	(void)unused;
	count_left++;
	for (struct slot *s = slots; s < slots + SLOTS; s++) {
		char *p = s->p;
		const size_t size = s->size;

		if (p && p == s->p && (uintptr_t)p < to && (uintptr_t)p + size > from)
			T_FAIL("%p, %zu bytes, leaves the heap, and a buffer at %p is there", x->addr, x->len, p);
	}
}

/* ------------------------------------------------------------------ pins */

/* A part of the slot; *ret_len is what the key covers. */
static bool pin_part(struct slot *s, struct place *place, size_t len_max, uint64_t *rand, struct hugepin_pin *ret_pin,
		     size_t *ret_at, size_t *ret_len)
{
	const size_t at = rand_next(rand) % s->size, left = s->size - at;
	const size_t len = 1 + rand_next(rand) % (left < len_max ? left : len_max);
	const unsigned uncached = rand_next(rand) % 64 ? 0 : HUGEPIN_PIN_UNCACHED;
	const int e = hugepin_pin(place->domain, s->p + at, len, uncached, ret_pin);

	if (e) {
		if (e != -ENOBUFS && e != -ENOMEM)
			T_FAIL("a pin of %zu bytes is refused with %s: %s", len, strerror(-e), workers[CHANGER].doing);
		count_refused++;
		return false;
	}
	count_pins++;
	EXPECT_EQ(ret_pin->base, (uintptr_t)s->p + at);
	EXPECT(ret_pin->len && ret_pin->len <= len);
	*ret_at = at;
	*ret_len = ret_pin->len;
	return true;
}

static void slot_pin(struct slot *s, uint64_t *rand)
{
	const int place = (int)(rand_next(rand) % THREADS), i = (int)(rand_next(rand) % KEPT);
	struct hugepin_pin pin;
	size_t at, len;

	if (s->kept[i].pin.ref) {
		EXPECT_EQ(hugepin_unpin(places[s->kept[i].place].domain, &s->kept[i].pin), 0);
		return;
	}
	if (!pin_part(s, &places[place], s->size, rand, &pin, &at, &len))
		return;
	s->kept[i].place = place;
	s->kept[i].pin = pin;
}

static bool ring_wait(struct io_uring *ring, size_t len)
{
	struct io_uring_cqe *cqe;
	int e;

	do
		e = io_uring_wait_cqe(ring, &cqe);
	while (e == -EINTR);
	if (!EXPECT_EQ(e, 0))
		return false;
	e = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return EXPECT_EQ(e, len);
}

/* The kernel writes a part of the slot to a file, or fills it from there. */
static void slot_io(struct worker *w, struct slot *s)
{
	struct io_uring *ring = &w->place->ring;
	struct hugepin_pin pin;
	size_t at, len;
	const bool fill = rand_next(&w->rand) % 2;

	if (!pin_part(s, w->place, IO_MAX, &w->rand, &pin, &at, &len))
		return;
	if (fill) {
		memcpy(w->buffer, s->p + at, len);
		EXPECT_EQ(pwrite(w->file, w->buffer, len, 0), len);
		memset(s->p + at, 0xee, len);
		io_uring_prep_read_fixed(io_uring_get_sqe(ring), w->file, s->p + at, (unsigned)len, 0, (int)pin.lkey);
	} else {
		io_uring_prep_write_fixed(io_uring_get_sqe(ring), w->file, s->p + at, (unsigned)len, 0, (int)pin.lkey);
	}
	EXPECT_EQ(io_uring_submit(ring), 1);
	if (ring_wait(ring, len) && !fill) {
		EXPECT_EQ(pread(w->file, w->buffer, len, 0), len);
		if (memcmp(w->buffer, s->p + at, len))
			T_FAIL("the device read wrong bytes of %zu at %p, %s memory", len, s->p + at,
			       s->foreign ? "foreign" : "heap");
	}
	if (fill)
		slot_check(s, "after the device has written it");
	EXPECT_EQ(hugepin_unpin(w->place->domain, &pin), 0);
	count_io++;
}

/* The kernel reads into p, by what everybody's domain has registered there. */
static void device_fills(struct worker *w, char *p, size_t len)
{
	const uint64_t mark = atomic_fetch_add(&seeds, 1) << 24;
	struct io_uring *ring = &COMMON->ring;
	struct hugepin_pin pin;
	int e;

	if (!COMMON->has_ring)
		return;
	e = hugepin_pin(COMMON->domain, p, len, 0, &pin);
	if (e) {
		if (e != -ENOBUFS && e != -ENOMEM)
			T_FAIL("a pin of %zu bytes is refused with %s: %s", len, strerror(-e), workers[CHANGER].doing);
		count_refused++;
		return;
	}
	pattern_write(w->buffer, len, mark);
	EXPECT_EQ(pwrite(w->file, w->buffer, len, 0), len);
	pthread_mutex_lock(&COMMON->lock);
	io_uring_prep_read_fixed(io_uring_get_sqe(ring), w->file, p, (unsigned)len, 0, (int)pin.lkey);
	EXPECT_EQ(io_uring_submit(ring), 1);
	ring_wait(ring, len);
	pthread_mutex_unlock(&COMMON->lock);
	if (pattern_check(p, len, mark) >= 0)
		T_FAIL("the device wrote %zu bytes for %p elsewhere: %s", len, p, w->doing);
	EXPECT_EQ(hugepin_unpin(COMMON->domain, &pin), 0);
	count_passed++;
}

/* Memory that comes, is pinned and read into at once, and goes: nothing is written to it before, since until the kernel has told who
 * had these addresses last there are only microseconds. Of few sizes, so that threads get each other's. */
static void pass_through(struct worker *w)
{
	const uint64_t r = rand_next(&w->rand);
	const bool by_malloc = !preloaded && r % 4 == 0; /* which glibc maps and unmaps: no arena of its has so much */
	const size_t size = by_malloc ? 65 * MIB : MIB << r / 4 % 2, len = 1 + r / 8 % IO_MAX, at = 4096 * (r >> 32) % (MIB / 4);
	char *p = by_malloc ? hide(malloc(size)) : foreign_map(size);

	w->doing = by_malloc ? "passing memory of malloc through" : "passing memory of mmap through";
	if (!p) {
		count_nomem++;
		return;
	}
	device_fills(w, p + at, len);
	if (by_malloc)
		free(hide(p));
	else
		EXPECT_EQ(munmap(p, size), 0);
}

static void flight_start(struct worker *w, struct slot *s)
{
	struct flight *f = &w->flight;
	size_t len;

	if (!pin_part(s, w->place, FLIGHT_BYTES, &w->rand, &f->pin, &f->at, &len)) {
		pthread_mutex_unlock(&s->lock);
		return;
	}
	memcpy(w->buffer, s->p + f->at, len);
	memset(s->p + f->at, 0xdd, len);
	io_uring_prep_read_fixed(io_uring_get_sqe(&w->place->ring), w->pipe[0], s->p + f->at, (unsigned)len, 0, (int)f->pin.lkey);
	EXPECT_EQ(io_uring_submit(&w->place->ring), 1);
	/* The bytes wait here: the buffer has other uses meanwhile. */
	memcpy(w->buffer + IO_MAX, w->buffer, len);
	f->hops = 1 + (int)(rand_next(&w->rand) % 20);
	f->slot = s;
}

static void flight_land(struct worker *w)
{
	struct flight *f = &w->flight;
	const size_t len = f->pin.len;

	EXPECT_EQ(write(w->pipe[1], w->buffer + IO_MAX, len), len);
	ring_wait(&w->place->ring, len);
	slot_check(f->slot, "after the device has written it late");
	EXPECT_EQ(hugepin_unpin(w->place->domain, &f->pin), 0);
	pthread_mutex_unlock(&f->slot->lock);
	f->slot = NULL;
	count_io++;
}

/* ------------------------------------------------------------------ what a process changes under the library */

static long status_kib(const char *name)
{
	char text[8192], *at;

	return file_read("/proc/self/status", text, sizeof text) > 0 && (at = strstr(text, name)) ? atol(at + strlen(name)) : 0;
}

#include "changes.h"

/* ------------------------------------------------------------------ fork */

/* Everything that stood still is there, and the child's alone; its heap works, and its parent's domains are not for it. */
static int inherit(const bool *still, struct worker *w)
{
	uint64_t rand = w->rand;
	struct hugepin_pin pin;

	t_failures = 0;
	in_child = true;
	if (!SANITIZED)
		change(w);
	for (int i = 0; i < SLOTS; i++) {
		if (!still[i] || !slots[i].p)
			continue;
		slot_check(&slots[i], "in a child");
		memset(slots[i].kept, 0, sizeof slots[i].kept); /* the parent's */
		if (rand_next(&rand) % 4 == 0) {
			if (!slots[i].hidden_len)
				slot_write(&slots[i]);
			slot_drop(&slots[i]);
			slot_fill(&slots[i], &rand);
		}
	}
	for (int i = 0; i < SLOTS; i++)
		if (still[i] && slots[i].p)
			slot_check(&slots[i], "in a child, that has written");
	EXPECT_EQ(hugepin_pin(places[0].domain, slots, 1, 0, &pin), -ESTALE);
	if (daemon_says >= 0)
		EXPECT_EQ(write(daemon_says, &(char){ t_failures != 0 }, 1), 1);
	return t_failures != 0;
}

static uint64_t forks_uncovered(void)
{
	struct hugepin_stats s;

	hugepin_stats(&s, sizeof s);
	return s.forks_uncovered;
}

/* While other threads go on. What they hold at the moment is not looked at. */
static void fork_once(struct worker *w)
{
	const uint64_t uncovered = forks_uncovered();
	bool still[SLOTS];
	pid_t pid;
	int status, e;

	for (int i = 0; i < SLOTS; i++)
		still[i] = !pthread_mutex_trylock(&slots[i].lock);
	/* The address sanitizer is not made for forks while threads come and go: its locks, and what it knows of their stacks. */
	if (SANITIZED)
		pthread_mutex_lock(&changing);
	pid = fork();
	e = errno;
	if (SANITIZED)
		pthread_mutex_unlock(&changing);
	if (pid == 0) {
		if (w->flight.slot)
			still[w->flight.slot - slots] = false; /* the device may be writing */
		_exit(inherit(still, w));
	}
	for (int i = 0; i < SLOTS; i++)
		if (still[i])
			pthread_mutex_unlock(&slots[i].lock);
	if (pid < 0) {
		EXPECT(e == ENOMEM || e == EAGAIN);
		count_forks_refused++;
		return;
	}
	count_forks++;
	status = child_wait(pid, 20);
	/* Where a limit left no room for a copy, and the drop-in could not refuse the fork, there is no promise. */
	if (status != 128 + SIGBUS || forks_uncovered() == uncovered)
		EXPECT_EQ(status, 0);
}

/* ------------------------------------------------------------------ the threads */

static void step(struct worker *w)
{
	const uint64_t r = rand_next(&w->rand);
	struct slot *s = &slots[r % SLOTS];
	int id;

	if (w->flight.slot && w->flight.hops-- == 0) {
		w->doing = "landing";
		flight_land(w);
	}
	if (COMMON->has_ring && (r >> 25 & 3) == 0) {
		pass_through(w);
		return;
	}
	if (r >> 16 & 511) {
		if (pthread_mutex_trylock(&s->lock))
			return;
		if (!s->p) {
			w->doing = "allocating";
			slot_fill(s, &w->rand);
		} else if (w->place->has_ring && r >> 32 & 1) {
			if (!w->flight.slot && (r >> 33) % 16 == 0) {
				w->doing = "starting a read";
				flight_start(w, s);
				return; /* with the lock, if it flies */
			}
			w->doing = "reading and writing";
			slot_io(w, s);
		} else {
			switch ((r >> 40) % 8) {
			case 0:
			case 1:
			case 2:
			case 3:
				w->doing = "pinning";
				slot_pin(s, &w->rand);
				break;
			case 4:
				w->doing = "resizing";
				slot_resize(s, &w->rand);
				w->doing = "hiding";
				slot_hide(s, &w->rand);
				break;
			case 5:
				if (s->foreign) {
					w->doing = "discarding";
					foreign_discard(s, &w->rand);
					break;
				} /* fall through */
			default:
				w->doing = "freeing";
				slot_drop(s);
			}
		}
		pthread_mutex_unlock(&s->lock);
		return;
	}
	switch ((r >> 40) % 4) {
	case 0:
		w->doing = "purging";
		hugepin_purge();
		break;
	case 1:
		w->doing = "watching";
		if (!hugepin_watch(leaving, NULL, &id)) {
			hugepin_purge();
			EXPECT_EQ(hugepin_unwatch(id), 0);
		}
		break;
	default:
		w->doing = "forking";
		if (FORKS)
			fork_once(w);
	}
}

static void *change_on(void *w_)
{
	struct worker *w = w_;

	for (; !stop; w->done++) {
		pthread_mutex_lock(&changing);
		change(w);
		pthread_mutex_unlock(&changing);
		sleep_ms((long)(rand_next(&w->rand) % 20));
	}
	for (int i = 0; i < LODGERS; i++)
		lodger_leaves(&lodgers[i]);
	if (at_last && !SANITIZED) /* what has been put there, and by the library beside it */
		syscall(SYS_close_range, HIGH, ~0u, 0);
	w->doing = NULL;
	return NULL;
}

static void *work(void *w_)
{
	struct worker *w = w_;

	for (; !stop; w->done++)
		step(w);
	w->doing = "landing at the end";
	if (w->flight.slot)
		flight_land(w);
	w->doing = NULL;
	return NULL;
}

/* ------------------------------------------------------------------ what there is before and after */

static long lines(const char *path)
{
	char text[4096];
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;
	long count = 0;

	while ((n = read(fd, text, sizeof text)) > 0)
		for (ssize_t i = 0; i < n; i++)
			count += text[i] == '\n';
	close(fd);
	return count;
}

static long entries(const char *path)
{
	DIR *dir = opendir(path);
	long count = 0;

	while (dir && readdir(dir))
		count++;
	if (dir)
		closedir(dir);
	return count;
}

/* X(name, what it is now, how much more is none left). glibc's arenas for small memory differ from round to round; where they grow
 * behind pages that have been pinned, each part is a mapping, since watched and unwatched memory do not merge. */
#define LEFT_LIST(X)                                                                                                   \
	X(pinned_kib, status_kib("VmPin:"), 0)                                                                         \
	X(locked_kib, status_kib("VmLck:"), 0)                                                                         \
	X(hugetlb_kib, status_kib("HugetlbPages:"), 0)                                                                 \
	X(heap_taken, (long)heap.taken_bytes, 0)                                                                       \
	X(heap_extents, (long)heap.extents, 0)                                                                         \
	X(descriptors, entries("/proc/self/fd"), 0)                                                                    \
	X(threads, entries("/proc/self/task"), 0)                                                                      \
	X(mappings, lines("/proc/self/maps"), SANITIZED ? 4096 : 256)                                                  \
	X(resident_kib, status_kib("VmRSS:"), 256 * 1024) /* several of the largest buffers, which malloc has kept */

struct left {
#define LEFT_MEMBER(name, now, slack) long name;
	LEFT_LIST(LEFT_MEMBER)
};

static struct left left_now(void)
{
	struct hugepin_stats heap;

	/* All that is mapped becomes resident, as a change may have made it: what malloc keeps free, too. Where mmap was refused for a
	 * moment, that may be as much as the largest buffer. */
	if (!SANITIZED && !mlockall(MCL_CURRENT))
		munlockall();
	malloc_trim(0);
	hugepin_stats(&heap, sizeof heap);
	return (struct left){
#define LEFT_NOW(name, now, slack) now,
		LEFT_LIST(LEFT_NOW)
	};
}

/* What threads and rings had goes a moment after them: the kernel's workers do that, when they come to it. */
static struct left left_check(const struct left *before)
{
	struct left now = { 0 };

	for (int i = 0; i < 300; i++) {
		hugepin_purge();
		now = left_now();
#define LEFT_HOLDS(name, unused, slack) now.name <= before->name + (slack) &&
		if (LEFT_LIST(LEFT_HOLDS) true)
			break;
		sleep_ms(100);
	}
	t_print("#");
#define LEFT_SHOW(name, unused, slack) t_print(" " #name " %ld", now.name);
	LEFT_LIST(LEFT_SHOW)
	t_print("\n");
#define LEFT_PRINT(name, unused, slack)                                                                                \
	if (now.name > before->name + (slack))                                                                         \
		T_FAIL("left at the end: " #name " %ld, at the start %ld", now.name, before->name);
	LEFT_LIST(LEFT_PRINT)
	return now;
}

/* Of the pool; -1: the kernel has none. */
struct pool {
	long used, reserved, surplus;
};

static struct pool pool_now(void)
{
	return (struct pool){ file_number(POOL_DIR "nr_hugepages") - file_number(POOL_DIR "free_hugepages"),
			      file_number(POOL_DIR "resv_hugepages"), file_number(POOL_DIR "surplus_hugepages") };
}

static void pool_check(struct pool before)
{
	struct pool now;

	for (int i = 0; i < 300; i++) {
		now = pool_now();
		if (now.used <= before.used && now.reserved <= before.reserved && now.surplus <= before.surplus)
			return;
		sleep_ms(100);
	}
	T_FAIL("of the pool are used, reserved and surplus %ld, %ld and %ld; at the start %ld, %ld and %ld", now.used, now.reserved,
	       now.surplus, before.used, before.reserved, before.surplus);
}

static bool pool_resize(long pages)
{
	char text[32];

	snprintf(text, sizeof text, "%ld", pages);
	return file_write(POOL_DIR "nr_hugepages", text);
}

static long pool_pages;

/* Not while the process is another user, or may open no file. */
static void pool_resize_between(long low, long high, uint64_t *rand)
{
	pthread_mutex_lock(&changing);
	EXPECT(pool_resize(low + (long)(rand_next(rand) % (uint64_t)(high - low + 1))));
	pthread_mutex_unlock(&changing);
}

/* However we end. */
static void put_pool_back(int signal)
{
	pool_resize(pool_pages);
	raise(signal);
}

/* ------------------------------------------------------------------ rounds */

/* Policies and budgets of the places; their rings, where there are any, have few slots. */
static const struct {
	uint32_t policy;
	bool ring;
	uint64_t budget;
} kinds[THREADS + 1] = {
	{ HUGEPIN_POLICY_ARENA, true, UINT64_MAX },  { HUGEPIN_POLICY_LRU, true, 64 * MIB },
	{ HUGEPIN_POLICY_PREDICT, true, 96 * MIB },  { HUGEPIN_POLICY_CF11, true, 96 * MIB },
	{ HUGEPIN_POLICY_NONE, true, 0 },	     { HUGEPIN_POLICY_ARENA, true, 128 * MIB },
	{ HUGEPIN_POLICY_LRU, false, 32 * MIB },     { HUGEPIN_POLICY_PREDICT, false, 0 },
	{ HUGEPIN_POLICY_LRU, true, UINT64_MAX },
};

static void place_open(int i)
{
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = kinds[i].policy, .pinned_bytes_max = kinds[i].budget };
	struct place *p = &places[i];

	p->has_ring = kinds[i].ring && io_uring_queue_init(8, &p->ring, 0) == 0;
	EXPECT_EQ(p->has_ring ? hugepin_uring_open(&p->ring, 0, 96, &attr, &p->domain) :
				hugepin_domain_open(hugepin_mlock(), NULL, &attr, &p->domain),
		  0);
}

static void place_close(struct place *p)
{
	struct hugepin_domain_stats s;

	hugepin_domain_stats(p->domain, &s, sizeof s);
	EXPECT_EQ(s.retired, 0);
	EXPECT_EQ(s.failed, 0);
	EXPECT_EQ(hugepin_domain_close(p->domain), 0);
	if (p->has_ring)
		io_uring_queue_exit(&p->ring);
}

/* Each kind of thing has happened. */
static bool all_done(void)
{
	return count_pins && count_left && (count_forks || !FORKS);
}

/* Let the threads run, and see that they do: each is to do something within STUCK_SECONDS. On a slow machine for longer, until all
 * has been done. */
static void rest(double seconds, long low, long high, uint64_t *rand)
{
	struct timespec now;
	unsigned long seen[THREADS + 1] = { 0 };
	time_t moved[THREADS + 1];

	clock_gettime(CLOCK_MONOTONIC, &now);
	const double end = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec + seconds;
	for (int i = 0; i <= CHANGER; i++)
		moved[i] = now.tv_sec;
	while (((double)now.tv_sec + 1e-9 * (double)now.tv_nsec < end || !all_done()) && !t_failures) {
		if (high)
			pool_resize_between(low, high, rand);
		sleep_ms(20 + (long)(rand_next(rand) % 300));
		clock_gettime(CLOCK_MONOTONIC, &now);
		for (int i = 0; i <= CHANGER; i++) {
			if (workers[i].done != seen[i]) {
				seen[i] = workers[i].done;
				moved[i] = now.tv_sec;
			} else if (now.tv_sec - moved[i] > STUCK_SECONDS) {
				T_FAIL("thread %d has been %s for %d seconds", i, workers[i].doing, STUCK_SECONDS);
				for (int k = 0; k <= CHANGER; k++)
					t_print("# thread %d: %s\n", k, workers[k].doing ? workers[k].doing : "ended");
				abort(); /* for a debugger */
			}
		}
	}
}

static void round_run(int round, double seconds, long low, long high)
{
	uint64_t rand = option.seed * 4711 + (uint64_t)round + 1;

	stop = false;
	place_open(THREADS);
	for (int i = 0; i <= CHANGER; i++) {
		struct worker *w = &workers[i];

		if (i < THREADS)
			place_open(i);
		w->rand = (option.seed * 1000 + (uint64_t)(round * (THREADS + 1) + i)) * UINT64_C(0x9e3779b97f4a7c15) | 1;
		w->place = &places[i];
		w->done = 0;
		EXPECT_EQ(pipe2(w->pipe, O_CLOEXEC), 0);
	}
	for (int i = 0; i <= CHANGER; i++)
		EXPECT_EQ(pthread_create(&workers[i].thread, NULL, i == CHANGER ? change_on : work, &workers[i]), 0);
	rest(seconds * 0.9, low, high, &rand);
	at_last = round == option.rounds;
	rest(seconds * 0.1, low, high, &rand);
	stop = true;
	for (int i = CHANGER; i >= 0; i--) /* who signals the others first */
		pthread_join(workers[i].thread, NULL);
	for (int i = 0; i < SLOTS; i++)
		slot_drop(&slots[i]);
	for (int i = 0; i <= CHANGER; i++) {
		place_close(&places[i]);
		close(workers[i].pipe[0]);
		close(workers[i].pipe[1]);
	}
}

TEST(every_byte_is_its_owners_and_nothing_is_left)
{
	const struct sigaction at_end = { .sa_handler = put_pool_back, .sa_flags = (int)(SA_RESETHAND | SA_NODEFER) };
	const struct pool pool = pool_now();
	struct hugepin_extent x;
	void *p = hide(malloc(MIB));

	alarm((unsigned)option.seconds + 2 * T_SECONDS);
	pool_pages = file_number(POOL_DIR "nr_hugepages");
	for (const int *s = (const int[]){ SIGALRM, SIGABRT, SIGHUP, SIGINT, SIGTERM, 0 }; option.high && *s; s++)
		sigaction(*s, &at_end, NULL);
	preloaded = hugepin_extent(p, &x, sizeof x) > 0;
	free(p);
	for (int i = 0; i < SLOTS; i++)
		pthread_mutex_init(&slots[i].lock, NULL);
	pthread_mutex_init(&COMMON->lock, NULL);
	changes_begin();
	for (int i = 0; i <= CHANGER; i++) {
		workers[i].file = memfd_create("soak", MFD_CLOEXEC);
		workers[i].buffer = foreign_map(IO_MAX + FLIGHT_BYTES);
		EXPECT(workers[i].file >= 0 && workers[i].buffer);
	}
	t_print("# seed %lu, %.0f s in %d rounds, %s, a pool of %ld pages%s\n", (unsigned long)option.seed, option.seconds,
		option.rounds, preloaded ? "under the drop-in" : "by the functions", pool_pages, option.high ? ", resized" : "");

	/* What is made once is made: threads for the service, for the kernel's events, and a sanitizer's; tables, descriptors. */
	const struct left one = left_now(), once = {
		.threads = one.threads + (SANITIZED ? 4 : 3), .descriptors = one.descriptors + 8, .heap_extents = 64,
		.mappings = LONG_MAX / 2, .resident_kib = LONG_MAX / 2,
	};

	round_run(0, 1, 0, 0);
	struct left before = left_check(&once);

	before.threads = once.threads; /* they come and go */
	for (int i = 1; i <= option.rounds && !t_failures; i++) {
		round_run(i, option.seconds / option.rounds, option.low, option.high);
		left_check(&before);
		t_print("# round %d: %lu pins, %lu refused, %lu transfers, %lu passed, %lu forks, %lu refused, %lu extents left, %lu hidden, "
			"%lu ENOMEM\n", i, count_pins, count_refused, count_io, count_passed, count_forks, count_forks_refused, count_left,
			count_hidden, count_nomem);
	}
	EXPECT(all_done() || t_failures);
	changes_end();
	if (option.high) {
		EXPECT(pool_resize(pool_pages));
		pool_check(pool);
	}
}

static _Noreturn void usage(void)
{
	fputs("usage: soak [-s SEED] [-t SECONDS] [-r ROUNDS] [-p LOW,HIGH]\n", stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	int letter;

	option.seed = (uint64_t)time(NULL) % 1000000;
	while ((letter = getopt(argc, argv, "s:t:r:p:")) != -1)
		if (letter == 's')
			option.seed = strtoull(optarg, NULL, 10);
		else if (letter == 't')
			option.seconds = strtod(optarg, NULL);
		else if (letter == 'r')
			option.rounds = atoi(optarg);
		else if (letter != 'p' || sscanf(optarg, "%ld,%ld", &option.low, &option.high) != 2)
			usage();
	if (optind != argc || option.rounds < 1 || !(option.seconds > 0) || option.low < 0 || option.high < option.low)
		usage();
	return t_run(1, argv);
}
