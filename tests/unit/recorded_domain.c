/*
 * Domains of each policy under all that programs, the kernel and devices do to them: what is asked of the device, what
 * pins return, and the statistics are what was recorded (tests/recorded.h). The device, its clock, the jobs of the
 * service thread and the answers of mincore(2) are the test's. Foreign memory and the heap's span lie where they always
 * do, since tables go by hashes of addresses. Lengths are mostly those at a limit, one below and one above.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "base/service.h"
#include "hugepin_key.h"
#include "hugepin_sg.h"
#include "reg/counts.h"
#include "reg/domains.h"
#include "reg/gone.h"
#include "reg/helper.h"
#include "reg/request.h"
#include "reg/serve.h"
#include "tests/recorded.h"
#include "tests/rnd.h"
#include "tests/unit/kernel.h"
#include "tests/unit/pin.h"

#define FOREIGN ((char *)0x200000000000)
#define SPAN 0x210000000000
enum { FOREIGN_BYTES = 16 << 20, PINS = 24, BUFFERS = 6, KEYS = 3, STEPS = 900, EACH = 300 };

UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	if (nr == SYS_mincore) {
		for (long i = 0; i < (b + 4095) / 4096; i++)
			((unsigned char *)c)[i] = ((a >> 12) + i) % 5 != 0;
		return 0;
	}
	if (nr == SYS_mmap && c == PROT_NONE && b >= 4L << 30 && b < 5L << 30 && !hp_span.size)
		return result_of(raw(nr, SPAN, b, c, d | MAP_FIXED_NOREPLACE, e, f));
	return result_of(raw(nr, a, b, c, d, e, f));
}

/* ------------------------------------------------------------------ the device */

static long long place(uintptr_t addr)
{
	return (long long)(addr >= hp_span.base && addr < hp_span.base + hp_span.size ? addr - hp_span.base :
										      addr - (uintptr_t)FOREIGN);
}

static int noting_reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	int e;

	device.clock_ns += len / 16;
	e = device_reg(ctx, addr, len, access, ret_);
	note("reg %llx+%zx %x = %d %u", place((uintptr_t)addr), len, access, e, e ? 0 : ret_->lkey);
	return e;
}

static int noting_dereg(void *ctx, struct hugepin_reg *reg)
{
	int e = device_dereg(ctx, reg);

	note("dereg %u = %d", reg->lkey, e);
	return e;
}

/* The table of pages of the device's own is too small for these ranges. */
static int noting_prefetch(void *ctx, const struct hugepin_reg *reg, void *addr, size_t len)
{
	struct device *v = ctx;

	v->clock_ns += 500 + len / 32;
	EXPECT(v->reg[reg->lkey].live && (uintptr_t)addr >= v->reg[reg->lkey].addr &&
	       (uintptr_t)addr + len <= v->reg[reg->lkey].addr + v->reg[reg->lkey].len);
	note("prefetch %u %llx+%zx = %d", reg->lkey, place((uintptr_t)addr), len, v->prefetch_error);
	return v->prefetch_error;
}

static int measured(void *ctx, struct hugepin_terms *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_terms){ 2000, 260, 900, 40, 800, 30, 1000, 130, 1500, 2500 };
	return 0;
}

static const struct hugepin_backend noting = {
	.size = sizeof noting,
	.name = "noting",
	.reg = noting_reg,
	.dereg = noting_dereg,
	.prefetch = noting_prefetch,
	.limits = device_limits,
	.now_ns = device_now,
	.close = device_close,
	.terms = measured,
};

static void expires(void *arg, const struct hugepin_expiry *x)
{
	(void)arg;
	note("expires %llx+%llx %u %u", place(x->addr), (unsigned long long)x->len, x->rkey, x->pinned);
}

/* ------------------------------------------------------------------ the service thread's jobs */

static _Atomic bool begun, ends;

static bool not_when_it_wants(void)
{
	return false;
}

static bool wait_for_the_end(void)
{
	begun = true;
	while (!ends)
		usleep(1000);
	begun = false;
	return false;
}

