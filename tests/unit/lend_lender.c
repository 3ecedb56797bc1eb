/*
 * Decisions of the lending side, by themselves: nothing is pinned or sent. Memory is a range of numbers.
 */
#include "tests/any.h"
#include "tests/unit/allocated.h"
#include "tests/unit/lend_lender.h"

TEST(a_static_share_is_of_whole_buckets_of_the_largest_size_that_fits)
{
	begin(HUGEPIN_LEND_STATIC, 1024 * MIB, 0);
	EXPECT_EQ(hp_lender_share(&ln), 320 * MIB); /* 1024 / 3, in buckets of 64 */
	EXPECT_EQ(ln.class, 0);
	end();
	begin(HUGEPIN_LEND_STATIC, 10 * MIB, 0);
	EXPECT_EQ(hp_lender_share(&ln), 2 * MIB);
	end();
	begin(HUGEPIN_LEND_STATIC, MIB, 0);
	EXPECT_EQ(hp_lender_share(&ln), 256 * KIB);
	end();
	begin(HUGEPIN_LEND_STATIC, 300 * KIB, 0);
	EXPECT_EQ(hp_lender_share(&ln), 0);
	EXPECT_EQ(ask(0, BASE).step, HP_STEP_NO);
	end();
	begin(HUGEPIN_LEND_POOL, MIB, 0);
	EXPECT_EQ(hp_lender_share(&ln), MIB);
	end();
}

LENDER_TEST(a_peer_over_its_static_share_is_asked_itself_once, HUGEPIN_LEND_STATIC, 12 * MIB, 0)
{
	struct hp_question q;

	EXPECT_EQ(ask(1, BASE).step, HP_STEP_LEND);
	EXPECT_EQ(ask(1, BASE + 2 * MIB).step, HP_STEP_LEND);
	q = question(1, BASE + 4 * MIB);
	EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
	hp_lender_wait(&ln, &q);
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	EXPECT(wants == 1 && wanted[0] == 1 && wanted_bytes == 2 * MIB);
	EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
	EXPECT_EQ(ask(2, BASE).step, HP_STEP_LEND); /* others have shares of their own */
	hp_lender_answered(&ln, 1);
	EXPECT_EQ(run(&q).step, HP_STEP_NO);
	hp_lender_unwait(&ln, &q);
	q = question(1, BASE + 4 * MIB);
	hp_lender_wait(&ln, &q);
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	give_back(TAILQ_FIRST(&ln.holder[1].loans), true);
	hp_lender_answered(&ln, 1);
	EXPECT_EQ(run(&q).step, HP_STEP_LEND);
	hp_lender_unwait(&ln, &q);
}

LENDER_TEST(a_pool_asks_the_holder_of_most_bytes_first_each_once_and_then_refuses, HUGEPIN_LEND_POOL, 14 * MIB, 0)
{
	struct hp_question q;

	hp_lender_fix_class(&ln, 1);
	for (unsigned i = 0; i < 4; i++)
		EXPECT_EQ(ask(2, BASE + i * 2 * MIB).step, HP_STEP_LEND);
	for (unsigned i = 4; i < 6; i++)
		EXPECT_EQ(ask(1, BASE + i * 2 * MIB).step, HP_STEP_LEND);
	EXPECT_EQ(ask(0, BASE + 12 * MIB).step, HP_STEP_LEND);
	q = question(3, BASE + 20 * MIB);
	EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
	hp_lender_wait(&ln, &q);
	for (uint32_t peer = 2; peer < 3; peer--) {
		EXPECT_EQ(run(&q).step, HP_STEP_WANT);
		EXPECT_EQ(wanted[wants - 1], peer);
		hp_lender_answered(&ln, peer);
	}
	EXPECT_EQ(run(&q).step, HP_STEP_NO);
	hp_lender_unwait(&ln, &q);
	q = question(3, BASE + 20 * MIB); /* and the next question may ask them again */
	hp_lender_wait(&ln, &q);
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	EXPECT_EQ(wanted[wants - 1], 2);
	give_back(TAILQ_FIRST(&ln.holder[2].loans), true);
	hp_lender_answered(&ln, 2);
	EXPECT_EQ(run(&q).step, HP_STEP_LEND);
	hp_lender_unwait(&ln, &q);
}

