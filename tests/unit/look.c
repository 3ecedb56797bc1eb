/*
 * What hugepin top makes of a process: of this one, read as if it were another, and of memory that says anything at all.
 */
#include <sched.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "alloc/pages.h"
#include "alloc/small.h"
#include "cmd/look.h"
#include "lend/state.h"
#include "reg/domains.h"
#include "tests/any.h"
#include "tests/device.h"
#include "tests/t.h"

#define PAGE ((uint64_t)(uintptr_t)&hp_exposed)
#define DETAILS 5

/* The command knows these by their numbers alone. */
_Static_assert((int)HP_LOOK_FREE == (int)HP_REGION_FREE && (int)HP_LOOK_LIVE == (int)HP_REGION_LIVE &&
		       (int)HP_LOOK_RETIRED == (int)HP_REGION_RETIRED && (int)HP_LOOK_DEAD == (int)HP_REGION_DEAD &&
		       (int)HP_LOOK_EXTENT == (int)HP_REGION_EXTENT && (int)HP_LOOK_RUN == (int)HP_REGION_RUN &&
		       (int)HP_LOOK_FOREIGN == (int)HP_REGION_FOREIGN && (int)HP_LOOK_UNCACHED == (int)HP_REGION_UNCACHED,
	       "as reg/state.h has them");

static struct device device;
static long reads, reads_max = -1; /* so many succeed; -1: all */

static bool read_self(void *unused, uint64_t addr, void *buf, size_t len)
{
	const struct iovec here = { buf, len }, there = { (void *)(uintptr_t)addr, len };

	(void)unused;
	if (reads_max >= 0 && reads >= reads_max)
		return false;
	reads++;
	return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)len;
}

static const struct hp_source self = { read_self, NULL };

static hugepin_domain *open_as(uint32_t policy, uint64_t bytes_max)
{
	return device_open(&device, (struct hugepin_limits){ 0 },
			   (struct hugepin_attr){ .policy = policy, .pinned_bytes_max = bytes_max });
}

