/*
 * What smaps says, line by line and as a whole: the file is one of the test's (kernel.h), read through buffers of all sizes.
 */
#include "base/smaps.h"

#include <stdlib.h>

#include "tests/t.h"
#include "tests/unit/kernel.h"

enum { MAPPINGS_MAX = 16 };

static char file[] = "/tmp/hugepin-smaps-XXXXXX"; /* what is read for /proc/self/smaps */
static bool absent;

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (nr == SYS_openat && !strcmp((char *)b, "/proc/self/smaps"))
		r = absent ? -ENOENT : raw(nr, a, (long)file, c, d, e, f);
	else
		r = raw(nr, a, b, c, d, e, f);
	return result_of(r);
}

static void feed(const char *text)
{
	int fd = open(file, O_WRONLY | O_TRUNC | O_CLOEXEC);

	EXPECT(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

__attribute__((constructor)) static void make_file(void)
{
	int fd = mkstemp(file);

	if (fd >= 0)
		close(fd);
}

__attribute__((destructor)) static void remove_file(void)
{
	unlink(file);
}

/* ------------------------------------------------------------------ a line */

TEST(what_is_there_of_a_mapping_is_read)
{
	static const char *const lines[] = { "7f00-7f80 rw-p 00000000 00:00 0 ", "Size:               2048 kB", "Rss:                1024 kB",
					     "Shared_Hugetlb:        8 kB", "AnonHugePages:       512 kB", "ProtectionKey:         0",
					     "VmFlags: rd wr mr mw me ac lo" };
	struct hp_smaps m = { .start = 1, .huge = 7, .resident = 7 };

	for (int i = 0; i < 6; i++)
		EXPECT(!hp_smaps_line(lines[i], &m));
	EXPECT(hp_smaps_line(lines[6], &m));
	EXPECT_EQ(m.start, 0x7f00);
	EXPECT_EQ(m.end, 0x7f80);
	EXPECT_EQ(m.resident, 1024 << 10);
	EXPECT_EQ(m.huge, 512 << 10);
	EXPECT_EQ(m.flags, HP_SMAPS_READ | HP_SMAPS_WRITE | HP_SMAPS_LOCKED);
	EXPECT(!hp_smaps_line(lines[0], &m));
	EXPECT_EQ(m.resident + m.huge, 0);
}

/* Flags of a mapping with this first line and these of the kernel's, whose key is this. */
static unsigned flags_of(const char *first, const char *key, const char *flags)
{
	struct hp_smaps m = { .flags = ~0u };

	EXPECT(!hp_smaps_line(first, &m));
	EXPECT(!hp_smaps_line(key, &m));
	EXPECT(hp_smaps_line(flags, &m));
	EXPECT_EQ(m.start, 0x1000);
	EXPECT_EQ(m.end, 0x2000);
	return m.flags;
}

TEST(each_flag_is_known_by_itself)
{
	static const struct {
		const char *kernels;
		unsigned flags;
	} each[] = {
		{ "VmFlags: ", 0 },
		{ "VmFlags: dc", HP_SMAPS_DONTFORK },
		{ "VmFlags: rd wf", HP_SMAPS_WIPEONFORK },
		{ "VmFlags: rd dd wr", HP_SMAPS_DONTDUMP },
		{ "VmFlags: lo", HP_SMAPS_LOCKED },
		{ "VmFlags: um", HP_SMAPS_UFFD },
		{ "VmFlags: uw", HP_SMAPS_UFFD },
		{ "VmFlags: ui", HP_SMAPS_UFFD },
		{ "VmFlags: rd sl", HP_SMAPS_SEALED },
		{ "VmFlags: dc wf dd lo um", HP_SMAPS_DONTFORK | HP_SMAPS_WIPEONFORK | HP_SMAPS_DONTDUMP | HP_SMAPS_LOCKED | HP_SMAPS_UFFD },
		{ "VmFlags: rd wr ex sh mr mw me ms gd pf io sr rr de ac nr ht sf nl ar sd mm hg nh mg bt mt ss", 0 },
	};
	static const struct {
		const char *rights;
		unsigned flags;
	} rights[] = {
		{ "1000-2000 ---p 0 00:00 0", 0 },
		{ "1000-2000 r--s 0 00:00 0", HP_SMAPS_READ },
		{ "1000-2000 -w-p 0 00:00 0", HP_SMAPS_WRITE },
		{ "1000-2000 --xp 0 00:00 0", HP_SMAPS_EXEC },
		{ "1000-2000 ---p 0 00:00 0 /tmp/rwx", 0 },
		{ "1000-2000 ---s 0 00:0f 1 anon_inode:[io_uring]", HP_SMAPS_IO },
		{ "1000-2000 ---s 0 00:0f 1 /[aio] (deleted)", HP_SMAPS_IO },
		{ "1000-2000 ---s 0 00:0f 1 /dev/zero", 0 },
		{ "1000-2000 ---p", 0 },
	};

	for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
		EXPECT_EQ(flags_of("1000-2000 ---p 0 00:00 0 ", "ProtectionKey:         0", each[i].kernels), each[i].flags);
		EXPECT_EQ(flags_of("1000-2000 r--p 0 00:00 0 ", "ProtectionKey:         2", each[i].kernels),
			  each[i].flags | HP_SMAPS_READ | HP_SMAPS_KEY);
	}
	for (size_t i = 0; i < sizeof rights / sizeof *rights; i++)
		EXPECT_EQ(flags_of(rights[i].rights, "ProtectionKey:         0", "VmFlags: "), rights[i].flags);
}

TEST(addresses_are_of_all_digits)
{
	struct hp_smaps m = { .start = 0 };

	hp_smaps_line("0123456789abcdef-fedcba9876543210 ---p 0 00:00 0 ", &m);
	EXPECT_EQ(m.start, 0x0123456789abcdef);
	EXPECT_EQ((uint64_t)m.end, 0xfedcba9876543210);
	hp_smaps_line("0-a ---p 0 00:00 0 ", &m);
	EXPECT_EQ(m.start, 0);
	EXPECT_EQ(m.end, 10);
	hp_smaps_line("9-f ---p 0 00:00 0 ", &m);
	EXPECT_EQ(m.start, 9);
	EXPECT_EQ(m.end, 15);
}

/* Behind a file's name with a line feed in it anything may stand, and lines may be cut off. */
TEST(what_is_no_line_of_these_changes_nothing)
{
	static const char *const lines[] = { "", "-", "-2000 rwxp 0 00:00 0", "1000", "1000-", "1000-2000", "1000-2000 ", "1000-2000 rwx",
					     "g000-2000 rwxp 0 00:00 0", "A000-2000 rwxp 0 00:00 0", "1000/2000 rwxp 0 00:00 0",
					     "1000:2000 rwxp 0 00:00 0", " Rss: 1 kB", "Pss: 1 kB", "FilePmdMapped: 1 kB", "VmFlag: dc",
					     "\"VmFlags: dc\"", "Rs", "ProtectionKe: 1" };

	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
		struct hp_smaps m = { 1, 2, HP_SMAPS_READ, 3, 4 };

		EXPECT(!hp_smaps_line(lines[i], &m));
		if (!EXPECT(m.start == 1 && m.end == 2 && m.flags == HP_SMAPS_READ && m.resident == 3 && m.huge == 4))
			T_FAIL("'%s'", lines[i]);
	}
}