LENDER_TEST(holders_are_asked_again_while_they_give_keys_of_shared_buckets, HUGEPIN_LEND_POOL, 4 * MIB, 0)
{
	struct hp_question q;

	hp_lender_fix_class(&ln, 1);
	for (uint32_t peer = 1; peer < 3; peer++)
		for (unsigned i = 0; i < 2; i++)
			EXPECT_EQ(ask(peer, BASE + i * 2 * MIB).step, HP_STEP_LEND);
	q = question(3, BASE + 20 * MIB);
	hp_lender_wait(&ln, &q);
	for (unsigned i = 0; i < 2; i++) { /* one gives the first bucket, one the second: both stay lent */
		EXPECT_EQ(run(&q).step, HP_STEP_WANT);
		give_back(i ? TAILQ_LAST(&ln.holder[wanted[i]].loans, hp_loans)
			    : TAILQ_FIRST(&ln.holder[wanted[i]].loans),
			  true);
		hp_lender_answered(&ln, wanted[i]);
	}
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	give_back(TAILQ_FIRST(&ln.holder[wanted[2]].loans), true);
	hp_lender_answered(&ln, wanted[2]);
	EXPECT_EQ(run(&q).step, HP_STEP_LEND);
	hp_lender_unwait(&ln, &q);
}

LENDER_TEST(a_holder_that_no_message_reaches_is_not_asked, HUGEPIN_LEND_POOL, 6 * MIB, 0)
{
	struct hp_question q;

	hp_lender_fix_class(&ln, 1);
	EXPECT_EQ(ask(1, BASE).step, HP_STEP_LEND);
	EXPECT_EQ(ask(1, BASE + 2 * MIB).step, HP_STEP_LEND);
	EXPECT_EQ(ask(2, BASE + 4 * MIB).step, HP_STEP_LEND);
	ln.holder[1].mute = true;
	q = question(3, BASE + 6 * MIB);
	hp_lender_wait(&ln, &q);
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	EXPECT_EQ(wanted[0], 2);
	hp_lender_answered(&ln, 2);
	EXPECT_EQ(run(&q).step, HP_STEP_NO);
	hp_lender_unwait(&ln, &q);
	EXPECT_EQ(hp_lender_crowded(&ln, 5).peer, 2);
	ln.holder[1].mute = false;
	EXPECT_EQ(hp_lender_crowded(&ln, 5).peer, 1);
}

LENDER_TEST(what_needs_room_waits_behind_what_waits_and_what_needs_none_does_not, HUGEPIN_LEND_POOL, 4 * MIB, 0)
{
	struct hp_question q, behind;

	hp_lender_fix_class(&ln, 1);
	EXPECT_EQ(ask(1, BASE).step, HP_STEP_LEND);
	EXPECT_EQ(ask(1, BASE + 2 * MIB).step, HP_STEP_LEND);
	q = question(2, BASE + 4 * MIB);
	hp_lender_wait(&ln, &q);
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	behind = question(3, BASE + 6 * MIB);
	EXPECT_EQ(run(&behind).step, HP_STEP_WAIT);
	EXPECT_EQ(ask(3, BASE + 100).step, HP_STEP_LEND); /* lent to peer 1 already */
	EXPECT(TAILQ_FIRST(&ln.waiting) == &q && TAILQ_FIRST(&ln.holder[2].questions) == &q);
	EXPECT(TAILQ_EMPTY(&ln.holder[3].questions));
	hp_lender_unwait(&ln, &q);
	hp_lender_answered(&ln, 1);
}

LENDER_TEST(a_peer_has_so_many_questions_and_bytes_that_wait, HUGEPIN_LEND_POOL, MIB, 0)
{
	static struct hp_question q[HP_LEND_WAITING_MAX + 1];

	for (unsigned i = 0; i < HP_LEND_WAITING_MAX; i++) {
		q[i] = question(1, BASE);
		q[i].carried = i < 2 ? 50 : 0;
		EXPECT(hp_lender_may_wait(&ln, &q[i], 100));
		hp_lender_wait(&ln, &q[i]);
		if (i == 1) {
			q[i + 1] = question(1, BASE);
			q[i + 1].carried = 1;
			EXPECT(!hp_lender_may_wait(&ln, &q[i + 1], 100));
		}
	}
	q[HP_LEND_WAITING_MAX] = question(1, BASE);
	EXPECT(!hp_lender_may_wait(&ln, &q[HP_LEND_WAITING_MAX], 100));
	for (unsigned i = 0; i < HP_LEND_WAITING_MAX; i++)
		hp_lender_unwait(&ln, &q[i]);
	EXPECT_EQ(ln.holder[1].waiting_carried, 0);
}

