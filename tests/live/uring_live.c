/* link: hugepin uring */
/* Domains of io_uring through the public functions, with the heap's memory as fixed buffers. */
#include <hugepin_uring.h>

#include "live.h"
#include "watched.h"

#include <liburing.h>
#include <semaphore.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include "tests/ring.h"

static bool ring_open(struct io_uring *ring)
{
	struct io_uring trial;
	int err = io_uring_queue_init(8, ring, 0);

	if (err == -ENOSYS || err == -EPERM) {
		snprintf(t_skip_reason, sizeof t_skip_reason, "no io_uring: %s", strerror(-err));
		return false;
	}
	if (!EXPECT_EQ(err, 0) || !EXPECT_EQ(io_uring_queue_init(8, &trial, 0), 0))
		return false;
	err = io_uring_register_buffers_sparse(&trial, 8);
	io_uring_queue_exit(&trial);
	if (err == -EINVAL) {
		snprintf(t_skip_reason, sizeof t_skip_reason, "io_uring has no tables with free slots (Linux 5.19)");
		io_uring_queue_exit(ring);
		return false;
	}
	return EXPECT_EQ(err, 0);
}

/* Have the kernel read len bytes of a file to p, by buffer index. Returns the bytes read, or -errno. */
static int read_fixed(struct io_uring *ring, void *p, unsigned len, unsigned index)
{
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), ret;

	io_uring_prep_read_fixed(io_uring_get_sqe(ring), fd, p, len, 0, (int)index);
	EXPECT_EQ(io_uring_submit(ring), 1);
	ret = ring_result(ring);
	close(fd);
	return ret;
}

static bool has_table(struct io_uring *ring)
{
	int err = io_uring_unregister_buffers(ring);

	EXPECT(err == 0 || err == -ENXIO);
	return !err;
}

/* The tests that fork come first: no thread has been started yet. A thread may hold a lock of the sanitizer's malloc
 * while its process forks, and the child would wait for that lock for ever. */

static long pinned_kib(void)
{
	return status_number("VmPin:");
}

/* Drop CAP_IPC_LOCK: some kernels do not count the pins of processes that have it. */
static void drop_ipc_lock(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];

	EXPECT_EQ(syscall(SYS_capget, &header, caps), 0);
	caps[0].effective &= ~(1u << CAP_IPC_LOCK);
	EXPECT_EQ(syscall(SYS_capset, &header, caps), 0);
}

static bool kernel_unpins_late(void)
{
	struct utsname name;
	int major = 0, minor = 0;

	uname(&name);
	sscanf(name.release, "%d.%d", &major, &minor);
	return major < 6 || (major == 6 && minor < 13);
}

/* Expect that the memory is unpinned at once or within two seconds. It may take longer if the kernel's threads have to
 * wait for a processor. */
static void expect_unpinned(long before)
{
	for (int waits = 0; kernel_unpins_late() && waits < 2000 && pinned_kib() > before; waits++)
		usleep(10000);
	EXPECT_EQ(pinned_kib(), before);
}

static void pin_and_close(void)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	struct io_uring ring;
	hugepin_domain *d;
	char *heap = hugepin_malloc(2 * MIB), *foreign;
	long before;

	drop_ipc_lock();
	if (io_uring_queue_init(4, &ring, 0) != 0)
		_exit(77);
	foreign = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 8, &attr, &d), 0);
	before = pinned_kib();
	for (int i = 0; i < 2; i++) {
		struct hugepin_pin a, b;

		EXPECT_EQ(hugepin_pin(d, heap, 2 * MIB, 0, &a), 0);
		EXPECT_EQ(hugepin_pin(d, foreign, MIB, 0, &b), 0);
		EXPECT(pinned_kib() >= before + 3 * 1024);
		EXPECT_EQ(hugepin_unpin(d, &a), 0);
		EXPECT_EQ(hugepin_unpin(d, &b), 0);
	}
	EXPECT_EQ(hugepin_domain_close(d), 0);
	expect_unpinned(before);
	_exit(t_failures != 0);
}

TEST(nothing_is_pinned_any_more_when_the_domain_is_closed)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		pin_and_close();
	waitpid(pid, &status, 0);
	if (status == 77 << 8)
		SKIP("no io_uring for those who may not pin what they like");
	EXPECT_EQ(status, 0);
}

