/*
 * Runs a program for `make demo` and appends one line about it to a file: counted [-w] [-t MIB] [-p LIBRARY] FILE
 * COMMAND [ARGUMENT...].
 *
 *   wall= user= sys=   seconds
 *   faults=            page faults
 *   tlb=               misses of the data TLB by loads in user mode; "-" where the processor or the kernel does not count them
 *   hugetlb= thp= base=   with -w, KiB of each kind of page as /proc/PID/smaps_rollup has them, at the moment when most of the
 *                      program's memory was in hugepages; the looking takes time of its own
 *
 * -t touches so much memory in THP first, and gives it back. In a virtual machine whose host takes free memory back, the first touch
 * of a hugepage costs a millisecond: so the program finds some that the host has given. -p preloads LIBRARY into the program alone. The exit status is the program's. SIGTERM ends the program, and this one when the
 * program is gone: its pages are back in the pool then. perf_event_open(2) is called directly: the demo
 * has no package but those of the build, and PAPI or perf is in none.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct pages {
	long hugetlb_kb, thp_kb, base_kb;
};

static volatile sig_atomic_t program; /* its PID */
static volatile sig_atomic_t ended; /* by a signal to this process */

static void end_program(int signal)
{
	ended = signal;
	if (program)
		kill(program, SIGKILL);
}

/* The program's loads, from its exec on, that miss the TLB; a descriptor or -1. */
static int tlb_counter(pid_t pid)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HW_CACHE,
		.size = sizeof attr,
		.config = PERF_COUNT_HW_CACHE_DTLB | PERF_COUNT_HW_CACHE_OP_READ << 8 | PERF_COUNT_HW_CACHE_RESULT_MISS << 16,
		.disabled = 1,
		.enable_on_exec = 1,
		.inherit = 1,
		.exclude_kernel = 1,
		.exclude_hv = 1,
	};
	return (int)syscall(SYS_perf_event_open, &attr, pid, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

/* Keep in *most what smaps_rollup has, if more of it is in hugepages. A process that ends has no smaps. */
static void look(pid_t pid, struct pages *most)
{
	char path[64], line[256];
	struct pages now = { 0 };
	long rss_kb = -1;

	snprintf(path, sizeof path, "/proc/%ld/smaps_rollup", (long)pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return;
	while (fgets(line, sizeof line, f)) {
		sscanf(line, "Rss: %ld", &rss_kb);
		sscanf(line, "AnonHugePages: %ld", &now.thp_kb);
		sscanf(line, "Private_Hugetlb: %ld", &now.hugetlb_kb);
	}
	fclose(f);
	if (rss_kb < 0)
		return;
	now.base_kb = rss_kb - now.thp_kb; /* Rss is without hugetlb pages */
	const long huge = now.hugetlb_kb + now.thp_kb, huge_most = most->hugetlb_kb + most->thp_kb;
	if (huge > huge_most || (huge == huge_most && now.base_kb > most->base_kb))
		*most = now;
}

static pid_t start(char **command, const char *library, int *ret_counter)
{
	int go[2];
	char byte = 0;

	if (pipe2(go, O_CLOEXEC) != 0)
		return -1;
	const pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a demo that is killed leaves nothing behind */
		signal(SIGTERM, SIG_DFL);
		close(go[1]);
		if (read(go[0], &byte, 1) != 1)
			_exit(127);
		if (library)
			setenv("LD_PRELOAD", library, 1);
		execvp(command[0], command);
		fprintf(stderr, "counted: %s: %s\n", command[0], strerror(errno));
		_exit(127);
	}
	close(go[0]);
	if (pid > 0) {
		program = pid;
		*ret_counter = tlb_counter(pid);
		if (ended || write(go[1], &byte, 1) != 1)
			kill(pid, SIGKILL);
	}
	close(go[1]);
	return pid;
}

static void touch_huge(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return;
	madvise(p, len, MADV_HUGEPAGE);
	for (size_t i = 0; i < len; i += 4096)
		((volatile char *)p)[i] = 1;
	munmap(p, len);
}

static double seconds(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

int main(int argc, char **argv)
{
	const char *library = NULL;
	struct pages most = { 0 };
	struct timespec begin, end;
	struct rusage used;
	uint64_t misses;
	int option, status, counter = -1, watched = 0;

	while ((option = getopt(argc, argv, "+wt:p:")) != -1) {
		if (option == 'w')
			watched = 1;
		else if (option == 't')
			touch_huge((size_t)strtoul(optarg, NULL, 10) << 20);
		else if (option == 'p')
			library = optarg;
		else
			return 2;
	}
	if (argc - optind < 2) {
		fprintf(stderr, "usage: counted [-w] [-t MIB] [-p LIBRARY] FILE COMMAND [ARGUMENT...]\n");
		return 2;
	}
	FILE *out = fopen(argv[optind], "ae");
	if (!out) {
		fprintf(stderr, "counted: %s: %s\n", argv[optind], strerror(errno));
		return 2;
	}
	sigaction(SIGTERM, &(struct sigaction){ .sa_handler = end_program, .sa_flags = SA_RESTART }, NULL);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	const pid_t pid = start(argv + optind + 1, library, &counter);
	if (pid < 0) {
		perror("counted: fork");
		return 2;
	}
	while (wait4(pid, &status, watched ? WNOHANG : 0, &used) == 0) {
		look(pid, &most);
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	program = 0;
	clock_gettime(CLOCK_MONOTONIC, &end);

	fprintf(out, "wall=%.6f user=%.6f sys=%.6f faults=%ld",
	        (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec), seconds(used.ru_utime),
	        seconds(used.ru_stime), used.ru_minflt + used.ru_majflt);
	if (counter >= 0 && read(counter, &misses, sizeof misses) == sizeof misses)
		fprintf(out, " tlb=%" PRIu64, misses);
	else
		fprintf(out, " tlb=-");
	if (watched)
		fprintf(out, " hugetlb=%ld thp=%ld base=%ld", most.hugetlb_kb, most.thp_kb, most.base_kb);
	fputc('\n', out);
	if (fclose(out) != 0) {
		perror("counted");
		return 2;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
