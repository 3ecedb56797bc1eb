/* link: hugepin uring */
/*
 * Random programs for any time. Threads allocate, resize and free memory. They map, discard and unmap foreign memory.
 * They pin all of it in domains of every policy, by held keys, too, and have the kernel read and write it as fixed
 * buffers. They fork,
 * purge and watch, while the pool of hugepages is resized under them. Every byte says whose it is. Bytes are compared
 * before their memory goes, in children, and behind the device. At the end of each round everything is given back, and
 * nothing may be left: no heap, no pin, no mapping, thread or descriptor, and no more of the pool than before.
 *
 *	soak [-s SEED] [-t SECONDS] [-r ROUNDS] [-p LOW,HIGH] [-w SECONDS]
 *
 * A seed gives each thread the same numbers. The order of the threads differs from run to run. -p: the pool gets
 * between LOW and HIGH pages, as root, on a pool that nobody else uses. -w: an operation that takes so long has hung.
 * With libhugepin-malloc.so preloaded half of the heap's buffers come from malloc. Without io_uring every domain locks
 * memory only.
 *
 * The soak does not call hugepin_forget, so nobody is told of unmapped memory. Some memory passes through: it is
 * mapped, pinned at once, read into and unmapped, in a domain that all threads share.
 *
 * A further thread changes the process meanwhile, and each child of fork changes itself (changes.h).
 */
#include "forks.h"
#include "pool.h"
#include "remains.h"

#include <getopt.h>
#include <limits.h>

/* ------------------------------------------------------------------ the threads */

static void step(struct worker *w)
{
	const uint64_t r = rand_next(&w->rand);
	struct slot *s = &slots[r % SLOTS];
	int id;

	if (w->flight.slot && w->flight.hops-- == 0) {
		w->doing = "landing";
		flight_land(w);
	}
	if (COMMON->has_ring && (r >> 25 & 3) == 0) {
		pass_through(w);
		return;
	}
	if (r >> 16 & 511) {
		if (pthread_mutex_trylock(&s->lock))
			return;
		if (!s->p) {
			w->doing = "allocating";
			slot_fill(s, &w->rand);
		} else if (w->place->has_ring && r >> 32 & 1) {
			if (!w->flight.slot && (r >> 33) % 16 == 0) {
				w->doing = "starting a read";
				flight_start(w, s);
				return; /* with the lock, if the read has begun */
			}
			w->doing = "reading and writing";
			slot_io(w, s);
		} else {
			switch ((r >> 40) % 8) {
			case 0:
			case 1:
			case 2:
			case 3:
				w->doing = "pinning";
				slot_pin(s, &w->rand);
				break;
			case 4:
				w->doing = "resizing";
				slot_resize(s, &w->rand);
				w->doing = "hiding";
				slot_hide(s, &w->rand);
				break;
			case 5:
				if (s->foreign) {
					w->doing = "discarding";
					foreign_discard(s, &w->rand);
					break;
				} /* fall through */
			default:
				w->doing = "freeing";
				slot_drop(s);
			}
		}
		pthread_mutex_unlock(&s->lock);
		return;
	}
	switch ((r >> 40) % 4) {
	case 0:
		w->doing = "purging";
		hugepin_purge();
		break;
	case 1:
		w->doing = "watching";
		if (!hugepin_watch(leaving, NULL, &id)) {
			hugepin_purge();
			EXPECT_EQ(hugepin_unwatch(id), 0);
		}
		break;
	default:
		w->doing = "forking";
		if (FORKS)
			fork_once(w);
	}
}

static void *change_on(void *w_)
{
	struct worker *w = w_;

	for (; !stop; w->done++) {
		pthread_mutex_lock(&changing);
		change(w);
		pthread_mutex_unlock(&changing);
		sleep_ms((long)(rand_next(&w->rand) % 20));
	}
	for (int i = 0; i < LODGERS; i++)
		lodger_leaves(&lodgers[i]);
	if (at_last && !SANITIZED) /* descriptors that changes put there, and the library's beside them */
		syscall(SYS_close_range, HIGH, ~0u, 0);
	w->doing = NULL;
	return NULL;
}

static void *work(void *w_)
{
	struct worker *w = w_;

	for (; !stop; w->done++)
		step(w);
	w->doing = "landing at the end";
	if (w->flight.slot)
		flight_land(w);
	w->doing = NULL;
	return NULL;
}

