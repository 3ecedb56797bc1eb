/*
 * Call sites: which callers are told apart, and that no frame pointer, whatever is in it, is followed to a fault.
 */
#include "reg/site.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "tests/t.h"
#include "tests/unit/kernel.h"

/* With a frame pointer, whatever the compiler was told; and no tail call. */
#define FRAMED __asm__ volatile("" : : "r"(__builtin_frame_address(0)) : "memory")

struct site {
	uint64_t hash;
	bool is_short;
};

__attribute__((noinline)) static struct site here(void)
{
	struct site s;

	s.hash = HP_SITE(&s.is_short);
	return s;
}

#define CALLER(name, callee)                                                                                           \
	__attribute__((noinline)) static struct site name(void)                                                        \
	{                                                                                                              \
		__asm__ volatile("# " #name); /* else equal ones become one */                                         \
		FRAMED;                                                                                                \
		struct site s = callee();                                                                              \
		FRAMED;                                                                                                \
		return s;                                                                                              \
	}
CALLER(inner, here)
CALLER(send, inner)
CALLER(receive, inner)
CALLER(exchange, send)
CALLER(broadcast, send)
CALLER(iterate, exchange)
CALLER(settle, exchange)
CALLER(first_step, iterate)
CALLER(last_step, iterate)

enum { STACK = 1 << 20 }; /* of a thread whose memory is ours; what follows it in its mapping is as large */

/* A link made by hand: as a caller would have left it. */
struct frame {
	uintptr_t caller, address;
} __attribute__((aligned(16)));

#define ADDRESS ((uintptr_t)here) /* is code */

__attribute__((noinline)) static struct site follow(uintptr_t caller)
{
	struct frame f = { caller, ADDRESS };
	struct site s;

	__asm__ volatile("" : : "r"(&f) : "memory");
	s.hash = hp_site(&f, (void *)ADDRESS, &s.is_short);
	return s;
}

/* *ret: of the address alone, as a thread finds it that is on no stack of its own. */
static uint64_t alone(void)
{
	static struct frame elsewhere;
	bool is_short;

	return hp_site(&elsewhere, (void *)ADDRESS, &is_short);
}

static bool cut(uintptr_t caller)
{
	struct site s = follow(caller);

	return s.is_short && s.hash == alone();
}

static long reads; /* of the list of mappings */

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r = raw(nr, a, b, c, d, e, f);

	reads += nr == SYS_openat && !strcmp((const char *)b, "/proc/self/maps");
	return result_of(r);
}

/* Powers of two, and multiples of 4096, in (from, to]. */
static long looks(unsigned from, unsigned to)
{
	long n = 0;

	for (unsigned i = from + 1; i <= to; i++)
		n += !(i & (i - 1)) || i % 4096 == 0;
	return n;
}

/* A main thread's stack grows: as deep as the test goes it is before its bounds are learnt. */
__attribute__((noinline)) static void grow_stack(void)
{
	volatile char deep[1 << 18];

	for (size_t i = 0; i < sizeof deep; i += 4096)
		deep[i] = 1;
}

/* The first of all. */
TEST(mappings_are_read_for_the_first_the_second_and_the_fourth_stranger_and_then_less_and_less_often)
{
	static struct frame elsewhere;
	struct frame outer = { 0, 65536 }; /* which is no code */
	bool is_short;
	unsigned from = 0;

	grow_stack();
	EXPECT(!iterate().is_short); /* learns the stack's bounds, and for the first address that of code */
	EXPECT_EQ(reads, 2);
	for (unsigned to = 1; to < 40000; to += to < 70 ? 1 : 977) { /* addresses; the first was such a one */
		reads = 0;
		for (unsigned i = from; i < to; i++)
			follow((uintptr_t)&outer);
		EXPECT_EQ(reads, looks(from + 1, to + 1));
		from = to;
	}
	from = 0;
	for (unsigned to = 1; to < 40000; to += to < 70 ? 1 : 977) { /* frames elsewhere: none since the bounds are known */
		reads = 0;
		for (unsigned i = from; i < to; i++)
			hp_site(&elsewhere, (void *)ADDRESS, &is_short);
		EXPECT_EQ(reads, looks(from, to));
		from = to;
	}
	reads = 0;
	for (int i = 0; i < 100; i++)
		iterate();
	EXPECT_EQ(reads, 0);
}

TEST(callers_of_one_function_are_told_apart)
{
	struct site a, b;

	FRAMED;
	a = send();
	b = receive();
	EXPECT(!a.is_short && !b.is_short);
	EXPECT(a.hash != b.hash);
	a = exchange();
	b = broadcast();
	EXPECT(a.hash != b.hash);
}

TEST(one_place_has_one_number)
{
	uint64_t first = 0;

	for (int i = 0; i < 3; i++) {
		struct site s = iterate();

		EXPECT(!i || s.hash == first);
		first = s.hash;
	}
}

