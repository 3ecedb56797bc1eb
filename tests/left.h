/*
 * What a test leaves behind: the harness of unit tests (t.h, with T_UNIT) compares signal mask, descriptors, threads
 * and mappings before and after each. What stays for good is the test's to say, with its reason:
 *
 *	T_STAYS(2, "the domain's tables are kept for the next one");
 *
 * Threads of the library's, and what the watcher keeps open, stay as long as the process does: one thread of each name.
 * By raw system calls: tests have kernels of their own (unit/kernel.h).
 */
#ifndef TESTS_LEFT_H
#define TESTS_LEFT_H

#include "alloc/pages.h"
#include "tests/call.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>

enum { T_DESCRIPTORS = 1024, T_NAMES = 4 };

struct t_left {
	uint64_t mask;
	uint64_t open[T_DESCRIPTORS / 64];
	/* Of these, files that a thread of the library's opens for a moment. */
	uint64_t files[T_DESCRIPTORS / 64];
	int threads; /* but for the library's */
	int own[T_NAMES]; /* those, by name */
	int mappings;
};

static const char *const t_names[T_NAMES] = { "hugepin\n", "hugepin decay\n", "hugepin watch\n", "" };
static int t_stay; /* mappings that the running test says to stay */
/* At any time a thread of the library's may begin (a stack and its guard, an arena and its room), the heap (the tables
 * of its span, which is not counted), and what is sealed be split from its neighbours. */
enum { T_ANY = 10 };
/* During the first test of a program all may begin. Tables of the pin cache's stay for the next domain. */
enum { T_BEGINS = 40 };

/* So many mappings more than before and those, at most, for that reason. */
#define T_STAYS(mappings, reason) ((void)(reason), t_stay += (mappings))
#define T_DOMAIN_BEGINS() \
	T_STAYS(T_BEGINS, "tables of regions, of counters, of a domain and of its helper stay for the next")
#define T_THREADS_RUN(count) T_STAYS(4 * (count), "the C library keeps stacks and arenas for the next thread")

__attribute__((no_sanitize("address", "thread", "undefined"))) static inline long t_raw(long nr, long a, long b, long c,
										 long d)
{
	return t_call(nr, a, b, c, d, 0, 0);
}

/* Call each() with the number of each entry of a directory whose names are numbers. */
static inline void t_numbers(const char *path, void (*each)(struct t_left *l, int n), struct t_left *l)
{
	long fd = t_raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0), len;
	char buf[4096];

	while (fd >= 0 && (len = t_raw(SYS_getdents64, fd, (long)buf, sizeof buf, 0)) > 0)
		for (long at = 0; at < len; at += *(unsigned short *)(buf + at + 16)) {
			const char *name = buf + at + 19; /* struct linux_dirent64 */

			if (name[0] != '.' && strtol(name, NULL, 10) != fd)
				each(l, (int)strtol(name, NULL, 10));
		}
	if (fd >= 0)
		t_raw(SYS_close, fd, 0, 0, 0);
}

/* The watcher has its descriptors above those that programs come by. */
static inline void t_descriptor(struct t_left *l, int n)
{
	char path[40], what[40] = "";
	bool known;

	snprintf(path, sizeof path, "/proc/self/fd/%d", n);
	known = t_raw(SYS_readlinkat, AT_FDCWD, (long)path, (long)what, sizeof what - 1) > 0;
	if (n >= 256 && known && (strstr(what, "[userfaultfd]") || strstr(what, "/maps")))
		return;
	if (n >= T_DESCRIPTORS)
		return;
	l->open[n / 64] |= UINT64_C(1) << n % 64;
	if (!known || !strncmp(what, "/proc/", 6) || !strncmp(what, "/sys/", 5) || !strncmp(what, "/dev/shm/", 9))
		l->files[n / 64] |= UINT64_C(1) << n % 64;
}

/* Of descriptors 64 * i and up, what was opened or closed between, but for files that were open for a moment before. */
static inline uint64_t t_changed(const struct t_left *before, const struct t_left *after, int i)
{
	return (before->open[i] ^ after->open[i]) & ~(before->files[i] & ~after->open[i]);
}

