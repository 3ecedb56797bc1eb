/*
 * The trace by itself: what a line says, that none is lost or doubled by full buffers, threads, forks and closed descriptors,
 * and what happens when the file cannot be written. Each test is a process of its own, since a process has one trace.
 */
#include "reg/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/base.h"
#include "base/config.h"
#include "reg/state.h"
#include "tests/t.h"

#define HEADER "t_ns,event,domain,policy,addr,len,pinned_bytes,regions\n"

static hugepin_domain domain = { .number = 3, .policy = HUGEPIN_POLICY_PREDICT };
static char dir[] = "/tmp/hugepin-trace-XXXXXX", path[200], said[5000];
static char *text; /* the last file that was read, shared with nobody */
static size_t text_len;

static const char *in_dir(const char *name)
{
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static void read_path(const char *p)
{
	int fd = open(p, O_RDONLY | O_CLOEXEC);
	struct stat st;

	free(text);
	text_len = 0;
	text = calloc(1, fd >= 0 && !fstat(fd, &st) ? (size_t)st.st_size + 1 : 1);
	if (fd < 0)
		return;
	for (ssize_t n; (n = read(fd, text + text_len, (size_t)st.st_size - text_len)) > 0;)
		text_len += (size_t)n;
	close(fd);
}

static long lines(void)
{
	long n = 0;

	for (size_t i = 0; i < text_len; i++)
		n += text[i] == '\n';
	return n;
}

static void want(const char *name)
{
	static char wanted[200];

	snprintf(wanted, sizeof wanted, "%s", *name == '/' ? name : in_dir(name));
	hp_config.trace = (intptr_t)wanted;
}

/* Run f() in a process that ends by exit(3); what that says on stderr is in `said`. */
static void in_child(void (*f)(void))
{
	int err[2], status = -1;
	ssize_t n, got = 0;

	if (!EXPECT(!pipe2(err, O_CLOEXEC)))
		return;

	pid_t pid = fork();

	if (pid == 0) {
		dup2(err[1], 2);
		f();
		exit(t_failures != 0);
	}
	close(err[1]);
	while ((n = read(err[0], said + got, sizeof said - 1 - (size_t)got)) > 0)
		got += n;
	said[got] = 0;
	close(err[0]);
	EXPECT(waitpid(pid, &status, 0) == pid);
	EXPECT_EQ(status, 0);
}

/* Events of one unit each, from `from` on: the length tells them apart. */
static void events(uintptr_t from, uintptr_t n)
{
	for (uintptr_t i = from; i < from + n; i++)
		hp_trace(HP_TRACE_PIN, &domain, 0x1000, 0x1000 + i);
}

/* Line `at` is whole, and tells of the event that events() made as number n. */
static bool is_event(const char *at, unsigned long n)
{
	unsigned long long t;
	unsigned long len;
	int end = 0;

	return sscanf(at, "%llu,pin,3,predict,0x1000,%lu,0,0%n", &t, &len, &end) == 2 && at[end] == '\n' && len == n;
}

/* The file has the header and then the events [from, from + n) in order. */
static void expect_events(const char *name, unsigned long from, unsigned long n)
{
	const char *at;

	read_path(in_dir(name));
	EXPECT_EQ(lines(), 1 + (long)n);
	if (!EXPECT(!strncmp(text, HEADER, strlen(HEADER))))
		return;
	at = text + strlen(HEADER);
	for (unsigned long i = from; i < from + n && at[0]; i++, at = strchr(at, '\n') + 1)
		if (!EXPECT(strchr(at, '\n') && is_event(at, i)))
			return;
	EXPECT(!*at);
}

/* ------------------------------------------------------------------ lines */

static uint64_t now_ns;

static uint64_t fake_clock(void)
{
	return now_ns += 1000;
}

static void one_of_each(void)
{
	want("each.csv");
	hp_clock_set(fake_clock);
	hp_trace_start();
	EXPECT(hp_trace_on);
	errno = 123;
	hp_trace(HP_TRACE_MISS, &domain, 0x7f0000000000, 0x7f0000002000);
	domain.stats.pinned_bytes = 8192;
	domain.stats.regions = 1;
	hp_trace(HP_TRACE_REGISTER, &domain, 0x7f0000000000, 0x7f0000002000);
	hp_trace(HP_TRACE_PIN, &domain, 0x7f0000000010, 0x7f0000000011);
	domain.number = 0;
	domain.policy = HUGEPIN_POLICY_ARENA;
	hp_trace(HP_TRACE_UNPIN, &domain, 0x7f0000000010, 0x7f0000000011);
	now_ns = UINT64_MAX - 1001;
	domain.number = 4294967295;
	domain.stats.pinned_bytes = domain.stats.regions = UINT64_MAX;
	hp_trace(HP_TRACE_DEREGISTER, &domain, UINTPTR_MAX, UINTPTR_MAX - 1);
	hp_trace_flush();
	EXPECT_EQ(errno, 123);
}

TEST(a_line_tells_time_event_domain_policy_range_and_what_is_pinned_then)
{
	in_child(one_of_each);
	read_path(in_dir("each.csv"));
	EXPECT(!strcmp(text, HEADER "1000,miss,3,predict,0x7f0000000000,8192,0,0\n"
				    "2000,register,3,predict,0x7f0000000000,8192,8192,1\n"
				    "3000,pin,3,predict,0x7f0000000010,1,8192,1\n"
				    "4000,unpin,0,arena,0x7f0000000010,1,8192,1\n"
				    "18446744073709551614,deregister,4294967295,arena,0xffffffffffffffff,18446744073709551615,"
				    "18446744073709551615,18446744073709551615\n"));
	EXPECT(!said[0]);
}

static void every_policy(void)
{
	want("policies.csv");
	hp_trace_start();
	for (domain.policy = HUGEPIN_POLICY_DEFAULT + 1; domain.policy <= HUGEPIN_POLICY_HYBRID; domain.policy++)
		hp_trace(HP_TRACE_MISS, &domain, 0, 1);
}

TEST(policies_have_the_names_that_the_option_has)
{
	const char *at;
	char names[100] = "";

	in_child(every_policy);
	read_path(in_dir("policies.csv"));
	at = text + strlen(HEADER);
	for (char name[20]; sscanf(at, "%*u,miss,3,%19[a-z0-9]", name) == 1; at = strchr(at, '\n') + 1)
		snprintf(names + strlen(names), sizeof names - strlen(names), "%s ", name);
	EXPECT(!strcmp(names, "arena lru cf11 predict odp none hybrid "));
}

/* ------------------------------------------------------------------ the buffer */

static void nothing_wanted(void)
{
	hp_trace_start();
	EXPECT(!hp_trace_on);
	hp_trace_flush();
}

TEST(without_a_path_there_is_no_trace)
{
	in_child(nothing_wanted);
	EXPECT(!said[0]);
}

static void many(void)
{
	struct stat st;

	want("many.csv");
	hp_trace_start();
	events(1, 20000);
	EXPECT(!stat(in_dir("many.csv"), &st) && st.st_size > 500000);
	hp_trace_start(); /* another domain */
	events(20001, 1);
}

TEST(a_full_buffer_is_written_and_the_rest_at_exit)
{
	in_child(many);
	expect_events("many.csv", 1, 20001);
	EXPECT(!said[0]);
}

static void flushed(void)
{
	int fd = open(in_dir("flushed.csv"), O_WRONLY | O_CREAT, 0600);

	EXPECT(write(fd, said, sizeof said) == sizeof said);
	want("flushed.csv");
	hp_trace_start();
	events(1, 3);
	expect_events("flushed.csv", 1, 0);
	hp_trace_flush();
	expect_events("flushed.csv", 1, 3);
}

TEST(a_flush_writes_what_waits_to_a_file_begun_anew)
{
	in_child(flushed);
	expect_events("flushed.csv", 1, 3);
}

static void fill(uintptr_t from)
{
	events(from, 10000);
}

static void *fill_thread(void *from)
{
	fill((uintptr_t)from);
	return NULL;
}

static void threads(void)
{
	pthread_t t[4];

	want("threads.csv");
	hp_trace_start();
	for (uintptr_t i = 0; i < 4; i++)
		EXPECT(!pthread_create(&t[i], NULL, fill_thread, (void *)(1 + i * 10000)));
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

TEST(lines_of_threads_stay_whole_and_in_the_order_of_time)
{
	static bool seen[40001];
	unsigned long long t, last = 0;
	unsigned long len;
	const char *at;

	in_child(threads);
	read_path(in_dir("threads.csv"));
	EXPECT_EQ(lines(), 40001);
	at = text + strlen(HEADER);
	for (; *at && strchr(at, '\n'); at = strchr(at, '\n') + 1) {
		if (!EXPECT(sscanf(at, "%llu,pin,3,predict,0x1000,%lu,0,0\n", &t, &len) == 2) ||
		    !EXPECT(len >= 1 && len <= 40000 && !seen[len] && t >= last))
			return;
		seen[len] = true;
		last = t;
	}
}

/* ------------------------------------------------------------------ files that cannot be written */

static void no_directory(void)
{
	want("none/x.csv");
	errno = 123;
	hp_trace_start();
	EXPECT(!hp_trace_on);
	EXPECT_EQ(errno, 123);
}

static void no_room(void)
{
	want("room.csv");
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 0, RLIM_INFINITY });
	hp_trace_start();
	EXPECT(!hp_trace_on);
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY });
}

