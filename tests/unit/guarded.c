/*
 * Guards behind buffers (alloc/guard.c) where there may be few mappings: as many guards as there may be borders, and what the
 * kernel has is what was counted.
 */
#include "alloc/guard.h"

#include <errno.h>
#include <sys/mman.h>

#include "alloc/heap.h"
#include "alloc/pages.h"
#include "base/config.h"
#include "tests/any.h"
#include "tests/live/live.h"
#include "tests/unit/empty.h"
#include "tests/unit/span_maps.h"

enum { BUFFERS = 30, SIZE = 40000 };

static unsigned char *buffers[BUFFERS];

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)(1 * GIB);
	hp_config.pages = HP_PAGES_BASE;
	hp_config.decay_ms = 0;
	hp_config.guard = 1;
	hp_config.abort_on_misuse = 0;
}

static size_t chunk_of(const void *p)
{
	return ((uintptr_t)p - hp_span.base) >> HP_CHUNK_SHIFT;
}

/* ------------------------------------------------------------------ a model of what is closed: first, in a heap that was never used */

enum { LIVE = 24, CHUNKS = GIB / HP_CHUNK };

static struct live {
	unsigned char *p;
	size_t chunks;
} live[LIVE];
static bool shut[CHUNKS], told[CHUNKS]; /* as the rules say; as the kernel says */
static size_t heads_max;

static void note_closed(uintptr_t from, uintptr_t to, int prot)
{
	for (uintptr_t a = HP_MAX(from, hp_span.base); a < HP_MIN(to, hp_span.base + GIB); a += HP_CHUNK)
		told[chunk_of((void *)a)] = !(prot & PROT_READ);
}

static bool agree(void)
{
	each_mapping_of_span(note_closed);
	for (size_t c = HP_PAGE_CHUNKS; c < hp_span.tree.used << HP_PAGE_CHUNKS_SHIFT; c++)
		if (hp_span.page[c >> HP_PAGE_CHUNKS_SHIFT].state == HP_PAGE_READY && !EXPECT_EQ(told[c], shut[c]))
			return T_FAIL("chunk %zu", c);
	return true;
}

static bool may_split(void)
{
	size_t borders = 0;

	for (size_t c = 1; c <= hp_span.tree.used << HP_PAGE_CHUNKS_SHIFT; c++)
		borders += shut[c] != shut[c - 1];
	return borders + 2 <= 2 * heads_max;
}

static void make(struct live *l)
{
	uint64_t missing = HP_STAT(guard_missing);
	size_t c;
	bool guarded;

	l->chunks = 8 + any(40);
	l->p = hugepin_malloc(l->chunks << HP_CHUNK_SHIFT);
	c = chunk_of(l->p);
	memset(&shut[c], 0, l->chunks);
	guarded = may_split();
	shut[c + l->chunks] = guarded;
	EXPECT_EQ(HP_STAT(guard_missing), missing + !guarded);
	memset(l->p, 1, l->chunks << HP_CHUNK_SHIFT);
}

static void drop_one(struct live *l)
{
	uint64_t missing = HP_STAT(guard_missing);
	size_t c = chunk_of(l->p), n = l->chunks + 1;
	bool stays = !shut[c - 1] && !shut[c + n] && !shut[c + n - 1] && !may_split();

	hugepin_free(l->p);
	l->p = NULL;
	if (!stays)
		memset(&shut[c], 1, n);
	EXPECT_EQ(HP_STAT(guard_missing), missing + stays);
}

static void at_random(size_t few)
{
	heads_max = 1000; /* or whatever it is, of the first one */
	make(live);
	drop_one(live);
	hp_span.heads_max = heads_max = few;
	for (int round = 0; round < 500 && !t_failures; round++) {
		struct live *l = &live[any(LIVE)];

		if (l->p)
			drop_one(l);
		else
			make(l);
		for (l = live; l < live + LIVE; l++)
			EXPECT(!l->p || (l->p[0] == 1 && l->p[(l->chunks << HP_CHUNK_SHIFT) - 1] == 1));
		if (round % 8 == 0)
			agree();
	}
	for (struct live *l = live; l < live + LIVE; l++)
		if (l->p)
			drop_one(l);
	agree();
}

TEST(what_is_closed_is_what_the_rules_say)
{
	static const size_t few[] = { 1000, 15, 6, 1 };
	int status;

	for (size_t i = 0; i < sizeof few / sizeof *few; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			t_failures = 0;
			at_random(few[i]);
			_exit(t_failures != 0);
		}
		status = child_wait(pid);
		if (!EXPECT_EQ(status, 0))
			T_FAIL("%zu mappings", few[i]);
	}
}

/* ------------------------------------------------------------------ few mappings */

static size_t parts_of_span(void)
{
	return smaps_kinds(0, hp_span.base, hp_span.base + hp_span.size).mappings;
}

static void fill(void)
{
	for (int i = 0; i < BUFFERS; i++) {
		buffers[i] = hugepin_malloc(SIZE);
		EXPECT(buffers[i] != NULL);
		memset(buffers[i], i, SIZE);
	}
}

