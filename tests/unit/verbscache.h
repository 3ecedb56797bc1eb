/* A libibverbs that knows which of its memory regions live, and of which memory, for tests of the cache of registrations. */
#ifndef TESTS_UNIT_VERBSCACHE_H
#define TESTS_UNIT_VERBSCACHE_H

#include "extra/verbscache/cache.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/config.h"
#include "base/memlock.h"
#include "reg/domain.h"
#include "reg/domains.h"
#include "reg/uffd.h"
#include "reg/unmapping.h"
#include "tests/live/live.h"
#include "extra/verbscache/domain.h"
#include "extra/verbscache/options.h"
#include "extra/verbscache/real.h"

void hugepin_verbscache_phase(const void *addr, size_t len, unsigned phase);

#define ALL ((unsigned)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE))
#define LOCAL ((unsigned)IBV_ACCESS_LOCAL_WRITE)
#define LIMIT (64 * MIB)

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

static inline void map_anew(unsigned i)
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
	unsigned every; /* each so many-th is refused, too; 0: none is */
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

/* The device is slow: its next registration on another thread waits until `slow` is lowered. */
static _Atomic bool slow, slowed;
static pid_t testing;

static void wait_if_slow(void)
{
	if (gettid() == testing || !slow)
		return;
	slowed = true;
	while (slow)
		usleep(100);
}

/* Called once by this thread, in the middle of its next call of libibverbs or of the limits of a device. */
static _Thread_local void (*during)(void);

static void interrupt(void)
{
	void (*f)(void) = during;

	during = NULL;
	if (f)
		f();
}

static struct ibv_mr *dev_reg(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	struct fake_mr *m = NULL;

	(void)iova;
	interrupt();
	wait_if_slow();
	pthread_rwlock_rdlock(&mapping);
	pthread_mutex_lock(&dev.lock);
	dev.regs++;
	if ((dev.max && dev.live >= dev.max) || (dev.every && dev.regs % dev.every == 0))
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
	interrupt();
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
	interrupt();
	mr->addr = addr;
	mr->length = len;
	dev.reregs++;
	return 0;
}

static inline unsigned live_of(const struct ibv_pd *pd, const struct ibv_context *context)
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
	interrupt();
	free_providers();
	return live_of(pd, NULL) ? EBUSY : 0;
}

static int dev_close_device(struct ibv_context *context)
{
	interrupt();
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

static size_t memlock = LIMIT; /* half of it is the cache's; 0: there is no limit */

size_t hp_memlock_max(enum hp_memlock_use use)
{
	(void)use;
	interrupt();
	return memlock;
}

/* ------------------------------------------------------------------ a program */

static inline struct ibv_mr *reg_on(struct ibv_pd *pd, void *addr, size_t len, unsigned access)
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

static inline struct ibv_mr *reg(void *addr, size_t len, unsigned access)
{
	return reg_on(&pds[0], addr, len, access);
}

static inline void give_back(struct ibv_mr *mr)
{
	pthread_mutex_lock(&dev.lock);
	EXPECT(fake_of(mr)->owned);
	fake_of(mr)->owned = false;
	pthread_mutex_unlock(&dev.lock);
	EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

/* Register and give back: the key. */
static inline uint32_t key_of(void *addr, size_t len, unsigned access)
{
	struct ibv_mr *mr = reg(addr, len, access);
	uint32_t key = mr ? mr->lkey : 0;

	if (mr)
		give_back(mr);
	return key;
}

/* Nothing is kept so far. */
static inline void begin(enum hp_verbscache_mode m)
{
	map_slots();
	hp_pds_close(NULL, NULL);
	EXPECT_EQ(dev.live, 0);
	hp_config.policy = HP_POLICY_ARENA;
	mode = m;
	dev.max = 0;
	dev.regs = dev.deregs = dev.reregs = 0;
}

static inline bool no_watch(void)
{
	struct ibv_mr *mr = (begin(HP_VERBSCACHE_REMOTE), reg(slot(0), 100, LOCAL)); /* opens the domain */

	give_back(mr);
	return !hp_uffd_works();
}
#define NEEDS_WATCH                                                                                                    \
	if (no_watch())                                                                                                \
	SKIP("no userfaultfd: memory outside the heap is not kept")


#endif
