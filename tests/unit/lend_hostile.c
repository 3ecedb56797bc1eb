/*
 * Peers that mean harm, and programs that change their minds: what a lend keeps for a peer has a limit, what is offered
 * no more is not lent, and what is closed does nothing.
 */
#include "lend/borrowed.h"
#include "lend/news.h"
#include "lend/serve.h"
#include "tests/unit/lend.h"

static unsigned char buf[512];

static int hand_in(unsigned i, uint32_t peer, const struct hp_wire *w)
{
	return hugepin_lend_message(node[i].lend, peer, buf, hp_wire_write(buf, w));
}

static int send_nowhere(void *arg, uint32_t peer, const void *msg, size_t len)
{
	(void)arg, (void)peer, (void)msg, (void)len;
	return 0;
}

static int send_never(void *arg, uint32_t peer, const void *msg, size_t len)
{
	(void)arg, (void)peer, (void)msg, (void)len;
	return -EAGAIN;
}

/* Node 0, which sends by that function. */
static void open_alone(int (*send)(void *, uint32_t, const void *, size_t))
{
	struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, 4 * MIB, MIB);

	attr.send = send;
	T_DOMAIN_BEGINS();
	open_node(0, MIB, 64 * MIB, &attr);
}

static void close_alone(void)
{
	hugepin_lend_gone(node[0].lend, 1);
	close_node(0);
}

TEST(a_question_that_waited_is_asked_of_the_program_again)
{
	struct hugepin_far key = { 0 };

	open_nodes(3, HUGEPIN_LEND_POOL, MIB, 128 * KIB, 4096); /* room for one bucket */
	key = borrow(1, node[0].memory, 1);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	EXPECT_EQ(hugepin_lend_put(node[2].lend, 0, (uintptr_t)node[0].memory + 512 * KIB, "put", 4, &place[0], &key), 0);
	EXPECT_EQ(deliver(2, 0), 0);
	EXPECT_EQ(node[2].answers, 0); /* node 1 is asked for room */
	node[0].offer_error = -EACCES;
	strcpy(node[0].memory + 512 * KIB, "private");
	deliver_all();
	EXPECT_EQ(node[2].answers, 1);
	EXPECT_EQ(node[2].answer[0].err, -EACCES);
	EXPECT(!strcmp(node[0].memory + 512 * KIB, "private"));
	close_nodes(3);
}

TEST(a_peer_that_asks_for_the_same_again_and_again_gets_no_more_loans)
{
	struct hp_wire w = { .type = HP_WIRE_ASK, .len = 1 };

	open_alone(send_nowhere);
	w.addr = (uintptr_t)node[0].memory;
	for (w.number = 1; w.number <= 100000; w.number++)
		if (!EXPECT_EQ(hand_in(0, 1, &w), 0))
			break;
	EXPECT(lend_stats(0, 1).lent > 8 && lend_stats(0, 1).lent_bytes <= 3 * 4 * MIB);
	EXPECT(lend_stats(0, HUGEPIN_LEND_ALL).table_bytes < MIB);
	close_alone();
}

TEST(a_peer_that_takes_no_message_is_lost)
{
	struct hp_wire w = { .type = HP_WIRE_ASK, .addr = 4096, .len = 1, .number = 1 };

	open_alone(send_never);
	node[0].offer_error = -EACCES;
	while (w.number < 1000000 && hand_in(0, 1, &w) == 0)
		w.number++;
	EXPECT(w.number > 1000 && w.number < 100000);
	EXPECT_EQ(hand_in(0, 1, &w), -ENOTCONN);
	EXPECT(lend_stats(0, HUGEPIN_LEND_ALL).table_bytes < 4 * MIB);
	close_alone();
}

TEST(an_answer_without_end_is_no_message)
{
	struct hp_wire w = { .type = HP_WIRE_RETURN, .number = 1, .flags = HP_WIRE_MORE };

	open_alone(send_nowhere);
	EXPECT_EQ(hand_in(0, 1, &w), -EILSEQ);
	close_alone();
}

