/*
 * hugepin plot: Python runs cmd/plot.py, so that a machine that draws nothing needs neither Python nor gnuplot.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/usage.h"

/* The script is beside the command in a build, and in share/hugepin where `make install` has put it. */
static const char *const places[] = { "hugepin-plot.py", "../share/hugepin/hugepin-plot.py" };

int hp_plot_main(int argc, char **argv)
{
	char **args = calloc((size_t)argc + 3, sizeof *args), self[PATH_MAX], script[PATH_MAX + 40];
	const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	self[n > 0 ? n : 0] = '\0';
	if (!args || !strchr(self, '/')) {
		fprintf(stderr, "hugepin plot: %s\n", strerror(errno));
		return HP_EXIT_FAILED;
	}
	strrchr(self, '/')[1] = '\0';
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		snprintf(script, sizeof script, "%s%s", self, places[i]);
		if (access(script, R_OK))
			continue;
		args[0] = (char *)"python3";
		/* no module of the working directory or of PYTHONPATH takes the place of Python's own */
		args[1] = (char *)"-I";
		args[2] = script;
		memcpy(args + 3, argv + 1, (size_t)(argc - 1) * sizeof *args);
		execvp(args[0], args);
		fprintf(stderr, "hugepin plot: python3: %s; on Debian: apt-get install python3-minimal gnuplot-nox\n",
			strerror(errno));
		return HP_EXIT_FAILED;
	}
	fprintf(stderr, "hugepin plot: there is neither %s%s nor %s%s\n", self, places[0], self, places[1]);
	return HP_EXIT_FAILED;
}
