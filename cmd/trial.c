/*
 * Runs a program once and measures it. The program has a process group of its own, so that Ctrl-C reaches only this
 * command, which then ends the program with all its processes. As the child subreaper (prctl(2)) this process inherits
 * the processes that lose their parents. So every process of the program is found below this one, and is waited for:
 * the kernel then adds its times and faults to RUSAGE_CHILDREN.
 */
#include "cmd/trial.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "cmd/tlb.h"

#define MS UINT64_C(1000000)
#define GRACE_NS (2000 * MS) /* from SIGTERM to SIGKILL */
#define LOST_NS (5000 * MS) /* from SIGKILL until a process that does not go is left alone */
#define DEPTH_MAX 64 /* generations of processes */

static struct {
	int signals; /* a descriptor to read signals from */
	int signal; /* the one that came */
	sigset_t mask; /* of signals, before hp_trial_prepare() */
} own = { .signals = -1 };

uint64_t hp_trial_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Fill the set with SIGINT, SIGTERM, SIGHUP and SIGQUIT, without those that are ignored (nohup(1) ignores SIGHUP): a
 * blocked signal would still reach a signalfd(2). */
static void signals_that_end(sigset_t *ret_)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	struct sigaction now;

	sigemptyset(ret_);
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
		if (!sigaction(signals[i], NULL, &now) && now.sa_handler != SIG_IGN)
			sigaddset(ret_, signals[i]);
}

int hp_trial_prepare(void)
{
	sigset_t set;

	signals_that_end(&set);
	/* If it were ignored, the kernel would reap the children, and count nothing. */
	signal(SIGCHLD, SIG_DFL);
	sigprocmask(SIG_BLOCK, &set, &own.mask);
	own.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return own.signals < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) ? -errno : 0;
}

int hp_trial_signal(void)
{
	return own.signal;
}

static void take_signal(void)
{
	struct signalfd_siginfo s;

	if (read(own.signals, &s, sizeof s) == sizeof s)
		own.signal = (int)s.ssi_signo;
}

/* ------------------------------------------------------------------ output */

/* Output goes through a pipe: to /dev/null some programs write nothing at all (grep, tar). */
struct output {
	int fd; /* the reading end of the pipe; it does not block */
	char *tail;
	size_t len;
};

/* Read what is there, and keep the end of it. */
static void drain(struct output *o)
{
	static char buf[65536];
	ssize_t n;

	while (o->fd >= 0 && (n = read(o->fd, buf, sizeof buf)) > 0) {
		const size_t room = HP_TAIL_MAX - 1, len = HP_MIN((size_t)n, room), keep = HP_MIN(o->len, room - len);
		memmove(o->tail, o->tail + o->len - keep, keep);
		memcpy(o->tail + keep, buf + n - len, len);
		o->len = keep + len;
	}
}

/* Make text of it: whole lines, without the empty ones at the end. */
static void finish_tail(struct output *o)
{
	const bool cut = o->len == HP_TAIL_MAX - 1;
	char *line_feed;

	for (size_t i = 0; i < o->len; i++)
		if (!o->tail[i] || o->tail[i] == '\r')
			o->tail[i] = ' ';
	o->tail[o->len] = '\0';
	while (o->len && strchr(" \n", o->tail[o->len - 1]))
		o->tail[--o->len] = '\0';
	if (cut && (line_feed = strchr(o->tail, '\n')))
		memmove(o->tail, line_feed + 1, strlen(line_feed));
}

/* ------------------------------------------------------------------ the tree of processes */

/* Call each() for every process below `pid`. Returns their number. */
static unsigned each_below(pid_t pid, int depth, void (*each)(pid_t pid, int signal), int signal)
{
	char path[128];
	struct dirent *e;
	unsigned count = 0;
	DIR *d;

	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	d = opendir(path);
	while (d && depth < DEPTH_MAX && (e = readdir(d))) {
		int child;
		FILE *f;

		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", (int)pid, e->d_name);
		f = fopen(path, "re");
		while (f && fscanf(f, "%d", &child) == 1) {
			count += 1 + each_below(child, depth + 1, each, signal);
			each(child, signal);
		}
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return count;
}

static void end_process(pid_t pid, int signal)
{
	kill(pid, signal);
	kill(pid, SIGCONT); /* a stopped process would not see SIGTERM */
}

static void end_nothing(pid_t pid, int signal)
{
	(void)pid, (void)signal;
}

/* Wait for each child that has ended. Returns whether there are others. Keeps the status of `first`. */
static bool reap(pid_t first, struct hp_trial *t)
{
	struct rusage usage;
	int status;
	pid_t pid;

	while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
		t->rss_bytes = HP_MAX(t->rss_bytes, (uint64_t)usage.ru_maxrss << 10);
		if (pid == first)
			t->status = status;
	}
	return pid == 0;
}

