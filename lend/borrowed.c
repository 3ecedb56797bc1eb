/*
 * Borrowed keys. state.h says how hits find them. Call with the lend's lock, except hp_borrowed_unused().
 *
 * The borrower must find the key that contains an address, whatever the lengths of keys are. So each key is in a hash
 * table under the frames that it touches. The size of these frames is the key's length, rounded up to a power of two,
 * so that there are at most two. A search tries each frame size of which there are keys; there are as many sizes as
 * bits of an address.
 *
 * A clock (second chance) finds the keys that were not used for longest: a hit sets `used` only once, and a look clears
 * it.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/barrier.h"
#include "base/sys.h"
#include "lend/borrowed.h"
#include "lend/key.h"
#include "lend/send.h"
#include "lend/state.h"
#include "reg/counts.h"
#include "reg/lent.h"
#include "reg/lookup.h"

/* A peer that wants keys back has so many looked at. For a new key so many are looked at of so many peers. */
enum { STEP = 512, LEVEL_MIN = 6, LEVEL_MAX = 63, LOOKS_MAX = 1024, PLACE_LOOKS = 64, PLACE_PEERS = 16 };
#define TABLE_BYTES (HP_REGIONS_MAX * sizeof(struct hp_borrowed))
_Static_assert(sizeof(struct hp_borrowed) == 128, "");
_Static_assert(HP_REGIONS_MAX <= 1u << HP_KEY_SLOT_BITS, "slots and indexes of a ref");

/* ------------------------------------------------------------------ tables */

uint64_t hp_lend_secret;

/* Choose the secret once, before any table. If random numbers are not available yet, soon after the boot, use the
 * clock. */
