/*
 * hugepin plot: draws traces of HUGEPIN_TRACE by gnuplot(1), or writes them as Trace Event JSON if the output's name ends
 * in .json. All traces begin at the left edge, so that runs of a program under several policies can be compared.
 */
#include "cmd/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/plot_draw.h"
#include "cmd/plot_json.h"
#include "cmd/plot_read.h"
#include "cmd/plot_sum.h"
#include "cmd/text.h"
#include "cmd/usage.h"

/* Have gnuplot draw into memory, then write the picture to a file: gnuplot itself reports no error if a disk is
 * full. */
static void draw_picture(const struct hp_picture *p, const char *title, bool svg, FILE *output)
{
	char *const args[] = { (char *)"gnuplot", (char *)"-d", (char *)"-", NULL };
	const int drawn = memfd_create("picture", MFD_CLOEXEC);
	posix_spawn_file_actions_t actions;
	int script[2], status, e;
	char part[4096];
	ssize_t n;
	pid_t pid;

	if (drawn < 0 || pipe2(script, O_CLOEXEC))
		hp_plot_fail("%s", strerror(errno));
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, script[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, drawn, STDOUT_FILENO);
	setenv("LC_ALL", "C.UTF-8", 1); /* the script's encoding; in plain C gnuplot warns of other characters */
	signal(SIGCHLD, SIG_DFL); /* if SIGCHLD is ignored, there is no status to wait for */
	e = posix_spawnp(&pid, args[0], &actions, NULL, args, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (e == ENOENT)
		hp_plot_fail("gnuplot is not in PATH; on Debian: apt-get install gnuplot-nox");
	if (e)
		hp_plot_fail("gnuplot: %s", strerror(e));
	close(script[0]);
	signal(SIGPIPE, SIG_IGN); /* if gnuplot ends early, its status tells */

	FILE *to = fdopen(script[1], "w");
	if (!to)
		hp_plot_fail("%s", strerror(errno));
	hp_plot_script(to, p, title, svg);
	fclose(to);
	if (waitpid(pid, &status, 0) != pid || status)
		hp_plot_fail("gnuplot failed");
	for (off_t at = 0; (n = pread(drawn, part, sizeof part, at)) > 0; at += n)
		fwrite(part, 1, (size_t)n, output);
	close(drawn);
}

/* ------------------------------------------------------------------ the file on its way */

static char *volatile unfinished; /* name of a file that is removed at exit */

static void remove_unfinished(void)
{
	if (unfinished)
		unlink(unfinished);
}

static void end_by_signal(int s)
{
	remove_unfinished();
	signal(s, SIG_DFL);
	raise(s);
}

/* Create the file that becomes the output. It has a new name, so that no file of another user is written to. */
static FILE *create(const char *output)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP };
	const struct sigaction remove = { .sa_handler = end_by_signal };
	const mode_t mask = umask(077);
	struct sigaction now;
	sigset_t all, old;
	char *name;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &old);
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
		if (!sigaction(ends[i], NULL, &now) && now.sa_handler != SIG_IGN)
			sigaction(ends[i], &remove, NULL);
	if (asprintf(&name, "%s.XXXXXX.part", output) < 0)
		hp_plot_fail("%s", strerror(errno));

	const int fd = mkostemps(name, 5, O_CLOEXEC);
	FILE *const to = fd < 0 ? NULL : fdopen(fd, "w");

	if (!to)
		hp_plot_fail("%s: %s", output, strerror(errno));
	unfinished = name; /* only now is the file ours, to be removed by a signal */
	fchmod(fd, 0666 & ~mask);
	umask(mask);
	sigprocmask(SIG_SETMASK, &old, NULL);
	return to;
}

/* ------------------------------------------------------------------ the command */

/* The name of the picture if the user gives none: that of the trace, beside it; of several runs, or of what is no file,
 * pinned.png. */
static char *default_output(const struct hp_traces *t, const struct hp_picture *p)
{
	struct stat st;

	for (int i = 0; i < t->files; i++)
		if (stat(t->file[i].name, &st) || !S_ISREG(st.st_mode))
			return strdup("pinned.png");
	return p->runs == 1 ? hp_plot_output(&p->run[0]) : strdup("pinned.png");
}

