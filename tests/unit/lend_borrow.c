/*
 * Borrowing: questions, keys, uses, giving back, between nodes in one process.
 */
#include "lend/borrowed.h"
#include "reg/counts.h"
#include "tests/unit/allocated.h"
#include "tests/unit/lend.h"

/* Answers of which only the number is looked at. */
static void node_ready_counted(void *arg, void *token_, int err, const struct hugepin_far *key)
{
	(void)token_, (void)key;
	EXPECT(err);
	((struct node *)arg)->answers++;
}

/* A test of two nodes, which open_nodes() opens. */
#define NODES_TEST(fact, ...)                                                                                          \
	static void fact##_body(void);                                                                                 \
	TEST(fact)                                                                                                     \
	{                                                                                                              \
		open_nodes(2, __VA_ARGS__);                                                                            \
		fact##_body();                                                                                         \
		close_nodes(2);                                                                                        \
	}                                                                                                              \
	static void fact##_body(void)

NODES_TEST(a_key_is_asked_for_once_and_then_borrowed_without_a_message, HUGEPIN_LEND_POOL, MIB, 256 * MIB, MIB)
{
	struct hugepin_far key;
	unsigned sends;

	key = borrow(1, node[0].memory + 100, 200);
	EXPECT(works(0, &key));
	EXPECT_EQ(key.base, (uintptr_t)node[0].memory + 100);
	EXPECT_EQ(key.len, 200);
	EXPECT_EQ(key.peer, 0);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), -EINVAL);
	sends = node[1].sends;
	for (int i = 0; i < 100; i++) {
		EXPECT_EQ(
			hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + (size_t)i * 4096, 64, NULL, &key),
			1);
		EXPECT(works(0, &key));
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	}
	EXPECT_EQ(node[1].sends, sends);
	EXPECT_EQ(lend_stats(0, 1).lent, 1);
	EXPECT_EQ(lend_stats(1, 0).borrowed, 1);
}

NODES_TEST(a_key_whose_memory_is_wanted_is_given_back_at_its_last_use, HUGEPIN_LEND_POOL, MIB, 4 * MIB, MIB)
{
	struct hugepin_far key;

	key = borrow(1, node[0].memory, 4096);
	want_memory(0, node[0].memory);
	EXPECT_EQ(hugepin_lend_progress(node[0].lend), 0);
	deliver_all();
	EXPECT_EQ(lend_stats(0, 1).lent, 1);
	EXPECT(works(0, &key));
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	deliver_all();
	EXPECT_EQ(lend_stats(0, 1).lent, 0);
	EXPECT_EQ(lend_stats(0, HUGEPIN_LEND_ALL).idle_bytes, 0);
}


NODES_TEST(a_key_is_cut_where_the_buffer_ends, HUGEPIN_LEND_POOL, MIB, 4 * MIB, MIB)
{
	struct hugepin_far key;

	key = borrow(1, node[0].memory + MIB - 10, 4096);
	EXPECT_EQ(key.len, 10);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + MIB - 3, 100, NULL, &key), 1);
	EXPECT_EQ(key.len, 3);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
}

