/* See lender.h. */
#include "lend/lender.h"

#include <errno.h>

#include "base/base.h"
#include "lend/bucket.h"

enum { ROUNDS_MAX = 4, WANTS_MAX = 16 };

/* ------------------------------------------------------------------ opening */

bool hp_lender_init(struct hp_lender *ln, const struct hugepin_lend_attr *a)
{
	*ln = (struct hp_lender){ .policy = a->policy,
				  .peers = a->peers,
				  .lent_max = a->lent_bytes_max,
				  .idle_base = a->idle_bytes_max,
				  .idle_max = a->idle_bytes_max,
				  .peer_max = a->peer_bytes_max,
				  .keys_max = a->peer_keys_max,
				  .answer_ns = a->answer_ms * UINT64_C(1000000) };
	TAILQ_INIT(&ln->lent_list);
	TAILQ_INIT(&ln->idle_list);
	TAILQ_INIT(&ln->recalls);
	TAILQ_INIT(&ln->ghost_list);
	TAILQ_INIT(&ln->asked);
	TAILQ_INIT(&ln->waiting);
	for (int i = 0; i < 65; i++)
		TAILQ_INIT(&ln->ranked[i]);
	ln->holder = calloc(ln->peers, sizeof *ln->holder);
	for (uint32_t i = 0; ln->holder && i < ln->peers; i++) {
		TAILQ_INIT(&ln->holder[i].loans);
		TAILQ_INIT(&ln->holder[i].waiting);
		TAILQ_INIT(&ln->holder[i].questions);
	}
	ln->class_fixed = ln->policy == HUGEPIN_LEND_STATIC;
	while (ln->policy == HUGEPIN_LEND_STATIC && ln->class < HP_LEND_CLASSES - 1 && !hp_lender_share(ln))
		ln->class++;
	while (ln->policy == HUGEPIN_LEND_POOL && hp_lend_class_bytes[ln->class] > hp_bucket_most(ln))
		ln->class++;
	return hp_bucket_begin(ln) && ln->holder && hp_table_init(&ln->buckets) && hp_table_init(&ln->regions) &&
	       hp_table_init(&ln->ghosts) && hp_table_init(&ln->owners);
}

void hp_lender_free(struct hp_lender *ln)
{
	struct hp_bucket_list *list[] = { &ln->lent_list, &ln->idle_list };
	struct hp_bucket *b;
	struct hp_ghost *g;

	for (int i = 0; i < 2; i++)
		while ((b = TAILQ_FIRST(list[i]))) {
			TAILQ_REMOVE(list[i], b, order);
			free(b);
		}
	while ((g = TAILQ_FIRST(&ln->ghost_list))) {
		TAILQ_REMOVE(&ln->ghost_list, g, order);
		free(g);
	}
	for (uint32_t i = 0; i < ln->loans; i++)
		free(ln->loan[i]);
	free(ln->loan);
	free(ln->holder);
	free(ln->given);
	hp_table_free(&ln->buckets);
	hp_table_free(&ln->regions);
	hp_table_free(&ln->ghosts);
	hp_table_free(&ln->owners);
}

void hp_lender_fix_class(struct hp_lender *ln, unsigned class)
{
	ln->class = class;
	ln->class_fixed = true;
}

uint64_t hp_lender_share(const struct hp_lender *ln)
{
	uint64_t bucket = hp_lend_class_bytes[ln->class];

	if (ln->policy != HUGEPIN_LEND_STATIC)
		return ln->peer_max;
	return HP_MIN(ln->peer_max, ln->lent_max / (ln->peers > 1 ? ln->peers - 1 : 1) / bucket * bucket);
}

