/*
 * See image.h.
 *
 * Carries out the plan. Bss is advised, since it is anonymous already. Data and text are copied into anonymous memory
 * in hugepages, which then takes the place of the file's mapping: the kernel collapses no private mapping of a file
 * that was written to, and Debian's kernels collapse none of read-only files.
 *
 * Transparent hugepages alone, never the pool's. A child of fork writes to bss and data before any handler could run
 * (copy relocations of the C library, stacks, buffers of streams), and dies where the pool has no page for its copy.
 *
 * A copy must be of memory that nobody changes meanwhile, so no other thread may run, and signals wait.
 */
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "alloc/map.h"
#include "alloc/peak.h"
#include "base/base.h"
#include "base/config.h"
#include "base/map.h"
#include "base/pagescan.h"
#include "base/proc.h"
#include "base/smaps.h"
#include "base/stats.h"
#include "base/sys.h"
#include "base/text.h"
#include "dropin/image.h"
#include "dropin/image_plan.h"

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

/* A library's static memory is rarely used as a whole. */
#define LIBRARY_LEAST (4 * HP_PAGE)

static const char *const kinds[] = { [HP_IMAGE_BSS] = "bss", [HP_IMAGE_DATA] = "data", [HP_IMAGE_TEXT] = "text" };

static void leave_alone(const struct hp_image_range *r, const char *object, const char *why)
{
	char buf[200];
	struct hp_line l = { buf, buf + sizeof buf };
	const char *name = strrchr(object, '/'); /* with the directory the line might be too long for the reason */

	HP_STAT_COUNT(image_left_bytes, r->end - r->start);
	if (!hp_config.stats)
		return;
	hp_line_text(&l, "HUGEPIN_IMAGE: ");
	hp_line_text(&l, kinds[r->kind]);
	hp_line_text(&l, " of ");
	hp_line_text(&l, name ? name + 1 : *object ? object : "the program");
	hp_line_text(&l, " (");
	hp_line_size(&l, r->end - r->start);
	hp_line_text(&l, ") is left alone: ");
	hp_line_text(&l, why);
	hp_say(buf, NULL, SIZE_MAX);
}

/* ------------------------------------------------------------------ what is mapped */

struct rights {
	const struct hp_image_range *range;
	uintptr_t known; /* mappings as they should be reach to here */
};

static bool look_at(void *arg, const struct hp_mapping *m)
{
	struct rights *r = arg;
	const bool text = r->range->kind == HP_IMAGE_TEXT;

	if (m->end <= r->known)
		return true;
	if (m->start > r->known || !m->readable || m->shared || m->writable == text || m->executable != text)
		return false;
	r->known = m->end;
	return m->end < r->range->end;
}

/* Whether the range has the rights that its segment has: nobody has changed them. */
static bool as_loaded(const struct hp_image_range *range)
{
	struct rights r = { range, range->start };
	char buffer[1024];

	return hp_mappings_each(-1, buffer, sizeof buffer, look_at, &r) == 0 && r.known >= range->end;
}

static void look_for_more(void *range_, const struct hp_smaps *m)
{
	struct hp_image_range *range = range_;
	const unsigned rights = HP_SMAPS_READ | HP_SMAPS_WRITE | HP_SMAPS_EXEC;

	if (m->start < range->end && m->end > range->start && m->flags & ~rights)
		range->end = range->start;
}

/* Whether a constructor has locked a part, keeps it from children or the like: the copy would have nothing of that. */
static bool is_special(const struct hp_image_range *range)
{
	struct hp_image_range left = *range;
	char buffer[1024];

	hp_smaps_each(buffer, sizeof buffer, look_for_more, &left);
	return left.end != range->end;
}

/* Whether text has pages of this process alone, or might have: uprobes and debuggers write traps there, and the loader
 * relocates. The kernel knows its traps by the file that is mapped: in a copy they kill the program. */