TEST(bad_arguments_are_refused)
{
	struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, MIB, MIB);
	struct hugepin_far key = { .base = 5 };
	hugepin_lend *l = NULL;

	open_nodes(1, HUGEPIN_LEND_POOL, MIB, 4 * MIB, MIB);
	EXPECT_EQ(hugepin_lend_key(node[0].lend, NODES_MAX, 4096, 1, NULL, &key), -EINVAL);
	EXPECT_EQ(hugepin_lend_key(node[0].lend, 0, 4096, 0, NULL, &key), -EINVAL);
	EXPECT_EQ(hugepin_lend_key(node[0].lend, 0, UINT64_MAX, 2, NULL, &key), -EINVAL);
	EXPECT_EQ(hugepin_lend_put(node[0].lend, 0, 4096, NULL, 1, NULL, &key), -EINVAL);
	EXPECT_EQ(hugepin_lend_done(node[0].lend, &key), -EINVAL);
	EXPECT_EQ(key.base, 5);
	key.ref = 12345; /* of no lend */
	EXPECT_EQ(hugepin_lend_done(node[0].lend, &key), -EINVAL);
	EXPECT_EQ(hugepin_lend_message(node[0].lend, NODES_MAX, &key, 8), -EINVAL);
	EXPECT_EQ(hugepin_lend_message(node[0].lend, 0, NULL, 8), -EINVAL);
	EXPECT_EQ(hugepin_lend_message(NULL, 0, &key, 8), -EINVAL);
	EXPECT_EQ(hugepin_lend_message(node[0].lend, 0, &key, 0), -EILSEQ);
	EXPECT_EQ(hugepin_lend_gone(node[0].lend, NODES_MAX), -EINVAL);
	EXPECT_EQ(hugepin_lend_again(node[0].lend, NODES_MAX), -EINVAL);
	EXPECT_EQ(hugepin_lend_again(node[0].lend, 1), -EALREADY);
	EXPECT_EQ(hugepin_lend_progress(NULL), -EINVAL);
	EXPECT_EQ(hugepin_lend_close(NULL), -EINVAL);
	EXPECT_EQ(hugepin_lend_stats(node[0].lend, NODES_MAX, NULL, 8), -EINVAL);
	EXPECT_EQ(hugepin_lend_open(node[0].domain, &attr, NULL, &l), -EBUSY);
	EXPECT_EQ(hugepin_lend_open(NULL, &attr, NULL, &l), -EINVAL);
	EXPECT_EQ(hugepin_lend_close(node[0].lend), 0);
#define REFUSED(change, error) \
	do { \
		attr = attr_of(HUGEPIN_LEND_POOL, MIB, MIB); \
		attr.change; \
		EXPECT_EQ(hugepin_lend_open(node[0].domain, &attr, NULL, &l), error); \
	} while (0)
	REFUSED(size = 8, -EINVAL);
	REFUSED(size = offsetof(struct hugepin_lend_attr, peer_bytes_max) - 1, -EINVAL);
	REFUSED(peers = 0, -EINVAL);
	REFUSED(policy = 2, -EINVAL);
	REFUSED(access = HUGEPIN_READ, -EINVAL);
	REFUSED(access = HUGEPIN_REMOTE_ATOMIC, -EOPNOTSUPP);
	REFUSED(carry_max = (1 << 20) + 1, -EINVAL);
	REFUSED(lent_bytes_max = UINT64_MAX, -EINVAL);
	REFUSED(peer_bytes_max = MIB + 1, -EINVAL);
	REFUSED(peer_keys_max = HP_REGIONS_MAX + 1, -EINVAL);
	REFUSED(send = NULL, -EINVAL);
	REFUSED(ready = NULL, -EINVAL);
	REFUSED(offer = NULL, -EINVAL); /* in an exact domain */
	EXPECT(!l);
	attr = attr_of(HUGEPIN_LEND_POOL, 0, 0);
	EXPECT_EQ(hugepin_lend_open(node[0].domain, &attr, NULL, &node[0].lend), 0);
	EXPECT_EQ(node[0].lend->lender.lent_max, 32 * MIB); /* half of the budget, and an eighth */
	EXPECT_EQ(node[0].lend->lender.idle_base, 8 * MIB);
	close_nodes(1);
}

TEST(without_a_budget_shares_are_of_the_machine_s_memory)
{
	const struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, 0, 0);
	const uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	for (int i = 0; i < 2; i++) {
		open_node(0, MIB, i ? UINT64_MAX : 0, &attr);
		EXPECT_EQ(node[0].lend->lender.lent_max, memory / 2);
		EXPECT_EQ(node[0].lend->lender.idle_base, memory / 8);
		close_nodes(1);
	}
}