LENDER_TEST(a_bucket_is_the_part_of_the_buffer_in_the_aligned_piece, HUGEPIN_LEND_POOL, 256 * MIB, 0)
{
	struct hp_act act;

	buffer = BASE + 3 * MIB + 100;
	buffer_end = BASE + 70 * MIB + 5;
	act = ask(1, BASE + 4 * MIB);
	EXPECT(act.bucket->base == buffer && act.bucket->len == 61 * MIB - 100);
	EXPECT_EQ(hp_bucket_bytes(act.bucket), 61 * MIB); /* whole base pages */
	act = ask(1, BASE + 65 * MIB);
	EXPECT(act.bucket->base == BASE + 64 * MIB && act.bucket->len == 6 * MIB + 5);
	EXPECT_EQ(hp_bucket_bytes(act.bucket), 6 * MIB + 4096);
	buffer = UINT64_MAX - 4 * MIB; /* at the end of all addresses */
	buffer_end = UINT64_MAX;
	act = ask(1, UINT64_MAX - 10);
	EXPECT(act.step == HP_STEP_LEND && act.bucket->base + act.bucket->len == UINT64_MAX);
	buffer = BASE;
	buffer_end = BASE + (UINT64_C(1) << 36);
}

LENDER_TEST(a_device_with_short_registrations_gets_smaller_pieces, HUGEPIN_LEND_POOL, 256 * MIB, 0)
{
	struct hp_act act;

	pin_max = MIB;
	act = ask(1, BASE + 10); /* the first part of the piece has it */
	EXPECT(act.step == HP_STEP_LEND && act.bucket->len == MIB);
	EXPECT_EQ(ln.lent, MIB);
	act = ask(1, BASE + 63 * MIB + 100);
	EXPECT(act.step == HP_STEP_LEND && act.bucket->len == 128 * KIB);
	pin_max = 4096;
	act = ask(1, BASE + 100 * MIB + 8192);
	EXPECT(act.step == HP_STEP_NO && act.err == EFAULT);
}

LENDER_TEST(a_pin_without_room_drops_what_is_idle_and_then_asks_for_keys, HUGEPIN_LEND_POOL, 64 * MIB, 64 * MIB)
{
	struct hp_question q;

	hp_lender_fix_class(&ln, 1);
	EXPECT_EQ(ask(1, BASE).step, HP_STEP_LEND);
	give_back(TAILQ_FIRST(&ln.holder[1].loans), false);
	EXPECT_EQ(ask(1, BASE + 8 * MIB).step, HP_STEP_LEND);
	EXPECT_EQ(ln.idle_count, 1);
	pin_error = -ENOMEM;
	q = question(2, BASE + 16 * MIB);
	EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
	EXPECT(drops == 1 && ln.idle_count == 0);
	hp_lender_wait(&ln, &q);
	EXPECT_EQ(run(&q).step, HP_STEP_WANT);
	EXPECT(wanted[0] == 1 && wanted_bytes == 2 * MIB);
	hp_lender_answered(&ln, 1);
	EXPECT_EQ(run(&q).step, HP_STEP_NO);
	hp_lender_unwait(&ln, &q);
	pin_error = -EFAULT; /* any other error is the answer */
	EXPECT_EQ(ask(2, BASE + 16 * MIB).err, EFAULT);
	EXPECT_EQ(ln.lent, 2 * MIB);
}

LENDER_TEST(a_bucket_that_is_given_back_is_idle_until_others_come_after_it, HUGEPIN_LEND_STATIC, 64 * MIB, 4 * MIB)
{
	for (unsigned i = 0; i < 3; i++) {
		EXPECT_EQ(ask(1, BASE + i * 2 * MIB).step, HP_STEP_LEND);
		give_back(TAILQ_FIRST(&ln.holder[1].loans), false);
	}
	EXPECT(pins == 3 && drops == 1 && ln.idle == 4 * MIB); /* the victim FIFO: the first is gone */
	EXPECT_EQ(ask(1, BASE + 2 * MIB).step, HP_STEP_LEND);
	EXPECT_EQ(ln.idle, 2 * MIB);
	EXPECT_EQ(ln.idle_max, 4 * MIB); /* static: as in the paper */
}