static void drop(void)
{
	for (int i = 0; i < BUFFERS; i++) {
		EXPECT_EQ(buffers[i][SIZE - 1], i);
		hugepin_free(buffers[i]);
	}
}

TEST(there_are_as_many_guards_as_borders_that_may_be)
{
	uint64_t missing;
	size_t most;

	hugepin_free(hugepin_malloc(SIZE));
	hugepin_purge();
	for (size_t few = 5; few <= 20; few += 5) {
		hp_span.heads_max = few;
		for (int again = 0; again < 3; again++) {
			missing = HP_STAT(guard_missing);
			fill();
			most = parts_of_span();
			missing = HP_STAT(guard_missing) - missing;
			EXPECT(missing >= BUFFERS - few && missing <= BUFFERS - few + 1); /* one border may be left */
			EXPECT_EQ(HP_STAT(guard_bytes), BUFFERS * HP_CHUNK);
			EXPECT(most >= 2 * few && most <= 2 * few + 6); /* and where extents begin and end */
			drop();
			EXPECT(parts_of_span() <= 2 * few + 6);
			hugepin_purge();
			expect_empty();
		}
	}
}

TEST(with_borders_enough_each_buffer_has_its_guard)
{
	uint64_t missing = HP_STAT(guard_missing);

	hp_span.heads_max = 1000;
	fill();
	EXPECT_EQ(HP_STAT(guard_missing), missing);
	EXPECT(parts_of_span() >= 2 * BUFFERS);
	drop();
	EXPECT_EQ(HP_STAT(guard_missing), missing);
	EXPECT(HP_STAT(guard_kept_bytes) >= BUFFERS * SIZE);
	hugepin_purge();
	EXPECT_EQ(HP_STAT(guard_kept_bytes), 0);
	expect_empty();
}

/* ------------------------------------------------------------------ bytes behind the end */

/* A byte of these is changed, and put back. */
static void expect_noticed(unsigned char *p, size_t size, size_t spare)
{
	static const size_t places[] = { 0, 1, 2, 7, 63, 64, 1000, 4000 };
	size_t chunk = chunk_of(p);

	EXPECT(hp_guard_intact(chunk));
	for (size_t i = 0; i <= sizeof places / sizeof *places; i++) {
		size_t at = i < sizeof places / sizeof *places ? places[i] : spare - 1;
		unsigned char was;

		if (at >= spare)
			continue;
		was = p[size + at];
		p[size + at] ^= 1;
		EXPECT(!hp_guard_intact(chunk));
		p[size + at] = 0;
		if (spare > 1)
			EXPECT(!hp_guard_intact(chunk));
		p[size + at] = was;
		EXPECT(hp_guard_intact(chunk));
	}
	/* A page that was discarded reads as zero, all of it. */
	memset(p + size, 0, spare);
	EXPECT(hp_guard_intact(chunk));
	if (spare > 1) {
		p[size + spare - 1] = 0xfd;
		EXPECT(!hp_guard_intact(chunk));
	}
	memset(p + size, 0xfd, spare);
	p[size - 1] ^= 1; /* its own */
	EXPECT(hp_guard_intact(chunk));
}

TEST(a_buffer_has_the_bytes_that_were_asked_for_and_each_one_behind_is_looked_at)
{
	static const size_t behind[] = { 0, 1, 2, 3, 100, 2048, 4000, 4094, 4095 };

	hp_span.heads_max = 1000;
	for (size_t i = 0; i < sizeof behind / sizeof *behind; i++)
		for (size_t pages = 9; pages < 600; pages = 2 * pages + 1) {
			size_t size = pages * HP_CHUNK - behind[i];
			uint64_t calls = HP_STAT(guard_calls), bad = HP_STAT(bad_pointers);
			unsigned char *p = hugepin_malloc(size);

			EXPECT_EQ(hugepin_usable_size(p), size);
			EXPECT_EQ(hp_guard_bytes(chunk_of(p)), size);
			EXPECT_EQ(hp_guard_spare(chunk_of(p)), behind[i]);
			EXPECT_EQ(HP_STAT(guard_calls), calls + 2); /* the buffer open, the guard closed */
			EXPECT_EQ(HP_STAT(guard_bytes), HP_CHUNK);
			EXPECT_EQ(HP_STAT(room_bytes), HP_CHUNK);
			expect_noticed(p, size, behind[i]);
			if (behind[i])
				p[size] = 1;
			hugepin_free(p);
			EXPECT_EQ(HP_STAT(guard_calls), calls + 3);
			EXPECT_EQ(HP_STAT(bad_pointers), bad + (behind[i] != 0));
			EXPECT_EQ(HP_STAT(guard_bytes), 0);
			EXPECT_EQ(HP_STAT(room_bytes), 0);
			EXPECT_EQ(HP_STAT(guard_kept_bytes), (pages + 1) * HP_CHUNK);
			hugepin_free(p); /* once more */
			EXPECT_EQ(HP_STAT(bad_pointers), bad + 1 + (behind[i] != 0));
			hugepin_free(p + HP_CHUNK); /* nothing begins there */
			EXPECT_EQ(HP_STAT(bad_pointers), bad + 2 + (behind[i] != 0));
			hugepin_purge();
			EXPECT_EQ(HP_STAT(guard_kept_bytes), 0);
		}
	expect_empty();
}

