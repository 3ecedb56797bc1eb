/*
 * See cache.h.
 *
 * Whether memory is still the same is the pin cache's to know. A domain of its own, whose backend registers nothing,
 * gives each range a token. A token ends when its memory goes away, or when the budget needs the room. So a
 * registration that was made while its token was pinned is of the same memory for as long as that token is found:
 *
 *	reg	pin the range, which gives a token. Hand out a registration that the token has, or make one.
 *	dereg	give the registration to its token, and unpin.
 *	a token ends	deregister what it has.
 *
 * Tokens are pinned for remote access, since such a pin is registered by itself: no other range ends it or takes its
 * place (HUGEPIN_REACH_EXACT). Memory that cannot be watched gets a token for each pin. So it is never kept.
 *
 * An entry is `owned` by the program, with a pin of its token; or it is `idle`, in the list of its token; or it is
 * `leaving`: a thread is deregistering it.
 *
 * Locks: the domain's is held where a token is made or ends. The cache's is taken inside that one, and nothing is
 * called with it held.
 */
#include "cache.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <unistd.h>

#include "hugepin.h"
#include "real.h"

enum { BUCKETS = 4096 };

struct entry {
	struct ibv_mr *mr;
	struct ibv_mr made; /* as libibverbs made it */
	unsigned access;
	struct hugepin_pin pin; /* of an owned entry */
	uint64_t turn; /* of a leaving entry */
	struct entry *next; /* of leaving entries that one thread deregisters */
	LIST_ENTRY(entry) member; /* of a bucket, or of the token's list */
	TAILQ_ENTRY(entry) order; /* in `idle` or `leaving` */
};
LIST_HEAD(entries, entry);
TAILQ_HEAD(queue, entry);

struct token {
	struct entries idle;
	LIST_ENTRY(token) member; /* where detectors of leaks find it: they do not look into the pin cache's tables */
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t left; /* an entry has left */
	struct entries owned[BUCKETS]; /* by the address of the ibv_mr */
	struct queue idle, leaving;
	LIST_HEAD(tokens, token) tokens;
	uint64_t turn; /* of the newest entry in `leaving` */
	size_t idle_bytes, idle_max;
} cache = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.left = PTHREAD_COND_INITIALIZER,
	.idle = TAILQ_HEAD_INITIALIZER(cache.idle),
	.leaving = TAILQ_HEAD_INITIALIZER(cache.leaving),
};

struct hp_verbscache_counters hp_verbscache_counters;

static hugepin_domain *domain; /* of the tokens; NULL: it could not be opened */
static _Thread_local unsigned inside; /* this thread has the lock, or deregisters */

static void lock(void)
{
	inside++;
	pthread_mutex_lock(&cache.lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&cache.lock);
	inside--;
}

/* ------------------------------------------------------------------ entries */

static struct entries *bucket_of(const struct ibv_mr *mr)
{
	return &cache.owned[((uintptr_t)mr >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 52];
}

/* Take the entry of a registration from the program. */
static struct entry *take_owned(const struct ibv_mr *mr)
{
	struct entry *e;

	lock();
	LIST_FOREACH(e, bucket_of(mr), member)
		if (e->mr == mr)
			break;
	if (e)
		LIST_REMOVE(e, member);
	unlock();
	return e;
}

static void own(struct entry *e)
{
	lock();
	LIST_INSERT_HEAD(bucket_of(e->mr), e, member);
	unlock();
}

/* What the kernel counts: each registration in full, also those of the same memory. */
static size_t bytes_of(const struct entry *e)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)e->made.addr;

	return ((start + e->made.length + page - 1) & -page) - (start & -page);
}

/* Call with the lock. */
static void remove_idle(struct entry *e)
{
	LIST_REMOVE(e, member);
	TAILQ_REMOVE(&cache.idle, e, order);
	cache.idle_bytes -= bytes_of(e);
}

/* Take an equal registration from a token that the caller has pinned. */
static struct entry *take_idle(struct token *t, const struct ibv_pd *pd, const void *addr, size_t len, unsigned access)
{
	struct entry *e;

	lock();
	LIST_FOREACH(e, &t->idle, member)
		if (e->made.pd == pd && e->made.addr == addr && e->made.length == len && e->access == access)
			break;
	if (e)
		remove_idle(e);
	unlock();
	return e;
}

/* ------------------------------------------------------------------ deregistering */