/* One thread runs all jobs, and this one does not end before the test lets it. So jobs run when the test calls them. */
static void hold_service(void)
{
	static struct hp_job last = { .run = wait_for_the_end };

	hp_serve_helper_job.run = not_when_it_wants;
	hp_service_opens_files(); /* or the first domain with a helper would, and end the thread for that */
	ends = false;
	EXPECT(hp_service_ask(&last));
	while (!begun)
		usleep(1000);
}

/* ------------------------------------------------------------------ the program */

static struct {
	hugepin_domain *d;
	struct hugepin_attr attr;
	struct hugepin_pin pin[PINS];
	struct hugepin_key key[KEYS];
	char *buffer[BUFFERS];
	size_t size[BUFFERS];
	unsigned pins_of[BUFFERS];
	int of[PINS]; /* the buffer that is pinned; -1: none */
	size_t limit; /* of lengths */
} world;

/* What a request was told becomes the pin of a place that is free, or is given back. */
static void told(void *arg, int err, const struct hugepin_pin *pin)
{
	(void)arg;
	note("told %d %llx+%llx %u", err, pin ? place(pin->base) : 0, pin ? (unsigned long long)pin->len : 0,
	     pin ? pin->lkey : 0);
	if (!pin)
		return;
	for (int i = 0; i < PINS; i++)
		if (!world.pin[i].ref) {
			world.pin[i] = *pin;
			world.of[i] = -1;
			return;
		}
	T_FAIL("no place for the pin");
}

static void serve(void)
{
	uint64_t until = 0;
	struct hp_helper_news news = { 0 };

	hp_domains_job.run();
	hp_request_job.run();
	if (!world.d->helper)
		return;
	hp_counts_barrier();
	until = hp_helper_serve(world.d, &news);
	note("helper %llu %d %d %d", until == UINT64_MAX ? 0 : (unsigned long long)(until - device.clock_ns), news.any,
	     news.crowded, news.busy);
}

static void note_pin(const char *what, int e, const struct hugepin_pin *pin)
{
	if (e)
		note("%s = %d", what, e);
	else
		note("%s %llx+%llx %u %x", what, place(pin->base), (unsigned long long)pin->len, pin->lkey, pin->rkey);
}

static unsigned some_access(void)
{
	static const unsigned access[] = { 0, 0, 0, 0, HUGEPIN_READ, HUGEPIN_WRITE, HUGEPIN_REMOTE_READ,
					   HUGEPIN_REMOTE_WRITE | HUGEPIN_WRITE, HUGEPIN_PIN_UNCACHED,
					   HUGEPIN_RELAXED | HUGEPIN_READ, HUGEPIN_REMOTE_ATOMIC };

	return access[rnd(rnd(4) ? 6 : sizeof access / sizeof *access)];
}

/* Of a buffer of the heap (*ret_b) or of foreign memory (-1). */
static char *some_range(size_t *ret_len, int *ret_b)
{
	static const size_t offsets[] = { 0, 0, 0, 1, 100, 4095 };
	const size_t lengths[] = { 1, 4095, 4096, 4097, 8192, 65536,
				   65537, 1048576, world.limit - 1, world.limit, world.limit + 1, 300000 };
	int b = (int)rnd(2 * BUFFERS);
	size_t len = lengths[rnd(12)], offset = offsets[rnd(6)];

	*ret_b = -1;
	if (b < BUFFERS && world.buffer[b]) {
		size_t at = rnd(8) * (world.size[b] / 8) + offset;

		*ret_b = b;
		*ret_len = HP_MIN(len, world.size[b] - at);
		return world.buffer[b] + at;
	}
	*ret_len = len;
	return FOREIGN + rnd(rnd(2) ? 12 : 120) * 65536 + offset;
}

static void take_in(int i, int b, int e)
{
	if (e)
		return;
	world.of[i] = b;
	if (b >= 0)
		world.pins_of[b]++;
}

/* A helper learns the place of a call, which is an address, and lies elsewhere in each run: so this names the place. */
static bool names_places(void)
{
	return world.d->helper != NULL;
}

