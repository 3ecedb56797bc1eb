/*
 * See trace.h.
 *
 * Lines collect in a buffer, which is written to the file when it is full, when a domain is closed and at exit, by raw
 * system calls, because these are not cancellation points. No descriptor is kept between writes, because a program may
 * close descriptors that it does not know (closefrom(3)) and reuse the number. So the path is made absolute once, and
 * opened for each write. Each time the file is checked, since another file may have taken its place. If its length is
 * not as this process left it, another process writes it, too; then the trace ends, so that the two do not mix.
 *
 * The lock is the last in the order of locks, because events come with a domain's lock held, and with the table's.
 */
#include "reg/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/base.h"
#include "base/config.h"
#include "base/rank.h"
#include "base/lock.h"
#include "base/sys.h"
#include "reg/state.h"

/* 20 digits for each of six numbers, 18 for the address, and the words */
enum { BUFFER_SIZE = 65536, LINE_SIZE = 160 };

bool hp_trace_on;

static struct {
	struct hp_lock lock;
	bool begun; /* the trace was begun, or beginning failed */
	pid_t pid; /* the process of this trace: children of _Fork(3) and clone(2) run no fork handlers */
	int rank; /* -1: none */
	bool taken; /* another process writes the file */
	long size; /* the file's, as this process left it */
	rlim_t limit; /* RLIMIT_FSIZE at the beginning: writing more would end the process by SIGXFSZ */
	size_t used; /* bytes used of the buffer */
	uint64_t waiting, lost; /* waiting: lines in the buffer; lost: lines that could not be written */
	char path[PATH_MAX];
	char buffer[BUFFER_SIZE];
} trace = { .lock = HP_LOCK_INIT(HP_LOCK_RANK_TRACE) };

/* ------------------------------------------------------------------ the file */

static void say_taken(void)
{
	trace.taken = true;
	hp_say("HUGEPIN_TRACE: another process writes the same file, so this trace ends here; with %p in the path each "
	       "process has a file of its own", NULL, SIZE_MAX);
}

/* Append the buffer to the open file. After a failure cut the file back, if possible, so that it has no partial line. 0
 * or -errno. */
static int append_to(int fd)
{
	const long end = hp_sys(SYS_lseek, fd, 0, SEEK_END);
	size_t done = 0;
	int err = 0;

	if (end >= 0 && end != trace.size) {
		say_taken();
		return -EBUSY;
	}
	if ((rlim_t)trace.size + trace.used > trace.limit)
		return -EFBIG;
	while (!err && done < trace.used) {
		const long n = hp_sys(SYS_write, fd, trace.buffer + done, trace.used - done);

		if (n > 0)
			done += (size_t)n;
		else if (n != -EINTR)
			err = n < 0 ? (int)n : -ENOSPC;
	}
	if (!err)
		trace.size += (long)done;
	else if (end >= 0)
		hp_sys(SYS_ftruncate, fd, end);
	return err;
}

/* Append the buffer to the file. 0 or -errno. */
static int append_buffer(bool begin)
{
	const int fd = hp_open_own(trace.path, O_APPEND | (begin ? O_CREAT : 0));
	int err = fd < 0 ? fd : 0;

	if (fd >= 0) {
		if (begin) /* no O_TRUNC, so that a file which is not ours keeps its contents */
			hp_sys(SYS_ftruncate, fd, 0);
		err = append_to(fd);
		hp_sys(SYS_close, fd);
	}
	return err;
}

/* Write the buffer. Called with the lock. */
static void flush_buffer(void)
{
	if (trace.used && trace.pid == hp_pid() && (trace.taken || append_buffer(false) != 0))
		trace.lost += trace.waiting;
	trace.used = 0;
	trace.waiting = 0;
}

/* ------------------------------------------------------------------ events */

