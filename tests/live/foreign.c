/* link: hugepin uring */
/*
 * Foreign memory that other threads take away, without the drop-in and without hugepin_forget(). A thread that owns
 * memory and pins it must get a registration of the present memory. Two devices check this: io_uring, which writes to
 * the registered memory, and a device that notes the memory's contents when it registers.
 */
#include "stale.h"

enum { THREADS = 4, LEN = 64 << 10 };

static _Atomic bool stop;
static _Atomic long wrong, reads;

static void for_ms(long ms, pthread_t *t, int threads, void *(*run)(void *), void *arg)
{
	stop = false;
	for (int i = 0; i < threads; i++)
		EXPECT_EQ(pthread_create(&t[i], NULL, run, arg), 0);
	sleep_ms(ms);
	stop = true;
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
}

/* ------------------------------------------------------------------ io_uring */

struct taken {
	const char *name;
	char *(*take)(size_t size);
	void (*give)(char *p, size_t size);
	size_t size;
};

static char *take_mapping(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static void give_mapping(char *p, size_t size)
{
	munmap(p, size);
}

static char *take_malloc(size_t size)
{
	return hide(malloc(size));
}

static void give_malloc(char *p, size_t size)
{
	(void)size;
	free(hide(p));
}

static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;

/* All threads use one domain: in a domain of its own, a thread would only find registrations of memory that it has
 * unmapped itself. */
static void *read_and_look(void *taken)
{
	const struct taken *how = taken;
	struct hugepin_pin pin;
	unsigned char mark = 0, *text = (unsigned char *)take_mapping(LEN);
	int fd = memfd_create("file", MFD_CLOEXEC);

	while (!stop) {
		char *p = how->take(how->size), *at = p + 16;

		memset(text, ++mark, LEN);
		EXPECT_EQ(pwrite(fd, text, LEN, 0), LEN);
		memset(at, ~mark, LEN);
		if (!EXPECT_EQ(hugepin_pin(domain, at, LEN, 0, &pin), 0))
			break;
		pthread_mutex_lock(&ring_lock);
		io_uring_prep_read_fixed(io_uring_get_sqe(&ring), fd, at, LEN, 0, (int)pin.lkey);
		EXPECT_EQ(io_uring_submit_and_wait(&ring, 1), 1);
		EXPECT_EQ(ring_result(&ring), LEN);
		pthread_mutex_unlock(&ring_lock);
		wrong += memcmp(at, text, LEN) != 0;
		reads++;
		EXPECT_EQ(hugepin_unpin(domain, &pin), 0);
		how->give(p, how->size);
	}
	munmap(text, LEN);
	close(fd);
	return NULL;
}

static void read_in_threads(struct taken how)
{
	pthread_t t[THREADS];

	if (io_uring_queue_init(4, &ring, 0))
		SKIP("no io_uring");
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 64, NULL, &domain), 0);
	wrong = reads = 0;
	for_ms(1000, t, THREADS, read_and_look, &how);
	EXPECT_EQ(hugepin_domain_close(domain), 0);
	io_uring_queue_exit(&ring);
	EXPECT_EQ(wrong, 0);
	EXPECT(reads > 0);
	t_print("# %s: %ld of %ld reads landed elsewhere\n", how.name, wrong, reads);
}

TEST_CASE(what_threads_map_and_unmap_is_where_the_device_writes,
	  read_in_threads((struct taken){ "mmap", take_mapping, give_mapping, 1 << 20 }))
TEST_CASE(what_threads_allocate_and_free_is_where_the_device_writes,
	  read_in_threads((struct taken){ "malloc", take_malloc, give_malloc, (size_t)33 << 20 }))

/* ------------------------------------------------------------------ a device that notes what it found */

enum { SLOTS = 4096 };

static struct {
	uint64_t found[SLOTS];
	bool live[SLOTS];
	_Atomic long calls;
} notes;

static int note(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	uint32_t i = 1;

	(void)ctx, (void)len, (void)access;
	while (notes.live[i])
		i++;
	notes.live[i] = true;
	notes.found[i] = *(volatile uint64_t *)addr;
	notes.calls++;
	*ret_ = (struct hugepin_reg){ .lkey = i };
	return 0;
}

static int unnote(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx;
	notes.live[reg->lkey] = false;
	return 0;
}

static int no_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE };
	return 0;
}

static const struct hugepin_backend notebook = { .size = sizeof notebook, .name = "notes", .reg = note, .dereg = unnote,
						 .limits = no_limits };

static void open_notes(uint32_t watch)
{
	struct hugepin_attr attr = { .size = sizeof attr, .watch = watch };

	memset(&notes, 0, sizeof notes);
	EXPECT_EQ(hugepin_domain_open(&notebook, NULL, &attr, &domain), 0);
}

