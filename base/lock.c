/* See lock.h. */
#include "base/lock.h"

HP_TLS unsigned hp_locks_held;

/* Most holders take less time than a sleep costs, so look for some microsecond before. */
static bool spin(struct hp_lock *l)
{
	enum { LOOKS = 100 };

	for (int i = 0; i < LOOKS; i++) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
		/* relaxed: hp_lock_try() looks again */
		if (!atomic_load_explicit(&l->word, memory_order_relaxed) && hp_lock_try(l))
			return true;
	}
	return false;
}

void hp_lock_wait(struct hp_lock *l)
{
	if (spin(l))
		return;
	/* acquire: pairs with hp_lock_release() */
	while (atomic_exchange_explicit(&l->word, 2, memory_order_acquire) != 0)
		hp_futex_wait(&l->word, 2, UINT64_MAX);
}
