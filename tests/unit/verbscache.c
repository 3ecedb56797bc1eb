/*
 * The cache of registrations over a libibverbs that knows which of its memory regions live, and of which memory: what
 * is kept, what is not, and when what was kept goes. Random runs, of one thread and of several, with memory that is
 * mapped anew under them.
 */
#include "extra/verbscache/cache.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/memlock.h"
#include "reg/domains.h"
#include "reg/uffd.h"
#include "reg/unmapping.h"
#include "tests/live/live.h"
#include "extra/verbscache/options.h"
#include "extra/verbscache/real.h"

#define ALL ((unsigned)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE))
#define LOCAL ((unsigned)IBV_ACCESS_LOCAL_WRITE)
#define LIMIT (64 * MIB) /* of locked memory: half of it is the cache's */

/* ------------------------------------------------------------------ memory that is mapped anew */

enum { SLOTS = 8, SLOT = 256 << 10 };

static char *slots; /* of SLOT bytes each */
static unsigned version[SLOTS]; /* so often mapped anew; `mapping` guards it */
static pthread_rwlock_t mapping = PTHREAD_RWLOCK_INITIALIZER;

static void map_slots(void)
{
	if (!slots)
		slots = mmap(NULL, (size_t)SLOTS * SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(slots != MAP_FAILED);
}

static char *slot(unsigned i)
{
	return slots + (size_t)i * SLOT;
}

static unsigned version_at(const void *addr)
{
	size_t i = (size_t)((const char *)addr - slots) / SLOT;

	return i < SLOTS ? version[i] : 0;
}

static void map_anew(unsigned i)
{
	pthread_rwlock_wrlock(&mapping);
	EXPECT_EQ(munmap(slot(i), SLOT), 0);
	EXPECT(mmap(slot(i), SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == slot(i));
	version[i]++;
	pthread_rwlock_unlock(&mapping);
}

/* ------------------------------------------------------------------ a libibverbs */

enum { MRS = 4096 };

struct fake_mr {
	struct ibv_mr mr;
	unsigned access, version;
	bool live, owned; /* owned: by the test */
};

static struct {
	pthread_mutex_t lock;
	struct fake_mr mr[MRS];
	unsigned live, max; /* max: more are refused with `refuse`; 0: none is */
	int refuse;
	unsigned regs, deregs, reregs;
	uint32_t key;
	struct ibv_mr *providers; /* deregistered by the next that is freed */
} dev = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct ibv_context device, other_device;
static struct ibv_pd pds[3] = { { .context = &device }, { .context = &device }, { .context = &other_device } };

static struct fake_mr *fake_of(struct ibv_mr *mr)
{
	return (struct fake_mr *)mr;
}

static struct ibv_mr *dev_reg(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	struct fake_mr *m = NULL;

	(void)iova;
	pthread_rwlock_rdlock(&mapping);
	pthread_mutex_lock(&dev.lock);
	dev.regs++;
	if (dev.max && dev.live >= dev.max)
		errno = dev.refuse;
	else
		for (m = dev.mr; m->live; m++)
			EXPECT(m + 1 < dev.mr + MRS);
	if (m) {
		dev.live++;
		dev.key++;
		*m = (struct fake_mr){ .mr = { pd->context, pd, addr, len, (uint32_t)(m - dev.mr), dev.key, dev.key },
				       .access = access,
				       .version = version_at(addr),
				       .live = true };
	}
	pthread_mutex_unlock(&dev.lock);
	pthread_rwlock_unlock(&mapping);
	return m ? &m->mr : NULL;
}

static int dev_dereg(struct ibv_mr *mr)
{
	pthread_mutex_lock(&dev.lock);
	EXPECT(fake_of(mr)->live && !fake_of(mr)->owned);
	fake_of(mr)->live = false;
	dev.live--;
	dev.deregs++;
	errno = 99;
	pthread_mutex_unlock(&dev.lock);
	return 0;
}

static int dev_rereg(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t len, int access)
{
	(void)flags, (void)pd, (void)access;
	mr->addr = addr;
	mr->length = len;
	dev.reregs++;
	return 0;
}

static unsigned live_of(const struct ibv_pd *pd, const struct ibv_context *context)
{
	unsigned n = 0;

	pthread_mutex_lock(&dev.lock);
	for (unsigned i = 0; i < MRS; i++)
		n += dev.mr[i].live && (!pd || dev.mr[i].mr.pd == pd) && (!context || dev.mr[i].mr.context == context);
	pthread_mutex_unlock(&dev.lock);
	return n;
}

static void free_providers(void)
{
	struct ibv_mr *mr = dev.providers;

	dev.providers = NULL;
	if (mr)
		EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

static int dev_dealloc_pd(struct ibv_pd *pd)
{
	free_providers();
	return live_of(pd, NULL) ? EBUSY : 0;
}

static int dev_close_device(struct ibv_context *context)
{
	free_providers();
	return live_of(NULL, context) ? EBUSY : 0; /* more than a device says */
}

const struct hp_real *hp_real(void)
{
	static const struct hp_real real = { dev_reg, dev_rereg, dev_dereg, dev_dealloc_pd, dev_close_device };

	return &real;
}

static enum hp_verbscache_mode mode;

enum hp_verbscache_mode hp_verbscache_mode(void)
{
	return mode;
}

size_t hp_memlock_max(enum hp_memlock_use use)
{
	(void)use;
	return LIMIT;
}

/* ------------------------------------------------------------------ a program */

static struct ibv_mr *reg_on(struct ibv_pd *pd, void *addr, size_t len, unsigned access)
{
	unsigned known, found;
	struct ibv_mr *mr;

	pthread_rwlock_rdlock(&mapping);
	known = version_at(addr);
	pthread_rwlock_unlock(&mapping);
	mr = ibv_reg_mr(pd, addr, len, access);
	if (!mr)
		return NULL;
	pthread_mutex_lock(&dev.lock);
	found = fake_of(mr)->version;
	EXPECT(fake_of(mr)->live && !fake_of(mr)->owned);
	EXPECT(mr->pd == pd && mr->addr == addr && mr->length == len && fake_of(mr)->access == access);
	EXPECT(found >= known);
	fake_of(mr)->owned = true;
	pthread_mutex_unlock(&dev.lock);
	return mr;
}

static struct ibv_mr *reg(void *addr, size_t len, unsigned access)
{
	return reg_on(&pds[0], addr, len, access);
}

static void give_back(struct ibv_mr *mr)
{
	pthread_mutex_lock(&dev.lock);
	EXPECT(fake_of(mr)->owned);
	fake_of(mr)->owned = false;
	pthread_mutex_unlock(&dev.lock);
	EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

/* Register and give back: the key. */
static uint32_t key_of(void *addr, size_t len, unsigned access)
{
	struct ibv_mr *mr = reg(addr, len, access);
	uint32_t key = mr ? mr->lkey : 0;

	if (mr)
		give_back(mr);
	return key;
}

/* Nothing is kept so far. */
static void begin(enum hp_verbscache_mode m)
{
	map_slots();
	hp_cache_drop(NULL, NULL);
	EXPECT_EQ(dev.live, 0);
	mode = m;
	dev.max = 0;
	dev.regs = dev.deregs = dev.reregs = 0;
}

static bool no_watch(void)
{
	struct ibv_mr *mr = (begin(HP_VERBSCACHE_REMOTE), reg(slot(0), 100, LOCAL)); /* opens the domain */

	give_back(mr);
	return !hp_uffd_works();
}
#define NEEDS_WATCH                                                                                                    \
	if (no_watch())                                                                                                \
	SKIP("no userfaultfd: memory outside the heap is not kept")

/* ------------------------------------------------------------------ what is kept */

TEST(an_equal_registration_is_the_same_again)
{
	struct ibv_mr *mr, was;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	mr = reg(slot(0) + 100, 5000, ALL);
	was = *mr;
	give_back(mr);
	EXPECT_EQ(dev.deregs, 0);
	EXPECT(reg(slot(0) + 100, 5000, ALL) == mr);
	EXPECT(!memcmp(mr, &was, sizeof was));
	give_back(mr);
	EXPECT_EQ(dev.regs, 1);
}

TEST(one_of_other_bytes_or_access_or_protection_domain_is_another)
{
	struct ibv_mr *mr, *other;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	mr = reg(slot(0), 8192, ALL);
	give_back(mr);
	EXPECT((other = reg(slot(0), 8191, ALL)) != mr);
	give_back(other);
	EXPECT((other = reg(slot(0) + 1, 8191, ALL)) != mr);
	give_back(other);
	EXPECT((other = reg(slot(0), 8192, LOCAL)) != mr);
	give_back(other);
	EXPECT((other = reg(slot(0), 8192, ALL | IBV_ACCESS_RELAXED_ORDERING)) != mr);
	give_back(other);
	EXPECT((other = reg_on(&pds[1], slot(0), 8192, ALL)) != mr);
	give_back(other);
	EXPECT_EQ(dev.regs, 6);
	EXPECT_EQ(dev.live, 6);
	EXPECT(reg(slot(0), 8192, ALL) == mr);
	give_back(mr);
}

TEST(a_kept_registration_has_one_owner_at_a_time)
{
	struct ibv_mr *one, *two, *three;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	one = reg(slot(0), 8192, ALL);
	two = reg(slot(0), 8192, ALL);
	EXPECT(one != two && one->lkey != two->lkey);
	give_back(one);
	three = reg(slot(0), 8192, ALL);
	EXPECT(three == one);
	give_back(two);
	give_back(three);
	EXPECT_EQ(dev.regs, 2);
	EXPECT_EQ(dev.live, 2);
}

TEST(what_peers_may_reach_is_deregistered_unless_they_are_trusted)
{
	static const unsigned remote[] = { IBV_ACCESS_REMOTE_READ, ALL, LOCAL | IBV_ACCESS_REMOTE_ATOMIC,
					   LOCAL | IBV_ACCESS_REMOTE_WRITE };
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_LOCAL);
	for (unsigned i = 0; i < sizeof remote / sizeof *remote; i++) {
		key_of(slot(0), 8192, remote[i]);
		EXPECT_EQ(dev.live, 0);
	}
	EXPECT_EQ(key_of(slot(0), 8192, LOCAL), key_of(slot(0), 8192, LOCAL));
	EXPECT_EQ(key_of(slot(0), 8192, 0), key_of(slot(0), 8192, 0));
	EXPECT_EQ(dev.live, 2);
	begin(HP_VERBSCACHE_OFF);
	EXPECT(key_of(slot(0), 8192, LOCAL) != key_of(slot(0), 8192, LOCAL));
	EXPECT_EQ(dev.live, 0);
}

TEST(what_is_unusual_is_not_kept)
{
	static const unsigned unusual[] = { IBV_ACCESS_ON_DEMAND, IBV_ACCESS_MW_BIND, IBV_ACCESS_ZERO_BASED,
					    IBV_ACCESS_HUGETLB };
	struct ibv_mr *mr;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	for (unsigned i = 0; i < sizeof unusual / sizeof *unusual; i++)
		key_of(slot(0), 8192, LOCAL | unusual[i]);
	key_of(slot(0), 0, LOCAL);
	key_of(slot(0), SIZE_MAX, LOCAL);
	key_of(slot(0), ((size_t)1 << 40) + 1, LOCAL);
	EXPECT_EQ(dev.deregs, 7);
	mr = ibv_reg_mr_iova(&pds[0], slot(0), 8192, 0, LOCAL);
	EXPECT_EQ(ibv_dereg_mr(mr), 0);
	EXPECT_EQ(dev.live, 0);
}

TEST(memory_that_cannot_be_watched_is_not_kept)
{
	char *shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	begin(HP_VERBSCACHE_REMOTE);
	key_of(shared, 8192, LOCAL);
	EXPECT_EQ(dev.live, 0);
	munmap(shared, 8192);
}

/* ------------------------------------------------------------------ when what was kept goes */

/* With the thread that a program of several threads has. */
static bool soon(unsigned live)
{
	hp_domains_start();
	for (int i = 0; i < 2000 && live_of(NULL, NULL) != live; i++)
		usleep(10000);
	return EXPECT_EQ(live_of(NULL, NULL), live);
}

TEST(memory_that_was_mapped_anew_is_registered_anew)
{
	uint32_t key;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	key = key_of(slot(1), SLOT, ALL);
	map_anew(1);
	EXPECT(key_of(slot(1), SLOT, ALL) != key);
}

TEST(what_is_kept_of_memory_that_went_away_is_deregistered_soon)
{
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	key_of(slot(1), SLOT, ALL);
	key_of(slot(1) + 5, 1, LOCAL);
	key_of(slot(2), SLOT, ALL);
	map_anew(1);
	soon(1);
}

TEST(memory_that_goes_away_while_it_is_registered_is_not_kept)
{
	struct ibv_mr *mr;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	mr = reg(slot(1), SLOT, ALL);
	map_anew(1);
	give_back(mr);
	soon(0);
}

TEST(heap_memory_is_kept_until_it_leaves_the_heap)
{
	char *p = hugepin_malloc(8 * MIB);

	begin(HP_VERBSCACHE_REMOTE);
	EXPECT_EQ(key_of(p, 8 * MIB, ALL), key_of(p, 8 * MIB, ALL));
	EXPECT_EQ(dev.live, 1);
	hugepin_free(p);
	hugepin_purge();
	soon(0);
}

TEST(no_more_is_kept_than_half_of_what_may_be_locked)
{
	char *p = mmap(NULL, LIMIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	begin(HP_VERBSCACHE_REMOTE);
	for (size_t i = 0; i < LIMIT / MIB; i++) {
		errno = 77;
		key_of(p + i * MIB, MIB, ALL);
		EXPECT_EQ(errno, 77);
	}
	EXPECT(dev.live <= LIMIT / MIB / 2);
	munmap(p, LIMIT);
	soon(0);
}

/* The kernel counts each. */
TEST(registrations_of_the_same_memory_count_each)
{
	enum { N = LIMIT / SLOT };
	struct ibv_mr *mr[N];
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_LOCAL);
	for (unsigned i = 0; i < N; i++)
		mr[i] = reg_on(&pds[i % 3], slot(0), SLOT, LOCAL);
	for (unsigned i = 0; i < N; i++)
		give_back(mr[i]);
	EXPECT_EQ(dev.live, N / 2);
	EXPECT(reg_on(&pds[(N - 1) % 3], slot(0), SLOT, LOCAL) == mr[N - 1]); /* the newest are kept */
	give_back(mr[N - 1]);
}

TEST(what_is_kept_makes_room_for_what_is_asked_for)
{
	static const int full[] = { ENOMEM, EAGAIN, ENOSPC };
	struct ibv_mr *mr;
	NEEDS_WATCH;

	for (unsigned i = 0; i < sizeof full / sizeof *full; i++) {
		begin(HP_VERBSCACHE_LOCAL);
		dev.max = 3;
		dev.refuse = full[i];
		for (unsigned k = 0; k < 3; k++)
			key_of(slot(k), SLOT, LOCAL);
		EXPECT_EQ(dev.live, 3);
		mr = reg(slot(3), SLOT, ALL); /* one that is not kept, too */
		EXPECT_EQ(dev.live, 1);
		if (EXPECT(mr))
			give_back(mr);
	}
}

TEST(a_refusal_is_the_programs_if_nothing_is_kept)
{
	begin(HP_VERBSCACHE_REMOTE);
	mode = HP_VERBSCACHE_OFF;
	struct ibv_mr *mr = reg(slot(0), SLOT, ALL);
	mode = HP_VERBSCACHE_REMOTE;
	dev.max = 1;
	dev.refuse = ENOMEM;
	EXPECT(!reg(slot(1), SLOT, ALL) && errno == ENOMEM);
	EXPECT(!reg(slot(1), SLOT, ALL | IBV_ACCESS_MW_BIND) && errno == ENOMEM);
	EXPECT_EQ(dev.regs, 3);
	give_back(mr);
}

TEST(another_error_costs_nothing_that_is_kept)
{
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	key_of(slot(0), SLOT, ALL);
	dev.max = 1;
	dev.refuse = EFAULT;
	EXPECT(!reg(slot(1), SLOT, ALL) && errno == EFAULT);
	EXPECT_EQ(dev.live, 1);
}

TEST(a_protection_domain_is_freed_with_what_is_kept_of_it)
{
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	for (unsigned i = 0; i < 3; i++)
		give_back(reg_on(&pds[i], slot(0), SLOT, ALL));
	EXPECT_EQ(ibv_dealloc_pd(&pds[1]), 0);
	EXPECT_EQ(dev.live, 2);
	EXPECT_EQ(ibv_close_device(&device), 0);
	EXPECT_EQ(dev.live, 1);
	EXPECT_EQ(ibv_close_device(&other_device), 0);
	struct ibv_mr *mr = reg(slot(0), SLOT, ALL);
	EXPECT_EQ(ibv_dealloc_pd(&pds[0]), EBUSY); /* as without the cache */
	give_back(mr);
}

TEST(what_a_provider_registered_goes_with_its_protection_domain_and_its_device)
{
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	dev.providers = ibv_reg_mr(&pds[0], slot(0), SLOT, LOCAL);
	EXPECT_EQ(ibv_dealloc_pd(&pds[0]), 0);
	dev.providers = ibv_reg_mr(&pds[2], slot(0), SLOT, LOCAL);
	EXPECT_EQ(ibv_close_device(&other_device), 0);
	EXPECT_EQ(dev.live, 0);
	EXPECT_EQ(key_of(slot(0), SLOT, LOCAL), key_of(slot(0), SLOT, LOCAL)); /* and later ones are kept */
}

/* ------------------------------------------------------------------ registrations that are not the cache's */

TEST(a_registration_that_was_changed_is_not_kept)
{
	struct ibv_mr *mr;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	key_of(slot(2), SLOT, ALL);
	mr = reg(slot(0), SLOT, ALL);
	EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, slot(1), SLOT, 0), 0);
	EXPECT_EQ(dev.reregs, 1);
	EXPECT_EQ(dev.live, 1); /* and there was room for it */
	give_back(mr);
	EXPECT_EQ(dev.live, 0);
	mr = reg(slot(0), SLOT, LOCAL);
	EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, mr->addr, mr->length, (int)ALL), 0);
	give_back(mr);
	EXPECT_EQ(dev.live, 0);
}