/* ------------------------------------------------------------------ what was freed */

enum { MANY = 70, KEPT = 64 }; /* of 1 MiB each, with the guard */
#define OPEN (MIB - HP_CHUNK)

static void free_many(unsigned char **p)
{
	for (int i = 0; i < MANY; i++)
		p[i] = hugepin_malloc(OPEN);
	EXPECT_EQ(HP_STAT(guard_kept_bytes), 0);
	for (int i = 0; i < MANY; i++) {
		EXPECT(p[i] != NULL);
		hugepin_free(p[i]);
		EXPECT_EQ(HP_STAT(guard_kept_bytes), (size_t)HP_MIN(i + 1, (int)KEPT) * MIB);
		EXPECT_EQ(HP_CHUNK_STATE(hp_chunk_get(chunk_of(p[i]))), HP_CHUNK_LISTED);
		if (i >= KEPT)
			EXPECT_EQ(HP_CHUNK_STATE(hp_chunk_get(chunk_of(p[i - KEPT]))), HP_CHUNK_FREE);
	}
}

TEST(of_freed_buffers_64_mib_are_kept_and_the_first_comes_again_first)
{
	unsigned char *p[MANY], *again;
	bool found = false;
	pid_t pid;

	free_many(p);
	/* A new one lies where none of those lay that are kept. */
	again = hugepin_malloc(OPEN);
	for (int i = MANY - KEPT; i < MANY; i++)
		found |= again + MIB > p[i] && again < p[i] + MIB;
	EXPECT(!found);
	memset(again, 1, OPEN);
	pid = fork();
	if (pid == 0) {
		t_failures = 0;
		EXPECT_EQ(HP_STAT(guard_kept_bytes), 0);
		EXPECT_EQ(again[OPEN - 1], 1);
		free_many(p);
		hugepin_free(again);
		_exit(t_failures != 0);
	}
	EXPECT_EQ(child_wait(pid), 0);
	hugepin_free(again);
	EXPECT_EQ(HP_STAT(guard_kept_bytes), KEPT * MIB);
	again = hugepin_malloc((KEPT + 1) * MIB);
	hugepin_free(again); /* more than is kept in all */
	EXPECT_EQ(HP_STAT(guard_kept_bytes), 0);
	hugepin_purge();
	expect_empty();
}

/* write() tells without a signal. */
static bool can_read(const void *p)
{
	int ends[2];
	bool can;

	if (!EXPECT(!pipe2(ends, O_CLOEXEC)))
		return false;
	can = write(ends[1], p, 1) == 1;
	close(ends[0]);
	close(ends[1]);
	return can;
}

TEST(neither_what_is_kept_nor_a_guard_can_be_read)
{
	unsigned char *p[MANY], *q;

	free_many(p);
	for (int i = 0; i < MANY; i++)
		EXPECT(!can_read(p[i]) && !can_read(p[i] + OPEN - 1));
	hugepin_purge();
	for (size_t i = 0; i < 20; i++) {
		q = hugepin_malloc(MIB + i * HP_CHUNK);
		EXPECT(can_read(q) && can_read(q + MIB + i * HP_CHUNK - 1));
		EXPECT(!can_read(q + MIB + i * HP_CHUNK));
		hugepin_free(q);
		EXPECT(!can_read(q + i * HP_CHUNK));
	}
	hugepin_purge();
	expect_empty();
}

/* The kernel refuses to divide a mapping, whatever we have counted. */
TEST(where_the_kernel_has_no_mapping_left_a_buffer_has_no_guard_or_there_is_none)
{
	enum { MAPPINGS = 70000 };
	uint64_t missing = HP_STAT(guard_missing);
	unsigned char *p[LIVE];
	char *area;
	int had = 0;

	hp_span.heads_max = 1000;
	for (int i = 0; i < LIVE; i++)
		p[i] = hugepin_malloc(SIZE);
	for (int i = 0; i < LIVE; i += 2) {
		hugepin_free(p[i]);
		p[i] = NULL;
	}
	area = mmap(NULL, MAPPINGS * 2 * HP_CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	EXPECT(area != MAP_FAILED);
	for (size_t i = 0; i < MAPPINGS && mprotect(area + (2 * i + 1) * HP_CHUNK, HP_CHUNK, PROT_READ) == 0; i++)
		;
	for (int i = 0; i < LIVE; i += 2) {
		p[i] = hugepin_malloc(SIZE);
		if (p[i])
			memset(p[i], 1, SIZE);
		had += p[i] != NULL;
	}
	for (int i = 0; i < LIVE; i++) {
		EXPECT(!p[i] || hugepin_usable_size(p[i]) == SIZE);
		hugepin_free(p[i]);
	}
	munmap(area, MAPPINGS * 2 * HP_CHUNK);
	EXPECT(had < LIVE / 2 || HP_STAT(guard_missing) > missing || file_number("/proc/sys/vm/max_map_count") > MAPPINGS);
	hugepin_purge();
	expect_empty();
}

LIVE_MAIN
