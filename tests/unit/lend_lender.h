/*
 * A lender by itself: nothing is pinned or sent. Memory is a range of numbers.
 */
#ifndef TESTS_UNIT_LEND_LENDER_H
#define TESTS_UNIT_LEND_LENDER_H

#include <errno.h>

#include "lend/lender.h"
#include "tests/t.h"

#define BASE (UINT64_C(1) << 40)

enum { PEERS = 4 };

static struct hp_lender ln;
static uint64_t buffer = BASE, buffer_end = BASE + (UINT64_C(1) << 36);
static uint64_t pin_max; /* the device's longest registration; 0: any */
static int pin_error;
static unsigned pins, drops;
static uint32_t wanted[32];
static uint64_t wanted_bytes;
static unsigned wants;

static void begin(uint32_t policy, uint64_t lent_max, uint64_t idle_max)
{
	const struct hugepin_lend_attr attr = { .policy = policy,
						.peers = PEERS,
						.lent_bytes_max = lent_max,
						.idle_bytes_max = idle_max,
						.peer_bytes_max = lent_max,
						.peer_keys_max = 100000,
						.answer_ms = 1000 };

	EXPECT(hp_lender_init(&ln, &attr));
	pin_max = 0;
	pin_error = 0;
	pins = drops = wants = 0;
}

static struct hp_question question(uint32_t peer, uint64_t addr)
{
	return (struct hp_question){ .peer = peer,
				     .addr = addr,
				     .len = 1,
				     .buffer = buffer,
				     .buffer_end = buffer_end,
				     .next_queue = ln.policy == HUGEPIN_LEND_STATIC ? &ln.holder[peer].waiting
										    : &ln.waiting,
				     .asking = HP_LEND_NOBODY };
}

/* Step until the question is answered or waits. Returns what ended it. */
static struct hp_act run(struct hp_question *q)
{
	for (;;) {
		struct hp_act act = hp_lender_step(&ln, q);
		struct hugepin_pin pin = { .base = 1, .ref = 1 + pins };

		EXPECT(ln.lent <= ln.lent_max && ln.lent + ln.idle <= ln.lent_max + ln.idle_base);
		switch (act.step) {
		case HP_STEP_PIN:
			pins++;
			pin.len = pin_max && act.bucket->len > pin_max ? pin_max : act.bucket->len;
			hp_lender_pinned(&ln, q, act.bucket, pin_error, &pin, act.bucket->base,
					 act.bucket->base + pin.len);
			break;
		case HP_STEP_DROP:
			drops++;
			free(act.bucket);
			break;
		case HP_STEP_WANT:
			wanted[wants++ % 32] = act.peer;
			wanted_bytes = act.bytes;
			return act;
		case HP_STEP_LEND:
			hp_lender_lend(&ln, act.bucket, q->peer);
			return act;
		default:
			return act;
		}
	}
}

static struct hp_act ask(uint32_t peer, uint64_t addr)
{
	struct hp_question q = question(peer, addr);

	return run(&q);
}

static void give_back(struct hp_loan *loan, bool taken)
{
	struct hp_bucket *b = hp_lender_end(&ln, loan, taken);

	if (b)
		hp_lender_idle(&ln, b);
	while ((b = hp_lender_over(&ln))) {
		drops++;
		free(b);
	}
}

static void end(void)
{
	for (uint32_t i = 0; i < PEERS; i++)
		while (!TAILQ_EMPTY(&ln.holder[i].loans))
			give_back(TAILQ_FIRST(&ln.holder[i].loans), false);
	EXPECT_EQ(ln.lent, 0);
	for (struct hp_bucket *b; (b = hp_lender_oldest(&ln));)
		free(b);
	EXPECT_EQ(ln.idle, 0);
	hp_lender_free(&ln);
}

/* A test of a lender that begins with these. At the end nothing is lent, and nothing left. */
#define LENDER_TEST(fact, ...)                                                                                         \
	static void fact##_body(void);                                                                                 \
	TEST(fact)                                                                                                     \
	{                                                                                                              \
		begin(__VA_ARGS__);                                                                                    \
		fact##_body();                                                                                         \
		end();                                                                                                 \
	}                                                                                                              \
	static void fact##_body(void)

#endif