static int lend_to_us(uint64_t addr, uint64_t ref)
{
	struct hp_wire w = { .type = HP_WIRE_LEND, .addr = addr, .len = 4096, .ref = ref, .share = UINT64_MAX };
	struct hugepin_far key;

	EXPECT_EQ(hugepin_lend_key(node[0].lend, 1, addr, 1, &place[0], &key), 0);
	w.number = node[0].lend->peer[1].ask_last;
	return hand_in(0, 1, &w);
}

/* So many that the table of refs grows, and its chains turn round. */
TEST(a_key_of_a_process_that_is_gone_hides_no_key_of_the_next_one)
{
	enum { KEYS = 16 };
	struct hp_wire w = { .type = HP_WIRE_RECALL, .n = KEYS };
	struct hugepin_far held, key;

	open_alone(send_nowhere);
	EXPECT_EQ(lend_to_us(1 << 24, 1 << 24), 0);
	held = node[0].answer[0].key;
	EXPECT_EQ(hugepin_lend_gone(node[0].lend, 1), 0);
	EXPECT_EQ(hugepin_lend_again(node[0].lend, 1), 0);
	for (uint64_t i = 1; i <= KEYS; i++) {
		EXPECT_EQ(lend_to_us(i << 24, i << 24), 0);
		w.refs[i - 1] = i << 24;
	}
	for (unsigned i = 1; i < node[0].answers; i++) {
		key = node[0].answer[i].key;
		EXPECT_EQ(hugepin_lend_done(node[0].lend, &key), 0);
	}
	EXPECT_EQ(hand_in(0, 1, &w), 0);
	EXPECT_EQ(lend_stats(0, 1).borrowed, 0);
	EXPECT_EQ(hugepin_lend_done(node[0].lend, &held), 0);
	close_alone();
}

/* ------------------------------------------------------------------ what one peer may cost the others */

static uint32_t asked[NODES_MAX];

static int ask_of_us(uint32_t peer, size_t offset)
{
	struct hp_wire w = { .type = HP_WIRE_ASK, .number = ++asked[peer], .len = 1 };

	w.addr = (uintptr_t)node[0].memory + offset;
	return hand_in(0, peer, &w);
}

/* Node 0, which offers 16 MiB. */
static void open_lender(const struct hugepin_lend_attr *attr)
{
	memset(asked, 0, sizeof asked);
	T_DOMAIN_BEGINS();
	open_node(0, 16 * MIB, 64 * MIB, attr);
	hp_lender_fix_class(&node[0].lend->lender, 2);
}

/* With these limits. */
static void open_limited(int (*send)(void *, uint32_t, const void *, size_t), uint64_t bytes, uint64_t kept,
			 uint32_t keys)
{
	struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, 4 * MIB, MIB);

	attr.send = send;
	attr.peer_bytes_max = bytes;
	attr.peer_kept_max = kept;
	attr.peer_keys_max = keys;
	open_lender(&attr);
}

static void close_limited(void)
{
	for (uint32_t peer = 0; peer < NODES_MAX; peer++)
		hugepin_lend_gone(node[0].lend, peer);
	close_node(0);
}

TEST(a_peer_that_takes_all_it_can_leaves_room_for_a_key_of_another)
{
	for (unsigned set = 0; set < 2; set++) {
		open_limited(send_nowhere, set ? MIB : 0, 0, 0);
		for (unsigned i = 0; i < 60; i++)
			EXPECT_EQ(ask_of_us(1, i * 128 * KIB), 0);
		EXPECT_EQ(lend_stats(0, 1).lent_bytes, set ? MIB : 4 * MIB - 128 * KIB);
		EXPECT_EQ(ask_of_us(2, 7 * MIB), 0);
		EXPECT_EQ(lend_stats(0, 2).lent, 1);
		close_limited();
	}
}

