/*
 * hugepin(1): starts programs under the drop-in malloc, tells what this machine offers it, and draws what the pin cache did.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "include/hugepin.h"

static void print_usage(FILE *to)
{
	fputs("usage: hugepin run [OPTION...] [--] PROGRAM [ARG...]\n"
	      "       hugepin info\n"
	      "       hugepin calibrate [DEVICE]\n"
	      "       hugepin plot [-o FILE] [-t TITLE] TRACE...\n"
	      "       hugepin --help | --version\n",
	      to);
}

static int print_help(void)
{
	print_usage(stdout);
	puts("\n"
	     "run        start PROGRAM with its buffers of 32 KiB and more in hugepages\n"
	     "info       what this machine offers for that, and what to change\n"
	     "calibrate  measure what sending small pieces costs on verbs devices\n"
	     "plot       a picture of the memory that was registered, from files of HUGEPIN_TRACE\n"
	     "\n"
	     "Options of run, each in place of the environment variable HUGEPIN_...:");
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

	if (!strcmp(word, "run")) {
		argv[1] = "hugepin run";
		return hp_run_main(argc - 1, argv + 1);
	}
	if (!strcmp(word, "info")) {
		argv[1] = "hugepin info";
		return hp_info_main(argc - 1, argv + 1);
	}
	if (!strcmp(word, "calibrate")) {
		argv[1] = "hugepin calibrate";
		return hp_calibrate_main(argc - 1, argv + 1);
	}
	if (!strcmp(word, "plot")) {
		argv[1] = "hugepin plot";
		return hp_plot_main(argc - 1, argv + 1);
	}
	if (!strcmp(word, "--help") || !strcmp(word, "-h"))
		return print_help();
	if (!strcmp(word, "--version") || !strcmp(word, "-V"))
		return print_version();
	if (*word)
		fprintf(stderr, "hugepin: there is no command '%s'\n", word);
	print_usage(stderr);
	return HP_EXIT_USAGE;
}

int main(int argc, char **argv)
{
	int status = dispatch(argc, argv);

	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "hugepin: standard output: %s\n", strerror(errno));
		return HP_EXIT_FAILED;
	}
	return status;
}
