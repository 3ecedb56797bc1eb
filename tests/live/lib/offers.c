/*
 * Preloaded into `hugepin info`: a kernel that offers what this one may lack. OFFERS=files: hugepages for files that are
 * only read; OFFERS=dtlb, itlb: the processor counts their misses. Without OFFERS it has none of them.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static int offers(const char *what)
{
	const char *list = getenv("OFFERS");

	return list && strstr(list, what);
}

static long refuse(int err)
{
	errno = err;
	return -1;
}

__attribute__((visibility("default"))) int madvise(void *addr, size_t len, int advice)
{
	int (*const next)(void *, size_t, int) = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise");

	if (advice != 25) /* MADV_COLLAPSE */
		return next(addr, len, advice);
	return offers("files") ? 0 : (int)refuse(EINVAL);
}

__attribute__((visibility("default"))) long syscall(long number, ...)
{
	long (*const next)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	long a[6];
	va_list args;

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (number == SYS_perf_event_open) {
		const struct perf_event_attr *attr = (const struct perf_event_attr *)a[0];

		return offers((attr->config & 0xff) == PERF_COUNT_HW_CACHE_ITLB ? "itlb" : "dtlb")
			       ? open("/dev/null", O_RDONLY | O_CLOEXEC)
			       : refuse(ENOENT);
	}
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
