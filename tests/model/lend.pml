/*
 * The protocol of lent keys (lend/): two peers borrow, one lends. tests/model/run checks all interleavings with spin.
 *
 * The lender has three pieces of memory, frames 0 to 2. Peer 0 uses frames 0 and 1, peer 1 uses frames 1 and 2. A
 * bucket is a registration of a frame. The lender may lend LENT_MAX buckets at a time. A bucket without loans is
 * deregistered at once: the cache of idle ones changes no message. A loan is a peer's key of a bucket, and a ref is its
 * number. The model takes a number again as soon as no table and no message has it. That stands for numbers that are
 * never taken again.
 * Each borrower has one question out at most, REFS refs at most, and one use of a key at a time. At any time
 *  - a borrower asks, perhaps with a key that it gives back, starts a use, completes it, or gives a key back by itself
 *  - the memory of a bucket goes away (RECALL), or is wanted though no question waits for it (WANT)
 *  - a peer dies. What it had sent still arrives, and what it had posted still reaches memory, until gone() is called.
 *    Then its number is another peer's.
 *  - closing: nothing new begins. When all is quiet, the lender asks everything back.
 * WANT goes to any holder, as often as the lender likes, and the holder gives any key. So the model covers all that
 * policies can decide.
 *
 * The assertions say:
 *  - while a use can reach memory, its key has a loan, and the bucket of the loan is registered
 *  - LENT_MAX buckets have loans at most
 *  - nobody starts to use a key that he gave back, and a new ref is none that its borrower knows
 *  - each question has one answer, and each WANT one RETURN that says it is the answer
 *  - nobody waits for ever. After everything was asked back, nothing is lent.
 * No send waits: a channel has room for all messages that can be under way, which is asserted, too.
 *
 * Each of these is a setting of its own, because all in one have too many states. Where a peer has one frame, that is
 * the one with its own number:
 * -DKEYS   A peer has one key at most. Its question for another one waits for itself, and nobody behind it. The lender
 *          lends one bucket at a time.
 * -DLOSS   Once, a send fails: the peer is lost, and no message reaches it or is taken of it until it is gone. No
 *          question waits for it, before that. Or there is no room (-EAGAIN): the message is kept, and later ones
 *          behind it. The lender lends one bucket at a time, and a peer has one frame.
 * -DSIZES  Frames 0 and 1 are also one larger bucket, which counts for two. The lender takes either size, as it likes.
 *          Peer 1 has one frame.
 *
 * -DBROKEN_x makes one mistake each. The check must find it.
 */
#define PEERS 2
#define REFS 2
#if defined KEYS || defined LOSS
#define LENT_MAX 1
#else
#define LENT_MAX 2
#endif
#define LOANS (PEERS * REFS) /* refs of peer p: p * REFS and the next */
#define ROOM (REFS + 2)
#define NONE 7

#ifdef LOSS /* in a d_step there is no choice */
#define STEP atomic
#else
#define STEP d_step
#endif
#if defined LOSS
#define TWO(x) false
#elif defined SIZES
#define TWO(x) (x == 0)
#else
#define TWO(x) true
#endif
#ifdef KEYS
#define KEYS_MAX 1
#else
#define KEYS_MAX REFS
#endif
#define LARGE 3 /* the larger bucket, as a frame */

mtype = { ASK, LEND, NO, RECALL, WANT, RETURN, NO_KEY, KEY, ENDING };

/* A ref or NONE, and a number: the frame of ASK and LEND; 1 in the RETURN that is the answer of a WANT. */
chan up[PEERS] = [ROOM] of { mtype, byte, byte };
chan down[PEERS] = [ROOM] of { mtype, byte, byte };

bit closing, emptying;
bit dead[PEERS];
#ifdef LOSS
bit lost[PEERS], failed, released; /* failed: one send has, which is enough; released: a question may wait no more */
chan kept[PEERS] = [ROOM] of { mtype, byte, byte };
#define LOST(x) lost[x]
#else
#define LOST(x) false
#endif

/* The lender's. Loans of one frame are of one bucket, but for those that are leaving. */
byte loan[LOANS] = NONE; /* the frame */
bit leaving[LOANS]; /* the bucket's memory went away, and the loan was asked back */
byte lent; /* buckets with loans, as the lender counts them */
bit owed[PEERS]; /* has a question of the peer's */
bit wanted[PEERS]; /* a WANT has no answer yet */
chan waiting = [PEERS] of { byte, byte }; /* questions that wait for room: peer, frame */
bit tried[PEERS]; /* got a WANT for the first of these questions */

