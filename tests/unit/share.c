/*
 * Helpers that share cores: the decision by itself, simulated helpers in virtual time, and real processes that tell each other.
 */
#include "reg/share.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/rnd.h"
#include "tests/t.h"

/* ------------------------------------------------------------------ the decision */

TEST(off_is_off)
{
	struct hp_share_entry p[2] = { { 1, 1 }, { 2, 2 } };

	EXPECT(!hp_share_decide(p, 2, 1, 10, HP_SHARE_OFF).may_help);
	EXPECT(!hp_share_decide(p, 1, 0, 10, HP_SHARE_OFF).may_help);
}

TEST(a_process_alone_has_its_helper_on_any_number_of_cores)
{
	struct hp_share_entry p = { 0, 0 };

	for (unsigned idle = 0; idle < 3; idle++) {
		struct hp_share_verdict a = hp_share_decide(&p, 1, 0, idle, HP_SHARE_CONSERVATIVE);
		struct hp_share_verdict b = hp_share_decide(&p, 1, 0, idle, HP_SHARE_AGGRESSIVE);

		EXPECT(a.may_help && a.sharers == 1);
		EXPECT(b.may_help && b.sharers == 1);
	}
	EXPECT_EQ(hp_share_lead_ns(1), 0);
}

TEST(conservative_helps_exactly_the_largest)
{
	struct hp_share_entry p[40];

	for (int round = 0; round < 500; round++) {
		size_t n = 2 + rnd(39), helped = 0;
		unsigned idle = (unsigned)rnd(45);
		uint64_t least = UINT64_MAX, most_left = 0;

		for (size_t i = 0; i < n; i++) /* with equals */
			p[i] = (struct hp_share_entry){ rnd(round % 2 ? 5 : 1000), rnd(round % 3 ? 1 << 30 : 3) };
		for (size_t i = 0; i < n; i++) {
			struct hp_share_verdict v = hp_share_decide(p, n, i, idle, HP_SHARE_CONSERVATIVE);

			helped += v.may_help;
			EXPECT_EQ(v.sharers, v.may_help);
			if (v.may_help && p[i].bytes < least)
				least = p[i].bytes;
			if (!v.may_help && p[i].bytes > most_left)
				most_left = p[i].bytes;
		}
		EXPECT_EQ(helped, idle < n ? idle : n);
		EXPECT(most_left <= least);
	}
}

TEST(of_equals_the_tie_decides_and_not_the_place)
{
	struct hp_share_entry p[3] = { { 7, 30 }, { 7, 10 }, { 7, 20 } }, q[3] = { { 7, 10 }, { 7, 20 }, { 7, 30 } };

	EXPECT(!hp_share_decide(p, 3, 0, 1, HP_SHARE_CONSERVATIVE).may_help);
	EXPECT(hp_share_decide(p, 3, 1, 1, HP_SHARE_CONSERVATIVE).may_help);
	EXPECT(hp_share_decide(q, 3, 0, 1, HP_SHARE_CONSERVATIVE).may_help);
	EXPECT(hp_share_decide(p, 3, 2, 2, HP_SHARE_CONSERVATIVE).may_help);
}

TEST(aggressive_helps_all_and_divides_the_cores)
{
	struct hp_share_entry p[6] = { { 0, 0 } };
	static const struct {
		size_t n;
		unsigned idle, sharers;
	} of[] = { { 6, 2, 3 }, { 5, 2, 3 }, { 6, 6, 1 }, { 6, 50, 1 }, { 6, 1, 6 }, { 6, 0, 6 }, { 2, 1, 2 } };

	for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
		struct hp_share_verdict v = hp_share_decide(p, of[i].n, of[i].n - 1, of[i].idle, HP_SHARE_AGGRESSIVE);

		EXPECT(v.may_help);
		EXPECT_EQ(v.sharers, of[i].sharers);
	}
}

/* ------------------------------------------------------------------ helpers in virtual time */

