/*
 * The MPI layer's engine: the domain, the pins of calls, and what outlives a call.
 *
 * A buffer is pinned before MPI sees it and unpinned when MPI has let go of it: when the call returns, when the
 * request is done, when the window's operations are closed, when the window is freed. No failure of ours is the
 * program's, unless HUGEPIN_MPI_STRICT=1.
 *
 * Requests are found by their handles, which MPI uses again as soon as a request is done, perhaps for another thread
 * before we have noticed, and which several requests may share that were done at once. So the table may hold a handle
 * more than once: the newest comes first, and an entry that a Wait or Test has claimed is not found by another.
 *
 * A call may be left by longjmp or throw, where the program's error handler does so: then its thread's next call finds it, and
 * ends it. A request whose Wait was left so keeps its pins until a later Wait finds it done, or MPI_Finalize.
 *
 * Locks: `lock` guards the tables, `sampling` the integral of pinned memory. Neither is held while the domain or MPI
 * is called, but for the test of orphans, which is MPI's and never blocks.
 */
#include "mpi/layer.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <hugepin_uring.h>
#include <hugepin_verbs.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mpi/options.h"

/* MPI 4.1 deprecates the one, MPI 3 has not the other. */
#if MPI_VERSION * 100 + MPI_SUBVERSION >= 401
#define REAL_TYPE_SIZE REAL(Type_size_c)
#else
#define REAL_TYPE_SIZE REAL(Type_size_x)
#endif

#define SLOTS 16384 /* fixed buffers of the ring: all that the kernel allows */
/* A buffer that spans so many times what is sent of it is packed by any MPI: it would not be registered. */
#define SPARSE 16
#define BUCKETS 1024
#define ORPHANS_AT_ONCE 2 /* tested in a call that are not done: each costs some 0.2 us, and there may be thousands */

struct hp_request {
	struct hp_request *next;
	MPI_Request handle;
	bool persistent, claimed, orphan;
	struct hp_transfer transfer;
};

#define MEMBER(NAME, member, ...) int64_t member;
#define DEFAULT(NAME, member, type, def, ...) .member = def,
static struct {
	HP_MPI_OPTIONS(MEMBER)
} options = { HP_MPI_OPTIONS(DEFAULT) };

#define COUNTERS(X) X(pins) X(unpins) X(not_pinned) X(bottom) X(sparse) X(left)
#define COUNTER(name) uint64_t name;
static struct {
	COUNTERS(COUNTER)
} counters;
#define COUNT(name) __atomic_add_fetch(&counters.name, 1, __ATOMIC_RELAXED)

HP_TLS const void *hp_fortran_frame;
static HP_TLS bool inside; /* a call of the program: what MPI itself calls is not the program's */
static HP_TLS struct hp_call call; /* that one */

static bool is_open; /* between MPI_Init and MPI_Finalize */
static bool stats_on;
static int rank;
static hugepin_domain *domain; /* NULL: it could not be opened */
static struct io_uring ring;
static uint64_t opened_ns;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hp_request *requests[BUCKETS];
static _Atomic int requests_count;
static struct hp_request *orphans, **orphans_end = &orphans; /* freed by the program while under way */
static _Atomic int orphans_count;

static pthread_mutex_t sampling = PTHREAD_MUTEX_INITIALIZER;
static uint64_t sampled_ns, sampled_bytes;
static double byte_ns; /* pinned bytes over time, by the trapezoidal rule */

/* ------------------------------------------------------------------ pins */

static void sample(void)
{
	struct hugepin_domain_stats s;
	uint64_t now;

	if (!stats_on || !domain || hugepin_domain_stats(domain, &s, sizeof s) < 0)
		return;
	pthread_mutex_lock(&sampling);
	now = hp_now_ns();
	byte_ns += ((double)sampled_bytes + (double)s.pinned_bytes) / 2 * (double)(now - sampled_ns);
	sampled_ns = now;
	sampled_bytes = s.pinned_bytes;
	pthread_mutex_unlock(&sampling);
}

/* hugepin_pin() for the function with this frame: a policy that predicts tells call sites apart by the frame
 * pointers it finds, and between the program and us there may be Fortran's bindings, which keep none. */
