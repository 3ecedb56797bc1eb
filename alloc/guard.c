#include "alloc/guard.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/bits.h"
#include "base/stats.h"
#include "base/sys.h"

#define KEPT_MAX ((size_t)64 << (20 - HP_CHUNK_SHIFT)) /* chunks of freed buffers */
#define KEPT_COUNT 16384 /* a power of two */
_Static_assert(KEPT_MAX / 2 + 2 <= KEPT_COUNT, "buffers have two chunks at least, and may be one too many");
#define PATTERN 0xfd

/* Freed buffers, oldest first. */
static struct {
	uint32_t chunk[KEPT_COUNT];
	size_t from, to; /* indices of the oldest and the next entry; they only go up, and count modulo KEPT_COUNT */
	size_t chunks;
} kept;
/* closed: a bit for each chunk that was made inaccessible here. borders: the number of neighbouring chunks that differ
 * in it. Each border costs one more mapping. */
static uint64_t *closed;
static size_t borders;

static size_t borders_of(size_t chunk, size_t n)
{
	size_t count = 0;

	for (size_t c = chunk; c <= chunk + n; c++)
		count += hp_bit(closed, c) != hp_bit(closed, c - 1);
	return count;
}

/* Of whole base pages. This is one raw system call, which no hook sees, so the lock may stay held. */
static bool protect_chunks(size_t chunk, size_t n, bool close)
{
	HP_STAT_ADD(guard_calls, 1);
	if (hp_sys(SYS_mprotect, hp_chunk_addr(chunk), (n << HP_CHUNK_SHIFT),
		   close ? PROT_NONE : PROT_READ | PROT_WRITE) != 0)
		return false;
	borders -= borders_of(chunk, n);
	hp_bits_fill(closed, chunk, n, close);
	borders += borders_of(chunk, n);
	return true;
}

/* Whether two more borders are allowed. Half of the process's mappings are left to others. */
static bool may_split(void)
{
	return borders + 2 <= 2 * hp_span.heads_max;
}

bool hp_guard_make(size_t chunk, size_t n, size_t bytes)
{
	const size_t behind = (n << HP_CHUNK_SHIFT) - bytes;

	if (!closed)
		closed = hp_meta_map((hp_span.size >> HP_CHUNK_SHIFT) / 8 + 8);
	if (!closed || !protect_chunks(chunk, n, false))
		return false;
	if (!may_split() || !protect_chunks(chunk + n, hp_base_chunks(), true)) {
		HP_STAT_ADD(guard_missing, 1);
		if (hp_bit(closed, chunk + n)) /* open the page: then no border lies before it */
			protect_chunks(chunk + n, hp_base_chunks(), false);
	}
	HP_STAT_ADD(guard_bytes, hp_base_page);
	HP_STAT_ADD(room_bytes, hp_base_page);
	hp_chunk_set(chunk + 1, HP_CHUNK_WORD(hp_base_chunks(), HP_CHUNK_FREE));
	hp_chunk_set(chunk, (uint64_t)behind << 32 | HP_CHUNK_WORD(n, HP_CHUNK_ROOMY));
	memset((char *)hp_chunk_addr(chunk) + bytes, PATTERN, behind);
	return true;
}

/* Zeros are accepted, too: MADV_DONTNEED, or the way into a child, may have discarded the page. */
bool hp_guard_intact(size_t chunk)
{
	const unsigned char *at = (const unsigned char *)hp_chunk_addr(chunk) + hp_guard_bytes(chunk);
	const size_t spare = hp_guard_spare(chunk);
	const unsigned char expected = spare && !at[0] ? 0 : PATTERN;

	for (size_t i = 0; i < spare; i++)
		if (at[i] != expected)
			return false;
	return true;
}

void hp_guard_free(size_t chunk)
{
	const size_t n = hp_chunk_extent(chunk);

	const bool splits = !hp_bit(closed, chunk - 1) && !hp_bit(closed, chunk + n) && !hp_bit(closed, chunk + n - 1);

	if ((splits && !may_split()) || !protect_chunks(chunk, n, true))
		HP_STAT_ADD(guard_missing, 1);
	HP_STAT_ADD(guard_bytes, -hp_base_page);
	HP_STAT_ADD(room_bytes, -hp_base_page);
	HP_STAT_ADD(guard_kept_bytes, n << HP_CHUNK_SHIFT);
	hp_chunk_set(chunk + 1, 0);
	/* a second free() of the buffer sees LISTED and reports it */
	hp_chunk_set(chunk, HP_CHUNK_WORD(n, HP_CHUNK_LISTED));
	kept.chunk[kept.to++ & (KEPT_COUNT - 1)] = (uint32_t)chunk;
	kept.chunks += n;
}

size_t hp_guard_release(bool all, size_t *ret_n)
{
	if (kept.from == kept.to || (!all && kept.chunks <= KEPT_MAX))
		return 0;

	const size_t chunk = kept.chunk[kept.from++ & (KEPT_COUNT - 1)], n = HP_CHUNK_COUNT(hp_chunk_get(chunk));

	kept.chunks -= n;
	HP_STAT_ADD(guard_kept_bytes, -(n << HP_CHUNK_SHIFT));
	hp_chunk_set(chunk, 0);
	*ret_n = n;
	return chunk;
}

void hp_guard_child(void)
{
	kept.from = kept.to = kept.chunks = 0;
	HP_STAT(guard_kept_bytes) = 0;
}
