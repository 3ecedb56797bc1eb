/*
 * Predicts when a region will be used again. schedule.c decides which region to give back: hp_schedule_victim().
 */
#include "reg/policy/predict.h"

#include <string.h>

#include "base/base.h"

/*
 * Constants, found by simulation on recorded traces of MPI programs. There, contexts longer than 512 and more samples
 * than 8 gain nothing, while contexts only up to 16 save six percentage points less of the bytes that leave-pinned
 * would hold.
 */
#define WAYS 4 /* contexts in a set: three cache lines */
#define ENOUGH_NONE 4 /* if a region was not used after the last 4 occurrences of a context, it is not expected */
#define DECAY 0.997f /* decay of the error tables for each sample: they remember about 300 samples */
/* a kind's prior counts as this many samples, and so do the kind's samples for each of its classes */
#define PRIOR 10.0f
#define RATIO_MAX 3.0f /* a later use counts no worse, because a new guess is made meanwhile */
#define SPREAD_LOW 1.05f /* high / low of samples that agree; SPREAD_MIDDLE: that nearly agree */
#define SPREAD_MIDDLE 1.2f
#define LENGTHS 18 /* classes of low: by 1.5 octaves, from 1 us to two minutes */
#define LENGTH_FIRST 20 /* half octaves in 1 us */
#define KINDS (HP_PREDICT_ORDERS * 3) /* kinds of guesses: by the number of samples, and by how well they agree */
#define CLASSES (KINDS * LENGTHS)
#define TURN_USES 8 /* so many uses before the region's are looked at for its turn */
/* The prior: of so many turns, so many came too late. It is low, because programs repeat their order. */
#define PRIOR_TURNS 20.0f
#define PRIOR_LATE 0.01f

static const float margins[HP_PREDICT_MARGINS] = { .3f,	 .5f,  .65f, .75f, .8f,	 .85f, .9f, .93f,
						   .95f, .97f, .98f, .99f, 1.0f, 1.02f, 1.05f };
/* The prior: the share of uses that come before margins[i] * low. Row 1, for guesses from one sample, is the average of
 * the traces. The others are higher than the average, so that the policy risks little before it knows the program: row
 * 0 for guesses from the region's own uses, row 2 for guesses from several samples. */
static const float early[3][HP_PREDICT_MARGINS] = {
	{ .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f },
	{ .02f, .025f, .03f, .04f, .05f, .06f, .12f, .2f, .28f, .38f, .46f, .55f, .63f, .75f, .9f },
	{ .012f, .014f, .018f, .022f, .026f, .03f, .05f, .07f, .1f, .16f, .21f, .31f, .51f, .71f, .91f },
};

struct hp_predict_past {
	uint64_t time;
	uint32_t region;
	uint32_t prev; /* the previous use of the same region */
	/* an earlier use of the same region. With depth these are the links of Myers' skew-binary list, which reaches
	 * any use in log n steps. */
	uint32_t jump;
	uint32_t depth;
};

/* The errors of a class of guesses, or of a kind. A class starts from the errors of its kind, because a run is too
 * short to learn each length by itself. */
struct hp_predict_errors {
	float weight;
	float early[HP_PREDICT_MARGINS], late[HP_PREDICT_MARGINS]; /* decayed sums */
};

static uint64_t mix_uses(uint64_t x)
{
	x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
	x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
	return x ^ (x >> 32);
}
#define BASE 0x9e3779b97f4a7c15u /* base of the prefix hash: any odd number with well mixed bits */

/* ------------------------------------------------------------------ memory */

/* The number of past uses to remember. The rest of the memory holds the table of errors and the contexts. */
static uint32_t past_count(size_t bytes)
{
	uint32_t n = 128;

	while (n < (1u << 20) && 2 * n * (sizeof(struct hp_predict_past) + 8 + 2 * 12) <= bytes * 3 / 8)
		n *= 2;
	return n;
}

static size_t past_bytes(uint32_t n)
{
	return hp_round_up(n * (sizeof(struct hp_predict_past) + 8 + 2 * 12), 64);
}
#define ERRORS_BYTES hp_round_up((CLASSES + KINDS) * sizeof(struct hp_predict_errors), 64)

size_t hp_predict_size(size_t bytes)
{
	size_t least = ERRORS_BYTES + past_bytes(past_count(bytes)) + 64 * WAYS * sizeof(struct hp_predict_context);
	return HP_MAX(bytes, least);
}

