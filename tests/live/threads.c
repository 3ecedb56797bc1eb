/* link: none */
/* A program with one thread keeps one, for the C library and for kernel functions that exist only for such programs.
 * And the library's threads have no more rights than the program has left. Each test is a program of its own, since
 * each process has one heap. */
#include "live.h"

#include "filter.h"

#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/single_threaded.h>
#include <sys/time.h>

enum { DECAY_MS = 500 };

/* Count the threads of this process. *ret_others: those whose status has a value of `key` other than `value`. */
static int tasks(const char *key, const char *value, int *ret_others)
{
	char path[300], text[4000];
	int n = 0;
	DIR *d = opendir("/proc/self/task");
	*ret_others = 0;
	for (struct dirent *e; d && (e = readdir(d));) {
		if (e->d_name[0] == '.')
			continue;
		n++;
		snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
		char *at = file_read(path, text, sizeof text) > 0 ? strstr(text, key) : NULL;
		if (!at)
			continue; /* the thread has ended meanwhile */
		at += strlen(key);
		at += strspn(at, ":\t ");
		at[strcspn(at, "\n")] = 0;
		if (strcmp(at, value) != 0) {
			(*ret_others)++;
			T_FAIL("thread %s: %s is '%s', not '%s'", e->d_name, key, at, value);
		}
	}
	if (d)
		closedir(d);
	return n;
}

/* The number of threads that the kernel counts. Does not read a directory, which would use the heap. */
static int num_threads(void)
{
	return (int)status_number("\nThreads:");
}

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void use(size_t bytes)
{
	char *p = hide(malloc(bytes));
	if (EXPECT(p))
		memset(p, 1, bytes);
	free(p);
}

/* Wait for that without calling the heap. It takes twice the decay time if a processor is free. */
static void expect_given_back(size_t before, size_t full)
{
	size_t now;

	for (int i = 0; (now = resident()) > before + 4 * MIB && i < 50000 / DECAY_MS; i++)
		sleep_ms(DECAY_MS);
	if (!EXPECT(now <= before + 4 * MIB))
		T_FAIL("resident: %zu KiB before, %zu freed, %zu after", before / KIB, full / KIB, now / KIB);
}

static const char *decay = "500ms";

/* Run it on pages of the pool, if there are some, and on other pages. */
static void both(void (*body)(void))
{
	setenv("HUGEPIN_DECAY", decay, 1);
	setenv("HUGEPIN_PAGES", "thp", 1);
	EXPECT(anew_status(body) == 0 || T_FAIL("thp"));
	setenv("HUGEPIN_PAGES", "auto", 1);
	if (!t_skip_reason[0] && pool_free() >= 80)
		EXPECT(anew_status(body) == 0 || T_FAIL("pool"));
	unsetenv("HUGEPIN_DECAY");
	unsetenv("HUGEPIN_PAGES");
}

TEST_BY(both, a_program_of_one_thread_stays_one_and_gives_memory_back)
{
	size_t before = resident(), full;
	char *p = hide(malloc(48 * MIB));
	memset(p, 1, 48 * MIB);
	EXPECT(__libc_single_threaded);
	full = resident();
	free(p);
	EXPECT(__libc_single_threaded);
	EXPECT(full >= before + 48 * MIB);
	expect_given_back(before, full);
	EXPECT(__libc_single_threaded);
	for (int i = 0; i < 1000 && num_threads() > 1; i++)
		sleep_ms(DECAY_MS / 10);
	EXPECT_EQ(num_threads(), 1);
}

TEST_BY(both, a_program_of_one_thread_may_enter_namespaces)
{
	int pipes[2], fd, mine;
	char path[64], c;
	pid_t other;
	if (pipe2(pipes, O_CLOEXEC))
		_exit(1);
	if ((other = fork()) == 0) {
		c = unshare(CLONE_NEWUSER) == 0 ? 'y' : 'n';
		if (write(pipes[1], &c, 1) != 1)
			_exit(1);
		pause();
	}
	if (read(pipes[0], &c, 1) != 1 || c != 'y' || (mine = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC)) < 0) {
		kill(other, SIGKILL);
		SKIP("no user namespaces");
	}
	snprintf(path, sizeof path, "/proc/%d/ns/user", (int)other);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < 20; i++) {
		use(48 * MIB);
		EXPECT(i % 2 ? syscall(SYS_setns, mine, CLONE_NEWNS) == 0 : setns(mine, CLONE_NEWNS) == 0);
	}
	for (int i = 0; i < 2; i++) {
		pid_t child = fork();
		if (child == 0) {
			use(48 * MIB);
			long r = i ? unshare(CLONE_NEWUSER) : syscall(SYS_unshare, CLONE_NEWUSER);
			_exit(r == 0 ? 0 : errno);
		}
		EXPECT_EQ(child_wait(child), 0);
	}
	use(48 * MIB);
	EXPECT(setns(fd, CLONE_NEWUSER) == 0 || T_FAIL("setns: %s", strerror(errno)));
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
}

