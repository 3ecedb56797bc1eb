/*
 * libibverbs is looked up by its name. It may have been loaded into a scope of its own, as a part of a plugin, where
 * RTLD_NEXT does not look. And a process that registers nothing need not load it.
 */
#include "verbscache/real.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

static bool look_up(struct hp_real *ret_)
{
	void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD); /* never closed, so that it stays */

	if (!library)
		return false;
	*(void **)&ret_->reg = dlsym(library, "ibv_reg_mr_iova2");
	*(void **)&ret_->rereg = dlsym(library, "ibv_rereg_mr");
	*(void **)&ret_->dereg = dlsym(library, "ibv_dereg_mr");
	*(void **)&ret_->dealloc_pd = dlsym(library, "ibv_dealloc_pd");
	*(void **)&ret_->close_device = dlsym(library, "ibv_close_device");
	return ret_->reg && ret_->rereg && ret_->dereg && ret_->dealloc_pd && ret_->close_device;
}

const struct hp_real *hp_real(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct hp_real real;
	static _Atomic bool known;
	struct hp_real found;

	if (atomic_load_explicit(&known, memory_order_acquire)) /* pairs with the store below */
		return &real;
	/* Look the functions up before taking our lock: a constructor may call this under the loader's lock. */
	if (!look_up(&found))
		return NULL;
	pthread_mutex_lock(&lock);
	if (!atomic_load_explicit(&known, memory_order_relaxed)) {
		real = found;
		atomic_store_explicit(&known, true, memory_order_release); /* pairs with the load above */
	}
	pthread_mutex_unlock(&lock);
	return &real;
}
