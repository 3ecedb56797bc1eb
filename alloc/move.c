/*
 * See move.h.
 *
 * A write to a page between its copy and its move would be lost, so nobody may write then:
 * - This process's threads. The process must have one thread only, as the kernel confirms, and this thread has
 *   signals blocked.
 * - Devices that have pinned the page, and the kernel on a device's behalf. The kernel does not list pins, but a fork
 *   shows them, because it copies pinned pages and shares the others. So we fork a child on trial, which looks which of
 *   its pages are shared, and ends. A page that the program keeps out of children may be pinned, so it does not move.
 *   Between the trial and the move no page can become pinned, since pinning takes a thread of this process.
 * - The kernel, for operations that the thread began earlier without a pin. These are asynchronous I/O and io_uring:
 *   NFS, and FUSE before Linux 6.14, read into unpinned pages, and a ring receives when the thread enters the kernel.
 *   Devices that look up pages by themselves (RDMA on demand) write without a pin, too. A process that has any of
 *   these open does not move at all.
 *
 * Writes by another process in this moment (process_vm_writev(2), ptrace(2), /proc/PID/mem) may be lost.
 *
 * Other memory would not inherit what the kernel keeps about the old memory. So pages with any of these do not move:
 * advice, protection, seals, userfaultfds and protection keys of the program; locks; a binding to nodes, if there are
 * several nodes. An mlock(2) of pages of the pool leaves no trace in the kernel, so a lock by a program without the
 * drop-in is lost.
 *
 * A page that a trial found pinned stays for good (page.stays), so that later forks do not try in vain.
 */
#include "alloc/move.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/copy.h"
#include "base/bits.h"
#include "base/config.h"
#include "base/pagescan.h"
#include "base/smaps.h"
#include "base/stats.h"
#include "base/sys.h"
#include "base/thread.h"

/* Whether page p may move. Only pages that may move are copied. */
static bool may_move(size_t p)
{
	const struct hp_page *g = &hp_span.page[p];

	return g->state == HP_PAGE_READY && g->kind == HUGEPIN_KIND_HUGETLB && !g->giant && !g->stays && !g->leaves &&
	       !hp_copy_is_early(p);
}

static enum hp_page_fork mark_moving(size_t p)
{
	return may_move(p) ? HP_PAGE_COPIED : HP_PAGE_SHARED;
}

/* Whether any page is advised or held, in which case no page moves. A program that advises memory may also do so by
 * calls that nobody sees, and a holder relies on the memory of its pages. */
static bool any_advised_or_held(void)
{
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++)
		if (hp_span.page[p].advised || hp_page_held(&hp_span.page[p]))
			return true;
	return false;
}

/* ------------------------------------------------------------------ what the kernel is asked */

/* Whether direct I/O to a program's own anonymous memory pins the pages, as it does since Linux 6.7, except on the file
 * systems named above. PAGEMAP_SCAN came in the same release, so a kernel that has this call pins. */
static bool kernel_pins(void)
{
	static enum { UNKNOWN, NO, YES } known;
	struct hp_pagescan none = { .size = 0 };
	int fd;

	if (known == UNKNOWN) {
		fd = (int)hp_sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return false;
		known = hp_sys(SYS_ioctl, fd, HP_PAGESCAN, &none) == -ENOTTY ? NO : YES;
		hp_sys(SYS_close, fd);
	}
	return known == YES;
}

/* Whether all memory comes from one node. */
static bool is_one_node(void)
{
	enum { NODES = 1024, BITS = 64 };
	uint64_t mask[NODES / BITS] = { 0 };
	unsigned nodes = 0;
	long err;

	err = hp_sys(SYS_get_mempolicy, NULL, mask, NODES + 1, NULL, MPOL_F_MEMS_ALLOWED);
	if (err)
		return err == -ENOSYS;
	for (int i = 0; i < NODES / BITS; i++)
		for (uint64_t m = mask[i]; m; m &= m - 1)
			nodes++;
	return nodes == 1;
}

static bool read_link(int dir, const char *name, char *text, size_t size)
{
	long n = hp_sys(SYS_readlinkat, dir, name, text, size - 1);

	if (n < 0)
		return false;
	text[n] = 0;
	return true;
}

/* False if the process has called unshare(CLONE_NEWPID), because its next child would be the first process of a new
 * namespace, which would end with our trial. */
