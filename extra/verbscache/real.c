/*
 * See real.h.
 *
 * libibverbs is looked up by its name. It may have been loaded into a scope of its own, as a part of a plugin, where
 * RTLD_NEXT does not look. And a process that registers nothing need not load it. Where there is none of that name, a
 * library has its functions in itself.
 */
#include "real.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

static bool look_up(struct hp_real *ret_)
{
	void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD); /* never closed, so that it stays */

	if (!library)
		library = RTLD_NEXT;
	*(void **)&ret_->reg = dlsym(library, "ibv_reg_mr_iova2");
	*(void **)&ret_->rereg = dlsym(library, "ibv_rereg_mr");
	*(void **)&ret_->dereg = dlsym(library, "ibv_dereg_mr");
	*(void **)&ret_->dealloc_pd = dlsym(library, "ibv_dealloc_pd");
	*(void **)&ret_->close_device = dlsym(library, "ibv_close_device");
	return ret_->reg && ret_->rereg && ret_->dereg && ret_->dealloc_pd && ret_->close_device;
}

/* Without a lock, which a child of fork might find taken. */
const struct hp_real *hp_real(void)
{
	static struct hp_real *_Atomic real;
	struct hp_real *known = atomic_load_explicit(&real, memory_order_acquire); /* pairs with the exchange below */
	struct hp_real *found;

	if (known)
		return known;
	found = malloc(sizeof *found);
	if (!found || !look_up(found)) {
		free(found);
		return NULL;
	}
	/* release, acquire: what is published is seen whole; pairs with the load above */
	if (atomic_compare_exchange_strong_explicit(&real, &known, found, memory_order_acq_rel, memory_order_acquire))
		return found;
	free(found);
	return known;
}