TEST(a_peer_has_as_many_keys_as_it_may_and_another_gets_one)
{
	open_limited(send_nowhere, 0, 0, 100);
	for (unsigned i = 0; i < 300; i++)
		EXPECT_EQ(ask_of_us(1, i % 20 * 128 * KIB), 0);
	EXPECT_EQ(lend_stats(0, 1).lent, 100);
	EXPECT(lend_stats(0, HUGEPIN_LEND_ALL).table_bytes < 128 * KIB);
	EXPECT_EQ(ask_of_us(2, 0), 0);
	EXPECT_EQ(lend_stats(0, 2).lent, 1);
	close_limited();
}

TEST(keys_are_asked_back_and_ended_some_at_a_time_so_that_others_get_the_lock)
{
	enum { KEYS = 2 * HP_LEND_WAITING_MAX };

	open_limited(send_nowhere, 0, 0, 0);
	for (unsigned i = 0; i < KEYS; i++)
		EXPECT_EQ(ask_of_us(1, 0), 0);
	want_memory(0, node[0].memory);
	EXPECT_EQ(ask_of_us(2, MIB), 0);
	EXPECT_EQ(lend_stats(0, 1).recalls, 64);
	EXPECT_EQ(hugepin_lend_progress(node[0].lend), 0);
	EXPECT_EQ(lend_stats(0, 1).recalls, KEYS);
	hp_lock(&node[0].lend->lock);
	EXPECT(hp_serve_gone(node[0].lend, 1));
	EXPECT_EQ(node[0].lend->lender.holder[1].loans_count, KEYS - 64);
	hp_unlock(&node[0].lend->lock);
	close_limited();
}

TEST(buckets_whose_news_were_lost_are_dropped_and_asked_back_some_at_a_time)
{
	enum { KEYS = 128, IDLE = 30 };
	struct hp_wire w = { .type = HP_WIRE_RETURN, .n = 1 };
	hugepin_lend *l;

	open_limited(send_nowhere, 0, 0, 0);
	l = node[0].lend;
	l->lender.lent_max = l->lender.peer_max = l->lender.idle_max = l->lender.idle_base = 16 * MIB;
	for (unsigned i = 0; i < KEYS; i++)
		EXPECT_EQ(ask_of_us(1, i * 128 * KIB), 0);
	for (unsigned i = 0; i < 64 + IDLE; i++) {
		w.refs[0] = TAILQ_FIRST(&l->lender.holder[1].loans)->ref;
		EXPECT_EQ(hand_in(0, 1, &w), 0);
	}
	for (unsigned i = 0; i < 64; i++)
		EXPECT_EQ(ask_of_us(2, i * 128 * KIB), 0);
	EXPECT(l->lender.idle_count == IDLE && l->lender.lent == (KEYS - IDLE) * 128 * KIB);
	hp_lock(&node[0].domain->lock);
	for (int i = 0; i <= HP_NEWS_MAX; i++)
		node[0].domain->lend_hooks->wanted(l, HP_REGIONS_MAX - 1);
	hp_unlock(&node[0].domain->lock);
	hp_lock(&l->lock);
	hp_news_take(l);
	EXPECT(l->lender.idle_count == IDLE && !l->lender.retired);
	EXPECT(hp_serve_regions_left(l));
	EXPECT(!l->lender.idle_count && l->lender.retired == 64 * 128 * KIB);
	hp_unlock(&l->lock);
	EXPECT_EQ(ask_of_us(3, 0), 0); /* before anything is lent, all are */
	EXPECT_EQ(l->lender.retired, (KEYS - IDLE) * 128 * KIB);
	EXPECT_EQ(hugepin_lend_progress(l), 0);
	EXPECT_EQ(lend_stats(0, HUGEPIN_LEND_ALL).recalls, KEYS - IDLE);
	close_limited();
}