/* Have an idle entry leave, before those in *chain. Call with the lock. */
static void leave(struct entry *e, struct entry **chain)
{
	remove_idle(e);
	TAILQ_INSERT_TAIL(&cache.leaving, e, order);
	e->turn = ++cache.turn;
	e->next = *chain;
	*chain = e;
}

/* Keep an entry. Returns those that leave, the oldest, to make room for it. */
static struct entry *put_idle(struct token *t, struct entry *e)
{
	struct entry *chain = NULL;

	lock();
	LIST_INSERT_HEAD(&t->idle, e, member);
	TAILQ_INSERT_TAIL(&cache.idle, e, order);
	cache.idle_bytes += bytes_of(e);
	while (cache.idle_bytes > cache.idle_max)
		leave(TAILQ_FIRST(&cache.idle), &chain);
	unlock();
	return chain;
}

/* Deregister a chain of leaving entries. What the device refuses stays with it: nobody is left to tell. */
static void deregister(struct entry *chain)
{
	int saved_errno = errno;

	inside++;
	while (chain) {
		struct entry *e = chain;

		chain = e->next;
		hp_real()->dereg(e->mr);
		lock();
		TAILQ_REMOVE(&cache.leaving, e, order);
		pthread_cond_broadcast(&cache.left);
		unlock();
		free(e);
	}
	inside--;
	errno = saved_errno;
}

static bool is_of(const struct entry *e, const struct ibv_pd *pd, const struct ibv_context *context)
{
	return (!pd || e->made.pd == pd) && (!context || e->made.context == context);
}

/* Whether an entry that left by then is being deregistered. Call with the lock. */
static bool is_leaving(uint64_t turn, const struct ibv_pd *pd, const struct ibv_context *context)
{
	const struct entry *e;

	TAILQ_FOREACH(e, &cache.leaving, order)
		if (e->turn <= turn && is_of(e, pd, context))
			return true;
	return false;
}

bool hp_cache_drop(const struct ibv_pd *pd, const struct ibv_context *context)
{
	struct entry *chain = NULL, *e, *next;
	uint64_t turn;
	bool any;

	lock();
	for (e = TAILQ_FIRST(&cache.idle); e; e = next) {
		next = TAILQ_NEXT(e, order);
		if (is_of(e, pd, context))
			leave(e, &chain);
	}
	turn = cache.turn;
	any = is_leaving(turn, pd, context);
	unlock();

	deregister(chain);

	lock();
	while (is_leaving(turn, pd, context))
		pthread_cond_wait(&cache.left, &cache.lock);
	unlock();
	return any;
}

/* ------------------------------------------------------------------ the backend, whose registrations are tokens */

/* Both keys together are the address of the token. */
static struct token *token_of(uint32_t lkey, uint32_t rkey)
{
	return (struct token *)((uintptr_t)rkey << 32 | lkey);
}

static int token_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	struct token *t = malloc(sizeof *t);

	(void)ctx, (void)addr, (void)len, (void)access;
	if (!t)
		return -ENOMEM;
	LIST_INIT(&t->idle);
	lock();
	LIST_INSERT_HEAD(&cache.tokens, t, member);
	unlock();
	*ret_ = (struct hugepin_reg){ (uint32_t)(uintptr_t)t, (uint32_t)((uintptr_t)t >> 32), 0 };
	return 0;
}

/* No pin of the token is out: its entries are idle, and no other thread finds them by it. */
static int token_dereg(void *ctx, struct hugepin_reg *reg)
{
	struct token *t = token_of(reg->lkey, reg->rkey);
	struct entry *chain = NULL, *e;

	(void)ctx;
	lock();
	LIST_REMOVE(t, member);
	while ((e = LIST_FIRST(&t->idle)))
		leave(e, &chain);
	unlock();
	deregister(chain);
	free(t);
	return 0;
}

static int token_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_REMOTE_READ,
					 .bytes_max = cache.idle_max };
	return 0;
}

/* ------------------------------------------------------------------ the domain */

/* libibverbs may have told the kernel to leave registered memory out of children. A child is to have what the program
 * has given back. A signal handler may fork wherever it interrupts this thread: then what is kept stays. */
static void before_fork(void)
{
	if (!inside && hp_cache_is_ours())
		hp_cache_drop(NULL, NULL);
}

