/*
 * The pins of a transfer's buffers. They are taken before MPI sees the buffers, and given back when MPI no longer uses
 * them. A buffer that cannot be pinned is counted, and the program goes on, unless HUGEPIN_X_MPI_STRICT=1.
 */
#include "transfer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "domain.h"
#include "next.h"
#include "options.h"
#include "report.h"
#include "trace.h"

static void unpin_buffer(struct hp_buffer *b)
{
	for (; b->pins_count; b->pins_count--) {
		hugepin_unpin(hp_mpi_domain, &b->pins[b->pins_count - 1]);
		HP_MPI_COUNT(unpins);
	}
}

static unsigned access_of(const struct hp_buffer *b)
{
	return b->dir == 'S' ? HUGEPIN_READ : HUGEPIN_WRITE;
}

/* site: the return address of the function that the program called. */
static int pin_buffer(struct hp_buffer *b, uintptr_t site)
{
	size_t done = 0;

	while (done < b->len) {
		struct hugepin_pin *p = &b->pins[b->pins_count];
		int err = b->pins_count == HP_MPI_PINS_MAX ? -EMSGSIZE
							   : hugepin_pin_at(hp_mpi_domain, (const void *)(b->start + done),
									    b->len - done, access_of(b), p, site);

		if (err < 0) {
			unpin_buffer(b);
			return err;
		}
		HP_MPI_COUNT(pins);
		b->pins_count++;
		done += p->len;
	}
	return 0;
}

static void HP_COLD note_unpinned(const struct hp_transfer *t, const struct hp_buffer *b, int err)
{
	int rank;

	HP_MPI_COUNT(not_pinned);
	if (!hp_mpi_options.strict)
		return;
	REAL(Comm_rank)(MPI_COMM_WORLD, &rank);
	fprintf(stderr, "hugepin: MPI rank %d: %zu bytes at %#" PRIxPTR " cannot be registered for MPI_%s: %s\n", rank,
		b->len, b->start, t->op, strerror(-err));
	REAL(Abort)(MPI_COMM_WORLD, 1);
}

void hp_transfer_acquire(struct hp_transfer *t, const struct hp_call *c)
{
	if (!t->count)
		return;
	hp_report_sample();
	for (struct hp_buffer *b = t->buffers; b < t->buffers + t->count; b++) {
		int err = hp_mpi_domain ? pin_buffer(b, ((const uintptr_t *)c->frame)[1]) : 0;

		if (err < 0)
			note_unpinned(t, b, err);
		b->row = hp_trace_on ? hp_trace_row(c, t->op, b) : NULL;
	}
	hp_report_sample();
}

void hp_transfer_phase(const struct hp_transfer *t, unsigned phase, char dir)
{
	if (!hp_mpi_phases)
		return;
	for (const struct hp_buffer *b = t->buffers; b < t->buffers + t->count; b++) {
		uintptr_t at = b->start;

		if (dir != HP_ANY_DIR && b->dir != dir)
			continue;
		if (!hp_mpi_domain)
			hp_mpi_cache_phase(b->start, b->len, phase);
		/* A hint that is not taken costs page faults, and nothing else. */
		for (int i = 0; i < b->pins_count; at += b->pins[i++].len)
			hugepin_prefetch(hp_mpi_domain, (const void *)at, b->pins[i].len, access_of(b) | phase);
	}
}

void hp_transfer_release(struct hp_transfer *t)
{
	if (!t->count)
		return;
	hp_report_sample();
	for (struct hp_buffer *b = t->buffers; b < t->buffers + t->count; b++) {
		unpin_buffer(b);
		hp_trace_row_end(b->row);
		b->row = NULL;
	}
	hp_report_sample();
}

void hp_transfer_release_left(struct hp_transfer *t)
{
	for (int i = 0; i < t->count; i++)
		if (t->buffers[i].pins_count || t->buffers[i].row)
			HP_MPI_COUNT(left);
	hp_transfer_release(t);
}