uint64_t hp_lender_share_now(const struct hp_lender *ln, uint32_t peer, uint64_t bytes)
{
	const struct hp_holder *h = &ln->holder[peer];
	uint64_t share = hp_lender_share(ln);

	if (h->loans_count >= ln->keys_max)
		return HP_MIN(share, h->bytes);
	if (ln->policy == HUGEPIN_LEND_STATIC)
		return share;
	bytes = HP_MIN(bytes, hp_lend_class_bytes[ln->class]); /* larger buckets are remnants of a larger size */
	if (h->bytes + bytes <= share)
		share = UINT64_MAX;
	if (ln->lent + bytes <= ln->lent_max || !h->level || ln->ranks >> h->level)
		return share;
	return HP_MIN(share, h->bytes + (ln->lent_max - ln->lent));
}

uint64_t hp_lender_table_bytes(const struct hp_lender *ln)
{
	return ln->peers * sizeof *ln->holder + hp_table_bytes(&ln->buckets) + hp_table_bytes(&ln->regions) +
	       (sizeof *ln->given << ln->given_bits) + hp_table_bytes(&ln->ghosts) + hp_table_bytes(&ln->owners) +
	       ln->buckets_count * sizeof(struct hp_bucket) + ln->ghosts_count * sizeof(struct hp_ghost) +
	       ln->loans_room * sizeof *ln->loan + ln->loans * sizeof(struct hp_loan) +
	       ln->waiting_count * sizeof(struct hp_question);
}

/* ------------------------------------------------------------------ who has most */

/* Put the holder into the rank of its bytes, which have changed. */
static void rank(struct hp_lender *ln, struct hp_holder *h)
{
	uint8_t level = h->bytes ? (uint8_t)(64 - __builtin_clzll(h->bytes)) : 0;

	if (h->asked || level == h->level) {
		if (h->asked)
			h->level = level;
		return;
	}
	if (h->level) {
		TAILQ_REMOVE(&ln->ranked[h->level], h, order);
		if (TAILQ_EMPTY(&ln->ranked[h->level]))
			ln->ranks &= ~(UINT64_C(1) << (h->level - 1));
	}
	h->level = level;
	if (level) {
		TAILQ_INSERT_TAIL(&ln->ranked[level], h, order);
		ln->ranks |= UINT64_C(1) << (level - 1);
	}
}

/* Take a holder out of the ranks, because it was asked for the first waiting question; or put all those back. */
static void set_asked(struct hp_lender *ln, struct hp_holder *h)
{
	uint64_t bytes = h->bytes;

	h->bytes = 0;
	rank(ln, h);
	h->bytes = bytes;
	h->asked = true;
	TAILQ_INSERT_TAIL(&ln->asked, h, order);
}

static void clear_asked(struct hp_lender *ln)
{
	struct hp_holder *h;

	while ((h = TAILQ_FIRST(&ln->asked))) {
		TAILQ_REMOVE(&ln->asked, h, order);
		h->asked = false;
		h->level = 0;
		rank(ln, h);
	}
}

/* Whether the holder owes an answer for too long. */
static bool is_late(struct hp_lender *ln, struct hp_holder *h)
{
	if (!h->want || ln->now - h->want_since < ln->answer_ns)
		return false;
	h->lates += !h->late;
	h->late = true;
	return true;
}

/* The holder with most bytes, within a factor of two, that was not asked; NULL: there is none. A mute or late one
 * counts as asked. */
static struct hp_holder *largest(struct hp_lender *ln)
{
	while (ln->ranks) {
		struct hp_holder *h = TAILQ_FIRST(&ln->ranked[64 - __builtin_clzll(ln->ranks)]);

		if (!h->mute && !is_late(ln, h))
			return h;
		set_asked(ln, h);
	}
	return NULL;
}

/* Note that this holder is asked, and the number of the message. */
static struct hp_act want(struct hp_lender *ln, struct hp_holder *h, uint64_t bytes)
{
	uint32_t peer = (uint32_t)(h - ln->holder);

