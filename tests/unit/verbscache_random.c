/*
 * The cache of registrations at random, by one thread and by several, with memory that is mapped anew under them.
 */
#include "tests/unit/verbscache.h"

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
		hp_pds_close(&pds[rand_next(&p->seed) % 3], NULL);
	else if (what == 2)
		hp_pds_trim();
	else if (what < 6 && !alone)
		hugepin_verbscache_phase(slot(s) + (rand_next(&p->seed) % 2) * 4096, what % 2 ? 4096 : SLOT - 8192, 0);
	else if (p->held[i]) {
		give_back(p->held[i]);
		p->held[i] = NULL;
	} else {
		p->held[i] = reg_on(&pds[rand_next(&p->seed) % 3], slot(s) + (rand_next(&p->seed) % 2) * 4096,
				    rand_next(&p->seed) % 2 ? 4096 : SLOT - 8192, accesses[rand_next(&p->seed) % 4]);
		EXPECT(p->held[i] || (dev.every && errno == dev.refuse));
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
	hp_pds_trim();
	EXPECT_EQ(dev.live, 0);
	EXPECT(dev.regs < 1400); /* of about 1450 that were asked for, many were found */
}

TEST(at_random_refusals_lose_nothing)
{
	static const int errors[] = { ENOMEM, EFAULT, EAGAIN, EINVAL };
	NEEDS_WATCH;

	for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
		for (unsigned every = 1; every < 6; every++) {
			struct player p = { .seed = i * 10 + every, .steps = 600 };

			begin(HP_VERBSCACHE_REMOTE);
			dev.every = every;
			dev.refuse = errors[i];
			for (unsigned n = 0; n < p.steps && !t_failures; n++)
				step(&p, true);
			p.steps = dev.every = 0;
			play(&p);
			hp_pds_trim();
			EXPECT_EQ(dev.live, 0);
		}
}

static void play_together(unsigned policy)
{
	struct player p[4] = { { .seed = 11, .steps = 3000 }, { .seed = 12, .steps = 3000 }, { .seed = 13, .steps = 3000 },
			       { .seed = 14, .steps = 3000 } };
	pthread_t t[4];

	T_THREADS_RUN(4);
	begin(HP_VERBSCACHE_REMOTE);
	hp_config.policy = policy;
	for (unsigned i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, play, &p[i]);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	hp_pds_pause(); /* what was announced last */
	hp_pds_trim();
	EXPECT_EQ(dev.live, 0);
	hp_pds_resume();
}

TEST(threads_that_register_map_anew_and_drop_get_no_stale_registration)
{
	NEEDS_WATCH;

	play_together(HP_POLICY_ARENA);
}

TEST(nor_beside_a_helper_that_registers_ahead)
{
	NEEDS_WATCH;

	hp_config.predict_mode = HP_PREDICT_SAVE;
	play_together(HP_POLICY_PREDICT);
	play_together(HP_POLICY_CF11);
	hp_config.predict_mode = HP_PREDICT_AUTO;
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
	hp_pds_trim();
	EXPECT_EQ(dev.live, 0);
}

T_MAIN