#ifdef __x86_64__
int hp_pin_from(hugepin_domain *, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_, const void *frame);
__asm__(".text\n"
	".type hp_pin_from, @function\n"
	"hp_pin_from:\n"
	".cfi_startproc\n"
	"push %rbp\n"
	".cfi_def_cfa_offset 16\n"
	".cfi_offset %rbp, -16\n"
	"mov %r9, %rbp\n"
	"call hugepin_pin@PLT\n"
	"pop %rbp\n"
	".cfi_def_cfa_offset 8\n"
	"ret\n"
	".cfi_endproc\n"
	".size hp_pin_from, .-hp_pin_from\n");
#else
#define hp_pin_from(domain, addr, len, access, ret_, frame) ((void)(frame), hugepin_pin(domain, addr, len, access, ret_))
#endif

static void unpin(struct hp_buffer *b)
{
	for (; b->pins_count; b->pins_count--) {
		hugepin_unpin(domain, &b->pins[b->pins_count - 1]);
		COUNT(unpins);
	}
}

static int pin(struct hp_buffer *b, const void *frame)
{
	const unsigned access = b->dir == 'S' ? HUGEPIN_READ : HUGEPIN_WRITE;
	size_t done = 0;

	while (done < b->len) {
		struct hugepin_pin *p = &b->pins[b->pins_count];
		int err = b->pins_count == HP_MPI_PINS_MAX ?
				  -EMSGSIZE :
				  hp_pin_from(domain, (const void *)(b->start + done), b->len - done, access, p, frame);

		if (err < 0) {
			unpin(b);
			return err;
		}
		COUNT(pins);
		b->pins_count++;
		done += p->len;
	}
	return 0;
}

static void HP_COLD refused(const struct hp_transfer *t, const struct hp_buffer *b, int err)
{
	COUNT(not_pinned);
	if (!options.strict)
		return;
	fprintf(stderr, "hugepin: MPI rank %d: %zu bytes at %#" PRIxPTR " cannot be registered for MPI_%s: %s\n", rank, b->len,
		b->start, t->op, strerror(-err));
	REAL(Abort)(MPI_COMM_WORLD, 1);
}

/* Begin what t's buffers are needed for; the call is the one in which that happens. */
static void acquire(struct hp_transfer *t, const struct hp_call *c)
{
	if (!t->count)
		return;
	sample();
	for (struct hp_buffer *b = t->buffers; b < t->buffers + t->count; b++) {
		int err = domain ? pin(b, c->frame) : 0;

		if (err < 0)
			refused(t, b, err);
		b->row = hp_trace_on ? hp_trace_row(c, t->op, b) : NULL;
	}
	sample();
}

static void release(struct hp_transfer *t)
{
	if (!t->count)
		return;
	sample();
	for (struct hp_buffer *b = t->buffers; b < t->buffers + t->count; b++) {
		unpin(b);
		hp_trace_row_end(b->row);
		b->row = NULL;
	}
	sample();
}

/* ------------------------------------------------------------------ calls */

static void orphans_poll(int tests);
static void claims_drop(struct hp_claims *);

/* The call was left by longjmp or throw. Its buffers may be the program's again, or not: MPI says nothing of it. */
static void HP_COLD call_abandon(void)
{
	release(&call.transfer);
	claims_drop(&call.claims);
	inside = false;
}

struct hp_call *hp_call_begin(const char *op, const void *frame)
{
	struct hp_call *c = &call;

	if (!is_open)
		return NULL;
	if (inside) {
		if (hp_frame_lives(c->own, frame))
			return NULL;
		call_abandon();
	}
	inside = true;
	c->own = frame;
	c->transfer.op = op;
	c->transfer.count = 0;
	c->claims.n = 0;
	c->frame = hp_fortran_frame ? hp_fortran_frame : frame;
	if (hp_trace_on)
		hp_trace_begin(c);
	if (HP_UNLIKELY(orphans_count))
		orphans_poll(ORPHANS_AT_ONCE);
	return c;
}

static void call_leave(struct hp_call *c)
{
	if (hp_trace_on)
		hp_trace_end(c);
	inside = false;
}

/* A buffer from `start` that spans len bytes. */
static void buffer_add(struct hp_call *c, uintptr_t start, int64_t len, int64_t payload, char dir, int peer)
{
	if (hp_trace_on)
		hp_trace_payload((size_t)payload);
	if (payload < options.min || payload <= 0)
		return;
	if (len / SPARSE > payload) {
		COUNT(sparse);
		return;
	}
	c->transfer.buffers[c->transfer.count++] = (struct hp_buffer){
		.start = start, .len = (size_t)len, .payload = (size_t)payload, .dir = dir, .peer = peer
	};
}