void hp_predict_init(struct hp_predict *p, void *zeroed, size_t bytes)
{
	uint32_t n = past_count(bytes);
	char *at = zeroed;

	*p = (struct hp_predict){ .past_mask = n - 1, .event_mask = 2 * n - 1 };
	p->prefixes = (uint64_t *)at;
	p->event_times = (uint64_t *)(at + n * 8);
	p->past = (struct hp_predict_past *)(at + 3 * n * 8);
	p->event_starts = (uint32_t *)(p->past + n);
	p->errors = (struct hp_predict_errors *)(at + past_bytes(n));
	p->contexts = (struct hp_predict_context *)((char *)p->errors + ERRORS_BYTES);
	p->sets = (uint32_t)((bytes - past_bytes(n) - ERRORS_BYTES) / (WAYS * sizeof(struct hp_predict_context)));

	uint64_t power = BASE;
	for (int i = 0; i < HP_PREDICT_LEVELS; i++, power *= power)
		p->powers[i] = power;
	for (int kind = 0; kind < KINDS; kind++) {
		struct hp_predict_errors *e = &p->errors[CLASSES + kind];
		e->weight = PRIOR;
		for (int i = 0; i < HP_PREDICT_MARGINS; i++) {
			e->early[i] = PRIOR * early[HP_MIN(kind / 3, 2)][i];
			e->late[i] = PRIOR * HP_MAX(0.0f, 1 - margins[i]);
		}
	}
	for (int i = 0; i < HP_PREDICT_ORDERS; i++)
		p->orders[i] = (struct hp_predict_order){ PRIOR_LATE, PRIOR_TURNS };
}

/* ------------------------------------------------------------------ contexts */

/* The hash of the 2^level uses that end with use number `start`. False: not all of them are known. */
static bool window_hash(const struct hp_predict *p, uint32_t start, unsigned level, uint64_t *ret_)
{
	uint32_t age = p->starts - start, length = 1u << level;

	if (age + length > p->past_mask || age + length > p->known)
		return false;
	*ret_ = p->prefixes[start & p->past_mask] - p->prefixes[(start - length) & p->past_mask] * p->powers[level];
	return true;
}

static struct hp_predict_context *set_of(const struct hp_predict *p, uint64_t key)
{
	return p->contexts + ((key >> 32) * p->sets >> 32) * WAYS;
}

static uint32_t tag_of(uint64_t key)
{
	return (uint32_t)key | 1;
}

static struct hp_predict_context *find_context(const struct hp_predict *p, uint64_t key)
{
	struct hp_predict_context *set = set_of(p, key);

	for (int i = 0; i < WAYS; i++)
		if (set[i].tag == tag_of(key))
			return &set[i];
	return NULL;
}

static uint32_t latest(const struct hp_predict_context *c)
{
	return c->at[(c->count - 1) % HP_PREDICT_SAMPLES];
}

static void push_event(struct hp_predict_context *c, uint32_t event)
{
	c->at[c->count++ % HP_PREDICT_SAMPLES] = event;
	if (!c->count) /* the count wrapped */
		c->count = HP_PREDICT_SAMPLES;
}

/* Claim an entry: a free one, else that of a context seen once, else any; of several, the one not seen for the longest
 * time. */
static struct hp_predict_context *claim_context(struct hp_predict *p, uint64_t key)
{
	struct hp_predict_context *set = set_of(p, key), *victim = NULL;

	for (int i = 0; i < WAYS; i++) {
		struct hp_predict_context *c = &set[i];
		if (!c->tag) {
			victim = c;
			p->used++;
			break;
		}
		bool once = c->count == 1, victim_once = victim && victim->count == 1;
		if (!victim || once > victim_once ||
		    (once == victim_once && p->events - latest(c) > p->events - latest(victim)))
			victim = c;
	}
	p->forgotten += victim->tag != 0;
	*victim = (struct hp_predict_context){ .tag = tag_of(key) };
	return victim;
}

static void make_known(struct hp_predict *p, uint64_t key, uint32_t event)
{
	struct hp_predict_context *c = find_context(p, key);
	push_event(c ? c : claim_context(p, key), event);
}

static uint64_t key_of(uint64_t hash, unsigned level, uint32_t ends)
{
	return mix_uses(hash + mix_uses(((uint64_t)ends << 4) + level + 1));
}

