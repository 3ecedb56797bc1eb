/*
 * The rules of hugepin check beside what costs nothing.
 */
#include "tests/unit/judge.h"

static struct hp_trial trial[HP_OTHERS_MAX][HP_ROUNDS_MAX];
static struct hp_other other[HP_OTHERS_MAX];

/* Measured beside so many alternatives, all as fast as without hugepin. */
static struct hp_measured beside(unsigned others)
{
	static const char *const names[] = { "tunable", "thp", "mimalloc" };
	static const char *const called[] = { "glibc's tunable", "THP for all memory", "mimalloc" };
	struct hp_measured m = measured(8);

	runs(without, 2, 2, 0.01);
	runs(with, 1, 1, 0.01);
	for (unsigned i = 0; i < others; i++) {
		other[i] = (struct hp_other){ .name = names[i], .called = called[i], .how = "A=1 B=2 ", .trial = trial[i] };
		runs(trial[i], 2, 2, 0.01);
	}
	m.against = "--against=tunable ";
	m.other = other;
	m.others = others;
	return m;
}

TEST(what_gains_beside_the_alternatives_is_a_yes)
{
	const struct hp_measured m = beside(3);
	const struct hp_judgement j = hp_judge(&m);

	strcpy(other[1].absent, "only the machine can have them");
	EXPECT_EQ(j.answer, HP_ANSWER_YES);
	EXPECT_EQ(j.sure, HP_SURE);
	EXPECT_EQ(j.decides, -1);
	EXPECT_EQ(say(&m), 8);
	SAYS(0, "use hugepin: yes, it is 2.00 times as fast: 2.000 s without, 1.000 s with (medians");
	SAYS(4, "beside glibc's tunable: 2.000 s, 300 MiB; with hugepin it is 2.00 times as fast, sure: 1.9");
	EXPECT_STR(line[5], "beside THP for all memory: not measured, only the machine can have them");
	EXPECT_STR(line[7], "how: hugepin run -- prog");
}

TEST(what_costs_nothing_and_does_as_much_is_enough)
{
	struct hp_measured m = beside(2);

	runs(trial[0], 1.01, 1.01, 0.001);
	runs(with, 1, 1, 0.001);
	struct hp_judgement j = hp_judge(&m);
	EXPECT_EQ(j.answer, HP_ANSWER_ENOUGH);
	EXPECT_EQ(j.sure, HP_SURE);
	EXPECT_EQ(j.decides, 0);
	EXPECT(!strcmp(hp_answer_name(j.answer), "enough"));
	EXPECT_EQ(say(&m), 7);
	SAYS(0, "use hugepin: no, glibc's tunable is enough: 2.000 s without, 1.010 s with glibc's tunable, 1.000 s with hugepin (med");
	SAYS(1, "how sure: sure; between 1.0");
	SAYS(1, " times as fast as by glibc's tunable, with 98 % confidence");
	SAYS(4, "beside glibc's tunable: 1.010 s, 300 MiB; with hugepin it takes 1 % less time, sure: 1.0");
	EXPECT_STR(line[6], "how: A=1 B=2 prog");
	runs(trial[0], 0.5, 0.5, 0.001); /* and more than that */
	EXPECT_EQ(say(&m), 7);
	SAYS(0, "use hugepin: no, glibc's tunable is faster: 2.000 s without, 0.500 s with glibc's tunable, 1.000 s with hugepin");
	runs(trial[0], 1.01, 1.01, 0.001);
	/* The fastest of several is named, */
	runs(trial[1], 0.5, 0.5, 0.001);
	EXPECT_EQ(hp_judge(&m).decides, 1);
	runs(trial[0], 0.4, 0.4, 0.001);
	EXPECT_EQ(hp_judge(&m).decides, 0);
	runs(trial[0], 1.01, 1.01, 0.001);
	/* and what is not sure of another one does not count. */
	runs(trial[1], 1.02, 1.02, 0.5);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_ENOUGH);
	EXPECT_EQ(hp_judge(&m).decides, 0);
	/* A program that fails with it has no use for it. */
	trial[0][3].status = 6;
	m.others = 1;
	j = hp_judge(&m);
	EXPECT_EQ(j.answer, HP_ANSWER_YES);
	EXPECT_EQ(say(&m), 6);
	SAYS(4, "beside glibc's tunable: the program fails with it: killed by signal 6 (");
}

