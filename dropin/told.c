/*
 * Part of libhugepin-malloc.so: malloc_stats() and malloc_info(), which report malloc's state as the C library does.
 * malloc never calls them, so they may use stdio, which may allocate.
 */
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>

#include "dropin/dropin.h"
#include "hugepin.h"

/*
 * Prints the counters by their names in hugepin_stats(3), then sums in the words of the C library, which include small
 * buffers. Like the C library's function, this is not a cancellation point.
 */
EXPORT void malloc_stats(void)
{
	struct mallinfo2 m = mallinfo2();
	struct hugepin_stats s;
	int saved_errno = errno, cancel;

	hugepin_stats(&s, sizeof s);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	flockfile(stderr);
#define PRINT(name, unit, sentence) fprintf(stderr, "hugepin: " #name " %" PRIu64 "\n", s.name);
	HUGEPIN_STATS_LIST(PRINT)
#undef PRINT
	fprintf(stderr,
		"Total (incl. mmap):\n"
		"system bytes     = %10zu\n"
		"in use bytes     = %10zu\n"
		"max mmap bytes   = %10" PRIu64 "\n",
		m.arena + m.hblkhd, m.uordblks, s.taken_peak_bytes);
	funlockfile(stderr);
	pthread_setcancelstate(cancel, NULL);
	errno = saved_errno;
}

/* Prints those XML elements of the C library's malloc_info() that have a meaning here. EINVAL: options is not 0. */
EXPORT int malloc_info(int options, FILE *file)
{
	struct mallinfo2 m;

	if (options)
		return EINVAL;
	m = mallinfo2();
	fprintf(file,
		"<malloc version=\"1\">\n"
		"<total type=\"rest\" count=\"1\" size=\"%zu\"/>\n"
		"<total type=\"mmap\" count=\"%zu\" size=\"%zu\"/>\n"
		"<system type=\"current\" size=\"%zu\"/>\n"
		"<aspace type=\"total\" size=\"%zu\"/>\n"
		"</malloc>\n",
		m.fordblks, m.hblks, m.hblkhd, m.arena + m.hblkhd, m.arena + m.hblkhd);
	return 0;
}