static void touch(hugepin_domain *d, const void *p, size_t len, int times)
{
	struct hugepin_pin pin;

	while (times--) {
		EXPECT_EQ(hugepin_pin(d, p, len, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
}

/* One after the other, the last two. */
static struct hp_look before, now;
static uint64_t clock_ns;

static struct hp_look *look(void)
{
	hp_look_free(&before);
	before = now;
	now = (struct hp_look){ 0 };
	clock_ns += 1000000000;
	EXPECT_EQ(hp_look(&self, PAGE, clock_ns, DETAILS, before.at_ns ? &before : NULL, &now), 0);
	return &now;
}

static void look_away(void)
{
	hp_look_free(&before);
	hp_look_free(&now);
}

/* First, where none was ever opened. */
TEST(without_domains_there_is_the_heap)
{
	struct hugepin_stats s;
	void *p = hugepin_malloc(8 * MIB);

	EXPECT(p);
	EXPECT_EQ(look()->domains, 0);
	EXPECT(now.heap_used && !now.partial);
	EXPECT_EQ(hugepin_stats(&s, sizeof s), sizeof s);
	/* Which of the two the kernel has made it is hugepin_stats() that asks. */
	EXPECT_EQ(s.thp_bytes + s.base_bytes, now.heap.thp_bytes + now.heap.base_bytes);
	s.thp_bytes = now.heap.thp_bytes;
	s.base_bytes = now.heap.base_bytes;
	EXPECT(memcmp(&s, &now.heap, sizeof s) == 0);
	hugepin_free(p);
	look_away();
}

TEST(a_domain_is_seen_as_it_is)
{
	T_DOMAIN_BEGINS();
	hugepin_domain *d = open_as(HUGEPIN_POLICY_LRU, 64 * MIB);
	char *p = map(MIB);
	struct hugepin_pin pin[3];
	struct hugepin_domain_stats s;

	for (int i = 0; i < 3; i++)
		EXPECT_EQ(hugepin_pin(d, p, 8192, 0, &pin[i]), 0);
	touch(d, p + MIB / 2, 4096, 1);
	look();
	EXPECT_EQ(now.domains, 1);
	EXPECT_EQ(now.domain[0].policy, HUGEPIN_POLICY_LRU);
	EXPECT(strcmp(now.domain[0].backend, device_backend.name) == 0);
	EXPECT(!now.domain[0].helper && !now.partial);
	hugepin_domain_stats(d, &s, sizeof s);
	EXPECT(memcmp(&s, &now.domain[0].stats, sizeof s) == 0);
	EXPECT_EQ(now.domain[0].stats.bytes_max, 64 * MIB);
	EXPECT_EQ(now.domain[0].out, 3);
	EXPECT_EQ(now.domain[0].regions, 2);
	if (now.domain[0].regions == 2) {
		const struct hp_look_region *r = now.domain[0].region;

		EXPECT(r[0].start == (uintptr_t)p && r[0].end == (uintptr_t)p + 8192);
		EXPECT_EQ(r[0].out, 3);
		EXPECT_EQ(r[0].state, HP_LOOK_LIVE);
		EXPECT_EQ(r[0].kind, HP_LOOK_FOREIGN);
		EXPECT(!r[0].in_heap && r[0].backing < 0);
		EXPECT(r[1].start == (uintptr_t)p + MIB / 2 && r[1].out == 0);
	}
	EXPECT_EQ(hugepin_unpinv(d, pin, 3), 0);
	EXPECT_EQ(look()->domain[0].out, 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, MIB);
	look_away();
}

TEST(an_extent_is_told_by_its_weakest_page)
{
	hugepin_domain *d = open_as(HUGEPIN_POLICY_ARENA, 0);
	char *p = hugepin_malloc(8 * MIB);
	struct hugepin_extent x;
	struct hp_page *page;
	uint8_t kind;

	touch(d, p, 8 * MIB, 1);
	EXPECT(hugepin_extent(p, &x, sizeof x) > 0);
	look();
	EXPECT_EQ(now.domain[0].regions, 1);
	EXPECT_EQ(now.domain[0].region->kind, HP_LOOK_EXTENT);
	EXPECT(now.domain[0].region->in_heap);
	EXPECT_EQ(now.domain[0].region->backing, x.kind);
	EXPECT_EQ(now.domain[0].region->start, (uintptr_t)x.addr);
	page = &hp_span.page[((uintptr_t)x.addr - hp_span.base) >> HP_PAGE_SHIFT];
	kind = page[1].kind;
	page[0].kind = HUGEPIN_KIND_HUGETLB;
	page[1].kind = HUGEPIN_KIND_BASE;
	EXPECT_EQ(look()->domain[0].region->backing, HUGEPIN_KIND_BASE);
	page[0].kind = page[1].kind = kind;
	EXPECT_EQ(hugepin_domain_close(d), 0);
	hugepin_free(p);
	look_away();
}

/* A heap of small pages, one table entry each. */
TEST(so_is_one_of_many_pages)
{
	enum { PAGES = 600 };
	static uint8_t page[PAGES][2]; /* state, kind */
	hugepin_domain *d = open_as(HUGEPIN_POLICY_LRU, 0);
	char *p = map(PAGES * 4096);
	struct hp_exposed e = hp_exposed;
	static const struct {
		int at;
		uint8_t state, kind;
		int backing;
	} step[] = {
		{ 0, 1, HUGEPIN_KIND_HUGETLB, HUGEPIN_KIND_HUGETLB },
		{ 255, 1, HUGEPIN_KIND_THP, HUGEPIN_KIND_THP },
		{ 256, 0, HUGEPIN_KIND_BASE, HUGEPIN_KIND_THP },
		{ PAGES - 1, 1, HUGEPIN_KIND_BASE, HUGEPIN_KIND_BASE },
	};
	struct hp_look l;

	memset(page, 1, sizeof page);
	for (int i = 0; i < PAGES; i++)
		page[i][1] = HUGEPIN_KIND_HUGETLB;
	touch(d, p, PAGES * 4096, 1);
	e.view.heap = (__typeof__(e.view.heap)){ .base = (uintptr_t)p, .size = PAGES * 4096, .pages = (uintptr_t)page,
						 .page_shift = 12, .stride = 2, .kind = 1, .state_min = 1 };
	for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
		page[step[i].at][0] = step[i].state;
		page[step[i].at][1] = step[i].kind;
		EXPECT_EQ(hp_look(&self, (uintptr_t)&e, 1, DETAILS, NULL, &l), 0);
		EXPECT_EQ(l.domain[0].regions, 1);
		EXPECT_EQ(l.domain[0].region->backing, step[i].backing);
		hp_look_free(&l);
	}
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, PAGES * 4096);
}

struct work {
	hugepin_domain *d;
	char *p;
};

static void *pin_fifty(void *work)
{
	touch(((struct work *)work)->d, ((struct work *)work)->p, 4096, 50);
	return NULL;
}

TEST(pins_of_all_threads_since_the_last_look_are_counted)
{
	T_THREADS_RUN(3);
	hugepin_domain *d = open_as(HUGEPIN_POLICY_LRU, 0);
	struct work work = { d, map(MIB) };
	struct hugepin_domain_stats s;
	pthread_t thread[2];

	touch(d, work.p, 4096, 7);
	look();
	EXPECT_EQ(now.domain[0].pins, 0); /* nothing to compare with */
	EXPECT(hp_look_hit_rate(&now.domain[0]) < 0);
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(pthread_create(&thread[i], NULL, pin_fifty, &work), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	look();
	EXPECT_EQ(now.passed_ns, 1000000000);
	EXPECT_EQ(now.domain[0].pins, 100);
	EXPECT_EQ(now.domain[0].region->pins, 100);
	EXPECT_EQ(now.domain[0].since.misses, 0);
	EXPECT_EQ(now.domain[0].stats.hits, 106);
	EXPECT_EQ(now.domain[0].since.hits, 100);
	EXPECT(hp_look_hit_rate(&now.domain[0]) > 0.9999);
	for (size_t i = 1; i <= 10; i++)
		touch(d, work.p + i * 8192, 4096, 2);
	look();
	EXPECT_EQ(now.domain[0].pins, 20);
	EXPECT_EQ(now.domain[0].since.misses, 10);
	EXPECT(hp_look_hit_rate(&now.domain[0]) > 0.4999 && hp_look_hit_rate(&now.domain[0]) < 0.5001);
	/* Pins that fail are among the misses, not among the pins. */
	now.domain[0].since.misses += 70;
	now.domain[0].since.nobufs += 70;
	EXPECT(hp_look_hit_rate(&now.domain[0]) > 0.4999 && hp_look_hit_rate(&now.domain[0]) < 0.5001);
	/* Pinned, and gone before anyone looked. */
	touch(d, work.p, 4096, 5);
	munmap(work.p, MIB);
	hugepin_forget(work.p, MIB);
	hp_domains_start(); /* which deregisters: a program of one thread has nobody for that until its next pin */
	for (int i = 0; i < 20000 && hugepin_domain_stats(d, &s, sizeof s) && s.regions; i++)
		usleep(1000);
	look();
	EXPECT_EQ(now.domain[0].regions, 0);
	EXPECT_EQ(now.domain[0].pins, 5);
	EXPECT_EQ(now.domain[0].stats.hits, 121);
	EXPECT_EQ(stats_of(d).hits, 121);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	look_away();
}

/* Each pin of new memory ends the registration before it, and the other domain's next one gets its place. */
TEST(pins_are_counted_in_their_domain_wherever_their_registration_was)
{
	hugepin_domain *d[2] = { open_as(HUGEPIN_POLICY_LRU, 4096), open_as(HUGEPIN_POLICY_LRU, 4096) };
	char *p = map(MIB);

	look();
	for (size_t round = 0; round < 6; round++) {
		for (size_t i = 0; i < 5; i++)
			for (int k = 0; k < 2; k++)
				touch(d[k], p + (round * 10 + i * 2 + (size_t)k) * 8192, 4096, k ? 3 : 40);
		look();
		for (unsigned k = 0; k < 2; k++) {
			EXPECT_EQ(now.domain[k].pins, k ? 15 : 200);
			EXPECT_EQ(now.domain[k].since.hits, k ? 10 : 195);
			EXPECT_EQ(now.domain[k].regions, 1);
			EXPECT_EQ(now.domain[k].region->pins, k ? 3 : 40); /* not those of its place */
		}
	}
	for (int k = 0; k < 2; k++)
		EXPECT_EQ(hugepin_domain_close(d[k]), 0);
	munmap(p, MIB);
	look_away();
}

static hugepin_domain *busy;
static char *busy_at;
static long act_at;

static bool read_busy(void *unused, uint64_t addr, void *buf, size_t len)
{
	if (reads == act_at) {
		touch(busy, busy_at, 4096, 1); /* ends the registration that has most hits */
		touch(busy, busy_at + 8192, 4096, 4);
	}
	return read_self(unused, addr, buf, len);
}

TEST(hits_are_not_lost_between_a_registration_that_ends_and_its_domain)
{
	static const struct hp_source source = { read_busy, NULL };
	struct hp_look a, b, c;
	char *p = map(MIB);
	bool acted = true;

	busy = open_as(HUGEPIN_POLICY_LRU, 4096);
	for (act_at = 0; acted; act_at++) {
		busy_at = p + act_at % 8 * 16384;
		touch(busy, p + MIB / 2, 4096, 1000);
		EXPECT_EQ(hp_look(&self, PAGE, 1, DETAILS, NULL, &a), 0);
		reads = 0;
		EXPECT_EQ(hp_look(&source, PAGE, 2, DETAILS, &a, &b), 0);
		acted = reads > act_at;
		EXPECT(b.domain[0].pins == 5 || b.domain[0].pins == 0);
		EXPECT_EQ(hp_look(&self, PAGE, 3, DETAILS, &b, &c), 0);
		EXPECT_EQ(b.domain[0].pins + c.domain[0].pins, acted ? 5 : 0);
		hp_look_free(&a);
		hp_look_free(&b);
		hp_look_free(&c);
	}
	EXPECT(act_at > 10);
	EXPECT_EQ(hugepin_domain_close(busy), 0);
	munmap(p, MIB);
}

TEST(a_domain_that_was_closed_and_opened_begins_anew)
{
	hugepin_domain *d = open_as(HUGEPIN_POLICY_LRU, 0);
	char *p = map(MIB);

	touch(d, p, 4096, 1);
	touch(d, p + MIB / 2, 4096, 1);
	look();
	EXPECT_EQ(hugepin_domain_close(d), 0);
	EXPECT_EQ(look()->domains, 0);
	d = open_as(HUGEPIN_POLICY_NONE, 0);
	touch(d, p, 4096, 1);
	look();
	EXPECT_EQ(now.domain[0].policy, HUGEPIN_POLICY_NONE);
	EXPECT_EQ(now.domain[0].since.registered, 1);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	d = open_as(HUGEPIN_POLICY_LRU, 0);
	touch(d, p, 4096, 1);
	touch(d, p + MIB / 2, 4096, 1);
	look();
	EXPECT_EQ(now.domain[0].since.registered, 2); /* not 1 more than the one before had */
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, MIB);
	look_away();
}

/* The helper has learnt where the first n regions were pinned. */
static bool are_known(unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (i == now.domain[0].regions || !now.domain[0].region[i].site)
			return false;
	return true;
}

static void look_until_known(unsigned n)
{
	for (look(); !are_known(n); look()) {
		look_away();
		sched_yield();
	}
}

__attribute__((noinline)) static void call_from_here(hugepin_domain *d, char *p, struct hugepin_pin *ret_,
						      uintptr_t *ret_return_address)
{
	*ret_return_address = (uintptr_t)call_from_here;
	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, ret_), 0);
}