TEST(four_return_addresses_count)
{
	EXPECT(iterate().hash != settle().hash);
	EXPECT(first_step().hash == last_step().hash);
}

TEST(links_on_the_own_stack_are_followed)
{
	struct frame outer[4] = { { 0, ADDRESS + 1 }, { 0, ADDRESS + 2 }, { 0, ADDRESS + 3 }, { 0, ADDRESS + 4 } };
	uint64_t seen[5];

	for (int i = 0; i < 4; i++) {
		__asm__ volatile("" : : : "memory");
		struct site s = follow((uintptr_t)outer);

		EXPECT(!s.is_short);
		seen[i] = s.hash;
		if (i < 3)
			outer[i].caller = (uintptr_t)&outer[i + 1];
	}
	EXPECT(seen[0] != alone());
	EXPECT(seen[1] != seen[0] && seen[2] != seen[1] && seen[2] != seen[0]);
	EXPECT(seen[3] == seen[2]); /* one too many */
}

TEST(what_cannot_be_a_return_address_ends_the_chain)
{
	struct frame outer = { 0, 0 };
	static int data;
	const uintptr_t wrong[] = { 0,	    1,		    4096,	       (uintptr_t)&outer,    (uintptr_t)&data,
				    65536, (uintptr_t)-1, (uintptr_t)1 << 63, 0x3ff0000000000000, (uintptr_t)stdout };

	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
#ifdef __aarch64__
		if (wrong[i] >> 48)
			continue; /* may be an authentication code */
#endif
		outer.address = wrong[i];
		if (!cut((uintptr_t)&outer))
			T_FAIL("%#lx was taken for a return address", (unsigned long)wrong[i]);
	}
}

TEST(links_that_are_not_aligned_are_not_followed)
{
	char words[64] __attribute__((aligned(16)));

	for (size_t by = 1; by < 8; by++) {
		memcpy(words + by, &(struct frame){ 0, ADDRESS }, sizeof(struct frame));
		EXPECT(cut((uintptr_t)words + by));
	}
}

TEST(a_frame_elsewhere_does_not_lead_to_the_stack)
{
	struct frame outer = { 0, ADDRESS };
	static struct frame elsewhere;
	bool is_short;

	elsewhere.caller = (uintptr_t)&outer;
	__asm__ volatile("" : : "r"(&outer) : "memory");
	EXPECT(!follow((uintptr_t)&outer).is_short);
	EXPECT(hp_site(&elsewhere, (void *)ADDRESS, &is_short) == alone());
	EXPECT(is_short);
}

/* The bounds of the mapping that `at` is in, told by another reader of the file. */
static void mapping(uintptr_t at, uintptr_t *ret_start, uintptr_t *ret_end)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned long start, end;
	char line[4096];

	*ret_start = *ret_end = 0;
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= at && at < end) {
			*ret_start = start;
			*ret_end = end;
		}
	if (f)
		fclose(f);
}

/* All kinds of garbage that a frame pointer may be. */
static void *try_garbage(void *unused)
{
	struct frame cycle[2] = { { 0, ADDRESS }, { 0, ADDRESS } };
	struct frame self = { 0, ADDRESS };
	uintptr_t start, end, here_at = (uintptr_t)&self;
	char *unmapped = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t seed = 7;

	FRAMED;
	EXPECT(!here().is_short);
	munmap(unmapped, 4096);
	EXPECT(cut((uintptr_t)unmapped));
	EXPECT(cut(0));
	EXPECT(cut(1));
	EXPECT(cut((uintptr_t)-1));
	EXPECT(cut((uintptr_t)-16));
	EXPECT(cut((uintptr_t)1 << 63));

	mapping(here_at, &start, &end);
	EXPECT(start && end);
	for (uintptr_t below = 0; below <= 64; below++)
		cut(end - below); /* what is there is not ours: that it ends well is all */
	EXPECT(cut(end) && cut(end - 1) && cut(end - 8));
	EXPECT(cut(end + 16) && cut(end + 4096));
	EXPECT(cut(start) && cut(start - 16) && cut(start - 4096));

	/* Misaligned, downwards, to itself, round in a circle. */
	EXPECT(cut(here_at + 1) && cut(here_at + 4));
	EXPECT(cut(here_at - 4096));
	self.caller = here_at;
	__asm__ volatile("" : : : "memory");
	EXPECT(!follow(here_at).is_short);
	cycle[0].caller = (uintptr_t)&cycle[1];
	cycle[1].caller = (uintptr_t)&cycle[0];
	__asm__ volatile("" : : : "memory");
	EXPECT(!follow((uintptr_t)cycle).is_short);

	for (int i = 0; i < 200000; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		follow(here_at - (1 << 20) + ((seed >> 40) & 0x1ffff8));
		follow(seed);
	}
	return unused;
}