TEST(a_program_of_before_the_limits_has_their_defaults_and_each_may_be_as_large_as_it_says)
{
	struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, 4 * MIB, MIB);

	T_DOMAIN_BEGINS();
	attr.size = offsetof(struct hugepin_lend_attr, peer_bytes_max);
	attr.peer_bytes_max = attr.peer_keys_max = UINT32_MAX; /* behind the end */
	open_node(0, MIB, 64 * MIB, &attr);
	EXPECT_EQ(node[0].lend->attr.peer_bytes_max, 4 * MIB - 128 * KIB);
	EXPECT_EQ(node[0].lend->attr.peer_kept_max, MIB + 64 * (256 + 128));
	EXPECT(node[0].lend->attr.peer_keys_max == 16384 && node[0].lend->attr.answer_ms == 1000);
	close_node(0);
	attr = attr_of(HUGEPIN_LEND_POOL, 4 * MIB, MIB);
	attr.peer_bytes_max = 4 * MIB;
	attr.peer_keys_max = 262144;
	open_node(0, MIB, 64 * MIB, &attr);
	EXPECT(node[0].lend->lender.peer_max == 4 * MIB && node[0].lend->lender.keys_max == 262144);
	close_node(0);
}

NODES_TEST(callers_of_one_frame_share_a_question, HUGEPIN_LEND_POOL, MIB, 512 * KIB, 0)
{
	struct hugepin_far key;

	for (int i = 0; i < 5; i++)
		EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + (size_t)i * 100, 10, &place[i],
					   &key),
			  0);
	EXPECT_EQ(node[1].sends, 1);
	deliver_all();
	EXPECT_EQ(node[1].answers, 5);
	EXPECT_EQ(node[1].sends, 1);
	for (int i = 0; i < 5; i++) {
		EXPECT(node[1].answer[i].token == &place[i] && !node[1].answer[i].err);
		EXPECT_EQ(node[1].answer[i].key.base, (uintptr_t)node[0].memory + (size_t)i * 100);
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &node[1].answer[i].key), 0);
	}
}

NODES_TEST(a_caller_whom_the_answer_does_not_reach_asks_again, HUGEPIN_LEND_POOL, MIB, 4 * MIB, 0)
{
	struct hugepin_far key;

	node[0].offered = 100;
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory, 10, &place[0], &key), 0);
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + 200, 10, &place[1], &key), 0);
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + 50, 10, &place[2], &key), 0);
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + 300, 10, &place[3], &key), 0);
	deliver(1, 0);
	node[0].offered = MIB;
	deliver_all();
	EXPECT_EQ(node[1].answers, 4);
	EXPECT(node[1].answer[1].token == &place[2] && node[1].answer[2].token == &place[1]);
	EXPECT_EQ(node[1].sends, 2);
	for (int i = 0; i < 4; i++) {
		EXPECT_EQ(node[1].answer[i].err, 0);
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &node[1].answer[i].key), 0);
	}
}

/* Ask, and expect an error from ready(). */
static void denied(unsigned i, uint64_t addr, size_t len, const void *data, int err)
{
	unsigned answers = node[i].answers;
	struct hugepin_far key;

	EXPECT_EQ(data ? hugepin_lend_put(node[i].lend, 0, addr, data, len, &place[0], &key) :
			 hugepin_lend_key(node[i].lend, 0, addr, len, &place[0], &key),
		  0);
	deliver_all();
	if (EXPECT_EQ(node[i].answers, answers + 1))
		EXPECT_EQ(node[i].answer[answers].err, err);
}

