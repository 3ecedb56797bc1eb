/*
 * A device that pins pages for real, as fixed buffers of a ring of its own, and notes their page frames. Whether a pin is
 * stale is then a comparison with the program's page table. Needs root, for whom /proc/self/pagemap has the frames.
 */
#ifndef TESTS_SOAK_FRAMES_H
#define TESTS_SOAK_FRAMES_H

#include <liburing.h>
#include <sys/syscall.h>

#include "../live/live.h"
#include <hugepin.h>

enum { REGS = 4096, BASE = 4096, SOME = 256 };

static struct device {
	struct io_uring ring;
	int pagemap;
	bool parallel; /* takes several calls at a time */
	unsigned pause_us; /* the longest that a call takes on purpose */
	pthread_mutex_t lock; /* of `live` */
	pthread_mutex_t ring_lock; /* of transfers */
	int file; /* that transfers write */
	unsigned next;
	_Atomic int inside;
	_Atomic size_t bytes, bytes_peak;
	_Atomic long registered, deregistered;
	struct device_reg {
		bool live;
		uint32_t generation;
		uintptr_t addr;
		size_t len;
		uint64_t *frames;
		_Atomic int uses; /* pins that are out */
	} reg[REGS];
} device;

static uint64_t any(uint64_t n)
{
	static __thread uint64_t state;

	if (!state)
		state = (uint64_t)syscall(SYS_gettid) * UINT64_C(0x9e3779b97f4a7c15) ^ clock_ms();
	return rand_next(&state) % n;
}

static void read_frames(uintptr_t addr, size_t count, uint64_t *ret_)
{
	const ssize_t size = (ssize_t)(count * sizeof *ret_);

	if (pread(device.pagemap, ret_, (size_t)size, (off_t)(addr / BASE * sizeof *ret_)) != size)
		T_FAIL("/proc/self/pagemap: %s", strerror(errno));
	for (size_t i = 0; i < count; i++)
		ret_[i] &= (UINT64_C(1) << 55) - 1;
}

static void take_time(void)
{
	if (device.pause_us && any(4) == 0)
		usleep((useconds_t)any(device.pause_us));
	else if (any(4) == 0)
		sched_yield();
}

static int set_slot(unsigned slot, void *addr, size_t len)
{
	const struct iovec v = { addr, len };
	const int r = io_uring_register_buffers_update_tag(&device.ring, slot, &v, NULL, 1);

	return r < 0 ? r : 0;
}

static void enter(void)
{
	if (!device.parallel)
		EXPECT_EQ(device.inside++, 0);
}

static void leave(void)
{
	if (!device.parallel)
		device.inside--;
}

static struct device_reg *take_reg(void)
{
	struct device_reg *r = NULL;

	pthread_mutex_lock(&device.lock);
	for (unsigned n = 0; n < REGS && !r; n++) {
		device.next = device.next % (REGS - 1) + 1;
		if (!device.reg[device.next].live)
			r = &device.reg[device.next];
	}
	if (r)
		r->live = true;
	pthread_mutex_unlock(&device.lock);
	return r;
}

static void give_reg(struct device_reg *r)
{
	pthread_mutex_lock(&device.lock);
	r->live = false;
	pthread_mutex_unlock(&device.lock);
}

static int device_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	struct device_reg *r;
	int err = -ENOMEM;
	size_t peak;

	(void)ctx, (void)access;
	enter();
	take_time();
	r = take_reg();
	if (r && (err = set_slot((unsigned)(r - device.reg), addr, len)) < 0) {
		give_reg(r);
	} else if (r) {
		r->addr = (uintptr_t)addr;
		r->len = len;
		r->generation++;
		r->frames = calloc(len / BASE, sizeof *r->frames);
		read_frames(r->addr, len / BASE, r->frames);
		take_time();
		device.registered++;
		device.bytes += len;
		for (peak = device.bytes_peak; peak < device.bytes;)
			atomic_compare_exchange_weak(&device.bytes_peak, &peak, device.bytes);
		*ret_ = (struct hugepin_reg){ .lkey = (uint32_t)(r - device.reg), .cookie = r->generation };
	}
	leave();
	return err;
}

