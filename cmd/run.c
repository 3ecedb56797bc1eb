/*
 * hugepin run: turns options into HUGEPIN_* variables, puts the libraries into LD_PRELOAD, and executes the program.
 */
#include "cmd/run.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/rank.h"
#include "base/smalls.h"
#include "cmd/environment.h"
#include "cmd/libraries.h"
#include "cmd/machine.h"
#include "cmd/target.h"
#include "cmd/text.h"
#include "cmd/usage.h"

#define TLS_BYTES 4096
#define FIRST 256 /* number of the first option of the table, above all letters */

char *hp_run_option_name(const struct hp_option *o, char buf[HP_OPTION_NAME_MAX])
{
	const char *s = strchr(o->name, '_') + 1;
	size_t i = 0;

	for (; s[i] && i < HP_OPTION_NAME_MAX - 1; i++)
		buf[i] = (char)(s[i] == '_' ? '-' : tolower((unsigned char)s[i]));
	buf[i] = '\0';
	return buf;
}

void hp_run_print_options(void)
{
	static const char *const kinds[] = { [HP_FLAG] = "[=FLAG]",
					     [HP_NUM] = "=NUMBER",
					     [HP_SIZE] = "=SIZE",
					     [HP_TIME] = "=TIME",
					     [HP_WORD] = "=WORD",
					     [HP_PATH] = "=PATH",
					     [HP_REPORT] = "[=REPORT]" };
	char name[HP_OPTION_NAME_MAX], accepts[128], def[HP_TEXT_MAX];

	for (int i = 0; i < hp_options_count; i++) {
		const struct hp_option *o = &hp_options[i];
		printf("  --%s%s\n      %s.\n      Takes %s; the default is %s.\n", hp_run_option_name(o, name),
		       kinds[o->type], o->sentence, hp_option_accepts(o, accepts, sizeof accepts),
		       hp_text_option(o, o->def, def));
	}
}

/* Whether the machine has what is asked for by number, as far as the kernel tells. */
static bool has_numbered(const struct hp_option *o, int64_t number)
{
	static const char *const paths[][2] = { { "HUGEPIN_NUMA", "/sys/devices/system/node/node" },
						{ "HUGEPIN_HELPER_CPU", "/sys/devices/system/cpu/cpu" } };
	char path[64];

	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
		if (number < 0 || strcmp(o->name, paths[i][0]))
			continue;
		snprintf(path, sizeof path, "%s%" PRId64, paths[i][1], number);
		return !access(path, F_OK) || errno != ENOENT;
	}
	return true;
}

int hp_run_take_options(int argc, char **argv, const struct hp_run_more *more)
{
	const int ours = hp_options_count, theirs = more ? more->count : 0;
	struct option *longs = calloc((size_t)(ours + theirs) + 2, sizeof *longs);
	char(*names)[HP_OPTION_NAME_MAX] = calloc((size_t)ours, sizeof *names);
	const int help = ours;
	int found = -1, i;

	if (!longs || !names) {
		perror(argv[0]);
		goto out;
	}
	for (i = 0; i < ours; i++) {
		const bool may_stand_alone = hp_options[i].type == HP_FLAG || hp_options[i].type == HP_REPORT;
		const int wants = may_stand_alone ? optional_argument : required_argument;
		longs[i] = (struct option){ hp_run_option_name(&hp_options[i], names[i]), wants, NULL, FIRST + i };
	}
	longs[help] = (struct option){ "help", no_argument, NULL, FIRST + help };
	for (i = 0; i < theirs; i++)
		longs[help + 1 + i] = more->longs[i];

	/* "+": stop at PROGRAM, since later arguments belong to it. */
	while ((i = getopt_long(argc, argv, more ? more->letters : "+", longs, NULL)) != -1) {
		if (i == FIRST + help) {
			found = 0;
			goto out;
		}
		if (i == '?')
			goto out;
		if (i < FIRST) {
			if (more->take(i, optarg))
				goto out;
			continue;
		}
		const struct hp_option *o = &hp_options[i - FIRST];
		const char *text = optarg ? optarg : "1";
		char accepts[128];
		int64_t value;
		if (hp_option_parse(o, text, &value)) {
			fprintf(stderr, "%s: --%s=%s is not understood: it takes %s\n", argv[0], names[i - FIRST], text,
				hp_option_accepts(o, accepts, sizeof accepts));
			goto out;
		}
		if (!has_numbered(o, value)) {
			fprintf(stderr, "%s: --%s=%s: this machine has none of that number\n", argv[0], names[i - FIRST],
				text);
			goto out;
		}
		if (setenv(o->name, text, 1)) {
			perror(argv[0]);
			goto out;
		}
		if (more && more->given)
			more->given(o);
	}
	if (optind < argc)
		found = optind;
	else
		fprintf(stderr, "%s: which program?\n", argv[0]);
out:
	free(longs);
	free(names);
	return found;
}