/* Run as an ordinary user, but one without other programs: the limit of 8 MiB is for all rings of a user. */
static void work_within_the_limit(void)
{
	uid_t uid = 61000 + (uid_t)getpid() % 4000;
	struct rlimit limit = { 8 * MIB, 8 * MIB };
	struct hugepin_attr attr = { .size = sizeof attr, .watch = WATCH_ANYHOW };
	struct hugepin_domain_stats s;
	struct io_uring ring;
	hugepin_domain *d;
	uint64_t seed = 1;
	char *buffers[48];

	EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	EXPECT_EQ(setresuid(uid, uid, uid), 0); /* this also drops all capabilities */
	if (io_uring_queue_init(4, &ring, 0) != 0)
		_exit(77);
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 64, &attr, &d), 0);
	for (size_t i = 0; i < 48; i++)
		buffers[i] = hugepin_malloc(512 * KIB);
	/* on such kernels each eviction takes a second */
	for (int i = kernel_unpins_late() ? 285 : 0; i < 300 && !t_failures; i++) {
		char *p = buffers[rand_next(&seed) % 48];
		struct hugepin_pin pin;

		memset(p, 0, 4096);
		EXPECT_EQ(hugepin_pin(d, p, 512 * KIB, 0, &pin), 0);
		EXPECT_EQ(read_fixed(&ring, p, 4096, pin.lkey), 4096);
		EXPECT_EQ(memcmp(p, "\177ELF", 4), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	hugepin_domain_stats(d, &s, sizeof s);
	EXPECT(s.evicted > 0 && s.nobufs == 0);
	EXPECT(s.pinned_peak_bytes <= 8 * MIB);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	_exit(t_failures != 0);
}

TEST(an_ordinary_user_works_within_his_memlock_limit)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		work_within_the_limit();
	waitpid(pid, &status, 0);
	if (status == 77 << 8)
		SKIP("no io_uring for an ordinary user");
	EXPECT_EQ(status, 0);
}

TEST(a_pinned_buffer_is_read_into_by_its_key)
{
	struct io_uring ring;
	hugepin_domain *d;
	struct hugepin_pin pin;
	char *p = hugepin_malloc(MIB);

	if (!ring_open(&ring))
		return;
	memset(p, 0, MIB);
	EXPECT_EQ(hugepin_uring_open(&ring, 3, 8, NULL, &d), 0);
	EXPECT_EQ(hugepin_pin(d, p + 1000, 5000, 0, &pin), 0);
	EXPECT(pin.lkey >= 3 && pin.lkey < 11);
	EXPECT_EQ(read_fixed(&ring, p + 1000, 5000, pin.lkey), 5000);
	EXPECT_EQ(memcmp(p + 1000, "\177ELF", 4), 0);
	EXPECT_EQ(p[999] | p[6000], 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT(read_fixed(&ring, p + 1000, 5000, pin.lkey) < 0);

	/* The table stays with the ring, and another domain can use it. */
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 12, NULL, &d), -EINVAL);
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 11, NULL, &d), 0);
	EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &pin), 0);
	EXPECT_EQ(read_fixed(&ring, p, 4096, pin.lkey), 4096);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	io_uring_queue_exit(&ring);
	hugepin_free(p);
}

TEST(a_domain_that_cannot_be_opened_leaves_the_ring_as_it_was)
{
	struct io_uring ring;
	hugepin_domain *d = NULL;
	const struct hugepin_attr unknown = { .size = sizeof unknown, .flags = ~0u };
	const struct hugepin_attr remote = { .size = sizeof remote, .access = HUGEPIN_REMOTE_READ };

	if (!ring_open(&ring))
		return;
	errno = 0;
	EXPECT_EQ(hugepin_uring_open(NULL, 0, 8, NULL, &d), -EINVAL);
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 8, NULL, NULL), -EINVAL);
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 0, NULL, &d), -EINVAL);
	EXPECT_EQ(hugepin_uring_open(&ring, 16000, 385, NULL, &d), -EINVAL);
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 8, &unknown, &d), -EINVAL);
	EXPECT(!has_table(&ring));
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 8, &remote, &d), -EOPNOTSUPP);
	EXPECT(!has_table(&ring));
	EXPECT_EQ(errno, 0);
	EXPECT(d == NULL);

	/* A table that the ring had before is not removed. */
	EXPECT_EQ(io_uring_register_buffers_sparse(&ring, 8), 0);
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 8, &remote, &d), -EOPNOTSUPP);
	EXPECT(has_table(&ring));
	io_uring_queue_exit(&ring);
}

