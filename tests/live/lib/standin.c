/*
 * Preloaded: stands in for functions of the C library, as libfaketime, uid_wrapper and tracers do. Each function here
 * allocates, and counts in a variable that the loader gives to a thread at its first use. Neither may happen while an
 * allocator holds a lock, or on a thread that the C library does not know.
 *
 * All functions take up to six integers and return one. No header declares them here, since they have other types.
 */
void *malloc(unsigned long size);
void free(void *p);
void *dlsym(void *library, const char *name);
#define RTLD_NEXT ((void *)-1l)

typedef long number;

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

#define STANDS_IN_FOR(name)                                                                                            \
	number name(number a, number b, number c, number d, number e, number f)                                        \
	{                                                                                                              \
		return ((number (*)(number, number, number, number, number, number))stand_in(#name))(a, b, c, d, e, f); \
	}

STANDS_IN_FOR(syscall)
STANDS_IN_FOR(clock_gettime)
STANDS_IN_FOR(gettimeofday)
STANDS_IN_FOR(getpid)
STANDS_IN_FOR(getenv)
STANDS_IN_FOR(secure_getenv)
STANDS_IN_FOR(getrlimit)
STANDS_IN_FOR(getrlimit64)
STANDS_IN_FOR(sysconf)
STANDS_IN_FOR(sysinfo)
STANDS_IN_FOR(prctl)
STANDS_IN_FOR(mprotect)
STANDS_IN_FOR(mincore)
STANDS_IN_FOR(open)
STANDS_IN_FOR(open64)
STANDS_IN_FOR(creat)
STANDS_IN_FOR(close)
STANDS_IN_FOR(read)
STANDS_IN_FOR(write)
STANDS_IN_FOR(readlink)
STANDS_IN_FOR(fcntl)
STANDS_IN_FOR(fcntl64)
STANDS_IN_FOR(sched_yield)
STANDS_IN_FOR(sched_getcpu)
STANDS_IN_FOR(sched_getaffinity)
STANDS_IN_FOR(sched_setaffinity)
STANDS_IN_FOR(sigprocmask)
STANDS_IN_FOR(pthread_sigmask)
STANDS_IN_FOR(pthread_mutex_init)
STANDS_IN_FOR(pthread_mutex_lock)
STANDS_IN_FOR(pthread_mutex_trylock)
STANDS_IN_FOR(pthread_mutex_unlock)
STANDS_IN_FOR(pthread_cond_init)
STANDS_IN_FOR(pthread_key_create)
STANDS_IN_FOR(pthread_getspecific)
STANDS_IN_FOR(pthread_setspecific)
STANDS_IN_FOR(pthread_create)
