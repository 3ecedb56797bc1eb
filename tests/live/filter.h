/*
 * Filters of system calls (seccomp). A filter begins empty, as { .len = 0 }. Rules are asked in their order, and the
 * first one that fits answers.
 */
#ifndef TESTS_LIVE_FILTER_H
#define TESTS_LIVE_FILTER_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef SECCOMP_RET_KILL_PROCESS
#define SECCOMP_RET_KILL_PROCESS 0x80000000u
#endif
#define FILTER_REFUSES(err) (SECCOMP_RET_ERRNO | (uint32_t)(err))

struct filter {
	unsigned short len;
	struct sock_filter code[640];
};

static inline void filter_load(struct filter *f, size_t member)
{
	f->code[f->len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)member);
}

/* If what was loaded stands in the relation to the value, the next statement counts; else `skip` of them do not. */
static inline void filter_if(struct filter *f, uint16_t relation, uint32_t value, uint8_t skip)
{
	f->code[f->len++] = (struct sock_filter)BPF_JUMP((uint16_t)(BPF_JMP | relation | BPF_K), value, 0, skip);
}

static inline void filter_answer(struct filter *f, uint32_t answer)
{
	f->code[f->len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
}

/* These calls get the answer. */
static inline void filter_calls(struct filter *f, const uint16_t *calls, size_t count, uint32_t answer)
{
	filter_load(f, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < count; i++) {
		filter_if(f, BPF_JEQ, calls[i], 1);
		filter_answer(f, answer);
	}
}

/* This call gets the answer if the lower half of its argument equals the value (BPF_JEQ) or has a bit of it
 * (BPF_JSET). */
static inline void filter_argument(struct filter *f, uint16_t call, unsigned argument, uint16_t relation,
				   uint32_t value, uint32_t answer)
{
	filter_load(f, offsetof(struct seccomp_data, nr));
	filter_if(f, BPF_JEQ, call, 3);
	filter_load(f, offsetof(struct seccomp_data, args) + argument * sizeof(uint64_t));
	filter_if(f, relation, value, 1);
	filter_answer(f, answer);
}

/* All other calls get the answer. This ends the filter. */
static inline struct sock_fprog filter_end(struct filter *f, uint32_t answer)
{
	filter_answer(f, answer);
	return (struct sock_fprog){ f->len, f->code };
}

/* As filter_end(), and the calling thread and its children have the filter. */
static inline bool filter_install(struct filter *f, uint32_t answer)
{
	struct sock_fprog program = filter_end(f, answer);

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

#define FILTER_COUNT(calls) (sizeof(calls) / sizeof *(calls))

#endif