/* Whether the kernel clones single slots (6.13), between these rings. */
static bool clones(hugepin_domain *d, struct io_uring *ring, hugepin_ring **ret_)
{
	int err = hugepin_uring_attach(d, ring, ret_);

	if (err == -EOPNOTSUPP) {
		snprintf(t_skip_reason, sizeof t_skip_reason, "the kernel does not clone single slots");
		return false;
	}
	return EXPECT_EQ(err, 0);
}

static void *pin_elsewhere(void *domain)
{
	char *p = hugepin_malloc(MIB);
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(domain, p, MIB, 0, &pin), 0);
	EXPECT_EQ(hugepin_unpin(domain, &pin), 0);
	hugepin_free(p);
	return NULL;
}

TEST(a_domain_has_a_ring_of_its_own_if_none_is_given)
{
	struct io_uring rings[2], moved;
	hugepin_domain *d, *other;
	hugepin_ring *r = NULL, *none = (void *)1;
	struct hugepin_pin pin, wrong;
	pthread_t thread;
	char *p = hugepin_malloc(MIB);

	if (!ring_open(&rings[0]) || !ring_open(&rings[1]))
		return;
	EXPECT_EQ(hugepin_uring_open_fd(-2, 0, 0, 8, NULL, &d), -EINVAL);
	EXPECT_EQ(hugepin_uring_open_fd(STDOUT_FILENO, 0, 0, 8, NULL, &d), -EOPNOTSUPP);
	EXPECT_EQ(hugepin_uring_open_fd(1 << 20, 0, 0, 8, NULL, &d), -EBADF);
	EXPECT_EQ(hugepin_uring_open_fd(-1, 0, 0, 8, NULL, &d), 0);
	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, NULL, &other), 0);
	EXPECT_EQ(hugepin_uring_attach(other, &rings[1], &none), -EINVAL);
	EXPECT_EQ(hugepin_uring_attach(NULL, &rings[1], &none), -EINVAL);
	EXPECT_EQ(hugepin_uring_attach(d, NULL, &none), -EINVAL);
	EXPECT_EQ(hugepin_uring_attach(d, &rings[1], NULL), -EINVAL);
	EXPECT_EQ(hugepin_uring_attach_fd(d, -1, 0, &none), -EINVAL);
	EXPECT_EQ(hugepin_uring_attach_fd(d, 1 << 20, 0, &none), -EBADF);
	EXPECT(none == (void *)1);
	EXPECT_EQ(hugepin_domain_close(other), 0);
	EXPECT_EQ(hugepin_ring_use(NULL, NULL), -EINVAL);
	EXPECT_EQ(hugepin_ring_detach(NULL), -EINVAL);
	if (!clones(d, &rings[1], &r))
		return;
	EXPECT_EQ(hugepin_uring_attach(d, &rings[1], &none), -EBUSY);
	EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &pin), 0);
	memset(p, 0, MIB);
	EXPECT_EQ(hugepin_ring_use(r, &pin), 0);
	moved = rings[1]; /* as a program may move its struct */
	memset(&rings[1], 0xff, sizeof rings[1]);
	EXPECT_EQ(read_fixed(&moved, p, 4096, pin.lkey), 4096);
	EXPECT_EQ(memcmp(p, "\177ELF", 4), 0);
	wrong = pin;
	wrong.lkey = 7;
	EXPECT_EQ(hugepin_ring_use(r, &wrong), -EINVAL);
	/* Flags mean nothing without a descriptor, so any thread registers; and its pin is none of the ring's domain. */
	EXPECT_EQ(hugepin_uring_open_fd(-1, IORING_SETUP_SINGLE_ISSUER, 0, 8, NULL, &other), 0);
	EXPECT_EQ(pthread_create(&thread, NULL, pin_elsewhere, other), 0);
	pthread_join(thread, NULL);
	EXPECT_EQ(hugepin_pin(other, p, MIB, 0, &wrong), 0);
	EXPECT_EQ(wrong.lkey, pin.lkey);
	EXPECT_EQ(hugepin_ring_use(r, &wrong), -EINVAL);
	EXPECT_EQ(hugepin_unpin(other, &wrong), 0);
	EXPECT_EQ(hugepin_domain_close(other), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_ring_detach(r), 0);
	EXPECT(read_fixed(&moved, p, 4096, pin.lkey) < 0);
	EXPECT_EQ(hugepin_uring_attach_fd(d, moved.ring_fd, moved.flags, &r), 0); /* by number, and once more */
	EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &pin), 0);
	EXPECT_EQ(hugepin_ring_use(r, &pin), 0);
	EXPECT_EQ(read_fixed(&moved, p, 4096, pin.lkey), 4096);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0); /* ends the attachment, too */
	io_uring_queue_exit(&rings[0]);
	io_uring_queue_exit(&moved);
	hugepin_free(p);
}

