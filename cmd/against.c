/*
 * What a user can have instead of hugepin for nothing. THP for all memory are a setting of the machine, which no
 * process can have for itself: where it is `always`, the runs without hugepin have them.
 */
#include "cmd/against.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/environment.h"

#define HUGETLB "glibc.malloc.hugetlb"

const char *const hp_against_names[HP_AGAINST] = { "tunable", "thp", "mimalloc" };

bool hp_against_parse(const char *list, bool ret_wanted[HP_AGAINST])
{
	for (;; list++) {
		const size_t len = strcspn(list, ",");
		int i = 0;

		while (i < HP_AGAINST &&
		       (strlen(hp_against_names[i]) != len || strncmp(list, hp_against_names[i], len)))
			i++;
		if (i == HP_AGAINST)
			return false;
		ret_wanted[i] = true;
		list += len;
		if (!*list)
			return true;
	}
}

static void look_at_tunable(const struct hp_against_facts *f, struct hp_against *ret_)
{
	const size_t size = sizeof ret_->absent;
	unsigned major = 0, minor = 0;
	char *tunables = NULL;

	sscanf(f->glibc, "glibc %u.%u", &major, &minor);
	if (major < 2 || (major == 2 && minor < 35))
		snprintf(ret_->absent, size, "it came with glibc 2.35, and this is %s", f->glibc);
	else if (hp_tunable(f->tunables, HUGETLB))
		snprintf(ret_->absent, size, "the runs without hugepin have it, since GLIBC_TUNABLES does");
	else if (strcmp(f->thp, "always") == 0)
		snprintf(ret_->absent, size, "it does nothing where the machine gives THP to all");
	else if (strcmp(f->thp, "madvise"))
		snprintf(ret_->absent, size, "it does nothing where transparent_hugepage/enabled is %s",
			 *f->thp ? f->thp : "missing");
	else if ((tunables = hp_tunables_with(f->tunables, HUGETLB, 1)) &&
		 asprintf(&ret_->set[0], "GLIBC_TUNABLES=%s", tunables) < 0)
		ret_->set[0] = NULL;
	free(tunables);
}

static void look_at_mimalloc(const struct hp_against_facts *f, struct hp_against *ret_)
{
	if (!f->mimalloc)
		snprintf(ret_->absent, sizeof ret_->absent, "%s", f->no_mimalloc);
	else if (asprintf(&ret_->set[0], "LD_PRELOAD=%s%s%s", f->mimalloc, f->preload && *f->preload ? ":" : "",
			  f->preload ? f->preload : "") < 0)
		ret_->set[0] = NULL;
	else {
		ret_->set[1] = "MIMALLOC_ALLOW_LARGE_OS_PAGES=1";
		ret_->set[2] = "MIMALLOC_LARGE_OS_PAGES=1"; /* its name before 2.1 */
	}
}

struct hp_against hp_against_look(int which, const struct hp_against_facts *f)
{
	static const char *const called[] = { "glibc's tunable", "THP for all memory", "mimalloc" };
	struct hp_against a = { .called = called[which] };

	if (which == HP_AGAINST_TUNABLE)
		look_at_tunable(f, &a);
	else if (which == HP_AGAINST_MIMALLOC)
		look_at_mimalloc(f, &a);
	else
		snprintf(a.absent, sizeof a.absent, "%s",
			 strcmp(f->thp, "always") == 0 ?
				 "the runs without hugepin have them, since the machine gives THP to all" :
				 "only the machine can have them: as root, echo always "
				 ">/sys/kernel/mm/transparent_hugepage/enabled, then check again");
	if (!a.absent[0] && !a.set[0])
		snprintf(a.absent, sizeof a.absent, "there is no memory");
	return a;
}