TEST(garbage_is_not_followed_on_the_main_thread)
{
	try_garbage(NULL);
}

static void on_thread(void *(*run)(void *), void *arg, size_t stack_size)
{
	pthread_attr_t attr;
	pthread_t t;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, stack_size);
	if (EXPECT(pthread_create(&t, &attr, run, arg) == 0))
		pthread_join(t, NULL);
	pthread_attr_destroy(&attr);
}

TEST(garbage_is_not_followed_on_another_thread)
{
	on_thread(try_garbage, NULL, 1 << 20);
}

static void *site_of_thread(void *ret_site)
{
	*(struct site *)ret_site = iterate();
	return NULL;
}

TEST(threads_give_one_place_one_number)
{
	T_THREADS_RUN(2);
	struct site own = iterate(), other = { 0, true };

	for (int i = 0; i < 4; i++) {
		on_thread(site_of_thread, &other, 1 << 17);
		EXPECT(!other.is_short);
		EXPECT(other.hash == own.hash);
	}
}

/* A stack of a thread in the middle of one mapping, with what follows it gone: the C library's own cannot be told to. */
TEST(what_follows_a_stack_in_its_mapping_is_not_followed)
{
	char *m = mmap(NULL, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t attr;
	pthread_t t;

	pthread_attr_init(&attr);
	EXPECT_EQ(pthread_attr_setstack(&attr, m, STACK), 0);
	if (EXPECT(pthread_create(&t, &attr, try_garbage, NULL) == 0))
		pthread_join(t, NULL);
	pthread_attr_destroy(&attr);
	munmap(m, 2 * STACK);
}

static struct {
	char *after;
	struct frame *beyond;
} gap;

static void *follow_into_gap(void *unused)
{
	EXPECT(!exchange().is_short); /* the bounds are learnt, with all of the mapping there */
	munmap(gap.after, STACK);
	EXPECT(cut((uintptr_t)gap.beyond));
	return unused;
}

TEST(a_neighbour_of_the_stack_may_be_unmapped)
{
	char *m = mmap(NULL, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t attr;
	pthread_t t;

	gap.after = m + STACK;
	gap.beyond = (struct frame *)(m + STACK + 4096);
	gap.beyond->address = ADDRESS;
	pthread_attr_init(&attr);
	EXPECT_EQ(pthread_attr_setstack(&attr, m, STACK), 0);
	if (EXPECT(pthread_create(&t, &attr, follow_into_gap, NULL) == 0))
		pthread_join(t, NULL);
	pthread_attr_destroy(&attr);
	munmap(m, STACK);
}

__attribute__((noinline)) static struct site deep(int levels)
{
	char room[65536];
	struct site s;

	__asm__ volatile("" : : "r"(room) : "memory");
	FRAMED;
	if (levels)
		s = deep(levels - 1);
	for (int i = 0; !levels && i < 4096 && (s = iterate()).is_short; i++)
		; /* others have been on strange stacks before, so it is looked at now and then only */
	FRAMED;
	return s;
}

TEST(a_main_stack_that_grows_stays_its_own)
{
	struct site s = iterate();

	EXPECT(!s.is_short);
	EXPECT(!deep(60).is_short);
	EXPECT(deep(60).hash == s.hash);
}

TEST(a_stack_in_several_mappings_is_one_stack)
{
	char buffer[16384];
	uintptr_t start, end, split_end, page = ((uintptr_t)buffer + 4096) & ~(uintptr_t)4095;

	mapping((uintptr_t)buffer, &start, &end);
	EXPECT_EQ(madvise((void *)page, 4096, MADV_DONTFORK), 0); /* as verbs' support of fork does */
	mapping((uintptr_t)buffer, &start, &split_end);
	EXPECT(split_end < end);
	EXPECT(!deep(90).is_short); /* deeper than ever, so that the stack is looked at anew */
	EXPECT_EQ(madvise((void *)page, 4096, MADV_DOFORK), 0);
}

static struct {
	ucontext_t main, fiber;
	struct frame *above;
	struct site site, broken;
} fiber;

static void in_fiber(void)
{
	fiber.site = exchange();
	for (int i = 0; i < 100; i++)
		fiber.broken = follow((uintptr_t)fiber.above);
	swapcontext(&fiber.fiber, &fiber.main);
}

static void *run_fiber(void *unused)
{
	enum { SIZE = 1 << 17 };
	char *m = mmap(NULL, SIZE + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct site before = iterate();

	mprotect(m + SIZE, 4096, PROT_NONE);
	fiber.above = (struct frame *)(m + SIZE);
	getcontext(&fiber.fiber);
	fiber.fiber.uc_stack.ss_sp = m;
	fiber.fiber.uc_stack.ss_size = SIZE;
	makecontext(&fiber.fiber, in_fiber, 0);
	swapcontext(&fiber.main, &fiber.fiber);
	EXPECT(fiber.site.is_short);
	EXPECT(fiber.broken.is_short && fiber.broken.hash == alone());
	EXPECT(iterate().hash == before.hash); /* and back */
	munmap(m, SIZE + 4096);
	return unused;
}

TEST(in_a_fiber_the_return_address_is_all)
{
	run_fiber(NULL);
	on_thread(run_fiber, NULL, 1 << 18);
}

static void *start_in_fiber(void *unused)
{
	struct site s;

	run_fiber(NULL);
	for (int i = 0; i < 64; i++)
		s = exchange();
	EXPECT(!s.is_short);
	return unused;
}

TEST(a_thread_that_was_in_fibers_learns_its_stack)
{
	on_thread(start_in_fiber, NULL, 1 << 18);
}

static void *strangers_first(void *unused)
{
	struct site s = { 0, true };

	for (int i = 0; i < 100000; i++)
		alone();
	for (int i = 0; i < 4096 && s.is_short; i++)
		s = exchange();
	EXPECT(!s.is_short);
	return unused;
}

TEST(however_long_it_was_in_them)
{
	on_thread(strangers_first, NULL, 1 << 18);
}

static void *without_files(void *unused)
{
	struct rlimit few = { 0, 0 }, many;
	struct site s;

	getrlimit(RLIMIT_NOFILE, &many);
	few.rlim_max = many.rlim_max;
	setrlimit(RLIMIT_NOFILE, &few);
	errno = 77;
	EXPECT(exchange().is_short);
	EXPECT_EQ(errno, 77);
	setrlimit(RLIMIT_NOFILE, &many);
	s = exchange();
	EXPECT(!s.is_short);
	return unused;
}

TEST(without_the_stacks_bounds_the_return_address_is_all)
{
	on_thread(without_files, NULL, 1 << 18);
}

static volatile sig_atomic_t handled;
static struct site in_signal;

static void on_signal(int sig)
{
	(void)sig;
	errno = 77;
	in_signal = exchange();
	handled = errno;
}

static void *raise_here(void *unused)
{
	raise(SIGUSR1);
	return unused;
}

TEST(on_the_signals_stack_the_return_address_is_all)
{
	static char alternate[65536];
	stack_t on = { .ss_sp = alternate, .ss_size = sizeof alternate }, off = { .ss_flags = SS_DISABLE };
	struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };

	sigaction(SIGUSR1, &a, NULL);
	sigaltstack(&on, NULL);
	raise(SIGUSR1);
	EXPECT(in_signal.is_short);
	EXPECT_EQ(handled, 77);
	sigaltstack(&off, NULL);
	a.sa_flags = 0;
	sigaction(SIGUSR1, &a, NULL);
	raise(SIGUSR1);
	EXPECT(!in_signal.is_short);
	on_thread(raise_here, NULL, 1 << 17); /* the first call of a thread, in a handler */
	EXPECT(!in_signal.is_short);
	EXPECT_EQ(handled, 77);
	signal(SIGUSR1, SIG_DFL);
}

/* What a function does that was compiled without frame pointers: `garbage` in the register, and a call. */
__attribute__((unused)) struct site with_register(uintptr_t garbage, struct site (*call)(void));
#if defined(__x86_64__)
__asm__(".text\n.type with_register,@function\nwith_register:\n\tpush %rbp\n\tmov %rdi, %rbp\n\tcall *%rsi\n\tpop %rbp\n\tret\n"
	".size with_register,.-with_register\n");
#elif defined(__aarch64__)
__asm__(".text\n.type with_register,%function\nwith_register:\n\tstp x29, x30, [sp, -16]!\n\tmov x29, x0\n\tblr x1\n"
	"\tldp x29, x30, [sp], 16\n\tret\n.size with_register,.-with_register\n");
#endif

TEST(callers_without_frame_pointers_leave_the_return_address)
{
	uintptr_t start, end;
	char *unmapped = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct site s;

	munmap(unmapped, 4096);
	mapping((uintptr_t)&start, &start, &end);
	const uintptr_t garbage[] = { 0, 1, (uintptr_t)unmapped, (uintptr_t)-1, end - 8, end - 16, end,
				      start - 16, (uintptr_t)&s + 1 };

	for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
		s = with_register(garbage[i], here);
		EXPECT(s.is_short);
		s = with_register(garbage[i], exchange); /* broken farther out */
		EXPECT(!s.is_short);
	}
}

TEST(a_child_of_fork_goes_on)
{
	uint64_t before = iterate().hash;
	pid_t child = fork();
	int status = -1;

	if (!child)
		_exit(iterate().hash == before ? 0 : 1);
	waitpid(child, &status, 0);
	EXPECT_EQ(status, 0);
}

T_MAIN