/* Three places are tried: the command's directory, for a build; ../lib, for an installation that was moved; HP_LIBDIR,
 * where `make install` puts the library. */
int hp_run_find_library(char path[PATH_MAX])
{
	const char *const dropin = hp_libraries[HP_LIBRARY_DROPIN].file;
	char self[PATH_MAX], dir[PATH_MAX];
	const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	self[n > 0 ? n : 0] = '\0';
	self[strlen(self) - strlen(basename(self))] = '\0'; /* keeps the slash */
	const char *const places[][2] = { { self, "." }, { self, "../lib" }, { "", HP_LIBDIR } };
	/* if `self` is empty, start at 2: never look in the current directory */
	for (size_t i = self[0] ? 0 : 2; i < sizeof places / sizeof places[0]; i++) {
		const int len = snprintf(path, PATH_MAX, "%s%s", places[i][0], places[i][1]);
		if (len >= PATH_MAX || !realpath(path, dir) ||
		    snprintf(path, PATH_MAX, "%s/%s", dir, dropin) >= PATH_MAX || access(path, R_OK))
			continue;
		return 0;
	}
	snprintf(path, PATH_MAX, "%s is neither beside this command nor in %.*s../lib nor in " HP_LIBDIR, dropin,
		 PATH_MAX / 2, self);
	return -1;
}

bool hp_run_beside(const char *library, const char *name, char ret_path[PATH_MAX])
{
	const int dir = (int)(strrchr(library, '/') + 1 - library);

	return snprintf(ret_path, PATH_MAX, "%.*s%s", dir, library, name) < PATH_MAX && !access(ret_path, R_OK);
}

/* Which of these the loader finds. A child loads it, since an allocator that is loaded starts. If the child cannot be
 * made, the program will say whether the first is there. NULL: none. */
static const char *first_loaded(const char *const *files)
{
	const pid_t child = fork();
	int n = 0, status = 0;

	if (child == 0) {
		while (files[n] && !dlopen(files[n], RTLD_LAZY))
			n++;
		_exit(n);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0)
		return files[0];
	return WIFEXITED(status) ? files[WEXITSTATUS(status)] : NULL;
}

const char *hp_run_find_allocator(int small, char *why, size_t size)
{
	const struct hp_small_library *const l = &hp_small_libraries[small];
	const char *const file = first_loaded(l->files);

	if (!file)
		snprintf(why, size, "the loader finds no %s%s%s. On Debian: apt install %s", l->files[0],
			 l->files[1] ? " or " : "", l->files[1] ? l->files[1] : "", l->package);
	return file;
}

/* Whether the allocator for small requests that HUGEPIN_SMALL names is there; if not, says so. */
static bool has_small(const char *title)
{
	const char *const small = getenv("HUGEPIN_SMALL");
	char why[200];

	for (int i = 0; small && i < (int)(sizeof hp_small_libraries / sizeof *hp_small_libraries); i++)
		if (hp_small_libraries[i].name && !strcmp(hp_small_libraries[i].name, small) &&
		    !hp_run_find_allocator(i, why, sizeof why)) {
			fprintf(stderr, "%s: --small=%s: %s\n", title, small, why);
			return false;
		}
	return true;
}

