/*
 * The bounds of a thread's stack, and calls that were left by longjmp or throw: their functions are on the stack no
 * more.
 */
#include "mpi/stack.h"

#include <pthread.h>
#include <unwind.h>

#include "base/base.h"
#include "mpi/next.h"

static HP_TLS uintptr_t stack_start, stack_end; /* of this thread's own; both 1: not known */

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
	uintptr_t cfa, inner_ip; /* the frame that is looked for; the address in the function that was called */
	bool found, passed;
};

/* Called for each function, from the innermost one. The CFA that the unwinder has then is that of the function's
 * callee. */
static _Unwind_Reason_Code match_frame(struct _Unwind_Context *at, void *search)
{
	struct search *s = search;
	const uintptr_t cfa = _Unwind_GetCFA(at);

	/* By now another function may be where the call was. */
	s->found = cfa == s->cfa && hp_is_ours((void *)s->inner_ip);
	s->passed = cfa >= s->cfa;
	s->inner_ip = _Unwind_GetIP(at);
	return s->passed ? _URC_END_OF_STACK : _URC_NO_REASON;
}

bool hp_frame_lives(const void *frame, const void *now)
{
	struct search s = { .cfa = (uintptr_t)frame + 2 * sizeof(void *) };

	/* The fiber of a fiber's frame may go on later. */
	if (!hp_stack_end((uintptr_t)frame) || !hp_stack_end((uintptr_t)now))
		return true;
	if ((uintptr_t)frame <= (uintptr_t)now)
		return false;
	_Unwind_Backtrace(match_frame, &s);
	return s.found || !s.passed; /* true, too, if the stack cannot be followed so far */
}
