/*
 * Fork. A private hugetlb page that is written after fork needs a free page in the pool; with an empty pool the kernel
 * kills the child, and a child can get no reservation, so looking at the pool first proves nothing. What holds: before
 * fork the live buffers of hugetlb pages are copied to anonymous memory and the originals are kept out of the child
 * (MADV_DONTFORK); the child moves the copy into the hole before anything else runs there; the parent drops it. From
 * then on the child's heap is THP, and the child's own forks are left to the kernel.
 *
 * The same is done with held pages of any kind (hold.h): a device has them pinned, so the kernel would copy them whole,
 * page by page, inside fork. Pages whose holders want no copy are only kept out of the child.
 *
 * Memory of the small tier (HUGEPIN_SMALL_PINNED) is left to the kernel: the C library touches it in the child before
 * any handler runs (its streams' locks, values of thread-specific keys, the list of handlers), so there may be no hole
 * at that time. That is safe, since it has no pages of the pool; of pages that a device has pinned the kernel gives the
 * child a copy at once.
 *
 * A process with one thread may have the copy in place of the originals itself, before the fork (move.c): then there is
 * nothing to be kept out.
 *
 * What the program has said of parts of its buffers (advice.h) holds in the child: some is left out of the copy, which
 * is then advised as the original.
 *
 * Limits: what other threads write during the last pass over what has changed may arrive in any order. A stack that
 * lies in the heap cannot be replaced under the running thread: its hugepage stays copy-on-write. Hugepages with the C
 * library's descriptors of threads stay so, too: it reads these in the child before any handler runs.
 *
 * Everything here runs between prepare and parent or child with hp_heap_lock held, by raw system calls, signals blocked
 * (atfork.c).
 */
#include "alloc/fork.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/advice.h"
#include "alloc/copy.h"
#include "alloc/map.h"
#include "alloc/pages.h"
#include "alloc/small.h"
#include "alloc/written.h"
#include "base/config.h"
#include "base/stats.h"

/* Parts of a copy that others write to are made so often. */
#define PASSES 4

static struct {
	bool made; /* for this fork; it may be of nothing */
	bool hidden; /* not dumped: some of the originals are not */
	bool keep; /* its memory, for the next fork's */
} copy;
static bool listed_too; /* LISTED buffers are copied: their threads may take them meanwhile */
static bool kept_some; /* pages are kept out of the child */
static unsigned copies; /* forks of this process that copied, be it to move */
static bool counted; /* this fork */
static bool dofork_refused; /* MADV_DOFORK was refused: to be tried again before a fork that relies on it */

/* ------------------------------------------------------------------ which pages */

static bool has_memory(size_t p)
{
	return hp_span.page[p].state == HP_PAGE_READY || hp_span.page[p].state == HP_PAGE_RESERVED;
}

/* What the child is to get of a page: what the kernel gives, a copy of its live buffers, or nothing. */
enum fate { SHARED, COPY, NOTHING };

static enum fate fate_of(const struct hp_page *g)
{
	if (g->held[HP_HOLD_COPY])
		return COPY;
	if (g->held[HP_HOLD_DONTFORK] && !g->held[HP_HOLD_COW])
		return NOTHING;
	return g->kind == HUGEPIN_KIND_HUGETLB && hp_config.fork_mode == HP_FORK_COPY ? COPY : SHARED;
}

static enum fate fate(size_t p)
{
	const struct hp_page *g = &hp_span.page[p];
	enum fate f = fate_of(g);

	if (!has_memory(p) || hp_copy_is_early(p) || hp_advice_withheld(p))
		return SHARED;
	if (!g->giant || hp_config.fork_mode == HP_FORK_COPY)
		return f;
	/* The kernel keeps all of a giant page out of the child, or nothing. */
	g -= p & (HP_GIANT_PAGES - 1);
	for (size_t i = 0; i < HP_GIANT_PAGES && f != COPY; i++)
		f = f == SHARED && fate_of(&g[i]) == NOTHING ? SHARED : fate_of(&g[i]);
	return f;
}