TEST(a_registration_that_was_written_to_is_not_kept)
{
	struct ibv_mr *mr;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	mr = reg(slot(0), SLOT, ALL);
	mr->length = 1;
	give_back(mr);
	EXPECT_EQ(dev.live, 0);
}

/* A program may find a function in libibverbs' own handle. */
TEST(a_registration_that_went_by_another_way_is_forgotten)
{
	struct ibv_mr *mr, *again;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	mr = reg(slot(0), SLOT, ALL);
	fake_of(mr)->owned = false;
	dev_dereg(mr);
	again = reg(slot(1), SLOT, ALL | IBV_ACCESS_MW_BIND); /* at the same address */
	EXPECT(again == mr);
	EXPECT_EQ(hugepin_forget(slot(0), SLOT), 0); /* its token is pinned no longer */
	give_back(again);
	EXPECT_EQ(dev.live, 0);

	mr = reg(slot(0), SLOT, ALL);
	fake_of(mr)->owned = false;
	dev_dereg(mr);
	again = dev_reg(&pds[0], slot(1), SLOT, 0, ALL); /* and this one, too */
	EXPECT(again == mr);
	EXPECT_EQ(ibv_dereg_mr(again), 0);
	EXPECT_EQ(dev.live, 0);
}

/* The pin cache's own registrations are not kept below it, and its lock is not waited for. */
static int backend_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	struct ibv_mr *mr = ibv_reg_mr(&pds[0], addr, len, LOCAL);

	(void)ctx, (void)access;
	*ret_ = (struct hugepin_reg){ .lkey = mr->lkey, .cookie = (uintptr_t)mr };
	return 0;
}