/* With a library of LD_AUDIT, the loader divides the static thread-local memory before it knows of a preloaded library.
 * Ours need more than it leaves over by default: all of them together less than 3000 bytes. With too little, no program
 * starts. */
static int leave_room_for_tls(void)
{
	static const char name[] = "glibc.rtld.optional_static_tls";
	const char *const old = getenv("GLIBC_TUNABLES");
	char *tunables;
	int err;

	if (!getenv("LD_AUDIT") || hp_tunable(old, name) >= TLS_BYTES)
		return 0;
	tunables = hp_tunables_with(old, name, TLS_BYTES);
	err = tunables ? setenv("GLIBC_TUNABLES", tunables, 1) : -1;
	free(tunables);
	return err;
}

/* libhugepin.so is preloaded behind libhugepin-malloc.so, which needs it and, in a package, has no RUNPATH. */
int hp_run_preload(const char *title, const char *library)
{
	const char *old = getenv("LD_PRELOAD");
	char *list, needed[PATH_MAX];
	const bool beside = hp_run_beside(library, hp_libraries[HP_LIBRARY_HEAP].file, needed);

	if (strpbrk(library, ": ")) {
		fprintf(stderr, "%s: %s: the loader cannot preload from a path with a colon or a space\n", title,
			library);
		return -1;
	}
	if (!has_small(title))
		return -1;
	if (asprintf(&list, "%s%s%s%s%s", library, beside ? ":" : "", beside ? needed : "", old && *old ? ":" : "",
		     old ? old : "") < 0 ||
	    setenv("LD_PRELOAD", list, 1) || leave_room_for_tls()) {
		perror(title);
		return -1;
	}
	free(list);
	return 0;
}

/* Say once, and not in each process, that there will be no hugepages although HUGEPIN_PAGES asks for those of the pool
 * alone. */
static void warn_of_empty_pool(void)
{
	const struct hp_pool pool = hp_machine_pool(HP_POOLS_DIR, (long)HP_PAGE);
	const char *const pages = getenv("HUGEPIN_PAGES");

	if (!pages || strcmp(pages, "hugetlb") || hp_pool_has(&pool))
		return;
	fprintf(stderr,
		"hugepin run: --pages=hugetlb, and the hugetlb pool has no free page (%" PRIu64 " in all): buffers get "
		"base pages, unless the program itself asks for THP. `hugepin info` says how to reserve some; "
		"--pages=auto would take THP\n",
		pool.total);
}

/* ------------------------------------------------------------------ libraries that are asked for */

static bool wanted[HP_LIBRARIES];
static bool has_policy; /* --policy is on the command line */

static int want(int letter, const char *argument)
{
	const struct hp_library *l = &hp_libraries[letter - 1];
	const struct hp_option value = { .type = HP_WORD, .words = l->words };
	char accepts[64];
	int64_t unused;

	wanted[letter - 1] = true;
	if (!argument)
		return 0;
	if (hp_option_parse(&value, argument, &unused)) {
		fprintf(stderr, "hugepin run: --%s=%s is not understood: it takes %s\n", l->option, argument,
			hp_option_accepts(&value, accepts, sizeof accepts));
		return -1;
	}
	return setenv(l->variable, argument, 1);
}

static void note_policy(const struct hp_option *o)
{
	has_policy |= !strcmp(o->name, "HUGEPIN_POLICY");
}

/* The options of the table. Returns how many there are. */
static int library_options(struct option longs[HP_LIBRARIES])
{
	int n = 0;

	for (int i = 0; i < HP_LIBRARIES; i++)
		if (hp_libraries[i].option)
			longs[n++] = (struct option){ hp_libraries[i].option,
						      hp_libraries[i].words ? optional_argument : no_argument, NULL,
						      i + 1 };
	return n;
}