/* A trace must not be replaced by its picture. */
static void check_output(const char *output, const struct hp_traces *t)
{
	struct stat ours, st;

	for (int i = 0; !stat(output, &ours) && i < t->files; i++)
		if (!stat(t->file[i].name, &st) && st.st_dev == ours.st_dev && st.st_ino == ours.st_ino)
			hp_plot_fail("%s: this is a trace; the picture needs another name", output);
}

static const char *plural(int n)
{
	return n == 1 ? "" : "s";
}

/* Say which file was written, and what it shows. */
static void tell(const char *output, bool replaced, const struct hp_picture *p, const char *title, bool json, int files)
{
	const struct hp_plot_size size = hp_plot_size(p, title);
	const double s = (double)p->length_ns / 1e9;
	char *name;

	/* If standard output was closed, main() has put something for reading there. The picture is there, too. */
	if ((fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) == O_RDONLY)
		return;
	name = strdup(output);
	printf("%s%s: ", name ? hp_text_tame(name) : "", replaced ? " (replaced)" : "");
	free(name);
	if (p->ranks > 1 && p->runs > 1)
		printf("%d runs, %d ranks", p->runs, p->ranks);
	else if (p->ranks > 1)
		printf("%d ranks", p->ranks);
	else
		printf("%d trace%s", files, plural(files));
	printf(", %d polic%s, ", p->policies, p->policies == 1 ? "y" : "ies");
	if (s < 0.1)
		printf("%.3g ms", s * 1e3);
	else
		printf(s < 10 ? "%.2g s" : "%.1f s", s);
	if (json)
		printf("\n");
	else
		printf("; %d x %d pixels\n", size.width, size.height);
}

int hp_plot_main(int argc, char **argv)
{
	static const struct option longs[] = { { "help", no_argument, NULL, 'h' }, { 0 } };
	const char *output = NULL, *title = NULL;
	struct hp_traces t = { 0 };
	struct hp_picture p;

	for (int c; (c = getopt_long(argc, argv, "o:t:", longs, NULL)) != -1;) {
		switch (c) {
		case 'o':
			output = optarg;
			break;
		case 't':
			title = optarg;
			break;
		default:
			return hp_usage(argv[0], c == 'h');
		}
	}

	const char *dot = output ? strrchr(hp_base_name(output), '.') : ".png";
	const bool svg = dot && !strcasecmp(dot, ".svg"), json = dot && !strcasecmp(dot, ".json");

	if (optind == argc || (!svg && !json && (!dot || strcasecmp(dot, ".png")))) {
		if (optind < argc)
			fprintf(stderr, "hugepin plot: %s: the name of the picture ends in .png, .svg or .json\n",
				output);
		return hp_usage(argv[0], false);
	}
	t.files = argc - optind;
	t.file = calloc((size_t)t.files, sizeof *t.file);
	if (!t.file)
		hp_plot_fail("%s", strerror(errno));
	for (int i = 0; i < t.files; i++)
		t.file[i].name = argv[optind + i];

	/* An old picture stays until there is a new one. */
	atexit(remove_unfinished);

	FILE *to = output ? create(output) : NULL;
	if (json) {
		for (int i = 0; i < t.files; i++)
			hp_json_name(to, i, t.file[i].name);
		t.each = hp_json_event;
		t.arg = to;
	}
	for (int i = 0; i < t.files; i++)
		hp_plot_read(&t, i);
	if (!t.count)
		hp_plot_fail("there are no events in %s%s", t.file[0].name, t.files > 1 ? " and the others" : "");
	hp_plot_sum(&p, &t);
	if (p.panels > HP_PANELS_MAX && !json)
		hp_plot_fail("%d runs and policies are too many for one picture, which takes %d", p.panels, HP_PANELS_MAX);
	if (!to)
		to = create(output = default_output(&t, &p));
	check_output(output, &t);
	const bool replaced = !access(output, F_OK);

	if (json)
		hp_json_end(to);
	else
		draw_picture(&p, title, svg, to);

	const bool written = !ferror(to);
	if (fclose(to) || !written || rename(unfinished, output))
		hp_plot_fail("%s: %s", output, strerror(errno));
	unfinished = NULL;
	tell(output, replaced, &p, title, json, t.files);
	return 0;
}
