/*
 * Fork. plan() decides whether a fork copies, leaves all to the kernel's copy-on-write, or is refused; fate() decides
 * about each page.
 *
 * After a fork, a write to a private hugetlb page needs a free page in the pool, and the kernel kills the child if the
 * pool is empty. Counting the free pages before the fork proves nothing, because a child can get no reservation. So the
 * parent copies the live buffers of hugetlb pages to anonymous memory before the fork, and keeps the originals out of
 * the child (MADV_DONTFORK). The child moves the copy into the hole before anything else runs there, and the parent
 * drops its copy. From then on the child's heap is THP, and the child's own forks are left to the kernel.
 *
 * Held pages of any kind (hold.h) are copied in the same way, because a device has pinned them, so that the kernel
 * would copy each page whole inside fork. Pages whose holders want no copy are only kept out of the child.
 *
 * Memory of the small tier (HUGEPIN_SMALL_PINNED) is left to the kernel. There must be no hole in it, because the C
 * library touches it in the child before any handler runs (locks of streams, values of thread-specific keys, the list
 * of handlers). This is safe, since the memory contains no pages of the pool. If a device has pinned some of its pages,
 * the kernel copies these at once, inside fork.
 *
 * A process with one thread may put the copy in place of the originals itself, before plan() decides (move.c, called by
 * atfork.c). Then no page has to be kept out.
 *
 * The child's memory has the advice that the program gave to its buffers (madvise.h). Buffers that the program keeps
 * out of children are left out of the copy, and the copy is advised like the originals.
 *
 * Limits: writes by other threads during the last pass of the copy may reach the child in any order. A stack that lies
 * in the heap cannot be replaced under its running thread, so its hugepage stays copy-on-write. So do hugepages with
 * the C library's descriptors of threads, because the C library reads these in the child before any handler runs.
 *
 * All code here runs between prepare and parent or child, with hp_heap_lock held and signals blocked (atfork.c). It
 * makes raw system calls only.
 */
#include "alloc/fork.h"

#include <sys/mman.h>
#include <unistd.h>

#include "alloc/copy.h"
#include "alloc/madvise.h"
#include "alloc/map.h"
#include "alloc/pages.h"
#include "alloc/small.h"
#include "alloc/written.h"
#include "base/config.h"
#include "base/probe.h"
#include "base/stats.h"
#include "base/sys.h"

/* The most passes over memory that other threads write to while it is copied. */
#define PASSES 4

static struct {
	bool made; /* a copy exists for this fork; it may have no pages */
	bool hidden; /* left out of core dumps, because some originals are */
	bool keep; /* keep the copy's memory for the next fork */
} copy;
static bool listed_too; /* copy LISTED buffers too, because other threads may take them meanwhile */
static bool kept_some; /* some pages are kept out of the child */
static unsigned copies; /* forks of this process that copied or moved memory */
static bool counted; /* this fork is counted in `copies` */
static bool dofork_refused; /* the kernel refused MADV_DOFORK: try again before the next fork */

/* ------------------------------------------------------------------ which pages */

static bool has_memory(size_t p)
{
	return hp_span.page[p].state == HP_PAGE_READY || hp_span.page[p].state == HP_PAGE_RESERVED;
}

/* The child's version of a page: the kernel's copy-on-write, our copy of its live buffers, or nothing. */
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

	if (!has_memory(p) || hp_copy_is_early(p) || hp_madvise_withheld(p))
		return SHARED;
	if (!g->giant || hp_config.fork_mode == HP_FORK_COPY)
		return f;
	/* The kernel can only keep a giant page out of the child as a whole. */
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

/* Numbers of pages in the pools of both sizes. */
struct pool {
	size_t pages, giants;
};

static bool covers_pool(struct pool p)
{
	return (!p.pages || hp_map_pool_free(HP_PAGE_SHIFT, -1) >= p.pages) &&
	       (!p.giants || hp_map_pool_free(HP_GIANT_SHIFT, -1) >= p.giants);
}

