/*
 * sge/measure.c on a device that has a clock of its own: the thresholds that are found are those of the device, of pieces in the
 * cache and of other ones. What a message takes depends on what is sent alone, so nothing that the machine does matters.
 */
#include <errno.h>

#include "base/base.h"
#include "hugepin_verbs.h"
#include "sge/measure.h"
#include "t.h"

/* ------------------------------------------------------------------ the device */

static struct {
	/* ns: of a message, of each element, of each byte that the CPU copies from the cache and from memory, and of inline: more
	 * than of a message, and of each piece */
	double message, element, copy[2], inlined, inline_piece;
	double noise; /* a message takes up to so many times as long */
	unsigned posts, fails_at; /* the n-th post fails; 0: none */
} dev;
static double now;
static uint64_t seed = 1;

static double rnd(void) /* 0 to 1 */
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(seed >> 40) / (1 << 24);
}

static uint64_t clock_of_device(void)
{
	return (uint64_t)now;
}

static bool post(struct hp_sg_carrier *c, struct ibv_send_wr *wr)
{
	const struct hugepin_sg_plan *p = c->plan;
	double ns = dev.message;

	EXPECT_EQ(wr->num_sge, (int)p->sges);
	EXPECT(p->mode & HUGEPIN_SG_WRITE);
	if (p->mode & HUGEPIN_SG_INLINE)
		ns += dev.inlined + dev.inline_piece * p->n;
	else
		ns += dev.element * p->sges;
	if (!(p->mode & HUGEPIN_SG_GATHER))
		ns += dev.copy[c->cold] * (double)p->bytes;
	now += ns * (1 + dev.noise * rnd());
	return ++dev.posts != dev.fails_at;
}

static bool end(struct hp_sg_carrier *c)
{
	(void)c;
	return true;
}

static int reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)len, (void)access;
	*ret_ = (struct hugepin_reg){ .lkey = 1, .rkey = 1 };
	return 0;
}

static int dereg(void *ctx, struct hugepin_reg *r)
{
	(void)ctx, (void)r;
	return 0;
}

static int limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE };
	return 0;
}

static int measure(unsigned max_sge, unsigned max_inline, struct hugepin_sg_model *m)
{
	static const struct hugepin_backend backend = { .size = sizeof backend, .name = "pretends", .reg = reg, .dereg = dereg,
							.limits = limits };
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM };
	struct hp_sg_carrier c = { .caps = { .max_sge = max_sge, .max_inline = max_inline, .max_wr = 8, .max_msg = 1 << 20 },
				   .post = post, .end = end };
	int err;

	hp_clock_set(clock_of_device);
	dev.posts = 0;
	*m = (struct hugepin_sg_model){ .size = sizeof *m, .copy_below = { 1, 2 }, .apart_below = { 3, 4 } };
	EXPECT_EQ(hugepin_domain_open(&backend, NULL, &attr, &c.domain), 0);
	err = hp_sg_measure(&c, m);
	EXPECT_EQ(hugepin_domain_close(c.domain), 0); /* -EBUSY, if a pin were left */
	hp_clock_set(NULL);
	return err;
}

/* ------------------------------------------------------------------ what is found */

/* To copy n pieces saves n - 1 elements. So the length at which both ways take as long is from one half of what an element takes
 * (of 2 pieces) to all of it (of many), in bytes of copying. */
static bool within(const char *what, uint32_t below, double even)
{
	if (below > even * 0.4 && below < even * 1.3)
		return true;
	t_print("# %s: %u, not about %.0f\n", what, below, even);
	return false;
}

TEST(thresholds_are_found_where_the_device_has_them_in_the_cache_and_out_of_it)
{
	static const double even[][2] = { { 1500, 100 }, { 400, 40 }, { 200, 400 }, { 60, 20 }, { 800, 1500 } };

	for (size_t i = 0; i < 2 * sizeof even / sizeof *even; i++) {
		struct hugepin_sg_model m;
		dev.noise = i % 2 ? 0.5 : 0;
		dev.message = dev.element = 200;
		dev.copy[0] = dev.element / even[i / 2][0];
		dev.copy[1] = dev.element / even[i / 2][1];
		EXPECT_EQ(measure(30, 400, &m), 0);
		EXPECT(within("in the cache", m.copy_below[0], even[i / 2][0]));
		EXPECT(within("not in the cache", m.copy_below[1], even[i / 2][1]));
		EXPECT(m.apart_below[0] <= m.copy_below[0] * 1.3 && m.apart_below[1] <= m.copy_below[1] * 1.3);
		EXPECT_EQ(m.source, HUGEPIN_SG_MODEL_DEVICE);
		EXPECT_EQ(m.refused, 0);
	}
}

TEST(where_one_way_is_always_cheaper_the_threshold_is_at_an_end_of_the_grid)
{
	struct hugepin_sg_model m;

	dev.noise = 0;
	dev.element = 0;
	dev.copy[0] = dev.copy[1] = 1;
	EXPECT_EQ(measure(30, 400, &m), 0);
	EXPECT(!m.copy_below[0] && !m.copy_below[1] && !m.apart_below[0] && !m.apart_below[1]);
	dev.element = 1e6;
	EXPECT_EQ(measure(30, 400, &m), 0);
	EXPECT(m.copy_below[0] == 4096 && m.copy_below[1] == 4096);
	dev.message = dev.element = 100;
	dev.copy[0] = dev.copy[1] = 0.5;
	EXPECT_EQ(measure(1, 400, &m), 0); /* single pieces: to copy one saves nothing */
	EXPECT(!m.copy_below[0] && !m.apart_below[0]);
}

TEST(so_many_pieces_go_inline_as_are_cheaper_so)
{
	struct hugepin_sg_model m;

	dev.noise = 0;
	dev.message = 50;
	dev.element = 200;
	dev.copy[0] = dev.copy[1] = 0.1;
	dev.inline_piece = 30;
	dev.inlined = 200 - 30 * 5; /* 5 pieces take what one element takes */
	EXPECT_EQ(measure(30, 400, &m), 0);
	EXPECT_EQ(m.inline_pieces[0], 4);
	dev.inlined = 300;
	EXPECT_EQ(measure(30, 400, &m), 0);
	EXPECT_EQ(m.inline_pieces[0], 0);
	dev.inlined = dev.inline_piece = 0;
	EXPECT_EQ(measure(30, 400, &m), 0);
	EXPECT_EQ(m.inline_pieces[0], 30);
}

TEST(it_takes_about_a_second_and_more_only_of_a_slow_device)
{
	struct hugepin_sg_model m;

	for (int slow = 0; slow < 2; slow++) {
		now = 0;
		dev.message = slow ? 50000 : 2000;
		dev.element = 100;
		EXPECT_EQ(measure(30, 400, &m), 0);
		if (!EXPECT(slow || (now > 0.4e9 && now < 1.5e9)))
			t_print("# %.2f s\n", now / 1e9);
		EXPECT(now < 15e9);
	}
}

TEST(a_failure_leaves_the_model_alone_and_no_pin)
{
	struct hugepin_sg_model m;

	dev.message = dev.element = 100;
	for (unsigned at = 1; at < 200000; at *= 3) {
		dev.fails_at = at;
		EXPECT_EQ(measure(30, 400, &m), -EIO);
		EXPECT(m.copy_below[0] == 1 && m.copy_below[1] == 2 && m.apart_below[0] == 3 && m.apart_below[1] == 4 && !m.source);
	}
	dev.fails_at = 0;
	EXPECT_EQ(measure(30, 400, &m), 0);
}

T_MAIN
