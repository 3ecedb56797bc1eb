/*
 * Part of libhugepin-malloc.so: the allocator that serves small requests in jemalloc's place. With HUGEPIN_SMALL=next
 * it is the next malloc of the process. With the name of an allocator, its library is loaded here.
 *
 * Such a library is not preloaded: its operators new and delete would then serve all of a C++ program's requests, and
 * the heap none. Loaded here, it keeps its names for itself. Its fork handlers are run where jemalloc's are.
 *
 * Until our constructor runs, jemalloc serves small requests.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "base/config.h"
#include "base/smalls.h"
#include "dropin/dropin.h"
#include "dropin/jemalloc.h"

struct hp_next hp_next;

static int (*next_posix_memalign)(void **, size_t, size_t);

static int aligned_to(void **ret, size_t align, size_t size)
{
	int err = next_posix_memalign(ret, HP_MAX(align, sizeof(void *)), size);

	if (err == 0 && (uintptr_t)*ret & (align - 1)) {
		hp_next.small.free(*ret);
		err = ENOMEM;
	}
	return err;
}

static void *aligned_alloc_of_next(size_t align, size_t size)
{
	void *p;
	int err = aligned_to(&p, align, size);

	/* mimalloc 2.0.9 takes any block for aligned if the size is a multiple of the alignment, up to 1024 bytes. With
	 * another size it aligns the block. */
	if (err && !(size & (align - 1)))
		err = aligned_to(&p, align, size + 1);
	if (err == 0)
		return p;
	errno = err;
	return NULL;
}

/* The names of a library's functions. */
struct names {
	const char *malloc, *calloc, *realloc, *free, *usable_size, *posix_memalign, *trim;
};

static bool find(void *library, const struct names *names)
{
	struct hp_small *const s = &hp_next.small;

	*(void **)&s->malloc = dlsym(library, names->malloc);
	*(void **)&s->calloc = dlsym(library, names->calloc);
	*(void **)&s->realloc = dlsym(library, names->realloc);
	*(void **)&s->free = dlsym(library, names->free);
	*(void **)&s->usable_size = dlsym(library, names->usable_size);
	*(void **)&next_posix_memalign = dlsym(library, names->posix_memalign);
	*(void **)&hp_next.trim = names->trim ? dlsym(library, names->trim) : NULL;
	s->aligned_alloc = aligned_alloc_of_next;
	return s->malloc && s->calloc && s->realloc && s->free && s->usable_size && next_posix_memalign;
}

/* ------------------------------------------------------------------ a library of ours */

static HP_TLS bool loading;

bool hp_next_takes_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
	if (!loading || hp_next.small.prefork)
		return false;
	hp_next.small.prefork = prepare;
	hp_next.small.postfork_parent = parent;
	hp_next.small.postfork_child = child;
	return true;
}

static void *load(const struct hp_small_library *l)
{
	pthread_key_t key;
	/* The library must not get key 0, by which programs take unset keys for theirs (base/key.h). */
	const bool holds_key = pthread_key_create(&key, NULL) == 0;
	void *library = NULL;

	loading = true;
	for (int i = 0; !library && l->files[i]; i++)
		library = dlopen(l->files[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	loading = false;
	if (holds_key)
		pthread_key_delete(key);
	return library;
}

bool hp_next_find(void)
{
	static const struct names names[] = {
		[HP_SMALL_NEXT] = { "malloc", "calloc", "realloc", "free", "malloc_usable_size", "posix_memalign", NULL },
		[HP_SMALL_MIMALLOC] = { "mi_malloc", "mi_calloc", "mi_realloc", "mi_free", "mi_usable_size",
					"mi_posix_memalign", "mi_collect" },
		[HP_SMALL_TCMALLOC] = { "tc_malloc", "tc_calloc", "tc_realloc", "tc_free", "tc_malloc_size",
					"tc_posix_memalign", "MallocExtension_ReleaseFreeMemory" },
	};
	const int which = hugepin_small_which_();
	void *library = RTLD_NEXT;

	if (which == HP_SMALL_JEMALLOC)
		return false;
	if (which != HP_SMALL_NEXT)
		library = load(&hp_small_libraries[which]);
	if (!library || !find(library, &names[which])) {
		hugepin_small_missing_();
		return false;
	}
	return true;
}