TEST(the_reason_of_a_refusal_reaches_the_caller)
{
	static const char data[128] = "data";
	struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, 4 * MIB, 0);

	open_nodes(2, HUGEPIN_LEND_POOL, MIB, 4 * MIB, 0);
	denied(1, (uintptr_t)node[0].memory + MIB, 1, NULL, -EACCES);
	node[0].offer_error = -EPERM;
	denied(1, (uintptr_t)node[0].memory, 1, NULL, -EPERM);
	node[0].offer_error = 0;
	node[0].device.nth = 1;
	node[0].device.for_good = true;
	node[0].device.with = -EFAULT;
	denied(1, (uintptr_t)node[0].memory, 1, NULL, -EFAULT);
	denied(1, (uintptr_t)node[0].memory, 4, data, -EFAULT);
	node[0].device.with = -ENOMEM;
	denied(1, (uintptr_t)node[0].memory, 1, NULL, -ENOBUFS);
	node[0].device.nth = 0;
	EXPECT_EQ(hugepin_lend_close(node[0].lend), 0);
	attr.carry_max = 8;
	EXPECT_EQ(hugepin_lend_open(node[0].domain, &attr, &node[0], &node[0].lend), 0);
	EXPECT_EQ(hugepin_lend_gone(node[1].lend, 0), 0);
	EXPECT_EQ(hugepin_lend_again(node[1].lend, 0), 0);
	denied(1, (uintptr_t)node[0].memory, 9, data, -EMSGSIZE);
	EXPECT_EQ(hugepin_lend_close(node[0].lend), 0);
	attr.access = HUGEPIN_REMOTE_READ; /* then peers may not write by a message, either */
	EXPECT_EQ(hugepin_lend_open(node[0].domain, &attr, &node[0], &node[0].lend), 0);
	EXPECT_EQ(hugepin_lend_gone(node[1].lend, 0), 0);
	EXPECT_EQ(hugepin_lend_again(node[1].lend, 0), 0);
	denied(1, (uintptr_t)node[0].memory, 8, data, -EACCES);
	EXPECT_EQ(node[0].memory[0], 0);
	EXPECT_EQ(lend_stats(0, 1).refused, 1);
	EXPECT(lend_stats(1, 0).denied == 7 && lend_stats(1, 0).asks == 7);
	close_nodes(2);
}

NODES_TEST(a_put_that_misses_takes_one_question_and_one_answer, HUGEPIN_LEND_POOL, MIB, 4 * MIB, 0)
{
	static const char data[128] = "carried";
	struct hugepin_far key;

	EXPECT_EQ(hugepin_lend_put(node[1].lend, 0, (uintptr_t)node[0].memory + 5, data, 129, &place[0], &key),
		  -EMSGSIZE);
	EXPECT_EQ(hugepin_lend_put(node[1].lend, 0, (uintptr_t)node[0].memory + 5, data, 128, &place[0], &key), 0);
	deliver_all();
	EXPECT(!memcmp(node[0].memory + 5, data, 128));
	EXPECT(node[1].sends == 1 && node[0].sends == 1 && node[1].answers == 1 && !node[1].answer[0].err);
	EXPECT_EQ(hugepin_lend_put(node[1].lend, 0, (uintptr_t)node[0].memory, "x", 1, NULL, &key), 1);
	EXPECT_EQ(node[0].memory[0], 0); /* a hit carries nothing */
	EXPECT(lend_stats(0, 1).carried == 128 && lend_stats(1, 0).carried == 128);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &node[1].answer[0].key), 0);
}

TEST(bytes_for_memory_that_is_not_there_are_refused)
{
	char *gone = map(MIB);

	open_nodes(2, HUGEPIN_LEND_POOL, 0, 4 * MIB, 0);
	munmap(gone, MIB);
	node[0].memory = gone; /* the program offers what is no more */
	node[0].offered = MIB;
	denied(1, (uintptr_t)gone, 1, "x", -EFAULT);
	EXPECT_EQ(lend_stats(0, HUGEPIN_LEND_ALL).lent, 0);
	node[0].memory = NULL;
	close_nodes(2);
}

TEST(so_many_questions_may_be_out)
{
	struct hugepin_far key;

	open_nodes(2, HUGEPIN_LEND_POOL, 16 * MIB, 128 * KIB, 0);
	for (unsigned i = 0; i < HP_ASKS_MAX; i++)
		EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + i * 128 * KIB, 1, &place[0],
					   &key),
			  0);
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + HP_ASKS_MAX * 128 * KIB, 1, &place[0],
				   &key),
		  -EBUSY);
	for (unsigned i = 0; i < HP_WAITERS_MAX; i++)
		EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + 128 * KIB, 1, &place[1], &key),
			  0);
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory, 1, &place[1], &key), -EBUSY);
	node[1].answers = 0;
	EXPECT_EQ(hugepin_lend_gone(node[0].lend, 1), 0);
	node[1].lend->attr.ready = node_ready_counted;
	EXPECT_EQ(hugepin_lend_close(node[1].lend), 0);
	EXPECT_EQ(node[1].answers, HP_ASKS_MAX + HP_WAITERS_MAX);
	forget_messages();
	close_empty(&node[1].device, node[1].domain);
	close_nodes(1);
}

