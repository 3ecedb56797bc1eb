/* link: none */
/* Children of every kind know which process they are: they can limit themselves, start threads and give memory back
 * like their parent. Each test is a program of its own. */
#include "live.h"

#include <pty.h>
#include <sys/syscall.h>

enum { DECAY_MS = 200 };

/* Each thread of the C library needs room for this beside its stack. */
static _Thread_local char much[300 * 1024];

static void *nothing(void *arg)
{
	return arg;
}

/* After the limit the program still has room for its own mappings. */
static int limits_itself(void)
{
	const struct rlimit r = { GIB, GIB };
	pthread_t thread;
	if (setrlimit(RLIMIT_AS, &r))
		return 11;
	if (pthread_create(&thread, NULL, nothing, NULL))
		return 12;
	pthread_join(thread, NULL);
	return mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? 13 : 0;
}

enum { NOT_GIVEN_BACK = 22 };
/* More than lists keep: each call is a slow one, in which a child without handlers learns of itself. */
#define LONG (66 * MIB)

static int gives_back(void)
{
	size_t full, now = 0;
	for (int i = 0; i < 2; i++) {
		char *p = hide(malloc(LONG));
		if (!p)
			return 21;
		memset(p, 1, LONG);
		full = resident();
		free(p);
		/* Wait without calling the heap. */
		for (int j = 0; (now = resident()) > full - 40 * MIB && j < 50000 / DECAY_MS; j++)
			sleep_ms(DECAY_MS);
		if (now > full - 40 * MIB)
			return NOT_GIVEN_BACK;
	}
	return 0;
}

/* In this order, since the limit leaves little memory. */
static int does_both(void)
{
	int r = gives_back();
	return r ? r : limits_itself();
}

/* A pipe for the status of a grandchild, which this process cannot wait for. */
static int status[2];

static _Noreturn void tell(int r)
{
	char c = (char)r;
	_exit(write(status[1], &c, 1) != 1);
}

static int told(void)
{
	char c;
	close(status[1]);
	return read(status[0], &c, 1) == 1 ? c : 99;
}

/* Make memory that a thread gives back, or is about to give back, when the child starts. */
static void begin(void)
{
	char *p = hide(malloc(LONG));
	if (!p || pipe2(status, O_CLOEXEC))
		_exit(1);
	memset(p, 1, LONG);
	free(p);
}

static int status_of(void (*body)(void))
{
	setenv("HUGEPIN_DECAY", "200ms", 1);
	setenv("HUGEPIN_PAGES", "thp", 1); /* children in which no handler runs are promised no pages of the pool */
	return anew_status(body);
}

static void alone(void (*body)(void))
{
	EXPECT_EQ(status_of(body), 0);
}

/* Try again if no fork handlers run: at the fork, the parent's thread may be in the middle of giving memory back, and
 * no thread finishes that in the child. This is rare, and not promised (hugepin(7)). */
static void without_handlers(void (*body)(void))
{
	int r = status_of(body);
	for (int tries = 0; tries < 3 && r == NOT_GIVEN_BACK; tries++)
		r = status_of(body);
	EXPECT_EQ(r, 0);
}

TEST_BY(alone, a_program_with_much_thread_local_memory_gives_memory_back)
{
	begin();
	memset(hide(much), 1, sizeof much);
	_exit(gives_back());
}

TEST_BY(alone, a_daemon_limits_itself_and_gives_memory_back)
{
	begin();
	pid_t child = fork();
	if (child == 0)
		tell(daemon(1, 1) ? 31 : does_both());
	_exit(told());
}

TEST_BY(alone, a_child_with_a_terminal_limits_itself_and_gives_memory_back)
{
	int master;
	begin();
	pid_t child = forkpty(&master, NULL, NULL, NULL);
	if (child == 0)
		tell(does_both());
	if (child < 0)
		SKIP("no terminals");
	_exit(told());
}

TEST_BY(without_handlers, a_child_of__Fork_limits_itself_and_gives_memory_back)
{
	begin();
	if (_Fork() == 0)
		tell(does_both());
	_exit(told());
}

TEST_BY(without_handlers, a_child_of_clone_limits_itself_and_gives_memory_back)
{
	begin();
	if (syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) == 0)
		tell(does_both());
	_exit(told());
}

/* Parent and child have the same number, each in a namespace of its own. */
TEST_BY(without_handlers, children_with_their_parents_number_are_not_taken_for_it)
{
	pid_t child;
	begin();
	if (unshare(CLONE_NEWPID))
		SKIP("no namespaces of processes");
	child = fork();
	if (child == 0) {
		int r = gives_back();
		if (getpid() != 1)
			r = 41;
		if (r == 0) { /* some of its memory is about to be given back, by a thread */
			free(hide(malloc(LONG)));
			pid_t second = (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_NEWPID, NULL, NULL, NULL, NULL);
			if (second == 0)
				_exit(getpid() != 1 ? 42 : does_both());
			r = child_wait(second);
		}
		tell(r);
	}
	_exit(told());
}

LIVE_MAIN
