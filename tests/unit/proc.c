/*
 * The kernel's files about processes: lines through buffers of all sizes, mappings, fields.
 */
#include "base/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "tests/t.h"

/* ------------------------------------------------------------------ lines */

static char seen[2000]; /* "line|line", and "~" behind one that was cut */
static int lines_max;

static bool note_line(void *arg, const char *line, bool cut)
{
	EXPECT(arg == &lines_max);
	strcat(seen, line);
	strcat(seen, cut ? "~|" : "|");
	return --lines_max > 0;
}

/* Through a buffer of so many bytes, behind which nobody writes; at most so many lines. */
static const char *lines_through(const char *text, size_t size, bool by_position, int max)
{
	int fd = memfd_create("lines", MFD_CLOEXEC);
	char *buffer = malloc(size + 1);

	EXPECT(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	EXPECT_EQ(lseek(fd, by_position ? 1 : 0, SEEK_SET), by_position);
	buffer[size] = 'x';
	seen[0] = 0;
	lines_max = max;
	errno = 77;
	EXPECT_EQ(hp_lines_each(fd, by_position, buffer, size, note_line, &lines_max), 0);
	EXPECT_EQ(errno, 77);
	EXPECT_EQ(buffer[size], 'x');
	EXPECT(!by_position || lseek(fd, 0, SEEK_CUR) == 1);
	free(buffer);
	close(fd);
	return seen;
}

static bool same(const char *a, const char *b)
{
	return !strcmp(a, b) || t_fail(__FILE__, __LINE__, "'%s', not '%s'", a, b);
}

TEST(a_file_comes_line_by_line_through_any_buffer)
{
	for (size_t size = 6; size < 30; size++)
		for (int by_position = 0; by_position < 2; by_position++)
			EXPECT(same(lines_through("ab\n\nabcd\nc\nd", size, by_position, 99), "ab||abcd|c|"));
	EXPECT(same(lines_through("", 10, false, 99), ""));
}

TEST(a_line_that_does_not_fit_comes_as_far_as_it_fits)
{
	EXPECT(same(lines_through("a\n123456789\nb\n", 4, false, 99), "a|123~|b|"));
	EXPECT(same(lines_through("a\n123456789\nb\n", 8, false, 99), "a|1234567~|b|"));
	EXPECT(same(lines_through("123456789", 4, true, 99), "123~|"));
}

TEST(who_has_seen_enough_is_told_no_more)
{
	EXPECT(same(lines_through("a\nb\nc\n", 20, false, 1), "a|"));
	EXPECT(same(lines_through("a\nb\nc\n", 20, true, 2), "a|b|"));
	EXPECT(same(lines_through("123456\nb\n", 4, false, 1), "123~|"));
}

TEST(what_cannot_be_read_is_said)
{
	char buffer[10];

	errno = 77;
	EXPECT_EQ(hp_lines_each(-1, false, buffer, sizeof buffer, note_line, &lines_max), -EBADF);
	EXPECT_EQ(hp_lines_each(-1, true, buffer, sizeof buffer, note_line, &lines_max), -EBADF);
	EXPECT_EQ(errno, 77);
}

TEST(fields_are_counted_from_the_first_and_a_line_has_so_many)
{
	EXPECT(same(hp_field("one  two three", 0), "one  two three"));
	EXPECT(same(hp_field("one  two three", 1), "two three"));
	EXPECT(same(hp_field("one  two three", 2), "three"));
	EXPECT(same(hp_field("one  two three", 3), ""));
	EXPECT(same(hp_field("one  two three", 9), ""));
	EXPECT(same(hp_field("", 1), ""));
}

/* ------------------------------------------------------------------ mappings */

TEST(a_line_of_a_mapping_says_where_it_is_and_what_may_be_done)
{
	static const struct {
		const char *line;
		struct hp_mapping m;
	} lines[] = {
		{ "7f00-7f80 r--p 00000000 00:00 0 ", { 0x7f00, 0x7f80, 0, true, false, false, false, false, false, "" } },
		{ "0-fedcba9876543210 -w-s 0001f000 08:01 10     /a b",
		  { 0, 0xfedcba9876543210, 0x1f000, false, true, false, true, true, false, "/a b" } },
		{ "1-2 --xp 00 00:0f 0 [stack]", { 1, 2, 0, false, false, true, false, false, false, "[stack]" } },
		{ "1-2 rwxp", { 1, 2, 0, true, true, true, false, false, false, "" } },
	};
	static const char *const others[] = { "",    "-",	"-2 rwxp",   "1",	 "1-",
					      "1-2", "1-2 rwx", "Rss: 4 kB", "G-2 rwxp", "1 2 rwxp" };
	struct hp_mapping m;

	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
		const struct hp_mapping *e = &lines[i].m;

		EXPECT(hp_mapping_parse(lines[i].line, &m));
		EXPECT(m.start == e->start && m.end == e->end && m.offset == e->offset);
		EXPECT(m.readable == e->readable && m.writable == e->writable && m.executable == e->executable);
		EXPECT(m.shared == e->shared && m.has_inode == e->has_inode && !m.cut);
		EXPECT(same(m.name, e->name));
	}
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		m.start = 7;
		EXPECT(!hp_mapping_parse(others[i], &m) && m.start == 7);
	}
}

static struct hp_mapping sought; /* start: where; the rest is found */
static int told_after;

static bool look(void *arg, const struct hp_mapping *m)
{
	told_after += sought.end != 0;
	EXPECT(arg == &sought);
	if (m->start <= sought.start && sought.start < m->end) {
		sought.end = m->end;
		sought.readable = m->readable;
		sought.writable = m->writable;
	}
	return !sought.end;
}

TEST(this_process_has_its_mappings_through_any_buffer_and_descriptor)
{
	char *p = mmap(NULL, 3 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), buffer[4096];
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

	EXPECT_EQ(mprotect(p, 4096, PROT_READ | PROT_WRITE), 0);
	for (int i = 0; i < 6; i++) {
		sought = (struct hp_mapping){ .start = (uintptr_t)p };
		told_after = 0;
		errno = 77;
		EXPECT_EQ(hp_mappings_each(i & 1 ? fd : -1, buffer, i < 2 ? 40 : sizeof buffer, look, &sought), 0);
		EXPECT_EQ(errno, 77);
		EXPECT_EQ(sought.end, (uintptr_t)p + 4096);
		EXPECT(sought.readable && sought.writable && !told_after);
	}
	close(fd);
	munmap(p, 3 * 4096);
}

/* ------------------------------------------------------------------ processes */

TEST(a_process_is_told_by_its_stat_whatever_its_name_is)
{
	EXPECT(same(hp_stat_field("12 (a) S 1 2 3", 3), "S 1 2 3"));
	EXPECT(same(hp_stat_field("12 (a) Z 9 (x) S 1 2 3", 5), "2 3"));
	EXPECT(same(hp_stat_field("12 (a) S 1", 22), ""));
	EXPECT(!hp_stat_field("", 3));
	EXPECT(!hp_stat_field("12 (a)", 3));
	EXPECT(!hp_stat_field("12 a S 1", 3));
}

TEST(threads_are_counted_whatever_the_name_is)
{
	EXPECT_EQ(prctl(PR_SET_NAME, ") S 1 2 3 4 5 6"), 0);
	EXPECT_EQ(hp_thread_count(), 1);
	EXPECT_EQ(prctl(PR_SET_NAME, "proc"), 0);
}

T_MAIN
