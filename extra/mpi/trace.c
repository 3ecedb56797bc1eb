/*
 * The recorder of the MPI layer. Each rank writes one CSV file, with a row for each buffer of a call, in the order of
 * the calls.
 *
 * A row begins with its call, and is complete when its transfer has ended. Rows are kept in blocks. The oldest block
 * is written as soon as all of its rows are complete; the rest is written at MPI_Finalize. Between writes the file is
 * closed: a program may close descriptors that it does not know (closefrom(3)), and the descriptor's number could then
 * be that of a file of the program's.
 *
 * Threads: `lock` guards the blocks, the file and the sums. The times of a thread belong to the thread.
 */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stack.h"
#include "util.h"

enum { FRAMES = 4, ROWS = 512 };

struct block;
struct hp_row {
	uint64_t seq, start_ns, end_ns, cpu_ns;
	const char *op;
	uintptr_t addr, frames[FRAMES];
	size_t len, payload;
	int peer;
	char dir;
	struct block *block;
};

struct block {
	struct block *next;
	unsigned used, open;
	struct hp_row rows[ROWS];
};

bool hp_trace_on;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *oldest, *newest;
static char trace_path[4096]; /* absolute */
static int failed; /* the first error of a write */
static int trace_rank;
static size_t min_payload;
static uint64_t started_ns, payload_logged, dropped;
static _Atomic uint64_t calls, buffers, payload_all; /* counted without the lock; relaxed: numbers */

/* The processor time that this thread has spent in MPI. */
static HP_TLS uint64_t mpi_cpu_ns;

/* Collect return addresses from `innermost` outwards. Code without frame pointers may leave any value in the register,
 * so the walk goes on only while each frame lies farther out on the same stack. */
static void frames_walk(const void *innermost, uintptr_t ret_[FRAMES])
{
	uintptr_t frame = (uintptr_t)innermost;
	const uintptr_t end = hp_stack_end(frame);

	memset(ret_, 0, FRAMES * sizeof *ret_);
	for (int i = 0; i < FRAMES; i++) {
		const uintptr_t *at = (const uintptr_t *)frame;

		if (!at[1])
			return;
		ret_[i] = at[1];
		if (at[0] <= frame || at[0] % sizeof *at || at[0] >= end || end - at[0] < 2 * sizeof *at)
			return;
		frame = at[0];
	}
}

/* Whether a file is a regular one of this user's, by its only name: another user may have put any other there. If
 * others may read the file, its mode becomes 0600. fchmod succeeds only for the owner and root. That is better than to
 * compare st_uid, since network file systems may report other owners. */
static bool is_own(int fd)
{
	struct stat s;

	if (fstat(fd, &s))
		return false;
	if (!S_ISREG(s.st_mode) || s.st_nlink > 1 || (s.st_uid && !geteuid())) {
		errno = EPERM;
		return false;
	}
	return !(s.st_mode & 077) || !fchmod(fd, 0600);
}

/* Open the trace for appending. It follows no link, and waits for no reader of a FIFO. NULL: see errno. */
static FILE *open_trace(bool create)
{
	const int flags = O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
	const int fd = open(trace_path, flags | (create ? O_CREAT : 0), 0600);
	FILE *f = NULL;

	if (fd >= 0 && is_own(fd) && !(create && ftruncate(fd, 0)))
		f = fdopen(fd, "ae");
	if (!f) {
		const int saved_errno = errno;

		if (fd >= 0)
			close(fd);
		/* a link, a FIFO or socket, a directory */
		errno = saved_errno == ELOOP || saved_errno == ENXIO || saved_errno == EISDIR ? EPERM : saved_errno;
	}
	return f;
}

static void close_trace(FILE *f)
{
	const bool bad = ferror(f);

	if ((fclose(f) || bad) && !failed)
		failed = bad ? EIO : errno;
}

/* Make the path absolute, since the program may change its directory. */
static bool make_rank_path(const char *prefix, int rank)
{
	const size_t len = *prefix == '/' || !getcwd(trace_path, sizeof trace_path - 1) ? 0 : strlen(trace_path);

	errno = ENAMETOOLONG;
	return (size_t)snprintf(trace_path + len, sizeof trace_path - len, "%s%s.r%d.csv", len ? "/" : "", prefix,
				rank) < sizeof trace_path - len;
}

/* Whether the file is that of the events of the pin cache: HUGEPIN_TRACE, where %p is the process's number and %r its
 * rank, and without either ".rRANK" goes before the ending of the name (hugepin(7)). */
static bool is_events_path(void)
{
	const char *events = secure_getenv("HUGEPIN_TRACE"), *name, *ending;
	char path[2 * sizeof trace_path] = "";
	size_t n;

	if (!events || strlen(events) >= sizeof trace_path)
		return false;
	if (*events != '/' && getcwd(path, sizeof trace_path - 1))
		strcat(path, "/");
	n = strlen(path);
	name = strrchr(events, '/') ? strrchr(events, '/') + 1 : events;
	ending = strstr(events, "%p") || strstr(events, "%r") ? NULL : strrchr(name, '.');
	if (ending == name) /* a hidden file */
		ending = NULL;
	if (!ending && !strstr(events, "%p") && !strstr(events, "%r"))
		ending = name + strlen(name);
	for (const char *s = events; n < sizeof path - 32; s++) {
		if (s == ending)
			n += (size_t)sprintf(path + n, ".r%d", trace_rank);
		if (!*s)
			break;
		if (s[0] == '%' && (s[1] == 'p' || s[1] == 'r'))
			n += (size_t)sprintf(path + n, "%d", *++s == 'p' ? (int)getpid() : trace_rank);
		else
			path[n++] = *s;
	}
	path[n] = '\0';
	return !strcmp(path, trace_path);
}

