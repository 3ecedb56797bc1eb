/* The soak's threads, places, slots, options and counts. */
#ifndef TESTS_SOAK_STATE_H
#define TESTS_SOAK_STATE_H

#include <hugepin_uring.h>
#include <liburing.h>

#include "../live/live.h"

enum { THREADS = 8, CHANGER = THREADS, SLOTS = 160, KEPT = 2, FLIGHT_BYTES = 4096, IO_MAX = 65536 };

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { SANITIZED = true };
#else
enum { SANITIZED = false };
#endif
#ifdef __SANITIZE_THREAD__
enum { FORKS = false }; /* a child of many threads does not go on under TSan */
#else
enum { FORKS = true };
#endif

/* A domain and its ring. Each thread has a place of its own, and pins in all places. All threads share the last place:
 * in a domain that one thread alone uses, only that thread unmaps registered memory. */
static struct place {
	hugepin_domain *domain;
	struct io_uring ring;
	bool has_ring;
	pthread_mutex_t lock; /* of the ring that all threads share */
} places[THREADS + 1];
#define COMMON (&places[THREADS])

static struct slot {
	pthread_mutex_t lock;
	/* Watchers read p without the lock. p is set after size, and cleared before the memory goes. */
	char *_Atomic p;
	_Atomic size_t size;
	uint64_t seed; /* of the pattern in the memory */
	bool foreign, by_malloc;
	size_t hidden_at, hidden_len; /* the part that MADV_DONTFORK keeps out of a child, */
	bool wiped; /* or that a child gets as zeros */
	struct {
		int place;
		struct hugepin_pin pin;
	} kept[KEPT];
	int held_place;
	struct hugepin_key held; /* of a pin that was given back; of memory that the slot still has */
} slots[SLOTS];

/* A read of a pipe into a slot's memory. The kernel reads once the pipe has bytes. */
struct flight {
	struct slot *slot; /* locked; NULL: none */
	size_t at;
	struct hugepin_pin pin;
	int hops; /* operations of the thread until the read ends */
};

struct worker {
	uint64_t rand;
	struct place *place;
	int file, pipe[2]; /* the file is as long as IO_MAX */
	char *buffer; /* IO_MAX bytes of the worker's own */
	struct flight flight;
	_Atomic(const char *) doing;
	_Atomic unsigned long done;
	pthread_t thread;
	int with; /* the argument of its change */
};
/* The last worker changes the process. */
static struct worker workers[THREADS + 1];

static struct {
	uint64_t seed;
	double seconds;
	int rounds;
	long low, high; /* pages of the pool; 0: leave the pool alone */
	int stuck; /* seconds after which an operation has hung */
} option = { .seconds = 1200, .rounds = 4, .stuck = 100 };

static bool preloaded;
static _Atomic bool stop;
static _Atomic uint64_t seeds;
static _Atomic unsigned long count_pins, count_refused, count_io, count_keys, count_keys_ended, count_passed, count_forks, count_forks_refused,
	count_left, count_nomem, count_hidden;

static bool in_child;

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER; /* held by the thread that changes the process */

#endif
