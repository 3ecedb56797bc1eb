/*
 * Sharing idle cores. The processes of one user tell each other of themselves in a file of /dev/shm, where each has a
 * slot. The file is read and written under flock(2), and not mapped, so that bad contents or a truncation can mislead
 * the helpers but do no other harm. No descriptor stays open between posts, so after a fork, or if the file was
 * removed, the next post begins anew. A post takes 15 to 40 us of the helper's time, once in HP_SHARE_PERIOD
 * operations.
 *
 * All processes of a user compute the same ranking, since they read the same slots; for one period after a change a
 * core may have two helpers, or none. The usable cores are the union of all masks in the slots. A slot's mask has the
 * cores of the helper and of its process's main thread, since programs are bound to cores of their own. Partly
 * overlapping masks are not treated specially.
 *
 * Each PID namespace has a file of its own, because a process cannot tell whether processes of another namespace live.
 * A file of another kind or version is left alone.
 */
#include "reg/share.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <sched.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/base.h"
#include "base/proc.h"
#include "base/sys.h"

/* SLICE_NS: a time slice of Linux's fair scheduler with eight processors or more (EEVDF: 0.7 ms * (1 + log2 8); 3 ms
 * before). SWITCH_NS: the time of a switch between threads. */
#define SLICE_NS UINT64_C(3000000)
#define SWITCH_NS UINT64_C(5000)

enum { CPU_WORDS = 16, SLOTS_AT_ONCE = 16, LEAVE_TRIES = 100 };

/* The contents of the file: a header, then slots. A slot of owner 0 is free. */
struct header {
	uint64_t magic;
	uint32_t version, slot_size;
};

struct slot {
	/* the process's start in ticks since boot, and its PID: together never those of another process */
	uint64_t owner;
	struct hp_share_entry entry;
	uint64_t cpus[CPU_WORDS];
};

enum { PID_BITS = 22 };
static const struct header expected = { UINT64_C(0x65726168736e7068), 1, sizeof(struct slot) }; /* "hpnshare" */

const char *hp_share_directory = "/dev/shm";

/* This process. Only the helper's thread uses this. */
static struct {
	int pid; /* the process that the other members are about */
	uint64_t owner, tie, namespace;
	bool joined;
	size_t next_check; /* the slot whose owner's life is checked at the next post */
} self;

struct hp_share_verdict hp_share_decide(const struct hp_share_entry *processes, size_t n, size_t me, unsigned idle,
					enum hp_share_policy policy)
{
	const struct hp_share_entry *own = &processes[me];
	size_t before = 0;

	if (policy == HP_SHARE_OFF)
		return (struct hp_share_verdict){ .may_help = false };
	if (n == 1)
		return (struct hp_share_verdict){ .may_help = true, .sharers = 1 };
	if (policy == HP_SHARE_AGGRESSIVE) {
		size_t cores = HP_MAX(idle, 1u);

		return (struct hp_share_verdict){ .may_help = true, .sharers = (uint32_t)((n + cores - 1) / cores) };
	}

	/* CONSERVATIVE: the processes that come before this one get the idle cores first. */
	for (size_t i = 0; i < n; i++) {
		const struct hp_share_entry *p = &processes[i];

		if (p->bytes != own->bytes)
			before += p->bytes > own->bytes;
		else if (p->tie != own->tie)
			before += p->tie < own->tie;
		else
			before += i < me;
	}
	return (struct hp_share_verdict){ .may_help = before < idle, .sharers = before < idle };
}

uint64_t hp_share_lead_ns(uint32_t sharers)
{
	return sharers > 1 ? sharers * (SLICE_NS + SWITCH_NS) : 0;
}

uint64_t hp_share_cost_ns(uint32_t sharers, uint64_t cost_ns)
{
	uint64_t rounds = cost_ns / SLICE_NS;

	return sharers > 1 ? cost_ns + rounds * (sharers - 1) * (SLICE_NS + SWITCH_NS) : cost_ns;
}

/* ------------------------------------------------------------------ who lives */

