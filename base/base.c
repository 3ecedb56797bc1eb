/*
 * Messages, small files and memory, all by raw system calls for the reasons in base.h.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/map.h"
#include "base/seal.h"
#include "base/sys.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

void hp_line_text(struct hp_line *l, const char *s)
{
	while (*s && l->at + 1 < l->end)
		*l->at++ = *s++;
	*l->at = '\0';
}

void hp_line_number(struct hp_line *l, uint64_t n, unsigned radix)
{
	char digits[65], *d = digits + sizeof digits;

	*--d = '\0';
	do {
		*--d = "0123456789abcdef"[n % radix];
		n /= radix;
	} while (n);
	hp_line_text(l, d);
}

void hp_say(const char *what, const void *ptr, size_t number)
{
	char buf[256];
	struct hp_line l = { buf, buf + sizeof buf - 1 }; /* keeps room for the newline */

	hp_line_text(&l, "hugepin: ");
	hp_line_text(&l, what);
	if (ptr) {
		hp_line_text(&l, " 0x");
		hp_line_number(&l, (uintptr_t)ptr, 16);
	}
	if (number != SIZE_MAX) {
		hp_line_text(&l, " ");
		hp_line_number(&l, number, 10);
	}
	*l.at++ = '\n';
	hp_sys(SYS_write, 2, buf, l.at - buf);
}

void hp_say_unwritten(const char *option, const char *path, int err)
{
	char text[4096 + 160];
	struct hp_line l = { text, text + sizeof text };

	hp_line_text(&l, "hugepin: ");
	hp_line_text(&l, option);
	hp_line_text(&l, ": ");
	hp_line_text(&l, path);
	hp_line_text(&l, " cannot be written: error ");
	hp_line_number(&l, (uint64_t)err, 10);
	hp_line_text(&l, "\n");
	hp_sys(SYS_write, 2, text, l.at - text);
}

void hp_die(const char *what, const void *ptr, size_t number)
{
	hp_say(what, ptr, number);
	abort();
}

bool hp_sandboxed;

bool hp_is_filtered(void)
{
	return hp_sandboxed || hp_sys(SYS_prctl, PR_GET_SECCOMP) != 0;
}

long hp_read_file(const char *path, char *buf, size_t size)
{
	long n, fd, total = 0;

	if (hp_sandboxed)
		return -EPERM;
	fd = hp_sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return fd;
	while ((n = hp_sys(SYS_read, fd, buf + total, size - 1 - (size_t)total)) > 0)
		total += n;
	hp_sys(SYS_close, fd);
	if (n < 0)
		return n;
	buf[total] = '\0';
	return total;
}

static int check_own(long fd)
{
	struct stat s;
	int err = (int)hp_sys(SYS_fstat, fd, &s);

	if (err)
		return err;
	if (!S_ISREG(s.st_mode) || s.st_nlink > 1 || (s.st_uid && !hp_sys(SYS_geteuid)))
		return -EPERM;
	/* fchmod succeeds only for the owner and root. Do not compare st_uid instead, because network file systems may
	 * report other owners. */
	return s.st_mode & 077 ? (int)hp_sys(SYS_fchmod, fd, 0600) : 0;
}

int hp_open_own(const char *path, int flags)
{
	/* O_NONBLOCK: do not wait for a reader of a FIFO. */
	long fd = hp_sys(SYS_openat, AT_FDCWD, path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags,
			 0600);
	int err = fd < 0 ? (int)fd : check_own(fd);

	if (err == -ELOOP || err == -ENXIO || err == -EISDIR) /* a link, a FIFO or socket, a directory */
		err = -EPERM;
	if (err < 0 && fd >= 0)
		hp_sys(SYS_close, fd);
	return err < 0 ? err : (int)fd;
}

uint64_t hp_number_after(const char *text, const char *key, uint64_t def)
{
	const char *p = strstr(text, key);
	uint64_t n = 0;

	if (!p)
		return def;
	for (p += strlen(key); *p == ' ' || *p == '\t'; p++)
		;
	if (*p < '0' || *p > '9')
		return def;
	for (; *p >= '0' && *p <= '9'; p++)
		n = n * 10 + (uint64_t)(*p - '0');
	return n;
}

#if defined __x86_64__
size_t hp_base_page = HP_CHUNK; /* the only size on this machine */
#else
size_t hp_base_page;
#endif

__attribute__((constructor(101))) void hp_base_page_init(void)
{
	if (!hp_base_page)
		hp_base_page = getauxval(AT_PAGESZ);
}

static void *meta_map(size_t size, int prot)
{
	long at = hp_raw_mmap(size, prot, MAP_NORESERVE);

	if (hp_sys_failed(at))
		return NULL;
	hp_raw_madvise((void *)at, size, MADV_DONTDUMP);
	return (void *)at;
}

void *hp_meta_map(size_t size)
{
	return meta_map(size, PROT_READ | PROT_WRITE);
}

void *hp_meta_map_own(size_t size)
{
	void *p = hp_meta_map(size);

	if (p && hp_sys(SYS_madvise, p, size, MADV_WIPEONFORK) != 0) {
		hp_meta_unmap(p, size);
		p = NULL;
	}
	return p;
}

void *hp_meta_reserve(size_t size)
{
	return meta_map(size, PROT_NONE);
}

bool hp_meta_open(void *p, size_t size)
{
	uintptr_t start = (uintptr_t)p & -hp_base_page;

	return hp_sys(SYS_mprotect, start, (uintptr_t)p + size - start, PROT_READ | PROT_WRITE) == 0;
}

void hp_meta_unmap(void *p, size_t size)
{
	if (p)
		hp_sys(SYS_munmap, p, size);
}

void hp_meta_zero(void *p, size_t size)
{
	const uintptr_t start = (uintptr_t)p, end = start + size;
	const uintptr_t from = HP_MIN(hp_round_up(start, hp_base_page), end), to = HP_MAX(end & -hp_base_page, from);

	memset(p, 0, from - start);
	if (from < to)
		hp_raw_madvise((void *)from, to - from, MADV_DONTNEED);
	memset((void *)to, 0, end - to);
}

static int populate(uintptr_t start, size_t len, int advice)
{
	int err;

	do {
		err = (int)hp_sys(SYS_madvise, start, len, advice);
	} while (err == -EINTR);
	return err;
}

/* The kernel clears a hugepage towards the base page that is touched. Touch the last one first, because clearing
 * upwards takes half the time (AMD EPYC: 2.1 instead of 4.7 ms for 64 MiB). */
int hp_populate(uintptr_t start, size_t len, bool write)
{
	const int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	uintptr_t end = hp_round_up(start, HP_PAGE) + HP_PAGE;
	int err = 0;

	for (; write && !err && end <= start + len; end += HP_PAGE)
		err = populate(end - hp_base_page, hp_base_page, advice);
	return err ? err : populate(start, len, advice);
}
