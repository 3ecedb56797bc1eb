/*
 * The io_uring backend on real rings: what is registered can be read into by its index, what is deregistered cannot, and
 * the kernel says how much is pinned.
 */
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "base/base.h"
#include "reg/backend/uring.h"
#include "tests/call.h"
#include "tests/ring.h"
#include "tests/t.h"

enum { PAGE = 16384 }; /* whole base pages, of 4 or 16 KiB */

static const struct hugepin_backend *const backend = &hp_uring_backend;

/* Base pages: a hugepage is charged as a whole. */
static char *pages(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, len, MADV_NOHUGEPAGE);
	return memset(p, 0, len);
}

/* What the kernel says is pinned. Newer kernels count only for rings of those whom the limit concerns. */
static uint64_t pinned(void)
{
	char text[4096];

	hp_read_file("/proc/self/status", text, sizeof text);
	return hp_number_after(text, "VmPin:", UINT64_MAX) * 1024;
}

/* Older kernels unpin late, and all of them some time after a ring is closed. */
static bool pinned_becomes(uint64_t bytes)
{
	for (int i = 0; i < 2500 && pinned() != bytes; i++)
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	return EXPECT_EQ(pinned(), bytes);
}

static void drop_ipc_lock(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];

	EXPECT_EQ(syscall(SYS_capget, &header, caps), 0);
	caps[0].effective &= ~(1u << CAP_IPC_LOCK);
	EXPECT_EQ(syscall(SYS_capset, &header, caps), 0);
}

/* Before anything is registered. */
static bool ring_open(struct io_uring *ring, unsigned flags)
{
	int err;

	drop_ipc_lock();
	pinned_becomes(0);
	err = io_uring_queue_init(8, ring, flags);
	if (err == -ENOSYS || err == -EPERM || err == -EINVAL) {
		snprintf(t_skip_reason, sizeof t_skip_reason, "no io_uring with flags %#x: %s", flags, strerror(-err));
		return false;
	}
	return EXPECT_EQ(err, 0);
}

static int of_ring(struct io_uring *ring, unsigned slot0, unsigned slots, struct hp_uring **ret_, bool *ret_made)
{
	return hp_uring_new(hp_ring_fd(ring), hp_ring_flags(ring), slot0, slots, ret_, ret_made);
}

static struct hp_uring *context(struct io_uring *ring, unsigned slot0, unsigned slots)
{
	struct hp_uring *u = NULL;
	bool made;

	EXPECT_EQ(of_ring(ring, slot0, slots, &u, &made), 0);
	return u;
}

/* A test of a context u of slots [slot0, slot0 + slots) on a ring with these flags, and of len bytes p. */
#define RING_TEST(fact, flags, slot0, slots, len)                                                                      \
	static void fact##_body(__attribute__((unused)) struct io_uring *ring, struct hp_uring *u, char *p);           \
	TEST(fact)                                                                                                     \
	{                                                                                                              \
		char *p = pages(len);                                                                                  \
		struct io_uring ring;                                                                                  \
                                                                                                                       \
		if (!ring_open(&ring, flags))                                                                          \
			return;                                                                                        \
		struct hp_uring *u = context(&ring, slot0, slots);                                                     \
                                                                                                                       \
		fact##_body(&ring, u, p);                                                                              \
		backend->close(u);                                                                                     \
		io_uring_queue_exit(&ring);                                                                            \
		munmap(p, len);                                                                                        \
	}                                                                                                              \
	static void fact##_body(__attribute__((unused)) struct io_uring *ring, struct hp_uring *u, char *p)

static int reg(struct hp_uring *u, void *p, size_t len, struct hugepin_reg *ret_)
{
	return backend->reg(u, p, len, HUGEPIN_READ | HUGEPIN_WRITE, ret_);
}

/* Have the kernel read one page of "xxx..." from a pipe to p, by buffer index. */
static int read_fixed(struct io_uring *ring, char *p, unsigned index)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	char text[PAGE];
	int fds[2], ret;

	memset(text, 'x', sizeof text);
	EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
	EXPECT_EQ(write(fds[1], text, sizeof text), sizeof text);
	io_uring_prep_read_fixed(sqe, fds[0], p, PAGE, 0, (int)index);
	EXPECT_EQ(io_uring_submit_and_wait(ring, 1), 1);
	ret = ring_result(ring);
	close(fds[0]);
	close(fds[1]);
	return ret;
}

RING_TEST(the_kernel_reads_into_a_registered_buffer_and_no_further, 0, 0, 4, 3 * PAGE)
{
	struct hugepin_reg r;

	EXPECT_EQ(reg(u, p + PAGE, PAGE, &r), 0);
	EXPECT_EQ(read_fixed(ring, p + PAGE, r.lkey), PAGE);
	EXPECT(p[PAGE] == 'x' && p[2 * PAGE - 1] == 'x');
	EXPECT_EQ(read_fixed(ring, p + PAGE + 1, r.lkey), -EFAULT);
	EXPECT_EQ(read_fixed(ring, p, r.lkey), -EFAULT);
	EXPECT(!p[0] && !p[2 * PAGE]);
	EXPECT_EQ(backend->dereg(u, &r), 0);
	EXPECT_EQ(read_fixed(ring, p + PAGE, r.lkey), -EFAULT);
}