TEST(with_a_helper_the_call_site_is_known)
{
	hugepin_domain *d = open_as(HUGEPIN_POLICY_PREDICT, 0);
	char *p = map(MIB);
	struct hugepin_pin pin;
	uintptr_t at = 0;
	uint32_t offset;

	call_from_here(d, p, &pin, &at); /* the helper leaves it alone while it is pinned */
	look_until_known(1);
	EXPECT(now.domain[0].helper != 0);
	EXPECT_EQ(now.domain[0].regions, 1);
	offset = (uint32_t)now.domain[0].region->site - (uint32_t)at;
	if (!EXPECT(offset < 512))
		T_FAIL("site %#lx, function at %#lx", (unsigned long)now.domain[0].region->site, (unsigned long)at);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, MIB);
	look_away();
}

TEST(the_largest_come_first_and_are_looked_at_closely)
{
	enum { N = 12, LARGEST = 7 };
	hugepin_domain *d = open_as(HUGEPIN_POLICY_PREDICT, 0);
	char *p = map(MIB);
	struct hugepin_pin pin[N];
	unsigned known = 0;

	for (size_t i = 0; i < N; i++)
		EXPECT_EQ(hugepin_pin(d, p + i * 65536, i == LARGEST ? 8192 : 4096, 0, &pin[i]), 0);
	look_until_known(DETAILS);
	EXPECT_EQ(now.domain[0].regions, N);
	EXPECT_EQ(now.domain[0].out, N);
	EXPECT_EQ(now.domain[0].region->start, (uintptr_t)p + LARGEST * 65536);
	for (uint32_t i = 0; i < now.domain[0].regions; i++) {
		EXPECT((now.domain[0].region[i].site != 0) == (i < DETAILS));
		known += now.domain[0].region[i].out;
	}
	EXPECT_EQ(known, N);
	EXPECT_EQ(hugepin_unpinv(d, pin, N), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, MIB);
	look_away();
}

