/*
 * Lookups in the pin cache on a fake device: what is registered is found as far as it reaches and kept as a pin keeps it, and
 * nothing is registered.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "reg/counts.h"
#include "reg/region.h"
#include "reg/serve.h"
#include "reg/helper.h"
#include "reg/uffd.h"
#include "tests/device.h"
#include "tests/t.h"

static struct device device;

static hugepin_domain *open_as(uint32_t policy)
{
	return device_open(&device, (struct hugepin_limits){ 0 }, (struct hugepin_attr){ .policy = policy });
}

static int touch(hugepin_domain *d, const void *p, size_t len, unsigned access)
{
	struct hugepin_pin pin;
	int e = hugepin_pin(d, p, len, access, &pin);

	return e ? e : hugepin_unpin(d, &pin);
}

/* Look p up, and give it back. */
static int find(hugepin_domain *d, const void *p, size_t len)
{
	struct hugepin_pin pin;
	long calls = device.calls;
	int e = hugepin_sg_key(d, p, len, 0, &pin);

	EXPECT_EQ(device.calls, calls);
	if (e)
		return e;
	EXPECT(device_covers(&device, &pin, HUGEPIN_READ | HUGEPIN_WRITE));
	EXPECT(pin.base == device.reg[pin.lkey].addr && pin.len == device.reg[pin.lkey].len);
	EXPECT((uintptr_t)p >= pin.base && (uintptr_t)p - pin.base < pin.len);
	EXPECT_EQ(hugepin_sg_key(d, NULL, 0, 0, &pin), 0);
	EXPECT_EQ(pin.ref, 0);
	return 0;
}

PIN_TEST(what_is_registered_is_found_as_far_as_it_reaches, open_as(HUGEPIN_POLICY_LRU), 8 * MIB)
{
	char *hugepage = (char *)hp_round_up((uintptr_t)p, HP_PAGE);

	EXPECT_EQ(find(d, p, 1), -ENOKEY);
	EXPECT_EQ(touch(d, p + 5 * KIB, 20 * KIB, 0), 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(find(d, p + 4 * KIB, 1), 0);
		EXPECT_EQ(find(d, p + 28 * KIB - 1, 1), 0);
		EXPECT_EQ(find(d, p + 10000, MIB), 0);
		EXPECT_EQ(find(d, p + 4 * KIB - 1, MIB), -ENOKEY);
		EXPECT_EQ(find(d, p + 28 * KIB, 1), -ENOKEY);
	}
	EXPECT_EQ(touch(d, hugepage, 2 * HP_PAGE, 0), 0);
	for (size_t at = 0; at < 2 * HP_PAGE; at += 77777)
		EXPECT_EQ(find(d, hugepage + at, 5), 0);
	EXPECT_EQ(stats_of(d).misses, 2);
}

TEST(so_is_the_heaps_memory)
{
	for (uint32_t policy = HUGEPIN_POLICY_ARENA; policy <= HUGEPIN_POLICY_LRU; policy++) {
		hugepin_domain *d = open_as(policy);
		char *h = hugepin_malloc(3 * MIB);

		EXPECT_EQ(touch(d, h, 3 * MIB, 0), 0);
		for (size_t at = 0; at < 3 * MIB; at += 77777)
			EXPECT_EQ(find(d, h + at, 5), 0);
		hugepin_free(h);
		close_empty(&device, d);
	}
}