/* Each process uses its regions in turn, for ever, and its helper knows when: what it does not know is when it will have the
 * core. A stand-in for a plan, with its two conditions: registering begins when it would else be late, behind the registrations
 * that come before; and what is deregistered must be back in time. */
enum { PROCESSES = 6, REGIONS_MAX = 4, SLICE_US = 3000 };

struct load {
	int regions;
	int64_t period_us, cost_us; /* to register; to deregister: 0.4 of it */
	int64_t phase_us; /* from one process to the next */
};

struct process {
	struct {
		bool registered;
		int64_t next_use;
	} region[REGIONS_MAX];
	int job; /* of its helper: a region, or -1 */
	bool registering;
	int64_t left_us;
	int64_t misses, deregistered;
};

static int64_t scaled(int64_t us, unsigned sharers)
{
	return (int64_t)(hp_share_cost_ns(sharers, (uint64_t)us * 1000) / 1000);
}

/* When the first registration has to begin, if `extra` is deregistered, too; and of which. */
static int64_t latest_begin(const struct process *p, const struct load *l, unsigned sharers, int extra, int *ret_first)
{
	int64_t begin = INT64_MAX, last = INT64_MAX;
	bool done[REGIONS_MAX] = { false };

	for (;;) { /* from the last use to the first */
		int next = -1;

		for (int r = 0; r < l->regions; r++)
			if (!done[r] && (!p->region[r].registered || r == extra) &&
			    (next < 0 || p->region[r].next_use > p->region[next].next_use))
				next = r;
		if (next < 0)
			return begin;
		done[next] = true;
		last = p->region[next].next_use < begin ? p->region[next].next_use : begin;
		begin = last - scaled(l->cost_us, sharers);
		*ret_first = next;
	}
}

/* What the helper of p does now; false: nothing. */
static bool decide(struct process *p, const struct load *l, unsigned sharers, int64_t lead, int64_t now)
{
	int first = -1;

	if (p->job >= 0)
		return true;
	if (latest_begin(p, l, sharers, -1, &first) - lead <= now) {
		p->job = first;
		p->registering = true;
		p->left_us = l->cost_us;
		return true;
	}
	for (int r = 0; r < l->regions; r++) {
		if (!p->region[r].registered ||
		    latest_begin(p, l, sharers, r, &first) - lead < now + scaled(l->cost_us * 2 / 5, sharers))
			continue;
		p->job = r;
		p->registering = false;
		p->left_us = l->cost_us * 2 / 5;
		return true;
	}
	return false;
}

static void work(struct process *p, int64_t us)
{
	p->left_us -= us;
	if (p->left_us > 0)
		return;
	p->region[p->job].registered = p->registering;
	p->deregistered += !p->registering;
	p->job = -1;
}

/* All helpers on `cores` cores, by turns of a slice. Misses of all. */
static int64_t simulate(const struct load *l, unsigned cores, int64_t lead_us, unsigned sharers, int64_t *ret_deregistered)
{
	enum { TICK_US = 10, TICKS = 60000, SWITCH_US = 5 };
	struct process p[PROCESSES] = { 0 };
	unsigned on[PROCESSES] = { 0 };
	int64_t used[PROCESSES] = { 0 }, misses = 0;

	for (unsigned c = 0; c < cores; c++)
		on[c] = c;
	for (int i = 0; i < PROCESSES; i++) {
		p[i].job = -1;
		for (int r = 0; r < l->regions; r++) {
			p[i].region[r].registered = true;
			p[i].region[r].next_use = l->period_us * (r + l->regions) / l->regions + i * l->phase_us;
		}
	}
	for (int64_t now = 0; now < (int64_t)TICKS * TICK_US; now += TICK_US) {
		for (int i = 0; i < PROCESSES; i++)
			for (int r = 0; r < l->regions; r++) {
				if (p[i].region[r].next_use > now)
					continue;
				p[i].misses += !p[i].region[r].registered;
				p[i].region[r].registered = true;
				p[i].region[r].next_use += l->period_us;
				if (p[i].job == r)
					p[i].job = -1;
			}
		for (unsigned c = 0; c < cores; c++) {
			/* Who has the core keeps it to the end of its slice, if it has something to do. */
			for (unsigned tried = 0; tried < PROCESSES; tried++) {
				if ((used[c] < SLICE_US || tried == PROCESSES - 1) && decide(&p[on[c]], l, sharers, lead_us, now))
					break;
				on[c] = on[c] + cores < PROCESSES ? on[c] + cores : c;
				used[c] = -SWITCH_US;
			}
			if (p[on[c]].job < 0)
				continue;
			work(&p[on[c]], TICK_US);
			used[c] += TICK_US;
		}
	}
	*ret_deregistered = 0;
	for (int i = 0; i < PROCESSES; i++) {
		misses += p[i].misses;
		*ret_deregistered += p[i].deregistered;
	}
	return misses;
}