static enum hp_page_fork mark_child(size_t p)
{
	enum fate f = fate(p);

	return f == COPY ? HP_PAGE_COPIED : f == NOTHING ? HP_PAGE_LOST : HP_PAGE_SHARED;
}

/* ------------------------------------------------------------------ does it fit */

/* Pages of the pool. */
struct pool {
	size_t pages, giants;
};

static bool covers_pool(struct pool p)
{
	return (!p.pages || hp_map_pool_free(HP_PAGE_SHIFT, -1) >= p.pages) &&
	       (!p.giants || hp_map_pool_free(HP_GIANT_SHIFT, -1) >= p.giants);
}

struct plan {
	enum { NO_COPY, BY_COPY, BY_COW, REFUSE } how;
	size_t copied; /* pages that need a copy */
	struct pool pool; /* those that the kernel would have to copy */
	bool ample; /* room for twice the copy */
};

/* Marks pages; the caller unmarks or uses them. refusal: it is asked only whether to refuse. */
static struct plan plan(bool refusal)
{
	struct plan r = { .how = NO_COPY };
	struct pool stack = { .pages = 0 };
	size_t copy_some = 0, keep_out = 0, other = 0; /* other: held pages that the kernel would have to copy */

	for (size_t p = 1; p < hp_span.tree.used; p++) {
		const struct hp_page *g = &hp_span.page[p];
		enum fate f = fate(p);
		bool ready = g->state == HP_PAGE_READY && !hp_advice_withheld(p);
		bool pool = ready && g->kind == HUGEPIN_KIND_HUGETLB;
		bool giant = pool && g->giant && !(p & (HP_GIANT_PAGES - 1));

		copy_some += ready && f == COPY;
		keep_out += f == NOTHING;
		r.pool.pages += pool && !g->giant && f != NOTHING;
		r.pool.giants += giant && f != NOTHING;
		stack.pages += pool && !g->giant && hp_copy_is_early(p);
		stack.giants += giant && hp_copy_is_early(p);
		other += ready && !pool && f == COPY;
	}
	if (refusal && !other && covers_pool(r.pool))
		return r;
	if (copy_some || keep_out)
		r.copied = hp_copy_mark(mark_child, listed_too);
	if (!copy_some && !r.pool.pages && !r.pool.giants)
		return r;
	r.how = BY_COW;
	if (!copy_some && hp_config.fork_mode == HP_FORK_COW)
		return r;

	uint64_t bytes = (uint64_t)r.copied << HP_PAGE_SHIFT, room = bytes ? hp_copy_room(r.copied) : UINT64_MAX;

	r.ample = room >= 2 * bytes + HP_COPY_MARGIN;
	if (room >= bytes + HP_COPY_MARGIN && hp_copy_may_map(r.copied) && covers_pool(stack))
		r.how = BY_COPY;
	else if (hp_config.fork_mode == HP_FORK_COPY &&
		 (!covers_pool(r.pool) || (other && room < ((uint64_t)other << HP_PAGE_SHIFT) + HP_COPY_MARGIN)))
		r.how = REFUSE;
	return r;
}

/* The drop-in's fork() asks (dropin/fork.c). */
bool hp_fork_refuses(void)
{
	bool refuses = plan(true).how == REFUSE;

	hp_copy_unmark();
	return refuses;
}

/* ------------------------------------------------------------------ the handlers */

static int advise_run(void *advice, size_t first, size_t end)
{
	return (int)syscall(SYS_madvise, hp_page_addr(first), (end - first) << HP_PAGE_SHIFT, *(int *)advice);
}

static bool advise_runs(bool (*take)(size_t p), int advice)
{
	return hp_copy_runs(take, advise_run, &advice) == 0;
}

static int let_in_run(void *unused, size_t first, size_t end)
{
	(void)unused;
	return hp_advice_dofork(first, end) ? 0 : -1;
}