TEST(what_is_kept_for_a_peer_has_a_limit_that_is_not_anothers)
{
	unsigned kept = 0;

	open_limited(send_never, 0, 4096, 0);
	while (kept < 1000 && ask_of_us(1, 0) == 0)
		kept++;
	EXPECT(kept > 20 && kept < 100);
	EXPECT_EQ(ask_of_us(1, 0), -ENOTCONN);
	EXPECT_EQ(ask_of_us(2, 0), 0);
	EXPECT_EQ(node[0].lend->peer[2].lost, 0);
	close_limited();
}

TEST(what_is_kept_for_a_peer_counts_what_its_questions_carry_and_the_messages_to_it_together)
{
	enum { KEPT = 2048 };
	struct hp_wire w = { .type = HP_WIRE_ASK, .len = 100, .carried = 100 };
	static const char carry[100];
	uint64_t carried, most = 0;
	int err = 0;

	open_limited(send_never, 0, KEPT, 0);
	w.carry = carry;
	for (unsigned i = 0; i < 32; i++) /* all that may be lent */
		EXPECT_EQ(ask_of_us(i % 4 == 0 ? 0 : i % 4 == 2 ? 3 : 1, i * 128 * KIB), 0);
	for (w.number = 1; !err && w.number < 1000; w.number++) {
		w.addr = (uintptr_t)node[0].memory + (w.number < 9 ? 8 * MIB : 64 * MIB); /* these are refused */
		err = hand_in(0, 2, &w);
		carried = node[0].lend->lender.holder[2].waiting_carried;
		most = HP_MAX(most, carried);
		EXPECT(node[0].lend->peer[2].unsent_bytes + carried <= KEPT);
	}
	EXPECT_EQ(err, -ENOTCONN);
	EXPECT_EQ(most, 800);
	close_limited();
}

static uint64_t now = 1; /* 0 is no time: base/service.h */

static uint64_t clock_here(void)
{
	return now;
}

static unsigned wanted_of[NODES_MAX], lost_peer; /* 0: none */
static uint32_t number_of[NODES_MAX];

static int send_noted(void *arg, uint32_t peer, const void *msg, size_t len)
{
	struct hp_wire w;

	(void)arg;
	if (lost_peer && peer == lost_peer)
		return -EPIPE;
	EXPECT_EQ(hp_wire_read(&w, msg, len), 0);
	if (w.type == HP_WIRE_WANT) {
		wanted_of[peer]++;
		number_of[peer] = w.number;
	}
	return 0;
}

/* Peers 1 and 3 have all that may be lent, and a question of peer 2 waits for peer 1. */
static void open_waiting(void)
{
	memset(wanted_of, 0, sizeof wanted_of);
	open_limited(send_noted, 0, 0, 0);
	for (unsigned i = 0; i < 32; i++)
		EXPECT_EQ(ask_of_us(i < 20 ? 1 : 3, i * 128 * KIB), 0);
	EXPECT_EQ(ask_of_us(2, 5 * MIB), 0);
	EXPECT(wanted_of[1] == 1 && !wanted_of[3] && lend_stats(0, 1).owes == 1);
	EXPECT(!hp_lend_attends(node[0].lend, HP_ATTEND_RECALLS));
}

