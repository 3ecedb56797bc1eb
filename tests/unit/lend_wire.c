/*
 * Messages as bytes: what is written is read again, and everything else is refused.
 */
#include <errno.h>

#include "hugepin.h"
#include "lend/wire.h"
#include "tests/any.h"
#include "tests/t.h"

static unsigned char buf[HUGEPIN_LEND_MESSAGE_MAX + 64];

static const unsigned char bytes[40] = "the caller's own bytes";

/* One of each type, as full as it can be. */
static const struct hp_wire sample[] = {
	{ .type = HP_WIRE_ASK,
	  .n = 2,
	  .number = 7,
	  .addr = 4096,
	  .len = 40,
	  .carried = 40,
	  .carry = bytes,
	  .refs = { 5, 6 } },
	{ .type = HP_WIRE_ASK, .number = 0, .addr = 1, .len = UINT64_MAX - 1 },
	{ .type = HP_WIRE_LEND,
	  .number = 8,
	  .flags = HP_WIRE_CARRIED,
	  .ref = 9,
	  .addr = 1,
	  .len = 2,
	  .share = 3,
	  .rkey = 4 },
	{ .type = HP_WIRE_NO, .number = 9, .error = ENOBUFS, .share = 1 },
	{ .type = HP_WIRE_RECALL, .n = 1, .refs = { 77 } },
	{ .type = HP_WIRE_WANT, .number = 1, .bytes = 4096 },
	{ .type = HP_WIRE_RETURN, .number = 3, .n = 1, .flags = HP_WIRE_MORE, .refs = { 1 } },
	{ .type = HP_WIRE_RETURN, .number = 3 },
	{ .type = HP_WIRE_RETURN, .n = 3, .refs = { 1, 2, 3 } },
};
enum { SAMPLES = sizeof sample / sizeof *sample };

static bool same(const struct hp_wire *a, const struct hp_wire *b)
{
	return a->type == b->type && a->n == b->n && a->flags == b->flags && a->number == b->number &&
	       a->rkey == b->rkey && a->error == b->error && a->carried == b->carried && a->addr == b->addr &&
	       a->len == b->len && a->ref == b->ref && a->share == b->share && a->bytes == b->bytes &&
	       !memcmp(a->refs, b->refs, a->n * sizeof *a->refs) &&
	       (!a->carried || !memcmp(a->carry, b->carry, a->carried));
}

TEST(what_is_written_is_read_again)
{
	for (int i = 0; i < SAMPLES; i++) {
		size_t len = hp_wire_write(buf, &sample[i]);
		struct hp_wire w;

		EXPECT(len <= HUGEPIN_LEND_MESSAGE_MAX + sample[i].carried);
		EXPECT_EQ(hp_wire_read(&w, buf, len), 0);
		EXPECT(same(&w, &sample[i]));
	}
}

TEST(a_message_of_another_length_is_refused)
{
	for (int i = 0; i < SAMPLES; i++) {
		size_t len = hp_wire_write(buf, &sample[i]);
		struct hp_wire w = { .type = 99 };

		for (size_t other = 0; other <= len + 8; other++)
			if (other != len)
				EXPECT_EQ(hp_wire_read(&w, buf, other), -EILSEQ);
		EXPECT_EQ(w.type, 99);
	}
}

/* The message with these bytes at that place is refused. */
static void refused(const struct hp_wire *w, size_t at, uint64_t value, size_t size)
{
	size_t len = hp_wire_write(buf, w);
	struct hp_wire read;

	memcpy(buf + at, &value, size);
	if (!EXPECT_EQ(hp_wire_read(&read, buf, len), -EILSEQ))
		t_print("# type %u, %llu at %zu\n", w->type, (unsigned long long)value, at);
}

