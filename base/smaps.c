/* See smaps.h. */
#include "base/smaps.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/proc.h"
#include "base/sys.h"

/* "7f00-7f80 rw-p 0000 ...", and many lines later "VmFlags: rd wr mr dc ..." */
bool hp_smaps_line(const char *line, struct hp_smaps *m)
{
	static const struct {
		char name[4];
		unsigned flag;
	} names[] = {
		{ " dc", HP_SMAPS_DONTFORK },
		{ " wf", HP_SMAPS_WIPEONFORK },
		{ " dd", HP_SMAPS_DONTDUMP },
		{ " lo", HP_SMAPS_LOCKED },
		{ " um", HP_SMAPS_UFFD },
		{ " uw", HP_SMAPS_UFFD },
		{ " ui", HP_SMAPS_UFFD },
		{ " sl", HP_SMAPS_SEALED },
	};
	struct hp_mapping first;

	if (hp_mapping_parse(line, &first)) {
		bool io = strstr(first.name, "[io_uring]") || strstr(first.name, "/[aio]");

		*m = (struct hp_smaps){ .start = first.start,
					.end = first.end,
					.flags = (first.readable ? HP_SMAPS_READ : 0u) |
						 (first.writable ? HP_SMAPS_WRITE : 0u) |
						 (first.executable ? HP_SMAPS_EXEC : 0u) | (io ? HP_SMAPS_IO : 0u) };
		return false;
	}
	if (!strncmp(line, "Rss:", 4))
		m->resident = hp_number_after(line, "Rss:", 0) << 10;
	else if (!strncmp(line, "AnonHugePages:", 14))
		m->huge = hp_number_after(line, "AnonHugePages:", 0) << 10;
	else if (!strncmp(line, "ProtectionKey:", 14) && hp_number_after(line, "ProtectionKey:", 0))
		m->flags |= HP_SMAPS_KEY;
	if (strncmp(line, "VmFlags:", 8) != 0)
		return false;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		m->flags |= strstr(line, names[i].name) ? names[i].flag : 0;
	return true;
}

struct each_entry {
	void (*call)(void *arg, const struct hp_smaps *m);
	void *arg;
	struct hp_smaps m; /* the part of the entry that was read so far */
};

/* Add a line to the entry. A line that was cut is ignored. */
static bool add_line(void *each_, const char *line, bool cut)
{
	struct each_entry *each = each_;

	if (!cut && hp_smaps_line(line, &each->m)) {
		each->call(each->arg, &each->m);
		each->m = (struct hp_smaps){ 0 };
	}
	return true;
}

void hp_smaps_each(char *buffer, size_t size, void (*each)(void *arg, const struct hp_smaps *m), void *arg)
{
	int fd = (int)hp_sys(SYS_openat, AT_FDCWD, "/proc/self/smaps", O_RDONLY | O_CLOEXEC);
	struct each_entry call = { .call = each, .arg = arg };

	if (fd >= 0) {
		hp_lines_each(fd, false, buffer, size, add_line, &call);
		hp_sys(SYS_close, fd);
	}
}
