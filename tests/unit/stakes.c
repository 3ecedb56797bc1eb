/*
 * Which domains have something in a range of memory: the index against a naive model, which looks at every entry.
 */
#include "reg/stakes.h"

#include <sys/wait.h>

#include "tests/any.h"
#include "tests/t.h"

enum { DOMAINS = 300, ENTRIES = 4000, PAGE = 4096 };

static hugepin_domain domains[DOMAINS];
static struct hp_stake entries[ENTRIES];
static bool listed[ENTRIES];

static void add(unsigned i, unsigned domain, uintptr_t start, uintptr_t end)
{
	hp_stakes_add(&entries[i], &domains[domain], start, end);
	listed[i] = true;
}

static void take_away(unsigned i)
{
	hp_stakes_remove(&entries[i]);
	listed[i] = false;
}

static void begin(void)
{
	for (unsigned i = 0; i < ENTRIES; i++)
		take_away(i);
	for (unsigned i = 0; i < DOMAINS; i++) {
		hp_stakes_forget(&domains[i]);
		domains[i].gone_seen = hp_stakes_latest();
	}
}

/* Find by both. Returns the number of domains. */
static unsigned expect_right(uintptr_t start, uintptr_t end)
{
	struct hp_stakes_walk w = { .start = start, .end = end };
	unsigned times[DOMAINS] = { 0 }, n, sum = 0;
	hugepin_domain *found[HP_STAKES_STEP];
	bool has[DOMAINS] = { false };

	while ((n = hp_stakes_next(&w, found)))
		for (unsigned i = 0; i < n; i++)
			times[found[i] - domains]++;
	for (unsigned i = 0; i < ENTRIES; i++)
		has[entries[i].domain ? entries[i].domain - domains : 0] |=
			listed[i] && entries[i].start < end && entries[i].end > start;
	for (unsigned i = 0; i < DOMAINS; i++) {
		EXPECT_EQ(times[i], has[i] || domains[i].listening);
		sum += times[i];
	}
	return sum;
}

static uintptr_t length(void)
{
	return (uintptr_t)PAGE << any(any(3) ? 4 : 24);
}

TEST(whoever_has_something_in_a_range_is_found_once_and_nobody_else)
{
	unsigned most = 0;

	begin();
	for (int round = 0; round < 60 && t_failures < 5; round++) {
		for (int n = 0; n < 400; n++) {
			const unsigned i = (unsigned)any(ENTRIES);
			uintptr_t start = PAGE + any(1 << 14) * PAGE;

			if (listed[i])
				take_away(i);
			else if (any(100) < (round < 40 ? 80u : 20u))
				add(i, (unsigned)any(DOMAINS), start, start + length() - any(2));
		}
		hp_stakes_listen(&domains[any(DOMAINS)], 1);
		for (int n = 0; n < 10; n++) {
			const uintptr_t start = any(1 << 14) * PAGE;
			const unsigned sum = expect_right(start, start + length());

			most = sum > most ? sum : most;
		}
		expect_right(0, UINTPTR_MAX);
	}
	EXPECT(most > HP_STAKES_STEP);
	begin();
	EXPECT_EQ(expect_right(0, UINTPTR_MAX), 0);
}

TEST(the_looks_do_not_grow_with_the_domains_that_have_other_memory)
{
	uint64_t few;

	begin();
	add(0, 0, 1000 * PAGE, 1010 * PAGE);
	hp_stakes_looks = 0;
	EXPECT_EQ(expect_right(1002 * PAGE, 1003 * PAGE), 1);
	few = hp_stakes_looks;
	for (unsigned i = 1; i < DOMAINS; i++)
		add(i, i, (2000 + 20 * i) * PAGE, (2010 + 20 * i) * PAGE);
	hp_stakes_looks = 0;
	EXPECT_EQ(expect_right(1002 * PAGE, 1003 * PAGE), 1);
	EXPECT_EQ(hp_stakes_looks, few);
	begin();
}

TEST(a_domain_with_hints_or_requests_is_asked_for_all_memory)
{
	begin();
	hp_stakes_listen(&domains[3], 1);
	hp_stakes_listen(&domains[3], 2);
	EXPECT_EQ(expect_right(PAGE, 2 * PAGE), 1);
	hp_stakes_listen(&domains[3], -2);
	EXPECT_EQ(expect_right(PAGE, 2 * PAGE), 1);
	hp_stakes_listen(&domains[3], -1);
	EXPECT_EQ(expect_right(PAGE, 2 * PAGE), 0);
}

static void note(uintptr_t page)
{
	hp_stakes_note(&(struct hp_range){ .start = page * PAGE, .end = (page + 1) * PAGE });
}

TEST(who_comes_late_hears_of_what_went_away_since_it_looked)
{
	hugepin_domain *d = &domains[0];

	begin();
	note(5);
	d->gone_seen = hp_stakes_latest();
	note(7);
	EXPECT(!hp_stakes_add(&entries[0], d, 5 * PAGE, 7 * PAGE));
	EXPECT(hp_stakes_add(&entries[1], d, 5 * PAGE, 8 * PAGE));
	EXPECT(hp_stakes_add(&entries[2], d, 7 * PAGE + 1, 7 * PAGE + 2));
	EXPECT(!hp_stakes_add(&entries[3], d, 8 * PAGE, 9 * PAGE));
	for (unsigned i = 0; i < HP_GONE_MAX - 1; i++)
		note(100);
	EXPECT(!hp_stakes_add(&entries[4], d, 8 * PAGE, 9 * PAGE));
	EXPECT(hp_stakes_add(&entries[5], d, 7 * PAGE, 8 * PAGE));
	note(100); /* so many that the first is not kept */
	EXPECT(hp_stakes_add(&entries[6], d, 8 * PAGE, 9 * PAGE));
	d->gone_seen = hp_stakes_latest();
	EXPECT(!hp_stakes_add(&entries[7], d, 100 * PAGE, 101 * PAGE));
	begin();
}

TEST(nobody_has_anything_in_a_child_of_fork_and_what_is_taken_out_there_was_the_parents)
{
	int status;

	begin();
	for (unsigned i = 0; i < 50; i++)
		add(i, i, (10 + i) * PAGE, (20 + i) * PAGE);
	hp_stakes_listen(&domains[60], 1);
	if (fork() == 0) {
		hp_stakes_child();
		for (unsigned i = 0; i < 50; i += 2)
			take_away(i);
		memset(listed, false, sizeof listed);
		domains[60].listening = 0;
		EXPECT_EQ(expect_right(0, UINTPTR_MAX), 0);
		add(0, 7, 10 * PAGE, 11 * PAGE);
		EXPECT_EQ(expect_right(0, UINTPTR_MAX), 1);
		_exit(t_failures != 0);
	}
	EXPECT(wait(&status) > 0 && status == 0);
	hp_stakes_listen(&domains[60], -1);
	EXPECT_EQ(expect_right(0, UINTPTR_MAX), 50);
	begin();
}

T_MAIN
