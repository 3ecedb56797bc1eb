/* A program that looks at its descriptors: none is of a file that it has not opened. With more calls than a recorder keeps. */
#include <dirent.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int files_named(const char *end)
{
	char path[300], to[4096];
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	for (struct dirent *e; d && (e = readdir(d));) {
		snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
		ssize_t len = readlink(path, to, sizeof to - 1);
		to[len > 0 ? len : 0] = 0;
		n += len > (ssize_t)strlen(end) && strcmp(to + len - strlen(end), end) == 0;
	}
	if (d)
		closedir(d);
	return n;
}

int main(int argc, char **argv)
{
	enum { SIZE = 65536, CALLS = 1500 };
	int rank, found;
	char *buffer = malloc(SIZE);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	found = files_named(".csv");
	if (chdir("/"))
		return 1;
	for (int i = 0; i < CALLS; i++)
		MPI_Bcast(buffer, SIZE, MPI_CHAR, 0, MPI_COMM_WORLD);
	found += files_named(".csv");
	MPI_Finalize();
	if (rank == 0)
		printf("%s\n", found ? "descriptors of ours" : "ok");
	free(buffer);
	return found != 0;
}
