/*
 * Stacks of buffers without a lock: against a naive model, and with several threads, which stop at random where a word
 * has been read or written and the head not yet been changed.
 */
#include <pthread.h>
#include <sched.h>

static void stop_at_random(void);
#define HP_STACK_STOP() stop_at_random()

#include "alloc/stack.h"
#include "hugepin.h"
#include "tests/rnd.h"
#include "tests/t.h"

enum { BUFFERS = 64, STACKS = 3, THREADS = 3, ROUNDS = 60000 };

static hp_stack stacks[STACKS];
static size_t chunks[BUFFERS]; /* of buffers of 8 to 39 chunks */
static uint64_t words[BUFFERS];
static bool stops;
static _Thread_local uint64_t state;

static uint64_t draw(void)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return state >> 33;
}

/* Others run meanwhile, and change the stack several times, mostly back to the chunk that was on top. */
static void stop_at_random(void)
{
	for (uint64_t i = stops && draw() % 8 == 0 ? draw() % 16 : 0; i; i--)
		sched_yield();
}

static size_t number_of(size_t chunk)
{
	size_t i = 0;

	while (i < BUFFERS && chunks[i] != chunk)
		i++;
	return i;
}

static void make_buffers(void)
{
	for (size_t i = 0; i < BUFFERS; i++) {
		const void *p = hugepin_aligned_alloc(i % 4 ? HP_CHUNK : 16 * HP_CHUNK, (8 + i % 32) * HP_CHUNK);

		chunks[i] = ((uintptr_t)p - hp_span.base) >> HP_CHUNK_SHIFT;
		words[i] = hp_chunk_get(chunks[i]);
	}
}

static void free_buffers(void)
{
	for (size_t i = 0; i < BUFFERS; i++) {
		hp_chunk_set(chunks[i], words[i]);
		hugepin_free((void *)hp_chunk_addr(chunks[i]));
	}
}

static void push(hp_stack *s, size_t i)
{
	hp_stack_push(s, chunks[i], hp_chunk_at(&hp_span, chunks[i]), HP_CHUNK_COUNT(words[i]));
}

TEST(a_stack_gives_its_top_if_that_fits_and_all_at_once)
{
	size_t model[BUFFERS], depth = 0, free_ones[BUFFERS], frees = BUFFERS, taken = 0, refused = 0;

	make_buffers();
	for (size_t i = 0; i < BUFFERS; i++)
		free_ones[i] = i;
	for (int round = 0; round < 100000; round++) {
		const size_t n = 1 + rnd(40), align = (size_t)HP_CHUNK << rnd(5);

		if (rnd(2) && frees) {
			model[depth] = free_ones[--frees];
			push(&stacks[0], model[depth++]);
		} else if (rnd(100)) {
			const size_t top = depth ? model[depth - 1] : 0, had = depth ? HP_CHUNK_COUNT(words[top]) : 0;
			const bool fits = depth && had >= n && had <= n + n / 16 && !(hp_chunk_addr(chunks[top]) & (align - 1));
			const size_t chunk = hp_stack_pop(&stacks[0], n, align);

			EXPECT_EQ(chunk, fits ? chunks[top] : 0);
			refused += !fits;
			if (!chunk)
				continue;
			EXPECT_EQ(HP_CHUNK_COUNT(hp_chunk_get(chunk)), had);
			free_ones[frees++] = model[--depth];
			taken++;
		} else {
			for (size_t chunk = hp_stack_take(&stacks[0]); depth; chunk = HP_CHUNK_LINK(hp_chunk_get(chunk))) {
				EXPECT_EQ(chunk, chunks[model[--depth]]);
				EXPECT_EQ(hp_chunk_get(chunk) & 3, HP_CHUNK_LISTED);
				free_ones[frees++] = model[depth];
			}
			EXPECT_EQ(hp_stack_pop(&stacks[0], 1, HP_CHUNK), 0);
		}
	}
	EXPECT(taken > 1000 && refused > 1000);
	hp_stack_take(&stacks[0]);
	free_buffers();
}

static _Atomic int owners[BUFFERS]; /* threads that have the buffer */
static size_t written[BUFFERS]; /* by the last owner, who alone may */
static _Atomic unsigned long pops;

static void own(size_t i)
{
	EXPECT_EQ(atomic_fetch_add(&owners[i], 1), 0);
	written[i]++;
}

static void let_go(size_t i, hp_stack *s)
{
	EXPECT_EQ(atomic_fetch_sub(&owners[i], 1), 1);
	push(s, i);
}

static void *take_and_give(void *seed)
{
	state = (uintptr_t)seed;
	for (int round = 0; round < ROUNDS; round++) {
		hp_stack *from = &stacks[draw() % STACKS], *to = &stacks[draw() % STACKS];
		size_t chunk, next, i;

		if (draw() % 64 == 0) {
			for (chunk = hp_stack_take(from); chunk; chunk = next) {
				next = HP_CHUNK_LINK(hp_chunk_get(chunk));
				own(i = number_of(chunk));
				let_go(i, to);
			}
			continue;
		}
		chunk = hp_stack_pop(from, 8 + draw() % 32, HP_CHUNK);
		if (!chunk)
			continue;
		own(i = number_of(chunk));
		atomic_fetch_add_explicit(&pops, 1, memory_order_relaxed);
		let_go(i, to);
	}
	return NULL;
}

TEST(no_buffer_is_lost_or_had_twice_whoever_stops_between_load_and_change)
{
	pthread_t threads[THREADS];
	size_t found = 0;

	make_buffers();
	for (size_t i = 0; i < BUFFERS; i++)
		push(&stacks[i % STACKS], i);
	stops = true;
	for (size_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, take_and_give, (void *)(7 + i));
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	stops = false;
	for (size_t i = 0; i < STACKS; i++)
		for (size_t chunk = hp_stack_take(&stacks[i]); chunk; chunk = HP_CHUNK_LINK(hp_chunk_get(chunk)))
			found += owners[number_of(chunk)]++ == 0;
	EXPECT_EQ(found, BUFFERS);
	EXPECT(pops > 1000);
	free_buffers();
}

/* What would happen otherwise: the head is the same again, but the link is of before. */
TEST(a_head_that_is_back_at_its_chunk_is_not_taken_for_unchanged)
{
	uint64_t before;

	make_buffers();
	push(&stacks[0], 1);
	push(&stacks[0], 2);
	before = stacks[0];
	EXPECT_EQ(hp_stack_pop(&stacks[0], HP_CHUNK_COUNT(words[2]), HP_CHUNK), chunks[2]);
	EXPECT_EQ(hp_stack_take(&stacks[0]), chunks[1]);
	push(&stacks[0], 2);
	EXPECT_EQ((uint32_t)stacks[0], (uint32_t)before);
	EXPECT(stacks[0] != before);
	hp_stack_take(&stacks[0]);
	free_buffers();
}

T_MAIN
