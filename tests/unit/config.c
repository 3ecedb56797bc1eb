/*
 * The table of options and its parser; and what hp_config_load() makes of an environment, in programs of their own,
 * since a process reads its variables once.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/base.h"
#include "base/config.h"
#include "tests/t.h"

static const struct hp_option *option(const char *name)
{
	for (int i = 0; i < hp_options_count; i++)
		if (!strcmp(hp_options[i].name + strlen("HUGEPIN_"), name))
			return &hp_options[i];
	T_FAIL("no option %s", name);
	return &hp_options[0];
}

static void expect_value(const char *name, const char *text, int64_t expected)
{
	int64_t value = -4711;
	if (hp_option_parse(option(name), text, &value) || value != expected)
		T_FAIL("%s=%s is %lld, not %lld", name, text, (long long)value, (long long)expected);
}

static void expect_refused(const char *name, const char *text)
{
	int64_t value = -4711;
	int r = hp_option_parse(option(name), text, &value);
	if (r != -1 || value != -4711)
		T_FAIL("%s=%s gives %d and %lld", name, text, r, (long long)value);
}

TEST(the_table_is_well_formed)
{
	EXPECT(hp_options_count > 0);
	for (int i = 0; i < hp_options_count; i++) {
		const struct hp_option *o = &hp_options[i];
		EXPECT(!strncmp(o->name, "HUGEPIN_", 8) && strlen(o->name) > 8);
		EXPECT(strlen(o->sentence) > 10);
		EXPECT(o->words ? o->type == HP_WORD || ((o->type == HP_NUM || o->type == HP_SIZE) && o->min >= 0)
				: o->type != HP_WORD);
		EXPECT(o->min <= o->max);
		EXPECT(o->offset < sizeof(struct hp_config) && o->offset % sizeof(int64_t) == 0);
		for (int j = 0; j < i; j++)
			EXPECT(strcmp(o->name, hp_options[j].name) && o->offset != hp_options[j].offset);
	}
}

TEST(numbers_are_decimal_and_within_their_range)
{
	expect_value("RESERVE", "1", 1);
	expect_value("RESERVE", "1073741824", 1 << 30);
	expect_value("RESERVE", "007", 7);
	expect_value("RESERVE", "0", 0);
	expect_value("ABORT", "0", 0);
	expect_value("ABORT", "1", 1);
	static const char *const bad[] = { "", " ", "1073741825", "-1", "+1", " 1", "1 ", "1x", "0x10", "1.0", "1e1", "4K",
					   "four", "18446744073709551617", "9223372036854775808",
					   "99999999999999999999999" };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		expect_refused("RESERVE", bad[i]);
	expect_refused("ABORT", "2");
	expect_refused("ABORT", "yes");
}

TEST(a_report_is_a_number_or_a_file)
{
	static const char *const bad[] = { "", "3", "10", "01", "FILE:x", "file", "file:", "filex", "list", " 1" };
	const struct hp_option *o = option("STATS");
	const char *with_file = "file:/tmp/%p";
	char longest[5 + 4090 + 2] = "file:";
	int64_t value = -1;

	expect_value("STATS", "0", HP_REPORT_OFF);
	expect_value("STATS", "1", HP_REPORT_SUMMARY);
	expect_value("STATS", "2", HP_REPORT_LIST);
	EXPECT(!hp_report_file(HP_REPORT_OFF) && !hp_report_file(HP_REPORT_LIST));
	EXPECT_EQ(hp_option_parse(o, with_file, &value), 0);
	EXPECT(hp_report_file(value) == with_file + 5);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		expect_refused("STATS", bad[i]);
	memset(longest + 5, 'x', 4090);
	EXPECT_EQ(hp_option_parse(o, longest, &value), 0);
	longest[5 + 4090] = 'x';
	expect_refused("STATS", longest);
}

TEST(sizes_take_suffixes_in_both_cases)
{
	expect_value("EXTENT", "2M", 2097152);
	expect_value("EXTENT", "2m", 2097152);
	expect_value("EXTENT", "2048K", 2097152);
	expect_value("EXTENT", "1G", 1 << 30);
	expect_value("EXTENT", "67108864", 67108864);
	expect_value("SPAN", "4M", 4194304);
	expect_value("SPAN", "4t", INT64_C(1) << 42);
	expect_value("SPAN", "0", 0); /* a default outside the range */
	expect_refused("SPAN", "1");
	expect_refused("SPAN", "5T");
	expect_refused("SPAN", "4097G");
	expect_refused("SPAN", "4MiB");
	expect_refused("SPAN", "4MB");
	expect_refused("SPAN", "4P");
	expect_refused("SPAN", "M");
	expect_refused("SPAN", "4 M");
	expect_refused("SPAN", "8388608T"); /* 2^63 */
	expect_refused("SPAN", "16777216T"); /* 2^64 */
	expect_refused("SPAN", "4s");
	expect_refused("EXTENT", "3M"); /* no power of two */
	expect_refused("EXTENT", "2G");
	expect_refused("EXTENT", "1M");
}