static bool says_unwritten(const char *name, int err)
{
	char line[300];

	snprintf(line, sizeof line, "hugepin: HUGEPIN_TRACE: %s cannot be written: error %d\n", in_dir(name), err);
	return !strcmp(said, line);
}

TEST(a_file_that_cannot_be_written_is_said_and_nothing_is_traced)
{
	in_child(no_directory);
	EXPECT(says_unwritten("none/x.csv", ENOENT));
	in_child(no_room);
	EXPECT(says_unwritten("room.csv", EFBIG));
}

/* ------------------------------------------------------------------ what somebody else may have put there */

#define REFUSED "hugepin: HUGEPIN_TRACE: there is no trace: it takes a regular file of this user's, by its only name\n"

static char other[220]; /* the file that an attacker means */

static void make_other(mode_t mode)
{
	snprintf(other, sizeof other, "%s", in_dir("other"));
	unlink(other);

	int fd = open(other, O_WRONLY | O_CREAT | O_EXCL, 0600);

	EXPECT(fd >= 0 && write(fd, "precious", 8) == 8 && !fchmod(fd, mode));
	close(fd);
}

static bool other_is_untouched(void)
{
	struct stat st;

	read_path(other);
	return text_len == 8 && !memcmp(text, "precious", 8) && !stat(other, &st) && (st.st_mode & 0777) == 0644;
}