/* Count a fork in which the kernel may have to copy these pages on write. Without a lock, because hp_fork_leave() may
 * be called at any time. */
static void count_cow(struct pool p)
{
	HP_STAT_COUNT(forks_cow, 1);
	if (!covers_pool(p))
		HP_STAT_COUNT(forks_uncovered, 1);
}

struct plan {
	enum { NO_COPY, BY_COPY, BY_COW, REFUSE } how;
	size_t copied; /* pages that need a copy */
	struct pool pool; /* pages that the kernel may have to copy on write */
	bool ample; /* memory has room for twice the copy */
};

/* The most mappings that this fork may add to the child or to the parent. Call while pages are marked. A run of pages
 * with one version in the child becomes a mapping, and so does a part of a page with advice of its own. Each of them
 * may divide another mapping, and so counts twice. */
static size_t count_new_mappings(void)
{
	enum hp_page_fork last = HP_PAGE_SHARED;
	size_t runs = 0;

	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++) {
		const struct hp_page *g = &hp_span.page[p];
		enum hp_page_fork now = g->fork != HP_PAGE_SHARED || fate(p) == SHARED ? g->fork : HP_PAGE_LEFT;

		runs += now != HP_PAGE_SHARED && now != last;
		if (now == HP_PAGE_COPIED && g->advised)
			runs += hp_madvise_parts(p << HP_PAGE_CHUNKS_SHIFT, HP_PAGE_CHUNKS);
		last = now;
	}
	return 2 * runs;
}

/* Decide how this fork goes. Marks pages, which the caller uses or unmarks. refusal: the caller only looks at `how ==
 * REFUSE`. */
static struct plan plan(bool refusal)
{
	struct plan r = { .how = NO_COPY };
	struct pool stack = { .pages = 0 };
	/* other: held pages that are not the pool's, which the kernel would have to copy */
	size_t copy_some = 0, keep_out = 0, other = 0;
	bool scarce = false; /* too few mappings are left */

	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++) {
		const struct hp_page *g = &hp_span.page[p];
		enum fate f = fate(p);
		bool ready = g->state == HP_PAGE_READY && !hp_madvise_withheld(p);
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
	if (refusal && !other && !keep_out && covers_pool(r.pool))
		return r;
	if (copy_some || keep_out) {
		r.copied = hp_copy_mark(mark_child, listed_too);
		scarce = !hp_copy_may_split(count_new_mappings());
	}
	if (scarce && keep_out) {
		r.how = REFUSE;
		return r;
	}
	if (!copy_some && !r.pool.pages && !r.pool.giants)
		return r;
	r.how = BY_COW;
	if (!copy_some && hp_config.fork_mode == HP_FORK_COW)
		return r;

	uint64_t bytes = (uint64_t)r.copied << HP_PAGE_SHIFT, room = bytes ? hp_copy_room(r.copied) : UINT64_MAX;

	r.ample = room >= 2 * bytes + HP_COPY_MARGIN;
	if (room >= bytes + HP_COPY_MARGIN && hp_copy_may_map(r.copied) && covers_pool(stack) && !scarce)
		r.how = BY_COPY;
	else if (hp_config.fork_mode == HP_FORK_COPY &&
		 (!covers_pool(r.pool) || (other && room < ((uint64_t)other << HP_PAGE_SHIFT) + HP_COPY_MARGIN)))
		r.how = REFUSE;
	return r;
}

bool hp_fork_refuses(void)
{
	bool refuses = plan(true).how == REFUSE;

	hp_copy_unmark();
	return refuses;
}

/* ------------------------------------------------------------------ the handlers */

static int advise_run(void *advice, size_t first, size_t end)
{
	return (int)hp_sys(SYS_madvise, hp_page_addr(first), (end - first) << HP_PAGE_SHIFT, *(int *)advice);
}

static bool advise_runs(bool (*take)(size_t p), int advice)
{
	return hp_copy_runs(take, advise_run, &advice) == 0;
}