static bool is_changed(const struct hp_image_range *r)
{
	enum { ENTRIES = 512 };
	const size_t count = (r->end - r->start) / hp_base_page;
	const int fd = (int)hp_sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t entry[ENTRIES];
	bool changed = fd < 0;

	for (size_t i = 0, n; i < count && !changed; i += n) {
		n = HP_MIN(count - i, (size_t)ENTRIES);
		changed = hp_sys(SYS_pread64, fd, entry, n * sizeof *entry,
				 (r->start / hp_base_page + i) * sizeof *entry) != (long)(n * sizeof *entry);
		for (size_t j = 0; j < n && !changed; j++)
			changed = entry[j] & (HP_PAGEMAP_PRESENT | HP_PAGEMAP_SWAPPED) && !(entry[j] & HP_PAGEMAP_FILE);
	}
	if (fd >= 0)
		hp_sys(SYS_close, fd);
	return changed;
}

/* ------------------------------------------------------------------ bss */

/* Hugepages of which something was touched before the advice: by constructors, or by the loader's relocations. */
static void collapse_touched(uintptr_t start, uintptr_t end)
{
	const size_t pages = HP_PAGE / hp_base_page;
	unsigned char there[HP_PAGE / 4096];

	for (uintptr_t at = start; at < end; at += HP_PAGE)
		if (hp_sys(SYS_mincore, at, HP_PAGE, there) == 0)
			for (size_t i = 0; i < pages; i++)
				if (there[i] & 1) {
					hp_raw_madvise((void *)at, HP_PAGE, HP_MADV_COLLAPSE); /* else khugepaged may */
					break;
				}
}

static const char *advise(const struct hp_image_range *r)
{
	if (hp_raw_madvise((void *)r->start, r->end - r->start, MADV_HUGEPAGE))
		return "the kernel refuses the advice";
	collapse_touched(r->start, r->end);
	return NULL;
}

/* ------------------------------------------------------------------ data and text */

#define AT_ONCE (8 * HP_PAGE)

/* Memory for a copy, aligned to hugepages and advised. NULL: there is none. */
static char *map_copy(size_t len)
{
	long map = hp_raw_mmap(len + HP_PAGE, PROT_READ | PROT_WRITE, 0);
	char *p = (char *)map;
	const size_t before = -(uintptr_t)p & (HP_PAGE - 1);

	if (hp_sys_failed(map))
		return NULL;
	if (before)
		hp_raw_munmap(p, before);
	hp_raw_munmap(p + before + len, HP_PAGE - before);
	if (hp_raw_madvise(p + before, len, MADV_HUGEPAGE)) {
		hp_raw_munmap(p + before, len);
		return NULL;
	}
	return p + before;
}

static const char *copy(const struct hp_image_range *r)
{
	const size_t len = r->end - r->start;
	char *p;

	if (hp_thread_count() != 1)
		return "other threads run already";
	if (!as_loaded(r))
		return "its protection was changed";
	if (is_special(r))
		return "a part is locked, sealed or advised";
	if (r->kind == HP_IMAGE_TEXT && is_changed(r))
		return "probes, a debugger or the loader changed it";
	/* A kernel that has hugepages for files keeps the file's name. */
	if (r->kind == HP_IMAGE_TEXT && hp_raw_madvise((void *)r->start, len, HP_MADV_COLLAPSE) == 0)
		return NULL;
	p = map_copy(len);
	if (!p)
		return "there is no memory for a copy";
	/* In pieces, whose pages of the file go before the next ones are read: else the program's peak of memory would
	 * be twice its data. They are one mapping afterwards. Text as a whole, for perf's sake. */
	for (size_t at = 0, n; at < len; at += n) {
		n = r->kind == HP_IMAGE_TEXT ? len : HP_MIN(len - at, AT_ONCE);
		memcpy(p + at, (void *)(r->start + at), n);
		if (r->kind == HP_IMAGE_TEXT) {
			/* perf hears of executable memory when its protection is set, and of no move afterwards. So it
			 * keeps naming these addresses after the file. A debugger takes text that a core dump lacks
			 * from the file. */
			if (hp_raw_mprotect(p, len, PROT_READ | PROT_EXEC)) {
				hp_raw_munmap(p, len);
				return "the kernel refuses executable memory";
			}
			hp_raw_madvise(p, len, MADV_DONTDUMP);
		}
		/* No hook needs to hear that the file's mapping goes: before main nothing of it is registered. */
		if (hp_sys_failed(hp_raw_mremap(p + at, n, (void *)(r->start + at)))) {
			hp_raw_munmap(p + at, len - at);
			return "the kernel refuses the move";
		}
	}
	/* A name for /proc/PID/maps, where the kernel has such names. */
	hp_sys(SYS_prctl, PR_SET_VMA, PR_SET_VMA_ANON_NAME, r->start, len,
	       r->kind == HP_IMAGE_TEXT ? "hugepin text" : "hugepin data");
	return NULL;
}