/* Threads with rings that only they may change share a domain that has fewer slots than there are buffers. Each reads
 * its own numbers into its buffers, by index, and takes memory away and maps it anew. */
enum { LOOPS = 4, LOOP_BUFFERS = 6, LOOP_ROUNDS = 3000, LOOP_BYTES = 16384 };

struct loop {
	hugepin_domain *domain;
	unsigned number;
	int file;
	unsigned refused, fixed;
};

static char *map_loop_buffer(char *at)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
	char *p = mmap(at, LOOP_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);

	EXPECT(p != MAP_FAILED);
	return p;
}

static void *loop(void *arg)
{
	struct loop *l = arg;
	char *buffer[LOOP_BUFFERS];
	struct io_uring ring;
	unsigned seed = l->number + 1;
	hugepin_ring *r = NULL;

	EXPECT_EQ(io_uring_queue_init(4, &ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN), 0);
	EXPECT_EQ(hugepin_uring_attach(l->domain, &ring, &r), 0);
	for (int i = 0; i < LOOP_BUFFERS; i++)
		buffer[i] = map_loop_buffer(NULL);
	for (uint32_t round = 0; round < LOOP_ROUNDS; round++) {
		const int i = rand_r(&seed) % LOOP_BUFFERS;
		uint32_t wrote[4] = { l->number, round, ~round, 0x600d }, got[4];
		struct hugepin_pin pin;
		int err;

		if (rand_r(&seed) % 8 == 0)
			map_loop_buffer(buffer[i]);
		err = rand_r(&seed) % 2 ? hugepin_pin(l->domain, buffer[i], LOOP_BYTES, 0, &pin) :
					  hugepin_pin_try(l->domain, buffer[i], LOOP_BYTES, 0, NULL, NULL, &pin);
		if (err) { /* no room, or not at once, or too many have asked: a loop goes without */
			EXPECT(err == -ENOBUFS || err == -EAGAIN || err == -EBUSY);
			EXPECT_EQ(hugepin_ring_use(r, NULL), 0);
			l->refused++;
			continue;
		}
		EXPECT_EQ(hugepin_ring_use(r, &pin), 0);
		EXPECT_EQ(pwrite(l->file, wrote, sizeof wrote, 0), sizeof wrote);
		io_uring_prep_read_fixed(io_uring_get_sqe(&ring), l->file, buffer[i] + round % 1000, sizeof wrote, 0,
					 (int)pin.lkey);
		EXPECT_EQ(io_uring_submit(&ring), 1);
		EXPECT_EQ(ring_result(&ring), sizeof wrote);
		memcpy(got, buffer[i] + round % 1000, sizeof got);
		EXPECT_EQ(memcmp(got, wrote, sizeof got), 0);
		EXPECT_EQ(hugepin_unpin(l->domain, &pin), 0);
		l->fixed++;
	}
	EXPECT_EQ(hugepin_ring_detach(r), 0);
	io_uring_queue_exit(&ring);
	for (int i = 0; i < LOOP_BUFFERS; i++)
		munmap(buffer[i], LOOP_BYTES);
	return NULL;
}

