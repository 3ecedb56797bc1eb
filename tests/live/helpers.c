/* link: hugepin */
/*
 * Four processes, each with a domain that predicts. HUGEPIN_HELPER decides which helpers work. Each process waits until
 * the statistics of its own domain are as expected.
 */
#include "live.h"

#include "../device.h"

/* TOLD_MS: until each process has told the others of itself */
enum { PROCESSES = 4, LEN = 65536, PATIENCE_MS = 20000, TOLD_MS = 1000 };

static struct device device;

/* Pin buffers until the helper shares its core with so many helpers, itself included. */
static int process(int buffers, unsigned sharers)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_PREDICT };
	struct hugepin_domain_stats s;
	struct hugepin_pin pin;
	struct hugepin_backend backend = device_backend;
	hugepin_domain *d;
	char *p = mmap(NULL, (size_t)buffers * LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), c;

	backend.now_ns = NULL;
	device_reset(&device);
	if (hugepin_domain_open(&backend, &device, &attr, &d) != 0)
		return 1;
	for (int ms = 0; ms < PATIENCE_MS; ms++) {
		for (int b = 0; b < buffers; b++)
			if (hugepin_pin(d, p + (size_t)b * LEN, LEN, 0, &pin) != 0 || hugepin_unpin(d, &pin) != 0)
				return 2;
		hugepin_domain_stats(d, &s, sizeof s);
		if (ms > TOLD_MS && s.sharers == sharers) {
			/* Stay alive until the other processes have seen their numbers, too. */
			if (write(STDOUT_FILENO, ".", 1) != 1 || read(STDIN_FILENO, &c, 1) != 0)
				return 3;
			return hugepin_domain_close(d) != 0;
		}
		sleep_ms(1);
	}
	return 4;
}

/* Run all processes under `policy`, and expect the same number of sharers in each. */
static void run_all(const char *policy, unsigned sharers)
{
	char *env[] = { NULL, NULL }, setting[64], number[12], c;
	pid_t pid[PROCESSES];
	int told[2], go[2];

	snprintf(setting, sizeof setting, "HUGEPIN_HELPER=%s", policy);
	snprintf(number, sizeof number, "%u", sharers);
	env[0] = setting;
	EXPECT(pipe(told) == 0 && pipe(go) == 0);
	for (int i = 0; i < PROCESSES; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			char buffers[2] = { (char)('1' + i), 0 };

			dup2(go[0], STDIN_FILENO);
			dup2(told[1], STDOUT_FILENO);
			close(go[0]);
			close(go[1]);
			close(told[0]);
			close(told[1]);
			execle("/proc/self/exe", "helpers", "--process", buffers, number, (char *)NULL, env);
			_exit(127);
		}
	}
	close(go[0]);
	close(told[1]);
	for (int i = 0; i < PROCESSES; i++)
		EXPECT_EQ(read(told[0], &c, 1), 1);
	close(go[1]);
	for (int i = 0; i < PROCESSES; i++)
		EXPECT_EQ(child_wait(pid[i]), 0);
	close(told[0]);
}

static int processors(void)
{
	return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

TEST_CASE(no_helper_works_where_it_is_turned_off, run_all("off", 0))

TEST(where_there_is_no_idle_core_conservative_helpers_do_not_work)
{
	if (processors() > PROCESSES)
		SKIP("there are idle cores");
	run_all("conservative", 0);
}

TEST(where_there_is_no_idle_core_aggressive_helpers_share_one)
{
	if (processors() > PROCESSES)
		SKIP("there are idle cores");
	run_all("aggressive", PROCESSES);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "--process"))
		return process(atoi(argv[2]), (unsigned)atoi(argv[3]));
	shm_unshare();
	return t_run(argc, argv);
}
