/* link: hugepin */
/*
 * Effects of options that a user can see from outside, with options set as users set them. This program runs itself
 * with the variable, and checks its threads, its memory and the pool.
 */
#include "live.h"

#include <dirent.h>
#include <limits.h>
#include <malloc.h>
#include <sys/syscall.h>

#include "../device.h"

enum { PATIENCE_MS = 20000, LEN = 65536, CPUS = 4096 };

static struct device device;

static hugepin_domain *open_with(uint32_t policy)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy };
	static struct hugepin_backend backend;
	hugepin_domain *d = NULL;

	backend = device_backend;
	backend.now_ns = NULL;
	device_reset(&device);
	device.limits.flags = HUGEPIN_LIMIT_ODP;
	return hugepin_domain_open(&backend, &device, &attr, &d) == 0 ? d : NULL;
}

/* Run this program with only this variable in its environment. Returns the numbers that it prints. */
static int run(const char *setting, const char *part, const char *arg, long *ret_said, int max)
{
	char *env[] = { (char *)(uintptr_t)setting, NULL };
	int out[2], n = 0;
	FILE *said;
	pid_t pid;

	EXPECT_EQ(pipe(out), 0);
	pid = fork();
	if (pid == 0) {
		dup2(out[1], STDOUT_FILENO);
		close(out[0]);
		close(out[1]);
		execle("/proc/self/exe", "options", part, arg, (char *)NULL, env);
		_exit(127);
	}
	close(out[1]);
	said = fdopen(out[0], "r");
	while (n < max && fscanf(said, "%ld", &ret_said[n]) == 1)
		n++;
	fclose(said);
	EXPECT_EQ(child_wait(pid), 0);
	return n;
}

/* ------------------------------------------------------------------ HUGEPIN_HELPER_CPU */

/* The number of the thread on which the helper works; 0: it does not exist. */
static pid_t helper_thread(void)
{
	DIR *threads = opendir("/proc/self/task");
	char path[64], name[32];
	struct dirent *e;
	pid_t found = 0;

	if (!EXPECT(threads))
		return 0;
	while (!found && (e = readdir(threads))) {
		snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", e->d_name);
		if (file_read(path, name, sizeof name) > 0 && !strcmp(name, "hugepin\n"))
			found = (pid_t)strtol(e->d_name, NULL, 10);
	}
	closedir(threads);
	return found;
}

/* Print the processors on which the helper may run. The program itself is bound to one. */
static int say_processors(size_t own)
{
	static unsigned long mask[CPUS / 64];
	char *p = map(LEN);
	struct hugepin_domain_stats s = { 0 };
	struct hugepin_pin pin;
	hugepin_domain *d;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(own, &one);
	if (sched_setaffinity(0, sizeof one, &one) != 0)
		return 1;
	d = open_with(HUGEPIN_POLICY_PREDICT);
	if (!d)
		return 2;
	for (int ms = 0; ms < PATIENCE_MS && !s.helper_ns; ms++) {
		if (hugepin_pin(d, p, LEN, 0, &pin) != 0 || hugepin_unpin(d, &pin) != 0)
			return 3;
		hugepin_domain_stats(d, &s, sizeof s);
		sleep_ms(1);
	}
	if (!helper_thread() || syscall(SYS_sched_getaffinity, helper_thread(), sizeof mask, mask) < 0)
		return 4;
	for (int cpu = 0; cpu < CPUS; cpu++)
		if (mask[cpu / 64] >> cpu % 64 & 1)
			t_print("%d\n", cpu);
	return 0;
}