TEST_BY(both, a_program_ends_with_its_last_thread)
{
	use(48 * MIB);
	alarm(t_seconds());
	if (t_failures)
		return;
	pthread_exit(NULL);
}

/* Restrict the calling thread only: drop its capabilities and the rights that execve could give, and install a filter
 * that allows everything. */
static bool give_rights_up(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { { 0 } };
	struct filter all = { .len = 0 };

	return syscall(SYS_capset, &head, none) == 0 && filter_install(&all, SECCOMP_RET_ALLOW);
}

TEST_BY(both, rights_that_are_given_up_are_left_to_no_thread)
{
	int others;
	use(48 * MIB);
	if (!EXPECT(give_rights_up()))
		return;
	for (int i = 0; i < 2 * DECAY_MS / 50; i++) {
		tasks("CapEff", "0000000000000000", &others);
		tasks("Seccomp", "2", &others);
		tasks("NoNewPrivs", "1", &others);
		use(3 * MIB + (size_t)i * 100 * KIB);
		sleep_ms(50);
	}
}

TEST_BY(both, no_thread_keeps_the_user_that_the_program_was)
{
	int others;
	use(48 * MIB);
	if (setgroups(0, NULL) || setresgid(65534, 65534, 65534) || setuid(65534))
		SKIP("not root");
	use(48 * MIB);
	EXPECT(num_threads() >= 1);
	tasks("Uid", "65534\t65534\t65534\t65534", &others);
	tasks("Gid", "65534\t65534\t65534\t65534", &others);
}

static void changes_for_a_while(void)
{
	use(48 * MIB);
	int tid = ticker();
	EXPECT(tid != 0);
	if (seteuid(65534))
		SKIP("not root");
	EXPECT(!seteuid(0));
	EXPECT_EQ(ticker(), tid);
	EXPECT(!setegid(65534) && !setegid(0));
	EXPECT_EQ(ticker(), tid);
	EXPECT(!syscall(SYS_setresuid, -1, 65534, -1) && !syscall(SYS_setresuid, -1, 0, -1));
	EXPECT_EQ(ticker(), tid);
	int others;
	EXPECT(!setresuid(65534, 65534, 65534));
	tasks("Uid", "65534\t65534\t65534\t65534", &others);
	EXPECT(ticker() != tid);
}

TEST(the_thread_that_ticks_stays_while_the_program_can_become_its_user_again)
{
	const char *was = decay;
	decay = "3600s"; /* so that it does not end by itself */
	both(changes_for_a_while);
	decay = was;
}