/* ------------------------------------------------------------------ the file */

static struct hp_smaps found[MAPPINGS_MAX];
static int count;

static void note(void *arg, const struct hp_smaps *m)
{
	EXPECT(arg == &count);
	if (count < MAPPINGS_MAX)
		found[count] = *m;
	count++;
}

/* Through a buffer of so many bytes, behind which nobody writes. What was in it before are lines, too. */
static int read_through(size_t size)
{
	static const char before[] = "\nVmFlags: \n";
	char *buffer = malloc(size + 2);

	for (size_t i = 0; i < size; i++)
		buffer[i] = before[i % (sizeof before - 1)];
	buffer[size] = 'x';
	buffer[size + 1] = 0;
	count = 0;
	errno = 77;
	hp_smaps_each(buffer, size, note, &count);
	EXPECT_EQ(errno, 77);
	EXPECT_EQ(buffer[size], 'x');
	free(buffer);
	return count;
}

TEST(a_file_is_read_through_any_buffer_that_has_room_for_its_longest_line)
{
	static const char text[] = "1000-2000 rw-p 00000000 00:00 0\nSize: 4 kB\nRss: 4 kB\nAnonHugePages: 0 kB\nVmFlags: rd wr dc\n"
				   "3000-9000 r-xp 00000000 08:01 7 /usr/lib/x\nRss: 12 kB\nVmFlags: rd ex lo\n"
				   "200000-400000 rw-p 00000000 00:00 0\nRss: 2048 kB\nAnonHugePages: 2048 kB\nProtectionKey: 3\nVmFlags: rd wr\n";
	size_t longest = strlen("3000-9000 r-xp 00000000 08:01 7 /usr/lib/x\n");

	feed(text);
	for (size_t size = longest + 1; size < sizeof text + 9; size++) {
		if (!EXPECT_EQ(read_through(size), 3)) {
			T_FAIL("%zu bytes", size);
			continue;
		}
		EXPECT(found[0].start == 0x1000 && found[0].end == 0x2000 && found[0].resident == 4096 && found[0].huge == 0);
		EXPECT_EQ(found[0].flags, HP_SMAPS_READ | HP_SMAPS_WRITE | HP_SMAPS_DONTFORK);
		EXPECT(found[1].start == 0x3000 && found[1].end == 0x9000 && found[1].resident == 12288 && found[1].huge == 0);
		EXPECT_EQ(found[1].flags, HP_SMAPS_READ | HP_SMAPS_EXEC | HP_SMAPS_LOCKED);
		EXPECT(found[2].start == 0x200000 && found[2].end == 0x400000 && found[2].resident == 2 << 20 && found[2].huge == 2 << 20);
		EXPECT_EQ(found[2].flags, HP_SMAPS_READ | HP_SMAPS_WRITE | HP_SMAPS_KEY);
	}
}