TEST(members_that_no_lend_sends_are_refused)
{
	for (int i = 0; i < SAMPLES; i++) {
		refused(&sample[i], 0, 2, 1); /* another version */
		refused(&sample[i], 1, 0, 1);
		refused(&sample[i], 1, HP_WIRE_RETURN + 1, 1);
		refused(&sample[i], 2, HP_WIRE_REFS_MAX + 1, 1);
		refused(&sample[i], 3, 2, 1); /* a flag that nothing has */
	}
	refused(&sample[0], 8 + 8, 0, 8); /* ASK for nothing */
	refused(&sample[0], 8, UINT64_MAX - 39, 8); /* ending at the end of all addresses */
	refused(&sample[0], 8 + 16, 39, 4); /* carries less than it asks for */
	refused(&sample[0], 8 + 20, 1, 4);
	refused(&sample[0], 8 + 24, 0, 8); /* the ref 0 */
	refused(&sample[0], 8 + 24, 6, 8); /* a ref twice */
	refused(&sample[1], 3, 1, 1);
	refused(&sample[2], 8, 0, 8); /* LEND without a ref */
	refused(&sample[2], 8 + 16, 0, 8); /* of nothing */
	refused(&sample[2], 8 + 8, UINT64_MAX, 8); /* that wraps */
	refused(&sample[2], 8 + 36, 1, 4);
	refused(&sample[3], 8, 0, 4); /* NO without a reason */
	refused(&sample[3], 8, HP_WIRE_ERRNO_MAX + 1, 4);
	refused(&sample[3], 8 + 4, 1, 4);
	refused(&sample[3], 3, 1, 1);
	refused(&sample[4], 4, 1, 4); /* RECALL with a number */
	refused(&sample[4], 3, 1, 1);
	refused(&sample[5], 4, 0, 4); /* WANT without one */
	refused(&sample[5], 3, 1, 1);
	refused(&sample[8], 3, HP_WIRE_MORE, 1); /* more to follow, of no answer */
}

TEST(a_message_with_refs_that_it_may_not_have_is_refused)
{
	struct hp_wire w = sample[2], read;

	w.n = 1;
	w.refs[0] = 1;
	EXPECT_EQ(hp_wire_read(&read, buf, hp_wire_write(buf, &w)), -EILSEQ);
	w = sample[3];
	w.n = 1;
	w.refs[0] = 1;
	EXPECT_EQ(hp_wire_read(&read, buf, hp_wire_write(buf, &w)), -EILSEQ);
	w = sample[5];
	w.n = 1;
	w.refs[0] = 1;
	EXPECT_EQ(hp_wire_read(&read, buf, hp_wire_write(buf, &w)), -EILSEQ);
	w = (struct hp_wire){ .type = HP_WIRE_RECALL }; /* recalls nothing */
	EXPECT_EQ(hp_wire_read(&read, buf, hp_wire_write(buf, &w)), -EILSEQ);
	w = (struct hp_wire){ .type = HP_WIRE_RETURN }; /* returns nothing, and answers nothing */
	EXPECT_EQ(hp_wire_read(&read, buf, hp_wire_write(buf, &w)), -EILSEQ);
}

TEST(bytes_are_little_endian_and_lie_where_the_page_says)
{
	static const unsigned char want[] = { 1,    HP_WIRE_WANT, 0,	0,    0x78, 0x56, 0x34, 0x12,
					      0xef, 0xcd,	  0xab, 0x89, 0x67, 0x45, 0x23, 0x01 };
	struct hp_wire w = { .type = HP_WIRE_WANT, .number = 0x12345678, .bytes = UINT64_C(0x0123456789abcdef) };

	EXPECT_EQ(hp_wire_write(buf, &w), sizeof want);
	EXPECT(!memcmp(buf, want, sizeof want));
}

TEST(any_bytes_are_refused_or_are_a_message_that_is_written_the_same)
{
	for (int i = 0; i < 200000; i++) {
		size_t len = hp_wire_write(buf, &sample[any(SAMPLES)]);
		unsigned char again[sizeof buf];
		struct hp_wire w;

		for (size_t k = any(4); k--;)
			buf[any(len)] = (unsigned char)any(256);
		if (hp_wire_read(&w, buf, len) == 0)
			EXPECT(hp_wire_write(again, &w) == len && !memcmp(buf, again, len));
	}
}

T_MAIN