static bool is_kept_out(size_t p)
{
	return hp_span.page[p].fork != HP_PAGE_SHARED;
}

/* Keep out of the child what is marked, and what holds nothing that it needs. */
static void keep_out_pages(void)
{
	for (size_t p = 1; p < hp_span.tree.used; p++) {
		struct hp_page *g = &hp_span.page[p];
		enum fate f = fate(p);

		if (f == COPY && !copy.made && g->state != HP_PAGE_RESERVED)
			g->fork = HP_PAGE_SHARED;
		else if (f != SHARED && g->fork == HP_PAGE_SHARED)
			g->fork = HP_PAGE_LEFT;
		kept_some |= g->fork != HP_PAGE_SHARED;
	}
	if (kept_some)
		advise_runs(is_kept_out, MADV_DONTFORK); /* where it is refused, the child maps over what it has got */
}

static void drop_copy(void)
{
	hp_copy_drop();
	copy.made = copy.hidden = copy.keep = false;
}

static size_t changed; /* pages */

static void note_written(uintptr_t start, uintptr_t end)
{
	size_t p = (start - hp_span.base) >> HP_PAGE_SHIFT, to = (end - hp_span.base + HP_PAGE - 1) >> HP_PAGE_SHIFT;

	for (; p < to; p++)
		if (hp_span.page[p].fork == HP_PAGE_COPIED && !hp_span.page[p].again) {
			hp_span.page[p].again = 1;
			changed++;
		}
}

static int watch_run(void *watched, size_t first, size_t end)
{
	*(bool *)watched |= hp_written_watch(hp_page_addr(first), hp_page_addr(end));
	return 0;
}

static int look_at_run(void *unused, size_t first, size_t end)
{
	(void)unused;
	hp_written_each(hp_page_addr(first), hp_page_addr(end), note_written);
	return 0;
}

/* Copy while other threads run, and then what they wrote meanwhile, until that is nothing or has been done often
 * enough: what may arrive in parts is what they write during the last pass, or to what somebody else watches. False:
 * something could not be read. */
static bool copy_by_passes(void)
{
	bool watched = false, whole;

	/* Nothing but what is copied: what is write-protected and then written to is split into base pages. */
	if (hp_written_begin())
		hp_copy_runs(hp_copy_is_marked, watch_run, &watched);
	whole = hp_copy_fill(false, listed_too);
	for (int pass = 1; watched && pass < PASSES; pass++) {
		changed = 0;
		hp_copy_runs(hp_copy_is_marked, look_at_run, NULL);
		if (!changed)
			break;
		whole &= hp_copy_fill(true, listed_too);
		for (size_t p = 1; p < hp_span.tree.used; p++)
			hp_span.page[p].again = 0;
	}
	hp_written_end();
	return whole;
}

/* alone: there is no other thread. The memory of a copy is kept where a child that writes to all that both have would
 * not run short: not that of a process with one thread, which has the copy in place of the originals as a rule. */
static bool make_copy(const struct plan *p, bool alone)
{
	if (p->copied) {
		if (!hp_copy_map(p->copied))
			return false;
		copy.hidden = hp_advice_made() && hp_copy_hide();
		if (!(alone ? hp_copy_fill(false, listed_too) : copy_by_passes())) {
			drop_copy();
			return false;
		}
		copy.keep = !alone && p->ample && hp_config.decay_ms;
	}
	copy.made = true;
	return true;
}

static void count_copied(size_t pages, bool alone)
{
	HP_STAT_ADD(fork_copied_bytes, pages << HP_PAGE_SHIFT);
	if (counted)
		return;
	counted = true;
	HP_STAT_ADD(forks_copied, 1);
	/* It keeps forking, or has threads, so that nothing moves: memory whose copy-on-write needs no pool, from here
	 * on. */
	if (++copies >= 2 || !alone)
		hp_span.no_pool = true;
}

