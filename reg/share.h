/*
 * Sharing the few idle cores among the helpers of many processes: which processes may have a helper, and how many
 * helpers share a core. After Li et al. 2011, section 5.
 *
 * The decision is pure, apart from the way in which processes tell each other of themselves.
 */
#ifndef HP_REG_SHARE_H
#define HP_REG_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hp_share_policy {
	HP_SHARE_OFF, /* no helper */
	HP_SHARE_CONSERVATIVE, /* one helper on each idle core, for the processes that pin most */
	HP_SHARE_AGGRESSIVE, /* every process has a helper; helpers that share a core begin earlier */
};

enum { HP_SHARE_MAX = 512 }; /* processes in the file, at most */

/* One process. bytes: the bytes that it would pin without a helper. tie: a random number, which the process keeps while
 * it lives. */
struct hp_share_entry {
	uint64_t bytes, tie;
};

struct hp_share_verdict {
	bool may_help;
	uint32_t sharers; /* helpers on this helper's core, itself included; 0 if it may not run */
};

/* ------------------------------------------------------------------ pure */

/* Decide for processes[me] of n. Each process counts as having one busy thread, and `idle` further cores have none. A
 * process that is alone always has its helper, even with no idle core. On a single core the helper takes turns with the
 * program. */
struct hp_share_verdict hp_share_decide(const struct hp_share_entry *processes, size_t n, size_t me, unsigned idle,
					enum hp_share_policy policy);

/* How much earlier a helper has to begin its work than if it were alone: n (t_slice + t_cs), from condition (2) of the
 * paper. For hp_plan_set_lead(). */
uint64_t hp_share_lead_ns(uint32_t sharers);

/* The time that work of cost_ns takes beside the other helpers, beyond that lead: cost_ns, or more if cost_ns is longer
 * than a slice. The paper assumes that all work ends within a slice, but pinning a gigabyte takes longer. */
uint64_t hp_share_cost_ns(uint32_t sharers, uint64_t cost_ns);

/* ------------------------------------------------------------------ among processes */

/* Communication operations from one post to the next. */
#define HP_SHARE_PERIOD 128

/* Tell the user's other processes on this machine that this one would pin `bytes` without a helper, and decide by what
 * they have told: 0 and *ret.
 *
 * bytes is the size of all ranges in use, registered at the moment or not, so that a process does not lose its rank
 * because its helper gives memory back.
 *
 * Call on the helper's thread, one call at a time: its affinity counts among the usable cores, and its signals are
 * blocked, since a limit of file sizes would raise one.
 *
 * -EAGAIN: another process has the lock; ask again at the next operation, and keep the earlier decision until then.
 * Other errors: processes cannot tell each other, and *ret is as for a process that is alone. */
int hp_share_post(uint64_t bytes, enum hp_share_policy policy, struct hp_share_verdict *ret);

/* Called at the end of the process, or of its last domain, so that the other processes stop counting it. If a process
 * crashes, others notice as they post. */
void hp_share_leave(void);

/* The directory; tests may replace it. */
extern const char *hp_share_directory;

#endif
