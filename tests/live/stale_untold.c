/* link: hugepin uring preload */
/*
 * Calls for which a userfaultfd gets no event: the interposed calls of libhugepin-malloc.so tell of them, while a
 * userfaultfd tells of all others.
 */
#include "stale.h"

CASE(foreign_memory_with_guards, FOREIGN, put_guards, 0)
CASE(foreign_memory_with_a_segment_over_it, FOREIGN, attach_over, 0)
CASE(heap_memory_with_guards, HEAP, put_guards, 0)
CASE(a_truncated_file, MEMFD, truncate_file, 0)
CASE(a_file_with_a_hole_punched, MEMFD, punch_hole, 0)
CASE(a_file_remapped, MEMFD, remap_pages, 0)

T_MAIN
