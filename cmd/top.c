/*
 * hugepin top: looks at a running process repeatedly, and shows its present state, on a terminal as cmd/screen.c draws
 * it. The terminal's settings stay as they are, so a signal may end the command at any time, also in a read of the
 * process's memory that does not end. The observed process is not stopped, and does no work for this.
 */
#include <errno.h>
#include <getopt.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/base.h"
#include "cmd/screen.h"
#include "cmd/show.h"
#include "cmd/usage.h"

#define NS UINT64_C(1000000000)
#define FIRST_NS (NS / 10) /* from the first look, which has none to compare with, to the first screen */

static struct {
	uint64_t delay_ns;
	uint32_t regions;
	bool once, json, screen;
} option = { .delay_ns = NS, .regions = 10 };
static int resized = -1; /* readable when the terminal has another size */

/* What the terminal is like now. The environment's names of terminals say which have colours: all but a few old ones. */
static struct hp_screen screen_now(void)
{
	const char *const term = getenv("TERM"), *const plain = getenv("NO_COLOR");
	const size_t len = strlen(term);
	struct winsize size;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || !size.ws_row || !size.ws_col)
		size = (struct winsize){ .ws_row = 24, .ws_col = 80 };
	return (struct hp_screen){ size.ws_row, size.ws_col, !strcmp(nl_langinfo(CODESET), "UTF-8"),
				   !(plain && *plain) && strncmp(term, "vt", 2) && !(len > 2 && !strcmp(term + len - 2, "-m")) };
}

/* Whether there is a terminal whose text can be replaced. */
static bool has_screen(void)
{
	const char *const term = getenv("TERM");

	return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb");
}

static int show(const struct hp_process *p, const struct hp_look *look)
{
	if (option.json)
		return hp_show_json(stdout, p, look, option.regions);
	if (option.screen) {
		const struct hp_screen s = screen_now();
		hp_screen_draw(stdout, &s, p, look, option.regions);
		return 0;
	}
	hp_show_text(stdout, p, look, option.regions);
	if (!option.once)
		putchar('\n');
	return fflush(stdout);
}

/* Wait until a time, or until the process ends. Meanwhile the last look is drawn again for each size of the terminal. */
static void wait_until(const struct hp_process *p, uint64_t at_ns, const struct hp_look *look)
{
	struct pollfd fds[] = { { .fd = p->ended, .events = POLLIN }, { .fd = resized, .events = POLLIN } };
	struct signalfd_siginfo info;
	uint64_t now_ns;

	for (;;) {
		now_ns = hp_clock_ns();
		/* Round up, so that the wait does not end early. */
		poll(fds, 2, now_ns < at_ns ? (int)((at_ns - now_ns + 999999) / 1000000) : 0);
		if (fds[0].revents || !fds[1].revents || read(resized, &info, sizeof info) < 0)
			return;
		if (look->passed_ns)
			show(p, look);
	}
}

/* Begin to draw: what is on the screen goes. */
static void open_screen(void)
{
	sigset_t set;

	setlocale(LC_CTYPE, "");
	sigemptyset(&set);
	sigaddset(&set, SIGWINCH);
	sigprocmask(SIG_BLOCK, &set, NULL);
	resized = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	fputs("\033[2J", stdout);
}

/* ------------------------------------------------------------------ looking */

/* Correct the statistics in `look`: they count the THP that the kernel was asked for. Replace them by what the kernel
 * gave. */
static void correct_thp(const struct hp_process *p, struct hp_look *look)
{
	const uint64_t normal = look->heap.thp_bytes + look->heap.base_bytes, start = look->view.heap.base;
	uint64_t there;

	if (!normal || !hp_process_thp(p, start, start + look->view.heap.size, &there))
		return;
	look->heap.thp_bytes = HP_MIN(there, normal);
	look->heap.base_bytes = normal - look->heap.thp_bytes;
}

/* Look at the process. If it has executed another program, open its new memory and begin anew. 0; or the exit
 * status. */
