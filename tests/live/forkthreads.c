/* link: none */
/*
 * Forks of programs with threads: with stacks in the heap, whose tops the C library reads in the child before any
 * handler, and with threads that allocate during the fork. A child has the same contents as with the C library's own
 * malloc.
 */
#include "live.h"

#include <semaphore.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

static _Atomic bool stop;
static sem_t ready, done;

enum { STACK_SIZE = 8 << 20 };

static bool start(pthread_t *t, void *stack, size_t size, void *(*run)(void *), void *arg)
{
	pthread_attr_t a;
	bool ok = stack && !pthread_attr_init(&a);

	ok = ok && !pthread_attr_setstack(&a, stack, size) && !pthread_create(t, &a, run, arg);
	return ok;
}

/* ------------------------------------------------------------------ stacks */

static void *wait_there(void *arg)
{
	(void)arg;
	sem_post(&ready);
	sem_wait(&done);
	return NULL;
}

static void *do_nothing(void *arg)
{
	return arg;
}

/* Fork a child that starts and joins a thread, and then exits with status 7. */
static void fork_a_child(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		char *p = hide(malloc(3 * MIB));
		if (!p)
			_exit(1);
		memset(p, 1, 3 * MIB);
		free(p);
		pthread_t t;
		_exit(pthread_create(&t, NULL, do_nothing, NULL) || pthread_join(t, NULL) ? 1 : 7);
	}
	EXPECT_EQ(pid < 0 ? -errno : child_wait(pid), 7);
}

TEST(a_child_lives_whose_parent_has_threads_on_stacks_from_malloc)
{
	enum { THREADS = 5 };
	pthread_t t[THREADS];
	void *stack[THREADS];

	sem_init(&ready, 0, 0);
	sem_init(&done, 0, 0);
	for (int i = 0; i < THREADS; i++) {
		stack[i] = hide(malloc(STACK_SIZE >> i));
		if (!EXPECT(start(&t[i], stack[i], STACK_SIZE >> i, wait_there, NULL)))
			return;
		sem_wait(&ready);
	}
	for (int i = 0; i < 3; i++)
		fork_a_child();
	for (int i = 0; i < THREADS; i++)
		sem_post(&done);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(t[i], NULL);
		free(stack[i]);
	}
	fork_a_child();
}

static __attribute__((noinline)) int descend(int mib)
{
	volatile char here[MIB];

	here[0] = here[MIB - 1] = (char)mib;
	if (mib == 0)
		fork_a_child();
	else
		descend(mib - 1);
	return here[0] + here[MIB - 1];
}

static void *fork_deep(void *arg)
{
	descend(*(int *)arg);
	return NULL;
}

TEST(a_child_lives_that_is_forked_deep_in_a_stack_from_malloc)
{
	for (int mib = 0; mib < 6; mib++) {
		void *stack = hide(malloc(STACK_SIZE));
		pthread_t t;

		if (!EXPECT(start(&t, stack, STACK_SIZE, fork_deep, &mib)))
			return;
		pthread_join(t, NULL);
		free(stack);
	}
}

/* The mark of a stack ends when the buffer is freed: later its memory is copied like any other. */
TEST(a_buffer_that_was_a_stack_is_a_buffer_again)
{
	char *p = hide(malloc(STACK_SIZE));
	pthread_attr_t a;

	pthread_attr_init(&a);
	EXPECT(!pthread_attr_setstack(&a, p, STACK_SIZE));
	free(p);
	p = hide(malloc(STACK_SIZE));
	pattern_write(p, STACK_SIZE, 5);
	pid_t pid = fork();
	if (pid == 0)
		_exit(pattern_check(p, STACK_SIZE, 5) != -1 || smaps_kinds(0, (uintptr_t)p, (uintptr_t)p + STACK_SIZE).hugetlb);
	EXPECT_EQ(child_wait(pid), 0);
	free(p);
}

/* ------------------------------------------------------------------ threads that allocate meanwhile */

static char *_Atomic published;

enum { BUFFER = 4 << 20 };