TEST(loops_with_rings_of_their_own_share_a_domain_with_few_slots)
{
	struct loop loops[LOOPS];
	pthread_t thread[LOOPS];
	const struct hugepin_attr attr = { .size = sizeof attr, .pinned_bytes_max = LOOPS * 2 * LOOP_BYTES };
	struct hugepin_domain_stats stats;
	struct io_uring probe;
	hugepin_domain *d;
	hugepin_ring *r;

	if (!ring_open(&probe))
		return;
	EXPECT_EQ(hugepin_uring_open_fd(-1, 0, 3, LOOPS * 2, &attr, &d), 0);
	if (!clones(d, &probe, &r))
		return;
	EXPECT_EQ(hugepin_ring_detach(r), 0);
	for (unsigned i = 0; i < LOOPS; i++) {
		loops[i] = (struct loop){ .domain = d, .number = i, .file = memfd_create("loop", MFD_CLOEXEC) };
		EXPECT_EQ(pthread_create(&thread[i], NULL, loop, &loops[i]), 0);
	}
	for (unsigned i = 0; i < LOOPS; i++) {
		pthread_join(thread[i], NULL);
		EXPECT(loops[i].fixed > 100);
		close(loops[i].file);
	}
	EXPECT(hugepin_domain_stats(d, &stats, sizeof stats) > 0);
	EXPECT(stats.evicted > LOOPS);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	io_uring_queue_exit(&probe);
}

/* A domain with few slots, and what its threads have. */
enum { FEW = 6, MANY = 16, SMALL = 65536 };

struct few {
	hugepin_domain *domain;
	struct io_uring ring;
	hugepin_ring *r;
	char *buffer[MANY];
	struct hugepin_pin pin; /* by told() */
	int err;
	sem_t told;
	pthread_barrier_t at;
};

static void told(void *arg, int err, const struct hugepin_pin *pin)
{
	struct few *f = arg;

	f->err = err;
	if (pin)
		f->pin = *pin;
	sem_post(&f->told);
}

