/*
 * Preloaded into a client of libibverbs: appends a line to the file $COUNTREG for each of its memory registrations,
 * "reg BYTES NANOSECONDS", and deregistrations, "dereg NANOSECONDS".
 *
 * ibv_reg_mr and ibv_reg_mr_iova of rdma-core are jumps to ibv_reg_mr_iova2 through the dynamic linker, and the header's
 * macro calls it: hooking that one sees each registration once.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* The function of libibverbs, which clients tend to load as a part of a plugin: RTLD_NEXT would not find it there. */
static void *real(const char *name)
{
	void *ibverbs = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
	void *function = ibverbs ? dlsym(ibverbs, name) : NULL;
	if (!function)
		abort();
	return function;
}

/* One write, so that lines of several processes stay whole. */
static void append(const char *line, int n)
{
	const char *path = getenv("COUNTREG");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
	if (fd < 0 || write(fd, line, (size_t)n) != n)
		abort();
	close(fd);
}

/* Declared here, because libibverbs' header makes macros of such names; its types do not matter. */
void *ibv_reg_mr_iova2(void *pd, void *addr, size_t len, uint64_t iova, unsigned access);
void *ibv_reg_mr_iova2(void *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	static __typeof__(&ibv_reg_mr_iova2) next;
	if (!next)
		next = (__typeof__(next))real("ibv_reg_mr_iova2");
	long long start = now();
	void *mr = next(pd, addr, len, iova, access);
	char line[80];
	if (mr)
		append(line, snprintf(line, sizeof line, "reg %zu %lld\n", len, now() - start));
	return mr;
}

int ibv_dereg_mr(void *mr);
int ibv_dereg_mr(void *mr)
{
	static __typeof__(&ibv_dereg_mr) next;
	if (!next)
		next = (__typeof__(next))real("ibv_dereg_mr");
	long long start = now();
	int ret = next(mr);
	char line[80];
	append(line, snprintf(line, sizeof line, "dereg %lld\n", now() - start));
	return ret;
}