/* Hugepin gains 3.5 %, the tunable nothing, and hugepin is not surely better than that. */
TEST(what_gains_nothing_itself_is_not_enough)
{
	struct hp_measured m = beside(2);

	runs(without, 1.035, 1.035, 0.0001);
	runs(trial[0], 1.015, 1.015, 0.0001);
	runs(trial[1], 1.035, 1.035, 0.0001);
	m.others = 0;
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_YES);
	m.others = 2;
	runs(with, 1, 1, 0.0001);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_SAME);
	EXPECT_EQ(hp_judge(&m).decides, 0);
	say(&m);
	SAYS(0, "use hugepin: no, nothing helps: 1.035 s without, 1.015 s with glibc's tunable, 1.000 s with hugepin");
	/* One that may gain leaves it open, and one that does is enough. */
	runs(trial[1], 1.02, 1.02, 0.1);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_UNSURE);
	EXPECT_EQ(hp_judge(&m).decides, 1);
	runs(trial[1], 1.001, 1.001, 0.0001);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_ENOUGH);
	EXPECT_EQ(hp_judge(&m).decides, 1);
}

/* Of seven rounds one that is as long as those with hugepin leaves the 98 % open, but not the 90 %. */
TEST(a_verdict_is_as_sure_as_the_less_sure_of_its_comparisons)
{
	for (int gains = 0; gains < 2; gains++) {
		struct hp_measured m = beside(1);
		m.rounds = 7;
		runs(without, 2, 2, 0);
		runs(with, 1, 1, 0);
		runs(trial[0], gains ? 2 : 1, gains ? 2 : 1, 0);
		EXPECT_EQ(hp_judge(&m).answer, gains ? HP_ANSWER_YES : HP_ANSWER_ENOUGH);
		EXPECT_EQ(hp_judge(&m).sure, HP_SURE);
		(gains ? trial[0] : without)[3] = with[3];
		EXPECT_EQ(hp_judge(&m).answer, gains ? HP_ANSWER_YES : HP_ANSWER_ENOUGH);
		EXPECT_EQ(hp_judge(&m).sure, HP_LIKELY);
	}
}

TEST(what_may_be_enough_leaves_the_verdict_open)
{
	struct hp_measured m = beside(1);

	runs(trial[0], 1.1, 1.1, 0.5);
	runs(with, 1, 1, 0.01);
	const struct hp_judgement j = hp_judge(&m);
	EXPECT_EQ(j.answer, HP_ANSWER_UNSURE);
	EXPECT_EQ(j.sure, HP_UNSURE);
	EXPECT_EQ(say(&m), 5);
	SAYS(0, "use hugepin: cannot tell, it is 2.00 times as fast, but rounds do not tell whether glibc's tunable is enough: 2.0");
	SAYS(3, "beside glibc's tunable: ");
	SAYS(3, ", unsure: 0.");
	EXPECT_STR(line[4], "how: hugepin check -n 37 -t 300 --against=tunable -- prog, when the machine does nothing else");
}

TEST(what_gains_nothing_does_not_gain_beside_others_either)
{
	struct hp_measured m = beside(1);

	runs(without, 1, 1, 0.001);
	runs(with, 1, 1, 0.001);
	EXPECT_EQ(hp_judge(&m).answer, HP_ANSWER_SAME);
	EXPECT_EQ(hp_judge(&m).decides, -1);
	EXPECT_EQ(say(&m), 5);
	SAYS(4, "beside glibc's tunable: 2.000 s, ");
}

T_MAIN
