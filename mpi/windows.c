/*
 * What is open on windows: the operations that nothing has closed yet, by window and target, and the windows themselves.
 * A flush finds what it closes, and looks at nothing else, however much is open.
 *
 * A group is what is open towards one target; it exists while something is. The group of HP_TARGET_WINDOW is the window's: it
 * has the window itself, and leads to the others; it exists until the window is freed.
 *
 * Locks: `lock`, a leaf.
 */
#include "mpi/layer.h"

#include <pthread.h>
#include <stdlib.h>

enum { BUCKETS = 1024 };

struct group {
	struct group *next; /* in the bucket */
	struct group *members; /* the window's: of targets */
	struct group *member_next, **member_at; /* a target's */
	MPI_Win win;
	int target;
	struct hp_exposure *open;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct group *groups[BUCKETS];
static _Atomic int count; /* of exposures */

static struct group **bucket_of(MPI_Win win, int target)
{
	const uint64_t key = (uint64_t)(uintptr_t)win + (uint64_t)(unsigned)target * UINT64_C(0xd6e8feb86659fd93);

	return &groups[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
}

static struct group *group_find(MPI_Win win, int target)
{
	struct group *g = *bucket_of(win, target);

	while (g && (g->win != win || g->target != target))
		g = g->next;
	return g;
}

static struct group *group_make(MPI_Win win, int target, struct group *window)
{
	struct group *g = calloc(1, sizeof *g), **b = bucket_of(win, target);

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

/* Put what is open in it in front of *list, and remove it. */
static void group_take(struct group *g, struct hp_exposure **list)
{
	struct group **at = bucket_of(g->win, g->target);

	for (struct hp_exposure *e; (e = g->open);) {
		g->open = e->next;
		e->next = *list;
		*list = e;
		count--;
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

bool hp_windows_add(MPI_Win win, int target, struct hp_exposure *e)
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
		count++;
	}
	pthread_mutex_unlock(&lock);
	return g;
}

struct hp_exposure *hp_windows_take(MPI_Win win, int target)
{
	struct hp_exposure *list = NULL;

	if (!count && target != HP_TARGET_WINDOW)
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

struct hp_exposure *hp_windows_take_all(void)
{
	struct hp_exposure *list = NULL;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < BUCKETS; i++)
		while (groups[i]) {
			struct group *g = groups[i];
			/* Of a window's members none may lead back to it. */
			while (g->members)
				group_take(g->members, &list);
			group_take(g, &list);
		}
	pthread_mutex_unlock(&lock);
	return list;
}
