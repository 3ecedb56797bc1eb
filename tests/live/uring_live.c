/* link: hugepin uring */
/* Domains of io_uring through the public functions, with the heap's memory as fixed buffers. */
#include <hugepin_uring.h>

#include "live.h"
#include "watched.h"

#include <linux/capability.h>
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

TEST(a_key_is_good_in_an_attached_ring)
{
	struct io_uring rings[2];
	hugepin_domain *d, *other;
	struct hugepin_pin pin;
	char *p = hugepin_malloc(MIB);

	if (!ring_open(&rings[0]) || !ring_open(&rings[1]))
		return;
	EXPECT_EQ(hugepin_uring_open(&rings[0], 0, 8, NULL, &d), 0);
	EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, NULL, &other), 0);
	EXPECT_EQ(hugepin_uring_attach(other, &rings[1]), -EINVAL);
	EXPECT_EQ(hugepin_uring_attach(NULL, &rings[1]), -EINVAL);
	EXPECT_EQ(hugepin_uring_attach(d, NULL), -EINVAL);
	EXPECT_EQ(hugepin_domain_close(other), 0);
	int err = hugepin_uring_attach(d, &rings[1]);
	if (err == -EOPNOTSUPP)
		SKIP("the kernel does not clone single slots");
	EXPECT_EQ(err, 0);
	EXPECT_EQ(hugepin_uring_attach(d, &rings[0]), -EBUSY);
	EXPECT_EQ(hugepin_pin(d, p, MIB, 0, &pin), 0);
	memset(p, 0, MIB);
	EXPECT_EQ(read_fixed(&rings[1], p, 4096, pin.lkey), 4096);
	EXPECT_EQ(memcmp(p, "\177ELF", 4), 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT(read_fixed(&rings[1], p, 4096, pin.lkey) < 0);
	io_uring_queue_exit(&rings[0]);
	io_uring_queue_exit(&rings[1]);
	hugepin_free(p);
}

T_MAIN
