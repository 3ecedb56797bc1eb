/* link: hugepin uring */
/*
 * Random pins of memory that goes away, on a device that knows page frames (frames.h), while single threads are stopped at
 * random instructions for random times.
 *
 *	frames [-t SECONDS] [-j MICROSECONDS]
 *
 * Each policy and each way of watching runs for a few seconds in a process of its own, whose threads this one stops by
 * ptrace(2), each for at most so many microseconds (5000; 0: none). A pin is checked while its thread owns the memory: a
 * stale key, a registration that ends while it is in use, and a budget that is exceeded are faults, and so is a process
 * that makes no progress.
 */
#include "frames.h"

#include <dirent.h>
#include <getopt.h>
#include <sys/ptrace.h>

enum { AREAS = 16, AREA = 24 * BASE, KEPT = 64, BUFFERS = 6, THREADS = 4, SLICE_MS = 3000, STUCK_MS = 100000, GAP = BASE };

static const struct kind {
	const char *name;
	uint32_t policy, watch;
	uint64_t budget;
	bool parallel;
	unsigned pause_us;
	uint64_t round; /* blocks of other memory: they have a part of other threads' areas */
} kinds[] = {
	{ "arena", HUGEPIN_POLICY_ARENA, HUGEPIN_WATCH_DEFAULT, UINT64_MAX, false, 0, 0 },
	{ "lru, small budget", HUGEPIN_POLICY_LRU, HUGEPIN_WATCH_DEFAULT, 8 << 20, false, 300, 0 },
	{ "lru, kernel", HUGEPIN_POLICY_LRU, HUGEPIN_WATCH_KERNEL, 32 << 20, true, 300, 0 },
	{ "lru, program", HUGEPIN_POLICY_LRU, HUGEPIN_WATCH_PROGRAM, 32 << 20, false, 0, 0 },
	{ "predict", HUGEPIN_POLICY_PREDICT, HUGEPIN_WATCH_DEFAULT, 16 << 20, false, 100, 0 },
	{ "cf11", HUGEPIN_POLICY_CF11, HUGEPIN_WATCH_KERNEL, 16 << 20, true, 100, 0 },
	{ "none", HUGEPIN_POLICY_NONE, HUGEPIN_WATCH_DEFAULT, UINT64_MAX, true, 0, 0 },
	{ "blocks", HUGEPIN_POLICY_LRU, HUGEPIN_WATCH_DEFAULT, UINT64_MAX, false, 300, 64 * BASE },
	{ "blocks, kernel", HUGEPIN_POLICY_ARENA, HUGEPIN_WATCH_KERNEL, 32 << 20, false, 0, 1024 * BASE },
	{ "nobody watches", HUGEPIN_POLICY_ARENA, HUGEPIN_WATCH_NONE, 64 << 20, false, 0, 0 },
};

static const struct kind *kind;
static hugepin_domain *domain;
static _Atomic bool stop;
static struct progress {
	_Atomic long steps, pins, keys, refused, stops;
} *progress; /* shared by both processes */

/* Memory outside the heap. Whoever has the lock owns it. */
static struct area {
	pthread_mutex_t lock;
	char *at;
	bool of_file;
	struct hugepin_key key;
} areas[AREAS];

/* Pins that are out, whoever made them. */
static struct {
	pthread_mutex_t lock;
	struct hugepin_pin pin;
} kept[KEPT];

/* ------------------------------------------------------------------ pins */

static void begin_use(const struct hugepin_pin *pin)
{
	device.reg[pin->lkey].uses++;
	progress->pins++;
}

static void end_use(struct hugepin_pin *pin)
{
	device.reg[pin->lkey].uses--;
	EXPECT_EQ(hugepin_unpin(domain, pin), 0);
}

static void keep(struct hugepin_pin pin)
{
	const size_t i = any(KEPT);
	struct hugepin_pin other;

	pthread_mutex_lock(&kept[i].lock);
	other = kept[i].pin;
	kept[i].pin = pin;
	pthread_mutex_unlock(&kept[i].lock);
	if (other.ref)
		end_use(&other);
}

static unsigned any_access(void)
{
	static const unsigned access[] = { 0, 0, 0, 0, HUGEPIN_READ, HUGEPIN_WRITE, HUGEPIN_REMOTE_READ,
					   HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE, HUGEPIN_PIN_UNCACHED };

	return access[any(sizeof access / sizeof *access)];
}

static void expect_refusal(int err)
{
	progress->refused++;
	EXPECT(err == -ENOBUFS || err == -ENOMEM);
}

static void any_part(char *from, size_t size, char **ret_at, size_t *ret_len)
{
	const size_t at = any(size), left = size - at;

	*ret_at = from + at;
	*ret_len = 1 + any(any(2) || left < 2 * BASE ? left : 2 * BASE);
}

