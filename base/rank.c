/*
 * The rank of an MPI job, and names of files with it. Nothing here allocates.
 */
#include "base/rank.h"

#include <stdlib.h>
#include <string.h>

/* Read a rank: decimal digits alone. -1: the text is none. */
static int parse_rank(const char *text)
{
	int rank = 0;

	if (!*text)
		return -1;
	for (; *text; text++) {
		if (*text < '0' || *text > '9' || __builtin_mul_overflow(rank, 10, &rank) ||
		    __builtin_add_overflow(rank, *text - '0', &rank))
			return -1;
	}
	return rank;
}

/* The number in the first of these variables that has one, or -1. */
static int first_number(const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const char *text = hp_env(names[i]);
		const int number = text ? parse_rank(text) : -1;

		if (number >= 0)
			return number;
	}
	return -1;
}

int hp_rank(void)
{
	/* The innermost launcher comes first, because launchers start each other, and a rank has the variables of all
	 * of them: mpirun of Open MPI; mpirun_rsh of MVAPICH; mpirun of MPICH and of Intel MPI, srun --mpi=pmi2; srun
	 * --mpi=pmix; flux run. */
	static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
					     "FLUX_TASK_RANK" };

	const int rank = first_number(names, sizeof names / sizeof *names);

	if (rank >= 0)
		return rank;

	/* Slurm numbers the processes of any step, and a batch script is 0, so only a step of several is a job here. */
	const char *tasks = hp_env("SLURM_STEP_NUM_TASKS"), *text = hp_env("SLURM_PROCID");

	return tasks && text && parse_rank(tasks) > 1 ? parse_rank(text) : -1;
}

int hp_ranks_here(void)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS" };

	return HP_MAX(first_number(names, sizeof names / sizeof *names), 0);
}

static bool has(const char *path, char letter)
{
	const char two[] = { '%', letter, '\0' };

	return strstr(path, two);
}

bool hp_rank_path_has_pid(const char *path, int rank)
{
	return has(path, 'p') || (rank < 0 && has(path, 'r'));
}

static void append_rank(struct hp_line *l, int rank)
{
	hp_line_text(l, ".r");
	hp_line_number(l, (uint64_t)rank, 10);
}

void hp_rank_path(struct hp_line *l, const char *path, int pid, int rank)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *ending = strrchr(name, '.');
	bool add = rank >= 0 && !has(path, 'p') && !has(path, 'r');

	if (ending == name) /* a hidden file: the whole name begins with a dot */
		ending = NULL;
	for (const char *s = path; *s; s++) {
		if (s[0] == '%' && (s[1] == 'p' || s[1] == 'r')) {
			hp_line_number(l, (uint64_t)(s[1] == 'r' && rank >= 0 ? rank : pid), 10);
			s++;
			continue;
		}
		if (add && s == ending) {
			append_rank(l, rank);
			add = false;
		}
		hp_line_text(l, (const char[]){ *s, '\0' });
	}
	if (add)
		append_rank(l, rank);
}
