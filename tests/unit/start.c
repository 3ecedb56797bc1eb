/*
 * alloc/start.c: what allocates while the heap starts, on the way of a system call of the start, as a hook or a handler of
 * a signal does.
 */
#include "alloc/start.h"

#include "alloc/heap.h"
#include "tests/t.h"
#include "tests/unit/kernel.h"

static struct {
	bool armed, here;
	void *p;
} meanwhile;

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	if (nr == SYS_mmap && meanwhile.armed) {
		meanwhile.armed = false;
		meanwhile.here = hp_heap_starts_here();
		meanwhile.p = hugepin_malloc(HP_PAGE);
	}
	return result_of(raw(nr, a, b, c, d, e, f));
}

TEST(a_thread_that_starts_the_heap_gets_memory_from_elsewhere_meanwhile_and_does_not_wait_for_itself)
{
	void *p;

	EXPECT(!hp_heap_ready() && !hp_heap_starts_here());
	meanwhile.armed = true;
	p = hugepin_malloc(HP_PAGE);
	EXPECT(p && !meanwhile.armed);
	EXPECT(meanwhile.here && meanwhile.p && (uintptr_t)meanwhile.p - hp_span.base >= hp_span.size);
	EXPECT(hp_heap_ready() && !hp_heap_starts_here());
	hugepin_free(p);
	hugepin_free(meanwhile.p);
}

T_MAIN