/* Pin a part and check it. */
static void pin_part(char *from, size_t size, struct hugepin_key *key)
{
	struct hugepin_pin pin;
	size_t len;
	char *at;
	int err;

	any_part(from, size, &at, &len);
	err = hugepin_pin(domain, at, len, any_access(), &pin);
	if (err) {
		expect_refusal(err);
		return;
	}
	begin_use(&pin);
	device_check(&pin, "a pin");
	if (key && any(8) == 0)
		EXPECT_EQ(hugepin_key_take(domain, &pin, HUGEPIN_KEY_LAYOUT, key), 0);
	if (any(4) == 0)
		keep(pin);
	else
		end_use(&pin);
}

/* Pins one after the other, so that most stops come within one. What they find may be given back at any time between. */
static void pin_often(char *at)
{
	struct hugepin_pin pin;

	for (int i = any(2) ? 100 : 20000; i && !stop; i--) {
		if (hugepin_pin(domain, at, 1, 0, &pin) != 0)
			return;
		begin_use(&pin);
		if (!device.reg[pin.lkey].live || (uintptr_t)at - device.reg[pin.lkey].addr >= device.reg[pin.lkey].len)
			T_FAIL("a pin among many: key %u is not of %p", pin.lkey, (void *)at);
		end_use(&pin);
	}
}

static void pin_by_key(struct area *a)
{
	struct hugepin_pin pin;
	const int err = a->key.life ? hugepin_key_pin(&a->key) : -ENOKEY;

	if (err) {
		EXPECT_EQ(err, -ENOKEY);
		pin_part(a->at, AREA, &a->key);
		return;
	}
	progress->keys++;
	pin = a->key.pin;
	begin_use(&pin);
	device_check(&pin, "a held key");
	if (any(3) == 0) {
		keep(pin);
	} else {
		device.reg[pin.lkey].uses--;
		EXPECT_EQ(hugepin_key_unpin(&a->key), 0);
	}
}

static void pin_several(struct area *a)
{
	struct iovec v[3];
	struct hugepin_pin pins[32];
	const bool lasting = any(2);
	int n;

	for (int i = 0; i < 3; i++) {
		char *at;

		any_part(a->at, AREA, &at, &v[i].iov_len);
		v[i].iov_base = at;
	}
	n = lasting ? hugepin_register(domain, v, 3, 0, pins, 32) : hugepin_pinv(domain, v, 3, 0, pins, 32);
	if (n < 0) {
		expect_refusal(n);
		return;
	}
	for (int i = 0; i < n; i++) {
		begin_use(&pins[i]);
		device_check(&pins[i], lasting ? "a registration" : "a vector");
		device.reg[pins[i].lkey].uses--;
	}
	EXPECT_EQ(lasting ? hugepin_deregister(domain, pins, n) : hugepin_unpinv(domain, pins, n), 0);
}

/* ------------------------------------------------------------------ memory that goes away */

static void tell(char *at, size_t len)
{
	if (kind->watch == HUGEPIN_WATCH_PROGRAM || any(2)) /* then nobody else need tell */
		hugepin_forget(at, len);
}