/* Remember some of the contexts that end at this event, none longer than the shortest new one. When that one comes a
 * second time, the longer contexts are made from both places, the earlier one and this one, so that no knowledge is
 * lost. */
static void remember_contexts(struct hp_predict *p)
{
	enum { OLD, ONCE, TWICE, NEW } shorter = OLD; /* state of the next shorter context, before this event */
	/* the event at which it was seen first. TWICE: the context was made just now, from that event and this one. */
	uint32_t first = 0;

	if (!p->pending)
		return;
	p->pending = false;
	/* Add the event to existing contexts first, which makes each the youngest of its set, so that the new contexts
	 * do not replace it. */
	for (unsigned i = 0; i < HP_PREDICT_LEVELS; i++)
		if (p->match[i])
			push_event(p->match[i], p->events);
	for (unsigned i = 0; i < HP_PREDICT_LEVELS && p->keys[i]; i++) {
		const struct hp_predict_context *c = p->match[i];
		uint64_t there;
		if (c) {
			shorter = c->count == 2 ? ONCE : OLD;
			first = c->at[0];
			continue;
		}
		if (shorter == NEW)
			continue;
		bool two = shorter != OLD && p->events - first <= p->event_mask &&
			   window_hash(p, p->event_starts[first & p->event_mask], i, &there);
		if (two)
			make_known(p, key_of(there, i, p->ends), first);
		make_known(p, p->keys[i], p->events);
		shorter = two && key_of(there, i, p->ends) == p->keys[i] ? TWICE : NEW;
	}
}

static void event(struct hp_predict *p, uint64_t now_ns)
{
	p->events++;
	p->event_times[p->events & p->event_mask] = now_ns;
	p->event_starts[p->events & p->event_mask] = p->starts;
	for (unsigned i = 0; i < HP_PREDICT_LEVELS; i++) {
		uint64_t hash;
		p->match[i] = NULL;
		p->ago_count[i] = -1;
		if (!window_hash(p, p->starts, i, &hash)) /* nor ever before */
			continue;
		p->keys[i] = key_of(hash, i, p->ends);
		p->match[i] = find_context(p, p->keys[i]);
	}
	p->steps = 0;
	p->pending = true;
}

void hp_predict_start(struct hp_predict *p, uint32_t region, uint64_t site, uint64_t now_ns, uint32_t *chain)
{
	remember_contexts(p);
	uint64_t prefix = p->prefixes[p->starts & p->past_mask];
	uint32_t number = ++p->starts;
	struct hp_predict_past *x = &p->past[number & p->past_mask];

	if (p->known <= p->past_mask)
		p->known++;
	*x = (struct hp_predict_past){ now_ns, region, number, number, 0 };
	if (*chain != HP_PREDICT_NONE && number - *chain <= p->past_mask) {
		const struct hp_predict_past *prev = &p->past[*chain & p->past_mask];
		x->prev = x->jump = *chain;
		x->depth = prev->depth + 1;
		if (number - prev->jump <= p->past_mask) {
			const struct hp_predict_past *jump = &p->past[prev->jump & p->past_mask];
			if (number - jump->jump <= p->past_mask &&
			    prev->depth - jump->depth == jump->depth - p->past[jump->jump & p->past_mask].depth)
				x->jump = jump->jump;
		}
	}
	*chain = number;
	p->prefixes[number & p->past_mask] = prefix * BASE + mix_uses(site + mix_uses(region));
	p->ends = 0;
	event(p, now_ns);
}

void hp_predict_end(struct hp_predict *p, uint64_t now_ns)
{
	if (!p->known)
		return;
	remember_contexts(p);
	p->ends++;
	event(p, now_ns);
}

/* ------------------------------------------------------------------ guesses */

unsigned hp_predict_followers(const struct hp_predict *p, uint32_t *ret_, unsigned max)
{
	for (int i = HP_PREDICT_LEVELS - 1; i >= 0; i--) {
		if (!p->match[i] || p->events - latest(p->match[i]) > p->event_mask)
			continue;
		uint32_t start = p->event_starts[latest(p->match[i]) & p->event_mask];
		unsigned n = HP_MIN(p->starts - start, max);
		if (p->starts - start > p->past_mask)
			continue;
		for (unsigned j = 0; j < n; j++)
			ret_[j] = p->past[(start + 1 + j) & p->past_mask].region;
		return n;
	}
	return 0;
}

