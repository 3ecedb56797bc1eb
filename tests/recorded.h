/*
 * Tests of recorded behaviour: a scenario that is the same in each run notes all that comes out, and this is compared
 * with what came out when it was recorded.
 *
 *	note("reg %zx = %d", at, e);      one result, call or count of a step
 *	noted("the table is full");       the step ends: a line of its name, the number of its notes and their hash
 *	EXPECT(as_recorded("pins"));      all lines are those of tests/recorded/pins.txt
 *
 * A change on purpose is recorded again, by RECORD=write PROGRAM, and is read in the diff of the commit. What a line is
 * made of is printed by RECORD=notes PROGRAM, so the notes of two versions can be compared. Programs run in the
 * tree's first folder, as tests/run has it.
 *
 * Notes must not depend on addresses, times, processors, the kernel or the compiler, which chooses the order of
 * arguments: one rnd() in each call.
 */
#ifndef TESTS_RECORDED_H
#define TESTS_RECORDED_H

#include <fcntl.h>
#include <stdint.h>

#include "tests/t.h"

static struct {
	char lines[1 << 15], were[1 << 15];
	size_t len;
	unsigned notes;
	uint64_t hash;
} record;

static inline bool record_asked(const char *what)
{
	const char *set = getenv("RECORD");

	return set && !strcmp(set, what);
}

__attribute__((format(printf, 1, 2))) static inline void note(const char *format, ...)
{
	static int prints = -1;
	char text[400];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	if (prints < 0)
		prints = record_asked("notes");
	if (prints)
		t_print("# %s\n", text);
	record.notes++;
	for (const char *c = text; *c; c++) /* FNV-1a */
		record.hash = (record.hash ^ (unsigned char)*c) * 0x100000001b3;
	record.hash = (record.hash ^ '\n') * 0x100000001b3;
}

__attribute__((format(printf, 1, 2))) static inline void noted(const char *format, ...)
{
	char name[400];
	va_list args;
	int n;

	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	n = snprintf(record.lines + record.len, sizeof record.lines - record.len, "%s: %u, %016llx\n", name,
		     record.notes, (unsigned long long)record.hash);
	if (EXPECT(n > 0 && record.len + (size_t)n < sizeof record.lines))
		record.len += (size_t)n;
	if (record_asked("notes"))
		t_print("# -- %s\n", name);
	record.notes = 0;
	record.hash = 0;
}

/* The first line that differs is told. */
static inline bool as_recorded(const char *name)
{
	char path[100];
	size_t len = record.len, line = 0;
	ssize_t got = -1;
	int fd;

	snprintf(path, sizeof path, "tests/recorded/%s.txt", name);
	record.len = 0;
	if (record_asked("write")) {
		fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		got = fd < 0 ? -1 : write(fd, record.lines, len);
		close(fd);
		return got == (ssize_t)len || T_FAIL("%s: cannot be written", path);
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		got = read(fd, record.were, sizeof record.were);
		close(fd);
	}
	if (got < 0)
		return T_FAIL("%s: cannot be read; tests run in the tree's first folder", path);
	for (size_t i = 0; i < len || i < (size_t)got; i++) {
		if (i == len || i == (size_t)got || record.lines[i] != record.were[i]) {
			int now = i < len || line < len ? (int)strcspn(record.lines + line, "\n") : 0;
			int was = line < (size_t)got ? (int)strcspn(record.were + line, "\n") : 0;

			T_FAIL("%s: \"%.*s\", recorded was \"%.*s\"", path, now, record.lines + line, was,
			       record.were + line);
			t_print("# On purpose? RECORD=write PROGRAM records it anew; RECORD=notes prints the notes\n");
			return false;
		}
		line = record.lines[i] == '\n' ? i + 1 : line;
	}
	return true;
}

#endif