NODES_TEST(under_pressure_the_key_that_was_not_used_for_longest_goes, HUGEPIN_LEND_POOL, 4 * MIB, 512 * KIB, 0)
{
	struct hugepin_far key[5];

	for (unsigned i = 0; i < 4; i++) {
		key[i] = borrow(1, node[0].memory + i * 256 * KIB, 1);
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &key[i]), 0);
	}
	key[4] = borrow(1, node[0].memory + 4 * 256 * KIB, 1); /* clears the marks of use, and takes the first */
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key[4]), 0);
	EXPECT_EQ(lend_stats(0, 1).waited, 0);
	key[1] = borrow(1, node[0].memory + 256 * KIB, 1); /* used again */
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key[1]), 0);
	EXPECT_EQ(node[1].sends, 5); /* given back in the question: no WANT */
	key[0] = borrow(1, node[0].memory + 5 * 256 * KIB, 1);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key[0]), 0);
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + 256 * KIB, 1, NULL, &key[1]), 1);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key[1]), 0);
	EXPECT(!hp_borrowed_find(node[1].lend, 0, (uintptr_t)node[0].memory + 2 * 256 * KIB));
}

NODES_TEST(a_key_with_uses_is_never_given_for_room, HUGEPIN_LEND_POOL, 4 * MIB, 512 * KIB, 0)
{
	struct hugepin_far key[4];

	for (unsigned i = 0; i < 4; i++)
		key[i] = borrow(1, node[0].memory + i * 256 * KIB, 1);
	denied(1, (uintptr_t)node[0].memory + 2 * MIB, 1, NULL, -ENOBUFS);
	for (unsigned i = 0; i < 4; i++) {
		EXPECT(works(0, &key[i]));
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &key[i]), 0);
	}
}

TEST(at_its_static_share_a_peer_gives_back_in_the_question)
{
	struct hugepin_far key;

	open_nodes(2, HUGEPIN_LEND_STATIC, 4 * MIB, 768 * KIB, MIB); /* three other peers: two buckets each */
	for (unsigned i = 0; i < 8; i++) {
		key = borrow(1, node[0].memory + i * 128 * KIB, 1);
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
		EXPECT(lend_stats(0, 1).lent <= 2);
	}
	EXPECT_EQ(node[1].sends, 8);
	EXPECT_EQ(node[0].sends, 8); /* no WANT */
	close_nodes(2);
}

NODES_TEST(a_peer_that_is_gone_ends_questions_keys_and_loans, HUGEPIN_LEND_POOL, MIB, 512 * KIB, 512 * KIB)
{
	struct hugepin_far key, used;

	used = borrow(1, node[0].memory, 1);
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + 512 * KIB, 1, &place[1], &key), 0);
	EXPECT_EQ(hugepin_lend_gone(node[1].lend, 0), 0);
	EXPECT_EQ(hugepin_lend_gone(node[1].lend, 0), -EALREADY);
	EXPECT(node[1].answers == 2 && node[1].answer[1].err == -ECONNRESET);
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory, 1, &place[1], &key), -ENOTCONN);
	EXPECT_EQ(deliver(1, 0), 0);
	EXPECT_EQ(deliver(0, 1), -ENOTCONN);
	EXPECT_EQ(lend_stats(0, 1).lent, 2);
	EXPECT_EQ(hugepin_lend_gone(node[0].lend, 1), 0);
	EXPECT_EQ(lend_stats(0, HUGEPIN_LEND_ALL).lent, 0);
	EXPECT_EQ(lend_stats(0, HUGEPIN_LEND_ALL).idle_bytes, 0);
	EXPECT(!works(0, &used)); /* the next process with this number may know the key */
	EXPECT_EQ(hugepin_lend_close(node[1].lend), -EBUSY); /* a use is out */
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &used), 0);
	EXPECT_EQ(hugepin_lend_again(node[1].lend, 0), 0);
	EXPECT_EQ(hugepin_lend_again(node[0].lend, 1), 0);
	used = borrow(1, node[0].memory, 1);
	EXPECT(works(0, &used));
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &used), 0);
}

