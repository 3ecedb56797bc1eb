/*
 * See tlb.h. PAPI is loaded when it is first asked, because few machines have it and the command works without.
 */
#include "cmd/tlb.h"

#include "cmd/judge.h"

#if __has_include(<papi.h>)

#include <dlfcn.h>
#include <fcntl.h>
#include <papi.h>
#include <stdbool.h>
#include <stdio.h>

enum { DESCRIPTORS = 256 };

static struct {
	__typeof__(&PAPI_library_init) library_init;
	__typeof__(&PAPI_create_eventset) create_eventset;
	__typeof__(&PAPI_assign_eventset_component) assign_eventset_component;
	__typeof__(&PAPI_set_opt) set_opt;
	__typeof__(&PAPI_add_named_event) add_named_event;
	__typeof__(&PAPI_start) start;
	__typeof__(&PAPI_stop) stop;
} papi;
static int events = PAPI_NULL;
static bool counts; /* between begin and end */

static bool load(void)
{
	char file[32];
	void *library;

	snprintf(file, sizeof file, "libpapi.so.%d.%d", PAPI_VERSION_MAJOR(PAPI_VERSION), PAPI_VERSION_MINOR(PAPI_VERSION));
	library = dlopen(file, RTLD_NOW);
	if (!library)
		return false;
#define FIND(name) ((papi.name = (__typeof__(papi.name))dlsym(library, "PAPI_" #name)) != NULL)
	return FIND(library_init) && FIND(create_eventset) && FIND(assign_eventset_component) && FIND(set_opt) &&
	       FIND(add_named_event) && FIND(start) && FIND(stop);
#undef FIND
}

/* PAPI wants the set to be inherited before it has an event, and to be of the processor's component before that. */
static bool open_events(void)
{
	PAPI_option_t option = { 0 };
	int set = PAPI_NULL;

	if (papi.library_init(PAPI_VER_CURRENT) != PAPI_VER_CURRENT || papi.create_eventset(&set) != PAPI_OK ||
	    papi.assign_eventset_component(set, 0) != PAPI_OK)
		return false;
	option.inherit.eventset = set;
	option.inherit.inherit = PAPI_INHERIT_ALL;
	if (papi.set_opt(PAPI_INHERIT, &option) != PAPI_OK || papi.add_named_event(set, "PAPI_TLB_DM") != PAPI_OK)
		return false;
	events = set;
	return true;
}

/* The program that is started is to find the descriptors that it would have without PAPI. */
static void close_at_exec(const bool was_open[DESCRIPTORS])
{
	for (int fd = 0; fd < DESCRIPTORS; fd++)
		if (!was_open[fd] && fcntl(fd, F_GETFD) >= 0)
			fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void hp_tlb_begin(void)
{
	static bool tried;
	bool was_open[DESCRIPTORS];

	for (int fd = 0; fd < DESCRIPTORS; fd++)
		was_open[fd] = fcntl(fd, F_GETFD) >= 0;
	if (!tried && load())
		open_events();
	tried = true;
	counts = events != PAPI_NULL && papi.start(events) == PAPI_OK;
	close_at_exec(was_open);
}

uint64_t hp_tlb_end(void)
{
	long long misses = -1;

	if (!counts || papi.stop(events, &misses) != PAPI_OK || misses < 0)
		return HP_NOT_COUNTED;
	return (uint64_t)misses;
}

#else

void hp_tlb_begin(void)
{
}

uint64_t hp_tlb_end(void)
{
	return HP_NOT_COUNTED;
}

#endif
