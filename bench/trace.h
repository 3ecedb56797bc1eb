/*
 * A trace of communication (tests/traces/README.md has the format), read from a file, with the regions of memory that
 * its uses are in and the events of its calls. Reading exits if the file is no trace.
 */
#ifndef HP_BENCH_TRACE_H
#define HP_BENCH_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct use {
	uint64_t start, end, cpu; /* ns, as they were recorded */
	uint64_t addr, limit, site; /* site: the return address of the call, as the library takes it */
	uint64_t call, stack; /* hashes of the call's name and of the return addresses of its four innermost callers */
	bool receives; /* the buffer is written */
	uint32_t region; /* from 1 up */
	int64_t compute_ns; /* by the main thread, before it starts */
	int64_t length_ns;
};

struct event {
	uint32_t use;
	bool end;
};

struct trace {
	char name[256];
	struct use *use;
	size_t uses;
	struct event *event; /* 2 * uses, in the order of the program */
	uint64_t *bytes; /* of each region */
	uint32_t regions;
	uint64_t inuse_peak; /* bytes, at once */
};

/* How a trace is read. */
struct trace_options {
	uint64_t unit; /* bytes: memory is registered in such pages */
	bool wall; /* the main thread computes by the wall clock, not by its processor time */
	double cap_ns; /* the longest time of a call; 0: none */
};

void trace_read(const char *path, const struct trace_options *options, struct trace *ret_);
void trace_free(struct trace *t);

/* Zeroed memory; exits if there is none. */
void *trace_get(size_t n, size_t size);

#endif