void hp_trace(enum hp_trace_event event, const hugepin_domain *d, uintptr_t start, uintptr_t end)
{
	static const char *const events[] = {
		[HP_TRACE_PIN] = ",pin,",	    [HP_TRACE_UNPIN] = ",unpin,",
		[HP_TRACE_REGISTER] = ",register,", [HP_TRACE_DEREGISTER] = ",deregister,",
		[HP_TRACE_MISS] = ",miss,",
	};
	static const char *const policies[] = {
		[HUGEPIN_POLICY_ARENA] = ",arena,0x", [HUGEPIN_POLICY_LRU] = ",lru,0x",
		[HUGEPIN_POLICY_CF11] = ",cf11,0x",   [HUGEPIN_POLICY_PREDICT] = ",predict,0x",
		[HUGEPIN_POLICY_ODP] = ",odp,0x",     [HUGEPIN_POLICY_NONE] = ",none,0x",
		[HUGEPIN_POLICY_HYBRID] = ",hybrid,0x",
	};

	hp_lock(&trace.lock);
	if (BUFFER_SIZE - trace.used < LINE_SIZE)
		flush_buffer();

	struct hp_line l = { trace.buffer + trace.used, trace.buffer + BUFFER_SIZE };

	hp_line_number(&l, hp_clock_ns(), 10); /* under the lock: the lines are in the order of time */
	hp_line_text(&l, events[event]);
	hp_line_number(&l, d->number, 10);
	hp_line_text(&l, policies[d->policy]);
	hp_line_number(&l, start, 16);
	hp_line_text(&l, ",");
	hp_line_number(&l, end - start, 10);
	hp_line_text(&l, ",");
	hp_line_number(&l, HP_DSTAT_GET(d, pinned_bytes), 10);
	hp_line_text(&l, ",");
	hp_line_number(&l, HP_DSTAT_GET(d, regions), 10);
	hp_line_text(&l, "\n");
	trace.used = (size_t)(l.at - trace.buffer);
	trace.waiting++;
	hp_unlock(&trace.lock);
}

void hp_trace_flush(void)
{
	if (!hp_trace_on)
		return;
	hp_lock(&trace.lock);
	flush_buffer();
	hp_unlock(&trace.lock);
}

/* ------------------------------------------------------------------ beginning and end */

static const char *wanted_path(void)
{
	return (const char *)(intptr_t)hp_config.trace;
}

/* Make trace.path from the wanted path. 0 or -errno: the path is too long, or the current directory has no path. */
static int make_trace_path(void)
{
	struct hp_line l = { trace.path, trace.path + sizeof trace.path };

	if (*wanted_path() != '/') {
		long n = hp_sys(SYS_getcwd, trace.path, sizeof trace.path);

		if (n < 0)
			return (int)n;
		l.at += strlen(trace.path);
		hp_line_text(&l, "/");
	}
	hp_rank_path(&l, wanted_path(), trace.pid, trace.rank);
	return l.at + 1 < l.end ? 0 : -ENAMETOOLONG;
}

/* Put the first lines into the buffer: the names of the fields; for a rank, whose trace this is. */
static void begin_buffer(void)
{
	struct hp_line l = { trace.buffer, trace.buffer + BUFFER_SIZE };
	struct utsname system;

	hp_line_text(&l, "t_ns,event,domain,policy,addr,len,pinned_bytes,regions\n");
	if (trace.rank >= 0 && !hp_sys(SYS_uname, &system)) {
		hp_line_text(&l, "# rank=");
		hp_line_number(&l, (uint64_t)trace.rank, 10);
		hp_line_text(&l, " pid=");
		hp_line_number(&l, (uint64_t)trace.pid, 10);
		hp_line_text(&l, " host=");
		hp_line_text(&l, system.nodename);
		hp_line_text(&l, "\n");
	}
	trace.used = (size_t)(l.at - trace.buffer);
}

void hp_trace_start(void)
{
	struct rlimit limit;
	int named, err;

	if (trace.begun || !wanted_path())
		return;
	trace.begun = true;
	trace.pid = hp_pid();
	trace.rank = hp_rank();
	trace.waiting = trace.lost = 0; /* in a child of fork these were the parent's, and so are the next two */
	trace.taken = false;
	trace.size = 0;
	trace.limit = RLIM_INFINITY;
	if (!hp_sys(SYS_getrlimit, RLIMIT_FSIZE, &limit))
		trace.limit = limit.rlim_cur;
	begin_buffer();
	named = make_trace_path();
	err = named ? named : append_buffer(true);
	hp_trace_on = !err;
	trace.used = 0;
	if (err == -EPERM)
		hp_say("HUGEPIN_TRACE: there is no trace: it takes a regular file of this user's, by its only name",
		       NULL, SIZE_MAX);
	else if (!hp_trace_on && !trace.taken)
		hp_say_unwritten("HUGEPIN_TRACE", named ? wanted_path() : trace.path, -err);
}

void hp_trace_child(void)
{
	hp_lock_reset(&trace.lock);
	trace.begun = trace.begun && !hp_rank_path_has_pid(wanted_path(), trace.rank);
	hp_trace_on = false;
}

/* Do nothing if this thread has the lock, because a signal handler may have called exit() while it interrupted
 * hp_trace(). */
static __attribute__((destructor)) void destruct(void)
{
	if (!hp_trace_on || hp_lock_mine(&trace.lock))
		return;
	hp_trace_flush();
	if (trace.lost && trace.pid == hp_pid())
		hp_say("HUGEPIN_TRACE: events that could not be written:", NULL, trace.lost);
}