LENDER_TEST(the_idle_list_grows_by_what_is_asked_for_again_and_shrinks_by_what_is_not,
	   HUGEPIN_LEND_POOL, 32 * MIB, 4 * MIB)
{
	uint64_t grown;

	hp_lender_fix_class(&ln, 1);
	for (unsigned round = 0; round < 20; round++)
		for (unsigned i = 0; i < 6; i++) { /* six in turns, of which two fit */
			EXPECT_EQ(ask(1, BASE + i * 2 * MIB).step, HP_STEP_LEND);
			give_back(TAILQ_FIRST(&ln.holder[1].loans), false);
		}
	EXPECT(ln.idle_max >= 10 * MIB && ln.idle_max <= 36 * MIB);
	drops = 0;
	for (unsigned i = 0; i < 6; i++) {
		EXPECT_EQ(ask(1, BASE + i * 2 * MIB).step, HP_STEP_LEND);
		give_back(TAILQ_FIRST(&ln.holder[1].loans), false);
	}
	EXPECT_EQ(drops, 0);
	grown = ln.idle_max;
	for (unsigned i = 100; i < 400; i++) {
		EXPECT_EQ(ask(1, BASE + i * 2 * MIB).step, HP_STEP_LEND);
		give_back(TAILQ_FIRST(&ln.holder[1].loans), false);
	}
	EXPECT(ln.idle_max < grown);
	EXPECT_EQ(ln.idle_max, MIB); /* a quarter of what was set */
}

/* As a borrower does: of two keys of one bucket the peer gives the new one back. */
static void give_second_back(uint32_t peer)
{
	struct hp_loan *last = TAILQ_LAST(&ln.holder[peer].loans, hp_loans), *loan;

	TAILQ_FOREACH(loan, &ln.holder[peer].loans, of_peer)
		if (loan != last && loan->bucket == last->bucket) {
			give_back(last, false);
			return;
		}
}

/* Peers 1 and 2 ask for any of n hugepages, and get room from the larger of them. */
static void use_hugepages(unsigned n, unsigned asks)
{
	for (unsigned i = 0; i < asks; i++) {
		uint32_t peer = 1 + (uint32_t)any(2);
		struct hp_question q = question(peer, BASE + any(n) * 64 * MIB);

		for (struct hp_act act; (act = run(&q)).step != HP_STEP_LEND && act.step != HP_STEP_NO;) {
			if (act.step == HP_STEP_WAIT) {
				hp_lender_wait(&ln, &q);
				continue;
			}
			for (uint64_t given = 0; given < act.bytes && !TAILQ_EMPTY(&ln.holder[act.peer].loans);) {
				given += hp_bucket_bytes(TAILQ_FIRST(&ln.holder[act.peer].loans)->bucket);
				give_back(TAILQ_FIRST(&ln.holder[act.peer].loans), true);
			}
			hp_lender_answered(&ln, act.peer);
		}
		if (q.queue)
			hp_lender_unwait(&ln, &q);
		give_second_back(peer);
	}
}

LENDER_TEST(buckets_get_smaller_when_what_is_in_use_does_not_fit_and_larger_when_it_does,
	   HUGEPIN_LEND_POOL, 256 * MIB, 64 * MIB)
{
	EXPECT_EQ(ln.class, 0);
	use_hugepages(3, 2000); /* three extents fit */
	EXPECT_EQ(ln.class, 0);
	use_hugepages(40, 2000); /* forty do not, but forty hugepages */
	EXPECT_EQ(ln.class, 1);
	for (unsigned i = 0; i < 400; i++)
		use_hugepages(40, 10);
	EXPECT_EQ(ln.class, 1);
	while (!TAILQ_EMPTY(&ln.holder[1].loans))
		give_back(TAILQ_FIRST(&ln.holder[1].loans), false);
	while (!TAILQ_EMPTY(&ln.holder[2].loans))
		give_back(TAILQ_FIRST(&ln.holder[2].loans), false);
	for (struct hp_bucket *b; (b = hp_lender_oldest(&ln));)
		free(b);
	for (unsigned i = 0; i < 30000 && ln.class > 0;
	     i++) { /* two extents are left in use; older ones are forgotten */
		EXPECT_EQ(ask(1, BASE + (i % 64) * 2 * MIB).step, HP_STEP_LEND);
		give_back(TAILQ_FIRST(&ln.holder[1].loans), false);
	}
	EXPECT_EQ(ln.class, 0);
}

