/*
 * Calls a function for each of several items, on several threads at a time, which end before the call returns.
 */
#ifndef HP_REG_TOGETHER_H
#define HP_REG_TOGETHER_H

enum { HP_TOGETHER_MAX = 4 };

/* The number of threads that may work at a time: at most HP_TOGETHER_MAX, and no more than processors that the calling
 * thread may use. 1: no thread may be started. */
unsigned hp_together_threads(void);

/* Call each(arg, i) for i below n, on this thread and on threads - 1 others, or fewer if no more can be started. The
 * others act for this thread, so they count as holders of its locks. Call from a thread of the program, not inside
 * malloc. */
void hp_together(void (*each)(void *arg, unsigned i), void *arg, unsigned n, unsigned threads);

#endif
