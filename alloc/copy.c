/* See copy.h. */
#include "alloc/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/madvise.h"
#include "base/pagescan.h"
#include "base/sys.h"
#include "base/there.h"

/* Bytes around the stack pointer that the frames of fork() and of the functions called by handlers may write. */
#define STACK_BELOW 65536
#define STACK_ABOVE 16384
/* Thread-local data lies within so many bytes below a known variable of ours or of the C library's, and above the
 * thread pointer. */
#define THREAD_BELOW 8192
#define THREAD_ABOVE 8192

/* A hugepage is slow if populating it takes SLOW_TIMES as long as populating as many base pages, and SLOW_NS, because
 * less is never slow. After SLOW_PAGES slow hugepages, the rest of the copy is of base pages. */
#define SLOW_PAGES 2
#define SLOW_TIMES 3
#define SLOW_NS 1000000

static struct {
	char *map, *at; /* at: the aligned copy inside the mapping, or its part not yet moved; NULL: none */
	char *end; /* end of the mapping */
	size_t pages, ready; /* ready: the first of them that are populated */
	unsigned slow; /* slow hugepages */
	uint64_t base_ns; /* the time for a hugepage's base pages; 0: not measured */
	bool used; /* this memory was kept since tick `since`, so its contents are not zero */
	uint32_t since;
} copy;

static char *end_of_copy(void)
{
	return copy.at + (copy.pages << HP_PAGE_SHIFT);
}

/* ------------------------------------------------------------------ which pages */

/* Whether the child's part of fork() uses any of pages [p, p + count) before our handlers run. */
static bool is_used_early(size_t p, size_t count)
{
	uintptr_t from = hp_page_addr(p), to = hp_page_addr(p + count), frame = (uintptr_t)__builtin_frame_address(0);
	uintptr_t thread = (uintptr_t)__builtin_thread_pointer();
	uintptr_t variables = HP_MIN((uintptr_t)&errno, (uintptr_t)&hp_locks_held) - THREAD_BELOW;

	if ((from < frame + STACK_ABOVE && to > frame - STACK_BELOW) ||
	    (from < thread + THREAD_ABOVE && to > variables))
		return true;
	for (size_t q = p; q < p + count; q++)
		if (hp_madvise_is_stack(q))
			return true;
	return false;
}

bool hp_copy_is_early(size_t p)
{
	return hp_span.page[p].giant ? is_used_early(p & ~(HP_GIANT_PAGES - 1), HP_GIANT_PAGES) : is_used_early(p, 1);
}

int hp_copy_runs(bool (*take)(size_t p), int (*each)(void *arg, size_t first, size_t end), void *arg)
{
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP];) {
		size_t q = p;

		while (q < hp_span.end[HP_PART_HEAP] && take(q))
			q++;
		if (q > p) {
			int err = each(arg, p, q);

			if (err)
				return err;
		}
		p = q + 1;
	}
	return 0;
}

bool hp_copy_is_marked(size_t p)
{
	return hp_span.page[p].fork == HP_PAGE_COPIED;
}

/* ------------------------------------------------------------------ live buffers */

/* A part of a buffer that lies in one hugepage. */
typedef void each_part(void *arg, size_t page, size_t from, size_t to);

static void each_live(bool listed_too, each_part *each, void *arg)
{
	for (size_t c = HP_PAGE_CHUNKS; c < hp_span.end[HP_PART_HEAP] << HP_PAGE_CHUNKS_SHIFT;) {
		size_t p = c >> HP_PAGE_CHUNKS_SHIFT;

		if (hp_span.page[p].state == HP_PAGE_NONE) {
			c = (p + 1) << HP_PAGE_CHUNKS_SHIFT;
			continue;
		}

		size_t gap = hp_holes_after(&hp_span.holes, c, HP_PAGE_CHUNKS);

		if (gap) {
			c += gap;
			continue;
		}

		uint64_t w = hp_chunk_get(c);
		unsigned state = HP_CHUNK_STATE(w);

		if (state == HP_CHUNK_FREE) { /* an allocation has taken it, and still waits for its pages */
			c++;
			continue;
		}

		size_t end = c + (state == HP_CHUNK_LISTED && !listed_too ? 0 : HP_CHUNK_COUNT(w));

		for (size_t from = c, to; from < end; from = to) {
			size_t q = from >> HP_PAGE_CHUNKS_SHIFT;

			to = HP_MIN(end, (q + 1) << HP_PAGE_CHUNKS_SHIFT);
			each(arg, q, from, to);
		}
		c += hp_chunk_extent(c);
	}
}