/* The bytes, relative to its address, that count elements of a type touch. */
static bool span_of(int64_t count, MPI_Datatype type, int64_t *ret_from, int64_t *ret_to, int64_t *ret_payload)
{
	MPI_Aint lb, extent, true_lb, true_extent;
	MPI_Count size;

	if (REAL_TYPE_SIZE(type, &size) != MPI_SUCCESS || size <= 0 ||
	    REAL(Type_get_extent)(type, &lb, &extent) != MPI_SUCCESS ||
	    REAL(Type_get_true_extent)(type, &true_lb, &true_extent) != MPI_SUCCESS)
		return false;
	const int64_t last = (count - 1) * extent;
	*ret_from = true_lb + HP_MIN(last, 0);
	*ret_to = true_lb + true_extent + HP_MAX(last, 0);
	*ret_payload = count * size;
	return true;
}

void hp_call_buffer(struct hp_call *c, const void *buf, int64_t count, MPI_Datatype type, char dir, int peer)
{
	int64_t from, to, payload;

	if (count <= 0 || buf == MPI_IN_PLACE || peer == MPI_PROC_NULL || !span_of(count, type, &from, &to, &payload))
		return;
	if (buf == MPI_BOTTOM) { /* addresses, from anywhere to anywhere */
		COUNT(bottom);
		return;
	}
	buffer_add(c, (uintptr_t)buf + (uintptr_t)from, to - from, payload, dir, peer);
}

void hp_call_pieces(struct hp_call *c, const void *buf, int n, const int *counts, const int *displs, MPI_Datatype type,
		    const MPI_Datatype *types, char dir)
{
	int64_t from = INT64_MAX, to = INT64_MIN, payload = 0;
	MPI_Aint lb, extent = 1;

	if (buf == MPI_IN_PLACE || (!types && REAL(Type_get_extent)(type, &lb, &extent) != MPI_SUCCESS))
		return;
	for (int i = 0; i < n; i++) {
		int64_t begin, end, bytes;

		if (counts[i] <= 0 || !span_of(counts[i], types ? types[i] : type, &begin, &end, &bytes))
			continue;
		from = HP_MIN(from, begin + displs[i] * extent);
		to = HP_MAX(to, end + displs[i] * extent);
		payload += bytes;
	}
	if (!payload)
		return;
	if (buf == MPI_BOTTOM) {
		COUNT(bottom);
		return;
	}
	buffer_add(c, (uintptr_t)buf + (uintptr_t)from, to - from, payload, dir, HP_PEER_NONE);
}

void hp_call_pin(struct hp_call *c)
{
	acquire(&c->transfer, c);
}

void hp_call_end(struct hp_call *c)
{
	release(&c->transfer);
	call_leave(c);
}

/* ------------------------------------------------------------------ requests */

