/*
 * sge/model.c: a file of thresholds is believed whole or not at all, and one of another version is told from a damaged one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sge/model.h"
#include "t.h"

static int opens;

/* The C library's, counted. */
int open(const char *path, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	opens++;
	return openat(AT_FDCWD, path, flags, mode);
}

static const struct hugepin_sg_model truth = {
	.size = sizeof truth, .source = HUGEPIN_SG_MODEL_DEVICE, .refused = HUGEPIN_SG_GATHER,
	.copy_below = { 812, 31 }, .apart_below = { UINT32_MAX, 17 }, .inline_pieces = { 30, 0 },
};

/* ------------------------------------------------------------------ text */

static const struct hp_testbed testbed = { "mlx5_0 15b3:1017", "16.35.3006", "AMD EPYC 7543 32-Core Processor" };

TEST(what_is_printed_is_read_back)
{
	char text[HP_SG_TEXT_MAX], again[HP_SG_TEXT_MAX];
	struct hugepin_sg_model m = { 0 };
	struct hp_testbed p;
	EXPECT(hp_sg_model_print(&truth, &testbed, text, sizeof text) > 0);
	EXPECT_EQ(hp_sg_model_parse(text, &m, &p), 0);
	EXPECT(!strcmp(p.device, testbed.device) && !strcmp(p.firmware, testbed.firmware) &&
	       !strcmp(p.cpu, testbed.cpu));
	EXPECT(!memcmp(&m, &truth, sizeof m));
	EXPECT(hp_sg_model_print(&m, &p, again, sizeof again) > 0);
	EXPECT(!strcmp(text, again));
	for (size_t size = 0; size <= strlen(text); size++)
		if (!EXPECT_EQ(hp_sg_model_print(&m, &testbed, again, size), -EMSGSIZE))
			break;
}

TEST(a_damaged_file_says_nothing)
{
	char text[HP_SG_TEXT_MAX], damaged[HP_SG_TEXT_MAX + 8];
	struct hugepin_sg_model m = truth;
	struct hp_testbed p = testbed;
	const int len = hp_sg_model_print(&truth, &testbed, text, sizeof text);
	for (int i = 0; i < len; i++) { /* cut off anywhere: without its number a version is another one */
		memcpy(damaged, text, (size_t)i);
		damaged[i] = '\0';
		if (!EXPECT_EQ(hp_sg_model_parse(damaged, &m, &p), i == 17 || i == 18 ? -ESTALE : -EILSEQ))
			break;
	}
	const int names = (int)(strstr(text, "refused") - text); /* what is before may be any text */
	for (int i = names; i < len; i++) { /* a byte that is no digit, or a digit less, or one more */
		memcpy(damaged, text, (size_t)len + 1);
		damaged[i] = '-';
		if (!EXPECT_EQ(hp_sg_model_parse(damaged, &m, &p), -EILSEQ))
			break;
		memmove(damaged + i, damaged + i + 1, (size_t)(len - i));
		const bool number = text[i] >= '0' && text[i] <= '9' && strncmp(text + i - 2, "m ", 2);
		const int e = hp_sg_model_parse(damaged, &m, &p);
		if (!EXPECT(e == -EILSEQ || number))
			break;
	}
	static const char *const bad[][2] = { { "below 812", "below 8e2" }, { "below 812", "below  812" }, { "below 812", "below +812" },
					      { "812 31", "812" }, { "812 31", "812 31 7" }, { "812 31", "812 4294967296" },
					      { "refused 4", "refused 8" }, { "refused 4", "refused 7" },
					      { "refused 4", "refused 2" }, { "refused 4", "refused -1" },
					      { "end\n", "end\nmore\n" }, { "\napart", "\ncopy_below 1 2\napart" } };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		const char *at = strstr(text, bad[i][0]);
		if (!EXPECT(at))
			continue;
		snprintf(damaged, sizeof damaged, "%.*s%s%s", (int)(at - text), text, bad[i][1], at + strlen(bad[i][0]));
		if (!EXPECT_EQ(hp_sg_model_parse(damaged, &m, &p), -EILSEQ))
			t_print("# %s\n", bad[i][1]);
	}
	EXPECT_EQ(hp_sg_model_parse(text, &m, &p), 0);
	EXPECT_EQ(hp_sg_model_parse("hugepin-sg-model 2\ndevice x\n", &m, &p), -ESTALE);
	EXPECT_EQ(hp_sg_model_parse("hugepin-sg-mode", &m, &p), -EILSEQ);
}

