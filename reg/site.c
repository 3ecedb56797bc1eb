/*
 * Call sites by frame pointers. x86-64 and AArch64 both store the caller's frame pointer and the return address side by
 * side, and the frame pointer points at this pair. So the pairs form a chain through the stack. In code that was
 * compiled without frame pointers the register may hold any value. So a link is followed only upwards, and only within
 * memory that is known to be this thread's stack.
 *
 * That memory must stay mapped while the thread runs. The bounds of its mapping do not prove this: the kernel merges
 * neighbouring mappings, so memory of any owner may follow a stack in the same mapping. The proof is two addresses on
 * one stack: a live frame, and an object at the top of the stack. For most threads this object is the static TLS, which
 * the C library puts there. For the main thread it is the random bytes whose address the kernel tells (AT_RANDOM).
 *
 * One case is not recognized: the stack of a fiber that lies below the thread's stack in the same mapping, without a
 * guard page between them.
 */
#include "reg/site.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/barrier.h"
#include "base/proc.h"
#include "base/sys.h"

#ifdef __x86_64__
enum { ALIGNED = 16, ADDRESS_BITS = 47 };
#else
enum { ALIGNED = 8, ADDRESS_BITS = 48 };
#endif
#define ADDRESS_MASK (((uintptr_t)1 << ADDRESS_BITS) - 1)
enum { CODE_MAX = 512, LINE = 512 };
#define LOOK_AT_LEAST 4096 /* the mappings are read for at least one in so many strangers */

/* This thread's stack. A frame in [low, low + size) is on it. So is all memory from that frame to the end, and two
 * words more. */
static HP_TLS struct {
	uintptr_t low, size;
	uint32_t strangers; /* frames seen outside since the bounds were last learnt */
} stack;

static bool on_stack(uintptr_t at)
{
	return at - stack.low < stack.size;
}

struct around {
	uintptr_t at, start, end;
};

static bool look_around(void *around, const struct hp_mapping *m)
{
	struct around *a = around;

	if (!m->readable)
		return true;
	if (m->start <= a->at && a->at < m->end) {
		a->start = m->start;
		a->end = m->end;
	} else if (a->end && m->start == a->end) {
		a->end = m->end;
	}
	return true;
}

/* Find the mapping that contains `at`, together with readable mappings that follow it without a gap: mlock(2) and other
 * calls split mappings. */
static bool find_stack(uintptr_t at, uintptr_t *ret_start, uintptr_t *ret_end)
{
	struct around a = { .at = at };
	char buf[LINE];

	if (hp_mappings_each(-1, buf, sizeof buf, look_around, &a) < 0 || !a.end)
		return false;
	*ret_start = a.start;
	*ret_end = a.end;
	return true;
}

/* The addresses of code. Without frame pointers the register often points at the caller's variables. The word there is
 * no return address, and it changes from call to call. So an address counts only if it is in code. The code never reads
 * memory through these bounds, so another thread may write them meanwhile: at worst one chain ends too early, once. */
static struct {
	_Atomic bool taken; /* a thread is reading the mappings */
	_Atomic uint32_t strangers; /* addresses seen outside since the mappings were last read; relaxed: a number */
	_Atomic uint32_t count; /* relaxed: a wrong answer of known_code() names another call site */
	_Atomic uintptr_t start[CODE_MAX], end[CODE_MAX]; /* relaxed: a wrong answer of known_code() names another call site */
} code;

static bool note_code(void *count, const struct hp_mapping *m)
{
	uint32_t *n = count;

	if (!m->executable || *n == CODE_MAX)
		return true;
	atomic_store_explicit(&code.start[*n], m->start, memory_order_relaxed);
	atomic_store_explicit(&code.end[*n], m->end, memory_order_relaxed);
	++*n;
	return true;
}

static bool known_code(uintptr_t address)
{
	uint32_t low = 0, high = atomic_load_explicit(&code.count, memory_order_relaxed);

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (address < atomic_load_explicit(&code.start[middle], memory_order_relaxed))
			high = middle;
		else if (address >= atomic_load_explicit(&code.end[middle], memory_order_relaxed))
			low = middle + 1;
		else
			return true;
	}
	return false;
}

