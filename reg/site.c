/*
 * Call sites by frame pointers. x86-64 and AArch64 both put the caller's frame pointer and the return address side by
 * side, and the frame pointer points at them: they are a chain through the stack. In code that was compiled without
 * frame pointers the register holds any value. So a link is followed only upwards, and only within the stack that is
 * known to be this thread's.
 *
 * That memory must stay mapped for as long as the thread runs. The bounds of its mapping do not prove this: the kernel
 * merges neighbours, and what follows a thread's stack in one mapping may belong to anyone. The proof is two addresses
 * on one stack: a frame that is live, and something that stands at the top of the stack. The C library puts a thread's
 * static TLS there. For the main thread it is the random bytes whose address the kernel tells (AT_RANDOM).
 *
 * One case is not recognized: a fiber's stack that lies below the thread's in the same mapping, without a guard
 * between.
 */
#include "reg/site.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/barrier.h"
#include "base/proc.h"

#ifdef __x86_64__
enum { ALIGNED = 16, ADDRESS_BITS = 47 };
#else
enum { ALIGNED = 8, ADDRESS_BITS = 48 };
#endif
#define ADDRESS_MASK (((uintptr_t)1 << ADDRESS_BITS) - 1)
enum { CODE_MAX = 512, LINE = 512 };
#define LOOK_AT_LEAST 4096 /* one in so many strangers is looked at, at least */

/* Of this thread. A frame in [low, low + size) is its own. So is everything above it up to the end, and two words
 * more. */
static HP_TLS struct {
	uintptr_t low, size;
	uint32_t strangers; /* frames seen elsewhere, since the bounds were last learnt */
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

/* The mapping of `at`, with those that follow it without a gap and can be read: mlock(2) and others split mappings. */
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

/* Where code lies. Without frame pointers the register often points at the caller's variables. What stands there is no
 * return address, and it changes from call to call. Nothing is read through these bounds. So another thread may write
 * them meanwhile: at worst one chain ends too early, once. */
static struct {
	_Atomic bool taken; /* by a thread that reads the mappings */
	_Atomic uint32_t strangers; /* addresses outside since they were last read */
	_Atomic uint32_t count;
	_Atomic uintptr_t start[CODE_MAX], end[CODE_MAX];
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

/* The mappings are read anew for the first stranger, the second, the fourth and so on: it may be of a library that was
 * loaded since. */
static HP_COLD bool learn_code(uintptr_t address)
{
	uint32_t nth = atomic_fetch_add_explicit(&code.strangers, 1, memory_order_relaxed) + 1, count = 0;
	int saved_errno = errno;
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
	errno = saved_errno;
	return known_code(address);
}

/* False: `at` is not on this thread's stack, as far as can be told. The mappings are read for the first stranger, the
 * second, the fourth and so on. A main thread's stack grows, and a thread may begin in a fiber; but a thread that stays
 * in one pays little. */
static HP_COLD bool learn_stack(uintptr_t at)
{
	uint32_t nth = ++stack.strangers;
	uintptr_t start = 0, end = 0, top = (uintptr_t)&stack;
	int saved_errno = errno;
	bool ok;

	if (nth & (nth - 1) && nth % LOOK_AT_LEAST)
		return false;
	/* A main thread's TLS is a mapping of the loader's, which may merge with anything. */
	if (syscall(SYS_gettid) == getpid())
		top = getauxval(AT_RANDOM);
	ok = find_stack(at, &start, &end) && at < top && top < end;
	errno = saved_errno;
	if (!ok)
		return false;

	/* For a signal handler that comes here, nothing is inside until both are known. */
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