static void open_domain(void)
{
	static const struct hugepin_backend backend = {
		.size = sizeof backend,
		.name = "verbscache",
		.reg = token_reg,
		.dereg = token_dereg,
		.limits = token_limits,
	};
	const struct hugepin_attr attr = {
		.size = sizeof attr,
		.policy = HUGEPIN_POLICY_LRU,
		.access = HUGEPIN_REMOTE_READ,
		.watch = HUGEPIN_WATCH_KERNEL, /* programs unmap by ways of which libhugepin-malloc.so does not hear */
	};
	size_t limit = hugepin_memlock();

	/* The other half is for what the program registers otherwise, and for its queues. */
	cache.idle_max = limit ? (limit + 1) / 2 : SIZE_MAX;
	if (!hugepin_domain_open(&backend, NULL, &attr, &domain) && pthread_atfork(before_fork, NULL, NULL)) {
		hugepin_domain_close(domain);
		domain = NULL;
	}
}

static bool *ours; /* NULL, or in a page that the kernel empties in a child of fork */

static void take(void)
{
	int saved_errno = errno;
	bool *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page != MAP_FAILED && !madvise(page, sizeof *page, MADV_WIPEONFORK)) {
		*page = true;
		ours = page;
	}
	errno = saved_errno;
}

bool hp_cache_is_ours(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, take);
	return ours && *ours;
}

static bool pin(const void *addr, size_t len, struct hugepin_pin *ret_)
{
	static pthread_once_t opened = PTHREAD_ONCE_INIT;

	pthread_once(&opened, open_domain);
	return domain && !hugepin_pin(domain, addr, len, HUGEPIN_REMOTE_READ, ret_);
}

/* ------------------------------------------------------------------ what the program asks for */

/* The program's registration is its own from now on. */
static void forget(struct entry *e)
{
	hugepin_unpin(domain, &e->pin);
	free(e);
}

void hp_cache_disown(const struct ibv_mr *mr)
{
	struct entry *e = take_owned(mr);

	if (e)
		forget(e);
}

struct ibv_mr *hp_cache_pass(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	struct ibv_mr *mr = hp_real()->reg(pd, addr, len, iova, access);

	if (!mr && (errno == ENOMEM || errno == EAGAIN || errno == ENOSPC) && hp_cache_drop(NULL, NULL))
		mr = hp_real()->reg(pd, addr, len, iova, access);
	if (mr) {
		HP_VERBSCACHE_COUNT(made);
		/* Another one that was here has gone by a call that did not come through this library. */
		hp_cache_disown(mr);
	}
	return mr;
}

/* Make a registration that may be kept. Without memory for its entry it is not. */
static struct ibv_mr *make(struct ibv_pd *pd, void *addr, size_t len, unsigned access, struct hugepin_pin *p)
{
	struct ibv_mr *mr = hp_cache_pass(pd, addr, len, (uintptr_t)addr, access);
	struct entry *e = mr ? malloc(sizeof *e) : NULL;

	if (!e) {
		hugepin_unpin(domain, p);
		return mr;
	}
	*e = (struct entry){ .mr = mr, .made = *mr, .access = access, .pin = *p };
	own(e);
	return mr;
}

struct ibv_mr *hp_cache_reg(struct ibv_pd *pd, void *addr, size_t len, unsigned access)
{
	struct hugepin_pin p;
	struct entry *e;

	if (!pin(addr, len, &p))
		return hp_cache_pass(pd, addr, len, (uintptr_t)addr, access);
	e = take_idle(token_of(p.lkey, p.rkey), pd, addr, len, access);
	if (!e)
		return make(pd, addr, len, access, &p);
	HP_VERBSCACHE_COUNT(kept);
	e->pin = p;
	own(e);
	return e->mr;
}

/* Without the padding behind the last member, rkey. */
static bool is_as_made(const struct entry *e)
{
	return !memcmp(e->mr, &e->made, offsetof(struct ibv_mr, rkey) + sizeof e->mr->rkey);
}

int hp_cache_dereg(struct ibv_mr *mr)
{
	struct entry *e = take_owned(mr);
	struct entry *chain;
	struct hugepin_pin p;

	/* A registration that is not as it was made is another one at the same address, or was written to. */
	if (e && !is_as_made(e)) {
		forget(e);
		e = NULL;
	}
	if (!e)
		return hp_real()->dereg(mr);
	/* The entry is idle before its token is unpinned: if the memory has gone, the token ends there, and the entry
	 * with it. Another thread may have the entry by then. */
	p = e->pin;
	chain = put_idle(token_of(p.lkey, p.rkey), e);
	hugepin_unpin(domain, &p);
	deregister(chain);
	return 0;
}
