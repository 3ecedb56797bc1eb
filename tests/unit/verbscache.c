/*
 * The cache of registrations: what is kept, what is not, and when what was kept goes.
 */
#include "tests/unit/verbscache.h"

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
	uint32_t key;
	struct ibv_mr *mr;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	key = key_of(slot(0), 8192, ALL);
	EXPECT(key_of(slot(0), 8192, LOCAL) != key);
	mr = reg_on(&pds[1], slot(0), 8192, ALL);
	EXPECT(mr->lkey != key);
	give_back(mr);
	EXPECT_EQ(dev.live, 3);
	EXPECT_EQ(key_of(slot(0), 8192, ALL), key);
	EXPECT_EQ(dev.regs, 3);
	/* Of the same pages and pins one is kept, the last. */
	EXPECT(key_of(slot(0), 8191, ALL) != key);
	EXPECT(key_of(slot(0) + 1, 8191, ALL) != key);
	EXPECT(key_of(slot(0), 8192, ALL | IBV_ACCESS_RELAXED_ORDERING) != key);
	EXPECT(key_of(slot(0), 8192, ALL) != key);
	EXPECT_EQ(dev.regs, 7);
	EXPECT_EQ(dev.live, 3);
}

TEST(a_refusal_of_other_bytes_of_the_same_pages_is_the_programs_and_nothing_is_lost)
{
	struct ibv_mr *mr;
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	key_of(slot(0), 8192, ALL);
	mr = ibv_reg_mr(&pds[1], slot(1), 8192, ALL);
	dev.max = 1;
	dev.refuse = ENOMEM;
	EXPECT(!reg(slot(0), 8191, ALL) && errno == ENOMEM);
	dev.max = 0;
	EXPECT_EQ(ibv_dereg_mr(mr), 0);
	EXPECT_EQ(key_of(slot(0), 8191, ALL), key_of(slot(0), 8191, ALL));
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
	give_back(two); /* it is the program's alone */
	EXPECT_EQ(dev.live, 1);
	give_back(three);
	EXPECT_EQ(dev.regs, 2);
	EXPECT_EQ(dev.live, 1);
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

/* HUGEPIN_PIN_BUDGET */
TEST(no_more_is_kept_than_the_budget_that_is_named)
{
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	hp_config.pin_budget = 3 * SLOT;
	for (unsigned i = 0; i < SLOTS; i++)
		key_of(slot(i), SLOT, ALL);
	EXPECT_EQ(dev.live, 3);
	hp_config.pin_budget = 0;
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
		key_of(slot(3), SLOT, LOCAL); /* in the place of one */
		EXPECT_EQ(dev.live, 3);
		mr = reg_on(&pds[1], slot(3), SLOT, LOCAL); /* in the place of another domain's */
		EXPECT(mr && dev.live <= 3);
		if (mr)
			give_back(mr);
		mr = reg(slot(3), SLOT, ALL); /* one that is not kept, too */
		EXPECT(mr && dev.live <= 3);
		if (mr)
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
	EXPECT_EQ(dev.live, 1);
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

TEST(each_of_many_protection_domains_keeps_what_was_given_back)
{
	enum { MANY = 300 };
	static struct ibv_pd many[MANY];
	NEEDS_WATCH;

	T_STAYS(4 * MANY, "a closed domain's tables stay for the next one");
	begin(HP_VERBSCACHE_REMOTE);
	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < MANY; i++) {
			many[i].context = &device;
			give_back(reg_on(&many[i], slot(0), SLOT, ALL));
		}
	EXPECT_EQ(dev.live, MANY);
	EXPECT_EQ(ibv_dealloc_pd(&many[7]), 0);
	EXPECT_EQ(dev.live, MANY - 1);
	EXPECT_EQ(ibv_close_device(&device), 0);
	EXPECT_EQ(dev.live, 0);
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
	EXPECT_EQ(hugepin_forget(slot(0), SLOT), 0); /* its range is pinned no longer */
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
	key_of(slot(0), SLOT, ALL); /* the cache has a domain */
	hp_pds_trim();
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

/* ------------------------------------------------------------------ in the middle of a call */

static void fork_here(void)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	EXPECT(waitpid(pid, &status, 0) == pid && status == 0);
}

static void end_of_pd(void)
{
	EXPECT_EQ(ibv_dealloc_pd(&pds[1]), 0);
}

static void end_of_device(void)
{
	EXPECT_EQ(ibv_close_device(&other_device), 0);
}

static void pass(void)
{
	key_of(slot(1), SLOT, ALL | IBV_ACCESS_MW_BIND);
}

static void other_bytes(void)
{
	key_of(slot(0), SLOT - 8, ALL);
	key_of(slot(0), SLOT, ALL);
}

static void change(void)
{
	struct ibv_mr *mr = reg(slot(2), SLOT, ALL);

	EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, mr->addr, mr->length, (int)ALL), 0);
	give_back(mr);
}

static void miss(void)
{
	key_of(slot(3), SLOT, ALL);
}

static void (*const calls[])(void) = { end_of_pd, end_of_device, pass, other_bytes, change, miss };

/* As a signal handler does. libibverbs has locks of its own there. */
TEST(a_fork_in_the_middle_of_a_call_deregisters_nothing)
{
	NEEDS_WATCH;

	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
		unsigned live;

		begin(HP_VERBSCACHE_REMOTE);
		key_of(slot(0), SLOT, ALL);
		live = dev.live;
		during = fork_here;
		calls[i]();
		EXPECT(!during && dev.live >= live);
		fork_here();
		EXPECT_EQ(dev.live, 0);
	}
}

/* In a hook on munmap, or in an allocator. */
TEST(a_fork_with_a_lock_of_the_heap_or_the_pin_cache_waits_for_none)
{
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	key_of(slot(0), SLOT, ALL);
	hp_domain_lock(hp_pd_domain(&pds[0]));
	fork_here();
	hp_domain_unlock(hp_pd_domain(&pds[0]));
	EXPECT_EQ(dev.live, 1);
}

/* As a hook of the program's on mmap does. */
static void call_here(void)
{
	struct ibv_mr *mr = ibv_reg_mr(&pds[2], slot(5), SLOT, LOCAL);

	EXPECT(mr && ibv_dereg_mr(mr) == 0);
}

TEST(a_registration_in_the_middle_of_a_call_goes_to_libibverbs)
{
	NEEDS_WATCH;

	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
		begin(HP_VERBSCACHE_REMOTE);
		during = call_here; /* the limits are asked for while a domain is opened */
		key_of(slot(0), SLOT, ALL);
		EXPECT(!during);
		during = call_here;
		calls[i]();
		EXPECT(!during);
	}
}

TEST(calls_that_succeed_keep_errno)
{
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	errno = 77;
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
		key_of(slot(0), SLOT, ALL);
		if (calls[i] == change || calls[i] == pass)
			continue; /* as libibverbs does: these deregister */
		calls[i]();
		EXPECT_EQ(errno, 77);
	}
}

T_MAIN
