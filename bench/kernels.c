/*
 * Kernels with the communication of five NAS benchmarks, which Rex et al. 2006 ran with and without hugepages (section 5.2):
 *
 *	mpirun -n 2 kernels cg|lu|mg|ep|is [SCALE]
 *
 * cg multiplies a sparse matrix with a vector that all ranks gather, and reduces; lu sweeps over planes, in which small rows
 * go from rank to rank and back; mg smooths on grids of several sizes, whose faces neighbours exchange; ep draws numbers, and
 * reduces once; is sorts keys that all ranks exchange. They are as short as their memory and messages allow, solve nothing,
 * and are not the NAS benchmarks. Arrays are malloc's; with -DSTATIC they lie in the program's bss, as those of NAS do. Rank 0
 * prints a sum of what was computed, which depends on the number of ranks alone.
 */
#include <err.h>
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks, scale = 1;

#ifdef STATIC
static _Alignas(4096) char memory[80 << 20];
static size_t used;

static void *take(size_t bytes)
{
	void *const p = memory + used;

	used += (bytes + 4095) / 4096 * 4096;
	return used <= sizeof memory ? p : NULL;
}

/* With all that was taken after it. */
static void put(void *p)
{
	const size_t at = (size_t)((char *)p - memory);

	used = at < used ? at : used;
}
#else
#define take malloc
#define put free
#endif

static void *get(size_t n, size_t size)
{
	void *p = take(n * size);

	if (!p)
		err(1, "%zu bytes", n * size);
	return memset(p, 0, n * size);
}

static uint32_t rnd(uint32_t *seed)
{
	*seed = *seed * 1664525u + 1013904223u;
	return *seed >> 8;
}

static double cg(void)
{
	enum { ROW = 13 };
	const int n = 150000 / ranks, all = n * ranks;
	double *value = get((size_t)n * ROW, sizeof *value), *x = get((size_t)all, sizeof *x), *y = get((size_t)n, sizeof *y);
	int *column = get((size_t)n * ROW, sizeof *column);
	uint32_t seed = 1 + (uint32_t)rank;
	double sum = 0, norm = 1;

	for (size_t i = 0; i < (size_t)n * ROW; i++) {
		column[i] = (int)(rnd(&seed) % (uint32_t)all);
		value[i] = 1.0 / (1 + rnd(&seed) % 64);
	}
	for (int i = 0; i < n; i++)
		y[i] = 1;
	for (int step = 0; step < 25 * scale; step++) {
		MPI_Allgather(y, n, MPI_DOUBLE, x, n, MPI_DOUBLE, MPI_COMM_WORLD);
		double mine = 0;
		for (int i = 0; i < n; i++) {
			double s = 0;
			for (int k = 0; k < ROW; k++)
				s += value[(size_t)i * ROW + (size_t)k] * x[column[(size_t)i * ROW + (size_t)k]];
			y[i] = s / norm;
			mine += y[i] * y[i];
		}
		MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		norm = sqrt(sum / all);
	}
	put(value);
	put(x);
	put(y);
	put(column);
	return sum;
}