	if (h->want) /* asked for other room a moment ago */
		return (struct hp_act){ .step = HP_STEP_WAIT, .peer = peer };
	h->want_last += h->want_last == UINT32_MAX ? 2 : 1;
	h->want = h->want_last;
	h->want_since = ln->now;
	return (struct hp_act){ .step = HP_STEP_WANT, .peer = peer, .bytes = bytes };
}

void hp_lender_answered(struct hp_lender *ln, uint32_t peer)
{
	struct hp_holder *h = &ln->holder[peer];
	struct hp_question *first[] = { TAILQ_FIRST(&ln->waiting), TAILQ_FIRST(&h->waiting) };

	h->want = 0;
	h->late = false;
	for (int i = 0; i < 2; i++)
		if (first[i] && first[i]->asking == peer)
			first[i]->asking = HP_LEND_NOBODY;
}

struct hp_act hp_lender_crowded(struct hp_lender *ln, uint64_t bytes)
{
	struct hp_holder *h = largest(ln);
	struct hp_act act = { .step = HP_STEP_WAIT };

	if (h && !h->want)
		act = want(ln, h, HP_MAX(bytes, 1));
	if (TAILQ_EMPTY(&ln->waiting)) /* mute and late holders */
		clear_asked(ln);
	return act;
}

/* ------------------------------------------------------------------ loans */

/* Make room for one more loan. False: no memory. */
static bool reserve_loan(struct hp_lender *ln)
{
	struct hp_loan *loan;

	if (ln->loan_free)
		return true;
	if (ln->loans == ln->loans_room) {
		uint32_t room = ln->loans_room ? 2 * ln->loans_room : 16;
		struct hp_loan **more = room > 1u << HP_LOAN_SLOT_BITS ? NULL : realloc(ln->loan, room * sizeof *more);

		if (!more)
			return false;
		ln->loan = more;
		ln->loans_room = room;
	}
	loan = malloc(sizeof *loan);
	if (!loan)
		return false;
	*loan = (struct hp_loan){ .slot = ln->loans };
	ln->loan[ln->loans++] = loan;
	ln->loan_free = ln->loans;
	return true;
}

/* How many loans the peer has of the bucket. */
static unsigned count_same(const struct hp_lender *ln, const struct hp_bucket *b, uint32_t peer)
{
	struct hp_link *at = hp_table_first(&ln->owners, hp_lend_hash((uintptr_t)b, peer));
	unsigned count = 0;

	for (; at; at = hp_table_next(at))
		count += HP_OF(at, struct hp_loan, by_owner)->bucket == b &&
			 HP_OF(at, struct hp_loan, by_owner)->peer == peer;
	return count;
}

struct hp_loan *hp_lender_lend(struct hp_lender *ln, struct hp_bucket *b, uint32_t peer)
{
	struct hp_loan *loan = ln->loan[ln->loan_free - 1];
	struct hp_holder *h = &ln->holder[peer];

	ln->loan_free = loan->next_free;
	loan->ref = ++ln->loan_number << HP_LOAN_SLOT_BITS | loan->slot;
	loan->bucket = b;
	loan->peer = peer;
	h->bytes += count_same(ln, b, peer) ? 0 : hp_bucket_bytes(b);
	hp_table_add(&ln->owners, &loan->by_owner, hp_lend_hash((uintptr_t)b, peer));
	TAILQ_INSERT_TAIL(&b->loans, loan, of_bucket);
	TAILQ_INSERT_TAIL(&h->loans, loan, of_peer);
	h->loans_count++;
	rank(ln, h);
	return loan;
}

struct hp_loan *hp_lender_find(const struct hp_lender *ln, uint32_t peer, uint64_t ref)
{
	uint32_t slot = ref & ((1u << HP_LOAN_SLOT_BITS) - 1);
	struct hp_loan *loan = slot < ln->loans ? ln->loan[slot] : NULL;

	return loan && ref && loan->ref == ref && loan->peer == peer ? loan : NULL;
}

