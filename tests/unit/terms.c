/*
 * reg/backend/terms.c: the line through two times, and a file of terms that is believed whole or not at all.
 */
#include "reg/backend/terms.h"

#include <errno.h>
#include <stdlib.h>

#include "tests/t.h"

static const struct hugepin_terms truth = {
	.reg = 42000, .reg_page = 240.5f, .dereg = 19000, .dereg_page = 80, .demand = 9000, .demand_page = 1.25f,
	.bring = 32000, .bring_page = 1500, .fault_send = 86000, .fault_receive = 110000.5f,
};
static const struct hp_testbed testbed = { "mlx5_0 15b3:1017", "16.35.3006", "A CPU" };

#define EACH(name) EXPECT(t.name >= truth.name * 0.999f && t.name <= truth.name * 1.001f);

TEST(the_line_goes_through_both_times_and_no_part_is_below_zero)
{
	float fixed, page;

	hp_terms_line(1000 + 20, 1000 + 256 * 20, 256, &fixed, &page);
	EXPECT(fixed > 999.9f && fixed < 1000.1f && page > 19.99f && page < 20.01f);
	hp_terms_line(700, 650, 256, &fixed, &page); /* many were not dearer */
	EXPECT(fixed == 700 && page == 0);
	hp_terms_line(10, 256 * 30, 256, &fixed, &page); /* one was cheaper than each of many */
	EXPECT(fixed == 0 && page == 30);
}

TEST(what_is_printed_is_parsed)
{
	char text[HP_TERMS_TEXT_MAX], again[HP_TERMS_TEXT_MAX];
	struct hugepin_terms t = { 0 };
	struct hp_testbed p;
	const int len = hp_terms_print(&truth, &testbed, text, sizeof text);

	EXPECT_EQ(len, strlen(text));
	EXPECT_EQ(hp_terms_parse(text, &t, &p), 0);
	EXPECT(hp_testbed_is(&p, &testbed));
	HP_TERMS_LIST(EACH)
	EXPECT_EQ(hp_terms_print(&t, &p, again, sizeof again), len);
	EXPECT(!strcmp(text, again));
	for (int size = 0; size <= len; size++)
		if (!EXPECT_EQ(hp_terms_print(&truth, &testbed, again, (size_t)size), -EMSGSIZE))
			break;
}

TEST(a_file_that_is_not_whole_is_refused)
{
	char text[HP_TERMS_TEXT_MAX], damaged[2 * HP_TERMS_TEXT_MAX];
	struct hugepin_terms t = { .reg = 7 };
	struct hp_testbed p;
	const int len = hp_terms_print(&truth, &testbed, text, sizeof text);

	for (int i = 0; i < len; i++) { /* cut, or a line missing */
		memcpy(damaged, text, sizeof text);
		damaged[i] = '\0';
		if (!EXPECT_EQ(hp_terms_parse(damaged, &t, &p), -EILSEQ))
			break;
		if (text[i] != '\n')
			continue;
		const size_t next = strcspn(text + i + 1, "\n") + 1;
		sprintf(damaged, "%.*s%s", i + 1, text, text + i + 1 + (text[i + 1] ? next : 0));
		if (text[i + 1] && !EXPECT_EQ(hp_terms_parse(damaged, &t, &p), -EILSEQ))
			break;
	}
	sprintf(damaged, "%smore\n", text);
	EXPECT_EQ(hp_terms_parse(damaged, &t, &p), -EILSEQ);
	memcpy(damaged, text, sizeof text);
	*strchr(damaged, '1') = '2'; /* the version */
	EXPECT_EQ(hp_terms_parse(damaged, &t, &p), -EILSEQ);
	memcpy(damaged, text, sizeof text);
	memcpy(strstr(damaged, "42000"), "-2000", 5);
	EXPECT_EQ(hp_terms_parse(damaged, &t, &p), -EILSEQ);
	EXPECT_EQ(hp_terms_parse("", &t, &p), -EILSEQ);
	EXPECT(t.reg == 7);
}

TEST(a_place_has_a_file_of_its_own)
{
	char dir[] = "/tmp/terms.XXXXXX", from[HP_RESULTS_PATH_MAX], to[HP_RESULTS_PATH_MAX], command[64];
	struct hugepin_terms t = { 0 };
	struct hp_testbed other = testbed;

	if (!EXPECT(mkdtemp(dir)))
		return;
	setenv("XDG_CACHE_HOME", dir, 1);
	EXPECT_EQ(hp_terms_of(&testbed, &t), -ENOENT);
	EXPECT_EQ(hp_terms_keep(&testbed, &truth), 0);
	EXPECT_EQ(hp_terms_of(&testbed, &t), 0);
	HP_TERMS_LIST(EACH)
	strcpy(other.firmware, "16.36");
	EXPECT_EQ(hp_terms_of(&other, &t), -ENOENT);
	EXPECT(!hp_results_path(HP_TERMS_KEPT, &testbed, from) && !hp_results_path(HP_TERMS_KEPT, &other, to));
	EXPECT(!rename(from, to)); /* a name that is another's: what is inside counts */
	EXPECT_EQ(hp_terms_of(&other, &t), -ENOENT);
	EXPECT(!truncate(to, 40));
	EXPECT_EQ(hp_terms_of(&other, &t), -EILSEQ);
	unsetenv("XDG_CACHE_HOME");
	sprintf(command, "rm -r %s", dir);
	EXPECT_EQ(system(command), 0);
}

T_MAIN
