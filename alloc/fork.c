/*
 * Fork. A private hugetlb page that is written after fork needs a free page in the pool; with an empty pool the kernel
 * kills the child, and a child can get no reservation, so looking at the pool first proves nothing. What holds: before
 * fork the live buffers of hugetlb pages are copied to anonymous memory and the originals are kept out of the child
 * (MADV_DONTFORK); the child moves the copy into the hole before anything else runs there; the parent drops it. From
 * then on the child's heap is THP, and its own forks are the kernel's.
 *
 * The same is done with held pages of any kind (hold.h): a device has them pinned, so the kernel would copy them whole, page by
 * page, inside fork. Those whose holders want no copy are kept out of the child, and that is all.
 *
 * Memory of the small tier (HUGEPIN_SMALL_PINNED) is left to the kernel: the C library touches it in the child before any handler
 * runs (its streams' locks, values of thread-specific keys, the list of handlers), so there may be no hole at that time. That
 * is safe, since it has no pages of the pool; of pages that a device has pinned the kernel gives the child a copy at once.
 *
 * What the program has said of parts of its buffers (advice.h) holds in the child: some is left out of the copy, which is then
 * advised as the original.
 *
 * Limits: what other threads write during the last pass over what has changed may arrive in any order. A stack that lies in the heap
 * cannot be replaced under the running thread: its hugepage stays copy-on-write. So do those with the C library's descriptors of
 * threads, which it reads in the child before any handler runs.
 *
 * Everything here runs between prepare and parent or child with hp_heap_lock held, by raw system calls, signals blocked (heap.c).
 * The copy is packed: the n-th page marked HP_PAGE_COPIED, in address order, is the n-th hugepage of the copy.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/advice.h"
#include "alloc/map.h"
#include "alloc/pages.h"
#include "alloc/small.h"
#include "alloc/written.h"
#include "base/config.h"
#include "base/stats.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Left to the rest of the machine when a copy is made. */
#define MARGIN ((uint64_t)64 << 20)

/* Bytes around the stack pointer that the handlers' callees and fork()'s own frames may write. */
#define STACK_BELOW 65536
#define STACK_ABOVE 16384
/* Bytes below a thread-local variable of ours or of the C library's that hold the others, and above the thread pointer. */
#define THREAD_BELOW 8192
#define THREAD_ABOVE 8192

/* So often are parts of a copy made that others write to. */
#define PASSES 4

static struct {
	bool made; /* for this fork; it may be of nothing */
	char *map, *at; /* the mapping, and the aligned copy inside it; none if there is nothing to copy */
	size_t map_size, pages;
	bool hidden; /* not dumped: some of the originals are not */
	bool torn; /* some of them could not be read */
} copy;
static bool listed_too; /* LISTED buffers are copied: their threads may take them meanwhile */
static bool kept_some; /* pages are kept out of the child */
static unsigned copies; /* forks of this process that made one */
static bool dofork_refused; /* MADV_DOFORK was refused: to be tried again before a fork that relies on it */

/* ------------------------------------------------------------------ which pages */

static bool has_memory(size_t p)
{
	return hp_span.page[p].state == HP_PAGE_READY || hp_span.page[p].state == HP_PAGE_RESERVED;
}

/* Whether the child's part of fork() works on pages [p, p + count) before our handler runs there: the running stack; what the C
 * library and we keep for this thread; and its descriptors of all threads, which it has in a list. */
static bool is_used_early(size_t p, size_t count)
{
	uintptr_t from = hp_page_addr(p), to = hp_page_addr(p + count), frame = (uintptr_t)__builtin_frame_address(0);
	uintptr_t thread = (uintptr_t)__builtin_thread_pointer();
	uintptr_t variables = HP_MIN((uintptr_t)&errno, (uintptr_t)&hp_locks_held) - THREAD_BELOW;

	if ((from < frame + STACK_ABOVE && to > frame - STACK_BELOW) || (from < thread + THREAD_ABOVE && to > variables))
		return true;
	for (size_t q = p; q < p + count; q++)
		if (hp_advice_is_stack(q))
			return true;
	return false;
}

/* The same of page p, or of the giant page that it is a part of. */
static bool is_stack(size_t p)
{
	return hp_span.page[p].giant ? is_used_early(p & ~(HP_GIANT_PAGES - 1), HP_GIANT_PAGES) : is_used_early(p, 1);
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

	if (!has_memory(p) || is_stack(p) || hp_advice_withheld(p))
		return SHARED;
	if (!g->giant || hp_config.fork_mode == HP_FORK_COPY)
		return f;
	/* The kernel keeps all of a giant page out of the child, or nothing. */
	g -= p & (HP_GIANT_PAGES - 1);
	for (size_t i = 0; i < HP_GIANT_PAGES && f != COPY; i++)
		f = f == SHARED && fate_of(&g[i]) == NOTHING ? SHARED : fate_of(&g[i]);
	return f;
}