static int backend_dereg(void *ctx, struct hugepin_reg *r)
{
	(void)ctx;
	return -ibv_dereg_mr((struct ibv_mr *)(uintptr_t)r->cookie);
}

static int backend_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE, .flags = HUGEPIN_LIMIT_PARALLEL };
	return 0;
}

TEST(a_backend_registers_with_libibverbs_alone)
{
	static const struct hugepin_backend backend = { .size = sizeof backend, .name = "test", .reg = backend_reg,
							.dereg = backend_dereg, .limits = backend_limits };
	struct iovec v[8];
	struct hugepin_pin pins[8];
	hugepin_domain *d;

	begin(HP_VERBSCACHE_REMOTE);
	key_of(slot(0), SLOT, ALL); /* the cache's domain is open */
	hp_cache_drop(NULL, NULL);
	for (unsigned i = 0; i < 8; i++)
		v[i] = (struct iovec){ slot(i), SLOT };
	EXPECT_EQ(hugepin_domain_open(&backend, NULL, NULL, &d), 0);
	EXPECT_EQ(hugepin_register(d, v, 8, 0, pins, 8), 8);
	EXPECT_EQ(dev.live, 8);
	EXPECT_EQ(hugepin_deregister(d, pins, 8), 0);
	EXPECT_EQ(dev.live, 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

/* ------------------------------------------------------------------ fork */

TEST(a_child_has_no_part_in_what_its_parent_keeps)
{
	struct ibv_mr *mr;
	unsigned deregs;
	int status = 0;
	pid_t pid;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	mr = reg(slot(0), SLOT, ALL);
	key_of(slot(1), SLOT, ALL);
	pid = fork();
	if (pid == 0) {
		deregs = dev.deregs;
		give_back(mr); /* its copy */
		key_of(slot(2), SLOT, ALL);
		_exit(dev.deregs == deregs + 2 && ibv_dealloc_pd(&pds[0]) == 0 ? 0 : 1);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(dev.live, 1); /* what was kept went before */
	give_back(mr);
	EXPECT(reg(slot(0), SLOT, ALL) == mr);
	give_back(mr);
}

/* ------------------------------------------------------------------ at random */

enum { HELD = 24 };

struct player {
	uint64_t seed;
	unsigned steps;
	struct ibv_mr *held[HELD];
};

static void step(struct player *p, bool alone)
{
	static const unsigned accesses[] = { LOCAL, ALL, 0, LOCAL | IBV_ACCESS_REMOTE_READ };
	unsigned i = (unsigned)(rand_next(&p->seed) % HELD), what = (unsigned)(rand_next(&p->seed) % 64);
	unsigned s = (unsigned)(rand_next(&p->seed) % SLOTS);

	if (what == 0)
		map_anew(s);
	else if (what == 1 && alone)
		hp_cache_drop(&pds[rand_next(&p->seed) % 3], NULL);
	else if (what == 2)
		hp_cache_drop(NULL, NULL);
	else if (p->held[i]) {
		give_back(p->held[i]);
		p->held[i] = NULL;
	} else {
		p->held[i] = reg_on(&pds[rand_next(&p->seed) % 3], slot(s) + (rand_next(&p->seed) % 2) * 4096,
				    rand_next(&p->seed) % 2 ? 4096 : SLOT - 8192, accesses[rand_next(&p->seed) % 4]);
		EXPECT(p->held[i]);
	}
}

static void *play(void *player)
{
	struct player *p = player;

	for (unsigned n = 0; n < p->steps && !t_failures; n++)
		step(p, false);
	for (unsigned i = 0; i < HELD; i++)
		if (p->held[i])
			give_back(p->held[i]);
	return NULL;
}

TEST(at_random_no_registration_is_of_other_memory_or_of_two_owners)
{
	struct player p = { .seed = 1, .steps = 3000 };
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	for (unsigned n = 0; n < p.steps && !t_failures; n++)
		step(&p, true);
	p.steps = 0;
	play(&p);
	hp_cache_drop(NULL, NULL);
	EXPECT_EQ(dev.live, 0);
	EXPECT(dev.regs < 1400); /* of about 1450 that were asked for, many were found */
}

TEST(threads_that_register_map_anew_and_drop_get_no_stale_registration)
{
	struct player p[4] = { { .seed = 11, .steps = 3000 }, { .seed = 12, .steps = 3000 }, { .seed = 13, .steps = 3000 },
			       { .seed = 14, .steps = 3000 } };
	pthread_t t[4];
	NEEDS_WATCH;

	T_THREADS_RUN(4);
	begin(HP_VERBSCACHE_REMOTE);
	for (unsigned i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, play, &p[i]);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	hp_cache_drop(NULL, NULL);
	EXPECT_EQ(dev.live, 0);
}

static uint32_t newest_key(void)
{
	uint32_t key;

	pthread_mutex_lock(&dev.lock);
	key = dev.key;
	pthread_mutex_unlock(&dev.lock);
	return key;
}

static void *map_register_unmap(void *unused)
{
	(void)unused;
	for (unsigned n = 0; n < 8000 && !t_failures; n++) {
		void *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		uint32_t before = newest_key();
		struct ibv_mr *mr = ibv_reg_mr(&pds[0], p, 65536, LOCAL);

		EXPECT(mr && mr->lkey > before);
		EXPECT_EQ(ibv_dereg_mr(mr), 0);
		munmap(p, 65536);
	}
	return NULL;
}

/* As in a program under the drop-in, part of whose calls unmap without an announcement. The addresses are another
 * thread's before munmap() returns. */
TEST(calls_that_are_not_announced_are_asked_for_where_others_are)
{
	pthread_t t[3];
	NEEDS_WATCH;

	T_THREADS_RUN(4);
	begin(HP_VERBSCACHE_LOCAL);
	hugepin_unmapping_(NULL, 0, HP_UNMAPPED); /* there will be announcements */
	for (unsigned i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, map_register_unmap, NULL);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	hp_cache_drop(NULL, NULL);
	EXPECT_EQ(dev.live, 0);
}

T_MAIN