/* On cores of their own nobody is late; three on a core are, unless they begin as much earlier as is said. */
static void compare(const struct load *l, const char *what)
{
	struct hp_share_entry p[PROCESSES] = { { 0, 0 } };
	struct hp_share_verdict v = hp_share_decide(p, PROCESSES, 0, 2, HP_SHARE_AGGRESSIVE);
	int64_t lead_us = (int64_t)hp_share_lead_ns(v.sharers) / 1000, alone, shared, late, n_alone, n_shared, n_late;

	alone = simulate(l, PROCESSES, 0, 1, &n_alone);
	shared = simulate(l, 2, lead_us, v.sharers, &n_shared);
	late = simulate(l, 2, 0, 1, &n_late);
	t_print("# %s: misses (deregistered) alone %lld (%lld), shared %lld (%lld), shared without lead %lld (%lld)\n", what,
		(long long)alone, (long long)n_alone, (long long)shared, (long long)n_shared, (long long)late,
		(long long)n_late);
	EXPECT_EQ(alone, 0);
	EXPECT_EQ(shared, 0);
	EXPECT(late > 0);
	EXPECT(n_alone > 0);
	EXPECT(n_shared * 2 > n_alone); /* and it is worth something still */
}

TEST(with_the_lead_helpers_that_share_a_core_are_in_time)
{
	compare(&(struct load){ 3, 60000, 600, 0 }, "all at once");
	compare(&(struct load){ 3, 60000, 600, 130 }, "one after another");
	compare(&(struct load){ 1, 50000, 2900, 0 }, "nearly a slice each");
	compare(&(struct load){ 2, 120000, 900, 300 }, "now and then");
}

TEST(work_of_more_than_a_slice_is_in_time_too)
{
	compare(&(struct load){ 1, 150000, 7000, 0 }, "more than two slices");
	compare(&(struct load){ 1, 250000, 16000, 1100 }, "more than five slices");
}

TEST(a_helper_that_cannot_be_in_time_leaves_things_registered)
{
	static const struct load busy = { 1, 9000, 600, 0 }; /* three leads of 9 ms fit in no period */
	int64_t deregistered;

	EXPECT_EQ(simulate(&busy, 2, (int64_t)hp_share_lead_ns(3) / 1000, 3, &deregistered), 0);
	EXPECT_EQ(deregistered, 0);
}

