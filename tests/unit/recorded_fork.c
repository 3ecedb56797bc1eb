/*
 * What forks of a program leave in parent and child, as recorded (tests/recorded.h): what is copied, moved, kept out or
 * refused, with memory held, advised, locked, in the pool or not, and too little room for a copy.
 */
#include <sys/single_threaded.h>
#include <sys/wait.h>

#include "alloc/fork.h"
#include "base/thread.h"
#include "tests/unit/recorded_program.h"

static uint64_t *childs; /* shared: a hash of all that a child has noted */

/* Steps, and all that is known then. */
static void go_on(unsigned steps)
{
	for (unsigned i = 0; i < steps; i++)
		step();
	note_stats();
	k.on = false;
	note_state();
	k.on = true;
}

/* Of memory that this child has not, no more is asked for than its end. */
static void look_in_child(struct buffer *b)
{
	const size_t chunk = chunk_of(b->p), n = in_span(b->p) ? hp_chunk_extent(chunk) : 0;

	if (n && (hp_buffer_is_lost(chunk, n) || hp_madvise_any(chunk, n))) {
		note_pointer("lost", b->size, b->p);
		hugepin_free(b->p);
		b->p = NULL;
	} else {
		note("intact %d", intact(b, b->p, b->size));
	}
}

static void fork_once(void)
{
	int status = -1;
	pid_t pid;

	note("refused %d", hugepin_fork_refused_());
	*childs = 0;
	pid = fork();
	if (pid == 0) {
		memset(held, 0, sizeof held); /* no page is held in a child */
		record.hash = 0;
		k.fail_in = 0;
		go_on(0);
		for (struct buffer *b = buffers; b < buffers + BUFFERS; b++)
			if (b->p)
				look_in_child(b);
		go_on(4);
		*childs = record.hash;
		_exit(0);
	}
	k.fail_in = 0;
	waitpid(pid, &status, 0);
	note("child %d: %x, %016llx", pid > 0, status, (unsigned long long)*childs);
	go_on(0);
}

/* How the next fork goes is not the program's. */
static void change_world(void)
{
	static const long rooms[] = { 0, 64 << 10, 65 << 10, 100 << 10, 200 << 10, 4 << 20, 4 << 20, 4 << 20 };

	k.available = rooms[rnd(8)];
	k.pool = (long)rnd(30);
	k.populate_ns = rnd(4) ? 0 : 1000000 + rnd(3000000);
	k.written = (int)rnd(6);
	k.fail_in = fails_often && rnd(2) ? (long)rnd(20) : 0;
	note("room %ld, pool %ld, slow %llu, written %d, fails in %ld", k.available, k.pool,
	     (unsigned long long)k.populate_ns, k.written,
	     k.fail_in);
}

static void forks(const char *name, unsigned count)
{
	childs = (void *)raw(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	hp_config.extent_max = 8 << 20;
	hp_config.span = 512 << 20;
	most = 5 * MIB;
	EXPECT(hp_heap_start());
	k.on = true;
	for (unsigned i = 1; i <= count; i++) {
		go_on(30);
		change_world();
		fork_once();
		noted("%s %u", name, i);
	}
	k.on = false;
}

static void without_threads(void)
{
	k.pins = true;
	seed = 21;
	forks("alone", 10);
}

static void with_threads(bool scans)
{
	__libc_single_threaded = 0;
	k.threads = 2;
	k.scans = k.moves = scans;
	hp_config.decay_ms = 1; /* a copy is kept for the next fork */
	hp_heap_constructed = false; /* but no thread ticks */
}

static void threads(void)
{
	with_threads(false);
	seed = 22;
	forks("threads", 10);
}

static void threads_seen(void)
{
	with_threads(true);
	seed = 23;
	forks("threads that write", 10);
}

static void cow(void)
{
	hp_config.fork_mode = HP_FORK_COW;
	holds_often = true;
	seed = 24;
	forks("cow", 10);
}

static void held_pages(void)
{
	holds_often = true;
	seed = 25;
	forks("held", 12);
}

static void advised_pages(void)
{
	advises = true;
	holds_often = true;
	seed = 26;
	forks("advised", 12);
}

static void advised_thp(void)
{
	advises = true;
	holds_often = true;
	hp_config.pages = HP_PAGES_THP;
	seed = 27;
	forks("advised thp", 12);
}

static void failing(void)
{
	fails_often = true;
	holds_often = true;
	seed = 28;
	forks("failing", 20);
}

TEST(forks_copy_move_keep_out_and_refuse_as_recorded)
{
	static void (*const all[])(void) = { without_threads, threads, threads_seen, cow, held_pages, advised_pages,
	     advised_thp, failing };

	if (!HP_THREAD_BARE)
		SKIP("in this build no heap moves");
	if (sysconf(_SC_PAGESIZE) != HP_CHUNK)
		SKIP("the kernel's base pages are larger");
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		process(all[i]);
	EXPECT(as_recorded("fork"));
}

T_MAIN