TEST(a_peer_that_does_not_answer_is_named_and_another_is_asked)
{
	struct hp_wire answer = { .type = HP_WIRE_RETURN };

	hp_clock_set(clock_here);
	open_waiting();
	now += 999999999;
	EXPECT_EQ(hugepin_lend_progress(node[0].lend), 0);
	EXPECT(!wanted_of[3] && !lend_stats(0, 1).late);
	now++;
	EXPECT_EQ(hugepin_lend_progress(node[0].lend), 0);
	EXPECT(wanted_of[1] == 1 && wanted_of[3] == 1);
	EXPECT(lend_stats(0, 1).late == 1 && !lend_stats(0, 3).late && lend_stats(0, HUGEPIN_LEND_ALL).owes == 2);
	answer.number = number_of[3];
	answer.n = 1;
	answer.refs[0] = TAILQ_FIRST(&node[0].lend->lender.holder[3].loans)->ref;
	EXPECT_EQ(hand_in(0, 3, &answer), 0);
	EXPECT_EQ(lend_stats(0, 2).lent, 1);
	EXPECT(lend_stats(0, 1).owes == 1 && !lend_stats(0, 3).owes);
	answer.number = number_of[1];
	answer.n = 0;
	EXPECT_EQ(hand_in(0, 1, &answer), 0);
	EXPECT(!lend_stats(0, HUGEPIN_LEND_ALL).owes && lend_stats(0, 1).late == 1);
	close_limited();
	hp_clock_set(NULL);
}

TEST(a_program_that_sleeps_is_woken_when_a_peer_is_late)
{
	struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, 4 * MIB, MIB);
	const time_t limit = time(NULL) + t_seconds() / 2;

	attr.send = send_noted;
	attr.answer_ms = 1;
	memset(wanted_of, 0, sizeof wanted_of);
	open_lender(&attr);
	for (unsigned i = 0; i < 32; i++)
		EXPECT_EQ(ask_of_us(i < 20 ? 1 : 3, i * 128 * KIB), 0);
	EXPECT_EQ(ask_of_us(2, 5 * MIB), 0);
	EXPECT(wanted_of[1] == 1 && !wanted_of[3]);
	for (unsigned silent = 1; silent <= 2; silent++) {
		while (!atomic_load(&node[0].wakes) && EXPECT(time(NULL) < limit))
			sched_yield();
		atomic_store(&node[0].wakes, 0);
		EXPECT_EQ(hugepin_lend_progress(node[0].lend), 0);
		EXPECT_EQ(lend_stats(0, HUGEPIN_LEND_ALL).late, silent);
	}
	EXPECT(wanted_of[1] == 1 && wanted_of[3] == 1);
	close_limited();
}

TEST(a_question_that_waits_for_a_peer_that_is_lost_goes_to_the_next_one_at_once)
{
	hp_clock_set(clock_here); /* which stands still */
	open_waiting();
	lost_peer = 1;
	want_memory(0, node[0].memory);
	EXPECT_EQ(hugepin_lend_progress(node[0].lend), 0); /* the RECALL fails */
	EXPECT_EQ(node[0].lend->peer[1].lost, -EPIPE);
	EXPECT_EQ(hugepin_lend_progress(node[0].lend), 0);
	EXPECT(wanted_of[3] == 1 && !lend_stats(0, 1).owes && !lend_stats(0, 1).late);
	close_limited();
	lost_peer = 0;
	hp_clock_set(NULL);
}

TEST(who_is_lost_gets_no_memory_for_a_question_that_waits)
{
	struct hp_wire answer = { .type = HP_WIRE_RETURN, .n = 1 };

	hp_clock_set(clock_here);
	open_waiting();
	EXPECT_EQ(ask_of_us(3, 6 * MIB), 0); /* behind that of peer 2 */
	lost_peer = 2;
	EXPECT_EQ(ask_of_us(2, 0), 0); /* the answer fails */
	EXPECT_EQ(node[0].lend->peer[2].lost, -EPIPE);
	answer.number = number_of[1];
	answer.refs[0] = TAILQ_LAST(&node[0].lend->lender.holder[1].loans, hp_loans)->ref;
	EXPECT_EQ(hand_in(0, 1, &answer), 0);
	EXPECT(lend_stats(0, 2).lent == 1 && lend_stats(0, 3).lent == 13); /* the one at the answer that failed */
	close_limited();
	lost_peer = 0;
	hp_clock_set(NULL);
}