/* Each buffer in a mapping of its own, and a ring that this thread alone may change. */
static void few_begin(struct few *f)
{
	for (int i = 0; i < MANY; i++) {
		char *p = mmap(NULL, 2 * SMALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		EXPECT_EQ(mprotect(p, SMALL, PROT_READ | PROT_WRITE), 0);
		f->buffer[i] = memset(p, 0, SMALL);
	}
	sem_init(&f->told, 0, 0);
	EXPECT_EQ(io_uring_queue_init(4, &f->ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN), 0);
	EXPECT_EQ(hugepin_uring_attach(f->domain, &f->ring, &f->r), 0);
}

static void few_end(struct few *f)
{
	EXPECT_EQ(hugepin_ring_detach(f->r), 0);
	io_uring_queue_exit(&f->ring);
	for (int i = 0; i < MANY; i++)
		munmap(f->buffer[i], 2 * SMALL);
}

/* Use a buffer by a pin that is there. */
static void few_use(struct few *f, int i)
{
	EXPECT_EQ(hugepin_ring_use(f->r, &f->pin), 0);
	EXPECT_EQ(read_fixed(&f->ring, f->buffer[i], 4096, f->pin.lkey), 4096);
	EXPECT_EQ(hugepin_unpin(f->domain, &f->pin), 0);
}

static bool few_open(hugepin_domain **ret_)
{
	const struct hugepin_attr attr = { .size = sizeof attr, .watch = WATCH_ANYHOW };
	struct io_uring probe;
	hugepin_ring *r;
	bool able;

	if (!ring_open(&probe))
		return false;
	EXPECT_EQ(hugepin_uring_open_fd(-1, 0, 0, FEW, &attr, ret_), 0);
	able = clones(*ret_, &probe, &r);
	if (able)
		EXPECT_EQ(hugepin_ring_detach(r), 0);
	io_uring_queue_exit(&probe);
	return able;
}

/* Uses all slots, lets go, and sleeps until the test has passed the barrier twice. */
static void *sleep_with_all(void *arg)
{
	struct few *f = arg;

	few_begin(f);
	for (int i = 0; i < FEW; i++) {
		EXPECT_EQ(hugepin_pin(f->domain, f->buffer[i], SMALL, 0, &f->pin), 0);
		few_use(f, i);
	}
	EXPECT_EQ(hugepin_ring_use(f->r, NULL), 0);
	pthread_barrier_wait(&f->at);
	pthread_barrier_wait(&f->at);
	few_end(f);
	return NULL;
}

TEST(a_thread_that_sleeps_leaves_the_slots_to_others)
{
	struct few sleeper, f;
	struct hugepin_domain_stats s;
	pthread_t thread;

	if (!few_open(&f.domain))
		return;
	sleeper.domain = f.domain;
	pthread_barrier_init(&sleeper.at, NULL, 2);
	EXPECT_EQ(pthread_create(&thread, NULL, sleep_with_all, &sleeper), 0);
	pthread_barrier_wait(&sleeper.at);
	few_begin(&f);
	for (int i = 0; i < FEW; i++) {
		EXPECT_EQ(hugepin_pin(f.domain, f.buffer[i], SMALL, 0, &f.pin), 0);
		few_use(&f, i);
	}
	EXPECT(hugepin_domain_stats(f.domain, &s, sizeof s) > 0);
	EXPECT_EQ(s.evicted, FEW); /* one for each */
	pthread_barrier_wait(&sleeper.at);
	pthread_join(thread, NULL);
	few_end(&f);
	EXPECT_EQ(hugepin_domain_close(f.domain), 0);
	pthread_barrier_destroy(&sleeper.at);
}

/* Uses all slots, sleeps until others want some, lets go of these, and so on, until sem_post(&f->told). */
static void *sleep_until_told(void *arg)
{
	struct few *f = arg;
	struct pollfd told = { .events = POLLIN };
	int wakes = 0;

	few_begin(f);
	told.fd = hugepin_ring_fd(f->r);
	EXPECT(told.fd >= 0);
	EXPECT_EQ(hugepin_ring_fd(f->r), told.fd);
	for (int i = 0; i < FEW; i++) {
		EXPECT_EQ(hugepin_pin(f->domain, f->buffer[i], SMALL, 0, &f->pin), 0);
		few_use(f, i);
	}
	pthread_barrier_wait(&f->at);
	for (bool ends = false; !ends; wakes += poll(&told, 1, 100) == 1) {
		ends = sem_trywait(&f->told) == 0;
		EXPECT_EQ(hugepin_ring_use(f->r, NULL), 0);
	}
	EXPECT(wakes > 0);
	EXPECT_EQ(poll(&told, 1, 0), 0);
	few_end(f);
	EXPECT_EQ(fcntl(told.fd, F_GETFD), -1);
	return NULL;
}

TEST(a_ring_tells_by_its_descriptor_when_it_is_to_let_go)
{
	struct few sleeper, f;
	struct hugepin_domain_stats s;
	pthread_t thread;

	EXPECT_EQ(hugepin_ring_fd(NULL), -EINVAL);
	if (!few_open(&f.domain))
		return;
	sleeper.domain = f.domain;
	pthread_barrier_init(&sleeper.at, NULL, 2);
	EXPECT_EQ(pthread_create(&thread, NULL, sleep_until_told, &sleeper), 0);
	pthread_barrier_wait(&sleeper.at);
	few_begin(&f);
	for (int i = 0; i < FEW; i++) {
		int err;

		/* -ENOBUFS: the sleeper got no processor for 100 ms */
		while ((err = hugepin_pin(f.domain, f.buffer[i], SMALL, 0, &f.pin)) == -ENOBUFS)
			usleep(1000);
		if (EXPECT_EQ(err, 0))
			few_use(&f, i);
	}
	sem_post(&sleeper.told);
	pthread_join(thread, NULL);
	EXPECT(hugepin_domain_stats(f.domain, &s, sizeof s) > 0);
	EXPECT(s.evicted >= FEW); /* more, if the sleeper got no processor */
	few_end(&f);
	EXPECT_EQ(hugepin_domain_close(f.domain), 0);
	pthread_barrier_destroy(&sleeper.at);
}

TEST(a_loop_that_pins_one_at_a_time_waits_and_never_goes_without)
{
	unsigned late = 0;
	struct few f;
	struct hugepin_domain_stats s;

	if (!few_open(&f.domain))
		return;
	few_begin(&f);
	for (int i = 0; i < 20 * MANY; i++) {
		int err = hugepin_pin_try(f.domain, f.buffer[i % MANY], SMALL, 0, told, &f, &f.pin);

		if (err == -EAGAIN) {
			EXPECT_EQ(hugepin_ring_use(f.r, NULL), 0); /* before it sleeps */
			sem_wait(&f.told);
			err = f.err;
		}
		if (err == -ENOBUFS) /* this thread got no processor for 100 ms */
			late++;
		else if (EXPECT_EQ(err, 0))
			few_use(&f, i % MANY);
	}
	EXPECT(late <= MANY / 4);
	EXPECT(hugepin_domain_stats(f.domain, &s, sizeof s) > 0);
	EXPECT(late || s.evicted == s.registered - FEW);
	few_end(&f);
	EXPECT_EQ(hugepin_domain_close(f.domain), 0);
}

T_MAIN