/* In turn, the program owns the buffer and the thread's list has it. */
static void *take_and_give_back(void *arg)
{
	(void)arg;
	while (!stop) {
		char *p = hide(malloc(BUFFER));

		for (size_t at = 0; p && at < BUFFER; at += KIB)
			p[at] = 7;
		published = p;
		sleep_ms(1);
		published = NULL;
		free(p);
		sleep_ms(1);
	}
	return NULL;
}

TEST(a_child_can_read_what_a_thread_took_from_its_list_during_the_fork)
{
	enum { FILLERS = 4 };
	char *filler[FILLERS];
	pthread_t t;

	for (int i = 0; i < FILLERS; i++) { /* makes the copy take longer */
		filler[i] = hide(malloc(16 * MIB));
		memset(filler[i], i, 16 * MIB);
	}
	stop = false;
	if (!EXPECT(!pthread_create(&t, NULL, take_and_give_back, NULL)))
		return;
	for (int i = 0; i < 40; i++) {
		sleep_ms(4); /* so that the thread uses its own list again, without the heap's lock */
		pid_t pid = fork();
		if (pid == 0) {
			const char *p = published;
			unsigned sum = 0;

			for (size_t at = 0; p && at < BUFFER; at += KIB)
				sum += (unsigned char)p[at];
			_exit(sum > BUFFER / KIB * 7);
		}
		EXPECT_EQ(pid < 0 ? -errno : child_wait(pid), 0);
	}
	stop = true;
	pthread_join(t, NULL);
	for (int i = 0; i < FILLERS; i++)
		free(filler[i]);
}

/* ------------------------------------------------------------------ what others write meanwhile */

static uint64_t *_Atomic newest;

enum { WORDS = BUFFER / 8 };

/* A buffer is published when it is filled, and freed when another has replaced it. */
static void *fill_and_publish(void *arg)
{
	uint64_t *old = NULL;

	(void)arg;
	for (uint64_t k = 1; !stop; k++) {
		uint64_t *p = hide(malloc(BUFFER));

		for (int i = 0; p && i < WORDS; i++)
			p[i] = k;
		free(old);
		old = atomic_exchange(&newest, p);
	}
	newest = NULL;
	free(old);
	return NULL;
}

static bool kernel_tells_what_was_written(void)
{
	struct utsname u;
	int major = 0, minor = 0, fd;

	if (uname(&u) || sscanf(u.release, "%d.%d", &major, &minor) != 2 || major < 6 || (major == 6 && minor < 7))
		return false;
	fd = (int)syscall(SYS_userfaultfd, 1 | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

TEST(a_child_seldom_sees_a_part_of_what_a_thread_wrote_during_the_copy)
{
	enum { FORKS = 40 };
	char *filler;
	int torn = 0;
	pthread_t t;

	if (!kernel_tells_what_was_written())
		SKIP("the kernel does not tell what was written");
	stop = false;
	newest = NULL;
	if (!EXPECT(!pthread_create(&t, NULL, fill_and_publish, NULL)))
		return;
	while (!newest)
		sleep_ms(1);
	filler = hide(malloc(64 * MIB)); /* this buffer is behind the thread's buffers, so it is copied after them */
	memset(filler, 1, 64 * MIB);
	for (int i = 0; i < FORKS; i++) {
		sleep_ms(3);
		pid_t pid = fork();
		if (pid == 0) {
			const uint64_t *p = newest;

			for (int w = 1; w < WORDS; w++)
				if (p[w] != p[0] || !p[0])
					_exit(1);
			_exit(0);
		}
		int status = pid < 0 ? -errno : child_wait(pid);
		if (status != 1)
			EXPECT_EQ(status, 0);
		torn += status == 1;
	}
	stop = true;
	pthread_join(t, NULL);
	free(filler);
	t_print("# %d of %d children saw a part\n", torn, FORKS);
	/* without the passes a fifth of the forks would be torn; with them, rarely one on a busy machine */
	EXPECT(torn <= FORKS / 10);
}

LIVE_MAIN