static void refused(void)
{
	errno = 123;
	hp_trace_start();
	EXPECT(!hp_trace_on);
	EXPECT_EQ(errno, 123);
}

TEST(nothing_is_written_through_a_link)
{
	make_other(0644);
	want("link.csv");
	EXPECT(!symlink(other, in_dir("link.csv")));
	in_child(refused);
	EXPECT(!strcmp(said, REFUSED));
	EXPECT(other_is_untouched());
	want("hard.csv");
	EXPECT(!link(other, in_dir("hard.csv")));
	in_child(refused);
	EXPECT(!strcmp(said, REFUSED));
	EXPECT(other_is_untouched());
	unlink(in_dir("link.csv"));
	unlink(in_dir("hard.csv"));
}

TEST(what_is_no_regular_file_is_refused_and_waits_for_nobody)
{
	want("fifo");
	EXPECT(!mkfifo(in_dir("fifo"), 0600));
	in_child(refused);
	EXPECT(!strcmp(said, REFUSED));

	int reader = open(in_dir("fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	in_child(refused);
	EXPECT(!strcmp(said, REFUSED));
	EXPECT_EQ(read(reader, said, 1), 0);
	close(reader);
	want(dir);
	in_child(refused);
	EXPECT(!strcmp(said, REFUSED));
	want("/dev/full");
	in_child(refused);
	EXPECT(!strcmp(said, REFUSED));
}

TEST(a_file_of_another_user_is_refused)
{
	if (geteuid())
		SKIP("needs root");
	make_other(0644);
	EXPECT(!chown(other, 65534, 65534));
	want("other");
	in_child(refused);
	EXPECT(!strcmp(said, REFUSED));
	EXPECT(other_is_untouched());
	unlink(other);
}

static void swapped(void)
{
	const char *what[] = { "symlink", "link", "fifo" };

	want("swapped.csv");
	hp_trace_start();
	EXPECT(hp_trace_on);
	for (size_t i = 0; i < 3; i++) {
		unlink(in_dir("swapped.csv"));
		EXPECT(!(i == 0   ? symlink(other, in_dir("swapped.csv"))
			 : i == 1 ? link(other, in_dir("swapped.csv"))
				  : mkfifo(in_dir("swapped.csv"), 0600)));
		events(1, 5);
		hp_trace_flush();
		if (!EXPECT(other_is_untouched()))
			t_print("# %s\n", what[i]);
	}
}

TEST(each_flush_looks_again)
{
	make_other(0644);
	in_child(swapped);
	EXPECT(!strcmp(said, "hugepin: HUGEPIN_TRACE: events that could not be written: 15\n"));
}

static void any_mask(void)
{
	umask(0);
	want(other);
	hp_trace_start();
	events(1, 5);
}

TEST(the_file_is_this_users_alone)
{
	struct stat st;

	make_other(0644); /* a trace of before */
	in_child(any_mask);
	EXPECT(!stat(other, &st));
	EXPECT_EQ(st.st_mode & 07777, 0600);
	expect_events("other", 1, 5);
	unlink(other);
	in_child(any_mask);
	EXPECT(!stat(other, &st));
	EXPECT_EQ(st.st_mode & 07777, 0600);
}

static void long_path(void)
{
	static char p[4096];
	const char *const name = in_dir("long");

	/* Cut short it would be the path of a file that can be made. */
	memset(p, '/', 4094);
	memcpy(p + 4092 - strlen(name), name, strlen(name));
	p[4092] = '%';
	p[4093] = 'p';
	hp_config.trace = (intptr_t)p;
	hp_trace_start();
	EXPECT(!hp_trace_on);
}

TEST(a_path_that_becomes_too_long_is_said)
{
	in_child(long_path);
	EXPECT(strstr(said, "error 36"));
}

static void moved_away(void)
{
	char away[200];

	want("moved.csv");
	snprintf(away, sizeof away, "%s", in_dir("away.csv"));
	hp_trace_start();
	EXPECT(!rename(in_dir("moved.csv"), away));
	events(1, 10);
	hp_trace_flush();
	events(11, 5);
	EXPECT(access(in_dir("moved.csv"), F_OK));
	hp_trace_flush();
	EXPECT(!rename(away, in_dir("moved.csv")));
	events(16, 5);
}

TEST(what_cannot_be_written_is_counted_and_told_at_exit)
{
	in_child(moved_away);
	expect_events("moved.csv", 16, 5);
	EXPECT(!strcmp(said, "hugepin: HUGEPIN_TRACE: events that could not be written: 15\n"));
}

static void file_limit(void)
{
	struct rlimit limit;

	want("limit.csv");
	signal(SIGXFSZ, SIG_IGN);
	hp_trace_start();
	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = 100000; /* in the midst of the second buffer */
	setrlimit(RLIMIT_FSIZE, &limit);
	events(1, 3000);
	hp_trace_flush();
}

/* A child that writes 3000 events to this file under a limit keeps whole lines, and tells of the others. */
static void loses_only_what_it_tells(void (*child)(void), const char *file)
{
	long written, lost;

	in_child(child);
	read_path(in_dir(file));
	written = lines() - 1;
	EXPECT(written > 500 && text[text_len - 1] == '\n');
	EXPECT(sscanf(said, "hugepin: HUGEPIN_TRACE: events that could not be written: %ld\n", &lost) == 1);
	EXPECT_EQ(written + lost, 3000);
}

TEST_CASE(a_write_that_is_cut_short_leaves_whole_lines, loses_only_what_it_tells(file_limit, "limit.csv"))

static void limit_from_the_beginning(void)
{
	want("small.csv");
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 100000, RLIM_INFINITY });
	hp_trace_start();
	events(1, 3000);
	hp_trace_flush();
}