TEST(a_change_of_the_ranking_moves_the_helpers_within_a_period)
{
	enum { N = 6, IDLE = 2 };
	struct hp_share_entry told[N];
	uint64_t bytes[N];
	bool helps[N];
	int operations[N], changed = 0, moves = 0;

	for (int i = 0; i < N; i++) {
		bytes[i] = rnd(100);
		told[i] = (struct hp_share_entry){ 0, rnd(1 << 30) };
		operations[i] = (int)rnd(HP_SHARE_PERIOD);
		helps[i] = false;
	}
	for (int now = 0; now < 20000; now++) {
		if (now % 1000 == 0) {
			bytes[rnd(N)] = rnd(100);
			changed = now;
		}
		for (int i = 0; i < N; i++) {
			if (++operations[i] % HP_SHARE_PERIOD)
				continue;
			bool before = helps[i];

			told[i].bytes = bytes[i];
			helps[i] = hp_share_decide(told, N, (size_t)i, IDLE, HP_SHARE_CONSERVATIVE).may_help;
			moves += helps[i] != before;
		}
		/* Who changed has told it within a period, and the others have read that within the next. */
		if (now < changed + 2 * HP_SHARE_PERIOD)
			continue;
		for (int i = 0; i < N; i++) {
			int larger = 0;

			for (int k = 0; k < N; k++)
				larger += bytes[k] > bytes[i] || (bytes[k] == bytes[i] && told[k].tie < told[i].tie);
			EXPECT_EQ(helps[i], larger < IDLE);
		}
	}
	EXPECT(moves > 4);
}

/* ------------------------------------------------------------------ real processes */

/* As in share.c. */
struct slot {
	uint64_t owner, bytes, tie, cpus[16];
};
enum { HEADER = 16 };

static char directory[64], path[400];

static void rm(void)
{
	char command[100];

	snprintf(command, sizeof command, "rm -rf %s", directory);
	if (system(command) != 0)
		T_FAIL("%s", command);
}

/* A directory of its own for each test, and this process joins. Returns its path's file descriptor. */
static int fresh(void)
{
	struct hp_share_verdict v;
	char command[100];
	FILE *f;
	int fd;

	hp_share_leave();
	strcpy(directory, access("/dev/shm", W_OK) == 0 ? "/dev/shm/hp-test-XXXXXX" : "/tmp/hp-test-XXXXXX");
	if (!EXPECT(mkdtemp(directory) != NULL))
		_exit(2);
	hp_share_directory = directory;
	EXPECT_EQ(hp_share_post(1, HP_SHARE_CONSERVATIVE, &v), 0);
	EXPECT(v.may_help && v.sharers == 1);
	snprintf(command, sizeof command, "echo %s/*", directory);
	f = popen(command, "r");
	if (!f || fscanf(f, "%399s", path) != 1)
		T_FAIL("no file");
	pclose(f);
	fd = open(path, O_RDWR);
	EXPECT(fd >= 0);
	return fd;
}

static struct slot slot(int fd, int i)
{
	struct slot s = { 0 };

	if (pread(fd, &s, sizeof s, HEADER + i * (off_t)sizeof s) != sizeof s)
		s.owner = 0;
	return s;
}

static void set_slot(int fd, int i, struct slot s)
{
	EXPECT_EQ(pwrite(fd, &s, sizeof s, HEADER + i * (off_t)sizeof s), sizeof s);
}

/* A child that posts what it is told, and tells what it was answered. */
struct child {
	pid_t pid;
	int fd;
};
struct answer {
	int error;
	struct hp_share_verdict verdict;
};

#define AGGRESSIVE (UINT64_C(1) << 62) /* a flag in the bytes told */

static void child_run(int fd)
{
	struct answer a = { 0 };
	uint64_t bytes;

	while (read(fd, &bytes, sizeof bytes) == sizeof bytes) {
		if (bytes == UINT64_MAX)
			hp_share_leave();
		else
			a.error = hp_share_post(bytes & ~AGGRESSIVE,
						bytes & AGGRESSIVE ? HP_SHARE_AGGRESSIVE : HP_SHARE_CONSERVATIVE, &a.verdict);
		if (write(fd, &a, sizeof a) != sizeof a)
			break;
	}
	_exit(0);
}

static struct child start(void)
{
	struct child c;
	int pair[2];

	if (!EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0))
		_exit(2);
	c.pid = fork();
	if (!c.pid) {
		close(pair[0]);
		child_run(pair[1]);
	}
	close(pair[1]);
	c.fd = pair[0];
	return c;
}

static struct answer ask(struct child *c, uint64_t bytes)
{
	struct answer a = { .error = -1 };

	if (write(c->fd, &bytes, sizeof bytes) != sizeof bytes || read(c->fd, &a, sizeof a) != sizeof a)
		T_FAIL("a child is gone");
	return a;
}

