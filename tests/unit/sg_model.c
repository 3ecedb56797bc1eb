/*
 * sge/model.c: the fit finds the costs that times were made of, and a file of costs is believed whole or not at all.
 */
#include <errno.h>
#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "sge/model.h"
#include "t.h"

static uint64_t seed = 1;

static double rnd(void) /* 0 to 1 */
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(seed >> 40) / (1 << 24);
}

static const struct hugepin_sg_model truth = {
	.size = sizeof truth, .source = HUGEPIN_SG_MODEL_DEVICE, .wr = 812.25f, .element = 31.5f, .lookup = 17, .line = 3.5f,
	.byte = 0.125f, .piece = 2.25f, .copy_byte = 0.03125f, .cold = 88, .cold_piece = 9, .cold_byte = 0.0625f, .inline_wr = 750,
	.inline_piece = 1.5f, .inline_byte = 0.25f,
};
/* Of a device, which the CPU waits for. */
static const struct hugepin_sg_model busy = {
	.size = sizeof busy, .source = HUGEPIN_SG_MODEL_DEVICE, .device_wr = 310.5f, .device_element = 48, .device_line = 6.25f,
	.device_byte = 0.125f, .device_inline_wr = 250, .device_inline_byte = 0.1875f,
};

enum { GRID = 500 };

/* Messages as the model says that they take, give or take a part. */
static void make_samples(const struct hugepin_sg_model *m, struct hp_sg_sample *samples, double noise)
{
	static const unsigned modes[] = { HUGEPIN_SG_INLINE, HUGEPIN_SG_COPY, HUGEPIN_SG_GATHER,
					  HUGEPIN_SG_COPY | HUGEPIN_SG_COLD };
	for (int i = 0; i < GRID; i++) {
		const unsigned n = 1 + (unsigned)(rnd() * 30), bytes = 8u << (unsigned)(rnd() * 8);
		samples[i].count = hp_sg_count(modes[i % 4], n, n * bytes, 1 + (unsigned)(rnd() * n), n + n * bytes / 64);
		samples[i].ns = hp_sg_model_ns(m, &samples[i].count) * (1 + noise * (rnd() - 0.5));
	}
}

static bool near(double a, double b, double part)
{
	return a >= b * (1 - part) && a <= b * (1 + part);
}

#define EACH_TERM(name) EXPECT(near((double)m.name, (double)expected.name, part));

TEST(the_fit_finds_the_costs_that_the_times_are_made_of)
{
	static struct hp_sg_sample samples[GRID];
	struct hugepin_sg_model m = { .size = sizeof m };
	double part = 1e-4;
	make_samples(&truth, samples, 0);
	EXPECT(hp_sg_model_fit(&m, HP_SG_CPU_TERMS, samples, GRID) < 1e-9);
	struct hugepin_sg_model expected = truth;
	HP_SG_TERMS_LIST(EACH_TERM)

	/* those of the device are fitted beside those of the CPU, and leave them alone */
	make_samples(&busy, samples, 0);
	EXPECT(hp_sg_model_fit(&m, HP_SG_DEVICE_TERMS, samples, GRID) < 1e-9);
#define TAKE_DEVICE(name) expected.name = busy.name;
	TAKE_DEVICE(device_wr) TAKE_DEVICE(device_element) TAKE_DEVICE(device_line) TAKE_DEVICE(device_byte)
	TAKE_DEVICE(device_inline_wr) TAKE_DEVICE(device_inline_byte)
	HP_SG_TERMS_LIST(EACH_TERM)
}

/* The example of hugepin_sg_plan(3). */
TEST(a_message_takes_the_larger_of_what_the_cpu_and_the_device_take)
{
	struct hugepin_sg_model both = { .size = sizeof both, .wr = 100, .element = 1, .piece = 25, .copy_byte = 0.125f,
					 .device_wr = 100, .device_element = 200 };
	struct hugepin_sg_model cpu = both, device = { .size = sizeof device, .device_wr = 100, .device_element = 200 };
	struct hp_sg_count gather = hp_sg_count(HUGEPIN_SG_GATHER, 8, 1024, 1, 16);
	struct hp_sg_count copy = hp_sg_count(HUGEPIN_SG_COPY, 8, 1024, 0, 0);

	cpu.device_wr = cpu.device_element = 0;
	EXPECT(near(hp_sg_model_ns(&cpu, &gather), 108, 1e-6));
	EXPECT(near(hp_sg_model_ns(&device, &gather), 1700, 1e-6));
	EXPECT(near(hp_sg_model_ns(&both, &gather), 1700, 1e-6));
	EXPECT(near(hp_sg_model_ns(&cpu, &copy), 429, 1e-6));
	EXPECT(near(hp_sg_model_ns(&device, &copy), 300, 1e-6));
	EXPECT(near(hp_sg_model_ns(&both, &copy), 429, 1e-6));
}