/* Peer 2 has four extents, all that may be lent. Peer 1 asks for each of them again and again, and has to give it
 * back. */
static void share_too_much(void)
{
	for (unsigned i = 0; i < 4; i++)
		EXPECT_EQ(ask(2, BASE + i * 64 * MIB).step, HP_STEP_LEND);
	for (unsigned i = 0; i < 600; i++) {
		EXPECT_EQ(ask(1, BASE + i % 4 * 64 * MIB).step, HP_STEP_LEND);
		give_back(TAILQ_FIRST(&ln.holder[1].loans), true);
	}
}

TEST(buckets_get_smaller_when_a_peer_loses_keys_of_what_another_has)
{
	begin(HUGEPIN_LEND_POOL, 256 * MIB, 64 * MIB);
	share_too_much();
	EXPECT_EQ(ln.class, 1);
	EXPECT_EQ(pins, 4);
	end();
	begin(HUGEPIN_LEND_POOL, 256 * MIB, 64 * MIB);
	for (unsigned i = 0; i < 600; i++) { /* given back, but not because room was wanted */
		EXPECT_EQ(ask(1, BASE + i % 4 * 64 * MIB).step, HP_STEP_LEND);
		give_back(TAILQ_FIRST(&ln.holder[1].loans), false);
	}
	EXPECT_EQ(ln.class, 0);
	end();
}

TEST(after_a_step_down_larger_buckets_are_asked_back_first)
{
	struct hp_question q = question(1, BASE + 256 * MIB);
	struct hp_bucket *first = NULL;

	begin(HUGEPIN_LEND_POOL, 256 * MIB, 64 * MIB);
	share_too_much();
	EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
	hp_lender_wait(&ln, &q);
	for (unsigned i = 0; i < 2; i++) {
		struct hp_act act = run(&q);

		EXPECT_EQ(act.step, HP_STEP_WANT);
		EXPECT(act.peer == 2 && act.bytes == 0 && act.bucket && act.bucket != first);
		if (!act.bucket)
			return;
		EXPECT_EQ(act.bucket->want, 64 * MIB);
		hp_lender_retire(&ln, act.bucket);
		first = act.bucket;
		hp_lender_answered(&ln, 2);
		ln.taken++; /* it gave something back, and is asked once more */
	}
	EXPECT(hp_lender_end(&ln, TAILQ_FIRST(&first->loans), false) == first);
	hp_lender_forget(&ln, first);
	EXPECT_EQ(run(&q).step, HP_STEP_LEND);
	hp_lender_unwait(&ln, &q);
	while (!TAILQ_EMPTY(&ln.holder[2].loans)) {
		struct hp_bucket *b = hp_lender_end(&ln, TAILQ_FIRST(&ln.holder[2].loans), false);

		if (b->retired)
			hp_lender_forget(&ln, b);
		else
			hp_lender_idle(&ln, b);
	}
	end();
}

TEST(peers_that_go_through_memory_in_order_get_larger_buckets)
{
	uint64_t size = 128 * KIB;

	begin(HUGEPIN_LEND_POOL, 256 * MIB, 64 * MIB);
	ln.class = 2;
	for (unsigned class = 2; class > 0; class--) {
		for (unsigned i = 0; i < 1200 && ln.class == class; i++) {
			EXPECT_EQ(ask(1, BASE + class * 64 * 1024 * MIB / 4 + i * size).step, HP_STEP_LEND);
			give_back(TAILQ_FIRST(&ln.holder[1].loans), true);
		}
		EXPECT_EQ(ln.class, class - 1);
		size = 2 * MIB;
	}
	use_hugepages(8, 300); /* eight extents do not fit, but the size is kept for a while */
	EXPECT_EQ(ln.class, 0);
	use_hugepages(40, 10000);
	EXPECT_EQ(ln.class, 1);
	end();
	begin(HUGEPIN_LEND_POOL, 256 * MIB, 64 * MIB);
	ln.class = 2;
	for (unsigned i = 0; i < 1200; i++) { /* every hugepage has one piece in use: not in order */
		EXPECT_EQ(ask(1, BASE + i * 2 * MIB).step, HP_STEP_LEND);
		give_back(TAILQ_FIRST(&ln.holder[1].loans), true);
	}
	EXPECT_EQ(ln.class, 2);
	end();
}