/* The number for `slot.owner` of process pid. 0: the process does not exist, or has ended; 1: unknown. */
static uint64_t process_owner(int pid)
{
	char path[32], stat[1024];
	const char *state, *started;
	struct hp_line l = { path, path + sizeof path };
	long n;

	hp_line_text(&l, "/proc/");
	hp_line_number(&l, (uint64_t)pid, 10);
	hp_line_text(&l, "/stat");
	n = hp_read_file(path, stat, sizeof stat);
	if (n == -ENOENT || n == -ESRCH)
		return 0;
	state = n > 0 ? hp_stat_field(stat, 3) : NULL;
	if (!state)
		return 1;
	if (*state == 'Z' || *state == 'X')
		return 0;
	started = hp_stat_field(stat, 22);
	return *started ? hp_number_after(started, "", 0) << PID_BITS | (uint64_t)pid : 1;
}

static bool owner_lives(uint64_t owner)
{
	uint64_t now = process_owner((int)(owner & ((1 << PID_BITS) - 1)));

	return now == owner || now == 1;
}

static int know_self(void)
{
	int pid = hp_pid();
	struct statx ns;

	if (self.pid == pid)
		return 0;
	self.joined = false;
	self.owner = process_owner(pid);
	if (self.owner < 2 || hp_sys(SYS_statx, AT_FDCWD, "/proc/self/ns/pid", 0, STATX_INO, &ns) != 0)
		return -ENOENT;
	self.namespace = ns.stx_ino;
	if (hp_sys(SYS_getrandom, &self.tie, sizeof self.tie) != sizeof self.tie)
		self.tie = self.owner * UINT64_C(0x9e3779b97f4a7c15);
	self.next_check = 0;
	self.pid = pid;
	return 0;
}

/* ------------------------------------------------------------------ the file */

static void slots_path(char *path, size_t size)
{
	struct hp_line l = { path, path + size };

	hp_line_text(&l, hp_share_directory);
	hp_line_text(&l, "/hugepin-helpers.");
	hp_line_number(&l, (uint64_t)hp_sys(SYS_geteuid), 10);
	hp_line_text(&l, ".");
	hp_line_number(&l, self.namespace, 10);
}

/* Unlock explicitly, because a child of fork may also have the descriptor, so that close() alone would keep the
 * lock. */
static void close_slots(int fd)
{
	hp_sys(SYS_flock, fd, LOCK_UN);
	hp_sys(SYS_close, fd);
}

static int check_slots(int fd)
{
	struct header h;
	struct statx s;
	long n;

	n = hp_sys(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &s);
	if (n)
		return (int)n;
	if ((s.stx_mode & S_IFMT) != S_IFREG || s.stx_uid != (uint32_t)hp_sys(SYS_geteuid) || s.stx_mode & 077 ||
	    s.stx_nlink > 1)
		return -EPERM;
	if (!s.stx_nlink)
		return -EAGAIN; /* the last process to leave has just removed the file */
	if (!s.stx_size) {
		n = hp_sys(SYS_pwrite64, fd, &expected, sizeof expected);
		return n == sizeof expected ? 0 : n < 0 ? (int)n : -ENOSPC;
	}
	n = hp_sys(SYS_pread64, fd, &h, sizeof h);
	return n == sizeof h && memcmp(&h, &expected, sizeof h) == 0 ? 0 : -EPROTO;
}

/* A descriptor of the file, locked; or -errno. */
static int open_slots(int flags)
{
	char path[256];
	int fd, err;

	slots_path(path, sizeof path);
	fd = (int)hp_sys(SYS_openat, AT_FDCWD, path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0600);
	if (fd < 0)
		return fd;
	err = (int)hp_sys(SYS_flock, fd, LOCK_EX | LOCK_NB);
	if (err) { /* EAGAIN: another process has the lock */
		hp_sys(SYS_close, fd);
		return err;
	}
	err = check_slots(fd);
	if (err < 0) {
		close_slots(fd);
		return err;
	}
	return fd;
}

static int write_slot(int fd, size_t i, const struct slot *s)
{
	long n = hp_sys(SYS_pwrite64, fd, s, sizeof *s, sizeof expected + i * sizeof *s);

	return n == sizeof *s ? 0 : n < 0 ? (int)n : -ENOSPC;
}

/* The result of reading all slots. */
struct survey {
	size_t own, free; /* slot numbers; HP_SHARE_MAX: none */
	size_t slots; /* slots in the file */
	size_t others;
	uint64_t cpus[CPU_WORDS]; /* processors of the others, added to the earlier contents */
};
/* the other processes, in the order of slots; used by the helper's thread only */
static struct hp_share_entry seen[HP_SHARE_MAX];

/* Read all slots, and empty those whose owner has ended. check_all: check every owner, not just the next one in
 * turn. */