/* Peer 1 lends us a key for an address. */
static struct hugepin_far key_of(uint32_t peer, uint64_t addr, uint64_t ref)
{
	struct hp_wire w = { .type = HP_WIRE_LEND, .addr = addr, .len = 4096, .ref = ref, .share = UINT64_MAX };
	struct hugepin_far key = { 0 };

	node[0].answers = 0;
	if (hugepin_lend_key(node[0].lend, peer, addr, 1, &place[0], &key) != 0)
		return key;
	w.number = node[0].lend->peer[peer].ask_last;
	EXPECT_EQ(hand_in(0, peer, &w), 0);
	return node[0].answer[0].key;
}

TEST(a_peer_that_lends_many_small_keys_takes_its_own_places_alone)
{
	struct hugepin_far held[8], key;

	open_limited(send_nowhere, 0, 0, 8);
	for (unsigned i = 0; i < 8; i++)
		held[i] = key_of(1, (i + 1) * MIB, i + 1);
	EXPECT_EQ(hugepin_lend_key(node[0].lend, 1, 20 * MIB, 1, &place[0], &key), -ENOMEM); /* all are in use */
	key = key_of(2, MIB, 1);
	EXPECT_EQ(hugepin_lend_done(node[0].lend, &key), 0);
	EXPECT_EQ(hugepin_lend_done(node[0].lend, &held[3]), 0);
	key = key_of(1, 20 * MIB, 9); /* in the place of the one that is not in use */
	EXPECT(key.ref && lend_stats(0, 1).borrowed == 8);
	EXPECT_EQ(hugepin_lend_done(node[0].lend, &key), 0);
	EXPECT_EQ(lend_stats(0, 2).borrowed, 1);
	for (unsigned i = 0; i < 8; i++)
		if (held[i].ref)
			EXPECT_EQ(hugepin_lend_done(node[0].lend, &held[i]), 0);
	close_limited();
}

TEST(keys_in_use_of_a_peer_that_is_gone_end_some_at_a_time)
{
	enum { KEYS = 100 };
	static struct hugepin_far held[KEYS];
	struct hp_wire w = { .type = HP_WIRE_RECALL, .n = 1 };
	hugepin_lend *l;

	open_limited(send_nowhere, 0, 0, 0);
	l = node[0].lend;
	for (unsigned i = 0; i < KEYS; i++) {
		held[i] = key_of(1, (i + 1) * MIB, i + 1);
		w.refs[0] = i + 1;
		if (i % 4) /* the others are not asked back */
			EXPECT_EQ(hand_in(0, 1, &w), 0);
	}
	EXPECT_EQ(lend_stats(0, 1).borrowed, KEYS);
	hp_lock(&l->lock);
	EXPECT(hp_borrowed_lose(l, 1));
	EXPECT_EQ(l->peer[1].stats.borrowed, KEYS - 64);
	EXPECT(!hp_borrowed_lose(l, 1));
	EXPECT(!l->peer[1].stats.borrowed && l->borrowed_count == KEYS);
	hp_unlock(&l->lock);
	for (unsigned i = 0; i < KEYS; i++)
		EXPECT_EQ(hugepin_lend_done(l, &held[i]), 0);
	EXPECT_EQ(l->borrowed_count, 0);
	close_limited();
}

TEST(a_table_full_of_unused_keys_has_a_place_for_a_new_one)
{
	enum { MOST = HP_REGIONS_MAX / 4 };
	struct hugepin_far key;

	open_limited(send_nowhere, 0, 0, HP_REGIONS_MAX);
	for (uint64_t i = 1; i <= MOST + 100; i++) {
		key = key_of(1, i * MIB, i);
		if (!EXPECT_EQ(hugepin_lend_done(node[0].lend, &key), 0))
			break;
	}
	EXPECT_EQ(lend_stats(0, 1).borrowed, MOST);
	key = key_of(2, MIB, 1);
	EXPECT_EQ(hugepin_lend_done(node[0].lend, &key), 0);
	EXPECT_EQ(lend_stats(0, 1).borrowed, MOST - 1);
	close_limited();
}

