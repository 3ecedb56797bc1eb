/*
 * When a queue has to be called though nothing happens to it, for programs that sleep (HUGEPIN_SGQ_WAIT): a timer,
 * whose descriptor is readable then, and a time that any thread may read.
 *
 * A program that asks for events of solicited completions alone does not wake up when its own sends have completed. But
 * what is held without a deadline goes with such a completion, and so does what found no room. So the program is to
 * look again after a while, and after twice as long each time that nothing has completed meanwhile. Then nothing waits
 * for more than twice the time that the completion took, and a peer that does not receive costs little.
 *
 * The timer is set when the time comes nearer, and when it has passed. Otherwise it stays, so that a queue that holds
 * something now and then makes a system call for each such time, and not for each message.
 *
 * And what else any thread may ask of a queue: how it failed.
 */
#include "sge/wait.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "sge/id.h"

#define NEVER UINT64_MAX
#define SECOND ((uint64_t)1000000000)
#define LOOK_FIRST (SECOND / 10000)
#define LOOK_MAX SECOND

int hp_sgq_wait_open(struct hugepin_sgq *q)
{
	q->armed_ns = NEVER;
	atomic_store_explicit(&q->due_ns, NEVER, memory_order_relaxed);
	q->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	return q->timer < 0 ? -errno : 0;
}

void hp_sgq_wait_close(struct hugepin_sgq *q)
{
	close(q->timer);
}

/* The time of the next look for completions that nothing tells of. */
static uint64_t next_look(struct hugepin_sgq *q, uint64_t now)
{
	if (!q->look_ns || q->look_done != q->done) {
		q->look_ns = LOOK_FIRST;
		q->look_done = q->done;
		q->look_at_ns = now + q->look_ns;
	} else if (now >= q->look_at_ns) {
		q->look_ns = HP_MIN(q->look_ns * 2, LOOK_MAX);
		q->look_at_ns = now + q->look_ns;
	}
	return q->look_at_ns;
}

static void set_timer(struct hugepin_sgq *q, uint64_t at)
{
	struct itimerspec t = { 0 };
	if (at != NEVER) {
		t.it_value.tv_sec = (time_t)(at / SECOND);
		t.it_value.tv_nsec = (long)(at % SECOND);
	}
	q->armed_ns = at;
	timerfd_settime(q->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

void hp_sgq_wait_note(struct hugepin_sgq *q, const struct hp_sgq_frame *held, bool refused)
{
	if (refused)
		q->wanted_done = q->done;
	q->wanted = refused || (q->wanted && q->wanted_done == q->done); /* else a completion has made room */
	bool timed = held && q->deadline_ns;
	bool looks = !q->failed && ((held && !timed) || q->wanted || q->posted < q->next || q->idle_count);
	uint64_t due = NEVER;
	if (!looks)
		q->look_ns = 0;
	if (looks || timed || q->armed_ns != NEVER) {
		uint64_t now = hp_clock_ns();
		due = looks ? next_look(q, now) : NEVER;
		if (timed)
			due = HP_MIN(due, held->first_ns + q->deadline_ns);
		if (due < q->armed_ns || now >= q->armed_ns)
			set_timer(q, due);
	}
	atomic_store_explicit(&q->due_ns, due, memory_order_relaxed);
}

/* ------------------------------------------------------------------ the public functions: any thread, no change */

static int check_wait(const hugepin_sgq *q)
{
	if (!q || !(q->flags & HUGEPIN_SGQ_WAIT))
		return -EINVAL;
	return q->generation == hp_sgq_generation ? 0 : -ESTALE;
}

int hugepin_sgq_fd(const hugepin_sgq *q)
{
	int err = check_wait(q);
	return err ? err : q->timer;
}

int hugepin_sgq_due(const hugepin_sgq *q, uint64_t *ret_ns)
{
	int err = check_wait(q);
	if (err)
		return err;
	uint64_t due = atomic_load_explicit(&q->due_ns, memory_order_relaxed);
	if (ret_ns && due != NEVER) {
		uint64_t now = hp_clock_ns();
		*ret_ns = due > now ? due - now : 0;
	}
	return due != NEVER;
}

/* Does not enter the queue, because the caller of a queue without a lock is another thread. */
enum ibv_wc_status hugepin_sgq_wc_status(const hugepin_sgq *q, uint32_t *ret_vendor_err)
{
	uint64_t failure = IBV_WC_GENERAL_ERR;
	if (q && q->generation == hp_sgq_generation)
		failure = atomic_load_explicit(&q->failure, memory_order_relaxed);
	if (ret_vendor_err)
		*ret_vendor_err = (uint32_t)(failure >> 32);
	return (enum ibv_wc_status)(uint32_t)failure;
}