/* Find the earliest use of a region among the last `age` uses of all regions, from x, a younger use of that region, on.
 * Adds the steps to p->steps. */
static uint32_t first_within(struct hp_predict *p, uint32_t x, uint32_t age)
{
	for (;; p->steps++) {
		const struct hp_predict_past *past = &p->past[x & p->past_mask];
		uint32_t own = p->starts - x, jump = p->starts - past->jump, prev = p->starts - past->prev;
		if (jump < age && jump > own)
			x = past->jump;
		else if (prev < age && prev > own)
			x = past->prev;
		else
			return x;
	}
}

static uint16_t guess_class(unsigned samples, uint64_t low, uint64_t high)
{
	unsigned count = samples <= 1 ? samples : samples <= 3 ? 2 : 3;
	float spread = (float)high / (float)low;
	unsigned octave = 63 - (unsigned)__builtin_clzll(low | 1);
	unsigned half = 2 * octave + ((float)low >= 1.41421356f * (float)(1ull << octave));
	unsigned length = half < LENGTH_FIRST ? 0 : HP_MIN((half - LENGTH_FIRST) / 3, LENGTHS - 1u);

	return (uint16_t)(length * KINDS + count * 3 + (spread < SPREAD_LOW ? 0 : spread < SPREAD_MIDDLE ? 1 : 2));
}

static unsigned look_up(struct hp_predict *p, unsigned level)
{
	const struct hp_predict_context *c = p->match[level];
	unsigned stored = HP_MIN(c->count, (uint32_t)HP_PREDICT_SAMPLES), n = 0;
	uint64_t now = p->event_times[p->events & p->event_mask];

	if (p->ago_count[level] >= 0)
		return (unsigned)p->ago_count[level];
	for (; n < stored; n++) {
		uint32_t at = c->at[(c->count - 1 - n) % HP_PREDICT_SAMPLES];
		uint32_t uses = p->starts - p->event_starts[at & p->event_mask];
		if (p->events - at > p->event_mask || uses > p->past_mask)
			break;
		p->ago[level][n] = (struct hp_predict_ago){ now - p->event_times[at & p->event_mask], uses };
	}
	p->ago_count[level] = (int8_t)n;
	return n;
}

/* Find the turn of a region that was used in use x, after use `since`, and add it to those of the samples before.
 * False: there is none. */
static bool find_turn(struct hp_predict *p, uint32_t x, uint32_t since, uint64_t need_ns, uint64_t more_ns,
		      struct hp_predict_guess *turn)
{
	uint64_t time = p->past[x & p->past_mask].time;

	for (uint32_t n = 1; n <= TURN_USES && x - n != since; n++, p->steps++) {
		if (time - p->past[(x - n) & p->past_mask].time < need_ns + n * more_ns)
			continue;
		if (!turn->turn || x - n - since < turn->turn) {
			turn->turn = x - n - since;
			turn->before = p->past[(x - n) & p->past_mask].region;
		}
		uint64_t ns = time - p->past[(since + turn->turn) & p->past_mask].time;
		turn->turn_ns = turn->turn_ns ? HP_MIN(turn->turn_ns, ns) : ns;
		return true;
	}
	return false;
}

/* Guess that the time between the region's last two uses is its period. */
static bool guess_period(struct hp_predict *p, uint32_t chain, uint64_t need_ns, uint64_t more_ns,
			 struct hp_predict_guess *ret_)
{
	const struct hp_predict_past *x = &p->past[chain & p->past_mask];
	uint64_t now = p->event_times[p->events & p->event_mask], next;

	if (chain != p->starts || x->prev == chain || p->starts - x->prev > p->past_mask)
		return false;
	next = 2 * x->time - p->past[x->prev & p->past_mask].time;
	if (next <= now)
		return false;
	*ret_ = (struct hp_predict_guess){ .low_ns = next - now, .high_ns = next - now, .median_ns = next - now,
					    .class = guess_class(0, next - now, next - now) };
	find_turn(p, chain, x->prev, need_ns, more_ns, ret_);
	return true;
}