TEST_CASE(a_limit_of_the_size_of_files_does_not_end_the_program,
	  loses_only_what_it_tells(limit_from_the_beginning, "small.csv"))

/* ------------------------------------------------------------------ processes and descriptors */

static void forks(void)
{
	int status;
	pid_t pid;

	hp_trace_start();
	events(1, 2); /* waiting while the child is made */
	pid = fork();
	if (pid == 0) {
		hp_trace_child();
		EXPECT(!hp_trace_on);
		hp_trace_flush();
		hp_trace_start();
		if (hp_trace_on)
			events(100, 2);
		dprintf(2, "%d %d\n", hp_trace_on, getpid());
		exit(t_failures != 0);
	}
	EXPECT(waitpid(pid, &status, 0) == pid && !status);
	events(3, 1);
	dprintf(2, "%d\n", getpid());
}

static void forks_with_p(void)
{
	want("fork-%p-%q%%.csv");
	forks();
}

TEST(a_child_of_fork_has_a_file_of_its_own)
{
	char name[100];
	int on = 0, child = 0, parent = 0;

	in_child(forks_with_p);
	EXPECT(sscanf(said, "%d %d\n%d", &on, &child, &parent) == 3);
	EXPECT_EQ(on, 1);
	snprintf(name, sizeof name, "fork-%d-%%q%%%%.csv", parent);
	expect_events(name, 1, 3);
	snprintf(name, sizeof name, "fork-%d-%%q%%%%.csv", child);
	expect_events(name, 100, 2);
}