struct hp_bucket *hp_lender_end(struct hp_lender *ln, struct hp_loan *loan, bool taken)
{
	struct hp_bucket *b = loan->bucket;
	struct hp_holder *h = &ln->holder[loan->peer];

	if (b->recall == loan)
		hp_bucket_recalled(ln, b);
	TAILQ_REMOVE(&b->loans, loan, of_bucket);
	TAILQ_REMOVE(&h->loans, loan, of_peer);
	h->loans_count--;
	hp_table_remove(&ln->owners, &loan->by_owner);
	h->bytes -= count_same(ln, b, loan->peer) ? 0 : hp_bucket_bytes(b);
	rank(ln, h);
	if (taken && !ln->class_fixed)
		hp_bucket_note_given(ln, loan->peer, (struct hp_bucket_name){ b->base, b->want });
	loan->ref = 0;
	loan->bucket = NULL;
	loan->next_free = ln->loan_free;
	ln->loan_free = loan->slot + 1;
	ln->taken += taken;
	return TAILQ_EMPTY(&b->loans) ? b : NULL;
}

void hp_lender_idle(struct hp_lender *ln, struct hp_bucket *b)
{
	TAILQ_REMOVE(&ln->lent_list, b, order);
	ln->lent -= hp_bucket_bytes(b);
	b->state = HP_BUCKET_IDLE;
	TAILQ_INSERT_TAIL(&ln->idle_list, b, order);
	ln->idle += hp_bucket_bytes(b);
	ln->idle_count++;
}

/* ------------------------------------------------------------------ questions that wait */

bool hp_lender_may_wait(const struct hp_lender *ln, const struct hp_question *q, uint64_t carry_max)
{
	const struct hp_holder *h = &ln->holder[q->peer];

	return h->waiting_count < HP_LEND_WAITING_MAX &&
	       q->carried <= carry_max - HP_MIN(carry_max, h->waiting_carried);
}

static void leave_queue(struct hp_lender *ln, struct hp_question *q)
{
	if (q == TAILQ_FIRST(&ln->waiting))
		clear_asked(ln);
	TAILQ_REMOVE(q->queue, q, order);
	q->queue = NULL;
	q->asking = HP_LEND_NOBODY;
}

void hp_lender_wait(struct hp_lender *ln, struct hp_question *q)
{
	struct hp_holder *h = &ln->holder[q->peer];

	if (q->queue) {
		leave_queue(ln, q);
	} else {
		h->waiting_count++;
		h->waiting_carried += q->carried;
		ln->waiting_count++;
		TAILQ_INSERT_TAIL(&h->questions, q, of_peer);
	}
	q->queue = q->next_queue;
	TAILQ_INSERT_TAIL(q->queue, q, order);
}

void hp_lender_unwait(struct hp_lender *ln, struct hp_question *q)
{
	struct hp_holder *h = &ln->holder[q->peer];

	leave_queue(ln, q);
	TAILQ_REMOVE(&h->questions, q, of_peer);
	h->waiting_count--;
	h->waiting_carried -= q->carried;
	ln->waiting_count--;
}

uint64_t hp_lender_late_at(const struct hp_lender *ln)
{
	const struct hp_question *q = TAILQ_FIRST(&ln->waiting);

	if (!q)
		return UINT64_MAX;
	return q->asking == HP_LEND_NOBODY ? 0 : ln->holder[q->asking].want_since + ln->answer_ns;
}

/* ------------------------------------------------------------------ deciding */

static struct hp_act no(int err)
{
	return (struct hp_act){ .step = HP_STEP_NO, .err = err };
}

/* The next holder to ask, in this round or in another one; NULL: there is none. */
static struct hp_holder *next_holder(struct hp_lender *ln, struct hp_question *q)
{
	struct hp_holder *h;