static void map_over(char *at, size_t len)
{
	tell(at, len);
	EXPECT(mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
}

static void map_file(struct area *a)
{
	const int fd = memfd_create("area", MFD_CLOEXEC), how = any(2) ? MAP_SHARED : MAP_PRIVATE;

	EXPECT(fd >= 0 && ftruncate(fd, AREA) == 0);
	tell(a->at, AREA);
	EXPECT(mmap(a->at, AREA, PROT_READ | PROT_WRITE, how | MAP_FIXED, fd, 0) == a->at);
	close(fd);
	a->of_file = true;
}

/* The pages go elsewhere, and others come in their place. */
static void move_away(char *at, size_t len)
{
	char *to;

	tell(at, len);
	to = mremap(at, len, len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
	if (to != MAP_FAILED)
		munmap(to, len);
}

static void change_area(struct area *a)
{
	const size_t from = BASE * any(AREA / BASE), len = BASE * (1 + any((AREA - from) / BASE));
	char *at = a->at + from;

	switch (any(a->of_file ? 2 : 8)) {
	case 0:
	case 1:
		map_over(a->at, AREA);
		a->of_file = false;
		break;
	case 2:
		map_over(at, len);
		break;
	case 3:
		tell(at, len);
		madvise(at, len, MADV_DONTNEED);
		break;
	case 4:
		tell(at, len);
		madvise(at, len, MADV_FREE);
		break;
	case 5:
		move_away(at, len);
		break;
	case 6:
		mprotect(at, len, PROT_READ);
		mprotect(at, len, PROT_READ | PROT_WRITE);
		break;
	default:
		map_file(a);
	}
	for (size_t i = 0; i < AREA; i += BASE)
		((volatile char *)a->at)[i] = 1;
}

/* ------------------------------------------------------------------ threads */

/* A thread's own buffers of the heap. */
struct buffers {
	char *at[BUFFERS];
	size_t size[BUFFERS];
};

static void touch(volatile char *at, size_t size)
{
	for (size_t i = 0; i < size; i += BASE)
		at[i] = 1;
}

static void use_heap(struct buffers *b)
{
	const size_t i = any(BUFFERS);

	if (!b->at[i]) {
		b->size[i] = (size_t)64 * KIB << any(7);
		b->at[i] = hugepin_malloc(b->size[i]);
		if (!b->at[i])
			return;
		touch(b->at[i], b->size[i]);
	}
	pin_part(b->at[i], b->size[i], NULL);
	pin_often(b->at[i]);
	switch (any(24)) {
	case 0:
	case 1:
	case 2:
	case 3:
		hugepin_free(b->at[i]);
		b->at[i] = NULL;
		break;
	case 4:
		if (kind->watch == HUGEPIN_WATCH_NONE) /* the program has promised it */
			break;
		tell(b->at[i], BASE);
		madvise(b->at[i], BASE, MADV_DONTNEED);
		touch(b->at[i], b->size[i]);
		break;
	case 5:
		if (any(8) == 0)
			hugepin_purge();
	}
}

static void use_area(struct area *a)
{
	pthread_mutex_lock(&a->lock);
	if (any(4) == 0)
		change_area(a);
	pin_often(a->at);
	switch (any(8)) {
	case 0:
	case 1:
	case 2:
	case 3:
		pin_part(a->at, AREA, &a->key);
		break;
	case 4:
	case 5:
		pin_by_key(a);
		break;
	case 6:
		pin_several(a);
		break;
	default:
		if (any(2))
			hugepin_prefetch(domain, a->at, AREA, 0);
		else
			hugepin_forget(a->at, AREA);
	}
	pthread_mutex_unlock(&a->lock);
}

static void *run(void *unused)
{
	struct buffers b = { .at = { NULL } };

	(void)unused;
	for (; !stop; progress->steps++)
		if (any(3))
			use_area(&areas[any(AREAS)]);
		else
			use_heap(&b);
	for (int i = 0; i < BUFFERS; i++)
		hugepin_free(b.at[i]);
	return NULL;
}

/* Has areas forgotten while their owners pin them, and forks now and then. */
static void *forget_and_fork(void *unused)
{
	(void)unused;
	for (int i = 1; !stop; i++) {
		struct hugepin_pin pin;
		pid_t pid;

		usleep(300);
		hugepin_forget(areas[any(AREAS)].at, AREA);
		if (i % 300)
			continue;
		pid = fork();
		if (pid == 0)
			_exit(hugepin_pin(domain, areas[0].at, BASE, 0, &pin) != -ESTALE);
		EXPECT_EQ(child_wait(pid), 0);
	}
	return NULL;
}

/* In the process whose threads are stopped. */
static int stress(void)
{
	const struct hugepin_attr attr = { .size = sizeof attr, .policy = kind->policy, .watch = kind->watch,
					   .pinned_bytes_max = kind->budget, .round_max = kind->round };
	pthread_t t[THREADS + 1];
	char *at = mmap(NULL, AREAS * (AREA + GAP), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const char *why = device_open();
	const uint64_t end = clock_ms() + SLICE_MS;

	if (why) {
		printf("skipped: %s\n", why);
		return 77;
	}
	device.parallel = kind->parallel;
	device.pause_us = kind->pause_us;
	EXPECT_EQ(hugepin_domain_open(&device_backend, NULL, &attr, &domain), 0);
	for (int i = 0; i < AREAS; i++) {
		pthread_mutex_init(&areas[i].lock, NULL);
		areas[i].at = at + i * AREA + i / 5 * GAP; /* most are neighbours */
		touch(areas[i].at, AREA);
	}
	for (int i = 0; i < KEPT; i++)
		pthread_mutex_init(&kept[i].lock, NULL);
	for (int i = 0; i < THREADS + 1; i++)
		EXPECT_EQ(pthread_create(&t[i], NULL, i < THREADS ? run : forget_and_fork, NULL), 0);
	while (clock_ms() < end && !t_failures)
		sleep_ms(20);
	stop = true;
	for (int i = 0; i < THREADS + 1; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < KEPT; i++)
		if (kept[i].pin.ref)
			end_use(&kept[i].pin);
	EXPECT_EQ(hugepin_domain_close(domain), 0);
	EXPECT_EQ(device.registered, device.deregistered);
	EXPECT_EQ(device.bytes, 0);
	EXPECT(device.bytes_peak <= kind->budget);
	return t_failures != 0;
}

/* ------------------------------------------------------------------ stops */

enum { THREADS_MAX = 256 };
static struct stopped {
	pid_t tid;
	enum { RUNS, ASKED, STOPPED } state;
	uint64_t until_us;
} threads[THREADS_MAX];
static int count;

static uint64_t clock_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static struct stopped *find_thread(pid_t tid)
{
	for (int i = 0; i < count; i++)
		if (threads[i].tid == tid)
			return &threads[i];
	return NULL;
}

static void seize_new_threads(pid_t pid)
{
	char path[64];
	struct dirent *e;
	DIR *d;

	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		const pid_t tid = (pid_t)strtol(e->d_name, NULL, 10);

		if (tid > 0 && !find_thread(tid) && count < THREADS_MAX && ptrace(PTRACE_SEIZE, tid, 0, 0) == 0)
			threads[count++] = (struct stopped){ .tid = tid };
	}
	if (d)
		closedir(d);
}

/* Hear what has stopped or ended. Returns whether the process has ended, and its status. */
static bool hear(pid_t pid, unsigned longest_us, int *ret_status)
{
	int status;
	pid_t tid;

	while ((tid = waitpid(-1, &status, __WALL | WNOHANG)) > 0) {
		struct stopped *s = find_thread(tid);

		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (s)
				*s = threads[--count];
			if (tid == pid) {
				*ret_status = status;
				return true;
			}
		} else if (s && status >> 16 == PTRACE_EVENT_STOP && WSTOPSIG(status) == SIGTRAP) {
			s->state = STOPPED;
			s->until_us = clock_us() + (any(8) ? any(200) : any(longest_us));
			progress->stops++;
		} else {
			ptrace(PTRACE_CONT, tid, 0, (long)(status >> 16 ? 0 : WSTOPSIG(status)));
		}
	}
	return false;
}

/* Stop threads of the process until it ends. Returns its status. */
static int stop_at_random(pid_t pid, unsigned longest_us)
{
	uint64_t look_ms = 0, moved_ms = clock_ms();
	long steps = -1;
	int status = 0;

	count = 0;
	while (!hear(pid, longest_us + 1, &status)) {
		const uint64_t now_ms = clock_ms(), now = clock_us();

		if (longest_us && now_ms >= look_ms) {
			seize_new_threads(pid);
			look_ms = now_ms + 50;
		}
		if (progress->steps != steps) {
			steps = progress->steps;
			moved_ms = now_ms;
		} else if (now_ms - moved_ms > STUCK_MS) {
			T_FAIL("%s: no progress after %ld steps", kind->name, steps);
			kill(pid, SIGABRT);
			moved_ms = now_ms;
		}
		if (count) {
			struct stopped *s = &threads[any((uint64_t)count)];

			if (s->state == RUNS && ptrace(PTRACE_INTERRUPT, s->tid, 0, 0) == 0)
				s->state = ASKED;
		}
		for (int i = 0; i < count; i++)
			if (threads[i].state == STOPPED && now >= threads[i].until_us) {
				ptrace(PTRACE_CONT, threads[i].tid, 0, 0);
				threads[i].state = RUNS;
			}
		usleep(50);
	}
	return status;
}

int main(int argc, char **argv)
{
	uint64_t seconds = 30, end;
	unsigned longest_us = 5000;
	int c, rounds = 0;

	while ((c = getopt(argc, argv, "t:j:")) != -1)
		switch (c) {
		case 't':
			seconds = strtoull(optarg, NULL, 10);
			break;
		case 'j':
			longest_us = (unsigned)strtoul(optarg, NULL, 10);
			break;
		default:
			fprintf(stderr, "frames [-t SECONDS] [-j MICROSECONDS]\n");
			return 2;
		}
	end = clock_ms() + 1000 * seconds;
	progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (; clock_ms() < end && !t_failures; rounds++) {
		int status;
		pid_t pid;

		kind = &kinds[rounds % (int)(sizeof kinds / sizeof *kinds)];
		fflush(stdout);
		pid = fork();
		if (pid == 0)
			_exit(stress());
		status = stop_at_random(pid, longest_us);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
			return 0;
		if (status)
			T_FAIL("%s: status %#x", kind->name, (unsigned)status);
	}
	printf("%d rounds: %ld steps, %ld pins, %ld by keys, %ld refused, %ld stops\n", rounds, progress->steps,
	       progress->pins, progress->keys, progress->refused, progress->stops);
	return t_failures != 0;
}