/* ------------------------------------------------------------------ objects */

/* The process that hugepin_image_() has run in, and the number of objects it had then. The loader appends later
 * ones. */
static struct {
	pid_t pid;
	size_t objects;
} start;

/* Whether code that runs while text is moved lies in this range. */
static bool runs_here(const struct hp_image_range *r)
{
	const uintptr_t code[] = { (uintptr_t)hugepin_image_, (uintptr_t)hp_sys_call, (uintptr_t)memcpy };

	for (size_t i = 0; i < sizeof code / sizeof code[0]; i++)
		if (code[i] >= r->start && code[i] < r->end)
			return true;
	return false;
}

typedef void each_range(void *arg, const struct hp_image_range *r);

static void plan(const struct dl_phdr_info *info, int want, size_t least, each_range *each, void *arg)
{
	hp_image_plan(info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum, hp_base_page, want, least, each, arg);
}

/* Of all objects: the one that is looked at, and what holds for all. */
struct objects {
	const char *name;
	bool first, thp;
};

static void one_range(void *objects, const struct hp_image_range *r)
{
	const struct objects *o = objects;
	const char *why = !o->thp ? "transparent hugepages are off"
			  : r->kind == HP_IMAGE_BSS ? advise(r)
			  : r->kind == HP_IMAGE_TEXT && runs_here(r) ? "it does this work"
								      : copy(r);

	if (why)
		leave_alone(r, o->name, why);
	else
		HP_STAT_COUNT(image_bytes, r->end - r->start);
}

static int one_object(struct dl_phdr_info *info, size_t size, void *objects)
{
	struct objects *o = objects;
	const size_t least = o->first ? HP_PAGE : LIBRARY_LEAST;

	(void)size;
	o->first = false; /* the program comes first */
	start.objects++;
	o->name = info->dlpi_name;
	plan(info, (int)hp_config.image, least, one_range, o);
	return 0;
}

void hugepin_image_(void)
{
	const int saved_errno = errno;
	struct objects o = { .first = true };
	uint64_t signals;

	if (hp_config_load() || hp_config.image == HP_IMAGE_OFF)
		return;
	signals = hp_signals_block(HP_SIGNALS);
	o.thp = hp_map_thp_enabled();
	dl_iterate_phdr(one_object, &o);
	hp_signals_block(signals);
	start.pid = hp_pid();
	errno = saved_errno;
}

static void later_range(void *object, const struct hp_image_range *r)
{
	leave_alone(r, object, "it was opened later");
}

static int later_object(struct dl_phdr_info *info, size_t size, void *arg)
{
	size_t *before = arg;

	(void)size;
	if (*before)
		--*before;
	else
		plan(info, (int)hp_config.image, LIBRARY_LEAST, later_range, (void *)info->dlpi_name);
	return 0;
}

void hugepin_image_end_(void)
{
	const int saved_errno = errno;
	size_t before = start.objects;

	/* A child of fork may have inherited the loader's lock from a thread that it has not. Its parent tells. */
	if (hp_config.image != HP_IMAGE_OFF && hp_peak_on && hp_pid() == start.pid)
		dl_iterate_phdr(later_object, &before);
	errno = saved_errno;
}