static struct hp_request **bucket_of(MPI_Request handle)
{
	return &requests[((uint64_t)(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
}

static void request_insert(struct hp_call *c, MPI_Request handle, bool persistent)
{
	struct hp_request *r = malloc(sizeof *r);

	if (!r) { /* pinned for too short a time, but never for ever */
		release(&c->transfer);
		COUNT(not_pinned);
		return;
	}
	*r = (struct hp_request){ .handle = handle, .persistent = persistent, .transfer = c->transfer };
	pthread_mutex_lock(&lock);
	struct hp_request **b = bucket_of(handle);
	r->next = *b;
	*b = r;
	requests_count++;
	pthread_mutex_unlock(&lock);
}

/* Caller holds `lock`. */
static struct hp_request *request_find(MPI_Request handle)
{
	struct hp_request *r = *bucket_of(handle);

	while (r && (r->handle != handle || r->claimed))
		r = r->next;
	return r;
}

static void request_remove(struct hp_request *r)
{
	pthread_mutex_lock(&lock);
	struct hp_request **at = bucket_of(r->handle);
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	requests_count--;
	pthread_mutex_unlock(&lock);
}

void hp_call_end_request(struct hp_call *c, int err, MPI_Request handle)
{
	if (err != MPI_SUCCESS)
		release(&c->transfer);
	else if (c->transfer.count)
		request_insert(c, handle, false);
	call_leave(c);
}

void hp_call_end_init(struct hp_call *c, int err, MPI_Request handle)
{
	if (err == MPI_SUCCESS && c->transfer.count)
		request_insert(c, handle, true);
	call_leave(c);
}

void hp_requests_start(struct hp_call *c, int n, const MPI_Request *handles)
{
	for (int i = 0; i < n && requests_count; i++) {
		pthread_mutex_lock(&lock);
		struct hp_request *r = request_find(handles[i]);
		pthread_mutex_unlock(&lock);
		if (r) {
			release(&r->transfer); /* nothing, unless a call that we do not see has completed it */
			acquire(&r->transfer, c);
		}
	}
}

void hp_requests_claim(struct hp_call *c, int n, const MPI_Request *handles)
{
	struct hp_claims *claims = &c->claims;

	claims->n = requests_count ? n : 0;
	claims->of = claims->few;
	if (claims->n > (int)(sizeof claims->few / sizeof *claims->few))
		claims->of = malloc((size_t)n * sizeof *claims->of);
	if (!claims->of)
		claims->n = 0;
	if (!claims->n)
		return;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < claims->n; i++) {
		claims->of[i] = request_find(handles[i]);
		if (claims->of[i])
			claims->of[i]->claimed = true;
	}
	pthread_mutex_unlock(&lock);
}

/* MPI_Wait and MPI_Test make the handle of a request that is done null; a persistent one stays, and is inactive,
 * which MPI calls done. */
static bool request_done(const struct hp_request *r, MPI_Request now)
{
	int done = now == MPI_REQUEST_NULL;

	if (r->persistent && !done)
		REAL(Request_get_status)(now, &done, MPI_STATUS_IGNORE);
	return done;
}

void hp_requests_settle(struct hp_call *c, const MPI_Request *handles)
{
	struct hp_claims *claims = &c->claims;

	for (int i = 0; i < claims->n; i++) {
		struct hp_request *r = claims->of[i];
		bool done = r && request_done(r, handles[i]);

		if (done)
			release(&r->transfer);
		if (done && !r->persistent) {
			request_remove(r);
			free(r);
			claims->of[i] = NULL; /* the next one's test may be left */
		} else if (r) {
			pthread_mutex_lock(&lock);
			r->claimed = false;
			pthread_mutex_unlock(&lock);
		}
	}
	claims->n = 0;
	if (claims->of != claims->few)
		free(claims->of);
}

/* Whether they are done nobody knows. */
static void claims_drop(struct hp_claims *claims)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < claims->n; i++)
		if (claims->of[i])
			claims->of[i]->claimed = false;
	pthread_mutex_unlock(&lock);
	if (claims->n && claims->of != claims->few)
		free(claims->of);
	claims->n = 0;
}

/* Caller holds `lock`. */
static void orphan_append(struct hp_request *r)
{
	r->next = NULL;
	*orphans_end = r;
	orphans_end = &r->next;
}

int hp_request_free(struct hp_call *c, MPI_Request *handle, int (*next)(MPI_Request *))
{
	int done = 1, err = MPI_SUCCESS;
	struct hp_request *r;

	hp_requests_claim(c, 1, handle);
	r = c->claims.n ? c->claims.of[0] : NULL;
	c->claims.n = 0;
	if (!r)
		return next(handle);
	REAL(Request_get_status)(*handle, &done, MPI_STATUS_IGNORE);
	request_remove(r);
	if (done) {
		err = next(handle);
		release(&r->transfer);
		free(r);
		return err;
	}
	*handle = MPI_REQUEST_NULL;
	pthread_mutex_lock(&lock);
	orphan_append(r);
	orphans_count++;
	pthread_mutex_unlock(&lock);
	return err;
}

/* Test the oldest until so many are found not to be done; those go to the end, so that each is tested in its turn. */
static void orphans_poll(int tests)
{
	struct hp_request *done = NULL, *r;

	pthread_mutex_lock(&lock);
	while (tests && (r = orphans)) {
		int flag = 0;

		orphans = r->next;
		if (!orphans)
			orphans_end = &orphans;
		pthread_mutex_unlock(&lock); /* the program's error handler may leave */
		REAL(Test)(&r->handle, &flag, MPI_STATUS_IGNORE);
		pthread_mutex_lock(&lock);
		if (!flag) {
			orphan_append(r);
			tests--;
			continue;
		}
		orphans_count--;
		r->next = done;
		done = r;
	}
	pthread_mutex_unlock(&lock);
	while ((r = done)) {
		done = r->next;
		if (r->persistent)
			REAL(Request_free)(&r->handle);
		release(&r->transfer);
		free(r);
	}
}

/* ------------------------------------------------------------------ windows */

