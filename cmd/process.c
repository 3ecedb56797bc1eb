/*
 * A process seen from outside. Its memory is read through /proc/PID/mem, which is opened once. The descriptor stays
 * bound to the memory of that moment. Reads fail once the process has ended or has executed another program. No file
 * that the process uses is opened. So the process may be in a container, and its library may be deleted, stripped or
 * linked into the program.
 */
#include "cmd/process.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"
#include "base/stats.h"
#include "cmd/text.h"
#include "cmd/usage.h"

/* pages searched for the statistics, at most: 4 GiB of data of programs and libraries */
#define PAGES_MAX ((uint64_t)1 << 20)

/* Replace unprintable characters: a process may have any name, which must not control the terminal. */
static void make_printable(char *s)
{
	for (; *s; s++)
		if (*s < ' ' || *s > '~')
			*s = '?';
}

static int open_proc(pid_t pid, const char *name)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static void read_command(struct hp_process *p)
{
	const int fd = open_proc(p->pid, "cmdline");
	const ssize_t n = fd < 0 ? 0 : read(fd, p->command, sizeof p->command - 1);

	if (fd >= 0)
		close(fd);
	p->command[n > 0 ? n : 0] = '\0';
	for (ssize_t i = 0; i + 1 < n; i++)
		if (!p->command[i])
			p->command[i] = ' ';
	make_printable(p->command);
	for (size_t len = strlen(p->command); len && p->command[len - 1] == ' '; len--) /* of a title in its place */
		p->command[len - 1] = '\0';
}

/* Write the reason why the process's memory may not be read. The user is taken from the file `status`: the files in
 * /proc/PID belong to root if the process is not dumpable. */
static void explain(const struct hp_process *p, int err, char *why, size_t size)
{
	char path[64], text[1024];
	const struct passwd *owner;
	uint64_t uid, scope;

	if (err == ESRCH && p->ended >= 0 && !hp_process_has_ended(p)) {
		snprintf(why, size,
			 "process %d has no memory to look at: its first thread has ended, or it is the kernel's",
			 (int)p->pid);
		return;
	}
	snprintf(path, sizeof path, "/proc/%d/status", (int)p->pid);
	if (err == ENOENT || err == ESRCH || hp_read_file(path, text, sizeof text) <= 0) {
		snprintf(why, size, "there is no process %d", (int)p->pid);
		return;
	}
	uid = hp_number_after(text, "\nUid:", 0);
	scope = hp_read_number("/proc/sys/kernel/yama/ptrace_scope", 0);
	owner = getpwuid((uid_t)uid);
	if (err != EACCES && err != EPERM)
		snprintf(why, size, "process %d: %s", (int)p->pid, strerror(err));
	else if (uid != geteuid())
		snprintf(why, size, "process %d is of user %s: that user may look at it, and root", (int)p->pid,
			 owner ? owner->pw_name : "another");
	else if (scope)
		snprintf(why, size,
			 "process %d may not be looked at: kernel.yama.ptrace_scope is %" PRIu64
			 "; as root, or after sysctl kernel.yama.ptrace_scope=0",
			 (int)p->pid, scope);
	else
		snprintf(why, size,
			 "process %d may not be looked at: it keeps others out (see PR_SET_DUMPABLE in prctl(2)), or this "
			 "user lacks CAP_SYS_PTRACE here",
			 (int)p->pid);
}

int hp_process_reopen(struct hp_process *p, char *why, size_t size)
{
	const int mem = open_proc(p->pid, "mem");

	/* Checked after opening, so that this is not the memory of a later process with the same number. */
	if (mem < 0 || hp_process_has_ended(p)) {
		explain(p, mem < 0 ? errno : ESRCH, why, size);
		if (mem >= 0)
			close(mem);
		return HP_EXIT_FAILED;
	}
	if (p->mem >= 0)
		close(p->mem);
	p->mem = mem;
	read_command(p);
	return 0;
}

int hp_process_open(struct hp_process *ret_, pid_t pid, char *why, size_t size)
{
	*ret_ = (struct hp_process){ .pid = pid, .mem = -1, .ended = (int)syscall(SYS_pidfd_open, pid, 0) };
	if (ret_->ended < 0) {
		/* EINVAL: pid is the number of a thread. */
		explain(ret_, errno == EINVAL ? ESRCH : errno, why, size);
		return HP_EXIT_FAILED;
	}
	const int status = hp_process_reopen(ret_, why, size);
	if (status)
		close(ret_->ended);
	return status;
}

void hp_process_close(struct hp_process *p)
{
	close(p->mem);
	close(p->ended);
	free(p->mapping);
	free(p->text);
}

bool hp_process_read(void *process, uint64_t addr, void *buf, size_t len)
{
	const struct hp_process *const p = process;
	ssize_t n;

	for (size_t done = 0; done < len; done += (size_t)n) {
		if (addr + done > INT64_MAX)
			return false;
		n = pread(p->mem, (char *)buf + done, len - done, (off_t)(addr + done));
		if (n <= 0)
			return false;
	}
	return true;
}