TEST(noise_moves_it_little)
{
	static struct hp_sg_sample samples[GRID];
	struct hugepin_sg_model m = { .size = sizeof m };
	make_samples(&truth, samples, 0.1);
	const double left = hp_sg_model_fit(&m, HP_SG_CPU_TERMS, samples, GRID);
	EXPECT(left > 1e-5 && left < 0.01);
	EXPECT(near((double)m.wr, (double)truth.wr, 0.05));
	EXPECT(near((double)m.element, (double)truth.element, 0.3));
	EXPECT(near((double)m.inline_wr, (double)truth.inline_wr, 0.05));
}

TEST(what_is_not_to_be_fitted_or_not_measured_stays)
{
	static struct hp_sg_sample samples[GRID];
	struct hugepin_sg_model m = truth;
	make_samples(&truth, samples, 0);
	m.wr = 0;
	m.byte = 7;
	EXPECT(hp_sg_model_fit(&m, 1u << HP_SG_wr, samples, GRID) > 0);
	EXPECT(m.byte == 7 && m.element == truth.element && m.cold_piece == truth.cold_piece);
	m = truth;
	m.cold_piece = 5;
	for (int i = 0; i < GRID; i++) /* none is cold */
		if (samples[i].count.term[HP_SG_cold_piece] > 0)
			samples[i] = samples[i - 1];
	EXPECT(hp_sg_model_fit(&m, HP_SG_CPU_TERMS, samples, GRID) < 1e-9);
	EXPECT(m.cold_piece == 5 && near((double)m.wr, (double)truth.wr, 1e-3));
}

TEST(no_cost_is_below_zero)
{
	static struct hp_sg_sample samples[GRID];
	struct hugepin_sg_model odd = truth, m = { .size = sizeof m };
	odd.line = -0.5f;
	odd.inline_byte = -0.02f;
	make_samples(&odd, samples, 0);
	EXPECT(hp_sg_model_fit(&m, HP_SG_CPU_TERMS, samples, GRID) >= 0);
	EXPECT(m.line == 0 && m.inline_byte == 0);
	EXPECT(m.wr > 0 && m.element >= 0 && m.lookup >= 0 && m.byte >= 0 && m.piece >= 0 && m.copy_byte >= 0);
}

TEST(costs_that_cannot_be_told_apart_are_found_in_their_sum)
{
	struct hp_sg_sample samples[8];
	struct hugepin_sg_model m = { .size = sizeof m };
	for (unsigned i = 0; i < 8; i++) { /* one element each: wr and element always come together */
		samples[i].count = hp_sg_count(HUGEPIN_SG_COPY, 1 + i, 8 * (1 + i), 1, 1);
		samples[i].ns = hp_sg_model_ns(&truth, &samples[i].count);
	}
	EXPECT(hp_sg_model_fit(&m, 1u << HP_SG_wr | 1u << HP_SG_element | 1u << HP_SG_piece, samples, 8) >= 0);
	EXPECT(near((double)(m.wr + m.element), (double)(truth.wr + truth.element), 1e-3));
}

TEST(no_times_are_no_fit)
{
	struct hp_sg_sample s = { hp_sg_count(HUGEPIN_SG_COPY, 1, 8, 1, 1), 0 };
	struct hugepin_sg_model m = truth;
	EXPECT(hp_sg_model_fit(&m, 1u << HP_SG_wr, &s, 0) < 0);
	EXPECT(hp_sg_model_fit(&m, 1u << HP_SG_wr, &s, 1) < 0);
	s.ns = __builtin_nan("");
	EXPECT(hp_sg_model_fit(&m, 1u << HP_SG_wr, &s, 1) < 0);
	s.ns = __builtin_inf();
	EXPECT(hp_sg_model_fit(&m, 1u << HP_SG_wr, &s, 1) < 0);
	EXPECT(!memcmp(&m, &truth, sizeof m));
}

/* ------------------------------------------------------------------ text */

