/* See start.h. */
#include "alloc/start.h"

#include "alloc/cache.h"
#include "alloc/pages.h"
#include "alloc/small.h"
#include "alloc/watch.h"
#include "base/config.h"
#include "base/lock.h"
#include "base/process.h"
#include "base/seal.h"
#include "base/service.h"
#include "base/thread.h"

_Atomic uint32_t hp_heap_state;
bool hp_heap_constructed;
struct hp_ticking hp_ticking;

static HP_TLS bool starting;

/* ------------------------------------------------------------------ what is above */

static const struct hp_heap_hooks no_hooks;
static HP_SEALED(struct { const struct hp_heap_hooks *_Atomic set; }) hooks_used = { { &no_hooks } };

const struct hp_heap_hooks *hp_heap_hooks(void)
{
	/* acquire: pairs with hp_heap_set_hooks(), so that the members are seen */
	return atomic_load_explicit(&hooks_used.is.set, memory_order_acquire);
}

bool hp_heap_has_hooks(void)
{
	return hp_heap_hooks() != &no_hooks;
}

void hp_heap_set_hooks(const struct hp_heap_hooks *h)
{
	if (hp_heap_hooks() == h)
		return;
	hp_unseal(&hooks_used, sizeof hooks_used);
	atomic_store_explicit(&hooks_used.is.set, h, memory_order_release); /* pairs with hp_heap_hooks() */
	hp_seal(&hooks_used, sizeof hooks_used);
}

/* ------------------------------------------------------------------ which process this is */

void hp_heap_begin_process(void)
{
	hp_service_child();
	hp_thread_child(&hp_ticker);
	if (hp_watch_any())
		hp_thread_forbid(&hp_ticker);
	hp_ticking.by = HP_TICKS_NONE;
	hp_process_begin();
}

void hp_heap_know_process(void)
{
	if (HP_LIKELY(!hp_process_copied()) || !hp_process_claim())
		return;
	hp_cache_copied();
	hp_heap_begin_process();
	if (hp_heap_hooks()->postfork_child && !(hp_locks_held & ((1u << HP_LOCK_RANK_HEAP) - 1)))
		hp_heap_hooks()->postfork_child();
}

/* ------------------------------------------------------------------ start */

bool hp_heap_start(void)
{
	uint32_t expected = HP_HEAP_UNUSED;
	bool made;

	hp_heap_know_process();
	if (hp_heap_ready())
		return true;
	if (starting || atomic_load_explicit(&hp_heap_state, memory_order_relaxed) == HP_HEAP_UNAVAILABLE ||
	    hp_config_load() != 0)
		return false;
	/* acq_rel and acquire: this thread sees the writes of the thread that set the state; pairs with the store
	 * below, of another thread. */
	if (atomic_compare_exchange_strong_explicit(&hp_heap_state, &expected, HP_HEAP_STARTING, memory_order_acq_rel,
						    memory_order_acquire)) {
		starting = true;
		hp_ticking.delay_ns = (uint64_t)hp_config.decay_ms * 1000000 / HP_TICKS;
		hp_base_page_init();
		made = hp_span_init(hp_config.small_pinned && &hugepin_small_) == 0;
		/* release: pairs with hp_heap_ready() */
		atomic_store_explicit(&hp_heap_state, made ? HP_HEAP_READY : HP_HEAP_UNAVAILABLE, memory_order_release);
		starting = false;
		hp_futex_wake(&hp_heap_state);
	}
	/* acquire: pairs with the store above */
	while (atomic_load_explicit(&hp_heap_state, memory_order_acquire) == HP_HEAP_STARTING)
		hp_futex_wait(&hp_heap_state, HP_HEAP_STARTING, UINT64_MAX);
	return hp_heap_ready();
}

bool hp_heap_starts_here(void)
{
	return starting;
}

void hp_heap_start_child(void)
{
	uint32_t state = hp_span.size ? HP_HEAP_READY : HP_HEAP_UNUSED;

	if (atomic_load_explicit(&hp_heap_state, memory_order_relaxed) == HP_HEAP_STARTING && !starting)
		atomic_store_explicit(&hp_heap_state, state, memory_order_relaxed);
}