static void choose_secret(void)
{
	uint64_t secret = 0, none = 0;

	if (hp_sys(SYS_getrandom, &secret, sizeof secret, GRND_NONBLOCK) != sizeof secret)
		secret = hp_clock_ns();
	__atomic_compare_exchange_n(&hp_lend_secret, &none, secret | 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

int hp_borrowed_open(hugepin_lend *l)
{
	static _Atomic uint32_t opened; /* relaxed: a number that no other lend has */
	uint64_t head;

	choose_secret();
	TAILQ_INIT(&l->borrowed_free);
	TAILQ_INIT(&l->retired);
	l->borrowed = hp_meta_reserve(TABLE_BYTES);
	l->lookup = hp_meta_map(HP_LOOKUP_BYTES);
	/* The kernel empties the keys in a child of fork, so that no hit there returns a key of the parent. */
	if (!l->borrowed || !l->lookup || madvise(l->borrowed, TABLE_BYTES, MADV_WIPEONFORK) != 0 ||
	    !hp_meta_open(l->borrowed, STEP * sizeof *l->borrowed) || !hp_table_init(&l->by_ref) ||
	    !hp_table_init(&l->by_frame))
		return -ENOMEM;
	atomic_store_explicit(&l->lookup_mask, HP_LOOKUP_MASK(HP_LOOKUP_BITS_MIN), memory_order_relaxed);
	l->borrowed_opened = STEP;
	l->borrowed_used = 1; /* the first place is the head */
	/* The upper bits of the names of this lend's keys. They are not 0, because a cleared key has the name 0. */
	do
		head = (uint64_t)(atomic_fetch_add_explicit(&opened, 1, memory_order_relaxed) + 1) << HP_KEY_HEAD_SHIFT;
	while (!head);
	l->borrowed[0].name = head;
	return 0;
}

static void give_index(struct hp_borrowed *f)
{
	/* The uses were no pins, so count them as undone. */
	atomic_fetch_add_explicit(&hp_counts_undone, hp_counts_made(f->index) - f->made, memory_order_relaxed);
	hp_lent_index_free(f->index);
	f->index = 0;
}

void hp_borrowed_close(hugepin_lend *l, bool child)
{
	for (uint32_t i = 1; !child && i < l->borrowed_used; i++)
		if (l->borrowed[i].index)
			give_index(&l->borrowed[i]);
	if (l->borrowed)
		hp_meta_unmap(l->borrowed, TABLE_BYTES);
	if (l->lookup)
		hp_meta_unmap(l->lookup, HP_LOOKUP_BYTES);
	if (child)
		return;
	hp_table_free(&l->by_ref);
	hp_table_free(&l->by_frame);
}

uint64_t hp_borrowed_bytes(const hugepin_lend *l)
{
	uint32_t mask = atomic_load_explicit(&l->lookup_mask, memory_order_relaxed);

	return l->borrowed_opened * sizeof *l->borrowed + (mask + 8) * HP_LOOKUP_WAYS + hp_table_bytes(&l->by_ref) +
	       hp_table_bytes(&l->by_frame);
}

/* ------------------------------------------------------------------ finding */

/* The last byte. */
static uint64_t last_of(const struct hp_borrowed *f)
{
	return f->start + f->len - 1;
}

static unsigned level_of(const struct hp_borrowed *f)
{
	unsigned level = f->len > 1 ? 64 - (unsigned)__builtin_clzll(f->len - 1) : 0;

	return HP_MIN(HP_MAX(level, (unsigned)LEVEL_MIN), (unsigned)LEVEL_MAX);
}

static uint64_t frame_hash(uint32_t peer, uint64_t addr, unsigned level)
{
	return hp_lend_hash_foreign(addr >> level, (uint64_t)peer << 8 | level);
}

/* The number of frames that f touches, 1 or 2. */
static int frames_of(const struct hp_borrowed *f, unsigned level)
{
	return f->start >> level == last_of(f) >> level ? 1 : 2;
}

static void add_frames(hugepin_lend *l, struct hp_borrowed *f)
{
	unsigned level = level_of(f);

	hp_table_add(&l->by_frame, &f->by_frame[0], frame_hash(f->peer, f->start, level));
	if (frames_of(f, level) == 2)
		hp_table_add(&l->by_frame, &f->by_frame[1], frame_hash(f->peer, last_of(f), level));
	l->frame_level_count[level]++;
	l->frame_levels |= UINT64_C(1) << level;
}

static void remove_frames(hugepin_lend *l, struct hp_borrowed *f)
{
	unsigned level = level_of(f);

	hp_table_remove(&l->by_frame, &f->by_frame[0]);
	if (frames_of(f, level) == 2)
		hp_table_remove(&l->by_frame, &f->by_frame[1]);
	if (!--l->frame_level_count[level])
		l->frame_levels &= ~(UINT64_C(1) << level);
}

struct hp_borrowed *hp_borrowed_find(hugepin_lend *l, uint32_t peer, uint64_t addr)
{
	struct hp_borrowed *found = NULL;

	for (uint64_t left = l->frame_levels; left; left &= left - 1) {
		unsigned level = (unsigned)__builtin_ctzll(left);
		struct hp_link *at = hp_table_first(&l->by_frame, frame_hash(peer, addr, level));

		for (; at; at = hp_table_next(at)) {
			/* The link is the first or the second of the entry, and the entry is aligned to its size. */
			struct hp_borrowed *f = (struct hp_borrowed *)((uintptr_t)at & ~(sizeof *f - 1));

			if (f->peer == peer && addr - f->start < f->len && (!found || last_of(f) > last_of(found)))
				found = f;
		}
	}
	return found;
}

struct hp_borrowed *hp_borrowed_by_ref(hugepin_lend *l, uint32_t peer, uint64_t ref)
{
	struct hp_link *at = hp_table_first(&l->by_ref, hp_lend_hash_foreign(ref, peer));

	for (; at; at = hp_table_next(at)) {
		struct hp_borrowed *f = HP_OF(at, struct hp_borrowed, by_ref);

		if (f->ref == ref && f->peer == peer)
			return f;
	}
	return NULL;
}

/* Let hits at addr find f. The table doubles when half of its buckets have lost a word to another. Growing changes the
 * bucket of each frame, so each old word is missed once. */
static void remember(hugepin_lend *l, const struct hp_borrowed *f, uint64_t addr)
{
	uint64_t page = addr & ~(uint64_t)(HP_PAGE - 1), hash;
	uint32_t mask = atomic_load_explicit(&l->lookup_mask, memory_order_relaxed);

	hash = f->start <= page && last_of(f) - page >= HP_PAGE - 1 ? hp_key_hugepage(f->peer, addr)
								    : hp_key_page(f->peer, addr);
	if (hp_lookup_put(hp_lookup_words(l->lookup, mask, hash), hash, (uint32_t)(f - l->borrowed), 0) &&
	    ++l->lookup_clashes >= 1u << hp_lookup_bits(mask) >> 1 && hp_lookup_bits(mask) < HP_LOOKUP_BITS_MAX) {
		l->lookup_clashes = 0;
		atomic_store_explicit(&l->lookup_mask, HP_LOOKUP_MASK(hp_lookup_bits(mask) + 1), memory_order_relaxed);
	}
}

void hp_borrowed_use(hugepin_lend *l, struct hp_borrowed *f, uint64_t addr, uint64_t len, struct hugepin_far *ret_)
{
	hp_count(&hp_counts_self[f->index].pins);
	HP_WRITE(f->used, 1);
	remember(l, f, addr);
	hp_key_fill(ret_, addr, HP_MIN(len, f->start + f->len - addr), f->keys, f->name);
}

/* ------------------------------------------------------------------ beginning and ending */

/* A place, if there is one. */
static struct hp_borrowed *take_place(hugepin_lend *l)
{
	struct hp_borrowed *f = TAILQ_FIRST(&l->borrowed_free);
	uint32_t index;

	if (l->borrowed_count >= HP_REGIONS_MAX / 4) /* the table of regions also serves the pins of all domains */
		return NULL;
	if (!f && l->borrowed_used == l->borrowed_opened) {
		if (l->borrowed_opened == HP_REGIONS_MAX ||
		    !hp_meta_open(&l->borrowed[l->borrowed_opened], STEP * sizeof *l->borrowed))
			return NULL;
		l->borrowed_opened += STEP;
	}
	index = hp_lent_index_new();
	if (!index)
		return NULL;
	if (f)
		TAILQ_REMOVE(&l->borrowed_free, f, order);
	else
		f = &l->borrowed[l->borrowed_used++];
	f->index = index;
	f->made = hp_counts_made(index);
	return f;
}

/* Give a key of the peer's back that has no uses, and that was not used since the last look, if there is one. */
static void give_one(hugepin_lend *l, uint32_t peer)
{
	struct hp_borrowed_list *all = &l->peer[peer].borrowed;
	struct hp_borrowed *f, *chosen = NULL;
	bool used = true;
	uint64_t ref;

	for (unsigned i = 0; used && i < PLACE_LOOKS && (f = TAILQ_FIRST(all)); i++) {
		TAILQ_REMOVE(all, f, order);
		TAILQ_INSERT_TAIL(all, f, order);
		if (hp_counts_sum(f->index))
			continue;
		used = HP_PEEK(f->used);
		chosen = used && chosen ? chosen : f;
		HP_WRITE(f->used, 0);
	}
	if (chosen && hp_borrowed_retire(l, &chosen, 1, HP_BORROWED_LIVE, &ref))
		hp_send_return(l, peer, 0, &ref, 1, false);
}

/* Whether the peer, by its answers, may not fill more of the table. */
static bool is_full(const hugepin_lend *l, uint32_t peer)
{
	return l->peer[peer].stats.borrowed + l->peer[peer].asks_out >= l->attr.peer_keys_max;
}

struct hp_borrowed *hp_borrowed_reserve(hugepin_lend *l, uint32_t peer)
{
	struct hp_borrowed *f;
	struct hp_peer *next;

	if (is_full(l, peer))
		give_one(l, peer);
	if (is_full(l, peer))
		return NULL;
	f = take_place(l);
	for (unsigned i = 0; !f && i < PLACE_PEERS && (next = TAILQ_FIRST(&l->lenders)); i++) {
		TAILQ_REMOVE(&l->lenders, next, lender);
		TAILQ_INSERT_TAIL(&l->lenders, next, lender);
		give_one(l, (uint32_t)(next - l->peer));
		f = take_place(l);
	}
	return f;
}

void hp_borrowed_unreserve(hugepin_lend *l, struct hp_borrowed *f)
{
	give_index(f);
	HP_WRITE(f->state, HP_BORROWED_FREE);
	TAILQ_INSERT_HEAD(&l->borrowed_free, f, order);
}

/* Give f a tag that it never had, so that hits find it. The other members are written before; pairs with HP_READ in
 * hugepin_lend_key(). */
static void publish(hugepin_lend *l, struct hp_borrowed *f)
{
	l->borrowed_gen += l->borrowed_gen == UINT32_MAX ? 2 : 1;
	HP_WRITE(f->tag, HP_TAG(l->borrowed_gen, f->index));
}

void hp_borrowed_begin(hugepin_lend *l, struct hp_borrowed *f, uint32_t peer, uint64_t base, uint64_t len,
		       uint32_t rkey, uint64_t ref)
{
	HP_WRITE(f->start, base);
	HP_WRITE(f->len, len);
	HP_WRITE(f->rkey, rkey);
	HP_WRITE(f->peer, peer);
	HP_WRITE(f->name, hp_key_name(l->borrowed[0].name, (uint32_t)(f - l->borrowed), f->index));
	HP_WRITE(f->used, 1);
	HP_WRITE(f->state, HP_BORROWED_LIVE);
	f->ref = ref;
	hp_table_add(&l->by_ref, &f->by_ref, hp_lend_hash_foreign(ref, peer));
	add_frames(l, f);
	if (TAILQ_EMPTY(&l->peer[peer].borrowed))
		TAILQ_INSERT_TAIL(&l->lenders, &l->peer[peer], lender);
	TAILQ_INSERT_TAIL(&l->peer[peer].borrowed, f, order);
	l->borrowed_count++;
	l->peer[peer].stats.borrowed++;
	l->peer[peer].stats.borrowed_bytes += len;
	publish(l, f);
}

/* Forget that f is the peer's key, because the next process with the peer's number may give the same ref. */
static void forget(hugepin_lend *l, struct hp_borrowed *f)
{
	l->peer[f->peer].stats.borrowed--;
	l->peer[f->peer].stats.borrowed_bytes -= f->len;
	hp_table_remove(&l->by_ref, &f->by_ref);
}

/* Free f, which is in none of the lists any more and has no uses. */
static void end(hugepin_lend *l, struct hp_borrowed *f)
{
	if (f->state != HP_BORROWED_LOST)
		forget(l, f);
	l->borrowed_count--;
	hp_borrowed_unreserve(l, f);
}

/* seq_cst: the bit is up before hp_counts_barrier(); pairs with hugepin_lend_done(). */
static void attend(hugepin_lend *l)
{
	atomic_fetch_or_explicit(&l->attention, HP_ATTEND_USES, memory_order_seq_cst);
}

static void attend_less(hugepin_lend *l)
{
	if (TAILQ_EMPTY(&l->retired))
		atomic_fetch_and_explicit(&l->attention, ~(uint32_t)HP_ATTEND_USES, memory_order_relaxed);
}

unsigned hp_borrowed_retire(hugepin_lend *l, struct hp_borrowed **list, unsigned n, enum hp_borrowed_state state,
			    uint64_t *ret_refs)
{
	bool back = state == HP_BORROWED_LIVE;
	unsigned freed = 0;

	for (unsigned i = 0; i < n; i++) {
		HP_WRITE(list[i]->tag, 0);
		/* Written before the sum, so that a thread which gives its use back after the sum sees that the key
		 * waits for that. */
		HP_WRITE(list[i]->state, (uint8_t)state);
	}
	if (!back)
		attend(l);
	hp_counts_barrier(); /* pairs with hp_barrier_often() in hugepin_lend_key() and hugepin_lend_done() */
	for (unsigned i = 0; i < n; i++) {
		struct hp_borrowed *f = list[i];
		bool used = hp_counts_sum(f->index);

		if (used && back) {
			HP_WRITE(f->used, 1);
			publish(l, f);
			continue;
		}
		TAILQ_REMOVE(&l->peer[f->peer].borrowed, f, order);
		if (TAILQ_EMPTY(&l->peer[f->peer].borrowed))
			TAILQ_REMOVE(&l->lenders, &l->peer[f->peer], lender);
		remove_frames(l, f);
		if (state == HP_BORROWED_LOST)
			forget(l, f);
		if (used) {
			TAILQ_INSERT_TAIL(&l->retired, f, order);
			if (state == HP_BORROWED_WANTED)
				LIST_INSERT_HEAD(&l->peer[f->peer].wanted, f, of_peer);
			continue;
		}
		ret_refs[freed++] = f->ref;
		end(l, f);
	}
	attend_less(l);
	return freed;
}

/* Each key twice: the first look clears `used`. */
uint64_t hp_borrowed_looks(const hugepin_lend *l, uint32_t peer)
{
	return HP_MIN(2 * l->peer[peer].stats.borrowed, (uint64_t)LOOKS_MAX);
}

unsigned hp_borrowed_give(hugepin_lend *l, uint32_t peer, uint64_t bytes, uint64_t *looks, uint64_t *ret_refs,
			  uint64_t *ret_bytes)
{
	struct hp_borrowed_list *all = &l->peer[peer].borrowed;
	struct hp_borrowed *list[HP_WIRE_REFS_MAX], *f;
	uint64_t had = l->peer[peer].stats.borrowed_bytes, chosen = 0;
	unsigned n = 0;

	while (n < HP_WIRE_REFS_MAX && chosen < bytes && *looks && (f = TAILQ_FIRST(all)) && (!n || f != list[0])) {
		--*looks;
		TAILQ_REMOVE(all, f, order);
		TAILQ_INSERT_TAIL(all, f, order);
		if (HP_PEEK(f->used)) {
			HP_WRITE(f->used, 0);
			continue;
		}
		if (hp_counts_sum(f->index)) /* read the counters first, which saves most barriers */
			continue;
		list[n++] = f;
		chosen += f->len;
	}
	n = n ? hp_borrowed_retire(l, list, n, HP_BORROWED_LIVE, ret_refs) : 0;
	*ret_bytes = had - l->peer[peer].stats.borrowed_bytes;
	return n;
}

/* ------------------------------------------------------------------ last uses */

/* f waits for its last use. If there are none, free f, and give the key back unless the peer is gone. */
static bool settle(hugepin_lend *l, struct hp_borrowed *f)
{
	uint32_t peer = f->peer;
	bool wanted = f->state == HP_BORROWED_WANTED;
	uint64_t ref = f->ref;

	if (hp_counts_sum(f->index))
		return false;
	TAILQ_REMOVE(&l->retired, f, order);
	if (wanted)
		LIST_REMOVE(f, of_peer);
	end(l, f);
	if (wanted)
		hp_send_return(l, peer, 0, &ref, 1, false);
	return true;
}

void hp_borrowed_settle(hugepin_lend *l, unsigned most)
{
	struct hp_borrowed *f = TAILQ_FIRST(&l->retired), *last = TAILQ_LAST(&l->retired, hp_borrowed_list), *next;

	for (; f && most--; f = next) {
		next = f == last ? NULL : TAILQ_NEXT(f, order);
		if (settle(l, f))
			continue;
		TAILQ_REMOVE(&l->retired, f, order);
		TAILQ_INSERT_TAIL(&l->retired, f, order);
	}
	attend_less(l);
}

void hp_borrowed_return(hugepin_lend *l, uint64_t name)
{
	struct hp_borrowed *f = &l->borrowed[hp_key_slot(name)];
	uint64_t ref;

	if (hp_key_slot(name) >= l->borrowed_used || f->state != HP_BORROWED_LIVE || f->name != name)
		return;
	/* A use of it is the caller's, so it waits for that. If not, the caller has given the use back twice. */
	if (hp_borrowed_retire(l, &f, 1, HP_BORROWED_WANTED, &ref))
		hp_send_return(l, f->peer, 0, &ref, 1, false);
}

bool hp_borrowed_lose(hugepin_lend *l, uint32_t peer)
{
	enum { AT_ONCE = 4 }; /* barriers */
	struct hp_borrowed *list[HP_WIRE_REFS_MAX], *f;
	struct hp_peer *p = &l->peer[peer];
	uint64_t refs[HP_WIRE_REFS_MAX];
	unsigned i;

	for (i = 0; i < AT_ONCE * HP_WIRE_REFS_MAX && (f = LIST_FIRST(&p->wanted)); i++) {
		LIST_REMOVE(f, of_peer);
		HP_WRITE(f->state, HP_BORROWED_LOST);
		forget(l, f);
	}
	for (i = (i + HP_WIRE_REFS_MAX - 1) / HP_WIRE_REFS_MAX; i < AT_ONCE && !TAILQ_EMPTY(&p->borrowed); i++) {
		unsigned n = 0;

		TAILQ_FOREACH(f, &p->borrowed, order) {
			list[n++] = f;
			if (n == HP_WIRE_REFS_MAX)
				break;
		}
		hp_borrowed_retire(l, list, n, HP_BORROWED_LOST, refs);
	}
	return !LIST_EMPTY(&p->wanted) || !TAILQ_EMPTY(&p->borrowed);
}

/* By now the slot may have another key, or none. */
HP_COLD void hp_borrowed_unused(hugepin_lend *l, uint32_t slot)
{
	struct hp_borrowed *f = &l->borrowed[slot];
	uint8_t state = HP_READ(f->state); /* pairs with HP_WRITE in hp_borrowed_retire() */

	if (state != HP_BORROWED_WANTED && state != HP_BORROWED_LOST)
		return;
	hp_lock(&l->lock);
	if (f->state == HP_BORROWED_WANTED || f->state == HP_BORROWED_LOST) {
		settle(l, f);
		attend_less(l);
	}
	hp_unlock(&l->lock);
}

bool hp_borrowed_uses(hugepin_lend *l)
{
	for (uint32_t i = 1; i < l->borrowed_used; i++)
		if (l->borrowed[i].state != HP_BORROWED_FREE && hp_counts_sum(l->borrowed[i].index))
			return true;
	return false;
}
