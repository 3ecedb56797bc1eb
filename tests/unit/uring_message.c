/*
 * Messages on io_uring, and a kernel that cuts transfers short, fails in the middle of chains, refuses indexes and
 * meets the ends of files: what went through is always a head of the message, whole where no error is told.
 */
#include "uring/message.h"

#include <errno.h>
#include <stdlib.h>

#include "base/base.h"
#include "tests/t.h"

enum { N = 12, ROOM = 4096, SLOT = 8192 };
#define NONE HUGEPIN_SG_URING_NONE

static uint64_t seed = 1;
static uint32_t any(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(seed >> 33) % n;
}

struct world {
	struct hugepin_sg_uring_caps caps;
	struct hp_message m;
	struct iovec pieces[N], elements[N];
	uint32_t indexes[N], by[N];
	struct hp_uring_part parts[N];
	char memory[N][ROOM], slot[SLOT + 64];
	char file[N * ROOM]; /* what was sent or written; or what is read */
	size_t at, end; /* the position there, and the end of a file that is read */
	int wrong; /* how often the kernel does something else than all, in percent */
	int fatal; /* the error that the kernel gave, other than EINTR and refusals */
};

static void prepare(struct world *w)
{
	struct hugepin_sg_uring_model model = { .size = sizeof model, .piece = 1, .copy_byte = (float)any(2) };
	size_t sum = 0;
	int n = 1 + (int)any(N);

	w->caps = (struct hugepin_sg_uring_caps){ .size = sizeof w->caps, .vector = any(2), .zero_copy = 1,
						  .max_iov = 1024, .max_requests = N, .slot_len = SLOT,
						  .slot_index = any(2) ? NONE : 3 };
	w->m = (struct hp_message){ .caps = &w->caps, .verb = any(3), .pieces = w->pieces, .indexes = w->indexes,
				    .elements = w->elements, .by = w->by, .parts = w->parts, .slot = w->slot };
	for (int v = 0; v < 3; v++) {
		model.plain[v] = (struct hugepin_sg_uring_cost){ (float)any(300), (float)any(100), 0 };
		model.fixed[v] = (struct hugepin_sg_uring_cost){ (float)any(300), (float)any(100), 0 };
	}
	for (int i = 0; i < n; i++) {
		w->pieces[i] = (struct iovec){ w->memory[i], any(4) ? any(200) : any(ROOM) };
		w->indexes[i] = any(3) ? 3 : any(2) ? NONE : 7;
		sum += w->pieces[i].iov_len;
		for (size_t k = 0; k < ROOM; k++)
			w->memory[i][k] = w->m.verb == HUGEPIN_SG_URING_READ ? 'u' : (char)any(250);
	}
	memset(w->slot, 's', sizeof w->slot);
	for (size_t k = 0; k < sizeof w->file; k++)
		w->file[k] = w->m.verb == HUGEPIN_SG_URING_READ ? (char)any(250) : 'f';
	w->m.pieces_count = (uint32_t)n;
	w->at = 0;
	w->end = any(2) ? sizeof w->file : any((uint32_t)sum + 1);
	w->fatal = 0;
	w->wrong = (int)any(3) * 20;
	EXPECT_EQ(hugepin_sg_uring_plan(&model, &w->caps, w->m.verb, w->pieces, w->indexes, n,
					any(2) ? 0 : HUGEPIN_SG_URING_FIXED | HUGEPIN_SG_URING_PLAIN, 1, &w->m.plan), 0);
}

/* Transfer the first n bytes of a part. */
static void transfer(struct world *w, const struct hp_uring_part *p, size_t n)
{
	for (uint32_t i = p->first; n; i++) {
		const struct iovec e = w->m.elements[i];
		const size_t len = HP_MIN(n, e.iov_len);

		EXPECT_EQ(w->m.by[i], p->index);
		if (w->m.verb == HUGEPIN_SG_URING_READ)
			memcpy(e.iov_base, w->file + w->at, len);
		else
			memcpy(w->file + w->at, e.iov_base, len);
		w->at += len;
		n -= len;
	}
}