NODES_TEST(a_key_that_is_returned_goes_back_with_its_last_use, HUGEPIN_LEND_POOL, MIB, 512 * KIB, 512 * KIB)
{
	struct hugepin_far used = borrow(1, node[0].memory, 1), key = borrow(1, node[0].memory, 1);

	EXPECT_EQ(hugepin_lend_return(node[1].lend, &key), 0);
	EXPECT_EQ(key.ref, 0);
	EXPECT_EQ(hugepin_lend_return(node[1].lend, &key), -EINVAL);
	deliver_all();
	EXPECT(works(0, &used) && lend_stats(0, 1).lent == 1);
	EXPECT_EQ(hugepin_lend_return(node[1].lend, &used), 0);
	deliver_all();
	EXPECT(!lend_stats(0, 1).lent && !lend_stats(1, 0).borrowed && !lend_stats(0, 1).recalls);
	EXPECT_EQ(lend_stats(1, 0).asks, 1);
	key = borrow(1, node[0].memory, 1);
	EXPECT_EQ(lend_stats(1, 0).asks, 2);
	EXPECT(works(0, &key));
	EXPECT_EQ(hugepin_lend_return(node[0].lend, &key), -EINVAL); /* another lend's */
	EXPECT_EQ(hugepin_lend_return(node[1].lend, &key), 0);
	EXPECT_EQ(hugepin_lend_return(NULL, &key), -EINVAL);
}

NODES_TEST(a_lender_whose_peers_have_keys_does_not_close, HUGEPIN_LEND_POOL, MIB, 512 * KIB, 512 * KIB)
{
	struct hugepin_far key;

	key = borrow(1, node[0].memory, 1);
	EXPECT_EQ(hugepin_lend_close(node[0].lend), -EBUSY);
	EXPECT_EQ(hugepin_lend_close(node[1].lend), -EBUSY);
	EXPECT(works(0, &key));
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
}

NODES_TEST(messages_that_find_no_room_are_sent_later_in_their_order, HUGEPIN_LEND_POOL, 4 * MIB, 4 * MIB, 0)
{
	struct hugepin_far key;

	node[1].send_error = -EAGAIN;
	for (unsigned i = 0; i < 4; i++)
		EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + i * MIB, 1, &place[i], &key),
			  0);
	EXPECT_EQ(queue[1][0].count, 0);
	EXPECT_EQ(hugepin_lend_progress(node[1].lend), 0);
	EXPECT(lend_stats(1, HUGEPIN_LEND_ALL).table_bytes > 0);
	node[1].send_error = 0;
	EXPECT_EQ(hugepin_lend_progress(node[1].lend), 0);
	EXPECT_EQ(queue[1][0].count, 4);
	EXPECT(!hp_lend_attends(node[1].lend, UINT32_MAX));
	deliver_all(); /* the lender takes questions in their order alone */
	EXPECT_EQ(node[1].answers, 4);
	for (unsigned i = 0; i < 4; i++)
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &node[1].answer[i].key), 0);
}

NODES_TEST(what_send_holds_is_sent_once_more_by_progress, HUGEPIN_LEND_POOL, MIB, 128 * KIB, 0)
{
	struct hugepin_far key;

	node[1].holds = true;
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory, 1, &place[0], &key), 0);
	for (unsigned i = 1; i < 4; i++) {
		EXPECT_EQ(node[1].asked_again, i - 1);
		EXPECT_EQ(hugepin_lend_progress(node[1].lend), 0);
	}
	node[1].holds = false;
	EXPECT_EQ(hugepin_lend_progress(node[1].lend), 0);
	EXPECT(!hp_lend_attends(node[1].lend, UINT32_MAX));
	EXPECT_EQ(hugepin_lend_progress(node[1].lend), 0);
	EXPECT_EQ(node[1].asked_again, 4);
	EXPECT_EQ(lend_stats(1, 0).sent, 1);
	deliver_all();
	EXPECT_EQ(node[1].answers, 1);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &node[1].answer[0].key), 0);
}