TEST(without_room_those_that_have_most_are_told_to_keep_within_that)
{
	begin(HUGEPIN_LEND_POOL, 8 * MIB, 0);
	hp_lender_fix_class(&ln, 1);
	EXPECT_EQ(ask(1, BASE).step, HP_STEP_LEND);
	EXPECT_EQ(ask(2, BASE + 2 * MIB).step, HP_STEP_LEND);
	EXPECT_EQ(ask(2, BASE + 4 * MIB).step, HP_STEP_LEND);
	EXPECT(hp_lender_share_now(&ln, 2, 2 * MIB) == UINT64_MAX); /* there is room for one more */
	EXPECT_EQ(ask(2, BASE + 6 * MIB).step, HP_STEP_LEND);
	EXPECT_EQ(hp_lender_share_now(&ln, 2, 2 * MIB), 6 * MIB);
	EXPECT(hp_lender_share_now(&ln, 1, 2 * MIB) == UINT64_MAX);
	EXPECT(hp_lender_share_now(&ln, 3, 2 * MIB) == UINT64_MAX);
	end();
	begin(HUGEPIN_LEND_STATIC, 12 * MIB, 0);
	EXPECT_EQ(hp_lender_share_now(&ln, 3, 2 * MIB), 4 * MIB);
	end();
}

LENDER_TEST(a_pool_whose_holders_give_nothing_asks_the_bucket_back_that_was_lent_first, HUGEPIN_LEND_POOL, 4 * MIB, 0)
{
	struct hp_question q;
	struct hp_act act;
	struct hp_bucket *b;

	hp_lender_fix_class(&ln, 1);
	EXPECT_EQ(ask(1, BASE).step, HP_STEP_LEND);
	EXPECT_EQ(ask(2, BASE + 2 * MIB).step, HP_STEP_LEND);
	b = TAILQ_FIRST(&ln.holder[1].loans)->bucket;
	for (unsigned i = 0; i < 2; i++) {
		q = question(3, BASE + 4 * MIB);
		EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
		hp_lender_wait(&ln, &q);
		for (unsigned k = 0; k < 2; k++) {
			act = run(&q);
			EXPECT_EQ(act.step, HP_STEP_WANT);
			hp_lender_answered(&ln, act.peer); /* with nothing */
		}
		act = run(&q);
		EXPECT(act.step == HP_STEP_NO && act.err == ENOBUFS);
		EXPECT(act.bucket == (i == 0 ? b : NULL)); /* as much as is wanted leaves already */
		if (act.bucket)
			hp_lender_retire(&ln, act.bucket);
		hp_lender_unwait(&ln, &q);
	}
	EXPECT(hp_lender_end(&ln, TAILQ_FIRST(&b->loans), false) == b); /* its last use is over */
	hp_lender_forget(&ln, b);
	EXPECT_EQ(ln.retired, 0);
	EXPECT_EQ(ask(3, BASE + 4 * MIB).step, HP_STEP_LEND);
}

LENDER_TEST(refs_of_loans_grow_and_are_found_by_their_peer_alone, HUGEPIN_LEND_POOL, 256 * MIB, 64 * MIB)
{
	uint64_t last = 0;

	for (unsigned i = 0; i < 100; i++) {
		struct hp_loan *loan;

		EXPECT_EQ(ask(1, BASE + (i % 3) * 64 * MIB).step, HP_STEP_LEND);
		loan = TAILQ_LAST(&ln.holder[1].loans, hp_loans);
		EXPECT(loan->ref > last);
		last = loan->ref;
		EXPECT(hp_lender_find(&ln, 1, last) == loan);
		EXPECT(!hp_lender_find(&ln, 2, last) && !hp_lender_find(&ln, 1, last + 1) &&
		       !hp_lender_find(&ln, 1, 0));
		if (i % 2 || i > 10) {
			give_back(loan, false);
			EXPECT(!hp_lender_find(&ln, 1, last));
		}
	}
}

LENDER_TEST(memory_that_is_wanted_is_not_lent_again_from_the_same_pin, HUGEPIN_LEND_POOL, 256 * MIB, 0)
{
	struct hp_act act;
	struct hp_bucket *old;

	old = ask(1, BASE).bucket;
	EXPECT(hp_lender_of_region(&ln, old->region) == old && !hp_lender_next_of_region(old));
	hp_lender_retire(&ln, old);
	hp_lender_retire(&ln, old);
	act = ask(2, BASE);
	EXPECT(act.step == HP_STEP_LEND && act.bucket != old);
	EXPECT(hp_lender_end(&ln, TAILQ_FIRST(&old->loans), false) == old);
	hp_lender_forget(&ln, old);
	EXPECT_EQ(ln.lent, 64 * MIB);
}