void hp_trace_open(const char *prefix, int rank, size_t min)
{
	FILE *f = NULL;

	started_ns = hp_clock_ns();
	trace_rank = rank;
	min_payload = min;
	if (make_rank_path(prefix, rank)) {
		if (is_events_path()) {
			char line[2 * sizeof trace_path + 200];

			/* in one piece, between those of other ranks */
			snprintf(line, sizeof line,
				 "hugepin: MPI rank %d: the calls are not recorded: HUGEPIN_X_MPI_TRACE=%s and "
				 "HUGEPIN_TRACE stand for one file, %s; they take different names\n",
				 rank, prefix, trace_path);
			fputs(line, stderr);
			return;
		}
		f = open_trace(true);
	}
	if (!f) {
		fprintf(stderr, "hugepin: MPI rank %d: no trace %s.r%d.csv: %s\n", rank, prefix, rank,
			errno == EPERM ? "it takes a regular file of this user's, by its only name" : strerror(errno));
		return;
	}
	fputs("seq(call number),t_start(ns since MPI_Init),t_end(ns; completion of the transfer: for Isend/Irecv the "
	      "Wait/Test "
	      "that completed it),cpu_app(ns of thread CPU time outside MPI before this call),op,dir(S=buffer read "
	      "R=buffer "
	      "written),addr(hex),len(bytes spanned),payload(bytes),peer(rank or root; -1 none),f0(hex return address "
	      "in "
	      "caller of MPI),f1,f2,f3\n",
	      f);
	close_trace(f);
	hp_trace_on = true;
}

void hp_trace_begin(struct hp_call *c)
{
	c->seq = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;
	c->start_ns = hp_clock_ns();
	c->cpu_ns = hp_thread_ns();
}

void hp_trace_end(const struct hp_call *c)
{
	mpi_cpu_ns += hp_thread_ns() - c->cpu_ns;
}

void hp_trace_payload(size_t payload)
{
	if (payload) {
		atomic_fetch_add_explicit(&buffers, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&payload_all, payload, memory_order_relaxed);
	}
}

struct hp_row *hp_trace_row(const struct hp_call *c, const char *op, const struct hp_buffer *b)
{
	struct hp_row *r = NULL;

	pthread_mutex_lock(&lock);
	if (!newest || newest->used == ROWS) {
		struct block *made = malloc(sizeof *made);

		if (made) {
			made->next = NULL;
			made->used = made->open = 0;
			*(newest ? &newest->next : &oldest) = made;
			newest = made;
		}
	}
	if (newest && newest->used < ROWS) {
		r = &newest->rows[newest->used++];
		newest->open++;
		payload_logged += b->payload;
		*r = (struct hp_row){ c->seq,	  c->start_ns - started_ns,
				      0,	  c->cpu_ns - mpi_cpu_ns,
				      op,	  b->start,
				      { 0 },	  b->len,
				      b->payload, b->peer,
				      b->dir,	  newest };
		frames_walk(c->frame, r->frames);
	} else {
		dropped++;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

static void block_write(FILE *file, const struct block *b, uint64_t now)
{
	for (const struct hp_row *r = b->rows; r < b->rows + b->used; r++)
		fprintf(file,
			"%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%s,%c,%" PRIxPTR ",%zu,%zu,%d,%" PRIxPTR
			",%" PRIxPTR ",%" PRIxPTR ",%" PRIxPTR "\n",
			r->seq, r->start_ns, r->end_ns ? r->end_ns : now, r->cpu_ns, r->op, r->dir, r->addr, r->len,
			r->payload, HP_MAX(r->peer, -1), r->frames[0], r->frames[1], r->frames[2], r->frames[3]);
}

/* Write the oldest blocks: all, or only those before the first incomplete one. The caller holds `lock`. */
static void write_blocks(FILE *file, bool all, uint64_t now)
{
	while (oldest && (all || (oldest->used == ROWS && !oldest->open))) {
		struct block *b = oldest;

		if (file)
			block_write(file, b, now);
		else
			dropped += b->used;
		oldest = b->next;
		if (!oldest)
			newest = NULL;
		free(b);
	}
}

void hp_trace_row_end(struct hp_row *r)
{
	FILE *file;

	if (!r)
		return;
	pthread_mutex_lock(&lock);
	r->end_ns = hp_clock_ns() - started_ns;
	r->block->open--;
	if (oldest->used == ROWS && !oldest->open) {
		file = open_trace(false);
		if (!file && !failed)
			failed = errno;
		write_blocks(file, false, 0);
		if (file)
			close_trace(file);
	}
	pthread_mutex_unlock(&lock);
}

int hp_trace_close(void)
{
	const uint64_t now = hp_clock_ns() - started_ns;
	FILE *file;

	hp_trace_on = false;
	pthread_mutex_lock(&lock);
	file = open_trace(false);
	if (!file && !failed)
		failed = errno;
	write_blocks(file, true, now);
	if (file) {
		fprintf(file,
			"# rank=%d total_wall_ns=%" PRIu64 " total_app_cpu_ns=%" PRIu64 " mpi_calls=%" PRIu64
			" nonempty_buffers=%" PRIu64 " payload_bytes_all=%" PRIu64 " payload_bytes_logged=%" PRIu64
			" dropped=%" PRIu64 " unknown_requests=0 min_payload=%zu\n",
			trace_rank, now, hp_thread_ns() - mpi_cpu_ns,
			atomic_load_explicit(&calls, memory_order_relaxed),
			atomic_load_explicit(&buffers, memory_order_relaxed),
			atomic_load_explicit(&payload_all, memory_order_relaxed), payload_logged,
			dropped, min_payload);
		close_trace(file);
	}
	pthread_mutex_unlock(&lock);
	return -failed;
}