/* Call each(arg, first, end) for every run of neighbouring pages for which take() says so. */
static int for_runs(bool (*take)(size_t p), int (*each)(void *arg, size_t first, size_t end), void *arg)
{
	for (size_t p = 1; p < hp_span.tree.used;) {
		size_t q = p;

		while (q < hp_span.tree.used && take(q))
			q++;
		if (q > p) {
			int r = each(arg, p, q);

			if (r)
				return r;
		}
		p = q + 1;
	}
	return 0;
}

enum walk { MARK, COPY_ALL, COPY_AGAIN };

/* Walk the live buffers: mark the pages that the child gets copied, or loses, with some of them; or make the copy, or parts of it
 * again. Returns pages marked for it. */
static size_t walk_live(enum walk walk)
{
	const bool copying = walk != MARK;
	size_t marked = 0, at = 0, last = 0; /* at: the slot of page `last` in the copy */

	for (size_t c = HP_PAGE_CHUNKS; c < hp_span.tree.used << HP_PAGE_CHUNKS_SHIFT;) {
		size_t p = c >> HP_PAGE_CHUNKS_SHIFT;

		if (hp_span.page[p].state == HP_PAGE_NONE) {
			c = (p + 1) << HP_PAGE_CHUNKS_SHIFT;
			continue;
		}

		size_t gap = hp_tree_free_after(&hp_span.tree, c, HP_PAGE_CHUNKS);

		if (gap) {
			c += gap;
			continue;
		}

		uint64_t w = hp_chunk_get(c);
		unsigned state = HP_CHUNK_STATE(w);

		if (state == HP_CHUNK_FREE) { /* taken by an allocation that waits for its pages */
			c++;
			continue;
		}

		size_t end = c + (state == HP_CHUNK_LISTED && !listed_too ? 0 : HP_CHUNK_COUNT(w));

		for (size_t from = c; from < end;) {
			size_t q = from >> HP_PAGE_CHUNKS_SHIFT;
			size_t to = HP_MIN(end, (q + 1) << HP_PAGE_CHUNKS_SHIFT);

			struct hp_page *g = &hp_span.page[q];

			if (!copying && g->fork == HP_PAGE_SHARED) {
				enum fate f = fate(q);

				g->fork = f == COPY ? HP_PAGE_COPIED : f == NOTHING ? HP_PAGE_LOST : HP_PAGE_SHARED;
				marked += f == COPY;
			} else if (copying && g->fork == HP_PAGE_COPIED && (walk == COPY_ALL || g->again)) {
				for (; last < q; last++)
					at += hp_span.page[last].fork == HP_PAGE_COPIED;
				char *out = copy.at + (at << HP_PAGE_SHIFT) +
					    ((from & (HP_PAGE_CHUNKS - 1)) << HP_CHUNK_SHIFT);

				if (!g->advised)
					memcpy(out, (void *)hp_chunk_addr(from), (to - from) << HP_CHUNK_SHIFT);
				else
					copy.torn |= !hp_advice_read(out, from, to - from);
			}
			from = to;
		}
		c += hp_chunk_extent(c);
	}
	return marked;
}

static void unmark(void)
{
	for (size_t p = 1; p < hp_span.tree.used; p++)
		hp_span.page[p].fork = HP_PAGE_SHARED;
}

/* ------------------------------------------------------------------ does it fit */

static uint64_t read_value(const char *dir, const char *file, const char *key)
{
	static char text[8192]; /* under hp_heap_lock */
	char path[512];
	struct hp_line l = { path, path + sizeof path };

	hp_line_text(&l, dir);
	hp_line_text(&l, file);
	return hp_read_file(path, text, sizeof text) > 0 ? hp_number_after(text, key, UINT64_MAX) : UINT64_MAX;
}

/* The headroom of the memory cgroup `path` below `mount` and of its ancestors: limit - usage + page cache. */
static uint64_t cgroup_room(const char *mount, const char *path, const char *limit_file, const char *usage_file)
{
	char dir[400];
	uint64_t room = UINT64_MAX;
	struct hp_line l = { dir, dir + sizeof dir };

	hp_line_text(&l, mount);
	hp_line_text(&l, path);
	for (;;) {
		uint64_t limit = read_value(dir, limit_file, ""), usage = read_value(dir, usage_file, "");
		char *slash = strrchr(dir, '/');

		if (limit != UINT64_MAX && usage != UINT64_MAX && limit < (uint64_t)1 << 60) {
			uint64_t cache = read_value(dir, "/memory.stat", "\nactive_file ") +
					 read_value(dir, "/memory.stat", "inactive_file ");

			if (cache >= usage)
				cache = 0;
			room = HP_MIN(room, limit > usage - cache ? limit - (usage - cache) : 0);
		}
		if (!slash || (size_t)(slash - dir) < strlen(mount))
			return room;
		*slash = '\0';
	}
}