static bool is_own_namespace(void)
{
	char own[64], next[64];

	return read_link(AT_FDCWD, "/proc/self/ns/pid", own, sizeof own) &&
	       read_link(AT_FDCWD, "/proc/self/ns/pid_for_children", next, sizeof next) && !strcmp(own, next);
}

/* Whether the task has a ring whose only descriptor is the one registered with the task. */
static bool has_registered_ring(void)
{
	enum { RINGS = 16, REGISTERED = 1 << 4 };

	for (long i = 0; i < RINGS; i++) {
		long r = hp_sys(SYS_io_uring_enter, i, 0, 0, REGISTERED);

		if (r != -EBADF && r != -EINVAL && r != -ENOSYS)
			return true;
	}
	return false;
}

/* Whether an open file of this path may write to memory without a pin. */
static bool may_write(const char *path)
{
	static const char *const harmless[] = { "null", "zero", "full", "random", "urandom", "tty", "pts/", "ptmx",
						"console", "shm/", "mqueue/", "hugepages/" };

	if (strstr(path, "[io_uring]"))
		return true;
	if (strncmp(path, "/dev/", 5) != 0)
		return false;
	for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
		if (!strncmp(path + 5, harmless[i], strlen(harmless[i])))
			return false;
	return true;
}

static bool has_open_writer(void)
{
	static _Alignas(struct dirent64) char list[4096]; /* protected by hp_heap_lock */
	int fd = (int)hp_sys(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char path[64];
	bool found = fd < 0;
	long n = 0;

	while (!found && (n = hp_sys(SYS_getdents64, fd, list, sizeof list)) > 0)
		for (long at = 0; at < n && !found;) {
			const struct dirent64 *d = (const struct dirent64 *)(list + at);

			found = read_link(fd, d->d_name, path, sizeof path) && may_write(path);
			at += d->d_reclen;
		}
	if (fd >= 0)
		hp_sys(SYS_close, fd);
	return found || n < 0;
}

struct look {
	bool any, special;
};

static void look_at(void *look, const struct hp_smaps *m)
{
	const unsigned plain = HP_SMAPS_READ | HP_SMAPS_WRITE;
	const unsigned special = HP_SMAPS_DONTDUMP | HP_SMAPS_EXEC | HP_SMAPS_KEY | HP_SMAPS_SEALED;
	struct look *l = look;
	uintptr_t end = HP_MIN(m->end, hp_page_addr(hp_span.end[HP_PART_HEAP]));

	l->any = true;
	/* A userfaultfd may report the trial's fork to its reader. */
	l->special |= (m->flags & (HP_SMAPS_LOCKED | HP_SMAPS_IO | HP_SMAPS_UFFD)) != 0;
	if ((m->flags & plain) == plain && !(m->flags & special))
		return;
	for (uintptr_t a = HP_MAX(m->start, hp_page_addr(1)); a < end; a += HP_PAGE)
		l->special |= may_move((a - hp_span.base) >> HP_PAGE_SHIFT);
}

/* Whether the kernel keeps a property of our pages that other memory would lack. The trial finds DONTFORK. */
static bool is_special(void)
{
	static char text[8192]; /* protected by hp_heap_lock */
	struct look l = { .any = false };

	hp_smaps_each(text, sizeof text, look_at, &l);
	return l.special || !l.any;
}

/* Whether the running thread's stack lies in the heap. If so, there is no trial, because its child would write to the
 * stack and thus to a page of the pool. */
static bool runs_on_heap(void)
{
	return (uintptr_t)__builtin_frame_address(0) - hp_span.base < hp_span.size;
}

/* ------------------------------------------------------------------ the trial */

/* In the child: note the marked pages that the child shares with its parent, because a shared page is not pinned. The
 * child's other writes stay private. */
static bool find_shared(uint64_t *shared)
{
	int fd = (int)hp_sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	bool ok = fd >= 0;
	uint64_t entry;

	for (size_t p = 1; ok && p < hp_span.end[HP_PART_HEAP]; p++) {
		if (!hp_copy_is_marked(p))
			continue;
		ok = hp_sys(SYS_pread64, fd, &entry, sizeof entry, hp_page_addr(p) / hp_base_page * sizeof entry) ==
		     sizeof entry;
		if (ok && (entry & HP_PAGEMAP_PRESENT) && !(entry & HP_PAGEMAP_EXCLUSIVE))
			hp_bit_set(shared, p);
	}
	/* the parent shares its table of files (CLONE_FILES), because the end of a private one would flush all files */
	if (fd >= 0)
		hp_sys(SYS_close, fd);
	return ok;
}

/* Run the child. No signal reports its end, no wait of the program's finds it, and no debugger follows it. */
static bool make_trial(uint64_t *shared)
{
	long pid = hp_sys(SYS_clone, CLONE_VFORK | CLONE_FILES | CLONE_UNTRACED), r;
	int status = -1;

	while (pid == 0)
		hp_sys(SYS_exit, find_shared(shared) ? 0 : 1);
	if (pid < 0)
		return false;
	do
		r = hp_sys(SYS_wait4, pid, &status, __WALL);
	while (r == -EINTR);
	return r == pid && status == 0;
}

/* Unmark the pages that may be pinned, which stay for good if the trial says so. Returns the number of pages that are
 * still marked. */
static size_t leave_unpinned(void)
{
	size_t size = hp_span.end[HP_PART_HEAP] / 8 + 8, left = 0;
	long map = hp_sys(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
	uint64_t *shared = (uint64_t *)map;
	bool ok = !hp_sys_failed(map) && make_trial(shared);

	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++) {
		struct hp_page *g = &hp_span.page[p];

		if (!hp_copy_is_marked(p))
			continue;
		if (ok && hp_bit(shared, p)) {
			left++;
		} else {
			g->fork = HP_PAGE_SHARED;
			g->stays = ok; /* a trial that could not be made tells nothing */
		}
	}
	if (!hp_sys_failed(map))
		hp_sys(SYS_munmap, shared, size);
	return left;
}

/* ------------------------------------------------------------------ the move */

static int count_run(void *runs, size_t first, size_t end)
{
	(void)first, (void)end;
	(*(size_t *)runs)++;
	return 0;
}

/* Moving a run may split its mapping in three. */
static bool mappings_allow(void)
{
	size_t runs = 0;

	hp_copy_runs(hp_copy_is_marked, count_run, &runs);
	return hp_span.heads + 2 * runs <= hp_span.heads_max;
}

static bool is_there(size_t p)
{
	return hp_sys(SYS_mprotect, hp_page_addr(p), HP_PAGE, PROT_READ | PROT_WRITE) == 0;
}

static int move_run(void *moved, size_t first, size_t end)
{
	size_t to = hp_copy_put(first, end);

	hp_pages_moved(first, to);
	*(size_t *)moved += to - first;
	if (to == end)
		return 0;
	/* the kernel has left a hole: the only known reason is a shortage that would end any process */
	if (!is_there(to))
		hp_die("a fork has lost memory of the heap", NULL, SIZE_MAX);
	return -1;
}

bool hp_move_wanted(void)
{
	bool any;

	if (!HP_THREAD_BARE || hp_config.fork_mode != HP_FORK_COPY ||
	    HP_STAT(hugetlb_bytes) == HP_STAT(reserved_bytes) || any_advised_or_held() || runs_on_heap())
		return false;
	any = hp_copy_mark(mark_moving, false) > 0;
	hp_copy_unmark();
	/* A filter of system calls may end the process for a call that the filter does not know. */
	return any && hp_sys(SYS_prctl, PR_GET_SECCOMP) == 0 && kernel_pins();
}

/* Whether memory has room for the copy, and for as much again, because parent or child may later write to all of it.
 * Unlike pages of the pool, these are charged to a memory cgroup. */
static bool move_fits(size_t pages)
{
	return hp_copy_room(pages) >= 2 * ((uint64_t)pages << HP_PAGE_SHIFT) + HP_COPY_MARGIN;
}

size_t hp_move(void)
{
	size_t pages, moved = 0;

	if (!hp_move_wanted() || !hp_thread_alone() || !is_own_namespace() || !is_one_node() || has_registered_ring() ||
	    has_open_writer() || is_special())
		return 0;
	hp_copy_drop(); /* the program may have locked memory kept from an earlier copy */
	pages = hp_copy_mark(mark_moving, false);
	if (move_fits(pages) && mappings_allow()) {
		pages = leave_unpinned();
		if (pages && mappings_allow() && hp_copy_map(pages)) {
			if (hp_copy_fill(false, false))
				hp_copy_runs(hp_copy_is_marked, move_run, &moved);
			hp_copy_drop();
		}
	}
	hp_copy_unmark();
	return moved;
}
