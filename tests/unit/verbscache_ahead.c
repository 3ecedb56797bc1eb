/*
 * The cache of registrations under a policy: registrations that are made ahead of the program's requests, and given back
 * between them.
 */
#include "tests/unit/verbscache.h"

#include "reg/domain.h"

static struct hugepin_domain_stats stats_of(struct ibv_pd *pd)
{
	struct hugepin_domain_stats s = { 0 };

	hugepin_domain_stats(hp_pd_domain(pd), &s, sizeof s);
	return s;
}

static void *register_again(void *tid)
{
	*(_Atomic pid_t *)tid = gettid();
	testing = gettid();
	return (void *)(uintptr_t)key_of(slot(0) + 100, 5000, ALL);
}

static bool sleeps(pid_t tid)
{
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
	f = fopen(path, "re");
	if (!f)
		return false;
	if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(f);
	return state == 'S';
}

TEST(what_is_announced_is_registered_ahead_for_the_bytes_and_access_that_it_had)
{
	_Atomic pid_t tid = 0;
	void *key;
	pthread_t t;
	NEEDS_WATCH;

	T_THREADS_RUN(2);
	begin(HP_VERBSCACHE_REMOTE);
	hugepin_verbscache_phase(slot(0) + 100, 5000, 0); /* not known yet */
	key_of(slot(0) + 100, 5000, ALL);
	hp_pds_trim();
	EXPECT_EQ(dev.live, 0);
	testing = gettid();
	slow = true;
	hugepin_verbscache_phase(slot(0) + 100, 5000, 0);
	while (!slowed)
		usleep(100);
	/* A request that comes early waits for the registration under way. */
	pthread_create(&t, NULL, register_again, &tid);
	while (!tid || !sleeps(tid))
		usleep(100);
	slow = slowed = false;
	pthread_join(t, &key);
	EXPECT_EQ(dev.regs, 2);
	EXPECT_EQ((uintptr_t)key, dev.key);
	EXPECT_EQ(dev.live, 1);
}

static void let_hints_end(struct ibv_pd *pd)
{
	hugepin_domain *d = hp_pd_domain(pd);

	while (d->prefetches_count)
		usleep(1000);
	hp_domain_lock(d); /* the last one is carried out */
	hp_domain_unlock(d);
}

TEST(nothing_is_registered_ahead_on_a_protection_domain_that_ends)
{
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	key_of(slot(0), 5000, ALL);
	hp_pds_pause();
	hp_pds_trim();
	hugepin_verbscache_phase(slot(0), 5000, 0);
	let_hints_end(&pds[0]);
	EXPECT_EQ(dev.live, 0);
	hp_pds_resume();
}

/* Another protection domain may be at the same address later, with other peers. */
TEST(what_was_registered_on_a_protection_domain_is_not_on_the_next_one)
{
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	key_of(slot(0), 5000, ALL);
	EXPECT_EQ(ibv_dealloc_pd(&pds[0]), 0);
	key_of(slot(1), 5000, ALL);
	hugepin_verbscache_phase(slot(0), 5000, 0);
	let_hints_end(&pds[0]);
	EXPECT_EQ(dev.live, 1);
}

/* A loop with a pause: registered for its time alone, and ready when it is asked for. */
TEST(under_predict_a_registration_is_given_back_and_made_again_ahead)
{
	struct hugepin_domain_stats s = { 0 };
	NEEDS_WATCH;

	T_THREADS_RUN(2);
	begin(HP_VERBSCACHE_REMOTE);
	hp_config.policy = HP_POLICY_PREDICT;
	hp_config.predict_mode = HP_PREDICT_SAVE;
	hp_domains_start();
	for (unsigned i = 0; i < 2000 && (s.repinned < 5 || s.released < 5); i++) {
		key_of(slot(i % 2) + 8, SLOT - 8, ALL); /* checks what is registered */
		usleep(20000);
		s = stats_of(&pds[0]);
	}
	EXPECT(s.released >= 5);
	EXPECT(s.repinned >= 5);
	hp_config.predict_mode = HP_PREDICT_AUTO;
}

TEST(a_device_that_closes_with_registrations_of_the_program_leaves_no_domain)
{
	NEEDS_WATCH;

	begin(HP_VERBSCACHE_REMOTE);
	for (unsigned i = 0; i < 128; i++) {
		struct ibv_mr *mr = reg(slot(0), SLOT, ALL);

		fake_of(mr)->owned = false;
		ibv_close_device(&device);
		dev_dereg(mr); /* as the kernel does */
		EXPECT_EQ(stats_of(&pds[0]).regions, 0);
		EXPECT(hp_pd_domain(&pds[0]));
	}
}

/* Each thread has a protection domain of its own, which ends again and again. */
static void *use_and_end(void *pd_)
{
	struct ibv_pd *pd = pd_;
	const unsigned i = (unsigned)(pd - pds);

	for (unsigned n = 0; n < 60 && !t_failures; n++) {
		for (unsigned k = 0; k < 8; k++) {
			struct ibv_mr *mr = reg_on(pd, slot(i) + k % 2 * 8192, 8192, ALL);

			give_back(mr);
			hugepin_verbscache_phase(slot(i), 8192, 0);
			usleep(500);
		}
		EXPECT_EQ(ibv_dealloc_pd(pd), 0);
		EXPECT_EQ(live_of(pd, NULL), 0);
	}
	return NULL;
}

TEST(protection_domains_end_while_the_helper_registers_and_others_fork)
{
	pthread_t t[3];
	NEEDS_WATCH;

	T_THREADS_RUN(5);
	begin(HP_VERBSCACHE_REMOTE);
	hp_config.policy = HP_POLICY_PREDICT;
	hp_config.predict_mode = HP_PREDICT_SAVE;
	hp_domains_start();
	for (unsigned i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, use_and_end, &pds[i]);
	for (unsigned i = 0; i < 40; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(0);
		EXPECT_EQ(waitpid(pid, NULL, 0), pid);
	}
	for (unsigned i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	EXPECT_EQ(dev.live, 0);
	hp_config.predict_mode = HP_PREDICT_AUTO;
}

T_MAIN