/* The borrowers'. */
mtype key[LOANS] = NO_KEY; /* ENDING: asked back while in use */
bit use[LOANS];
bit asking[PEERS];

/* Within a step only. */
hidden byte i, j, f, l, p, what;

#ifdef KEYS
byte own[PEERS] = NONE; /* the frame of a question over its peer's limit */
bit own_tried[PEERS]; /* got a WANT for that */
#endif

#ifdef LOSS
#define KEPT(x) kept[(x) / REFS]??[RECALL, eval(x), _]
#else
#define KEPT(x) false
#endif
#define NEW(x) (loan[x] == NONE && key[x] == NO_KEY && !down[(x) / REFS]??[RECALL, eval(x), _] && !KEPT(x))
#define HOLDS(x) (loan[x * REFS] != NONE || loan[x * REFS + 1] != NONE)
#define SAME(x, y) (loan[x] == loan[y] && leaving[x] == leaving[y])
#define USED(x, y) (use[x] && SAME(x, y))
#define IS(x, frame) (loan[x] == frame && !leaving[x])
#define LEAVES(x, frame) (loan[x] == frame && leaving[x])
#define ANY(predicate, x) (predicate(0, x) || predicate(1, x) || predicate(2, x) || predicate(3, x))
#define COUNT(predicate, x) (predicate(0, x) + predicate(1, x) + predicate(2, x) + predicate(3, x))
#define BUCKETS (ANY(IS, 0) + ANY(IS, 1) + ANY(IS, 2) + ANY(LEAVES, 0) + ANY(LEAVES, 1) + ANY(LEAVES, 2) + \
	2 * (ANY(IS, LARGE) + ANY(LEAVES, LARGE)))
#define KEYS_OF(x) ((loan[x * REFS] != NONE) + (loan[x * REFS + 1] != NONE))
#ifdef BROKEN_SIZE /* counts the larger bucket as a small one */
#define UNITS(frame) 1
#else
#define UNITS(frame) (frame == LARGE -> 2 : 1)
#endif

/* ------------------------------------------------------------------ the lender */

#ifdef LOSS
inline lose(x)
{
	failed = 1;
	lost[x] = 1;
#ifndef BROKEN_LOST /* lets a question wait for the answer of a peer that is lost */
	released = 1;
	wanted[x] = 0;
#endif
	do
	:: kept[x]?_, _, _
	:: empty(kept[x]) -> break
	od
}

inline tell(to, type, ref, arg)
{
	if
	:: dead[to] || lost[to] -> skip
	:: !dead[to] && !lost[to] && !failed -> lose(to)
#ifdef BROKEN_AGAIN /* sends although earlier messages are kept */
	:: !dead[to] && !lost[to] -> down[to]!type, ref, arg
#else
	:: !dead[to] && !lost[to] && empty(kept[to]) -> assert(nfull(down[to])); down[to]!type, ref, arg
#endif
	:: !dead[to] && !lost[to] -> assert(nfull(kept[to])); kept[to]!type, ref, arg
	fi
}
#else
inline tell(to, type, ref, arg)
{
	if
	:: dead[to] -> skip
	:: else -> assert(nfull(down[to])); down[to]!type, ref, arg
	fi
}
#endif

/* Deregister the bucket of loan x. */
inline deregister(x)
{
	assert(!ANY(USED, x))
}

inline end_loan(x)
{
	assert(loan[x] != NONE);
	assert(!use[x]);
	if
	:: COUNT(SAME, x) == 1 -> deregister(x); lent = lent - UNITS(loan[x])
#ifdef BROKEN_COUNT /* counts a bucket once when it is lent, and all its loans when they end */
	:: COUNT(SAME, x) > 1 && lent -> lent--
#endif
	:: else
	fi;
	loan[x] = NONE;
	leaving[x] = 0
}

#ifdef BROKEN_LEAVING /* lends of a bucket whose loans were asked back before */
#define MAY_BE_LENT(frame) (ANY(IS, frame) || ANY(LEAVES, frame))
#else
#define MAY_BE_LENT(frame) ANY(IS, frame)
#endif
#define FITS(frame) (lent + UNITS(frame) <= LENT_MAX || MAY_BE_LENT(frame))
#ifdef SIZES
#define ROOM_FOR(frame) (FITS(frame) || (frame < 2 && FITS(LARGE)))
#else
#define ROOM_FOR(frame) FITS(frame)
#endif
#ifdef BROKEN_NUMBER /* lets a question over its peer's limit wait with the others */
#define OVER(x) false
#else
#define OVER(x) (KEYS_OF(x) >= KEYS_MAX)
#endif