RING_TEST(a_ring_whose_descriptor_is_closed_is_found_by_its_registration, 0, 0, 4, PAGE)
{
	struct hugepin_reg r;

	EXPECT_EQ(reg(u, p, PAGE, &r), 0);
	EXPECT_EQ(backend->dereg(u, &r), 0);
	EXPECT_EQ(io_uring_register_ring_fd(ring), 1);
	close(ring->ring_fd);
	ring->ring_fd = -1;
	int err = reg(u, p, PAGE, &r);
	if (err != -EINVAL) { /* -EINVAL: before Linux 6.3 */
		EXPECT_EQ(err, 0);
		EXPECT_EQ(read_fixed(ring, p, r.lkey), PAGE);
		EXPECT_EQ(backend->dereg(u, &r), 0);
	}
}

struct other {
	struct hp_uring *u;
	char *p;
	struct hugepin_reg r;
	int registered, deregistered;
};

/* A thread whose own ring has the same index. */
static void *register_beside_own_ring(void *other)
{
	struct other *o = other;
	struct iovec own = { o->p + PAGE, PAGE };
	struct io_uring ring;

	EXPECT_EQ(io_uring_queue_init(8, &ring, 0), 0);
	EXPECT_EQ(io_uring_register_ring_fd(&ring), 1);
	EXPECT_EQ(io_uring_register_buffers(&ring, &own, 1), 0);
	o->registered = reg(o->u, o->p, PAGE, &o->r);
	o->deregistered = backend->dereg(o->u, &o->r);
	EXPECT_EQ(read_fixed(&ring, o->p + PAGE, 0), PAGE);
	EXPECT_EQ(read_fixed(&ring, o->p, 0), -EFAULT);
	io_uring_queue_exit(&ring);
	return NULL;
}

static void close_descriptor(struct io_uring *ring)
{
	EXPECT_EQ(io_uring_register_ring_fd(ring), 1);
	close(ring->ring_fd);
	ring->ring_fd = -1;
}

TEST(no_thread_reaches_a_ring_of_its_own_by_the_index_of_another)
{
	char *p = pages(2 * PAGE);

	for (int closed_before = 0; closed_before < 2; closed_before++) {
		struct other o = { .p = p };
		struct hugepin_limits l;
		struct io_uring ring;
		pthread_t t;

		if (!ring_open(&ring, 0))
			return;
		if (closed_before)
			close_descriptor(&ring);
		bool made;
		int err = of_ring(&ring, 0, 4, &o.u, &made);
		if (err == -EINVAL)
			SKIP("a ring is not registered with by its index before Linux 6.3");
		EXPECT_EQ(err, 0);
		if (!closed_before)
			close_descriptor(&ring);
		EXPECT_EQ(backend->limits(o.u, &l), 0);
		EXPECT_EQ(!!(l.flags & HUGEPIN_LIMIT_OPENER), closed_before);
		pthread_create(&t, NULL, register_beside_own_ring, &o);
		pthread_join(t, NULL);
		EXPECT_EQ(o.registered, closed_before ? -EEXIST : 0);
		EXPECT_EQ(o.deregistered, o.registered);
		EXPECT_EQ(reg(o.u, p, PAGE, &o.r), 0);
		EXPECT_EQ(read_fixed(&ring, p, o.r.lkey), PAGE);
		EXPECT_EQ(backend->dereg(o.u, &o.r), 0);
		backend->close(o.u);
		io_uring_queue_exit(&ring);
	}
	pinned_becomes(0);
	munmap(p, 2 * PAGE);
}

RING_TEST(memory_is_pinned_while_it_is_registered, 0, 0, 4, MIB)
{
	struct hugepin_reg r;

	EXPECT_EQ(reg(u, p, MIB, &r), 0);
	EXPECT_EQ(pinned(), MIB);
	EXPECT_EQ(backend->dereg(u, &r), 0);
	pinned_becomes(0);
}

RING_TEST(a_kernel_that_unpins_late_is_known_to, 0, 0, 4, 2 * PAGE)
{
	struct hugepin_limits l;
	struct hugepin_reg busy, r;
	int fds[2];

	EXPECT_EQ(backend->limits(u, &l), 0);
	EXPECT_EQ(reg(u, p, PAGE, &busy), 0);
	EXPECT_EQ(reg(u, p + PAGE, PAGE, &r), 0);
	EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
	io_uring_prep_read_fixed(io_uring_get_sqe(ring), fds[0], p, PAGE, 0, (int)busy.lkey); /* waits */
	EXPECT_EQ(io_uring_submit(ring), 1);
	EXPECT_EQ(backend->dereg(u, &r), 0);
	EXPECT_EQ(pinned(), l.flags & HUGEPIN_LIMIT_LATE ? 2 * PAGE : PAGE);
	close(fds[1]);
	EXPECT_EQ(ring_result(ring), 0); /* the pipe's end */
	pinned_becomes(PAGE);
	close(fds[0]);
}

