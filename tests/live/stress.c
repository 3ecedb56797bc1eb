/* link: none */
/*
 * Threads allocate, resize, hand over and free buffers of 1 byte to 8 MiB. Every byte of a buffer has its owner's
 * pattern, and is checked before the buffer is freed, resized or inherited. So a byte with two owners is noticed.
 *
 * STRESS_SECONDS and STRESS_THREADS (environment) make the runs longer and wider. stress-api.c is the same program on
 * the explicit functions.
 */
#include "live.h"

#ifndef STRESS_API
#define x_malloc malloc
#define x_calloc calloc
#define x_realloc realloc
#define x_free free
#define x_aligned_alloc aligned_alloc
#endif

/* Under this sanitizer resident memory is not checked: its shadow memory depends on the schedule of the threads. */
#ifdef __SANITIZE_THREAD__
enum { SHADOW = true };
#else
enum { SHADOW = false };
#endif

enum { SLOTS = 256, OWN = 24, SIZE_MAX_LOG2 = 23, THREADS_MAX = 64 };

struct buffer {
	void *p;
	size_t size;
	uint64_t seed;
};

/* Shared slots: a thread that holds a slot's lock may free or resize a buffer that another thread has allocated. */
static struct slot {
	pthread_mutex_t lock;
	struct buffer b;
} slots[SLOTS];

static _Atomic bool stop;
static _Atomic uint64_t seeds = 1;
static _Atomic long operations;

static long option(const char *name, long otherwise)
{
	const char *s = getenv(name);
	return s ? strtol(s, NULL, 10) : otherwise;
}

/* Check that b's memory is as its owner left it. False, after a message, if not. */
static bool buffer_check(const struct buffer *b, size_t size)
{
	ptrdiff_t at = b->p ? pattern_check(b->p, size / 8 * 8, b->seed) : -1;
	return at == -1 || T_FAIL("%p, %zu bytes: byte %td is not its owner's", b->p, b->size, at);
}

static void buffer_write(struct buffer *b)
{
	b->seed = atomic_fetch_add(&seeds, 1) << 24;
	pattern_write(b->p, b->size, b->seed);
}

static void buffer_drop(struct buffer *b)
{
	if (b->p) {
		ptrdiff_t at = pattern_check(b->p, b->size, b->seed);
		if (at != -1)
			T_FAIL("%p, %zu bytes: byte %td is not its owner's at free", b->p, b->size, at);
	}
	x_free(b->p);
	b->p = NULL;
}

/* Allocate and fill a buffer. It stays empty if malloc fails, which is allowed if limits are low. */
static void buffer_fill(struct buffer *b, uint64_t *state)
{
	uint64_t r = rand_next(state);
	b->size = rand_size(state, 1, (size_t)1 << SIZE_MAX_LOG2);
	if (r % 8 == 0) {
		b->p = x_calloc(1, b->size);
		if (b->p && zero_check(b->p, b->size) != -1)
			T_FAIL("calloc of %zu is not zero at %td", b->size, zero_check(b->p, b->size));
	} else if (r % 8 == 1) {
		size_t align = (size_t)16 << (r >> 8) % 18;
		b->p = x_aligned_alloc(align, b->size);
		if ((uintptr_t)b->p % align)
			T_FAIL("%p is not aligned to %zu", b->p, align);
	} else {
		b->p = x_malloc(b->size);
	}
	if (b->p)
		buffer_write(b);
}

static void buffer_resize(struct buffer *b, uint64_t *state)
{
	size_t size = rand_next(state) % 4 ? b->size + b->size / 2 + 1
					   : rand_size(state, 1, (size_t)1 << SIZE_MAX_LOG2);
	if (size >> SIZE_MAX_LOG2)
		size = 100;
	void *p = b->p ? x_realloc(b->p, size) : NULL;
	if (!p)
		return;
	b->p = p;
	buffer_check(b, size < b->size ? size : b->size);
	b->size = size;
	buffer_write(b);
}

static void buffer_step(struct buffer *b, uint64_t *state)
{
	if (b->p && rand_next(state) % 4 == 0) {
		buffer_check(b, b->size);
		buffer_resize(b, state);
	} else {
		buffer_drop(b);
		buffer_fill(b, state);
	}
}

/* A thread that works on its own buffers and on shared ones. It ends after a while, and another takes its place. */
static void *work(void *arg)
{
	uint64_t state = (uint64_t)(uintptr_t)arg * 77 + 1;
	struct buffer own[OWN] = { { NULL, 0, 0 } };
	for (int i = 0; i < 400 && !stop; i++) {
		buffer_step(&own[rand_next(&state) % OWN], &state);
		struct slot *s = &slots[rand_next(&state) % SLOTS];
		if (!pthread_mutex_trylock(&s->lock)) {
			buffer_step(&s->b, &state);
			pthread_mutex_unlock(&s->lock);
		}
		operations += 2;
	}
	for (int i = 0; i < OWN; i++)
		buffer_drop(&own[i]);
	return NULL;
}

/* Keeps one such thread running until the end: starts the next when one has ended. */
static void *employ(void *arg)
{
	uintptr_t n = (uintptr_t)arg;
	while (!stop) {
		pthread_t t;
		if (pthread_create(&t, NULL, work, (void *)n)) {
			T_FAIL("no thread");
			break;
		}
		pthread_join(t, NULL);
		n += THREADS_MAX;
	}
	return NULL;
}