static int asked_again, handed_in;

static void ask_again(void *arg, void *token, int err, const struct hugepin_far *key)
{
	const struct hp_wire w = { .type = HP_WIRE_ASK, .addr = (uintptr_t)node[0].memory, .len = 1, .number = 1 };
	struct node *n = arg;
	struct hugepin_far again;

	(void)token, (void)key;
	EXPECT_EQ(err, -ECANCELED);
	asked_again = hugepin_lend_key(n->lend, 2, 0x100000, 1, &place[1], &again);
	handed_in = hand_in(0, 1, &w);
}

TEST(while_a_lend_is_closed_it_neither_asks_nor_lends)
{
	struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, 4 * MIB, MIB);
	struct hugepin_far key;

	attr.send = send_nowhere;
	attr.ready = ask_again;
	T_DOMAIN_BEGINS();
	open_node(0, MIB, 64 * MIB, &attr);
	EXPECT_EQ(hugepin_lend_key(node[0].lend, 2, 0x100000, 1, &place[0], &key), 0);
	close_node(0); /* nothing is left with the device */
	EXPECT_EQ(asked_again, -ECANCELED);
	EXPECT_EQ(handed_in, -ENOTCONN);
}

/* The kernel's event is read before munmap returns, but the service thread may be about to tell the lend. */
TEST(memory_that_was_unmapped_and_mapped_anew_is_lent_by_another_key)
{
	const struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, 8 * MIB, MIB);
	struct hugepin_far key = { 0 };
	unsigned stale = 0;

	T_DOMAIN_BEGINS();
	node_watch = HUGEPIN_WATCH_KERNEL;
	for (unsigned i = 0; i < 3; i++)
		open_node(i, MIB, 64 * MIB, &attr);
	node_watch = HUGEPIN_WATCH_PROGRAM;
	for (unsigned round = 0; round < 100 && !t_failures; round++) {
		char *p = node[0].memory;
		uint32_t rkey;

		key = borrow(1, p + 200 * KIB, 1);
		rkey = key.rkey;
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
		EXPECT(mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		node[2].answers = 0;
		EXPECT_EQ(hugepin_lend_put(node[2].lend, 0, (uintptr_t)p + 200 * KIB, "new", 4, &place[0], &key), 0);
		EXPECT(deliver(2, 0) == 0 && deliver(0, 2) == 0);
		if (!EXPECT(node[2].answers == 1 && !node[2].answer[0].err))
			break;
		key = node[2].answer[0].key;
		stale += key.rkey == rkey;
		EXPECT_EQ(hugepin_lend_done(node[2].lend, &key), 0);
		deliver_all();
		hugepin_lend_gone(node[0].lend, 1); /* neither has a key in the next round */
		hugepin_lend_gone(node[0].lend, 2);
		hugepin_lend_gone(node[1].lend, 0);
		hugepin_lend_gone(node[2].lend, 0);
		forget_messages();
		hugepin_lend_again(node[0].lend, 1);
		hugepin_lend_again(node[0].lend, 2);
		hugepin_lend_again(node[1].lend, 0);
		hugepin_lend_again(node[2].lend, 0);
	}
	EXPECT_EQ(stale, 0);
	for (unsigned i = 0; i < 3; i++)
		close_node(i);
}

TEST(where_only_the_opener_registers_nothing_is_lent)
{
	struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, 4 * MIB, MIB);
	struct hugepin_attr d_attr = { .size = sizeof d_attr };
	struct device device;
	hugepin_domain *d = NULL;
	hugepin_lend *l = NULL;

	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_OPENER;
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &d_attr, &d), 0);
	EXPECT_EQ(hugepin_lend_open(d, &attr, NULL, &l), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

T_MAIN