RING_TEST(indexes_are_those_of_the_slots_and_are_used_again, 0, 100, 3, PAGE)
{
	struct hugepin_reg r[4];

	for (unsigned i = 0; i < 3; i++) {
		EXPECT_EQ(reg(u, p, PAGE, &r[i]), 0);
		EXPECT_EQ(r[i].lkey, 100 + i);
	}
	EXPECT_EQ(reg(u, p, PAGE, &r[3]), -ENOMEM);
	EXPECT_EQ(backend->dereg(u, &r[1]), 0);
	EXPECT_EQ(reg(u, p, PAGE, &r[3]), 0);
	EXPECT_EQ(r[3].lkey, 101);
	EXPECT_EQ(read_fixed(ring, p, 101), PAGE);
	EXPECT_EQ(read_fixed(ring, p, 99), -EFAULT);
}

RING_TEST(the_ring_gets_no_completions_but_its_own, 0, 0, 1, PAGE)
{
	struct io_uring_cqe *cqe;
	struct hugepin_reg r;

	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(reg(u, p, PAGE, &r), 0);
		EXPECT_EQ(backend->dereg(u, &r), 0);
	}
	EXPECT_EQ(io_uring_peek_cqe(ring, &cqe), -EAGAIN);
}

TEST(a_table_that_the_ring_has_is_used_and_what_is_in_it_stays)
{
	struct io_uring ring;
	struct hp_uring *u = NULL;
	char *p = pages(2 * PAGE);
	struct iovec all[8] = { [7] = { p, PAGE } };
	struct hugepin_reg r;
	bool made = true;

	if (!ring_open(&ring, 0))
		return;
	EXPECT_EQ(io_uring_register_buffers(&ring, all, 8), 0);
	EXPECT_EQ(of_ring(&ring, 4, 5, &u, &made), -EINVAL);
	EXPECT_EQ(of_ring(&ring, 4, 4, &u, &made), 0);
	EXPECT(!made);
	EXPECT_EQ(read_fixed(&ring, p, 7), PAGE);
	EXPECT_EQ(reg(u, p + PAGE, PAGE, &r), 0);
	EXPECT_EQ(r.lkey, 4);
	EXPECT_EQ(read_fixed(&ring, p + PAGE, 4), PAGE);
	backend->close(u);
	io_uring_queue_exit(&ring);
	munmap(p, 2 * PAGE);
}

TEST(slots_that_no_table_can_have_are_refused)
{
	struct io_uring ring;
	struct hp_uring *u;
	bool made;

	if (!ring_open(&ring, 0))
		return;
	EXPECT_EQ(of_ring(&ring, 0, 0, &u, &made), -EINVAL);
	EXPECT_EQ(of_ring(&ring, 0, 16385, &u, &made), -EINVAL);
	EXPECT_EQ(of_ring(&ring, 16384, 1, &u, &made), -EINVAL);
	EXPECT_EQ(of_ring(&ring, UINT32_MAX, 2, &u, &made), -EINVAL);
	EXPECT_EQ(of_ring(&ring, 16383, 1, &u, &made), 0);
	EXPECT(made);
	backend->close(u);
	io_uring_queue_exit(&ring);
}

RING_TEST(memory_that_is_not_there_or_read_only_is_refused_for_that, 0, 0, 2, 3 * PAGE)
{
	struct hugepin_reg r = { .lkey = 77 };

	munmap(p + PAGE, PAGE);
	EXPECT_EQ(reg(u, p, 3 * PAGE, &r), -EFAULT);
	mprotect(p, PAGE, PROT_READ);
	EXPECT_EQ(reg(u, p, PAGE, &r), -EFAULT);
	EXPECT_EQ(r.lkey, 77);
	pinned_becomes(0);
	EXPECT_EQ(reg(u, p + 2 * PAGE, PAGE, &r), 0);
	EXPECT_EQ(r.lkey, 0);
}

TEST(the_limits_are_those_of_the_ring)
{
	struct io_uring ring;
	struct hugepin_limits l;

	if (!ring_open(&ring, 0))
		return;
	struct hp_uring *u = context(&ring, 1, 5);

	EXPECT_EQ(backend->limits(u, &l), 0);
	EXPECT_EQ(l.len_max, 1 << 30);
	EXPECT_EQ(l.regs_max, 5);
	EXPECT_EQ(l.access, HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_RELAXED);
	EXPECT(!(l.flags & HUGEPIN_LIMIT_OPENER));
	backend->close(u);
	io_uring_queue_exit(&ring);
}

/* As a user of his own: pins are charged to the user over all processes. Exits with the number of failures. */
static void limited_child(void)
{
	const struct rlimit limit = { MIB, MIB };
	struct hugepin_limits l;
	struct hugepin_reg r, s;
	struct io_uring ring;
	char *p = pages(2 * MIB);

	prctl(PR_SET_DUMPABLE, 1);
	if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0)
		_exit(77);
	if (!geteuid()) {
		uid_t uid = 61000 + (uid_t)getpid() % 4000;

		if (setresuid(uid, uid, uid) < 0)
			_exit(77);
	}
	if (!ring_open(&ring, 0))
		_exit(77);
	struct hp_uring *u = context(&ring, 0, 4);

	EXPECT_EQ(backend->limits(u, &l), 0);
	EXPECT_EQ(l.bytes_max, MIB);
	EXPECT_EQ(reg(u, p, 2 * MIB, &r), -ENOMEM);
	EXPECT_EQ(reg(u, p, MIB / 2, &r), 0);
	EXPECT_EQ(reg(u, p + MIB / 2, MIB * 3 / 4, &s), -ENOMEM);
	EXPECT_EQ(backend->dereg(u, &r), 0);
	pinned_becomes(0);
	EXPECT_EQ(reg(u, p + MIB / 2, MIB * 3 / 4, &s), 0);
	_exit(t_failures);
}