static void print_library_options(void)
{
	for (const struct hp_library *l = hp_libraries; l < hp_libraries + HP_LIBRARIES; l++)
		if (l->option)
			printf("  --%s%s\n      preloads %s, which %s.\n", l->option, l->words ? "[=WORD]" : "", l->file,
			       l->what);
}

/* A policy of ours has a say in what UCX and libfabric register if these keep nothing themselves. What the user has set
 * stays. */
static int let_policy_decide(const char *library)
{
	static const char *const off[][2] = { { "UCX_RCACHE_ENABLE", "n" },
					      { "UCX_IB_REG_METHODS", "direct" },
					      { "FI_MR_CACHE_MAX_COUNT", "0" } };
	char path[PATH_MAX];

	if (!has_policy || !hp_run_beside(library, hp_libraries[HP_LIBRARY_VERBSCACHE].file, path))
		return 0;
	wanted[HP_LIBRARY_VERBSCACHE] = true;
	for (size_t i = 0; i < sizeof off / sizeof *off; i++)
		if (setenv(off[i][0], off[i][1], 0))
			return -1;
	if (hp_rank() <= 0) /* one rank of a job speaks for all */
		fprintf(stderr,
			"hugepin run: --policy: registrations of UCX and libfabric are left to it (%s=%s %s=%s %s=%s)%s\n",
			off[0][0], getenv(off[0][0]), off[1][0], getenv(off[1][0]), off[2][0], getenv(off[2][0]),
			getenv("HUGEPIN_X_VERBS_CACHE") ? "" : "; what peers may reach is kept with --verbs-cache=remote alone");
	return 0;
}

/* Put the libraries that are wanted before the drop-in, in whose directory they are. */
static int preload_wanted(const char *title, const char *library)
{
	char path[PATH_MAX], *list;

	for (int i = HP_LIBRARIES - 1; i >= 0; i--) {
		if (!wanted[i])
			continue;
		if (!hp_run_beside(library, hp_libraries[i].file, path)) {
			fprintf(stderr, "%s: --%s: %s is not installed\n", title, hp_libraries[i].option, path);
			return -1;
		}
		if (asprintf(&list, "%s:%s", path, getenv("LD_PRELOAD")) < 0 || setenv("LD_PRELOAD", list, 1)) {
			perror(title);
			return -1;
		}
		free(list);
	}
	return 0;
}

int hp_run_main(int argc, char **argv)
{
	char library[PATH_MAX];
	struct option longs[HP_LIBRARIES];
	const struct hp_run_more more = { "+", longs, library_options(longs), want, note_policy };
	const int program = hp_run_take_options(argc, argv, &more);

	if (program <= 0) {
		const int status = hp_usage(argv[0], program == 0);
		if (program == 0) {
			putchar('\n');
			hp_run_print_options();
			print_library_options();
		}
		return status;
	}
	if (hp_run_find_library(library)) {
		fprintf(stderr, "hugepin run: %s\n", library);
		return HP_EXIT_REFUSED;
	}
	if (hp_run_preload(argv[0], library) || let_policy_decide(library) || preload_wanted(argv[0], library))
		return HP_EXIT_REFUSED;
	struct hp_target target = hp_target_check(argv[program]);
	if (!target.status) {
		if (*target.why)
			fprintf(stderr, "hugepin run: %s\n", hp_text_tame(target.why));
		warn_of_empty_pool();
		execvp(argv[program], argv + program);
		target.status = errno == ENOENT ? HP_EXIT_NOT_FOUND : HP_EXIT_CANNOT_EXEC;
		snprintf(target.why, sizeof target.why, "%s: %s", argv[program], strerror(errno));
	}
	fprintf(stderr, "hugepin run: %s\n", hp_text_tame(target.why));
	return target.status;
}