static int look_again(struct hp_process *p, uint64_t *page, struct hp_look *now, struct hp_look *ret_, char *why,
		      size_t size)
{
	const struct hp_source source = { hp_process_read, p };
	int err = -ESRCH, status;

	for (int tries = 0; tries < 2; tries++) {
		hp_process_map(p);
		if (*page)
			err = hp_look(&source, *page, hp_clock_ns(), option.regions, now->at_ns ? now : NULL, ret_);
		if (err != -ESRCH)
			break;
		if (*page) {
			hp_look_free(now);
			status = hp_process_reopen(p, why, size);
			if (status)
				return status;
			hp_process_map(p);
		}
		*page = hp_process_find_page(p);
	}
	if (!err) {
		correct_thp(p, ret_);
		return 0;
	}
	if (hp_process_has_ended(p))
		snprintf(why, size, "process %d has ended", (int)p->pid);
	else if (err == -EPROTO)
		snprintf(why, size, "process %d uses hugepin in a version that this command, %d.%d, cannot look into",
			 (int)p->pid, HUGEPIN_VERSION_MAJOR, HUGEPIN_VERSION_MINOR);
	else if (err == -ESRCH)
		snprintf(why, size,
			 "process %d does not use hugepin: start it with `hugepin run`, or link it with -lhugepin",
			 (int)p->pid);
	else
		snprintf(why, size, "process %d: %s", (int)p->pid, strerror(-err));
	return HP_EXIT_FAILED;
}

/* Look and show until the end. Returns the exit status; `why` has the reason, if there is one. */
static int watch(struct hp_process *p, char *why, size_t size)
{
	struct hp_look before = { 0 }, now = { 0 };
	uint64_t page = 0, next_ns = hp_clock_ns();
	int shown = 0, status = 0;

	for (;;) {
		wait_until(p, next_ns, &now);
		if (shown && hp_process_has_ended(p))
			break;
		hp_look_free(&before);
		before = now;
		now = (struct hp_look){ 0 };
		status = look_again(p, &page, &before, &now, why, size);
		if (status)
			break;
		if (now.passed_ns) {
			if (show(p, &now) || option.once)
				break;
			shown++;
		}
		next_ns = hp_clock_ns() + (now.passed_ns || option.once || !option.screen ? option.delay_ns : FIRST_NS);
	}
	hp_look_free(&before);
	hp_look_free(&now);
	if (shown && hp_process_has_ended(p)) {
		snprintf(why, size, "process %d has ended", (int)p->pid);
		status = 0;
	}
	return status;
}

/* ------------------------------------------------------------------ the command line */

/* Parse the command line. Returns the exit status if there is no process to look at. */
static int parse_arguments(int argc, char **argv, pid_t *ret_pid)
{
	static const struct option options[] = { { "once", no_argument, NULL, 'o' },
						 { "json", no_argument, NULL, 'j' },
						 { "help", no_argument, NULL, 'h' },
						 { NULL, 0, NULL, 0 } };
	double delay = 1;
	long number = 10, pid;
	char *end;
	int c;

	while ((c = getopt_long(argc, argv, "d:n:", options, NULL)) != -1)
		switch (c) {
		case 'd':
			delay = strtod(optarg, &end);
			if (*end || end == optarg || !(delay >= 0.1 && delay <= 3600)) {
				fprintf(stderr, "hugepin top: -d takes seconds, 0.1 to 3600, not '%s'\n", optarg);
				return HP_EXIT_USAGE;
			}
			break;
		case 'n':
			number = strtol(optarg, &end, 10);
			if (*end || end == optarg || number < 0 || number > 1000000) {
				fprintf(stderr, "hugepin top: -n takes a number up to 1000000, not '%s'\n", optarg);
				return HP_EXIT_USAGE;
			}
			break;
		case 'o':
			option.once = true;
			break;
		case 'j':
			option.json = true;
			break;
		case 'h':
			return hp_usage(argv[0], true);
		default:
			return hp_usage(argv[0], false);
		}
	if (argc - optind != 1)
		return hp_usage_wrong(argv[0], "the number of one process");
	errno = 0;
	pid = strtol(argv[optind], &end, 10);
	if (*end || end == argv[optind] || errno || pid <= 0 || pid > INT32_MAX) {
		fprintf(stderr, "hugepin top: '%s' is not the number of a process\n", argv[optind]);
		return HP_EXIT_USAGE;
	}
	option.delay_ns = (uint64_t)(delay * (double)NS);
	option.regions = (uint32_t)number;
	*ret_pid = (pid_t)pid;
	return 0;
}

int hp_top_main(int argc, char **argv)
{
	struct hp_process p;
	char why[256] = "";
	pid_t pid = 0;
	int status = parse_arguments(argc, argv, &pid);

	if (!pid)
		return status;
	status = hp_process_open(&p, pid, why, sizeof why);
	if (!status) {
		option.screen = !option.once && !option.json && has_screen();
		if (option.screen)
			open_screen();
		status = watch(&p, why, sizeof why);
		hp_process_close(&p);
	}
	if (why[0])
		fprintf(stderr, "hugepin top: %s\n", why);
	return status;
}