/* ------------------------------------------------------------------ what is not to be trusted */

TEST(a_process_may_vanish_at_any_read)
{
	hugepin_domain *d = open_as(HUGEPIN_POLICY_PREDICT, 0);
	char *p = map(MIB);
	struct hp_look l;
	long all;

	touch(d, p, 4096, 1);
	reads = 0;
	EXPECT_EQ(hp_look(&self, PAGE, 1, DETAILS, NULL, &l), 0);
	hp_look_free(&l);
	all = reads;
	EXPECT(all > 10);
	for (reads_max = 0; reads_max < all; reads_max++) {
		reads = 0;
		EXPECT_EQ(hp_look(&self, PAGE, 1, DETAILS, NULL, &l), reads_max ? 0 : -ESRCH);
		if (reads_max)
			hp_look_free(&l);
	}
	reads_max = -1;
	EXPECT_EQ(hugepin_domain_close(d), 0);
	munmap(p, MIB);
}

/* A page of which a part is another. */
static int look_at(struct hp_exposed *e)
{
	struct hp_look l;
	int status = hp_look(&self, (uintptr_t)e, 1, DETAILS, NULL, &l);

	if (!status)
		hp_look_free(&l);
	return status;
}

TEST(another_version_is_not_looked_into)
{
	static struct hp_exposed e;

	EXPECT_EQ(look_at(&e), -ESRCH);
	e.page.magic = HUGEPIN_STATS_MAGIC; /* from before there was a description */
	EXPECT_EQ(look_at(&e), -EPROTO);
	e = hp_exposed;
	EXPECT_EQ(look_at(&e), 0);
	e.view.version++;
	EXPECT_EQ(look_at(&e), -EPROTO);
	e = hp_exposed;
	e.view.size -= 8;
	EXPECT_EQ(look_at(&e), -EPROTO);
	e = hp_exposed;
	e.view.region.stride = 1 << 20;
	EXPECT_EQ(look_at(&e), -EPROTO);
	e = hp_exposed;
	e.view.domain.size = 65537;
	EXPECT_EQ(look_at(&e), -EPROTO);
	e = hp_exposed;
	e.view.heap.kind = e.view.heap.stride;
	EXPECT_EQ(look_at(&e), -EPROTO);
}

