/*
 * Base pages of another size than 4 KiB, by a getauxval of our own: the heap gives everything to the tier below and no domain is
 * opened, rather than that memory is counted, given back or registered in parts that the kernel rounds otherwise.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/wait.h>

#include "base/base.h"
#include "hugepin.h"
#include "t.h"

unsigned long getauxval(unsigned long type)
{
	unsigned long (*real)(unsigned long);

	if (type == AT_PAGESZ)
		return 65536;
	*(void **)&real = dlsym(RTLD_NEXT, "getauxval");
	return real(type);
}

/* What a process that does nothing writes on stderr. */
static void start_of_another(char *ret_text, size_t size)
{
	int ends[2], status;
	ssize_t n = 0, got;
	pid_t child;

	EXPECT_EQ(pipe(ends), 0);
	child = fork();
	if (child == 0) {
		dup2(ends[1], STDERR_FILENO);
		close(ends[0]);
		close(ends[1]);
		execl("/proc/self/exe", "basepage", "--nothing", (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	while (n < (ssize_t)size - 1 && (got = read(ends[0], ret_text + n, size - 1 - (size_t)n)) > 0)
		n += got;
	ret_text[n] = '\0';
	close(ends[0]);
	EXPECT_EQ(waitpid(child, &status, 0), child);
	EXPECT_EQ(status, 0);
}

TEST(one_line_at_start_says_so)
{
	char text[400];
	const char *end;

	start_of_another(text, sizeof text);
	end = strchr(text, '\n');
	EXPECT(!strncmp(text, "hugepin: base pages of 65536 bytes ", 35));
	EXPECT(strstr(text, "4096") != NULL);
	EXPECT(end && !end[1]);
}

TEST(buffers_come_from_the_tier_below)
{
	struct hugepin_extent extent;
	struct hugepin_stats stats;
	char *p = hugepin_malloc(8 << 20), *q = hugepin_calloc(3, 1 << 20), *r = hugepin_aligned_alloc(1 << 16, 1 << 20);

	EXPECT(p && q && r);
	EXPECT(!((uintptr_t)r & 0xffff));
	EXPECT(hugepin_usable_size(p) >= 8 << 20);
	EXPECT_EQ(q[0] | q[(3 << 20) - 1], 0);
	memset(p, 1, 8 << 20);
	p = hugepin_realloc(p, 24 << 20);
	EXPECT(p && p[0] == 1 && p[(8 << 20) - 1] == 1);
	EXPECT(hugepin_extent(p, &extent, sizeof extent) < 0);
	hugepin_free(p);
	hugepin_free(q);
	hugepin_free(r);
	hugepin_purge();
	EXPECT(hugepin_stats(&stats, sizeof stats) > 0);
	EXPECT_EQ(stats.placed, 0);
	EXPECT_EQ(stats.bad_pointers, 0);
}

TEST(a_child_of_fork_goes_on)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		void *volatile p = hugepin_malloc(1 << 20);

		_exit(!p);
	}
	EXPECT_EQ(waitpid(child, &status, 0), child);
	EXPECT_EQ(status, 0);
}

static int closed, registered;

static int reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)len, (void)access, (void)ret_;
	registered++;
	return -EIO;
}

static int dereg(void *ctx, struct hugepin_reg *r)
{
	(void)ctx, (void)r;
	return 0;
}

static int limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx, (void)ret_;
	return 0;
}

static void close_ctx(void *ctx)
{
	(void)ctx;
	closed++;
}

TEST(no_domain_is_opened)
{
	struct hugepin_backend backend = {
		.size = sizeof backend, .reg = reg, .dereg = dereg, .limits = limits, .close = close_ctx
	};
	hugepin_domain *domain = (hugepin_domain *)&backend;

	EXPECT_EQ(hugepin_domain_open(&backend, NULL, NULL, &domain), -EOPNOTSUPP);
	EXPECT(domain == (hugepin_domain *)&backend);
	EXPECT_EQ(closed, 1); /* as with any other error */
	EXPECT_EQ(registered, 0);
}

int main(int argc, char **argv)
{
	return argc == 2 && !strcmp(argv[1], "--nothing") ? 0 : t_run(argc, argv);
}