TEST(times_are_milliseconds_or_seconds)
{
	expect_value("DECAY", "0", 0);
	expect_value("DECAY", "500", 500);
	expect_value("DECAY", "500ms", 500);
	expect_value("DECAY", "500MS", 500);
	expect_value("DECAY", "3s", 3000);
	expect_value("DECAY", "3S", 3000);
	expect_refused("DECAY", "s");
	expect_refused("DECAY", "ms");
	expect_refused("DECAY", "3m");
	expect_refused("DECAY", "3sec");
	expect_refused("DECAY", "3 s");
	expect_refused("DECAY", "9223372036854775807s");
	expect_refused("DECAY", "-3s");
}

TEST(words_are_whole)
{
	expect_value("PAGES", "auto", HP_PAGES_AUTO);
	expect_value("PAGES", "hugetlb", HP_PAGES_HUGETLB);
	expect_value("PAGES", "thp", HP_PAGES_THP);
	expect_value("PAGES", "base", HP_PAGES_BASE);
	expect_value("FORK", "cow", HP_FORK_COW);
	expect_value("SMALL", "next", HP_SMALL_NEXT);
	static const char *const bad[] = { "", "aut", "autohugetlb", "auto|hugetlb", "|", "Auto", "thp ", "0", "1" };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		expect_refused("PAGES", bad[i]);
}

TEST(a_number_may_have_words_beside_it)
{
	expect_value("NUMA", "local", HP_NUMA_LOCAL);
	expect_value("NUMA", "interleave", HP_NUMA_INTERLEAVE);
	expect_value("NUMA", "0", 0);
	expect_value("NUMA", "1023", 1023);
	static const char *const bad[] = { "", "1024", "-1", "-2", "loc", "local|interleave", "node0", "0,1", "Local" };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		expect_refused("NUMA", bad[i]);
}

TEST(a_path_is_any_text_but_none)
{
	const char *const path = "/tmp/a b,%p.csv";
	char buf[240];
	static char longest[4097];
	expect_value("TRACE", path, (intptr_t)path);
	expect_refused("TRACE", "");
	memset(longest, 'x', 4095);
	expect_value("TRACE", longest, (intptr_t)longest);
	longest[4095] = 'x';
	expect_refused("TRACE", longest);
	EXPECT(!strcmp(hp_option_accepts(option("TRACE"), buf, sizeof buf), "a path"));
}