	if (!q->rounds) {
		q->rounds = 1;
		q->round_taken = ln->taken;
	}
	if (++q->wants > WANTS_MAX)
		return NULL;
	h = largest(ln);
	if (!h && q->rounds < ROUNDS_MAX && q->round_taken != ln->taken) {
		q->rounds++;
		q->round_taken = ln->taken;
		clear_asked(ln);
		h = largest(ln);
	}
	return h;
}

/* Whether a smaller piece than n fits into the room that there is, so that nobody has to give anything. */
static bool fits_smaller(const struct hp_lender *ln, struct hp_question *q, struct hp_bucket_name n, uint64_t room)
{
	for (unsigned class = ln->class_fixed ? HP_LEND_CLASSES : 1; class < HP_LEND_CLASSES; class++) {
		struct hp_bucket_name smaller = hp_bucket_piece(q, class);

		if (smaller.want >= n.want || hp_bucket_page_bytes(smaller.base, smaller.want) > room)
			continue;
		q->class_min = class;
		return true;
	}
	return false;
}

/* No holder gives anything. If `bytes` are wanted of any of them, and unless enough is retired already, ask the bucket
 * that was lent first back. */
static struct hp_act refuse(struct hp_lender *ln, const struct hp_question *q, uint64_t bytes)
{
	struct hp_act act = no(ENOBUFS);
	struct hp_bucket *b = TAILQ_FIRST(&ln->lent_list);

	/* With smaller buckets, maybe not all would be in use. But larger buckets from earlier are not a reason for yet
	 * smaller ones. */
	if (q->seen && !ln->class_fixed && b && !hp_bucket_is_larger(ln, b))
		hp_bucket_count_refused(ln, q->peer);
	if (!bytes || ln->retired >= bytes || !b || b->state != HP_BUCKET_LENT)
		return act;
	TAILQ_REMOVE(&ln->lent_list, b, order);
	TAILQ_INSERT_TAIL(&ln->lent_list, b, order);
	if (!b->retired)
		act.bucket = b;
	return act;
}

static struct hp_act wait_in(struct hp_question *q, struct hp_questions *queue)
{
	q->next_queue = queue;
	return (struct hp_act){ .step = HP_STEP_WAIT };
}

/* Whether q has to wait in that queue for others there. */
static bool is_behind(const struct hp_question *q, const struct hp_questions *queue)
{
	return !TAILQ_EMPTY(queue) && TAILQ_FIRST(queue) != q;
}

/* The peer is over its own limits: ask it for `bytes`, once, or wait for its answer. */
static struct hp_act want_own(struct hp_lender *ln, struct hp_question *q, uint64_t bytes)
{
	struct hp_holder *h = &ln->holder[q->peer];

	if (q->queue != &h->waiting || q->asking != HP_LEND_NOBODY)
		return wait_in(q, &h->waiting);
	if (q->wanted || !h->loans_count || h->mute)
		return refuse(ln, q, 0);
	q->wanted = true;
	q->asking = q->peer;
	return want(ln, h, HP_MAX(bytes, 1));
}

/* Ask a holder for `bytes`, or wait for the one that was asked, or give up. */
static struct hp_act want_room(struct hp_lender *ln, struct hp_question *q, uint64_t bytes)
{
	struct hp_holder *h = NULL;
	struct hp_bucket *larger;
	struct hp_act act;

	if (ln->policy == HUGEPIN_LEND_STATIC)
		return want_own(ln, q, bytes);
	if (q->queue != &ln->waiting ||
	    (q->asking != HP_LEND_NOBODY && !is_late(ln, &ln->holder[q->asking])))
		return wait_in(q, &ln->waiting);
	h = next_holder(ln, q);
	if (!h)
		return refuse(ln, q, bytes);
	set_asked(ln, h);
	larger = TAILQ_FIRST(&ln->lent_list);
	if (larger && hp_bucket_is_larger(ln, larger) && !ln->class_fixed && !h->want) {
		act = want(ln, h, 0);
		act.bucket = larger;
		TAILQ_REMOVE(&ln->lent_list, larger, order);
		TAILQ_INSERT_TAIL(&ln->lent_list, larger, order);
	} else {
		act = want(ln, h, bytes);
	}
	q->crowded = 0; /* try to pin again when the answer is here */
	q->asking = (int64_t)(h - ln->holder);
	return act;
}