TEST(the_helper_runs_on_the_processors_of_the_option)
{
	long all[CPUS], said[CPUS];
	char setting[64], own[16];
	cpu_set_t mask;
	int n, count = 0;

	/* Let the kernel reduce this to the processors of the control group. */
	memset(&mask, 0xff, sizeof mask);
	EXPECT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
	EXPECT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &mask))
			all[count++] = (long)cpu;
	if (count < 2)
		SKIP("there is one processor");
	snprintf(own, sizeof own, "%ld", all[0]);

	for (int i = 0; i < count && i < 4; i++) {
		snprintf(setting, sizeof setting, "HUGEPIN_HELPER_CPU=%ld", all[i]);
		EXPECT_EQ(run(setting, "--processors", own, said, CPUS), 1);
		EXPECT_EQ(said[0], all[i]);
	}
	n = run("HUGEPIN_HELPER_CPU=any", "--processors", own, said, CPUS);
	EXPECT(n == count && !memcmp(said, all, (size_t)n * sizeof *said));
	n = run("TZ=", "--processors", own, said, CPUS); /* the default */
	EXPECT(n == count && !memcmp(said, all, (size_t)n * sizeof *said));
	EXPECT_EQ(run("HUGEPIN_HELPER_CPU=inherit", "--processors", own, said, CPUS), 1);
	EXPECT_EQ(said[0], all[0]);
}

/* ------------------------------------------------------------------ HUGEPIN_PREDICT_MEMORY */

static long address_space(void)
{
	char text[128];

	return file_read("/proc/self/statm", text, sizeof text) > 0 ? strtol(text, NULL, 10) * 4096 : -1;
}

/* Print the address space that a domain takes. Its tables are one mapping of their largest size. */
static int say_memory(uint32_t policy)
{
	long least = LONG_MAX;

	mallopt(M_ARENA_MAX, 1);
	if (!open_with(policy)) /* open one first, for memory that all domains share */
		return 1;
	for (int i = 0; i < 5; i++) { /* the library's thread may begin meanwhile, and maps memory, too */
		const long before = address_space();

		if (!open_with(policy))
			return 2;
		least = least < address_space() - before ? least : address_space() - before;
	}
	t_print("%ld\n", least);
	return 0;
}

TEST(a_domain_takes_as_much_memory_for_its_policy_as_the_option_says)
{
	static const char *const policies[] = { "cf11", "predict" };
	long least = 0, four = 0, much = 0;

	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(run("HUGEPIN_PREDICT_MEMORY=64K", "--memory", policies[i], &least, 1), 1);
		EXPECT_EQ(run("TZ=", "--memory", policies[i], &four, 1), 1);
		EXPECT_EQ(run("HUGEPIN_PREDICT_MEMORY=100M", "--memory", policies[i], &much, 1), 1);
		/* Allow for mappings that a sanitizer makes meanwhile. */
		EXPECT(labs(four - least - (long)(4 * MIB - 64 * KIB)) < (long)MIB / 2);
		EXPECT(labs(much - four - (long)(96 * MIB)) < (long)MIB / 2);
	}
}

/* ------------------------------------------------------------------ HUGEPIN_ODP */

/* Print the bytes that a pin has brought in, and the device's faults when the payload is next and pages were taken. */
static int say_faults(void)
{
	hugepin_domain *d = open_with(HUGEPIN_POLICY_ODP);
	struct hugepin_domain_stats s = { 0 };
	struct hugepin_pin pin;
	char *p = map(LEN);
	long brought;

	if (!d || hugepin_pin(d, p, LEN, 0, &pin) != 0)
		return 1;
	/* The service thread is asked for a hint after what the pin has asked for, and does both. */
	if (hugepin_prefetch(d, map(LEN), LEN, 0) != 0)
		return 2;
	for (int ms = 0; ms < PATIENCE_MS && !s.prefetched; ms++) {
		hugepin_domain_stats(d, &s, sizeof s);
		sleep_ms(1);
	}
	brought = (long)s.brought_bytes;
	device_invalidate(&device, p, LEN);
	if (hugepin_prefetch(d, p, LEN, HUGEPIN_PREFETCH_NEXT) != 0)
		return 3;
	t_print("%ld %ld\n", brought, (long)device_transfer(&device, pin.lkey, p, LEN));
	return 0;
}

