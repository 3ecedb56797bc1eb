/* A userfaultfd on a kernel of the test's own: this counts the questions, and answers as the test says. */
#ifndef TESTS_UNIT_UFFD_H
#define TESTS_UNIT_UFFD_H

#include "reg/uffd.h"

#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "base/config.h"
#include "reg/domain.h"
#include "tests/device.h"
#include "tests/t.h"
#include "tests/unit/child.h"
#include "tests/unit/kernel.h"

static struct device device;
static _Atomic long questions, opened, lists; /* lists: reads of the list of mappings */
static _Atomic int answer; /* errno of the next questions; 0: the kernel's */
static _Atomic long answers_left; /* of those; then the kernel's */
static bool is_flag; /* before Linux 5.15 the count falls to 0 with the first event that is read */
static bool no_userfaultfd; /* the kernel has none */
static bool no_query; /* before 6.11 the kernel does not tell of one mapping */
static _Atomic bool lowered;
static int opener; /* the thread whose calls are counted; 0: none are */
static long calls, refused; /* those; which one the kernel refuses, but what ends something; 0: none */
static uint64_t fake_ns; /* a clock that goes on with each question */
static long yields; /* of that thread */
static hugepin_domain *seen_reading; /* whose attention is looked at when events are read */
static _Atomic int reads, busy_reads;
static _Atomic int reader_held_by; /* the thread whose wait lets the watcher go on after a read; 0: it is not held */

static struct uffdio_range added[64]; /* to what is watched */
static unsigned adds;
static uint64_t add_max = UINT64_MAX; /* the kernel refuses to watch more bytes at once */
/* Once: what another thread does before the next range is added, and after it. */
static void (*before_adding)(void), (*after_adding)(void);
static const char *mappings_max; /* what /proc/sys/vm/max_map_count says; NULL: the kernel's */

/* Whether this question is one that answers() has the answer for. */
UNINSTRUMENTED static inline bool has_answer(void)
{
	long left = answer ? answers_left : 0;

	while (left > 0 && !atomic_compare_exchange_weak(&answers_left, &left, left - 1))
		;
	return left > 0;
}

/* Whether the kernel refuses this call. Only calls of the opener count, and none that end something. */
UNINSTRUMENTED static inline bool is_refused(long nr)
{
	if (!opener || nr == SYS_close || nr == SYS_munmap || nr == SYS_futex || nr == SYS_exit || nr == SYS_gettid ||
	    raw(SYS_gettid, 0, 0, 0, 0, 0, 0) != opener)
		return false;
	return ++calls == refused;
}

/* The library's bare threads call this as well. They have no errno of the C library's: no sanitizer may look on. */
UNINSTRUMENTED static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;

	if (nr == SYS_sched_yield)
		yields += raw(SYS_gettid, 0, 0, 0, 0, 0, 0) == opener;
	if (nr == SYS_ioctl && (unsigned long)b == UFFDIO_WRITEPROTECT) {
		questions++;
		fake_ns += 50000;
		if (has_answer()) {
			errno = answer;
			return -1;
		}
		if (is_flag && lowered) {
			errno = EINVAL;
			return -1;
		}
	}
	if (nr == SYS_ioctl && no_query && _IOC_TYPE(b) == 'f') {
		errno = ENOTTY;
		return -1;
	}
	if (nr == SYS_openat && mappings_max && strcmp((const char *)b, "/proc/sys/vm/max_map_count") == 0)
		return file_with(mappings_max);
	lists += nr == SYS_pread64;
	if (nr == SYS_ioctl && (unsigned long)b == UFFDIO_REGISTER) {
		struct uffdio_range range = ((struct uffdio_register *)c)->range;
		void (*const before)(void) = before_adding;

		before_adding = NULL;
		if (before)
			before();
		if (range.len > add_max) {
			errno = EBUSY;
			return -1;
		}
		added[adds++ % 64] = range;
	}
	if (nr == SYS_userfaultfd)
		opened++;
	if (nr == SYS_futex && (b & FUTEX_CMD_MASK) == FUTEX_WAIT &&
	    reader_held_by == raw(SYS_gettid, 0, 0, 0, 0, 0, 0))
		reader_held_by = 0;
	if (is_refused(nr) || (nr == SYS_userfaultfd && no_userfaultfd)) {
		errno = EPERM;
		return -1;
	}
	if (nr == SYS_read && seen_reading && (size_t)c >= sizeof(struct uffd_msg)) {
		reads++;
		busy_reads += seen_reading->attention & HP_BUSY ? 1 : 0;
	}
	r = raw(nr, a, b, c, d, e, f);
	if (nr == SYS_ioctl && (unsigned long)b == UFFDIO_REGISTER && after_adding) {
		void (*const after)(void) = after_adding;

		after_adding = NULL;
		after();
	}
	if (is_flag && nr == SYS_read && r > 0)
		lowered = true;
	while (nr == SYS_read && reader_held_by)
		raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	return result_of(r);
}

static inline hugepin_domain *open_with(uint32_t watch)
{
	return device_open(&device, (struct hugepin_limits){ 0 },
			   (struct hugepin_attr){ .policy = HUGEPIN_POLICY_LRU, .watch = watch });
}

/* Pin one page and give it back. Returns how many registrations the pin made. */
static inline long made(hugepin_domain *d, char *p)
{
	struct hugepin_pin pin;
	long before = device.calls;

	if (EXPECT_EQ(hugepin_pin(d, p, 4096, 0, &pin), 0)) {
		EXPECT(device_covers(&device, &pin, HUGEPIN_READ));
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	return device.calls - before;
}

/* Answer the next n questions with this errno. */
static inline void answers(int e, long n)
{
	answers_left = n;
	answer = e;
}

/* ------------------------------------------------------------------ a second thread */

static _Atomic int sleeping;

static inline void *sleep_until_told(void *unused)
{
	while (sleeping == 1)
		usleep(1000);
	return unused;
}

static pthread_t second;

static inline void second_thread(bool there)
{
	if (there) {
		sleeping = 1;
		EXPECT_EQ(pthread_create(&second, NULL, sleep_until_told, NULL), 0);
	} else {
		sleeping = 0;
		pthread_join(second, NULL);
	}
}

__attribute__((constructor)) static void configure(void)
{
	hp_config.span = (int64_t)4 << 30;
	hp_config.pages = HP_PAGES_BASE;
	hp_config.decay_ms = 0;
}

#endif