TEST(the_limit_on_locked_memory_is_said_and_met)
{
	int status;
	pid_t pid = fork();

	if (!pid)
		limited_child();
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	if (status == 77 << 8)
		SKIP("no io_uring for users without privilege");
	EXPECT_EQ(status, 0);
}

static uint64_t fake_ns;
static long refusals; /* so many rings and registrations are refused next, each after 20 ms by that clock */
static long no_clone; /* what a kernel says that clones no single slots; 0: ask this one */

static uint64_t fake_clock(void)
{
	return fake_ns;
}

long hp_sys_call(long n, long a, long b, long c, long d, long e, long f)
{
	if (((n == SYS_io_uring_register && b == IORING_REGISTER_BUFFERS_UPDATE) || n == SYS_io_uring_setup) && refusals) {
		refusals--;
		fake_ns += 20000000;
		return -ENOMEM;
	}
	if (n == SYS_io_uring_register && b == 30 && no_clone) /* IORING_REGISTER_CLONE_BUFFERS */
		return no_clone;
	return t_call(n, a, b, c, d, e, f);
}

/* It is charged until the kernel has ended the rings of a process that has died. */
TEST(a_domain_waits_for_the_locked_memory_of_a_predecessor_and_not_for_ever)
{
	struct hugepin_reg r[2];
	struct io_uring ring;
	struct hp_uring *u;
	char *p;

	if (!ring_open(&ring, 0))
		return;
	p = pages(2 * PAGE);
	hp_clock_set(fake_clock);
	u = context(&ring, 0, 4);
	refusals = 5;
	EXPECT_EQ(reg(u, p, PAGE, &r[0]), 0);
	EXPECT_EQ(refusals, 0);
	refusals = 2;
	EXPECT_EQ(reg(u, p + PAGE, PAGE, &r[1]), -ENOMEM); /* now it has registered, the room is short */
	EXPECT_EQ(refusals, 1);
	refusals = 0;
	EXPECT_EQ(backend->dereg(u, &r[0]), 0);
	backend->close(u);
	io_uring_unregister_buffers(&ring);
	u = context(&ring, 0, 4);
	refusals = 1000;
	EXPECT_EQ(reg(u, p, PAGE, &r[0]), -ENOMEM);
	EXPECT(refusals > 980);
	EXPECT_EQ(reg(u, p, PAGE, &r[0]), -ENOMEM);
	refusals = 0;
	EXPECT_EQ(reg(u, p, PAGE, &r[0]), 0);
	EXPECT_EQ(backend->dereg(u, &r[0]), 0);
	backend->close(u);
	hp_clock_set(NULL);
	io_uring_queue_exit(&ring);
	munmap(p, 2 * PAGE);
}

TEST(a_ring_of_a_domains_own_waits_for_it_too)
{
	struct io_uring ring;
	struct hp_uring *u;
	bool made;

	if (!ring_open(&ring, 0))
		return;
	io_uring_queue_exit(&ring);
	hp_clock_set(fake_clock);
	refusals = 5;
	if (EXPECT_EQ(hp_uring_new(-1, 0, 0, 4, &u, &made), 0))
		backend->close(u);
	EXPECT_EQ(refusals, 0);
	refusals = 1000;
	EXPECT_EQ(hp_uring_new(-1, 0, 0, 4, &u, &made), -ENOMEM);
	EXPECT(refusals > 980 && refusals < 990);
	refusals = 0;
	hp_clock_set(NULL);
}

static void *in_another_thread(void *arg)
{
	static struct hp_uring *u;
	bool made;

	return (void *)(intptr_t)of_ring(arg, 0, 2, &u, &made);
}

static int in_thread(void *(*run)(void *), void *arg)
{
	pthread_t t;
	void *ret;

	EXPECT_EQ(pthread_create(&t, NULL, run, arg), 0);
	pthread_join(t, &ret);
	return (int)(intptr_t)ret;
}

TEST(a_ring_with_an_owner_registers_for_its_owner_only)
{
	struct io_uring ring;
	struct hugepin_limits l;
	struct hugepin_reg r;
	char *p = pages(PAGE);

	if (!ring_open(&ring, IORING_SETUP_SINGLE_ISSUER))
		return;
	EXPECT_EQ(in_thread(in_another_thread, &ring), -EPERM);
	struct hp_uring *u = context(&ring, 0, 2);

	EXPECT_EQ(backend->limits(u, &l), 0);
	EXPECT(l.flags & HUGEPIN_LIMIT_OPENER);
	EXPECT_EQ(reg(u, p, PAGE, &r), 0);
	EXPECT_EQ(read_fixed(&ring, p, r.lkey), PAGE);
	backend->close(u);
	io_uring_queue_exit(&ring);
	munmap(p, PAGE);
}

/* -------------------------------------------------------------------------------------------- attached rings */