TEST(a_heap_that_is_being_described_is_none_yet)
{
	struct hp_exposed e = hp_exposed;

	e.view.heap.stride = e.view.heap.state = e.view.heap.kind = e.view.heap.state_min = 0;
	EXPECT_EQ(look_at(&e), 0);
}

TEST(addresses_that_the_heap_gave_up_are_not_its)
{
	const size_t reserved = hp_span.reserved;

	hugepin_span_limit_(64 * MIB);
	EXPECT(hp_span.reserved < reserved);
	EXPECT_EQ(look()->view.heap.size, hp_span.reserved);
	look_away();
}

TEST(a_list_without_an_end_is_left)
{
	static struct {
		uint64_t next;
		uint64_t counts[64];
	} owner;
	static uint64_t first;
	struct hp_exposed e = hp_exposed;
	struct hp_look l;

	owner.next = first = (uintptr_t)&owner;
	e.view.counts = (__typeof__(e.view.counts)){ .first = (uintptr_t)&first, .counts = 8, .stride = 8, .unpins = 4 };
	EXPECT_EQ(hp_look(&self, (uintptr_t)&e, 1, DETAILS, NULL, &l), 0);
	EXPECT(l.partial);
	hp_look_free(&l);
}

/* What the numbers of a description say may be anything, and so may what they lead to. */
static _Alignas(HP_STATS_PAGE) unsigned char noise[1 << 16];

