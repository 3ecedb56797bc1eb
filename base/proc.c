/* See proc.h. */
#include "base/proc.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"

int hp_lines_each(int fd, bool by_position, char *buffer, size_t size,
		  bool (*each)(void *arg, const char *line, bool cut), void *arg)
{
	bool more = true, skip = false; /* skip: drop text up to the end of a line that was cut */
	size_t have = 0;
	long got = 0, at = 0;

	while (more && (got = by_position ? hp_sys(SYS_pread64, fd, buffer + have, size - 1 - have, at)
					  : hp_sys(SYS_read, fd, buffer + have, size - 1 - have)) > 0) {
		char *line = buffer, *end;

		at += got;
		have += (size_t)got;
		buffer[have] = 0;
		for (; more && (end = strchr(line, '\n')); line = end + 1, skip = false) {
			*end = 0;
			more = skip || each(arg, line, false);
		}
		have = (size_t)(buffer + have - line);
		memmove(buffer, line, have + 1);
		if (more && have == size - 1) {
			more = skip || each(arg, buffer, true);
			skip = true;
			have = 0;
		}
	}
	return more && got < 0 ? (int)got : 0;
}

const char *hp_field(const char *line, unsigned n)
{
	for (; n; n--) {
		line += strcspn(line, " ");
		line += strspn(line, " ");
	}
	return line;
}

/* ------------------------------------------------------------------ mappings */

static uint64_t hex_number(const char **at)
{
	uint64_t n = 0;

	for (; (**at >= '0' && **at <= '9') || (**at >= 'a' && **at <= 'f'); (*at)++)
		n = n << 4 | (uint64_t)(**at <= '9' ? **at - '0' : **at - 'a' + 10);
	return n;
}

/* "7f00-7f80 rw-p offset major:minor inode     name" */
bool hp_mapping_parse(const char *line, struct hp_mapping *ret_)
{
	const char *at = line, *offset;
	uintptr_t start = hex_number(&at), end;

	if (at == line || *at != '-')
		return false;
	at++;
	end = hex_number(&at);
	if (strlen(at) < 5)
		return false;
	offset = hp_field(line, 2);
	*ret_ = (struct hp_mapping){
		.start = start,
		.end = end,
		.offset = hex_number(&offset),
		.readable = at[1] == 'r',
		.writable = at[2] == 'w',
		.executable = at[3] == 'x',
		.shared = at[4] != 'p',
		.has_inode = hp_number_after(hp_field(line, 4), "", 0),
		.name = hp_field(line, 5),
	};
	return true;
}

struct each_mapping {
	bool (*call)(void *arg, const struct hp_mapping *m);
	void *arg;
};

static bool tell_mapping(void *each_, const char *line, bool cut)
{
	const struct each_mapping *each = each_;
	struct hp_mapping m;

	if (!hp_mapping_parse(line, &m))
		return true;
	m.cut = cut;
	return each->call(each->arg, &m);
}

int hp_mappings_each(int fd, char *buffer, size_t size, bool (*each)(void *arg, const struct hp_mapping *m), void *arg)
{
	struct each_mapping call = { each, arg };
	int err, own;

	if (fd >= 0)
		return hp_lines_each(fd, true, buffer, size, tell_mapping, &call);
	own = (int)hp_sys(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
	err = own < 0 ? own : hp_lines_each(own, false, buffer, size, tell_mapping, &call);
	if (own >= 0)
		hp_sys(SYS_close, own);
	return err;
}

size_t hp_mappings_max(void)
{
	char text[32];
	uint64_t n = hp_read_file("/proc/sys/vm/max_map_count", text, sizeof text) > 0 ? hp_number_after(text, "", 0) :
											 0;

	return n ? n : 65530;
}

/* ------------------------------------------------------------------ processes */

const char *hp_stat_field(const char *stat, unsigned number)
{
	const char *name_end = strrchr(stat, ')');

	return name_end && name_end[1] == ' ' ? hp_field(name_end + 2, number - 3) : NULL;
}

unsigned hp_thread_count(void)
{
	const char *threads = NULL;
	char text[1024];

	if (hp_read_file("/proc/self/stat", text, sizeof text) > 0)
		threads = hp_stat_field(text, 20);
	return threads ? (unsigned)hp_number_after(threads, "", 0) : 0;
}