bool hp_predict_next(struct hp_predict *p, uint32_t chain, unsigned samples_min, uint64_t need_ns, uint64_t more_ns,
		     struct hp_predict_guess *ret_)
{
	uint64_t samples[2][HP_PREDICT_SAMPLES]; /* of the present context, and of the best one so far */
	struct hp_predict_guess turns[2]; /* only their turns are set */
	unsigned best = 0, to = 0;
	uint64_t now = p->event_times[p->events & p->event_mask];

	if (chain == HP_PREDICT_NONE || p->starts - chain > p->past_mask)
		return false;
	for (int level = HP_PREDICT_LEVELS - 1; level >= 0 && best < samples_min; level--) {
		if (!p->match[level])
			continue;
		unsigned occurrences = look_up(p, (unsigned)level), n = 0, without = 0;
		uint32_t x = chain;
		bool ordered = need_ns > 0;
		turns[to] = (struct hp_predict_guess){ 0 };
		for (unsigned i = 0; i < occurrences; i++) {
			const struct hp_predict_ago *ago = &p->ago[level][i];
			if (p->starts - chain >= ago->uses) { /* the region was not used since */
				without++;
				continue;
			}
			x = first_within(p, x, ago->uses);
			samples[to][n++] = ago->ns - (now - p->past[x & p->past_mask].time);
			ordered = ordered && find_turn(p, x, p->starts - ago->uses, need_ns, more_ns, &turns[to]);
		}
		if (without >= ENOUGH_NONE)
			break;
		if (n > best && (!best || n >= samples_min)) {
			best = n;
			turns[to].turn = ordered ? turns[to].turn : 0;
			to ^= 1;
		}
	}
	if (!best)
		return need_ns && guess_period(p, chain, need_ns, more_ns, ret_);
	uint64_t *s = samples[to ^ 1];
	for (unsigned i = 1; i < best; i++) {
		uint64_t v = s[i];
		unsigned j = i;
		for (; j && s[j - 1] > v; j--)
			s[j] = s[j - 1];
		s[j] = v;
	}
	uint64_t low = HP_MAX(s[0], 1u), high = HP_MAX(s[best - 1], low);
	const struct hp_predict_guess *t = &turns[to ^ 1];
	*ret_ = (struct hp_predict_guess){ low, high, s[best / 2], best, guess_class(best, low, high),
					    t->turn, t->before, t->turn_ns };
	return true;
}

/* ------------------------------------------------------------------ errors */

static void add_error(struct hp_predict_errors *e, float ratio)
{
	e->weight = e->weight * DECAY + 1;
	for (int i = 0; i < HP_PREDICT_MARGINS; i++) {
		e->early[i] = e->early[i] * DECAY + (ratio < margins[i] ? 1.0f : 0.0f);
		e->late[i] = e->late[i] * DECAY + HP_MAX(0.0f, ratio - margins[i]);
	}
}

void hp_predict_score(struct hp_predict *p, uint16_t class, float ratio)
{
	ratio = HP_MIN(ratio, RATIO_MAX);
	add_error(&p->errors[class], ratio);
	add_error(&p->errors[CLASSES + class % KINDS], ratio);
}

void hp_predict_score_turn(struct hp_predict *p, uint16_t class, bool came)
{
	struct hp_predict_order *o = &p->orders[class % KINDS / 3];

	o->all = o->all * DECAY + 1;
	o->late = o->late * DECAY + !came;
}

float hp_predict_disorder(const struct hp_predict *p, uint16_t class)
{
	const struct hp_predict_order *o = &p->orders[class % KINDS / 3];

	return o->late / o->all;
}

uint64_t hp_predict_use(const struct hp_predict *p, uint32_t ago, uint32_t *ret_region)
{
	const struct hp_predict_past *x = &p->past[(p->starts - ago) & p->past_mask];

	*ret_region = x->region;
	return x->time;
}

float hp_predict_margin(const struct hp_predict *p, uint16_t class, float wait, float miss, float *ret_margin)
{
	const struct hp_predict_errors *e = &p->errors[class], *kind = &p->errors[CLASSES + class % KINDS];
	float least = 0, share = PRIOR / kind->weight;

	for (int i = 0; i < HP_PREDICT_MARGINS; i++) {
		float cost = wait * (e->late[i] + share * kind->late[i]) +
			     miss * (e->early[i] + share * kind->early[i]);
		if (i && cost >= least)
			continue;
		least = cost;
		*ret_margin = margins[i];
	}
	return least / (e->weight + PRIOR);
}