static inline void t_thread(struct t_left *l, int n)
{
	char path[60], name[32] = "";
	long fd;

	snprintf(path, sizeof path, "/proc/self/task/%d/comm", n);
	fd = t_raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0) /* it has ended */
		return;
	if (t_raw(SYS_read, fd, (long)name, sizeof name - 1, 0) < 0)
		name[0] = '\0';
	t_raw(SYS_close, fd, 0, 0, 0);
	for (int i = 0; i < T_NAMES; i++)
		if (!strcmp(name, t_names[i])) {
			l->own[i]++;
			return;
		}
	if (!strncmp(name, "iou-wrk", 7)) /* io_uring's: the kernel keeps the last one for the next ring */
		return;
	l->threads++;
}

/* But for those in the heap's span: what is free there leaves after its time. expect_empty() (unit/empty.h) is about
 * that. */
static inline int t_mappings(void)
{
	static char buf[16384];
	long fd = t_raw(SYS_openat, AT_FDCWD, (long)"/proc/self/maps", O_RDONLY | O_CLOEXEC, 0), len;
	bool begins = true;
	uintptr_t at = 0;
	int n = 0;

	while (fd >= 0 && (len = t_raw(SYS_read, fd, (long)buf, sizeof buf, 0)) > 0)
		for (long i = 0; i < len; i++) {
			if (begins && buf[i] == '-')
				n += at < hp_span.base || at - hp_span.base >= hp_span.reserved;
			begins = buf[i] == '\n' || (begins && buf[i] != '-');
			if (buf[i] == '\n')
				at = 0;
			else
				at = at * 16 + (uintptr_t)(buf[i] <= '9' ? buf[i] - '0' : buf[i] - 'a' + 10);
		}
	if (fd >= 0)
		t_raw(SYS_close, fd, 0, 0, 0);
	return n;
}

static inline void *t_ends(void *arg)
{
	return arg;
}

/* What begins by the program's first request or thread, and stays: the C library's heap, a thread of TSan's. */
static inline void t_begin(void)
{
	pthread_t thread;

	free(malloc(1));
#ifdef __SANITIZE_THREAD__
	if (pthread_create(&thread, NULL, t_ends, NULL) == 0)
		pthread_join(thread, NULL);
#else
	(void)thread, (void)t_ends;
#endif
}

static inline void t_look(struct t_left *l)
{
	memset(l, 0, sizeof *l);
	t_raw(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)&l->mask, 8);
	t_numbers("/proc/self/fd", t_descriptor, l);
	t_numbers("/proc/self/task", t_thread, l);
	l->mappings = t_mappings();
}

/* A thread that was joined is seen for a moment more; one of the library's may just read a file. */
static inline void t_look_again(struct t_left *l, const struct t_left *before)
{
	struct timespec moment = { 0, 5000000 };

	for (int i = 0; i < 2000; i++) {
		uint64_t changed = 0;

		t_look(l);
		for (int k = 0; k < T_DESCRIPTORS / 64; k++)
			changed |= t_changed(before, l, k);
		if (l->threads <= before->threads && !changed)
			return;
		t_raw(SYS_nanosleep, (long)&moment, 0, 0, 0);
	}
}

/* Fail for what `after` has and `before` has not, or the reverse. */
static inline void t_compare(const struct t_left *before, const struct t_left *after)
{
	if (before->mask != after->mask)
		t_fail("the test", 0, "leaves the signal mask %#llx, which was %#llx", (unsigned long long)after->mask,
		       (unsigned long long)before->mask);
	for (int n = 0; n < T_DESCRIPTORS; n++) {
		uint64_t bit = UINT64_C(1) << n % 64;

		if (t_changed(before, after, n / 64) & bit)
			t_fail("the test", 0, "leaves descriptor %d %s", n,
			       after->open[n / 64] & bit ? "open" : "closed");
	}
	if (after->threads != before->threads)
		t_fail("the test", 0, "leaves %d threads, which were %d", after->threads, before->threads);
	for (int i = 0; i < T_NAMES; i++)
		if (after->own[i] > 1)
			t_fail("the test", 0, "leaves %d threads of the name %.20s", after->own[i], t_names[i]);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* which map memory as they go */
	if (after->mappings > before->mappings + T_ANY + t_stay)
		t_fail("the test", 0, "leaves %d mappings, which were %d, with %d to stay", after->mappings,
		       before->mappings, T_ANY + t_stay);
#endif
}

#endif
