/* link: hugepin uring */
/* If the kernel tells of memory that goes away, no key is stale. If it does not, memory whose key could become stale is
 * not cached. */
#include "stale.h"

CASE(foreign_memory_unmapped_by_libc, FOREIGN, libc_munmap, 0)
CASE(foreign_memory_mapped_over, FOREIGN, map_over, 0)
CASE(foreign_memory_moved_away, FOREIGN, move_away, 0)
CASE(foreign_memory_moved_and_left_empty, FOREIGN, move_leaving_it_empty, 0)
CASE(foreign_memory_discarded, FOREIGN, discard, 0)
CASE(foreign_memory_freed_lazily, FOREIGN, free_lazily, 0)
CASE(foreign_memory_discarded_locked, FOREIGN, discard_locked, 0)
CASE(foreign_memory_discarded_by_process_madvise, FOREIGN, discard_by_process, 0)
CASE(foreign_memory_unmapped_by_system_call, FOREIGN, raw_munmap, 0)
CASE(foreign_memory_unmapped_by_inline_assembly, FOREIGN, inline_munmap, 0)
CASE(shared_memory_detached, SHM, detach, 0)
CASE(the_break_lowered_and_raised, BREAK, lower_break, 0)
CASE(memfd_memory_mapped_over, MEMFD, map_over, 0)
CASE(heap_memory_unmapped_by_libc, HEAP, libc_munmap, 0)
CASE(heap_memory_mapped_over, HEAP, map_over, 0)
CASE(heap_memory_moved_away, HEAP, move_away, 0)
CASE(heap_memory_moved_and_left_empty, HEAP, move_leaving_it_empty, 0)
CASE(heap_memory_discarded, HEAP, discard, 0)
CASE(heap_memory_freed_lazily, HEAP, free_lazily, 0)
CASE(heap_memory_discarded_locked, HEAP, discard_locked, 0)
CASE(heap_memory_discarded_by_process_madvise, HEAP, discard_by_process, 0)
CASE(heap_memory_unmapped_by_system_call, HEAP, raw_munmap, 0)
CASE(heap_memory_unmapped_by_inline_assembly, HEAP, inline_munmap, 0)
CASE(a_truncated_file, MEMFD, truncate_file, 0)
CASE(a_file_with_a_hole_punched, MEMFD, punch_hole, 0)
CASE(a_file_remapped, MEMFD, remap_pages, 0)
CASE(a_truncated_file_pinned_uncached, MEMFD, truncate_file, HUGEPIN_PIN_UNCACHED)
CASE(a_file_with_a_hole_punched_pinned_uncached, MEMFD, punch_hole, HUGEPIN_PIN_UNCACHED)

TEST(foreign_memory_that_nobody_watches_is_not_cached)
{
	without_userfaultfd = true;
	uncached_at_least = 4;
	in_child(HUGEPIN_POLICY_ARENA, FOREIGN, raw_munmap, 0);
	in_child(HUGEPIN_POLICY_LRU, MEMFD, map_over, 0);
	uncached_at_least = 0;
}

/* The nine ways to take parts of a buffer away from the heap. */
static void take_away_unwatched(void)
{
	static void (*const event[])(char *p) = { libc_munmap,	map_over,   move_away,	  move_leaving_it_empty, discard, discard_locked,
						  discard_by_process, raw_munmap, inline_munmap };

	uncached_at_least = 4;
	for (size_t i = 0; i < sizeof event / sizeof *event; i++) {
		in_child(HUGEPIN_POLICY_ARENA, HEAP, event[i], 0);
		in_child(HUGEPIN_POLICY_LRU, HEAP, event[i], 0);
	}
	uncached_at_least = 0;
}

TEST(heap_memory_that_nobody_watches_is_not_cached)
{
	without_features = false;
	without_userfaultfd = true;
	take_away_unwatched();
}

TEST(nor_where_the_kernel_has_userfaultfd_without_the_events)
{
	without_userfaultfd = false;
	without_features = true;
	take_away_unwatched();
}

T_MAIN
