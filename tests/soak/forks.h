/* Forks while other threads go on, and what their children look at. */
#ifndef TESTS_SOAK_FORKS_H
#define TESTS_SOAK_FORKS_H

#include "changes.h"

/* A child has every slot whose lock its parent held, and may write to it alone. The child's heap works. The parent's
 * domains refuse the child. */
static int inherit(const bool *still, struct worker *w)
{
	uint64_t rand = w->rand;
	struct hugepin_pin pin;

	t_failures = 0;
	in_child = true;
	if (!SANITIZED)
		change(w);
	for (int i = 0; i < SLOTS; i++) {
		if (!still[i] || !slots[i].p)
			continue;
		slot_check(&slots[i], "in a child");
		memset(slots[i].kept, 0, sizeof slots[i].kept); /* the parent's pins */
		if (rand_next(&rand) % 4 == 0) {
			if (!slots[i].hidden_len)
				slot_write(&slots[i]);
			slot_drop(&slots[i]);
			slot_fill(&slots[i], &rand);
		}
	}
	for (int i = 0; i < SLOTS; i++)
		if (still[i] && slots[i].p)
			slot_check(&slots[i], "in a child, that has written");
	EXPECT_EQ(hugepin_pin(places[0].domain, slots, 1, 0, &pin), -ESTALE);
	if (daemon_says >= 0)
		EXPECT_EQ(write(daemon_says, &(char){ t_failures != 0 }, 1), 1);
	return t_failures != 0;
}

static uint64_t forks_uncovered(void)
{
	struct hugepin_stats s;

	hugepin_stats(&s, sizeof s);
	return s.forks_uncovered;
}

/* Fork while other threads go on. The child does not look at slots that other threads have locked. */
static void fork_once(struct worker *w)
{
	const uint64_t uncovered = forks_uncovered();
	bool still[SLOTS];
	pid_t pid;
	int status, e;

	for (int i = 0; i < SLOTS; i++)
		still[i] = !pthread_mutex_trylock(&slots[i].lock);
	/* The address sanitizer cannot fork while threads come and go: its locks and its list of stacks would be wrong
	 * in the child. */
	if (SANITIZED)
		pthread_mutex_lock(&changing);
	pid = fork();
	e = errno;
	if (SANITIZED)
		pthread_mutex_unlock(&changing);
	if (pid == 0) {
		if (w->flight.slot)
			still[w->flight.slot - slots] = false; /* the device may be writing */
		_exit(inherit(still, w));
	}
	for (int i = 0; i < SLOTS; i++)
		if (still[i])
			pthread_mutex_unlock(&slots[i].lock);
	if (pid < 0) {
		EXPECT(e == ENOMEM || e == EAGAIN);
		count_forks_refused++;
		return;
	}
	count_forks++;
	status = child_wait(pid);
	/* The library promises nothing if a limit left no room for a copy and the drop-in could not refuse the fork. */
	if (status != 128 + SIGBUS || forks_uncovered() == uncovered)
		EXPECT_EQ(status, 0);
}

#endif