struct marking {
	enum hp_page_fork (*fate)(size_t p);
	size_t copied;
};

static void mark_part(void *marking, size_t page, size_t from, size_t to)
{
	struct marking *m = marking;
	struct hp_page *g = &hp_span.page[page];

	(void)from, (void)to;
	if (g->fork != HP_PAGE_SHARED)
		return;
	g->fork = m->fate(page) & 3;
	m->copied += g->fork == HP_PAGE_COPIED;
}

size_t hp_copy_mark(enum hp_page_fork (*fate)(size_t p), bool listed_too)
{
	struct marking m = { .fate = fate };

	each_live(listed_too, mark_part, &m);
	return m.copied;
}

void hp_copy_unmark(void)
{
	for (size_t p = 1; p < hp_span.end[HP_PART_HEAP]; p++)
		hp_span.page[p].fork = HP_PAGE_SHARED;
}

struct filling {
	size_t slot, last; /* slot: index of page `last` in the copy */
	bool again, failed;
	char *zeroed; /* for kept memory: the copy is filled up to here; else NULL */
};

static bool populate_to(size_t pages);

static void fill_part(void *filling, size_t page, size_t from, size_t to)
{
	struct filling *f = filling;
	const struct hp_page *g = &hp_span.page[page];
	char *out, *end;

	if (g->fork != HP_PAGE_COPIED || (f->again && !g->again))
		return;
	for (; f->last < page; f->last++)
		f->slot += hp_copy_is_marked(f->last);
	f->failed |= !populate_to(f->slot + 1);
	if (f->failed)
		return;
	out = copy.at + (f->slot << HP_PAGE_SHIFT) + ((from & (HP_PAGE_CHUNKS - 1)) << HP_CHUNK_SHIFT);
	end = out + ((to - from) << HP_CHUNK_SHIFT);
	if (f->zeroed) { /* parts of an advised page may be left out of the copy: clear the whole page */
		memset(f->zeroed, 0, (size_t)((g->advised ? end : out) - f->zeroed));
		f->zeroed = end;
	}
	if (!g->advised && !g->holes)
		memcpy(out, (void *)hp_chunk_addr(from), (to - from) << HP_CHUNK_SHIFT);
	else if (!g->advised)
		hp_there_copy(out, (void *)hp_chunk_addr(from), (to - from) << HP_CHUNK_SHIFT);
	else
		f->failed |= !hp_madvise_read(out, from, to - from);
}

static void note_holes(uintptr_t from, uintptr_t to)
{
	for (size_t p = hp_page_at(from); from < to && p <= hp_page_at(to - 1); p++)
		hp_span.page[p].holes = 1;
}

static void pass_part(void *at_, uintptr_t from, uintptr_t to)
{
	uintptr_t *at = at_;

	note_holes(*at, from);
	*at = to;
}

static int look_for_holes(void *unused, size_t first, size_t end)
{
	uintptr_t at = hp_page_addr(first);

	(void)unused;
	for (size_t p = first; p < end; p++)
		hp_span.page[p].holes = 0;
	if (hp_there_each(at, hp_page_addr(end), pass_part, &at))
		note_holes(at, hp_page_addr(end));
	return 0;
}

/* The fork holds locks, so it must not touch what a userfaultfd of the program's watches and has no memory yet: the
 * thread that gives the memory may need these locks. Where the kernel does not tell, or another thread discards memory
 * right now, it touches. */
