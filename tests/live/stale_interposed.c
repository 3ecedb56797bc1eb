/* link: hugepin uring preload */
/*
 * Without userfaultfd, the interposed calls of libhugepin-malloc.so tell of memory that the program takes away. Raw
 * system calls and calls inside the C library are not seen (see hugepin_pin(3)).
 */
#include "stale.h"

CASE(foreign_memory_unmapped, FOREIGN, libc_munmap, 0)
CASE(foreign_memory_mapped_over, FOREIGN, map_over, 0)
CASE(foreign_memory_moved_away, FOREIGN, move_away, 0)
CASE(foreign_memory_moved_and_left_empty, FOREIGN, move_leaving_it_empty, 0)
CASE(foreign_memory_in_whose_place_other_memory_was_moved, FOREIGN, move_here, 0)
CASE(foreign_memory_discarded, FOREIGN, discard, 0)
CASE(foreign_memory_freed_lazily, FOREIGN, free_lazily, 0)
CASE(foreign_memory_discarded_locked, FOREIGN, discard_locked, 0)
CASE(shared_memory_detached, SHM, detach, 0)
CASE(the_break_lowered_and_raised, BREAK, lower_break, 0)
CASE(the_break_lowered_by_the_c_library_and_raised, BREAK, lower_break_inside, 0)
CASE(a_truncated_file, MEMFD, truncate_file, 0)
CASE(a_file_with_a_hole_punched, MEMFD, punch_hole, 0)
CASE(heap_memory_unmapped, HEAP, libc_munmap, 0)
CASE(heap_memory_mapped_over, HEAP, map_over, 0)
CASE(heap_memory_moved_away, HEAP, move_away, 0)
CASE(heap_memory_discarded, HEAP, discard, 0)

static __attribute__((constructor)) void configure(void)
{
	without_userfaultfd = true;
}

T_MAIN