/* Whether one more loan, with so many bytes more, would be over the peer's own limits. */
static bool is_over(const struct hp_lender *ln, uint32_t peer, uint64_t bytes)
{
	const struct hp_holder *h = &ln->holder[peer];

	return h->loans_count >= ln->keys_max || h->bytes + bytes > hp_lender_share(ln);
}

/* A lent bucket that serves the question, which needs no room except in the peer's limits. *ret_same: as many loans as
 * the peer has of that. */
static struct hp_bucket *find_lent(const struct hp_lender *ln, const struct hp_question *q, unsigned *ret_same)
{
	for (unsigned class = 0; class < HP_LEND_CLASSES; class++) {
		struct hp_bucket *b = hp_bucket_find(ln, hp_bucket_piece(q, class), q->addr);

		if (!b || b->state != HP_BUCKET_LENT)
			continue;
		*ret_same = count_same(ln, b, q->peer);
		if (!is_over(ln, q->peer, *ret_same ? 0 : hp_bucket_bytes(b)))
			return b;
	}
	return NULL;
}

/* Choose the piece to lend: of the present class, or of the next smaller one that can fit at all. False: there is
 * none. */
static bool choose_piece(const struct hp_lender *ln, const struct hp_question *q, struct hp_bucket_name *ret_)
{
	uint64_t most = HP_MIN(ln->lent_max, hp_lender_share(ln));

	for (unsigned class = HP_MAX(ln->class, q->class_min); class < HP_LEND_CLASSES; class++) {
		*ret_ = hp_bucket_piece(q, class);
		if (hp_bucket_page_bytes(ret_->base, ret_->want) <= most)
			return true;
	}
	return false;
}

/* Make a bucket, or take the idle one again. It counts as lent from now on, even before it is pinned. */
static struct hp_act pin(struct hp_lender *ln, struct hp_bucket_name n, struct hp_bucket *b)
{
	if (!reserve_loan(ln))
		return no(ENOMEM);
	if (b) {
		hp_bucket_detach(ln, b);
		b->state = HP_BUCKET_NEW;
	} else {
		b = calloc(1, sizeof *b);
		if (!b)
			return no(ENOMEM);
		*b = (struct hp_bucket){ .base = n.base, .want = n.want, .len = n.want };
	}
	TAILQ_INIT(&b->loans);
	hp_table_add(&ln->buckets, &b->by_name, hp_bucket_hash(n));
	TAILQ_INSERT_TAIL(&ln->lent_list, b, order);
	ln->buckets_count++;
	ln->lent += hp_bucket_bytes(b);
	ln->peak = HP_MAX(ln->peak, ln->lent + ln->idle);
	hp_bucket_regret(ln, n, hp_bucket_bytes(b));
	return (struct hp_act){ .step = HP_STEP_PIN, .bucket = b };
}

static struct hp_act drop(struct hp_lender *ln)
{
	return (struct hp_act){ .step = HP_STEP_DROP, .bucket = hp_lender_oldest(ln) };
}

/* The room into which a bucket of the peer's fits without anybody giving anything. */
static uint64_t room_of(const struct hp_lender *ln, uint32_t peer)
{
	const struct hp_holder *h = &ln->holder[peer];
	uint64_t share = hp_lender_share(ln);

	return h->loans_count < ln->keys_max ? HP_MIN(share - HP_MIN(share, h->bytes), ln->lent_max - ln->lent) : 0;
}

