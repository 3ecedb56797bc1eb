/* link: base/smaps.c base/proc.c base/base.c base/clock.c base/sys.c */
/*
 * Fuzzes the reader of lines of /proc/self/smaps, among which names of files stand: it stays in the line, and says of a mapping what a
 * line that begins with two addresses, and one of flags, have said.
 */
#include "base/smaps.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct hp_smaps m = { .start = 1, .end = 2 };

	while (size) {
		const uint8_t *end = memchr(data, '\n', size);
		size_t len = end ? (size_t)(end - data) : size;
		char *line = malloc(len + 1);
		struct hp_smaps was = m;

		memcpy(line, data, len);
		line[len] = 0;
		if (hp_smaps_line(line, &m)) {
			assert(!strncmp(line, "VmFlags:", 8) && m.start == was.start && m.end == was.end);
			assert((m.flags & was.flags) == was.flags && !(m.flags & HP_SMAPS_LOCKED & ~was.flags && !strstr(line, "lo")));
		} else if (m.start != was.start || m.end != was.end || m.flags != was.flags) {
			assert(!strncmp(line, "ProtectionKey:", 14)
				       ? m.flags == (was.flags | HP_SMAPS_KEY)
				       : strchr(line, '-') && !(m.flags & ~(7u | HP_SMAPS_IO)) && !m.resident && !m.huge);
		} else if (m.resident != was.resident || m.huge != was.huge) { /* the line may be that of the mapping once more */
			assert(!strncmp(line, "Rss:", 4) || !strncmp(line, "AnonHugePages:", 14) || (strchr(line, '-') && !m.resident));
		}
		free(line);
		data += len + (end != NULL);
		size -= len + (end != NULL);
	}
	return 0;
}