/* End all processes that are left. */
static void end_all(pid_t first, struct output *output, struct hp_trial *t)
{
	const uint64_t start_ns = hp_trial_now_ns();
	struct pollfd fd = { .fd = output->fd, .events = POLLIN };
	bool told = false;

	while (reap(first, t)) {
		const uint64_t passed_ns = hp_trial_now_ns() - start_ns;
		if (passed_ns > GRACE_NS + LOST_NS)
			return;
		const int signal = passed_ns > GRACE_NS ? SIGKILL : told ? 0 : SIGTERM;
		/* A kernel without CONFIG_PROC_CHILDREN does not tell them: their group is most of them. */
		if (signal && !each_below(getpid(), 0, end_process, signal))
			end_process(-first, signal);
		told = true;
		poll(&fd, 1, 10);
		drain(output);
		if (fd.revents & POLLHUP)
			fd.fd = -1;
	}
}

/* ------------------------------------------------------------------ a run */

_Noreturn static void become(const struct hp_trial_how *how, int output, int failed)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	sigprocmask(SIG_SETMASK, &own.mask, NULL);
	if (dup2(how->input, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 &&
	    dup2(output, STDERR_FILENO) >= 0) {
		environ = how->environment;
		execvp(how->argv[0], how->argv);
	}
	const int err = errno;
	if (write(failed, &err, sizeof err) < 0)
		_exit(127);
	_exit(126);
}

/* Wait until the program ends, a signal comes or the time is over. Returns whether the program has ended. */
static bool watch(int ended, struct output *output, uint64_t limit_ns)
{
	struct pollfd fd[] = { { .fd = ended, .events = POLLIN },
			       { .fd = own.signals, .events = POLLIN },
			       { .fd = output->fd, .events = POLLIN } };

	for (;;) {
		const uint64_t now_ns = hp_trial_now_ns(),
			       left_ms = now_ns < limit_ns ? (limit_ns - now_ns) / MS + 1 : 0;
		poll(fd, 3, (int)HP_MIN(left_ms, (uint64_t)INT32_MAX));
		if (fd[0].revents)
			return true;
		if (fd[1].revents) {
			take_signal();
			return false;
		}
		drain(output);
		if (fd[2].revents & POLLHUP)
			fd[2].fd = -1;
		if (hp_trial_now_ns() >= limit_ns)
			return false;
	}
}

static double seconds_between(struct timeval a, struct timeval b)
{
	return (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_usec - a.tv_usec) / 1e6;
}

int hp_trial_run(const struct hp_trial_how *how, struct hp_trial *ret_, char tail[HP_TAIL_MAX])
{
	struct output output = { .fd = -1, .tail = tail };
	struct rusage before, after;
	int out[2], failed[2], err = 0;

	*tail = '\0';
	*ret_ = (struct hp_trial){ 0 };
	if (how->input_at >= 0 && lseek(how->input, how->input_at, SEEK_SET) < 0)
		return -errno;
	if (pipe2(out, O_CLOEXEC))
		return -errno;
	if (pipe2(failed, O_CLOEXEC)) {
		err = errno;
		close(out[0]);
		close(out[1]);
		return -err;
	}
	/* Only our end must not block: the program has the other. */
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	getrusage(RUSAGE_CHILDREN, &before);
	hp_tlb_begin();
	const uint64_t start_ns = hp_trial_now_ns();
	const pid_t pid = fork();
	if (!pid)
		become(how, out[1], failed[1]);
	err = pid < 0 ? errno : 0;
	close(out[1]);
	close(failed[1]);
	output.fd = out[0];
	/* The pipe closes at exec, so this is the end of file then. */
	if (!err && read(failed[0], &err, sizeof err) != sizeof err)
		err = 0;
	close(failed[0]);
	if (pid > 0) {
		const int ended = err ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
		if (!err && ended < 0)
			err = errno;
		ret_->ended = !err && watch(ended, &output, how->limit_ns);
		ret_->wall_s = (double)(hp_trial_now_ns() - start_ns) / 1e9;
		if (ret_->ended && reap(pid, ret_))
			ret_->left = each_below(getpid(), 0, end_nothing, 0);
		end_all(pid, &output, ret_);
		if (ended >= 0)
			close(ended);
	}
	drain(&output);
	finish_tail(&output);
	close(output.fd);
	getrusage(RUSAGE_CHILDREN, &after);
	ret_->tlb_misses = hp_tlb_end();
	ret_->user_s = seconds_between(before.ru_utime, after.ru_utime);
	ret_->system_s = seconds_between(before.ru_stime, after.ru_stime);
	ret_->minor_faults = (uint64_t)(after.ru_minflt - before.ru_minflt);
	ret_->major_faults = (uint64_t)(after.ru_majflt - before.ru_majflt);
	return err ? -err : own.signal ? -EINTR : 0;
}