/* ------------------------------------------------------------------ files */

TEST(the_directory_is_the_users_cache)
{
	char path[HP_RESULTS_PATH_MAX], long_home[HP_RESULTS_PATH_MAX];
	setenv("HOME", "/home/ann", 1);
	setenv("XDG_CACHE_HOME", "/var/cache/ann", 1);
	EXPECT_EQ(hp_results_dir(path), 0);
	EXPECT(!strcmp(path, "/var/cache/ann/hugepin"));
	setenv("XDG_CACHE_HOME", "relative", 1);
	EXPECT_EQ(hp_results_dir(path), 0);
	EXPECT(!strcmp(path, "/home/ann/.cache/hugepin"));
	unsetenv("XDG_CACHE_HOME");
	EXPECT_EQ(hp_results_path(HP_SG_KEPT, &testbed, path), 0);
	EXPECT(!strcmp(path, "/home/ann/.cache/hugepin/"
			     "sg-mlx5_0_15b3_1017-16.35.3006-AMD_EPYC_7543_32_Core_Processor"));
	memset(long_home, 'x', sizeof long_home);
	long_home[0] = '/';
	long_home[HP_RESULTS_PATH_MAX - 100] = '\0';
	setenv("HOME", long_home, 1);
	EXPECT_EQ(hp_results_path(HP_SG_KEPT, &testbed, path), -ENAMETOOLONG);
	unsetenv("HOME");
	EXPECT_EQ(hp_results_path(HP_SG_KEPT, &testbed, path), -ENOENT);
}

TEST(names_lead_nowhere_else)
{
	char path[HP_RESULTS_PATH_MAX];
	const struct hp_testbed odd = { "../../etc/passwd", "a\nb;c$(d)", "\xc3\xa4-/" };
	setenv("XDG_CACHE_HOME", "/c", 1);
	EXPECT_EQ(hp_results_path(HP_SG_KEPT, &odd, path), 0);
	EXPECT(!strcmp(path, "/c/hugepin/sg-.._.._etc_passwd-a_b_c__d_-____"));
	unsetenv("XDG_CACHE_HOME");
}

TEST(a_stored_model_is_loaded_and_directories_are_made)
{
	char dir[] = "/tmp/sg_model.XXXXXX", cache[64], path[HP_RESULTS_PATH_MAX], command[128];
	struct hugepin_sg_model m = { 0 };
	struct hp_testbed p;
	if (!EXPECT(mkdtemp(dir)))
		return;
	snprintf(cache, sizeof cache, "%s/not/there", dir);
	setenv("XDG_CACHE_HOME", cache, 1);
	EXPECT_EQ(hp_results_path(HP_SG_KEPT, &testbed, path), 0);
	EXPECT_EQ(hp_sg_model_load(path, &m, &p), -ENOENT);
	EXPECT_EQ(hp_sg_model_keep(&testbed, &truth), 0);
	EXPECT_EQ(hp_sg_model_load(path, &m, &p), 0);
	EXPECT(!memcmp(&m, &truth, sizeof m) && !strcmp(p.cpu, testbed.cpu));
	m = (struct hugepin_sg_model){ 0 };
	EXPECT_EQ(hp_sg_model_of(&testbed, &m), 0);
	EXPECT(!memcmp(&m, &truth, sizeof m));
	struct stat st;
	EXPECT(!stat(cache, &st) && (st.st_mode & 0777) == 0700);
	/* over what is there, and nothing else is left */
	EXPECT_EQ(hp_sg_model_keep(&testbed, &truth), 0);
	snprintf(command, sizeof command, "[ $(ls -A %s/hugepin | wc -l) = 1 ]", cache);
	EXPECT_EQ(system(command), 0);
	/* whoever has closed the standard input gets its number */
	const int input = dup(0);
	EXPECT(input > 0 && !close(0));
	EXPECT_EQ(hp_sg_model_keep(&testbed, &truth), 0);
	EXPECT_EQ(dup2(input, 0), 0);
	EXPECT(!close(input));
	EXPECT_EQ(system(command), 0);
	/* another device's in its place */
	struct hp_testbed other = testbed;
	char text[HP_SG_TEXT_MAX];
	strcpy(other.cpu, "another");
	EXPECT(hp_sg_model_print(&truth, &other, text, sizeof text) > 0 && !hp_results_store(path, text));
	EXPECT_EQ(hp_sg_model_of(&testbed, &m), -ENOENT);
	EXPECT(!truncate(path, 30));
	EXPECT_EQ(hp_sg_model_load(path, &m, &p), -EILSEQ);
	/* a directory in the way: no file, and none half written */
	EXPECT(!unlink(path) && !mkdir(path, 0700));
	EXPECT(hp_sg_model_keep(&testbed, &truth) < 0);
	EXPECT(hp_sg_model_load(path, &m, &p) < 0);
	EXPECT_EQ(system(command), 0);
	snprintf(command, sizeof command, "rm -r %s", dir);
	EXPECT_EQ(system(command), 0);
	unsetenv("XDG_CACHE_HOME");
}