DOMAIN_TEST(bad_ranges_and_access_are_refused_and_change_nothing, open_as(HUGEPIN_POLICY_LRU))
{
	struct hugepin_pin pin, before;
	char *heap = hugepin_malloc(MIB), *foreign = map(MIB);

	memset(&pin, 0x5a, sizeof pin);
	before = pin;
	errno = 77;
	for (int i = 0; i < 2; i++) {
		char *p = i ? heap : foreign;

		EXPECT_EQ(touch(d, p, 64 * KIB, HUGEPIN_READ), 0);
		EXPECT_EQ(hugepin_sg_key(d, p, 0, HUGEPIN_READ, &pin), -EINVAL);
		EXPECT_EQ(hugepin_sg_key(d, p, SIZE_MAX, HUGEPIN_READ, &pin), -EINVAL);
		EXPECT_EQ(hugepin_sg_key(d, p, (size_t)0 - (uintptr_t)p, HUGEPIN_READ, &pin), -EINVAL);
		EXPECT_EQ(hugepin_sg_key(d, p, 1, 1024, &pin), -EINVAL);
		EXPECT_EQ(hugepin_sg_key(d, p, 1, HUGEPIN_PIN_UNCACHED, &pin), -EINVAL);
		EXPECT_EQ(hugepin_sg_key(d, p, 1, HUGEPIN_REMOTE_ATOMIC, &pin), -EOPNOTSUPP);
		EXPECT_EQ(hugepin_sg_key(d, p, 1, HUGEPIN_READ | HUGEPIN_REMOTE_READ, &pin), -ENOKEY);
		EXPECT(memcmp(&pin, &before, sizeof pin) == 0);
		EXPECT_EQ(errno, 77);
		EXPECT_EQ(hugepin_sg_key(d, p, 1, HUGEPIN_READ | HUGEPIN_RELAXED, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		pin = before;
	}
	hugepin_free(heap);
	munmap(foreign, MIB);
}

PIN_TEST(what_was_found_stays_until_it_is_given_back, open_as(HUGEPIN_POLICY_LRU), MIB)
{
	struct hugepin_pin pin;
	uint32_t key;

	EXPECT_EQ(touch(d, p, 64 * KIB, 0), 0);
	EXPECT_EQ(hugepin_sg_key(d, p + 100, 10, 0, &pin), 0);
	key = pin.lkey;
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(hugepin_forget(p, 1), -EBUSY);
	EXPECT(device.reg[key].live);
	EXPECT_EQ(find(d, p + 100, 10), -ENOKEY); /* but nobody finds it again */
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	EXPECT(!device.reg[key].live);
	EXPECT_EQ(hugepin_sg_key(d, NULL, 0, 0, &pin), -EINVAL);
}

TEST(memory_that_went_away_is_not_found)
{
	hugepin_domain *d = open_as(HUGEPIN_POLICY_LRU);
	char *p = map(MIB), *h = hugepin_malloc(8 * MIB);

	if (!hp_uffd_works()) {
		EXPECT_EQ(hugepin_domain_close(d), 0);
		SKIP("no userfaultfd");
	}
	for (int i = 0; i < 50; i++) {
		EXPECT_EQ(touch(d, p, 4 * 4096, 0), 0);
		syscall(SYS_munmap, p + 4096, 4096);
		EXPECT(mmap(p + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + 4096);
		EXPECT_EQ(find(d, p, 4096), -ENOKEY);
	}
	EXPECT_EQ(touch(d, h, 8 * MIB, 0), 0);
	EXPECT_EQ(find(d, h + 4 * MIB, 100), 0);
	hugepin_free(h);
	hugepin_purge();
	EXPECT_EQ(find(d, h + 4 * MIB, 100), -ENOKEY);
	munmap(p, MIB);
	close_empty(&device, d);
}

static void *other_thread(void *d)
{
	char *p = (char *)device.reg[1].addr;

	EXPECT_EQ(find(d, p, 4096), 0);
	EXPECT_EQ(find(d, p - 4096, 4096), -ENOKEY);
	EXPECT_EQ(hugepin_forget(p, 4096), 0);
	EXPECT_EQ(find(d, p, 4096), -ENOKEY);
	EXPECT_EQ(device.regs, 1); /* that is the opener's to do */
	return NULL;
}

TEST(every_thread_may_look_up_in_a_domain_that_only_its_opener_may_use)
{
	T_THREADS_RUN(2);
	hugepin_domain *d = device_open(&device, (struct hugepin_limits){ .flags = HUGEPIN_LIMIT_OPENER },
					(struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU });
	pthread_t t;
	char *p = map(MIB);

	EXPECT_EQ(touch(d, p + 8192, 4096, 0), 0);
	pthread_create(&t, NULL, other_thread, d);
	pthread_join(t, NULL);
	EXPECT_EQ(find(d, p + 8192, 4096), -ENOKEY);
	EXPECT_EQ(device.regs, 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

PIN_TEST(uncached_pins_are_for_themselves_alone, open_as(HUGEPIN_POLICY_NONE), MIB)
{
	struct hugepin_pin pin;

	EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0);
	EXPECT_EQ(find(d, p, 4096), -ENOKEY);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
}

TEST(a_child_finds_nothing_of_its_parents)
{
	hugepin_domain *d = open_as(HUGEPIN_POLICY_LRU);
	struct hugepin_pin pin;
	char *p = map(MIB), *h = hugepin_malloc(MIB);
	int status;
	pid_t pid;

	EXPECT_EQ(touch(d, h, 4096, 0), 0);
	EXPECT_EQ(touch(d, p, 4096, 0), 0);
	EXPECT_EQ(hugepin_sg_key(d, p, 1, 0, &pin), 0);
	pid = fork();
	if (pid == 0) {
		EXPECT_EQ(find(d, p, 1), -ESTALE);
		EXPECT_EQ(find(d, h, 1), -ESTALE);
		EXPECT_EQ(hugepin_sg_key(d, NULL, 0, 0, &pin), -EINVAL);
		_exit(t_failures != 0);
	}
	EXPECT(pid > 0);
	waitpid(pid, &status, 0);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	munmap(p, MIB);
	hugepin_free(h);
	close_empty(&device, d);
}

/* ------------------------------------------------------------------ what the helper hears */

static bool never(void)
{
	return false;
}

/* The latest record of this thread. */
static struct hp_record told(void)
{
	struct hp_records *q = hp_counts_records(hp_counts_self);

	return q->record[(q->head - 1) % HP_RECORDS_MAX];
}

TEST(the_helper_is_told_of_a_first_use)
{
	char *memory[2] = { map(MIB), hugepin_aligned_alloc(HP_PAGE, HP_PAGE) };

	hp_serve_helper_job.run = never;
	for (int i = 0; i < 2; i++) {
		hugepin_domain *d = open_as(HUGEPIN_POLICY_PREDICT);
		struct iovec piece = { memory[i], 100 };
		struct hugepin_sge sge;
		struct hugepin_pin pin;
		struct hp_region *r;
		uint32_t head;

		EXPECT_EQ(touch(d, memory[i], MIB, 0), 0);
		head = hp_counts_records(hp_counts_self)->head;
		hp_lock(&d->lock);
		r = hp_region_find(d, (uintptr_t)memory[i], 0);
		hp_region_clear_used(d, r);
		hp_unlock(&d->lock);
		EXPECT_EQ(hugepin_sg_map(&piece, 1, 0, hugepin_sg_key, d, &sge, 1, &pin, 1, NULL), 1);
		EXPECT_EQ(hp_counts_records(hp_counts_self)->head, head + 1);
		EXPECT_EQ(HP_RECORD_KIND(told().subject), HP_RECORD_START);
		EXPECT_EQ(HP_RECORD_VALUE(told().subject), (uint64_t)(r - hp_regions));
		EXPECT_EQ(told().site, 0);
		/* Not again before it has looked. */
		EXPECT_EQ(find(d, memory[i], 1), 0);
		EXPECT_EQ(HP_RECORD_KIND(told().subject), HP_RECORD_END);
		EXPECT_EQ(hp_counts_records(hp_counts_self)->head, head + 2);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
		EXPECT_EQ(HP_RECORD_KIND(told().subject), HP_RECORD_END);
		close_empty(&device, d);
	}
	munmap(memory[0], MIB);
	hugepin_free(memory[1]);
}

T_MAIN
