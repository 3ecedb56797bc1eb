/*
 * The frame of the C tests: one program a file, TAP on stdout, exit status 1 when a test failed.
 *
 *	TEST(name_that_states_a_fact)
 *	{
 *		EXPECT(p != NULL);
 *		EXPECT_EQ(errno, ENOMEM);
 *	}
 *	T_MAIN
 *
 * A failed expectation is printed with its place and values, and the test goes on. Tests run in the order of the file,
 * all of them or those whose names contain an argument. A test that takes longer than 600 s, or T_SECONDS of the
 * environment, hangs, and ends the program. That is many times what any takes, because the machine may be busy. No test has
 * another limit of its own for a hang.
 * Nothing here allocates memory: the memory allocator is what most of these programs test.
 */
#ifndef TESTS_T_H
#define TESTS_T_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef T_COUNTED /* tools/mutate: what a child reaches before it leaves counts, too */
void __gcov_dump(void);
#define _exit(status) (__gcov_dump(), _exit(status))
#endif

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

struct t_test {
	const char *name;
	void (*run)(void);
	struct t_test *next;
};

/* How long a test may take. */
static inline unsigned t_seconds(void)
{
	const char *set = getenv("T_SECONDS");

	return set ? (unsigned)atoi(set) : 600;
}

static struct t_test *t_first, **t_end __attribute__((unused)) = &t_first; /* a program may have no test of this form */
static _Atomic int t_failures; /* of the running test; threads may fail, too */
static char t_skip_reason[600];

#define TEST(fact)                                                                                                     \
	static void fact(void);                                                                                        \
	__attribute__((constructor)) static void t_register_##fact(void)                                               \
	{                                                                                                              \
		static struct t_test t = { #fact, fact, NULL };                                                        \
		*t_end = &t;                                                                                           \
		t_end = &t.next;                                                                                       \
	}                                                                                                              \
	static void fact(void)

/* A test of one statement: a row of a table of cases. */
#define TEST_CASE(fact, ...)                                                                                           \
	TEST(fact)                                                                                                     \
	{                                                                                                              \
		__VA_ARGS__;                                                                                           \
	}

/* A test whose body is run by by(void (*)(void)): in a process of its own, for example. */
#define TEST_BY(by, fact)                                                                                              \
	static void fact##_body(void);                                                                                 \
	TEST_CASE(fact, by(fact##_body))                                                                               \
	static void fact##_body(void)

/* One write, so that lines of threads and of forked children stay whole. */
__attribute__((format(printf, 1, 2))) static inline void t_print(const char *format, ...)
{
	char line[1024];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line, sizeof line, format, args);
	va_end(args);
	size_t len = n < (int)sizeof line ? (size_t)n : sizeof line - 1;
	if (write(STDOUT_FILENO, line, len) < 0)
		_exit(2);
}

/* The first few of a test are printed: a loop tends to fail often. Returns false. */
__attribute__((format(printf, 3, 4))) static inline bool t_fail(const char *file, int line, const char *format, ...)
{
	char what[400];
	va_list args;
	va_start(args, format);
	vsnprintf(what, sizeof what, format, args);
	va_end(args);
	if (++t_failures <= 8)
		t_print("# %s:%d: %s\n", file, line, what);
	return false;
}

#define T_FAIL(...) t_fail(__FILE__, __LINE__, __VA_ARGS__)

static inline bool t_expect(bool holds, const char *file, int line, const char *what)
{
	return holds || t_fail(file, line, "%s", what);
}

static inline bool t_expect_eq(long long a, long long b, const char *file, int line, const char *a_text,
			       const char *b_text)
{
	return a == b || t_fail(file, line, "%s is %lld, not %s, which is %lld", a_text, a, b_text, b);
}

/* Whether the test has failed by now; the round is told then. */
static inline bool t_failed_in(int round)
{
	if (t_failures)
		t_print("# round %d\n", round);
	return t_failures != 0;
}

/* Both are true when the expectation holds: if (!EXPECT(p)) return; */
#define EXPECT(x) t_expect(!!(x), __FILE__, __LINE__, #x)
#define EXPECT_EQ(a, b) t_expect_eq((long long)(a), (long long)(b), __FILE__, __LINE__, #a, #b)

/* Leave the test, whose subject this machine cannot show. */
#define SKIP(...)                                                                                                      \
	do {                                                                                                           \
		snprintf(t_skip_reason, sizeof t_skip_reason, __VA_ARGS__);                                            \
		return;                                                                                                \
	} while (0)

/* Unit tests leave nothing behind. */
#ifdef T_UNIT
#include "tests/left.h"

static inline void t_run_and_compare(struct t_test *t)
{
	static struct t_left before, after;
	static bool begun;

	t_begin();
	t_stay = begun ? 0 : T_BEGINS;
	begun = true;
	t_look(&before);
	t->run();
	t_look_again(&after, &before);
	t_compare(&before, &after);
}
#else
#define t_run_and_compare(t) ((t)->run())
#endif

static inline int t_run(int argc, char **argv)
{
	int n = 0, failed = 0;
	for (struct t_test *t = t_first; t; t = t->next) {
		if (argc > 1 && !strstr(t->name, argv[1]))
			continue;
		t_failures = 0;
		t_skip_reason[0] = 0;
		n++;
		alarm(t_seconds());
		t_run_and_compare(t);
		alarm(0);
		if (t_failures) {
			failed++;
			if (t_failures > 8)
				t_print("# and %d more\n", t_failures - 8);
			t_print("not ok %d - %s\n", n, t->name);
		} else {
			t_print("ok %d - %s%s%s\n", n, t->name, t_skip_reason[0] ? " # SKIP " : "", t_skip_reason);
		}
	}
	t_print("1..%d\n", n);
	return failed != 0;
}

#define T_MAIN                                                                                                         \
	int main(int argc, char **argv)                                                                                \
	{                                                                                                              \
		return t_run(argc, argv);                                                                              \
	}

#endif