static void read_slots(int fd, bool check_all, struct survey *v)
{
	static const struct slot empty;
	struct slot some[SLOTS_AT_ONCE];

	v->own = v->free = HP_SHARE_MAX;
	v->slots = v->others = 0;
	for (bool more = true; more && v->slots < HP_SHARE_MAX;) {
		long n = hp_sys(SYS_pread64, fd, some, sizeof some, sizeof expected + v->slots * sizeof *some);
		size_t count = n > 0 ? (size_t)n / sizeof *some : 0;

		more = count == SLOTS_AT_ONCE;
		for (size_t k = 0; k < count; k++, v->slots++) {
			const struct slot *s = &some[k];
			bool gone = s->owner && s->owner != self.owner && (check_all || v->slots == self.next_check) &&
				    !owner_lives(s->owner);

			if (gone)
				write_slot(fd, v->slots, &empty);
			if (s->owner == self.owner && v->own == HP_SHARE_MAX) {
				v->own = v->slots;
			} else if (!s->owner || gone || s->owner == self.owner) {
				v->free = HP_MIN(v->free, v->slots);
			} else {
				seen[v->others++] = s->entry;
				for (int w = 0; w < CPU_WORDS; w++)
					v->cpus[w] |= s->cpus[w];
			}
		}
	}
	if (++self.next_check >= v->slots)
		self.next_check = 0;
}

/* The processors on which this thread or the main thread may run. */
static int read_cpus(uint64_t *cpus)
{
	uint64_t main[CPU_WORDS] = { 0 };
	long n;

	n = hp_sys(SYS_sched_getaffinity, 0, sizeof main, cpus);
	if (n < 0)
		return (int)n;
	hp_sys(SYS_sched_getaffinity, self.pid, sizeof main, main); /* this fails if the main thread has ended */
	for (int w = 0; w < CPU_WORDS; w++)
		cpus[w] |= main[w];
	return 0;
}

/* Read the slots of the other processes, write our own, and decide. 0 or -errno, as hp_share_post(). */
static int exchange_slots(uint64_t bytes, enum hp_share_policy policy, struct hp_share_verdict *ret)
{
	struct slot mine = { .entry = { .bytes = bytes } };
	struct survey v = { 0 };
	unsigned cores = 0;
	int fd, err = know_self();

	if (err < 0 || (err = read_cpus(mine.cpus)) < 0)
		return err;
	mine.owner = self.owner;
	mine.entry.tie = self.tie;
	if ((fd = open_slots(O_CREAT)) < 0)
		return fd;
	memcpy(v.cpus, mine.cpus, sizeof v.cpus);
	read_slots(fd, !self.joined, &v);
	if (v.own == HP_SHARE_MAX)
		v.own = HP_MIN(v.free, v.slots);
	err = v.own < HP_SHARE_MAX ? write_slot(fd, v.own, &mine) : -ENOSPC;
	close_slots(fd);
	if (err < 0)
		return err;

	self.joined = true;
	seen[v.others] = mine.entry;
	for (int w = 0; w < CPU_WORDS; w++)
		for (uint64_t cpus = v.cpus[w]; cpus; cpus &= cpus - 1)
			cores++;
	*ret = hp_share_decide(seen, v.others + 1, v.others, cores - HP_MIN(cores, (unsigned)v.others + 1), policy);
	return 0;
}

int hp_share_post(uint64_t bytes, enum hp_share_policy policy, struct hp_share_verdict *ret)
{
	struct hp_share_entry alone = { .bytes = bytes };
	int err = 0;

	if (policy == HP_SHARE_OFF || ((err = exchange_slots(bytes, policy, ret)) < 0 && err != -EAGAIN))
		*ret = hp_share_decide(&alone, 1, 0, 0, policy);
	return err;
}

void hp_share_leave(void)
{
	static const struct slot empty;
	struct survey v = { 0 };
	int fd = -EAGAIN;
	char path[256];

	if (!self.joined || self.pid != hp_pid())
		return;
	for (int i = 0; i < LEAVE_TRIES && (fd = open_slots(0)) == -EAGAIN; i++)
		hp_sys(SYS_sched_yield);
	if (fd >= 0) {
		read_slots(fd, true, &v);
		if (v.own < HP_SHARE_MAX)
			write_slot(fd, v.own, &empty);
		slots_path(path, sizeof path);
		if (!v.others)
			hp_sys(SYS_unlinkat, AT_FDCWD, path);
		close_slots(fd);
	}
	self.joined = false;
}
