/*
 * Part of libhugepin-malloc.so: what malloc tells of itself in the C library's form. Not called by malloc, so stdio, which may
 * allocate, has its place here.
 */
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>

#include "hugepin.h"

#define EXPORT __attribute__((visibility("default")))

/* As hugepin_stats(3) names them; then all that is in use, small buffers too. */
EXPORT void malloc_stats(void)
{
	struct mallinfo2 m = mallinfo2();
	struct hugepin_stats s;
	int saved = errno;

	hugepin_stats(&s, sizeof s);
#define PRINT(name, unit, sentence) fprintf(stderr, "hugepin: " #name " %" PRIu64 "\n", s.name);
	HUGEPIN_STATS_LIST(PRINT)
#undef PRINT
	fprintf(stderr, "in use: %zu bytes\n", m.uordblks);
	errno = saved;
}

/* Those of the C library's elements that have a meaning here. EINVAL: options are not 0. */
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