NODES_TEST(nothing_is_sent_once_more_to_a_peer_that_is_lost_or_gone, HUGEPIN_LEND_POOL, MIB, 128 * KIB, 0)
{
	struct hugepin_far key;

	for (unsigned gone = 0; gone < 2; gone++) {
		node[1].holds = true;
		EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory, 1, &place[0], &key), 0);
		free(take(1, 0));
		if (gone) {
			EXPECT_EQ(hugepin_lend_gone(node[1].lend, 0), 0);
		} else {
			node[1].send_error = -EPIPE;
			EXPECT_EQ(hugepin_lend_progress(node[1].lend), 0);
		}
		for (unsigned i = 0; i < 3; i++)
			EXPECT_EQ(hugepin_lend_progress(node[1].lend), 0);
		EXPECT_EQ(node[1].asked_again, 1);
		node[1].send_error = 0;
		if (!gone) {
			EXPECT_EQ(hugepin_lend_gone(node[1].lend, 0), 0);
			EXPECT_EQ(hugepin_lend_again(node[1].lend, 0), 0);
		}
	}
	EXPECT_EQ(node[1].answers, 2);
	EXPECT_EQ(hugepin_lend_gone(node[0].lend, 1), 0);
}

NODES_TEST(a_peer_to_whom_sending_fails_is_lost_until_it_is_gone, HUGEPIN_LEND_POOL, MIB, 128 * KIB, 0)
{
	struct hugepin_far key;

	key = borrow(1, node[0].memory, 1);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	node[1].send_error = -EPIPE;
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + 512 * KIB, 1, &place[0], &key), -EPIPE);
	node[1].send_error = 0;
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory + 512 * KIB, 1, &place[0], &key), -EPIPE);
	EXPECT_EQ(hugepin_lend_gone(node[1].lend, 0), 0);
	EXPECT_EQ(hugepin_lend_gone(node[0].lend, 1), 0);
	EXPECT_EQ(node[1].answers, 1); /* of the key that it had: an error of key() is the answer */
}

TEST(the_heap_is_lent_by_extents_where_peers_may_see_it)
{
	struct hugepin_attr attr = { .size = sizeof attr,
				     .policy = HUGEPIN_POLICY_LRU,
				     .pinned_bytes_max = 256 * MIB,
				     .reach = HUGEPIN_REACH_EXTENT };
	struct hugepin_lend_attr lend_attr = attr_of(HUGEPIN_LEND_POOL, 128 * MIB, 0);
	char *p = hugepin_malloc(MIB), *q = hugepin_malloc(MIB);
	struct hugepin_far key;

	T_DOMAIN_BEGINS();
	for (unsigned i = 0; i < 2; i++) {
		memset(&node[i], 0, sizeof node[i]);
		device_reset(&node[i].device);
		node[i].number = i;
		lend_attr.offer = NULL;
		EXPECT_EQ(hugepin_domain_open(&device_backend, &node[i].device, &attr, &node[i].domain), 0);
		EXPECT_EQ(hugepin_lend_open(node[i].domain, &lend_attr, &node[i], &node[i].lend), 0);
	}
	key = borrow(1, p, MIB);
	EXPECT(works(0, &key) && key.len == MIB);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)q, MIB, NULL, &key), 1); /* the same extent */
	EXPECT(works(0, &key));
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	denied(1, (uintptr_t)place, 1, NULL, -EACCES); /* not the heap's */
	close_nodes(2);
	hugepin_free(p);
	hugepin_free(q);
	hugepin_purge();
}

NODES_TEST(more_news_than_fit_ask_everything_back, HUGEPIN_LEND_POOL, MIB, MIB, 0)
{
	struct hugepin_far key;
	hugepin_domain *d;

	key = borrow(1, node[0].memory, 1);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	d = node[0].domain;
	for (int i = 0; i <= HP_NEWS_MAX; i++)
		d->lend_hooks->wanted(d->lend, HP_REGIONS_MAX - 1);
	EXPECT_EQ(hugepin_lend_progress(node[0].lend), 0);
	deliver_all();
	EXPECT_EQ(lend_stats(0, HUGEPIN_LEND_ALL).lent, 0);
}