/* Planes of n by n: a rank has n / ranks rows of each, and needs its neighbour's last. */
static double lu(void)
{
	const int n = 128, rows = n / ranks;
	const size_t plane = (size_t)(rows + 2) * (size_t)n;
	double *u = get(plane * (size_t)n, sizeof *u), sum = 0;

	for (size_t i = 0; i < plane * (size_t)n; i++)
		u[i] = (double)(i % 17);
	for (int step = 0; step < 2 * 6 * scale; step++) {
		const int down = step % 2 == 0, from = down ? rank - 1 : rank + 1, to = down ? rank + 1 : rank - 1;
		for (int k = 0; k < n; k++) {
			double *p = u + plane * (size_t)k, *edge = p + (down ? 0 : rows + 1) * n;
			if (from >= 0 && from < ranks)
				MPI_Recv(edge, n, MPI_DOUBLE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			for (int r = 1; r <= rows; r++) {
				double *q = p + (down ? r : rows + 1 - r) * n, *last = down ? q - n : q + n;
				for (int i = 1; i < n; i++)
					q[i] = 0.5 * q[i] + 0.3 * last[i] + 0.2 * q[i - 1];
			}
			if (to >= 0 && to < ranks)
				MPI_Send(p + (down ? rows : 1) * n, n, MPI_DOUBLE, to, 0, MPI_COMM_WORLD);
		}
	}
	for (size_t i = 0; i < plane * (size_t)n; i++)
		sum += u[i];
	put(u);
	return sum;
}

/* One smoothing of a slab of n / ranks planes of n by n, between two planes of the neighbours, which are a ring. */
static void smooth(const double *u, double *v, int n)
{
	const int planes = n / ranks;
	const size_t face = (size_t)n * (size_t)n;

	for (int z = 1; z <= planes; z++)
		for (size_t i = (size_t)z * face + (size_t)n + 1; i < (size_t)(z + 1) * face - (size_t)n - 1; i++)
			v[i] = 0.4 * u[i] + 0.1 * (u[i - 1] + u[i + 1] + u[i - (size_t)n] + u[i + (size_t)n] + u[i - face] + u[i + face]);
}

static double mg(void)
{
	double sum = 0;

	for (int cycle = 0; cycle < 6 * scale; cycle++)
		for (int n = 160; n >= 20; n /= 2) {
			const int planes = n / ranks, after = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
			const size_t face = (size_t)n * (size_t)n, len = face * (size_t)(planes + 2);
			double *u = get(len, sizeof *u), *v = get(len, sizeof *v);

			for (size_t i = 0; i < len; i++)
				u[i] = (double)(i % 13);
			for (int i = 0; i < 2; i++) {
				MPI_Sendrecv(u + face * (size_t)planes, (int)face, MPI_DOUBLE, after, 0, u, (int)face, MPI_DOUBLE, before, 0,
					     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				MPI_Sendrecv(u + face, (int)face, MPI_DOUBLE, before, 1, u + face * (size_t)(planes + 1), (int)face,
					     MPI_DOUBLE, after, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				smooth(u, v, n);
				double *other = u;
				u = v;
				v = other;
			}
			sum += u[len / 2];
			put(u);
			put(v);
		}
	return sum;
}

static double ep(void)
{
	uint32_t seed = 77 + (uint32_t)rank;
	double count[10] = { 0 }, all[10];

	for (int i = 0; i < 8000000 * scale / ranks; i++) {
		const double x = rnd(&seed) * 0x1p-23 - 1, y = rnd(&seed) * 0x1p-23 - 1, t = x * x + y * y;
		if (t > 0 && t <= 1)
			count[(int)fmin(9, fabs(x) * sqrt(-2 * log(t) / t))]++;
	}
	MPI_Allreduce(count, all, 10, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return all[0] + 3 * all[1];
}

static double is(void)
{
	const int n = 2000000 / ranks;
	uint32_t *key = get((size_t)n, sizeof *key), seed = 5 + (uint32_t)rank;
	int *out = get((size_t)ranks, sizeof *out), *in = get((size_t)ranks, sizeof *in), *out_at = get((size_t)ranks, sizeof *out_at),
	    *in_at = get((size_t)ranks, sizeof *in_at);
	double sum = 0;

	for (int step = 0; step < 8 * scale; step++) {
		uint32_t *sorted = get((size_t)n, sizeof *sorted), *mine;
		int *at = get((size_t)ranks, sizeof *at), total = 0, *histogram = get(1 << 16, sizeof *histogram);

		memset(out, 0, (size_t)ranks * sizeof *out);
		for (int i = 0; i < n; i++) {
			key[i] = rnd(&seed);
			out[key[i] % (uint32_t)ranks]++;
		}
		for (int r = 1; r < ranks; r++)
			out_at[r] = at[r] = at[r - 1] + out[r - 1];
		for (int i = 0; i < n; i++)
			sorted[at[key[i] % (uint32_t)ranks]++] = key[i];
		MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
		for (int r = 0; r < ranks; r++) {
			in_at[r] = total;
			total += in[r];
		}
		mine = get((size_t)total, sizeof *mine);
		MPI_Alltoallv(sorted, out, out_at, MPI_UNSIGNED, mine, in, in_at, MPI_UNSIGNED, MPI_COMM_WORLD);
		for (int i = 0; i < total; i++)
			histogram[mine[i] & 0xffff]++;
		sum += histogram[step] + (double)mine[total / 2];
		put(sorted);
		put(at);
		put(histogram);
		put(mine);
	}
	put(key);
	put(out);
	put(in);
	put(out_at);
	put(in_at);
	return sum;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		double (*run)(void);
	} kernels[] = { { "cg", cg }, { "lu", lu }, { "mg", mg }, { "ep", ep }, { "is", is } };
	int known = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc > 2)
		scale = atoi(argv[2]);
	if (128 % ranks || 20 % ranks || scale < 1)
		errx(2, "1, 2 or 4 ranks, and a scale from 1 up");
	for (size_t i = 0; argc > 1 && i < sizeof kernels / sizeof *kernels; i++)
		if (!strcmp(argv[1], kernels[i].name)) {
			const double mine = kernels[i].run();
			double sum;

			known = 1;
			MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
			if (!rank)
				printf("%s %.17g\n", argv[1], sum);
		}
	MPI_Finalize();
	if (!known)
		errx(2, "cg, lu, mg, ep or is");
	return 0;
}