TEST(what_an_option_accepts_is_said_and_fits)
{
	char buf[240];
	EXPECT(!strcmp(hp_option_accepts(option("ABORT"), buf, sizeof buf), "0 or 1"));
	EXPECT(!strcmp(hp_option_accepts(option("FORK"), buf, sizeof buf), "one of copy, cow"));
	EXPECT(!strcmp(hp_option_accepts(option("NUMA"), buf, sizeof buf),
		       "local, interleave or a number from 0 to 1023"));
	EXPECT(strstr(hp_option_accepts(option("DECAY"), buf, sizeof buf), "ms"));
	EXPECT(strstr(hp_option_accepts(option("SPAN"), buf, sizeof buf), "4M"));
	EXPECT(strstr(hp_option_accepts(option("EXTENT"), buf, sizeof buf), "power of two"));
	for (int i = 0; i < hp_options_count; i++)
		for (size_t n = 1; n < sizeof buf; n++) {
			memset(buf, 0x7f, sizeof buf);
			hp_option_accepts(&hp_options[i], buf, n);
			EXPECT(memchr(buf, 0, n));
			for (size_t j = n; j < sizeof buf; j++)
				if (!EXPECT_EQ(buf[j], 0x7f))
					return;
		}
}

/* ------------------------------------------------------------------ environments */

static char said[4000]; /* on stderr by the last show() */

/* The decay time, RESERVE and PAGES of a program with such an environment: "decay reserve pages", and the path if there is one. */
static const char *show(char *const *env)
{
	static char text[200];
	int out[2], err[2];
	text[0] = said[0] = 0;
	if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
		return text;
	pid_t pid = fork();
	if (pid == 0) {
		char *args[] = { (char *)"config", (char *)"--show", NULL };
		dup2(out[1], 1);
		dup2(err[1], 2);
		execve("/proc/self/exe", args, env);
		_exit(127);
	}
	close(out[1]);
	close(err[1]);
	ssize_t n = read(out[0], text, sizeof text - 1), m, got = 0;
	while ((m = read(err[0], said + got, sizeof said - 1 - (size_t)got)) > 0)
		got += m;
	text[n > 0 ? n : 0] = said[got] = 0;
	close(out[0]);
	close(err[0]);
	int status;
	if (waitpid(pid, &status, 0) != pid || status)
		T_FAIL("status %d", status);
	return text;
}

static int show_main(void)
{
	errno = 123;
	if (hp_config_load() || errno != 123)
		return 1;
	if (environ[0])
		memset(environ[0], 'x', strlen(environ[0])); /* as some programs do to tell ps(1) what they are doing */
	const char *trace = (const char *)(intptr_t)hp_config.trace;
	dprintf(1, "%lld %lld %lld%s%s%s", (long long)hp_config.decay_ms, (long long)hp_config.reserve, (long long)hp_config.pages,
		trace ? " " : "", trace ? trace : "", hp_config.small_pinned ? " pinned" : "");
	return 0;
}

static int lines(const char *s)
{
	int n = 0;
	while ((s = strchr(s, '\n'))) {
		n++;
		s++;
	}
	return n;
}

TEST(without_variables_the_defaults_hold)
{
	char *none[] = { NULL };
	EXPECT(!strcmp(show(none), "10000 0 0"));
	EXPECT(!said[0]);
}

TEST(variables_are_read)
{
	char *env[] = { (char *)"HUGEPIN_DECAY=3s", (char *)"HUGEPIN_RESERVE=1", (char *)"HUGEPIN_PAGES=thp",
			(char *)"HUGEPINX=1", (char *)"XHUGEPIN_RESERVE=9", (char *)"HUGEPI", NULL };
	EXPECT(!strcmp(show(env), "3000 1 2"));
	EXPECT(!said[0]);
}

TEST(a_path_outlives_the_environment)
{
	char *env[] = { (char *)"HUGEPIN_TRACE=/tmp/x.csv", NULL };
	EXPECT(!strcmp(show(env), "10000 0 0 /tmp/x.csv"));
	env[0] = (char *)"HUGEPIN_TRACE=";
	EXPECT(!strcmp(show(env), "10000 0 0"));
	EXPECT(strstr(said, "HUGEPIN_TRACE= is not understood: it takes a path; using none"));
}

