/*
 * Requests, found by their handles. The table may hold a handle more than once, for two reasons. MPI reuses a handle
 * as soon as its request is done, perhaps for another thread, before the layer has noticed. And requests that were
 * already done when they began may share one handle. The newest entry comes first. An entry that a Wait or Test has
 * claimed is not found by others.
 *
 * If a Wait was left by longjmp or throw, its request keeps its pins until a later Wait finds the request done, or
 * until MPI_Finalize.
 *
 * Locks: `lock` guards the table and the orphans. It is not held while the domain or MPI is called.
 */
#include "requests.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "domain.h"
#include "next.h"
#include "report.h"
#include "transfer.h"

enum { BUCKETS = 1024 };
/* The number of unfinished orphans tested in one call. Each test costs some 0.2 us, and there may be thousands. */
enum { ORPHANS_AT_ONCE = 2 };

struct hp_request {
	struct hp_request *next;
	MPI_Request handle;
	bool persistent, claimed, orphan;
	bool waited; /* the domain was told that the program waits for it */
	struct hp_transfer transfer;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hp_request *requests[BUCKETS];
/* relaxed: the lock; outside, a thread looks for requests of its own */
static _Atomic int requests_count;
/* Orphans: requests that the program freed while they were under way. The oldest comes first. */
static struct hp_request *orphans, **orphans_end = &orphans;
static _Atomic int orphans_count; /* relaxed: the lock; outside a hint: the next call tests them */

/* Changed under the lock. Read without the lock, to skip the search if there are none: requests of this thread are
 * always counted. */
static bool any_requests(void)
{
	return atomic_load_explicit(&requests_count, memory_order_relaxed);
}

static struct hp_request **request_bucket(MPI_Request handle)
{
	return &requests[((uint64_t)(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
}

void hp_requests_add(struct hp_call *c, MPI_Request handle, bool persistent)
{
	struct hp_request *r = malloc(sizeof *r);

	if (!r) { /* unpin early rather than never */
		hp_transfer_release(&c->transfer);
		HP_MPI_COUNT(not_pinned);
		return;
	}
	*r = (struct hp_request){ .handle = handle, .persistent = persistent, .transfer = c->transfer };
	pthread_mutex_lock(&lock);
	struct hp_request **b = request_bucket(handle);
	r->next = *b;
	*b = r;
	atomic_fetch_add_explicit(&requests_count, 1, memory_order_relaxed);
	pthread_mutex_unlock(&lock);
}

/* Caller holds `lock`. */
static struct hp_request *request_find(MPI_Request handle)
{
	struct hp_request *r = *request_bucket(handle);

	while (r && (r->handle != handle || r->claimed))
		r = r->next;
	return r;
}

static void request_remove(struct hp_request *r)
{
	pthread_mutex_lock(&lock);
	struct hp_request **at = request_bucket(r->handle);
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	atomic_fetch_sub_explicit(&requests_count, 1, memory_order_relaxed);
	pthread_mutex_unlock(&lock);
}

void hp_requests_start(struct hp_call *c, int n, const MPI_Request *handles)
{
	for (int i = 0; handles && i < n && any_requests(); i++) {
		pthread_mutex_lock(&lock);
		struct hp_request *r = request_find(handles[i]);
		pthread_mutex_unlock(&lock);
		if (r) {
			/* Pins remain if the request was completed by a call that we do not see. */
			hp_transfer_release(&r->transfer);
			hp_transfer_acquire(&r->transfer, c);
			r->waited = false;
		}
	}
}

void hp_requests_announce(int n, const MPI_Request *handles)
{
	for (int i = 0; handles && i < n && hp_mpi_phases && any_requests(); i++) {
		pthread_mutex_lock(&lock);
		const struct hp_request *r = request_find(handles[i]);
		pthread_mutex_unlock(&lock);
		if (r)
			hp_transfer_phase(&r->transfer, 0, HP_ANY_DIR);
	}
}

void hp_requests_claim(struct hp_call *c, int n, const MPI_Request *handles)
{
	struct hp_claims *claims = &c->claims;

	claims->n = handles && n > 0 && any_requests() ? n : 0;
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

/* Whether a request is done. MPI_Wait and MPI_Test set the handle of a finished request to null. A persistent request
 * keeps its handle and becomes inactive, which MPI reports as done. */
static bool request_done(const struct hp_request *r, MPI_Request now)
{
	int done = now == MPI_REQUEST_NULL;

	if (r->persistent && !done)
		REAL(Request_get_status)(now, &done, MPI_STATUS_IGNORE);
	return done;
}

void hp_requests_wait(const struct hp_call *c, const MPI_Request *handles, bool again)
{
	for (int i = 0; i < c->claims.n && hp_mpi_phases; i++) {
		struct hp_request *r = c->claims.of[i];
		int done = handles[i] == MPI_REQUEST_NULL;

		if (!r || (r->waited && !again))
			continue;
		if (!done)
			REAL(Request_get_status)(handles[i], &done, MPI_STATUS_IGNORE);
		if (done)
			continue;
		r->waited = true;
		hp_transfer_phase(&r->transfer, HUGEPIN_PREFETCH_WAIT, HP_ANY_DIR);
	}
}

void hp_requests_settle(struct hp_call *c, const MPI_Request *handles)
{
	struct hp_claims *claims = &c->claims;

	for (int i = 0; i < claims->n; i++) {
		struct hp_request *r = claims->of[i];
		bool done = r && request_done(r, handles[i]);

		if (done)
			hp_transfer_release(&r->transfer);
		if (done && !r->persistent) {
			request_remove(r);
			free(r);
			claims->of[i] = NULL; /* testing the next request may be left by longjmp */
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

void hp_requests_unclaim(struct hp_claims *claims)
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
		hp_transfer_release(&r->transfer);
		free(r);
		return err;
	}
	*handle = MPI_REQUEST_NULL;
	pthread_mutex_lock(&lock);
	orphan_append(r);
	atomic_fetch_add_explicit(&orphans_count, 1, memory_order_relaxed);
	pthread_mutex_unlock(&lock);
	return err;
}

/* Test the oldest orphans, until `tests` of them were not done. These go to the end, so that each orphan gets its
 * turn. */
static void poll_orphans(int tests)
{
	struct hp_request *done = NULL, *r;

	pthread_mutex_lock(&lock);
	while (tests && (r = orphans)) {
		int flag = 0;

		orphans = r->next;
		if (!orphans)
			orphans_end = &orphans;
		/* not held during the test: the program's error handler may leave the test */
		pthread_mutex_unlock(&lock);
		REAL(Test)(&r->handle, &flag, MPI_STATUS_IGNORE);
		pthread_mutex_lock(&lock);
		if (!flag) {
			orphan_append(r);
			tests--;
			continue;
		}
		atomic_fetch_sub_explicit(&orphans_count, 1, memory_order_relaxed);
		r->next = done;
		done = r;
	}
	pthread_mutex_unlock(&lock);
	while ((r = done)) {
		done = r->next;
		if (r->persistent)
			REAL(Request_free)(&r->handle);
		hp_transfer_release(&r->transfer);
		free(r);
	}
}

void hp_requests_test_orphans(void)
{
	if (__builtin_expect(!!atomic_load_explicit(&orphans_count, memory_order_relaxed), 0))
		poll_orphans(ORPHANS_AT_ONCE);
}

void hp_requests_close(void)
{
	const int count = atomic_load_explicit(&orphans_count, memory_order_relaxed);

	if (count)
		poll_orphans(count);
	for (int i = 0; i < BUCKETS; i++)
		for (struct hp_request *r = requests[i], *next; r; r = next) {
			next = r->next;
			hp_transfer_release_left(&r->transfer);
			free(r);
		}
	/* The program may end before requests that it freed are done. */
	for (struct hp_request *r = orphans, *next; r; r = next) {
		next = r->next;
		REAL(Request_free)(&r->handle);
		hp_transfer_release(&r->transfer);
		free(r);
	}
	memset(requests, 0, sizeof requests);
	orphans = NULL;
	orphans_end = &orphans;
	atomic_store_explicit(&requests_count, 0, memory_order_relaxed);
	atomic_store_explicit(&orphans_count, 0, memory_order_relaxed);
}
