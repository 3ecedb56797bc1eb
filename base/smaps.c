#include "base/smaps.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static uintptr_t hex(const char **at)
{
	uintptr_t n = 0;

	for (; (**at >= '0' && **at <= '9') || (**at >= 'a' && **at <= 'f'); (*at)++)
		n = n * 16 + (uintptr_t)(**at <= '9' ? **at - '0' : **at - 'a' + 10);
	return n;
}

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
	const char *at = line;
	uintptr_t start = hex(&at), end;

	if (at > line && *at == '-') {
		at++;
		end = hex(&at);
		if (strlen(at) < 5)
			return false;
		*m = (struct hp_smaps){ .start = start,
					.end = end,
					.flags = (at[1] == 'r' ? HP_SMAPS_READ : 0u) | (at[2] == 'w' ? HP_SMAPS_WRITE : 0u) |
						 (at[3] == 'x' ? HP_SMAPS_EXEC : 0u) |
						 (strstr(at, "[io_uring]") || strstr(at, "/[aio]") ? HP_SMAPS_IO : 0u) };
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

void hp_smaps_each(char *buffer, size_t size, void (*each)(void *arg, const struct hp_smaps *m), void *arg)
{
	int saved = errno, fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/smaps", O_RDONLY | O_CLOEXEC);
	static const struct hp_smaps none;
	struct hp_smaps m = none;
	bool cut = false; /* the line has a beginning that was dropped */
	size_t have = 0;
	long got;

	while (fd >= 0 && (got = syscall(SYS_read, fd, buffer + have, size - 1 - have)) > 0) {
		char *line = buffer, *end;

		have += (size_t)got;
		buffer[have] = 0;
		for (; (end = strchr(line, '\n')); line = end + 1, cut = false) {
			*end = 0;
			if (cut || !hp_smaps_line(line, &m))
				continue;
			each(arg, &m);
			m = none;
		}
		have = (size_t)(buffer + have - line);
		memmove(buffer, line, have);
		if (have == size - 1) { /* the rest of a long name is no line of ours, be it as it may */
			have = 0;
			cut = true;
		}
	}
	if (fd >= 0)
		syscall(SYS_close, fd);
	errno = saved;
}