void hp_call_end_window(struct hp_call *c, int err, MPI_Win win, int target)
{
	if (err != MPI_SUCCESS) {
		release(&c->transfer);
	} else if (c->transfer.count) {
		struct hp_exposure *e = malloc(sizeof *e);

		if (e)
			*e = (struct hp_exposure){ .transfer = c->transfer };
		if (!e || !hp_windows_add(win, target, e)) {
			free(e);
			release(&c->transfer);
			COUNT(not_pinned);
		}
	}
	call_leave(c);
}

void hp_window_close(MPI_Win win, int target)
{
	for (struct hp_exposure *e = hp_windows_take(win, target), *next; e; e = next) {
		next = e->next;
		release(&e->transfer);
		free(e);
	}
}

/* ------------------------------------------------------------------ beginning and end */

static void options_load(void)
{
#define OPTION(NAME, member, type, def, min, max, words, sentence) \
	{ "HUGEPIN_" #NAME, HP_##type, def, min, max, words, sentence, 0 },
	static const struct hp_option table[] = { HP_MPI_OPTIONS(OPTION) };
#define TARGET(NAME, member, ...) &options.member,
	static int64_t *const targets[] = { HP_MPI_OPTIONS(TARGET) };
	char accepts[256];

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		const char *text = secure_getenv(table[i].name);

		if (text && hp_option_parse(&table[i], text, targets[i]) < 0)
			fprintf(stderr, "hugepin: %s=%.48s is not understood: it takes %s\n", table[i].name, text,
				hp_option_accepts(&table[i], accepts, sizeof accepts));
	}
	for (char **e = environ; *e; e++) {
		const size_t len = strcspn(*e, "=");
		bool known = strncmp(*e, "HUGEPIN_MPI_", 12) || !strncmp(*e, "HUGEPIN_MPI_TRACE=", 18);

		for (size_t i = 0; !known && i < sizeof table / sizeof *table; i++)
			known = strlen(table[i].name) == len && !memcmp(table[i].name, *e, len);
		if (!known)
			fprintf(stderr, "hugepin: %.*s is not known; see hugepin_mpi(7)\n", (int)HP_MIN(len, (size_t)48), *e);
	}
}

/* Ranks of this job on this machine, who have one user's limit together. */
static unsigned ranks_here(void)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS" };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *text = secure_getenv(names[i]);
		long n = text ? strtol(text, NULL, 10) : 0;

		if (n > 0)
			return (unsigned)n;
	}
	return 1;
}

static int uring_open(struct hugepin_attr *attr)
{
	struct hugepin_domain_stats s;
	const unsigned ranks = ranks_here();
	int err = io_uring_queue_init(1, &ring, 0);

	if (err < 0)
		return err;
	err = hugepin_uring_open(&ring, 0, SLOTS, attr, &domain);
	if (err < 0) {
		io_uring_queue_exit(&ring);
		return err;
	}
	/* What one rank keeps registered another cannot have. */
	if (!attr->pinned_bytes_max && ranks > 1 && hugepin_domain_stats(domain, &s, sizeof s) > 0 && s.bytes_max &&
	    !hugepin_domain_close(domain)) {
		attr->pinned_bytes_max = HP_MAX(s.bytes_max / ranks, (uint64_t)1);
		domain = NULL;
		err = hugepin_uring_open(&ring, 0, SLOTS, attr, &domain);
	}
	return err;
}

/* Nothing of it is given back: the device is open until the process ends. */
static int verbs_open(struct hugepin_attr *attr)
{
#define FROM(name) __typeof__(&name) name##_ = (__typeof__(&name))dlsym(library, #name)
	void *library = dlopen(HP_SONAME("libhugepin-verbs"), RTLD_NOW);

	if (!library) {
		fprintf(stderr, "hugepin: %s\n", dlerror());
		return -ENOENT;
	}
	FROM(hugepin_verbs_open);
	FROM(ibv_get_device_list);
	FROM(ibv_open_device);
	FROM(ibv_alloc_pd);
	if (!hugepin_verbs_open_ || !ibv_get_device_list_ || !ibv_open_device_ || !ibv_alloc_pd_)
		return -ENOENT;
	struct ibv_device **devices = ibv_get_device_list_(NULL);
	if (!devices || !devices[0])
		return -ENODEV;
	struct ibv_context *context = ibv_open_device_(devices[0]);
	struct ibv_pd *pd = context ? ibv_alloc_pd_(context) : NULL;
	return pd ? hugepin_verbs_open_(pd, attr, &domain) : -ENODEV;
}