/* Look for a stranger, an address outside the known code. It may be in a library that was loaded since, so read the
 * mappings again for the first stranger, the second, the fourth and so on. */
static HP_COLD bool learn_code(uintptr_t address)
{
	uint32_t nth = atomic_fetch_add_explicit(&code.strangers, 1, memory_order_relaxed) + 1, count = 0;
	char buf[LINE];

	if (nth & (nth - 1) && nth % LOOK_AT_LEAST)
		return false;
	/* acquire: pairs with the release below, of the thread that read the mappings last. */
	if (atomic_exchange_explicit(&code.taken, true, memory_order_acquire))
		return false;
	if (hp_mappings_each(-1, buf, sizeof buf, note_code, &count) == 0)
		atomic_store_explicit(&code.count, count, memory_order_relaxed);
	/* release: pairs with the acquire above. */
	atomic_store_explicit(&code.taken, false, memory_order_release);
	return known_code(address);
}

/* Learn the stack of a frame outside the known bounds. False: `at` is not on this thread's stack, as far as can be
 * told. The mappings are read for the first such frame, the second, the fourth and so on: a main thread's stack grows,
 * and a thread may begin in a fiber. So a thread that stays in a fiber pays little. */
static HP_COLD bool learn_stack(uintptr_t at)
{
	uint32_t nth = ++stack.strangers;
	uintptr_t start = 0, end = 0, top = (uintptr_t)&stack;
	bool ok;

	if (nth & (nth - 1) && nth % LOOK_AT_LEAST)
		return false;
	/* A main thread's TLS is in a mapping made by the loader, which may merge with any other. */
	if (hp_sys(SYS_gettid) == (pid_t)hp_sys(SYS_getpid))
		top = getauxval(AT_RANDOM);
	ok = find_stack(at, &start, &end) && at < top && top < end;
	if (!ok)
		return false;

	/* A signal handler may come in between: the size is 0 until both values are known, so it finds no frame
	 * inside. */
	stack.size = 0;
	hp_barrier_handler();
	stack.low = start;
	hp_barrier_handler();
	stack.size = (top & ~(uintptr_t)(ALIGNED - 1)) - 2 * sizeof(uintptr_t) - start;
	stack.strangers = 0;
	return on_stack(at);
}

/* Half a round of Wang Yi's wyhash: a multiplication for each address. */
static uint64_t mix_address(uint64_t hash, uintptr_t address)
{
	__uint128_t product = (__uint128_t)(hash ^ address) * UINT64_C(0xa0761d6478bd642f);

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* A wrong link may lead to anyone's memory: the sanitizers must not look at these reads. */
__attribute__((no_sanitize("address"), no_sanitize("thread"))) uint64_t hp_site(const void *frame,
										 const void *return_address,
										 bool *ret_short)
{
	uint64_t hash = mix_address(UINT64_C(0xe7037ed1a0b428db), (uintptr_t)return_address & ADDRESS_MASK);
	uintptr_t at = (uintptr_t)frame, address;
	int depth = 1;

	if (HP_LIKELY(on_stack(at)) || learn_stack(at)) {
		for (; depth < HP_SITE_DEPTH; depth++) {
			uintptr_t next = ((const uintptr_t *)at)[0];

			if (next <= at || !on_stack(next) || next & (ALIGNED - 1))
				break;
			address = ((const uintptr_t *)next)[1];
#ifdef __aarch64__
			address &= ADDRESS_MASK; /* without its authentication code */
#endif
			if (!known_code(address) && !learn_code(address))
				break;
			hash = mix_address(hash, address);
			at = next;
		}
	}
	*ret_short = depth == 1;
	/* Half of the hash tells chains apart as well as all of it does. The other half tells a reader where the call
	 * is. */
	return (hash & ~(uint64_t)UINT32_MAX) | (uint32_t)(uintptr_t)return_address;
}