/* From now on all threads may make only the system calls that the C library's malloc needs. Others kill the process. */
static bool confine(void)
{
	static const uint16_t calls[] = { SYS_mmap,  SYS_munmap, SYS_mremap,	 SYS_madvise,	      SYS_mprotect, SYS_brk,
					  SYS_futex, SYS_write,	 SYS_exit_group, SYS_clock_nanosleep, SYS_exit };
	struct filter f = { .len = 0 };
	struct sock_fprog program;

	filter_calls(&f, calls, FILTER_COUNT(calls), SECCOMP_RET_ALLOW);
	program = filter_end(&f, SECCOMP_RET_KILL_PROCESS);
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

/* Keep and free buffers of random sizes for a few decay times. */
static void churn_confined(void)
{
	enum { COUNT = 24, SMALL = 50000 };
	static char *small[SMALL];
	char *p[COUNT] = { NULL };
	uint64_t state = 5;
	for (int i = 0; i < 1200; i++) {
		size_t at = (size_t)i * 7 % COUNT, n = rand_size(&state, 32 * KIB, 6 * MIB);
		free(p[at]);
		p[at] = hide(malloc(n));
		if (!p[at])
			_exit(3);
		memset(p[at], 1, n);
		if (i % 50 == 0)
			sleep_ms(DECAY_MS / 8);
		if (i % 7 == 0)
			p[at] = hide(realloc(p[at], n * 2));
	}
	for (int i = 0; i < COUNT; i++)
		free(p[i]);
	/* So many small ones that jemalloc looks what is to be given back. */
	for (int i = 0; i < 2000000; i++) {
		const size_t n = rand_size(&state, 1, i % 3 ? 2000 : 30000);

		free(small[i * 7 % SMALL]);
		small[i * 7 % SMALL] = hide(malloc(n));
	}
	for (int i = 0; i < SMALL; i++)
		free(small[i]);
}

static void allocates_confined(void)
{
	use(48 * MIB);
	if (!confine())
		_exit(4);
	churn_confined();
	_exit(t_failures != 0);
}

TEST_CASE(a_program_confined_to_what_malloc_needs_allocates, both(allocates_confined))

TEST_BY(both, a_program_confined_before_its_first_allocation_allocates)
{
	if (!confine())
		_exit(4);
	churn_confined();
	_exit(t_failures != 0);
}

static void *nothing(void *arg)
{
	return arg;
}

/* With threads that have ended, and one that waits: their caches cannot be emptied without membarrier(2). */
TEST_BY(both, a_program_that_had_threads_and_confined_itself_allocates)
{
	pthread_t t;
	use(48 * MIB);
	for (int i = 0; i < 3; i++)
		if (pthread_create(&t, NULL, nothing, NULL) || pthread_join(t, NULL))
			_exit(1);
	allocates_confined();
}

static char child_stack[1 << 16];

static int allocate_in_child(void *unused)
{
	(void)unused;
	use(64 * MIB);
	return 0;
}

TEST_BY(both, a_child_of_vfork_that_allocates_takes_nothing_from_its_parent)
{
	size_t before = resident(), full;
	/* As with vfork(2), the child uses the parent's memory. */
	pid_t child = clone(allocate_in_child, child_stack + sizeof child_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
	EXPECT_EQ(child_wait(child), 0);
	use(64 * MIB);
	full = resident();
	EXPECT(full >= before + 48 * MIB);
	expect_given_back(before, full);
}

TEST_BY(both, children_have_one_thread_and_programs_are_run)
{
	char line[16] = "";
	use(48 * MIB);
	for (int i = 0; i < 20; i++) {
		use(40 * MIB + (size_t)i * MIB);
		pid_t child = fork();
		if (child == 0) {
			if (num_threads() != 1)
				_exit(1);
			use(48 * MIB);
			_exit(!__libc_single_threaded);
		}
		EXPECT_EQ(child_wait(child), 0);
	}
	FILE *f = popen("echo here", "r");
	if (EXPECT(f)) {
		EXPECT(fgets(line, sizeof line, f) && !strcmp(line, "here\n"));
		EXPECT_EQ(pclose(f), 0);
	}
	EXPECT(__libc_single_threaded);
	EXPECT(num_threads() <= 2);
}

static volatile sig_atomic_t handled, refused;

static void change_user(int signal)
{
	(void)signal;
	handled++;
	if (seteuid(geteuid()))
		refused++;
}

/* POSIX allows setuid() in signal handlers, whatever they have interrupted. */
static void changes_its_user_in_handlers(void)
{
	struct itimerval once = { { 0, 0 }, { 0, 0 } };
	uint64_t begun = now_ms();
	signal(SIGALRM, change_user);
	for (int i = 0; now_ms() < begun + 1500; i++) {
		/* One signal a round: the handler waits for other threads. On a busy machine that takes longer than a
		 * period of a repeated signal, and nothing else would run any more. */
		once.it_value.tv_usec = 1 + (i % 64 ? i % 200 : i % 2000);
		setitimer(ITIMER_REAL, &once, NULL);
		use(2 * MIB);
		if (i % 64 == 0)
			use(48 * MIB);
	}
	once.it_value.tv_usec = 0;
	setitimer(ITIMER_REAL, &once, NULL);
	EXPECT(handled > 100);
	EXPECT_EQ(refused, 0);
}

TEST(a_signal_handler_may_change_the_user_whatever_it_interrupts)
{
	decay = "20ms"; /* a short decay time, so that threads start and end all the time */
	both(changes_its_user_in_handlers);
	decay = "500ms";
}

/* For threads_count.sh: print the nanoseconds for copying a byte from one stream to another, with 16 MiB allocated. */
static int copy_bytes(long count)
{
	static char in[65536], out[65536];
	struct timespec from, to;
	char *p = hide(malloc(16 * MIB));
	FILE *source = fopen("/dev/zero", "r"), *sink = fopen("/dev/null", "w");
	if (!p || !source || !sink || setvbuf(source, in, _IOFBF, sizeof in) || setvbuf(sink, out, _IOFBF, sizeof out))
		return 1;
	memset(p, 1, 16 * MIB);
	hide(p);
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (long i = 0; i < count; i++)
		putc(getc(source), sink);
	clock_gettime(CLOCK_MONOTONIC, &to);
	t_print("%.2f\n", ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / (double)count);
	free(p);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "--anew"))
		return anew_main(argv + 2);
	if (argc == 3 && !strcmp(argv[1], "--copy"))
		return copy_bytes(strtol(argv[2], NULL, 10));
	return t_run(argc, argv);
}