struct hp_act hp_lender_step(struct hp_lender *ln, struct hp_question *q)
{
	struct hp_holder *h = &ln->holder[q->peer];
	uint64_t bytes;
	unsigned same = 0;
	struct hp_bucket *b;
	struct hp_bucket_name n;
	struct hp_questions *queue;
	struct hp_act act;
	bool over;

	b = find_lent(ln, q, &same);
	/* Each question gets a loan, even if the peer already has a key there. But a peer that goes on asking gets no
	 * more, and these questions do not count. */
	if (same >= HP_LEND_SAME_MAX)
		return no(ENOBUFS);
	if (h->loans_count < ln->keys_max)
		hp_bucket_count(ln, q);
	if (b)
		return reserve_loan(ln) ? (struct hp_act){ .step = HP_STEP_LEND, .bucket = b } : no(ENOMEM);
	if (q->err)
		return no(q->err);
	if (!choose_piece(ln, q, &n))
		return no(q->class_min == HP_LEND_CLASSES ? EFAULT : ENOBUFS);
	b = hp_bucket_find(ln, n, q->addr);
	if (b && b->state != HP_BUCKET_IDLE)
		b = NULL; /* over the share, as the sums below show */
	bytes = b ? hp_bucket_bytes(b) : hp_bucket_page_bytes(n.base, n.want);
	/* A question that needs room waits behind those that wait for room. */
	over = is_over(ln, q->peer, bytes);
	queue = over || ln->policy == HUGEPIN_LEND_STATIC ? &h->waiting : &ln->waiting;
	if (is_behind(q, queue))
		return wait_in(q, queue);
	if (q->crowded && ln->idle_count) {
		q->crowded = 0;
		return drop(ln);
	}
	if (over)
		act = want_own(ln, q, h->bytes + bytes - HP_MIN(h->bytes + bytes, hp_lender_share(ln)));
	else if (q->crowded)
		return want_room(ln, q, q->crowded);
	else if (ln->lent + bytes > ln->lent_max)
		act = ln->policy == HUGEPIN_LEND_STATIC ? no(ENOBUFS)
							: want_room(ln, q, ln->lent + bytes - ln->lent_max);
	else if (!b && ln->lent + ln->idle + bytes > ln->lent_max + ln->idle_base)
		return drop(ln);
	else
		return pin(ln, n, b);
	return act.step == HP_STEP_NO && fits_smaller(ln, q, n, room_of(ln, q->peer)) ? hp_lender_step(ln, q) : act;
}

/* The device's longest registration ends before the address, so try a smaller piece, which begins nearer to it. */
static void try_smaller(struct hp_lender *ln, struct hp_question *q, const struct hp_bucket *b)
{
	for (unsigned class = q->class_min; class < HP_LEND_CLASSES; class++)
		if (hp_bucket_piece(q, class).base == b->base && hp_bucket_piece(q, class).want == b->want)
			q->class_min = class + 1;
	if (!ln->class_fixed && q->class_min < HP_LEND_CLASSES)
		ln->class = HP_MAX(ln->class, q->class_min);
}

bool hp_lender_pinned(struct hp_lender *ln, struct hp_question *q, struct hp_bucket *b, int err,
		      const struct hugepin_pin *pin, uint64_t start, uint64_t end)
{
	bool reaches = !err && q->addr - b->base < pin->len;

	if (!reaches) {
		if (err == -ENOBUFS || err == -ENOMEM || err == -EAGAIN)
			q->crowded = hp_bucket_bytes(b);
		else if (err)
			q->err = -err;
		else
			try_smaller(ln, q, b);
		hp_lender_forget(ln, b);
		return false;
	}
	ln->lent -= hp_bucket_bytes(b);
	b->len = pin->len;
	ln->lent += hp_bucket_bytes(b);
	b->pin = *pin;
	b->region = (uint32_t)pin->ref;
	b->start = start;
	b->end = end;
	b->state = HP_BUCKET_LENT;
	hp_table_add(&ln->regions, &b->by_region, hp_lend_hash(b->region, 0));
	return true;
}