/* Peer p gets a key of frame f. */
inline lend()
{
	l = (NEW(p * REFS) -> p * REFS : p * REFS + 1);
#ifdef BROKEN_REF /* lends once more what the peer has already, also if it was asked back */
	l = (loan[p * REFS] == f -> p * REFS : (loan[p * REFS + 1] == f -> p * REFS + 1 : l));
#else
	assert(NEW(l));
#endif
#ifdef SIZES
	if
	:: FITS(f)
	:: f < 2 && FITS(LARGE) -> f = LARGE
	fi;
#endif
	lent = (MAY_BE_LENT(f) -> lent : lent + UNITS(f));
#ifdef BROKEN_LEAVING
	leaving[l] = !ANY(IS, f) && ANY(LEAVES, f);
#endif
	loan[l] = f;
	assert(BUCKETS <= LENT_MAX && KEYS_OF(p) <= KEYS_MAX);
	tell(p, LEND, l, f);
	assert(owed[p]);
	owed[p] = 0
}

inline refuse()
{
	tell(p, NO, NONE, 0);
	assert(owed[p]);
	owed[p] = 0
}

inline next_waits()
{
	tried[0] = 0;
	tried[1] = 0
}

#ifdef BROKEN_MUTE /* asks a peer that is lost */
#define MAY_GIVE(x) HOLDS(x)
#else
#define MAY_GIVE(x) (HOLDS(x) && !LOST(x))
#endif
#define ASKED(x) (tried[x] || !MAY_GIVE(x))
inline ask_back(x)
{
	tried[x] = 1;
	if
	:: wanted[x] -> skip
	:: else ->
		wanted[x] = 1;
		tell(x, WANT, NONE, 0)
	fi
}

/* Go on with the questions that wait for room. */
inline serve()
{
	do
	:: empty(waiting) -> break
	:: nempty(waiting) ->
		waiting?<p, f>;
		if
		:: ROOM_FOR(f) ->
			waiting?p, f;
			lend();
			next_waits()
		:: else ->
			if
			:: (tried[0] && wanted[0]) || (tried[1] && wanted[1]) -> break
			:: else ->
				if
				:: !ASKED(0) -> ask_back(0); break
				:: !ASKED(1) -> ask_back(1); break
				:: ASKED(0) && ASKED(1) ->
					waiting?p, f;
					refuse();
					next_waits()
				:: ASKED(0) && ASKED(1) && (MAY_GIVE(0) || MAY_GIVE(1)) -> next_waits() /* another round */
				fi
			fi
		fi
	od
}

inline take_back(x)
{
	if
	:: x != NONE -> end_loan(x)
	:: else
	fi
}

inline place()
{
	assert(KEYS_OF(p) < KEYS_MAX); /* nobody waits for room behind a question that may wait for its peer */
	if
	:: ROOM_FOR(f) -> lend()
	:: !ROOM_FOR(f) -> waiting!p, f; serve()
	:: !ROOM_FOR(f) -> refuse()
	fi
}

#ifdef KEYS
/* Go on with the question that waits for its own peer. */
inline serve_own(q)
{
	if
	:: own[q] != NONE && !OVER(q) ->
		p = q;
		f = own[q];
		own[q] = NONE;
		own_tried[q] = 0;
		place()
	:: own[q] != NONE && OVER(q) && !own_tried[q] ->
#ifndef BROKEN_OWN /* lets a question over its peer's limit wait, and asks nobody */
		own_tried[q] = 1;
		if
		:: wanted[q]
		:: !wanted[q] -> wanted[q] = 1; tell(q, WANT, NONE, 0)
		fi
#else
		skip
#endif
	:: own[q] != NONE && OVER(q) && own_tried[q] && !wanted[q] ->
		p = q;
		own[q] = NONE;
		own_tried[q] = 0;
		refuse()
	:: else
	fi
}
#else
#define serve_own(q) skip
#endif