static const struct hp_place place = { "mlx5_0 15b3:1017", "16.35.3006", "AMD EPYC 7543 32-Core Processor" };

#define SAME_TERM(name) EXPECT(near((double)m.name, (double)busy.name, 1e-5));

TEST(what_is_printed_is_read_back)
{
	char text[HP_SG_TEXT_MAX], again[HP_SG_TEXT_MAX];
	struct hugepin_sg_model m = busy;
	struct hp_place p;
	m.refused = HUGEPIN_SG_GATHER;
	EXPECT(hp_sg_model_print(&m, &place, text, sizeof text) > 0);
	m = (struct hugepin_sg_model){ 0 };
	EXPECT_EQ(hp_sg_model_parse(text, &m, &p), 0);
	EXPECT(!strcmp(p.device, place.device) && !strcmp(p.firmware, place.firmware) && !strcmp(p.cpu, place.cpu));
	EXPECT_EQ(m.refused, HUGEPIN_SG_GATHER);
	EXPECT_EQ(m.source, HUGEPIN_SG_MODEL_DEVICE);
	EXPECT_EQ(m.size, sizeof m);
	HP_SG_TERMS_LIST(SAME_TERM)
	EXPECT(hp_sg_model_print(&m, &p, again, sizeof again) > 0);
	EXPECT(!strcmp(text, again));
	for (size_t size = 0; size <= strlen(text); size++)
		if (!EXPECT_EQ(hp_sg_model_print(&m, &place, again, size), -EMSGSIZE))
			break;
}

TEST(commas_of_a_locale_do_not_get_in)
{
	char text[HP_SG_TEXT_MAX];
	if (!setlocale(LC_ALL, "de_DE.UTF-8"))
		SKIP("no locale de_DE.UTF-8");
	EXPECT(hp_sg_model_print(&truth, &place, text, sizeof text) > 0);
	setlocale(LC_ALL, "C");
	EXPECT(!strchr(text, ','));
}

TEST(a_damaged_file_says_nothing)
{
	char text[HP_SG_TEXT_MAX], damaged[HP_SG_TEXT_MAX + 8];
	struct hugepin_sg_model m = truth;
	struct hp_place p = place;
	const int len = hp_sg_model_print(&truth, &place, text, sizeof text);
	for (int i = 0; i < len; i++) { /* cut off anywhere */
		memcpy(damaged, text, (size_t)i);
		damaged[i] = '\0';
		if (!EXPECT_EQ(hp_sg_model_parse(damaged, &m, &p), -EILSEQ))
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
	static const char *const bad[][2] = { { "wr 812", "wr 1e3" }, { "wr 812", "wr  812" }, { "wr 812", "wr +812" },
					      { "wr 812", "wr 99999999999" }, { "wr 812.25", "wr 812.2" },
					      { "refused 0", "refused 8" }, { "refused 0", "refused 7" },
					      { "refused 0", "refused 2" }, { "refused 0", "refused -1" },
					      { "model 2\n", "model 1\n" }, { "end\n", "end\nmore\n" },
					      { "\nline", "\nelement 1.000000\nline" } };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		const char *at = strstr(text, bad[i][0]);
		if (!EXPECT(at))
			continue;
		snprintf(damaged, sizeof damaged, "%.*s%s%s", (int)(at - text), text, bad[i][1], at + strlen(bad[i][0]));
		if (!EXPECT_EQ(hp_sg_model_parse(damaged, &m, &p), -EILSEQ))
			t_print("# %s\n", bad[i][1]);
	}
	EXPECT_EQ(hp_sg_model_parse(text, &m, &p), 0);
}

TEST(random_changes_are_refused_or_harmless)
{
	char text[HP_SG_TEXT_MAX];
	struct hugepin_sg_model m;
	struct hp_place p;
	const int len = hp_sg_model_print(&truth, &place, text, sizeof text);
	for (int i = 0; i < 200000; i++) {
		const int at = (int)(rnd() * len);
		const char was = text[at];
		text[at] = (char)(unsigned char)(rnd() * 256);
		if (!hp_sg_model_parse(text, &m, &p)) {
			if (!EXPECT(m.wr >= 0 && m.wr <= 1e9f && m.inline_byte >= 0 && m.inline_byte <= 1e9f && m.refused < 8))
				break;
			if (!EXPECT(strlen(p.device) < sizeof p.device && strlen(p.cpu) < sizeof p.cpu))
				break;
		}
		text[at] = was;
	}
}

