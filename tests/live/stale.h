/*
 * Ways in which memory goes away under a registration, and a real device that shows whether a key is stale: io_uring
 * with fixed buffers must write to the memory that the program reads. Each case is a process of its own, since some
 * damage the heap. What those do to heap buffers is an error of the program, but it must be a miss nevertheless.
 */
#ifndef TESTS_LIVE_STALE_H
#define TESTS_LIVE_STALE_H

#include "live.h"
#include "watched.h"

#include <dlfcn.h>
#include <liburing.h>
#include <sys/ipc.h>
#include <sys/shm.h>

#include "hugepin_uring.h"
#include "tests/call.h"
#include "tests/ring.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

enum { SIZE = 4 << 20, HALF = SIZE / 2 };

static struct io_uring ring;
static hugepin_domain *domain;
static int file = -1;

/* ------------------------------------------------------------------ the device */

/* Give the file new contents, have the device read it into [p, p + len) by the pin's index, and return whether the
 * program sees them. */
static inline bool device_reaches(char *p, size_t len, unsigned access)
{
	static unsigned char tag;
	struct hugepin_pin pin;
	struct io_uring_sqe *sqe;
	char *text = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool same;
	int e;

	memset(text, ++tag, len);
	if (pwrite(file, text, len, 0) != (ssize_t)len)
		return T_FAIL("cannot write the file");
	e = hugepin_pin(domain, p, len, access, &pin);
	munmap(text, e ? len : 0);
	if (e == -EINVAL && len == SIZE) { /* before Linux 6.5 io_uring refuses a buffer in mappings of two files */
		same = device_reaches(p, HALF, access);
		return device_reaches(p + HALF, HALF, access) && same;
	}
	if (e == -EOPNOTSUPP) /* nor does it accept System V shared memory */
		_exit(78);
	if (e || pin.len != len)
		return T_FAIL("pin: %d", e);
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_read_fixed(sqe, file, p, (unsigned)len, 0, (int)pin.lkey);
	io_uring_submit_and_wait(&ring, 1);
	e = ring_result(&ring);
	EXPECT_EQ(hugepin_unpin(domain, &pin), 0);
	same = e == (int)len && memcmp(p, text, len) == 0;
	munmap(text, len);
	if (e != (int)len)
		T_FAIL("the read returned %d", e);
	else if (!same)
		T_FAIL("the device wrote elsewhere");
	return same;
}

/* ------------------------------------------------------------------ memory */

enum source { FOREIGN, HEAP, SHM, BREAK, MEMFD };

static int shm_id, memfd;

