/*
 * What one peer may cost the others, as the lending side decides: bytes, keys, and how long it may owe an answer.
 */
#include "tests/unit/lend_lender.h"

LENDER_TEST(a_peer_over_its_own_limits_is_asked_itself_and_nobody_waits_behind_it, HUGEPIN_LEND_POOL, 16 * MIB, 0)
{
	struct hp_question q, second;

	hp_lender_fix_class(&ln, 1);
	ln.peer_max = 12 * MIB;
	for (unsigned i = 0; i < 6; i++)
		EXPECT_EQ(ask(1, BASE + i * 2 * MIB).step, HP_STEP_LEND);
	EXPECT_EQ(hp_lender_share_now(&ln, 1, 2 * MIB), 12 * MIB); /* there is room, but not for this peer */
	q = question(1, BASE + 12 * MIB);
	EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
	hp_lender_wait(&ln, &q);
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	EXPECT(wanted[0] == 1 && wanted_bytes == 2 * MIB);
	second = question(1, BASE + 14 * MIB);
	EXPECT_EQ(run(&second).step, HP_STEP_WAIT);
	hp_lender_wait(&ln, &second);
	EXPECT_EQ(ask(2, BASE + 20 * MIB).step, HP_STEP_LEND);
	EXPECT_EQ(ask(3, BASE + 22 * MIB).step, HP_STEP_LEND);
	give_back(TAILQ_FIRST(&ln.holder[1].loans), true);
	hp_lender_answered(&ln, 1);
	EXPECT_EQ(run(&q).step, HP_STEP_LEND);
	hp_lender_unwait(&ln, &q);
	EXPECT_EQ(run(&second).step, HP_STEP_WANT);
	hp_lender_answered(&ln, 1); /* with nothing */
	EXPECT_EQ(run(&second).err, ENOBUFS);
	hp_lender_unwait(&ln, &second);
}

LENDER_TEST(a_question_within_its_peers_limits_again_waits_for_room_with_the_others, HUGEPIN_LEND_POOL, 8 * MIB, 0)
{
	struct hp_question q;

	hp_lender_fix_class(&ln, 1);
	ln.peer_max = 4 * MIB;
	for (unsigned i = 0; i < 4; i++)
		EXPECT_EQ(ask(1 + i / 2, BASE + i * 2 * MIB).step, HP_STEP_LEND);
	q = question(1, BASE + 12 * MIB);
	EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
	EXPECT(q.next_queue == &ln.holder[1].waiting);
	hp_lender_wait(&ln, &q);
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	EXPECT_EQ(ask(3, BASE).step, HP_STEP_LEND); /* so the bucket stays when peer 1 gives its key back */
	give_back(TAILQ_FIRST(&ln.holder[1].loans), true);
	hp_lender_answered(&ln, 1);
	EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
	EXPECT(q.next_queue == &ln.waiting);
	hp_lender_wait(&ln, &q);
	EXPECT(q.queue == &ln.waiting && TAILQ_EMPTY(&ln.holder[1].waiting));
	EXPECT_EQ(ln.holder[1].waiting_count, 1);
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	hp_lender_answered(&ln, wanted[1]);
	hp_lender_unwait(&ln, &q);
}

LENDER_TEST(a_peer_has_so_many_keys_and_others_have_theirs, HUGEPIN_LEND_POOL, 64 * MIB, 0)
{
	struct hp_question q = question(1, BASE + 8 * MIB);

	hp_lender_fix_class(&ln, 2);
	ln.keys_max = 8;
	for (unsigned i = 0; i < 8; i++)
		EXPECT_EQ(ask(1, BASE + i * 128 * KIB).step, HP_STEP_LEND);
	EXPECT_EQ(hp_lender_share_now(&ln, 1, 1), MIB); /* for a new key it gives another one back */
	EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
	hp_lender_wait(&ln, &q);
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	EXPECT(wanted[0] == 1 && wanted_bytes);
	EXPECT_EQ(ask(2, BASE).step, HP_STEP_LEND);
	EXPECT_EQ(ask(2, BASE + 16 * MIB).step, HP_STEP_LEND);
	hp_lender_answered(&ln, 1);
	EXPECT_EQ(run(&q).err, ENOBUFS);
	hp_lender_unwait(&ln, &q);
}

LENDER_TEST(a_bucket_of_which_a_peer_has_several_keys_counts_once, HUGEPIN_LEND_POOL, 256 * MIB, 0)
{
	for (unsigned i = 0; i < HP_LEND_SAME_MAX; i++)
		EXPECT_EQ(ask(1, BASE).step, HP_STEP_LEND);
	EXPECT_EQ(ask(1, BASE).err, ENOBUFS);
	EXPECT_EQ(ln.holder[1].bytes, 64 * MIB);
	EXPECT_EQ(ask(2, BASE).step, HP_STEP_LEND);
	for (unsigned i = 1; i < HP_LEND_SAME_MAX; i++)
		give_back(TAILQ_LAST(&ln.holder[1].loans, hp_loans), false);
	EXPECT_EQ(ln.holder[1].bytes, 64 * MIB);
	give_back(TAILQ_FIRST(&ln.holder[1].loans), false);
	EXPECT(!ln.holder[1].bytes && ln.holder[2].bytes == 64 * MIB);
}

LENDER_TEST(a_holder_that_owes_an_answer_for_too_long_is_passed_over_until_it_answers, HUGEPIN_LEND_POOL, 6 * MIB, 0)
{
	struct hp_question q;

	hp_lender_fix_class(&ln, 1);
	EXPECT_EQ(ask(1, BASE).step, HP_STEP_LEND);
	EXPECT_EQ(ask(1, BASE + 2 * MIB).step, HP_STEP_LEND);
	EXPECT_EQ(ask(2, BASE + 4 * MIB).step, HP_STEP_LEND);
	q = question(3, BASE + 6 * MIB);
	hp_lender_wait(&ln, &q);
	ln.now = 5;
	EXPECT_EQ(run(&q).peer, 1);
	EXPECT_EQ(hp_lender_late_at(&ln), ln.answer_ns + 5);
	ln.now = ln.answer_ns + 4;
	EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
	EXPECT_EQ(ln.holder[1].lates, 0);
	ln.now++;
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	EXPECT(wanted[1] == 2 && ln.holder[1].lates == 1 && ln.holder[1].want);
	hp_lender_answered(&ln, 2);
	EXPECT_EQ(run(&q).err, ENOBUFS);
	hp_lender_unwait(&ln, &q);
	EXPECT_EQ(hp_lender_late_at(&ln), UINT64_MAX);
	q = question(3, BASE + 6 * MIB); /* the next one does not wait for it at all */
	hp_lender_wait(&ln, &q);
	EXPECT_EQ(run(&q).peer, 2);
	EXPECT_EQ(hp_lender_crowded(&ln, 1).step, HP_STEP_WAIT);
	hp_lender_answered(&ln, 2);
	hp_lender_unwait(&ln, &q);
	hp_lender_answered(&ln, 1);
	EXPECT_EQ(hp_lender_crowded(&ln, 1).peer, 1);
	EXPECT_EQ(ln.holder[1].lates, 1);
}

T_MAIN