/* Peers that ask in turns: `busy` of a hundred questions are peer 1's, for one place after the other; the others are
 * peers 2 and 3's, anywhere. */
static void ask_by_turns(unsigned busy, unsigned asks)
{
	static uint64_t at;

	for (unsigned i = 0; i < asks; i++) {
		bool first = i % 100 < busy;
		uint32_t peer = first ? 1 : 2 + i % 2;
		struct hp_act act = ask(peer, BASE + (first ? (at += 128 * KIB) % (32 << 20) : any(500) * 64 * MIB));

		if (EXPECT_EQ(act.step, HP_STEP_LEND))
			give_back(TAILQ_LAST(&ln.holder[peer].loans, hp_loans), false);
	}
}

LENDER_TEST(whoever_goes_through_memory_in_order_no_bucket_is_more_than_a_quarter_of_what_may_be_lent,
	    HUGEPIN_LEND_POOL, 64 * MIB, 0)
{
	EXPECT_EQ(ln.class, 1);
	for (unsigned i = 0; i < 4000; i++) {
		struct hp_act act = ask(1, BASE + i * MIB);

		if (!EXPECT_EQ(act.step, HP_STEP_LEND) || !EXPECT(act.bucket->want <= 16 * MIB))
			break;
		give_back(TAILQ_FIRST(&ln.holder[1].loans), true);
	}
}

LENDER_TEST(one_peer_that_asks_most_does_not_choose_the_size_of_buckets_for_others, HUGEPIN_LEND_POOL, 256 * MIB, 0)
{
	ln.class = 1;
	ln.larger_after = 1000; /* what fits is not the subject */
	ask_by_turns(85, 4000);
	EXPECT_EQ(ln.class, 1);
	ask_by_turns(98, 4000); /* the others hardly ask */
	EXPECT_EQ(ln.class, 0);
}

LENDER_TEST(a_question_over_the_peers_limit_does_not_count_for_the_size_of_buckets, HUGEPIN_LEND_POOL, 64 * MIB, 0)
{
	unsigned refused = 0;

	for (unsigned i = 0; i < 400 && ln.tally.asks < 200; i++)
		refused += ask(1, BASE).step == HP_STEP_NO;
	EXPECT(refused > 100 && ln.tally.asks < 200);
}

LENDER_TEST(a_piece_that_does_not_fit_beside_what_is_in_use_is_made_smaller, HUGEPIN_LEND_POOL, 256 * MIB, 0)
{
	struct hp_question q = question(2, BASE + 300 * MIB);
	struct hp_act act;

	for (unsigned i = 0; i < 3; i++)
		EXPECT_EQ(ask(1, BASE + i * 64 * MIB).step, HP_STEP_LEND);
	ln.class = 1;
	EXPECT_EQ(ask(1, BASE + 200 * MIB).step, HP_STEP_LEND);
	ln.class = 0; /* 62 MiB are free */
	EXPECT_EQ(run(&q).step, HP_STEP_WAIT);
	hp_lender_wait(&ln, &q);
	act = run(&q);
	EXPECT(act.step == HP_STEP_WANT && act.peer == 1);
	hp_lender_answered(&ln, 1); /* with nothing */
	act = run(&q);
	EXPECT(act.step == HP_STEP_LEND && act.bucket->want == 2 * MIB);
	hp_lender_unwait(&ln, &q);
}

TEST(a_lender_is_freed_with_all_that_is_lent_and_idle)
{
	size_t before = 0;

	for (int round = 0; round < 30; round++) {
		if (round == 15)
			before = allocated();
		begin(HUGEPIN_LEND_POOL, 256 * MIB, 64 * MIB);
		for (unsigned i = 0; i < 4; i++)
			EXPECT_EQ(ask(i % 2, BASE + i * 64 * MIB).step, HP_STEP_LEND);
		give_back(TAILQ_FIRST(&ln.holder[0].loans), false);
		EXPECT(ln.lent && ln.idle);
		hp_lender_free(&ln);
	}
	EXPECT_EQ(allocated(), before);
}

T_MAIN