bool hp_process_has_ended(const struct hp_process *p)
{
	struct pollfd fd = { .fd = p->ended, .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

/* ------------------------------------------------------------------ mappings */

static char *read_maps(pid_t pid)
{
	const int fd = open_proc(pid, "maps");
	size_t size = 0, room = 0;
	char *text = NULL;
	ssize_t n = 1;

	while (fd >= 0 && n > 0) {
		if (room - size < 65536) {
			char *const more = realloc(text, room = room * 2 + 131072);
			if (!more)
				break;
			text = more;
		}
		n = read(fd, text + size, room - size - 1);
		size += n > 0 ? (size_t)n : 0;
	}
	if (fd >= 0)
		close(fd);
	if (n != 0 || !size) {
		free(text);
		return NULL;
	}
	text[size] = '\0';
	return text;
}

/* Parse a line of maps. The name points into the line. */
static bool parse_line(char *line, struct hp_mapping *ret_)
{
	if (!hp_mapping_parse(line, ret_))
		return false;
	make_printable(line + (ret_->name - line));
	return true;
}

bool hp_process_map(struct hp_process *p)
{
	size_t room = 0;
	char *rest, *line;

	free(p->text);
	free(p->mapping);
	p->mapping = NULL;
	p->mappings = 0;
	rest = p->text = read_maps(p->pid);
	for (const char *c = p->text; c && *c; c++)
		room += *c == '\n';
	p->mapping = calloc(room + !room, sizeof *p->mapping);
	while (p->mapping && p->mappings < room && (line = strsep(&rest, "\n")))
		p->mappings += parse_line(line, &p->mapping[p->mappings]);
	return p->mappings > 0;
}

const struct hp_mapping *hp_process_mapping(const struct hp_process *p, uint64_t addr)
{
	size_t low = 0, high = p->mappings;

	while (low < high) {
		const size_t middle = (low + high) / 2;
		if (addr < p->mapping[middle].start)
			high = middle;
		else if (addr >= p->mapping[middle].end)
			low = middle + 1;
		else
			return &p->mapping[middle];
	}
	return NULL;
}

/* Find the address in the file that belongs to an address in memory. The file is loaded relative to the nearest mapping
 * of its beginning. */
static bool address_in_file(const struct hp_process *p, const struct hp_mapping *m, uint64_t addr, uint64_t *ret_)
{
	Elf64_Ehdr header;

	for (const struct hp_mapping *first = m; first >= p->mapping; first--) {
		if (first->offset || strcmp(first->name, m->name))
			continue;
		if (!hp_process_read((void *)p, first->start, &header, sizeof header) ||
		    memcmp(header.e_ident, ELFMAG, SELFMAG))
			return false;
		*ret_ = header.e_type == ET_EXEC ? addr : addr - first->start;
		return true;
	}
	return false;
}

bool hp_process_code(const struct hp_process *p, uint64_t at, const char **ret_file, uint64_t *ret_address)
{
	const struct hp_mapping *m = hp_process_mapping(p, at);

	if (!m || !m->executable || m->name[0] != '/' || !address_in_file(p, m, at, ret_address))
		return false;
	*ret_file = m->name;
	return true;
}

/* ------------------------------------------------------------------ the page */

/* The page is in the data of a program or library: a file that has a mapping with code before that of the data. Magic
 * numbers identify the page. */
uint64_t hp_process_find_page(const struct hp_process *p)
{
	uint64_t unused = 0, left = PAGES_MAX, magic, view;
	bool executed = false;

	for (const struct hp_mapping *m = p->mapping; m < p->mapping + p->mappings; m++) {
		executed = m->executable || (executed && !strcmp(m->name, m[-1].name));
		const bool data = executed && m->writable && !m->shared && m->name[0] == '/';
		for (uint64_t at = data ? m->start : m->end; at < m->end && left; at += HP_STATS_PAGE, left--) {
			if (!hp_process_read((void *)p, at + HP_VIEW_OFFSET, &view, sizeof view) ||
			    !hp_process_read((void *)p, at, &magic, sizeof magic))
				break;
			if (magic == HUGEPIN_STATS_MAGIC)
				return at;
			if (view == HP_VIEW_MAGIC && !unused)
				unused = at;
		}
	}
	return unused;
}

bool hp_process_thp(const struct hp_process *p, uint64_t start, uint64_t end, uint64_t *ret_bytes)
{
	const int fd = open_proc(p->pid, "smaps");
	FILE *const f = fd < 0 ? NULL : fdopen(fd, "r");
	struct hp_mapping m;
	uint64_t kib, sum = 0;
	char line[8192];
	bool inside = false;

	if (!f) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while (fgets(line, sizeof line, f)) {
		if (hp_mapping_parse(line, &m))
			inside = m.start < end && m.end > start;
		else if (inside && sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1)
			sum += kib << 10;
	}
	fclose(f);
	*ret_bytes = sum;
	return true;
}