static bool read_noise(void *budget, uint64_t addr, void *buf, size_t len)
{
	if (len > sizeof noise / 2 || (*(long *)budget)-- <= 0)
		return false;
	memcpy(buf, noise + addr % (sizeof noise / 2), len);
	return true;
}

TEST(noise_is_looked_at_without_harm)
{
	for (size_t i = 0; i < sizeof noise; i++)
		noise[i] = (unsigned char)(any(3) ? any(4) : any(256));
	for (int round = 0; round < 500; round++) {
		long budget = 1000;
		const struct hp_source source = { read_noise, &budget };
		struct hp_exposed *e = (struct hp_exposed *)noise;
		struct hp_look a, b;

		e->page.magic = HUGEPIN_STATS_MAGIC;
		e->view = hp_exposed.view;
		for (int n = 1 + (int)any(4); n--;)
			((uint32_t *)&e->view)[4 + any(sizeof e->view / 4 - 4)] = (uint32_t)any(any(2) ? 70 : 1u << 31);
		if (hp_look(&source, sizeof noise / 2, 1, DETAILS, NULL, &a))
			continue;
		EXPECT(a.domains <= HP_LOOK_DOMAINS && a.used <= HP_REGIONS_MAX);
		budget = 1000;
		if (!hp_look(&source, sizeof noise / 2, 2, DETAILS, &a, &b)) {
			for (unsigned i = 0; i < b.domains; i++)
				EXPECT(memchr(b.domain[i].backend, 0, sizeof b.domain[i].backend));
			hp_look_free(&b);
		}
		hp_look_free(&a);
	}
}

/* Open domains of a process that has more than are read, or shown: their stats alone are something. */
enum { PLENTY = HP_LOOK_DOMAINS + 300 };
static struct {
	uint64_t ref;
	struct hugepin_domain_stats stats;
} plenty[PLENTY];
static uint64_t plenty_of[2 * PLENTY]; /* every other place is of a closed domain */
static uint8_t plenty_open[2 * PLENTY];
static uint32_t plenty_used = 2 * PLENTY;