static void pin_some(int i)
{
	size_t len;
	int b, e;
	char *p = some_range(&len, &b);
	unsigned access = some_access();
	struct hugepin_pin *pin = &world.pin[i];

	switch (names_places() ? (rnd(5) ? 0 : 2) : rnd(8)) {
	case 0:
		e = hugepin_pin_at(world.d, p, len, access, pin, 4711 + len % 3);
		note_pin("pin at", e, pin);
		break;
	case 1:
		e = hugepin_pin_try(world.d, p, len, access & ~(unsigned)HUGEPIN_PIN_UNCACHED, NULL, NULL, pin);
		note_pin("try", e, pin);
		break;
	case 2:
		e = hugepin_sg_key(world.d, p, len, access & ~(unsigned)HUGEPIN_PIN_UNCACHED, pin);
		note_pin("key", e, pin);
		break;
	default:
		e = hugepin_pin(world.d, p, len, access, pin);
		note_pin("pin", e, pin);
	}
	if (e)
		pin->ref = 0;
	take_in(i, b, e);
}

static void unpin(int i)
{
	int e = hugepin_unpin(world.d, &world.pin[i]);

	if (e)
		note("unpin = %d", e);
	world.pin[i].ref = 0;
	if (world.of[i] >= 0)
		world.pins_of[world.of[i]]--;
}

/* Pieces as one call. A piece may take several pins. */
static void pin_pieces(void)
{
	struct hugepin_pin pins[12];
	struct iovec v[4];
	unsigned access = some_access(), how = (unsigned)rnd(4);
	int b, n, max = (int)rnd(12);

	if (names_places())
		return;
	for (int i = 0; i < 4; i++)
		v[i].iov_base = some_range(&v[i].iov_len, &b);
	if (how % 2)
		n = hugepin_register(world.d, v, 1 + (int)how, access, pins, max);
	else
		n = hugepin_pinv(world.d, v, 1 + (int)how, access, pins, max);
	note("pieces = %d", n);
	for (int i = 0; i < n; i++)
		note_pin("piece", 0, &pins[i]);
	if (n > 0)
		note("= %d", how > 1 ? hugepin_deregister(world.d, pins, n) : hugepin_unpinv(world.d, pins, n));
}

/* Requests are served before there are more of them than places. */
static void ask_some(void)
{
	struct hugepin_pin pin = { 0 };
	size_t len;
	int b, e, left = 0;
	char *p = some_range(&len, &b);

	for (int i = 0; i < PINS; i++)
		left += !world.pin[i].ref;
	if (left <= (int)hp_request_count(world.d) || b >= 0 || names_places())
		return;
	e = hugepin_pin_try(world.d, p, len, some_access(), told, NULL, &pin);
	note_pin("ask", e, &pin);
	if (!e)
		EXPECT_EQ(hugepin_unpin(world.d, &pin), 0);
}

static void use_key(void)
{
	struct hugepin_key *key = &world.key[rnd(KEYS)];
	struct hugepin_pin *of = &world.pin[rnd(PINS)];
	int e;

	if (names_places())
		return;
	if (rnd(4) == 0 && of->ref) {
		e = hugepin_key_take(world.d, of, HUGEPIN_KEY_LAYOUT, key);
		note("take = %d", e);
	}
	if (!key->domain)
		return;
	e = hugepin_key_pin(key);
	note_pin("by key", e, &key->pin);
	if (!e)
		note("= %d", hugepin_key_unpin(key));
}

/* Memory goes away: it is forgotten, unmapped, or discarded late. */
static void lose_some(void)
{
	size_t len;
	int b;
	char *p = some_range(&len, &b);
	struct hp_range range = { .start = (uintptr_t)p & -(uintptr_t)4096,
				  .end = hp_round_up((uintptr_t)p + len, 4096) };

	switch (rnd(4)) {
	case 0:
		range.discarded = range.late = true;
		hp_gone_tell_all(&range);
		break;
	case 1:
		if (b < 0)
			hp_gone_tell_all(&range);
		break;
	default:
		if (b < 0)
			note("forget = %d", hugepin_forget(p, len));
	}
}

static void change_buffer(void)
{
	static const size_t sizes[] = { 32768, 65536, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB };
	unsigned b = (unsigned)rnd(BUFFERS);

	if (!world.buffer[b]) {
		world.size[b] = sizes[rnd(7)];
		world.buffer[b] = hugepin_malloc(world.size[b]);
		note("malloc %llx", place((uintptr_t)world.buffer[b]));
	} else if (!world.pins_of[b]) {
		hugepin_free(world.buffer[b]);
		world.buffer[b] = NULL;
	}
}