static int device_dereg(void *ctx, struct hugepin_reg *reg)
{
	struct device_reg *r = &device.reg[reg->lkey];

	(void)ctx;
	enter();
	take_time();
	EXPECT(r->live && r->generation == reg->cookie);
	EXPECT_EQ(r->uses, 0);
	EXPECT_EQ(set_slot(reg->lkey, NULL, 0), 0);
	device.bytes -= r->len;
	device.deregistered++;
	free(r->frames);
	give_reg(r);
	leave();
	return 0;
}

static int device_limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE,
					 .flags = device.parallel ? HUGEPIN_LIMIT_PARALLEL : 0 };
	return 0;
}

static const struct hugepin_backend device_backend = { .size = sizeof device_backend, .name = "frames",
						       .reg = device_reg, .dereg = device_dereg,
						       .limits = device_limits };

/* NULL, or why it cannot be. */
static const char *device_open(void)
{
	device.pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (getuid() != 0 || device.pagemap < 0)
		return "page frames are root's to see";
	if (io_uring_queue_init(4, &device.ring, 0) < 0 || io_uring_register_buffers_sparse(&device.ring, REGS) < 0)
		return "no fixed buffers of io_uring";
	device.file = memfd_create("transfers", MFD_CLOEXEC);
	EXPECT(device.file >= 0);
	pthread_mutex_init(&device.lock, NULL);
	pthread_mutex_init(&device.ring_lock, NULL);
	return NULL;
}

/* Whether the device reads what the program writes at p. The frames of a block that was rounded do not say so where a
 * neighbour has changed its part while the device pinned it. */
static bool transfers(uint32_t key, uintptr_t p)
{
	const uint64_t sent = any(UINT64_MAX);
	uint64_t arrived = 0;
	struct io_uring_cqe *cqe;
	bool ok;

	*(volatile uint64_t *)p = sent;
	pthread_mutex_lock(&device.ring_lock);
	io_uring_prep_write_fixed(io_uring_get_sqe(&device.ring), device.file, (void *)p, sizeof sent, 0, (int)key);
	ok = EXPECT_EQ(io_uring_submit(&device.ring), 1);
	while (ok && io_uring_wait_cqe(&device.ring, &cqe) == -EINTR)
		;
	ok = ok && EXPECT_EQ(cqe->res, sizeof sent) &&
	     EXPECT_EQ(pread(device.file, &arrived, sizeof arrived, 0), sizeof arrived);
	if (ok)
		io_uring_cqe_seen(&device.ring, cqe);
	pthread_mutex_unlock(&device.ring_lock);
	return ok && arrived == sent;
}

/* The owner of the memory has touched it, and nobody else changes it. */
static void device_check(const struct hugepin_pin *pin, const char *how)
{
	const struct device_reg *r = &device.reg[pin->lkey];
	const uintptr_t end = pin->base + pin->len;
	uintptr_t start = pin->base & -(uintptr_t)BASE;
	uint64_t now[SOME];

	if (!r->live || pin->base < r->addr || end > r->addr + r->len) {
		T_FAIL("%s: key %u is not of [%#lx, %#lx)", how, pin->lkey, pin->base, end);
		return;
	}
	for (uintptr_t at = start, count; at < end; at += count * BASE) {
		count = (end - at + BASE - 1) / BASE;
		count = count < SOME ? count : SOME;
		read_frames(at, count, now);
		if (memcmp(now, &r->frames[(at - r->addr) / BASE], count * sizeof *now)) {
			T_FAIL("%s: key %u is stale in %lu pages from %#lx", how, pin->lkey, count, at);
			return;
		}
	}
	start += BASE * any((end - start + BASE - 1) / BASE);
	if (!transfers(pin->lkey, start))
		T_FAIL("%s: key %u reads other memory at %#lx", how, pin->lkey, start);
}

#endif
