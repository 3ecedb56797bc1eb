/*
 * The cache of registrations on a device that registers on demand: what is pinned becomes on demand and back (hybrid),
 * and what is brought into memory.
 */
#include "tests/unit/verbscache.h"

static struct {
	_Atomic unsigned advised;
	bool outside; /* of the bytes that are registered */
} advice;

static int fake_advise(struct ibv_pd *pd, enum ibv_advise_mr_advice what, uint32_t flags, struct ibv_sge *sge,
		       uint32_t n)
{
	(void)pd, (void)what, (void)flags, (void)n;
	pthread_mutex_lock(&dev.lock);
	advice.advised++;
	for (unsigned i = 0; i < MRS; i++) {
		const struct ibv_mr *mr = &dev.mr[i].mr;
		const uintptr_t start = (uintptr_t)mr->addr;

		if (dev.mr[i].live && mr->lkey == sge->lkey)
			advice.outside |= sge->addr < start || sge->addr + sge->length > start + mr->length;
	}
	pthread_mutex_unlock(&dev.lock);
	return 0;
}

static int fake_query(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
		      struct ibv_device_attr_ex *a, size_t size)
{
	(void)context, (void)input, (void)size;
	a->odp_caps.general_caps = IBV_ODP_SUPPORT;
	a->odp_caps.per_transport_caps.rc_odp_caps =
		IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
	return 0;
}

static struct verbs_context on_demand = {
	.sz = sizeof on_demand,
	.context = { .abi_compat = __VERBS_ABI_IS_EXTENDED },
	.query_device_ex = fake_query,
	.advise_mr = fake_advise,
};
static struct ibv_pd pd = { .context = &on_demand.context };

/* Returns whether the registration was on demand, which reg_on() does not expect. */
static bool use(void *addr, size_t len)
{
	struct ibv_mr *mr = ibv_reg_mr(&pd, addr, len, ALL);
	const unsigned access = mr ? fake_of(mr)->access : 0;

	EXPECT(mr && mr->addr == addr && mr->length == len && (access & ~(unsigned)IBV_ACCESS_ON_DEMAND) == ALL);
	EXPECT(mr && ibv_dereg_mr(mr) == 0);
	return access & IBV_ACCESS_ON_DEMAND;
}

/* The second registration is made while the first lives. */
TEST(under_hybrid_what_is_pinned_and_idle_turns_to_on_demand)
{
	bool turned = false;
	NEEDS_WATCH;

	T_THREADS_RUN(2);
	begin(HP_VERBSCACHE_REMOTE);
	hp_config.policy = HP_POLICY_HYBRID;
	memlock = 0; /* with a budget what is pinned stays while there is room */
	hp_domains_start();
	for (unsigned i = 0; i < 2000 && !turned; i++) {
		turned = use(slot(0) + 8, SLOT - 8);
		usleep(20000);
	}
	EXPECT(turned);
	EXPECT_EQ(live_of(&pd, NULL), 1);
	hp_pds_close(&pd, NULL);
	EXPECT_EQ(live_of(&pd, NULL), 0);
	memlock = LIMIT;
}

TEST(no_more_is_brought_in_than_is_registered)
{
	begin(HP_VERBSCACHE_REMOTE);
	hp_config.policy = HP_POLICY_ODP;
	hp_config.odp = HP_ODP_ENHANCED;
	advice.advised = 0;
	EXPECT(use(slot(0) + 100, 5000));
	EXPECT_EQ(advice.advised, 1);
	EXPECT(!advice.outside);
	hp_pds_close(&pd, NULL);
	hp_config.odp = HP_ODP_OPTIMAL;
}

static _Atomic bool ends;

static void *use_parts(void *unused)
{
	for (unsigned i = 0; !ends; i++)
		use(slot(0) + i % 64, SLOT - 64);
	return unused;
}

/* The next of other bytes takes the place of the one whose memory is brought in. */
TEST(what_is_brought_in_may_be_registered_anew_meanwhile)
{
	pthread_t t;

	T_THREADS_RUN(3);
	begin(HP_VERBSCACHE_REMOTE);
	hp_config.policy = HP_POLICY_ODP;
	ends = false;
	use(slot(0), SLOT - 64);
	pthread_create(&t, NULL, use_parts, NULL);
	for (advice.advised = 0; advice.advised < 2000;)
		hugepin_prefetch(hp_pd_domain(&pd), slot(0), SLOT,
				 HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE |
					 HUGEPIN_PREFETCH_NEXT);
	ends = true;
	pthread_join(t, NULL);
	hp_pds_close(&pd, NULL);
	EXPECT_EQ(dev.live, 0);
}

/* The announcements come from another thread of the program. */
static void *announce(void *unused)
{
	while (!ends)
		hugepin_verbscache_phase(slot(0), SLOT, HUGEPIN_PREFETCH_NEXT);
	return unused;
}

TEST(what_is_announced_is_registered_on_no_protection_domain_that_has_ended)
{
	pthread_t t;

	T_THREADS_RUN(3);
	begin(HP_VERBSCACHE_REMOTE);
	hp_config.policy = HP_POLICY_ODP;
	ends = false;
	pthread_create(&t, NULL, announce, NULL);
	for (unsigned i = 0; i < 3000 && !t_failures; i++) {
		use(slot(0), SLOT);
		EXPECT_EQ(ibv_dealloc_pd(&pd), 0);
		EXPECT_EQ(dev.live, 0);
	}
	ends = true;
	pthread_join(t, NULL);
	EXPECT_EQ(dev.live, 0);
}

TEST(a_domain_that_cannot_be_opened_is_asked_for_once)
{
	begin(HP_VERBSCACHE_REMOTE);
	hp_config.policy = HP_POLICY_ODP; /* which the device of pds[0] does not know */
	key_of(slot(0), SLOT, ALL);
	during = abort; /* when the device is asked for its limits */
	EXPECT(!hp_pd_domain(&pds[0]));
	during = NULL;
	hp_config.policy = HP_POLICY_ARENA;
	EXPECT(!hp_pd_domain(&pds[0]));
	EXPECT_EQ(ibv_dealloc_pd(&pds[0]), 0);
	EXPECT(hp_pd_domain(&pds[0]));
}

T_MAIN