/* A context of slots [2, 10) on a ring of its own. NULL: skipped, since the kernel has no io_uring, or clones no single
 * slots. */
static struct hp_uring *context_of_own(void)
{
	struct io_uring probe;
	struct hp_uring *u = NULL;
	hugepin_ring *r;
	bool made;
	int err;

	if (!ring_open(&probe, 0))
		return NULL;
	EXPECT_EQ(hp_uring_new(-1, 0, 2, 8, &u, &made), 0);
	r = hp_attached_new(u, NULL);
	err = hp_attached_begin(r, probe.ring_fd, 0);
	if (err == -EOPNOTSUPP) {
		snprintf(t_skip_reason, sizeof t_skip_reason, "the kernel does not clone single slots");
		hp_attached_delete(r);
		backend->close(u);
		u = NULL;
	} else {
		EXPECT_EQ(err, 0);
		EXPECT_EQ(hp_attached_end(r), 0);
		hp_attached_delete(r);
	}
	io_uring_queue_exit(&probe);
	return u;
}

static int attach(struct hp_uring *u, struct io_uring *ring, hugepin_ring **ret_)
{
	hugepin_ring *r = hp_attached_new(u, NULL);
	int err = hp_attached_begin(r, hp_ring_fd(ring), hp_ring_flags(ring));

	if (err)
		hp_attached_delete(r);
	else
		*ret_ = r;
	return err;
}

static int use(hugepin_ring *r, const struct hugepin_reg *reg)
{
	return hp_attached_use(r, &(struct hugepin_pin){ .lkey = reg->lkey });
}

/* Bytes that are deregistered and not free. */
static size_t lingering(struct hp_uring *u)
{
	size_t bytes;
	uint32_t slots;

	backend->lingering(u, &bytes, &slots);
	EXPECT_EQ(slots, u->outlived_now);
	return bytes;
}

static void close_all(struct hp_uring *u, struct io_uring *rings, int n)
{
	backend->close(u);
	for (int i = 0; i < n; i++)
		io_uring_queue_exit(&rings[i]);
}

/* A new ring that is attached. */
static hugepin_ring *attached(struct hp_uring *u, struct io_uring *ring, unsigned flags)
{
	hugepin_ring *r = NULL;

	EXPECT_EQ(io_uring_queue_init(8, ring, flags), 0);
	EXPECT_EQ(attach(u, ring, &r), 0);
	return r;
}

TEST(an_index_is_good_in_every_ring_that_uses_it_and_pins_once)
{
	struct io_uring rings[4];
	hugepin_ring *r[4];
	struct hugepin_reg early, late;
	char *p = pages(MIB);
	struct hp_uring *u = context_of_own();

	if (!u)
		return;
	for (int i = 0; i < 3; i++)
		r[i] = attached(u, &rings[i], 0);
	EXPECT_EQ(reg(u, p, PAGE, &early), 0);
	r[3] = attached(u, &rings[3], 0);
	EXPECT_EQ(read_fixed(&rings[3], p, early.lkey), -EFAULT); /* before it is used there */
	EXPECT_EQ(reg(u, p + PAGE, MIB - PAGE, &late), 0);
	EXPECT_EQ(read_fixed(&rings[0], p + PAGE, late.lkey), -EFAULT);
	for (int i = 0; i < 4; i++) {
		EXPECT_EQ(use(r[i], &late), 0);
		EXPECT_EQ(read_fixed(&rings[i], p + PAGE, late.lkey), PAGE);
		EXPECT_EQ(use(r[i], &early), 0);
		EXPECT_EQ(read_fixed(&rings[i], p, early.lkey), PAGE);
	}
	EXPECT_EQ(pinned(), MIB);
	EXPECT_EQ(backend->dereg(u, &early), 0);
	for (int i = 0; i < 4; i++) {
		EXPECT_EQ(pinned(), MIB); /* until the last has cleared its copy */
		EXPECT_EQ(use(r[i], &early), -EINVAL);
		EXPECT_EQ(read_fixed(&rings[i], p, early.lkey), -EFAULT);
		EXPECT_EQ(read_fixed(&rings[i], p + PAGE, late.lkey), PAGE);
	}
	pinned_becomes(MIB - PAGE);
	EXPECT_EQ(backend->dereg(u, &late), 0);
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(hp_attached_use(r[i], NULL), 0);
	pinned_becomes(0);
	close_all(u, rings, 4);
	munmap(p, MIB);
}

