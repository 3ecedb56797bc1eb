/*
 * The bounds of a thread's stack, and whether a call was left by longjmp or throw: its function is then no longer on
 * the stack.
 */
#include "stack.h"

#include <pthread.h>
#include <unwind.h>

#include "next.h"
#include "util.h"

static HP_TLS uintptr_t stack_start, stack_end; /* of this thread's own stack; both 1: not known */

uintptr_t hp_stack_end(uintptr_t frame)
{
	if (!stack_end) {
		pthread_attr_t attr;
		void *start;
		size_t size;

		stack_start = stack_end = 1;
		if (!pthread_getattr_np(pthread_self(), &attr)) {
			if (!pthread_attr_getstack(&attr, &start, &size)) {
				stack_start = (uintptr_t)start;
				stack_end = stack_start + size;
			}
			pthread_attr_destroy(&attr);
		}
	}
	return stack_start <= frame && frame < stack_end ? stack_end : 0;
}

struct search {
	/* cfa: of the frame to find; inner_ip: the address in the function called by the current one */
	uintptr_t cfa, inner_ip;
	bool found, passed;
};

/* The unwinder calls this for each function, from the innermost outwards. The CFA that it reports is that of the
 * function's callee. */
static _Unwind_Reason_Code match_frame(struct _Unwind_Context *at, void *search)
{
	struct search *s = search;
	const uintptr_t cfa = _Unwind_GetCFA(at);

	/* Check the code, too: another function may have the same place on the stack by now. */
	s->found = cfa == s->cfa && hp_is_ours((void *)s->inner_ip);
	s->passed = cfa >= s->cfa;
	s->inner_ip = _Unwind_GetIP(at);
	return s->passed ? _URC_END_OF_STACK : _URC_NO_REASON;
}

bool hp_frame_lives(const void *frame, const void *now)
{
	struct search s = { .cfa = (uintptr_t)frame + 2 * sizeof(void *) };

	/* A fiber that was left may go on later, so its frame counts as alive. */
	if (!hp_stack_end((uintptr_t)frame) || !hp_stack_end((uintptr_t)now))
		return true;
	if ((uintptr_t)frame <= (uintptr_t)now)
		return false;
	_Unwind_Backtrace(match_frame, &s);
	return s.found || !s.passed; /* also true if the unwinder did not get that far */
}
