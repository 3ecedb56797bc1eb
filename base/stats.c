#include "base/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"

/* Exported as hugepin_stats_page. Not zero, so that it is a page of the file, where `hugepin top` looks for it. */
struct hp_exposed hp_exposed = {
	.page = { .size = sizeof(struct hugepin_stats), .stats.version = HUGEPIN_VERSION },
	.view = { .magic = HP_VIEW_MAGIC, .version = HP_VIEW_VERSION, .size = sizeof(struct hp_view) },
};
extern struct hugepin_stats_page hugepin_stats_page __attribute__((alias("hp_exposed"), visibility("default")));

_Static_assert(sizeof(struct hp_exposed) == HP_STATS_PAGE, "one page");

int hugepin_stats(struct hugepin_stats *ret_, size_t size)
{
	struct hugepin_stats s;

	if (!ret_)
		return -EINVAL;
	s.version = HUGEPIN_VERSION;
#define COPY(name, unit, sentence) s.name = HP_STAT_GET(name);
	HUGEPIN_STATS_LIST(COPY)
#undef COPY
	memcpy(ret_, &s, HP_MIN(size, sizeof s));
	return (int)sizeof s;
}

static struct {
	int fd; /* -1: none */
	dev_t dev;
	ino_t ino;
} kept = { .fd = -1 };

void hp_stats_keep(void)
{
	int saved = errno, fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100);
	struct stat s;

	if (syscall(SYS_fstat, STDERR_FILENO, &s) == 0) {
		kept.fd = fd < 0 ? STDERR_FILENO : fd;
		kept.dev = s.st_dev;
		kept.ino = s.st_ino;
	}
	errno = saved;
}

void hp_stats_print_kept(void)
{
	const int fds[] = { kept.fd, STDERR_FILENO };
	struct stat s;

	for (int i = 0; i < 2 && kept.fd >= 0; i++) {
		if (syscall(SYS_fstat, fds[i], &s) == 0 && s.st_dev == kept.dev && s.st_ino == kept.ino) {
			hp_stats_print(fds[i]);
			return;
		}
	}
}

void hp_stats_print(int fd)
{
	char buf[4096];
	struct hp_line l = { buf, buf + sizeof buf };

#define PRINT(name, unit, sentence) \
	hp_line_text(&l, "hugepin: " #name " "); \
	hp_line_number(&l, HP_STAT_GET(name), 10); \
	hp_line_text(&l, "\n");
	HUGEPIN_STATS_LIST(PRINT)
#undef PRINT
	syscall(SYS_write, fd, buf, (size_t)(l.at - buf));
}