static int let_in_run(void *unused, size_t first, size_t end)
{
	(void)unused;
	return hp_madvise_dofork(first, end) ? 0 : -1;
}

static bool is_kept_out(size_t p)
{
	return hp_span.page[p].fork != HP_PAGE_SHARED;
}

/* Keep marked pages out of the child, and also pages of fate COPY or NOTHING that contain no live buffer. */
static void keep_out_pages(void)
{
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++) {
		struct hp_page *g = &hp_span.page[p];
		enum fate f = fate(p);

		if (f == COPY && !copy.made && g->state != HP_PAGE_RESERVED)
			g->fork = HP_PAGE_SHARED;
		else if (f != SHARED && g->fork == HP_PAGE_SHARED)
			g->fork = HP_PAGE_LEFT;
		kept_some |= g->fork != HP_PAGE_SHARED;
	}
	if (kept_some)
		advise_runs(is_kept_out, MADV_DONTFORK); /* if refused, the child maps over its inherited pages */
}

static void drop_copy(void)
{
	hp_copy_drop();
	copy.made = copy.hidden = copy.keep = false;
}

static size_t changed; /* pages written to since the previous pass */

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

/* Copy while other threads run, then copy again the pages that they wrote meanwhile, until nothing changes or after
 * PASSES passes. Only two kinds of writes may reach the child in part: those during the last pass, and those to memory
 * that another userfaultfd watches. False: a part could not be read. */
static bool copy_by_passes(void)
{
	bool watched = false, whole;

	/* Watch only pages that are copied, because a write to a write-protected THP splits it into base pages. */
	if (hp_written_begin())
		hp_copy_runs(hp_copy_is_marked, watch_run, &watched);
	whole = hp_copy_fill(false, listed_too);
	for (int pass = 1; watched && pass < PASSES; pass++) {
		changed = 0;
		hp_copy_runs(hp_copy_is_marked, look_at_run, NULL);
		if (!changed)
			break;
		whole &= hp_copy_fill(true, listed_too);
		for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++)
			hp_span.page[p].again = 0;
	}
	hp_written_end();
	return whole;
}

/* alone: the process has one thread. Then the copy usually takes the place of the originals, so its memory is not kept
 * for the next fork. Otherwise it is kept if memory is ample, because a child may write to all pages that it shares
 * with us. */
static bool make_copy(const struct plan *p, bool alone)
{
	if (p->copied) {
		if (!hp_copy_map(p->copied))
			return false;
		copy.hidden = hp_madvise_made() && hp_copy_hide();
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
	/* This process forks repeatedly, or has threads so that its heap cannot move. So its new memory must need no
	 * pool for copy-on-write. */
	if (++copies >= 2 || !alone)
		hp_span.no_pool = true;
}

static bool any_not_shared(void)
{
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++)
		if (hp_span.page[p].state == HP_PAGE_READY && fate(p) != SHARED)
			return true;
	return false;
}

/* Without the drop-in nobody saw the program's madvise, so ask the kernel. Do not ask if an earlier MADV_DOFORK of ours
 * was refused, because some DONTFORK is then ours, not the program's. */
static void learn_advice(void)
{
	if (!&hugepin_small_ && !dofork_refused && any_not_shared())
		hp_madvise_learn();
}

static void forget_advice(void)
{
	if (!&hugepin_small_ && !dofork_refused)
		hp_madvise_forget();
}

/* The size of the copy. `of_pool` is only for the statistics at exit, since it takes a look at each page. */
static struct hp_fork_copied what_is_copied(size_t pages)
{
	struct hp_fork_copied c = { .pages = pages };

	for (size_t p = 1; hp_config.stats && pages && p < hp_span.end[HP_PART_HEAP]; p++)
		c.of_pool += hp_copy_is_marked(p) && !hp_span.page[p].held[HP_HOLD_COPY];
	return c;
}