static void change_device(void)
{
	static const int errors[] = { -ENOMEM, -EAGAIN, -EINVAL, -EOPNOTSUPP, -EFAULT, -EIO, -EPERM };

	device.for_good = false;
	device.nth = 0;
	device.dereg_error = device.prefetch_error = 0;
	device.kernel_bytes_max = 0;
	switch (rnd(8)) {
	case 0:
		device.with = errors[rnd(7)];
		device.nth = 1 + (long)rnd(3);
		break;
	case 1:
		device.with = errors[rnd(7)];
		device.nth = 1;
		device.for_good = true;
		break;
	case 2:
		device.dereg_error = -EIO;
		break;
	case 3:
		device.prefetch_error = rnd(2) ? 1 : -EIO;
		break;
	case 4:
		device.kernel_bytes_max = device.bytes + 4096 * rnd(64);
		break;
	default:
		break;
	}
}

static void prefetch_some(void)
{
	static const unsigned phases[] = { 0, 0, HUGEPIN_PREFETCH_NEXT, HUGEPIN_PREFETCH_WAIT,
					   HUGEPIN_PREFETCH_NEXT | HUGEPIN_PREFETCH_WAIT };
	size_t len;
	int b;
	char *p = some_range(&len, &b);
	unsigned access = some_access() & ~(unsigned)HUGEPIN_PIN_UNCACHED;

	note("prefetch = %d", hugepin_prefetch(world.d, p, len, access | phases[rnd(5)]));
}

static void note_stats(void)
{
	struct hugepin_domain_stats s = stats_of(world.d);

	s.helper_ns = s.sharers = s.helper_delay_ns = 0;
#define NOTE(name, unit, sentence) note("%llu", (unsigned long long)s.name);
	HUGEPIN_DOMAIN_STATS_LIST(NOTE)
#undef NOTE
}

static void step(void)
{
	int i = (int)rnd(PINS);
	unsigned what = (unsigned)rnd(1000);

	device.clock_ns += rnd(50) * 20000;
	if (what < 620) {
		if (world.pin[i].ref)
			unpin(i);
		else
			pin_some(i);
	} else if (what < 680) {
		pin_pieces();
	} else if (what < 720) {
		ask_some();
	} else if (what < 760) {
		use_key();
	} else if (what < 800) {
		lose_some();
	} else if (what < 840) {
		change_buffer();
	} else if (what < 870) {
		prefetch_some();
	} else if (what < 900) {
		change_device();
	} else if (what < 980) {
		serve();
	} else if (what < 990) {
		note("trim = %d", hugepin_domain_trim(world.d, rnd(3) * 65536));
	} else if (what < 995) {
		note("purge = %d", hugepin_purge());
	} else {
		note_stats();
	}
}

/* A loop over a few buffers, which a helper learns. */
static void loop(void)
{
	struct hugepin_pin pin;

	for (unsigned i = 0; i < 300; i++) {
		char *p = FOREIGN + 8 * MIB + i % 5 * 262144;

		device.clock_ns += i % 5 ? 400000 : 20000000;
		serve();
		if (EXPECT_EQ(hugepin_pin_at(world.d, p, 131072, 0, &pin, 4711), 0))
			EXPECT_EQ(hugepin_unpin(world.d, &pin), 0);
		serve();
	}
}

/* ------------------------------------------------------------------ domains */

struct kind {
	const char *name;
	struct hugepin_attr attr;
	struct hugepin_limits limits;
};

static void end(const char *name)
{
	struct hugepin_domain_stats s;

	change_device();
	device.nth = 0;
	device.dereg_error = 0;
	for (int i = 0; i < PINS; i++)
		if (world.pin[i].ref)
			unpin(i);
	while (hp_request_count(world.d))
		serve();
	for (int i = 0; i < PINS; i++)
		if (world.pin[i].ref)
			unpin(i);
	note_stats();
	s = stats_of(world.d);
	for (int b = 0; b < BUFFERS; b++)
		hugepin_free(world.buffer[b]);
	note("purge = %d", hugepin_purge());
	note("close = %d", hugepin_domain_close(world.d));
	EXPECT_EQ(device.closed, 1);
	hugepin_purge();
	noted("%s: missed %llu, registered %llu, evicted %llu", name, (unsigned long long)s.misses,
	      (unsigned long long)s.registered, (unsigned long long)s.evicted);
}