/* What the kernel does with the chain. */
static void run(struct world *w)
{
	static const int refusals[] = { -EOPNOTSUPP, -EINVAL, -EFAULT, -ENOBUFS, -EMSGSIZE };
	bool broken = false;

	EXPECT(w->m.parts_count >= 1 && w->m.parts_count <= w->caps.max_requests);
	EXPECT(w->m.linked >= 1 && w->m.linked <= w->m.parts_count);
	for (uint32_t i = 0; i < w->m.linked; i++) {
		struct hp_uring_part *p = &w->m.parts[i];
		size_t n = p->bytes;

		EXPECT(p->bytes > 0);
		EXPECT(!i || w->m.verb != HUGEPIN_SG_URING_SEND || p->index == NONE);
		EXPECT(p->index == NONE || w->caps.vector || p->count == 1);
		if (broken) {
			p->res = -ECANCELED;
			continue;
		}
		if ((int)any(100) < w->wrong) {
			switch (any(5)) {
			case 0:
				p->res = -EINTR;
				break;
			case 1:
				p->res = w->fatal = -ENOSPC;
				break;
			case 2:
				p->res = p->index == NONE ? -EINTR : refusals[any(5)];
				break;
			default:
				n = any((uint32_t)n);
				n += !n;
				p->res = 0;
			}
			if (p->res < 0) {
				broken = true;
				continue;
			}
		}
		if (w->m.verb == HUGEPIN_SG_URING_READ)
			n = HP_MIN(n, w->end - w->at);
		transfer(w, p, n);
		p->res = (int32_t)n;
		broken = n < p->bytes;
	}
}

TEST(what_goes_through_is_a_head_of_the_message_and_whole_without_an_error)
{
	static struct world w;
	int whole = 0, failed = 0, cut = 0, continued = 0, fell_back = 0, cancelled_ = 0;

	for (int round = 0; round < 10000 && !t_failures; round++) {
		size_t sum = 0, at = 0;
		int refused = 0;
		enum hp_uring_verdict verdict;
		bool cancelled = false;

		prepare(&w);
		for (uint32_t i = 0; i < w.m.pieces_count; i++)
			sum += w.pieces[i].iov_len;
		if (!sum)
			continue;
		hp_message_begin(&w.m);
		do {
			run(&w);
			cancelled = !any(30);
			verdict = hp_message_results(&w.m, cancelled);
			EXPECT_EQ(w.m.done, w.at);
			refused += verdict == HP_REFUSED;
			continued += verdict == HP_CONTINUES;
			for (uint32_t i = 0; refused && verdict != HP_FINISHED && i < w.m.parts_count; i++)
				EXPECT_EQ(w.m.parts[i].index, NONE);
		} while (verdict != HP_FINISHED && !t_failures);
		EXPECT(refused <= 1);
		fell_back += refused;
		hp_message_end(&w.m);

		/* The contents, piece by piece. */
		for (uint32_t i = 0; i < w.m.pieces_count; i++)
			for (size_t k = 0; k < w.pieces[i].iov_len; k++, at++) {
				const char in_file = w.file[at], in_piece = ((char *)w.pieces[i].iov_base)[k];
				if (at < w.m.done)
					EXPECT_EQ(in_file, in_piece);
				else
					EXPECT_EQ(w.m.verb == HUGEPIN_SG_URING_READ ? in_piece : in_file,
						  w.m.verb == HUGEPIN_SG_URING_READ ? 'u' : 'f');
			}
		for (size_t k = w.m.plan.copied; k < sizeof w.slot; k++)
			EXPECT_EQ(w.slot[k], 's');
		if (w.m.done == sum) {
			EXPECT_EQ(w.m.err, 0);
			whole++;
		} else if (cancelled) {
			EXPECT_EQ(w.m.err, -ECANCELED);
			cancelled_++;
		} else if (w.fatal) {
			EXPECT_EQ(w.m.err, w.fatal);
			failed++;
		} else {
			EXPECT_EQ(w.m.err, 0);
			EXPECT_EQ(w.m.verb, HUGEPIN_SG_URING_READ);
			EXPECT_EQ(w.m.done, w.end);
			cut++;
		}
	}
	EXPECT(whole > 200 && failed > 200 && cut > 100 && continued > 200 && fell_back > 100 && cancelled_ > 10);
}

TEST(a_write_that_takes_nothing_has_failed)
{
	static struct world w;
	int seen = 0;

	for (int i = 0; i < 100; i++) {
		prepare(&w);
		if (w.m.verb == HUGEPIN_SG_URING_READ || !w.m.plan.bytes)
			continue;
		hp_message_begin(&w.m);
		w.m.parts[0].res = 0;
		for (uint32_t k = 1; k < w.m.parts_count; k++)
			w.m.parts[k].res = -ECANCELED;
		EXPECT_EQ(hp_message_results(&w.m, false), HP_FINISHED);
		EXPECT_EQ(w.m.err, -EIO);
		EXPECT_EQ(w.m.done, 0);
		seen++;
	}
	EXPECT(seen > 10);
}

T_MAIN
