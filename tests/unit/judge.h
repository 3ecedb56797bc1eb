/*
 * What tests of the rules of hugepin check share: measurements that somebody could have made.
 */
#ifndef TESTS_UNIT_JUDGE_H
#define TESTS_UNIT_JUDGE_H

#include "cmd/judge.h"
#include "tests/t.h"

#define EXITED(n) ((n) << 8)

static struct hp_trial without[HP_ROUNDS_MAX], with[HP_ROUNDS_MAX], pool[HP_ROUNDS_MAX], thp[HP_ROUNDS_MAX];
static char line[HP_SAY_MAX][HP_SAY_SIZE];

/* Runs of these times as medians, up to `noise` of them longer or shorter. */
static void runs(struct hp_trial *t, double wall_s, double cpu_s, double noise)
{
	static const double shift[] = { 0, 1, -1, 0.5, -0.5 };

	for (int i = 0; i < HP_ROUNDS_MAX; i++) {
		const double much = 1 + noise * shift[i % 5];
		t[i] = (struct hp_trial){ .wall_s = wall_s * much, .minor_faults = 1000, .rss_bytes = 300 << 20,
					    .tlb_misses = HP_NOT_COUNTED, .ended = true };
		t[i].user_s = cpu_s * much * 0.75;
		t[i].system_s = cpu_s * much * 0.25;
	}
}

static struct hp_measured measured(unsigned rounds)
{
	return (struct hp_measured){ .without = without, .with = with, .rounds = rounds, .chosen = pool, .thp = thp,
				     .limit_s = 60, .against = "", .options = "", .program = "prog", .note = "", .tail = "" };
}

static unsigned say(const struct hp_measured *m)
{
	const struct hp_judgement j = hp_judge(m);

	return hp_judge_say(m, &j, line);
}

#define SAYS(at, text) EXPECT(strstr(line[at], (text)) || (t_print("# %s\n", line[at]), false))
#define EXPECT_STR(at, text) EXPECT(!strcmp((at), (text)) || (t_print("# %s\n", (at)), false))

#endif