/* ------------------------------------------------------------------ files */

TEST(the_directory_is_the_users_cache)
{
	char path[HP_KEPT_PATH_MAX], long_home[HP_KEPT_PATH_MAX];
	setenv("HOME", "/home/ann", 1);
	setenv("XDG_CACHE_HOME", "/var/cache/ann", 1);
	EXPECT_EQ(hp_kept_dir(path), 0);
	EXPECT(!strcmp(path, "/var/cache/ann/hugepin"));
	setenv("XDG_CACHE_HOME", "relative", 1);
	EXPECT_EQ(hp_kept_dir(path), 0);
	EXPECT(!strcmp(path, "/home/ann/.cache/hugepin"));
	unsetenv("XDG_CACHE_HOME");
	EXPECT_EQ(hp_sg_model_path(&place, path), 0);
	EXPECT(!strcmp(path, "/home/ann/.cache/hugepin/"
			     "sg-mlx5_0_15b3_1017-16.35.3006-AMD_EPYC_7543_32_Core_Processor"));
	memset(long_home, 'x', sizeof long_home);
	long_home[0] = '/';
	long_home[HP_KEPT_PATH_MAX - 100] = '\0';
	setenv("HOME", long_home, 1);
	EXPECT_EQ(hp_sg_model_path(&place, path), -ENAMETOOLONG);
	unsetenv("HOME");
	EXPECT_EQ(hp_sg_model_path(&place, path), -ENOENT);
}

TEST(names_lead_nowhere_else)
{
	char path[HP_KEPT_PATH_MAX];
	const struct hp_place odd = { "../../etc/passwd", "a\nb;c$(d)", "\xc3\xa4-/" };
	setenv("XDG_CACHE_HOME", "/c", 1);
	EXPECT_EQ(hp_sg_model_path(&odd, path), 0);
	EXPECT(!strcmp(path, "/c/hugepin/sg-.._.._etc_passwd-a_b_c__d_-____"));
	unsetenv("XDG_CACHE_HOME");
}

TEST(a_stored_model_is_loaded_and_directories_are_made)
{
	char dir[] = "/tmp/sg_model.XXXXXX", cache[64], path[HP_KEPT_PATH_MAX], command[128];
	struct hugepin_sg_model m = { 0 };
	struct hp_place p;
	if (!EXPECT(mkdtemp(dir)))
		return;
	snprintf(cache, sizeof cache, "%s/not/there", dir);
	setenv("XDG_CACHE_HOME", cache, 1);
	EXPECT_EQ(hp_sg_model_path(&place, path), 0);
	EXPECT_EQ(hp_sg_model_load(path, &m, &p), -ENOENT);
	EXPECT_EQ(hp_sg_model_store(path, &truth, &place), 0);
	EXPECT_EQ(hp_sg_model_load(path, &m, &p), 0);
	EXPECT(near((double)m.wr, (double)truth.wr, 1e-6) && !strcmp(p.cpu, place.cpu));
	struct stat st;
	EXPECT(!stat(cache, &st) && (st.st_mode & 0777) == 0700);
	/* over what is there, and nothing else is left */
	EXPECT_EQ(hp_sg_model_store(path, &truth, &place), 0);
	snprintf(command, sizeof command, "[ $(ls -A %s/hugepin | wc -l) = 1 ]", cache);
	EXPECT_EQ(system(command), 0);
	EXPECT(!truncate(path, 30));
	EXPECT_EQ(hp_sg_model_load(path, &m, &p), -EILSEQ);
	/* a directory in the way: no file, and none half written */
	EXPECT(!unlink(path) && !mkdir(path, 0700));
	EXPECT(hp_sg_model_store(path, &truth, &place) < 0);
	EXPECT(hp_sg_model_load(path, &m, &p) < 0);
	EXPECT_EQ(system(command), 0);
	snprintf(command, sizeof command, "rm -r %s", dir);
	EXPECT_EQ(system(command), 0);
	unsetenv("XDG_CACHE_HOME");
}

TEST(the_processor_has_a_name)
{
	char name[64] = "", cut[4];
	hp_kept_cpu(name, sizeof name);
	EXPECT(strlen(name) > 2 && !strchr(name, '\n') && !strchr(name, ':'));
	hp_kept_cpu(cut, sizeof cut);
	EXPECT(strlen(cut) == 3 && !strncmp(cut, name, 3));
}

T_MAIN
