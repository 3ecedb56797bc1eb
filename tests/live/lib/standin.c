/*
 * Preloaded: stands in for functions of the C library, as libfaketime and uid_wrapper do. Each function here allocates, and counts in
 * a variable that the loader gives to a thread at its first use. Neither may happen while an allocator holds a lock, or on a thread
 * that the C library does not know.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static __thread long calls[1024] __attribute__((tls_model("global-dynamic")));

/* The C library's function of that name. */
static void *stand_in(const char *name)
{
	void *volatile p;

	if (calls[0]++ == 0) {
		p = malloc(24);
		free(p);
	}
	p = dlsym(RTLD_NEXT, name);
	calls[0]--;
	return p;
}

int clock_gettime(clockid_t clock, struct timespec *ret)
{
	int (*const next)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))stand_in("clock_gettime");

	return next(clock, ret);
}

pid_t getpid(void)
{
	pid_t (*const next)(void) = (pid_t (*)(void))stand_in("getpid");

	return next();
}

int sched_yield(void)
{
	int (*const next)(void) = (int (*)(void))stand_in("sched_yield");

	return next();
}

int mprotect(void *addr, size_t len, int prot)
{
	int (*const next)(void *, size_t, int) = (int (*)(void *, size_t, int))stand_in("mprotect");

	return next(addr, len, prot);
}

int pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes)
{
	int (*const next)(pthread_cond_t *, const pthread_condattr_t *) =
		(int (*)(pthread_cond_t *, const pthread_condattr_t *))stand_in("pthread_cond_init");

	return next(cond, attributes);
}

long syscall(long number, ...)
{
	long (*const next)(long, ...) = (long (*)(long, ...))stand_in("syscall");
	long a[6];
	va_list args;

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
