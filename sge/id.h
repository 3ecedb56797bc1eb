/*
 * The numbers that distinguish queues, pools and processes, and the way from a completion to who posted its work
 * request.
 *
 * wr_id: sixteen bits that all queues share, a number, a bit for receives, then the slot of a receive or the low bits
 * of a frame's number. Since a wr_id contains no pointer, a completion does no harm even if it is handed in twice, or
 * comes so late that its queue is gone or another frame has the slot. Numbers repeat after 2^24 openings; then the
 * number of the queue pair distinguishes queues.
 */
#ifndef HP_SGE_ID_H
#define HP_SGE_ID_H

#include <stdint.h>

#define HP_SGQ_ID_SHIFT 24 /* position of the number */
#define HP_SGQ_ID_RECV (1u << 23)
#define HP_SGQ_ID_LOW (HP_SGQ_ID_RECV - 1) /* more than the slots of any queue or pool */

struct ibv_wc;

/* Who takes the completions of its work requests: the first member of a queue and of a pool. */
struct hp_taker {
	uint64_t id; /* in the upper bits of each wr_id; the lowest HP_SGQ_ID_SHIFT are 0 */
	int (*take)(struct hp_taker *, const struct ibv_wc *); /* as hugepin_sg_wc() */
};

/* The number of forks that led to this process. A queue belongs to the process that opened it. */
extern __attribute__((visibility("hidden"))) unsigned hp_sgq_generation; /* read without the table of addresses */

/* Have hp_sgq_generation count forks from now on. */
void hp_sgq_watch_forks(void);

/* Give the taker a number, under which completions are nobody's yet. 0, or -ENOBUFS: as many are open as can be. */
int hp_taker_open(struct hp_taker *);

/* Completions come to the taker from now on. */
void hp_taker_begin(struct hp_taker *);

/* No more completions come. The number is free. */
void hp_taker_close(struct hp_taker *);

#endif