static bool any_not_shared(void)
{
	for (size_t p = 1; p < hp_span.tree.used; p++)
		if (hp_span.page[p].state == HP_PAGE_READY && fate(p) != SHARED)
			return true;
	return false;
}

/* Where no drop-in sees the program's madvise, the kernel is asked. Not after it has refused to let in what we kept
 * out. */
static void learn_advice(void)
{
	if (!&hugepin_small_ && !dofork_refused && any_not_shared())
		hp_advice_learn();
}

static void forget_advice(void)
{
	if (!&hugepin_small_ && !dofork_refused)
		hp_advice_forget();
}

void hp_fork_prepare(bool listed, bool alone, size_t moved)
{
	int saved_errno = errno;
	struct plan p;

	listed_too = listed;
	if (moved)
		count_copied(moved, alone);
	p = plan(false);

	if (dofork_refused)
		dofork_refused = hp_copy_runs(has_memory, let_in_run, NULL) != 0;
	learn_advice();
	if (p.how != BY_COPY || !p.copied)
		hp_copy_drop(); /* what is kept */
	if (p.how == BY_COPY && make_copy(&p, alone)) {
		count_copied(p.copied, alone);
	} else if (p.how != NO_COPY) {
		HP_STAT_ADD(forks_cow, 1);
		if (!covers_pool(p.pool))
			HP_STAT_ADD(forks_uncovered, 1);
	}
	keep_out_pages();
	errno = saved_errno;
}

void hp_fork_parent(void)
{
	int saved_errno = errno;

	listed_too = false;
	if (kept_some)
		dofork_refused |= hp_copy_runs(is_kept_out, let_in_run, NULL) != 0;
	kept_some = false;
	counted = false;
	forget_advice();
	if (copy.keep) {
		hp_copy_keep();
		copy.made = copy.hidden = copy.keep = false;
	} else {
		drop_copy();
	}
	hp_copy_unmark();
	errno = saved_errno;
}

static bool is_gone(size_t p)
{
	return hp_span.page[p].fork == HP_PAGE_LEFT || hp_span.page[p].fork == HP_PAGE_LOST;
}

/* With a hole in the heap the child must not run: anything may come to lie there. The child has fewer mappings than the
 * parent had, and asks for no memory, so there is no known reason for the kernel to refuse. */
static _Noreturn void cannot(const char *call)
{
	hp_say("errno", NULL, (size_t)errno);
	hp_say(call, NULL, SIZE_MAX);
	hp_die("the heap cannot be put in place in a forked child", NULL, SIZE_MAX);
}

static int move_in(void *unused, size_t first, size_t end)
{
	(void)unused;
	if (hp_copy_put(first, end) != end)
		cannot("mmap");
	return 0;
}

static int keep_reserved(void *unused, size_t first, size_t end)
{
	(void)unused;
	if (syscall(SYS_mmap, hp_page_addr(first), (end - first) << HP_PAGE_SHIFT, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0L) == -1)
		cannot("mmap");
	return 0;
}

void hp_fork_child(void)
{
	int saved_errno = errno;

	listed_too = counted = false;
	hp_copy_runs(hp_copy_is_marked, move_in, NULL);
	if (copy.hidden)
		advise_runs(hp_copy_is_marked, MADV_DODUMP);
	hp_copy_runs(is_gone, keep_reserved, NULL);
	if (!hp_advice_child())
		cannot("madvise");
	forget_advice();
	for (size_t p = 1; p < hp_span.tree.used; p++)
		hp_page_in_child(p);
	for (size_t p = hp_span.small; p < hp_span.tree.upper_used; p++)
		hp_page_in_child(p);
	hp_span.left = 0;
	if (copies)
		hp_span.no_pool = true; /* its own forks need no copy then */
	kept_some = false;
	drop_copy(); /* what is left of the mapping: before and behind the copy */
	hp_copy_unmark();
	errno = saved_errno;
}