/* ------------------------------------------------------------------ rounds */

/* Policies and budgets of the places. A place's ring has few slots. */
static const struct {
	uint32_t policy;
	bool ring;
	uint64_t budget;
} kinds[THREADS + 1] = {
	{ HUGEPIN_POLICY_ARENA, true, UINT64_MAX },  { HUGEPIN_POLICY_LRU, true, 64 * MIB },
	{ HUGEPIN_POLICY_PREDICT, true, 96 * MIB },  { HUGEPIN_POLICY_CF11, true, 96 * MIB },
	{ HUGEPIN_POLICY_NONE, true, 0 },	     { HUGEPIN_POLICY_ARENA, true, 128 * MIB },
	{ HUGEPIN_POLICY_LRU, false, 32 * MIB },     { HUGEPIN_POLICY_PREDICT, false, 0 },
	{ HUGEPIN_POLICY_LRU, true, UINT64_MAX },
};

static void place_open(int i)
{
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = kinds[i].policy,
					   .pinned_bytes_max = kinds[i].budget };
	struct place *p = &places[i];

	p->has_ring = kinds[i].ring && io_uring_queue_init(8, &p->ring, 0) == 0;
	EXPECT_EQ(p->has_ring ? hugepin_uring_open(&p->ring, 0, 96, &attr, &p->domain) :
				hugepin_domain_open(hugepin_mlock(), NULL, &attr, &p->domain),
		  0);
}

static void place_close(struct place *p)
{
	struct hugepin_domain_stats s;

	hugepin_domain_stats(p->domain, &s, sizeof s);
	EXPECT_EQ(s.retired, 0);
	EXPECT_EQ(s.failed, 0);
	EXPECT_EQ(hugepin_domain_close(p->domain), 0);
	if (p->has_ring)
		io_uring_queue_exit(&p->ring);
}

/* Each kind of operation has happened. */
static bool all_done(void)
{
	return count_pins && count_left && (count_forks || !FORKS);
}

/* Each thread has to finish an operation within option.stuck seconds, or to end. */
static void look_at_threads(void)
{
	static struct {
		unsigned long done;
		time_t since;
	} seen[THREADS + 1];
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	for (int i = 0; i <= CHANGER; i++) {
		if (!workers[i].doing || workers[i].done != seen[i].done) {
			seen[i].done = workers[i].done;
			seen[i].since = now.tv_sec;
		} else if (now.tv_sec - seen[i].since > option.stuck) {
			T_FAIL("thread %d has been %s for %d seconds", i, workers[i].doing, option.stuck);
			for (int k = 0; k <= CHANGER; k++)
				t_print("# thread %d: %s\n", k, workers[k].doing ? workers[k].doing : "ended");
			abort(); /* for a debugger */
		}
	}
}

/* Let the threads run: on a slow machine longer, until each kind of operation has happened. */
static void rest(double seconds, long low, long high, uint64_t *rand)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	const double end = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec + seconds;
	while (((double)now.tv_sec + 1e-9 * (double)now.tv_nsec < end || !all_done()) && !t_failures) {
		if (high)
			pool_resize_between(low, high, rand);
		sleep_ms(20 + (long)(rand_next(rand) % 300));
		look_at_threads();
		clock_gettime(CLOCK_MONOTONIC, &now);
	}
}

static void round_run(int round, double seconds, long low, long high)
{
	uint64_t rand = option.seed * 4711 + (uint64_t)round + 1;

	stop = false;
	place_open(THREADS);
	for (int i = 0; i <= CHANGER; i++) {
		struct worker *w = &workers[i];

		if (i < THREADS)
			place_open(i);
		w->rand =
			(option.seed * 1000 + (uint64_t)(round * (THREADS + 1) + i)) * UINT64_C(0x9e3779b97f4a7c15) | 1;
		w->place = &places[i];
		w->done = 0;
		EXPECT_EQ(pipe2(w->pipe, O_CLOEXEC), 0);
	}
	look_at_threads(); /* their time begins */
	for (int i = 0; i <= CHANGER; i++)
		EXPECT_EQ(pthread_create(&workers[i].thread, NULL, i == CHANGER ? change_on : work, &workers[i]), 0);
	rest(seconds * 0.9, low, high, &rand);
	at_last = round == option.rounds;
	rest(seconds * 0.1, low, high, &rand);
	stop = true;
	for (int i = CHANGER; i >= 0; i--) /* first the worker that signals the others */
		while (pthread_tryjoin_np(workers[i].thread, NULL)) {
			sleep_ms(20);
			look_at_threads();
		}
	for (int i = 0; i < SLOTS; i++)
		slot_drop(&slots[i]);
	for (int i = 0; i <= CHANGER; i++) {
		place_close(&places[i]);
		close(workers[i].pipe[0]);
		close(workers[i].pipe[1]);
	}
}

