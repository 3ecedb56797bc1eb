/*
 * See processors.h.
 *
 * Two things limit the processor time of the helper. If no core is idle, the helper takes its time from the program, so
 * it may then take only a small share of a core's time to save memory. And helpers of other processes want the same
 * idle cores; share.c decides among them.
 */
#include "reg/processors.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/config.h"
#include "base/proc.h"
#include "base/sys.h"
#include "reg/share.h"

#define DELAY_MAX_NS UINT64_C(20000000)
#define LOAD_NS UINT64_C(200000000) /* a period of measurement */

enum {
	LOAD_SHARE = 200, /* the helper may take 1 / 200 of a processor */
	DELAY_MEMORY = 32, /* a wake takes 1 / 32 off the remembered delay */
};

/* The service thread's, except `uses`. */
static struct {
	/* relaxed: a number, which the service thread alone sets to 0 */
	_Atomic uint64_t uses; /* uses since the last post to other processes */
	struct hp_share_verdict verdict;
	/* The helper's recent worst lateness. Work must begin that much earlier. */
	uint64_t delay_ns;
	bool begun;
} share = { .verdict = { .may_help = true, .sharers = 1 } }; /* as for a process that is alone */

static struct {
	uint64_t begun_ns, idle_ns, taken_ns; /* the period's begin, and the idle time and own time until then */
	uint64_t allowed_ns; /* own time allowed in the period; UINT64_MAX: a core is idle, so there is no limit */
} load = { .allowed_ns = UINT64_MAX }; /* of the service thread only */

/* ------------------------------------------------------------------ the load */

/* The idle time of all processors together, as the kernel counts it. 0: the kernel does not tell. */
static uint64_t machine_idle_ns(void)
{
	char text[256];

	if (hp_read_file("/proc/stat", text, sizeof text) <= 0 || strncmp(text, "cpu ", 4) != 0)
		return 0;
	/* "cpu", user, nice, system, idle, in hundredths of a second. */
	return hp_number_after(hp_field(text, 4), "", 0) * 10000000;
}

/* Measure the load once in a period. A core counts as idle if it was idle for half of the period. */
static void look_at_load(void)
{
	uint64_t now_ns = hp_clock_ns(), passed_ns = now_ns - load.begun_ns, idle;

	if (load.begun_ns && passed_ns < LOAD_NS)
		return;
	idle = machine_idle_ns();
	/* Time taken beyond the limit is subtracted from the next period. */
	load.taken_ns =
		load.allowed_ns == UINT64_MAX ? hp_thread_ns() : HP_MIN(hp_thread_ns(), load.taken_ns + load.allowed_ns);
	if (load.begun_ns)
		load.allowed_ns = !idle || idle - load.idle_ns >= passed_ns / 2 ? UINT64_MAX : LOAD_NS / LOAD_SHARE;
	load.begun_ns = now_ns;
	load.idle_ns = idle;
}

bool hp_processors_may_take(uint64_t *ret_wait_ns)
{
	uint64_t passed_ns = ret_wait_ns ? hp_clock_ns() - load.begun_ns : 0;

	if (load.allowed_ns == UINT64_MAX || hp_thread_ns() < load.taken_ns + load.allowed_ns)
		return true;
	if (ret_wait_ns)
		*ret_wait_ns = passed_ns < LOAD_NS ? LOAD_NS - passed_ns : 0;
	return false;
}

/* ------------------------------------------------------------------ among processes */

/* Leave the processors that the program is bound to, because helpers use idle cores. */
static void choose_processors(void)
{
	unsigned long mask[4096 / (8 * sizeof(unsigned long))];
	unsigned bits = 8 * sizeof *mask;

	if (hp_config.helper_cpu == HP_CPU_INHERIT)
		return;
	memset(mask, hp_config.helper_cpu == HP_CPU_ANY ? 0xff : 0, sizeof mask);
	if (hp_config.helper_cpu >= 0)
		mask[(size_t)hp_config.helper_cpu / bits] |= 1ul << ((size_t)hp_config.helper_cpu % bits);
	if (hp_sys(SYS_sched_setaffinity, 0, sizeof mask, mask) != 0 && hp_config.helper_cpu >= 0)
		hp_say("HUGEPIN_HELPER_CPU: the helper may not run on", NULL, (size_t)hp_config.helper_cpu);
}

/* Update the lateness. The paper assumes n time slices for n helpers on a core, and the delay starts with that value.
 * But our helpers sleep when they have no work, and the kernel then runs them soon, so the real lateness is
 * measured. */
static void learn_delay(uint64_t late_ns)
{
	late_ns = HP_MIN(late_ns, DELAY_MAX_NS);
	if (late_ns > share.delay_ns)
		share.delay_ns = late_ns;
	else
		share.delay_ns -= (share.delay_ns - late_ns) / DELAY_MEMORY;
}

void hp_processors_look(uint64_t late_ns)
{
	look_at_load();
	if (late_ns)
		learn_delay(late_ns);
}

bool hp_processors_must_post(void)
{
	if (!share.begun)
		choose_processors();
	else if (atomic_load_explicit(&share.uses, memory_order_relaxed) < HP_SHARE_PERIOD)
		return false;
	share.begun = true;
	return true;
}

void hp_processors_post(uint64_t bytes)
{
	static const enum hp_share_policy policies[] = { HP_SHARE_OFF, HP_SHARE_CONSERVATIVE, HP_SHARE_AGGRESSIVE };
	struct hp_share_verdict verdict;

	if (hp_share_post(bytes, policies[hp_config.helper], &verdict) == -EAGAIN)
		return;
	atomic_store_explicit(&share.uses, 0, memory_order_relaxed);
	if (verdict.sharers > share.verdict.sharers)
		share.delay_ns = HP_MAX(share.delay_ns, hp_share_lead_ns(verdict.sharers));
	share.verdict = verdict;
	if (!verdict.may_help)
		share.verdict.sharers = 0;
}

void hp_processors_count_use(void)
{
	atomic_fetch_add_explicit(&share.uses, 1, memory_order_relaxed);
}

uint32_t hp_processors_sharers(void)
{
	return share.verdict.sharers;
}

uint64_t hp_processors_delay_ns(void)
{
	return share.delay_ns;
}

void hp_processors_child(void)
{
	share.begun = false;
}
