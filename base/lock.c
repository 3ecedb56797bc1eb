/* See lock.h. */
#include "base/lock.h"

HP_TLS unsigned hp_locks_held;

void hp_lock_wait(struct hp_lock *l)
{
	/* acquire: pairs with hp_lock_release() */
	while (atomic_exchange_explicit(&l->word, 2, memory_order_acquire) != 0)
		hp_futex_wait(&l->word, 2, UINT64_MAX);
}