uint64_t hp_fork_room(void)
{
	static char text[4096]; /* under hp_heap_lock */
	uint64_t room = read_value("/proc/meminfo", "", "MemAvailable:");

	room = room == UINT64_MAX ? room : room * 1024;
	if (hp_read_file("/proc/self/cgroup", text, sizeof text) <= 0)
		return room;
	for (char *line = text, *next; *line; line = next) {
		next = strchr(line, '\n');
		next = next ? (*next = '\0', next + 1) : line + strlen(line);

		char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!path)
			continue;
		*path++ = '\0';
		if (path[0] == '/' && path[1] == '\0')
			path++;
		if (controllers[1] == '\0')
			room = HP_MIN(room, cgroup_room("/sys/fs/cgroup", path, "/memory.max", "/memory.current"));
		else if (strstr(controllers + 1, "memory"))
			room = HP_MIN(room, cgroup_room("/sys/fs/cgroup/memory", path, "/memory.limit_in_bytes",
							"/memory.usage_in_bytes"));
	}
	return room;
}

/* The mapping for a copy of so many pages. */
static void *map_copy(size_t pages)
{
	return (void *)syscall(SYS_mmap, NULL, (pages + 1) << HP_PAGE_SHIFT, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
}

/* Whether the limits on addresses, data and overcommit let it be made. */
static bool may_map(size_t pages)
{
	void *p = pages ? map_copy(pages) : NULL;

	if (p == MAP_FAILED)
		return false;
	if (!p)
		return true;
	syscall(SYS_munmap, p, (pages + 1) << HP_PAGE_SHIFT);
	return true;
}

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
	enum hp_fork_plan how;
	size_t copied; /* pages that need a copy */
	struct pool pool; /* those that the kernel would have to copy */
};

/* Marks pages; the caller unmarks or uses them. */
static struct plan plan(void)
{
	struct plan r = { .how = HP_FORK_NOTHING };
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
		stack.pages += pool && !g->giant && is_stack(p);
		stack.giants += giant && is_stack(p);
		other += ready && !pool && f == COPY;
	}
	if (copy_some || keep_out)
		r.copied = walk_live(MARK);
	if (!copy_some && !r.pool.pages && !r.pool.giants)
		return r;
	r.how = HP_FORK_BY_COW;
	if (!copy_some && hp_config.fork_mode == HP_FORK_COW)
		return r;

	uint64_t room = hp_fork_room();

	if (room >= ((uint64_t)r.copied << HP_PAGE_SHIFT) + MARGIN && may_map(r.copied) && covers_pool(stack))
		r.how = HP_FORK_BY_COPY;
	else if (hp_config.fork_mode == HP_FORK_COPY &&
		 (!covers_pool(r.pool) || (other && room < ((uint64_t)other << HP_PAGE_SHIFT) + MARGIN)))
		r.how = HP_FORK_REFUSE;
	return r;
}

enum hp_fork_plan hp_fork_plan(void)
{
	enum hp_fork_plan r = plan().how;

	unmark();
	return r;
}

/* ------------------------------------------------------------------ the handlers */

static int advise_run(void *advice, size_t first, size_t end)
{
	return (int)syscall(SYS_madvise, hp_page_addr(first), (end - first) << HP_PAGE_SHIFT, *(int *)advice);
}

