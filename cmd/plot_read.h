/*
 * hugepin plot: the traces of HUGEPIN_TRACE, read into memory.
 */
#ifndef HP_CMD_PLOT_READ_H
#define HP_CMD_PLOT_READ_H

#include <stddef.h>
#include <stdint.h>

enum { HP_POLICY_MAX = 16, HP_HOST_MAX = 65 };

enum hp_event_kind { HP_PIN, HP_UNPIN, HP_REGISTER, HP_DEREGISTER, HP_MISS, HP_EVENT_KINDS };

/* A line of a trace. addr and len are those of the registration. */
struct hp_event {
	uint64_t t_ns, domain, addr, len, bytes;
	enum hp_event_kind kind;
	const char *policy;
};

struct hp_value {
	uint64_t t_ns, bytes;
};

/* The registered memory of a domain of a file. */
struct hp_series {
	int file;
	uint64_t domain;
	char policy[HP_POLICY_MAX];
	struct hp_value *value; /* the points where bytes changes */
	uint64_t *miss_ns;
	size_t values, misses;
	uint64_t peak_bytes;
};

struct hp_file {
	const char *name;
	uint64_t begin_ns, end_ns; /* of its events */
	int rank; /* -1: none */
	uint64_t pid; /* 0: not known */
	char host[HP_HOST_MAX]; /* files of one host have one clock. Empty: not known */
};

struct hp_traces {
	struct hp_file *file;
	int files;
	struct hp_series *series; /* those of a file stand together */
	int count;
	void (*each)(void *arg, int file, const struct hp_event *); /* is called for each event, if not NULL */
	void *arg;
};

/* Say "hugepin plot: ..." on stderr, and exit. */
__attribute__((format(printf, 1, 2))) _Noreturn void hp_plot_fail(const char *format, ...);

/* Make room for one more element behind `count`. The room is always the next power of two. */
void *hp_plot_grown(void *array, size_t count, size_t size);

/* Read file number `file`, whose name is set. A file that is no trace ends the command: the message has the file, the
 * line, and what is accepted. */
void hp_plot_read(struct hp_traces *, int file);

#endif