TEST(an_index_is_not_used_again_while_a_ring_has_a_copy)
{
	struct io_uring rings[2];
	hugepin_ring *r[2];
	struct hugepin_reg regs[8], one, none;
	char *p = pages(MIB);
	struct hp_uring *u = context_of_own();

	if (!u)
		return;
	for (int i = 0; i < 2; i++)
		r[i] = attached(u, &rings[i], 0);
	EXPECT_EQ(reg(u, p, PAGE, &one), 0);
	EXPECT_EQ(use(r[0], &one), 0);
	EXPECT_EQ(use(r[1], &one), 0);
	EXPECT_EQ(backend->dereg(u, &one), 0);
	for (int i = 0; i < 7; i++) {
		EXPECT_EQ(reg(u, p + PAGE, PAGE, &regs[i]), 0);
		EXPECT(regs[i].lkey != one.lkey);
	}
	EXPECT_EQ(read_fixed(&rings[1], p, one.lkey), PAGE); /* the old memory, which is the program's fault */
	EXPECT_EQ(use(r[0], &regs[0]), 0); /* of another pin: clears its copy, too */
	EXPECT_EQ(read_fixed(&rings[0], p, one.lkey), -EFAULT);
	EXPECT_EQ(u->outlived_now, 1);
	/* This thread may change the ring. */
	EXPECT_EQ(reg(u, p + 2 * PAGE, PAGE, &regs[7]), -ENOMEM);
	EXPECT_EQ(lingering(u), 0);
	EXPECT_EQ(reg(u, p + 2 * PAGE, PAGE, &regs[7]), 0);
	EXPECT_EQ(regs[7].lkey, one.lkey);
	EXPECT_EQ(u->outlived_now, 0);
	EXPECT_EQ(read_fixed(&rings[1], p + 2 * PAGE, one.lkey), -EFAULT); /* before it is used here */
	EXPECT_EQ(use(r[1], &regs[7]), 0);
	EXPECT_EQ(read_fixed(&rings[1], p + 2 * PAGE, one.lkey), PAGE);
	EXPECT_EQ(read_fixed(&rings[1], p, one.lkey), -EFAULT);
	EXPECT_EQ(reg(u, p, PAGE, &none), -ENOMEM);
	close_all(u, rings, 2);
	munmap(p, MIB);
}

TEST(a_ring_that_ends_gives_back_its_table_and_its_copies)
{
	struct io_uring rings[2];
	hugepin_ring *r[2];
	struct hugepin_reg one, again;
	char *p = pages(PAGE);
	struct hp_uring *u = context_of_own();

	if (!u)
		return;
	for (int i = 0; i < 2; i++)
		r[i] = attached(u, &rings[i], 0);
	EXPECT_EQ(reg(u, p, PAGE, &one), 0);
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(use(r[i], &one), 0);
	EXPECT_EQ(backend->dereg(u, &one), 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(reg(u, p, PAGE, &again), 0);
		EXPECT(again.lkey != one.lkey);
		EXPECT_EQ(backend->dereg(u, &again), 0);
		EXPECT_EQ(hp_attached_end(r[i]), 0);
		hp_attached_delete(r[i]);
		EXPECT(io_uring_unregister_buffers(&rings[i]) < 0); /* there is no table */
	}
	pinned_becomes(0);
	EXPECT_EQ(reg(u, p, PAGE, &again), 0);
	EXPECT_EQ(again.lkey, one.lkey);
	EXPECT_EQ(attach(u, &rings[0], &r[0]), 0); /* once more */
	EXPECT_EQ(use(r[0], &again), 0);
	EXPECT_EQ(read_fixed(&rings[0], p, again.lkey), PAGE);
	close_all(u, rings, 2);
	munmap(p, PAGE);
}

/* The number that the next descriptor gets. */
static int next_fd(void)
{
	const int fd = dup(STDOUT_FILENO);

	close(fd);
	return fd;
}

TEST(a_kernel_that_clones_no_single_slots_is_told_from_a_ring_that_has_buffers)
{
	/* before Linux 6.12; 6.12 clones into rings without a table */
	for (const long *kernel = (const long[]){ -EINVAL, -EBUSY, 0 }; *kernel; kernel++) {
		struct io_uring ring;
		struct hp_uring *u = context_of_own();
		hugepin_ring *r = NULL;

		if (!u)
			return;
		EXPECT_EQ(io_uring_queue_init(8, &ring, 0), 0);
		no_clone = *kernel;
		EXPECT_EQ(attach(u, &ring, &r), -EOPNOTSUPP);
		EXPECT(r == NULL);
		EXPECT_EQ(io_uring_register_buffers_sparse(&ring, 4), 0); /* no table is left */
		EXPECT_EQ(attach(u, &ring, &r), -EBUSY);
		no_clone = 0;
		EXPECT_EQ(attach(u, &ring, &r), -EBUSY);
		EXPECT_EQ(io_uring_unregister_buffers(&ring), 0);
		EXPECT_EQ(attach(u, &ring, &r), 0);
		close_all(u, &ring, 1);
	}
}

TEST(a_ring_that_refuses_a_copy_changes_nothing)
{
	struct io_uring ring, other;
	struct hugepin_reg one;
	char *p = pages(PAGE);
	struct hp_uring *u = context_of_own();
	hugepin_ring *r = NULL;
	int null, kept, ours;

	if (!u)
		return;
	EXPECT_EQ(io_uring_queue_init(8, &other, 0), 0);
	EXPECT_EQ(io_uring_queue_init(8, &ring, 0), 0);
	ours = next_fd();
	EXPECT_EQ(attach(u, &ring, &r), 0);
	null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	kept = dup(ring.ring_fd);
	EXPECT_EQ(reg(u, p, PAGE, &one), 0);
	dup2(null, ours);
	dup2(other.ring_fd, ring.ring_fd); /* another ring is not taken for it */
	EXPECT(use(r, &one) < 0);
	EXPECT_EQ(u->slot[one.lkey - 2].holders, 0);
	dup2(kept, ring.ring_fd); /* by the program's own */
	EXPECT_EQ(use(r, &one), 0);
	EXPECT_EQ(read_fixed(&ring, p, one.lkey), PAGE);
	EXPECT_EQ(backend->dereg(u, &one), 0);
	dup2(null, ring.ring_fd);
	EXPECT(hp_attached_use(r, NULL) < 0);
	EXPECT_EQ(u->slot[one.lkey - 2].holders, 1);
	EXPECT_EQ(hp_attached_end(r), 0); /* a ring that is gone is no obstacle */
	hp_attached_delete(r);
	EXPECT_EQ(u->slot[one.lkey - 2].holders, 0);
	dup2(kept, ring.ring_fd);
	close(null);
	close(kept);
	close(ours);
	backend->close(u);
	io_uring_queue_exit(&ring);
	io_uring_queue_exit(&other);
	munmap(p, PAGE);
}

