/*
 * cmd/text.c: words of a command as a shell takes them.
 */
#include "cmd/text.h"

#include <stdio.h>

#include "tests/any.h"
#include "tests/t.h"

static char text[65536];

static struct hp_line begin(size_t size)
{
	text[0] = 0;
	return (struct hp_line){ text, text + size };
}

static void expect_quoted(const char *word, const char *quoted)
{
	struct hp_line l = begin(sizeof text);

	EXPECT(hp_line_quote(&l, word));
	if (strcmp(text, quoted) != 0)
		T_FAIL("%s becomes %s", word, text);
}

TEST(words_are_quoted_where_a_shell_needs_it)
{
	expect_quoted("sort", "sort");
	expect_quoted("--file=a/b.c:1,2", "--file=a/b.c:1,2");
	expect_quoted("", "''");
	expect_quoted("a b", "'a b'");
	expect_quoted("it's $HOME", "'it'\\''s $HOME'");
	/* A shell sees an assignment only if the name and the sign are bare. */
	expect_quoted("LD_PRELOAD=/a b.so", "LD_PRELOAD='/a b.so'");
	expect_quoted("a b=c", "'a b=c'");
}

/* Words of the characters that mean something to a shell, and of all others above blank. */
TEST(a_shell_reads_what_was_quoted)
{
	static const char special[] = "''\"\"\\\\$$``!*?[]{}()<>|&;#~= \xc3\xa9\xff";
	static char expected[65536], got[65536];

	for (int round = 0; round < 20; round++) {
		struct hp_line l = begin(sizeof text), all = { expected, expected + sizeof expected };

		hp_line_text(&l, "printf '%s\\n'");
		for (int i = 0; i < 200; i++) {
			char word[12] = "";
			for (size_t k = 0, len = any(sizeof word); k < len; k++) {
				const char other = (char)(any(95) + 32);
				word[k] = any(3) ? special[any(sizeof special - 1)] : other;
			}
			hp_line_text(&l, " ");
			EXPECT(hp_line_quote(&l, word));
			hp_line_text(&all, word);
			hp_line_text(&all, "\n");
		}
		FILE *const shell = popen(text, "r");
		const size_t n = fread(got, 1, sizeof got - 1, shell);
		got[n] = 0;
		EXPECT_EQ(pclose(shell), 0);
		EXPECT(!strcmp(got, expected));
	}
}

TEST(what_a_line_cannot_show_is_not_begun)
{
	static const char *const words[] = { "a\nb", "\033[2J", "x=\177", "longer than the room", "'''''''", "=======================" };
	struct hp_line l = begin(20);

	hp_line_text(&l, "run ");
	for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
		EXPECT(!hp_line_quote(&l, words[i]));
		EXPECT(!strcmp(text, "run "));
	}
	EXPECT(hp_line_quote(&l, "x y"));
	EXPECT(!strcmp(text, "run 'x y'"));
}

static void expect_command(size_t size, char *const *words, const char *command)
{
	struct hp_line l = begin(size);

	hp_line_command(&l, words);
	if (strcmp(text, command) != 0)
		T_FAIL("it is %s", text);
	EXPECT(strlen(text) < size && l.at == text + strlen(text));
}

TEST(a_command_ends_where_it_cannot_be_shown)
{
	char *const words[] = { "sh", "-c", "echo 'a'", "last", NULL }, *const lines[] = { "sh", "-c", "a\nb", "c", NULL },
		*const odd[] = { "\n", NULL };

	expect_command(200, words, "sh -c 'echo '\\''a'\\''' last");
	expect_command(26, words, "sh -c ...");
	expect_command(200, lines, "sh -c ...");
	expect_command(200, odd, "...");
	for (size_t size = 8; size < 60; size++) {
		struct hp_line l = begin(size);
		hp_line_command(&l, words);
		EXPECT(strlen(text) < size);
	}
}

T_MAIN
