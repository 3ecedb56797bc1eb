/*
 * Keys from many threads, while the lender wants its memory back and messages are carried by others. The device knows
 * which registrations are in use: one that is given back while a thread has a key of it is a failure.
 */
#include "lend/key.h"
#include "tests/unit/lend.h"

enum { USERS = 4, ROUNDS = 20000, FRAMES = 8 };

static pthread_mutex_t carrying = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool stop;
static _Atomic unsigned long hits, answers, refusals;

static int send_locked(void *arg, uint32_t peer, const void *msg, size_t len)
{
	struct node *n = arg;

	pthread_mutex_lock(&carrying);
	put(n->number, peer, msg, len);
	pthread_mutex_unlock(&carrying);
	return 0;
}

/* Use a key, and give it back. */
static void transfer(unsigned i, struct hugepin_far *key)
{
	uint32_t k = key->rkey & 0x7fffffff;

	atomic_fetch_add_explicit(&node[0].device.reg[k].uses, 1, memory_order_relaxed);
	EXPECT(works(0, key));
	atomic_fetch_sub_explicit(&node[0].device.reg[k].uses, 1, memory_order_relaxed);
	EXPECT_EQ(hugepin_lend_done(node[i].lend, key), 0);
}

static void ready_at_once(void *arg, void *token, int err, const struct hugepin_far *key)
{
	struct hugepin_far copy;

	(void)token;
	if (err) {
		EXPECT_EQ(err, -ENOBUFS);
		atomic_fetch_add_explicit(&refusals, 1, memory_order_relaxed);
		return;
	}
	atomic_fetch_add_explicit(&answers, 1, memory_order_relaxed);
	copy = *key;
	transfer(((struct node *)arg)->number, &copy);
}

static void *use_keys(void *number)
{
	unsigned i = 1 + (unsigned)(uintptr_t)number % 2, seed = (unsigned)(uintptr_t)number;
	struct hugepin_far key;

	for (int n = 0; n < ROUNDS; n++) {
		uint64_t addr = (uintptr_t)node[0].memory + (unsigned)rand_r(&seed) % FRAMES * 128 * KIB;
		int r = hugepin_lend_key(node[i].lend, 0, addr, 1, NULL, &key);

		EXPECT(r == 0 || r == 1 || r == -EBUSY);
		if (r == 1) {
			atomic_fetch_add_explicit(&hits, 1, memory_order_relaxed);
			transfer(i, &key);
		} else if (r < 0 || n % 4 == 0) {
			sched_yield();
		}
	}
	return NULL;
}

static bool carry(void)
{
	bool some = false;

	for (unsigned from = 0; from < 3; from++)
		for (unsigned to = 0; to < 3; to++) {
			struct message *m;

			pthread_mutex_lock(&carrying);
			m = take(from, to);
			pthread_mutex_unlock(&carrying);
			if (!m)
				continue;
			EXPECT_EQ(hugepin_lend_message(node[to].lend, from, m->bytes, m->len), 0);
			free(m);
			some = true;
		}
	return some;
}

static void *carry_all(void *unused)
{
	(void)unused;
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		if (!carry())
			sched_yield();
	return NULL;
}

/* The memory goes, piece by piece: what the cache tells comes from other threads. */
static void *want_back(void *unused)
{
	unsigned seed = 77;

	(void)unused;
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		EXPECT(hugepin_forget(node[0].memory + (unsigned)rand_r(&seed) % FRAMES * 128 * KIB, 4096) <= 0);
		for (unsigned i = 0; i < 3; i++)
			EXPECT_EQ(hugepin_lend_progress(node[i].lend), 0);
		usleep(200);
	}
	return NULL;
}

TEST(keys_are_good_while_they_are_used_whatever_other_threads_do)
{
	struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, FRAMES / 2 * 128 * KIB, 128 * KIB);
	pthread_t user[USERS], other[2];

	T_DOMAIN_BEGINS();
	T_THREADS_RUN(USERS + 2);
	attr.send = send_locked;
	attr.ready = ready_at_once;
	for (unsigned i = 0; i < 3; i++)
		open_node(i, i ? 0 : FRAMES * 128 * KIB, 64 * MIB, &attr);
	for (uintptr_t i = 0; i < USERS; i++)
		EXPECT_EQ(pthread_create(&user[i], NULL, use_keys, (void *)i), 0);
	EXPECT_EQ(pthread_create(&other[0], NULL, carry_all, NULL), 0);
	EXPECT_EQ(pthread_create(&other[1], NULL, want_back, NULL), 0);
	for (unsigned i = 0; i < USERS; i++)
		pthread_join(user[i], NULL);
	atomic_store_explicit(&stop, true, memory_order_relaxed);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(other[i], NULL);
	while (carry())
		;
	t_print("# %lu hits, %lu answers, %lu refusals\n", atomic_load(&hits), atomic_load(&answers),
		atomic_load(&refusals));
	EXPECT(atomic_load(&hits) && atomic_load(&answers));
	EXPECT(atomic_load_explicit(&node[0].wakes, memory_order_relaxed) > 0);
	for (unsigned i = 1; i < 3; i++) {
		EXPECT_EQ(hugepin_lend_close(node[i].lend), 0);
		close_empty(&node[i].device, node[i].domain);
	}
	for (unsigned i = 1; i < 3; i++)
		for (struct message *m; (m = take(i, 0));) {
			EXPECT_EQ(hugepin_lend_message(node[0].lend, i, m->bytes, m->len), 0);
			free(m);
		}
	close_node(0);
	forget_messages();
}

T_MAIN