/* Of a file's name, say. Nobody knows then where the mapping lies, and its flags are not those of the one before. */
TEST(a_line_that_is_too_long_is_left_out_and_nothing_else)
{
	char text[1000] = "8000-9000 rw-p 0 00:00 0\nRss: 4 kB\nVmFlags: rd wr dc\n1000-2000 rw-p 00000000 08:01 7 /";
	size_t before = strlen(text);

	for (size_t i = before; i < before + 300; i += 10)
		memcpy(text + i, "a-b rwxpxx", 11);
	strcat(text, "\nRss: 8 kB\nVmFlags: rd wr lo\n5000-6000 ---p 0 00:00 0\nVmFlags: mr\n");
	feed(text);
	for (size_t size = 64; size < 500; size++) {
		if (!EXPECT_EQ(read_through(size), 3)) {
			T_FAIL("%zu bytes", size);
			continue;
		}
		EXPECT(found[0].start == 0x8000 && found[0].end == 0x9000 && found[0].resident == 4096);
		EXPECT_EQ(found[0].flags, HP_SMAPS_READ | HP_SMAPS_WRITE | HP_SMAPS_DONTFORK);
		EXPECT_EQ(found[1].resident, 8192);
		EXPECT_EQ(found[1].flags & ~3u, HP_SMAPS_LOCKED);
		EXPECT(found[1].start == found[1].end || (found[1].start == 0x1000 && found[1].end == 0x2000 && size > 300));
		EXPECT(found[1].start == 0x1000 || size < 400);
		EXPECT(found[2].start == 0x5000 && found[2].end == 0x6000 && !found[2].flags && !found[2].resident);
	}
}

TEST(a_file_that_is_not_there_or_empty_has_no_mappings)
{
	absent = true;
	EXPECT_EQ(read_through(100), 0);
	absent = false;
	feed("");
	EXPECT_EQ(read_through(100), 0);
	feed("1000-2000 rw-p 0 00:00 0\nRss: 4 kB\nVmFlags: rd wr"); /* cut off */
	EXPECT_EQ(read_through(100), 0);
}

TEST(of_a_program_without_standard_input_it_is_read_as_well)
{
	int in = fcntl(0, F_DUPFD_CLOEXEC, 3);

	feed("1000-2000 rw-p 0 00:00 0\nVmFlags: rd wr\n");
	close(0);
	EXPECT_EQ(read_through(100), 1);
	EXPECT(fcntl(0, F_GETFD) < 0);
	EXPECT_EQ(dup2(in, 0), 0);
	close(in);
}

T_MAIN