bool hp_copy_fill(bool again, bool listed_too)
{
	struct filling f = { .again = again, .zeroed = copy.used && !again ? copy.at : NULL };

	hp_copy_runs(hp_copy_is_marked, look_for_holes, NULL);
	each_live(listed_too, fill_part, &f);
	f.failed |= !populate_to(copy.pages);
	if (f.zeroed && !f.failed)
		memset(f.zeroed, 0, (size_t)(end_of_copy() - f.zeroed));
	return !f.failed;
}

/* ------------------------------------------------------------------ does it fit */

static uint64_t read_value(const char *dir, const char *file, const char *key)
{
	static char text[8192]; /* protected by hp_heap_lock */
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

static uint64_t free_room(void)
{
	static char text[4096]; /* protected by hp_heap_lock */
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

/* Whether no child shares the kept memory any more. If one does, the next write to a shared page would copy the page.
 * Returns false under a filter of system calls, which might end the process for the question. */
static bool is_own(void)
{
	int fd = hp_is_filtered() ? -1 : (int)hp_sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	const uint64_t own = HP_PAGEMAP_PRESENT | HP_PAGEMAP_EXCLUSIVE;
	uint64_t entry = fd >= 0 ? own : 0;

	for (char *at = copy.at; (entry & own) == own && at < end_of_copy(); at += HP_PAGE)
		if (hp_sys(SYS_pread64, fd, &entry, sizeof entry, (uintptr_t)at / hp_base_page * sizeof entry) !=
		    sizeof entry)
			entry = 0;
	if (fd >= 0)
		hp_sys(SYS_close, fd);
	return (entry & own) == own;
}

uint64_t hp_copy_room(size_t pages)
{
	uint64_t room;

	if (copy.used && (copy.pages < pages || !is_own()))
		hp_copy_drop();
	room = free_room();
	return room == UINT64_MAX ? room : room + hp_copy_kept();
}

/* ------------------------------------------------------------------ its memory */

static bool is_in_span(const void *p)
{
	return hp_span_offset(&hp_span, p) < hp_span.size;
}

static void unmap(const void *at, size_t len)
{
	if (!is_in_span(at)) {
		hp_sys(SYS_munmap, at, len);
	} else if (!hp_sys_failed(hp_sys(SYS_mmap, at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1))) {
		hp_sys(SYS_madvise, at, len, MADV_DONTDUMP); /* as all of the span that is only reserved */
	} else { /* another mapping may come there, so the heap does without these addresses */
		hp_span_end_at(hp_page_at((uintptr_t)at));
	}
}

/* Memory for the copy, or for a trial. If the process may have no more addresses (RLIMIT_AS), it lies at the unused end
 * of the span, whose addresses count already. There is one such place. Returns the address, or -errno. */
static long map(size_t len, int prot)
{
	size_t pages = hp_round_up(len, HP_PAGE) >> HP_PAGE_SHIFT;
	long p = hp_sys(SYS_mmap, NULL, len, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1), err;

	if (p != -ENOMEM || hp_span.pages - hp_span.end[HP_PART_HEAP] < pages || (copy.map && is_in_span(copy.map)))
		return p;
	p = (long)hp_page_addr(hp_span.pages - pages);
	err = hp_sys(SYS_mprotect, p, len, prot); /* not mapped over, so that a refusal leaves no hole */
	if (err) {
		unmap((void *)p, len); /* a part may have got access */
		return err;
	}
	hp_sys(SYS_madvise, p, len, MADV_DODUMP);
	return p;
}

/* The address, or -errno. */
static long map_copy(size_t pages)
{
	return map((pages + 1) << HP_PAGE_SHIFT, PROT_READ | PROT_WRITE);
}

static bool could_map(size_t pages)
{
	long p = map_copy(pages);

	if (hp_sys_failed(p))
		return false;
	unmap((void *)p, (pages + 1) << HP_PAGE_SHIFT);
	return true;
}

bool hp_copy_may_map(size_t pages)
{
	return pages <= copy.pages || could_map(pages);
}

/* Nothing tells how many mappings a process has, so make them: each second page of a range becomes a mapping. */
bool hp_copy_may_split(size_t mappings)
{
	size_t pieces = mappings / 2 + 1, len = (2 * pieces + 1) * hp_base_page;
	long at = map(len, PROT_READ);
	bool ok = !hp_sys_failed(at);

	for (size_t i = 0; ok && i < pieces; i++)
		ok = hp_sys(SYS_mprotect, (size_t)at + (2 * i + 1) * hp_base_page, hp_base_page, PROT_NONE) == 0;
	if (!hp_sys_failed(at)) {
		hp_sys(SYS_mprotect, at, len, PROT_NONE); /* one again, because unmapping may need one more */
		unmap((void *)at, len);
	}
	return ok;
}

static void advise_copy(char *at, size_t pages, int advice)
{
	hp_sys(SYS_madvise, at, pages << HP_PAGE_SHIFT, advice); /* a refusal is harmless: pages of another size do */
}

/* ret_ns: the processor's time, because another process that ran meanwhile makes no memory slow. It is 0 under a filter
 * of system calls, which might end the process for the question. False: there is no memory. */
static bool populate(char *at, size_t pages, uint64_t *ret_ns)
{
	bool may_ask = !hp_is_filtered();
	uint64_t start = may_ask ? hp_thread_ns() : 0;
	int err = hp_populate((uintptr_t)at, pages << HP_PAGE_SHIFT, true);

	*ret_ns = may_ask ? hp_thread_ns() - start : 0;
	return err == 0;
}

/* The time to populate the base pages of one hugepage, measured on memory that is thrown away. */
static bool time_base_pages(uint64_t *ret_ns)
{
	long p = map_copy(1);
	char *at = (char *)hp_round_up((uintptr_t)p, HP_PAGE);
	bool ok;

	if (hp_sys_failed(p))
		return false;
	advise_copy(at, 1, MADV_NOHUGEPAGE);
	ok = populate(at, 1, ret_ns);
	unmap((void *)p, 2 << HP_PAGE_SHIFT);
	return ok;
}

/* Populate the first hugepages of the copy, unless they are populated. If some hugepages are much slower than base
 * pages, use base pages for the rest. This happens on virtual machines, where a hugepage that is free in the guest
 * often has no memory in the host yet.
 *
 * The whole copy must stay one mapping, since before Linux 6.17 mremap moves no more than one. Parts that were first
 * populated under different advice remain several mappings for good. So the first page is populated before the advice
 * differs, and at the end all parts have the same advice. */
static bool populate_to(size_t pages)
{
	while (copy.ready < pages) {
		char *at = copy.at + (copy.ready << HP_PAGE_SHIFT);
		bool all = copy.slow >= SLOW_PAGES;
		size_t n = all ? copy.pages - copy.ready : 1;
		uint64_t ns;

		if (all)
			advise_copy(at, n, MADV_NOHUGEPAGE);
		if (!populate(at, n, &ns))
			return false;
		if (all)
			advise_copy(at, n, MADV_HUGEPAGE); /* the kernel may collapse the base pages later */
		else if (ns > SLOW_NS && (copy.base_ns || time_base_pages(&copy.base_ns)))
			copy.slow += ns > SLOW_TIMES * copy.base_ns;
		copy.ready += n;
	}
	return true;
}

/* Use the kept memory, without the excess. It is populated anew, because it was shared with a child, so that each base
 * page would take a fault of its own. */
static bool use_again(size_t pages)
{
	size_t excess = (copy.pages - pages) << HP_PAGE_SHIFT;

	if (copy.pages < pages || hp_sys(SYS_madvise, copy.map, copy.end - copy.map, MADV_DODUMP) != 0)
		return false;
	if (excess && hp_sys(SYS_munmap, copy.end - excess, excess) == 0) {
		copy.end -= excess;
		copy.pages = pages;
	}
	copy.ready = 0;
	return true;
}

bool hp_copy_map(size_t pages)
{
	long p;

	if (copy.used && use_again(pages))
		return true;
	hp_copy_drop();
	p = map_copy(pages);
	if (hp_sys_failed(p))
		return false;
	copy.map = (char *)p;
	copy.end = copy.map + ((pages + 1) << HP_PAGE_SHIFT);
	copy.pages = pages;
	copy.at = (char *)hp_round_up((uintptr_t)p, HP_PAGE);
	hp_map_bind((uintptr_t)copy.at, pages << HP_PAGE_SHIFT, &hp_span.nodes, false);
	advise_copy(copy.at, pages, MADV_HUGEPAGE);
	return true;
}

bool hp_copy_hide(void)
{
	return hp_sys(SYS_madvise, copy.at, copy.pages << HP_PAGE_SHIFT, MADV_DONTDUMP) == 0;
}

/* Unmap the slack around the copy, one hugepage in total. */
static void drop_slack(void)
{
	char *end = end_of_copy();

	if (copy.at > copy.map)
		unmap(copy.map, (size_t)(copy.at - copy.map));
	if (copy.end > end)
		unmap(end, (size_t)(copy.end - end));
	copy.map = copy.at;
	copy.end = end;
}

static bool put_run(size_t first, size_t count)
{
	size_t len = count << HP_PAGE_SHIFT;

	if (hp_sys_failed(hp_sys(SYS_mremap, copy.at, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, hp_page_addr(first))))
		return false;
	copy.at += len;
	copy.pages -= count;
	return true;
}

/* Copy a page's contents back, if mremap refuses to move even this page alone. */
static bool put_contents(size_t p)
{
	if (hp_sys_failed(hp_sys(SYS_mmap, hp_page_addr(p), HP_PAGE, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1)))
		return false;
	hp_sys(SYS_madvise, hp_page_addr(p), HP_PAGE, MADV_HUGEPAGE);
	memcpy((void *)hp_page_addr(p), copy.at, HP_PAGE);
	copy.at += HP_PAGE;
	copy.pages--;
	return true;
}

/* Whether the next page of the copy has moved. Since Linux 6.17 mremap moves several mappings, and may have moved some
 * of them when it fails. MS_ASYNC only looks for mappings. mincore would tell as well, but systemd's @system-service
 * lacks it. */
static bool has_moved(void)
{
	return hp_sys(SYS_msync, copy.at, HP_PAGE, MS_ASYNC) == -ENOMEM;
}

size_t hp_copy_put(size_t first, size_t end)
{
	if (put_run(first, end - first))
		return end;
	/* Go page by page, since mremap may refuse the whole run for two reasons. Either the copy is several mappings,
	 * or strict overcommit counts the copy twice while it moves; then the kernel has unmapped the target before it
	 * refuses. Dropping the slack makes room for one page. */
	drop_slack();
	for (; first < end && copy.pages && has_moved(); first++) {
		copy.at += HP_PAGE;
		copy.pages--;
	}
	for (size_t p = first; p < end; p++)
		if (!put_run(p, 1) && !put_contents(p))
			return p;
	return end;
}

size_t hp_copy_drop(void)
{
	size_t bytes = (size_t)(copy.end - copy.map);

	if (bytes)
		unmap(copy.map, bytes);
	copy.map = copy.at = copy.end = NULL;
	copy.pages = copy.ready = 0;
	copy.slow = 0;
	copy.base_ns = 0;
	copy.used = false;
	return bytes;
}

void hp_copy_keep(void)
{
	copy.used = !is_in_span(copy.map) && could_map(copy.pages) &&
		    hp_sys(SYS_madvise, copy.map, copy.end - copy.map, MADV_DONTDUMP) == 0;
	copy.since = hp_span.holes.now;
	if (!copy.used)
		hp_copy_drop();
}

size_t hp_copy_kept(void)
{
	return copy.used ? copy.pages << HP_PAGE_SHIFT : 0;
}

bool hp_copy_age(uint32_t ticks)
{
	if (copy.used && hp_span.holes.now - copy.since >= ticks)
		hp_copy_drop();
	return copy.used;
}
