/*
 * The heap's side of the small tier: which allocator it is, and its memory with HUGEPIN_SMALL_PINNED=1, which comes
 * from a separate part of the span.
 */
#include "alloc/small.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/decay.h"
#include "alloc/fast.h"
#include "alloc/madvise.h"
#include "alloc/place.h"
#include "alloc/start.h"
#include "alloc/below.h"
#include "base/config.h"
#include "base/smalls.h"
#include "base/stats.h"

/* ------------------------------------------------------------------ the process's own malloc */

static void *aligned_alloc_of_process(size_t align, size_t size)
{
	void *p;
	int err = posix_memalign(&p, HP_MAX(align, sizeof(void *)), size);

	if (err == 0)
		return p;
	errno = err;
	return NULL;
}

static size_t usable_size_of_process(const void *p)
{
	return malloc_usable_size((void *)p);
}

const struct hp_small hp_process_malloc = {
	.malloc = malloc,
	.calloc = calloc,
	.realloc = realloc,
	.aligned_alloc = aligned_alloc_of_process,
	.free = free,
	.usable_size = usable_size_of_process,
};

int hugepin_small_which_(void)
{
	hp_config_load();
	return (int)hp_config.small;
}

bool hugepin_keeps_deepbind_(void)
{
	hp_config_load();
	if (hp_config.deepbind == HP_DEEPBIND_KEEP)
		return true;
	HP_STAT_COUNT(deepbinds_ignored, 1);
	return false;
}

void hugepin_small_missing_(void)
{
	const struct hp_small_library *l = &hp_small_libraries[hp_config.small];
	char buf[240];
	struct hp_line line = { buf, buf + sizeof buf };

	if (!l->name)
		return;
	hp_line_text(&line, "HUGEPIN_SMALL=");
	hp_line_text(&line, l->name);
	hp_line_text(&line, " cannot be had: the loader finds no ");
	for (int i = 0; l->files[i]; i++) {
		hp_line_text(&line, i ? " or " : "");
		hp_line_text(&line, l->files[i]);
	}
	hp_line_text(&line, ", of Debian's package ");
	hp_line_text(&line, l->package);
	hp_line_text(&line, "; using jemalloc");
	hp_say(buf, NULL, SIZE_MAX);
}

size_t hugepin_small_span_(void)
{
	hp_config_load();
	return (size_t)hp_config.span;
}

int hugepin_small_part_(uintptr_t *ret_base, size_t *ret_size)
{
	int err = -ENOENT;

	if (hp_config_load() != 0)
		return -EAGAIN;
	if (!hp_config.small_pinned)
		return err;
	if (!hp_heap_start())
		return hp_heap_starts_here() ? -EAGAIN : err;
	hp_heap_lock();
	if (hp_span.small < hp_span.small_end) {
		*ret_base = hp_page_addr(hp_span.small);
		*ret_size = (hp_span.small_end - hp_span.small) << HP_PAGE_SHIFT;
		err = 0;
	}
	hp_heap_unlock();
	return err;
}

/* The caller may hold jemalloc's locks, so nothing here allocates or waits, except for the heap's lock and for other
 * threads that commit the same pages. hp_pages_commit() releases the heap's lock while it works, but a fork that takes
 * the lock then already has jemalloc's. */
void *hugepin_small_map_(void *at, size_t len)
{
	struct hp_placement r = {
		.n = hp_chunks_for(len),
		.align = len < HP_PAGE ? HP_CHUNK : HP_PAGE,
		.part = HP_PART_SMALL,
	};
	size_t chunk, dirty = 0;

	if (hp_heap_mine()) /* a signal handler allocates while this thread holds the lock */
		return NULL;
	hp_heap_lock();
	chunk = hp_place_small(&r, at);
	if (chunk) {
		hp_chunks_set_taken(chunk, r.n);
		hp_span.small_taken += r.n;
		if (hp_pages_commit(hp_page_of(chunk), hp_pages_touched(chunk, r.n))) {
			dirty = hp_chunks_hand_out(chunk, r.n) << HP_CHUNK_SHIFT;
		} else {
			hp_chunks_set_free(chunk, r.n);
			hp_span.small_taken -= r.n;
			hp_extent_destroy_if_empty(hp_span.page[hp_page_of(chunk)].extent);
			chunk = 0;
		}
	}
	hp_heap_unlock();
	if (r.grew && hp_heap_hooks()->grown)
		hp_heap_hooks()->grown();
	return chunk ? memset((void *)hp_chunk_addr(chunk), 0, HP_MIN(dirty, len)) : NULL;
}

void hugepin_small_unmap_(void *p, size_t len)
{
	hp_heap_lock();
	if (!hp_madvise_undo(((uintptr_t)p - hp_span.base) >> HP_CHUNK_SHIFT, hp_chunks_for(len))) {
		hp_heap_unlock(); /* the kernel kept the advice, so this memory is never handed out again */
		return;
	}
	hp_chunks_set_free(((uintptr_t)p - hp_span.base) >> HP_CHUNK_SHIFT, hp_chunks_for(len));
	hp_span.small_taken -= hp_chunks_for(len);
	/* The caller holds locks of jemalloc, so the service thread may be woken, but not started. */
	hp_unlock_and_tick(false, false);
}