/* The model that is kept in `cache`, which has to be there. Returns how often files were opened for it. */
static int opens_for(uint32_t copy_below)
{
	struct hugepin_sg_model m = { 0 };

	opens = 0;
	EXPECT_EQ(hp_sg_model_of(&testbed, &m), 0);
	EXPECT_EQ(m.copy_below[0], copy_below);
	return opens;
}

TEST(a_model_is_read_once_as_long_as_its_file_is_the_same_and_in_a_child_of_fork)
{
	char cache[] = "/tmp/sg_model.XXXXXX", command[128], cpu[64];
	struct hugepin_sg_model other = truth;
	int status;

	if (!EXPECT(mkdtemp(cache)))
		return;
	setenv("XDG_CACHE_HOME", cache, 1);
	EXPECT_EQ(hp_sg_model_keep(&testbed, &truth), 0);
	EXPECT_EQ(opens_for(812), 1);
	EXPECT_EQ(opens_for(812), 0);
	other.copy_below[0] = 813;
	EXPECT_EQ(hp_sg_model_keep(&testbed, &other), 0); /* a file of the same length in its place */
	EXPECT_EQ(opens_for(813), 1);
	EXPECT_EQ(opens_for(813), 0);
	hp_results_cpu(cpu, sizeof cpu);
	opens = 0;
	hp_results_cpu(cpu, sizeof cpu);
	EXPECT_EQ(opens, 0);
	if (fork() == 0) {
		EXPECT_EQ(opens_for(813), 0);
		EXPECT_EQ(hp_sg_model_keep(&testbed, &truth), 0);
		EXPECT_EQ(opens_for(812), 1);
		_exit(t_failures != 0);
	}
	EXPECT(wait(&status) > 0 && status == 0);
	EXPECT_EQ(opens_for(812), 1);
	snprintf(command, sizeof command, "rm -r %s", cache);
	EXPECT_EQ(system(command), 0);
	EXPECT_EQ(hp_sg_model_of(&testbed, &other), -ENOENT);
	unsetenv("XDG_CACHE_HOME");
}

TEST(the_processor_is_called_as_the_kernel_calls_its_model_or_else_the_machine)
{
	char name[64] = "", cut[4], expected[64] = "";
	FILE *f = popen("sed -n 's/^model name[^:]*:[ \t]*//p' /proc/cpuinfo | head -1 | grep . || uname -m", "r");

	EXPECT(f && fgets(expected, sizeof expected, f));
	pclose(f);
	expected[strcspn(expected, "\n")] = '\0';
	hp_results_cpu(name, sizeof name);
	EXPECT(strlen(name) > 2 && !strcmp(name, expected));
	hp_results_cpu(cut, sizeof cut);
	EXPECT(strlen(cut) == 3 && !strncmp(cut, name, 3));
}

T_MAIN
