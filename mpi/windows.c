/*
 * What is open on windows: the operations that nothing has closed yet, by window and target, and the windows
 * themselves. A flush finds the operations that it closes, and looks at nothing else, however many are open.
 *
 * A group is what is open towards one target. It exists as long as it has members. The group of HP_TARGET_WINDOW is the
 * window's: it has the window itself, and leads to the others. It exists until the window is freed.
 *
 * Locks: `lock`, a leaf.
 */
#include "mpi/windows.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "mpi/report.h"
#include "mpi/transfer.h"

enum { BUCKETS = 1024 };

/* An operation of a window that nothing has closed yet, or the window itself (HP_TARGET_WINDOW). */
struct exposure {
	struct exposure *next;
	struct hp_transfer transfer;
};

struct group {
	struct group *next; /* in the bucket */
	struct group *members; /* of a window's group: the groups of its targets */
	struct group *member_next, **member_at; /* of a target's group */
	MPI_Win win;
	int target;
	struct exposure *open;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct group *groups[BUCKETS];
static _Atomic int count; /* of exposures */

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
static void group_take(struct group *g, struct exposure **list)
{
	struct group **at = group_bucket(g->win, g->target);

	for (struct exposure *e; (e = g->open);) {
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

/* False: no memory, and nothing was added. */
static bool add_exposure(MPI_Win win, int target, struct exposure *e)
{
	struct group *window, *g;

	pthread_mutex_lock(&lock);
	window = group_find(win, HP_TARGET_WINDOW);
	if (!window)
		window = group_make(win, HP_TARGET_WINDOW, NULL);
	g = target == HP_TARGET_WINDOW || !window ? window : group_find(win, target);
	if (!g && window)
		g = group_make(win, target, window);
	if (g) {
		e->next = g->open;
		g->open = e;
		atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&lock);
	return g;
}

/* Take what hp_window_close() closes, as a list, which is the caller's. */
static struct exposure *take_exposures(MPI_Win win, int target)
{
	struct exposure *list = NULL;

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

/* Take everything. */
static struct exposure *take_all_exposures(void)
{
	struct exposure *list = NULL;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < BUCKETS; i++)
		while (groups[i]) {
			struct group *g = groups[i];
			/* The members go first, so that none of them leads to a window that is gone. */
			while (g->members)
				group_take(g->members, &list);
			group_take(g, &list);
		}
	pthread_mutex_unlock(&lock);
	return list;
}

void hp_windows_add(MPI_Win win, int target, struct hp_transfer *t)
{
	struct exposure *e = malloc(sizeof *e);

	if (e)
		*e = (struct exposure){ .transfer = *t };
	if (!e || !add_exposure(win, target, e)) {
		free(e);
		hp_transfer_release(t);
		HP_MPI_COUNT(not_pinned);
	}
}

void hp_window_close(MPI_Win win, int target)
{
	for (struct exposure *e = take_exposures(win, target), *next; e; e = next) {
		next = e->next;
		hp_transfer_release(&e->transfer);
		free(e);
	}
}

void hp_windows_close(void)
{
	for (struct exposure *e = take_all_exposures(), *next; e; e = next) {
		next = e->next;
		hp_transfer_release_left(&e->transfer);
		free(e);
	}
}
