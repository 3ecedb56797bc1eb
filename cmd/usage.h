/*
 * The sub-commands, their arguments, and their exit statuses.
 */
#ifndef HP_CMD_USAGE_H
#define HP_CMD_USAGE_H

#include <stdbool.h>

/* Exit statuses. Those of `run` are the same as in env(1), nohup(1) and shells. */
enum {
	HP_EXIT_FAILED = 1,
	HP_EXIT_USAGE = 2,
	HP_EXIT_ADVICE = 3, /* `info` has advice */
	HP_EXIT_NONE = 4, /* `info` found no hugepages at all */
	HP_EXIT_NO = 5, /* `check`: the program gains nothing, or loses */
	HP_EXIT_UNSURE = 6, /* `check` cannot tell */
	HP_EXIT_BREAKS = 7, /* `check`: the program fails with hugepin, and works without */
	HP_EXIT_REFUSED = 125,
	HP_EXIT_CANNOT_EXEC = 126,
	HP_EXIT_NOT_FOUND = 127
};

/* The sub-commands: name, arguments, purpose. cmd/NAME.c has hp_NAME_main(), except for calibrate, which is in
 * cmd/models.c. */
#define HP_COMMANDS(X) \
	X(run, "[OPTION...] [--] PROGRAM [ARG...]", "start PROGRAM with its buffers of 32 KiB and more in hugepages") \
	X(check, "[-t SECONDS] [-n ROUNDS] [--against=LIST] [--json] [OPTION...] [--] PROGRAM [ARG...]", \
	  "run PROGRAM without and with hugepin, and say whether it gains") \
	X(stats, "FILE...", "what a program told at exit, by files of --stats=file:FILE, as JSON") \
	X(info, "", "what this machine offers for that, and what to change") \
	X(calibrate, "[DEVICE]", "measure how small pieces are best sent on verbs devices") \
	X(top, "[-d SECONDS] [-n NUMBER] [--once] [--json] PID", \
	  "what a running process has in its heap and in its pin cache") \
	X(plot, "[-o FILE] [-t TITLE] TRACE...", \
	  "a picture of the memory that was registered, from files of HUGEPIN_TRACE")

#define HP_COMMAND_MAIN(name, arguments, does) int hp_##name##_main(int argc, char **argv);
HP_COMMANDS(HP_COMMAND_MAIN)
#undef HP_COMMAND_MAIN

/* Print the usage of the sub-command with this argv[0]: on stdout if it is wanted, or else on stderr, because the
 * command line is wrong. Returns the exit status. */
int hp_usage(const char *title, bool wanted);

/* The same on stderr, behind what the sub-command takes instead of these arguments. */
int hp_usage_wrong(const char *title, const char *takes);

#endif