static void forks_without_p(void)
{
	want("fork.csv");
	forks();
}

TEST(or_none_where_the_path_is_the_same)
{
	in_child(forks_without_p);
	EXPECT(!strncmp(said, "0 ", 2));
	expect_events("fork.csv", 1, 3);
}

static void forks_with_r(void)
{
	setenv("PMIX_RANK", "5", 1);
	want("fork-%r.csv");
	forks();
}

/* The file has the line of that rank behind the header: remove it, and keep the rest for expect_events(). */
static void expect_rank(const char *name, int rank)
{
	char begin[40];
	const char *end;
	FILE *f;

	read_path(in_dir(name));
	snprintf(begin, sizeof begin, "# rank=%d pid=", rank);
	if (!EXPECT(text_len > strlen(HEADER) && !strncmp(text + strlen(HEADER), begin, strlen(begin))))
		return;
	end = strchr(text + strlen(HEADER), '\n');
	EXPECT(end && memmem(text, (size_t)(end - text), " host=", 6));
	f = fopen(in_dir(name), "we");
	fprintf(f, HEADER "%s", end + 1);
	fclose(f);
}

TEST(or_none_where_the_rank_is_the_same)
{
	in_child(forks_with_r);
	EXPECT(!strncmp(said, "0 ", 2));
	expect_rank("fork-5.csv", 5);
	expect_events("fork-5.csv", 1, 3);
}

