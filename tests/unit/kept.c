/*
 * A descriptor that the program may close behind our back.
 */
#include "base/kept.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "tests/t.h"

static int file(void)
{
	return memfd_create("kept", MFD_CLOEXEC);
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

TEST(what_is_kept_is_there_until_it_is_closed)
{
	struct hp_kept k = HP_KEPT_NONE;
	int fd = file(), copy = dup(fd), other = file();

	EXPECT(!hp_kept_is_there(&k));
	errno = 77;
	EXPECT(hp_kept_set(&k, fd));
	EXPECT(hp_kept_is_there(&k));
	EXPECT(hp_kept_is(&k, copy) && !hp_kept_is(&k, other) && !hp_kept_is(&k, -1));
	hp_kept_close(&k);
	EXPECT_EQ(errno, 77);
	EXPECT(!is_open(fd) && k.fd == -1 && !hp_kept_is_there(&k));
	hp_kept_close(&k); /* none */
	EXPECT(is_open(copy) && is_open(other));
	close(copy);
	close(other);
}

TEST(a_file_of_the_programs_in_its_place_is_left_alone)
{
	struct hp_kept k = HP_KEPT_NONE;
	int fd = file(), other = file();

	EXPECT(hp_kept_set(&k, fd));
	EXPECT_EQ(dup2(other, fd), fd);
	EXPECT(!hp_kept_is_there(&k));
	hp_kept_close(&k);
	EXPECT(is_open(fd) && k.fd == -1);
	close(fd);
	EXPECT(hp_kept_set(&k, other));
	close(other);
	errno = 77;
	EXPECT(!hp_kept_is_there(&k));
	hp_kept_close(&k);
	EXPECT_EQ(errno, 77);
}

TEST(what_is_no_descriptor_is_not_kept)
{
	struct hp_kept k = HP_KEPT_NONE;
	int fd = file();

	EXPECT(hp_kept_set(&k, fd));
	EXPECT(!hp_kept_set(&k, -1));
	EXPECT(k.fd == -1 && is_open(fd));
	EXPECT(!hp_kept_set(&k, 1023));
	EXPECT_EQ(k.fd, -1);
	errno = 77;
	EXPECT(!hp_kept_set_or_close(&k, -EMFILE) && k.fd == -1);
	EXPECT(!hp_kept_set_or_close(&k, 1023) && k.fd == -1);
	EXPECT_EQ(errno, 77);
	EXPECT(hp_kept_set_or_close(&k, fd) && k.fd == fd && is_open(fd));
	close(fd);
}

T_MAIN
