/*
 * The kernel's settings and pools of hugepages.
 */
#include "cmd/machine.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/advice.h"
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
	char all[256], size[256];
	const bool has_all = hp_read_file(HP_THP_DIR "enabled", all, sizeof all) > 0;
	const bool has_size = hp_read_file(HP_THP_DIR "hugepages-2048kB/enabled", size, sizeof size) > 0;

	return has_all &&
	       hp_thp_judge(all, has_size ? size : NULL, prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) == HP_THP_ALLOWED;
}
