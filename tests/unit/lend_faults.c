/*
 * Lends without memory, and in a child of fork: each allocation, registration and message fails once.
 */
#include <sys/wait.h>

#include "tests/unit/alloc_fails.h"
#include "tests/unit/lend.h"

static unsigned errors;

/* Note an error of what failed for want of memory. A peer to which a message could not be kept is lost. */
static bool went(int r)
{
	if (r < 0)
		errors++;
	EXPECT(r >= 0 || r == -ENOMEM || r == -ENOTCONN);
	return r >= 0;
}

/* All that allocates: keys, questions that wait and carry, messages that are kept, tables that grow, news. */
static void scenario(void)
{
	struct hugepin_far key;

	for (unsigned i = 0; i < 24; i++) {
		char *at = node[0].memory + i % 12 * 128 * KIB;

		node[1].send_error = i % 5 == 4 ? -EAGAIN : 0;
		node[0].send_error = i % 7 == 6 ? -EAGAIN : 0;
		if (i % 3)
			went(hugepin_lend_key(node[1 + i % 2].lend, 0, (uintptr_t)at, 1, &place[0], &key) == 1 ?
				     hugepin_lend_done(node[1 + i % 2].lend, &key) :
				     0);
		else
			went(hugepin_lend_put(node[1 + i % 2].lend, 0, (uintptr_t)at, "bytes", 5, &place[0], &key) == 1
				     ? hugepin_lend_done(node[1 + i % 2].lend, &key)
				     : 0);
		for (unsigned k = 0; k < 3; k++)
			for (unsigned to = 0; to < 3; to++)
				while (queue[k][to].count)
					went(deliver(k, to));
		for (unsigned k = 1; k < 3; k++) {
			for (; node[k].answers; node[k].answers--)
				if (!node[k].answer[node[k].answers - 1].err)
					went(hugepin_lend_done(node[k].lend, &node[k].answer[node[k].answers - 1].key));
			went(hugepin_lend_progress(node[k].lend));
		}
		went(hugepin_lend_progress(node[0].lend));
	}
	node[0].send_error = node[1].send_error = 0;
}

/* Nodes 1 and 2 may be lost to 0, or 0 to them. */
static void end_scenario(void)
{
	for (unsigned k = 1; k < 3; k++) {
		EXPECT_EQ(hugepin_lend_gone(node[k].lend, 0), 0);
		EXPECT_EQ(hugepin_lend_gone(node[0].lend, k), 0);
		for (; node[k].answers; node[k].answers--)
			if (!node[k].answer[node[k].answers - 1].err)
				EXPECT_EQ(hugepin_lend_done(node[k].lend, &node[k].answer[node[k].answers - 1].key), 0);
	}
	forget_messages();
	for (unsigned k = 0; k < 3; k++)
		close_node(k);
}

TEST(each_allocation_may_fail_once)
{
	unsigned last = 0;

	if (!CAN_FAIL)
		SKIP("the sanitizer's allocator cannot fail on request");
	for (long n = 1; !t_failures; n++) {
		open_nodes(3, HUGEPIN_LEND_POOL, 2 * MIB, 512 * KIB, 128 * KIB);
		for (unsigned i = 0; i < 200; i++) /* the test's own memory */
			spare[spares++] = malloc(sizeof(struct message));
		nth = n;
		scenario();
		last = nth == 0 ? last : (unsigned)n;
		nth = 0;
		end_scenario();
		if (last)
			break;
	}
	EXPECT(last > 30);
}

TEST(a_lend_opens_whole_or_not_at_all)
{
	struct hugepin_lend_attr attr = attr_of(HUGEPIN_LEND_POOL, MIB, MIB);
	hugepin_lend *l = NULL;
	long n;
	int err;

	if (!CAN_FAIL)
		SKIP("the sanitizer's allocator cannot fail on request");
	open_nodes(1, HUGEPIN_LEND_POOL, MIB, MIB, 0);
	EXPECT_EQ(hugepin_lend_close(node[0].lend), 0);
	for (n = 1; n < 100; n++) {
		nth = n;
		err = hugepin_lend_open(node[0].domain, &attr, &node[0], &l);
		nth = 0;
		if (!err)
			break;
		EXPECT_EQ(err, -ENOMEM);
		EXPECT(!l);
	}
	EXPECT(n > 8);
	node[0].lend = l;
	close_nodes(1);
}