static long threads_start(pthread_t *t)
{
	long n = option("STRESS_THREADS", 4);
	stop = false;
	operations = 0;
	if (n < 1 || n > THREADS_MAX)
		n = 4;
	for (long i = 0; i < n; i++)
		if (pthread_create(&t[i], NULL, employ, (void *)(i + 1)))
			T_FAIL("no thread");
	return n;
}

static void threads_stop(pthread_t *t, long n)
{
	while (!operations)
		sleep_ms(1);
	stop = true;
	for (long i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < SLOTS; i++)
		buffer_drop(&slots[i].b);
}

TEST(threads_never_see_each_others_bytes)
{
	pthread_t t[THREADS_MAX];
	alarm((unsigned)option("STRESS_SECONDS", 3) + t_seconds());
	long n = threads_start(t);
	sleep_ms(option("STRESS_SECONDS", 3) * 1000);
	threads_stop(t, n);
}

#ifndef __SANITIZE_THREAD__ /* the thread sanitizer does not continue after a fork with many threads */

/* Run in a child of a process with many threads. All buffers must be there and belong to the child alone, and the heap
 * must work. */
static int inherit(uint64_t state, int generations)
{
	t_failures = 0;
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < SLOTS; i++)
			if (slots[i].b.p && buffer_check(&slots[i].b, slots[i].b.size))
				buffer_write(&slots[i].b);
	for (int i = 0; i < 200; i++)
		buffer_step(&slots[rand_next(&state) % SLOTS].b, &state);
	if (generations > 1) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(inherit(state + 1, generations - 1));
		if (pid < 0 ? errno != ENOMEM : child_wait(pid) != 0)
			T_FAIL("a grandchild failed");
	}
	for (int i = 0; i < SLOTS; i++)
		buffer_drop(&slots[i].b);
	return t_failures != 0;
}

TEST(children_of_busy_threads_inherit_every_byte)
{
	pthread_t t[THREADS_MAX];
	long seconds = option("STRESS_SECONDS", 3), forks = 0;
	time_t end = time(NULL) + seconds;
	alarm((unsigned)seconds + t_seconds());
	long n = threads_start(t);
	for (uint64_t i = 1; (time(NULL) < end || !forks) && !t_failures; i++) {
		sleep_ms(20);
		/* hold the locks of the shared buffers over the fork, so that the child finds these unchanged */
		for (int k = 0; k < SLOTS; k++)
			pthread_mutex_lock(&slots[k].lock);
		pid_t pid = fork();
		if (pid == 0)
			_exit(inherit(i, 2));
		for (int k = 0; k < SLOTS; k++)
			pthread_mutex_unlock(&slots[k].lock);
		if (pid < 0) {
			EXPECT_EQ(errno, ENOMEM);
			continue;
		}
		forks++;
		EXPECT_EQ(child_wait(pid), 0);
	}
	threads_stop(t, n);
}

#endif

/* ------------------------------------------------------------------ one allocates, another frees */

enum { RING = 512 };
static struct buffer ring[RING];
static _Atomic size_t ring_in, ring_out;

static void *produce(void *arg)
{
	uint64_t state = 99;
	for (long i = 0; i < *(long *)arg; i++) {
		struct buffer b = { NULL, 0, 0 };
		b.size = rand_size(&state, 16 * KIB, 512 * KIB);
		b.p = x_malloc(b.size);
		if (b.p)
			buffer_write(&b);
		while (ring_in - ring_out >= RING)
			sched_yield();
		ring[ring_in % RING] = b;
		ring_in++;
	}
	return NULL;
}

TEST(what_one_thread_allocates_another_may_free_without_end)
{
	long count = 20000;
	pthread_t t;
	size_t before = resident();
	ring_in = ring_out = 0;
	if (!EXPECT(!pthread_create(&t, NULL, produce, &count)))
		return;
	for (long i = 0; i < count; i++) {
		while (ring_in == ring_out)
			sched_yield();
		struct buffer b = ring[ring_out % RING];
		ring_out++;
		buffer_drop(&b);
	}
	pthread_join(t, NULL);
	/* 3 GiB were allocated in all, but at most 512 buffers were live at a time */
	EXPECT(SHADOW || resident() < before + GIB);
}

/* ------------------------------------------------------------------ threads that come and go */

static void *leave_one(void *arg)
{
	struct buffer *b = arg;
	uint64_t state = (uint64_t)(b - ring) + 5;
	for (int i = 0; i < 4; i++) {
		buffer_fill(b, &state);
		if (i < 3)
			buffer_drop(b);
	}
	return NULL;
}

TEST(what_a_thread_leaves_behind_outlives_it)
{
	size_t before = resident(), live = 0;
	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < 100; i += 4) {
			pthread_t t[4];
			for (int j = 0; j < 4; j++)
				if (!EXPECT(!pthread_create(&t[j], NULL, leave_one, &ring[i + j])))
					return;
			for (int j = 0; j < 4; j++)
				pthread_join(t[j], NULL);
		}
		live = 0;
		for (int i = 0; i < 100; i++)
			live += ring[i].size;
		for (int i = 0; i < 100; i++)
			buffer_drop(&ring[i]);
	}
	/* ended threads keep no freed buffers: 400 threads cost no more than a few */
	EXPECT(SHADOW || resident() < before + 2 * live + 128 * MIB);
}

int main(int argc, char **argv)
{
	for (int i = 0; i < SLOTS; i++)
		pthread_mutex_init(&slots[i].lock, NULL);
	return t_run(argc, argv);
}
