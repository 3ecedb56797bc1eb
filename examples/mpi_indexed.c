/* link: hugepin */
/*
 * What an MPI datatype describes, as scatter/gather elements: MPI itself packs such a message into a buffer of its own
 * before it is sent; an adapter can be told where the pieces are.
 *
 *	mpirun -n 1 mpi_indexed
 *
 * The datatype is taken apart with what MPI offers for that, and the elements are checked by doing what an adapter
 * does: the bytes must be those of MPI_Pack. Memory is locked here; with an adapter, the domain is one of
 * hugepin_verbs_open().
 */
#include <err.h>
#include <hugepin.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS = 1 << 20, BLOCKS = 24 };

static void *need(void *p)
{
	if (!p)
		err(1, "malloc");
	return p;
}

/* The pieces at base that `type`, of MPI_Type_indexed, stands for. Returns their number, or -errno. */
static int pieces_of(MPI_Datatype type, const void *base, struct iovec *ret_, int max)
{
	int n_ints, n_addresses, n_types, combiner, n;
	MPI_Datatype element;
	MPI_Aint lower, extent;
	size_t *off, *len;
	int *ints, size;

	MPI_Type_get_envelope(type, &n_ints, &n_addresses, &n_types, &combiner);
	if (combiner != MPI_COMBINER_INDEXED)
		errx(1, "not of MPI_Type_indexed");
	/* The number of blocks, the number of elements in each, and where each begins, in elements. */
	ints = need(calloc((size_t)n_ints, sizeof *ints));
	MPI_Type_get_contents(type, n_ints, n_addresses, n_types, ints, NULL, &element);
	MPI_Type_get_extent(element, &lower, &extent);
	MPI_Type_size(element, &size);
	MPI_Type_get_envelope(element, &n_ints, &n_addresses, &n_types, &combiner);
	if (combiner != MPI_COMBINER_NAMED || lower || extent != size)
		errx(1, "its elements are not simple ones");
	n = ints[0];
	off = need(calloc((size_t)n + 1, sizeof *off));
	len = need(calloc((size_t)n + 1, sizeof *len));
	for (int i = 0; i < n; i++) {
		len[i] = (size_t)ints[1 + i] * (size_t)extent;
		off[i] = (size_t)((MPI_Aint)ints[1 + n + i] * extent);
	}
	n = hugepin_sg_indexed(base, off, len, (size_t)n, ret_, max);
	free(off);
	free(len);
	free(ints);
	return n;
}

/* Copy the elements, as an adapter does with a work request. */
static size_t gather(const struct hugepin_sge *sge, int n, char *message)
{
	size_t bytes = 0;

	for (int i = 0; i < n; i++) {
		memcpy(message + bytes, (void *)sge[i].addr, sge[i].length);
		bytes += sge[i].length;
	}
	return bytes;
}

int main(int argc, char **argv)
{
	int lengths[BLOCKS], starts[BLOCKS], size, packed = 0, n, e;
	double *field = need(hugepin_malloc(CELLS * sizeof *field));
	struct iovec piece[BLOCKS];
	struct hugepin_sge sge[BLOCKS];
	struct hugepin_pin whole, pins[4];
	struct hugepin_sg_info info;
	hugepin_domain *domain;
	MPI_Datatype type;
	char *message, *expected;

	MPI_Init(&argc, &argv);
	/* The cells that have a neighbour elsewhere, say: here and there, some empty, some side by side. */
	for (int i = 0; i < CELLS; i++)
		field[i] = i;
	for (int i = 0; i < BLOCKS; i++) {
		lengths[i] = i * i % 7;
		starts[i] = i % 6 == 4 ? starts[i - 1] + lengths[i - 1] : i * 40009;
	}
	MPI_Type_indexed(BLOCKS, lengths, starts, MPI_DOUBLE, &type);
	MPI_Type_commit(&type);
	MPI_Pack_size(1, type, MPI_COMM_WORLD, &size);
	expected = need(malloc((size_t)size));
	message = need(malloc((size_t)size));
	MPI_Pack(field, 1, type, expected, size, &packed, MPI_COMM_WORLD);

	/* Registered once; from then on the key is found in nanoseconds. */
	if ((e = hugepin_domain_open(hugepin_mlock(), NULL, NULL, &domain)) < 0 ||
	    (e = hugepin_pin(domain, field, CELLS * sizeof *field, HUGEPIN_READ, &whole)) < 0)
		errx(1, "hugepin_pin: %s", strerror(-e));
	n = pieces_of(type, field, piece, BLOCKS);
	n = n < 0 ? n : hugepin_sg_map(piece, n, HUGEPIN_READ, hugepin_sg_key, domain, sge, BLOCKS, pins, 4, &info);
	if (n < 0)
		errx(1, "hugepin_sg_map: %s", strerror(-n));
	if (gather(sge, n, message) != (size_t)packed || memcmp(message, expected, (size_t)packed))
		errx(1, "the elements have other bytes than MPI_Pack");
	printf("%d blocks are %d elements of %d bytes, with %d pins: the bytes of MPI_Pack\n", BLOCKS, n, packed,
	       (int)info.pins);

	hugepin_unpinv(domain, pins, (int)info.pins);
	hugepin_unpin(domain, &whole);
	hugepin_domain_close(domain);
	hugepin_free(field);
	free(expected);
	free(message);
	MPI_Type_free(&type);
	MPI_Finalize();
	return 0;
}