static void stop(struct child *c)
{
	kill(c->pid, SIGKILL);
	close(c->fd);
	waitpid(c->pid, NULL, 0);
}

/* This process and its children to come may use one CPU each, the same, but say that there are `idle` more than busy ones when
 * four children have joined. Undone by the next. */
static void set_cpus(int fd, unsigned idle)
{
	struct slot s = slot(fd, 0);
	cpu_set_t all, one;
	unsigned cpu = 0;

	sched_getaffinity(0, sizeof all, &all);
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof one, &one);
	memset(s.cpus, 0, sizeof s.cpus);
	for (unsigned i = 0; i < 5 + idle; i++)
		s.cpus[(cpu + i) / 64 % 16] |= UINT64_C(1) << ((cpu + i) % 64);
	set_slot(fd, 0, s);
}

static cpu_set_t cpus_before;

static int fresh_with(struct child *c, unsigned idle)
{
	int fd;

	sched_getaffinity(0, sizeof cpus_before, &cpus_before);
	fd = fresh();
	set_cpus(fd, idle);
	for (int i = 0; i < 4; i++)
		c[i] = start();
	return fd;
}

static void done(struct child *c, int fd)
{
	for (int i = 0; i < 4; i++)
		if (c[i].pid)
			stop(&c[i]);
	sched_setaffinity(0, sizeof cpus_before, &cpus_before);
	close(fd);
	hp_share_leave();
	rm();
}

/* Bit i: child i may help, after all have told what they have. */
static unsigned helpers(struct child *c, const uint64_t *bytes)
{
	unsigned set = 0;

	for (int round = 0; round < 2; round++) {
		set = 0;
		for (int i = 0; i < 4; i++) {
			struct answer a = c[i].pid ? ask(&c[i], bytes[i]) : (struct answer){ 0 };

			EXPECT_EQ(a.error, 0);
			set |= (unsigned)a.verdict.may_help << i;
		}
	}
	return set;
}

TEST(four_processes_agree_on_who_may_help)
{
	struct child c[4];
	int fd = fresh_with(c, 2);
	uint64_t bytes[4] = { 10, 20, 30, 40 };

	EXPECT_EQ(helpers(c, bytes), 0xc);
	bytes[0] = 35;
	EXPECT_EQ(helpers(c, bytes), 0x9);
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(ask(&c[i], bytes[i] | AGGRESSIVE).verdict.sharers, 3); /* 5 processes, 2 cores */
	done(c, fd);
}

TEST(without_an_idle_core_only_a_process_alone_helps)
{
	struct child c[4];
	int fd = fresh_with(c, 0);

	EXPECT_EQ(helpers(c, (uint64_t[]){ 10, 20, 30, 40 }), 0);
	done(c, fd);
}

TEST(who_crashes_makes_room)
{
	struct child c[4];
	int fd = fresh_with(c, 2);
	uint64_t bytes[4] = { 10, 20, 30, 40 };
	unsigned set = 0;

	EXPECT_EQ(helpers(c, bytes), 0xc);
	kill(c[3].pid, SIGKILL);
	siginfo_t info;
	waitid(P_PID, (id_t)c[3].pid, &info, WEXITED | WNOWAIT); /* not even waited for */
	pid_t crashed = c[3].pid;
	c[3].pid = 0;
	for (int i = 0; i < 5; i++)
		set = helpers(c, bytes);
	EXPECT_EQ(set, 0x7); /* a core more is idle, too */
	waitpid(crashed, NULL, 0);
	close(c[3].fd);
	done(c, fd);
}

TEST(who_leaves_makes_room)
{
	struct child c[4];
	int fd = fresh_with(c, 2);
	uint64_t bytes[4] = { 10, 20, 30, 40 };

	EXPECT_EQ(helpers(c, bytes), 0xc);
	ask(&c[3], UINT64_MAX);
	stop(&c[3]);
	c[3].pid = 0;
	EXPECT_EQ(helpers(c, bytes), 0x7);
	done(c, fd);
}