/* Both ranges are brought in, or none. */
TEST(memory_on_demand_is_brought_in_as_the_option_says)
{
	static const struct {
		const char *setting;
		long brought, faults;
	} modes[] = {
		{ "HUGEPIN_ODP=native", 0, LEN / 4096 },
		{ "HUGEPIN_ODP=enhanced", 2 * LEN, LEN / 4096 },
		{ "HUGEPIN_ODP=optimal", 2 * LEN, 0 },
		{ "TZ=", 2 * LEN, 0 }, /* the default */
	};
	long said[2];

	for (int i = 0; i < 4; i++) {
		EXPECT_EQ(run(modes[i].setting, "--odp", "", said, 2), 2);
		EXPECT_EQ(said[0], modes[i].brought);
		EXPECT_EQ(said[1], modes[i].faults);
	}
}

/* ------------------------------------------------------------------ HUGEPIN_RESERVE */

/* Print how many pages of the pool the heap has, and how many the pool has. */
static int say_pool(void)
{
	struct hugepin_stats s;
	char *p = hugepin_malloc(16 * PAGE);

	memset(p, 1, 16 * PAGE);
	hugepin_stats(&s, sizeof s);
	t_print("%ld %ld\n", (long)(s.hugetlb_bytes / PAGE), pool_free());
	return 0;
}

/* With a reserve of all free pages but `most`, the heap takes `taken` pages. Other processes may take or give back pages
 * meanwhile: then again, and three times if that was not seen. */
static void expect_taken(long most, long taken)
{
	long before = 0, said[2] = { 0 };
	char setting[64];

	for (int i = 0, undisturbed = 0; i < 100 && undisturbed < 3; i++) {
		before = pool_free();
		snprintf(setting, sizeof setting, "HUGEPIN_RESERVE=%ld", before > most ? before - most : 0);
		EXPECT_EQ(run(setting, "--pool", "", said, 2), 2);
		if (said[0] == taken && said[1] == before - taken)
			return;
		undisturbed += before >= 20 && said[0] + said[1] == before && pool_free() == before;
		sleep_ms(50);
	}
	EXPECT_EQ(said[0], taken);
	EXPECT_EQ(said[1], before - taken);
}

TEST(so_many_pages_of_the_pool_are_left_as_the_option_says)
{
	NEEDS_POOL(20);
	expect_taken(LONG_MAX, 16);
	for (int left = 0; left < 16; left += 5)
		expect_taken(left, left);
}

/* ------------------------------------------------------------------ HUGEPIN_EXTENT */

/* Print in MiB the largest extent that contains buffers of 1 MiB, and the extent of a buffer of 40 MiB. */
static int say_extents(void)
{
	struct hugepin_extent x;
	size_t largest = 0;

	for (int i = 0; i < 64; i++) {
		if (hugepin_extent(hugepin_malloc(MIB), &x, sizeof x) < 0)
			return 1;
		largest = x.len > largest ? x.len : largest;
	}
	if (hugepin_extent(hugepin_malloc(40 * MIB), &x, sizeof x) < 0)
		return 2;
	t_print("%ld %ld\n", (long)(largest / MIB), (long)(x.len / MIB));
	return 0;
}

TEST(no_mapping_made_ahead_of_need_is_larger_than_the_option_says)
{
	char setting[64];
	long said[2];

	for (long most = 2; most <= 16; most *= 2) {
		snprintf(setting, sizeof setting, "HUGEPIN_EXTENT=%ldM", most);
		EXPECT_EQ(run(setting, "--extents", "", said, 2), 2);
		EXPECT_EQ(said[0], most);
		EXPECT_EQ(said[1], 40); /* exactly as long as the buffer needs */
	}
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--extents"))
		return say_extents();
	if (argc == 3 && !strcmp(argv[1], "--processors"))
		return say_processors(strtoul(argv[2], NULL, 10));
	if (argc == 3 && !strcmp(argv[1], "--memory"))
		return say_memory(!strcmp(argv[2], "cf11") ? HUGEPIN_POLICY_CF11 : HUGEPIN_POLICY_PREDICT);
	if (argc == 3 && !strcmp(argv[1], "--odp"))
		return say_faults();
	if (argc == 3 && !strcmp(argv[1], "--pool"))
		return say_pool();
	shm_unshare(); /* so that helpers of other processes do not count */
	return t_run(argc, argv);
}