TEST(a_hundred_rings_share_the_registrations_of_a_domain)
{
	enum { RINGS = 100 };
	struct io_uring rings[RINGS];
	hugepin_ring *r[RINGS];
	struct hugepin_reg one;
	char *p = pages(PAGE);
	struct hp_uring *u = context_of_own();

	if (!u)
		return;
	for (int i = 0; i < RINGS; i++) {
		EXPECT_EQ(io_uring_queue_init(1, &rings[i], 0), 0);
		EXPECT_EQ(attach(u, &rings[i], &r[i]), 0);
	}
	EXPECT_EQ(reg(u, p, PAGE, &one), 0);
	for (int i = 0; i < RINGS; i++) {
		EXPECT_EQ(use(r[i], &one), 0);
		EXPECT_EQ(read_fixed(&rings[i], p, one.lkey), PAGE);
	}
	EXPECT_EQ(pinned(), PAGE);
	EXPECT_EQ(u->slot[one.lkey - 2].holders, RINGS);
	close_all(u, rings, RINGS);
	munmap(p, PAGE);
}

struct with_owner {
	struct hp_uring *u;
	struct io_uring ring;
	hugepin_ring *r;
	struct hugepin_reg one;
	char *p;
	pthread_t thread;
	pthread_barrier_t at; /* with the test */
};