static bool advise(bool (*take)(size_t p), int advice)
{
	return for_runs(take, advise_run, &advice) == 0;
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
static void keep_out(void)
{
	for (size_t p = 1; p < hp_span.tree.used; p++) {
		struct hp_page *g = &hp_span.page[p];
		enum fate f = fate(p);

		if (f == COPY && !copy.made)
			g->fork = HP_PAGE_SHARED;
		else if (f != SHARED && g->fork == HP_PAGE_SHARED)
			g->fork = HP_PAGE_LEFT;
		kept_some |= g->fork != HP_PAGE_SHARED;
	}
	if (kept_some)
		advise(is_kept_out, MADV_DONTFORK); /* where it is refused, the child maps over what it has got */
}

static void drop_copy(void)
{
	if (copy.map)
		syscall(SYS_munmap, copy.map, copy.map_size);
	copy.made = copy.hidden = copy.torn = false;
	copy.map = copy.at = NULL;
	copy.pages = copy.map_size = 0;
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

static bool is_copied(size_t p)
{
	return hp_span.page[p].fork == HP_PAGE_COPIED;
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

/* Copy while other threads run, and then what they wrote meanwhile, until that is nothing or has been done often enough: what may
 * arrive in parts is what they write during the last pass, or to what somebody else watches. */
static void copy_by_passes(void)
{
	bool watched = false;

	/* Nothing but what is copied: what is write-protected and then written to is split into base pages. */
	if (hp_written_begin())
		for_runs(is_copied, watch_run, &watched);
	walk_live(COPY_ALL);
	for (int pass = 1; watched && pass < PASSES; pass++) {
		changed = 0;
		for_runs(is_copied, look_at_run, NULL);
		if (!changed)
			break;
		walk_live(COPY_AGAIN);
		for (size_t p = 1; p < hp_span.tree.used; p++)
			hp_span.page[p].again = 0;
	}
	hp_written_end();
}

/* alone: there is no other thread. */
static bool make_copy(size_t pages, bool alone)
{
	if (pages) {
		void *map = map_copy(pages);

		if (map == MAP_FAILED)
			return false;
		copy.map = map;
		copy.map_size = (pages + 1) << HP_PAGE_SHIFT;
		copy.pages = pages;
		copy.at = (char *)hp_round_up((uintptr_t)map, HP_PAGE);
		syscall(SYS_madvise, copy.at, pages << HP_PAGE_SHIFT, MADV_HUGEPAGE); /* without it base pages do */
		hp_map_bind((uintptr_t)copy.at, pages << HP_PAGE_SHIFT, &hp_span.nodes, false);
		if (syscall(SYS_madvise, copy.at, pages << HP_PAGE_SHIFT, MADV_POPULATE_WRITE) != 0) {
			drop_copy();
			return false;
		}
		copy.hidden = hp_advice_made() &&
			      syscall(SYS_madvise, copy.at, pages << HP_PAGE_SHIFT, MADV_DONTDUMP) == 0;
		if (alone)
			walk_live(COPY_ALL);
		else
			copy_by_passes();
		if (copy.torn) {
			drop_copy();
			return false;
		}
	}
	copy.made = true;
	return true;
}

static bool any_not_shared(void)
{
	for (size_t p = 1; p < hp_span.tree.used; p++)
		if (hp_span.page[p].state == HP_PAGE_READY && fate(p) != SHARED)
			return true;
	return false;
}

/* Where no drop-in sees the program's madvise, the kernel is asked. Not after it has refused to let in what we kept out. */
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

void hp_fork_prepare(bool listed, bool alone)
{
	int saved = errno;
	struct plan p;

	listed_too = listed;
	p = plan();

	if (dofork_refused)
		dofork_refused = for_runs(has_memory, let_in_run, NULL) != 0;
	learn_advice();
	if (p.how == HP_FORK_BY_COPY && make_copy(p.copied, alone)) {
		HP_STAT_ADD(forks_copied, 1);
		HP_STAT_ADD(fork_copied_bytes, p.copied << HP_PAGE_SHIFT);
		if (++copies >= 2) /* it keeps forking: memory whose copy-on-write needs no pool, from here on */
			hp_span.no_pool = true;
	} else if (p.how != HP_FORK_NOTHING) {
		HP_STAT_ADD(forks_cow, 1);
		if (!covers_pool(p.pool))
			HP_STAT_ADD(forks_uncovered, 1);
	}
	keep_out();
	errno = saved;
}

void hp_fork_parent(void)
{
	int saved = errno;

	listed_too = false;
	if (kept_some)
		dofork_refused |= for_runs(is_kept_out, let_in_run, NULL) != 0;
	kept_some = false;
	forget_advice();
	drop_copy();
	unmark();
	errno = saved;
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

static int move_in(void *at_, size_t first, size_t end)
{
	char **at = at_;
	size_t len = (end - first) << HP_PAGE_SHIFT;

	if (syscall(SYS_mremap, *at, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, hp_page_addr(first)) < 0)
		cannot("mremap");
	*at += len;
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
	int saved = errno;
	char *at = copy.at;

	listed_too = false;
	for_runs(is_copied, move_in, &at);
	if (copy.hidden)
		advise(is_copied, MADV_DODUMP);
	for_runs(is_gone, keep_reserved, NULL);
	if (!hp_advice_child())
		cannot("madvise");
	forget_advice();
	for (size_t p = 1; p < hp_span.tree.used; p++)
		hp_page_in_child(p);
	for (size_t p = hp_span.small; p < hp_span.tree.upper_used; p++)
		hp_page_in_child(p);
	if (copy.made)
		hp_span.no_pool = true; /* its own forks need no copy then */
	kept_some = false;
	drop_copy(); /* what is left of the mapping: before and behind the copy */
	unmark();
	errno = saved;
}
