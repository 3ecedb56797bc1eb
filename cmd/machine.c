/*
 * The kernel's settings and pools of hugepages.
 */
#include "cmd/machine.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/base.h"

static uint64_t pool_file(const char *dir, long page_size, const char *file)
{
	char path[256];

	snprintf(path, sizeof path, "%s/hugepages/hugepages-%ldkB/%s", dir, page_size >> 10, file);
	return hp_read_number(path, 0);
}

struct hp_pool hp_machine_pool(const char *dir, long page_size)
{
	return (struct hp_pool){
		.total = pool_file(dir, page_size, "nr_hugepages"),
		.free = pool_file(dir, page_size, "free_hugepages"),
		.reserved = pool_file(dir, page_size, "resv_hugepages"),
		.surplus = pool_file(dir, page_size, "surplus_hugepages"),
		.overcommit = pool_file(dir, page_size, "nr_overcommit_hugepages"),
	};
}

bool hp_pool_has(const struct hp_pool *p)
{
	return p->free > p->reserved || p->surplus < p->overcommit;
}

char *hp_machine_choice(const char *path, char word[HP_TEXT_MAX])
{
	char text[256];

	word[0] = '\0';
	if (hp_read_file(path, text, sizeof text) > 0 && strchr(text, '['))
		sscanf(strchr(text, '['), "[%31[^]]", word);
	return word;
}

bool hp_machine_thp(void)
{
	char all[HP_TEXT_MAX], size[HP_TEXT_MAX];
	const char *choice = hp_machine_choice(HP_THP_DIR "enabled", all);

	if (*hp_machine_choice(HP_THP_DIR "hugepages-2048kB/enabled", size) ? strcmp(size, "inherit") != 0 : !hp_page_is_pmd())
		choice = size; /* if base pages are larger, there is only a size of 2 MiB with a file of its own */
	return (!strcmp(choice, "always") || !strcmp(choice, "madvise")) && prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) != 1;
}

/* A file of 2 MiB without a name, which nobody may write to any more; -1: none here. A tmpfs has hugepages by other
 * rules. */
static int make_file(const char *directory)
{
	char path[32];
	struct statfs fs;
	const int writable = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	int fd = -1;

	if (writable < 0)
		return -1;
	snprintf(path, sizeof path, "/proc/self/fd/%d", writable);
	if (fstatfs(writable, &fs) == 0 && fs.f_type != TMPFS_MAGIC && ftruncate(writable, HP_PAGE) == 0)
		fd = open(path, O_RDONLY | O_CLOEXEC);
	close(writable);
	return fd;
}

int hp_machine_thp_files(void)
{
	int fd = make_file("/var/tmp"), collapsed = -1;

	if (fd < 0)
		fd = make_file("/tmp");
	if (fd < 0)
		return -1;
	char *const all = mmap(NULL, 2 * HP_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (all != MAP_FAILED) {
		char *const at = all + (-(uintptr_t)all & (HP_PAGE - 1));

		if (mmap(at, HP_PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) == at)
			collapsed = madvise(at, HP_PAGE, HP_MADV_COLLAPSE) == 0;
		munmap(all, 2 * HP_PAGE);
	}
	close(fd);
	return collapsed;
}

bool hp_machine_counts(bool code)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HW_CACHE,
		.size = sizeof attr,
		.config = (code ? PERF_COUNT_HW_CACHE_ITLB : PERF_COUNT_HW_CACHE_DTLB) |
			  PERF_COUNT_HW_CACHE_OP_READ << 8 | PERF_COUNT_HW_CACHE_RESULT_MISS << 16,
		.disabled = 1,
		.exclude_kernel = 1,
		.exclude_hv = 1,
	};
	const int fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}
