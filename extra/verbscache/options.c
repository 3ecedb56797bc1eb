/* See options.h. */
#include "options.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache.h"
#include "domain.h"

static enum hp_verbscache_mode mode = HP_VERBSCACHE_LOCAL;

static void read_mode(void)
{
	static const char *const words[] = { "off", "local", "remote" };
	const char *text = secure_getenv("HUGEPIN_X_VERBS_CACHE");

	for (size_t i = 0; text && i < sizeof words / sizeof *words; i++)
		if (!strcmp(text, words[i])) {
			mode = (enum hp_verbscache_mode)i;
			return;
		}
	if (text)
		dprintf(STDERR_FILENO,
			"hugepin: HUGEPIN_X_VERBS_CACHE=%.48s is not understood: it takes one of off, local, remote; "
			"using local\n",
			text);
}

enum hp_verbscache_mode hp_verbscache_mode(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_mode);
	return mode;
}

/* ------------------------------------------------------------------ at exit */

static struct stat stderr_before;

__attribute__((constructor)) static void note_stderr(void)
{
	fstat(STDERR_FILENO, &stderr_before);
}

/* Nothing is written into a file that the program has opened in the place of its stderr. */
__attribute__((destructor)) static void report(void)
{
	const char *wanted = secure_getenv("HUGEPIN_STATS");
	struct hp_verbscache_counters *c = &hp_verbscache_counters;
	struct stat now;
	char line[256];
	int n;

	/* relaxed: numbers, and what is counted later is not told */
	if (!wanted || (strcmp(wanted, "1") && strcmp(wanted, "2")) ||
	    !atomic_load_explicit(&c->asked, memory_order_relaxed) || !hp_cache_is_ours() ||
	    fstat(STDERR_FILENO, &now) || now.st_dev != stderr_before.st_dev || now.st_ino != stderr_before.st_ino)
		return;
	n = snprintf(line, sizeof line, "hugepin: verbs cache[%d]:", (int)getpid());
#define PRINT_COUNTER(name)                                                                                            \
	n += snprintf(line + n, sizeof line - (size_t)n, " " #name "=%" PRIu64,                                        \
		      atomic_load_explicit(&c->name, memory_order_relaxed));
	HP_VERBSCACHE_COUNTERS(PRINT_COUNTER)
#undef PRINT_COUNTER
	line[n++] = '\n';
	(void)!write(STDERR_FILENO, line, (size_t)n);
}
