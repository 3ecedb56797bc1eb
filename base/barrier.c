/* See barrier.h. */
#include "base/barrier.h"

#include <linux/membarrier.h>
#include <unistd.h>

#include "base/sys.h"

static bool ask_membarrier(int command)
{
	bool ok = hp_sys(SYS_membarrier, command) == 0;

	atomic_signal_fence(memory_order_seq_cst); /* pairs with hp_barrier_often() */
	return ok;
}

bool hp_barrier_all_threads(void)
{
	return ask_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

bool hp_barrier_register(void)
{
	return ask_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}