TEST(every_byte_is_its_owners_and_nothing_is_left)
{
	const struct sigaction at_end = { .sa_handler = put_pool_back, .sa_flags = (int)(SA_RESETHAND | SA_NODEFER) };
	const struct pool pool = pool_now();
	struct hugepin_extent x;
	void *p = hide(malloc(MIB));

	alarm((unsigned)option.seconds + 2 * t_seconds());
	pool_pages = file_number(POOL_DIR "nr_hugepages");
	for (const int *s = (const int[]){ SIGALRM, SIGABRT, SIGHUP, SIGINT, SIGTERM, 0 }; option.high && *s; s++)
		sigaction(*s, &at_end, NULL);
	preloaded = hugepin_extent(p, &x, sizeof x) > 0;
	free(p);
	for (int i = 0; i < SLOTS; i++)
		pthread_mutex_init(&slots[i].lock, NULL);
	pthread_mutex_init(&COMMON->lock, NULL);
	changes_begin();
	for (int i = 0; i <= CHANGER; i++) {
		workers[i].file = memfd_create("soak", MFD_CLOEXEC);
		workers[i].buffer = foreign_map(IO_MAX + FLIGHT_BYTES);
		EXPECT(workers[i].file >= 0 && workers[i].buffer);
	}
	t_print("# seed %lu, %.0f s in %d rounds, %s, a pool of %ld pages%s\n", (unsigned long)option.seed,
		option.seconds, option.rounds, preloaded ? "under the drop-in" : "by the functions", pool_pages,
		option.high ? ", resized" : "");

	/* What is made once is made: threads for the service, for the kernel's events, and a sanitizer's; tables,
	 * descriptors. */
	const struct left one = left_now(), once = {
		.threads = one.threads + (SANITIZED ? 4 : 3), .descriptors = one.descriptors + 8, .heap_extents = 64,
		.mappings = LONG_MAX / 2, .resident_kib = LONG_MAX / 2,
	};

	round_run(0, 1, 0, 0);
	struct left before = left_check(&once);

	before.threads = once.threads; /* they come and go */
	for (int i = 1; i <= option.rounds && !t_failures; i++) {
		round_run(i, option.seconds / option.rounds, option.low, option.high);
		left_check(&before);
		t_print("# round %d: %lu pins, %lu refused, %lu transfers, %lu by held keys, %lu keys ended, %lu passed, %lu forks, %lu refused, "
			"%lu extents left, %lu hidden, %lu ENOMEM\n",
			i, count_pins, count_refused, count_io, count_keys, count_keys_ended, count_passed, count_forks, count_forks_refused,
			count_left, count_hidden, count_nomem);
	}
	EXPECT(all_done() || t_failures);
	changes_end();
	if (option.high) {
		EXPECT(pool_resize(pool_pages));
		pool_check(pool);
	}
}

static _Noreturn void usage(void)
{
	fputs("usage: soak [-s SEED] [-t SECONDS] [-r ROUNDS] [-p LOW,HIGH] [-w SECONDS]\n", stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	int letter;

	option.seed = (uint64_t)time(NULL) % 1000000;
	while ((letter = getopt(argc, argv, "s:t:r:p:w:")) != -1)
		if (letter == 's')
			option.seed = strtoull(optarg, NULL, 10);
		else if (letter == 't')
			option.seconds = strtod(optarg, NULL);
		else if (letter == 'r')
			option.rounds = atoi(optarg);
		else if (letter == 'w')
			option.stuck = atoi(optarg);
		else if (letter != 'p' || sscanf(optarg, "%ld,%ld", &option.low, &option.high) != 2)
			usage();
	if (optind != argc || option.rounds < 1 || option.stuck < 1 || !(option.seconds > 0) || option.low < 0 || option.high < option.low)
		usage();
	return t_run(1, argv);
}
