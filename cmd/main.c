/*
 * hugepin(1): starts programs under the drop-in malloc, shows what this machine offers, and shows the present and past
 * work of the pin cache.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/run.h"
#include "cmd/usage.h"
#include "hugepin.h"

static const struct {
	const char *title; /* argv[0] of a sub-command: getopt's messages begin with it */
	const char *arguments, *does;
	int (*main)(int argc, char **argv);
} commands[] = {
#define COMMAND(name, arguments, does) { "hugepin " #name, arguments, does, hp_##name##_main },
	HP_COMMANDS(COMMAND)
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static const char *word_of(int i)
{
	return commands[i].title + strlen("hugepin ");
}

static void print_usage(FILE *to)
{
	for (int i = 0; i < COMMANDS; i++)
		fprintf(to, "%s %s %s\n", i ? "      " : "usage:", commands[i].title, commands[i].arguments);
	fputs("       hugepin --help | --version\n", to);
}

static int print_help(void)
{
	print_usage(stdout);
	putchar('\n');
	for (int i = 0; i < COMMANDS; i++)
		printf("%-10s %s\n", word_of(i), commands[i].does);
	puts("\nOptions of run and check, each in place of the environment variable HUGEPIN_...:");
	hp_run_print_options();
	return 0;
}

static int print_version(void)
{
	printf("hugepin %d.%d\n", HUGEPIN_VERSION_MAJOR, HUGEPIN_VERSION_MINOR);
	return 0;
}

static int dispatch(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "";

	for (int i = 0; i < COMMANDS; i++)
		if (!strcmp(word, word_of(i))) {
			argv[1] = (char *)commands[i].title;
			return commands[i].main(argc - 1, argv + 1);
		}
	if (!strcmp(word, "--help") || !strcmp(word, "-h"))
		return print_help();
	if (!strcmp(word, "--version") || !strcmp(word, "-V"))
		return print_version();
	if (*word)
		fprintf(stderr, "hugepin: there is no %s '%s'\n", *word == '-' ? "option" : "command", word);
	print_usage(stderr);
	return HP_EXIT_USAGE;
}

int main(int argc, char **argv)
{
	int fd, status;

	/* If a standard descriptor is closed, put one for reading /dev/null in its place. So no file that is opened
	 * later gets its number, and writing to it still fails. */
	while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0 && fd <= STDERR_FILENO)
		;
	if (fd >= 0)
		close(fd);
	status = dispatch(argc, argv);

	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "hugepin: standard output: %s\n", strerror(errno));
		return HP_EXIT_FAILED;
	}
	return status;
}
