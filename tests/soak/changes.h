/*
 * What a process changes under the library that it uses, while its other threads go on: the table "What a process
 * changes under us" of docs/ARCHITECTURE.md, except changes after which a process cannot go on. Each change is a line
 * of the table below. One thread makes the changes of the process, one after the other: each once before any comes
 * again, then all are equally likely. Each child of fork makes one, for good. The functions are in change_*.h, by
 * subject.
 *
 * A change returns whether it has come about. The machine may refuse it.
 */
#ifndef TESTS_SOAK_CHANGES_H
#define TESTS_SOAK_CHANGES_H

#include "change_children.h"
#include "change_loader.h"

/* What a change needs. */
enum {
	IN_CHILD = 1, /* the change is for good */
	PLAIN = 2,    /* no sanitizer: one does not know the change, or ends the program */
	DROP_IN = 4,  /* the drop-in: the library has to be told, or the C library's malloc is in the way */
	ROOT = 8,
	AT_LAST = 16, /* from then on the cache ignores other memory, or the heap is smaller */
};

struct change {
	const char *name;
	bool (*run)(struct worker *w);
	int with; /* the change finds it in w->with */
	unsigned needs;
};

static unsigned lacking = AT_LAST; /* needs that this machine or this moment does not meet */
static _Atomic bool at_last; /* the last moments: they meet AT_LAST */

static const struct change changes[] = {
	{ "a thread comes and goes", thread_comes_and_goes, 0, 0 },
	{ "a thread on a stack from the heap", stack_from_the_heap, 0, PLAIN },
	{ "a fiber that forks", fiber, 0, PLAIN },
	{ "a stack for signals", signal_stack, 0, PLAIN },
	{ "affinity and scheduling class", move_about, 0, 0 },
	{ "all signals blocked", all_blocked, 0, 0 },
	{ "a signal whose handler forks", signal_that_forks, 0, PLAIN },
	{ "SIGSTOP", be_stopped, 0, 0 },
	{ "vfork", vfork_and_allocate, 0, PLAIN },
	{ "clone with VM", clone_with_memory, 0, PLAIN },
	{ "clone without VM", child_without_handlers, true, PLAIN },
	{ "_Fork", child_without_handlers, false, PLAIN },
	{ "dlopen", open_and_close_library, 0, 0 },
	{ "dlmopen", second_c_library, 0, PLAIN },
	{ "RLIMIT_AS from outside", less_addresses, false, PLAIN },
	{ "RLIMIT_AS", less_addresses, true, PLAIN | AT_LAST },
	{ "RLIMIT_DATA", less_data, 0, PLAIN },
	{ "RLIMIT_NOFILE", limit_is_little, RLIMIT_NOFILE, 0 },
	{ "RLIMIT_NPROC", limit_is_little, RLIMIT_NPROC, 0 },
	{ "RLIMIT_MEMLOCK", limit_is_little, RLIMIT_MEMLOCK, 0 },
	{ "seteuid", be_another_user, 0, ROOT | PLAIN },
	{ "a memory cgroup", be_in_group, 0, ROOT },
	{ "PR_SET_THP_DISABLE", thp_off_or_on, 0, 0 },
	{ "mlockall, current", lock_everything, MCL_CURRENT, PLAIN },
	{ "mlockall, current on fault", lock_everything, MCL_CURRENT | MCL_ONFAULT, PLAIN },
	{ "mlockall, future", lock_everything, MCL_FUTURE, PLAIN },
	{ "descriptors replaced", close_high_descriptors, true, PLAIN | AT_LAST },
	{ "descriptors closed", close_high_descriptors, false, PLAIN | AT_LAST },
	{ "MAP_FIXED", mapped_over, 0, 0 },
	{ "mremap", moved_over, 0, PLAIN },
	{ "brk", break_moved, 0, DROP_IN },
	{ "shmat, shmdt", shared_segment, 0, 0 },
	{ "remap_file_pages", file_changed, 0, 0 },
	{ "ftruncate", file_changed, 1, 0 },
	{ "a hole in a file", file_changed, 2, 0 },
	{ "userfaultfd", own_userfaultfd, 0, 0 },
	{ "madvise", advised, 0, 0 },
	{ "mlock, munlock", locked, 0, PLAIN },
	{ "mprotect, not to be written", protected, PROT_READ, 0 },
	{ "mprotect, no access", protected, PROT_NONE, DROP_IN },
	{ "guards", guarded, 0, DROP_IN },
	{ "a handler unmaps what was pinned", unmapped_in_handler, 0, PLAIN },
	{ "memory discarded, unmapped and mapped again", given_back_and_mapped, 0, 0 },
	{ "parts of a mapping pinned", parts_pinned, 0, 0 },
	{ "a budget full of pins", much_pinned, 0, PLAIN },
	{ "a ring closed before its domain", ring_closed, 0, 0 },

	{ "child: of another fork", by_fork, 0, IN_CHILD },
	{ "child: of _Fork", by_fork_without_handlers, 0, IN_CHILD },
	{ "child: of clone", by_clone, 0, IN_CHILD },
	{ "child: daemon", by_daemon, 0, IN_CHILD },
	{ "child: few mappings are left", few_mappings, 0, IN_CHILD },
	{ "child: vfork", vfork_and_allocate, 0, IN_CHILD },
	{ "child: a program run", run_program, 0, IN_CHILD },
	{ "child: close", close_everything, false, IN_CHILD },
	{ "child: dup2", close_everything, true, IN_CHILD },
	{ "child: a user namespace", enter_namespaces, CLONE_NEWUSER | CLONE_NEWNS, IN_CHILD },
	{ "child: setns", set_namespace, 0, IN_CHILD | ROOT },
	{ "child: a pid namespace", in_namespace_of_children, CLONE_NEWPID, IN_CHILD | ROOT },
	{ "child: a time namespace", in_namespace_of_children, CLONE_NEWTIME, IN_CHILD | ROOT },
	{ "child: setresuid, no_new_privs", give_user_up, 0, IN_CHILD | ROOT },
	{ "child: capset", give_capabilities_up, 0, IN_CHILD },
	{ "child: Landlock", give_files_up, 0, IN_CHILD },
	{ "child: seccomp that kills", confine, (int)SECCOMP_RET_KILL_PROCESS, IN_CHILD | DROP_IN },
	{ "child: seccomp that refuses", confine, SECCOMP_RET_ERRNO | EPERM, IN_CHILD },
	{ "child: all limits", have_no_limit_left, 0, IN_CHILD },
	{ "child: RLIMIT_AS", have_few_addresses, 0, IN_CHILD },
	{ "child: signals blocked, no THP", block_signals, 0, IN_CHILD },
	{ "child: brk", raise_break, 0, IN_CHILD },
	{ "child: mseal", seal, 0, IN_CHILD },
	{ "child: a memory cgroup", stay_in_group, 0, IN_CHILD | ROOT },
	{ "child: mlockall", keep_everything_locked, MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT, IN_CHILD },
	{ "child: affinity and scheduling class", move_about, 0, IN_CHILD },
};
enum { CHANGES = sizeof changes / sizeof *changes };

