/* See stats.h. */
#include "base/stats.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/base.h"
#include "base/kept.h"
#include "base/sys.h"

/* Exported as hugepin_stats_page. The initial values are not zero, so that the page is part of the file, in which
 * `hugepin top` looks for it. */
struct hp_exposed hp_exposed = {
	.page = { .size = sizeof(struct hugepin_stats), .stats.version = HUGEPIN_VERSION },
	.view = { .magic = HP_VIEW_MAGIC, .version = HP_VIEW_VERSION, .size = sizeof(struct hp_view) },
};
extern struct hugepin_stats_page hugepin_stats_page __attribute__((alias("hp_exposed"), visibility("default")));

_Static_assert(sizeof(struct hp_exposed) == HP_STATS_PAGE, "one page");

void hp_stats_copy(struct hugepin_stats *ret_)
{
	ret_->version = HUGEPIN_VERSION;
#define COPY(name, unit, sentence) ret_->name = HP_STAT_GET(name);
	HUGEPIN_STATS_LIST(COPY)
#undef COPY
}

/* A duplicate of stderr, made at the start: coreutils close theirs before the statistics are written. */
static struct hp_kept kept_stderr = HP_KEPT_NONE;

void hp_stats_keep(void)
{
	int fd = (int)hp_sys(SYS_fcntl, STDERR_FILENO, F_DUPFD_CLOEXEC, 100);

	hp_kept_set(&kept_stderr, fd < 0 ? STDERR_FILENO : fd);
}

void hp_stats_write_kept(const char *text, size_t len)
{
	const int fds[] = { hp_kept_fd(&kept_stderr), STDERR_FILENO };

	for (int i = 0; i < 2 && fds[0] >= 0; i++) {
		if (hp_kept_is(&kept_stderr, fds[i])) {
			hp_sys(SYS_write, fds[i], text, len);
			return;
		}
	}
}