static inline char *obtain(enum source s)
{
	switch (s) {
	case HEAP:
		return hugepin_aligned_alloc(PAGE, SIZE);
	case SHM:
		shm_id = shmget(IPC_PRIVATE, SIZE, 0600);
		return shmat(shm_id, NULL, 0);
	case BREAK:
		sbrk((intptr_t)(4096 - ((uintptr_t)sbrk(0) & 4095)));
		return sbrk(SIZE);
	case MEMFD:
		memfd = memfd_create("test", MFD_CLOEXEC);
		return ftruncate(memfd, SIZE) ? MAP_FAILED : mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	default:
		return mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
}

static inline void map_again(char *p, size_t len)
{
	if (mmap(p, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != p)
		T_FAIL("cannot map at the same place: %s", strerror(errno));
}

/* ------------------------------------------------------------------ events; on the first half of the memory */

static inline void libc_munmap(char *p)
{
	EXPECT_EQ(munmap(p, HALF), 0);
	map_again(p, HALF);
}

static inline void map_over(char *p)
{
	EXPECT(mmap(p, HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
}

static inline void move_away(char *p)
{
	char *to = mmap(NULL, HALF + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	to += PAGE - (uintptr_t)to % PAGE;
	EXPECT(mremap(p, HALF, HALF, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	map_again(p, HALF);
}

static inline void move_leaving_it_empty(char *p)
{
	if (mremap(p, HALF, HALF, MREMAP_MAYMOVE | MREMAP_DONTUNMAP) == MAP_FAILED)
		map_over(p); /* this call is not possible for this memory */
}

static inline void discard(char *p)
{
	EXPECT_EQ(madvise(p, HALF, MADV_DONTNEED), 0);
}

static inline void free_lazily(char *p)
{
	EXPECT(madvise(p, HALF, MADV_FREE) == 0 || errno == EINVAL); /* MADV_FREE is not possible for hugetlb memory */
}

static inline void discard_locked(char *p)
{
	if (madvise(p, HALF, MADV_DONTNEED_LOCKED) != 0) /* not possible before Linux 5.18 */
		discard(p);
}

static inline void discard_by_process(char *p)
{
	struct iovec v = { p, HALF };
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);

	/* Before Linux 6.13 process_madvise() refuses this advice. */
	if (syscall(SYS_process_madvise, self, &v, 1, MADV_DONTNEED, 0) != HALF)
		discard(p);
	close(self);
}

static inline void raw_munmap(char *p)
{
	EXPECT_EQ(syscall(SYS_munmap, p, HALF), 0);
	map_again(p, HALF);
}

static inline void inline_munmap(char *p)
{
	EXPECT_EQ(t_call(SYS_munmap, (long)p, HALF, 0, 0, 0, 0), 0);
	map_again(p, HALF);
}

/* Other memory is moved to the place of what went unseen. Without MREMAP_FIXED the kernel chooses this place. */
static inline void move_here(char *p)
{
	char *other = mmap(NULL, HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EXPECT_EQ(syscall(SYS_munmap, p, HALF), 0);
	EXPECT(mremap(other, HALF, HALF, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, p) == p);
}

static inline void detach(char *p)
{
	EXPECT_EQ(shmdt(p), 0);
	EXPECT(shmat(shm_id, p, 0) == p);
	EXPECT_EQ(shmdt(p), 0); /* other memory is there now */
	shmctl(shm_id, IPC_RMID, NULL);
	shm_id = shmget(IPC_PRIVATE, SIZE, 0600);
	EXPECT(shmat(shm_id, p, 0) == p);
}

static inline void lower_break(char *p)
{
	EXPECT(sbrk(-HALF) != (void *)-1);
	EXPECT(sbrk(HALF) == p + HALF);
}

/* As malloc of the C library lowers it. */
static inline void lower_break_inside(char *p)
{
	void *(*const inside)(intptr_t) = (void *(*)(intptr_t))dlsym(dlopen("libc.so.6", RTLD_NOW), "sbrk");

	static bool by_brk;

	EXPECT(inside(-HALF) == p + SIZE);
	EXPECT(by_brk ? brk(p + SIZE) == 0 : sbrk(HALF) == p + HALF);
	by_brk = !by_brk;
}

static inline void truncate_file(char *p)
{
	(void)p;
	EXPECT_EQ(ftruncate(memfd, 0), 0);
	EXPECT_EQ(ftruncate(memfd, SIZE), 0);
}

static inline void punch_hole(char *p)
{
	(void)p;
	EXPECT_EQ(fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HALF), 0);
}

/* For the next three ways a userfaultfd gets no event. */
static inline void put_guards(char *p)
{
	if (madvise(p, HALF, 102) || madvise(p, HALF, 103)) /* MADV_GUARD_INSTALL and _REMOVE, of Linux 6.13 */
		discard(p);
}

static inline void attach_over(char *p)
{
	int id = shmget(IPC_PRIVATE, HALF, 0600);

	EXPECT(shmat(id, p, SHM_REMAP) == p);
	shmctl(id, IPC_RMID, NULL);
}

static inline void remap_pages(char *p)
{
	EXPECT_EQ(remap_file_pages(p, HALF, 0, HALF / 4096, 0), 0);
	EXPECT_EQ(remap_file_pages(p, HALF, 0, 0, 0), 0);
	punch_hole(p);
}

/* ------------------------------------------------------------------ cases */

static inline bool watched(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | 1);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* Forbid userfaultfd(2) by a filter, as containers do. */
static inline void forbid_userfaultfd(void)
{
	static const uint16_t call[] = { SYS_userfaultfd };
	struct filter f = { .len = 0 };

	filter_calls(&f, call, 1, FILTER_REFUSES(EPERM));
	EXPECT(filter_install(&f, SECCOMP_RET_ALLOW));
	EXPECT(!watched());
}

static inline void open_all(uint32_t policy)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy };
	int e = io_uring_queue_init(4, &ring, 0);

	if (e)
		_exit(77);
	e = hugepin_uring_open(&ring, 0, 64, &attr, &domain);
	EXPECT_EQ(e, 0);
	file = memfd_create("file", MFD_CLOEXEC);
}

static bool without_userfaultfd; /* userfaultfd is forbidden in the cases that follow */
static bool without_features __attribute__((unused)); /* the kernel has it without the events */
static uint64_t uncached_at_least; /* at least so many pins must have been registered for themselves alone */

/* Run a case in a process of its own, under a policy. */
static inline void in_child(uint32_t policy, enum source s, void (*event)(char *p), unsigned access)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct hugepin_domain_stats stats;
		char *p;

		t_failures = 0;
		alarm(t_seconds());
		if (without_userfaultfd)
			forbid_userfaultfd();
		if (without_features)
			refuse_features();
		open_all(policy);
		p = obtain(s);
		EXPECT(p != MAP_FAILED && p != NULL);
		/* Three times: from the second time on, the present memory was registered after an event. */
		for (int i = 0; i < 3 && !t_failures; i++) {
			EXPECT(device_reaches(p, SIZE, access));
			event(p);
		}
		EXPECT(device_reaches(p, SIZE, access));
		EXPECT(hugepin_domain_stats(domain, &stats, sizeof stats) > 0 && stats.uncached >= uncached_at_least);
		if (s == SHM)
			shmctl(shm_id, IPC_RMID, NULL);
		_exit(t_failures ? 1 : 0);
	}
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		SKIP("no io_uring");
	if (WIFEXITED(status) && WEXITSTATUS(status) == 78)
		SKIP("this kernel's rings do not take that memory");
	if (status)
		T_FAIL("policy %u: status %#x", policy, (unsigned)status);
}

#define CASE(fact, source, event, access)                                                                              \
	TEST(fact)                                                                                                     \
	{                                                                                                              \
		if (!watched() && !without_userfaultfd && !((access)&HUGEPIN_PIN_UNCACHED))                            \
			SKIP("no userfaultfd");                                                                        \
		in_child(HUGEPIN_POLICY_ARENA, source, event, access);                                                 \
		in_child(HUGEPIN_POLICY_LRU, source, event, access);                                                   \
	}

#endif