TEST(a_pid_that_was_used_again_is_another_process)
{
	struct hp_share_verdict v = { 0 };
	int fd = fresh();
	struct slot s = slot(fd, 0);
	uint64_t own = s.owner;

	s.owner += UINT64_C(1) << 22; /* started a tick later */
	set_slot(fd, 1, s);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(hp_share_post(1, HP_SHARE_AGGRESSIVE, &v), 0);
	EXPECT_EQ(slot(fd, 1).owner, 0);
	EXPECT_EQ(slot(fd, 0).owner, own);
	EXPECT_EQ(v.sharers, 1);
	close(fd);
	rm();
}

TEST(a_child_of_fork_is_a_process_of_its_own)
{
	struct hp_share_verdict v;
	int fd = fresh();
	struct child c = start();

	EXPECT_EQ(ask(&c, 5).error, 0);
	EXPECT(slot(fd, 0).owner && slot(fd, 1).owner);
	EXPECT_EQ(slot(fd, 1).owner & 0x3fffff, c.pid);
	EXPECT(slot(fd, 0).tie != slot(fd, 1).tie);
	EXPECT_EQ(slot(fd, 1).bytes, 5);
	ask(&c, UINT64_MAX); /* takes its own place with it, and no other's */
	EXPECT(slot(fd, 0).owner && !slot(fd, 1).owner);
	EXPECT_EQ(hp_share_post(1, HP_SHARE_CONSERVATIVE, &v), 0);
	EXPECT_EQ(access(path, F_OK), 0);
	stop(&c);
	close(fd);
	rm();
}

TEST(the_last_to_leave_removes_the_file)
{
	int fd = fresh();

	hp_share_leave();
	EXPECT(access(path, F_OK) != 0);
	close(fd);
	rm();
}

/* A process cannot tell whether those of another namespace live. */
TEST(the_processes_of_a_namespace_of_process_numbers_have_a_file_for_themselves)
{
	int fd = fresh();
	struct stat ns;
	char name[100];

	EXPECT_EQ(stat("/proc/self/ns/pid", &ns), 0);
	snprintf(name, sizeof name, "/hugepin-helpers.%u.%ju", geteuid(), (uintmax_t)ns.st_ino);
	EXPECT(strcmp(path + strlen(directory), name) == 0);
	close(fd);
	rm();
}

TEST(a_file_that_was_removed_is_made_anew)
{
	struct hp_share_verdict v;
	int fd = fresh();
	struct stat s;

	unlink(path);
	EXPECT_EQ(hp_share_post(1, HP_SHARE_CONSERVATIVE, &v), 0);
	EXPECT_EQ(stat(path, &s), 0);
	EXPECT_EQ(s.st_mode & 0777, 0600);
	close(fd);
	rm();
}

TEST(while_another_has_the_file_nothing_changes)
{
	struct hp_share_verdict v = { .sharers = 77 };
	int fd = fresh();

	flock(fd, LOCK_EX);
	errno = 5;
	EXPECT_EQ(hp_share_post(1, HP_SHARE_CONSERVATIVE, &v), -EAGAIN);
	EXPECT_EQ(v.sharers, 77);
	EXPECT_EQ(errno, 5);
	flock(fd, LOCK_UN);
	EXPECT_EQ(hp_share_post(1, HP_SHARE_CONSERVATIVE, &v), 0);
	close(fd);
	rm();
}

static void expect_alone(int error)
{
	struct hp_share_verdict v = { 0 };

	errno = 5;
	EXPECT_EQ(hp_share_post(1, HP_SHARE_CONSERVATIVE, &v), error);
	EXPECT(v.may_help && v.sharers == 1);
	EXPECT_EQ(errno, 5);
	EXPECT_EQ(hp_share_post(1, HP_SHARE_AGGRESSIVE, &v), error);
	EXPECT(v.may_help && v.sharers == 1);
	EXPECT_EQ(hp_share_post(1, HP_SHARE_OFF, &v), 0);
	EXPECT(!v.may_help);
}