TEST(each_message_may_find_its_peer_lost)
{
	for (unsigned n = 1; n < 40 && !t_failures; n++) {
		struct hugepin_far key;

		open_nodes(3, HUGEPIN_LEND_POOL, 2 * MIB, 512 * KIB, 128 * KIB);
		for (unsigned i = 0; i < 24; i++) {
			unsigned k = 1 + i % 2;
			int r;

			node[0].send_error = node[0].sends >= n / 2 && n % 2 ? -EPIPE : 0;
			node[k].send_error = node[k].sends >= n / 2 && n % 2 == 0 ? -EPIPE : 0;
			r = hugepin_lend_key(node[k].lend, 0, (uintptr_t)node[0].memory + i % 12 * 128 * KIB, 1,
					     &place[0], &key);
			if (r == 1)
				EXPECT_EQ(hugepin_lend_done(node[k].lend, &key), 0);
			EXPECT(r >= 0 || r == -EPIPE || r == -EBUSY);
			deliver_all();
			for (; node[k].answers; node[k].answers--)
				if (!node[k].answer[node[k].answers - 1].err)
					EXPECT_EQ(hugepin_lend_done(node[k].lend,
								    &node[k].answer[node[k].answers - 1].key),
						  0);
		}
		end_scenario();
	}
}

TEST(each_registration_may_fail)
{
	static const int with[] = { -ENOMEM, -EFAULT, -EINVAL, -EAGAIN };

	for (unsigned n = 1; n < 40 && !t_failures; n++) {
		open_nodes(3, HUGEPIN_LEND_POOL, 2 * MIB, 512 * KIB, 128 * KIB);
		node[0].device.nth = 1 + n / 4;
		node[0].device.with = with[n % 4];
		node[0].device.for_good = n > 30;
		scenario();
		deliver_all();
		end_scenario();
	}
}

TEST(a_child_has_no_part_in_its_parents_lend)
{
	struct hugepin_far key, again;
	int status;
	pid_t pid;

	open_nodes(2, HUGEPIN_LEND_POOL, MIB, 512 * KIB, 0);
	key = borrow(1, node[0].memory, 1);
	pid = fork();
	if (pid == 0) {
		struct hugepin_far copy = key;
		struct hugepin_lend_stats s;

		EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory, 1, NULL, &again), -ESTALE);
		EXPECT_EQ(hugepin_lend_done(node[1].lend, &copy), -ESTALE);
		EXPECT_EQ(hugepin_lend_message(node[1].lend, 0, "x", 1), -ESTALE);
		EXPECT_EQ(hugepin_lend_progress(node[1].lend), -ESTALE);
		EXPECT_EQ(hugepin_lend_gone(node[1].lend, 0), -ESTALE);
		EXPECT_EQ(hugepin_lend_again(node[1].lend, 0), -ESTALE);
		EXPECT_EQ(hugepin_lend_stats(node[1].lend, 0, &s, sizeof s), -ESTALE);
		EXPECT_EQ(hugepin_lend_close(node[1].lend), 0);
		EXPECT_EQ(hugepin_lend_close(node[0].lend), 0);
		EXPECT_EQ(hugepin_domain_close(node[0].domain), 0);
		open_node(2, MIB, 64 * MIB, &(struct hugepin_lend_attr){ .size = sizeof(struct hugepin_lend_attr),
									   .peers = 3,
									   .send = node_send,
									   .ready = node_ready,
									   .offer = node_offer });
		EXPECT_EQ(hugepin_lend_key(node[2].lend, 2, (uintptr_t)node[2].memory, 1, &place[0], &again), 0);
		deliver_all();
		EXPECT_EQ(node[2].answer[0].err, 0);
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EXPECT(works(0, &key));
	EXPECT_EQ(hugepin_lend_key(node[1].lend, 0, (uintptr_t)node[0].memory, 1, NULL, &again), 1);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &again), 0);
	EXPECT_EQ(hugepin_lend_done(node[1].lend, &key), 0);
	close_nodes(2);
}

T_MAIN