static void play(const struct kind *kind, uint64_t with)
{
	struct hugepin_attr attr = kind->attr;

	memset(&world, 0, sizeof world);
	memset(world.of, 0xff, sizeof world.of);
	device_reset(&device);
	device.clock_ns = 100000000;
	device.limits = kind->limits;
	device.limits.access = DEVICE_ACCESS | HUGEPIN_RELAXED;
	world.limit = kind->limits.len_max ? kind->limits.len_max : 2 * MIB;
	seed = with;
	attr.size = sizeof attr;
	attr.watch = attr.watch ? attr.watch : HUGEPIN_WATCH_PROGRAM;
	attr.expire = expires;
	if (!EXPECT_EQ(hugepin_domain_open(&noting, &device, &attr, &world.d), 0))
		return;
	if (world.d->helper)
		loop();
	for (unsigned i = 1; i <= STEPS; i++) {
		step();
		if (i % EACH == 0)
			noted("%s, %u steps", kind->name, i);
	}
	end(kind->name);
}

#define POLICY(name) .policy = HUGEPIN_POLICY_##name

static void play_all(const struct kind *kinds, size_t n, const char *recorded)
{
	char *p;

	T_DOMAIN_BEGINS();
	p = mmap(FOREIGN, FOREIGN_BYTES, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (!EXPECT(p == FOREIGN))
		return;
	hold_service();
	for (size_t i = 0; i < n; i++)
		play(&kinds[i], 1 + i);
	EXPECT(hp_span.base >= SPAN && hp_span.base < SPAN + 2 * HP_PAGE);
	for (ends = true; begun;)
		usleep(1000);
	munmap(FOREIGN, FOREIGN_BYTES);
	EXPECT(as_recorded(recorded));
}

TEST(domains_do_what_was_recorded)
{
	static const struct kind kinds[] = {
		{ "lru", { POLICY(LRU) }, { 0 } },
		{ "lru, budget", { POLICY(LRU), .pinned_bytes_max = 3 * MIB }, { 0 } },
		{ "lru, eight", { POLICY(LRU), .pinned_regions_max = 8 }, { 0 } },
		{ "lru, extents to peers", { POLICY(LRU), .reach = HUGEPIN_REACH_EXTENT, .pinned_bytes_max = 8 * MIB },
		  { 0 } },
		{ "lru, short", { POLICY(LRU) }, { .len_max = 65536, .bytes_max = 4 * MIB } },
		{ "lru, whatever is asked", { POLICY(LRU) }, { .flags = HUGEPIN_LIMIT_BOTH } },
		{ "lru, unwatched", { POLICY(LRU), .watch = HUGEPIN_WATCH_NONE }, { 0 } },
		{ "lru, no budget", { POLICY(LRU), .pinned_bytes_max = UINT64_MAX }, { .regs_max = 20 } },
		{ "arena", { POLICY(ARENA) }, { 0 } },
		{ "arena, budget", { POLICY(ARENA), .pinned_bytes_max = 12 * MIB }, { 0 } },
		{ "arena, pieces", { POLICY(ARENA) }, { .len_max = 3 * MIB, .regs_max = 30 } },
		{ "arena, of the opener", { POLICY(ARENA), .fork = HUGEPIN_FORK_COW },
		  { .flags = HUGEPIN_LIMIT_OPENER } },
		{ "arena, to read", { POLICY(ARENA), .access = HUGEPIN_READ | HUGEPIN_RELAXED }, { 0 } },
		{ "none", { POLICY(NONE) }, { 0 } },
		{ "none, budget", { POLICY(NONE), .pinned_bytes_max = MIB }, { 0 } },
		{ "native", { POLICY(ODP), .odp = HUGEPIN_ODP_NATIVE }, { .flags = HUGEPIN_LIMIT_ODP } },
		{ "enhanced", { POLICY(ODP), .odp = HUGEPIN_ODP_ENHANCED }, { .flags = HUGEPIN_LIMIT_ODP } },
		{ "arena, two pages", { POLICY(ARENA), .pinned_bytes_max = 4 * MIB }, { 0 } },
		{ "arena, four pages", { POLICY(ARENA), .pinned_bytes_max = 8 * MIB }, { 0 } },
		{ "optimal", { POLICY(ODP), .odp = HUGEPIN_ODP_OPTIMAL },
		  { .flags = HUGEPIN_LIMIT_ODP, .regs_max = 30 } },
	};

	if (hp_base_page != 4096)
		SKIP("recorded with base pages of 4 KiB");
	play_all(kinds, sizeof kinds / sizeof *kinds, "domains");
}

TEST(helped_domains_do_what_was_recorded)
{
	static const struct kind kinds[] = {
		{ "cf11", { POLICY(CF11), .pinned_bytes_max = UINT64_MAX }, { 0 } },
		{ "cf11, budget", { POLICY(CF11), .pinned_bytes_max = 4 * MIB }, { .regs_max = 20 } },
		{ "predict", { POLICY(PREDICT), .pinned_bytes_max = UINT64_MAX }, { 0 } },
		{ "predict, budget", { POLICY(PREDICT), .pinned_bytes_max = 3 * MIB }, { 0 } },
		{ "predict, of the opener", { POLICY(PREDICT), .pinned_bytes_max = UINT64_MAX },
		  { .flags = HUGEPIN_LIMIT_OPENER } },
		{ "hybrid", { POLICY(HYBRID), .pinned_bytes_max = UINT64_MAX }, { .flags = HUGEPIN_LIMIT_ODP } },
		{ "hybrid, budget", { POLICY(HYBRID), .pinned_bytes_max = 2 * MIB }, { .flags = HUGEPIN_LIMIT_ODP } },
		{ "hybrid, little", { POLICY(HYBRID), .pinned_bytes_max = 300000 },
		  { .flags = HUGEPIN_LIMIT_ODP, .regs_max = 24 } },
	};

	if (hp_base_page != 4096)
		SKIP("recorded with base pages of 4 KiB");
#ifndef __x86_64__
	SKIP("recorded for x86-64, where multiplications and additions are not fused");
#endif
	play_all(kinds, sizeof kinds / sizeof *kinds, "helped");
}

/* ------------------------------------------------------------------ sets of ranges that went away */

/* Of so many pages, at a border of another range more often than not. */
static struct hp_range some_pages(unsigned pages)
{
	static uintptr_t last;
	struct hp_range r = { .start = rnd(2) ? last : rnd(pages) * 4096 };

	r.end = r.start + (1 + rnd(4)) * 4096;
	r.discarded = rnd(2);
	r.late = r.discarded && rnd(2);
	r.widened = rnd(10) == 0;
	last = rnd(2) ? r.end : r.start;
	return r;
}

TEST(sets_of_ranges_are_what_was_recorded)
{
	static struct hp_gone g;
	static struct hp_ranges late;

	T_STAYS(2, "the set of late discards keeps its memory");
	seed = 31;
	for (unsigned i = 1; i <= 4000; i++) {
		hp_gone_push(&g, some_pages(i < 2000 ? 60 : 2000));
		for (unsigned k = 0; k < g.count; k++)
			note("%zx-%zx %d %d %d", (size_t)g.range[k].start, (size_t)g.range[k].end, g.range[k].discarded,
			     g.range[k].late, g.range[k].widened);
		if (rnd(i < 2000 ? 30 : 200) == 0)
			g.count = 0;
		if (i % 1000 == 0)
			noted("%u ranges", i);
	}
	for (unsigned i = 1; i <= 12000; i++) {
		struct hp_range r = some_pages(i < 1000 ? 60 : 400000);

		hp_ranges_reserve(&late);
		if (rnd(i < 1000 ? 2 : i < 9000 ? 40 : 3) || !late.count)
			hp_gone_late_on(&late, r.start, r.end);
		else
			hp_gone_late_off(&late, r.start, r.end);
		note("%zu", late.count);
		for (size_t k = i % 16; k < late.count; k += i < 1000 ? 1 : 97)
			note("%zx-%zx", (size_t)late.at[k].start, (size_t)late.at[k].end);
		if (i % 3000 == 0)
			noted("%u late, %zu left", i, late.count);
	}
	EXPECT(as_recorded("ranges"));
}

T_MAIN
