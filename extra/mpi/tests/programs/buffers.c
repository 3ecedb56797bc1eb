/*
 * buffers ROUNDS KIB BUFFERS PAUSE: pairs of ranks send a buffer to and fro, each round another one of so many, and check
 * each byte that arrives. The ranks of a pair are half of all ranks apart, so they are of two nodes where there are two.
 * Between rounds they pause for so many milliseconds, as if they computed (Li et al. 2011, figure 1).
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned char byte_of(int round, int from, size_t i)
{
	return (unsigned char)((size_t)round * 37 + (size_t)from * 101 + i + (i >> 8) * 7);
}

static void write_all(unsigned char *p, size_t len, int round, int from)
{
	for (size_t i = 0; i < len; i++)
		p[i] = byte_of(round, from, i);
}

static size_t wrong_in(const unsigned char *p, size_t len, int round, int from)
{
	size_t wrong = 0;

	for (size_t i = 0; i < len; i++)
		wrong += p[i] != byte_of(round, from, i);
	return wrong;
}

int main(int argc, char **argv)
{
	int rank, ranks, peer, rounds = argc > 1 ? atoi(argv[1]) : 12, buffers = argc > 3 ? atoi(argv[3]) : 4;
	useconds_t pause_us = argc > 4 ? (useconds_t)atoi(argv[4]) * 1000 : 0;
	size_t len = (argc > 2 ? (size_t)atol(argv[2]) : 1024) * 1024, wrong = 0;
	unsigned long long mine, all;
	unsigned char **p;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	peer = (rank + ranks / 2) % ranks;
	p = malloc((size_t)buffers * sizeof *p);
	for (int i = 0; i < buffers; i++)
		p[i] = malloc(len);
	for (int i = 0; i < rounds; i++) {
		unsigned char *b = p[i % buffers];

		for (int upper = 0; upper < 2; upper++) {
			if (upper == rank / (ranks / 2)) {
				write_all(b, len, i, rank);
				MPI_Send(b, (int)len, MPI_BYTE, peer, i, MPI_COMM_WORLD);
			} else {
				memset(b, 0, len);
				MPI_Recv(b, (int)len, MPI_BYTE, peer, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				wrong += wrong_in(b, len, i, peer);
			}
		}
		usleep(pause_us);
	}
	mine = wrong;
	MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (!rank)
		printf("%s %llu\n", all ? "wrong" : "ok", all);
	MPI_Finalize();
	for (int i = 0; i < buffers; i++)
		free(p[i]);
	free(p);
	return wrong != 0;
}
