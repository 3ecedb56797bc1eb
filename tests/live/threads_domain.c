/* link: hugepin */
/* Threads of domains, in a program without the drop-in: they do not disturb the program, and have no more rights than
 * the program. */
#include "live.h"

#include <dirent.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>

#include <hugepin.h>

static hugepin_domain *domain;

/* Each thread of the C library needs room for this beside its stack. */
static _Thread_local volatile char much[300000];

/* Make at least one pin. hint: through the thread that registers ahead. */
static void use_domain(bool hint)
{
	struct hugepin_pin pin;
	struct hugepin_domain_stats s;
	char *p = hugepin_malloc(8 * MIB);
	if (!EXPECT(p) || !EXPECT_EQ(hugepin_domain_open(hugepin_mlock(), NULL, NULL, &domain), 0))
		return;
	memset(p, 1, 8 * MIB);
	if (hint) {
		EXPECT_EQ(hugepin_prefetch(domain, p, 64 * KIB, 0), 0);
		much[0] = 1;
		for (int i = 0; i < 2000 && hugepin_domain_stats(domain, &s, sizeof s) > 0 && !s.prefetched; i++)
			sleep_ms(10);
		EXPECT(s.prefetched);
	}
	if (EXPECT_EQ(hugepin_pin(domain, p, 64 * KIB, 0, &pin), 0))
		EXPECT_EQ(hugepin_unpin(domain, &pin), 0);
	hugepin_free(p);
}

/* The number of other threads whose status has a value of `key` other than `value`. Also finds whether there is a
 * thread of that name. */
static int others(const char *key, const char *value, const char *name, bool *ret_there)
{
	char path[300], text[4000], *at;
	int n = 0;
	DIR *d = opendir("/proc/self/task");
	*ret_there = false;
	for (struct dirent *e; d && (e = readdir(d));) {
		if (e->d_name[0] == '.' || strtol(e->d_name, NULL, 10) == gettid())
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
		if (file_read(path, text, sizeof text) <= 0 || !(at = strstr(text, key)))
			continue;
		*ret_there |= !strncmp(text + 6, name, strlen(name)) && text[6 + strlen(name)] == '\n';
		at += strlen(key);
		at += strspn(at, ":\t ");
		at[strcspn(at, "\n")] = 0;
		if (strcmp(at, value) != 0)
			n += !T_FAIL("thread %s: %s is '%s', not '%s'", e->d_name, key, at, value);
	}
	if (d)
		closedir(d);
	return n;
}

/* With sanitizers the threads are the C library's. */
static void alone(void (*body)(void))
{
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
	SKIP("threads are the C library's in this build");
#endif
	anew(body);
}

TEST_BY(alone, a_program_of_one_thread_with_a_domain_stays_one)
{
	use_domain(false);
	EXPECT(__libc_single_threaded);
}

TEST_BY(alone, a_program_with_a_domain_ends_with_its_last_thread)
{
	use_domain(false);
	alarm(t_seconds());
	if (t_failures)
		return;
	pthread_exit(NULL);
}

static void ends_with_service(void)
{
	use_domain(true);
	alarm(t_seconds());
	if (t_failures)
		return;
	pthread_exit(NULL);
}

static void *end_later(void *arg)
{
	sleep_ms(300);
	return arg;
}

/* The main thread ends before another thread. */
static void ends_after_main(void)
{
	pthread_t t;
	if (pthread_create(&t, NULL, end_later, NULL))
		_exit(1);
	ends_with_service();
}

TEST(a_program_whose_domain_has_a_thread_ends_with_its_own_last)
{
	alone(ends_with_service);
	alone(ends_after_main);
}

TEST_BY(alone, rights_that_are_given_up_are_left_to_no_thread_of_a_domain)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { { 0 } };
	bool there;
	use_domain(true);
	EXPECT_EQ(syscall(SYS_capset, &head, none), 0);
	EXPECT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	EXPECT_EQ(others("CapEff", "0000000000000000", "hugepin", &there), 0);
	EXPECT(there);
	EXPECT_EQ(others("Seccomp", "2", "hugepin", &there), 0);
	EXPECT_EQ(others("NoNewPrivs", "1", "hugepin", &there), 0);
}

/* The C library changes the user of each thread that it knows, and aborts if that fails for one. */
TEST_BY(alone, a_program_with_a_domain_changes_its_user)
{
	bool there;
	use_domain(true);
	if (setresgid(65534, 65534, 65534) || setuid(65534))
		SKIP("not root");
	for (int i = 0; i < 2000; i++) {
		others("NoNewPrivs", "1", "hugepin", &there);
		if (!there)
			break;
		sleep_ms(10);
	}
	EXPECT(!there); /* the thread with the old user has ended */
}

static int reg_any(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)len, (void)access;
	*ret_ = (struct hugepin_reg){ .lkey = 1, .rkey = 1 };
	return 0;
}

static int dereg_any(void *ctx, struct hugepin_reg *r)
{
	(void)ctx, (void)r;
	return 0;
}

static int allow_all(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ .access = HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_READ |
						   HUGEPIN_REMOTE_WRITE };
	return 0;
}

static void note_expiry(void *expired, const struct hugepin_expiry *e)
{
	(void)e;
	atomic_store((atomic_bool *)expired, true);
}

static void *wait_for_end(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static void unmap_with_threads(unsigned access, uint32_t flags)
{
	static const struct hugepin_backend backend = {
		.size = sizeof backend, .name = "any", .reg = reg_any, .dereg = dereg_any, .limits = allow_all
	};
	static atomic_bool expired;
	const struct hugepin_attr attr = {
		.size = sizeof attr, .flags = flags, .expire = note_expiry, .expire_arg = &expired
	};
	struct hugepin_pin pin;
	pthread_t t;
	char *p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!EXPECT(p != MAP_FAILED) || !EXPECT_EQ(hugepin_domain_open(&backend, NULL, &attr, &domain), 0) ||
	    !EXPECT(__libc_single_threaded) || !EXPECT_EQ(pthread_create(&t, NULL, wait_for_end, NULL), 0))
		return;
	if (EXPECT_EQ(hugepin_pin(domain, p, MIB, access, &pin), 0))
		EXPECT_EQ(hugepin_unpin(domain, &pin), 0);
	munmap(p, MIB);
	for (int i = 0; i < 2000 && !atomic_load(&expired); i++)
		sleep_ms(10);
	EXPECT(atomic_load(&expired));
}

static void unmap_for_peers(void)
{
	unmap_with_threads(HUGEPIN_REMOTE_WRITE, 0);
}

static void unmap_for_itself(void)
{
	unmap_with_threads(0, HUGEPIN_EXPIRE_LOCAL);
}

TEST(a_domain_opened_before_the_programs_threads_hears_of_unmapped_memory_without_a_call)
{
	alone(unmap_for_peers);
	alone(unmap_for_itself);
}

LIVE_MAIN