/* Uses the registration, and stays until the test has passed the barrier twice. */
static void *an_owner(void *arg)
{
	struct with_owner *o = arg;

	o->r = attached(o->u, &o->ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
	EXPECT_EQ(use(o->r, &o->one), 0);
	EXPECT_EQ(read_fixed(&o->ring, o->p, o->one.lkey), PAGE);
	pthread_barrier_wait(&o->at);
	pthread_barrier_wait(&o->at);
	return NULL;
}

TEST(rings_with_owners_share_them_and_each_is_changed_by_its_owner)
{
	enum { OWNERS = 3 };
	struct with_owner o[OWNERS];
	struct hugepin_reg one, rest[7], none;
	char *p = pages(MIB);
	struct hp_uring *u = context_of_own();

	if (!u)
		return;
	EXPECT_EQ(reg(u, p, PAGE, &one), 0);
	for (int i = 0; i < OWNERS; i++) { /* one after the other, since the context has no lock */
		o[i] = (struct with_owner){ .u = u, .one = one, .p = p };
		pthread_barrier_init(&o[i].at, NULL, 2);
		EXPECT_EQ(pthread_create(&o[i].thread, NULL, an_owner, &o[i]), 0);
		pthread_barrier_wait(&o[i].at);
	}
	EXPECT_EQ(pinned(), PAGE);
	for (int i = 0; i < 7; i++)
		EXPECT_EQ(reg(u, p + PAGE, PAGE, &rest[i]), 0);
	EXPECT_EQ(use(o[0].r, &rest[0]), -EPERM);
	EXPECT_EQ(use(o[0].r, &one), 0); /* it has a copy, and any thread may ask */
	EXPECT_EQ(backend->dereg(u, &one), 0);
	EXPECT_EQ(hp_attached_use(o[0].r, NULL), -EPERM);
	EXPECT_EQ(hp_attached_end(o[0].r), -EPERM);
	EXPECT_EQ(u->slot[one.lkey - 2].holders, OWNERS);
	EXPECT_EQ(reg(u, p, PAGE, &none), -ENOMEM);
	for (int i = 0; i < OWNERS; i++) {
		pthread_barrier_wait(&o[i].at);
		pthread_join(o[i].thread, NULL);
		while (hp_attached_end(o[i].r) == -EPERM) /* until the kernel, too, has ended the thread */
			sched_yield();
		hp_attached_delete(o[i].r);
		io_uring_queue_exit(&o[i].ring);
		pthread_barrier_destroy(&o[i].at);
	}
	pinned_becomes(7 * PAGE);
	EXPECT_EQ(reg(u, p, PAGE, &one), 0);
	backend->close(u);
	munmap(p, MIB);
}

struct sleeper {
	struct with_owner o;
	struct hugepin_reg regs[8];
};

static void *a_sleeper(void *arg)
{
	struct sleeper *s = arg;

	s->o.r = attached(s->o.u, &s->o.ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
	for (int i = 0; i < 8; i++)
		EXPECT_EQ(use(s->o.r, &s->regs[i]), 0);
	pthread_barrier_wait(&s->o.at);
	pthread_barrier_wait(&s->o.at);
	EXPECT_EQ(hp_attached_use(s->o.r, NULL), 0);
	return NULL;
}

TEST(what_the_ring_of_a_thread_that_sleeps_has_copies_of_lingers)
{
	struct hp_uring *u = context_of_own();
	struct sleeper s = { .o.u = u };
	struct hugepin_reg none;
	char *p = pages(MIB);

	if (!u)
		return;
	pthread_barrier_init(&s.o.at, NULL, 2);
	for (int i = 0; i < 8; i++)
		EXPECT_EQ(reg(u, p + i * PAGE, PAGE, &s.regs[i]), 0);
	EXPECT_EQ(pthread_create(&s.o.thread, NULL, a_sleeper, &s), 0);
	pthread_barrier_wait(&s.o.at);
	EXPECT_EQ(lingering(u), 0);
	EXPECT_EQ(backend->dereg(u, &s.regs[0]), 0);
	EXPECT_EQ(lingering(u), PAGE);
	EXPECT_EQ(reg(u, p, PAGE, &none), -ENOMEM);
	EXPECT_EQ(backend->dereg(u, &s.regs[1]), 0);
	EXPECT_EQ(lingering(u), 2 * PAGE);
	pthread_barrier_wait(&s.o.at);
	pthread_join(s.o.thread, NULL);
	EXPECT_EQ(lingering(u), 0);
	EXPECT_EQ(reg(u, p, PAGE, &none), 0);
	backend->close(u);
	io_uring_queue_exit(&s.o.ring);
	pthread_barrier_destroy(&s.o.at);
	munmap(p, MIB);
}

TEST(a_ring_with_a_table_or_another_owner_is_not_attached)
{
	struct io_uring own, tabled, other;
	hugepin_ring *r;
	char *p = pages(PAGE);
	struct hp_uring *u = context_of_own();

	if (!u)
		return;
	backend->close(u);
	EXPECT_EQ(io_uring_queue_init(8, &own, IORING_SETUP_SINGLE_ISSUER), 0);
	EXPECT_EQ(io_uring_queue_init(8, &tabled, 0), 0);
	EXPECT_EQ(io_uring_queue_init(8, &other, 0), 0);
	EXPECT_EQ(io_uring_register_buffers_sparse(&tabled, 8), 0);
	u = context(&own, 0, 4); /* the domain's ring has an owner: this thread */
	EXPECT_EQ(attach(u, &tabled, &r), -EBUSY);
	EXPECT_EQ(attach(u, &own, &r), -EBUSY);
	EXPECT_EQ(hp_attached_begin((r = hp_attached_new(u, NULL)), 1 << 20, 0), -EBADF);
	hp_attached_delete(r);
	EXPECT_EQ(hp_attached_begin((r = hp_attached_new(u, NULL)), STDOUT_FILENO, 0), -EOPNOTSUPP);
	hp_attached_delete(r);
	/* what never had a descriptor is known by its index */
	EXPECT(hp_attached_begin((r = hp_attached_new(u, NULL)), other.ring_fd, 1u << 15) < 0);
	hp_attached_delete(r);
	EXPECT(LIST_EMPTY(&u->attached));
	EXPECT_EQ(attach(u, &other, &r), 0);
	backend->close(u);
	io_uring_queue_exit(&own);
	io_uring_queue_exit(&tabled);
	io_uring_queue_exit(&other);
	munmap(p, PAGE);
}

static struct hugepin_reg used_elsewhere;

static void *use_in_another_thread(void *r)
{
	return (void *)(intptr_t)use(r, &used_elsewhere);
}

TEST(a_ring_whose_descriptor_is_closed_is_cloned_by_its_owner)
{
	struct io_uring closed, other, late;
	struct hugepin_reg one, two;
	char *p = pages(PAGE);
	struct hp_uring *u = context_of_own();
	hugepin_ring *r[2] = { NULL, NULL };

	if (!u)
		return;
	backend->close(u);
	for (struct io_uring *const *ring = (struct io_uring *[]){ &closed, &other, &late, NULL }; *ring; ring++)
		EXPECT_EQ(io_uring_queue_init(8, *ring, 0), 0);
	close_descriptor(&closed);
	close_descriptor(&late);
	u = context(&closed, 0, 4);
	EXPECT_EQ(attach(u, &other, &r[0]), 0);
	EXPECT_EQ(attach(u, &late, &r[1]), 0);
	EXPECT_EQ(reg(u, p, PAGE, &one), 0);
	EXPECT_EQ(use(r[0], &one), 0);
	EXPECT_EQ(use(r[1], &one), 0);
	EXPECT_EQ(read_fixed(&other, p, one.lkey), PAGE);
	EXPECT_EQ(read_fixed(&late, p, one.lkey), PAGE);
	EXPECT_EQ(reg(u, p, PAGE, &two), 0);
	used_elsewhere = two;
	EXPECT_EQ(in_thread(use_in_another_thread, r[0]), -EPERM); /* there the index means no ring, or another */
	backend->close(u);
	io_uring_queue_exit(&closed);
	io_uring_queue_exit(&other);
	io_uring_queue_exit(&late);
	munmap(p, PAGE);
}

T_MAIN