TEST(of_very_many_domains_some_are_read_fewer_are_shown_and_all_are_counted)
{
	struct hp_exposed e = hp_exposed;
	struct hp_look l, next;
	unsigned shown = 0;

	for (unsigned i = 0; i < PLENTY; i++) {
		plenty_of[2 * i + 1] = (uintptr_t)&plenty[i];
		plenty_open[2 * i + 1] = 1;
		plenty[i].ref = i + 1;
		plenty[i].stats.pinned_bytes = i % 100 * 4096;
	}
	e.page.magic = HUGEPIN_STATS_MAGIC;
	memset(&e.view.lend, 0, sizeof e.view.lend);
	e.view.domain = (__typeof__(e.view.domain)){ .domains = (uintptr_t)plenty_of,
						     .open = (uintptr_t)plenty_open,
						     .used = (uintptr_t)&plenty_used,
						     .size = sizeof plenty[0],
						     .stats = offsetof(__typeof__(plenty[0]), stats),
						     .stats_size = sizeof plenty[0].stats };
	e.view.domain.policy = e.view.domain.helper = e.view.domain.backend_name = sizeof plenty[0];
	EXPECT_EQ(hp_look(&self, (uintptr_t)&e, 1, DETAILS, NULL, &l), 0);
	EXPECT_EQ(l.domains, HP_LOOK_DOMAINS);
	EXPECT_EQ(l.domains_more, 300);
	for (unsigned i = 0; i < l.domains; i++) {
		EXPECT_EQ(l.domain[i].number, 2 * i + 1);
		EXPECT_EQ(l.domain[i].stats.pinned_bytes, i % 100 * 4096);
		EXPECT(!l.domain[i].shown || i % 100 >= 98); /* those with most */
		shown += l.domain[i].shown;
	}
	EXPECT_EQ(shown, HP_LOOK_SHOWN);
	plenty[5].stats.misses = 7;
	plenty_open[1] = 0; /* so that one comes in at the end, of which there was no look before */
	plenty[HP_LOOK_DOMAINS].stats.misses = 9;
	EXPECT_EQ(hp_look(&self, (uintptr_t)&e, 2, DETAILS, &l, &next), 0);
	EXPECT_EQ(next.domains_more, 299);
	EXPECT_EQ(next.domain[4].since.misses, 7);
	EXPECT_EQ(next.domain[HP_LOOK_DOMAINS - 1].since.misses, 9);
	hp_look_free(&l);
	hp_look_free(&next);
}

static int no_send(void *arg, uint32_t peer, const void *msg, size_t len)
{
	(void)arg, (void)peer, (void)msg, (void)len;
	return 0;
}

static void no_ready(void *arg, void *token, int err, const struct hugepin_far *key)
{
	(void)arg, (void)token, (void)err, (void)key;
}

static int no_offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	(void)arg, (void)peer, (void)addr, (void)len, (void)ret_buffer;
	return -EACCES;
}

TEST(peers_with_most_bytes_are_seen_first)
{
	enum { PEERS = 12, HAVE = 11 };
	struct hugepin_lend_attr attr = { .size = sizeof attr,
					  .peers = PEERS,
					  .send = no_send,
					  .ready = no_ready,
					  .offer = no_offer };
	hugepin_domain *d = open_as(HUGEPIN_POLICY_LRU, 64 * MIB);
	const struct hp_look_domain *seen;
	hugepin_lend *l = NULL;

	EXPECT(!look()->domain[0].lends);
	EXPECT_EQ(hugepin_lend_open(d, &attr, NULL, &l), 0);
	for (uint32_t i = 0; i < HAVE; i++) {
		l->peer[i].stats.lent = i % 2;
		l->peer[i].stats.borrowed = !(i % 2);
		l->peer[i].stats.lent_bytes = (i * 5 % HAVE + 1) * MIB;
	}
	l->lender.idle = 12345;
	seen = &look()->domain[0];
	EXPECT(seen->lends && seen->idle == 12345 && seen->lent == 0);
	EXPECT(seen->peers == HAVE && seen->peers_shown == HP_LOOK_PEERS);
	for (uint32_t i = 0; i < HP_LOOK_PEERS; i++) {
		EXPECT_EQ(seen->peer[i].stats.lent_bytes, (HAVE - i) * MIB);
		EXPECT_EQ(seen->peer[i].stats.lent_bytes, l->peer[seen->peer[i].number].stats.lent_bytes);
	}
	l->lender.idle = 0;
	EXPECT_EQ(hugepin_lend_close(l), 0);
	EXPECT(!look()->domain[0].lends);
	look_away();
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

T_MAIN