/* The contents of p when it was registered. */
static uint64_t found_at(char *p)
{
	struct hugepin_pin pin;
	uint64_t found = 0;

	if (EXPECT_EQ(hugepin_pin(domain, p, 4096, 0, &pin), 0)) {
		found = notes.found[pin.lkey];
		EXPECT_EQ(hugepin_unpin(domain, &pin), 0);
	}
	return found;
}

/* Whether memory at p, which this thread just got, is registered again. */
static bool is_fresh(char *p, uint64_t mark)
{
	*(volatile uint64_t *)p = mark;
	return found_at(p) == mark;
}

/* One thread changes the memory at `place`. Another thread takes the memory as soon as it sees the change. */
enum { PLACE = 1 << 20 };
static char *place;
static _Atomic int turn; /* 0: the changer's turn; 1: the taker's turn; 2: the end */

struct change {
	void (*change)(void);
	void (*take)(void); /* returns when the new memory is there */
};

static void until_zero(void)
{
	while (*(volatile uint64_t *)place)
		;
}

static void unmap(void)
{
	munmap(place, PLACE);
}

static void unmap_raw(void)
{
	syscall(SYS_munmap, place, PLACE);
}

static void map_there(void)
{
	while (mmap(place, PLACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != place)
		;
}

static void map_fixed(void)
{
	EXPECT(mmap(place, PLACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place);
}

static void move_off(void)
{
	char *to = mmap(NULL, PLACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EXPECT(mremap(place, PLACE, PLACE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	munmap(to, PLACE);
}

static void move_onto(void)
{
	char *from = take_mapping(PLACE);

	EXPECT(mremap(from, PLACE, PLACE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
}

static void dontneed(void)
{
	EXPECT_EQ(madvise(place, PLACE, MADV_DONTNEED), 0);
}

static void dontneed_locked(void)
{
	EXPECT(madvise(place, PLACE, MADV_DONTNEED_LOCKED) == 0 || madvise(place, PLACE, MADV_DONTNEED) == 0);
}

static void lower(void)
{
	EXPECT_EQ(brk(place), 0);
}

static void raise_again(void)
{
	unsigned char there;

	while (mincore(place, 4096, &there) == 0)
		;
	EXPECT_EQ(brk(place + PLACE), 0);
}

static void *take_in_turn(void *change)
{
	const struct change *c = change;

	for (uint64_t mark = 1; turn != 2; sched_yield()) {
		if (turn != 1)
			continue;
		c->take();
		wrong += !is_fresh(place, ++mark);
		turn = 0;
	}
	return NULL;
}

/* A round takes microseconds if both threads have a processor, and milliseconds if they share it with others. Then
 * fewer rounds suffice. */
static void race(struct change c, int rounds)
{
	uint64_t end_ms = clock_ms() + 5000;
	pthread_t t;

	wrong = 0;
	turn = 0;
	*place = 1;
	EXPECT_EQ(pthread_create(&t, NULL, take_in_turn, &c), 0);
	for (int i = 0; i < rounds && (i < 100 || clock_ms() < end_ms); i++) {
		found_at(place); /* usually the taker's mark */
		turn = 1;
		c.change();
		while (turn == 1)
			sched_yield();
	}
	turn = 2;
	pthread_join(t, NULL);
	if (!EXPECT_EQ(wrong, 0))
		t_print("# %ld of %d were stale\n", wrong, rounds);
}

#ifdef __SANITIZE_THREAD__
enum { RACES_ARE_REPORTED = true };
#else
enum { RACES_ARE_REPORTED = false };
#endif

#define RACE(fact, how, take, where)                                                                                   \
	TEST(fact)                                                                                                     \
	{                                                                                                              \
		if (RACES_ARE_REPORTED)                                                                                \
			SKIP("threads race for memory, which is the point");                                           \
		open_notes(0);                                                                                         \
		place = (where);                                                                                       \
		race((struct change){ how, take }, sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 3000 : 100);                            \
		EXPECT_EQ(hugepin_domain_close(domain), 0);                                                            \
		if (place != sbrk(0) - PLACE)                                                                          \
			munmap(place, PLACE);                                                                          \
	}

static char *at_the_break(void)
{
	sbrk((intptr_t)(4096 - ((uintptr_t)sbrk(0) & 4095)));
	return sbrk(PLACE);
}

RACE(addresses_unmapped_by_another_thread, unmap, map_there, map_far_away(PLACE))
RACE(addresses_unmapped_by_a_raw_call_of_another_thread, unmap_raw, map_there, map_far_away(PLACE))
RACE(memory_that_another_thread_has_mapped_over, map_fixed, until_zero, map_far_away(PLACE))
RACE(addresses_from_which_another_thread_has_moved_memory, move_off, map_there, map_far_away(PLACE))
RACE(memory_that_another_thread_has_moved_to_a_place, move_onto, until_zero, map_far_away(PLACE))
RACE(memory_that_another_thread_has_discarded, dontneed, until_zero, map_far_away(PLACE))
RACE(memory_that_another_thread_has_discarded_and_locked, dontneed_locked, until_zero, map_far_away(PLACE))
RACE(a_break_that_another_thread_has_lowered, lower, raise_again, at_the_break())

/* ------------------------------------------------------------------ several at once */

enum { PIECES = 8, ONE = 64 << 10 };

/* Each piece is a mapping of its own. Then every second one is replaced by other memory. */
static void *pin_several(void *by_map)
{
	struct iovec v[PIECES];
	struct hugepin_pin pins[PIECES];
	struct hugepin_sge sges[PIECES];
	uint64_t mark = 0;

	while (!stop) {
		int n;

		for (int i = 0; i < PIECES; i++) {
			v[i] = (struct iovec){ take_mapping(ONE), 4096 };
			*(uint64_t *)v[i].iov_base = (uintptr_t)&mark + ++mark;
		}
		n = by_map ? hugepin_sg_map(v, PIECES, 0, hugepin_sg_key, domain, sges, PIECES, pins, PIECES, NULL) :
			     hugepin_pinv(domain, v, PIECES, 0, pins, PIECES);
		if (n == PIECES) {
			for (int i = 0; i < PIECES; i++)
				wrong += notes.found[pins[i].lkey] != *(uint64_t *)v[i].iov_base;
			reads++;
		} else {
			EXPECT(by_map && n == -ENOKEY); /* a lookup registers nothing, so it may find no key */
		}
		if (n > 0)
			hugepin_unpinv(domain, pins, n);
		if (by_map)
			for (int i = 0; i < PIECES; i++)
				EXPECT_EQ(hugepin_pin(domain, v[i].iov_base, 4096, 0, &pins[i]) ||
						  hugepin_unpin(domain, &pins[i]), 0);
		for (int i = 0; i < PIECES; i++)
			munmap(v[i].iov_base, ONE);
	}
	return NULL;
}

TEST(of_several_pieces_each_is_what_is_there)
{
	pthread_t t[THREADS];

	open_notes(0);
	wrong = reads = 0;
	for_ms(400, t, THREADS, pin_several, NULL);
	EXPECT_EQ(wrong, 0);
	EXPECT(reads > 0);
	for_ms(400, t, THREADS, pin_several, &wrong);
	EXPECT_EQ(wrong, 0);
	EXPECT_EQ(hugepin_domain_close(domain), 0);
}

/* ------------------------------------------------------------------ waiting */

static void *unmap_all_the_time(void *unused)
{
	(void)unused;
	while (!stop) {
		char *p = take_mapping(8192);

		/* The memory is watched from this first pin on. */
		found_at(p);
		munmap(p, 8192);
	}
	return NULL;
}

static void *churn_what_is_watched(void *unused)
{
	char *p = take_mapping(1 << 20);

	(void)unused;
	found_at(p);
	while (!stop)
		madvise(p, 4096, MADV_DONTNEED);
	munmap(p, 1 << 20);
	return NULL;
}

static long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void *pin_beside_changes(void *unused)
{
	char *kept = take_mapping(1 << 20);
	long long longest = 0;

	(void)unused;
	while (!stop) {
		char *p = take_mapping(4096);
		long long t = now_ns();

		wrong += !is_fresh(p, (uintptr_t)&kept + (uint64_t)t);
		found_at(kept);
		t = now_ns() - t;
		longest = t > longest ? t : longest;
		reads++;
		munmap(p, 4096);
	}
	EXPECT(longest < 5000000000);
	t_print("# %ld pins, the longest %lld us\n", 2 * (long)reads, longest / 1000);
	return NULL;
}

TEST(pins_return_while_other_threads_change_memory_all_the_time)
{
	pthread_t t[2 * THREADS + 1];
	struct hugepin_domain_stats s;

	open_notes(0);
	wrong = reads = 0;
	stop = false;
	for (int i = 0; i < 2 * THREADS; i++)
		pthread_create(&t[i], NULL, i % 2 ? unmap_all_the_time : churn_what_is_watched, NULL);
	pthread_create(&t[2 * THREADS], NULL, pin_beside_changes, NULL);
	sleep_ms(1000);
	stop = true;
	for (int i = 0; i <= 2 * THREADS; i++)
		pthread_join(t[i], NULL);
	EXPECT_EQ(wrong, 0);
	EXPECT(reads >= 5);
	hugepin_domain_stats(domain, &s, sizeof s);
	t_print("# %lu uncached of %lu\n", s.uncached, s.registered);
	EXPECT_EQ(hugepin_domain_close(domain), 0);
}

T_MAIN
