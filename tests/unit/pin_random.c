/*
 * Random pins, unpins, mappings, allocations and forks under each policy, compared with a naive list of pins.
 */
#include <stdlib.h>
#include <sys/syscall.h>

#include "base/base.h"
#include "reg/domain.h"
#include "reg/uffd.h"

#define DEVICE_PAGE hp_base_page
#include "tests/unit/child.h"
#include "tests/unit/pin.h"

/* The naive model: the pins, the live buffers of the heap, and for how much of the memory a key is good. */
#define PAGE hp_base_page
enum { PAGES = 64, PINS = 40, BUFFERS = 6, STEPS = 30000 };

static void note_gone(uintptr_t start, uintptr_t end)
{
	for (int k = 1; k < DEVICE_REGS; k++)
		if (device.reg[k].live && device.reg[k].addr < end && device.reg[k].addr + device.reg[k].len > start)
			device.reg[k].stale = true;
}

/* Replace the page by another page, in one of four ways. */
static void replace_page(void *page)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	void *elsewhere;

	switch (random() % 4) {
	case 0:
		madvise(page, PAGE, MADV_DONTNEED);
		break;
	case 1:
		syscall(SYS_munmap, page, PAGE);
		EXPECT(mmap(page, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == page);
		break;
	case 2:
		EXPECT(mmap(page, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == page);
		break;
	default:
		elsewhere = map(PAGE);
		EXPECT(mremap(page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere);
		EXPECT(mmap(page, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == page);
		munmap(elsewhere, PAGE);
	}
}

/* The child has no part in the domain. The page that the child discards is its own. */
static void fork_and_look(hugepin_domain *d, void *p)
{
	struct hugepin_pin pin;
	int status = 1;
	pid_t pid = fork();

	if (pid == 0) {
		madvise(p, PAGE, MADV_DONTNEED);
		_exit(hugepin_pin(d, p, PAGE, 0, &pin) != -ESTALE);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
}

/* A pin for a peer opens its own pages with its own access; others give no peer anything. */
static bool opens_its_pages(const struct hugepin_pin *pin, unsigned access)
{
	const __typeof__(device.reg[0]) *r = &device.reg[pin->lkey];

	if (access & (HUGEPIN_READ | HUGEPIN_WRITE))
		return !(r->access & (HUGEPIN_REMOTE_READ | HUGEPIN_REMOTE_WRITE));
	return r->access == access && r->addr == (pin->base & -(uintptr_t)PAGE) &&
	       r->addr + r->len == hp_round_up(pin->base + pin->len, PAGE);
}

static void random_steps(uint32_t policy, uint32_t reach, unsigned seed)
{
	struct {
		struct hugepin_pin pin;
		unsigned access;
		int buffer; /* of the heap; -1: foreign */
	} out[PINS] = { 0 };
	struct {
		char *p;
		size_t size;
		int pins;
	} buffers[BUFFERS] = { 0 };
	hugepin_domain *d;
	char *all = map((PAGES + 1) * PAGE), *p = (char *)hp_round_up((uintptr_t)all, PAGE);

	device_reset(&device);
	d = open_with((struct hugepin_attr){
		.policy = policy, .reach = reach, .pinned_bytes_max = 6 * MIB, .pinned_regions_max = 20,
		/* only real base pages, of which mappings consist */
		.round_max = seed & 1 && PAGE == 4096 ? 8 * PAGE : 0 });
	srandom(seed);
	for (int step = 0; step < STEPS && t_failures < 5; step++) {
		size_t at = (size_t)random() % (PAGES * PAGE);
		size_t len = 1 + (size_t)random() % HP_MIN(8 * PAGE, PAGES * PAGE - at);
		unsigned access = 1u << random() % 4;
		int i = (int)(random() % PINS), b = (int)(random() % BUFFERS), what = (int)(random() % 1000), e;

		if (out[i].pin.ref) {
			EXPECT(device_covers(&device, &out[i].pin, out[i].access));
			device.reg[out[i].pin.lkey].uses--;
			EXPECT_EQ(hugepin_unpin(d, &out[i].pin), 0);
			if (out[i].buffer >= 0)
				buffers[out[i].buffer].pins--;
		} else if (what < 850) {
			const char *from = p + at;

			out[i].buffer = -1;
			if (what < 300 && buffers[b].p) {
				out[i].buffer = b;
				at = (size_t)random() % buffers[b].size;
				len = 1 + (size_t)random() % (buffers[b].size - at);
				from = buffers[b].p + at;
			}
			e = hugepin_pin(d, from, len, access, &out[i].pin);
			EXPECT(e == 0 || e == -ENOBUFS);
			if (e)
				continue;
			out[i].access = access;
			EXPECT(device_covers(&device, &out[i].pin, access));
			EXPECT_EQ(out[i].pin.len, len);
			EXPECT(!device.reg[out[i].pin.lkey].stale);
			EXPECT(reach == HUGEPIN_REACH_EXTENT || opens_its_pages(&out[i].pin, access));
			device.reg[out[i].pin.lkey].uses++;
			if (out[i].buffer >= 0)
				buffers[b].pins++;
		} else if (what < 900) {
			/* The helper may register it again as soon as it is forgotten. */
			hp_domain_lock(d);
			note_gone((uintptr_t)p + at, (uintptr_t)p + at + len);
			hp_domain_unlock(d);
			EXPECT(hugepin_forget(p + at, len) <= 0);
		} else if (what < 950) {
			if (!hp_uffd_works())
				continue;
			at &= ~(PAGE - 1);
			hp_domain_lock(d);
			replace_page(p + at);
			note_gone((uintptr_t)p + at, (uintptr_t)p + at + PAGE);
			hp_domain_unlock(d);
		} else if (what < 990) {
			if (buffers[b].p && buffers[b].pins == 0) {
				hugepin_free(buffers[b].p);
				buffers[b].p = NULL;
			} else if (!buffers[b].p) {
				buffers[b].size = 32 * KIB + (size_t)random() % (2 * MIB);
				buffers[b].p = hugepin_malloc(buffers[b].size);
			}
		} else if (what < 998) {
			hugepin_purge();
		} else {
			fork_and_look(d, p);
		}
		hp_domain_lock(d); /* the service thread may be deregistering what was forgotten */
		EXPECT(device.bytes <= 6 * MIB && device.regs <= 20);
		EXPECT_EQ(stats_of(d).pinned_bytes, device.bytes);
		hp_domain_unlock(d);
	}
	for (int i = 0; i < PINS; i++)
		if (out[i].pin.ref) {
			device.reg[out[i].pin.lkey].uses--;
			EXPECT_EQ(hugepin_unpin(d, &out[i].pin), 0);
		}
	for (int b = 0; b < BUFFERS; b++)
		hugepin_free(buffers[b].p);
	munmap(all, (PAGES + 1) * PAGE);
	close_empty(&device, d);
	hugepin_purge();
}

/* As if base pages had 64 KiB: what is registered consists of whole ones, also of the heap's memory. */
static void with_larger(void)
{
	hp_base_page = 65536;
	random_steps(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXTENT, 12);
	random_steps(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXACT, 13);
	random_steps(HUGEPIN_POLICY_ARENA, HUGEPIN_REACH_EXACT, 14);
	random_steps(HUGEPIN_POLICY_CF11, HUGEPIN_REACH_EXACT, 15);
}

/* The first of all, and in a process of its own: nothing may be mapped for another size. */
TEST_CASE(with_larger_base_pages_they_are_registered_as_wholes, in_child(with_larger))

TEST(random_use_agrees_with_a_list)
{
	T_DOMAIN_BEGINS();
	for (unsigned seed = 1; seed <= 3; seed++)
		random_steps(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXTENT, seed);
	random_steps(HUGEPIN_POLICY_NONE, HUGEPIN_REACH_EXACT, 4);
	random_steps(HUGEPIN_POLICY_ARENA, HUGEPIN_REACH_EXTENT, 5);
	random_steps(HUGEPIN_POLICY_CF11, HUGEPIN_REACH_EXTENT, 6);
	random_steps(HUGEPIN_POLICY_PREDICT, HUGEPIN_REACH_EXTENT, 7);
}

TEST(random_use_opens_to_peers_what_was_pinned_for_them)
{
	random_steps(HUGEPIN_POLICY_LRU, HUGEPIN_REACH_EXACT, 8);
	random_steps(HUGEPIN_POLICY_ARENA, HUGEPIN_REACH_EXACT, 9);
	random_steps(HUGEPIN_POLICY_CF11, HUGEPIN_REACH_EXACT, 10);
	random_steps(HUGEPIN_POLICY_PREDICT, HUGEPIN_REACH_EXACT, 11);
}

T_MAIN