inline message(q)
{
	if
	:: LOST(q) -> up[q]?_, _, _
	:: !LOST(q) && up[q]?[ASK, _, _] ->
		up[q]?ASK, l, what;
		take_back(l);
		serve(); /* others came first */
		p = q;
		f = what;
		assert(!owed[p]);
		owed[p] = 1;
#ifdef KEYS
		if
		:: OVER(q) -> own[q] = f; serve_own(q)
		:: else -> place()
		fi
#else
		place()
#endif
	:: !LOST(q) && up[q]?[RETURN, _, _] ->
		up[q]?RETURN, l, what;
		take_back(l);
#ifdef BROKEN_CROSS /* takes what a peer gives back by itself for the answer */
		what = what | wanted[q];
#endif
		if
		:: what -> assert(wanted[q]); wanted[q] = 0
		:: else
		fi;
		serve();
		serve_own(q)
	fi
}

/* Memory goes away, or has long been free. */
#define CAN_GO(x) ((!closing || emptying) && ANY(IS, x) && !ANY(LEAVES, x))
inline goes_of(j, x)
{
	if
	:: loan[j] == x ->
		leaving[j] = 1;
		tell(j / REFS, RECALL, j, 0);
#ifdef BROKEN_PIN /* does not wait for the loans */
		deregister(j)
#endif
	:: else
	fi
}

inline goes(x)
{
	goes_of(0, x);
	goes_of(1, x);
	goes_of(2, x);
	goes_of(3, x)
}

inline gone(q)
{
#ifdef LOSS
	assert(!lost[q] || !wanted[q]);
	lost[q] = 0;
	do
	:: kept[q]?_, _, _
	:: empty(kept[q]) -> break
	od;
#endif
#ifdef KEYS
	own[q] = NONE;
	own_tried[q] = 0;
#endif
	do
	:: up[q]?_, _, _
	:: empty(up[q]) -> break
	od;
	for (j : q * REFS .. q * REFS + REFS - 1) {
		use[j] = 0;
		if
#ifndef BROKEN_LOANS /* forgets what the peer has */
		:: loan[j] != NONE -> end_loan(j)
#endif
		:: else
		fi
	}
#ifndef BROKEN_GONE /* waits for an answer that does not come */
	wanted[q] = 0;
#endif
	if
	:: waiting?[eval(q), _] -> waiting?eval(q), f; next_waits()
	:: !waiting?[eval(q), _] && waiting??[eval(q), _] -> waiting??eval(q), f
	:: else
	fi;
	owed[q] = 0;
	dead[q] = 0;
	serve()
}

/* Pins of the lender's own want the room. */
#define CROWD(x) (!closing && !wanted[x] && empty(waiting) && MAY_GIVE(x))

active proctype lender()
{
end:
	do
	:: atomic { nempty(up[0]) -> message(0) }
	:: atomic { nempty(up[1]) -> message(1) }
	:: STEP { CAN_GO(0) -> goes(0) }
	:: STEP { CAN_GO(1) -> goes(1) }
	:: STEP { CAN_GO(2) -> goes(2) }
#ifdef SIZES
	:: STEP { CAN_GO(LARGE) -> goes(LARGE) }
#endif
#ifdef LOSS
	:: atomic { released -> released = 0; serve() }
	:: atomic { nempty(kept[0]) && !dead[0] -> kept[0]?what, l, i; assert(nfull(down[0])); down[0]!what, l, i }
	:: atomic { nempty(kept[1]) && !dead[1] -> kept[1]?what, l, i; assert(nfull(down[1])); down[1]!what, l, i }
#endif
	:: atomic { dead[0] -> gone(0) }
	:: atomic { dead[1] -> gone(1) }
	:: STEP { CROWD(0) -> wanted[0] = 1; tell(0, WANT, NONE, 0) }
	:: STEP { CROWD(1) -> wanted[1] = 1; tell(1, WANT, NONE, 0) }
	od
}

/* ------------------------------------------------------------------ a borrower */

#define FIRST (o * REFS)
#define UNUSED(x) (key[x] == KEY && !use[x])
#define COVERS(k, x) (key[k] == KEY && (loan[k] == x || (loan[k] == LARGE && x < 2)))
#define HAS(x) (COVERS(FIRST, x) || COVERS(FIRST + 1, x))
#define CAN_ASK (!closing && !dead[o] && !asking[o] && (NEW(FIRST) || NEW(FIRST + 1)))

inline say(type, ref, arg)
{
	assert(nfull(up[o]));
	up[o]!type, ref, arg
}

