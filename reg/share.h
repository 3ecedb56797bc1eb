/*
 * Helpers of many processes on the few cores that are idle: who may have one, and how many share a core. After Li et
 * al. 2011, section 5.
 *
 * The decision is pure, and apart from how processes tell each other of themselves.
 */
#ifndef HP_REG_SHARE_H
#define HP_REG_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hp_share_policy {
	HP_SHARE_OFF, /* no helper */
	HP_SHARE_CONSERVATIVE, /* one on each idle core: of the processes that pin most */
	HP_SHARE_AGGRESSIVE, /* of every process; those that share a core begin earlier */
};

enum { HP_SHARE_MAX = 512 }; /* processes */

/* Of one process: the bytes that it would pin without a helper, and a random number, its own for as long as it
 * lives. */
struct hp_share_entry {
	uint64_t bytes, tie;
};

struct hp_share_verdict {
	bool may_help;
	uint32_t sharers; /* helpers on the core of this one, with it; 0 if it may not help */
};

/* ------------------------------------------------------------------ pure */

/* For processes[self] of n, each of which has one thread that is busy, beside `idle` cores that have none. A process
 * that is alone has its helper on any number of cores, as otherwise an only one's would never run: it takes turns with
 * the program. */
struct hp_share_verdict hp_share_decide(const struct hp_share_entry *processes, size_t n, size_t self, unsigned idle,
					enum hp_share_policy policy);

/* How much earlier than alone a helper has to begin anything: n (t_slice + t_cs), of condition (2) there. For
 * hp_plan_set_lead(). */
uint64_t hp_share_lead_ns(uint32_t sharers);

/* What work of cost_ns takes beside the others, beyond that lead: in the paper all work ends within a time slice, but
 * what pins a gigabyte does not. cost_ns, or more if it is longer than a slice. */
uint64_t hp_share_cost_ns(uint32_t sharers, uint64_t cost_ns);

/* ------------------------------------------------------------------ among processes */

/* Communication operations from one post to the next. */
#define HP_SHARE_PERIOD 128

/* Tell the user's other processes on this machine that this one would pin `bytes` without a helper, and decide by what
 * they have told: 0 and *ret. bytes is the size of all that is used, registered at the moment or not; else who helps
 * would lose its rank by helping. On the helper's thread, one at a time: its affinity counts among the cores that there
 * are, and its signals are blocked, of which a limit of file sizes would raise one. -EAGAIN: another process is at it,
 * ask again at the next operation; what was decided before still holds. Others: there is no telling, *ret is as for a
 * process that is alone. */
int hp_share_post(uint64_t bytes, enum hp_share_policy policy, struct hp_share_verdict *ret);

/* At the end of the process, or of its last domain: others need not count with it any more. A process that crashes is
 * noticed by others as they post. */
void hp_share_leave(void);

/* The directory; tests may replace it. */
extern const char *hp_share_directory;

#endif
