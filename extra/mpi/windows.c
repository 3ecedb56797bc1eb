/*
 * Open operations on windows, by window and target, and the windows themselves. An operation is open until a later
 * call closes it. A flush looks only at the operations that it closes, however many are open.
 *
 * A group holds the open operations towards one target. It exists as long as it has any. A window has one further
 * group, with target HP_TARGET_WINDOW: it holds the window's own memory, and leads to the other groups. It exists
 * until the window is freed.
 *
 * Locks: `lock`, a leaf.
 */
#include "windows.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "domain.h"
#include "report.h"
#include "transfer.h"

enum { BUCKETS = 1024 };

/* An open operation, or the window's own memory (HP_TARGET_WINDOW). */
struct hp_exposure {
	struct hp_exposure *next;
	MPI_Win win;
	int target;
	struct hp_transfer transfer;
};

struct group {
	struct group *next; /* in the hash bucket */
	struct group *members; /* in a window's group: the first of its targets' groups */
	struct group *member_next, **member_at; /* in a target's group: its links in that list */
	MPI_Win win;
	int target;
	struct hp_exposure *open;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct group *groups[BUCKETS];
/* number of exposures; relaxed: the lock; outside, a thread looks for operations of its own */
static _Atomic int count;

static struct group **group_bucket(MPI_Win win, int target)
{
	const uint64_t key = (uint64_t)(uintptr_t)win + (uint64_t)(unsigned)target * UINT64_C(0xd6e8feb86659fd93);

	return &groups[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
}

static struct group *group_find(MPI_Win win, int target)
{
	struct group *g = *group_bucket(win, target);

	while (g && (g->win != win || g->target != target))
		g = g->next;
	return g;
}

static struct group *group_make(MPI_Win win, int target, struct group *window)
{
	struct group *g = calloc(1, sizeof *g), **b = group_bucket(win, target);

	if (!g)
		return NULL;
	*g = (struct group){ .next = *b, .win = win, .target = target };
	*b = g;
	if (window) {
		g->member_at = &window->members;
		g->member_next = window->members;
		if (g->member_next)
			g->member_next->member_at = &g->member_next;
		window->members = g;
	}
	return g;
}

/* Move the group's exposures to the front of *list, and remove the group. */
static void group_take(struct group *g, struct hp_exposure **list)
{
	struct group **at = group_bucket(g->win, g->target);

	for (struct hp_exposure *e; (e = g->open);) {
		g->open = e->next;
		e->next = *list;
		*list = e;
		atomic_fetch_sub_explicit(&count, 1, memory_order_relaxed);
	}
	while (*at != g)
		at = &(*at)->next;
	*at = g->next;
	if (g->member_at) {
		*g->member_at = g->member_next;
		if (g->member_next)
			g->member_next->member_at = g->member_at;
	}
	free(g);
}

/* False: out of memory; nothing was added. */
static bool add_exposure(struct hp_exposure *e)
{
	struct group *window, *g;

	pthread_mutex_lock(&lock);
	window = group_find(e->win, HP_TARGET_WINDOW);
	if (!window)
		window = group_make(e->win, HP_TARGET_WINDOW, NULL);
	g = e->target == HP_TARGET_WINDOW || !window ? window : group_find(e->win, e->target);
	if (!g && window)
		g = group_make(e->win, e->target, window);
	if (g) {
		e->next = g->open;
		g->open = e;
		atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&lock);
	return g;
}

/* Take out the operations towards `target`; HP_TARGET_ALL: all of them; HP_TARGET_WINDOW: also the window's memory.
 * Returns them as a list, which the caller frees. */
static struct hp_exposure *take_exposures(MPI_Win win, int target)
{
	struct hp_exposure *list = NULL;

	if (!atomic_load_explicit(&count, memory_order_relaxed) && target != HP_TARGET_WINDOW)
		return NULL;
	pthread_mutex_lock(&lock);
	bool all = target == HP_TARGET_ALL || target == HP_TARGET_WINDOW;
	struct group *g = group_find(win, all ? HP_TARGET_WINDOW : target);
	while (all && g && g->members)
		group_take(g->members, &list);
	if (g && target != HP_TARGET_ALL)
		group_take(g, &list);
	pthread_mutex_unlock(&lock);
	return list;
}

static struct hp_exposure *take_all_exposures(void)
{
	struct hp_exposure *list = NULL;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < BUCKETS; i++)
		while (groups[i]) {
			struct group *g = groups[i];
			/* Take out the members first: each of them is linked to its window's group. */
			while (g->members)
				group_take(g->members, &list);
			group_take(g, &list);
		}
	pthread_mutex_unlock(&lock);
	return list;
}

void hp_windows_add(MPI_Win win, int target, struct hp_transfer *t)
{
	struct hp_exposure *e = malloc(sizeof *e);

	if (e)
		*e = (struct hp_exposure){ .win = win, .target = target, .transfer = *t };
	if (!e || !add_exposure(e)) {
		free(e);
		hp_transfer_release(t);
		HP_MPI_COUNT(not_pinned);
	}
}

/* Release these exposures or, if they are still open, keep them. Without memory for this, they are released. */
static void end_exposures(struct hp_exposure *list, bool open)
{
	for (struct hp_exposure *next; list; list = next) {
		next = list->next;
		if (open && add_exposure(list))
			continue;
		hp_transfer_release(&list->transfer);
		free(list);
	}
}

void hp_window_closing(struct hp_call *c, MPI_Win win, int target)
{
	c->closing = take_exposures(win, target);
	for (const struct hp_exposure *e = c->closing; e && hp_mpi_phases; e = e->next)
		hp_transfer_phase(&e->transfer, HUGEPIN_PREFETCH_WAIT, HP_ANY_DIR);
}

void hp_window_closed(struct hp_call *c, int err)
{
	end_exposures(c->closing, err != MPI_SUCCESS);
	c->closing = NULL;
}

void hp_window_phase(MPI_Win win, unsigned phase)
{
	struct hp_transfer own = { .count = 0 };

	if (!hp_mpi_phases)
		return;
	pthread_mutex_lock(&lock);
	const struct group *g = group_find(win, HP_TARGET_WINDOW);
	if (g && g->open) /* one piece of memory for each window */
		own = g->open->transfer;
	pthread_mutex_unlock(&lock);
	hp_transfer_phase(&own, phase, HP_ANY_DIR);
}

void hp_window_free(MPI_Win win)
{
	end_exposures(take_exposures(win, HP_TARGET_WINDOW), false);
}

void hp_windows_close(void)
{
	for (struct hp_exposure *e = take_all_exposures(), *next; e; e = next) {
		next = e->next;
		hp_transfer_release_left(&e->transfer);
		free(e);
	}
}