static void as_rank(void)
{
	setenv("OMPI_COMM_WORLD_RANK", "1", 1);
	want("ranks.csv");
	hp_trace_start();
	events(1, 3);
}

TEST(a_rank_has_a_file_of_its_own_which_says_whose_it_is)
{
	in_child(as_rank);
	EXPECT(!said[0]);
	expect_rank("ranks.r1.csv", 1);
	expect_events("ranks.r1.csv", 1, 3);
	EXPECT(access(in_dir("ranks.csv"), F_OK));
}

#define TAKEN "hugepin: HUGEPIN_TRACE: another process writes the same file, so this trace ends here; with %p in the path " \
	      "each process has a file of its own\n"

static void two_at_once(void)
{
	int status;

	want("two.csv");
	hp_trace_start();
	events(1, 2);
	hp_trace_flush();
	events(3, 3);

	pid_t pid = fork();
	if (pid == 0) {
		hp_config.trace = (intptr_t) "%p"; /* so that the child may begin, as a process that is nobody's child does */
		hp_trace_child();
		want("two.csv");
		hp_trace_start();
		EXPECT(hp_trace_on);
		events(100, 1);
		exit(t_failures != 0);
	}
	EXPECT(waitpid(pid, &status, 0) == pid && !status);
	hp_trace_flush();
	events(6, 4);
	hp_trace_flush();
}

TEST(of_two_processes_with_one_file_the_later_has_it_and_the_other_says_so)
{
	in_child(two_at_once);
	expect_events("two.csv", 100, 1);
	EXPECT(!strcmp(said, TAKEN "hugepin: HUGEPIN_TRACE: events that could not be written: 7\n"));
}

static void raw_fork(void)
{
	int status;

	want("raw.csv");
	hp_trace_start();
	events(1, 2);
	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0L);
	if (pid == 0)
		exit(0);
	EXPECT(waitpid(pid, &status, 0) == pid && !status);
	events(3, 1);
}

TEST(a_child_without_handlers_writes_nothing_of_its_parents)
{
	in_child(raw_fork);
	expect_events("raw.csv", 1, 3);
}

static void close_all(void)
{
	want("closed.csv");
	hp_trace_start();
	syscall(SYS_close_range, 3u, ~0u, 0u);
	for (int i = 0; i < 200; i++)
		open(in_dir("theirs"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	events(1, 2000);
}

TEST(a_program_that_closes_all_descriptors_gets_its_trace_and_nothing_in_its_files)
{
	in_child(close_all);
	expect_events("closed.csv", 1, 2000);
	read_path(in_dir("theirs"));
	EXPECT_EQ(text_len, 0);
}

static void change_directory(void)
{
	EXPECT(!chdir(dir));
	hp_config.trace = (intptr_t) "relative.csv";
	hp_trace_start();
	EXPECT(!chdir("/"));
	events(1, 2);
}

TEST(a_relative_path_is_of_the_directory_at_the_start)
{
	in_child(change_directory);
	expect_events("relative.csv", 1, 2);
}

static void exit_in_signal(int unused)
{
	(void)unused;
	exit(t_failures != 0);
}

static uint64_t clock_with_signal(void)
{
	raise(SIGUSR1);
	return 0;
}

static void exit_in_line(void)
{
	want("exit.csv");
	hp_trace_start();
	events(1, 2);
	hp_trace_flush();
	signal(SIGUSR1, exit_in_signal);
	hp_clock_set(clock_with_signal);
	alarm(t_seconds());
	events(3, 1);
	T_FAIL("not reached");
}

TEST(exit_in_a_signal_handler_within_a_line_does_not_wait_for_itself)
{
	in_child(exit_in_line);
	expect_events("exit.csv", 1, 2);
}

int main(int argc, char **argv)
{
	char command[100];

	if (!mkdtemp(dir))
		return 2;

	const int status = t_run(argc, argv);

	snprintf(command, sizeof command, "rm -rf %s", dir);
	return system(command) ? 2 : status;
}