TEST(a_malformed_value_is_named_with_what_is_accepted_and_the_default_is_used)
{
	char *env[] = { (char *)"HUGEPIN_DECAY=soon", (char *)"HUGEPIN_RESERVE=2", (char *)"HUGEPIN_PAGES=", NULL };
	EXPECT(!strcmp(show(env), "10000 2 0"));
	EXPECT_EQ(lines(said), 2);
	EXPECT(!strncmp(said, "hugepin: ", 9));
	EXPECT(strstr(said, "HUGEPIN_DECAY=soon") && strstr(said, "a time in ms or s") && strstr(said, "10s"));
	EXPECT(strstr(said, "HUGEPIN_PAGES=") && strstr(said, "auto, hugetlb, thp, base, 1g"));
}

TEST(what_can_be_shown_is_shown_as_it_is)
{
	char *env[] = { (char *)"HUGEPIN_DECAY= !~ soon", NULL };
	EXPECT(!strcmp(show(env), "10000 0 0"));
	EXPECT(strstr(said, "HUGEPIN_DECAY= !~ soon is not understood"));
	env[0] = (char *)"HUGEPIN_DECAY=\x1f\x7f";
	EXPECT(!strcmp(show(env), "10000 0 0"));
	EXPECT(strstr(said, "HUGEPIN_DECAY=?? is not understood"));
}

TEST(what_excludes_each_other_is_said_and_the_small_tier_chosen_holds)
{
	char *env[] = { (char *)"HUGEPIN_SMALL=next", (char *)"HUGEPIN_SMALL_PINNED=1", (char *)"HUGEPIN_RESERVE=3", NULL };
	EXPECT(!strcmp(show(env), "10000 3 0"));
	EXPECT_EQ(lines(said), 1);
	EXPECT(strstr(said, "HUGEPIN_SMALL_PINNED=1 can be had with HUGEPIN_SMALL=jemalloc alone"));
	env[0] = (char *)"HUGEPIN_SMALL=mimalloc";
	EXPECT(!strcmp(show(env), "10000 3 0"));
	EXPECT_EQ(lines(said), 1);
	env[0] = (char *)"HUGEPIN_SMALL=jemalloc";
	EXPECT(!strcmp(show(env), "10000 3 0 pinned"));
	EXPECT(!said[0]);
}

TEST(an_unknown_name_is_said_once_with_the_known_ones)
{
	char *env[] = { (char *)"HUGEPIN_DECOY=1", (char *)"HUGEPIN_RESERVE=3", NULL };
	EXPECT(!strcmp(show(env), "10000 3 0"));
	EXPECT_EQ(lines(said), 1);
	EXPECT(strstr(said, "HUGEPIN_DECOY") && strstr(said, "DECAY") && strstr(said, "STATS"));
}

TEST(the_names_of_other_libraries_are_theirs_to_check)
{
	char *env[] = { (char *)"HUGEPIN_X_DECOY=1", (char *)"HUGEPIN_RESERVE=3", NULL };
	EXPECT(!strcmp(show(env), "10000 3 0"));
	EXPECT(!said[0]);
	env[0] = (char *)"HUGEPIN_XDECOY=1";
	EXPECT(!strcmp(show(env), "10000 3 0"));
	EXPECT_EQ(lines(said), 1);
}

TEST(foreign_text_is_shortened_and_cannot_reach_the_terminal)
{
	static char value[3000];
	snprintf(value, sizeof value, "HUGEPIN_RESERVE=\033[31m%02000d", 0);
	char *env[] = { value, (char *)"HUGEPIN_\a\n=1", NULL };
	EXPECT(!strcmp(show(env), "10000 0 0"));
	EXPECT_EQ(lines(said), 2);
	EXPECT(strlen(said) < 600 && !strchr(said, '\033') && !strchr(said, '\a'));
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--show"))
		return show_main();
	return t_run(argc, argv);
}