NODES_TEST(others_that_need_room_get_idle_memory_and_then_keys, HUGEPIN_LEND_POOL, MIB, 256 * KIB, 256 * KIB)
{
	struct hugepin_far key[2];
	hugepin_domain *d;

	d = node[0].domain;
	for (unsigned i = 0; i < 2; i++) {
		key[i] = borrow(1, node[0].memory + i * 256 * KIB, 1);
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &key[i]), 0);
	}
	want_memory(1, node[0].memory); /* nothing of node 1 is lent: no news */
	key[0] = borrow(1, node[0].memory + 768 * KIB, 1);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key[0]), 0);
	EXPECT_EQ(lend_stats(0, HUGEPIN_LEND_ALL).idle_bytes, 128 * KIB);
	d->lend_hooks->crowded(d->lend, 128 * KIB);
	EXPECT_EQ(hugepin_lend_progress(node[0].lend), 0);
	EXPECT_EQ(lend_stats(0, HUGEPIN_LEND_ALL).idle_bytes, 0);
	EXPECT_EQ(queue[0][1].count, 0);
	d->lend_hooks->crowded(d->lend, 128 * KIB);
	EXPECT_EQ(hugepin_lend_progress(node[0].lend), 0);
	EXPECT_EQ(queue[0][1].count, 1); /* WANT */
	deliver_all();
	EXPECT_EQ(lend_stats(0, 1).lent, 1);
}

TEST(uses_of_borrowed_keys_are_no_pins)
{
	uint64_t undone = atomic_load_explicit(&hp_counts_undone, memory_order_relaxed);
	struct hugepin_far key;

	open_nodes(2, HUGEPIN_LEND_POOL, MIB, MIB, 0);
	for (int i = 0; i < 10; i++) {
		key = borrow(1, node[0].memory, 1);
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	}
	close_nodes(2);
	EXPECT_EQ(atomic_load_explicit(&hp_counts_undone, memory_order_relaxed) - undone, 10);
}

enum { PAGES = 2000 };

NODES_TEST(many_keys_of_small_buffers_are_all_hit_without_a_message, HUGEPIN_LEND_POOL, PAGES * 8192, 64 * MIB, 0)
{
	struct hugepin_far key;
	unsigned sends;

	hp_lender_fix_class(&node[0].lend->lender, 2);
	char *memory = node[0].memory;
	node[0].offered = 100;
	for (int i = 0; i < PAGES; i++) { /* each buffer has a page of its own */
		node[0].memory = memory + (size_t)i * 8192 + 50;
		key = borrow(1, node[0].memory, 1);
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
		node[1].answers = 0;
	}
	node[0].memory = memory;
	node[0].offered = PAGES * 8192;
	sends = node[1].sends;
	EXPECT_EQ(sends, PAGES);
	for (int i = 0; i < PAGES; i++) {
		EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)memory + (size_t)i * 8192 + 149, 9, NULL, &key),
			  1);
		EXPECT_EQ(key.len, 1);
		EXPECT(works(0, &key));
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	}
	EXPECT_EQ(node[1].sends, sends);
}

TEST(lends_give_all_their_memory_back_when_they_are_closed)
{
	enum { ROUNDS = 30, AREA = 1 << 20 };
	size_t before = 0;

	for (int round = 0; round < ROUNDS; round++) {
		if (round == ROUNDS / 2)
			before = allocated();
		open_nodes(2, round % 2 ? HUGEPIN_LEND_POOL : HUGEPIN_LEND_STATIC, AREA, 4 * AREA, AREA);
		for (size_t at = 0; at < AREA; at += AREA / 4) {
			struct hugepin_far key = borrow(1, node[0].memory + at, 64);
			EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
		}
		close_nodes(2);
	}
	EXPECT_EQ(allocated(), before);
}

T_MAIN