static _Atomic unsigned long *happened; /* how often each came about, in children too */

static bool may(const struct change *c)
{
	return !(c->needs & IN_CHILD) == !in_child && !(c->needs & lacking & (at_last ? ~(unsigned)AT_LAST : ~0u));
}

static void change(struct worker *w)
{
	static bool tried[CHANGES]; /* in each child a copy, so that its changes are all equally likely */
	const struct change *c;
	bool all = true;

	for (c = changes; c < changes + CHANGES; c++) {
		tried[c - changes] |= at_last && !(c->needs & AT_LAST); /* it has had its time */
		all = all && (tried[c - changes] || !may(c));
	}
	do
		c = &changes[rand_next(&w->rand) % CHANGES];
	while (!may(c) || (tried[c - changes] && !all));
	tried[c - changes] = true;
	w->doing = c->name;
	w->with = c->with;
	if (c->run(w))
		happened[c - changes]++;
}

/* Runs before there are threads. */
static void changes_begin(void)
{
	char procs[600], text[65536];
	pthread_t t;

	/* The C library loads code for the end of a thread at the first such end, and aborts if it has no memory then.
	 * */
	EXPECT(!pthread_create(&t, NULL, live_shortly, NULL) && !pthread_join(t, NULL));
	happened = mmap(NULL, CHANGES * sizeof *happened, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	lacking |= (SANITIZED ? PLAIN | IN_CHILD : 0) | (preloaded ? 0 : DROP_IN) | (geteuid() ? ROOT : 0);
	if (!cgroup_make(&group, "memory", "memory.limit_in_bytes", "memory.max", "64G"))
		return;
	/* The group lies below this process's own group, or there is none. */
	group_home = strdup(group.path);
	*strrchr(group_home, '/') = 0;
	snprintf(procs, sizeof procs, "%s/cgroup.procs", group_home);
	snprintf(text + 60000, 100, "\n%d\n", (int)getpid());
	text[0] = '\n';
	if (file_read(procs, text + 1, 60000 - 1) <= 0 || !strstr(text, text + 60000)) {
		cgroup_remove(&group);
		free(group_home);
		group_home = NULL;
	}
}

static void changes_end(void)
{
	if (group_home)
		cgroup_remove(&group);
	free(group_home);
	for (int i = 0; i < CHANGES; i++)
		if (!(changes[i].needs & lacking & ~(unsigned)AT_LAST))
			t_print("# %6lu %s%s\n", happened[i], changes[i].name,
				happened[i] || option.seconds < 60 ? "" : ": never, in a minute or more");
}

#endif
