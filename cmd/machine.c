/*
 * The kernel's settings and pools of hugepages.
 */
#include "cmd/machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

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

	if (*hp_machine_choice(HP_THP_DIR "hugepages-2048kB/enabled", size) ? strcmp(size, "inherit") != 0 :
									      !hp_page_is_pmd())
		choice = size; /* if base pages are larger, there is only a size of 2 MiB with a file of its own */
	return (!strcmp(choice, "always") || !strcmp(choice, "madvise")) && prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) != 1;
}

struct hp_ticks hp_machine_ticks(const char *line)
{
	uint64_t user, nice, system, idle, wait, irq, softirq, steal;

	if (strncmp(line, "cpu ", 4) ||
	    sscanf(line + 4,
		   "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &user,
		   &nice, &system, &idle, &wait, &irq, &softirq, &steal) != 8)
		return (struct hp_ticks){ 0, 0 };
	const uint64_t busy = user + nice + system + irq + softirq + steal;
	return (struct hp_ticks){ busy, busy + idle + wait };
}