/* l becomes one of the keys without a use, or NONE. */
inline choose_unused()
{
	if
	:: UNUSED(FIRST) -> l = FIRST
	:: UNUSED(FIRST + 1) -> l = FIRST + 1
	:: l = NONE
	fi
}

inline give()
{
	if
	:: l != NONE -> key[l] = NO_KEY
	:: else
	fi
}

inline ask(frame)
{
	choose_unused();
#ifdef BROKEN_GIVE /* gives what is in use */
	l = (key[FIRST] == KEY -> FIRST : l);
#endif
	give();
	asking[o] = 1;
	say(ASK, l, frame)
}

inline hit(x)
{
	assert(loan[x] != NONE); /* the lender counts on the key being in use */
	use[x] = 1
}

inline done(x)
{
	use[x] = 0;
	if
#ifndef BROKEN_LAST /* forgets that the lender waits */
	:: key[x] == ENDING ->
		key[x] = NO_KEY;
		say(RETURN, x, 0)
#endif
	:: else
	fi
}

inline answer_recall()
{
	if
	:: key[l] == NO_KEY -> skip /* it was given back meanwhile */
#ifndef BROKEN_EARLY /* answers in spite of a use */
	:: key[l] == KEY && use[l] -> key[l] = ENDING
	:: key[l] == KEY && !use[l] ->
#else
	:: key[l] == KEY ->
#endif
		key[l] = NO_KEY;
		say(RETURN, l, 0)
	:: key[l] == ENDING -> assert(false)
	fi
}

inline answer_want()
{
	choose_unused();
#ifdef BROKEN_SILENT /* has nothing to give, and says nothing */
	if
	:: l == NONE -> skip
	:: else -> give(); say(RETURN, l, 1)
	fi
#else
#ifndef BROKEN_KEEP /* uses it later all the same */
	give();
#endif
	say(RETURN, l, 1)
#endif
}

inline dies()
{
	do
	:: down[o]?_, _, _
	:: empty(down[o]) -> break
	od;
	key[FIRST] = NO_KEY;
	key[FIRST + 1] = NO_KEY;
	asking[o] = 0;
	dead[o] = 1
}

proctype borrower(byte o)
{
end:
	do
	:: atomic {
#ifdef BROKEN_ORDER /* a RECALL overtakes what was sent before */
		down[o]??RECALL, l, _ ->
#else
		down[o]?RECALL, l, _ ->
#endif
		answer_recall()
	}
	:: atomic { down[o]?WANT, _, _ -> answer_want() }
	:: atomic {
		down[o]?LEND, l, _ ->
		assert(asking[o] && key[l] == NO_KEY && loan[l] != NONE);
		asking[o] = 0;
		key[l] = KEY;
		use[l] = 1
	}
	:: atomic {
		down[o]?NO, _, _ ->
		assert(asking[o]);
		asking[o] = 0
	}
	:: atomic { CAN_ASK && !HAS(o) -> ask(o) }
	:: atomic { TWO(o) && CAN_ASK && !HAS(o + 1) -> ask(o + 1) }
	:: d_step { !closing && UNUSED(FIRST) -> hit(FIRST) }
	:: d_step { !closing && UNUSED(FIRST + 1) -> hit(FIRST + 1) }
	:: d_step { !closing && UNUSED(FIRST) -> key[FIRST] = NO_KEY; say(RETURN, FIRST, 0) }
	:: d_step { !closing && UNUSED(FIRST + 1) -> key[FIRST + 1] = NO_KEY; say(RETURN, FIRST + 1, 0) }
	:: d_step { use[FIRST] -> done(FIRST) }
	:: d_step { use[FIRST + 1] -> done(FIRST + 1) }
	:: d_step { (!closing || (emptying && LOST(o))) && !dead[o] -> dies() }
	od
}

init
{
	atomic {
		run borrower(0);
		run borrower(1)
	}
	closing = 1;
	timeout;
	d_step {
		for (i : 0 .. PEERS - 1) {
			assert(LOST(i) || (!asking[i] && !owed[i] && empty(down[i])));
			assert(!wanted[i] && empty(up[i]))
		}
		assert(empty(waiting))
	}
	emptying = 1;
	timeout;
	for (i : 0 .. LOANS - 1) {
		assert(loan[i] == NONE && key[i] == NO_KEY && !use[i])
	}
	assert(!lent)
}