TEST(what_is_not_such_a_file_is_left_alone)
{
	int fd = fresh();
	uint32_t version = 2;
	char first = 'x', bytes[3];

	EXPECT_EQ(pwrite(fd, &version, 4, 8), 4);
	expect_alone(-EPROTO);
	version = 1;
	EXPECT_EQ(pwrite(fd, &version, 4, 8), 4);
	EXPECT_EQ(pwrite(fd, &first, 1, 0), 1);
	expect_alone(-EPROTO);
	EXPECT(pread(fd, bytes, 1, 0) == 1 && bytes[0] == 'x');
	EXPECT_EQ(ftruncate(fd, 3), 0);
	expect_alone(-EPROTO);
	EXPECT_EQ(pread(fd, bytes, 3, 0), 3);
	EXPECT_EQ(ftruncate(fd, 0), 0);
	struct hp_share_verdict v;
	EXPECT_EQ(hp_share_post(1, HP_SHARE_CONSERVATIVE, &v), 0); /* empty: nobody's yet */

	EXPECT_EQ(fchmod(fd, 0660), 0);
	expect_alone(-EPERM);
	EXPECT_EQ(fchmod(fd, 0600), 0);
	char other[sizeof path + 8];
	snprintf(other, sizeof other, "%s.other", path);
	EXPECT_EQ(link(path, other), 0);
	expect_alone(-EPERM);
	EXPECT_EQ(unlink(other), 0);
	close(fd);
	unlink(path);
	EXPECT_EQ(symlink("/etc/passwd", path), 0);
	expect_alone(-ELOOP);
	unlink(path);
	EXPECT_EQ(mkfifo(path, 0600), 0);
	expect_alone(-EPERM);
	unlink(path);
	EXPECT_EQ(mkdir(path, 0700), 0);
	expect_alone(-EISDIR);
	rm();
	expect_alone(-ENOENT);
}

TEST(whatever_is_in_the_slots_does_no_harm)
{
	struct hp_share_verdict v;
	int fd = fresh();

	for (int round = 0; round < 30; round++) {
		for (int i = 0; i < 700; i++) { /* more than there may be */
			struct slot s;

			for (size_t b = 0; b < sizeof s; b++)
				((unsigned char *)&s)[b] = (unsigned char)rnd(256);
			set_slot(fd, i, s);
		}
		for (int i = 0; i < 3; i++) {
			int r = hp_share_post(1, round % 2 ? HP_SHARE_AGGRESSIVE : HP_SHARE_CONSERVATIVE, &v);

			EXPECT(r == 0 || r == -ENOSPC);
			EXPECT(v.sharers <= HP_SHARE_MAX);
		}
	}
	/* None of them lives, and who comes now finds out. */
	struct child c = start();
	struct answer a = ask(&c, 1);
	EXPECT_EQ(a.error, 0);
	EXPECT(slot(fd, 300).owner == 0 && slot(fd, 511).owner == 0);
	stop(&c);
	close(fd);
	rm();
}

TEST(one_process_too_many_is_as_alone)
{
	int fd = fresh();
	struct slot s = slot(fd, 0);
	struct child c = start();
	struct answer a;

	for (int i = 0; i < HP_SHARE_MAX; i++)
		set_slot(fd, i, s); /* as if this one were many */
	a = ask(&c, 1);
	EXPECT_EQ(a.error, -ENOSPC);
	EXPECT(a.verdict.may_help && a.verdict.sharers == 1);
	EXPECT_EQ(slot(fd, HP_SHARE_MAX).owner, 0);
	memset(&s, 0, sizeof s);
	set_slot(fd, 100, s);
	EXPECT_EQ(ask(&c, 1).error, 0);
	EXPECT_EQ(slot(fd, 100).owner & 0x3fffff, c.pid);
	stop(&c);
	close(fd);
	rm();
}

T_MAIN