void hp_layer_open(void)
{
	struct hugepin_attr attr = { .size = sizeof attr };
	const char *trace = secure_getenv("HUGEPIN_MPI_TRACE"), *stats = secure_getenv("HUGEPIN_STATS");
	int err;

	if (is_open)
		return;
	if (!hp_mpi_is_ours()) {
		hp_pass_through();
		return;
	}
	options_load();
	REAL(Comm_rank)(MPI_COMM_WORLD, &rank);
	stats_on = stats && !strcmp(stats, "1");
	attr.pinned_bytes_max = options.budget == HP_MPI_BUDGET_NONE ? UINT64_MAX : (uint64_t)options.budget;
	err = options.backend == HP_MPI_VERBS ? verbs_open(&attr) : uring_open(&attr);
	if (err < 0) {
		domain = NULL;
		if (stats_on || options.strict)
			fprintf(stderr, "hugepin: MPI rank %d: no domain, nothing is registered: %s\n", rank, strerror(-err));
		if (options.strict)
			REAL(Abort)(MPI_COMM_WORLD, 1);
	}
	if (trace && *trace)
		hp_trace_open(trace, rank, (size_t)options.min);
	opened_ns = sampled_ns = hp_now_ns();
	is_open = true;
}

/* Processor time that the library's own threads have had, in ns. */
static uint64_t threads_ns(void)
{
	DIR *tasks = opendir("/proc/self/task");
	uint64_t sum = 0;

	for (struct dirent *d; tasks && (d = readdir(tasks));) {
		char path[64], text[64];

		snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", d->d_name);
		if (hp_read_file(path, text, sizeof text) <= 0 || strncmp(text, "hugepin", 7))
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", d->d_name);
		if (hp_read_file(path, text, sizeof text) > 0)
			sum += strtoull(text, NULL, 10);
	}
	if (tasks)
		closedir(tasks);
	return sum;
}

static void left(struct hp_transfer *t)
{
	for (int i = 0; i < t->count; i++)
		if (t->buffers[i].pins_count || t->buffers[i].row)
			COUNT(left);
	release(t);
}

/* One line, "key=value", in one write: ranks share stderr. */
static void report(void)
{
	const uint64_t ns = hp_now_ns() - opened_ns;
	struct hugepin_domain_stats s = { 0 };
	char line[4096];
	int n;

	hugepin_domain_stats(domain, &s, sizeof s);
	n = snprintf(line, sizeof line, "hugepin: MPI rank %d: ns=%" PRIu64 " average_bytes=%.0f", rank, ns,
		     byte_ns / (double)HP_MAX(ns, UINT64_C(1)));
#define PRINT_COUNTER(name) n += snprintf(line + n, sizeof line - (size_t)n, " " #name "=%" PRIu64, counters.name);
	COUNTERS(PRINT_COUNTER)
#define PRINT_STATISTIC(name, unit, sentence) n += snprintf(line + n, sizeof line - (size_t)n, " " #name "=%" PRIu64, s.name);
	HUGEPIN_DOMAIN_STATS_LIST(PRINT_STATISTIC)
	n += snprintf(line + n, sizeof line - (size_t)n, " threads_ns=%" PRIu64 "\n", threads_ns());
	(void)!write(STDERR_FILENO, line, (size_t)n);
}

void hp_layer_close(void)
{
	int err;

	if (!is_open)
		return;
	if (inside)
		call_abandon();
	if (orphans_count)
		orphans_poll(orphans_count);
	for (int i = 0; i < BUCKETS; i++)
		for (struct hp_request *r = requests[i], *next; r; r = next) {
			next = r->next;
			left(&r->transfer);
			free(r);
		}
	for (struct hp_request *r = orphans, *next; r; r = next) { /* freed by the program: it may end so */
		next = r->next;
		REAL(Request_free)(&r->handle);
		release(&r->transfer);
		free(r);
	}
	for (struct hp_exposure *e = hp_windows_take_all(), *next; e; e = next) {
		next = e->next;
		left(&e->transfer);
		free(e);
	}
	memset(requests, 0, sizeof requests);
	orphans = NULL;
	orphans_end = &orphans;
	requests_count = orphans_count = 0;
	is_open = false;
	sample();
	if (hp_trace_on && (err = hp_trace_close()) < 0)
		fprintf(stderr, "hugepin: MPI rank %d: the trace could not be written: %s\n", rank, strerror(-err));
	if (!domain)
		return;
	if (stats_on)
		report();
	if (!hugepin_domain_close(domain) && options.backend == HP_MPI_URING)
		io_uring_queue_exit(&ring);
	domain = NULL;
}