struct hp_fork_copied hp_fork_prepare(bool listed, bool alone, size_t moved)
{
	enum hp_forked how = moved ? HP_FORKED_MOVED : HP_FORKED_NOTHING;
	struct hp_fork_copied copied = { .pages = 0 };
	struct plan p;

	listed_too = listed;
	if (moved)
		count_copied(moved, alone);
	if (dofork_refused)
		dofork_refused = hp_copy_runs(has_memory, let_in_run, NULL) != 0;
	learn_advice(); /* first, because the fates of pages depend on it, and may not change when pages are marked */
	p = plan(false);
	if (p.how != BY_COPY || !p.copied)
		hp_copy_drop(); /* drop memory kept from an earlier fork */
	if (p.how == BY_COPY && make_copy(&p, alone)) {
		count_copied(p.copied, alone);
		how = p.copied ? HP_FORKED_COPIED : how;
		copied = what_is_copied(p.copied);
	} else if (p.how != NO_COPY) {
		how = HP_FORKED_COW;
		count_cow(p.pool);
	}
	keep_out_pages();
	hp_probe_fork_copy(how, copied.pages << HP_PAGE_SHIFT, moved << HP_PAGE_SHIFT);
	return copied;
}

/* Read without a lock, for forks that may interrupt a holder of it. */
static struct pool whole_pool(void)
{
	return (struct pool){ .pages = HP_STAT_GET(hugetlb_bytes) >> HP_PAGE_SHIFT };
}

bool hp_fork_may_leave(void)
{
	return hp_config.fork_mode == HP_FORK_COW || covers_pool(whole_pool());
}

void hp_fork_leave(void)
{
	const struct pool all = whole_pool();

	if (all.pages)
		count_cow(all);
}

void hp_fork_parent(void)
{
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
}

static bool is_gone(size_t p)
{
	return hp_span.page[p].fork == HP_PAGE_LEFT || hp_span.page[p].fork == HP_PAGE_LOST;
}

/* A hole in the child's heap must be filled, because another mapping could come into it. plan() has tried whether there
 * are enough mappings, but another thread may have made some since, and the kernel may have no memory for its own
 * tables just now. So the child tries again for a while, and then ends. */
static void try_again(const char *call, size_t error)
{
	enum { TRIES = 100, PAUSE_NS = 1000000 };
	static int tries;

	if (++tries <= TRIES) {
		hp_futex_sleep(PAUSE_NS);
		return;
	}
	hp_say(call, NULL, error);
	hp_die("the heap cannot be put in place in a forked child", NULL, SIZE_MAX);
}

static int move_in(void *unused, size_t first, size_t end)
{
	(void)unused;
	while ((first = hp_copy_put(first, end)) != end)
		try_again("mmap or mremap", SIZE_MAX);
	return 0;
}

static int keep_reserved(void *unused, size_t first, size_t end)
{
	long r;

	(void)unused;
	while (hp_sys_failed(r = hp_sys(SYS_mmap, hp_page_addr(first), (end - first) << HP_PAGE_SHIFT, PROT_NONE,
					MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1)))
		try_again("mmap: error", (size_t)-r);
	return 0;
}

void hp_fork_child(void)
{
	listed_too = counted = false;
	hp_copy_runs(hp_copy_is_marked, move_in, NULL);
	if (copy.hidden)
		advise_runs(hp_copy_is_marked, MADV_DODUMP);
	drop_copy(); /* unmap the slack before and behind the copy, because other memory may need the mappings */
	hp_copy_runs(is_gone, keep_reserved, NULL);
	while (!hp_madvise_child())
		try_again("madvise", SIZE_MAX);
	forget_advice();
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++)
		hp_page_in_child(p);
	for (size_t p = hp_span.small; p < hp_span.end[HP_PART_SMALL]; p++)
		hp_page_in_child(p);
	hp_span.left = 0;
	if (copies)
		hp_span.no_pool = true; /* the child's own forks then need no copy */
	kept_some = false;
	hp_copy_unmark();
}
