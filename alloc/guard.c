#include "alloc/guard.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/stats.h"

#define KEPT_MAX ((size_t)64 << (20 - HP_CHUNK_SHIFT)) /* chunks of freed buffers, unless it is one */
#define KEPT_COUNT 16384 /* a power of two */
#define PATTERN 0xfd

/* Freed buffers in the order of their coming. */
static struct {
	uint32_t chunk[KEPT_COUNT];
	size_t from, to; /* counted without end */
	size_t chunks;
} kept;
static size_t guards; /* live buffers: each is two mappings */

/* One raw system call, which no one's hooks see: the lock may stay. */
static bool protect(size_t chunk, size_t n, int access)
{
	HP_STAT_ADD(guard_calls, 1);
	return hp_syscall(SYS_mprotect, (long)hp_chunk_addr(chunk), (long)(n << HP_CHUNK_SHIFT), access, 0, 0, 0) == 0;
}

bool hp_guard_make(size_t chunk, size_t n, size_t bytes)
{
	const size_t behind = (n << HP_CHUNK_SHIFT) - bytes;

	if (!protect(chunk, n, PROT_READ | PROT_WRITE))
		return false;
	if (guards >= hp_span.heads_max || !protect(chunk + n, 1, PROT_NONE))
		HP_STAT_ADD(guard_missing, 1);
	guards++;
	HP_STAT_ADD(guard_bytes, HP_CHUNK);
	HP_STAT_ADD(room_bytes, HP_CHUNK);
	hp_chunk_set(chunk + 1, HP_CHUNK_WORD(1, HP_CHUNK_FREE));
	hp_chunk_set(chunk, (uint64_t)behind << 32 | HP_CHUNK_WORD(n, HP_CHUNK_ROOMY));
	memset((char *)hp_chunk_addr(chunk) + bytes, PATTERN, behind);
	return true;
}

bool hp_guard_intact(size_t chunk)
{
	const unsigned char *at = (const unsigned char *)hp_chunk_addr(chunk) + hp_guard_bytes(chunk);

	for (size_t i = 0; i < hp_guard_spare(chunk); i++)
		if (at[i] != PATTERN)
			return false;
	return true;
}

void hp_guard_free(size_t chunk)
{
	const size_t n = hp_chunk_extent(chunk);

	if (!protect(chunk, n, PROT_NONE))
		HP_STAT_ADD(guard_missing, 1);
	guards--;
	HP_STAT_ADD(guard_bytes, -HP_CHUNK);
	HP_STAT_ADD(room_bytes, -HP_CHUNK);
	HP_STAT_ADD(guard_kept_bytes, n << HP_CHUNK_SHIFT);
	hp_chunk_set(chunk + 1, 0);
	hp_chunk_set(chunk, HP_CHUNK_WORD(n, HP_CHUNK_LISTED)); /* free() will say so, if it comes again */
	kept.chunk[kept.to++ & (KEPT_COUNT - 1)] = (uint32_t)chunk;
	kept.chunks += n;
}

size_t hp_guard_release(bool all, size_t *ret_n)
{
	if (kept.from == kept.to || (!all && kept.chunks <= KEPT_MAX && kept.to - kept.from < KEPT_COUNT))
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
